#include "content.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "positions.h"

/* Positions are those of two runs, this one and the next. What is held of an object stands at its next use; positions
 * are unique, so they name their object. */
struct cache {
    const uint32_t *sequence;
    size_t n;
    const uint64_t *size;
    uint64_t capacity;
    uint64_t used;
    uint64_t *held;   /* per object */
    size_t *next_use; /* per access: the position of the object's next access, at n or above in the next run */
    size_t *first;    /* per object: its first access of a run */
    struct positions uses;
};

static size_t object_at(const struct cache *cache, size_t position)
{
    return cache->sequence[position < cache->n ? position : position - cache->n];
}

static void find_next_uses(struct cache *cache, size_t n_objects)
{
    for (size_t i = cache->n; i-- > 0;)
        cache->first[cache->sequence[i]] = i;
    for (size_t object = 0; object < n_objects; object++)
        cache->first[object] += cache->n; /* of the next run: what follows an object's last access */
    for (size_t i = cache->n; i-- > 0;) {
        size_t *next = &cache->first[cache->sequence[i]];
        cache->next_use[i] = *next;
        *next = i;
    }
}

/* The set is not empty. */
static size_t farthest_use(const struct positions *set)
{
    size_t at = 0;
    for (int k = set->n_levels; k-- > 0;)
        at = at * 64 + (size_t)(63 - __builtin_clzll(set->level[k][at]));
    return at;
}

/* Give up the units whose next use is farthest until the rest fits; those just read are among the candidates. */
static void evict(struct cache *cache)
{
    while (cache->used > cache->capacity) {
        size_t farthest = farthest_use(&cache->uses);
        uint64_t *held = &cache->held[object_at(cache, farthest)];
        uint64_t over = cache->used - cache->capacity;
        uint64_t given = *held < over ? *held : over;
        *held -= given;
        cache->used -= given;
        if (!*held)
            positions_remove(&cache->uses, farthest);
    }
}

static void run_pass(struct cache *cache)
{
    for (size_t i = 0; i < cache->n; i++) {
        size_t object = cache->sequence[i];
        if (!cache->size[object])
            continue;
        if (cache->held[object])
            positions_remove(&cache->uses, i);
        cache->used += cache->size[object] - cache->held[object];
        cache->held[object] = cache->size[object];
        positions_insert(&cache->uses, cache->next_use[i]);
        evict(cache);
    }
}

/* What was the next run is this one: everything that is held is next used at its first access. */
static void begin_pass(struct cache *cache, size_t n_objects)
{
    positions_clear(&cache->uses, 2 * cache->n);
    for (size_t object = 0; object < n_objects; object++)
        if (cache->held[object])
            positions_insert(&cache->uses, cache->first[object]);
}

int belady_content(const uint32_t *sequence, size_t n, const uint64_t *size, size_t n_objects, uint64_t capacity,
                   int passes, uint64_t *held)
{
    struct cache cache = {.sequence = sequence, .n = n, .size = size, .capacity = capacity, .held = held};
    memset(held, 0, n_objects * sizeof *held);
    cache.next_use = malloc((n + 1) * sizeof *cache.next_use);
    cache.first = calloc(n_objects + 1, sizeof *cache.first);
    int failed = positions_open(&cache.uses, 2 * n) || !cache.next_use || !cache.first ? ENOMEM : 0;
    if (!failed) {
        find_next_uses(&cache, n_objects);
        for (int pass = 0; pass < passes; pass++) {
            begin_pass(&cache, n_objects);
            run_pass(&cache);
        }
    }
    positions_close(&cache.uses);
    free(cache.first);
    free(cache.next_use);
    return failed;
}
