// moetier-replay: reads a plan's experts, iteration by iteration, and reports what it cost.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/parent.h"
#include "replay/background.h"
#include "replay/capture.h"
#include "replay/compute.h"
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
#include "replay/prefetch.h"
#include "replay/probe.h"
#include "replay/sigbus.h"
#include "replay/spine.h"
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
    struct maps writable;
    struct background background;
    struct destinations destinations;
    struct counters counters;
    struct capture capture;
    struct own own;
    struct spine spine;
    struct prefetch prefetch;
    struct compute compute;
    struct crew crew;
    struct json line;
    bool partial;
};

enum { OTHER_FDS = 64 };

// mincore asks about mappings; "auto" does without hits where the pool has more files than can be mapped.
static bool open_maps(struct replay *replay, struct failure *failure)
{
    const struct options *options = &replay->options;
    bool for_hits = options->hits != HITS_NONE && replay->probe.probe == PROBE_MINCORE;
    bool for_copies = mode_maps(options->mode) || mode_maps(options->warm_mode);
    enum access access = options->mode == MODE_WRITE_PRIVATE ? ACCESS_WRITE_PRIVATE : ACCESS_WRITE_SHARED;
    if (mode_writes(options->mode) && !maps_open(&replay->writable, &replay->pool, access, failure))
        return false;
    if (!for_copies && !for_hits)
        return true;
    if (maps_open(&replay->maps, &replay->pool, ACCESS_READ, failure))
        return true;
    if (for_copies || options->hits != HITS_AUTO || failure->exit != EXIT_UNSUPPORTED)
        return false;
    replay->probe.probe = PROBE_NONE;
    size_t length = strlen(replay->probe.note);
    snprintf(replay->probe.note + length, sizeof replay->probe.note - length, "; not used: %.200s", failure->message);
    return true;
}

// Every expert's residency was asked for by name: nothing is measured where it cannot be told.
static bool check_probe(const struct replay *replay, struct failure *failure)
{
    if (replay->options.experts_exit.count == 0 || replay->probe.probe != PROBE_NONE)
        return true;
    return failure_set(failure, EXIT_UNSUPPORTED, "unsupported", "--experts-exit: no residency probe works on this pool: %s",
                       replay->probe.note);
}

static bool start_background(struct replay *replay, uint32_t open_files, struct failure *failure)
{
    return replay->options.background_threads == 0 ||
           background_start(&replay->background, &replay->options, &replay->pool, open_files, failure);
}

// After the destinations are touched: what is available then may be taken.
static bool prepare_own(struct replay *replay, struct failure *failure)
{
    if (!mode_owns(replay->options.mode))
        return true;
    counters_read(&replay->counters); // the preload is measured apart from the passes
    if (!own_open(&replay->own, &replay->options, &replay->table, &replay->pool, replay->crew.stamps, failure))
        return false;
    counters_read(&replay->counters);
    lists_free(&replay->table);
    if (stopping()) // it may be locked and filled in part, and nothing will be read
        return true;
    event_own(&replay->line, &replay->options, &replay->own, &replay->counters);
    return true;
}

// The threads beside the workers. The compute phase is measured last, when nothing else runs.
static bool start_others(struct replay *replay, uint32_t open_files, struct failure *failure)
{
    const struct options *options = &replay->options;
    if (options->prefetch != PREFETCH_NONE) {
        const struct prefetch_order order = {&replay->plan, &replay->pool, &replay->advice, options, replay->crew.stamps,
                                             replay->probe.probe, open_files};
        if (!prefetch_start(&replay->prefetch, &order, failure))
            return false;
        replay->crew.prefetch = &replay->prefetch;
    }
    return options->compute_seconds == 0 ||
           compute_start(&replay->compute, options->compute_seconds, options->compute_threads, failure);
}

// Large enough for both modes. What is read in place needs none, but the spine is copied all the same.
static bool map_destinations(struct replay *replay, struct failure *failure)
{
    const struct options *options = &replay->options;
    uint64_t stride = largest_expert(&replay->plan, options->mode), warm = largest_expert(&replay->plan, options->warm_mode);
    if (warm > stride)
        stride = warm;
    if (stride == 0 && options->spine)
        stride = largest_expert(&replay->plan, MODE_PAGE_CACHE);
    return destinations_map(&replay->destinations, stride, options->destinations, failure);
}

// Everything that is read or checked before anything is started.
static bool load(struct replay *replay, struct failure *failure)
{
    const struct options *options = &replay->options;
    return plan_load(&replay->plan, options->plan, failure) &&
           (!options->advice || lists_load(&replay->advice, options->advice, LIST_ADVICE, &replay->plan, failure)) &&
           (!options->table || lists_load(&replay->table, options->table, LIST_TABLE, &replay->plan, failure)) &&
           pool_open_root(&replay->pool, &replay->plan, options->root, failure) &&
           mode_check(reading_mode(options->mode), &replay->pool, failure) &&
           mode_check(reading_mode(options->warm_mode), &replay->pool, failure) &&
           probe_choose(&replay->probe, options->hits, &replay->pool, failure) && open_maps(replay, failure) &&
           check_probe(replay, failure) &&
           (!options->spine || spine_open(&replay->spine, &replay->pool, options->spine, failure)) &&
           counters_open(&replay->counters, &options->device_stats, failure) && map_destinations(replay, failure);
}

// All threads, and the memory that the mode has of its own.
static bool start(struct replay *replay, struct failure *failure)
{
    const struct options *options = &replay->options;
    struct crew *crew = &replay->crew;
    crew->plan = &replay->plan;
    crew->destinations = &replay->destinations;
    crew->maps = &replay->maps;
    crew->writable = &replay->writable;
    crew->stamps = replay->plan.header.flags & PLAN_STAMPED ? options->stamps : STAMPS_NONE;
    crew->spine = options->spine ? &replay->spine : NULL;
    uint32_t readers = options->threads * (options_turn(options) ? 2 : 1) + options->background_threads +
                       (options->prefetch != PREFETCH_NONE);
    uint32_t open_files = fds_budget(readers, OTHER_FDS + (uint32_t)options->device_stats.count);
    return start_background(replay, open_files, failure) && crew_start(crew, options, &replay->pool, open_files, failure) &&
           prepare_own(replay, failure) && start_others(replay, open_files, failure);
}

static bool prepare(struct replay *replay, struct failure *failure)
{
    const struct options *options = &replay->options;
    if (!load(replay, failure))
        return false;
    event_start(&replay->line, options, &replay->plan, replay->destinations.stride, &replay->probe, replay->spine.bytes);
    sigbus_install();
    replay->capture.files = &options->captures;
    replay->capture.inflights = &options->inflights;
    if ((options->spine_lock && !spine_lock(&replay->spine, failure)) || !start(replay, failure))
        return false;
    uint64_t locked = own_locked_bytes(&replay->own) + (options->spine_lock ? spine_locked_bytes(&replay->spine) : 0);
    if (!stopping())
        event_ready(&replay->line, own_mapped_bytes(&replay->own), locked);
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

// From one way of reading to another, between two passes.
static bool turn(struct replay *replay, bool last, enum mode mode, struct failure *failure)
{
    crew_turn(&replay->crew, last);
    replay->crew.own = mode_owns(mode) ? &replay->own : NULL;
    replay->crew.background = mode == MODE_MMAP_BACKGROUND ? &replay->background : NULL;
    return maps_turn(&replay->maps, mode_maps(mode), mode == MODE_MMAP_RANDOM, failure);
}

static bool run_passes(struct replay *replay, struct failure *failure)
{
    const struct options *options = &replay->options;
    struct pass_context context = {
        .options = options,
        .plan = &replay->plan,
        .pool = &replay->pool,
        .probe = replay->probe.probe,
        .crew = &replay->crew,
        .compute = options->compute_seconds > 0 ? &replay->compute : NULL,
        .counters = &replay->counters,
        .capture = &replay->capture,
    };
    bool good = true;
    for (size_t i = 0; good && i < options->passes.count; i++) {
        if (stopping()) {
            replay->partial = true;
            break;
        }
        bool last = i + 1 == options->passes.count;
        uint64_t n = replay->plan.header.n_iterations;
        uint64_t part = !last && options->warm_iterations && options->warm_iterations < n ? options->warm_iterations : n;
        struct pass pass = {.name = options->passes.items[i], .first = n - part, .planned = part};
        bool asked = options->hits_passes.count == 0 || names_hold(&options->hits_passes, pass.name);
        pass.counts_hits = asked && options->hits != HITS_NONE && replay->probe.probe != PROBE_NONE;
        enum mode mode = last ? options->mode : options->warm_mode;
        pass.reports_experts = names_hold(&options->experts_exit, pass.name);
        pass.reports_folios = names_hold(&options->folios_exit, pass.name);
        pass.samples = options->samples.count > 0 && names_hold(&options->sample_passes, pass.name);
        pass.owns_memory = mode_owns(mode);
        good = turn(replay, last, mode, failure) && pass_run(&pass, &context, failure);
        replay->partial = replay->partial || pass.partial;
    }
    json_free(&context.line);
    return good;
}

static void release(struct replay *replay)
{
    compute_end(&replay->compute);
    prefetch_end(&replay->prefetch);
    crew_end(&replay->crew);
    background_end(&replay->background);
    spine_close(&replay->spine);
    capture_free(&replay->capture);
    counters_close(&replay->counters);
    own_close(&replay->own);
    destinations_unmap(&replay->destinations);
    maps_close(&replay->maps);
    maps_close(&replay->writable);
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
