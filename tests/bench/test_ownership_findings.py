"""What the findings on who holds what is kept say of cells that are known beforehand (paper section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
from curves import Known, Rounds, cell_of, lost, proved, values, verdicts
from known import module_of

from pytest_moetier.errors import UnsupportedHostError


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The finding's module."""
    return module_of("policy")


def known(cells: Mapping[str, Rounds], states: Mapping[str, str] | None = None) -> Known:
    return Known("policy", [proved(cell_of("policy", mode=mode), rounds, states) for mode, rounds in cells.items()])


def rounds(seconds: list[float], **figures: float) -> Rounds:
    """Return rounds of these seconds whose other figures are always the same."""
    return {"seconds_per_iteration": seconds, **{name: [one] * len(seconds) for name, one in figures.items()}}


ARENA = rounds([1.00, 1.01, 1.02], device_bytes=72.0, demand_served=0.746)
KERNEL = rounds([1.09, 1.10, 1.11], device_bytes=74.0, demand_served=0.753)


def test_an_oracles_arena_a_tenth_faster_by_the_same_reads_supports_the_paper(bench: ModuleType) -> None:
    record = known({"pinned_own": ARENA, "page_cache": KERNEL}).judged(bench.test_pinned_against_page_cache)
    assert record.verdict == "supported"
    assert values(record) == {
        "pinned_edge": pytest.approx(1.10 / 1.01),
        "pinned_device_ratio": pytest.approx(72 / 74),
        "kernel_serves_more": pytest.approx(0.007),
    }


@pytest.mark.parametrize(
    ("arena", "kernel", "refuted"),
    [
        (ARENA, {**KERNEL, "seconds_per_iteration": [1.2, 1.3, 1.4]}, "pinned_edge"),
        ({**ARENA, "device_bytes": [60.0, 61.0, 62.0]}, KERNEL, "pinned_device_ratio"),
        ({**ARENA, "demand_served": [0.8] * 3}, KERNEL, "kernel_serves_more"),
    ],
)
def test_each_half_of_the_claim_is_refuted_alone(
    bench: ModuleType, arena: Rounds, kernel: Rounds, refuted: str
) -> None:
    record = known({"pinned_own": arena, "page_cache": kernel}).judged(bench.test_pinned_against_page_cache)
    assert record.verdict == "refuted"
    assert [name for name, one in verdicts(record).items() if one == "refuted"] == [refuted]


def test_rounds_on_both_sides_of_a_bound_cannot_tell(bench: ModuleType) -> None:
    mixed = {**KERNEL, "seconds_per_iteration": [1.0, 1.1, 1.3]}
    record = known({"pinned_own": ARENA, "page_cache": mixed}).judged(bench.test_pinned_against_page_cache)
    assert record.verdict == "not_examined"
    assert verdicts(record)["pinned_edge"] == "not_examined"
    assert "which cannot tell" in record.reason


@pytest.mark.parametrize(
    ("state", "invariant", "value"),
    [
        ("unobserved", "own_memory_charged", "pinned_edge"),
        ("flagged", "replayer_vmlck", "pinned_edge"),
        ("unobserved", "served_by_table", "kernel_serves_more"),
        ("unobserved", "device_two_witnesses", "pinned_device_ratio"),
    ],
)
def test_a_claim_is_not_examined_without_the_proof_it_rests_on(
    bench: ModuleType, state: str, invariant: str, value: str
) -> None:
    curve = known({"pinned_own": ARENA, "page_cache": KERNEL}, {invariant: state})
    record = curve.judged(bench.test_pinned_against_page_cache)
    assert verdicts(record)[value] == "not_examined"
    assert f"invariant {invariant} is {state}" in record.reason


@pytest.mark.parametrize(("table", "verdict"), [(0.3, "supported"), (0.8, "refuted")])
def test_a_table_of_another_domain_must_serve_less_than_recency(bench: ModuleType, table: float, verdict: str) -> None:
    cells = {"pinned_domain": rounds([1.0], demand_served=table), "page_cache": rounds([1.0], demand_served=0.7)}
    record = known(cells).judged(bench.test_pinned_off_domain)
    assert (record.verdict, values(record)) == (verdict, {"kernel_serves_more_off_domain": pytest.approx(0.7 - table)})


@pytest.mark.parametrize(("table", "verdict"), [(12.0, "supported"), (8.0, "refuted")])
def test_a_table_of_the_past_must_read_more_in_the_last_iterations(
    bench: ModuleType, table: float, verdict: str
) -> None:
    cells = {
        "pinned_train": rounds([1.0], fair_device_bytes=table, device_bytes=1.0),
        "page_cache": rounds([1.0], fair_device_bytes=10.0, device_bytes=99.0),
    }
    record = known(cells).judged(bench.test_table_of_the_past)
    assert (record.verdict, values(record)) == (verdict, {"past_table_device_ratio": table / 10})


@pytest.mark.parametrize(
    ("hybrid", "verdict", "refuted"),
    [
        ([1.05, 1.06], "supported", set()),
        ([0.97, 0.98], "refuted", {"hybrid_over_fastest"}),
        ([1.15, 1.16], "refuted", {"hybrid_over_slowest"}),
        ([0.99, 1.05], "supported", set()),  # a round as fast as the arena's: within the spread
    ],
)
def test_half_an_arena_takes_a_time_between_the_whole_ones(
    bench: ModuleType, hybrid: list[float], verdict: str, refuted: set[str]
) -> None:
    cells = {"hybrid50": rounds(hybrid), "pinned_own": rounds([1.0, 1.0]), "page_cache": rounds([1.1, 1.1])}
    record = known(cells).judged(bench.test_hybrid_between)
    assert record.verdict == verdict
    assert {name for name, one in verdicts(record).items() if one == "refuted"} == refuted


def test_without_read_ahead_the_time_is_longer_and_the_reads_are_the_same(bench: ModuleType) -> None:
    cells = {"fadv_random": rounds([1.8], device_bytes=75.0), "page_cache": rounds([1.13], device_bytes=74.0)}
    record = known(cells).judged(bench.test_fadv_random)
    assert record.verdict == "supported"
    assert values(record) == {
        "fadv_random_slower": pytest.approx(1.8 / 1.13),
        "fadv_random_device_ratio": pytest.approx(75 / 74),
    }
    faster = {**cells, "fadv_random": rounds([1.0], device_bytes=80.0)}
    record = known(faster).judged(bench.test_fadv_random)
    assert set(verdicts(record).values()) == {"refuted"}


@pytest.mark.parametrize("mode", ["user_lru", "user_lfu"])
@pytest.mark.parametrize(
    ("user", "verdict"), [([1.2, 1.3], "supported"), ([0.8, 0.9], "refuted"), ([0.9, 1.2], "not_examined")]
)
def test_a_user_space_cache_that_is_ever_faster_refutes_the_claim(
    bench: ModuleType, mode: str, user: list[float], verdict: str
) -> None:
    record = known({mode: rounds(user), "page_cache": rounds([1.0, 1.0])}).judged(bench.test_user_space_cache, mode)
    assert record.verdict == verdict


def test_refusing_admission_must_cost_time_and_all_of_the_demand(bench: ModuleType) -> None:
    cells = {
        "drop": rounds([5.3], logical_bytes=100.0, device_bytes=100.0),
        "page_cache": rounds([1.0], logical_bytes=100.0, device_bytes=30.0),
    }
    record = known(cells).judged(bench.test_no_admission)
    assert record.verdict == "supported"
    assert values(record) == {"no_admission_slower": 5.3, "no_admission_device_over_demand": 1.0}
    kept = {**cells, "drop": rounds([0.9], logical_bytes=100.0, device_bytes=60.0)}
    assert set(verdicts(known(kept).judged(bench.test_no_admission)).values()) == {"refuted"}


FINDINGS: list[tuple[str, tuple[Any, ...], tuple[str, ...]]] = [
    ("test_pinned_against_page_cache", (), ("pinned_own", "page_cache")),
    ("test_pinned_off_domain", (), ("pinned_domain", "page_cache")),
    ("test_table_of_the_past", (), ("pinned_train", "page_cache")),
    ("test_hybrid_between", (), ("hybrid50", "pinned_own", "page_cache")),
    ("test_fadv_random", (), ("fadv_random", "page_cache")),
    ("test_user_space_cache", ("user_lru",), ("user_lru", "page_cache")),
    ("test_user_space_cache", ("user_lfu",), ("user_lfu", "page_cache")),
    ("test_no_admission", (), ("drop", "page_cache")),
]
ALL = rounds([1.0, 1.1], device_bytes=9.0, fair_device_bytes=9.0, logical_bytes=10.0, demand_served=0.5)


@pytest.mark.parametrize(("name", "args", "modes"), FINDINGS, ids=[f"{one}-{'-'.join(a)}" for one, a, _ in FINDINGS])
def test_a_finding_is_not_examined_when_any_of_its_cells_is_missing(
    bench: ModuleType, name: str, args: tuple[Any, ...], modes: tuple[str, ...]
) -> None:
    whole = known(dict.fromkeys(modes, ALL)).judged(getattr(bench, name), *args)
    assert whole.judgements
    for missing in modes:
        cells = {mode: ALL for mode in modes if mode != missing}
        record = known(cells).judged(getattr(bench, name), *args)
        assert record.verdict == "not_examined"
        assert record.judgements == []
        assert record.reason.startswith(f"no proved cell of mode {missing}; expected one; next: ")


@pytest.mark.parametrize(("name", "args", "modes"), FINDINGS, ids=[f"{one}-{'-'.join(a)}" for one, a, _ in FINDINGS])
def test_a_figure_that_the_host_does_not_show_is_not_examined_and_no_error(
    bench: ModuleType, name: str, args: tuple[Any, ...], modes: tuple[str, ...]
) -> None:
    blind = dict.fromkeys(modes, rounds([1.0, 1.1], logical_bytes=10.0))
    needed = name not in {"test_hybrid_between", "test_user_space_cache"}
    record = known(blind).judged(getattr(bench, name), *args)
    assert ("was not observed here" in record.reason) == needed
    assert not needed or record.verdict == "not_examined"


def test_why_a_cell_is_missing_is_said_where_it_is_known(bench: ModuleType) -> None:
    kernel = proved(cell_of("policy"), ALL)
    refused = UnsupportedHostError("the arena cannot be locked", "more", "ulimit -l unlimited")
    skipped = lost(cell_of("policy", mode="pinned_own"), skipped=refused)
    record = Known("policy", [kernel, skipped]).judged(bench.test_pinned_against_page_cache)
    assert "the arena cannot be locked" in record.reason
    assert "ulimit -l unlimited" in record.reason
    invalid = lost(cell_of("policy", mode="pinned_own"), invalid="accounting not proved: preload")
    record = Known("policy", [kernel, invalid]).judged(bench.test_pinned_against_page_cache)
    assert "accounting not proved: preload" in record.reason
    record = Known("policy", [], refusal=refused).judged(bench.test_pinned_against_page_cache)
    assert "the arena cannot be locked" in record.reason


def test_modes_at_different_capacities_are_never_compared(bench: ModuleType) -> None:
    """The arena is missing at the larger capacity: the smaller one's must not stand beside the larger page cache."""
    cells = [
        proved(cell_of("policy", "10%", mode="pinned_own"), ARENA),
        proved(cell_of("policy", "10%"), KERNEL),
        proved(cell_of("policy", "30%"), KERNEL),
    ]
    for test in (bench.test_pinned_against_page_cache, bench.test_pinned_off_domain):
        domain = [proved(cell_of("policy", "10%", mode="pinned_domain"), ARENA)]
        record = Known("policy", [*cells, *domain]).judged(test)
        assert record.verdict == "not_examined"
        assert "differ in capacity" in record.reason
