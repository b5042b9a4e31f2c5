// Locked memory that holds the first experts of a table for the whole replay: read once before it, never again.
#ifndef MOETIER_ARENA_H
#define MOETIER_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/plan.h"
#include "replay/pool.h"
#include "replay/region.h"
#include "replay/stamps.h"

struct arena {
    struct region region;
    const struct plan *plan;
    uint64_t *place_of;   // per expert: where it lies, or UINT64_MAX
    uint64_t n_experts;   // held
    uint64_t held_bytes;  // theirs, without what lies between them
};

// Takes experts of the table while they fit into `bytes`, maps room for them and locks it.
bool arena_open(struct arena *arena, const struct plan *plan, const uint32_t *table, uint64_t n_table, uint64_t bytes,
                struct failure *failure);

// Reads them into it past the page cache (where the pool's filesystem cannot, through it, and drops what was read), and compares
// their stamps. `table` is the one it was opened with. A request to stop ends it early, without failure.
bool arena_fill(struct arena *arena, const uint32_t *table, const struct pool *pool, enum stamps stamps, uint64_t *read_bytes,
                struct failure *failure);

// The expert's bytes, or NULL.
static inline char *arena_expert(const struct arena *arena, uint32_t expert)
{
    uint64_t place = arena->place_of[expert];
    return place == UINT64_MAX ? NULL : arena->region.memory + place;
}

void arena_close(struct arena *arena);

#endif
