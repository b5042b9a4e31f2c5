"""Algorithm 1 for an engine: from an empty cache to a run with everything that its proof needs (paper section 9).

The worker is started in the wall's scope, loads the model and waits. Then the model's cache is dropped, the device's
read rate limited and the wall set, and prompt and decode are run as two measured intervals in the one process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_moetier.engine import abi
from pytest_moetier.engine.arm import QUANTISATIONS, Arm
from pytest_moetier.engine.job import GATES, Job, Slabs
from pytest_moetier.engine.run import EngineFacts, EngineOomRun, EngineRun, Gate, Resident
from pytest_moetier.engine.session import Event, Patience, Worker, WorkerKilledError, worker_argv
from pytest_moetier.engine.synthetic import ARCHITECTURES, ModelShape, write_model
from pytest_moetier.engine.told import Told
from pytest_moetier.errors import AccountingError, HarnessError, UnsupportedHostError
from pytest_moetier.host import procfs, residency
from pytest_moetier.host.cgroup import ScopeFiles
from pytest_moetier.host.enforce import Ending, Enforced, Enforcer, HostContext, mechanism
from pytest_moetier.host.loopdev import image_resident_bytes
from pytest_moetier.host.probe import damon_running
from pytest_moetier.host.restore import Journal
from pytest_moetier.host.snapshot import capture_paths, difference, parse, take
from pytest_moetier.host.throttle import read_limit
from pytest_moetier.pool.opened import OpenPool, open_pool
from pytest_moetier.pool.temporary import temporary_checkpoint
from pytest_moetier.units import format_bytes

OWN_BYTES = 128 << 20
"""Room for a worker's own memory beside the capacity, where the wall is set before it has shown what it takes."""
_READY, _DECODE, _END = GATES
_CHUNK = 1 << 20

Hear = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Ask:
    """What the engine is to compute, the same in every arm.

    Attributes:
        prompt: token ids, or text for a model with a vocabulary.
        tokens: how many to generate.
        context: tokens that the context holds.
        threads: of the computation.
        capture: report every choice of the router.
        logits: recompute every choice from the router's logits as well.
    """

    prompt: tuple[int, ...] | str
    tokens: int
    context: int = 512
    threads: int = 2
    capture: bool = False
    logits: bool = False


class EngineLab:
    """One model on one device, and the engine run on it as often as is asked."""

    def __init__(self, pool: OpenPool, journal: Journal, patience: Patience | None = None) -> None:
        """Take an opened model.

        Raises:
            UnsupportedHostError: no engine is installed, or the model's experts follow no rule.
        """
        self.library, self.version = abi.find_library()
        self.pool, self._journal, self._patience = pool, journal, patience
        self.layers = tuple(_slabs(pool, layer) for layer in pool.manifest.layers)
        # As a child that inherits the pool's descriptors finds them.
        self.files = tuple(str(pool.root / file.path) for file in pool.manifest.files)

    def plain_arm(self) -> Arm:
        """Return the arm that changes nothing of this host: no wall, and its own read-ahead."""
        seen = [one.read_ahead_kb for one in self.pool.devices if one.read_ahead_kb is not None]
        return replace(Arm(), read_ahead_kb=seen[0]) if seen else Arm()

    def run(
        self,
        arm: Arm,
        ask: Ask,
        *,
        round_index: int = 0,
        order: int = 0,
        hear: Hear = lambda _event: None,
    ) -> EngineRun:
        """Measure an arm once.

        Args:
            arm: what is varied.
            ask: what is computed.
            round_index: which repetition, from 0.
            order: place in the session's random order, from 0.
            hear: told every event of the worker, such as a token.

        Raises:
            InputError: the engine cannot run what is asked.
            UnsupportedHostError: this host cannot enforce the arm.
            AccountingError: what was enforced was lost on the way, or the wall killed the engine: INVALID.
            HarnessError: the worker died or fell silent.
        """
        found = self._measure(arm, ask, "mmap", (round_index, order), hear)
        if isinstance(found, EngineOomRun):
            raise AccountingError(
                f"the wall's out-of-memory killer ended the engine after gate {found.at!r}, {found.tokens} tokens done"
                f" ({_kills(found)} kills, limit {format_bytes(found.enforced.limit_bytes or 0)})",
                "an engine that fits into its wall",
                "a larger capacity",
            )
        return found

    def run_direct(
        self, arm: Arm, ask: Ask, *, round_index: int = 0, order: int = 0, hear: Hear = lambda _event: None
    ) -> EngineRun | EngineOomRun:
        """Run an arm with weights loaded past the page cache, all of them anonymous, in a wall that is there already.

        Raises:
            MoetierError: as :meth:`run`, but that a kill by the wall is a result.
        """
        return self._measure(arm, ask, "direct_io", (round_index, order), hear)

    def _measure(
        self, arm: Arm, ask: Ask, load_mode: str, place: tuple[int, int], hear: Hear
    ) -> EngineRun | EngineOomRun:
        run = _Measured(self, arm, ask, load_mode, place)
        with ExitStack() as stack:
            return run.measure(stack, self._journal, self._patience, hear)


class _Measured:
    """One run under way: its steps, in the order of the protocol."""

    def __init__(self, lab: EngineLab, arm: Arm, ask: Ask, load_mode: str, place: tuple[int, int]) -> None:
        self.lab, self.pool, self.arm, self.ask, self.load_mode, self.place = lab, lab.pool, arm, ask, load_mode, place
        share = arm.capacity_share
        self.capacity = round(share * lab.pool.manifest.total_bytes) if share else None
        spine = lab.pool.manifest.spine_bytes
        if arm.lock_spine and self.capacity is not None and spine >= self.capacity:
            raise UnsupportedHostError(
                f"a locked spine of {format_bytes(spine)} in {format_bytes(self.capacity)}", "a larger capacity"
            )
        self.told = Told()
        self.enforcer: Enforcer | None = None
        self.enforced: Enforced | None = None
        self.limit: int | None = None
        self.resident: dict[str, Resident] = {}
        self.read_ahead_kb: int | None = None
        self.image_before: int | None = None

    def measure(
        self, stack: ExitStack, journal: Journal, patience: Patience | None, hear: Hear
    ) -> EngineRun | EngineOomRun:
        """Run it from an empty cache to its end."""
        started, clock = time.time(), time.monotonic()
        self._set_read_ahead(stack, journal)
        early = self.load_mode != "mmap"
        if self.capacity is not None:
            host = HostContext(journal, 0, len(self.pool.manifest.files), Path())
            held = self.capacity + (OWN_BYTES if early else 0)
            self.enforcer = stack.enter_context(mechanism("cgroup", held, host))
        scope = self.enforcer.scope_files() if self.enforcer else None
        self.pool.drop_cache()
        self.image_before = self._image()
        _warm_file(self.lab.library)
        job = os.memfd_create("moetier-job")  # a file that no kill leaves behind
        stack.callback(os.close, job)
        argv = worker_argv(self._write_job(job, scope))
        argv = self.enforcer.argv(argv) if self.enforcer else argv

        def heard(event: Event) -> None:
            self.told.hear(event)
            hear(event)

        with Worker(argv, (*self.pool.pass_fds, job), hear=heard, patience=patience) as worker:
            try:
                if early:
                    self._enforce(worker, stack, journal)
                self._gates(worker, stack, journal, late=not early)
            except WorkerKilledError as killed:
                ended = self._killed(killed, worker.at, scope, started, time.monotonic() - clock)
                if ended is None:
                    raise
                return ended
        ending = self.enforcer.ending() if self.enforcer else None
        return self._result(scope, ending, started)

    def _gates(self, worker: Worker, stack: ExitStack, journal: Journal, *, late: bool) -> None:
        worker.wait_for(_READY)
        self.read_ahead_kb = self._read_ahead()
        self._drop()
        if late:
            self._enforce(worker, stack, journal)
        self._look(_READY)
        worker.go()
        worker.wait_for(_DECODE)
        self._look(_DECODE)
        worker.go()
        worker.wait_for(_END)
        self._look(_END)
        worker.go()
        worker.finish()

    def _write_job(self, descriptor: int, scope: ScopeFiles | None) -> Path:
        ask, arm = self.ask, self.arm
        job = Job(
            files=self.lab.files,
            layers=self.lab.layers,
            k=self.pool.manifest.k,
            experts=self.pool.manifest.experts,
            prompt=ask.prompt,
            tokens=ask.tokens,
            context=ask.context,
            threads=ask.threads,
            load_mode=self.load_mode,
            policy=arm.policy,
            lock_spine=arm.lock_spine,
            capture=ask.capture,
            logits=ask.logits,
            capture_paths=capture_paths(self.pool.devices, scope),
        )
        path = Path(f"/proc/self/fd/{descriptor}")
        job.write(path)
        return path

    def _read_ahead(self) -> int | None:
        seen = {procfs.try_int(f"{one.queue_path}/read_ahead_kb") for one in self.pool.devices}
        return seen.pop() if len(seen) == 1 else None

    def _set_read_ahead(self, stack: ExitStack, journal: Journal) -> None:
        """Set the device's read-ahead for the run: a file takes it over when it is opened."""
        for device in self.pool.devices:
            path, wanted = f"{device.queue_path}/read_ahead_kb", self.arm.read_ahead_kb
            old = procfs.try_int(path)
            if old in {None, wanted}:  # where it cannot be read, the proof says so
                continue
            if not procfs.writable(path):
                raise UnsupportedHostError(
                    f"{device.name} reads {old} KiB ahead, and this user may not change it",
                    f"{wanted} KiB",
                    "run as root",
                )
            token = journal.record("value", path=path, old=str(old), new=str(wanted))
            stack.callback(journal.undo, token)
            procfs.write_text(path, str(wanted))
            if (seen := procfs.read_int(path)) != wanted:
                raise HarnessError(f"{path} reads back {seen}", f"{wanted} as written")

    def _drop(self) -> None:
        """Drop what loading has cached: all of it, or all but a locked spine."""
        if not self.arm.lock_spine:
            self.pool.drop_cache()
            return
        for file in self.pool.manifest.stored_files:
            residency.drop_file(self.pool.root / file.path)

    def _enforce(self, worker: Worker, stack: ExitStack, journal: Journal) -> None:
        if self.arm.read_limit:
            if len(self.pool.devices) != 1:
                raise UnsupportedHostError(
                    f"the model lies on {len(self.pool.devices)} devices", "one device, whose read rate can be limited"
                )
            limit = stack.enter_context(read_limit(self.pool.devices[0], self.arm.read_limit, journal))
            limit.add(worker.pid)
            self.limit = limit.observed()
        if self.enforcer is not None:
            self.enforced = self.enforcer.apply(worker.pid)
            worker.watch = self.enforcer.watch

    def _look(self, gate: str) -> None:
        self.resident[gate] = Resident(self.pool.resident_bytes(), self.pool.spine_resident_bytes())

    def _killed(
        self, killed: WorkerKilledError, at: str, scope: ScopeFiles | None, started: float, seconds: float
    ) -> EngineOomRun | None:
        """Return the run that the wall ended; None where something else killed the worker."""
        if self.enforcer is None or self.enforced is None or self.capacity is None or scope is None:
            return None
        seen = parse(take(capture_paths((), scope), "killed"), (), scope).scope
        if seen is None or not seen.oom_kills:
            return None
        return EngineOomRun(
            arm=self.arm,
            round=self.place[0],
            order=self.place[1],
            started_seconds=started,
            load_mode=self.load_mode,
            capacity_bytes=self.capacity,
            enforced=self.enforced,
            ending=self.enforcer.ending(),
            scope=seen,
            signal=killed.signal,
            at=at,
            tokens=len(self.told.tokens),
            seconds=seconds,
        )

    def _gate(self, name: str, scope: ScopeFiles | None) -> Gate:
        captures = self.told.captures
        if name not in captures or (name != _END and f"{name}:go" not in captures):
            raise HarnessError(f"the worker captured nothing at gate {name!r}", "its counters, before and after")
        go = captures.get(f"{name}:go")
        return Gate(
            counters=parse(captures[name], self.pool.devices, scope),
            go=parse(go, self.pool.devices, scope) if go else None,
            resident=self.resident[name],
        )

    def _result(self, scope: ScopeFiles | None, ending: Ending | None, started: float) -> EngineRun:
        told, manifest, pool = self.told, self.pool.manifest, self.pool
        ready, decode, end = (self._gate(name, scope) for name in GATES)
        assert ready.go is not None and decode.go is not None  # noqa: S101, PT018 - _gate looked
        before, after = self.image_before, self._image()
        loops = tuple(one.dio for gate in (ready, end) for one in gate.counters.devices) if pool.loop else ()
        return EngineRun(
            arm=self.arm,
            round=self.place[0],
            order=self.place[1],
            started_seconds=started,
            facts=self._facts(ready),
            synthetic=manifest.synthetic,
            model=manifest.name,
            expert_bytes=manifest.total_bytes,
            spine_bytes=manifest.spine_bytes,
            capacity_bytes=self.capacity,
            enforced=self.enforced,
            ending=ending,
            read_limit=self.limit,
            load_mode=self.load_mode,
            load_seconds=told.seconds[0],
            prefill_seconds=told.seconds[1],
            decode_seconds=told.seconds[2],
            prompt_tokens=told.prompt_tokens,
            tokens_asked=self.ask.tokens,
            tokens=tuple(told.tokens),
            told_ids=told.ids,
            sha256=told.sha256,
            ready=ready,
            decode=decode,
            end=end,
            prefill=difference(ready.go, decode.counters),
            decoding=difference(decode.go, end.counters),
            anon_bytes=end.counters.process_rss_anon_bytes,
            locked_bytes=told.locked_bytes,
            locked_observed=end.counters.process_vmlck_bytes,
            policy=told.policy,
            dropped=tuple(told.dropped),
            drop_seconds=told.drop_seconds,
            choices=told.choices() if self.ask.capture else None,
            inflight_zero=told.idle_at_gates,
            loop_dio=(bool(loops[0]), bool(loops[-1])) if loops and None not in loops else None,
            image_resident_bytes=None if before is None or after is None else (before, after),
            warnings=tuple(told.warnings),
        )

    def _image(self) -> int | None:
        return None if self.pool.image is None else image_resident_bytes(self.pool.image)

    def _facts(self, ready: Gate) -> EngineFacts:
        told = self.told
        return EngineFacts(
            version=self.lab.version,
            backend=told.backend,
            system_info=told.system_info,
            context=told.context,
            batch=told.batch,
            micro_batch=told.micro_batch,
            vocabulary=told.vocabulary,
            maps=told.maps,
            read_ahead_kb=self.read_ahead_kb,
            damon=damon_running(),
            transparent_huge_pages=ready.counters.thp or "",
            buffers=told.buffers,
        )


def _kills(run: EngineOomRun) -> int | None:
    return run.scope.oom_kills if run.scope else None


def _slabs(pool: OpenPool, layer: int) -> Slabs:
    found = pool.manifest.slabs(layer)
    if found is None:
        raise UnsupportedHostError(
            f"the experts of layer {layer} of {pool.manifest.name} follow no rule in their file",
            "a GGUF with a layer's experts in one tensor each",
            "convert it again with a llama.cpp of this year",
        )
    columns: dict[str, Any] = {
        name: tuple(getattr(one, name) for one in found) for name in ("file", "offset", "stride")
    }
    return Slabs(layer, **columns, length=tuple(one.length for one in found))


def _warm_file(path: Path) -> None:
    """Read a file into the page cache on our own account: the wall is the model's, not the engine's code's."""
    with path.open("rb", buffering=0) as file:
        while file.read(_CHUNK):
            pass


@contextmanager
def opened(model: Path, journal: Journal, *, patience: Patience | None = None) -> Iterator[EngineLab]:
    """Hold a lab for a user's model: a file of it in place, or the folder of its copy in an image.

    Raises:
        InputError: no such model, or not a mixture of experts.
        UnsupportedHostError: no engine, or no device below the model.
    """
    with open_pool(model, journal) as pool:
        if pool.manifest.checkpoint is None or pool.manifest.checkpoint.kind != "gguf":
            raise UnsupportedHostError(
                f"{model} is no GGUF model", "one: the engine reads nothing else", "convert it for llama.cpp"
            )
        yield EngineLab(pool, journal, patience)


@contextmanager
def generated(  # noqa: PLR0913  (what a caller may choose, by keyword)
    shape: ModelShape,
    folder: Path,
    journal: Journal,
    *,
    architecture: str = ARCHITECTURES[0],
    quantisation: str = QUANTISATIONS[0],
    seed: int = 1234,
    store: str = "auto",
    patience: Patience | None = None,
) -> Iterator[EngineLab]:
    """Hold a lab for a generated model, which is gone at the end: on a loop device of its own where there can be one.

    Raises:
        InputError: too little room in the folder.
        UnsupportedHostError: no engine, or no block device below the folder.
    """

    def write(path: Path) -> None:
        write_model(path, shape, architecture=architecture, quantisation=quantisation, seed=seed)

    with (
        temporary_checkpoint(write, folder, journal, store=store) as path,
        opened(path, journal, patience=patience) as lab,
    ):
        yield lab
