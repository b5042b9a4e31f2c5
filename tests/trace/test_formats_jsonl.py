"""JSON formats in the wild: each is told by its content alone, and what breaks it is refused with its line."""

from __future__ import annotations

import base64
import gzip
import io
import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_moetier.errors import InputError
from pytest_moetier.trace.formats import READERS
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.records import Trace
from pytest_moetier.trace.rows import EQUAL_WEIGHTS, FALLING_WEIGHTS, UNKNOWN, Hints, Rows
from pytest_moetier.trace.source import Source

FIXTURES = Path(__file__).parents[2] / "fixtures" / "traces"

# name of the format: file, iterations and accepted tokens of the decode, iterations of the prompt, layers
FILES = {
    "moetier": ("speculative.jsonl", 20, 21, 0, (0, 1, 2)),
    "moevm-lab": ("moevm-lab.jsonl", 6, 6, 3, (0, 1)),
    "vllm-log": ("vllm-log.jsonl", 8, 8, 0, (1, 3)),
    "routed-experts": ("routed-experts.json", 4, 4, 3, (0, 1)),
    "patch-jsonl": ("patch-jsonl.jsonl", 4, 4, 1, (1, 2)),
    "token-jsonl": ("token-jsonl.jsonl", 4, 4, 3, (1, 2)),
    "t-layer": ("t-layer.jsonl", 4, 4, 2, (0, 1)),
    "trace-document": ("trace-document.json", 4, 4, 1, (0, 1)),
    "megatron": ("megatron.jsonl", 4, 4, 1, (3, 4)),
    "paper": ("paper.jsonl", 6, 7, 0, (1, 2)),
}
LINES = [name for name, (file, *_) in FILES.items() if file.endswith(".jsonl")]
NUMBERED = {
    "moevm-lab": "token",
    "token-jsonl": "token_index",
    "t-layer": "t",
    "megatron": "step",
    "paper": "iteration",
}
WEIGHTED = {"moevm-lab": "scores", "vllm-log": "topk_weights"}


def content(name: str) -> bytes:
    return (FIXTURES / FILES[name][0]).read_bytes()


def records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content(name).splitlines()]


def put(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(path: Path, name: str) -> Rows:
    return READERS[name].read(Source(path), Hints())


def same(one: Trace, other: Trace) -> bool:
    prefill = [None if part.prefill is None else part.prefill.fingerprint for part in (one, other)]
    return one.fingerprint == other.fingerprint and prefill[0] == prefill[1]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_recognised_by_its_own_reader_alone_and_read(name: str) -> None:
    file, iterations, accepted, prefill, layers = FILES[name]
    source = Source(FIXTURES / file)
    assert [one.name for one in READERS.values() if one.sniff(source)] == [name]
    trace = load_trace(FIXTURES / file)
    assert (trace.n_iterations, trace.accepted_tokens, trace.layers, trace.k) == (iterations, accepted, layers, 4)
    assert (0 if trace.prefill is None else trace.prefill.n_iterations) == prefill
    if name != "moetier":
        assert trace.source == f"{name} {file}"


def test_no_file_is_of_two_formats() -> None:
    files = [path for path in sorted(FIXTURES.iterdir()) if path.name != "README.md"]
    found = {path.name: [one.name for one in READERS.values() if one.sniff(Source(path))] for path in files}
    assert {file: names for file, names in found.items() if len(names) != 1} == {}
    assert len(found) >= len(FILES)


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("moevm-lab", lambda rows: [row["experts"] for row in rows if row["phase"] == "decode"]),
        ("patch-jsonl", lambda rows: [row["experts"] for row in rows if len(row["experts"]) == 4]),
        (
            "token-jsonl",
            lambda rows: [ids for row in rows if row["phase"] == "decode" for ids in row["experts"] if ids],
        ),
        ("t-layer", lambda rows: [row["experts"] for row in rows if row["phase"] == "decode"]),
        ("megatron", lambda rows: [row["top_indices"][0] for row in rows if row["step"] and "mtp_idx" not in row]),
        ("paper", lambda rows: [row["experts"] for row in rows]),
        ("moetier", lambda rows: [row["experts"] for row in rows[1:]]),
    ],
)
def test_the_decode_has_the_ids_of_the_file_in_its_order(name: str, ids: Any) -> None:
    assert load_trace(FIXTURES / FILES[name][0]).experts.tolist() == list(chain.from_iterable(ids(records(name))))


@pytest.mark.parametrize("name", FILES)
def test_line_ends_a_byte_order_mark_blank_lines_and_gzip_change_nothing(tmp_path: Path, name: str) -> None:
    data = content(name)
    changed = {
        "crlf": data.replace(b"\n", b"\r\n"),
        "bom": b"\xef\xbb\xbf" + data,
        "blank": b"\n \n" + data.replace(b"\n", b"\n\r\n\n") + b"\n\n",
        "gzip": gzip.compress(data),
        "no-end": data.rstrip(b"\n"),
    }
    whole = load_trace(FIXTURES / FILES[name][0])
    for how, text in changed.items():
        (tmp_path / how).write_bytes(text)
        trace = load_trace(tmp_path / how)
        assert same(trace, whole), how
        assert trace.warnings == whole.warnings, how


@pytest.mark.parametrize("name", LINES)
def test_a_last_line_that_is_cut_off_is_left_out_and_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "cut").write_bytes(content(name)[:-6])
    trace, whole = load_trace(tmp_path / "cut"), load_trace(FIXTURES / FILES[name][0])
    assert f"line {len(records(name))} is cut off and was left out" in trace.warnings
    assert trace.n_iterations == whole.n_iterations - (name != "megatron")  # its last line is a draft layer's


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(LINES), share=st.floats(0.7, 1))
def test_wherever_a_file_ends_what_is_read_is_its_beginning(
    tmp_path_factory: pytest.TempPathFactory, name: str, share: float
) -> None:
    data = content(name)
    path = tmp_path_factory.mktemp("cut") / "cut"
    path.write_bytes(data[: int(len(data) * share)])
    trace, whole = load_trace(path), load_trace(FIXTURES / FILES[name][0])
    if name == "vllm-log":  # its requests alternate: both end early
        passes = {tuple(row) for row in whole.passes(1).tolist()}
        assert {tuple(row) for row in trace.passes(1).tolist()} <= passes
    else:
        assert trace.experts.tolist() == whole.experts[: trace.n_accesses].tolist()


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("other", LINES)
def test_a_line_of_another_format_is_refused_with_its_place_and_its_keys(tmp_path: Path, name: str, other: str) -> None:
    rows = records(name)
    if name == other:
        return
    put(tmp_path / "mixed", [*rows[:5], records(other)[0], *rows[5:]])
    with pytest.raises(InputError, match=r"line 6: .*its keys are") as caught:
        load_trace(tmp_path / "mixed")
    assert next(iter(records(other)[0])) in str(caught.value)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("other", FILES)
def test_a_format_that_is_forced_on_another_file_is_one_clear_message(name: str, other: str) -> None:
    path = FIXTURES / FILES[other][0]
    if name == other or (name, other) == ("paper", "moevm-lab"):  # which is a case of it
        assert load_trace(path, name).n_iterations == FILES[other][1]
        return
    with pytest.raises(InputError) as caught:
        load_trace(path, name)
    message = str(caught.value)
    assert message.count(str(path)) == 1
    assert "line 1: " in message or "its keys are" in message or "is no JSON document" in message
    assert "expected" in message


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize(
    ("line", "message"),
    [("[1, 2]", "line 4: a JSON list"), ("not json", "line 4: no JSON"), ("3", "line 4: a JSON int")],
)
def test_a_line_that_is_no_object_is_refused(tmp_path: Path, name: str, line: str, message: str) -> None:
    lines = content(name).decode().splitlines()
    (tmp_path / "bad").write_text("\n".join([*lines[:3], line, *lines[3:]]))
    with pytest.raises(InputError, match=message):
        load_trace(tmp_path / "bad")


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        (name, key, value, message)
        for name, keys in {
            "moevm-lab": ("token", "layer", "experts"),
            "vllm-log": ("token_idx", "layer", "topk_ids"),
            "patch-jsonl": (None, "layer", "experts"),
            "token-jsonl": ("token_index", None, None),
            "t-layer": ("t", "layer", "experts"),
            "megatron": ("step", "layer", None),
            "paper": ("iteration", "layer", "experts"),
            "moetier": ("iteration", "layer", "experts"),
        }.items()
        for key, value, message in (
            (keys[0], -1, "is -1"),
            (keys[0], "2", "is '2'"),
            (keys[0], True, "is True"),
            (keys[1], 1.5, "is 1.5"),
            (keys[1], 65536, "is 65536"),
            (keys[2], [], r"is \[\]"),
            (keys[2], [1, "2"], r"is \[1, '2'\]"),
            (keys[2], [1, -2], r"is \[1, -2\]"),
            (keys[2], None, "is None"),
        )
        if key is not None
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_line(
    tmp_path: Path, name: str, key: str, value: object, message: str
) -> None:
    rows = records(name)
    rows[3][key] = value
    with pytest.raises(InputError, match=f"bad, line 4: {key} {message}"):
        load_trace(put(tmp_path / "bad", rows), name)


@pytest.mark.parametrize(("name", "key"), WEIGHTED.items())
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_weight_that_is_no_number_is_refused_with_its_line(tmp_path: Path, name: str, key: str, word: str) -> None:
    rows = records(name)
    rows[4][key][1] = float(word)
    with pytest.raises(InputError, match="line 5: NaN or Infinity"):
        load_trace(put(tmp_path / "nan", rows))


@pytest.mark.parametrize("name", sorted({*LINES} - {"moetier"}))
def test_layers_with_gaps_keep_their_numbers(tmp_path: Path, name: str) -> None:
    if name == "token-jsonl":
        rows = [
            {**row, "experts": [[], *(part for ids in row["experts"] for part in (ids, []))]} for row in records(name)
        ]
        wanted = (3, 5)
    else:
        rows = [{**row, "layer": 7 * row["layer"] + 1} if "layer" in row else row for row in records(name)]
        wanted = tuple(7 * layer + 1 for layer in FILES[name][4])
    trace = load_trace(put(tmp_path / "gaps", rows))
    assert trace.layers == wanted
    assert trace.experts.tolist() == load_trace(FIXTURES / FILES[name][0]).experts.tolist()


@pytest.mark.parametrize(("name", "counter"), NUMBERED.items())
def test_a_counter_that_starts_again_is_numbered_on_and_said(tmp_path: Path, name: str, counter: str) -> None:
    rows, once = records(name), load_trace(FIXTURES / FILES[name][0])
    trace = load_trace(put(tmp_path / "twice", [*rows, *rows, *rows]))
    _, iterations, accepted, prefill, _ = FILES[name]
    assert (trace.n_iterations, trace.accepted_tokens) == (3 * iterations, 3 * accepted)
    assert trace.experts.tolist() == 3 * once.experts.tolist()
    assert (0 if trace.prefill is None else trace.prefill.n_iterations) == 3 * prefill
    begin, last = len(rows) + 1, 2 * len(rows) + 1
    said = f"{counter} starts again at line {begin} and 1 more time(s), the last at line {last}"
    assert any(said in one for one in trace.warnings)


def test_a_second_prompt_whose_numbers_begin_elsewhere_is_told_too(tmp_path: Path) -> None:
    one = [{"t": t, "layer": layer, "experts": [t, 9]} for t in range(5, 9) for layer in (0, 1)]
    two = [{"t": t, "layer": layer, "experts": [t, 9]} for t in range(3, 7) for layer in (0, 1)]
    trace = load_trace(put(tmp_path / "t", [*one, *two]))
    assert trace.passes(0)[:, 0].tolist() == [5, 6, 7, 8, 3, 4, 5, 6]
    assert any("t starts again at line 9:" in one for one in trace.warnings)


def test_decode_that_is_numbered_from_0_after_its_prompt_is_no_second_prompt(tmp_path: Path) -> None:
    rows = [
        {"t": t, "layer": layer, "experts": [t, 9], "phase": phase}
        for phase in ("prefill", "decode")
        for t in range(3)
        for layer in (0, 1)
    ]
    trace = load_trace(put(tmp_path / "t", rows))
    assert trace.prefill is not None
    assert (trace.n_iterations, trace.prefill.n_iterations) == (3, 3)
    assert not any("starts again" in one for one in trace.warnings)


def test_a_file_that_goes_layer_by_layer_is_brought_into_the_order_of_tokens(tmp_path: Path) -> None:
    rows = sorted(records("moevm-lab"), key=lambda row: (row["layer"], row["token"]))
    trace, whole = load_trace(put(tmp_path / "t", rows)), load_trace(FIXTURES / "moevm-lab.jsonl")
    for layer in whole.layers:
        assert trace.passes(layer).tolist() == whole.passes(layer).tolist()
    assert not any("starts again" in one for one in trace.warnings)


@pytest.mark.parametrize(("name", "key"), [("patch-jsonl", "experts"), ("megatron", "top_indices")])
def test_a_first_line_longer_than_the_head_that_is_looked_at_is_recognised(tmp_path: Path, name: str, key: str) -> None:
    rows = records(name)
    rows[0][key] = rows[0][key] * 30_000
    rows[1][key] = rows[1][key] * 30_000
    path = put(tmp_path / "wide", rows)
    assert Source(path).first == {}
    assert [one.name for one in READERS.values() if one.sniff(Source(path))] == [name]
    trace = load_trace(path)
    assert trace.prefill is not None
    assert trace.prefill.n_accesses == 2 * 12 * 30_000
    assert trace.n_iterations == 4


def test_requests_of_a_vllm_log_follow_one_another_in_the_order_in_which_they_begin() -> None:
    rows = rows_of(FIXTURES / "vllm-log.jsonl", "vllm-log")
    wanted = [row for name in ("r1", "r2") for row in records("vllm-log") if row.get("req_id") == name]
    assert rows.ids.reshape(-1, 4).tolist() == [row["topk_ids"] for row in wanted]
    assert rows.key.tolist() == [(row["req_id"] == "r2") << 40 | row["token_idx"] for row in wanted]
    assert rows.about.k == 4
    assert (rows.phase == UNKNOWN).all()
    assert (rows.kind == UNKNOWN).all()
    trace = load_trace(FIXTURES / "vllm-log.jsonl")
    assert trace.warnings[0].startswith("it holds 2 requests: they are taken one after the other")


def test_a_vllm_log_says_which_rows_have_equal_or_falling_weights(tmp_path: Path) -> None:
    weights = [[0.25] * 4, [0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], None]
    rows = [{"type": "meta", "layers_logged": [0], "top_k": 4}]
    for token, given_weights in enumerate(weights):
        rows.append({"type": "route", "req_id": "a", "token_idx": token, "layer": 0, "topk_ids": [1, 2, 3, 4]})
        rows[-1] |= {} if given_weights is None else {"topk_weights": given_weights}
    flags = rows_of(put(tmp_path / "w", rows), "vllm-log").flags.tolist()
    assert flags == [EQUAL_WEIGHTS | FALLING_WEIGHTS, FALLING_WEIGHTS, 0, 0]


def test_a_vllm_log_is_delivered_with_its_profile_pass_and_its_repeated_rows(tmp_path: Path) -> None:
    rows = records("vllm-log")
    profile = {**rows[1], "req_id": None, "topk_ids": [7, 6, 4, 5], "topk_weights": [0.25] * 4}
    path = put(tmp_path / "v", [rows[0], *[profile] * 50, *rows[1:], rows[1]])
    read = rows_of(path, "vllm-log")
    assert read.n == 50 + len(rows) - 1 + 1
    assert read.line[:50].tolist() == list(range(2, 52))
    assert (read.key[:50] == 0).all()
    assert int(np.count_nonzero(read.key == 1 << 40)) == 3  # r1, token 0: two layers, and one of them once more
    assert int(np.count_nonzero(read.flags & EQUAL_WEIGHTS)) == 50


@pytest.mark.parametrize("order", [("token_idx", "req_id"), ("token_idx", "layer")], ids=",".join)
def test_a_vllm_log_that_ends_amid_its_requests_keeps_whole_tokens(tmp_path: Path, order: tuple[str, str]) -> None:
    rows = records("vllm-log")
    head, *rest = rows
    rest = sorted((row for row in rest if row["token_idx"] < 3), key=lambda row: [row[key] for key in order])
    trace = load_trace(put(tmp_path / "v", [head, *rest[:-1]]))
    assert trace.n_iterations == 5
    assert "the last token of 1 request(s) lacks layers and was left out" in trace.warnings
    kept = [row for name in ("r1", "r2") for row in rest if row["req_id"] == name]
    assert trace.experts.tolist() == [one for row in kept[:10] for one in row["topk_ids"]]


@pytest.mark.parametrize("requests", [3, 250, 251, 2000])
def test_a_vllm_log_may_hold_any_number_of_requests_in_any_order(tmp_path: Path, requests: int) -> None:
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(requests), 3)).tolist()
    tokens = dict.fromkeys(range(requests), 0)
    rows = []
    for request in order:
        name = request if request % 7 == 0 else f"q-{request}é" if request % 7 == 1 else f"q-{request}"
        ids = [request % 64, 64 + tokens[request]]
        rows.append({"type": "route", "req_id": name, "token_idx": tokens[request], "layer": 0, "topk_ids": ids})
        tokens[request] += 1
    read = rows_of(put(tmp_path / "many", rows), "vllm-log")
    begun = list(dict.fromkeys(order))
    assert (read.key >> 40).tolist() == np.repeat(np.arange(requests), 3).tolist()
    assert read.ids.reshape(-1, 2).tolist() == [[one % 64, 64 + token] for one in begun for token in range(3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "step"}, "type is 'step'"),
        ({"req_id": ["r1"]}, r"req_id is \['r1'\]"),
        ({"token_idx": 1 << 40}, r"token_idx is 1099511627776; expected one below 2\^40"),
        ({"topk_weights": "heavy"}, "topk_weights is 'heavy'"),
    ],
)
def test_what_a_vllm_log_cannot_hold_is_refused_with_its_line(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    rows = records("vllm-log")
    rows[3] |= change
    with pytest.raises(InputError, match=f"line 4: {message}"):
        load_trace(put(tmp_path / "v", rows))
    del rows[3]["req_id"]
    with pytest.raises(InputError, match=r"line 4: (no req_id|type is 'step')"):
        load_trace(put(tmp_path / "v", rows))


def npy(array: Any) -> str:
    held = io.BytesIO()
    np.save(held, np.asarray(array, np.uint8))
    return base64.b64encode(held.getvalue()).decode()


def raw(array: Any) -> str:
    return base64.b64encode(np.asarray(array, "<i4").tobytes()).decode()


def response() -> dict[str, Any]:
    held: dict[str, Any] = json.loads(content("routed-experts"))
    return held


def routes() -> tuple[list[Any], list[Any]]:
    held = response()
    return held["prompt_routed_experts"], held["choices"][0]["routed_experts"]


def variants() -> dict[str, Any]:
    prompt, generated = routes()
    lengths = {"prompt_tokens": 3, "completion_tokens": 5}
    return {
        "indented": response(),
        "lines": response(),
        "list": [response()],
        "npy": {"choices": [{"routed_experts": npy([*prompt, *generated])}], "usage": lengths},
        "npy-unfinished": {
            "choices": [{"routed_experts": npy([*prompt, *generated])}],
            "usage": {**lengths, "completion_tokens": 4},
        },
        "two-npy": {"prompt_routed_experts": npy(prompt), "choices": [{"routed_experts": npy(generated)}]},
        "sglang": {"text": "a", "meta_info": {"id": "0", **lengths, "routed_experts": raw([*prompt, *generated])}},
        "whole-list": {"routed_experts": [*prompt, *generated], "usage": lengths},
    }


@pytest.mark.parametrize("how", variants())
def test_responses_of_engines_are_read_in_every_form(tmp_path: Path, how: str) -> None:
    path = tmp_path / "r"
    path.write_text(json.dumps(variants()[how], indent=2 if how in {"indented", "list"} else None))
    assert READERS["routed-experts"].sniff(Source(path))
    assert same(load_trace(path, k=4), load_trace(FIXTURES / "routed-experts.json"))


def test_experts_alone_are_the_generated_tokens(tmp_path: Path) -> None:
    _, generated = routes()
    trace = load_trace(put(tmp_path / "r", [{"routed_experts": generated}]))
    assert trace.prefill is None
    assert trace.experts.tolist() == np.asarray(generated).reshape(-1).tolist()


def test_several_responses_follow_one_another(tmp_path: Path) -> None:
    whole = load_trace(FIXTURES / "routed-experts.json")
    path = put(tmp_path / "lines", [response(), response(), response()])
    (tmp_path / "list").write_text(json.dumps([response(), response(), response()], indent=1))
    for trace in (load_trace(path), load_trace(tmp_path / "list")):
        assert trace.experts.tolist() == 3 * whole.experts.tolist()
        assert trace.prefill is not None
        assert (trace.n_iterations, trace.prefill.n_iterations) == (12, 9)
        assert any(one.startswith("it holds 3 sequences") for one in trace.warnings)


def test_choices_of_one_response_share_its_prompt(tmp_path: Path) -> None:
    held = response()
    held["choices"] = held["choices"] * 2
    trace = load_trace(put(tmp_path / "r", [held]))
    assert trace.prefill is not None
    assert (trace.n_iterations, trace.prefill.n_iterations) == (8, 3)


def test_layers_without_experts_are_left_out_and_the_others_keep_their_numbers(tmp_path: Path) -> None:
    _, generated = routes()
    dense = [[[-1] * 4, token[0], [-1] * 4, token[1]] for token in generated]
    trace = load_trace(put(tmp_path / "r", [{"routed_experts": dense}]))
    assert trace.layers == (1, 3)
    assert trace.experts.tolist() == np.asarray(generated).reshape(-1).tolist()


def test_base64_without_lengths_is_taken_whole_and_said(tmp_path: Path) -> None:
    prompt, generated = routes()
    trace = load_trace(put(tmp_path / "r", [{"routed_experts": npy([*prompt, *generated])}]))
    assert trace.n_iterations == 7
    assert "line 1 does not tell the prompt's tokens from the others" in trace.warnings


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "routed_experts is null; .*--enable-return-routed-experts"),
        ([[[1, 2], [3]]], "routed_experts cannot be read"),
        ([[1, 2], [3, 4]], "routed_experts is 2x2 values of type int64"),
        ([[[1.5, 2.0]]], "values of type float64"),
        ([[[1, 65536]]], "token 0, layer 0 names expert 65536"),
        ([[[1, 2]], [[-1, -1]]], "token 1, layer 0 has no experts"),
        ([], "routed_experts is 0 values"),
        ("k05VTVBZ", "routed_experts cannot be read"),
        (base64.b64encode(b"\x93NUMPY\x01\x00\x04\x00{(((").decode(), "routed_experts cannot be read"),
        ("!!", "routed_experts cannot be read"),
        (raw([[1, 2]]), "is 2 values without a shape; expected k; next: --k K"),
        ({"a": 1}, "routed_experts is 1 values of type object"),
    ],
)
def test_routes_of_another_shape_are_refused_with_their_line(tmp_path: Path, value: object, message: str) -> None:
    path = put(tmp_path / "r", [response(), {"choices": [{"routed_experts": value}]}])
    with pytest.raises(InputError, match=f"line 2: .*{message}"):
        load_trace(path)


def test_bytes_that_are_no_whole_tokens_are_refused(tmp_path: Path) -> None:
    held = {"meta_info": {"prompt_tokens": 2, "completion_tokens": 2, "routed_experts": raw(range(32))}}
    with pytest.raises(InputError, match="line 1: routed_experts is 32 values; expected a multiple of 3 tokens x 4"):
        load_trace(put(tmp_path / "r", [held]), k=4)
    with pytest.raises(InputError, match="without a shape; expected prompt_tokens and completion_tokens"):
        load_trace(put(tmp_path / "r", [{"meta_info": {"routed_experts": raw(range(32))}}]), k=4)


def test_a_patchs_call_of_several_tokens_is_a_prompts(tmp_path: Path) -> None:
    rows = records("patch-jsonl")
    trace = load_trace(put(tmp_path / "p", rows + rows))
    assert trace.prefill is not None
    assert (trace.n_iterations, trace.prefill.n_iterations) == (8, 2)
    assert trace.prefill.kind_counts()["batch"] == 2
    assert trace.prefill.experts.tolist() == 2 * (rows[0]["experts"] + rows[1]["experts"])


def test_step_0_of_a_document_is_a_prompts_union_of_whatever_width() -> None:
    trace = load_trace(FIXTURES / "trace-document.json")
    assert trace.prefill is not None
    assert trace.prefill.kind_counts()["union"] == 1
    assert np.diff(trace.prefill.offsets).tolist() == [7, 9]


def test_step_0_of_a_document_is_a_prompts_even_where_it_has_k_experts(tmp_path: Path) -> None:
    rows = [{"step": step, "layer": layer, "expert_ids": [step, 8, 9]} for step in range(4) for layer in (0, 1)]
    (tmp_path / "d").write_text(json.dumps({"trace": rows, "num_layers": 3}))
    trace = load_trace(tmp_path / "d")
    assert trace.prefill is not None
    assert (trace.n_iterations, trace.k) == (3, 3)
    assert trace.prefill.kind_counts()["union"] == 1
    assert "num_layers is 3, and the records name 2 layers" in trace.warnings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": -1}, "record 3: step is -1"),
        ({"expert_ids": [1, None]}, r"record 3: expert_ids is \[1, None\]"),
        ({"layer": "0"}, "record 3: layer is '0'"),
        (None, r"record 3: no step \(its keys are none\)"),
    ],
)
def test_a_documents_wrong_record_is_named(tmp_path: Path, change: dict[str, object] | None, message: str) -> None:
    held = json.loads(content("trace-document"))
    held["trace"][2] = {} if change is None else held["trace"][2] | change
    (tmp_path / "d").write_text(json.dumps(held))
    with pytest.raises(InputError, match=message):
        load_trace(tmp_path / "d")


def test_a_cut_off_document_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(content("trace-document")[:-20])
    with pytest.raises(InputError, match=r"is no JSON document .*expected a whole JSON document"):
        load_trace(tmp_path / "d")


def test_megatrons_draft_records_are_left_out_and_counted() -> None:
    trace = load_trace(FIXTURES / "megatron.jsonl")
    assert trace.warnings[0] == "4 records of draft layers (they have an mtp_idx) were left out"
    assert trace.prefill is not None
    assert trace.prefill.kind_counts()["batch"] == 1
    assert np.diff(trace.prefill.offsets).tolist() == [12, 12]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topk": 3}, "line 3: topk is 3; expected 4, as in the lines before"),
        ({"top_indices": [[1, 2, 3]]}, r"line 3: top_indices has a list of 3 ids; expected lists of 4"),
        ({"top_indices": []}, "line 3: top_indices names no token"),
        ({"top_indices": [1, 2, 3, 4]}, r"line 3: top_indices is \[1, 2, 3, 4\]; expected one list for each token"),
    ],
)
def test_a_megatron_record_that_contradicts_itself_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    rows = records("megatron")
    rows[2] |= change
    with pytest.raises(InputError, match=message):
        load_trace(put(tmp_path / "m", rows))


def test_types_of_untyped_lines_come_from_width_and_repetition() -> None:
    trace = load_trace(FIXTURES / "paper.jsonl")
    assert trace.kind_counts() == {"normal": 4, "spec_accept": 1, "spec_fallback": 1}
    kinds = [trace.kind[row] for row in trace.record_bounds()[:-1].tolist()]
    assert kinds == [0, 0, 1, 0, 2, 0]


@pytest.mark.parametrize("iteration", ["iteration", "iter", "step", "pos", "position", "token"])
@pytest.mark.parametrize("layer", ["layer", "layer_id", "layer_idx"])
@pytest.mark.parametrize("ids", ["experts", "expert_ids", "ids", "indices", "topk", "selected_experts"])
def test_untyped_lines_may_call_their_values_anything_usual(
    tmp_path: Path, iteration: str, layer: str, ids: str
) -> None:
    rows = [{iteration: row["iteration"], layer: row["layer"], ids: row["experts"]} for row in records("paper")]
    path = put(tmp_path / "p", rows)
    assert [one.name for one in READERS.values() if one.sniff(Source(path))] == ["paper"]
    assert same(load_trace(path), load_trace(FIXTURES / "paper.jsonl"))


def test_untyped_lines_with_a_phase_keep_the_prompt_apart(tmp_path: Path) -> None:
    rows = [row | {"phase": "prefill" if row["iteration"] < 2 else "decode"} for row in records("paper")]
    trace = load_trace(put(tmp_path / "p", rows))
    assert trace.prefill is not None
    assert (trace.n_iterations, trace.prefill.n_iterations) == (4, 2)
    del rows[5]["phase"]
    with pytest.raises(InputError, match="line 6: no phase"):
        load_trace(put(tmp_path / "p", rows))


def test_2k_ids_are_no_accepted_speculation_in_formats_that_do_not_speculate(tmp_path: Path) -> None:
    rows = [row | {"t": row.pop("iteration"), "phase": "decode"} for row in records("paper")]
    with pytest.raises(InputError, match=r"line 5: layer 1 names 8 experts; expected 4 \(k\)"):
        load_trace(put(tmp_path / "t", rows))


@pytest.mark.parametrize(
    "row",
    [
        {"layer_id": 0, "expert_id": 3, "count": 5},
        {"layer": 0, "count": 5},
        {"iteration": 0, "layer": 0, "experts": [[1, 2]]},
        {"iteration": 0, "layer": 0, "experts": 3},
        {"type": "meta"},
        {"type": "token", "experts": [[1]]},
        {"a": {"layer": 0, "experts": [1]}},
    ],
)
def test_lines_that_only_look_like_a_format_are_of_none_of_these(tmp_path: Path, row: dict[str, object]) -> None:
    source = Source(put(tmp_path / "x", [row]))
    assert not [name for name in FILES if READERS[name].sniff(source) and name != "patch-jsonl"]


def test_our_own_lines_without_their_first_are_refused(tmp_path: Path) -> None:
    rows = records("moetier")
    with pytest.raises(InputError, match=r'line 1: a record; expected first \{"type": "meta"'):
        load_trace(put(tmp_path / "m", rows[1:]), "moetier")
    with pytest.raises(InputError, match=r'line 1: a record; expected first \{"type": "meta"'):
        load_trace(put(tmp_path / "m", [rows[1], rows[0], *rows[2:]]), "moetier")
    with pytest.raises(InputError, match=r"line 68: no iteration \(its keys are type, format"):
        load_trace(put(tmp_path / "m", [*rows, *rows]))
