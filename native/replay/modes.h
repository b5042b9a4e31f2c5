// The ways of reading: where the bytes of a hit come from.
#ifndef MOETIER_MODES_H
#define MOETIER_MODES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/plan.h"
#include "replay/pool.h"

// In the order of mode_names.
enum mode {
    MODE_PAGE_CACHE,
    MODE_FADV_RANDOM,
    MODE_MMAP,
    MODE_MMAP_RANDOM,
    MODE_MMAP_WILLNEED,
    MODE_MMAP_POPULATE,
    MODE_MMAP_PREAD,
    MODE_MMAP_BACKGROUND,
    MODE_DIRECT,
    MODE_DROP,
    MODE_PINNED,
    MODE_USER_LRU,
    MODE_USER_LFU,
    MODE_WRITE_PRIVATE,
    MODE_WRITE_SHARED,
};

extern const char *const mode_names[];

// Copies from mappings that cannot be written.
static inline bool mode_maps(enum mode mode)
{
    return mode >= MODE_MMAP && mode <= MODE_MMAP_BACKGROUND;
}

// Keeps experts in memory of its own, beside the page cache.
static inline bool mode_owns(enum mode mode)
{
    return mode >= MODE_PINNED && mode <= MODE_USER_LFU;
}

// Writes into mappings of the pool.
static inline bool mode_writes(enum mode mode)
{
    return mode == MODE_WRITE_PRIVATE || mode == MODE_WRITE_SHARED;
}

// How a mode reads what its own memory does not hold.
static inline enum mode reading_mode(enum mode mode)
{
    return mode == MODE_PINNED ? MODE_PAGE_CACHE : mode_owns(mode) ? MODE_DIRECT : mode;
}

// Whether what the page cache holds is of use to the mode.
static inline bool mode_uses_page_cache(enum mode mode)
{
    return reading_mode(mode) != MODE_DIRECT && !mode_writes(mode);
}

// Whether its reads may be cut into chunks.
static inline bool mode_reads_in_chunks(enum mode mode)
{
    return mode == MODE_PINNED || !(mode_maps(mode) || mode_owns(mode) || mode_writes(mode));
}

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

// What the largest expert takes in a destination: a multiple of the page.
uint64_t largest_expert(const struct plan *plan, enum mode mode);

// What the start event says about the copy.
const char *copy_name(enum mode mode);

// Whether the mode works on the pool's filesystem and with this kernel, and whether the pool may be written where the mode does
// that: before anything is measured.
bool mode_check(enum mode mode, const struct pool *pool, struct failure *failure);

#endif
