"""Whether a series of iterations comes in waves: period, amplitude, and what chance alone would show (paper section 5).

Reclaim may swing for a hundred iterations between healthy and collapsed; a pass that is short beside that samples a
phase. A wave is claimed only where the autocorrelation rises, after it once fell below zero, higher than it does in 99
of 100 series of the same length that have the same red noise and no period: an autoregressive process of first order
plus white noise, fitted to the series' periodogram by Whittle's likelihood. A wave in the series makes the fitted noise
redder, so that the comparison errs towards no wave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pytest_moetier.errors import InputError

F64 = npt.NDArray[np.float64]

MIN_PERIOD = 8
"""In iterations; the longest period that is looked for is half of the series."""
MIN_ITERATIONS = 4 * MIN_PERIOD
"""A shorter series is not searched."""
SEED = 20_060
SURROGATES = 400
FALSE_ALARMS = 0.01
"""Share of noise series without a period that are taken for a wave."""
_PHASES = 8
_NEAR, _NEARLY = 1.5, 0.8
"""Iterations beside a whole part of a lag, and share of a height, within which a peak is as good."""
_LEAN, _STEPS = 0.1, 201
"""Share of a period by which a peak may have leant, and the periods that are tried."""
_FLAT = 1e-9
_REDNESS = np.array([0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99])
_RED_SHARES = np.linspace(0, 1, 11)


@dataclass(frozen=True, slots=True)
class Wave:
    """The strongest period of a series.

    Attributes:
        period: in iterations.
        amplitude: half of the mean cycle's height, from its lowest eighth to its highest, in the series' unit.
        strength: height of the autocorrelation's highest peak, -1 to 1.
        threshold: what the strength of one noise series in a hundred exceeds.
    """

    period: float
    amplitude: float
    strength: float
    threshold: float

    @property
    def found(self) -> bool:
        """Whether it is stronger than noise of this colour and length explains."""
        return self.strength > self.threshold


def find_wave(series: Sequence[float] | F64, *, seed: int = SEED) -> Wave | None:
    """Return the period of a series, or None where there is none that noise would not show.

    Args:
        series: one number an iteration, such as device / nominal bytes.
        seed: of the noise it is compared with: the same series and seed give the same answer.

    Raises:
        InputError: a number is missing, or it is no series.
    """
    wave = strongest_wave(series, seed=seed)
    return wave if wave is not None and wave.found else None


def strongest_wave(series: Sequence[float] | F64, *, seed: int = SEED) -> Wave | None:
    """Return the strongest period of a series, found or not; None where it is too short, flat or has no period at all.

    Raises:
        InputError: as :func:`find_wave`.
    """
    values = _checked(series)
    if len(values) < MIN_ITERATIONS:
        return None
    flat = _detrended(values)
    if np.abs(flat).max() <= _FLAT * np.abs(values).max():
        return None
    correlation = _autocorrelation(flat[np.newaxis])
    peaks = _peaks(correlation)[0]
    if peaks.max() == -1:
        return None
    period = _period(flat, peaks)
    return Wave(
        period=period,
        amplitude=_amplitude(flat, period),
        strength=float(peaks.max()),
        threshold=_threshold(*_colour(flat), len(values), seed),
    )


def whole_period_ratios(
    device: Sequence[float] | F64, nominal: Sequence[float] | F64, period: float
) -> tuple[float, ...]:
    """Return device / nominal over one whole period after the other, from the first iteration on.

    What is left behind the last whole period counts nowhere. Empty where not one period is whole, or where one of them
    has nothing nominal.

    Raises:
        InputError: the two series differ in length or lack a number, or the period is below one iteration.
    """
    above, below = _checked(device), _checked(nominal)
    if len(above) != len(below):
        raise InputError(f"{len(above)} iterations of device bytes and {len(below)} nominal ones", "as many of both")
    if not period >= 1:
        raise InputError(f"a period of {period} iterations", "one iteration or more")
    borders = [round(at * period) for at in range(math.floor((len(above) + 0.5) / period) + 1)]
    parts = [slice(start, end) for start, end in pairwise(borders)]
    if any(below[part].sum() <= 0 for part in parts):
        return ()
    return tuple(float(above[part].sum() / below[part].sum()) for part in parts)


def _checked(series: Sequence[float] | F64) -> F64:
    values = np.asarray(series, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise InputError(f"a series of shape {values.shape} with numbers missing", "one finite number an iteration")
    return values


def _detrended(values: F64) -> F64:
    """Return series (the last axis) without their mean and slope."""
    at = np.arange(values.shape[-1]) - (values.shape[-1] - 1) / 2
    level = values - values.mean(axis=-1, keepdims=True)
    return np.asarray(level - (level @ at)[..., np.newaxis] * at / (at @ at))


def _autocorrelation(flat: F64) -> F64:
    """Return the autocorrelation of each row; a longer lag has fewer pairs, and is the lower for it."""
    n = flat.shape[-1]
    power = np.abs(np.fft.rfft(flat, 2 * n)) ** 2
    sums = np.fft.irfft(power, 2 * n)[..., :n]
    return np.asarray(sums / sums[..., :1])


def _peaks(correlation: F64) -> F64:
    """Return the autocorrelation by lag, up to half of the series, where it peaks behind its first fall below zero.

    -1 elsewhere, and at lags shorter than the shortest period.
    """
    last = correlation.shape[-1] // 2
    here = correlation[:, : last + 1]
    fell = np.logical_or.accumulate(here < 0, axis=1)
    rises = np.diff(correlation[:, : last + 2], axis=1, prepend=np.inf)
    peak = fell & (rises[:, :-1] >= 0) & (rises[:, 1:] <= 0)
    peak[:, :MIN_PERIOD] = False
    return np.where(peak, here, -1.0)


def _period(flat: F64, peaks: F64) -> float:
    """Return the period, to a part of an iteration, that the highest peak stands for.

    Where as high a peak, or nearly, lies at a whole part of its lag, that lag is several periods. A broad peak leans to
    the short lags, which have more pairs: the period is the one near it whose sine follows the series best.
    """
    lag = int(peaks.argmax())
    for parts in range(lag // MIN_PERIOD, 0, -1):
        near = slice(math.ceil(lag / parts - _NEAR), math.floor(lag / parts + _NEAR) + 1)
        if peaks[near].max() >= _NEARLY * peaks[lag]:
            break
    found = near.start + int(peaks[near].argmax())
    periods = found * np.linspace(1 - _LEAN, 1 + _LEAN, _STEPS)
    turns = np.outer(1 / periods, np.arange(len(flat)))
    return float(periods[np.abs(np.exp(-2j * np.pi * turns) @ flat).argmax()])


def _amplitude(flat: F64, period: float) -> float:
    """Return half of the height of the mean cycle, in eighths of which each is averaged."""
    phase = (np.arange(len(flat)) / period % 1 * _PHASES).astype(np.int64)
    means = [float(flat[phase == one].mean()) for one in np.unique(phase)]
    return (max(means) - min(means)) / 2


def _colour(flat: F64) -> tuple[float, float]:
    """Return the noise that fits best: how much of the red part stays from one value to the next, and its share."""
    power = np.abs(np.fft.rfft(flat))[1:] ** 2
    turn = 2 * np.pi * np.arange(1, len(power) + 1) / len(flat)
    red = (1 - _REDNESS**2)[:, np.newaxis] / (1 + _REDNESS[:, np.newaxis] ** 2 - 2 * np.outer(_REDNESS, np.cos(turn)))
    share = _RED_SHARES[:, np.newaxis]
    model = share * red[:, np.newaxis] + (1 - share)
    # Whittle's likelihood, with the scale at its best for each colour.
    unlikely = len(power) * np.log((power / model).mean(axis=-1)) + np.log(model).sum(axis=-1)
    redness, part = np.unravel_index(int(unlikely.argmin()), unlikely.shape)
    return float(_REDNESS[redness]), float(_RED_SHARES[part])


@lru_cache(maxsize=1024)
def _threshold(redness: float, share: float, n: int, seed: int) -> float:
    """Return the height that the highest peak of one noise series in a hundred exceeds."""
    noise = _noise(redness, share, n, np.random.default_rng(seed))
    heights = _peaks(_autocorrelation(_detrended(noise))).max(axis=1)
    return float(np.quantile(heights, 1 - FALSE_ALARMS))


def _noise(redness: float, share: float, n: int, rng: np.random.Generator) -> F64:
    """Return so many series of red and white noise, one a row."""
    steps = rng.standard_normal((n, SURROGATES))
    steps[1:] *= math.sqrt(1 - redness**2)
    for at in range(1, n):
        steps[at] += redness * steps[at - 1]
    white = rng.standard_normal((SURROGATES, n))
    return np.asarray(math.sqrt(share) * steps.T + math.sqrt(1 - share) * white)
