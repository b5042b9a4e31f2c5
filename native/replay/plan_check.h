// Whether a plan can be trusted: after these checks no index, offset or length in it needs another look.
#ifndef MOETIER_PLAN_CHECK_H
#define MOETIER_PLAN_CHECK_H

#include "replay/plan.h"

// The header alone, against the size of the file it came from.
bool plan_check_header(const struct plan_header *header, uint64_t file_bytes, const char *path, struct failure *failure);

// The sections; the header is checked and the body is in memory.
bool plan_check_body(const struct plan *plan, const char *path, struct failure *failure);

// Whether the path is absolute or holds "..".
bool plan_path_leaves_root(const char *text, size_t length);

#endif
