"""How much of what the page cache holds is what exact LRU, and Belady's optimum, would hold in the same bytes.

Amplification says how many bytes a kernel reads beside exact LRU (paper section 4), not whether it keeps the same
experts. Here the two are compared expert by expert, at the end of the measured pass.

Sets have equal bytes, and an expert may stand in a set in part. Which of its bytes is not asked: of an expert that two
sets hold, the smaller holding is common to both.

- LRU: the experts used last, the last of them first, as long as they fit; the one that no longer fits is held in part.
  Nothing behind it is.
- Belady: MIN with bypass over single bytes, from an empty cache, over the plan replayed as often as it was. Its future
  is the next replay: what goes is what that, or the rest of this one, uses last. Bytes are all of one size, so this is
  MIN itself for pools with experts of several sizes too, and not a heuristic; some experts are then held in part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_moetier import _sim
from pytest_moetier.errors import AccountingError, InputError
from pytest_moetier.simulate import Planned

U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Fidelity:
    """What is resident, and how far it is what a policy would hold in the same bytes.

    The shares are of the resident bytes, or of those of LRU's set; None where nothing is resident or nothing is read.
    A page that two experts share counts for both.

    Attributes:
        resident_bytes: bytes of experts in the page cache.
        unread_bytes: of them, those of experts that the plan never reads (read-ahead, another reader): no policy that
            is compared here holds them.
        whole_experts: experts that are resident to the last byte.
        partial_experts: experts that are resident in part.
        partial_bytes: the resident bytes of these.
        lru_overlap: share that lies in the set of exact LRU.
        belady_overlap: share that lies in the set of Belady's MIN, which knows the next replay.
        lru_belady_overlap: share of LRU's set that lies in Belady's: the yardstick of ``belady_overlap``.
        random_overlap: share that any of these sets has in common with bytes of experts of the plan taken at random, as
            many, on average: what an overlap is by chance.
    """

    resident_bytes: int
    unread_bytes: int
    whole_experts: int
    partial_experts: int
    partial_bytes: int
    lru_overlap: float | None
    belady_overlap: float | None
    lru_belady_overlap: float | None
    random_overlap: float | None


def fidelity_of(plan: Planned, resident_bytes: U64, passes: int = 2) -> Fidelity:
    """Return how much of what is resident is what exact LRU, and Belady's optimum, would hold in the same bytes.

    Args:
        plan: what was replayed.
        resident_bytes: u64 per expert of the plan, in its order: its bytes in the page cache after the last pass.
        passes: how often the plan was replayed until then, from an empty cache.

    Raises:
        AccountingError: the residency is not one of this plan's experts.
        InputError: the plan's arrays do not fit together, or it was replayed less than once.
    """
    sizes = plan.expert_bytes
    _check(resident_bytes, sizes)
    total = int(resident_bytes.sum())
    belady, lru = belady_content(plan, total, passes), lru_content(plan, total)
    read = np.zeros(len(sizes), dtype=np.bool_)
    read[plan.sequence] = True
    partial = (resident_bytes > 0) & (resident_bytes < sizes)
    held = int(lru.sum())  # Belady's set has as many: all that is read, at most
    told = held > 0
    return Fidelity(
        resident_bytes=total,
        unread_bytes=int(resident_bytes[~read].sum()),
        whole_experts=int(((resident_bytes > 0) & ~partial).sum()),
        partial_experts=int(partial.sum()),
        partial_bytes=int(resident_bytes[partial].sum()),
        lru_overlap=_common(resident_bytes, lru) / total if told else None,
        belady_overlap=_common(resident_bytes, belady) / total if told else None,
        lru_belady_overlap=_common(lru, belady) / held if told else None,
        random_overlap=held / int(sizes[read].sum()) if told else None,
    )


def lru_content(plan: Planned, capacity_bytes: int) -> U64:
    """Return the bytes of each expert that exact LRU holds after the plan was replayed, however often.

    The experts are taken from the one used last backwards, as long as they fit; the next one fills the rest.

    Raises:
        InputError: the capacity is negative.
    """
    capacity = np.uint64(_capacity(capacity_bytes))
    _, behind = np.unique(plan.sequence[::-1], return_index=True)
    recent = plan.sequence[::-1][np.sort(behind)]
    sizes = plan.expert_bytes[recent]
    upto = np.minimum(np.cumsum(sizes), capacity)
    held = np.zeros(len(plan.expert_bytes), dtype=np.uint64)
    held[recent] = np.diff(upto, prepend=np.uint64(0))
    return held


def belady_content(plan: Planned, capacity_bytes: int, passes: int) -> U64:
    """Return the bytes of each expert that Belady's MIN holds after the plan was replayed ``passes`` times.

    It starts empty, may hold an expert in part and pass bytes through without keeping them, and knows that the plan is
    replayed once more; what it holds is the same if that goes on for ever.

    Raises:
        InputError: the plan's arrays do not fit together, it is replayed less than once, or the capacity is negative.
    """
    capacity = _capacity(capacity_bytes)
    held = np.empty(len(plan.expert_bytes), dtype=np.uint64)
    sequence = np.ascontiguousarray(plan.sequence, dtype=np.uint32)
    sizes = np.ascontiguousarray(plan.expert_bytes, dtype=np.uint64)
    try:
        _sim.belady_content(sequence, sizes, capacity, held, passes)
    except (ValueError, OverflowError) as error:
        raise InputError(f"the plan cannot be simulated: {error}") from error
    return held


def _capacity(capacity_bytes: int) -> int:
    """Return the capacity, or what is more than all experts of any plan."""
    if capacity_bytes < 0:
        raise InputError(f"a cache of {capacity_bytes} bytes", "zero or more")
    return min(capacity_bytes, 2**63)


def _check(resident_bytes: U64, sizes: U64) -> None:
    if len(resident_bytes) != len(sizes):
        raise AccountingError(
            f"the resident bytes of {len(resident_bytes)} experts",
            f"those of {len(sizes)}, as the plan has",
        )
    beyond = np.flatnonzero(resident_bytes > sizes)
    if len(beyond):
        at = int(beyond[0])
        raise AccountingError(
            f"{resident_bytes[at]} bytes of expert {at} of the plan are resident", f"at most its size, {sizes[at]}"
        )


def _common(one: U64, other: U64) -> int:
    return int(np.minimum(one, other).sum())
