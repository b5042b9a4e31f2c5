/* The extension module pytest_moetier._trace: its table of functions. */
#include "trace.h"

static PyMethodDef methods[] = {
    {"scan_jsonl", (PyCFunction)(void (*)(void))py_scan_jsonl, METH_VARARGS | METH_KEYWORDS, scan_jsonl_doc},
    {"locality", (PyCFunction)(void (*)(void))py_locality, METH_VARARGS | METH_KEYWORDS, locality_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pytest_moetier._trace",
    .m_doc = "Reading router traces: JSON lines into columns, and the statistics of selections in one pass.",
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__trace(void)
{
    return PyModuleDef_Init(&definition);
}
