#include "common/arguments.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/number.h"

bool names_add(struct names *names, const char *name, struct failure *failure)
{
    const char **items = realloc(names->items, (names->count + 1) * sizeof *items);
    if (!items)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for the options");
    names->items = items;
    names->items[names->count++] = name;
    return true;
}

bool names_hold(const struct names *names, const char *name)
{
    for (size_t i = 0; i < names->count; i++)
        if (strcmp(names->items[i], name) == 0)
            return true;
    return false;
}

bool argument_refused(struct failure *failure, const char *option, const char *seen, const char *expected)
{
    return failure_set(failure, EXIT_USAGE, "usage", "--%s %.200s: expected %s", option, seen, expected);
}

bool parse_count(const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *count,
                 struct failure *failure)
{
    char expected[80];
    if (parse_u64(text, count) && *count >= least && *count <= most)
        return true;
    snprintf(expected, sizeof expected, "a whole number from %" PRIu64 " to %" PRIu64, least, most);
    return argument_refused(failure, option, text, expected);
}
