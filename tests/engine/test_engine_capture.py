"""The captured choices are a trace: whole, the prompt apart, and marked as synthetic where the weights are random."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_moetier.cli import main
from pytest_moetier.engine.abi import VERSION
from pytest_moetier.engine.capture import capture, to_trace
from pytest_moetier.engine.lab import EngineLab
from pytest_moetier.errors import HarnessError, InputError
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.write import write_trace

sys.path.insert(0, str(Path(__file__).parent))
from real_engine import ASK, lab_of

WAIT = "200"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineLab]:
    with lab_of(tmp_path_factory.mktemp("capture")) as (found, _):
        yield found


def test_a_trace_holds_every_choice_of_the_decode_and_the_prompt_apart(lab: EngineLab, tmp_path: Path) -> None:
    found = capture(lab, ASK, pairs=1)
    run, trace = found.runs[0][0], found.trace
    assert run.choices is not None
    assert run.ids == found.runs[0][1].ids
    assert found.overhead > 0
    manifest = lab.pool.manifest
    assert (trace.n_iterations, trace.n_records) == (ASK.tokens - 1, (ASK.tokens - 1) * len(manifest.layers))
    assert trace.synthetic
    assert "random weights" in trace.source
    for layer in manifest.layers:
        rows = ~run.choices.prefill & (run.choices.layer == layer)
        assert np.array_equal(trace.passes(layer), run.choices.experts[rows])
    assert trace.prefill is not None
    last = manifest.layers[-1]
    assert [len(trace.prefill.passes(layer)) for layer in manifest.layers] == [
        1 if layer == last else len(ASK.prompt) for layer in manifest.layers
    ]
    write_trace(trace, tmp_path / "t.jsonl")
    again = load_trace(tmp_path / "t.jsonl")
    assert again.fingerprint == trace.fingerprint
    assert again.synthetic
    assert {one.check for one in again.findings} <= {"pruned-prefill"}  # a fact of the engine, told as it is


def test_without_choices_or_a_decoded_token_there_is_no_trace(lab: EngineLab) -> None:
    run = lab.run(lab.plain_arm(), ASK)
    with pytest.raises(HarnessError, match="captured no choices"):
        to_trace(run, lab.pool.manifest)
    single = lab.run(lab.plain_arm(), replace(ASK, tokens=1, capture=True))
    with pytest.raises(InputError, match="1 token was generated, chosen by the prompt's own pass"):
        to_trace(single, lab.pool.manifest)


def test_a_model_is_written_captured_and_compared_from_the_command_line(
    lab: EngineLab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del lab  # it skips where nothing can be measured
    model, image, trace = tmp_path / "m.gguf", tmp_path / "image", tmp_path / "t.jsonl"
    ask = ["--prompt-ids", "5,6,7,8", "--tokens", "10", "--threads", "1", "--wait", WAIT, "--json"]
    assert main(["engine", "model", "tiny", str(model), "--arch", "qwen3moe", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["synthetic"] is True
    assert main(["pool", "create", str(model), str(image)]) == 0
    capsys.readouterr()
    assert main(["engine", "capture", str(image), *ask, "-o", str(trace)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["iterations"], told["synthetic"], len(told["ids"])) == (9, True, 10)
    assert load_trace(trace).fingerprint == told["fingerprint"]
    assert main(["engine", "ab", str(image), *ask, "--pairs", "2", "--capacity", "400%"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["same_tokens"], told["proved"], told["synthetic"], len(told["pairs"])) == (True, True, True, 2)
    assert {pair["admit"]["sha256"] for pair in told["pairs"]} == {pair["drop"]["sha256"] for pair in told["pairs"]}
    assert sorted(pair["admit"]["order"] < pair["drop"]["order"] for pair in told["pairs"]) == [False, True]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", "hello"], "no vocabulary"),
        (["--prompt-ids", "5;6"], "--prompt-ids '5;6'"),
        (["--prompt-ids", "5", "--tokens", "0"], "0 tokens are to be generated"),
        (["--prompt-ids", "5", "--context", "99999"], "a context of 99999 tokens"),
    ],
)
def test_what_cannot_be_captured_is_one_line_and_exit_status_2(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("xllamacpp")
    assert main(["engine", "model", "tiny", str(tmp_path / "m.gguf")]) == 0
    capsys.readouterr()
    out = ["-o", str(tmp_path / "t.jsonl"), "--wait", WAIT]
    assert main(["engine", "capture", str(tmp_path / "m.gguf"), *words, *out]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "t.jsonl").exists()


def test_the_engine_is_checked_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xllamacpp")
    pytest.importorskip("gguf")
    assert main(["engine", "check", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["version"], told["backend"]) == (VERSION, "CPU")
    assert told["compared"] > 0
