"""What the finding on the locked fraction says of cells that are known beforehand."""

from __future__ import annotations

from types import ModuleType

import pytest
from curves import HELD, Known, held, reclaim, values, verdicts
from known import module_of

from pytest_moetier.campaign import CellResult

NAME = "test_the_excess_grows_with_the_locked_fraction"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The finding's module."""
    return module_of("locked")


def locked(state: str, *rounds: tuple[float, ...], at: float = HELD) -> list[CellResult]:
    """Return the cells of 74, 81 and 88% locked; the last held ``at``."""
    made = [(one, reclaim("balloon", state, locked=one)) for one in (74, 81, 88)]
    return [held(cell, *sizes, at=at if one == 88 else HELD) for (one, cell), sizes in zip(made, rounds, strict=True)]


@pytest.mark.parametrize(
    ("middle", "high", "expected"),
    [
        (1.3, 2.0, ("supported", "supported")),
        (1.0, 2.0, ("refuted", "supported")),
        (1.3, 1.1, ("supported", "refuted")),
        (0.8, 0.9, ("refuted", "refuted")),
    ],
)
def test_with_mglru_the_larger_fractions_must_read_more(
    bench: ModuleType, middle: float, high: float, expected: tuple[str, str]
) -> None:
    cells = [*locked("on", (1.0,), (middle,), (high,)), *locked("off", (1.0,), (1.0,), (1.0,))]
    record = Known("locked", cells).judged(getattr(bench, NAME), "on")
    assert tuple(verdicts(record).values()) == expected
    assert values(record) == {"locked81_over_74_mglru_on": middle, "locked88_over_74_mglru_on": high}


@pytest.mark.parametrize(
    ("middle", "high", "expected"),
    [
        (1.0, 0.8, ("supported", "supported")),
        (1.2, 1.0, ("refuted", "supported")),
        (1.0, 1.2, ("supported", "refuted")),
    ],
)
def test_without_mglru_they_may_not(bench: ModuleType, middle: float, high: float, expected: tuple[str, str]) -> None:
    cells = [*locked("off", (1.0,), (middle,), (high,)), *locked("on", (1.0,), (9.0,), (9.0,))]
    record = Known("locked", cells).judged(getattr(bench, NAME), "off")
    assert tuple(verdicts(record).values()) == expected
    assert values(record) == {"locked81_over_74_mglru_off": middle, "locked88_over_74_mglru_off": high}


def test_boots_that_differ_among_themselves_cannot_tell(bench: ModuleType) -> None:
    """Ratios are of the boots of one round."""
    cells = locked("on", (1.0, 2.0), (1.3, 2.6), (1.1, 2.6))
    record = Known("locked", cells).judged(getattr(bench, NAME), "on")
    assert verdicts(record) == {
        "locked81_over_74_mglru_on": "supported",
        "locked88_over_74_mglru_on": "not_examined",
    }


def test_a_fraction_that_is_missing_or_held_another_amount_leaves_it_not_examined(bench: ModuleType) -> None:
    cells = locked("on", (1.0,), (2.0,), (2.0,))
    for missing in cells:
        record = Known("locked", [one for one in cells if one is not missing]).judged(getattr(bench, NAME), "on")
        assert record.verdict == "not_examined"
        assert record.reason.startswith(f"no proved cell of locked {missing.cell.locked}, mglru on")
    record = Known("locked", locked("on", (1.0,), (2.0,), (2.0,), at=HELD * 0.97)).judged(getattr(bench, NAME), "on")
    assert record.verdict == "not_examined"
    assert "expected its C of 46.0 MB, within 2%" in record.reason


def test_the_capacity_is_the_same_though_another_was_measured(bench: ModuleType) -> None:
    """A balloon of 74% at another C is the pair of another claim."""
    pair = held(reclaim("balloon", "on", "6.4%", locked=74), 9.0)
    cells = locked("on", (1.0,), (2.0,), (2.0,))
    assert Known("locked", cells, elsewhere=[pair]).judged(getattr(bench, NAME), "on").verdict == "supported"
