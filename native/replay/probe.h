// Which residency probe is used, and the residency of the whole pool.
#ifndef MOETIER_PROBE_H
#define MOETIER_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/options.h"
#include "replay/pool.h"
#include "replay/residency.h"

struct probe_choice {
    enum probe probe;
    char note[512]; // what the self-test saw
};

// Chooses as --hits asks, by the self-test on a file of the plan. Without hits the probe serves the whole-pool residency, and
// is chosen as by auto. A probe that was asked for by name and fails is "unsupported".
bool probe_choose(struct probe_choice *choice, enum hits hits, const struct pool *pool, struct failure *failure);

// Resident bytes of all experts of the plan, each byte once: a page beside them in the same file does not count.
bool pool_resident_bytes(enum probe probe, const struct pool *pool, uint64_t *bytes, struct failure *failure);

// Resident bytes of every expert of the plan, in the plan's order. A page that two experts share counts for each by its share.
bool experts_resident_bytes(enum probe probe, const struct pool *pool, uint64_t *bytes, struct failure *failure);

// --self-test FILE: prints what each probe says.
bool probe_self_test(const char *path, struct failure *failure);

#endif
