"""Finding the native parts: the executables `moetier-replay`, `moetier-balloon`, `moetier-agent` and `moetier-probe`.

They are package data (`pytest_moetier/bin`, and `pytest_moetier/bin/static` for a machine without our C library) of an
installed wheel. In an editable install the package has more than one folder, so each is looked into. The environment
variable `MOETIER_BIN` names a folder that is used instead.
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


def _folders() -> tuple[list[Path], str]:
    """Return the folders that executables may be in, and what to call them."""
    if override := os.environ.get(BIN_VARIABLE):
        return [Path(override)], f"{BIN_VARIABLE}={override}"
    return _package_folders(), "the package's folders"


def _first(name: str, folders: list[Path]) -> tuple[Path | None, list[str]]:
    """Return the first executable of this name, or None; and the places tried before it, each with what was there."""
    tried: list[str] = []
    for folder in folders:
        path = (folder / name).absolute()
        if path.is_file() and os.access(path, os.X_OK):
            return path, tried
        tried.append(f"{path} ({'not executable' if path.is_file() else 'absent'})")
    return None, tried


def executable(name: str) -> Path:
    """Return the absolute path of the native executable ``name``.

    Args:
        name: ``moetier-replay``, ``moetier-balloon``, ``moetier-agent`` or ``moetier-probe``.

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
    folders, source = _folders()
    path, tried = _first(name, folders)
    if path is None:
        raise HarnessError(f"{name} is not in {source}: tried {', '.join(tried)}", "an executable file", _INSTALL)
    return path


def static_executable(name: str) -> Path:
    """Return the absolute path of the statically linked executable ``name``: it runs where no C library is.

    Args:
        name: as for :func:`executable`.

    Raises:
        UnsupportedHostError: there is none, as where the install could not link statically.
    """
    folders, source = _folders()
    path, tried = _first(name, [folder / "static" for folder in folders])
    if path is None:
        raise UnsupportedHostError(
            f"no statically linked {name} in {source}: tried {', '.join(tried)}",
            "a Linux install that could link one (libc.a)",
            "apt-get install libc6-dev (Fedora: dnf install glibc-static), then install pytest-moetier again",
        )
    return path
