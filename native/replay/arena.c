#include "replay/arena.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/reader.h"
#include "replay/stop.h"

enum { LINE_BYTES = 64, OPEN_FILES = 16 };

// Experts lie close together, so that the arena takes what they take. Returns the bytes to map.
static uint64_t place_experts(struct arena *arena, const uint32_t *table, uint64_t n_table, uint64_t bytes)
{
    uint64_t end = 0;
    for (uint64_t i = 0; i < n_table; i++) {
        uint64_t size = arena->plan->experts[table[i]].bytes;
        if (size > bytes - arena->held_bytes)
            break;
        arena->place_of[table[i]] = end;
        arena->held_bytes += size;
        arena->n_experts++;
        end += (size + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    }
    return end;
}

bool arena_open(struct arena *arena, const struct plan *plan, const uint32_t *table, uint64_t n_table, uint64_t bytes,
                struct failure *failure)
{
    char what[64];
    uint64_t n_experts = plan->header.n_experts;
    *arena = (struct arena){.plan = plan, .place_of = malloc(n_experts * sizeof *arena->place_of)};
    if (!arena->place_of)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for the places of %" PRIu64 " experts", n_experts);
    memset(arena->place_of, 0xff, n_experts * sizeof *arena->place_of);
    uint64_t mapped = place_experts(arena, table, n_table, bytes);
    if (arena->n_experts == 0)
        return failure_set(failure, EXIT_USAGE, "usage", "--own-bytes %" PRIu64 ": expected room for the table's first expert "
                           "at least (%" PRIu64 " bytes)", bytes, n_table ? plan->experts[table[0]].bytes : 0);
    snprintf(what, sizeof what, "an arena of %" PRIu64 " experts", arena->n_experts);
    return region_map(&arena->region, mapped, what, failure) && region_lock(&arena->region, failure);
}

struct filling {
    struct arena *arena;
    struct reader reader;
    struct region window;
    enum stamps stamps;
};

// What buffered reads left in the page cache would be hits that nobody pays for.
static bool drop_files(struct reader *reader, const struct plan_expert *expert, struct failure *failure)
{
    const struct plan_extent *extent = &reader->pool->plan->extents[expert->first_extent];
    for (uint32_t i = 0; i < expert->n_extents; i++, extent++) {
        int fd = fds_get(&reader->fds, extent->file, failure);
        if (fd < 0)
            return false;
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    return true;
}

static bool read_expert(struct filling *filling, const struct plan_expert *expert, char *to, struct failure *failure)
{
    struct reader *reader = &filling->reader;
    if (!reader_deliver(reader, expert, STAMPS_NONE, filling->window.memory, NULL, failure))
        return false;
    gather_expert(filling->arena->plan, expert, reader->mode, filling->window.memory, to);
    return reader->mode == MODE_DIRECT || drop_files(reader, expert, failure);
}

static bool reopen(struct filling *filling, enum mode mode, const struct pool *pool, struct failure *failure)
{
    reader_close(&filling->reader);
    return reader_open(&filling->reader, mode, 0, pool, NULL, OPEN_FILES, failure);
}

static bool fill_expert(struct filling *filling, uint32_t index, const struct pool *pool, struct failure *failure)
{
    const struct plan *plan = filling->arena->plan;
    const struct plan_expert *expert = &plan->experts[index];
    char *to = arena_expert(filling->arena, index);
    uint64_t checked = 0;
    bool read = read_expert(filling, expert, to, failure);
    if (!read && failure->exit == EXIT_UNSUPPORTED && filling->reader.mode == MODE_DIRECT) {
        *failure = (struct failure){0};
        read = reopen(filling, MODE_PAGE_CACHE, pool, failure) && read_expert(filling, expert, to, failure);
    }
    if (read && (filling->stamps == STAMPS_NONE || stamps_check_expert(plan, expert, filling->stamps, to, &checked, failure)))
        return true;
    failure_expert(failure, expert->layer, expert->expert);
    return false;
}

bool arena_fill(struct arena *arena, const uint32_t *table, const struct pool *pool, enum stamps stamps, uint64_t *read_bytes,
                struct failure *failure)
{
    struct filling filling = {.arena = arena, .stamps = stamps};
    struct failure ignored;
    enum mode mode = mode_check(MODE_DIRECT, pool, &ignored) ? MODE_DIRECT : MODE_PAGE_CACHE;
    bool good = reopen(&filling, mode, pool, failure) &&
                region_map(&filling.window, largest_expert(arena->plan, MODE_DIRECT), "a buffer for one expert", failure);
    for (uint64_t i = 0; good && i < arena->n_experts && !stopping(); i++) {
        good = fill_expert(&filling, table[i], pool, failure);
        *read_bytes += arena->plan->experts[table[i]].bytes;
    }
    region_unmap(&filling.window);
    reader_close(&filling.reader);
    return good;
}

void arena_close(struct arena *arena)
{
    region_unmap(&arena->region);
    free(arena->place_of);
    *arena = (struct arena){0};
}
