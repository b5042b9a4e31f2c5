"""Runs that were never measured, of real plans over pools that are nowhere: what their passes showed is made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_moetier.cell import Cell
from pytest_moetier.host.enforce import Ending, Enforced, HostContext
from pytest_moetier.host.machine import GuestFacts
from pytest_moetier.host.mglru import MglruSetting
from pytest_moetier.host.snapshot import Capture, difference, parse
from pytest_moetier.plan import Plan, build_plan
from pytest_moetier.pool.manifest import Manifest
from pytest_moetier.pool.opened import OpenPool
from pytest_moetier.pool.profiles import resolve_shape
from pytest_moetier.pool.synthetic import plan_manifest
from pytest_moetier.replay import Rig, Run
from pytest_moetier.replayer import Iteration, Pass, Ready, ReplayOptions, ReplayOutput, Residency, Start
from pytest_moetier.trace.synth import synth_trace

LAYERS, EXPERTS, K, EXPERT_BYTES = 4, 64, 4, 1 << 20
POOL_BYTES = LAYERS * EXPERTS * EXPERT_BYTES
FACTS = GuestFacts("6.12", "6.12.9-amd64", "tcg", "KVM aborted", 1 << 30, 2, "psi=1", 6.5, (("thp", "never"),))
BORDER = Capture("border", 0.0, {})
NOTHING = parse(BORDER)
"""A border of a pass at which nothing was observed."""


def manifest(filesystem: str = "ext4") -> Manifest:
    """Return the manifest of a small pool of the paper's kind; nothing of it is on disk."""
    shape = resolve_shape("custom", layers=LAYERS, experts=EXPERTS, k=K, expert_bytes=str(EXPERT_BYTES))
    return plan_manifest(shape, layout="file_per_expert", store="image", seed=0, filesystem=filesystem)


def plan(iterations: int = 60) -> Plan:
    """Return the plan of a seeded synthetic trace over that pool."""
    trace = synth_trace("kimi-k3", layers=LAYERS, experts=EXPERTS, k=K, iterations=iterations, domain="prose", seed=1)
    return build_plan(trace, manifest())


def rig(folder: Path, plan_: Plan, filesystem: str = "ext4", **options: Any) -> Rig:
    """Return what a cell over that pool is replayed with; the pool is not opened."""
    root = folder / filesystem

    def no_list(word: str) -> Any:
        raise AssertionError(word)

    return Rig(
        pool=OpenPool(root, manifest(filesystem), root, (), (), None, root / "pool.img"),
        plan=plan_,
        plan_path=folder / "whole.plan",
        host=HostContext(journal=None, reserve_bytes=0, pool_files=len(plan_.files), balloon=folder / "balloon"),
        options=ReplayOptions(threads=8, **options),
        accepted_tokens=plan_.n_iterations + 3,
        list_file=no_list,
    )


def pass_of(name: str, plan_: Plan, device: Sequence[int | None], resident: Sequence[int] = (), last: int = 0) -> Pass:
    """Return a pass that delivered all of a plan, or its last iterations.

    Args:
        name: of the pass.
        plan_: what was replayed.
        device: what the devices read for each iteration.
        resident: samples of the pool's residency.
        last: iterations of the plan's end; 0 for all.
    """
    borders = [int(one) for one in plan_.iterations][-(last + 1) if last else 0 :]
    sizes = plan_.access_bytes
    rows = [
        Iteration(at, 0.25, int(sizes[start:end].sum()), end - start, 0, None, read, read, 0)
        for at, (start, end, read) in enumerate(zip(borders[:-1], borders[1:], device, strict=True))
    ]
    return Pass(
        name=name,
        iterations=tuple(rows),
        residencies=tuple(Residency("sample", at, size, POOL_BYTES, 0.0) for at, size in enumerate(resident)),
        entry=BORDER,
        exit=BORDER,
        inflight_zero=True,
        wall_seconds=0.25 * len(rows),
        elapsed_seconds=0.25 * len(rows),
        bookkeeping_seconds=0.0,
        bytes=sum(one.bytes for one in rows),
        accesses=sum(one.accesses for one in rows),
        stamps_checked=int((sizes[borders[0] :] // 4096).sum()),
        hit_bytes=0,
        hit_accesses=0,
        held_bytes=None,
        held_accesses=None,
        major_faults=0,
        minor_faults=0,
        user_seconds=0.0,
        system_seconds=0.0,
        compute_seconds=None,
        spine_bytes=0,
        prefetch=None,
    )


def run_of(  # noqa: PLR0913
    cell: Cell,
    plan_: Plan,
    capacity_bytes: int,
    device: Sequence[int | None],
    resident: Sequence[int] = (),
    *,
    warm_iterations: int = 0,
    total: int | None = None,
    available: int = 0,
    locked: int | None = None,
) -> Run:
    """Return a run of a cell whose measured pass read that much for each iteration and held that much at each sample.

    Args:
        cell: what was measured.
        plan_: what was replayed.
        capacity_bytes: C.
        device: bytes that the devices read, by iteration.
        resident: bytes of the pool in the page cache, by sample.
        warm_iterations: of the plan's end in the warm pass; 0 for all.
        total: MemTotal.
        available: MemAvailable before the warm pass.
        locked: what a balloon locked.
    """
    measured = pass_of("measured", plan_, device, resident)
    count = warm_iterations or plan_.n_iterations
    warm = pass_of("warm", plan_, [0] * count, last=warm_iterations)
    whole = None if None in device else sum(one or 0 for one in device)
    interval = replace(difference(NOTHING, NOTHING), seconds=1.0, device_read_bytes=whole, process_read_bytes=whole)
    start = Start("0", 1, 8, 64, EXPERT_BYTES, "memcpy", "cachestat", "", 0)
    return Run(
        cell=cell,
        capacity_bytes=capacity_bytes,
        round=0,
        order=0,
        started_seconds=0.0,
        enforced=Enforced(available_bytes=available, locked_bytes=locked, locked_bytes_observed=locked),
        ending=Ending(),
        mglru=MglruSetting("host", "on", "on"),
        stamps="full",
        output=ReplayOutput(start, None, Ready(0, 0, 0), (warm, measured)),
        warm=warm,
        measured=measured,
        warm_entry=NOTHING,
        entry=replace(NOTHING, mem_total_bytes=total),
        exit=NOTHING,
        interval=interval,
        loop_dio=None,
        image_resident_bytes=None,
        accepted_tokens=plan_.n_iterations + 3,
        control_bytes=capacity_bytes,
        warm_iterations=warm_iterations,
        guest=FACTS if cell.in_guest else None,
    )
