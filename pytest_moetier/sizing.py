"""How much DRAM for a target: read off the measured capacity curve of a host (paper sections 4 and 8).

Between two measured capacities the curve is a straight line of log T against log C: on the paper's Table 2 that
predicts an inner point from its two neighbours within 2.2%, a line of T against log C within 6%. Medians that rise with
C within the spread of the rounds are pooled (isotonic regression, equal weights); a rise beyond it is refused. The
least and the most of the rounds give curves of their own, and so the answer its interval. Outside the measured
capacities there is no answer, but the capacity to measure next.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from pytest_moetier.cell import Cell
from pytest_moetier.errors import InputError
from pytest_moetier.span import Span
from pytest_moetier.tiers.constants import parse_rate
from pytest_moetier.units import Capacity, format_bytes, format_seconds

if TYPE_CHECKING:
    from pytest_moetier.history.sessions import StoredCell, StoredSession

SECONDS, BANDWIDTH = "seconds", "bandwidth"
PAPER = "gh200"
"""What the paper's own curve is asked for by."""
_TARGETS = "a target such as 2s/iteration, '0.5 iterations/s', or what the device can give, such as 5GB/s"
_TARGET = re.compile(r"^\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]+)\s*/\s*([A-Za-z]+)\s*$")
_ITERATION = {"iteration", "iterations", "iter", "it"}
_VARIED = ("prefetch", "fill", "spine", "read_limit", "locked", "read_ahead_kb", "filesystem")
"""In what a cell of the curve is as ``_USUAL`` is."""
_USUAL = Cell("capacity", Capacity.parse("100%"))
_SAME = ("pool_id", "plan_crc", "iterations", "threads", "compute_seconds")
"""In what the sessions of one curve must agree."""
_UNITS = {
    "seconds_per_iteration": "s/iteration",
    "device_bytes": "B/iteration",
    "logical_bytes": "B/iteration",
    "seconds_per_accepted_token": "s/token",
}
_MEASURE = "pytest bench/ -k capacity --benchmark-autosave"


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked for: at most so many seconds an iteration, or at most so many bytes a second of the device."""

    text: str
    kind: str
    value: float


def parse_target(text: str) -> Target:
    """Return the target that ``text`` names.

    Raises:
        InputError: it is none, or not positive; an accepted token is not an iteration.
    """
    match = _TARGET.match(text)
    if match is None:
        raise InputError(f"--target {text!r} is no target", _TARGETS)
    number, above, below = float(match[1]), match[2].lower(), match[3].lower()
    if "tok" in above + below:
        raise InputError(f"--target {text!r} is one of accepted tokens", f"{_TARGETS}: a token is not an iteration")
    if not number:
        raise InputError(f"--target {text!r} is zero", _TARGETS)
    if below in _ITERATION and above in {"s", "ms"}:
        return Target(text, SECONDS, number * (1e-3 if above == "ms" else 1))
    if above in _ITERATION and below == "s":
        return Target(text, SECONDS, 1 / number)
    if below == "s" and above.endswith("b"):
        return Target(text, BANDWIDTH, parse_rate(text, "--target"))
    raise InputError(f"--target {text!r} is no target", _TARGETS)


@dataclass(frozen=True, slots=True)
class Point:
    """One measured capacity; a value a round.

    Attributes:
        capacity_bytes: C.
        name: what it is called: the cell's id, or where it stands.
        seconds: an iteration.
        device_bytes: an iteration; empty where they were not stored.
        token_seconds: an accepted token; likewise.
        logical_bytes: what an iteration asked for, None where it was not stored.
    """

    capacity_bytes: int
    name: str
    seconds: tuple[float, ...]
    device_bytes: tuple[float, ...] = ()
    token_seconds: tuple[float, ...] = ()
    logical_bytes: float | None = None

    @property
    def bandwidths(self) -> tuple[float, ...]:
        """The device's bytes a second of each round."""
        if len(self.device_bytes) == len(self.seconds):
            return tuple(read / time for read, time in zip(self.device_bytes, self.seconds, strict=True))
        return (median(self.device_bytes) / median(self.seconds),) if self.device_bytes else ()


@dataclass(frozen=True, slots=True)
class Curve:
    """The measured capacities of one host and workload under one mechanism, ascending.

    Attributes:
        name: what it is a curve of.
        points: of single streams, or of the workload that was asked for.
        batch: of four streams merged; empty where they were not measured.
        pool_bytes: beyond which no capacity helps.
        remeasure: the command that adds a capacity, without it.
        notes: what a reader must know of it.
        batched: whether its iterations are those of four streams merged.
    """

    name: str
    points: tuple[Point, ...]
    batch: tuple[Point, ...]
    pool_bytes: int
    remeasure: str
    notes: tuple[str, ...] = ()
    batched: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The capacity that a target takes.

    Attributes:
        target: what was asked for.
        curve: what it was read off.
        capacity_bytes: the answer, by the medians of the rounds.
        capacity_low: its least, by the fastest rounds.
        capacity_high: its most, by the slowest rounds; None where these do not reach the target where it was measured.
        between: the measured points about it.
        seconds: an iteration there.
        device_bytes: an iteration there; None where they were not stored.
        bandwidth: the bytes a second that the device must give; likewise.
        caveats: what the answer does not say.
    """

    target: Target
    curve: Curve
    capacity_bytes: float
    capacity_low: float
    capacity_high: float | None
    between: tuple[Point, Point]
    seconds: Span
    device_bytes: Span | None
    bandwidth: Span | None
    caveats: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the answer in plain JSON types."""
        spans = {"seconds_per_iteration": self.seconds, "device_bytes": self.device_bytes}
        spans["device_bytes_per_second"] = self.bandwidth
        return {
            "target": self.target.text,
            "curve": self.curve.name,
            "capacity_bytes": round(self.capacity_bytes),
            "low_bytes": round(self.capacity_low),
            "high_bytes": None if self.capacity_high is None else round(self.capacity_high),
            "between_bytes": [one.capacity_bytes for one in self.between],
            **{name: one and {"low": one.low, "value": one.value, "high": one.high} for name, one in spans.items()},
            "caveats": list(self.caveats),
            "notes": list(self.curve.notes),
        }


# ---- the curve's mathematics


def falling(values: Sequence[float]) -> list[float]:
    """Return the nearest values that never rise (pool adjacent violators, equal weights)."""
    blocks: list[list[float]] = []
    for value in values:
        blocks.append([value])
        while len(blocks) > 1 and _mean(blocks[-2]) < _mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    return [_mean(block) for block in blocks for _ in block]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def value_at(capacities: Sequence[float], values: Sequence[float], at: float) -> float:
    """Return the curve's value at a capacity between the first and the last."""
    for (x0, x1), (y0, y1) in zip(pairwise(capacities), pairwise(values), strict=True):
        if at <= x1:
            share = math.log(at / x0) / math.log(x1 / x0)
            return math.exp((1 - share) * math.log(y0) + share * math.log(y1)) if y1 > 0 else y0 + share * (y1 - y0)
    return values[-1]


def capacity_for(capacities: Sequence[float], values: Sequence[float], most: float) -> float | None:
    """Return the least capacity at which the falling curve is at most ``most``; None where it never is.

    The first capacity where the curve is there already: what lies below it is not known.
    """
    if values[0] <= most:
        return capacities[0]
    for (x0, x1), (y0, y1) in zip(pairwise(capacities), pairwise(values), strict=True):
        if y1 <= most:
            share = math.log(y0 / most) / math.log(y0 / y1) if y1 > 0 else (y0 - most) / (y0 - y1)
            return float(x0 * (x1 / x0) ** share)
    return None


def interpolation_error(curve: Curve) -> Span | None:
    """Return how far an inner point's median lies from the line between its neighbours, as a share: the largest.

    Its ends are the least and the most that the rounds allow. None where there is no inner point.
    """
    found = [
        _error(left, inner, right)
        for left, inner, right in zip(curve.points, curve.points[1:], curve.points[2:], strict=False)
    ]
    if not found:
        return None
    low, value, high = (max(getattr(one, end) for one in found) for end in ("low", "value", "high"))
    return Span(low, value, high)


def _error(left: Point, inner: Point, right: Point) -> Span:
    at = [float(left.capacity_bytes), float(right.capacity_bytes)]
    least, middle, most = (
        value_at(at, [pick(left.seconds), pick(right.seconds)], inner.capacity_bytes) for pick in (min, median, max)
    )
    apart = least / max(inner.seconds) - 1, most / min(inner.seconds) - 1
    nearest = 0.0 if apart[0] <= 0 <= apart[1] else min(map(abs, apart))
    return Span(nearest, abs(middle / median(inner.seconds) - 1), max(map(abs, apart)))


# ---- the answer


def size(curve: Curve, target: Target) -> Answer:
    """Return the capacity that the target takes, by the curve.

    Raises:
        InputError: too few points, a curve that rises beyond its spread, or a target that it does not reach: with the
            capacity to measure next.
    """
    points = curve.points
    if len(points) < 2:
        seen = f"one capacity ({format_bytes(points[0].capacity_bytes)})" if points else "no capacity"
        raise InputError(
            f"{curve.name} has {seen}", "two or more, to read between", f"measure others: {curve.remeasure}"
        )
    rounds = [one.seconds if target.kind == SECONDS else one.bandwidths for one in points]
    if not all(rounds):
        lacking = next(one.name for one, values in zip(points, rounds, strict=True) if not values)
        raise InputError(
            f"{lacking} has no device bytes", "them at every capacity", f"measure it again: {curve.remeasure}"
        )
    _need_falling(curve, rounds, target.kind)
    capacities = [float(one.capacity_bytes) for one in points]
    middle, least, most = (falling([pick(values) for values in rounds]) for pick in (median, min, max))
    found = capacity_for(capacities, middle, target.value)
    if found is None or found == capacities[0]:
        raise _outside(curve, target, middle, too_fast=found is None)
    low, high = capacity_for(capacities, least, target.value), capacity_for(capacities, most, target.value)
    at = next(index for index, one in enumerate(capacities) if found <= one)
    spans = [_span(points, pick, found) for pick in ("seconds", "device_bytes", "bandwidths")]
    seconds, device, bandwidth = spans
    if seconds is None:
        raise InputError(f"{curve.name} has no seconds per iteration", "them at every capacity")
    between = points[at - 1], points[at]
    caveats = _caveats(curve, found, high, capacities)
    return Answer(target, curve, found, low or found, high, between, seconds, device, bandwidth, tuple(caveats))


def _span(points: Sequence[Point], pick: str, at: float) -> Span | None:
    """Return a value at a capacity, by the medians and by the least and the most of the rounds."""
    rounds: list[tuple[float, ...]] = [getattr(one, pick) for one in points]
    if not all(rounds):
        return None
    capacities = [float(one.capacity_bytes) for one in points]
    smooth = list if pick == "bandwidths" else falling  # a ratio of two that fall need not
    low, value, high = (value_at(capacities, smooth([each(r) for r in rounds]), at) for each in (min, median, max))
    return Span(low, value, high)


def _need_falling(curve: Curve, rounds: Sequence[tuple[float, ...]], kind: str) -> None:
    """Refuse a curve on which a larger capacity is worse in every round: no line through it can be read backwards."""
    show = format_seconds if kind == SECONDS else lambda value: f"{format_bytes(value)}/s"
    for (smaller, before), (larger, after) in combinations(zip(curve.points, rounds, strict=True), 2):
        if min(after) <= max(before):
            continue
        once = "; one round cannot tell a rise from noise" if len(after) == len(before) == 1 else ""
        raise InputError(
            f"{curve.name} rises from {show(median(before))} ({show(min(before))} to {show(max(before))}) at"
            f" {format_bytes(smaller.capacity_bytes)} to {show(median(after))} ({show(min(after))} to"
            f" {show(max(after))}) at {format_bytes(larger.capacity_bytes)}, beyond the spread of its rounds{once}",
            "a curve that falls with capacity, within its spread",
            f"measure both again, with more rounds: {curve.remeasure} --moetier-rounds 5 --moetier-capacity"
            f" {capacity_word(smaller.capacity_bytes)},{capacity_word(larger.capacity_bytes)}",
        )


def _outside(curve: Curve, target: Target, middle: Sequence[float], *, too_fast: bool) -> InputError:
    """Return the refusal of a target beyond either end of the curve, with what to measure next."""
    first, last = curve.points[0], curve.points[-1]
    edge = last if too_fast else first
    shown = _shown(target, middle[-1] if too_fast else middle[0])
    if not too_fast:
        word = capacity_word(
            _beyond(curve.points[1].capacity_bytes, first.capacity_bytes, middle[1], middle[0], target)
        )
        return InputError(
            f"{target.text}: the smallest capacity measured, {format_bytes(edge.capacity_bytes)}, already takes"
            f" {shown}; less would do, and how much less is not known",
            f"a target that {curve.name} crosses",
            f"{curve.remeasure} --moetier-capacity {word}",
        )
    seen = f"{target.text} is beyond {curve.name}: its best point is {shown} at {format_bytes(edge.capacity_bytes)}"
    if last.capacity_bytes >= 0.99 * curve.pool_bytes:
        return InputError(
            f"{seen}, which holds the whole pool of {format_bytes(curve.pool_bytes)}",
            "a target that it reaches: no capacity does more",
            "fewer bytes an iteration, more reader threads, or a faster processor",
        )
    wanted = _beyond(curve.points[-2].capacity_bytes, last.capacity_bytes, middle[-2], middle[-1], target)
    word = capacity_word(min(wanted, curve.pool_bytes))
    return InputError(seen, "a target that it crosses", f"{curve.remeasure} --moetier-capacity {word}")


def _beyond(inner: float, edge: float, inner_value: float, edge_value: float, target: Target) -> float:
    """Return a capacity to measure past the edge: where the last line would meet the target, at most 4 times away."""
    ratio = edge / inner
    steps = 1.0
    if edge_value > 0 and inner_value > 0 and edge_value != inner_value:
        steps = math.log(target.value / edge_value) / math.log(edge_value / inner_value)
    factor = math.pow(ratio, max(steps, 0.0))
    return edge * (min(max(factor, 1.1), 4.0) if ratio > 1 else max(min(factor, 0.9), 0.25))


def _shown(target: Target, value: float) -> str:
    """Return a value of the curve in the target's own unit."""
    if target.kind == BANDWIDTH:
        return f"{format_bytes(value)}/s of the device"
    return f"{format_seconds(value)} an iteration ({1 / value:.3g} iterations/s)"


def capacity_word(value: float) -> str:
    """Return a capacity as ``--moetier-capacity`` takes it, to three digits."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if value >= scale or unit == "KB":
            break
    return f"{float(f'{value / scale:.3g}'):.10g}{unit}"


def _caveats(curve: Curve, found: float, high: float | None, capacities: Sequence[float]) -> Iterable[str]:
    if high is None:
        word = capacity_word(min(capacities[-1] * 1.5, curve.pool_bytes))
        yield (
            f"the slowest rounds do not reach the target at {format_bytes(capacities[-1])}, the largest measured: the"
            f" upper end is open; next: {curve.remeasure} --moetier-capacity {word}"
        )
    fewest = min(len(one.seconds) for one in curve.points)
    if fewest == 1:
        yield "a capacity was measured in one round: without a spread the interval is none; next: --moetier-rounds 5"
    cycle = [one.logical_bytes for one in curve.points if one.logical_bytes]
    if cycle and found < median(cycle):
        yield (
            f"C is below what one iteration reads ({format_bytes(median(cycle))}): the cache is cycled within a token,"
            " recency keeps little of it, and a little less C can cost much more"
        )
    yield _batching(curve, found)
    yield "where most of the host's memory is locked, a curve under a wall does not hold (section 5)"


def _batching(curve: Curve, found: float) -> str:
    """Return what is known of four streams at this capacity."""
    if curve.batched:
        return "an iteration is one of four streams merged"
    batch = [one for one in curve.batch if one.token_seconds]
    alone = [one for one in curve.points if one.token_seconds]
    if not batch:
        return "batching was not measured: this is the capacity of one stream (section 4)"
    edges = format_bytes(batch[0].capacity_bytes), format_bytes(batch[-1].capacity_bytes)
    if not batch[0].capacity_bytes <= found <= batch[-1].capacity_bytes or len(batch) < 2 or len(alone) < 2:
        return f"a batch of four was measured from {edges[0]} to {edges[1]} alone: this is the capacity of one stream"
    many, one = (_span(points, "token_seconds", found) for points in (batch, alone))
    if many is None or one is None:
        return "batching was not measured at every capacity: this is the capacity of one stream"
    return (
        f"a batch of four takes {format_seconds(many.value)} an accepted token at this capacity, one stream"
        f" {format_seconds(one.value)}"
    )


# ---- from stored sessions


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of the stored cells are the curve's; None leaves open what must then be one."""

    mechanism: str = "cgroup"
    mode: str = "page_cache"
    mglru: str | None = None
    workload: str = "single"
    kernel: str = "host"

    @property
    def words(self) -> str:
        """The choice in words."""
        named = [self.mechanism, self.mode, *([f"MGLRU {self.mglru}"] if self.mglru else [])]
        named += [self.workload] if self.workload != "single" else []
        return ", ".join(named) + (f", kernel {self.kernel}" if self.kernel != "host" else "")


def curve_of(sessions: Sequence[StoredSession], choice: Choice, this_host: str = "") -> Curve:
    """Return the curve of stored sessions, of which the newest that measured a cell counts.

    Args:
        sessions: oldest first.
        choice: which cells are the curve's.
        this_host: the id of this host; "" to say nothing of another's.

    Raises:
        InputError: no such cells, cells of several settings, sessions that cannot be one curve, or a value that is no
            number.
    """
    found = {
        (cell.id, at): (cell, session)
        for at, session in enumerate(sessions)
        for cell in session.cells.values()
        if _fits(cell, choice) and cell.words["workload"] in {choice.workload, "batch4"}
    }
    cells = {cell.id: (cell, session) for cell, session in found.values()}  # the newest of each
    mine = [pair for pair in cells.values() if pair[0].words["workload"] == choice.workload]
    if not mine:
        names = ", ".join(str(one.path) for one in sessions) or "no file"
        raise InputError(f"no capacity cell of {choice.words} in {names}", "at least two capacities", _command(choice))
    _need_one(mine, choice)
    points = [_point(cell) for cell, _ in mine]
    state = {cell.words["mglru"] for cell, _ in mine}
    batch = [_point(cell) for cell, _ in cells.values() if cell.words["workload"] == "batch4"]
    batch = [] if choice.workload == "batch4" else batch
    first = mine[0][0]
    return Curve(
        name=f"T(C) of {choice.words}{_synthetic(mine)}",
        points=tuple(sorted(points, key=lambda one: one.capacity_bytes)),
        batch=tuple(sorted(batch, key=lambda one: one.capacity_bytes)) if len(state) == 1 else (),
        pool_bytes=int(first.context["pool_bytes"]),
        remeasure=_command(choice),
        notes=tuple(_notes(mine, this_host)),
        batched=choice.workload == "batch4",
    )


def latest_curve(sessions: Sequence[StoredSession], choice: Choice, this_host: str, where: str) -> Curve:
    """Return the curve of the newest session of this host that measured two capacities or more.

    Args:
        sessions: oldest first.
        choice: which cells are the curve's.
        this_host: its id.
        where: the sessions were looked for.

    Raises:
        InputError: there is none.
    """
    for session in reversed(sessions):
        mine = [
            one for one in session.cells.values() if _fits(one, choice) and one.words["workload"] == choice.workload
        ]
        if session.host == this_host and len({one.words["capacity"] for one in mine}) > 1:
            return curve_of([session], choice, this_host)
    raise InputError(
        f"no session of this host in {where} has a capacity curve of {choice.words} ({len(sessions)} were read)",
        "one with two capacities or more",
        f"{_command(choice)}, or name a file: --from FILE",
    )


def _command(choice: Choice) -> str:
    words = f"{_MEASURE} --moetier-mechanism {choice.mechanism}"
    words += f" --moetier-mode {choice.mode}" if choice.mode != "page_cache" else ""
    words += f" --moetier-mglru {choice.mglru}" if choice.mglru else ""
    return words + (f" --moetier-kernel {choice.kernel}" if choice.kernel != "host" else "")


def _fits(cell: StoredCell, choice: Choice) -> bool:
    """Whether a cell is a point of the curve, or of its batch."""
    words = cell.words
    wanted = {"finding": "capacity", "mechanism": choice.mechanism, "mode": choice.mode, "kernel": choice.kernel}
    wanted |= {name: getattr(_USUAL, name) for name in _VARIED}
    wanted |= {"mglru": choice.mglru} if choice.mglru else {}
    return not cell.traced and "capacity" in words and all(words.get(name, one) == one for name, one in wanted.items())


_Pairs = Sequence[tuple["StoredCell", "StoredSession"]]


def _need_one(mine: _Pairs, choice: Choice) -> None:
    """Refuse cells that are not of one setting, plan and host."""
    if len(states := sorted({str(cell.words["mglru"]) for cell, _ in mine})) > 1:
        raise InputError(
            f"{choice.words} was measured with MGLRU {' and '.join(states)}", "one", "choose: --mglru STATE"
        )
    for name in _SAME:
        values = {str(cell.context.get(name, 0.0 if name == "compute_seconds" else None)) for cell, _ in mine}
        if len(values) > 1:
            raise InputError(
                f"the points of {choice.words} differ in {name} ({', '.join(sorted(values))})",
                "capacities of one pool, plan and number of threads",
                "name sessions that agree: --from FILE",
            )
    if len(hosts := sorted({session.host for _, session in mine})) > 1:
        raise InputError(f"the sessions are of the hosts {', '.join(hosts)}", "those of one", "name them: --from FILE")
    if any(cell.guest and cell.guest.get("emulated") for cell, _ in mine):
        raise InputError(
            f"{choice.words} was measured in a virtual machine whose processors are software",
            "times of hardware",
            _MEASURE,
        )


def _synthetic(mine: _Pairs) -> str:
    kinds = [
        word
        for name, word in (("synthetic_trace", "synthetic trace"), ("synthetic_pool", "synthetic pool"))
        if any(cell.context.get(name) for cell, _ in mine)
    ]
    return f" ({', '.join(kinds)})" if kinds else ""


def _notes(mine: _Pairs, this_host: str) -> Iterable[str]:
    for session in {id(one): one for _, one in mine}.values():
        where = "" if not this_host or session.host == this_host else f", another host ({session.host})"
        yield f"read off {session.path}, stored {session.time:%Y-%m-%d %H:%M}, kernel {session.release}{where}"
    if any(cell.context.get("synthetic_trace") for cell, _ in mine):
        yield "the trace is synthetic: the curve is that of its generator's statistics, not of a model"


def _point(cell: StoredCell) -> Point:
    logical = _values(cell, "logical_bytes")
    pool = cell.context.get("pool_bytes")
    if not isinstance(pool, int):
        raise InputError(
            f"{cell.id} was stored without the size of its pool", "it, to know C", "measure the cell again"
        )
    return Point(
        capacity_bytes=Capacity.parse(str(cell.words["capacity"])).resolve(pool),
        name=cell.id,
        seconds=_values(cell, "seconds_per_iteration", least=math.ulp(0.0)),
        device_bytes=_values(cell, "device_bytes"),
        token_seconds=_values(cell, "seconds_per_accepted_token"),
        logical_bytes=median(logical) if logical else None,
    )


def _values(cell: StoredCell, name: str, least: float = 0.0) -> tuple[float, ...]:
    """Return the values of a metric; empty where an optional one was not stored."""
    metric = cell.metrics.get(name)
    if metric and metric.unit != _UNITS[name]:
        raise InputError(f"{name} of {cell.id} is in {metric.unit}", f"{_UNITS[name]}", "leave its file out")
    values = metric.values if metric else ()
    if (least and not values) or not all(math.isfinite(one) and one >= least for one in values):
        told = ", ".join(map(str, values)) or "missing"
        raise InputError(
            f"{name} of {cell.id} is {told}",
            "a positive number for every round",
            "measure the cell again, or leave its file out",
        )
    return values


# ---- the paper's own curve


def paper_curve() -> Curve:
    """Return the paper's Table 2 and its batch of four. Its spread is taken to lie evenly about its median."""
    table = ((64, 2.76, 0.014, 33.6), (128, 1.95, 0.040, 17.4), (256, 1.37, 0.021, 9.8), (448, 0.99, 0.005, 5.3))
    points = [
        Point(
            capacity_bytes=round(capacity * 1e9),
            name=f"Table 2, {capacity} GB",
            seconds=(seconds * (1 - spread / 2), seconds, seconds * (1 + spread / 2)),
            device_bytes=(read * 1e9,),
            token_seconds=(seconds * 285 / 299,),
            logical_bytes=29.2e9,
        )
        for capacity, seconds, spread, read in table
    ]
    batch = [
        Point(round(capacity * 1e9), f"section 4, {capacity} GB", (), token_seconds=(seconds,))
        for capacity, seconds in ((256, 1.30), (448, 0.82))
    ]
    return Curve(
        name="the paper's T(C), Table 2",
        points=tuple(points),
        batch=tuple(batch),
        pool_bytes=round(1.45e12),
        remeasure=_MEASURE,
        notes=(
            "balloon, GH200, Kimi-K3 prose; the spread is taken to lie evenly about the median",
            (
                "the paper reads 'two iterations per second' off this curve as 128-256 GB, but its fastest point is"
                " 0.99 s an iteration: what is said here is the curve's, not the text's"
            ),
        ),
    )
