"""What the finding on scan/steal by the way of reading says of cells that are known beforehand."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from curves import Known, held, reclaim, values
from known import module_of

from pytest_moetier.campaign import CellResult


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The finding's module."""
    return module_of("access")


def cells(
    mode: str, state: str, *, balloon: tuple[float, float] | None = None, wall: tuple[float, float] | None = None
) -> list[CellResult]:
    """Return the cells of a mode with these pairs of amplification and scan/steal."""
    found = []
    for mechanism, locked, pair in (("balloon", 81, balloon), ("cgroup", 0, wall)):
        if pair is not None:
            cell = reclaim(mechanism, state, mode=mode, locked=locked)
            found.append(held(cell, 1.0, amplification=pair[0], scan_per_steal=pair[1]))
    return found


def judged(bench: ModuleType, found: list[CellResult], mode: str = "mmap", state: str = "on") -> Any:
    return Known("access", found).judged(bench.test_scan_per_steal_of_a_healthy_cell, mode, state)


@pytest.mark.parametrize(
    ("balloon", "wall", "value"),
    [
        ((1.0, 1.2), (1.0, 1.9), 1.9),
        ((1.1, 1.5), (1.0, 1.1), 1.5),
        ((1.0, 1.2), (1.0, 2.3), 2.3),
        ((1.149, 5.0), (1.0, 1.1), 5.0),
        ((1.15, 5.0), (1.0, 1.1), 1.1),  # what amplified is not healthy, whatever it scans
        ((2.0, 5.0), (1.0, 2.1), 2.1),
        (None, (1.0, 1.1), 1.1),
        ((1.0, 2.5), None, 2.5),
    ],
)
def test_the_worst_of_the_healthy_cells_is_judged(
    bench: ModuleType, balloon: tuple[float, float] | None, wall: tuple[float, float] | None, value: float
) -> None:
    record = judged(bench, cells("mmap", "on", balloon=balloon, wall=wall))
    assert values(record) == {"scan_per_steal_of_healthy": value}
    assert record.verdict == ("supported" if value <= 2 else "refuted")


def test_a_way_of_reading_is_judged_by_its_own_cells(bench: ModuleType) -> None:
    bad, good = (1.0, 9.0), (1.0, 1.0)
    found = [
        *cells("mmap", "on", wall=good),
        *cells("mmap", "off", wall=bad),
        *cells("page_cache", "on", wall=bad),
        *cells("fadv_random", "on", wall=bad),
    ]
    assert judged(bench, found).verdict == "supported"
    assert judged(bench, found, state="off").verdict == "refuted"
    assert judged(bench, found, mode="fadv_random").verdict == "refuted"


@pytest.mark.parametrize(
    ("balloon", "wall", "why"),
    [(None, None, "none proved"), ((1.3, 1.0), (2.0, 1.0), "every one of them amplified")],
)
def test_without_a_healthy_cell_it_is_not_examined(
    bench: ModuleType, balloon: tuple[float, float] | None, wall: tuple[float, float] | None, why: str
) -> None:
    found = [*cells("mmap", "on", balloon=balloon, wall=wall), *cells("page_cache", "on", wall=(1.0, 1.0))]
    record = judged(bench, found)
    assert (record.verdict, record.judgements) == ("not_examined", [])
    assert record.reason == f"no healthy cell of mode mmap, MGLRU on: {why}; expected one"


def test_rounds_on_both_sides_of_the_threshold_cannot_tell(bench: ModuleType) -> None:
    found = [held(reclaim("cgroup", "on", mode="mmap"), 1.0, 1.0, scan_per_steal=[1.5, 2.4])]
    assert judged(bench, found).verdict == "not_examined"
