// The prefetch worker: one thread that brings lists of experts into the page cache while the demand threads read. It has one
// slot: advice that it does not get to in time is replaced by the next, never queued.
#ifndef MOETIER_PREFETCH_H
#define MOETIER_PREFETCH_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/lists.h"
#include "replay/options.h"
#include "replay/reader.h"
#include "replay/residency.h"

// Of the current pass. submitted = completed + overwritten + pending once the worker has halted.
struct prefetch_counts {
    uint64_t completed;
    uint64_t pending; // under way or still in the slot at the end
    uint64_t experts;
    uint64_t asked_bytes;
    uint64_t resident_before_bytes;
    uint64_t became_resident_bytes;
    uint64_t read_bytes; // by the worker itself
};

struct prefetch {
    // The demand side.
    _Alignas(128) atomic_uint slot; // the number of a list + 1, 0, or an order
    atomic_uint_least64_t submitted;
    atomic_uint_least64_t overwritten;
    _Alignas(128) const struct plan *plan;
    const struct lists *advice;
    uint64_t *triggers; // one bit per access
    // The worker's.
    enum prefetch_kind kind;
    uint64_t chunk;
    enum stamps stamps;
    enum probe probe; // PROBE_NONE: residency is not known
    struct reader reader; // with a scratch for blocking alone
    pthread_t thread;
    bool running;
    sem_t halted;
    struct prefetch_counts counts; // read by others only while the worker is halted
    atomic_bool failed;
    struct failure failure;
};

// What the worker is to do; set before prefetch_start.
struct prefetch_order {
    const struct plan *plan;
    const struct pool *pool;
    const struct lists *advice;
    const struct options *options;
    enum stamps stamps;
    enum probe probe;
    uint32_t open_files;
};

bool prefetch_start(struct prefetch *prefetch, const struct prefetch_order *order, struct failure *failure);

// Submits the list whose trigger this access is. Its slow path.
void prefetch_submit(struct prefetch *prefetch, uint64_t access);

// To be told of every access, by the thread that takes it: exactly one thread takes each, so each list is submitted once a pass,
// with nothing shared that anyone writes. NULL: no prefetch.
static inline void prefetch_note(struct prefetch *prefetch, uint64_t access)
{
    if (prefetch && prefetch->triggers[access / 64] >> (access % 64) & 1)
        prefetch_submit(prefetch, access);
}

// Before the first access of a pass.
void prefetch_begin_pass(struct prefetch *prefetch);

// After the last access of a pass: the worker stops after the expert it is at, and nothing of it is in flight on return.
void prefetch_halt(struct prefetch *prefetch);

// Why the worker failed, or NULL.
const struct failure *prefetch_failure(const struct prefetch *prefetch);

void prefetch_end(struct prefetch *prefetch);

#endif
