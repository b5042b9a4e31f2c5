"""Every bound that is shipped is judged by a finding that is shipped: none is a claim that nobody looks at."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from curves import BENCH, HELD, Known, cell_of, marked, pages, proved
from known import module_of

from pytest_moetier.cell import Cell
from pytest_moetier.finding import read_bounds
from pytest_moetier.routing import UNITS

BOUNDS = read_bounds(BENCH / "bounds.yaml")
ELSEWHERE = ("routing.", "tiers.", "sizing.", "engine.")
ON_DEVICE = [one for one in BOUNDS if not one.id.startswith(ELSEWHERE) and one.value not in UNITS]
"""The bounds of findings on cells; those on traces, on machines and on engines have tests of their own."""
RECLAIM = ("reclaim", "locked", "ladder", "access", "confounders", "generations", "guidance")
"""The findings on cells in virtual machines."""
FIGURES: dict[str, tuple[Any, Any]] = dict.fromkeys(
    (
        "device_bytes",
        "logical_bytes",
        "fair_device_bytes",
        "demand_served",
        "amplification",
        "amplification_over_belady",
        "seconds_per_accepted_token",
        "iteration_variation",
        "cpu_seconds_per_iteration",
        "major_faults",
        "written_bytes",
        "oom_kills",
        "scan_per_steal",
    ),
    (1.0, 1.0),
)
FIGURES["observed_capacity_bytes"] = FIGURES["capacity_bytes"] = (HELD, HELD)
FIGURES["audit"] = (pages([*[(150, 150, 50)] * 20, *[(50, 250, 100)] * 20]),) * 2


def asked(test: Any, finding: str) -> Iterator[Cell]:
    """Yield the cells of a test's own marker, at one capacity; in guests, all that it asks for."""
    if finding in RECLAIM:
        if test.__code__.co_varnames[0] == "moetier_cell":
            yield from marked(test, finding, "6.12")
        return
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "moetier":
            continue
        words = {name: one if isinstance(one, tuple) else (one,) for name, one in mark.kwargs.items()}
        workload = words.get("workload", ("single",))[0]
        for mode in words.get("mode", ("page_cache",)):
            for prefetch in words.get("prefetch", ("none",)):
                for fill in words.get("fill", ("",)):
                    for spine in words.get("spine", ("none",)):
                        yield cell_of(finding, workload=workload, mode=mode, prefetch=prefetch, fill=fill, spine=spine)


def judged(finding: str) -> set[str]:
    """Return the ids of the bounds that the tests of a finding judge where every cell was measured."""
    module = module_of(finding)
    tests = {name: one for name, one in vars(module).items() if name.startswith("test_")}
    cells = {cell.id: (cell, test) for test in tests.values() for cell in asked(test, finding)}
    if finding == "capacity":
        more = [cell_of(finding), cell_of(finding, "30.9%"), cell_of(finding, mechanism="balloon")]
        cells |= {cell.id: (cell, module.test_capacity) for cell in more}
    known = Known(finding, [proved(cell, FIGURES) for cell, _ in cells.values()])
    found = {one.bound.id for cell, test in cells.values() for one in known.judged_cell(test, cell).judgements}
    for test in tests.values():
        names = test.__code__.co_varnames[: test.__code__.co_argcount]
        if names[0] != "moetier_curve":
            continue
        for args in _parameters(test, names[1:]):
            found |= {one.bound.id for one in known.judged(test, *args).judgements}
    return found


def _parameters(test: Any, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    given = {mark.args[0]: mark.args[1] for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"}
    yield from itertools.product(*(given[name] for name in names))


def test_every_bound_on_cells_is_judged_by_a_finding() -> None:
    findings = ("capacity", "policy", "advice", "small_box", "hit_cost", *RECLAIM)
    found = set().union(*(judged(finding) for finding in findings))
    assert len(ON_DEVICE) >= 30
    assert {one.id for one in ON_DEVICE} == found


@pytest.mark.parametrize("finding", ["policy", "advice", "small_box", "hit_cost", "generations", "guidance"])
def test_a_finding_judges_the_bounds_that_bear_its_name_and_those_of_every_cell(finding: str) -> None:
    found = judged(finding)
    own = {one.id for one in ON_DEVICE if one.id.startswith(f"{finding}.")}
    assert own <= found
    assert found - own <= {"capacity.device_bytes_spread", "capacity.at_least_belady"}


@pytest.mark.parametrize(
    ("finding", "bounds"),
    [
        (
            "reclaim",
            {
                "mglru_behind_81_locked",
                "mglru_behind_74_locked",
                "mglru_under_the_wall",
                "mglru_under_mem",
                "knee_needs_both",
                "classic_mechanisms_agree",
                "scan_per_steal_of_healthy",
                "scan_per_steal_of_amplified",
            },
        ),
        ("locked", {f"locked{one}_over_74_{two}_mglru" for one in (81, 88) for two in ("with", "without")}),
        ("ladder", {"mglru_behind_81_locked", "mglru_under_the_wall"}),
        ("access", {"scan_per_steal_of_healthy"}),
        ("confounders", {"read_ahead_changes_little", "file_system_changes_little"}),
    ],
)
def test_a_finding_in_guests_judges_its_part_of_the_claims_on_reclaim(finding: str, bounds: set[str]) -> None:
    own = judged(finding) - {"capacity.device_bytes_spread", "capacity.at_least_belady"}
    assert own == {f"reclaim.{one}" for one in bounds}


def test_every_bound_says_what_kind_of_claim_it_is() -> None:
    for one in ON_DEVICE:
        assert one.source.partition(":")[0].split()[0] in {
            "paper",
            "arithmetic",
            "moe-offload-bench",
            "measured",
            "protocol",
            "hypothesis",
            "control",
        }, one


def test_no_two_bounds_speak_of_one_value_of_the_same_cells() -> None:
    pairs = [(one.value, one.cell) for one in ON_DEVICE]
    assert len(pairs) == len(set(pairs))
