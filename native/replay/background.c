#include "replay/background.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "replay/stop.h"

struct ahead {
    _Alignas(128) struct background *background; // threads share no cache line
    int id;
    struct reader reader;
    struct failure failure;
};

static bool read_expert(struct ahead *ahead, const struct plan_expert *expert)
{
    const struct plan_extent *extent = &ahead->background->plan->extents[expert->first_extent];
    for (uint32_t i = 0; i < expert->n_extents; i++, extent++)
        if (!reader_warm(&ahead->reader, extent, &ahead->failure))
            return false;
    return true;
}

static void report_failed(struct ahead *ahead, const struct plan_expert *expert)
{
    int none = -1;
    failure_expert(&ahead->failure, expert->layer, expert->expert);
    atomic_compare_exchange_strong(&ahead->background->failed, &none, ahead->id);
    atomic_store(&stop_requested, true);
}

static void read_ahead(void *argument)
{
    struct ahead *ahead = argument;
    struct background *background = ahead->background;
    while (!stopping()) {
        uint64_t access = atomic_fetch_add_explicit(&background->next, 1, memory_order_relaxed);
        if (access >= background->limit)
            break;
        const struct plan_expert *expert = &background->plan->experts[background->plan->sequence[access]];
        if (!read_expert(ahead, expert))
            report_failed(ahead, expert);
    }
}

static void touch(void *argument)
{
    const struct ahead *ahead = argument;
    region_touch(&ahead->reader.scratch);
}

static bool prepare(struct background *background, const struct options *options, const struct pool *pool,
                    uint32_t open_files, struct failure *failure)
{
    uint32_t n = options->background_threads;
    background->plan = pool->plan;
    atomic_store(&background->failed, -1);
    background->threads = aligned_alloc(_Alignof(struct ahead), n * sizeof *background->threads);
    if (!background->threads)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for %" PRIu32 " background threads", n);
    memset(background->threads, 0, n * sizeof *background->threads);
    for (uint32_t id = 0; id < n; id++) {
        struct ahead *ahead = &background->threads[id];
        background->n = id + 1;
        ahead->background = background;
        ahead->id = (int)id;
        if (!reader_open(&ahead->reader, MODE_PAGE_CACHE, 0, pool, NULL, open_files, failure) ||
            !reader_map_scratch(&ahead->reader, failure))
            return false;
    }
    return true;
}

bool background_start(struct background *background, const struct options *options, const struct pool *pool,
                      uint32_t open_files, struct failure *failure)
{
    if (!prepare(background, options, pool, open_files, failure) ||
        !team_start(&background->team, background->n, "moetier-behind", background->threads, sizeof *background->threads,
                    failure))
        return false;
    team_begin(&background->team, touch);
    team_finish(&background->team);
    return true;
}

void background_begin(struct background *background, uint64_t first, uint64_t limit)
{
    atomic_store_explicit(&background->next, first, memory_order_relaxed);
    background->limit = limit;
    team_begin(&background->team, read_ahead);
}

void background_finish(struct background *background)
{
    team_finish(&background->team);
}

const struct failure *background_failure(const struct background *background)
{
    int failed = atomic_load(&background->failed);
    return failed < 0 ? NULL : &background->threads[failed].failure;
}

void background_end(struct background *background)
{
    team_end(&background->team);
    for (uint32_t id = 0; id < background->n; id++)
        reader_close(&background->threads[id].reader);
    free(background->threads);
}
