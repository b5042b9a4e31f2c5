"""Policies that are not ours, replayed by libcachesim: ARC, S3-FIFO, SIEVE, W-TinyLFU, LIRS, 2Q and what else it has.

They see the accesses that ours see, in the same window and caches, id by id: libcachesim knows no events. An expert
counts 1 where all are of one size, else its bytes. Where a policy divides the cache, and a part by its usual share
would be too small for an expert, the part is as small as works.

Each cache is replayed in a process of its own: libcachesim aborts where it can do nothing with a cache, and draws at
random from a state of the process, so that only a fresh one gives the same hits however the work is divided.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_moetier.errors import HarnessError, InputError
from pytest_moetier.simulate.budget import Budget
from pytest_moetier.simulate.outcome import Bools, Outcome
from pytest_moetier.simulate.policies import POLICIES, Job, Progress, Sweep, cpus, tallied
from pytest_moetier.simulate.streams import GLOBAL
from pytest_moetier.simulate.window import Window
from pytest_moetier.simulate.workload import PER_ACCESS, U64, Workload

MARK = "libcachesim:"
"""What a policy's name begins with that libcachesim replays; also asks for its own of a policy that we have too."""

_REFUSED = {
    "BeladySize": "it samples, and never ends in a small cache",
    "ClockPro": "it uses half of its cache",
    "FlashProb": "it is two caches, with an admission of its own between them",
    "GLCache": "it evicts a hundred objects at a time",
    "LFUDA": "it crashes, or never ends, in a small cache",
    "LRB": "it learns from far longer traces, and is LRU until then",
    "PluginCache": "it is a policy only with hooks",
    "ThreeLCache": "it learns from far longer traces, and is LRU until then",
}
"""What version 0.3.5 has and no comparison could use, and why."""
_SHARES = {
    "Clock2QPlus": ("fifo_size_ratio", 0.1, 2, 3),
    "S3FIFO": ("small_size_ratio", 0.1, 2, 3),
    "TwoQ": ("a_in_size_ratio", 0.25, 1, 2),
    "WTinyLFU": ("window_size", 0.01, 1, 6),
}
"""By class: the share of the cache that a part has, by default; the experts that part and the whole must have room for.

With less room libcachesim aborts, or never ends.
"""
_EMPTY, _OVERFULL = 3, 4
"""How a replay ends that cannot count: its cache takes no expert of the largest size, or held more than it may."""
_NEVER = 1 << 62
_POLL_SECONDS = 0.1


def others(  # noqa: PLR0913  (what a simulation depends on, by keyword)
    workload: Workload,
    policies: Sequence[str],
    budgets: Sequence[Budget | str],
    *,
    allocation: str = GLOBAL,
    window: Window | str = "fair",
    threads: int = 0,
    hit_sets: bool = False,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Return what policies of libcachesim do at each budget, as ``simulate`` does of ours.

    Args:
        workload: the accesses.
        policies: their names, in any case and with or without hyphens and ``MARK``.
        budgets: as of ``simulate``, like all that follows.
        allocation: likewise.
        window: likewise.
        threads: likewise: at most so many replays at a time.
        hit_sets: likewise.
        progress: likewise.

    Raises:
        InputError: as ``simulate``, libcachesim is not installed or has no such policy, or the workload is of events.
        HarnessError: libcachesim gave up, or did not keep within its cache.
        KeyboardInterrupt: Ctrl-C, after every replay has ended.
    """
    classes = classes_of(policies, workload)
    checked = Sweep.of(workload, ["lru"], budgets, allocation, window, None, ordered=hit_sets)
    sweep = _Theirs(
        workload, tuple(classes), checked.rooms, allocation, checked.window, None, checked.whole, checked.stop, classes
    )
    sets = {one: np.zeros(len(sweep.whole.key), dtype=bool) for one in sweep.cells} if hit_sets else {}
    jobs = sweep.jobs(threads or cpus(), detail=True)
    tallies = tallied(sweep, jobs, sets, threads or cpus(), progress)
    return [sweep.outcome(*cell, tallies[cell], sets.get(cell)) for cell in sweep.cells]


def classes_of(policies: Sequence[str], workload: Workload) -> dict[str, str]:
    """Return for each policy, as it will be called, the class of the installed libcachesim.

    Raises:
        InputError: libcachesim is not installed or has no such policy, or the workload is of events.
    """
    classes = {f"{MARK}{folded(one)}": _class(one) for one in policies}
    if classes and workload.semantics != PER_ACCESS:
        raise InputError(
            f"--policy {next(iter(classes))} over {workload.semantics} events", f"--semantics {PER_ACCESS}"
        )
    return classes


def named(policy: str) -> str:
    """Return what a policy is called in outcomes: ours as it is, another's with ``MARK``."""
    return policy if policy in POLICIES else MARK + folded(policy)


def folded(policy: str) -> str:
    """Return a policy's name without what people write differently: ``S3-FIFO`` is ``s3fifo``."""
    return re.sub(r"[^a-z0-9]", "", policy.lower().removeprefix(MARK))


def offered() -> dict[str, str]:
    """Return the classes of the installed libcachesim that are policies, by folded name; empty where there is none."""
    try:
        library = import_module("libcachesim")
    except ModuleNotFoundError:
        return {}
    found = [
        name for name, one in vars(library).items() if isinstance(one, type) and library.CacheBase in one.__bases__
    ]
    return {"2q" if name == "TwoQ" else name.lower(): name for name in sorted(found, key=str.lower)}


def _class(policy: str) -> str:
    """Return the class of a policy; the message of a refusal names what there is."""
    classes = offered()
    ours = "ours: " + ", ".join(POLICIES)
    if not classes:
        raise InputError(
            f"--policy {policy} is none of ours, and libcachesim is not installed", ours, "pip install libcachesim"
        )
    name = classes.get(folded(policy))
    if name in _REFUSED:
        raise InputError(f"--policy {policy}: libcachesim's {name} is no policy to compare: {_REFUSED[name]}", ours)
    if name is None:
        names = ", ".join(one for one, name in classes.items() if name not in _REFUSED)
        raise InputError(f"--policy {policy}", f"{ours}; of libcachesim: {names}")
    return name


@dataclass(frozen=True, slots=True, eq=False)
class _Theirs(Sweep):
    """A sweep whose hits libcachesim finds.

    Attributes:
        classes: its class by policy.
    """

    classes: Mapping[str, str] | None = None

    def _hits(self, job: Job) -> Iterator[Bools]:
        """Yield for each budget of a job which of its accesses hit."""
        name = (self.classes or {})[job.policy]
        largest = 1 if job.sizes is None else int(job.sizes.max())
        for capacity in job.capacities.tolist():
            if name in _SHARES and capacity < largest * _SHARES[name][3]:
                raise _gave_up(name, capacity, _EMPTY)
        with TemporaryDirectory(prefix="moetier-") as folder:
            part = job.part
            size = np.ones(len(part.key), dtype=np.uint64) if job.sizes is None else job.sizes[part.key]
            np.savez(Path(folder) / "inputs", key=part.key, segments=part.segments, size=size, each=job.capacities)
            _shared(folder, "w+", (len(job.capacities), len(part.key)))
            self._replayed(folder, name)
            yield from _shared(folder, "r")

    def _replayed(self, folder: str, name: str) -> None:
        """Wait for a process to replay; end it, and the caches' own, once the flag is set."""
        code = "import sys; from pytest_moetier.simulate.others import replay; sys.exit(replay(*sys.argv[1:]))"
        words = [sys.executable, "-P", "-c", code, folder, name]
        nothing = subprocess.DEVNULL
        with subprocess.Popen(words, stdin=nothing, stdout=nothing, stderr=nothing, process_group=0) as child:
            try:
                while not self.stop[0]:
                    try:
                        ended = child.wait(_POLL_SECONDS)
                    except subprocess.TimeoutExpired:
                        continue
                    break
                else:
                    raise RuntimeError("stopped")
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
        if ended:
            said = Path(folder) / "failed"
            raise _gave_up(name, *map(int, said.read_text().split())) if said.exists() else _gave_up(name, 0, ended)


def _gave_up(name: str, capacity: int, status: int) -> HarnessError | InputError:
    if status == _EMPTY:
        return InputError(
            f"a cache of {capacity} is too small for libcachesim's {name}: an expert does not fit into a part of it",
            "a larger budget, or another policy",
        )
    seen = "held more than that" if status == _OVERFULL else f"ended its process with status {status}"
    return HarnessError(f"libcachesim's {name} {seen} with a cache of {capacity}", do="leave it, or that budget, out")


def _shared(folder: str, mode: str, shape: tuple[int, int] | None = None) -> npt.NDArray[np.bool_]:
    """Open the file of hits, a row for each capacity."""
    return np.lib.format.open_memmap(Path(folder) / "hits.npy", mode=mode, dtype=np.bool_, shape=shape)


def replay(folder: str, name: str) -> int:
    """Replay what is in a folder, each cache by a process of its own; on failure, say where and end."""
    inputs = np.load(Path(folder) / "inputs.npz")
    key, size, segments = inputs["key"], inputs["size"], inputs["segments"].tolist()
    following = _next_uses(key) if name == "Belady" else None
    import_module("libcachesim")  # once, for all that follow
    for row, capacity in zip(_shared(folder, "r+"), inputs["each"].tolist(), strict=True):
        for start, end in pairwise(segments):
            here = slice(start, end)
            child = os.fork()
            if not child:
                _cache(name, capacity, key[here], size[here], None if following is None else following[here], row[here])
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status:
                (Path(folder) / "failed").write_text(f"{capacity} {status}")
                return 1
    return 0


def _next_uses(key: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Return the place of each access's next; what has none has one far off, or it would not be admitted."""
    order = np.argsort(key, kind="stable")
    again = key[order[1:]] == key[order[:-1]]
    following = np.full(len(key), _NEVER, dtype=np.int64)
    following[order[:-1][again]] = order[1:][again]
    return following


def _cache(  # noqa: PLR0913, PLR0917  (what a cache is asked)
    name: str,
    capacity: int,
    key: npt.NDArray[np.uint32],
    size: U64,
    following: npt.NDArray[np.int64] | None,
    hits: Bools,
) -> None:
    """Mark the hits of one cache, and end this process."""
    status = 1
    try:
        library = import_module("libcachesim")
        power = max(12, int(key.max(initial=0)).bit_length())
        known = {"cache_size": capacity, "hashpower": power, **_parts(name, capacity, size)}
        request, cache = library.Request(), getattr(library, name)(**known)
        request.obj_id, request.obj_size, request.next_access_vtime = 1, int(size.max(initial=1)), _NEVER
        if not getattr(library, name)(**known).can_insert(request):
            status = _EMPTY
            return
        marked = bytearray()
        later: Any = repeat(-2) if following is None else following.data
        rows = zip((key + np.uint32(1)).data, size.data, later, strict=False)
        for request.obj_id, request.obj_size, request.next_access_vtime in rows:
            marked.append(cache.get(request))
        hits[:] = np.frombuffer(marked, dtype=np.bool_)
        status = _OVERFULL if cache.get_occupied_byte() > capacity else 0
    finally:
        os._exit(status)


def _parts(name: str, capacity: int, size: U64) -> dict[str, float]:
    if name not in _SHARES:
        return {}
    share, usual, experts, _ = _SHARES[name]
    return {share: max(usual, 1.001 * experts * int(size.max(initial=1)) / capacity)}
