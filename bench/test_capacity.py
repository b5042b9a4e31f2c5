"""The capacity response T(C): device bytes and time are smooth functions of cache size (paper section 4, Table 2)."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from pytest_moetier.units import Capacity

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_moetier.campaign import CellResult
    from pytest_moetier.cell import Cell
    from pytest_moetier.fixtures import CellHandle, CurveHandle

_ANY = Capacity.parse("100%")
"""Stands for all capacities of one curve."""


def test_capacity(moetier_cell: CellHandle) -> None:
    """One point of the curve: every round proved, and within the bounds of its own cell."""
    moetier_cell.measure()
    moetier_cell.judge()


@pytest.mark.moetier(finding="capacity", default_capacity="17.7%,30.9%", mechanism="cgroup", workload="batch4")
def test_batch(moetier_cell: CellHandle) -> None:
    """Four streams merged, at one point of the curve."""
    moetier_cell.measure()
    moetier_cell.judge()


def test_batch_against_single(moetier_curve: CurveHandle) -> None:
    """A batch of four costs an accepted token no more time than one stream does, and its iterations vary less."""
    singles = {replace(one.cell, workload="batch4"): one for one in moetier_curve.results if not _is_batch(one)}
    pairs = [(one, singles[one.cell]) for one in moetier_curve.results if _is_batch(one) and one.cell in singles]
    if not pairs:
        moetier_curve.not_examined(
            "no capacity was proved both for a batch of four streams and for one; expected such a pair;"
            " next: pytest bench/ -k capacity, without narrowing the cells"
        )
    times = [moetier_curve.ratio("seconds_per_accepted_token", *pair) for pair in pairs]
    values = {
        "batch_time_per_token": max(times, key=lambda one: one.value),
        "batch_variation": max(moetier_curve.ratio("iteration_variation", *pair).value for pair in pairs),
    }
    moetier_curve.conclude(values, [run for pair in pairs for one in pair for run in one.runs])


def test_device_bytes_fall_with_capacity(moetier_curve: CurveHandle) -> None:
    """More cache never reads more from the device, beyond the spread of the rounds."""
    _judge_monotone(moetier_curve, "device_bytes")


def test_amplification_falls_with_capacity(moetier_curve: CurveHandle) -> None:
    """Device bytes over the nominal misses of the observed residency fall as the cache grows."""
    _judge_monotone(moetier_curve, "amplification")


def test_mechanisms_agree(moetier_curve: CurveHandle) -> None:
    """At one capacity, all mechanisms read the same multiple of the nominal misses of their own observed residency."""
    by_point = _groups(moetier_curve, "amplification", lambda cell: replace(cell, mechanism="cgroup"))
    shared = [results for results in by_point if len({one.cell.mechanism for one in results}) > 1]
    if not shared:
        moetier_curve.not_examined(
            "no capacity was measured under two mechanisms; expected a cgroup wall and a balloon at the same capacity;"
            " next: moetier doctor says what this host lacks"
        )
    worst, runs = 0.0, []
    for results in shared:
        values = [moetier_curve.metrics(one)["amplification"].median for one in results]
        if (ratio := _rise(min(values), max(values))) > worst:
            worst, runs = ratio, [run for one in results for run in one.runs]
    moetier_curve.conclude({"mechanism_ratio": worst}, runs)


def _judge_monotone(curve: CurveHandle, name: str) -> None:
    """Judge that ``name`` does not rise from one capacity to the next, all else equal.

    The judged value is the largest ratio (larger capacity / smaller), after granting both points half their spread.
    """
    rises, runs = [], []
    for results in _groups(curve, name, lambda cell: replace(cell, capacity=_ANY)):
        for smaller, larger in pairwise(curve.metrics(one)[name] for one in results):
            allowance = 1 + (smaller.spread + larger.spread) / 2
            rises.append(_rise(smaller.median, larger.median) / allowance)
        runs += [run for one in results for run in one.runs]
    if not rises:
        curve.not_examined(
            f"{name} was proved at fewer than two capacities of one mechanism; expected at least two;"
            " next: pytest bench/ -k capacity, without narrowing the cells"
        )
    curve.conclude({f"{name}_largest_rise": max(rises)}, runs)


def _is_batch(result: CellResult) -> bool:
    return result.cell.workload == "batch4"


def _groups(curve: CurveHandle, name: str, key: Callable[[Cell], Cell]) -> list[list[CellResult]]:
    """Return the proved cells that have metric ``name``, in groups of one ``key``, each by growing capacity."""
    groups: dict[Cell, list[CellResult]] = {}
    for result in curve.results:
        if name in curve.metrics(result):
            groups.setdefault(key(result.cell), []).append(result)
    return list(groups.values())


def _rise(smaller: float, larger: float) -> float:
    """Return larger / smaller; a cache that holds everything reads nothing, and stays at nothing."""
    if smaller:
        return larger / smaller
    return math.inf if larger else 0.0


pytestmark = pytest.mark.moetier(finding="capacity")
