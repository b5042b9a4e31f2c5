"""The file of advice: anybody can write one, what is written is read back, and what is not for the trace is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from handmade import CHOSEN, given, said, speculative, steps
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from pytest_moetier.advice import FORMAT_LINES, KINDS, Advice, load_advice, noisy_oracle, oracle, withhold, write_advice
from pytest_moetier.errors import InputError
from pytest_moetier.trace.records import Trace
from pytest_moetier.trace.synth import synth_trace

SAID = [[7], [], [2, 3, 4], [1], [6, 4], [], [], [2, 3]]


def assert_equal(one: Advice, other: Advice) -> None:
    for name in Advice.__dataclass_fields__:
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(mine, np.ndarray):
            assert mine.tolist() == theirs.tolist(), name
            assert mine.dtype == theirs.dtype, name
        else:
            assert mine == theirs, name


def by_hand(trace: Trace, lists: list[list[int]], /, **changed: Any) -> list[dict[str, Any]]:
    """Return the lines of a file as an engine's author would write them."""
    head = {
        "format": "moetier-advice/1",
        "kind": "given",
        "source": "my engine",
        "model": {"layers": list(trace.layers), "experts": trace.n_experts, "k": trace.k},
        "trace": None,
        "records": len(lists),
    }
    records = [
        {"iteration": one.iteration, "layer": one.layer, "experts": ids}
        for one, ids in zip(trace.records(), lists, strict=True)
    ]
    return [head | changed, *records]


def put(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_file_written_by_hand_is_taken_as_it_is(tmp_path: Path) -> None:
    made = load_advice(put(tmp_path / "advice", by_hand(speculative(), SAID)), speculative())
    assert said(made) == SAID
    assert (made.kind, made.source, made.trace, made.withheld) == ("given", "my engine", None, ())
    assert (made.layers, made.n_experts, made.k) == ((5, 9), 8, 2)


def test_keys_of_ones_own_and_a_lacking_last_line_end_do_no_harm(tmp_path: Path) -> None:
    lines = by_hand(speculative(), SAID, engine="mine", layers_ahead=1)
    path = put(tmp_path / "advice", [lines[0], *(line | {"scores": [0.5]} for line in lines[1:])])
    path.write_text(path.read_text().rstrip("\n"))
    assert said(load_advice(path, speculative())) == SAID


def test_the_described_example_is_of_the_format(tmp_path: Path) -> None:
    head = json.loads(FORMAT_LINES[2] + FORMAT_LINES[3])
    record = json.loads(FORMAT_LINES[5])
    trace = steps([[list(range(8)), list(range(8))]], n_experts=128)
    lines = [head | {"records": 2}, record, record | {"layer": 1}]
    assert said(load_advice(put(tmp_path / "advice", lines), trace)) == [[3, 17, 99]] * 2
    assert all(kind in "\n".join(FORMAT_LINES) for kind in KINDS)


def test_the_file_is_the_text_that_is_described(tmp_path: Path) -> None:
    trace = speculative()
    write_advice(given(trace, SAID), tmp_path / "advice")
    lines = [json.loads(line) for line in (tmp_path / "advice").read_text().splitlines()]
    assert lines == by_hand(trace, SAID, source="a predictor of one's own", trace=trace.fingerprint)


@pytest.mark.parametrize(
    ("name", "unpack"), [("a.jsonl", bytes), ("a.gz", gzip.decompress), ("a.zst", zstandard.decompress)]
)
def test_the_name_says_how_it_is_packed(tmp_path: Path, name: str, unpack: Callable[[bytes], bytes]) -> None:
    trace = synth_trace(layers=3, iterations=20)
    made = noisy_oracle(trace, 0.5)
    write_advice(made, tmp_path / name)
    assert_equal(made, load_advice(tmp_path / name, trace))
    assert unpack((tmp_path / name).read_bytes()).count(b"\n") == 1 + trace.n_records
    write_advice(made, tmp_path / f"again-{name}")
    assert (tmp_path / f"again-{name}").read_bytes() == (tmp_path / name).read_bytes()


@settings(max_examples=60, deadline=None)
@drawn(data=st.data())
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    trace = synth_trace(layers=3, iterations=20, experts=12, k=3, seed=data.draw(st.integers(0, 9)))
    ids = st.lists(st.integers(0, 11), unique=True, max_size=12)
    made = given(trace, [data.draw(ids) for _ in range(trace.n_records)])
    if data.draw(st.booleans()):
        made = withhold(made, trace, data.draw(st.floats(0, 1)))
    path = tmp_path_factory.mktemp("advice") / data.draw(st.sampled_from(["a", "a.gz", "a.zst"]))
    write_advice(made, path)
    assert_equal(made, load_advice(path, trace))


def test_the_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a symbolic link"):
        write_advice(given(speculative(), SAID), tmp_path / "link")
    assert [one.name for one in tmp_path.iterdir()] == ["link"]


def test_an_oracle_is_read_only_by_its_name(tmp_path: Path) -> None:
    trace = speculative()
    exact = [sorted(one) for one in CHOSEN]
    assert load_advice(put(tmp_path / "a", by_hand(trace, exact, kind="oracle")), trace).oracle
    for kind in sorted(set(KINDS) - {"oracle"}):
        path = put(tmp_path / kind, by_hand(trace, exact, kind=kind))
        with pytest.raises(InputError, match=f"{path}: advice labelled {kind}, but it is exactly what the trace chose"):
            load_advice(path, trace)
    path = put(tmp_path / "b", by_hand(trace, SAID, kind="oracle"))
    with pytest.raises(
        InputError, match=r"b: advice labelled oracle, but its recall is 0.3889 and its precision 0.7778"
    ):
        load_advice(path, trace)


TRACE = speculative()
MODEL = {"layers": [5, 9], "experts": 8, "k": 2}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"format": "moetier-advice/2"}, 'format \'moetier-advice/2\'; expected {"format": "moetier-advice/1"'),
        ({"kind": "best"}, "kind 'best'; expected one of oracle, noisy_oracle, previous_token, markov, given"),
        ({"kind": None}, "kind None; expected one of"),
        ({"kind": ["oracle"]}, r"kind \['oracle'\]; expected one of"),
        ({"source": 5}, "source 5, model"),
        ({"model": [5, 9]}, r"model \[5, 9\]; expected a text, and an object"),
        (
            {"model": MODEL | {"experts": 9}},
            "advice for 2 layers x 9 experts, k = 2; expected the trace's 2 layers x 8",
        ),
        ({"model": MODEL | {"k": 4}}, "x 8 experts, k = 4; expected .* k = 2"),
        ({"model": MODEL | {"layers": [5]}}, "advice for 1 layers x 8 experts"),
        ({"model": MODEL | {"layers": [5, 8]}}, "advice for a layer 8; expected layer 9 in its place"),
        ({"model": {"layers": [5, 9], "k": 2}}, "no experts"),
        ({"trace": "0" * 64}, f"made for the trace '0000.*; expected '{TRACE.fingerprint}' \\(by hand\\), or null"),
        ({"trace": 7}, "made for the trace 7"),
        ({"records": 9}, "its first line says 9 records; expected 8, as it has"),
        ({"records": "8"}, "records is '8'"),
        ({"withheld": [4]}, "layer 4 is said to be withheld; expected layers of the trace that nothing is advised for"),
        ({"withheld": [9]}, "layer 9 is said to be withheld"),
        ({"withheld": "all"}, "withheld is 'all'"),
    ],
)
def test_a_first_line_that_does_not_fit_is_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = put(tmp_path / "advice", by_hand(TRACE, SAID, **changed))
    with pytest.raises(InputError, match=message) as caught:
        load_advice(path, TRACE)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"iteration": 2}, "line 5: iteration 2, layer 9; expected iteration 1, layer 9: the trace's record 3"),
        ({"layer": 5}, "line 5: iteration 1, layer 5; expected iteration 1, layer 9"),
        ({"layer": "9"}, "line 5: layer is '9'; expected an integer"),
        ({"experts": [8]}, "line 5: expert 8; expected ids below 8"),
        ({"experts": [1, 2, 1]}, r"line 5: experts \[1, 2, 1\] name one twice; expected distinct ids"),
        ({"experts": [-1]}, r"line 5: experts is \[-1\]"),
        ({"experts": [1.0]}, r"line 5: experts is \[1.0\]"),
        ({"experts": [True]}, r"line 5: experts is \[True\]"),
        ({"experts": 3}, "line 5: experts is 3; expected a list"),
        ({"experts": None}, "line 5: experts is None"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_by_its_line(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    lines = by_hand(TRACE, SAID)
    lines[4] |= changed
    with pytest.raises(InputError, match=message):
        load_advice(put(tmp_path / "advice", lines), TRACE)


@pytest.mark.parametrize("key", ["iteration", "layer", "experts"])
def test_a_record_without_a_key_is_refused(tmp_path: Path, key: str) -> None:
    lines = by_hand(TRACE, SAID)
    del lines[4][key]
    with pytest.raises(InputError, match=f"line 5: no {key} "):
        load_advice(put(tmp_path / "advice", lines), TRACE)


def test_advice_shorter_or_longer_than_the_trace_is_refused(tmp_path: Path) -> None:
    lines = by_hand(TRACE, SAID)
    path = put(tmp_path / "advice", lines[:6])
    with pytest.raises(InputError, match="it ends after 5 records, before iteration 2, layer 9; expected 8 records"):
        load_advice(path, TRACE)
    put(path, lines[:1])
    with pytest.raises(InputError, match="it ends after 0 records, before iteration 0, layer 5"):
        load_advice(path, TRACE)
    put(path, [*lines, {"iteration": 3, "layer": 5, "experts": []}])
    with pytest.raises(InputError, match="line 10: a record beyond the trace's last; expected 8 records"):
        load_advice(path, TRACE)


def test_every_cut_of_the_file_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "advice", by_hand(TRACE, SAID))
    whole = path.read_bytes()
    for size in range(len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"it is empty|the line is cut off|it ends after \d records"):
            load_advice(path, TRACE)
    path.write_bytes(whole[:-1])
    assert said(load_advice(path, TRACE)) == SAID


@pytest.mark.parametrize("name", ["a.gz", "a.zst"])
def test_a_cut_stream_is_refused(tmp_path: Path, name: str) -> None:
    trace = synth_trace(layers=2, iterations=20)
    write_advice(oracle(trace), tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 20):
        (tmp_path / name).write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"ends early|cut off"):
            load_advice(tmp_path / name, trace)


def test_what_is_no_file_of_advice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "advice"
    for content, message in (
        ("", f"advice {path} holds no record: it is empty; expected a file of advice"),
        ("[1, 2]\n", "line 1: a JSON list"),
        ("layer,expert\n", "line 1: no JSON"),
        ('{"format": NaN}\n', "line 1: NaN or Infinity"),
        ('{"iteration": 0, "layer": 5, "experts": [1]}\n', "line 1: keys iteration, layer, experts; expected"),
        ("BZh91AY", "compressed in a way that is not read here"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            load_advice(path, TRACE)
    with pytest.raises(InputError, match=f"advice {tmp_path}/none: No such file"):
        load_advice(tmp_path / "none", TRACE)
    with pytest.raises(InputError, match=f"advice {tmp_path}: it is a directory"):
        load_advice(tmp_path, TRACE)


def test_a_line_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "advice", by_hand(TRACE, SAID))
    path.write_text(path.read_text().replace('"layer": 9', "'layer': 9", 1))
    with pytest.raises(InputError, match="line 3: no JSON"):
        load_advice(path, TRACE)
