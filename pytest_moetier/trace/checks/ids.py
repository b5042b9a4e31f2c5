"""Ids that no router chose so: misread views, experts that are always on, ids out of range or named twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pytest_moetier.trace.checks.base import (
    CERTAIN_BITS,
    I64,
    Found,
    Iterations,
    Mask,
    bits_of_distinct,
    counted,
    experts_of,
    flat_index,
    k_of,
    layer_words,
    places,
    row_check,
    whole_passes,
    without,
)
from pytest_moetier.trace.records import UNION
from pytest_moetier.trace.rows import DECODE, PREFILL, Rows

_SHARED_RECORDS = 32


@row_check("shared-experts", "drop")
def shared_experts(rows: Rows) -> Found | None:
    """The highest ids are in every pass of every layer: shared experts, which no router chooses, fused in."""
    if rows.n < _SHARED_RECORDS or bool((rows.kind == UNION).any()):
        return None
    stated = rows.about.n_experts
    lowest, positions = _always(rows)
    if positions is None or (stated is None and len(np.unique(rows.layer)) == 1):
        return None
    highest = int(rows.ids.max())
    if stated is not None and highest < stated - 1:
        return None
    n = highest + 1 - lowest
    routed = rows.width // positions - n
    if bool((routed * positions + n * positions != rows.width).any()) or int(routed.min()) != int(routed.max()):
        return None
    k = int(routed[0])
    if k < 1:
        return None
    named = f"expert {lowest} is" if n == 1 else f"experts {lowest} to {highest} are"
    return Found(
        what=f"{named} in every pass of every layer, as shared experts are",
        where=f"in {counted(len(np.unique(rows.layer)), 'layer')}",
        amount=f"{n} of {k + n} ids a pass, {rows.n} records",
        dropped=f"left out of every pass, which leaves k = {k}",
        expected="routed experts alone",
        repaired=lambda: _unshared(rows, lowest, k),
    )


def _always(rows: Rows) -> tuple[int, I64 | None]:
    """Return the lowest of the highest ids that are in every pass, and each row's passes; None where there is none."""
    starts = rows.offsets[:-1]
    positions: I64 | None = None
    lowest = int(rows.ids.max()) + 1
    while lowest > 0:
        hits = rows.ids == lowest - 1
        if np.count_nonzero(hits) < rows.n:
            break
        here = np.add.reduceat(hits.astype(np.int64), starts)
        if int(here.min()) < 1 or (positions is not None and bool((here != positions).any())):
            break
        positions, lowest = here, lowest - 1
    return lowest, positions


def _unshared(rows: Rows, lowest: int, k: int) -> Rows:
    kept = rows.ids < lowest
    width = np.add.reduceat(kept.astype(np.int64), rows.offsets[:-1])
    phase = rows.phase
    if not bool((phase == DECODE).any()):  # a stated k that leaves shared experts out made every pass look wide
        single = Iterations(rows).all_rows(width == k)[Iterations(rows).of]
        phase = np.where(single, DECODE, PREFILL).astype(np.uint8)
    left = replace(rows, about=replace(rows.about, k=k), width=width, ids=rows.ids[kept], phase=phase)
    order = np.argsort(left.phase == DECODE, kind="stable")
    return without(left.take(order), np.zeros(left.n, dtype=bool))


@row_check("out-of-range", "refuse", ("drop", "refuse"))
def out_of_range(rows: Rows) -> Found | None:
    """An id at or above the experts per layer that the file or the user states."""
    stated = rows.about.n_experts
    if stated is None or int(rows.ids.max()) < stated:
        return None
    at = np.flatnonzero(rows.ids >= stated)
    owner = np.searchsorted(rows.offsets, at, side="right") - 1
    gone, n = _whole_iterations(rows, owner)
    row = int(owner[0])
    return Found(
        what=f"expert {int(rows.ids[at[0]])} of {stated} experts a layer",
        where=f"layer {rows.layer[row]}, {places(rows, owner[:1])} first",
        amount=f"{counted(len(at), 'id')} in {counted(n, 'iteration')}",
        dropped="those iterations were left out",
        expected=f"ids below {stated}",
        repaired=lambda: without(rows, gone),
    )


@row_check("repeated-expert", "refuse", ("drop", "refuse"))
def repeated_expert(rows: Rows) -> Found | None:
    """An id twice within one pass, which no top-k gives."""
    k = k_of(rows)
    if not bool((rows.kind == UNION).any()) and not bool((rows.width % k).any()):
        ordered = np.sort(rows.ids.reshape(-1, k), axis=1)
        twice = ordered[:, 1:] == ordered[:, :-1]
        passes = np.flatnonzero(twice.any(axis=1))
        if not len(passes):
            return None
        owner = np.searchsorted(rows.offsets, passes * k, side="right") - 1
        ids = ordered[passes, 1:][np.arange(len(passes)), twice[passes].argmax(axis=1)].astype(np.int64)
    else:
        row = np.repeat(np.arange(rows.n), rows.width)
        within = np.arange(len(rows.ids)) - rows.offsets[:-1][row]
        place = np.where((rows.kind == UNION)[row], 0, within // k)
        new = (np.diff(row) > 0) | (np.diff(place) > 0)
        keyed = np.sort(np.cumsum(np.concatenate([[False], new])) << 16 | rows.ids)
        first_id = np.flatnonzero(np.concatenate([[True], new]))
        again = keyed[1:][keyed[1:] == keyed[:-1]]
        if not len(again):
            return None
        passes, at = np.unique(again >> 16, return_index=True)
        owner, ids = row[first_id[passes]], again[at] & 0xFFFF
    gone, n = _whole_iterations(rows, owner)
    return Found(
        what=f"expert {int(ids[0])} twice in one pass",
        where=f"layer {rows.layer[owner[0]]}, {places(rows, owner[:1])} first",
        amount=f"{counted(len(passes), 'pass', 'passes')} in {counted(n, 'iteration')}",
        dropped="those iterations were left out",
        expected=f"{k} distinct ids a pass",
        repaired=lambda: without(rows, gone),
    )


def _whole_iterations(rows: Rows, owner: I64) -> tuple[Mask, int]:
    """Return the rows of the iterations that hold rows ``owner``, and how many iterations that is."""
    its = Iterations(rows)
    chosen = np.zeros(its.n, dtype=bool)
    chosen[its.of[owner]] = True
    return its.rows_of(chosen), int(np.count_nonzero(chosen))


@row_check("strided-view", "refuse")
def strided_view(rows: Rows) -> Found | None:
    """No wide record repeats an id although independent positions would: a strided top-k view read as contiguous."""
    n_experts, k = experts_of(rows), k_of(rows)
    named_all = rows.width % n_experts == 0  # a warm-up's, see there
    wide = np.flatnonzero(whole_passes(rows) & (rows.width >= 2 * k) & ~named_all)
    if not len(wide):
        return None
    widths, counts = np.unique(rows.width[wide], return_counts=True)
    bits = 0.0
    for width, count in zip(widths.tolist(), counts.tolist(), strict=True):
        whole, rest = divmod(width, n_experts)
        bits += count * whole * bits_of_distinct(n_experts, k, n_experts // k)
        bits += count * bits_of_distinct(n_experts, k, rest // k)
    if bits < CERTAIN_BITS or _repeating(rows, wide, n_experts):
        return None
    gone, n = _whole_iterations(rows, wide)
    return Found(
        what=f"records of several passes of k = {k} in which no id ever repeats: a strided top-k view read as "
        "contiguous, or unions that the format does not name so",
        where=f"{layer_words(np.unique(rows.layer[wide]).tolist())}, {places(rows, wide)}",
        amount=f"{counted(len(wide), 'record')} of {_range(widths)} ids, by chance 1 in 2^{bits:.0f}",
        dropped=f"{counted(n, 'iteration')} with such records left out",
        expected="positions that share experts, as independent choices do: rows of the view are nb[1] bytes apart",
        repaired=lambda: without(rows, gone),
    )


def _range(widths: I64) -> str:
    return str(widths[0]) if len(widths) == 1 else f"{widths[0]} to {widths[-1]}"


def _repeating(rows: Rows, wide: I64, n_experts: int) -> bool:
    """Return whether one of the rows repeats an id; of more ids than experts, within each turn through all experts."""
    width = rows.width[wide]
    ids = rows.ids[flat_index(rows.offsets[:-1][wide], width)]
    turn = (np.arange(len(ids)) - np.repeat(np.cumsum(width) - width, width)) // n_experts
    turns = -(-width // n_experts)
    keyed = np.sort((np.repeat(np.cumsum(turns) - turns, width) + turn) << 16 | ids)
    return bool((keyed[1:] == keyed[:-1]).any())
