#include "replay/folios.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/clock.h"
#include "replay/sigbus.h"
#include "replay/stop.h"

// A piece is at most this much of one file, and at most so many are looked at.
enum { PIECE_BYTES = 4 << 20, MOST_PIECES = 512, MOST_PAGES = PIECE_BYTES / 4096, NO_ORDER = -1 };

// Of /proc/kpageflags and /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
static const uint64_t COMPOUND_HEAD = 1ull << 15;
static const uint64_t COMPOUND_TAIL = 1ull << 16;
static const uint64_t PRESENT = 1ull << 63;
static const uint64_t FRAME = (1ull << 55) - 1;

struct look {
    struct folios *folios;
    enum probe probe;
    uint64_t page_bytes;
    int flags_fd;
    int pagemap_fd;
    // The flags of the frames from `first_frame` on.
    uint64_t first_frame;
    uint64_t n_flags;
    uint64_t flags[MOST_PAGES];
    // The folio of the page before: the next page is mostly in it too.
    uint64_t head;
    int order; // NO_ORDER: there is none
};

static void explain(struct folios *folios, const char *what, int error)
{
    if (!folios->note[0])
        snprintf(folios->note, sizeof folios->note, "%.150s: %.80s", what, strerror(error));
}

static uint64_t flags_of(struct look *look, uint64_t frame)
{
    if (frame - look->first_frame < look->n_flags)
        return look->flags[frame - look->first_frame];
    uint64_t word = 0; // beyond the last frame there is nothing
    if (pread(look->flags_fd, &word, sizeof word, (off_t)(frame * sizeof word)) != sizeof word)
        return 0;
    return word;
}

// A folio of 2^k pages starts at a multiple of 2^k, with its head; all other pages are tails.
static void find_folio(struct look *look, uint64_t frame)
{
    look->head = frame;
    look->order = 0;
    if (!(flags_of(look, frame) & (COMPOUND_HEAD | COMPOUND_TAIL)))
        return;
    for (int order = 1; !(flags_of(look, look->head) & COMPOUND_HEAD); order++) {
        if (order == FOLIO_ORDERS) { // it is being taken apart
            look->order = NO_ORDER;
            return;
        }
        look->head = frame & ~((1ull << order) - 1);
    }
    look->order = 1;
    while (look->order < FOLIO_ORDERS - 1 && flags_of(look, look->head + (1ull << look->order)) & COMPOUND_TAIL)
        look->order++;
}

// The flags of the frames of pages[0], pages[1], ..., as far as these follow one another, in one read.
static void read_flags(struct look *look, const uint64_t *pages, uint64_t count)
{
    uint64_t first = pages[0] & FRAME, n = 1;
    while (n < count && pages[n] & PRESENT && (pages[n] & FRAME) == first + n)
        n++;
    ssize_t got = pread(look->flags_fd, look->flags, n * sizeof *look->flags, (off_t)(first * sizeof *look->flags));
    look->first_frame = first;
    look->n_flags = got > 0 ? (uint64_t)got / sizeof *look->flags : 0;
}

// pages: the piece's part of the page map.
static void count_pages(struct look *look, const uint64_t *pages, const unsigned char *resident, uint64_t count)
{
    look->n_flags = 0; // frames may be others' by now
    look->order = NO_ORDER;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t frame = pages[i] & FRAME;
        if (!(resident[i] & 1))
            continue;
        if (!(pages[i] & PRESENT) || frame == 0) {
            look->folios->unknown_bytes += look->page_bytes;
            explain(look->folios, "/proc/self/pagemap", pages[i] & PRESENT ? EPERM : ENODATA);
            continue;
        }
        if (look->order == NO_ORDER || frame - look->head >= 1ull << look->order) {
            if (frame - look->first_frame >= look->n_flags)
                read_flags(look, pages + i, count - i);
            find_folio(look, frame);
        }
        if (look->order == NO_ORDER)
            look->folios->unknown_bytes += look->page_bytes;
        else
            look->folios->bytes_by_order[look->order] += look->page_bytes;
    }
}

struct touch {
    const volatile char *mapped;
    const unsigned char *resident;
    uint64_t count;
    uint64_t page_bytes;
};

static void touch_resident(void *argument)
{
    const struct touch *touch = argument;
    for (uint64_t i = 0; i < touch->count; i++)
        if (touch->resident[i] & 1)
            (void)touch->mapped[i * touch->page_bytes];
}

// Resident pages alone are touched: one that is not would be read in.
static void look_at_mapped(struct look *look, char *mapped, uint64_t count, uint64_t known_pages)
{
    static unsigned char resident[MOST_PAGES];
    static uint64_t pages[MOST_PAGES];
    uint64_t seen = 0;
    if (mincore(mapped, count * look->page_bytes, resident) != 0)
        seen = UINT64_MAX;
    for (uint64_t i = 0; seen != UINT64_MAX && i < count; i++)
        seen += resident[i] & 1;
    struct touch touch = {mapped, resident, count, look->page_bytes};
    size_t bytes = count * sizeof *pages;
    off_t at = (off_t)((uintptr_t)mapped / look->page_bytes * sizeof *pages);
    // More than another probe knows of: mincore does not tell the truth about this file.
    if (seen > known_pages)
        explain(look->folios, "mincore", EPERM);
    else if (!sigbus_guard(touch_resident, &touch))
        explain(look->folios, "mapping", EFAULT);
    else if (pread(look->pagemap_fd, pages, bytes, at) != (ssize_t)bytes)
        explain(look->folios, "/proc/self/pagemap", EIO);
    else {
        count_pages(look, pages, resident, count);
        return;
    }
    look->folios->unknown_bytes += known_pages * look->page_bytes;
}

static void look_at_piece(struct look *look, int fd, uint64_t offset, uint64_t length)
{
    uint64_t count = (length + look->page_bytes - 1) / look->page_bytes;
    int64_t known = resident_pages(look->probe, fd, NULL, offset, length);
    if (known <= 0)
        return;
    bool flags = look->flags_fd >= 0 && look->pagemap_fd >= 0;
    char *mapped = flags ? mmap(NULL, count * look->page_bytes, PROT_READ, MAP_SHARED, fd, (off_t)offset) : MAP_FAILED;
    if (mapped == MAP_FAILED) {
        explain(look->folios, "mmap", errno);
        look->folios->unknown_bytes += (uint64_t)known * look->page_bytes;
        return;
    }
    madvise(mapped, count * look->page_bytes, MADV_RANDOM); // no read-around where a page has left meanwhile
    look_at_mapped(look, mapped, count, (uint64_t)known);
    munmap(mapped, count * look->page_bytes);
}

static uint64_t pieces_of(const struct plan *plan, uint64_t file)
{
    return (plan->files[file].size_bytes + PIECE_BYTES - 1) / PIECE_BYTES;
}

// The chosen ones of a file's pieces: those at which the count of the pool's pieces, times `most`, passes a multiple of `n`.
static void look_at_file(struct look *look, const struct pool *pool, uint32_t file, uint64_t first, uint64_t n)
{
    uint64_t most = n < MOST_PIECES ? n : MOST_PIECES;
    uint64_t size = pool->plan->files[file].size_bytes;
    struct failure failure = {0};
    int fd = -1;
    for (uint64_t piece = 0; piece < pieces_of(pool->plan, file) && !stopping(); piece++) {
        uint64_t number = first + piece;
        if ((number + 1) * most / n == number * most / n)
            continue;
        if (fd < 0 && (fd = pool_open(pool, file, 0, &failure)) < 0) {
            explain(look->folios, "open", errno);
            return;
        }
        uint64_t offset = piece * PIECE_BYTES;
        uint64_t length = size - offset < PIECE_BYTES ? size - offset : PIECE_BYTES;
        look->folios->looked_at_bytes += length;
        look_at_piece(look, fd, offset, length);
    }
    if (fd < 0)
        return;
    look->folios->files_looked_at++;
    close(fd);
}

void folios_look(struct folios *folios, const struct pool *pool, enum probe probe)
{
    static struct look look; // static: large
    const struct plan *plan = pool->plan;
    double start = clock_seconds();
    *folios = (struct folios){.files = plan->header.n_files, .pool_bytes = plan_pool_bytes(plan)};
    look = (struct look){.folios = folios, .probe = probe, .page_bytes = kernel_page_bytes(), .order = NO_ORDER};
    look.flags_fd = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);
    if (look.flags_fd < 0)
        explain(folios, "/proc/kpageflags", errno);
    look.pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (look.pagemap_fd < 0)
        explain(folios, "/proc/self/pagemap", errno);
    if (probe == PROBE_NONE)
        explain(folios, "no residency probe works on this pool", ENOSYS);
    uint64_t n = 0, first = 0;
    for (uint64_t file = 0; file < folios->files; file++)
        n += pieces_of(plan, file);
    for (uint32_t file = 0; file < folios->files; file++) {
        look_at_file(&look, pool, file, first, n);
        first += pieces_of(plan, file);
    }
    if (look.flags_fd >= 0)
        close(look.flags_fd);
    if (look.pagemap_fd >= 0)
        close(look.pagemap_fd);
    folios->cost_seconds = clock_seconds() - start;
}
