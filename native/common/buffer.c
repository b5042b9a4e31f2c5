#include "common/buffer.h"

#include <stdint.h>
#include <string.h>

int take_unsigned(PyObject *object, const char *name, Py_ssize_t itemsize, Py_buffer *view)
{
    if (PyObject_GetBuffer(object, view, PyBUF_STRIDES | PyBUF_FORMAT) < 0) {
        view->obj = NULL;
        return -1;
    }
    const char *format = view->format ? view->format : "B";
    if (*format == '@' || *format == '=')
        format++;
    int is_unsigned = strlen(format) == 1 && strchr("BHILQ", *format) != NULL;
    if (view->ndim != 1)
        PyErr_Format(PyExc_ValueError, "%s has %d dimensions; expected 1", name, view->ndim);
    else if (!is_unsigned || view->itemsize != itemsize)
        PyErr_Format(PyExc_ValueError, "%s has items of format '%s', %zd bytes each; expected native uint%d", name,
                     view->format ? view->format : "B", view->itemsize, (int)itemsize * 8);
    else if (!PyBuffer_IsContiguous(view, 'C'))
        PyErr_Format(PyExc_ValueError, "%s is not contiguous (stride %zd bytes); expected contiguous items", name,
                     view->strides[0]);
    else if ((uintptr_t)view->buf % (size_t)itemsize)
        PyErr_Format(PyExc_ValueError, "%s starts at an address that is no multiple of %zd", name, itemsize);
    else
        return 0;
    PyBuffer_Release(view);
    return -1;
}
