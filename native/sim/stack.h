/* LRU for every capacity in one pass: the stack distance of each access (Mattson et al. 1970), or how often each comes.
 *
 * A distance counts the distinct objects touched since, and including, the previous touch of the same object: the
 * access hits at a capacity iff its distance is at most that. With byte sizes the distance is the sum of their sizes; a
 * cache then holds the most recent objects that fit together, and an object larger than the cache flushes it.
 *
 * With events, the accesses of an event are looked up against the state at its start, then touched in order; what does
 * not fit goes after the event, but never what the event touched. So the objects of the segment's previous event are
 * held at every capacity, and their distance is 0. All others stay where the order of touches puts them.
 */
#ifndef MOETIER_SIM_STACK_H
#define MOETIER_SIM_STACK_H

#include <stddef.h>
#include <stdint.h>

#define STACK_NEVER UINT32_MAX
/* Objects of one simulation: three slots per object must have 32-bit numbers. */
#define STACK_MOST_OBJECTS (UINT32_C(1) << 30)

/* What is simulated. The caller has checked that keys are below n_objects, that segments and events ascend from 0 to
 * the number of accesses, and that every segment begins with an event. */
struct stack_job {
    const uint32_t *key;
    size_t n_objects;
    const uint64_t *segments; /* n_segments + 1: independent caches, each empty at first */
    size_t n_segments;
    const uint64_t *events; /* n_events + 1, or NULL: access by access */
    size_t n_events;
    const volatile uint8_t *stop; /* checked every few thousand accesses; or NULL */
};

/* Write the distance of each access in objects, STACK_NEVER for a first touch. Returns 0, ENOMEM or ECANCELED. */
int stack_units(const struct stack_job *job, uint32_t *out);

/* Write the distance of each access in bytes, UINT64_MAX for a first touch. The sizes of the n_objects add up to less
 * than 2^63. Returns as stack_units. */
int stack_bytes(const struct stack_job *job, const uint64_t *size, uint64_t *out);

/* Count the accesses from score_from[segment] on by their distance in objects: hist[n_objects + 2], of which the last
 * is that of first touches. Takes no memory per access. Returns as stack_units. */
int stack_histogram(const struct stack_job *job, const uint64_t *score_from, uint64_t *hist);

#endif
