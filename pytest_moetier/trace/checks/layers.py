"""Layers that are not there, not wholly there, or not the model's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.trace.checks.base import (
    I64,
    Found,
    Iterations,
    counted,
    experts_of,
    k_of,
    layer_words,
    places,
    row_check,
    share,
    without,
)
from pytest_moetier.trace.records import UNION
from pytest_moetier.trace.rows import DECODE, PREFILL, Rows

_FEW = 0.1
_CONSTANT_PASSES = 64
_COPIED_PASSES = 16
_COPIED_SHARE = 0.95
_COPIED_DISTINCT = 8
_NARROW_DISTINCT = 24


@row_check("missing-layers", "drop", ("drop", "refuse"))
def missing_layers(rows: Rows) -> Found | None:
    """Decode iterations without a layer that others have; by default refused when a tenth or more lack one."""
    decode = np.flatnonzero(rows.phase == DECODE)
    if not len(decode):
        return None
    layers, index = np.unique(rows.layer[decode], return_inverse=True)
    key = rows.key[decode]
    total = int(key[-1]) + 1
    pairs = key * len(layers) + index
    if bool((np.diff(pairs) <= 0).any()):
        pairs = np.unique(pairs)
    if len(pairs) == total * len(layers):
        return None
    present = np.bincount(pairs // len(layers), minlength=total)
    lacking = np.flatnonzero(present < len(layers))
    by_layer = total - np.bincount(pairs % len(layers), minlength=len(layers))
    gone = np.zeros(rows.n, dtype=bool)
    gone[decode] = (present < len(layers))[key]
    n = len(lacking)
    few = n < _FEW * total
    return Found(
        what=f"decode iterations without a record of {layer_words(layers[by_layer > 0].tolist())}",
        where=f"iteration {lacking[0]} first, {places(rows, gone)}",
        amount=f"{n} of {counted(total, 'iteration')} ({share(n, total)})",
        dropped="those iterations were left out",
        expected=f"every layer in every iteration, {len(layers)} layers",
        repaired=lambda: without(rows, gone),
        default="drop" if few else "refuse",
    )


@row_check("pruned-prefill", "keep")
def pruned_prefill(rows: Rows) -> Found | None:
    """The last layer has fewer prompt positions than the others, as llama.cpp prunes it to those it needs."""
    prompt = (rows.phase == PREFILL) & (rows.kind != UNION)
    if not prompt.any():
        return None
    layers = np.unique(rows.layer)
    at = np.searchsorted(layers, rows.layer[prompt])
    positions = np.bincount(at, weights=rows.width[prompt], minlength=len(layers)).astype(np.int64) // k_of(rows)
    last, others = int(positions[-1]), positions[:-1]
    if not len(others) or int(others.min()) != int(others.max()) or last >= int(others[0]):
        return None
    gone = (rows.phase == PREFILL) & (rows.layer == layers[-1])
    return Found(
        what=f"layer {layers[-1]}, the last, has {counted(last, 'prompt position')}, the other layers {others[0]}",
        where="in the prompt",
        amount=f"{int(others[0]) - last} positions of one layer",
        dropped="the prompt's records of that layer were left out",
        expected="the same positions in every layer",
        repaired=lambda: without(rows, gone),
    )


@row_check("draft-layer", "keep")
def draft_layer(rows: Rows) -> Found | None:
    """A layer constant, a copy of another, or (first or last) confined to the lower half of ids: a draft model's."""
    its = Iterations(rows)
    plain = (rows.phase == DECODE) & (rows.width == k_of(rows))
    at = np.flatnonzero(plain)
    at = at[np.argsort(rows.layer[at], kind="stable")]
    if not len(at):
        return None
    layers, begins = np.unique(rows.layer[at], return_index=True)
    if len(layers) < 2:
        return None
    ids = rows.ids[rows.offsets[:-1][at][:, None] + np.arange(k_of(rows))]
    ends = np.append(begins[1:], len(at))
    passes = {
        int(layer): (its.of[at[begin:end]], ids[begin:end])
        for layer, begin, end in zip(layers, begins, ends, strict=True)
    }
    signs = {**_narrow(passes, experts_of(rows)), **_copies(passes), **_constant(passes)}
    if not signs:
        return None
    gone = np.isin(rows.layer, list(signs))
    stated = tuple(one for one in rows.about.layers if one not in signs) if rows.about.layers else None
    n = int(np.count_nonzero(gone))
    return Found(
        what="a draft model (MTP, EAGLE) may have overwritten a layer: "
        + "; ".join(signs[one] for one in sorted(signs)),
        where=f"in {layer_words(sorted(signs))}",
        amount=f"{counted(n, 'record')} of {rows.n} ({share(n, rows.n)})",
        dropped="the layer was left out" if len(signs) == 1 else "the layers were left out",
        expected="the model's own routing in every layer",
        repaired=lambda: without(replace(rows, about=replace(rows.about, layers=stated)), gone),
    )


Passes = dict[int, tuple[I64, NDArray[np.uint16]]]
"""Layer -> (iteration of each of its passes of k ids, those ids)."""


def _constant(passes: Passes) -> dict[int, str]:
    """Return layers that never choose anything else, where others do."""
    still = [
        layer
        for layer, (_, ids) in passes.items()
        if len(ids) >= _CONSTANT_PASSES and bool((ids[0] == ids[1]).all()) and bool((ids == ids[0]).all())
    ]
    if len(still) == len(passes):
        return {}
    return {layer: f"layer {layer} chose the same experts in all its {len(passes[layer][1])} passes" for layer in still}


def _copies(passes: Passes) -> dict[int, str]:
    """Return layers whose choices are, pass by pass, another layer's.

    Of the two it is the first layer or the last that was overwritten, else the later one.
    """
    layers = list(passes)
    head = np.array(
        [_hashes(passes[layer][1][:_CONSTANT_PASSES])[:_COPIED_PASSES] for layer in layers if _long(passes[layer])]
    )
    able = [layer for layer in layers if _long(passes[layer])]
    found: dict[int, str] = {}
    for place, one in enumerate(able):
        alike = np.flatnonzero((head[place + 1 :] == head[place]).sum(axis=1) >= _COPIED_PASSES // 2) + place + 1
        for other in (able[int(index)] for index in alike):
            agreed, common, distinct = _agreement(passes[one], passes[other])
            if agreed < max(_COPIED_SHARE * common, _COPIED_PASSES) or distinct < _COPIED_DISTINCT:
                continue
            copy, origin = (one, other) if one == layers[0] and other != layers[-1] else (other, one)
            found.setdefault(copy, f"layer {copy} chose what layer {origin} chose in {agreed} of {common} iterations")
    return found


def _long(one: tuple[I64, NDArray[np.uint16]]) -> bool:
    return len(one[1]) >= _COPIED_PASSES


def _hashes(ids: NDArray[np.uint16]) -> I64:
    """Return a number per pass that equal passes share; which one is of no matter."""
    weights = np.random.default_rng(0).integers(1, 1 << 40, size=ids.shape[1])
    hashes: I64 = (ids.astype(np.int64) * weights).sum(axis=1)
    return hashes


def _agreement(one: tuple[I64, NDArray[np.uint16]], other: tuple[I64, NDArray[np.uint16]]) -> tuple[int, int, int]:
    """Return (iterations in which both chose the same, iterations of both, distinct choices among the former)."""
    common, at, there = np.intersect1d(one[0], other[0], return_indices=True)
    same = (one[1][at] == other[1][there]).all(axis=1)
    return int(np.count_nonzero(same)), len(common), len(np.unique(_hashes(one[1][at][same])))


def _narrow(passes: Passes, n_experts: int) -> dict[int, str]:
    """Return the first or last layer where it chooses among the lower half of ids alone, and no other layer does."""
    half = n_experts // 2
    below = [layer for layer, (_, ids) in passes.items() if int(ids.max()) < half]
    ends: Sequence[int] = (min(passes), max(passes))
    if len(below) != 1 or below[0] not in ends:
        return {}
    layer = below[0]
    distinct = len(np.unique(passes[layer][1]))
    if distinct < _NARROW_DISTINCT:
        return {}
    top = int(passes[layer][1].max())
    others = f"where every other layer chooses from the upper half of {n_experts} too"
    return {layer: f"layer {layer} chose {distinct} experts, none above {top}, {others}"}
