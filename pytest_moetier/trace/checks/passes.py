"""Whole passes that are no routing of the text: profile passes, warm-ups, repeated prompts, records written twice.

Engines run the model before, or again beside, what the user asked for; a hook at the router sees those passes too
(paper section 2, "Capturing routing").
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from pytest_moetier.trace.checks.base import (
    CERTAIN_BITS,
    I64,
    Found,
    Iterations,
    Mask,
    bits_of_choice,
    bits_of_distinct,
    counted,
    experts_of,
    flat_index,
    in_file_order,
    k_of,
    places,
    renumbered,
    row_check,
    same_ids,
    share,
    whole_passes,
    without,
)
from pytest_moetier.trace.records import BATCH, NORMAL, SPEC_FALLBACK, UNION
from pytest_moetier.trace.rows import DECODE, EQUAL_WEIGHTS, PREFILL, UNKNOWN, Rows

_PROFILE_POSITIONS = 64
_FLAGGED_POSITIONS = 2
_REPEATED_IDS = 32


@row_check("profile-pass", "drop")
def profile_pass(rows: Rows) -> Found | None:
    """The file begins with many identical positions in every layer, as vLLM's memory profiling writes."""
    fitting = np.flatnonzero(whole_passes(rows))
    if not len(fitting) or k_of(rows) >= experts_of(rows):
        return None
    part = rows if len(fitting) == rows.n else rows.take(fitting)
    leading, least = _leading_run(part, np.ones(part.n, dtype=bool), _PROFILE_POSITIONS)
    why = "nothing but memory profiling routes so"
    flagged = (part.flags & EQUAL_WEIGHTS).astype(bool)
    if not leading.any() and k_of(rows) > 1 and flagged.any() and not flagged.all():
        leading, least = _leading_run(part, flagged, _FLAGGED_POSITIONS)
        why = "with all weights equal"
    if not leading.any():
        return None
    gone = np.zeros(rows.n, dtype=bool)
    gone[fitting[leading]] = True
    n = int(np.count_nonzero(gone))
    return Found(
        what=f"a profile pass leads the file: at least {least} identical positions in each layer, {why}",
        where=places(rows, gone),
        amount=f"{counted(n, 'record')} of {rows.n} ({share(n, rows.n)})",
        dropped="left out",
        expected="routing of a text",
        repaired=lambda: without(rows, gone),
    )


def _leading_run(rows: Rows, allowed: Mask, needed: int) -> tuple[Mask, int]:
    """Return the rows that repeat their layer's first position from the start, and the fewest positions of a layer.

    None of them when a layer has fewer than ``needed`` positions.
    """
    none: Mask = np.zeros(rows.n, dtype=bool)
    k = k_of(rows)
    order = in_file_order(rows)
    order = order[np.argsort(rows.layer[order], kind="stable")]
    layer = rows.layer[order]
    begins = np.concatenate([[True], layer[1:] != layer[:-1]])
    groups, group = np.flatnonzero(begins), np.cumsum(begins) - 1
    first = order[groups]
    seconds = order[np.minimum(groups + 1, rows.n - 1)]
    starts = rows.offsets[:-1]
    second = np.where(rows.width[first] > k, starts[first] + k, starts[seconds])
    heads = rows.ids[starts[first][:, None] + np.arange(k)]
    if not bool((heads == rows.ids[second[:, None] + np.arange(k)]).all()):
        return none, 0
    group_of = np.empty(rows.n, dtype=np.int64)
    group_of[order] = group
    owner = np.repeat(np.arange(rows.n), rows.width // k)
    hits = (rows.ids.reshape(-1, k) == heads[group_of[owner]]).all(axis=1)
    same = np.logical_and.reduceat(hits, starts // k) & allowed
    misses = np.cumsum(~same[order])
    before = np.concatenate([[0], misses])[groups]
    leading = none.copy()
    leading[order] = misses == before[group]
    positions = np.bincount(group_of, weights=np.where(leading, rows.width // k, 0), minlength=len(groups))
    least = int(positions.min())
    return (leading, least) if least >= needed else (none, least)


@row_check("warm-up", "drop")
def warm_up(rows: Rows) -> Found | None:
    """A pass names all experts of each layer, or the first pass the experts 0 to k - 1: a warm-up or dry run."""
    its = Iterations(rows)
    n_experts, k = experts_of(rows), k_of(rows)
    if k >= n_experts:
        return None
    all_named = its.all_rows(_naming_all(rows, n_experts))
    sure = bits_of_distinct(n_experts, k, n_experts // k) if not n_experts % k else CERTAIN_BITS
    all_named &= np.add.reduceat(rows.width // n_experts, its.starts) * sure >= CERTAIN_BITS
    first_named = _naming_first(rows, its, n_experts)
    chosen = all_named | first_named
    if not chosen.any():
        return None
    gone = its.rows_of(chosen)
    kinds = [f"all {n_experts} experts"] * bool(all_named.any()) + [f"experts 0 to {k - 1}"] * bool(first_named.any())
    n = int(np.count_nonzero(chosen))
    return Found(
        what=f"{counted(n, 'pass', 'passes')} of which every record names " + " or ".join(kinds),
        where=places(rows, gone),
        amount=f"{counted(int(np.count_nonzero(gone)), 'record')} of {rows.n}",
        dropped="left out",
        expected="routing of a text",
        repaired=lambda: without(rows, gone),
    )


def _naming_all(rows: Rows, n_experts: int) -> Mask:
    """Return which rows name each expert once, or several times all of them, one turn after another."""
    named: Mask = np.zeros(rows.n, dtype=bool)
    free = (rows.kind == BATCH) | (rows.kind == UNKNOWN)
    at = np.flatnonzero((rows.width >= n_experts) & (rows.width % n_experts == 0) & free)
    if len(at):
        turns = rows.width[at] // n_experts
        ids = rows.ids[flat_index(rows.offsets[:-1][at], rows.width[at])].reshape(-1, n_experts)
        whole = (np.sort(ids, axis=1) == np.arange(n_experts)).all(axis=1)
        named[at] = np.logical_and.reduceat(whole, np.cumsum(turns) - turns)
    return named


def _naming_first(rows: Rows, its: Iterations, n_experts: int) -> Mask:
    """Return which iterations, from the file's first on, choose 0 to k - 1 at every position."""
    found: Mask = np.zeros(its.n, dtype=bool)
    k, offsets = k_of(rows), rows.offsets
    fitting = whole_passes(rows)
    ends = np.append(its.starts[1:], rows.n)
    positions = 0
    for at in its.order.tolist():
        begin, end = int(its.starts[at]), int(ends[at])
        ids = rows.ids[offsets[begin] : offsets[end]]
        if not fitting[begin:end].all() or not len(ids) or int(ids.max()) >= k:
            break
        if not bool((np.sort(ids.reshape(-1, k), axis=1) == np.arange(k)).all()):
            break
        found[at] = True
        positions += len(ids) // k
    if positions * bits_of_choice(n_experts, k) < CERTAIN_BITS:
        found[:] = False
    return found


@dataclass(slots=True)
class _Repeats:
    """What the passes of a file repeat: ids to leave out of each row's beginning, and what the rest is."""

    cut: I64
    phase: I64
    passes: set[int] = field(default_factory=set)
    series: int = 0
    ids: int = 0
    single: set[int] = field(default_factory=set)


@row_check("re-prefill", "drop")
def re_prefill(rows: Rows) -> Found | None:
    """Prompt passes that each repeat the one before as a prefix: an engine without a KV cache, or a second turn."""
    its = Iterations(rows)
    found = _Repeats(np.zeros(rows.n, dtype=np.int64), rows.phase.astype(np.int64))
    for begin, at in _growing(rows, its):
        _compare(rows, its, its.order[begin:at], int(its.order[at]), found)
    if found.ids < _REPEATED_IDS:
        return None
    in_passes = np.isin(its.of, list(found.passes))
    total = int(rows.width[in_passes].sum())
    repaired = _cut(rows, its, found)
    prompt, generated = (_positions(repaired, phase) for phase in (PREFILL, DECODE))
    series = f", in {found.series} series" if found.series > 1 else ""
    return Found(
        what=f"{len(found.passes)} passes over the prompt{series}, each repeating the one before it as its prefix",
        where=places(rows, in_passes),
        amount=f"{prompt + generated} true positions ({prompt} prompt + {generated} generated), "
        f"{share(found.ids, total)} of the passes' ids are repeats",
        dropped="each position was kept once",
        expected="every position once",
        repaired=lambda: repaired,
        only_raw=not bool((rows.phase == DECODE).any()),
    )


def _growing(rows: Rows, its: Iterations) -> list[tuple[int, int]]:
    """Return (begin, at) of prompt passes that could repeat what the file holds from place ``begin`` on."""
    totals = np.add.reduceat(rows.width, its.starts)[its.order]
    prompt = rows.phase[its.starts][its.order] == PREFILL
    passes = np.flatnonzero(prompt)
    begins = np.concatenate([[0], passes[:-1]])[: len(passes)]
    sums = np.concatenate([[0], np.cumsum(totals)])
    larger = (passes > 0) & (totals[passes] > totals[np.maximum(passes - 1, 0)])
    k = k_of(rows)
    # the last layer, pruned to one position a pass, may have less in a pass than in all that comes before it
    longest = sums[passes] - sums[begins] - k * (passes - begins)
    chosen = larger & (totals[passes] > longest)
    return list(zip(begins[chosen].tolist(), passes[chosen].tolist(), strict=True))


def _compare(rows: Rows, its: Iterations, history: I64, at: int, found: _Repeats) -> None:
    """Note what pass ``at`` repeats when it begins with all that the iterations in ``history`` routed."""
    ends = np.append(its.starts[1:], rows.n)
    new = np.arange(its.starts[at], ends[at])
    old = flat_index(its.starts[history], ends[history] - its.starts[history])
    new = new[np.argsort(rows.layer[new], kind="stable")]
    old = old[np.argsort(rows.layer[old], kind="stable")]
    layers, begins = np.unique(rows.layer[old], return_index=True)
    if len(new) != len(layers) or bool((rows.layer[new] != layers).any()) or not whole_passes(rows.take(new)).all():
        return
    repeated = np.add.reduceat(rows.width[old], begins)
    width, k = rows.width[new], k_of(rows)
    if len(layers) > 1 and width[-1] == k < width[0]:
        repeated[-1] = 0  # the last layer, pruned to the last position
    full = repeated > 0
    growth = (width - repeated)[full] // k
    if int(growth.min()) < 1 or int(growth.max()) != int(growth[0]):
        return
    starts = rows.offsets[:-1]
    kept = old if full.all() else old[: begins[-1]]
    before = rows.ids[flat_index(starts[kept], rows.width[kept])]
    if not bool((before == rows.ids[flat_index(starts[new], repeated)]).all()):
        return
    first = int(history[0])
    found.series += first not in found.passes
    if len(history) == 1 and first not in found.passes:
        found.phase[its.starts[first] : ends[first]] = PREFILL
    found.passes |= {first, at}
    found.cut[new] = repeated
    found.ids += int(repeated.sum())
    if int(growth[0]) == 1:
        found.phase[new] = DECODE
        found.single.add(at)


def _cut(rows: Rows, its: Iterations, found: _Repeats) -> Rows:
    width = rows.width - found.cut
    ids = rows.ids[flat_index(rows.offsets[:-1] + found.cut, width)]
    single = np.isin(its.of, list(found.single)) & (rows.kind != UNKNOWN)
    rank = np.empty(its.n, dtype=np.int64)
    rank[its.order] = np.arange(its.n)
    left = replace(
        rows,
        key=rank[its.of],
        width=width,
        ids=ids,
        phase=found.phase.astype(np.uint8),
        kind=np.where(single, NORMAL, rows.kind).astype(np.uint8),
    )
    return renumbered(left.take(np.lexsort((left.key, left.phase == DECODE))))


def _positions(rows: Rows, phase: int) -> int:
    """Return the positions of the layer that has most."""
    chosen = (rows.phase == phase) & (rows.kind != UNION)
    if not chosen.any():
        return 0
    return int(np.bincount(rows.layer[chosen], weights=rows.width[chosen]).max()) // k_of(rows)


@row_check("duplicate-keys", "drop", ("drop", "refuse"))
def duplicate_keys(rows: Rows) -> Found | None:
    """A layer routed more than once in one iteration, in a format without speculation: the first record counts."""
    if rows.about.speculative:
        return None
    first, again = _again(rows, rows.kind != SPEC_FALLBACK)
    if not len(again):
        return None
    identical = int(np.count_nonzero(same_ids(rows, first, again)))
    gone = np.zeros(rows.n, dtype=bool)
    gone[again] = True
    n = len(np.unique(Iterations(rows).of[again]))
    return Found(
        what="records of a layer that its iteration already has: "
        f"{identical} identical to the first and {len(again) - identical} conflicting with it",
        where=f"{places(rows, gone)}, in {counted(n, 'iteration')}",
        amount=f"{counted(len(again), 'record')} of {rows.n}",
        dropped="the first record of each was kept",
        expected="one record a layer and iteration, as this format has no speculation",
        repaired=lambda: without(rows, gone),
    )


@row_check("doubled-iteration", "drop")
def doubled_iteration(rows: Rows) -> Found | None:
    """In a speculative format, both records of every layer identical: an iteration written twice, no fallback."""
    if not rows.about.speculative or k_of(rows) >= experts_of(rows):
        return None
    first, again = _again(rows, (rows.phase == DECODE) & (rows.kind == UNKNOWN))
    if not len(again):
        return None
    its = Iterations(rows)
    repeats = np.bincount(its.of[again[same_ids(rows, first, again)]], minlength=its.n)
    size = np.diff(np.append(its.starts, rows.n))
    sure = size * k_of(rows) >= 2 * _REPEATED_IDS
    doubled = (2 * repeats == size) & (np.bincount(its.of[again], minlength=its.n) == repeats) & sure
    if not doubled.any():
        return None
    gone = np.zeros(rows.n, dtype=bool)
    gone[again] = True
    gone &= its.rows_of(doubled)
    n = int(np.count_nonzero(doubled))
    return Found(
        what=f"{counted(n, 'iteration')} written twice: both records of every layer are identical",
        where=places(rows, its.rows_of(doubled)),
        amount=f"{counted(int(np.count_nonzero(gone)), 'record')} of {rows.n}",
        dropped="one of the two was kept",
        expected="a failed speculation and its fallback, which differ",
        repaired=lambda: without(rows, gone),
    )


def _again(rows: Rows, allowed: Mask) -> tuple[I64, I64]:
    """Return (first, again): rows whose iteration already routed their layer, each with the first row that did."""
    of = Iterations(rows).of << 16 | rows.layer
    if bool((np.diff(of) > 0).all()):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    at = np.flatnonzero(allowed)
    at = at[np.argsort(of[at], kind="stable")]
    begins = np.concatenate([[True], np.diff(of[at]) > 0])[: len(at)]
    first = at[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    return first[~begins], at[~begins]
