"""Modes with memory of their own: what is held, what it costs, and which accesses it serves."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_moetier import _sim

from .conftest import PAGE, PlanParts, Pool, parse_events, stamped_bytes
from .lists import ListParts

MIB = 2**20
EXPERT = 16 * PAGE  # of make_pool
LARGE = 128 * PAGE  # of the pools whose reads are counted
SLACK = LARGE // 2  # what else the kernel may read for the process: its program, where each file lies
ALL = tuple(range(8))
CACHES = ("user_lru", "user_lfu")

Replay = Callable[..., Any]
MakePool = Callable[..., Any]
Table = Callable[..., Path]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Write the table of a pool's experts."""

    def write(pool: Any, *experts: int, **changes: Any) -> Path:
        path = tmp_path / "the.table"
        path.write_bytes(ListParts(pool.parts, [experts]).encode(**changes))
        return path

    return write


@pytest.fixture
def pinned(replay: Replay, table: Table) -> Replay:
    """Replay with the experts given in an arena that has room for them, or for ``own_bytes``."""

    def run(pool: Any, experts: Sequence[int], *options: str, own_bytes: int | None = None, **more: Any) -> Any:
        room = sum(pool.parts.experts[one][5] for one in experts) if own_bytes is None else own_bytes
        asked = ("--mode", "pinned", "--own-bytes", str(room), "--table", table(pool, *experts))
        return replay(pool, *asked, *options, **more)

    return run


def sized_pool(root: Path, sizes: Sequence[int], accesses: Sequence[Sequence[int]]) -> Pool:
    """Write a layer of experts of different sizes back to back in one file, each in two extents."""
    root.mkdir()
    blob, extents = b"", []
    for expert, size in enumerate(sizes):
        cut = size // 3 + 1
        extents += [(0, 0, len(blob), cut), (0, 0, len(blob) + cut + 100, size - cut)]
        content = stamped_bytes(0, expert, size)
        blob += content[:cut] + bytes(100) + content[cut:]
    (root / "pool.bin").write_bytes(blob)
    experts = [(0, expert, 2 * expert, 2, 0, size) for expert, size in enumerate(sizes)]
    starts = np.cumsum([0, *(len(one) for one in accesses)]).tolist()
    sequence = [one for each in accesses for one in each]
    return Pool(root, PlanParts(starts, sequence, experts, extents, [(b"pool.bin", len(blob))]))


def held_bytes(outcome: Any) -> list[int]:
    """Return what each iteration was served from own memory, pass after pass."""
    return [one["held_bytes"] for one in outcome.named("iteration")]


def read_just(outcome: Any, expected_bytes: int, **which: Any) -> bool:
    """Whether the kernel read so much for the replayer in the iterations, to less than an expert."""
    read = [one["process_read_bytes"] for one in outcome.named("iteration", **which)]
    if None in read:
        pytest.skip("no /proc/self/io here")
    return expected_bytes <= sum(read) < expected_bytes + SLACK


def captured_status(outcome: Any, moment: str, key: str) -> int:
    """Return a size from the /proc/self/status captured at a moment."""
    text = outcome.only("capture", at=moment)["files"][0]["text"]
    return int(text.split(f"{key}:")[1].split()[0]) * 1024


def sparse_pool(root: Path, n: int) -> Pool:
    """Write a plan of so many experts of 64 MiB, of which one is read, over a file that takes no space."""
    size = 64 * MIB
    root.mkdir()
    (root / "file").touch()
    os.truncate(root / "file", n * size)
    extents = [(0, 0, one * size, size) for one in range(n)]
    experts = [(0, one, one, 1, 0, size) for one in range(n)]
    return Pool(root, PlanParts([0, 1], [0], experts, extents, [(b"file", n * size)], flags=0))


def named(error: Any) -> tuple[str, int, int, str]:
    """Return what an error says of itself."""
    return error["code"], error["layer"], error["expert"], error["path"]


@pytest.fixture(autouse=True)
def _may_lock(request: pytest.FixtureRequest) -> None:
    """Skip where nobody could lock an arena of a few hundred kilobytes."""
    if "pinned" in request.fixturenames and os.geteuid() != 0:
        pytest.skip("locking memory takes root or a raised RLIMIT_MEMLOCK")


# What is delivered


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("layout", ["files", "one_file", "unaligned", "split"])
@pytest.mark.parametrize("mode", CACHES)
def test_a_user_cache_delivers_every_byte_of_every_layout(
    replay: Replay, make_pool: MakePool, mode: str, layout: str, threads: int
) -> None:
    pool = make_pool(layout, size=10 * PAGE + 20, accesses=((0, 7, 3, 3), (), (1, 2, 4, 5, 6), (6, 0)))
    outcome = replay(pool, "--mode", mode, "--threads", str(threads), "--own-bytes", str((threads + 1) * 16 * PAGE))
    assert outcome.exit == 0, outcome.stderr
    for name in ("warm", "measured"):
        done = outcome.only("pass", **{"pass": name})
        assert (done["accesses"], done["bytes"]) == (11, 11 * (10 * PAGE + 20))
        assert done["stamps_checked"] >= 11 * 11  # a stamp cut by an extent's border is compared in two parts
        assert done["held_bytes"] == done["held_accesses"] * (10 * PAGE + 20)
        assert sum(one["held_bytes"] for one in outcome.named("iteration", **{"pass": name})) == done["held_bytes"]


@pytest.mark.parametrize("held", [(7,), (3, 7), (6, 3, 0), ALL])
@pytest.mark.parametrize("layout", ["files", "one_file", "unaligned", "split"])
def test_an_arena_and_the_page_cache_deliver_every_byte_between_them(
    pinned: Replay, make_pool: MakePool, layout: str, held: tuple[int, ...]
) -> None:
    size = 10 * PAGE + 20
    pool = make_pool(layout, size=size, accesses=((0, 7, 3, 3), (), (1, 2, 4, 5, 6)))
    outcome = pinned(pool, held, "--threads", "3")
    served = sum(one in held for one in pool.parts.sequence)
    assert outcome.exit == 0, outcome.stderr
    for done in outcome.named("pass"):
        assert (done["accesses"], done["bytes"]) == (9, 9 * size)
        assert (done["held_accesses"], done["held_bytes"]) == (served, served * size)
        assert done["stamps_checked"] >= 9 * 11


@pytest.mark.parametrize("mode", CACHES)
def test_experts_of_different_sizes_share_slabs_of_the_largest_ones_pages(
    replay: Replay, tmp_path: Path, mode: str
) -> None:
    sizes = [PAGE, 5 * PAGE + 1, 33, 9 * PAGE + 3000, 2 * PAGE - 7]
    pool = sized_pool(tmp_path / "pool", sizes, [[one] for one in (0, 1, 2, 3, 4, 3, 3, 0, 4, 2, 1, 0)])
    outcome = replay(pool, "--mode", mode, "--threads", "1", "--own-bytes", str(3 * 13 * PAGE))
    own = outcome.only("own")
    windows = [
        sum((at + length - 1) // PAGE - at // PAGE + 1 for _, _, at, length in pool.parts.extents[2 * i : 2 * i + 2])
        for i in range(len(sizes))
    ]
    assert own["slab_bytes"] == max(windows) * PAGE
    assert own["slabs"] == 3 * 13 // max(windows)
    assert outcome.exit == 0, outcome.stderr
    assert outcome.only("pass", **{"pass": "measured"})["bytes"] == pool.parts.total_bytes


# Which accesses are hits


def plain_hits(sequence: Sequence[int], n_slabs: int, mode: str) -> list[bool]:
    """Return the hits of LRU or LFU with counts from admission, as anyone would write them down first."""
    uses: dict[int, int] = {}
    used_at: dict[int, int] = {}
    hits = []
    for now, one in enumerate(sequence):
        hits.append(one in uses)
        if one not in uses and len(uses) == n_slabs:
            rank = {"user_lru": lambda it: used_at[it], "user_lfu": lambda it: (uses[it], used_at[it])}[mode]
            del uses[min(uses, key=rank)]
        uses[one] = uses.get(one, 0) + 1
        used_at[one] = now
    return hits


def simulated_hits(sequence: Sequence[int], n_slabs: int, mode: str) -> list[bool]:
    """Return the hits that the package's own simulator predicts."""
    key = np.array(sequence, np.uint32)
    whole = np.array([0, len(key)], np.uint64)
    if mode == "user_lru":
        distance = np.zeros(len(key), np.uint32)
        _sim.lru_stack(key, whole, None, None, distance)
        return (distance <= n_slabs).tolist()
    hits = np.zeros(len(key), np.uint8)
    _sim.lfu_hits(key, whole, None, None, np.array([n_slabs], np.uint64), np.zeros(1, np.uint64), hits, perfect=False)
    return hits.astype(bool).tolist()


def skewed(rng: random.Random, n: int) -> list[list[int]]:
    """Return iterations of one access each, some experts far more often than others, the favourites changing."""
    weights = [[rng.random() ** 6 + 0.01 for _ in ALL] for _ in range(4)]
    return [rng.choices(ALL, weights[at * 4 // n]) for at in range(n)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n_slabs", [2, 3, 5, 7, 8, 11])
@pytest.mark.parametrize("mode", CACHES)
def test_with_one_thread_the_hits_are_the_simulators_hit_for_hit(
    replay: Replay, make_pool: MakePool, mode: str, n_slabs: int, seed: int
) -> None:
    accesses = skewed(random.Random(seed), 300)  # noqa: S311
    pool = make_pool(accesses=accesses)
    options = ("--threads", "1", "--passes", "one,two,three", "--own-bytes", str(n_slabs * EXPERT + 100))
    outcome = replay(pool, "--mode", mode, *options)
    sequence = pool.parts.sequence * 3
    expected = plain_hits(sequence, n_slabs, mode)
    assert simulated_hits(sequence, n_slabs, mode) == expected
    assert 0 < sum(expected) < len(expected)
    assert [one == EXPERT for one in held_bytes(outcome)] == expected
    assert sum(one["held_accesses"] for one in outcome.named("pass")) == sum(expected)


@pytest.mark.parametrize("mode", CACHES)
def test_the_kernel_reads_the_misses_and_nothing_else(replay: Replay, make_pool: MakePool, mode: str) -> None:
    pool = make_pool(size=LARGE, accesses=skewed(random.Random(7), 200))  # noqa: S311
    outcome = replay(pool, "--mode", mode, "--threads", "1", "--own-bytes", str(3 * LARGE))
    for done in outcome.named("pass"):
        assert read_just(outcome, done["bytes"] - done["held_bytes"], **{"pass": done["pass"]})


@pytest.mark.parametrize("mode", CACHES)
def test_a_user_cache_leaves_the_page_cache_empty(
    replay: Replay, make_pool: MakePool, resident: Callable[[Path], int], mode: str
) -> None:
    pool = make_pool()
    pool.drop()
    assert replay(pool, "--mode", mode, "--own-bytes", str(4 * EXPERT)).exit == 0
    assert sum(resident(pool.path(file)) for file in ALL) == 0


@pytest.mark.parametrize("threads", [2, 8, 64])
@pytest.mark.parametrize("mode", CACHES)
def test_an_expert_that_many_threads_want_at_once_is_read_once(
    replay: Replay, make_pool: MakePool, mode: str, threads: int
) -> None:
    accesses = [[one] * 40 + [(one + 1) % 8] * 40 for one in ALL] * 2
    pool = make_pool(size=LARGE, accesses=accesses)
    options = ("--threads", str(threads), "--own-bytes", str(max(8, threads + 1) * LARGE))
    outcome = replay(pool, "--mode", mode, *options)
    warm, measured = (outcome.only("pass", **{"pass": name}) for name in ("warm", "measured"))
    assert warm["accesses"] - warm["held_accesses"] == 8  # whoever waited for a load has a hit
    assert measured["held_accesses"] == measured["accesses"] == len(pool.parts.sequence)
    assert read_just(outcome, 8 * LARGE)


@pytest.mark.parametrize("threads", [2, 7])
@pytest.mark.parametrize("mode", CACHES)
def test_threads_that_evict_from_each_other_get_the_right_bytes(
    replay: Replay, make_pool: MakePool, mode: str, threads: int
) -> None:
    rng = random.Random(threads)  # noqa: S311
    pool = make_pool(size=LARGE, accesses=[[rng.choice(ALL) for _ in range(50)] for _ in range(10)])
    outcome = replay(pool, "--mode", mode, "--threads", str(threads), "--own-bytes", str((threads + 1) * LARGE))
    assert outcome.exit == 0, outcome.stderr
    for done in outcome.named("pass"):
        assert (done["accesses"], done["stamps_checked"]) == (500, 500 * 128)
        assert read_just(outcome, done["bytes"] - done["held_bytes"], **{"pass": done["pass"]})


@pytest.mark.parametrize("mode", CACHES)
def test_a_load_that_fails_lets_its_waiters_go(replay: Replay, make_pool: MakePool, mode: str) -> None:
    options = ("--mode", mode, "--threads", "8", "--own-bytes", str(9 * EXPERT), "--passes", "one")
    accesses = [[0, 1, 2], [5] * 64]
    short = make_pool(accesses=accesses)
    os.truncate(short.path(5), 9 * PAGE)
    outcome = replay(short, *options)
    error = outcome.only("error")
    assert (outcome.exit, *named(error)) == (1, "short_read", 1, 1, "L1-E1")
    assert outcome.only("pass")["partial"]
    assert outcome.only("pass")["accesses"] == 3


@pytest.mark.parametrize("mode", CACHES)
def test_a_wrong_page_in_a_slab_is_named_and_served_to_nobody(replay: Replay, make_pool: MakePool, mode: str) -> None:
    pool = make_pool(accesses=[[5] * 64])
    with pool.path(5).open("r+b") as victim:
        victim.seek(5 * PAGE)
        victim.write(pool.path(1).read_bytes()[3 * PAGE : 4 * PAGE])
    outcome = replay(pool, "--mode", mode, "--threads", "8", "--own-bytes", str(9 * EXPERT))
    error = outcome.only("error")
    assert (outcome.exit, error["code"], error["expert"], error["path"]) == (1, "stamp_mismatch", 1, "L1-E1")
    assert "page 5 holds the stamp of layer 0 expert 1 page 3" in error["message"]
    assert outcome.only("pass")["held_accesses"] == 0


# The arena


def test_preloaded_experts_are_never_read_again(
    pinned: Replay, make_pool: MakePool, resident: Callable[[Path], int]
) -> None:
    pool = make_pool(size=LARGE, accesses=(ALL, ALL))
    pool.drop()
    outcome = pinned(pool, ALL)
    assert read_just(outcome, 0)
    for done in outcome.named("pass"):
        assert (done["held_accesses"], done["held_bytes"]) == (16, 16 * LARGE)
    assert sum(resident(pool.path(file)) for file in ALL) == 0  # neither the preload nor an access went through it


def test_the_preload_is_reported_apart_from_the_passes(pinned: Replay, make_pool: MakePool, tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("1 2 800 4\n")
    outcome = pinned(make_pool(size=LARGE), (3, 1), "--device-stat", str(stat))
    own = outcome.only("own")
    assert [one["event"] for one in outcome.events[:3]] == ["start", "own", "ready"]
    assert (own["kind"], own["experts"], own["asked_bytes"], own["held_bytes"]) == ("arena", 2, 2 * LARGE, 2 * LARGE)
    assert (own["preload_bytes"], own["preload_device_bytes"]) == (2 * LARGE, [0])
    assert own["preload_process_bytes"] is None or 0 <= own["preload_process_bytes"] - 2 * LARGE < SLACK
    assert own["preload_seconds"] > 0


def test_what_the_arena_does_not_hold_goes_through_the_page_cache(
    pinned: Replay, make_pool: MakePool, resident: Callable[[Path], int]
) -> None:
    pool = make_pool(size=LARGE, accesses=(ALL,))
    pool.drop()
    outcome = pinned(pool, (2, 5, 7))
    warm = outcome.only("pass", **{"pass": "warm"})
    assert warm["held_bytes"] == 3 * LARGE
    assert read_just(outcome, warm["bytes"] - warm["held_bytes"], **{"pass": "warm"})
    assert read_just(outcome, 0, **{"pass": "measured"})
    assert [resident(pool.path(file)) for file in ALL] == [0 if file in {2, 5, 7} else 128 for file in ALL]


def test_held_experts_are_not_looked_up_in_the_page_cache(
    pinned: Replay, make_pool: MakePool, resident: Callable[[Path], int]
) -> None:
    pool = make_pool(accesses=(ALL,))
    for file in ALL:
        pool.path(file).read_bytes()
    assert all(resident(pool.path(file)) == 16 for file in ALL)
    for done in pinned(pool, (0, 6), "--hits", "cachestat").named("pass"):
        assert (done["hit_accesses"], done["hit_bytes"]) == (6, 6 * EXPERT)
        assert (done["held_accesses"], done["held_bytes"]) == (2, 2 * EXPERT)


@pytest.mark.parametrize(("room", "held"), [(PAGE, 1), (6 * PAGE, 1), (6 * PAGE + 1, 2), (9 * PAGE, 2), (10**9, 5)])
def test_the_table_is_taken_up_to_the_first_expert_that_does_not_fit(
    pinned: Replay, tmp_path: Path, room: int, held: int
) -> None:
    sizes = [PAGE, 5 * PAGE + 1, 33, 9 * PAGE + 3000, 2 * PAGE - 7]
    pool = sized_pool(tmp_path / "pool", sizes, [range(5)])
    outcome = pinned(pool, (0, 1, 3, 4, 2), own_bytes=room)
    own = outcome.only("own")
    taken = [0, 1, 3, 4, 2][:held]
    assert own["experts"] == held
    assert own["held_bytes"] == own["preload_bytes"] == sum(sizes[one] for one in taken)
    assert own["held_bytes"] <= own["mapped_bytes"] < own["held_bytes"] + 64 * held + PAGE
    assert outcome.only("pass", **{"pass": "warm"})["held_bytes"] == own["held_bytes"]


def test_what_is_locked_is_what_is_said(pinned: Replay, make_pool: MakePool) -> None:
    size = 10 * PAGE + 20
    outcome = pinned(make_pool(size=size), (4, 1, 0), "--capture", "/proc/self/status")
    ready, own = outcome.only("ready"), outcome.only("own")
    assert ready["locked_bytes"] == ready["budgeted_bytes"] == own["mapped_bytes"] == -(-3 * size // PAGE) * PAGE
    for moment in ("warm:entry", "warm:exit", "measured:entry", "measured:exit"):
        assert captured_status(outcome, moment, "VmLck") == ready["locked_bytes"]


def test_a_user_cache_is_touched_before_the_passes_and_not_locked(
    replay: Replay, make_pool: MakePool, *, sanitized: bool
) -> None:
    pool = make_pool()
    options = ("--destinations", "2", "--capture", "/proc/self/status")
    plain = replay(pool, *options)
    outcome = replay(pool, "--mode", "user_lru", "--own-bytes", str(33 * MIB + 5 * PAGE), *options)
    ready, own = outcome.only("ready"), outcome.only("own")
    slabs = (33 * MIB + 5 * PAGE) // EXPERT
    assert (own["kind"], own["slabs"], own["slab_bytes"]) == ("user_cache", slabs, EXPERT)
    assert own["held_bytes"] == own["mapped_bytes"] == ready["budgeted_bytes"] == slabs * EXPERT
    assert own["preload_bytes"] == ready["locked_bytes"] == captured_status(outcome, "warm:entry", "VmLck") == 0
    more = ready["rss_anon_bytes"] - plain.only("ready")["rss_anon_bytes"]
    assert more >= own["mapped_bytes"]
    if not sanitized:
        assert more < own["mapped_bytes"] + MIB  # no huge page reaches over the end
        assert captured_status(outcome, "measured:exit", "RssAnon") < ready["rss_anon_bytes"] + MIB


def test_a_wrong_page_is_seen_in_the_preload(pinned: Replay, make_pool: MakePool) -> None:
    pool = make_pool()
    with pool.path(6).open("r+b") as victim:
        victim.seek(15 * PAGE)
        victim.write(bytes(PAGE))
    outcome = pinned(pool, (1, 6))
    error = outcome.only("error")
    assert (outcome.exit, *named(error)) == (1, "stamp_mismatch", 1, 2, "L1-E2")
    assert "page 15 holds no stamp" in error["message"]
    assert [one["event"] for one in outcome.events] == ["start", "error", "end"]
    assert pinned(pool, (1, 6), "--stamps", "none").exit == 0


def test_a_short_file_is_seen_in_the_preload(pinned: Replay, make_pool: MakePool) -> None:
    pool = make_pool()
    os.truncate(pool.path(1), 3 * PAGE)
    outcome = pinned(pool, (1, 6))
    error = outcome.only("error")
    assert (outcome.exit, error["code"], error["layer"], error["expert"]) == (1, "short_read", 0, 1)


def test_a_signal_while_the_arena_is_locked_and_filled_ends_the_replay(
    native_bin: Path, tmp_path: Path, table: Table, pinned: Replay
) -> None:
    assert pinned  # which needs the right to lock
    pool = sparse_pool(tmp_path / "sparse", 8)
    asked = ("--mode", "pinned", "--own-bytes", str(512 * MIB), "--table", table(pool, *ALL), "--wait")
    command = [native_bin / "moetier-replay", pool.plan, "--root", pool.root, "--destinations", "2", *asked]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        events = parse_events(process.stdout.read())
        assert process.wait(30) == 143
    assert events[-1] == {"event": "end", "partial": True, "exit": 143}
    assert [one["event"] for one in events] in (["end"], ["own", "end"], ["own", "ready", "end"])


def test_a_pool_without_direct_reads_is_preloaded_through_the_page_cache(
    pinned: Replay, replay: Replay, make_pool: MakePool
) -> None:
    shm = Path("/dev/shm")  # noqa: S108
    if not os.access(shm, os.W_OK):
        pytest.skip("no tmpfs that can be written")
    root = shm / f"moetier-own-{os.getpid()}"
    try:
        pool = make_pool(root=root)
        outcome = pinned(pool, ALL)
        assert outcome.exit == 0, outcome.stderr
        assert outcome.only("pass", **{"pass": "warm"})["held_accesses"] == 8
        refused = replay(pool, "--mode", "user_lru", "--own-bytes", str(4 * EXPERT))
        assert refused.exit == 77
        assert "tmpfs" in refused.only("error", code="unsupported")["message"]
    finally:
        for path in shm.glob(f"{root.name}*"):
            subprocess.run(["rm", "-r", path], check=True)


# What is refused


def test_a_refused_mlock_ends_with_3_and_names_the_limit(pinned: Replay, make_pool: MakePool) -> None:
    drop = ("--bounding-set=-ipc_lock,-sys_resource", "--inh-caps=-ipc_lock,-sys_resource")
    outcome = pinned(make_pool(), ALL, prefix=("prlimit", "--memlock=65536:65536", "setpriv", *drop))
    error = outcome.only("error")
    assert (outcome.exit, error["code"]) == (3, "mlock")
    assert error["message"] == (
        f"mlock of {8 * EXPERT} bytes refused (Cannot allocate memory): VmLck is 0 bytes, "
        "RLIMIT_MEMLOCK is 65536 bytes; run as root, or raise it with ulimit -l"
    )
    assert outcome.stderr == f"moetier-replay: {error['message']}\n"
    assert [one["event"] for one in outcome.events] == ["start", "error", "end"]


def total_bytes() -> int:
    """Return MemTotal."""
    return int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]) * 1024


def test_an_arena_beyond_memory_is_refused_with_the_figure(pinned: Replay, tmp_path: Path) -> None:
    n = total_bytes() // (64 * MIB) + 1
    outcome = pinned(sparse_pool(tmp_path / "sparse", n), range(n), "--threads", "1", "--destinations", "1")
    assert outcome.exit == 1
    assert f"an arena of {n} experts: {n * 64 * MIB} bytes asked" in outcome.only("error", code="memory")["message"]


@pytest.mark.parametrize("own_bytes", [None, 2**63 + 1, 2**64 - 1])
@pytest.mark.parametrize("mode", CACHES)
def test_a_user_cache_beyond_memory_is_refused(
    replay: Replay, make_pool: MakePool, mode: str, own_bytes: int | None
) -> None:
    asked = own_bytes or (total_bytes() // EXPERT + 1) * EXPERT
    outcome = replay(make_pool(), "--mode", mode, "--own-bytes", str(asked))
    assert outcome.exit == 1
    assert f"{asked // EXPERT} slabs" in outcome.only("error", code="memory")["message"]


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (("--mode", "pinned", "--table", "TABLE"), "as --own-bytes N"),
        (("--mode", "pinned", "--own-bytes", "65536"), "as --table FILE"),
        (("--mode", "user_lru"), "--mode user_lru: expected the size of its memory"),
        (("--mode", "user_lfu"), "--mode user_lfu: expected the size of its memory"),
        (("--mode", "user_lru", "--own-bytes", "1000000", "--table", "TABLE"), "--table with --mode user_lru"),
        (("--own-bytes", "65536"), "--own-bytes with --mode page_cache"),
        (("--mode", "direct", "--own-bytes", "65536"), "--own-bytes with --mode direct"),
        (("--table", "TABLE"), "--table with --mode page_cache"),
        (("--mode", "pinned", "--own-bytes", "0", "--table", "TABLE"), "--own-bytes 0"),
        (("--mode", "pinned", "--own-bytes", "1 GB", "--table", "TABLE"), "--own-bytes 1 GB"),
        (("--mode", "pinned", "--own-bytes", "65535", "--table", "TABLE"), "first expert at least (65536 bytes)"),
        (("--mode", "user_lru", "--threads", "2", "--own-bytes", str(3 * EXPERT - 1)), f"{3 * EXPERT} bytes or more"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_missing(
    replay: Replay, make_pool: MakePool, table: Table, options: tuple[str, ...], seen: str
) -> None:
    pool = make_pool()
    path = table(pool, 3, 1)
    outcome = replay(pool, *(path if one == "TABLE" else one for one in options))
    assert (outcome.exit, outcome.only("error")["code"]) == (2, "usage")
    assert seen in outcome.only("error")["message"]


def test_a_table_of_another_pool_is_refused(replay: Replay, make_pool: MakePool, table: Table) -> None:
    pool = make_pool()
    path = table(pool, 0, header={"pool_id": 1})
    outcome = replay(pool, "--mode", "pinned", "--own-bytes", str(EXPERT), "--table", path)
    assert (outcome.exit, outcome.only("error")["code"]) == (2, "list")
    assert "made for pool 0000000000000001" in outcome.only("error")["message"]


@pytest.mark.parametrize("mode", ["page_cache", "direct", "mmap"])
def test_modes_without_own_memory_say_null_and_nothing_is_budgeted(
    replay: Replay, make_pool: MakePool, mode: str
) -> None:
    outcome = replay(make_pool(), "--mode", mode)
    ready = outcome.only("ready")
    assert (ready["budgeted_bytes"], ready["locked_bytes"]) == (0, 0)
    assert not outcome.named("own")
    assert {one["held_bytes"] for one in outcome.events if one["event"] in {"iteration", "pass"}} == {None}
    assert {one["held_accesses"] for one in outcome.named("pass")} == {None}
