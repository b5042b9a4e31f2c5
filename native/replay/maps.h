// Every file of the plan mapped once, shared by all threads: the mapped modes read from it, and mincore asks about it. The modes
// that write have mappings of their own: mincore calls a private page resident, whatever the page cache holds.
#ifndef MOETIER_MAPS_H
#define MOETIER_MAPS_H

#include <pthread.h>
#include <stdbool.h>

#include "replay/pool.h"

enum access {
    ACCESS_READ,          // shared, read-only
    ACCESS_WRITE_PRIVATE, // copy-on-write; the file is opened for writing all the same
    ACCESS_WRITE_SHARED,
};

enum { MAP_TURNS = 64 };

struct maps {
    const struct plan *plan;
    enum access access;
    bool copied; // from, in the passes before
    bool random; // MADV_RANDOM is given
    char **base; // per file of the plan; NULL for an empty file
    pthread_mutex_t turns[MAP_TURNS]; // to write into an extent, by its number
};

bool maps_open(struct maps *maps, const struct pool *pool, enum access access, struct failure *failure);

// Before the passes of another mode: whether they copy from the mappings, and whether they have MADV_RANDOM on them.
bool maps_turn(struct maps *maps, bool copy, bool random, struct failure *failure);

static inline char *mapped_extent(const struct maps *maps, const struct plan_extent *extent)
{
    return maps->base[extent->file] + extent->offset;
}

void maps_close(struct maps *maps);

#endif
