#include "lru.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Objects lie on a line of slots, the most recently touched last. A Fenwick tree over the slots sums their bytes.
 * Twice as many slots as objects: when the line is used up, the holes are squeezed out, which costs O(1) per access. */
#define NO_SLOT SIZE_MAX
#define NO_OBJECT SIZE_MAX

struct line {
    size_t n_slots; /* a power of two */
    size_t next;    /* the first slot that was never used since the last squeeze */
    uint64_t total; /* bytes of all objects on the line */
    uint64_t *tree; /* Fenwick, 1-based, n_slots + 1 */
    size_t *object_in;
    size_t *slot_of;
    const uint64_t *size_bytes;
};

static void tree_add(struct line *line, size_t slot, uint64_t amount)
{
    for (size_t i = slot + 1; i <= line->n_slots; i += i & (~i + 1))
        line->tree[i] += amount; /* modulo 2^64: adding ~x + 1 subtracts x */
}

/* Bytes of the objects in the slots before this one. */
static uint64_t tree_before(const struct line *line, size_t slot)
{
    uint64_t sum = 0;
    for (size_t i = slot; i > 0; i &= i - 1)
        sum += line->tree[i];
    return sum;
}

static void squeeze(struct line *line)
{
    size_t to = 0;
    memset(line->tree, 0, (line->n_slots + 1) * sizeof *line->tree);
    for (size_t from = 0; from < line->next; from++) {
        size_t object = line->object_in[from];
        if (object == NO_OBJECT)
            continue;
        line->object_in[to] = object;
        line->slot_of[object] = to;
        line->tree[to + 1] = line->size_bytes[object];
        to++;
    }
    line->next = to;
    for (size_t i = 1; i <= line->n_slots; i++) {
        size_t parent = i + (i & (~i + 1));
        if (parent <= line->n_slots)
            line->tree[parent] += line->tree[i];
    }
}

static void line_append(struct line *line, size_t object)
{
    if (line->next == line->n_slots)
        squeeze(line);
    line->slot_of[object] = line->next;
    line->object_in[line->next] = object;
    tree_add(line, line->next, line->size_bytes[object]);
    line->total += line->size_bytes[object];
    line->next++;
}

static void line_remove(struct line *line, size_t object)
{
    size_t slot = line->slot_of[object];
    tree_add(line, slot, ~line->size_bytes[object] + 1);
    line->total -= line->size_bytes[object];
    line->object_in[slot] = NO_OBJECT;
    line->slot_of[object] = NO_SLOT;
}

static int line_open(struct line *line, const uint64_t *size_bytes, size_t n_objects)
{
    size_t n_slots = 64;
    while (n_slots < 2 * n_objects)
        n_slots *= 2;
    *line = (struct line){.n_slots = n_slots, .size_bytes = size_bytes};
    line->tree = calloc(n_slots + 1, sizeof *line->tree);
    line->object_in = malloc(n_slots * sizeof *line->object_in);
    line->slot_of = malloc((n_objects + 1) * sizeof *line->slot_of);
    if (!line->tree || !line->object_in || !line->slot_of)
        return ENOMEM;
    for (size_t i = 0; i < n_objects; i++)
        line->slot_of[i] = NO_SLOT;
    return 0;
}

static void line_close(struct line *line)
{
    free(line->tree);
    free(line->object_in);
    free(line->slot_of);
}

/* Lay the objects down in the order of their last touch, as one whole run of the sequence leaves them. */
static void line_warm(struct line *line, const uint32_t *sequence, size_t n, size_t n_objects)
{
    size_t distinct = 0;
    /* Backwards, into the far end: the slots are then filled forwards by one squeeze. */
    for (size_t i = n; i-- > 0 && distinct < n_objects;) {
        size_t object = sequence[i];
        if (line->slot_of[object] != NO_SLOT)
            continue;
        distinct++;
        line->slot_of[object] = line->n_slots - distinct;
        line->object_in[line->n_slots - distinct] = object;
        line->total += line->size_bytes[object];
    }
    for (size_t slot = 0; slot < line->n_slots - distinct; slot++)
        line->object_in[slot] = NO_OBJECT;
    line->next = line->n_slots;
    squeeze(line);
}

int lru_distances(const uint32_t *sequence, size_t n, const uint64_t *size_bytes, size_t n_objects, int warm,
                  uint64_t *out)
{
    struct line line;
    int failed = line_open(&line, size_bytes, n_objects);
    if (!failed) {
        if (warm)
            line_warm(&line, sequence, n, n_objects);
        for (size_t i = 0; i < n; i++) {
            size_t object = sequence[i];
            size_t slot = line.slot_of[object];
            if (slot == NO_SLOT) {
                out[i] = LRU_FIRST_TOUCH;
            } else {
                out[i] = line.total - tree_before(&line, slot);
                line_remove(&line, object);
            }
            line_append(&line, object);
        }
    }
    line_close(&line);
    return failed;
}
