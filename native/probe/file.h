// A file without a name: it is gone with this process, however that ends.
#ifndef MOETIER_PROBE_FILE_H
#define MOETIER_PROBE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/residency.h"

struct file {
    int fd; // -1: none
    uint64_t bytes;
    const char *unnamed; // how it came to have no name
    enum probe probe;    // what counts its resident pages; PROBE_NONE: nothing does here
};

// Writes `content`, which no device can compress, and has it on the device. Refused where it would take more than half of the
// free space.
bool file_make(struct file *file, const char *folder, const char *content, uint64_t bytes, struct failure *failure);

// Another descriptor with a read-ahead state of its own; -1 with errno set.
int file_reopen(const struct file *file, int flags);

// Writes out and drops every page.
void file_drop(const struct file *file);

// Resident bytes; false where they cannot be counted.
bool file_resident(const struct file *file, uint64_t *bytes);

void file_close(struct file *file);

#endif
