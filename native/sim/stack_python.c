#include "stack_python.h"

#include <errno.h>
#include <stdint.h>

#include "common/buffer.h"
#include "stack.h"

enum { KEY, SEGMENTS, EVENTS, OTHER, OUT, STOP, N_ARGUMENTS };

/* The arguments of one call; what is None has no object. */
struct call {
    const char *const *names;
    Py_buffer view[N_ARGUMENTS];
    int held[N_ARGUMENTS];
};

static size_t items(const struct call *call, int which)
{
    return call->held[which] ? (size_t)(call->view[which].len / call->view[which].itemsize) : 0;
}

static int take(struct call *call, int which, PyObject *object, Py_ssize_t itemsize, int may_be_none)
{
    if (may_be_none && object == Py_None)
        return 0;
    if (take_unsigned(object, call->names[which], itemsize, &call->view[which]) < 0)
        return -1;
    call->held[which] = 1;
    return 0;
}

static PyObject *end(struct call *call, PyObject *result)
{
    for (int i = 0; i < N_ARGUMENTS; i++)
        if (call->held[i])
            PyBuffer_Release(&call->view[i]);
    return result;
}

static int refuse_item(const char *name, size_t i, uint64_t seen, const char *expected, uint64_t value)
{
    PyErr_Format(PyExc_ValueError, "%s[%zu] is %llu; expected %s %llu", name, i, (unsigned long long)seen, expected,
                 (unsigned long long)value);
    return -1;
}

/* Borders ascend from 0 to the number of accesses. */
static int check_borders(const struct call *call, int which)
{
    const uint64_t *border = call->view[which].buf;
    const char *name = call->names[which];
    size_t n = items(call, which), n_accesses = items(call, KEY);
    if (n < 1) {
        PyErr_Format(PyExc_ValueError, "%s has no items; expected the first access of each and their number", name);
        return -1;
    }
    if (border[0])
        return refuse_item(name, 0, border[0], "the first access,", 0);
    for (size_t i = 1; i < n; i++)
        if (border[i] < border[i - 1])
            return refuse_item(name, i, border[i], "at least the border before it,", border[i - 1]);
    if (border[n - 1] != n_accesses)
        return refuse_item(name, n - 1, border[n - 1], "the number of accesses,", n_accesses);
    return 0;
}

static int check_events(const struct call *call)
{
    const uint64_t *event = call->view[EVENTS].buf, *segment = call->view[SEGMENTS].buf;
    size_t at = 0;
    if (!call->held[EVENTS])
        return 0;
    if (check_borders(call, EVENTS) < 0)
        return -1;
    for (size_t i = 0; i < items(call, SEGMENTS); i++) {
        while (event[at] < segment[i])
            at++;
        if (event[at] != segment[i])
            return refuse_item(call->names[SEGMENTS], i, segment[i], "the border of an event; the next one is",
                               event[at]);
    }
    return 0;
}

static int check_keys(const struct call *call, size_t n_objects, const char *what)
{
    const uint32_t *key = call->view[KEY].buf;
    for (size_t i = 0; i < items(call, KEY); i++)
        if (key[i] >= n_objects) {
            PyErr_Format(PyExc_ValueError, "key[%zu] is %lu; expected an object below %zu, %s", i,
                         (unsigned long)key[i], n_objects, what);
            return -1;
        }
    return 0;
}

static int check_objects(size_t n_objects)
{
    if (n_objects <= STACK_MOST_OBJECTS)
        return 0;
    PyErr_Format(PyExc_ValueError, "there are %zu objects; expected at most %lu", n_objects,
                 (unsigned long)STACK_MOST_OBJECTS);
    return -1;
}

/* Half the range of uint64 is kept free, so that sums inside never wrap. */
static int check_sizes(const struct call *call)
{
    const uint64_t *size = call->view[OTHER].buf;
    uint64_t total = 0;
    for (size_t i = 0; i < items(call, OTHER); i++)
        if (__builtin_add_overflow(total, size[i], &total) || total >> 63) {
            PyErr_SetString(PyExc_ValueError, "the sizes add up to 2^63 bytes or more; expected less");
            return -1;
        }
    return 0;
}

/* The output is writable memory of its own, and stop is one byte that someone else may write. */
static int check_out(const struct call *call)
{
    const Py_buffer *out = &call->view[OUT];
    uintptr_t from = (uintptr_t)out->buf, to = from + (size_t)out->len;
    if (out->readonly) {
        PyErr_Format(PyExc_ValueError, "%s is read-only; expected a writable buffer", call->names[OUT]);
        return -1;
    }
    for (int i = 0; i < N_ARGUMENTS; i++) {
        uintptr_t start = (uintptr_t)call->view[i].buf;
        if (i == OUT || !call->held[i] || start >= to || from >= start + (size_t)call->view[i].len)
            continue;
        PyErr_Format(PyExc_ValueError, "%s shares memory with %s; expected its own", call->names[OUT], call->names[i]);
        return -1;
    }
    if (call->held[STOP] && items(call, STOP) != 1) {
        PyErr_Format(PyExc_ValueError, "stop has %zu items; expected 1", items(call, STOP));
        return -1;
    }
    return 0;
}

static struct stack_job job_of(const struct call *call, size_t n_objects)
{
    return (struct stack_job){
        .key = call->view[KEY].buf,
        .n_objects = n_objects,
        .segments = call->view[SEGMENTS].buf,
        .n_segments = items(call, SEGMENTS) - 1,
        .events = call->held[EVENTS] ? call->view[EVENTS].buf : NULL,
        .n_events = call->held[EVENTS] ? items(call, EVENTS) - 1 : 0,
        .stop = call->held[STOP] ? call->view[STOP].buf : NULL,
    };
}

static PyObject *done(int failed)
{
    if (failed == ENOMEM)
        return PyErr_NoMemory();
    if (failed) {
        PyErr_SetString(PyExc_RuntimeError, "stopped");
        return NULL;
    }
    Py_RETURN_NONE;
}

static size_t objects_in(const struct call *call)
{
    const uint32_t *key = call->view[KEY].buf;
    size_t highest = 0, n = items(call, KEY);
    for (size_t i = 0; i < n; i++)
        highest = key[i] > highest ? key[i] : highest;
    return n ? highest + 1 : 0;
}

static PyObject *stack_of(const struct call *call)
{
    int with_sizes = call->held[OTHER], failed;
    size_t n = items(call, KEY), n_objects = with_sizes ? items(call, OTHER) : objects_in(call);
    if (items(call, OUT) != n)
        return PyErr_Format(PyExc_ValueError, "out has %zu items; expected %zu, one per access", items(call, OUT), n);
    if (check_out(call) < 0 || check_borders(call, SEGMENTS) < 0 || check_events(call) < 0 ||
        check_objects(n_objects) < 0)
        return NULL;
    if (with_sizes && (check_keys(call, n_objects, "the number of sizes") < 0 || check_sizes(call) < 0))
        return NULL;
    struct stack_job job = job_of(call, n_objects);
    Py_BEGIN_ALLOW_THREADS
    failed = with_sizes ? stack_bytes(&job, call->view[OTHER].buf, call->view[OUT].buf)
                        : stack_units(&job, call->view[OUT].buf);
    Py_END_ALLOW_THREADS
    return done(failed);
}

PyObject *py_lru_stack(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key", "segments", "events", "size", "out", "stop", NULL};
    struct call call = {.names = (const char *const *)names};
    PyObject *object[N_ARGUMENTS] = {[STOP] = Py_None};
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO|O:lru_stack", names, &object[KEY], &object[SEGMENTS],
                                     &object[EVENTS], &object[OTHER], &object[OUT], &object[STOP]))
        return NULL;
    if (take(&call, KEY, object[KEY], 4, 0) < 0 || take(&call, SEGMENTS, object[SEGMENTS], 8, 0) < 0 ||
        take(&call, EVENTS, object[EVENTS], 8, 1) < 0 || take(&call, OTHER, object[OTHER], 8, 1) < 0 ||
        take(&call, OUT, object[OUT], call.held[OTHER] ? 8 : 4, 0) < 0 || take(&call, STOP, object[STOP], 1, 1) < 0)
        return end(&call, NULL);
    return end(&call, stack_of(&call));
}

static int check_scores(const struct call *call)
{
    const uint64_t *from = call->view[OTHER].buf, *segment = call->view[SEGMENTS].buf;
    size_t n = items(call, SEGMENTS) - 1;
    if (items(call, OTHER) != n) {
        PyErr_Format(PyExc_ValueError, "score_from has %zu items; expected %zu, one per segment", items(call, OTHER),
                     n);
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        if (from[i] < segment[i])
            return refuse_item("score_from", i, from[i], "an access of its segment, at least", segment[i]);
        if (from[i] > segment[i + 1])
            return refuse_item("score_from", i, from[i], "an access of its segment, at most", segment[i + 1]);
    }
    return 0;
}

static PyObject *histogram_of(const struct call *call)
{
    int failed;
    if (items(call, OUT) < 2)
        return PyErr_Format(PyExc_ValueError, "hist has %zu items; expected the number of objects + 2",
                            items(call, OUT));
    size_t n_objects = items(call, OUT) - 2;
    if (check_out(call) < 0 || check_borders(call, SEGMENTS) < 0 || check_events(call) < 0 || check_scores(call) < 0 ||
        check_objects(n_objects) < 0 || check_keys(call, n_objects, "two less than hist has items") < 0)
        return NULL;
    struct stack_job job = job_of(call, n_objects);
    Py_BEGIN_ALLOW_THREADS
    failed = stack_histogram(&job, call->view[OTHER].buf, call->view[OUT].buf);
    Py_END_ALLOW_THREADS
    return done(failed);
}

PyObject *py_lru_histogram(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key", "segments", "events", "score_from", "hist", "stop", NULL};
    struct call call = {.names = (const char *const *)names};
    PyObject *object[N_ARGUMENTS] = {[STOP] = Py_None};
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO|O:lru_histogram", names, &object[KEY], &object[SEGMENTS],
                                     &object[EVENTS], &object[OTHER], &object[OUT], &object[STOP]))
        return NULL;
    if (take(&call, KEY, object[KEY], 4, 0) < 0 || take(&call, SEGMENTS, object[SEGMENTS], 8, 0) < 0 ||
        take(&call, EVENTS, object[EVENTS], 8, 1) < 0 || take(&call, OTHER, object[OTHER], 8, 0) < 0 ||
        take(&call, OUT, object[OUT], 8, 0) < 0 || take(&call, STOP, object[STOP], 1, 1) < 0)
        return end(&call, NULL);
    return end(&call, histogram_of(&call));
}

const char lru_stack_doc[] =
    "lru_stack(key, segments, events, size, out, stop=None)\n--\n\n"
    "Write the LRU stack distance of each access, itself included: it hits iff that is at most the capacity.\n\n"
    "key: uint32, the object of each access. segments: uint64, the first access of each cache and the number of\n"
    "accesses. events: uint64, likewise of what is looked up at once, or None: access by access. size: uint64 per\n"
    "object, or None: every object counts 1. out: per access uint64 bytes (2**64 - 1 for a first touch), or without\n"
    "sizes uint32 objects (2**32 - 1). An object of the segment's previous event has distance 0: it is held at every\n"
    "capacity. stop: one uint8; once it is not 0 the call ends with RuntimeError. The buffers must not change\n"
    "meanwhile: the GIL is free. Raises ValueError when a buffer has the wrong type, layout, length or content.";

const char lru_histogram_doc[] =
    "lru_histogram(key, segments, events, score_from, hist, stop=None)\n--\n\n"
    "Count the accesses by their LRU stack distance in objects, as lru_stack has it, without a figure per access.\n\n"
    "score_from: uint64 per segment, its first access that counts. hist: uint64 of the number of objects + 2; the\n"
    "last item counts first touches. The rest is as for lru_stack.";
