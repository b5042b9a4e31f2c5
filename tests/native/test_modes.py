"""What each mode does to the page cache, to memory and to the pool, seen from outside."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = 4096
MAPPED = ("mmap", "mmap_random", "mmap_willneed", "mmap_populate", "mmap_pread", "mmap_background")
CHUNKED = ("page_cache", "fadv_random", "direct", "drop")
WRITING = ("write_private", "write_shared")

Replay = Callable[..., Any]
MakePool = Callable[..., Any]


def captured(outcome: Any, at: str, file: int = 0) -> str:
    """Return the text of a captured file."""
    text: str = outcome.only("capture", at=at)["files"][file]["text"]
    return text


def io_delta(outcome: Any, key: str, name: str = "one", file: int = 0) -> int:
    """Return by how much a figure of /proc/self/io rose in a pass."""
    entry, leave = (
        int(re.findall(rf"^{key}: (\d+)$", captured(outcome, f"{name}:{at}", file), re.MULTILINE)[0])
        for at in ("entry", "exit")
    )
    return leave - entry


def kib_delta(outcome: Any, key: str, name: str) -> int:
    """Return by how many bytes a line "key: N kB" of the captured file rose in a pass."""
    entry, leave = (
        int(re.findall(rf"^{key}:\s+(\d+) kB$", captured(outcome, f"{name}:{at}"), re.MULTILINE)[0])
        for at in ("entry", "exit")
    )
    return 1024 * (leave - entry)


def process_reads(outcome: Any, name: str) -> list[int]:
    """Return what the process had read from the device in each iteration; skip where the kernel does not count it."""
    reads = [i["process_read_bytes"] for i in outcome.named("iteration", **{"pass": name})]
    if not any(reads):
        pytest.skip("/proc/self/io counts nothing here")
    return reads


def resident_by_page(path: Path) -> list[bool]:
    """Return which pages of a file are resident, by mincore(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        answer = ctypes.create_string_buffer(pages)
        view = ctypes.c_char.from_buffer(mapped)
        assert libc.mincore(ctypes.addressof(view), len(mapped), answer) == 0
        del view
    return [bool(byte & 1) for byte in answer.raw]


@pytest.mark.parametrize(
    ("mode", "copy"),
    [
        ("page_cache", "pread"),
        ("fadv_random", "pread"),
        *((mode, "memcpy") for mode in MAPPED),
        ("direct", "pread O_DIRECT"),
        ("drop", "pread"),
        *((mode, "pread into the mapping") for mode in WRITING),
    ],
)
def test_start_names_the_modes_and_the_copy(replay: Replay, make_pool: MakePool, mode: str, copy: str) -> None:
    start = replay(make_pool(mode=mode), "--mode", mode).only("start")
    assert (start["mode"], start["warm_mode"], start["copy"].split(" (")[0]) == (mode, mode, copy)
    assert start["background_threads"] == (mode == "mmap_background")


def test_an_unknown_mode_is_told_all_the_words(replay: Replay, make_pool: MakePool) -> None:
    message = replay(make_pool(), "--mode", "other").only("error", code="usage")["message"]
    assert message == (
        "--mode other: expected one of page_cache fadv_random mmap mmap_random mmap_willneed mmap_populate mmap_pread "
        "mmap_background direct drop pinned user_lru user_lfu write_private write_shared"
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--warm-mode", "other"), "--warm-mode other: expected one of"),
        (("--warm-mode", "write_shared"), "expected a mode that has no memory of its own and writes nothing"),
        (("--warm-mode", "user_lru"), "expected a mode that has no memory of its own and writes nothing"),
        (("--mode", "mmap", "--chunk-bytes", "4096"), "expected a mode that reads by pread alone"),
        (("--mode", "direct", "--chunk-bytes", "1000"), "expected a multiple of 4096 in mode direct"),
        (("--warm-mode", "direct", "--chunk-bytes", "1000"), "expected a multiple of 4096 in mode direct"),
        (("--chunk-bytes", "-1"), "expected a whole number from 0 to"),
        (
            ("--mode", "mmap", "--warm-mode", "drop", "--warm-chunk-bytes", "8192", "--chunk-bytes", "4096"),
            "--chunk-bytes 4096: expected a mode that reads by pread alone",
        ),
        (
            ("--mode", "drop", "--warm-mode", "mmap", "--warm-chunk-bytes", "8192", "--chunk-bytes", "4096"),
            "--warm-chunk-bytes 8192: expected a mode that reads by pread alone",
        ),
        (("--warm-mode", "direct", "--warm-chunk-bytes", "1000"), "expected a multiple of 4096 in mode direct"),
        (("--passes", "one", "--warm-mode", "mmap"), "--warm-mode is for every pass but the last"),
        (("--passes", "one", "--warm-chunk-bytes", "4096"), "--warm-chunk-bytes is for every pass but the last"),
        (("--background-threads", "2"), "expected --mode or --warm-mode mmap_background"),
        (("--mode", "mmap_background", "--background-threads", "0"), "expected a whole number from 1 to 1024"),
        (("--experts-exit", "other"), "expected names that --passes holds"),
        (("--experts-exit", ""), "expected distinct names"),
    ],
)
def test_wrong_usage_says_what_was_expected(
    replay: Replay, make_pool: MakePool, options: tuple[str, ...], expected: str
) -> None:
    outcome = replay(make_pool(), *options)
    assert outcome.exit == 2
    assert expected in outcome.only("error", code="usage")["message"]
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize("size", [16 * PAGE, 10 * PAGE + 20])
@pytest.mark.parametrize("mode", CHUNKED)
def test_an_extent_is_read_in_chunks(replay: Replay, make_pool: MakePool, mode: str, size: int) -> None:
    pool = make_pool("unaligned", size=size)
    options = ("--mode", mode, "--passes", "one", "--capture", "/proc/self/io", "--threads", "1")
    calls = []
    for chunk in (0, 2 * PAGE, 4 * PAGE):
        outcome = replay(pool, *options, "--chunk-bytes", str(chunk))
        assert outcome.exit == 0, outcome.stderr
        assert outcome.only("pass")["bytes"] == 8 * size
        calls.append(io_delta(outcome, "syscr"))
    starts = [100 + i * size for i in range(8)]
    windows = [-(-(s + size) // PAGE) - s // PAGE for s in starts] if mode == "direct" else [size / PAGE] * 8
    assert calls[1] - calls[0] == sum(-(-pages // 2) - 1 for pages in windows)
    assert calls[2] - calls[0] == sum(-(-pages // 4) - 1 for pages in windows)


@pytest.mark.parametrize(("mode", "warm"), [("direct", "page_cache"), ("mmap", "drop"), ("page_cache", "drop")])
def test_warm_passes_are_read_in_chunks_of_their_own(replay: Replay, make_pool: MakePool, mode: str, warm: str) -> None:
    options = ("--mode", mode, "--warm-mode", warm, "--capture", "/proc/self/io", "--threads", "1")
    pool = make_pool(size=10 * PAGE)
    whole, cut = (replay(pool, *options, "--warm-chunk-bytes", chunk) for chunk in ("0", "3000"))
    assert cut.exit == 0, cut.stderr
    calls = [[io_delta(outcome, "syscr", name) for outcome in (whole, cut)] for name in ("warm", "measured")]
    assert calls[0][1] - calls[0][0] == 8 * (-(-10 * PAGE // 3000) - 1)
    assert calls[1][1] == calls[1][0]


def test_drop_leaves_nothing_and_reads_the_device_again(
    replay: Replay, make_pool: MakePool, resident: Callable[[Path], int]
) -> None:
    pool = make_pool(size=64 * PAGE)
    pool.drop()
    outcome = replay(pool, "--mode", "drop", "--hits", "auto")
    assert [resident(pool.path(file)) for file in range(8)] == [0] * 8
    assert [p["hit_bytes"] for p in outcome.named("pass")] == [0, 0]
    assert process_reads(outcome, "warm") == [4 * 64 * PAGE] * 2
    assert process_reads(outcome, "measured") == [4 * 64 * PAGE] * 2


@pytest.mark.parametrize("warm", MAPPED)
def test_drop_drops_what_an_earlier_pass_had_mapped(
    replay: Replay, make_pool: MakePool, resident: Callable[[Path], int], warm: str
) -> None:
    pool = make_pool()
    pool.drop()  # what is dirty cannot be dropped
    outcome = replay(pool, "--mode", "drop", "--warm-mode", warm)
    assert outcome.exit == 0, outcome.stderr
    assert [resident(pool.path(file)) for file in range(8)] == [0] * 8


def test_page_cache_reads_the_device_once(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(size=64 * PAGE)
    pool.drop()
    outcome = replay(pool)
    assert process_reads(outcome, "warm") == [4 * 64 * PAGE] * 2
    assert [i["process_read_bytes"] for i in outcome.named("iteration", **{"pass": "measured"})] == [0, 0]


@pytest.mark.parametrize("mode", MAPPED)
def test_who_preads_beside_the_mapping(replay: Replay, make_pool: MakePool, mode: str) -> None:
    pool = make_pool(size=256 * PAGE, accesses=((0, 1, 1, 1), (2, 3, 0, 1)))
    outcome = replay(pool, "--mode", mode, "--passes", "one", "--capture", "/proc/self/io")
    planned = 8 * 256 * PAGE if mode in {"mmap_pread", "mmap_background"} else 0
    assert planned <= io_delta(outcome, "rchar") < planned + 64 * 1024


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("background", [1, 2])
def test_each_access_is_read_ahead_once_in_its_own_iteration(
    replay: Replay, make_pool: MakePool, threads: int, background: int
) -> None:
    pool = make_pool(size=256 * PAGE, accesses=((0, 1, 2), (), (3,), (4, 5, 6, 7)))
    pool.drop()
    options = ("--mode", "mmap_background", "--background-threads", str(background), "--threads", str(threads))
    outcome = replay(pool, *options, "--passes", "one", "--capture", "/proc/self/io")
    assert outcome.only("start")["background_threads"] == background
    assert 8 * 256 * PAGE <= io_delta(outcome, "rchar") < 8 * 256 * PAGE + 64 * 1024
    assert process_reads(outcome, "one") == [3 * 256 * PAGE, 0, 256 * PAGE, 4 * 256 * PAGE]


def test_nobody_reads_ahead_in_the_passes_of_another_mode(replay: Replay, make_pool: MakePool) -> None:
    options = ("--mode", "mmap", "--warm-mode", "mmap_background", "--capture", "/proc/self/io")
    outcome = replay(make_pool(size=256 * PAGE), *options)
    assert outcome.only("start")["background_threads"] == 1
    assert io_delta(outcome, "rchar", "warm") >= 8 * 256 * PAGE
    assert io_delta(outcome, "rchar", "measured") < 64 * 1024


def cold_faults(replay: Replay, pool: Any, mode: str) -> int:
    """Return the major faults of one cold pass, and check that the iterations' add up to the pass's."""
    pool.drop()
    outcome = replay(pool, "--mode", mode, "--passes", "one")
    done = outcome.only("pass")
    for kind in ("major_faults", "minor_faults"):
        assert sum(i[kind] for i in outcome.named("iteration")) == done[kind]
    major: int = done["major_faults"]
    return major


def test_advice_takes_major_faults_away_and_random_makes_one_a_page(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool()
    faults = {mode: cold_faults(replay, pool, mode) for mode in ("page_cache", *MAPPED)}
    per_page = 8 * 16 * PAGE // mmap.PAGESIZE
    assert per_page <= faults["mmap_random"] < per_page + 8  # a few may be the program's own
    assert 8 <= faults["mmap"] < per_page
    assert max(faults["page_cache"], faults["mmap_willneed"], faults["mmap_pread"]) < 8


def test_populate_leaves_no_fault_to_the_copy(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool()
    pool.drop()
    outcome = replay(pool, "--mode", "mmap_populate")
    warm, measured = outcome.named("pass")
    assert warm["major_faults"] >= 8  # madvise's own
    assert measured["major_faults"] + measured["minor_faults"] < 8  # not one a mapping


def test_after_a_warm_pass_by_pread_a_mapped_pass_has_minor_faults_alone(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool()
    pool.drop()
    outcome = replay(pool, "--mode", "mmap", "--warm-mode", "page_cache")
    warm, measured = outcome.named("pass")
    assert max(warm["major_faults"], measured["major_faults"]) < 8  # not one a file
    assert measured["minor_faults"] >= 8  # at least one a mapping
    assert outcome.only("start")["warm_mode"] == "page_cache"


def test_all_passes_but_the_last_read_in_the_warm_mode(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool()
    pool.drop()
    passes = ("--passes", "a,b,c,d", "--hits", "auto")
    outcome = replay(pool, *passes, "--mode", "page_cache", "--warm-mode", "direct")
    assert [p["hit_bytes"] for p in outcome.named("pass")] == [0] * 4
    pool.drop()
    outcome = replay(pool, *passes, "--mode", "direct", "--warm-mode", "page_cache")
    assert [p["hit_accesses"] for p in outcome.named("pass")] == [0, 8, 8, 8]
    assert process_reads(outcome, "d") == [4 * 16 * PAGE] * 2
    assert [i["process_read_bytes"] for i in outcome.named("iteration", **{"pass": "c"})] == [0, 0]


@pytest.mark.parametrize(
    ("warm", "last"), [("mmap_random", "mmap"), ("mmap", "mmap_random"), ("direct", "mmap_random")]
)
def test_random_advice_holds_in_the_passes_that_ask_for_it(
    replay: Replay, make_pool: MakePool, warm: str, last: str
) -> None:
    pool = make_pool()
    options = ("--mode", last, "--warm-mode", warm, "--passes", "a,b", "--capture", "/proc/self/smaps")
    outcome = replay(pool, *options)
    for name, mode in (("a", warm), ("b", last)):
        mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", captured(outcome, f"{name}:exit"), flags=re.MULTILINE)
        flags = [m.split("VmFlags:")[1].split() for m in mappings if str(pool.root) in m.split("\n")[0]]
        assert ["rr" in words for words in flags] == [mode == "mmap_random"] * 8


def test_cpu_seconds_are_those_of_the_iterations(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(size=256 * PAGE, accesses=((0, 1, 2, 3, 4, 5, 6, 7),) * 100)
    done = replay(pool, "--threads", "2").named("pass")[1]
    assert 0 < done["user_seconds"] + done["system_seconds"] <= 2.1 * done["elapsed_seconds"]
    idle = replay(make_pool(root=pool.root.with_name("idle"), accesses=((0,), ())), "--passes", "one").only("pass")
    assert idle["user_seconds"] + idle["system_seconds"] < done["user_seconds"] + done["system_seconds"]


def test_private_writes_make_memory_once_and_leave_the_pool(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(size=256 * PAGE, accesses=((0, 1, 2), (3, 4, 0)), mode="write_private")
    before = [pool.path(file).read_bytes() for file in range(8)]
    outcome = replay(pool, "--mode", "write_private", "--capture", "/proc/self/smaps_rollup")
    assert outcome.exit == 0, outcome.stderr
    touched = 5 * 256 * PAGE
    assert touched <= kib_delta(outcome, "Anonymous", "warm") < touched + 512 * 1024
    assert 0 <= kib_delta(outcome, "Anonymous", "measured") < 512 * 1024
    assert [p["bytes"] for p in outcome.named("pass")] == [6 * 256 * PAGE] * 2
    pool.drop()
    assert [pool.path(file).read_bytes() for file in range(8)] == before


def test_private_writes_need_no_destination_and_end_in_anonymous_memory(
    replay: Replay, make_pool: MakePool, *, sanitized: bool
) -> None:
    if sanitized:
        pytest.skip("the sanitizers' memory is not the product's")
    pool = make_pool(size=512 * PAGE, mode="write_private")
    outcome = replay(pool, "--mode", "write_private", "--passes", "one", "--capture", "/proc/self/status")
    assert outcome.only("start")["destination_bytes"] == 0
    assert outcome.only("ready")["rss_anon_bytes"] < 4 * 2**20
    assert 0.9 < kib_delta(outcome, "RssAnon", "one") / (8 * 512 * PAGE) < 1.1  # counted in batches


@pytest.mark.parametrize("mode", ["page_cache", *WRITING])
def test_shared_writes_dirty_every_page_and_change_no_byte(replay: Replay, make_pool: MakePool, mode: str) -> None:
    pool = make_pool(size=64 * PAGE, accesses=((0, 1, 2), (3, 4, 0)), mode=mode)
    before = [pool.path(file).read_bytes() for file in range(8)]
    for file in range(8):  # written back: only pages that the replay dirties are dirty
        fd = os.open(pool.path(file), os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    outcome = replay(pool, "--mode", mode, "--passes", "one", "--capture", "/proc/self/io")
    assert outcome.exit == 0, outcome.stderr
    pool.drop()
    assert [pool.path(file).read_bytes() for file in range(8)] == before
    dirtied = io_delta(outcome, "write_bytes")
    if mode == "write_shared" and dirtied == 0 and io_delta(outcome, "rchar") == 0:
        pytest.skip("/proc/self/io counts nothing here")
    assert dirtied == (5 * 64 * PAGE if mode == "write_shared" else 0)


@pytest.mark.parametrize("mode", WRITING)
def test_only_a_throw_away_copy_is_written(replay: Replay, make_pool: MakePool, mode: str) -> None:
    pool = make_pool()
    outcome = replay(pool, "--mode", mode)
    assert outcome.exit == 2
    message = outcome.only("error", code="usage")["message"]
    assert f"--mode {mode} writes to the pool: only a throw-away copy may be written" in message
    assert not outcome.named("start")
    pool.parts.flags |= 16
    pool.write_plan()
    assert replay(pool, "--mode", mode).exit == 0


@pytest.mark.parametrize("mode", WRITING)
def test_a_link_out_of_the_pool_is_not_written_through(
    replay: Replay, make_pool: MakePool, tmp_path: Path, mode: str
) -> None:
    pool = make_pool(mode=mode)
    pool.path(2).rename(tmp_path / "outside")
    pool.path(2).symlink_to(tmp_path / "outside")
    changed = (tmp_path / "outside").stat().st_mtime_ns
    outcome = replay(pool, "--mode", mode)
    assert outcome.exit == 1
    assert "leaves the pool's folder" in outcome.only("error")["message"]
    assert (tmp_path / "outside").stat().st_mtime_ns == changed


@pytest.mark.parametrize("warm", ["mmap", "page_cache", "direct"])
@pytest.mark.parametrize("mode", WRITING)
def test_a_mode_that_writes_may_follow_one_that_reads(
    replay: Replay, make_pool: MakePool, mode: str, warm: str
) -> None:
    pool = make_pool("unaligned", size=10 * PAGE + 20, mode=mode)
    outcome = replay(pool, "--mode", mode, "--warm-mode", warm, "--passes", "a,b,c", "--hits", "mincore")
    assert outcome.exit == 0, outcome.stderr
    assert {p["bytes"] for p in outcome.named("pass")} == {8 * (10 * PAGE + 20)}
    assert outcome.only("start")["destination_bytes"] >= 10 * PAGE + 20


def test_few_descriptors_are_enough_for_all_readers(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(accesses=tuple((i, (i * 3) % 8) for i in range(8)) * 4)
    options = ("--threads", "3", "--mode", "page_cache", "--warm-mode", "mmap_background", "--background-threads", "3")
    outcome = replay(pool, *options, "--hits", "auto", prefix=("prlimit", "--nofile=73:73"))
    assert outcome.exit == 0, outcome.stderr
    assert [p["accesses"] for p in outcome.named("pass")] == [64, 64]


@pytest.mark.parametrize("layout", ["files", "one_file", "unaligned", "split"])
def test_every_experts_residency_is_told_to_the_byte(replay: Replay, make_pool: MakePool, layout: str) -> None:
    pool = make_pool(layout, size=10 * PAGE + 20)
    pool.drop()
    for file in range(len(pool.parts.files)):
        fd = os.open(pool.path(file), os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
        size = pool.parts.files[file][1]
        for page in range(file % 3, size // PAGE, 5 if layout == "files" else 7):
            os.pread(fd, 1, page * PAGE)
        os.close(fd)
    outcome = replay(pool, "--mode", "direct", "--passes", "a,b", "--experts-exit", "b")
    (told,) = outcome.named("experts")
    held = [resident_by_page(pool.path(file)) for file in range(len(pool.parts.files))]
    unit = mmap.PAGESIZE
    expected = []
    for _, _, first, count, _, _ in pool.parts.experts:
        extents = pool.parts.extents[first : first + count]
        expected.append(
            sum(
                min(start + length, (page + 1) * unit) - max(start, page * unit)
                for file, _, start, length in extents
                for page in range(start // unit, -(-(start + length) // unit))
                if held[file][page]
            )
        )
    assert told == {"event": "experts", "pass": "b", "resident_bytes": expected}
    assert 0 < sum(expected) < 8 * (10 * PAGE + 20)


def test_the_experts_add_up_to_the_pool_right_after_its_residency(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(accesses=((0, 1, 2), (5,)))
    pool.drop()
    outcome = replay(pool, "--passes", "a,b,c", "--experts-exit", "a,c")
    whole = 16 * PAGE
    for name in ("a", "c"):
        told = outcome.only("experts", **{"pass": name})
        before = outcome.events[outcome.events.index(told) - 1]
        assert told["resident_bytes"] == [whole, whole, whole, 0, 0, whole, 0, 0]
        assert (before["event"], before["at"], before["pass"]) == ("residency", "exit", name)
        assert sum(told["resident_bytes"]) == before["resident_bytes"]
    assert len(outcome.named("experts")) == 2


# Filters a program's system calls: madvise with the given advice answers EINVAL, as kernels that do not know it do.
NO_ADVICE = """
import ctypes, os, platform, struct, sys
madvise = {"x86_64": 28, "aarch64": 233}[platform.machine()]
def step(code, jt, jf, k): return struct.pack("<HBBI", code, jt, jf, k)
program = b"".join((
    step(0x20, 0, 0, 0), step(0x15, 0, 3, madvise),  # load the call's number; not madvise: allow
    step(0x20, 0, 0, 32), step(0x15, 0, 1, int(sys.argv[1])),  # load its third argument; another advice: allow
    step(0x06, 0, 0, 0x00050000 | 22), step(0x06, 0, 0, 0x7FFF0000),
))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
if libc.prctl(22, 2, ctypes.byref(Program(len(program) // 8, program)), 0, 0) != 0: sys.exit(99)
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_populate_is_unsupported_where_the_kernel_does_not_know_it(replay: Replay, make_pool: MakePool) -> None:
    prefix = (sys.executable, "-c", NO_ADVICE, "22")
    pool = make_pool()
    for options in (("--mode", "mmap_populate"), ("--mode", "mmap", "--warm-mode", "mmap_populate")):
        outcome = replay(pool, *options, prefix=prefix)
        if outcome.exit == 99:
            pytest.skip("system calls cannot be filtered here")
        assert outcome.exit == 77
        assert "Linux 5.14" in outcome.only("error", code="unsupported")["message"]
        assert not outcome.named("start")
    assert replay(pool, "--mode", "mmap_willneed", prefix=prefix).exit == 0


def test_advice_that_fails_is_an_error_not_a_slower_read(replay: Replay, make_pool: MakePool) -> None:
    prefix = (sys.executable, "-c", NO_ADVICE, "3")
    outcome = replay(make_pool(), "--mode", "mmap_willneed", "--threads", "1", prefix=prefix)
    if outcome.exit == 99:
        pytest.skip("system calls cannot be filtered here")
    assert outcome.exit == 1
    error = outcome.only("error", code="advice")
    assert (error["layer"], error["expert"]) == (0, 0)
    assert "madvise on 65536 bytes at offset 0 fails: Invalid argument" in error["message"]


@pytest.fixture
def full_disk(tmp_path: Path) -> tuple[str, ...]:
    """Return a prefix that runs a command where tmp_path/full is a full tmpfs, in a namespace of its own."""
    target = tmp_path / "full"
    target.mkdir()
    script = f'mount -t tmpfs -o size=64k none "{target}" && truncate -s 1M "{target}/pool.bin" && exec "$@"'
    prefix = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh")
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespace for this user")
    return prefix


def test_a_full_file_system_under_shared_writes_is_an_error_not_a_crash(
    replay: Replay, make_pool: MakePool, tmp_path: Path, full_disk: tuple[str, ...]
) -> None:
    pool = make_pool("one_file", size=32 * PAGE, mode="write_shared")
    assert pool.parts.files == [(b"pool.bin", 2**20)]
    pool.parts.flags = 16
    pool.write_plan()
    pool.root = tmp_path / "full"
    outcome = replay(pool, "--mode", "write_shared", "--threads", "1", prefix=full_disk)
    assert outcome.exit == 1, outcome.stderr
    error = outcome.only("error", code="sigbus")
    assert "its device failed under a read into its mapping of 131072 bytes at offset 0" in error["message"]
    assert (error["layer"], error["expert"], error["path"]) == (0, 0, "pool.bin")
