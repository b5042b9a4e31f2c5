"""Compare the locality statistics with the same by plain numpy, side by side, over memory-mapped ``.npy`` files.

The numpy side is a good one: layer by layer, so that its arrays stay in the cache; overlaps from bits packed in words,
gaps from one radix sort. It shares no code with ours and is the tests' second witness too. Both sides run in
interleaved pairs, the side that goes first at random; a figure is the median, a ratio above 1 means that we are better.
The time per id is the best of several runs, as is due where only growth is of interest. The files are [tokens, 48
layers, k = 8] of 128 experts, skewed, and in the page cache.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.trace.locality import Locality, locality
from pytest_moetier.trace.selections import Selections

LAYERS, EXPERTS, K = 48, 128, 8
DISTANCES, WINDOWS, SPANS = 64, (1, 8, 64), (8, 64)
SCRATCH_BYTES = 4 * (8192 // LAYERS + 1)
"""What the native pass takes beside the arrays that tracemalloc sees."""


@dataclass(frozen=True)
class Result:
    """One line of peers.json; ``ratio`` > 1 means that we are better."""

    name: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    better: str
    target: float
    met: bool


@dataclass(frozen=True)
class Plain:
    """One layer's statistics by numpy; the names are those of ``Locality``."""

    counts: NDArray[np.int64]
    shared: NDArray[np.int64]
    gaps: NDArray[np.int64]
    distinct: int
    distinct_means: dict[int, float]
    slope: float
    masses: dict[int, float]
    for_80: int


def shared_by_distance(rows: NDArray[Any], n_experts: int) -> NDArray[np.int64]:
    """Sum |S_t & S_(t-d)| over t for d = 1..64."""
    passes = len(rows)
    chosen = np.zeros((passes, -(-n_experts // 64) * 64), dtype=bool)
    chosen.reshape(-1)[rows + np.arange(passes)[:, None] * chosen.shape[1]] = True
    words = np.packbits(chosen, axis=1).view(np.uint64)
    out = np.zeros(DISTANCES, dtype=np.int64)
    for distance in range(1, min(DISTANCES, passes - 1) + 1):
        out[distance - 1] = np.bitwise_count(words[distance:] & words[:-distance]).sum()
    return out


def plain_layer(rows: NDArray[Any], n_experts: int) -> Plain:
    """Return the statistics of one layer's passes, [passes, k]."""
    passes, k = rows.shape
    ids = rows.reshape(-1)
    order = np.argsort(ids, kind="stable")
    uses, times = ids[order], order // k
    same = uses[1:] == uses[:-1]
    between = np.diff(times)[same]
    counts = np.bincount(ids, minlength=n_experts)
    heads = np.full(n_experts, passes)
    tails = np.full(n_experts, passes)
    firsts, lasts = np.concatenate([[True], ~same]), np.concatenate([~same, [True]])
    heads[uses[firsts]] = times[firsts]
    tails[uses[lasts]] = passes - 1 - times[lasts]
    # Runs of passes without an expert: each holds max(0, length - n + 1) windows of n passes.
    absences = np.concatenate([between - 1, heads, tails[counts > 0]])
    means = {}
    for span in SPANS:
        windows = passes - span + 1
        gone = int(np.maximum(absences - span + 1, 0).sum())
        means[span] = (n_experts * windows - gone) / windows if windows > 0 else math.nan
    ranked = np.sort(counts)[::-1]
    return Plain(
        counts=counts,
        shared=shared_by_distance(rows, n_experts),
        gaps=np.bincount(np.minimum(between, DISTANCES + 1), minlength=DISTANCES + 2)[1:-1],
        distinct=int(np.count_nonzero(counts)),
        distinct_means=means,
        slope=plain_slope(ranked),
        masses={1 << p: float(ranked[: 1 << p].sum() / len(ids)) for p in range(n_experts.bit_length())},
        for_80=int(np.searchsorted(5 * np.cumsum(ranked), 4 * len(ids)) + 1),
    )


def plain_slope(ranked: NDArray[np.int64]) -> float:
    """Return the least-squares slope of log count on log rank, sign flipped."""
    used = ranked[ranked > 0]
    if len(used) < 2:
        return math.nan
    x = np.log(np.arange(1, len(used) + 1))
    y = np.log(used)
    return float(-np.dot(x - x.mean(), y - y.mean()) / np.dot(x - x.mean(), x - x.mean()))


@dataclass(frozen=True)
class Whole:
    """The figures over all layers."""

    layers: list[Plain]
    slope: float
    reuse: dict[int, float]
    overlap: list[float]
    masses: dict[int, float]
    distinct_means: dict[int, float]
    coverage: float


def mean(values: Sequence[float]) -> float:
    """Return the mean of what is defined."""
    defined = [value for value in values if not math.isnan(value)]
    return sum(defined) / len(defined) if defined else math.nan


def plain(rows_by_layer: Sequence[NDArray[Any]], n_experts: int) -> Whole:
    """Return every statistic by plain numpy; a layer's passes are [passes, k]."""
    layers = [plain_layer(rows, n_experts) for rows in rows_by_layer]
    passes = np.array([len(rows) for rows in rows_by_layer])
    k = rows_by_layer[0].shape[1]
    later = k * int((passes - 1).sum())
    overlap = []
    for distance in range(1, DISTANCES + 1):
        pairs = k * int(np.maximum(passes - distance, 0).sum())
        overlap.append(sum(int(one.shared[distance - 1]) for one in layers) / pairs if pairs else math.nan)
    return Whole(
        layers=layers,
        slope=mean([one.slope for one in layers]),
        reuse={w: sum(int(one.gaps[:w].sum()) for one in layers) / later if later else math.nan for w in WINDOWS},
        overlap=overlap,
        masses={top: mean([one.masses[top] for one in layers]) for top in layers[0].masses},
        distinct_means={span: mean([one.distinct_means[span] for one in layers]) for span in SPANS},
        coverage=sum(one.distinct for one in layers) / (len(layers) * n_experts),
    )


def generate(path: Path, n_ids: int, seed: int = 1) -> None:
    """Write a skewed file of about so many ids: random runs of 128 tokens, cut from a drifting stretch."""
    rng = np.random.default_rng(seed)
    stretch, run = 4096, 128
    base = np.empty((stretch, LAYERS, K), dtype=np.uint16)
    liked = rng.normal(size=(LAYERS, EXPERTS)).astype(np.float32)
    drift = rng.normal(size=(LAYERS, EXPERTS)).astype(np.float32)
    for token in range(stretch):
        drift = 0.8 * drift + 0.6 * rng.standard_normal((LAYERS, EXPERTS), dtype=np.float32)
        base[token] = np.argpartition(-(liked + drift), K, axis=1)[:, :K]
    tokens = n_ids // (LAYERS * K)
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint16, shape=(tokens, LAYERS, K))
    for start in range(0, tokens, run):
        size = min(run, tokens - start)
        at = int(rng.integers(0, stretch - size + 1))
        out[start : start + size] = base[at : at + size]
    out.flush()


def run_ours(path: Path) -> Locality:
    """Map the file and take its statistics."""
    ids = np.load(path, mmap_mode="r")
    layers = tuple(range(LAYERS))
    return locality(Selections(ids.reshape(-1), None, layers, EXPERTS, K, "decode", "unordered", True, path.name))  # noqa: FBT003


def run_theirs(path: Path) -> Whole:
    """Map the file and take its statistics by numpy."""
    ids = np.load(path, mmap_mode="r")
    return plain([np.ascontiguousarray(ids[:, layer]) for layer in range(LAYERS)], EXPERTS)


def seconds(side: Callable[[Path], object], path: Path) -> float:
    """Return the wall time of one run."""
    start = time.perf_counter()
    side(path)
    return time.perf_counter() - start


def same(ours: Locality, theirs: Whole) -> bool:
    """Say whether both sides found the same."""
    counts = all((ours.counts[i] == one.counts).all() for i, one in enumerate(theirs.layers))
    pairs = [(ours.zipf_slope, theirs.slope), *((ours.reuse(w), theirs.reuse[w]) for w in WINDOWS)]
    pairs += [(ours.overlap(d), theirs.overlap[d - 1]) for d in range(1, DISTANCES + 1)]
    pairs += [(ours.distinct_in(span), theirs.distinct_means[span]) for span in SPANS]
    return counts and all(math.isclose(a, b, rel_tol=1e-12) for a, b in pairs)


def paired(path: Path, name: str, pairs: int, target: float) -> Result:
    """Run both sides in interleaved pairs; return the medians, and the median of the pairs' ratios."""
    if not same(run_ours(path), run_theirs(path)):  # also warms what either side needs
        sys.exit(f"{name}: the two sides differ")
    order = random.Random(name)  # noqa: S311 - an order, no secret
    sides = (run_ours, run_theirs)
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(pairs):
        for which in order.sample((0, 1), 2):
            taken[which].append(seconds(sides[which], path))
    ratio = statistics.median(theirs / ours for ours, theirs in zip(*taken, strict=True))
    return Result(name, "s", *map(statistics.median, taken), ratio, "lower", target, ratio >= target)


def peak_bytes(path: Path) -> int:
    """Return the most memory that ours takes beside the map."""
    tracemalloc.start()
    run_ours(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak + SCRATCH_BYTES


def limit(name: str, unit: str, seen: float, most: float) -> Result:
    """Return a figure of our own against the limit it has to stay under."""
    return Result(name, unit, seen, most, most / seen, "lower", 1.0, seen <= most)


def results(sizes: Sequence[int] = (10**6, 10**7), largest: int = 10**8, pairs: int = 5) -> list[Result]:
    """Measure: pairs at each of the sizes, our time per id at all of them, our memory at the largest."""
    out, per_id = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        for n_ids in (*sizes, largest):
            path = Path(scratch) / f"{n_ids}.npy"
            generate(path, n_ids)
            if n_ids != largest:
                out.append(paired(path, f"locality_{n_ids:.0e}_ids".replace("+0", ""), pairs, 3.0))
            runs = [seconds(run_ours, path) for _ in range(5 if n_ids == largest else 20)]
            per_id[n_ids] = min(runs) / (n_ids // (LAYERS * K) * LAYERS * K) * 1e9
            peak = peak_bytes(path)
            path.unlink()
        for n_ids, taken in per_id.items():
            name = f"locality_ns_per_id_{n_ids:.0e}".replace("+0", "")
            out.append(limit(name, "ns", taken, 1.5 * per_id[sizes[0]]))
        out.append(limit("locality_bytes_per_expert_beside_the_map", "bytes", peak / (LAYERS * EXPERTS), 64.0))
    return out


def main() -> int:
    """Print the results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=10**8, help="ids of the largest file, which only we read")
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    found = results(largest=args.largest, pairs=args.pairs)
    sys.stdout.write(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    return 0 if all(one.met for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
