"""Locked memory: the real balloon in small, and one that misbehaves."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_moetier.errors import HarnessError, HostBusyError, MoetierError, UnsupportedHostError
from pytest_moetier.host import balloon, procfs
from pytest_moetier.host.balloon import Balloon
from pytest_moetier.host.restore import HostLock, Journal
from pytest_moetier.native import executable as find

Fake = Callable[[str], Path]

MIB = 1 << 20
SIZE = 64 * MIB


@pytest.fixture
def executable() -> Path:
    try:
        path = find("moetier-balloon")
    except MoetierError as error:
        pytest.skip(str(error))
    if balloon.mem_available_bytes() < 3 << 30:
        pytest.skip("less than 3 GiB of memory available")
    return path


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """Return a function that makes a balloon which behaves as the given lines of Python say."""

    def make(code: str) -> Path:
        path = tmp_path / "fake-balloon"
        path.write_text(f"#!{sys.executable}\nimport sys, json\n" + textwrap.dedent(code))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


def test_it_locks_what_was_asked_resizes_and_lets_go(executable: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    with Journal(state) as journal, Balloon.start(executable, SIZE, journal=journal) as running:
        overhead = running.locked_bytes - SIZE
        assert overhead >= 0
        assert running.reported_bytes == running.locked_bytes
        assert running.alive()
        assert '"comm": "moetier-balloon"' in journal.path.read_text()
        running.resize(2 * SIZE)
        assert running.locked_bytes == 2 * SIZE + overhead
        running.resize(SIZE // 2)
        assert running.locked_bytes == SIZE // 2 + overhead
        assert running.status()["bytes"] == SIZE // 2
        running.close()
        assert not running.alive()
        assert running.locked_bytes == 0
        assert journal.close() == []


def test_memory_available_comes_to_the_target(executable: Path) -> None:
    try:
        with HostLock(wait_seconds=60):  # a bench meanwhile would move the memory that is measured here
            target = balloon.mem_available_bytes() - 256 * MIB
            with balloon.inflate_to(executable, target, tolerance=32 * MIB) as running:
                assert abs(balloon.mem_available_bytes() - target) <= 64 * MIB
                assert running.requested_bytes <= 768 * MIB
    except HostBusyError as error:
        pytest.skip(str(error))


def test_memory_that_others_move_is_not_chased(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake("print(json.dumps({'event': 'locked', 'bytes': 1, 'vmlck_bytes': 1 << 60}), flush=True); input()")
    still = [10 << 30] * 4  # until the balloon is inflated
    readings = iter([*still, 30 << 30])
    monkeypatch.setattr(balloon, "mem_available_bytes", lambda: next(readings))
    with pytest.raises(HostBusyError, match=r"moved by 20\.5 GiB while the balloon was inflated"):
        balloon.inflate_to(path, (10 << 30) - (512 * MIB))


def test_memory_that_is_still_coming_back_is_waited_for(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake("print(json.dumps({'event': 'locked', 'bytes': 1, 'vmlck_bytes': 1 << 60}), flush=True); input()")
    coming_back = [10 << 30, 10 << 30, 11 << 30, 12 << 30, 12 << 30]
    readings = iter([*coming_back, 12 << 30, 9 << 30])  # then the size is set, and the target is met
    monkeypatch.setattr(balloon, "mem_available_bytes", lambda: next(readings))
    with balloon.inflate_to(path, 9 << 30) as running:
        assert running.requested_bytes == 3 << 30


def test_one_that_is_killed_is_seen_and_named(executable: Path) -> None:
    with Balloon.start(executable, SIZE) as running:
        os.kill(running.pid, 9)
        until = time.monotonic() + 10
        while running.alive() and time.monotonic() < until:
            time.sleep(0.01)
        assert not running.alive()
        assert running.locked_bytes == 0
        with pytest.raises(HarnessError, match="exit status -9"):
            running.resize(2 * SIZE)


def test_it_dies_with_the_process_that_started_it(executable: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from pytest_moetier.host.balloon import Balloon\n"
        "print(Balloon.start(Path(sys.argv[1]), 1 << 22).pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(executable)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert procfs.process_id(pid) is not None
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 10
    while procfs.process_id(pid) is not None and time.monotonic() < until:
        time.sleep(0.01)
    assert procfs.process_id(pid) is None


def test_a_target_below_the_reserve_names_the_guest_lane() -> None:
    with pytest.raises(
        UnsupportedHostError, match=r"leave the host 512 MiB; expected .*1 GiB; next: .*virtual machine"
    ):
        balloon.check_target(512 * MIB)


def test_a_target_above_what_is_available_is_not_a_balloons_work() -> None:
    available = balloon.mem_available_bytes()
    with pytest.raises(UnsupportedHostError, match="MemAvailable is"):
        balloon.check_target(2 * available)


def test_a_failed_mlock_is_fatal_with_its_own_message_and_the_fix(fake: Fake) -> None:
    path = fake("sys.stderr.write('mlock: RLIMIT_MEMLOCK is 65536 bytes\\n'); sys.exit(3)")
    with pytest.raises(
        UnsupportedHostError, match=r"RLIMIT_MEMLOCK is 65536 bytes; expected mlock.*ulimit -l unlimited"
    ):
        Balloon.start(path, SIZE)


def test_one_that_cannot_run_here_is_an_unsupported_host(fake: Fake) -> None:
    with pytest.raises(UnsupportedHostError, match="cannot run here: no mlock"):
        Balloon.start(fake("sys.stderr.write('no mlock'); sys.exit(77)"), SIZE)


def test_one_that_locks_less_than_asked_is_refused(fake: Fake) -> None:
    path = fake("print(json.dumps({'event': 'locked', 'bytes': 4096, 'vmlck_bytes': 4096}), flush=True); input()")
    with pytest.raises(HarnessError, match=r"locked 4 KiB; expected 64 MiB"):
        Balloon.start(path, SIZE)


def test_the_watchdogs_reason_is_kept(fake: Fake) -> None:
    path = fake(
        """
        print(json.dumps({"event": "locked", "bytes": 8192, "vmlck_bytes": 8192}), flush=True)
        input()
        print(json.dumps({"event": "released", "why": "MemAvailable 400 MiB", "mem_available_bytes": 1}), flush=True)
        sys.exit(4)
        """
    )
    with Balloon.start(path, 8192) as running:
        assert running.released_reason is None
        with pytest.raises(HarnessError, match="the balloon let go: MemAvailable 400 MiB"):
            running.resize(16384)
        assert running.released_reason == "MemAvailable 400 MiB"
        assert not running.alive()


def test_one_that_says_nothing_is_given_up_and_ended(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balloon, "_ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(balloon, "_CLOSE_SECONDS", 0.3)
    path = fake("import time; open(sys.argv[0] + '.pid', 'w').write(str(__import__('os').getpid())); time.sleep(60)")
    with pytest.raises(HarnessError, match="gave no 'locked' line"):
        Balloon.start(path, 4096)
    pid_file = Path(f"{path}.pid")
    assert not pid_file.exists() or procfs.process_id(int(pid_file.read_text())) is None
