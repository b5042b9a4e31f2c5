// How an extent's bytes come into memory: one copy per access in every mode.
#ifndef MOETIER_MODES_H
#define MOETIER_MODES_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/fds.h"
#include "replay/maps.h"
#include "replay/options.h"
#include "replay/plan.h"

// One thread's way to the pool.
struct reader {
    enum mode mode;
    const struct pool *pool;
    const struct maps *maps; // mode mmap alone
    struct fds fds;
};

// What the start event says about the copy.
const char *copy_name(enum mode mode);

// The bytes of a destination that an extent takes. O_DIRECT reads whole pages, so there it is the extent's pages.
static inline uint64_t window_bytes(enum mode mode, const struct plan_extent *extent)
{
    if (mode != MODE_DIRECT)
        return extent->length;
    uint64_t first = extent->offset / PAGE_BYTES;
    uint64_t last = (extent->offset + extent->length - 1) / PAGE_BYTES;
    return (last - first + 1) * PAGE_BYTES;
}

// Whether the mode works on the pool's filesystem, before anything is measured.
bool mode_check(enum mode mode, const struct pool *pool, struct failure *failure);

bool reader_open(struct reader *reader, enum mode mode, const struct pool *pool, const struct maps *maps, uint32_t open_files,
                 struct failure *failure);

// Reads the extent into `window` (page-aligned in mode direct) and returns its first byte, or NULL with the failure filled.
char *deliver(struct reader *reader, const struct plan_extent *extent, char *window, struct failure *failure);

// Turns SIGBUS inside a mapped copy into a failure of that access.
void sigbus_install(void);

// memcpy from a mapped file; false where the file's bytes could not be had (SIGBUS).
bool copy_mapped(char *to, const char *from, uint64_t length);

#endif
