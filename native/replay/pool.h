// The pool's files as the plan names them, opened below one root.
#ifndef MOETIER_POOL_H
#define MOETIER_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/plan.h"

struct pool {
    const struct plan *plan;
    int root;     // the root folder, O_PATH
    bool beneath; // the kernel itself holds paths and links below the root (openat2, Linux 5.6)
    bool noatime; // reading leaves no write behind; only the owner may ask for that
};

bool pool_open_root(struct pool *pool, const struct plan *plan, const char *root, struct failure *failure);

// Opens a file of the plan with extra flags, read-only without any; -1 with the failure filled.
int pool_open(const struct pool *pool, uint32_t file, int flags, struct failure *failure);

// The same of a file that is not the plan's.
int pool_open_path(const struct pool *pool, const char *path, int flags, struct failure *failure);

#endif
