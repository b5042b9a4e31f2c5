/* What the policies of a demand-filled cache are run over, and how their hits are counted. */
#ifndef MOETIER_SIM_DEMAND_H
#define MOETIER_SIM_DEMAND_H

#include <stddef.h>
#include <stdint.h>

/* Every miss is admitted, unless its object alone is larger than the capacity; then objects are evicted until the rest
 * fits, never one of the event that was just looked up. Where an event alone is larger than the capacity, exactly its
 * objects stay until the next event. The lookups of an event all see the content before it. Each segment has a cache of
 * its own, which starts empty.
 *
 * The caller has checked: keys are below n_objects; the borders of segments and events rise from 0 to n, and no event
 * crosses a segment or names an object twice; score_from lies in its segment; sizes add up to less than 2^63; the
 * longest segment and the objects are below DEMAND_MOST_POSITIONS together.
 */
struct demand {
    const uint32_t *key; /* the object of each access */
    size_t n;
    size_t n_objects;
    const uint64_t *segments; /* n_segments + 1 borders */
    size_t n_segments;
    const uint64_t *events; /* n_events + 1 borders; NULL: every access is an event of its own */
    size_t n_events;
    const uint64_t *size; /* per object; NULL: every object counts 1 */
    const uint64_t *budgets;
    size_t n_budgets;
    const uint64_t *score_from; /* per segment, its first access that counts */
    const volatile uint8_t *stop;
    uint8_t *hit;        /* [n_budgets][n], 1 where an access hits; NULL: not wanted */
    uint64_t *hits;      /* per budget, zero before */
    uint64_t *hit_bytes; /* likewise */
};

/* How many accesses go by between two looks at the stop flag. */
#define DEMAND_STRIDE 65536

/* Accesses of one segment and objects there may be together: positions and lists have 32-bit numbers. */
#define DEMAND_MOST_POSITIONS ((size_t)UINT32_MAX)

static inline int demand_stopped(const struct demand *demand)
{
    return demand->stop && *demand->stop;
}

/* One segment, with positions counted from its start. */
struct stretch {
    size_t start;
    const uint32_t *key;
    size_t n;
    size_t score_from;
    const uint64_t *events; /* this segment's first border, counted from the start of all; or NULL */
};

/* Return segment s; *event is the index of its first border, and is moved to the next segment's. */
static inline struct stretch demand_stretch(const struct demand *demand, size_t s, size_t *event)
{
    size_t start = demand->segments[s], end = demand->segments[s + 1];
    struct stretch part = {
        .start = start, .key = demand->key + start, .n = end - start, .score_from = demand->score_from[s] - start};
    if (demand->events) {
        part.events = demand->events + *event;
        while (demand->events[*event] < end)
            ++*event;
    }
    return part;
}

/* The end of the event that begins at `at`; *event is its number within the segment, and is moved to the next. */
static inline size_t stretch_event(const struct stretch *part, size_t at, size_t *event)
{
    return part->events ? part->events[++*event] - part->start : at + 1;
}

/* The accesses of the longest segment. */
size_t demand_longest_segment(const struct demand *demand);

/* The accesses of the longest event. */
size_t demand_longest_event(const struct demand *demand);

/* The one size of all objects, or 0 when they differ or have none. */
uint64_t demand_even_size(const struct demand *demand);

/* Add the scored hits of a segment, as marked per access, to those of a budget. Returns 0, or EOVERFLOW when their
 * bytes pass 2^64 - 1. */
int demand_score(const struct demand *demand, const struct stretch *part, size_t budget, const uint8_t *hit);

#endif
