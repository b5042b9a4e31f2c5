// Every file of the plan mapped once, shared by all threads: mode mmap reads from it, and mincore asks about it.
#ifndef MOETIER_MAPS_H
#define MOETIER_MAPS_H

#include <stdbool.h>

#include "replay/pool.h"

struct maps {
    const struct plan *plan;
    char **base; // per file of the plan; NULL for an empty file
};

bool maps_open(struct maps *maps, const struct pool *pool, struct failure *failure);

void maps_close(struct maps *maps);

#endif
