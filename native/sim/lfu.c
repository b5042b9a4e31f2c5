#include "lfu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "positions.h"

/* Objects with one count of uses stand in a ring, the one used longest ago first. Each ring has a node of its own,
 * behind those of the objects. */
struct node {
    uint32_t before, after;
};

struct lfu {
    const struct demand *demand;
    struct stretch part;
    int perfect;
    uint64_t capacity; /* objects, when they are of one size; else bytes */
    uint64_t even_size;
    uint32_t most;           /* uses of the most used object */
    struct node *node;       /* n_objects, then the rings of 0 to most uses */
    uint32_t *uses;          /* per object; 0 when it is not held, but for perfect counts */
    uint8_t *held;           /* per object */
    struct positions counts; /* the rings that are not empty */
    uint8_t *hit;            /* per access of the segment */
};

static inline uint32_t ring_of(const struct lfu *lfu, uint32_t uses)
{
    return (uint32_t)lfu->demand->n_objects + uses;
}

static inline int is_empty(const struct lfu *lfu, uint32_t ring)
{
    return lfu->node[ring].after == ring;
}

static inline void unlink_node(struct node *node, uint32_t object)
{
    node[node[object].before].after = node[object].after;
    node[node[object].after].before = node[object].before;
}

static inline void link_node(struct node *node, uint32_t object, uint32_t ring)
{
    uint32_t last = node[ring].before;
    node[object] = (struct node){.before = last, .after = ring};
    node[last].after = object;
    node[ring].before = object;
}

/* Objects of one size, access by access, counts from admission: the least count is 1 after every miss, and rises by no
 * more than 1 at a hit, so it is always at hand. */
static int run_accesses(struct lfu *lfu)
{
    const uint32_t *key = lfu->part.key;
    uint32_t *uses = lfu->uses, least = 1;
    uint64_t n_held = 0;
    for (size_t i = 0; i < lfu->part.n; i++) {
        uint32_t object = key[i], used = uses[object];
        if (i % DEMAND_STRIDE == 0 && demand_stopped(lfu->demand))
            return ECANCELED;
        lfu->hit[i] = used != 0;
        if (used) {
            unlink_node(lfu->node, object);
            least += used == least && is_empty(lfu, ring_of(lfu, used));
        } else {
            if (n_held < lfu->capacity) {
                n_held++;
            } else {
                uint32_t out = lfu->node[ring_of(lfu, least)].after;
                unlink_node(lfu->node, out);
                uses[out] = 0;
            }
            least = 1;
        }
        uses[object] = used + 1;
        link_node(lfu->node, object, ring_of(lfu, used + 1));
    }
    return 0;
}

static uint64_t size_of(const struct lfu *lfu, uint32_t object)
{
    return lfu->even_size ? 1 : lfu->demand->size[object];
}

static void take_out(struct lfu *lfu, uint32_t object)
{
    unlink_node(lfu->node, object);
    if (is_empty(lfu, ring_of(lfu, lfu->uses[object])))
        positions_remove(&lfu->counts, lfu->uses[object]);
}

static void put_in(struct lfu *lfu, uint32_t object)
{
    if (is_empty(lfu, ring_of(lfu, lfu->uses[object])))
        positions_insert(&lfu->counts, lfu->uses[object]);
    link_node(lfu->node, object, ring_of(lfu, lfu->uses[object]));
    lfu->held[object] = 1;
}

/* The objects of the accesses [at, end) are looked up, then what is too much goes, then they are put in: they are the
 * last to come in, so nothing can evict them. n_in and *used are of the objects that the event does not touch. */
static void touch_event(struct lfu *lfu, uint64_t *n_in, uint64_t *used, size_t at, size_t end)
{
    const uint32_t *key = lfu->part.key;
    uint64_t fresh = 0;
    for (size_t i = at; i < end; i++) {
        uint64_t size = size_of(lfu, key[i]);
        lfu->hit[i] = lfu->held[key[i]];
        if (lfu->hit[i]) {
            take_out(lfu, key[i]);
            *used -= size;
            --*n_in;
        } else if (!lfu->perfect) {
            lfu->uses[key[i]] = 0;
        }
        lfu->uses[key[i]]++;
        fresh += size <= lfu->capacity ? size : 0;
    }
    while (*n_in && *used + fresh > lfu->capacity) {
        uint32_t out = lfu->node[ring_of(lfu, (uint32_t)positions_min(&lfu->counts))].after;
        take_out(lfu, out);
        lfu->held[out] = 0;
        *used -= size_of(lfu, out);
        --*n_in;
    }
    for (size_t i = at; i < end; i++)
        if (size_of(lfu, key[i]) <= lfu->capacity) {
            put_in(lfu, key[i]);
            ++*n_in;
        }
    *used += fresh;
}

static int run_events(struct lfu *lfu)
{
    size_t event = 0, look = 0;
    uint64_t n_in = 0, used = 0;
    memset(lfu->held, 0, lfu->demand->n_objects);
    positions_clear(&lfu->counts, (size_t)lfu->most + 1);
    for (size_t i = 0, end; i < lfu->part.n; i = end) {
        if (i >= look) {
            look = i + DEMAND_STRIDE;
            if (demand_stopped(lfu->demand))
                return ECANCELED;
        }
        end = stretch_event(&lfu->part, i, &event);
        touch_event(lfu, &n_in, &used, i, end);
    }
    return 0;
}

static int run_segment(struct lfu *lfu)
{
    if (lfu->even_size && !lfu->capacity) {
        memset(lfu->hit, 0, lfu->part.n);
        return 0;
    }
    memset(lfu->uses, 0, lfu->demand->n_objects * sizeof *lfu->uses);
    for (uint32_t uses = 0; uses <= lfu->most; uses++) {
        uint32_t ring = ring_of(lfu, uses);
        lfu->node[ring] = (struct node){.before = ring, .after = ring};
    }
    int simple = lfu->even_size && !lfu->part.events && !lfu->perfect;
    return simple ? run_accesses(lfu) : run_events(lfu);
}

/* All segments at one budget. */
static int run_budget(struct lfu *lfu, size_t budget, uint8_t *scratch)
{
    const struct demand *demand = lfu->demand;
    size_t event = 0;
    int failed = 0;
    lfu->capacity = lfu->even_size ? demand->budgets[budget] / lfu->even_size : demand->budgets[budget];
    for (size_t s = 0; s < demand->n_segments && !failed; s++) {
        lfu->part = demand_stretch(demand, s, &event);
        lfu->hit = demand->hit ? demand->hit + budget * demand->n + lfu->part.start : scratch;
        failed = run_segment(lfu);
        if (!failed)
            failed = demand_score(demand, &lfu->part, budget, lfu->hit);
    }
    return failed;
}

/* Find the uses of the most used object of any segment. Returns 0, or ECANCELED when stopped. */
static int find_most(struct lfu *lfu)
{
    const struct demand *demand = lfu->demand;
    for (size_t s = 0; s < demand->n_segments; s++) {
        memset(lfu->uses, 0, demand->n_objects * sizeof *lfu->uses);
        for (size_t i = demand->segments[s]; i < demand->segments[s + 1]; i++) {
            uint32_t uses = ++lfu->uses[demand->key[i]];
            lfu->most = uses > lfu->most ? uses : lfu->most;
            if (i % DEMAND_STRIDE == 0 && demand_stopped(demand))
                return ECANCELED;
        }
    }
    return 0;
}

static int run_budgets(struct lfu *lfu)
{
    const struct demand *demand = lfu->demand;
    uint8_t *scratch = malloc(demand->hit ? 1 : demand_longest_segment(demand) + 1);
    lfu->uses = malloc((demand->n_objects + 1) * sizeof *lfu->uses);
    lfu->held = malloc(demand->n_objects + 1);
    int failed = scratch && lfu->uses && lfu->held ? find_most(lfu) : ENOMEM;
    if (!failed) {
        lfu->node = malloc((demand->n_objects + lfu->most + 1) * sizeof *lfu->node);
        failed = positions_open(&lfu->counts, (size_t)lfu->most + 1) || !lfu->node ? ENOMEM : 0;
    }
    for (size_t budget = 0; budget < demand->n_budgets && !failed; budget++)
        failed = run_budget(lfu, budget, scratch);
    free(scratch);
    return failed;
}

int lfu_hits(const struct demand *demand, int perfect)
{
    struct lfu lfu = {.demand = demand, .perfect = perfect, .even_size = demand_even_size(demand)};
    int failed = run_budgets(&lfu);
    positions_close(&lfu.counts);
    free(lfu.node);
    free(lfu.held);
    free(lfu.uses);
    return failed;
}
