"""Files that people point us at by mistake: one clear message each, never a crash, never a hang."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_moetier.errors import InputError
from pytest_moetier.trace.formats import READERS
from pytest_moetier.trace.load import load_trace


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    spec.loader.exec_module(module)
    return module


mutate = _module("mutate")
FIXTURES: Path = mutate.FIXTURES
SEEDS: dict[str, bytes] = mutate.seeds()

LINE = '{{"token":{token},"layer":{layer},"experts":{ids},"phase":"{phase}"}}\n'


def lines(*rows: tuple[int, int, Any], phase: str = "decode") -> bytes:
    return "".join(LINE.format(token=token, layer=layer, ids=ids, phase=phase) for token, layer, ids in rows).encode()


def fixture(name: str, old: bytes = b"", new: bytes = b"") -> bytes:
    data = (FIXTURES / name).read_bytes()
    assert old in data
    return data.replace(old, new, 1) if old else data


BAD: dict[str, tuple[bytes, Mapping[str, Any], str, str]] = {
    "empty": (b"", {}, "holds no record: it is empty", "a trace"),
    "blank": (b" \n\n", {}, "holds no record: it is empty", "a trace"),
    "binary junk": (random.Random(1).randbytes(5000), {}, r"no known trace format \(binary", "one of bigmoe-csv"),  # noqa: S311
    "zeros": (bytes(5000), {}, r"no known trace format \(binary, beginning 00 00", "one of bigmoe-csv"),
    "prose": (b"Dear all,\nhere is the trace.\n", {}, "no known trace format .it begins 'Dear all,'", "one of"),
    "csv then json": (
        fixture("layer-expert.csv") + lines((0, 0, [1, 2])),
        {},
        r"line 98: \d field\(s\): '.\"token",
        "2, with layer, expert",
    ),
    "json then csv": (lines((0, 0, [1, 2]), (1, 0, [1, 2])) + b"3,17\n4,1\n", {}, "line 3: ", "one JSON object a line"),
    "two binaries": (
        fixture("pairs.i32") + fixture("routed_experts.npy"),
        {},
        r"record 97: layer \d+, expert \d+",
        "from 0 to 65535",
    ),
    "k against the preamble": (fixture("bigmoe.route.csv"), {"k": 3}, "k is 4 in the file", "3 as asked for"),
    "k against our meta line": (fixture("speculative.jsonl"), {"k": 8}, "k is 4 in the file", "8 as asked for"),
    "experts against the preamble": (
        fixture("bigmoe.route.csv"),
        {"n_experts": 64},
        "n_experts is 24 in the file",
        "64 as asked for",
    ),
    "k against an array": (fixture("routed_experts.npy"), {"k": 3}, "names 4 experts", r"3 \(k\)|passes"),
    "fewer experts than ids": (fixture("routed_experts.npy"), {"n_experts": 8}, r"expert (\d+)", "below 8"),
    "a NaN weight in a csv": (
        fixture("bigmoe.route.csv", b",0.41,", b",NaN,"),
        {},
        "line 7: weight is 'NaN'",
        "a finite number",
    ),
    "a NaN gate": (fixture("engine.txt", b":0.17", b":nan"), {}, "line 1: '7:nan'", "a gate of 0 or more"),
    "a NaN score in JSON": (
        fixture("moevm-lab.jsonl", b"0.4,", b"NaN,"),
        {},
        "line 1: NaN or Infinity",
        "one JSON|finite",
    ),
    "a negative id in a csv": (
        fixture("layer-expert.csv", b"1,12", b"1,-12"),
        {},
        "line 3: expert is '-12'",
        "from 0 to",
    ),
    "a negative id in JSON": (
        lines((0, 0, [1, -2])),
        {},
        r"line 1: experts is \[1, -2\]",
        "a list of expert ids from 0",
    ),
    "a negative id in an array": (
        fixture("routed_experts.npy")[:-2] + b"\xfe\xff",
        {},
        "token 4, layer 2: expert id -2",
        "ids from 0 to 65535",
    ),
    "prefill alone": (lines((0, 0, [1, 2]), (1, 0, [3, 4]), phase="prefill"), {}, "no decode record", "decode records"),
    "k that varies": (
        lines((0, 0, [1, 2, 3]), (1, 0, [1, 2]), (2, 0, [1, 2, 3, 4, 5]), (3, 0, [4, 5, 6, 7])),
        {},
        "line 2: layer 0 names 2 experts.*k varies|k varies",
        "records of k experts each",
    ),
    "no utf-8 in a csv": (
        fixture("layer-expert.csv", b"1,12", b"1,1\xe9"),
        {},
        "line 3: no UTF-8 at byte 4",
        "UTF-8 text",
    ),
    "no utf-8 in engine text": (
        fixture("engine.txt", b"\n0 0 2", b"\n\xff 0 2"),
        {},
        "line 2: no UTF-8 at byte 1",
        "UTF-8 text",
    ),
    "no utf-8 in JSON": (fixture("moevm-lab.jsonl", b'"decode"', b'"d\xe9code"'), {}, r"line \d+: no ", "."),
    "bzip2": (bz2.compress(b"x"), {}, "compressed in a way that is not read here", "a plain, gzip or zstd file"),
    "gzip of gzip": (gzip.compress(gzip.compress(b"layer,expert\n")), {}, "no known trace format .binary", "one of"),
    "the wrong format": (fixture("moevm-lab.jsonl"), {"format": "npy"}, "header is damaged", "a whole .npy"),
    "no such format": (fixture("moevm-lab.jsonl"), {"format": "csv"}, "no trace format 'csv'", "one of bigmoe-csv"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_one_message_with_file_seen_expected_and_next(tmp_path: Path, kind: str) -> None:
    data, known, seen, expected = BAD[kind]
    path = tmp_path / "given"
    path.write_bytes(data)
    with pytest.raises(InputError, match=seen) as error:
        load_trace(path, **known)
    assert str(path) in error.value.seen
    with pytest.raises(InputError, match=f"expected .*({expected})"):
        raise error.value
    assert error.value.do
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 900


@pytest.mark.parametrize("change", ["bom", "crlf", "both"])
@pytest.mark.parametrize("name", ["moevm-lab.jsonl", "bigmoe.route.csv", "layer-expert.csv", "engine.txt"])
def test_windows_line_ends_and_byte_order_marks_are_no_mistake(tmp_path: Path, name: str, change: str) -> None:
    data = fixture(name)
    if change != "bom":
        data = data.replace(b"\n", b"\r\n")
    path = tmp_path / "given"
    path.write_bytes(data if change == "crlf" else b"\xef\xbb\xbf" + data)
    assert load_trace(path).fingerprint == load_trace(FIXTURES / name).fingerprint


@pytest.mark.parametrize(
    "data",
    [
        lines((0, 7, [1, 2]), (1, 7, [3, 4]), (2, 7, [1, 4])),
        b"0 0 7 1:1 2:1\n1 0 7 3:1 4:1\n2 0 7 1:1 4:1\n",
        np.array(
            [(0, 7, 1, 1), (0, 7, 2, 1), (1, 7, 3, 2), (1, 7, 4, 2), (2, 7, 1, 3), (2, 7, 4, 3)], "<u4,<u2,<u2,<u8"
        ).tobytes(),
    ],
    ids=["json", "engine text", "records"],
)
def test_one_layer_is_a_trace(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "given"
    path.write_bytes(data)
    trace = load_trace(path, raw=True)
    assert (trace.layers, trace.k, trace.n_accesses) == ((7,), 2, 6)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad") / "given"


@pytest.mark.parametrize("format_name", [None, *sorted(READERS)])
def test_long_lines_take_no_more_than_their_length(place: Path, format_name: str | None) -> None:
    size = 40_000
    for begin, part, end in (
        (b"expert,", b"count", b"!"),
        (b"layer,expert,", b"a_count,", b"!"),
        (b"layer,", b"1,", b"!"),
        (b'{"', b"count", b""),
        (b"{", b'"count"', b""),
        (b'{"counts"', b" " * 8, b""),
        (b"# ", b"word", b"\nturn,phase,step,layer,slot,expert"),
        (b"# ", b"a=", b"\nturn,phase,step,layer,slot,expert"),
        (b"[EXPERT-TRACE] Layer 1: Experts [", b"1 ,", b""),
        (b"[EXPERT-TRACE] Layer 1: Experts [1", b"    ", b"x"),
        (b"", b"[EXPERT-TRACE]", b""),
        (b"0 0 0 ", b"1:1 ", b"x"),
        (b"0 0 0 ", b"1" * 8, b""),
        (b"", b"1,", b""),
    ):
        read_or_refused(place, begin + part * size + end, format_name)


def read_or_refused(path: Path, data: bytes, format_name: str | None) -> None:
    path.write_bytes(data)
    error = mutate.attempt(path, format_name)
    assert error is None or (str(path) in error.seen and error.do)


FORMAT = st.one_of(st.none(), st.sampled_from(sorted(READERS)))
fuzzed = settings(max_examples=150, deadline=5000)


@fuzzed
@given(data=st.binary(min_size=1, max_size=400), format_name=FORMAT)
def test_random_bytes_are_refused_and_no_more(place: Path, data: bytes, format_name: str | None) -> None:
    read_or_refused(place, data, format_name)


@pytest.mark.parametrize("name", sorted(SEEDS))
@settings(max_examples=40, deadline=5000)
@given(seed=st.integers(0, 2**32 - 1), forced=st.booleans())
def test_a_spoiled_file_is_read_or_refused(place: Path, name: str, seed: int, *, forced: bool) -> None:
    draw = random.Random(seed)  # noqa: S311  (repeatable)
    data = mutate.mutated(SEEDS[name], draw)
    read_or_refused(place, data, mutate.some_format(draw) if forced else None)


@fuzzed
@given(seed=st.integers(0, 2**32 - 1))
def test_mixed_files_are_read_or_refused(place: Path, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311  (repeatable)
    one, other = draw.choice(sorted(SEEDS)), draw.choice(sorted(SEEDS))
    read_or_refused(place, mutate.spliced(SEEDS[one], SEEDS[other], draw), mutate.some_format(draw))
