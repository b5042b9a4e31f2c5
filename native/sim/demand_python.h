/* belady_hits and lfu_hits, as Python calls them. */
#ifndef MOETIER_SIM_DEMAND_PYTHON_H
#define MOETIER_SIM_DEMAND_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *py_belady_hits(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *py_lfu_hits(PyObject *module, PyObject *args, PyObject *kwargs);

extern const char belady_hits_doc[];
extern const char lfu_hits_doc[];

#endif
