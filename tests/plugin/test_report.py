"""``--moetier-report`` on traces: figures of hit rates and their numbers, and what is said where there are none."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from pytest_moetier.routing import MODELS
from pytest_moetier.simulate import simulate, workload
from pytest_moetier.trace.batch import merge
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.records import Trace
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace

Bench = Callable[..., pytest.RunResult]

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "fixtures" / "traces" / "moevm-lab.jsonl"
MODEL, LAYERS, EXPERTS = "olmoe-1b-7b", 16, 64
BUDGETS = [4, 8, 16, 32]
POLICIES = ["belady", "lru", "lfu-perfect", "static"]
LEGEND = {"Belady (offline optimum)", "LRU", "LFU (perfect)", "static (frequency, preloaded)"}
FIGURES = [f"hit_rates-{MODEL}.png", f"hit_rates-{MODEL}.svg", "hit_rates.json"]
FILES = [*FIGURES, "index.html", "report.md", "results.json"]


@pytest.fixture
def run(bench: Bench, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Run one routing finding as it is shipped, in a folder of its own, with a report."""
    monkeypatch.delenv("MOETIER_TRACES", raising=False)
    for name in ("test_routing.py", "bounds.yaml"):
        shutil.copy(ROOT / "bench" / name, pytester.path / name)
    (pytester.path / "test_capacity.py").unlink()
    return lambda *args: bench("-k", "zipf_slope", "--moetier-refuted=report", "--moetier-report=out", *args)


@pytest.fixture
def traces(tmp_path: Path) -> dict[str, Path]:
    """Two domains of a known model, synthetic and short."""
    made = {domain: synth_trace(MODEL, domain=domain, iterations=30) for domain in ("prose", "code")}
    return written(tmp_path, made)


def written(folder: Path, made: dict[str, Trace]) -> dict[str, Path]:
    paths = {domain: folder / f"{domain}.jsonl" for domain in made}
    for domain, trace in made.items():
        write_trace(trace, paths[domain])
    return paths


def given(paths: dict[str, Path]) -> list[str]:
    return [f"--moetier-trace={domain}={path}" for domain, path in paths.items()]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def figures(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(folder).items() if name in FIGURES}


def numbers(folder: Path) -> list[dict[str, Any]]:
    document = json.loads((folder / "hit_rates.json").read_text())
    assert document["schema_version"] == 1
    return document["figures"]


def texts(path: Path) -> list[str]:
    """Return the words of an SVG, which must be well-formed."""
    root = ET.fromstring(path.read_bytes())  # noqa: S314 - our own file
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return [(one.text or "").strip() for one in root.iter("{http://www.w3.org/2000/svg}text")]


def by_hand(paths: Sequence[Path], policy: str, budget: int) -> list[float]:
    """Return what the simulation itself says of each trace."""
    works = [workload(load_trace(path)) for path in paths]
    return [simulate(one, [policy], [f"{budget}/layer"], allocation="layer")[0].hit_rate for one in works]


def test_every_number_of_a_figure_is_the_simulations(
    run: Bench, traces: dict[str, Path], pytester: pytest.Pytester
) -> None:
    result = run(*given(traces))
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"report: hit rates of {MODEL}: out/[*]"])
    out = pytester.path / "out"
    assert sorted(contents(out)) == FILES
    (figure,) = numbers(out)
    points = figure["points"]
    assert [(one["policy"], one["budget_experts_per_layer"]) for one in points] == [
        (policy, budget) for policy in POLICIES for budget in BUDGETS
    ]
    for one in points:
        rates = by_hand(list(traces.values()), one["policy"], one["budget_experts_per_layer"])
        assert one["by_domain"] == dict(zip(traces, rates, strict=True))
        assert (one["mean"], one["min"], one["max"]) == (fmean(rates), min(rates), max(rates))
        assert one["budget_bytes"] is None
    assert len({one["mean"] for one in points}) > len(BUDGETS)


def test_the_numbers_say_what_they_rest_on(run: Bench, traces: dict[str, Path], pytester: pytest.Pytester) -> None:
    run(*given(traces))
    (figure,) = numbers(pytester.path / "out")
    assert (figure["model"], figure["files"]) == (MODEL, FIGURES[1::-1])
    assert (figure["layers"], figure["experts"], figure["k"]) == (LAYERS, EXPERTS, 8)
    assert (figure["allocation"], figure["semantics"], figure["order"]) == ("layer", "per-access", ["ascending id"])
    assert figure["synthetic"] is True
    assert figure["expert_bytes"] is None
    for one, (domain, path) in zip(figure["domains"], traces.items(), strict=True):
        assert (one["subject"], one["domain"], one["origin"]) == (domain, domain, "given")
        assert one["fingerprint"] == load_trace(path).fingerprint
        assert one["window"] == {"name": "fair", "warm": 18, "end": 30}


def test_the_drawing_names_policies_units_and_a_synthetic_origin(
    run: Bench, traces: dict[str, Path], pytester: pytest.Pytester
) -> None:
    run(*given(traces))
    out = pytester.path / "out"
    found = texts(out / f"hit_rates-{MODEL}.svg")
    assert set(found) >= LEGEND
    assert f"{MODEL} (synthetic): {LAYERS} layers, E = {EXPERTS}, k = 8" in found
    assert {"cache budget (experts per layer)", "hit rate (share of expert reads)"} <= set(found)
    assert [one for one in found if one in {str(budget) for budget in BUDGETS}] == [str(one) for one in BUDGETS]
    assert any("mean of 2 domains" in one and "per-access" in one and "ascending id" in one for one in found)
    assert (out / f"hit_rates-{MODEL}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_same_traces_give_the_same_bytes_whatever_the_users_settings(
    run: Bench, traces: dict[str, Path], pytester: pytest.Pytester
) -> None:
    run(*given(traces))
    first = figures(pytester.path / "out")
    shutil.rmtree(pytester.path / "out")
    pytester.path.joinpath("matplotlibrc").write_text("font.size: 30\nsvg.fonttype: path\naxes.grid: False\n")
    run(*given(traces))
    assert figures(pytester.path / "out") == first
    assert sorted(first) == FIGURES


def test_the_users_matplotlib_is_left_as_it_was(run: Bench, traces: dict[str, Path], pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("matplotlibrc").write_text("font.size: 30\n")
    pytester.makeconftest(
        "import json, sys\nimport matplotlib\n\n"
        "def settings():\n"  # asking for the backend would choose one, with pyplot
        "    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != 'backend'}\n\n"
        "before = settings()\n\n"
        "def pytest_unconfigure(config):\n"
        "    found = [settings() == before, before['font.size'], 'matplotlib.pyplot' in sys.modules]\n"
        "    open('state.json', 'w').write(json.dumps(found))\n"
    )
    run(*given(traces))
    assert json.loads(pytester.path.joinpath("state.json").read_text()) == [True, 30, False]
    assert sorted(contents(pytester.path / "out")) == FILES


def test_a_budget_is_in_bytes_where_the_trace_states_its_experts_size(
    run: Bench, tmp_path: Path, pytester: pytest.Pytester
) -> None:
    sizes = tuple(10**6 * (one + 1) for one in range(LAYERS))
    trace = replace(synth_trace(MODEL, iterations=30), expert_bytes=sizes)
    run(*given(written(tmp_path, {"prose": trace})))
    (figure,) = numbers(pytester.path / "out")
    assert figure["expert_bytes"] == list(sizes)
    assert {one["budget_experts_per_layer"]: one["budget_bytes"] for one in figure["points"]} == {
        budget: budget * 136_000_000 for budget in BUDGETS
    }
    found = texts(pytester.path / "out" / f"hit_rates-{MODEL}.svg")
    assert {f"cache budget (GB, all {LAYERS} layers)", "experts per layer", "0.54", "1.1", "2.2", "4.4"} <= set(found)
    assert any(one.startswith("one domain;") for one in found)


def test_a_budget_is_in_bytes_where_the_model_is_known(run: Bench, tmp_path: Path, pytester: pytest.Pytester) -> None:
    run(*given(written(tmp_path, {"prose": synth_trace("kimi-k3", iterations=5)})))
    (figure,) = numbers(pytester.path / "out")
    each = MODELS["kimi-k3"].expert_bytes
    assert figure["points"][-1]["budget_experts_per_layer"] == 512
    assert figure["points"][-1]["budget_bytes"] == 512 * 92 * each
    assert "827" in texts(pytester.path / "out" / "hit_rates-kimi-k3.svg")


def test_each_model_has_a_figure_of_its_own_and_an_unknown_one_is_named_by_its_dimensions(
    run: Bench, traces: dict[str, Path], pytester: pytest.Pytester
) -> None:
    trace = load_trace(RECORDED)
    run(*given(traces | {"recorded": RECORDED}))
    known, unknown = numbers(pytester.path / "out")
    assert known["model"] == MODEL
    assert unknown["model"] == f"own-{len(trace.layers)}x{trace.n_experts}-k{trace.k}"
    assert unknown["synthetic"] is False
    found = texts(pytester.path / "out" / f"hit_rates-{unknown['model']}.svg")
    assert not [one for one in found if "synthetic" in one]


def test_traces_of_one_model_whose_experts_differ_in_size_do_not_share_a_figure(
    run: Bench, tmp_path: Path, pytester: pytest.Pytester
) -> None:
    trace = synth_trace(MODEL, iterations=30)
    made = {name: replace(trace, expert_bytes=(size,) * LAYERS) for name, size in (("q4", 4 << 20), ("q8", 8 << 20))}
    run(*given(written(tmp_path, made)))
    found = numbers(pytester.path / "out")
    assert [one["model"] for one in found] == [MODEL, f"{MODEL}-2"]
    assert [[each["subject"] for each in one["domains"]] for one in found] == [["q4"], ["q8"]]


def test_merged_streams_are_drawn_apart_though_they_cannot_be_studied(
    run: Bench, traces: dict[str, Path], tmp_path: Path, pytester: pytest.Pytester
) -> None:
    path = tmp_path / "merged.jsonl"
    write_trace(merge([load_trace(one) for one in traces.values()]).trace, path)
    run(*given(traces | {"both": path})).assert_outcomes(skipped=2, errors=1)
    alone, together = numbers(pytester.path / "out")
    assert [each["subject"] for each in alone["domains"]] == list(traces)
    assert (together["model"], together["domains"][0]["subject"]) == (f"{MODEL}-batch", "both")
    for one in together["points"]:
        assert [one["mean"]] == by_hand([path], one["policy"], one["budget_experts_per_layer"])


def test_a_trace_that_cannot_be_read_is_left_out_and_named(
    run: Bench, traces: dict[str, Path], tmp_path: Path, pytester: pytest.Pytester
) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text("no trace\n")
    result = run(*given(traces | {"broken": broken}))
    result.stdout.fnmatch_lines(["report: broken is left out: *broken.jsonl*"])
    assert [each["subject"] for each in numbers(pytester.path / "out")[0]["domains"]] == list(traces)


def test_a_trace_too_short_for_the_window_is_left_out_and_named(
    run: Bench, traces: dict[str, Path], tmp_path: Path, pytester: pytest.Pytester
) -> None:
    short = written(tmp_path, {"short": synth_trace(MODEL, iterations=1)})
    result = run(*given(traces | short))
    result.stdout.fnmatch_lines(["report: short is left out: *shorter than the fair window*"])
    (figure,) = numbers(pytester.path / "out")
    assert [one["subject"] for one in figure["domains"]] == list(traces)
    shutil.rmtree(pytester.path / "out")
    alone = run(*given(short))
    alone.stdout.fnmatch_lines(["report: short is left out: *", "report: of * claims 0 hold, 0 do not: out/index.html"])
    assert sorted(contents(pytester.path / "out")) == FILES[3:]


def test_a_session_without_findings_on_traces_writes_nothing_and_says_so(run: Bench, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine="def test_mine():\n    pass\n")
    result = run("test_mine.py", "-k", "mine")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["report: nothing is written to out: no finding ran here; next: *"])
    assert not (pytester.path / "out").exists()
    collected = run("--collect-only", "-q")
    assert "report:" not in collected.stdout.str()


def test_the_ini_twin_draws_and_says_nothing_to_an_unrelated_session(
    bench: Bench, run: Bench, traces: dict[str, Path], pytester: pytest.Pytester
) -> None:
    del run
    pytester.makepyfile(test_mine="def test_mine():\n    pass\n")
    ini = ("-o", "moetier_report=there")
    assert "report:" not in bench("test_mine.py", *ini).stdout.str()
    assert bench("-k", "zipf_slope", "--moetier-refuted=report", *ini, *given(traces)).ret == 0
    assert sorted(contents(pytester.path / "there")) == FILES


def test_nothing_of_matplotlib_is_imported_without_the_option(
    bench: Bench, run: Bench, traces: dict[str, Path], pytester: pytest.Pytester
) -> None:
    del run
    pytester.makeconftest(
        "import sys\n\ndef pytest_unconfigure(config):\n"
        "    found = [one for one in sys.modules if one.startswith('matplotlib')]\n"
        "    open('modules.txt', 'w').write(repr(found))\n"
    )
    bench("-k", "zipf_slope", "--moetier-refuted=report", *given(traces)).assert_outcomes(passed=0, skipped=2)
    assert pytester.path.joinpath("modules.txt").read_text() == "[]"


@pytest.mark.parametrize("name", ["matplotlib", "jinja2"])
def test_without_what_it_draws_with_the_session_is_refused_with_one_line(
    run: Bench, traces: dict[str, Path], pytester: pytest.Pytester, name: str
) -> None:
    pytester.makepyfile(hiding=f"import sys\n\nsys.modules['{name}'] = None\n")
    result = run("-p", "hiding", *given(traces))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [one for one in result.errlines if one]
    assert line == (
        f"ERROR: pytest-moetier: --moetier-report draws with matplotlib and jinja2, of which {name} cannot be found;"
        " expected the extra `report`; next: pip install 'pytest-moetier[report]'"
    )
    assert not (pytester.path / "out").exists()


def test_a_broken_matplotlib_costs_the_figures_alone(
    run: Bench, traces: dict[str, Path], pytester: pytest.Pytester
) -> None:
    pytester.mkpydir("matplotlib").joinpath("__init__.py").write_text("raise ImportError('no such symbol')\n")
    pytester.syspathinsert()
    result = run("--moetier-json=verdicts.json", *given(traces))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(
        ["verdicts: 2 not_examined", "ERROR: --moetier-report out was not written: ImportError: no such symbol"]
    )
    assert len(json.loads(pytester.path.joinpath("verdicts.json").read_text())["results"]) == 2


@pytest.mark.parametrize(("folder", "why"), [("taken", "it is no folder"), ("taken/in", "*taken is no folder")])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(
    run: Bench, traces: dict[str, Path], pytester: pytest.Pytester, folder: str, why: str
) -> None:
    pytester.path.joinpath("taken").write_text("a file")
    result = run(f"--moetier-report={folder}", *given(traces))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert not [one for one in result.outlines if "test session starts" in one]
    said = f"ERROR: pytest-moetier: --moetier-report {folder} cannot be written: {why}; expected a folder*; next: *"
    result.stderr.fnmatch_lines([said])


def test_a_folder_that_may_not_be_written_is_refused_before_anything_runs(
    run: Bench, traces: dict[str, Path], pytester: pytest.Pytester
) -> None:
    closed = pytester.mkdir("closed")
    closed.chmod(0o555)
    if os.access(closed, os.W_OK):
        pytest.skip("this user may write anywhere (CAP_DAC_OVERRIDE); to run it: setpriv --bounding-set -dac_override")
    result = run("--moetier-report=closed/in", *given(traces))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *closed/in cannot be written: *closed may not be written to; *"])


def test_folders_above_are_made_and_other_files_are_left(
    run: Bench, traces: dict[str, Path], pytester: pytest.Pytester
) -> None:
    deep = pytester.path / "a" / "b"
    run("--moetier-report=a/b", *given(traces))
    assert sorted(contents(deep)) == FILES
    (deep / "mine.txt").write_text("mine")
    (deep / FILES[0]).write_bytes(b"old")
    run("--moetier-report=a/b", *given(traces))
    assert sorted(contents(deep)) == sorted([*FILES, "mine.txt"])
    assert (deep / FILES[0]).read_bytes() != b"old"


def test_what_cannot_be_written_at_the_end_is_named_and_the_figures_stay_on_the_terminal(
    run: Bench, traces: dict[str, Path], pytester: pytest.Pytester
) -> None:
    pytester.path.joinpath("out", "hit_rates.json").mkdir(parents=True)
    result = run(*given(traces))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(
        [
            "routing: traces (synthetic)",
            "ERROR: --moetier-report out was not written: *hit_rates.json is no plain file*",
        ]
    )
    assert not [one for one in result.outlines if one.startswith("report:")]
