// moetier-replay: reads a plan's experts, iteration by iteration, and reports what it cost.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/parent.h"
#include "replay/capture.h"
#include "replay/counters.h"
#include "replay/destinations.h"
#include "replay/events.h"
#include "replay/lists.h"
#include "replay/maps.h"
#include "replay/options.h"
#include "replay/own.h"
#include "replay/pass.h"
#include "replay/plan.h"
#include "replay/pool.h"
#include "replay/probe.h"
#include "replay/stop.h"
#include "replay/worker.h"

struct replay {
    struct options options;
    struct plan plan;
    struct lists advice;
    struct lists table;
    struct pool pool;
    struct probe_choice probe;
    struct maps maps;
    struct destinations destinations;
    struct counters counters;
    struct capture capture;
    struct own own;
    struct crew crew;
    struct json line;
    bool partial;
};

enum { OTHER_FDS = 64 };

// mincore asks about mappings; "auto" does without hits where the pool has more files than can be mapped.
static bool open_maps(struct replay *replay, struct failure *failure)
{
    bool for_hits = replay->options.hits != HITS_NONE && replay->probe.probe == PROBE_MINCORE;
    if (replay->options.mode != MODE_MMAP && !for_hits)
        return true;
    if (maps_open(&replay->maps, &replay->pool, failure))
        return true;
    if (replay->options.mode == MODE_MMAP || replay->options.hits != HITS_AUTO || failure->exit != EXIT_UNSUPPORTED)
        return false;
    replay->probe.probe = PROBE_NONE;
    size_t length = strlen(replay->probe.note);
    snprintf(replay->probe.note + length, sizeof replay->probe.note - length, "; not used: %.200s", failure->message);
    return true;
}

static bool check_known(enum mode mode, struct failure *failure)
{
    return mode <= MODE_MMAP || mode == MODE_DIRECT || own_kind(mode) != OWN_NONE ||
           failure_set(failure, EXIT_USAGE, "usage", "--mode %s: not yet", mode_names[mode]);
}

// After the destinations are touched: what is available then may be taken.
static bool prepare_own(struct replay *replay, struct failure *failure)
{
    if (own_kind(replay->options.mode) == OWN_NONE)
        return true;
    counters_read(&replay->counters); // the preload is measured apart from the passes
    if (!own_open(&replay->own, &replay->options, &replay->table, &replay->pool, replay->crew.stamps, failure))
        return false;
    counters_read(&replay->counters);
    lists_free(&replay->table);
    if (stopping()) // it may be locked and filled in part, and nothing will be read
        return true;
    replay->crew.own = &replay->own;
    event_own(&replay->line, &replay->options, &replay->own, &replay->counters);
    return true;
}

static bool prepare(struct replay *replay, struct failure *failure)
{
    struct options *options = &replay->options;
    if (!plan_load(&replay->plan, options->plan, failure) ||
        (options->advice && !lists_load(&replay->advice, options->advice, LIST_ADVICE, &replay->plan, failure)) ||
        (options->table && !lists_load(&replay->table, options->table, LIST_TABLE, &replay->plan, failure)) ||
        !pool_open_root(&replay->pool, &replay->plan, options->root, failure) ||
        !check_known(options->mode, failure) || !mode_check(reading_mode(options->mode), &replay->pool, failure) ||
        !probe_choose(&replay->probe, options->hits, &replay->pool, failure) || !open_maps(replay, failure) ||
        !counters_open(&replay->counters, &options->device_stats, failure) ||
        !destinations_map(&replay->destinations, &replay->plan, options->mode, options->destinations, failure))
        return false;
    event_start(&replay->line, options, &replay->plan, replay->destinations.stride, &replay->probe);
    sigbus_install();
    replay->capture.files = &options->captures;
    replay->capture.inflights = &options->inflights;
    struct crew *crew = &replay->crew;
    crew->plan = &replay->plan;
    crew->destinations = &replay->destinations;
    crew->maps = &replay->maps;
    crew->stamps = replay->plan.header.flags & PLAN_STAMPED ? options->stamps : STAMPS_NONE;
    uint32_t open_files = fds_budget(options->threads, OTHER_FDS + (uint32_t)options->device_stats.count);
    if (!crew_start(crew, reading_mode(options->mode), &replay->pool, options->threads, open_files, failure) ||
        !prepare_own(replay, failure))
        return false;
    if (!stopping())
        event_ready(&replay->line, own_mapped_bytes(&replay->own), own_locked_bytes(&replay->own));
    return true;
}

// One line on stdin starts the first pass. False at the end of stdin (whoever would have started it is gone) or at a signal.
static bool wait_for_start(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (!stopping()) {
        // A signal between the look above and poll is seen a little later.
        if (poll(&input, 1, 50) <= 0)
            continue;
        char byte;
        ssize_t got = read(STDIN_FILENO, &byte, 1);
        if (got == 0 || (got < 0 && errno != EINTR))
            return false;
        if (got == 1 && byte == '\n')
            return true;
    }
    return false;
}

static bool run_passes(struct replay *replay, struct failure *failure)
{
    const struct options *options = &replay->options;
    struct pass_context context = {options,       &replay->plan,      &replay->pool,    replay->probe.probe,
                                   &replay->crew, &replay->counters, &replay->capture, {0}};
    bool good = true;
    for (size_t i = 0; good && i < options->passes.count; i++) {
        if (stopping()) {
            replay->partial = true;
            break;
        }
        struct pass pass = {.name = options->passes.items[i]};
        bool asked = options->hits_passes.count == 0 || names_hold(&options->hits_passes, pass.name);
        pass.counts_hits = asked && options->hits != HITS_NONE && replay->probe.probe != PROBE_NONE;
        pass.owns_memory = replay->crew.own != NULL;
        good = pass_run(&pass, &context, failure);
        replay->partial = replay->partial || pass.partial;
    }
    json_free(&context.line);
    return good;
}

static void release(struct replay *replay)
{
    if (replay->crew.abandoned)
        return;
    crew_end(&replay->crew);
    capture_free(&replay->capture);
    counters_close(&replay->counters);
    own_close(&replay->own);
    destinations_unmap(&replay->destinations);
    maps_close(&replay->maps);
    if (replay->pool.root >= 0)
        close(replay->pool.root);
    lists_free(&replay->table);
    lists_free(&replay->advice);
    plan_free(&replay->plan);
    options_free(&replay->options);
    json_free(&replay->line);
}

// The whole replay; returns the exit status.
static int replay_plan(struct replay *replay, struct failure *failure)
{
    replay->partial = true; // until every pass is whole
    if (!prepare(replay, failure))
        return (int)failure->exit;
    if (!replay->options.wait || wait_for_start()) {
        replay->partial = false;
        if (!run_passes(replay, failure)) {
            replay->partial = true;
            return (int)failure->exit;
        }
    }
    return stop_signal() ? 128 + stop_signal() : EXIT_DONE;
}

static int run(struct replay *replay, int argc, char **argv)
{
    struct failure failure = {0};
    int status = EXIT_DONE;
    if (!options_parse(&replay->options, argc, argv, &failure)) {
        replay->partial = true;
        status = (int)failure.exit;
    } else if (replay->options.help) {
        options_help();
        return status;
    } else if (replay->options.version) {
        puts("moetier-replay " MOETIER_VERSION);
        return status;
    } else if (replay->options.self_test) {
        if (probe_self_test(replay->options.self_test, &failure))
            return status;
        status = (int)failure.exit;
    } else {
        status = replay_plan(replay, &failure);
    }
    if (failure.code && status == (int)failure.exit)
        failure_report(&failure, "moetier-replay");
    event_end(&replay->line, replay->partial, status);
    return status;
}

int main(int argc, char **argv)
{
    static struct replay replay; // static: zero, and large
    replay.pool.root = -1;
    replay.counters.process_fd = -1;
    die_with_parent(SIGTERM);
    stop_install();
    int status = run(&replay, argc, argv);
    release(&replay);
    return status;
}
