"""What is stored is plain JSON, and only sessions that measured the same are compared."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moetier.campaign import CellResult, Context
from pytest_moetier.cell import Cell
from pytest_moetier.errors import HarnessError
from pytest_moetier.finding import Metric
from pytest_moetier.history import compare, extra_info, metric_json, validate
from pytest_moetier.replay import ListFile
from pytest_moetier.units import Capacity

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
CELL = "C30pct-cgroup-mglru_host"


@given(value=JSON)
def test_what_json_can_carry_is_accepted_and_comes_back(value: Any) -> None:
    validate(value)
    assert json.loads(json.dumps(value, allow_nan=False)) == value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.nan, r"moetier\.metrics\.device_bytes\.values\[1\] is nan; expected a finite number"),
        (math.inf, r"moetier\.metrics\.device_bytes\.values\[1\] is inf; expected a finite number"),
        (-math.inf, r"values\[1\] is -inf"),
        (np.int64(3), r"values\[1\] is a int64; expected a plain JSON type"),
        (np.float64(3), r"values\[1\] is a float64; expected a plain JSON type"),
        (np.bool_(True), r"values\[1\] is a bool"),  # noqa: FBT003 - numpy's own spelling
        ((1, 2), r"values\[1\] is a tuple"),
        (b"x", r"values\[1\] is a bytes"),
        (np.zeros(2), r"values\[1\] is a ndarray"),
    ],
)
def test_what_json_cannot_carry_is_refused_by_its_place(value: Any, said: str) -> None:
    info = {"cell": {"id": CELL}, "metrics": {"device_bytes": {"unit": "B", "values": [1.0, value]}}}
    with pytest.raises(HarnessError, match=said):
        validate(info)


@pytest.fixture
def context() -> Context:
    """What the session that is compared rests on."""
    known: dict[str, Any] = {"pool": "/p", "pool_id": "9cb97aaf2a6cbba5", "pool_bytes": 1 << 26, "trace": "synthetic"}
    known |= {"synthetic_trace": True, "synthetic_pool": True, "plan_crc": "0badcafe", "iterations": 12, "threads": 2}
    known |= {"seed": 1, "cold_factor": 1.0, "workload": "single", "compute_seconds": 0.0}
    return Context(**{name: known.get(name) for name in Context.__dataclass_fields__})


def stored(context: Context, *values: float) -> dict[str, Any]:
    facts = {name: getattr(context, name) for name in Context.__dataclass_fields__}
    return {CELL: {"context": facts, "metrics": {"device_bytes": {"values": list(values)}}}}


NOW = {CELL: {"device_bytes": Metric("device_bytes", "B/iteration", "lower", (11.0, 10.0, 15.0))}}


def test_medians_are_compared_as_now_over_then(context: Context) -> None:
    (found,), refused = compare(stored(context, 20.0, 22.0, 30.0), NOW, {CELL: context}, {}, ["device_bytes"])
    assert refused == []
    assert (found.cell, found.metric, found.unit) == (CELL, "device_bytes", "B/iteration")
    assert (found.then, found.now, found.ratio) == (22.0, 11.0, 0.5)


def test_a_stored_zero_has_no_finite_ratio(context: Context) -> None:
    (found,), _ = compare(stored(context, 0.0), NOW, {CELL: context}, {}, ["device_bytes"])
    assert found.ratio == math.inf


@pytest.mark.parametrize(
    ("name", "other"),
    [("pool_id", "0"), ("plan_crc", "deadbeef"), ("iterations", 13), ("threads", 8), ("compute_seconds", 0.5)],
)
def test_a_session_that_measured_something_else_is_not_compared(context: Context, name: str, other: object) -> None:
    then = stored(replace(context, **{name: other}), 20.0)  # type: ignore[arg-type]
    found, refused = compare(then, NOW, {CELL: context}, {}, ["device_bytes"])
    assert found == []
    assert refused == [f"{CELL}: another {name} in the stored session"]


@pytest.mark.parametrize("name", ["seed", "pool", "cold_factor"])
def test_what_does_not_change_the_meaning_is_compared(context: Context, name: str) -> None:
    then = stored(replace(context, **{name: None}), 20.0)  # type: ignore[arg-type]
    found, refused = compare(then, NOW, {CELL: context}, {}, ["device_bytes"])
    assert len(found) == 1
    assert refused == []


def with_lists(then: dict[str, Any], *words: str) -> dict[str, Any]:
    """Return a stored cell that was given lists of these words."""
    return {CELL: {**then[CELL], "context": {**then[CELL]["context"], "lists": list(words)}}}


def test_a_cell_that_was_given_another_table_or_advice_is_not_compared(context: Context) -> None:
    then, now = stored(context, 20.0), {CELL: context}
    lists = {CELL: {"lists": ["table of another domain: code"]}}
    assert len(compare(with_lists(then, *lists[CELL]["lists"]), NOW, now, lists, ["device_bytes"])[0]) == 1
    for old in (with_lists(then, "table of another domain: math"), with_lists(then), then):
        found, refused = compare(old, NOW, now, lists, ["device_bytes"])
        assert (found, refused) == ([], [f"{CELL}: another lists in the stored session"])


def test_a_session_stored_before_lists_and_compute_phases_had_none(context: Context) -> None:
    then = stored(context, 20.0)
    del then[CELL]["context"]["compute_seconds"]
    assert len(compare(then, NOW, {CELL: context}, {}, ["device_bytes"])[0]) == 1
    later = {CELL: replace(context, compute_seconds=0.5)}
    _, refused = compare(then, NOW, later, {}, ["device_bytes"])
    assert refused == [f"{CELL}: another compute_seconds in the stored session"]


def test_each_cell_is_held_against_the_plan_of_its_own_workload(context: Context) -> None:
    batch = f"{CELL}-batch4"
    then = {**stored(context, 20.0), batch: stored(replace(context, plan_crc="b", workload="batch4"), 30.0)[CELL]}
    now = {CELL: NOW[CELL], batch: NOW[CELL]}
    contexts = {CELL: context, batch: replace(context, plan_crc="b", workload="batch4")}
    found, refused = compare(then, now, contexts, {}, ["device_bytes"])
    assert [(one.cell, one.then) for one in found] == [(CELL, 20.0), (batch, 30.0)]
    assert refused == []
    changed = {**contexts, batch: replace(contexts[batch], plan_crc="c")}
    found, refused = compare(then, now, changed, {}, ["device_bytes"])
    assert [one.cell for one in found] == [CELL]
    assert refused == [f"{batch}: another plan_crc in the stored session"]


def test_what_is_stored_of_a_cell_says_what_it_was_given(context: Context) -> None:
    cell = Cell("advice", Capacity.parse("30%"), prefetch="fadvise_oracle", spine="plain", read_limit=10**6)
    result = CellResult(cell)
    result.lists = [
        ListFile(Path("/secret/own.list"), "oracle", oracle=True, ids=np.arange(3, dtype=np.uint32), recall=1.0),
        ListFile(Path("/secret/train.list"), "table of the first 7", oracle=False, ids=np.arange(3, dtype=np.uint32)),
    ]
    found = extra_info(cell, NOW[CELL], result, context)
    assert found["lists"] == [
        {"words": "oracle", "oracle": True, "recall": 1.0},
        {"words": "table of the first 7", "oracle": False, "recall": None},
    ]
    stated = {name: found["cell"][name] for name in ("finding", "prefetch", "workload", "fill", "spine", "read_limit")}
    assert stated == {
        "finding": "advice",
        "prefetch": "fadvise_oracle",
        "workload": "single",
        "fill": "",
        "spine": "plain",
        "read_limit": 10**6,
    }
    assert found["cell"]["id"] == cell.id
    assert found["context"]["workload"] == "single"
    validate(found)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_cell_or_metric_that_was_not_stored_is_left_out(context: Context) -> None:
    now = {CELL: context}
    assert compare({}, NOW, now, {}, ["device_bytes"]) == ([], [f"{CELL}: not in the stored session"])
    assert compare(stored(context, 1.0), NOW, now, {}, ["seconds_per_iteration"]) == ([], [])
    assert compare(stored(context), NOW, now, {}, ["device_bytes"]) == ([], [])


def test_a_metric_is_stored_with_its_unit_direction_and_values() -> None:
    found = metric_json(NOW[CELL]["device_bytes"])
    assert found == {"unit": "B/iteration", "better": "lower", "values": [11.0, 10.0, 15.0]}
    validate(found)
