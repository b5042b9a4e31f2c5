"""The stored history, over pytest-benchmark's own files: written, read back, compared."""
