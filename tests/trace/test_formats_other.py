"""Formats that are no JSON: told by content, read in blocks or line by line alike, and refused with the place."""

from __future__ import annotations

import gzip
import importlib.util
import io
import os
import pickle
import random
import struct
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_moetier.errors import InputError
from pytest_moetier.trace import parser
from pytest_moetier.trace.formats import READERS, table
from pytest_moetier.trace.formats.arrays import open_array
from pytest_moetier.trace.load import load_trace, pick
from pytest_moetier.trace.rows import EQUAL_WEIGHTS, FALLING_WEIGHTS, PREFILL, Hints, Rows
from pytest_moetier.trace.source import Source


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


made = _module("make_fixtures")
FIXTURES: Path = made.FIXTURES
FORMATS = {
    "bigmoe.route.csv": "bigmoe-csv",
    "layer-expert.csv": "layer-expert-csv",
    "expert-trace.log": "expert-log",
    "engine.txt": "engine-text",
    "pairs.i32": "pairs-i32",
    "records.u32": "records-u32",
    "routed_experts.npy": "npy",
    "topk_ids.npz": "npz",
}
TEXT = tuple(FORMATS)[:4]
WITH_PROMPT = tuple(FORMATS)[:5]
RECORDED = Path(os.environ.get("MOETIER_TRACES", "MOETIER_TRACES-is-not-set"))
needs_recorded = pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recorded traces at {RECORDED}")


def rows_of(path: Path, format_name: str | None = None, **hints: int) -> Rows:
    source = Source(path)
    return pick(source, format_name).read(source, Hints(**hints))


def written(folder: Path, data: bytes | str, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def same(one: Rows, other: Rows) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("key", "layer", "phase", "kind", "flags", "width", "ids")
    )


def npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def npz(**arrays: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def ids(tokens: int, layers: int = 2, k: int = 4, experts: int = 16) -> NDArray[np.int16]:
    draw = np.random.default_rng(1)
    return np.argsort(draw.random((tokens, layers, experts)), axis=-1)[..., :k].astype(np.int16)


# --- all formats ---


@pytest.mark.parametrize("name", FORMATS)
def test_the_fixtures_are_what_the_generator_makes(name: str) -> None:
    assert (FIXTURES / name).read_bytes() == made.MADE[name]()


@pytest.mark.parametrize("path", sorted(FIXTURES.iterdir()), ids=lambda path: path.name)
def test_every_fixture_is_of_exactly_one_format(path: Path) -> None:
    source = Source(path)
    fitting = [one.name for one in READERS.values() if one.sniff(source)]
    if path.name in FORMATS:
        assert fitting == [FORMATS[path.name]]
    else:
        assert len(fitting) == (path.suffix != ".md")
        assert not set(fitting) & {"counts-only", "no-trace", *FORMATS.values()}


@pytest.mark.parametrize("name", FORMATS)
def test_all_formats_tell_the_same_routing(name: str) -> None:
    trace = load_trace(FIXTURES / name)
    wanted = made.routing()
    layers = made.LAYERS if name not in {"routed_experts.npy", "topk_ids.npz"} else (0, 1, 2)
    assert (trace.n_iterations, trace.n_experts, trace.k, trace.layers) == (5, 24, 4, layers)
    assert trace.kind_counts() == {"normal": 5, "spec_accept": 0, "spec_fallback": 0}
    assert trace.experts.tolist() == wanted[made.PROMPT :].ravel().tolist()
    assert not trace.synthetic
    assert (trace.prefill is not None) == (name in WITH_PROMPT)


@pytest.mark.parametrize("name", WITH_PROMPT)
def test_the_prompt_is_one_batch_of_its_own(name: str) -> None:
    prompt = load_trace(FIXTURES / name).prefill
    assert prompt is not None
    assert prompt.kind_counts() == {"normal": 0, "spec_accept": 0, "spec_fallback": 0, "batch": 1}
    wanted = made.routing()[: made.PROMPT]
    for at, layer in enumerate(made.LAYERS[:2]):
        assert prompt.passes(layer).tolist() == wanted[:, at].tolist()
    pruned = name == "bigmoe.route.csv"
    assert prompt.passes(made.LAYERS[2]).tolist() == wanted[2 if pruned else 0 :, 2].tolist()


@pytest.mark.parametrize("name", FORMATS)
def test_gzip_changes_nothing(tmp_path: Path, name: str) -> None:
    packed = written(tmp_path, gzip.compress((FIXTURES / name).read_bytes()))
    assert load_trace(packed).fingerprint == load_trace(FIXTURES / name).fingerprint


@pytest.mark.parametrize("name", TEXT)
def test_a_byte_order_mark_and_carriage_returns_change_nothing(tmp_path: Path, name: str) -> None:
    data = b"\xef\xbb\xbf" + (FIXTURES / name).read_bytes().replace(b"\n", b"\r\n")
    assert same(rows_of(written(tmp_path, data)), rows_of(FIXTURES / name))


@pytest.mark.parametrize("name", ["bigmoe.route.csv", "layer-expert.csv", "engine.txt"])
def test_blank_lines_comments_and_spaces_give_the_same_rows_line_by_line(tmp_path: Path, name: str) -> None:
    lines = (FIXTURES / name).read_bytes().splitlines()
    lines[9:9] = [b"", b"# a remark", b"   "]
    lines[13] = lines[13].replace(b",", b" ,  ").replace(b" ", b"  ")
    slow = rows_of(written(tmp_path, b"\n".join(lines) + b"\n"))
    quick = rows_of(FIXTURES / name)
    assert same(slow, quick)
    assert slow.line.max() == quick.line.max() + 3


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", [1, 3, 64, 1000])
def test_blocks_of_any_size_give_the_same_rows(monkeypatch: pytest.MonkeyPatch, name: str, size: int) -> None:
    whole = rows_of(FIXTURES / name)
    monkeypatch.setattr("pytest_moetier.trace.source.BLOCK_BYTES", size)
    parts = rows_of(FIXTURES / name)
    assert same(whole, parts)
    assert parts.line.tolist() == whole.line.tolist()


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_of_another_format_is_refused_by_every_reader(name: str) -> None:
    for other in set(READERS) - {FORMATS[name]}:
        with pytest.raises(InputError) as error:
            load_trace(FIXTURES / name, other)
        assert str(FIXTURES / name) in str(error.value)


# --- bigmoe-csv ---

HEADER = made.HEADER + "\n"


def bigmoe(*events: tuple[int, int, int, int, list[int]], weights: tuple[float, ...] = (0.5, 0.3), k: int = 2) -> str:
    """Return a CSV of events (turn, phase, step, layer, ids)."""
    lines = [f"# n_expert=16 n_expert_used={k}\n", HEADER]
    for turn, phase, step, layer, chosen in events:
        lines += [
            f"{turn},{phase},{step},{layer},{slot},{one},{weight},1,0\n"
            for slot, (one, weight) in enumerate(zip(chosen, weights, strict=True))
        ]
    return "".join(lines)


def test_the_preamble_gives_dimensions_model_and_sizes_by_layer() -> None:
    trace = load_trace(FIXTURES / "bigmoe.route.csv", "bigmoe-csv")
    assert trace.expert_bytes == (4096, 8192, 16384)
    assert trace.source == "bigmoe-csv bigmoe.route.csv of tiny.gguf"
    assert trace.order == "score"


def test_without_a_preamble_k_is_the_number_of_slots(tmp_path: Path) -> None:
    data = (FIXTURES / "bigmoe.route.csv").read_text()
    trace = load_trace(written(tmp_path, data[data.index(HEADER) :]))
    assert (trace.k, trace.n_iterations, trace.expert_bytes) == (4, 5, ())
    assert any("does not state the experts per layer" in one for one in trace.warnings)


def test_turns_and_chunks_of_a_prompt_stay_apart(tmp_path: Path) -> None:
    chunk = [(0, 0, step, layer, [step, layer + 8]) for steps in ((0, 1), (2,)) for layer in (0, 1) for step in steps]
    text = bigmoe(
        *chunk, (0, 1, 3, 0, [1, 2]), (0, 1, 3, 1, [3, 4]), (1, 0, 0, 0, [5, 6]), (1, 0, 0, 1, [7, 8]),
        (1, 1, 3, 0, [1, 9]), (1, 1, 3, 1, [2, 9]),
    )  # fmt: skip
    trace = load_trace(written(tmp_path, text))
    assert trace.n_iterations == 2
    assert trace.experts.tolist() == [1, 2, 3, 4, 1, 9, 2, 9]
    assert trace.prefill is not None
    assert trace.prefill.n_iterations == 3  # two chunks of the first prompt, and the second prompt
    assert trace.prefill.experts[:8].tolist() == [0, 8, 1, 8, 0, 9, 1, 9]


def test_flags_of_weights_hold_for_every_pass_of_a_row(tmp_path: Path) -> None:
    events = [(0, 0, step, 0, [step, 9]) for step in range(2)]
    flags = {}
    for weights in ((0.5, 0.3), (0.3, 0.5), (0.5, 0.5)):
        rows = rows_of(written(tmp_path, bigmoe(*events, (0, 1, 2, 0, [1, 2]), weights=weights)))
        assert rows.width.tolist() == [4, 2]
        assert rows.phase.tolist() == [PREFILL, 0]
        flags[weights] = rows.flags.tolist()
    assert list(flags.values()) == [[FALLING_WEIGHTS] * 2, [0, 0], [FALLING_WEIGHTS | EQUAL_WEIGHTS] * 2]


@pytest.mark.parametrize(
    ("cut", "said", "iterations"),
    [
        (-9, "line 93 ends step 7, layer 4 after 3 of 4 slots", 4),
        (-110, "line 90 is cut off and was left out", 4),
        (-1, None, 5),
    ],
)
def test_a_cut_csv_names_what_was_left_out(tmp_path: Path, cut: int, said: str | None, iterations: int) -> None:
    data = (FIXTURES / "bigmoe.route.csv").read_bytes()
    trace = load_trace(written(tmp_path, data[:cut]))
    assert trace.n_iterations == iterations
    assert said is None or any(said in one for one in trace.warnings)
    assert (trace.experts == load_trace(FIXTURES / "bigmoe.route.csv").experts[: trace.n_accesses]).all()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0,1,3,1,2,", "0,1,3,1,1,", r"line 37: slot 1 of step 3, layer 1; expected the slots .* as 0, 1, 2"),
        ("0,1,3,1,0,2,0.41,", "0,1,3,1,0,2,nan,", "line 35: weight is 'nan'; expected a finite number"),
        ("0,1,3,1,0,2,0.41,", "0,1,3,1,0,2,1e999,", "line 35: weight is '1e999'"),
        ("0,1,3,1,0,2,", "0,1,3,1,0,-2,", "line 35: expert is '-2'; expected an integer from 0 to 23"),
        ("0,1,3,1,0,2,", "0,1,3,1,0,24,", "line 35: expert is '24'; expected an integer from 0 to 23"),
        ("0,1,3,1,0,2,", "0,2,3,1,0,2,", "line 35: phase is '2'"),
        ("0,1,3,1,0,2,", "0,1,3,1,0,2,7,", r"line 35: 10 field\(s\)"),
        ("0,1,3,1,0,2,", "0,1,3,1,0,\udcff2,", "line 35: no UTF-8 at byte 11"),
        ("n_expert_used=4", "n_expert_used=0", "line 2: n_expert_used is '0'"),
        ("n_expert_used=4", "n_expert_used=3", r"layer 1 has 4 slot\(s\); expected 3 \(k\)"),
    ],
)
def test_a_wrong_value_of_a_csv_is_refused_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (FIXTURES / "bigmoe.route.csv").read_text()
    assert old in text
    path = written(tmp_path, text.replace(old, new, 1).encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=message) as error:
        load_trace(path)
    assert str(path) in str(error.value)


@needs_recorded
@pytest.mark.parametrize(
    ("name", "layers", "prompt", "pruned", "sizes"),
    [("qwen", 48, 28, 1, (3059712, 2654208)), ("gemma", 30, 29, 29, (4336640, 3593216))],
)
def test_recorded_routes_have_their_published_dimensions(
    name: str, layers: int, prompt: int, pruned: int, sizes: tuple[int, int]
) -> None:
    trace = load_trace(RECORDED / "bigmoe-on-edge" / f"{name}.route.csv")
    assert (len(trace.layers), trace.n_experts, trace.k, trace.n_iterations) == (layers, 128, 6, 128)
    assert trace.prefill is not None
    positions = [len(trace.prefill.passes(layer)) for layer in trace.layers]
    assert positions == [prompt] * (layers - 1) + [pruned]
    assert trace.order == trace.prefill.order == "score"
    assert len(trace.expert_bytes) == layers
    assert set(trace.expert_bytes) == set(sizes)
    assert trace.expert_bytes[0] == sizes[0]


# --- layer-expert-csv ---


def test_a_csv_without_a_header_counts_its_lines_from_one(tmp_path: Path) -> None:
    text = (FIXTURES / "layer-expert.csv").read_text()
    bare = rows_of(written(tmp_path, text.split("\n", 1)[1]))
    assert same(bare, rows_of(FIXTURES / "layer-expert.csv"))
    assert bare.line[:2].tolist() == [1, 13]


def test_the_last_run_of_a_cut_csv_is_left_out(tmp_path: Path) -> None:
    lines = (FIXTURES / "layer-expert.csv").read_bytes().splitlines(keepends=True)
    trace = load_trace(written(tmp_path, b"".join(lines[:-1])))
    assert trace.n_iterations == 4
    assert (
        "the last run, layer 4 from line 94, names 3 experts, no whole pass of 4: left out; the 17 before it were kept"
        in trace.warnings
    )


def test_a_last_line_without_its_end_is_said_to_be_taken_as_whole(tmp_path: Path) -> None:
    data = (FIXTURES / "layer-expert.csv").read_bytes()
    trace = load_trace(written(tmp_path, data[:-1]))
    assert trace.n_iterations == 5
    assert "the last line has no line end; its last number was taken as whole" in trace.warnings
    half = load_trace(written(tmp_path, data[: data.rindex(b",") + 1]))
    assert "line 97 is cut off and was left out" in half.warnings


# --- expert-log ---


def test_other_log_lines_are_counted_and_ignored() -> None:
    assert "6 lines that are no expert trace were ignored" in load_trace(FIXTURES / "expert-trace.log").warnings


def test_two_records_on_one_line_are_both_read(tmp_path: Path) -> None:
    text = "12:00 [EXPERT-TRACE] Layer 0: Experts [1, 2][EXPERT-TRACE] Layer 1: Experts [3,4]\x1b[0m\n"
    rows = rows_of(written(tmp_path, text))
    assert (rows.layer.tolist(), rows.ids.tolist(), rows.line.tolist()) == ([0, 1], [1, 2, 3, 4], [1, 1])


@pytest.mark.parametrize(
    "record",
    [
        "Layer 3: Experts [12, 5, ...]",
        "Layer 3: Experts [12, -5]",
        "Layer 3: Experts [12, 65536]",
        "Layer 70000: Experts [12]",
        "Layer 3: Experts []",
        "Layer 3: Experts [12, 5",
    ],
)
def test_a_log_record_that_cannot_be_read_is_refused_with_its_line(tmp_path: Path, record: str) -> None:
    good = "[EXPERT-TRACE] Layer 0: Experts [1, 2]\n"
    path = written(tmp_path, f"start\n{good}[EXPERT-TRACE] {record}\n{good}")
    with pytest.raises(InputError, match=r"line 3: .*expected Layer N: Experts"):
        load_trace(path)


def test_a_log_that_ends_in_a_record_keeps_what_is_before_it(tmp_path: Path) -> None:
    data = (FIXTURES / "expert-trace.log").read_bytes()
    trace = load_trace(written(tmp_path, data[:-5]))
    assert trace.n_iterations == 4
    assert "line 27 is cut off and was left out" in trace.warnings


# --- engine-text ---


def test_rows_of_a_call_may_stand_layer_by_layer_or_row_by_row(tmp_path: Path) -> None:
    lines = (FIXTURES / "engine.txt").read_text().splitlines()
    by_layer = sorted(lines, key=lambda line: [int(line.split()[at]) for at in (0, 2, 1)])
    assert by_layer != lines
    assert same(rows_of(written(tmp_path, "\n".join(by_layer) + "\n")), rows_of(FIXTURES / "engine.txt"))


@pytest.mark.parametrize("weight", ["-0.1", "nan", "inf", "-inf", "x", "", "1_0"])
def test_a_gate_that_is_no_weight_is_refused_with_its_line(tmp_path: Path, weight: str) -> None:
    path = written(tmp_path, f"0 0 0 1:0.5 2:0.5\n1 0 0 3:0.5 4:{weight}\n2 0 0 5:0.5 6:0.5\n")
    with pytest.raises(InputError, match=f"line 2: '4:{weight}' is no <id>:<gate>"):
        load_trace(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 0 0", "line 2: '1 0 0'; expected <call> <row> <layer>"),
        ("1 0 -1 3:1 4:1", "line 2: layer is '-1'"),
        ("x 0 0 3:1 4:1", "line 2: call is 'x'"),
        ("0 0 0 3:1 4:1", "line 2: call 0, row 0, layer 0 a second time"),
        ("1 0 0 3:1 70000:1", "line 2: '70000:1' is no <id>:<gate>"),
    ],
)
def test_engine_text_that_cannot_be_read_is_refused_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_trace(written(tmp_path, f"0 0 0 1:0.5 2:0.5\n{line}\n3 0 0 1:0.5 2:0.5\n"))


def test_engine_text_cut_in_a_line_keeps_what_is_before_it(tmp_path: Path) -> None:
    data = (FIXTURES / "engine.txt").read_bytes()
    trace = load_trace(written(tmp_path, data[:-20]))
    assert trace.n_iterations == 4
    assert any("names 2 experts, no whole pass of 4: left out" in one for one in trace.warnings)
    shorter = load_trace(written(tmp_path, data[:-8]))
    assert "line 24 is cut off and was left out" in shorter.warnings


# --- binaries ---


@pytest.mark.parametrize(("name", "size", "record"), [("pairs.i32", 8, 96), ("records.u32", 16, 60)])
def test_a_cut_record_is_named(tmp_path: Path, name: str, size: int, record: int) -> None:
    trace = load_trace(written(tmp_path, (FIXTURES / name).read_bytes()[: 3 - size]))
    assert trace.n_iterations == 4
    assert any(f"record {record} is cut off after 3 bytes" in one for one in trace.warnings)
    assert any(f"{record - 1} " in one and "were kept" in one for one in trace.warnings)


def test_an_id_out_of_range_in_pairs_names_its_record(tmp_path: Path) -> None:
    pairs = np.frombuffer((FIXTURES / "pairs.i32").read_bytes(), "<i4").copy()
    pairs[2 * 41 + 1] = -7
    path = written(tmp_path, pairs.tobytes())
    with pytest.raises(InputError, match=r"record 42: layer 2, expert -7; expected both from 0 to 65535"):
        load_trace(path, "pairs-i32")


def test_a_run_without_an_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "zeros"
    with path.open("wb") as file:
        file.truncate(8 << 30)
    with pytest.raises(InputError, match="layer 0 goes on for more than 4194304 records"):
        load_trace(path, "pairs-i32")
    with pytest.raises(InputError, match="of no known trace format"):
        load_trace(path)


def test_records_layer_by_layer_are_a_prompt(tmp_path: Path) -> None:
    routing = made.routing()
    decode = np.frombuffer((FIXTURES / "records.u32").read_bytes(), dtype="<u4,<u2,<u2,<u8").copy()
    decode["f0"] += 3
    prompt = np.array(
        [
            (token, layer, one, 9)
            for at, layer in enumerate(made.LAYERS)
            for token in range(2 if layer == 4 else 0, 3)  # the last layer is pruned to the last position
            for one in routing[token, at].tolist()
        ],
        dtype=decode.dtype,
    )
    trace = load_trace(written(tmp_path, prompt.tobytes() + decode.tobytes()))
    assert trace.experts.tolist() == routing[3:].ravel().tolist()
    assert trace.prefill is not None
    assert [len(trace.prefill.passes(layer)) for layer in made.LAYERS] == [3, 3, 1]


@pytest.mark.parametrize("kind", ["csv", "pairs"])
def test_one_layer_alone_is_divided_by_k_or_refused(tmp_path: Path, kind: str) -> None:
    rows = [(7, one) for one in (1, 2, 3, 4, 1, 4, 2)]
    text = "".join(f"{layer},{one}\n" for layer, one in rows).encode()
    path = written(tmp_path, text if kind == "csv" else np.array(rows, "<i4").tobytes())
    with pytest.raises(InputError, match=r"all 7 (line|record)s are of layer 7.*next: --k K"):
        load_trace(path)
    trace = load_trace(path, k=2, raw=True)
    assert (trace.n_iterations, trace.experts.tolist()) == (3, [1, 2, 3, 4, 1, 4])
    assert any("names 1 experts, no whole pass of 2" in one for one in trace.warnings)


def test_junk_is_of_no_binary_format(tmp_path: Path) -> None:
    draw = random.Random(7)  # noqa: S311  (repeatable)
    junk = [b"x" + draw.randbytes(size) for size in (1, 8, 16, 64, 4096) for _ in range(40)]
    junk += [bytes(4096), b"\xff" * 4096, "päirs ".encode() * 99, "layer 1: 3, 4\n".encode("utf-32-le") * 64]
    known = {"pairs-i32", "records-u32", "npy", "npz"}
    for data in junk:
        source = Source(written(tmp_path, data))
        assert not known & {one.name for one in READERS.values() if one.sniff(source)}


@needs_recorded
def test_the_recorded_pairs_have_their_published_counts() -> None:
    path = RECORDED / "kimi-k3" / "expert_trace.bin"
    assert pick(Source(path)).name == "pairs-i32"
    rows = rows_of(path)
    chosen = np.repeat(rows.layer.astype(np.int64), rows.width) << 16 | rows.ids
    assert len(rows.ids) == 100_096
    assert len(np.unique(chosen)) == 10_010
    assert parser.arrange(rows, Hints()).about.k == 16
    raw = load_trace(path, raw=True)
    assert (raw.layers, raw.k, raw.n_experts, raw.n_accesses) == (tuple(range(1, 93)), 16, 896, 100_096)


# --- numpy ---


@pytest.mark.parametrize("dtype", ["<i2", ">i2", "<u2", "<i8", ">u4", "|u1"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("packed", [False, True])
def test_any_integer_type_and_order_gives_the_same_ids(tmp_path: Path, dtype: str, order: Any, *, packed: bool) -> None:
    array = ids(7)
    data = npy(np.asarray(array.astype(dtype), order=order))
    rows = rows_of(written(tmp_path, gzip.compress(data) if packed else data))
    assert rows.ids.tolist() == array.ravel().tolist()
    assert (rows.layer.tolist(), rows.key.tolist()) == ([0, 1] * 7, np.repeat(np.arange(7), 2).tolist())


def test_an_array_is_mapped_and_not_copied(tmp_path: Path) -> None:
    array = open_array(Source(written(tmp_path, npy(ids(9)))))
    assert isinstance(array, np.memmap)
    assert not array.flags.writeable
    assert array.flags.c_contiguous
    assert np.array_equal(array, ids(9))


def test_what_cannot_be_mapped_as_it_is_gives_none(tmp_path: Path) -> None:
    assert open_array(Source(FIXTURES / "bigmoe.route.csv")) is None
    assert open_array(Source(FIXTURES / "topk_ids.npz")) is None
    for data in (gzip.compress(npy(ids(3))), npy(np.asfortranarray(ids(3))), npy(ids(3).astype(">i2"))):
        assert open_array(Source(written(tmp_path, data))) is None


def test_padding_at_the_end_is_left_out_with_its_count(tmp_path: Path) -> None:
    array = np.concatenate([ids(6), np.full((5000, 2, 4), -1, np.int16)])
    source = Source(written(tmp_path, npy(array)))
    mapped = open_array(source)
    assert mapped is not None
    assert mapped.shape == (6, 2, 4)
    said = "the last 5000 tokens, of an unfinished request, are -1 and were left out; 6 were kept"
    assert source.warnings == [said]
    trace = load_trace(source.path)
    assert trace.n_iterations == 6
    assert said in trace.warnings


@pytest.mark.parametrize(("value", "at"), [(-1, (2, 1, 3)), (-5, (0, 0, 0)), (65536, (3, 0, 1))])
def test_an_id_out_of_range_names_token_and_layer(tmp_path: Path, value: int, at: tuple[int, int, int]) -> None:
    array = ids(4).astype(np.int32)
    array[at] = value
    with pytest.raises(InputError, match=f"token {at[0]}, layer {at[1]}: expert id {value}"):
        load_trace(written(tmp_path, npy(array)))


def test_a_cut_array_keeps_its_whole_tokens(tmp_path: Path) -> None:
    data = npy(ids(10))
    for packed in (data[:-17], gzip.compress(data[:-17])):
        trace = load_trace(written(tmp_path, packed))
        assert trace.n_iterations == 8
        assert "record 9, a token, is cut off; 8 of the 10 tokens stated were kept" in trace.warnings
    with pytest.raises(InputError, match="is cut off: it has 3 of the 160 bytes"):
        load_trace(written(tmp_path, data[: 128 + 3]))


class Trap:
    """What a reader that unpickles would run."""

    def __reduce__(self) -> tuple[Any, ...]:  # noqa: D105
        return (Path("/nowhere/a-pickle-was-run").touch, ())


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (ids(4).astype(np.float32), "array of float32 with the shape .*expected integers of the shape"),
        (ids(4).astype(bool), "array of bool"),
        (ids(4)[None], "save each request in a file of its own"),
        (ids(4)[0, 0], r"the shape \[4\]"),
        (ids(4)[:0], "none of them 0"),
        (ids(4)[:, :0], "none of them 0"),
        (np.ones((4, 16)), r"matrix; counts only: .* cannot be replayed"),
        (np.ones((4, 16), np.int64), r"matrix; counts only: .* ids\[:, None, :\]"),
        (np.full((2, 2, 4), -1, np.int16), "all 2 tokens are -1"),
        (np.array([[[Trap()]]], dtype=object), "array of object"),
        (np.zeros((2, 2, 2), dtype="i4,i4"), "expected integers of the shape"),
    ],
)
def test_another_array_is_refused_with_one_message(tmp_path: Path, array: NDArray[Any], message: str) -> None:
    for data in (npy(array), npz(ids=array)):
        with pytest.raises(InputError, match=message):
            load_trace(written(tmp_path, data))


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<i2', 'fortran_order': False, 'shape': (99999999999999, 99999, 9)}",
        "{'descr': '<i2', 'fortran_order': False, 'shape': (-1, 2, 4)}",
        "{'descr': '<i2', 'fortran_order': False, 'shape': " + "(" * 900,
        "{'descr': 'x9', 'fortran_order': False, 'shape': (1, 2, 4)}",
        "{'descr': '<i2', 'shape': (1, 2, 4)}",
        "__import__('os')",
        "\0\0\0",
    ],
)
def test_a_damaged_array_header_is_refused(tmp_path: Path, header: str) -> None:
    data = b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header.encode() + bytes(16)
    with pytest.raises(InputError, match=r"header is damaged|none of them 0|is cut off|at most 65535"):
        load_trace(written(tmp_path, data))


def test_an_archive_is_read_by_name_or_where_one_array_fits(tmp_path: Path) -> None:
    array = ids(5)
    for arrays in ({"x": array}, {"x": array[:2], "routed_experts": array}, {"x": array, "w": array.astype(float)}):
        assert rows_of(written(tmp_path, npz(**arrays))).ids.tolist() == array.ravel().tolist()
    with pytest.raises(InputError, match="2 arrays that could be the ids: a, b; expected one array"):
        load_trace(written(tmp_path, npz(a=array, b=array)))
    with pytest.raises(InputError, match="2 arrays that could be the ids: routed_experts, topk_ids"):
        load_trace(written(tmp_path, npz(topk_ids=array, routed_experts=array)))
    with pytest.raises(InputError, match=r"a \[2, 8\], b \[2, 8\].*counts only"):
        load_trace(written(tmp_path, npz(a=np.ones((2, 8)), b=np.ones((2, 8)))))
    with pytest.raises(InputError, match=r"holds a \[2\], b \[2, 8\]"):
        load_trace(written(tmp_path, npz(a=np.ones(2), b=np.ones((2, 8)))))


def test_an_archive_that_states_too_much_is_refused_unread(tmp_path: Path) -> None:
    header = npy(np.broadcast_to(np.int16(0), (1, 1, 1))).replace(b"(1, 1, 1), ", b"(1<<30,2,4)")
    big = header.replace(b"(1<<30,2,4)", b"(1<<9, 1, 1)").replace(b"(1<<9, 1, 1)", b"(999999999, 9, 9)")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("topk_ids.npy", big)
    with pytest.raises(InputError, match=r"states \d+ bytes|header is damaged"):
        load_trace(written(tmp_path, file.getvalue()))


def test_a_cut_archive_is_refused(tmp_path: Path) -> None:
    data = (FIXTURES / "topk_ids.npz").read_bytes()
    with pytest.raises(InputError, match=r"damaged or cut-off \.npz .*unzip -t"):
        load_trace(written(tmp_path, data[: len(data) // 2]))


# --- refused ---

REFUSED: dict[str, tuple[bytes, str]] = {
    "csv": (b"layer_id,expert_id,count\n0,0,12\n", "CSV of counts per layer and expert; counts only"),
    "csv of freq": (b"# run 3\r\nexpert,frequency\r\n0,0.5\r\n", "counts only"),
    "wide csv": (b"layer,0,1,2,3,4,5\n0,9,9,9,9,9,9\n", "CSV with a column per expert; counts only"),
    "json lines": (b'{"layer": 0, "expert": 3, "count": 7}\n', "JSON of counts per expert; counts only"),
    "json lists": (b'{"layer": 0, "counts": [1, 2, 3]}\n', "counts only"),
    "json document": (b'{\n "num_experts": 4,\n "expert_counts": [[1, 2], [3, 4]]\n}\n', "counts only"),
    "imatrix": (b"GGUF\x03\0\0\0" + bytes(16) + b"general.type....imatrix", r"imatrix \(GGUF\); counts only"),
    "old imatrix": (struct.pack("<ii", 90, 21) + b"blk.0.attn_out.weight" + bytes(8), r"imatrix \(.dat\); counts only"),
    "gguf": (b"GGUF\x03\0\0\0" + bytes(16) + b"general.architecture", "model in GGUF; expected a router trace.*run it"),
    "safetensors": (struct.pack("<Q", 64) + b'{"__metadata__":{}}', "model in safetensors"),
    "pickle": (pickle.dumps({"ids": [1, 2]}), "a pickle .*not run.*np.save"),
    "parquet": (b"PAR1\x15\x04\x15", "Parquet file.*convert it to CSV or JSON lines"),
    "arrow": (b"ARROW1\0\0", "Arrow file"),
    "hdf5": (b"\x89HDF\r\n\x1a\n\0", "HDF5 file"),
    "sqlite": (b"SQLite format 3\0\x10\0", "SQLite database"),
    "page": (b"\n<!DOCTYPE html><title>404</title>", "web page or XML.*download it again"),
    "xml": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "web page or XML"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer.*git lfs pull"),
    "utf-16": ('{"layer": 1}\n'.encode("utf-16"), "UTF-16.*iconv"),
    "tar": (bytes(257) + b"ustar\0" + bytes(249), "tar archive.*tar -xf"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_without_selections_is_told_and_refused(tmp_path: Path, kind: str, *, packed: bool) -> None:
    data, message = REFUSED[kind]
    path = written(tmp_path, gzip.compress(data) if packed else data)
    source = Source(path)
    assert len([one.name for one in READERS.values() if one.sniff(source)]) == 1
    with pytest.raises(InputError, match=f"(?s){message}") as error:
        load_trace(path)
    assert str(path) in error.value.seen
    assert error.value.expected
    assert error.value.do


def test_archives_are_told_apart_by_their_first_member(tmp_path: Path) -> None:
    for member, message in (("archive/data.pkl", "a pickle"), ("trace.csv", "a zip archive.*unzip it")):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(member, b"layer,expert\n")
        with pytest.raises(InputError, match=message):
            load_trace(written(tmp_path, file.getvalue()))


def test_counts_that_are_part_of_a_trace_do_not_make_it_counts(tmp_path: Path) -> None:
    text = '{"token":0,"layer":0,"experts":[1,2],"phase":"decode","usage_counts":[3,4]}\n'
    assert pick(Source(written(tmp_path, text))).name == "moevm-lab"


# --- tables of numbers ---


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 99)), min_size=1, max_size=20))
def test_plain_integers_are_read_as_python_reads_them(rows: list[tuple[int, int]]) -> None:
    found = table.cells("".join(f"{one},{other}\n" for one, other in rows).encode(), b",")
    assert found is not None
    for at, top in ((0, 10**12), (1, 99)):
        values = table.integers(found, at, top)
        assert values is not None
        assert values.tolist() == [row[at] for row in rows]


DECIMAL = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(0, 1, places=7, allow_nan=False).map(str),
    st.from_regex(r"\A[0-9]{0,9}\.?[0-9]{1,9}([eE][+-]?[0-9]{1,2})?\Z"),
    st.sampled_from(["nan", "inf", "-inf", "", ".", "1.2.3", "1_0", "0x1", " 1", "1e999", "--1", "٣"]),
)


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(DECIMAL, min_size=1, max_size=8))
def test_numbers_are_rounded_as_python_rounds_them_or_none_is(texts: list[str]) -> None:
    found = table.cells("".join(f"{one}\n" for one in texts).encode(), b"")
    assert found is not None
    wanted = [table.number(one) for one in texts]
    values = table.decimals(found, 0)
    if values is not None:
        assert values.tolist() == wanted
    else:
        assert None in wanted


@pytest.mark.parametrize("block", [b"1,2,3\n", b"1\n", b"1,2\n3\n", b"1;2\n", b"1\n,2\n"])
def test_lines_of_another_shape_are_no_cells(block: bytes) -> None:
    assert table.cells(block, b",") is None
