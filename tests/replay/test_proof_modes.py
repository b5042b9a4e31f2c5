"""What is proved of modes with memory of their own, of reading ahead, of limits and of kills breaks by its name."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_moetier.errors import AccountingError
from pytest_moetier.figures import figures_of
from pytest_moetier.host.enforce import Ending
from pytest_moetier.proof import examine, prove
from pytest_moetier.replay import OomRun, Run

Change = Callable[[Any], Any]
PINNED, HYBRID, USER, DROP = ({"mode": word} for word in ("pinned_own", "hybrid50", "user_lru", "drop"))
HINTED, BLOCKING = ({"prefetch": word} for word in ("fadvise_oracle", "blocking_plan"))
LIMITED = {"workload": "small_box", "read_limit": 40_000_000}
KILLED = {"workload": "small_box", "mode": "write_private"}
LOCKED = {"workload": "small_box", "spine": "locked"}


def own(**changes: Any) -> Change:
    return lambda run: replace(run, output=replace(run.output, own=replace(run.output.own, **changes)))


def off(name: str, by: int) -> Change:
    """Change a number of the mode's own memory."""
    return lambda run: own(**{name: getattr(run.output.own, name) + by})(run)


def no_own(run: Run) -> Run:
    return replace(run, output=replace(run.output, own=None))


def ready(**changes: Any) -> Change:
    return lambda run: replace(run, output=replace(run.output, ready=replace(run.output.ready, **changes)))


def at(point: str, **changes: Any) -> Change:
    return lambda run: replace(run, **{point: replace(getattr(run, point), **changes)})


def scope(**changes: Any) -> Change:
    return lambda run: at("exit", scope=replace(run.exit.scope, **changes))(run)


def anonymous(beyond: int) -> Change:
    """Let the scope's anonymous memory be so many bytes beyond what the mode took of the capacity."""
    return lambda run: scope(anon_bytes=run.output.ready.budgeted_bytes + beyond)(run)


def held_accesses(by: int) -> Change:
    return lambda run: at("measured", held_accesses=run.measured.held_accesses + by)(run)


def sent(which: str, **by: int) -> Change:
    def change(run: Run) -> Run:
        found = getattr(run, which).prefetch
        numbers = {name: getattr(found, name) + more for name, more in by.items()}
        return at(which, prefetch=replace(found, **numbers))(run)

    return change


def nothing_sent(run: Run) -> Run:
    found = replace(run.measured.prefetch, submitted=0, completed=0, overwritten=0, pending=0)
    return at("measured", prefetch=found)(run)


def left_resident(size: int) -> Change:
    def change(run: Run) -> Run:
        kept = [replace(one, resident_bytes=size) if one.at == "exit" else one for one in run.measured.residencies]
        return at("measured", residencies=tuple(kept))(run)

    return change


def vmlck(point: str, by: int) -> Change:
    return lambda run: at(point, process_vmlck_bytes=getattr(run, point).process_vmlck_bytes + by)(run)


def small_page_cache(run: Run) -> Run:
    """Forget the mode's own memory: its reads are then fewer than any cache of the residency alone could do with."""
    return ready(budgeted_bytes=0)(run)


def worst(bench_runs: Any, run: Run | OomRun, name: str) -> str:
    """Return the worst state of the invariants of one name."""
    states = [one.state for one in bench_runs.proof(run).invariants if one.name == name]
    return next((one for one in ("broken", "flagged", "unobserved", "held") if one in states), "absent")


BROKEN: list[tuple[str, dict[str, Any], Change]] = [
    ("replayer_vmlck", PINNED, vmlck("entry", -4096)),
    ("replayer_vmlck", HYBRID, vmlck("exit", 4096)),
    ("replayer_vmlck", LOCKED, at("exit", process_vmlck_bytes=0)),
    ("own_memory", PINNED, no_own),
    ("own_memory", USER, no_own),
    ("own_memory", PINNED, own(asked_bytes=1 << 40, held_bytes=1 << 39)),
    ("own_memory", PINNED, own(held_bytes=4096, places=1)),
    ("own_memory", USER, own(held_bytes=4096)),
    ("own_memory", USER, lambda run: own(held_bytes=run.output.own.asked_bytes + 1)(run)),
    ("own_memory_charged", PINNED, anonymous(-1)),
    ("own_memory_charged", USER, scope(anon_bytes=0)),
    ("preload", PINNED, off("preload_bytes", -(256 << 10))),
    ("preload", HYBRID, off("preload_bytes", 1)),
    ("served_by_table", PINNED, held_accesses(1)),
    ("served_by_table", HYBRID, held_accesses(-1)),
    ("served_by_table", PINNED, off("places", -1)),
    ("not_admitted", DROP, left_resident(2 * 2 * (256 << 10) + 1)),
    ("prefetch_adds_up", HINTED, sent("measured", completed=1)),
    ("prefetch_adds_up", BLOCKING, sent("warm", overwritten=-1)),
    ("prefetch_adds_up", BLOCKING, sent("measured", submitted=1)),
    ("prefetch_adds_up", HINTED, nothing_sent),
    ("belady_floor", PINNED, small_page_cache),
    ("belady_floor", USER, small_page_cache),
]


@pytest.mark.parametrize(("name", "words", "change"), BROKEN, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(BROKEN)])
def test_an_invariant_of_a_mode_breaks_by_name(
    bench_runs: Any, name: str, words: dict[str, Any], change: Change
) -> None:
    run = bench_runs.run(**words)
    assert worst(bench_runs, run, name) == "held"
    changed = change(run)
    assert worst(bench_runs, changed, name) == "broken"
    demand = bench_runs.demand(run)
    with pytest.raises(AccountingError, match=name):
        prove(changed, demand, figures_of(changed, demand))


@pytest.mark.parametrize(
    ("name", "words", "change"),
    [
        ("replayer_vmlck", PINNED, at("exit", process_vmlck_bytes=None)),
        ("own_memory_charged", PINNED, scope(anon_bytes=None)),
        ("slack", PINNED, scope(anon_bytes=None)),
        ("served_by_user_cache", USER, at("measured", held_accesses=None)),
        ("not_admitted", DROP, at("measured", residencies=())),
    ],
)
def test_what_a_host_cannot_show_of_a_mode_is_unobserved(
    bench_runs: Any, name: str, words: dict[str, Any], change: Change
) -> None:
    assert worst(bench_runs, change(bench_runs.run(**words)), name) == "unobserved"


def test_a_read_limit_that_is_another_breaks_and_one_that_cannot_be_read_is_unobserved(
    bench_runs: Any, needs_limit: None
) -> None:
    del needs_limit
    run = bench_runs.run(**LIMITED)
    assert worst(bench_runs, run, "read_limit") == "held"
    assert worst(bench_runs, replace(run, read_limit=39_999_999), "read_limit") == "broken"
    assert worst(bench_runs, replace(run, read_limit=None), "read_limit") == "unobserved"
    assert worst(bench_runs, bench_runs.run(), "read_limit") == "absent"


def test_a_user_space_lru_far_from_the_simulated_one_is_flagged(bench_runs: Any) -> None:
    run = bench_runs.run(**USER, threads=1)
    allowed = int(0.01 * run.measured.accesses)
    for by in (allowed, -allowed):
        assert worst(bench_runs, held_accesses(by)(run), "served_by_user_cache") == "held"
    for by in (allowed + 1, -allowed - 1):
        assert worst(bench_runs, held_accesses(by)(run), "served_by_user_cache") == "flagged"


def test_slabs_for_experts_of_several_sizes_are_not_compared_with_an_lru_of_bytes(bench_runs: Any) -> None:
    run = bench_runs.run(**USER)
    demand = bench_runs.demand(run)
    sizes = demand.plan.expert_bytes.copy()
    sizes[0] = np.uint64(4096)
    uneven = replace(demand, plan=replace(demand.plan, expert_bytes=sizes))
    found = {one.name: one.state for one in examine(run, uneven, figures_of(run, demand)).invariants}
    assert found["served_by_user_cache"] == "unobserved"


def test_no_other_policy_than_lru_has_a_simulated_witness(bench_runs: Any) -> None:
    assert worst(bench_runs, bench_runs.run(mode="user_lfu"), "served_by_user_cache") == "absent"


@pytest.mark.parametrize("words", [PINNED, USER])
def test_the_slack_is_what_is_beyond_the_memory_that_the_capacity_pays_for(
    bench_runs: Any, words: dict[str, Any]
) -> None:
    run = bench_runs.run(**words)
    assert run.exit.scope.anon_bytes > run.enforced.slack_bytes * 1.02  # more than the slack alone would allow
    assert worst(bench_runs, run, "slack") == "held"
    kernel = run.exit.scope.kernel_bytes or 0
    most = int(run.enforced.slack_bytes * 1.02) - kernel
    assert worst(bench_runs, anonymous(most)(run), "slack") == "held"
    assert worst(bench_runs, anonymous(most + 1)(run), "slack") == "flagged"
    (line,) = [one for one in bench_runs.proof(run).invariants if one.name == "slack"]
    assert f", {run.output.ready.budgeted_bytes} B of it paid for by C" in line.expected


def test_memory_that_only_a_mode_has_is_not_asked_of_another(bench_runs: Any) -> None:
    found = bench_runs.states(bench_runs.run())
    assert not found.keys() & {
        "own_memory",
        "own_memory_charged",
        "preload",
        "served_by_table",
        "served_by_user_cache",
        "not_admitted",
        "prefetch_adds_up",
        "read_limit",
        "oom_killed",
        "oom_victim",
    }
    assert "preload" not in bench_runs.states(bench_runs.run(**USER))


def test_own_memory_under_a_balloon_is_not_looked_for_in_a_scope(bench_runs: Any) -> None:
    run = bench_runs.run(**PINNED)
    target = run.capacity_bytes - run.output.ready.budgeted_bytes
    balloon = replace(
        run,
        cell=replace(run.cell, mechanism="balloon"),
        enforced=replace(
            run.enforced,
            available_bytes=target,
            target_bytes=target,
            tolerance_bytes=16 << 20,
            locked_bytes=1 << 30,
            locked_bytes_observed=1 << 30,
        ),
        ending=Ending(locked_bytes=1 << 30),
    )
    found = bench_runs.states(balloon)
    assert "own_memory_charged" not in found
    assert {found[one] for one in ("own_memory", "replayer_vmlck", "balloon_target", "served_by_table")} == {"held"}
    capacity = replace(balloon.enforced, available_bytes=run.capacity_bytes)
    assert bench_runs.states(replace(balloon, enforced=capacity))["balloon_target"] == "broken"


def test_what_was_read_ahead_twice_is_not_taken_for_a_page_cache_that_thrashes(bench_runs: Any) -> None:
    run = bench_runs.run(**BLOCKING)
    twice = run.measured.bytes * 2
    read = at("interval", device_read_bytes=twice, process_read_bytes=twice, workingset_refault_file=0)(run)
    assert worst(bench_runs, read, "over_logical") == "absent"
    assert worst(bench_runs, at("measured", prefetch=None)(read), "refaults_cover_excess") == "broken"


def test_the_spines_bytes_are_demand_too(bench_runs: Any) -> None:
    run = bench_runs.run(workload="small_box", spine="plain")
    demanded = run.measured.bytes + run.measured.spine_bytes
    read = at("interval", device_read_bytes=demanded, process_read_bytes=demanded)(run)
    assert worst(bench_runs, read, "over_logical") == "absent"
    assert worst(bench_runs, at("measured", spine_bytes=0)(read), "over_logical") == "flagged"


def killed(**changes: Any) -> Change:
    return lambda run: replace(run, **changes)


def after_the_kill(**changes: Any) -> Change:
    return lambda run: replace(run, scope=replace(run.scope, **changes))


@pytest.mark.parametrize(
    ("name", "change", "state"),
    [
        ("oom_killed", after_the_kill(oom_kills=0), "broken"),
        ("oom_killed", after_the_kill(oom_kills=None), "unobserved"),
        pytest.param("oom_killed", killed(scope=None), "unobserved", id="oom_killed-no_scope"),
        ("oom_victim", killed(signal=signal.SIGTERM), "broken"),
        ("limit_read_back", after_the_kill(limit_bytes=1 << 40), "broken"),
        ("limit_read_back", killed(scope=None), "unobserved"),
        ("wall_reached", after_the_kill(limit_hits=0), "broken"),
        ("wall_reached", after_the_kill(limit_hits=None), "unobserved"),
        ("scope_identity", killed(ending=Ending(scope_identity=None)), "broken"),
    ],
)
def test_an_expected_kill_is_proved_by_the_walls_own_count(
    bench_runs: Any, name: str, change: Change, state: str
) -> None:
    run = bench_runs.any_run(**KILLED)
    assert isinstance(run, OomRun)
    assert worst(bench_runs, run, name) == "held"
    assert worst(bench_runs, change(run), name) == state
