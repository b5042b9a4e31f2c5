"""What the finding on collapses and the room before them says of passes that are known beforehand."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from curves import Known, held, pages, reclaim, values
from known import module_of

from pytest_moetier.audit import Audit
from pytest_moetier.campaign import CellResult

ROOMS = ("oldest generation", "C - protected")
HEALTHY, COLLAPSED = (150, 150, 50), (50, 250, 100)
"""Pages of the oldest generation before an iteration, those protected, and those read in it; C is 300 pages."""


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The finding's module."""
    return module_of("generations")


def passed(*audits: Audit | None, mechanism: str = "cgroup", states: dict[str, str] | None = None) -> CellResult:
    """Return a proved cell with the audits of its boots."""
    return held(reclaim(mechanism, "on"), *[1.0] * len(audits), audit=list(audits), states=states)


def judged(bench: ModuleType, room: str, *found: CellResult) -> Any:
    return Known("generations", list(found)).judged(bench.test_room_tells_the_collapse, room)


@pytest.mark.parametrize("room", ROOMS)
def test_collapses_with_less_room_before_them_support_it(bench: ModuleType, room: str) -> None:
    record = judged(bench, room, passed(pages([*[HEALTHY] * 20, *[COLLAPSED] * 20])))
    assert (record.verdict, values(record)) == ("supported", {"room_auc": 1.0})


@pytest.mark.parametrize("room", ROOMS)
def test_collapses_with_more_or_as_much_room_refute_it(bench: ModuleType, room: str) -> None:
    more, as_much = (250, 50, 100), (150, 150, 100)
    for collapsed, auc in ((more, 0.0), (as_much, 0.5)):
        record = judged(bench, room, passed(pages([*[HEALTHY] * 20, *[collapsed] * 20])))
        assert (record.verdict, values(record)) == ("refuted", {"room_auc": auc})


def test_each_way_to_measure_room_is_judged_by_itself(bench: ModuleType) -> None:
    """The oldest generation is as large before a collapse; what is protected beside it is not."""
    cell = passed(pages([*[HEALTHY] * 20, *[(150, 250, 100)] * 20]))
    assert values(judged(bench, "oldest generation", cell)) == {"room_auc": 0.5}
    assert values(judged(bench, "C - protected", cell)) == {"room_auc": 1.0}


def test_what_tells_some_collapses_alone_is_not_examined(bench: ModuleType) -> None:
    mixed = [*[HEALTHY] * 20, *[COLLAPSED] * 12, *[(150, 150, 100)] * 8]
    record = judged(bench, "oldest generation", passed(pages(mixed)))
    assert (record.verdict, record.judgements) == ("not_examined", [])
    assert "AUC 0.80 is between 0.7 (refuted) and 0.9 (supported)" in record.reason


@pytest.mark.parametrize("few", [HEALTHY, COLLAPSED])
def test_too_few_iterations_of_a_kind_are_not_examined(bench: ModuleType, few: tuple[int, int, int]) -> None:
    many = COLLAPSED if few is HEALTHY else HEALTHY
    record = judged(bench, "C - protected", passed(pages([*[many] * 30, *[few] * 9])))
    assert (record.verdict, record.judgements) == ("not_examined", [])
    assert "at least 10 of each are needed" in record.reason
    assert judged(bench, "C - protected", passed(pages([*[many] * 30, *[few] * 10]))).verdict == "supported"


def test_passes_of_several_cells_and_boots_are_taken_together(bench: ModuleType) -> None:
    still, hurt = pages([HEALTHY] * 12), pages([COLLAPSED] * 6)
    one = passed(still, still)
    other = passed(hurt, hurt, mechanism="memboot")
    for alone in (one, other):
        assert judged(bench, "oldest generation", alone).verdict == "not_examined"
    record = judged(bench, "oldest generation", one, other)
    assert (record.verdict, values(record)) == ("supported", {"room_auc": 1.0})


def test_room_is_compared_as_a_share_of_what_an_iteration_asks_for(bench: ModuleType) -> None:
    """A larger C leaves more pages to a collapse than a smaller one leaves to a healthy iteration."""
    small = pages([HEALTHY] * 12)
    large = pages([(200, 700, 400)] * 12, capacity_pages=900, asked=400)
    record = judged(bench, "oldest generation", passed(small), passed(large, mechanism="memboot"))
    assert (record.verdict, values(record)) == ("supported", {"room_auc": 1.0})


def test_without_generations_in_a_proved_cell_it_is_not_examined(bench: ModuleType) -> None:
    """Another LRU has none, nor has a kernel without debugfs."""
    empty = pages([])
    for found in ([], [passed(None)], [passed(empty)]):
        record = judged(bench, "oldest generation", *found)
        assert record.verdict == "not_examined"
        assert record.reason.startswith("no generations were sampled in a proved cell; expected ")


@pytest.mark.parametrize("name", ["mglru", "foreign_share", "device_two_witnesses"])
def test_it_rests_on_what_was_proved_of_the_passes(bench: ModuleType, name: str) -> None:
    audit = pages([*[HEALTHY] * 20, *[COLLAPSED] * 20])
    record = judged(bench, "oldest generation", passed(audit, states={name: "flagged"}))
    assert record.verdict == "not_examined"
    assert f"invariant {name} is flagged" in record.reason
    assert judged(bench, "oldest generation", passed(audit, states={"steady": "flagged"})).verdict == "supported"
