"""Tables of pinned experts, best first: by how often a trace chose them (paper section 6).

A table of the very accesses that are replayed is an oracle, which no deployment has; it is labelled so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pytest_moetier.errors import InputError
from pytest_moetier.lists import ORACLE, TABLE, Lists
from pytest_moetier.plan import Plan

TRAIN_SHARE: Final = 0.6
"""Share of the iterations that a table of the trace's own past is trained on: the paper's fair window (section 3)."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A list file's content, and what is said of it wherever its result is shown.

    Attributes:
        lists: a table of experts, or the lists of what is read ahead.
        words: what it was made from.
    """

    lists: Lists
    words: str

    @property
    def oracle(self) -> bool:
        """It knows what will be read."""
        return bool(self.lists.flags & ORACLE)


def own_table(plan: Plan) -> Listed:
    """Return the table of the plan itself: an oracle."""
    return _table(plan, plan.sequence, "oracle table: the replayed trace's own counts", ORACLE)


def train_table(plan: Plan) -> Listed:
    """Return the table of the plan's first 60% of iterations.

    Raises:
        InputError: fewer than two iterations.
    """
    iterations = int(plan.n_iterations * TRAIN_SHARE)
    if not iterations:
        raise InputError(
            f"{plan.n_iterations} iteration",
            "2 or more, to train a table on the first 60%",
            "a longer trace, or --moetier-iterations with more",
        )
    words = f"table of the first {iterations} of {plan.n_iterations} iterations"
    return _table(plan, plan.sequence[: int(plan.iterations[iterations])], words)


def domain_table(plan: Plan, other: Plan, domain: str) -> Listed:
    """Return the table of another trace's plan over the same pool.

    Raises:
        InputError: the other plan is of another pool.
    """
    if (plan.pool_id, plan.n_experts) != (other.pool_id, other.n_experts):
        raise InputError("the other domain's plan is of another pool", "two plans over one pool")
    return _table(plan, other.sequence, f"table of another domain: {domain}")


def _table(plan: Plan, sequence: np.ndarray[tuple[int], np.dtype[np.uint32]], words: str, flags: int = 0) -> Listed:
    counts = np.bincount(sequence, minlength=plan.n_experts)
    ranked = np.argsort(-counts, kind="stable").astype(np.uint32)
    ids = ranked[counts[ranked] > 0]
    return Listed(
        Lists(
            kind=TABLE,
            flags=flags,
            pool_id=plan.pool_id,
            n_experts=plan.n_experts,
            n_accesses=0,
            sequence_crc=0,
            offsets=np.array([0, len(ids)], np.uint64),
            triggers=np.zeros(1, np.uint64),
            ids=ids,
        ),
        words,
    )
