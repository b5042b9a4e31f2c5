"""Compare LRU at many budgets with libcachesim: one pass for all of them, against one simulation for each.

The accesses are those of a model of 92 layers, 896 experts and k = 16 whose passes share about 36% of their experts
with the next, as Kimi-K3's do. The peer reads them by its own reader, from its fastest format (oracleGeneral), with the
hash table of its best size (2^18). Both sides run in interleaved pairs, the side that goes first at random; a figure is
CPU time, the median of the pairs' ratios; above 1 means that ours is better. The hit counts of both sides must be equal
at every budget.

A process of its own then runs ours over ten times as many accesses, for the time and the memory per access.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import libcachesim
import numpy as np
from locality import Result, limit
from numpy.typing import NDArray

from pytest_moetier import _sim

LAYERS, EXPERTS, K = 92, 896, 16
OBJECTS = LAYERS * EXPERTS
ACCESSES = 10**7
PAIRS = 3
BUDGETS = tuple(int(budget) for budget in np.geomspace(1000, 80_000, 20))
HASH_POWER = 18
REQUEST = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
"""A request of an oracleGeneral file."""

U32 = NDArray[np.uint32]


def accesses(n: int, seed: int = 1) -> U32:
    """Return so many accesses: each pass takes the k best of a liking, a slow drift and noise."""
    rng = np.random.default_rng(seed)
    shape = LAYERS, EXPERTS
    liked, drift = rng.standard_normal(shape, np.float32), rng.standard_normal(shape, np.float32)
    out = np.empty((-(-n // (LAYERS * K)), LAYERS, K), np.uint32)
    first = np.arange(LAYERS, dtype=np.uint32)[:, None] * np.uint32(EXPERTS)
    for chosen in out:
        drift = np.float32(0.97) * drift + np.float32(0.243) * rng.standard_normal(shape, np.float32)
        score = liked + np.float32(0.8) * drift + np.float32(0.7) * rng.standard_normal(shape, np.float32)
        chosen[:] = first + np.argpartition(score, EXPERTS - K, axis=1)[:, EXPERTS - K :]
    return out.reshape(-1)[:n]


def write_requests(path: Path, key: U32) -> None:
    """Write what the peer reads."""
    requests = np.zeros(len(key), REQUEST)
    requests["id"], requests["size"], requests["next"] = key + 1, 1, -2
    requests.tofile(path)


def ours(key: U32) -> list[int]:
    """Return the hits at every budget."""
    hist = np.empty(OBJECTS + 2, np.uint64)
    _sim.lru_histogram(key, np.array([0, len(key)], np.uint64), None, np.zeros(1, np.uint64), hist)
    upto = hist.cumsum()
    return [int(upto[budget]) for budget in BUDGETS]


def theirs(path: Path, n: int) -> list[int]:
    """Return the peer's hits at every budget."""
    kind = libcachesim.TraceType.ORACLE_GENERAL_TRACE
    hits = []
    for budget in BUDGETS:
        reader = libcachesim.TraceReader(str(path), kind, libcachesim.ReaderInitParam())
        missed, _ = libcachesim.LRU(cache_size=budget, hashpower=HASH_POWER).process_trace(reader)
        hits.append(n - round(missed * n))
    return hits


def seconds(side: Callable[[], object]) -> float:
    """Return the CPU time of one call."""
    before = time.process_time()
    side()
    return time.process_time() - before


def paired(key: U32, requests: Path, pairs: int) -> Result:
    """Compare both sides at every budget."""
    sides: tuple[Callable[[], list[int]], ...] = (lambda: ours(key), lambda: theirs(requests, len(key)))
    if sides[0]() != sides[1]():  # also warms what either side needs
        sys.exit("the two sides differ in the hits at a budget")
    order = random.Random(1)  # noqa: S311 - an order, no secret
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(pairs):
        for which in order.sample((0, 1), 2):
            taken[which].append(seconds(sides[which]))
    ratio = statistics.median(their / our for our, their in zip(*taken, strict=True))
    name, target = f"lru_{len(BUDGETS)}_budgets_against_libcachesim", 25.0
    return Result(name, "CPU s", *map(statistics.median, taken), ratio, "lower", target, ratio >= target)


def peak_bytes() -> int:
    """Return the most memory that this process ever had resident; ru_maxrss has what started it in it too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def alone(path: Path) -> tuple[float, float]:
    """Run ours over a mapped file; return nanoseconds and, beyond the input, bytes, both per access."""
    key = np.load(path, mmap_mode="r")
    key.max()  # the input is resident from here on
    before = peak_bytes()
    taken = min(seconds(lambda: ours(key)) for _ in range(3))
    return taken / len(key) * 1e9, (peak_bytes() - before) / len(key)


def in_own_process(path: Path) -> tuple[float, float]:
    """Run ``alone`` where nothing else has taken memory before."""
    words = [sys.executable, __file__, "--alone", str(path)]
    found = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    nanoseconds, grown = json.loads(found)
    return nanoseconds, grown


def results(n: int = ACCESSES, pairs: int = PAIRS) -> list[Result]:
    """Generate the accesses and compare."""
    key = accesses(n)
    with tempfile.TemporaryDirectory() as scratch:
        requests, small, large = (Path(scratch) / name for name in ("requests", "small.npy", "large.npy"))
        write_requests(requests, key)
        found = [paired(key, requests, pairs)]
        requests.unlink()
        np.save(small, key)
        out = np.lib.format.open_memmap(large, mode="w+", dtype=np.uint32, shape=(10 * len(key),))
        for start in range(0, len(out), len(key)):
            out[start : start + len(key)] = key
        out.flush()
        per_access, _ = in_own_process(small)
        per_access_of_ten_times, grown = in_own_process(large)
    name = f"lru_ns_per_access_{10 * n:.0e}".replace("+0", "")
    found.append(limit(name, "ns", per_access_of_ten_times, 1.25 * per_access))
    found.append(limit("lru_bytes_per_access_beside_the_input", "bytes", max(grown, 1e-3), 8.0))
    return found


def main() -> int:
    """Print the results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alone", type=Path, help="a file of accesses, to run ours over alone")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    args = parser.parse_args()
    if args.alone:
        sys.stdout.write(json.dumps(alone(args.alone)) + "\n")
        return 0
    found = results(pairs=args.pairs)
    sys.stdout.write(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    return 0 if all(one.met for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
