/* Exact LRU stack distances in bytes (Mattson et al. 1970), for every access of a sequence. */
#ifndef MOETIER_SIM_LRU_H
#define MOETIER_SIM_LRU_H

#include <stddef.h>
#include <stdint.h>

/* The distance of an access whose object was never touched before: no capacity makes it a hit. */
#define LRU_FIRST_TOUCH UINT64_MAX

/* Write to out[i] the bytes of the distinct objects touched since, and including, the previous touch of sequence[i].
 *
 * With warm, the sequence is taken to have run once already. Only the order of last touches survives that run, so it
 * costs one scan and one touch per object, not a second simulation.
 *
 * The caller has checked that every index is below n_objects and that the sizes add up to less than 2^64 - 1.
 * Returns 0 or ENOMEM.
 */
int lru_distances(const uint32_t *sequence, size_t n, const uint64_t *size_bytes, size_t n_objects, int warm,
                  uint64_t *out);

/* The stack itself, for callers that feed it piece by piece. Objects lie on a line of slots, the most recently touched
 * last, and sums over the line are kept on several levels: for each of 16 neighbours, the bytes that lie before it
 * within the 16. Taking an object out adjusts 16 sums per level at once; adding one at the end changes none. */
#define LRU_LEVELS 5

struct lru_line {
    const uint64_t *size_bytes;
    uint64_t total; /* bytes of all objects on the line */
    size_t n_held;  /* objects on the line */
    size_t n_slots; /* in use between two squeezes */
    size_t next;    /* the first slot that was never used since the last squeeze */
    size_t mark;    /* a slot that keeps its place among the objects when they are squeezed */
    uint32_t *object_in;
    size_t *slot_of;
    uint64_t *level[LRU_LEVELS];
};

/* Returns 0 or ENOMEM; to be closed either way. */
int lru_line_open(struct lru_line *line, const uint64_t *size_bytes, size_t n_objects);
void lru_line_close(struct lru_line *line);

/* Forget every object. Costs as much as what was touched since the last squeeze. */
void lru_line_clear(struct lru_line *line);

/* Touch n objects one after another; out may be NULL. */
void lru_line_touch(struct lru_line *line, const uint32_t *key, size_t n, uint64_t *out);

/* Look n objects up against the same state, then touch them in order: stack.h says what out is. */
void lru_line_event(struct lru_line *line, const uint32_t *key, size_t n, uint64_t *out);

#endif
