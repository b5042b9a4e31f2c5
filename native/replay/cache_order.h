// The order in which a cache's slabs go: the one with the fewest uses first, of several the one used longest ago. Uses are those
// since it came in. Least recently used is the same with one use for all. Every call costs the same however many slabs there are.
#ifndef MOETIER_CACHE_ORDER_H
#define MOETIER_CACHE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

enum { NO_SLAB = -1 };

// A place in a ring: a slab, or the head of the ring.
struct order_link {
    uint32_t before;
    uint32_t after;
    uint32_t bucket; // of a slab
};

// The slabs of one number of uses. The buckets form a ring in rising order; bucket 0 is its head and holds no slab.
struct order_bucket {
    uint64_t uses;
    uint32_t below;
    uint32_t above; // of a free bucket: the next free one
};

struct order {
    bool by_uses;
    uint32_t n_slabs;
    uint32_t free;               // a bucket, or 0
    struct order_link *links;    // the slabs, then the head of every bucket
    struct order_bucket *buckets; // [n_slabs + 2]: while a slab moves on, one more than there are slabs
};

// False where there is no memory for it. At most 2^30 slabs.
bool order_open(struct order *order, uint32_t n_slabs, bool by_uses);

// A slab comes in with its first use, is used once more, or goes.
void order_add(struct order *order, uint32_t slab);
void order_use(struct order *order, uint32_t slab);
void order_remove(struct order *order, uint32_t slab);

// The slab that goes first, and the one that goes after `slab`; NO_SLAB at the end.
int64_t order_first(const struct order *order);
int64_t order_next(const struct order *order, uint32_t slab);

void order_close(struct order *order);

#endif
