"""Exact LRU for every capacity in one pass, against an OrderedDict, libcachesim and hand-worked figures."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moetier import _sim
from pytest_moetier.errors import InputError
from pytest_moetier.simulate import FIRST_TOUCH, LruCurve, lru_curve


@dataclass(frozen=True)
class Accesses:
    sequence: np.ndarray
    expert_bytes: np.ndarray
    iterations: np.ndarray


def accesses(sequence: list[int], sizes: list[int], iterations: list[int] | None = None) -> Accesses:
    borders = [0, len(sequence)] if iterations is None else iterations
    return Accesses(np.array(sequence, np.uint32), np.array(sizes, np.uint64), np.array(borders, np.uint64))


def distances(sequence: list[int], sizes: list[int], passes: int) -> list[int]:
    out = np.empty(len(sequence), np.uint64)
    _sim.lru_distances(np.array(sequence, np.uint32), np.array(sizes, np.uint64), out, passes=passes)
    return [int(d) for d in out]


def oracle_distances(sequence: list[int], sizes: list[int], passes: int) -> list[int]:
    """Walk an OrderedDict from its most recent end, for each access."""
    stack: OrderedDict[int, None] = OrderedDict()
    out: list[int] = []
    for _ in range(passes):
        out = []
        for expert in sequence:
            depth = 0
            for other in reversed(stack):
                depth += sizes[other]
                if other == expert:
                    break
            out.append(depth if expert in stack else int(FIRST_TOUCH))
            stack[expert] = None
            stack.move_to_end(expert)
    return out


def oracle_misses(sequence: list[int], size: int, capacity: int) -> int:
    """Run an LRU of whole experts of one size over the sequence twice; return the second run's missed bytes."""
    cache: OrderedDict[int, None] = OrderedDict()
    missed = 0
    for scored in (False, True):
        for expert in sequence:
            if expert not in cache:
                missed += size * scored
            cache[expert] = None
            cache.move_to_end(expert)
            while len(cache) > capacity // size:
                cache.popitem(last=False)
    return missed


sequences = st.lists(st.integers(0, 11), min_size=1, max_size=200)
sizes_of_twelve = st.lists(st.integers(0, 50), min_size=12, max_size=12)


@given(sequences, sizes_of_twelve, st.integers(1, 3))
def test_distances_equal_an_ordered_dict(sequence: list[int], sizes: list[int], passes: int) -> None:
    assert distances(sequence, sizes, passes) == oracle_distances(sequence, sizes, passes)


def test_distances_stay_exact_through_many_squeezes_of_the_slots() -> None:
    rng = np.random.default_rng(1)
    sequence = (rng.zipf(1.3, 5000) % 100).tolist()
    sizes = rng.integers(1, 1000, 100).tolist()
    assert distances(sequence, sizes, 2) == oracle_distances(sequence, sizes, 2)


def test_a_first_touch_misses_at_every_capacity() -> None:
    assert distances([0, 1, 0], [3, 5], passes=1) == [int(FIRST_TOUCH), int(FIRST_TOUCH), 8]
    curve = LruCurve(
        np.array([FIRST_TOUCH, FIRST_TOUCH, 8], np.uint64), np.array([3, 5, 3], np.uint64), np.array([0, 3], np.uint64)
    )
    assert curve.miss_bytes(1e18) == 8
    assert curve.miss_bytes_by_iteration(1e18).tolist() == [8]
    assert curve.misses([0, 7, 8, 1e18]).tolist() == [3, 3, 2, 2]


@given(sequences, st.integers(1, 1000))
def test_misses_at_whole_expert_counts_equal_an_ordered_dict(sequence: list[int], size: int) -> None:
    curve = lru_curve(accesses(sequence, [size] * 12))
    for held in range(14):
        missed = oracle_misses(sequence, size, held * size)
        assert curve.miss_bytes(held * size) == missed
        assert int(curve.misses(held * size)) * size == missed


def test_a_cyclic_scan_is_all_misses_until_the_whole_cycle_fits() -> None:
    curve = lru_curve(accesses([0, 1, 2, 3] * 3, [10] * 4))
    assert curve.miss_bytes_curve([0, 10, 30, 35, 40, 400]).tolist() == [120, 120, 120, 60, 0, 0]
    assert curve.misses([30, 39.9, 40]).tolist() == [12, 12, 0]
    assert curve.total_bytes == 120


def test_a_capacity_between_two_whole_expert_counts_lies_on_the_line_between_them() -> None:
    rng = np.random.default_rng(2)
    curve = lru_curve(accesses((rng.zipf(1.2, 3000) % 64).tolist(), [4096] * 64))
    for held in range(64):
        below, above = curve.miss_bytes(held * 4096), curve.miss_bytes((held + 1) * 4096)
        assert curve.miss_bytes((held + 0.25) * 4096) == pytest.approx(0.75 * below + 0.25 * above, rel=1e-12)


@given(sequences, sizes_of_twelve, st.floats(0, 700))
def test_the_curve_is_the_sum_of_its_accesses_and_of_its_iterations(
    sequence: list[int], sizes: list[int], capacity: float
) -> None:
    middle = len(sequence) // 2
    curve = lru_curve(accesses(sequence, sizes, [0, middle, middle, len(sequence)]))
    pairs = zip(oracle_distances(sequence, sizes, 2), sequence, strict=True)
    by_access = [min(max(distance - capacity, 0.0), sizes[expert]) for distance, expert in pairs]
    assert curve.miss_bytes(capacity) == pytest.approx(sum(by_access), abs=1e-6)
    by_iteration = curve.miss_bytes_by_iteration(capacity)
    assert by_iteration.tolist() == pytest.approx([sum(by_access[:middle]), 0, sum(by_access[middle:])], abs=1e-6)


@given(sequences, sizes_of_twelve)
def test_more_capacity_never_misses_more(sequence: list[int], sizes: list[int]) -> None:
    curve = lru_curve(accesses(sequence, sizes))
    missed = curve.miss_bytes_curve(np.arange(0, 620, 7))
    assert missed[0] == curve.total_bytes
    assert np.all(np.diff(missed) <= 0)
    assert missed[-1] == 0


def test_misses_equal_libcachesim_lru() -> None:
    libcachesim = pytest.importorskip("libcachesim", reason="libcachesim is the peer here: pip install libcachesim")
    rng = np.random.default_rng(3)
    sequence = (rng.zipf(1.2, 20_000) % 500).tolist()
    curve = lru_curve(accesses(sequence, [1024] * 500))
    for held in (8, 50, 200, 450):
        peer = libcachesim.LRU(cache_size=held * 1024)
        missed = 0
        for scored in (False, True):
            for i, expert in enumerate(sequence):
                request = libcachesim.Request()
                request.obj_id, request.obj_size, request.clock_time = expert + 1, 1024, i
                missed += (not peer.get(request)) * scored
        assert curve.misses(held * 1024) == missed


def test_an_empty_plan_misses_nothing() -> None:
    curve = lru_curve(accesses([], [10], [0]))
    assert curve.miss_bytes(0) == 0
    assert curve.misses([0, 5]).tolist() == [0, 0]
    assert curve.miss_bytes_by_iteration(5).tolist() == []


@pytest.mark.parametrize("capacity", [-1, float("nan")])
def test_a_capacity_below_zero_is_refused(capacity: float) -> None:
    curve = lru_curve(accesses([0, 1], [10, 10]))
    for ask in (curve.miss_bytes, curve.misses, curve.miss_bytes_by_iteration):
        with pytest.raises(InputError, match="zero or more"):
            ask(capacity)


def test_an_index_out_of_range_is_named() -> None:
    with pytest.raises(InputError, match=r"sequence\[1\] is 2; expected an index below 2"):
        lru_curve(accesses([0, 2], [10, 10]))
