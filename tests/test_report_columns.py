"""Which columns the table of a finding has: a curve's, or those that tell modes apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_moetier.cell import Cell
from pytest_moetier.finding import Metric
from pytest_moetier.report import _columns
from pytest_moetier.units import Capacity
from pytest_moetier.verdicts import Record

CAPACITIES = [Cell("capacity", Capacity.parse(text)) for text in ("4.4%", "8.8%")]
SMALL, LARGE = CAPACITIES
CURVE = {"rail", "nominal", "LRU set", "MIN set", "partial"}


def heads(*cells: Cell, held: bool = False) -> set[str]:
    records = [Record(one.finding, f"test_{at}", one.id) for at, one in enumerate(cells)]
    if held:
        records[0].metrics = {"held_bytes": Metric("held_bytes", "B/iteration", "higher", (1.0,))}
    return {name for name, _ in _columns([*records, Record("capacity", "test_over_several", None)], cells)}


@pytest.mark.parametrize(
    "cells",
    [
        (),
        (SMALL, LARGE),
        (SMALL, replace(SMALL, mechanism="balloon")),
        (SMALL, replace(SMALL, mglru="on"), replace(SMALL, kernel="6.12")),
        (SMALL, LARGE, replace(LARGE, workload="batch4")),
    ],
)
def test_a_curve_keeps_its_rail_and_what_the_kernel_kept_beside_batches_and_kernels(cells: tuple[Cell, ...]) -> None:
    assert heads(*cells) >= CURVE


def test_modes_at_one_capacity_are_told_apart_by_what_they_serve_and_hold() -> None:
    found = heads(SMALL, replace(SMALL, mode="mmap"))
    assert found >= {"served", "own", "majflt"}
    assert "rail" not in found
    assert "own" in heads(*(replace(one, mode="user_lru") for one in CAPACITIES), held=True)


def test_reclaim_is_told_by_amplification_and_what_the_kernel_scanned_whatever_is_varied() -> None:
    cell = replace(SMALL, finding="reclaim", workload="reclaim")
    for other in ({"mode": "mmap"}, {"mglru": "on"}, {"workload": "reclaim_l16"}):
        assert heads(cell, replace(cell, **other)) >= {"nominal", "amp", "resident", "scan/steal", "period"}
