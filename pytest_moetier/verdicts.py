"""A session's verdicts in pytest's own terms, and the state that lives as long as the session.

supported = passed; refuted = failed (or shown only, with ``--moetier-refuted=report``); not_examined = skipped; a
refutation that the profile lists = xfailed, xpassed when it no longer holds; an unproved run = INVALID, apart from all.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_moetier.errors import InputError

if TYPE_CHECKING:
    from pytest_moetier.campaign import Campaign, CellResult
    from pytest_moetier.cell import Cell
    from pytest_moetier.finding import Bound, Judgement, Metric, Profile
    from pytest_moetier.proof import Proof, ProvedRun

SESSION = pytest.StashKey["MoetierSession"]()
VERDICT = pytest.StashKey[str]()
KNOWN = pytest.StashKey[str]()


Baseline = tuple[str, Mapping[str, Any]]
"""A stored session: its file, and ``extra_info["moetier"]`` by cell id."""


_ENDING = (signal.SIGTERM, signal.SIGHUP)


class VirtualClock:
    """A clock that only recorded durations advance: pytest-benchmark's timer for times measured elsewhere (seconds)."""

    def __init__(self) -> None:
        """Start at zero."""
        self._now = 0.0

    def __call__(self) -> float:
        """Return the clock's time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock by ``seconds``."""
        self._now += seconds


@dataclass(slots=True)
class Record:
    """What is known of one test: verdict, judged bounds, metrics and proofs."""

    finding: str
    test: str
    cell: str | None
    verdict: str = "not_examined"
    reason: str = ""
    judgements: list[Judgement] = field(default_factory=list)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    proofs: Sequence[Proof] = ()


class MoetierSession:
    """The campaign, the profile, the clock and the verdicts of one pytest session."""

    def __init__(
        self, config: pytest.Config, campaign: Campaign, profile: Profile | None, rounds: int, baseline: Baseline | None
    ) -> None:
        """Tie the campaign to the session; nothing is measured yet. ``baseline`` was stored before it began."""
        self.config = config
        self.campaign = campaign
        self.profile = profile
        self.baseline = baseline
        self.rounds = rounds
        self.clock = VirtualClock()
        self.records: dict[str, Record] = {}
        self.unwritten: list[str] = []
        self._caught: list[signal.Signals] = []

    def close(self) -> None:
        """Give the host back, and the signals their usual meaning. Safe to call twice."""
        self.campaign.close()
        for number in self._caught:
            signal.signal(number, signal.SIG_DFL)
        self._caught.clear()

    def _catch_signals(self) -> None:
        """While the host is held, SIGTERM and SIGHUP end the session as Ctrl-C does: with the host given back."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _end_session)
                self._caught.append(number)

    def measured(self, items: Iterable[pytest.Item]) -> Mapping[str, CellResult]:
        """Return all results, measuring every selected cell of the session on the first call."""
        cells = [item.callspec.params["moetier_cell"] for item in items if _has_cell(item)]  # type: ignore[attr-defined]
        self._catch_signals()
        capture = self.config.pluginmanager.getplugin("capturemanager")
        if capture is None or len(self.campaign.results) == len({cell.id for cell in cells}):
            return self.campaign.measure(cells)
        with capture.global_and_fixture_disabled():
            return self.campaign.measure(cells)

    def record(self, node: pytest.Item, cell: Cell | None) -> Record:
        """Return the record of ``node``, made on first use."""
        finding = cell.finding if cell else node.path.stem.removeprefix("test_")
        return self.records.setdefault(node.nodeid, Record(finding, node.name, cell.id if cell else None))

    def note(self, node: pytest.Item, cell: Cell, metrics: Mapping[str, Metric], proofs: Sequence[Proof]) -> None:
        """Keep a cell's metrics and proofs for the reports."""
        record = self.record(node, cell)
        record.metrics, record.proofs = metrics, proofs

    def verdict(
        self, node: pytest.Item, cell: Cell | None, verdict: str, judgements: Iterable[Judgement], reason: str = ""
    ) -> None:
        """Keep the verdict on ``node``."""
        record = self.record(node, cell)
        record.verdict, record.reason = verdict, reason
        record.judgements += judgements


def _end_session(number: int, _frame: object) -> None:
    for other in _ENDING:  # a second one must not cut the giving back short
        signal.signal(other, signal.SIG_IGN)
    pytest.exit(f"{signal.Signals(number).name}: measuring was ended, the host is given back", returncode=128 + number)


def _has_cell(item: pytest.Item) -> bool:
    return "moetier_cell" in getattr(getattr(item, "callspec", None), "params", {})


class Handle:
    """A test's way to its session: bounds in, outcome out."""

    def __init__(self, request: pytest.FixtureRequest, session: MoetierSession) -> None:
        """Remember the requesting test."""
        self.request = request
        self.session = session

    def conclude(
        self,
        values: Mapping[str, float | None],
        runs: Iterable[ProvedRun],
        cell: Cell | None = None,
        reason: str = "",
    ) -> None:
        """Judge ``values`` against the bounds of the test's folder and of the profile; end the test by the verdict.

        Args:
            values: measured values by name; None where one could not be had.
            runs: the proved runs that they rest on.
            cell: the cell that they belong to, or None for a finding over several.
            reason: why a value is None.
        """
        __tracebackhide__ = True
        from pytest_moetier.finding import NOT_EXAMINED, REFUTED, SUPPORTED, bounds_for, judge  # noqa: PLC0415

        runs = list(runs)
        applying = [bound for bound in bounds_for(self._bounds(), cell) if bound.value in values]
        if not applying:
            self.not_examined("no bound holds here; expected one in bounds.yaml beside the test, or in a profile", cell)
        judged = [judge(bound, values[bound.value], runs, reason) for bound in applying]
        verdicts = {one.verdict for one in judged}
        verdict = next((one for one in (REFUTED, NOT_EXAMINED) if one in verdicts), SUPPORTED)
        said = "\n".join(str(one) for one in judged if one.verdict == verdict and verdict != SUPPORTED)
        node = self.request.node
        self.session.verdict(node, cell, verdict, judged, said)
        node.stash[VERDICT] = verdict
        known = self.session.profile.known_for(node.name) if self.session.profile else {}
        if known and all(one.bound.id in known for one in judged if one.verdict == REFUTED):
            node.stash[KNOWN] = "; ".join(known.values())
        if verdict == REFUTED:
            pytest.fail(said, pytrace=False)
        if verdict == NOT_EXAMINED:
            pytest.skip(said)

    def not_examined(self, reason: str, cell: Cell | None = None) -> None:
        """End the test as not_examined, with the reason and what would make it examinable."""
        __tracebackhide__ = True
        self.request.node.stash[VERDICT] = "not_examined"
        self.session.verdict(self.request.node, cell, "not_examined", [], reason)
        pytest.skip(reason)

    def _bounds(self) -> list[Bound]:
        __tracebackhide__ = True
        from pytest_moetier.finding import read_bounds  # noqa: PLC0415

        problem = ""
        try:
            found = list(read_bounds(Path(self.request.node.path).parent / "bounds.yaml"))
        except InputError as error:
            problem = str(error)
        if problem:  # outside the handler: one message, not a chain of causes
            pytest.fail(problem, pytrace=False)
        return found + (list(self.session.profile.bounds) if self.session.profile else [])
