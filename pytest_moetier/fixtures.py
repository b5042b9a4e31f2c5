"""What a bench test asks for: ``moetier_cell`` (one measured cell) and ``moetier_curve`` (all cells of a finding).

Importing this module is cheap; numpy, yaml and rich come in when the first cell is measured.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_moetier.errors import AccountingError, MoetierError, UnsupportedHostError
from pytest_moetier.settings import session_of
from pytest_moetier.verdicts import Handle, MoetierSession

if TYPE_CHECKING:
    from pytest_moetier.campaign import CellResult
    from pytest_moetier.cell import Cell
    from pytest_moetier.finding import Metric


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
        """Bind a campaign's result to the requesting test."""
        super().__init__(request, session)
        self.cell = result.cell
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
        self.session.note(self.request.node, self.cell, self._metrics, self._result.proofs)
        self._hand_over()
        return self._metrics

    def _pool_bytes(self) -> int:
        context = self.session.campaign.context
        return context.pool_bytes if context else 0

    def _siblings(self) -> dict[Cell, dict[str, Metric]]:
        """Return the metrics of the proved cells that differ from this one in capacity alone."""
        from pytest_moetier.finding import metrics_of  # noqa: PLC0415

        mine = self.cell
        results = self.session.campaign.results.values()
        return {
            one.cell: metrics_of(one.runs)
            for one in results
            if one.proved and replace(one.cell, capacity=mine.capacity) == mine
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
        from pytest_moetier.history import extra_info  # noqa: PLC0415

        runs, invalid = iter(self._result.runs), self._result.invalid

        def target() -> None:
            __tracebackhide__ = True
            if invalid:
                raise AccountingError(f"{len(invalid)} of {self.session.rounds} rounds not proved: {invalid[0]}")
            self.session.clock.advance(next(runs).figures.seconds_per_iteration)

        if self._benchmark is None:
            if invalid:
                target()
            return
        if not invalid:
            self._benchmark.extra_info["moetier"] = extra_info(
                self.cell, self._metrics, self._result.runs, self.session.campaign.context
            )
        self._benchmark.pedantic(target, rounds=max(1, len(self._result.runs)))


class CurveHandle(Handle):
    """All measured cells of a session, for findings over several of them."""

    @property
    def results(self) -> list[CellResult]:
        """The cells that were measured and proved in every round, ordered by capacity, then mechanism."""
        return [one for one in self.everything if one.proved]

    @property
    def everything(self) -> list[CellResult]:
        """Every cell of the session, also those skipped or invalid."""
        return sorted(self.session.campaign.results.values(), key=lambda one: (self._bytes(one.cell), one.cell))

    def _bytes(self, cell: Cell) -> int:
        context = self.session.campaign.context
        return cell.capacity.resolve(context.pool_bytes if context else 0)


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
    """All cells that the session has measured; empty (the verdict is then not_examined) when none were selected."""
    return CurveHandle(request, session_of(request.config))


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
