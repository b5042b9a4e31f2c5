"""The guests of a session: each kernel's lane, what its probes showed, and the setting that each cell was given.

The mechanisms are compared at equal residency, not at equal nominal capacity (paper section 2: C is a control target
and not the cache). For the reclaim workloads, short boots look for the setting whose mean residency is C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pytest_moetier import guest
from pytest_moetier.cell import RECLAIM, Cell, GuestAsked
from pytest_moetier.errors import HarnessError, MoetierError
from pytest_moetier.guest import Lane, Probe, Setting
from pytest_moetier.host.restore import Journal
from pytest_moetier.plan import Plan, write_plan
from pytest_moetier.replay import OomRun, Rig, Run

SHORT_ITERATIONS, SHORT_WARM_ITERATIONS = 40, 12
"""Of a calibration's measured and warm pass."""
FULL_TRIES = 2
"""Full passes at most until one's residency is the cell's; the last one counts, matched or not."""
SHORT_AIM = 1.015
"""Of C, the residency of a short pass whose long one's is C: it holds one to three hundredths less."""
RECLAIM_WARM_ITERATIONS = 30
"""Of the warm pass of a reclaim cell: many times what fills the cache."""
RECLAIM_SAMPLES = 20
"""Residency samples of its measured pass."""
RECLAIM_SAMPLE_EVERY = 2
"""Iterations from one sample of the generations to the next."""
Tell = Callable[[str, int], None]


class GuestLanes:
    """Boots guests for cells; what a kernel needs is looked for once, and a refusal is given every time."""

    def __init__(self, kernels: Mapping[str, str], asked: GuestAsked, folder: Path, journal: Journal) -> None:
        """Remember what was asked for; nothing is looked for before the first cell.

        Args:
            kernels: what each label of a cell stands for: a version, or a path.
            asked: RAM, processors and accelerator.
            folder: the session's folder.
            journal: where changes to this host are recorded.
        """
        self._kernels, self._asked, self._folder, self._journal = kernels, asked, folder, journal
        self._lanes: dict[str, Lane] = {}
        self._refusals: dict[str, MoetierError] = {}
        self._probes: dict[tuple[str, str, str, int, str], Probe] = {}
        self._settings: dict[Cell, Setting] = {}
        self._gaps: dict[tuple[str, str, str], int] = {}
        self._short: dict[tuple[str, str], Rig] = {}
        self.notes: list[str] = []

    def cold_factor(self, rig: Rig, cell: Cell, tell: Tell) -> float | None:
        """Return device bytes / logical bytes of one cold read in a guest of the cell's kernel."""
        return self._probe(rig, cell, tell).cold_factor

    def run(self, rig: Rig, cell: Cell, *, round_index: int, order: int, progress: Tell) -> Run | OomRun:
        """Measure ``cell`` once in a guest, with the setting that meets it.

        Raises:
            MoetierError: as ``guest.run_in_guest``.
        """
        lane, run = self._lane(cell), None
        for _ in range(FULL_TRIES):
            setting = self._setting(rig, cell, progress)
            run = guest.run_in_guest(lane, rig, cell, setting, round_index=round_index, order=order, progress=progress)
            if not is_matched_by_residency(cell) or not isinstance(run, Run) or guest.residency_of(run) is None:
                break  # nothing to look for, or nothing to learn from: the proof says what was not observed
            matched = guest.is_matched(run)
            # A long pass holds a little less than a short one, and the next boot learns from it: by half where it is
            # near, which is noise. What is controlled is the residency, never the reads.
            self._settings[_alike(cell)] = guest.adjusted(setting, run, cell, step=0.5 if matched else 1.0)
            if matched:
                break
        assert run is not None  # noqa: S101 - at least one try
        return run

    def _lane(self, cell: Cell) -> Lane:
        label = cell.kernel
        if label in self._refusals:
            raise self._refusals[label]
        if label not in self._lanes:
            try:
                lane = guest.open_lane(label, self._kernels.get(label, label), self._asked, self._folder, self._journal)
            except MoetierError as error:
                self._refusals[label] = error
                raise
            self._lanes[label] = lane
        return self._lanes[label]

    def _probe(self, rig: Rig, cell: Cell, tell: Tell) -> Probe:
        native = guest.cold_mode(cell)
        key = (cell.workload, cell.kernel, native, cell.read_ahead_kb, cell.filesystem)
        if key not in self._probes:
            lane = self._lane(cell)
            tell(f"probing {lane.kernel.release}", 0)
            seen = self._probes[key] = guest.probe(lane, rig, cell)
            facts = seen.facts
            why = f" ({facts.why})" if facts.why else ""
            settings = ", ".join(f"{name} {value}" for name, value in facts.settings)
            self.notes.append(
                f"guest {cell.kernel}: Linux {facts.release} by {facts.accelerator}{why}, {facts.cpus} processors,"
                f" up in {facts.boot_seconds:.1f} s; {settings}"
            )
        return self._probes[key]

    def _setting(self, rig: Rig, cell: Cell, tell: Tell) -> Setting:
        key = _alike(cell)
        if key not in self._settings:
            lane, seen = self._lane(cell), self._probe(rig, cell, tell)
            gap = self._gaps.get((cell.kernel, cell.mechanism, cell.workload), 0)
            setting = guest.first_setting(lane, cell, cell.capacity.resolve(rig.pool.manifest.total_bytes), seen, gap)
            if setting.mem_bytes is not None:
                tell("finding the mem= of the capacity", 0)
                setting = guest.settled(lane, rig, cell, setting)
            if is_matched_by_residency(cell):
                setting = self._calibrated(lane, self._shortened(rig, cell), cell, setting, tell)
            self._settings[key] = setting
        return self._settings[key]

    def _calibrated(self, lane: Lane, rig: Rig, cell: Cell, setting: Setting, tell: Tell) -> Setting:
        for attempt in range(guest.CALIBRATIONS):
            tell("finding the setting of the residency", attempt)
            run = guest.run_in_guest(lane, rig, cell, setting)
            resident = guest.residency_of(run) if isinstance(run, Run) else None
            if not isinstance(run, Run) or resident is None:
                raise HarnessError(f"{cell.id}: a calibration without a residency", "cachestat or mincore in the guest")
            self._gaps[cell.kernel, cell.mechanism, cell.workload] = setting.control_bytes - round(resident)
            if guest.is_matched(run, SHORT_AIM):
                return setting
            setting = guest.adjusted(setting, run, cell, SHORT_AIM)
        return setting

    def _shortened(self, rig: Rig, cell: Cell) -> Rig:
        key = (cell.workload, cell.filesystem)
        if key not in self._short:
            plan = _first_of(rig.plan, SHORT_ITERATIONS)
            path = self._folder / f"short-{cell.workload}.plan"
            write_plan(plan, path)
            options = replace(
                rig.options, warm_iterations=SHORT_WARM_ITERATIONS, samples=(), experts_exit=(), folios_exit=()
            )
            self._short[key] = replace(rig, plan=plan, plan_path=path, options=options)
        return self._short[key]


def is_matched_by_residency(cell: Cell) -> bool:
    """Whether a cell's setting is looked for until its mean residency is C: where mechanisms are compared."""
    return cell.workload in RECLAIM


def _alike(cell: Cell) -> Cell:
    """Return what cells with the same setting have in common: the finding has no part in it."""
    return replace(cell, finding="")


def _first_of(plan: Plan, iterations: int) -> Plan:
    """Return the first iterations of a plan."""
    n = min(iterations, plan.n_iterations)
    return replace(plan, iterations=plan.iterations[: n + 1], sequence=plan.sequence[: int(plan.iterations[n])])
