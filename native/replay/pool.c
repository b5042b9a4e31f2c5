#include "replay/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif

// As in <linux/openat2.h>, which older headers lack.
struct open_how_v0 {
    uint64_t flags;
    uint64_t mode;
    uint64_t resolve;
};
enum { RESOLVE_BENEATH_V0 = 8 };

static int open_beneath(int root, const char *path, int flags)
{
    struct open_how_v0 how = {.flags = (uint64_t)(unsigned)flags, .resolve = RESOLVE_BENEATH_V0};
    return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}

bool pool_open_root(struct pool *pool, const struct plan *plan, const char *root, struct failure *failure)
{
    *pool = (struct pool){.plan = plan, .noatime = true};
    pool->root = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (pool->root < 0) {
        failure_path(failure, root);
        return failure_set(failure, EXIT_FAILED, "open", "the pool's root %.800s cannot be opened: %s", root, strerror(errno));
    }
    if (!(plan->header.flags & PLAN_ANY_PATH)) {
        int probe = open_beneath(pool->root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
        pool->beneath = probe >= 0;
        if (probe >= 0)
            close(probe);
    }
    return true;
}

static int open_once(const struct pool *pool, const char *path, int flags)
{
    flags |= O_CLOEXEC;
    return pool->beneath ? open_beneath(pool->root, path, flags) : openat(pool->root, path, flags);
}

int pool_open(const struct pool *pool, uint32_t file, int flags, struct failure *failure)
{
    char path[PATH_MAX];
    plan_file_path(pool->plan, file, path);
    return pool_open_path(pool, path, flags, failure);
}

int pool_open_path(const struct pool *pool, const char *path, int flags, struct failure *failure)
{
    int fd = -1;
    if (pool->noatime)
        fd = open_once(pool, path, flags | O_NOATIME);
    if (fd < 0 && (!pool->noatime || errno == EPERM))
        fd = open_once(pool, path, flags);
    if (fd >= 0)
        return fd;
    int error = errno;
    failure_path(failure, path);
    if (error == EXDEV && pool->beneath)
        failure_set(failure, EXIT_FAILED, "open", "%.800s leaves the pool's folder through a link", path);
    else if (error == EINVAL && (flags & O_DIRECT))
        failure_set(failure, EXIT_UNSUPPORTED, "unsupported",
                    "%.800s cannot be opened with O_DIRECT: its filesystem (tmpfs?) does not support the reads of this mode", path);
    else
        failure_set(failure, EXIT_FAILED, "open", "%.800s cannot be opened: %s", path, strerror(error));
    errno = error;
    return -1;
}
