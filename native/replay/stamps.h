// Page stamps: the first 32 bytes of each page of an expert say whose they are, so that a wrong byte is seen.
#ifndef MOETIER_STAMPS_H
#define MOETIER_STAMPS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/plan.h"

enum stamps { STAMPS_FULL, STAMPS_ENDS, STAMPS_NONE };

// Compares the stamps inside `data`, which holds the extent of the expert that starts at its byte `position`, and adds the number
// of stamps compared to *checked. A failure names the file.
bool stamps_check(const struct plan *plan, const struct plan_expert *expert, const struct plan_extent *extent, enum stamps which,
                  const char *data, uint64_t position, uint64_t *checked, struct failure *failure);

// Compares those of the whole expert, which lies at `data`.
bool stamps_check_expert(const struct plan *plan, const struct plan_expert *expert, enum stamps which, const char *data,
                         uint64_t *checked, struct failure *failure);

#endif
