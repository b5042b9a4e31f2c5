/* Buffers from Python, checked: for the extension modules. */
#ifndef MOETIER_BUFFER_H
#define MOETIER_BUFFER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Take one-dimensional, contiguous, aligned native unsigned integers of itemsize bytes. On failure nothing is held and
   an exception is set that names the argument; returns 0 or -1. */
int take_unsigned(PyObject *object, const char *name, Py_ssize_t itemsize, Py_buffer *view);

#endif
