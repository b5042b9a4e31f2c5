"""What findings on a real engine rest on: its runs, replays of what it chose, and how they compare (paper section 9).

All that the selected tests ask for is measured when the first of them runs, interleaved; then the host is given back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_moetier.errors import AccountingError, MoetierError
from pytest_moetier.settings import read_options
from pytest_moetier.span import Span
from pytest_moetier.verdicts import ENGINE, About, Judge, MoetierSession

if TYPE_CHECKING:
    from pytest_moetier.engine.asked import Wanted
    from pytest_moetier.engine.campaign import EngineCampaign, Measured
    from pytest_moetier.engine.run import EngineRun
    from pytest_moetier.finding import Metric
    from pytest_moetier.trace.records import Trace

_RANDOM = (
    "the model's weights are random, and with them its router's choices: no claim on a real model can be examined"
    " on them; next: --moetier-engine-model with a trained model"
)
PARAMETER = "moetier_engine"
_CAMPAIGN = pytest.StashKey["EngineCampaign | MoetierError"]()
REMARK = ", random weights: synthetic, of routing it tests the generator and no model"


def asked_of(items: Iterable[pytest.Item]) -> list[Wanted]:
    """Return what the tests ask to be measured, and the runs whose traces are replayed for them."""
    params = (getattr(getattr(item, "callspec", None), "params", {}).get(PARAMETER, ()) for item in items)
    wanted = [one for each in params for one in each]
    return wanted + [run for one in wanted if (run := getattr(one, "of", None)) is not None]


class EngineHandle(Judge):
    """What a test asked for, measured in all rounds.

    Attributes:
        wanted: what it asked for.
    """

    def __init__(
        self,
        request: pytest.FixtureRequest,
        session: MoetierSession,
        campaign: EngineCampaign,
        benchmark: Any,  # noqa: ANN401 - pytest-benchmark's fixture, or None
    ) -> None:
        """Bind a session's measurements to the requesting test."""
        super().__init__(request, session)
        self.wanted: Sequence[Wanted] = request.param
        self._campaign, self._benchmark = campaign, benchmark
        self._label = str(request.node.callspec.id)
        self._record = session.record(request.node, self._label)
        self._record.engine = self._facts()

    # What was measured.

    def need(self, wanted: Wanted) -> Measured:
        """Return what came of one thing; the test is not_examined where it was not proved in every round."""
        __tracebackhide__ = True
        found = self._campaign.results[wanted.id]
        if not found.proved:
            self.not_examined(f"no proved run of {wanted.id}: {found.why or 'it was not measured'}")
        return found

    def runs(self, wanted: Wanted) -> list[EngineRun]:
        """Return the engine's runs in an arm, one a round."""
        __tracebackhide__ = True
        return self.need(wanted).engine_runs

    def metric(self, name: str, wanted: Wanted) -> Metric:
        """Return a metric; the test is not_examined where a round did not observe it."""
        __tracebackhide__ = True
        found = self.need(wanted).metrics().get(name)
        if found is None:
            self.not_examined(f"{name} of {wanted.id} was not observed here; expected it in every round")
        return found

    def span(self, name: str, wanted: Wanted) -> Span:
        """Return a metric's median with the least and the most of the rounds."""
        __tracebackhide__ = True
        found = self.metric(name, wanted)
        return Span.of(found.values, found.median)

    def ratio(self, name: str, above: Wanted, below: Wanted) -> Span:
        """Return a metric of one over another's, round by round: the rounds visit all interleaved."""
        __tracebackhide__ = True
        return self.over(self.metric(name, above).values, self.metric(name, below).values)

    @staticmethod
    def over(above: Sequence[float], below: Sequence[float]) -> Span:
        """Return one over another, round by round."""
        ratios = tuple(_over(one, other) for one, other in zip(above, below, strict=True))
        return Span.of(ratios, median(ratios))

    @property
    def trace(self) -> Trace:
        """The trace that was captured; the test is not_examined where none was."""
        __tracebackhide__ = True
        found = self._campaign.trace
        if found is None:
            whys = [one.why for one in self._campaign.results.values() if getattr(one.wanted, "capture", False)]
            self.not_examined(f"no trace was captured: {next(iter(whys), 'no test asked for one')}")
        return found

    @property
    def quantisations(self) -> dict[str, list[EngineRun]]:
        """All proved runs of the session, by the quantisation of their model: one prompt, so one output each."""
        found: dict[str, list[EngineRun]] = {}
        for one in self._campaign.results.values():
            for run in one.engine_runs:
                found.setdefault(run.arm.quantisation, []).append(run)
        return found

    def over_lru(self, wanted: Wanted) -> Span:
        """Return the device bytes of an arm's decode over what exact LRU of its observed residency misses, by round."""
        __tracebackhide__ = True
        read = self.metric("bytes_per_token", wanted).values
        held = self.metric("resident_bytes", wanted).values
        missed = [self._missed(size, len(run.decoded)) for size, run in zip(held, self.runs(wanted), strict=True)]
        return self.over(read, missed)

    def _missed(self, capacity_bytes: float, tokens: int) -> float:
        """Return the bytes a token that exact LRU misses over the decode's first tokens, warmed by the prompt."""
        from pytest_moetier.simulate import simulate, workload  # noqa: PLC0415

        __tracebackhide__ = True
        caches = workload(self.trace, prefill="before")
        (found,) = simulate(caches, ("lru",), (f"{int(capacity_bytes)}B",), window=f"0:{tokens}")
        return (found.miss_bytes or 0) / tokens

    # What becomes of it.

    def measure(self) -> dict[str, Metric]:
        """Return the metrics of the one thing that was asked for, and hand its times to pytest-benchmark.

        Raises:
            AccountingError: a round's accounting is not proved; nothing is stored and the test is INVALID.
        """
        __tracebackhide__ = True
        (wanted,) = self.wanted
        found = self._campaign.results[wanted.id]
        if not self._record.proofs:
            self._record.proofs = found.proofs
            self._record.metrics = {} if found.invalid else found.metrics()
            self._hand_over(found, self._record.metrics)
        return dict(self._record.metrics)

    def conclude(
        self,
        values: Mapping[str, float | Span | None],
        reason: str = "undefined for what was measured",
        ids: Sequence[str] = (),
        iterations: tuple[int, ...] = (),
    ) -> None:
        """Judge values by name against the bounds that hold; the verdict becomes the test's outcome.

        Args:
            values: what was measured; None where there is nothing.
            reason: why a value is None.
            ids: what patterns of bounds are held against, beside the test's own.
            iterations: of the trace, where the values are figures of one.
        """
        __tracebackhide__ = True
        label = self._label
        found = {name: None if _undefined(value) else value for name, value in values.items()}
        if self._label == ENGINE:
            self._record.metrics = _metrics(found)
        results = [self._campaign.results[one.id] for one in self.wanted]
        runs = tuple(run for one in results for run in one.runs)
        about = About(label, (label, *ids), runs, iterations, self._remark)
        self.settle(found, about, reason, f"no bound holds for {label}")

    def judge_trace(self, *names: str) -> None:
        """Judge figures of the captured trace by name (see ``routing.Study.figures``), by the model that it is of."""
        __tracebackhide__ = True
        from pytest_moetier.routing import GIVEN, Study, Subject, recognised  # noqa: PLC0415
        from pytest_moetier.trace.locality import locality  # noqa: PLC0415

        for one in self.wanted:
            self.need(one)
        trace, subject = self.trace, Subject("engine", "engine", "engine", GIVEN)
        study = Study(subject, trace, recognised(trace), locality(trace.selections()), 0.0)
        figures = {name: study.figures()[name] for name in names}
        if trace.synthetic:
            self._record.metrics = _metrics(figures)
            said = ", ".join(f"{name} is {value:.6g}" for name, value in figures.items() if value is not None)
            self.give_up(_RANDOM, self._label, said)
        self.conclude(figures, ids=study.ids, iterations=(trace.n_iterations,))

    def judge(self, **values: float | Span | None) -> None:
        """Judge the one thing that was asked for: each metric's median and spread, and further values."""
        __tracebackhide__ = True
        known: dict[str, float | Span | None] = {}
        for name, metric in self.measure().items():
            known[name] = metric.median
            known[f"{name}_spread"] = metric.spread if len(metric.values) > 1 else None
        self.conclude({**known, **values}, "not observed, or a single round")

    def not_examined(self, reason: str) -> NoReturn:
        """End the test as not_examined, with the reason."""
        __tracebackhide__ = True
        self.give_up(reason, self._label)

    def strangers(self, run: EngineRun) -> int:
        """Return how many runs of the same model and prompt began with other token ids."""
        runs = self.quantisations[run.arm.quantisation]
        return sum(any(a != b for a, b in zip(run.ids, other.ids, strict=False)) for other in runs)

    @property
    def _remark(self) -> str:
        return REMARK if (self._record.engine or {}).get("synthetic") else ""

    def _facts(self) -> dict[str, Any]:
        """Return what the numbers rest on, in plain JSON types."""
        runs = [run for one in self._campaign.results.values() for run in one.engine_runs]
        settings = self._campaign.settings
        facts: dict[str, Any] = {"synthetic": settings.asked.model is None, "seed": settings.seed, "model": ""}
        if runs:
            first = next((run for run in runs if run.arm.quantisation == self.wanted[0].quantisation), runs[0])
            told = first.facts
            facts |= {
                "synthetic": any(run.synthetic for run in runs),
                "model": first.model,
                "expert_bytes": first.expert_bytes,
                "spine_bytes": first.spine_bytes,
                "prompt_tokens": first.prompt_tokens,
                "engine": f"xllamacpp {told.version}, {told.backend}, {told.system_info}",
                "context": told.context,
                "damon": list(told.damon),
                "transparent_huge_pages": told.transparent_huge_pages,
            }
        return facts

    def _hand_over(self, found: Measured, metrics: Mapping[str, Metric]) -> None:
        """Give each round's seconds to ``benchmark.pedantic`` by a clock that only they advance."""
        __tracebackhide__ = True
        from pytest_moetier.history.store import engine_info  # noqa: PLC0415

        seconds = iter(_seconds(metrics))

        def target() -> None:
            __tracebackhide__ = True
            if found.invalid:
                seen, _, do = found.invalid[0].rpartition("; next: ")
                raise AccountingError(f"{len(found.invalid)} rounds not proved: {seen}", do=do)
            self.session.clock.advance(next(seconds))

        if self._benchmark is None:
            if found.invalid:
                target()
            return
        if not found.invalid:
            finding, facts = self._record.finding, self._record.engine or {}
            info = engine_info(finding, found.wanted.id, facts, metrics, found.proofs)
            self._benchmark.extra_info["moetier"] = info
        self._benchmark.pedantic(target, rounds=max(1, len(_seconds(metrics))))


_TIMES = ("seconds_per_token", "seconds_per_iteration", "seconds_to_kill")


def _seconds(metrics: Mapping[str, Metric]) -> tuple[float, ...]:
    """Return the seconds of each round; of a device's rate those of a GB."""
    rates = metrics.get("device_rate")
    if rates is not None:
        return tuple(1e9 / one for one in rates.values)
    return next((metrics[name].values for name in _TIMES if name in metrics), ())


def _over(above: float, below: float) -> float:
    """Return above / below; nothing over nothing is alike."""
    if below:
        return above / below
    return math.inf if above else 1.0


def _undefined(value: float | Span | None) -> bool:
    return value is None or math.isnan(value.value if isinstance(value, Span) else value)


_UNITS = {
    "io_ceiling": "MB/s",
    "compute_ceiling": "tokens/s",
    "compute_ceiling_tokens": "tokens",
    "different_ids": "runs",
    "different_pairs": "pairs",
}


def _metrics(values: Mapping[str, float | Span | None]) -> dict[str, Metric]:
    from pytest_moetier.finding import Metric  # noqa: PLC0415
    from pytest_moetier.routing import UNITS  # noqa: PLC0415

    found = {}
    for name, value in values.items():
        parts = () if value is None else (value.low, value.value, value.high) if isinstance(value, Span) else (value,)
        if parts and all(map(math.isfinite, parts)):
            unit = _UNITS.get(name) or UNITS.get(name, ("ratio", ""))[0]
            found[name] = Metric(name, unit, "neither", tuple(map(float, parts)))
    return found


def engine_handle(
    request: pytest.FixtureRequest,
    session: MoetierSession,
    benchmark: Any,  # noqa: ANN401
    broke: Callable[..., NoReturn],
) -> EngineHandle:
    """Return a test's handle; the first use in a session measures all that its selected tests ask for.

    Args:
        request: of the test.
        session: of pytest.
        benchmark: pytest-benchmark's fixture, or None.
        broke: ends a test whose measurement our own machinery broke.
    """
    __tracebackhide__ = True
    if hasattr(request.config, "workerinput"):
        pytest.fail(
            "measurements cannot share the host, and -n (pytest-xdist) spreads them; expected one process;"
            " next: run without -n",
            pytrace=False,
        )
    campaign = _measured(request, session)
    if isinstance(campaign, MoetierError):
        return broke(campaign, benchmark)
    handle = EngineHandle(request, session, campaign, benchmark)
    if len(handle.wanted) == 1:  # findings over several say which of them they lack
        found = campaign.results[handle.wanted[0].id]
        if found.skipped is not None and not found.invalid:
            handle.not_examined(str(found.skipped))
        if found.broken is not None:
            return broke(found.broken, benchmark)
    return handle


def _measured(request: pytest.FixtureRequest, session: MoetierSession) -> EngineCampaign | MoetierError:
    stash = request.config.stash
    if _CAMPAIGN not in stash:
        try:
            stash[_CAMPAIGN] = _measure(request, session)
        except MoetierError as error:
            stash[_CAMPAIGN] = error
    return stash[_CAMPAIGN]


def _measure(request: pytest.FixtureRequest, session: MoetierSession) -> EngineCampaign:
    from pytest_moetier.engine.campaign import EngineCampaign, EngineSettings, lock_for  # noqa: PLC0415

    settings, options = session.campaign.settings, read_options(request.config)
    beside = settings.pool.resolve()
    chosen = EngineSettings(
        folder=next(one for one in (beside, *beside.parents) if one.is_dir()),
        asked=options.engine,
        rounds=options.engine_rounds,
        seed=settings.seed,
        threads=settings.threads,
        stop_early=settings.stop_early,
    )
    lock = lock_for(held=bool(session.campaign.results), wait_seconds=settings.wait_seconds)
    with session.measuring() as report:
        campaign = EngineCampaign(chosen, report)
        campaign.measure(asked_of(request.session.items), lock)
    session.campaign.notes += [note for note in campaign.notes if note not in session.campaign.notes]
    return campaign
