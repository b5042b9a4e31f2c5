"""Predictors of the next choice: the oracle, and those that a real one is compared with (paper section 7).

- ``oracle``: what the trace chose. No predictor; the upper bound.
- ``previous_token``: what the layer chose in its pass before; what can be had without knowing the model.
- ``markov``: what has followed the experts of the record before, counted online from what came before.
- ``noisy_oracle``: what the trace chose, each expert kept with its layer's probability; stands for an engine's own
  one-layer lookahead, whose recall differs by layer (the paper's: 64.7%, 1% to 84%), where no dump of one is at hand.
  Bit-identical on every machine: see ``splitmix``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.advice.records import I64, Advice, make_advice, widths
from pytest_moetier.errors import InputError
from pytest_moetier.trace import splitmix
from pytest_moetier.trace.records import BATCH, SPEC_ACCEPT, Trace

PREDICTORS = ("oracle", "previous_token", "markov", "noisy_oracle")

_TOP, _SPAN, _CURVE = 0.84, 0.83, 3.302
"""The law of recall by layer: 0.84 - 0.83 h^3.302, h the layer's seeded rank from 0 to 1."""
_RANKS, _WORDS = 21, 22  # the streams, by role; no other generator of the same seed has these
_BLOCK = 1 << 22  # experts looked at in one go
_TABLE = 1 << 27  # counts of one pair of layers, at most

_Lists = tuple[I64, NDArray[np.uint16]]
"""The record of each id, rising, and the ids."""


def predictor_named(word: str) -> str | None:
    """Return the predictor of ``PREDICTORS`` that ``word`` names, with hyphens or underscores; None if it is none."""
    name = word.replace("-", "_")
    return name if name in PREDICTORS else None


def predict(
    trace: Trace, predictor: str, recall: float | Sequence[float] | None = None, seed: int | None = None
) -> Advice:
    """Return the advice of a predictor of ``PREDICTORS`` for ``trace``; ``recall`` and ``seed`` are a noisy oracle's.

    Raises:
        InputError: no such predictor, or a recall or seed that it does not take.
    """
    if predictor == "noisy_oracle":
        return noisy_oracle(trace, recall, seed or 0)
    if predictor not in PREDICTORS:
        raise InputError(f"no predictor {predictor!r}", "one of " + ", ".join(PREDICTORS))
    if recall is not None or seed is not None:
        raise InputError(
            f"a recall or seed for the predictor {predictor}", "the predictor noisy_oracle, which takes them"
        )
    return {"oracle": oracle, "previous_token": previous_token, "markov": markov}[predictor](trace)


def oracle(trace: Trace) -> Advice:
    """Return what the trace chose, as issued."""
    return _advice(trace, "oracle", "the trace's own choices", _chosen(trace))


def previous_token(trace: Trace) -> Advice:
    """Return what each layer chose in its pass before: of an accept, in its second; of a batch or union, in all.

    The first record of a layer has none.
    """
    return _advice(trace, "previous_token", "the layer's previous pass", _previous(trace))


def markov(trace: Trace) -> Advice:
    """Return the k experts that most often followed the experts of the record before, ties by id.

    The record before is the layer before's, and for the first layer the last layer's of the pass before. Only what came
    before the prediction is counted; experts that have never followed are not advised. Of merged streams, as many are
    advised as the record before has.

    Raises:
        InputError: the trace has more experts than a table of counts can hold.
    """
    records, ids = _chosen(trace)
    bounds = np.searchsorted(records, np.arange(trace.n_records + 1)).tolist()
    sets = [ids[one:other] for one, other in pairwise(bounds)]
    found: list[NDArray[np.uint16]] = [ids[:0]] * trace.n_records
    merged = (trace.kind >= BATCH).tolist()
    for group in _successions(trace):
        before, names = _numbered(sets, group - 1)
        after, followers = _numbered(sets, group)
        if len(names) * len(followers) > _TABLE:
            raise InputError(f"counts of {len(names)} x {len(followers)} experts", f"at most {_TABLE} in a table")
        counts = np.zeros((len(names), len(followers)), dtype=np.int32)
        for record, known, new in zip(group.tolist(), before, after, strict=True):
            size = max(trace.k, len(known)) if merged[record] else trace.k
            found[record] = followers[_most(counts[known].sum(axis=0), size)]
            counts[known[:, None], new] += 1
    sizes = np.array([len(one) for one in found], dtype=np.int64)
    lists = np.repeat(np.arange(trace.n_records), sizes), np.concatenate(found)
    return _advice(trace, "markov", "experts that followed those of the record before, counted online", lists)


def _successions(trace: Trace) -> Iterator[I64]:
    """Yield the records, but the first, in groups of one layer that follow records of one layer, in time order."""
    pairs = trace.layer[:-1].astype(np.int64) << 16 | trace.layer[1:]
    order = np.argsort(pairs, kind="stable")
    if len(order):
        yield from np.split(order + 1, np.flatnonzero(np.diff(pairs[order])) + 1)


def _numbered(sets: Sequence[NDArray[np.uint16]], records: I64) -> tuple[list[I64], NDArray[np.uint16]]:
    """Return the records' ids as numbers from 0, rising with the id, and the ids that the numbers stand for."""
    chosen = [sets[record] for record in records.tolist()]
    names, numbers = np.unique(np.concatenate(chosen), return_inverse=True)
    return np.split(numbers.astype(np.int64), np.cumsum([len(one) for one in chosen])[:-1]), names


def _most(scores: I64, size: int) -> I64:
    """Return the places of the ``size`` highest scores above 0, highest first; of equal ones, the lower place."""
    count = len(scores)
    ranked = scores * count + (count - 1 - np.arange(count))
    if size < count:
        ranked = np.partition(ranked, count - size)[count - size :]
    ranked = -np.sort(-ranked)
    best: I64 = count - 1 - ranked[ranked >= count] % count
    return best


def recall_law(n_layers: int, seed: int = 0) -> list[float]:
    """Return a recall for each layer: 0.84 - 0.83 h^3.302, where h spreads the layers over 0 to 1 in a seeded order.

    Each layer stands for the middle of its part of the curve, so that the mean is the paper's 64.7% for any number of
    layers; for 92 they range from 2% to 84%.
    """
    ranks = splitmix.shuffled(n_layers, splitmix.key(seed, _RANKS))
    return [_TOP - _SPAN * _power((rank + 0.5) / n_layers, _CURVE) for rank in ranks]


def _power(base: float, exponent: float) -> float:
    """Return base^exponent for a base from 0 to 1, the same on every machine."""
    if not base:
        return 0.0
    log = 0.0
    for _ in range(32):  # Halley's steps for e^log = base
        power = splitmix.exp(log)
        log += 2.0 * (base - power) / (base + power)
    return splitmix.exp(exponent * log)


def noisy_oracle(trace: Trace, recall: float | Sequence[float] | None = None, seed: int = 0) -> Advice:
    """Return each true id with its layer's probability; what is lacking comes from the pass before, then from anywhere.

    As many ids are advised as a record chose, where the layer has so many, and none of those filled in was chosen: but
    for chance, recall and precision are what was asked for. Ids ascend.

    Args:
        trace: what was chosen.
        recall: the probability, for all layers or one for each in their order; default: ``recall_law``.
        seed: any integer below 2^64.

    Raises:
        InputError: a recall or seed out of range, or advice that turned out to be an oracle.
    """
    if not 0 <= seed < 1 << 64:
        raise InputError(f"seed {seed}", "an integer from 0 and below 2^64")
    shares, words = _shares(recall, len(trace.layers), seed)
    chosen, previous = _chosen(trace), _previous(trace)
    parts = []
    for place, (layer, share) in enumerate(zip(trace.layers, shares, strict=True)):
        stream = splitmix.key(seed, _WORDS, place)
        rows = np.flatnonzero(trace.layer == layer)
        step = max(1, _BLOCK // trace.n_experts)
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            drawn = splitmix.words(stream, start * trace.n_experts, len(block) * trace.n_experts)
            masks = _mask(chosen, block, trace.n_experts), _mask(previous, block, trace.n_experts)
            row, ids = np.nonzero(_noisy(*masks, drawn.reshape(masks[0].shape), share))
            parts.append((block[row], ids.astype(np.uint16)))
    records = np.concatenate([one for one, _ in parts])
    order = np.argsort(records, kind="stable")
    lists = records[order], np.concatenate([ids for _, ids in parts])[order]
    return _advice(trace, "noisy_oracle", f"the trace's choices, {words}, seed {seed}", lists)


def _shares(recall: float | Sequence[float] | None, n_layers: int, seed: int) -> tuple[list[float], str]:
    if recall is None:
        return recall_law(n_layers, seed), f"each kept with probability {_TOP} - {_SPAN} h^{_CURVE}"
    shares = list(recall) if isinstance(recall, Sequence) else [float(recall)] * n_layers
    if len(shares) != n_layers:
        raise InputError(f"{len(shares)} recalls", f"one, or one for each of the trace's {n_layers} layers")
    for share in shares:
        if not 0.0 <= share <= 1.0:
            raise InputError(f"a recall of {share}", "0 to 1")
    low, high = min(shares), max(shares)
    return shares, f"each kept with probability {low:g}" + (f" to {high:g}, as given by layer" if low < high else "")


def _mask(lists: _Lists, rows: I64, n_experts: int) -> NDArray[np.bool_]:
    """Return which ids the lists of some records hold, shape [rows, experts]."""
    records, ids = lists
    first, end = np.searchsorted(records, rows), np.searchsorted(records, rows, side="right")
    mask = np.zeros((len(rows), n_experts), dtype=bool)
    mask[np.repeat(np.arange(len(rows)), end - first), ids[_spans(first, end - first)]] = True
    return mask


def _noisy(
    true: NDArray[np.bool_], previous: NDArray[np.bool_], drawn: splitmix.U64, share: float
) -> NDArray[np.bool_]:
    """Return the advised ids of some records, all of shape [records, experts]; one drawn word decides on each id."""
    kept = true & (drawn >> np.uint64(11) < np.uint64(int(share * (1 << 53))))
    lacking = true.sum(axis=1) - kept.sum(axis=1)
    # the lowest are filled in: first what the pass before chose, then anything, and nothing that is true
    rank = drawn >> np.uint64(2) | np.where(previous, np.uint64(0), np.uint64(1 << 62))
    rank[true] = np.uint64(splitmix.WORD)
    last = np.take_along_axis(np.sort(rank, axis=1), np.maximum(lacking - 1, 0)[:, None], axis=1)
    advised: NDArray[np.bool_] = kept | (rank <= last) & (lacking > 0)[:, None] & ~true
    return advised


def _advice(trace: Trace, kind: str, source: str, lists: _Lists) -> Advice:
    records, ids = lists
    return make_advice(trace, kind, source, np.bincount(records, minlength=trace.n_records), ids)


def _chosen(trace: Trace) -> _Lists:
    """Return each record's distinct ids, in the order issued."""
    return _distinct(np.repeat(np.arange(trace.n_records), widths(trace.offsets)), trace.experts, trace.n_experts)


def _previous(trace: Trace) -> _Lists:
    """Return for each record the distinct ids of its layer's pass before it."""
    order = np.argsort(trace.layer, kind="stable")
    same = trace.layer[order[1:]] == trace.layer[order[:-1]]
    before, after = order[:-1][same], order[1:][same]
    by_record = np.argsort(after)
    before, after = before[by_record], after[by_record]
    ends = trace.offsets[before + 1].astype(np.int64)
    sizes = np.where(trace.kind[before] == SPEC_ACCEPT, trace.k, widths(trace.offsets)[before])
    ids = trace.experts[_spans(ends - sizes, sizes)]
    return _distinct(np.repeat(after, sizes), ids, trace.n_experts)


def _distinct(records: I64, ids: NDArray[np.uint16], n_experts: int) -> _Lists:
    _, first = np.unique(records * n_experts + ids, return_index=True)
    first.sort()
    return records[first], ids[first]


def _spans(starts: I64, sizes: I64) -> I64:
    """Return the numbers from each start on, as many as its size, one start after the other."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    numbers: I64 = np.arange(total) + np.repeat(starts - (ends - sizes), sizes)
    return numbers
