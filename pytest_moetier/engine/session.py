"""The worker's process, from its start to its end: gates, bounded waits, and one message when it dies.

The worker holds the engine, whose C code can abort, loop, or be killed for its memory. So it is a process of its own in
a session of its own: Ctrl-C reaches us alone, and we end it. It dies with us: its standard input ends, or its output.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from pytest_moetier.errors import AccountingError, HarnessError, InputError, MoetierError, UnsupportedHostError
from pytest_moetier.host import machine, procfs

Event = Mapping[str, Any]
_KINDS: Mapping[str, type[MoetierError]] = {
    "input": InputError,
    "unsupported": UnsupportedHostError,
    "harness": HarnessError,
}
_WATCH_SECONDS = 0.5
_LOG_LINES = 3
_END_SECONDS = 10.0
_GO = b"go\n"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a worker may say nothing.

    Attributes:
        idle_seconds: while it neither computes nor reads: it hangs.
        silent_seconds: at all: nothing that is asked of it takes as long.
    """

    idle_seconds: float = 60.0
    silent_seconds: float = 1800.0


class WorkerKilledError(HarnessError):
    """A signal ended the worker; ``signal`` is its number."""

    def __init__(self, seen: str, number: int) -> None:
        """Keep the signal beside the message."""
        super().__init__(seen, "a worker that ends by itself", "see dmesg for what ended it, and run it again")
        self.signal = number


def worker_argv(job: Path) -> list[str]:
    """Return the command line of a worker for the job in a file."""
    return [sys.executable, "-m", "pytest_moetier.engine.worker", str(job)]


@dataclass(slots=True)
class _Signs:
    """What shows that a silent process lives: processor time and bytes that it had read, as text."""

    seen: str = ""
    since: float = field(default_factory=time.monotonic)

    def idle_seconds(self, pid: int) -> float:
        """Return how long it has neither computed nor read."""
        times = (procfs.try_text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()[11:13]
        now = " ".join((*times, procfs.try_text(f"/proc/{pid}/io") or ""))
        if now != self.seen:
            self.seen, self.since = now, time.monotonic()
        return time.monotonic() - self.since


class Worker:
    """A started worker; a context manager that leaves nothing of it behind."""

    def __init__(
        self,
        argv: Sequence[str],
        pass_fds: Sequence[int] = (),
        *,
        hear: Callable[[Event], None] = lambda _event: None,
        patience: Patience | None = None,
    ) -> None:
        """Start it on this host.

        Args:
            argv: as ``worker_argv`` says, within what encloses it.
            pass_fds: descriptors that the model's paths lead through.
            hear: told every event as it comes.
            patience: how long it may say nothing.

        Raises:
            HarnessError: it could not be started.
        """
        self._stderr: IO[bytes] = machine.error_file()
        try:
            self._process = machine.HOST.start(argv, pass_fds, self._stderr)
        except OSError as error:
            self._stderr.close()
            raise HarnessError(f"cannot start {argv[0]}: {error}", "a Python that runs the worker") from error
        self._hear = hear
        self._patience = patience or Patience()
        self._buffer = b""
        self.watch: Callable[[], str | None] = lambda: None
        self.at = ""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def __enter__(self) -> Self:
        """Return itself; the process is ended on exit."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, whatever it is doing."""
        self.close()

    def wait_for(self, gate: str) -> None:
        """Return when it waits at a gate.

        Raises:
            MoetierError: it refused, died, or fell silent; ``WorkerKilledError`` where a signal ended it.
            AccountingError: ``watch`` gave a reason.
        """
        for event in self._events():
            if event["event"] == "gate":
                if event.get("at") != gate:
                    raise HarnessError(f"the worker waits at {event.get('at')!r}", f"gate {gate!r}")
                self.at = gate
                return
        self._raise_dead()

    def go(self) -> None:
        """Let it go on from its gate."""
        assert self._process.stdin is not None  # noqa: S101 - opened as a pipe
        with contextlib.suppress(BrokenPipeError):  # a dead worker is reported by how it ended
            self._process.stdin.write(_GO)
            self._process.stdin.flush()

    def finish(self) -> None:
        """Return when it has ended by itself, with its last word said.

        Raises:
            MoetierError: it did not end well.
        """
        done = False
        for event in self._events():
            done = done or event["event"] == "done"
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            code = 0  # its output is closed and its last word said: what it frees is nobody's
        if not done or code:
            self._raise_dead()

    def close(self) -> None:
        """End it: SIGKILL, as it holds nothing that outlives it; reap it and close its pipes."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _events(self) -> Iterator[Event]:
        for line in self._lines():
            try:
                event = json.loads(line)
                name = event["event"]
            except (ValueError, KeyError, TypeError) as error:
                raise HarnessError(f"the worker wrote {line[:120]!r}", "a JSON line with its event") from error
            if name == "error":
                kind = _KINDS.get(event.get("kind"), HarnessError)
                raise kind(*(str(event.get(part, "")) for part in ("seen", "expected", "do")))
            self._hear(event)
            yield event

    def _lines(self) -> Iterator[bytes]:
        assert self._process.stdout is not None  # noqa: S101 - opened as a pipe
        descriptor = self._process.stdout.fileno()
        heard, signs = time.monotonic(), _Signs()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while True:
                head, found, rest = self._buffer.partition(b"\n")
                if found:  # a caller that stops at one line finds the rest again
                    self._buffer = rest
                    yield head
                    continue
                if not selector.select(_WATCH_SECONDS):
                    self._look(time.monotonic() - heard, signs)
                    continue
                chunk = os.read(descriptor, 1 << 16)
                if not chunk:
                    return
                self._buffer += chunk
                heard, signs = time.monotonic(), _Signs()

    def _look(self, silent: float, signs: _Signs) -> None:
        """Raise where the silence is no work, or what surrounds the worker is gone."""
        if reason := self.watch():
            raise AccountingError(
                reason, "the capacity enforced throughout the run", "see what touched it, and measure again"
            )
        idle = signs.idle_seconds(self.pid)
        if idle > self._patience.idle_seconds or silent > self._patience.silent_seconds:
            raise HarnessError(
                f"the worker (pid {self.pid}) said nothing for {silent:.0f} s and did nothing for {idle:.0f} s"
                f"{self._last_words()}",
                "a line a token",
                "look at the model's device (dmesg), and run it again",
            )

    def _raise_dead(self) -> None:
        """Say how it ended before it had said its last word."""
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            raise HarnessError(
                f"the worker (pid {self.pid}) closed its output{self._last_words()}", "its end"
            ) from None
        where = f" after gate {self.at!r}" if self.at else " before its first gate"
        if code < 0:
            name = signal.Signals(-code).name
            raise WorkerKilledError(f"the worker was ended by {name}{where}{self._last_words()}", -code)
        raise HarnessError(
            f"the worker ended with {code}{where}{self._last_words()}", "its last word", "`moetier engine check`"
        )

    def _last_words(self) -> str:
        self._stderr.seek(0)
        said = [line.strip() for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip(". ")]
        return f"; it said last: {' | '.join(said[-_LOG_LINES:])}" if said else ""
