#include "replay/own.h"

#include <string.h>

#include "common/clock.h"

static enum own_kind own_kind(enum mode mode)
{
    return mode == MODE_PINNED ? OWN_ARENA : mode_owns(mode) ? OWN_CACHE : OWN_NONE;
}

static bool open_arena(struct own *own, const struct lists *table, uint64_t bytes, const struct pool *pool, enum stamps stamps,
                       struct failure *failure)
{
    if (!arena_open(&own->arena, own->plan, table->ids, table->header.n_ids, bytes, failure))
        return false;
    double start = clock_seconds();
    bool good = arena_fill(&own->arena, table->ids, pool, stamps, &own->preload_bytes, failure);
    own->preload_seconds = clock_seconds() - start;
    return good;
}

bool own_open(struct own *own, const struct options *options, const struct lists *table, const struct pool *pool,
              enum stamps stamps, struct failure *failure)
{
    *own = (struct own){.kind = own_kind(options->mode), .plan = pool->plan};
    if (own->kind == OWN_ARENA)
        return open_arena(own, table, options->own_bytes, pool, stamps, failure);
    return own->kind == OWN_NONE || cache_open(&own->cache, options->own_bytes, largest_expert(own->plan, MODE_DIRECT),
                                               own->plan->header.n_experts, options->threads, options->mode == MODE_USER_LFU,
                                               failure);
}

uint64_t own_mapped_bytes(const struct own *own)
{
    return own->arena.region.bytes + own->cache.region.bytes;
}

uint64_t own_locked_bytes(const struct own *own)
{
    return own->arena.region.bytes;
}

struct place own_take(struct own *own, uint32_t expert)
{
    if (own->kind == OWN_ARENA) {
        char *memory = arena_expert(&own->arena, expert);
        return (struct place){memory ? PLACE_HELD : PLACE_ABSENT, memory, 0};
    }
    bool load;
    uint32_t slab = cache_take(&own->cache, expert, &load);
    return (struct place){load ? PLACE_TO_LOAD : PLACE_HELD, cache_slab(&own->cache, slab), slab};
}

bool own_load(struct place place, const struct plan_expert *expert, struct reader *reader, struct failure *failure)
{
    return reader_deliver(reader, expert, STAMPS_NONE, place.memory, NULL, failure);
}

void own_copy(const struct own *own, struct place place, const struct plan_expert *expert, char *to)
{
    if (own->kind == OWN_ARENA)
        memcpy(to, place.memory, expert->bytes);
    else // a slab holds the windows of O_DIRECT reads
        gather_expert(own->plan, expert, MODE_DIRECT, place.memory, to);
}

void own_give_back(struct own *own, struct place place, bool good)
{
    if (own->kind == OWN_CACHE)
        cache_give_back(&own->cache, place.slab, good);
}

void own_close(struct own *own)
{
    arena_close(&own->arena);
    if (own->kind == OWN_CACHE)
        cache_close(&own->cache);
    *own = (struct own){0};
}
