"""Belady's bound by pages: no strategy reads less, and one reads as little."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_moetier.errors import InputError
from pytest_moetier.simulate import belady_page_bound, lru_curve


@dataclass(frozen=True)
class Accesses:
    sequence: np.ndarray
    expert_bytes: np.ndarray
    iterations: np.ndarray


def accesses(sequence: list[int], sizes: list[int]) -> Accesses:
    return Accesses(np.array(sequence, np.uint32), np.array(sizes, np.uint64), np.array([0, len(sequence)], np.uint64))


def bound(sequence: list[int], pages: list[int], capacity: int) -> int:
    """Return the bound in pages."""
    return belady_page_bound(accesses(sequence, [p * 4096 for p in pages]), capacity * 4096) // 4096


def least_pages(sequence: list[int], pages: list[int], capacity: int) -> int:
    """Try every strategy: any initial content, and after each access any content made of what was held or just read."""
    contents = [c for c in product(*(range(p + 1) for p in pages)) if sum(c) <= capacity]
    best = dict.fromkeys(contents, 0)
    for expert in sequence:
        after: dict[tuple[int, ...], int] = {}
        for held, missed in best.items():
            cost = missed + pages[expert] - held[expert]
            reachable = [range(h + 1) for h in held]
            reachable[expert] = range(pages[expert] + 1)
            for content in product(*reachable):
                if sum(content) <= capacity and cost < after.get(content, 1 << 60):
                    after[content] = cost
        best = after
    return min(best.values())


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.integers(0, 3), max_size=8),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.integers(0, 8),
)
def test_the_bound_is_the_least_over_every_strategy(sequence: list[int], pages: list[int], capacity: int) -> None:
    assert bound(sequence, pages, capacity) == least_pages(sequence, pages, capacity)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=9, max_size=12), st.integers(0, 5))
def test_the_bound_for_whole_pages_is_the_least_over_every_strategy(sequence: list[int], capacity: int) -> None:
    assert bound(sequence, [1] * 5, capacity) == least_pages(sequence, [1] * 5, capacity)


def plain_min(sequence: list[int], capacity: int) -> int:
    """Belady's MIN with bypass over unit objects, by looking ahead, from the first-used objects that fit."""
    held = set(list(dict.fromkeys(sequence))[:capacity])
    missed = 0
    for i, expert in enumerate(sequence):
        missed += expert not in held
        held.add(expert)
        if len(held) > capacity:
            rest = sequence[i + 1 :]
            held.remove(max(held, key=lambda e: rest.index(e) if e in rest else len(sequence)))
    return missed


@settings(deadline=None)
@given(st.lists(st.integers(0, 20), max_size=150), st.integers(0, 22))
def test_the_bound_equals_a_plain_min_that_looks_ahead(sequence: list[int], capacity: int) -> None:
    assert bound(sequence, [1] * 21, capacity) == plain_min(sequence, capacity)


def test_sequences_over_several_levels_of_the_position_set_agree_with_the_plain_min() -> None:
    rng = np.random.default_rng(4)
    sequence = (rng.zipf(1.1, 6000) % 300).tolist()
    for capacity in (5, 60, 200):
        assert bound(sequence, [1] * 300, capacity) == plain_min(sequence, capacity)


def test_a_larger_expert_is_its_pages_one_after_the_other() -> None:
    rng = np.random.default_rng(5)
    pages = rng.integers(1, 6, 12).tolist()
    first = np.concatenate([[0], np.cumsum(pages)])
    sequence = rng.integers(0, 12, 300).tolist()
    by_page = [int(first[e]) + k for e in sequence for k in range(pages[e])]
    for capacity in (3, 11, 20, 33):
        assert bound(sequence, pages, capacity) == plain_min(by_page, capacity)


def test_nothing_beats_the_bound_and_everything_held_reads_nothing() -> None:
    rng = np.random.default_rng(6)
    plan = accesses((rng.zipf(1.2, 5000) % 64).tolist(), [3 * 4096] * 64)
    curve = lru_curve(plan)
    bounds = [belady_page_bound(plan, c * 4096) for c in range(0, 200, 8)]
    assert all(b <= curve.miss_bytes(c * 4096) for b, c in zip(bounds, range(0, 200, 8), strict=True))
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] == 5000 * 3 * 4096
    assert belady_page_bound(plan, 64 * 3 * 4096) == 0


def test_a_cyclic_scan_misses_once_a_round_when_all_but_one_expert_fit() -> None:
    sequence = list(range(10)) * 3
    assert bound(sequence, [1] * 10, 10) == 0
    assert bound(sequence, [1] * 10, 9) == 3
    assert bound(sequence, [1] * 10, 0) == 30


def test_libcachesim_belady_is_above_the_bound_by_no_more_than_its_cold_start() -> None:
    libcachesim = pytest.importorskip("libcachesim", reason="libcachesim is the peer here: pip install libcachesim")
    rng = np.random.default_rng(7)
    sequence = (rng.zipf(1.2, 4000) % 200).tolist()
    following = {}
    next_use = [0] * len(sequence)
    for i in range(len(sequence) - 1, -1, -1):
        next_use[i] = following.get(sequence[i], 2**62)
        following[sequence[i]] = i
    for held in (10, 40, 120):
        peer = libcachesim.Belady(cache_size=held)
        missed = 0
        for i, expert in enumerate(sequence):
            request = libcachesim.Request()
            request.obj_id, request.obj_size, request.clock_time = expert + 1, 1, i
            request.next_access_vtime = next_use[i]
            missed += not peer.get(request)
        # The peer starts empty (at most `held` reads more) and must admit what it reads (one slot less to keep).
        assert bound(sequence, [1] * 200, held) <= missed <= bound(sequence, [1] * 200, held - 1) + held


def test_only_whole_pages_count_and_the_cache_is_rounded_up() -> None:
    plan = accesses([0, 1, 0, 1], [4096 + 100, 50])
    assert belady_page_bound(plan, 0) == 2 * 4096
    assert belady_page_bound(plan, 1) == 0
    assert belady_page_bound(plan, 0, page_bytes=1) == 2 * (4096 + 150)


@pytest.mark.parametrize(("resident", "page"), [(-1, 4096), (10, 0)])
def test_sizes_that_cannot_be_are_refused(resident: int, page: int) -> None:
    with pytest.raises(InputError, match="sizes above zero"):
        belady_page_bound(accesses([0], [4096]), resident, page)


def test_an_expert_larger_than_the_cache_reads_its_remainder_each_time() -> None:
    assert bound([0] * 7, [5], 3) == 2 * 7
