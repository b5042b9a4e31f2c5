"""Exact statistics of two small samples: nothing is drawn at random, and no distribution of the values is assumed.

Mann and Whitney's test by the permutation distribution of the mid-ranks, the interval of the ratio by Moses' inversion
of it, Holm's correction over several tests. Beyond ``EXACT`` values in all, the rank sum is taken as normal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

EXACT = 100
LEAST = 5
"""Fewest values a side: a bootstrap of three is wrong in one of ten cases, five apart from five by chance in 0.8%."""


def rank_test(then: Sequence[float], now: Sequence[float]) -> float:
    """Return the two-sided p of the hypothesis that both samples are of one distribution."""
    ranks = _doubled_ranks([*then, *now])
    total, drawn = len(ranks), len(now)
    middle = drawn * (total + 1)  # of the sum of doubled ranks
    away = abs(sum(ranks[len(then) :]) - middle)
    if total > EXACT:
        variance = (sum(one * one for one in ranks) / total - (total + 1) ** 2) / (total - 1)
        spread = math.sqrt(len(then) * drawn * variance)
        return 2 * (1 - NormalDist().cdf(max(away - 1, 0) / spread)) if spread else 1.0
    counts = _subset_sums(ranks, drawn)
    extreme = sum(count for place, count in enumerate(counts) if abs(place - middle) >= away)
    return extreme / math.comb(total, drawn)


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Return twice the rank of each value, from 1: equal ones share the mean of theirs, which is then whole."""
    order = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(order, 1)))}
    last = {value: place for place, value in enumerate(order, 1)}
    return [first[value] + last[value] for value in values]


def _subset_sums(ranks: Sequence[int], drawn: int) -> list[int]:
    """Return how many of the subsets of so many ranks have each sum.

    Each number of drawn ranks has a polynomial, whose coefficients are packed into one integer.
    """
    width = len(ranks) + 1  # bits that hold any count
    packed = [1] + [0] * drawn
    for rank in ranks:
        for many in range(drawn, 0, -1):
            packed[many] += packed[many - 1] << width * rank
    mask = (1 << width) - 1
    return [packed[drawn] >> width * place & mask for place in range(sum(sorted(ranks)[-drawn:]) + 1)]


def ratio_interval(then: Sequence[float], now: Sequence[float], alpha: float) -> tuple[float, float]:
    """Return the interval of now / then at confidence 1 - ``alpha``: every factor that the rank test does not refute.

    Values must be zero or more. Zero over zero is any ratio; too few values give 0 to infinity.
    """
    cut = _cut(len(then), len(now), alpha)
    if cut == 0:
        return 0.0, math.inf
    low = sorted(_over(above, below, 0.0) for above in now for below in then)
    high = sorted(_over(above, below, math.inf) for above in now for below in then)
    return low[cut - 1], high[-cut]


def _over(above: float, below: float, unknown: float) -> float:
    return above / below if below else math.inf if above else unknown


def _cut(first: int, second: int, alpha: float) -> int:
    """Return how many of the sorted ratios lie outside the interval at each end, and one: 0 where it has no ends."""
    if first + second > EXACT:
        spread = math.sqrt(first * second * (first + second + 1) / 12)
        return max(0, math.floor(first * second / 2 + 0.5 + NormalDist().inv_cdf(alpha / 2) * spread))
    least = second * (second + 1) // 2
    counts = _subset_sums(range(1, first + second + 1), second)[least:]
    allowed, below, cut = alpha / 2 * math.comb(first + second, second), 0, 0
    for count in counts:
        below += count
        if below > allowed:
            break
        cut += 1
    return cut


def holm(found: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p of each: the chance of one false alarm among all of them is at most the level."""
    adjusted, worst = [1.0] * len(found), 0.0
    for place, index in enumerate(sorted(range(len(found)), key=found.__getitem__)):
        worst = max(worst, min(1.0, (len(found) - place) * found[index]))
        adjusted[index] = worst
    return adjusted


def values_needed(tests: int, alpha: float, other: int = 0) -> int:
    """Return the fewest values with which two samples wholly apart are told from chance, Holm's correction included.

    Args:
        tests: that the correction is over.
        alpha: the level.
        other: values of the other side; 0 for as many.
    """
    needed = LEAST
    while 2 * tests > alpha * math.comb(needed + (other or needed), needed):
        needed += 1
    return needed
