"""``moetier simulate``: the table a user asks for in one command, and one JSON object for programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_moetier.cli import main
from pytest_moetier.simulate import POLICIES, batch_cost, diagnose, simulate, trained, workload
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.records import Trace
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace

FIXTURES = Path(__file__).parents[2] / "fixtures" / "traces"
KIMI = Path(os.environ.get("MOETIER_TRACES", "MOETIER_TRACES-is-not-set")) / "kimi-k3" / "expert_trace.bin"
Out = pytest.CaptureFixture[str]


def said(capsys: Out, *words: object, status: int = 0) -> str:
    assert main(["simulate", *map(str, words)]) == status
    return capsys.readouterr().out


def answer(capsys: Out, *words: object) -> dict:
    found: dict = json.loads(said(capsys, *words, "--json"))
    return found


@pytest.fixture
def domains(tmp_path: Path) -> dict[str, Path]:
    """Return the files of two domains of one synthetic model."""
    files = {}
    for name in ("prose", "code"):
        trace = synth_trace("qwen3-30b-a3b", iterations=60, layers=3, domain=name)
        files[name] = tmp_path / f"{name}.jsonl"
        write_trace(replace(trace, expert_bytes=(1000, 1000, 2000)), files[name])
    return files


def table(text: str, title: str) -> dict[str, list[str]]:
    """Return the rows of a printed table by their first word."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(title))
    block = lines[start : lines.index("", start) if "" in lines[start:] else len(lines)]
    return {line.split()[0]: line.split()[1:] for line in block[1:]}


def test_the_table_has_each_policy_at_each_budget(domains: dict[str, Path], capsys: Out) -> None:
    text = said(capsys, domains["prose"], "--budget", "8/layer,64/layer,25%")
    work = workload(load_trace(domains["prose"]))
    done = simulate(work, POLICIES, ["8/layer", "64/layer", "25%"])
    rows = table(text, "hit %")
    for policy in POLICIES:
        assert rows[policy] == [f"{100 * one.hit_rate:.1f}" for one in done if one.policy == policy]
    assert rows["held"] == ["24", "experts", "192", "experts", "128", "KB"]
    per_token = table(text, "missed bytes per accepted token")["lru"]
    assert len(per_token) == 6
    assert float(per_token[0]) == pytest.approx((done[0].miss_bytes_per_accepted_token or 0) / 1000, rel=0.01)


def test_the_header_states_everything_the_figures_depend_on(domains: dict[str, Path], capsys: Out) -> None:
    lines = said(capsys, domains["prose"], "--budget", "25%", "--semantics", "event-atomic").splitlines()
    assert lines[0].startswith("prose: ")
    assert lines[0].endswith(" (synthetic)")
    assert "3 layers" in lines[1]
    assert "128 experts, k 8: 384 experts, 512 KB; ids ascending id" in lines[1]
    assert lines[2] == "replay: event-atomic, global (one cache for all layers), decode alone"
    assert lines[3].startswith(
        "window fair: warmed on iterations 0 to 35, scored on iterations 36 to 59 of 60: 24 iter"
    )
    assert lines[4].startswith("one-token cycle: 24 experts (32 KB); global LRU hits exactly nothing below ")
    assert lines[5].startswith("static holds a table of the warm part of ")
    layered = said(capsys, domains["prose"], "--budget", "25%", "--allocation", "layer", "--table", "own")
    assert "replay: per-access, layer (3 caches of equal size), decode alone" in layered
    assert "(oracle)" in layered
    prompt = said(capsys, FIXTURES / "bigmoe.route.csv", "--budget", "25%", "--prefill", "before", "--window", "decode")
    assert "prompt before the decode" in prompt
    assert "window decode: warmed on the prompt, scored on iterations 0 to 4 of 5" in prompt


def test_the_json_holds_the_same_figures(domains: dict[str, Path], capsys: Out) -> None:
    found = answer(capsys, domains["prose"], "--policy", "lru,belady", "--budget", "64/layer", "--allocation", "layer")
    (file,) = found["files"]
    done = simulate(workload(load_trace(domains["prose"])), ["lru", "belady"], ["64/layer"], allocation="layer")
    assert file["outcomes"] == [one.as_json() for one in done]
    assert file["outcomes"][0]["hit_rate"] == done[0].hit_rate
    assert (file["semantics"], file["allocation"], file["synthetic"]) == ("per-access", "layer", True)
    assert file["window"] == {
        "name": "fair",
        "words": "fair: warmed on iterations 0 to 35, scored on iterations 36 to 59 of 60",
        "warm": 36,
        "end": 60,
        "of": 60,
    }
    (headroom,) = file["headroom"]
    assert headroom["of_misses"] == pytest.approx((done[0].misses - done[1].misses) / done[0].misses)
    assert headroom["points"] == pytest.approx(done[1].hit_rate - done[0].hit_rate)
    assert (found["off_domain"], found["batch"], file["diagnosis"]) == ([], [], [])


def test_without_sizes_misses_are_counted_in_experts(capsys: Out) -> None:
    words = (FIXTURES / "paper.jsonl", "--experts", 16, "--budget", "16", "--window", "cold", "--policy", "lru")
    text = said(capsys, *words)
    done = simulate(workload(load_trace(words[0], n_experts=16)), ["lru"], ["16"], window="cold")[0]
    assert (done.iterations, done.accepted_tokens) == (6, 7)
    assert table(text, "missed experts per iteration")["lru"] == [f"{done.misses / 6:.1f}"]
    assert table(text, "missed experts per accepted token")["lru"] == [f"{done.misses / 7:.1f}"]
    sized = said(capsys, *words, "--expert-bytes", "2MB,3MB")
    assert "missed bytes per iteration" in sized
    assert "pool: 2 layers" in sized
    assert "32 experts, 80 MB" in sized


def test_several_files_end_with_their_mean_and_range(domains: dict[str, Path], capsys: Out) -> None:
    text = said(capsys, *domains.values(), "--policy", "lru", "--budget", "25%")
    rates = [100 * simulate(workload(load_trace(path)), ["lru"], ["25%"])[0].hit_rate for path in domains.values()]
    assert table(text, "hit %, mean of 2 (range)")["lru"] == [
        f"{sum(rates) / 2:.1f}",
        f"({min(rates):.1f}-{max(rates):.1f})",
    ]


def test_the_diagnosis_is_a_table_and_a_sentence_for_each_budget(domains: dict[str, Path], capsys: Out) -> None:
    words = (domains["prose"], "--policy", "lru,belady", "--budget", "8/layer,64/layer")
    text = said(capsys, *words, "--diagnose")
    expected = diagnose(workload(load_trace(domains["prose"])), ["8/layer", "64/layer"])
    assert [line for line in text.splitlines() if line.startswith("lru at")] == [one.sentence for one in expected]
    found = answer(capsys, *words, "--diagnose")["files"][0]["diagnosis"]
    assert found == [one.as_json() for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert sum(one["shares"].values()) == pytest.approx(1)
        assert sum(one["misses"].values()) == other.outcome.misses


def test_tables_of_every_domain_are_tried_on_every_other(domains: dict[str, Path], capsys: Out) -> None:
    words = [f"{name}={path}" for name, path in domains.items()]
    text = said(capsys, *words, "--policy", "lru", "--budget", "25%", "--off-domain")
    assert "hit % at 25%, scored on" in text
    assert "*: an oracle, trained on the whole of the trace it is scored on" in text
    found = {
        (one["trained_on"], one["scored_on"]): one
        for one in answer(capsys, *words, "--policy", "lru", "--budget", "25%", "--off-domain")["off_domain"]
    }
    assert set(found) == {(one, other) for one in domains for other in domains}
    works = {name: workload(load_trace(path)) for name, path in domains.items()}
    off = simulate(works["code"], ["static"], ["25%"], table=trained(works["prose"]))[0]
    assert found["prose", "code"]["static"] == off.hit_rate
    assert not found["prose", "code"]["oracle"]
    assert found["code", "code"]["oracle"]
    assert found["code", "code"]["static"] > found["prose", "code"]["static"]


def test_a_table_of_another_file_is_used(domains: dict[str, Path], capsys: Out) -> None:
    words = ("--policy", "static", "--budget", "25%", "--table", domains["prose"])
    (file,) = answer(capsys, domains["code"], *words)["files"]
    table_ = trained(workload(load_trace(domains["prose"])))
    done = simulate(workload(load_trace(domains["code"])), ["static"], ["25%"], table=table_)[0]
    assert file["outcomes"][0]["hits"] == done.hits
    assert file["outcomes"][0]["table"] == table_.words


def test_a_batch_is_held_against_its_streams(domains: dict[str, Path], capsys: Out) -> None:
    text = said(capsys, *domains.values(), "--policy", "lru", "--budget", "25%", "--batch")
    (one,) = batch_cost([load_trace(path) for path in domains.values()], ["lru"], ["25%"])
    figures = (100 * one.single_hit_rate, 100 * one.batch.hit_rate, 100 * one.hit_loss)
    line = next(line for line in text.splitlines() if line.startswith("lru 25%"))
    assert line.split()[2:] == [*(f"{each:.1f}" for each in figures), f"{one.surcharge:.2f}"]
    assert "batch of 2 streams against each alone at the same budget, 24 iterations scored" in text
    (found,) = answer(capsys, *domains.values(), "--policy", "lru", "--budget", "25%", "--batch")["batch"]
    assert found["surcharge_per_accepted_token"] == one.surcharge
    assert len(found["singles"]) == 2


def test_a_batch_of_a_prompt_is_refused(domains: dict[str, Path], capsys: Out) -> None:
    assert main(["simulate", *map(str, domains.values()), "--batch", "--prefill", "before"]) == 2
    assert "has no prefill" in capsys.readouterr().err
    file = str(FIXTURES / "bigmoe.route.csv")
    assert main(["simulate", file, file, "--budget", "25%", "--batch", "--prefill", "before"]) == 2
    assert "--batch with --prefill before" in capsys.readouterr().err


def test_what_the_checks_found_is_said_on_stderr(capsys: Out) -> None:
    assert main(["simulate", str(FIXTURES / "bigmoe.route.csv"), "--budget", "25%"]) == 0
    seen = capsys.readouterr()
    assert "pruned-prefill" in seen.err
    assert "pruned-prefill" not in seen.out


@pytest.mark.skipif(not KIMI.is_file(), reason=f"no recorded trace: {KIMI} is not there (MOETIER_TRACES)")
def test_the_published_table_of_the_kimi_file_is_one_command(capsys: Out) -> None:
    slots = "455,911,1823,3647,7294,10941"
    text = said(capsys, KIMI, "--raw", "--policy", "lru,belady", "--budget", slots, "--window", "cold")
    rows = table(text, "hit %")
    assert rows["lru"] == ["36.2", "36.2", "36.2", "36.2", "49.2", "90.0"]
    assert rows["belady"] == ["39.4", "42.6", "49.0", "61.7", "84.6", "90.0"]


def long_trace() -> Trace:
    rng = np.random.default_rng(5)
    trace = synth_trace("kimi-k3", iterations=2, layers=1)
    n = 400_000
    return replace(
        trace,
        iteration=np.arange(n, dtype=np.uint32),
        layer=np.full(n, trace.layers[0], dtype=np.uint16),
        kind=np.zeros(n, dtype=np.uint8),
        offsets=np.arange(n + 1, dtype=np.uint64) * np.uint64(16),
        experts=np.argsort(rng.random((n // 100, 896)), axis=1)[:, :16]
        .astype(np.uint16)
        .repeat(100, axis=0)
        .reshape(-1),
        n_iterations=n,
        accepted_tokens=n,
    )


@pytest.mark.slow
def test_ctrl_c_ends_the_command_with_status_130(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    write_trace(long_trace(), file)
    code = (
        "import sys, pytest_moetier.simulate.policies as p; from pytest_moetier.cli import main\n"
        "run = p.Sweep.run\n"
        "p.Sweep.run = lambda *a: (sys.stderr.write('begun\\n'), sys.stderr.flush(), run(*a))[2]\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    budgets = ",".join(map(str, range(20, 890)))
    words = ("simulate", str(file), "--policy", "lfu,belady", "--budget", budgets)
    with subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        while child.stderr.readline() != "begun\n":
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read()
        assert child.wait(120) == 130
    assert "interrupted" in rest
    assert "(100%)" not in rest
