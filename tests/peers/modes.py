"""Compare the modes with memory of their own, and the idle prefetch worker, with what they can cost at the least.

Misses: ``direct`` and ``user_lru`` read every expert once, in random order, after the cache was dropped; the peer is
fio with O_DIRECT and as many jobs. The bytes of both sides come into as much memory: one destination per thread and
job, or the slabs of the cache and as many places for fio (``spread.c``). The copy from the slab to the destination is
in the wall of ``user_lru``.

Arena: hits of ``pinned``, every expert held, per CPU-second; the peer is a loop of the C library's memcpy over the same
sizes, order, destinations and threads (``copies.c``). No stamps are compared. A pass is one iteration of as many
accesses as a large model's, for a border between iterations is no part of a hit.

Bookkeeping: what ``user_lru`` and ``user_lfu`` take per access of a held expert of 4 KiB beyond ``pinned``, in the time
of a thread (the wall times the threads: waiting for a lock counts).

Idle worker: no thread exists without prefetch. What the one branch per access costs then cannot be measured by itself:
no build is without it. Hits of 4 KiB by pread beside a worker that has nothing to do until the last access take that
branch too, and look up the access on top; the peer is the same without the option. Two threads read, for beside any
second thread, asleep or not, the kernel counts a reference to the file at each pread. A run's figure is its best pass,
as is due where nothing but noise can make one slower than another.

Of the other runs the median pass counts.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from locality import Result, limit
from replays import (
    EXPERT_BYTES,
    N_EXPERTS,
    SPREAD_SLOTS,
    Bench,
    Replay,
    compiled,
    drop_cache,
    fio,
    interleaved,
    result,
    say,
    shared_file,
    warm,
)

from pytest_moetier.lists import ADVICE, TABLE, Lists, sequence_crc, write_lists
from pytest_moetier.plan import Plan
from pytest_moetier.units import PAGE_BYTES

KINDS = ("misses", "arena", "bookkeeping", "idle")
MISS_THREADS = (2, 4)
THREADS = (1, 2)
DESTINATIONS = 64
ARENA_EXPERTS = 256
ARENA_ACCESSES = 1024
SMALL_EXPERTS = 4096
SMALL_ACCESSES = 1 << 16
SMALL_PER_ITERATION = 1 << 14
NS_PER_ACCESS = 1000.0


@dataclass(frozen=True)
class Small:
    """Accesses to small experts, each first once, then at random; the lists that belong to them."""

    bench: Bench
    plan: Path
    table: Path
    advice: Path

    def passes(self, n: int, threads: int, *options: str) -> tuple[Replay, list[dict]]:
        """Replay the plan once to fill what it fills, then ``n`` times; return the run and these passes."""
        names = numbered(n)
        words = ("--passes", ",".join(("fill", *names)), "--threads", str(threads), "--stamps", "none", *options)
        run = Replay(self.bench, self.plan, lambda: None, *words)
        return run, passes_of(run, names)


def passes_of(run: Replay, names: tuple[str, ...]) -> list[dict]:
    """Return the events of these passes."""
    return [run.only("pass", **{"pass": name}) for name in names]


def numbered(n_passes: int) -> tuple[str, ...]:
    """Return names of so many passes."""
    return tuple(f"pass{number}" for number in range(n_passes))


def on_cpu(done: dict) -> float:
    """Return the CPU time of a pass's iterations."""
    return done["user_seconds"] + done["system_seconds"]


def named(kind: str, threads: int) -> str:
    """Return the name of a comparison."""
    return f"{kind}_{threads}_thread" + "s" * (threads > 1)


def write_table(bench: Bench, n: int) -> Path:
    """Write a table of the first ``n`` experts."""
    table = Lists(
        kind=TABLE,
        flags=0,
        pool_id=bench.base.pool_id,
        n_experts=bench.base.n_experts,
        n_accesses=0,
        sequence_crc=0,
        offsets=np.array([0, n], np.uint64),
        triggers=np.zeros(1, np.uint64),
        ids=np.arange(n, dtype=np.uint32),
    )
    path = bench.scratch / "first.table"
    write_lists(table, path)
    return path


def write_advice(bench: Bench, plan: Plan) -> Path:
    """Write advice of one list, for the last access."""
    advice = Lists(
        kind=ADVICE,
        flags=0,
        pool_id=plan.pool_id,
        n_experts=plan.n_experts,
        n_accesses=plan.n_accesses,
        sequence_crc=sequence_crc(plan),
        offsets=np.array([0, 1], np.uint64),
        triggers=np.array([plan.n_accesses - 1], np.uint64),
        ids=np.zeros(1, np.uint32),
    )
    path = bench.scratch / "last.advice"
    write_lists(advice, path)
    return path


def misses(bench: Bench, pairs: int) -> Iterator[Result]:
    """Yield the rates of misses at each depth, against fio's."""
    plan = bench.plan("misses", np.random.default_rng(11).permutation(N_EXPERTS), N_EXPERTS)
    spread = compiled("spread.c", bench.scratch, "-shared", "-fPIC")
    cache = ("--own-bytes", str(SPREAD_SLOTS * EXPERT_BYTES))

    def ours(threads: int, *options: str) -> float:
        drop_cache()
        words = ("--threads", str(threads), "--destinations", str(threads), "--stamps", "none", *options)
        done = Replay(bench, plan, lambda: None, "--passes", "measured", *words).only("pass")
        assert not done["held_bytes"]
        return done["bytes"] / done["wall_seconds"] / 1e9

    def theirs(threads: int, to: Path | None = None) -> float:
        part = N_EXPERTS // threads * EXPERT_BYTES
        options = (f"--size={part}", f"--offset_increment={part}", "--random_generator=lfsr", "--direct=1")
        done = fio(bench, threads, drop_cache, *options, spread=to)
        return done.bytes / done.wall_seconds / 1e9

    for threads in MISS_THREADS:
        sides = {
            "direct": lambda threads=threads: ours(threads, "--mode", "direct"),
            "fio": lambda threads=threads: theirs(threads),
            "user_lru": lambda threads=threads: ours(threads, "--mode", "user_lru", *cache),
            f"fio to {SPREAD_SLOTS} places": lambda threads=threads: theirs(threads, spread),
        }
        direct, plain, user_lru, placed = interleaved(named("misses", threads), pairs, "GB/s", sides).values()
        yield result(named("direct_misses", threads), "GB/s", direct, plain, 0.95)
        yield result(named("user_lru_misses", threads), "GB/s", user_lru, placed, 0.95)


def arena(bench: Bench, pairs: int) -> Iterator[Result]:
    """Yield the rates of hits in an arena, against plain copies."""
    program = compiled("copies.c", bench.scratch)
    sequence = np.random.default_rng(12).integers(0, ARENA_EXPERTS, ARENA_ACCESSES).astype(np.uint32)
    raw = bench.scratch / "sequence"
    sequence.tofile(raw)
    plan, table, names = bench.plan("arena", sequence, ARENA_ACCESSES), write_table(bench, ARENA_EXPERTS), numbered(4)
    words = ("--mode", "pinned", "--own-bytes", str(ARENA_EXPERTS * EXPERT_BYTES), "--table", str(table))
    words += ("--passes", ",".join(names), "--destinations", str(DESTINATIONS), "--stamps", "none")

    def gigabytes(cpu_seconds: Iterable[float]) -> float:
        return ARENA_ACCESSES * EXPERT_BYTES / 1e9 / statistics.median(cpu_seconds)

    def ours(threads: int) -> tuple[str, float]:
        run = Replay(bench, plan, lambda: None, "--threads", str(threads), *words)
        passes = passes_of(run, names)
        assert all(done["held_accesses"] == ARENA_ACCESSES for done in passes)
        return run.only("start")["copy"], gigabytes(map(on_cpu, passes))

    def theirs(threads: int) -> tuple[str, float]:
        numbers = (ARENA_EXPERTS, EXPERT_BYTES, DESTINATIONS, threads, len(names))
        command = [str(program), str(raw), *map(str, numbers)]
        done = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        assert done["bytes"] == ARENA_ACCESSES * EXPERT_BYTES
        huge = f"{done['huge_bytes'] >> 20} of {ARENA_EXPERTS + DESTINATIONS} MiB in huge pages"
        return f"{done['routine']}, {huge}", gigabytes(done["cpu_seconds"])

    say(f"arena: ours copies by {ours(1)[0]}, the peer by {theirs(1)[0]}")
    for threads in THREADS:
        name = named("arena_hits", threads)
        sides = {
            "pinned": lambda threads=threads: ours(threads)[1],
            "memcpy": lambda threads=threads: theirs(threads)[1],
        }
        seen = interleaved(name, pairs, "GB/CPU-s", sides)
        yield result(f"{name}_against_memcpy", "GB/CPU-s", seen["pinned"], seen["memcpy"], 0.95)


@contextmanager
def small_experts(folder: Path) -> Iterator[Small]:
    """Yield accesses to small experts."""
    with shared_file(folder, SMALL_EXPERTS, PAGE_BYTES) as bench:
        rng = np.random.default_rng(13)
        later = rng.integers(0, SMALL_EXPERTS, SMALL_ACCESSES - SMALL_EXPERTS)
        sequence = np.concatenate([rng.permutation(SMALL_EXPERTS), later])
        path = bench.plan("small", sequence, SMALL_PER_ITERATION)
        plan = bench.sequence_plan(sequence, SMALL_PER_ITERATION)
        yield Small(bench, path, write_table(bench, SMALL_EXPERTS), write_advice(bench, plan))


def bookkeeping(small: Small, pairs: int) -> Iterator[Result]:
    """Yield the nanoseconds per access that a cache of our own takes beyond the arena."""
    own = ("--own-bytes", str(SMALL_EXPERTS * PAGE_BYTES))

    def ns(threads: int, *mode: str) -> float:
        _, passes = small.passes(8, threads, *own, "--mode", *mode)
        assert all(done["held_accesses"] == SMALL_ACCESSES for done in passes)
        return statistics.median(done["wall_seconds"] for done in passes) * threads / SMALL_ACCESSES * 1e9

    for threads in THREADS:
        name = named("bookkeeping", threads)
        sides = {
            "user_lru": lambda threads=threads: ns(threads, "user_lru"),
            "user_lfu": lambda threads=threads: ns(threads, "user_lfu"),
            "pinned": lambda threads=threads: ns(threads, "pinned", "--table", str(small.table)),
        }
        seen = interleaved(name, pairs, "ns per access", sides)
        for mode in ("user_lru", "user_lfu"):
            beyond = statistics.median(one - base for one, base in zip(seen[mode], seen["pinned"], strict=True))
            yield limit(f"{mode}_{name}", "ns per access", max(beyond, 1.0), NS_PER_ACCESS)  # noise may be below 0


def idle(small: Small, pairs: int) -> Iterator[Result]:
    """Yield the threads of a replay without prefetch, and the rate beside a worker that waits against that without."""
    armed = ("--prefetch", "fadvise", "--advice", str(small.advice))
    none = ("--prefetch", "none")
    count: dict[tuple[str, ...], int] = {}

    def rate(threads: int, *prefetch: str) -> float:
        run, passes = small.passes(3, threads, "--mode", "page_cache", *prefetch)
        count[prefetch] = len(run.threads)
        return SMALL_ACCESSES / 1e6 / min(map(on_cpu, passes))

    warm(small.bench.file)  # once: both sides read the same pages
    for threads in THREADS:
        rate(threads, *none)
        yield limit(named("all_threads_without_prefetch", threads), "threads", count[none], threads)
    name = "hits_beside_an_idle_worker"
    seen = interleaved(
        name, pairs, "million per CPU-s", {"armed": lambda: rate(2, *armed), "none": lambda: rate(2, *none)}
    )
    assert count[armed] == count[none] + 1  # else there was nothing to compare
    yield result(name, "million per CPU-s", seen["armed"], seen["none"], 0.97)


def results(bench: Bench, only: str, pairs: int) -> list[Result]:
    """Run the comparisons that were asked for: all without a word."""
    kinds = KINDS if only in ("", "modes") else (only,)
    found: list[Result] = []
    if "misses" in kinds:
        found += misses(bench, 2 * pairs)
    if "arena" in kinds:
        found += arena(bench, pairs + pairs // 2)
    if {"bookkeeping", "idle"}.isdisjoint(kinds):
        return found
    with small_experts(bench.scratch) as small:
        if "bookkeeping" in kinds:
            found += bookkeeping(small, pairs // 2 + 1)
        if "idle" in kinds:
            found += idle(small, 9 * pairs)
    return found
