"""The capacity response T(C): device bytes and time are smooth functions of cache size (paper section 4, Table 2)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from pytest_moetier.finding import metrics_of
from pytest_moetier.fixtures import CellHandle, CurveHandle

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_moetier.campaign import CellResult
    from pytest_moetier.cell import Cell


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
    by_point = _groups(moetier_curve, "amplification", lambda cell: (cell.capacity, cell.mglru, cell.mode))
    shared = [results for results in by_point if len({one.cell.mechanism for one in results}) > 1]
    if not shared:
        moetier_curve.not_examined(
            "no capacity was measured under two mechanisms; expected a cgroup wall and a balloon at the same capacity;"
            " next: moetier doctor says what this host lacks"
        )
    worst, runs = 0.0, []
    for results in shared:
        values = [metrics_of(one.runs)["amplification"].median for one in results]
        if (ratio := _rise(min(values), max(values))) > worst:
            worst, runs = ratio, [run for one in results for run in one.runs]
    moetier_curve.conclude({"mechanism_ratio": worst}, runs)


def _judge_monotone(curve: CurveHandle, name: str) -> None:
    """Judge that ``name`` does not rise from one capacity to the next, all else equal.

    The judged value is the largest ratio (larger capacity / smaller), after granting both points half their spread.
    """
    rises, runs = [], []
    for results in _groups(curve, name, lambda cell: (cell.mechanism, cell.mglru, cell.mode)):
        for smaller, larger in pairwise(metrics_of(one.runs)[name] for one in results):
            allowance = 1 + (smaller.spread + larger.spread) / 2
            rises.append(_rise(smaller.median, larger.median) / allowance)
        runs += [run for one in results for run in one.runs]
    if not rises:
        curve.not_examined(
            f"{name} was proved at fewer than two capacities of one mechanism; expected at least two;"
            " next: pytest bench/ -k capacity, without narrowing the cells"
        )
    curve.conclude({f"{name}_largest_rise": max(rises)}, runs)


def _groups(curve: CurveHandle, name: str, key: Callable[[Cell], tuple[object, ...]]) -> list[list[CellResult]]:
    """Return the proved cells that have metric ``name``, in groups of one ``key``, each by growing capacity."""
    groups: dict[tuple[object, ...], list[CellResult]] = {}
    for result in curve.results:
        if name in metrics_of(result.runs):
            groups.setdefault(key(result.cell), []).append(result)
    return list(groups.values())


def _rise(smaller: float, larger: float) -> float:
    """Return larger / smaller; a cache that holds everything reads nothing, and stays at nothing."""
    if smaller:
        return larger / smaller
    return math.inf if larger else 0.0


pytestmark = pytest.mark.moetier(finding="capacity")
