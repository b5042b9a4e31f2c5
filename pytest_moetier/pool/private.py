"""Files that are written whole or not at all, private to their owner, and never through a link."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from pytest_moetier.errors import InputError

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


def write_private(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Replace ``path`` by a file of mode 0600 that holds ``parts``, atomically and durably.

    Raises:
        InputError: ``path`` is a link, a folder or special file, or cannot be written; the message says why.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "a symbolic link" if path.is_symlink() else "no plain file"
        raise InputError(f"{path} is {kind}", "a plain file, or none yet", "remove it or choose another path")
    new = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(new, _FLAGS, 0o600)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}",
            "a folder that may be written to",
            f"ls -ld {path.parent}",
        ) from error
    try:
        with os.fdopen(descriptor, "wb") as handle:
            for part in parts:
                handle.write(part)
            handle.flush()
            os.fsync(handle.fileno())
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise InputError(
            f"{path} cannot be written: {error.strerror}",
            "room on the device for the whole file",
            "free some, or choose another folder (TMPDIR for temporary files)",
        ) from error
    except BaseException:
        new.unlink(missing_ok=True)
        raise
