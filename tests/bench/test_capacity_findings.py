"""What the capacity findings over several cells say of curves that are known beforehand."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_moetier.campaign import CellResult
from pytest_moetier.cell import Cell
from pytest_moetier.errors import HarnessError, HostBusyError
from pytest_moetier.finding import Metric
from pytest_moetier.units import Capacity

BENCH = Path(__file__).parents[2] / "bench" / "test_capacity.py"


@pytest.fixture
def bench() -> ModuleType:
    """The finding's module."""
    spec = importlib.util.spec_from_file_location("capacity_findings", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class NotExaminedError(Exception):
    """What a finding raises that cannot be examined."""


@dataclass
class Curve:
    """A curve of known cells that keeps what a finding concludes."""

    results: list[CellResult]
    values: dict[str, float] = field(default_factory=dict)

    def conclude(self, values: Mapping[str, float], runs: list[Any]) -> None:
        assert runs
        self.values.update(values)

    @staticmethod
    def metrics(result: CellResult) -> Any:
        """Return a cell's metrics, which are its first run as it is."""
        return result.runs[0]

    def not_examined(self, reason: str) -> None:
        raise NotExaminedError(reason)


def cell(capacity: str, *values: float, mechanism: str = "cgroup", mglru: str = "host") -> CellResult:
    """Return a proved cell whose device bytes and amplification have these values in its rounds."""
    metrics = {name: Metric(name, "", "lower", values) for name in ("device_bytes", "amplification")}
    result = CellResult(Cell("capacity", Capacity.parse(capacity), mechanism, mglru))
    result.runs.append(metrics)  # type: ignore[arg-type]
    return result


def device_rise(bench: ModuleType, *results: CellResult) -> float:
    curve = Curve(list(results))
    bench.test_device_bytes_fall_with_capacity(curve)
    return curve.values["device_bytes_largest_rise"]


def test_a_falling_curve_rises_nowhere(bench: ModuleType) -> None:
    assert device_rise(bench, cell("4%", 40.0), cell("8%", 30.0), cell("16%", 10.0)) == 0.75


def test_a_rise_is_found_between_any_two_neighbours(bench: ModuleType) -> None:
    assert device_rise(bench, cell("4%", 40.0), cell("8%", 20.0), cell("16%", 30.0)) == 1.5


def test_a_rise_within_the_spread_of_the_rounds_is_none(bench: ModuleType) -> None:
    smaller, larger = cell("4%", 9.0, 10.0, 11.0), cell("8%", 10.0, 10.5, 11.5)
    assert device_rise(bench, smaller, larger) < 1


def test_states_of_mglru_are_not_capacities(bench: ModuleType) -> None:
    on = [cell("4%", 40.0, mglru="on"), cell("8%", 30.0, mglru="on")]
    off = [cell("4%", 50.0, mglru="off"), cell("8%", 45.0, mglru="off")]
    assert device_rise(bench, *on, *off) == 0.9


def test_a_cache_that_holds_everything_reads_nothing_and_divides_by_nothing(bench: ModuleType) -> None:
    assert device_rise(bench, cell("4%", 40.0), cell("80%", 0.0), cell("90%", 0.0)) == 0.0
    assert device_rise(bench, cell("80%", 0.0), cell("90%", 1.0)) == float("inf")


def test_one_capacity_is_no_curve(bench: ModuleType) -> None:
    with pytest.raises(NotExaminedError, match="fewer than two capacities of one mechanism"):
        bench.test_device_bytes_fall_with_capacity(Curve([cell("4%", 1.0), cell("8%", 1.0, mechanism="balloon")]))


def test_mechanisms_are_compared_at_the_capacity_where_they_differ_most(bench: ModuleType) -> None:
    curve = Curve(
        [
            cell("4%", 1.0),
            cell("4%", 1.1, mechanism="balloon"),
            cell("8%", 1.0),
            cell("8%", 1.2, mechanism="balloon"),
        ]
    )
    bench.test_mechanisms_agree(curve)
    assert curve.values == {"mechanism_ratio": 1.2}


def test_a_cell_that_lost_a_round_is_no_result() -> None:
    whole, skipped, broken, invalid = (cell("4%", 1.0) for _ in range(4))
    skipped.skipped = HostBusyError("another process moved memory")
    broken.broken = HarnessError("a child died")
    invalid.invalid.append("not proved")
    assert [one.proved for one in (whole, skipped, broken, invalid)] == [True, False, False, False]


def test_two_states_of_mglru_are_not_two_mechanisms(bench: ModuleType) -> None:
    with pytest.raises(NotExaminedError, match="under two mechanisms"):
        bench.test_mechanisms_agree(Curve([cell("4%", 1.0, mglru="on"), cell("4%", 3.0, mglru="off")]))
