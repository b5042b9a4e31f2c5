/* LFU of a demand-filled cache: what goes is the object with the fewest uses, of several the one used longest ago. */
#ifndef MOETIER_SIM_LFU_H
#define MOETIER_SIM_LFU_H

#include "demand.h"

/* Count the hits at every budget. Uses are those since the object came into the cache or, when perfect, those of all
 * accesses of the segment so far.
 *
 * Returns 0, ENOMEM, ECANCELED when stopped, or EOVERFLOW when the bytes of hits pass 2^64 - 1.
 */
int lfu_hits(const struct demand *demand, int perfect);

#endif
