"""What a bench test asks for.

``moetier_cell`` is one measured cell and ``moetier_curve`` all cells of a finding; ``moetier_routing`` is one studied
trace and ``moetier_domains`` the traces of one model, a domain each; ``moetier_tiers`` is the constants of a machine,
``moetier_engine`` runs of a real engine.

Importing this module is cheap; numpy, yaml and rich come in when the first cell is measured or trace studied.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pytest

from pytest_moetier.engines import EngineHandle, engine_handle
from pytest_moetier.errors import AccountingError, InputError, MoetierError, UnsupportedHostError
from pytest_moetier.machines import TiersHandle
from pytest_moetier.routing import OWN, UNITS
from pytest_moetier.settings import option, session_of
from pytest_moetier.span import Span
from pytest_moetier.verdicts import About, Handle, Judge, MoetierSession, cells_of

if TYPE_CHECKING:
    from pytest_moetier.audit import NamedAudit
    from pytest_moetier.campaign import CellResult
    from pytest_moetier.cell import Cell
    from pytest_moetier.finding import Metric
    from pytest_moetier.routing import HitRates, Study, Subject
    from pytest_moetier.trace.locality import Locality
    from pytest_moetier.trace.records import Trace


_Found = TypeVar("_Found")


class CellHandle(Handle):
    """One cell of the matrix, measured in all its rounds.

    Attributes:
        cell: the cell.
    """

    def __init__(
        self,
        request: pytest.FixtureRequest,
        session: MoetierSession,
        result: CellResult,
        benchmark: Any,  # noqa: ANN401 - pytest-benchmark's fixture, or None
    ) -> None:
        """Bind a campaign's result to the requesting test: two findings may rest on one measurement."""
        super().__init__(request, session)
        self.cell: Cell = request.param
        self._result = result
        self._benchmark = benchmark
        self._metrics: dict[str, Metric] = {}

    def measure(self) -> dict[str, Metric]:
        """Return the cell's metrics by name (values per round), and hand its times to pytest-benchmark.

        Raises:
            AccountingError: a round's accounting is not proved; nothing is stored and the test is INVALID.
        """
        __tracebackhide__ = True
        from pytest_moetier.finding import metrics_of, rail_deviation  # noqa: PLC0415

        if self._metrics:
            return self._metrics
        self._metrics = metrics_of(self._result.runs)
        if rail := rail_deviation(self._result.cell, self._metrics, self._siblings(), self._pool_bytes()):
            self._metrics[rail.name] = rail
        record = self.session.note(self.request.node, self.cell, self._metrics, self._result.proofs)
        record.lists = tuple(self._result.lists)
        self._hand_over()
        return self._metrics

    def _pool_bytes(self) -> int:
        context = self.session.campaign.context_of(self.cell)
        return context.pool_bytes if context else 0

    def _siblings(self) -> dict[Cell, dict[str, Metric]]:
        """Return the metrics of the proved cells that differ from this one in capacity alone."""
        from pytest_moetier.finding import metrics_of  # noqa: PLC0415

        mine = self.cell
        results = self.session.campaign.results.values()
        return {
            one.cell: metrics_of(one.runs)
            for one in results
            if one.proved and replace(one.cell, capacity=mine.capacity, finding=mine.finding) == mine
        }

    def judge(self, **values: float | None) -> None:
        """Judge the cell against every bound that holds for it; the verdict becomes the test's outcome.

        Args:
            values: further values by name, beside each metric's median (``device_bytes``) and spread
                (``device_bytes_spread``).
        """
        __tracebackhide__ = True
        known: dict[str, float | None] = {}
        for name, metric in self.measure().items():
            known[name] = metric.median
            known[f"{name}_spread"] = metric.spread if len(metric.values) > 1 else None
        self.conclude({**known, **values}, self._result.runs, self.cell, "not observed, or a single round")

    def _hand_over(self) -> None:
        """Give each round's seconds per iteration to ``benchmark.pedantic`` by a clock that only they advance."""
        __tracebackhide__ = True
        from pytest_moetier.history.store import extra_info  # noqa: PLC0415

        runs, invalid = iter(self._result.runs), self._result.invalid
        rounds = self.session.campaign.settings.rounds_of(self.cell)

        def target() -> None:
            __tracebackhide__ = True
            if invalid:
                seen, _, do = invalid[0].rpartition("; next: ")
                raise AccountingError(f"{len(invalid)} of {rounds} rounds not proved: {seen}", do=do)
            self.session.clock.advance(next(runs).figures.seconds_per_iteration)

        if self._benchmark is None:
            if invalid:
                target()
            return
        if not invalid:
            context, profile = self.session.campaign.context_of(self.cell), self.session.profile
            self._benchmark.extra_info["moetier"] = extra_info(
                self.cell, self._metrics, self._result, context, profile.name if profile else ""
            )
        self._benchmark.pedantic(target, rounds=max(1, len(self._result.runs)))


class CurveHandle(Handle):
    """The measured cells that the tests of one file asked for, for findings over several of them.

    Attributes:
        kernel: the label of the kernel that the finding is on, None for whatever was measured.
    """

    def __init__(self, request: pytest.FixtureRequest, session: MoetierSession, kernel: str | None) -> None:
        """Bind the file's cells to the requesting test."""
        super().__init__(request, session)
        self.kernel = kernel

    @property
    def results(self) -> list[CellResult]:
        """The cells that were measured and proved in every round, ordered by capacity, then mechanism."""
        return [one for one in self.everything if one.proved]

    @property
    def everything(self) -> list[CellResult]:
        """Every cell of the file, also those skipped or invalid."""
        here, found = self.request.node.path, self.session.campaign.results
        mine = cells_of(one for one in self.request.session.items if one.path == here)
        ids = {cell.id for cell in mine if self.kernel in {None, cell.kernel}}
        return sorted((found[one] for one in ids & set(found)), key=lambda one: (self._bytes(one.cell), one.cell))

    def cell(self, **words: Any) -> CellResult | None:  # noqa: ANN401 - values of a cell's fields
        """Return the file's proved cell whose fields have these values, the largest capacity's where several have."""
        fitting = [one for one in self.results if all(getattr(one.cell, name) == word for name, word in words.items())]
        return fitting[-1] if fitting else None

    def need(self, **words: Any) -> CellResult:  # noqa: ANN401 - values of a cell's fields
        """Return ``cell(**words)``; the finding is not_examined where no such cell was proved."""
        __tracebackhide__ = True
        found = self.cell(**words)
        if found is None:
            asked = ", ".join(f"{name} {word}" for name, word in words.items())
            seen = [one for one in self.everything if all(getattr(one.cell, n) == word for n, word in words.items())]
            whys = [str(one.skipped or one.broken or one.invalid[0]) for one in seen if not one.proved]
            why = next(iter(whys), str(self.session.campaign.refusal or ""))
            because = f": {why}" if why else "; expected one; next: run the whole file's cells"
            self.not_examined(f"no proved cell of {asked}{because}")
            raise AssertionError  # not reached: not_examined ends the test
        return found

    def ratio(self, name: str, above: CellResult, below: CellResult, across: Sequence[str] = ()) -> Span:
        """Return metric ``name`` of one cell over another's, round by round: the rounds visit all cells interleaved.

        Args:
            name: of a metric.
            above: the cell whose value is divided.
            below: the cell that it is divided by.
            across: fields of a cell in which the two may differ; then their residency may not (see ``matched``).
        """
        __tracebackhide__ = True
        first, second = self._metrics(name, above, below, across=across)
        ratios = [_over(one, other) for one, other in zip(first.values, second.values, strict=True)]
        return Span(min(ratios), median(ratios), max(ratios))

    def span(self, name: str, result: CellResult) -> Span:
        """Return the median of metric ``name`` over the rounds of a cell, with the least and the most."""
        __tracebackhide__ = True
        (metric,) = self._metrics(name, result)
        return Span(min(metric.values), metric.median, max(metric.values))

    @staticmethod
    def metrics(result: CellResult) -> dict[str, Metric]:
        """Return every metric that all rounds of a cell observed, by name."""
        from pytest_moetier.finding import metrics_of  # noqa: PLC0415

        return metrics_of(result.runs)

    def medians(self, name: str, *results: CellResult) -> list[float]:
        """Return the median of metric ``name`` over the rounds of each cell."""
        __tracebackhide__ = True
        return [one.median for one in self._metrics(name, *results)]

    def matched(self, *results: CellResult) -> None:
        """End the test as not_examined unless each cell's mean residency of the pool was within 2% of its C.

        Two mechanisms at equal nominal capacity hold different amounts (paper section 2).
        """
        from pytest_moetier.guest import MATCHED_WITHIN  # noqa: PLC0415

        __tracebackhide__ = True
        for one in results:
            (held,), (wanted,) = (self.medians(word, one) for word in ("observed_capacity_bytes", "capacity_bytes"))
            if abs(held / wanted - 1) > MATCHED_WITHIN:
                self.not_examined(
                    f"{one.cell.id} held {held / 1e6:.1f} MB in the mean; expected its C of {wanted / 1e6:.1f} MB,"
                    f" within {MATCHED_WITHIN:.0%}, so that what is compared held the same"
                )

    def audits(self) -> list[NamedAudit]:
        """Return the generation audit of every boot of every proved cell that has one, by the cell's id."""
        from pytest_moetier.audit import NamedAudit  # noqa: PLC0415

        found = [(one.cell.id, run.figures.audit) for one in self.results for run in one.runs]
        return [NamedAudit(name, audit) for name, audit in found if audit is not None and audit.moments]

    def room_auc(self, room: str) -> tuple[float | None, str]:
        """Return how well the room before an iteration tells its collapse, over all audits; None, and why, else.

        Args:
            room: ``oldest generation`` or ``C - protected``.
        """
        from pytest_moetier.audit import tests_over  # noqa: PLC0415

        audits = [one.audit for one in self.audits()]
        if not audits:
            return None, "no generations were sampled in a proved cell"
        found = next(one for one in tests_over(audits) if one.room == room)
        return (None, found.reason) if found.verdict == "not_examined" else (found.auc, found.reason)

    def _metrics(self, name: str, *results: CellResult, across: Sequence[str] = ()) -> list[Metric]:
        """Return a metric of cells that may be compared; not_examined where they may not, or one did not observe it."""
        __tracebackhide__ = True
        for word in (one for one in _LOOSE if one not in across):
            if len({getattr(one.cell, word) for one in results}) > 1:
                told = ", ".join(one.cell.id for one in results)
                self.not_examined(f"{told} differ in {word}; expected cells that do not; next: see why one is missing")
        if across and across != _LOOSE:
            self.matched(*results)
        found = []
        for one in results:
            metric = self.metrics(one).get(name)
            if metric is None:
                self.not_examined(f"{name} of {one.cell.id} was not observed here; expected it in every round")
                raise AssertionError  # not reached: not_examined ends the test
            found.append(metric)
        return found

    def _bytes(self, cell: Cell) -> int:
        context = self.session.campaign.context_of(cell)
        return cell.capacity.resolve(context.pool_bytes if context else 0)


_LOOSE = ("capacity", "mechanism", "locked", "mglru", "read_limit", "kernel", "read_ahead_kb", "filesystem")
"""In what cells that are compared must not differ, unless a finding is across it."""


def _over(above: float, below: float) -> float:
    """Return above / below; nothing over nothing is alike."""
    if below:
        return above / below
    return math.inf if above else 1.0


@pytest.fixture
def moetier_cell(request: pytest.FixtureRequest, moetier_benchmark: Any) -> CellHandle:  # noqa: ANN401
    """The test's cell; the first use in a session measures all cells of the session, interleaved.

    Skips (not_examined) when this host cannot enforce the cell, with the reason and what would make it so.
    """
    session = session_of(request.config)
    cell: Cell = request.param
    result, problem = None, None
    try:
        result = session.measured(request.session.items)[cell.id]
        problem = result.broken or (None if result.invalid else result.skipped)
    except MoetierError as error:  # the session cannot measure at all
        problem = error
    # Outside the handler: pytest would print the whole chain of causes where one message is wanted.
    if problem is None and result is not None:
        return CellHandle(request, session, result, moetier_benchmark)
    if isinstance(problem, UnsupportedHostError) or (result is not None and problem is result.skipped):
        session.verdict(request.node, cell, "not_examined", [], str(problem))
        pytest.skip(str(problem))
    return _break(problem, moetier_benchmark)


def _break(error: MoetierError | None, benchmark: Any) -> NoReturn:  # noqa: ANN401
    """End the test as an error with one message; pytest-benchmark learns that its round failed, and stores nothing."""

    def target() -> None:
        raise error or MoetierError("no result")

    with contextlib.suppress(MoetierError):
        if benchmark is not None:
            benchmark.pedantic(target)
    pytest.fail(str(error), pytrace=False)


@pytest.fixture
def moetier_curve(request: pytest.FixtureRequest) -> CurveHandle:
    """The cells that this file's tests asked for; empty (the verdict is then not_examined) when none were selected.

    Where kernels are named, a test over cells runs once for each of them.
    """
    return CurveHandle(request, session_of(request.config), getattr(request, "param", None))


class _TraceJudge(Judge):
    """A test's values of one or several studied traces."""

    over = False
    """Whether the finding is one over several traces."""

    def __init__(
        self, request: pytest.FixtureRequest, session: MoetierSession, studies: Sequence[Study], about: About
    ) -> None:
        """Make the test's record, so that a test that asserts by itself has one too."""
        super().__init__(request, session)
        record = session.record(request.node, about.label)
        record.accounting = [one.accounting() for one in studies]
        record.traced, record.over = True, self.over
        self._about = about
        self._model = "a model of other dimensions" if studies[0].model == OWN else studies[0].model

    def conclude(self, values: Mapping[str, float | None], reason: str = "undefined for this trace") -> None:
        """Judge values by name against the bounds that hold here; the verdict becomes the test's outcome.

        Args:
            values: what was measured; None or NaN where there is nothing to measure.
            reason: why a value is None.
        """
        __tracebackhide__ = True
        found = {name: None if value is None or math.isnan(value) else value for name, value in values.items()}
        self._note(found)
        unbound = f"no bound holds for {self._model}; expected one in bounds.yaml beside the test, or in a profile"
        self.settle(found, self._about, reason, unbound)

    def examined(self, find: Callable[[], _Found]) -> _Found:
        """Return what ``find`` returns; end the test as not_examined where it refuses the traces, with its reason."""
        __tracebackhide__ = True
        problem = ""
        try:
            return find()
        except InputError as error:
            problem = str(error)
        return self.not_examined(problem)  # outside the handler: one message, not a chain of causes

    def not_examined(self, reason: str, values: Mapping[str, float | None] | None = None) -> NoReturn:
        """End the test as not_examined, with the reason and the values that were measured all the same."""
        __tracebackhide__ = True
        self._note(values or {})
        said = ", ".join(f"{name} is {value:.6g}" for name, value in (values or {}).items() if value is not None)
        self.give_up(reason, self._about.label, said)

    def _note(self, values: Mapping[str, float | None]) -> None:
        self.session.record(self.request.node, self._about.label).metrics = _metrics(values)


def _metrics(values: Mapping[str, float | None]) -> dict[str, Metric]:
    from pytest_moetier.finding import Metric  # noqa: PLC0415

    return {
        name: Metric(name, UNITS.get(name, ("share", ""))[0], "neither", (float(value),))
        for name, value in values.items()
        if value is not None
    }


_SYNTHETIC = ", on a synthetic trace: it tests the generator, not the model"


class RoutingHandle(_TraceJudge):
    """One trace and its statistics, studied once in a session.

    Attributes:
        study: the subject, its trace and its statistics.
    """

    def __init__(self, request: pytest.FixtureRequest, session: MoetierSession, study: Study) -> None:
        """Bind a study to the requesting test."""
        remark = _SYNTHETIC if study.trace.synthetic else ""
        about = About(study.subject.id, study.ids, iterations=(study.trace.n_iterations,), remark=remark)
        super().__init__(request, session, [study], about)
        self.study = study

    @property
    def locality(self) -> Locality:
        """The statistics of the trace's decode passes."""
        return self.study.locality

    @property
    def trace(self) -> Trace:
        """The trace."""
        return self.study.trace

    @property
    def model(self) -> str:
        """The model whose dimensions the trace has, or ``own``."""
        return self.study.model

    def judge(self, *names: str) -> None:
        """Judge figures of the trace by name (see ``routing.Study.figures``)."""
        __tracebackhide__ = True
        figures = self.study.figures()
        self.conclude({name: figures[name] for name in names})

    def store(self, benchmark: Any) -> None:  # noqa: ANN401 - pytest-benchmark's fixture, or None
        """Hand the seconds that the statistics took, and every figure, to pytest-benchmark."""
        from pytest_moetier.history.store import trace_info  # noqa: PLC0415

        if benchmark is None:
            return
        finding = self.session.record(self.request.node, self.study.subject.id).finding
        info = trace_info(finding, self.study.accounting(), _metrics(self.study.figures()))
        benchmark.extra_info["moetier"] = info
        benchmark.pedantic(lambda: self.session.clock.advance(self.study.seconds), rounds=1)


class DomainsHandle(_TraceJudge):
    """The traces of one model, one a domain.

    Attributes:
        studies: one per domain.
    """

    over = True

    def __init__(self, request: pytest.FixtureRequest, session: MoetierSession, studies: Sequence[Study]) -> None:
        """Bind a group's studies to the requesting test."""
        first = studies[0]
        made = sum(one.trace.synthetic for one in studies)
        remark = _SYNTHETIC.replace("a synthetic trace: it tests", "synthetic traces: they test") if made else ""
        lengths = tuple(one.trace.n_iterations for one in studies)
        ids = (first.model, first.subject.group)
        super().__init__(request, session, studies, About(first.subject.group, ids, iterations=lengths, remark=remark))
        self.studies = studies

    @property
    def model(self) -> str:
        """The model whose dimensions the traces have, or ``own``."""
        return self.studies[0].model

    def hit_rates(self) -> list[HitRates]:
        """Return what caches of each layer hit, one entry a domain.

        Raises:
            MoetierError: a trace is too short to be simulated.
        """
        return [self.session.studies.rates(one.subject) for one in self.studies]


@pytest.fixture
def moetier_routing(request: pytest.FixtureRequest) -> RoutingHandle:
    """One subject's trace; the first use in a session studies the traces of all selected tests."""
    session = session_of(request.config)
    (study,) = _studied(request, session, [request.param])
    return RoutingHandle(request, session, study)


@pytest.fixture
def moetier_domains(request: pytest.FixtureRequest) -> DomainsHandle:
    """The traces of one model; not_examined where they are of several."""
    session = session_of(request.config)
    handle = DomainsHandle(request, session, _studied(request, session, request.param))
    shapes = sorted({study.shape for study in handle.studies})
    if len(shapes) > 1:
        told = ", ".join(f"{layers} layers x {experts} experts, k {k}" for layers, experts, k in shapes)
        handle.not_examined(f"the traces are of different models ({told}); expected one; next: give those of one model")
    return handle


def _studied(request: pytest.FixtureRequest, session: MoetierSession, chosen: Sequence[Subject]) -> list[Study]:
    """Return the studies; end the test as an error, with one message, where a trace cannot be read."""
    _need_one_process(request)
    studies = session.studied(request.session.items)
    found = [studies.known(one) for one in chosen]
    for one in found:
        if isinstance(one, MoetierError):
            pytest.fail(str(one), pytrace=False)
    return [one for one in found if not isinstance(one, MoetierError)]


def _need_one_process(request: pytest.FixtureRequest) -> None:
    """End the test as an error where its verdict could not reach the file that it was asked for."""
    asked = [name for name in ("json", "learn", "compare", "report") if option(request.config, name)]
    if asked and hasattr(request.config, "workerinput"):
        pytest.fail(
            f"--moetier-{asked[0]} needs all verdicts in one process, and -n (pytest-xdist) spreads them over several;"
            " expected one of the two; next: run without -n",
            pytrace=False,
        )


@pytest.fixture
def moetier_tiers(request: pytest.FixtureRequest) -> TiersHandle:
    """The tiers of one machine, ``gh200`` (the paper's) or ``here``, which is probed when its constants are asked."""
    _need_one_process(request)
    return TiersHandle(request, session_of(request.config), request.param)


@pytest.fixture
def moetier_engine(request: pytest.FixtureRequest, moetier_benchmark: Any) -> EngineHandle:  # noqa: ANN401
    """Runs of a real engine; the first use in a session measures all that the selected tests ask for."""
    return engine_handle(request, session_of(request.config), moetier_benchmark, _break)


class WithBenchmark:
    """Fixtures for a session in which pytest-benchmark is active."""

    @pytest.fixture
    def moetier_benchmark(self, benchmark: Any) -> Any:  # noqa: ANN401
        """pytest-benchmark's own fixture."""
        return benchmark


class WithoutBenchmark:
    """Fixtures for a session with ``-p no:benchmark``: everything but the history."""

    @pytest.fixture
    def moetier_benchmark(self) -> None:
        """Stand in for pytest-benchmark's fixture."""
