#include "trace.h"

const char scan_jsonl_doc[] = "";

PyObject *py_scan_jsonl(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module, (void)args, (void)kwargs;
    PyErr_SetString(PyExc_NotImplementedError, "scan_jsonl");
    return NULL;
}
