#include "trace.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/buffer.h"

/* Statistics of router selections in one pass. Rows are taken in blocks that stay in the cache, and a block layer by
 * layer, so that one layer's experts stay in the nearest cache and its sums in registers. */
#define BLOCK_ROWS ((size_t)8192)
#define BLOCK_BYTES ((size_t)1 << 18)
#define DISTANCES 64
#define LANES 8
#define EVERY_EIGHTH UINT64_C(0x0101010101010101)
#define INLINE static inline __attribute__((always_inline))

/* What is known of one expert of one layer. Passes of a layer are numbered from 1 here, so that 0 is none. */
struct expert {
    uint64_t seen;    /* times chosen << 32 | the last pass that chose it */
    uint64_t history; /* bit i: chosen i passes before that one; bit 0 is that one */
};

/* Per layer, as 64-bit words: sums of |S_t & S_(t-d)| for d = 1..64; then uses by the gap since the expert's last use,
 * with more than 64 as 65; the same of first uses alone, whose gap counts from before the first pass; passes. */
enum { GAPS = DISTANCES + 2, ALL = DISTANCES, FIRSTS = ALL + GAPS, PASSES = FIRSTS + GAPS, SUMS };

struct table {
    struct expert *experts; /* [n_layers][n_experts] */
    uint64_t *sums;         /* [n_layers][SUMS] */
    size_t n_layers;
    size_t n_experts;
};

struct rows {
    const void *ids;
    const uint16_t *layer; /* per row; NULL: rows cycle through the layers */
    size_t n;
    size_t k;
    size_t first; /* the number of the first row */
    int width;    /* bytes of an id */
    uint64_t bound;
};

/* Counts of 64 bits at once: ones, twos and fours stand upright (bit d is a digit of distance d's count); eights are
 * spread over bytes, byte b of lane i counting bit 8 b + i, and moved out before they overflow. */
struct tally {
    uint64_t ones, twos, fours;
    uint64_t lanes[LANES];
    unsigned n_eights;
};

/* Add two bits to a digit in every place at once; the carry belongs to the next digit. */
INLINE uint64_t carry(uint64_t *digit, uint64_t a, uint64_t b)
{
    uint64_t either = a ^ b, out = (a & b) | (either & *digit);
    *digit ^= either;
    return out;
}

static void move_out(struct tally *tally, uint64_t *sums)
{
    for (int i = 0; i < LANES; i++)
        for (int b = 0; b < 8; b++)
            sums[8 * b + i] += 8 * (tally->lanes[i] >> (8 * b) & 0xff);
    memset(tally->lanes, 0, sizeof tally->lanes);
    tally->n_eights = 0;
}

INLINE void add_eight(struct tally *tally, const uint64_t *word, uint64_t *sums)
{
    uint64_t a = carry(&tally->ones, word[0], word[1]), b = carry(&tally->ones, word[2], word[3]);
    uint64_t c = carry(&tally->ones, word[4], word[5]), d = carry(&tally->ones, word[6], word[7]);
    uint64_t e = carry(&tally->twos, a, b), f = carry(&tally->twos, c, d);
    uint64_t eights = carry(&tally->fours, e, f);
    for (int i = 0; i < LANES; i++)
        tally->lanes[i] += eights >> i & EVERY_EIGHTH;
    if (++tally->n_eights == 255)
        move_out(tally, sums);
}

/* Add the words that make no eight, and move out all that is counted. */
static void finish(struct tally *tally, uint64_t *word, size_t n_words, uint64_t *sums)
{
    if (n_words) {
        memset(word + n_words, 0, (8 - n_words) * sizeof *word);
        add_eight(tally, word, sums);
    }
    move_out(tally, sums);
    for (int d = 0; d < DISTANCES; d++)
        sums[d] += (tally->ones >> d & 1) + 2 * (tally->twos >> d & 1) + 4 * (tally->fours >> d & 1);
}

INLINE uint64_t id_at(const void *ids, size_t i, int width)
{
    switch (width) {
    case 1:
        return ((const uint8_t *)ids)[i];
    case 2:
        return ((const uint16_t *)ids)[i];
    case 4:
        return ((const uint32_t *)ids)[i];
    default:
        return ((const uint64_t *)ids)[i];
    }
}

/* Take rows `at` of one layer, in order; -1 when an id is out of range or stands twice in a row. */
INLINE int take(const struct table *table, const struct rows *rows, size_t layer, const uint32_t *at, size_t n,
                int width)
{
    struct expert *restrict experts = table->experts + layer * table->n_experts;
    uint64_t *restrict sums = table->sums + layer * SUMS;
    const void *ids = rows->ids;
    const size_t k = rows->k;
    const uint64_t bound = rows->bound;
    uint32_t pass = (uint32_t)sums[PASSES], gaps[2][GAPS] = {{0}};
    struct tally tally = {0};
    uint64_t word[8];
    size_t n_words = 0;
    for (size_t r = 0; r < n; r++) {
        size_t start = at[r] * k, end = start + k;
        pass++;
        for (size_t i = start; i < end; i++) {
            uint64_t id = id_at(ids, i, width);
            if (id >= bound)
                return -1;
            struct expert *expert = experts + id;
            uint32_t gap = pass - (uint32_t)expert->seen; /* of a first use: from before the first pass; of a twin: 0 */
            uint32_t bin = gap > DISTANCES ? DISTANCES + 1 : gap;
            /* Bit d: chosen d + 1 passes ago. A mask, as nothing could predict a branch. */
            uint64_t before = expert->history << ((gap - 1) & 63) & -(uint64_t)(gap <= DISTANCES);
            gaps[i & 1][bin]++; /* in turn, as an increment waits for one of the same bin just before */
            if (!expert->history)
                sums[FIRSTS + bin]++;
            expert->seen += (UINT64_C(1) << 32) + gap;
            expert->history = before << 1 | 1;
            word[n_words++] = before;
            if (n_words == 8) {
                add_eight(&tally, word, sums);
                n_words = 0;
            }
        }
    }
    finish(&tally, word, n_words, sums);
    for (int bin = 0; bin < GAPS; bin++)
        sums[ALL + bin] += gaps[0][bin] + gaps[1][bin];
    sums[PASSES] = pass;
    return sums[ALL] ? -1 : 0;
}

static int take_layer(const struct table *table, const struct rows *rows, size_t layer, const uint32_t *at, size_t n)
{
    switch (rows->width) { /* a loop of its own for each width */
    case 1:
        return take(table, rows, layer, at, n, 1);
    case 2:
        return take(table, rows, layer, at, n, 2);
    case 4:
        return take(table, rows, layer, at, n, 4);
    default:
        return take(table, rows, layer, at, n, 8);
    }
}

static int take_cycle(const struct table *table, const struct rows *rows, size_t first, size_t end, uint32_t *at)
{
    for (size_t start = first; start < end && start < first + table->n_layers; start++) {
        size_t n = 0;
        for (size_t row = start; row < end; row += table->n_layers)
            at[n++] = (uint32_t)row;
        if (take_layer(table, rows, (rows->first + start) % table->n_layers, at, n) < 0)
            return -1;
    }
    return 0;
}

/* Sort the block's rows by layer, keeping their order; ends[layer] becomes where its rows end in `at`. */
static int take_named(const struct table *table, const struct rows *rows, size_t first, size_t end, uint32_t *at,
                      uint32_t *ends)
{
    memset(ends, 0, (table->n_layers + 1) * sizeof *ends);
    for (size_t row = first; row < end; row++) {
        if (rows->layer[row] >= table->n_layers)
            return -1;
        ends[rows->layer[row] + 1]++;
    }
    for (size_t layer = 0; layer < table->n_layers; layer++)
        ends[layer + 1] += ends[layer];
    for (size_t row = first; row < end; row++)
        at[ends[rows->layer[row]]++] = (uint32_t)row;
    for (size_t layer = 0, start = 0; layer < table->n_layers; start = ends[layer++])
        if (start < ends[layer] && take_layer(table, rows, layer, at + start, ends[layer] - start) < 0)
            return -1;
    return 0;
}

/* Bring the block nearer in one run: layer by layer its lines are read out of order, which is slow from afar. */
static void fetch(const struct rows *rows, size_t first, size_t end)
{
    size_t row_bytes = rows->k * (size_t)rows->width;
    const char *ids = (const char *)rows->ids + first * row_bytes, *stop = (const char *)rows->ids + end * row_bytes;
    for (; ids < stop; ids += 64)
        (void)*(const volatile char *)ids;
}

/* Return how many rows were taken: all, or those before the block with a faulty one; SIZE_MAX when out of memory. */
static size_t take_rows(const struct table *table, const struct rows *rows)
{
    size_t block = BLOCK_BYTES / rows->k / (size_t)rows->width, done = 0;
    block = block < 1 ? 1 : block > BLOCK_ROWS ? BLOCK_ROWS : block;
    /* The block's row numbers, and where each layer's end; in a cycle, one layer's rows at a time. */
    size_t n_at = rows->layer ? block : block / table->n_layers + 1, n_ends = rows->layer ? table->n_layers + 1 : 0;
    uint32_t *at = malloc((n_at + n_ends) * sizeof *at), *ends = at + n_at;
    if (!at)
        return SIZE_MAX;
    while (done < rows->n) {
        size_t end = rows->n - done > block ? done + block : rows->n;
        fetch(rows, done, end);
        int failed = rows->layer ? take_named(table, rows, done, end, at, ends)
                                 : take_cycle(table, rows, done, end, at);
        if (failed)
            break;
        done = end;
    }
    free(at);
    return done;
}

/* Take contiguous native integers of any width and sign; ids of a signed type end where its negative numbers begin. */
static int take_ids(PyObject *object, Py_buffer *view, struct rows *rows)
{
    if (PyObject_GetBuffer(object, view, PyBUF_STRIDES | PyBUF_FORMAT) < 0)
        return -1;
    const char *format = view->format ? view->format : "B";
    if (*format == '@' || *format == '=')
        format++;
    Py_ssize_t width = view->itemsize;
    int is_integer = strlen(format) == 1 && strchr("bBhHiIlLqQ", *format) != NULL;
    if (view->ndim != 1 || !is_integer || !(width == 1 || width == 2 || width == 4 || width == 8))
        PyErr_Format(PyExc_ValueError, "ids has items of format '%s' in %d dimensions; expected native integers in 1",
                     view->format ? view->format : "B", view->ndim);
    else if (!PyBuffer_IsContiguous(view, 'C') || (uintptr_t)view->buf % (size_t)width)
        PyErr_SetString(PyExc_ValueError, "ids is not contiguous or not aligned; expected contiguous, aligned items");
    else {
        rows->ids = view->buf;
        rows->width = (int)width;
        rows->bound = islower((unsigned char)*format) ? UINT64_C(1) << (8 * width - 1) : UINT64_MAX;
        return 0;
    }
    PyBuffer_Release(view);
    return -1;
}

static int overlap(const Py_buffer *a, const Py_buffer *b)
{
    uintptr_t a0 = (uintptr_t)a->buf, b0 = (uintptr_t)b->buf;
    return a0 < b0 + (size_t)b->len && b0 < a0 + (size_t)a->len;
}

static int check_table(const Py_buffer *experts, const Py_buffer *sums, struct table *table)
{
    size_t n_words = (size_t)experts->len / sizeof(uint64_t), n_sums = (size_t)sums->len / sizeof(uint64_t);
    *table = (struct table){.experts = experts->buf, .sums = sums->buf, .n_layers = n_sums / SUMS};
    if (experts->readonly || sums->readonly)
        PyErr_SetString(PyExc_ValueError, "experts or sums is read-only; expected writable buffers");
    else if (!n_sums || n_sums % SUMS)
        PyErr_Format(PyExc_ValueError, "sums has %zu items; expected %d for each layer", n_sums, SUMS);
    else if (!n_words || n_words % (2 * table->n_layers))
        PyErr_Format(PyExc_ValueError, "experts has %zu items; expected 2 for each expert of %zu layers", n_words,
                     table->n_layers);
    else {
        table->n_experts = n_words / 2 / table->n_layers;
        return 0;
    }
    return -1;
}

static int check_rows(const Py_buffer *ids, const Py_buffer *row_layer, const struct table *table, struct rows *rows)
{
    size_t n_ids = (size_t)ids->len / (size_t)rows->width;
    uint64_t most = 0;
    if (rows->k < 1 || n_ids % rows->k) {
        PyErr_Format(PyExc_ValueError, "%zu ids in rows of %zu; expected whole rows of 1 or more", n_ids, rows->k);
        return -1;
    }
    rows->n = n_ids / rows->k;
    rows->bound = rows->bound < table->n_experts ? rows->bound : table->n_experts;
    if (row_layer->obj) {
        rows->layer = row_layer->buf;
        if ((size_t)row_layer->len / sizeof(uint16_t) != rows->n) {
            PyErr_Format(PyExc_ValueError, "row_layer has %zu items; expected %zu, one per row",
                         (size_t)row_layer->len / sizeof(uint16_t), rows->n);
            return -1;
        }
    }
    for (size_t layer = 0; layer < table->n_layers; layer++)
        if (table->sums[layer * SUMS + PASSES] > most)
            most = table->sums[layer * SUMS + PASSES];
    if (rows->n >= UINT32_MAX || most >= UINT32_MAX - rows->n) {
        PyErr_SetString(PyExc_ValueError, "a layer may have 2^32 passes or more; expected fewer");
        return -1;
    }
    return 0;
}

/* Checked inputs in, result or exception out; the buffers are released by the caller. */
static PyObject *taken(const Py_buffer *ids, const Py_buffer *row_layer, const Py_buffer *experts,
                       const Py_buffer *sums, struct rows *rows)
{
    struct table table;
    if (check_table(experts, sums, &table) < 0 || check_rows(ids, row_layer, &table, rows) < 0)
        return NULL;
    if (overlap(experts, sums) || overlap(ids, experts) || overlap(ids, sums) ||
        (row_layer->obj && (overlap(row_layer, experts) || overlap(row_layer, sums)))) {
        PyErr_SetString(PyExc_ValueError, "experts or sums shares memory with another buffer; expected its own");
        return NULL;
    }
    size_t done;
    Py_BEGIN_ALLOW_THREADS
    done = take_rows(&table, rows);
    Py_END_ALLOW_THREADS
    return done == SIZE_MAX ? PyErr_NoMemory() : PyLong_FromSize_t(done);
}

const char locality_doc[] =
    "locality(ids, row_layer, first_row, k, experts, sums)\n--\n\n"
    "Add rows of k ids to the statistics of their layers; return the number of rows added.\n\n"
    "ids: integers of any width; row_layer: uint16 per row, or None where rows cycle through the layers, the first\n"
    "being row first_row of the cycle. experts (uint64, 2 per expert of each layer) and sums (uint64, 197 per layer)\n"
    "start as zeros and carry on from call to call. Per expert: times chosen << 32 | its last pass, from 1; and its\n"
    "history. Per layer: 64 sums of the ids also chosen d = 1..64 passes before; 66 counts of uses by the gap since\n"
    "the expert's last use, 0..64 and more, that of a first use being its pass; the same of first uses alone; passes.\n"
    "Fewer rows than given: one of the next 8192 has a layer or an id out of range, or an id twice; experts and sums\n"
    "are then spoilt. The buffers must not change meanwhile: the GIL is free.\n"
    "Raises ValueError when a buffer has the wrong type, layout or length.";

PyObject *py_locality(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"ids", "row_layer", "first_row", "k", "experts", "sums", NULL};
    PyObject *objects[4], *result = NULL;
    Py_buffer ids = {0}, row_layer = {0}, experts = {0}, sums = {0};
    struct rows rows = {0};
    Py_ssize_t first, k;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOnnOO:locality", names, &objects[0], &objects[1], &first, &k,
                                     &objects[2], &objects[3]))
        return NULL;
    if (first < 0 || k < 1)
        return PyErr_Format(PyExc_ValueError, "first_row is %zd and k is %zd; expected 0 or more and 1 or more", first,
                            k);
    rows.first = (size_t)first;
    rows.k = (size_t)k;
    if (take_ids(objects[0], &ids, &rows) < 0)
        return NULL;
    if ((objects[1] == Py_None || take_unsigned(objects[1], "row_layer", sizeof(uint16_t), &row_layer) == 0) &&
        take_unsigned(objects[2], "experts", sizeof(uint64_t), &experts) == 0 &&
        take_unsigned(objects[3], "sums", sizeof(uint64_t), &sums) == 0)
        result = taken(&ids, &row_layer, &experts, &sums, &rows);
    PyBuffer_Release(&sums); /* one that was not taken holds nothing */
    PyBuffer_Release(&experts);
    PyBuffer_Release(&row_layer);
    PyBuffer_Release(&ids);
    return result;
}
