#include "replay/spine.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/memory.h"
#include "replay/plan_check.h"
#include "replay/residency.h"
#include "replay/sigbus.h"

static bool refused(struct failure *failure, const char *path, const char *why)
{
    failure_path(failure, path);
    return failure_set(failure, EXIT_USAGE, "usage", "--spine %.800s %s", path, why);
}

static bool map_spine(struct spine *spine, int fd, struct failure *failure)
{
    struct stat status;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0)
        return refused(failure, spine->path, "is empty or no file, expected a file of dense weights");
    spine->bytes = (uint64_t)status.st_size;
    void *base = mmap(NULL, spine->bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (base != MAP_FAILED) {
        spine->base = base;
        return true;
    }
    failure_path(failure, spine->path);
    return failure_set(failure, EXIT_FAILED, "mmap", "%.800s cannot be mapped (%" PRIu64 " bytes): %s", spine->path, spine->bytes,
                       strerror(errno));
}

bool spine_open(struct spine *spine, const struct pool *pool, const char *path, struct failure *failure)
{
    *spine = (struct spine){0};
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof spine->path)
        return refused(failure, path, "is no path, expected one of a file below the pool's folder");
    if (!(pool->plan->header.flags & PLAN_ANY_PATH) && plan_path_leaves_root(path, length))
        return refused(failure, path, "leaves the pool's folder, expected a path of a file below it");
    memcpy(spine->path, path, length + 1);
    int fd = pool_open_path(pool, path, O_NONBLOCK, failure); // a pipe is refused, not waited for
    if (fd < 0)
        return false;
    bool mapped = map_spine(spine, fd, failure);
    close(fd);
    return mapped;
}

bool spine_lock(const struct spine *spine, struct failure *failure)
{
    if (lock_memory(spine->base, spine->bytes, spine->bytes, failure))
        return true;
    failure_path(failure, spine->path);
    return false;
}

uint64_t spine_locked_bytes(const struct spine *spine)
{
    uint64_t page = kernel_page_bytes();
    return (spine->bytes + page - 1) / page * page;
}

void spine_part(const struct spine *spine, uint32_t id, uint32_t n, uint64_t *first, uint64_t *limit)
{
    uint64_t pages = (spine->bytes + PAGE_BYTES - 1) / PAGE_BYTES;
    *first = pages * id / n * PAGE_BYTES;
    *limit = pages * (id + 1) / n * PAGE_BYTES;
    if (*limit > spine->bytes)
        *limit = spine->bytes;
}

bool spine_copy(const struct spine *spine, char *to, uint64_t offset, uint64_t length, struct failure *failure)
{
    if (sigbus_copy(to, spine->base + offset, length))
        return true;
    failure_path(failure, spine->path);
    return failure_set(failure, EXIT_FAILED, "sigbus", "the spine %.800s was truncated while mapped, or its device failed: no %"
                       PRIu64 " bytes at offset %" PRIu64 " (SIGBUS), where it had %" PRIu64 " in all", spine->path, length,
                       offset, spine->bytes);
}

void spine_close(struct spine *spine)
{
    if (spine->base)
        munmap((void *)(uintptr_t)spine->base, spine->bytes);
    *spine = (struct spine){0};
}
