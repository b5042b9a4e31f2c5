#include "replay/selftest.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct verdict verdict(enum truth truth, const char *note)
{
    struct verdict result = {.truth = truth};
    snprintf(result.note, sizeof result.note, "%s", note);
    return result;
}

static struct verdict refused(enum probe probe, int64_t error)
{
    char note[160];
    snprintf(note, sizeof note, "%s: %s", probe_name(probe), strerror((int)-error));
    return verdict(TRUTH_REFUSED, note);
}

static void drop(int fd)
{
    fdatasync(fd); // dirty pages stay
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

static struct verdict judge(enum probe probe, uint64_t pages, int64_t dropped, int64_t touched)
{
    char note[160];
    snprintf(note, sizeof note, "%s: %" PRId64 " of %" PRIu64 " pages after dropping the file, %" PRId64 " after reading one",
             probe_name(probe), dropped, pages, touched);
    if (touched <= 0) // a page that was just read is resident, whatever else
        return verdict(TRUTH_REFUSED, note);
    return verdict(dropped < (int64_t)pages ? TRUTH_TOLD : TRUTH_UNPROVABLE, note);
}

struct verdict selftest(enum probe probe, int fd, uint64_t size)
{
    uint64_t pages = (size + kernel_page_bytes() - 1) / kernel_page_bytes();
    if (pages == 0)
        return verdict(TRUTH_UNPROVABLE, "the file is empty");
    int64_t dropped = resident_pages(probe, fd, NULL, 0, size);
    if (dropped < 0)
        return refused(probe, dropped);
    // A partly cached file proves the probe as it stands, and stays as it is.
    bool partly = dropped > 0 && (uint64_t)dropped < pages;
    if (!partly) {
        drop(fd);
        dropped = resident_pages(probe, fd, NULL, 0, size);
    }
    char byte;
    bool read = pread(fd, &byte, 1, 0) == 1; // brings its page in
    int64_t touched = resident_pages(probe, fd, NULL, 0, size);
    if (!partly)
        drop(fd);
    if (dropped < 0 || touched < 0)
        return refused(probe, dropped < 0 ? dropped : touched);
    if (!read)
        return verdict(TRUTH_UNPROVABLE, "the file cannot be read");
    return judge(probe, pages, dropped, touched);
}
