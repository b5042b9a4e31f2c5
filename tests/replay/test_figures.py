"""Figures of real runs: what each is made of, and None where there is no such thing or it was not observed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from pytest_moetier.figures import Figures, figures_of
from pytest_moetier.finding import metrics_of
from pytest_moetier.proof import Proof, ProvedRun
from pytest_moetier.replay import OomRun


def without_devices(run: Any) -> Any:
    """Return a run in which no iteration's device bytes are known."""
    blind = tuple(replace(one, device_read_bytes=None) for one in run.measured.iterations)
    return replace(run, measured=replace(run.measured, iterations=blind))


def test_what_was_served_is_what_was_in_memory_before_it_was_asked_for(bench_runs: Any) -> None:
    run = bench_runs.run(mode="hybrid50")
    one = run.measured
    assert bench_runs.figures(run).demand_served == (one.hit_bytes + one.held_bytes) / one.bytes
    unseen = replace(run, measured=replace(one, hit_bytes=None))
    assert bench_runs.figures(unseen).demand_served is None
    kernel = bench_runs.run()
    assert bench_runs.figures(kernel).demand_served == kernel.measured.hit_bytes / kernel.measured.bytes


def test_iterations_whose_device_bytes_are_not_known_have_no_fair_part(bench_runs: Any) -> None:
    run = bench_runs.run()
    assert bench_runs.figures(run).fair_device_bytes is not None
    assert bench_runs.figures(without_devices(run)).fair_device_bytes is None
    assert bench_runs.figures(without_devices(run)).part_ratios == ()


def test_one_iteration_has_no_variation(bench_runs: Any) -> None:
    run = bench_runs.run()
    single = replace(run, measured=replace(run.measured, iterations=run.measured.iterations[:1]))
    assert bench_runs.figures(run).iteration_variation > 0
    assert bench_runs.figures(single).iteration_variation is None


def test_whose_set_is_kept_is_told_of_the_kernels_cache_alone(bench_runs: Any) -> None:
    found = bench_runs.figures(bench_runs.run()).fidelity
    assert 0 < found.lru_overlap <= 1
    assert 0 < found.belady_overlap <= 1
    resident = bench_runs.run().measured.resident_by_expert
    assert found.resident_bytes == sum(resident)
    assert len(resident) == bench_runs.rig.plan.n_experts
    for mode in ("pinned_own", "hybrid50", "user_lru", "direct", "drop"):
        assert bench_runs.figures(bench_runs.run(mode=mode)).fidelity is None


def test_figures_per_accepted_token_are_of_the_tokens_the_user_got(bench_runs: Any) -> None:
    run = bench_runs.run()
    figures = bench_runs.figures(run)
    assert run.accepted_tokens == bench_runs.rig.accepted_tokens > len(run.measured.iterations)
    assert figures.seconds_per_accepted_token == run.measured.wall_seconds / run.accepted_tokens
    assert figures.device_bytes_per_accepted_token == run.interval.device_read_bytes / run.accepted_tokens


def test_a_killed_run_has_its_kills_and_how_far_it_came_and_nothing_else(bench_runs: Any) -> None:
    run = bench_runs.any_run(workload="small_box", mode="write_private")
    assert isinstance(run, OomRun)
    figures = bench_runs.figures(run)
    known = {one.name for one in fields(Figures) if getattr(figures, one.name) not in {None, ()}}
    assert known == {"seconds_per_iteration", "oom_kills", "iterations_before_oom"}
    before_the_first = replace(run, iterations=0, seconds=0.0)
    assert figures_of(before_the_first, bench_runs.demand(run)).seconds_per_iteration == 0
    assert bench_runs.figures(replace(run, scope=None)).oom_kills is None


@pytest.mark.parametrize(
    "words",
    [{}, {"mode": "pinned_own"}, {"prefetch": "fadvise_plan"}, {"workload": "small_box", "mode": "write_shared"}],
)
def test_every_metric_of_a_real_run_is_a_plain_number(bench_runs: Any, words: dict[str, Any]) -> None:
    run = bench_runs.run(**words)
    proved = ProvedRun(run, bench_runs.figures(run), Proof(()))
    found = metrics_of([proved, proved])
    assert {"seconds_per_iteration", "device_bytes", "logical_bytes", "amplification", "major_faults"} <= set(found)
    for metric in found.values():
        assert len(metric.values) == 2
        assert {type(one) for one in metric.values} == {float}
        assert metric.better in {"lower", "higher", "neither"}


def test_a_run_of_which_nothing_was_observed_has_its_time_and_no_other_metric() -> None:
    blind = ProvedRun(None, Figures(seconds_per_iteration=1.5), Proof(()))  # type: ignore[arg-type]
    assert {name: one.values for name, one in metrics_of([blind]).items()} == {"seconds_per_iteration": (1.5,)}
    assert metrics_of([]) == {}
