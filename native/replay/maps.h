// Every file of the plan mapped once, shared by all threads: the mapped modes read from it, and mincore asks about it. The modes
// that write have mappings of their own: mincore calls a private page resident, whatever the page cache holds.
#ifndef MOETIER_MAPS_H
#define MOETIER_MAPS_H

#include <stdbool.h>

#include "replay/pool.h"

enum access {
    ACCESS_READ,          // shared, read-only
    ACCESS_WRITE_PRIVATE, // copy-on-write; the file is opened for writing all the same
    ACCESS_WRITE_SHARED,
};

struct maps {
    const struct plan *plan;
    enum access access;
    bool random; // MADV_RANDOM is given
    char **base; // per file of the plan; NULL for an empty file
};

bool maps_open(struct maps *maps, const struct pool *pool, enum access access, struct failure *failure);

// Gives MADV_RANDOM on every mapping, or takes it back.
bool maps_advise(struct maps *maps, bool random, struct failure *failure);

void maps_close(struct maps *maps);

#endif
