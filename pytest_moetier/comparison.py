"""This session held against stored ones: the gate on its cells, and what the terminal shows at the end.

All cells are measured before the first test's body runs, so that the gate is corrected over all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_moetier.finding import Metric, metrics_of
from pytest_moetier.history.compare import (
    ALPHA,
    BETTER,
    CANNOT_TELL,
    SAME,
    WORSE,
    Comparison,
    compare_sessions,
    partners,
)
from pytest_moetier.history.ranks import LEAST, values_needed
from pytest_moetier.history.sessions import StoredCell, StoredSession, cell_of
from pytest_moetier.history.store import extra_info, trace_info
from pytest_moetier.history.tables import lines_of
from pytest_moetier.host.probe import host_facts
from pytest_moetier.verdicts import Against, MoetierSession, cells_of, label_of

if TYPE_CHECKING:
    from pytest_moetier.cell import Cell


def against_lines(against: Against) -> list[str]:
    """Return the line of a session's header that says what it is held against."""
    if not against.sessions:
        return []
    told = [f"{one.name} ({one.time:%Y-%m-%d %H:%M} UTC, kernel {one.release})" for one in against.sessions]
    gate = f", gate {against.gate}" if against.gate is not None else ""
    return [f"moetier: against {' and '.join(dict.fromkeys(told))}{gate}"]


def prepare_gate(session: MoetierSession, items: Sequence[pytest.Item]) -> None:
    """Choose the rounds that the gate needs, unless the user chose them; say where the baseline's are too few."""
    against = session.against
    if against is None or against.gate is None:
        return
    asked = {cell.id: cell for cell in cells_of(items)}
    counts = [found for cell in asked.values() if (found := _stored_values(against, cell))]
    if not counts:
        return
    fewest = min(counts)
    needed = values_needed(len(counts), ALPHA, fewest if fewest >= LEAST else 0)
    if fewest < LEAST:
        session.cell_notes.append(
            f"gate {against.gate}: the baseline has {fewest} values of a cell; {needed} are needed: store one with"
            f" --moetier-rounds={needed} --benchmark-autosave"
        )
    if not against.rounds_given:
        session.campaign.settings = replace(session.campaign.settings, rounds=needed, guest_rounds=needed)


def _stored_values(against: Against, cell: Cell) -> int:
    """Return how many values the baseline has of the gate's metric of a cell."""
    guest: dict[str, str] | None = {} if cell.in_guest else None
    theirs = partners(StoredCell(cell.id, {"kernel": cell.kernel}, {}, {}, guest, traced=False), against.sessions)
    if isinstance(theirs, str) or against.gate is None:
        return 0
    found = (one.metrics.get(against.gate.metric) for one in theirs)
    return sum(len(one.values) for one in found if one is not None)


def _compared(against: Against, session: MoetierSession) -> Comparison:
    """Return every proved cell and studied trace of the session held against the baseline."""
    return compare_sessions(against.sessions, [_current(session)], gate=against.gate, force=against.force)


def _current(session: MoetierSession) -> StoredSession:
    """Return this session as one that is stored."""
    facts, profile = host_facts(), session.profile.name if session.profile else ""
    cells: dict[str, StoredCell] = {}
    for one in session.campaign.results.values():
        if one.proved:
            context = session.campaign.context_of(one.cell)
            cells[one.cell.id] = cell_of(extra_info(one.cell, metrics_of(one.runs), one, context, profile), [])
    metrics: dict[str, dict[str, Metric]] = {}
    for record in session.records.values():
        if record.traced and not record.over:
            known = metrics.setdefault(str(record.cell), {})
            finite = {name: one for name, one in record.metrics.items() if all(map(math.isfinite, one.values))}
            known.update(finite)
            cells[str(record.cell)] = cell_of(trace_info(record.finding, record.accounting[0], known), [])
    return StoredSession(Path("this session"), "", datetime.now(UTC), facts.fingerprint(), facts.release, "", cells)


def apply_gate(item: pytest.Item, report: pytest.TestReport, session: MoetierSession) -> None:
    """Fail the report of a cell that regressed, and skip that of one of which it cannot be told, each with its line."""
    cell, invalid = label_of(item), ("moetier.verdict", "invalid") in report.user_properties
    if session.against is None or cell is None or isinstance(cell, str) or invalid:
        return
    if session.compared is None:
        session.compared = _compared(session.against, session)
    verdict, line = session.compared.of_cell(cell.id)
    session.gated[item.nodeid] = verdict
    item.user_properties.append(("moetier.compare", verdict))
    said = f"{line}; baseline {', '.join(session.compared.then)}"
    if verdict == WORSE:
        before = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"{before}\n{said}" if before else said
    elif verdict == CANNOT_TELL and not report.failed:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), (item.location[1] or 0) + 1, f"Skipped: {said}")
    else:
        return
    vars(report).pop("wasxfail", None)


def undecided(session: MoetierSession) -> list[str]:
    """Return an error where a gate was declared and decided on no cell at all: that is not a pass."""
    gate = session.against.gate if session.against is not None else None
    measured = any(not record.traced for record in session.records.values())
    if gate is None or not measured or {WORSE, BETTER, SAME}.intersection(session.gated.values()):
        return []
    return [f"gate {gate} could decide on no cell; expected one at least; next: -rs shows why each was skipped"]


def comparison_lines(against: Against, session: MoetierSession) -> list[str]:
    """Return the tables of this session / the stored ones."""
    skipped = [f"skipped {line}" for line in against.notes]
    if not against.sessions:
        return ["compare: no stored session with metrics; store one with --benchmark-autosave", *skipped]
    return [*lines_of(_compared(against, session)), *skipped]
