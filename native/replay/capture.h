// Raw copies of the kernel's files at a pass's entry and exit, and between its iterations: parsed elsewhere, so that this program runs where nothing else
// does.
#ifndef MOETIER_CAPTURE_H
#define MOETIER_CAPTURE_H

#include "common/json.h"
#include "common/procfile.h"
#include "replay/options.h"

struct capture {
    const struct names *files;
    const struct names *inflights; // waited for until they read 0 0
    struct buffer text;            // kept from capture to capture
    struct json line;
};

// Emits the capture event of a moment ("entry", "exit") of a pass.
void capture_take(struct capture *capture, const char *pass, const char *moment);

// Emits the sample event of these files before an iteration of a pass, by the plan's count.
void capture_sample(struct capture *capture, const struct names *files, const char *pass, uint64_t iteration);

void capture_free(struct capture *capture);

#endif
