#include "demand.h"

#include <errno.h>

size_t demand_longest_segment(const struct demand *demand)
{
    size_t longest = 0;
    for (size_t s = 0; s < demand->n_segments; s++) {
        size_t n = demand->segments[s + 1] - demand->segments[s];
        longest = n > longest ? n : longest;
    }
    return longest;
}

size_t demand_longest_event(const struct demand *demand)
{
    size_t longest = 1;
    for (size_t e = 0; demand->events && e < demand->n_events; e++) {
        size_t n = demand->events[e + 1] - demand->events[e];
        longest = n > longest ? n : longest;
    }
    return longest;
}

uint64_t demand_even_size(const struct demand *demand)
{
    if (!demand->size)
        return 1;
    for (size_t object = 1; object < demand->n_objects; object++)
        if (demand->size[object] != demand->size[0])
            return 0;
    return demand->n_objects ? demand->size[0] : 0;
}

int demand_score(const struct demand *demand, const struct stretch *part, size_t budget, const uint8_t *hit)
{
    uint64_t hits = 0, bytes = demand->hit_bytes[budget];
    for (size_t i = part->score_from; i < part->n; i++)
        hits += hit[i];
    demand->hits[budget] += hits;
    if (!demand->size) {
        demand->hit_bytes[budget] += hits;
        return 0;
    }
    for (size_t i = part->score_from; i < part->n; i++)
        if (hit[i] && __builtin_add_overflow(bytes, demand->size[part->key[i]], &bytes))
            return EOVERFLOW;
    demand->hit_bytes[budget] = bytes;
    return 0;
}
