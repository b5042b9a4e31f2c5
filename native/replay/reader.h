// One thread's way to the pool: it brings an expert's bytes into memory, one copy per access in every mode.
#ifndef MOETIER_READER_H
#define MOETIER_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"
#include "replay/fds.h"
#include "replay/maps.h"
#include "replay/modes.h"
#include "replay/plan.h"
#include "replay/region.h"
#include "replay/stamps.h"

struct reader {
    enum mode mode; // none with memory of its own
    const struct pool *pool;
    struct maps *maps; // read-only ones, or those to write into in the modes that write; NULL in the others
    struct fds fds;
    uint64_t chunk;        // most bytes of one pread
    struct region scratch; // for bytes that only the page cache is to hold
};

// `chunk_bytes`: the most of one pread, where the mode's reads may be cut; 0 for a whole extent. Mode mmap_pread has a scratch.
bool reader_open(struct reader *reader, enum mode mode, uint64_t chunk_bytes, const struct pool *pool, struct maps *maps,
                 uint32_t open_files, struct failure *failure);

// Room for the largest extent; to be touched by the thread that uses it, so that it is near.
bool reader_map_scratch(struct reader *reader, struct failure *failure);

// Brings the expert's bytes to memory, to `window` (page-aligned in mode direct) in the modes that need one: extent by extent,
// each in its window_bytes. Compares the stamps and adds their number to *checked.
bool reader_deliver(struct reader *reader, const struct plan_expert *expert, enum stamps stamps, char *window, uint64_t *checked,
                    struct failure *failure);

// Copies an expert that a reader of this mode delivered without its windows' edges.
void gather_expert(const struct plan *plan, const struct plan_expert *expert, enum mode mode, const char *window, char *to);

// Preads the extent to the scratch: the page cache holds it afterwards.
bool reader_warm(struct reader *reader, const struct plan_extent *extent, struct failure *failure);

void reader_close(struct reader *reader);

#endif
