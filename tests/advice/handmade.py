"""Small traces, pools and predictors written out, so that a test's numbers can be checked by eye."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pytest_moetier.advice import Advice, make_advice
from pytest_moetier.pool.manifest import Manifest
from pytest_moetier.trace.records import NORMAL, SPEC_ACCEPT, SPEC_FALLBACK, Trace, make_trace


def pool(**changed: Any) -> Manifest:
    parts: dict[str, Any] = {
        "name": "small",
        "profile": "custom",
        "pool_id": 0xFEDCBA9876543210,
        "layers": (0, 1),
        "experts": 8,
        "k": 2,
        "expert_bytes": (4096, 8192),
    }
    return Manifest(**(parts | changed))


def speculative() -> Trace:
    """Layers 5 and 9, k = 2: a normal iteration, an accept (2k ids a layer), a fallback (two records a layer)."""
    return make_trace(
        iteration=[0, 0, 1, 1, 2, 2, 2, 2],
        layer=[5, 9, 5, 9, 5, 9, 5, 9],
        kind=[NORMAL] * 2 + [SPEC_ACCEPT] * 2 + [SPEC_FALLBACK] * 4,
        offsets=[0, 2, 4, 8, 12, 14, 16, 18, 20],
        experts=[7, 3, 0, 1, 3, 7, 7, 2, 1, 0, 0, 5, 4, 6, 1, 2, 6, 4, 2, 1],
        n_experts=8,
        k=2,
        synthetic=False,
        source="by hand",
    )


CHOSEN = [{7, 3}, {0, 1}, {3, 7, 2}, {1, 0, 5}, {4, 6}, {1, 2}, {6, 4}, {2, 1}]
"""What each record of ``speculative`` chose."""


def steps(rows: Sequence[Sequence[Sequence[int]]], n_experts: int = 8) -> Trace:
    """Return a trace of normal iterations: rows[iteration][layer] are its ids, layers numbered from 0."""
    layers = len(rows[0])
    ids = np.array(rows)
    return make_trace(
        iteration=np.repeat(np.arange(len(rows)), layers),
        layer=np.tile(np.arange(layers), len(rows)),
        kind=[NORMAL] * (len(rows) * layers),
        offsets=np.arange(len(rows) * layers + 1) * ids.shape[2],
        experts=ids.ravel(),
        n_experts=n_experts,
        k=ids.shape[2],
        synthetic=False,
        source="by hand",
    )


def given(trace: Trace, lists: Sequence[Sequence[int]], kind: str = "given") -> Advice:
    """Return the advice that says ``lists[i]`` of record i."""
    counts = np.array([len(one) for one in lists], dtype=np.int64)
    ids = np.array([expert for one in lists for expert in one], dtype=np.uint16)
    return make_advice(trace, kind, "a predictor of one's own", counts, ids)


def said(advice: Advice) -> list[list[int]]:
    """Return what the advice says of each record."""
    bounds, ids = advice.offsets.tolist(), advice.experts.tolist()
    return [ids[one:other] for one, other in pairwise(bounds)]
