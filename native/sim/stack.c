#include "stack.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lru.h"

/* Objects lie on an axis of slots, one bit each, the most recently touched last. How many lie before a slot is the sum
 * of five numbers: those before its span, before its group within the span, before its block within the group, before
 * its word within the block, and the bits before it in the word. Taking an object out adjusts 16 neighbours per level
 * at once; adding one at the end changes none. When the axis is used up the holes are squeezed out. All of it but the
 * objects' slots is 40 KiB for 82,432 objects, about what a level-1 cache holds. */
#define LANES 16
#define WORD 64
#define BLOCK (WORD * LANES)
#define GROUP (BLOCK * LANES)
#define SPAN (GROUP * LANES)
/* Slots per object: a squeeze costs one look at every object, and comes after as many touches as slots are free. */
#define ROOM 3
#define FEWEST_SLOTS 128
#define NO_SLOT UINT32_MAX
/* Accesses between two looks at the stop flag, and distances that are kept before they are counted. */
#define CHUNK 4096

struct axis {
    uint32_t n_slots; /* in use between two squeezes */
    uint32_t next;    /* the first slot that was never used since the last squeeze */
    uint32_t n_held;  /* objects on the axis */
    uint32_t mark;    /* a slot that keeps its place among the objects when they are squeezed */
    uint32_t never;   /* the distance of a first touch */
    uint32_t *slot_of;
    uint32_t *held; /* the objects on the axis, in the order of their first touch */
    uint64_t *bits;
    uint16_t *in_block; /* per word */
    uint16_t *in_group; /* per block */
    uint32_t *in_span;  /* per group */
    uint32_t *before_span;
};

static uint32_t slots_for(size_t n_objects)
{
    return (uint32_t)(ROOM * n_objects > FEWEST_SLOTS ? ROOM * n_objects : FEWEST_SLOTS);
}

static void *lanes_for(uint32_t n_slots, uint32_t slots_per_lane, size_t size)
{
    return calloc(((size_t)n_slots / slots_per_lane / LANES + 1) * LANES, size);
}

static int axis_open(struct axis *axis, size_t n_objects, uint32_t never)
{
    uint32_t most = slots_for(n_objects);
    *axis = (struct axis){.n_slots = FEWEST_SLOTS, .never = never};
    axis->slot_of = malloc((n_objects + 1) * sizeof *axis->slot_of);
    axis->held = malloc((n_objects + 1) * sizeof *axis->held);
    axis->bits = lanes_for(most, WORD, sizeof *axis->bits);
    axis->in_block = lanes_for(most, WORD, sizeof *axis->in_block);
    axis->in_group = lanes_for(most, BLOCK, sizeof *axis->in_group);
    axis->in_span = lanes_for(most, GROUP, sizeof *axis->in_span);
    axis->before_span = lanes_for(most, SPAN, sizeof *axis->before_span);
    if (!axis->slot_of || !axis->held || !axis->bits || !axis->in_block || !axis->in_group || !axis->in_span ||
        !axis->before_span)
        return ENOMEM;
    memset(axis->slot_of, 0xff, (n_objects + 1) * sizeof *axis->slot_of);
    return 0;
}

static void axis_close(struct axis *axis)
{
    free(axis->slot_of);
    free(axis->held);
    free(axis->bits);
    free(axis->in_block);
    free(axis->in_group);
    free(axis->in_span);
    free(axis->before_span);
}

static void axis_clear(struct axis *axis)
{
    for (uint32_t i = 0; i < axis->n_held; i++)
        axis->slot_of[axis->held[i]] = NO_SLOT;
    axis->next = axis->mark = axis->n_held = 0;
    axis->n_slots = FEWEST_SLOTS;
}

/* Without the processor's own instruction, which the oldest of its family lack. */
static uint32_t popcount(uint64_t word)
{
    word -= word >> 1 & UINT64_C(0x5555555555555555);
    word = (word & UINT64_C(0x3333333333333333)) + (word >> 2 & UINT64_C(0x3333333333333333));
    word = (word + (word >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (uint32_t)(word * UINT64_C(0x0101010101010101) >> 56);
}

/* Objects before a slot in use. */
static inline uint32_t before(const struct axis *axis, uint32_t slot)
{
    uint64_t lower = axis->bits[slot / WORD] & ((UINT64_C(1) << slot % WORD) - 1);
    return axis->before_span[slot / SPAN] + axis->in_span[slot / GROUP] + axis->in_group[slot / BLOCK] +
           axis->in_block[slot / WORD] + popcount(lower);
}

/* Begin the word of this slot, before which this many objects lie; and the block, group and span that begin with it. */
static void begin_word(struct axis *axis, uint32_t slot, uint32_t rest)
{
    axis->bits[slot / WORD] = 0;
    if (slot % SPAN == 0)
        axis->before_span[slot / SPAN] = rest;
    rest -= axis->before_span[slot / SPAN];
    if (slot % GROUP == 0)
        axis->in_span[slot / GROUP] = rest;
    rest -= axis->in_span[slot / GROUP];
    if (slot % BLOCK == 0)
        axis->in_group[slot / BLOCK] = (uint16_t)rest;
    axis->in_block[slot / WORD] = (uint16_t)(rest - axis->in_group[slot / BLOCK]);
}

/* Lanes behind the given one lose one. */
static inline void lower16(uint16_t *restrict lane, uint32_t at)
{
    static const uint16_t behind[2 * LANES] = {[LANES] = 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const uint16_t *one = behind + LANES - 1 - at;
    for (int i = 0; i < LANES; i++)
        lane[i] = (uint16_t)(lane[i] - one[i]);
}

static inline void lower32(uint32_t *restrict lane, uint32_t at)
{
    static const uint32_t behind[2 * LANES] = {[LANES] = 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const uint32_t *one = behind + LANES - 1 - at;
    for (int i = 0; i < LANES; i++)
        lane[i] -= one[i];
}

static inline void take_out(struct axis *axis, uint32_t slot)
{
    uint32_t word = slot / WORD, block = slot / BLOCK, group = slot / GROUP;
    axis->bits[word] &= ~(UINT64_C(1) << slot % WORD);
    lower16(axis->in_block + word / LANES * LANES, word % LANES);
    if (axis->next > BLOCK)
        lower16(axis->in_group + block / LANES * LANES, block % LANES);
    if (axis->next > GROUP)
        lower32(axis->in_span + group / LANES * LANES, group % LANES);
    for (uint32_t i = slot / SPAN + 1; i <= (axis->next - 1) / SPAN; i++)
        axis->before_span[i]--;
}

static void squeeze(struct axis *axis)
{
    uint32_t n = axis->n_held;
    axis->mark = axis->mark < axis->next ? before(axis, axis->mark) : n;
    for (uint32_t i = 0; i < n; i++)
        axis->slot_of[axis->held[i]] = before(axis, axis->slot_of[axis->held[i]]);
    for (uint32_t slot = 0; slot < n; slot += WORD) {
        begin_word(axis, slot, slot);
        axis->bits[slot / WORD] = n - slot < WORD ? (UINT64_C(1) << (n - slot)) - 1 : UINT64_MAX;
    }
    axis->next = n;
    axis->n_slots = slots_for(n);
}

/* Touch an object; return its distance before that. */
static inline uint32_t touch(struct axis *axis, uint32_t object)
{
    if (axis->next == axis->n_slots)
        squeeze(axis);
    uint32_t slot = axis->slot_of[object], distance = axis->never;
    if (slot == NO_SLOT) {
        axis->held[axis->n_held++] = object;
    } else {
        distance = axis->n_held - before(axis, slot);
        take_out(axis, slot);
    }
    if (axis->next % WORD == 0)
        begin_word(axis, axis->next, axis->n_held - 1);
    axis->bits[axis->next / WORD] |= UINT64_C(1) << axis->next % WORD;
    axis->slot_of[object] = axis->next++;
    return distance;
}

static void touch_all(struct axis *axis, const uint32_t *key, size_t n, uint32_t *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = touch(axis, key[i]);
}

static void touch_event(struct axis *axis, const uint32_t *key, size_t n, uint32_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t slot = axis->slot_of[key[i]];
        if (slot == NO_SLOT)
            out[i] = axis->never;
        else
            out[i] = slot >= axis->mark ? 0 : axis->n_held - before(axis, slot);
    }
    axis->mark = axis->next;
    for (size_t i = 0; i < n; i++)
        touch(axis, key[i]);
}

/* A walk over the accesses, chunk by chunk; no chunk crosses a segment or cuts an event. */
struct walk {
    const struct stack_job *job;
    size_t segment;     /* of the chunk */
    size_t from, to;    /* accesses of the chunk */
    size_t event, upto; /* events of the chunk */
    int fresh;          /* it is the first of its segment */
};

static struct walk walk_over(const struct stack_job *job)
{
    return (struct walk){.job = job, .segment = SIZE_MAX};
}

/* Returns 1 while there is a chunk, then 0; ECANCELED when told to stop. */
static int walk_on(struct walk *walk)
{
    const struct stack_job *job = walk->job;
    if (job->stop && *job->stop)
        return ECANCELED;
    walk->from = walk->to;
    walk->event = walk->upto;
    walk->fresh = 0;
    while (walk->segment == SIZE_MAX || walk->from == job->segments[walk->segment + 1]) {
        if (++walk->segment == job->n_segments)
            return 0;
        walk->fresh = 1;
    }
    size_t end = job->segments[walk->segment + 1];
    walk->to = end - walk->from < CHUNK ? end : walk->from + CHUNK;
    if (!job->events)
        return 1;
    do
        walk->upto++;
    while (job->events[walk->upto] < end && job->events[walk->upto + 1] <= walk->to);
    walk->to = job->events[walk->upto];
    return 1;
}

static void run_chunk(struct axis *axis, const struct walk *walk, uint32_t *out)
{
    const struct stack_job *job = walk->job;
    if (walk->fresh)
        axis_clear(axis);
    if (!job->events)
        touch_all(axis, job->key + walk->from, walk->to - walk->from, out);
    for (size_t i = walk->event; i < walk->upto; i++)
        touch_event(axis, job->key + job->events[i], job->events[i + 1] - job->events[i],
                    out + (job->events[i] - walk->from));
}

/* Room for the distances of any chunk. */
static uint32_t *scratch_for(const struct stack_job *job)
{
    uint64_t widest = CHUNK;
    for (size_t i = 0; job->events && i < job->n_events; i++)
        if (job->events[i + 1] - job->events[i] > widest)
            widest = job->events[i + 1] - job->events[i];
    return malloc(widest * sizeof(uint32_t));
}

int stack_units(const struct stack_job *job, uint32_t *out)
{
    struct walk walk = walk_over(job);
    struct axis axis;
    int state = axis_open(&axis, job->n_objects, STACK_NEVER);
    while (!state && (state = walk_on(&walk)) == 1) {
        run_chunk(&axis, &walk, out + walk.from);
        state = 0;
    }
    axis_close(&axis);
    return state;
}

int stack_histogram(const struct stack_job *job, const uint64_t *score_from, uint64_t *hist)
{
    struct walk walk = walk_over(job);
    struct axis axis;
    uint32_t *distance = scratch_for(job);
    int state = axis_open(&axis, job->n_objects, (uint32_t)job->n_objects + 1);
    memset(hist, 0, (job->n_objects + 2) * sizeof *hist);
    if (!distance)
        state = ENOMEM;
    while (!state && (state = walk_on(&walk)) == 1) {
        run_chunk(&axis, &walk, distance);
        size_t first = score_from[walk.segment] > walk.from ? score_from[walk.segment] : walk.from;
        for (size_t i = first; i < walk.to; i++)
            hist[distance[i - walk.from]]++;
        state = 0;
    }
    axis_close(&axis);
    free(distance);
    return state;
}

/* Where all objects have one size, counting them is enough. */
static int of_one_size(const struct stack_job *job, uint64_t size, uint64_t *out)
{
    struct walk walk = walk_over(job);
    struct axis axis;
    uint32_t *distance = scratch_for(job);
    int state = axis_open(&axis, job->n_objects, STACK_NEVER);
    if (!distance)
        state = ENOMEM;
    while (!state && (state = walk_on(&walk)) == 1) {
        run_chunk(&axis, &walk, distance);
        for (size_t i = walk.from; i < walk.to; i++) {
            uint32_t objects = distance[i - walk.from];
            out[i] = objects == STACK_NEVER ? LRU_FIRST_TOUCH : objects * size;
        }
        state = 0;
    }
    axis_close(&axis);
    free(distance);
    return state;
}

static int of_mixed_sizes(const struct stack_job *job, const uint64_t *size, uint64_t *out)
{
    struct walk walk = walk_over(job);
    struct lru_line line;
    int state = lru_line_open(&line, size, job->n_objects);
    while (!state && (state = walk_on(&walk)) == 1) {
        if (walk.fresh)
            lru_line_clear(&line);
        if (!job->events)
            lru_line_touch(&line, job->key + walk.from, walk.to - walk.from, out + walk.from);
        for (size_t i = walk.event; i < walk.upto; i++)
            lru_line_event(&line, job->key + job->events[i], job->events[i + 1] - job->events[i],
                           out + job->events[i]);
        state = 0;
    }
    lru_line_close(&line);
    return state;
}

int stack_bytes(const struct stack_job *job, const uint64_t *size, uint64_t *out)
{
    for (size_t i = 1; i < job->n_objects; i++)
        if (size[i] != size[0])
            return of_mixed_sizes(job, size, out);
    return of_one_size(job, job->n_objects ? size[0] : 0, out);
}
