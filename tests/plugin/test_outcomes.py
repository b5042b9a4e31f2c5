"""Verdicts in pytest's own terms, measured on a real small pool under a real wall."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Bench = Callable[..., pytest.RunResult]
Verdicts = Callable[[], dict[str, dict]]

CELL = "test_capacity[C30pct-cgroup-mglru_host]"
ONE_CELL = (
    "--moetier-capacity=30%",
    "--moetier-mechanism=cgroup",
    "--moetier-rounds=1",
    "--moetier-iterations=12",
    "--moetier-threads=2",
    "--moetier-seed=1",
    "--moetier-json=verdicts.json",
)
IMPOSSIBLE = """
format: moetier-bounds/1
bounds:
  - {id: impossible, value: device_bytes, max: 1, source: "a test of refutation", needs: []}
"""


@pytest.fixture
def run(bench: Bench, small_pool: Path) -> Bench:
    """Run the bench's one cell on the small pool."""

    def call(*args: str) -> pytest.RunResult:
        return bench(f"--moetier-pool={small_pool}", *ONE_CELL, *args)

    call.write = bench.write  # type: ignore[attr-defined]
    return call


def test_a_proved_cell_within_its_bounds_passes_with_its_whole_proof(run: Bench, verdicts: Verdicts) -> None:
    result = run("-k", "test_capacity[")
    result.assert_outcomes(passed=1, deselected=1)
    cell = verdicts()[CELL]
    assert cell["verdict"] == "supported"
    states = {one["name"]: one["state"] for one in cell["proof"][0]}
    assert "broken" not in states.values()
    for name in (
        "limit_read_back",
        "wall_reached",
        "charged_at_entry",
        "stamps",
        "device_two_witnesses",
        "belady_floor",
    ):
        assert states[name] == "held", (name, cell["proof"][0])


def test_the_header_and_the_table_name_what_was_measured(run: Bench) -> None:
    result = run("-k", "test_capacity[")
    result.stdout.fnmatch_lines(["moetier: *kernel*", "moetier: pool*trace synthetic*", "moetier: rounds 1, seed 1*"])
    result.stdout.fnmatch_lines(["capacity (synthetic trace, synthetic pool)", "*C30pct-cgroup-mglru_host*supported*"])


def test_a_refuted_bound_fails_and_says_value_bound_and_source(run: Bench, verdicts: Verdicts) -> None:
    run.write(bounds=IMPOSSIBLE)  # type: ignore[attr-defined]
    result = run("-k", "test_capacity[")
    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.fnmatch_lines(["*device_bytes is *, expected at most 1 (a test of refutation)*"])
    assert verdicts()[CELL]["verdict"] == "refuted"


def test_a_refuted_bound_is_only_shown_when_asked(run: Bench, verdicts: Verdicts) -> None:
    run.write(bounds=IMPOSSIBLE)  # type: ignore[attr-defined]
    result = run("-k", "test_capacity[", "--moetier-refuted=report", "-v")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*REFUTED*"])
    assert verdicts()[CELL]["verdict"] == "refuted"


def test_a_wrong_byte_makes_the_run_invalid_and_it_is_not_stored(
    run: Bench, verdicts: Verdicts, spoiled_pool: Path, pytester: pytest.Pytester
) -> None:
    result = run("-k", "test_capacity[", f"--moetier-pool={spoiled_pool}", "--benchmark-autosave", "-v")
    assert result.ret == 10
    result.stdout.fnmatch_lines(["*INVALID*", "*layer*expert*", "*1 invalid*"])
    assert verdicts()[CELL]["verdict"] == "invalid"
    assert verdicts()[CELL]["metrics"] == {}
    stored = [json.loads(path.read_text())["benchmarks"] for path in pytester.path.glob(".benchmarks/*/*.json")]
    assert all(not one for one in stored)


def test_times_and_metrics_are_stored_as_plain_json(run: Bench, pytester: pytest.Pytester) -> None:
    run("-k", "test_capacity[", "--benchmark-autosave").assert_outcomes(passed=1, deselected=1)
    (path,) = pytester.path.glob(".benchmarks/*/*.json")
    (stored,) = json.loads(path.read_text(), parse_constant=pytest.fail)["benchmarks"]
    moetier = stored["extra_info"]["moetier"]
    assert moetier["schema_version"] == 2
    assert moetier["cell"]["id"] == "C30pct-cgroup-mglru_host"
    assert moetier["context"]["synthetic_trace"] is True
    seconds = moetier["metrics"]["seconds_per_iteration"]
    assert seconds["unit"] == "s/iteration"
    assert stored["stats"]["mean"] == pytest.approx(seconds["values"][0])
    assert all(isinstance(value, float) for metric in moetier["metrics"].values() for value in metric["values"])


def test_a_second_session_compares_itself_with_the_first(run: Bench) -> None:
    first = run("-k", "test_capacity[", "--benchmark-autosave", "--moetier-compare")
    first.stdout.fnmatch_lines(["compare: no stored session with metrics*"])
    second = run("-k", "test_capacity[", "--benchmark-autosave", "--moetier-compare")
    second.stdout.fnmatch_lines(["this session / 0001", "  C30pct-cgroup-mglru_host *x *cannot tell"])


def test_another_plan_is_not_compared(run: Bench) -> None:
    run("-k", "test_capacity[", "--benchmark-autosave")
    result = run("-k", "test_capacity[", "--moetier-iterations=10", "--moetier-compare")
    said = "another plan (* then, * now), iterations (* then, 10 now)"
    result.stdout.fnmatch_lines([f"not compared: C30pct-cgroup-mglru_host: {said}"])


def test_learning_writes_a_profile_whose_bounds_are_then_judged(
    run: Bench, verdicts: Verdicts, pytester: pytest.Pytester
) -> None:
    run("-k", "test_capacity[", "--moetier-learn=host.yaml").assert_outcomes(passed=1, deselected=1)
    assert "learned" in pytester.path.joinpath("host.yaml").read_text()
    result = run("-k", "test_capacity[", "--moetier-profile=host.yaml")
    name = pytester.path.joinpath("host.yaml").read_text().partition("name: ")[2].splitlines()[0]
    result.stdout.fnmatch_lines([f"moetier: rounds 1*profile {name}"])
    assert json.loads(pytester.path.joinpath("verdicts.json").read_text())["profile"] == name
    learned = [one for one in verdicts()[CELL]["bounds"] if one["id"].startswith("learned.")]
    assert {one["id"].rpartition(".")[2] for one in learned} == {
        "device_bytes",
        "amplification",
        "seconds_per_iteration",
    }


def without_bounds(profile: Path) -> None:
    """Keep the known refutations alone: a small cell's own figures vary more than the learned margins."""
    text = profile.read_text()
    profile.write_text(text.partition("bounds:")[0] + "bounds: []\nknown:" + text.partition("known:")[2])


def test_a_learned_refutation_is_expected_afterwards(run: Bench, pytester: pytest.Pytester) -> None:
    run.write(bounds=IMPOSSIBLE)  # type: ignore[attr-defined]
    run("-k", "test_capacity[", "--moetier-learn=host.yaml").assert_outcomes(failed=1, deselected=1)
    without_bounds(pytester.path / "host.yaml")
    run("-k", "test_capacity[", "--moetier-profile=host.yaml").assert_outcomes(xfailed=1, deselected=1)


def test_another_refutation_of_the_same_test_still_fails(run: Bench, pytester: pytest.Pytester) -> None:
    run.write(bounds=IMPOSSIBLE)  # type: ignore[attr-defined]
    run("-k", "test_capacity[", "--moetier-learn=host.yaml")
    without_bounds(pytester.path / "host.yaml")
    run.write(bounds=IMPOSSIBLE.replace("id: impossible", "id: another"))  # type: ignore[attr-defined]
    run("-k", "test_capacity[", "--moetier-profile=host.yaml").assert_outcomes(failed=1, deselected=1)


def test_an_expected_refutation_that_no_longer_holds_is_xpassed(run: Bench, pytester: pytest.Pytester) -> None:
    run.write(bounds=IMPOSSIBLE)  # type: ignore[attr-defined]
    run("-k", "test_capacity[", "--moetier-learn=host.yaml")
    without_bounds(pytester.path / "host.yaml")
    run.write()  # type: ignore[attr-defined]
    run("-k", "test_capacity[", "--moetier-profile=host.yaml").assert_outcomes(xpassed=1, deselected=1)


def test_a_profile_of_another_host_is_named_and_not_applied(run: Bench) -> None:
    result = run("-k", "test_capacity[", "--moetier-profile=gh200")
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["note: profile gh200 is not applied: *"])


def test_what_the_host_cannot_enforce_is_skipped_with_the_way_out(run: Bench, verdicts: Verdicts) -> None:
    result = run("-k", "test_capacity[", "--moetier-mechanism=memboot", "-rs")
    result.assert_outcomes(skipped=1, deselected=1)
    result.stdout.fnmatch_lines(["*not booted with mem=*next: boot with*"])
    assert verdicts()["test_capacity[C30pct-memboot-mglru_host]"]["verdict"] == "not_examined"


def test_a_balloon_below_the_reserve_is_skipped(run: Bench) -> None:
    result = run("-k", "test_capacity[", "--moetier-mechanism=balloon", "-rs")
    result.assert_outcomes(skipped=1, deselected=1)
    result.stdout.fnmatch_lines(["*balloon would leave the host*reserve*virtual machine*"])


def test_a_capacity_over_the_hosts_ram_is_skipped(run: Bench) -> None:
    result = run("-k", "test_capacity[", "--moetier-capacity=100TB", "-rs")
    result.assert_outcomes(skipped=1, deselected=1)
    result.stdout.fnmatch_lines(["*this host has*of RAM*"])


def test_a_capacity_below_one_iteration_is_warned_of_with_the_token_cycle_floor(run: Bench) -> None:
    result = run("-k", "test_capacity[", "--moetier-capacity=4MB")
    result.stdout.fnmatch_lines(["warning: C4MB*token-cycle floor*"])


def test_a_missing_pool_is_one_clear_message(bench: Bench) -> None:
    result = bench("--moetier-pool=/nonexistent/pool", *ONE_CELL, "-k", "test_capacity[")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*/nonexistent/pool*moetier pool create*"])
    assert "Traceback" not in result.stdout.str()


def test_without_the_benchmark_plugin_everything_but_history_works(run: Bench, verdicts: Verdicts) -> None:
    run("-k", "test_capacity[", "-p", "no:benchmark").assert_outcomes(passed=1, deselected=1)
    assert verdicts()[CELL]["verdict"] == "supported"


@pytest.mark.parametrize(
    ("argument", "outcomes"),
    [
        ("--benchmark-disable", {"passed": 2}),
        ("--benchmark-only", {"passed": 1, "skipped": 1}),
        ("--benchmark-skip", {"passed": 1, "skipped": 1}),
    ],
)
def test_pytest_benchmarks_own_switches_do_what_they_say(run: Bench, argument: str, outcomes: dict[str, int]) -> None:
    run(argument).assert_outcomes(**outcomes)


def test_x_stops_measuring_at_the_first_unproved_run(run: Bench, spoiled_pool: Path) -> None:
    result = run("-x", f"--moetier-pool={spoiled_pool}", "--moetier-capacity=30%,40%,50%", "-v")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*stopping after 1 failures*"])
    said = result.stderr.str() + result.stdout.str()
    assert said.count(": measuring the cold factor") == 1


def test_a_test_without_a_bound_is_not_examined_and_never_supported(run: Bench, verdicts: Verdicts) -> None:
    run.write(bounds=IMPOSSIBLE.partition("bounds:")[0] + "bounds: []\n")  # type: ignore[attr-defined]
    run("-k", "test_capacity[").assert_outcomes(skipped=1, deselected=1)
    assert verdicts()[CELL]["verdict"] == "not_examined"
    assert "no bound holds here" in verdicts()[CELL]["reason"]


def test_a_finding_over_several_cells_runs_last(run: Bench) -> None:
    result = run("-v", "--moetier-capacity=30%,60%")
    lines = [line for line in result.outlines if "::test_" in line and "%]" in line]
    assert "test_all" in lines[-1]
