/* The Python boundary of the simulations: every buffer is checked here, and the GIL is released around the work. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdint.h>

#include "belady.h"
#include "common/buffer.h"
#include "content.h"
#include "demand_python.h"
#include "lru.h"
#include "stack_python.h"

static int overlap(const Py_buffer *a, const Py_buffer *b)
{
    uintptr_t a0 = (uintptr_t)a->buf, b0 = (uintptr_t)b->buf;
    return a0 < b0 + (size_t)b->len && b0 < a0 + (size_t)a->len;
}

static int check_indices(const Py_buffer *sequence, size_t n_objects)
{
    const uint32_t *index = sequence->buf;
    size_t n = (size_t)sequence->len / sizeof *index;
    for (size_t i = 0; i < n; i++)
        if (index[i] >= n_objects) {
            PyErr_Format(PyExc_ValueError, "sequence[%zu] is %lu; expected an index below %zu, the number of sizes", i,
                         (unsigned long)index[i], n_objects);
            return -1;
        }
    return 0;
}

/* Half the range of uint64 is kept free, so that sums inside never wrap. */
static int check_total(const Py_buffer *sizes, const char *unit)
{
    const uint64_t *size = sizes->buf;
    size_t n = (size_t)sizes->len / sizeof *size;
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        if (__builtin_add_overflow(total, size[i], &total) || total >> 63) {
            PyErr_Format(PyExc_ValueError, "the sizes add up to 2^63 %s or more; expected less", unit);
            return -1;
        }
    return 0;
}

static PyObject *raise_errno(int failed)
{
    if (failed == ENOMEM)
        return PyErr_NoMemory();
    PyErr_SetString(PyExc_OverflowError, "the misses add up to 2^64 pages or more");
    return NULL;
}

/* The output is writable memory of its own, of n items. */
static int check_out(const Py_buffer *out, size_t n, const char *what, const Py_buffer *sequence, const Py_buffer *sizes)
{
    if (out->readonly)
        PyErr_SetString(PyExc_ValueError, "out is read-only; expected a writable buffer");
    else if ((size_t)out->len / sizeof(uint64_t) != n)
        PyErr_Format(PyExc_ValueError, "out has %zu items; expected %zu, one per %s",
                     (size_t)out->len / sizeof(uint64_t), n, what);
    else if (overlap(out, sequence) || overlap(out, sizes))
        PyErr_SetString(PyExc_ValueError, "out shares memory with an input; expected its own");
    else
        return 0;
    return -1;
}

/* Checked inputs in, exception or NULL-free result out: the three buffers are released by the caller. */
static PyObject *distances_of(const Py_buffer *sequence, const Py_buffer *sizes, const Py_buffer *out, int warm)
{
    size_t n = (size_t)sequence->len / sizeof(uint32_t);
    size_t n_objects = (size_t)sizes->len / sizeof(uint64_t);
    if (check_out(out, n, "access", sequence, sizes) < 0 || check_indices(sequence, n_objects) < 0 ||
        check_total(sizes, "bytes") < 0)
        return NULL;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = lru_distances(sequence->buf, n, sizes->buf, n_objects, warm, out->buf);
    Py_END_ALLOW_THREADS
    if (failed)
        return raise_errno(failed);
    Py_RETURN_NONE;
}

static PyObject *py_lru_distances(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"sequence", "size_bytes", "out", "passes", NULL};
    PyObject *objects[3];
    Py_buffer sequence, sizes, out;
    int passes = 2;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|i:lru_distances", names, &objects[0], &objects[1], &objects[2],
                                     &passes))
        return NULL;
    if (passes < 1)
        return PyErr_Format(PyExc_ValueError, "passes is %d; expected 1 or more", passes);
    PyObject *result = NULL;
    if (take_unsigned(objects[0], "sequence", sizeof(uint32_t), &sequence) < 0)
        return NULL;
    if (take_unsigned(objects[1], "size_bytes", sizeof(uint64_t), &sizes) == 0) {
        if (take_unsigned(objects[2], "out", sizeof(uint64_t), &out) == 0) {
            result = distances_of(&sequence, &sizes, &out, passes > 1);
            PyBuffer_Release(&out);
        }
        PyBuffer_Release(&sizes);
    }
    PyBuffer_Release(&sequence);
    return result;
}

static PyObject *missed_of(const Py_buffer *sequence, const Py_buffer *sizes, uint64_t capacity_pages)
{
    size_t n = (size_t)sequence->len / sizeof(uint32_t);
    size_t n_objects = (size_t)sizes->len / sizeof(uint64_t);
    uint64_t missed = 0;
    if (check_indices(sequence, n_objects) < 0 || check_total(sizes, "pages") < 0)
        return NULL;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = belady_missed_pages(sequence->buf, n, sizes->buf, n_objects, capacity_pages, &missed);
    Py_END_ALLOW_THREADS
    return failed ? raise_errno(failed) : PyLong_FromUnsignedLongLong(missed);
}

static PyObject *py_belady_missed_pages(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"sequence", "size_pages", "capacity_pages", NULL};
    PyObject *objects[3];
    Py_buffer sequence, sizes;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO:belady_missed_pages", names, &objects[0], &objects[1],
                                     &objects[2]))
        return NULL;
    unsigned long long capacity_pages = PyLong_AsUnsignedLongLong(objects[2]);
    if (PyErr_Occurred())
        return NULL;
    PyObject *result = NULL;
    if (take_unsigned(objects[0], "sequence", sizeof(uint32_t), &sequence) < 0)
        return NULL;
    if (take_unsigned(objects[1], "size_pages", sizeof(uint64_t), &sizes) == 0) {
        result = missed_of(&sequence, &sizes, capacity_pages);
        PyBuffer_Release(&sizes);
    }
    PyBuffer_Release(&sequence);
    return result;
}

static PyObject *content_of(const Py_buffer *sequence, const Py_buffer *sizes, uint64_t capacity, int passes,
                            const Py_buffer *out)
{
    size_t n = (size_t)sequence->len / sizeof(uint32_t);
    size_t n_objects = (size_t)sizes->len / sizeof(uint64_t);
    if (check_out(out, n_objects, "size", sequence, sizes) < 0 || check_indices(sequence, n_objects) < 0 ||
        check_total(sizes, "bytes") < 0)
        return NULL;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = belady_content(sequence->buf, n, sizes->buf, n_objects, capacity, passes, out->buf);
    Py_END_ALLOW_THREADS
    if (failed)
        return raise_errno(failed);
    Py_RETURN_NONE;
}

static PyObject *py_belady_content(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"sequence", "size_bytes", "capacity_bytes", "out", "passes", NULL};
    PyObject *objects[4];
    Py_buffer sequence, sizes, out;
    int passes = 2;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO|i:belady_content", names, &objects[0], &objects[1],
                                     &objects[2], &objects[3], &passes))
        return NULL;
    unsigned long long capacity = PyLong_AsUnsignedLongLong(objects[2]);
    if (PyErr_Occurred())
        return NULL;
    if (passes < 1)
        return PyErr_Format(PyExc_ValueError, "passes is %d; expected 1 or more", passes);
    PyObject *result = NULL;
    if (take_unsigned(objects[0], "sequence", sizeof(uint32_t), &sequence) < 0)
        return NULL;
    if (take_unsigned(objects[1], "size_bytes", sizeof(uint64_t), &sizes) == 0) {
        if (take_unsigned(objects[3], "out", sizeof(uint64_t), &out) == 0) {
            result = content_of(&sequence, &sizes, capacity, passes, &out);
            PyBuffer_Release(&out);
        }
        PyBuffer_Release(&sizes);
    }
    PyBuffer_Release(&sequence);
    return result;
}

PyDoc_STRVAR(lru_doc, "lru_distances(sequence, size_bytes, out, passes=2)\n--\n\n"
                      "Write the LRU stack distance, in bytes, of each access of the last of `passes` runs.\n\n"
                      "sequence: uint32 indices into size_bytes; size_bytes: uint64 per object; out: uint64 per access.\n"
                      "A first touch has distance 2**64 - 1. The buffers must not change meanwhile: the GIL is free.\n"
                      "Raises ValueError when a buffer has the wrong type, layout, length or content.");

PyDoc_STRVAR(belady_doc, "belady_missed_pages(sequence, size_pages, capacity_pages)\n--\n\n"
                         "Return the fewest pages that any cache of capacity_pages reads over one run.\n\n"
                         "sequence: uint32 indices into size_pages; size_pages: uint64 per object. Bypass is allowed\n"
                         "and the initial content is the best one. Raises ValueError as lru_distances does.");

PyDoc_STRVAR(content_doc,
             "belady_content(sequence, size_bytes, capacity_bytes, out, passes=2)\n--\n\n"
             "Write the bytes of each object that Belady's MIN holds after `passes` runs, of which one more follows.\n\n"
             "sequence: uint32 indices into size_bytes; size_bytes: uint64 per object; out: uint64 per object. Bypass is\n"
             "allowed, an object may be held in part, and the cache starts empty. The buffers must not change meanwhile:\n"
             "the GIL is free. Raises ValueError as lru_distances does.");

static PyMethodDef methods[] = {
    {"lru_distances", (PyCFunction)(void (*)(void))py_lru_distances, METH_VARARGS | METH_KEYWORDS, lru_doc},
    {"belady_missed_pages", (PyCFunction)(void (*)(void))py_belady_missed_pages, METH_VARARGS | METH_KEYWORDS,
     belady_doc},
    {"belady_content", (PyCFunction)(void (*)(void))py_belady_content, METH_VARARGS | METH_KEYWORDS, content_doc},
    {"lru_stack", (PyCFunction)(void (*)(void))py_lru_stack, METH_VARARGS | METH_KEYWORDS, lru_stack_doc},
    {"lru_histogram", (PyCFunction)(void (*)(void))py_lru_histogram, METH_VARARGS | METH_KEYWORDS, lru_histogram_doc},
    {"belady_hits", (PyCFunction)(void (*)(void))py_belady_hits, METH_VARARGS | METH_KEYWORDS, belady_hits_doc},
    {"lfu_hits", (PyCFunction)(void (*)(void))py_lfu_hits, METH_VARARGS | METH_KEYWORDS, lfu_hits_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pytest_moetier._sim",
    .m_doc = "Cache simulations over uint32 access sequences: exact LRU for every capacity, and Belady's bound.",
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__sim(void)
{
    return PyModuleDef_Init(&definition);
}
