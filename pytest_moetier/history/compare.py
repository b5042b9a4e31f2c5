"""Two sessions, or two sets of them, held against each other: each cell's metrics with ratio, interval and verdict.

``worse`` and ``better`` need the ratio of the medians beyond a stated effect size, and significance after Holm's
correction over the cells; ``same`` needs the whole interval within it. Otherwise it cannot be told, with what would.
A session is a block: of several on a side, each gives its median. In guests every round is a boot of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from pytest_moetier.errors import InputError
from pytest_moetier.finding import EMULATED, TIMED, Metric
from pytest_moetier.history.ranks import LEAST, holm, rank_test, ratio_interval, values_needed
from pytest_moetier.history.sessions import StoredCell, StoredSession

ALPHA = 0.05
"""The chance of one false alarm over all cells of a metric, and 1 - the confidence of an interval."""
EFFECT = 0.05
"""Share by which a median must differ to matter, where none is stated."""
WORSE, BETTER, CHANGED, SAME, CANNOT_TELL = "worse", "better", "changed", "same", "cannot tell"
ROUNDS, BOOTS, SESSIONS, FIGURES = "rounds", "boots", "sessions", "figures"
"""What the values of a side are: a trace's statistics are exact figures."""

_MACHINE = ("accelerator", "cpus")
"""Not the RAM: it is what a guest needs to hold C on its kernel."""
_CELLS = {
    "pool_id": "pool",
    "trace": "trace",
    "plan_crc": "plan",
    "iterations": "iterations",
    "threads": "threads",
    "compute_seconds": "compute phase",
    "lists": "lists",
    "profile": "profile",
}
_TRACES = {"layers": "layers", "experts": "experts", "k": "k", "iterations": "iterations", "synthetic": "synthetic"}


def parse_effect(text: str) -> float:
    """Return the share of ``PCT%``.

    Raises:
        InputError: it has another shape, or is not above 0% and below 100%.
    """
    try:
        effect = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        effect = math.nan
    if not text.strip().endswith("%") or not 0 < effect < 1:
        raise InputError(f"{text!r} is no effect size", "a percentage above 0% and below 100%, such as 5%")
    return effect


@dataclass(frozen=True, slots=True)
class Gate:
    """The one metric, declared beforehand, whose regression fails, and by which share it must be worse."""

    metric: str
    effect: float

    @classmethod
    def parse(cls, text: str) -> Gate:
        """Return the gate of ``METRIC:PCT%``.

        Raises:
            InputError: it has another shape, or another share than ``parse_effect`` takes.
        """
        metric, _, percent = text.strip().partition(":")
        if not metric or not percent:
            raise InputError(f"{text!r} is no gate", "METRIC:PCT%, such as device_bytes:5%")
        return cls(metric, parse_effect(percent))

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"{self.metric}:{100 * self.effect:g}%"


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric of one cell on both sides.

    Attributes:
        cell: its id on the side of now.
        metric: its name.
        unit: of the values.
        better: lower, higher or neither.
        then: the values of the baseline.
        now: the values that are held against them.
        units: what a value is of: a round, a boot, a session.
        effect: share by which the medians must differ to matter.
        ratio: median now / median then; None where there is none.
        low: lower end of the ratio's interval.
        high: upper end.
        p: of no difference, after Holm's correction over the cells; None with too few values.
        verdict: better, worse, changed (where neither is), same or cannot tell.
        reason: why it cannot be told, and what would tell.
    """

    cell: str
    metric: str
    unit: str
    better: str
    then: tuple[float, ...]
    now: tuple[float, ...]
    units: str
    effect: float
    ratio: float | None
    low: float
    high: float
    p: float | None
    verdict: str
    reason: str = ""

    @property
    def interval(self) -> str:
        """The ratio's interval as it is shown; "-" where the values are too few for one."""
        return "-" if math.isinf(self.high) and not self.low else f"{self.low:.3f} to {self.high:.3f}"

    def __str__(self) -> str:
        """Return it in one line: what a failed test says."""
        ratio = "no ratio" if self.ratio is None else f"{self.ratio:.3f}x"
        p = "" if self.p is None else f", p {self.p:.2g} after Holm"
        return (
            f"{self.metric} of {self.cell} is {self.verdict}: {median(self.then):.6g} then, {median(self.now):.6g} now"
            f" {self.unit}, {ratio}, 95% interval {self.interval}, effect size {self.effect:.1%},"
            f" {len(self.then)} and {len(self.now)} {self.units}{p}" + (f": {self.reason}" if self.reason else "")
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of comparing.

    Attributes:
        then: the sessions of the baseline, by name.
        now: those that are held against them.
        found: a comparison for each cell and metric.
        refused: why a cell is not compared, by its id.
        notes: what differs and may, and what the figures are of.
        gate: the one that was declared, None for none.
    """

    then: tuple[str, ...]
    now: tuple[str, ...]
    found: tuple[Compared, ...]
    refused: Mapping[str, str]
    notes: tuple[str, ...]
    gate: Gate | None = None

    def gated(self) -> dict[str, Compared]:
        """Return what was found of the gate's metric, by cell."""
        return {one.cell: one for one in self.found if self.gate is not None and one.metric == self.gate.metric}

    def of_cell(self, cell: str) -> tuple[str, str]:
        """Return the gate's verdict on a cell and its one line: ``cannot tell`` where it was not compared."""
        found = self.gated().get(cell)
        if found is not None:
            return found.verdict, str(found)
        metric = self.gate.metric if self.gate is not None else ""
        why = self.refused.get(cell, "not observed on both sides")
        return CANNOT_TELL, f"{metric} of {cell} is not compared: {why}"


@dataclass(frozen=True, slots=True)
class _Pair:
    """A cell in the sessions of both sides."""

    cell: str
    then: tuple[StoredCell, ...]
    now: tuple[StoredCell, ...]

    def metric(self, name: str) -> tuple[list[Metric], list[Metric]]:
        """Return a metric in each session of either side that has it."""
        then, now = ([one.metrics[name] for one in side if name in one.metrics] for side in (self.then, self.now))
        return then, now

    def values(self, name: str) -> tuple[tuple[float, ...], tuple[float, ...], str]:
        """Return the values of a metric on both sides, and what each is of."""
        then, now = self.metric(name)
        first = self.now[0]
        if first.traced:
            return then[-1].values, now[-1].values, FIGURES
        if first.guest is not None or (len(then), len(now)) == (1, 1):
            units = ROUNDS if first.guest is None else BOOTS
            return tuple(v for one in then for v in one.values), tuple(v for one in now for v in one.values), units
        return tuple(one.median for one in then), tuple(one.median for one in now), SESSIONS


def compare_sessions(  # noqa: PLR0913 - what is compared, and on which terms
    then: Sequence[StoredSession],
    now: Sequence[StoredSession],
    *,
    gate: Gate | None = None,
    effect: float = EFFECT,
    metrics: Iterable[str] = (),
    force: bool = False,
) -> Comparison:
    """Return every cell and metric of ``now`` held against ``then``.

    Args:
        then: the sessions of the baseline; at least one.
        now: those that are held against them; at least one.
        gate: the pre-declared metric with its effect size.
        effect: of the other metrics.
        metrics: to compare; none: every one that both sides have.
        force: compare also cells that were not measured alike.

    Raises:
        InputError: a side is compared with itself.
    """
    _refuse_itself(then, now)
    pairs, refused, notes = _pairs(then, now, force=force)
    wanted = dict.fromkeys(metrics)
    names = dict.fromkeys(name for pair in pairs for one in pair.now for name in one.metrics)
    found = [
        one
        for name in names
        if not wanted or name in wanted or (gate and name == gate.metric)
        for one in _of_metric(pairs, name, gate.effect if gate and name == gate.metric else effect)
    ]
    order = {pair.cell: place for place, pair in enumerate(pairs)}
    found.sort(key=lambda one: order[one.cell])
    return Comparison(
        tuple(one.name for one in then),
        tuple(one.name for one in now),
        tuple(found),
        refused,
        (*_differences(then, now, pairs), *notes, *_what_of(found)),
        gate,
    )


def _refuse_itself(then: Sequence[StoredSession], now: Sequence[StoredSession]) -> None:
    """Refuse a session as its own baseline, also where it was written to two files."""
    for one in now:
        for other in then:
            mine, theirs = _times(one), _times(other)
            same_file = one.path.resolve() == other.path.resolve() and set(one.cells) & set(other.cells)
            if same_file or any(theirs.get(name) == mine[name] for name in mine):
                raise InputError(
                    f"{one.path} would be compared with itself ({other.path})",
                    "a baseline that was measured before",
                    "moetier history list",
                )


def _times(session: StoredSession) -> dict[str, tuple[float, ...]]:
    """Return the seconds of each cell: no two sessions measure the same."""
    found = {name: one.metrics.get("seconds_per_iteration") for name, one in session.cells.items() if not one.traced}
    return {name: one.values for name, one in found.items() if one is not None}


def _pairs(
    then: Sequence[StoredSession], now: Sequence[StoredSession], *, force: bool
) -> tuple[list[_Pair], dict[str, str], list[str]]:
    """Return the cells that may be compared, why the others may not, and what is to be said."""
    pairs, refused, notes = [], {}, []
    for name in dict.fromkeys(name for one in now for name in one.cells):
        mine = tuple(one.cells[name] for one in now if name in one.cells)
        theirs = partners(mine[0], then)
        if isinstance(theirs, str):
            refused[name] = theirs
            continue
        apart = list(dict.fromkeys(word for one in (*theirs, *mine[1:]) for word in _apart(one, mine[0])))
        if apart and not force:
            refused[name] = f"another {', '.join(apart)}"
            continue
        if apart:
            notes.append(f"forced: {name} has another {', '.join(apart)}")
        pairs.append(_Pair(name, theirs, mine))
    seen = {one.id for pair in pairs for one in pair.then} | set(refused)
    gone = sorted({name for one in then for name in one.cells if name not in seen})
    if gone:
        notes.append(f"in the baseline alone: {', '.join(gone)}")
    unproved: dict[str, list[str]] = {}
    for name, (verdict, why) in ((name, said) for one in now for name, said in one.unproved.items()):
        unproved.setdefault(f"{verdict} now: {why}", []).append(name)
    notes += [f"{', '.join(names)}: {why}" for why, names in unproved.items()]
    return pairs, refused, notes


def partners(mine: StoredCell, then: Sequence[StoredSession]) -> tuple[StoredCell, ...] | str:
    """Return the cell in each session of the baseline: the one of that id, or the only one on another kernel."""
    exact = tuple(one.cells[mine.id] for one in then if mine.id in one.cells)
    if exact:
        return exact
    others = [_of_base(mine, one) for one in then]
    if any(len(one) > 1 for one in others):
        labels = ", ".join(str(cell.words.get("kernel")) for one in others for cell in one)
        return f"the baseline has it on several kernels ({labels}): name one, kernel:{others[0][0].words.get('kernel')}"
    found = tuple(cell for one in others for cell in one)
    return found or "not in the baseline"


def _of_base(mine: StoredCell, then: StoredSession) -> list[StoredCell]:
    """Return the cells of a session that are a cell's but for the kernel: those of its own lane where it has such."""
    every = [one for one in then.cells.values() if one.base == mine.base and one.traced == mine.traced]
    return [one for one in every if (one.guest is None) == (mine.guest is None)] or every


def _apart(then: StoredCell, now: StoredCell) -> list[str]:
    """Return in what two cells must not differ and do, with the values of both."""
    if then.traced != now.traced:
        return ["kind: a trace and a cell"]
    found = []
    for name, word in (_TRACES if now.traced else _CELLS).items():
        one, other = (cell.context.get(name) for cell in (then, now))
        if one != other and not (name == "profile" and None in {one, other}):  # older files do not say it
            found.append(f"{word} ({_words(one)} then, {_words(other)} now)")
    if (then.guest is None) != (now.guest is None):
        lanes = ("a host" if one.guest is None else "a virtual machine" for one in (then, now))
        return [*found, "lane ({} then, {} now)".format(*lanes)]
    for name in _MACHINE if then.guest is not None and now.guest is not None else ():
        one, other = ((cell.guest or {}).get(name) for cell in (then, now))
        if one != other:
            found.append(f"{name} ({one} then, {other} now)")
    return found


def _words(value: Any) -> str:  # noqa: ANN401 - any JSON value
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value in {None, ""} else str(value)


def _of_metric(pairs: Sequence[_Pair], name: str, effect: float) -> list[Compared]:
    """Return a metric of all cells that have it on both sides; its tests are corrected for one another."""
    seen = [_seen(pair, name, effect) for pair in pairs if all(pair.metric(name))]
    family = [place for place, one in enumerate(seen) if one.ratio is not None and one.units != FIGURES]
    # A cell with too few values is a test all the same: it is to be measured again, and sharpens no other.
    ps = {place: _tested(seen[place]) for place in family}
    adjusted = holm([1.0 if p is None else p for p in ps.values()])
    for (place, p), corrected in zip(ps.items(), adjusted, strict=True):
        seen[place] = replace(seen[place], p=None if p is None else corrected)
    return [_judged(one, len(family)) for one in seen]


def _tested(one: Compared) -> float | None:
    return rank_test(one.then, one.now) if min(len(one.then), len(one.now)) >= LEAST else None


def _seen(pair: _Pair, name: str, effect: float) -> Compared:
    """Return both sides' values of a metric with their ratio and its interval; no verdict yet."""
    then, now, units = pair.values(name)
    metric = pair.metric(name)[1][-1]
    spelled = {one.unit for side in pair.metric(name) for one in side}
    problem = "values below zero have no ratio" if min(*then, *now) < 0 else ""
    if name in TIMED and any(one.guest and one.guest.get("emulated") for one in (*pair.then, *pair.now)):
        problem = EMULATED
    if len(spelled) > 1:
        problem = f"its units differ: {' and '.join(sorted(spelled))}"
    ratio = None if problem else _over(median(now), median(then))
    low, high = (0.0, math.inf) if problem else ratio_interval(then, now, ALPHA)
    if ratio is not None and (units == FIGURES or len({*then, *now}) == 1):
        low = high = ratio
    about = (pair.cell, name, metric.unit, metric.better, then, now, units, effect)
    return Compared(*about, ratio, low, high, None, CANNOT_TELL, problem)


def _over(above: float, below: float) -> float:
    """Return above / below; nothing over nothing is alike."""
    return above / below if below else math.inf if above else 1.0


def _judged(one: Compared, family: int) -> Compared:
    """Return it with its verdict, and the reason where it cannot be told."""
    if one.ratio is None:
        return one
    verdict = _verdict(one, one.ratio)
    return replace(one, verdict=verdict, reason=_reason(one, family) if verdict == CANNOT_TELL else "")


def _verdict(one: Compared, ratio: float) -> str:
    beyond = not 1 - one.effect <= ratio <= 1 + one.effect
    if one.units == FIGURES:
        return CHANGED if beyond else SAME
    if one.p is None:
        return CANNOT_TELL
    if beyond and one.p <= ALPHA:
        good = BETTER if (ratio < 1) == (one.better == "lower") else WORSE
        return CHANGED if one.better == "neither" else good
    return SAME if 1 - one.effect <= one.low and one.high <= 1 + one.effect else CANNOT_TELL


def _reason(one: Compared, family: int) -> str:
    """Return what would tell: more values, or less overlap of the sides."""
    then, now = len(one.then), len(one.now)
    tests = f"{family} cells" if family > 1 else "one cell"
    if one.p is None or 2 * family > ALPHA * math.comb(then + now, now):
        needed = values_needed(family, ALPHA)
        return f"{then} and {now} {one.units}; {needed} a side are needed to tell a change from chance over {tests}"
    overlap = f"the sides overlap (p {one.p:.2g} after Holm over {tests}), and " if one.p > ALPHA else ""
    return f"{overlap}the interval reaches beyond {one.effect:.1%}: more {one.units} would tell"


def _differences(then: Sequence[StoredSession], now: Sequence[StoredSession], pairs: Sequence[_Pair]) -> list[str]:
    """Return what may differ and does: the kernels, the hosts, and the guests' own settings."""
    notes = []
    kernels = {
        (" and ".join(sorted(_releases(then, pair.then))), " and ".join(sorted(_releases(now, pair.now))))
        for pair in pairs
        if not pair.now[0].traced
    }
    notes += [f"kernel {one} then, {other} now" for one, other in sorted(kernels) if one != other]
    hosts = [" and ".join(sorted({one.host or "unknown" for one in side})) for side in (then, now)]
    if hosts[0] != hosts[1]:
        notes.append(f"host {hosts[0]} then, {hosts[1]} now")
    found: dict[str, list[str]] = {}
    for pair in pairs:
        old, new = ((side[-1].guest or {}).get("settings") or {} for side in (pair.then, pair.now))
        for name in sorted({*old, *new} - {"min_free_kbytes"}):  # the kernel computes it from its RAM
            if old.get(name) != new.get(name):
                found.setdefault(f"{name} {old.get(name)} then, {new.get(name)} now", []).append(pair.cell)
    every = len(pairs)
    return notes + [f"{words}{'' if len(c) == every else ': ' + ', '.join(c)}" for words, c in found.items()]


def _releases(sessions: Sequence[StoredSession], cells: Iterable[StoredCell]) -> set[str]:
    return {one.release_of(cell) for cell in cells for one in sessions if one.cells.get(cell.id) is cell}


def _what_of(found: Iterable[Compared]) -> list[str]:
    """Return what a value is of, where that limits what is said."""
    units = {one.units for one in found}
    lines = []
    if ROUNDS in units:
        lines.append("rounds of one session a side: it is said of these two sessions, not of two kernels or commits")
    if SESSIONS in units:
        lines.append("each value is the median of a session")
    if BOOTS in units:
        lines.append("each value is of a boot of its own")
    return lines
