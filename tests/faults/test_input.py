"""Traces, capacities and plans that cannot be used."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_moetier.errors import InputError
from pytest_moetier.plan import build_plan, read_plan, write_plan
from pytest_moetier.pool.opened import open_pool
from pytest_moetier.replayer import Replayer, ReplayOptions
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A sound trace of 20 iterations for the small pool."""
    path = tmp_path / "good.jsonl"
    write_trace(synth_trace("kimi-k3", layers=2, experts=128, k=8, iterations=20, seed=1), path)
    return path


def test_a_missing_trace_is_refused_before_the_host_is_taken(host: Any, plain_pool: Path) -> None:
    ended = host.pytest(plain_pool, "--moetier-trace=prose=/nonexistent.jsonl")
    assert "moetier trace synth" in ended.refused("trace /nonexistent.jsonl: No such file", ret=4)
    assert "waiting for the host" not in ended.text


def test_more_iterations_than_the_trace_has_are_refused(host: Any, plain_pool: Path, trace: Path) -> None:
    ended = host.pytest(plain_pool, f"--moetier-trace={trace}", "--moetier-iterations=30")
    assert "1 to 20" in ended.refused("30 iterations asked for")


BAD = {
    "empty": (b"", "holds no record"),
    "junk": (bytes(range(128, 256)) * 9, "of no known trace format \\(binary, beginning 80 81 82"),
    "null": (b"null\n", "of no known trace format \\(it begins 'null'\\)"),
    "foreign": (b'{"a": 1}\n', "of no known trace format"),
    "gzip": (gzip.compress(b"x" * 999)[:-8] + bytes(8), "is damaged: CRC check failed"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_trace_is_named_with_what_was_seen(tmp_path: Path, name: str) -> None:
    data, said = BAD[name]
    path = tmp_path / f"{name}.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"{name}\.jsonl.*{said}.*; expected .*; next: .*moetier trace synth"):
        load_trace(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"experts": [200, 1, 2, 3, 4, 5, 6, 7]}, "expert 200 of 128 experts.*line 3.*; expected ids below 128"),
        ({"experts": [-1]}, r"line 3: experts is \[-1\]"),
        ({"experts": [70000]}, r"line 3: experts is \[70000\]"),
        ({"iteration": -4}, "line 3: iteration is -4"),
        ({"layer": "x"}, "line 3: layer is 'x'"),
        ({"type": "odd"}, "line 3: type is 'odd'"),
        ({"phase": None}, "line 3: phase is None"),
    ],
)
def test_a_record_that_breaks_a_rule_is_named(trace: Path, change: dict[str, object], said: str) -> None:
    lines = trace.read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), **change})
    trace.write_text("\n".join(lines))
    with pytest.raises(InputError, match=rf"good\.jsonl.*{said}.*; next: "):
        load_trace(trace)


def test_a_cut_off_trace_says_what_was_kept(host: Any, trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:2000])
    ended = host.moetier("trace", "info", str(trace))
    assert ended.ret == 0
    ended.said(r"warning: line \d+ is cut off and was left out")
    ended.said(r"\d+ whole iterations")


def test_a_trace_of_another_model_says_which_pool_it_needs(plain_pool: Path) -> None:
    with open_pool(plain_pool) as pool:
        deep = synth_trace("kimi-k3", layers=4, experts=128, k=8, iterations=3, seed=1)
        with pytest.raises(InputError, match=r"the trace has 4 layers, the pool custom has 2; .*; next: create a pool"):
            build_plan(deep, pool.manifest)
        wide = synth_trace("kimi-k3", layers=2, experts=896, k=8, iterations=3, seed=1)
        with pytest.raises(InputError, match=r"expected an id below 128, .*; next: create a pool of the trace's model"):
            build_plan(wide, pool.manifest)


def test_capacities_over_the_pool_over_ram_and_below_one_iteration_each_say_so(host: Any, small_pool: Path) -> None:
    ended = host.pytest(small_pool, "--moetier-capacity=1GB,100TB,4MB")
    ended.refused("capacity 1GB is larger than the pool")
    ended.refused("capacity 100TB is 100 TB, this host has")
    said = ended.said(r"warning: C4MB[^\n]*")
    assert "below one iteration's working set (4.89 MB, the token-cycle floor)" in said
    # a host that reads or reclaims beside the run leaves the small cell not_examined
    assert re.search(r"(1 passed, 1 skipped|2 skipped), 1 error", ended.text), ended.text


@pytest.mark.parametrize("capacity", ["5q", "101%", ""])
def test_a_capacity_that_cannot_be_read_is_a_usage_error(host: Any, capacity: str) -> None:
    host.pytest("nowhere", "--collect-only", f"--moetier-capacity={capacity}").refused("ERROR: pytest-moetier: ", ret=4)


def test_a_plan_is_refused_wherever_it_is_cut_or_a_bit_of_it_is_turned(plain_pool: Path, tmp_path: Path) -> None:
    with open_pool(plain_pool) as pool:
        plan = build_plan(synth_trace("kimi-k3", layers=2, experts=128, k=8, iterations=3, seed=1), pool.manifest)
    path = tmp_path / "a.plan"
    write_plan(plan, path)
    whole = path.read_bytes()
    for length in (0, 7, 100, 160, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"plan \S+a\.plan: .*; expected .*; next: "):
            read_plan(path)
    for at in np.random.default_rng(1).integers(0, len(whole), 60):
        turned = bytearray(whole)
        turned[at] ^= 1 << (int(at) % 8)
        path.write_bytes(bytes(turned))
        with pytest.raises(InputError, match=r"plan \S+a\.plan: .*; expected .*; next: "):
            read_plan(path)


@pytest.mark.parametrize("kind", ["cut", "foreign", "turned", "missing", "folder"])
def test_the_replayer_refuses_a_bad_plan_in_one_message_and_is_gone(
    plain_pool: Path, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "a.plan"
    with open_pool(plain_pool) as pool:
        plan = build_plan(synth_trace("kimi-k3", layers=2, experts=128, k=8, iterations=3, seed=1), pool.manifest)
        write_plan(plan, path)
        whole = path.read_bytes()
        turned = bytearray(whole)
        turned[400] ^= 1
        if kind in {"missing", "folder"}:
            path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind != "missing":
            path.write_bytes({"cut": whole[:-100], "foreign": b"\x7fELF" * 99, "turned": bytes(turned)}[kind])
        with pytest.raises(InputError, match=r"a\.plan"):
            Replayer(ReplayOptions().argv(path, pool.root), pool.pass_fds)
