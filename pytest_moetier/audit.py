"""The generation audit: what the multi-generational LRU held while device traffic swung (left open by paper section 5).

Kernel text sampled between the iterations of a pass stands beside each iteration's device bytes, on one axis: the
iterations. Three questions are asked of it: does the traffic come in waves; how much of what stays resident is unused;
and an inference of this project, not of the paper, which it can refute:

    Reads are inserted into the oldest generation, a queue; what is read again moves on and is protected. When what is
    left for the queue falls below what one iteration inserts if it misses everything, nothing survives until its next
    use: the cache collapses, and nearly every read goes to the device.

It is put to the test as a classifier: does the room that was left before an iteration tell whether that iteration
collapsed? The area under its curve asks nothing of where the line lies; two places for it are then counted, what an
iteration would insert if it missed everything and what the one before it did insert. A pass has few collapses, each of
many iterations, so that the counts of iterations overstate the evidence: ``onsets`` has the collapses themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from pytest_moetier.errors import InputError
from pytest_moetier.host import generations
from pytest_moetier.host.cgroup import ScopeFiles
from pytest_moetier.host.generations import Generations, GroupGenerations
from pytest_moetier.host.snapshot import Capture, parse
from pytest_moetier.simulate import Planned
from pytest_moetier.units import PAGE_BYTES
from pytest_moetier.waves import F64, Wave, strongest_wave

Outcome = Literal["supported", "refuted", "not_examined"]

COLLAPSED = 0.9
"""An iteration has collapsed when the devices read this share of what it asked for, or more."""
TELLS, TELLS_NOT = 0.9, 0.7
"""Area under the curve from which on the room tells a collapse, and up to which it does not."""
MIN_ITERATIONS = 10
"""Of either kind, collapsed or not, for anything to be said."""
UNUSED_FOR = (8, 24, 64)


class Sampled(Protocol):
    """Kernel text at the border between two iterations."""

    @property
    def iteration(self) -> int:
        """The number of the iteration that comes next; behind the last one, the number that would."""

    @property
    def clock_seconds(self) -> float:
        """CLOCK_MONOTONIC."""

    @property
    def files(self) -> Mapping[str, str | None]:
        """Text by path; None where it could not be read."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What the generations held at one border between iterations.

    Attributes:
        iteration: iterations of the pass that were over: 0 before the first.
        clock_seconds: CLOCK_MONOTONIC.
        min_seq: number of the generation that file pages are reclaimed from.
        max_seq: number of the youngest generation.
        file_pages: by generation, the one that is reclaimed from first.
        anon_pages: by generation, oldest first; they may begin with an older one than file pages do.
        scan_pages: pages that reclaim looked at since the group or the kernel began; None where nothing tells.
        steal_pages: pages that it took.
    """

    iteration: int
    clock_seconds: float
    min_seq: int
    max_seq: int
    file_pages: tuple[int, ...]
    anon_pages: tuple[int, ...]
    scan_pages: int | None
    steal_pages: int | None

    @property
    def oldest_bytes(self) -> int:
        """File bytes of the generation that is reclaimed from: the queue."""
        return self.file_pages[0] * PAGE_BYTES

    @property
    def protected_bytes(self) -> int:
        """File bytes of all other generations."""
        return sum(self.file_pages[1:]) * PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Unused:
    """Of the pool's resident bytes, the share of experts that the last ``iterations`` iterations did not use."""

    iterations: int
    share: float


@dataclass(frozen=True, slots=True)
class Line:
    """How often a collapse and the room below a line come together, in iterations.

    Attributes:
        insertions: ``all missed``: the bytes that the iteration asked for; ``as before``: the device bytes of the
            iteration before it, which the first one of a pass has not.
        collapsed_below: collapsed, with less room than that.
        collapsed_above: collapsed, with as much or more.
        healthy_below: not collapsed, with less.
        healthy_above: not collapsed, with as much or more.
        onsets: for each collapse that began within the pass, the room before it over the insertions; below 1 in all of
            them where the line is right.
    """

    insertions: str
    collapsed_below: int
    collapsed_above: int
    healthy_below: int
    healthy_above: int
    onsets: tuple[float, ...]

    @property
    def right(self) -> float | None:
        """How often the line is right, the mean over both kinds; None where there is not one of each."""
        collapsed = self.collapsed_below + self.collapsed_above
        healthy = self.healthy_below + self.healthy_above
        if not collapsed or not healthy:
            return None
        return (self.collapsed_below / collapsed + self.healthy_above / healthy) / 2


@dataclass(frozen=True, slots=True)
class RoomTest:
    """Whether the room before an iteration told its collapse.

    Attributes:
        room: ``oldest generation``: its file bytes; ``C - protected``: the capacity less those of all others.
        collapsed: iterations that collapsed, of those that a sample precedes.
        healthy: iterations that did not.
        auc: the probability that a collapsed iteration had less room than a healthy one, a tie counting half; None
            where there is not one of each.
        lines: where one iteration's insertions may lie, and how often that is right.
        verdict: ``supported``, ``refuted`` or ``not_examined``.
        reason: why it cannot be told; "" where it can.
    """

    room: str
    collapsed: int
    healthy: int
    auc: float | None
    lines: tuple[Line, ...]
    verdict: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class Audit:
    """One pass: generations and traffic by iteration.

    Attributes:
        group: the control group whose generations these are; "" where none held file pages.
        moments: one a sample; empty without generations (another LRU, no debugfs).
        device_bytes: what the devices read for each iteration, and so what entered the cache; empty: not observed.
        logical_bytes: what each iteration asked for: its insertions if it missed everything.
        nominal_bytes: what exact LRU of the observed capacity would have missed of it; empty: not simulated.
        capacity_bytes: C, for the room that is left of it.
        wave: the strongest period of ``device_bytes``, found or not (``wave.found``), with an amplitude in bytes.
        demand_wave: that of ``nominal_bytes``: a wave that the trace itself has is not reclaim's.
        unused: shares of what is resident at the end; empty: residency was not observed.
        tests: of the inference, for each way to measure room.
    """

    group: str
    moments: tuple[Moment, ...]
    device_bytes: tuple[int, ...]
    logical_bytes: tuple[int, ...]
    nominal_bytes: tuple[float, ...]
    capacity_bytes: int
    wave: Wave | None
    demand_wave: Wave | None
    unused: tuple[Unused, ...]
    tests: tuple[RoomTest, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the audit in plain JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class NamedAudit:
    """An audit and the name of its cell."""

    name: str
    audit: Audit


def audit_of(  # noqa: PLR0913 - what a pass is, one by one: no record of a run is asked for
    samples: Sequence[Sampled],
    *,
    device_bytes: Sequence[int | None],
    logical_bytes: Sequence[int],
    capacity_bytes: int,
    nominal_bytes: Sequence[float] = (),
    first: int = 0,
    group: str | None = None,
    unused: tuple[Unused, ...] = (),
) -> Audit:
    """Return the audit of one pass.

    Args:
        samples: of ``lru_gen``, and of the group's ``memory.stat`` or else ``/proc/vmstat``, at borders of iterations.
        device_bytes: by iteration.
        logical_bytes: by iteration.
        capacity_bytes: C.
        nominal_bytes: by iteration.
        first: the number of the pass's first iteration, as samples count them.
        group: the control group below the root of its hierarchy; None: the one that holds most file pages.
        unused: what :func:`unused_shares` says.

    Raises:
        InputError: the series differ in length.
    """
    if len(device_bytes) != len(logical_bytes) or (nominal_bytes and len(nominal_bytes) != len(logical_bytes)):
        lengths = f"{len(device_bytes)}, {len(logical_bytes)} and {len(nominal_bytes)}"
        raise InputError(f"device, logical and nominal bytes of {lengths} iterations", "as many of each")
    known = tuple(one for one in device_bytes if one is not None)
    device = known if len(known) == len(device_bytes) else ()
    told = [(one, found) for one in samples if (found := generations.parse(one.files.get(generations.PATH)))]
    name = _fullest([found for _, found in told]) if group is None else group
    rows = [(one, where) for one, found in told if (where := found.of(name)) is not None]
    if not any(sum(where.file_pages) for _, where in rows):
        name, rows = "", []
    moments = tuple(_moment(one, where, first) for one, where in rows)
    return Audit(
        group=name,
        moments=moments,
        device_bytes=device,
        logical_bytes=tuple(logical_bytes),
        nominal_bytes=tuple(nominal_bytes),
        capacity_bytes=capacity_bytes,
        wave=strongest_wave(device),
        demand_wave=strongest_wave(nominal_bytes),
        unused=unused,
        tests=_tests([_iterations(moments, device, logical_bytes, capacity_bytes)]),
    )


def tests_over(audits: Sequence[Audit]) -> tuple[RoomTest, ...]:
    """Return the tests of the inference over the iterations of several passes, such as of several C or expert sizes.

    Room is compared between passes as a share of what the iteration after it asked for.

    Raises:
        InputError: there is no audit.
    """
    if not audits:
        raise InputError("no audit", "at least one")
    passes = [_iterations(one.moments, one.device_bytes, one.logical_bytes, one.capacity_bytes) for one in audits]
    return _tests(passes)


def unused_shares(
    plan: Planned, resident_bytes: npt.NDArray[np.uint64], iterations: Sequence[int] = UNUSED_FOR
) -> tuple[Unused, ...]:
    """Return how much of what is resident after a replay of ``plan`` its last iterations did not use.

    Args:
        plan: what was replayed.
        resident_bytes: u64 per expert of the plan, in its order: its bytes in the page cache at the end.
        iterations: how far to look back; what is not shorter than the plan is left out.

    Raises:
        InputError: the residency is not one of this plan's experts.
    """
    if len(resident_bytes) != len(plan.expert_bytes):
        seen = f"the resident bytes of {len(resident_bytes)} experts"
        raise InputError(seen, f"those of {len(plan.expert_bytes)}, as the plan has")
    total = int(resident_bytes.sum())
    last = len(plan.iterations) - 1
    if not total:
        return ()
    found = []
    for back in (one for one in iterations if one < last):
        used = np.zeros(len(resident_bytes), dtype=np.bool_)
        used[plan.sequence[int(plan.iterations[last - back]) :]] = True
        found.append(Unused(back, int(resident_bytes[~used].sum()) / total))
    return tuple(found)


def _fullest(found: Sequence[Generations]) -> str:
    """Return the path of the group that held most file pages over all samples."""
    pages: dict[str, int] = {}
    for group in (group for one in found for group in one.groups):
        pages[group.path] = pages.get(group.path, 0) + sum(group.file_pages)
    return max(pages, key=pages.__getitem__, default="")


def _moment(sample: Sampled, group: GroupGenerations, first: int) -> Moment:
    scan, steal = _reclaimed(sample.files)
    return Moment(
        iteration=sample.iteration - first,
        clock_seconds=sample.clock_seconds,
        min_seq=min(node.min_file_seq for node in group.nodes),
        max_seq=max(node.max_seq for node in group.nodes),
        file_pages=group.file_pages,
        anon_pages=group.anon_pages,
        scan_pages=scan,
        steal_pages=steal,
    )


def _reclaimed(files: Mapping[str, str | None]) -> tuple[int | None, int | None]:
    """Return scan and steal since the beginning: the group's where its memory.stat was sampled, else all there was."""
    folder = next((str(PurePosixPath(path).parent) for path in files if path.endswith("/memory.stat")), None)
    found = parse(Capture("sample", 0.0, files), (), ScopeFiles(2, folder) if folder else None)
    if found.scope is not None and found.scope.pgscan is not None:
        return found.scope.pgscan, found.scope.pgsteal
    return _sum(found.pgscan_file, found.pgscan_anon), _sum(found.pgsteal_file, found.pgsteal_anon)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


@dataclass(frozen=True, slots=True, eq=False)
class _Iterations:
    """Iterations that a sample precedes.

    Attributes:
        rooms: the room before each, over the bytes that it asked for, by how room is measured.
        before: what the iteration before it inserted, over the same bytes; not a number for the first.
        collapsed: whether it collapsed.
        began: whether it is the first of a collapse.
    """

    rooms: Mapping[str, F64]
    before: F64
    collapsed: npt.NDArray[np.bool_]
    began: npt.NDArray[np.bool_]


def _iterations(moments: Sequence[Moment], device: Sequence[int], logical: Sequence[int], capacity: int) -> _Iterations:
    known = {one.iteration: one for one in moments if 0 <= one.iteration < len(device) and logical[one.iteration]}
    at = np.array(sorted(known), dtype=np.int64)
    read, asked = np.array(device, dtype=np.float64), np.array(logical, dtype=np.float64)[at]
    collapsed = read[at] >= COLLAPSED * asked
    rows = [known[one] for one in at.tolist()]
    return _Iterations(
        rooms={
            "oldest generation": np.array([one.oldest_bytes for one in rows]) / asked,
            "C - protected": np.array([capacity - one.protected_bytes for one in rows]) / asked,
        },
        before=np.concatenate([[np.nan], read])[at] / asked,
        collapsed=collapsed,
        # The one before it was healthy, and was seen.
        began=collapsed & ~np.concatenate([[True], collapsed])[: len(at)] & (np.diff(at, prepend=-1) == 1),
    )


def _tests(passes: Sequence[_Iterations]) -> tuple[RoomTest, ...]:
    both = _Iterations(
        rooms={name: np.concatenate([one.rooms[name] for one in passes]) for name in passes[0].rooms},
        before=np.concatenate([one.before for one in passes]),
        collapsed=np.concatenate([one.collapsed for one in passes]),
        began=np.concatenate([one.began for one in passes]),
    )
    return tuple(_test(name, room, both) for name, room in both.rooms.items())


def _test(name: str, room: F64, seen: _Iterations) -> RoomTest:
    sizes = int(seen.collapsed.sum()), int((~seen.collapsed).sum())
    auc = _auc(room[seen.collapsed], room[~seen.collapsed])
    verdict, reason = _judged(*sizes, auc)
    with np.errstate(divide="ignore", invalid="ignore"):  # nothing was inserted: any room is more
        room_before = room / seen.before
    lines = _line("all missed", room, seen), _line("as before", room_before, seen)
    return RoomTest(name, *sizes, auc=auc, lines=lines, verdict=verdict, reason=reason)


def _line(name: str, room: F64, seen: _Iterations) -> Line:
    """Count by the room over one iteration's insertions, which is not a number where these are not known."""
    below, above, kind = room < 1, room >= 1, seen.collapsed
    return Line(
        insertions=name,
        collapsed_below=int((below & kind).sum()),
        collapsed_above=int((above & kind).sum()),
        healthy_below=int((below & ~kind).sum()),
        healthy_above=int((above & ~kind).sum()),
        onsets=tuple(room[seen.began & np.isfinite(room)].tolist()),
    )


def _auc(lower: F64, higher: F64) -> float | None:
    """Return the probability that one of ``lower`` is below one of ``higher``, a tie counting half."""
    if not len(lower) or not len(higher):
        return None
    ordered = np.sort(higher)
    above = len(higher) - np.searchsorted(ordered, lower, "right")
    ties = np.searchsorted(ordered, lower, "right") - np.searchsorted(ordered, lower, "left")
    return float((above + ties / 2).mean() / len(higher))


def _judged(collapsed: int, healthy: int, auc: float | None) -> tuple[Outcome, str]:
    if not collapsed + healthy:
        return "not_examined", "no sample of generations with file pages precedes an iteration with device bytes"
    if min(collapsed, healthy) < MIN_ITERATIONS or auc is None:
        seen = f"{collapsed} iterations collapsed and {healthy} did not"
        return "not_examined", f"{seen}: at least {MIN_ITERATIONS} of each are needed to compare their room"
    if auc >= TELLS:
        return "supported", ""
    if auc <= TELLS_NOT:
        return "refuted", ""
    return "not_examined", f"AUC {auc:.2f} is between {TELLS_NOT} (refuted) and {TELLS} (supported)"
