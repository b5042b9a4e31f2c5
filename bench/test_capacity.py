"""The capacity response T(C): device bytes and time are smooth functions of cache size (paper section 4, Table 2)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from pytest_moetier.finding import metrics_of
from pytest_moetier.fixtures import CellHandle, CurveHandle

if TYPE_CHECKING:
    from pytest_moetier.campaign import CellResult


def test_capacity(moetier_cell: CellHandle) -> None:
    """One point of the curve: every round proved, and within the bounds of its own cell."""
    moetier_cell.measure()
    moetier_cell.judge()


def test_device_bytes_fall_with_capacity(moetier_curve: CurveHandle) -> None:
    """More cache never reads more from the device, beyond the spread of the rounds."""
    _judge_monotone(moetier_curve, "device_bytes")


def test_amplification_falls_with_capacity(moetier_curve: CurveHandle) -> None:
    """Device bytes over the nominal misses of the observed residency fall as the cache grows."""
    _judge_monotone(moetier_curve, "amplification")


def test_mechanisms_agree(moetier_curve: CurveHandle) -> None:
    """At one capacity, all mechanisms read the same multiple of the nominal misses of their own observed residency."""
    proved = [result for result in moetier_curve.results if "amplification" in metrics_of(result.runs)]
    capacities = {result.cell.capacity for result in proved}
    shared = [
        (capacity, cells)
        for capacity in sorted(capacities)
        if len(cells := [result for result in proved if result.cell.capacity == capacity]) > 1
    ]
    if not shared:
        moetier_curve.not_examined(
            "no capacity was measured under two mechanisms; expected a cgroup wall and a balloon at the same capacity;"
            " next: moetier doctor says what this host lacks"
        )
    ratios = {}
    for capacity, cells in shared:
        values = [metrics_of(result.runs)["amplification"].median for result in cells]
        ratios[capacity] = _rise(min(values), max(values))
    worst = max(ratios, key=lambda capacity: ratios[capacity])
    runs = [run for capacity, cells in shared if capacity == worst for result in cells for run in result.runs]
    moetier_curve.conclude({"mechanism_ratio": ratios[worst]}, runs)


def _rise(smaller: float, larger: float) -> float:
    """Return larger / smaller; a cache that holds everything reads nothing, and stays at nothing."""
    if smaller:
        return larger / smaller
    return math.inf if larger else 0.0


def _judge_monotone(curve: CurveHandle, name: str) -> None:
    """Judge that ``name`` does not rise from one capacity to the next under one mechanism.

    The judged value is the largest ratio (larger capacity / smaller), after granting both points half their spread.
    """
    by_mechanism: dict[str, list[CellResult]] = {}
    for result in curve.results:
        by_mechanism.setdefault(result.cell.mechanism, []).append(result)
    rises = []
    for results in by_mechanism.values():
        metrics = [metrics_of(result.runs).get(name) for result in results]
        for smaller, larger in pairwise(metric for metric in metrics if metric is not None):
            allowance = 1 + (smaller.spread + larger.spread) / 2
            rises.append(_rise(smaller.median, larger.median) / allowance)
    if not rises:
        curve.not_examined(
            f"{name} was proved at fewer than two capacities of one mechanism; expected at least two;"
            " next: pytest bench/ -k capacity, without narrowing the cells"
        )
    runs = [run for result in curve.results for run in result.runs]
    curve.conclude({f"{name}_largest_rise": max(rises)}, runs)


pytestmark = pytest.mark.moetier(finding="capacity")
