"""What an operator is told: when to be alarmed, and what to do about it (paper section 5, operator guidance).

``moetier watch`` alarms at the bounds ``guidance.*``; here the same judgement is put to the test on measured cells. On
this host: a reader in a control group must raise no alarm; one under a balloon, or that maps its files, should. In a
virtual machine with a kernel of choice (``--moetier-kernel``): the paper's failing cell, and each remedy against it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_moetier.campaign import CellResult
    from pytest_moetier.fixtures import CellHandle, CurveHandle
    from pytest_moetier.span import Span

WALLS = {"mechanism": "cgroup", "capacity": ("17.7%", "30.9%"), "mode": "page_cache"}
BALLOON = {"mechanism": "balloon", "capacity": "30.9%", "mode": "page_cache"}
MAPPED = {"mechanism": "cgroup", "capacity": "17.7%", "mode": "mmap"}

FAILING = {"mechanism": "balloon", "locked": 81, "capacity": "4.4%", "mglru": "on"}
REMEDIED = {
    "confine": {"mechanism": "cgroup", "capacity": "4.4%", "mglru": "on"},
    "shrink": {"mechanism": "balloon", "locked": 74, "capacity": "6.4%", "mglru": "on"},
    "toggle": {"mechanism": "balloon", "locked": 81, "capacity": "4.4%", "mglru": "off"},
}
"""The remedies in the paper's order, each as the failing cell with one thing changed."""
INDICATORS = {"scan_per_steal": "scan_per_steal", "device_over_nominal": "amplification"}
"""What the alarms call it, and what the metrics do."""


@pytest.mark.moetier(finding="guidance", kernel="host", cells=(WALLS, BALLOON, MAPPED))
def test_guidance_here(moetier_cell: CellHandle) -> None:
    """One cell on this host: every round proved."""
    moetier_cell.measure()
    moetier_cell.judge()


@pytest.mark.moetier(finding="guidance", workload="reclaim", cells=(FAILING, *REMEDIED.values()))
def test_guidance_in_a_guest(moetier_cell: CellHandle) -> None:
    """The paper's failing cell, or one with a remedy applied: every boot proved."""
    moetier_cell.measure()
    moetier_cell.judge()


@pytest.mark.parametrize("indicator", INDICATORS)
def test_a_confined_reader_is_healthy(moetier_curve: CurveHandle, indicator: str) -> None:
    """No cell under the wall is above an alarm's threshold (the paper's are clean at every capacity)."""
    cells = _confined(moetier_curve)
    worst = _worst(moetier_curve, cells, INDICATORS[indicator])
    moetier_curve.conclude({f"healthy_{indicator}": worst}, [run for one in cells for run in one.runs])


def test_a_confined_reader_raises_no_alarm(moetier_curve: CurveHandle) -> None:
    """What `moetier watch` would say of the cells under the wall: nothing."""
    cells = _confined(moetier_curve)
    raised = sum(len(_raised(moetier_curve, one)) for one in cells)
    moetier_curve.conclude({"healthy_alarms": float(raised)}, [run for one in cells for run in one.runs])


@pytest.mark.parametrize("indicator", INDICATORS)
def test_an_unhealthy_cell_is_told_by(moetier_curve: CurveHandle, indicator: str) -> None:
    """The worst of the cells that were made unhealthy is beyond where this alarm is raised."""
    cells = _unhealthy(moetier_curve)
    worst = _worst(moetier_curve, cells, INDICATORS[indicator])
    moetier_curve.conclude({f"unhealthy_{indicator}": worst}, [run for one in cells for run in one.runs])


def test_an_unhealthy_cell_raises_the_alarm(moetier_curve: CurveHandle) -> None:
    """What `moetier watch` would say of the cells that were made unhealthy: one alarm at least."""
    cells = _unhealthy(moetier_curve)
    raised = sum(len(_raised(moetier_curve, one)) for one in cells)
    moetier_curve.conclude({"unhealthy_alarms": float(raised)}, [run for one in cells for run in one.runs])


@pytest.mark.parametrize("remedy", REMEDIED)
def test_a_remedy_lowers_the_device_bytes(moetier_curve: CurveHandle, remedy: str) -> None:
    """The failing cell reads more than the same with one remedy, boot by boot (2.0x, 1.8x and 2.6x in the paper)."""
    failing, remedied = (_need(moetier_curve, words) for words in (FAILING, REMEDIED[remedy]))
    across = ("mechanism", "locked", "mglru", "capacity")
    ratio = moetier_curve.ratio("device_bytes", failing, remedied, across=across)
    moetier_curve.conclude({f"{remedy}_device_ratio": ratio}, [*failing.runs, *remedied.runs])


def _confined(curve: CurveHandle) -> list[CellResult]:
    """Return the cells that must be healthy: those of page-cache readers under the wall."""
    cells = [one for one in curve.results if (one.cell.mechanism, one.cell.mode) == ("cgroup", "page_cache")]
    if not cells:
        curve.not_examined("no cell under the wall was proved; expected one; next: run the whole file's cells")
    return cells


def _unhealthy(curve: CurveHandle) -> list[CellResult]:
    """Return the cells that were made unhealthy: memory mostly locked under MGLRU, and mapped pages.

    On this host the balloon leaves MGLRU as the kernel has it.
    """
    made = [one for one in curve.results if one.cell.mode == "mmap"]
    made += [one for one in curve.results if one.cell.mechanism == "balloon" and _as_failing(one)]
    if not made:
        curve.not_examined(
            "no cell that was made unhealthy was proved; expected a balloon or mapped pages;"
            " next: --moetier-kernel 6.12 for the paper's own, or see why those of this host are missing"
        )
    return made


def _as_failing(result: CellResult) -> bool:
    """Whether a balloon's cell is the paper's failing one, or this host's like of it."""
    cell = result.cell
    return not cell.in_guest or (cell.locked, cell.mglru) == (FAILING["locked"], FAILING["mglru"])


def _worst(curve: CurveHandle, cells: list[CellResult], metric: str) -> Span | None:
    """Return the largest of a metric over the cells that observed it: nothing stolen has no scan/steal."""
    spans = [curve.span(metric, one) for one in cells if metric in curve.metrics(one)]
    return max(spans, key=lambda one: one.value, default=None)


def _raised(curve: CurveHandle, result: CellResult) -> list[str]:
    """Return the indicators by which `moetier watch` would raise an alarm on the medians of a cell."""
    from pytest_moetier.watch.alarms import ALARM, thresholds  # noqa: PLC0415 - reads YAML, and collecting needs none

    found = thresholds(Path(__file__).parent / "bounds.yaml")
    seen = curve.metrics(result)
    values = {name: seen[metric].median for name, metric in INDICATORS.items() if metric in seen}
    return [name for name, value in values.items() if found[name].state(value) == ALARM]


def _need(curve: CurveHandle, words: dict[str, object]) -> CellResult:
    """Return a guest's cell; its capacity goes with what its balloon locks."""
    return curve.need(workload="reclaim", **{name: one for name, one in words.items() if name != "capacity"})


pytestmark = pytest.mark.moetier(finding="guidance")
