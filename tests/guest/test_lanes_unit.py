"""How a session looks for the setting of each cell: which boots there are, what each is given, what is remembered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_runs import FACTS, POOL_BYTES, plan, rig, run_of

from pytest_moetier import guest
from pytest_moetier.cell import Cell, GuestAsked
from pytest_moetier.errors import HarnessError, InputError, UnsupportedHostError
from pytest_moetier.guest import Probe, Setting, is_matched, residency_of
from pytest_moetier.host.enforce import Ending, Enforced
from pytest_moetier.lanes import FULL_TRIES, SHORT_AIM, SHORT_ITERATIONS, SHORT_WARM_ITERATIONS, GuestLanes
from pytest_moetier.plan import read_plan
from pytest_moetier.replay import OomRun, Rig, Run
from pytest_moetier.units import Capacity

MIB = 1 << 20
CAPACITY = POOL_BYTES // 2
PLAN = plan()
KEPT, USED = 30 * MIB, 50 * MIB
"""What the kernel of a played guest keeps out of MemTotal, and what it and the replayer use of it."""
OFF = POOL_BYTES // 8
"""Enough to be no match."""
MORE = round(CAPACITY * (SHORT_AIM - 1))
"""What a short pass holds beyond a whole one."""
WHOLE = {"warm_iterations": 30, "samples": ("/g",), "experts_exit": ("measured",), "folios_exit": ("measured",)}
"""Of the options of a whole pass, those that a calibration does without."""


def quiet(phase: str, done: int) -> None:
    del phase, done


def cell(mechanism: str = "cgroup", **words: Any) -> Cell:
    known = {"workload": "reclaim", "kernel": "6.12", **words}
    return Cell("reclaim", Capacity.parse("50%"), mechanism, **known)


@dataclass(frozen=True)
class Boot:
    """What a machine was started for."""

    cell: Cell
    setting: Setting
    rig: Rig
    round_index: int = 0
    order: int = 0

    @property
    def short(self) -> bool:
        return self.rig.plan.n_iterations == SHORT_ITERATIONS


@dataclass
class Guests:
    """Guests that are played: a whole pass holds what the mechanism leaves, less what it hides; a short one holds more.

    Attributes:
        hides: called with whether the pass is a short one and how many there were; what it hides, in bytes.
        refused: why a kernel cannot be booted.
        endings: ends a pass of a cell otherwise than with a run.
    """

    hides: Callable[[bool, int], int] = lambda _short, _at: 0
    refused: dict[str, Exception] = field(default_factory=dict)
    ending: Callable[[Boot], Any] = lambda _boot: None
    opened: list[tuple[str, str]] = field(default_factory=list)
    probes: list[tuple[Cell, Setting | None]] = field(default_factory=list)
    boots: list[Boot] = field(default_factory=list)

    @property
    def short(self) -> list[Boot]:
        return [one for one in self.boots if one.short]

    @property
    def whole(self) -> list[Boot]:
        return [one for one in self.boots if not one.short]

    def open_lane(self, label: str, word: str, asked: GuestAsked, folder: Path, journal: Any) -> Any:
        del folder, journal
        self.opened.append((label, word))
        if label in self.refused:
            raise self.refused[label]
        return SimpleNamespace(label=label, asked=asked, kernel=SimpleNamespace(release=f"{word}.9"))

    def probe(self, lane: Any, rig_: Rig, one: Cell, setting: Setting | None = None) -> Probe:
        del lane, rig_
        self.probes.append((one, setting))
        return Probe(1.01, KEPT, USED, FACTS)

    def run(  # noqa: PLR0913
        self,
        lane: Any,
        rig_: Rig,
        one: Cell,
        setting: Setting,
        *,
        round_index: int = 0,
        order: int = 0,
        progress: Any = None,
    ) -> Any:
        del progress
        assert lane.label == one.kernel
        boot = Boot(one, setting, rig_, round_index, order)
        self.boots.append(boot)
        if (ended := self.ending(boot)) is not None:
            return ended
        memory = setting.mem_bytes or setting.memory_bytes
        total = memory - memory // 64 - KEPT
        locked = total - USED - setting.control_bytes if one.mechanism == "balloon" else None
        available = total - USED - (locked or 0)
        left = setting.control_bytes if one.mechanism == "cgroup" else available
        count = len(self.short) if boot.short else len(self.whole)
        resident = left - self.hides(boot.short, count) + (MORE if boot.short else 0)
        device = [0] * rig_.plan.n_iterations
        return run_of(one, rig_.plan, CAPACITY, device, [resident], total=total, available=available, locked=locked)


@dataclass
class Session:
    """The lanes of a session over one workload."""

    guests: Guests
    lanes: GuestLanes
    folder: Path
    rigs: dict[str, Rig] = field(default_factory=dict)

    def measure(self, one: Cell, round_index: int = 0) -> Any:
        if one.filesystem not in self.rigs:
            self.rigs[one.filesystem] = rig(self.folder, PLAN, one.filesystem, **WHOLE)
        return self.lanes.run(
            self.rigs[one.filesystem], one, round_index=round_index, order=7 + round_index, progress=quiet
        )

    def cold_factor(self, one: Cell) -> float | None:
        return self.lanes.cold_factor(rig(self.folder, PLAN, one.filesystem), one, quiet)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose guests are played."""
    guests = Guests()
    monkeypatch.setattr(guest, "open_lane", guests.open_lane)
    monkeypatch.setattr(guest, "probe", guests.probe)
    monkeypatch.setattr(guest, "run_in_guest", guests.run)
    lanes = GuestLanes({"6.12": "6.12", "mine": "/no/bzImage"}, GuestAsked(), tmp_path, None)  # type: ignore[arg-type]
    return Session(guests, lanes, tmp_path)


def test_a_setting_that_matches_at_once_is_tried_once_and_then_measured_with(session: Session) -> None:
    run = session.measure(cell())
    assert is_matched(run)
    short, whole = session.guests.boots
    assert (short.short, whole.short) == (True, False)
    assert short.setting == whole.setting
    assert whole.setting.control_bytes == CAPACITY
    assert (whole.round_index, whole.order) == (0, 7)


@pytest.mark.parametrize(
    "one", [cell(), cell("balloon"), cell("balloon", locked=81), cell("memboot")], ids=lambda one: one.id
)
def test_the_residency_that_a_mechanism_hides_is_given_to_it(session: Session, one: Cell) -> None:
    session.guests.hides = lambda _short, _at: OFF
    run = session.measure(one)
    first, *others, whole = session.guests.boots
    assert [boot.short for boot in session.guests.boots] == [*[True] * (1 + len(others)), False]
    assert 1 <= len(others) < guest.CALIBRATIONS
    assert residency_of(run) == pytest.approx(CAPACITY, rel=guest.MATCHED_WITHIN)
    assert whole.setting == others[-1].setting != first.setting


@pytest.mark.parametrize(("hidden", "boots"), [(-0.019, 1), (-0.021, 2), (0.019, 1), (0.021, 2)])
def test_a_short_pass_is_to_hold_as_much_more_as_it_will_hold(session: Session, hidden: float, boots: int) -> None:
    """Within 2% of C, so that the whole pass is."""
    session.guests.hides = lambda _short, _at: round(hidden * CAPACITY)
    run = session.measure(cell())
    assert (len(session.guests.short), len(session.guests.whole)) == (boots, 1)
    assert is_matched(run)


def test_calibrations_end_though_none_was_matched(session: Session) -> None:
    session.guests.hides = lambda short, at: OFF * (-1) ** at if short else 0
    session.measure(cell())
    settings = [one.setting.control_bytes for one in session.guests.short]
    assert len(settings) == guest.CALIBRATIONS == 4
    assert len(set(settings)) > 1
    # What the last of them showed is acted on too; no boot has tried it.
    shown = settings[-1] - OFF * (-1) ** len(settings) + MORE
    assert session.guests.whole[0].setting.control_bytes == settings[-1] + CAPACITY + MORE - shown


def test_a_cell_keeps_its_setting_from_round_to_round_and_from_finding_to_finding(session: Session) -> None:
    session.guests.hides = lambda _short, _at: OFF
    session.measure(cell())
    calibrated = len(session.guests.short)
    session.measure(cell(), round_index=1)
    session.measure(replace(cell(), finding="generations"))
    assert len(session.guests.short) == calibrated
    first, *others = session.guests.whole
    assert [one.setting for one in others] == [first.setting] * 2
    assert others[0].round_index == 1
    assert others[1].cell.finding == "generations"


@pytest.mark.parametrize(
    "words",
    [{"mglru": "off"}, {"mode": "mmap"}, {"kernel": "mine"}, {"read_ahead_kb": 128}, {"filesystem": "xfs"}],
    ids=str,
)
def test_cells_that_differ_have_each_a_setting_of_their_own(session: Session, words: dict[str, Any]) -> None:
    other = cell(**words)
    session.measure(cell())
    session.guests.hides = lambda _short, _at: OFF
    session.measure(other)
    assert [one.cell for one in session.guests.short] == [cell(), other, other]
    assert [one.setting.control_bytes for one in session.guests.whole] == [CAPACITY, CAPACITY + OFF]
    session.guests.hides = lambda _short, _at: 0
    session.measure(cell(), round_index=1)
    assert session.guests.whole[-1].setting.control_bytes == CAPACITY


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        ({"mglru": "off"}, CAPACITY + OFF - MORE),
        ({"mode": "mmap"}, CAPACITY + OFF - MORE),
        ({"mechanism": "memboot"}, CAPACITY),
        ({"kernel": "mine"}, CAPACITY),
        ({"workload": "reclaim_l4"}, CAPACITY),
    ],
    ids=str,
)
def test_a_cell_begins_where_the_like_of_it_ended(session: Session, words: dict[str, Any], begins: int) -> None:
    """What the first held less than its control target, the next of its kernel, mechanism and pool is given at once."""
    session.guests.hides = lambda _short, _at: OFF
    session.measure(cell())
    calibrated = len(session.guests.short)
    assert calibrated == 2
    run = session.measure(cell(**words))
    found = session.guests.short[calibrated:]
    assert found[0].setting.control_bytes == begins
    assert (len(found) == 1) is (begins != CAPACITY)
    assert is_matched(run)


def test_a_calibration_replays_the_plans_beginning_with_nothing_sampled(session: Session) -> None:
    session.measure(cell())
    (short,), (whole,) = session.guests.short, session.guests.whole
    given = session.rigs["ext4"]
    assert whole.rig is given
    options = short.rig.options
    assert (options.warm_iterations, options.samples) == (SHORT_WARM_ITERATIONS, ())
    assert (options.experts_exit, options.folios_exit) == ((), ())
    assert options.threads == given.options.threads
    found = read_plan(short.rig.plan_path)
    assert short.rig.plan_path.parent == session.folder
    assert found.n_iterations == SHORT_ITERATIONS
    assert found.n_accesses == int(PLAN.iterations[SHORT_ITERATIONS]) < PLAN.n_accesses
    assert np.array_equal(found.sequence, PLAN.sequence[: found.n_accesses])
    assert found.n_experts == PLAN.n_experts


def test_a_calibration_reads_the_pool_of_its_cells_file_system(session: Session) -> None:
    session.measure(cell())
    session.measure(cell(filesystem="xfs"))
    assert [(one.cell.filesystem, one.rig.pool.manifest.filesystem) for one in session.guests.boots] == [
        ("ext4", "ext4"),
        ("ext4", "ext4"),
        ("xfs", "xfs"),
        ("xfs", "xfs"),
    ]


def test_a_whole_pass_that_holds_less_than_a_short_one_is_measured_again(session: Session) -> None:
    session.guests.hides = lambda short, _at: 0 if short else OFF
    run = session.measure(cell())
    assert FULL_TRIES == 2
    assert [one.short for one in session.guests.boots] == [True, False, False]
    assert [one.setting.control_bytes for one in session.guests.whole] == [CAPACITY, CAPACITY + OFF]
    assert {(one.round_index, one.order) for one in session.guests.whole} == {(0, 7)}
    assert residency_of(run) == CAPACITY
    session.measure(cell(), round_index=1)
    assert [one.setting.control_bytes for one in session.guests.boots[3:]] == [CAPACITY + OFF]


def test_the_last_of_the_whole_passes_counts_and_a_later_round_learns_from_it(session: Session) -> None:
    session.guests.hides = lambda short, at: 0 if short else OFF * at
    run = session.measure(cell())
    assert [one.setting.control_bytes for one in session.guests.whole] == [CAPACITY, CAPACITY + OFF]
    assert residency_of(run) == CAPACITY - OFF
    assert not is_matched(run)
    session.measure(cell(), round_index=1)
    assert session.guests.whole[2].setting.control_bytes == CAPACITY + 2 * OFF
    assert len(session.guests.short) == 1


def test_where_mechanisms_are_not_compared_the_capacity_is_what_the_mechanism_is_told(session: Session) -> None:
    session.guests.hides = lambda _short, _at: OFF
    plain = cell(workload="single")
    runs = [session.measure(plain, round_index=at) for at in range(2)]
    assert [one.setting.control_bytes for one in session.guests.boots] == [CAPACITY, CAPACITY]
    assert session.guests.short == []
    assert not any(map(is_matched, runs))


def test_mem_is_found_by_a_boot_with_it_whatever_the_workload(session: Session) -> None:
    session.measure(cell("memboot", workload="single"))
    (_, unset), (_, tried) = session.guests.probes
    assert unset is None
    assert tried is not None
    assert tried.mem_bytes is not None
    (boot,) = session.guests.boots
    assert boot.setting.control_bytes == CAPACITY
    session.measure(cell("memboot", workload="single"), round_index=1)
    assert len(session.guests.probes) == 2


def killed(boot: Boot) -> OomRun:
    return OomRun(boot.cell, CAPACITY, 0, 0, 0.0, Enforced(0), Ending(), None, 9, 3, 1.0)


def test_a_pass_that_ended_by_a_kill_is_not_measured_again(session: Session) -> None:
    session.guests.ending = lambda boot: None if boot.short else killed(boot)
    assert isinstance(session.measure(cell()), OomRun)
    assert len(session.guests.whole) == 1


def blind(boot: Boot) -> Run:
    return run_of(boot.cell, boot.rig.plan, CAPACITY, [0] * boot.rig.plan.n_iterations)


def test_a_whole_pass_whose_residency_was_not_observed_is_kept_as_it_is(session: Session) -> None:
    session.guests.ending = lambda boot: None if boot.short else blind(boot)
    assert residency_of(session.measure(cell())) is None
    session.guests.ending = lambda _boot: None
    session.measure(cell(), round_index=1)
    assert [one.setting.control_bytes for one in session.guests.whole] == [CAPACITY, CAPACITY]


@pytest.mark.parametrize("ending", [killed, blind])
def test_a_calibration_without_a_residency_is_the_machinerys_fault(
    session: Session, ending: Callable[[Boot], Any]
) -> None:
    session.guests.ending = ending
    with pytest.raises(HarnessError, match="a calibration without a residency; expected cachestat or mincore"):
        session.measure(cell())
    assert len(session.guests.boots) == 1


def probed(session: Session, cells: Sequence[Cell]) -> int:
    """Return how many boots probe for the cold factors of cells, asked for twice."""
    for one in (*cells, *cells):
        assert session.cold_factor(one) == 1.01
    return len(session.guests.probes)


@pytest.mark.parametrize(
    "words",
    [
        {"workload": "single"},
        {"kernel": "mine"},
        {"mode": "mmap"},
        {"read_ahead_kb": 128},
        {"filesystem": "xfs"},
    ],
    ids=str,
)
def test_a_machine_is_probed_once_for_each_way_to_read(session: Session, words: dict[str, Any]) -> None:
    assert probed(session, [cell(), cell(**words)]) == 2


@pytest.mark.parametrize(
    "words", [{"mglru": "off"}, {"mode": "pinned_own"}, {"capacity": Capacity.parse("6.4%")}], ids=str
)
def test_what_changes_nothing_of_a_cold_read_is_not_probed_again(session: Session, words: dict[str, Any]) -> None:
    assert probed(session, [cell(), replace(cell(), **words), cell("balloon", locked=81)]) == 1


def test_measuring_asks_no_further_probe_than_the_cold_factor_did(session: Session) -> None:
    session.cold_factor(cell())
    session.measure(cell())
    assert len(session.guests.probes) == 1


def test_what_a_probe_showed_is_noted_once(session: Session) -> None:
    for one in (cell(), cell(), cell("balloon")):
        session.cold_factor(one)
    assert session.lanes.notes == [
        "guest 6.12: Linux 6.12.9-amd64 by tcg (KVM aborted), 2 processors, up in 6.5 s; thp never"
    ]


def test_a_kernel_is_looked_for_once_by_its_word_or_else_by_its_label(session: Session) -> None:
    for kernel in ("6.12", "mine", "6.12", "mine", "7.3"):
        session.measure(cell(kernel=kernel))
    assert session.guests.opened == [("6.12", "6.12"), ("mine", "/no/bzImage"), ("7.3", "7.3")]


@pytest.mark.parametrize(
    "why", [UnsupportedHostError("no QEMU", "one", "install it"), InputError("no bzImage", "a kernel")], ids=repr
)
def test_a_kernel_that_cannot_be_booted_is_refused_every_time_and_looked_for_once(
    session: Session, why: Exception
) -> None:
    session.guests.refused["mine"] = why
    for ask in (session.measure, session.cold_factor, session.measure):
        with pytest.raises(type(why)) as caught:
            ask(cell(kernel="mine"))
        assert caught.value is why
    assert session.guests.opened == [("mine", "/no/bzImage")]
    assert session.guests.boots == []
    assert is_matched(session.measure(cell()))


def test_what_a_probe_dies_of_is_tried_again_by_the_next_cell(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost machine is no word on its kernel."""

    def lost(*_: Any) -> Probe:
        raise HarnessError("the machine was lost", "one that answers")

    with monkeypatch.context() as once:
        once.setattr(guest, "probe", lost)
        with pytest.raises(HarnessError, match="was lost"):
            session.cold_factor(cell())
    assert session.cold_factor(cell()) == 1.01
