"""Journal, recovery after kill -9, and the host lock."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from pytest_moetier.errors import HarnessError, HostBusyError, UnsupportedHostError
from pytest_moetier.host import cgroup, procfs, restore
from pytest_moetier.host.restore import HostLock, Journal, drop_caches, recover


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


def run_until_ready(code: str, *arguments: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def kill(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


CHANGES = """
    import subprocess, sys, time
    from pathlib import Path
    from pytest_moetier.host import cgroup, procfs
    from pytest_moetier.host.restore import Journal
    journal = Journal(Path(sys.argv[1]))
    scope = cgroup.create_scope("crash", journal)
    scope.set_limit(64 << 20)
    sleeper = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
    scope.add(sleeper.pid)
    other = subprocess.Popen(["sleep", "601"], stdout=subprocess.DEVNULL)
    found = procfs.process_id(other.pid)
    journal.record("process", pid=found.pid, start_ticks=found.start_ticks, comm=found.comm)
    journal.record("value", path=sys.argv[2], old="10", new="20")
    procfs.write_text(sys.argv[2], "20")
    Path(sys.argv[3]).write_text(f"{scope.path} {sleeper.pid} {other.pid}")
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.usefixtures("needs_scope")
def test_after_kill_minus_nine_the_next_start_undoes_everything(state: Path, tmp_path: Path) -> None:
    value, note = tmp_path / "value", tmp_path / "note"
    value.write_text("10")
    child = run_until_ready(CHANGES, str(state), str(value), str(note))
    path, sleeper, other = note.read_text().split()
    assert recover(state) == []  # its owner lives: nothing of a running bench is touched
    assert Path(path).is_dir()
    kill(child)
    lines = recover(state)
    assert len(lines) == 3
    assert lines[0] == f"{value} set back from 20 to 10"
    assert lines[1] == f"process {other} (sleep) ended by SIGTERM"
    assert lines[2] == f"control group {path} removed"
    assert value.read_text() == "10"
    assert not Path(path).exists()
    assert procfs.process_id(int(sleeper)) is None
    assert procfs.process_id(int(other)) is None
    assert list(state.iterdir()) == []
    assert recover(state) == []


def test_a_value_that_someone_else_has_changed_since_is_left_alone(state: Path, tmp_path: Path) -> None:
    value = tmp_path / "value"
    value.write_text("10")
    journal = Journal(state)
    journal.record("value", path=str(value), old="10", new="20")
    value.write_text("30")
    assert journal.close() == []
    assert value.read_text() == "30"


def test_a_change_that_was_journaled_but_never_made_needs_no_undoing(state: Path, tmp_path: Path) -> None:
    value = tmp_path / "value"
    value.write_text("10")
    journal = Journal(state)
    journal.record("value", path=str(value), old="10", new="20")
    journal.record("cgroup", path="/sys/fs/cgroup/moetier-1-never")
    assert journal.close() == []
    assert value.read_text() == "10"
    assert not journal.path.exists()


def test_a_process_with_a_reused_pid_is_not_killed(state: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    found = procfs.process_id(child.pid)
    assert found is not None
    journal = Journal(state)
    journal.record("process", pid=child.pid, start_ticks=found.start_ticks + 1, comm="sleep")
    journal.record("process", pid=child.pid, start_ticks=found.start_ticks, comm="other")
    assert journal.close() == []
    assert child.poll() is None
    child.kill()
    child.wait()


def test_a_group_that_is_not_ours_is_never_removed(state: Path) -> None:
    journal = Journal(state)
    journal.record("cgroup", path="/sys/fs/cgroup/memory/system.slice")
    (line,) = journal.close()
    assert "is not one of ours" in line
    assert "could not undo cgroup" in line


def test_what_cannot_be_undone_is_said_again_at_the_next_start(state: Path) -> None:
    boot = restore.boot_id()
    rows = [
        {"owner": 1 << 30, "start_ticks": 1, "boot": boot},
        {"do": "1", "kind": "cgroup", "undo": {"path": "/not-ours"}},
        {"do": "2", "kind": "value", "undo": {"path": "/gone", "old": "1", "new": "2"}},
    ]
    path = state / "journal-1073741824-1-0.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"do": "3", "ki')
    first = recover(state)
    assert len(first) == 1
    assert "could not undo cgroup" in first[0]
    assert recover(state) == first


def test_a_journal_of_an_earlier_boot_is_dropped_unread(state: Path, tmp_path: Path) -> None:
    value = tmp_path / "value"
    value.write_text("2")
    rows = [
        {"owner": os.getpid(), "start_ticks": 1, "boot": "another"},
        {"do": "1", "kind": "value", "undo": {"path": str(value), "old": "1", "new": "2"}},
    ]
    (state / "journal-1-1-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert recover(state) == []
    assert value.read_text() == "2"
    assert list(state.iterdir()) == []


def test_a_journal_whose_owners_pid_was_reused_is_undone(state: Path, tmp_path: Path) -> None:
    value = tmp_path / "value"
    value.write_text("2")
    rows = [
        {"owner": os.getpid(), "start_ticks": 1, "boot": restore.boot_id()},  # our pid, another start
        {"do": "1", "kind": "value", "undo": {"path": str(value), "old": "1", "new": "2"}},
    ]
    (state / "journal-1-1-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert recover(state) == [f"{value} set back from 2 to 1"]
    assert value.read_text() == "1"


def test_exit_without_closing_undoes_last_first(state: Path, tmp_path: Path) -> None:
    value = tmp_path / "value"
    value.write_text("30")
    code = """
        import sys; from pathlib import Path; from pytest_moetier.host.restore import Journal
        journal = Journal(Path(sys.argv[1]))
        journal.record("value", path=sys.argv[2], old="10", new="20")
        journal.record("value", path=sys.argv[2], old="20", new="30")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(state), str(value)], check=True)
    assert value.read_text() == "10"
    assert list(state.iterdir()) == []


def test_a_forked_child_does_not_undo_its_parents_changes(state: Path, tmp_path: Path) -> None:
    value = tmp_path / "value"
    value.write_text("20")
    code = """
        import os, sys; from pathlib import Path; from pytest_moetier.host.restore import Journal
        journal = Journal(Path(sys.argv[1]))
        journal.record("value", path=sys.argv[2], old="10", new="20")
        if os.fork() == 0:
            sys.exit()
        os.wait()
        print(Path(sys.argv[2]).read_text())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(state), str(value)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "20\n"
    assert value.read_text() == "10"


def test_an_unknown_kind_is_refused_before_anything_is_written(state: Path) -> None:
    with Journal(state) as journal:
        size = journal.path.stat().st_size
        with pytest.raises(HarnessError, match="journal kind 'disk' is unknown"):
            journal.record("disk", path="/")
        assert journal.path.stat().st_size == size


def test_the_journal_is_private(state: Path) -> None:
    with Journal(state) as journal:
        assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600


def test_a_state_folder_that_is_a_link_or_open_to_others_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    with pytest.raises(UnsupportedHostError, match=r"mode drwxr-xr-x; expected .*drwx------"):
        Journal(shared)
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(real)
    with pytest.raises(UnsupportedHostError, match="mode lrwxrwxrwx"):
        recover(link)


def test_a_journal_that_is_a_link_is_not_followed(state: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text('{"owner": 1073741824, "start_ticks": 1, "boot": ""}\n')
    (state / "journal-1-1-0.jsonl").symlink_to(victim)
    assert recover(state) == []
    assert victim.exists()


def test_a_second_bench_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    code = """
        import sys, time; from pathlib import Path; from pytest_moetier.host.restore import HostLock
        HostLock(path=Path(sys.argv[1])).acquire(); print("ready", flush=True); time.sleep(600)
    """
    path = tmp_path / "lock"
    child = run_until_ready(code, str(path))
    try:
        with pytest.raises(
            HostBusyError, match=rf"pid {child.pid} \(.*python.*\), started \d{{4}}-.*one bench per host"
        ):
            HostLock(path=path).acquire()
        waiter = threading.Timer(0.5, child.kill)
        waiter.start()
        with HostLock(wait_seconds=30, path=path):  # waits until the holder is gone, however it went
            waiter.join()
            child.wait(timeout=10)
    finally:
        kill(child)
    with HostLock(path=path):
        pass


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "lock").symlink_to(target)
    with pytest.raises(UnsupportedHostError, match="regular file"):
        HostLock(path=tmp_path / "lock").acquire()
    assert not target.exists()


def test_the_holder_is_read_from_the_kernels_table() -> None:
    table = "1: POSIX  ADVISORY  READ 5 fe:00:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 4242 00:2f:77 0 EOF\n"
    assert restore.lock_holder(table, 77) == 4242
    assert restore.lock_holder(table, 78) is None


def test_dropping_by_file_leaves_nothing_of_them_resident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(os.urandom(1 << 20))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    dropped = drop_caches(files)
    assert dropped.how == "fadvise"
    assert dropped.resident_bytes in {0, None}


def test_dropping_as_root_empties_the_files_pages(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        pytest.skip("not root")
    file = tmp_path / "a"
    file.write_bytes(os.urandom(1 << 20))
    assert drop_caches([file]) == restore.Dropped("drop_caches", 0)


@pytest.mark.usefixtures("needs_scope")
def test_a_closed_scope_is_not_undone_twice(state: Path) -> None:
    with Journal(state) as journal:
        scope = cgroup.create_scope("once", journal)
        scope.close()
        started = time.monotonic()
        assert journal.close() == []
        assert time.monotonic() - started < 5
