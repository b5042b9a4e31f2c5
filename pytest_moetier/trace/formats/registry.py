"""The registry of readers: a format is one function with ``@reader``, and is told by content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_moetier.trace.rows import Hints, Rows
from pytest_moetier.trace.source import Source

Read = Callable[[Source, Hints], Rows]


@dataclass(frozen=True, slots=True)
class Reader:
    """A format.

    Attributes:
        name: as ``--format`` takes it.
        what: what it is, in words and by example.
        sniff: tells from a file's head whether it is of this format, and of no other.
        read: returns the file's rows; raises InputError for content that breaks the format's rules.
        refuses: it holds no selections: it is recognised in order to say so.
    """

    name: str
    what: str
    sniff: Callable[[Source], bool]
    read: Read
    refuses: bool = False


READERS: dict[str, Reader] = {}


def reader(name: str, sniff: Callable[[Source], bool], *, refuses: bool = False) -> Callable[[Read], Read]:
    """Register a reader; its docstring's first line is what ``moetier trace formats`` says of it.

    Args:
        name: of the format, as ``--format`` takes it.
        sniff: tells from a file's head whether it is of this format.
        refuses: it is recognised only to be refused.
    """

    def register(function: Read) -> Read:
        if name in READERS:
            raise ValueError(f"two readers are called {name!r}")
        what = (function.__doc__ or "").strip().split("\n", 1)[0]
        READERS[name] = Reader(name, what, sniff, function, refuses)
        return function

    return register
