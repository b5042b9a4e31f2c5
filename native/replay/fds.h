// File descriptors of one thread: opened when first needed, kept, and bounded. A thread has its own because the kernel keeps
// its read-ahead state per open file.
#ifndef MOETIER_FDS_H
#define MOETIER_FDS_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/pool.h"

struct fds {
    const struct pool *pool;
    int flags;       // beyond O_RDONLY
    bool random;     // give POSIX_FADV_RANDOM on each
    uint32_t *slot;  // per file of the plan: fd + 1, or 0 while it is not open
    uint32_t *ring;  // the open files, oldest at `hand` once the ring is full
    uint32_t length;
    uint32_t capacity;
    uint32_t hand;
};

// How many files each of `threads` threads may hold open; raises RLIMIT_NOFILE to its hard limit.
uint32_t fds_budget(uint32_t threads, uint32_t reserved);

bool fds_open(struct fds *fds, const struct pool *pool, uint32_t capacity, int flags, bool random, struct failure *failure);

// The slow path of fds_get: opens the file, closing the oldest one where the ring is full. -1 with the failure filled.
int fds_add(struct fds *fds, uint32_t file, struct failure *failure);

// The descriptor of a file of the plan, or -1 with the failure filled.
static inline int fds_get(struct fds *fds, uint32_t file, struct failure *failure)
{
    uint32_t slot = fds->slot[file];
    return slot ? (int)slot - 1 : fds_add(fds, file, failure);
}

void fds_close(struct fds *fds);

#endif
