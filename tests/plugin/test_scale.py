"""What is said of cells in virtual machines: verdicts at their scale, none on time under emulation or by a profile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from pytest_moetier import finding
from pytest_moetier.campaign import CellResult, Context
from pytest_moetier.cell import Cell
from pytest_moetier.figures import Figures
from pytest_moetier.finding import (
    EMULATED,
    Bound,
    HostMatch,
    Known,
    Metric,
    Profile,
    Scale,
    judge,
    load_bounds,
    metrics_of,
    scale_of,
)
from pytest_moetier.history.compare import compare_sessions
from pytest_moetier.history.sessions import StoredSession, cell_of
from pytest_moetier.history.store import extra_info, validate
from pytest_moetier.host.machine import GuestFacts
from pytest_moetier.host.probe import host_facts
from pytest_moetier.proof import Proof, ProvedRun
from pytest_moetier.replay import Run
from pytest_moetier.report import terminal_summary, write_files
from pytest_moetier.units import Capacity
from pytest_moetier.verdicts import KNOWN, About, Judge, MoetierSession, Record

EXPERT, ITERATIONS, READS = 512 << 10, 220, 145
"""Bytes of an expert, iterations of the pass, experts that one reads."""
CAPACITY = 315 * EXPERT
TCG = GuestFacts("6.12", "6.12.118-amd64", "tcg", "KVM aborted", 1075 << 20, 2, "psi=1", 6.5, (("thp", "never"),))
KVM = replace(TCG, accelerator="kvm", why="")
HERE = Cell("reclaim", Capacity.parse("4.4%"), workload="reclaim")
THERE = replace(HERE, kernel="6.12")
OTHER = replace(HERE, kernel="7.3", mechanism="balloon", locked=81)
WORDS = "RAM 1.13 GB, C 315 experts, 2.2 iterations, 8 threads, emulated"


def proved(guest: GuestFacts | None, capacity: int = CAPACITY, threads: int = 8, **figures: float) -> ProvedRun:
    """Return a proved run on a machine."""
    measured = SimpleNamespace(
        accesses=ITERATIONS * READS, bytes=ITERATIONS * READS * EXPERT, iterations=(None,) * ITERATIONS
    )
    known = {
        "capacity_bytes": capacity,
        "measured": measured,
        "guest": guest,
        "round": 0,
        "order": 0,
        "output": SimpleNamespace(start=SimpleNamespace(threads=threads)),
    }
    run = Run(**{one.name: known.get(one.name) for one in fields(Run)})  # type: ignore[arg-type]
    return ProvedRun(run, Figures(**{"seconds_per_iteration": 0.5, "device_bytes": 4e7, **figures}), Proof(()))


def bound(value: str, **changes: Any) -> Bound:
    made = Bound(value, value, "*", None, 1.0, "a test", (), timed=value in finding.TIMED)
    return replace(made, **changes)


def test_the_scale_of_a_guest_is_told_in_words_and_numbers() -> None:
    found = scale_of([proved(TCG), proved(TCG)])
    assert found is not None
    assert found.words == WORDS
    assert found.as_json() == {
        "words": WORDS,
        "memory_bytes": [1075 << 20, 1075 << 20],
        "experts": [315.0, 315.0],
        "iterations": [315 / READS, 315 / READS],
        "threads": [8, 8],
        "machine": "emulated",
    }


def test_the_scale_of_several_runs_spans_them() -> None:
    runs = [proved(TCG), proved(KVM, capacity=2 * CAPACITY), proved(None, threads=4)]
    found = scale_of(runs, host_memory_bytes=8 << 30)
    assert found == Scale(
        (1075 << 20, 8 << 30), (315, 630), (315 / READS, 630 / READS), (4, 8), "emulated and host and kvm"
    )
    assert "RAM 1.13 GB to 8.59 GB, C 315 to 630 experts, 2.2 to 4.3 iterations, 4 to 8 threads, " in found.words


def test_a_hosts_own_runs_have_no_scale() -> None:
    assert scale_of([proved(None)], host_memory_bytes=1 << 30) is None
    assert scale_of([]) is None
    assert scale_of([ProvedRun(None, Figures(1.0), Proof(()))]) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "timed"),
    [
        ("seconds_per_iteration", True),
        ("seconds_per_iteration_spread", True),
        ("seconds_per_accepted_token", True),
        ("cpu_seconds_per_iteration", True),
        ("iteration_variation", True),
        ("psi_some_share", True),
        ("device_bytes_per_second", True),
        ("device_bytes", False),
        ("device_bytes_spread", False),
        ("amplification", False),
        ("major_faults", False),
        ("pinned_edge", False),
    ],
)
def test_a_bound_on_what_a_clock_gave_is_known_by_its_value(name: str, timed: bool) -> None:  # noqa: FBT001
    text = "format: moetier-bounds/1\nbounds: [{id: a, value: %s, max: 1, source: s%s}]"
    assert load_bounds(text % (name, ""), "here")[0].timed is timed
    for said in (True, False):
        assert load_bounds(text % (name, f", timed: {said}".lower()), "here")[0].timed is said


@pytest.mark.parametrize("value", [0.5, 2.0, finding.Span(0.1, 0.5, 0.9)])
def test_time_under_emulation_is_never_judged(value: float | finding.Span) -> None:
    runs = [proved(None), proved(TCG)]
    found = judge(bound("seconds_per_iteration"), value, runs)
    assert (found.verdict, found.reason) == ("not_examined", f": {EMULATED}")
    assert found.value == (0.5 if isinstance(value, finding.Span) else value)
    assert judge(bound("device_bytes"), value, runs).verdict == ("refuted" if value == 2.0 else "supported")
    for guest in (KVM, None):
        judged = judge(bound("seconds_per_iteration"), value, [proved(guest)]).verdict
        assert judged == ("refuted" if value == 2.0 else "supported")


PROFILE = Profile("mine", (bound("amplification"),), (Known("test_*", "nominal_bytes", "as ever"),), HostMatch({}))
BOUNDS = """
format: moetier-bounds/1
bounds:
  - {id: device_bytes, value: device_bytes, max: 5.0e+7, source: a test}
  - {id: nominal_bytes, value: nominal_bytes, max: 1, source: a test}
  - {id: seconds, value: seconds_per_iteration, max: 9, source: a test}
"""


@dataclass
class Session:
    """A session over cells that are known beforehand."""

    folder: Path
    results: Mapping[str, CellResult]
    session: MoetierSession = field(init=False)
    stash: pytest.Stash = field(default_factory=pytest.Stash)

    def __post_init__(self) -> None:
        """Make the session."""
        context = Context("/p", "1", 1 << 30, "t", True, True, "c", ITERATIONS, 8, 1, 1.0, "reclaim")  # noqa: FBT003
        campaign = SimpleNamespace(
            results=self.results,
            context=context,
            contexts={("reclaim", "host"): context, ("reclaim", "6.12"): replace(context, kernel="6.12")},
            context_of=lambda cell: replace(context, kernel=cell.kernel),
            notes=[],
        )
        options = {"compare": False, "json": str(self.folder / "v.json"), "learn": str(self.folder / "p.yaml")}
        config = SimpleNamespace(
            option=SimpleNamespace(**{f"moetier_{name}": value for name, value in options.items()})
        )
        self.session = MoetierSession(config, campaign, None, PROFILE, None)  # type: ignore[arg-type]

    def settle(self, cell: Cell | None, *runs: ProvedRun, **values: float) -> tuple[Record, str]:
        """Judge values that rest on runs; return the record, and what pytest shows."""
        name = f"test_one[{cell.id}]" if cell else "test_over_several"
        path = self.folder / "test_reclaim.py"
        self.stash = pytest.Stash()
        node = SimpleNamespace(path=path, nodeid=f"{path.name}::{name}", name=name, stash=self.stash)
        handle = Judge(SimpleNamespace(node=node), self.session)  # type: ignore[arg-type]
        if cell:
            self.session.note(node, cell, metrics_of(runs), [one.proof for one in runs])  # type: ignore[arg-type]
        said = ""
        try:
            handle.settle(values, About(cell, cell, runs))
        except (pytest.fail.Exception, pytest.skip.Exception) as ended:
            said = str(ended)
        return self.session.records[node.nodeid], said


@pytest.fixture
def measured(tmp_path: Path) -> Session:
    """Three proved cells: on the host, in two rounds of an emulated guest, and in one with KVM."""
    tmp_path.joinpath("bounds.yaml").write_text(BOUNDS)
    results = {HERE: [None], THERE: [TCG, replace(TCG, boot_seconds=7.5)], OTHER: [KVM]}
    return Session(
        tmp_path, {cell.id: CellResult(cell, runs=[proved(one) for one in guests]) for cell, guests in results.items()}
    )


def test_a_claim_is_supported_or_refuted_at_the_scale_of_its_guest(measured: Session) -> None:
    supported, _ = measured.settle(THERE, proved(TCG), device_bytes=4e7)
    assert (supported.verdict, supported.shown) == ("supported", "supported at this scale")
    refuted, said = measured.settle(THERE, proved(TCG), device_bytes=6e7)
    assert refuted.shown == "refuted at this scale"
    assert said.splitlines()[-1] == f"refuted at this scale: {WORDS}"
    over, _ = measured.settle(None, proved(TCG), proved(None), device_bytes=4e7)
    assert over.shown == "supported at this scale"
    assert over.scale is not None
    assert over.scale.memory_bytes[1] == host_facts().mem_total_bytes
    here, said = measured.settle(HERE, proved(None), device_bytes=6e7)
    assert (here.shown, here.scale) == ("refuted", None)
    assert "scale" not in said
    timed, _ = measured.settle(THERE, proved(TCG), seconds_per_iteration=0.5)
    assert (timed.shown, timed.why) == ("not_examined", EMULATED)


def test_a_hosts_profile_is_not_held_against_a_guest(measured: Session) -> None:
    here, _ = measured.settle(HERE, proved(None), amplification=2.0)
    assert (here.verdict, [one.bound.id for one in here.judgements]) == ("refuted", ["amplification"])
    there, said = measured.settle(THERE, proved(KVM), amplification=2.0)
    assert (there.verdict, there.judgements) == ("not_examined", [])
    assert said.startswith("no bound holds here")


def test_a_refutation_that_a_profile_knows_is_not_known_of_a_guest(measured: Session) -> None:
    measured.settle(HERE, proved(None), nominal_bytes=2.0)
    assert measured.stash[KNOWN] == "as ever"
    there, _ = measured.settle(THERE, proved(TCG), nominal_bytes=2.0)
    assert (there.verdict, KNOWN in measured.stash) == ("refuted", False)


class Terminal:
    """What a session prints."""

    hasmarkup = False

    def __init__(self) -> None:
        """Nothing is printed yet."""
        self.lines: list[str] = []

    def ensure_newline(self) -> None:
        pass

    def section(self, title: str, sep: str) -> None:
        pass

    def write_line(self, line: str) -> None:
        self.lines += line.splitlines()


def shown(session: Session) -> list[str]:
    terminal = Terminal()
    terminal_summary(terminal, session.session)
    return terminal.lines


def test_the_table_has_a_column_of_kernels_where_there_are_several(measured: Session) -> None:
    measured.settle(THERE, proved(TCG), device_bytes=6e7)
    assert "kernel" not in shown(measured)[1]
    measured.settle(OTHER, proved(KVM), device_bytes=4e7)
    lines = shown(measured)
    assert lines[1].split()[:2] == ["cell", "kernel"]
    (row,) = (one for one in lines if one.strip().startswith("cgroup-mglru_host-k6.12"))
    assert row.split()[1] == "6.12.118-amd64"
    assert row.endswith("refuted at this scale")


def test_the_scale_is_said_once_and_hardware_is_not_examined(measured: Session) -> None:
    measured.settle(THERE, proved(TCG), device_bytes=6e7)
    measured.settle(None, proved(TCG), device_bytes=4e7)
    measured.settle(HERE, proved(None), device_bytes=4e7)
    lines = shown(measured)
    assert f"scale {THERE.id}, test_over_several: {WORDS}" in lines
    assert "hardware: not_examined by 2 tests in virtual machines; next: bench/ on a host" in lines
    assert lines[-1] == "verdicts: 1 supported at this scale, 1 supported, 1 refuted at this scale"
    assert any(one.startswith(f"refuted at this scale {THERE.id}: device_bytes is 6e+07") for one in lines)


def test_a_session_on_the_host_says_nothing_of_scales(measured: Session) -> None:
    measured.settle(HERE, proved(None), device_bytes=4e7)
    assert not [one for one in shown(measured) if "scale" in one or "hardware" in one]


def test_the_verdicts_file_has_the_scale_the_machine_and_no_verdict_on_hardware(measured: Session) -> None:
    measured.settle(HERE, proved(None), device_bytes=4e7)
    measured.settle(THERE, proved(TCG), device_bytes=6e7)
    measured.settle(None, proved(TCG), device_bytes=4e7)
    assert write_files(measured.session) == []
    document = json.loads(measured.folder.joinpath("v.json").read_text())
    here, there, over = document["results"]
    assert here["verdict"] == "supported"
    assert not {"scale", "hardware", "guest"} & set(here)
    assert (there["verdict"], there["hardware"]) == ("refuted at this scale", "not_examined")
    assert there["scale"]["words"] == over["scale"]["words"] == WORDS
    assert there["guest"] == {
        "kernel": "6.12",
        "release": "6.12.118-amd64",
        "accelerator": "tcg",
        "emulated": True,
        "why": "KVM aborted",
        "memory_bytes": 1075 << 20,
        "cpus": 2,
        "command_line": "psi=1",
        "boot_seconds": [6.5, 7.5],
        "settings": {"thp": "never"},
    }
    assert set(document["contexts"]) == {"reclaim", "reclaim-k6.12"}


def test_nothing_of_a_guest_is_learned(measured: Session) -> None:
    measured.settle(THERE, proved(TCG), device_bytes=6e7)
    measured.settle(HERE, proved(None), device_bytes=6e7)
    assert write_files(measured.session) == []
    learned = yaml.safe_load(measured.folder.joinpath("p.yaml").read_text())
    assert {one["cell"] for one in learned["bounds"]} == {HERE.id}
    assert [one["test"] for one in learned["known"]] == [f"test_one[{HERE.id}]"]


def test_a_session_of_guests_alone_has_nothing_to_learn(tmp_path: Path) -> None:
    session = Session(tmp_path, {THERE.id: CellResult(THERE, runs=[proved(TCG)])})
    (problem,) = write_files(session.session)
    assert "no proved run of this host to learn from" in problem
    assert not tmp_path.joinpath("p.yaml").exists()


NOW = {"device_bytes": Metric("device_bytes", "B/iteration", "lower", (2.0,))}


def stored(session: Session, cell: Cell, name: str) -> StoredSession:
    """Return a session as it is read back from the history."""
    context = session.session.campaign.context_of(cell)
    info = json.loads(json.dumps(extra_info(cell, NOW, session.results[cell.id], context)))
    found = cell_of(info, [])
    return StoredSession(Path(name), "", datetime.now(UTC), "h", "r", "", {found.id: found})


def test_what_is_stored_of_a_cell_has_the_machine(measured: Session) -> None:
    context = measured.session.campaign.context_of(THERE)
    found = extra_info(OTHER, NOW, measured.results[OTHER.id], context)
    validate(found)
    picked = {name: found["cell"][name] for name in ("locked", "read_ahead_kb", "filesystem", "kernel")}
    assert picked == {"locked": 81, "read_ahead_kb": 0, "filesystem": "ext4", "kernel": "7.3"}
    assert found["cell"]["guest"]["accelerator"] == "kvm"
    assert extra_info(HERE, NOW, measured.results[HERE.id], context)["cell"]["guest"] is None


@pytest.mark.parametrize(
    ("then", "now", "compared"),
    [
        (TCG, TCG, True),
        (TCG, replace(TCG, release="6.12.119-amd64", boot_seconds=9.0), True),
        (TCG, KVM, False),
        (KVM, replace(KVM, memory_bytes=1 << 30), True),  # what holds C on a kernel
        (KVM, replace(KVM, cpus=4), False),
    ],
)
def test_runs_of_different_machines_are_not_compared(
    measured: Session,
    then: GuestFacts,
    now: GuestFacts,
    compared: bool,  # noqa: FBT001
) -> None:
    measured.results[THERE.id].runs[:] = [proved(then)]
    old = stored(measured, THERE, "then")
    measured.results[THERE.id].runs[:] = [proved(now)]
    found = compare_sessions([old], [stored(measured, THERE, "now")])
    assert bool(found.found) is compared
    assert (THERE.id in found.refused) is not compared
