"""What the findings on the cost of a hit say of cells that are known beforehand."""

from __future__ import annotations

from types import ModuleType

import pytest
from curves import Known, Rounds, cell_of, proved, values, verdicts
from known import module_of

from pytest_moetier.campaign import CellResult


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The finding's module."""
    return module_of("hit_cost")


def hits(cpu: list[float], served: float = 1.0) -> Rounds:
    return {"cpu_seconds_per_iteration": cpu, "demand_served": [served] * len(cpu)}


def filled(fill: str, rounds: Rounds, mode: str = "page_cache") -> CellResult:
    return proved(cell_of("hit_cost", "100%", workload="hit_cost", mode=mode, fill=fill), rounds)


@pytest.mark.parametrize("fill", ["random", "mmap", "mmap_willneed", "fadv_random"])
@pytest.mark.parametrize(
    ("cpu", "verdict"), [([2.0, 2.1], "supported"), ([0.8, 0.9], "refuted"), ([0.9, 1.2], "not_examined")]
)
def test_hits_on_pages_not_read_in_sequence_must_be_dearer(
    bench: ModuleType, fill: str, cpu: list[float], verdict: str
) -> None:
    cells = [filled(fill, hits(cpu)), filled("sequential", hits([1.0, 1.0]))]
    record = Known("hit_cost", cells).judged(bench.test_small_folios_are_dearer, fill)
    assert record.verdict == verdict
    assert values(record) == {"hit_cost_ratio": pytest.approx(sum(cpu) / 2), "hit_served_ratio": 1.0}


def test_hits_are_compared_only_where_as_much_was_a_hit(bench: ModuleType) -> None:
    cells = [filled("random", hits([2.0], served=0.9)), filled("sequential", hits([1.0]))]
    record = Known("hit_cost", cells).judged(bench.test_small_folios_are_dearer, "random")
    assert verdicts(record) == {"hit_cost_ratio": "supported", "hit_served_ratio": "refuted"}


@pytest.mark.parametrize(
    ("cpu", "verdict"),
    [([1.02, 0.97], "supported"), ([1.5, 1.6], "refuted"), ([0.5, 0.6], "refuted"), ([1.0, 1.4], "not_examined")],
)
def test_the_hint_must_cost_nothing_on_the_same_pages(bench: ModuleType, cpu: list[float], verdict: str) -> None:
    cells = [filled("", hits(cpu), "fadv_random"), filled("fadv_random", hits([1.0, 1.0]))]
    record = Known("hit_cost", cells).judged(bench.test_the_hint_itself_costs_nothing)
    assert record.verdict == verdict


def test_a_fill_that_is_missing_is_not_examined(bench: ModuleType) -> None:
    one = filled("random", hits([1.0]))
    assert Known("hit_cost", [one]).judged(bench.test_small_folios_are_dearer, "random").verdict == "not_examined"
    assert Known("hit_cost", [one]).judged(bench.test_small_folios_are_dearer, "mmap").verdict == "not_examined"
    hinted = filled("", hits([1.0]), "fadv_random")
    assert Known("hit_cost", [hinted]).judged(bench.test_the_hint_itself_costs_nothing).verdict == "not_examined"


def test_every_way_but_the_first_is_held_against_the_first(bench: ModuleType) -> None:
    assert bench.FILLS[0] == "sequential"
    assert len(set(bench.FILLS)) == 5
