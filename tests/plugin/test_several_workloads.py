"""One session over the user's pool, streams merged and a pool of its own: what it measures, says, stores and leaves."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace

WAIT_SECONDS, LIMIT_SECONDS = 200, 400
ATTEMPTS = 5
"""Another program of this host may drop the page cache in the middle of a session, whose runs are then not proved."""
SMALLER = """
from pytest_moetier import workloads
from pytest_moetier.pool.profiles import resolve_shape

def shape(_asked):
    return resolve_shape("custom", layers=2, experts=64, k=8, expert_bytes="256KiB")

workloads.TEMPORARY["small_box"] = workloads.Making(shape, spine_bytes=1 << 20)
"""
"""The temporary pool in small; how it is made, opened, read and removed is the real one's."""
STREAMS = """
import pytest

ALIKE = {"capacity": "30%", "mechanism": "cgroup"}

@pytest.mark.moetier(**ALIKE, workload=("single", "batch4"), mode=("page_cache", "pinned_own", "user_lru50"))
def test_streams(moetier_cell):
    moetier_cell.measure()
    moetier_cell.judge()

@pytest.mark.moetier(**ALIKE, mode="page_cache", prefetch=("none", "fadvise_oracle", "fadvise_plan", "blocking_plan"))
def test_advice(moetier_cell):
    moetier_cell.measure()
    moetier_cell.judge()

def test_over(moetier_curve):
    moetier_curve.conclude({"cells": float(len(moetier_curve.results))}, [])
"""
BOX = """
import pytest

BOX = {"finding": "box", "capacity": "40%", "mechanism": "cgroup", "workload": "small_box"}

@pytest.mark.moetier(**BOX, mode=("page_cache", "write_shared", "write_private"))
def test_box(moetier_cell):
    moetier_cell.measure()
    moetier_cell.judge()

@pytest.mark.moetier(**BOX, mode="mmap_pread", spine="locked")
def test_spine(moetier_cell):
    moetier_cell.measure()
    moetier_cell.judge()

@pytest.mark.moetier(finding="again", capacity="30%", mechanism="cgroup", mode="pinned_own")
def test_again(moetier_cell):
    moetier_cell.measure()
    moetier_cell.judge()

def test_over(moetier_curve):
    moetier_curve.conclude({"cells": float(len(moetier_curve.results))}, [])
"""
BOUNDS = """
format: moetier-bounds/1
bounds:
  - {id: time, value: seconds_per_iteration, min: 0, cell: "*mglru*", source: "any time", needs: []}
  - {id: kills, value: oom_kills, min: 1, cell: "*write_private*", source: "the wall's kill", needs: []}
  - {id: cells, value: cells, min: 0, source: "any number", needs: []}
"""
QUICK = ("--moetier-iterations=12", "--moetier-rounds=2", "--moetier-threads=2", "--moetier-seed=1")
C30, C40 = "C30pct-cgroup-mglru_host", "C40pct-cgroup-mglru_host"
CELLS = {
    *(f"{C30}{workload}{mode}" for workload in ("", "-batch4") for mode in ("", "-pinned_own", "-user_lru50")),
    *(f"{C30}-{prefetch}" for prefetch in ("fadvise_oracle", "fadvise_plan", "blocking_plan")),
    *(f"{C40}-small_box{mode}" for mode in ("", "-write_shared", "-write_private", "-mmap_pread-spine_locked")),
}


@dataclass(frozen=True)
class Ended:
    """An ended session: its exit status, what it said, and its folder."""

    ret: int
    text: str
    folder: Path

    @property
    def document(self) -> dict[str, Any]:
        """The verdicts' file."""
        return json.loads((self.folder / "verdicts.json").read_text())

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The verdicts by test."""
        return {f"{one['finding']}/{one['test']}": one for one in self.document["results"]}

    @property
    def by_cell(self) -> dict[str, dict[str, Any]]:
        """The verdicts by cell; of two findings on one measurement, the first."""
        found: dict[str, dict[str, Any]] = {}
        for one in self.document["results"]:
            if one["cell"] is not None:
                found.setdefault(one["cell"], one)
        return found

    def line(self, pattern: str) -> str:
        """Return the one line that matches."""
        found = [one for one in self.text.splitlines() if re.search(pattern, one)]
        assert len(found) == 1, (pattern, found, self.text)
        return found[0]


def left_beside(pool: Path) -> list[Path]:
    return list(pool.parent.glob("moetier-pool-*"))


@pytest.fixture(scope="module")
def start(small_pool: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ended]:
    """Return a call that runs a session in one folder for all: a later one finds what an earlier one stored."""
    folder = tmp_path_factory.mktemp("session")
    (folder / "conftest.py").write_text(SMALLER)
    (folder / "test_capacity.py").write_text(STREAMS)
    (folder / "test_box.py").write_text(BOX)
    (folder / "bounds.yaml").write_text(BOUNDS)
    (folder / "tmp").mkdir()

    def run(*args: str, pool: Path = small_pool, prefix: Sequence[str] = ()) -> Ended:
        command = [
            *prefix,
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-q",
            "-rs",
            f"--moetier-pool={pool}",
        ]
        command += [f"--moetier-wait={WAIT_SECONDS}", "--moetier-json=verdicts.json", *QUICK, *args]
        env = {name: word for name, word in os.environ.items() if not name.startswith(("PYTEST_", "COLUMNS"))}
        for _ in range(ATTEMPTS):
            done = subprocess.run(
                command,
                cwd=folder,
                env={**env, "TMPDIR": str(folder / "tmp"), "COLUMNS": "300"},
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT_SECONDS,
            )
            if "no_cache_drop: " not in done.stdout:
                return Ended(done.returncode, done.stdout + done.stderr, folder)
        pytest.skip(f"another program dropped the host's page cache in each of {ATTEMPTS} sessions")

    return run


@pytest.fixture(scope="module")
def session(start: Callable[..., Ended]) -> Ended:
    """The first session, stored."""
    return start("--benchmark-autosave")


@pytest.fixture(scope="module")
def stored(session: Ended) -> dict[str, dict[str, Any]]:
    """What pytest-benchmark has stored of it, by test."""
    path = max(session.folder.glob(".benchmarks/*/*.json"))
    data = json.loads(path.read_text(), parse_constant=pytest.fail)
    return {one["name"]: one["extra_info"]["moetier"] for one in data["benchmarks"]}


def test_every_cell_of_every_workload_is_measured_and_proved(session: Ended) -> None:
    assert session.ret == 0, session.text
    assert set(session.by_cell) == CELLS
    assert {one["verdict"] for one in session.results.values()} == {"supported"}
    states = {line["state"] for one in session.results.values() for proof in one["proof"] for line in proof}
    assert "broken" not in states
    assert all(len(one["proof"]) == 2 for one in session.results.values() if one["cell"] is not None)


def test_each_workload_has_a_context_of_its_own(session: Ended, small_pool: Path) -> None:
    contexts = session.document["contexts"]
    assert set(contexts) == {"single", "batch4", "small_box"}
    assert session.document["context"] == contexts["single"]
    assert [contexts[one]["pool"] for one in ("single", "batch4")] == [str(small_pool)] * 2
    assert contexts["small_box"]["pool"] == "temporary, custom"
    assert contexts["small_box"]["pool_bytes"] == 2 * 64 * (256 << 10)
    assert contexts["small_box"]["pool_id"] != contexts["single"]["pool_id"] == contexts["batch4"]["pool_id"]
    assert len({one["plan_crc"] for one in contexts.values()}) == 3
    assert [contexts[one]["iterations"] for one in ("single", "batch4", "small_box")] == [12, 12, 32]
    assert {word: one["workload"] for word, one in contexts.items()} == {word: word for word in contexts}


def test_the_rounds_visit_the_cells_of_all_workloads_in_one_random_order(stored: dict[str, dict[str, Any]]) -> None:
    by_cell = {one["cell"]["id"]: [each["order"] for each in one["rounds"]] for one in stored.values()}
    assert set(by_cell) == CELLS
    first, second = (sorted(orders[at] for orders in by_cell.values()) for at in (0, 1))
    assert first + second == list(range(2 * len(CELLS)))
    boxes = [orders[0] for cell, orders in by_cell.items() if "small_box" in cell]
    assert max(boxes) - min(boxes) > len(boxes)  # not one after the other


def test_two_findings_on_one_measurement_have_each_a_record_and_one_set_of_figures(session: Ended) -> None:
    again = session.results[f"again/test_again[{C30}-pinned_own]"]
    first = session.results[f"capacity/test_streams[{C30}-pinned_own]"]
    assert again["cell"] == first["cell"]
    assert again["metrics"]["seconds_per_iteration"] == first["metrics"]["seconds_per_iteration"]
    assert again["lists"] == first["lists"]
    base = session.results[f"capacity/test_advice[{C30}]"]
    assert base["metrics"]["seconds_per_iteration"] == session.by_cell[C30]["metrics"]["seconds_per_iteration"]


def test_a_curve_has_the_cells_of_its_own_file_alone(session: Ended) -> None:
    assert session.results["capacity/test_over"]["bounds"][0]["value"] == 9
    assert session.results["box/test_over"]["bounds"][0]["value"] == 5


def test_the_figures_of_a_mode_are_its_own(session: Ended) -> None:
    metrics = {cell: set(one["metrics"]) for cell, one in session.by_cell.items()}
    assert "held_bytes" not in metrics[C30]
    assert {"held_bytes", "preload_bytes", "demand_served"} <= metrics[f"{C30}-pinned_own"]
    assert "held_bytes" in metrics[f"{C30}-batch4-user_lru50"]
    assert "written_bytes" in metrics[f"{C40}-small_box-write_shared"]
    assert "written_bytes" not in metrics[f"{C40}-small_box"]
    killed = metrics[f"{C40}-small_box-write_private"]
    assert killed == {"seconds_per_iteration", "oom_kills", "iterations_before_oom"}
    for word in ("fadvise_oracle", "fadvise_plan", "blocking_plan"):
        assert {"advice_recall", "prefetch_submitted", "prefetch_completed"} <= metrics[f"{C30}-{word}"]
    assert "prefetch_submitted" not in metrics[C30]


def test_an_expected_kill_is_supported_by_its_own_proof(session: Ended) -> None:
    found = session.by_cell[f"{C40}-small_box-write_private"]
    assert [(one["id"], one["verdict"]) for one in found["bounds"]] == [("time", "supported"), ("kills", "supported")]
    for proof in found["proof"]:
        assert {one["name"]: one["state"] for one in proof}["oom_killed"] == "held"


def test_what_a_cell_was_given_is_in_both_files_and_an_oracle_is_labelled(
    session: Ended, stored: dict[str, dict[str, Any]]
) -> None:
    oracle = {"words": "oracle table: the replayed trace's own counts", "oracle": True, "recall": None}
    found = {cell: one["lists"] for cell, one in session.by_cell.items()}
    assert found[f"{C30}-pinned_own"] == found[f"{C30}-batch4-pinned_own"] == [oracle]
    assert found[f"{C30}-fadvise_oracle"] == [{"words": "oracle", "oracle": True, "recall": 1.0}]
    (plan,) = found[f"{C30}-fadvise_plan"]
    assert plan["oracle"] is False
    assert plan["words"] == f"noisy oracle, recall {plan['recall']:.3f}"
    assert found[f"{C30}-blocking_plan"] == [plan]
    assert {cell for cell, lists in found.items() if lists} == {
        f"{C30}-pinned_own",
        f"{C30}-batch4-pinned_own",
        *(f"{C30}-{word}" for word in ("fadvise_oracle", "fadvise_plan", "blocking_plan")),
    }
    assert {one["cell"]["id"]: one["lists"] for one in stored.values()} == found


def test_the_table_shows_what_tells_modes_apart_and_the_notes_what_they_were_given(session: Ended) -> None:
    table = session.text[session.text.index("\ncapacity (synthetic trace, synthetic pool)") :].splitlines()
    head, row = table[2], next(one for one in table if one.startswith(f"  {C30}-pinned_own  ")).split()
    assert re.split(r"\s{2,}", head.strip()) == [
        *("cell", "s/iter", "range, ms", "spread", "device/iter", "spread", "served", "own"),
        *("amp", "holds", "majflt", "cpu/iter", "recall", "verdict"),
    ]
    assert row[0] == f"{C30}-pinned_own"
    box = session.text[session.text.index("\nbox (synthetic trace, synthetic pool)") :].splitlines()[2]
    assert re.split(r"\s{2,}", box.strip())[-4:-1] == ["cpu/iter", "written", "kills"]
    assert session.line(rf"^  {C40}-small_box-write_private .*supported").split()[-2] == "1"
    assert session.text.count(f"given {C30}-pinned_own: oracle table: the replayed trace's own counts") == 1
    assert session.line(rf"^given {C30}-fadvise_oracle: ") == f"given {C30}-fadvise_oracle: oracle"
    assert session.line(rf"^given {C30}-blocking_plan: noisy oracle, recall 0\.\d+$")
    said = session.line(rf"^prefetch {C30}-fadvise_plan: ")
    assert re.search(r"\d+ lists submitted, \d+ completed, \d+ overwritten; of .* asked .* became resident$", said)
    assert session.line(rf"^prefetch {C30}-blocking_plan: .* were resident before, ")
    assert session.line(r"^note: workload batch4: merged: ")
    assert session.line(r"^note: workload small_box: synthetic")


def test_pools_and_lists_that_were_made_for_it_are_gone_after_it(session: Ended, small_pool: Path) -> None:
    assert left_beside(small_pool) == []
    assert list((session.folder / "tmp").glob("moetier-*")) == []
    assert (small_pool / "manifest.yaml").is_file()


def test_a_table_says_of_its_own_workloads_alone_that_they_are_synthetic(
    start: Callable[..., Ended], tmp_path: Path
) -> None:
    made = synth_trace("kimi-k3", layers=2, experts=128, k=8, iterations=12, seed=1)
    write_trace(replace(made, synthetic=False, source="recorded elsewhere"), tmp_path / "mine.jsonl")
    found = start(
        f"--moetier-trace=prose={tmp_path / 'mine.jsonl'}",
        "-k",
        "(test_streams and not batch4 and not user) or test_box[",
    )
    contexts = found.document["contexts"]
    assert (contexts["single"]["synthetic_trace"], contexts["small_box"]["synthetic_trace"]) == (False, True)
    lines = found.text.splitlines()
    assert "box (synthetic trace, synthetic pool)" in lines
    assert "capacity (synthetic pool)" in lines


def test_another_plan_is_refused_by_workload_and_the_others_are_compared(
    session: Ended, start: Callable[..., Ended]
) -> None:
    assert session.ret == 0
    found = start("--moetier-compare", "--moetier-iterations=10")
    for cell in CELLS:
        if "small_box" in cell:  # its plan is the same whatever the user's iterations
            assert re.search(rf"^  {cell} .* \d+\.\d+x ", found.text, re.MULTILINE), (cell, found.text)
        else:
            (said,) = (line for line in found.text.splitlines() if re.search(rf"^not compared: .*{cell}[,:]", line))
            assert re.search(r": another plan \(\w+ then, \w+ now\), iterations \(\d+ then, 10 now\)", said)


def test_another_predictor_is_not_compared_and_what_was_given_alike_is(
    session: Ended, start: Callable[..., Ended]
) -> None:
    assert session.ret == 0
    found = start("--moetier-compare", "--moetier-advice=markov", "-k", "test_advice or test_again")
    for word in ("fadvise_plan", "blocking_plan"):
        assert re.search(rf"^not compared: .*{C30}-{word}.*: another lists \(.* then, markov", found.text, re.MULTILINE)
        assert found.line(rf"^given {C30}-{word}: ").startswith(f"given {C30}-{word}: markov, recall ")
    for cell in (C30, f"{C30}-fadvise_oracle", f"{C30}-pinned_own"):
        assert re.search(rf"^  {cell} .* \d+\.\d+x ", found.text, re.MULTILINE), found.text


def test_a_session_of_temporary_pools_alone_needs_no_pool_of_the_users(
    start: Callable[..., Ended], tmp_path: Path
) -> None:
    missing = tmp_path / "none" / "here" / "pool"
    found = start("-k", "test_box[ or test_spine", "--moetier-rounds=1", pool=missing)
    assert found.ret == 0, found.text
    assert set(found.document["contexts"]) == {"small_box"}
    assert found.document["context"] == found.document["contexts"]["small_box"]
    assert list(tmp_path.iterdir()) == []


def test_a_pool_that_cannot_be_made_costs_its_own_cells_alone(start: Callable[..., Ended], small_pool: Path) -> None:
    """The folder that it would be made in is read-only, in a mount namespace of the session's own."""
    sealed = small_pool.parent
    script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    prefix = ("unshare", "--mount", "sh", "-c", script, str(sealed))
    if subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this host lets no mount be made in a namespace of its own")
    found = start("-k", "test_box[ or test_again or test_streams", prefix=prefix)
    assert found.ret == 0, found.text
    said = (
        rf"{re.escape(str(sealed))}/moetier-pool-\S+ cannot be made: Read-only file system; expected .*; next: ls -ld "
    )
    for cell, one in found.by_cell.items():
        assert one["verdict"] == ("not_examined" if "small_box" in cell else "supported"), cell
        assert bool(re.match(said, one["reason"])) == ("small_box" in cell)
    assert set(found.document["contexts"]) == {"single", "batch4"}
    reasons = {one["reason"] for cell, one in found.by_cell.items() if "small_box" in cell}
    assert len(reasons) == 1  # it was tried once
    assert "Traceback" not in found.text


def test_a_compute_phase_reads_nothing_and_is_held_against_no_session_without_it(
    session: Ended, start: Callable[..., Ended]
) -> None:
    found = start("-k", "test_streams and not batch4 and not pinned and not user", "--moetier-compute=0.02")
    assert found.document["contexts"]["single"]["compute_seconds"] == 0.02
    metrics = found.by_cell[C30]["metrics"]
    assert metrics["logical_bytes"] == session.by_cell[C30]["metrics"]["logical_bytes"]
    other = start("-k", "test_streams and not batch4 and not pinned", "--moetier-compute=0.02", "--moetier-compare")
    assert re.match(rf"not compared: {C30}[,:].*: another compute phase \(0.0 then, 0.02 now\)$", other.line("^not c"))
