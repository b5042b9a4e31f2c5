"""Counters at a point, and their difference (paper section 4: every claim rests on counter differences over a pass).

A capture is raw text, taken by the replayer at the pass's borders or by ``take`` here; parsing comes after. What could
not be read is None, never 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pytest_moetier.errors import HarnessError, UnsupportedHostError
from pytest_moetier.host import procfs
from pytest_moetier.host.blockdev import BlockDevice
from pytest_moetier.host.cgroup import Scope, ScopeFiles, limit_of

_BASE_PATHS = (
    "/proc/meminfo",
    "/proc/vmstat",
    "/proc/self/io",
    "/proc/self/status",
    "/proc/self/cgroup",
    "/proc/pressure/memory",
    "/proc/pressure/io",
    "/proc/swaps",
    "/sys/kernel/mm/lru_gen/enabled",
    "/sys/kernel/mm/transparent_hugepage/enabled",
)
# Kernels before 4.8 counted reclaim by zone (pgscan_kswapd_dma, ...); "throttle" counts waits, not pages.
_ZONES = ("dma", "dma32", "normal", "high", "movable", "device")
_GLOBAL_RECLAIMERS = ("kswapd", "direct", "khugepaged", "proactive")
_FOREIGN_RECLAIM_SHARE = 0.1


ScopeLike: TypeAlias = Scope | ScopeFiles | Sequence[str] | None
"""A scope, its description, or the tuple of its ``capture_files()`` (empty: none)."""


@dataclass(frozen=True, slots=True)
class Capture:
    """Raw text of kernel files at one moment.

    Attributes:
        at: which moment (``measured:entry``).
        clock_seconds: CLOCK_MONOTONIC.
        files: text by path; None where it could not be read.
        inflight_zero: whether the devices were idle, None where nobody looked.
    """

    at: str
    clock_seconds: float
    files: Mapping[str, str | None]
    inflight_zero: bool | None = None

    @classmethod
    def from_event(cls, event: Mapping[str, object]) -> Capture:
        """Return the capture of one ``capture`` event of the replayer.

        Raises:
            HarnessError: the event lacks a part.
        """
        rows = event.get("files")
        idle = event.get("inflight_zero")
        try:
            files = {str(row["path"]): row.get("text") for row in (rows if isinstance(rows, list) else [{}])}
            clock = float(str(event["clock_seconds"]))
            return cls(str(event["at"]), clock, files, idle if isinstance(idle, bool) else None)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise HarnessError(f"a capture event without its parts ({error})", "at, clock_seconds and files") from error


def take(paths: Iterable[str], at: str) -> Capture:
    """Read ``paths`` now, one after another; what cannot be read becomes None."""
    clock = time.clock_gettime(time.CLOCK_MONOTONIC)
    return Capture(at, clock, {path: procfs.try_text(path) for path in paths})


def _files(scope: ScopeLike) -> ScopeFiles | None:
    if scope is None or isinstance(scope, ScopeFiles):
        return scope
    return ScopeFiles.from_paths(scope) if isinstance(scope, Sequence) else scope.files


def capture_paths(devices: Sequence[BlockDevice], scope: ScopeLike = None) -> tuple[str, ...]:
    """Return the files to capture for these devices and this scope, each once."""
    paths = list(_BASE_PATHS)
    for device in devices:
        paths += [device.stat_path, device.inflight_path, f"{device.queue_path}/iostats"]
        paths += [_dio_path(device)] if device.is_loop else []
    files = _files(scope)
    return tuple(dict.fromkeys([*paths, *(files.capture_files() if files else ())]))


def _dio_path(device: BlockDevice) -> str:
    return f"/sys/block/{device.name}/loop/dio"


@dataclass(frozen=True, slots=True)
class DeviceCounters:
    """One device's counters; None where its row could not be read.

    Attributes:
        name: kernel name.
        read_bytes: bytes read since it appeared.
        reads: read requests completed.
        inflight: requests in flight, reads and writes.
        iostats: whether its queue keeps statistics.
        dio: whether a loop device reads its image by direct I/O; None for other devices.
        written_bytes: bytes written since it appeared.
    """

    name: str
    read_bytes: int | None
    reads: int | None
    inflight: int | None
    iostats: bool | None
    dio: bool | None
    written_bytes: int | None


@dataclass(frozen=True, slots=True)
class ScopeCounters:
    """One control group's counters; None where this kernel does not give one.

    ``file_bytes`` includes shared memory, as the kernel's own rows do. ``pgscan`` and ``pgsteal`` are pages, v2 only.
    ``ancestor_limit_hits`` counts the limits above it, which the wall must not be mistaken for.
    """

    version: int
    usage_bytes: int | None
    peak_bytes: int | None
    limit_bytes: int | None
    file_bytes: int | None
    anon_bytes: int | None
    kernel_bytes: int | None
    swap_bytes: int | None
    limit_hits: int | None
    oom_kills: int | None
    pgscan: int | None
    pgsteal: int | None
    refault_file: int | None
    ancestor_limit_hits: int | None


@dataclass(frozen=True, slots=True)
class Counters:
    """All counters at one moment: bytes, pages (``pg*``, ``refault``), microseconds (``psi``); None: not observable."""

    at: str
    clock_seconds: float
    mem_total_bytes: int | None
    mem_available_bytes: int | None
    mem_free_bytes: int | None
    cached_bytes: int | None
    mlocked_bytes: int | None
    unevictable_bytes: int | None
    swap_total_bytes: int | None
    swap_free_bytes: int | None
    pgscan_kswapd: int | None
    pgsteal_kswapd: int | None
    pgscan_direct: int | None
    pgsteal_direct: int | None
    pgscan_khugepaged: int | None
    pgsteal_khugepaged: int | None
    pgscan_proactive: int | None
    pgsteal_proactive: int | None
    pgscan_file: int | None
    pgsteal_file: int | None
    pgscan_anon: int | None
    pgsteal_anon: int | None
    workingset_refault_file: int | None
    pgmajfault: int | None
    pswpin: int | None
    pswpout: int | None
    drop_pagecache: int | None
    process_read_bytes: int | None
    process_write_bytes: int | None
    process_vmlck_bytes: int | None
    process_rss_anon_bytes: int | None
    psi_some_us: int | None
    psi_full_us: int | None
    psi_io_some_us: int | None
    psi_io_full_us: int | None
    mglru: str | None
    thp: str | None
    process_cgroup: str | None
    inflight_zero: bool | None
    devices: tuple[DeviceCounters, ...]
    scope: ScopeCounters | None


def parse(capture: Capture, devices: Sequence[BlockDevice] = (), scope: ScopeLike = None) -> Counters:
    """Return the counters in a capture of ``capture_paths(devices, scope)``."""
    files = capture.files
    mem = procfs.parse_meminfo(files.get("/proc/meminfo") or "")
    vm = procfs.parse_keyed(files.get("/proc/vmstat") or "")
    io = procfs.parse_keyed(files.get("/proc/self/io") or "")
    status = procfs.parse_status(files.get("/proc/self/status") or "")
    memory = procfs.parse_pressure(files.get("/proc/pressure/memory"))
    disk = procfs.parse_pressure(files.get("/proc/pressure/io"))
    reclaim = {
        f"{verb}_{who}": _zoned(vm, f"{verb}_{who}")
        for verb in ("pgscan", "pgsteal")
        for who in (*_GLOBAL_RECLAIMERS, "file", "anon")
    }
    thp = files.get("/sys/kernel/mm/transparent_hugepage/enabled")
    where = _files(scope)
    return Counters(
        at=capture.at,
        clock_seconds=capture.clock_seconds,
        mem_total_bytes=mem.get("MemTotal"),
        mem_available_bytes=mem.get("MemAvailable"),
        mem_free_bytes=mem.get("MemFree"),
        cached_bytes=mem.get("Cached"),
        mlocked_bytes=mem.get("Mlocked"),
        unevictable_bytes=mem.get("Unevictable"),
        swap_total_bytes=mem.get("SwapTotal"),
        swap_free_bytes=mem.get("SwapFree"),
        **reclaim,
        # One row for file and anonymous pages before 5.9.
        workingset_refault_file=vm.get("workingset_refault_file", vm.get("workingset_refault")),
        pgmajfault=vm.get("pgmajfault"),
        pswpin=vm.get("pswpin"),
        pswpout=vm.get("pswpout"),
        drop_pagecache=vm.get("drop_pagecache"),
        process_read_bytes=io.get("read_bytes"),
        process_write_bytes=io.get("write_bytes"),
        process_vmlck_bytes=status.vmlck_bytes,
        process_rss_anon_bytes=status.rss_anon_bytes,
        psi_some_us=memory.some_us if memory else None,
        psi_full_us=memory.full_us if memory else None,
        psi_io_some_us=disk.some_us if disk else None,
        psi_io_full_us=disk.full_us if disk else None,
        mglru=_stripped(files.get("/sys/kernel/mm/lru_gen/enabled")),
        thp=procfs.parse_choice(thp) if thp is not None else None,
        process_cgroup=_stripped(files.get("/proc/self/cgroup")),
        inflight_zero=capture.inflight_zero,
        devices=tuple(_device(files, device) for device in devices),
        scope=_scope(files, where) if where else None,
    )


def _stripped(text: str | None) -> str | None:
    return text.strip() if text is not None else None


def _zoned(vm: Mapping[str, int], name: str) -> int | None:
    if name in vm:
        return vm[name]
    zones = [vm[key] for zone in _ZONES if (key := f"{name}_{zone}") in vm]
    return sum(zones) if zones else None


def _device(files: Mapping[str, str | None], device: BlockDevice) -> DeviceCounters:
    text = files.get(device.stat_path)
    try:
        row = procfs.parse_diskstat_row(text) if text is not None else None
    except UnsupportedHostError:
        row = None
    moving = (files.get(device.inflight_path) or "").split()
    iostats = procfs.to_int(files.get(f"{device.queue_path}/iostats"))
    dio = procfs.to_int(files.get(_dio_path(device)))
    return DeviceCounters(
        name=device.name,
        read_bytes=row.read_bytes if row else None,
        reads=row.reads if row else None,
        inflight=sum(map(int, moving)) if moving else (row.in_flight if row else None),
        iostats=None if iostats is None else iostats != 0,
        dio=None if dio is None else dio == 1,
        written_bytes=row.written_bytes if row else None,
    )


def _scope(files: Mapping[str, str | None], scope: ScopeFiles) -> ScopeCounters:
    def text(name: str) -> str | None:
        return files.get(f"{scope.path}/{name}")

    def value(name: str) -> int | None:
        return procfs.to_int(text(name))

    stat = procfs.parse_keyed(text("memory.stat") or "")
    if scope.version == 1:
        return _scope_v1(files, scope, stat)
    events = procfs.parse_keyed(text("memory.events") or "")
    return ScopeCounters(
        version=2,
        usage_bytes=value("memory.current"),
        peak_bytes=value("memory.peak"),  # absent before 5.19
        limit_bytes=limit_of(text("memory.max")),
        file_bytes=stat.get("file"),
        anon_bytes=stat.get("anon"),
        kernel_bytes=_kernel_bytes(stat),
        swap_bytes=value("memory.swap.current"),
        limit_hits=events.get("max"),
        oom_kills=events.get("oom_kill"),
        pgscan=_sum_of(stat, "pgscan"),
        pgsteal=_sum_of(stat, "pgsteal"),
        refault_file=stat.get("workingset_refault_file", stat.get("workingset_refault")),
        ancestor_limit_hits=_ancestors(files, scope, "memory.events.local", "max"),
    )


def _scope_v1(files: Mapping[str, str | None], scope: ScopeFiles, stat: Mapping[str, int]) -> ScopeCounters:
    def value(name: str) -> int | None:
        return procfs.to_int(files.get(f"{scope.path}/{name}"))

    oom = procfs.parse_keyed(files.get(f"{scope.path}/memory.oom_control") or "")
    return ScopeCounters(
        version=1,
        usage_bytes=value("memory.usage_in_bytes"),
        peak_bytes=value("memory.max_usage_in_bytes"),
        limit_bytes=limit_of(files.get(f"{scope.path}/memory.limit_in_bytes")),
        file_bytes=stat.get("total_cache", stat.get("cache")),
        anon_bytes=stat.get("total_rss", stat.get("rss")),
        kernel_bytes=value("memory.kmem.usage_in_bytes"),
        swap_bytes=stat.get("total_swap", stat.get("swap")),  # only with memory+swap accounting
        limit_hits=value("memory.failcnt"),
        oom_kills=oom.get("oom_kill"),  # since 4.13
        pgscan=None,  # v1 has no reclaim counters by group
        pgsteal=None,
        refault_file=stat.get("total_workingset_refault_file", stat.get("workingset_refault_file")),
        ancestor_limit_hits=_ancestors(files, scope, "memory.failcnt", ""),
    )


def _kernel_bytes(stat: Mapping[str, int]) -> int | None:
    if "kernel" in stat:  # since 5.18
        return stat["kernel"]
    parts = [stat[name] for name in ("kernel_stack", "pagetables", "percpu", "sock", "slab") if name in stat]
    return sum(parts) if parts else None


def _sum_of(stat: Mapping[str, int], verb: str) -> int | None:
    if verb in stat:
        return stat[verb]
    parts = [stat[key] for who in _GLOBAL_RECLAIMERS if (key := f"{verb}_{who}") in stat]
    return sum(parts) if parts else None


def _ancestors(files: Mapping[str, str | None], scope: ScopeFiles, name: str, key: str) -> int | None:
    """Sum the hits of the limits above; the v2 hierarchy's root has no such file and no limit."""
    hits = []
    for folder in scope.ancestors:
        text = files.get(f"{folder}/{name}")
        value = procfs.parse_keyed(text or "").get(key) if key else procfs.to_int(text)
        if value is None:
            return None
        hits.append(value)
    return sum(hits)


@dataclass(frozen=True, slots=True)
class DeviceInterval:
    """One device's reads and writes over an interval; None where not observable."""

    name: str
    read_bytes: int | None
    reads: int | None
    written_bytes: int | None


@dataclass(frozen=True, slots=True)
class Interval:
    """The difference of two snapshots: bytes, pages, microseconds; None: not observable, never 0.

    ``memcg_scan`` and ``memcg_steal`` are the group's own reclaim in pages. On v2 they are its memory.stat's. v1 has no
    such counters: vmstat's pgscan_file + pgscan_anon count all reclaim, the kswapd, direct, khugepaged and proactive
    rows only the host's; the residual is the group's when the group hit its limit and the host hardly reclaimed
    (at most 10% of the whole), else None. Kernels of 7.x count a group's reclaim in the host's rows too: None there.
    """

    start: str
    end: str
    seconds: float
    device_read_bytes: int | None
    device_written_bytes: int | None
    devices: tuple[DeviceInterval, ...]
    process_read_bytes: int | None
    process_write_bytes: int | None
    pgscan_kswapd: int | None
    pgsteal_kswapd: int | None
    pgscan_direct: int | None
    pgsteal_direct: int | None
    pgscan_khugepaged: int | None
    pgsteal_khugepaged: int | None
    pgscan_file: int | None
    pgsteal_file: int | None
    pgscan_anon: int | None
    pgsteal_anon: int | None
    memcg_scan: int | None
    memcg_steal: int | None
    workingset_refault_file: int | None
    pgmajfault: int | None
    pswpin: int | None
    pswpout: int | None
    psi_some_us: int | None
    psi_full_us: int | None
    psi_io_some_us: int | None
    psi_io_full_us: int | None
    scope_limit_hits: int | None
    scope_oom_kills: int | None
    scope_refault_file: int | None
    scope_swap_bytes: int | None
    ancestor_limit_hits: int | None


_SAME_NAME = (
    "process_read_bytes",
    "process_write_bytes",
    "pgscan_kswapd",
    "pgsteal_kswapd",
    "pgscan_direct",
    "pgsteal_direct",
    "pgscan_khugepaged",
    "pgsteal_khugepaged",
    "pgscan_file",
    "pgsteal_file",
    "pgscan_anon",
    "pgsteal_anon",
    "workingset_refault_file",
    "pgmajfault",
    "pswpin",
    "pswpout",
    "psi_some_us",
    "psi_full_us",
    "psi_io_some_us",
    "psi_io_full_us",
)


def difference(start: Counters, end: Counters) -> Interval:
    """Return ``end - start``, field by field; None where either is None, or a counter fell: it wrapped or started anew.

    Raises:
        HarnessError: the two snapshots are of different devices.
    """
    names = [device.name for device in start.devices]
    if names != [device.name for device in end.devices]:
        raise HarnessError(f"snapshots of {names} and {[device.name for device in end.devices]}", "the same devices")
    devices = tuple(
        DeviceInterval(
            a.name,
            _rise(b.read_bytes, a.read_bytes),
            _rise(b.reads, a.reads),
            _rise(b.written_bytes, a.written_bytes),
        )
        for a, b in zip(start.devices, end.devices, strict=True)
    )
    return Interval(
        start=start.at,
        end=end.at,
        seconds=end.clock_seconds - start.clock_seconds,
        device_read_bytes=_total([device.read_bytes for device in devices]),
        device_written_bytes=_total([device.written_bytes for device in devices]),
        devices=devices,
        **{name: _rise(getattr(end, name), getattr(start, name)) for name in _SAME_NAME},
        memcg_scan=_memcg(start, end, "pgscan"),
        memcg_steal=_memcg(start, end, "pgsteal"),
        scope_limit_hits=_scope_rise(start, end, "limit_hits"),
        scope_oom_kills=_scope_rise(start, end, "oom_kills"),
        scope_refault_file=_scope_rise(start, end, "refault_file"),
        scope_swap_bytes=_minus(getattr(end.scope, "swap_bytes", None), getattr(start.scope, "swap_bytes", None)),
        ancestor_limit_hits=_scope_rise(start, end, "ancestor_limit_hits"),
    )


def _total(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if sizes and len(known) == len(sizes) else None


def _minus(end: int | None, start: int | None) -> int | None:
    return None if start is None or end is None else end - start


def _rise(end: int | None, start: int | None) -> int | None:
    change = _minus(end, start)
    return None if change is None or change < 0 else change


def _scope_rise(start: Counters, end: Counters, name: str) -> int | None:
    return _rise(getattr(end.scope, name, None), getattr(start.scope, name, None))


def _memcg(start: Counters, end: Counters, verb: str) -> int | None:
    if start.scope is None or end.scope is None:
        return None
    if end.scope.version == 2:
        return _rise(getattr(end.scope, verb), getattr(start.scope, verb))
    by_type = [_rise(getattr(end, f"{verb}_{kind}"), getattr(start, f"{verb}_{kind}")) for kind in ("file", "anon")]
    if by_type[0] is None or by_type[1] is None:  # absent before 5.8
        return None
    whole = by_type[0] + by_type[1]
    rows = [_minus(getattr(end, f"{verb}_{who}"), getattr(start, f"{verb}_{who}")) for who in _GLOBAL_RECLAIMERS]
    known = [row for row in rows if row is not None]  # a row this kernel lacks counts nothing
    if min(known, default=0) < 0:
        return None
    host = sum(known)
    hits = _scope_rise(start, end, "limit_hits")
    if hits is None or host > _FOREIGN_RECLAIM_SHARE * whole or (whole > host and not hits):
        return None
    return whole - host
