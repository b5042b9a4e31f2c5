"""What is stored is plain JSON, and says what it rests on."""

from __future__ import annotations

import json
import math
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
from pytest_moetier.history.sessions import STORED_VERSION, cell_of
from pytest_moetier.history.store import extra_info, metric_json, validate
from pytest_moetier.host.probe import host_facts
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


NOW = {CELL: {"device_bytes": Metric("device_bytes", "B/iteration", "lower", (11.0, 10.0, 15.0))}}


def test_what_is_stored_of_a_cell_says_what_it_was_given(context: Context) -> None:
    cell = Cell("advice", Capacity.parse("30%"), prefetch="fadvise_oracle", spine="plain", read_limit=10**6)
    result = CellResult(cell)
    result.lists = [
        ListFile(Path("/secret/own.list"), "oracle", oracle=True, ids=np.arange(3, dtype=np.uint32), recall=1.0),
        ListFile(Path("/secret/train.list"), "table of the first 7", oracle=False, ids=np.arange(3, dtype=np.uint32)),
    ]
    found = extra_info(cell, NOW[CELL], result, context, "mine")
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
    assert (found["schema_version"], found["profile"]) == (STORED_VERSION, "mine")
    assert found["host"] == {"fingerprint": host_facts().fingerprint(), "release": host_facts().release}
    back = cell_of(found, [])
    assert (back.context["lists"], back.context["profile"]) == (["oracle", "table of the first 7"], "mine")
    assert back.metrics["device_bytes"].values == (11.0, 10.0, 15.0)


def test_a_metric_is_stored_with_its_unit_direction_and_values() -> None:
    found = metric_json(NOW[CELL]["device_bytes"])
    assert found == {"unit": "B/iteration", "better": "lower", "values": [11.0, 10.0, 15.0]}
    validate(found)
