#include "replay/maps.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/procfile.h"

static const uint64_t OTHER_MAPS = 64; // libraries, stacks, destinations

static bool check_map_count(uint64_t n_files, struct failure *failure)
{
    uint64_t most = 65530; // the kernel's default
    read_number("/proc/sys/vm/max_map_count", &most);
    if (n_files + OTHER_MAPS <= most)
        return true;
    return failure_set(failure, EXIT_UNSUPPORTED, "unsupported", "%" PRIu64 " files to map, vm.max_map_count is %" PRIu64
                       ": sysctl vm.max_map_count=%" PRIu64 " would allow it", n_files, most, n_files + OTHER_MAPS);
}

static bool map_file(struct maps *maps, const struct pool *pool, uint32_t file, struct failure *failure)
{
    uint64_t size = pool->plan->files[file].size_bytes;
    bool writes = maps->access != ACCESS_READ;
    int fd = pool_open(pool, file, writes ? O_RDWR : O_RDONLY, failure);
    if (fd < 0)
        return false;
    struct stat status = {0};
    if (fstat(fd, &status) != 0 || (uint64_t)status.st_size < size) {
        close(fd);
        return failure_set(failure, EXIT_FAILED, "short_read", "%.800s has %jd bytes, expected %" PRIu64,
                           plan_name_file(pool->plan, file, failure), (intmax_t)status.st_size, size);
    }
    int protection = writes ? PROT_READ | PROT_WRITE : PROT_READ;
    // Without NORESERVE the kernel would refuse copies of a file larger than memory before one is made.
    int sharing = maps->access == ACCESS_WRITE_PRIVATE ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
    void *base = size ? mmap(NULL, size, protection, sharing, fd, 0) : NULL;
    int error = errno;
    close(fd);
    if (base == MAP_FAILED)
        return failure_set(failure, EXIT_FAILED, "mmap", "%.800s cannot be mapped (%" PRIu64 " bytes): %s",
                           plan_name_file(pool->plan, file, failure), size, strerror(error));
    maps->base[file] = base;
    return true;
}

bool maps_open(struct maps *maps, const struct pool *pool, enum access access, struct failure *failure)
{
    uint64_t n_files = pool->plan->header.n_files;
    if (!check_map_count(n_files, failure))
        return false;
    *maps = (struct maps){.plan = pool->plan, .access = access, .base = calloc(n_files, sizeof *maps->base)};
    if (!maps->base)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for the table of %" PRIu64 " mappings", n_files);
    for (int i = 0; i < MAP_TURNS; i++)
        pthread_mutex_init(&maps->turns[i], NULL);
    for (uint32_t file = 0; file < n_files; file++)
        if (!map_file(maps, pool, file, failure))
            return false;
    return true;
}

static bool advise(const struct maps *maps, int advice, const char *name, struct failure *failure)
{
    for (uint32_t file = 0; file < maps->plan->header.n_files; file++) {
        if (!maps->base[file] || madvise(maps->base[file], maps->plan->files[file].size_bytes, advice) == 0)
            continue;
        int error = errno;
        return failure_set(failure, EXIT_FAILED, "advice", "%.800s: madvise(%s) fails: %s",
                           plan_name_file(maps->plan, file, failure), name, strerror(error));
    }
    return true;
}

bool maps_turn(struct maps *maps, bool copy, bool random, struct failure *failure)
{
    if (!maps->base)
        return true;
    // A page that stays mapped is neither dropped when asked for nor reclaimed like those that are not.
    if (maps->copied && !copy && !advise(maps, MADV_DONTNEED, "MADV_DONTNEED", failure))
        return false;
    if (maps->random != random &&
        !advise(maps, random ? MADV_RANDOM : MADV_NORMAL, random ? "MADV_RANDOM" : "MADV_NORMAL", failure))
        return false;
    maps->copied = copy;
    maps->random = random;
    return true;
}

void maps_close(struct maps *maps)
{
    for (uint64_t file = 0; maps->base && file < maps->plan->header.n_files; file++)
        if (maps->base[file])
            munmap(maps->base[file], maps->plan->files[file].size_bytes);
    free(maps->base);
    *maps = (struct maps){0};
}
