"""What a predictor says of a trace, record by record, and how much of what was chosen it had said (paper section 7).

What knows the future is labelled an oracle wherever it is shown: advice that says ``oracle`` must be what the trace
chose, and advice that is must say so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.errors import InputError
from pytest_moetier.trace.records import Trace

KINDS = {
    "oracle": "oracle",
    "noisy_oracle": "noisy oracle",
    "previous_token": "previous token",
    "markov": "markov",
    "given": "given",
}
"""What made the advice, in the file's word and as it is shown."""

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


def widths(offsets: NDArray[np.uint64]) -> I64:
    """Return how many ids each record has."""
    bounds = offsets.astype(np.int64)
    sizes: I64 = bounds[1:] - bounds[:-1]
    return sizes


@dataclass(frozen=True, slots=True, eq=False)
class Advice:
    """What a predictor says of a trace; build one with ``make_advice``.

    Attributes:
        kind: a key of ``KINDS``.
        source: how it was made, in words.
        layers: the model's layer numbers, ascending.
        n_experts: experts per layer (E).
        k: experts chosen per layer and pass.
        trace: fingerprint of the trace it was made for, or None.
        iteration: u32 per record, the trace's own.
        layer: u16 per record, likewise.
        offsets: u64, one more than records: record i's ids are ``experts[offsets[i]:offsets[i + 1]]``, maybe none.
        experts: u16 ids, distinct within a record, best first.
        withheld: layers whose advice was taken out.
    """

    kind: str
    source: str
    layers: tuple[int, ...]
    n_experts: int
    k: int
    trace: str | None
    iteration: NDArray[np.uint32]
    layer: NDArray[np.uint16]
    offsets: NDArray[np.uint64]
    experts: NDArray[np.uint16]
    withheld: tuple[int, ...] = ()

    @property
    def n_records(self) -> int:
        """The number of records."""
        return len(self.iteration)

    @property
    def counts(self) -> I64:
        """The number of ids of each record."""
        return widths(self.offsets)

    @property
    def oracle(self) -> bool:
        """It is the trace itself."""
        return self.kind == "oracle"


def make_advice(trace: Trace, kind: str, source: str, counts: I64, experts: NDArray[np.uint16]) -> Advice:
    """Return the advice for ``trace`` of ``counts[i]`` ids for record i, one record's ``experts`` after the other.

    Raises:
        InputError: what is no advice for this trace, or is labelled as what it is not.
    """
    if kind not in KINDS:
        raise InputError(f"advice of kind {kind!r}", "one of " + ", ".join(KINDS))
    if len(counts) != trace.n_records or int(counts.sum()) != len(experts):
        raise InputError(f"{len(experts)} ids for {len(counts)} records", f"the trace's {trace.n_records} records")
    if len(experts) and int(experts.max()) >= trace.n_experts:
        raise InputError(f"advice that names expert {experts.max()}", f"ids below {trace.n_experts}")
    advice = Advice(
        kind=kind,
        source=source,
        layers=trace.layers,
        n_experts=trace.n_experts,
        k=trace.k,
        trace=trace.fingerprint,
        iteration=trace.iteration,
        layer=trace.layer,
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64),
        experts=experts,
    )
    keyed = _keyed(advice)
    if len(np.unique(keyed)) != len(keyed):
        raise InputError("advice that names an expert twice in a record", "distinct ids")
    _check_label(advice, recall(advice, trace))
    return advice


@dataclass(frozen=True, slots=True, eq=False)
class Recall:
    """How much of what was chosen had been advised; all counts are of distinct experts within a record, per layer.

    Attributes:
        layers: the layer numbers.
        records: records of the layer.
        records_advised: those with any advice.
        chosen: experts that the records chose.
        chosen_advised: the same over the records with any advice.
        advised: experts that were advised.
        hits: experts that were advised and chosen.
    """

    layers: tuple[int, ...]
    records: I64
    records_advised: I64
    chosen: I64
    chosen_advised: I64
    advised: I64
    hits: I64

    @property
    def overall(self) -> float:
        """Share of the chosen experts that were advised; a record without advice counts as missed."""
        return _share(self.hits, self.chosen)

    @property
    def where_advised(self) -> float:
        """The same over the records that have any advice; NaN where none has."""
        return _share(self.hits, self.chosen_advised)

    @property
    def precision(self) -> float:
        """Share of the advised experts that were chosen; NaN where none was advised."""
        return _share(self.hits, self.advised)

    @property
    def ids_per_record(self) -> float:
        """Experts advised per record of the trace."""
        return _share(self.advised, self.records)

    @property
    def by_layer(self) -> F64:
        """Each layer's own recall."""
        return self.hits / self.chosen

    @property
    def exact(self) -> bool:
        """Whether the advice is what was chosen, no more and no less."""
        return bool((self.hits == self.chosen).all() and (self.hits == self.advised).all())


def _share(part: I64, whole: I64) -> float:
    total = int(whole.sum())
    return int(part.sum()) / total if total else float("nan")


def need_same(advice: Advice, trace: Trace) -> None:
    """Refuse advice that is not record for record for this trace."""
    if advice.n_experts != trace.n_experts or not (
        np.array_equal(advice.iteration, trace.iteration) and np.array_equal(advice.layer, trace.layer)
    ):
        raise InputError(f"the advice ({advice.source}) is of another trace", f"advice for {trace.source}")


def recall(advice: Advice, trace: Trace, iterations: int | None = None) -> Recall:
    """Return the recall of ``advice`` on ``trace``; an accept's record is the union of both its passes.

    Args:
        advice: what was expected.
        trace: what was chosen.
        iterations: only so many of the trace's iterations, from its first, as a plan may be cut; default: all.

    Raises:
        InputError: the advice is of another trace, or the trace has not so many iterations.
    """
    need_same(advice, trace)
    count = trace.n_iterations if iterations is None else iterations
    if not 1 <= count <= trace.n_iterations:
        raise InputError(f"recall over {count} iterations", f"1 to {trace.n_iterations}, as the trace has")
    n_records = int(trace.record_bounds()[count])
    true, advised = (keyed[keyed < n_records * trace.n_experts] for keyed in (np.unique(_keyed(trace)), _keyed(advice)))
    hits = advised[np.isin(advised, true, assume_unique=True)]
    place = np.searchsorted(trace.layers, trace.layer[:n_records])
    some = advice.counts[:n_records] > 0

    def count_by_layer(records: I64) -> I64:
        return np.bincount(place[records], minlength=len(trace.layers)).astype(np.int64)

    return Recall(
        layers=trace.layers,
        records=count_by_layer(np.arange(n_records)),
        records_advised=count_by_layer(np.flatnonzero(some)),
        chosen=count_by_layer(true // trace.n_experts),
        chosen_advised=count_by_layer((true // trace.n_experts)[some[true // trace.n_experts]]),
        advised=count_by_layer(advised // trace.n_experts),
        hits=count_by_layer(hits // trace.n_experts),
    )


def _keyed(one: Advice | Trace) -> I64:
    """Return record * E + id of every id."""
    records = np.repeat(np.arange(one.n_records, dtype=np.int64), widths(one.offsets))
    return records * one.n_experts + one.experts


def _check_label(advice: Advice, found: Recall) -> None:
    if advice.oracle and not found.exact:
        raise InputError(
            f"advice labelled oracle, but its recall is {found.overall:.4g} and its precision {found.precision:.4g}",
            "both exactly 1",
            "label it by what made it (given, for a predictor of your own)",
        )
    if found.exact and not advice.oracle:
        raise InputError(
            f"advice labelled {advice.kind}, but it is exactly what the trace chose: an oracle labelled as a predictor",
            "the kind oracle, or predictions that were made before the choice",
            "label it oracle (`moetier plan predict --predictor oracle` makes one)",
        )


def label(advice: Advice, found: Recall) -> str:
    """Return the words that stand wherever the advice's result is shown."""
    return "oracle" if advice.oracle else f"{KINDS[advice.kind]}, recall {found.overall:.3f}"


def withhold(advice: Advice, trace: Trace, min_recall: float) -> Advice:
    """Return the advice without the layers whose recall is below ``min_recall``; ``withheld`` says which they are.

    Raises:
        InputError: the threshold is no share, or the advice is of another trace.
    """
    if not 0.0 <= min_recall <= 1.0:
        raise InputError(f"a least recall of {min_recall}", "0 to 1")
    low = recall(advice, trace).by_layer < min_recall
    if not low.any():
        return advice
    counts = advice.counts
    out = low[np.searchsorted(trace.layers, advice.layer)]
    left = np.where(out, 0, counts)
    layers = [layer for layer, one in zip(trace.layers, low.tolist(), strict=True) if one]
    return replace(
        advice,
        source=f"{advice.source}; withheld where recall is below {min_recall:g}",
        offsets=np.concatenate([[0], np.cumsum(left)]).astype(np.uint64),
        experts=advice.experts[np.repeat(~out, counts)],
        withheld=tuple(sorted({*advice.withheld, *layers})),
    )
