/* The functions of pytest_moetier._trace: each file has one, with its documentation, and checks its own arguments. */
#ifndef MOETIER_TRACE_H
#define MOETIER_TRACE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *py_scan_jsonl(PyObject *module, PyObject *args, PyObject *kwargs);
extern const char scan_jsonl_doc[];

PyObject *py_locality(PyObject *module, PyObject *args, PyObject *kwargs);
extern const char locality_doc[];

#endif
