"""The generation audit's figure and numbers in the folder of ``--moetier-report``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from pytest_moetier import plots, plugin
from pytest_moetier.audit import Audit, audit_of
from pytest_moetier.campaign import CellResult
from pytest_moetier.cell import Cell
from pytest_moetier.drawings import write_report
from pytest_moetier.errors import HostBusyError, InputError
from pytest_moetier.figures import Figures
from pytest_moetier.host import generations
from pytest_moetier.proof import Proof, ProvedRun
from pytest_moetier.replayer import Sample
from pytest_moetier.routing import DEFAULT_SEED, Studies
from pytest_moetier.units import PAGE_BYTES, Capacity
from pytest_moetier.verdicts import MoetierSession, Record

Bench = Callable[..., pytest.RunResult]

FILES = ["generations.json", "generations.png", "generations.svg"]
"""Of all cells together; each has a figure of its own too, and the report is beside them."""
ITERATIONS = 20


def audit(oldest: int = 50, *, sampled: bool = True) -> Audit:
    """Return the audit of a pass with so many pages in the oldest generation."""
    rows = f"memcg 2 /moetier-1-cell\n node 0\n 3 9 0 {oldest}\n 4 9 7 60\n"
    samples = [Sample(at, float(at), {generations.PATH: rows}) for at in range(ITERATIONS)] if sampled else []
    return audit_of(
        samples,
        device_bytes=[40 * PAGE_BYTES] * ITERATIONS,
        logical_bytes=[100 * PAGE_BYTES] * ITERATIONS,
        capacity_bytes=200 * PAGE_BYTES,
    )


def result(mechanism: str, *audits: Audit | None, **further: Any) -> CellResult:
    """Return what a campaign found for a cell, with the audits of its boots."""
    cell = Cell("generations", Capacity.parse("4.4%"), mechanism, "on", workload="reclaim", kernel="6.12")
    runs = [ProvedRun(None, Figures(1.0, audit=one), Proof(())) for one in audits]  # type: ignore[arg-type]
    return CellResult(cell, runs=runs, **further)


def session(folder: Path | str, results: Sequence[CellResult]) -> MoetierSession:
    """Return a session over cells that are known beforehand, in which no trace was asked for."""
    defaults = {f"moetier_{name}": default for name, default, *_ in plugin._OPTIONS}  # noqa: SLF001
    config = SimpleNamespace(
        option=SimpleNamespace(moetier_report=str(folder)),
        getini={**defaults, "moetier_trace": [], "moetier_kernel": []}.__getitem__,
    )
    campaign = SimpleNamespace(results={one.cell.id: one for one in results}, context=None, contexts={}, notes=[])
    made = MoetierSession(config, campaign, Studies(DEFAULT_SEED, 0), None, None)  # type: ignore[arg-type]
    for one in results:
        verdict = "supported" if one.proved else "invalid" if one.invalid else "not_examined"
        made.records[one.cell.id] = Record("generations", f"test_generations[{one.cell.id}]", one.cell.id, verdict)
    return made


def texts(path: Path) -> list[str]:
    """Return the words of an SVG, which must be well-formed."""
    root = ET.fromstring(path.read_bytes())  # noqa: S314 - our own file
    return [(one.text or "").strip() for one in root.iter("{http://www.w3.org/2000/svg}text")]


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def drawn(folder: Path) -> list[str]:
    return [one for one in names(folder) if one.startswith("generations.")]


def test_the_audits_of_proved_cells_are_drawn_with_their_numbers(tmp_path: Path) -> None:
    wall, boot = result("cgroup", audit(50)), result("memboot", audit(70))
    said, problems = write_report(session(tmp_path, [boot, wall]))
    assert (said[0], problems) == (f"report: generations of 2 cells: {tmp_path / 'generations.*'}", [])
    assert drawn(tmp_path) == FILES
    assert {f"audit-{one.cell.id}.svg" for one in (wall, boot)} <= set(names(tmp_path))
    document = json.loads((tmp_path / "generations.json").read_text())
    assert list(document) == [wall.cell.id, boot.cell.id]
    for one, found in zip((wall, boot), document.values(), strict=True):
        expected = one.runs[0].figures.audit
        assert expected is not None
        assert found == {"cell": one.cell.id, "every": 1, **json.loads(json.dumps(expected.as_json()))}
        assert len(found["moments"]) == ITERATIONS
        assert set(found["device_bytes"]) == {40 * PAGE_BYTES}
    shown = " ".join(texts(tmp_path / "generations.svg"))
    assert wall.cell.id in shown
    assert boot.cell.id in shown
    assert (tmp_path / "generations.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_first_boot_of_a_cell_is_drawn(tmp_path: Path) -> None:
    write_report(session(tmp_path, [result("cgroup", audit(50), audit(70))]))
    (found,) = json.loads((tmp_path / "generations.json").read_text()).values()
    assert {one["file_pages"][0] for one in found["moments"]} == {50}


@pytest.mark.parametrize(
    "left_out",
    [
        result("memboot", audit(), invalid=["a byte was lost"]),
        result("memboot", audit(), skipped=HostBusyError("busy")),
        result("memboot", audit(), broken=InputError("lost", "it")),
        result("memboot", None, None),
        result("memboot", audit(sampled=False)),
        result("memboot"),
    ],
    ids=["invalid", "skipped", "broken", "no audit", "no samples", "no runs"],
)
def test_a_cell_that_is_not_proved_or_has_no_generations_is_not_drawn(tmp_path: Path, left_out: CellResult) -> None:
    wall = result("cgroup", audit())
    said, problems = write_report(session(tmp_path / "both", [wall, left_out]))
    assert (len(said), problems) == (2, [])
    assert "generations of 1 cell" in said[0]
    assert list(json.loads((tmp_path / "both" / "generations.json").read_text())) == [wall.cell.id]
    said, problems = write_report(session(tmp_path / "alone", [left_out]))
    assert problems == []
    assert not [one for one in said if "generations" in one]
    assert names(tmp_path / "alone") == ["index.html", "report.md", "results.json"]


def test_without_the_option_nothing_is_drawn_and_nothing_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert write_report(session("", [result("cgroup", audit())])) == ([], [])
    assert names(tmp_path) == []


def test_folders_above_are_made_old_figures_replaced_and_other_files_left(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        assert write_report(session(folder, [result("cgroup", audit())]))[1] == []
        assert drawn(folder) == FILES
        (folder / "mine.txt").write_text("mine")
        (folder / FILES[0]).write_bytes(b"old")
    write_report(session(folder, [result("cgroup", audit())]))
    assert (folder / "mine.txt").read_text() == "mine"
    assert json.loads((folder / FILES[0]).read_text())
    assert (folder / "mine.txt").read_text() == "mine"


def test_a_drawing_that_fails_is_named_and_not_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("no axes")

    monkeypatch.setattr(plots, "_draw_reclaim", broken)
    said, problems = write_report(session(tmp_path / "out", [result("cgroup", audit())]))
    assert said == []
    assert problems == [f"--moetier-report {tmp_path / 'out'} was not written: ZeroDivisionError: no axes"]
    assert not (tmp_path / "out").exists()


def test_a_folder_that_can_no_longer_be_made_is_named(tmp_path: Path) -> None:
    """It was looked at before the session began; what came in its way since costs the figure and not the table."""
    (tmp_path / "taken").write_text("a file")
    said, problems = write_report(session(tmp_path / "taken" / "in", [result("cgroup", audit())]))
    assert said == []
    assert len(problems) == 1
    assert problems[0].startswith(f"--moetier-report {tmp_path / 'taken' / 'in'} was not written: ")
    assert "Not a directory; expected a folder that may be made" in problems[0]


PLAYED = """
from made_runs import plan, run_of
from test_drawings import audit

from pytest_moetier.campaign import Campaign, CellResult, Context
from pytest_moetier.figures import Figures
from pytest_moetier.proof import Proof, ProvedRun


def measure(self, cells):
    self.contexts["single", "host"] = Context("p", "1", 1 << 30, "t", True, True, "c", 20, 2, 1, 1.0)
    for cell in cells:
        run = run_of(cell, plan(20), 1 << 26, [0] * 20)
        figures = Figures(1.0, device_bytes=7.0, audit=audit())
        self.results[cell.id] = CellResult(cell, runs=[ProvedRun(run, figures, Proof(()))])
    return self.results


Campaign.measure = measure
"""


@pytest.fixture
def played(bench: Bench, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Run a bench of two cells whose measurements are played."""
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (here, here.parent / "guest"))))
    pytester.makepyfile(played=PLAYED)
    pytester.syspathinsert()
    words = (
        "--moetier-capacity=5%",
        "--moetier-mechanism=cgroup,memboot",
        "--moetier-rounds=1",
        "--moetier-json=v.json",
    )
    return lambda *args: bench("-p", "played", *words, *args)


def test_a_session_draws_at_its_end_and_says_where(played: Bench, pytester: pytest.Pytester) -> None:
    found = played("--moetier-report=out")
    assert found.ret == 0
    found.assert_outcomes(passed=3)
    assert "report: generations of 2 cells: out/generations.*" in found.outlines
    assert drawn(pytester.path / "out") == FILES


def test_a_session_whose_drawing_fails_keeps_its_table_and_its_verdicts(
    played: Bench, pytester: pytest.Pytester
) -> None:
    pytester.mkpydir("matplotlib").joinpath("__init__.py").write_text("raise ImportError('no such symbol')\n")
    found = played("--moetier-report=out")
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.assert_outcomes(passed=3)
    assert "verdicts: 3 supported" in found.outlines
    assert any(
        line.startswith("ERROR: --moetier-report out was not written: ImportError: no such symbol")
        for line in found.outlines
    )
    assert len(json.loads(pytester.path.joinpath("v.json").read_text())["results"]) == 3
    assert not [one for one in FILES if pytester.path.joinpath("out", one).exists()]


def test_a_session_without_the_option_says_nothing_of_a_report(played: Bench, pytester: pytest.Pytester) -> None:
    found = played()
    found.assert_outcomes(passed=3)
    assert not [line for line in found.outlines if line.startswith("report:")]
    assert not list(pytester.path.rglob("generations.*"))
