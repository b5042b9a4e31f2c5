// Memory that must stay: locked, or the replay ends.
#ifndef MOETIER_LOCK_H
#define MOETIER_LOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"

// What locking `bytes` takes: whole pages.
uint64_t locked_bytes(uint64_t bytes);

// Faults all pages in and locks them. A refusal is EXIT_MLOCK; `what` ("the spine") begins its message.
bool lock_memory(const char *what, const void *memory, uint64_t bytes, struct failure *failure);

#endif
