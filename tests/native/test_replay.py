"""The replayer delivers what the plan says, in every mode, and says what it saw."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import SOURCE

MAPPED = ("mmap", "mmap_random", "mmap_willneed", "mmap_populate", "mmap_pread", "mmap_background")
WRITING = ("write_private", "write_shared")
MODES = ("page_cache", "fadv_random", "direct", "drop", *MAPPED, *WRITING)
PAGE = 4096

Replay = Callable[..., Any]
MakePool = Callable[..., Any]


@contextlib.contextmanager
def started(native_bin: Path, pool: Any, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a replay with ``--wait`` and yield it once it is ready; it is ended in any case."""
    command = [native_bin / "moetier-replay", pool.plan, "--root", pool.root, "--wait", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["event"] == "ready":
                break
        try:
            yield process
        finally:
            process.kill()


def rest(process: subprocess.Popen[bytes], text: bytes | None = b"\n") -> list[dict[str, Any]]:
    """Send ``text``, wait for the end and return the events that came."""
    stdout, _ = process.communicate(text, timeout=30)
    return [json.loads(line) for line in stdout.splitlines()]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("layout", ["files", "one_file", "unaligned", "split"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_delivers_every_byte_of_every_layout(
    replay: Replay, make_pool: MakePool, mode: str, layout: str, threads: int
) -> None:
    pool = make_pool(layout, size=10 * PAGE + 20, accesses=((0, 7, 3, 3), (), (1, 2, 4, 5, 6)), mode=mode)
    outcome = replay(pool, "--mode", mode, "--threads", str(threads), "--destinations", "5")
    assert outcome.exit == 0, outcome.stderr
    for name in ("warm", "measured"):
        done = outcome.only("pass", **{"pass": name})
        assert (done["iterations"], done["accesses"], done["bytes"]) == (3, 9, 9 * (10 * PAGE + 20))
        assert done["stamps_checked"] >= 9 * 11  # a stamp cut by an extent's border is compared in two parts
        assert not done["partial"]
        iterations = outcome.named("iteration", **{"pass": name})
        assert [(i["index"], i["accesses"], i["bytes"]) for i in iterations] == [
            (0, 4, 4 * (10 * PAGE + 20)),
            (1, 0, 0),
            (2, 5, 5 * (10 * PAGE + 20)),
        ]
        assert sum(i["wall_seconds"] for i in iterations) == pytest.approx(done["wall_seconds"], abs=1e-6)
        assert done["wall_seconds"] + done["bookkeeping_seconds"] <= done["elapsed_seconds"] + 1e-6
    assert outcome.events[-1] == {"event": "end", "partial": False, "exit": 0}


def test_the_kernel_saw_the_planned_bytes_read_once(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(size=256 * PAGE)
    outcome = replay(pool, "--passes", "only", "--capture", "/proc/self/io")
    entry, leave = (
        int(capture["files"][0]["text"].split()[1])  # rchar
        for capture in outcome.named("capture")
    )
    assert 8 * 256 * PAGE <= leave - entry < 8 * 256 * PAGE + 64 * 1024


def test_start_and_ready_say_what_is_measured_with_what(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool()
    start, ready = replay(pool, "--threads", "2").events[:2]
    assert (start["event"], ready["event"]) == ("start", "ready")
    assert (start["mode"], start["threads"], start["copy"]) == ("page_cache", 2, "pread")
    assert (start["destinations"], start["destination_bytes"]) == (64, 16 * PAGE)
    assert start["plan"] == {
        "iterations": 2,
        "accesses": 8,
        "experts": 8,
        "files": 8,
        "total_bytes": 8 * 16 * PAGE,
        "pool_id": "0123456789abcdef",
        "stamped": True,
        "synthetic_trace": False,
        "synthetic_pool": False,
    }
    assert ready["rss_anon_bytes"] >= 64 * 16 * PAGE


def test_events_of_a_pass_come_in_order(replay: Replay, make_pool: MakePool) -> None:
    outcome = replay(make_pool(), "--passes", "one", "--residency-samples", "1")
    assert [(e["event"], e.get("at")) for e in outcome.events[2:]] == [
        ("residency", "entry"),
        ("capture", "one:entry"),
        ("iteration", None),
        ("residency", "sample"),
        ("iteration", None),
        ("capture", "one:exit"),
        ("residency", "exit"),
        ("pass", None),
        ("end", None),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_a_page_of_another_expert_is_named_with_what_was_found(replay: Replay, make_pool: MakePool, mode: str) -> None:
    pool = make_pool(mode=mode)
    with pool.path(6).open("r+b") as victim:  # layer 1 expert 2
        victim.seek(5 * PAGE)
        victim.write(pool.path(1).read_bytes()[3 * PAGE : 4 * PAGE])
    outcome = replay(pool, "--mode", mode)
    error = outcome.only("error")
    assert outcome.exit == 1
    assert (error["code"], error["layer"], error["expert"], error["path"]) == ("stamp_mismatch", 1, 2, "L1-E2")
    assert "page 5 holds the stamp of layer 0 expert 1 page 3 of pool 0123456789abcdef" in error["message"]
    assert "expected layer 1 expert 2 page 5" in error["message"]
    assert outcome.only("pass")["partial"]
    assert outcome.events[-1] == {"event": "end", "partial": True, "exit": 1}
    assert outcome.stderr.count("\n") == 1


def test_bytes_that_are_no_stamp_are_shown(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool()
    with pool.path(0).open("r+b") as victim:
        victim.write(bytes(range(16)))
    message = replay(pool).only("error")["message"]
    assert "no stamp but the bytes 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f" in message


@pytest.mark.parametrize(
    ("which", "page", "code"), [("full", 5, 1), ("ends", 5, 0), ("ends", 0, 1), ("ends", 15, 1), ("none", 0, 0)]
)
def test_stamps_are_compared_as_far_as_asked(
    replay: Replay, make_pool: MakePool, which: str, page: int, code: int
) -> None:
    pool = make_pool()
    with pool.path(4).open("r+b") as victim:
        victim.seek(page * PAGE)
        victim.write(b"X")
    outcome = replay(pool, "--stamps", which)
    assert outcome.exit == code
    if code == 0:
        assert outcome.only("pass", **{"pass": "warm"})["stamps_checked"] == {"ends": 16, "none": 0}[which]


@pytest.mark.parametrize("mode", MODES)
def test_unstamped_pools_are_read_without_a_look_at_the_bytes(replay: Replay, make_pool: MakePool, mode: str) -> None:
    pool = make_pool(mode=mode)
    pool.parts.flags &= ~1
    pool.write_plan()
    pool.path(0).write_bytes(os.urandom(16 * PAGE))
    outcome = replay(pool, "--mode", mode)
    assert outcome.exit == 0
    assert [p["stamps_checked"] for p in outcome.named("pass")] == [0, 0]


@pytest.mark.parametrize("mode", MODES)
def test_a_short_file_is_an_error_that_says_how_short(replay: Replay, make_pool: MakePool, mode: str) -> None:
    pool = make_pool(mode=mode)
    os.truncate(pool.path(5), 10 * PAGE + 100)
    outcome = replay(pool, "--mode", mode)
    error = outcome.only("error")
    assert (outcome.exit, error["code"], error["path"]) == (1, "short_read", "L1-E1")
    assert str(10 * PAGE + 100) in error["message"]
    assert str(16 * PAGE) in error["message"]
    if mode not in MAPPED + WRITING:  # mapped files are looked at before any expert is read
        assert (error["layer"], error["expert"]) == (1, 1)
        assert "layer 1 expert 1" in error["message"]
        assert "offset 0" in error["message"]


@pytest.mark.parametrize("mode", MODES)
def test_a_missing_file_is_named(replay: Replay, make_pool: MakePool, mode: str) -> None:
    pool = make_pool(mode=mode)
    pool.path(3).unlink()
    outcome = replay(pool, "--mode", mode)
    error = outcome.only("error")
    assert (outcome.exit, error["code"], error["path"]) == (1, "open", "L0-E3")
    assert "No such file" in error["message"]


def test_a_missing_root_is_named(replay: Replay, make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool()
    pool.root = tmp_path / "elsewhere"
    outcome = replay(pool)
    assert (outcome.exit, outcome.only("error")["code"]) == (1, "open")
    assert "elsewhere" in outcome.stderr


def test_a_link_out_of_the_pool_is_refused(replay: Replay, make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool()
    pool.path(2).rename(tmp_path / "outside")
    pool.path(2).symlink_to(tmp_path / "outside")
    outcome = replay(pool)
    assert outcome.exit == 1
    assert "leaves the pool's folder" in outcome.only("error")["message"]


def test_absolute_paths_are_followed_where_the_user_gave_them(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool()
    pool.parts.files = [(os.fsencode(pool.path(i)), size) for i, (_, size) in enumerate(pool.parts.files)]
    pool.write_plan()
    assert replay(pool).exit == 2
    pool.parts.flags |= 8
    pool.write_plan()
    pool.root = Path("/")
    assert replay(pool).exit == 0


@pytest.mark.parametrize("probe", ["cachestat", "mincore", "auto"])
@pytest.mark.parametrize("mode", MODES)
def test_hits_are_none_after_a_drop_and_all_on_the_second_pass(
    replay: Replay, make_pool: MakePool, mode: str, probe: str
) -> None:
    pool = make_pool(size=32 * PAGE, mode=mode)
    pool.drop()
    outcome = replay(pool, "--mode", mode, "--hits", probe)
    if outcome.exit == 77:
        pytest.skip(outcome.stderr)
    warm, measured = outcome.named("pass")
    if mode != "mmap_background":  # there the threads that read ahead make hits
        assert (warm["hit_bytes"], warm["hit_accesses"]) == (0, 0)
    cached = 0 if mode in {"direct", "drop"} else 8
    assert (measured["hit_bytes"], measured["hit_accesses"]) == (cached * 32 * PAGE, cached)
    assert [i["hit_bytes"] for i in outcome.named("iteration", **{"pass": "measured"})] == [cached * 16 * PAGE] * 2


def test_a_part_of_an_expert_counts_as_hit_bytes_but_not_as_a_hit(
    replay: Replay, make_pool: MakePool, resident: Callable[[Path], int]
) -> None:
    pool = make_pool(size=64 * PAGE, accesses=((0, 1),))
    pool.drop()
    fd = os.open(pool.path(0), os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, 10 * PAGE, 0)
    os.close(fd)
    pages = resident(pool.path(0))
    assert 0 < pages < 64
    done = replay(pool, "--hits", "cachestat", "--passes", "one").only("pass")
    assert (done["hit_bytes"], done["hit_accesses"]) == (pages * PAGE, 0)


@pytest.mark.parametrize("probe", ["cachestat", "mincore"])
def test_an_expert_without_one_of_its_pages_is_no_whole_hit(replay: Replay, make_pool: MakePool, probe: str) -> None:
    pool = make_pool("unaligned", size=16 * PAGE, accesses=((3,),))  # 16 pages of bytes in 17 pages of the file
    pool.drop()
    start = 100 + 3 * 16 * PAGE
    fd = os.open(pool.path(0), os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
    for page in range(start // PAGE + 1, start // PAGE + 17):
        os.pread(fd, 1, page * PAGE)
    os.close(fd)
    outcome = replay(pool, "--hits", probe, "--passes", "one")
    if outcome.exit == 77:
        pytest.skip(outcome.stderr)
    done = outcome.only("pass")
    assert (done["hit_bytes"], done["hit_accesses"]) == (15 * PAGE + 100, 0)


def test_hits_are_counted_in_the_passes_asked_for(replay: Replay, make_pool: MakePool) -> None:
    outcome = replay(make_pool(), "--hits", "auto", "--hits-passes", "measured")
    warm, measured = outcome.named("pass")
    assert warm["hit_bytes"] is None
    assert measured["hit_bytes"] == 8 * 16 * PAGE


def test_hits_are_null_when_not_asked_for(replay: Replay, make_pool: MakePool) -> None:
    outcome = replay(make_pool())
    assert {p["hit_bytes"] for p in outcome.named("pass")} == {None}
    assert {i["hit_bytes"] for i in outcome.named("iteration")} == {None}


def test_residency_of_the_pool_grows_from_nothing_to_what_was_read(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(size=32 * PAGE, accesses=((0, 1), (2, 3), (0, 1), (2, 3)))
    pool.drop()
    outcome = replay(pool, "--passes", "one", "--residency-samples", "3")
    seen = [(e["at"], e["iteration"], e["resident_bytes"] // PAGE) for e in outcome.named("residency")]
    assert seen == [
        ("entry", 0, 0),
        ("sample", 1, 64),
        ("sample", 2, 128),
        ("sample", 3, 128),
        ("exit", 4, 128),
    ]
    assert {e["pool_bytes"] for e in outcome.named("residency")} == {8 * 32 * PAGE}


@pytest.mark.parametrize(("samples", "borders"), [(0, []), (1, [5]), (4, [2, 4, 6, 8]), (100, list(range(1, 10)))])
def test_residency_samples_are_evenly_spaced(
    replay: Replay, make_pool: MakePool, samples: int, borders: list[int]
) -> None:
    pool = make_pool(accesses=((0,),) * 10)
    outcome = replay(pool, "--passes", "one", "--residency-samples", str(samples))
    assert [e["iteration"] for e in outcome.named("residency", at="sample")] == borders


def test_captures_are_raw_and_say_which_files_are_missing(replay: Replay, make_pool: MakePool, tmp_path: Path) -> None:
    awkward = tmp_path / 'a "quoted"\n name'
    awkward.write_bytes(b'tab\t"quote" \\ \x00\x01\x1f\x7f caf\xc3\xa9 \xf0\x9f\x8c\x90 bad \xff\xc3 \xed\xa0\x80\n')
    outcome = replay(make_pool(), "--capture", awkward, "--capture", "/nonexistent/file", "--passes", "one")
    for capture in outcome.named("capture"):
        assert capture["files"] == [
            {"path": str(awkward), "text": awkward.read_bytes().decode(errors="replace")},
            {"path": "/nonexistent/file", "errno": 2, "error": "No such file or directory"},
        ]
        assert capture["inflight_zero"] is None
    assert [c["at"] for c in outcome.named("capture")] == ["one:entry", "one:exit"]


def test_a_long_file_is_captured_whole(replay: Replay, make_pool: MakePool, tmp_path: Path) -> None:
    long = tmp_path / "long"
    long.write_text("0123456789" * 30_000)
    capture = replay(make_pool(), "--capture", long, "--passes", "one").named("capture")[0]
    assert capture["files"][0]["text"] == "0123456789" * 30_000


@pytest.mark.parametrize(("text", "zero"), [("       0        0\n", True), ("       1        0\n", False)])
def test_a_capture_waits_for_devices_at_rest_but_not_for_ever(
    replay: Replay, make_pool: MakePool, tmp_path: Path, text: str, *, zero: bool
) -> None:
    inflight = tmp_path / "inflight"
    inflight.write_text(text)
    outcome = replay(make_pool(), "--inflight", inflight, "--passes", "one")
    for capture in outcome.named("capture"):
        assert capture["inflight_zero"] is zero
        assert (capture["inflight_waited_seconds"] >= 2) is not zero


def test_device_counters_are_read_per_iteration(replay: Replay, make_pool: MakePool, tmp_path: Path) -> None:
    still, broken = tmp_path / "still", tmp_path / "broken"
    still.write_text("   65567    30056 28279882    46 1 2 3 4 5 6 7\n")
    broken.write_text("no numbers\n")
    outcome = replay(make_pool(), "--device-stat", still, "--device-stat", broken)
    assert {tuple(i["device_read_bytes"]) for i in outcome.named("iteration")} == {(0, None)}


def test_the_device_of_the_pool_counts_a_cold_read(replay: Replay, make_pool: MakePool, tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    if not stat.exists():
        pytest.skip(f"the filesystem of {tmp_path} has no {stat}")
    pool = make_pool(size=256 * PAGE)
    pool.drop()
    outcome = replay(pool, "--mode", "direct", "--passes", "one", "--device-stat", stat)
    iterations = outcome.named("iteration")
    assert all(i["device_read_bytes"][0] >= i["bytes"] for i in iterations)
    assert all(i["process_read_bytes"] in (0, i["bytes"]) for i in iterations)  # some containers count nothing


def test_an_absent_device_counter_is_an_error(replay: Replay, make_pool: MakePool) -> None:
    outcome = replay(make_pool(), "--device-stat", "/sys/dev/block/999:999/stat")
    assert outcome.exit == 1
    assert "999:999" in outcome.only("error")["message"]


def test_few_descriptors_are_enough_for_many_files(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(accesses=tuple((i, (i * 3) % 8) for i in range(8)) * 4)
    outcome = replay(pool, "--threads", "3", "--hits", "auto", prefix=("prlimit", "--nofile=68:68"))
    assert outcome.exit == 0, outcome.stderr
    assert outcome.named("pass")[1]["accesses"] == 64


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("read", ("--threads", "600")),
        ("behind", ("--mode", "mmap_background", "--background-threads", "600")),
        ("compute", ("--compute-seconds", "0.01", "--compute-threads", "600")),
    ],
)
def test_threads_that_cannot_all_be_started_are_an_error_not_a_hang(
    replay: Replay, make_pool: MakePool, name: str, options: tuple[str, ...], *, sanitized: bool
) -> None:
    if sanitized:
        pytest.skip("the sanitizers' memory is not the product's")
    room = ("prlimit", f"--as={400 * 2**20}")  # for some hundred stacks of 1 MiB
    outcome = replay(make_pool(), *options, "--destinations", "600", prefix=room)
    assert outcome.exit == 1
    assert f"the moetier-{name} thread cannot be started" in outcome.only("error", code="threads")["message"]
    assert outcome.events[-1] == {"event": "end", "partial": True, "exit": 1}


def test_a_pool_with_more_files_than_mappings_is_unsupported(replay: Replay, make_pool: MakePool) -> None:
    most = int(Path("/proc/sys/vm/max_map_count").read_text())
    if most > 2_000_000:
        pytest.skip(f"vm.max_map_count is {most}: the plan would be large")
    pool = make_pool()
    pool.parts.files += [(b"L0-E0", 16 * PAGE)] * (most - 63 - 8)
    pool.write_plan()
    outcome = replay(pool, "--mode", "mmap")
    assert outcome.exit == 77
    assert f"vm.max_map_count is {most}" in outcome.only("error", code="unsupported")["message"]


def test_mode_direct_needs_a_device(replay: Replay, make_pool: MakePool) -> None:
    shm = Path("/dev/shm")  # noqa: S108
    if not os.access(shm, os.W_OK):
        pytest.skip("no tmpfs that can be written")
    root = shm / f"moetier-test-{os.getpid()}"
    try:
        outcome = replay(make_pool(root=root), "--mode", "direct")
        assert outcome.exit == 77
        assert "tmpfs" in outcome.only("error", code="unsupported")["message"]
        assert replay(make_pool(root=root.with_name(root.name + "-b")), "--mode", "page_cache").exit == 0
    finally:
        for path in shm.glob(f"{root.name}*"):
            subprocess.run(["rm", "-r", path], check=True)


@pytest.mark.parametrize("mode", MAPPED + WRITING)
def test_a_file_truncated_while_mapped_is_an_error_not_a_crash(
    native_bin: Path, make_pool: MakePool, mode: str
) -> None:
    pool = make_pool(mode=mode)
    with started(native_bin, pool, "--mode", mode, "--stamps", "none") as process:
        os.truncate(pool.path(6), 2 * PAGE)
        events = rest(process)
        assert process.returncode == 1
    (error,) = [e for e in events if e["event"] == "error"]
    assert (error["layer"], error["expert"], error["path"]) == (1, 2, "L1-E2")
    if mode in {"mmap", "mmap_random", "mmap_willneed", "mmap_populate"}:
        assert error["code"] == "sigbus"
        assert "truncated while mapped" in error["message"]
    else:  # a pread sees it first; beside the background's, the copy may
        assert error["code"] in {"short_read", "sigbus" if mode == "mmap_background" else "short_read"}
    assert events[-1] == {"event": "end", "partial": True, "exit": 1}


def test_a_pass_whose_exit_cannot_be_seen_is_not_called_whole(native_bin: Path, make_pool: MakePool) -> None:
    pool = make_pool(accesses=((0, 1),))
    with started(native_bin, pool, "--passes", "one", "--compute-seconds", "1") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        while json.loads(process.stdout.readline())["event"] != "capture":
            pass
        pool.path(7).unlink()  # no access's file
        events = [json.loads(line) for line in process.stdout]
        assert process.wait(30) == 1
    (done,) = [e for e in events if e["event"] == "pass"]
    assert (done["iterations"], done["partial"]) == (1, True)
    (error,) = [e for e in events if e["event"] == "error"]
    assert (error["code"], error["path"]) == ("open", "L1-E3")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_replay_with_what_was_measured(
    native_bin: Path, make_pool: MakePool, number: signal.Signals, code: int
) -> None:
    pool = make_pool(accesses=((0, 1, 2, 3),) * 200_000)
    with started(native_bin, pool, "--passes", "long,never") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        while json.loads(process.stdout.readline())["event"] != "iteration":
            pass
        process.send_signal(number)
        events = rest(process, None)
        assert process.returncode == code
    (done,) = [e for e in events if e["event"] == "pass"]
    assert done["partial"]
    assert 0 < done["iterations"] < 200_000
    assert done["accesses"] == 4 * done["iterations"]
    assert events[-1] == {"event": "end", "partial": True, "exit": code}


def test_a_signal_while_waiting_ends_the_replay(native_bin: Path, make_pool: MakePool) -> None:
    with started(native_bin, make_pool()) as process:
        process.send_signal(signal.SIGTERM)
        events = rest(process, None)
        assert process.returncode == 143
    assert events == [{"event": "end", "partial": True, "exit": 143}]


def test_the_end_of_stdin_while_waiting_stops_the_replay(native_bin: Path, make_pool: MakePool) -> None:
    with started(native_bin, make_pool()) as process:
        events = rest(process, b"no newline")
        assert process.returncode == 0
    assert events == [{"event": "end", "partial": True, "exit": 0}]


def test_a_line_on_stdin_starts_the_replay(native_bin: Path, make_pool: MakePool) -> None:
    with started(native_bin, make_pool()) as process:
        events = rest(process)
        assert process.returncode == 0
    assert [e["partial"] for e in events if e["event"] == "pass"] == [False, False]


def test_a_replay_that_nobody_reads_ends_with_1(native_bin: Path, make_pool: MakePool) -> None:
    with started(native_bin, make_pool()) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.wait(30) == 1


def test_a_replay_dies_with_its_parent(native_bin: Path, make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool()
    stdin = tmp_path / "stdin"
    os.mkfifo(stdin)
    script = f"exec 3<>'{stdin}'; '{native_bin}/moetier-replay' '{pool.plan}' --root '{pool.root}' --wait <&3 & wait"
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        while json.loads(parent.stdout.readline())["event"] != "ready":
            pass
        parent.kill()
        # The pipe closes only when the replayer is gone too.
        assert json.loads(parent.stdout.readlines()[-1]) == {"event": "end", "partial": True, "exit": 143}


def test_the_plan_leaves_no_page_behind(replay: Replay, make_pool: MakePool, resident: Callable[[Path], int]) -> None:
    pool = make_pool(accesses=((0,) * 200_000,))
    assert replay(pool, "--passes", "one").exit == 0
    assert resident(pool.plan) == 0


def test_memory_beyond_the_destinations_is_bounded(replay: Replay, make_pool: MakePool, *, sanitized: bool) -> None:
    if sanitized:
        pytest.skip("the sanitizers' memory is not the product's")
    accesses = 1_000_000
    pool = make_pool(size=PAGE, accesses=((0, 1, 2, 3, 4, 5, 6, 7),) * (accesses // 8))
    outcome = replay(pool, "--passes", "one", "--stamps", "ends")
    destinations = 64 * PAGE
    assert outcome.only("pass")["accesses"] == accesses
    assert outcome.only("ready")["rss_anon_bytes"] - destinations <= 16 * 2**20 + 16 * accesses


def test_destinations_beyond_memory_are_refused_with_the_figure(replay: Replay, make_pool: MakePool) -> None:
    outcome = replay(make_pool(size=2048 * PAGE), "--destinations", "16777216")
    assert outcome.exit == 1
    assert f"{16777216 * 2048 * PAGE} bytes asked" in outcome.only("error", code="memory")["message"]


@pytest.mark.parametrize(
    "options",
    [
        ("--mode", "pinned"),
        ("--threads", "0"),
        ("--threads", "-1"),
        ("--threads", "two"),
        ("--threads", "99999999999999999999"),
        ("--destinations", "1"),
        ("--stamps", "some"),
        ("--hits", "yes"),
        ("--passes", ""),
        ("--passes", "warm,warm"),
        ("--passes", "a:b"),
        ("--hits-passes", "other"),
        ("--residency-samples", "1.5"),
        ("--unknown",),
        ("--threads",),
        ("second.plan",),
        ("--self-test", "file"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_clear_line(
    replay: Replay, make_pool: MakePool, options: tuple[str, ...]
) -> None:
    outcome = replay(make_pool(), *options)
    assert outcome.exit == 2
    assert outcome.only("error")["code"] == "usage"
    assert outcome.stderr.startswith("moetier-replay: ")
    assert outcome.stderr.count("\n") == 1
    assert outcome.events[-1] == {"event": "end", "partial": True, "exit": 2}


def test_the_self_test_says_which_probes_tell_the_truth(native_bin: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(64 * PAGE))
    done = subprocess.run([native_bin / "moetier-replay", "--self-test", file], capture_output=True, check=True)
    answer = json.loads(done.stdout)
    assert (answer["event"], answer["path"]) == ("self_test", str(file))
    assert (answer["mincore"]["usable"], answer["mincore"]["truth"]) == (True, "told")  # one owns the file
    assert "0 of 64 pages after dropping" in answer["mincore"]["note"]
    assert answer["cachestat"]["truth"] in {"told", "refused"}


def test_mincore_is_not_believed_on_a_file_of_another_user(native_bin: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    file = Path(f"/var/tmp/moetier-test-{os.getpid()}")  # noqa: S108
    binary = file.with_suffix(".bin")
    try:
        file.write_bytes(bytes(64 * PAGE))
        file.chmod(0o444)
        binary.write_bytes((native_bin / "moetier-replay").read_bytes())
        binary.chmod(0o755)
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", binary, "--self-test", file]
        done = subprocess.run(command, capture_output=True, check=True, cwd="/")
        answer = json.loads(done.stdout)
        assert not answer["mincore"]["usable"]
        assert not answer["cachestat"]["usable"]
    finally:
        file.unlink(missing_ok=True)
        binary.unlink(missing_ok=True)


def test_the_help_names_every_option(native_bin: Path) -> None:
    source = (SOURCE / "native/replay/options.c").read_text()
    options = set(re.findall(r'^    {"([a-z-]+)", (?:no|required)_argument', source, re.MULTILINE))
    usage = subprocess.run([native_bin / "moetier-replay", "--help"], capture_output=True, check=True, text=True).stdout
    assert set(re.findall(r"--([a-z-]+)", usage)) == options
    modes = re.findall(r"\bMODE_([A-Z_]+),", (SOURCE / "native/replay/modes.h").read_text())
    assert {mode.lower() for mode in modes} <= set(re.findall(r"[a-z_]+", usage))


@pytest.mark.parametrize("name", ["moetier-replay", "moetier-balloon"])
def test_version_and_help_are_printed(native_bin: Path, name: str) -> None:
    version = subprocess.run([native_bin / name, "--version"], capture_output=True, check=True, text=True)
    assert version.stdout.startswith(f"{name} ")
    usage = subprocess.run([native_bin / name, "--help"], capture_output=True, check=True, text=True)
    assert usage.stdout.startswith(f"{name} ")
