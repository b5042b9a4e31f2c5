"""Driving ``moetier-replay``: its command line, its JSON lines as typed records, and its end (paper section 4, method).

The native process does the timing and the capturing; nothing here is on the measured path. The same lines come back
from a machine without Python, so everything after this module is one implementation for every lane.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, Self, TypeVar

import orjson

from pytest_moetier.errors import AccountingError, HarnessError, InputError, UnsupportedHostError
from pytest_moetier.host import machine
from pytest_moetier.host.snapshot import Capture
from pytest_moetier.native import executable

_Record = TypeVar("_Record")

SILENCE_SECONDS = 180.0
"""A replayer that says nothing for this long is taken for hung; one iteration never takes that long."""

_WATCH_SECONDS = 0.5
_EXIT_USAGE = 2
_EXIT_MLOCK = 3
_EXIT_UNSUPPORTED = 77


class KilledError(AccountingError):
    """The replayer was killed in the middle of a run.

    Attributes:
        signal: the number of the signal.
        iterations: the iterations it had finished, of all passes.
        seconds: their wall seconds.
    """

    def __init__(self, seen: str, signal_number: int, finished: Sequence[Iteration]) -> None:
        """Say how it ended, and how far it had come."""
        super().__init__(seen, "a replay that reaches its end", "see dmesg for an out-of-memory kill, and run it again")
        self.signal = signal_number
        self.iterations = len(finished)
        self.seconds = sum(one.wall_seconds for one in finished)


@dataclass(frozen=True, slots=True)
class Start:
    """What the replayer says of itself before it reads anything."""

    version: str
    pid: int
    threads: int
    destinations: int
    destination_bytes: int
    copy: str
    residency_probe: str
    probe_note: str
    spine_bytes: int


@dataclass(frozen=True, slots=True)
class Own:
    """The memory of its own that a mode took before the first pass: a locked arena, or a user-space cache.

    Attributes:
        kind: ``arena`` or ``user_cache``.
        asked_bytes: what it was allowed.
        held_bytes: bytes of the experts in the arena, or of the cache's slabs.
        mapped_bytes: the same in whole pages: what is locked, or touched.
        places: experts in the arena, or slabs.
        preload_bytes: delivered into the arena before the first pass.
        preload_device_bytes: what the devices read for that; None where they cannot be counted.
        preload_seconds: what that took.
    """

    kind: str
    asked_bytes: int
    held_bytes: int
    mapped_bytes: int
    places: int
    preload_bytes: int
    preload_device_bytes: int | None
    preload_seconds: float


@dataclass(frozen=True, slots=True)
class Ready:
    """What the replayer holds when it waits for its start.

    Attributes:
        rss_anon_bytes: anonymous memory.
        budgeted_bytes: of that, what the capacity is to pay for: an arena or a user-space cache.
        locked_bytes: what it asked to lock: an arena, a spine.
    """

    rss_anon_bytes: int
    budgeted_bytes: int
    locked_bytes: int


@dataclass(frozen=True, slots=True)
class Prefetched:
    """What the prefetch worker did in one pass.

    ``submitted`` lists are ``completed``, ``overwritten`` in the slot before the worker took them, or ``pending`` at
    the pass's end. ``asked_bytes`` are those of the experts it came to, of which ``resident_before_bytes`` were in the
    page cache already and ``became_resident_bytes`` were brought there by the call (paper section 7).
    """

    submitted: int
    overwritten: int
    completed: int
    pending: int
    experts: int
    asked_bytes: int
    resident_before_bytes: int
    became_resident_bytes: int
    read_bytes: int


@dataclass(frozen=True, slots=True)
class Iteration:
    """One engine iteration: wall in seconds of CLOCK_MONOTONIC, bytes delivered, bytes that the devices read for it.

    ``index`` is the plan's, also where a pass replays only the plan's end.
    """

    index: int
    wall_seconds: float
    bytes: int
    accesses: int
    hit_bytes: int | None
    held_bytes: int | None
    device_read_bytes: int | None
    process_read_bytes: int | None
    major_faults: int


@dataclass(frozen=True, slots=True)
class Residency:
    """Bytes of the pool that were in the page cache at one moment (``at``: entry, sample or exit)."""

    at: str
    iteration: int
    resident_bytes: int
    pool_bytes: int
    cost_seconds: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Raw text of kernel files between two iterations.

    Attributes:
        iteration: the iteration of the plan that comes next; the plan's number of them at the exit.
        clock_seconds: CLOCK_MONOTONIC, as in a capture.
        files: text by path; None where it could not be read.
    """

    iteration: int
    clock_seconds: float
    files: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Folios:
    """In which sizes of folios the pool's resident pages were held at a pass's exit, of the part that was looked at.

    Attributes:
        bytes_by_order: resident bytes in folios of 2**order pages, from order 0 on; empty: nothing is known.
        unknown_bytes: resident bytes of which the kernel does not say it (only root may ask).
        files: files of the plan.
        files_looked_at: those of them that have a part in this.
        pool_bytes: their size.
        looked_at_bytes: what was looked at, resident or not: pieces spread evenly over the pool.
        note: why bytes are unknown, "" where none are.
        cost_seconds: what it took, after the pass.
    """

    bytes_by_order: tuple[int, ...]
    unknown_bytes: int
    files: int
    files_looked_at: int
    pool_bytes: int
    looked_at_bytes: int
    note: str
    cost_seconds: float


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the plan, as the replayer reported it; ``entry`` and ``exit`` are raw, at loop entry and exit.

    ``hit_bytes`` were in the page cache before their read, ``held_bytes`` in the mode's own memory (None: it has none).
    Where asked for, ``resident_by_expert`` is what was in the page cache of each expert of the plan at the exit,
    ``samples`` are raw texts between iterations, ``folios`` tells how the pool's pages were held at the exit.
    """

    name: str
    iterations: tuple[Iteration, ...]
    residencies: tuple[Residency, ...]
    entry: Capture
    exit: Capture
    inflight_zero: bool
    wall_seconds: float
    elapsed_seconds: float
    bookkeeping_seconds: float
    bytes: int
    accesses: int
    stamps_checked: int
    hit_bytes: int | None
    hit_accesses: int | None
    held_bytes: int | None
    held_accesses: int | None
    major_faults: int
    minor_faults: int
    user_seconds: float
    system_seconds: float
    compute_seconds: float | None
    spine_bytes: int
    prefetch: Prefetched | None
    resident_by_expert: tuple[int, ...] = ()
    samples: tuple[Sample, ...] = ()
    folios: Folios | None = None

    @property
    def seconds_per_iteration(self) -> float:
        """Mean wall seconds of an iteration."""
        return self.wall_seconds / len(self.iterations)

    def residency_at(self, at: str) -> int | None:
        """Return the pool's resident bytes at ``entry`` or ``exit``, or None when they were not observed."""
        return next((one.resident_bytes for one in self.residencies if one.at == at), None)


@dataclass(frozen=True, slots=True)
class ReplayOutput:
    """Everything that one replayer process reported."""

    start: Start
    own: Own | None
    ready: Ready
    passes: tuple[Pass, ...]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a plan is replayed.

    Attributes:
        mode: where a hit's bytes come from.
        threads: reader threads.
        passes: names of the passes, in order, all in one process.
        destinations: page-aligned buffers, one copy per access into them.
        stamps: ``full``, ``ends`` or ``none``.
        hits: ``none``, ``cachestat``, ``mincore`` or ``auto``.
        residency_samples: whole-pool residency samples inside each pass.
        captures: files captured raw at entry and exit of each pass.
        device_stats: block-device ``stat`` files read at each iteration.
        inflight: block-device ``inflight`` files waited for before a capture.
        warm_mode: how every pass but the last reads; "": as ``mode``.
        chunk_bytes: the most that one pread asks for; 0: a whole expert.
        warm_chunk_bytes: likewise in every pass but the last; None: as in the last.
        own_bytes: size of the arena or user-space cache of a mode that has one.
        table: the list file of what the arena holds.
        spine: file of dense weights below the pool's root; "": none.
        spine_lock: lock it.
        prefetch: ``none``, ``fadvise`` or ``blocking``.
        advice: the list file of what is read ahead.
        prefetch_chunk: bytes of one hint; the kernel caps one to the device's read-ahead.
        compute_seconds: a compute phase at the end of every iteration; 0: none.
        experts_exit: passes at whose exit every expert's residency is reported.
        warm_iterations: every pass but the last replays only the plan's last so many iterations; 0: all. Exact LRU ends
            with the same content as long as these read its capacity. Advice for what is left out is not given.
        samples: files read raw between iterations of ``sample_passes``, and at their exit.
        sample_every: before each so many-th iteration, the first included.
        sample_passes: empty: the last.
        folios_exit: passes at whose exit the sizes of the pool's folios are reported.
    """

    mode: str = "page_cache"
    threads: int = 2
    passes: tuple[str, ...] = ("warm", "measured")
    destinations: int = 64
    stamps: str = "full"
    hits: str = "auto"
    hits_passes: tuple[str, ...] = ("measured",)
    residency_samples: int = 8
    captures: tuple[str, ...] = ()
    device_stats: tuple[str, ...] = ()
    inflight: tuple[str, ...] = ()
    warm_mode: str = ""
    chunk_bytes: int = 0
    warm_chunk_bytes: int | None = None
    own_bytes: int = 0
    table: Path | None = None
    spine: str = ""
    spine_lock: bool = False
    prefetch: str = "none"
    advice: Path | None = None
    prefetch_chunk: int = 0
    compute_seconds: float = 0.0
    compute_threads: int = 1
    experts_exit: tuple[str, ...] = ("measured",)
    warm_iterations: int = 0
    samples: tuple[str, ...] = ()
    sample_every: int = 1
    sample_passes: tuple[str, ...] = ()
    folios_exit: tuple[str, ...] = ()

    def argv(self, plan: Path, root: Path, program: str | None = None) -> list[str]:
        """Return the command line of ``moetier-replay`` for ``plan`` on the pool at ``root``.

        Args:
            plan: the plan file, as the process will find it.
            root: the pool's folder, likewise.
            program: path of the executable; None: the installed one.
        """
        words = [program or str(executable("moetier-replay")), str(plan), "--root", str(root), "--wait"]
        words += ["--mode", self.mode, "--threads", str(self.threads), "--passes", ",".join(self.passes)]
        words += ["--destinations", str(max(self.destinations, self.threads)), "--stamps", self.stamps]
        words += ["--hits", self.hits, "--hits-passes", ",".join(self.hits_passes)]
        words += ["--residency-samples", str(self.residency_samples)]
        words += [word for flag, value in self._further() if value for word in (flag, str(value))]
        words += ["--spine-lock"] if self.spine_lock else []
        words += [] if self.warm_chunk_bytes is None else ["--warm-chunk-bytes", str(self.warm_chunk_bytes)]
        for flag, paths in (
            ("--capture", self.captures),
            ("--sample", self.samples),
            ("--device-stat", self.device_stats),
            ("--inflight", self.inflight),
        ):
            words += [word for path in paths for word in (flag, path)]
        return words

    def _further(self) -> Iterator[tuple[str, object]]:
        """Yield the options that are left out at their default, each with its value."""
        yield "--warm-mode", self.warm_mode
        yield "--chunk-bytes", self.chunk_bytes
        yield "--own-bytes", self.own_bytes
        yield "--table", self.table
        yield "--spine", self.spine
        yield "--experts-exit", ",".join(self.experts_exit)
        yield "--folios-exit", ",".join(self.folios_exit)
        yield "--warm-iterations", self.warm_iterations
        if self.samples:
            yield "--sample-every", self.sample_every
            yield "--sample-passes", ",".join(self.sample_passes)
        if self.prefetch != "none":
            yield "--prefetch", self.prefetch
            yield "--advice", self.advice
            yield "--prefetch-chunk", self.prefetch_chunk
        if self.compute_seconds:
            yield "--compute-seconds", self.compute_seconds
            yield "--compute-threads", self.compute_threads


class Replayer:
    """A started ``moetier-replay``: waits at ``ready``, then is told to go.

    A context manager: on any exit the process is ended and reaped.
    """

    def __init__(self, argv: Sequence[str], pass_fds: Sequence[int]) -> None:
        """Start the process on the current machine; it stops by itself before its first read and waits for :meth:`go`.

        Raises:
            HarnessError: the process could not be started or died before it was ready.
        """
        self._stderr: IO[bytes] = machine.error_file()
        try:
            self._process = machine.current().start(argv, pass_fds, self._stderr)
        except OSError as error:
            self._stderr.close()
            raise HarnessError(f"cannot start {argv[0]}: {error}", "a runnable moetier-replay") from error
        self._buffer = b""
        self._watch: Callable[[], str | None] = lambda: None
        self._watch_seconds = _WATCH_SECONDS
        self._passes: _PassReader | None = None
        try:
            self.own: Own | None = None
            self.start = _start(self._until("start"))
            self.ready = _named(Ready, self._until("ready"))
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the replayer."""
        return self._process.pid

    def __enter__(self) -> Self:
        """Return self; the process is ended on exit."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, whatever it is doing."""
        self.close()

    def go(
        self,
        watch: Callable[[], str | None] | None = None,
        progress: Callable[[str, int], None] | None = None,
        watch_seconds: float = _WATCH_SECONDS,
    ) -> ReplayOutput:
        """Let the replay run to its end and return what it reported.

        Args:
            watch: asked now and then; a text means that the run can no longer be accounted for.
            progress: called with the pass's name and the number of finished iterations.
            watch_seconds: how long ``watch`` is not asked again.

        Raises:
            AccountingError: ``watch`` gave a reason, the replay was cut short, or a byte was wrong.
            HarnessError: the process died or fell silent.
        """
        self._watch = watch or self._watch
        self._watch_seconds = watch_seconds
        assert self._process.stdin is not None  # noqa: S101 - opened as a pipe above
        with contextlib.suppress(BrokenPipeError):  # a dead child is reported by what it wrote, below
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()
        passes = self._passes = _PassReader(progress or (lambda _name, _index: None))
        for event in self._events():
            if event["event"] == "end":
                break
            passes.take(event)
        if passes.cut_short:
            raise AccountingError(passes.cut_short, "the whole plan", "see dmesg for what ended it, and measure again")
        return ReplayOutput(self.start, self.own, self.ready, tuple(passes.done))

    def close(self) -> None:
        """End the process: SIGTERM, a short wait, SIGKILL; then reap it and close its pipes."""
        process = self._process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in (process.stdin, process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _until(self, name: str) -> dict[str, Any]:
        for event in self._events():
            if event["event"] == name:
                return event
        raise HarnessError(f"the replayer ended before its {name!r} line", "a whole protocol")

    def _events(self) -> Iterator[dict[str, Any]]:
        """Yield the process's events; raise for an error event, a death or a silence."""
        for line in self._lines():
            try:
                event: dict[str, Any] = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise HarnessError(f"the replayer wrote {line[:120]!r}", "a JSON line") from error
            if event["event"] == "error":
                self._raise_reported(event)
            elif event["event"] == "own":
                self.own = _own(event)
            yield event
        self._raise_dead()

    def _lines(self) -> Iterator[bytes]:
        assert self._process.stdout is not None  # noqa: S101 - opened as a pipe above
        descriptor = self._process.stdout.fileno()
        heard = watched = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while True:
                head, found, rest = self._buffer.partition(b"\n")
                if found:
                    self._buffer = rest
                    yield head
                    continue
                if time.monotonic() - watched > self._watch_seconds:
                    watched = time.monotonic()
                    if reason := self._watch():
                        raise AccountingError(
                            reason,
                            "the capacity enforced throughout the run",
                            "see what touched it (dmesg, other root sessions), and measure the cell again",
                        )
                if selector.select(self._watch_seconds):
                    chunk = os.read(descriptor, 1 << 16)
                    if not chunk:
                        return
                    self._buffer += chunk
                    heard = time.monotonic()
                elif time.monotonic() - heard > SILENCE_SECONDS:
                    raise HarnessError(
                        f"the replayer (pid {self.pid}) said nothing for {SILENCE_SECONDS:.0f} s",
                        "a line per iteration",
                        "look at the pool's device (dmesg) and run the cell again",
                    )

    def _raise_reported(self, event: dict[str, Any]) -> None:
        """Turn the replayer's own error event into the exception of its kind."""
        message = str(event.get("message", "unknown error"))
        self._process.wait(timeout=30)
        if self._process.returncode == _EXIT_UNSUPPORTED:
            raise UnsupportedHostError(message)
        if self._process.returncode == _EXIT_USAGE:
            raise InputError(message)
        if self._process.returncode == _EXIT_MLOCK:
            seen, _, _ = message.partition("; run as root")  # its own advice
            raise UnsupportedHostError(
                seen, "memory that may be locked", "raise RLIMIT_MEMLOCK (`ulimit -l unlimited`), or be root"
            )
        if event.get("code") == "memory":
            raise UnsupportedHostError(message, "memory for it", "free some, or measure a smaller --moetier-capacity")
        if event.get("code") in {"stamp_mismatch", "short_read", "sigbus", "open", "read"}:
            raise AccountingError(
                message, "every planned byte, as the pool was written", "moetier pool check --full POOL"
            )
        raise HarnessError(message)

    def _raise_dead(self) -> None:
        """Say how the process ended when its lines stopped before ``end``."""
        code = self._process.wait(timeout=30)
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip().splitlines()
        last = f": {said[-1]}" if said else ""
        if code == _EXIT_USAGE:
            raise InputError(f"the replayer refused its input{last}")
        if code < 0:
            seen = f"the replayer was killed by {signal.Signals(-code).name} in the middle of the run{last}"
            raise KilledError(seen, -code, self._passes.finished if self._passes else ())
        raise AccountingError(
            f"the replayer exited with {code} in the middle of the run{last}",
            "a replay that reaches its end",
            "see dmesg for an out-of-memory kill, and run the cell again",
        )


def _start(event: dict[str, Any]) -> Start:
    return _named(Start, event)


def _named(kind: type[_Record], event: dict[str, Any]) -> _Record:
    """Return the record whose fields are the event's own of these names."""
    return kind(**{one.name: event[one.name] for one in fields(kind)})  # type: ignore[arg-type]


def _own(event: dict[str, Any]) -> Own:
    devices = event["preload_device_bytes"]
    known = bool(devices) and None not in devices
    return Own(
        kind=event["kind"],
        asked_bytes=event["asked_bytes"],
        held_bytes=event["held_bytes"],
        mapped_bytes=event["mapped_bytes"],
        places=event["experts"] if event["kind"] == "arena" else event["slabs"],
        preload_bytes=event["preload_bytes"],
        preload_device_bytes=sum(devices) if known else None,
        preload_seconds=event["preload_seconds"],
    )


class _PassReader:
    """Collects events into passes."""

    def __init__(self, progress: Callable[[str, int], None]) -> None:
        self.done: list[Pass] = []
        self.finished: list[Iteration] = []
        self.cut_short = ""
        self._progress = progress
        self._reset()

    def _reset(self) -> None:
        self._iterations: list[Iteration] = []
        self._residencies: list[Residency] = []
        self._captures: dict[str, Capture] = {}
        self._inflight_zero = True
        self._experts: tuple[int, ...] = ()
        self._samples: list[Sample] = []
        self._folios: Folios | None = None

    def take(self, event: dict[str, Any]) -> None:
        """Add one event to the pass under way."""
        match event["event"]:
            case "iteration":
                self._iterations.append(_iteration(event))
                self.finished.append(self._iterations[-1])
                self._progress(event["pass"], len(self._iterations))
            case "residency":
                self._residencies.append(Residency(**{name: event[name] for name in Residency.__dataclass_fields__}))
            case "capture":
                self._captures[str(event["at"]).rpartition(":")[2]] = Capture.from_event(event)
                self._inflight_zero = self._inflight_zero and event.get("inflight_zero") is not False
            case "sample":
                files = {row["path"]: row.get("text") for row in event["files"]}
                self._samples.append(Sample(event["iteration"], event["clock_seconds"], files))
            case "folios":
                self._folios = _named(Folios, {**event, "bytes_by_order": tuple(event["bytes_by_order"])})
            case "experts":
                self._experts = tuple(event["resident_bytes"])
            case "pass" if event["partial"]:  # an error event may follow and say why
                self.cut_short = f"pass {event['pass']!r} ended after {event['iterations']} iterations (partial)"
            case "pass":
                self.done.append(self._finish(event))
                self._reset()

    def _finish(self, event: dict[str, Any]) -> Pass:
        return Pass(
            name=event["pass"],
            iterations=tuple(self._iterations),
            residencies=tuple(self._residencies),
            entry=self._captures["entry"],
            exit=self._captures["exit"],
            inflight_zero=self._inflight_zero,
            prefetch=None if event["prefetch"] is None else _named(Prefetched, event["prefetch"]),
            resident_by_expert=self._experts,
            samples=tuple(self._samples),
            folios=self._folios,
            **{
                name: event[name]
                for name in (
                    "wall_seconds",
                    "elapsed_seconds",
                    "bookkeeping_seconds",
                    "bytes",
                    "accesses",
                    "stamps_checked",
                    "hit_bytes",
                    "hit_accesses",
                    "held_bytes",
                    "held_accesses",
                    "major_faults",
                    "minor_faults",
                    "user_seconds",
                    "system_seconds",
                    "compute_seconds",
                    "spine_bytes",
                )
            },
        )


def _iteration(event: dict[str, Any]) -> Iteration:
    devices = event["device_read_bytes"]
    return Iteration(
        index=event["index"],
        wall_seconds=event["wall_seconds"],
        bytes=event["bytes"],
        accesses=event["accesses"],
        hit_bytes=event["hit_bytes"],
        held_bytes=event["held_bytes"],
        major_faults=event["major_faults"],
        device_read_bytes=sum(devices) if devices else None,
        process_read_bytes=event["process_read_bytes"],
    )
