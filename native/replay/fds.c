#include "replay/fds.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

// An open file costs the kernel some 300 bytes that are charged to the measured scope (and pins its inode): 16384 of them stay
// under 5 MiB, and pools with more files have experts so large that an open is lost in the read.
static const uint64_t MOST_OPEN = 16384;

uint32_t fds_budget(uint32_t threads, uint32_t reserved)
{
    struct rlimit limit = {.rlim_cur = 256};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        struct rlimit raised = {limit.rlim_max, limit.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &raised) == 0)
            limit = raised;
    }
    uint64_t total = limit.rlim_cur > reserved ? limit.rlim_cur - reserved : 1;
    if (total > MOST_OPEN)
        total = MOST_OPEN;
    return total > threads ? (uint32_t)(total / threads) : 1;
}

bool fds_open(struct fds *fds, const struct pool *pool, uint32_t capacity, int flags, bool random, struct failure *failure)
{
    uint64_t n_files = pool->plan->header.n_files;
    if (capacity > n_files)
        capacity = (uint32_t)n_files;
    *fds = (struct fds){.pool = pool, .flags = flags, .random = random, .capacity = capacity};
    fds->slot = calloc(n_files, sizeof *fds->slot);
    fds->ring = calloc(capacity, sizeof *fds->ring);
    if (!fds->slot || !fds->ring)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for a thread's table of files");
    return true;
}

static void close_oldest(struct fds *fds)
{
    uint32_t file = fds->ring[fds->hand];
    close((int)fds->slot[file] - 1);
    fds->slot[file] = 0;
}

int fds_add(struct fds *fds, uint32_t file, struct failure *failure)
{
    bool full = fds->length == fds->capacity;
    if (full)
        close_oldest(fds);
    int fd = pool_open(fds->pool, file, fds->flags, failure);
    if (fd < 0) {
        // Keeps the ring whole: what was closed is no longer in it.
        if (full) {
            fds->length--;
            fds->ring[fds->hand] = fds->ring[fds->length];
        }
        return -1;
    }
    if (fds->random)
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    fds->slot[file] = (uint32_t)fd + 1;
    if (full) {
        fds->ring[fds->hand] = file;
        fds->hand = (fds->hand + 1) % fds->capacity;
    } else {
        fds->ring[fds->length++] = file;
    }
    return fd;
}

void fds_close(struct fds *fds)
{
    for (uint32_t i = 0; i < fds->length; i++)
        close((int)fds->slot[fds->ring[i]] - 1);
    free(fds->slot);
    free(fds->ring);
    *fds = (struct fds){0};
}
