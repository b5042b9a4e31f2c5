"""``moetier trace`` and ``moetier locality``: text for people, one JSON object for programs, and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pytest_moetier.cli import main
from pytest_moetier.trace import load
from pytest_moetier.trace.checks import listing
from pytest_moetier.trace.formats import READERS
from pytest_moetier.trace.load import load_selections, load_trace
from pytest_moetier.trace.locality import locality
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_npy, write_trace

FIXTURES = Path(__file__).parents[2] / "fixtures" / "traces"
Out = pytest.CaptureFixture[str]


def said(capsys: Out, *words: object, status: int = 0) -> str:
    assert main(list(map(str, words))) == status
    return capsys.readouterr().out


def answer(capsys: Out, *words: object, status: int = 0) -> dict:
    found: dict = json.loads(said(capsys, *words, "--json", status=status))
    return found


def test_info_tells_both_denominators_the_order_and_the_prompt(capsys: Out) -> None:
    text = said(capsys, "trace", "info", FIXTURES / "paper.jsonl", "--experts", 16)
    assert "2 layers x 16 experts, k = 4, ids " in text
    assert "iterations: 6 (normal 4, spec_accept 1, spec_fallback 1)" in text
    assert "accepted tokens: 7" in text
    assert "10.7 per iteration, 9.1 per accepted token" in text
    prompt = said(capsys, "trace", "info", FIXTURES / "bigmoe.route.csv")
    assert "prefill kept apart: 1 engine calls, 3 positions" in prompt


def test_a_clean_file_ends_with_0_and_a_contaminated_one_with_1(capsys: Out) -> None:
    clean = FIXTURES / "speculative.jsonl"
    assert said(capsys, "trace", "check", clean) == f"{clean}: clean\n"
    spoiled = FIXTURES / "contaminated-re-prefill.jsonl"
    text = said(capsys, "trace", "check", spoiled, "--experts", 32, status=1)
    assert text.startswith(f"{spoiled}: 1 found\n  found: re-prefill: 8 passes")
    assert "--on re-prefill=" in text


def test_a_refused_file_does_not_keep_the_others_from_being_checked(capsys: Out) -> None:
    refused, clean = FIXTURES / "contaminated-strided-view.jsonl", FIXTURES / "speculative.jsonl"
    found = answer(capsys, "trace", "check", refused, clean, status=1)["files"]
    assert "strided" in found[0]["refused"]
    assert found[1] == {"file": str(clean), "refused": "", "findings": [], "warnings": []}


def test_files_are_held_against_each_other(capsys: Out) -> None:
    paths = [FIXTURES / f"contaminated-step-0-{one}.jsonl" for one in "ab"]
    for path in paths:
        said(capsys, "trace", "check", path, "--experts", 32)
    found = answer(capsys, "trace", "check", *paths, "--experts", 32, status=1)["files"]
    assert [[one["check"] for one in file["findings"]] for file in found] == [["identical-step-0"]] * 2


def test_an_action_is_taken_as_asked_and_an_unknown_one_is_refused(capsys: Out) -> None:
    spoiled = FIXTURES / "contaminated-draft-layer.jsonl"
    info = answer(capsys, "trace", "info", spoiled, "--experts", 32, "--on", "draft-layer=drop")
    assert info["layers"] == [1, 2]
    assert info["findings"][0]["check"] == "draft-layer"
    for word in ("draft-layer", "draft-layer=burn", "nothing=keep"):
        assert main(["trace", "info", str(spoiled), "--on", word]) == 2
        assert "expected" in capsys.readouterr().err


def test_checks_and_formats_are_listed(capsys: Out) -> None:
    checks = answer(capsys, "trace", "check", "--list")["checks"]
    assert [one["name"] for one in checks] == [row[0] for row in listing()]
    formats = answer(capsys, "trace", "formats")["formats"]
    assert {one["name"] for one in formats} == set(READERS)
    assert all(one["what"] for one in formats)
    assert len(said(capsys, "trace", "formats").splitlines()) == len(READERS)


def test_check_without_a_file_says_what_it_wants(capsys: Out) -> None:
    assert main(["trace", "check"]) == 2
    assert "at least one FILE" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.jsonl.zst"])
def test_a_converted_trace_is_the_same_trace(capsys: Out, tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    said(capsys, "trace", "convert", FIXTURES / "paper.jsonl", out, "--experts", 16)
    assert load_trace(out).fingerprint == load_trace(FIXTURES / "paper.jsonl", n_experts=16).fingerprint


def test_converting_says_what_the_format_cannot_hold(capsys: Out, tmp_path: Path) -> None:
    text = said(capsys, "trace", "convert", FIXTURES / "paper.jsonl", tmp_path / "t.npy", "--experts", 16)
    assert "warning: " in text
    assert np.load(tmp_path / "t.npy").shape == (8, 2, 4)  # four normal, an accept's two, a fallback's two
    assert main(["trace", "convert", str(FIXTURES / "paper.jsonl"), str(tmp_path / "t.xlsx")]) == 2
    assert ".npy" in capsys.readouterr().err


def test_merged_streams_have_both_denominators_and_can_be_written(capsys: Out, tmp_path: Path) -> None:
    paths = []
    for domain in ("prose", "code"):
        trace = synth_trace(layers=2, iterations=60 if domain == "prose" else 40, domain=domain)
        paths.append(tmp_path / f"{domain}.jsonl")
        write_trace(trace, paths[-1])
    found = answer(capsys, "trace", "merge", *paths, "--out", tmp_path / "m.jsonl")
    assert (found["streams"], found["iterations"], found["left_out_iterations"]) == (2, 40, [20, 0])
    assert found["synthetic"]
    assert found["deduplication"] == found["reads"] / found["union_reads"] > 1
    merged = load_trace(tmp_path / "m.jsonl")
    assert (merged.n_iterations, merged.accepted_tokens) == (40, found["accepted_tokens"])
    assert merged.n_accesses == found["union_reads"]
    assert "deduplication" in said(capsys, "trace", "merge", *paths)


def test_streams_of_different_models_are_not_merged(capsys: Out) -> None:
    assert main(["trace", "merge", str(FIXTURES / "speculative.jsonl"), str(FIXTURES / "t-layer.jsonl")]) == 2
    assert "16" in (text := capsys.readouterr().err)
    assert "48" in text


def test_locality_has_a_row_per_statistic_and_says_what_is_synthetic(capsys: Out, tmp_path: Path) -> None:
    paths = [tmp_path / f"{domain}.jsonl" for domain in ("prose", "math")]
    for path in paths:
        write_trace(synth_trace(layers=3, iterations=40, domain=path.stem), path)
    text = said(capsys, "locality", *(f"my-{path.stem}={path}" for path in paths))
    assert "(synthetic)" in text
    assert "order within a pass: ascending id" in text
    assert "my-prose" in text.split("Zipf slope")[0]
    found = answer(capsys, "locality", *paths, "--jaccard-top", 8)
    assert [one["name"] for one in found["traces"]] == ["prose", "math"]
    assert found["jaccard_top"] == 8
    (pair,) = found["jaccard"]
    assert 0 < pair["jaccard"] < 1


def test_prefill_enters_statistics_only_when_asked(capsys: Out) -> None:
    path = FIXTURES / "moevm-lab.jsonl"
    rows = {phase: answer(capsys, "locality", path, "--experts", 16, "--phase", phase) for phase in ("decode", "all")}
    passes = {phase: found["traces"][0]["positions"] for phase, found in rows.items()}
    assert passes["decode"] != passes["all"]
    assert main(["locality", str(FIXTURES / "speculative.jsonl"), "--phase", "prefill"]) == 2
    assert "no prefill" in capsys.readouterr().err


def test_a_large_array_in_place_gives_the_figures_of_the_parsed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = synth_trace("qwen3-30b-a3b", layers=4, iterations=50)
    path = tmp_path / "t.npy"
    write_npy(trace, path)
    (parsed,) = load_selections([path], n_experts=128)
    monkeypatch.setattr(load, "IN_PLACE_BYTES", 1)
    (in_place,) = load_selections([path], n_experts=128)
    assert isinstance(in_place.selections.ids, np.memmap)
    assert in_place.warnings == (
        "the array is used in place: only ids out of range and repeated within a pass are checked",
    )
    one, other = locality(parsed.selections), locality(in_place.selections)
    assert (one.counts == other.counts).all()
    assert (one.shared == other.shared).all()
    assert one.zipf_slope == other.zipf_slope


def test_a_generator_report_holds_each_published_figure_against_what_is_reached(capsys: Out) -> None:
    found = answer(capsys, "trace", "synth", "deepseek-v3", "--report")
    assert found["synthetic"]
    by_name = {one["value"]: one for one in found["figures"]}
    assert by_name["zipf_slope"]["target"] == "between 0.86 and 0.93"
    assert by_name["zipf_slope"]["source"].startswith("paper section 3")
    assert set(by_name["zipf_slope"]["achieved"]) == {"prose", "code", "math", "chat"}
    for one in found["figures"]:
        word, low, *rest = one["target"].split()
        if word == "between":
            assert one["met"] == all(float(low) <= value <= float(rest[-1]) for value in one["achieved"].values())
    text = said(capsys, "trace", "synth", "deepseek-v3", "--report")
    assert f"of {len(found['figures'])} published figures met" in text


def test_options_may_stand_before_and_after_the_file(capsys: Out, tmp_path: Path) -> None:
    words = ("trace", "synth", "kimi-k3")
    options = ("--layers", 1, "--iterations", 3)
    said(capsys, *words, *options, tmp_path / "a.jsonl")
    said(capsys, *words, tmp_path / "b.jsonl", *options)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_synth_wants_a_file_or_a_report(capsys: Out) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["trace", "synth", "kimi-k3"])
    assert ended.value.code == 2
    assert "out" in capsys.readouterr().err
    assert main(["trace", "synth", "gemma-4-26b-a4b", "--report"]) == 2
    assert "no published figures" in capsys.readouterr().err
