"""Merging streams iteration by iteration (paper section 3, "Batching"): what a batch of several requests reads.

Streams are traces, so they came through the one parser: an accepted speculation counts two tokens, and every pass of a
failed one is kept. Iteration i of the batch is iteration i of each stream; it ends with the shortest stream. In an
iteration each layer reads the distinct experts of all streams: a batch loads an expert once, whoever asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.errors import InputError
from pytest_moetier.trace.records import SPEC_ACCEPT, SPEC_FALLBACK, UNION, Trace, make_trace

I64 = NDArray[np.int64]

_BLOCK_IDS = 1 << 20
"""Ids merged at a time: what bounds the memory beyond that of the traces."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Several streams merged.

    Attributes:
        trace: the batch: one union per iteration and layer, layers ascending, experts in the order in which the
            streams, one after the other, first ask for them; its accepted tokens are those of all streams.
        streams: how many.
        left_out: iterations of each stream after the shortest one's end.
        reads: expert reads that the streams would do each for itself, over the merged iterations.
    """

    trace: Trace
    streams: int
    left_out: tuple[int, ...]
    reads: int

    @property
    def n_iterations(self) -> int:
        """Merged iterations: those of the shortest stream."""
        return self.trace.n_iterations

    @property
    def union_reads(self) -> int:
        """Expert reads of the batch."""
        return self.trace.n_accesses

    @property
    def union(self) -> I64:
        """Expert reads of the batch per iteration."""
        bounds = self.trace.access_bounds().astype(np.int64)
        sizes: I64 = bounds[1:] - bounds[:-1]
        return sizes

    @property
    def deduplication(self) -> float:
        """How many reads of the streams one read of the batch serves."""
        return self.reads / self.union_reads


def merge(traces: Sequence[Trace]) -> Batch:
    """Return the traces as one batch; each is one stream, in the order given.

    Raises:
        InputError: no trace, one that is no decode of one stream, or two of different models.
    """
    if not traces:
        raise InputError("no stream to merge", "one trace or more")
    for trace in traces:
        _check_stream(trace, traces[0])
    n_iterations = min(trace.n_iterations for trace in traces)
    ends = [int(trace.record_bounds()[n_iterations]) for trace in traces]
    accepts = sum(
        len(np.unique(trace.iteration[:end][trace.kind[:end] == SPEC_ACCEPT]))
        for trace, end in zip(traces, ends, strict=True)
    )
    left_out = tuple(trace.n_iterations - n_iterations for trace in traces)
    union = _union(traces, n_iterations)
    n_layers = len(traces[0].layers)
    merged = make_trace(
        iteration=np.repeat(np.arange(n_iterations, dtype=np.uint32), n_layers),
        layer=np.tile(np.array(traces[0].layers, dtype=np.uint16), n_iterations),
        kind=np.full(n_iterations * n_layers, UNION, dtype=np.uint8),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(union.widths)]),
        experts=union.experts,
        n_experts=traces[0].n_experts,
        k=traces[0].k,
        synthetic=any(trace.synthetic for trace in traces),
        source="merged: " + " + ".join(trace.source for trace in traces),
        warnings=_warnings(traces, left_out),
        expert_bytes=next((trace.expert_bytes for trace in traces if trace.expert_bytes), ()),
        accepted_tokens=len(traces) * n_iterations + accepts,
    )
    reads = sum(int(trace.offsets[end]) for trace, end in zip(traces, ends, strict=True))
    return Batch(merged, len(traces), left_out, reads)


def _check_stream(trace: Trace, first: Trace) -> None:
    if int(trace.kind.max()) > SPEC_FALLBACK:
        raise InputError(
            f"{trace.source} holds several positions in one iteration",
            "the decode of one stream",
            "merge the streams' own",
        )
    if (trace.layers, trace.n_experts, trace.k) != (first.layers, first.n_experts, first.k):
        raise InputError(
            f"different models: {first.source} has {_shape(first)}, {trace.source} has {_shape(trace)}",
            "streams of one model",
            "--experts, where a file does not state the experts per layer",
        )
    if trace.expert_bytes and first.expert_bytes and trace.expert_bytes != first.expert_bytes:
        raise InputError(
            f"different models: the experts of {first.source} and of {trace.source} differ in size",
            "streams of one model",
        )


def _shape(trace: Trace) -> str:
    layers = trace.layers
    return f"{len(layers)} layers ({layers[0]} to {layers[-1]}), {trace.n_experts} experts, k {trace.k}"


class _Union(NamedTuple):
    """Distinct experts of all streams: ids, and how many per (iteration, layer)."""

    experts: NDArray[np.uint16]
    widths: I64


def _union(traces: Sequence[Trace], n_iterations: int) -> _Union:
    bounds = [trace.record_bounds() for trace in traces]
    per_iteration = sum(trace.n_accesses / trace.n_iterations for trace in traces)
    step = max(1, int(_BLOCK_IDS / per_iteration))
    parts = []
    for start in range(0, n_iterations, step):
        stop = min(start + step, n_iterations)
        rows = [slice(int(bound[start]), int(bound[stop])) for bound in bounds]
        parts.append(_block(traces, rows, start, stop - start))
    return _Union(np.concatenate([one.experts for one in parts]), np.concatenate([one.widths for one in parts]))


def _block(traces: Sequence[Trace], rows: Sequence[slice], start: int, count: int) -> _Union:
    """Merge some iterations; ``rows`` are their records in each stream."""
    layers = np.array(traces[0].layers)
    keys = []
    for trace, part in zip(traces, rows, strict=True):
        offsets = trace.offsets[part.start : part.stop + 1].astype(np.int64)
        place = (trace.iteration[part].astype(np.int64) - start) * len(layers) + np.searchsorted(
            layers, trace.layer[part]
        )
        experts = trace.experts[offsets[0] : offsets[-1]]
        keys.append(np.repeat(place << 16, np.diff(offsets)) | experts)
    found, first = np.unique(np.concatenate(keys), return_index=True)
    place = found >> 16
    order = np.lexsort((first, place))
    return _Union((found & 0xFFFF).astype(np.uint16)[order], np.bincount(place, minlength=count * len(layers)))


def _warnings(traces: Sequence[Trace], left_out: Sequence[int]) -> list[str]:
    said = [f"{trace.source}: {one}" for trace in traces for one in trace.warnings]
    for trace, count in zip(traces, left_out, strict=True):
        if count:
            said.append(f"{trace.source}: its last {count} iterations were left out, after the shortest stream's end")
        if trace.prefill is not None:
            said.append(f"{trace.source}: its prefill was left out")
    return said
