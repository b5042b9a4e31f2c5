"""What the findings on four streams merged say of cells that are known beforehand (paper section 4)."""

from __future__ import annotations

from types import ModuleType

import pytest
from curves import Known, Rounds, cell_of, proved, values, verdicts
from known import module_of

from pytest_moetier.campaign import CellResult


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The finding's module."""
    return module_of("capacity")


def rounds(per_token: list[float], variation: float | None = 0.2) -> Rounds:
    return {
        "seconds_per_iteration": per_token,
        "seconds_per_accepted_token": per_token,
        "iteration_variation": [variation] * len(per_token),
    }


def single(capacity: str, found: Rounds, **words: str) -> CellResult:
    return proved(cell_of("capacity", capacity, **words), found)


def batch(capacity: str, found: Rounds, **words: str) -> CellResult:
    return proved(cell_of("capacity", capacity, workload="batch4", **words), found)


@pytest.mark.parametrize(
    ("times", "variation", "expected"),
    [
        ([0.82, 0.83], 0.1, {"batch_time_per_token": "supported", "batch_variation": "supported"}),
        ([1.20, 1.30], 0.1, {"batch_time_per_token": "refuted", "batch_variation": "supported"}),
        ([0.90, 1.10], 0.1, {"batch_time_per_token": "not_examined", "batch_variation": "supported"}),
        ([0.82, 0.83], 0.3, {"batch_time_per_token": "supported", "batch_variation": "refuted"}),
    ],
)
def test_a_batch_must_cost_a_token_no_more_and_vary_less(
    bench: ModuleType, times: list[float], variation: float, expected: dict[str, str]
) -> None:
    cells = [single("17.7%", rounds([1.0, 1.0])), batch("17.7%", rounds(times, variation))]
    record = Known("capacity", cells).judged(bench.test_batch_against_single)
    assert verdicts(record) == expected
    assert values(record)["batch_variation"] == pytest.approx(variation / 0.2)


def test_the_capacity_where_the_batch_is_worst_decides(bench: ModuleType) -> None:
    cells = [
        single("17.7%", rounds([1.3])),
        batch("17.7%", rounds([1.3], 0.1)),
        single("30.9%", rounds([0.94])),
        batch("30.9%", rounds([0.82], 0.15)),
    ]
    record = Known("capacity", cells).judged(bench.test_batch_against_single)
    assert values(record) == {"batch_time_per_token": 1.0, "batch_variation": pytest.approx(0.75)}


def test_a_batch_is_held_against_the_same_capacity_and_mechanism_alone(bench: ModuleType) -> None:
    cells = [
        single("17.7%", rounds([0.1]), mechanism="balloon"),
        single("30.9%", rounds([0.1])),
        batch("17.7%", rounds([1.0])),
    ]
    record = Known("capacity", cells).judged(bench.test_batch_against_single)
    assert record.verdict == "not_examined"
    assert record.reason.startswith("no capacity was proved both for a batch of four streams and for one")


def test_cells_of_one_kind_alone_are_no_pair(bench: ModuleType) -> None:
    for cells in ([single("17.7%", rounds([1.0]))], [batch("17.7%", rounds([1.0]))], []):
        assert Known("capacity", cells).judged(bench.test_batch_against_single).verdict == "not_examined"


def test_one_iteration_has_no_variation_to_compare(bench: ModuleType) -> None:
    cells = [single("17.7%", rounds([1.0], None)), batch("17.7%", rounds([0.8], None))]
    record = Known("capacity", cells).judged(bench.test_batch_against_single)
    assert record.verdict == "not_examined"
    assert "iteration_variation of C17.7pct-cgroup-mglru_host-batch4 was not observed here" in record.reason


def test_batches_are_no_points_of_the_single_streams_curve(bench: ModuleType) -> None:
    def device(result: CellResult) -> CellResult:
        return proved(result.cell, {"device_bytes": [30.0]})

    falling = [proved(cell_of("capacity", "10%"), {"device_bytes": [20.0]})]
    falling.append(proved(cell_of("capacity", "20%"), {"device_bytes": [10.0]}))
    batches = [device(batch(capacity, rounds([1.0]))) for capacity in ("15%", "30%")]
    record = Known("capacity", [*falling, *batches]).judged(bench.test_device_bytes_fall_with_capacity)
    assert values(record) == {"device_bytes_largest_rise": 1.0}  # of the batches: 30 to 30; the curve falls by half


def test_every_cell_has_its_own_bounds_and_a_single_round_has_no_spread(bench: ModuleType) -> None:
    cell = cell_of("capacity")
    result = proved(cell, {"device_bytes": [100.0, 101.0, 102.0], "amplification_over_belady": [1.2, 1.3, 1.4]})
    record = Known("capacity", [result]).judged_cell(bench.test_capacity, cell)
    assert verdicts(record) == {"device_bytes_spread": "supported", "amplification_over_belady": "supported"}
    wide = proved(cell, {"device_bytes": [100.0, 110.0], "amplification_over_belady": [0.9, 0.9]})
    record = Known("capacity", [wide]).judged_cell(bench.test_capacity, cell)
    assert set(verdicts(record).values()) == {"refuted"}
    once = proved(cell, {"device_bytes": [100.0], "amplification_over_belady": [1.2]})
    record = Known("capacity", [once]).judged_cell(bench.test_capacity, cell)
    assert verdicts(record) == {"device_bytes_spread": "not_examined", "amplification_over_belady": "supported"}
