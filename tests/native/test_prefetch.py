"""The prefetch worker: one thread with one slot that brings lists of experts into the page cache."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from .lists import ListParts
from .test_replay import rest, started

PAGE = 4096
MODES = ("page_cache", "fadv_random", "mmap")
KINDS = ("fadvise", "blocking")

Replay = Callable[..., Any]
MakePool = Callable[..., Any]


def advise(pool: Any, lists: Sequence[Sequence[int]], triggers: Sequence[int]) -> Path:
    """Write advice beside the pool and return its path."""
    path: Path = pool.root.with_suffix(".advice")
    path.write_bytes(ListParts(pool.parts, lists, triggers).encode())
    return path


def balance(done: dict[str, Any]) -> dict[str, int]:
    """Return the worker's counts of a pass, after checking that no list is lost."""
    counts: dict[str, int] = done["prefetch"]
    assert counts["submitted"] == counts["completed"] + counts["overwritten"] + counts["pending"]
    return counts


def cache_drops() -> int:
    """Return how often anyone on this machine had the page cache dropped."""
    counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counters.get("drop_pagecache", 0))


def undisturbed(run: Callable[[], Any]) -> Any:
    """Return the outcome of a run during which nobody had the page cache dropped: it may take a few."""
    for _ in range(5):
        before = cache_drops()
        outcome = run()
        if cache_drops() == before:
            return outcome
    pytest.skip("something on this machine keeps dropping the page cache")


def readahead_bytes(path: Path) -> int:
    """Return the most bytes that the kernel reads for one hint on the file's device."""
    device = path.stat().st_dev
    entry = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    queue = next((p / "queue" for p in (entry, entry.parent) if (p / "queue").is_dir()), None)
    if queue is None:
        pytest.skip(f"the filesystem of {path} has no device with a queue in /sys")
    return 1024 * max(int((queue / name).read_text()) for name in ("read_ahead_kb", "max_sectors_kb"))


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_every_list_is_submitted_once_a_pass_and_none_is_lost(
    replay: Replay, make_pool: MakePool, mode: str, kind: str, threads: int
) -> None:
    # Each list is eight times the work of the access that it comes with: the worker cannot keep up.
    accesses = [[(i * 5 + k) % 8 for k in range(7)] for i in range(300)]
    pool = make_pool(accesses=accesses)
    triggers = [i for i in range(2100) if i % 7 != 3]
    advice = advise(pool, [tuple(range(8))] * len(triggers), triggers)
    options = ("--mode", mode, "--prefetch", kind, "--advice", advice, "--threads", str(threads), "--stamps", "ends")
    outcome = replay(pool, *options)
    assert outcome.exit == 0, outcome.stderr
    assert outcome.only("start")["prefetch"] == kind
    for done in outcome.named("pass"):
        counts = balance(done)
        assert counts["submitted"] == len(triggers)
        assert counts["overwritten"] > 0
        assert 8 * counts["completed"] <= counts["experts"] <= 8 * (counts["completed"] + counts["pending"])
        assert counts["asked_bytes"] == counts["experts"] * 16 * PAGE
        assert counts["read_bytes"] == (counts["asked_bytes"] if kind == "blocking" else 0)
        assert done["accesses"] == 2100
        assert done["bytes"] == 2100 * 16 * PAGE


def test_lists_that_the_worker_gets_to_in_time_are_all_completed(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(accesses=((0,), (1,), (2,)))
    advice = advise(pool, ((1,), (), (3, 4)), (0, 1, 2))
    outcome = replay(pool, "--prefetch", "fadvise", "--advice", advice, "--compute-seconds", "0.3", "--passes", "one")
    counts = balance(outcome.only("pass"))
    assert {k: counts[k] for k in ("submitted", "completed", "overwritten", "pending", "experts", "asked_bytes")} == {
        "submitted": 3,
        "completed": 3,
        "overwritten": 0,
        "pending": 0,
        "experts": 3,
        "asked_bytes": 3 * 16 * PAGE,
    }


@pytest.mark.parametrize("mode", MODES)
def test_a_hint_far_ahead_makes_just_the_advised_experts_resident(
    replay: Replay, make_pool: MakePool, resident: Callable[[Path], int], mode: str
) -> None:
    pool = make_pool(size=256 * PAGE, accesses=((0,), (1, 2, 3)))
    advice = advise(pool, ((1, 2, 3, 5),), (0,))
    options = ("--mode", mode, "--prefetch", "fadvise", "--advice", advice, "--hits", "cachestat", "--passes", "one")
    pages: dict[int, int] = {}

    def run() -> Any:
        pool.drop()
        outcome = replay(pool, *options, "--compute-seconds", "0.5")
        pages.update({expert: resident(pool.path(expert)) for expert in (4, 5)})  # skips where cachestat fails
        return outcome

    outcome = undisturbed(run)
    counts = balance(outcome.only("pass"))
    assert (counts["completed"], counts["experts"], counts["read_bytes"]) == (1, 4, 0)
    assert (counts["resident_before_bytes"], counts["became_resident_bytes"]) == (0, 4 * 256 * PAGE)
    first, second = (i["hit_bytes"] for i in outcome.named("iteration"))
    assert first == 0
    # Proactive reclaim (DAMON) may take a page again within the half second.
    assert 0.99 * 3 * 256 * PAGE <= second <= 3 * 256 * PAGE
    assert pages == {4: 0, 5: 256}


def test_what_is_resident_already_does_not_become_so(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(size=64 * PAGE, accesses=((0,), (1, 2, 3)))
    advice = advise(pool, ((1, 2, 3),), (0,))
    options = ("--prefetch", "fadvise", "--advice", advice, "--compute-seconds", "0.2")
    second = undisturbed(lambda: replay(pool, *options)).named("pass")[1]["prefetch"]
    if second["resident_before_bytes"] is None:
        pytest.skip("no residency probe works here")
    assert (second["resident_before_bytes"], second["became_resident_bytes"]) == (3 * 64 * PAGE, 0)


@pytest.mark.parametrize(("chunk", "whole"), [(131072, True), (2**30, False)])
def test_the_kernel_cuts_a_hint_to_the_read_ahead_unless_it_comes_in_chunks(
    replay: Replay, make_pool: MakePool, tmp_path: Path, chunk: int, *, whole: bool
) -> None:
    size = 2 * readahead_bytes(tmp_path)
    if size > 16 * 2**20:
        pytest.skip(f"one hint on this device reads up to {size // 2} bytes: no expert is larger")
    pool = make_pool(accesses=((0,), (1,)))
    pool.path(7).write_bytes(bytes(size))
    pool.parts.flags = 0
    pool.parts.files[7] = (pool.parts.files[7][0], size)
    pool.parts.extents[7] = (7, 0, 0, size)
    pool.parts.experts[7] = (1, 3, 7, 1, 0, size)
    pool.write_plan()
    advice = advise(pool, ((7,),), (0,))
    options = ("--prefetch", "fadvise", "--advice", advice, "--prefetch-chunk", str(chunk), "--compute-seconds", "0.5")

    def run() -> Any:
        pool.drop()
        return replay(pool, *options, "--destinations", "2", "--passes", "one")

    counts = balance(undisturbed(run).only("pass"))
    if counts["became_resident_bytes"] is None:
        pytest.skip("no residency probe works here")
    assert (counts["completed"], counts["asked_bytes"]) == (1, size)
    assert (counts["became_resident_bytes"] == size) is whole
    assert counts["became_resident_bytes"] > 0


@pytest.mark.parametrize("layout", ["files", "split"])
def test_the_blocking_worker_reads_the_advised_bytes_and_the_demand_none_of_them_again(
    replay: Replay, make_pool: MakePool, layout: str
) -> None:
    size = 256 * PAGE
    pool = make_pool(layout, size=size, accesses=((0,), (1, 2, 3, 4, 5, 6, 7)))
    advice = advise(pool, ((7, 6, 5, 4, 3, 2, 1),), (0,))
    options = ("--prefetch", "blocking", "--advice", advice, "--hits", "auto", "--compute-seconds", "0.5")

    def run() -> Any:
        pool.drop()
        return replay(pool, *options, "--passes", "one")

    outcome = undisturbed(run)
    counts = balance(outcome.only("pass"))
    assert (counts["completed"], counts["experts"]) == (1, 7)
    assert (counts["asked_bytes"], counts["read_bytes"]) == (7 * size, 7 * size)
    first, second = outcome.named("iteration")
    assert second["hit_bytes"] in {7 * size, None}
    assert second["process_read_bytes"] == 0
    if layout == "files":  # in one file the demand's read-ahead brings some in before the worker gets there
        assert first["process_read_bytes"] in {0, 8 * size}  # some containers count nothing
    if counts["became_resident_bytes"] is not None:
        assert counts["resident_before_bytes"] + counts["became_resident_bytes"] == 7 * size


def test_the_worker_stops_after_the_expert_it_is_at_when_the_pass_ends(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(accesses=((0,),))
    advice = advise(pool, (tuple(range(8)) * 500_000,), (0,))
    outcome = replay(pool, "--prefetch", "blocking", "--advice", advice)
    for done in outcome.named("pass"):
        counts = balance(done)
        assert (counts["submitted"], counts["completed"], counts["pending"]) == (1, 0, 1)
        assert counts["experts"] < 4_000_000
        assert counts["read_bytes"] == counts["experts"] * 16 * PAGE


@pytest.mark.parametrize("kind", KINDS)
def test_advice_without_lists_prefetches_nothing(replay: Replay, make_pool: MakePool, kind: str) -> None:
    pool = make_pool()
    advice = pool.root.with_suffix(".advice")
    parts = ListParts(pool.parts, ((0,),), (0,))
    none = {"offsets": bytes(8), "triggers": b"", "ids": b""}
    advice.write_bytes(parts.encode(header={"n_lists": 0, "n_ids": 0}, sections=none))
    outcome = replay(pool, "--prefetch", kind, "--advice", advice, "--passes", "one")
    assert set(balance(outcome.only("pass")).values()) <= {0, None}


def test_prefetch_is_null_and_has_no_thread_unless_asked_for(native_bin: Path, make_pool: MakePool) -> None:
    pool = make_pool()
    advice = advise(pool, ((1,),), (0,))
    names = {}
    for options in ((), ("--prefetch", "blocking", "--advice", str(advice))):
        with started(native_bin, pool, "--threads", "3", *options) as process:
            tasks = Path(f"/proc/{process.pid}/task").iterdir()
            names[options] = sorted((task / "comm").read_text().strip() for task in tasks)
            events = rest(process)
        found = [e["prefetch"] for e in events if e["event"] == "pass"]
        assert [p is None for p in found] == [not options] * 2
    readers = ["moetier-read", "moetier-read", "moetier-replay"]
    assert list(names.values()) == [readers, ["moetier-ahead", *readers]]


@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_wrong_byte_ends_the_blocking_worker_and_the_replay(
    replay: Replay, make_pool: MakePool, threads: str
) -> None:
    pool = make_pool(accesses=((0, 1, 2, 3),))  # layer 1 expert 2 is read by the worker alone
    with pool.path(6).open("r+b") as victim:
        victim.seek(5 * PAGE)
        victim.write(b"X")
    advice = advise(pool, ((5, 6, 7),), (0,))
    options = ("--prefetch", "blocking", "--advice", advice, "--compute-seconds", "20", "--threads", threads)
    outcome = replay(pool, *options)
    error = outcome.only("error")
    assert outcome.exit == 1
    assert (error["code"], error["layer"], error["expert"], error["path"]) == ("stamp_mismatch", 1, 2, "L1-E2")
    assert error["message"].startswith("layer 1 expert 2: page 5 holds")
    done = outcome.only("pass")  # the second is not begun
    counts = balance(done)
    assert (counts["submitted"], counts["pending"], counts["experts"]) == (1, 1, 1)
    assert done["partial"]
    assert outcome.events[-1] == {"event": "end", "partial": True, "exit": 1}


def test_wrong_bytes_pass_where_stamps_are_not_compared(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(accesses=((0, 1, 2, 3),))
    pool.path(6).write_bytes(bytes(16 * PAGE))
    advice = advise(pool, ((6,),), (0,))
    options = ("--prefetch", "blocking", "--advice", advice, "--compute-seconds", "0.2", "--stamps", "none")
    assert replay(pool, *options).exit == 0


def test_a_short_file_ends_the_blocking_worker_and_the_replay(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(accesses=((0, 1, 2, 3),))
    os.truncate(pool.path(5), 10 * PAGE + 100)
    advice = advise(pool, ((5,),), (0,))
    outcome = replay(pool, "--prefetch", "blocking", "--advice", advice, "--compute-seconds", "20")
    error = outcome.only("error")
    assert outcome.exit == 1
    assert (error["code"], error["layer"], error["expert"], error["path"]) == ("short_read", 1, 1, "L1-E1")
    assert f"got {10 * PAGE + 100} of {16 * PAGE} bytes" in error["message"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_leaves_no_list_uncounted(native_bin: Path, make_pool: MakePool, kind: str) -> None:
    pool = make_pool(accesses=((0, 1, 2, 3),) * 100_000)
    triggers = range(0, 400_000, 5)
    advice = advise(pool, [(4, 5, 6, 7)] * len(triggers), triggers)
    options = ("--passes", "long,never", "--prefetch", kind, "--advice", str(advice))
    with started(native_bin, pool, *options) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        while json.loads(process.stdout.readline()).get("index") != 20:
            pass
        process.send_signal(signal.SIGTERM)
        events = [json.loads(line) for line in process.stdout]
        assert process.wait(30) == 143
    (done,) = [e for e in events if e["event"] == "pass"]
    assert done["partial"]
    assert 16 <= balance(done)["submitted"] < len(triggers)


def test_advice_of_another_plan_is_refused(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool()
    advice = advise(pool, ((1,),), (0,))
    pool.parts.sequence.reverse()
    pool.write_plan()
    outcome = replay(pool, "--prefetch", "fadvise", "--advice", advice)
    assert outcome.exit == 2
    assert "made for another plan" in outcome.only("error", code="list")["message"]


def test_few_descriptors_are_enough_for_the_worker_too(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(accesses=tuple((i, (i * 3) % 8) for i in range(8)) * 4)
    advice = advise(pool, [tuple(range(8))] * 16, range(0, 64, 4))
    options = ("--threads", "3", "--prefetch", "blocking", "--advice", advice)
    outcome = replay(pool, *options, prefix=("prlimit", "--nofile=68:68"))
    assert outcome.exit == 0, outcome.stderr
    assert [balance(done)["submitted"] for done in outcome.named("pass")] == [16, 16]


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (("--prefetch", "perhaps"), "--prefetch perhaps: expected one of none fadvise blocking"),
        (("--prefetch", "fadvise"), "--prefetch fadvise: expected --advice FILE"),
        (("--advice", "some.list"), "expected --prefetch fadvise or blocking"),
        (("--prefetch", "none", "--advice", "some.list"), "expected --prefetch fadvise or blocking"),
        (("--prefetch", "fadvise", "--advice", "a", "--prefetch-chunk", "0"), "a whole number from 4096"),
        (("--prefetch", "blocking", "--advice", "a", "--prefetch-chunk", "131072"), "expected --prefetch fadvise"),
        (
            ("--prefetch", "fadvise", "--advice", "a", "--mode", "direct"),
            "--mode direct: a hint to the page cache does nothing for a mode that does not read through it",
        ),
        (("--prefetch", "blocking", "--advice", "a", "--mode", "direct"), "a hint to the page cache does nothing"),
    ],
)
def test_a_prefetch_that_makes_no_sense_is_refused(
    replay: Replay, make_pool: MakePool, options: tuple[str, ...], seen: str
) -> None:
    outcome = replay(make_pool(), *options)
    assert outcome.exit == 2
    assert seen in outcome.only("error", code="usage")["message"]
    assert outcome.events[-1] == {"event": "end", "partial": True, "exit": 2}
