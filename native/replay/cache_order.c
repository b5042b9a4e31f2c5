#include "replay/cache_order.h"

#include <stdlib.h>

static uint32_t head_of(const struct order *order, uint32_t bucket)
{
    return order->n_slabs + bucket;
}

bool order_open(struct order *order, uint32_t n_slabs, bool by_uses)
{
    uint32_t n_buckets = n_slabs + 2;
    *order = (struct order){.by_uses = by_uses, .n_slabs = n_slabs, .free = 1};
    order->links = calloc((uint64_t)n_slabs + n_buckets, sizeof *order->links);
    order->buckets = calloc(n_buckets, sizeof *order->buckets);
    if (!order->links || !order->buckets)
        return false;
    for (uint32_t bucket = 0; bucket < n_buckets; bucket++) {
        uint32_t head = head_of(order, bucket);
        order->links[head] = (struct order_link){.before = head, .after = head, .bucket = bucket};
        order->buckets[bucket].above = bucket + 1 < n_buckets ? bucket + 1 : 0;
    }
    order->buckets[0] = (struct order_bucket){0};
    return true;
}

static bool is_empty(const struct order *order, uint32_t bucket)
{
    uint32_t head = head_of(order, bucket);
    return order->links[head].after == head;
}

// The bucket of so many uses right above `below`, made where it is not there.
static uint32_t bucket_above(struct order *order, uint32_t below, uint64_t uses)
{
    struct order_bucket *buckets = order->buckets;
    uint32_t above = buckets[below].above;
    if (above != 0 && buckets[above].uses == uses)
        return above;
    uint32_t made = order->free;
    order->free = buckets[made].above;
    buckets[made] = (struct order_bucket){uses, below, above};
    buckets[below].above = made;
    buckets[above].below = made;
    return made;
}

static void drop_if_empty(struct order *order, uint32_t bucket)
{
    struct order_bucket *buckets = order->buckets;
    if (!is_empty(order, bucket))
        return;
    buckets[buckets[bucket].below].above = buckets[bucket].above;
    buckets[buckets[bucket].above].below = buckets[bucket].below;
    buckets[bucket].above = order->free;
    order->free = bucket;
}

// Behind all others of the bucket: it was used last.
static void link_last(struct order *order, uint32_t slab, uint32_t bucket)
{
    uint32_t head = head_of(order, bucket);
    uint32_t last = order->links[head].before;
    order->links[slab] = (struct order_link){.before = last, .after = head, .bucket = bucket};
    order->links[last].after = slab;
    order->links[head].before = slab;
}

static void unlink_slab(struct order *order, uint32_t slab)
{
    const struct order_link *link = &order->links[slab];
    order->links[link->before].after = link->after;
    order->links[link->after].before = link->before;
}

void order_add(struct order *order, uint32_t slab)
{
    link_last(order, slab, bucket_above(order, 0, 1));
}

void order_use(struct order *order, uint32_t slab)
{
    uint32_t from = order->links[slab].bucket;
    uint32_t to = order->by_uses ? bucket_above(order, from, order->buckets[from].uses + 1) : from;
    unlink_slab(order, slab);
    link_last(order, slab, to);
    drop_if_empty(order, from);
}

void order_remove(struct order *order, uint32_t slab)
{
    unlink_slab(order, slab);
    drop_if_empty(order, order->links[slab].bucket);
}

// The slab at a place; from the head of a ring on, the first of the next bucket.
static int64_t slab_at(const struct order *order, uint32_t place)
{
    if (place < order->n_slabs)
        return place;
    uint32_t above = order->buckets[order->links[place].bucket].above;
    return above == 0 ? NO_SLAB : (int64_t)order->links[head_of(order, above)].after;
}

int64_t order_first(const struct order *order)
{
    return slab_at(order, head_of(order, 0));
}

int64_t order_next(const struct order *order, uint32_t slab)
{
    return slab_at(order, order->links[slab].after);
}

void order_close(struct order *order)
{
    free(order->links);
    free(order->buckets);
    *order = (struct order){0};
}
