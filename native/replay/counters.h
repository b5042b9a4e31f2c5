// The two witnesses of every iteration: sectors that the devices read, and bytes that this process had read for it.
#ifndef MOETIER_COUNTERS_H
#define MOETIER_COUNTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/options.h"

struct count {
    bool known;
    uint64_t bytes;
};

// Files are kept open and re-read: a few microseconds an iteration.
struct counters {
    size_t n_devices;
    int *device_fds;
    int process_fd;
    struct count *before; // [n_devices + 1], the process last
    struct count *now;
};

// What the kernel says of this process, all threads together (getrusage).
struct usage {
    uint64_t major_faults;
    uint64_t minor_faults;
    double user_seconds;
    double system_seconds;
};

struct usage usage_now(void);

// Adds what happened from `before` to `after`.
void usage_add(struct usage *sum, const struct usage *before, const struct usage *after);

bool counters_open(struct counters *counters, const struct names *device_stats, struct failure *failure);

// Reads all; what was read the last time becomes `before`.
void counters_read(struct counters *counters);

// What device i (or, for i == n_devices, the process) read between the last two readings.
struct count counters_delta(const struct counters *counters, size_t i);

void counters_close(struct counters *counters);

#endif
