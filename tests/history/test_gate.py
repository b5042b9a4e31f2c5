"""The gate in a session of pytest: a planted regression fails by name, and a gate that cannot tell is no pass."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_moetier.campaign import Settings
from pytest_moetier.cell import Cell
from pytest_moetier.comparison import apply_gate, prepare_gate
from pytest_moetier.finding import Metric
from pytest_moetier.history.compare import Gate
from pytest_moetier.history.sessions import StoredCell, StoredSession, read_session
from pytest_moetier.settings import build_session
from pytest_moetier.units import Capacity
from pytest_moetier.verdicts import Against
from pytest_moetier.workloads import Asked

CELL = "C30pct-cgroup-mglru_host"
BENCH = """
def test_capacity(moetier_cell):
    moetier_cell.measure()
    moetier_cell.judge()
"""
CELLS = (
    *("--moetier-capacity=30%", "--moetier-mechanism=cgroup", "--moetier-iterations=12", "--moetier-seed=1"),
    *("--moetier-threads=2",),
)
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(bench: Run, small_pool: Path) -> Run:
    """Run the bench's one cell on the small pool."""
    bench.write(BENCH)  # type: ignore[attr-defined]
    return lambda *args: bench(f"--moetier-pool={small_pool}", *CELLS, *args)


def planted(path: Path, number: int, **factors: float) -> None:
    """Store a session beside another with its metrics, the times too, times factors."""
    data = json.loads(path.read_text())
    for benchmark in data["benchmarks"]:
        for name, metric in benchmark["extra_info"]["moetier"]["metrics"].items():
            factor = factors.get(name, 1.0) * (1.000001 if name == "seconds_per_iteration" else 1.0)
            metric["values"] = [value * factor for value in metric["values"]]
    path.with_name(f"{number:04}_planted.json").write_text(json.dumps(data))


def test_a_planted_regression_fails_by_name_and_a_repeat_passes(run: Run, pytester: pytest.Pytester) -> None:
    refused = run("--moetier-compare-fail=device_bytes:20%")
    refused.stderr.fnmatch_lines(
        ["ERROR: pytest-moetier: --moetier-compare-fail: no stored session latest with cells *"]
    )
    assert refused.ret == pytest.ExitCode.USAGE_ERROR

    first = run("--moetier-rounds=5", "--benchmark-autosave", "--moetier-compare")
    assert first.ret == 0
    first.stdout.fnmatch_lines(["compare: no stored session with metrics; store one with --benchmark-autosave"])
    (path,) = pytester.path.glob(".benchmarks/*/0001_*.json")
    planted(path, 2, device_bytes=0.5)  # today then reads twice as much
    planted(path, 3)
    moetier = json.loads(path.read_text())["benchmarks"][0]["extra_info"]["moetier"]
    assert (moetier["schema_version"], moetier["profile"], len(moetier["host"]["fingerprint"])) == (2, "", 16)

    failed = run("--moetier-compare=0002", "--moetier-compare-fail=device_bytes:20%", "--junitxml=j.xml")
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(  # as many rounds as the gate needs, where none are given
        ["moetier: rounds 5, seed 1*", "moetier: against 0002 (????-??-?? ??:?? UTC, kernel *), gate device_bytes:20%"]
    )
    failed.stdout.re_match_lines(
        [rf"device_bytes of {CELL} is worse: \S+ then, \S+ now B/iteration, [12]\.\d+x, 95% int"]
    )
    failed.stdout.fnmatch_lines([f"gate device_bytes:20%: 1 regressed ({CELL})"])
    (case,) = ET.parse(pytester.path / "j.xml").iter("testcase")  # noqa: S314 - our own file
    (failure,) = case.iter("failure")
    said = failure.get("message") or ""
    assert re.match(rf"device_bytes of {CELL} is worse: .*, effect size 20\.0%, 5 and 5 rounds, p 0\.0079", said)
    properties = {one.get("name"): one.get("value") for one in case.iter("property")}
    assert properties["moetier.compare"] == "worse"

    passed = run("--moetier-compare=3", "--moetier-compare-fail=device_bytes:20%")
    passed.assert_outcomes(passed=1)
    passed.stdout.fnmatch_lines(["this session / 0003", "gate device_bytes:20%: none regressed"])


def test_a_gate_that_cannot_tell_skips_its_cell_and_is_no_pass(run: Run, pytester: pytest.Pytester) -> None:
    assert run("--moetier-rounds=2", "--benchmark-autosave").ret == 0
    result = run("--moetier-rounds=2", "--moetier-compare-fail=device_bytes:20%", "-rs", "--moetier-json=v.json")
    result.assert_outcomes(skipped=1)
    said = f"device_bytes of {CELL} is cannot tell: *2 and 2 rounds; 5 a side are needed*; baseline 0001"
    result.stdout.fnmatch_lines([f"SKIPPED*{said}"])
    result.stdout.fnmatch_lines(
        [
            "note: gate device_bytes:20%: the baseline has 2 values of a cell; 5 are needed: store one with*",
            "gate device_bytes:20%: none regressed, 1 of 1 cannot be told",
            "ERROR: gate device_bytes:20% could decide on no cell; expected one at least; next: -rs shows why*",
        ]
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (found,) = json.loads(pytester.path.joinpath("v.json").read_text())["results"]
    assert found["verdict"] == "supported"  # of the finding: the gate is apart
    written = read_session(pytester.path / "v.json")
    assert (written.cells[CELL].words["mechanism"], len(written.cells[CELL].metrics["device_bytes"].values)) == (
        "cgroup",
        2,
    )
    assert abs(datetime.now(UTC) - written.time) < timedelta(minutes=5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--moetier-compare-fail=device_bytes"],
            "--moetier-compare-fail: 'device_bytes' is no gate; expected METRIC:PCT%",
        ),
        (["--moetier-compare-fail=nonsense:5%"], "nonsense is no metric of a cell that can be worse; expected one of"),
        (["--moetier-compare-fail=logical_bytes:5%"], "logical_bytes is no metric of a cell that can be worse"),
        (["--moetier-compare-fail=device_bytes:0%"], "'0%' is no effect size; expected a percentage above 0%"),
        (["--moetier-compare=0007"], "--moetier-compare: no stored session 0007 in "),
        (["--moetier-compare=kernel:5.10"], "no stored session kernel:5.10 in "),
        (["--moetier-compare=none.json"], "none.json: No such file or directory"),
        (["--moetier-compare", "."], ". is a folder; expected latest, a number such as 0007"),
    ],
)
def test_a_baseline_or_gate_that_cannot_be_used_is_refused_before_anything_is_measured(
    pytester: pytest.Pytester, options: list[str], said: str
) -> None:
    pytester.makepyfile(BENCH)
    with pytest.raises(pytest.UsageError) as refused:
        build_session(pytester.parseconfig(*options))
    assert str(refused.value).startswith("pytest-moetier: --moetier-compare")
    assert said in str(refused.value)


def test_the_ini_twins_are_usable(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml(
        '[tool.pytest]\nmoetier_compare = true\nmoetier_compare_force = true\nmoetier_compare_fail = "device_bytes:5%"'
    )
    with pytest.raises(pytest.UsageError, match="--moetier-compare-fail: no stored session latest with cells"):
        build_session(pytester.parseconfig())
    against = build_session(pytester.parseconfig("-o", "moetier_compare_fail=")).against
    assert against is not None
    assert (against.sessions, against.gate, against.force, against.rounds_given) == ((), None, True, False)


def test_comparing_with_a_file_that_is_cut_off_says_which_and_why(bench: Run, pytester: pytest.Pytester) -> None:
    folder = pytester.path / ".benchmarks" / "machine"
    folder.mkdir(parents=True)
    (folder / "0001_cut.json").write_text('{"benchmarks": [{"extra_')
    result = bench("--moetier-pool=/nonexistent", *CELLS, "--moetier-compare")
    result.stdout.fnmatch_lines(
        ["compare: no stored session with metrics*", "skipped 0001_cut.json: cut off, or no JSON: *"]
    )


def test_the_verdict_of_a_gate_changes_the_report_of_its_test_alone(pytester: pytest.Pytester) -> None:
    """A known refutation that regressed fails, one of which it cannot be told is skipped: neither is as expected."""
    params = {"moetier_cell": Cell("capacity", Capacity.parse("30%"))}
    item: Any = SimpleNamespace(
        callspec=SimpleNamespace(params=params),
        path=pytester.path,
        nodeid="n",
        location=("f", 3, "t"),
        user_properties=[],
    )

    def after(verdict: str, outcome: str, longrepr: Any = None, **more: Any) -> pytest.TestReport:
        compared = SimpleNamespace(of_cell=lambda _: (verdict, "the line"), then=("0001",))
        session: Any = SimpleNamespace(against=object(), compared=compared, gated={})
        report = pytest.TestReport("n", ("f", 3, "t"), {}, outcome, longrepr, "call", **more)  # type: ignore[arg-type]
        if outcome == "skipped" and longrepr is None:
            report.wasxfail = "known"  # type: ignore[attr-defined]
        apply_gate(item, report, session)
        assert session.gated in ({"n": verdict}, {})
        return report

    line = "the line; baseline 0001"
    for outcome in ("passed", "skipped"):
        report = after("worse", outcome)
        assert (report.outcome, report.longrepr, hasattr(report, "wasxfail")) == ("failed", line, False)
    assert after("worse", "failed", "refuted: x").longrepr == f"refuted: x\n{line}"
    assert after("worse", "skipped", ("f", 1, "Skipped: no bound")).longrepr == f"Skipped: no bound\n{line}"
    for outcome in ("passed", "skipped"):
        report = after("cannot tell", outcome)
        assert (report.outcome, report.longrepr) == ("skipped", (str(pytester.path), 4, f"Skipped: {line}"))
        assert not hasattr(report, "wasxfail")
    assert after("cannot tell", "failed", "refuted: x").longrepr == "refuted: x"
    assert after("same", "passed").outcome == "passed"
    assert hasattr(after("better", "skipped"), "wasxfail")
    invalid = after("worse", "failed", "INVALID: x", user_properties=[("moetier.verdict", "invalid")])
    assert invalid.longrepr == "INVALID: x"


def test_the_rounds_are_what_the_gate_needs_over_its_cells_unless_they_are_given() -> None:
    cells = [Cell("capacity", Capacity.parse(f"{share}%")) for share in range(30, 37)]

    def prepared(*, rounds_given: bool, values: int = 5) -> tuple[int, list[str]]:
        metric = Metric("device_bytes", "B", "lower", (1.0,) * values)
        found = {one.id: StoredCell(one.id, {}, {"device_bytes": metric}, {}, None, traced=False) for one in cells}
        baseline = StoredSession(Path("x"), "1", datetime.now(UTC), "", "", "", found)
        settings = Settings(Path("p"), Asked((), 0, None, 0.0, None), rounds=3, seed=1, threads=2, reserve_bytes=0)
        against = Against((baseline,), (), Gate("device_bytes", 0.05), rounds_given=rounds_given)
        session: Any = SimpleNamespace(against=against, campaign=SimpleNamespace(settings=settings), cell_notes=[])
        prepare_gate(
            session, [SimpleNamespace(callspec=SimpleNamespace(params={"moetier_cell": one})) for one in cells]
        )
        return session.campaign.settings.rounds, session.cell_notes

    assert prepared(rounds_given=True) == (3, [])
    assert prepared(rounds_given=False) == (6, [])  # 7 * 2 / C(10, 5) is 5.6%, 7 * 2 / C(11, 5) is 3.0%
    rounds, (note,) = prepared(rounds_given=False, values=3)
    assert rounds == 6
    assert note.startswith("gate device_bytes:5%: the baseline has 3 values of a cell; 6 are needed")
