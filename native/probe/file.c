#include "probe/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const uint64_t PIECE_BYTES = 8u << 20;

static bool refused(const char *folder, int error, struct failure *failure)
{
    failure_path(failure, folder);
    bool never = error == EROFS || error == ENOSYS || error == EOPNOTSUPP;
    return failure_set(failure, never ? EXIT_UNSUPPORTED : EXIT_FAILED, never ? "unsupported" : "open",
                       "no file can be made in %.800s: %s; expected a folder that may be written to", folder, strerror(error));
}

// Some filesystems (overlay before Linux 6.1, NFS) cannot make a file without a name: it then loses it at once.
static bool open_unnamed(struct file *file, const char *folder, struct failure *failure)
{
    file->unnamed = "O_TMPFILE";
    file->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file->fd >= 0)
        return true;
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)
        return refused(folder, errno, failure);
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/.moetier-probe.XXXXXX", folder) >= (int)sizeof path)
        return refused(folder, ENAMETOOLONG, failure);
    file->unnamed = "unlinked";
    file->fd = mkostemp(path, O_CLOEXEC);
    if (file->fd < 0)
        return refused(folder, errno, failure);
    unlink(path);
    return true;
}

static bool no_room(const char *folder, uint64_t bytes, const char *why, struct failure *failure)
{
    failure_path(failure, folder);
    return failure_set(failure, EXIT_FAILED, "space", "%.800s has no room for a file of %" PRIu64 " bytes: %s; expected twice that"
                       " free, or a smaller --bytes", folder, bytes, why);
}

static bool need_room(const char *folder, uint64_t bytes, struct failure *failure)
{
    struct statvfs found;
    char why[64];
    if (statvfs(folder, &found) != 0)
        return refused(folder, errno, failure);
    uint64_t available = (uint64_t)found.f_bavail * found.f_frsize;
    snprintf(why, sizeof why, "%" PRIu64 " are free", available);
    return bytes <= available / 2 || no_room(folder, bytes, why, failure);
}

static bool fill(const struct file *file, const char *folder, const char *content, struct failure *failure)
{
    for (uint64_t done = 0; done < file->bytes;) {
        uint64_t piece = file->bytes - done < PIECE_BYTES ? file->bytes - done : PIECE_BYTES;
        ssize_t wrote = pwrite(file->fd, content + done, piece, (off_t)done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return no_room(folder, file->bytes, wrote < 0 ? strerror(errno) : "nothing more is taken", failure);
        done += (uint64_t)wrote;
    }
    return fsync(file->fd) == 0 || no_room(folder, file->bytes, strerror(errno), failure);
}

static enum probe working_probe(const struct file *file)
{
    if (resident_bytes(PROBE_CACHESTAT, file->fd, NULL, 0, file->bytes) > 0)
        return PROBE_CACHESTAT;
    // The file is our own: mincore tells the truth about it.
    return resident_bytes(PROBE_MINCORE, file->fd, NULL, 0, file->bytes) > 0 ? PROBE_MINCORE : PROBE_NONE;
}

bool file_make(struct file *file, const char *folder, const char *content, uint64_t bytes, struct failure *failure)
{
    *file = (struct file){.fd = -1, .bytes = bytes};
    if (!need_room(folder, bytes, failure) || !open_unnamed(file, folder, failure) || !fill(file, folder, content, failure))
        return false;
    file->probe = working_probe(file); // just written: some of it is resident
    return true;
}

int file_reopen(const struct file *file, int flags)
{
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file->fd);
    return open(path, flags | O_RDONLY | O_CLOEXEC);
}

void file_drop(const struct file *file)
{
    fdatasync(file->fd);
    posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
}

bool file_resident(const struct file *file, uint64_t *bytes)
{
    int64_t found = file->probe == PROBE_NONE ? -1 : resident_bytes(file->probe, file->fd, NULL, 0, file->bytes);
    *bytes = found < 0 ? 0 : (uint64_t)found;
    return found >= 0;
}

void file_close(struct file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}
