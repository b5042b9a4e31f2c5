"""Run pytest with another build of the extension: ``run_with.py _sim.abi3.so [pytest arguments]``.

Under AddressSanitizer the module cannot be installed for everyone, so it is put in place before anything imports it.
"""

from __future__ import annotations

import importlib.util
import sys

import pytest

NAME = "pytest_moetier._sim"


def main() -> int:
    """Load the module from the path in the first argument and hand the rest to pytest."""
    spec = importlib.util.spec_from_file_location(NAME, sys.argv[1])
    if spec is None or spec.loader is None:
        sys.exit(f"{sys.argv[1]} is no extension module; next: make sanitize")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
    return int(pytest.main(sys.argv[2:]))


if __name__ == "__main__":
    sys.exit(main())
