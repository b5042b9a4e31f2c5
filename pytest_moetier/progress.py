"""Progress of a campaign: cells take minutes, so each phase and the time left are shown."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from pytest_moetier.cell import Cell
from pytest_moetier.units import format_seconds

_PLAIN_SECONDS = 10.0
"""How often a phase that goes on is reported again where lines cannot be rewritten."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a campaign is.

    Attributes:
        done: finished runs.
        total: runs of the whole campaign; 0 before it is known.
        cell: the cell that is measured now, or None.
        phase: what is being done to it.
        iteration: finished iterations of the phase.
        iterations: iterations of a pass.
        elapsed_seconds: since the first run began.
    """

    done: int
    total: int
    cell: Cell | None
    phase: str
    iteration: int
    iterations: int
    elapsed_seconds: float

    @property
    def left(self) -> str:
        """Estimated time to the end from the runs so far, in words; empty before the first has finished."""
        if not self.done:
            return ""
        return f", about {format_seconds(self.elapsed_seconds / self.done * (self.total - self.done))} left"

    @property
    def title(self) -> str:
        """The run and its phase."""
        if self.cell is None:
            return f"moetier: {self.phase}"
        return f"moetier: [{self.done + 1}/{self.total}] {self.cell.id}: {self.phase}"


class Reporter(Protocol):
    """What a campaign tells its progress to; entered when it begins to measure."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End, also after an error or Ctrl-C."""

    def __call__(self, progress: Progress) -> None:
        """Report."""


class Silent:
    """Reports nothing."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def __call__(self, progress: Progress) -> None:
        """Do nothing."""


class Lines:
    """A plain line per phase, and again every ten seconds: for logs."""

    def __init__(self, stream: IO[str]) -> None:
        """Write to ``stream``."""
        self._stream = stream
        self._last = ""
        self._said = 0.0

    def __enter__(self) -> Self:
        """Begin on a line of its own: pytest has written the file's name."""
        self._write("\n")
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing open."""

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # nobody reads any more: no reason to lose a measurement
            self._stream.write(text)
            self._stream.flush()

    def __call__(self, progress: Progress) -> None:
        """Write a line when the phase is new, or has gone on for long."""
        now = time.monotonic()
        if progress.title == self._last and now - self._said < _PLAIN_SECONDS:
            return
        self._last, self._said = progress.title, now
        count = f" {progress.iteration}/{progress.iterations}" if progress.iteration > 1 else ""
        self._write(f"{progress.title}{count}{progress.left}\n")


class Bar:
    """One line with a bar, rewritten in place: for terminals."""

    def __init__(self, stream: IO[str]) -> None:
        """Draw on ``stream``."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._bars = Bars(*columns, console=Console(file=stream), transient=True, refresh_per_second=5)
        self._task: Any = None

    def __enter__(self) -> Self:
        """Start drawing."""
        self._bars.start()
        self._task = self._bars.add_task("moetier", total=None, left="")
        return self

    def __exit__(self, *_: object) -> None:
        """Stop drawing and leave the line empty."""
        self._bars.stop()

    def __call__(self, progress: Progress) -> None:
        """Move the bar."""
        total = progress.iterations or None
        self._bars.update(
            self._task,
            description=progress.title,
            completed=progress.iteration,
            total=total,
            left=progress.left.removeprefix(", "),
        )


def reporter(stream: IO[str] | None, verbosity: int) -> Reporter:
    """Return how to report on ``stream``: a bar on a terminal, lines elsewhere, nothing for ``-qq`` or when closed."""
    if stream is None or verbosity < -1:
        return Silent()
    return Bar(stream) if stream.isatty() else Lines(stream)
