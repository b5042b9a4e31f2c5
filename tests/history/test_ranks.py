"""The exact statistics: against counts by hand and by enumeration, and their error rates by simulation."""
# ruff: noqa: S311 - simulated noise is no secret

from __future__ import annotations

import math
from itertools import combinations
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moetier.history import ranks
from pytest_moetier.history.ranks import LEAST, holm, rank_test, ratio_interval, values_needed

LOW, HIGH = (1.0, 2.0, 3.0, 4.0, 5.0), (6.0, 7.0, 8.0, 9.0, 10.0)
VALUES = st.lists(st.integers(1, 6).map(float), min_size=1, max_size=5)


def test_five_apart_from_five_is_chance_in_two_of_252() -> None:
    assert rank_test(LOW, HIGH) == pytest.approx(2 / 252)
    assert rank_test(HIGH, LOW) == pytest.approx(2 / 252)
    assert rank_test((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)) == pytest.approx(2 / 20)


def test_equal_values_are_no_difference() -> None:
    assert rank_test(LOW, LOW) == 1.0
    assert rank_test((7.0,) * 5, (7.0,) * 5) == 1.0
    assert rank_test((0.0,) * 60, (0.0,) * 60) == 1.0


def by_enumeration(then: list[float], now: list[float]) -> float:
    """Return the p of all ways to choose as many of the values: by pairs won, ties half, not by ranks."""

    def won(chosen: set[int]) -> float:
        pairs = [(pooled[i], pooled[j]) for i in chosen for j in range(len(pooled)) if j not in chosen]
        return sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs)

    pooled = then + now
    middle = len(then) * len(now) / 2
    away = abs(won(set(range(len(then), len(pooled)))) - middle)
    every = [set(one) for one in combinations(range(len(pooled)), len(now))]
    return sum(abs(won(one) - middle) >= away - 1e-9 for one in every) / len(every)


@given(then=VALUES, now=VALUES)
def test_the_p_is_that_of_every_way_to_split_the_values(then: list[float], now: list[float]) -> None:
    assert rank_test(then, now) == pytest.approx(by_enumeration(then, now))


def test_many_values_are_taken_as_normal_which_agrees_with_the_exact_count(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Random(1)
    then, now = ([round(draw.lognormvariate(shift, 0.1), 2) for _ in range(60)] for shift in (0.0, 0.03))
    normal = (rank_test(then, now), *ratio_interval(then, now, 0.05))
    monkeypatch.setattr(ranks, "EXACT", 120)
    assert normal == pytest.approx((rank_test(then, now), *ratio_interval(then, now, 0.05)), abs=0.002)


def test_the_interval_of_five_and_five_ends_at_the_third_ratios() -> None:
    ratios = sorted(above / below for above in HIGH for below in LOW)
    assert ratio_interval(LOW, HIGH, 0.05) == (ratios[2], ratios[-3])  # 1 - 2 * 4 / 252 is 96.8%
    assert ratio_interval(LOW[:3], HIGH[:3], 0.05) == (0.0, math.inf)  # no interval of three has 95%
    assert ratio_interval(LOW[:4], HIGH[:4], 0.05) == (6 / 4, 9 / 1)  # the outermost: 1 - 2 / 70


def test_zeros_leave_the_ratio_open_where_they_meet_and_give_an_end_where_they_do_not() -> None:
    assert ratio_interval((0.0,) * 5, (0.0,) * 5, 0.05) == (0.0, math.inf)
    assert ratio_interval((0.0,) * 5, LOW, 0.05) == (math.inf, math.inf)
    assert ratio_interval(LOW, (0.0,) * 5, 0.05) == (0.0, 0.0)


@given(
    then=st.lists(st.floats(0.5, 2), min_size=5, max_size=8), now=st.lists(st.floats(0.5, 2), min_size=5, max_size=8)
)
def test_the_ratio_of_the_medians_lies_in_its_interval(then: list[float], now: list[float]) -> None:
    low, high = ratio_interval(then, now, 0.05)
    assert low <= median(now) / median(then) <= high


def test_holms_correction() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("tests", "other", "needed"),
    [(1, 0, 5), (6, 0, 5), (7, 0, 6), (23, 0, 6), (24, 0, 7), (14, 5, 7), (14, 20, 5)],
)
def test_how_many_values_a_side_tell_a_change_from_chance(tests: int, other: int, needed: int) -> None:
    """2 / C(10, 5) is 0.79%: six tests stay under 5%, seven do not; 2 / C(12, 6) does for 23."""
    assert values_needed(tests, 0.05, other) == needed
    assert 2 * tests / math.comb(needed + (other or needed), needed) <= 0.05


def alarms(cells: int, draw: Random, change: float = 1.0) -> list[float]:
    """Return Holm's p of each cell of two sessions of five rounds with 2% noise, the last cell changed."""
    ps = []
    for cell in range(cells):
        factor = change if cell == cells - 1 else 1.0
        then, now = ([one * draw.lognormvariate(0, 0.02) for _ in range(LEAST)] for one in (1.0, factor))
        ps.append(rank_test(then, now))
    return holm(ps)


def test_a_false_alarm_over_all_cells_is_rarer_than_the_level_and_without_correction_it_is_not() -> None:
    draw = Random(2608)
    sessions = [[one for _ in range(6) for one in alarms(1, draw)] for _ in range(1500)]
    assert sum(min(ps) <= 0.05 for ps in sessions) / 1500 > 0.12  # six tests, none corrected: 1 - (1 - 3.2%)^6
    assert sum(min(holm(ps)) <= 0.05 for ps in sessions) / 1500 <= 0.06  # 4.7% expected, 0.5% its error


def test_a_bootstrap_of_three_values_alarms_where_nothing_changed() -> None:
    """All of three values beyond the others' range, which is what its interval comes to, is chance in 2 of 20."""
    draw, found = Random(3), 0
    for _ in range(1000):
        then, now = ([draw.lognormvariate(0, 0.02) for _ in range(3)] for _ in range(2))
        found += min(now) > max(then) or max(now) < min(then)
    assert 0.07 < found / 1000 < 0.13


def test_a_change_of_a_fifth_is_found_at_five_rounds_with_two_per_cent_of_noise() -> None:
    draw = Random(20)
    assert sum(alarms(6, draw, change=1.2)[-1] <= 0.05 for _ in range(300)) >= 297


def test_the_interval_covers_the_true_ratio_as_often_as_it_says() -> None:
    draw, covered = Random(95), 0
    for _ in range(1000):
        then, now = ([one * draw.lognormvariate(0, 0.05) for _ in range(LEAST)] for one in (1.0, 1.1))
        low, high = ratio_interval(then, now, 0.05)
        covered += low <= 1.1 <= high
    assert 0.95 <= covered / 1000 <= 0.985  # 96.8% is exact
