"""Does scan/steal above two mean amplification, or mapped pages (the operator's threshold; paper section 5)?

How a page is accessed decides how the kernel promotes it: the same cells are read by pread, through mappings, and with
read-ahead switched off. The paper's alert (scan/steal > 2) is judged on cells whose device bytes stay at the nominal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_moetier.fixtures import CellHandle, CurveHandle

MODES = ("page_cache", "mmap", "fadv_random")
BALLOON = {"mechanism": "balloon", "locked": 81}
WALL = {"mechanism": "cgroup"}


@pytest.mark.moetier(
    finding="reclaim", workload="reclaim", mglru=("on", "off"), capacity="4.4%", mode=MODES, cells=(BALLOON, WALL)
)
def test_access(moetier_cell: CellHandle) -> None:
    """One way of reading under one mechanism: every boot proved."""
    moetier_cell.measure()
    moetier_cell.judge()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("state", ["on", "off"])
def test_scan_per_steal_of_a_healthy_cell(moetier_curve: CurveHandle, mode: str, state: str) -> None:
    """A cell whose device bytes are within 14.9% of the nominal scans at most two pages for each that it steals."""
    cells = [moetier_curve.cell(mode=mode, mglru=state, mechanism=one) for one in ("balloon", "cgroup")]
    proved = [one for one in cells if one is not None]
    healthy = [one for one in proved if moetier_curve.span("amplification", one).value <= 1.149]
    if not healthy:
        seen = "none proved" if not proved else "every one of them amplified"
        moetier_curve.not_examined(f"no healthy cell of mode {mode}, MGLRU {state}: {seen}; expected one")
    worst = max(healthy, key=lambda one: moetier_curve.span("scan_per_steal", one).value)
    values = {"scan_per_steal_of_healthy": moetier_curve.span("scan_per_steal", worst)}
    moetier_curve.conclude(values, [run for one in healthy for run in one.runs])


pytestmark = pytest.mark.moetier(finding="reclaim")
