"""A machine behind a port: frames however they arrive, errors as the kernel's own, and an end that reaches everyone."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ports import ENDED, SAID, Played, answering, played

from pytest_moetier.errors import MoetierError
from pytest_moetier.host import guest, procfs
from pytest_moetier.host.guest import GuestMachine
from pytest_moetier.host.machine import HOST, current, on
from pytest_moetier.host.qemu import GuestError
from pytest_moetier.native import static_executable

Asking = Callable[..., Future[Any]]
LOST = "a machine that runs to the end of the cell"


@pytest.fixture
def both() -> Iterator[tuple[GuestMachine, Played]]:
    """A machine and its agent's end, greeted."""
    with played() as pair:
        yield pair


@pytest.fixture
def asking() -> Iterator[Asking]:
    """Return a call that asks in a thread of its own, while the test plays the agent."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait a minute for an answer."""
    monkeypatch.setattr(guest, "ANSWER_SECONDS", 0.3)


# Frames


def test_an_answer_that_comes_byte_by_byte_is_one_answer(both: Any, asking: Asking) -> None:
    machine, agent = both
    content = b"1 ok 3\nno frame\n\0\xff"
    future = asking(machine.read, "/proc/stat")
    assert agent.hear() == ("1", "read", b"/proc/stat")
    whole = b"1 ok %d\n%s" % (len(content), content)
    for at in range(len(whole)):
        agent.send(whole[at : at + 1])
    assert future.result(30) == content


def test_frames_that_arrive_together_are_told_apart(both: Any, asking: Asking) -> None:
    machine, agent = both
    futures = [asking(machine.read, f"/{number}") for number in range(5)]
    asked = dict(agent.hear()[::2] for _ in futures)
    agent.send(b"".join(b"%s ok %d\n%s" % (tag.encode(), len(path), path) for tag, path in reversed(asked.items())))
    assert [future.result(30) for future in futures] == [f"/{number}".encode() for number in range(5)]


def test_what_firmware_says_before_the_agent_is_passed_over(asking: Asking) -> None:
    with played(greeted=False) as (machine, agent):
        agent.send(b"SeaBIOS (version 1.16.2)\r\n", b"\x1b[2J\xff\xfe\n\n", b"1 ok 5\n", b"hello world 3\n")
        assert not machine.hello.wait(0.3)
        agent.frame("hello", "agent", b"0")
        assert machine.hello.wait(30)
        future = asking(machine.read, "/x")
        assert agent.hear()[0] == "1"
        agent.frame(1, "ok", b"answer")
        assert future.result(30) == b"answer"


def test_fields_of_a_request_are_apart(both: Any, asking: Asking) -> None:
    machine, agent = both
    for number, (call, verb, fields) in enumerate(
        (
            (lambda: machine.write("/sys/x", b"a\0b"), "write", b"/sys/x\0a\0b"),
            (lambda: machine.make_folder("/sys/x"), "mkdir", b"/sys/x"),
            (lambda: machine.remove_folder("/sys/x"), "rmdir", b"/sys/x"),
            (lambda: machine.signal(7, signal.SIGTERM), "kill", b"7\x0015"),
        ),
        start=1,
    ):
        future = asking(call)
        assert agent.hear() == (str(number), verb, fields)
        agent.frame(number, "ok")
        assert future.result(30) is None


@pytest.mark.parametrize(
    ("content", "kind", "number"),
    [
        (b"2 No such file or directory", FileNotFoundError, errno.ENOENT),
        (b"13 Permission denied", PermissionError, errno.EACCES),
        (b"3 No such process", ProcessLookupError, errno.ESRCH),
        (b"22 Invalid argument", OSError, errno.EINVAL),
    ],
)
def test_a_refusal_is_the_error_of_its_number(
    both: Any, asking: Asking, content: bytes, kind: type[OSError], number: int
) -> None:
    machine, agent = both
    future = asking(machine.write, "/proc/x", b"1")
    agent.hear()
    agent.frame(1, "err", content)
    with pytest.raises(kind) as caught:
        future.result(30)
    assert (caught.value.errno, caught.value.strerror) == (number, content.decode().partition(" ")[2])


def test_what_may_not_be_written_to_is_no_error(both: Any, asking: Asking) -> None:
    machine, agent = both
    for number, (verb, content, expected) in enumerate((("ok", b"", True), ("err", b"30 Read-only", False)), start=1):
        future = asking(machine.writable, "/sys/x")
        assert agent.hear() == (str(number), "access", b"/sys/x")
        agent.frame(number, verb, content)
        assert future.result(30) is expected


# Processes


@pytest.fixture
def begun(both: Any, asking: Asking) -> Callable[..., Any]:
    """Return a call that starts process 77; the agent sends frames before and with its answer."""
    machine, agent = both
    errors = io.BytesIO()

    def begin(*early: tuple[str, bytes]) -> Any:
        future = asking(machine.start, ["/job/x", "a b"], (), errors)
        assert agent.hear() == ("1", "start", b"/job/x\0a b")
        for verb, content in early:
            agent.frame(77, verb, content)
        agent.frame(1, "ok", b"77")
        return future.result(30), errors

    return begin


def test_what_a_process_wrote_before_its_number_was_known_is_kept(begun: Callable[..., Any]) -> None:
    child, errors = begun(("out", b"early "), ("errout", b"oops\n"), ("out", b"words\n"), ("end", b"exited 3"))
    assert (child.pid, child.stdout.read(), child.wait(30), child.returncode) == (77, b"early words\n", 3, 3)
    assert errors.getvalue() == b"oops\n"


def test_a_process_ends_when_it_is_told_and_not_before(both: Any, begun: Callable[..., Any]) -> None:
    child, _ = begun(("out", b"x"))
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.1)
    assert child.poll() is None
    both[1].frame(77, "end", b"killed 9")
    assert (child.wait(30), child.poll(), child.stdout.read()) == (-signal.SIGKILL, -signal.SIGKILL, b"x")


def test_nobody_reading_a_process_keeps_no_answer_back(both: Any, begun: Callable[..., Any], asking: Asking) -> None:
    machine, agent = both
    child, _ = begun()
    written = os.urandom(1 << 20)  # many times what a pipe holds
    for at in range(0, len(written), 1 << 16):
        agent.frame(77, "out", written[at : at + (1 << 16)])
    future = asking(machine.read, "/proc/stat")
    agent.hear()
    agent.frame(2, "ok", b"answer")
    assert future.result(30) == b"answer"
    agent.frame(77, "end", b"exited 0")
    assert child.stdout.read() == written


def test_writing_to_a_process_that_has_ended_is_a_broken_pipe(
    both: Any, begun: Callable[..., Any], asking: Asking
) -> None:
    child, _ = begun()
    future = asking(child.stdin.write, b"go\n")
    assert both[1].hear() == ("2", "input", b"77\0go\n")
    both[1].frame(2, "err", b"3 No such process")
    with pytest.raises(BrokenPipeError):
        future.result(30)


def test_a_signal_to_a_process_that_has_ended_is_no_error(both: Any, begun: Callable[..., Any], asking: Asking) -> None:
    child, _ = begun()
    future = asking(child.kill)
    assert both[1].hear() == ("2", "kill", b"77\x009")
    both[1].frame(2, "err", b"3 No such process")
    assert future.result(30) is None


# The loss of a machine


@pytest.mark.usefixtures("impatient")
def test_a_machine_that_does_not_answer_is_given_up(both: Any) -> None:
    machine, _ = both
    started = time.monotonic()
    with pytest.raises(GuestError) as caught:
        machine.read("/proc/stat")
    assert time.monotonic() - started < guest.ANSWER_SECONDS + 20
    assert caught.value.seen.startswith("the virtual machine was lost: it did not answer 'read' within ")
    assert caught.value.seen.endswith(f"; {ENDED}{SAID}")
    assert caught.value.expected == LOST
    assert caught.value.do


ENDS = {
    "its agent ended": (b"",),
    "its last frame is cut off: 3 of 100 bytes of 'ok'": (b"1 ok 100\nabc",),
    "a frame of its agent's begins b'Oops: 0000 [#1]\\n'": (b"Oops: 0000 [#1]\n",),
    "a frame of its agent's begins b'1 ok -3\\n'": (b"1 ok -3\n",),
    "a frame of its agent's begins b'1 ok'": (b"1 ok",),
}


@pytest.mark.parametrize("why", ENDS)
def test_the_end_of_the_port_is_said_with_the_last_lines_of_the_console(both: Any, asking: Asking, why: str) -> None:
    machine, agent = both
    future = asking(machine.read, "/proc/stat")
    agent.hear()
    agent.send(*ENDS[why])
    agent.port.close()
    with pytest.raises(GuestError) as caught:
        future.result(30)
    assert caught.value.seen == f"the virtual machine was lost: {why}; {ENDED}{SAID}"
    assert machine.lost == why
    for call in (
        machine.require,
        lambda: machine.read("/x"),
        lambda: machine.start(["/x"], (), io.BytesIO()),
    ):
        with pytest.raises(GuestError, match=r"^the virtual machine was lost: "):
            call()


def test_with_the_machine_its_processes_end(both: Any, begun: Callable[..., Any]) -> None:
    machine, agent = both
    child, _ = begun(("out", b"half a li"))
    machine.require()
    waiting = threading.Thread(target=child.wait)
    waiting.start()
    agent.port.close()
    waiting.join(30)
    assert not waiting.is_alive()
    assert (child.poll(), child.stdout.read()) == (-signal.SIGKILL, b"half a li")
    child.kill()
    child.stdin.close()


@pytest.mark.parametrize("attempt", range(10))
def test_a_process_started_as_the_machine_is_lost_has_ended(both: Any, asking: Asking, attempt: int) -> None:
    del attempt  # the loss is seen before the process is listed, or after: both must be met
    machine, agent = both
    future = asking(machine.start, ["/job/x"], (), io.BytesIO())
    agent.hear()
    agent.send(b"1 ok 2\n77")
    agent.port.close()
    try:
        child = future.result(30)
    except GuestError:
        return  # lost before the answer was taken: as well
    assert child.wait(5) == -signal.SIGKILL


# The current machine


def test_a_machine_is_the_current_one_within_its_block(both: Any) -> None:
    machine, _ = both
    assert current() is HOST

    def fail() -> None:
        with on(machine):
            assert current() is machine
            with on(HOST):
                assert current() is HOST
            assert current() is machine
            raise MoetierError("seen")

    with pytest.raises(MoetierError):
        fail()
    assert current() is HOST


# The real agent


@pytest.fixture
def real(tmp_path: Path) -> Iterator[GuestMachine]:
    """A machine that is this host, asked through the agent."""
    try:
        static_executable("moetier-agent")
    except MoetierError as error:
        pytest.skip(str(error))
    with answering(tmp_path) as machine:
        yield machine


def test_kernel_files_are_read_and_written_through_the_agent(real: GuestMachine, tmp_path: Path) -> None:
    with on(real):
        assert procfs.read_text("/proc/version") == Path("/proc/version").read_text()
        assert procfs.try_text("/proc/no/such/file") is None
        found = Path("/proc/version").stat()
        assert procfs.identity("/proc/version") == (found.st_dev, found.st_ino)
        folder = tmp_path / "group"
        procfs.make_folder(folder)
        assert procfs.writable(folder)
        (folder / "value").write_text("0")
        procfs.write_text(folder / "value", "7")
        with pytest.raises(OSError, match="not empty") as caught:
            procfs.remove_folder(folder)
        assert caught.value.errno == errno.ENOTEMPTY
    assert (folder / "value").read_text() == "7"


def test_a_process_behind_the_agent_reads_writes_and_ends_as_one_of_this_host(real: GuestMachine) -> None:
    with tempfile.TemporaryFile() as errors:
        child = real.start(["/bin/sh", "-c", "cat; echo no >&2; exit 3"], (), errors)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"in and out\n")
        child.stdin.close()
        assert (child.stdout.read(), child.wait(30)) == (b"in and out\n", 3)
        errors.seek(0)
        assert errors.read() == b"no\n"
        sleeping = real.start(["/bin/sleep", "1000"], (), errors)
        real.signal(sleeping.pid, signal.SIGTERM)
        assert sleeping.wait(30) == -signal.SIGTERM
        with pytest.raises(FileNotFoundError):
            real.start(["/no/such/program"], (), errors)


def test_when_the_machine_is_killed_its_end_and_its_last_words_are_said(real: GuestMachine) -> None:
    with tempfile.TemporaryFile() as errors:
        child = real.start(["/bin/sleep", "1000"], (), errors)
        os.kill(real.qemu.pid, signal.SIGKILL)
        assert child.wait(30) == -signal.SIGKILL
    with pytest.raises(GuestError) as caught:
        real.read("/proc/version")
    assert f"QEMU (pid {real.qemu.pid}) was killed by signal 9" in caught.value.seen
    assert caught.value.seen.endswith("; it said last: the machine is on")
