"""The capacity by what is left: anonymous memory locked until MemAvailable is at the target (paper section 4).

The balloon is a process of its own (``moetier-balloon``), which takes the memory of the whole host: a reserve is never
touched, and its watchdog lets everything go when the host gets short.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from pytest_moetier.errors import HarnessError, HostBusyError, UnsupportedHostError
from pytest_moetier.host import procfs
from pytest_moetier.host.machine import IN_A_GUEST, Child, current, error_file
from pytest_moetier.host.memboot import tolerance_bytes
from pytest_moetier.host.restore import Journal
from pytest_moetier.units import PAGE_BYTES, format_bytes

DEFAULT_RESERVE_BYTES = 1 << 30
_ADJUSTMENTS = 4
_SETTLINGS = 10
_ANSWER_SECONDS = 30.0
_LOCK_BYTES_PER_SECOND = 50_000_000  # far below what page clearing takes, under emulation too
_SETTLE_SECONDS = 0.3  # the kernel's free counters are folded from per-CPU ones every second or so
_CLOSE_SECONDS = 5.0
_DRIFT_TOLERANCES = 8  # an adjustment beyond these is someone else's memory, not the balloon's own error
_DRIFT_BYTES = 512 << 20


class Balloon:
    """A running balloon; a context manager.

    Attributes:
        pid: of the process.
        requested_bytes: what was last asked for, in whole pages.
    """

    def __init__(self, process: Child, stderr: IO[bytes], requested_bytes: int, journal: Journal | None) -> None:
        """Own a started process and the file of its errors, and read its lines."""
        self.pid = process.pid
        self.requested_bytes = requested_bytes
        self._process = process
        self._stderr = stderr
        self._journal = journal
        self._released: str | None = None
        self._vmlck_bytes = 0
        self._answers: queue.Queue[Mapping[str, object] | None] = queue.Queue()
        found = procfs.process_id(process.pid)
        self._token = ""
        if journal is not None and found is not None:
            self._token = journal.record("process", pid=found.pid, start_ticks=found.start_ticks, comm=found.comm)
        threading.Thread(target=self._read, name="moetier-balloon", daemon=True).start()

    @classmethod
    def start(
        cls,
        executable: Path,
        size_bytes: int,
        reserve_bytes: int = DEFAULT_RESERVE_BYTES,
        journal: Journal | None = None,
    ) -> Balloon:
        """Start a balloon and wait until ``size_bytes`` are touched and locked.

        Raises:
            HarnessError: it does not answer, or ended for a reason of its own.
            UnsupportedHostError: it cannot run here (exit 77), or may not lock so much (exit 3, its own message).
        """
        size_bytes = _whole_pages(size_bytes)
        command = [str(executable), str(size_bytes), "--reserve", str(reserve_bytes)]
        stderr = error_file()
        balloon = cls(current().start(command, (), stderr), stderr, size_bytes, journal)
        try:
            balloon._locked(size_bytes)
        except BaseException:
            balloon.close()
            raise
        return balloon

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Let go."""
        self.close()

    @property
    def locked_bytes(self) -> int:
        """VmLck of the process now, in bytes; 0 when it has ended."""
        status = procfs.parse_status(procfs.try_text(f"/proc/{self.pid}/status") or "")
        return (status.vmlck_bytes or 0) if self.alive() else 0

    @property
    def reported_bytes(self) -> int:
        """VmLck as the process itself last reported it, in bytes."""
        return self._vmlck_bytes

    @property
    def released_reason(self) -> str | None:
        """Why the watchdog let go, or None."""
        return self._released

    def alive(self) -> bool:
        """Return whether the process runs and holds its memory."""
        return self._released is None and self._process.poll() is None

    def resize(self, size_bytes: int) -> int:
        """Grow or shrink to ``size_bytes`` (whole pages) and return VmLck in bytes as reported.

        Raises:
            HarnessError: it ended, could not lock more, or does not answer.
        """
        size_bytes = _whole_pages(size_bytes)
        self.requested_bytes = size_bytes
        self._send(f"resize {size_bytes}")
        return self._locked(size_bytes)

    def status(self) -> Mapping[str, object]:
        """Return the balloon's own ``status`` event (bytes, vmlck_bytes, mem_available_bytes, late_heartbeats).

        Raises:
            HarnessError: it ended or does not answer.
        """
        self._send("status")
        return self._answer("status", _ANSWER_SECONDS)

    def close(self) -> None:
        """Release the memory and wait for the end; killed if it does not come."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_CLOSE_SECONDS)
        self._stderr.close()
        if self._journal is not None:
            self._journal.done(self._token)

    def _send(self, line: str) -> None:
        try:
            if self._process.stdin is None:
                raise BrokenPipeError
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise self._ended() from error

    def _locked(self, size_bytes: int) -> int:
        event = self._answer("locked", _ANSWER_SECONDS + size_bytes / _LOCK_BYTES_PER_SECOND)
        self._vmlck_bytes = int(str(event.get("vmlck_bytes", 0)))
        if self._vmlck_bytes < size_bytes:
            raise HarnessError(
                f"the balloon locked {format_bytes(self._vmlck_bytes, binary=True)}",
                f"{format_bytes(size_bytes, binary=True)}",
                "raise RLIMIT_MEMLOCK: ulimit -l unlimited",
            )
        return self._vmlck_bytes

    def _answer(self, kind: str, timeout_seconds: float) -> Mapping[str, object]:
        until = time.monotonic() + timeout_seconds
        while (left := until - time.monotonic()) > 0:
            try:
                event = self._answers.get(timeout=left)
            except queue.Empty:
                break
            if event is None:
                raise self._ended()
            if event.get("event") == kind:
                return event
        raise HarnessError(f"the balloon gave no {kind!r} line in {timeout_seconds:.0f} s", "one JSON line")

    def _ended(self) -> HarnessError | UnsupportedHostError:
        if self._released is not None:
            return HarnessError(f"the balloon let go: {self._released}", "it to hold", "leave more memory free")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_SECONDS)
        code = self._process.returncode
        words = ""
        with suppress(ValueError):  # closed: it was let go
            self._stderr.seek(0)
            words = " ".join(self._stderr.read().decode(errors="replace").split())
        if code == 77:
            return UnsupportedHostError(f"the balloon cannot run here: {words}", "Linux with mlock")
        if code == 3:
            do = "raise RLIMIT_MEMLOCK (ulimit -l unlimited, or LimitMEMLOCK=infinity), or run as root"
            return UnsupportedHostError(f"the balloon could not lock its memory: {words}", "mlock to succeed", do)
        return HarnessError(f"the balloon ended with exit status {code}: {words}", "it to hold its memory")

    def _read(self) -> None:
        if self._process.stdout is None:
            return
        for line in self._process.stdout:
            with suppress(ValueError):
                event = json.loads(line)
                if not isinstance(event, dict):
                    continue
                if event.get("event") == "released":
                    self._released = str(event.get("why", "no reason given"))
                self._answers.put(event)
        self._answers.put(None)


def mem_available_bytes() -> int:
    """Return MemAvailable in bytes.

    Raises:
        UnsupportedHostError: the kernel does not give it (before 3.14).
    """
    mem = procfs.parse_meminfo(procfs.read_text("/proc/meminfo"))
    if "MemAvailable" not in mem:
        raise UnsupportedHostError("/proc/meminfo has no MemAvailable", "Linux 3.14 or newer")
    return mem["MemAvailable"]


def check_target(target_available_bytes: int, reserve_bytes: int = DEFAULT_RESERVE_BYTES) -> int:
    """Return the bytes to lock for MemAvailable to be at the target.

    Raises:
        UnsupportedHostError: the target is below the reserve, or above what is available now.
    """
    available = mem_available_bytes()
    if target_available_bytes < reserve_bytes:
        raise UnsupportedHostError(
            f"a balloon would leave the host {format_bytes(target_available_bytes, binary=True)}",
            f"at least the reserve of {format_bytes(reserve_bytes, binary=True)}",
            f"run it where no other process needs memory, in {IN_A_GUEST}",
        )
    if target_available_bytes > available:
        raise UnsupportedHostError(
            f"MemAvailable is {format_bytes(available, binary=True)}",
            f"more than the capacity of {format_bytes(target_available_bytes, binary=True)}",
            "free memory, or choose a smaller capacity",
        )
    return available - target_available_bytes


def inflate_to(
    executable: Path,
    target_available_bytes: int,
    reserve_bytes: int = DEFAULT_RESERVE_BYTES,
    tolerance: int | None = None,
    journal: Journal | None = None,
) -> Balloon:
    """Lock memory until MemAvailable is at the target within ``tolerance`` bytes (default max(2%, 16 MiB)).

    Start it after the replayer has touched its destinations, so that they are not counted as cache.

    Raises:
        UnsupportedHostError: the target is below the reserve, or above what is available.
        HarnessError: mlock failed, or the target is not met in four adjustments.
        HostBusyError: others allocate or free memory meanwhile, by more than max(8 tolerances, 512 MiB).
    """
    allowed = tolerance_bytes(target_available_bytes) if tolerance is None else tolerance
    check_target(target_available_bytes, reserve_bytes)
    _settle(allowed)
    balloon = Balloon.start(executable, check_target(target_available_bytes, reserve_bytes), reserve_bytes, journal)
    try:
        _adjust(balloon, target_available_bytes, allowed)
    except BaseException:
        balloon.close()
        raise
    return balloon


def _settle(allowed: int) -> None:
    """Wait, a few seconds at most, until MemAvailable holds still.

    What has just been freed comes back by and by, and a virtual machine that hands free pages to its host takes
    hundreds of MiB out of the free lists for a moment.
    """
    before = mem_available_bytes()
    for _ in range(_SETTLINGS):
        time.sleep(_SETTLE_SECONDS)
        now = mem_available_bytes()
        if abs(now - before) <= allowed // 4:
            return
        before = now


def _adjust(balloon: Balloon, target_available_bytes: int, allowed: int) -> None:
    first = balloon.requested_bytes
    for _ in range(_ADJUSTMENTS):
        time.sleep(_SETTLE_SECONDS)
        off = mem_available_bytes() - target_available_bytes
        if abs(off) <= allowed // 4:
            return
        drift = abs(balloon.requested_bytes + off - first)
        if drift > max(_DRIFT_TOLERANCES * allowed, _DRIFT_BYTES):
            raise HostBusyError(
                f"MemAvailable moved by {format_bytes(drift, binary=True)} while the balloon was inflated",
                "a host whose other processes hold still: chasing them could take memory that they need",
                "end what allocates or frees memory beside the run",
            )
        balloon.resize(max(balloon.requested_bytes + off, PAGE_BYTES))
    time.sleep(_SETTLE_SECONDS)
    off = mem_available_bytes() - target_available_bytes
    if abs(off) > allowed:
        raise HarnessError(
            f"MemAvailable is off its target by {format_bytes(off, binary=True)} after {_ADJUSTMENTS} adjustments",
            f"within {format_bytes(allowed, binary=True)}",
            "end what allocates memory beside the run",
        )


def _whole_pages(size_bytes: int) -> int:
    return max(-(-size_bytes // PAGE_BYTES), 1) * PAGE_BYTES
