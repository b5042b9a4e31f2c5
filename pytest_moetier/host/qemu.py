"""A virtual machine as a process of this host: its command line, its console, its end (paper section 5, kernels).

Whether the processor's own virtualisation works is tried, not read off a device file: one that is there may stop at its
first instructions.
"""

from __future__ import annotations

import platform
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pytest_moetier.errors import HarnessError, UnsupportedHostError
from pytest_moetier.host import procfs
from pytest_moetier.host.restore import Journal
from pytest_moetier.units import format_bytes

KVM, TCG = "kvm", "tcg"
PORT, SERIAL = "vport0p1", "ttyS1"
CONSOLE_LINES = 6
_START_SECONDS = 15.0
"""Within which QEMU opens the agent's port: it does so before it starts a processor."""
_CLOSE_SECONDS = 5.0
_MIB = 1 << 20
# Copies by `rep movsb` are interpreted byte by byte: without these two flags they are two to three times as fast.
_CPU = {KVM: "host", TCG: "max,-erms,-fsrm"}
_ACCEL = {KVM: "kvm", TCG: "tcg,thread=multi"}
_NOISE = re.compile(r"\x1b\[[0-9;?=]*[a-zA-Z]|\x1bc|\r")


class GuestError(HarnessError):
    """The virtual machine was lost: it did not boot, hung, panicked or was killed."""


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """What a virtual machine is made of.

    Attributes:
        kernel: the kernel's image.
        initramfs: archives of its first filesystem, later ones on top.
        memory_bytes: RAM, in whole MiB.
        cpus: virtual processors.
        image: the pool's image, a virtual disk that is not written to; None: no disk.
        port: the device of the guest that the agent answers on: ``PORT``, or ``SERIAL`` where a kernel lacks that.
        words: further words of the kernel's command line.
        boot_seconds: how long it may take until it answers.
    """

    kernel: Path
    initramfs: tuple[Path, ...]
    memory_bytes: int
    cpus: int
    image: Path | None
    port: str = PORT
    words: tuple[str, ...] = ()
    boot_seconds: float = 60.0

    @property
    def command_line(self) -> str:
        """The kernel's command line."""
        words = ["console=ttyS0", "quiet", "panic=-1", "mitigations=off", "cgroup_no_v1=all", "psi=1"]
        words += [f"moetier.port={self.port}", *self.words]
        return " ".join(words)


def qemu_argv(qemu: Path, spec: MachineSpec, accelerator: str, folder: Path, initramfs: Path) -> list[str]:
    """Return the command line of QEMU: console to a file and the agent's port to a socket in ``folder``."""
    words = [str(qemu), "-accel", _ACCEL[accelerator], "-cpu", _CPU[accelerator], "-machine", "q35"]
    words += ["-m", f"{-(-spec.memory_bytes // _MIB)}M", "-smp", str(spec.cpus)]
    words += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    words += ["-serial", f"file:{folder}/console"]
    words += ["-chardev", f"socket,id=agent,path={folder}/agent"]
    port = ["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=agent"]
    words += port if spec.port == PORT else ["-serial", "chardev:agent"]
    if spec.image is not None:
        words += ["-blockdev", _disk(spec.image), "-device", "virtio-blk-pci,drive=pool"]
    return [*words, "-kernel", str(spec.kernel), "-initrd", str(initramfs), "-append", spec.command_line]


def _disk(image: Path) -> str:
    # Direct: what the guest reads again must come from its own cache or from the device, never from this host's cache.
    name = str(image.absolute()).replace(",", ",,")
    file = f"file.driver=file,file.filename={name},file.cache.direct=on,file.aio=native"
    return f"driver=raw,node-name=pool,read-only=on,cache.direct=on,file.read-only=on,{file}"


class Qemu:
    """A running virtual machine; a context manager, ended on any exit.

    Attributes:
        agent: the connection to the agent's port.
        pid: QEMU's process.
    """

    def __init__(self, argv: Sequence[str], folder: Path, journal: Journal | None) -> None:
        """Start QEMU and wait until it has opened the agent's port.

        Raises:
            GuestError: it ended at once, with what it said.
        """
        self._folder, self._token, self._journal = folder, "", journal
        self._errors = (folder / "errors").open("w+b")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(str(folder / "agent"))
            listening.listen(1)
            listening.settimeout(0.05)
            self._process = subprocess.Popen(
                # A machine without the one who asked for it would run on: the kernel ends it with its parent.
                [*_with_parent(), *argv],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                start_new_session=True,
            )
            self.pid = self._process.pid
            found = procfs.process_id(self.pid)
            if journal is not None and found is not None:
                self._token = journal.record("process", pid=found.pid, start_ticks=found.start_ticks, comm=found.comm)
            try:
                self.agent = self._accepted(listening)
            except BaseException:
                self.close()
                raise
        (folder / "agent").unlink(missing_ok=True)

    def _accepted(self, listening: socket.socket) -> socket.socket:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            with suppress(TimeoutError):
                return listening.accept()[0]
            if self._process.poll() is not None:
                break
        raise GuestError(f"QEMU did not start{self.said()}", "a virtual machine", "moetier guest check KERNEL")

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End it."""
        self.close()

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    def stopped(self) -> str:
        """Return why the processor stopped (an internal error of KVM), "" while nothing was seen of that."""
        lines = [one for one in self._error_text().splitlines() if "KVM" in one or "kvm" in one]
        return lines[0].strip() if lines else ""

    def console(self) -> tuple[str, ...]:
        """Return the console's lines so far; the last may be cut."""
        text = _text(self._folder / "console")
        return tuple(line for one in _NOISE.sub("", text).splitlines() if (line := one.strip()))

    def said(self) -> str:
        """Return the last lines of the console and of QEMU itself, to be put behind a message."""
        errors = [one.strip() for one in self._error_text().splitlines() if one.strip()][:2]
        last = [*errors, *self.console()[-CONSOLE_LINES:]]
        return "; it said last: " + " | ".join(last) if last else "; it said nothing"

    def ended(self) -> str:
        """Return how the process ended, in words."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        code = self._process.returncode
        panic = next((one for one in self.console() if "Kernel panic" in one), "")
        how = "runs on" if code is None else f"ended with {code}" if code >= 0 else f"was killed by signal {-code}"
        return f"QEMU (pid {self.pid}) {how}" + (f" after a panic of the guest: {panic}" if panic else "")

    def close(self) -> None:
        """End it and give back what it held."""
        if hasattr(self, "agent"):
            self.agent.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._errors.close()
        if self._journal is not None and self._token:
            self._journal.done(self._token)
            self._token = ""

    def _error_text(self) -> str:
        return _text(self._folder / "errors")


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _with_parent() -> list[str]:
    found = shutil.which("setpriv")
    return [found, "--pdeathsig", "KILL", "--"] if found else []


def refuse_machine() -> None:
    """Refuse a host whose processor no guest of ours is built for.

    Raises:
        UnsupportedHostError: it is no x86-64.
    """
    if platform.machine() != "x86_64":
        raise UnsupportedHostError(
            f"this host is a {platform.machine()}", "an x86-64 host: the guest's programs are this host's own"
        )


def check_memory(memory_bytes: int) -> None:
    """Refuse a machine that this host has no memory for.

    Raises:
        UnsupportedHostError: MemAvailable is below it.
    """
    available = procfs.parse_meminfo(procfs.read_text("/proc/meminfo")).get("MemAvailable", 0)
    if available < memory_bytes:
        raise UnsupportedHostError(
            f"a virtual machine of {format_bytes(memory_bytes, binary=True)} is asked for,"
            f" {format_bytes(available, binary=True)} is available",
            "less than that",
            "--moetier-guest-memory with less, a smaller --moetier-capacity, or free some",
        )
