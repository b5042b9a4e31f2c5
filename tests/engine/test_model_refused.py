"""What the engine would die of is one message before it is loaded, and the worker's exit is 2."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moetier.engine.job import Job
from pytest_moetier.engine.selftest import job_for


def _refusal(job: Job, folder: Path) -> tuple[int, str, str]:
    job.write(folder / "job")
    argv = [sys.executable, "-m", "pytest_moetier.engine.worker", str(folder / "job")]
    ended = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    last = json.loads(ended.stdout.splitlines()[-1])
    assert last["event"] == "error", last
    return ended.returncode, last["kind"], f"{last['seen']}; expected {last['expected']}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": ()}, "the prompt is empty"),
        ({"tokens": 0}, "0 tokens are to be generated"),
        ({"context": 16, "tokens": 10}, "a prompt of 8 tokens and 10 to generate; expected together at most 16"),
        ({"context": 5000}, "a context of 5000 tokens; expected at most 4096"),
        ({"prompt": (1, 256)}, "the prompt has token 256; expected ids from 0 to 255"),
        ({"prompt": (-1,)}, "the prompt has token -1"),
        ({"prompt": "a text"}, "no vocabulary that makes ids of a text"),
        ({"experts": 16}, "has 8 experts a layer and uses 2; expected 16 and 2"),
        ({"k": 3}, "has 8 experts a layer and uses 2; expected 8 and 3"),
    ],
)
def test_a_job_that_cannot_be_run(tiny: Path, tmp_path: Path, change: dict[str, object], words: str) -> None:
    code, kind, said = _refusal(replace(job_for(tiny), **change), tmp_path)
    assert (code, kind) == (2, "input")
    assert words in said


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda data: data[: len(data) // 2], "it is truncated"),
        (lambda data: data[:200], "no header that the engine can read"),
        (lambda _data: b"not a model", "no header that the engine can read"),
        (lambda _data: b"", "no header that the engine can read"),
        (lambda data: data.replace(b"olmoe.expert_count", b"olmoe.expert_c0unt"), "has no olmoe.expert_count"),
        (lambda data: data.replace(b"olmoe.expert_used_c", b"olmoe.expert_used_x"), "expert_used_count is None"),
        (lambda data: data.replace(b"ffn_gate_inp", b"ffn_gate_xxx"), "has no router"),
        (lambda data: data.replace(b"general.architecture", b"general.architectare"), "names no architecture"),
        (lambda data: data.replace(b"olmoe.block_count", b"olmoe.block_c0unt"), "the engine does not load"),
    ],
    ids=["half", "header", "foreign", "empty", "dense", "no_k", "no_router", "no_name", "no_layers"],
)
def test_a_model_that_cannot_be_loaded(tiny: Path, tmp_path: Path, spoil: Callable[[bytes], bytes], words: str) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(spoil(tiny.read_bytes()))
    code, kind, said = _refusal(replace(job_for(tiny), files=(str(bad),)), tmp_path)
    assert (code, kind) == (2, "input")
    assert words in said
    assert "bad.gguf" in said


def test_a_missing_file_is_told(tiny: Path, tmp_path: Path) -> None:
    code, _, said = _refusal(replace(job_for(tiny), files=(str(tmp_path / "gone.gguf"),)), tmp_path)
    assert code == 2
    assert "gone.gguf cannot be read: No such file" in said


def test_a_policy_on_an_unmapped_model_is_told(tiny: Path, tmp_path: Path) -> None:
    code, kind, said = _refusal(replace(job_for(tiny), policy="willneed", load_mode="direct_io"), tmp_path)
    assert (code, kind) == (1, "harness")
    assert "policy willneed without mapped experts" in said


def test_an_abort_inside_the_engine_is_one_message() -> None:
    pytest.importorskip("xllamacpp")
    code = (
        "import ctypes; from pytest_moetier.engine import abi, llama, worker; voice = worker.Voice();"
        "library, log = abi.load_library(), llama.Log();"
        "kept = llama.start(library, log, lambda text: worker.aborted(voice, text));"
        "library.dll.ggml_abort(b'here.c', ctypes.c_int(1), b'it fell')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    last = json.loads(ended.stdout.splitlines()[-1])
    assert (ended.returncode, last["event"], last["kind"]) == (1, "error", "harness")
    assert "it fell" in last["seen"]
