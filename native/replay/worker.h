// The threads that read. The main thread is one of them: with --threads 1 no other exists, and no switch between threads falls
// into an iteration's time.
#ifndef MOETIER_WORKER_H
#define MOETIER_WORKER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/background.h"
#include "replay/destinations.h"
#include "replay/own.h"
#include "replay/plan.h"
#include "replay/pool.h"
#include "replay/prefetch.h"
#include "replay/reader.h"
#include "replay/residency.h"
#include "replay/spine.h"
#include "replay/threads.h"

struct tally {
    uint64_t bytes;
    uint64_t accesses;
    uint64_t hit_bytes;
    uint64_t hit_accesses; // wholly resident before the read
    uint64_t stamps;
    uint64_t held_bytes; // served from own memory
    uint64_t held_accesses;
    uint64_t spine_bytes;
    double compute_seconds; // of the compute phase after the accesses
};

struct crew;

struct worker {
    _Alignas(128) struct crew *crew; // workers share no cache line
    uint32_t id;
    struct reader *reader;    // of the current pass
    struct reader readers[2]; // of the last pass, and of those before it where they read in another way
    uint64_t first_destination;
    uint64_t n_destinations;
    uint64_t next_destination;
    struct tally tally; // of the current iteration
    struct failure failure;
};

struct crew {
    _Alignas(128) atomic_uint_least64_t next; // the next access to take
    _Alignas(128) uint64_t limit;             // the end of the iteration
    const struct plan *plan;
    const struct destinations *destinations;
    struct maps *maps; // for the mapped modes, and for hits by mincore
    struct maps *writable; // for the modes that write
    struct background *background; // NULL in passes where nobody reads ahead
    struct own *own; // NULL in passes without memory of our own
    struct prefetch *prefetch; // NULL without
    const struct spine *spine; // NULL without
    enum stamps stamps;
    enum probe hits; // PROBE_NONE while hits are not counted
    atomic_int failed; // the first worker that failed, or -1
    uint32_t n_workers;
    struct worker *workers;
    struct team team; // all but the first worker
    pthread_barrier_t spine_done; // the accesses begin when the whole spine is copied
};

// Sets up the workers and starts all but the main thread's; returns when every destination is touched. Each of a worker's readers
// may hold `open_files` files open.
bool crew_start(struct crew *crew, const struct options *options, const struct pool *pool, uint32_t open_files,
                struct failure *failure);

// From now on reads as the last pass does, or as those before it do. Between two runs.
void crew_turn(struct crew *crew, bool last);

void tally_add(struct tally *sum, const struct tally *part);

// Runs the accesses [first, limit) on all workers and returns what was delivered.
struct tally crew_run(struct crew *crew, uint64_t first, uint64_t limit);

// The failure of the first worker (or thread that reads ahead) that failed, or NULL.
const struct failure *crew_failure(const struct crew *crew);

void crew_end(struct crew *crew);

#endif
