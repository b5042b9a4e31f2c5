"""How much DRAM a target takes: answered from the measured curve, and not beyond it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_moetier.cell import Cell
from pytest_moetier.errors import InputError
from pytest_moetier.finding import Metric
from pytest_moetier.history.sessions import StoredCell, StoredSession
from pytest_moetier.history.store import cell_json
from pytest_moetier.sizing import (
    BANDWIDTH,
    SECONDS,
    Choice,
    Curve,
    Point,
    capacity_for,
    capacity_word,
    curve_of,
    falling,
    interpolation_error,
    latest_curve,
    paper_curve,
    parse_target,
    size,
    value_at,
)
from pytest_moetier.units import Capacity

GB = 10**9
POOL = 1000 * GB


def curve(*points: tuple[float, Sequence[float]], pool: int = POOL, **more: Any) -> Curve:
    """Return a curve of (C in GB, seconds of each round)."""
    return Curve("T(C)", tuple(Point(round(c * GB), f"C{c}", tuple(s), **more) for c, s in points), (), pool, "measure")


# ---- targets


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("2s/iteration", SECONDS, 2.0),
        ("2 s/iter", SECONDS, 2.0),
        ("250ms/it", SECONDS, 0.25),
        ("0.5 iterations/s", SECONDS, 2.0),
        ("4 it / s", SECONDS, 0.25),
        ("5GB/s", BANDWIDTH, 5e9),
        ("2 GiB/s", BANDWIDTH, 2 * 2**30),
    ],
)
def test_a_target_is_a_time_a_rate_or_what_the_device_can_give(text: str, kind: str, value: float) -> None:
    found = parse_target(text)
    assert (found.kind, found.value) == (kind, pytest.approx(value))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2", "is no target"),
        ("fast", "is no target"),
        ("nan s/iteration", "is no target"),
        ("-1 s/iteration", "is no target"),
        ("inf iterations/s", "is no target"),
        ("0 s/iteration", "is zero"),
        ("0.0 iterations/s", "is zero"),
        ("2 s/token", "is one of accepted tokens; expected a target such as 2s/iteration"),
        ("10 tokens/s", "a token is not an iteration"),
        ("5 Gb/s", "with its unit"),
        ("5 GB/h", "is no target"),
        ("5 s/s", "is no target"),
        ("2 iterations/min", "is no target"),
    ],
)
def test_what_is_no_target_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_target(text)
    assert said in str(caught.value)


# ---- the curve's mathematics


@pytest.mark.parametrize(
    ("values", "fitted"),
    [
        ([3, 2, 1], [3, 2, 1]),
        ([3, 1, 2], [3, 1.5, 1.5]),
        ([1, 2, 3], [2, 2, 2]),
        ([4, 2, 3, 1, 2], [4, 2.5, 2.5, 1.5, 1.5]),
        ([5], [5]),
    ],
)
def test_rises_are_pooled_into_their_mean(values: list[float], fitted: list[float]) -> None:
    assert falling(values) == fitted


def test_between_two_points_the_curve_is_a_power_of_capacity() -> None:
    assert value_at([100, 400], [4.0, 1.0], 200) == pytest.approx(2.0)
    assert value_at([100, 400], [4.0, 1.0], 100) == pytest.approx(4.0)
    assert value_at([100, 400, 1600], [4.0, 1.0, 0.5], 800) == pytest.approx(math.sqrt(0.5))
    assert capacity_for([100, 400], [4.0, 1.0], 2.0) == pytest.approx(200)
    assert capacity_for([100, 400], [4.0, 1.0], 4.0) == 100
    assert capacity_for([100, 400], [4.0, 1.0], 0.99) is None


def test_a_capacity_that_reads_nothing_is_reached_by_a_line() -> None:
    assert value_at([100, 400], [8.0, 0.0], 200) == pytest.approx(4.0)
    assert capacity_for([100, 400], [8.0, 0.0], 4.0) == pytest.approx(200)


def test_the_answer_on_a_flat_piece_is_its_left_end() -> None:
    assert capacity_for([100, 200, 400], [4.0, 2.0, 2.0], 2.0) == pytest.approx(200)


# ---- the paper's Table 2


def test_two_seconds_an_iteration_are_read_off_between_64_and_128_gb() -> None:
    found = size(paper_curve(), parse_target("2s/iteration"))
    assert [one.capacity_bytes for one in found.between] == [64 * GB, 128 * GB]
    by_hand = 64 * 2 ** (math.log(2.76 / 2) / math.log(2.76 / 1.95))
    assert found.capacity_bytes / GB == pytest.approx(by_hand)
    assert f"{found.capacity_bytes / GB:.1f}" == "121.7"
    assert found.capacity_high is not None
    assert (round(found.capacity_low / GB, 1), round(found.capacity_high / GB, 1)) == (117.3, 126.5)
    assert found.device_bytes is not None
    assert found.bandwidth is not None
    assert 17.4 * GB < found.device_bytes.value < 33.6 * GB
    assert found.bandwidth.value == pytest.approx(found.device_bytes.value / 2)
    assert found.seconds.value == pytest.approx(2)


def test_two_iterations_a_second_are_beyond_the_paper_s_own_curve() -> None:
    with pytest.raises(InputError) as caught:
        size(paper_curve(), parse_target("2 iterations/s"))
    assert "its best point is 990 ms an iteration (1.01 iterations/s) at 448 GB" in str(caught.value)
    assert "pytest bench/ -k capacity --benchmark-autosave --moetier-capacity 1450GB" in str(caught.value)
    assert any(
        "two iterations per second" in one and "the curve's, not the text's" in one for one in paper_curve().notes
    )


def test_table_2_predicts_its_inner_points_within_the_paper_s_spread() -> None:
    found = interpolation_error(paper_curve())
    assert found is not None
    between_128_and_448 = 1.95 ** (1 - math.log(2) / math.log(3.5)) * 0.99 ** (math.log(2) / math.log(3.5))
    assert found.value == pytest.approx(1 - between_128_and_448 / 1.37)
    assert f"{found.value:.3f}" == "0.022"
    assert found.low == pytest.approx(0, abs=0.01)


def test_what_the_rounds_allow_bounds_how_far_a_point_is_from_its_neighbours() -> None:
    near = interpolation_error(curve((100, [4, 4.4]), (200, [1.9, 2.3]), (400, [1, 1.1])))  # 2 to 2.2 is predicted
    assert near is not None
    assert (near.low, near.high) == (0, pytest.approx(2.2 / 1.9 - 1))
    far = interpolation_error(curve((100, [4, 4.4]), (200, [1, 1.25]), (400, [1, 1.1])))
    assert far is not None
    assert (far.low, far.high) == (pytest.approx(2 / 1.25 - 1), pytest.approx(2.2 / 1 - 1))
    assert interpolation_error(curve((100, [4]), (400, [1]))) is None


def test_a_device_s_rate_is_a_target_too() -> None:
    found = size(paper_curve(), parse_target("8 GB/s"))
    assert [one.capacity_bytes for one in found.between] == [128 * GB, 256 * GB]
    assert found.bandwidth is not None
    assert found.bandwidth.value == pytest.approx(8 * GB, rel=1e-3)
    with pytest.raises(InputError, match=r"64 GB, already takes 12\.2 GB/s of the device"):
        size(paper_curve(), parse_target("20 GB/s"))


def test_what_a_batch_takes_is_said_where_it_was_measured() -> None:
    inside = size(paper_curve(), parse_target("1.2 s/iteration")).caveats
    assert any(one.startswith("a batch of four takes 1.") and "one stream 1.1" in one for one in inside)
    outside = size(paper_curve(), parse_target("2 s/iteration")).caveats
    assert "a batch of four was measured from 256 GB to 448 GB alone: this is the capacity of one stream" in outside


# ---- refusals


def test_a_target_below_the_curve_says_what_smaller_capacity_to_measure() -> None:
    with pytest.raises(InputError) as caught:
        size(curve((100, [4]), (400, [1])), parse_target("8 s/it"))
    assert "the smallest capacity measured, 100 GB, already takes 4 s an iteration" in str(caught.value)
    assert str(caught.value).endswith("next: measure --moetier-capacity 50GB")


def test_a_target_above_the_curve_says_what_larger_capacity_to_measure() -> None:
    with pytest.raises(InputError, match="measure --moetier-capacity 800GB"):
        size(curve((100, [4]), (400, [1])), parse_target("2 it/s"))


def test_no_capacity_beyond_the_pool_is_asked_for() -> None:
    with pytest.raises(InputError, match="measure --moetier-capacity 500GB"):
        size(curve((100, [4]), (400, [1]), pool=500 * GB), parse_target("2 it/s"))
    with pytest.raises(InputError, match="which holds the whole pool of 400 GB; expected a target that it reaches"):
        size(curve((100, [4]), (400, [1]), pool=400 * GB), parse_target("2 it/s"))


@pytest.mark.parametrize("points", [(), ((100, [4.0]),)])
def test_fewer_than_two_capacities_are_no_curve(points: tuple[tuple[float, list[float]], ...]) -> None:
    with pytest.raises(InputError, match="two or more, to read between; next: measure others: measure"):
        size(curve(*points), parse_target("2 s/it"))


def test_a_rise_beyond_the_spread_is_refused_by_name() -> None:
    risen = curve((100, [4.0, 4.2]), (200, [2.0, 2.1]), (400, [2.5, 2.6]))
    with pytest.raises(InputError) as caught:
        size(risen, parse_target("3 s/it"))
    assert "T(C) rises from 2.05 s (2 s to 2.1 s) at 200 GB to 2.55 s (2.5 s to 2.6 s) at 400 GB" in str(caught.value)
    assert str(caught.value).endswith("measure --moetier-rounds 5 --moetier-capacity 200GB,400GB")


def test_a_rise_of_single_rounds_cannot_be_told_from_noise() -> None:
    with pytest.raises(InputError, match="one round cannot tell a rise from noise"):
        size(curve((100, [4]), (200, [2]), (400, [2.01])), parse_target("3 s/it"))


def test_a_rise_within_the_spread_is_pooled() -> None:
    found = size(curve((100, [4.0]), (200, [1.9, 2.0, 2.2]), (400, [2.0, 2.1, 2.3])), parse_target("3 s/it"))
    assert found.capacity_bytes / GB == pytest.approx(100 * 2 ** (math.log(4 / 3) / math.log(4 / 2.05)))


def test_a_target_that_the_slowest_rounds_miss_has_an_open_end() -> None:
    found = size(curve((100, [4, 4, 4]), (400, [1.0, 1.0, 2.0])), parse_target("1.5 s/it"))
    assert found.capacity_high is None
    assert any("the upper end is open; next: measure --moetier-capacity 600GB" in one for one in found.caveats)


def test_one_round_has_no_interval_and_says_so() -> None:
    found = size(curve((100, [4]), (400, [1])), parse_target("2 s/it"))
    assert found.capacity_bytes == found.capacity_low == found.capacity_high == pytest.approx(200 * GB)
    assert any("without a spread the interval is none" in one for one in found.caveats)


def test_a_capacity_below_one_iteration_s_reads_is_a_caveat() -> None:
    large = curve((100, [4, 4]), (400, [1, 1]), logical_bytes=300.0 * GB)
    assert any("what one iteration reads (300 GB)" in one for one in size(large, parse_target("2 s/it")).caveats)
    small = curve((100, [4, 4]), (400, [1, 1]), logical_bytes=30.0 * GB)
    assert not any("one iteration reads" in one for one in size(small, parse_target("2 s/it")).caveats)


def test_a_device_target_needs_the_device_s_bytes() -> None:
    with pytest.raises(InputError, match="C100 has no device bytes"):
        size(curve((100, [4]), (400, [1])), parse_target("1 GB/s"))


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (448e9, "448GB"),
        (54.21e9, "54.2GB"),
        (1450e9, "1450GB"),
        (9.5e9, "9.5GB"),
        (1.68e6, "1.68MB"),
        (999, "0.999KB"),
        (12345678, "12.3MB"),
    ],
)
def test_a_capacity_is_named_as_the_option_takes_it(value: float, word: str) -> None:
    assert capacity_word(value) == word


# ---- from stored sessions

WORDS = cell_json(Cell("capacity", Capacity.parse("1GB")))
CONTEXT = {"pool_id": "p", "plan_crc": "c", "iterations": 10, "threads": 2, "pool_bytes": POOL, "synthetic_trace": True}
UNITS = {"seconds_per_iteration": "s/iteration", "device_bytes": "B/iteration"}


def cell(
    capacity: str,
    seconds: Sequence[float] | None,
    *,
    context: Mapping[str, Any] = CONTEXT,
    guest: dict[str, Any] | None = None,
    **words: Any,
) -> StoredCell:
    values = {"seconds_per_iteration": seconds, "device_bytes": [1e9] * 3}
    metrics = {
        name: Metric(name, UNITS[name], "lower", tuple(found)) for name, found in values.items() if found is not None
    }
    chosen = {**WORDS, "capacity": capacity, **words}
    name = "-".join(map(str, (capacity, *words.values())))
    return StoredCell(name, {**chosen, "id": name}, metrics, context, guest, traced=False)


def session(*cells: StoredCell, host: str = "here", day: int = 1) -> StoredSession:
    time = datetime(2026, 11, day, tzinfo=UTC)
    return StoredSession(Path(f"{day}.json"), f"{day:04}", time, host, "6.12", "", {one.id: one for one in cells})


def test_a_stored_curve_is_in_bytes_ascending_and_called_synthetic() -> None:
    found = curve_of([session(cell("40%", [1, 1, 1]), cell("100GB", [4, 4, 4]))], Choice(), "here")
    assert [(one.capacity_bytes, one.seconds) for one in found.points] == [
        (100 * GB, (4, 4, 4)),
        (400 * GB, (1, 1, 1)),
    ]
    assert found.name == "T(C) of cgroup, page_cache (synthetic trace)"
    assert found.notes[0] == "read off 1.json, stored 2026-11-01 00:00, kernel 6.12"
    assert "the trace is synthetic" in found.notes[1]
    assert found.pool_bytes == POOL
    assert size(found, parse_target("2 s/it")).capacity_bytes == pytest.approx(200 * GB)


def test_only_the_cells_of_the_choice_are_points() -> None:
    others = [
        cell("200GB", [9], mechanism="balloon"),
        cell("210GB", [9], mode="mmap"),
        cell("220GB", [9], prefetch="fadvise_oracle"),
        cell("230GB", [9], read_limit=5),
        cell("240GB", [9], finding="policy"),
        cell("250GB", [9], spine="locked"),
        cell("260GB", [9], fill="random"),
    ]
    mine = [cell("100GB", [4]), cell("400GB", [1])]
    assert len(curve_of([session(*others, *mine)], Choice()).points) == 2
    balloon = curve_of([session(*others, *mine)], Choice(mechanism="balloon"))
    assert [one.capacity_bytes for one in balloon.points] == [200 * GB]
    assert balloon.remeasure.endswith("--moetier-mechanism balloon")


def test_a_batch_is_a_curve_of_its_own_beside_the_single_stream() -> None:
    found = curve_of([session(cell("100GB", [4]), cell("400GB", [1]), cell("400GB", [3], workload="batch4"))], Choice())
    assert [len(found.points), len(found.batch)] == [2, 1]
    batch = curve_of([session(cell("100GB", [4]), cell("400GB", [3], workload="batch4"))], Choice(workload="batch4"))
    assert [one.seconds for one in batch.points] == [(3,)]


def test_the_newest_measurement_of_a_cell_counts() -> None:
    old, new = session(cell("100GB", [4]), cell("400GB", [1])), session(cell("100GB", [5]), day=2)
    assert [one.seconds for one in curve_of([old, new], Choice()).points] == [(5,), (1,)]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([cell("1GB", [4], mglru="on"), cell("2GB", [4], mglru="off")], "MGLRU off and on; expected one"),
        ([cell("1GB", [4]), cell("2GB", [4], context={**CONTEXT, "threads": 8})], "differ in threads (2, 8)"),
        ([cell("1GB", [4]), cell("2GB", [4], context={**CONTEXT, "plan_crc": "d"})], "differ in plan_crc (c, d)"),
        ([cell("1GB", [4], guest={"emulated": True})], "whose processors are software"),
        ([cell("1GB", [4], mechanism="balloon")], "no capacity cell of cgroup, page_cache in 1.json"),
        ([cell("1GB", None)], "seconds_per_iteration of 1GB is missing; expected a positive number"),
        ([cell("1GB", [math.nan])], "seconds_per_iteration of 1GB is nan"),
        ([cell("1GB", [1, math.inf])], "seconds_per_iteration of 1GB is 1, inf"),
        ([cell("1GB", [0.0])], "seconds_per_iteration of 1GB is 0.0"),
        ([cell("1GB", [4], context={"pool_id": "p"})], "1GB was stored without the size of its pool"),
    ],
)
def test_cells_that_are_no_curve_are_refused(cells: list[StoredCell], said: str) -> None:
    with pytest.raises(InputError) as caught:
        curve_of([session(*cells)], Choice())
    assert said in str(caught.value)


def test_a_metric_in_another_unit_is_refused() -> None:
    other = cell("1GB", [4])
    metrics = {"seconds_per_iteration": Metric("seconds_per_iteration", "ms/iteration", "lower", (4.0,))}
    stored = StoredCell(other.id, other.words, metrics, other.context, None, traced=False)
    with pytest.raises(InputError, match="seconds_per_iteration of 1GB is in ms/iteration; expected s/iteration"):
        curve_of([session(stored)], Choice())


def test_sessions_of_two_hosts_are_no_curve() -> None:
    with pytest.raises(InputError, match="of the hosts here, there"):
        curve_of([session(cell("1GB", [4])), session(cell("2GB", [4]), host="there")], Choice())


def test_another_host_s_curve_is_named_as_such() -> None:
    (note, _) = curve_of([session(cell("1GB", [4]), host="there")], Choice(), "here").notes
    assert note.endswith("kernel 6.12, another host (there)")


def test_the_latest_curve_is_this_host_s_newest_with_two_capacities() -> None:
    whole = session(cell("100GB", [4]), cell("400GB", [1]))
    single = session(cell("100GB", [9]), day=2)
    foreign = session(cell("100GB", [8]), cell("400GB", [7]), host="there", day=3)
    found = latest_curve([whole, single, foreign], Choice(), "here", ".benchmarks")
    assert [one.seconds for one in found.points] == [(4,), (1,)]
    with pytest.raises(InputError, match="no session of this host in x has a capacity curve of cgroup, page_cache"):
        latest_curve([single, foreign], Choice(), "here", "x")
