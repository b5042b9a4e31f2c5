// Whether a residency probe tells the truth about a file. cachestat may be absent or refused; mincore says "resident" of every
// page of a file that one may not write (a guard against spying on others' reads).
#ifndef MOETIER_SELFTEST_H
#define MOETIER_SELFTEST_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/residency.h"

enum truth {
    TRUTH_TOLD,       // it saw the file's pages go and come
    TRUTH_UNPROVABLE, // it answers, but the file's pages cannot be dropped to see
    TRUTH_REFUSED,    // it does not answer
};

struct verdict {
    enum truth truth;
    char note[160];
};

// Tests the probe on an open file of `size` bytes. A wholly cached file is dropped from the cache; one page is read.
struct verdict selftest(enum probe probe, int fd, uint64_t size);

#endif
