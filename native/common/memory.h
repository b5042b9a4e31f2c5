// What the machine has, and memory locked or not at all.
#ifndef MOETIER_MEMORY_H
#define MOETIER_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"

// MemAvailable; UINT64_MAX where it cannot be read.
uint64_t mem_available_bytes(void);

// Locks mapped memory, which faults every page in. A refusal is final: memory that may leave is not what was asked for. It names
// `asked`, the bytes of the whole of which this may be a piece.
bool lock_memory(const void *memory, uint64_t bytes, uint64_t asked, struct failure *failure);

#endif
