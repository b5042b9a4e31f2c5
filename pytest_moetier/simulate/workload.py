"""What caches are simulated over: the accesses of a trace, and what one miss costs (paper section 3).

An access is one expert read; an object is a (layer, expert), numbered ``layer_index * n_experts + expert``; an event is
one record of the trace: what one layer looks up together. How an event is replayed is the *semantics*:

- ``per-access``: its ids one after another in the order issued; a miss is admitted, and something evicted, before the
  next one. An id that stands twice in a record (two positions chose it) is two accesses.
- ``event-atomic``: one lookup for each distinct expert, all against the state at the event's start. Then all are
  touched, in the order of their last occurrence in the record; then eviction, down to the capacity and never of what
  the event touched: an event larger than the cache leaves exactly itself. Published tables of llama.cpp traces come
  out so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pytest_moetier.errors import InputError
from pytest_moetier.simulate.curve import LruCurve, lru_curve
from pytest_moetier.trace.records import ORDERS, SPEC_ACCEPT, Trace

U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_Number = TypeVar("_Number", bound=np.generic)

PER_ACCESS, EVENT_ATOMIC = "per-access", "event-atomic"
SEMANTICS = (PER_ACCESS, EVENT_ATOMIC)
PREFILL = ("none", "before")


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """The accesses of a trace, as caches see them.

    Attributes:
        key: u32 per access, its object.
        event: u64, the first access of each event, and the number of accesses.
        event_iteration: u32 per event, not falling; the prompt's iterations, where it is in, come first.
        event_layer: u16 per event, the index of its layer.
        layer_bytes: the size of one expert of each layer; empty where it is not known.
        n_layers: layers.
        n_experts: experts per layer.
        k: experts a pass.
        n_iterations: iterations of the prompt and of the decode.
        n_prefill: how many of them are the prompt's.
        accepted: u32 per iteration, the tokens the user got from it; the prompt's yield none.
        layers: the numbers of the layers in the source.
        semantics: one of ``SEMANTICS``.
        order: how ids stand within a pass, in words.
        synthetic: made by a generator.
        source: where the trace comes from.
    """

    key: U32
    event: U64
    event_iteration: U32
    event_layer: U16
    layer_bytes: tuple[int, ...]
    n_layers: int
    n_experts: int
    k: int
    n_iterations: int
    n_prefill: int
    accepted: U32
    layers: tuple[int, ...]
    semantics: str
    order: str
    synthetic: bool
    source: str

    @property
    def n_accesses(self) -> int:
        """The number of expert reads."""
        return len(self.key)

    @property
    def n_objects(self) -> int:
        """The experts of all layers: what the pool holds."""
        return self.n_layers * self.n_experts

    @property
    def uniform(self) -> bool:
        """Whether every expert is of one size, as far as sizes are known."""
        return len(set(self.layer_bytes)) <= 1

    @property
    def object_bytes(self) -> U64:
        """The size of each object; empty where sizes are not known."""
        sizes = np.array(self.layer_bytes, dtype=np.uint64)
        return np.repeat(sizes, self.n_experts)

    @property
    def pool_bytes(self) -> int:
        """The bytes of all experts; 0 where sizes are not known."""
        return sum(self.layer_bytes) * self.n_experts

    @property
    def cycle_experts(self) -> int:
        """What one pass through all layers reads: the one-token cycle."""
        return self.n_layers * self.k

    @property
    def cycle_bytes(self) -> int:
        """The bytes of the one-token cycle; 0 where sizes are not known."""
        return sum(self.layer_bytes) * self.k

    @property
    def shape(self) -> str:
        """The model's shape in words, for messages."""
        return f"{self.n_layers} layers ({self.layers[0]} to {self.layers[-1]}), {self.n_experts} experts, k {self.k}"

    def cut(self, n_decode: int) -> Workload:
        """Return the workload without the decode iterations from ``n_decode`` on."""
        keep = self.n_prefill + n_decode
        if keep >= self.n_iterations:
            return self
        events = int(np.searchsorted(self.event_iteration, keep))
        return replace(
            self,
            key=self.key[: int(self.event[events])],
            event=self.event[: events + 1],
            event_iteration=self.event_iteration[:events],
            event_layer=self.event_layer[:events],
            n_iterations=keep,
            accepted=self.accepted[:keep],
        )

    def iteration_bounds(self) -> U64:
        """Return the first access of each iteration, and the number of accesses."""
        events = np.searchsorted(self.event_iteration, np.arange(self.n_iterations + 1, dtype=np.uint32))
        bounds: U64 = self.event[events]
        return bounds

    def nominal(self) -> LruCurve:
        """Return exact LRU for every capacity over two passes of the accesses, the second scored: the demand model.

        Raises:
            InputError: the size of an expert is not known.
        """
        if not self.layer_bytes:
            raise InputError(f"{self.source} does not state the size of an expert", "a size", "--expert-bytes SIZE")
        return lru_curve(_Pass(self.key, self.object_bytes, self.iteration_bounds()))


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """The accesses as ``lru_curve`` takes them."""

    sequence: U32
    expert_bytes: U64
    iterations: U64


def workload(
    trace: Trace,
    semantics: str = PER_ACCESS,
    *,
    expert_bytes: int | Sequence[int] | None = None,
    prefill: str = "none",
    accepted: Sequence[int] | None = None,
) -> Workload:
    """Return the accesses of a trace.

    Args:
        trace: a validated trace.
        semantics: one of ``SEMANTICS``.
        expert_bytes: the size of an expert, or one per layer, of a trace that does not state it.
        prefill: ``none`` leaves the prompt out; ``before`` puts it before the first decode iteration.
        accepted: tokens per decode iteration; default: as the records' kinds say, and merged streams' in equal parts.

    Raises:
        InputError: an unknown word, sizes that do not fit the trace, or no prompt to put before.
    """
    _one_of(semantics, SEMANTICS, "semantics")
    _one_of(prefill, PREFILL, "--prefill")
    if prefill == "before" and trace.prefill is None:
        raise InputError(f"{trace.source} has no prefill", "a trace with its prompt, or --prefill none")
    prompt = trace.prefill if prefill == "before" else None
    n_prefill = prompt.n_iterations if prompt else 0
    parts = [_columns(one, trace, semantics) for one in (prompt, trace) if one is not None]
    iterations = [one.iteration for one in (prompt, trace) if one is not None]
    iterations[-1] = iterations[-1] + np.uint32(n_prefill)
    widths = np.concatenate([np.zeros(1, dtype=np.int64), *(one[1] for one in parts)])
    return Workload(
        key=_joined([one[0] for one in parts]),
        event=np.cumsum(widths).astype(np.uint64),
        event_iteration=_joined(iterations).astype(np.uint32, copy=False),
        event_layer=_joined([one[2] for one in parts]),
        layer_bytes=_sizes(trace, expert_bytes),
        n_layers=len(trace.layers),
        n_experts=trace.n_experts,
        k=trace.k,
        n_iterations=n_prefill + trace.n_iterations,
        n_prefill=n_prefill,
        accepted=np.concatenate([np.zeros(n_prefill, dtype=np.uint32), _accepted(trace, accepted)]),
        layers=trace.layers,
        semantics=semantics,
        order=ORDERS[trace.order],
        synthetic=trace.synthetic,
        source=trace.source,
    )


def _one_of(word: str, words: Sequence[str], name: str) -> None:
    if word not in words:
        raise InputError(f"{name} {word!r}", "one of " + ", ".join(words))


def _joined(parts: Sequence[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def widths_of(bounds: U64) -> I64:
    """Return the number of accesses between each two bounds."""
    wide = bounds.astype(np.int64)
    widths: I64 = wide[1:] - wide[:-1]
    return widths


def _columns(part: Trace, trace: Trace, semantics: str) -> tuple[U32, I64, U16]:
    """Return the objects of a part's accesses, the accesses of each of its events, and the events' layers."""
    layer = np.searchsorted(trace.layers, part.layer).astype(np.uint16)
    widths = widths_of(part.offsets)
    key: U32 = np.repeat(layer.astype(np.uint32) * np.uint32(trace.n_experts), widths)
    key += part.experts
    if semantics == PER_ACCESS or not bool((widths > part.k).any()):  # a pass names no expert twice
        return key, widths, layer
    kept, counts = _last_occurrences(key, widths)
    return key[kept], counts, layer


def _last_occurrences(key: U32, widths: I64) -> tuple[I64, I64]:
    """Return the accesses that are the last of their object in their event, in order, and their number per event."""
    owner = np.repeat(np.arange(len(widths), dtype=np.int64), widths)
    order = np.lexsort((key, owner))
    same = (owner[order][1:] == owner[order][:-1]) & (key[order][1:] == key[order][:-1])
    last = np.ones(len(key), dtype=bool)
    last[order[:-1][same]] = False  # the sort is stable: the one behind it occurs later
    kept = np.flatnonzero(last)
    return kept, np.bincount(owner[kept], minlength=len(widths))


def _sizes(trace: Trace, given: int | Sequence[int] | None) -> tuple[int, ...]:
    if given is None:
        sizes = tuple(trace.expert_bytes)
    else:
        sizes = (given,) * len(trace.layers) if isinstance(given, int) else tuple(given)
        if trace.expert_bytes and sizes != tuple(trace.expert_bytes):
            raise InputError(
                f"{trace.source} states the sizes of its experts ({trace.expert_bytes[0]} bytes in its first layer), "
                f"and others are given ({sizes[0] if sizes else 'none'})",
                "the same, or none given",
            )
    if sizes and len(sizes) != len(trace.layers):
        raise InputError(
            f"{len(sizes)} expert sizes for the {len(trace.layers)} layers of {trace.source}", "one for each layer"
        )
    lacking = [layer for layer, size in zip(trace.layers, sizes, strict=False) if size < 1]
    if lacking:
        raise InputError(
            f"no size is known for the experts of layer {lacking[0]} of {trace.source}",
            "a size above zero for each layer",
            "--expert-bytes SIZE, or one SIZE per layer with commas between",
        )
    return sizes


def _accepted(trace: Trace, given: Sequence[int] | None) -> U32:
    if given is not None:
        tokens: U32 = np.asarray(given, dtype=np.uint32)
        if len(tokens) != trace.n_iterations or int(tokens.sum()) != trace.accepted_tokens:
            raise InputError(
                f"{int(tokens.sum())} accepted tokens over {len(tokens)} iterations",
                f"{trace.accepted_tokens} over {trace.n_iterations}, as {trace.source} has",
            )
        return tokens
    tokens = np.uint32(1) + (trace.kind[trace.record_bounds()[:-1]] == SPEC_ACCEPT).astype(np.uint32)
    if int(tokens.sum()) == trace.accepted_tokens:
        return tokens
    upto = np.arange(trace.n_iterations + 1, dtype=np.int64) * trace.accepted_tokens // trace.n_iterations
    return (upto[1:] - upto[:-1]).astype(np.uint32)
