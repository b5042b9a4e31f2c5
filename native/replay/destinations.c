#include "replay/destinations.h"

#include <inttypes.h>
#include <stdio.h>

bool destinations_map(struct destinations *destinations, uint64_t stride, uint64_t count, struct failure *failure)
{
    char what[80];
    uint64_t bytes;
    if (__builtin_mul_overflow(stride, count, &bytes))
        bytes = UINT64_MAX;
    snprintf(what, sizeof what, "%" PRIu64 " destinations of %" PRIu64 " bytes", count, stride);
    *destinations = (struct destinations){.stride = stride, .count = count};
    return region_map(&destinations->region, bytes, what, failure);
}

void destinations_touch(const struct destinations *destinations, uint64_t first, uint64_t count)
{
    region_touch(&(struct region){destination(destinations, first), count * destinations->stride});
}

void destinations_unmap(struct destinations *destinations)
{
    region_unmap(&destinations->region);
}
