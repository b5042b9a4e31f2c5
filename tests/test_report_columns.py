"""Which columns the table of a finding has: a curve's, or those that tell modes apart."""

from __future__ import annotations

import pytest

from pytest_moetier.finding import Metric
from pytest_moetier.report import _columns
from pytest_moetier.verdicts import Record


def heads(*cells: str | None, held: bool = False) -> set[str]:
    records = [Record("capacity", f"test_{at}", cell) for at, cell in enumerate(cells)]
    if held:
        records[0].metrics = {"held_bytes": Metric("held_bytes", "B/iteration", "higher", (1.0,))}
    return {name for name, _ in _columns(records)}


@pytest.mark.parametrize(
    "cells",
    [
        ("C4.4pct-cgroup-mglru_host", "C8.8pct-cgroup-mglru_host"),
        ("C4.4pct-cgroup-mglru_host", "C4.4pct-balloon-mglru_host", None),
        ("C4.4pct-cgroup-mglru_host", "C8.8pct-cgroup-mglru_host", "C8.8pct-cgroup-mglru_host-batch4", None),
    ],
)
def test_a_curve_keeps_its_rail_and_what_the_kernel_kept_beside_batches_and_findings(cells: tuple[str | None]) -> None:
    assert {"rail", "nominal", "LRU set", "MIN set", "partial"} <= heads(*cells)


def test_modes_at_one_capacity_are_told_apart_by_what_they_serve_and_hold() -> None:
    found = heads("C4.4pct-cgroup-mglru_host", "C4.4pct-cgroup-mglru_host-mmap", None)
    assert {"served", "own", "majflt"} <= found
    assert "rail" not in found
    assert "own" in heads("C4.4pct-cgroup-mglru_host-user_lru", "C8.8pct-cgroup-mglru_host-user_lru", held=True)
