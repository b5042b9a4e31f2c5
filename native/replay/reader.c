#include "replay/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "replay/residency.h"
#include "replay/sigbus.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 // Linux 5.14
#endif

bool reader_open(struct reader *reader, enum mode mode, uint64_t chunk_bytes, const struct pool *pool, struct maps *maps,
                 uint32_t open_files, struct failure *failure)
{
    bool chunks = chunk_bytes && mode_reads_in_chunks(mode);
    *reader = (struct reader){.mode = mode, .pool = pool, .maps = maps, .chunk = chunks ? chunk_bytes : UINT64_MAX};
    return fds_open(&reader->fds, pool, open_files, mode == MODE_DIRECT ? O_DIRECT : 0, mode == MODE_FADV_RANDOM, failure) &&
           (mode != MODE_MMAP_PREAD || reader_map_scratch(reader, failure));
}

bool reader_map_scratch(struct reader *reader, struct failure *failure)
{
    const struct plan *plan = reader->pool->plan;
    uint64_t largest = 0;
    for (uint64_t i = 0; i < plan->header.n_extents; i++)
        if (plan->extents[i].length > largest)
            largest = plan->extents[i].length;
    return region_map(&reader->scratch, largest, "a thread's scratch", failure);
}

void reader_close(struct reader *reader)
{
    fds_close(&reader->fds);
    region_unmap(&reader->scratch);
    *reader = (struct reader){0};
}

static bool short_read(const struct reader *reader, const struct plan_extent *extent, uint64_t got, struct failure *failure)
{
    const char *path = plan_name_file(reader->pool->plan, extent->file, failure);
    return failure_set(failure, EXIT_FAILED, "short_read", "%.800s ends early: got %" PRIu64 " of %" PRIu64
                       " bytes expected at offset %" PRIu64, path, got, extent->length, extent->offset);
}

static bool sigbus_failure(const struct reader *reader, const struct plan_extent *extent, struct failure *failure)
{
    struct stat status = {0};
    struct failure ignored;
    int fd = pool_open(reader->pool, extent->file, 0, &ignored);
    bool known = fd >= 0 && fstat(fd, &status) == 0;
    if (fd >= 0)
        close(fd);
    const char *what = mode_writes(reader->mode) ? "a read into its mapping" : "a mapped read";
    const char *path = plan_name_file(reader->pool->plan, extent->file, failure);
    if (known && (uint64_t)status.st_size < extent->offset + extent->length)
        return failure_set(failure, EXIT_FAILED, "sigbus", "%.800s was truncated while mapped: it has %jd bytes, expected "
                           "%" PRIu64 " at least", path, (intmax_t)status.st_size, extent->offset + extent->length);
    return failure_set(failure, EXIT_FAILED, "sigbus", "%.800s: its device failed under %s of %" PRIu64
                       " bytes at offset %" PRIu64 " (SIGBUS)", path, what, extent->length, extent->offset);
}

static bool read_error(const struct reader *reader, const struct plan_extent *extent, int error, struct failure *failure)
{
    if (error == EFAULT && mode_writes(reader->mode)) // SIGBUS, as the kernel meets it
        return sigbus_failure(reader, extent, failure);
    const char *path = plan_name_file(reader->pool->plan, extent->file, failure);
    if (error == EINVAL && reader->mode == MODE_DIRECT)
        return failure_set(failure, EXIT_UNSUPPORTED, "unsupported", "%.800s: its filesystem or device refuses O_DIRECT reads of "
                           "%d-byte pages, which this mode needs", path, PAGE_BYTES);
    return failure_set(failure, EXIT_FAILED, "read", "%.800s: %" PRIu64 " bytes at offset %" PRIu64 " cannot be read: %s", path,
                       extent->length, extent->offset, strerror(error));
}

static bool advice_error(const struct reader *reader, const struct plan_extent *extent, const char *call, int error,
                         struct failure *failure)
{
    const char *path = plan_name_file(reader->pool->plan, extent->file, failure);
    return failure_set(failure, EXIT_FAILED, "advice", "%.800s: %s on %" PRIu64 " bytes at offset %" PRIu64 " fails: %s", path,
                       call, extent->length, extent->offset, strerror(error));
}

// What a window holds before the extent's first byte.
static uint64_t window_skip(enum mode mode, const struct plan_extent *extent)
{
    return mode == MODE_DIRECT ? extent->offset % PAGE_BYTES : 0;
}

static bool read_extent(struct reader *reader, const struct plan_extent *extent, char *window, struct failure *failure)
{
    int fd = fds_get(&reader->fds, extent->file, failure);
    if (fd < 0)
        return false;
    bool direct = reader->mode == MODE_DIRECT;
    uint64_t skip = window_skip(reader->mode, extent);
    uint64_t wanted = direct ? window_bytes(MODE_DIRECT, extent) : extent->length;
    for (uint64_t done = 0; done < skip + extent->length;) {
        uint64_t most = wanted - done < reader->chunk ? wanted - done : reader->chunk;
        ssize_t got = pread(fd, window + done, most, (off_t)(extent->offset - skip + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return read_error(reader, extent, errno, failure);
        done += (uint64_t)got;
        // O_DIRECT stops inside a page at the end of the file alone; asking on from there would be EINVAL.
        bool ended = got == 0 || (direct && done % PAGE_BYTES != 0);
        if (ended && done < skip + extent->length)
            return short_read(reader, extent, done > skip ? done - skip : 0, failure);
    }
    return true;
}

bool reader_warm(struct reader *reader, const struct plan_extent *extent, struct failure *failure)
{
    return read_extent(reader, extent, reader->scratch.memory, failure);
}

// The extent's bytes stay in the destination alone. A range would spare a page at its end that holds others' bytes too.
static bool drop_extent(struct reader *reader, const struct plan_extent *extent, struct failure *failure)
{
    int fd = fds_get(&reader->fds, extent->file, failure);
    if (fd < 0)
        return false;
    bool whole = extent->offset == 0 && extent->length == reader->pool->plan->files[extent->file].size_bytes;
    int error = posix_fadvise(fd, (off_t)extent->offset, whole ? 0 : (off_t)extent->length, POSIX_FADV_DONTNEED);
    return error == 0 || advice_error(reader, extent, "posix_fadvise(DONTNEED)", error, failure);
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

// What a mapped mode does before it copies.
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

static bool copy_mapped(struct reader *reader, const struct plan_extent *extent, char *window, struct failure *failure)
{
    char *from = mapped_extent(reader->maps, extent);
    return before_copy(reader, extent, from, failure) &&
           (sigbus_copy(window, from, extent->length) || sigbus_failure(reader, extent, failure));
}

// The comparison of an extent's stamps, in a form that can be guarded.
struct check {
    const struct plan *plan;
    const struct plan_expert *expert;
    const struct plan_extent *extent;
    enum stamps stamps;
    const char *data;
    uint64_t position;
    uint64_t *checked;
    struct failure *failure;
    bool good;
};

static void run_check(void *argument)
{
    struct check *check = argument;
    check->good = check->stamps == STAMPS_NONE || stamps_check(check->plan, check->expert, check->extent, check->stamps,
                                                               check->data, check->position, check->checked, check->failure);
}

static bool copy_extent(struct reader *reader, char *window, struct check *check)
{
    if (mode_maps(reader->mode) ? !copy_mapped(reader, check->extent, window, check->failure)
                                : !read_extent(reader, check->extent, window, check->failure))
        return false;
    if (reader->mode == MODE_DROP && !drop_extent(reader, check->extent, check->failure))
        return false;
    check->data = window + window_skip(reader->mode, check->extent);
    run_check(check);
    return check->good;
}

// Into the mapping, in place: one thread at a time, or it would write what another compares.
static bool write_extent(struct reader *reader, struct check *check)
{
    char *to = mapped_extent(reader->maps, check->extent);
    pthread_mutex_t *turn = &reader->maps->turns[(check->extent - check->plan->extents) % MAP_TURNS];
    check->data = to;
    pthread_mutex_lock(turn);
    bool good = read_extent(reader, check->extent, to, check->failure);
    if (good && !sigbus_guard(run_check, check)) // what was read may be gone again
        good = sigbus_failure(reader, check->extent, check->failure);
    pthread_mutex_unlock(turn);
    return good && check->good;
}

bool reader_deliver(struct reader *reader, const struct plan_expert *expert, enum stamps stamps, char *window, uint64_t *checked,
                    struct failure *failure)
{
    const struct plan *plan = reader->pool->plan;
    struct check check = {.plan = plan, .expert = expert, .extent = &plan->extents[expert->first_extent], .stamps = stamps,
                          .checked = checked, .failure = failure};
    for (uint32_t i = 0; i < expert->n_extents; i++, check.extent++) {
        if (mode_writes(reader->mode) ? !write_extent(reader, &check) : !copy_extent(reader, window, &check))
            return false;
        window += window_bytes(reader->mode, check.extent);
        check.position += check.extent->length;
    }
    return true;
}

void gather_expert(const struct plan *plan, const struct plan_expert *expert, enum mode mode, const char *window, char *to)
{
    const struct plan_extent *extent = &plan->extents[expert->first_extent];
    for (uint32_t i = 0; i < expert->n_extents; i++, extent++) {
        memcpy(to, window + window_skip(mode, extent), extent->length);
        window += window_bytes(mode, extent);
        to += extent->length;
    }
}
