"""A virtual machine as a machine whose kernel is asked and whose processes are started through an agent in it.

The agent (``moetier-agent``) answers on a port of virtio or a serial one. A frame is a line ``TAG VERB N`` and N bytes.
What enforces, counts and proves on this host runs unchanged, with this machine as the current one; no Python is in
the guest.
"""

from __future__ import annotations

import itertools
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from io import RawIOBase
from pathlib import Path
from typing import IO, BinaryIO, cast

from pytest_moetier.errors import HarnessError, UnsupportedHostError
from pytest_moetier.host import qemu
from pytest_moetier.host.initramfs import FAILED, join_archives
from pytest_moetier.host.machine import GuestFacts, on
from pytest_moetier.host.qemu import KVM, TCG, GuestError, MachineSpec, Qemu
from pytest_moetier.host.restore import Journal

ANSWER_SECONDS = 60.0
"""A machine that does not answer for this long is taken for hung; an answer takes milliseconds."""
_POLL_SECONDS = 0.05
_FIRST_WORD_SECONDS = 15.0
POOL = "/pool"
"""Where the guest mounts the pool."""
_BUSY = "run the cell again, or see `moetier guest check KERNEL`"
_SETTINGS = {
    "read_ahead_kb": "/sys/block/vda/queue/read_ahead_kb",
    "max_sectors_kb": "/sys/block/vda/queue/max_sectors_kb",
    "scheduler": "/sys/block/vda/queue/scheduler",
    "thp": "/sys/kernel/mm/transparent_hugepage/enabled",
    "min_free_kbytes": "/proc/sys/vm/min_free_kbytes",
    "percpu_pagelist_high_fraction": "/proc/sys/vm/percpu_pagelist_high_fraction",
    "lru_gen_min_ttl_ms": "/sys/kernel/mm/lru_gen/min_ttl_ms",
}


class _Input(RawIOBase):
    """A child's standard input: every write becomes a frame."""

    def __init__(self, machine: GuestMachine, pid: int) -> None:
        super().__init__()
        self._machine, self._pid = machine, pid

    def writable(self) -> bool:
        return True

    def write(self, content: object) -> int:
        data = bytes(cast("bytes", content))
        try:
            self._machine.ask("input", str(self._pid).encode(), data)
        except ProcessLookupError as error:
            raise BrokenPipeError from error
        return len(data)

    def close(self) -> None:
        if not self.closed:
            with suppress(OSError, HarnessError):
                self._machine.ask("eof", str(self._pid).encode())
        super().close()


class GuestChild:
    """A process in the virtual machine; the part of ``subprocess.Popen`` that is used.

    Attributes:
        pid: in the guest.
        stdin: its standard input.
        stdout: a pipe of this process, from which its output is read.
        returncode: as Popen's.
    """

    def __init__(self, machine: GuestMachine, pid: int, stderr: IO[bytes]) -> None:
        """Own a process that the agent has just started."""
        self.pid = pid
        self.stdin: IO[bytes] | None = cast("IO[bytes]", _Input(machine, pid))
        reading, writing = os.pipe()
        self.stdout: IO[bytes] | None = os.fdopen(reading, "rb", buffering=0)
        self.returncode: int | None = None
        self._machine, self._stderr, self._writing = machine, stderr, writing
        self._output: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._code: int | None = None
        # A pipe holds 64 KiB, and the port's reader must never wait for who reads this child.
        threading.Thread(target=self._pump, name=f"moetier-guest-{pid}", daemon=True).start()

    def take(self, verb: str, content: bytes) -> None:
        """Take one frame of the agent's about this process."""
        if verb == "out":
            self._output.put(content)
        elif verb == "errout":
            with suppress(ValueError):  # its file is closed: nobody asks any more
                self._stderr.write(content)
                self._stderr.flush()
        elif verb == "end":
            how, _, number = content.decode().partition(" ")
            self._finish(-int(number) if how == "killed" else int(number))

    def lose(self) -> None:
        """Take the loss of the machine for the end of the process."""
        self._finish(-int(signal.SIGKILL))

    def _finish(self, code: int) -> None:
        if self._code is None:
            self._code = code
            self._output.put(None)
            self._ended.set()

    def _pump(self) -> None:
        with suppress(OSError):  # whoever read it is gone
            while (content := self._output.get()) is not None:
                view = memoryview(content)
                while view:
                    view = view[os.write(self._writing, view) :]
        os.close(self._writing)

    def poll(self) -> int | None:
        """Return the exit status when it has ended."""
        if self._ended.is_set():
            self.returncode = self._code
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once it has ended.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid} of the guest", timeout or 0.0)
        self.returncode = self._code
        return self._code or 0

    def send_signal(self, sig: int) -> None:
        """Send it a signal; nothing happens to one that has ended."""
        with suppress(OSError, HarnessError):
            self._machine.signal(self.pid, sig)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)


@dataclass(slots=True)
class _Answer:
    arrived: threading.Event = field(default_factory=threading.Event)
    verb: str = ""
    content: bytes = b""


class GuestMachine:
    """The kernel and the processes of a virtual machine (``host.machine.Machine``)."""

    def __init__(self, machine: Qemu) -> None:
        """Listen to the agent of a started machine."""
        self.qemu = machine
        self._facts: GuestFacts | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[str, _Answer] = {}
        self._children: dict[str, GuestChild] = {}
        self._early: dict[str, list[tuple[str, bytes]]] = {}
        self._sending, self._listing = threading.Lock(), threading.Lock()
        self._lost = ""
        self.hello = threading.Event()
        self._stream = cast("BinaryIO", machine.agent.makefile("rb"))
        threading.Thread(target=self._listen, name="moetier-guest", daemon=True).start()

    @property
    def facts(self) -> GuestFacts | None:
        """What the machine is, once it has answered."""
        return self._facts

    def learn(self, facts: GuestFacts) -> None:
        """Keep what the machine turned out to be."""
        self._facts = facts

    def ask(self, verb: str, *fields: bytes) -> bytes:
        """Ask the agent and return its answer.

        Raises:
            OSError: the guest's kernel refused, with its errno.
            GuestError: the machine is lost, or does not answer.
        """
        tag, answer, content = str(next(self._numbers)), _Answer(), b"\0".join(fields)
        self._answers[tag] = answer
        try:
            if not self._lost:
                with self._sending:
                    self.qemu.agent.sendall(f"{tag} {verb} {len(content)}\n".encode() + content)
        except OSError as error:
            self._lose(f"its port broke ({error.strerror})")
        self._await(answer, verb)
        del self._answers[tag]
        if answer.verb == "err":
            number, _, words = answer.content.decode(errors="replace").partition(" ")
            raise OSError(int(number), words)
        return answer.content

    def _await(self, answer: _Answer, verb: str) -> None:
        until = time.monotonic() + ANSWER_SECONDS
        while not answer.arrived.wait(_POLL_SECONDS):
            if self._lost:
                raise self.error(self._lost)
            if time.monotonic() > until:
                raise self.error(f"it did not answer {verb!r} within {ANSWER_SECONDS:.0f} s")

    def error(self, why: str) -> GuestError:
        """Return the error of a lost machine, with the last lines of its console."""
        seen = f"the virtual machine was lost: {why}; {self.qemu.ended()}{self.qemu.said()}"
        return GuestError(seen, "a machine that runs to the end of the cell", _BUSY)

    def read(self, path: str) -> bytes:
        """Return the whole content of a kernel file."""
        return self.ask("read", path.encode())

    def write(self, path: str, content: bytes) -> None:
        """Write to an existing kernel file, in one write."""
        self.ask("write", path.encode(), content)

    def identity(self, path: str) -> tuple[int, int]:
        """Return (device, inode) of a path."""
        device, inode = self.ask("stat", path.encode()).split()[:2]
        return int(device), int(inode)

    def make_folder(self, path: str) -> None:
        """Make a folder."""
        self.ask("mkdir", path.encode())

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""
        self.ask("rmdir", path.encode())

    def writable(self, path: str) -> bool:
        """Return whether the agent may write there."""
        try:
            self.ask("access", path.encode())
        except OSError:
            return False
        return True

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a process of the guest."""
        self.ask("kill", str(pid).encode(), str(int(number)).encode())

    def start(self, argv: Sequence[str], pass_fds: Sequence[int], stderr: IO[bytes]) -> GuestChild:
        """Start a process in the guest."""
        assert not pass_fds, "descriptors of this host mean nothing in a guest"  # noqa: S101
        pid = self.ask("start", *(word.encode() for word in argv)).decode().strip()
        child = GuestChild(self, int(pid), stderr)
        with self._listing:  # what it wrote before we knew its number has been kept
            self._children[pid] = child
            for verb, content in self._early.pop(pid, []):
                child.take(verb, content)
            if self._lost:  # after the answer, and before it was listed: nobody else would end it
                child.lose()
        return child

    def _listen(self) -> None:
        why = "its agent ended"
        try:
            while header := self._stream.readline():
                words = header.decode(errors="replace").split()
                if not self.hello.is_set() and words[:2] != ["hello", "agent"]:
                    continue  # what firmware or kernel may have said on this port before
                if len(words) != 3 or not words[2].isdigit():
                    why = f"a frame of its agent's begins {header[:60]!r}"
                    break
                content = self._stream.read(int(words[2]))
                if len(content) < int(words[2]):
                    why = f"its last frame is cut off: {len(content)} of {words[2]} bytes of {words[1]!r}"
                    break
                self._take(words[0], words[1], content)
        except (OSError, ValueError) as error:
            why = f"its port broke ({error})"
        self._lose(why)

    def _take(self, tag: str, verb: str, content: bytes) -> None:
        if tag == "hello":
            self.hello.set()
        elif verb in {"ok", "err"}:
            if (answer := self._answers.get(tag)) is not None:
                answer.verb, answer.content = verb, content
                answer.arrived.set()
        else:
            with self._listing:
                if (child := self._children.get(tag)) is not None:
                    child.take(verb, content)
                else:
                    self._early.setdefault(tag, []).append((verb, content))

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        with self._listing:
            for child in self._children.values():
                child.lose()

    @property
    def lost(self) -> str:
        """Why the machine is lost, "" while it is there."""
        return self._lost

    def require(self) -> None:
        """Raise when the machine is lost: a child's end is then not the child's own.

        Raises:
            GuestError: it is.
        """
        if self._lost:
            raise self.error(self._lost)


_NO_KVM: dict[Path, str] = {}
"""Why KVM is not used any more, by the QEMU for which it was tried in this process."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a virtual machine is started.

    Attributes:
        program: QEMU.
        spec: what the machine is made of.
        kernel: the user's word for the kernel, for messages and facts.
        accelerator: ``kvm``, ``tcg``, or ``auto``: the processor itself where that works, else software.
        journal: where QEMU's process and its folder are recorded.
    """

    program: Path
    spec: MachineSpec
    kernel: str
    accelerator: str = "auto"
    journal: Journal | None = None


@contextmanager
def boot(launch: Launch) -> Iterator[GuestMachine]:
    """Boot a virtual machine and make it the current machine for the length of the block.

    Raises:
        UnsupportedHostError: ``kvm`` was asked for and does not work here, or there is too little memory.
        GuestError: it did not come up in time; the last lines of its console are in the message.
    """
    qemu.refuse_machine()
    qemu.check_memory(launch.spec.memory_bytes)
    with ExitStack() as stack:
        why = "software emulation was asked for" if launch.accelerator == TCG else _try_kvm(launch, stack)
        machine = why if isinstance(why, GuestMachine) else _started(launch, TCG, why, stack)
        stack.enter_context(on(machine))
        yield machine


def _try_kvm(launch: Launch, stack: ExitStack) -> GuestMachine | str:
    """Return a machine that runs on the processor itself, or why there is none."""
    why = _NO_KVM.get(launch.program, "") or _unusable_kvm()
    if not why:
        with ExitStack() as trial:
            try:
                machine = _started(launch, KVM, "", trial)
            except (GuestError, OSError) as error:
                head, _, said = str(error).partition("; it said last: ")
                why = ": ".join(filter(None, (head.rpartition("; ")[2], said.partition(" | ")[0])))
                _NO_KVM[launch.program] = why
            else:
                stack.push(trial.pop_all())
                return machine
    if launch.accelerator == KVM:
        raise UnsupportedHostError(f"KVM does not work here: {why}", "--moetier-guest-accel auto, or tcg")
    return why


def _unusable_kvm() -> str:
    """Return why KVM cannot be tried, "" where it can."""
    device = Path("/dev/kvm")
    if not device.exists():
        return "/dev/kvm is absent"
    return "" if os.access(device, os.R_OK | os.W_OK) else "/dev/kvm may not be opened by this user"


def _started(launch: Launch, accelerator: str, why: str, stack: ExitStack) -> GuestMachine:
    """Start a machine that ends with ``stack``, and wait for its agent; ``why`` it is not run by KVM."""
    started = time.monotonic()
    folder = stack.enter_context(_folder(launch.journal))
    first = join_archives(launch.spec.initramfs, folder / "initramfs")
    argv = qemu.qemu_argv(launch.program, launch.spec, accelerator, folder, first)
    guest = GuestMachine(stack.enter_context(Qemu(argv, folder, launch.journal)))
    _await_hello(guest, launch.spec, accelerator)
    seconds = time.monotonic() - started
    guest.learn(
        GuestFacts(
            kernel=launch.kernel,
            release=_text(guest, "/proc/sys/kernel/osrelease"),
            accelerator=accelerator,
            why=why,
            memory_bytes=launch.spec.memory_bytes,
            cpus=launch.spec.cpus,
            command_line=_text(guest, "/proc/cmdline"),
            boot_seconds=seconds,
            settings=tuple(_settings(guest)),
        )
    )
    return guest


@contextmanager
def _folder(journal: Journal | None) -> Iterator[Path]:
    """Yield a private folder that is gone afterwards, after kill -9 at the next start."""
    folder = tempfile.TemporaryDirectory(prefix="moetier-guest-")
    token = "" if journal is None else journal.record("folder", path=folder.name)
    with folder:
        yield Path(folder.name)
    if journal is not None:
        journal.done(token)


def _await_hello(guest: GuestMachine, spec: MachineSpec, accelerator: str) -> None:
    started = time.monotonic()
    while not guest.hello.wait(_POLL_SECONDS):
        seconds = time.monotonic() - started
        if failed := [one for one in guest.qemu.console() if FAILED in one]:
            step = failed[0].partition(FAILED)[2].strip()
            raise guest.error(f"its start failed at: {step}")
        if guest.lost:
            raise guest.error(guest.lost)
        if accelerator == KVM and (stopped := guest.qemu.stopped()):
            raise guest.error(stopped)
        if accelerator == KVM and seconds > _FIRST_WORD_SECONDS and not guest.qemu.console():
            raise guest.error(f"it said nothing within {_FIRST_WORD_SECONDS:.0f} s")
        if seconds > spec.boot_seconds:
            raise guest.error(f"it was not up after {spec.boot_seconds:.0f} s")


def _settings(machine: GuestMachine) -> Iterator[tuple[str, str]]:
    for name, path in _SETTINGS.items():
        if value := _chosen(_text(machine, path)):
            yield name, value
    for row in _text(machine, "/proc/mounts").splitlines():
        words = row.split()
        if len(words) > 2 and words[1] == POOL:
            yield "filesystem", words[2]


def _text(machine: GuestMachine, path: str) -> str:
    try:
        return machine.read(path).decode(errors="replace").strip()
    except OSError:
        return ""


def _chosen(text: str) -> str:
    """Return the selected word of ``always [madvise] never``, or the text."""
    words = [word[1:-1] for word in text.split() if word.startswith("[") and word.endswith("]")]
    return words[0] if words else text


def accelerator_here() -> tuple[str, str]:
    """Return what a guest would be run by, as far as can be told without booting one, and why."""
    why = _unusable_kvm()
    return (TCG, why) if why else (KVM, "tried at the first boot; software emulation where it does not work")
