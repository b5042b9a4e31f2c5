/* A set of positions of which the maximum can be taken, and the minimum seen: a tree of 64-way bit words, each level
 * marking the words of the level below that are not empty. */
#ifndef MOETIER_SIM_POSITIONS_H
#define MOETIER_SIM_POSITIONS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define POSITIONS_MAX_LEVELS 11

struct positions {
    int n_levels;
    uint64_t *level[POSITIONS_MAX_LEVELS];
};

/* Make room for the positions below n: 1/8 byte each, and 1/63 of that again. Returns 0, or -1 without memory; close it
 * in either case. */
static inline int positions_open(struct positions *set, size_t n)
{
    *set = (struct positions){0};
    do {
        n = n / 64 + 1;
        set->level[set->n_levels] = calloc(n, sizeof(uint64_t));
        if (!set->level[set->n_levels++])
            return -1;
    } while (n > 1);
    return 0;
}

static inline void positions_close(struct positions *set)
{
    for (int k = 0; k < set->n_levels; k++)
        free(set->level[k]);
}

/* Forget all positions below n. */
static inline void positions_clear(struct positions *set, size_t n)
{
    for (int k = 0; k < set->n_levels; k++) {
        n = n / 64 + 1;
        memset(set->level[k], 0, n * sizeof(uint64_t));
    }
}

static inline void positions_insert(struct positions *set, size_t at)
{
    for (int k = 0; k < set->n_levels; k++, at /= 64) {
        uint64_t *word = &set->level[k][at / 64];
        uint64_t before = *word;
        *word = before | UINT64_C(1) << (at % 64);
        if (before)
            return; /* the levels above know of this word */
    }
}

/* Remove what may be the last position of its word. */
static inline void positions_remove(struct positions *set, size_t at)
{
    for (int k = 0; k < set->n_levels; k++, at /= 64)
        if (set->level[k][at / 64] &= ~(UINT64_C(1) << (at % 64)))
            return;
}

/* Remove the maximum; return the new one, or 0 when nothing is left. */
static inline size_t positions_pop(struct positions *set, size_t at)
{
    for (int k = 0; k < set->n_levels; k++, at /= 64) {
        uint64_t word = set->level[k][at / 64] &= ~(UINT64_C(1) << (at % 64));
        if (!word)
            continue;
        at = at / 64 * 64 + (size_t)(63 - __builtin_clzll(word));
        while (k-- > 0)
            at = at * 64 + (size_t)(63 - __builtin_clzll(set->level[k][at]));
        return at;
    }
    return 0;
}

/* Return the minimum; the set is not empty. */
static inline size_t positions_min(const struct positions *set)
{
    size_t at = 0;
    for (int k = set->n_levels; k-- > 0;)
        at = at * 64 + (size_t)__builtin_ctzll(set->level[k][at]);
    return at;
}

#endif
