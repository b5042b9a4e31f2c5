// Page stamps: the first 32 bytes of each page of an expert say whose they are, so that a wrong byte is seen.
#ifndef MOETIER_STAMPS_H
#define MOETIER_STAMPS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/options.h"
#include "replay/plan.h"

// Compares the stamps inside `data`, which holds the expert's bytes [position, position + length), and adds the number of
// stamps compared to *checked.
bool stamps_check(const struct plan *plan, const struct plan_expert *expert, enum stamps which, const char *data,
                  uint64_t position, uint64_t length, uint64_t *checked, struct failure *failure);

// Compares those of the whole expert, which lies at `data`, extent by extent: a failure names the file.
bool stamps_check_expert(const struct plan *plan, const struct plan_expert *expert, enum stamps which, const char *data,
                         uint64_t *checked, struct failure *failure);

#endif
