"""Whose set the resident bytes are: exact LRU's, Belady's, or anyone's."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_moetier.errors import AccountingError, InputError
from pytest_moetier.fidelity import Fidelity, belady_content, fidelity_of, lru_content
from pytest_moetier.plan import Plan, build_plan
from pytest_moetier.pool.manifest import Manifest
from pytest_moetier.trace.synth import synth_trace


@dataclass(frozen=True)
class Reads:
    sequence: np.ndarray
    expert_bytes: np.ndarray
    iterations: np.ndarray


def reads(sequence: list[int], sizes: list[int]) -> Reads:
    return Reads(np.array(sequence, np.uint32), np.array(sizes, np.uint64), np.array([0, len(sequence)], np.uint64))


def of(plan: Reads | Plan, resident: list[int], passes: int = 2) -> Fidelity:
    return fidelity_of(plan, np.array(resident, np.uint64), passes)


SCAN = reads([0, 1, 2, 3], [10] * 4)
"""LRU ends with the last experts of a scan, Belady with its first: what the next replay begins with."""


def test_the_last_experts_of_a_scan_are_all_lru_and_nothing_of_belady() -> None:
    assert of(SCAN, [0, 0, 10, 10]) == Fidelity(
        resident_bytes=20,
        unread_bytes=0,
        whole_experts=2,
        partial_experts=0,
        partial_bytes=0,
        lru_overlap=1.0,
        belady_overlap=0.0,
        lru_belady_overlap=0.0,
        random_overlap=0.5,
    )


def test_the_first_experts_of_a_scan_are_all_belady_and_nothing_of_lru() -> None:
    found = of(SCAN, [10, 10, 0, 0])
    assert (found.lru_overlap, found.belady_overlap, found.lru_belady_overlap) == (0.0, 1.0, 0.0)


def test_the_border_expert_counts_for_the_part_that_fits() -> None:
    # 24 bytes: LRU holds 3 and 2 whole and 4 bytes of 1; Belady 0 and 1 whole and 4 bytes of 2.
    found = of(SCAN, [7, 7, 10, 0])
    assert (found.resident_bytes, found.whole_experts, found.partial_experts, found.partial_bytes) == (24, 1, 2, 14)
    assert found.lru_overlap == (4 + 10) / 24
    assert found.belady_overlap == (7 + 7 + 4) / 24
    assert found.lru_belady_overlap == (4 + 4) / 24
    assert found.random_overlap == 24 / 40


def test_experts_of_several_sizes_fill_the_same_bytes_from_the_last_one_back() -> None:
    plan = reads([0, 1, 2, 1], [8, 4, 6])
    assert lru_content(plan, 9).tolist() == [0, 4, 5]
    # 1 is used again before 0 is, which makes way for it; 2 passes by, for 1 and 0 are both used before it is again.
    assert belady_content(plan, 9, 1).tolist() == [5, 4, 0]
    found = of(plan, [1, 4, 4], passes=1)
    assert (found.lru_overlap, found.belady_overlap) == ((4 + 4) / 9, (1 + 4) / 9)


def test_an_expert_behind_the_first_that_does_not_fit_is_not_held_though_it_would_fit() -> None:
    assert lru_content(reads([0, 1, 2], [2, 100, 5]), 9).tolist() == [0, 4, 5]


def test_belady_is_told_how_often_the_plan_was_replayed() -> None:
    # After one replay 0 is still there; in the second it makes way for 1.
    plan = reads([0, 1, 1, 2, 2], [10] * 3)
    assert [of(plan, [10, 0, 10], passes).belady_overlap for passes in (1, 2, 3)] == [1.0, 0.5, 0.5]


def test_without_anything_resident_no_share_is_told() -> None:
    found = of(SCAN, [0, 0, 0, 0])
    assert (found.resident_bytes, found.whole_experts, found.partial_experts) == (0, 0, 0)
    shares = found.lru_overlap, found.belady_overlap, found.lru_belady_overlap, found.random_overlap
    assert shares == (None, None, None, None)


def test_of_a_plan_that_reads_nothing_no_share_is_told() -> None:
    found = of(reads([], [10, 10]), [10, 3])
    assert (found.unread_bytes, found.whole_experts, found.partial_experts) == (13, 1, 1)
    assert (found.lru_overlap, found.random_overlap) == (None, None)


def test_when_all_is_resident_every_share_is_one_as_by_chance() -> None:
    found = of(reads([0, 2, 1, 0, 2], [5, 10, 15]), [5, 10, 15])
    assert (found.whole_experts, found.partial_experts) == (3, 0)
    shares = found.lru_overlap, found.belady_overlap, found.lru_belady_overlap, found.random_overlap
    assert shares == (1.0, 1.0, 1.0, 1.0)


def test_resident_bytes_that_the_plan_never_reads_are_in_no_set() -> None:
    plan = reads([0, 1], [10] * 4)
    found = of(plan, [0, 10, 0, 5])
    assert (found.unread_bytes, found.partial_experts, found.partial_bytes) == (5, 1, 5)
    assert found.lru_overlap == 10 / 15
    assert found.random_overlap == 15 / 20
    beyond = of(plan, [10, 10, 10, 10])  # more than is ever read
    assert (beyond.lru_overlap, beyond.belady_overlap, beyond.lru_belady_overlap, beyond.random_overlap) == (
        0.5,
        0.5,
        1.0,
        1.0,
    )


@st.composite
def plans(draw: st.DrawFn) -> tuple[Reads, int, int]:
    """Return a plan, a capacity and how often it is replayed."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    sequence = draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=20))
    return reads(sequence, sizes), draw(st.integers(1, sum(sizes))), draw(st.integers(1, 3))


@settings(deadline=None)
@given(plans())
def test_a_policys_own_content_is_all_its_own(case: tuple[Reads, int, int]) -> None:
    plan, capacity, passes = case
    lru, belady = lru_content(plan, capacity), belady_content(plan, capacity, passes)
    as_lru, as_belady = fidelity_of(plan, lru, passes), fidelity_of(plan, belady, passes)
    assert as_lru.resident_bytes == as_belady.resident_bytes == int(lru.sum())
    assert (as_lru.lru_overlap, as_belady.belady_overlap) == (1.0, 1.0)
    # How much two sets have in common does not depend on which of them is the resident one.
    assert as_lru.belady_overlap == as_belady.lru_overlap == as_lru.lru_belady_overlap


@settings(deadline=None)
@given(plans(), st.data())
def test_every_share_is_a_share_and_every_byte_is_counted(case: tuple[Reads, int, int], data: st.DataObject) -> None:
    plan, _, passes = case
    resident = [data.draw(st.integers(0, int(size))) for size in plan.expert_bytes]
    assume(sum(resident) > 0)
    found = of(plan, resident, passes)
    shares = found.lru_overlap, found.belady_overlap, found.lru_belady_overlap, found.random_overlap
    assert all(share is not None and 0 <= share <= 1 for share in shares)
    whole = sum(one for one, size in zip(resident, plan.expert_bytes, strict=True) if one == size)
    assert found.resident_bytes == sum(resident) == whole + found.partial_bytes
    assert found.whole_experts + found.partial_experts == sum(one > 0 for one in resident)


def simulated_lru(sequence: list[int], capacity: int, passes: int) -> set[int]:
    held: OrderedDict[int, None] = OrderedDict()
    for expert in sequence * passes:
        held[expert] = None
        held.move_to_end(expert)
        if len(held) > capacity:
            held.popitem(last=False)
    return set(held)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=60),
    st.integers(1, 10),
    st.integers(1, 3),
)
def test_whole_experts_of_one_size_are_those_that_a_simulated_lru_ends_with(
    sequence: list[int], capacity: int, passes: int
) -> None:
    held = lru_content(reads(sequence, [7] * 10), 7 * capacity)
    assert set(np.flatnonzero(held == 7).tolist()) == simulated_lru(sequence, capacity, passes)
    assert set(held.tolist()) <= {0, 7}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_random_share_is_the_mean_over_all_sets_of_as_many_experts(count: int) -> None:
    plan = reads([0, 1, 2, 1, 3, 4, 0, 2], [10] * 6)  # expert 5 is never read
    sets = [of(plan, [10 * (one in some) for one in range(6)]) for some in combinations(range(5), count)]
    assert {one.random_overlap for one in sets} == {count / 5}
    assert fmean(one.lru_overlap or 0 for one in sets) == pytest.approx(count / 5)
    assert fmean(one.belady_overlap or 0 for one in sets) == pytest.approx(count / 5)


def test_a_plan_of_a_pool_with_two_sizes_tells_lru_belady_and_chance_apart() -> None:
    manifest = Manifest(
        name="small",
        profile="custom",
        pool_id=1,
        layers=tuple(range(4)),
        experts=64,
        k=4,
        expert_bytes=(4096, 8192, 4096, 4096),
    )
    plan = build_plan(synth_trace(layers=4, experts=64, k=4, iterations=120), manifest)
    capacity = plan.pool_bytes // 4
    lru = fidelity_of(plan, lru_content(plan, capacity))
    belady = fidelity_of(plan, belady_content(plan, capacity, 2))
    assert (lru.lru_overlap, belady.belady_overlap) == (1.0, 1.0)
    assert lru.belady_overlap == belady.lru_overlap == lru.lru_belady_overlap
    by_chance = []
    rng, read = np.random.default_rng(9), np.unique(plan.sequence)
    for _ in range(60):
        some, drawn = rng.permutation(read)[: len(read) // 3], np.zeros(plan.n_experts, np.uint64)
        drawn[some] = plan.expert_bytes[some]
        by_chance.append(fidelity_of(plan, drawn))
    expected = fmean(one.random_overlap or 0 for one in by_chance)
    assert fmean(one.lru_overlap or 0 for one in by_chance) == pytest.approx(expected, abs=0.03)
    assert fmean(one.belady_overlap or 0 for one in by_chance) == pytest.approx(expected, abs=0.03)
    assert (lru.lru_belady_overlap or 0) > 1.5 * expected


def test_the_residency_of_another_plan_is_refused() -> None:
    with pytest.raises(AccountingError, match="the resident bytes of 3 experts; expected those of 4, as the plan has"):
        of(SCAN, [0, 0, 10])
    with pytest.raises(AccountingError, match=r"11 bytes of expert 2 of the plan are resident; expected at most .* 10"):
        of(SCAN, [0, 0, 11, 12])


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(InputError, match="passes is 0; expected 1 or more"):
        of(SCAN, [10] * 4, passes=0)
    with pytest.raises(InputError, match=r"sequence\[1\] is 4; expected an index below 4"):
        of(reads([0, 4], [10] * 4), [10] * 4)
    for content in (lru_content(SCAN, 40), belady_content(SCAN, 10**30, 1)):
        assert content.tolist() == [10] * 4
    with pytest.raises(InputError, match="a cache of -1 bytes; expected zero or more"):
        lru_content(SCAN, -1)
    with pytest.raises(InputError, match="a cache of -1 bytes; expected zero or more"):
        belady_content(SCAN, -1, 1)
