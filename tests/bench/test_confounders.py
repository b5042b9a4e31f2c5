"""What the controls of read-ahead and file system say of cells that are known beforehand."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from curves import HELD, Known, held, reclaim, values
from known import module_of

from pytest_moetier.campaign import CellResult

WORDS = ("read_ahead_kb", "filesystem")


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The finding's module."""
    return module_of("confounders")


def wall(size: float, state: str = "on", at: float = HELD, **words: Any) -> CellResult:
    return held(reclaim("cgroup", state, **words), size, at=at)


def cells(state: str = "on", **by: float) -> list[CellResult]:
    """Return the cells of a state with these device bytes: of ``plain``, ``short``, ``long`` read-ahead and ``xfs``."""
    return [
        wall(by.get("plain", 1.0), state),
        wall(by.get("short", 1.0), state, read_ahead_kb=128),
        wall(by.get("long", 1.0), state, read_ahead_kb=8192),
        wall(by.get("xfs", 1.0), state, filesystem="xfs"),
    ]


def judged(bench: ModuleType, found: list[CellResult], word: str, state: str = "on") -> Any:
    return Known("confounders", found).judged(bench.test_what_it_changes, word, state)


@pytest.mark.parametrize(
    ("size", "verdict"), [(1.14, "supported"), (0.86, "supported"), (1.16, "refuted"), (0.84, "refuted")]
)
def test_more_or_fewer_bytes_than_within_15_per_cent_refute_that_it_changes_little(
    bench: ModuleType, size: float, verdict: str
) -> None:
    record = judged(bench, cells(long=size, plain=5.0, xfs=5.0), "read_ahead_kb")
    assert (record.verdict, values(record)) == (verdict, {"read_ahead_kb_device_ratio": size})
    record = judged(bench, cells(xfs=size, short=5.0, long=5.0), "filesystem")
    assert (record.verdict, values(record)) == (verdict, {"filesystem_device_ratio": size})


@pytest.mark.parametrize("word", WORDS)
def test_a_state_of_mglru_is_judged_by_its_own_cells(bench: ModuleType, word: str) -> None:
    found = [*cells("on"), *cells("off", long=3.0, xfs=3.0)]
    assert judged(bench, found, word).verdict == "supported"
    assert judged(bench, found, word, "off").verdict == "refuted"


@pytest.mark.parametrize(("word", "needed"), [("read_ahead_kb", {1, 2}), ("filesystem", {0, 3})])
def test_a_cell_that_is_missing_or_held_another_amount_leaves_it_not_examined(
    bench: ModuleType, word: str, needed: set[int]
) -> None:
    for at, one in enumerate(cells()):
        left = [*cells()[:at], *cells()[at + 1 :]]
        moved = [*left, held(one.cell, 1.0, at=HELD * 1.03)]
        expected = "not_examined" if at in needed else "supported"
        assert [judged(bench, found, word).verdict for found in (left, moved)] == [expected] * 2
