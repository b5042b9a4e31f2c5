#include "replay/region.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "common/memory.h"
#include "replay/plan.h"
#include "replay/residency.h"
#include "replay/stop.h"

static const uint64_t HUGE_BYTES = 2u << 20;
static const uint64_t PIECE_BYTES = 64u << 20;

static bool refused(uint64_t bytes, const char *what, const char *why, struct failure *failure)
{
    return failure_set(failure, EXIT_FAILED, "memory", "%s: %" PRIu64 " bytes asked, %" PRIu64 " available%s%s", what, bytes,
                       mem_available_bytes(), why ? ": " : "", why ? why : "");
}

bool region_map(struct region *region, uint64_t bytes, const char *what, struct failure *failure)
{
    uint64_t page = kernel_page_bytes();
    if (bytes > UINT64_MAX / 2 || bytes + HUGE_BYTES > mem_available_bytes())
        return refused(bytes, what, NULL, failure);
    bytes = bytes > 0 ? (bytes + page - 1) / page * page : page;
    char *base = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return refused(bytes, what, strerror(errno), failure);
    // Cut to size, so that no huge page reaches over the end: the kernel counts those whole.
    char *memory = (char *)(((uintptr_t)base + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1));
    uint64_t before = (uint64_t)(memory - base);
    if (before > 0)
        munmap(base, before);
    if (before < HUGE_BYTES)
        munmap(memory + bytes, HUGE_BYTES - before);
    madvise(memory, bytes, MADV_HUGEPAGE); // only a hint
    *region = (struct region){memory, bytes};
    return true;
}

static void touch(const struct region *region, uint64_t from, uint64_t bytes)
{
    for (uint64_t at = from; at < from + bytes; at += PAGE_BYTES)
        ((volatile char *)region->memory)[at] = 1;
}

static uint64_t piece(const struct region *region, uint64_t at)
{
    return region->bytes - at < PIECE_BYTES ? region->bytes - at : PIECE_BYTES;
}

bool region_lock(const struct region *region, struct failure *failure)
{
    for (uint64_t at = 0; at < region->bytes && !stopping(); at += PIECE_BYTES) {
        if (!lock_memory(region->memory + at, piece(region, at), region->bytes, failure))
            return false;
        touch(region, at, piece(region, at)); // each page the process's own, whatever the kernel chose to map
    }
    return true;
}

void region_touch(const struct region *region)
{
    for (uint64_t at = 0; at < region->bytes && !stopping(); at += PIECE_BYTES)
        touch(region, at, piece(region, at));
}

void region_unmap(struct region *region)
{
    if (region->memory)
        munmap(region->memory, region->bytes);
    *region = (struct region){0};
}
