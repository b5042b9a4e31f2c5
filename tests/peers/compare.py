"""Compare with peers, side by side; writes ``peers.json``.

The replayer with fio: same file, pattern, alignment, destinations and threads; its other modes with fio and with plain
copies: ``modes.py``. Traces with Python and numpy, policies with libCacheSim: ``jsonl.py``, ``locality.py``,
``lru_peer.py`` and ``min_peer.py`` say how.

Both sides run in interleaved pairs, the side that goes first at random; a figure is the median of its pairs' ratios.
A ratio above 1 always means that the replayer is better. Hits read whole 1 MiB experts at random from a file that is
wholly in the page cache, into one destination per thread, as fio's psync engine does; the replayer checks the stamps of
the first and last page of every expert on top. Cold passes read every expert once, in random order, after the cache was
dropped.

Needs root (to drop the cache), fio, a C compiler, and about 1 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import jsonl
import locality
import lru_peer
import min_peer
import modes
import numpy as np
from locality import Result, limit
from replays import (
    ACCESSES_PER_ITERATION,
    EXPERT_BYTES,
    N_EXPERTS,
    Bench,
    Replay,
    Side,
    drop_cache,
    fio,
    interleaved,
    result,
    say,
    shared_file,
    warm,
)


def ours(bench: Bench, plan: Path, threads: int, mode: str, prepare: Callable[[], None]) -> Side:
    """Replay the plan: stamps of the first and last page checked, one destination per thread.

    The CPU time includes the end of the process.
    """
    words = ("--mode", mode, "--threads", str(threads), "--destinations", str(threads), "--stamps", "ends")
    run = Replay(bench, plan, prepare, "--passes", "measured", *words)
    done = run.only("pass")
    return Side(done["bytes"], done["wall_seconds"], run.cpu_seconds)


def hits(bench: Bench, threads: int, pairs: int, n: int) -> Result:
    """Page-cache hits per CPU-second."""
    name = f"hits_per_cpu_second_{threads}_thread" + "s" * (threads > 1)
    sequence = np.random.default_rng(threads).integers(0, N_EXPERTS, n)
    plan = bench.plan(name, sequence, ACCESSES_PER_ITERATION)
    options = ("--norandommap", f"--size={N_EXPERTS * EXPERT_BYTES}", f"--io_size={n // threads * EXPERT_BYTES}")

    def rate(side: Side) -> float:
        return side.bytes / 1e9 / side.cpu_seconds

    sides = {
        "ours": lambda: rate(ours(bench, plan, threads, "page_cache", lambda: warm(bench.file))),
        "fio": lambda: rate(fio(bench, threads, lambda: warm(bench.file), *options)),
    }
    seen = interleaved(name, pairs, "GB/CPU-s", sides)
    return result(name, "GB/CPU-s", seen["ours"], seen["fio"], 0.97)


def cold(bench: Bench, mode: str, pairs: int, threads: int = 2) -> Result:
    """Wall of reading every expert once from the device; fio's jobs take a part of the file each."""
    name = "cold_direct" if mode == "direct" else "cold_buffered"
    plan = bench.plan(name, np.random.default_rng(9).permutation(N_EXPERTS), N_EXPERTS)
    part = N_EXPERTS // threads * EXPERT_BYTES
    options = (f"--size={part}", f"--offset_increment={part}", "--random_generator=lfsr")
    options += (f"--direct={int(mode == 'direct')}",)

    def rate(side: Side) -> float:
        return side.bytes / 1e9 / side.wall_seconds

    sides = {
        # Both start after the drop: what it leaves in the free lists decides for a while how scattered new pages are.
        "ours": lambda: (drop_cache(), rate(ours(bench, plan, threads, mode, lambda: None)))[1],
        "fio": lambda: rate(fio(bench, threads, drop_cache, *options)),
    }
    seen = interleaved(name, pairs, "GB/s", sides)
    return result(name, "GB/s", seen["ours"], seen["fio"], 0.95)


def own_costs(bench: Bench) -> Iterator[Result]:
    """Yield the share of a pass of hits that captures and bookkeeping take, and the memory beyond the destinations."""
    n = 100 * ACCESSES_PER_ITERATION
    plan = bench.plan("own", np.random.default_rng(3).integers(0, N_EXPERTS, n), ACCESSES_PER_ITERATION)
    captured = ("/proc/vmstat", "/proc/meminfo", "/proc/self/io", "/proc/self/status", "/proc/pressure/memory")
    captured += ("/proc/diskstats", "/proc/pressure/io")
    device = bench.file.stat().st_dev
    stat = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat"
    options = [word for path in captured for word in ("--capture", path)]
    options += ["--device-stat", stat] if Path(stat).exists() else []
    words = ("--passes", "measured,again", "--threads", "2", "--hits", "auto", "--hits-passes", "measured", *options)
    runs = [Replay(bench, plan, lambda: warm(bench.file), *words) for _ in range(5)]
    yield limit("captures_and_bookkeeping", "share of a pass", statistics.median(map(share_beside_reads, runs)), 0.01)
    start = runs[0].only("start")
    beyond = max(run.peak_bytes for run in runs) - start["destinations"] * start["destination_bytes"]
    yield limit("memory_beyond_destinations", "bytes", beyond, (16 << 20) + 16 * n)


def share_beside_reads(run: Replay) -> float:
    """Return the share of the measured pass that is not reading: both captures, and all that is between iterations."""
    clocks = {event["at"]: event["clock_seconds"] for event in run.events if event["event"] == "capture"}
    done = run.only("pass", **{"pass": "measured"})
    whole = clocks["measured:exit"] - clocks["measured:entry"]
    capture = max(whole - done["elapsed_seconds"], 0.0)  # one of the two lies between the two clocks
    spent = done["elapsed_seconds"] - done["wall_seconds"] + 2 * capture
    say(f"captures and bookkeeping: {spent * 1e3:.2f} ms of a pass of {whole:.2f} s")
    return spent / whole


def main() -> int:
    """Run every comparison; 1 when a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("peers.json"))
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the device to read from")
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs of each comparison")
    parser.add_argument("--gib", type=int, default=8, help="GiB of hits a run")
    kinds = ("", "hits", "cold", "own", "modes", *modes.KINDS, "traces", "policies")
    parser.add_argument("--only", default="", choices=kinds, help=f"only these; modes: {', '.join(modes.KINDS)}")
    args = parser.parse_args()
    results: list[Result] = []
    if args.only in ("", "traces"):
        results += [*jsonl.results(), *locality.results(pairs=args.pairs)]
    if args.only in ("", "policies"):
        results += [*lru_peer.results(), *min_peer.results()]
    if args.only not in ("traces", "policies"):
        results += replays(args)
    args.output.write_text(json.dumps([asdict(one) for one in results], indent=2) + "\n")
    for one in results:
        verdict = "met" if one.met else "MISSED"
        say(f"{one.name}: {one.ours:.4g} to {one.theirs:.4g} {one.unit}, {one.ratio:.3f} of {one.target}: {verdict}")
    return 0 if all(one.met for one in results) else 1


def replays(args: argparse.Namespace) -> list[Result]:
    """Run the comparisons with fio that were asked for."""
    if shutil.which("fio") is None:
        sys.exit("fio is not installed; next: apt-get install fio")
    if os.geteuid() != 0:
        sys.exit("not root, and the cache has to be dropped between cold runs; next: sudo make peers")
    results: list[Result] = []
    with shared_file(args.folder) as bench:
        if args.only in ("", "hits"):
            results += [hits(bench, threads, args.pairs, args.gib * 1024) for threads in (1, 2)]
        if args.only in ("", "cold"):
            results += [cold(bench, mode, 3 * args.pairs) for mode in ("direct", "page_cache")]
        if args.only in ("", "own"):
            results += own_costs(bench)
        results += modes.results(bench, args.only, args.pairs)
    return results


if __name__ == "__main__":
    sys.exit(main())
