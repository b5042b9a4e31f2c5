/* Exact LRU stack distances, in bytes (Mattson et al. 1970), for every access of a sequence. */
#ifndef MOETIER_SIM_LRU_H
#define MOETIER_SIM_LRU_H

#include <stddef.h>
#include <stdint.h>

/* The distance of an access whose object was never touched before: no capacity makes it a hit. */
#define LRU_FIRST_TOUCH UINT64_MAX

/* Write to out[i] the bytes of the distinct objects touched since, and including, the previous touch of sequence[i].
 *
 * With warm, the sequence is taken to have run once already. Only the order of last touches survives that run, so it
 * costs one scan, not a second simulation.
 *
 * The caller has checked that every index is below n_objects and that the sizes add up to less than 2^64 - 1.
 * Returns 0 or ENOMEM.
 */
int lru_distances(const uint32_t *sequence, size_t n, const uint64_t *size_bytes, size_t n_objects, int warm,
                  uint64_t *out);

#endif
