"""The routing findings through pytest: whose traces, which verdicts, and what is said of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace

Bench = Callable[..., pytest.RunResult]
Verdicts = Callable[[], dict[str, dict]]

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "fixtures" / "traces" / "moevm-lab.jsonl"
HEAVY = {"numpy", "yaml", "psutil", "orjson", "pytest_moetier._sim"}
JSON = "--moetier-json=verdicts.json"
SMALL = "olmoe-1b-7b"
"""The smallest of the models that are known."""


@pytest.fixture
def run(bench: Bench, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Run the routing findings as they are shipped, in a folder of their own."""
    monkeypatch.delenv("MOETIER_TRACES", raising=False)
    for name in ("test_routing.py", "bounds.yaml"):
        shutil.copy(ROOT / "bench" / name, pytester.path / name)
    (pytester.path / "test_capacity.py").unlink()
    return bench


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A trace of a known model, synthetic and short."""
    path = tmp_path / "small.jsonl"
    write_trace(synth_trace(SMALL, iterations=30), path)
    return path


def bounds(pytester: pytest.Pytester, *lines: str) -> None:
    text = "format: moetier-bounds/1\nbounds:\n" + "".join(f"  - {{{line}}}\n" for line in lines)
    pytester.path.joinpath("bounds.yaml").write_text(text)


def slope(low: float, cell: str = f"{SMALL}-*", more: str = "") -> str:
    return f'id: mine, value: zipf_slope, min: {low}, cell: "{cell}", source: "a test"{more}'


def ids(result: pytest.RunResult) -> list[str]:
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


def test_the_default_is_every_claim_on_four_models_and_four_domains(run: Bench) -> None:
    found = ids(run("--collect-only", "-q"))
    assert len([one for one in found if one.startswith("test_zipf_slope[")]) == 16
    assert "test_zipf_slope[kimi-k3-prose]" in found
    assert "test_domain_jaccard[deepseek-v3]" in found
    assert not [one for one in found if "=" in one or "recorded" in one]


def test_traces_are_selected_by_id(run: Bench) -> None:
    assert ids(run("--collect-only", "-q", "-k", "zipf_slope and qwen3 and code")) == [
        "test_zipf_slope[qwen3-30b-a3b-code]"
    ]


def test_collecting_imports_nothing_heavy_and_opens_no_trace(run: Bench, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import json, sys\n\ndef pytest_unconfigure(config):\n"
        "    open('modules.json', 'w').write(json.dumps(sorted(sys.modules)))\n"
    )
    result = run("--collect-only", "-q", "--moetier-trace=prose=/nonexistent/trace.jsonl", "-p", "no:hypothesispytest")
    assert result.ret == 0
    assert "test_zipf_slope[prose]" in ids(result)
    loaded = set(json.loads(pytester.path.joinpath("modules.json").read_text()))
    assert "pytest_moetier.routing" in loaded
    assert not loaded & HEAVY


def test_only_the_users_traces_are_judged_where_there_are_some(run: Bench, small: Path) -> None:
    result = run("--collect-only", "-q", "-k", "slope or jaccard", f"--moetier-trace=prose={small}")
    assert ids(result) == ["test_zipf_slope[prose]", "test_domain_jaccard[traces]"]


def test_domains_become_usable_and_distinct_ids(run: Bench, small: Path) -> None:
    given = [f"--moetier-trace={word}" for word in (f"a b={small}", f"a/b={small}", str(small))]
    found = ids(run("--collect-only", "-q", "-k", "zipf_slope", *given))
    assert found == ["test_zipf_slope[a_b]", "test_zipf_slope[a_b-2]", "test_zipf_slope[trace]"]


def test_a_bound_of_a_recognised_model_is_judged_and_the_origin_is_said(
    run: Bench, small: Path, verdicts: Verdicts, pytester: pytest.Pytester
) -> None:
    bounds(pytester, slope(0.1))
    result = run("-k", "zipf_slope", f"--moetier-trace=prose={small}", JSON)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["moetier: *1 trace (no pool*", f"moetier: traces prose: {small}", "routing: traces (synthetic)", "  prose *s"]
    )
    assert "pool " not in result.stdout.str().partition("test_routing.py")[0].replace("pool, device", "")
    (found,) = verdicts().values()
    assert (found["finding"], found["cell"], found["verdict"]) == ("routing", "prose", "supported")
    assert found["synthetic"] is True
    assert found["reason"].startswith("on a synthetic trace")


def test_the_verdict_carries_value_unit_and_accounting(run: Bench, small: Path, verdicts: Verdicts) -> None:
    run("-k", "accounting", f"--moetier-trace=prose={small}", JSON)
    (found,) = verdicts().values()
    assert found["proof"] == []
    reads = 16 * 8
    assert found["metrics"]["reads_per_iteration"] == {
        "unit": "experts/iteration",
        "better": "neither",
        "values": [reads],
    }
    (accounting,) = found["accounting"]
    trace = synth_trace(SMALL, iterations=30)
    assert accounting["fingerprint"] == trace.fingerprint
    assert accounting["reads"] == 30 * reads
    assert (accounting["iterations"], accounting["accepted_tokens"]) == (30, 30)
    assert accounting["order"] == "ascending id"
    assert accounting["trace_findings"] == [str(one) for one in trace.findings]
    assert (accounting["model"], accounting["origin"]) == (SMALL, "given")


def test_a_model_without_bounds_is_not_examined_and_its_values_are_shown(
    run: Bench, verdicts: Verdicts, pytester: pytest.Pytester
) -> None:
    bounds(pytester, slope(0.1))
    result = run("-k", "zipf_slope", f"--moetier-trace=prose={RECORDED}", JSON, "-rs")
    result.assert_outcomes(skipped=1)
    (found,) = verdicts().values()
    value = found["metrics"]["zipf_slope"]["values"][0]
    assert found["verdict"] == "not_examined"
    assert found["reason"].startswith(f"zipf_slope is {value:.6g}: no bound holds for a model of other dimensions")
    assert found["synthetic"] is False
    result.stdout.fnmatch_lines(["routing: traces (given)", f"  prose *{value:.3f}n"])


def test_a_refuted_bound_fails_or_is_shown_and_says_that_the_trace_is_synthetic(
    run: Bench, small: Path, pytester: pytest.Pytester
) -> None:
    bounds(pytester, slope(9))
    said = "refuted prose zipf_slope: zipf_slope is *, expected at least 9 (a test), on a synthetic trace*"
    failed = run("-k", "zipf_slope", f"--moetier-trace=prose={small}")
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["  prose *r", said])
    shown = run("-k", "zipf_slope", f"--moetier-trace=prose={small}", "--moetier-refuted=report", "-v")
    assert shown.ret == 0
    shown.stdout.fnmatch_lines(["*REFUTED*", said, "verdicts: 1 refuted"])


def test_a_bound_speaks_of_traces_as_long_as_those_of_its_source(
    run: Bench, small: Path, verdicts: Verdicts, pytester: pytest.Pytester
) -> None:
    bounds(pytester, slope(9, more=", iterations: [31, 40]"))
    run("-k", "zipf_slope", f"--moetier-trace=prose={small}", JSON)
    (found,) = verdicts().values()
    assert found["verdict"] == "not_examined"
    assert "the trace has 30 iterations, the source speaks of 31 to 40" in found["reason"]


def test_fewer_iterations_of_the_synthetic_traces_are_no_case_of_the_papers_bounds(
    run: Bench, verdicts: Verdicts
) -> None:
    result = run("-k", "qwen3-30b-a3b-prose and (slope or top8)", "--moetier-iterations=20", JSON)
    assert result.parseoutcomes()["skipped"] == 2
    assert {one["verdict"] for one in verdicts().values()} == {"not_examined"}
    shared = [line for line in result.outlines if line.startswith("not_examined ")]
    why = "the trace has 20 iterations, the source speaks of 360 to 440"
    assert shared == [f"not_examined qwen3-30b-a3b-prose (zipf_slope, top8_mass): {why}"]


def test_a_missing_trace_is_one_clear_message_before_any_test_runs(run: Bench) -> None:
    result = run("-k", "zipf_slope or reuse", "--moetier-trace=prose=/nonexistent/trace.jsonl")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if "nonexistent" in line]
    assert "trace /nonexistent/trace.jsonl: No such file; expected" in line
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


def test_a_trace_that_cannot_be_read_is_one_clear_message_when_a_test_runs(run: Bench, tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(bytes(range(128, 256)))
    result = run("-k", "zipf_slope", f"--moetier-trace=prose={tmp_path / 'junk'}")
    result.assert_outcomes(errors=1)
    assert "Traceback" not in result.stdout.str()
    result.stdout.fnmatch_lines(["*junk is of no known trace format*"])


def test_traces_of_several_models_are_no_domains_of_one(run: Bench, small: Path, verdicts: Verdicts) -> None:
    traces = (f"--moetier-trace=prose={small}", f"--moetier-trace=code={RECORDED}")
    run("-k", "jaccard", *traces, JSON).assert_outcomes(skipped=1)
    (found,) = verdicts().values()
    assert "the traces are of different models" in found["reason"]
    assert [one["subject"] for one in found["accounting"]] == ["prose", "code"]


def test_findings_over_domains_have_a_table_of_their_own_and_run_last(
    run: Bench, small: Path, pytester: pytest.Pytester
) -> None:
    bounds(pytester, f"id: mine, value: jaccard16_smallest, min: 1, cell: {SMALL}, source: a test")
    result = run("-v", f"--moetier-trace=prose={small}", f"--moetier-trace=code={small}")
    order = [line.partition("::")[2].partition("[")[0] for line in result.outlines if "test_routing.py::test_" in line]
    over = [f"test_{one}" for one in ("depth_union", "domain_jaccard", "crossover", "hit_rates")]
    over += [f"test_{one}" for one in ("lru_of_belady", "global_against_split", "batch4", "batch_hits")]
    assert order[-len(over) :] == over
    result.stdout.fnmatch_lines(["routing: over domains (synthetic)", "  traces *domain_jaccard *1.000s*supported"])


def test_recorded_traces_are_found_in_a_clone_of_their_repository(
    run: Bench, verdicts: Verdicts, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pytester.path / "clones/moevm-lab/benchmarks/reference/real-routing-olmoe-m1/traces"
    folder.mkdir(parents=True)
    shutil.copy(RECORDED, folder / "seed-17__python_code.trace.jsonl")
    monkeypatch.setenv("MOETIER_TRACES", str(pytester.path / "clones"))
    result = run("-k", "recorded and (slope or jaccard)", JSON)
    assert result.parseoutcomes()["skipped"] == 2
    result.stdout.fnmatch_lines(["moetier: traces recorded: recorded-olmoe-python_code"])
    found = verdicts()["test_zipf_slope[recorded-olmoe-python_code]"]
    assert found["accounting"][0]["origin"] == "recorded"
    assert found["accounting"][0]["experts"] == 64  # the table knows what the file does not state
    assert "test_domain_jaccard[recorded-olmoe]" in verdicts()


def test_statistics_are_stored_and_compared(run: Bench, small: Path, pytester: pytest.Pytester) -> None:
    args = ("-k", "accounting or slope", f"--moetier-trace=prose={small}", "--benchmark-autosave", "--moetier-compare")
    run(*args).stdout.fnmatch_lines(["compare: no stored session with metrics*"])
    (path,) = pytester.path.glob(".benchmarks/*/*.json")
    (stored,) = json.loads(path.read_text(), parse_constant=pytest.fail)["benchmarks"]
    info = stored["extra_info"]["moetier"]
    assert info["cell"] == {"id": "prose", "finding": "routing", "domain": "prose"}
    assert info["context"]["iterations"] == 30
    assert info["metrics"]["reuse_w1"]["unit"] == "share"
    assert stored["stats"]["rounds"] == 1
    run(*args).stdout.fnmatch_lines(["this session / 0001", "  prose *1.000x*same"])


def test_a_trace_of_another_length_is_not_compared(run: Bench, small: Path) -> None:
    args = ("-k", "accounting", f"--moetier-trace=prose={small}", "--benchmark-autosave", "--moetier-compare")
    run(*args)
    write_trace(synth_trace(SMALL, iterations=31), small)
    run(*args).stdout.fnmatch_lines(["not compared: prose: another iterations (30 then, 31 now)"])


def test_without_the_benchmark_plugin_everything_but_history_works(
    run: Bench, small: Path, verdicts: Verdicts, pytester: pytest.Pytester
) -> None:
    bounds(pytester, f"id: mine, value: iterations, min: 30, max: 30, cell: {SMALL}-prose, source: a test")
    run("-k", "accounting", f"--moetier-trace=prose={small}", "-p", "no:benchmark", JSON).assert_outcomes(passed=1)
    assert verdicts()["test_accounting[prose]"]["verdict"] == "supported"


def test_a_learned_refutation_is_expected_afterwards(run: Bench, small: Path, pytester: pytest.Pytester) -> None:
    bounds(pytester, slope(9))
    args = ("-k", "zipf_slope", f"--moetier-trace=prose={small}")
    run(*args, "--moetier-learn=host.yaml").assert_outcomes(failed=1)
    run(*args, "--moetier-profile=host.yaml").assert_outcomes(xfailed=1)


def test_workers_may_share_the_host_but_their_verdicts_are_not_in_one_process(
    run: Bench, small: Path, pytester: pytest.Pytester
) -> None:
    pytest.importorskip("xdist")
    bounds(pytester, slope(0.1))
    args = ("-k", "zipf_slope", f"--moetier-trace=prose={small}", "-n", "1")
    run(*args).assert_outcomes(passed=1)
    refused = run(*args, JSON)
    refused.assert_outcomes(errors=1)
    refused.stdout.fnmatch_lines(["*--moetier-json needs all verdicts in one process*next: run without -n"])


@pytest.mark.parametrize(("limit", "verdict"), [("0.1", "supported"), ("9", "refuted")])
def test_a_users_own_assertion_on_a_trace_is_its_bound(  # noqa: PLR0913, PLR0917
    run: Bench, small: Path, verdicts: Verdicts, pytester: pytest.Pytester, limit: str, verdict: str
) -> None:
    pytester.makepyfile(
        test_mine=f"def test_skewed(moetier_routing):\n    assert moetier_routing.locality.zipf_slope > {limit}\n"
    )
    run("test_mine.py", f"--moetier-trace=prose={small}", JSON)
    (found,) = verdicts().values()
    assert (found["finding"], found["cell"], found["verdict"]) == ("mine", "prose", verdict)
    assert found["accounting"][0]["iterations"] == 30
