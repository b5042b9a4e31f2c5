"""What the finding on the rungs of growing scale says of cells that are known beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import pytest
from curves import HELD, Known, held, reclaim, values, verdicts
from known import module_of

from pytest_moetier.campaign import CellResult
from pytest_moetier.cell import RECLAIM


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The finding's module."""
    return module_of("ladder")


def rung(word: str, sizes: Mapping[str, float], at: float = HELD) -> list[CellResult]:
    """Return a rung's cells with these device bytes, 1 where none are named; the wall with MGLRU held ``at``."""
    found = []
    for mechanism, locked in (("balloon", 81), ("cgroup", 0)):
        for state in ("on", "off"):
            cell = reclaim(mechanism, state, workload=word, locked=locked)
            mean = at if (mechanism, state) == ("cgroup", "on") else HELD
            found.append(held(cell, sizes.get(f"{mechanism}_{state}", 1.0), at=mean))
    return found


def test_every_rung_is_a_test_of_its_own(bench: ModuleType) -> None:
    (mark,) = (one for one in bench.test_contrast_of_a_rung.pytestmark if one.name == "parametrize")
    assert set(mark.args[1]) == set(RECLAIM)
    assert len(set(mark.kwargs["ids"])) == len(RECLAIM)


@pytest.mark.parametrize("word", RECLAIM)
@pytest.mark.parametrize(
    ("sizes", "balloon", "wall"),
    [
        ({"balloon_on": 2.2}, "supported", "supported"),
        ({"balloon_on": 1.3}, "refuted", "supported"),
        ({"balloon_on": 2.2, "cgroup_on": 1.3}, "supported", "refuted"),
        ({"balloon_on": 2.2, "cgroup_on": 0.7}, "supported", "refuted"),
        ({"balloon_on": 4.0, "balloon_off": 2.5, "cgroup_on": 2.0, "cgroup_off": 2.0}, "refuted", "supported"),
    ],
)
def test_a_rung_is_judged_by_its_own_contrast(
    bench: ModuleType, word: str, sizes: Mapping[str, float], balloon: str, wall: str
) -> None:
    others = [cell for one in RECLAIM if one != word for cell in rung(one, {"balloon_on": 9.0, "cgroup_on": 9.0})]
    record = Known("ladder", [*others, *rung(word, sizes)]).judged(bench.test_contrast_of_a_rung, word)
    assert verdicts(record) == {"mglru_device_ratio_locked81": balloon, "mglru_device_ratio_cgroup": wall}
    assert values(record) == {
        f"mglru_device_ratio_{name}": sizes.get(f"{one}_on", 1.0) / sizes.get(f"{one}_off", 1.0)
        for one, name in (("balloon", "locked81"), ("cgroup", "cgroup"))
    }


def test_a_rung_of_which_a_cell_is_missing_or_held_another_amount_is_not_examined(bench: ModuleType) -> None:
    cells = rung("reclaim_l4", {"balloon_on": 2.2})
    for missing in cells:
        left = [*rung("reclaim", {}), *(one for one in cells if one is not missing)]
        record = Known("ladder", left).judged(bench.test_contrast_of_a_rung, "reclaim_l4")
        assert record.verdict == "not_examined"
        assert record.reason.startswith("no proved cell of workload reclaim_l4, mechanism ")
    record = Known("ladder", rung("reclaim", {"balloon_on": 2.2}, at=HELD * 1.03)).judged(
        bench.test_contrast_of_a_rung, "reclaim"
    )
    assert record.verdict == "not_examined"
    assert "expected its C of 46.0 MB, within 2%" in record.reason
