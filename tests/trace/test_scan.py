"""JSON lines into columns: plain lines are taken fast, with a JSON parser's values; the rest is left to Python."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import fields as fields_of
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_moetier import _trace
from pytest_moetier.errors import InputError
from pytest_moetier.trace.scan import (
    ALL_EQUAL,
    MAX_ID,
    MAX_ITERATION,
    MAX_LAYER,
    NEVER_RISING,
    NO_CODE,
    WEIGHED,
    Columns,
    Fields,
    SlowRow,
    scan,
    strict,
)

WHERE = Path("routes.jsonl")
PHASES = {"decode": 0, "prefill": 1}
KINDS = {"normal": 0, "spec_accept": 1, "spec_fallback": 2}
MOEVM = Fields("token", "layer", "experts", phase="phase", weights="scores", phases=PHASES)
CANONICAL = Fields("iteration", "layer", "experts", phase="phase", kind="type", phases=PHASES, kinds=KINDS)
BARE = Fields(None, "layer", "experts")
STEPS = Fields("step", "layer", "expert_ids")
VLLM = Fields("token_idx", "layer", "topk_ids", kind="type", weights="topk_weights", kinds={"route": 7})
RECORDED = Path(os.environ.get("MOETIER_TRACES", "MOETIER_TRACES-is-not-set")) / "olmoe-moevm-lab"

GOOD = b'{"token":5,"layer":3,"experts":[57,0,65535],"scores":[0.5,0.25,0.25],"id":-1.5e3,"phase":"prefill"}'


def never(number: int, text: bytes) -> SlowRow | None:
    pytest.fail(f"line {number} was not taken by the fast path: {text!r}")


def rows(block: bytes, fields: Fields, slow: Any = never, first_line: int = 1) -> list[tuple[Any, ...]]:
    """Return (line, key, layer, phase, kind, flags, ids) of each row."""
    found: list[tuple[Any, ...]] = []
    for columns in scan(block, first_line, fields, slow):
        ends = np.cumsum(columns.width).tolist()
        assert ends[-1] == len(columns.ids)
        assert len({len(getattr(columns, one.name)) for one in fields_of(columns) if one.name != "ids"}) == 1
        values = [getattr(columns, name).tolist() for name in ("line", "key", "layer", "phase", "kind", "flags")]
        ids = [tuple(columns.ids[end - width : end].tolist()) for end, width in zip(ends, columns.width, strict=True)]
        found.extend(zip(*values, ids, strict=True))
    return found


def fast(text: bytes, fields: Fields) -> tuple[Any, ...] | None:
    """Return (key, layer, phase, kind, flags, ids) where the fast path takes this one line, whole.

    The text is in memory of exactly its size, so that a sanitizer sees any read past it.
    """
    exact = np.frombuffer(text, np.uint8).copy()
    keys = (fields.iteration, fields.layer, fields.ids, fields.phase, fields.kind, fields.weights)
    words = tuple(fields.phases.items()), tuple(fields.kinds.items())
    stop, line, *columns = _trace.scan_jsonl(memoryview(exact), 0, 1, keys, *words)
    types = ("u8", "i8", "i4", "u1", "u1", "u1", "u4", "u2")
    values = [np.frombuffer(one, kind).tolist() for one, kind in zip(columns, types, strict=True)]
    if stop == 0:
        assert line == 1
        assert columns == [b""] * 8
        return None
    assert (stop, line) == (len(text), 2)
    assert values[0] in ([], [1])
    assert values[6] in ([], [len(values[7])])
    return (*[one[0] for one in values[1:6]], tuple(values[7])) if values[0] else ()


def python_flags(weights: Sequence[float]) -> int:
    falling = all(one >= other for one, other in pairwise(weights))
    return WEIGHED | (ALL_EQUAL if len(set(weights)) == 1 else 0) | (NEVER_RISING if falling else 0)


def python_row(row: Mapping[str, Any], fields: Fields) -> tuple[Any, ...]:
    """Return what ``fast`` should, from a parsed line."""
    return (
        -1 if fields.iteration is None else row[fields.iteration],
        row[fields.layer],
        NO_CODE if fields.phase is None else fields.phases[row[fields.phase]],
        NO_CODE if fields.kind is None else fields.kinds[row[fields.kind]],
        python_flags(row[fields.weights]) if fields.weights in row else 0,
        tuple(row[fields.ids]),
    )


@pytest.mark.parametrize(
    ("fields", "line", "row"),
    [
        (MOEVM, GOOD, (5, 3, 1, NO_CODE, WEIGHED | NEVER_RISING, (57, 0, 65535))),
        (
            CANONICAL,
            b'{"type":"spec_accept","phase":"decode","iteration":0,"layer":0,"experts":[3,17]}',
            (0, 0, 0, 1, 0, (3, 17)),
        ),
        (BARE, b'{"layer":3,"experts":[7]}', (-1, 3, NO_CODE, NO_CODE, 0, (7,))),
        (STEPS, b'{"step":5,"layer":3,"expert_ids":[1,2]}', (5, 3, NO_CODE, NO_CODE, 0, (1, 2))),
        (
            VLLM,
            b'{"type":"route","req_id":"r\\"1","token_idx":9,"layer":0,"topk_ids":[43,5],"topk_weights":[0.5,5e-1]}',
            (9, 0, NO_CODE, 7, WEIGHED | ALL_EQUAL | NEVER_RISING, (43, 5)),
        ),
        (VLLM, b'{"type":"route","token_idx":9,"layer":0,"topk_ids":[43]}', (9, 0, NO_CODE, 7, 0, (43,))),
        (
            STEPS,
            f'{{"step":{MAX_ITERATION},"layer":{MAX_LAYER},"expert_ids":[{MAX_ID}]}}'.encode(),
            (MAX_ITERATION, MAX_LAYER, NO_CODE, NO_CODE, 0, (MAX_ID,)),
        ),
        (
            BARE,
            b' { "x" : [ [] , { } , {"layer":1,"a":[true,null,-0,0.5E+3]} ] ,\t"layer" : 0 , "experts" : [ 1 , 2 ] }\t',
            (-1, 0, NO_CODE, NO_CODE, 0, (1, 2)),
        ),
    ],
)
def test_a_plain_line_of_each_format_becomes_one_row(fields: Fields, line: bytes, row: tuple[Any, ...]) -> None:
    for end in (b"", b"\n", b"\r\n"):
        assert fast(line + end, fields) == row
        assert rows(line + end, fields, first_line=41) == [(41, *row)]


@pytest.mark.parametrize(
    "change",
    [
        (b"[57,0,65535]", b"[57,0.0]"),
        (b"[57,0,65535]", b"[57,1e0]"),
        (b"[57,0,65535]", b"[65536]"),
        (b"[57,0,65535]", b"[-1]"),
        (b"[57,0,65535]", b"[-0]"),
        (b"[57,0,65535]", b"[01]"),
        (b"[57,0,65535]", b"[]"),
        (b"[57,0,65535]", b"[1,]"),
        (b"[57,0,65535]", b"[,1]"),
        (b"[57,0,65535]", b"[1 2]"),
        (b"[57,0,65535]", b"[true]"),
        (b"[57,0,65535]", b'["1"]'),
        (b"[57,0,65535]", b"[[1]]"),
        (b"[57,0,65535]", b"57"),
        (b"[57,0,65535]", b"null"),
        (b'"token":5', b'"token":9223372036854775808'),
        (b'"token":5', b'"token":99999999999999999999'),
        (b'"token":5', b'"token":00'),
        (b'"token":5', b'"token":+5'),
        (b'"token":5', b'"token":5.0'),
        (b'"token":5', b'"token":true'),
        (b'"token":5', b'"token":5,"token":5'),
        (b'"token":5', b'"token" 5'),
        (b'"token":5', b'"token":'),
        (b'"token":5', b'"other":5'),
        (b'"token":5', b'"tok\\u0065n":5'),
        (b'"token":5', b'"token":5,"tok\\u0065n":6'),
        (b'"layer":3', b'"layer":65536'),
        (b'"layer":3', b'"layer":"3"'),
        (b'"prefill"', b'"pref\\u0069ll"'),
        (b'"prefill"', b'"prefills"'),
        (b'"prefill"', b'"prefil"'),
        (b'"prefill"', b'"Prefill"'),
        (b'"prefill"', b'""'),
        (b'"prefill"', b"1"),
        (b"[0.5,0.25,0.25]", b"[NaN]"),
        (b"[0.5,0.25,0.25]", b"[Infinity]"),
        (b"[0.5,0.25,0.25]", b"[-Infinity]"),
        (b"[0.5,0.25,0.25]", b"[1e999]"),
        (b"[0.5,0.25,0.25]", b'["0.5"]'),
        (b"[0.5,0.25,0.25]", b"[.5]"),
        (b"[0.5,0.25,0.25]", b"[5.]"),
        (b"[0.5,0.25,0.25]", b"[05]"),
        (b"[0.5,0.25,0.25]", b"[-]"),
        (b"[0.5,0.25,0.25]", b"[1e]"),
        (b"[0.5,0.25,0.25]", b"[1e+]"),
        (b"[0.5,0.25,0.25]", b"[]"),
        (b"-1.5e3", b"1e999"),
        (b"-1.5e3", b"NaN"),
        (b"-1.5e3", b"nul"),
        (b"-1.5e3", b"1" + b"0" * 400),
        (b"-1.5e3", b"-01"),
        (b"-1.5e3", b"'a'"),
        (b"-1.5e3", b'"\\x41"'),
        (b"-1.5e3", b'"\\u00e9"'),
        (b"-1.5e3", b'"\xc3\xa9"'),
        (b"-1.5e3", b'"\xff"'),
        (b"-1.5e3", b'"\x00"'),
        (b"-1.5e3", b'"\x1f"'),
        (b"-1.5e3", b'"\n"'),
        (b"-1.5e3", b"[1,]"),
        (b"-1.5e3", b"{1:2}"),
        (b"-1.5e3", b'{"a":1,}'),
        (b"-1.5e3", b"[1}"),
        (b"-1.5e3", b"[" * 40 + b"]" * 40),
        (b'"id":', b'"i\\d":'),
        (b'"id":', b'"\xc3\xa9":'),
        (b'"}', b'",}'),
        (b'"}', b'"]'),
        (b'"}', b'"'),
        (b'"}', b'"}}'),
        (b'"}', b'"} {}'),
        (b'"}', b'"}\x00'),
        (b'"}', b'"}\x0c'),
        (b'{"token"', b'[{"token"'),
        (b'{"token"', b'{,"token"'),
        (b'{"token"', b'{\n"token"'),
        (b'{"token"', b"{'token'"),
        (b'{"token"', b'\xef\xbb\xbf{"token"'),
    ],
)
def test_the_fast_path_leaves_what_is_not_plain_to_python(change: tuple[bytes, bytes]) -> None:
    assert fast(GOOD, MOEVM) is not None
    old, new = change
    assert GOOD.count(old) == 1
    assert fast(GOOD.replace(old, new), MOEVM) is None
    assert fast(GOOD.replace(old, new) + b"\n", MOEVM) is None


@pytest.mark.parametrize("text", [b"{}", b"[]", b"1", b"{", b"}", b'"', b'{"', b"null", b"\x00", b"\x0b"])
def test_a_line_that_is_no_record_is_left_to_python(text: bytes) -> None:
    assert fast(text, MOEVM) is None


def test_every_beginning_of_a_line_is_left_to_python() -> None:
    assert [end for end in range(1, len(GOOD)) if fast(GOOD[:end], MOEVM) is not None] == []


def test_blank_lines_are_skipped_and_counted() -> None:
    block = b"\n\r\n  \t \n" + GOOD + b"\n\n" + GOOD + b"\r\n \r"
    assert [row[0] for row in rows(block, MOEVM)] == [4, 6]
    assert rows(b"", MOEVM) == []
    assert rows(b"\n \n\r\n  ", MOEVM) == []


def test_slow_rows_come_in_order_and_skipped_lines_leave_no_row() -> None:
    seen: list[tuple[int, bytes]] = []

    def slow(number: int, text: bytes) -> SlowRow | None:
        seen.append((number, text))
        return SlowRow(number, 2, [9, 65535], 1, 3, 5) if text == b"row" else None

    block = b"meta\nrow\n" + GOOD + b"\n\nrow\n" + GOOD + b"\nskip\r\n" + GOOD + b"\nrow"
    fast_row = (5, 3, 1, NO_CODE, WEIGHED | NEVER_RISING, (57, 0, 65535))
    slow_row = (2, 1, 3, 5, (9, 65535))
    assert rows(block, MOEVM, slow, first_line=10) == [
        (11, 11, *slow_row),
        (12, *fast_row),
        (14, 14, *slow_row),
        (15, *fast_row),
        (17, *fast_row),
        (18, 18, *slow_row),
    ]
    assert seen == [(10, b"meta"), (11, b"row"), (14, b"row"), (16, b"skip\r"), (18, b"row")]


def test_the_columns_have_the_promised_types() -> None:
    (columns,) = scan(GOOD, 1, MOEVM, never)
    kinds = {one.name: getattr(columns, one.name).dtype.name for one in fields_of(Columns)}
    assert kinds == {
        "line": "uint64",
        "key": "int64",
        "layer": "int32",
        "phase": "uint8",
        "kind": "uint8",
        "flags": "uint8",
        "width": "uint32",
        "ids": "uint16",
    }


def test_a_file_cut_into_blocks_at_any_byte_gives_the_same_rows() -> None:
    odd = GOOD.replace(b"-1.5e3", b'"caf\xc3\xa9 \\u00e9"')
    data = b"\n".join([GOOD, b"", GOOD.replace(b"57", b"58") + b"\r", odd, b"  \r", GOOD, odd, GOOD])
    slow = strict(MOEVM, WHERE)
    whole = rows(data, MOEVM, slow)
    assert [row[0] for row in whole] == [1, 3, 4, 6, 7, 8]
    for cut in range(len(data) + 1):
        end = data.rfind(b"\n", 0, cut) + 1
        head, tail = data[:end], data[end:]
        assert rows(head, MOEVM, slow) + rows(tail, MOEVM, slow, 1 + head.count(b"\n")) == whole


extra_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(-1e90, 1e90)
    | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
    | st.sampled_from(["\n", "\t\r\b\f", '"', "\\", "/", "layer", '"layer":1']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=8,
)
extra_keys = st.sampled_from(["a", "layers", "exp", "experts_", "token_id", "x y", "'", "tokens", "LAYER", ""])
weights = st.lists(
    st.sampled_from([0, 1, 0.1, 0.25, 0.3, 1e-9, 1e-70, -0.5, 2**53, 2**53 + 1, 0.1 + 0.2, math.nextafter(0.3, 1)])
    | st.floats(allow_nan=False, allow_infinity=False),
    min_size=1,
    max_size=5,
)


@st.composite
def lines_of(draw: st.DrawFn, fields: Fields, *, with_weights: bool = False) -> bytes:
    """Write a good line in any of the ways that ASCII JSON can be written."""
    members: dict[str, Any] = draw(st.dictionaries(extra_keys, extra_values, max_size=3))
    members[fields.layer] = draw(st.integers(0, MAX_LAYER))
    members[fields.ids] = draw(st.lists(st.integers(0, MAX_ID), min_size=1, max_size=40))
    if fields.iteration is not None:
        members[fields.iteration] = draw(st.integers(0, MAX_ITERATION) | st.integers(0, 20))
    if fields.phase is not None:
        members[fields.phase] = draw(st.sampled_from(sorted(fields.phases)))
    if fields.kind is not None:
        members[fields.kind] = draw(st.sampled_from(sorted(fields.kinds)))
    if with_weights and draw(st.booleans()):
        members[str(fields.weights)] = draw(weights)
    shuffled = dict(draw(st.permutations(list(members.items()))))
    blank = st.sampled_from(["", " ", "  ", "\t", " \r "])
    separators = (draw(blank) + "," + draw(blank), draw(blank) + ":" + draw(blank))
    return (draw(blank) + json.dumps(shuffled, separators=separators) + draw(blank)).encode()


def check_against_json(lines: Sequence[bytes], fields: Fields, slow: Any) -> None:
    expected = [(number, *python_row(json.loads(line), fields)) for number, line in enumerate(lines, 1)]
    assert rows(b"\n".join(lines), fields, slow) == expected


@given(st.sampled_from([CANONICAL, BARE, STEPS]).flatmap(lambda one: st.tuples(st.just(one), st.lists(lines_of(one)))))
def test_the_fast_path_takes_every_good_ascii_line_with_the_values_of_json(case: tuple[Fields, list[bytes]]) -> None:
    fields, lines = case
    check_against_json(lines, fields, never)


@given(st.lists(lines_of(MOEVM, with_weights=True), max_size=4))
def test_both_paths_together_give_the_flags_that_python_computes(lines: list[bytes]) -> None:
    check_against_json(lines, MOEVM, strict(MOEVM, WHERE))


mantissas = st.one_of(
    st.sampled_from(["0", "-0", "0.0", "1", "-1", "1.0", "10", "0.1", "0.10"]),
    st.sampled_from(["0.1000000000000000055", "0.09999999999999999", "0." + "0" * 60 + "1"]),
    st.sampled_from(["18446744073709551615", "18446744073709551614", "9007199254740992", "9007199254740993"]),
)
exponents = st.sampled_from(["", "", "e0", "e-1", "E+01", "e22", "e23", "e45", "e66", "e67", "e-66", "e-67", "e-400"])


@given(st.lists(st.builds("".join, st.tuples(mantissas, exponents)), min_size=1, max_size=4))
def test_numbers_spelled_in_any_way_are_compared_by_their_values(spelled: list[str]) -> None:
    line = f'{{"token":1,"layer":1,"experts":[1],"phase":"decode","scores":[{",".join(spelled)}]}}'.encode()
    expected = python_flags(orjson.loads(line)["scores"])
    taken = fast(line, MOEVM)
    assert taken is None or taken[4] == expected
    assert rows(line, MOEVM, strict(MOEVM, WHERE))[0][5] == expected


@pytest.mark.parametrize(
    ("scores", "flags"),
    [
        ("0.125", WEIGHED | ALL_EQUAL | NEVER_RISING),
        ("0.125,0.125,1.25e-1", WEIGHED | ALL_EQUAL | NEVER_RISING),
        ("0.15362069010734558,0.11870886385440826,0.08095241338014603", WEIGHED | NEVER_RISING),
        ("3,3,2.5", WEIGHED | NEVER_RISING),
        ("0.25,0.125,0.12500001", WEIGHED),
        ("-1,-2", WEIGHED | NEVER_RISING),
        ("-2,-1", WEIGHED),
    ],
)
def test_the_fast_path_tells_equal_and_falling_weights(scores: str, flags: int) -> None:
    taken = fast(GOOD.replace(b"0.5,0.25,0.25", scores.encode()), MOEVM)
    assert taken is not None
    assert taken[4] == flags


def mutated(line: bytes, rng: random.Random) -> bytes:
    """Edit a line at one to three places, with bytes that JSON has a use for more often than not."""
    text = bytearray(line)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text) + 1)
        byte = (
            rng.choice(b'{}[]",:\\ \t\r\n0123456789-+.eEtfnul\x00\x7f\x80\xc3\xff')
            if rng.random() < 0.9
            else rng.randrange(256)
        )
        choice = rng.randrange(4)
        if choice == 0:
            text.insert(at, byte)
        elif choice == 1:
            text[at : at + 1] = bytes([byte])
        elif choice == 2:
            del text[at : at + rng.randint(1, 4)]
        else:
            length = rng.randint(1, 12)
            start = rng.randrange(len(text) + 1)
            text[at:at] = text[start : start + length]
    return bytes(text)


def parsed_once(text: bytes, fields: Fields) -> dict[str, Any]:
    """Parse a line that the fast path took: no wanted key may be there twice."""
    wanted = {fields.iteration, fields.layer, fields.ids, fields.phase, fields.kind, fields.weights}
    seen = [key for key, _ in json.loads(text, object_pairs_hook=list) if key in wanted]
    assert len(seen) == len(set(seen)), text
    row: dict[str, Any] = orjson.loads(text)
    return row


def fuzzed_bases() -> list[tuple[bytes, Fields]]:
    nested = b'{"a":{"b":[1,{"c":"\\n"}],"d":null},"t":-0.5e-7,"layer":12,"experts":[1,22,333],"e":[true,false],"f":""}'
    canonical = b'{"type":"normal","phase":"decode","iteration":120,"layer":0,"experts":[3,17,4]}'
    route = b'{"type":"route","req_id":"r1","token_idx":0,"layer":0,"topk_ids":[43],"topk_weights":[0.5,1e-3,-2]}'
    return [(GOOD, MOEVM), (nested, BARE), (canonical, CANONICAL), (route, VLLM)]


@pytest.mark.parametrize(("base", "fields"), fuzzed_bases(), ids=["moevm", "nested", "canonical", "vllm"])
def test_the_fast_path_takes_no_damaged_line_that_a_json_parser_refuses(base: bytes, fields: Fields) -> None:
    rng = random.Random(base)  # noqa: S311  (damage must be the same in every run)
    taken = refused = 0
    for _ in range(5000):
        text = mutated(base, rng)
        if b"\n" in text:  # two lines: each by itself
            rows(text, fields, lambda *_: None)
            continue
        row = fast(text, fields)
        refused += row is None
        if row:
            taken += 1
            assert row == python_row(parsed_once(text, fields), fields), text
    assert taken > 50
    assert refused > 1000


@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(0, len(GOOD)))
def test_any_bytes_anywhere_in_a_line_are_taken_as_json_or_left(noise: bytes, at: int) -> None:
    for text in (noise, GOOD[:at] + noise, GOOD[:at] + noise + GOOD[at:]):
        if b"\n" in text or not text:
            continue
        row = fast(text, MOEVM)
        if row:
            assert row == python_row(parsed_once(text, MOEVM), MOEVM)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace(b"57,0,65535", b'1,"2"'), "experts is [1, '2']; expected a list of expert ids from 0 to 65535"),
        (GOOD.replace(b"57,0,65535", b"-1"), "experts is [-1]; expected a list of expert ids from 0 to 65535"),
        (GOOD.replace(b"57,0,65535", b"1.0"), "experts is [1.0]; expected a list of expert ids from 0 to 65535"),
        (GOOD.replace(b"57,0,65535", b"true"), "experts is [True]; expected a list of expert ids from 0 to 65535"),
        (GOOD.replace(b"57,0,65535", b""), "experts is []; expected a list of expert ids from 0 to 65535"),
        (
            GOOD.replace(b"57,0,65535", b"12345678," * 99 + b"1"),
            "experts is [" + "12345678, " * 5 + "123456...; expected a list of expert ids from 0 to 65535",
        ),
        (GOOD.replace(b'"layer":3', b'"layer":-3'), "layer is -3; expected an integer from 0 to 65535"),
        (GOOD.replace(b'"layer":3', b'"layer":true'), "layer is True; expected an integer from 0 to 65535"),
        (GOOD.replace(b'"token":5', b'"token":5.5'), "token is 5.5; expected an integer from 0 to 9223372036854775807"),
        (GOOD.replace(b"prefill", b"warm"), "phase is 'warm'; expected one of decode, prefill"),
        (GOOD.replace(b'"prefill"', b"[]"), "phase is []; expected one of decode, prefill"),
        (
            GOOD.replace(b'"layer":3,', b""),
            "no layer (its keys are token, experts, scores, id, phase); expected layer: an integer from 0 to 65535",
        ),
        (b"{}", "no token (its keys are none); expected token: an integer from 0 to 9223372036854775807"),
        (GOOD.replace(b"0.5", b"NaN"), "NaN or Infinity in scores; expected finite numbers"),
        (GOOD.replace(b"0.5", b"-Infinity"), "NaN or Infinity in scores; expected finite numbers"),
        (GOOD.replace(b"-1.5e3", b'{"a":[Infinity]}'), "NaN or Infinity in id; expected finite numbers"),
        (GOOD.replace(b"0.5", b"1e999"), "NaN or Infinity in scores; expected finite numbers"),
        (GOOD.replace(b"0.5", b'"0.5"'), "scores is ['0.5', 0.25, 0.25]; expected a list of finite numbers"),
        (GOOD.replace(b"-1.5e3", b'"ab\xff"'), "no UTF-8 at byte 78 of the line; expected one JSON object a line"),
        (GOOD.replace(b'"token":5', b'"token":5,"token":6'), "token occurs 2 times; expected every key once"),
        (GOOD.replace(b'"token":5', b'"token":5,"tok\\u0065n":6'), "token occurs 2 times; expected every key once"),
        (b"[1]", "a JSON list; expected one JSON object a line"),
        (b"7", "a JSON int; expected one JSON object a line"),
    ],
)
def test_a_line_that_no_one_can_use_is_refused_with_its_value(text: bytes, message: str) -> None:
    assert fast(text, MOEVM) is None
    with pytest.raises(InputError) as refused:
        rows(GOOD + b"\n\n" + text + b"\n" + GOOD, MOEVM, strict(MOEVM, WHERE))
    assert str(refused.value) == f"routes.jsonl, line 3: {message}"


@pytest.mark.parametrize(
    "text", [GOOD[:-1], GOOD[:20], b"\xef\xbb\xbf" + GOOD, GOOD + b"}", b"no", b"[" * 5000, b"'", b'{"a":"\\ud800"}']
)
def test_a_line_that_is_no_json_is_refused_with_the_place(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError) as cause:
        orjson.loads(text)
    with pytest.raises(InputError) as refused:
        rows(text, MOEVM, strict(MOEVM, WHERE), first_line=12)
    place = f"no JSON ({cause.value.msg} at character {cause.value.pos + 1})"
    assert refused.value.seen == f"routes.jsonl, line 12: {place}"


def test_the_slow_path_takes_good_lines_that_the_fast_path_leaves() -> None:
    plain = rows(GOOD, MOEVM)
    good = {
        "UTF-8": GOOD.replace(b"-1.5e3", b'"\xc3\xa9"'),
        "an escape in a value": GOOD.replace(b"-1.5e3", b'"\\ud83d\\ude00"'),
        "an escape in a key": GOOD.replace(b'"layer"', b'"l\\u0061yer"'),
        "an escape in a word": GOOD.replace(b"prefill", b"pref\\u0069ll"),
        "deep nesting": GOOD.replace(b"-1.5e3", b"[" * 100 + b"]" * 100),
        "a long number": GOOD.replace(b"-1.5e3", b"1" * 200),
        "weights that nearly agree": GOOD.replace(b"0.25,0.25]", b"0.25,0.24999999999999994]"),
        "a key's name in a value": GOOD.replace(b"-1.5e3", b'{"layer":[1,"\\u0061"]}'),
    }
    for what, line in good.items():
        assert fast(line, MOEVM) is None, what
        assert rows(line, MOEVM, strict(MOEVM, WHERE)) == plain, what


def test_weights_of_null_are_none_at_all() -> None:
    line = GOOD.replace(b"[0.5,0.25,0.25]", b"null")
    assert rows(line, MOEVM, strict(MOEVM, WHERE)) == [(1, 5, 3, 1, NO_CODE, 0, (57, 0, 65535))]


def test_lines_of_a_kind_to_skip_leave_no_row() -> None:
    block = b'{"type":"meta","layers":[0]}\n{"type":"route","token_idx":4,"layer":0,"topk_ids":[1]}'
    assert [row[:2] for row in rows(block, VLLM, strict(VLLM, WHERE, frozenset({"meta"})))] == [(2, 4)]
    with pytest.raises(InputError, match=r"line 1: no token_idx \(its keys are type, layers\)"):
        rows(block, VLLM, strict(VLLM, WHERE))
    with pytest.raises(InputError, match=r"line 1: type is \['meta'\]; expected route"):
        rows(block.splitlines()[1].replace(b'"route"', b'["meta"]'), VLLM, strict(VLLM, WHERE, frozenset({"meta"})))
    with pytest.raises(InputError, match="line 1: type is 'end'; expected route"):
        rows(block.splitlines()[1].replace(b"route", b"end"), VLLM, strict(VLLM, WHERE, frozenset({"meta"})))


KEYS = ("token", "layer", "experts", "phase", None, "scores")
WORDS = (("decode", 0), ("prefill", 1))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("text", 0, 1, KEYS, WORDS, ()), TypeError, "bytes-like"),
        ((np.zeros(4, np.uint16), 0, 1, KEYS, WORDS, ()), ValueError, "data has items of format 'H'"),
        ((np.zeros(8, np.uint8)[::2], 0, 1, KEYS, WORDS, ()), ValueError, "data is not contiguous"),
        ((GOOD, -1, 1, KEYS, WORDS, ()), ValueError, "start is -1; expected 0 to "),
        ((GOOD, len(GOOD) + 1, 1, KEYS, WORDS, ()), ValueError, f"start is {len(GOOD) + 1}; expected 0 to {len(GOOD)}"),
        ((GOOD, 0, -1, KEYS, WORDS, ()), ValueError, "first_line is -1"),
        ((GOOD, 0, 1, list(KEYS), WORDS, ()), TypeError, "tuple"),
        ((GOOD, 0, 1, KEYS[:5], WORDS, ()), ValueError, "keys has 5 items; expected 6"),
        ((GOOD, 0, 1, ("token", "layer", 3, None, None, None), (), ()), TypeError, "keys holds 3; expected strings"),
        ((GOOD, 0, 1, ("", *KEYS[1:]), WORDS, ()), ValueError, "keys holds ''; expected one or more printable ASCII"),
        ((GOOD, 0, 1, ("é", *KEYS[1:]), WORDS, ()), ValueError, "keys holds 'é'"),
        ((GOOD, 0, 1, ('"', *KEYS[1:]), WORDS, ()), ValueError, "keys holds '\"'"),
        ((GOOD, 0, 1, ("\udc80", *KEYS[1:]), WORDS, ()), UnicodeEncodeError, "surrogates"),
        ((GOOD, 0, 1, ("layer", *KEYS[1:]), WORDS, ()), ValueError, "keys names 'layer' twice"),
        ((GOOD, 0, 1, ("token", None, *KEYS[2:]), WORDS, ()), ValueError, "keys has None for the layer or the ids"),
        ((GOOD, 0, 1, ("token", "layer", None, *KEYS[3:]), WORDS, ()), ValueError, "None for the layer or the ids"),
        ((GOOD, 0, 1, KEYS, (), ()), ValueError, "phases has 0 words; expected 1 to 255"),
        ((GOOD, 0, 1, KEYS, WORDS, WORDS), ValueError, "kinds has 2 words; expected none"),
        ((GOOD, 0, 1, KEYS, tuple((str(i), 0) for i in range(256)), ()), ValueError, "phases has 256 words"),
        ((GOOD, 0, 1, KEYS, ("decode",), ()), TypeError, "phases holds 'decode'; expected pairs"),
        ((GOOD, 0, 1, KEYS, (("decode", 0, 1),), ()), TypeError, "expected pairs"),
        ((GOOD, 0, 1, KEYS, (("decode", "0"),), ()), TypeError, "integer"),
        ((GOOD, 0, 1, KEYS, (("decode", 255),), ()), ValueError, "gives 'decode' the code 255; expected 0 to 254"),
        ((GOOD, 0, 1, KEYS, (("decode", -1),), ()), ValueError, "the code -1"),
        ((GOOD, 0, 1, KEYS, (("decode", 1 << 80),), ()), OverflowError, "too large"),
        ((GOOD, 0, 1, KEYS, (("a", 0), ("a", 1)), ()), ValueError, "phases names 'a' twice"),
        ((GOOD, 0, 1, KEYS, (("", 0),), ()), ValueError, "phases holds ''"),
    ],
)
def test_the_c_function_checks_its_arguments(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refused:
        _trace.scan_jsonl(*arguments)
    assert message in str(refused.value)


def test_the_c_function_starts_where_it_is_told_and_says_where_it_stopped() -> None:
    data = bytearray(b"rubbish\n" + GOOD + b"\n\n" + GOOD + b"\nrubbish")
    stop, line, lines, *_, widths, ids = _trace.scan_jsonl(data, 8, 2, KEYS, WORDS, ())
    assert (stop, line) == (len(data) - 7, 5)
    assert np.frombuffer(lines, np.uint64).tolist() == [2, 4]
    assert np.frombuffer(widths, np.uint32).tolist() == [3, 3]
    assert np.frombuffer(ids, np.uint16).tolist() == [57, 0, 65535] * 2
    assert _trace.scan_jsonl(data, len(data), 9, KEYS, WORDS, ()) == (len(data), 9, *[b""] * 8)


@pytest.mark.skipif(not RECORDED.is_dir(), reason="recorded traces are found by MOETIER_TRACES")
def test_recorded_files_are_taken_whole_by_the_fast_path() -> None:
    paths = sorted(RECORDED.glob("*.jsonl"))
    assert len(paths) == 5
    for path in paths:
        data = path.read_bytes()
        found = rows(data, MOEVM)
        expected = [python_row(json.loads(line), MOEVM) for line in data.splitlines()]
        assert [row[1:] for row in found] == expected
