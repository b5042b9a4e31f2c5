"""The router as a prefetch advisor: what advice gains, by giver and by delivery (paper section 7, Figure 6).

One bounded worker with one slot that can be overwritten reads ahead of the demand, by hints to the page cache or by
reads of its own. The plan is `--moetier-advice`, or a noisy oracle of the published recall, and labelled so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_moetier.fixtures import CellHandle, CurveHandle

PREFETCH = ("none", "fadvise_oracle", "fadvise_plan", "blocking_oracle", "blocking_plan")
ADVISORS = ("oracle", "plan")


@pytest.mark.moetier(
    finding="advice", default_capacity="17.7%", mechanism="cgroup", mode="page_cache", prefetch=PREFETCH
)
def test_delivery(moetier_cell: CellHandle) -> None:
    """One delivery at C: every round proved, the worker's counts among its invariants."""
    moetier_cell.measure()
    moetier_cell.judge()


@pytest.mark.parametrize("advisor", ADVISORS)
def test_hints_against_none(moetier_curve: CurveHandle, advisor: str) -> None:
    """Hints gain a little by an oracle and next to nothing by a predictor."""
    hinted, none = moetier_curve.need(prefetch=f"fadvise_{advisor}"), moetier_curve.need(prefetch="none")
    values = {f"{advisor}_hint_gain": moetier_curve.ratio("seconds_per_iteration", none, hinted)}
    moetier_curve.conclude(values, [*hinted.runs, *none.runs])


@pytest.mark.parametrize("advisor", ADVISORS)
def test_blocking_against_none(moetier_curve: CurveHandle, advisor: str) -> None:
    """The same advice executed by blocking reads buys nothing."""
    blocking, none = moetier_curve.need(prefetch=f"blocking_{advisor}"), moetier_curve.need(prefetch="none")
    values = {"blocking_gain": moetier_curve.ratio("seconds_per_iteration", none, blocking)}
    moetier_curve.conclude(values, [*blocking.runs, *none.runs])


@pytest.mark.parametrize("advisor", ADVISORS)
def test_blocking_against_hints(moetier_curve: CurveHandle, advisor: str) -> None:
    """Blocking reads are never better than hints of the same advice, beyond the spread of the rounds."""
    blocking, hinted = (moetier_curve.need(prefetch=f"{one}_{advisor}") for one in ("blocking", "fadvise"))
    ratio = moetier_curve.ratio("seconds_per_iteration", blocking, hinted)
    moetier_curve.conclude({"blocking_over_hints": ratio.high}, [*blocking.runs, *hinted.runs])


pytestmark = pytest.mark.moetier(finding="advice")
