"""Whether the capacity was enforced: wall, balloon, boot, and what the replayer itself locked (paper section 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pytest_moetier.figures import Demand
from pytest_moetier.host.enforce import Ending, Enforced
from pytest_moetier.host.snapshot import Counters
from pytest_moetier.proof.lines import FLAGGED, Invariant, fills_the_cache, line
from pytest_moetier.replay import Run
from pytest_moetier.units import format_bytes

SLACK_FACTOR = 1.02
BALLOON_OWN_BYTES = 4 << 20
"""The balloon locks its own code and stacks too, so that pressure cannot stall its watchdog."""


def control(run: Run, demand: Demand) -> Iterator[Invariant]:
    """Yield what the mechanism promised, what was locked, MGLRU and swap."""
    by_mechanism: dict[str, Callable[[Run, Demand], Iterator[Invariant]]] = {
        "cgroup": _control_cgroup,
        "balloon": _control_balloon,
        "memboot": _control_memboot,
    }
    yield from by_mechanism[run.cell.mechanism](run, demand)
    locked, asked = (run.entry.process_vmlck_bytes, run.exit.process_vmlck_bytes), run.output.ready.locked_bytes
    yield line(
        "replayer_vmlck",
        f"VmLck {asked} B at entry and exit, as this mode asks",
        f"{locked[0]} B, {locked[1]} B",
        ok=None if None in locked else locked == (asked, asked),
    )
    yield from rate(run.cell.read_limit, run.read_limit)
    yield line(
        "mglru",
        f"MGLRU {run.mglru.wanted} at entry and exit",
        f"{run.mglru.at_entry} at entry, {run.mglru.at_exit} at exit",
        ok=run.mglru.as_wanted,
    )
    yield swap(run.exit)


def rate(asked: int, seen: int | None) -> Iterator[Invariant]:
    """Yield whether the device's read rate was limited as asked; nothing where it was not asked."""
    if asked:
        yield line(
            "read_limit",
            f"the device read at most {asked} B/s",
            f"{seen} B/s read back",
            ok=None if seen is None else seen == asked,
        )


def swap(counters: Counters) -> Invariant:
    """Return whether nothing of the scope was swapped."""
    total = counters.swap_total_bytes
    scope = counters.scope
    used = 0 if total == 0 else None if scope is None else scope.swap_bytes
    seen = "host has no swap" if total == 0 else f"{used} B of {format_bytes(total or 0)} swap"
    return line("no_swap", "0 bytes swapped by the scope", seen, ok=None if used is None else used == 0)


def _control_cgroup(run: Run, demand: Demand) -> Iterator[Invariant]:
    yield from in_wall(run.enforced, run.ending, run.warm_entry, run.entry, run.exit)
    if run.exit.scope is None:
        return
    yield from _wall(run, demand)
    peak, limit = run.exit.scope.peak_bytes, run.enforced.limit_bytes or 0
    yield line("peak_within_limit", f"at most {limit} B", f"{peak} B", ok=None if peak is None else peak <= limit)
    own, budgeted = own_bytes(run.exit.scope.anon_bytes, run.exit.scope.kernel_bytes), run.output.ready.budgeted_bytes
    yield slack(run.enforced, own, budgeted)
    if budgeted:
        yield line(
            "own_memory_charged",
            f"at least the {budgeted} B of the mode's own memory among the scope's anonymous memory",
            f"{run.exit.scope.anon_bytes} B",
            ok=None if run.exit.scope.anon_bytes is None else run.exit.scope.anon_bytes >= budgeted,
        )


def in_wall(
    enforced: Enforced, ending: Ending, first: Counters, entry: Counters, exit_at: Counters
) -> Iterator[Invariant]:
    """Yield what every run in a wall must show, from its ``first`` counters over ``entry`` to its exit."""
    if entry.scope is None or exit_at.scope is None or first.scope is None:
        yield line("scope", "the scope's files readable at entry and exit", "they were gone", ok=False)
        return
    exit_ = exit_at.scope
    limits = (entry.scope.limit_bytes, exit_.limit_bytes)
    yield line(
        "limit_read_back",
        f"{enforced.limit_bytes} B at entry and exit",
        f"{limits[0]} B, {limits[1]} B",
        ok=limits == (enforced.limit_bytes, enforced.limit_bytes),
    )
    yield line(
        "scope_identity",
        f"one scope throughout ({enforced.scope_identity})",
        f"{ending.scope_identity}",
        ok=ending.scope_identity == enforced.scope_identity,
    )
    name = Path(enforced.scope.path).name if enforced.scope else ""
    groups = (entry.process_cgroup, exit_at.process_cgroup)
    inside = [None if one is None else f"/{name}" in one for one in groups]
    yield line(
        "replayer_in_scope",
        f"the replayer in {name} at entry and exit",
        f"{inside}",
        ok=None if None in inside else all(inside),
    )
    yield line("no_oom", "0 OOM kills in the scope", f"{exit_.oom_kills}", ok=_is_zero(exit_.oom_kills))
    before, after = first.scope.ancestor_limit_hits, exit_.ancestor_limit_hits
    yield line(
        "ancestor_limits",
        "no ancestor's limit hit",
        f"{before} -> {after} hits",
        ok=None if before is None or after is None else before == after,
    )


def slack(enforced: Enforced, own: int | None, budgeted: int = 0) -> Invariant:
    """Return whether a scope's own memory stayed within what the wall was given for it."""
    paid = f", {budgeted} B of it paid for by C" if budgeted else ""
    return line(
        "slack",
        f"anon + kernel memory at most {enforced.slack_bytes} B x {SLACK_FACTOR}{paid}",
        f"{own} B",
        ok=None if own is None else own - budgeted <= (enforced.slack_bytes or 0) * SLACK_FACTOR,
        otherwise=FLAGGED,
    )


def own_bytes(anon: int | None, kernel: int | None) -> int | None:
    """Return a scope's memory that is no cache."""
    return None if anon is None else anon + (kernel or 0)


def _is_zero(value: int | None) -> bool | None:
    return None if value is None else value == 0


def _wall(run: Run, demand: Demand) -> Iterator[Invariant]:
    """The limit must have been reached when the demand exceeds what it leaves the cache: else nothing was enforced."""
    assert run.exit.scope is not None  # noqa: S101 - the caller looked
    own = own_bytes(run.exit.scope.anon_bytes, run.exit.scope.kernel_bytes)
    # What the slack has left over is the cache's too.
    room = run.capacity_bytes if own is None else (run.enforced.limit_bytes or 0) - own
    read = np.zeros(demand.plan.n_experts, dtype=bool)
    read[demand.plan.sequence] = True
    if run.table is not None and run.output.own is not None:
        read[run.table.ids[: run.output.own.places]] = False
    asked = int(demand.plan.expert_bytes[read].sum())
    if asked <= room or not fills_the_cache(run):
        return
    hits = run.exit.scope.limit_hits
    yield line(
        "wall_reached",
        f"limit hit (the cache is asked for {format_bytes(asked)}, the limit leaves it {format_bytes(room)})",
        f"{hits} hits",
        ok=None if hits is None else hits > 0,
    )


def _control_balloon(run: Run, _demand: Demand) -> Iterator[Invariant]:
    enforced, ending = run.enforced, run.ending
    asked, before, after = enforced.locked_bytes or 0, enforced.locked_bytes_observed, ending.locked_bytes
    yield line(
        "balloon_locked",
        f"VmLck {asked} B (+ at most {BALLOON_OWN_BYTES} B of the process itself), the same before and after",
        f"{before} B before, {after} B after",
        ok=before == after and asked <= (after or 0) <= asked + BALLOON_OWN_BYTES,
    )
    yield line(
        "balloon_alive",
        "the balloon alive throughout",
        ending.problem or "alive",
        ok=ending.problem is None,
    )
    yield _target("balloon_target", run)


def _control_memboot(run: Run, _demand: Demand) -> Iterator[Invariant]:
    yield _target("memboot_target", run)


def _target(name: str, run: Run) -> Invariant:
    """MemAvailable at C before the warm pass: what the mechanisms without a wall control."""
    allowed, target = run.enforced.tolerance_bytes or 0, run.enforced.target_bytes or 0
    return line(
        name,
        f"MemAvailable {target} B +-{allowed} B before the warm pass",
        f"{run.enforced.available_bytes} B",
        ok=abs(run.enforced.available_bytes - target) <= allowed,
    )
