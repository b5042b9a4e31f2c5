"""What the findings on MGLRU behind a locked region say of cells that are known beforehand."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from curves import HELD, Known, held, reclaim, values, verdicts
from known import module_of

from pytest_moetier.campaign import CellResult


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The finding's module."""
    return module_of("reclaim")


def balloon(state: str, *rounds: float, **more: Any) -> CellResult:
    return held(reclaim("balloon", state, locked=81), *rounds, **more)


def pair(state: str, *rounds: float, **more: Any) -> CellResult:
    return held(reclaim("balloon", state, "6.4%", locked=74), *rounds, **more)


def other(mechanism: str, state: str, *rounds: float, **more: Any) -> CellResult:
    return held(reclaim(mechanism, state), *rounds, **more)


PAPER = [
    balloon("on", 33.6, 33.8),
    balloon("off", 16.8, 16.8),
    pair("on", 18.5, 18.5),
    pair("off", 23.7, 23.7),
    other("cgroup", "on", 16.5, 16.5),
    other("cgroup", "off", 16.5, 16.4),
    other("memboot", "on", 16.4, 16.4),
    other("memboot", "off", 18.1, 18.1),
]
"""Figure 3 of the paper, in GB an iteration."""


def judged(bench: ModuleType, name: str, cells: list[CellResult], *args: str) -> Any:
    return Known("reclaim", cells).judged(getattr(bench, name), *args)


def test_the_papers_own_figure_supports_every_claim_on_its_ratios(bench: ModuleType) -> None:
    for name, args in (
        ("test_mglru_behind_a_balloon", ()),
        ("test_mglru_behind_a_smaller_balloon", ()),
        ("test_mglru_without_a_balloon", ("cgroup",)),
        ("test_mglru_without_a_balloon", ("memboot",)),
        ("test_the_knee_needs_both", ()),
        ("test_mechanisms_agree_on_the_classic_lru", ()),
    ):
        assert judged(bench, name, PAPER, *args).verdict == "supported", name


@pytest.mark.parametrize(
    ("on", "verdict"),
    [((2.0, 2.4), "supported"), ((1.4, 1.9), "refuted"), ((1.9, 2.1), "not_examined"), ((1.0, 1.0), "refuted")],
)
def test_behind_the_balloon_mglru_must_read_twice_what_the_classic_lru_reads(
    bench: ModuleType, on: tuple[float, ...], verdict: str
) -> None:
    record = judged(bench, "test_mglru_behind_a_balloon", [balloon("on", *on), balloon("off", 1.0, 1.0), *PAPER[2:]])
    assert verdicts(record) == {"mglru_device_ratio_locked81": verdict}
    assert values(record)["mglru_device_ratio_locked81"] == pytest.approx(sum(on) / 2)


@pytest.mark.parametrize(
    ("on", "verdict"), [(1.149, "supported"), (0.5, "supported"), (1.16, "refuted"), (2.0, "refuted")]
)
def test_behind_the_smaller_balloon_mglru_may_read_no_more(bench: ModuleType, on: float, verdict: str) -> None:
    cells = [pair("on", on, on), pair("off", 1.0, 1.0), *PAPER[:2]]
    record = judged(bench, "test_mglru_behind_a_smaller_balloon", cells)
    assert (verdicts(record), values(record)) == (
        {"mglru_device_ratio_locked74": verdict},
        {"mglru_device_ratio_locked74": pytest.approx(on)},
    )


@pytest.mark.parametrize("mechanism", ["cgroup", "memboot"])
@pytest.mark.parametrize(
    ("on", "verdict"), [(0.86, "supported"), (1.14, "supported"), (0.84, "refuted"), (1.3, "refuted")]
)
def test_without_a_balloon_the_toggle_may_change_nothing(
    bench: ModuleType, mechanism: str, on: float, verdict: str
) -> None:
    cells = [other(mechanism, "on", on), other(mechanism, "off", 1.0), *PAPER[:4]]
    record = judged(bench, "test_mglru_without_a_balloon", cells, mechanism)
    assert verdicts(record) == {f"mglru_device_ratio_{mechanism}": verdict}


def amplified(**by: float) -> list[CellResult]:
    """Return the cells at C with these amplifications, 1 where none is named."""
    return [
        balloon("on", by.get("balloon_on", 1.0)),
        balloon("off", by.get("balloon_off", 1.0)),
        *(other(one, state, by.get(f"{one}_{state}", 1.0)) for one in ("cgroup", "memboot") for state in ("on", "off")),
    ]


@pytest.mark.parametrize("lacks", ["balloon_off", "cgroup_on", "cgroup_off", "memboot_on", "memboot_off"])
def test_the_knee_is_over_each_cell_that_lacks_a_part_of_it(bench: ModuleType, lacks: str) -> None:
    record = judged(bench, "test_the_knee_needs_both", amplified(balloon_on=2.0))
    assert (record.verdict, values(record)) == ("supported", {"knee_over_every_other": 2.0})
    record = judged(bench, "test_the_knee_needs_both", amplified(balloon_on=2.0, **{lacks: 1.9}))
    assert (record.verdict, values(record)) == ("refuted", {"knee_over_every_other": pytest.approx(2.0 / 1.9)})


def test_the_knee_is_one_of_amplification_and_not_of_bytes(bench: ModuleType) -> None:
    cells = amplified(balloon_on=2.0)
    cells[0] = balloon("on", 1.0, amplification=2.0)
    assert values(judged(bench, "test_the_knee_needs_both", cells)) == {"knee_over_every_other": 2.0}


@pytest.mark.parametrize(
    ("odd", "size", "verdict"),
    [
        ("balloon_off", 1.14, "supported"),
        ("balloon_off", 1.2, "refuted"),
        ("memboot_off", 0.8, "refuted"),
        ("cgroup_off", 1.2, "refuted"),
        ("cgroup_on", 9.0, "supported"),
        ("balloon_on", 9.0, "supported"),
    ],
)
def test_mechanisms_are_held_against_each_other_on_the_classic_lru_alone(
    bench: ModuleType, odd: str, size: float, verdict: str
) -> None:
    record = judged(bench, "test_mechanisms_agree_on_the_classic_lru", amplified(**{odd: size}))
    assert record.verdict == verdict
    others = 1.0 if odd.endswith("_on") else max(size, 1 / size)
    assert values(record) == {"classic_mechanism_ratio": pytest.approx(others)}


OVER_TWO = [
    ("test_mglru_behind_a_balloon", ()),
    ("test_mglru_behind_a_smaller_balloon", ()),
    ("test_mglru_without_a_balloon", ("cgroup",)),
    ("test_mglru_without_a_balloon", ("memboot",)),
    ("test_the_knee_needs_both", ()),
    ("test_mechanisms_agree_on_the_classic_lru", ()),
]
NEEDED = {
    "test_mglru_behind_a_balloon": [0, 1],
    "test_mglru_behind_a_smaller_balloon": [2, 3],
    "test_mglru_without_a_balloon-cgroup": [4, 5],
    "test_mglru_without_a_balloon-memboot": [6, 7],
    "test_the_knee_needs_both": [0, 1, 4, 5, 6, 7],
    "test_mechanisms_agree_on_the_classic_lru": [1, 5, 7],
}
"""Which of the paper's cells each claim rests on."""


def needed(name: str, args: tuple[str, ...]) -> list[int]:
    return NEEDED["-".join((name, *args))]


@pytest.mark.parametrize(("name", "args"), OVER_TWO, ids=str)
def test_cells_that_held_different_amounts_are_not_compared(
    bench: ModuleType, name: str, args: tuple[str, ...]
) -> None:
    for at, cell in enumerate(PAPER):
        cells = list(PAPER)
        cells[at] = held(cell.cell, 1.0, 1.0, at=HELD * 1.021)
        record = judged(bench, name, cells, *args)
        if at in needed(name, args):
            assert (record.verdict, record.judgements) == ("not_examined", [])
            assert "held 47.0 MB" in record.reason
            assert "expected its C of 46.0 MB, within 2%" in record.reason
        else:
            assert record.verdict == "supported"
        cells[at] = held(cell.cell, *[one.figures.device_bytes for one in cell.runs], at=HELD * 1.019)  # type: ignore[misc]
        assert judged(bench, name, cells, *args).verdict == "supported"


@pytest.mark.parametrize(("name", "args"), OVER_TWO, ids=str)
def test_a_cell_that_is_missing_leaves_a_claim_not_examined(
    bench: ModuleType, name: str, args: tuple[str, ...]
) -> None:
    for at in range(len(PAPER)):
        record = judged(bench, name, [*PAPER[:at], *PAPER[at + 1 :]], *args)
        if at in needed(name, args):
            assert record.verdict == "not_examined"
            assert record.reason.startswith("no proved cell of mechanism ")
        else:
            assert record.verdict == "supported"


@pytest.mark.parametrize("state", ["steady", "mglru", "cold_factor", "foreign_share", "device_two_witnesses"])
@pytest.mark.parametrize(("name", "args"), OVER_TWO, ids=str)
def test_a_claim_rests_on_what_was_proved_of_every_cell(
    bench: ModuleType, name: str, args: tuple[str, ...], state: str
) -> None:
    for at in needed(name, args):
        cells = list(PAPER)
        rounds = [one.figures.device_bytes for one in cells[at].runs]
        cells[at] = held(cells[at].cell, *rounds, states={state: "flagged"})  # type: ignore[arg-type]
        record = judged(bench, name, cells, *args)
        assert record.verdict == "not_examined"
        assert f"invariant {state} is flagged" in record.reason


@pytest.mark.parametrize(("name", "args"), OVER_TWO, ids=str)
def test_the_rounds_may_not_disagree_on_a_bound(bench: ModuleType, name: str, args: tuple[str, ...]) -> None:
    """All but the mechanisms' agreement, which is of medians: there one round's outlier counts nothing."""
    cells = list(PAPER)
    at = needed(name, args)[0]
    cells[at] = held(cells[at].cell, 0.1 * 16.8, 3 * 16.8)
    record = judged(bench, name, cells, *args)
    assert record.verdict == ("refuted" if name == "test_mechanisms_agree_on_the_classic_lru" else "not_examined")


def scanned(*cells: tuple[float, float], **words: Any) -> list[CellResult]:
    """Return cells with these pairs of amplification and scan/steal."""
    made = [reclaim(one, state) for one in ("cgroup", "memboot", "balloon") for state in ("on", "off")]
    return [
        held(cell, amplification, scan_per_steal=scan, **words)
        for cell, (amplification, scan) in zip(made, cells, strict=False)
    ]


@pytest.mark.parametrize(
    ("cells", "healthy", "hurt"),
    [
        ([(1.0, 1.1), (1.1, 1.9), (1.5, 2.4), (2.4, 6.9)], "supported", "supported"),
        ([(1.0, 1.1), (1.1, 2.1), (1.5, 2.4), (2.4, 6.9)], "refuted", "supported"),
        ([(1.0, 1.1), (1.1, 1.9), (1.5, 1.2), (2.4, 6.9)], "supported", "refuted"),
        ([(1.149, 1.1), (1.15, 2.4)], "supported", "supported"),
        ([(1.0, 1.1), (1.1, 1.9)], "supported", "not_examined"),
        ([(1.5, 2.4)], "not_examined", "supported"),
    ],
)
def test_scan_per_steal_is_judged_of_healthy_and_of_amplified_cells(
    bench: ModuleType, cells: list[tuple[float, float]], healthy: str, hurt: str
) -> None:
    record = judged(bench, "test_scan_per_steal_tells_the_amplified", scanned(*cells))
    assert verdicts(record) == {"scan_per_steal_of_healthy": healthy, "scan_per_steal_of_amplified": hurt}
    found = values(record)
    assert found["scan_per_steal_of_healthy"] == max((scan for at, scan in cells if at <= 1.149), default=None)
    assert found["scan_per_steal_of_amplified"] == min((scan for at, scan in cells if at > 1.149), default=None)


def test_scan_per_steal_is_not_judged_of_cells_that_read_otherwise_or_of_none(bench: ModuleType) -> None:
    mapped = held(reclaim("cgroup", "on", mode="mmap"), 1.0, scan_per_steal=9.0)
    record = judged(bench, "test_scan_per_steal_tells_the_amplified", [mapped])
    assert (record.verdict, record.judgements) == ("not_examined", [])
    assert record.reason.startswith("no proved cell; expected one")
    record = judged(bench, "test_scan_per_steal_tells_the_amplified", [mapped, *scanned((1.0, 1.0))])
    assert values(record)["scan_per_steal_of_healthy"] == 1.0


def test_where_reclaim_is_not_counted_scan_per_steal_is_not_examined(bench: ModuleType) -> None:
    cells = [*scanned((1.0, 1.1)), held(reclaim("memboot", "on"), 1.0)]
    record = judged(bench, "test_scan_per_steal_tells_the_amplified", cells)
    assert record.verdict == "not_examined"
    assert record.reason.startswith("scan_per_steal of memboot-mglru_on was not observed here")


def test_a_claim_is_of_one_kernels_cells(bench: ModuleType) -> None:
    """Named kernels have each a test of their own, which sees no other's cells."""
    mine = [
        held(reclaim("balloon", state, locked=81, kernel="6.12"), size) for state, size in (("on", 2.5), ("off", 1.0))
    ]
    theirs = [held(reclaim("balloon", state, locked=81, kernel="7.3"), 1.0) for state in ("on", "off")]
    known = Known("reclaim", [*mine, *theirs])
    for kernel, verdict in (("6.12", "supported"), ("7.3", "refuted")):
        record = known.judged(_of(bench, known, kernel))
        assert record.verdict == verdict
    assert known.curve(kernel="6.12").results == sorted(mine, key=lambda one: one.cell)
    assert known.curve(kernel="6.1").results == []
    assert len(known.curve().results) == 4


def _of(bench: ModuleType, known: Known, kernel: str) -> Any:
    """Return the claim on the balloon as the test of one kernel runs it."""

    def test(curve: Any) -> None:
        del curve
        bench.test_mglru_behind_a_balloon(known.curve(f"test[k{kernel}]", kernel))

    test.__name__ = f"test[k{kernel}]"
    return test
