// Where the experts are copied to: many distinct page-aligned buffers. A single one would stay in the CPU's cache and flatter
// the copy; an unaligned one costs more than twice as much.
#ifndef MOETIER_DESTINATIONS_H
#define MOETIER_DESTINATIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/region.h"

struct destinations {
    struct region region;
    uint64_t stride; // bytes of each, a multiple of the page
    uint64_t count;
};

// `count` of them, of `stride` bytes each.
bool destinations_map(struct destinations *destinations, uint64_t stride, uint64_t count, struct failure *failure);

static inline char *destination(const struct destinations *destinations, uint64_t index)
{
    return destinations->region.memory + index * destinations->stride;
}

// Writes to every page of the buffers [first, first + count): faults must not fall into a measured pass.
void destinations_touch(const struct destinations *destinations, uint64_t first, uint64_t count);

void destinations_unmap(struct destinations *destinations);

#endif
