// How many pages of a file the page cache holds. Both ways also count pages that are still being read.
#ifndef MOETIER_RESIDENCY_H
#define MOETIER_RESIDENCY_H

#include <stdint.h>

enum probe { PROBE_NONE, PROBE_CACHESTAT, PROBE_MINCORE };

// The kernel's own page, which is what both ways count: 4 KiB, or 16 or 64 KiB on some aarch64 kernels.
uint64_t kernel_page_bytes(void);

const char *probe_name(enum probe probe);

// Resident pages among those that [offset, offset + length) touches; a negative errno value on failure. cachestat asks about the
// open file, mincore about a mapping of its start (`base`; NULL: it maps the file for the purpose).
int64_t resident_pages(enum probe probe, int fd, const char *base, uint64_t offset, uint64_t length);

// Resident bytes of [offset, offset + length) itself, whose first and last page may be others' in part.
int64_t resident_bytes(enum probe probe, int fd, const char *base, uint64_t offset, uint64_t length);

#endif
