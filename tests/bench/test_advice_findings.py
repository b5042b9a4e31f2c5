"""What the findings on advice say of deliveries that are known beforehand (paper section 7)."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import pytest
from curves import PREFETCHED, Known, cell_of, proved, values, verdicts
from known import module_of

from pytest_moetier.errors import InputError


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The finding's module."""
    return module_of("advice")


def known(times: Mapping[str, list[float]], states: Mapping[str, str] | None = None) -> Known:
    cells = [
        proved(cell_of("advice", prefetch=prefetch), {"seconds_per_iteration": seconds}, states)
        for prefetch, seconds in times.items()
    ]
    return Known("advice", cells)


NONE = [1.13, 1.13, 1.13]


@pytest.mark.parametrize(
    ("advisor", "hinted", "verdict"),
    [
        ("oracle", [1.08, 1.07, 1.09], "supported"),
        ("oracle", [1.14, 1.15, 1.16], "refuted"),
        ("oracle", [1.08, 1.13, 1.18], "not_examined"),
        ("plan", [1.13, 1.12, 1.14], "supported"),
        ("plan", [1.00, 1.01, 1.02], "refuted"),  # a predictor that gains that much is not what was found
        ("plan", [1.30, 1.31, 1.32], "refuted"),
        ("plan", [1.00, 1.13, 1.14], "not_examined"),
    ],
)
def test_hints_gain_by_an_oracle_and_next_to_nothing_by_a_predictor(
    bench: ModuleType, advisor: str, hinted: list[float], verdict: str
) -> None:
    record = known({f"fadvise_{advisor}": hinted, "none": NONE}).judged(bench.test_hints_against_none, advisor)
    assert (record.verdict, set(values(record))) == (verdict, {f"{advisor}_hint_gain"})


@pytest.mark.parametrize("advisor", ["oracle", "plan"])
@pytest.mark.parametrize(
    ("blocking", "verdict"),
    [([1.15, 1.15, 1.16], "supported"), ([1.10, 1.10, 1.10], "supported"), ([0.9, 0.9, 0.9], "refuted")],
)
def test_blocking_reads_buy_nothing(bench: ModuleType, advisor: str, blocking: list[float], verdict: str) -> None:
    curve = known({f"blocking_{advisor}": blocking, "none": NONE})
    record = curve.judged(bench.test_blocking_against_none, advisor)
    assert record.verdict == verdict
    assert values(record) == {"blocking_gain": pytest.approx(1.13 / sorted(blocking)[1])}


@pytest.mark.parametrize("advisor", ["oracle", "plan"])
@pytest.mark.parametrize(
    ("blocking", "hinted", "verdict"),
    [
        ([1.15, 1.15], [1.08, 1.08], "supported"),
        ([1.00, 1.20], [1.10, 1.10], "supported"),  # in one round it was no better
        ([1.00, 1.05], [1.10, 1.10], "refuted"),
    ],
)
def test_blocking_reads_are_never_better_than_hints_beyond_the_rounds_spread(
    bench: ModuleType, advisor: str, blocking: list[float], hinted: list[float], verdict: str
) -> None:
    curve = known({f"blocking_{advisor}": blocking, f"fadvise_{advisor}": hinted})
    record = curve.judged(bench.test_blocking_against_hints, advisor)
    assert record.verdict == verdict


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("test_hints_against_none", ("fadvise_{}", "none")),
        ("test_blocking_against_none", ("blocking_{}", "none")),
        ("test_blocking_against_hints", ("blocking_{}", "fadvise_{}")),
    ],
)
@pytest.mark.parametrize("advisor", ["oracle", "plan"])
def test_a_delivery_that_is_missing_is_named_and_nothing_is_judged(
    bench: ModuleType, name: str, needed: tuple[str, ...], advisor: str
) -> None:
    words = [one.format(advisor) for one in needed]
    assert known(dict.fromkeys(words, NONE)).judged(getattr(bench, name), advisor).judgements
    for missing in words:
        record = known({one: NONE for one in words if one != missing}).judged(getattr(bench, name), advisor)
        assert record.verdict == "not_examined"
        assert record.reason.startswith(f"no proved cell of prefetch {missing}; ")


def test_the_other_advisors_cells_are_not_taken_for_ones_own(bench: ModuleType) -> None:
    record = known({"fadvise_oracle": NONE, "none": NONE}).judged(bench.test_hints_against_none, "plan")
    assert record.verdict == "not_examined"


def test_a_worker_whose_counts_were_not_proved_gives_no_verdict(bench: ModuleType) -> None:
    states = {"prefetch_adds_up": "unobserved"}
    record = known({"fadvise_oracle": [1.0], "none": [1.1]}, states).judged(bench.test_hints_against_none, "oracle")
    assert verdicts(record) == {"oracle_hint_gain": "not_examined"}


def test_every_delivery_is_a_cell_and_none_is_the_base(bench: ModuleType) -> None:
    assert bench.PREFETCH[0] == "none"
    assert set(bench.PREFETCH) == {
        "none",
        *(f"{delivery}_{one}" for delivery in ("fadvise", "blocking") for one in bench.ADVISORS),
    }
    with pytest.raises(InputError):
        cell_of("advice", prefetch="fadvise_someone")


def test_a_cell_keeps_the_workers_counts_as_metrics(bench: ModuleType) -> None:
    cell = cell_of("advice", prefetch="fadvise_oracle")
    result = proved(cell, {"prefetch": [PREFETCHED] * 2, "advice_recall": [1.0] * 2, "device_bytes": [10.0] * 2})  # type: ignore[list-item]
    record = Known("advice", [result]).judged_cell(bench.test_delivery, cell)
    found = {name: one.median for name, one in record.metrics.items() if name.startswith(("prefetch", "advice"))}
    assert found == {
        "advice_recall": 1.0,
        "prefetch_submitted": 10,
        "prefetch_completed": 8,
        "prefetch_overwritten": 2,
        "prefetch_asked_bytes": 8000,
        "prefetch_resident_before_bytes": 2000,
        "prefetch_became_resident_bytes": 1000,
        "prefetch_read_bytes": 0,
    }
    assert verdicts(record) == {"device_bytes_spread": "supported"}
