"""Waves that are there are found, with their period and height; noise of any colour is not taken for one."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pytest_moetier.errors import InputError
from pytest_moetier.waves import MIN_ITERATIONS, find_wave, strongest_wave, whole_period_ratios

KERNELS = Path(__file__).parents[1] / "fixtures" / "kernels"
SEEDS = 200
ITERATIONS = 220
"""As many as the shortest pass that waves are looked for in."""


def recorded(name: str) -> np.ndarray:
    with (KERNELS / f"{name}-pass.csv").open() as file:
        return np.array([float(row["device_bytes"]) for row in csv.DictReader(file)])


def sine(period: float, n: int = ITERATIONS) -> np.ndarray:
    return np.sin(2 * np.pi * np.arange(n) / period)


def sawtooth(period: float, rng: np.random.Generator, n: int = ITERATIONS) -> np.ndarray:
    """Return rises from 0 to 1, each of about one period, and sudden falls: what fills up and is emptied."""
    teeth = [np.linspace(0, 1, max(4, int(period * (1 + 0.05 * rng.standard_normal())))) for _ in range(n)]
    return np.concatenate(teeth)[:n]


def red(redness: float, rng: np.random.Generator, n: int = ITERATIONS) -> np.ndarray:
    steps = rng.standard_normal(n) * np.sqrt(1 - redness**2)
    steps[0] = rng.standard_normal()
    for at in range(1, n):
        steps[at] += redness * steps[at - 1]
    return steps


@pytest.mark.parametrize("period", [8.5, 20, 50.3, 91, 105])
def test_a_sine_in_as_much_noise_is_found_with_its_period_and_amplitude(period: float) -> None:
    wave = find_wave(5 * sine(period) + 3 * np.random.default_rng(1).standard_normal(ITERATIONS))
    assert wave is not None
    assert wave.period == pytest.approx(period, rel=0.05)
    assert wave.amplitude == pytest.approx(5, rel=0.2)
    assert wave.strength > wave.threshold > 0


@pytest.mark.parametrize("period", [20, 60, 90])
def test_a_relaxation_sawtooth_is_found_in_nearly_every_pass(period: int) -> None:
    found = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        found.append(find_wave(sawtooth(period, rng) + 0.2 * rng.standard_normal(ITERATIONS)))
    periods = [one.period for one in found if one is not None]
    assert len(periods) >= 45
    assert np.median(periods) == pytest.approx(period, rel=0.06)


def test_short_collapses_that_come_back_are_found() -> None:
    pulses = 1.0 * (np.arange(ITERATIONS) % 40 < 5)
    wave = find_wave(pulses + 0.2 * np.random.default_rng(3).standard_normal(ITERATIONS))
    assert wave is not None
    assert wave.period == pytest.approx(40, abs=1)


NOISES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "white": lambda rng: rng.standard_normal(ITERATIONS),
    "red 0.5": lambda rng: red(0.5, rng),
    "red 0.9": lambda rng: red(0.9, rng),
    "red 0.97": lambda rng: red(0.97, rng),
    "red 0.95 and white": lambda rng: red(0.95, rng) + rng.standard_normal(ITERATIONS),
    "random walk": lambda rng: np.cumsum(rng.standard_normal(ITERATIONS)),
    "one step": lambda rng: rng.standard_normal(ITERATIONS) + 4 * (np.arange(ITERATIONS) > rng.integers(55, 165)),
    "a bend": lambda rng: rng.standard_normal(ITERATIONS) + 20 * (np.arange(ITERATIONS) / ITERATIONS - 0.5) ** 2,
}


@pytest.mark.parametrize("noise", NOISES)
def test_noise_without_a_period_is_seldom_taken_for_a_wave(noise: str) -> None:
    alarms = sum(find_wave(NOISES[noise](np.random.default_rng([seed, 5]))) is not None for seed in range(SEEDS))
    assert alarms <= 0.04 * SEEDS  # 1% is due


def test_the_wave_of_a_wall_in_7_3_is_found_in_the_whole_pass_and_in_any_part_of_220_iterations() -> None:
    series = recorded("7.3/wall")
    wave = find_wave(series)
    assert wave is not None
    assert wave.period == pytest.approx(84, abs=1)
    assert wave.amplitude == pytest.approx(7e6, rel=0.1)
    for start in range(0, len(series) - ITERATIONS + 1, 40):
        part = find_wave(series[start : start + ITERATIONS])
        assert part is not None
        assert 75 < part.period < 95


def test_no_wave_is_claimed_for_a_wall_in_6_12_and_the_strongest_is_shown_with_what_it_lacks() -> None:
    series = recorded("6.12/wall")
    assert find_wave(series) is None
    strongest = strongest_wave(series)
    assert strongest is not None
    assert strongest.found is False
    assert strongest.strength <= strongest.threshold
    assert strongest.amplitude < 0.05 * series.mean()


def test_a_trend_is_no_wave_and_does_not_hide_one() -> None:
    trend = 100 + 0.3 * np.arange(ITERATIONS)
    assert strongest_wave(trend) is None
    noise = np.random.default_rng(2).standard_normal(ITERATIONS)
    assert find_wave(trend + noise) is None
    wave = find_wave(trend + 5 * sine(60) + noise)
    assert wave is not None
    assert wave.period == pytest.approx(60, rel=0.05)


def test_a_period_beyond_half_of_the_series_or_below_eight_is_not_looked_for() -> None:
    noise = 0.1 * np.random.default_rng(2).standard_normal(ITERATIONS)
    slow, fast = strongest_wave(sine(160) + noise), strongest_wave(sine(5) + noise)
    assert slow is None or slow.period <= ITERATIONS / 2 + 1
    assert fast is None or fast.period > 7


def test_the_answer_does_not_depend_on_the_unit_and_only_in_its_threshold_on_the_seed() -> None:
    series = recorded("7.3/wall")[:ITERATIONS]
    one, again, scaled, other = (
        strongest_wave(series),
        strongest_wave(list(series)),
        strongest_wave(series / 1e6),
        strongest_wave(series, seed=7),
    )
    assert one is not None
    assert scaled is not None
    assert other is not None
    assert one == again
    assert scaled.period == pytest.approx(one.period)
    assert (scaled.strength, scaled.threshold) == (pytest.approx(one.strength), pytest.approx(one.threshold))
    assert scaled.amplitude == pytest.approx(one.amplitude / 1e6)
    assert (other.period, other.strength, other.amplitude) == (one.period, one.strength, one.amplitude)
    assert other.threshold != one.threshold
    assert other.threshold == pytest.approx(one.threshold, abs=0.05)


@pytest.mark.parametrize(
    "series", [[], [1.0] * (MIN_ITERATIONS - 1), [3.5] * 200, [0.0] * 200, list(sine(9, MIN_ITERATIONS - 1))]
)
def test_a_short_or_flat_series_has_no_wave(series: list[float]) -> None:
    assert strongest_wave(series) is None


@pytest.mark.parametrize("series", [[1.0, float("nan")] * 50, [1.0, float("inf")] * 50, [[1.0, 2.0]] * 50])
def test_a_series_with_missing_numbers_is_refused(series: list[float]) -> None:
    with pytest.raises(InputError, match="one finite number an iteration"):
        find_wave(series)


def test_ratios_are_those_of_whole_periods_only() -> None:
    device, nominal = [2.0, 4.0, 6.0, 1.0, 1.0, 1.0, 9.0], [1.0, 2.0, 3.0, 1.0, 1.0, 2.0, 1.0]
    assert whole_period_ratios(device, nominal, 3) == (12 / 6, 3 / 4)
    assert whole_period_ratios(device, nominal, 7) == (24 / 11,)
    assert whole_period_ratios(device, nominal, 7.6) == ()


def test_borders_of_broken_periods_fall_on_the_nearest_iteration() -> None:
    # 2.5 and 5, 7.5 and 10: after iterations 2, 5, 8 and 10, as halves go to the even neighbour.
    device = [float(one) for one in range(10)]
    parts = [device[0:2], device[2:5], device[5:8], device[8:10]]
    assert whole_period_ratios(device, [1.0] * 10, 2.5) == tuple(sum(part) / len(part) for part in parts)


def test_whole_periods_of_a_wave_agree_where_thirds_of_the_pass_do_not() -> None:
    device = 1 + 0.5 * sine(100, 200) + 0.01
    thirds = [float(part.mean()) for part in np.array_split(device, 3)]
    assert max(thirds) / min(thirds) > 1.3
    ratios = whole_period_ratios(device, np.ones(200), 100)
    assert ratios == (pytest.approx(1.01), pytest.approx(1.01))


def test_a_period_without_anything_nominal_gives_no_ratios() -> None:
    assert whole_period_ratios([1.0] * 4, [1.0, 1.0, 0.0, 0.0], 2) == ()


def test_series_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(InputError, match="3 iterations of device bytes and 2 nominal"):
        whole_period_ratios([1.0] * 3, [1.0] * 2, 1)
    with pytest.raises(InputError, match=r"a period of 0\.5 iterations"):
        whole_period_ratios([1.0], [1.0], 0.5)
