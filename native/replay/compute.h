// The compute phase: what the CPU does with an iteration's experts, during which a prefetch can get ahead. A fixed amount of
// work, set once on the idle machine, so that whatever disturbs it is seen as time.
#ifndef MOETIER_COMPUTE_H
#define MOETIER_COMPUTE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/threads.h"

// Zero-initialise.
struct compute {
    struct team team;
    uint64_t blocks; // of work, for each thread
    atomic_bool cut; // a thread stopped before its end
};

// Starts the threads and finds the amount of work that takes them `seconds`.
bool compute_start(struct compute *compute, double seconds, uint32_t n_threads, struct failure *failure);

// Does the work on all threads and waits for it; false when a stop cut it short.
bool compute_run(struct compute *compute);

void compute_end(struct compute *compute);

#endif
