#include "replay/stamps.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct stamp {
    char magic[8];
    uint64_t pool_id;
    uint32_t layer;
    uint32_t expert;
    uint64_t page;
};
_Static_assert(sizeof(struct stamp) == 32, "a stamp's layout is the pool's");

static const char MAGIC[8] = {'M', 'O', 'E', 'P', 'A', 'G', 'E', '1'};

static bool mismatch(const struct stamp *expected, const char *data, uint64_t length, struct failure *failure)
{
    struct stamp found = {0};
    char seen[160];
    memcpy(&found, data, length < sizeof found ? length : sizeof found);
    if (memcmp(found.magic, MAGIC, sizeof MAGIC) == 0) {
        snprintf(seen, sizeof seen, "the stamp of layer %" PRIu32 " expert %" PRIu32 " page %" PRIu64 " of pool %016" PRIx64,
                 found.layer, found.expert, found.page, found.pool_id);
    } else {
        int at = snprintf(seen, sizeof seen, "no stamp but the bytes");
        for (uint64_t i = 0; i < 16 && i < length; i++)
            at += snprintf(seen + at, sizeof seen - (size_t)at, " %02x", (unsigned char)data[i]);
    }
    return failure_set(failure, EXIT_FAILED, "stamp_mismatch", "page %" PRIu64 " holds %s, expected layer %" PRIu32
                       " expert %" PRIu32 " page %" PRIu64 " of pool %016" PRIx64, expected->page, seen, expected->layer,
                       expected->expert, expected->page, expected->pool_id);
}

// One page's stamp; the last page of an expert may be shorter than a stamp.
static bool check_page(const struct stamp *expected, const char *data, uint64_t length, struct failure *failure)
{
    if (length >= sizeof *expected ? memcmp(data, expected, sizeof *expected) == 0 : memcmp(data, expected, length) == 0)
        return true;
    return mismatch(expected, data, length, failure);
}

bool stamps_check(const struct plan *plan, const struct plan_expert *expert, const struct plan_extent *extent, enum stamps which,
                  const char *data, uint64_t position, uint64_t *checked, struct failure *failure)
{
    struct stamp expected = {.pool_id = plan->header.pool_id, .layer = expert->layer, .expert = expert->expert};
    memcpy(expected.magic, MAGIC, sizeof MAGIC);
    uint64_t last_page = (expert->bytes - 1) / PAGE_BYTES;
    uint64_t end = position + extent->length;
    uint64_t page = (position + PAGE_BYTES - 1) / PAGE_BYTES;
    if (which == STAMPS_ENDS && page > 0) // a later extent of the expert
        page = last_page;
    while (page * PAGE_BYTES >= position && page * PAGE_BYTES < end) {
        expected.page = page;
        uint64_t at = page * PAGE_BYTES - position;
        if (!check_page(&expected, data + at, extent->length - at, failure)) {
            plan_name_file(plan, extent->file, failure);
            return false;
        }
        ++*checked;
        // Of "ends" the pages between first and last are passed over.
        page = which == STAMPS_ENDS && page < last_page ? last_page : page + 1;
    }
    return true;
}

bool stamps_check_expert(const struct plan *plan, const struct plan_expert *expert, enum stamps which, const char *data,
                         uint64_t *checked, struct failure *failure)
{
    const struct plan_extent *extent = &plan->extents[expert->first_extent];
    uint64_t position = 0;
    bool good = true;
    for (uint32_t i = 0; good && i < expert->n_extents; position += extent->length, i++, extent++)
        good = stamps_check(plan, expert, extent, which, data + position, position, checked, failure);
    return good;
}
