#include "min.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "positions.h"

/* A held object stands at the position of its next access; an object without one stands behind all accesses, the
 * lowest farthest. Positions are unique, so they name their object, and everything that is known of a held object is
 * kept at its position: the access then finds it in passing.
 *
 * Objects of one size: the content of a cache is part of that of every larger one (Mattson et al. 1970). So all budgets
 * are simulated at once, each as a band that holds what its cache has and the next smaller has not. An access puts its
 * object into the first band; every band that is too full passes its farthest object on to the next one, until the
 * band that the object came from has a place free. Where what comes in is itself the farthest, it goes on at once.
 * Accesses of the past are left in the trees: they are below all that is held.
 *
 * Objects of several sizes: each budget on its own, as one band. */
#define MOST_BANDS 20 /* at once: 2.6 bytes per access */

/* Where an access finds its object, beside the number of a band. */
#define NOWHERE UINT8_MAX

struct band {
    struct positions set;
    size_t farthest; /* of what is held; of the past, when nothing is */
    size_t held;
    size_t room;       /* objects it may hold */
    uint64_t capacity; /* of its cache: its own room and that of all bands before it, or bytes */
};

struct run {
    const struct demand *demand;
    struct stretch part;
    uint32_t *next; /* per access: the position of its object's next access */
    uint8_t *place; /* per position: the band of its object; at an access, where it was found */
    uint32_t *last; /* per object, while next is filled */
    struct band band[MOST_BANDS];
    int n_bands;
    uint32_t *passed[2]; /* what two bands pass on, farthest first */
};

/* Fill next; also clears what the segment before left in last. */
static int find_next(struct run *run)
{
    size_t n = run->part.n;
    const uint32_t *key = run->part.key;
    for (size_t i = 0; i < n; i++)
        run->last[key[i]] = (uint32_t)(n + run->demand->n_objects - 1 - key[i]);
    for (size_t i = n; i-- > 0;) {
        if (i % DEMAND_STRIDE == 0 && demand_stopped(run->demand))
            return ECANCELED;
        run->next[i] = run->last[key[i]];
        run->last[key[i]] = (uint32_t)i;
    }
    memset(run->place, NOWHERE, n);
    return 0;
}

static size_t object_at(const struct run *run, size_t position)
{
    size_t n = run->part.n;
    return position < n ? run->part.key[position] : run->demand->n_objects - 1 - (position - n);
}

static void put(struct run *run, int b, size_t position)
{
    struct band *band = &run->band[b];
    positions_insert(&band->set, position);
    band->farthest = position > band->farthest ? position : band->farthest;
    run->place[position] = (uint8_t)b;
}

/* The object of access i, found in band `from`, goes into the first band. */
static inline void touch(struct run *run, int from, size_t position)
{
    struct band *band = run->band;
    if (from == 0 || band->held < band->room) {
        band->held += from != 0;
        put(run, 0, position);
        return;
    }
    size_t carry = band->farthest;
    band->farthest = positions_pop(&band->set, carry);
    put(run, 0, position);
    for (int b = 1; b < run->n_bands; b++) {
        band++;
        if (b == from || band->held < band->room) {
            band->held += b != from;
            put(run, b, carry);
            return;
        }
        if (carry > band->farthest)
            continue;
        size_t out = band->farthest;
        positions_insert(&band->set, carry);
        band->farthest = positions_pop(&band->set, out);
        run->place[carry] = (uint8_t)b;
        carry = out;
    }
    run->place[carry] = NOWHERE;
}

static int run_accesses(struct run *run)
{
    for (size_t i = 0; i < run->part.n;) {
        size_t end = run->part.n - i < DEMAND_STRIDE ? run->part.n : i + DEMAND_STRIDE;
        if (demand_stopped(run->demand))
            return ECANCELED;
        for (; i < end; i++)
            touch(run, run->place[i], run->next[i]);
    }
    return 0;
}

/* Pass on the `over` farthest of what a band holds and of what comes in, in falling order both; the rest stays. Returns
 * how many were passed on. */
static size_t squeeze(struct run *run, int b, const uint32_t *in, size_t n_in, size_t over, uint32_t *out)
{
    struct band *band = &run->band[b];
    size_t n_out = 0, next_in = 0;
    while (n_out < over) {
        if (next_in < n_in && (!band->held || in[next_in] > band->farthest)) {
            out[n_out++] = in[next_in++];
            continue;
        }
        out[n_out++] = (uint32_t)band->farthest;
        band->farthest = positions_pop(&band->set, band->farthest);
        band->held--;
    }
    for (; next_in < n_in; next_in++, band->held++)
        put(run, b, in[next_in]);
    return n_out;
}

/* The objects of the accesses [at, end) are looked up, then what is too much goes, then they are put into the first
 * band: they are the last to come in, so nothing can evict them. */
static void touch_event(struct run *run, size_t at, size_t end)
{
    size_t n_passed = 0, held = 0;
    for (size_t i = at; i < end; i++)
        if (run->place[i] != NOWHERE)
            run->band[run->place[i]].held--;
    for (int b = 0; b < run->n_bands; b++) {
        struct band *band = &run->band[b];
        size_t room = band->capacity > end - at ? band->capacity - (end - at) : 0;
        size_t before = held + band->held + n_passed;
        size_t over = before > room ? before - room : 0;
        n_passed = squeeze(run, b, run->passed[b % 2], n_passed, over, run->passed[(b + 1) % 2]);
        held += band->held;
    }
    for (size_t i = 0; i < n_passed; i++)
        run->place[run->passed[run->n_bands % 2][i]] = NOWHERE;
    for (size_t i = at; i < end; i++)
        put(run, 0, run->next[i]);
    run->band[0].held += end - at;
}

static void touch_sized_event(struct run *run, uint64_t *used, size_t at, size_t end)
{
    struct band *band = run->band;
    const uint64_t *size = run->demand->size;
    const uint32_t *key = run->part.key;
    uint64_t fresh = 0;
    for (size_t i = at; i < end; i++) {
        if (run->place[i] != NOWHERE) {
            band->held--;
            *used -= size[key[i]];
        }
        fresh += size[key[i]] <= band->capacity ? size[key[i]] : 0;
    }
    while (band->held && *used + fresh > band->capacity) {
        size_t out = band->farthest;
        band->farthest = positions_pop(&band->set, out);
        band->held--;
        *used -= size[object_at(run, out)];
        run->place[out] = NOWHERE;
    }
    for (size_t i = at; i < end; i++)
        if (size[key[i]] <= band->capacity) {
            put(run, 0, run->next[i]);
            band->held++;
        }
    *used += fresh;
}

static int run_events(struct run *run, int sized)
{
    size_t event = 0, look = 0;
    uint64_t used = 0;
    for (size_t i = 0, end; i < run->part.n; i = end) {
        if (i >= look) {
            look = i + DEMAND_STRIDE;
            if (demand_stopped(run->demand))
                return ECANCELED;
        }
        end = stretch_event(&run->part, i, &event);
        if (sized)
            touch_sized_event(run, &used, i, end);
        else
            touch_event(run, i, end);
    }
    return 0;
}

static int run_segment(struct run *run, int sized)
{
    for (int b = 0; b < run->n_bands; b++)
        run->band[b].held = run->band[b].farthest = 0;
    int failed = find_next(run);
    if (!failed && run->n_bands) /* without a band every access is found nowhere */
        failed = sized || run->part.events ? run_events(run, sized) : run_accesses(run);
    for (int b = 0; b < run->n_bands; b++)
        positions_clear(&run->band[b].set, run->part.n + run->demand->n_objects);
    return failed;
}

/* Write where the accesses of a segment hit at one budget, which is band b's. */
static void write_hits(const struct run *run, size_t budget, int b)
{
    uint8_t *hit = run->demand->hit + budget * run->demand->n + run->part.start;
    for (size_t i = 0; i < run->part.n; i++)
        hit[i] = run->place[i] <= b;
}

/* Budgets in rising order, as far as they differ in the number of objects that fit. */
struct budget {
    uint64_t capacity; /* objects, or bytes */
    size_t index;
};

static int by_capacity(const void *a, const void *b)
{
    const struct budget *x = a, *y = b;
    if (x->capacity != y->capacity)
        return x->capacity < y->capacity ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* Take budgets from the front for as long as there are bands, write the band of each (-1: nothing fits) and return how
 * many were taken. */
static size_t lay_bands(struct run *run, const struct budget *budgets, size_t n, int sized, int *band_of)
{
    size_t taken = 0;
    run->n_bands = 0;
    for (; taken < n; taken++) {
        uint64_t capacity = budgets[taken].capacity;
        uint64_t below = run->n_bands ? run->band[run->n_bands - 1].capacity : 0;
        if (!sized && !capacity) {
            band_of[taken] = -1;
            continue;
        }
        if (!run->n_bands || capacity != below) {
            if (run->n_bands == (sized ? 1 : MOST_BANDS))
                break;
            struct band *band = &run->band[run->n_bands++];
            band->capacity = capacity;
            band->room = capacity - below;
        }
        band_of[taken] = run->n_bands - 1;
    }
    return taken;
}

static int count(struct run *run, const struct budget *budget, int band, const uint64_t *found, uint64_t even_size)
{
    const struct demand *demand = run->demand;
    uint64_t hits = 0, bytes = 0, *sum = &demand->hit_bytes[budget->index];
    if (demand->hit)
        write_hits(run, budget->index, band);
    for (int b = 0; b <= band; b++)
        hits += found[b];
    if (even_size) {
        if (__builtin_mul_overflow(hits, even_size, &bytes))
            return EOVERFLOW;
    } else {
        for (size_t i = run->part.score_from; i < run->part.n; i++)
            if (run->place[i] != NOWHERE && __builtin_add_overflow(bytes, demand->size[run->part.key[i]], &bytes))
                return EOVERFLOW;
    }
    demand->hits[budget->index] += hits;
    return __builtin_add_overflow(*sum, bytes, sum) ? EOVERFLOW : 0;
}

/* All segments at the budgets that have bands. */
static int run_group(struct run *run, const struct budget *budgets, const int *band_of, size_t n, uint64_t even_size)
{
    size_t event = 0;
    int failed = 0;
    for (size_t s = 0; s < run->demand->n_segments && !failed; s++) {
        uint64_t found[NOWHERE + 1] = {0};
        run->part = demand_stretch(run->demand, s, &event);
        failed = run_segment(run, !even_size);
        for (size_t i = run->part.score_from; i < run->part.n && !failed; i++)
            found[run->place[i]]++;
        for (size_t k = 0; k < n && !failed; k++)
            failed = count(run, &budgets[k], band_of[k], found, even_size);
    }
    return failed;
}

static int run_budgets(struct run *run, const struct budget *budgets, int *band_of, uint64_t even_size)
{
    size_t longest = demand_longest_segment(run->demand), n = run->demand->n_budgets, taken;
    size_t n_positions = longest + run->demand->n_objects + 1;
    size_t n_passed = run->demand->events ? demand_longest_event(run->demand) : 1;
    run->next = malloc((longest + 1) * sizeof *run->next);
    run->place = malloc(n_positions);
    run->last = malloc((run->demand->n_objects + 1) * sizeof *run->last);
    run->passed[0] = malloc(n_passed * sizeof(uint32_t));
    run->passed[1] = malloc(n_passed * sizeof(uint32_t));
    if (!run->next || !run->place || !run->last || !run->passed[0] || !run->passed[1])
        return ENOMEM;
    int n_open = 0;
    for (size_t at = 0; at < n; at += taken) {
        taken = lay_bands(run, budgets + at, n - at, !even_size, band_of);
        for (; n_open < run->n_bands; n_open++)
            if (positions_open(&run->band[n_open].set, n_positions))
                return ENOMEM;
        int failed = run_group(run, budgets + at, band_of, taken, even_size);
        if (failed)
            return failed;
    }
    return 0;
}

int min_hits(const struct demand *demand)
{
    uint64_t even_size = demand_even_size(demand);
    struct run run = {.demand = demand};
    struct budget *budgets = malloc((demand->n_budgets + 1) * sizeof *budgets);
    int *band_of = malloc((demand->n_budgets + 1) * sizeof *band_of);
    int failed = ENOMEM;
    if (budgets && band_of) {
        for (size_t i = 0; i < demand->n_budgets; i++) {
            uint64_t fit = even_size ? demand->budgets[i] / even_size : demand->budgets[i];
            budgets[i] = (struct budget){even_size && fit > demand->n_objects ? demand->n_objects : fit, i};
        }
        qsort(budgets, demand->n_budgets, sizeof *budgets, by_capacity);
        failed = run_budgets(&run, budgets, band_of, even_size);
    }
    for (int b = 0; b < MOST_BANDS; b++)
        positions_close(&run.band[b].set);
    free(run.passed[1]);
    free(run.passed[0]);
    free(run.last);
    free(run.place);
    free(run.next);
    free(band_of);
    free(budgets);
    return failed;
}
