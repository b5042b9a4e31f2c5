#include "lru.h"

#include <errno.h>
#include <stdlib.h>

#define NO_SLOT SIZE_MAX
#define LANES 16
/* Slots per object: a squeeze costs one look at every slot, and comes after as many touches as there are free slots. */
#define ROOM 3
#define FEWEST_SLOTS 128

/* Slots that one sum of a level stands for: 1, 16, 256, 4096, and 65536 on the last level, which is one flat run. */
static size_t span(int level)
{
    return (size_t)1 << 4 * level;
}

static uint64_t before(const struct lru_line *line, size_t slot)
{
    uint64_t sum = 0;
    for (int k = 0; k < LRU_LEVELS; k++)
        sum += line->level[k][slot >> 4 * k];
    return sum;
}

/* Put an object at the next slot. */
static void append(struct lru_line *line, uint32_t object)
{
    size_t slot = line->next++;
    uint64_t rest = line->total;
    /* The sums of a level say something of the slots in use alone: one begins here where a span does. */
    for (int k = LRU_LEVELS; k-- > 0;) {
        if (slot % span(k) == 0)
            line->level[k][slot >> 4 * k] = rest;
        rest -= line->level[k][slot >> 4 * k];
    }
    line->object_in[slot] = object;
    line->slot_of[object] = slot;
    line->total += line->size_bytes[object];
    line->n_held++;
}

/* Lanes behind the given one lose amount. */
static void lower(uint64_t *restrict lane, size_t at, uint64_t amount)
{
    static const uint64_t behind[2 * LANES] = {
        [LANES] = UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
        UINT64_MAX,           UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
    };
    const uint64_t *mask = behind + LANES - 1 - at;
    for (int i = 0; i < LANES; i++)
        lane[i] -= amount & mask[i];
}

static void take_out(struct lru_line *line, uint32_t object)
{
    size_t slot = line->slot_of[object], at = slot;
    uint64_t size = line->size_bytes[object];
    for (int k = 0; k < LRU_LEVELS - 1; k++, at /= LANES)
        lower(line->level[k] + at / LANES * LANES, at % LANES, size);
    for (size_t i = at + 1; i <= (line->next - 1) / span(LRU_LEVELS - 1); i++)
        line->level[LRU_LEVELS - 1][i] -= size;
    line->slot_of[object] = NO_SLOT;
    line->total -= size;
    line->n_held--;
}

static void squeeze(struct lru_line *line)
{
    size_t n = line->next, mark = line->mark;
    line->next = line->n_held = 0;
    line->total = 0;
    for (size_t slot = 0; slot < n; slot++) {
        uint32_t object = line->object_in[slot];
        if (slot == mark)
            line->mark = line->next;
        if (line->slot_of[object] == slot)
            append(line, object);
    }
    if (mark >= n)
        line->mark = line->next;
    line->n_slots = ROOM * line->n_held > FEWEST_SLOTS ? ROOM * line->n_held : FEWEST_SLOTS;
}

static void touch(struct lru_line *line, uint32_t object)
{
    if (line->next == line->n_slots)
        squeeze(line);
    if (line->slot_of[object] != NO_SLOT)
        take_out(line, object);
    append(line, object);
}

static uint64_t distance(const struct lru_line *line, uint32_t object)
{
    size_t slot = line->slot_of[object];
    return slot == NO_SLOT ? LRU_FIRST_TOUCH : line->total - before(line, slot);
}

void lru_line_touch(struct lru_line *line, const uint32_t *key, size_t n, uint64_t *out)
{
    for (size_t i = 0; i < n; i++) {
        if (out)
            out[i] = distance(line, key[i]);
        touch(line, key[i]);
    }
}

void lru_line_event(struct lru_line *line, const uint32_t *key, size_t n, uint64_t *out)
{
    for (size_t i = 0; i < n; i++) {
        size_t slot = line->slot_of[key[i]];
        out[i] = slot != NO_SLOT && slot >= line->mark ? 0 : distance(line, key[i]);
    }
    line->mark = line->next;
    lru_line_touch(line, key, n, NULL);
}

void lru_line_clear(struct lru_line *line)
{
    for (size_t slot = 0; slot < line->next; slot++)
        line->slot_of[line->object_in[slot]] = NO_SLOT;
    line->next = line->mark = line->n_held = 0;
    line->total = 0;
    line->n_slots = FEWEST_SLOTS;
}

int lru_line_open(struct lru_line *line, const uint64_t *size_bytes, size_t n_objects)
{
    size_t most = ROOM * n_objects > FEWEST_SLOTS ? ROOM * n_objects : FEWEST_SLOTS;
    int failed = 0;
    *line = (struct lru_line){.size_bytes = size_bytes, .n_slots = FEWEST_SLOTS};
    line->object_in = malloc(most * sizeof *line->object_in);
    line->slot_of = malloc((n_objects + 1) * sizeof *line->slot_of);
    for (int k = 0; k < LRU_LEVELS; k++) {
        line->level[k] = calloc((most / span(k) / LANES + 1) * LANES, sizeof *line->level[k]);
        if (!line->level[k])
            failed = ENOMEM;
    }
    if (failed || !line->object_in || !line->slot_of)
        return ENOMEM;
    for (size_t i = 0; i < n_objects; i++)
        line->slot_of[i] = NO_SLOT;
    return 0;
}

void lru_line_close(struct lru_line *line)
{
    for (int k = 0; k < LRU_LEVELS; k++)
        free(line->level[k]);
    free(line->object_in);
    free(line->slot_of);
}

/* Touch the objects in the order of their last touch, as one whole run of the sequence leaves them. */
static int warm_up(struct lru_line *line, const uint32_t *sequence, size_t n, size_t n_objects)
{
    size_t first = n_objects;
    uint32_t *order = malloc((n_objects + 1) * sizeof *order);
    if (!order)
        return ENOMEM;
    for (size_t i = n; i-- > 0 && first > 0;) {
        if (line->slot_of[sequence[i]] != NO_SLOT)
            continue;
        line->slot_of[sequence[i]] = 0;
        order[--first] = sequence[i];
    }
    for (size_t i = first; i < n_objects; i++)
        line->slot_of[order[i]] = NO_SLOT;
    lru_line_touch(line, order + first, n_objects - first, NULL);
    free(order);
    return 0;
}

int lru_distances(const uint32_t *sequence, size_t n, const uint64_t *size_bytes, size_t n_objects, int warm,
                  uint64_t *out)
{
    struct lru_line line;
    int failed = lru_line_open(&line, size_bytes, n_objects);
    if (!failed && warm)
        failed = warm_up(&line, sequence, n, n_objects);
    if (!failed)
        lru_line_touch(&line, sequence, n, out);
    lru_line_close(&line);
    return failed;
}
