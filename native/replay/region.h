// Anonymous memory of a known size, huge pages where they fit: what it takes of DRAM is what was asked, rounded to a page.
// Scattered pages halve the rate of a device that copies page by page (a virtual disk does), by the luck of one run.
#ifndef MOETIER_REGION_H
#define MOETIER_REGION_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"

struct region {
    char *memory;
    uint64_t bytes; // a multiple of the kernel's page
};

// Refuses more than the machine has available: touching it would end in the OOM killer. `what` names it in that sentence.
bool region_map(struct region *region, uint64_t bytes, const char *what, struct failure *failure);

// Locks it and writes to every page, or only writes: faults must not fall into a measured pass. A request to stop ends either
// early, without failure: a hundred gigabytes take half a minute.
bool region_lock(const struct region *region, struct failure *failure);
void region_touch(const struct region *region);

void region_unmap(struct region *region);

#endif
