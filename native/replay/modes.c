#include "replay/modes.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "replay/residency.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 // Linux 5.14
#endif

enum { TMPFS = 0x01021994, RAMFS = 0x858458f6 };

const char *const mode_names[] = {
    "page_cache", "fadv_random", "mmap", "mmap_random", "mmap_willneed", "mmap_populate", "mmap_pread", "mmap_background",
    "direct", "drop", "pinned", "user_lru", "user_lfu", "write_private", "write_shared", NULL,
};

uint64_t largest_expert(const struct plan *plan, enum mode mode)
{
    uint64_t largest = 0;
    for (uint64_t i = 0; i < plan->header.n_experts; i++) {
        const struct plan_expert *expert = &plan->experts[i];
        uint64_t bytes = 0;
        for (uint32_t e = 0; e < expert->n_extents; e++)
            bytes += window_bytes(mode, &plan->extents[expert->first_extent + e]);
        if (bytes > largest)
            largest = bytes;
    }
    return (largest + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

const char *copy_name(enum mode mode)
{
#ifdef __GLIBC__
    const char *mapped = "memcpy (glibc)", *held_or_read = "memcpy (glibc), pread";
#else
    const char *mapped = "memcpy (libc)", *held_or_read = "memcpy (libc), pread";
#endif
    if (mode_writes(mode))
        return "pread into the mapping";
    if (mode == MODE_PINNED)
        return held_or_read;
    if (mode_maps(mode) || mode_owns(mode))
        return mapped;
    return mode == MODE_DIRECT ? "pread O_DIRECT" : "pread";
}

static bool check_throwaway(enum mode mode, const struct pool *pool, struct failure *failure)
{
    if (pool->plan->header.flags & PLAN_THROWAWAY)
        return true;
    return failure_set(failure, EXIT_USAGE, "usage", "--mode %s writes to the pool: only a throw-away copy may be written, and "
                       "the plan does not say that this pool is one (flag %d)", mode_names[mode], PLAN_THROWAWAY);
}

static bool populate_unsupported(struct failure *failure)
{
    return failure_set(failure, EXIT_UNSUPPORTED, "unsupported", "this kernel has no madvise(MADV_POPULATE_READ), which mode "
                       "mmap_populate needs: it came with Linux 5.14");
}

static bool check_populate(struct failure *failure)
{
    uint64_t bytes = kernel_page_bytes();
    void *page = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for one page: %s", strerror(errno));
    bool refused = madvise(page, bytes, MADV_POPULATE_READ) != 0 && errno == EINVAL;
    munmap(page, bytes);
    return !refused || populate_unsupported(failure);
}

static bool check_direct(const struct pool *pool, struct failure *failure)
{
    int fd = pool_open(pool, 0, O_DIRECT, failure);
    if (fd < 0)
        return false;
    // Newer kernels accept O_DIRECT on tmpfs and ignore it: there is no device to read from.
    struct statfs filesystem = {0};
    bool in_memory = fstatfs(fd, &filesystem) == 0 &&
                     ((uint32_t)filesystem.f_type == (uint32_t)TMPFS || (uint32_t)filesystem.f_type == (uint32_t)RAMFS);
    close(fd);
    if (in_memory)
        return failure_set(failure, EXIT_UNSUPPORTED, "unsupported", "the pool is on tmpfs: O_DIRECT reads need a device below it");
    return true;
}

bool mode_check(enum mode mode, const struct pool *pool, struct failure *failure)
{
    if (mode_writes(mode))
        return check_throwaway(mode, pool, failure);
    if (mode == MODE_MMAP_POPULATE)
        return check_populate(failure);
    return mode != MODE_DIRECT || check_direct(pool, failure);
}
