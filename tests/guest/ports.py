"""Machines without QEMU: a port whose other end the test plays, and one at which the real agent sits."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pytest_moetier.host.guest import GuestMachine
from pytest_moetier.host.qemu import Qemu
from pytest_moetier.native import static_executable

ENDED, SAID = "QEMU (pid 1) ended with 0", "; it said last: Freeing unused memory | Kernel panic - not syncing: played"

_CONNECT = """
import os, socket, sys
port = socket.socket(socket.AF_UNIX)
port.connect(sys.argv[1])
for number in (0, 1):
    os.dup2(port.fileno(), number)
os.write(2, b"the machine is on\\n")
os.execv(sys.argv[2], [sys.argv[2], "-"])
"""


@dataclass
class PlayedQemu:
    """The part of ``Qemu`` that a machine asks, with a fixed end and a fixed console."""

    agent: socket.socket

    def ended(self) -> str:
        return ENDED

    def said(self) -> str:
        return SAID


@dataclass
class Played:
    """The agent's end of a port: requests are heard and answered by the test."""

    port: socket.socket
    _heard: bytearray = field(default_factory=bytearray)

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.port.sendall(piece)

    def frame(self, tag: object, verb: str, content: bytes = b"") -> None:
        self.send(b"%s %s %d\n" % (str(tag).encode(), verb.encode(), len(content)) + content)

    def hear(self) -> tuple[str, str, bytes]:
        """Return the next request: its tag, its verb and its fields."""
        while b"\n" not in self._heard:
            self._heard += self._more()
        tag, verb, size = self._take(self._heard.index(b"\n") + 1).decode().split()
        while len(self._heard) < int(size):
            self._heard += self._more()
        return tag, verb, self._take(int(size))

    def _more(self) -> bytes:
        found = self.port.recv(1 << 16)
        assert found, "the machine has closed its port"
        return found

    def _take(self, size: int) -> bytes:
        taken = bytes(self._heard[:size])
        del self._heard[:size]
        return taken


@contextmanager
def played(*, greeted: bool = True) -> Iterator[tuple[GuestMachine, Played]]:
    """Yield a machine and the other end of its port; ``greeted``: the agent has said hello."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(30)
    with ours, theirs:
        agent = Played(theirs)
        machine = GuestMachine(PlayedQemu(ours))  # type: ignore[arg-type]
        if greeted:
            agent.frame("hello", "agent", b"0")
            assert machine.hello.wait(30)
        yield machine, agent


@contextmanager
def answering(folder: Path) -> Iterator[GuestMachine]:
    """Yield a machine in whose place the real agent answers, as a process of this host in place of QEMU's."""
    argv = [sys.executable, "-c", _CONNECT, str(folder / "agent"), str(static_executable("moetier-agent"))]
    with Qemu(argv, folder, None) as qemu:
        machine = GuestMachine(qemu)
        assert machine.hello.wait(30)
        yield machine
