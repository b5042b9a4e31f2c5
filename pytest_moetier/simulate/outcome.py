"""What a policy did at one budget: hits, misses, and what the misses read, with everything the figures depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_moetier.simulate.budget import Room
from pytest_moetier.simulate.window import Window
from pytest_moetier.simulate.workload import I64, U64, Workload, widths_of

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What one policy did with one budget in the scored window.

    Attributes:
        policy: its name.
        room: the budget, and what it is in this workload.
        allocation: ``global`` or ``layer``.
        semantics: how events are replayed.
        window: which iterations warmed and which were scored.
        order: how ids stand within a pass, in words.
        synthetic: the trace was made by a generator.
        source: where the trace comes from.
        table: what a static policy's table was trained on; empty for others.
        accesses: expert reads scored.
        hits: how many of them hit.
        miss_bytes: what the misses read; None where the size of an expert is not known.
        iterations: iterations scored.
        accepted_tokens: tokens the user got from them.
        layer_hits: per layer; None where only totals were asked for, as the next three.
        layer_accesses: per layer.
        iteration_misses: per scored iteration.
        iteration_miss_bytes: per scored iteration; None also where the size of an expert is not known.
        hit_set: per access of the workload up to the window's end, warm ones too, whether it hit; None: not asked for.
    """

    policy: str
    room: Room
    allocation: str
    semantics: str
    window: Window
    order: str
    synthetic: bool
    source: str
    table: str
    accesses: int
    hits: int
    miss_bytes: int | None
    iterations: int
    accepted_tokens: int
    layer_hits: I64 | None = None
    layer_accesses: I64 | None = None
    iteration_misses: I64 | None = None
    iteration_miss_bytes: U64 | None = None
    hit_set: Bools | None = None

    @property
    def budget(self) -> str:
        """The budget as the user said it."""
        return self.room.budget.text

    @property
    def unit(self) -> str:
        """What ``capacity`` counts: experts or bytes."""
        return self.room.unit

    @property
    def capacity(self) -> int:
        """The capacity of each cache."""
        return self.room.each

    @property
    def misses(self) -> int:
        """Expert reads scored that did not hit."""
        return self.accesses - self.hits

    @property
    def hit_rate(self) -> float:
        """The share of the scored reads that hit."""
        return self.hits / self.accesses

    @property
    def miss_bytes_per_iteration(self) -> float | None:
        """Bytes that an iteration misses."""
        return None if self.miss_bytes is None else self.miss_bytes / self.iterations

    @property
    def miss_bytes_per_accepted_token(self) -> float | None:
        """Bytes missed for each token the user got."""
        if self.miss_bytes is None or not self.accepted_tokens:
            return None
        return self.miss_bytes / self.accepted_tokens

    def event_misses(self, workload: Workload) -> I64:
        """Return the misses of each event of the workload, up to the window's end and warm ones too.

        Raises:
            ValueError: the hit set was not asked for.
        """
        if self.hit_set is None:
            raise ValueError("an outcome without its hit set; simulate(..., hit_sets=True)")
        event = workload.cut(self.window.end).event
        hits = np.add.reduceat(self.hit_set.view(np.uint8), event[:-1].astype(np.intp), dtype=np.int64)
        return widths_of(event) - hits

    def as_json(self) -> dict[str, Any]:
        """Return the figures in plain JSON types, with what they depend on."""
        return {
            "policy": self.policy,
            "budget": self.budget,
            "unit": self.unit,
            "capacity": self.capacity,
            "caches": self.room.caches,
            "allocation": self.allocation,
            "semantics": self.semantics,
            "window": {"name": self.window.name, "warm": self.window.warm, "end": self.window.end},
            "order": self.order,
            "synthetic": self.synthetic,
            "table": self.table,
            "accesses": self.accesses,
            "hits": self.hits,
            "misses": self.misses,
            "hit_rate": self.hit_rate,
            "iterations": self.iterations,
            "accepted_tokens": self.accepted_tokens,
            "misses_per_iteration": self.misses / self.iterations,
            "misses_per_accepted_token": self.misses / self.accepted_tokens if self.accepted_tokens else None,
            "miss_bytes": self.miss_bytes,
            "miss_bytes_per_iteration": self.miss_bytes_per_iteration,
            "miss_bytes_per_accepted_token": self.miss_bytes_per_accepted_token,
            "layer_hits": None if self.layer_hits is None else self.layer_hits.tolist(),
            "layer_accesses": None if self.layer_accesses is None else self.layer_accesses.tolist(),
        }
