// Why something cannot go on: filled where it is seen, reported once by main.
#ifndef MOETIER_FAILURE_H
#define MOETIER_FAILURE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

enum exit_code {
    EXIT_DONE = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_MLOCK = 3,
    EXIT_RELEASED = 4,
    EXIT_UNSUPPORTED = 77,
};

struct failure {
    enum exit_code exit;
    const char *code;   // a word for programs: "open", "short_read", ...
    char message[1536]; // one sentence for people: what was seen, what was expected
    bool has_expert;    // layer and expert are known
    uint32_t layer;
    uint32_t expert;
    char path[PATH_MAX]; // "" where no file is involved
};

// Fills the failure and returns false, so that a function can end with `return failure_set(...)`.
bool failure_set(struct failure *failure, enum exit_code exit, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// Names the file (its path may be cut to fit).
void failure_path(struct failure *failure, const char *path);

// Names the expert, in the fields and at the front of the message.
void failure_expert(struct failure *failure, uint32_t layer, uint32_t expert);

// Writes the error event on stdout and the message on stderr.
void failure_report(const struct failure *failure, const char *program);

#endif
