"""What an iteration holds beside its accesses: the spine before them and the compute phase after them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .test_replay import rest, started

PAGE = 4096
SIZE = 100 * PAGE + 123  # more than a destination, and no whole number of pages
NO_LEAVE_TO_LOCK = (
    *("prlimit", "--memlock=65536:65536"),
    *("setpriv", "--bounding-set=-ipc_lock,-sys_resource", "--inh-caps=-ipc_lock,-sys_resource"),
)

Replay = Callable[..., Any]
MakePool = Callable[..., Any]


def add_spine(pool: Any, size: int = SIZE) -> Path:
    """Write a spine into the pool's folder."""
    path: Path = pool.root / "spine.bin"
    path.write_bytes(os.urandom(size))
    return path


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("mode", ["page_cache", "direct"])
@pytest.mark.parametrize("size", [1, 3 * PAGE, SIZE])
def test_the_spine_is_copied_once_per_iteration(
    replay: Replay, make_pool: MakePool, size: int, mode: str, threads: int
) -> None:
    pool = make_pool(accesses=((0, 1, 2, 3), (), (4,), (5, 6, 7)))
    add_spine(pool, size)
    outcome = replay(pool, "--spine", "spine.bin", "--mode", mode, "--threads", str(threads), "--destinations", "9")
    assert outcome.exit == 0, outcome.stderr
    assert outcome.only("start")["spine_bytes"] == size
    assert outcome.only("ready")["locked_bytes"] == 0
    for done in outcome.named("pass"):
        assert done["spine_bytes"] == 4 * size
        assert (done["accesses"], done["bytes"]) == (8, 8 * 16 * PAGE)  # the spine is no access


def test_a_spine_that_is_copied_becomes_resident_as_a_whole(
    replay: Replay, make_pool: MakePool, resident: Callable[[Path], int]
) -> None:
    pool = make_pool(accesses=((0,),))
    path = add_spine(pool)
    fd = os.open(path, os.O_RDONLY)
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    assert resident(path) == 0
    assert replay(pool, "--spine", "spine.bin", "--threads", "2", "--passes", "one").exit == 0
    assert resident(path) == 101


def test_without_a_spine_nothing_is_copied_or_locked(replay: Replay, make_pool: MakePool) -> None:
    outcome = replay(make_pool())
    assert outcome.only("start")["spine_bytes"] == 0
    assert outcome.only("ready")["locked_bytes"] == 0
    assert [done["spine_bytes"] for done in outcome.named("pass")] == [0, 0]


def test_a_locked_spine_is_locked_when_the_first_pass_begins(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool()
    add_spine(pool)
    outcome = replay(pool, "--spine", "spine.bin", "--spine-lock", "--capture", "/proc/self/status")
    if outcome.exit == 3:
        pytest.skip(outcome.stderr)
    assert outcome.only("ready")["locked_bytes"] == 101 * PAGE
    for capture in outcome.named("capture"):
        status = dict(line.split(":", 1) for line in capture["files"][0]["text"].splitlines())
        assert status["VmLck"].split() == [str(101 * PAGE // 1024), "kB"]


def test_a_spine_that_cannot_be_locked_ends_the_replay_with_3(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool()
    add_spine(pool)
    outcome = replay(pool, "--spine", "spine.bin", "--spine-lock", prefix=NO_LEAVE_TO_LOCK)
    assert outcome.exit == 3, outcome.stderr
    error = outcome.only("error", code="mlock")
    assert error["path"] == "spine.bin"
    for part in ("bytes refused", "VmLck is 0 bytes", "RLIMIT_MEMLOCK is 65536 bytes", "ulimit -l"):
        assert part in error["message"]
    assert not outcome.named("ready")
    assert outcome.events[-1] == {"event": "end", "partial": True, "exit": 3}


def test_a_small_spine_is_locked_within_a_small_limit(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool()
    add_spine(pool, 2 * PAGE)
    outcome = replay(pool, "--spine", "spine.bin", "--spine-lock", prefix=NO_LEAVE_TO_LOCK)
    assert outcome.exit == 0, outcome.stderr
    assert outcome.only("ready")["locked_bytes"] == 2 * PAGE


@pytest.mark.parametrize("path", ["../spine.bin", "a/../../spine.bin", "/etc/passwd", "..", ""])
def test_a_spine_outside_the_root_is_refused(replay: Replay, make_pool: MakePool, path: str) -> None:
    pool = make_pool()
    (pool.root.parent / "spine.bin").write_bytes(bytes(PAGE))
    outcome = replay(pool, "--spine", path)
    assert outcome.exit == 2
    message = outcome.only("error", code="usage")["message"]
    assert message.startswith("--spine ")
    assert "below" in message


def test_a_link_to_a_spine_outside_the_root_is_refused(replay: Replay, make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool()
    (tmp_path / "outside").write_bytes(bytes(PAGE))
    (pool.root / "spine.bin").symlink_to(tmp_path / "outside")
    outcome = replay(pool, "--spine", "spine.bin")
    assert outcome.exit == 1
    assert "leaves the pool's folder through a link" in outcome.only("error", code="open")["message"]


def test_an_absolute_spine_is_taken_where_the_plan_may_hold_absolute_paths(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool()
    path = add_spine(pool)
    pool.parts.flags |= 8
    pool.write_plan()
    assert replay(pool, "--spine", path, "--passes", "one").only("pass")["spine_bytes"] == 2 * SIZE


@pytest.mark.parametrize("kind", ["empty", "folder", "pipe", "missing"])
def test_what_is_no_spine_is_refused_without_waiting(replay: Replay, make_pool: MakePool, kind: str) -> None:
    pool = make_pool()
    path = pool.root / "spine.bin"
    if kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    outcome = replay(pool, "--spine", "spine.bin")
    assert outcome.exit == (1 if kind == "missing" else 2)
    assert outcome.only("error")["path"] == "spine.bin"
    assert not outcome.named("start")


@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_spine_truncated_while_mapped_is_an_error_not_a_crash(
    native_bin: Path, make_pool: MakePool, threads: str
) -> None:
    pool = make_pool()
    path = add_spine(pool)
    with started(native_bin, pool, "--spine", "spine.bin", "--threads", threads) as process:
        os.truncate(path, 2 * PAGE)
        events = rest(process)
        assert process.returncode == 1
    (error,) = [e for e in events if e["event"] == "error"]
    assert (error["code"], error["path"], "expert" in error) == ("sigbus", "spine.bin", False)
    assert "truncated while mapped" in error["message"]
    assert [e["iterations"] for e in events if e["event"] == "pass"] == [0]
    assert events[-1] == {"event": "end", "partial": True, "exit": 1}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_compute_phase_ends_every_iteration_and_is_part_of_its_time(
    replay: Replay, make_pool: MakePool, threads: int
) -> None:
    options = ("--compute-seconds", "0.02", *(("--compute-threads", "2") if threads == 2 else ()))
    outcome = replay(make_pool(accesses=((0, 1), (), (2, 3))), *options)
    assert outcome.exit == 0, outcome.stderr
    assert outcome.only("start")["compute_threads"] == threads
    for done in outcome.named("pass"):
        iterations = outcome.named("iteration", **{"pass": done["pass"]})
        assert len(iterations) == 3
        assert all(0 < i["compute_seconds"] <= i["wall_seconds"] for i in iterations)
        assert done["compute_seconds"] == pytest.approx(sum(i["compute_seconds"] for i in iterations), abs=1e-6)
        assert done["compute_seconds"] <= done["wall_seconds"]


def test_a_longer_compute_phase_is_more_work(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(accesses=((0,),) * 5)
    shortest = [
        min(i["compute_seconds"] for i in replay(pool, "--compute-seconds", seconds).named("iteration"))
        for seconds in ("0.01", "0.1")
    ]
    assert shortest[1] > 3 * shortest[0]


def test_without_a_compute_phase_its_time_is_null(replay: Replay, make_pool: MakePool) -> None:
    outcome = replay(make_pool())
    assert outcome.only("start")["compute_threads"] == 0
    assert {e["compute_seconds"] for name in ("iteration", "pass") for e in outcome.named(name)} == {None}


def test_the_compute_phase_has_threads_of_its_own(native_bin: Path, make_pool: MakePool) -> None:
    options = ("--threads", "2", "--compute-seconds", "0.01", "--compute-threads", "3")
    with started(native_bin, make_pool(), *options) as process:
        tasks = Path(f"/proc/{process.pid}/task").iterdir()
        names = sorted((task / "comm").read_text().strip() for task in tasks)
        rest(process)
    assert names == ["moetier-compute"] * 3 + ["moetier-read", "moetier-replay"]


def test_a_signal_ends_a_compute_phase_and_its_iteration_does_not_count(native_bin: Path, make_pool: MakePool) -> None:
    with started(native_bin, make_pool(), "--compute-seconds", "3600", "--threads", "1") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        while json.loads(process.stdout.readline())["event"] != "capture":
            pass
        process.send_signal(signal.SIGTERM)
        events = rest(process, None)
        assert process.returncode == 143
    (done,) = [e for e in events if e["event"] == "pass"]
    assert (done["iterations"], done["accesses"], done["compute_seconds"], done["partial"]) == (0, 0, 0, True)


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (("--spine-lock",), "expected --spine FILE"),
        (("--compute-threads", "2"), "expected --compute-seconds"),
        (("--compute-seconds", "0"), "a number of seconds above 0"),
        (("--compute-seconds", "-1"), "a number of seconds above 0"),
        (("--compute-seconds", "3601"), "a number of seconds above 0, 3600 at most"),
        (("--compute-seconds", "nan"), "a number of seconds above 0"),
        (("--compute-seconds", "1", "--compute-threads", "0"), "a whole number from 1 to 1024"),
    ],
)
def test_a_spine_or_compute_phase_that_makes_no_sense_is_refused(
    replay: Replay, make_pool: MakePool, options: tuple[str, ...], seen: str
) -> None:
    outcome = replay(make_pool(), *options)
    assert outcome.exit == 2
    assert seen in outcome.only("error", code="usage")["message"]
