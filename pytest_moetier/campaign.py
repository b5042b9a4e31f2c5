"""The session's measurements: every round visits all cells in a fresh random order from a recorded seed.

One test's rounds back to back would confound the drift of a host with the capacity (paper section 4: three runs in
randomised capacity order). So all cells of a session are measured here, interleaved, when the first one is asked for.
"""

from __future__ import annotations

import random
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from pytest_moetier.cell import HOST, RECLAIM, Cell, GuestAsked
from pytest_moetier.errors import (
    AccountingError,
    HarnessError,
    HostBusyError,
    InputError,
    MoetierError,
    UnsupportedHostError,
)
from pytest_moetier.figures import Demand, figures_of
from pytest_moetier.guest import cold_mode
from pytest_moetier.host import mglru
from pytest_moetier.host.cgroup import scope_support
from pytest_moetier.host.enforce import HostContext
from pytest_moetier.host.generations import PATH as GENERATIONS
from pytest_moetier.host.machine import IN_A_GUEST
from pytest_moetier.host.memboot import mem_argument
from pytest_moetier.host.restore import HostLock, Journal, recover
from pytest_moetier.host.throttle import read_limit_support
from pytest_moetier.lanes import RECLAIM_SAMPLE_EVERY, RECLAIM_SAMPLES, RECLAIM_WARM_ITERATIONS, GuestLanes
from pytest_moetier.modes import delivery_of
from pytest_moetier.native import executable
from pytest_moetier.plan import Plan, write_plan
from pytest_moetier.pool.manifest import Manifest, load_manifest
from pytest_moetier.pool.opened import OpenPool, closed_pool, inspect_pool, open_pool
from pytest_moetier.pool.temporary import temporary_pool
from pytest_moetier.progress import Progress, Reporter
from pytest_moetier.proof import Proof, ProvedRun, examine
from pytest_moetier.replay import ListFile, OomRun, Rig, Run, measure_cold_factor, run_cell
from pytest_moetier.replayer import ReplayOptions
from pytest_moetier.units import format_bytes
from pytest_moetier.workloads import BUILDERS, TEMPORARY, Asked, Workload, single


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user chose for a session.

    Attributes:
        pool: folder of the pool.
        asked: traces, iterations and advice.
        rounds: repetitions of every cell.
        seed: seed of the random order.
        threads: reader threads.
        reserve_bytes: memory that a balloon never takes from the host.
        stamps: ``full``, ``ends`` or ``none``.
        stop_early: stop measuring at the first run that is not proved.
        wait_seconds: how long to wait for another bench that holds the host.
        compute_seconds: a compute phase at the end of every iteration; 0 for none.
        kernels: the kernel of each label that is not the host's: a version that was fetched, or a path.
        guest: RAM, processors and accelerator of the virtual machines.
        guest_rounds: repetitions of a reclaim cell in a guest, each a boot.
        guest_threads: its reader threads.
    """

    pool: Path
    asked: Asked
    rounds: int
    seed: int
    threads: int
    reserve_bytes: int
    stamps: str = "full"
    stop_early: bool = False
    wait_seconds: float = 0.0
    compute_seconds: float = 0.0
    kernels: Mapping[str, str] = field(default_factory=dict)
    guest: GuestAsked = field(default_factory=GuestAsked)
    guest_rounds: int = 2
    guest_threads: int = 8

    def rounds_of(self, cell: Cell) -> int:
        """Return the repetitions of a cell."""
        return self.guest_rounds if cell.workload in RECLAIM else self.rounds

    def threads_of(self, word: str) -> int:
        """Return the reader threads of a workload."""
        return self.guest_threads if word in RECLAIM else self.threads


@dataclass(slots=True)
class CellResult:
    """What a campaign found for one cell.

    ``runs`` are proved; ``invalid`` says why a run was not; ``skipped`` says why the host cannot examine the cell;
    ``broken`` is what our own machinery died of. ``proofs`` has the proof of every finished run, proved or not,
    ``lists`` the tables and the advice that the cell was given.
    """

    cell: Cell
    runs: list[ProvedRun] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    skipped: MoetierError | None = None
    broken: MoetierError | None = None
    warnings: list[str] = field(default_factory=list)
    lists: list[ListFile] = field(default_factory=list)

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
    workload: str = "single"
    compute_seconds: float = 0.0
    kernel: str = HOST


@dataclass(frozen=True, slots=True)
class _Host:
    """What a session holds while it measures: the lock and the journal are on its stack."""

    journal: Journal
    folder: Path
    balloon: Path
    single: Workload | None
    guests: GuestLanes


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A workload with its plan on disk; its pool is not open."""

    workload: Workload
    manifest: Manifest
    folder: Path
    plan_path: Path
    list_file: Callable[[str], ListFile]


_On: TypeAlias = tuple[str, str]
"""A workload, and the file system of its pool: that of the session's own pool is asked for in guests alone."""


class Campaign:
    """Holds the host for a session and measures its cells; :meth:`close` leaves the host as it was found."""

    def __init__(self, settings: Settings, report: Reporter) -> None:
        """Remember what to do; nothing on the host is touched before :meth:`measure`."""
        self.settings = settings
        self.results: dict[str, CellResult] = {}
        self.contexts: dict[tuple[str, str], Context] = {}
        self.notes: list[str] = []
        self._report = report
        self._stack = ExitStack()
        self._host: _Host | None = None
        self._pool: OpenPool | None = None
        self._rigs: dict[tuple[_On, bool], Rig] = {}
        self._prepared: dict[_On, _Prepared] = {}
        self._refusal: MoetierError | None = None
        self._refusals: dict[tuple[_On, bool], MoetierError] = {}
        self._demands: dict[tuple[str, str, str, int, str], Demand] = {}

    @property
    def context(self) -> Context | None:
        """What the session's own pool and trace are; that of another workload where they were not measured."""
        return self.contexts.get(("single", HOST)) or next(iter(self.contexts.values()), None)

    @property
    def refusal(self) -> MoetierError | None:
        """Why the session cannot measure at all; None where it can, or was not asked yet."""
        return self._refusal

    def context_of(self, cell: Cell) -> Context | None:
        """Return what the numbers of ``cell`` rest on, None before it was measured."""
        return self.contexts.get((cell.workload, cell.kernel))

    def close(self) -> None:
        """Give the host back: pools, lock, journal. Safe to call twice."""
        self._host = None
        self._rigs.clear()
        self._prepared.clear()
        self._pool = None
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
                self._set_up(fresh.values())
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
                self._one(result, round_index, place, self._teller(started, done, done + left, cell))
                done += not result.over
            if self.settings.stop_early and (result.invalid or result.broken):
                self._stop(results)
                break

    def _order(self, cells: Sequence[Cell]) -> Iterator[tuple[int, Cell]]:
        """Yield (round, cell): each round a fresh order from the seed and the round's number alone."""
        for round_index in range(max(map(self.settings.rounds_of, cells))):
            shuffled = sorted(cells)
            random.Random(f"{self.settings.seed}:{round_index}").shuffle(shuffled)  # noqa: S311 - an order, no secret
            for cell in shuffled:
                if round_index < self.settings.rounds_of(cell):
                    yield round_index, cell

    def _one(self, result: CellResult, round_index: int, order: int, tell: Callable[[str, int], None]) -> None:
        """Measure and prove one run, and file what came of it."""
        try:
            with _our_errors():
                result.cell.need_lane()
                _need_support(result.cell)
                rig = self._rig(result.cell, tell)
                demand = self._demand(rig, result.cell, tell)
                result.warnings = list(_warnings(result.cell, rig, demand))
                lane = self._host.guests.run if result.cell.in_guest and self._host else run_cell
                run = lane(rig, result.cell, round_index=round_index, order=order, progress=tell)
        except (UnsupportedHostError, HostBusyError) as error:
            result.skipped = error
        except AccountingError as error:
            result.invalid.append(str(error))
        except MoetierError as error:
            result.broken = error
        else:
            self._prove(run, demand, result)

    @staticmethod
    def _prove(run: Run | OomRun, demand: Demand, result: CellResult) -> None:
        figures = figures_of(run, demand)
        proof = examine(run, demand, figures)
        result.proofs.append(proof)
        if isinstance(run, Run):
            result.lists = [one for one in (run.table, run.advice) if one is not None]
        try:
            proof.require()
        except AccountingError as error:
            result.invalid.append(str(error))
        else:
            result.runs.append(ProvedRun(run, figures, proof))

    def _demand(self, rig: Rig, cell: Cell, tell: Callable[[str, int], None]) -> Demand:
        """Return the demand of the plan read in the cell's mode; its cold factor is measured once."""
        native = cold_mode(cell)
        key = (cell.workload, cell.kernel, native, cell.read_ahead_kb, cell.filesystem)
        if key not in self._demands:
            tell("measuring the cold factor", 0)
            if cell.in_guest:
                assert self._host is not None  # noqa: S101 - set up before the first cell
                factor = self._host.guests.cold_factor(rig, cell, tell)
                self.notes += [note for note in self._host.guests.notes if note not in self.notes]
            else:
                factor = measure_cold_factor(rig, native, rig.plan_path.parent)
            self._demands[key] = self._demand_of(rig, cell.workload, factor)
            self.contexts.setdefault((cell.workload, cell.kernel), self._context(rig, cell, factor))
        return self._demands[key]

    def _demand_of(self, rig: Rig, word: str, factor: float | None) -> Demand:
        """Return the demand with a cold factor; the plan is simulated once."""
        known = next((one for key, one in self._demands.items() if key[0] == word), None)
        return Demand.of(rig.plan, factor) if known is None else replace(known, cold_factor=factor)

    def _stop(self, results: Mapping[str, CellResult]) -> None:
        for result in results.values():
            if len(result.runs) < self.settings.rounds_of(result.cell) and not result.invalid and not result.over:
                result.skipped = HostBusyError(
                    "not measured in every round: an earlier run was not proved", do="run without -x"
                )

    def _teller(self, started: float, done: int, total: int, cell: Cell) -> Callable[[str, int], None]:
        def tell(phase: str, iteration: int) -> None:
            found = self._prepared.get((cell.workload, cell.filesystem))
            elapsed = time.monotonic() - started
            n = found.workload.plan.n_iterations if found else 0
            self._report(Progress(done, total, cell, phase, iteration, n, elapsed))

        return tell

    def _set_up(self, cells: Iterable[Cell]) -> _Host:
        """Take the host and undo what a killed run left; once per session."""
        if self._host is not None:
            return self._host
        stack = self._stack
        balloon = executable("moetier-balloon")
        asked = [cell for cell in cells if cell.workload not in TEMPORARY]
        manifest, workload = None, None
        if asked:
            # What the user gave is read first: a bad trace is said at once, not after waiting for the host.
            manifest = inspect_pool(self.settings.pool)
            workload = single(manifest, self.settings.asked)
            if any((one.workload, delivery_of(one.prefetch)[1]) == ("single", "plan") for one in asked):
                workload.check_advice()
        self._report(Progress(0, 0, None, "waiting for the host", 0, 0, 0.0))
        stack.enter_context(HostLock(self.settings.wait_seconds))
        self.notes += recover()
        journal = stack.enter_context(Journal())
        folder = stack.enter_context(_temporary_folder(journal))
        guests = GuestLanes(self.settings.kernels, self.settings.guest, folder, journal)
        self._host = _Host(journal, folder, balloon, workload, guests)
        if manifest is not None and not all(cell.in_guest for cell in asked):
            self._pool = stack.enter_context(open_pool(self.settings.pool, journal))
        if (
            manifest is not None
            and (self._pool.manifest if self._pool else load_manifest(self.settings.pool)) != manifest
        ):
            raise HostBusyError(
                f"the manifest of {self.settings.pool} changed while this session waited",
                "a pool that stays as it is",
                "run the same command again",
            )
        return self._host

    def _rig(self, cell: Cell, tell: Callable[[str, int], None]) -> Rig:
        """Return what a cell is replayed with, made on first use; one that cannot be made is refused every time."""
        on: _On = (cell.workload, cell.filesystem)
        key = (on, cell.in_guest)
        if key in self._refusals:
            raise self._refusals[key]
        if key not in self._rigs:
            try:
                assert self._host is not None  # noqa: S101 - set up before the first cell
                if on not in self._prepared:
                    self._prepared[on] = self._made(on, self._host, tell)
                if cell.in_guest:
                    _need_filesystem(self._prepared[on], cell.filesystem)
                self._rigs[key] = self._rigged(self._prepared[on], self._host, in_guest=cell.in_guest)
            except MoetierError as error:
                self._refusals[key] = error
                raise
        return self._rigs[key]

    def _made(self, on: _On, host: _Host, tell: Callable[[str, int], None]) -> _Prepared:
        word, _ = on
        folder = self._folder_of(on, host, tell)
        manifest = load_manifest(folder)
        workload = (host.single if word == "single" else None) or BUILDERS[word](manifest, self.settings.asked)
        path = host.folder / f"{word}.plan"
        write_plan(workload.plan, path)
        head = "trace" if word == "single" else f"workload {word}"
        told = [f"{head}: {workload.source}", *workload.warnings]
        self.notes += [line for line in told if line not in self.notes]  # of one in two file systems, once
        known: dict[str, ListFile] = {}

        def list_file(wanted: str) -> ListFile:
            if wanted not in known:
                known[wanted] = workload.write_list(wanted, host.folder)
            return known[wanted]

        return _Prepared(workload, manifest, folder, path, list_file)

    def _rigged(self, prepared: _Prepared, host: _Host, *, in_guest: bool) -> Rig:
        """Return the rig of a workload; only the host's lane needs its pool open here."""
        word = prepared.workload.word
        reclaim = word in RECLAIM
        if in_guest:
            pool = closed_pool(prepared.folder, prepared.manifest)
        elif word not in TEMPORARY and self._pool is not None:
            pool = self._pool
        else:
            writable = prepared.manifest.throwaway
            pool = self._stack.enter_context(open_pool(prepared.folder, host.journal, writable=writable))
        return Rig(
            pool=pool,
            plan=prepared.workload.plan,
            plan_path=prepared.plan_path,
            host=HostContext(
                journal=host.journal,
                reserve_bytes=self.settings.reserve_bytes,
                pool_files=len(prepared.workload.plan.files),
                balloon=host.balloon,
            ),
            options=ReplayOptions(
                threads=self.settings.threads_of(word),
                stamps=self.settings.stamps,
                compute_seconds=self.settings.compute_seconds,
                residency_samples=RECLAIM_SAMPLES if reclaim else ReplayOptions().residency_samples,
                warm_iterations=RECLAIM_WARM_ITERATIONS if reclaim else 0,
                samples=(GENERATIONS,) if reclaim and in_guest else (),
                sample_every=RECLAIM_SAMPLE_EVERY,
                folios_exit=("measured",) if reclaim and in_guest else (),
            ),
            accepted_tokens=prepared.workload.accepted_tokens,
            list_file=prepared.list_file,
        )

    def _folder_of(self, on: _On, host: _Host, tell: Callable[[str, int], None]) -> Path:
        """Return the folder of a workload's pool: the session's, or one that is made now and removed at the end."""
        word, filesystem = on
        if word not in TEMPORARY:
            return self.settings.pool
        tell("making a temporary pool", 0)
        how = TEMPORARY[word]
        beside = self.settings.pool.resolve()
        folder = next(one for one in beside.parents if one.is_dir())
        try:
            return self._stack.enter_context(
                temporary_pool(
                    how.shape(self.settings.asked),
                    folder,
                    host.journal,
                    layout=how.layout,
                    store=how.store,
                    spine_bytes=how.spine_bytes,
                    throwaway=how.throwaway,
                    filesystem=filesystem,
                )
            )
        except InputError as error:  # no room, no right to write: the user named no folder for it
            raise UnsupportedHostError(error.seen, error.expected, error.do) from error

    def _context(self, rig: Rig, cell: Cell, cold_factor: float | None) -> Context:
        word, manifest, plan = cell.workload, rig.pool.manifest, rig.plan
        return Context(
            pool=str(self.settings.pool if word not in TEMPORARY else f"temporary, {manifest.name}"),
            pool_id=f"{manifest.pool_id:016x}",
            pool_bytes=manifest.total_bytes,
            trace=self._prepared[word, cell.filesystem].workload.source,
            synthetic_trace=plan.synthetic_trace,
            synthetic_pool=manifest.synthetic,
            plan_crc=_crc(plan),
            iterations=plan.n_iterations,
            threads=self.settings.threads_of(word),
            seed=self.settings.seed,
            cold_factor=cold_factor,
            workload=word,
            compute_seconds=self.settings.compute_seconds,
            kernel=cell.kernel,
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


def _need_filesystem(prepared: _Prepared, filesystem: str) -> None:
    """Refuse the user's own pool where a guest is to mount another file system than its image has.

    Raises:
        UnsupportedHostError: it has another one.
    """
    manifest = prepared.manifest
    if manifest.store == "image" and manifest.filesystem != filesystem:
        raise UnsupportedHostError(
            f"pool {prepared.folder} is an image with {manifest.filesystem}",
            f"{filesystem}, which the cell names",
            f"moetier pool create --store image --filesystem {filesystem}",
        )


def _need_support(cell: Cell) -> None:
    """Refuse what this host surely cannot do before a pool is made for it.

    Raises:
        UnsupportedHostError: no memory control group can be made, or none that limits reads, MGLRU cannot be switched
            on, or there was no mem=; and what would change it.
    """
    if cell.workload not in TEMPORARY or cell.in_guest:
        return
    mglru.need(cell.mglru)
    if cell.mechanism == "memboot" and mem_argument() is None:
        raise UnsupportedHostError("this kernel was not booted with mem=", "one that was", f"run it in {IN_A_GUEST}")
    asked = {"a writable memory controller": scope_support} if cell.mechanism == "cgroup" else {}
    asked |= {"a group whose reads can be limited": read_limit_support} if cell.read_limit else {}
    for expected, look in asked.items():
        if not (support := look()).available:
            raise UnsupportedHostError(support.reason, expected, support.fix)


def _warnings(cell: Cell, rig: Rig, demand: Demand) -> Iterator[str]:
    """Yield what the user should know of a capacity before it is measured; refuse one that makes no sense."""
    pool_bytes = rig.pool.manifest.total_bytes
    capacity = cell.capacity.resolve(pool_bytes)
    if capacity > rig.host.mem_total_bytes and not cell.in_guest:
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
