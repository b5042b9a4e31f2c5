"""Trace files: readers are told by content, nothing is guessed silently, and a cut-off file says what was kept."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_moetier.errors import InputError
from pytest_moetier.trace.formats import READERS
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.records import Trace
from pytest_moetier.trace.source import Source
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace

FIXTURES = Path(__file__).parents[2] / "fixtures" / "traces"
RECORDED = Path(os.environ.get("MOETIER_TRACES", "MOETIER_TRACES-is-not-set")) / "olmoe-moevm-lab"


def same(one: Trace, other: Trace) -> bool:
    return one.fingerprint == other.fingerprint and (one.n_iterations, one.accepted_tokens, one.source) == (
        other.n_iterations,
        other.accepted_tokens,
        other.source,
    )


def test_our_format_keeps_types_order_and_counts() -> None:
    trace = load_trace(FIXTURES / "speculative.jsonl")
    assert trace.kind_counts() == {"normal": 17, "spec_accept": 1, "spec_fallback": 2}
    assert (trace.n_iterations, trace.accepted_tokens, trace.n_experts, trace.k) == (20, 21, 48, 4)
    assert trace.n_accesses == 3 * 4 * (17 + 2 + 4)
    assert trace.synthetic
    assert trace.warnings == ()


def test_moevm_lab_keeps_prefill_apart_and_score_order() -> None:
    trace = load_trace(FIXTURES / "moevm-lab.jsonl", n_experts=16)
    rows = [json.loads(line) for line in (FIXTURES / "moevm-lab.jsonl").read_text().splitlines()]
    assert trace.n_iterations == 6
    assert trace.prefill is not None
    assert trace.prefill.n_iterations == 3
    assert trace.experts[:4].tolist() == rows[6]["experts"]
    assert not trace.synthetic
    assert trace.warnings == ()


def test_experts_per_layer_that_the_file_does_not_state_are_a_warning() -> None:
    trace = load_trace(FIXTURES / "moevm-lab.jsonl")
    assert trace.warnings == (
        f"the file does not state the experts per layer; {trace.n_experts} is its highest id + 1",
    )


TRACES = st.builds(
    synth_trace,
    layers=st.integers(1, 4),
    iterations=st.integers(1, 30),
    seed=st.integers(0, 2**64 - 1),
    experts=st.just(12),
    k=st.integers(1, 6),
)


@settings(max_examples=20, deadline=None)
@given(trace=TRACES, name=st.sampled_from(["t.jsonl", "t.jsonl.gz"]))
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, trace: Trace, name: str) -> None:
    path = tmp_path_factory.mktemp("trace") / name
    write_trace(trace, path)
    back = load_trace(path)
    assert same(trace, back)
    assert back.warnings == ()


def test_prefill_survives_the_round_trip_and_gzip_bytes_repeat(tmp_path: Path) -> None:
    trace = load_trace(FIXTURES / "moevm-lab.jsonl")
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_trace(trace, tmp_path / name)
    back = load_trace(tmp_path / "a.jsonl.gz")
    assert back.prefill is not None
    assert trace.prefill is not None
    assert back.prefill.fingerprint == trace.prefill.fingerprint
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


@pytest.mark.parametrize(("fixture", "line", "iterations"), [("speculative.jsonl", 67, 19), ("moevm-lab.jsonl", 18, 5)])
def test_a_line_cut_in_two_is_named_and_whole_iterations_are_kept(
    tmp_path: Path, fixture: str, line: int, iterations: int
) -> None:
    data = (FIXTURES / fixture).read_bytes()
    (tmp_path / "cut").write_bytes(data[:-9])
    trace = load_trace(tmp_path / "cut")
    assert trace.n_iterations == iterations
    assert f"line {line} is cut off and was left out" in trace.warnings
    assert any(f"{iterations} whole iterations" in one for one in trace.warnings)


def test_a_file_cut_between_lines_is_noticed_too(tmp_path: Path) -> None:
    lines = (FIXTURES / "speculative.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "cut").write_bytes(b"".join(lines[:-4]))
    trace = load_trace(tmp_path / "cut")
    assert any("4 decode records early" in one for one in trace.warnings)
    assert trace.n_iterations == 19  # the last one, a fallback, lost two of its three layers


def test_a_cut_gzip_keeps_what_it_holds(tmp_path: Path) -> None:
    trace = synth_trace(layers=2, iterations=200)
    write_trace(trace, tmp_path / "t.jsonl.gz")
    data = (tmp_path / "t.jsonl.gz").read_bytes()
    (tmp_path / "cut.jsonl.gz").write_bytes(data[: len(data) // 2])
    back = load_trace(tmp_path / "cut.jsonl.gz")
    assert "gzip stream ends early" in back.warnings[0]
    assert 50 < back.n_iterations < 150
    assert (back.experts == trace.experts[: back.n_accesses]).all()


GOOD = '{"token":0,"layer":0,"experts":[1,2],"phase":"decode"}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no record"),
        ("[1, 2]\n", r"of no known trace format \(it begins '\[1, 2\]'\)"),
        ("not json\n{}\n", r"of no known trace format \(it begins 'not json'\)"),
        (f"{GOOD}[1, 2]\n", "line 2: a JSON list; expected one JSON object a line"),
        (f"{GOOD}not json\n{GOOD}", r"line 2: no JSON .*; expected one JSON object a line"),
        (f"{GOOD}not json", r"line 2: no JSON .*; expected one JSON object a line"),
        ('{"layer": 3, "count": 7}\n', r"no known trace format \(its first line has count, layer\)"),
        ('{"token":0,"layer":0,"experts":[1,"2"],"phase":"decode"}\n', r"line 1: experts is \[1, '2'\]"),
        ('{"token":0,"layer":0,"experts":[1,2],"phase":"warm"}\n', "line 1: phase is 'warm'"),
        ('{"token":-1,"layer":0,"experts":[1,2],"phase":"decode"}\n', "line 1: token is -1"),
        ('{"token":0,"layer":0,"experts":[1,2],"phase":"prefill"}\n', "no decode record"),
        ('{"token":0,"layer":0,"experts":[1,1],"phase":"decode"}\n', "expert 1 twice in one pass, layer 0, line 1"),
        ('{"type":"meta","format":"moetier-trace","version":2}\n', "version 2; expected version 1"),
    ],
)
def test_a_bad_file_is_one_clear_message(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_trace(path)


def test_an_unknown_type_in_our_format_names_its_line(tmp_path: Path) -> None:
    lines = (FIXTURES / "speculative.jsonl").read_text().splitlines()
    lines[4] = lines[4].replace('"type":"normal"', '"type":"maybe"')
    (tmp_path / "t").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="line 5: type is 'maybe'"):
        load_trace(tmp_path / "t")


def test_a_missing_file_an_unknown_format_and_a_damaged_gzip_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_trace(tmp_path / "none")
    with pytest.raises(InputError, match="no trace format 'csv'"):
        load_trace(FIXTURES / "moevm-lab.jsonl", "csv")
    packed = bytearray(gzip.compress(b'{"a": 1}\n' * 100))
    packed[12] ^= 0xFF
    (tmp_path / "bad.gz").write_bytes(packed)
    with pytest.raises(InputError, match=r"damaged|no JSON|holds no record"):
        load_trace(tmp_path / "bad.gz")


def test_each_reader_recognises_its_own_files_alone() -> None:
    for name, file in (("moetier", "speculative.jsonl"), ("moevm-lab", "moevm-lab.jsonl")):
        source = Source(FIXTURES / file)
        assert [one.name for one in READERS.values() if one.sniff(source)] == [name]


@pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recorded OLMoE traces at {RECORDED}")
@pytest.mark.parametrize(
    ("prompt", "overlap"),
    [
        ("domain_switch", 0.3943),
        ("math_reasoning", 0.4480),
        ("python_code", 0.4833),
        ("systems_en", 0.4599),
        ("systems_it", 0.4340),
    ],
)
def test_recorded_traces_have_their_published_overlap(prompt: str, overlap: float) -> None:
    trace = load_trace(RECORDED / f"seed-17__{prompt}.trace.jsonl")
    assert trace.prefill is not None
    assert (len(trace.layers), trace.n_experts, trace.k, trace.n_iterations) == (16, 64, 8, 16)
    shares = []
    for layer in trace.layers:
        rows = [set(row) for row in np.concatenate([trace.prefill.passes(layer), trace.passes(layer)]).tolist()]
        shares += [len(one & other) / trace.k for one, other in pairwise(rows)]
    assert round(float(np.mean(shares)), 4) == overlap


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_memory_is_bounded_by_the_result_and_not_by_the_file(tmp_path: Path, packed: bool) -> None:  # noqa: FBT001
    line = b'{"token":%d,"layer":%d,"experts":[%d,%d],"phase":"decode","note":"' + b"x" * 32_000 + b'"}\n'
    path = tmp_path / "t"
    with gzip.open(path, "wb", compresslevel=1) if packed else path.open("wb") as out:
        for row in range(2000):
            out.write(line % (row // 2, row % 2, row % 5, 5 + row % 7))
    load_trace(path, n_experts=12)
    tracemalloc.start()
    trace = load_trace(path, n_experts=12)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert trace.n_iterations == 1000
    assert peak < 8 << 20  # of 64 MB of text: some blocks of 1 MiB
