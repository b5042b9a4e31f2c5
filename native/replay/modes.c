#include "replay/modes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "replay/residency.h"
#include "replay/sigbus.h"
#include "replay/stamps.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 // Linux 5.14
#endif

enum { TMPFS = 0x01021994, RAMFS = 0x858458f6 };

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

static bool open_scratch(struct reader *reader, struct failure *failure)
{
    const struct plan *plan = reader->pool->plan;
    uint64_t largest = 0;
    for (uint64_t i = 0; i < plan->header.n_extents; i++)
        if (plan->extents[i].length > largest)
            largest = plan->extents[i].length;
    largest = (largest + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    reader->scratch = aligned_alloc(PAGE_BYTES, largest);
    if (!reader->scratch)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for a thread's scratch of %" PRIu64 " bytes", largest);
    memset(reader->scratch, 1, largest); // faults must not fall into a measured pass
    return true;
}

bool reader_open(struct reader *reader, enum mode mode, uint64_t chunk_bytes, const struct pool *pool, const struct maps *maps,
                 uint32_t open_files, struct failure *failure)
{
    bool chunks = chunk_bytes && !mode_maps(mode) && !mode_writes(mode);
    *reader = (struct reader){.mode = mode, .pool = pool, .maps = maps, .chunk = chunks ? chunk_bytes : UINT64_MAX};
    return fds_open(&reader->fds, pool, open_files, mode == MODE_DIRECT ? O_DIRECT : 0, mode == MODE_FADV_RANDOM, failure) &&
           (mode != MODE_MMAP_PREAD || open_scratch(reader, failure));
}

void reader_close(struct reader *reader)
{
    fds_close(&reader->fds);
    free(reader->scratch);
    *reader = (struct reader){0};
}

static void name_file(const struct reader *reader, const struct plan_extent *extent, struct failure *failure)
{
    char path[PATH_MAX];
    plan_file_path(reader->pool->plan, extent->file, path);
    failure_path(failure, path);
}

static char *short_read(const struct reader *reader, const struct plan_extent *extent, uint64_t got, struct failure *failure)
{
    name_file(reader, extent, failure);
    failure_set(failure, EXIT_FAILED, "short_read", "%.800s ends early: got %" PRIu64 " of %" PRIu64
                " bytes expected at offset %" PRIu64, failure->path, got, extent->length, extent->offset);
    return NULL;
}

static char *sigbus_failure(const struct reader *reader, const struct plan_extent *extent, struct failure *failure)
{
    struct stat status = {0};
    struct failure ignored;
    int fd = pool_open(reader->pool, extent->file, 0, &ignored);
    bool known = fd >= 0 && fstat(fd, &status) == 0;
    if (fd >= 0)
        close(fd);
    const char *what = mode_writes(reader->mode) ? "a read into its mapping" : "a mapped read";
    name_file(reader, extent, failure);
    if (known && (uint64_t)status.st_size < extent->offset + extent->length)
        failure_set(failure, EXIT_FAILED, "sigbus", "%.800s was truncated while mapped: it has %jd bytes, expected %" PRIu64
                    " at least", failure->path, (intmax_t)status.st_size, extent->offset + extent->length);
    else
        failure_set(failure, EXIT_FAILED, "sigbus", "%.800s: its device failed under %s of %" PRIu64
                    " bytes at offset %" PRIu64 " (SIGBUS)", failure->path, what, extent->length, extent->offset);
    return NULL;
}

static char *read_error(const struct reader *reader, const struct plan_extent *extent, int error, struct failure *failure)
{
    if (error == EFAULT && mode_writes(reader->mode)) // SIGBUS, as the kernel meets it
        return sigbus_failure(reader, extent, failure);
    name_file(reader, extent, failure);
    if (error == EINVAL && reader->mode == MODE_DIRECT)
        failure_set(failure, EXIT_UNSUPPORTED, "unsupported", "%.800s: its filesystem or device refuses O_DIRECT reads of "
                    "%d-byte pages, which this mode needs", failure->path, PAGE_BYTES);
    else
        failure_set(failure, EXIT_FAILED, "read", "%.800s: %" PRIu64 " bytes at offset %" PRIu64 " cannot be read: %s",
                    failure->path, extent->length, extent->offset, strerror(error));
    return NULL;
}

// Reads `wanted` bytes at `offset`; what counts are the extent's, which end at `enough`.
static char *read_extent(struct reader *reader, const struct plan_extent *extent, char *window, uint64_t offset,
                         uint64_t wanted, uint64_t enough, struct failure *failure)
{
    int fd = fds_get(&reader->fds, extent->file, failure);
    if (fd < 0)
        return NULL;
    uint64_t skip = extent->offset - offset;
    for (uint64_t done = 0; done < enough;) {
        uint64_t most = wanted - done < reader->chunk ? wanted - done : reader->chunk;
        ssize_t got = pread(fd, window + done, most, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return read_error(reader, extent, errno, failure);
        done += (uint64_t)got;
        // O_DIRECT stops inside a page at the end of the file alone; asking on from there would be EINVAL.
        bool ended = got == 0 || (reader->mode == MODE_DIRECT && done % PAGE_BYTES != 0);
        if (ended && done < enough)
            return short_read(reader, extent, done > skip ? done - skip : 0, failure);
    }
    return window + skip;
}

static char *advice_error(const struct reader *reader, const struct plan_extent *extent, const char *call, int error,
                          struct failure *failure)
{
    name_file(reader, extent, failure);
    failure_set(failure, EXIT_FAILED, "advice", "%.800s: %s on %" PRIu64 " bytes at offset %" PRIu64 " fails: %s", failure->path,
                call, extent->length, extent->offset, strerror(error));
    return NULL;
}

// The extent's bytes stay in the destination alone. A range would spare a page at its end that holds others' bytes too.
static char *drop_extent(struct reader *reader, const struct plan_extent *extent, char *data, struct failure *failure)
{
    int fd = fds_get(&reader->fds, extent->file, failure);
    if (fd < 0)
        return NULL;
    bool whole = extent->offset == 0 && extent->length == reader->pool->plan->files[extent->file].size_bytes;
    int error = posix_fadvise(fd, (off_t)extent->offset, whole ? 0 : (off_t)extent->length, POSIX_FADV_DONTNEED);
    return error ? advice_error(reader, extent, "posix_fadvise(DONTNEED)", error, failure) : data;
}

bool reader_warm(struct reader *reader, const struct plan_extent *extent, struct failure *failure)
{
    return read_extent(reader, extent, reader->scratch, extent->offset, extent->length, extent->length, failure);
}

// madvise takes whole pages.
static int advise_mapped(char *from, uint64_t length, int advice)
{
    uint64_t skip = (uintptr_t)from % kernel_page_bytes();
    int result;
    do
        result = madvise(from - skip, length + skip, advice);
    while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
}

// What a mapped mode does before it copies. False with the failure filled.
static bool before_copy(struct reader *reader, const struct plan_extent *extent, char *from, struct failure *failure)
{
    int error = 0;
    if (reader->mode == MODE_MMAP_PREAD && !reader_warm(reader, extent, failure))
        return false;
    if (reader->mode == MODE_MMAP_WILLNEED || reader->mode == MODE_MMAP_PREAD)
        error = advise_mapped(from, extent->length, MADV_WILLNEED);
    else if (reader->mode == MODE_MMAP_POPULATE)
        error = advise_mapped(from, extent->length, MADV_POPULATE_READ);
    if (error == EFAULT) // SIGBUS, as the kernel meets it
        return sigbus_failure(reader, extent, failure);
    return error == 0 || advice_error(reader, extent, "madvise", error, failure);
}

static char *copy_mapped(struct reader *reader, const struct plan_extent *extent, char *window, struct failure *failure)
{
    char *from = reader->maps->base[extent->file] + extent->offset;
    if (!before_copy(reader, extent, from, failure))
        return NULL;
    return sigbus_copy(window, from, extent->length) ? window : sigbus_failure(reader, extent, failure);
}

char *deliver(struct reader *reader, const struct plan_extent *extent, char *window, struct failure *failure)
{
    if (mode_maps(reader->mode))
        return copy_mapped(reader, extent, window, failure);
    if (mode_writes(reader->mode))
        window = reader->maps->base[extent->file] + extent->offset;
    uint64_t skip = reader->mode == MODE_DIRECT ? extent->offset % PAGE_BYTES : 0;
    uint64_t wanted = reader->mode == MODE_DIRECT ? window_bytes(MODE_DIRECT, extent) : extent->length;
    char *data = read_extent(reader, extent, window, extent->offset - skip, wanted, skip + extent->length, failure);
    return data && reader->mode == MODE_DROP ? drop_extent(reader, extent, data, failure) : data;
}

struct check {
    const struct plan *plan;
    const struct plan_expert *expert;
    enum stamps stamps;
    const char *data;
    uint64_t position;
    uint64_t length;
    uint64_t *checked;
    struct failure *failure;
    bool good;
};

static void run_check(void *argument)
{
    struct check *check = argument;
    check->good = stamps_check(check->plan, check->expert, check->stamps, check->data, check->position, check->length,
                               check->checked, check->failure);
}

bool delivered_check(const struct reader *reader, const struct plan_expert *expert, const struct plan_extent *extent,
                     enum stamps stamps, const char *data, uint64_t position, uint64_t *checked, struct failure *failure)
{
    struct check check = {reader->pool->plan, expert, stamps, data, position, extent->length, checked, failure, false};
    if (!mode_writes(reader->mode)) {
        run_check(&check);
    } else if (!sigbus_guard(run_check, &check)) { // what was read into the mapping may be gone again
        sigbus_failure(reader, extent, failure);
        return false;
    }
    if (!check.good)
        name_file(reader, extent, failure);
    return check.good;
}
