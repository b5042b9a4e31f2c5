// SIGBUS inside a mapping: a file that was truncated under it, or a device that failed.
#ifndef MOETIER_SIGBUS_H
#define MOETIER_SIGBUS_H

#include <stdbool.h>
#include <stdint.h>

// From here on a SIGBUS outside sigbus_guard ends the process, as ever.
void sigbus_install(void);

// Calls; false where a SIGBUS ended the call in the middle.
bool sigbus_guard(void (*call)(void *argument), void *argument);

// memcpy from a mapped file; false where the file's bytes could not be had.
bool sigbus_copy(char *to, const char *from, uint64_t length);

#endif
