/* Belady's MIN of a demand-filled cache: what goes is the object whose next use is farthest. */
#ifndef MOETIER_SIM_MIN_H
#define MOETIER_SIM_MIN_H

#include "demand.h"

/* Count the hits at every budget.
 *
 * Of several objects without a next use the lowest goes first; of several that one event uses next, the one that the
 * event names last. With objects of one size no demand-filled cache hits more often. With several sizes this is the
 * same rule, the farthest going until the rest fits, and no bound.
 *
 * Returns 0, ENOMEM, ECANCELED when stopped, or EOVERFLOW when the bytes of hits pass 2^64 - 1.
 */
int min_hits(const struct demand *demand);

#endif
