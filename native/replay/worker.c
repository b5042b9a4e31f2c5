#include "replay/worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "replay/stop.h"

static bool count_resident(struct worker *worker, const struct plan_extent *extent, uint64_t *bytes)
{
    const struct crew *crew = worker->crew;
    bool mapped = crew->hits == PROBE_MINCORE;
    int fd = mapped ? -1 : fds_get(&worker->reader->fds, extent->file, &worker->failure);
    if (fd < 0 && !mapped)
        return false;
    const char *base = mapped ? crew->maps->base[extent->file] : NULL;
    int64_t resident = resident_bytes(crew->hits, fd, base, extent->offset, extent->length);
    if (resident < 0)
        return failure_set(&worker->failure, EXIT_FAILED, "residency", "%s fails before a read: %s", probe_name(crew->hits),
                           strerror((int)-resident));
    *bytes += (uint64_t)resident;
    return true;
}

// All extents are looked at before the first is read: its read-ahead may bring the next one in.
static bool count_hits(struct worker *worker, const struct plan_expert *expert)
{
    const struct plan_extent *extents = &worker->crew->plan->extents[expert->first_extent];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < expert->n_extents; i++)
        if (!count_resident(worker, &extents[i], &bytes))
            return false;
    worker->tally.hit_bytes += bytes;
    worker->tally.hit_accesses += bytes == expert->bytes;
    return true;
}

static bool read_expert(struct worker *worker, const struct plan_expert *expert, char *window)
{
    if (!reader_deliver(worker->reader, expert, worker->crew->stamps, window, &worker->tally.stamps, &worker->failure))
        return false;
    worker->tally.bytes += expert->bytes;
    worker->tally.accesses++;
    return true;
}

// As read_expert, but from memory of our own where that holds the expert.
static bool serve_expert(struct worker *worker, uint32_t index, char *to)
{
    const struct crew *crew = worker->crew;
    const struct plan_expert *expert = &crew->plan->experts[index];
    struct place place = own_take(crew->own, index);
    bool held = place.state == PLACE_HELD;
    bool good = held || crew->hits == PROBE_NONE || count_hits(worker, expert);
    if (place.state == PLACE_ABSENT)
        return good && read_expert(worker, expert, to);
    if (good && (held || own_load(place, expert, worker->reader, &worker->failure))) {
        own_copy(crew->own, place, expert, to);
        good = crew->stamps == STAMPS_NONE ||
               stamps_check_expert(crew->plan, expert, crew->stamps, to, &worker->tally.stamps, &worker->failure);
    } else {
        good = false;
    }
    own_give_back(crew->own, place, good);
    if (!good)
        return false;
    worker->tally.bytes += expert->bytes;
    worker->tally.accesses++;
    worker->tally.held_bytes += held ? expert->bytes : 0;
    worker->tally.held_accesses += held;
    return true;
}

static char *take_destination(struct worker *worker)
{
    char *taken = destination(worker->crew->destinations, worker->first_destination + worker->next_destination);
    if (++worker->next_destination == worker->n_destinations)
        worker->next_destination = 0;
    return taken;
}

static void fail(struct worker *worker)
{
    int none = -1;
    atomic_compare_exchange_strong(&worker->crew->failed, &none, (int)worker->id);
    atomic_store(&stop_requested, true);
}

static void report_failed(struct worker *worker, const struct plan_expert *expert)
{
    failure_expert(&worker->failure, expert->layer, expert->expert);
    fail(worker);
}

// The worker's part of the spine, in pieces of a destination.
static void copy_spine(struct worker *worker)
{
    struct crew *crew = worker->crew;
    uint64_t at, limit;
    spine_part(crew->spine, worker->id, crew->n_workers, &at, &limit);
    while (at < limit && !stopping()) {
        uint64_t left = limit - at;
        uint64_t length = left < crew->destinations->stride ? left : crew->destinations->stride;
        if (!spine_copy(crew->spine, take_destination(worker), at, length, &worker->failure)) {
            fail(worker);
            break;
        }
        worker->tally.spine_bytes += length;
        at += length;
    }
    if (crew->n_workers > 1)
        pthread_barrier_wait(&crew->spine_done);
}

static void work(void *argument)
{
    struct worker *worker = argument;
    struct crew *crew = worker->crew;
    worker->tally = (struct tally){0};
    if (crew->spine)
        copy_spine(worker);
    while (!stopping()) {
        uint64_t access = atomic_fetch_add_explicit(&crew->next, 1, memory_order_relaxed);
        if (access >= crew->limit)
            break;
        prefetch_note(crew->prefetch, access);
        uint32_t index = crew->plan->sequence[access];
        const struct plan_expert *expert = &crew->plan->experts[index];
        if (crew->own) {
            if (!serve_expert(worker, index, take_destination(worker)))
                report_failed(worker, expert);
        } else if ((crew->hits != PROBE_NONE && !count_hits(worker, expert)) ||
                   !read_expert(worker, expert, take_destination(worker))) {
            report_failed(worker, expert);
        }
    }
}

// By its own thread, so that the memory is near it.
static void touch(void *argument)
{
    const struct worker *worker = argument;
    destinations_touch(worker->crew->destinations, worker->first_destination, worker->n_destinations);
    for (int i = 0; i < 2; i++)
        region_touch(&worker->readers[i].scratch);
}

static bool open_reader(struct crew *crew, struct reader *reader, enum mode mode, uint64_t chunk_bytes, const struct pool *pool,
                        uint32_t open_files, struct failure *failure)
{
    struct maps *maps = mode_writes(mode) ? crew->writable : mode_maps(mode) ? crew->maps : NULL;
    return reader_open(reader, reading_mode(mode), chunk_bytes, pool, maps, open_files, failure);
}

static bool prepare_workers(struct crew *crew, const struct options *options, const struct pool *pool, uint32_t open_files,
                            struct failure *failure)
{
    uint32_t n = options->threads;
    crew->workers = aligned_alloc(_Alignof(struct worker), n * sizeof *crew->workers);
    if (!crew->workers)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for %" PRIu32 " threads", n);
    memset(crew->workers, 0, n * sizeof *crew->workers);
    for (uint32_t id = 0; id < n; id++) {
        struct worker *worker = &crew->workers[id];
        crew->n_workers = id + 1;
        worker->crew = crew;
        worker->id = id;
        worker->first_destination = crew->destinations->count * id / n;
        worker->n_destinations = crew->destinations->count * (id + 1) / n - worker->first_destination;
        worker->reader = &worker->readers[0];
        if (!open_reader(crew, &worker->readers[0], options->mode, options->chunk_bytes, pool, open_files, failure) ||
            (options_turn(options) && !open_reader(crew, &worker->readers[1], options->warm_mode, options->warm_chunk_bytes, pool,
                                                   open_files, failure)))
            return false;
    }
    return true;
}

bool crew_start(struct crew *crew, const struct options *options, const struct pool *pool, uint32_t open_files,
                struct failure *failure)
{
    atomic_store(&crew->failed, -1);
    if (!prepare_workers(crew, options, pool, open_files, failure) ||
        !team_start(&crew->team, crew->n_workers - 1, "moetier-read", &crew->workers[1], sizeof *crew->workers, failure))
        return false;
    pthread_barrier_init(&crew->spine_done, NULL, crew->n_workers);
    team_begin(&crew->team, touch);
    touch(&crew->workers[0]);
    team_finish(&crew->team);
    return true;
}

void crew_turn(struct crew *crew, bool last)
{
    for (uint32_t id = 0; id < crew->n_workers; id++) {
        struct worker *worker = &crew->workers[id];
        bool warm = !last && worker->readers[1].pool; // one of its own, where the passes before the last read in another way
        worker->reader = &worker->readers[warm];
    }
}

void tally_add(struct tally *sum, const struct tally *part)
{
    sum->bytes += part->bytes;
    sum->accesses += part->accesses;
    sum->hit_bytes += part->hit_bytes;
    sum->hit_accesses += part->hit_accesses;
    sum->stamps += part->stamps;
    sum->held_bytes += part->held_bytes;
    sum->held_accesses += part->held_accesses;
    sum->spine_bytes += part->spine_bytes;
    sum->compute_seconds += part->compute_seconds;
}

struct tally crew_run(struct crew *crew, uint64_t first, uint64_t limit)
{
    struct tally sum = {0};
    atomic_store_explicit(&crew->next, first, memory_order_relaxed);
    crew->limit = limit;
    if (crew->background)
        background_begin(crew->background, first, limit);
    team_begin(&crew->team, work);
    work(&crew->workers[0]);
    team_finish(&crew->team);
    if (crew->background)
        background_finish(crew->background);
    for (uint32_t id = 0; id < crew->n_workers; id++)
        tally_add(&sum, &crew->workers[id].tally);
    return sum;
}

const struct failure *crew_failure(const struct crew *crew)
{
    int failed = atomic_load(&crew->failed);
    if (failed >= 0)
        return &crew->workers[failed].failure;
    return crew->background ? background_failure(crew->background) : NULL;
}

void crew_end(struct crew *crew)
{
    team_end(&crew->team);
    for (uint32_t id = 0; id < crew->n_workers; id++)
        for (int i = 0; i < 2; i++)
            reader_close(&crew->workers[id].readers[i]);
    free(crew->workers);
}
