"""Compare Belady's MIN and LFU at 20 budgets with libcachesim, hit count for hit count.

Both sides get the same accesses, of a router of 92 layers with 896 experts, in one cache for all layers. A side's
figure is the CPU time of all budgets; the sides run in interleaved pairs, the one that goes first at random, and a
ratio is the median of its pairs'. libcachesim reads a trace file that states each next use, from the page cache, with
the hash table size at which it is fastest; making and opening that file is not counted, while our finding of the next
uses is. What is never used again has a next use behind all others in that file: libcachesim would not admit it
otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import libcachesim
import numpy as np
from locality import Result
from numpy.typing import NDArray

from pytest_moetier import _sim

LAYERS, EXPERTS, K = 92, 896, 16
OBJECTS = LAYERS * EXPERTS
BUDGETS = np.linspace(OBJECTS / 20, OBJECTS, 20).astype(np.uint64)
HASHPOWER = 18
NEVER = 1 << 62

Count = Callable[[], tuple[list[int], float]]


def accesses(n: int) -> NDArray[np.uint32]:
    """Return the first n accesses: popular experts, and a drift that makes the choices of neighbouring passes alike."""
    rng = np.random.default_rng(1)
    popularity = rng.standard_normal((LAYERS, EXPERTS), dtype=np.float32)
    drift = rng.standard_normal((LAYERS, EXPERTS), dtype=np.float32)
    first = (np.arange(LAYERS) * EXPERTS)[:, None]
    passes = -(-n // (LAYERS * K))
    out = np.empty((passes, LAYERS, K), np.uint32)
    for one in range(passes):
        drift = np.float32(0.7) * drift + np.float32(0.714) * rng.standard_normal(drift.shape, dtype=np.float32)
        out[one] = first + np.argpartition(-(popularity + drift), K, axis=1)[:, :K]
    return out.reshape(-1)[:n]


def write_oracle(key: NDArray[np.uint32], path: Path) -> None:
    """Write libcachesim's format with next uses: time, object, size, position of the next use."""
    rows = np.zeros(len(key), np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")]))
    order = np.argsort(key, kind="stable")
    again = key[order[1:]] == key[order[:-1]]
    rows["object"], rows["size"], rows["next"] = key.astype(np.uint64) + 1, 1, NEVER
    rows["next"][order[:-1][again]] = order[1:][again]
    rows.tofile(path)


def theirs(path: Path, name: str, n: int) -> tuple[list[int], float]:
    """Return the hits at each budget, and the CPU seconds of all."""
    hits, taken = [], 0.0
    for budget in BUDGETS.tolist():
        parameters = libcachesim.ReaderInitParam(ignore_obj_size=True)
        reader = libcachesim.TraceReader(str(path), libcachesim.TraceType.ORACLE_GENERAL_TRACE, parameters)
        cache = getattr(libcachesim, name)(cache_size=budget, hashpower=HASHPOWER)
        before = time.process_time()
        missed, _ = cache.process_trace(reader)
        taken += time.process_time() - before
        hits.append(round((1 - missed) * n))
    return hits, taken


def ours(key: NDArray[np.uint32], name: str) -> tuple[list[int], float]:
    """Return the hits at each budget, and the CPU seconds of all."""
    segments, score_from = np.array([0, len(key)], np.uint64), np.zeros(1, np.uint64)
    function = {"Belady": _sim.belady_hits, "LFU": _sim.lfu_hits}[name]
    before = time.process_time()
    hits, _ = function(key, segments, None, None, BUDGETS, score_from)
    return np.frombuffer(hits, np.uint64).tolist(), time.process_time() - before


def paired(name: str, sides: Sequence[Count], pairs: int, target: float) -> Result:
    """Run both sides in interleaved pairs; refuse to compare sides that count differently."""
    order = random.Random(name)  # noqa: S311  (which side goes first is no secret)
    taken: list[list[float]] = [[], []]
    for _ in range(pairs):
        counts: dict[int, list[int]] = {}
        for side in order.sample((0, 1), 2):
            counts[side], seconds = sides[side]()
            taken[side].append(seconds)
        if counts[0] != counts[1]:
            sys.exit(f"{name}: the two sides count different hits: {counts[0]} and {counts[1]}")
    ratio = statistics.median(their / our for our, their in zip(*taken, strict=True))
    ours_, theirs_ = map(statistics.median, taken)
    return Result(
        name=f"{name.lower()}_{len(BUDGETS)}_budgets_against_libcachesim",
        unit="CPU s",
        ours=round(ours_, 3),
        theirs=round(theirs_, 2),
        ratio=round(ratio, 2),
        better="lower",
        target=target,
        met=ratio >= target,
    )


def results(n: int = 10**7, pairs: int = 3) -> list[Result]:
    """Generate accesses and compare."""
    key = accesses(n)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "accesses.oracleGeneral"
        write_oracle(key, path)
        found = []
        for name, target in (("Belady", 22.0), ("LFU", 8.0)):
            sides = (lambda name=name: ours(key, name), lambda name=name: theirs(path, name, n))
            found.append(paired(name, sides, pairs, target))
    return found


def main() -> int:
    """Print the results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accesses", type=int, default=10**7)
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    found = results(args.accesses, args.pairs)
    sys.stdout.write(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    return 0 if all(one.met for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
