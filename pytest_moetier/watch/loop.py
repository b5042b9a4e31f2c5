"""The watch itself: a sample every interval, the alarms after it, and what is shown, until it is told to end."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_moetier.errors import InputError
from pytest_moetier.watch.alarms import RAISED, Alarm, Threshold, alarms_for
from pytest_moetier.watch.prometheus import Family, Totals, families, text_of, write_text
from pytest_moetier.watch.remedies import look_around, remedies
from pytest_moetier.watch.sample import RECLAIMERS, Sample, Sampler
from pytest_moetier.watch.views import View

Wait = Callable[[float], bool | None]
_MOST_TOLD = 6


@dataclass(slots=True)
class Watch:
    """A watch at work.

    Attributes:
        sampler: takes the samples.
        view: where they are shown.
        found: the thresholds.
        file: of the textfile collector, or None.
        alarms: what is judged.
        totals: what was observed since it began.
        current: the metrics of the last sample.
    """

    sampler: Sampler
    view: View
    found: Mapping[str, Threshold]
    file: Path | None = None
    alarms: tuple[Alarm, ...] = ()
    totals: Totals = field(default_factory=Totals)
    current: tuple[Family, ...] = ()
    _unobserved: Mapping[str, str] = field(default_factory=dict)
    _told: Counter[str] = field(default_factory=Counter)
    _unwritten: str = ""
    _cpu: float = 0.0

    def __post_init__(self) -> None:
        """Make the alarms."""
        self.alarms = alarms_for(self.found, RECLAIMERS)

    def run(self, interval: float, count: int | None = None, wait: Wait | None = None) -> bool:
        """Sample every ``interval`` seconds, ``count`` times or until told to end; return whether an alarm was raised.

        SIGINT (Ctrl-C) and SIGTERM end it after what is under way. ``wait`` lets so many seconds pass in place of the
        clock, and returns True to end it.
        """
        self.sampler.sample()
        began = due = time.monotonic()
        self._cpu = time.process_time()
        with _told_to_end() as sleep:
            for _ in _counted(count):
                due = max(due + interval, time.monotonic())
                if (wait or sleep)(max(0.0, due - time.monotonic())):
                    break
                sample = self.sampler.sample()
                if sample is None:
                    self.view.note("the clock did not advance: this interval is left out")
                    continue
                self._take(sample)
        self.view.summary(self._summary(time.monotonic() - began))
        return any(one.times for one in self.alarms)

    def _take(self, sample: Sample) -> None:
        self._tell_unobserved(sample.unobserved)
        changes = [
            (one, change)
            for one, pair in zip(self.alarms, _pairs(sample), strict=True)
            if (change := one.add(sample.seconds, *pair, sample.iterations))
        ]
        self.totals.add(sample)
        self.current = families(self.totals, sample, self.alarms, time.process_time() - self._cpu)
        if self.file is not None:
            self._write(self.file)
        self.view.sample(sample, self.alarms)
        for alarm, change in changes:
            self.view.alarm(alarm, change, self._remedies(sample) if change == RAISED else ())

    def _remedies(self, sample: Sample) -> Sequence[Any]:
        return remedies(look_around(sample, self.sampler.watched.scope, self.sampler.pids()))

    def _write(self, file: Path) -> None:
        """Write the textfile; a full disk is said once, and tried again at the next sample."""
        try:
            write_text(file, text_of(self.current))
        except InputError as error:
            if self._unwritten != str(error):
                self.view.note(str(error))
            self._unwritten = str(error)
        else:
            if self._unwritten:
                self.view.note(f"{file} is written again")
            self._unwritten = ""

    def _tell_unobserved(self, now: Mapping[str, str]) -> None:
        """Say what ceased to be observed, why, and what is again; what changes all the time is said a few times."""
        before, self._unobserved = self._unobserved, now
        changed = {name: f"{name} is not observed: {why}" for name, why in now.items() if before.get(name) != why}
        changed |= {name: f"{name} is observed again" for name in before if name not in now}
        for name, words in changed.items():
            self._told[name] += 1
            if self._told[name] <= _MOST_TOLD:
                often = "; it changes often: more of it is in the samples alone" * (self._told[name] == _MOST_TOLD)
                self.view.note(words + often)

    def _summary(self, seconds: float) -> dict[str, Any]:
        spent = time.process_time() - self._cpu
        return {
            "samples": self.totals.samples,
            "seconds": seconds,
            "alarms_raised": sum(one.times for one in self.alarms),
            "cpu_seconds": spent,
            "cpu_share": spent / seconds if seconds > 0 else None,
        }


def _pairs(sample: Sample) -> Iterator[tuple[float | None, float | None]]:
    """Yield what each alarm compares, in the order of the alarms."""
    for name in RECLAIMERS:
        yield sample.reclaimed[name].scan, sample.reclaimed[name].steal
    yield sample.own_bytes, sample.nominal_bytes


def _counted(count: int | None) -> Iterator[int]:
    done = 0
    while count is None or done < count:
        yield done
        done += 1


@contextmanager
def _told_to_end() -> Iterator[Wait]:
    """Yield what waits for so many seconds, or less once SIGINT or SIGTERM came (True); the second one ends at once.

    A pipe, as a handler may not take the lock of a ``threading.Event`` that the thread it interrupts may hold. In
    another thread than the main one nothing is caught.
    """
    if threading.current_thread() is not threading.main_thread():
        yield time.sleep
        return
    heard, told = os.pipe()
    os.set_blocking(told, False)

    def tell(number: int, frame: FrameType | None) -> None:
        if select.select([heard], [], [], 0)[0]:
            signal.default_int_handler(number, frame)
        os.write(told, b".")

    before = {number: signal.signal(number, tell) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda seconds: bool(select.select([heard], [], [], seconds)[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(heard)
        os.close(told)
