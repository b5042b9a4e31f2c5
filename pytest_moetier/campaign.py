"""The session's measurements: every round visits all cells in a fresh random order from a recorded seed.

One test's rounds back to back would confound the drift of a host with the capacity (paper section 4: three runs in
randomised capacity order). So all cells of a session are measured here, interleaved, when the first one is asked for.
"""

from __future__ import annotations

import random
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pytest_moetier.cell import Cell
from pytest_moetier.errors import (
    AccountingError,
    HarnessError,
    HostBusyError,
    InputError,
    MoetierError,
    UnsupportedHostError,
)
from pytest_moetier.figures import Demand, figures_of
from pytest_moetier.host.enforce import HostContext
from pytest_moetier.host.restore import HostLock, Journal, recover
from pytest_moetier.native import executable
from pytest_moetier.plan import Plan, build_plan
from pytest_moetier.pool.manifest import Manifest
from pytest_moetier.pool.opened import inspect_pool, open_pool
from pytest_moetier.progress import Progress, Reporter
from pytest_moetier.proof import Proof, ProvedRun, examine
from pytest_moetier.replay import Rig, Run, measure_cold_factor, plan_file, run_cell
from pytest_moetier.replayer import ReplayOptions
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.records import ORDERS, Trace
from pytest_moetier.trace.synth import PRESETS, synth_trace
from pytest_moetier.units import format_bytes

SYNTHETIC_ITERATIONS = 100
SYNTHETIC_SEED = 1
"""The embedded trace is the same for every session, so that sessions compare."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user chose for a session.

    Attributes:
        pool: folder of the pool.
        trace: a trace file, or None for the seeded synthetic trace over the pool's own dimensions.
        iterations: engine iterations a pass, 0 for the whole trace.
        rounds: repetitions of every cell.
        seed: seed of the random order.
        threads: reader threads.
        reserve_bytes: memory that a balloon never takes from the host.
        stamps: ``full``, ``ends`` or ``none``.
        stop_early: stop measuring at the first run that is not proved.
        wait_seconds: how long to wait for another bench that holds the host.
    """

    pool: Path
    trace: Path | None
    iterations: int
    rounds: int
    seed: int
    threads: int
    reserve_bytes: int
    stamps: str = "full"
    stop_early: bool = False
    wait_seconds: float = 0.0


@dataclass(slots=True)
class CellResult:
    """What a campaign found for one cell.

    ``runs`` are proved; ``invalid`` says why a run was not; ``skipped`` says why the host cannot examine the cell;
    ``broken`` is what our own machinery died of. ``proofs`` has the proof of every finished run, proved or not.
    """

    cell: Cell
    runs: list[ProvedRun] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    skipped: MoetierError | None = None
    broken: MoetierError | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def proved(self) -> bool:
        """Whether every round was measured and proved: only then is the cell a result."""
        return bool(self.runs) and not self.invalid and not self.over

    @property
    def over(self) -> bool:
        """Whether further rounds are pointless."""
        return self.skipped is not None or self.broken is not None


@dataclass(frozen=True, slots=True)
class Context:
    """What the numbers of a session rest on; runs with another context are not comparable."""

    pool: str
    pool_id: str
    pool_bytes: int
    trace: str
    synthetic_trace: bool
    synthetic_pool: bool
    plan_crc: str
    iterations: int
    threads: int
    seed: int
    cold_factor: float | None


class Campaign:
    """Holds the host for a session and measures its cells; :meth:`close` leaves the host as it was found."""

    def __init__(self, settings: Settings, report: Reporter) -> None:
        """Remember what to do; nothing on the host is touched before :meth:`measure`."""
        self.settings = settings
        self.results: dict[str, CellResult] = {}
        self.context: Context | None = None
        self.notes: list[str] = []
        self._report = report
        self._stack = ExitStack()
        self._rig: Rig | None = None
        self._refusal: MoetierError | None = None
        self._demands: dict[str, Demand] = {}
        self._trace_source = ""

    def close(self) -> None:
        """Give the host back: pool, lock, journal. Safe to call twice."""
        self._rig = None
        self._stack.close()

    def measure(self, cells: Sequence[Cell]) -> Mapping[str, CellResult]:
        """Measure every cell not measured yet, all rounds, and return all results by cell id.

        Raises:
            MoetierError: the session cannot run at all (no pool, no plan, host busy).
        """
        fresh = {cell.id: cell for cell in cells if cell.id not in self.results}
        if not fresh:
            return self.results
        with self._report:
            self._measure(fresh)
        return self.results

    def _measure(self, fresh: Mapping[str, Cell]) -> None:
        if self._refusal is not None:  # asking again for every cell would wait, or read a whole trace, every time
            raise self._refusal
        try:
            with _our_errors():
                rig = self._set_up()
        except MoetierError as error:
            self._refusal = error
            self.close()
            raise
        results = {cell_id: CellResult(cell) for cell_id, cell in fresh.items()}
        self.results.update(results)
        started = time.monotonic()
        order = list(self._order(list(fresh.values())))
        done = 0
        for place, (round_index, cell) in enumerate(order):
            result = results[cell.id]
            if not result.over:
                # Cells that turned out not to be measurable here are neither done nor left.
                left = sum(not results[one.id].over for _, one in order[place:])
                self._one(rig, result, round_index, place, self._teller(started, done, done + left, cell))
                done += not result.over
            if self.settings.stop_early and (result.invalid or result.broken):
                self._stop(results)
                break

    def _order(self, cells: Sequence[Cell]) -> Iterator[tuple[int, Cell]]:
        """Yield (round, cell): each round a fresh order from the seed and the round's number alone."""
        for round_index in range(self.settings.rounds):
            shuffled = sorted(cells)
            random.Random(f"{self.settings.seed}:{round_index}").shuffle(shuffled)  # noqa: S311 - an order, no secret
            for cell in shuffled:
                yield round_index, cell

    def _one(
        self, rig: Rig, result: CellResult, round_index: int, order: int, tell: Callable[[str, int], None]
    ) -> None:
        """Measure and prove one run, and file what came of it."""
        try:
            with _our_errors():
                demand = self._demand(rig, result.cell.mode, tell)
                result.warnings = list(_warnings(result.cell, rig, demand))
                run = run_cell(rig, result.cell, round_index=round_index, order=order, progress=tell)
        except (UnsupportedHostError, HostBusyError) as error:
            result.skipped = error
        except AccountingError as error:
            result.invalid.append(str(error))
        except MoetierError as error:
            result.broken = error
        else:
            self._prove(run, demand, result)

    @staticmethod
    def _prove(run: Run, demand: Demand, result: CellResult) -> None:
        figures = figures_of(run, demand)
        proof = examine(run, demand, figures)
        result.proofs.append(proof)
        try:
            proof.require()
        except AccountingError as error:
            result.invalid.append(str(error))
        else:
            result.runs.append(ProvedRun(run, figures, proof))

    def _demand(self, rig: Rig, mode: str, tell: Callable[[str, int], None]) -> Demand:
        """Return the demand of the plan read in ``mode``; its cold factor is measured once."""
        if mode not in self._demands:
            tell("measuring the cold factor", 0)
            factor = measure_cold_factor(rig, mode, rig.plan_path.parent)
            self._demands[mode] = Demand.of(rig.plan, factor)
            if self.context is None:
                self.context = self._context(rig, factor)
        return self._demands[mode]

    def _stop(self, results: Mapping[str, CellResult]) -> None:
        for result in results.values():
            if len(result.runs) < self.settings.rounds and not result.invalid and not result.over:
                result.skipped = HostBusyError(
                    "not measured in every round: an earlier run was not proved", do="run without -x"
                )

    def _teller(self, started: float, done: int, total: int, cell: Cell) -> Callable[[str, int], None]:
        iterations = self._rig.plan.n_iterations if self._rig else 0

        def tell(phase: str, iteration: int) -> None:
            elapsed = time.monotonic() - started
            self._report(Progress(done, total, cell, phase, iteration, iterations, elapsed))

        return tell

    def _set_up(self) -> Rig:
        """Take the host, undo what a killed run left, open the pool and write the plan; once per session."""
        if self._rig is not None:
            return self._rig
        stack = self._stack
        balloon = executable("moetier-balloon")
        # What the user gave is read first: a bad trace is said at once, not after waiting for the host.
        manifest = inspect_pool(self.settings.pool)
        trace = self._trace(manifest)
        plan = build_plan(trace, manifest, self.settings.iterations or None)
        self._report(Progress(0, 0, None, "waiting for the host", 0, 0, 0.0))
        stack.enter_context(HostLock(self.settings.wait_seconds))
        self.notes += recover()
        journal = stack.enter_context(Journal())
        pool = stack.enter_context(open_pool(self.settings.pool, journal))
        if pool.manifest != manifest:
            raise HostBusyError(
                f"the manifest of {self.settings.pool} changed while this session waited",
                "a pool that stays as it is",
                "run the same command again",
            )
        folder = stack.enter_context(_temporary_folder(journal))
        path = stack.enter_context(plan_file(plan, folder))
        self._trace_source = f"{trace.source}; within a pass: {ORDERS[trace.order]}"
        self.notes += [f"trace: {self._trace_source}", *trace.warnings]
        options = ReplayOptions(threads=self.settings.threads, stamps=self.settings.stamps)
        host = HostContext(
            journal=journal,
            reserve_bytes=self.settings.reserve_bytes,
            pool_files=len(plan.files),
            balloon=balloon,
        )
        self._rig = Rig(pool=pool, plan=plan, plan_path=path, host=host, options=options)
        return self._rig

    def _trace(self, manifest: Manifest) -> Trace:
        if self.settings.trace is not None:
            return load_trace(self.settings.trace)
        return synth_trace(
            manifest.profile if manifest.profile in PRESETS else "kimi-k3",
            layers=len(manifest.layers),
            experts=manifest.experts,
            k=manifest.k,
            iterations=self.settings.iterations or SYNTHETIC_ITERATIONS,
            seed=SYNTHETIC_SEED,
        )

    def _context(self, rig: Rig, cold_factor: float | None) -> Context:
        manifest, plan = rig.pool.manifest, rig.plan
        return Context(
            pool=str(self.settings.pool),
            pool_id=f"{manifest.pool_id:016x}",
            pool_bytes=manifest.total_bytes,
            trace=self._trace_source,
            synthetic_trace=plan.synthetic_trace,
            synthetic_pool=manifest.synthetic,
            plan_crc=_crc(plan),
            iterations=plan.n_iterations,
            threads=self.settings.threads,
            seed=self.settings.seed,
            cold_factor=cold_factor,
        )


@contextmanager
def _our_errors() -> Iterator[None]:
    """Turn what the operating system refuses (no room, no file, no permission) into one message of ours."""
    try:
        yield
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        raise HarnessError(
            f"{name}{error.strerror or error}",
            "a host with room, memory and descriptors for a run",
            "moetier doctor",
        ) from error
    except MemoryError as error:
        raise HarnessError("out of memory", "memory for the plan and its simulation", "fewer iterations") from error


@contextmanager
def _temporary_folder(journal: Journal) -> Iterator[Path]:
    """Yield a private folder that is gone afterwards, after kill -9 at the next start."""
    folder = tempfile.TemporaryDirectory(prefix="moetier-")
    token = journal.record("folder", path=folder.name)
    with folder:
        yield Path(folder.name)
    journal.done(token)


def _crc(plan: Plan) -> str:
    """Return a fingerprint of what is read in which order."""
    value = zlib.crc32(plan.sequence.tobytes())
    value = zlib.crc32(plan.iterations.tobytes(), value)
    return f"{zlib.crc32(plan.expert_bytes.tobytes(), value):08x}"


def _warnings(cell: Cell, rig: Rig, demand: Demand) -> Iterator[str]:
    """Yield what the user should know of a capacity before it is measured; refuse one that makes no sense."""
    pool_bytes = rig.pool.manifest.total_bytes
    capacity = cell.capacity.resolve(pool_bytes)
    if capacity > rig.host.mem_total_bytes:
        raise UnsupportedHostError(
            f"capacity {cell.capacity.text} is {format_bytes(capacity)}, this host has"
            f" {format_bytes(rig.host.mem_total_bytes)} of RAM",
            "a capacity below the host's RAM",
            "--moetier-capacity with a smaller size, or a scaled pool (moetier pool create)",
        )
    if capacity > pool_bytes:
        raise InputError(
            f"capacity {cell.capacity.text} is larger than the pool ({format_bytes(pool_bytes)})",
            "a capacity that the pool can exceed",
            "--moetier-capacity with a smaller size",
        )
    if capacity < demand.token_cycle_bytes:
        yield (
            f"{cell.id}: C {format_bytes(capacity)} is below one iteration's working set"
            f" ({format_bytes(demand.token_cycle_bytes)}, the token-cycle floor): a global LRU hits nothing there"
        )
