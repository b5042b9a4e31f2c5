"""Every mode on a real pool within a real wall: proved, and what it serves is what it says it serves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_moetier.cell import Cell
from pytest_moetier.errors import InputError, UnsupportedHostError
from pytest_moetier.host.balloon import mem_available_bytes
from pytest_moetier.host.restore import HostLock
from pytest_moetier.host.throttle import BURST_SECONDS
from pytest_moetier.lists import read_lists
from pytest_moetier.modes import FILLS, MODES
from pytest_moetier.plan import Plan
from pytest_moetier.pool.check import check_pool
from pytest_moetier.replay import OomRun, run_cell
from pytest_moetier.simulate import simulate, workload
from pytest_moetier.tables import own_table
from pytest_moetier.trace.records import Trace, make_trace
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.units import Capacity
from pytest_moetier.workloads import Asked, single

WAIT_SECONDS = 200
EXPERT_BYTES = 256 << 10
SPINE_BYTES = 4 << 20
KEPT = sorted(word for word, mode in MODES.items() if not mode.writes)
CACHED = [word for word in KEPT if MODES[word].cached and not MODES[word].share and word != "drop"]
ARENAS = ["pinned_own", "pinned_train", "pinned_domain", "hybrid", "hybrid25"]
SMALL_BOX = {"workload": "small_box"}


@pytest.mark.parametrize("mode", [*KEPT, "hybrid25", "user_lru50", "pinned_train10"])
def test_every_mode_is_proved_and_nothing_that_this_host_shows_is_unobserved(bench_runs: Any, mode: str) -> None:
    found = bench_runs.prove(bench_runs.run(mode=mode)).proof
    assert found.broken == ()
    assert found.unobserved == ()


@pytest.mark.parametrize("mode", CACHED)
def test_what_the_page_cache_holds_is_not_read_again(bench_runs: Any, mode: str) -> None:
    run = bench_runs.run(mode=mode)
    figures = bench_runs.figures(run)
    assert 0 < figures.device_bytes < figures.logical_bytes
    assert 0 < figures.demand_served < 1
    assert figures.demand_served == pytest.approx(figures.hit_bytes / figures.logical_bytes)
    assert (figures.held_bytes, figures.preload_bytes, run.output.own) == (None, None, None)


@pytest.mark.parametrize("mode", ["direct", "drop"])
def test_where_nothing_is_kept_all_of_the_demand_is_read(bench_runs: Any, mode: str) -> None:
    run = bench_runs.run(mode=mode, threads=1)
    assert run.measured.hit_bytes == 0
    assert run.interval.device_read_bytes == pytest.approx(run.measured.bytes, rel=0.01)
    assert run.interval.device_read_bytes >= run.measured.bytes
    assert bench_runs.figures(run).demand_served == 0


def test_only_a_mode_that_drops_has_to_prove_that_nothing_is_admitted(bench_runs: Any) -> None:
    assert bench_runs.states(bench_runs.run(mode="drop"))["not_admitted"] == "held"
    assert "not_admitted" not in bench_runs.states(bench_runs.run())


def doubled(trace: Trace) -> Trace:
    """Return a trace twice over: what one process replays in two passes."""
    return make_trace(
        iteration=np.concatenate([trace.iteration, trace.iteration + np.uint32(trace.n_iterations)]),
        layer=np.tile(trace.layer, 2),
        kind=np.tile(trace.kind, 2),
        offsets=np.concatenate([trace.offsets, trace.offsets[-1] + trace.offsets[1:]]),
        experts=np.tile(trace.experts, 2),
        n_experts=trace.n_experts,
        k=trace.k,
        synthetic=True,
        source="twice",
    )


@pytest.mark.parametrize(("mode", "policy"), [("user_lru", "lru"), ("user_lru50", "lru"), ("user_lfu", "lfu")])
def test_a_user_space_cache_read_by_one_thread_serves_what_the_simulation_says(
    bench_runs: Any, mode: str, policy: str
) -> None:
    run = bench_runs.run(mode=mode, threads=1)
    trace = synth_trace("kimi-k3", layers=2, experts=128, k=8, iterations=12, seed=1)
    (due,) = simulate(workload(doubled(trace)), [policy], [str(run.output.own.places)], window="12:24")
    assert run.measured.held_accesses == due.hits
    assert [one.held_bytes for one in run.measured.iterations] == [
        one.accesses * EXPERT_BYTES - int(missed) * EXPERT_BYTES
        for one, missed in zip(run.measured.iterations, due.iteration_misses, strict=True)
    ]
    assert run.interval.device_read_bytes == pytest.approx(due.misses * EXPERT_BYTES, rel=0.01)
    assert run.measured.hit_bytes == 0


def test_a_user_space_lru_is_the_curves_lru_of_as_many_experts(bench_runs: Any) -> None:
    run = bench_runs.run(mode="user_lru", threads=1)
    demand = bench_runs.demand(run)
    (misses,) = demand.curve.misses([run.output.own.places * EXPERT_BYTES])
    assert run.measured.held_accesses == demand.plan.n_accesses - int(misses)
    assert bench_runs.figures(run).amplification == pytest.approx(1.0, rel=0.01)
    assert bench_runs.states(run)["served_by_user_cache"] == "held"


@pytest.mark.parametrize("mode", ["user_lru", "user_lru50", "user_lfu"])
def test_a_user_space_cache_is_its_share_of_the_capacity_in_whole_experts(bench_runs: Any, mode: str) -> None:
    run = bench_runs.run(mode=mode)
    own = run.output.own
    share = run.cell.reading.share
    assert own.kind == "user_cache"
    assert own.asked_bytes == int(run.capacity_bytes * share) // 4096 * 4096
    assert own.places == own.asked_bytes // EXPERT_BYTES
    assert own.held_bytes == own.mapped_bytes == own.places * EXPERT_BYTES == run.output.ready.budgeted_bytes
    assert (run.output.ready.locked_bytes, own.preload_bytes) == (0, 0)


def served(plan: Plan, ids: Any) -> int:
    return int(np.isin(plan.sequence, ids).sum())


@pytest.mark.parametrize("mode", ARENAS)
def test_an_arena_serves_exactly_the_reads_of_the_experts_it_holds(bench_runs: Any, mode: str) -> None:
    run = bench_runs.run(mode=mode)
    plan, own = bench_runs.rig.plan, run.output.own
    held = read_lists(run.table.path).ids[: own.places]
    assert run.measured.held_accesses == run.warm.held_accesses == served(plan, held)
    assert run.measured.held_bytes == served(plan, held) * EXPERT_BYTES
    assert own.held_bytes == own.places * EXPERT_BYTES
    assert run.measured.held_bytes == sum(one.held_bytes for one in run.measured.iterations)


@pytest.mark.parametrize("mode", ARENAS)
def test_an_arena_is_locked_as_asked_and_filled_before_the_first_pass(bench_runs: Any, mode: str) -> None:
    run = bench_runs.run(mode=mode)
    own, ready = run.output.own, run.output.ready
    assert own.kind == "arena"
    assert own.held_bytes <= own.asked_bytes <= run.capacity_bytes * run.cell.reading.share
    assert own.asked_bytes - own.held_bytes < EXPERT_BYTES
    assert ready.locked_bytes == ready.budgeted_bytes == own.mapped_bytes
    assert run.entry.process_vmlck_bytes == run.exit.process_vmlck_bytes == own.mapped_bytes
    assert own.preload_bytes == own.held_bytes
    assert own.preload_device_bytes == pytest.approx(own.held_bytes, rel=0.01)
    assert run.warm_entry.process_vmlck_bytes == own.mapped_bytes


def test_a_whole_arena_leaves_what_the_misses_of_all_threads_land_on(bench_runs: Any) -> None:
    for threads in (1, 4):
        run = bench_runs.run(mode="pinned_own", threads=threads)
        assert run.capacity_bytes - run.output.own.asked_bytes == pytest.approx(2 * threads * EXPERT_BYTES, abs=4096)
        assert bench_runs.proof(run).broken == ()


def test_an_arena_that_holds_all_that_is_read_reads_nothing_in_the_interval(bench_runs: Any) -> None:
    run = bench_runs.run(capacity="100%", mode="pinned_own")
    plan = bench_runs.rig.plan
    assert run.output.own.places == len(np.unique(plan.sequence))
    assert run.interval.device_read_bytes == 0
    assert run.measured.held_accesses == plan.n_accesses
    figures = bench_runs.figures(run)
    assert (figures.device_bytes, figures.demand_served, figures.hit_bytes) == (0, 1, 0)
    assert figures.preload_bytes == run.output.own.held_bytes
    assert run.output.own.preload_device_bytes == pytest.approx(figures.preload_bytes, rel=0.01)
    assert bench_runs.proof(run).broken == ()


def test_what_an_arena_is_filled_from_is_labelled(bench_runs: Any) -> None:
    for mode, oracle, words in (
        ("pinned_own", True, "oracle table: the replayed trace's own counts"),
        ("hybrid", True, "oracle table: the replayed trace's own counts"),
        ("pinned_train", False, "table of the first 7 of 12 iterations"),
        ("pinned_domain", False, "table of another domain: synthetic code"),
    ):
        found = bench_runs.run(mode=mode).table
        assert (found.oracle, found.words, found.recall) == (oracle, words, None)
    plan = bench_runs.rig.plan
    assert bench_runs.run(mode="pinned_own").table.ids.tolist() == own_table(plan).lists.ids.tolist()
    assert bench_runs.run().table is None


def test_a_hybrid_serves_from_both_and_holds_between_the_whole_ones(bench_runs: Any) -> None:
    kernel, quarter, half, whole = (
        bench_runs.run(mode=mode) for mode in ("page_cache", "hybrid25", "hybrid50", "pinned_own")
    )
    places = [run.output.own.places for run in (quarter, half, whole)]
    assert sorted(places) == places
    assert [round(run.output.own.asked_bytes / run.capacity_bytes, 2) for run in (quarter, half)] == [0.25, 0.5]
    held = [run.measured.held_accesses or 0 for run in (kernel, quarter, half, whole)]
    assert held == sorted(set(held))
    for run in (quarter, half):
        assert run.measured.hit_bytes > 0
        figures = bench_runs.figures(run)
        assert figures.demand_served == pytest.approx((figures.hit_bytes + figures.held_bytes) / figures.logical_bytes)


@pytest.mark.parametrize("mode", ["pinned_own", "hybrid50", "user_lru"])
def test_own_memory_and_page_cache_share_one_capacity(bench_runs: Any, mode: str) -> None:
    run = bench_runs.run(mode=mode)
    figures = bench_runs.figures(run)
    own = run.output.ready.budgeted_bytes
    resident = [one.resident_bytes for one in run.measured.residencies]
    assert figures.largest_holding_bytes == max(resident) + own
    assert figures.observed_capacity_bytes == pytest.approx(np.mean(resident) + own)
    # What is left over of the slack is the cache's too; the memory of the replayer itself is not.
    room = run.enforced.limit_bytes - (run.output.ready.rss_anon_bytes - own)
    assert figures.largest_holding_bytes <= room


@pytest.mark.parametrize("prefetch", ["fadvise_oracle", "fadvise_plan", "blocking_oracle", "blocking_plan"])
def test_what_is_read_ahead_adds_up_in_both_passes(bench_runs: Any, prefetch: str) -> None:
    run = bench_runs.run(prefetch=prefetch)
    proof = bench_runs.prove(run).proof
    assert [one.state for one in proof.invariants if one.name == "prefetch_adds_up"] == ["held", "held"]
    lists = read_lists(run.advice.path)
    for one in (run.warm, run.measured):
        found = one.prefetch
        assert found.submitted == lists.n_lists > 0
        assert found.submitted == found.completed + found.overwritten + found.pending
        assert found.asked_bytes == found.experts * EXPERT_BYTES
        assert found.resident_before_bytes <= found.asked_bytes
        if prefetch.startswith("blocking"):
            assert found.read_bytes == found.asked_bytes
        else:
            assert found.read_bytes == 0
            assert found.resident_before_bytes + found.became_resident_bytes <= found.asked_bytes
    assert proof.broken == ()


def test_the_recall_of_advice_is_the_lists_own_and_none_has_none(bench_runs: Any) -> None:
    oracle, plan = (bench_runs.run(prefetch=f"fadvise_{one}") for one in ("oracle", "plan"))
    assert (oracle.advice.oracle, oracle.advice.words) == (True, "oracle")
    assert bench_runs.figures(oracle).advice_recall == 1.0
    assert not plan.advice.oracle
    assert plan.advice.words == f"noisy oracle, recall {plan.advice.recall:.3f}"
    assert bench_runs.figures(plan).advice_recall == plan.advice.recall
    assert 0 < plan.advice.recall < 1
    assert (bench_runs.run().advice, bench_runs.figures(bench_runs.run()).advice_recall) == (None, None)


def test_nothing_is_read_ahead_where_nothing_is_asked_for(bench_runs: Any) -> None:
    run = bench_runs.run()
    assert (run.warm.prefetch, run.measured.prefetch) == (None, None)
    assert "prefetch_adds_up" not in bench_runs.states(run)


@pytest.mark.parametrize(("given", "prefetch"), [("oracle", "fadvise_plan"), ("plan", "blocking_oracle")])
def test_advice_that_is_not_what_it_is_labelled_is_refused_with_one_message(
    bench_runs: Any, given: str, prefetch: str
) -> None:
    rig = bench_runs.rig
    mislabelled = replace(rig, list_file=lambda _word: rig.list_file(given))
    with pytest.raises(InputError, match=rf"^prefetch {prefetch} with .*oracle.*; expected an oracle labelled oracle"):
        run_cell(mislabelled, Cell("advice", Capacity.parse("30%"), prefetch=prefetch))


def test_an_oracle_given_by_the_user_as_a_predictor_is_refused(bench_runs: Any, tmp_path: Path) -> None:
    rig = bench_runs.rig
    work = single(rig.pool.manifest, Asked((), 12, Path("oracle")))
    given = replace(rig, list_file=lambda word: work.write_list(word, tmp_path))
    with pytest.raises(InputError, match=r"^prefetch fadvise_plan with oracle; expected .*moetier plan predict"):
        run_cell(given, Cell("advice", Capacity.parse("30%"), prefetch="fadvise_plan"))


def test_advice_that_names_nothing_of_what_is_replayed_leaves_the_cell_not_examined(bench_runs: Any) -> None:
    rig = bench_runs.rig
    silent = replace(rig.list_file("plan"), ids=np.zeros(0, dtype=np.uint32))
    cell = Cell("advice", Capacity.parse("30%"), prefetch="fadvise_plan")
    with pytest.raises(UnsupportedHostError, match=r"it names nothing to read ahead.*next: .*--moetier-min-recall"):
        run_cell(replace(rig, list_file=lambda _word: silent), cell)


@pytest.mark.parametrize("fill", sorted(FILLS))
def test_the_warm_pass_alone_reads_in_the_way_of_the_fill(bench_runs: Any, fill: str) -> None:
    run = bench_runs.run(capacity="100%", fill=fill)
    assert bench_runs.proof(run).broken == ()
    assert run.warm.bytes == run.measured.bytes
    assert run.measured.major_faults == 0
    assert (run.warm.major_faults > 0) == (fill == "mmap")
    assert run.interval.device_read_bytes == 0  # all of it stays: the measured pass has hits alone
    assert run.measured.hit_bytes == run.measured.bytes


def test_a_spine_is_copied_once_an_iteration_and_counts_as_demand(bench_runs: Any) -> None:
    run = bench_runs.run(**SMALL_BOX, mode="mmap_pread", spine="plain")
    assert run.measured.spine_bytes == run.warm.spine_bytes == 12 * SPINE_BYTES
    assert run.output.start.spine_bytes == SPINE_BYTES
    assert run.exit.process_vmlck_bytes == run.output.ready.locked_bytes == 0
    assert bench_runs.proof(run).broken == ()
    without = bench_runs.run(**SMALL_BOX, mode="mmap_pread")
    assert (without.measured.spine_bytes, without.output.start.spine_bytes) == (0, 0)


def test_a_locked_spine_is_locked_throughout_and_never_read_in_the_interval(bench_runs: Any) -> None:
    run = bench_runs.run(capacity="100%", workload="small_box", mode="page_cache", spine="locked")
    assert run.entry.process_vmlck_bytes == run.exit.process_vmlck_bytes == SPINE_BYTES
    assert run.output.ready.locked_bytes == SPINE_BYTES
    assert run.output.ready.budgeted_bytes == 0
    assert run.interval.device_read_bytes == 0
    assert bench_runs.proof(run).broken == ()


def test_an_arena_beside_a_locked_spine_leaves_it_its_room(bench_runs: Any) -> None:
    run = bench_runs.run(**SMALL_BOX, mode="pinned_own", spine="locked")
    assert run.output.own.asked_bytes <= run.capacity_bytes - SPINE_BYTES
    assert run.output.ready.locked_bytes == run.output.own.mapped_bytes + SPINE_BYTES
    assert run.output.ready.budgeted_bytes == run.output.own.mapped_bytes
    assert bench_runs.proof(run).broken == ()


def test_a_pool_without_a_spine_and_a_capacity_below_a_locked_one_are_refused(bench_runs: Any) -> None:
    none = Cell("policy", Capacity.parse("30%"), spine="plain")
    said = r"has no spine; expected one that has; next: moetier pool create --spine"
    with HostLock(WAIT_SECONDS), pytest.raises(InputError, match=said):
        run_cell(bench_runs.rig, none)
    small = Cell("policy", Capacity.parse("4MiB"), workload="small_box", spine="locked")
    said = r"^a locked spine of 4\.19 MB in 4\.19 MB; expected a larger capacity; next: --moetier-capacity"
    with HostLock(WAIT_SECONDS), pytest.raises(UnsupportedHostError, match=said):
        run_cell(bench_runs.thrown, small)


def blkio_groups() -> list[str]:
    return [str(one) for one in Path("/sys/fs/cgroup").rglob("moetier-*-read-*")]


@pytest.mark.usefixtures("needs_limit")
def test_a_read_limit_holds_from_the_first_pass_on_and_is_lifted_after_it(bench_runs: Any) -> None:
    limit = 20_000_000
    run = bench_runs.run(**SMALL_BOX, read_limit=limit)
    assert run.read_limit == limit
    assert bench_runs.states(run)["read_limit"] == "held"
    assert run.interval.device_read_bytes > limit * BURST_SECONDS
    for one, device in ((run.warm, None), (run.measured, run.interval.device_read_bytes)):
        read = sum(each.device_read_bytes for each in one.iterations) if device is None else device
        assert read <= limit * (one.elapsed_seconds + BURST_SECONDS)
    assert blkio_groups() == []
    assert bench_runs.run(**SMALL_BOX).read_limit is None


@pytest.mark.usefixtures("needs_limit")
def test_a_pool_on_two_devices_has_no_one_limit_and_no_replayer_is_left(bench_runs: Any) -> None:
    pool = bench_runs.thrown.pool
    rig = replace(bench_runs.thrown, pool=replace(pool, devices=pool.devices * 2))
    limited = Cell("small_box", Capacity.parse("30%"), workload="small_box", read_limit=20_000_000)
    with (
        HostLock(WAIT_SECONDS),
        pytest.raises(UnsupportedHostError, match=r"^the pool lies on 2 devices; expected one device"),
    ):
        run_cell(rig, limited)
    assert blkio_groups() == []


def test_writing_in_place_writes_every_page_back_and_changes_none(bench_runs: Any) -> None:
    run = bench_runs.run(**SMALL_BOX, mode="write_shared")
    proof = bench_runs.proof(run)
    assert proof.broken == ()
    figures = bench_runs.figures(run)
    assert figures.written_bytes > 0
    assert run.measured.bytes == bench_runs.thrown.plan.total_bytes
    assert bench_runs.figures(bench_runs.run(**SMALL_BOX)).written_bytes is None
    pool = bench_runs.thrown.pool
    assert check_pool(pool.root, pool.manifest, full=True).faults == ()


def test_private_writes_are_ended_by_the_walls_own_kill_and_that_is_proved(bench_runs: Any) -> None:
    run = bench_runs.any_run(workload="small_box", mode="write_private")
    assert isinstance(run, OomRun)
    proof = bench_runs.proof(run)
    assert {one.name for one in proof.invariants} == {
        "oom_killed",
        "oom_victim",
        "limit_read_back",
        "wall_reached",
        "scope_identity",
    }
    assert {one.state for one in proof.invariants} == {"held"}
    figures = bench_runs.figures(run)
    assert figures.oom_kills >= 1
    assert figures.iterations_before_oom == run.iterations < 12
    assert figures.device_bytes is None
    assert list(Path("/sys/fs/cgroup").rglob(Path(run.enforced.scope.path).name)) == []
    pool = bench_runs.thrown.pool
    assert check_pool(pool.root, pool.manifest, full=True).faults == ()


def test_private_writes_that_fit_are_not_killed_and_count_no_kill(bench_runs: Any) -> None:
    run = bench_runs.run(capacity="100%", workload="small_box", mode="write_private")
    figures = bench_runs.figures(run)
    assert (figures.oom_kills, figures.iterations_before_oom) == (0, None)
    assert bench_runs.proof(run).broken == ()
    assert bench_runs.states(run)["slack"] == "flagged"  # anonymous memory where cache was to be


@pytest.mark.parametrize("mode", ["write_private", "write_shared"])
def test_a_pool_that_is_kept_is_never_written_to(bench_runs: Any, mode: str) -> None:
    writing = Cell("small_box", Capacity.parse("30%"), workload="small_box", mode=mode)
    with HostLock(WAIT_SECONDS), pytest.raises(InputError, match="throw-away"):
        run_cell(bench_runs.rig, writing)


@pytest.mark.parametrize(("off", "reached"), [(1, False), (4, False), (20, True)])
def test_the_wall_must_be_reached_where_the_demand_exceeds_what_it_leaves(
    bench_runs: Any, off: int, *, reached: bool
) -> None:
    """The slack's reserve is the cache's too: a demand just above C fits, and nothing is wrong with it."""
    plan = bench_runs.rig.plan
    asked = len(np.unique(plan.sequence)) * EXPERT_BYTES
    for mode in ("page_cache", "pinned_own"):
        run = bench_runs.run(capacity=f"{asked - off * EXPERT_BYTES}B", mode=mode)
        assert bench_runs.proof(run).broken == ()
        if mode == "page_cache":
            assert (bench_runs.states(run).get("wall_reached") == "held") == reached


def test_the_last_iterations_are_the_fair_ones(bench_runs: Any) -> None:
    run = bench_runs.run()
    last = [one.device_read_bytes for one in run.measured.iterations][8:]
    assert bench_runs.figures(run).fair_device_bytes == sum(last) / 4


def test_faults_and_processor_time_are_an_iterations_mean(bench_runs: Any) -> None:
    run = bench_runs.run(mode="mmap_random")
    figures, one = bench_runs.figures(run), run.measured
    assert figures.major_faults == one.major_faults / 12 > 0
    assert figures.minor_faults == one.minor_faults / 12
    assert figures.cpu_seconds_per_iteration == (one.user_seconds + one.system_seconds) / 12
    assert sum(each.major_faults for each in one.iterations) == one.major_faults


@pytest.mark.parametrize("mode", ["user_lru1", "pinned_own1", "page_cache"])
def test_under_a_balloon_the_capacity_pays_for_own_memory_too(bench_runs: Any, mode: str) -> None:
    """Of what is available the balloon leaves C less what the mode has already taken."""
    capacity = (mem_available_bytes() >> 30) - 1 << 30
    if capacity < 4 << 30:
        pytest.skip(f"a balloon that leaves {capacity} bytes is below what is left to this host")
    cell = Cell("policy", Capacity.parse(f"{capacity}B"), "balloon", mode=mode)
    with HostLock(WAIT_SECONDS):
        run = run_cell(bench_runs.rig, cell)
    own = run.output.ready.budgeted_bytes
    assert (own > 0) == (mode != "page_cache")
    assert run.enforced.target_bytes == capacity - own
    assert abs(run.enforced.available_bytes - run.enforced.target_bytes) <= run.enforced.tolerance_bytes
    found = bench_runs.states(run)
    assert {found[one] for one in ("balloon_locked", "balloon_alive", "balloon_target", "replayer_vmlck")} == {"held"}
    assert "own_memory_charged" not in found
