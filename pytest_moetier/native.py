"""Finding the native parts: the executables `moetier-replay` and `moetier-balloon`, and the extension `_sim`.

They are package data (`pytest_moetier/bin`) of an installed wheel. In an editable install the package has more than one
folder, so each is looked into. The environment variable `MOETIER_BIN` names a folder that is used instead.
"""

from __future__ import annotations

import importlib
import importlib.resources
import os
import sys
from pathlib import Path

import pytest_moetier
from pytest_moetier.errors import HarnessError, UnsupportedHostError

BIN_VARIABLE = "MOETIER_BIN"
_INSTALL = "pip install . (it builds the native parts; a C compiler is needed), or name their folder in MOETIER_BIN"


def _package_folders() -> list[Path]:
    """Return every folder that package data may be in, each once, in the order they are looked into."""
    resource = importlib.resources.files("pytest_moetier")
    named = [resource] if isinstance(resource, Path) else []
    folders = [folder / "bin" for folder in (*named, *map(Path, pytest_moetier.__path__))]
    return list(dict.fromkeys(folders))


def executable(name: str) -> Path:
    """Return the absolute path of the native executable ``name``.

    Args:
        name: ``moetier-replay`` or ``moetier-balloon``.

    Raises:
        UnsupportedHostError: the host is not Linux, for which alone the executables are built.
        HarnessError: there is none; the message lists every place tried.
    """
    if not sys.platform.startswith("linux"):
        raise UnsupportedHostError(
            f"{name} is for Linux alone, and this is {sys.platform}",
            "a Linux host",
            "measure on one; traces and simulations work here (moetier trace --help)",
        )
    override = os.environ.get(BIN_VARIABLE)
    folders = [Path(override)] if override else _package_folders()
    tried = []
    for folder in folders:
        path = (folder / name).absolute()
        if path.is_file() and os.access(path, os.X_OK):
            return path
        tried.append(f"{path} ({'not executable' if path.is_file() else 'absent'})")
    source = f"{BIN_VARIABLE}={override}" if override else "the package's folders"
    raise HarnessError(f"{name} is not in {source}: tried {', '.join(tried)}", "an executable file", _INSTALL)
