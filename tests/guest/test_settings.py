"""What a boot is given: RAM, mem= and control target by which capacity, locked share and residency are the cell's."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moetier.cell import Cell, GuestAsked
from pytest_moetier.errors import UnsupportedHostError
from pytest_moetier.guest import (
    LOCKED_WITHIN,
    MATCHED_WITHIN,
    Probe,
    Setting,
    adjusted,
    first_setting,
    is_matched,
    locked_share,
    residency_of,
)
from pytest_moetier.host.machine import GuestFacts
from pytest_moetier.units import Capacity

MIB = 1 << 20
FACTS = GuestFacts("6.12", "6.12.9", "tcg", "", 0, 2, "", 5.0)


def cell(mechanism: str, locked: int = 0) -> Cell:
    return Cell("reclaim", Capacity.parse("4.4%"), mechanism, workload="reclaim", locked=locked, kernel="6.12")


def lane(memory_bytes: int = 0) -> Any:
    """Return the part of a lane that says what the user chose."""
    return SimpleNamespace(asked=GuestAsked(memory_bytes=memory_bytes))


@dataclass(frozen=True)
class Kernel:
    """A kernel of which a page in 64 describes pages, which keeps and uses so much, and hides so much of a target."""

    kept_bytes: int
    used_bytes: int
    hidden_bytes: int = 0

    def total(self, memory_bytes: int) -> int:
        return memory_bytes - memory_bytes // 64 - self.kept_bytes

    @property
    def seen(self) -> Probe:
        return Probe(1.0, self.kept_bytes, self.used_bytes, FACTS)

    def run(self, one: Cell, setting: Setting, capacity_bytes: int) -> Any:
        """Return what a run with that setting shows."""
        total = self.total(setting.mem_bytes or setting.memory_bytes)
        locked = total - self.used_bytes - setting.control_bytes if one.mechanism == "balloon" else 0
        available = total - self.used_bytes - locked
        resident = (setting.control_bytes if one.mechanism == "cgroup" else available) - self.hidden_bytes
        return run_of(one, capacity_bytes, [resident], total=total, available=available, locked=locked)


def run_of(  # noqa: PLR0913
    one: Cell,
    capacity_bytes: int,
    resident: list[int],
    *,
    total: int | None = None,
    available: int = 0,
    locked: int | None = None,
) -> Any:
    """Return the part of a run that is looked at."""
    enforced = SimpleNamespace(available_bytes=available, locked_bytes=locked, locked_bytes_observed=locked)
    return SimpleNamespace(
        cell=one,
        capacity_bytes=capacity_bytes,
        measured=SimpleNamespace(residencies=[SimpleNamespace(resident_bytes=size) for size in resident]),
        entry=SimpleNamespace(mem_total_bytes=total),
        enforced=enforced,
        guest=FACTS,
    )


kernels = st.builds(
    Kernel, st.integers(8 * MIB, 96 * MIB), st.integers(24 * MIB, 96 * MIB), st.integers(-4 * MIB, 12 * MIB)
)
capacities = st.integers(64 * MIB, 1 << 30)


def test_the_residency_is_the_mean_of_the_samples() -> None:
    assert residency_of(run_of(cell("cgroup"), 100, [90, 100, 125])) == 105
    assert residency_of(run_of(cell("cgroup"), 100, [])) is None


@pytest.mark.parametrize(
    ("resident", "expected"), [([981], True), ([1019], True), ([979], False), ([1021], False), ([], False)]
)
def test_a_run_is_matched_within_two_per_cent_of_its_capacity(resident: list[int], expected: bool) -> None:  # noqa: FBT001
    assert MATCHED_WITHIN == 0.02
    assert is_matched(run_of(cell("cgroup"), 1000, resident)) is expected


@pytest.mark.parametrize(
    ("locked", "expected"), [(8100, True), (8149, True), (8051, True), (8151, False), (8049, False), (None, False)]
)
def test_a_run_with_a_locked_share_is_matched_within_half_a_point_of_it(locked: int | None, expected: bool) -> None:  # noqa: FBT001
    assert LOCKED_WITHIN == 0.005
    run = run_of(cell("balloon", 81), 1000, [1000], total=10_000, locked=locked)
    assert locked_share(run) == (None if locked is None else locked / 10_000)
    assert is_matched(run) is expected
    assert is_matched(run_of(cell("balloon"), 1000, [1000], total=10_000, locked=locked))


@given(kernels, capacities, st.sampled_from((74, 81, 88)))
def test_a_locked_share_decides_the_memory(kernel: Kernel, capacity: int, locked: int) -> None:
    setting = first_setting(lane(), cell("balloon", locked), capacity, kernel.seen)
    assert (setting.control_bytes, setting.mem_bytes, setting.memory_bytes % MIB) == (capacity, None, 0)
    left = kernel.total(setting.memory_bytes) * (1 - locked / 100) - kernel.used_bytes
    assert 0 <= left - capacity < 2 * MIB
    assert first_setting(lane(setting.memory_bytes), cell("balloon", locked), capacity, kernel.seen) == setting


@given(kernels, capacities)
def test_mem_leaves_the_capacity_available(kernel: Kernel, capacity: int) -> None:
    setting = first_setting(lane(), cell("memboot"), capacity, kernel.seen)
    assert setting.mem_bytes is not None
    assert 0 <= kernel.total(setting.mem_bytes) - kernel.used_bytes - capacity < 2 * MIB
    assert setting.mem_bytes <= setting.memory_bytes


@given(kernels, capacities, st.sampled_from(("cgroup", "balloon")))
def test_without_a_locked_share_there_is_room_beside_the_capacity(
    kernel: Kernel, capacity: int, mechanism: str
) -> None:
    setting = first_setting(lane(), cell(mechanism), capacity, kernel.seen)
    assert setting.memory_bytes == -(-(capacity + 768 * MIB) // MIB) * MIB
    assert (setting.control_bytes, setting.mem_bytes) == (capacity, None)
    assert first_setting(lane(4 << 30), cell(mechanism), capacity, kernel.seen).memory_bytes == 4 << 30


def test_memory_that_cannot_hold_the_cell_is_refused_with_what_can() -> None:
    kernel = Kernel(kept_bytes=30 * MIB, used_bytes=50 * MIB)
    with pytest.raises(UnsupportedHostError) as caught:
        first_setting(lane(128 * MIB), cell("cgroup"), 100 * MIB, kernel.seen)
    assert caught.value.seen == "a guest of 128 MiB for a capacity of 105 MB"
    assert caught.value.expected == "at least 183 MiB: kernel and replayer take 83.9 MB beside it"
    assert first_setting(lane(183 * MIB), cell("cgroup"), 100 * MIB, kernel.seen).memory_bytes == 183 * MIB


def test_memory_that_does_not_give_the_locked_share_is_refused_with_what_does() -> None:
    kernel = Kernel(kept_bytes=30 * MIB, used_bytes=50 * MIB)
    setting = first_setting(lane(), cell("balloon", 81), 100 * MIB, kernel.seen)
    with pytest.raises(UnsupportedHostError, match=r"81% of it locked; expected 833 MiB, which leaves 105 MB"):
        first_setting(lane(768 * MIB), cell("balloon", 81), 100 * MIB, kernel.seen)
    assert setting.memory_bytes == 833 * MIB


CELLS = (cell("cgroup"), cell("balloon"), cell("balloon", 74), cell("balloon", 88), cell("memboot"))


@given(kernels, capacities, st.sampled_from(CELLS))
def test_two_adjustments_find_the_residency_and_the_share(kernel: Kernel, capacity: int, one: Cell) -> None:
    setting = first_setting(lane(), one, capacity, kernel.seen)
    for _ in range(2):
        run = kernel.run(one, setting, capacity)
        if is_matched(run):
            break
        setting = adjusted(setting, run, one)
    run = kernel.run(one, setting, capacity)
    assert is_matched(run), (residency_of(run), capacity, locked_share(run))


@given(kernels, capacities, st.sampled_from(CELLS))
def test_an_adjustment_changes_nothing_that_is_right(kernel: Kernel, capacity: int, one: Cell) -> None:
    right = Kernel(kernel.kept_bytes, kernel.used_bytes)
    setting = first_setting(lane(), one, capacity, right.seen)
    found = adjusted(setting, right.run(one, setting, capacity), one)
    assert abs(found.memory_bytes - setting.memory_bytes) <= MIB
    assert abs(found.control_bytes - setting.control_bytes) <= 2 * MIB
    assert abs((found.mem_bytes or 0) - (setting.mem_bytes or 0)) <= 2 * MIB
