// Threads that read ahead of the demand (mode mmap_background): they take an iteration's accesses in order, each once, and pread
// them to scratch memory, so that the page cache holds what the demand threads are about to copy from the mapping. Nobody waits
// for them but the iteration, which is over when they are.
#ifndef MOETIER_BACKGROUND_H
#define MOETIER_BACKGROUND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/options.h"
#include "replay/plan.h"
#include "replay/pool.h"
#include "replay/reader.h"
#include "replay/threads.h"

struct ahead; // one thread

// Zero-initialise.
struct background {
    _Alignas(128) atomic_uint_least64_t next; // the next access to take
    _Alignas(128) uint64_t limit;             // the end of the iteration
    const struct plan *plan;
    atomic_int failed; // the first thread that failed, or -1
    uint32_t n;        // threads
    struct ahead *threads;
    struct team team;
};

// Starts options->background_threads threads, which then wait.
bool background_start(struct background *background, const struct options *options, const struct pool *pool,
                      uint32_t open_files, struct failure *failure);

// Lets them read the accesses [first, limit).
void background_begin(struct background *background, uint64_t first, uint64_t limit);

// Waits until nothing of theirs is in flight.
void background_finish(struct background *background);

// The failure of the first thread that failed, or NULL.
const struct failure *background_failure(const struct background *background);

void background_end(struct background *background);

#endif
