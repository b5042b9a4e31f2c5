"""Does the excess follow C relative to an expert and the threads that read them, or the locked fraction?

The same contrast on five rungs: guest memory grows and an expert shrinks against C, from 158 experts in C to 3627, near
the paper's 3647. A contrast that is of the locked fraction stays from rung to rung; one of few, large experts fades.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_moetier.cell import RECLAIM

if TYPE_CHECKING:
    from pytest_moetier.fixtures import CellHandle, CurveHandle

RUNGS = tuple(sorted(RECLAIM))
BALLOON = {"mechanism": "balloon", "locked": 81}
WALL = {"mechanism": "cgroup"}


@pytest.mark.moetier(finding="reclaim", workload=RUNGS, mglru=("on", "off"), capacity="4.4%", cells=(BALLOON, WALL))
def test_ladder(moetier_cell: CellHandle) -> None:
    """One rung under one mechanism with one state of MGLRU: every boot proved."""
    moetier_cell.measure()
    moetier_cell.judge()


@pytest.mark.parametrize("rung", RUNGS, ids=[one.removeprefix("reclaim").strip("_") or "base" for one in RUNGS])
def test_contrast_of_a_rung(moetier_curve: CurveHandle, rung: str) -> None:
    """MGLRU reads twice what the classic LRU reads behind the balloon, and the same as it under the wall."""
    cells = {
        (one, state): moetier_curve.need(workload=rung, mechanism=one, mglru=state)
        for one in ("balloon", "cgroup")
        for state in ("on", "off")
    }
    values = {
        name: moetier_curve.ratio("device_bytes", cells[one, "on"], cells[one, "off"], across=("mglru",))
        for one, name in (("balloon", "mglru_device_ratio_locked81"), ("cgroup", "mglru_device_ratio_cgroup"))
    }
    moetier_curve.conclude(values, [run for one in cells.values() for run in one.runs])


pytestmark = pytest.mark.moetier(finding="reclaim")
