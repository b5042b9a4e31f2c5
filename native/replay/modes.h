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
    const struct maps *maps; // read-only ones, or those to write into in the modes that write; NULL in the others
    struct fds fds;
    uint64_t chunk; // most bytes of one pread
    char *scratch;  // mode mmap_pread: as large as the largest extent
};

// What the start event says about the copy.
const char *copy_name(enum mode mode);

// The bytes of a destination that an extent takes. O_DIRECT reads whole pages, so there it is the extent's pages; what is read
// into a mapping needs no destination.
static inline uint64_t window_bytes(enum mode mode, const struct plan_extent *extent)
{
    if (mode_writes(mode))
        return 0;
    if (mode != MODE_DIRECT)
        return extent->length;
    uint64_t first = extent->offset / PAGE_BYTES;
    uint64_t last = (extent->offset + extent->length - 1) / PAGE_BYTES;
    return (last - first + 1) * PAGE_BYTES;
}

// Whether the mode works on the pool's filesystem and with this kernel, and whether the pool may be written where the mode does
// that: before anything is measured.
bool mode_check(enum mode mode, const struct pool *pool, struct failure *failure);

// `chunk_bytes`: the most of one pread, where the mode reads by pread alone; 0 for a whole extent.
bool reader_open(struct reader *reader, enum mode mode, uint64_t chunk_bytes, const struct pool *pool, const struct maps *maps,
                 uint32_t open_files, struct failure *failure);

// Brings the extent's bytes to memory, to `window` (page-aligned in mode direct) in the modes that need one, and returns the
// first of them, or NULL with the failure filled.
char *deliver(struct reader *reader, const struct plan_extent *extent, char *window, struct failure *failure);

// Compares the stamps of an extent that was delivered (see stamps_check).
bool delivered_check(const struct reader *reader, const struct plan_expert *expert, const struct plan_extent *extent,
                     enum stamps stamps, const char *data, uint64_t position, uint64_t *checked, struct failure *failure);

// Preads the extent to the reader's scratch memory: the page cache holds it afterwards.
bool reader_warm(struct reader *reader, const struct plan_extent *extent, struct failure *failure);

void reader_close(struct reader *reader);

#endif
