"""Ids that look like no routing at all: drawn uniformly at random (paper section 3: routing reuses and is skewed)."""

from __future__ import annotations

from math import sqrt

import numpy as np

from pytest_moetier.trace.checks.base import I64, Found, counted, share, trace_check
from pytest_moetier.trace.records import UNION, Trace

_RECORDS = 1 << 15
_PAIRS = 200
_SIGMAS = 4.0
_VISIBLE = 0.05
_POWER = 6.0


@trace_check("uniform-ids", "keep", ("keep", "refuse"))
def uniform_ids(trace: Trace) -> Found | None:
    """Reuse and popularity are those of ids drawn uniformly at random, over all layers together."""
    if trace.k >= trace.n_experts or bool((trace.kind == UNION).any()):
        return None
    layer, ids = _passes(trace)
    chance, spread = _overlap_of_chance(trace.n_experts, trace.k)
    after = np.flatnonzero(layer[1:] == layer[:-1])
    if len(after) < _PAIRS or _VISIBLE * (trace.k - chance) * sqrt(len(after)) < _POWER * spread:
        return None  # too few passes to tell routing from chance
    both = np.sort(np.concatenate([ids[after], ids[after + 1]], axis=1), axis=1)
    shared = int(np.count_nonzero(both[:, 1:] == both[:, :-1]))
    if abs(shared - chance * len(after)) > _SIGMAS * spread * sqrt(len(after)):
        return None
    if abs(_skew(layer, ids, trace.n_experts)) > _SIGMAS:
        return None
    return Found(
        what=f"ids as if drawn uniformly at random: passes share {share(shared, len(after) * trace.k)} of their ids "
        f"with the one before, chance would give {share(trace.k, trace.n_experts)}, and all experts are as popular; "
        "an LRU cache's hit rate would equal its share of the pool",
        where=f"in {counted(len(trace.layers), 'layer')}",
        amount=f"{len(after)} pairs of passes",
        expected="the reuse and the skew of a router",
    )


def _passes(trace: Trace) -> tuple[I64, I64]:
    """Return layer and ids of the first passes, layer by layer, in time."""
    records = min(trace.n_records, _RECORDS)
    widths = np.diff(trace.offsets[: records + 1]).astype(np.int64) // trace.k
    layer = np.repeat(trace.layer[:records].astype(np.int64), widths)
    ids = trace.experts[: int(trace.offsets[records])].reshape(-1, trace.k).astype(np.int64)
    order = np.argsort(layer, kind="stable")
    return layer[order], ids[order]


def _overlap_of_chance(n_experts: int, k: int) -> tuple[float, float]:
    """Return mean and standard deviation of the ids that two independent passes share (hypergeometric)."""
    part = k / n_experts
    return k * part, sqrt(k * part * (1 - part) * (n_experts - k) / (n_experts - 1))


def _skew(layer: I64, ids: I64, n_experts: int) -> float:
    """Return by how many standard deviations popularity differs from uniform: Pearson's chi-square over all layers."""
    k = ids.shape[1]
    _, index, passes = np.unique(layer, return_inverse=True, return_counts=True)
    cells = np.bincount((index[:, None] * n_experts + ids).ravel(), minlength=len(passes) * n_experts)
    expected = (passes * k / n_experts)[:, None]
    # ids of a pass are distinct: counts vary less than those of independent draws
    less = (n_experts - 1) / (n_experts - k)
    found = float((((cells.reshape(len(passes), -1) - expected) ** 2) / expected).sum()) * less
    degrees = len(passes) * (n_experts - 1)
    sigmas: float = (found - degrees) / sqrt(2 * degrees)
    return sigmas
