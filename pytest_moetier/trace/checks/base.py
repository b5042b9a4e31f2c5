"""What every contamination check is made of: what it found, how it is settled, and the views of rows they share.

A check looks at arranged rows (``parser.arrange``) and returns what it found, or None; what is done about it is chosen
by the check's name. Where a check decides by probability, chance is held against ``CERTAIN_BITS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import comb, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.errors import InputError
from pytest_moetier.trace.findings import ACTIONS, TraceFinding
from pytest_moetier.trace.records import UNION, Trace
from pytest_moetier.trace.rows import PREFILL, Rows

I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]
Policy = Mapping[str, str]
"""Check name -> action."""

CERTAIN_BITS = 30.0
"""What is seen would happen by chance once in 2^30 files: about 1e-9."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a check found, before it is settled what is done about it.

    Attributes:
        what: what it is, in words.
        where: lines, layers or iterations.
        amount: how much of the trace it concerns.
        repaired: returns the rows without it; None where there is no such repair.
        dropped: what was done when the repair is taken, in words.
        expected: what a trace should have instead.
        default: the action where the user chose none and it depends on what was found; empty: the check's own.
        only_raw: nothing else is in the file, so that it can be kept with ``--raw`` alone.
    """

    what: str
    where: str
    amount: str
    dropped: str = ""
    expected: str = ""
    repaired: Callable[[], Rows] | None = None
    default: str = ""
    only_raw: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, what is done by default, what else can be, and what it looks for in one line."""

    name: str
    default: str
    actions: tuple[str, ...]
    what: str

    def override(self, found: Found, taken: str) -> str:
        """Return the options that have it otherwise than ``taken``."""
        offered = [action for action in self.actions if action != taken and not (action == "keep" and found.only_raw)]
        others = [f"--on {self.name}={action}" for action in offered]
        if "keep" in self.actions and taken != "keep":
            others.append("--raw, which keeps everything")
        return " or ".join(others)

    def finding(self, found: Found, taken: str, done: str) -> TraceFinding:
        """Return what is said of it."""
        return TraceFinding(self.name, found.what, found.where, found.amount, done, self.override(found, taken))

    def action(self, policy: Policy, found: Found) -> str:
        """Return what is to be done about what was found."""
        return policy.get(self.name) or found.default or self.default

    def refused(self, found: Found) -> InputError:
        """Return the error that what was found is refused with."""
        seen = f"{self.name}: {found.what}, {found.where}, {found.amount}"
        return InputError(seen, found.expected, self.override(found, "refuse"))

    def settle(self, rows: Rows, found: Found, policy: Policy) -> tuple[Rows, TraceFinding]:
        """Return the rows that are left, and what is said.

        Raises:
            InputError: it is to be refused, or nothing would be left without it.
        """
        action = self.action(policy, found)
        if action == "refuse":
            raise self.refused(found)
        if action == "keep" or found.repaired is None:
            return rows, self.finding(found, "keep", "kept")
        left = found.repaired()
        if not left.n:
            whole = f"{self.name}: {found.what}, {found.where}, {found.amount}: without it no record is left"
            raise InputError(whole, "routing beside it", self.override(found, "drop"))
        return left, self.finding(found, "drop", found.dropped)


@dataclass(frozen=True, slots=True)
class RowCheck(Check):
    """A check of arranged rows."""

    look: Callable[[Rows], Found | None]


@dataclass(frozen=True, slots=True)
class TraceCheck(Check):
    """A check of a whole trace, which can be said or refused."""

    look: Callable[[Trace], Found | None]


def row_check(
    name: str, default: str, actions: Sequence[str] = ACTIONS
) -> Callable[[Callable[[Rows], Found | None]], RowCheck]:
    """Make a function a check; its docstring's first line is what ``moetier trace check --list`` says of it."""

    def made(look: Callable[[Rows], Found | None]) -> RowCheck:
        return RowCheck(name, default, tuple(actions), first_line(look.__doc__), look)

    return made


def trace_check(
    name: str, default: str, actions: Sequence[str]
) -> Callable[[Callable[[Trace], Found | None]], TraceCheck]:
    """Make a function of a trace a check, as ``row_check`` does."""

    def made(look: Callable[[Trace], Found | None]) -> TraceCheck:
        return TraceCheck(name, default, tuple(actions), first_line(look.__doc__), look)

    return made


def first_line(doc: str | None) -> str:
    """Return the first line of a docstring."""
    return (doc or "").strip().split("\n", 1)[0]


class Iterations:
    """The iterations of arranged rows, prompt and decode alike, numbered through."""

    def __init__(self, rows: Rows) -> None:
        """Look at where one ends and the next begins."""
        self._rows = rows
        begins = np.ones(rows.n, dtype=bool)
        begins[1:] = (np.diff(rows.key) != 0) | (rows.phase[1:] != rows.phase[:-1])
        self.starts: I64 = np.flatnonzero(begins)
        self.of: I64 = np.cumsum(begins) - 1
        self.n = len(self.starts)

    @cached_property
    def order(self) -> I64:
        """The iterations in the file's order: by their first line."""
        return np.argsort(np.minimum.reduceat(self._rows.line, self.starts), kind="stable")

    def all_rows(self, mask: Mask) -> Mask:
        """Return which iterations have ``mask`` in all their rows."""
        whole: Mask = np.logical_and.reduceat(mask, self.starts)
        return whole

    def any_row(self, mask: Mask) -> Mask:
        """Return which iterations have ``mask`` in one of their rows."""
        some: Mask = np.logical_or.reduceat(mask, self.starts)
        return some

    def rows_of(self, chosen: Mask) -> Mask:
        """Return the rows of the chosen iterations."""
        mask: Mask = chosen[self.of]
        return mask


def renumbered(rows: Rows) -> Rows:
    """Return rows, in the order of iterations, whose iterations are numbered from 0 within their phase again."""
    if not rows.n:
        return rows
    its = Iterations(rows)
    n_prefill = int(np.count_nonzero(rows.phase[its.starts] == PREFILL))
    return replace(rows, key=np.where(rows.phase == PREFILL, its.of, its.of - n_prefill))


def without(rows: Rows, gone: Mask) -> Rows:
    """Return the other rows, numbered again."""
    return renumbered(rows.take(~gone))


def in_file_order(rows: Rows) -> I64:
    """Return the rows' indices in the order of the file's lines."""
    if bool((np.diff(rows.line) >= 0).all()):
        return np.arange(rows.n)
    return np.argsort(rows.line, kind="stable")


def places(rows: Rows, which: NDArray[Any]) -> str:
    """Return where the chosen rows stand in the file, in words."""
    lines = rows.line[which]
    first, last = int(lines.min()), int(lines.max())
    return f"{rows.about.place} {first}" if first == last else f"{rows.about.place}s {first} to {last}"


def layer_words(layers: Sequence[int]) -> str:
    """Return a few layers in words."""
    shown = ", ".join(map(str, layers[:5])) + (f" and {len(layers) - 5} more" if len(layers) > 5 else "")
    return f"layer {shown}" if len(layers) == 1 else f"layers {shown}"


def counted(n: int, one: str, many: str = "") -> str:
    """Return a number with its noun."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def share(part: int, whole: int) -> str:
    """Return a share in words."""
    percent = 100 * part / whole
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def experts_of(rows: Rows) -> int:
    """Return the experts per layer as stated, or as the ids show."""
    return rows.about.n_experts or int(rows.ids.max()) + 1


def k_of(rows: Rows) -> int:
    """Return k, which ``arrange`` found."""
    return rows.about.k or 1


def bits_of_choice(n_experts: int, k: int) -> float:
    """Return how improbable one given choice of k experts is, as -log2."""
    return log2(comb(n_experts, k)) if k <= n_experts else 0.0


def bits_of_distinct(n_experts: int, k: int, positions: int) -> float:
    """Return how improbable it is that independent positions share no expert, as -log2."""
    one = bits_of_choice(n_experts, k)
    return sum(one - bits_of_choice(n_experts - at * k, k) for at in range(positions))


def whole_passes(rows: Rows) -> Mask:
    """Return which rows are whole passes of k ids, position after position."""
    whole: Mask = (rows.width % k_of(rows) == 0) & (rows.kind != UNION)
    return whole


def flat_index(starts: I64, counts: I64) -> I64:
    """Return the indices starts[i], starts[i] + 1, ... of counts[i] items each, one after another."""
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(starts, counts) + within


def same_ids(rows: Rows, one: I64, other: I64) -> Mask:
    """Return, pair by pair of rows, whether they name the same ids in the same order."""
    equal: Mask = rows.width[one] == rows.width[other]
    at = np.flatnonzero(equal & (rows.width[one] > 0))
    if not len(at):
        return equal
    starts, widths = rows.offsets[:-1], rows.width[one[at]]
    hits = rows.ids[flat_index(starts[one[at]], widths)] == rows.ids[flat_index(starts[other[at]], widths)]
    equal[at] = np.logical_and.reduceat(hits, np.cumsum(widths) - widths)
    return equal
