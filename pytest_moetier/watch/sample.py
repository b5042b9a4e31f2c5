"""One cheap sample of the counters an operator watches, as differences that outlive their counters (paper section 5).

A counter that vanishes is unobserved from then on, with the reason; one that wraps or starts anew (a device or a group
that came back, a process of another life) skips one interval. A rate is never negative, and what was not seen is None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_moetier.host import procfs, snapshot, undo
from pytest_moetier.host.blockdev import BlockDevice
from pytest_moetier.host.cgroup import ScopeFiles
from pytest_moetier.host.snapshot import Counters
from pytest_moetier.watch.nominal import MissShare
from pytest_moetier.watch.resident import PoolCache

RECLAIMERS = ("kswapd", "direct", "memcg")
MOST_PROCESSES = 128
"""Of a scope whose reads are added up: each costs a file a sample."""
_HOST_FILES = ("/proc/meminfo", "/proc/vmstat", "/proc/pressure/memory")
_MAPPED_SHARE, _MAPPED_BYTES = 0.01, 1 << 20
_NO_PLAN = "no --plan: nominal misses are simulated from what the readers ask for"


@dataclass(frozen=True, slots=True)
class Watched:
    """What is watched.

    Attributes:
        devices: whose reads are counted; none: unobserved.
        no_device: why there are none.
        scope: the readers' control group, None for the whole host.
        pids: processes whose read calls are counted, beside those of the scope.
        pool: the pool's files, None where they are not known, or not to be seen from here.
        no_pool: why not.
        demand: what is nominal of what the readers ask for; None without a plan.
    """

    devices: tuple[BlockDevice, ...] = ()
    no_device: str = "no --device and no --pool"
    scope: ScopeFiles | None = None
    pids: tuple[int, ...] = ()
    pool: PoolCache | None = None
    no_pool: str = "no --pool"
    demand: MissShare | None = None


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """Pages that one reclaimer looked at and took in an interval; None where it was not observed."""

    scan: int | None
    steal: int | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One interval. Bytes and pages are of the interval unless they are sizes; None: not observed.

    Attributes:
        time: seconds since the epoch, at its end; for people, as this clock may be set.
        seconds: its length, by a clock that cannot be set.
        reclaimed: by reclaimer.
        device_bytes: read from the devices.
        delivered_bytes: what the readers' read calls gave them.
        readers_bytes: what the readers themselves had devices read; None where that is counted nowhere.
        iterations: how many iterations' demand that is; 0 without a plan.
        nominal_bytes: what exact LRU of ``resident_bytes`` would have missed of it.
        psi_some_share: part of the interval in which some task waited for memory.
        psi_full_share: part of it in which all did.
        locked_bytes: locked memory of the host.
        memory_bytes: RAM of the host.
        available_bytes: MemAvailable.
        resident_bytes: of the pool in the page cache, or else of the scope's files.
        scope_bytes: what the scope is charged with.
        limit_bytes: its limit, None without one.
        unobserved: why, by the name of what was not.
    """

    time: float
    seconds: float
    reclaimed: Mapping[str, Reclaimed]
    device_bytes: int | None
    delivered_bytes: int | None
    iterations: float
    readers_bytes: int | None
    nominal_bytes: float | None
    psi_some_share: float | None
    psi_full_share: float | None
    locked_bytes: int | None
    memory_bytes: int | None
    available_bytes: int | None
    resident_bytes: int | None
    scope_bytes: int | None
    limit_bytes: int | None
    unobserved: Mapping[str, str] = field(default_factory=dict)

    @property
    def own_bytes(self) -> int | None:
        """What the devices read, without what others had them read, as far as the readers' own counters tell."""
        if self.device_bytes is None or self.readers_bytes is None:
            return self.device_bytes
        return min(self.device_bytes, self.readers_bytes)

    @property
    def locked_share(self) -> float | None:
        """Locked memory as a share of RAM."""
        return self.locked_bytes / self.memory_bytes if self.locked_bytes is not None and self.memory_bytes else None


@dataclass(frozen=True, slots=True)
class _Moment:
    """The counters at one moment."""

    counters: Counters
    identity: tuple[int, int] | None
    delivered: Mapping[int, int]
    read: Mapping[int, int]
    processes: int


class Sampler:
    """Takes samples of what is watched."""

    def __init__(self, watched: Watched) -> None:
        """Remember what to read; nothing is read before the first sample."""
        self.watched = watched
        own = watched.scope.capture_files() if watched.scope else ()
        self._paths = (*_HOST_FILES, *(one.stat_path for one in watched.devices), *own)
        self._last: _Moment | None = None

    def sample(self) -> Sample | None:
        """Return the interval since the last call; None for the first, and where the clock did not advance."""
        start, end = self._last, self._moment()
        self._last = end
        if start is None:
            if self.watched.pool is not None:
                self.watched.pool.look()  # every file of it: not to be part of the first interval
            return None
        if end.counters.clock_seconds <= start.counters.clock_seconds:
            return None
        return self._between(start, end)

    def pids(self) -> tuple[int, ...]:
        """Return the processes whose reads are counted now."""
        scope = self.watched.scope
        inside = undo.group_pids(Path(scope.path)) if scope else ()
        return tuple(dict.fromkeys(one for one in (*self.watched.pids, *inside) if one != os.getpid()))

    def _moment(self) -> _Moment:
        scope = self.watched.scope
        capture = snapshot.take(self._paths, "watch")
        counters = snapshot.parse(capture, self.watched.devices, scope)
        pids = self.pids()
        found, processes = {}, len(pids)
        for pid in pids if processes <= MOST_PROCESSES else ():
            rows = procfs.parse_keyed(procfs.try_text(f"/proc/{pid}/io") or "")
            if "rchar" in rows:
                found[pid] = rows
            elif not procfs.exists(f"/proc/{pid}"):
                processes -= 1
        delivered, read = ({pid: rows.get(name, 0) for pid, rows in found.items()} for name in ("rchar", "read_bytes"))
        return _Moment(counters, procfs.identity(scope.path) if scope else None, delivered, read, processes)

    def _between(self, start: _Moment, end: _Moment) -> Sample:
        why: dict[str, str] = {}
        after = end.counters
        before = start.counters if start.identity == end.identity else replace(start.counters, scope=None)
        interval = snapshot.difference(before, after)
        if self.watched.scope is not None and end.identity is None:
            why["scope"] = f"{self.watched.scope.path} is gone; the host's own counters go on"
        elif start.identity != end.identity:
            why["scope"] = f"{getattr(self.watched.scope, 'path', '')} is another group now: it is counted from here on"
        reclaimed = {
            "kswapd": Reclaimed(interval.pgscan_kswapd, interval.pgsteal_kswapd),
            "direct": Reclaimed(interval.pgscan_direct, interval.pgsteal_direct),
            "memcg": Reclaimed(interval.memcg_scan, interval.memcg_steal),
        }
        for name, one in reclaimed.items():
            if None in (one.scan, one.steal):
                why[name] = self._no_reclaim(name, why)
        device = self._device(interval.device_read_bytes, why)
        delivered = self._delivered(start, end, device, why)
        resident = self._resident(after, why)
        if interval.psi_some_us is None:
            why["psi"] = "/proc/pressure/memory: none of this kernel's (psi=1), or it started anew"
        if after.mlocked_bytes is None:
            why["locked"] = "/proc/meminfo has no Mlocked"
        return Sample(
            time=time.time(),
            seconds=interval.seconds,
            reclaimed=reclaimed,
            device_bytes=device,
            delivered_bytes=delivered,
            iterations=(delivered or 0) / demand.iteration_bytes if (demand := self.watched.demand) else 0.0,
            readers_bytes=sum(_rises(start.read, end.read)) if any(end.read.values()) else None,  # 0 in some containers
            nominal_bytes=self._nominal(delivered, resident, why),
            psi_some_share=_share(interval.psi_some_us, interval.seconds),
            psi_full_share=_share(interval.psi_full_us, interval.seconds),
            locked_bytes=after.mlocked_bytes,
            memory_bytes=after.mem_total_bytes,
            available_bytes=after.mem_available_bytes,
            resident_bytes=resident,
            scope_bytes=after.scope.usage_bytes if after.scope else None,
            limit_bytes=after.scope.limit_bytes if after.scope else None,
            unobserved=why,
        )

    def _no_reclaim(self, name: str, why: Mapping[str, str]) -> str:
        if name != "memcg":
            return f"pgscan_{name} and pgsteal_{name} of /proc/vmstat are absent, or started anew"
        scope = self.watched.scope
        if scope is None or "scope" in why:
            return "no --scope" if scope is None else why["scope"]
        if scope.version == 2:
            return "its memory.stat has no pgscan and pgsteal, or they started anew"
        return "v1 counts no reclaim by group, and others on the host reclaimed in this interval"

    def _device(self, read: int | None, why: dict[str, str]) -> int | None:
        devices = self.watched.devices
        silent = [one.name for one in devices if not one.iostats]
        if not devices:
            why["device"] = self.watched.no_device
        elif silent:
            why["device"] = f"{', '.join(silent)} keeps no statistics (queue/iostats is 0)"
        elif read is None:
            why["device"] = f"{', '.join(one.name for one in devices)} is gone, or its counter started anew"
        return None if "device" in why else read

    def _delivered(self, start: _Moment, end: _Moment, device: int | None, why: dict[str, str]) -> int | None:
        rises = _rises(start.delivered, end.delivered)
        total = sum(rises)
        if not end.processes:
            named = self.watched.pids or self.watched.scope
            why["delivered"] = "no process is left to count" if named else "no --scope and no --pid: whose reads?"
        elif end.processes > MOST_PROCESSES:
            why["delivered"] = f"the scope has {end.processes} processes: name the readers by --pid"
        elif not end.delivered:
            why["delivered"] = "/proc/PID/io of the readers cannot be read: run as their user, or as root"
        elif not rises:
            why["delivered"] = "every reader is new, or of another life, in this interval"
        elif device is not None and device >= _MAPPED_BYTES and total < _MAPPED_SHARE * device:
            why["delivered"] = (
                "the device reads and the readers' read calls do not: they map their files (what a mapping delivers is"
                " counted nowhere), end within an interval, or are not who reads"
            )
        return None if "delivered" in why else total

    def _resident(self, after: Counters, why: dict[str, str]) -> int | None:
        found = self.watched.pool.look() if self.watched.pool is not None else None
        if found is None and after.scope is not None:
            found = after.scope.file_bytes
        if found is None:
            of_pool = (
                self.watched.no_pool if self.watched.pool is None else "no probe of residency tells the truth here"
            )
            why["resident"] = f"{of_pool}, and no scope whose file bytes stand for it"
        return found

    def _nominal(self, delivered: int | None, resident: int | None, why: dict[str, str]) -> float | None:
        if self.watched.demand is None:
            why["nominal"] = _NO_PLAN
        elif delivered is None:
            why["nominal"] = f"what is delivered is not: {why['delivered']}"
        elif resident is None:
            why["nominal"] = f"what is resident is not: {why['resident']}"
        else:
            return delivered * self.watched.demand.at(resident)
        return None


def _rises(start: Mapping[int, int], end: Mapping[int, int]) -> list[int]:
    """Return by how much each process's counter rose; one that is new, or of another life, is left out."""
    return [after - start[pid] for pid, after in end.items() if pid in start and after >= start[pid]]


def _share(microseconds: int | None, seconds: float) -> float | None:
    return None if microseconds is None else microseconds / 1e6 / seconds
