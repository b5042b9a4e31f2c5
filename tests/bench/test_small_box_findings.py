"""What the findings on a small machine with a slow disk say of cells that are known beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
from curves import Known, Rounds, cell_of, proved, values, verdicts
from known import module_of

from pytest_moetier.campaign import CellResult

LIMIT = {"read_limit": 150_000_000}


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The finding's module."""
    return module_of("small_box")


def design(mode: str, rounds: Rounds, states: Mapping[str, str] | None = None, **words: Any) -> CellResult:
    cell = cell_of("small_box", "215MB", **{"workload": "small_box", "mode": mode, **LIMIT, **words})
    return proved(cell, rounds, states)


def rounds(seconds: list[float], **figures: float) -> Rounds:
    return {"seconds_per_iteration": seconds, **{name: [one] * len(seconds) for name, one in figures.items()}}


def caches(*seconds: list[float]) -> list[CellResult]:
    return [
        design(mode, rounds(one)) for mode, one in zip(("user_lru25", "user_lru50", "user_lru"), seconds, strict=True)
    ]


KEPT = design("mmap_pread", rounds([1.0, 1.0], major_faults=10.0))


def test_user_caches_that_get_slower_with_their_budget_support_the_benchmark(bench: ModuleType) -> None:
    cells = [KEPT, *caches([2.0, 2.1], [2.4, 2.5], [2.8, 2.9])]
    record = Known("small_box", cells).judged(bench.test_user_cache_by_budget)
    assert record.verdict == "supported"
    assert values(record) == {
        "user_cache_best_over_kept": pytest.approx(2.05),
        "user_cache_slower_with_budget": pytest.approx((2.8 / 2.0 + 2.9 / 2.1) / 2),
    }


def test_one_user_cache_that_is_faster_refutes_that_none_is(bench: ModuleType) -> None:
    cells = [KEPT, *caches([2.0, 2.0], [0.8, 0.9], [3.0, 3.0])]
    record = Known("small_box", cells).judged(bench.test_user_cache_by_budget)
    assert verdicts(record) == {"user_cache_best_over_kept": "refuted", "user_cache_slower_with_budget": "supported"}


def test_a_larger_budget_that_helps_refutes_that_it_hurts(bench: ModuleType) -> None:
    cells = [KEPT, *caches([3.0, 3.0], [2.5, 2.5], [2.0, 2.0])]
    record = Known("small_box", cells).judged(bench.test_user_cache_by_budget)
    assert verdicts(record) == {"user_cache_best_over_kept": "supported", "user_cache_slower_with_budget": "refuted"}


FINE = {"logical_bytes": 167.0}
COARSE = {"logical_bytes": 100.0, "major_faults": 10.0}


def quantised(fine: Rounds, coarse: Rounds) -> list[CellResult]:
    return [design("mmap", fine), design("mmap", coarse, workload="small_box_q2")]


@pytest.mark.parametrize(
    ("seconds", "faults", "expected"),
    [
        (1.92, 93.0, {"slower_than_bytes": "supported", "faults_over_bytes": "supported"}),
        (1.50, 93.0, {"slower_than_bytes": "refuted", "faults_over_bytes": "supported"}),
        (1.92, 15.0, {"slower_than_bytes": "supported", "faults_over_bytes": "refuted"}),
    ],
)
def test_time_and_faults_must_grow_more_than_the_bytes(
    bench: ModuleType, seconds: float, faults: float, expected: dict[str, str]
) -> None:
    cells = quantised(rounds([seconds], **FINE, major_faults=faults), rounds([1.0], **COARSE))
    record = Known("small_box", cells).judged(bench.test_bytes_and_faults_by_quantisation)
    assert verdicts(record) == expected
    assert values(record)["slower_than_bytes"] == pytest.approx(seconds / 1.67)


@pytest.mark.parametrize(
    ("locked", "plain", "verdict"),
    [
        (rounds([1.0, 1.0], major_faults=10.0), rounds([1.26, 1.27], major_faults=29.0), "supported"),
        (rounds([1.3, 1.3], major_faults=40.0), rounds([1.26, 1.27], major_faults=29.0), "refuted"),
        (rounds([1.0, 1.0], major_faults=0.0), rounds([1.26, 1.27], major_faults=0.0), "supported"),
        (rounds([1.0, 1.3], major_faults=10.0), rounds([1.26, 1.27], major_faults=29.0), "not_examined"),
    ],
)
def test_a_locked_spine_must_be_faster_with_fewer_faults(
    bench: ModuleType, locked: Rounds, plain: Rounds, verdict: str
) -> None:
    cells = [design("mmap_pread", locked, spine="locked"), design("mmap_pread", plain, spine="plain"), KEPT]
    record = Known("small_box", cells).judged(bench.test_spine_lock)
    assert record.verdict == verdict
    assert set(values(record)) == {"spine_lock_gain", "spine_lock_fewer_faults"}


@pytest.mark.parametrize(
    ("seconds", "written", "expected"),
    [
        (2.1, 90.0, {"write_in_place_slower": "supported", "write_in_place_written_share": "supported"}),
        (0.9, 90.0, {"write_in_place_slower": "refuted", "write_in_place_written_share": "supported"}),
        (2.1, 0.0, {"write_in_place_slower": "supported", "write_in_place_written_share": "refuted"}),
    ],
)
def test_writing_in_place_must_be_slower_and_written_back(
    bench: ModuleType, seconds: float, written: float, expected: dict[str, str]
) -> None:
    cells = [KEPT, design("write_shared", rounds([seconds, seconds], written_bytes=written, logical_bytes=100.0))]
    record = Known("small_box", cells).judged(bench.test_writes_in_place)
    assert verdicts(record) == expected
    assert values(record)["write_in_place_written_share"] == written / 100


@pytest.mark.parametrize(
    ("seconds", "faults", "expected"),
    [
        (1.2, 74.0, {"background_slower": "supported", "background_faults_more": "supported"}),
        (0.9, 74.0, {"background_slower": "refuted", "background_faults_more": "supported"}),
        (1.2, 5.0, {"background_slower": "supported", "background_faults_more": "refuted"}),
    ],
)
def test_background_reads_must_be_slower_with_more_faults(
    bench: ModuleType, seconds: float, faults: float, expected: dict[str, str]
) -> None:
    cells = [KEPT, design("mmap_background", rounds([seconds, seconds], major_faults=faults))]
    record = Known("small_box", cells).judged(bench.test_background_reads)
    assert verdicts(record) == expected
    assert values(record)["background_faults_more"] == faults - 10


@pytest.mark.parametrize(("kills", "verdict"), [(1.0, "supported"), (3.0, "supported"), (0.0, "refuted")])
def test_private_writes_must_end_by_the_kill(bench: ModuleType, kills: float, verdict: str) -> None:
    cell = cell_of("small_box", "215MB", workload="small_box", mode="write_private", **LIMIT)
    result = proved(cell, {"oom_kills": [kills], "iterations_before_oom": [3.0]})
    record = Known("small_box", [result]).judged_cell(bench.test_writes_into_private_mappings, cell)
    assert (record.verdict, values(record)) == (verdict, {"oom_kills": kills})


def test_kills_are_judged_of_the_design_that_is_to_be_killed_alone(bench: ModuleType) -> None:
    cell = cell_of("small_box", "215MB", workload="small_box", mode="mmap_pread", **LIMIT)
    record = Known("small_box", [proved(cell, {"oom_kills": [0.0]})]).judged_cell(bench.test_designs, cell)
    assert (record.verdict, record.judgements) == ("not_examined", [])
    assert "no bound holds here" in record.reason


ALL = rounds([1.0, 1.1], major_faults=1.0, written_bytes=1.0, logical_bytes=1.0)
NEEDED = {
    "test_user_cache_by_budget": [("mmap_pread", {}), ("user_lru25", {}), ("user_lru50", {}), ("user_lru", {})],
    "test_bytes_and_faults_by_quantisation": [("mmap", {}), ("mmap", {"workload": "small_box_q2"})],
    "test_spine_lock": [("mmap_pread", {"spine": "locked"}), ("mmap_pread", {"spine": "plain"})],
    "test_writes_in_place": [("write_shared", {}), ("mmap_pread", {})],
    "test_background_reads": [("mmap_background", {}), ("mmap_pread", {})],
}


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_a_design_that_is_missing_leaves_the_finding_not_examined(bench: ModuleType, name: str) -> None:
    cells = [design(mode, ALL, **words) for mode, words in NEEDED[name]]
    assert Known("small_box", cells).judged(getattr(bench, name)).judgements
    for missing in cells:
        left = [one for one in cells if one is not missing]
        record = Known("small_box", left).judged(getattr(bench, name))
        assert record.verdict == "not_examined"
        assert record.reason.startswith("no proved cell of ")


@pytest.mark.parametrize("name", sorted(set(NEEDED) - {"test_user_cache_by_budget"}))
def test_a_figure_that_is_not_observed_leaves_the_finding_not_examined(bench: ModuleType, name: str) -> None:
    cells = [design(mode, rounds([1.0, 1.1]), **words) for mode, words in NEEDED[name]]
    record = Known("small_box", cells).judged(getattr(bench, name))
    assert record.verdict == "not_examined"
    assert "was not observed here" in record.reason


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_without_a_proved_limit_the_device_was_not_slow(bench: ModuleType, name: str) -> None:
    states = {"read_limit": "unobserved"}
    cells = [design(mode, ALL, states, **words) for mode, words in NEEDED[name]]
    record = Known("small_box", cells).judged(getattr(bench, name))
    judged = verdicts(record)
    judged.pop("write_in_place_written_share", None)  # of bytes written, whatever the device's speed
    assert set(judged.values()) == {"not_examined"}


def test_designs_with_a_spine_are_not_those_without(bench: ModuleType) -> None:
    spined = design("mmap_pread", rounds([9.0, 9.0], major_faults=99.0), spine="locked")
    cells = [KEPT, spined, design("mmap_background", rounds([2.0, 2.0], major_faults=20.0))]
    record = Known("small_box", cells).judged(bench.test_background_reads)
    assert values(record) == {"background_slower": 2.0, "background_faults_more": 10.0}
