"""The agent does what the frames on its port say, one answer a request, and passes on what its processes write."""

from __future__ import annotations

import contextlib
import errno
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_moetier.errors import UnsupportedHostError
from pytest_moetier.native import static_executable

MIB = 2**20
PATIENCE = 60.0


@dataclass(frozen=True)
class Frame:
    tag: str
    verb: str
    payload: bytes

    @property
    def error(self) -> int:
        """The errno value of an answer that is a refusal."""
        assert self.verb == "err", self
        return int(self.payload.split()[0])


def frame(tag: object, verb: str, *fields: object) -> bytes:
    """Return a request with these fields."""
    payload = b"\0".join(field if isinstance(field, bytes) else os.fsencode(str(field)) for field in fields)
    return b"%s %s %d\n" % (str(tag).encode(), verb.encode(), len(payload)) + payload


class Agent:
    """A running agent and the two ends of its port."""

    def __init__(self, process: subprocess.Popen[bytes], out: int, back: int) -> None:
        """Take over the process, and hear its first frame."""
        self.process = process
        self._out = out
        self._back = back
        self._seen = b""
        self._number = 0
        self.unasked: list[Frame] = []
        self.hello = self.hear()

    def send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._out, data) :]

    def more(self) -> bytes:
        """Return what comes next, b"" at the end."""
        ready, _, _ = select.select([self._back], [], [], PATIENCE)
        assert ready, "the agent has said nothing for a minute"
        return os.read(self._back, 1 << 16)

    def take(self, size: int) -> bytes:
        parts = [self._seen]
        while sum(map(len, parts)) < size:
            parts.append(self.more())
            assert parts[-1], "the agent ended"
        whole = b"".join(parts)
        self._seen = whole[size:]
        return whole[:size]

    def hear(self) -> Frame:
        """Return the next frame."""
        while b"\n" not in self._seen:
            data = self.more()
            assert data, "the agent ended"
            self._seen += data
        header, _, self._seen = self._seen.partition(b"\n")
        tag, verb, size = header.decode().split(" ")
        return Frame(tag, verb, self.take(int(size)))

    def ask(self, verb: str, *fields: object) -> Frame:
        """Send a request and return its answer; what comes in between is kept in ``unasked``."""
        self._number += 1
        self.send(frame(self._number, verb, *fields))
        while (answer := self.hear()).tag != str(self._number) or answer.verb not in {"ok", "err"}:
            self.unasked.append(answer)
        return answer

    def start(self, *argv: object) -> str:
        """Start a process and return its number."""
        answer = self.ask("start", *argv)
        assert answer.verb == "ok", answer
        return answer.payload.decode()

    def until_end(self, pid: str) -> tuple[dict[str, bytes], str]:
        """Return what a process wrote, by stream, and how it ended."""
        wrote: dict[str, list[bytes]] = {"out": [], "errout": []}
        while True:
            one = self.unasked.pop(0) if self.unasked else self.hear()
            assert one.tag == pid, one
            if one.verb == "end":
                return {name: b"".join(parts) for name, parts in wrote.items()}, one.payload.decode()
            wrote[one.verb].append(one.payload)

    def run(self, *argv: object) -> tuple[dict[str, bytes], str]:
        """Run a process to its end, with nothing on its standard input."""
        pid = self.start(*argv)
        self.ask("eof", pid)  # refused where it has ended by now
        return self.until_end(pid)

    def close_port(self) -> None:
        """End its input."""
        assert self.process.stdin is not None
        self.process.stdin.close()


@pytest.fixture
def start_agent(native_bin: Path) -> Iterator[Callable[..., Agent]]:
    """Start agents that are gone after the test."""
    with contextlib.ExitStack() as stack:

        def start(prefix: Sequence[str] = ()) -> Agent:
            command = [*prefix, str(native_bin / "moetier-agent"), "-"]
            pipe = subprocess.PIPE
            process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe))
            stack.callback(process.kill)
            assert process.stdin is not None
            assert process.stdout is not None
            return Agent(process, process.stdin.fileno(), process.stdout.fileno())

        yield start


@pytest.fixture
def agent(start_agent: Callable[..., Agent]) -> Agent:
    """Return a running agent."""
    return start_agent()


def gone(pid: int) -> bool:
    """Whether a process ends within a minute; one that nobody has waited for counts as ended."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}:
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_it_says_hello_with_its_version(agent: Agent, native_bin: Path) -> None:
    told = subprocess.run([native_bin / "moetier-agent", "--version"], capture_output=True, check=True)
    assert (agent.hello.tag, agent.hello.verb) == ("hello", "agent")
    assert told.stdout.split()[-1] == agent.hello.payload


def test_files_are_read_whole(agent: Agent, tmp_path: Path) -> None:
    for size in (0, 1, 4095, 16384, 4 * MIB):
        content = os.urandom(size)
        (tmp_path / "file").write_bytes(content)
        answer = agent.ask("read", tmp_path / "file")
        assert (answer.verb, answer.payload) == ("ok", content)
    assert agent.ask("read", "/proc/version").payload == Path("/proc/version").read_bytes()
    (tmp_path / "file").write_bytes(bytes(4 * MIB + 1))
    assert agent.ask("read", tmp_path / "file").error == errno.EFBIG


def test_a_write_is_one_write_to_a_file_that_exists(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    content = b"\0a\nb\0"
    assert agent.ask("write", path, content).verb == "ok"
    assert path.read_bytes() == content + b"56789"  # nothing is cut: a kernel file has no length
    large = os.urandom(3 * MIB)
    assert agent.ask("write", path, large).verb == "ok"
    assert path.read_bytes() == large
    assert agent.ask("write", tmp_path / "other", b"x").error == errno.ENOENT
    assert not (tmp_path / "other").exists()


def test_folders_are_made_and_removed_and_identified(agent: Agent, tmp_path: Path) -> None:
    folder = tmp_path / "folder with a space"
    assert agent.ask("mkdir", folder).verb == "ok"
    found = folder.stat()
    assert agent.ask("stat", folder).payload == f"{found.st_dev} {found.st_ino}".encode()
    assert agent.ask("access", folder).verb == "ok"
    assert agent.ask("rmdir", folder).verb == "ok"
    assert not folder.exists()


@pytest.mark.parametrize(
    ("verb", "fields", "expected"),
    [
        ("read", ("/nonexistent/file",), errno.ENOENT),
        ("read", ("/proc",), errno.EISDIR),
        ("read", ("/proc/version\0x",), errno.EINVAL),
        ("write", ("/proc/version",), errno.EINVAL),
        ("write", ("/proc/self/oom_score_adj", b"99999"), errno.EINVAL),
        ("stat", ("/nonexistent",), errno.ENOENT),
        ("mkdir", ("/proc",), errno.EEXIST),
        ("rmdir", ("/proc/version",), errno.ENOTDIR),
        ("access", ("/nonexistent",), errno.ENOENT),
        ("start", ("/nonexistent/program", "x"), errno.ENOENT),
        ("start", ("/proc/version",), errno.EACCES),
        ("start", ("",), errno.ENOENT),
        ("input", ("1", b"x"), errno.ESRCH),
        ("input", ("1",), errno.EINVAL),
        ("eof", ("word",), errno.ESRCH),
        ("kill", ("1", "0"), errno.ESRCH),  # a process that it did not start
        ("dance", (), errno.ENOSYS),
    ],
)
def test_a_refusal_has_the_kernels_number_and_a_message(
    agent: Agent, verb: str, fields: tuple[object, ...], expected: int
) -> None:
    answer = agent.ask(verb, *fields)
    assert answer.error == expected
    assert len(answer.payload.split(b" ", 1)[1]) > 5
    assert agent.ask("read", "/proc/self/comm").payload == b"moetier-agent\n"


def test_requests_that_come_in_pieces_or_together_are_each_answered_in_order(agent: Agent) -> None:
    requests = frame("a", "read", "/proc/self/comm") + frame("b", "access", "/nonexistent") + frame("c", "stat", "/")
    for at in range(len(requests)):
        agent.send(requests[at : at + 1])
    agent.send(requests * 50)
    answers = [agent.hear() for _ in range(51 * 3)]
    assert [(one.tag, one.verb) for one in answers] == [("a", "ok"), ("b", "err"), ("c", "ok")] * 51


def test_a_process_has_its_arguments_its_streams_and_its_status(agent: Agent) -> None:
    wrote, end = agent.run("sh", "-c", 'printf %s "$#:$1:$2:$3"; echo oops >&2; exit 7', "sh", "", "a b", "c\nd")
    assert (wrote, end) == ({"out": b"3::a b:c\nd", "errout": b"oops\n"}, "exited 7")


def test_a_host_that_writes_everything_before_it_reads_gets_everything_back(agent: Agent) -> None:
    pid = agent.start("cat")
    content = os.urandom(8 * MIB)
    pieces = [content[at : at + 300_000] for at in range(0, len(content), 300_000)]
    for number, piece in enumerate(pieces):
        agent.send(frame(f"i{number}", "input", pid, piece))
    agent.send(frame("e", "eof", pid))
    frames = [agent.hear()]
    while frames[-1].verb != "end":
        frames.append(agent.hear())
    assert b"".join(one.payload for one in frames if one.verb == "out") == content
    assert [one.tag for one in frames if one.verb == "ok"] == [*(f"i{n}" for n in range(len(pieces))), "e"]
    assert frames[-1] == Frame(pid, "end", b"exited 0")


def test_all_output_comes_before_the_end_however_late_it_is_read(agent: Agent) -> None:
    script = "head -c 3000000 /dev/zero; head -c 2000000 /dev/zero >&2; printf last"
    pid = agent.start("sh", "-c", script)
    time.sleep(0.5)  # it ends, or waits for the port, which nobody reads
    wrote, end = agent.until_end(pid)
    assert end == "exited 0"
    assert wrote["out"] == bytes(3_000_000) + b"last"
    assert wrote["errout"] == bytes(2_000_000)


def test_a_process_that_ended_long_ago_is_reported_when_the_port_is_read(agent: Agent) -> None:
    content = b"".join(b"%d " % i for i in range(9000))
    pid = agent.start("sh", "-c", "read line; cat")
    assert agent.ask("input", pid, b"\n" + content).verb == "ok"
    assert agent.ask("eof", pid).verb == "ok"
    assert gone(int(pid))
    assert agent.until_end(pid) == ({"out": content, "errout": b""}, "exited 0")


def test_output_that_nobody_reads_waits_in_its_process(agent: Agent) -> None:
    pid = agent.start("cat", "/dev/zero")
    time.sleep(0.5)
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    assert int(status.split("RssAnon:")[1].split()[0]) * 1024 < 64 * MIB  # a sanitizer's own memory is most of it
    assert agent.ask("kill", pid, int(signal.SIGKILL)).verb == "ok"
    assert agent.until_end(pid)[1] == "killed 9"


def test_a_process_that_does_not_read_its_input_holds_up_nobody(agent: Agent) -> None:
    pid = agent.start("sleep", "600")
    for _ in range(21):
        assert agent.ask("input", pid, bytes(3 * MIB)).verb == "ok"
    assert agent.ask("input", pid, bytes(3 * MIB)).error == errno.ENOBUFS
    assert agent.run("echo", "others")[0]["out"] == b"others\n"
    assert agent.ask("kill", pid, int(signal.SIGTERM)).verb == "ok"
    assert agent.until_end(pid) == ({"out": b"", "errout": b""}, "killed 15")
    assert agent.ask("kill", pid, 0).error == errno.ESRCH


def test_input_ends_once_and_is_not_taken_after(agent: Agent) -> None:
    pid = agent.start("sh", "-c", "exec <&-; echo closed; sleep 600")
    while not agent.unasked:
        agent.ask("stat", "/")
    deadline = time.monotonic() + PATIENCE
    while agent.ask("input", pid, b"x").verb == "ok" and time.monotonic() < deadline:
        pass
    assert agent.ask("input", pid, b"x").error == errno.EPIPE
    other = agent.start("cat")
    assert agent.ask("eof", other).verb == "ok"
    assert agent.ask("input", other, b"x").error in {errno.EPIPE, errno.ESRCH}
    agent.ask("kill", pid, int(signal.SIGKILL))


def test_an_end_does_not_wait_for_others_that_hold_the_pipes(agent: Agent) -> None:
    pid = agent.start("sh", "-c", "sleep 600 & echo $!")
    wrote, end = agent.until_end(pid)
    os.kill(int(wrote["out"]), signal.SIGKILL)
    assert end == "exited 0"


def test_a_process_starts_with_default_signals_in_a_session_of_its_own(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent(prefix=("nohup",))  # it ignores SIGHUP, and SIGPIPE by itself
    status = agent.run("cat", "/proc/self/status")[0]["out"].decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    # A C library keeps 32 and 33 to itself: its posix_spawn, which make uses, leaves them ignored.
    own = 0b11 << 31
    assert (int(fields["SigBlk"], 16) & ~own, int(fields["SigIgn"], 16) & ~own) == (0, 0)
    after_name = agent.run("cat", "/proc/self/stat")[0]["out"].decode().rpartition(")")[2].split()
    pid = agent.start("sleep", "600")
    assert os.getsid(int(pid)) == int(pid)
    assert int(after_name[1]) == agent.process.pid
    assert agent.run("cat", "/proc/self/oom_score_adj")[0]["out"] in {b"0\n", _inherited_score()}
    links = agent.run("ls", "-l", "/proc/self/fd")[0]["out"].decode()
    assert links.count("pipe:") == 3, links  # none of the agent's own
    agent.ask("kill", pid, int(signal.SIGKILL))


def _inherited_score() -> bytes:
    """Return our own score where it may not be lowered to 0."""
    own = Path("/proc/self/oom_score_adj").read_bytes()
    return own if int(own) > 0 and os.geteuid() else b"0\n"


def test_many_processes_run_at_once_and_each_is_told_apart(agent: Agent) -> None:
    pids = [agent.start("sh", "-c", f"read line; echo {number}; exit {number}") for number in range(40)]
    for pid in pids:
        agent.ask("input", pid, b"\n")
    frames: dict[str, list[Frame]] = {pid: [] for pid in pids}
    while sum(one[-1].verb == "end" for one in frames.values() if one) < 40:
        one = agent.unasked.pop(0) if agent.unasked else agent.hear()
        frames[one.tag].append(one)
    for number, pid in enumerate(pids):
        assert b"".join(one.payload for one in frames[pid]) == b"%d\nexited %d" % (number, number)


@pytest.mark.parametrize("how", ["end of input", "shutdown", "malformed frame", "death"])
def test_processes_die_with_the_agent(agent: Agent, how: str) -> None:
    pid = agent.start("sh", "-c", "sleep 600 & echo $!; wait")
    while not agent.unasked:
        agent.ask("stat", "/")
    inner = int(agent.unasked[0].payload)
    if how == "end of input":
        agent.close_port()
    elif how == "shutdown":
        assert agent.ask("shutdown").verb == "ok"
    elif how == "malformed frame":
        agent.send(b"\n")
    else:
        agent.process.kill()
    expected = {"malformed frame": 2, "death": -signal.SIGKILL}.get(how, 0)
    assert agent.process.wait(PATIENCE) == expected
    assert gone(int(pid))
    if how == "death":
        os.kill(inner, signal.SIGKILL)  # the kernel ends only what the agent itself started
    else:
        assert gone(inner)


def test_answers_are_written_even_where_the_input_has_ended(native_bin: Path) -> None:
    requests = b"".join(frame(number, "read", "/proc/self/comm") for number in range(300))
    done = subprocess.run(
        [native_bin / "moetier-agent", "-"], input=requests, capture_output=True, check=True, timeout=60
    )
    assert done.stdout.count(b" ok 14\nmoetier-agent\n") == 300
    assert done.stderr == b""


@pytest.mark.parametrize(
    "header",
    [
        b"\n",
        b"word\n",
        b"1 read\n",
        b"1 read \n",
        b" read 1\n",
        b"1  1\n",
        b"1 read -1\n",
        b"1 read 1x\n",
        b"1 read 1 \n",
        b"1 read 4194305\n",
        b"1 read 99999999999999999999\n",
        b"1 read\0 1\n",
        b"x" * 33 + b" read 1\n",
        b"x" * 200,
        b"\x1b[2J\xff read y\n",
    ],
)
def test_a_malformed_header_ends_it_with_a_message(agent: Agent, header: bytes) -> None:
    agent.send(frame("first", "stat", "/") + header)
    assert (agent.hear().tag, agent.process.wait(PATIENCE)) == ("first", 2)
    assert agent.process.stderr is not None
    said = agent.process.stderr.read()
    assert said.startswith(b'moetier-agent: malformed header "')
    assert said.count(b"\n") == 1
    assert all(b" " <= bytes([byte]) <= b"~" for byte in said[:-1])


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "expected one port"),
        (("a", "b"), 2, "expected one port"),
        (("/nonexistent/tty",), 1, "/nonexistent/tty"),
    ],
)
def test_it_says_what_port_it_cannot_use(native_bin: Path, arguments: Sequence[str], status: int, said: str) -> None:
    command = [native_bin / "moetier-agent", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status
    assert said in done.stderr


def test_a_port_that_is_no_device_is_refused(native_bin: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [native_bin / "moetier-agent", tmp_path / "file"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "is no character device" in done.stderr) == (1, True)


def test_a_terminal_carries_every_byte_as_it_is(native_bin: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([native_bin / "moetier-agent", os.ttyname(theirs)], stdin=subprocess.DEVNULL) as process:
        try:
            agent = Agent(process, ours, ours)
            mode = termios.tcgetattr(theirs)
            assert not mode[3] & (termios.ECHO | termios.ICANON | termios.ISIG)
            content = bytes(range(256)) * 256
            (tmp_path / "file").write_bytes(content)
            assert agent.ask("read", tmp_path / "file").payload == content
            (tmp_path / "file").write_bytes(b"")
            assert agent.ask("write", tmp_path / "file", content[:2048]).verb == "ok"
            assert (tmp_path / "file").read_bytes() == content[:2048]
            assert agent.run("printf", "a\\nb")[0]["out"] == b"a\nb"
            assert agent.ask("shutdown").verb == "ok"
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            os.close(ours)
            os.close(theirs)


@pytest.mark.parametrize("name", ["moetier-agent", "moetier-replay", "moetier-balloon"])
def test_the_static_executables_need_no_library_and_run(name: str) -> None:
    try:
        path = static_executable(name)
    except UnsupportedHostError as error:
        pytest.skip(str(error))
    content = path.read_bytes()
    assert content[:4] == b"\x7fELF"
    offset, size, count = (
        int.from_bytes(content[at : at + width], sys.byteorder) for at, width in ((32, 8), (54, 2), (56, 2))
    )
    kinds = [int.from_bytes(content[offset + size * i :][:4], sys.byteorder) for i in range(count)]
    interpreter, dynamic = 3, 2
    assert interpreter not in kinds
    assert dynamic not in kinds
    done = subprocess.run([path, "--version"], capture_output=True, check=True, env={})
    assert done.stdout.startswith(name.encode())


def test_a_missing_static_executable_names_where_it_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOETIER_BIN", str(tmp_path))
    with pytest.raises(UnsupportedHostError) as error:
        static_executable("moetier-agent")
    assert f"{tmp_path}/static/moetier-agent (absent)" in str(error.value)
    assert "apt-get install libc6-dev" in str(error.value)
    (tmp_path / "static").mkdir()
    found = tmp_path / "static" / "moetier-agent"
    found.write_text("")
    found.chmod(0o755)
    assert static_executable("moetier-agent") == found
