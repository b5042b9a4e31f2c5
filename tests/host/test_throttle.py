"""The read limit, really at work on this host where it can be, and on recorded hosts."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from trees import Recorded

from pytest_moetier.errors import HarnessError, InputError, UnsupportedHostError
from pytest_moetier.host import blockdev, loopdev, probe, procfs, residency, restore, throttle, undo
from pytest_moetier.host.blockdev import BlockDevice
from pytest_moetier.host.restore import Journal, recover
from pytest_moetier.host.throttle import BURST_SECONDS, limit_of, read_limit, read_limit_support

MIB = 1 << 20
SIZE = 24 * MIB
LIMIT = 12_000_000

READER = """
import hashlib, mmap, os, sys, threading, time

path, how, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
size = os.stat(path).st_size
parts = [b""] * threads

def direct(first, last):
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 1 << 20)
    for at in range(first, last, 1 << 20):
        assert os.preadv(descriptor, [buffer], at) == 1 << 20
        yield buffer[:]

def buffered(first, last):
    descriptor = os.open(path, os.O_RDONLY)
    for at in range(first, last, 1 << 20):
        yield os.pread(descriptor, 1 << 20, at)

def mapped(first, last):
    with open(path, "rb") as file:
        yield mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[first:last]

def read(number):
    step = size // threads
    parts[number] = b"".join(globals()[how](number * step, (number + 1) * step))

print("ready", flush=True)
sys.stdin.readline()
started = time.monotonic()
workers = [threading.Thread(target=read, args=(number,)) for number in range(threads)]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
print(time.monotonic() - started, hashlib.sha256(b"".join(parts)).hexdigest(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def needs_limit() -> None:
    """Skip where no read limit can be had."""
    support = read_limit_support()
    if not support.available:
        pytest.skip(f"{support.reason}; {support.fix}")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


@dataclass(frozen=True)
class Stored:
    """A file of 24 MiB on a loop device of its own."""

    path: Path
    digest: str
    device: BlockDevice
    mount: int

    def device_bytes(self) -> int:
        return procfs.parse_diskstat_row(procfs.read_text(self.device.stat_path)).read_bytes


@pytest.fixture
def stored(image: Path, needs_limit: None) -> Iterator[Stored]:  # noqa: ARG001
    content = os.urandom(SIZE)
    with loopdev.attach(image, read_only=False) as loop:
        mount = loopdev.mount_detached(loop, read_only=False)
        Path(f"/proc/self/fd/{mount}/x").write_bytes(content)
        os.close(mount)
    with loopdev.attach(image, read_only=True) as loop:
        mount = loopdev.mount_detached(loop, read_only=True)
        try:
            path = Path(f"/proc/self/fd/{mount}/x")
            residency.drop_file(path)
            yield Stored(path, hashlib.sha256(content).hexdigest(), loop.device, mount)
        finally:
            os.close(mount)


@contextmanager
def reader(stored: Stored, how: str, threads: int = 1) -> Iterator[subprocess.Popen[str]]:
    """Start a process that waits, reads the file when told to, says how long it took and what it read, and waits."""
    child = subprocess.Popen(
        [sys.executable, "-c", READER, str(stored.path), how, str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[stored.mount],
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            pipe.close()


def go(child: subprocess.Popen[str]) -> tuple[float, str]:
    """Let it read; return the seconds of its own clock and the digest of what it read."""
    tell(child)
    assert child.stdout is not None
    seconds, digest = child.stdout.readline().split()
    return float(seconds), digest


def tell(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


@pytest.mark.parametrize(
    ("how", "threads"), [("buffered", 1), ("buffered", 4), ("direct", 1), ("direct", 4), ("mapped", 1)]
)
def test_cold_reads_take_at_least_as_long_as_the_limit_says_and_are_right(
    stored: Stored, state: Path, how: str, threads: int
) -> None:
    with Journal(state) as journal:
        with reader(stored, how, threads) as child, read_limit(stored.device, LIMIT, journal) as limit:
            limit.add(child.pid)
            before = stored.device_bytes()
            seconds, digest = go(child)
            assert stored.device_bytes() - before == SIZE  # cold: all of it came from the device
            assert limit.read_bytes() == SIZE  # and all of it was asked for in the limited group
            assert limit.observed() == LIMIT
        assert journal.close() == []
    assert digest == stored.digest
    lower = SIZE / LIMIT - BURST_SECONDS
    assert lower > 1.6
    assert seconds >= lower


def test_what_is_cached_does_not_wait(stored: Stored) -> None:
    stored.path.read_bytes()
    with reader(stored, "buffered") as child, read_limit(stored.device, LIMIT) as limit:
        limit.add(child.pid)
        assert go(child)[1] == stored.digest
        assert limit.read_bytes() == 0


def test_a_limit_on_the_disk_below_an_image_holds_for_reads_of_the_loop_device(stored: Stored, image: Path) -> None:
    (disk,) = blockdev.devices_of(image)
    if disk.major == 0:
        pytest.skip(f"{disk.name} has no number")
    with reader(stored, "direct") as child, read_limit(disk, LIMIT) as limit:
        limit.add(child.pid)
        seconds, _ = go(child)
        assert limit.read_bytes() == SIZE  # the loop's worker reads in the group of whoever asked
    assert seconds >= SIZE / LIMIT - BURST_SECONDS


def group_of(pid: int) -> str:
    return procfs.read_text(f"/proc/{pid}/cgroup")


def test_at_the_end_what_waits_is_let_go_and_the_process_is_back_where_it_was(stored: Stored) -> None:
    with reader(stored, "mapped") as child:
        before = group_of(child.pid)
        with read_limit(stored.device, 1 << 16) as limit:  # all of it would take six minutes
            limit.add(child.pid)
            assert group_of(child.pid) != before
            path = limit.path
            tell(child)
            while not limit.read_bytes():
                assert child.poll() is None
        assert not path.exists()
        assert group_of(child.pid) == before
        assert child.stdout is not None
        assert child.stdout.readline().split()[1] == stored.digest


def test_a_process_may_limit_itself(stored: Stored) -> None:
    before = group_of(os.getpid())
    with read_limit(stored.device, 10**9) as limit:
        limit.add(os.getpid())
        limit.add(os.getpid())
        assert stored.path.stat().st_size == SIZE
        residency.drop_file(stored.path)
        assert hashlib.sha256(stored.path.read_bytes()).hexdigest() == stored.digest
        assert limit.read_bytes() == SIZE
    assert group_of(os.getpid()) == before


def test_limits_of_two_devices_hold_for_one_process_at_once(stored: Stored, image: Path) -> None:
    (disk,) = blockdev.devices_of(image)
    if disk.major == 0:
        pytest.skip(f"{disk.name} has no number")
    with reader(stored, "direct") as child, read_limit(disk, 10**9) as outer:
        outer.add(child.pid)
        with read_limit(stored.device, LIMIT) as inner:
            inner.add(child.pid)
            assert str(outer.path) in inner.describe()
            seconds, _ = go(child)
            assert (inner.read_bytes(), outer.read_bytes()) == (SIZE, SIZE)
            assert (inner.observed(), outer.observed()) == (LIMIT, 10**9)
        assert not inner.path.exists()
        assert outer.observed() == 10**9
        assert limit_of(procfs.read_text(outer.path / throttle._LIMIT[1]), inner.number) is None  # noqa: SLF001
    assert seconds >= SIZE / LIMIT - BURST_SECONDS


def test_it_says_what_is_limited_and_by_what(stored: Stored) -> None:
    with read_limit(stored.device, LIMIT) as limit:
        name, number = stored.device.name, f"{stored.device.major}:{stored.device.minor}"
        assert limit.describe().startswith(f"reads from {name} ({number}) limited to 12 MB/s by ")
        assert limit.describe().endswith(f" of {limit.path}")


def test_a_limit_that_someone_else_has_changed_is_seen(stored: Stored) -> None:
    with read_limit(stored.device, LIMIT) as limit:
        file = limit.path / throttle._LIMIT[int(read_limit_support().kind[1])]  # noqa: SLF001
        procfs.write_text(file, limit._line("1000"))  # noqa: SLF001
        assert limit.observed() == 1000
        undo.remove_group(str(limit.path))
        assert limit.observed() is None
        assert limit.read_bytes() is None


def test_a_process_that_is_gone_cannot_be_limited(stored: Stored) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with read_limit(stored.device, LIMIT) as limit, pytest.raises(HarnessError, match="No such process"):
        limit.add(child.pid)


def test_a_device_that_is_not_there_is_refused_and_no_group_stays(stored: Stored, state: Path) -> None:
    gone = replace(stored.device, minor=stored.device.minor + 200)
    with Journal(state) as journal:
        with pytest.raises(HarnessError, match="No such device"), read_limit(gone, LIMIT, journal):
            pass
        assert journal.close() == []
    hierarchy = throttle._hierarchy()  # noqa: SLF001
    assert hierarchy is not None
    assert list(hierarchy.parents[0].glob(f"moetier-{os.getpid()}-read-*")) == []


CRASH = """
    import subprocess, sys, time
    from pathlib import Path
    from pytest_moetier.host import blockdev
    from pytest_moetier.host.restore import Journal
    from pytest_moetier.host.throttle import read_limit
    journal = Journal(Path(sys.argv[1]))
    (device,) = blockdev.devices_of(sys.argv[2])
    with read_limit(device, 1 << 16, journal) as limit:
        command = ["sh", "-c", "read _; exec cat $0", sys.argv[2]]  # it reads when it is limited, not before
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
        reader = subprocess.Popen(command, **streams, close_fds=False, text=True)
        limit.add(reader.pid)
        Path(sys.argv[3]).write_text(f"{limit.path} {reader.pid}")
        print(file=reader.stdin, flush=True)
        print("ready", flush=True)
        time.sleep(600)
"""


def test_after_kill_minus_nine_the_next_start_removes_the_group_though_requests_still_wait(
    stored: Stored, state: Path, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CRASH), str(state), str(stored.path), str(note)],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[stored.mount],
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    path, pid = note.read_text().split()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert int(pid) in undo.group_pids(Path(path))  # it reads on, as slowly as before
    assert recover(state) == [f"control group {path} removed"]
    assert not Path(path).exists()
    assert procfs.process_id(int(pid)) is None
    assert list(state.iterdir()) == []
    assert recover(state) == []


def test_the_doctor_says_whether_reads_can_be_limited() -> None:
    (check,) = [check for check in probe.doctor_report() if check.name == "read limit"]
    support = read_limit_support()
    assert check.state == ("ok" if support.available else "missing")
    assert check.observed == support.reason
    assert bool(check.fix) != support.available


@pytest.mark.parametrize("rate", [0, -1, 1 << 63])
def test_a_limit_that_is_no_positive_number_is_refused(rate: int) -> None:
    with pytest.raises(InputError, match="a positive number of bytes a second"), read_limit(LOOP, rate):
        pass


LOOP = BlockDevice("loop3", 7, 3, "/s", "/i", "/q", True, 128, 1280, False)  # noqa: FBT003


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("7:3 12000000\n", 12000000),
        ("254:0 5\n7:3 12000000\n", 12000000),
        ("7:30 5\n", None),
        ("", None),
        ("254:0 rbps=5 wbps=max riops=max wiops=max\n7:3 rbps=12000000 wbps=max riops=max wiops=max\n", 12000000),
        ("7:3 rbps=max wbps=1048576 riops=max wiops=max\n", None),
        ("7:3 wbps=1 riops=2 wiops=3\n", None),
    ],
)
def test_the_limit_is_read_from_both_kernels_files(text: str, rate: int | None) -> None:
    assert limit_of(text, "7:3") == rate


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("7:3 Read 25165824\n7:3 Write 4096\n7:3 Total 25169920\nTotal 25169920\n", 25165824),
        ("254:0 Read 5\nTotal 5\n", 0),
        (
            "254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n7:3 rbytes=25165824 wbytes=0 rios=24 wios=0\n",
            25165824,
        ),
        ("", 0),
    ],
)
def test_the_groups_own_count_is_read_from_both_kernels_files(text: str, count: int) -> None:
    assert throttle._count_of(text, "7:3") == count  # noqa: SLF001


def test_a_host_without_the_controller_is_refused_with_a_fix(recorded: Recorded) -> None:
    recorded("v1-hybrid")
    assert read_limit_support().kind == "none"
    with pytest.raises(UnsupportedHostError, match=r"no control group hierarchy .*block I/O.*; next: mount one"):
        read_limit(LOOP, LIMIT).__enter__()


def with_blkio(root: Path) -> Path:
    mounts = root / "proc/self/mountinfo"
    row = "44 31 0:40 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio\n"
    mounts.write_text(mounts.read_text() + row)
    folder = root / "sys/fs/cgroup/blkio"
    folder.mkdir()
    return folder


def test_a_kernel_without_throttling_is_refused(recorded: Recorded) -> None:
    with_blkio(recorded("v1-hybrid"))
    support = read_limit_support()
    assert support.reason == "/sys/fs/cgroup/blkio has no blkio.throttle.read_bps_device"
    assert "CONFIG_BLK_DEV_THROTTLING" in support.fix


def test_a_hierarchy_that_may_not_be_written_is_refused(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = with_blkio(recorded("v1-hybrid"))
    (folder / "blkio.throttle.read_bps_device").write_text("")
    assert read_limit_support().kind == "v1"
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UnsupportedHostError, match=r"cannot be made by uid .*; next: run as root"):
        read_limit(LOOP, LIMIT).__enter__()


def test_a_hidden_path_cannot_be_limited(recorded: Recorded) -> None:
    (with_blkio(recorded("v1-hybrid")) / "blkio.throttle.read_bps_device").write_text("")
    hidden = replace(LOOP, name="nvme0c0n1", major=0, minor=0)
    with pytest.raises(UnsupportedHostError, match="nvme0c0n1 is a hidden path"):
        read_limit(hidden, LIMIT).__enter__()


def test_a_partition_is_limited_at_its_disk(recorded: Recorded) -> None:
    recorded("dm-over-nvme")
    partition = replace(LOOP, name="nvme0n1p3", major=259, minor=3)
    assert throttle._disk_number(partition) == "259:0"  # noqa: SLF001
    assert throttle._disk_number(replace(LOOP, name="dm-0", major=253, minor=0)) == "253:0"  # noqa: SLF001


@dataclass
class Unified:
    """What a v2 kernel does with what is written: the recorded host's files alone would keep the bytes as they are."""

    root: Path
    written: list[tuple[str, str]] = field(default_factory=list)

    def make(self, path: Path) -> None:
        folder = procfs.at(path)
        folder.mkdir()
        (folder / "cgroup.procs").write_text("")
        self.show_io(folder)

    def show_io(self, folder: Path) -> None:
        if "io" in (folder.parent / "cgroup.subtree_control").read_text().split():
            (folder / "io.max").write_text("")
            (folder / "io.stat").write_text("")

    def write(self, path: str | Path, text: str) -> None:
        self.written.append((str(path), text))
        file = procfs.at(path)
        if not file.exists():
            raise UnsupportedHostError(f"writing {text!r} to {path}: No such file or directory")
        if file.name == "cgroup.subtree_control":
            order = (file.parent / "cgroup.controllers").read_text().split()
            names = set(file.read_text().split())
            names = names | {text[1:]} if text[0] == "+" else names - {text[1:]}
            file.write_text(" ".join(name for name in order if name in names) + "\n")
            for folder in file.parent.iterdir():
                if folder.is_dir():
                    self.show_io(folder)
        elif file.name == "io.max":
            number, rate = text.split(" rbps=")
            file.write_text("" if rate == "max" else f"{number} rbps={rate} wbps=max riops=max wiops=max\n")
        elif file.name == "cgroup.procs":
            for other in self.root.glob("sys/fs/cgroup/**/cgroup.procs"):
                kept = [pid for pid in other.read_text().split() if pid != text]
                other.write_text("".join(f"{pid}\n" for pid in kept))
            file.write_text(file.read_text() + f"{text}\n")
        else:
            file.write_text(text)


@pytest.fixture
def unified(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> Unified:
    kernel = Unified(recorded("v2-systemd"))
    (kernel.root / "sys/fs/cgroup/user.slice/cgroup.controllers").write_text("cpu io memory pids\n")
    (kernel.root / "sys/fs/cgroup/user.slice/cgroup.subtree_control").write_text("memory pids\n")
    monkeypatch.setattr(procfs, "write_text", kernel.write)
    monkeypatch.setattr(throttle, "_make_folder", kernel.make)
    monkeypatch.setattr(undo, "remove_group", remove)
    monkeypatch.setitem(restore._UNDO, "cgroup", remove)  # type: ignore[index]  # noqa: SLF001
    return kernel


def remove(path: str) -> str:
    folder = procfs.at(path)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    return path


def test_on_v2_io_is_switched_on_for_a_group_of_our_own_and_off_again(unified: Unified, state: Path) -> None:
    control = unified.root / "sys/fs/cgroup/cgroup.subtree_control"
    before = control.read_text()
    (unified.root / "proc/77").mkdir()
    (unified.root / "proc/77/cgroup").write_text("0::/user.slice\n")
    with Journal(state) as journal:
        with read_limit(LOOP, LIMIT, journal) as limit:
            assert control.read_text() == "cpu io memory pids\n"
            assert str(limit.path).startswith(f"/sys/fs/cgroup/moetier-{os.getpid()}-read-loop3-")
            assert limit.observed() == LIMIT
            limit.add(77)
            assert undo.group_pids(limit.path) == (77,)
            (procfs.at(limit.path) / "io.stat").write_text("7:3 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n")
            assert limit.read_bytes() == 4096
            assert "by io.max of /sys/fs/cgroup/moetier-" in limit.describe()
        assert undo.group_pids(Path("/sys/fs/cgroup/user.slice")) == (77,)
        assert not procfs.at(limit.path).exists()
        assert control.read_text() == before
        assert journal.close() == []
    assert (f"{limit.path}/io.max", "7:3 rbps=12000000") in unified.written
    assert (f"{limit.path}/io.max", "7:3 rbps=max") in unified.written


def test_on_v2_a_process_in_a_scope_of_ours_stays_there_and_the_scope_is_limited(unified: Unified, state: Path) -> None:
    scope = "/sys/fs/cgroup/user.slice/moetier-9-cell"
    (unified.root / "proc/77").mkdir()
    (unified.root / "proc/77/cgroup").write_text("0::/user.slice/moetier-9-cell\n")
    with Journal(state) as journal:
        with read_limit(LOOP, LIMIT, journal) as limit:
            limit.add(77)
            text = (unified.root / scope[1:] / "io.max").read_text()
            assert text == "7:3 rbps=12000000 wbps=max riops=max wiops=max\n"
            assert undo.group_pids(limit.path) == ()
            assert limit.describe().endswith(f"by io.max of {scope}")
            assert limit.observed() == LIMIT
            procfs.write_text(f"{scope}/io.max", "7:3 rbps=max")
            assert limit.observed() is None
        assert (unified.root / scope[1:] / "io.max").read_text() == ""
        for folder in ("", "/user.slice"):
            assert "io" not in procfs.read_text(f"/sys/fs/cgroup{folder}/cgroup.subtree_control").split()
        assert journal.close() == []


def test_on_v2_a_crash_leaves_a_journal_that_switches_io_off_again(unified: Unified, state: Path) -> None:
    journal = Journal(state)
    held = read_limit(LOOP, LIMIT, journal)
    held.__enter__()
    lines = journal.close()
    assert lines[0].startswith("/sys/fs/cgroup/moetier-")
    assert lines[1] == "/sys/fs/cgroup/cgroup.subtree_control set back from cpu io memory pids to -io"
    assert unified.written[-1] == ("/sys/fs/cgroup/cgroup.subtree_control", "-io")


def test_on_v2_a_group_that_refuses_the_controller_is_named(
    unified: Unified, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(path: str | Path, text: str) -> None:
        if text == "+io":
            raise HarnessError(f"writing '+io' to {path}: Device or resource busy")
        unified.write(path, text)

    monkeypatch.setattr(procfs, "write_text", busy)
    with Journal(state) as journal:
        with pytest.raises(UnsupportedHostError, match=r"cannot be switched on in /sys/fs/cgroup: .* busy"):
            read_limit(LOOP, LIMIT, journal).__enter__()
        assert journal.close() == []


def test_on_v2_a_kernel_without_throttling_is_refused_and_left_as_found(
    unified: Unified, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unified, "show_io", lambda _: None)
    with Journal(state) as journal:
        with pytest.raises(UnsupportedHostError, match=r"has no io\.max; expected a kernel with CONFIG_BLK_CGROUP"):
            read_limit(LOOP, LIMIT, journal).__enter__()
        assert journal.close() == []
    assert "io" not in procfs.read_text("/sys/fs/cgroup/cgroup.subtree_control").split()
