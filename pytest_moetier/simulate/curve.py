"""Policies over a plan: nominal misses of exact LRU for every capacity, and Belady's bound (paper section 4).

The work is native (``pytest_moetier._sim``); this module gives it numpy arrays and names what comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pytest_moetier import _sim
from pytest_moetier.errors import InputError
from pytest_moetier.units import PAGE_BYTES

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]

FIRST_TOUCH = np.uint64(2**64 - 1)
"""The distance of an access whose expert was never touched before: a miss at every capacity."""


class Planned(Protocol):
    """What a simulation needs of a plan."""

    @property
    def sequence(self) -> U32:
        """Per access, the index of its expert."""

    @property
    def expert_bytes(self) -> U64:
        """Per expert, its size."""

    @property
    def iterations(self) -> U64:
        """First access of each iteration; the last entry is the number of accesses."""


@dataclass(frozen=True, slots=True)
class LruCurve:
    """Exact LRU over one pass, for every capacity at once (Mattson's stack distances, in bytes).

    An access hits iff its distance is at most the capacity. Between those steps the missed bytes are interpolated: an
    access of w bytes at distance d misses all of w at capacity d - w, none at d, and linearly less between. With
    experts of one size that is the straight line between whole-expert counts. With mixed sizes it is the same rule
    access by access: exact where no access has its distance within one expert above the capacity, and otherwise a
    reading in which the last expert that fits only in part is held in part.

    Attributes:
        distance_bytes: per access, bytes of the distinct experts touched since, and including, its expert's previous
            touch; ``FIRST_TOUCH`` where there is none.
        access_bytes: per access, the bytes it reads.
        iterations: first access of each iteration; the last entry is the number of accesses.
    """

    distance_bytes: U64
    access_bytes: U64
    iterations: U64
    _sorted_distances: U64 = field(init=False, repr=False, compare=False)
    _knots: U64 = field(init=False, repr=False, compare=False)
    _knot_misses: F64 = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Sort once, so that each capacity costs one binary search."""
        sorted_distances = np.sort(self.distance_bytes)
        seen = self.distance_bytes != FIRST_TOUCH
        full = sorted_distances[: int(np.count_nonzero(seen))]
        none = np.sort(self.distance_bytes[seen] - self.access_bytes[seen])
        # Between two knots the curve falls by as many bytes per byte as accesses are held in part there.
        knots = np.sort(np.concatenate([full, none]))
        knots = knots[np.concatenate([np.ones(min(len(knots), 1), dtype=bool), knots[1:] != knots[:-1]])]
        held_in_part = np.searchsorted(none, knots, side="right") - np.searchsorted(full, knots, side="right")
        falls = held_in_part[:-1] * np.diff(knots).astype(np.int64)
        never = int(self.access_bytes[~seen].sum())
        misses = never + np.concatenate([np.cumsum(falls[::-1])[::-1], np.zeros(1, dtype=np.int64)])
        object.__setattr__(self, "_sorted_distances", sorted_distances)
        object.__setattr__(self, "_knots", knots if len(knots) else np.zeros(1, dtype=np.uint64))
        object.__setattr__(self, "_knot_misses", misses.astype(np.float64))

    @property
    def total_bytes(self) -> int:
        """Bytes of all accesses: what a cache of no size misses."""
        return int(self.access_bytes.sum())

    def miss_bytes(self, capacity_bytes: float) -> float:
        """Return the bytes that LRU of this capacity misses over the pass, interpolated as the class says.

        Raises:
            InputError: the capacity is negative or not a number.
        """
        return float(self.miss_bytes_curve([capacity_bytes])[0])

    def miss_bytes_curve(self, capacities_bytes: npt.ArrayLike) -> F64:
        """Return ``miss_bytes`` for each capacity.

        Raises:
            InputError: a capacity is negative or not a number.
        """
        return np.interp(_checked(capacities_bytes), self._knots.astype(np.float64), self._knot_misses)

    def misses(self, capacities_bytes: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return for each capacity the number of accesses whose distance exceeds it: whole accesses, no interpolation.

        Raises:
            InputError: a capacity is negative or not a number.
        """
        whole = np.floor(_checked(capacities_bytes)).astype(np.uint64)
        hits = np.searchsorted(self._sorted_distances, whole, side="right")
        return np.asarray(len(self._sorted_distances) - hits, dtype=np.int64)

    def miss_bytes_by_iteration(self, capacity_bytes: float) -> F64:
        """Return the missed bytes of each iteration at one capacity; their sum is ``miss_bytes`` of it.

        Raises:
            InputError: the capacity is negative or not a number.
        """
        capacity = _checked(capacity_bytes)
        beyond = np.maximum(self.distance_bytes.astype(np.float64) - capacity, 0.0)
        missed = np.minimum(beyond, self.access_bytes.astype(np.float64))
        upto = np.concatenate([np.zeros(1), np.cumsum(missed)])
        return np.diff(upto[self.iterations.astype(np.intp)])


def lru_curve(plan: Planned) -> LruCurve:
    """Return exact LRU over the plan run twice, the second pass scored.

    The accesses are taken in the plan's order, in one cache for all layers.

    Raises:
        InputError: the plan's arrays do not fit together.
    """
    sequence, sizes = _arrays(plan)
    distances = np.empty(len(sequence), dtype=np.uint64)
    try:
        _sim.lru_distances(sequence, sizes, distances, passes=2)
    except ValueError as error:
        raise InputError(f"the plan cannot be simulated: {error}") from error
    return LruCurve(distances, sizes[sequence], np.ascontiguousarray(plan.iterations, dtype=np.uint64))


def belady_page_bound(plan: Planned, resident_bytes: int, page_bytes: int = PAGE_BYTES) -> int:
    """Return the fewest bytes that any cache holding ``resident_bytes`` reads from the device over one pass.

    Belady's MIN over pages: an expert may be held in part, a page may be passed through without being kept, and the
    cache starts with whatever serves it best. So no kernel, policy or warm state can read less, in the plan's order.
    Only whole pages are counted, as an expert's last part of a page may come with its neighbour's.

    Args:
        plan: the accesses of the pass.
        resident_bytes: the most the cache held at any time of the pass, rounded up to pages.
        page_bytes: what is read and held as one.

    Raises:
        InputError: a size is negative, or the plan's arrays do not fit together.
    """
    if resident_bytes < 0 or page_bytes < 1:
        raise InputError(f"a cache of {resident_bytes} bytes in pages of {page_bytes} bytes", "sizes above zero")
    sequence, sizes = _arrays(plan)
    pages = -(-resident_bytes // page_bytes)
    try:
        missed = _sim.belady_missed_pages(sequence, sizes // np.uint64(page_bytes), min(pages, 2**64 - 1))
    except (ValueError, OverflowError) as error:
        raise InputError(f"the plan cannot be simulated: {error}") from error
    return missed * page_bytes


def _arrays(plan: Planned) -> tuple[U32, U64]:
    """Return the sequence and sizes as the extension takes them, without a copy when they already are."""
    return (
        np.ascontiguousarray(plan.sequence, dtype=np.uint32),
        np.ascontiguousarray(plan.expert_bytes, dtype=np.uint64),
    )


def _checked(capacities_bytes: npt.ArrayLike) -> F64:
    """Return capacities as floats, exact below 2^53 bytes (9 PB)."""
    capacities = np.asarray(capacities_bytes, dtype=np.float64)
    if not np.all(capacities >= 0):
        raise InputError(f"a capacity of {capacities.min()} bytes", "zero or more")
    return capacities
