"""How much of a pool is in the page cache: every file once at the start, then a few a sample, in turn.

Asking for every file of a pool of one file per expert, each second, would cost more than all else that is watched.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_moetier.host import residency

FILES_A_LOOK = 64


class PoolCache:
    """The last known residency of each file of a pool."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Remember the files; nothing is opened before the first look."""
        self._paths = tuple(paths)
        self._seen: list[int] = []
        self._next = 0
        self._total = 0

    def look(self) -> int | None:
        """Return the resident bytes of all files as last seen; None where no probe tells the truth."""
        if not self._seen:
            found = [_resident(path) for path in self._paths]
            if None in found:
                return None
            self._seen = [one or 0 for one in found]
            self._total = sum(self._seen)
            return self._total
        for _ in range(min(FILES_A_LOOK, len(self._paths))):
            found_now = _resident(self._paths[self._next])
            if found_now is None:
                return None
            self._total += found_now - self._seen[self._next]
            self._seen[self._next] = found_now
            self._next = (self._next + 1) % len(self._paths)
        return self._total


def _resident(path: Path) -> int | None:
    """Return a file's resident bytes; a file that is gone has none."""
    try:
        return residency.resident_bytes(path)
    except FileNotFoundError:
        return 0
    except OSError:
        return None
