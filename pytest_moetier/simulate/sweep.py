"""Sweeps: files x policies x budgets x allocations as tasks that need nothing of each other, here or on a cluster.

Here a task is simulated whole, by as many threads as there are CPUs. A dask.distributed cluster gets its parts: one for
each policy, and for each budget where a budget costs a run of its own; one thread of some worker does a part. All
figures are sums of integers, so they are the same bit for bit.

A workload of at most ``PACKED_BYTES`` travels with the sweep. A larger one is read by a worker from the file itself,
which has to be at the same path there and to hold the same accesses; the other workers get it from that one. What a
lost worker did or held, another does or reads again. After Ctrl-C workers end what they have begun, and no more.
"""

from __future__ import annotations

import platform
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np

from pytest_moetier.errors import HarnessError, InputError, MoetierError
from pytest_moetier.simulate.budget import Budget
from pytest_moetier.simulate.others import classes_of, named, others
from pytest_moetier.simulate.outcome import Outcome
from pytest_moetier.simulate.policies import POLICIES, Progress, simulate
from pytest_moetier.simulate.workload import Workload, workload
from pytest_moetier.trace.load import load_traces

PACKED_BYTES = 8 << 20
"""Of a workload that travels with the sweep: distributed advises against more than 10 MB."""
CONNECT_SECONDS = 5
"""How long a scheduler may take to answer, and then a first worker to appear."""
_OURS_ALONE = {"table", "detail"}
"""Options of our own policies, which mean nothing to others."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked of a workload.

    Attributes:
        policies: ours, or those of ``simulate.others``.
        budgets: what the caches of all layers hold together.
        options: more keywords of ``simulate``.
    """

    policies: tuple[str, ...]
    budgets: tuple[Budget | str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def parts(self) -> list[Ask]:
        """Return what can be asked apart: the outcomes of all, one after another, are those of the whole."""
        each = [(one,) for one in self.budgets]
        return [
            replace(self, policies=(policy,), budgets=some)
            for policy in dict.fromkeys(map(named, self.policies))
            for some in ([self.budgets] if policy in {"lru", "static"} else each)
        ]

    def of(self, work: Workload, threads: int, progress: Progress | None = None) -> list[Outcome]:
        """Return the outcomes, policy by policy; ``progress`` is called with (done, of), in lookups of a kind.

        Raises:
            MoetierError: as ``simulate`` and ``others``.
            KeyboardInterrupt: likewise.
        """
        place = {policy: at for at, policy in enumerate(dict.fromkeys(map(named, self.policies)))}
        theirs = [one for one in place if one not in POLICIES]
        ours = [one for one in place if one in POLICIES]
        classes_of(theirs, work)  # refuses before anything runs
        found = []
        if ours or not theirs:
            show = _scaled(progress, 0, len(ours), len(place))
            found += simulate(work, ours, self.budgets, threads=threads, progress=show, **self.options)
        if theirs:
            options = {name: one for name, one in self.options.items() if name not in _OURS_ALONE}
            show = _scaled(progress, len(ours), len(theirs), len(place))
            found += others(work, theirs, self.budgets, threads=threads, progress=show, **options)
        return sorted(found, key=lambda one: place[one.policy])


def _scaled(progress: Progress | None, before: int, share: int, of: int) -> Progress | None:
    """Return a progress of a part that is ``share`` of the whole, after ``before`` of it."""
    return progress and (lambda done, total: progress(before * total + share * done, of * total))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a workload comes from, for a worker to read it.

    Attributes:
        files: what was loaded together, as files are also checked against each other.
        at: which of them it is.
        known: keywords of ``load_traces``.
        options: keywords of ``workload``.
    """

    files: tuple[str, ...]
    at: int
    known: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A workload and what is asked of it; with an origin where it may be too large to travel."""

    work: Workload
    ask: Ask
    origin: Origin | None = None


def sweep(
    tasks: Sequence[Task], *, scheduler: str | None = None, threads: int = 0, progress: Progress | None = None
) -> list[list[Outcome]]:
    """Return the outcomes of each task, the same wherever they are found.

    Args:
        tasks: the files, and what is asked of each.
        scheduler: the address of a dask.distributed scheduler, ``tcp://HOST:PORT``; None: this process.
        threads: of this process, at most so many; 0: as many as there are CPUs; a worker does a part by one.
        progress: called with (expert reads looked up, of), from the calling thread.

    Raises:
        InputError: as ``simulate``, distributed is not installed, the scheduler does not answer or has no worker, or a
            worker lacks a file or has another version.
        HarnessError: the scheduler was lost, or workers cannot run a part or died of it again and again.
        KeyboardInterrupt: Ctrl-C.
    """
    weights = [one.work.n_accesses * len(one.ask.policies) * len(one.ask.budgets) for one in tasks]
    if scheduler is not None:
        return _on_cluster(tasks, weights, scheduler, progress)
    found = []
    for at, task in enumerate(tasks):
        before, weight, total = sum(weights[:at]), weights[at], sum(weights)

        def show(done: int, of: int, before: int = before, weight: int = weight, total: int = total) -> None:
            if progress is not None:
                progress(before + weight * done // of, total)

        found.append(task.ask.of(task.work, threads, show))
    return found


def _on_cluster(
    tasks: Sequence[Task], weights: Sequence[int], scheduler: str, progress: Progress | None
) -> list[list[Outcome]]:
    ours = version("pytest-moetier")
    with _client(scheduler) as (distributed, client):
        asked = {}
        for at, task in enumerate(tasks):
            work = client.submit(_unpacked, *_packed(task), ours, pure=False)
            for number, part in enumerate(parts := task.ask.parts()):
                asked[client.submit(_part, work, part, pure=False)] = at, number, weights[at] / len(parts)
        done: dict[tuple[int, int], list[Outcome]] = {}
        finished = 0.0
        for future in distributed.as_completed(asked):
            at, number, weight = asked[future]
            done[at, number] = future.result()
            finished += weight
            if progress is not None:
                progress(round(finished), sum(weights))
    return [
        [one for at, number in sorted(done) if at == task for one in done[at, number]] for task in range(len(tasks))
    ]


@contextmanager
def _client(scheduler: str) -> Iterator[tuple[Any, Any]]:
    """Yield distributed and a client of the scheduler that has a worker; what goes wrong there is one clear message."""
    try:
        distributed = import_module("distributed")
    except ModuleNotFoundError as error:
        raise InputError(
            f"--scheduler {scheduler}, and distributed is not installed", do="pip install 'pytest-moetier[sweep]'"
        ) from error
    try:
        client = distributed.Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no scheduler of dask.distributed answers at {scheduler}", "tcp://HOST:PORT", "dask scheduler"
        ) from error
    with client, client.as_current():
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError as error:
            raise InputError(
                f"the scheduler {scheduler} has no worker", "one or more", f"dask worker {scheduler}"
            ) from error
        try:
            yield distributed, client
        except (MoetierError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise HarnessError(
                f"the sweep on {scheduler} failed: {type(error).__name__}: {error}",
                f"a cluster that stays; its workers with pytest-moetier {version('pytest-moetier')} and enough memory",
            ) from error


def _packed(task: Task) -> tuple[Workload | Origin, int]:
    """Return what travels of a task's workload, and a checksum of its accesses."""
    work = task.work
    size = sum(one.nbytes for one in (work.key, work.event, work.event_iteration, work.event_layer, work.accepted))
    return work if size <= PACKED_BYTES or task.origin is None else task.origin, zlib.crc32(work.key.data)


def _unpacked(packed: Workload | Origin, check: int, ours: str) -> Workload:
    """Return a workload, on a worker."""
    here = f"the worker on {platform.node()}"
    if version("pytest-moetier") != ours:
        raise InputError(f"{here} has pytest-moetier {version('pytest-moetier')}", f"{ours}, as where the sweep began")
    if isinstance(packed, Workload):
        return packed
    file = packed.files[packed.at]
    try:
        work = workload(load_traces(packed.files, **packed.known)[packed.at], **packed.options)
    except InputError as error:
        raise InputError(
            f"{here}: {error.seen}", error.expected, "make the file readable there, at the same path"
        ) from error
    if zlib.crc32(work.key.data) != check:
        raise InputError(f"{here}: {file} holds other accesses than where the sweep began", "the same file")
    return work


def _part(work: Workload, part: Ask) -> list[Outcome]:
    """Do a part of a task, on a worker: by one thread, as the cluster counts on."""
    arrays = {name: getattr(work, name) for name in ("key", "event", "event_iteration", "event_layer", "accepted")}
    # What came by the network may begin at any address.
    aligned: dict[str, Any] = {name: np.require(one, requirements=("A", "C")) for name, one in arrays.items()}
    return part.of(replace(work, **aligned), threads=1)
