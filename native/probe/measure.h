// One measurement: every block once, from the source buffer or the file, to a destination of its own.
#ifndef MOETIER_PROBE_MEASURE_H
#define MOETIER_PROBE_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "common/json.h"
#include "probe/file.h"
#include "probe/request.h"
#include "replay/counters.h"
#include "replay/region.h"
#include "replay/threads.h"

enum what { WHAT_COPY, WHAT_DIRECT, WHAT_ADMITTED, WHAT_CACHED };
extern const char *const what_names[];

struct worker {
    struct bench *bench;
    uint64_t first; // blocks [first, end)
    uint64_t end;
    int fd;
    int error; // an errno value, 0 when all went well
};

struct bench {
    const struct request *request;
    enum what what; // of the measurement under way
    struct region source;
    struct region destinations;
    struct file file;
    struct counters counters;
    struct worker *workers;
    struct team team;
    struct json line;
    bool no_direct; // O_DIRECT was refused, and that has been said
};

// Maps and fills the buffers, makes the file and starts the threads.
bool bench_open(struct bench *bench, const struct request *request, struct failure *failure);

// Measures and reports one. The destinations are compared with the source afterwards: a byte that did not come is a failure.
bool bench_measure(struct bench *bench, enum what what, uint32_t round, struct failure *failure);

void bench_close(struct bench *bench);

#endif
