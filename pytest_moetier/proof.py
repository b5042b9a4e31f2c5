"""The accounting invariants of a run, each with what was expected and what was observed (paper section 10, the ledger).

A run is proved when no invariant is broken. One that the host cannot observe is ``unobserved``: it is named, and a
bound that needs it is then not examined. ``flagged`` invariants lower what may be claimed without making the run false.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytest_moetier.errors import AccountingError
from pytest_moetier.figures import Demand, Figures
from pytest_moetier.plan import Plan
from pytest_moetier.replay import OomRun, Run
from pytest_moetier.replayer import Own
from pytest_moetier.units import PAGE_BYTES, format_bytes

HELD, BROKEN, UNOBSERVED, FLAGGED = "held", "broken", "unobserved", "flagged"

MIN_DESTINATIONS = 64
COLD_FACTOR_LIMIT = 1.02
"""Above it read-ahead crosses expert borders, and amplification cannot be told from it."""
STEADY_WITHIN = 0.10
WITNESS_SHARE, WITNESS_BYTES = 0.02, 4 << 20
FOREIGN_SHARE, FOREIGN_BYTES = 0.01, 1 << 20
CHARGE_SHARE, CHARGE_BYTES = 0.01, 1 << 20
"""A group's statistics lag by up to 64 pages a CPU (the kernel's batch), which a small capacity would not bear."""
METADATA_BYTES = 1 << 20
"""Of the filesystem's own blocks, which may be read again beside the experts."""
SERVED_SHARE = 0.01
"""Threads take a plan's accesses in order but finish them out of it: what that may move a user-space LRU's hits by."""
SLACK_FACTOR = 1.02
BALLOON_OWN_BYTES = 4 << 20
"""The balloon locks its own code and stacks too, so that pressure cannot stall its watchdog."""

INVARIANTS = frozenset(
    {
        "scope",
        "limit_read_back",
        "scope_identity",
        "replayer_in_scope",
        "no_oom",
        "oom_killed",
        "oom_victim",
        "wall_reached",
        "peak_within_limit",
        "ancestor_limits",
        "slack",
        "balloon_locked",
        "balloon_alive",
        "balloon_target",
        "memboot_target",
        "replayer_vmlck",
        "own_memory",
        "own_memory_charged",
        "preload",
        "served_by_table",
        "served_by_user_cache",
        "prefetch_adds_up",
        "read_limit",
        "not_admitted",
        "mglru",
        "no_swap",
        "cache_dropped",
        "no_cache_drop",
        "charged_at_entry",
        "charged_at_exit",
        "delivered_warm",
        "delivered_measured",
        "stamps",
        "destinations",
        "device_two_witnesses",
        "foreign_share",
        "iostats",
        "inflight",
        "loop_direct_io",
        "image_not_resident",
        "belady_floor",
        "cold_factor",
        "over_logical",
        "refaults_cover_excess",
        "steady",
    }
)
"""The name of every invariant, which a bound may need."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """One line of a proof.

    Attributes:
        name: stable name, used by bounds in ``needs``.
        state: ``held``, ``broken``, ``unobserved`` or ``flagged``.
        expected: what had to be true, with its unit.
        observed: what was seen, with its unit.
    """

    name: str
    state: str
    expected: str
    observed: str


@dataclass(frozen=True, slots=True)
class Proof:
    """The invariants of one run, in the order of the protocol."""

    invariants: tuple[Invariant, ...]

    @property
    def broken(self) -> tuple[Invariant, ...]:
        """The invariants that failed; empty for a proved run."""
        return self._in(BROKEN)

    @property
    def unobserved(self) -> tuple[str, ...]:
        """Names of the invariants that this host could not observe."""
        return tuple(one.name for one in self._in(UNOBSERVED))

    @property
    def flagged(self) -> tuple[str, ...]:
        """Names of the invariants that lower what may be claimed."""
        return tuple(one.name for one in self._in(FLAGGED))

    def _in(self, state: str) -> tuple[Invariant, ...]:
        return tuple(one for one in self.invariants if one.state == state)

    def require(self) -> None:
        """Raise AccountingError, naming every broken invariant, unless the run is proved."""
        if self.broken:
            seen = "; ".join(f"{one.name}: {one.observed} (expected {one.expected})" for one in self.broken)
            raise AccountingError(
                f"accounting not proved: {seen}", "", "the run was not stored; measure the cell again"
            )


@dataclass(frozen=True, slots=True)
class ProvedRun:
    """A run whose proof is complete, with its figures. Only :func:`prove` makes one."""

    run: Run | OomRun
    figures: Figures
    proof: Proof


def prove(run: Run, demand: Demand, figures: Figures) -> ProvedRun:
    """Return ``run`` with its proof.

    Raises:
        AccountingError: an invariant is broken; the message names each one, expected and observed.
    """
    proof = examine(run, demand, figures)
    proof.require()
    return ProvedRun(run, figures, proof)


def examine(run: Run | OomRun, demand: Demand, figures: Figures) -> Proof:
    """Return every invariant of ``run``, proved or not."""
    if isinstance(run, OomRun):
        return Proof(tuple(_oom(run)))
    found: list[Invariant] = []
    for group in (_control, _charge, _own_memory, _delivery, _device):
        found.extend(group(run, demand))
    found.extend(_physics(run, demand, figures))
    found.extend(_steadiness(figures))
    return Proof(tuple(found))


def _line(name: str, expected: str, observed: str, *, ok: bool | None, otherwise: str = BROKEN) -> Invariant:
    """Return one invariant; ``ok`` None means that the host did not let us see."""
    state = UNOBSERVED if ok is None else HELD if ok else otherwise
    return Invariant(name, state, expected, observed if ok is not None else "not observable on this host")


def _control(run: Run, demand: Demand) -> Iterator[Invariant]:
    by_mechanism: dict[str, Callable[[Run, Demand], Iterator[Invariant]]] = {
        "cgroup": _control_cgroup,
        "balloon": _control_balloon,
        "memboot": _control_memboot,
    }
    yield from by_mechanism[run.cell.mechanism](run, demand)
    locked, asked = (run.entry.process_vmlck_bytes, run.exit.process_vmlck_bytes), run.output.ready.locked_bytes
    yield _line(
        "replayer_vmlck",
        f"VmLck {asked} B at entry and exit, as this mode asks",
        f"{locked[0]} B, {locked[1]} B",
        ok=None if None in locked else locked == (asked, asked),
    )
    if run.cell.read_limit:
        yield _line(
            "read_limit",
            f"the device read at most {run.cell.read_limit} B/s",
            f"{run.read_limit} B/s read back",
            ok=None if run.read_limit is None else run.read_limit == run.cell.read_limit,
        )
    yield _line(
        "mglru",
        f"MGLRU {run.mglru.wanted} at entry and exit",
        f"{run.mglru.at_entry} at entry, {run.mglru.at_exit} at exit",
        ok=run.mglru.as_wanted,
    )
    yield from _swap(run)


def _swap(run: Run) -> Iterator[Invariant]:
    total = run.exit.swap_total_bytes
    scope = run.exit.scope
    used = 0 if total == 0 else None if scope is None else scope.swap_bytes
    seen = "host has no swap" if total == 0 else f"{used} B of {format_bytes(total or 0)} swap"
    yield _line("no_swap", "0 bytes swapped by the scope", seen, ok=None if used is None else used == 0)


def _control_cgroup(run: Run, demand: Demand) -> Iterator[Invariant]:
    entry, exit_, enforced = run.entry.scope, run.exit.scope, run.enforced
    if entry is None or exit_ is None or run.warm_entry.scope is None:
        yield _line("scope", "the scope's files readable at entry and exit", "they were gone", ok=False)
        return
    limits = (entry.limit_bytes, exit_.limit_bytes)
    yield _line(
        "limit_read_back",
        f"{enforced.limit_bytes} B at entry and exit",
        f"{limits[0]} B, {limits[1]} B",
        ok=limits == (enforced.limit_bytes, enforced.limit_bytes),
    )
    yield _line(
        "scope_identity",
        f"one scope throughout ({enforced.scope_identity})",
        f"{run.ending.scope_identity}",
        ok=run.ending.scope_identity == enforced.scope_identity,
    )
    name = Path(run.enforced.scope.path).name if run.enforced.scope else ""
    groups = (run.entry.process_cgroup, run.exit.process_cgroup)
    inside = [None if one is None else f"/{name}" in one for one in groups]
    yield _line(
        "replayer_in_scope",
        f"the replayer in {name} at entry and exit",
        f"{inside}",
        ok=None if None in inside else all(inside),
    )
    yield _line("no_oom", "0 OOM kills in the scope", f"{exit_.oom_kills}", ok=_is_zero(exit_.oom_kills))
    yield from _wall(run, demand)
    peak = exit_.peak_bytes
    yield _line(
        "peak_within_limit",
        f"at most {enforced.limit_bytes} B",
        f"{peak} B",
        ok=None if peak is None else peak <= (enforced.limit_bytes or 0),
    )
    before, after = run.warm_entry.scope.ancestor_limit_hits, exit_.ancestor_limit_hits
    yield _line(
        "ancestor_limits",
        "no ancestor's limit hit",
        f"{before} -> {after} hits",
        ok=None if before is None or after is None else before == after,
    )
    own, budgeted = _own_bytes(exit_.anon_bytes, exit_.kernel_bytes), run.output.ready.budgeted_bytes
    paid = f", {budgeted} B of it paid for by C" if budgeted else ""
    yield _line(
        "slack",
        f"anon + kernel memory at most {enforced.slack_bytes} B x {SLACK_FACTOR}{paid}",
        f"{own} B",
        ok=None if own is None else own - budgeted <= (enforced.slack_bytes or 0) * SLACK_FACTOR,
        otherwise=FLAGGED,
    )
    if budgeted:
        yield _line(
            "own_memory_charged",
            f"at least the {budgeted} B of the mode's own memory among the scope's anonymous memory",
            f"{exit_.anon_bytes} B",
            ok=None if exit_.anon_bytes is None else exit_.anon_bytes >= budgeted,
        )


def _own_bytes(anon: int | None, kernel: int | None) -> int | None:
    return None if anon is None else anon + (kernel or 0)


def _is_zero(value: int | None) -> bool | None:
    return None if value is None else value == 0


def _wall(run: Run, demand: Demand) -> Iterator[Invariant]:
    """The limit must have been reached when the demand exceeds what it leaves the cache: else nothing was enforced."""
    assert run.exit.scope is not None  # noqa: S101 - the caller looked
    own = _own_bytes(run.exit.scope.anon_bytes, run.exit.scope.kernel_bytes)
    # What the slack has left over is the cache's too.
    room = run.capacity_bytes if own is None else (run.enforced.limit_bytes or 0) - own
    read = np.zeros(demand.plan.n_experts, dtype=bool)
    read[demand.plan.sequence] = True
    if run.table is not None and run.output.own is not None:
        read[run.table.ids[: run.output.own.places]] = False
    asked = int(demand.plan.expert_bytes[read].sum())
    if asked <= room or not _fills_the_cache(run):
        return
    hits = run.exit.scope.limit_hits
    yield _line(
        "wall_reached",
        f"limit hit (the cache is asked for {format_bytes(asked)}, the limit leaves it {format_bytes(room)})",
        f"{hits} hits",
        ok=None if hits is None else hits > 0,
    )


def _fills_the_cache(run: Run) -> bool:
    """Whether what the mode reads stays in the page cache: direct reads never enter it, dropped ones leave it."""
    return run.cell.reading.cached and run.cell.reading.native != "drop"


def _control_balloon(run: Run, _demand: Demand) -> Iterator[Invariant]:
    enforced, ending = run.enforced, run.ending
    asked, before, after = enforced.locked_bytes or 0, enforced.locked_bytes_observed, ending.locked_bytes
    yield _line(
        "balloon_locked",
        f"VmLck {asked} B (+ at most {BALLOON_OWN_BYTES} B of the process itself), the same before and after",
        f"{before} B before, {after} B after",
        ok=before == after and asked <= (after or 0) <= asked + BALLOON_OWN_BYTES,
    )
    yield _line(
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
    return _line(
        name,
        f"MemAvailable {target} B +-{allowed} B before the warm pass",
        f"{run.enforced.available_bytes} B",
        ok=abs(run.enforced.available_bytes - target) <= allowed,
    )


def _charge(run: Run, demand: Demand) -> Iterator[Invariant]:
    dropped = run.warm.residency_at("entry")
    allowed = max(demand.plan.total_bytes // 1000, 4 << 20)
    yield _line(
        "cache_dropped",
        f"at most {format_bytes(allowed)} of the pool resident before the warm pass",
        format_bytes(dropped or 0),
        ok=None if dropped is None else dropped <= allowed,
    )
    drops = (run.warm_entry.drop_pagecache, run.exit.drop_pagecache)
    yield _line(
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
        yield _line(
            f"charged_at_{at}",
            f"pool-resident bytes within the scope's file bytes + max({CHARGE_SHARE:.0%}, 1 MiB)",
            f"{resident} B resident, {charged} B charged",
            ok=None
            if resident is None or charged is None
            else resident <= charged + max(CHARGE_SHARE * charged, CHARGE_BYTES),
        )


def _own_memory(run: Run, demand: Demand) -> Iterator[Invariant]:
    """What a mode holds of its own: as much as asked, filled before the first pass, and serving what it should."""
    if run.cell.reading.native == "drop" and run.measured.prefetch is None:  # what was advised in vain stays
        left, in_flight = run.measured.residency_at("exit"), 2 * run.output.start.threads * _largest(demand.plan)
        yield _line(
            "not_admitted",
            f"at most {in_flight} B of the pool resident after the pass: nothing is admitted",
            f"{left} B",
            ok=None if left is None else left <= in_flight,
        )
    own, asked = run.output.own, run.cell.reading.share
    if not asked:
        return
    yield _line(
        "own_memory",
        f"{asked:.0%} of C at most, less no more than room for the misses and one expert",
        "none" if own is None else f"{own.mapped_bytes} B mapped, {own.asked_bytes} B allowed",
        ok=own is not None and own.held_bytes <= own.asked_bytes <= run.capacity_bytes,
    )
    if own is None:
        return
    if run.cell.reading.arena:
        yield _line(
            "preload",
            f"{own.held_bytes} B preloaded before the warm pass, outside the measured interval",
            f"{own.preload_bytes} B in {own.preload_seconds:.3f} s",
            ok=own.preload_bytes == own.held_bytes,
        )
    yield from _served(run, demand, own)


def _served(run: Run, demand: Demand, own: Own) -> Iterator[Invariant]:
    """The second witness of what the mode's own memory served: counted from the table, or simulated."""
    plan, seen = demand.plan, run.measured.held_accesses
    if run.table is not None:
        held = np.zeros(plan.n_experts, dtype=bool)
        held[run.table.ids[: own.places]] = True
        due = int(held[plan.sequence].sum())
        yield _line("served_by_table", f"{due} reads of the {own.places} experts held", f"{seen}", ok=seen == due)
    elif run.cell.reading.native == "user_lru":
        due = plan.n_accesses - int(demand.curve.misses([own.places * _largest(plan)])[0])
        allowed = SERVED_SHARE * plan.n_accesses
        yield _line(
            "served_by_user_cache",
            f"{due} reads +-{allowed:.0f}, as exact LRU of {own.places} experts serves in the order of the plan",
            f"{seen}",
            ok=None if seen is None or _uneven(plan) else abs(seen - due) <= allowed,
            otherwise=FLAGGED,
        )


def _largest(plan: Plan) -> int:
    return int(plan.expert_bytes.max())


def _uneven(plan: Plan) -> bool:
    """Experts of several sizes: slabs of the largest hold fewer than bytes would."""
    return int(plan.expert_bytes.min()) != _largest(plan)


def _oom(run: OomRun) -> Iterator[Invariant]:
    """A cell that expects it is proved by the wall's own kill: its count, its victim, and the limit it hit."""
    scope = run.scope
    kills = None if scope is None else scope.oom_kills
    yield _line(
        "oom_killed",
        "1 out-of-memory kill in the scope or more",
        f"{kills}",
        ok=None if kills is None else kills >= 1,
    )
    yield _line(
        "oom_victim",
        f"the replayer ended by {signal.Signals(signal.SIGKILL).name}",
        signal.Signals(run.signal).name,
        ok=run.signal == signal.SIGKILL,
    )
    limit = None if scope is None else scope.limit_bytes
    yield _line(
        "limit_read_back",
        f"{run.enforced.limit_bytes} B after the kill",
        f"{limit} B",
        ok=None if limit is None else limit == run.enforced.limit_bytes,
    )
    hits = None if scope is None else scope.limit_hits
    yield _line("wall_reached", "limit hit", f"{hits} hits", ok=None if hits is None else hits > 0)
    yield _line(
        "scope_identity",
        f"one scope throughout ({run.enforced.scope_identity})",
        f"{run.ending.scope_identity}",
        ok=run.ending.scope_identity == run.enforced.scope_identity,
    )


def _delivery(run: Run, demand: Demand) -> Iterator[Invariant]:
    plan = demand.plan
    for one in (run.warm, run.measured):
        yield _line(
            f"delivered_{one.name}",
            f"{plan.total_bytes} B in {len(plan.sequence)} reads, {plan.n_iterations} iterations",
            f"{one.bytes} B in {one.accesses} reads, {len(one.iterations)} iterations",
            ok=(one.bytes, one.accesses, len(one.iterations))
            == (plan.total_bytes, len(plan.sequence), plan.n_iterations),
        )
    pages = _stamps_due(plan, run.stamps)
    checked = run.measured.stamps_checked
    yield _line(
        "stamps",
        f"{pages} page stamps verified",
        f"{checked}",
        ok=checked == pages if plan.stamped and checked else None,
    )
    for one in (run.warm, run.measured):
        if (sent := one.prefetch) is not None:
            yield _line(
                "prefetch_adds_up",
                f"{sent.submitted} lists submitted in the {one.name} pass = completed + overwritten + pending",
                f"{sent.completed} + {sent.overwritten} + {sent.pending}",
                ok=sent.submitted == sent.completed + sent.overwritten + sent.pending and sent.submitted > 0,
            )
    start = run.output.start
    yield _line(
        "destinations",
        f"at least {MIN_DESTINATIONS} distinct destinations",
        f"{start.destinations}",
        ok=start.destinations >= MIN_DESTINATIONS,
    )


def _stamps_due(plan: Plan, which: str) -> int:
    """Return how many page stamps a pass must verify: all of every read expert, or its first and last."""
    pages = (plan.access_bytes + np.uint64(PAGE_BYTES - 1)) // np.uint64(PAGE_BYTES)
    return int((np.minimum(pages, np.uint64(2)) if which == "ends" else pages).sum())


def _device(run: Run, _demand: Demand) -> Iterator[Invariant]:
    device, process = run.interval.device_read_bytes, run.interval.process_read_bytes
    seen = f"device {device} B, process {process} B"
    both = device is not None and process is not None
    apart = abs((device or 0) - (process or 0))
    foreign = max(0, (device or 0) - (process or 0))
    yield _line(
        "device_two_witnesses",
        f"device counter and process read_bytes within {WITNESS_SHARE:.0%} + {format_bytes(WITNESS_BYTES)}",
        seen,
        ok=apart <= WITNESS_SHARE * (device or 0) + WITNESS_BYTES if both else None,
    )
    yield _line(
        "foreign_share",
        f"at most max({FOREIGN_SHARE:.0%}, 1 MiB) of the device's bytes read by others",
        f"{foreign} B of {device} B",
        ok=foreign <= max(FOREIGN_SHARE * (device or 0), FOREIGN_BYTES) if both else None,
    )
    counted = [one.iostats for one in run.exit.devices]
    yield _line(
        "iostats",
        "queue/iostats 1 on every device",
        f"{counted}",
        ok=all(counted) if counted and None not in counted else None,
    )
    yield _line(
        "inflight",
        "no request in flight at the snapshots",
        "none" if run.measured.inflight_zero else "requests in flight after 2 s",
        ok=run.measured.inflight_zero,
    )
    if run.loop_dio is not None:
        yield _line("loop_direct_io", "dio=1 at entry and exit", f"{run.loop_dio}", ok=all(run.loop_dio))
    if run.image_resident_bytes is not None:
        largest = max(run.image_resident_bytes)
        yield _line("image_not_resident", "image cached at most 1 MiB", format_bytes(largest), ok=largest <= 1 << 20)


def _physics(run: Run, demand: Demand, figures: Figures) -> Iterator[Invariant]:
    device, largest = run.interval.device_read_bytes, figures.largest_holding_bytes
    floor = None if largest is None else demand.belady_bytes(largest)
    yield _line(
        "belady_floor",
        f"at least {floor} B, the fewest that a cache of {largest} B must read",
        f"{device} B",
        ok=None if device is None or floor is None else device >= floor,
    )
    factor = demand.cold_factor
    yield _line(
        "cold_factor",
        f"cold device/logical at most {COLD_FACTOR_LIMIT}",
        "" if factor is None else f"{factor:.3f}",
        ok=None if factor is None else factor <= COLD_FACTOR_LIMIT,
        otherwise=FLAGGED,
    )
    logical = run.measured.bytes + run.measured.spine_bytes
    if device is None or factor is None or run.measured.prefetch is not None:
        return
    if device <= logical * factor + METADATA_BYTES:
        return
    refault = figures.refault_file_pages
    excess = device - logical * factor
    yield Invariant("over_logical", FLAGGED, f"at most {logical} B x {factor:.3f}", f"{device} B")
    yield _line(
        "refaults_cover_excess",
        f"file refaults of at least {excess:.0f} B",
        f"{(refault or 0) * PAGE_BYTES} B",
        ok=None if refault is None else refault * PAGE_BYTES >= excess,
    )


def _steadiness(figures: Figures) -> Iterator[Invariant]:
    """Device / nominal of each third of the measured pass against the whole pass's: otherwise it was still warming."""
    thirds, whole = figures.third_ratios, figures.amplification
    off = max(abs(one / whole - 1) for one in thirds) if thirds and whole else None
    yield _line(
        "steady",
        f"device/nominal of each third within {STEADY_WITHIN:.0%} of the pass's",
        " / ".join(f"{one:.3f}" for one in thirds) + ("" if whole is None else f", pass {whole:.3f}"),
        ok=None if off is None else off <= STEADY_WITHIN,
        otherwise=FLAGGED,
    )
