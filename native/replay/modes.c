#include "replay/modes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { TMPFS = 0x01021994, RAMFS = 0x858458f6 };

const char *copy_name(enum mode mode)
{
#ifdef __GLIBC__
    const char *mapped = "memcpy (glibc)";
#else
    const char *mapped = "memcpy (libc)";
#endif
    return mode == MODE_MMAP ? mapped : mode == MODE_DIRECT ? "pread O_DIRECT" : "pread";
}

bool mode_check(enum mode mode, const struct pool *pool, struct failure *failure)
{
    if (mode != MODE_DIRECT)
        return true;
    int fd = pool_open(pool, 0, O_DIRECT, failure);
    if (fd < 0)
        return false;
    // Newer kernels accept O_DIRECT on tmpfs and ignore it: there is no device to read from.
    struct statfs filesystem = {0};
    bool in_memory = fstatfs(fd, &filesystem) == 0 &&
                     ((uint32_t)filesystem.f_type == (uint32_t)TMPFS || (uint32_t)filesystem.f_type == (uint32_t)RAMFS);
    close(fd);
    if (in_memory)
        return failure_set(failure, EXIT_UNSUPPORTED, "unsupported", "the pool is on tmpfs: mode direct needs a device below it");
    return true;
}

bool reader_open(struct reader *reader, enum mode mode, const struct pool *pool, const struct maps *maps, uint32_t open_files,
                 struct failure *failure)
{
    *reader = (struct reader){.mode = mode, .pool = pool, .maps = maps};
    return fds_open(&reader->fds, pool, open_files, mode == MODE_DIRECT ? O_DIRECT : 0, mode == MODE_FADV_RANDOM, failure);
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

static char *read_error(const struct reader *reader, const struct plan_extent *extent, int error, struct failure *failure)
{
    name_file(reader, extent, failure);
    if (error == EINVAL && reader->mode == MODE_DIRECT)
        failure_set(failure, EXIT_UNSUPPORTED, "unsupported", "%.800s: its filesystem or device refuses O_DIRECT reads of "
                    "%d-byte pages: mode direct is not supported here", failure->path, PAGE_BYTES);
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
        ssize_t got = pread(fd, window + done, wanted - done, (off_t)(offset + done));
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

static _Thread_local sigjmp_buf sigbus_return;
static _Thread_local volatile sig_atomic_t sigbus_expected;

static void on_sigbus(int signal)
{
    if (sigbus_expected)
        siglongjmp(sigbus_return, 1);
    struct sigaction standard;
    memset(&standard, 0, sizeof standard);
    standard.sa_handler = SIG_DFL;
    sigaction(signal, &standard, NULL);
    raise(signal);
}

void sigbus_install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_sigbus;
    action.sa_flags = SA_NODEFER; // the jump leaves the handler without unblocking
    sigaction(SIGBUS, &action, NULL);
}

bool copy_mapped(char *to, const char *from, uint64_t length)
{
    if (sigsetjmp(sigbus_return, 0) != 0) {
        sigbus_expected = 0;
        return false;
    }
    sigbus_expected = 1;
    memcpy(to, from, length);
    sigbus_expected = 0;
    return true;
}

static char *sigbus_failure(const struct reader *reader, const struct plan_extent *extent, struct failure *failure)
{
    struct stat status = {0};
    struct failure ignored;
    int fd = pool_open(reader->pool, extent->file, 0, &ignored);
    bool known = fd >= 0 && fstat(fd, &status) == 0;
    if (fd >= 0)
        close(fd);
    name_file(reader, extent, failure);
    if (known && (uint64_t)status.st_size < extent->offset + extent->length)
        failure_set(failure, EXIT_FAILED, "sigbus", "%.800s was truncated while mapped: it has %jd bytes, expected %" PRIu64
                    " at least", failure->path, (intmax_t)status.st_size, extent->offset + extent->length);
    else
        failure_set(failure, EXIT_FAILED, "sigbus", "%.800s: its device failed under a mapped read of %" PRIu64
                    " bytes at offset %" PRIu64 " (SIGBUS)", failure->path, extent->length, extent->offset);
    return NULL;
}

char *deliver(struct reader *reader, const struct plan_extent *extent, char *window, struct failure *failure)
{
    if (reader->mode == MODE_MMAP) {
        if (copy_mapped(window, reader->maps->base[extent->file] + extent->offset, extent->length))
            return window;
        return sigbus_failure(reader, extent, failure);
    }
    if (reader->mode != MODE_DIRECT)
        return read_extent(reader, extent, window, extent->offset, extent->length, extent->length, failure);
    uint64_t skip = extent->offset % PAGE_BYTES;
    return read_extent(reader, extent, window, extent->offset - skip, window_bytes(MODE_DIRECT, extent), skip + extent->length,
                       failure);
}
