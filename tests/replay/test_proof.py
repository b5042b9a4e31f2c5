"""Every invariant holds on a real run, and breaks, alone and by name, when what it guards is changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pytest_moetier.cell import Cell
from pytest_moetier.errors import AccountingError
from pytest_moetier.figures import Demand, figures_of
from pytest_moetier.host.enforce import Ending, Enforced
from pytest_moetier.host.mglru import MglruSetting
from pytest_moetier.proof import examine, prove
from pytest_moetier.replay import Run
from pytest_moetier.units import Capacity

Change = Callable[[Run], Run]


def states(run: Run, demand: Demand) -> dict[str, str]:
    proof = examine(run, demand, figures_of(run, demand))
    return {one.name: one.state for one in proof.invariants}


def test_a_real_run_is_proved_and_nothing_that_this_host_shows_is_unobserved(run: Run, demand: Demand) -> None:
    proved = prove(run, demand, figures_of(run, demand))
    assert proved.proof.broken == ()
    assert proved.proof.unobserved == ()
    assert len(proved.proof.invariants) >= 24


def at_exit(**changes: Any) -> Change:
    return lambda run: replace(run, exit=replace(run.exit, **changes))


def scope_at_exit(**changes: Any) -> Change:
    return lambda run: replace(run, exit=replace(run.exit, scope=replace(run.exit.scope, **changes)))  # type: ignore[type-var]


def measured(**changes: Any) -> Change:
    return lambda run: replace(run, measured=replace(run.measured, **changes))


def interval(**changes: Any) -> Change:
    return lambda run: replace(run, interval=replace(run.interval, **changes))


def fewer_charged(run: Run) -> Run:
    scope = replace(run.exit.scope, file_bytes=1 << 20)  # type: ignore[type-var]
    return replace(run, exit=replace(run.exit, scope=scope))


def device_off(share: float) -> Change:
    def change(run: Run) -> Run:
        device = round((run.interval.process_read_bytes or 0) * share) + (16 << 20)
        return replace(run, interval=replace(run.interval, device_read_bytes=device))

    return change


def undropped(run: Run) -> Run:
    first = replace(run.warm.residencies[0], resident_bytes=64 << 20)
    return replace(run, warm=replace(run.warm, residencies=(first, *run.warm.residencies[1:])))


def few_destinations(run: Run) -> Run:
    return replace(run, output=replace(run.output, start=replace(run.output.start, destinations=8)))


def lost_scope(run: Run) -> Run:
    return replace(run, ending=Ending(scope_identity=None))


def hidden_iostats(run: Run) -> Run:
    devices = tuple(replace(one, iostats=False) for one in run.exit.devices)
    return replace(run, exit=replace(run.exit, devices=devices))


CHANGES: list[tuple[str, Change]] = [
    ("limit_read_back", scope_at_exit(limit_bytes=1 << 20)),
    ("scope_identity", lost_scope),
    ("replayer_in_scope", at_exit(process_cgroup="4:memory:/")),
    ("no_oom", scope_at_exit(oom_kills=1)),
    ("wall_reached", scope_at_exit(limit_hits=0)),
    ("peak_within_limit", scope_at_exit(peak_bytes=1 << 40)),
    ("ancestor_limits", scope_at_exit(ancestor_limit_hits=3)),
    ("replayer_vmlck", at_exit(process_vmlck_bytes=4096)),
    ("mglru", lambda run: replace(run, mglru=MglruSetting("on", "on", "off"))),
    ("no_swap", lambda run: scope_at_exit(swap_bytes=4096)(at_exit(swap_total_bytes=1 << 30)(run))),
    ("cache_dropped", undropped),
    ("no_cache_drop", at_exit(drop_pagecache=10**9)),
    ("charged_at_exit", fewer_charged),
    ("delivered_measured", measured(bytes=1)),
    ("delivered_measured", measured(accesses=1)),
    ("stamps", measured(stamps_checked=1)),
    ("destinations", few_destinations),
    ("device_two_witnesses", device_off(1.05)),
    ("foreign_share", device_off(1.05)),
    ("iostats", hidden_iostats),
    ("inflight", measured(inflight_zero=False)),
    ("loop_direct_io", lambda run: replace(run, loop_dio=(True, False))),
    ("image_not_resident", lambda run: replace(run, image_resident_bytes=(0, 64 << 20))),
    ("belady_floor", interval(device_read_bytes=4096, process_read_bytes=4096)),
]


@pytest.mark.parametrize(("name", "change"), CHANGES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CHANGES)])
def test_an_invariant_breaks_by_name(run: Run, demand: Demand, name: str, change: Change) -> None:
    assert states(run, demand)[name] == "held"
    changed = change(run)
    assert states(changed, demand)[name] == "broken"
    with pytest.raises(AccountingError, match=name):
        prove(changed, demand, figures_of(changed, demand))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("device_two_witnesses", interval(process_read_bytes=None)),
        ("foreign_share", interval(device_read_bytes=None)),
        ("belady_floor", interval(device_read_bytes=None)),
        ("charged_at_exit", scope_at_exit(file_bytes=None)),
        ("peak_within_limit", scope_at_exit(peak_bytes=None)),
        ("ancestor_limits", scope_at_exit(ancestor_limit_hits=None)),
        ("no_swap", lambda run: scope_at_exit(swap_bytes=None)(at_exit(swap_total_bytes=1 << 30)(run))),
        ("stamps", measured(stamps_checked=0)),
    ],
)
def test_what_a_host_cannot_show_is_unobserved_and_never_held(
    run: Run, demand: Demand, name: str, change: Change
) -> None:
    assert states(change(run), demand)[name] == "unobserved"


def test_more_than_the_plan_was_read_is_flagged_and_must_be_covered_by_refaults(run: Run, demand: Demand) -> None:
    twice = run.measured.bytes * 2
    covered = interval(device_read_bytes=twice, process_read_bytes=twice, workingset_refault_file=twice // 4096)(run)
    found = states(covered, demand)
    assert found["over_logical"] == "flagged"
    assert found["refaults_cover_excess"] == "held"
    uncovered = interval(device_read_bytes=twice, process_read_bytes=twice, workingset_refault_file=0)(run)
    assert states(uncovered, demand)["refaults_cover_excess"] == "broken"


def test_read_ahead_across_experts_is_flagged(run: Run, demand: Demand) -> None:
    assert states(run, replace(demand, cold_factor=1.5))["cold_factor"] == "flagged"


def test_own_memory_beyond_the_slack_is_flagged(run: Run, demand: Demand) -> None:
    assert states(scope_at_exit(anon_bytes=1 << 40)(run), demand)["slack"] == "flagged"


def balloon(locked: int, after: int, problem: str | None = None, off: int = 0) -> Change:
    def change(run: Run) -> Run:
        capacity = run.capacity_bytes
        enforced = Enforced(
            available_bytes=capacity + off,
            locked_bytes=locked,
            locked_bytes_observed=locked,
            target_bytes=capacity,
            tolerance_bytes=16 << 20,
        )
        cell = Cell("capacity", Capacity.parse("30%"), "balloon")
        return replace(run, cell=cell, enforced=enforced, ending=Ending(problem=problem, locked_bytes=after))

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("balloon_locked", balloon(1 << 30, 1 << 29)),
        ("balloon_alive", balloon(1 << 30, 1 << 30, problem="its process ended")),
        ("balloon_target", balloon(1 << 30, 1 << 30, off=17 << 20)),
    ],
)
def test_a_balloon_that_did_not_hold_breaks_the_proof(run: Run, demand: Demand, name: str, change: Change) -> None:
    healthy = states(balloon(1 << 30, 1 << 30)(run), demand)
    assert {healthy[one] for one in ("balloon_locked", "balloon_alive", "balloon_target")} == {"held"}
    assert states(change(run), demand)[name] == "broken"


def test_figures_agree_with_what_the_replayer_counted(run: Run, demand: Demand) -> None:
    figures = figures_of(run, demand)
    per_iteration = sum(one.device_read_bytes or 0 for one in run.measured.iterations) / len(run.measured.iterations)
    assert figures.device_bytes == pytest.approx(per_iteration, rel=0.02, abs=64 << 10)
    assert figures.logical_bytes == demand.plan.total_bytes / demand.plan.n_iterations
    assert figures.hit_bytes is not None
    assert figures.device_bytes is not None
    assert figures.hit_bytes + figures.device_bytes == pytest.approx(figures.logical_bytes, rel=0.05)
    assert figures.amplification == pytest.approx(figures.device_bytes / (figures.nominal_bytes or 1))
