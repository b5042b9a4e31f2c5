"""The native policies as tests call them: lists in, hits out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Found:
    """The scored hits and their bytes at each budget, and where each access hits."""

    hits: list[int]
    bytes: list[int]
    at: np.ndarray


def u64(values: Any) -> np.ndarray:
    return np.array(values, np.uint64)


def run(  # noqa: PLR0913  (what a simulation has)
    function: Any,
    key: Any,
    budgets: Any,
    *,
    segments: Any = None,
    events: Any = None,
    size: Any = None,
    score_from: Any = None,
    **options: Any,
) -> Found:
    """Call a policy; one segment, all of it scored, unless said otherwise; sums are the same with and without hits."""
    borders = [0, len(key)] if segments is None else segments
    at = np.full((len(budgets), len(key)), 7, np.uint8)
    inputs = (
        np.array(key, np.uint32),
        u64(borders),
        None if events is None else u64(events),
        None if size is None else u64(size),
        u64(budgets),
        u64(borders[:-1] if score_from is None else score_from),
    )
    counts = function(*inputs, at.reshape(-1), **options)
    assert function(*inputs, **options) == counts
    hits, hit_bytes = (np.frombuffer(one, np.uint64).tolist() for one in counts)
    return Found(hits, hit_bytes, at)


def cut(values: list[int], borders: list[int]) -> list[list[int]]:
    return [values[a:b] for a, b in pairwise(borders)]
