"""What a baseline is called: a number, a file, a kernel, a host, or the latest; and the storage it is looked for in."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_moetier.cell import HOST
from pytest_moetier.errors import InputError
from pytest_moetier.history.sessions import StoredCell, StoredSession, read_session, read_sessions, storage_files

LATEST = "latest"
_FORMS = f"{LATEST}, a number such as 0007, a file, kernel:RELEASE, host:ID, or several of them with commas"
_NEXT = "moetier history list"


@dataclass(frozen=True, slots=True)
class Storage:
    """The sessions of a folder, oldest first, and what was left out, by name and with its reason."""

    folder: Path
    sessions: tuple[StoredSession, ...]
    skipped: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> Storage:
        """Return what a storage folder has; one that does not exist has nothing."""
        with locked(folder, exclusive=False):
            found, skipped = read_sessions(storage_files(folder))
        return cls(folder, tuple(found), tuple(skipped))

    def find(self, words: str, exclude: Sequence[StoredSession] = ()) -> list[StoredSession]:
        """Return the sessions that a word names, or several words with commas; no cell of a session of ``exclude``.

        Raises:
            InputError: there is none, or the word may mean several.
        """
        here = [left for one in self.sessions if (left := _without(one, exclude)).cells]
        found = [self._one(word.strip(), here) for word in words.split(",") if word.strip()]
        if not found:
            raise InputError(f"{words!r} names no session", _FORMS, _NEXT)
        return list({one.path.resolve(): one for one in found}.values())

    def _one(self, word: str, here: Sequence[StoredSession]) -> StoredSession:
        kind, _, what = word.partition(":")
        if word == LATEST:
            found = list(here)
        elif kind == "kernel" and what:
            found = [picked for one in here if (picked := _on_kernel(one, what)) is not None]
        elif kind == "host" and what:
            found = [one for one in here if one.host.startswith(what)]
        elif word.isascii() and word.isdigit():
            found = [one for one in here if one.number == word.zfill(4)]
            if len(found) > 1:
                files = " and ".join(str(one.path) for one in found)
                raise InputError(f"{word} is the number of {files}", "one session", "name the file")
        else:
            return _file(word)
        if not found:
            raise self._none(word, here)
        return found[-1]

    def baseline(self, word: str, *, needed: bool) -> tuple[StoredSession, ...]:
        """Return what a running session is held against: for the latest, the newest cells and the newest traces.

        Args:
            word: what it is called.
            needed: whether there has to be one with cells; else there may be no latest one.

        Raises:
            InputError: there is none.
        """
        found = self._newest() if word == LATEST else self.find(word)
        if needed and all(cell.traced for one in found for cell in one.cells.values()):
            raise self._none(f"{word} with cells", self.sessions)
        return tuple(found)

    def _newest(self) -> list[StoredSession]:
        """Return the newest session with cells, and the newest with traces, each with those alone; none where none."""
        found = []
        for traced in (False, True):
            picked = [
                replace(one, cells=cells)
                for one in self.sessions
                if (cells := {name: cell for name, cell in one.cells.items() if cell.traced == traced})
            ]
            found += picked[-1:]
        return found

    def _none(self, word: str, here: Sequence[StoredSession]) -> InputError:
        """Return why there is no such session, with what there is."""
        others = f"; it has {len(here)}, {here[0].name} to {here[-1].name}" if here else ""
        skipped = f"; skipped: {'; '.join(self.skipped)}" if self.skipped else ""
        return InputError(
            f"no {'other ' * (len(here) < len(self.sessions))}stored session {word} in {self.folder}{others}{skipped}",
            _FORMS,
            _NEXT if here else "store one: pytest bench/ --benchmark-autosave",
        )


def _without(session: StoredSession, exclude: Sequence[StoredSession]) -> StoredSession:
    """Return a session without the cells of others from its file: those on another kernel may be a baseline."""
    own = {name for one in exclude if one.path.resolve() == session.path.resolve() for name in one.cells}
    cells = {name: one for name, one in session.cells.items() if name not in own}
    return replace(session, cells=cells) if own else session


def _file(word: str) -> StoredSession:
    path = Path(word)
    if path.is_dir():
        raise InputError(f"{word} is a folder", _FORMS, "with an option before a folder: --moetier-compare=latest")
    if not path.exists() and not (path.suffix or "/" in word):
        raise InputError(f"{word!r} names no session", _FORMS, _NEXT)
    return read_session(path)


def _on_kernel(session: StoredSession, word: str) -> StoredSession | None:
    """Return a session with the cells alone that were measured on a kernel; None where it has none."""
    cells = {name: one for name, one in session.cells.items() if _is_on(session, one, word)}
    return replace(session, cells=cells, unproved={}) if cells else None


def _is_on(session: StoredSession, cell: StoredCell, word: str) -> bool:
    """Whether a kernel is called so: by its label, or by how its release begins (6.1 is not 6.12)."""
    label = cell.words.get("kernel", HOST)
    if cell.traced:
        return False
    return word == label or re.match(rf"{re.escape(word)}(?![0-9])", session.release_of(cell)) is not None


@contextmanager
def locked(folder: Path, *, exclusive: bool) -> Iterator[None]:
    """Hold the lock on a storage folder: two sessions that save at once would take the same number.

    Where the folder cannot be locked (some network file systems), or is not there, nothing is held.
    """
    descriptor = -1
    try:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)
