"""Two indicators against their thresholds over a sliding window (paper section 5, operator guidance).

The thresholds are bounds of bench/bounds.yaml, where bench/test_guidance.py puts them to the test. A single interval
beyond one is no alarm: an alarm is raised when the sums over the window are beyond what raises it *and* more than half
of the window's busy intervals alone are beyond what is healthy. It is over once the sums are back at what is healthy.

What is nominal is a mean over a plan, and reclaim has waves of 50 to 100 iterations (docs/kernels.md): on a healthy
replay, device over nominal went from 0.73 to 1.45 over blocks of 30 iterations, from 0.87 to 1.09 over blocks of 120.
So the window of device over nominal is as long as 120 iterations take, where that is more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from pytest_moetier.errors import InputError
from pytest_moetier.finding import Bound, read_bounds
from pytest_moetier.units import PAGE_BYTES

SCAN_PER_STEAL, DEVICE_OVER_NOMINAL = "scan_per_steal", "device_over_nominal"
INDICATORS = (SCAN_PER_STEAL, DEVICE_OVER_NOMINAL)
OK, ABOVE, ALARM = "ok", "above", "alarm"
WAITING, IDLE, UNOBSERVED = "waiting", "idle", "unobserved"
RAISED, CLEARED, LOST = "raised", "cleared", "lost"

WINDOW_SECONDS = 30.0
"""What an alarm looks back on."""
LEAST_INTERVALS = 5
"""Observed intervals of a window, below which nothing is judged; a window is longer than its seconds for them."""
LEAST_ITERATIONS = 120
"""Iterations of demand in a window of device over nominal, likewise."""
MOST_SECONDS = 600.0
"""Of a window that is longer than its seconds; what does less in it is idle."""
LEAST_BYTES = 16 << 20
"""Bytes scanned, or read, in the window's seconds, below which nothing is judged: a few pages have no ratio."""

ABOUT = {
    SCAN_PER_STEAL: (
        "an observed indicator of the paper's, not a rule; on the kernels of docs/kernels.md it did not tell amplified"
        " cells apart (1.00 in all of them), and mapped pages passed it with nothing amplified: device over nominal is"
        " the one to rely on"
    ),
    DEVICE_OVER_NOMINAL: (
        "bytes that the readers had the device read over those that exact LRU would have missed at what is resident;"
        " above 1 by up to 14.9% is what cells without any amplification differ by (paper section 4)"
    ),
}


@dataclass(frozen=True, slots=True)
class Threshold:
    """Where an indicator stops being healthy, and where an alarm is raised.

    Attributes:
        name: of the indicator.
        limit: the most that is healthy; an alarm is over once the value is back at it.
        raises: an alarm is raised above it.
        source: where the limit comes from.
    """

    name: str
    limit: float
    raises: float
    source: str

    def state(self, value: float | None, *, raised: bool = False) -> str:
        """Return the state of a value: ok, above (what is healthy), alarm, or unobserved; ``raised``: it was before."""
        if value is None or math.isnan(value):
            return UNOBSERVED
        if value > (self.limit if raised else self.raises):
            return ALARM
        return ABOVE if value > self.limit else OK


def default_bounds() -> Path:
    """Return the bounds that are shipped with the findings."""
    return Path(str(files("pytest_moetier.bench"))) / "bounds.yaml"


def thresholds(path: Path) -> Mapping[str, Threshold]:
    """Return the threshold of each indicator, from the bounds ``guidance.NAME`` and ``guidance.NAME_raised``.

    Raises:
        InputError: the file cannot be read, or lacks one of them.
    """
    found = {one.id: one for one in read_bounds(path)}
    return {name: _threshold(name, found, path) for name in INDICATORS}


def _threshold(name: str, found: Mapping[str, Bound], path: Path) -> Threshold:
    healthy, raised = found.get(f"guidance.{name}"), found.get(f"guidance.{name}_raised")
    if healthy is None or raised is None or healthy.maximum is None or raised.minimum is None:
        raise InputError(
            f"{path} has no thresholds of {name}",
            f"a bound guidance.{name} with max, and one guidance.{name}_raised with min",
            "leave out --bounds: those that are shipped have them",
        )
    if raised.minimum < healthy.maximum:
        raise InputError(
            f"{path}: {name} is healthy up to {healthy.maximum:g} and alarms from {raised.minimum:g}",
            "an alarm at or above the most that is healthy",
            "mend the file",
        )
    return Threshold(name, healthy.maximum, raised.minimum, healthy.source)


@dataclass(frozen=True, slots=True)
class _Interval:
    """An interval of a window: its seconds, the two counters (None where one was not observed), its iterations."""

    seconds: float
    pair: tuple[float, float] | None
    iterations: float


@dataclass(slots=True)
class Alarm:
    """One indicator of one reader of memory, over a sliding window.

    Attributes:
        threshold: of the indicator.
        of: whose: ``kswapd``, ``direct``, ``memcg``, or ``device``.
        least: of the upper counter in the last seconds of a window, below which nothing is judged.
        seconds: of the window.
        iterations: of demand in a window, below which nothing is judged.
        value: the indicator over the window, None where it has none.
        state: ok, above, alarm; waiting (too few intervals yet), idle (too little happened) or unobserved.
        times: how often it was raised.
    """

    threshold: Threshold
    of: str
    least: float
    seconds: float = WINDOW_SECONDS
    iterations: float = 0.0
    value: float | None = None
    state: str = WAITING
    times: int = 0
    _window: deque[_Interval] = field(default_factory=deque)
    _length: float = 0.0
    _demand: float = 0.0

    @property
    def length(self) -> float:
        """Seconds that the window has now."""
        return self._length

    @property
    def raised(self) -> bool:
        """Whether it is raised now."""
        return self.state == ALARM

    def add(self, seconds: float, above: float | None, below: float | None, iterations: float = 0.0) -> str:
        """Take one interval's two counters; return raised, cleared or lost where that is new, else "".

        Args:
            seconds: the interval's.
            above: pages scanned or bytes read; None where it was not observed.
            below: pages stolen or nominal bytes; None where it was not observed.
            iterations: of demand in it.
        """
        pair = None if above is None or below is None else (above, below)
        self._window.append(_Interval(seconds, pair, iterations if pair else 0.0))
        self._length += seconds
        self._demand += self._window[-1].iterations
        while self._is_spare(self._window[0]):
            first = self._window.popleft()
            self._length -= first.seconds
            self._demand -= first.iterations
        before, self.state = self.state, self._judge()
        if self.raised and before != ALARM:
            self.times += 1
            return RAISED
        if before == ALARM and not self.raised:
            return LOST if self.state in {UNOBSERVED, WAITING} else CLEARED
        return ""

    def _is_spare(self, first: _Interval) -> bool:
        """Whether the window has all it needs without its oldest interval."""
        if len(self._window) <= LEAST_INTERVALS or self._length - first.seconds < self.seconds:
            return False
        return self._length > MOST_SECONDS or self._demand - first.iterations >= self.iterations

    def _recent(self) -> float:
        """Return the upper counter over the window's last intervals, as many as its seconds ask for."""
        total, length = 0.0, 0.0
        for count, one in enumerate(reversed(self._window)):
            if count >= LEAST_INTERVALS and length >= self.seconds:
                break
            length += one.seconds
            total += one.pair[0] if one.pair else 0.0
        return total

    def _judge(self) -> str:
        pairs = [one.pair for one in self._window if one.pair is not None]
        self.value = None
        if len(pairs) < LEAST_INTERVALS:
            return UNOBSERVED if self._window[-1].pair is None else WAITING
        if self._recent() < self.least:
            return IDLE
        if self._demand < self.iterations:
            return WAITING if self._length < MOST_SECONDS else IDLE
        above, below = sum(one for one, _ in pairs), sum(one for _, one in pairs)
        self.value = above / max(below, 1.0)
        state = self.threshold.state(self.value, raised=self.raised)
        if state == ALARM and not self.raised:
            busy = [pair for pair in pairs if any(pair)]
            beyond = sum(one > self.threshold.limit * other for one, other in busy)
            return ALARM if 2 * beyond > len(busy) else ABOVE
        return state


def alarms_for(found: Mapping[str, Threshold], reclaimers: tuple[str, ...]) -> tuple[Alarm, ...]:
    """Return one alarm on scan/steal for each reclaimer, and one on the device."""
    pages = [Alarm(found[SCAN_PER_STEAL], one, LEAST_BYTES / PAGE_BYTES) for one in reclaimers]
    return (*pages, Alarm(found[DEVICE_OVER_NOMINAL], "device", LEAST_BYTES, iterations=LEAST_ITERATIONS))
