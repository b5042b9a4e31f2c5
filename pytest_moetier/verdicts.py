"""A session's verdicts in pytest's own terms, and the state that lives as long as the session.

supported = passed; refuted = failed (or shown only, with ``--moetier-refuted=report``); not_examined = skipped; a
refutation that the profile lists = xfailed, xpassed when it no longer holds; an unproved run = INVALID, apart from all.
In a virtual machine a claim is supported or refuted at its scale, which is said with it; no profile of a host counts.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_moetier.errors import InputError
from pytest_moetier.span import Span

if TYPE_CHECKING:
    from pytest_moetier.campaign import Campaign, CellResult
    from pytest_moetier.cell import Cell
    from pytest_moetier.finding import Bound, Judgement, Metric, Profile, Proved, Scale
    from pytest_moetier.history.compare import Comparison, Gate
    from pytest_moetier.history.sessions import StoredSession
    from pytest_moetier.progress import Reporter
    from pytest_moetier.proof import Proof, ProvedRun
    from pytest_moetier.replay import ListFile
    from pytest_moetier.routing import Studies, Subject

SESSION = pytest.StashKey["MoetierSession"]()
VERDICT = pytest.StashKey[str]()
KNOWN = pytest.StashKey[str]()


AT_SCALE = " at this scale"
_OF_SCALE = {"supported", "refuted"}

ENGINE = "engine"
"""The id of a test that is a finding on an engine; the others are each of one arm, or what is measured beside."""

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


@dataclass(frozen=True, slots=True)
class Against:
    """What a session is held against.

    Attributes:
        sessions: stored before it began; none where there is none.
        notes: what was left out of the storage, and why.
        gate: the metric whose regression fails a cell, None for none.
        force: compare also what was not measured alike.
        rounds_given: whether the user chose the rounds: a gate then does not.
    """

    sessions: tuple[StoredSession, ...] = ()
    notes: tuple[str, ...] = ()
    gate: Gate | None = None
    force: bool = False
    rounds_given: bool = True


@dataclass(slots=True)
class Record:
    """What is known of one test: verdict, judged bounds, metrics and proofs.

    Attributes:
        finding: the finding it belongs to.
        test: its name.
        cell: the id of its cell, or of the subject or group of subjects of a finding on traces, or of a machine.
        verdict: supported, refuted, not_examined or invalid.
        reason: why, with the values.
        why: the reason alone, the same for all tests that share it.
        judgements: one per bound.
        metrics: by name.
        proofs: one per round.
        accounting: of each trace that it rests on; empty for cells.
        traced: a finding on traces.
        over: a finding over several subjects.
        lists: the tables and the advice that its cell was given.
        scale: of the machine, where it is a virtual one.
        constants: those of a machine that it rests on, each with its source; None for every other finding.
        engine: the engine, its model and their settings that it rests on; None for every other finding.
    """

    finding: str
    test: str
    cell: str | None
    verdict: str = "not_examined"
    reason: str = ""
    why: str = ""
    judgements: list[Judgement] = field(default_factory=list)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    proofs: Sequence[Proof] = ()
    accounting: Sequence[Mapping[str, Any]] = ()
    traced: bool = False
    over: bool = False
    lists: Sequence[ListFile] = ()
    scale: Scale | None = None
    constants: Sequence[Mapping[str, Any]] | None = None
    engine: Mapping[str, Any] | None = None

    @property
    def rowed(self) -> bool:
        """Whether its values have a row of their own, with the finding: it is not one on cells."""
        return self.traced or self.constants is not None or self.engine is not None

    @property
    def shown(self) -> str:
        """The verdict in words: one of a virtual machine is one at its scale."""
        return self.verdict + (AT_SCALE if self.scale is not None and self.verdict in _OF_SCALE else "")


class MoetierSession:
    """The campaign, the studied traces, the profile, the clock and the verdicts of one pytest session.

    Attributes:
        against: what it is held against; None where that was not asked for.
        compared: what came of that for the gate, once all cells are measured.
        gated: the gate's verdict on each test.
        cell_notes: what is to be said only when cells are measured.
        document: its verdicts as JSON, once it is over and they were asked for.
    """

    def __init__(
        self, config: pytest.Config, campaign: Campaign, studies: Studies, profile: Profile | None, report: Reporter
    ) -> None:
        """Tie the campaign and the traces to the session; nothing is measured or read yet."""
        self.config = config
        self.campaign = campaign
        self.studies = studies
        self.profile = profile
        self.against: Against | None = None
        self.compared: Comparison | None = None
        self.gated: dict[str, str] = {}
        self.cell_notes: list[str] = []
        self.clock = VirtualClock()
        self.records: dict[str, Record] = {}
        self.unwritten: list[str] = []
        self.document: Mapping[str, Any] | None = None
        self._report = report
        self._caught: list[signal.Signals] = []

    def close(self) -> None:
        """Give the host back, and the signals their usual meaning. Safe to call twice."""
        self.campaign.close()
        for number in self._caught:
            signal.signal(number, signal.SIG_DFL)
        self._caught.clear()

    @contextmanager
    def measuring(self) -> Iterator[Reporter]:
        """Yield what progress is told to while something beside cells holds the host; signals give it back."""
        self._catch_signals()
        with self._uncaptured():
            yield self._report

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
        cells = cells_of(items)
        self._catch_signals()
        self.campaign.notes += self.cell_notes
        self.cell_notes = []
        if len(self.campaign.results) == len({cell.id for cell in cells}):
            return self.campaign.measure(cells)
        with self._uncaptured():
            return self.campaign.measure(cells)

    def studied(self, items: Iterable[pytest.Item]) -> Studies:
        """Return the studies, with every trace that the selected tests ask for studied on the first call."""
        chosen = {one.id: one for item in items for one in subjects_of(item)}
        pending = self.studies.pending(list(chosen.values()))
        if pending:
            with self._uncaptured(), self._report:
                self._study(pending)
        return self.studies

    def _study(self, pending: Sequence[Subject]) -> None:
        from pytest_moetier.progress import Progress  # noqa: PLC0415
        from pytest_moetier.units import format_seconds  # noqa: PLC0415

        total = len(pending)
        started = time.monotonic()
        self._report(Progress(0, total, None, f"reading or generating {total} trace{'s' * (total > 1)}", 0, 0, 0.0))
        for done, subject in enumerate(pending, 1):
            began = time.monotonic()
            self.studies.known(subject)
            now = time.monotonic()
            phase = f"[{done}/{total}] {subject.id}: {format_seconds(now - began)}"
            self._report(Progress(done % total, total, None, phase, 0, 0, now - started))

    def _uncaptured(self) -> AbstractContextManager[None]:
        """Return a context in which progress reaches the terminal."""
        capture = self.config.pluginmanager.getplugin("capturemanager")
        context: AbstractContextManager[None] = (
            nullcontext() if capture is None else capture.global_and_fixture_disabled()
        )
        return context

    def record(self, node: pytest.Item, cell: Cell | str | None) -> Record:
        """Return the record of ``node``, made on first use; ``cell`` may be the id of something that is no cell."""
        if cell is None or isinstance(cell, str):
            finding, label = node.path.stem.removeprefix("test_"), cell
        else:
            finding, label = cell.finding, cell.id
        return self.records.setdefault(node.nodeid, Record(finding, node.name, label))

    def note(self, node: pytest.Item, cell: Cell, metrics: Mapping[str, Metric], proofs: Sequence[Proof]) -> Record:
        """Keep a cell's metrics and proofs for the reports, and return its record."""
        record = self.record(node, cell)
        record.metrics, record.proofs = metrics, proofs
        record.scale = self.scale(self.campaign.results[cell.id].runs)
        return record

    def scale(self, runs: Sequence[Proved]) -> Scale | None:
        """Return the scale of runs of which one at least was in a virtual machine; None for this host's."""
        from pytest_moetier.finding import guest_of, scale_of  # noqa: PLC0415

        guests = [guest_of(one) for one in runs]
        if not any(guests) or all(guests):
            return scale_of(runs)
        from pytest_moetier.host.probe import host_facts  # noqa: PLC0415

        return scale_of(runs, host_facts().mem_total_bytes or 0)

    def verdict(
        self,
        node: pytest.Item,
        cell: Cell | str | None,
        verdict: str,
        judgements: Iterable[Judgement],
        reason: str = "",
    ) -> Record:
        """Keep the verdict on ``node``, and return its record."""
        record = self.record(node, cell)
        record.verdict, record.reason = verdict, reason
        record.judgements += judgements
        return record


def _end_session(number: int, _frame: object) -> None:
    for other in _ENDING:  # a second one must not cut the giving back short
        signal.signal(other, signal.SIG_IGN)
    pytest.exit(f"{signal.Signals(number).name}: measuring was ended, the host is given back", returncode=128 + number)


def cells_of(items: Iterable[pytest.Item]) -> list[Cell]:
    """Return the cells that tests ask for."""
    return [params["moetier_cell"] for params in map(_params, items) if "moetier_cell" in params]


def _params(item: pytest.Item) -> Mapping[str, Any]:
    params: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return params


def subjects_of(item: pytest.Item) -> tuple[Subject, ...]:
    """Return the subjects whose traces a test asks for: its own, or those of its group."""
    params = _params(item)
    if "moetier_routing" in params:
        return (params["moetier_routing"],)
    return tuple(params.get("moetier_domains", ()))


def label_of(item: pytest.Item) -> Cell | str | None:
    """Return what the records call a test's parameter: its cell, or the id of its subject, group or arm."""
    params, chosen = _params(item), subjects_of(item)
    if "moetier_engine" in params:
        return str(item.callspec.id)  # type: ignore[attr-defined]  # of a function with parameters
    if not chosen:
        label: Cell | str | None = params.get("moetier_cell", params.get("moetier_tiers"))
        return label
    return chosen[0].id if "moetier_routing" in params else chosen[0].group


@dataclass(frozen=True, slots=True)
class About:
    """What a verdict is about, and what it rests on.

    Attributes:
        label: what records and reports call it: a cell, an id, or None for a finding over several cells.
        ids: what the patterns of bounds are held against; None: every bound may hold.
        runs: the proved runs that the values rest on.
        iterations: the engine iterations of each trace that they rest on.
        remark: what every line said of them ends with.
    """

    label: Cell | str | None = None
    ids: Cell | tuple[str, ...] | None = None
    runs: tuple[Proved, ...] = ()
    iterations: tuple[int, ...] = ()
    remark: str = ""


class Judge:
    """A test's way to its session: values and bounds in, outcome out."""

    def __init__(self, request: pytest.FixtureRequest, session: MoetierSession) -> None:
        """Remember the requesting test."""
        self.request = request
        self.session = session

    def settle(
        self, values: Mapping[str, float | Span | None], about: About, reason: str = "", unbound: str = ""
    ) -> None:
        """Judge ``values`` against the bounds of the test's folder and of the profile; end the test by the verdict.

        Args:
            values: measured values by name; None where one could not be had.
            about: what they are values of.
            reason: why a value is None.
            unbound: what to say where no bound holds.
        """
        __tracebackhide__ = True
        from pytest_moetier.finding import NOT_EXAMINED, REFUTED, SUPPORTED, bounds_for, guest_of  # noqa: PLC0415

        profile = None if any(map(guest_of, about.runs)) else self.session.profile
        applying = [bound for bound in bounds_for(self._bounds(profile), about.ids) if bound.value in values]
        if not applying:
            self.give_up(unbound or _UNBOUND, about.label, _shown(values, about))
        judged = [_judged(bound, values[bound.value], about, reason) for bound in applying]
        verdicts = {one.verdict for one in judged}
        verdict = next((one for one in (REFUTED, NOT_EXAMINED) if one in verdicts), SUPPORTED)
        deciding = [one for one in judged if one.verdict == verdict and verdict != SUPPORTED]
        said = "\n".join(str(one) for one in deciding) or about.remark.removeprefix(", ")
        node = self.request.node
        record = self.session.verdict(node, about.label, verdict, judged, said)
        record.scale = self.session.scale(about.runs)
        whys = (one.reason.removeprefix(": ").removesuffix(about.remark) for one in deciding)
        record.why = "; ".join(dict.fromkeys(whys))
        node.stash[VERDICT] = verdict
        known = profile.known_for(node.name) if profile else {}
        if known and all(one.bound.id in known for one in judged if one.verdict == REFUTED):
            node.stash[KNOWN] = "; ".join(known.values())
        if verdict == REFUTED:
            pytest.fail(f"{said}\n{record.shown}: {record.scale.words}" if record.scale else said, pytrace=False)
        if verdict == NOT_EXAMINED:
            pytest.skip(said)

    def give_up(self, reason: str, label: Cell | str | None, seen: str = "") -> NoReturn:
        """End the test as not_examined, with what was seen, the reason, and what would make it examinable."""
        __tracebackhide__ = True
        self.request.node.stash[VERDICT] = "not_examined"
        said = f"{seen}: {reason}" if seen else reason
        self.session.verdict(self.request.node, label, "not_examined", [], said).why = reason
        pytest.skip(said)

    def _bounds(self, profile: Profile | None) -> list[Bound]:
        __tracebackhide__ = True
        from pytest_moetier.finding import read_bounds  # noqa: PLC0415

        problem = ""
        try:
            found = list(read_bounds(Path(self.request.node.path).parent / "bounds.yaml"))
        except InputError as error:
            problem = str(error)
        if problem:  # outside the handler: one message, not a chain of causes
            pytest.fail(problem, pytrace=False)
        return found + (list(profile.bounds) if profile else [])


_UNBOUND = "no bound holds here; expected one in bounds.yaml beside the test, or in a profile"


def _shown(values: Mapping[str, float | Span | None], about: About) -> str:
    """Return the values of a trace in words; a cell's have their place in its table."""
    if not about.iterations:
        return ""
    told = ", ".join(f"{name} is {_figure(one)}" for name, one in values.items())
    return f"{told}{about.remark}"


def _figure(value: float | Span | None) -> str:
    if value is None:
        return "nothing"
    return f"{value:.6g}" if isinstance(value, float | int) else f"{value.value:.6g}"


def _judged(bound: Bound, value: float | Span | None, about: About, reason: str) -> Judgement:
    from pytest_moetier.finding import NOT_EXAMINED, Judgement, judge  # noqa: PLC0415

    if isinstance(value, float | int) and (beyond := bound.beyond(about.iterations)):
        return Judgement(bound, value, NOT_EXAMINED, f": {beyond}{about.remark}")
    found = judge(bound, value, about.runs, reason)
    return replace(found, reason=found.reason + about.remark)


class Handle(Judge):
    """The way of a test of cells to its session."""

    def conclude(
        self,
        values: Mapping[str, float | Span | None],
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
        self.settle(values, About(cell, cell, tuple(runs)), reason)

    def not_examined(self, reason: str, cell: Cell | None = None) -> None:
        """End the test as not_examined, with the reason and what would make it examinable."""
        __tracebackhide__ = True
        self.give_up(reason, cell)
