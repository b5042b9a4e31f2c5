#include "belady.h"

#include <errno.h>
#include <stdlib.h>

/* A set of positions with insert, remove and maximum: a tree of 64-way bit words, each level marking the words of the
 * level below that are not empty. Every held object stands at the position of its next use; positions are unique. */
#define MAX_LEVELS 11

struct positions {
    int n_levels;
    uint64_t *level[MAX_LEVELS];
};

static int positions_open(struct positions *set, size_t n)
{
    *set = (struct positions){0};
    do {
        n = n / 64 + 1;
        set->level[set->n_levels] = calloc(n, sizeof(uint64_t));
        if (!set->level[set->n_levels++])
            return ENOMEM;
    } while (n > 1);
    return 0;
}

static void positions_close(struct positions *set)
{
    for (int k = 0; k < set->n_levels; k++)
        free(set->level[k]);
}

static void positions_insert(struct positions *set, size_t at)
{
    for (int k = 0; k < set->n_levels; k++, at /= 64)
        set->level[k][at / 64] |= UINT64_C(1) << (at % 64);
}

static void positions_remove(struct positions *set, size_t at)
{
    for (int k = 0; k < set->n_levels; k++, at /= 64) {
        set->level[k][at / 64] &= ~(UINT64_C(1) << (at % 64));
        if (set->level[k][at / 64])
            return;
    }
}

/* The set is not empty. */
static size_t positions_max(const struct positions *set)
{
    size_t at = 0;
    for (int k = set->n_levels; k-- > 0;)
        at = at * 64 + (size_t)(63 - __builtin_clzll(set->level[k][at]));
    return at;
}

struct cache {
    const uint32_t *sequence;
    const uint64_t *size_pages;
    uint64_t capacity_pages;
    uint64_t used_pages;
    uint64_t *held_pages; /* per object */
    size_t *next_use;     /* per access: the position of the object's next access, or n */
    struct positions uses;
};

/* Fill next_use; afterwards first[object] is the position of its first access, or n. */
static void find_next_uses(struct cache *cache, size_t n, size_t n_objects, size_t *first)
{
    for (size_t object = 0; object < n_objects; object++)
        first[object] = n;
    for (size_t i = n; i-- > 0;) {
        cache->next_use[i] = first[cache->sequence[i]];
        first[cache->sequence[i]] = i;
    }
}

/* The best initial content: the objects that are used first, as many pages as fit. */
static void fill(struct cache *cache, size_t n, const size_t *first)
{
    for (size_t i = 0; i < n && cache->used_pages < cache->capacity_pages; i++) {
        size_t object = cache->sequence[i];
        uint64_t room = cache->capacity_pages - cache->used_pages;
        if (first[object] != i || !cache->size_pages[object])
            continue;
        cache->held_pages[object] = cache->size_pages[object] < room ? cache->size_pages[object] : room;
        cache->used_pages += cache->held_pages[object];
        positions_insert(&cache->uses, i);
    }
}

/* Give up the pages whose next use is farthest until the rest fits; the object just read is one of the candidates. */
static void evict(struct cache *cache)
{
    while (cache->used_pages > cache->capacity_pages) {
        size_t farthest = positions_max(&cache->uses);
        uint64_t *held = &cache->held_pages[cache->sequence[farthest]];
        uint64_t over = cache->used_pages - cache->capacity_pages;
        uint64_t given = *held < over ? *held : over;
        *held -= given;
        cache->used_pages -= given;
        if (!*held)
            positions_remove(&cache->uses, farthest);
    }
}

static int run(struct cache *cache, size_t n, uint64_t *missed_pages)
{
    uint64_t missed = 0;
    for (size_t i = 0; i < n; i++) {
        size_t object = cache->sequence[i];
        uint64_t size = cache->size_pages[object];
        if (!size)
            continue;
        if (__builtin_add_overflow(missed, size - cache->held_pages[object], &missed))
            return EOVERFLOW;
        if (cache->held_pages[object])
            positions_remove(&cache->uses, i);
        cache->used_pages -= cache->held_pages[object];
        cache->held_pages[object] = 0;
        if (cache->next_use[i] == n)
            continue; /* never used again: its room is free */
        cache->held_pages[object] = size;
        cache->used_pages += size;
        positions_insert(&cache->uses, cache->next_use[i]);
        evict(cache);
    }
    *missed_pages = missed;
    return 0;
}

int belady_missed_pages(const uint32_t *sequence, size_t n, const uint64_t *size_pages, size_t n_objects,
                        uint64_t capacity_pages, uint64_t *missed_pages)
{
    struct cache cache = {.sequence = sequence, .size_pages = size_pages, .capacity_pages = capacity_pages};
    size_t *first = malloc((n_objects + 1) * sizeof *first);
    cache.held_pages = calloc(n_objects + 1, sizeof *cache.held_pages);
    cache.next_use = malloc((n + 1) * sizeof *cache.next_use);
    int failed = positions_open(&cache.uses, n);
    if (!first || !cache.held_pages || !cache.next_use)
        failed = ENOMEM;
    if (!failed) {
        find_next_uses(&cache, n, n_objects, first);
        fill(&cache, n, first);
        failed = run(&cache, n, missed_pages);
    }
    positions_close(&cache.uses);
    free(cache.next_use);
    free(cache.held_pages);
    free(first);
    return failed;
}
