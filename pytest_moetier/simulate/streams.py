"""A workload as independent caches see it: one stream for a global cache, one for each layer's own."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pytest_moetier import _sim
from pytest_moetier.errors import InputError
from pytest_moetier.simulate.window import Window
from pytest_moetier.simulate.workload import I64, PER_ACCESS, U16, U32, U64, Workload, widths_of

U8 = npt.NDArray[np.uint8]

GLOBAL, LAYER = "global", "layer"
ALLOCATIONS = (GLOBAL, LAYER)


@dataclass(frozen=True, slots=True, eq=False)
class Streams:
    """Accesses, cache after cache, each beginning empty.

    Attributes:
        key: u32 per access, its object.
        segments: u64, the first access of each cache, and the number of accesses.
        bounds: u64, the first access of each event, and the number of accesses.
        event_layer: per event, the index of its layer.
        event_iteration: per event, its iteration.
        score_from: u64 per cache, its first scored access.
        order: per access, its place in the workload; None: the same, or not asked for.
        start: where this part begins in the whole.
    """

    key: U32
    segments: U64
    bounds: U64
    event_layer: U16
    event_iteration: U32
    score_from: U64
    order: I64 | None
    start: int = 0

    def events(self, semantics: str) -> U64 | None:
        """Return the events as the native functions take them."""
        return None if semantics == PER_ACCESS else self.bounds

    def distances(self, semantics: str, sizes: U64 | None, stop: U8 | None = None) -> U32 | U64:
        """Return the capacity from which on LRU hits, per access; the type's highest value at a first touch."""
        distance: U32 | U64 = np.empty(len(self.key), np.uint32)
        if sizes is not None:
            distance = np.empty(len(self.key), np.uint64)
        _sim.lru_stack(self.key, self.segments, self.events(semantics), sizes, distance, stop)
        return distance

    def part(self, first: int, last: int) -> Streams:
        """Return caches ``first`` to ``last - 1`` alone."""
        begin, end = self.segments[first], self.segments[last]
        if int(begin) == 0 and int(end) == len(self.key):
            return self
        low, high = np.searchsorted(self.bounds, [begin, end])
        return Streams(
            key=self.key[int(begin) : int(end)],
            segments=self.segments[first : last + 1] - begin,
            bounds=self.bounds[low : high + 1] - begin,
            event_layer=self.event_layer[low:high],
            event_iteration=self.event_iteration[low:high],
            score_from=self.score_from[first:last] - begin,
            order=self.order,
            start=int(begin),
        )

    def parts(self, count: int) -> list[Streams]:
        """Return the caches in at most ``count`` parts of about as many accesses, none of them empty."""
        wanted = np.linspace(0, len(self.key), count + 1)[1:-1].astype(np.uint64)
        cuts = np.unique(np.concatenate([[0], np.searchsorted(self.segments, wanted), [len(self.segments) - 1]]))
        found = [self.part(first, last) for first, last in pairwise(cuts.tolist())]
        return [one for one in found if len(one.key)]


def streams(workload: Workload, window: Window, allocation: str, *, ordered: bool = False) -> Streams:
    """Return the accesses of a workload up to the window's end, for one cache or for one of each layer.

    Args:
        workload: the accesses.
        window: which of them are scored.
        allocation: of ``ALLOCATIONS``.
        ordered: keep each access's place in the workload, eight bytes each.

    Raises:
        InputError: an unknown allocation.
    """
    if allocation not in ALLOCATIONS:
        raise InputError(f"--allocation {allocation}", "one of " + ", ".join(ALLOCATIONS))
    kept = workload.cut(window.end)
    first = int(np.searchsorted(kept.event_iteration, window.first))
    if allocation == GLOBAL:
        ends = np.array([0, kept.n_accesses], dtype=np.uint64)
        score_from = kept.event[first : first + 1].copy()
        return Streams(kept.key, ends, kept.event, kept.event_layer, kept.event_iteration, score_from, None)
    return _by_layer(kept, first, ordered=ordered)


def _by_layer(kept: Workload, first: int, *, ordered: bool) -> Streams:
    """Bring events into layer-major order; ``first`` is the first scored one."""
    widths = widths_of(kept.event)
    by_layer = np.argsort(kept.event_layer, kind="stable")
    bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(widths[by_layer])])
    even = int(widths[0]) if bool((widths == widths[0]).all()) else 0
    order = None
    if ordered or not even:
        shift = kept.event[:-1].astype(np.int64)[by_layer] - bounds[:-1]
        order = np.arange(kept.n_accesses, dtype=np.int64)
        order += np.repeat(shift, widths[by_layer])
    per_layer = np.searchsorted(kept.event_layer[by_layer], np.arange(kept.n_layers + 1))
    warm = np.bincount(kept.event_layer[:first], minlength=kept.n_layers)
    return Streams(
        key=kept.key[order] if order is not None else kept.key.reshape(-1, even)[by_layer].reshape(-1),
        segments=bounds[per_layer].astype(np.uint64),
        bounds=bounds.astype(np.uint64),
        event_layer=kept.event_layer[by_layer],
        event_iteration=kept.event_iteration[by_layer],
        score_from=bounds[per_layer[:-1] + warm].astype(np.uint64),
        order=order if ordered else None,
    )
