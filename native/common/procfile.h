// Whole small files of /proc, /sys and the like.
#ifndef MOETIER_PROCFILE_H
#define MOETIER_PROCFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A growing piece of memory, kept between reads. Zero-initialise.
struct buffer {
    char *bytes; // NUL-terminated after a successful read
    size_t length;
    size_t capacity;
};

// Reads the whole file; returns 0 or an errno value (EFBIG above 16 MiB).
int buffer_read(struct buffer *buffer, const char *path);

void buffer_free(struct buffer *buffer);

// The first `length` bytes of an open file; false with errno set (ENODATA where the file is shorter).
bool read_exactly(int fd, char *bytes, uint64_t length);

// Re-reads an open file from its start into `text` (NUL-terminated, cut to fit). False on any failure.
bool reread(int fd, char *text, size_t size);

// The number after "key:" or "key " at the start of a line.
bool find_number(const char *text, const char *key, uint64_t *value);

// A line "Name:  N kB" of /proc/self/status or /proc/meminfo, in bytes; 0 where it is absent.
uint64_t self_status_bytes(const char *key);

// The number in a file that holds one (vm.max_map_count).
bool read_number(const char *path, uint64_t *value);

#endif
