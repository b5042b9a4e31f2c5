"""Where kernel files are read and processes are started: this host, or a virtual machine (paper section 4, method).

Everything that enforces, counts and proves asks the current machine; so one implementation of Algorithm 1 serves both.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

IN_A_GUEST = "a virtual machine: --moetier-kernel 6.12, after `moetier guest fetch 6.12`"
"""What runs a cell that this host cannot, in a virtual machine with a kernel of its own."""


@dataclass(frozen=True, slots=True)
class GuestFacts:
    """What a virtual machine was, for the runs that were measured in it.

    Attributes:
        kernel: the word that the user gave (``6.12``, or the label of a path).
        release: ``uname -r`` of what was booted.
        accelerator: ``kvm`` or ``tcg``.
        why: why it is not kvm, "" where it is.
        memory_bytes: RAM of the machine.
        cpus: virtual processors.
        command_line: the kernel's.
        boot_seconds: from the start of the virtual machine until the agent answered.
        settings: what the guest's kernel was found with, by name (``read_ahead_kb``, ``max_sectors_kb``, ``thp``,
            ``min_free_kbytes``, ``filesystem``, ``scheduler``).
    """

    kernel: str
    release: str
    accelerator: str
    why: str
    memory_bytes: int
    cpus: int
    command_line: str
    boot_seconds: float
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def emulated(self) -> bool:
        """Whether its processors are software: wall times then say nothing of hardware."""
        return self.accelerator != "kvm"


class Child(Protocol):
    """A started process: the part of ``subprocess.Popen`` that is used of it."""

    @property
    def pid(self) -> int:
        """Its process id, on its machine."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """Its standard input."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """Its standard output: a pipe of this process."""

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative for a signal, None while it runs or has not been waited for."""

    def poll(self) -> int | None:
        """Return the exit status when it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once it has ended, or raise ``subprocess.TimeoutExpired``."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal."""

    def kill(self) -> None:
        """Send it SIGKILL."""


class Machine(Protocol):
    """A kernel whose files can be read and written, and which runs processes. Every failure is an ``OSError``."""

    @property
    def facts(self) -> GuestFacts | None:
        """What the virtual machine is; None for this host."""

    def read(self, path: str) -> bytes:
        """Return the whole content of a kernel file."""

    def write(self, path: str, content: bytes) -> None:
        """Write to an existing kernel file, in one write."""

    def identity(self, path: str) -> tuple[int, int]:
        """Return (device, inode) of a path."""

    def make_folder(self, path: str) -> None:
        """Make a folder, such as a control group."""

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""

    def writable(self, path: str) -> bool:
        """Return whether this user may write there."""

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a process of this machine."""

    def start(self, argv: Sequence[str], pass_fds: Sequence[int], stderr: IO[bytes]) -> Child:
        """Start a process with pipes; what it writes to standard error goes to ``stderr``, a file of this host."""


class _Host:
    """This host."""

    @property
    def facts(self) -> None:
        return None

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def write(self, path: str, content: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)

    def identity(self, path: str) -> tuple[int, int]:
        found = Path(path).stat()
        return found.st_dev, found.st_ino

    def make_folder(self, path: str) -> None:
        Path(path).mkdir()

    def remove_folder(self, path: str) -> None:
        Path(path).rmdir()

    def writable(self, path: str) -> bool:
        return os.access(path, os.W_OK)

    def signal(self, pid: int, number: int) -> None:
        os.kill(pid, number)

    def start(self, argv: Sequence[str], pass_fds: Sequence[int], stderr: IO[bytes]) -> Child:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            pass_fds=tuple(pass_fds),
            # Ctrl-C reaches us, and we end it: both at once would race for the last lines.
            start_new_session=True,
        )


HOST: Machine = _Host()
_CURRENT: ContextVar[Machine] = ContextVar("moetier_machine", default=HOST)


def current() -> Machine:
    """Return the machine that is asked now."""
    return _CURRENT.get()


@contextmanager
def on(machine: Machine) -> Iterator[Machine]:
    """Ask ``machine`` within the block."""
    token = _CURRENT.set(machine)
    try:
        yield machine
    finally:
        _CURRENT.reset(token)


def error_file() -> IO[bytes]:
    """Return a file for what a child writes to its standard error; gone when it is closed."""
    return tempfile.TemporaryFile()
