"""What a command says: text or JSON on stdout, notes and progress on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from pytest_moetier.units import format_bytes

Progress = Callable[[int, int], None]

_PLAIN_SECONDS = 2.0


def print_json(content: Mapping[str, object]) -> None:
    """Print one JSON object."""
    say(json.dumps(content))


def say(*lines: str) -> None:
    """Print lines on stdout."""
    if sys.stdout is not None:  # closed by the caller
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def note(line: str) -> None:
    """Print a line on stderr."""
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")


def silence_stdout() -> None:
    """Keep the interpreter from complaining at exit about what could not be written."""
    if sys.stdout is not None:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def progress(what: str, unit: str) -> Iterator[Progress]:
    """Yield a function of (done, total): a rich bar on a terminal's stderr, else a plain line every two seconds."""
    if sys.stderr is not None and sys.stderr.isatty():
        with _bar(what, unit) as show:
            yield show
        return
    last = time.monotonic()

    def plain(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last < _PLAIN_SECONDS and done < total:
            return
        last = time.monotonic()
        amount = f"{format_bytes(done)} of {format_bytes(total)}" if unit == "bytes" else f"{done} of {total} {unit}"
        note(f"{what}: {amount} ({done / max(total, 1):.0%})")

    yield plain


@contextmanager
def _bar(what: str, unit: str) -> Iterator[Progress]:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
