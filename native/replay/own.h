// The memory of its own that a mode serves hits from: an arena of pinned experts, or a user-space cache. Each access is still one
// copy into a destination.
#ifndef MOETIER_OWN_H
#define MOETIER_OWN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/arena.h"
#include "replay/cache.h"
#include "replay/lists.h"
#include "replay/options.h"
#include "replay/plan.h"
#include "replay/pool.h"
#include "replay/reader.h"

enum own_kind { OWN_NONE, OWN_ARENA, OWN_CACHE };

struct own {
    enum own_kind kind;
    const struct plan *plan;
    struct arena arena;
    struct cache cache;
    uint64_t preload_bytes;
    double preload_seconds;
};

// Sets it up as the options say (`table`: of the experts to pin), locked, touched and preloaded. A mode without any leaves it
// OWN_NONE.
bool own_open(struct own *own, const struct options *options, const struct lists *table, const struct pool *pool,
              enum stamps stamps, struct failure *failure);

uint64_t own_mapped_bytes(const struct own *own);
uint64_t own_locked_bytes(const struct own *own);

enum place_state { PLACE_ABSENT, PLACE_HELD, PLACE_TO_LOAD };

// Where an expert is. What is held or to be loaded stays there until it is given back.
struct place {
    enum place_state state;
    char *memory;
    uint32_t slab;
};

// Looks an expert up; waits where another thread is loading it.
struct place own_take(struct own *own, uint32_t expert);

// Reads an expert into its place.
bool own_load(struct place place, const struct plan_expert *expert, struct reader *reader, struct failure *failure);

// Copies the expert from its place to a destination.
void own_copy(const struct own *own, struct place place, const struct plan_expert *expert, char *to);

// `good` says whether a place to load holds the expert now.
void own_give_back(struct own *own, struct place place, bool good);

void own_close(struct own *own);

#endif
