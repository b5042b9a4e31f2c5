"""Algorithm 1: one measurement cell, from an empty cache to a run with everything that its proof needs.

Paper, Algorithm 1: sync and drop caches; start the scope with memory.max = C + slack and swap 0; in the one scope and
the one process, warm pass, snapshot at loop entry, measured pass, snapshot. Warm-up and measurement share the scope
because a dead scope's file pages reparent uncharged and would then be hit for free (section 10).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_moetier.cell import Cell
from pytest_moetier.errors import HarnessError
from pytest_moetier.host.cgroup import ScopeFiles
from pytest_moetier.host.enforce import Ending, Enforced, HostContext, mechanism
from pytest_moetier.host.loopdev import image_resident_bytes
from pytest_moetier.host.mglru import MglruSetting, held
from pytest_moetier.host.restore import drop_caches
from pytest_moetier.host.snapshot import Counters, Interval, capture_paths, difference, parse
from pytest_moetier.plan import Plan, cold_plan, write_plan
from pytest_moetier.pool.opened import OpenPool
from pytest_moetier.replayer import Pass, Replayer, ReplayOptions, ReplayOutput

COLD_EXPERTS = 64
"""Distinct experts read once to measure the cold factor."""


@dataclass(frozen=True, slots=True)
class Rig:
    """What stays the same from run to run of a session.

    Attributes:
        pool: the opened pool.
        plan: the plan that is replayed.
        plan_path: its binary file.
        host: journal, executables and limits that the mechanisms need.
        options: threads, stamps, samples; mode and the capture lists are set per run.
    """

    pool: OpenPool
    plan: Plan
    plan_path: Path
    host: HostContext
    options: ReplayOptions


@dataclass(frozen=True, slots=True)
class Run:
    """One finished run of a cell, not yet proved.

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


def run_cell(
    rig: Rig,
    cell: Cell,
    *,
    round_index: int = 0,
    order: int = 0,
    progress: Callable[[str, int], None] | None = None,
) -> Run:
    """Measure ``cell`` once (Algorithm 1).

    Args:
        rig: the session's fixed parts.
        cell: what to enforce and how to read.
        round_index: which repetition this is, from 0.
        order: place of the run in the session's random order, from 0.
        progress: called with a phase's name and the number of finished iterations.

    Raises:
        UnsupportedHostError: the host cannot enforce the cell.
        AccountingError: the enforcement or a byte was lost on the way; the run is INVALID.
        HarnessError: our own machinery broke.
    """
    tell = progress or (lambda _phase, _done: None)
    capacity_bytes = cell.capacity.resolve(rig.pool.manifest.total_bytes)
    started = time.time()
    with ExitStack() as stack:
        setting = stack.enter_context(held(cell.mglru, rig.host.journal))
        enforcer = stack.enter_context(mechanism(cell.mechanism, capacity_bytes, rig.host))
        tell("dropping the page cache", 0)
        drop_everything(rig)
        options = _options(rig, cell.mode, enforcer.scope_files())
        argv = enforcer.argv(options.argv(rig.plan_path, rig.pool.root))
        replayer = stack.enter_context(Replayer(argv, rig.pool.pass_fds))
        tell("setting the capacity", 0)
        enforced = enforcer.apply(replayer.pid)
        dio_entry, image_entry = _backing(rig.pool)
        output = replayer.go(watch=enforcer.watch, progress=tell)
        ending = enforcer.ending()
        dio_exit, image_exit = _backing(rig.pool)
        setting = setting.verified()
    if len(output.passes) != len(options.passes):
        raise HarnessError(f"the replayer reported {len(output.passes)} passes", f"{len(options.passes)}")
    warm, measured = output.passes[0], output.passes[-1]
    scope = enforced.scope
    warm_entry = parse(warm.entry, rig.pool.devices, scope)
    entry = parse(measured.entry, rig.pool.devices, scope)
    exit_ = parse(measured.exit, rig.pool.devices, scope)
    return Run(
        cell=cell,
        capacity_bytes=capacity_bytes,
        round=round_index,
        order=order,
        started_seconds=started,
        enforced=enforced,
        ending=ending,
        mglru=setting,
        stamps=rig.options.stamps,
        output=output,
        warm=warm,
        measured=measured,
        warm_entry=warm_entry,
        entry=entry,
        exit=exit_,
        interval=difference(entry, exit_),
        loop_dio=None if dio_entry is None or dio_exit is None else (dio_entry, dio_exit),
        image_resident_bytes=None if image_entry is None or image_exit is None else (image_entry, image_exit),
    )


def measure_cold_factor(rig: Rig, mode: str, folder: Path) -> float | None:
    """Return device bytes / logical bytes of one cold read of distinct experts, for this pool, mode and read-ahead.

    None when the pool's devices cannot be counted. Nothing is enforced: the cache is empty and large enough.
    """
    plan = cold_plan(rig.pool.manifest, COLD_EXPERTS, seed=0)
    path = folder / f"cold-{mode}.plan"
    write_plan(plan, path)
    alone = ("cold",)
    options = replace(_options(rig, mode, None), passes=alone, hits="none", hits_passes=alone, residency_samples=0)
    drop_everything(rig)
    with Replayer(options.argv(path, rig.pool.root), rig.pool.pass_fds) as replayer:
        (cold,) = replayer.go().passes
    entry, exit_ = (parse(one, rig.pool.devices) for one in (cold.entry, cold.exit))
    read = difference(entry, exit_).device_read_bytes
    return None if read is None else read / cold.bytes


def drop_everything(rig: Rig) -> None:
    """Empty the page cache of the pool: the whole host's as root, the pool's files alone otherwise (and check)."""
    rig.pool.drop_cache()
    drop_caches(())


def _options(rig: Rig, mode: str, scope: ScopeFiles | None) -> ReplayOptions:
    devices = rig.pool.devices
    return replace(
        rig.options,
        mode=mode,
        captures=capture_paths(devices, scope),
        device_stats=tuple(device.stat_path for device in devices),
        inflight=tuple(device.inflight_path for device in devices),
    )


def _backing(pool: OpenPool) -> tuple[bool | None, int | None]:
    """Return whether the pool's loop device does direct I/O, and how much of its image is cached."""
    if pool.loop is None:
        return None, None
    return pool.loop.dio, None if pool.image is None else image_resident_bytes(pool.image)


@contextmanager
def plan_file(plan: Plan, folder: Path) -> Iterator[Path]:
    """Write ``plan`` into ``folder`` and yield its path; removed at the end."""
    path = folder / "measured.plan"
    write_plan(plan, path)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
