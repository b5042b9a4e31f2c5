"""What a hit costs by how its pages were first read, with residency equal: beyond the paper.

Twenty experts of 16 MiB in one file are read once in each way and then again and again by pread, all from the page
cache. The kernel chooses the size of a page's folio when it is read first; a copy from small ones is dearer. Section 6
has a row of FADV_RANDOM with the same device reads and a longer time: is it this?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_moetier.fixtures import CellHandle, CurveHandle

FILLS = ("sequential", "random", "mmap", "mmap_willneed", "fadv_random")
HITS = {"finding": "hit_cost", "capacity": "100%", "mechanism": "cgroup", "workload": "hit_cost"}


@pytest.mark.moetier(**HITS, mode="page_cache", fill=FILLS)
def test_hits(moetier_cell: CellHandle) -> None:
    """Hits on pages that were first read in one way: every round proved, nothing read from the device."""
    moetier_cell.measure()
    moetier_cell.judge()


@pytest.mark.moetier(**HITS, mode="fadv_random")
def test_hits_with_the_hint(moetier_cell: CellHandle) -> None:
    """Hits read with the hint, on pages that were first read with it."""
    moetier_cell.measure()
    moetier_cell.judge()


@pytest.mark.parametrize("fill", FILLS[1:])
def test_small_folios_are_dearer(moetier_curve: CurveHandle, fill: str) -> None:
    """A hit on pages first read in this way takes more CPU time than on pages first read in sequence."""
    pages, sequential = (moetier_curve.need(mode="page_cache", fill=one) for one in (fill, "sequential"))
    values = {
        "hit_cost_ratio": moetier_curve.ratio("cpu_seconds_per_iteration", pages, sequential),
        "hit_served_ratio": moetier_curve.ratio("demand_served", pages, sequential).value,
    }
    moetier_curve.conclude(values, [*pages.runs, *sequential.runs])


def test_the_hint_itself_costs_nothing(moetier_curve: CurveHandle) -> None:
    """On the same pages a read with the hint costs what one without it does: the cost is the pages', not the hint's."""
    hinted = moetier_curve.need(mode="fadv_random")
    plain = moetier_curve.need(mode="page_cache", fill="fadv_random")
    values = {"hint_cost_ratio": moetier_curve.ratio("cpu_seconds_per_iteration", hinted, plain)}
    moetier_curve.conclude(values, [*hinted.runs, *plain.runs])


pytestmark = pytest.mark.moetier(finding="hit_cost")
