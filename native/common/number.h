// Reading numbers strictly: the whole text, no sign, no overflow.
#ifndef MOETIER_NUMBER_H
#define MOETIER_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

bool parse_u64(const char *text, uint64_t *value);

// A finite number of seconds, 0 or more.
bool parse_seconds(const char *text, double *seconds);

#endif
