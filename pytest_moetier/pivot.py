"""Cells x kernels of stored sessions: a regression between kernels is visible as such.

Each kernel is marked against the one before it where their medians differ by more than the 14.9% within which the
paper's mechanisms agree (section 5), and the ranges of their boots do not overlap.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from pytest_moetier.cell import HOST
from pytest_moetier.errors import InputError
from pytest_moetier.history.sessions import StoredCell, StoredSession, read_session
from pytest_moetier.history.tables import aligned
from pytest_moetier.units import format_bytes

DIFFERS = 0.149
"""Share by which the medians of two kernels must differ for a mark."""
APART = 0.04
"""Share by which the residencies of one cell may differ: each is within 2% of the same target."""
METRICS = ("device_bytes", "amplification")
_RESIDENCY = "observed_capacity_bytes"
_TITLES = {"device_bytes": "device bytes per iteration", "amplification": "amplification (device / nominal)"}
_MEASURE = "pytest bench/ -k reclaim --moetier-kernel 6.12 --moetier-json FILE"
_CONTEXT = {
    "pool_id": "pool",
    "trace": "trace",
    "plan_crc": "plan",
    "iterations": "iterations",
    "threads": "threads",
    "compute_seconds": "compute phase",
}
_MACHINE = {"accelerator": "accelerator", "cpus": "processors"}
_RELEASE = re.compile(r"(\d+(?:\.\d+)*)(.*)")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of a column: the word that cells call it, and the release that was booted ("" where none was)."""

    label: str
    release: str

    @property
    def age(self) -> tuple[list[int], bool, list[int]]:
        """What kernels are sorted by: version, release candidates first, and what follows in the release's name."""
        match = _RELEASE.match(self.release or self.label)
        if match is None:  # a name without a version: behind all others
            return [1 << 30], True, []
        version = [int(one) for one in match[1].split(".")]
        more = [int(one) for one in re.findall(r"\d+", match[2])]
        return version + [0] * (3 - len(version)), not re.match(r"[-~.]?rc\d", match[2]), more


@dataclass(frozen=True, slots=True)
class Seen:
    """One metric of one cell on one kernel.

    Attributes:
        values: of each boot.
        change: median / that of the kernel before, less 1; None for the first.
        marked: it differs by more than ``DIFFERS``, and no boot lies within the range of the other's.
    """

    values: tuple[float, ...]
    change: float | None = None
    marked: bool = False

    @property
    def median(self) -> float:
        """The median over the boots."""
        return float(median(self.values))

    def after(self, before: Seen | None) -> Seen:
        """Return it held against the kernel before."""
        if before is None or not before.median:
            return self
        change = self.median / before.median - 1
        beside = min(self.values) > max(before.values) or max(self.values) < min(before.values)
        return Seen(self.values, change, abs(change) > DIFFERS and beside)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a cell was on one kernel.

    Attributes:
        values: of each metric, one of each boot; empty where none was proved.
        facts: what it must share with the other kernels to be compared.
        settings: what else its machine had: read-ahead and the like.
        source: the files that it is from.
        verdict: on the cell.
        reason: why.
    """

    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    verdict: str = ""
    reason: str = ""

    def with_boots_of(self, other: Measured) -> Measured:
        """Return it with the boots of another file's."""
        values = {name: (*self.values[name], *more) for name, more in other.values.items() if name in self.values}
        return replace(self, values=values, source=f"{self.source}, {other.source}")


@dataclass(frozen=True, slots=True)
class Pivot:
    """Cells by kernels.

    Attributes:
        kernels: the columns, by age.
        rows: what each cell was on the kernels that have it, by its id without the kernel.
        metrics: that are shown.
    """

    kernels: tuple[Kernel, ...]
    rows: Mapping[str, Mapping[Kernel, Measured]]
    metrics: tuple[str, ...] = METRICS

    def seen(self, cell: str, metric: str) -> Iterator[tuple[Kernel, Seen | None]]:
        """Yield a metric of a cell on every kernel, each held against the one before it that has it."""
        before = None
        for kernel in self.kernels:
            values = (one := self.rows[cell].get(kernel)) and one.values.get(metric)
            found = Seen(values).after(before) if values else None
            before = found or before
            yield kernel, found


def read_pivot(paths: Iterable[Path]) -> Pivot:
    """Return the cells that were measured in guests in files of ``--moetier-json`` or of a storage, by kernel.

    Raises:
        InputError: a file is no session of ours, or as for ``pivot_of``.
    """
    return pivot_of(read_session(path) for path in dict.fromkeys(one.resolve() for one in paths))


def pivot_of(sessions: Iterable[StoredSession], metrics: tuple[str, ...] = METRICS, *, hosts: bool = False) -> Pivot:
    """Return the cells of sessions by kernel.

    One cell on one kernel in several sessions has the boots of all of them. Cells of a host have rows of their own,
    with the rounds of the last session on each kernel.

    Args:
        sessions: oldest first.
        metrics: to show.
        hosts: whether cells of hosts have a place: their device is another than a guest's.

    Raises:
        InputError: none has such a cell, or a cell was not measured with the same pool, trace, plan, threads or machine
            on every kernel: it names what differs.
    """
    rows: dict[str, dict[Kernel, Measured]] = {}
    for session in sessions:
        for cell in session.cells.values():
            on_host = not cell.traced and cell.guest is None
            kernel, found = _kernel_of(session, cell), _measured(cell, session.path, metrics)
            if cell.guest is not None:
                _add(rows.setdefault(cell.base, {}), cell.base, kernel, found)
            elif on_host and hosts:
                rows.setdefault(f"{cell.id} on {session.host}", {})[kernel] = found
        for name, (verdict, reason) in session.unproved.items():
            cell_id, _, label = name.partition("-k")
            if label:
                row = rows.setdefault(cell_id, {})
                here = next((one for one in row if one.label == label), None) or _booted(session, label)
                row.setdefault(here, Measured(source=session.path.name, verdict=verdict, reason=reason))
    if not rows:
        raise InputError(f"no cell of a virtual machine{' or a host' * hosts} in these files", "one at least", _MEASURE)
    for cell_id, row in rows.items():
        _compare(cell_id, row)
    kernels = sorted(dict.fromkeys(kernel for row in rows.values() for kernel in row), key=lambda one: one.age)
    return Pivot(tuple(kernels), rows, metrics)


def _kernel_of(session: StoredSession, cell: StoredCell) -> Kernel:
    return Kernel(HOST if cell.guest is None else str(cell.guest["kernel"]), session.release_of(cell))


def _booted(session: StoredSession, label: str) -> Kernel:
    """Return the kernel of a label as it was booted for other cells of the session; no release where for none."""
    others = (_kernel_of(session, one) for one in session.cells.values() if one.guest is not None)
    return next((one for one in others if one.label == label), Kernel(label, ""))


def _measured(cell: StoredCell, path: Path, metrics: Iterable[str]) -> Measured:
    values = {name: cell.metrics[name].values for name in (*metrics, _RESIDENCY) if name in cell.metrics}
    guest = cell.guest or {}
    facts = {word: cell.context.get(name) for name, word in _CONTEXT.items()}
    facts |= {word: guest.get(name) for name, word in _MACHINE.items()}
    return Measured(values, facts, guest.get("settings", {}), path.name, str(cell.words.get("verdict", "")))


def _add(row: dict[Kernel, Measured], cell: str, kernel: Kernel, found: Measured) -> None:
    """Add what another file has of a cell and kernel: more boots of the same, if it is the same."""
    known = row.setdefault(kernel, found)
    if known is found:
        return
    if not known.values or not found.values:
        row[kernel] = known if known.values else found
        return
    _refuse_apart(cell, (kernel, known), (kernel, found))
    row[kernel] = known.with_boots_of(found)


def _compare(cell: str, row: Mapping[Kernel, Measured]) -> None:
    measured = [(kernel, one) for kernel, one in row.items() if one.values]
    for other in measured[1:]:
        _refuse_apart(cell, measured[0], other)


def _refuse_apart(cell: str, first: tuple[Kernel, Measured], second: tuple[Kernel, Measured]) -> None:
    (kernel, one), (other_kernel, other) = first, second
    apart = [name for name, value in one.facts.items() if other.facts[name] != value]
    if apart:
        values = "; ".join(f"{name} {one.facts[name]} and {other.facts[name]}" for name in apart)
        names = f"{_name(kernel)} ({one.source}) and on {_name(other_kernel)} ({other.source})"
        raise InputError(
            f"{cell} on {names} differ in {values}",
            f"the same {', '.join(apart)}",
            "measure all kernels alike: make kernels, or name the sessions that were",
        )


def _name(kernel: Kernel) -> str:
    return kernel.release or kernel.label


def _heads(kernels: Sequence[Kernel]) -> list[str]:
    """Return the columns' heads; the label as well where one release was booted under several."""
    names = [_name(one) for one in kernels]
    return [
        f"{name} ({one.label})" if names.count(name) > 1 else name for one, name in zip(kernels, names, strict=True)
    ]


def _shown(metric: str, seen: Seen) -> str:
    form = format_bytes if metric.endswith("bytes") else "{:.3f}".format
    low, high = form(min(seen.values)), form(max(seen.values))
    text = form(seen.median) + (f" ({low} to {high})" if len(seen.values) > 1 else "")
    return f"{text} [{seen.change:+.1%}]" if seen.marked and seen.change is not None else text


def _table(pivot: Pivot, metric: str) -> list[list[str]]:
    """Return the rows of a metric's table, the head first."""
    rows = [["cell", *_heads(pivot.kernels)]]
    for cell, row in pivot.rows.items():
        words = []
        for kernel, seen in pivot.seen(cell, metric):
            here = row.get(kernel)
            missing = "not asked for" if here is None else "not observed" if here.values else here.verdict
            words.append(_shown(metric, seen) if seen else missing)
        rows.append([cell, *words])
    return rows


def text_of(pivot: Pivot) -> list[str]:
    """Return the tables as lines of plain text."""
    lines = [*_rests_on(pivot), ""]
    for metric in pivot.metrics:
        lines += [_TITLES.get(metric, metric), *aligned(_table(pivot, metric)), ""]
    return [*lines, *_notes(pivot)]


def markdown_of(pivot: Pivot) -> list[str]:
    """Return the tables as lines of Markdown."""
    lines = [f"{line}  " for line in _rests_on(pivot)]
    for metric in pivot.metrics:
        head, *rows = (f"| {' | '.join(row)} |" for row in _table(pivot, metric))
        lines += ["", f"**{_TITLES.get(metric, metric)}**", "", head, "|---" * (len(pivot.kernels) + 1) + "|", *rows]
    return [*lines, "", *(f"- {line}" for line in _notes(pivot))]


def as_json(pivot: Pivot) -> dict[str, Any]:
    """Return the tables as JSON: per cell and kernel median, least, most, the boots' values and the change."""
    return {
        "differs": DIFFERS,
        "kernels": [{"label": one.label, "release": one.release or None} for one in pivot.kernels],
        "cells": [{"cell": cell, "kernels": _row_json(pivot, cell)} for cell in pivot.rows],
        "notes": _notes(pivot),
    }


def _row_json(pivot: Pivot, cell: str) -> list[dict[str, Any]]:
    seen = {metric: dict(pivot.seen(cell, metric)) for metric in (*pivot.metrics, _RESIDENCY)}
    rows = []
    for kernel, one in ((kernel, pivot.rows[cell].get(kernel)) for kernel in pivot.kernels):
        if one is not None:
            metrics = {name: _seen_json(found) for name, by in seen.items() if (found := by[kernel]) is not None}
            row: dict[str, Any] = {"label": kernel.label, "release": kernel.release or None, "verdict": one.verdict}
            rows.append({**row, **metrics, "rests_on": dict(one.facts), "settings": dict(one.settings)})
    return rows


def _seen_json(seen: Seen) -> dict[str, Any]:
    return {
        "median": seen.median,
        "min": min(seen.values),
        "max": max(seen.values),
        "values": list(seen.values),
        "change": seen.change,
        "marked": seen.marked,
    }


def as_csv(pivot: Pivot) -> str:
    """Return the tables as CSV: a row for each cell, kernel and metric."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["cell", "kernel", "release", "metric", "median", "min", "max", "values", "change", "marked"])
    for cell in pivot.rows:
        for metric in pivot.metrics:
            for kernel, seen in pivot.seen(cell, metric):
                if seen is not None:
                    numbers = [
                        seen.median,
                        min(seen.values),
                        max(seen.values),
                        len(seen.values),
                        seen.change,
                        seen.marked,
                    ]
                    table.writerow([cell, kernel.label, kernel.release, metric, *numbers])
    return text.getvalue()


def _rests_on(pivot: Pivot) -> list[str]:
    """Return a line for each set of pool, plan and machine that cells were measured with."""
    found: dict[str, list[str]] = {}
    for cell, row in pivot.rows.items():
        facts = next((one.facts for one in row.values() if one.values), None)
        if facts is not None:
            on = (
                f"guests by {facts['accelerator']}, {facts['processors']} processors"
                if facts["processors"]
                else "hosts"
            )
            words = (
                f"pool {facts['pool']}, plan {facts['plan']}, {facts['iterations']} iterations, {facts['threads']}"
                f" threads; {on}; trace {facts['trace']}"
            )
            found.setdefault(words, []).append(cell)
    one_for_all = len(found) == 1
    return [words if one_for_all else f"{', '.join(cells)}: {words}" for words, cells in found.items()]


def _notes(pivot: Pivot) -> list[str]:
    """Return what the marks mean, how many boots the values are of, what is missing and why, and what is unequal."""
    boots = {len(next(iter(one.values.values()))) for row in pivot.rows.values() for one in row.values() if one.values}
    count = " to ".join(map(str, sorted({min(boots), max(boots)}))) if boots else "no"
    plural = "s" * (boots != {1})
    marks = f"[change]: by more than {DIFFERS:.1%} from the kernel to the left, with no overlap of their boots"
    lines = [f"median (least to most) of {count} boot{plural}; {marks}"]
    missing: dict[str, list[str]] = {}
    for cell, row in pivot.rows.items():
        for kernel, one in row.items():
            if not one.values:
                missing.setdefault(f"{one.verdict}: {one.reason}", []).append(f"{cell} on {_name(kernel)}")
    lines += [f"{', '.join(cells)}: {why}" for why, cells in missing.items()]
    for cell in pivot.rows:
        sizes = [seen.median for _, seen in pivot.seen(cell, _RESIDENCY) if seen]
        if sizes and max(sizes) > min(sizes) * (1 + APART):
            least, most = format_bytes(min(sizes)), format_bytes(max(sizes))
            lines.append(f"{cell}: the cache held {least} to {most}, which its device bytes follow: see amplification")
    return [*lines, *_settings(pivot)]


def _settings(pivot: Pivot) -> list[str]:
    """Return a line for each setting in which the kernels' machines differ: it may be what tells them apart."""
    found: dict[str, list[str]] = {}
    for cell, row in pivot.rows.items():
        here = [(kernel, row[kernel].settings) for kernel in pivot.kernels if kernel in row and row[kernel].settings]
        for name in dict.fromkeys(name for _, settings in here for name in settings):
            values = [(kernel, settings.get(name, "unknown")) for kernel, settings in here]
            if not _alike({value for _, value in values}):
                words = ", ".join(f"{value} on {_name(kernel)}" for kernel, value in values)
                found.setdefault(f"{name} is {words}", []).append(cell)
    every = len(pivot.rows)
    return [words if len(cells) == every else f"{', '.join(cells)}: {words}" for words, cells in found.items()]


def _alike(values: set[str]) -> bool:
    """Whether the values of a setting are one, or numbers of which the kernel computes one from the RAM that it has."""
    if len(values) == 1:
        return True
    try:
        numbers = [float(one) for one in values]
    except ValueError:
        return False
    return max(numbers) <= min(numbers) * (1 + APART)
