// The plan file: which bytes to read, in which order, iteration by iteration. Little-endian, version 1.
#ifndef MOETIER_PLAN_H
#define MOETIER_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/failure.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a plan is used in place, as little-endian");
_Static_assert(sizeof(size_t) == 8, "a plan may be larger than 4 GiB");

enum { PAGE_BYTES = 4096 };

enum plan_flag {
    PLAN_STAMPED = 1,
    PLAN_SYNTHETIC_TRACE = 2,
    PLAN_SYNTHETIC_POOL = 4,
    PLAN_ANY_PATH = 8, // the user gave the paths: they may be absolute or leave the root
    PLAN_THROWAWAY = 16, // the pool is a copy that may be written
    PLAN_KNOWN_FLAGS = 31,
};

struct plan_header {
    char magic[8]; // "MOEPLAN\0"
    uint32_t version;
    uint32_t header_bytes;
    uint64_t file_bytes;
    uint64_t n_iterations;
    uint64_t n_accesses;
    uint64_t n_experts;
    uint64_t n_extents;
    uint64_t n_files;
    uint64_t strings_bytes;
    uint64_t off_iterations;
    uint64_t off_sequence;
    uint64_t off_experts;
    uint64_t off_extents;
    uint64_t off_files;
    uint64_t off_strings;
    uint64_t pool_id;
    uint32_t flags;
    uint32_t page_bytes;
    uint64_t total_bytes; // over all accesses
    uint32_t reserved_1;
    uint32_t crc_body;   // of everything after the header
    uint32_t reserved_2;
    uint32_t crc_header; // of everything before this field
};
_Static_assert(sizeof(struct plan_header) == 160, "the header's layout is the file's");

struct plan_expert {
    uint32_t layer;
    uint32_t expert;
    uint64_t first_extent;
    uint32_t n_extents;
    uint32_t pad;
    uint64_t bytes;
};
_Static_assert(sizeof(struct plan_expert) == 32, "an expert's layout is the file's");

struct plan_extent {
    uint32_t file;
    uint32_t pad;
    uint64_t offset;
    uint64_t length;
};
_Static_assert(sizeof(struct plan_extent) == 24, "an extent's layout is the file's");

struct plan_file {
    uint64_t string_offset;
    uint32_t string_bytes;
    uint32_t pad;
    uint64_t size_bytes;
};
_Static_assert(sizeof(struct plan_file) == 24, "a file's layout is the file's");

// A checked plan. The sections point into one copy of the file, in anonymous memory.
struct plan {
    struct plan_header header;
    char *memory;
    const uint64_t *iterations; // [n_iterations + 1]: first access of each
    const uint32_t *sequence;   // [n_accesses]: index into experts
    const struct plan_expert *experts;
    const struct plan_extent *extents;
    const struct plan_file *files;
    const char *strings;
    struct plan_extent *runs; // [n_runs]: the bytes of all experts, ascending, those that touch each other in one
    uint64_t n_runs;
};

// Reads and checks the plan, and drops the plan file's own pages from the page cache: they would be charged to the scope
// that is being measured.
bool plan_load(struct plan *plan, const char *path, struct failure *failure);

void plan_free(struct plan *plan);

// Copies the file's path, NUL-terminated.
void plan_file_path(const struct plan *plan, uint32_t file, char path[PATH_MAX]);

// Names the file in the failure, and returns its name there.
const char *plan_name_file(const struct plan *plan, uint32_t file, struct failure *failure);

// The sum of the sizes of all files.
uint64_t plan_pool_bytes(const struct plan *plan);

// The bytes of all experts. A real model's files hold others besides.
uint64_t plan_experts_bytes(const struct plan *plan);

#endif
