#include "demand_python.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/buffer.h"
#include "demand.h"
#include "lfu.h"
#include "min.h"

enum { KEY, SEGMENTS, EVENTS, SIZE, BUDGETS, SCORE_FROM, HITS, STOP, N_ARGUMENTS };

static const struct {
    const char *name;
    Py_ssize_t itemsize;
    int may_be_none;
} argument[N_ARGUMENTS] = {
    [KEY] = {"key", 4, 0},         [SEGMENTS] = {"segments", 8, 0},     [EVENTS] = {"events", 8, 1},
    [SIZE] = {"size", 8, 1},       [BUDGETS] = {"budgets", 8, 0},       [SCORE_FROM] = {"score_from", 8, 0},
    [HITS] = {"hits", 1, 1},       [STOP] = {"stop", 1, 1},
};

/* The buffers of one call; what is None is not held. */
struct call {
    Py_buffer view[N_ARGUMENTS];
    int held[N_ARGUMENTS];
};

static size_t items(const struct call *call, int which)
{
    return call->held[which] ? (size_t)(call->view[which].len / call->view[which].itemsize) : 0;
}

static const uint64_t *numbers(const struct call *call, int which)
{
    return call->held[which] ? call->view[which].buf : NULL;
}

static void release(struct call *call)
{
    for (int i = 0; i < N_ARGUMENTS; i++)
        if (call->held[i])
            PyBuffer_Release(&call->view[i]);
}

static int take(struct call *call, PyObject *const *object)
{
    for (int i = 0; i < N_ARGUMENTS; i++) {
        if (object[i] == Py_None && argument[i].may_be_none)
            continue;
        if (take_unsigned(object[i], argument[i].name, argument[i].itemsize, &call->view[i]) < 0)
            return -1;
        call->held[i] = 1;
    }
    return 0;
}

static int refuse_item(int which, size_t i, uint64_t seen, const char *expected, uint64_t value)
{
    PyErr_Format(PyExc_ValueError, "%s[%zu] is %llu; expected %s %llu", argument[which].name, i,
                 (unsigned long long)seen, expected, (unsigned long long)value);
    return -1;
}

static int refuse_count(const struct call *call, int which, size_t expected, const char *what)
{
    PyErr_Format(PyExc_ValueError, "%s has %zu items; expected %zu, %s", argument[which].name, items(call, which),
                 expected, what);
    return -1;
}

/* Borders ascend from 0 to the number of accesses. */
static int check_borders(const struct call *call, int which)
{
    const uint64_t *border = numbers(call, which);
    size_t n = items(call, which), n_accesses = items(call, KEY);
    if (n < 1)
        return refuse_count(call, which, 1, "or more: the first access of each and the number of accesses");
    if (border[0])
        return refuse_item(which, 0, border[0], "the first access,", 0);
    for (size_t i = 1; i < n; i++)
        if (border[i] < border[i - 1])
            return refuse_item(which, i, border[i], "at least the border before it,", border[i - 1]);
    if (border[n - 1] != n_accesses)
        return refuse_item(which, n - 1, border[n - 1], "the number of accesses,", n_accesses);
    return 0;
}

/* No event is in two segments. */
static int check_crossing(const struct call *call)
{
    const uint64_t *event = numbers(call, EVENTS), *segment = numbers(call, SEGMENTS);
    size_t at = 0;
    for (size_t i = 0; i < items(call, SEGMENTS); i++) {
        while (event[at] < segment[i])
            at++;
        if (event[at] != segment[i])
            return refuse_item(SEGMENTS, i, segment[i], "the border of an event; the next one is", event[at]);
    }
    return 0;
}

static int check_scores(const struct call *call)
{
    const uint64_t *from = numbers(call, SCORE_FROM), *segment = numbers(call, SEGMENTS);
    size_t n = items(call, SEGMENTS) - 1;
    if (items(call, SCORE_FROM) != n)
        return refuse_count(call, SCORE_FROM, n, "one per segment");
    for (size_t i = 0; i < n; i++) {
        if (from[i] < segment[i])
            return refuse_item(SCORE_FROM, i, from[i], "an access of its segment, at least", segment[i]);
        if (from[i] > segment[i + 1])
            return refuse_item(SCORE_FROM, i, from[i], "an access of its segment, at most", segment[i + 1]);
    }
    return 0;
}

/* Half the range of uint64 is kept free, so that sums inside never wrap. */
static int check_sizes(const struct call *call)
{
    const uint64_t *size = numbers(call, SIZE);
    uint64_t total = 0;
    for (size_t i = 0; i < items(call, SIZE); i++)
        if (__builtin_add_overflow(total, size[i], &total) || total >> 63) {
            PyErr_SetString(PyExc_ValueError, "the sizes add up to 2^63 bytes or more; expected less");
            return -1;
        }
    return 0;
}

/* hits is writable memory of its own, and stop is one byte that someone else may write. */
static int check_written(const struct call *call)
{
    const Py_buffer *hits = &call->view[HITS];
    size_t n = items(call, KEY), b = items(call, BUDGETS), n_hits;
    if (call->held[STOP] && items(call, STOP) != 1)
        return refuse_count(call, STOP, 1, "the flag");
    if (!call->held[HITS])
        return 0;
    if (__builtin_mul_overflow(n, b, &n_hits) || items(call, HITS) != n_hits) {
        PyErr_Format(PyExc_ValueError, "hits has %zu items; expected %zu for each of %zu budgets", items(call, HITS), n,
                     b);
        return -1;
    }
    if (hits->readonly) {
        PyErr_SetString(PyExc_ValueError, "hits is read-only; expected a writable buffer");
        return -1;
    }
    uintptr_t from = (uintptr_t)hits->buf, to = from + (size_t)hits->len;
    for (int i = 0; i < N_ARGUMENTS; i++) {
        uintptr_t start = (uintptr_t)call->view[i].buf;
        if (i == HITS || !call->held[i] || start >= to || from >= start + (size_t)call->view[i].len)
            continue;
        PyErr_Format(PyExc_ValueError, "hits shares memory with %s; expected its own", argument[i].name);
        return -1;
    }
    return 0;
}

/* The number of objects; the first key that is too high for the sizes, if any, is at *bad. */
static size_t count_objects(const struct call *call, size_t *bad)
{
    const uint32_t *key = call->view[KEY].buf;
    size_t n = items(call, KEY), most = call->held[SIZE] ? items(call, SIZE) : SIZE_MAX, highest = 0;
    for (*bad = 0; *bad < n && key[*bad] < most; ++*bad)
        highest = key[*bad] > highest ? key[*bad] : highest;
    return call->held[SIZE] ? most : n ? highest + 1 : 0;
}

/* Whether an event names an object twice: the second time is at *bad, n if never. Returns 0 or ENOMEM. */
static int find_repeated(const struct call *call, size_t n_objects, size_t *bad)
{
    const uint32_t *key = call->view[KEY].buf;
    const uint64_t *event = numbers(call, EVENTS);
    size_t *seen_in = calloc(n_objects + 1, sizeof *seen_in), n = items(call, KEY);
    if (!seen_in)
        return ENOMEM;
    *bad = 0;
    for (size_t e = 1; *bad < n; e++) {
        for (; *bad < event[e] && seen_in[key[*bad]] != e; ++*bad)
            seen_in[key[*bad]] = e;
        if (*bad < event[e])
            break;
    }
    free(seen_in);
    return 0;
}

static int check_length(const struct call *call, size_t n_objects)
{
    const uint64_t *segment = numbers(call, SEGMENTS);
    for (size_t i = 1; i < items(call, SEGMENTS); i++) {
        uint64_t length = segment[i] - segment[i - 1];
        if (length < DEMAND_MOST_POSITIONS && n_objects < DEMAND_MOST_POSITIONS - length)
            continue;
        PyErr_Format(PyExc_ValueError,
                     "segment %zu has %llu accesses, and there are %zu objects; expected fewer than 2^32 - 1 together",
                     i - 1, (unsigned long long)length, n_objects);
        return -1;
    }
    return 0;
}

/* The checks that look at every access, during which others may run. Sets *n_objects. */
static int check_keys(const struct call *call, size_t *n_objects)
{
    const uint32_t *key = call->view[KEY].buf;
    size_t n = items(call, KEY), bad;
    int failed = 0;
    Py_BEGIN_ALLOW_THREADS
    *n_objects = count_objects(call, &bad);
    Py_END_ALLOW_THREADS
    if (bad < n)
        return refuse_item(KEY, bad, key[bad], "an object below the number of sizes,", *n_objects);
    if (check_length(call, *n_objects) < 0)
        return -1;
    if (!call->held[EVENTS])
        return 0;
    Py_BEGIN_ALLOW_THREADS
    failed = find_repeated(call, *n_objects, &bad);
    Py_END_ALLOW_THREADS
    if (failed) {
        PyErr_NoMemory();
        return -1;
    }
    if (bad < n) {
        PyErr_Format(PyExc_ValueError, "key[%zu] names object %lu a second time in its event; expected it once", bad,
                     (unsigned long)key[bad]);
        return -1;
    }
    return 0;
}

static int check(const struct call *call, struct demand *demand)
{
    if (check_borders(call, SEGMENTS) < 0 || check_scores(call) < 0)
        return -1;
    if (call->held[EVENTS] && (check_borders(call, EVENTS) < 0 || check_crossing(call) < 0))
        return -1;
    if (check_sizes(call) < 0 || check_written(call) < 0 || check_keys(call, &demand->n_objects) < 0)
        return -1;
    *demand = (struct demand){
        .key = call->view[KEY].buf,
        .n = items(call, KEY),
        .n_objects = demand->n_objects,
        .segments = numbers(call, SEGMENTS),
        .n_segments = items(call, SEGMENTS) - 1,
        .events = numbers(call, EVENTS),
        .n_events = call->held[EVENTS] ? items(call, EVENTS) - 1 : 0,
        .size = numbers(call, SIZE),
        .budgets = numbers(call, BUDGETS),
        .n_budgets = items(call, BUDGETS),
        .score_from = numbers(call, SCORE_FROM),
        .stop = call->held[STOP] ? call->view[STOP].buf : NULL,
        .hit = call->held[HITS] ? call->view[HITS].buf : NULL,
    };
    return 0;
}

static PyObject *raise_failed(int failed)
{
    if (failed == ENOMEM)
        return PyErr_NoMemory();
    if (failed == ECANCELED)
        PyErr_SetString(PyExc_RuntimeError, "stopped");
    else
        PyErr_SetString(PyExc_OverflowError, "the hits add up to 2^64 bytes or more");
    return NULL;
}

enum policy { BELADY, LFU, LFU_PERFECT };

static PyObject *hits_of(struct demand *demand, enum policy policy)
{
    PyObject *result = NULL;
    Py_ssize_t length = (Py_ssize_t)(demand->n_budgets * sizeof(uint64_t));
    demand->hits = calloc(demand->n_budgets + 1, sizeof(uint64_t));
    demand->hit_bytes = calloc(demand->n_budgets + 1, sizeof(uint64_t));
    int failed = ENOMEM;
    if (demand->hits && demand->hit_bytes) {
        Py_BEGIN_ALLOW_THREADS
        failed = policy == BELADY ? min_hits(demand) : lfu_hits(demand, policy == LFU_PERFECT);
        Py_END_ALLOW_THREADS
    }
    if (failed)
        raise_failed(failed);
    else
        result = Py_BuildValue("(y#y#)", (const char *)demand->hits, length, (const char *)demand->hit_bytes, length);
    free(demand->hit_bytes);
    free(demand->hits);
    return result;
}

static PyObject *simulate(PyObject *const *object, enum policy policy)
{
    struct call call = {0};
    struct demand demand = {0};
    PyObject *result = NULL;
    if (take(&call, object) == 0 && check(&call, &demand) == 0)
        result = hits_of(&demand, policy);
    release(&call);
    return result;
}

PyObject *py_belady_hits(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key", "segments", "events", "size", "budgets", "score_from", "hits", "stop", NULL};
    PyObject *object[N_ARGUMENTS] = {[HITS] = Py_None, [STOP] = Py_None};
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOO|OO:belady_hits", names, &object[KEY], &object[SEGMENTS],
                                     &object[EVENTS], &object[SIZE], &object[BUDGETS], &object[SCORE_FROM],
                                     &object[HITS], &object[STOP]))
        return NULL;
    return simulate(object, BELADY);
}

PyObject *py_lfu_hits(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key",        "segments", "events", "size",    "budgets",
                            "score_from", "hits",     "stop",   "perfect", NULL};
    PyObject *object[N_ARGUMENTS] = {[HITS] = Py_None, [STOP] = Py_None};
    int perfect = 0;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOO|OOp:lfu_hits", names, &object[KEY], &object[SEGMENTS],
                                     &object[EVENTS], &object[SIZE], &object[BUDGETS], &object[SCORE_FROM],
                                     &object[HITS], &object[STOP], &perfect))
        return NULL;
    return simulate(object, perfect ? LFU_PERFECT : LFU);
}

const char belady_hits_doc[] =
    "belady_hits(key, segments, events, size, budgets, score_from, hits=None, stop=None)\n--\n\n"
    "Return the hits and the bytes of hits of Belady's MIN at each budget: two bytes objects of native uint64.\n\n"
    "key: uint32, the object of each access. segments: uint64, the first access of each cache, which starts empty,\n"
    "and the number of accesses. events: uint64, likewise of the events that are looked up at once, or None: access\n"
    "by access. size: uint64 bytes per object, or None: every object counts 1. budgets: uint64, capacities in objects\n"
    "or bytes. score_from: uint64 per segment, its first access that counts. hits: uint8 of budgets x accesses,\n"
    "written with 1 where an access hits, counted or not. stop: one uint8; once it is not 0 the call ends with\n"
    "RuntimeError.\n"
    "Every miss is admitted, unless its object is larger than the capacity; what goes never is of the event that was\n"
    "just looked up. The buffers must not change meanwhile: the GIL is free. Raises ValueError when a buffer has the\n"
    "wrong type, layout, length or content.";

const char lfu_hits_doc[] =
    "lfu_hits(key, segments, events, size, budgets, score_from, hits=None, stop=None, perfect=False)\n--\n\n"
    "Return the hits and the bytes of hits of LFU at each budget, as belady_hits does.\n\n"
    "perfect: uses are counted from the start of the segment, and not anew after each eviction. Of several objects\n"
    "with the fewest uses the one that was used longest ago goes.";
