#include "trace.h"

const char locality_doc[] = "";

PyObject *py_locality(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module, (void)args, (void)kwargs;
    PyErr_SetString(PyExc_NotImplementedError, "locality");
    return NULL;
}
