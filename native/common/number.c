#include "common/number.h"

#include <errno.h>
#include <stdlib.h>

bool parse_u64(const char *text, uint64_t *value)
{
    if (text[0] < '0' || text[0] > '9') // strtoull would take "-1" and " 1"
        return false;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno || *end)
        return false;
    *value = number;
    return true;
}

bool parse_seconds(const char *text, double *seconds)
{
    if ((text[0] < '0' || text[0] > '9') && text[0] != '.')
        return false;
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    if (errno || *end || !(number >= 0 && number < 1e9))
        return false;
    *seconds = number;
    return true;
}
