/* lru_stack and lru_histogram, as Python calls them. */
#ifndef MOETIER_SIM_STACK_PYTHON_H
#define MOETIER_SIM_STACK_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *py_lru_stack(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *py_lru_histogram(PyObject *module, PyObject *args, PyObject *kwargs);

extern const char lru_stack_doc[];
extern const char lru_histogram_doc[];

#endif
