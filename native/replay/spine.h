// The dense weights that every iteration reads, hit or not: one mapped file, copied once per iteration before its accesses.
#ifndef MOETIER_SPINE_H
#define MOETIER_SPINE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/pool.h"

struct spine {
    char path[PATH_MAX];
    const char *base; // NULL: no spine
    uint64_t bytes;
};

// Maps the file, which the rules for the plan's paths hold for.
bool spine_open(struct spine *spine, const struct pool *pool, const char *path, struct failure *failure);

bool spine_lock(const struct spine *spine, struct failure *failure);

// What that locks: whole pages.
uint64_t spine_locked_bytes(const struct spine *spine);

// The part [*first, *limit) of thread `id` of `n`, in whole pages but for the last.
void spine_part(const struct spine *spine, uint32_t id, uint32_t n, uint64_t *first, uint64_t *limit);

// Copies [offset, offset + length); false with the failure filled when the file can no longer be read.
bool spine_copy(const struct spine *spine, char *to, uint64_t offset, uint64_t length, struct failure *failure);

void spine_close(struct spine *spine);

#endif
