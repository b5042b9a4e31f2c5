"""What a test over several cells is given: its own file's proved cells, and figures paired round by round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from curves import Known, cell_of, lost, proved, values

from pytest_moetier.errors import HostBusyError
from pytest_moetier.finding import metrics_of
from pytest_moetier.fixtures import CellHandle
from pytest_moetier.replay import ListFile
from pytest_moetier.span import Span


def known(*cells: Any, **how: Any) -> Known:
    return Known("policy", cells, **how)


def seconds(cell: Any, *times: float) -> Any:
    return proved(cell, {"seconds_per_iteration": times})


def test_a_ratio_is_that_of_each_round_and_not_of_the_medians() -> None:
    """The host was slow in the second round: for both cells."""
    slow, fast = seconds(cell_of("policy", mode="drop"), 2.0, 4.4, 2.1), seconds(cell_of("policy"), 1.0, 2.0, 1.0)
    found = known(slow, fast).curve().ratio("seconds_per_iteration", slow, fast)
    assert found == Span(pytest.approx(2.0), pytest.approx(2.1), pytest.approx(2.2))
    back = known(slow, fast).curve().ratio("seconds_per_iteration", fast, slow)
    assert (back.low, back.high) == (pytest.approx(1 / 2.2), pytest.approx(1 / 2.0))


def test_nothing_over_nothing_is_alike_and_something_over_nothing_is_endless() -> None:
    one, other = (proved(cell_of("policy", mode=mode), {"major_faults": [5.0, 0.0]}) for mode in ("mmap", "direct"))
    none = proved(cell_of("policy"), {"major_faults": [0.0, 0.0]})
    curve = known(one, other, none).curve()
    assert curve.ratio("major_faults", one, none) == Span(1.0, math.inf, math.inf)
    assert curve.ratio("major_faults", none, none) == Span(1.0, 1.0, 1.0)
    assert curve.ratio("major_faults", none, one).low == 0.0


def test_a_cell_is_found_by_any_of_its_words_and_the_largest_capacity_wins() -> None:
    cells = [seconds(cell_of("policy", capacity, mode="mmap"), 1.0) for capacity in ("30%", "5%", "200MB")]
    curve = known(*cells, seconds(cell_of("policy", "50%"), 1.0)).curve()
    assert curve.cell(mode="mmap") is cells[0]
    assert curve.cell(mode="mmap", capacity=cells[1].cell.capacity) is cells[1]
    assert curve.cell(mode="mmap", spine="locked") is None
    assert [one.cell.capacity.text for one in curve.results] == ["5%", "200MB", "30%", "50%"]


def test_a_cell_that_is_needed_and_not_proved_ends_the_test() -> None:
    busy = HostBusyError("another process moved memory")
    curve = known(lost(cell_of("policy"), skipped=busy)).curve()
    assert curve.cell(mode="page_cache") is None
    with pytest.raises(pytest.skip.Exception, match=r"^no proved cell of mode page_cache, spine none: another process"):
        curve.need(mode="page_cache", spine="none")


def test_a_curve_is_of_its_own_files_cells_though_others_were_measured_in_the_session() -> None:
    mine, theirs = seconds(cell_of("policy"), 1.0), seconds(cell_of("advice", mode="mmap"), 1.0)
    session = known(mine, elsewhere=[theirs])
    assert session.curve().results == [mine]
    assert session.curve().cell(mode="mmap") is None
    assert len(session.session.campaign.results) == 2


def test_one_measurement_that_two_files_ask_for_belongs_to_both() -> None:
    shared = seconds(cell_of("policy"), 1.0)
    asked_too = seconds(cell_of("capacity"), 1.0)
    assert shared.cell.id == asked_too.cell.id
    session = known(shared, elsewhere=[asked_too])
    assert [one.cell.id for one in session.curve().results] == [shared.cell.id]


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ({"mechanism": "balloon"}, "mechanism"),
        ({"mglru": "on"}, "mglru"),
        ({"read_limit": 10**6}, "read_limit"),
        ({"capacity": "30%"}, "capacity"),
    ],
)
def test_cells_under_another_pressure_are_not_compared(words: Mapping[str, Any], word: str) -> None:
    one, other = seconds(cell_of("policy"), 1.0), seconds(cell_of("policy", **{"mode": "mmap", **words}), 2.0)
    curve = known(one, other).curve()
    with pytest.raises(pytest.skip.Exception, match=f"differ in {word}; expected cells that do not"):
        curve.ratio("seconds_per_iteration", one, other)
    with pytest.raises(pytest.skip.Exception, match=f"differ in {word}"):
        curve.medians("seconds_per_iteration", one, other)


def test_medians_are_over_the_rounds_of_each_cell_in_the_order_asked() -> None:
    one, other = seconds(cell_of("policy"), 1.0, 9.0, 2.0), seconds(cell_of("policy", mode="mmap"), 5.0, 4.0, 3.0)
    curve = known(one, other).curve()
    assert curve.medians("seconds_per_iteration", one, other) == [2.0, 4.0]
    assert curve.medians("seconds_per_iteration", other, one) == [4.0, 2.0]


def test_a_metric_that_one_round_lacks_is_no_metric() -> None:
    one = proved(cell_of("policy"), {"device_bytes": [1.0, None, 3.0]})
    assert "device_bytes" not in metrics_of(one.runs)
    with pytest.raises(pytest.skip.Exception, match=r"^device_bytes of C17\.7pct.* was not observed here"):
        known(one).curve().medians("device_bytes", one)


def test_two_findings_on_one_measurement_have_each_their_record_and_name() -> None:
    result = proved(cell_of("policy"), {"device_bytes": [10.0, 10.0]})
    result.lists = [ListFile(Path("/t"), "a table", oracle=True, ids=np.zeros(0, np.uint32))]
    session = known(result).session
    for finding in ("policy", "capacity"):
        cell = cell_of(finding)
        request = Known(finding, [result]).request(f"test_{finding}", cell)
        handle = CellHandle(request, session, result, None)
        assert handle.cell == cell
        handle.measure()
        handle.judge()
    found = session.records
    assert {one.finding for one in found.values()} == {"policy", "capacity"}
    assert [one.test for one in found.values()] == ["test_policy", "test_capacity"]
    assert {one.cell for one in found.values()} == {result.cell.id}
    assert [len(one.judgements) for one in found.values()] == [1, 1]
    assert all(one.lists == tuple(result.lists) for one in found.values())
    assert [values(one) for one in found.values()] == [{"device_bytes_spread": 0.0}] * 2


def test_the_rail_is_anchored_at_the_largest_capacity_of_the_same_mode_alone() -> None:
    def at(capacity: str, device: float, **words: str) -> Any:
        return proved(cell_of("capacity", capacity, **words), {"device_bytes": [device]})

    small = at("10%", 420.0)
    others = [
        at("40%", 100.0),
        at("80%", 1.0, mode="drop"),
        at("90%", 1.0, workload="batch4"),
        at("95%", 1.0, mglru="on"),
    ]
    session = Known("capacity", [small, *others])
    handle = CellHandle(session.request("test_capacity", small.cell), session.session, small, None)
    assert handle.measure()["rail_deviation"].median == pytest.approx(420 / 400 - 1)
