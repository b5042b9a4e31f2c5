"""What a miss was, and what a table or a batch costs: the questions behind a hit rate (paper sections 3, 6 and 7).

"Is it the policy or the working set?" Every miss is one of three: *compulsory*, the first read of its expert, which no
cache avoids; *capacity*, which Belady's rule misses too at this budget; *policy*, which Belady would have hit. What LRU
misses beyond Belady is the headroom of advice: more than that no hint can save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from pytest_moetier.errors import InputError
from pytest_moetier.simulate.budget import Budget
from pytest_moetier.simulate.outcome import Bools, Outcome
from pytest_moetier.simulate.policies import Progress, simulate
from pytest_moetier.simulate.static import Table, trained
from pytest_moetier.simulate.streams import GLOBAL, streams
from pytest_moetier.simulate.window import Window
from pytest_moetier.simulate.window import window as window_of
from pytest_moetier.simulate.workload import I64, PER_ACCESS, Workload, workload
from pytest_moetier.trace.batch import merge
from pytest_moetier.trace.records import Trace

Budgets = Sequence[Budget | str]


@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """The misses of a policy at one budget, by what would have avoided them.

    Attributes:
        outcome: what the policy did.
        belady: what Belady's rule did in the same window.
        compulsory: misses that are the first read of their expert.
        capacity: other misses that Belady has too.
        policy: misses where Belady would have hit.
        compulsory_bytes: what they read; None where the size of an expert is not known, as the next two.
        capacity_bytes: likewise.
        policy_bytes: likewise.
    """

    outcome: Outcome
    belady: Outcome
    compulsory: int
    capacity: int
    policy: int
    compulsory_bytes: int | None
    capacity_bytes: int | None
    policy_bytes: int | None

    @property
    def headroom(self) -> float:
        """The share of the misses that the policy has beyond Belady's: what advice could save at most."""
        return (self.outcome.misses - self.belady.misses) / self.outcome.misses if self.outcome.misses else 0.0

    def share(self, misses: int) -> float:
        """Return what part of the misses these are."""
        return misses / self.outcome.misses if self.outcome.misses else 0.0

    @property
    def sentence(self) -> str:
        """The answer in words."""
        done = self.outcome
        if not done.misses:
            return f"{done.policy} at {done.budget} misses nothing."
        most = max(self.compulsory, self.capacity, self.policy)
        if most == self.compulsory:
            verdict = "neither policy nor size: most misses are first reads, which no cache avoids"
        elif most == self.capacity:
            verdict = "the working set: a larger cache helps, another policy does little"
        else:
            verdict = "the policy: at this budget a better choice of what to evict helps most"
        return (
            f"{done.policy} at {done.budget} misses {done.misses / done.accesses:.1%}: of these misses "
            f"{self.share(self.compulsory):.1%} are first reads, {self.share(self.capacity):.1%} Belady misses too, "
            f"{self.share(self.policy):.1%} Belady would have hit. It is {verdict}."
        )

    def as_json(self) -> dict[str, Any]:
        """Return the figures in plain JSON types."""
        named = {"compulsory": self.compulsory, "capacity": self.capacity, "policy": self.policy}
        read = (self.compulsory_bytes, self.capacity_bytes, self.policy_bytes)
        return {
            "policy": self.outcome.policy,
            "budget": self.outcome.budget,
            "misses": named,
            "shares": {name: self.share(count) for name, count in named.items()},
            "bytes": dict(zip(named, read, strict=True)),
            "belady_misses": self.belady.misses,
            "headroom": self.headroom,
            "sentence": self.sentence,
        }


def diagnose(  # noqa: PLR0913  (what a simulation depends on, by keyword)
    workload: Workload,
    budgets: Budgets,
    policies: Sequence[str] = ("lru",),
    *,
    allocation: str = GLOBAL,
    window: Window | str = "fair",
    table: Table | str | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> list[Diagnosis]:
    """Return why each policy misses at each budget, policy by policy.

    Raises:
        InputError: as ``simulate``.
    """
    found = simulate(
        workload,
        [*policies, "belady"],
        budgets,
        allocation=allocation,
        window=window,
        table=table,
        threads=threads,
        hit_sets=True,
        progress=progress,
    )
    best = {id(one.room): one for one in found if one.policy == "belady"}
    kept = workload.cut(found[0].window.end)
    scored = np.arange(kept.n_accesses) >= int(kept.iteration_bounds()[found[0].window.first])
    first = np.zeros(kept.n_accesses, dtype=bool)
    first[np.unique(kept.key, return_index=True)[1]] = True
    return [_diagnosis(kept, one, best[id(one.room)], scored, first) for one in found if one.policy in policies]


def _diagnosis(kept: Workload, done: Outcome, best: Outcome, scored: Bools, first: Bools) -> Diagnosis:
    held, could = _hit_set(done), _hit_set(best)
    missed = scored & ~held
    kinds = (missed & first, missed & ~first & ~could, missed & ~first & could)
    counts = [int(np.count_nonzero(one)) for one in kinds]
    read: list[int | None] = [None] * 3
    if kept.layer_bytes:
        sizes = kept.object_bytes
        read = [int(sizes[kept.key[one]].sum()) for one in kinds]
    return Diagnosis(done, best, counts[0], counts[1], counts[2], read[0], read[1], read[2])


def _hit_set(done: Outcome) -> Bools:
    if done.hit_set is None:
        raise ValueError("an outcome without its hit set")
    return done.hit_set


@dataclass(frozen=True, slots=True)
class Floor:
    """Below what capacity LRU hits nothing.

    Attributes:
        cycle_experts: the one-token cycle: what a pass through all layers reads.
        cycle_bytes: its bytes; 0 where the size of an expert is not known.
        least: the smallest capacity of a cache at which LRU hits in the scored window; None: it hits at none.
        unit: ``experts``, or ``bytes`` where the sizes of experts differ.
    """

    cycle_experts: int
    cycle_bytes: int
    least: int | None
    unit: str


def least_lru_distance(workload: Workload, window: Window | str = "fair", allocation: str = GLOBAL) -> Floor:
    """Return the floor of LRU over the scored window, exactly, with the one-token cycle that explains it.

    Between two passes of a layer a token goes through all the others. So a global cache below about one cycle has
    evicted every expert of a layer when the layer is asked again.

    Raises:
        InputError: the window does not fit the workload.
    """
    shared = window_of(window, workload) if isinstance(window, str) else window
    whole = streams(workload, shared, allocation)
    sized = not workload.uniform
    distance = whole.distances(workload.semantics, workload.object_bytes if sized else None)
    never = 2**64 - 1 if sized else 2**32 - 1
    spans = zip(whole.score_from.tolist(), whole.segments[1:].tolist(), strict=True)
    least = min((int(distance[start:end].min()) for start, end in spans if start < end), default=never)
    unit = "bytes" if sized else "experts"
    return Floor(workload.cycle_experts, workload.cycle_bytes, None if least == never else least, unit)


@dataclass(frozen=True, slots=True, eq=False)
class OffDomain:
    """A static table of one domain on another, beside LRU there.

    Attributes:
        trained_on: the domain whose whole trace made the table.
        scored_on: the domain whose window is scored.
        static: what the table does there; trained on the domain itself it is an oracle.
        lru: what LRU does there.
    """

    trained_on: str
    scored_on: str
    static: Outcome
    lru: Outcome

    def as_json(self) -> dict[str, Any]:
        """Return the figures in plain JSON types."""
        return {
            "trained_on": self.trained_on,
            "scored_on": self.scored_on,
            "budget": self.static.budget,
            "static": self.static.hit_rate,
            "oracle": self.trained_on == self.scored_on,
            "lru": self.lru.hit_rate,
        }


def off_domain(
    workloads: Mapping[str, Workload],
    budgets: Budgets,
    *,
    allocation: str = GLOBAL,
    window: Window | str = "fair",
    threads: int = 0,
) -> list[OffDomain]:
    """Return what the table of each domain does on each, itself included, at each budget.

    Raises:
        InputError: fewer than two domains, two models, or as ``simulate``.
    """
    if len(workloads) < 2:
        raise InputError(f"{len(workloads)} domain(s)", "two or more, as DOMAIN=FILE, to try one's table on another")
    tables = {name: trained(work) for name, work in workloads.items()}
    found = []
    for scored, work in workloads.items():
        known: dict[str, Any] = {"allocation": allocation, "window": window, "threads": threads}
        recent = simulate(work, ["lru"], budgets, detail=False, **known)
        for name, table in tables.items():
            held = simulate(work, ["static"], budgets, table="own" if name == scored else table, **known)
            found += [OffDomain(name, scored, one, other) for one, other in zip(held, recent, strict=True)]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class BatchCost:
    """What merging streams costs at one budget, against each stream alone with the whole of it.

    Attributes:
        batch: the merged streams.
        singles: each stream alone, over the same iterations.
    """

    batch: Outcome
    singles: tuple[Outcome, ...]

    @property
    def single_hit_rate(self) -> float:
        """The mean hit rate of the streams alone."""
        return fmean(one.hit_rate for one in self.singles)

    @property
    def hit_loss(self) -> float:
        """The hit rate lost by merging, as a difference of shares."""
        return self.single_hit_rate - self.batch.hit_rate

    @property
    def surcharge(self) -> float | None:
        """What a token of the batch misses, as a multiple of a token alone: bytes, or experts of unknown size."""
        alone = _per_token(self.singles)
        together = _per_token([self.batch])
        return together / alone if alone else None

    def as_json(self) -> dict[str, Any]:
        """Return the figures in plain JSON types."""
        return {
            "policy": self.batch.policy,
            "budget": self.batch.budget,
            "single_hit_rate": self.single_hit_rate,
            "batch_hit_rate": self.batch.hit_rate,
            "hit_loss": self.hit_loss,
            "surcharge_per_accepted_token": self.surcharge,
            "batch": self.batch.as_json(),
            "singles": [one.as_json() for one in self.singles],
        }


def _per_token(done: Sequence[Outcome]) -> float:
    missed = sum(one.misses if one.miss_bytes is None else one.miss_bytes for one in done)
    return missed / sum(one.accepted_tokens for one in done)


def batch_cost(  # noqa: PLR0913  (what a simulation depends on, by keyword)
    traces: Sequence[Trace],
    policies: Sequence[str],
    budgets: Budgets,
    *,
    semantics: str = PER_ACCESS,
    allocation: str = GLOBAL,
    window: str = "fair",
    expert_bytes: int | Sequence[int] | None = None,
    table: Table | str | None = None,
    threads: int = 0,
) -> list[BatchCost]:
    """Return what merging the traces costs, policy by policy: each stream alone has the budget that the batch has.

    The streams alone are cut where the batch ends, so that all are scored over the same iterations.

    Raises:
        InputError: fewer than two traces, or as ``merge`` and ``simulate``.
    """
    if len(traces) < 2:
        raise InputError(f"{len(traces)} trace to merge", "two or more, one for each stream of the batch")
    merged = merge(traces)
    alone = [workload(one, semantics, expert_bytes=expert_bytes).cut(merged.n_iterations) for one in traces]
    accepted: I64 = sum((one.accepted.astype(np.int64) for one in alone), start=np.zeros(1, dtype=np.int64))
    together = workload(merged.trace, semantics, expert_bytes=expert_bytes, accepted=accepted.tolist())
    known: dict[str, Any] = {"allocation": allocation, "window": window, "table": table, "threads": threads}
    batch = simulate(together, policies, budgets, **known)
    singles = [simulate(one, policies, budgets, **known) for one in alone]
    return [BatchCost(one, others) for one, others in zip(batch, zip(*singles, strict=True), strict=True)]
