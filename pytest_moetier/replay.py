"""Algorithm 1: one measurement cell, from an empty cache to a run with everything that its proof needs.

Paper, Algorithm 1: sync and drop caches; start the scope with memory.max = C + slack and swap 0; in the one scope and
the one process, warm pass, snapshot at loop entry, measured pass, snapshot. Warm-up and measurement share the scope
because a dead scope's file pages reparent uncharged and would then be hit for free (section 10).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.cell import Cell
from pytest_moetier.errors import HarnessError, InputError, UnsupportedHostError
from pytest_moetier.host import procfs
from pytest_moetier.host.cgroup import ScopeFiles
from pytest_moetier.host.enforce import Ending, Enforced, HostContext, mechanism
from pytest_moetier.host.loopdev import image_resident_bytes
from pytest_moetier.host.machine import GuestFacts, current
from pytest_moetier.host.mglru import MglruSetting, held
from pytest_moetier.host.restore import drop_caches
from pytest_moetier.host.snapshot import Counters, Interval, ScopeCounters, capture_paths, difference, parse, take
from pytest_moetier.host.throttle import read_limit
from pytest_moetier.modes import FILLS, Mode, delivery_of
from pytest_moetier.plan import Plan, cold_plan, write_plan
from pytest_moetier.pool.manifest import Manifest
from pytest_moetier.pool.opened import OpenPool
from pytest_moetier.replayer import KilledError, Pass, Replayer, ReplayOptions, ReplayOutput
from pytest_moetier.units import PAGE_BYTES, format_bytes

COLD_EXPERTS = 64
"""Distinct experts read once to measure the cold factor."""
LANDING_EXPERTS = 2
"""Experts a thread that a full arena leaves room for: what misses needs a page to land on."""
_WATCH_SECONDS = {False: 0.5, True: 2.0}
"""How often the enforcement is looked at, on this host and in a guest, whose processors it takes time from."""
_SMALL = "--moetier-capacity with a larger size, or --moetier-threads with fewer"


@dataclass(frozen=True, slots=True)
class ListFile:
    """A list that the replayer was given: its file, what it was made from, the accesses that a table serves.

    Attributes:
        path: the binary file.
        words: what it was made from.
        oracle: it knows what will be read.
        ids: the experts of a table, best first; of advice, all lists one after another.
        recall: share of what was read that the advice named, None for a table.
    """

    path: Path
    words: str
    oracle: bool
    ids: NDArray[np.uint32]
    recall: float | None = None


@dataclass(frozen=True, slots=True)
class Rig:
    """What stays the same from run to run of one workload.

    Attributes:
        pool: the opened pool.
        plan: the plan that is replayed.
        plan_path: its binary file.
        host: journal, executables and limits that the mechanisms need.
        options: threads, stamps, samples; mode and the capture lists are set per run.
        accepted_tokens: what the plan's iterations accepted.
        list_file: gives the list that a mode or a prefetch asks for (``own``, ``train``, ``domain``; ``oracle``,
            ``plan``), or raises why there is none.
        program: path of the replayer on the machine that runs it; None: this host's own.
    """

    pool: OpenPool
    plan: Plan
    plan_path: Path
    host: HostContext
    options: ReplayOptions
    accepted_tokens: int
    list_file: Callable[[str], ListFile]
    program: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One finished run of a cell, not yet proved.

    ``table`` and ``advice`` are the lists that it was given, ``read_limit`` the device's limit as read back.
    ``warm_iterations`` of the plan's end were read in the warm pass, 0 for all of it. The last C bytes that were read
    decide what exact LRU holds, so a warm pass of the plan's end leaves it what a whole one would.
    ``control_bytes`` is what the mechanism was told: the capacity, unless it was matched by residency; ``guest`` what
    the virtual machine was, None on this host.

    ``warm_entry``, ``entry`` and ``exit`` are the counters at the start of the warm pass and at both ends of the
    measured pass; ``interval`` is their difference over the measured pass. ``image_resident_bytes`` is what was
    cached of the pool's own image (at entry, at exit), or None for a pool of plain files.
    """

    cell: Cell
    capacity_bytes: int
    round: int
    order: int
    started_seconds: float
    enforced: Enforced
    ending: Ending
    mglru: MglruSetting
    stamps: str
    output: ReplayOutput
    warm: Pass
    measured: Pass
    warm_entry: Counters
    entry: Counters
    exit: Counters
    interval: Interval
    loop_dio: tuple[bool, bool] | None
    image_resident_bytes: tuple[int, int] | None
    accepted_tokens: int
    table: ListFile | None = None
    advice: ListFile | None = None
    read_limit: int | None = None
    control_bytes: int = 0
    warm_iterations: int = 0
    guest: GuestFacts | None = None


@dataclass(frozen=True, slots=True)
class OomRun:
    """One run that was ended by a kill, in a cell that expects the wall's; not yet proved.

    ``scope`` is the scope after the kill. ``iterations`` of all passes were finished before, in ``seconds``.
    """

    cell: Cell
    capacity_bytes: int
    round: int
    order: int
    started_seconds: float
    enforced: Enforced
    ending: Ending
    scope: ScopeCounters | None
    signal: int
    iterations: int
    seconds: float
    guest: GuestFacts | None = None


def run_cell(  # noqa: PLR0913  (what a run is told, by keyword)
    rig: Rig,
    cell: Cell,
    *,
    round_index: int = 0,
    order: int = 0,
    control_bytes: int | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Run | OomRun:
    """Measure ``cell`` once (Algorithm 1), on the current machine.

    Args:
        rig: the workload's fixed parts.
        cell: what to enforce and how to read.
        round_index: which repetition this is, from 0.
        order: place of the run in the session's random order, from 0.
        control_bytes: what the mechanism is told, where that is not the capacity: found so that the residency is.
        progress: called with a phase's name and the number of finished iterations.

    Raises:
        UnsupportedHostError: the host cannot enforce the cell.
        InputError: the cell asks for what the pool or the trace does not have.
        AccountingError: the enforcement or a byte was lost on the way; the run is INVALID.
        HarnessError: our own machinery broke.
    """
    tell = progress or (lambda _phase, _done: None)
    capacity_bytes = cell.capacity.resolve(rig.pool.manifest.total_bytes)
    facts: dict[str, Any] = {"cell": cell, "capacity_bytes": capacity_bytes, "round": round_index, "order": order}
    facts["started_seconds"] = time.time()
    control = capacity_bytes if control_bytes is None else control_bytes
    facts["guest"] = current().facts
    lists = _lists(rig, cell)
    with ExitStack() as stack:
        setting = stack.enter_context(held(cell.mglru, rig.host.journal))
        enforcer = stack.enter_context(mechanism(cell.mechanism, control, rig.host))
        tell("dropping the page cache", 0)
        drop_everything(rig)
        options = _cell_options(rig, cell, capacity_bytes, lists, enforcer.scope_files())
        argv = enforcer.argv(options.argv(rig.plan_path, rig.pool.root, rig.program))
        replayer = stack.enter_context(Replayer(argv, rig.pool.pass_fds))
        tell("setting the capacity", 0)
        limit = _limited(rig, cell, replayer.pid, stack)
        enforced = facts["enforced"] = enforcer.apply(replayer.pid, replayer.ready.budgeted_bytes)
        before = _backing(rig.pool)
        try:
            output = replayer.go(enforcer.watch, tell, _WATCH_SECONDS[current().facts is not None])
        except KilledError as killed:
            if not cell.expects_oom:
                raise
            facts |= {"ending": enforcer.ending(), "scope": _scope_now(enforced)}
            return OomRun(**facts, signal=killed.signal, iterations=killed.iterations, seconds=killed.seconds)
        facts |= {"ending": enforcer.ending(), **_backed(before, _backing(rig.pool)), "mglru": setting.verified()}
    if len(output.passes) != len(options.passes):
        raise HarnessError(f"the replayer reported {len(output.passes)} passes", f"{len(options.passes)}")
    return Run(
        **facts,
        **_counted(output, rig, enforced.scope),
        stamps=rig.options.stamps,
        accepted_tokens=rig.accepted_tokens,
        table=lists.table,
        advice=lists.advice,
        read_limit=limit,
        control_bytes=control,
        warm_iterations=rig.options.warm_iterations,
    )


def _counted(output: ReplayOutput, rig: Rig, scope: ScopeFiles | None) -> dict[str, Any]:
    """Return the passes of a run and the counters at their borders, by the names of its fields."""
    warm, measured = output.passes[0], output.passes[-1]
    entry, exit_ = (parse(one, rig.pool.devices, scope) for one in (measured.entry, measured.exit))
    return {
        "output": output,
        "warm": warm,
        "measured": measured,
        "warm_entry": parse(warm.entry, rig.pool.devices, scope),
        "entry": entry,
        "exit": exit_,
        "interval": difference(entry, exit_),
    }


@dataclass(frozen=True, slots=True)
class _Lists:
    table: ListFile | None
    advice: ListFile | None


def _lists(rig: Rig, cell: Cell) -> _Lists:
    """Return the lists that a cell asks for; a label that disagrees with what a list is made from is refused."""
    word = cell.reading.table
    table = rig.list_file(word) if word else None
    _, advisor = delivery_of(cell.prefetch)
    advice = rig.list_file(advisor) if advisor else None
    if advice is not None and advice.oracle != (advisor == "oracle"):
        raise InputError(
            f"prefetch {cell.prefetch} with {advice.words}",
            "an oracle labelled oracle, and a predictor's plan labelled plan",
            "give --moetier-advice a file that a predictor made (moetier plan predict)",
        )
    if advice is not None and not len(advice.ids):
        raise UnsupportedHostError(
            f"prefetch {cell.prefetch} by {advice.words}: it names nothing to read ahead in what is replayed",
            "one list to submit or more",
            "other advice, a lower --moetier-min-recall, or more --moetier-iterations",
        )
    return _Lists(table, advice)


def own_bytes(mode: Mode, capacity_bytes: int, threads: int, largest_expert: int, locked_bytes: int = 0) -> int:
    """Return the size of a mode's own memory at a capacity, in bytes.

    An arena of the whole capacity leaves what the misses in flight land on; a user-space cache reads past the page
    cache, and needs no such room, but an expert for each thread and one more. Both leave what else is locked (a spine).

    Raises:
        UnsupportedHostError: the capacity is too small for it.
    """
    if not mode.share:
        return 0
    landing = LANDING_EXPERTS * threads * largest_expert if mode.arena else 0
    asked = min(int(capacity_bytes * mode.share), capacity_bytes - landing - locked_bytes)
    least = 1 if mode.arena else threads + 1
    if asked < least * largest_expert:
        beside = f" and {format_bytes(locked_bytes)} locked" if locked_bytes else ""
        raise UnsupportedHostError(
            f"{mode.share:.0%} of {format_bytes(capacity_bytes)} with {threads} threads{beside} leaves no room for"
            f" {'one expert' if least == 1 else f'{least} experts'} of {format_bytes(largest_expert)}",
            "a larger capacity or share, or fewer threads",
            _SMALL,
        )
    return asked // PAGE_BYTES * PAGE_BYTES


def _limited(rig: Rig, cell: Cell, pid: int, stack: ExitStack) -> int | None:
    """Limit the rate at which the process may read the pool's device; return the limit as read back."""
    if not cell.read_limit:
        return None
    if len(rig.pool.devices) != 1:
        raise UnsupportedHostError(
            f"the pool lies on {len(rig.pool.devices)} devices", "one device, whose read rate can be limited"
        )
    limit = stack.enter_context(read_limit(rig.pool.devices[0], cell.read_limit, rig.host.journal))
    limit.add(pid)
    return limit.observed()


def _scope_now(enforced: Enforced) -> ScopeCounters | None:
    files = enforced.scope
    return None if files is None else parse(take(capture_paths((), files), "killed"), (), files).scope


def measure_cold_factor(rig: Rig, mode: str, folder: Path) -> float | None:
    """Return device bytes / logical bytes of one cold read of distinct experts, for this pool, mode and read-ahead.

    None when the pool's devices cannot be counted. Nothing is enforced: the cache is empty and large enough.
    """
    path = folder / f"cold-{mode}.plan"
    write_cold_plan(rig.pool.manifest, path)
    return read_cold(rig, mode, path).factor


def write_cold_plan(manifest: Manifest, path: Path) -> None:
    """Write the plan of a cold read of distinct experts."""
    write_plan(cold_plan(manifest, min(COLD_EXPERTS, manifest.n_experts), seed=0), path)


@dataclass(frozen=True, slots=True)
class Cold:
    """What a cold read showed.

    Attributes:
        factor: device bytes / logical bytes, None where the devices cannot be counted.
        mem_total_bytes: MemTotal of the machine.
        mem_available_bytes: its MemAvailable with the replayer ready and nothing enforced.
    """

    factor: float | None
    mem_total_bytes: int
    mem_available_bytes: int


def read_cold(rig: Rig, mode: str, path: Path) -> Cold:
    """Read the plan at ``path`` once into an empty cache, on the current machine."""
    alone = ("cold",)
    base = _options(rig, mode, None)
    options = replace(
        base,
        passes=alone,
        hits="none",
        hits_passes=alone,
        residency_samples=0,
        samples=(),
        experts_exit=(),
        folios_exit=(),
        warm_iterations=0,
    )
    drop_everything(rig)
    with Replayer(options.argv(path, rig.pool.root, rig.program), rig.pool.pass_fds) as replayer:
        memory = procfs.parse_meminfo(procfs.read_text("/proc/meminfo"))
        (cold,) = replayer.go().passes
    entry, exit_ = (parse(one, rig.pool.devices) for one in (cold.entry, cold.exit))
    read = difference(entry, exit_).device_read_bytes
    return Cold(None if read is None else read / cold.bytes, memory["MemTotal"], memory.get("MemAvailable", 0))


def drop_everything(rig: Rig) -> None:
    """Empty the page cache of the pool: the whole host's as root, the pool's files alone otherwise (and check)."""
    if current().facts is None:  # a guest's page cache is its own
        rig.pool.drop_cache()
    drop_caches(())


def _cell_options(rig: Rig, cell: Cell, capacity_bytes: int, lists: _Lists, scope: ScopeFiles | None) -> ReplayOptions:
    mode, manifest = cell.reading, rig.pool.manifest
    delivery, _ = delivery_of(cell.prefetch)
    if cell.spine != "none" and manifest.spine is None:
        raise InputError(f"pool {manifest.name} has no spine", "one that has", "moetier pool create --spine SIZE")
    locked = manifest.spine_bytes if cell.spine == "locked" else 0
    if locked >= capacity_bytes:
        raise UnsupportedHostError(
            f"a locked spine of {format_bytes(locked)} in {format_bytes(capacity_bytes)}", "a larger capacity", _SMALL
        )
    beside = f"{scope.path}/memory.stat" if scope is not None else "/proc/vmstat"
    return replace(
        _options(rig, mode.native, scope),
        samples=(*rig.options.samples, beside) if rig.options.samples else (),
        warm_mode=FILLS[cell.fill][0] if cell.fill else "",
        warm_chunk_bytes=FILLS[cell.fill][1] if cell.fill else None,
        own_bytes=own_bytes(mode, capacity_bytes, rig.options.threads, int(rig.plan.expert_bytes.max()), locked),
        table=lists.table.path if lists.table else None,
        spine=manifest.spine.path if manifest.spine is not None and cell.spine != "none" else "",
        spine_lock=cell.spine == "locked",
        prefetch=delivery,
        advice=lists.advice.path if lists.advice else None,
        prefetch_chunk=_chunk(rig) if delivery == "fadvise" else 0,
    )


def _chunk(rig: Rig) -> int:
    """Return the bytes of one hint: the kernel caps a hint to the device's read-ahead (128 KiB where it has none)."""
    return min((one.read_ahead_kb for one in rig.pool.devices if one.read_ahead_kb), default=128) << 10


def _options(rig: Rig, mode: str, scope: ScopeFiles | None) -> ReplayOptions:
    devices = rig.pool.devices
    return replace(
        rig.options,
        mode=mode,
        captures=capture_paths(devices, scope),
        device_stats=tuple(device.stat_path for device in devices),
        inflight=tuple(device.inflight_path for device in devices),
    )


_Backing = tuple[bool | None, int | None]


def _backing(pool: OpenPool) -> _Backing:
    """Return whether the pool's loop device does direct I/O, and how much of its image is cached."""
    if pool.loop is None:
        return None, None
    return pool.loop.dio, None if pool.image is None else image_resident_bytes(pool.image)


def _backed(before: _Backing, after: _Backing) -> dict[str, Any]:
    """Return both at entry and exit, by the names of a run's fields; None where one of them was not observed."""
    dio, resident = zip(before, after, strict=True)
    return {"loop_dio": None if None in dio else dio, "image_resident_bytes": None if None in resident else resident}
