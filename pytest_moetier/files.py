"""Files whole or not at all, in folders that may be written to: what is refused is refused before anything runs."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from pytest_moetier.errors import InputError

_REPORT_NEEDS = ("matplotlib", "jinja2")


def write_whole(path: Path, data: bytes) -> None:
    """Write beside the target, then rename: a full disk or a kill leaves the old file.

    Raises:
        InputError: it cannot be written.
    """
    new, path = None, path.resolve()
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no plain file", "a plain file, or none yet", "choose another")
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            new = Path(file.name)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.chmod(0o644)
        new.replace(path)
    except OSError as error:
        if new is not None:
            with suppress(OSError):
                new.unlink()
        raise InputError(f"{error.strerror}", "a folder that may be written to, with room", "choose another") from error


def write_folder(folder: Path, contents: dict[str, bytes]) -> None:
    """Write files into a folder, which is made where it is missing; each whole or not at all.

    Raises:
        InputError: the folder cannot be made, or a file not be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{error.strerror}", "a folder that may be made", "choose another") from error
    for name, content in contents.items():
        write_whole(folder / name, content)


def report_folder(value: str, option: str) -> Path:
    """Return the folder of a report, which may yet have to be made; refused now where it surely cannot be.

    Args:
        value: what the user named.
        option: by which option.

    Raises:
        InputError: it cannot be written to, or what reports are drawn with is not installed.
    """
    path = Path(value)
    whole = path.resolve()
    there = next(one for one in (whole, *whole.parents) if one.exists())
    why = ""
    if not there.is_dir():
        why = f"{'it' if there == whole else there} is no folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        why = f"{there} may not be written to"
    if why:
        raise InputError(
            f"{option} {value} cannot be written: {why}",
            "a folder that may be written to, or made",
            "name another",
        )
    missing = [one for one in _REPORT_NEEDS if find_spec(one) is None]
    if missing:
        raise InputError(
            f"{option} draws with {' and '.join(_REPORT_NEEDS)}, of which {' and '.join(missing)} cannot be found",
            "the extra `report`",
            "pip install 'pytest-moetier[report]'",
        )
    return path
