"""A real engine: llama.cpp, driven through its C API in a process of its own (paper section 9).

It says which experts a model's router chose (``capture``), and what becomes of the bytes that it reads when the page
cache is admitted, dropped or advised (``lab``). The engine's process is the worker; it is told a ``Job`` and answers in
events, one JSON object a line.
"""
