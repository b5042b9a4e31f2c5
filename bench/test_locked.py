"""Does the excess follow the locked fraction at fixed C (paper section 5: the knee between 74% and 81% locked)?

C stays 2.2 iterations while the guest's RAM, and with it the balloon's share of it, is varied. The text of the paper
says 81% locked where its figure's label says 88%: the fraction that was measured (VmLck / MemTotal) is in every result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_moetier.fixtures import CellHandle, CurveHandle

LOCKED = (74, 81, 88)


@pytest.mark.moetier(
    finding="reclaim", workload="reclaim", mglru=("on", "off"), mechanism="balloon", locked=LOCKED, capacity="4.4%"
)
def test_locked(moetier_cell: CellHandle) -> None:
    """One locked fraction with one state of MGLRU: every boot proved."""
    moetier_cell.measure()
    moetier_cell.judge()


@pytest.mark.parametrize("state", ["on", "off"])
def test_the_excess_grows_with_the_locked_fraction(moetier_curve: CurveHandle, state: str) -> None:
    """At the same C, 81% and 88% locked read more than 74% with MGLRU, and no more without it."""
    low, middle, high = (moetier_curve.need(locked=one, mglru=state) for one in LOCKED)
    values = {
        f"locked81_over_74_mglru_{state}": moetier_curve.ratio("device_bytes", middle, low, across=("locked",)),
        f"locked88_over_74_mglru_{state}": moetier_curve.ratio("device_bytes", high, low, across=("locked",)),
    }
    moetier_curve.conclude(values, [run for one in (low, middle, high) for run in one.runs])


pytestmark = pytest.mark.moetier(finding="reclaim")
