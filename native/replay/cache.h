// A user-space cache of experts: slabs of one size, filled on demand. One lock over the bookkeeping; never held while bytes move.
#ifndef MOETIER_CACHE_H
#define MOETIER_CACHE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/cache_order.h"
#include "replay/region.h"

enum slab_state { SLAB_EMPTY, SLAB_LOADING, SLAB_LOADED, SLAB_FAILED };

struct slab {
    uint32_t expert;
    uint32_t pins; // threads that load it, wait for it or copy from it: it cannot go
    enum slab_state state;
};

struct cache {
    struct region region;
    uint64_t slab_bytes;
    uint32_t n_slabs;
    struct slab *slabs;
    uint32_t *slab_of; // per expert: its slab + 1, or 0
    uint32_t *empty;   // a stack of slabs that hold nothing
    uint32_t n_empty;
    struct order order;
    pthread_mutex_t lock;
    pthread_cond_t settled; // some slab that was waited for is loaded, or has failed
    bool locks;             // lock and settled are there
};

// Maps and touches as many slabs as fit into `bytes`; needs one more than there are threads.
bool cache_open(struct cache *cache, uint64_t bytes, uint64_t slab_bytes, uint64_t n_experts, uint32_t threads, bool by_uses,
                struct failure *failure);

// The slab of an expert, pinned. With *load the caller is to fill it; else it holds the expert (another thread's load has been
// waited for). Every call needs its cache_give_back.
uint32_t cache_take(struct cache *cache, uint32_t expert, bool *load);

static inline char *cache_slab(const struct cache *cache, uint32_t slab)
{
    return cache->region.memory + slab * cache->slab_bytes;
}

// Unpins it. `good` says of a slab that was to be filled whether it is; if not it is empty again and whoever waits tries himself.
void cache_give_back(struct cache *cache, uint32_t slab, bool good);

void cache_close(struct cache *cache);

#endif
