"""Cache policies over a workload, exact, for every budget at once where the policy allows it (paper sections 3 and 6).

Policies that admit what they miss, from an empty cache:

- ``lru``: the least recently used goes.
- ``lfu``: the fewest uses since it came into the cache; of several, the least recently used.
- ``lfu-perfect``: likewise by the uses of the whole run, which outlive an eviction.
- ``belady``: the farthest next use goes (MIN). Over a whole run of experts of one size no policy that admits what it
  misses hits more often. A scored window, experts of several sizes, or a table that admits nothing are outside that
  theorem.

``static`` holds the first experts of a table from the start and admits nothing (``simulate.static``).

The work is native (``pytest_moetier._sim``) and done by threads, over caches, budgets and policies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pytest_moetier import _sim
from pytest_moetier.errors import InputError
from pytest_moetier.simulate.budget import BYTES, EXPERTS, Budget, Room
from pytest_moetier.simulate.outcome import Bools, Outcome
from pytest_moetier.simulate.static import Table, table_for
from pytest_moetier.simulate.streams import GLOBAL, U8, Streams, streams
from pytest_moetier.simulate.window import Window, window
from pytest_moetier.simulate.workload import I64, U64, Workload, widths_of

POLICIES = ("lru", "lfu", "lfu-perfect", "static", "belady")

_HIT_BYTES = 1 << 28
"""Bytes of per-access hits that one job may hold."""
_BANDS = 4
"""From so many budgets on, one run of Belady's rule serves all of them at once."""

Progress = Callable[[int, int], None]


def simulate(  # noqa: PLR0913  (what a simulation depends on, by keyword)
    workload: Workload,
    policies: Sequence[str],
    budgets: Sequence[Budget | str],
    *,
    allocation: str = GLOBAL,
    window: Window | str = "fair",
    table: Table | str | None = None,
    threads: int = 0,
    detail: bool = True,
    hit_sets: bool = False,
    progress: Progress | None = None,
    stop: U8 | None = None,
) -> list[Outcome]:
    """Return what each policy does at each budget, policy by policy; all share one window.

    Args:
        workload: the accesses.
        policies: of ``POLICIES``.
        budgets: what the caches of all layers hold together.
        allocation: ``global``: one cache for all layers; ``layer``: an equal part of the budget for each layer.
        window: which iterations warm and which are scored; a name or one made for this workload.
        table: of ``static``: ``train`` (the default: the warm part), ``own`` (an oracle: the whole trace) or a table.
        threads: at most so many; 0: as many as there are CPUs for this process.
        detail: False returns totals alone, in less time and memory.
        hit_sets: also tell of each access whether it hit.
        progress: called with (accesses done, of), times budgets, from the calling thread.
        stop: one u8; once it is not 0 the native work ends soon. Ctrl-C sets it.

    Raises:
        InputError: a word, budget, window or table that does not fit the workload, or nothing to simulate.
        KeyboardInterrupt: Ctrl-C, after the native work has ended.
        RuntimeError: stopped by the flag.
    """
    sweep = Sweep.of(workload, policies, budgets, allocation, window, table, ordered=hit_sets)
    if stop is not None:
        sweep = replace(sweep, stop=stop)
    # Where sizes differ, the bytes of misses are counted event by event, of which totals know nothing.
    jobs = sweep.jobs(threads or cpus(), detail=detail or hit_sets or not workload.uniform)
    sets = {one: np.zeros(len(sweep.whole.key), dtype=bool) for one in sweep.cells} if hit_sets else {}
    tallies = tallied(sweep, jobs, sets, threads or cpus(), progress)
    return [sweep.outcome(*cell, tallies[cell], sets.get(cell)) for cell in sweep.cells]


def cpus() -> int:
    """Return the CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Job:
    """One native call: a policy over some caches, at some budgets of one unit."""

    policy: str
    part: Streams
    rooms: tuple[int, ...]
    capacities: U64
    sizes: U64 | None
    detail: bool

    @property
    def work(self) -> int:
        """Accesses to look at, times budgets where each costs a run."""
        return len(self.part.key) * (1 if self.policy in {"lru", "static"} else len(self.rooms))


@dataclass(frozen=True, slots=True)
class _Tally:
    """Scored hits of some caches at one budget; the arrays are None where only totals are counted."""

    hits: int
    layer_hits: I64 | None = None
    iteration_misses: I64 | None = None
    iteration_miss_bytes: U64 | None = None

    def plus(self, other: _Tally) -> _Tally:
        """Return both together."""
        return _Tally(
            self.hits + other.hits,
            _sum(self.layer_hits, other.layer_hits),
            _sum(self.iteration_misses, other.iteration_misses),
            _sum(self.iteration_miss_bytes, other.iteration_miss_bytes),
        )


def _sum(one: npt.NDArray[np.integer] | None, other: npt.NDArray[np.integer] | None) -> npt.NDArray | None:  # type: ignore[type-arg]
    return None if one is None or other is None else one + other


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """All that the jobs of one call share."""

    workload: Workload
    policies: tuple[str, ...]
    rooms: tuple[Room, ...]
    allocation: str
    window: Window
    table: Table | None
    whole: Streams
    stop: U8 = field(default_factory=lambda: np.zeros(1, dtype=np.uint8))

    @classmethod
    def of(  # noqa: PLR0913, PLR0917  (all that a simulation depends on)
        cls,
        work: Workload,
        policies: Sequence[str],
        budgets: Sequence[Budget | str],
        allocation: str,
        asked: Window | str,
        table: Table | str | None,
        *,
        ordered: bool,
    ) -> Sweep:
        """Return the sweep, every part of it checked before anything runs."""
        chosen = tuple(dict.fromkeys(policies))
        unknown = [one for one in chosen if one not in POLICIES]
        if unknown or not chosen:
            raise InputError(f"--policy {unknown[0] if unknown else '(none)'}", "one or more of " + ", ".join(POLICIES))
        if not budgets:
            raise InputError("no budget", "one or more, such as 455, 4000MiB or 25%")
        shared = window(asked, work) if isinstance(asked, str) else _fitting(asked, work)
        whole = streams(work, shared, allocation, ordered=ordered)
        rooms = tuple((Budget.parse(one) if isinstance(one, str) else one).room(work, allocation) for one in budgets)
        found = table_for(work, shared, table) if "static" in chosen else None
        sweep = cls(work, chosen, rooms, allocation, shared, found, whole)
        if not sweep.accesses:
            raise InputError(f"the window {shared.name} holds no expert read", "a window in which experts are read")
        if found is not None:
            found.reach(work, allocation, None)  # refuses another model's before anything runs
        return sweep

    @property
    def cells(self) -> list[tuple[str, int]]:
        """Each policy with each room."""
        return [(policy, at) for policy in self.policies for at in range(len(self.rooms))]

    @property
    def accesses(self) -> int:
        """Expert reads scored."""
        ends = self.whole.segments[1:].astype(np.int64)
        return int((ends - self.whole.score_from.astype(np.int64)).sum())

    def jobs(self, threads: int, *, detail: bool) -> list[Job]:
        """Return the native calls of the sweep, the long ones first."""
        found = []
        for unit, sizes in ((EXPERTS, None), (BYTES, self.workload.object_bytes)):
            rooms = [at for at, room in enumerate(self.rooms) if room.unit == unit]
            if not rooms:
                continue
            parts = self.whole.parts(1 if self.allocation == GLOBAL else 4 * threads)
            for policy in self.policies:
                for part in parts:
                    for some in self._chunks(policy, rooms, part, threads, detail=detail):
                        capacities = np.array([self.rooms[at].each for at in some], dtype=np.uint64)
                        found.append(Job(policy, part, tuple(some), capacities, sizes, detail))
        return sorted(found, key=lambda job: -job.work)

    def _chunks(
        self, policy: str, rooms: list[int], part: Streams, threads: int, *, detail: bool
    ) -> Iterator[list[int]]:
        """Divide budgets among calls: few enough to hold the hits of and to keep threads busy, enough for bands."""
        size = len(rooms)
        if policy not in {"lru", "static"}:
            if self.allocation == GLOBAL:
                size = max(-(-size // threads), _BANDS if policy == "belady" else 1)
            if detail:
                size = max(1, min(size, _HIT_BYTES // len(part.key)))
        for start in range(0, len(rooms), size):
            yield rooms[start : start + size]

    def run(self, job: Job, sets: dict[tuple[str, int], Bools]) -> list[_Tally]:
        """Do a job: the scored hits at each of its budgets."""
        if not job.detail:
            return [_Tally(hits) for hits in self._totals(job)]
        found = []
        for at, hits in zip(job.rooms, self._hits(job), strict=True):
            if sets:
                self._mark(sets[job.policy, at], job.part, hits)
            found.append(self._tally(job.part, hits))
        return found

    def _mark(self, marked: Bools, part: Streams, hits: Bools) -> None:
        here = slice(part.start, part.start + len(hits))
        if part.order is None:
            marked[here] = hits
        else:
            marked[part.order[here]] = hits

    def _tally(self, part: Streams, hits: Bools) -> _Tally:
        """Count the scored hits by layer, and the misses by iteration."""
        work, shared = self.workload, self.window
        scored = part.event_iteration >= shared.first
        widths = widths_of(part.bounds)[scored]
        hit = np.add.reduceat(hits.view(np.uint8), part.bounds[:-1].astype(np.intp), dtype=np.int64)[scored]
        layer, iteration = part.event_layer[scored], part.event_iteration[scored] - np.uint32(shared.first)
        # Sums of floats, exact below 2^53: nine petabytes an iteration.
        by_layer = np.bincount(layer, weights=hit, minlength=work.n_layers).astype(np.int64)
        misses = np.bincount(iteration, weights=widths - hit, minlength=shared.iterations).astype(np.int64)
        read = None
        if work.layer_bytes:
            costs = (widths - hit) * np.array(work.layer_bytes, dtype=np.int64)[layer]
            read = np.bincount(iteration, weights=costs, minlength=shared.iterations).astype(np.uint64)
        return _Tally(int(hit.sum()), by_layer, misses, read)

    def _hits(self, job: Job) -> Iterator[Bools]:
        """Yield for each budget of a job which of its accesses hit."""
        part = job.part
        if job.policy == "static" and self.table is not None:
            reach = self.table.reach(self.workload, self.allocation, job.sizes)[part.key]
            yield from (reach <= capacity for capacity in job.capacities)
        elif job.policy == "lru":
            distance = part.distances(self.workload.semantics, job.sizes, self.stop)
            yield from (distance <= capacity for capacity in job.capacities.tolist())
        else:
            marked = np.empty((len(job.capacities), len(part.key)), dtype=np.uint8)
            self._demand(job, marked)
            yield from marked.view(np.bool_)

    def _totals(self, job: Job) -> list[int]:
        """Return the scored hits at each budget of a job, counted without anything kept per access."""
        part, events = job.part, job.part.events(self.workload.semantics)
        if job.policy == "static" and self.table is not None:
            reach = self.table.reach(self.workload, self.allocation, job.sizes)
            scored = np.zeros(len(reach), dtype=np.int64)
            for start, end in zip(part.score_from.tolist(), part.segments[1:].tolist(), strict=True):
                scored += np.bincount(part.key[start:end], minlength=len(reach))
            return [int(scored[reach <= capacity].sum()) for capacity in job.capacities]
        if job.policy != "lru":
            return self._demand(job, None)
        histogram = np.zeros(self.workload.n_objects + 2, dtype=np.uint64)
        _sim.lru_histogram(part.key, part.segments, events, part.score_from, histogram, self.stop)
        found: list[int] = np.cumsum(histogram)[job.capacities.astype(np.intp)].tolist()
        return found

    def _demand(self, job: Job, marked: U8 | None) -> list[int]:
        part = job.part
        inputs = part.key, part.segments, part.events(self.workload.semantics), job.sizes, job.capacities
        hits = None if marked is None else marked.reshape(-1)
        if job.policy == "belady":
            counted, _ = _sim.belady_hits(*inputs, part.score_from, hits, self.stop)
        else:
            perfect = job.policy == "lfu-perfect"
            counted, _ = _sim.lfu_hits(*inputs, part.score_from, hits, self.stop, perfect=perfect)
        found: list[int] = np.frombuffer(counted, dtype=np.uint64).tolist()
        return found

    def outcome(self, policy: str, at: int, tally: _Tally, hit_set: Bools | None) -> Outcome:
        """Return a cell's figures with everything they depend on."""
        work, shared = self.workload, self.window
        misses = self.accesses - tally.hits
        if tally.iteration_miss_bytes is not None:
            miss_bytes: int | None = int(tally.iteration_miss_bytes.sum())
        else:
            miss_bytes = misses * work.layer_bytes[0] if work.layer_bytes else None
        scored = self.whole.event_iteration >= shared.first
        widths = widths_of(self.whole.bounds)[scored]
        layers = np.bincount(self.whole.event_layer[scored], weights=widths, minlength=work.n_layers)
        return Outcome(
            policy=policy,
            room=self.rooms[at],
            allocation=self.allocation,
            semantics=work.semantics,
            window=shared,
            order=work.order,
            synthetic=work.synthetic,
            source=work.source,
            table=_table_words(self.table) if policy == "static" else "",
            accesses=self.accesses,
            hits=tally.hits,
            miss_bytes=miss_bytes,
            iterations=shared.iterations,
            accepted_tokens=int(work.accepted[shared.first : shared.last].sum()),
            layer_hits=tally.layer_hits,
            layer_accesses=None if tally.layer_hits is None else layers.astype(np.int64),
            iteration_misses=tally.iteration_misses,
            iteration_miss_bytes=tally.iteration_miss_bytes,
            hit_set=hit_set,
        )


def _table_words(table: Table | None) -> str:
    if table is None:
        return ""
    return f"{table.words} (oracle)" if table.oracle else table.words


def _fitting(asked: Window, work: Workload) -> Window:
    if asked.n_prefill != work.n_prefill or asked.last > work.n_iterations:
        raise InputError(
            f"a window of {asked.end} iterations after {asked.n_prefill} of a prompt, and {work.source} has "
            f"{work.n_iterations - work.n_prefill} after {work.n_prefill}",
            "a window made for this workload",
        )
    return asked


def tallied(
    sweep: Sweep,
    jobs: Sequence[Job],
    sets: dict[tuple[str, int], Bools],
    threads: int,
    progress: Progress | None,
) -> dict[tuple[str, int], _Tally]:
    """Do the jobs and return each cell's tally; on an error or Ctrl-C, end the native work of all first."""
    total, finished = sum(job.work for job in jobs), 0
    tallies: dict[tuple[str, int], _Tally] = {}
    pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="moetier-simulate")
    try:
        running: dict[Future[list[_Tally]], Job] = {pool.submit(sweep.run, job, sets): job for job in jobs}
        while running:
            for one in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(one)
                finished += job.work
                for at, tally in zip(job.rooms, one.result(), strict=True):
                    cell = job.policy, at
                    tallies[cell] = tallies[cell].plus(tally) if cell in tallies else tally
            if progress is not None:
                progress(finished, total)
    except BaseException:
        sweep.stop[0] = 1
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return tallies
