"""Run something with other builds of the extensions: ``run_with.py FOLDER [--script SCRIPT] ARGUMENTS``.

Under AddressSanitizer the modules cannot be installed for everyone, so they are put in place before anything imports
them: every ``_*.abi3.so`` below FOLDER. Without a script the arguments are pytest's.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest


def replace_module(file: Path) -> None:
    """Put the module in a shared object in place of the installed one."""
    name = f"pytest_moetier.{file.name.split('.')[0]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        sys.exit(f"{file} is no extension module; next: make sanitize")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module


def main() -> int:
    """Load the modules below the first argument and hand the rest to pytest, or to a script."""
    found = sorted(Path(sys.argv[1]).rglob("_*.abi3.so"))
    if not found:
        sys.exit(f"no extension module below {sys.argv[1]}; next: make sanitize")
    for file in found:
        replace_module(file)
    rest = sys.argv[2:]
    if rest[:1] == ["--script"]:
        sys.argv = rest[1:]
        sys.path.insert(0, str(Path(rest[1]).parent))
        runpy.run_path(rest[1], run_name="__main__")  # a script ends by its own exit status
        return 0
    return int(pytest.main(rest))


if __name__ == "__main__":
    sys.exit(main())
