// What the machine has, and memory locked or not at all.
#ifndef MOETIER_MEMORY_H
#define MOETIER_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"

// MemAvailable; UINT64_MAX where it cannot be read.
uint64_t mem_available_bytes(void);

// Locks a mapping into memory, which faults every page in. A refusal is final: memory that may leave is not what was asked for.
bool lock_memory(const void *memory, uint64_t bytes, struct failure *failure);

#endif
