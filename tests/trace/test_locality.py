"""Locality: published figures of recorded traces, plain numpy as a second witness, and sets counted by hand."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_moetier import _trace
from pytest_moetier.errors import InputError
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.locality import DEFINITIONS, Locality, as_json, jaccard, locality, table, top_experts
from pytest_moetier.trace.records import Trace
from pytest_moetier.trace.selections import Selections

RECORDED = Path(os.environ.get("MOETIER_TRACES", "MOETIER_TRACES-is-not-set"))
PEER = Path(__file__).parents[1] / "peers" / "locality.py"
SUMS = 197
WIDTHS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
recorded = pytest.mark.skipif(not RECORDED.is_dir(), reason="recorded traces: MOETIER_TRACES names no directory")


def load_peer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peers_locality", PEER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


peer = load_peer()


def selections(  # noqa: PLR0913  (what a test varies, by keyword)
    ids: Any,
    *,
    k: int,
    n_experts: int,
    layers: tuple[int, ...] = (0,),
    row_layer: Any = None,
    dtype: str = "u2",
    synthetic: bool = False,
    source: str = "test",
) -> Selections:
    return Selections(
        ids=np.asarray(ids, dtype=dtype).reshape(-1),
        row_layer=None if row_layer is None else np.asarray(row_layer, dtype=np.uint16),
        layers=layers,
        n_experts=n_experts,
        k=k,
        phase="decode",
        order="score order",
        synthetic=synthetic,
        source=source,
    )


def draw_rows(rng: np.random.Generator, n: int, n_experts: int, k: int) -> NDArray[np.int64]:
    """Return n skewed rows of k distinct ids."""
    keys = np.log(np.arange(1, n_experts + 1)) + rng.gumbel(size=(n, n_experts))
    return np.argsort(keys, axis=1)[:, :k]


def near(one: float, other: float) -> bool:
    return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12)


def assert_same(ours: Locality, rows_by_layer: list[NDArray[Any]]) -> None:
    """Hold ours against plain numpy: integers exactly, floats to 1e-12."""
    theirs = peer.plain(rows_by_layer, ours.n_experts)
    for i, one in enumerate(theirs.layers):
        assert ours.positions[i] == len(rows_by_layer[i])
        assert ours.counts[i].tolist() == one.counts.tolist()
        assert ours.shared[i].tolist() == one.shared.tolist()
        assert ours.gaps[i].tolist() == one.gaps.tolist()
        assert (ours.distinct[i], ours.for_80[i]) == (one.distinct, one.for_80)
        assert near(ours.slopes[i], one.slope)
        assert ours.masses.keys() == one.masses.keys()
        assert all(near(ours.masses[top][i], mass) for top, mass in one.masses.items())
        assert all(near(ours.distinct_means[span][i], value) for span, value in one.distinct_means.items())
    assert near(ours.zipf_slope, theirs.slope)
    assert all(near(ours.reuse(window), value) for window, value in theirs.reuse.items())
    assert all(near(ours.overlap(i + 1), value) for i, value in enumerate(theirs.overlap))
    assert all(near(ours.top_mass(top), value) for top, value in theirs.masses.items())
    assert all(near(ours.distinct_in(span), value) for span, value in theirs.distinct_means.items())
    assert near(ours.pool_coverage, theirs.coverage)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_figure_is_that_of_plain_numpy(data: st.DataObject) -> None:
    n_layers = data.draw(st.integers(1, 5))
    n_experts = data.draw(st.sampled_from([1, 2, 3, 8, 63, 64, 65, 100]))
    k = data.draw(st.integers(1, min(n_experts, 17)))
    passes = data.draw(st.lists(st.integers(1, 200), min_size=n_layers, max_size=n_layers))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    row_layer = rng.permutation(np.repeat(np.arange(n_layers), passes))
    rows = draw_rows(rng, len(row_layer), n_experts, k)
    layers = tuple(range(3, 3 + n_layers))
    width = data.draw(st.sampled_from(WIDTHS))
    got = locality(selections(rows, k=k, n_experts=n_experts, layers=layers, row_layer=row_layer, dtype=width))
    assert_same(got, [rows[row_layer == layer] for layer in range(n_layers)])


@settings(max_examples=40, deadline=None)
@given(
    n_layers=st.integers(1, 7), n_rows=st.integers(7, 400), k=st.sampled_from([1, 6, 8, 9]), seed=st.integers(0, 2**32)
)
def test_rows_that_cycle_through_the_layers_need_no_column(n_layers: int, n_rows: int, k: int, seed: int) -> None:
    rows = draw_rows(np.random.default_rng(seed), n_rows, 20, k)
    got = locality(selections(rows, k=k, n_experts=20, layers=tuple(range(n_layers))))
    assert_same(got, [rows[layer::n_layers] for layer in range(n_layers)])


@settings(max_examples=60, deadline=None)
@given(n_rows=st.integers(1, 90), n_experts=st.integers(2, 12), seed=st.integers(0, 2**32))
def test_reuse_overlap_and_windows_are_what_sets_say(n_rows: int, n_experts: int, seed: int) -> None:
    k = 1 + seed % min(4, n_experts)
    rows = draw_rows(np.random.default_rng(seed), n_rows, n_experts, k)
    got = locality(selections(rows, k=k, n_experts=n_experts))
    sets = [set(row.tolist()) for row in rows]
    for window in (1, 8, 64, 5):
        hits = [len(sets[t] & set().union(*sets[max(0, t - window) : t])) for t in range(1, n_rows)]
        assert near(got.reuse(window), sum(hits) / (k * len(hits)) if hits else math.nan)
    for distance in (1, 2, 8, 63, 64):
        shares = [len(sets[t] & sets[t - distance]) / k for t in range(distance, n_rows)]
        assert near(got.overlap(distance), sum(shares) / len(shares) if shares else math.nan)
    for span in (8, 64):
        unions = [len(set().union(*sets[t : t + span])) for t in range(n_rows - span + 1)]
        assert near(got.distinct_in(span), sum(unions) / len(unions) if unions else math.nan)


def test_a_trace_longer_than_every_block_and_counter_is_counted_whole() -> None:
    rng = np.random.default_rng(5)
    rows = np.tile(draw_rows(rng, 1000, 16, 8), (60, 1))  # 60,000 rows: blocks of 8192, byte lanes that hold 255 eights
    got = locality(selections(rows, k=8, n_experts=16, layers=(0, 1, 2)))
    assert_same(got, [rows[layer::3] for layer in range(3)])


def test_chunks_carry_on_where_the_last_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = draw_rows(np.random.default_rng(6), 500, 30, 6)
    column = np.arange(500) % 7 // 2
    whole = [
        as_json(locality(selections(rows, k=6, n_experts=30, layers=(0, 1, 2, 3), row_layer=named)))
        for named in (None, column)
    ]
    monkeypatch.setattr("pytest_moetier.trace.locality._CHUNK_IDS", 6 * 37)
    for named, before in zip((None, column), whole, strict=True):
        cut = locality(selections(rows, k=6, n_experts=30, layers=(0, 1, 2, 3), row_layer=named))
        assert as_json(cut) == before


def test_a_mapped_file_is_read_as_it_lies(tmp_path: Path) -> None:
    rows = draw_rows(np.random.default_rng(7), 300, 40, 4).astype(np.uint8)
    np.save(tmp_path / "t.npy", rows.reshape(100, 3, 4))
    ids = np.load(tmp_path / "t.npy", mmap_mode="r").reshape(-1)
    assert not ids.flags.writeable
    got = locality(Selections(ids, None, (1, 2, 3), 40, 4, "decode", "score order", False, "t.npy"))  # noqa: FBT003
    assert_same(got, [rows[layer::3] for layer in range(3)])


@pytest.mark.parametrize(
    "prepare", [lambda ids: ids.astype(">u2"), lambda ids: np.repeat(ids, 2)[::2]], ids=["byte order", "gaps"]
)
def test_ids_in_another_byte_order_or_with_gaps_between_are_read_too(prepare: Any) -> None:
    rows = draw_rows(np.random.default_rng(8), 50, 300, 4)
    plain = selections(rows, k=4, n_experts=300)
    odd = Selections(prepare(plain.ids), None, (0,), 300, 4, "decode", "score order", False, "test")  # noqa: FBT003
    assert as_json(locality(odd)) == as_json(locality(plain))


def test_one_pass_leaves_what_needs_two_undefined() -> None:
    got = locality(selections([3, 1], k=2, n_experts=4))
    assert math.isnan(got.reuse(1))
    assert math.isnan(got.overlap(1))
    assert math.isnan(got.distinct_in(8))
    assert (got.union_first, got.pool_coverage, got.top_mass(1), got.zipf_slope) == (2, 0.5, 0.5, 0.0)
    text = json.dumps(as_json(got), allow_nan=False)
    assert json.loads(text)["reuse"] == {"1": None, "8": None, "64": None}
    assert json.loads(text)["overlap"] == [None] * 64


def test_a_single_expert_has_no_slope() -> None:
    got = locality(selections([0, 0, 0], k=1, n_experts=1))
    assert math.isnan(got.zipf_slope)
    assert (got.reuse(1), got.overlap(2), got.pool_coverage, got.for_80_range) == (1.0, 1.0, 1.0, (1, 1.0, 1))
    assert as_json(got)["zipf_slope"] is None


def test_all_experts_every_pass_repeat_wholly_and_without_skew() -> None:
    got = locality(selections(np.tile(np.arange(10), 100), k=10, n_experts=10, layers=(0, 1)))
    assert (got.reuse(1), got.reuse(64), got.overlap(1), got.overlap(49)) == (1.0, 1.0, 1.0, 1.0)
    assert math.isnan(got.overlap(50))
    assert (got.zipf_slope, got.top_mass(8), got.depth_gradient(8), got.distinct_in(8)) == (0.0, 0.8, 1.0, 10.0)
    assert got.for_80_range == (8, 8.0, 8)


def test_a_layer_with_fewer_passes_counts_by_what_it_has() -> None:
    row_layer = [0, 1] * 9 + [0] * 60
    rows = draw_rows(np.random.default_rng(9), len(row_layer), 12, 3)
    got = locality(selections(rows, k=3, n_experts=12, layers=(4, 5), row_layer=row_layer))
    assert_same(got, [rows[np.array(row_layer) == layer] for layer in (0, 1)])
    assert math.isnan(got.distinct_means[64][1])
    assert got.distinct_in(64) == got.distinct_means[64][0]
    assert as_json(got)["by_layer"]["distinct_in"]["64"][1] is None
    assert as_json(got)["positions"] == {"min": 9, "max": 69}


def test_a_layer_without_a_pass_is_left_out_of_means() -> None:
    got = locality(selections([0, 1, 0, 2], k=2, n_experts=4, layers=(0, 1), row_layer=[1, 1]))
    assert (got.union_first, got.union_max, got.pool_coverage) == (0, 3, 3 / 8)
    assert (got.top_mass(2), got.most_concentrated(1), got.for_80_range) == (0.75, (1, 0.5), (3, 3.0, 3))
    assert math.isnan(got.depth_gradient(2))
    assert as_json(got)["top_mass_by_depth"]["2"]["gradient"] is None


def test_the_widest_model_is_counted() -> None:
    rng = np.random.default_rng(10)
    rows = np.stack([rng.permutation(65536)[:9] for _ in range(70)])
    rows[1:, 0] = 65535
    rows[1:, 1:] %= 65535
    got = locality(selections(rows, k=9, n_experts=65536))
    assert_same(got, [rows])


def test_memory_is_at_most_64_bytes_an_expert_beside_the_map(tmp_path: Path) -> None:
    peer.generate(tmp_path / "t.npy", 10**6)
    assert peer.peak_bytes(tmp_path / "t.npy") <= 64 * peer.LAYERS * peer.EXPERTS


@pytest.mark.parametrize(
    ("dtype", "at", "value", "message"),
    [
        ("u2", 7 * 4 + 2, 50, r"row 7 \(layer 11\) names expert 50; expected ids from 0 to 49"),
        ("i2", 7 * 4 + 2, -1, r"row 7 \(layer 11\) names expert -1; expected"),
        ("i1", 8 * 4, -1, r"row 8 \(layer 10\) names expert -1; expected"),
        ("i8", 9 * 4, -(2**63), r"row 9 \(layer 11\) names expert -9223372036854775808"),
        ("u8", 9999 * 4, 2**64 - 1, r"row 9999 \(layer 11\) names expert 18446744073709551615"),
    ],
)
def test_an_id_that_is_no_expert_is_named_with_row_and_layer(dtype: str, at: int, value: int, message: str) -> None:
    ids = draw_rows(np.random.default_rng(11), 10000, 50, 4).reshape(-1).astype(dtype)
    ids[at] = value
    with pytest.raises(InputError, match=message):
        locality(selections(ids, k=4, n_experts=50, layers=(10, 11), dtype=dtype))


def test_a_negative_id_is_no_expert_where_its_bits_would_be_one() -> None:
    ids = np.array([-1], dtype=np.int8)
    with pytest.raises(InputError, match=r"row 0 \(layer 0\) names expert -1; expected ids from 0 to 255"):
        locality(selections(ids, k=1, n_experts=256, dtype="i1"))


@pytest.mark.parametrize("row", [0, 1, 8191, 8192, 19_999])
def test_an_id_twice_in_a_row_is_named_with_row_and_layer(row: int) -> None:
    rows = draw_rows(np.random.default_rng(12), 20_000, 30, 5)
    rows[row, 4] = rows[row, 1]
    rows[-1, 3] = rows[-1, 0]  # of two faults the first is named
    expected = rows[row, 1] if row < 19_999 else next(x for i, x in enumerate(rows[-1]) if x in rows[-1, :i])
    with pytest.raises(InputError, match=rf"row {row} \(layer {row % 3}\) names expert {expected} twice; expected 5"):
        locality(selections(rows, k=5, n_experts=30, layers=(0, 1, 2)))


def test_the_first_of_several_faults_is_named_whatever_its_layer() -> None:
    rows = draw_rows(np.random.default_rng(13), 100, 30, 2)
    rows[40] = 99
    rows[60] = 98
    with pytest.raises(InputError, match=r"row 40 \(layer 1\) names expert 99"):
        locality(selections(rows, k=2, n_experts=30, layers=(0, 1), row_layer=[0] * 40 + [1] * 20 + [0] * 40))


def test_a_row_of_no_layer_is_named() -> None:
    with pytest.raises(InputError, match="row 1 is of the layer with index 2; expected one below 2"):
        locality(selections([0, 1, 0], k=1, n_experts=2, layers=(5, 6), row_layer=[0, 2, 1]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": []}, "no pass in phase decode"),
        ({"layers": ()}, "no pass in phase decode"),
        ({"ids": [0, 1, 2]}, r"shape \(3,\); expected whole rows of 2 integers"),
        ({"dtype": "f4"}, "ids of type float32"),
        ({"k": 5}, "k = 5 of 4 experts"),
        ({"k": 0}, "k = 0 of 4 experts"),
        ({"n_experts": 65537}, "k = 2 of 65537 experts"),
        ({"row_layer": [0]}, "1 layers for 2 rows"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        locality(selections(**{"ids": [0, 1, 2, 3], "k": 2, "n_experts": 4, **change}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": np.zeros(4, np.float32)}, "ids has items of format 'f'"),
        ({"ids": np.zeros(4, np.bool_)}, r"ids has items of format '\?'"),
        ({"ids": np.zeros(4, ">u2")}, "ids has items of format '>H'"),
        ({"ids": np.zeros((2, 2), np.uint16)}, "in 2 dimensions; expected native integers in 1"),
        ({"ids": np.zeros(8, np.uint16)[::2]}, "ids is not contiguous or not aligned"),
        ({"ids": np.frombuffer(bytes(9), np.uint16, 4, offset=1)}, "ids is not contiguous or not aligned"),
        ({"ids": np.zeros(3, np.uint16)}, "3 ids in rows of 2; expected whole rows"),
        ({"row_layer": np.zeros(3, np.uint16)}, "row_layer has 3 items; expected 2, one per row"),
        ({"row_layer": np.zeros(2, np.int16)}, "row_layer has items of format 'h'"),
        ({"first_row": -1}, "first_row is -1 and k is 2"),
        ({"k": 0}, "first_row is 0 and k is 0"),
        ({"experts": np.zeros(0, np.uint64)}, "experts has 0 items; expected 2 for each expert of 1 layers"),
        ({"experts": np.zeros(3, np.uint64)}, "experts has 3 items"),
        ({"experts": np.frombuffer(bytes(64), np.uint64)}, "experts or sums is read-only"),
        ({"sums": np.zeros(SUMS - 1, np.uint64)}, f"sums has {SUMS - 1} items; expected {SUMS} for each layer"),
        ({"sums": np.zeros(0, np.uint64)}, "sums has 0 items"),
        ({"sums": np.full(SUMS, 2**32 - 2, np.uint64)}, r"a layer may have 2\^32 passes or more"),
    ],
)
def test_the_extension_refuses_buffers_it_cannot_take(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "ids": np.array([0, 1, 2, 3], np.uint16),
        "row_layer": None,
        "first_row": 0,
        "k": 2,
        "experts": np.zeros(8, np.uint64),
        "sums": np.zeros(SUMS, np.uint64),
        **change,
    }
    with pytest.raises(ValueError, match=message):
        _trace.locality(**arguments)


def test_the_extension_refuses_ids_that_it_would_write_over() -> None:
    memory = np.zeros(2 * 8 + SUMS, np.uint64)
    with pytest.raises(ValueError, match="shares memory with another buffer"):
        _trace.locality(memory[8:16], None, 0, 2, memory[:16], memory[16:])


def test_other_threads_run_while_ids_are_read() -> None:
    ids = np.tile(np.arange(8, dtype=np.uint16), 1 << 21)
    sums = np.zeros(SUMS, np.uint64)
    worker = threading.Thread(target=_trace.locality, args=(ids, None, 0, 8, np.zeros(16, np.uint64), sums))
    worker.start()
    turns = 0
    while worker.is_alive():
        turns += 1
    assert turns > 100
    assert sums[-1] == 1 << 21


def pair(one: list[list[int]], other: list[list[int]], **more: Any) -> tuple[Locality, Locality]:
    return (
        locality(selections(one, k=2, n_experts=8, source="one", **more)),
        locality(selections(other, k=2, n_experts=8, source="other", **more)),
    )


def test_jaccard_takes_ties_by_lower_id_and_no_expert_that_was_never_chosen() -> None:
    one, other = pair([[0, 1], [0, 2], [0, 3]], [[0, 1], [4, 5]])
    assert top_experts(one, 2) == [{0, 1}]
    assert top_experts(one, 16) == [{0, 1, 2, 3}]
    assert jaccard(one, other, 1) == 1.0
    assert jaccard(one, other, 3) == 0.5  # {0, 1, 2} and {0, 1, 4}
    assert jaccard(one, other) == 2 / 6
    assert jaccard(one, one) == 1.0


def test_jaccard_is_the_mean_over_layers() -> None:
    one, other = pair([[0, 1], [0, 1]], [[0, 1], [2, 3]], layers=(0, 1))
    assert jaccard(one, other, 2) == 0.5


def test_traces_of_different_shape_do_not_compare() -> None:
    one = locality(selections([0, 1], k=2, n_experts=8, source="a.jsonl"))
    other = locality(selections([0, 1, 2, 3], k=2, n_experts=8, layers=(0, 1), source="b.jsonl"))
    with pytest.raises(
        InputError, match=r"a.jsonl has 1 layers \(0\) x 8 experts, k = 2; b.jsonl has 2 layers \(0-1\)"
    ):
        jaccard(one, other)
    with pytest.raises(InputError, match="the top 0 experts"):
        jaccard(one, one, 0)
    assert "not comparable: a.jsonl has 1 layers" in table([one, other], ["a", "b"])[-1]


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.reuse(0),
        lambda one: one.overlap(65),
        lambda one: one.top_mass(3),
        lambda one: one.distinct_in(9),
    ],
    ids=["reuse", "overlap", "mass", "span"],
)
def test_a_figure_that_was_not_counted_is_refused(call: Any) -> None:
    with pytest.raises(InputError, match="expected"):
        call(locality(selections([0, 1], k=2, n_experts=8)))


def test_the_json_states_every_definition_and_every_layer() -> None:
    rows = draw_rows(np.random.default_rng(14), 400, 32, 4)
    got = locality(selections(rows, k=4, n_experts=32, layers=(2, 3, 4, 5)))
    out = json.loads(json.dumps(as_json(got), allow_nan=False))
    assert out["definitions"] == dict(DEFINITIONS)
    assert (out["n_rows"], out["n_selections"], out["layers"]) == (400, 1600, [2, 3, 4, 5])
    assert list(out["top_mass"]) == ["1", "2", "4", "8", "16", "32"]
    assert out["top_mass"]["32"] == 1.0
    assert len(out["overlap"]) == 64
    assert out["overlap"][0] == out["reuse"]["1"] == got.reuse(1)
    assert {len(column) for column in out["by_layer"].values() if isinstance(column, list)} == {4}
    depth = out["top_mass_by_depth"]["8"]
    assert depth["gradient"] == depth["most_concentrated"] / depth["first_layer"]
    assert depth["most_concentrated_layer"] in (2, 3, 4, 5)


def test_the_table_has_a_column_for_each_trace_and_marks_the_synthetic_one() -> None:
    rows = draw_rows(np.random.default_rng(15), 100, 32, 4)
    real = locality(selections(rows[:60], k=4, n_experts=32, layers=(0, 1)))
    made = locality(selections(rows[60:], k=4, n_experts=32, layers=(0, 1), synthetic=True))
    lines = table([real, made], ["prose", "code"], top=8)
    assert lines[0] == "phase decode; order within a pass: score order"
    body = lines[lines.index("") + 1 :]
    assert body[0].split() == ["prose", "code", "(synthetic)"]
    cells = {line[:50].split("  ")[0]: line.split()[-2:] for line in body}
    assert cells["reuse W1"] == [f"{real.reuse(1):.4f}", f"{made.reuse(1):.4f}"]
    assert cells["overlap at distance 64"] == ["-", "-"]
    assert len({len(line) for line in body[1 : body.index("")] if line.startswith("reuse")}) == 1
    figure = f"{jaccard(real, made, 8):.4f}"
    assert lines[-1] == f"Jaccard, N = 8 most selected experts of a layer, prose / code (synthetic): {figure}"
    assert not any(line.startswith("Jaccard") for line in table([real], ["prose"]))


# Recorded traces, and what was published of them.

OLMOE = {
    "domain_switch": 0.3943,
    "math_reasoning": 0.4480,
    "python_code": 0.4833,
    "systems_en": 0.4599,
    "systems_it": 0.4340,
}


def of_trace(parts: list[Trace], phase: str) -> Selections:
    """Return the selections of traces whose records are single passes, one behind the other."""
    layers = parts[0].layers
    return Selections(
        ids=np.concatenate([part.experts for part in parts]),
        row_layer=np.searchsorted(layers, np.concatenate([part.layer for part in parts])).astype(np.uint16),
        layers=layers,
        n_experts=64,
        k=parts[0].k,
        phase=phase,
        order="score order",
        synthetic=False,
        source=parts[0].source,
    )


def olmoe(name: str, phase: str) -> Locality:
    file = RECORDED / "olmoe-moevm-lab" / f"seed-17__{name}.trace.jsonl"
    trace = load_trace(file, n_experts=64)
    assert trace.prefill is not None
    return locality(of_trace({"all": [trace.prefill, trace], "decode": [trace]}[phase], phase))


def bigmoe(name: str, phase: int) -> Locality:
    """Read BigMoeOnEdge's CSV: one line per slot; the prompt's last layer has one position only."""
    path = RECORDED / "bigmoe-on-edge" / f"{name}.route.csv"
    with path.open(encoding="utf-8", newline="") as handle:
        lines = list(csv.reader(line for line in handle if not line.startswith("#")))[1:]
    table_ = np.array([[int(row[at]) for at in (1, 2, 3, 4, 5)] for row in lines if int(row[1]) == phase])
    assert table_[:, 3].tolist() == (np.arange(len(table_)) % 6).tolist()
    layers = tuple(np.unique(table_[:, 2]).tolist())
    return locality(
        selections(table_[:, 4], k=6, n_experts=128, layers=layers, row_layer=table_[::6, 2], source=path.name)
    )


def kimi() -> Locality:
    """Read the last pass of Kimi-K3's file: 12 positions of 92 layers, layer by layer."""
    pairs = np.fromfile(RECORDED / "kimi-k3" / "expert_trace.bin", dtype="<i4").reshape(-1, 2)[-12 * 16 * 92 :]
    assert (pairs[:, 0].reshape(92, -1) == np.arange(1, 93)[:, None]).all()
    return locality(
        selections(pairs[:, 1], k=16, n_experts=896, layers=tuple(range(1, 93)), row_layer=np.repeat(np.arange(92), 12))
    )


@recorded
@pytest.mark.parametrize("name", OLMOE)
def test_olmoe_overlaps_over_all_tokens_are_those_published(name: str) -> None:
    got = olmoe(name, "all")
    assert round(got.overlap(1), 4) == OLMOE[name]
    assert 0.23 <= round(got.overlap(8), 2) <= 0.31


@recorded
def test_olmoe_experts_for_80_percent_over_all_tokens_are_those_published() -> None:
    """Published of ten files, two seeds by five prompts: 14-37, medians 23-29; these five have 14-34 and 23-28."""
    ranges = [olmoe(name, "all").for_80_range for name in OLMOE]
    assert min(low for low, _, _ in ranges) == 14
    assert max(high for _, _, high in ranges) == 34
    assert [middle for _, middle, _ in ranges] == [27.5, 23.0, 28.0, 25.5, 27.0]


@recorded
@pytest.mark.parametrize(("name", "w1"), [("qwen", 0.3795), ("gemma", 0.3571)])
def test_decode_reuse_of_the_previous_pass_is_that_published(name: str, w1: float) -> None:
    got = bigmoe(name, 1)
    assert round(got.reuse(1), 4) == w1
    assert got.reuse(1) == got.overlap(1)
    assert set(got.positions.tolist()) == {128}


@recorded
def test_qwen_slope_is_the_one_of_the_definition() -> None:
    assert round(bigmoe("qwen", 1).zipf_slope, 3) == 1.178


@recorded
def test_a_pruned_last_layer_of_a_prompt_has_one_position() -> None:
    got = bigmoe("qwen", 0)
    assert got.positions.tolist() == [28] * 47 + [1]
    assert math.isnan(got.reuse_by_layer(1)[47])
    assert int(got.distinct[47]) == 6


@recorded
def test_kimi_overlap_over_its_true_positions_is_that_published() -> None:
    got = kimi()
    assert set(got.positions.tolist()) == {12}
    assert round(got.overlap(1), 3) == 0.343
