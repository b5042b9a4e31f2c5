// One pass: the plan once, whole or its end, with its captures, residency samples and per-iteration figures.
#ifndef MOETIER_PASS_H
#define MOETIER_PASS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "common/json.h"
#include "replay/capture.h"
#include "replay/compute.h"
#include "replay/counters.h"
#include "replay/options.h"
#include "replay/pool.h"
#include "replay/worker.h"

struct pass_context {
    const struct options *options;
    const struct plan *plan;
    const struct pool *pool;
    enum probe probe;
    struct crew *crew;
    struct compute *compute; // NULL without
    struct counters *counters;
    struct capture *capture;
    struct json line;
};

struct pass {
    const char *name;
    uint64_t first; // iteration of the plan
    uint64_t planned; // iterations from there
    bool counts_hits;
    bool reports_experts; // at its exit
    bool reports_folios; // likewise
    bool samples; // the options' files
    bool owns_memory; // what is served from it is counted
    bool computes;
    const struct prefetch *prefetch; // NULL without
    uint64_t iterations; // done
    double wall_seconds; // the iterations alone
    double elapsed_seconds;
    double bookkeeping_seconds; // between iterations, residency samples left out
    struct tally tally;
    struct usage usage; // the iterations alone
    bool partial;
};

// The iteration of the plan that is next.
static inline uint64_t pass_next(const struct pass *pass)
{
    return pass->first + pass->iterations;
}

// Runs and reports the pass. False with the failure filled when something went wrong; a stop by a signal is no failure, but
// leaves the pass partial.
bool pass_run(struct pass *pass, struct pass_context *context, struct failure *failure);

#endif
