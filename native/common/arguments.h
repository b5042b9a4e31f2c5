// The command line's arguments: counts and lists of names, and what is refused.
#ifndef MOETIER_ARGUMENTS_H
#define MOETIER_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/failure.h"

struct names {
    const char **items;
    size_t count;
};

// The items belong to the caller; the list is freed with free(names->items).
bool names_add(struct names *names, const char *name, struct failure *failure);

bool names_hold(const struct names *names, const char *name);

// Fills the failure with what was seen and what was expected of --OPTION, and returns false.
bool argument_refused(struct failure *failure, const char *option, const char *seen, const char *expected);

// A whole number from `least` to `most`.
bool parse_count(const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *count,
                 struct failure *failure);

#endif
