#include "replay/destinations.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "common/memory.h"

// Scattered pages halve the rate of a device that copies page by page (a virtual disk does), by the luck of one run: huge pages
// take that luck out.
static const uint64_t HUGE_BYTES = 2u << 20;

uint64_t largest_expert(const struct plan *plan, enum mode mode)
{
    uint64_t largest = 0;
    for (uint64_t i = 0; i < plan->header.n_experts; i++) {
        const struct plan_expert *expert = &plan->experts[i];
        uint64_t bytes = 0;
        for (uint32_t e = 0; e < expert->n_extents; e++)
            bytes += window_bytes(mode, &plan->extents[expert->first_extent + e]);
        if (bytes > largest)
            largest = bytes;
    }
    return (largest + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

bool destinations_map(struct destinations *destinations, uint64_t stride, uint64_t count, struct failure *failure)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(stride, count, &bytes))
        bytes = UINT64_MAX;
    uint64_t available = mem_available_bytes();
    if (bytes > available) // touching them would end in the OOM killer
        return failure_set(failure, EXIT_FAILED, "memory", "%" PRIu64 " destinations of %" PRIu64 " bytes: %" PRIu64
                           " bytes asked, %" PRIu64 " available", count, stride, bytes, available);
    uint64_t mapped = bytes + 2 * HUGE_BYTES;
    char *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return failure_set(failure, EXIT_FAILED, "memory", "%" PRIu64 " destinations of %" PRIu64 " bytes: %" PRIu64
                           " bytes asked: %s", count, stride, bytes, strerror(errno));
    char *memory = (char *)(((uintptr_t)base + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1));
    madvise(memory, (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES, MADV_HUGEPAGE); // only a hint
    *destinations = (struct destinations){memory, stride, count, base, mapped};
    return true;
}

void destinations_touch(const struct destinations *destinations, uint64_t first, uint64_t count)
{
    volatile char *page = destination(destinations, first);
    for (uint64_t bytes = count * destinations->stride; bytes > 0; bytes -= PAGE_BYTES, page += PAGE_BYTES)
        *page = 1;
}

void destinations_unmap(struct destinations *destinations)
{
    if (destinations->memory)
        munmap(destinations->base, destinations->mapped);
    *destinations = (struct destinations){0};
}
