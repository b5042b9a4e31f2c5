"""One figure of a report: what it shows and rests on in words, its numbers in a table, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_moetier.documents import Result
from pytest_moetier.page.drawing import named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TOLD = 12
"""Rows of a table that a figure's content in words has; of more it has the first and the last."""


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers in words: the heads of the columns, and the rows."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure.

    Attributes:
        name: of its files, without suffix.
        title: what it shows; that a trace or a pool is synthetic stands here.
        basis: what it rests on.
        table: its numbers.
        draw: makes the figure of a page, which has title and basis beside it.
        whole: makes the figure of a file, with both in it; None: they are set above and below it.
    """

    name: str
    title: str
    basis: str
    table: Table
    draw: Callable[[], Figure]
    whole: Callable[[], Figure] | None = None

    def of_file(self) -> Figure:
        """Return the figure that stands alone."""
        return self.whole() if self.whole else named(self.draw(), self.title, self.basis)

    @property
    def alt(self) -> str:
        """Its content in words."""
        heads, rows = self.table.heads, self.table.rows
        lines = [", ".join(f"{head} {word}" for head, word in zip(heads, row, strict=True)) for row in rows]
        told = lines if len(lines) <= _TOLD else [lines[0], "...", lines[-1]]
        return f"{self.title}. {self.basis}. {'; '.join(told)}."


def made(result: Result) -> str:
    """Return what of a result was generated, for titles; "" for nothing."""
    return f" ({', '.join(f'synthetic {one}' for one in result.synthetic)})" if result.synthetic else ""
