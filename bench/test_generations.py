"""The generation audit: what MGLRU held while device traffic swung, by iteration (left open by paper section 5).

Passes of 220 iterations under balloon, wall and mem=, with the kernel's own generations sampled between iterations. An
inference of ours, not of the paper, is put to the test: that reads collapse when what the capacity leaves beside the
protected pages falls below what one iteration inserts. C and the expert's size are varied to try to refute it.
``--moetier-report DIR`` draws traffic, generations and reclaim on one time axis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_moetier.fixtures import CellHandle, CurveHandle

MECHANISMS = (
    {"mechanism": "balloon", "locked": 81, "capacity": "4.4%"},
    {"mechanism": ("cgroup", "memboot"), "capacity": "4.4%"},
)
VARIED = (
    {"mechanism": "cgroup", "capacity": ("3%", "6.4%")},
    {"mechanism": "cgroup", "capacity": "4.4%", "workload": ("reclaim_l4", "reclaim_l32")},
)


@pytest.mark.moetier(finding="generations", workload="reclaim", mglru="on", cells=(*MECHANISMS, *VARIED))
def test_generations(moetier_cell: CellHandle) -> None:
    """One pass with its generations sampled: every boot proved."""
    moetier_cell.measure()
    moetier_cell.judge()


@pytest.mark.parametrize("room", ["oldest generation", "C - protected"])
def test_room_tells_the_collapse(moetier_curve: CurveHandle, room: str) -> None:
    """An iteration that collapses had less room before it than one that does not, over all passes together."""
    value, why = moetier_curve.room_auc(room)
    if value is None:
        moetier_curve.not_examined(f"{why}; expected passes that tell, such as of other capacities or expert sizes")
    moetier_curve.conclude({"room_auc": value}, [run for one in moetier_curve.results for run in one.runs])


pytestmark = pytest.mark.moetier(finding="generations")
