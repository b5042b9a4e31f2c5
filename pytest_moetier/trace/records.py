"""The typed records of a router trace (paper section 2, and section 10 for why the types matter).

An *iteration* is one pass of the engine as the user sees it; a record is what one layer chose in one pass of it:

- ``normal``: one pass, k distinct ids, one accepted token.
- ``spec_accept``: a speculation that held. Two passes written as one record of 2k ids (k distinct ids, then k distinct
  ids; an id may occur in both), two accepted tokens.
- ``spec_fallback``: a speculation that failed, then its repetition. Two records of k ids a layer, one accepted token.

Collapsing the last two into the first was a defect the paper once had, so here they are types. Two more kinds are no
decode of one stream; a prompt's records are often of them, and so are merged streams:

- ``batch``: several positions in one engine call, position after position: n x k ids, n of its own for each layer.
- ``union``: the distinct experts of several positions, which position chose what is not known: any number of ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from pytest_moetier.errors import InputError
from pytest_moetier.trace.findings import TraceFinding
from pytest_moetier.trace.selections import PHASES, Selections

NORMAL, SPEC_ACCEPT, SPEC_FALLBACK, BATCH, UNION = range(5)
KINDS = ("normal", "spec_accept", "spec_fallback", "batch", "union")
ORDERS = {"id": "ascending id", "score": "falling score", "issued": "as issued"}
"""How ids may stand within a pass, in words. The order decides what LRU does below 2k experts per layer."""

_MAX_EXPERTS = 1 << 16
_MAX_LAYER = (1 << 16) - 1


class RecordError(InputError):
    """A record breaks a rule; ``record`` is its index, from which whoever read it knows the line."""

    def __init__(self, record: int, seen: str, expected: str) -> None:
        """Keep the record's index beside the message."""
        super().__init__(seen, expected)
        self.record = record


@dataclass(frozen=True, slots=True)
class Record:
    """One layer's choice in one pass of one iteration; ``experts`` keep the order in which they were issued."""

    iteration: int
    layer: int
    kind: str
    experts: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A validated router trace; build one with ``make_trace``.

    Attributes:
        iteration: u32 per record, from 0, not falling.
        layer: u16 per record, the layer's number in the source.
        kind: u8 per record, an index into ``KINDS``; the same for all records of an iteration.
        offsets: u64, one more than records: record i's ids are ``experts[offsets[i]:offsets[i + 1]]``.
        experts: u16 ids, in the order issued.
        layers: the layer numbers, ascending.
        n_experts: experts per layer (E).
        k: experts chosen per layer and pass.
        n_iterations: engine iterations.
        accepted_tokens: tokens the user got: one per iteration, two for a ``spec_accept``; merged streams' add up.
        synthetic: made by a generator, not recorded from a model.
        source: where it comes from, in words.
        fingerprint: SHA-256 of the content (not of the file), hex.
        order: how ids stand within a pass, a key of ``ORDERS``.
        warnings: what was left out or guessed, and what the checks found, one sentence each.
        findings: what the checks found, with what was done about it.
        expert_bytes: the size of one expert of each layer, where the source states it (else empty).
        prefill: the prompt's records, kept apart: they are no decode iterations.
    """

    iteration: NDArray[np.uint32]
    layer: NDArray[np.uint16]
    kind: NDArray[np.uint8]
    offsets: NDArray[np.uint64]
    experts: NDArray[np.uint16]
    layers: tuple[int, ...]
    n_experts: int
    k: int
    n_iterations: int
    accepted_tokens: int
    synthetic: bool
    source: str
    fingerprint: str
    order: str
    warnings: tuple[str, ...] = ()
    findings: tuple[TraceFinding, ...] = ()
    expert_bytes: tuple[int, ...] = ()
    prefill: Trace | None = field(default=None, repr=False)

    @property
    def n_records(self) -> int:
        """The number of records."""
        return len(self.iteration)

    @property
    def n_accesses(self) -> int:
        """The number of expert reads: every id of every record."""
        return len(self.experts)

    def records(self) -> Iterator[Record]:
        """Yield the records in order; for printing and writing, the arrays are for computing."""
        bounds = self.offsets.tolist()
        ids = self.experts.tolist()
        columns = zip(self.iteration.tolist(), self.layer.tolist(), self.kind.tolist(), strict=True)
        for row, (iteration, layer, kind) in enumerate(columns):
            yield Record(iteration, layer, KINDS[kind], tuple(ids[bounds[row] : bounds[row + 1]]))

    def record_bounds(self) -> NDArray[np.intp]:
        """Return the first record of each iteration, and the number of records: n_iterations + 1 values."""
        return np.searchsorted(self.iteration, np.arange(self.n_iterations + 1, dtype=np.uint32))

    def access_bounds(self) -> NDArray[np.uint64]:
        """Return the first access of each iteration, and the number of accesses: n_iterations + 1 values."""
        return self.offsets[self.record_bounds()]

    def passes(self, layer: int) -> NDArray[np.uint16]:
        """Return the passes of ``layer``, one row of k ids each; an accept's one record is two rows, a batch's n.

        Raises:
            InputError: the trace has no such layer, or holds unions: sets without positions.
        """
        if layer not in self.layers:
            raise InputError(f"layer {layer} is not in the trace", f"one of {_span(self.layers)}")
        self._need_positions()
        chosen = np.repeat(self.layer == layer, np.diff(self.offsets).astype(np.int64))
        rows: NDArray[np.uint16] = self.experts[chosen].reshape(-1, self.k)
        return rows

    def _need_positions(self) -> None:
        if bool((self.kind == UNION).any()):
            raise InputError(
                f"{self.source} holds unions of several positions: which position chose what is not known",
                "passes of k experts",
                "replay it or simulate caches over it; statistics of routing need one stream's own trace",
            )

    def selections(self, phase: str = "decode") -> Selections:
        """Return the passes in order, as rows of k ids.

        Args:
            phase: ``decode``, ``prefill`` (the prompt alone) or ``all`` (the prompt, then the decode).

        Raises:
            InputError: no such phase, or no prompt in the trace, or unions among its records.
        """
        if phase not in PHASES:
            raise InputError(f"no phase {phase!r}", "one of " + ", ".join(PHASES))
        if phase != "decode" and self.prefill is None:
            raise InputError(f"{self.source} has no prefill records", "a trace with its prompt, or phase decode")
        parts = [part for part in (self.prefill, self) if part is not None]
        parts = {"decode": [self], "prefill": parts[:1], "all": parts}[phase]
        rows = []
        for part in parts:
            part._need_positions()  # noqa: SLF001  (a trace, as this one is)
            passes = np.diff(part.offsets).astype(np.int64) // self.k
            rows.append(np.repeat(np.searchsorted(self.layers, part.layer).astype(np.uint16), passes))
        ids = [part.experts for part in parts]
        return Selections(
            ids=ids[0] if len(ids) == 1 else np.concatenate(ids),
            row_layer=rows[0] if len(rows) == 1 else np.concatenate(rows),
            layers=self.layers,
            n_experts=self.n_experts,
            k=self.k,
            phase=phase,
            order=ORDERS[self.order],
            synthetic=self.synthetic,
            source=self.source,
        )

    def kind_counts(self) -> dict[str, int]:
        """Return the iterations of each kind; those that are no decode of one stream only where there are any."""
        counts = np.bincount(self.kind[self.record_bounds()[:-1]], minlength=len(KINDS)).tolist()
        return {name: counts[at] for at, name in enumerate(KINDS) if counts[at] or at <= SPEC_FALLBACK}


def _span(values: Sequence[int]) -> str:
    return f"{values[0]}-{values[-1]}" if len(values) > 1 else str(values[0])


def _column(values: ArrayLike, dtype: DTypeLike, name: str, top: int) -> NDArray[Any]:
    wide = np.asarray(values)
    if wide.size and (wide.dtype.kind not in "iu" or int(wide.min()) < 0 or int(wide.max()) > top):
        seen = f"{int(wide.min())} to {int(wide.max())}" if wide.dtype.kind in "iu" else f"values of type {wide.dtype}"
        raise InputError(f"the trace's {name} holds {seen}", f"integers from 0 to {top}")
    out = wide.astype(dtype)
    out.setflags(write=False)
    return out


def _check_shape(
    iteration: NDArray[Any], layer: NDArray[Any], kind: NDArray[Any], offsets: NDArray[Any], ids: int
) -> None:
    if not len(iteration):
        raise InputError("the trace holds no record", "at least one decode iteration")
    if not len(iteration) == len(layer) == len(kind) == len(offsets) - 1:
        raise InputError("the trace's columns differ in length", "one iteration, layer, kind and width per record")
    if int(offsets[0]) or int(offsets[-1]) != ids or bool((np.diff(offsets.astype(np.int64)) < 1).any()):
        raise InputError("the trace's offsets do not divide its ids into records", "rising from 0 to the number of ids")
    steps = np.diff(iteration.astype(np.int64))
    if int(iteration[0]) or bool(((steps < 0) | (steps > 1)).any()):
        raise InputError("the trace's iterations are not numbered 0, 1, 2, ...", "no gap and no step back")


def _check_widths(kind: NDArray[Any], offsets: NDArray[Any], k: int) -> None:
    widths = np.diff(offsets.astype(np.int64))
    wanted = np.where(kind == SPEC_ACCEPT, 2 * k, np.where(kind == BATCH, -(-widths // k) * k, k))
    wrong = np.flatnonzero((widths != wanted) & (kind != UNION))
    if len(wrong):
        row = int(wrong[0])
        raise RecordError(
            row,
            f"record {row} ({KINDS[int(kind[row])]}) names {widths[row]} experts",
            f"{wanted[row]} (k is {k}; a spec_accept record holds two passes, a batch whole ones)",
        )


def _check_passes(
    iteration: NDArray[Any], layer: NDArray[Any], kind: NDArray[Any], layers: Sequence[int], *, whole: bool
) -> None:
    """Every iteration is of one kind, and every layer has one record in it, or two in a fallback."""
    same = iteration[1:] == iteration[:-1]
    mixed = np.flatnonzero(same & (kind[1:] != kind[:-1]))
    if len(mixed) and whole:
        row = int(mixed[0]) + 1
        raise RecordError(row, f"iteration {iteration[row]} mixes record kinds", "one kind for all its layers")
    pairs = iteration.astype(np.int64) << 16 | layer.astype(np.int64)
    found, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    wanted = np.where(kind[first] == SPEC_FALLBACK, 2, 1)
    wrong = np.flatnonzero(counts != wanted)
    if len(wrong):
        at = int(wrong[0])
        rows = np.flatnonzero(pairs == found[at])
        raise RecordError(
            int(rows[min(wanted[at], len(rows) - 1)]),
            f"iteration {int(found[at]) >> 16} routes layer {int(found[at]) & 0xFFFF} {counts[at]} time(s)",
            f"{wanted[at]} (a spec_fallback has two records a layer, the other kinds one)",
        )
    present = np.bincount(found >> 16)
    lacking = np.flatnonzero(present < len(layers))
    if whole and len(lacking):
        here = set((found[found >> 16 == lacking[0]] & 0xFFFF).tolist())
        absent = [one for one in layers if one not in here]
        raise RecordError(
            int(np.searchsorted(iteration, lacking[0])),
            f"iteration {lacking[0]} has no record of layer {absent[0]}"
            + (f" and {len(absent) - 1} more" if len(absent) > 1 else ""),
            f"every layer in every iteration: {len(layers)} layers, {_span(layers)}",
        )


def _check_ids(
    experts: NDArray[Any], offsets: NDArray[Any], owner: NDArray[Any] | None, k: int, n_experts: int
) -> None:
    """Ids are in range, and no pass names one twice; ``owner`` is the pass of each id, where it is not i // k."""
    highest = int(experts.argmax())
    if int(experts[highest]) >= n_experts:
        raise RecordError(
            _record_of(offsets, highest),
            f"the trace names expert {experts[highest]}",
            f"ids below {n_experts}, the experts per layer",
        )
    if owner is None:
        rows = np.sort(experts.reshape(-1, k), axis=1)
        repeated = np.flatnonzero((rows[:, 1:] == rows[:, :-1]).any(axis=1))
    else:
        keyed = np.sort(owner << 16 | experts)
        repeated = keyed[1:][keyed[1:] == keyed[:-1]] >> 16
    if len(repeated):
        at = int(repeated[0])
        first = at * k if owner is None else int(np.searchsorted(owner, at))
        raise RecordError(
            _record_of(offsets, first), f"pass {at} of the trace names an expert twice", f"{k} distinct ids a pass"
        )


def _record_of(offsets: NDArray[Any], access: int) -> int:
    return int(np.searchsorted(offsets, access, side="right")) - 1


def _owners(kind: NDArray[Any], offsets: NDArray[Any], k: int) -> NDArray[np.int64] | None:
    """Return the pass of each id, a union being one pass; None where every pass has k ids, the i-th's being i // k."""
    union = kind == UNION
    if not union.any():
        return None
    widths = np.diff(offsets.astype(np.int64))
    sizes = np.repeat(np.where(union, widths, k), np.where(union, 1, widths // k))
    return np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)


def _ascending(experts: NDArray[Any], owner: NDArray[Any] | None, k: int) -> bool:
    if owner is None:
        rows = experts.reshape(-1, k)
        return bool((rows[:, 1:] > rows[:, :-1]).all())
    return bool((experts[1:] > experts[:-1])[owner[1:] == owner[:-1]].all())


def _fingerprint(layers: Sequence[int], n_experts: int, k: int, columns: Sequence[NDArray[Any]]) -> str:
    digest = hashlib.sha256(f"moetier-trace 1 {n_experts} {k} {','.join(map(str, layers))}\n".encode())
    for column in columns:
        digest.update(column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()


def make_trace(  # noqa: PLR0913  (a trace has these parts; they are given by keyword)
    *,
    iteration: ArrayLike,
    layer: ArrayLike,
    kind: ArrayLike,
    offsets: ArrayLike,
    experts: ArrayLike,
    n_experts: int,
    k: int,
    synthetic: bool,
    source: str,
    layers: Sequence[int] | None = None,
    warnings: Sequence[str] = (),
    findings: Sequence[TraceFinding] = (),
    order: str | None = None,
    expert_bytes: Sequence[int] = (),
    accepted_tokens: int | None = None,
    prefill: Trace | None = None,
    whole: bool = True,
) -> Trace:
    """Return a validated trace; every rule of the module's docstring is checked.

    Args:
        iteration: iteration number per record, from 0 without gaps.
        layer: layer number per record.
        kind: index into ``KINDS`` per record.
        offsets: first id of each record, and the number of ids.
        experts: ids in the order issued.
        n_experts: experts per layer.
        k: ids a pass.
        synthetic: made by a generator.
        source: where the trace comes from.
        layers: the layers of the model; default: those seen.
        warnings: sentences about what was left out.
        findings: what the checks found.
        order: a key of ``ORDERS``; default: seen from the ids.
        expert_bytes: the size of one expert of each layer.
        accepted_tokens: of merged streams; default: counted from the kinds.
        prefill: the prompt's own trace.
        whole: every layer is in every iteration, all of one kind; a prompt's may be pruned.

    Raises:
        InputError: a rule does not hold; a ``RecordError`` where it is one record that breaks it.
    """
    if not 1 <= k <= n_experts <= _MAX_EXPERTS:
        raise InputError(f"k = {k} of {n_experts} experts", f"1 <= k <= experts <= {_MAX_EXPERTS}")
    iterations = _column(iteration, np.uint32, "iteration column", 2**32 - 1)
    layer_column = _column(layer, np.uint16, "layer column", _MAX_LAYER)
    kinds = _column(kind, np.uint8, "kind column", len(KINDS) - 1)
    bounds = _column(offsets, np.uint64, "offset column", 2**63 - 1)
    ids = _column(experts, np.uint16, "expert column", _MAX_EXPERTS - 1)
    _check_shape(iterations, layer_column, kinds, bounds, len(ids))
    _check_widths(kinds, bounds, k)
    seen = np.unique(layer_column).tolist()
    known = tuple(sorted(set(layers))) if layers is not None else tuple(seen)
    if not set(seen) <= set(known):
        row = int(np.flatnonzero(~np.isin(layer_column, known))[0])
        raise RecordError(row, f"the trace routes layer {layer_column[row]}", f"one of the layers {_span(known)}")
    _check_passes(iterations, layer_column, kinds, known, whole=whole)
    owner = _owners(kinds, bounds, k)
    _check_ids(ids, bounds, owner, k, n_experts)
    n_iterations = int(iterations[-1]) + 1
    firsts = np.searchsorted(iterations, np.arange(n_iterations))
    return Trace(
        iteration=iterations,
        layer=layer_column,
        kind=kinds,
        offsets=bounds,
        experts=ids,
        layers=known,
        n_experts=n_experts,
        k=k,
        n_iterations=n_iterations,
        accepted_tokens=accepted_tokens or n_iterations + int(np.count_nonzero(kinds[firsts] == SPEC_ACCEPT)),
        synthetic=synthetic,
        source=source,
        fingerprint=_fingerprint(known, n_experts, k, (iterations, layer_column, kinds, bounds, ids)),
        order=order or ("id" if _ascending(ids, owner, k) else "issued"),
        warnings=tuple(warnings),
        findings=tuple(findings),
        expert_bytes=tuple(expert_bytes),
        prefill=prefill,
    )
