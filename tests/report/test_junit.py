"""What JUnit's file has of a finding: properties ``moetier.*``, whatever became of the test."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

Bench = Callable[..., pytest.RunResult]

PLAYED = """
from made_runs import plan, run_of

from pytest_moetier.campaign import Campaign, CellResult, Context
from pytest_moetier.errors import UnsupportedHostError
from pytest_moetier.figures import Figures
from pytest_moetier.proof import Invariant, Proof, ProvedRun

HELD = Invariant("stamps", "held", "all", "all")
FLAGGED = Invariant("steady", "flagged", "alike", "11% apart")
BROKEN = Invariant("stamps", "broken", "all", "one is another's")


def measure(self, cells):
    self.contexts["single", "host"] = Context("p", "1", 1 << 30, "t", True, True, "c", 20, 2, 1, 1.0)
    for cell in cells:
        run = run_of(cell, plan(20), 1 << 26, [0] * 20)
        result = self.results[cell.id] = CellResult(cell)
        if cell.mechanism == "memboot":
            result.skipped = UnsupportedHostError("not booted with mem=")
        elif cell.mechanism == "balloon":
            result.invalid, result.proofs = ["a byte was lost"], [Proof((BROKEN, FLAGGED))]
        else:
            for read, last in ((6.0, HELD), (9.0, FLAGGED)):
                proof = Proof((HELD, last))
                result.proofs.append(proof)
                result.runs.append(ProvedRun(run, Figures(0.25, device_bytes=read), proof))
    return self.results


Campaign.measure = measure
"""
BOUNDS = """
format: moetier-bounds/1
bounds:
  - {id: least, value: device_bytes, min: %s, source: "a test", needs: []}
  - {id: cells, value: cells, min: 0, source: "any number", needs: []}
"""


@pytest.fixture
def properties(bench: Bench, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict]:
    """Run a bench whose measurements are played; return the properties of each test in JUnit's file."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "guest") + os.pathsep + str(pytester.path))
    pytester.makepyfile(played=PLAYED)

    def run(least: int, *args: str) -> dict[str, dict[str, str]]:
        bench.write(bounds=BOUNDS % least)  # type: ignore[attr-defined]
        words = ("--moetier-capacity=5%", "--moetier-rounds=2", "--junitxml=junit.xml", "-o", "junit_family=xunit2")
        bench("-p", "played", *words, *args)
        tests = ET.parse(pytester.path / "junit.xml").iter("testcase")  # noqa: S314 - our own file
        return {
            str(one.get("name")): {str(each.get("name")): str(each.get("value")) for each in one.iter("property")}
            for one in tests
        }

    return run


def test_every_verdict_has_its_finding_cell_kernel_figures_and_proof(properties: Callable[..., dict]) -> None:
    found = properties(1)
    proved = "C5pct-cgroup-mglru_host"
    assert found[f"test_capacity[{proved}]"] == {
        "moetier.verdict": "supported",
        "moetier.finding": "capacity",
        "moetier.cell": proved,
        "moetier.kernel": platform.release(),
        "moetier.proof": "proved in 2 rounds: 1 held, 1 flagged",
        "moetier.seconds_per_iteration": "0.25",
        "moetier.device_bytes": "7.5",
    }
    assert found["test_capacity[C5pct-balloon-mglru_host]"] == {
        "moetier.verdict": "invalid",
        "moetier.finding": "capacity",
        "moetier.cell": "C5pct-balloon-mglru_host",
        "moetier.kernel": platform.release(),
        "moetier.proof": "not proved in 1 round: 1 flagged, 1 broken",
    }
    assert found["test_capacity[C5pct-memboot-mglru_host]"] == {
        "moetier.verdict": "not_examined",
        "moetier.finding": "capacity",
        "moetier.cell": "C5pct-memboot-mglru_host",
        "moetier.kernel": platform.release(),
    }
    assert found["test_all"] == {"moetier.verdict": "supported", "moetier.finding": "capacity"}


@pytest.mark.parametrize("args", [(), ("--moetier-refuted=report",)])
def test_a_refutation_is_one_whether_it_fails_or_is_only_shown(
    properties: Callable[..., dict], args: tuple[str, ...]
) -> None:
    found = properties(100, "-k", "cgroup", *args)
    (one,) = found.values()
    assert (one["moetier.verdict"], one["moetier.device_bytes"]) == ("refuted", "7.5")


def test_a_test_that_broke_has_no_verdict(properties: Callable[..., dict], bench: Bench) -> None:
    source = "def test_capacity(moetier_cell):\n    moetier_cell.measure()\n    1 / 0\n"
    write = bench.write  # type: ignore[attr-defined]
    bench.write = lambda bounds: write(source, bounds)  # type: ignore[attr-defined]
    (one,) = properties(1, "-k", "cgroup").values()
    assert one == {}
