// What the user asked the probe for.
#ifndef MOETIER_PROBE_REQUEST_H
#define MOETIER_PROBE_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "common/arguments.h"
#include "common/failure.h"

struct request {
    const char *folder; // where the file is made; NULL: memory alone is measured
    uint64_t bytes;     // of each of the two buffers, and of the file
    uint64_t block;     // bytes of one copy or read
    uint32_t threads;
    uint32_t repeats;
    uint64_t llc_bytes; // the last-level cache, 0 where the kernel does not say
    struct names device_stats;
    bool help;
    bool version;
};

bool request_parse(struct request *request, int argc, char **argv, struct failure *failure);

void request_help(void);

void request_free(struct request *request);

#endif
