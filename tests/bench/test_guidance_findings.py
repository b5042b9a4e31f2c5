"""What the findings on the operator's guidance say of cells that are known beforehand."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from curves import Known, cell_of, held, lost, marked, reclaim, values
from known import module_of

from pytest_moetier.campaign import CellResult
from pytest_moetier.errors import UnsupportedHostError

LABEL = "6.12"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The finding's module."""
    return module_of("guidance")


def here(
    mechanism: str, amplification: float, scan: float | None, capacity: str = "17.7%", mode: str = "page_cache"
) -> CellResult:
    """Return a cell of this host with these figures in its one round."""
    more = {} if scan is None else {"scan_per_steal": scan}
    return held(cell_of("guidance", capacity, mechanism=mechanism, mode=mode), 1.0, amplification=amplification, **more)


def guest(word: str, *rounds: float, **more: Any) -> CellResult:
    """Return a guest's cell, by its place among the remedies, that read so many bytes in each boot."""
    mechanism, state, capacity, locked = {
        "failing": ("balloon", "on", "4.4%", 81),
        "confine": ("cgroup", "on", "4.4%", 0),
        "shrink": ("balloon", "on", "6.4%", 74),
        "toggle": ("balloon", "off", "4.4%", 81),
    }[word]
    return held(reclaim(mechanism, state, capacity, locked=locked, kernel=LABEL), *rounds, **more)


HEALTHY = [here("cgroup", 0.98, 1.0), here("cgroup", 0.97, 1.0, "30.9%")]
PAPER = [
    guest("failing", 33.6, 33.8, amplification=2.2, scan_per_steal=2.4),
    guest("confine", 16.5, 16.5, amplification=1.0, scan_per_steal=1.0),
    guest("shrink", 18.5, 18.5, amplification=1.0, scan_per_steal=1.0),
    guest("toggle", 14.0, 14.1, amplification=1.0, scan_per_steal=1.0),
]
"""Section 5 of the paper, in GB an iteration."""


def judged(bench: ModuleType, name: str, cells: list[CellResult], *args: str) -> Any:
    return Known("guidance", cells).judged(getattr(bench, name), *args)


def test_the_papers_own_cells_support_all_of_its_guidance(bench: ModuleType) -> None:
    for name, *args in (
        ("test_a_confined_reader_is_healthy", "scan_per_steal"),
        ("test_a_confined_reader_is_healthy", "device_over_nominal"),
        ("test_a_confined_reader_raises_no_alarm",),
        ("test_an_unhealthy_cell_is_told_by", "scan_per_steal"),
        ("test_an_unhealthy_cell_is_told_by", "device_over_nominal"),
        ("test_an_unhealthy_cell_raises_the_alarm",),
        *(("test_a_remedy_lowers_the_device_bytes", one) for one in ("confine", "shrink", "toggle")),
    ):
        assert judged(bench, name, PAPER, *args).verdict == "supported", (name, args)


@pytest.mark.parametrize(
    ("amplification", "scan", "alarms"),
    [(0.9, 1.0, 0), (1.1, 2.0, 0), (1.15, 1.0, 1), (1.0, 2.1, 1), (1.3, 3.0, 2), (1.0, None, 0)],
)
def test_an_alarm_on_a_confined_reader_refutes(
    bench: ModuleType, amplification: float, scan: float | None, alarms: int
) -> None:
    record = judged(
        bench, "test_a_confined_reader_raises_no_alarm", [*HEALTHY, here("cgroup", amplification, scan, "8%")]
    )
    assert values(record) == {"healthy_alarms": alarms}
    assert record.verdict == ("refuted" if alarms else "supported")


def test_the_worst_confined_reader_is_held_against_each_threshold(bench: ModuleType) -> None:
    cells = [
        *HEALTHY,
        here("cgroup", 1.05, 1.9, "8%"),
        here("balloon", 9.0, 9.0),
        here("cgroup", 1.0, 9.0, mode="mmap"),
    ]
    record = judged(bench, "test_a_confined_reader_is_healthy", cells, "device_over_nominal")
    assert (record.verdict, values(record)) == ("refuted", {"healthy_device_over_nominal": 1.05})
    record = judged(bench, "test_a_confined_reader_is_healthy", cells, "scan_per_steal")
    assert (record.verdict, values(record)) == ("supported", {"healthy_scan_per_steal": 1.9})


def test_a_cell_in_which_nothing_was_stolen_has_no_scan_per_steal_and_hides_no_other(bench: ModuleType) -> None:
    cells = [here("cgroup", 0.9, None), here("cgroup", 0.9, 1.2, "30.9%")]
    assert values(judged(bench, "test_a_confined_reader_is_healthy", cells, "scan_per_steal")) == {
        "healthy_scan_per_steal": 1.2
    }
    record = judged(bench, "test_a_confined_reader_is_healthy", cells[:1], "scan_per_steal")
    assert (record.verdict, values(record)) == ("not_examined", {"healthy_scan_per_steal": None})


@pytest.mark.parametrize(
    ("balloon", "mapped", "alarms", "told"),
    [
        ((1.7, 1.5), (1.0, 1.1), 1, {"device_over_nominal": "supported", "scan_per_steal": "refuted"}),
        ((0.9, 1.5), (1.0, 2.1), 1, {"device_over_nominal": "refuted", "scan_per_steal": "supported"}),
        ((1.1, 1.5), (1.0, 1.9), 0, {"device_over_nominal": "refuted", "scan_per_steal": "refuted"}),
        ((1.7, 2.5), (1.0, 2.1), 3, {"device_over_nominal": "supported", "scan_per_steal": "supported"}),
    ],
)
def test_on_this_host_a_balloon_or_mapped_pages_must_raise_it(
    bench: ModuleType, balloon: tuple[float, float], mapped: tuple[float, float], alarms: int, told: dict[str, str]
) -> None:
    cells = [*HEALTHY, here("balloon", *balloon, "30.9%"), here("cgroup", *mapped, mode="mmap")]
    record = judged(bench, "test_an_unhealthy_cell_raises_the_alarm", cells)
    assert values(record) == {"unhealthy_alarms": alarms}
    assert record.verdict == ("supported" if alarms else "refuted")
    for indicator, verdict in told.items():
        assert judged(bench, "test_an_unhealthy_cell_is_told_by", cells, indicator).verdict == verdict


def test_in_a_guest_only_the_papers_failing_cell_must_raise_it(bench: ModuleType) -> None:
    bad = {"amplification": 9.0, "scan_per_steal": 9.0}
    cells = [guest("failing", 1.0, amplification=1.0, scan_per_steal=1.0)]
    cells += [guest(one, 1.0, **bad) for one in ("confine", "shrink", "toggle")]
    assert values(judged(bench, "test_an_unhealthy_cell_raises_the_alarm", cells)) == {"unhealthy_alarms": 0}


@pytest.mark.parametrize("remedy", ["confine", "shrink", "toggle"])
@pytest.mark.parametrize(
    ("rounds", "verdict"), [((8.0, 9.0), "supported"), ((11.0, 12.0), "refuted"), ((9.0, 11.0), "not_examined")]
)
def test_a_remedy_must_lower_what_the_failing_cell_reads_in_every_boot(
    bench: ModuleType, remedy: str, rounds: tuple[float, float], verdict: str
) -> None:
    cells = [guest("failing", 10.0, 10.0), guest(remedy, *rounds)]
    cells += [guest(one, 1.0, 1.0) for one in ("confine", "shrink", "toggle") if one != remedy]
    record = judged(bench, "test_a_remedy_lowers_the_device_bytes", cells, remedy)
    assert record.verdict == verdict
    ratio = sum(10.0 / one for one in rounds) / 2
    assert values(record) == {f"{remedy}_device_ratio": pytest.approx(ratio)}


@pytest.mark.parametrize("remedy", ["confine", "shrink", "toggle"])
def test_a_remedy_is_not_compared_where_the_two_did_not_hold_their_capacity(bench: ModuleType, remedy: str) -> None:
    cells = [guest("failing", 2.0), guest(remedy, 1.0, at=40e6)]
    record = judged(bench, "test_a_remedy_lowers_the_device_bytes", cells, remedy)
    assert record.verdict == "not_examined"
    assert "held 40.0 MB in the mean; expected its C" in record.reason


def test_without_its_cells_a_finding_is_not_examined_and_says_what_is_missing(bench: ModuleType) -> None:
    assert "no cell under the wall was proved" in judged(bench, "test_a_confined_reader_raises_no_alarm", []).reason
    reason = judged(bench, "test_an_unhealthy_cell_raises_the_alarm", HEALTHY).reason
    assert "expected a balloon or mapped pages" in reason
    failing = lost(guest("failing", 1.0).cell, skipped=UnsupportedHostError("too small", "more", "use another"))
    reason = judged(bench, "test_a_remedy_lowers_the_device_bytes", [failing], "confine").reason
    assert reason.endswith("too small; expected more; next: use another")


def test_the_cells_are_those_of_the_paper_in_guests_and_small_ones_on_this_host(bench: ModuleType) -> None:
    assert {one.id for one in marked(bench.test_guidance_in_a_guest, "guidance", LABEL)} == {
        "balloon81-mglru_on-k6.12",
        "cgroup-mglru_on-k6.12",
        "balloon74-mglru_on-C6.4pct-k6.12",
        "balloon81-mglru_off-k6.12",
    }
    assert {one.id for one in marked(bench.test_guidance_here, "guidance", LABEL)} == {
        "C17.7pct-cgroup-mglru_host",
        "C30.9pct-cgroup-mglru_host",
        "C30.9pct-balloon-mglru_host",
        "C17.7pct-cgroup-mglru_host-mmap",
    }
