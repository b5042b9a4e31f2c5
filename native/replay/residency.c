#include "replay/residency.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451 // the same on every architecture; Linux 6.5
#endif

// As in <linux/mman.h>, which older headers lack.
struct cachestat_range_v0 {
    uint64_t offset;
    uint64_t length;
};
struct cachestat_v0 {
    uint64_t cached;
    uint64_t dirty;
    uint64_t writeback;
    uint64_t evicted;
    uint64_t recently_evicted;
};

uint64_t kernel_page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

const char *probe_name(enum probe probe)
{
    return probe == PROBE_CACHESTAT ? "cachestat" : probe == PROBE_MINCORE ? "mincore" : "none";
}

static int64_t cachestat_pages(int fd, uint64_t offset, uint64_t length)
{
    struct cachestat_range_v0 range = {offset, length};
    struct cachestat_v0 answer;
    if (syscall(SYS_cachestat, fd, &range, &answer, 0) != 0)
        return -errno;
    return (int64_t)answer.cached;
}

static int64_t mincore_pages(const char *base, uint64_t offset, uint64_t length)
{
    enum { WINDOW_PAGES = 4096 };
    unsigned char resident[WINDOW_PAGES];
    int64_t pages = 0;
    uint64_t size = kernel_page_bytes();
    uint64_t end = (offset + length + size - 1) / size;
    for (uint64_t page = offset / size; page < end; page += WINDOW_PAGES) {
        uint64_t count = end - page < WINDOW_PAGES ? end - page : WINDOW_PAGES;
        if (mincore((char *)(uintptr_t)base + page * size, count * size, resident) != 0)
            return -errno;
        for (uint64_t i = 0; i < count; i++)
            pages += resident[i] & 1;
    }
    return pages;
}

int64_t resident_pages(enum probe probe, int fd, const char *base, uint64_t offset, uint64_t length)
{
    if (probe == PROBE_NONE || length == 0) // the kernel would take length 0 as "to the end"
        return 0;
    if (probe == PROBE_CACHESTAT)
        return cachestat_pages(fd, offset, length);
    if (base)
        return mincore_pages(base, offset, length);
    uint64_t bytes = offset + length;
    void *mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return -errno;
    int64_t pages = mincore_pages(mapped, offset, length);
    munmap(mapped, bytes);
    return pages;
}

int64_t resident_bytes(enum probe probe, int fd, const char *base, uint64_t offset, uint64_t length)
{
    uint64_t page = kernel_page_bytes();
    uint64_t end = offset + length;
    uint64_t head = offset % page;
    uint64_t tail = (page - end % page) % page;
    int64_t pages = resident_pages(probe, fd, base, offset, length);
    if (pages <= 0)
        return pages;
    if ((uint64_t)pages == (head + length + tail) / page)
        return (int64_t)length;
    int64_t first = head ? resident_pages(probe, fd, base, offset, 1) : 0;
    int64_t last = tail ? resident_pages(probe, fd, base, end - 1, 1) : 0;
    if (first < 0 || last < 0)
        return first < 0 ? first : last;
    int64_t bytes = pages * (int64_t)page - first * (int64_t)head - last * (int64_t)tail;
    return bytes > 0 ? bytes : 0; // pages may go between the looks
}
