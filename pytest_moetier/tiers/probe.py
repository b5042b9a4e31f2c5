"""The rates of this host's own tiers, by ``moetier-probe``: memory, page cache and device (paper section 8, rule 1).

The native process times and counts; here its lines become figures, and a figure whose bytes the counters do not confirm
is unproved: it has a reason and no value. A round visits every measurement, so a ratio is one of the same moment.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pytest_moetier.errors import HarnessError, InputError, MoetierError, UnsupportedHostError
from pytest_moetier.host import blockdev
from pytest_moetier.native import executable
from pytest_moetier.span import Span
from pytest_moetier.tiers.constants import Constants, Rate
from pytest_moetier.units import format_bytes

LEAST_PROVED = 5
"""Proved rounds below which there is no figure."""
REPEATS = 9
"""Rounds of a probe: some may be disturbed by other traffic on the device."""
_LIMIT_SECONDS = 300
_DEVICE_SHARE, _DEVICE_SLACK = 0.02, 4 << 20
_RESIDENT_SHARE, _MISS_SHARE = 0.999, 0.01
_EXIT_USAGE, _EXIT_UNSUPPORTED = 2, 77
_WORDS = {
    "copy": "memcpy between two buffers larger than the last-level cache",
    "cached": "preads of a file that the page cache held, as sequential reads had left it",
    "direct": "O_DIRECT reads",
    "admitted": "preads of a dropped file, whose pages stay",
}
_RATES = {"dram_copy": "copy", "page_cache": "cached", "device_cold": "direct"}
OF_THE_HOST = tuple(_RATES)
"""The rates that are probed here."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One measurement of the native probe; bytes, None where a counter could not be read."""

    what: str
    round: int
    bytes: int
    seconds: float
    device_bytes: int | None
    process_bytes: int | None
    resident_before_bytes: int | None
    resident_after_bytes: int | None


@dataclass(frozen=True, slots=True)
class Figure:
    """A rate in bytes a second, by the number of its round; empty where it is not proved, and ``why`` says why."""

    what: str
    speeds: Mapping[int, float]
    why: str = ""

    @property
    def speed(self) -> Span | None:
        """The median over the rounds, with the least and the most."""
        values = tuple(self.speeds.values())
        return Span.of(values, median(values)) if values else None


@dataclass(frozen=True, slots=True)
class HostProbe:
    """What the native probe found.

    Attributes:
        version: of the executable.
        folder: where its file was, or None.
        devices: the names of the block devices below it.
        bytes: of each buffer, and of the file.
        threads: that copied and read.
        rounds: of every measurement.
        llc_bytes: the last-level cache, None where the kernel does not say.
        figures: by what was measured (``copy``, ``direct``, ``admitted``, ``cached``).
    """

    version: str
    folder: Path | None
    devices: tuple[str, ...]
    bytes: int
    threads: int
    rounds: int
    llc_bytes: int | None
    figures: Mapping[str, Figure]
    passes: tuple[Pass, ...]

    def ratio(self, above: str, below: str) -> tuple[Span | None, str]:
        """Return one rate over another, round by round: the median with the least and the most; None, and why, else."""
        one, other = self.figures[above], self.figures[below]
        if one.why or other.why:
            return None, one.why or other.why
        values = tuple(one.speeds[at] / other.speeds[at] for at in one.speeds if at in other.speeds)
        if len(values) < LEAST_PROVED:
            return None, f"{above} and {below} were both proved in {len(values)} rounds; expected {LEAST_PROVED}"
        return Span.of(values, median(values)), ""

    def extra_reads(self) -> tuple[Span | None, str]:
        """Return the device's bytes of a read that admits over those of one that does not (rule 1), round by round."""
        if why := self.figures["admitted"].why or self.figures["direct"].why:
            return None, why
        found = {(one.what, one.round): one.device_bytes for one in self.passes if one.device_bytes}
        proved = set(self.figures["admitted"].speeds) & set(self.figures["direct"].speeds)
        values = tuple(found["admitted", at] / found["direct", at] for at in sorted(proved))
        if len(values) < LEAST_PROVED:
            return None, f"both were proved in {len(values)} rounds; expected {LEAST_PROVED}"
        return Span.of(values, median(values)), ""

    def constants(self) -> Constants:
        """Return the proved figures as constants of this host; what is not proved is unmeasured, with the reason."""
        day = dt.datetime.now(tz=dt.UTC).date().isoformat()
        rates, unmeasured = {}, {}
        for name, what in _RATES.items():
            figure = self.figures[what]
            if figure.speed is not None:
                rates[name] = Rate(name, figure.speed, self._source(figure), day)
            else:
                unmeasured[name] = figure.why
        return Constants("here", f"this host ({platform.node()})", None, rates, unmeasured=unmeasured)

    def _source(self, figure: Figure) -> str:
        where = f" in {self.folder} ({', '.join(self.devices)})" if self.folder and figure.what != "copy" else ""
        return (
            f"moetier-probe {self.version} on this host: {_WORDS[figure.what]}, {format_bytes(self.bytes)}{where},"
            f" {self.threads} thread{'s' * (self.threads > 1)}, median of {len(figure.speeds)} proved rounds"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the figures and their ratios in plain JSON types; values are one a round."""
        ratios = {
            "page_cache_over_device": self.ratio("cached", "direct"),
            "page_cache_over_copy": self.ratio("cached", "copy"),
            "admitted_over_direct": self.ratio("admitted", "direct"),
            "admitted_device_bytes_over_direct": self.extra_reads(),
        }
        return {
            "version": self.version,
            "folder": str(self.folder) if self.folder else None,
            "devices": list(self.devices),
            "bytes": self.bytes,
            "threads": self.threads,
            "llc_bytes": self.llc_bytes,
            "rounds": self.rounds,
            "bytes_per_second": {
                one.what: {"values": list(one.speeds.values()), "unproved": one.why} for one in self.figures.values()
            },
            "ratios": {
                name: {"low": one.low, "value": one.value, "high": one.high} if one else {"unproved": why}
                for name, (one, why) in ratios.items()
            },
        }


def probe_host(
    folder: Path | None, *, threads: int | None = None, repeats: int = REPEATS, size_bytes: int | None = None
) -> HostProbe:
    """Measure this host; nothing of it is left behind. Takes seconds, and all of the device meanwhile.

    Args:
        folder: on the pool's device, where a file without a name is made; None: memory alone.
        threads: that copy and read; None: the processors, 8 at most.
        repeats: rounds, 5 at least.
        size_bytes: of each of two buffers and of the file; None: more than the last-level cache.

    Raises:
        InputError: a size or the folder cannot be used; the probe's own message.
        UnsupportedHostError: this host cannot be probed.
        HarnessError: the probe broke.
    """
    words = [str(executable("moetier-probe")), *([str(folder)] if folder else [])]
    devices, why = _devices(folder)
    threads = threads or min(8, len(os.sched_getaffinity(0)))
    words += [f"--threads={threads}", f"--repeats={repeats}"]
    words += [f"--bytes={size_bytes}"] if size_bytes else []
    words += [f"--device-stat={device.stat_path}" for device in devices]
    return parse_probe(_run(words), folder, tuple(one.name for one in devices), why)


def _devices(folder: Path | None) -> tuple[tuple[blockdev.BlockDevice, ...], str]:
    """Return the devices below the folder, or why their sectors cannot be counted."""
    if folder is None:
        return (), "no folder was named; next: --pool DIR"
    try:
        found = blockdev.devices_of(folder)
    except UnsupportedHostError as error:
        return (), str(error)
    silent = [one.name for one in found if not one.iostats]
    return (found, f"{', '.join(silent)} keeps no statistics (queue/iostats is 0)" if silent else "")


def _run(words: Sequence[str]) -> list[dict[str, Any]]:
    try:
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=_LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise HarnessError(f"moetier-probe took over {_LIMIT_SECONDS} s", "an idle host and device") from error
    events = _events(done.stdout)
    if done.returncode == 0:
        return events
    last = events[-1] if events else {}
    said = str(last.get("message") or f"moetier-probe ended with status {done.returncode}")
    kind: type[MoetierError] = HarnessError
    if done.returncode == _EXIT_UNSUPPORTED:
        kind = UnsupportedHostError
    elif done.returncode == _EXIT_USAGE or last.get("code") in {"space", "open", "memory"}:
        kind = InputError
    raise kind(said, do="moetier-probe --help lists its sizes" if kind is InputError else "")


def _events(output: bytes) -> list[dict[str, Any]]:
    """Return the whole lines; the last may be cut off where the probe was killed."""
    events = []
    for line in output.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            break
        events.append(event)
    return events


def parse_probe(
    events: Sequence[Mapping[str, Any]], folder: Path | None, devices: tuple[str, ...], no_devices: str = ""
) -> HostProbe:
    """Return the probe of its events.

    Args:
        events: as the native probe wrote them.
        folder: where its file was, or None.
        devices: whose counters it read.
        no_devices: why there are none; "" where there are.

    Raises:
        HarnessError: an event is missing, or lacks a part.
    """
    try:
        (start,) = (one for one in events if one["event"] == "start")
        passes = tuple(_pass(one) for one in events if one["event"] == "measured")
        absent = {str(one["what"]): str(one["why"]) for one in events if one["event"] == "absent"}
        rounds, size, llc = int(start["repeats"]), int(start["bytes"]), start["llc_bytes"]
        version, threads = str(start["version"]), int(start["threads"])
    except (KeyError, TypeError, ValueError) as error:
        raise HarnessError(
            f"moetier-probe left out a part ({error})", "start, and measured or absent events"
        ) from error
    if not any(one["event"] == "end" for one in events):
        raise HarnessError("moetier-probe ended in the middle", "an end event")
    no_file = "" if folder else "no folder was named; next: --pool DIR"
    unfit = {
        "copy": _too_small(size, llc),
        "cached": no_file,
        "admitted": no_file or no_devices,
        "direct": no_file or no_devices or absent.get("direct", ""),
    }
    tests: dict[str, Callable[[Pass], str]] = {"copy": lambda _: "", "cached": _hit, "admitted": _read, "direct": _read}
    figures = {
        what: Figure(what, {}, why) if why else _figure(what, [one for one in passes if one.what == what], tests[what])
        for what, why in unfit.items()
    }
    return HostProbe(version, folder, devices, size, threads, rounds, llc, figures, passes)


def _pass(event: Mapping[str, Any]) -> Pass:
    devices = event["device_bytes"]
    counted = None if not devices or None in devices else sum(map(int, devices))
    names = ("process_bytes", "resident_before_bytes", "resident_after_bytes")
    known = (None if event[name] is None else int(event[name]) for name in names)
    return Pass(str(event["what"]), int(event["round"]), int(event["bytes"]), float(event["seconds"]), counted, *known)


def _too_small(size: int, llc: int | None) -> str:
    if llc is None:
        return "the kernel does not say how large the last-level cache is, which two buffers must exceed"
    if size <= llc:
        return f"buffers of {format_bytes(size)} fit the last-level cache of {format_bytes(llc)}; expected larger ones"
    return ""


def _figure(what: str, passes: Sequence[Pass], problem: Callable[[Pass], str]) -> Figure:
    """Return the rates of the proved passes, or why too few of them are."""
    problems = {one.round: problem(one) for one in passes}
    speeds = {one.round: one.bytes / one.seconds for one in passes if not problems[one.round] and one.seconds > 0}
    if len(speeds) >= LEAST_PROVED:
        return Figure(what, speeds)
    last = next((why for why in reversed(problems.values()) if why), "no time passed")
    return Figure(
        what, {}, f"{len(speeds)} of {len(passes)} rounds proved, expected {LEAST_PROVED}; the last not: {last}"
    )


def _read(one: Pass) -> str:
    """Return why a pass may not have come from the device, all of it and nothing else; "" where it is proved."""
    if one.device_bytes is None:
        return "the device's counter could not be read"
    # Of a small file a fixed slack would be all.
    allowed = _DEVICE_SHARE * one.bytes + min(_DEVICE_SLACK, _DEVICE_SHARE * one.bytes)
    for who, counted in (("the device", one.device_bytes), ("this process", one.process_bytes or one.bytes)):
        if abs(counted - one.bytes) > allowed:
            return (
                f"{who} counted {format_bytes(counted)} where {format_bytes(one.bytes)} were read; expected them within"
                f" {format_bytes(allowed)}: end what else reads from the device"
            )
    return ""


def _hit(one: Pass) -> str:
    """Return why a pass may not have come from the page cache; "" where it is proved."""
    held = (one.resident_before_bytes, one.resident_after_bytes)
    if None in held:
        return "no probe of residency works on this file"
    least = min(each for each in held if each is not None)
    if least < _RESIDENT_SHARE * one.bytes:
        return f"{format_bytes(least)} of {format_bytes(one.bytes)} were resident; expected all of it"
    if one.process_bytes is not None and one.process_bytes > _MISS_SHARE * one.bytes:
        return f"{format_bytes(one.process_bytes)} of {format_bytes(one.bytes)} were read from the device"
    return ""
