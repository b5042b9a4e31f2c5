// A list file: experts of a plan in one or more lists. A table (which experts to hold, best first) is one list; advice (what to
// bring in ahead of its use) has a list per moment. Little-endian, version 1.
#ifndef MOETIER_LISTS_H
#define MOETIER_LISTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/plan.h"

enum list_kind { LIST_TABLE = 1, LIST_ADVICE = 2 };

enum list_flag {
    LIST_ORACLE = 1, // made with a look into the future
    LIST_KNOWN_FLAGS = 1,
};

struct list_header {
    char magic[8]; // "MOELIST\0"
    uint32_t version;
    uint32_t header_bytes;
    uint64_t file_bytes;
    uint32_t kind;
    uint32_t flags;
    uint64_t pool_id;
    uint64_t n_experts;  // of the plan
    uint64_t n_accesses; // of the plan; 0 for a table, which serves every plan of its pool
    uint64_t n_lists;
    uint64_t n_ids;
    uint32_t sequence_crc; // of the plan's sequence; 0 for a table
    uint32_t reserved_1;
    uint32_t crc_body; // of everything after the header
    uint32_t reserved_2;
    uint32_t reserved_3;
    uint32_t crc_header; // of everything before this field
};
_Static_assert(sizeof(struct list_header) == 96, "the header's layout is the file's");

// Checked lists. The sections point into one copy of the file, in anonymous memory.
struct lists {
    struct list_header header;
    char *memory;
    const uint64_t *offsets;  // [n_lists + 1]: first id of each
    const uint64_t *triggers; // [n_lists]: the access at which each is submitted, strictly rising; a table's is 0
    const uint32_t *ids;      // [n_ids]: indices into the plan's experts
};

// Reads and checks the lists against the plan, and drops the file's own pages from the page cache, as plan_load does.
bool lists_load(struct lists *lists, const char *path, enum list_kind kind, const struct plan *plan, struct failure *failure);

void lists_free(struct lists *lists);

#endif
