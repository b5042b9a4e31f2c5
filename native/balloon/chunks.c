#include "balloon/chunks.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "common/memory.h"

// MemAvailable is looked at between chunks; one takes some 50 ms to touch.
static const uint64_t CHUNK_BYTES = 256u << 20;
enum { LEAST_PAGE = 4096 }; // the kernel's own may be larger

static bool remember(struct chunks *chunks, struct chunk chunk)
{
    if (chunks->count == chunks->capacity) {
        uint64_t capacity = chunks->capacity ? chunks->capacity * 2 : 64;
        struct chunk *items = realloc(chunks->items, capacity * sizeof *items);
        if (!items)
            return false;
        chunks->items = items;
        chunks->capacity = capacity;
    }
    chunks->items[chunks->count++] = chunk;
    chunks->bytes += chunk.bytes;
    return true;
}

static bool add_locked(struct chunks *chunks, uint64_t bytes, struct failure *failure)
{
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return failure_set(failure, EXIT_FAILED, "memory", "%" PRIu64 " bytes asked: %s", bytes, strerror(errno));
    madvise(base, bytes, MADV_HUGEPAGE); // fewer faults; only a hint
    if (!lock_memory(base, bytes, bytes, failure)) {
        munmap(base, bytes);
        return false;
    }
    // mlock has faulted all pages in; a write makes each the process's own, whatever the kernel chose to map.
    for (uint64_t at = 0; at < bytes; at += LEAST_PAGE)
        ((volatile char *)base)[at] = 1;
    if (!remember(chunks, (struct chunk){base, bytes})) {
        munmap(base, bytes);
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for the list of chunks");
    }
    return true;
}

static bool leaves_floor(const struct chunks *chunks, uint64_t more, uint64_t floor_bytes, struct failure *failure)
{
    uint64_t available = mem_available_bytes();
    if (available >= more && available - more >= floor_bytes)
        return true;
    return failure_set(failure, EXIT_RELEASED, "reserve", "inflating from %" PRIu64 " by %" PRIu64 " bytes would leave less than "
                       "half the reserve (%" PRIu64 " bytes) of the %" PRIu64 " bytes available", chunks->bytes, more,
                       floor_bytes, available);
}

static bool grow(struct chunks *chunks, uint64_t bytes, uint64_t floor_bytes, struct failure *failure)
{
    // What cannot be reached is refused before the host is squeezed; and others may take memory while this grows.
    if (chunks->bytes < bytes && !leaves_floor(chunks, bytes - chunks->bytes, floor_bytes, failure))
        return false;
    while (chunks->bytes < bytes) {
        uint64_t more = bytes - chunks->bytes < CHUNK_BYTES ? bytes - chunks->bytes : CHUNK_BYTES;
        if (!leaves_floor(chunks, more, floor_bytes, failure))
            return false;
        pthread_mutex_lock(&chunks->lock);
        while (chunks->released) // the watchdog has let go and is ending the process
            pause();
        bool added = add_locked(chunks, more, failure);
        pthread_mutex_unlock(&chunks->lock);
        if (!added)
            return false;
    }
    return true;
}

static void shrink(struct chunks *chunks, uint64_t bytes)
{
    pthread_mutex_lock(&chunks->lock);
    while (chunks->count > 0 && chunks->bytes > bytes) {
        struct chunk *last = &chunks->items[chunks->count - 1];
        uint64_t less = chunks->bytes - bytes < last->bytes ? chunks->bytes - bytes : last->bytes;
        munmap(last->base + last->bytes - less, less);
        last->bytes -= less;
        chunks->bytes -= less;
        chunks->count -= last->bytes == 0;
    }
    pthread_mutex_unlock(&chunks->lock);
}

bool chunks_resize(struct chunks *chunks, uint64_t bytes, uint64_t floor_bytes, struct failure *failure)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (bytes > UINT64_MAX - page)
        return failure_set(failure, EXIT_USAGE, "usage", "%" PRIu64 " bytes are more than memory can have", bytes);
    bytes = (bytes + page - 1) / page * page;
    if (bytes < chunks->bytes)
        shrink(chunks, bytes);
    return grow(chunks, bytes, floor_bytes, failure);
}

bool chunks_release(struct chunks *chunks)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 500000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_mutex_timedlock(&chunks->lock, &until) != 0)
        return false;
    chunks->released = true;
    for (uint64_t i = 0; i < chunks->count; i++)
        munmap(chunks->items[i].base, chunks->items[i].bytes);
    chunks->count = 0;
    chunks->bytes = 0;
    pthread_mutex_unlock(&chunks->lock);
    return true;
}
