// In which sizes of folios the kernel holds the pool's resident pages. It reads ahead, ages and reclaims in folios, and their
// sizes change from kernel to kernel.
#ifndef MOETIER_FOLIOS_H
#define MOETIER_FOLIOS_H

#include <stdint.h>

#include "replay/pool.h"
#include "replay/residency.h"

enum { FOLIO_ORDERS = 16 };

struct folios {
    uint64_t bytes_by_order[FOLIO_ORDERS]; // resident, in folios of 2^order pages
    uint64_t unknown_bytes; // resident, of which the kernel does not say it
    uint64_t files; // of the plan
    uint64_t files_looked_at;
    uint64_t pool_bytes;
    uint64_t looked_at_bytes; // of the files, resident or not
    double cost_seconds;
    char note[256]; // why something is unknown; "" otherwise
};

// Looks at pieces of the pool, spread evenly and few enough to be done soon. Nothing is read in by it, and from Linux 6.3 on no
// page is made to look used: what it maps has MADV_RANDOM, which the kernel's aging passes over. Never fails: what is not told is
// unknown.
void folios_look(struct folios *folios, const struct pool *pool, enum probe probe);

#endif
