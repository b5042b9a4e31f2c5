#include "replay/cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const uint64_t MOST_SLABS = 1u << 30;

static bool no_memory(struct failure *failure, uint64_t n_slabs)
{
    return failure_set(failure, EXIT_FAILED, "memory", "no memory for the table of %" PRIu64 " slabs", n_slabs);
}

// A thread pins one slab and needs another that may go.
static bool check_count(uint64_t n_slabs, uint64_t bytes, uint64_t slab_bytes, uint32_t threads, struct failure *failure)
{
    if (n_slabs <= threads)
        return failure_set(failure, EXIT_USAGE, "usage", "--own-bytes %" PRIu64 ": %" PRIu64 " slabs of %" PRIu64 " bytes (the "
                           "largest expert's pages), expected one more than the %" PRIu32 " threads: %" PRIu64 " bytes or more",
                           bytes, n_slabs, slab_bytes, threads, (threads + UINT64_C(1)) * slab_bytes);
    return n_slabs <= MOST_SLABS || no_memory(failure, n_slabs);
}

bool cache_open(struct cache *cache, uint64_t bytes, uint64_t slab_bytes, uint64_t n_experts, uint32_t threads, bool by_uses,
                struct failure *failure)
{
    char what[64];
    uint64_t n_slabs = bytes / slab_bytes;
    if (!check_count(n_slabs, bytes, slab_bytes, threads, failure))
        return false;
    snprintf(what, sizeof what, "%" PRIu64 " slabs of %" PRIu64 " bytes", n_slabs, slab_bytes);
    *cache = (struct cache){.slab_bytes = slab_bytes, .n_slabs = (uint32_t)n_slabs, .n_empty = (uint32_t)n_slabs};
    if (!region_map(&cache->region, n_slabs * slab_bytes, what, failure))
        return false;
    cache->slabs = calloc(n_slabs, sizeof *cache->slabs);
    cache->empty = calloc(n_slabs, sizeof *cache->empty);
    cache->slab_of = calloc(n_experts, sizeof *cache->slab_of);
    if (!cache->slabs || !cache->empty || !cache->slab_of || !order_open(&cache->order, cache->n_slabs, by_uses))
        return no_memory(failure, n_slabs);
    for (uint32_t i = 0; i < cache->n_slabs; i++)
        cache->empty[i] = cache->n_slabs - 1 - i;
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
    cache->lock = (pthread_mutex_t)PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP; // held for so short that spinning beats sleeping
#else
    pthread_mutex_init(&cache->lock, NULL);
#endif
    pthread_cond_init(&cache->settled, NULL);
    cache->locks = true;
    region_touch(&cache->region);
    return true;
}

// An empty slab, or the first in the order that nobody uses: a step beyond the first for each that is pinned at most.
static uint32_t make_room(struct cache *cache)
{
    if (cache->n_empty > 0)
        return cache->empty[--cache->n_empty];
    int64_t slab = order_first(&cache->order);
    while (slab != NO_SLAB && cache->slabs[slab].pins > 0)
        slab = order_next(&cache->order, (uint32_t)slab);
    if (slab == NO_SLAB) // more threads than the cache was opened for
        abort();
    order_remove(&cache->order, (uint32_t)slab);
    cache->slab_of[cache->slabs[slab].expert] = 0;
    return (uint32_t)slab;
}

static void unpin(struct cache *cache, uint32_t slab)
{
    struct slab *entry = &cache->slabs[slab];
    if (--entry->pins == 0 && entry->state == SLAB_FAILED) {
        entry->state = SLAB_EMPTY;
        cache->empty[cache->n_empty++] = slab;
    }
}

uint32_t cache_take(struct cache *cache, uint32_t expert, bool *load)
{
    pthread_mutex_lock(&cache->lock);
    uint32_t slab;
    *load = false;
    for (;;) {
        if (cache->slab_of[expert] == 0) {
            *load = true;
            slab = make_room(cache);
            cache->slabs[slab] = (struct slab){expert, 1, SLAB_LOADING};
            cache->slab_of[expert] = slab + 1;
            order_add(&cache->order, slab);
            break;
        }
        slab = cache->slab_of[expert] - 1;
        cache->slabs[slab].pins++;
        order_use(&cache->order, slab);
        while (cache->slabs[slab].state == SLAB_LOADING)
            pthread_cond_wait(&cache->settled, &cache->lock);
        if (cache->slabs[slab].state == SLAB_LOADED)
            break;
        unpin(cache, slab);
    }
    pthread_mutex_unlock(&cache->lock);
    return slab;
}

void cache_give_back(struct cache *cache, uint32_t slab, bool good)
{
    struct slab *entry = &cache->slabs[slab];
    pthread_mutex_lock(&cache->lock);
    if (entry->state == SLAB_LOADING) {
        entry->state = good ? SLAB_LOADED : SLAB_FAILED;
        if (!good) {
            order_remove(&cache->order, slab);
            cache->slab_of[entry->expert] = 0;
        }
        if (entry->pins > 1)
            pthread_cond_broadcast(&cache->settled);
    }
    unpin(cache, slab);
    pthread_mutex_unlock(&cache->lock);
}

void cache_close(struct cache *cache)
{
    if (cache->locks) {
        pthread_cond_destroy(&cache->settled);
        pthread_mutex_destroy(&cache->lock);
    }
    order_close(&cache->order);
    region_unmap(&cache->region);
    free(cache->slabs);
    free(cache->slab_of);
    free(cache->empty);
    *cache = (struct cache){0};
}
