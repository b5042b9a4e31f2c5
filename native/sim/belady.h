/* The fewest pages that any cache must read: Belady's MIN with bypass, from the best initial content. */
#ifndef MOETIER_SIM_BELADY_H
#define MOETIER_SIM_BELADY_H

#include <stddef.h>
#include <stdint.h>

/* Write to *missed_pages the least number of pages read over one run of the sequence by any cache of capacity_pages.
 *
 * An object may be held in part. The cache may hold at the start whatever serves it best, and may pass a page through
 * without keeping it.
 *
 * The caller has checked that every index is below n_objects and that the sizes add up to less than 2^63.
 * Returns 0, ENOMEM, or EOVERFLOW when the sum of misses passes 2^64 - 1.
 */
int belady_missed_pages(const uint32_t *sequence, size_t n, const uint64_t *size_pages, size_t n_objects,
                        uint64_t capacity_pages, uint64_t *missed_pages);

#endif
