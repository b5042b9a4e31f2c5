"""Whether this build of the engine does what we believe: told on a tiny model before anything is trusted.

Choices are compared with a recomputation from the router's logits, and the first layer's with a third witness that
never saw the engine: our own arithmetic on the model's file. Tokens must come out the same twice.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pytest_moetier.engine import abi, synthetic
from pytest_moetier.engine.job import GATES, Job, Slabs
from pytest_moetier.errors import HarnessError, InputError, UnsupportedHostError
from pytest_moetier.pool.checkpoint import map_checkpoint

_TOKENS = 6
_SECONDS = 120
_KINDS = {"input": InputError, "unsupported": UnsupportedHostError}


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What was found out about the engine.

    Attributes:
        version: of xllamacpp.
        backend: the device that it computes on.
        device: what that device says it is.
        system_info: the instruction sets it was built for and found.
        compared: choices that equal their recomputation.
    """

    version: str
    backend: str
    device: str
    system_info: str
    compared: int


def job_for(model: Path, *, prompt: tuple[int, ...] | str = synthetic.PROMPT, tokens: int = _TOKENS) -> Job:
    """Return the plain job for a model in place, with one thread: barriers of several cost more than a tiny model.

    Raises:
        InputError: no such model, or its experts follow no rule.
    """
    pool = map_checkpoint(model)
    layers = []
    for layer in pool.layers:
        slabs = pool.slabs(layer)
        if slabs is None:
            raise InputError(f"layer {layer} of {model} is not one tensor a part", "merged tensors", "convert it again")
        layers.append(
            Slabs(layer, *zip(*((one.file, one.offset, one.stride, one.length) for one in slabs), strict=True))
        )
    folder = model if model.is_dir() else model.parent
    files = tuple(str(folder / file.path) for file in pool.files)
    return Job(files, tuple(layers), pool.k, pool.experts, prompt, tokens, threads=1)


def run_plainly(job: Job) -> tuple[Mapping[str, Any], ...]:
    """Run a job through all gates at once, without a scope, and return its events.

    Raises:
        MoetierError: what the worker said, or how it ended.
    """
    with tempfile.TemporaryDirectory(prefix="moetier-engine-") as folder:
        path = Path(folder) / "job.json"
        job.write(path)
        argv = [sys.executable, "-m", "pytest_moetier.engine.worker", str(path)]
        try:
            ended = subprocess.run(argv, input=b"go\n" * len(GATES), capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise HarnessError(f"the engine did not end within {_SECONDS} s", "a second") from error
    events = tuple(json.loads(line) for line in ended.stdout.splitlines())
    last = events[-1] if events else {"event": "nothing"}
    if last["event"] == "error":
        raise _KINDS.get(last["kind"], HarnessError)(last["seen"], last["expected"], last["do"])
    if ended.returncode or last["event"] != "done":
        words = ended.stderr.decode(errors="replace").strip().splitlines()[-3:]
        raise HarnessError(f"the engine ended with {ended.returncode}: {' | '.join(words)}", "0, and its last event")
    return events


@cache
def check_engine() -> EngineFacts:
    """Run the self-test, once in this process, and return what the engine is.

    Raises:
        UnsupportedHostError: there is no engine, another build, or a system library is missing.
        HarnessError: it does not do what we believe.
    """
    abi.find_library()
    with tempfile.TemporaryDirectory(prefix="moetier-engine-") as folder:
        model = synthetic.write_model(Path(folder) / "tiny.gguf", synthetic.TINY)
        job = replace(job_for(model, prompt=synthetic.PROMPT), capture=True, logits=True)
        first, second = run_plainly(job), run_plainly(replace(job, capture=False, logits=False))
        expected = synthetic.first_choice(model, synthetic.TINY, synthetic.PROMPT[0])
    loaded, checked = (next(one for one in first if one["event"] == name) for name in ("loaded", "choices_checked"))
    ids = [[one["id"] for one in events if one["event"] == "token"] for events in (first, second)]
    if ids[0] != ids[1]:
        raise HarnessError(f"the engine chose {ids[0]} and then {ids[1]}", "the same tokens twice")
    if checked["different"] or not checked["compared"]:
        raise HarnessError(
            f"{checked['different']} of {checked['compared']} choices differ from the router's logits", "none"
        )
    layers = next(one for one in first if one["event"] == "choice")["layers"]
    seen = frozenset(next(one for one in layers if one["layer"] == 0)["experts"][0])
    if seen != expected:
        raise HarnessError(f"layer 0 chose {sorted(seen)} for the first token", f"{sorted(expected)}, as computed here")
    return EngineFacts(
        loaded["version"], loaded["backend"], loaded["device"], loaded["system_info"], checked["compared"]
    )
