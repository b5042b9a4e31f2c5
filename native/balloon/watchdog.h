// Lets go before the host comes to harm: when MemAvailable falls under half the reserve, or when the watchdog itself is not
// scheduled in time. Memory pressure as such is no sign: a healthy cell under a balloon thrashes by design.
#ifndef MOETIER_WATCHDOG_H
#define MOETIER_WATCHDOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "balloon/chunks.h"
#include "common/failure.h"

struct watchdog {
    struct chunks *chunks;
    uint64_t floor_bytes;
    double heartbeat_seconds;
    double looked; // when it last looked; lateness is measured from here, so that no stop or stall falls between two measures
    atomic_uint_least64_t late_heartbeats; // later than a whole heartbeat, but not by 2 s
};

// Starts the thread; it ends the process with EXIT_RELEASED when it lets go.
bool watchdog_start(struct watchdog *watchdog, struct failure *failure);

// Gives the memory back, says why, and ends the process with EXIT_RELEASED.
_Noreturn void let_go(struct chunks *chunks, const char *why, uint64_t mem_available_bytes);

#endif
