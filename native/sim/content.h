/* What Belady's MIN holds at the end of a sequence that is run again and again. */
#ifndef MOETIER_SIM_CONTENT_H
#define MOETIER_SIM_CONTENT_H

#include <stddef.h>
#include <stdint.h>

/* Write to held[object] the units that MIN holds of each object after `passes` runs of the sequence, from an empty
 * cache, when it is known that the sequence is run once more.
 *
 * Units are of one size: an object may be held in part, and a unit may be passed through without being kept. So the
 * rule is MIN itself, whatever the sizes of objects, and not a heuristic. Each object of the sequence has a next use at
 * every moment, in the next run at the latest: a run after that would change nothing.
 *
 * The caller has checked that passes is 1 or more, that every index is below n_objects and that the sizes add up to
 * less than 2^63. Returns 0 or ENOMEM.
 */
int belady_content(const uint32_t *sequence, size_t n, const uint64_t *size, size_t n_objects, uint64_t capacity,
                   int passes, uint64_t *held);

#endif
