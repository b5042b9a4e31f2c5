#include "replay/prefetch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "replay/stop.h"
#include "replay/threads.h"

// Orders, in place of a list in the slot. No list has so high a number.
enum { SLOT_EMPTY = 0 };
static const unsigned SLOT_HALT = UINT32_MAX - 1;
static const unsigned SLOT_QUIT = UINT32_MAX;

// Puts a value into the slot and wakes the worker if it may be asleep. Never waits. A thread that comes late with its list leaves
// the later one that it finds. Returns what was there.
static unsigned put(struct prefetch *prefetch, unsigned value)
{
    unsigned before = atomic_load(&prefetch->slot);
    while (before < value && !atomic_compare_exchange_weak(&prefetch->slot, &before, value))
        ;
    if (before == SLOT_EMPTY)
        syscall(SYS_futex, &prefetch->slot, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    return before;
}

static unsigned take(struct prefetch *prefetch)
{
    for (;;) {
        unsigned value = atomic_exchange(&prefetch->slot, SLOT_EMPTY);
        if (value != SLOT_EMPTY)
            return value;
        syscall(SYS_futex, &prefetch->slot, FUTEX_WAIT_PRIVATE, SLOT_EMPTY, NULL, NULL, 0); // returns at once if no longer empty
    }
}

static uint64_t list_of(const struct lists *advice, uint64_t access)
{
    uint64_t low = 0;
    uint64_t high = advice->header.n_lists - 1;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (advice->triggers[middle] < access)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void prefetch_submit(struct prefetch *prefetch, uint64_t access)
{
    atomic_fetch_add_explicit(&prefetch->submitted, 1, memory_order_relaxed);
    if (put(prefetch, (unsigned)list_of(prefetch->advice, access) + 1) != SLOT_EMPTY)
        atomic_fetch_add_explicit(&prefetch->overwritten, 1, memory_order_relaxed);
}

static bool count_resident(struct prefetch *prefetch, const struct plan_expert *expert, uint64_t *bytes, struct failure *failure)
{
    const struct plan_extent *extent = &prefetch->plan->extents[expert->first_extent];
    *bytes = 0;
    for (uint32_t i = 0; i < expert->n_extents && prefetch->probe != PROBE_NONE; i++, extent++) {
        int fd = fds_get(&prefetch->reader.fds, extent->file, failure);
        if (fd < 0)
            return false;
        int64_t resident = resident_bytes(prefetch->probe, fd, NULL, extent->offset, extent->length);
        if (resident < 0)
            return failure_set(failure, EXIT_FAILED, "residency", "%s fails at a prefetch: %s", probe_name(prefetch->probe),
                               strerror((int)-resident));
        *bytes += (uint64_t)resident;
    }
    return true;
}

static bool advise(struct prefetch *prefetch, const struct plan_extent *extent, struct failure *failure)
{
    int fd = fds_get(&prefetch->reader.fds, extent->file, failure);
    if (fd < 0)
        return false;
    for (uint64_t done = 0; done < extent->length;) {
        uint64_t left = extent->length - done;
        uint64_t length = left < prefetch->chunk ? left : prefetch->chunk;
        int error = posix_fadvise(fd, (off_t)(extent->offset + done), (off_t)length, POSIX_FADV_WILLNEED);
        if (error)
            return failure_set(failure, EXIT_FAILED, "fadvise", "%.800s: POSIX_FADV_WILLNEED of %" PRIu64
                               " bytes at offset %" PRIu64 " refused: %s", plan_name_file(prefetch->plan, extent->file, failure),
                               length, extent->offset + done, strerror(error));
        done += length;
    }
    return true;
}

// Into the scratch, and compared as the demand threads do: a worker that brings in wrong bytes measures nothing.
static bool read_ahead(struct prefetch *prefetch, const struct plan_expert *expert, const struct plan_extent *extent,
                       uint64_t position, struct failure *failure)
{
    uint64_t checked = 0;
    if (!reader_warm(&prefetch->reader, extent, failure))
        return false;
    prefetch->counts.read_bytes += extent->length;
    return prefetch->stamps == STAMPS_NONE ||
           stamps_check(prefetch->plan, expert, extent, prefetch->stamps, prefetch->reader.scratch.memory, position, &checked,
                        failure);
}

static bool prefetch_expert(struct prefetch *prefetch, const struct plan_expert *expert, struct failure *failure)
{
    const struct plan_extent *extent = &prefetch->plan->extents[expert->first_extent];
    uint64_t before, after;
    uint64_t position = 0;
    if (!count_resident(prefetch, expert, &before, failure))
        return false;
    for (uint32_t i = 0; i < expert->n_extents; i++, extent++) {
        if (prefetch->kind == PREFETCH_FADVISE ? !advise(prefetch, extent, failure)
                                               : !read_ahead(prefetch, expert, extent, position, failure))
            return false;
        position += extent->length;
    }
    if (!count_resident(prefetch, expert, &after, failure))
        return false;
    prefetch->counts.experts++;
    prefetch->counts.asked_bytes += expert->bytes;
    prefetch->counts.resident_before_bytes += before;
    prefetch->counts.became_resident_bytes += after > before ? after - before : 0; // others may have been at work meanwhile
    return true;
}

static bool ordered_to_stop(struct prefetch *prefetch)
{
    return atomic_load_explicit(&prefetch->slot, memory_order_relaxed) >= SLOT_HALT;
}

// Whether the list was done to its end.
static bool process(struct prefetch *prefetch, uint64_t list)
{
    const struct lists *advice = prefetch->advice;
    for (uint64_t i = advice->offsets[list]; i < advice->offsets[list + 1]; i++) {
        if (ordered_to_stop(prefetch) || atomic_load(&prefetch->failed))
            return false;
        const struct plan_expert *expert = &prefetch->plan->experts[advice->ids[i]];
        if (!prefetch_expert(prefetch, expert, &prefetch->failure)) {
            failure_expert(&prefetch->failure, expert->layer, expert->expert);
            atomic_store(&prefetch->failed, true);
            atomic_store(&stop_requested, true);
            return false;
        }
    }
    return true;
}

static void *thread_main(void *argument)
{
    struct prefetch *prefetch = argument;
    region_touch(&prefetch->reader.scratch);
    sem_post(&prefetch->halted);
    for (;;) {
        unsigned value = take(prefetch);
        if (value == SLOT_QUIT)
            return NULL;
        if (value == SLOT_HALT)
            sem_post(&prefetch->halted);
        else if (process(prefetch, value - 1))
            prefetch->counts.completed++;
        else
            prefetch->counts.pending++;
    }
}

static bool mark_triggers(struct prefetch *prefetch, struct failure *failure)
{
    const struct lists *advice = prefetch->advice;
    uint64_t words = advice->header.n_accesses / 64 + 1;
    prefetch->triggers = calloc(words, sizeof *prefetch->triggers);
    if (!prefetch->triggers)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for the triggers of %" PRIu64 " accesses",
                           advice->header.n_accesses);
    for (uint64_t i = 0; i < advice->header.n_lists; i++)
        prefetch->triggers[advice->triggers[i] / 64] |= 1ull << (advice->triggers[i] % 64);
    return true;
}

static void wait_halted(struct prefetch *prefetch)
{
    while (sem_wait(&prefetch->halted) != 0)
        ; // a signal
}

bool prefetch_start(struct prefetch *prefetch, const struct prefetch_order *order, struct failure *failure)
{
    const struct options *options = order->options;
    prefetch->plan = order->plan;
    prefetch->advice = order->advice;
    prefetch->kind = options->prefetch;
    prefetch->chunk = options->prefetch_chunk;
    prefetch->stamps = order->stamps;
    prefetch->probe = order->probe;
    // Whatever the demand's way, the worker brings bytes into the page cache; its own read-ahead goes as the demand's.
    enum mode mode = options->mode == MODE_FADV_RANDOM ? MODE_FADV_RANDOM : MODE_PAGE_CACHE;
    if (!mark_triggers(prefetch, failure) ||
        !reader_open(&prefetch->reader, mode, 0, order->pool, NULL, order->open_files, failure) ||
        (prefetch->kind == PREFETCH_BLOCKING && !reader_map_scratch(&prefetch->reader, failure)))
        return false;
    sem_init(&prefetch->halted, 0, 0);
    if (!thread_start(&prefetch->thread, "moetier-ahead", thread_main, prefetch, failure))
        return false;
    prefetch->running = true;
    wait_halted(prefetch); // its memory is touched
    return true;
}

void prefetch_begin_pass(struct prefetch *prefetch)
{
    atomic_store(&prefetch->submitted, 0);
    atomic_store(&prefetch->overwritten, 0);
    prefetch->counts = (struct prefetch_counts){0};
}

void prefetch_halt(struct prefetch *prefetch)
{
    bool in_slot = put(prefetch, SLOT_HALT) != SLOT_EMPTY;
    wait_halted(prefetch);
    prefetch->counts.pending += in_slot;
}

const struct failure *prefetch_failure(const struct prefetch *prefetch)
{
    return atomic_load(&prefetch->failed) ? &prefetch->failure : NULL;
}

void prefetch_end(struct prefetch *prefetch)
{
    if (prefetch->running) {
        put(prefetch, SLOT_QUIT);
        pthread_join(prefetch->thread, NULL);
    }
    reader_close(&prefetch->reader);
    free(prefetch->triggers);
    prefetch->triggers = NULL;
}
