"""What was cached and held, and by whom it is paid for (paper sections 4, 6 and 10)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pytest_moetier.figures import Demand
from pytest_moetier.plan import Plan
from pytest_moetier.proof.lines import FLAGGED, Invariant, largest, line
from pytest_moetier.replay import Run
from pytest_moetier.replayer import Own
from pytest_moetier.units import format_bytes

CHARGE_SHARE, CHARGE_BYTES = 0.01, 1 << 20
"""A group's statistics lag by up to 64 pages a CPU (the kernel's batch), which a small capacity would not bear."""
SERVED_SHARE = 0.01
"""Threads take a plan's accesses in order but finish them out of it: what that may move a user-space LRU's hits by."""


def charge(run: Run, demand: Demand) -> Iterator[Invariant]:
    """Yield whether the cache began empty and every resident page is charged to the scope."""
    dropped = run.warm.residency_at("entry")
    allowed = max(demand.plan.total_bytes // 1000, 4 << 20)
    yield line(
        "cache_dropped",
        f"at most {format_bytes(allowed)} of the pool resident before the warm pass",
        format_bytes(dropped or 0),
        ok=None if dropped is None else dropped <= allowed,
    )
    drops = (run.warm_entry.drop_pagecache, run.exit.drop_pagecache)
    yield line(
        "no_cache_drop",
        "nobody dropped the host's page cache between the warm pass's begin and the end",
        f"{drops[0]} -> {drops[1]} drops",
        ok=None if None in drops else drops[0] == drops[1],
    )
    if run.cell.mechanism != "cgroup":
        return
    for at, counters in (("entry", run.entry), ("exit", run.exit)):
        resident = run.measured.residency_at(at)
        charged = None if counters.scope is None else counters.scope.file_bytes
        yield line(
            f"charged_at_{at}",
            f"pool-resident bytes within the scope's file bytes + max({CHARGE_SHARE:.0%}, 1 MiB)",
            f"{resident} B resident, {charged} B charged",
            ok=None
            if resident is None or charged is None
            else resident <= charged + max(CHARGE_SHARE * charged, CHARGE_BYTES),
        )


def own_memory(run: Run, demand: Demand) -> Iterator[Invariant]:
    """What a mode holds of its own: as much as asked, filled before the first pass, and serving what it should."""
    if run.cell.reading.native == "drop" and run.measured.prefetch is None:  # what was advised in vain stays
        left, in_flight = run.measured.residency_at("exit"), 2 * run.output.start.threads * largest(demand.plan)
        yield line(
            "not_admitted",
            f"at most {in_flight} B of the pool resident after the pass: nothing is admitted",
            f"{left} B",
            ok=None if left is None else left <= in_flight,
        )
    own, asked = run.output.own, run.cell.reading.share
    if not asked:
        return
    yield line(
        "own_memory",
        f"{asked:.0%} of C at most, filled to within one expert unless its table is at an end",
        "none" if own is None else f"{own.held_bytes} B held, {own.asked_bytes} B allowed",
        ok=own is not None and own.asked_bytes <= asked * run.capacity_bytes and _filled(run, own, demand.plan),
    )
    if own is None:
        return
    if run.cell.reading.arena:
        yield line(
            "preload",
            f"{own.held_bytes} B preloaded before the warm pass, outside the measured interval",
            f"{own.preload_bytes} B in {own.preload_seconds:.3f} s",
            ok=own.preload_bytes == own.held_bytes,
        )
    yield from _served(run, demand, own)


def _filled(run: Run, own: Own, plan: Plan) -> bool:
    """Whether as much is held as is allowed: no further expert fits, or the table has none."""
    whole = run.table is not None and own.places == len(run.table.ids)
    unit = largest(plan) if run.table is not None else own.held_bytes // max(1, own.places)
    return own.held_bytes <= own.asked_bytes and (whole or own.held_bytes + unit > own.asked_bytes)


def _served(run: Run, demand: Demand, own: Own) -> Iterator[Invariant]:
    """The second witness of what the mode's own memory served: counted from the table, or simulated."""
    plan, seen = demand.plan, run.measured.held_accesses
    if run.table is not None:
        held = np.zeros(plan.n_experts, dtype=bool)
        held[run.table.ids[: own.places]] = True
        due = int(held[plan.sequence].sum())
        yield line("served_by_table", f"{due} reads of the {own.places} experts held", f"{seen}", ok=seen == due)
    elif run.cell.reading.native == "user_lru":
        due = plan.n_accesses - int(demand.curve.misses([own.places * largest(plan)])[0])
        allowed = SERVED_SHARE * plan.n_accesses
        yield line(
            "served_by_user_cache",
            f"{due} reads +-{allowed:.0f}, as exact LRU of {own.places} experts serves in the order of the plan",
            f"{seen}",
            ok=None if seen is None or _uneven(plan) else abs(seen - due) <= allowed,
            otherwise=FLAGGED,
        )


def _uneven(plan: Plan) -> bool:
    """Experts of several sizes: slabs of the largest hold fewer than bytes would."""
    return int(plan.expert_bytes.min()) != largest(plan)
