"""``moetier plan``: text for people, one JSON object for programs, and one message for what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_moetier.advice import load_advice, noisy_oracle, recall
from pytest_moetier.cli import main
from pytest_moetier.trace.records import Trace
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace

Out = pytest.CaptureFixture[str]


@pytest.fixture
def traced(tmp_path: Path) -> tuple[Path, Trace]:
    trace = synth_trace(layers=4, iterations=60)
    write_trace(trace, tmp_path / "trace.jsonl")
    return tmp_path / "trace.jsonl", trace


def said(capsys: Out, *words: object) -> str:
    assert main(["plan", *map(str, words)]) == 0
    return capsys.readouterr().out


def refused(capsys: Out, *words: object) -> str:
    assert main(["plan", *map(str, words)]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.count("\n") == 1
    return out.err


@pytest.mark.parametrize("name", ["oracle", "previous-token", "markov", "noisy-oracle"])
def test_what_is_predicted_is_what_info_tells_of_the_file(
    capsys: Out, traced: tuple[Path, Trace], tmp_path: Path, name: str
) -> None:
    path, trace = traced
    out = tmp_path / "advice.jsonl.gz"
    made = json.loads(said(capsys, "predict", path, out, "--predictor", name, "--json"))
    assert made == json.loads(said(capsys, "info", out, "--trace", path, "--json"))
    found = recall(load_advice(out, trace), trace)
    assert (made["kind"], made["oracle"], made["synthetic"]) == (name.replace("-", "_"), name == "oracle", True)
    assert (made["recall"], made["precision"]) == (found.overall, found.precision)
    assert made["recall_by_layer"] == found.by_layer.tolist()
    assert made["trace"] == trace.fingerprint
    assert made["label"] == ("oracle" if name == "oracle" else f"{name.replace('-', ' ')}, recall {found.overall:.3f}")
    text = said(capsys, "info", out, "--trace", path)
    assert f"{out}: {made['label']}: " in text
    assert f"by layer {found.by_layer.min():.3f} to {found.by_layer.max():.3f}" in text
    assert "(synthetic)" in text


def test_the_table_has_a_line_for_each_layer(capsys: Out, traced: tuple[Path, Trace], tmp_path: Path) -> None:
    path, trace = traced
    text = said(capsys, "predict", path, tmp_path / "a", "--predictor", "previous-token", "--layers")
    rows = [line.split() for line in text.splitlines()[-5:]]
    found = recall(load_advice(tmp_path / "a", trace), trace)
    assert rows[0] == ["layer", "recall", "hits", "advised", "chosen"]
    columns = (found.hits, found.advised, found.chosen)
    assert rows[1:] == [
        [str(layer), f"{found.by_layer[layer]:.3f}", *(str(column[layer]) for column in columns)] for layer in range(4)
    ]


def test_recall_and_seed_are_a_noisy_oracles(capsys: Out, traced: tuple[Path, Trace], tmp_path: Path) -> None:
    path, trace = traced
    (tmp_path / "recalls").write_text("0 0.5\n0.25 1\n")
    words = ("predict", path, tmp_path / "a", "--predictor", "noisy-oracle", "--seed", 5)
    made = json.loads(said(capsys, *words, "--recall-file", tmp_path / "recalls", "--json"))
    assert made["recall_by_layer"] == [0.0, pytest.approx(0.5, abs=0.05), pytest.approx(0.25, abs=0.05), 1.0]
    said(capsys, *words, "--recall", "0.5")
    assert load_advice(tmp_path / "a", trace).experts.tolist() == noisy_oracle(trace, 0.5, 5).experts.tolist()


def test_layers_below_a_recall_are_withheld_and_named(capsys: Out, traced: tuple[Path, Trace], tmp_path: Path) -> None:
    path, _ = traced
    (tmp_path / "recalls").write_text("0.1 0.5 0.2 0.9")
    words = ("predict", path, tmp_path / "a", "--predictor", "noisy-oracle", "--recall-file", tmp_path / "recalls")
    made = json.loads(said(capsys, *words, "--min-recall", 0.35, "--json"))
    assert (made["withheld"], made["recall_by_layer"][0], made["recall_by_layer"][2]) == ([0, 2], 0.0, 0.0)
    assert made["records_advised"] == made["records"] / 2
    assert "withheld: 2 of 4 layers: 0, 2" in said(capsys, "info", tmp_path / "a", "--trace", path)
    nothing = json.loads(said(capsys, *words, "--min-recall", 1, "--json"))
    assert (nothing["recall"], nothing["precision"], nothing["recall_where_advised"]) == (0.0, None, None)


def test_what_cannot_be_is_refused_in_one_message(capsys: Out, traced: tuple[Path, Trace], tmp_path: Path) -> None:
    path, _ = traced
    noisy = ("predict", path, tmp_path / "a", "--predictor", "noisy-oracle")
    assert "a recall of 1.5; expected 0 to 1" in refused(capsys, *noisy, "--recall", "1.5")
    assert "a recall of nan" in refused(capsys, *noisy, "--recall", "nan")
    assert "least recall of 2" in refused(capsys, *noisy, "--min-recall", "2")
    assert "an oracle labelled as a predictor" in refused(capsys, *noisy, "--recall", "1")
    oracle = ("predict", path, tmp_path / "a", "--predictor", "oracle")
    assert "a recall or seed for the predictor oracle" in refused(capsys, *oracle, "--seed", 1)
    for content, message in (("0.5", "1 recalls; expected one, or one for each"), ("0.5 x", "word 1 is 'x'")):
        (tmp_path / "recalls").write_text(content)
        assert message in refused(capsys, *noisy, "--recall-file", tmp_path / "recalls")
    (tmp_path / "recalls").write_bytes(b"\xff\xfe")
    assert "recalls: no UTF-8 text" in refused(capsys, *noisy, "--recall-file", tmp_path / "recalls")
    assert "none: No such file" in refused(capsys, *noisy, "--recall-file", tmp_path / "none")
    assert not (tmp_path / "a").exists()


def test_neither_a_link_nor_the_trace_is_written_over(capsys: Out, traced: tuple[Path, Trace], tmp_path: Path) -> None:
    path, _ = traced
    before = path.read_bytes()
    (tmp_path / "link").symlink_to(path)
    for out, message in ((tmp_path / "link", "is the trace itself"), (path, "is the trace itself")):
        assert message in refused(capsys, "predict", path, out, "--predictor", "oracle")
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert "is a symbolic link" in refused(capsys, "predict", path, tmp_path / "link", "--predictor", "oracle")
    assert path.read_bytes() == before
    assert not (tmp_path / "elsewhere").exists()


def test_info_refuses_advice_of_another_trace(capsys: Out, traced: tuple[Path, Trace], tmp_path: Path) -> None:
    path, _ = traced
    said(capsys, "predict", path, tmp_path / "a", "--predictor", "oracle")
    write_trace(synth_trace(layers=4, iterations=60, seed=1), tmp_path / "other.jsonl")
    assert "it was made for the trace" in refused(capsys, "info", tmp_path / "a", "--trace", tmp_path / "other.jsonl")
    assert "moetier plan formats" in refused(capsys, "info", path, "--trace", path)


def test_the_format_is_described(capsys: Out) -> None:
    assert said(capsys, "formats").startswith("moetier-advice/1: JSON lines")
    assert json.loads(said(capsys, "formats", "--json"))["formats"][0]["name"] == "moetier-advice/1"
