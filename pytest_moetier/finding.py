"""Proved runs against bounds: metrics, bounds with their sources, profiles of a host, and verdicts.

A verdict is ``supported``, ``refuted``, ``not_examined`` (with the reason) or ``invalid`` (the proof failed). A bound
names its source and the invariants it rests on; when one of them was not observed, the verdict is not_examined. What
was measured in a virtual machine is said of its scale alone: the same claim for hardware stays not_examined.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import yaml

from pytest_moetier.cell import Cell
from pytest_moetier.errors import InputError
from pytest_moetier.figures import Figures
from pytest_moetier.host.machine import GuestFacts
from pytest_moetier.proof import INVARIANTS, Proof, ProvedRun
from pytest_moetier.replay import Run
from pytest_moetier.span import Span
from pytest_moetier.units import format_bytes

SUPPORTED, REFUTED, NOT_EXAMINED, INVALID = "supported", "refuted", "not_examined", "invalid"
EMULATED = "wall time under emulation: a virtual machine's processors are software"
"""Why no bound on time is judged there."""

BOUNDS_FORMAT = "moetier-bounds/1"
PROFILE_FORMAT = "moetier-profile/1"
_MEND = "mend the file, or learn a profile of this host: pytest bench/ --moetier-learn FILE"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a cell: a value per proved round, in ``unit``; ``better`` is lower, higher or neither."""

    name: str
    unit: str
    better: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over the rounds."""
        return float(median(self.values))

    @property
    def spread(self) -> float:
        """(largest - smallest) / median over the rounds: the paper's run spread; 0 for one round."""
        middle = self.median
        return (max(self.values) - min(self.values)) / middle if middle else 0.0


# name -> unit, better, where it comes from. Bytes are per engine iteration unless the unit says otherwise.
METRICS: dict[str, tuple[str, str, Callable[[Figures], Any]]] = {
    "seconds_per_iteration": ("s/iteration", "lower", lambda f: f.seconds_per_iteration),
    "device_bytes": ("B/iteration", "lower", lambda f: f.device_bytes),
    "logical_bytes": ("B/iteration", "neither", lambda f: f.logical_bytes),
    "fair_device_bytes": ("B/iteration", "lower", lambda f: f.fair_device_bytes),
    "hit_bytes": ("B/iteration", "higher", lambda f: f.hit_bytes),
    "held_bytes": ("B/iteration", "higher", lambda f: f.held_bytes),
    "demand_served": ("share", "higher", lambda f: f.demand_served),
    "nominal_bytes": ("B/iteration", "neither", lambda f: f.nominal_bytes),
    "nominal_bytes_at_c": ("B/iteration", "neither", lambda f: f.nominal_bytes_at_c),
    "belady_bytes": ("B/iteration", "neither", lambda f: f.belady_bytes),
    "amplification": ("device/nominal", "lower", lambda f: f.amplification),
    "amplification_at_c": ("device/nominal", "lower", lambda f: f.amplification_at_c),
    "amplification_over_belady": ("device/belady", "lower", lambda f: f.amplification_over_belady),
    "observed_capacity_bytes": ("B", "neither", lambda f: f.observed_capacity_bytes),
    "seconds_per_accepted_token": ("s/token", "lower", lambda f: f.seconds_per_accepted_token),
    "device_bytes_per_accepted_token": ("B/token", "lower", lambda f: f.device_bytes_per_accepted_token),
    "iteration_variation": ("share of mean", "lower", lambda f: f.iteration_variation),
    "cpu_seconds_per_iteration": ("s/iteration", "lower", lambda f: f.cpu_seconds_per_iteration),
    "major_faults": ("faults/iteration", "lower", lambda f: f.major_faults),
    "minor_faults": ("faults/iteration", "lower", lambda f: f.minor_faults),
    "preload_bytes": ("B", "neither", lambda f: f.preload_bytes),
    "written_bytes": ("B/iteration", "lower", lambda f: f.written_bytes),
    "advice_recall": ("share", "higher", lambda f: f.advice_recall),
    "prefetch_submitted": ("lists", "neither", lambda f: f.prefetch and f.prefetch.submitted),
    "prefetch_completed": ("lists", "higher", lambda f: f.prefetch and f.prefetch.completed),
    "prefetch_overwritten": ("lists", "lower", lambda f: f.prefetch and f.prefetch.overwritten),
    "prefetch_asked_bytes": ("B", "neither", lambda f: f.prefetch and f.prefetch.asked_bytes),
    "prefetch_resident_before_bytes": ("B", "neither", lambda f: f.prefetch and f.prefetch.resident_before_bytes),
    "prefetch_became_resident_bytes": ("B", "higher", lambda f: f.prefetch and f.prefetch.became_resident_bytes),
    "prefetch_read_bytes": ("B", "neither", lambda f: f.prefetch and f.prefetch.read_bytes),
    "lru_overlap": ("share", "neither", lambda f: f.fidelity and f.fidelity.lru_overlap),
    "belady_overlap": ("share", "neither", lambda f: f.fidelity and f.fidelity.belady_overlap),
    "lru_belady_overlap": ("share", "neither", lambda f: f.fidelity and f.fidelity.lru_belady_overlap),
    "random_overlap": ("share", "neither", lambda f: f.fidelity and f.fidelity.random_overlap),
    "partial_experts": ("experts", "lower", lambda f: f.fidelity and f.fidelity.partial_experts),
    "oom_kills": ("kills", "neither", lambda f: f.oom_kills),
    "iterations_before_oom": ("iterations", "neither", lambda f: f.iterations_before_oom),
    "scan_kswapd_pages": ("pages", "lower", lambda f: f.scan_kswapd_pages),
    "steal_kswapd_pages": ("pages", "neither", lambda f: f.steal_kswapd_pages),
    "scan_direct_pages": ("pages", "lower", lambda f: f.scan_direct_pages),
    "steal_direct_pages": ("pages", "neither", lambda f: f.steal_direct_pages),
    "scan_memcg_pages": ("pages", "lower", lambda f: f.scan_memcg_pages),
    "steal_memcg_pages": ("pages", "neither", lambda f: f.steal_memcg_pages),
    "refault_file_pages": ("pages", "lower", lambda f: f.refault_file_pages),
    "scan_per_steal": ("pages/page", "lower", lambda f: f.scan_per_steal),
    "locked_share": ("share", "neither", lambda f: f.locked_share),
    "capacity_bytes": ("B", "neither", lambda f: f.capacity_bytes),
    "control_bytes": ("B", "neither", lambda f: f.control_bytes),
    "wave_period": ("iterations", "neither", lambda f: f.wave and f.wave.period),
    "wave_amplitude": ("of nominal", "lower", lambda f: f.wave and f.wave.amplitude),
    "folio_bytes": ("B", "neither", lambda f: f.folio_bytes),
    "psi_some_share": ("share of wall", "lower", lambda f: f.psi_some_share),
    "psi_full_share": ("share of wall", "lower", lambda f: f.psi_full_share),
    "device_bytes_per_second": ("B/s", "neither", lambda f: f.device_bytes_per_second),
}


_TIME_UNITS = {"s/iteration", "s/token", "share of wall", "B/s"}
TIMED = {"iteration_variation", *(name for name, (unit, *_) in METRICS.items() if unit in _TIME_UNITS)}
"""The metrics that a clock gave."""


def metrics_of(runs: Sequence[ProvedRun]) -> dict[str, Metric]:
    """Return every metric that all ``runs`` observed, as plain floats."""
    found = {}
    for name, (unit, better, pick) in METRICS.items():
        values = [pick(run.figures) for run in runs]
        if values and None not in values:
            found[name] = Metric(name, unit, better, tuple(float(v) for v in values if v is not None))
    return found


def rail_deviation(
    cell: Cell, metrics: Mapping[str, Metric], siblings: Mapping[Cell, Mapping[str, Metric]], pool_bytes: int
) -> Metric | None:
    """Return how far each round's device bytes lie from the inverse-capacity rail, as a share (paper section 4).

    The rail is device bytes = k/C, anchored at the median of the largest capacity among ``siblings`` (the cells that
    differ in capacity alone). It has no fitted parameter and is a reference, not a claim. None without an anchor.
    """
    anchors = {one.capacity.resolve(pool_bytes): found for one, found in siblings.items() if "device_bytes" in found}
    if "device_bytes" not in metrics or not anchors:
        return None
    largest = max(anchors)
    rail = anchors[largest]["device_bytes"].median * largest / cell.capacity.resolve(pool_bytes)
    if not rail:
        return None
    values = tuple(value / rail - 1 for value in metrics["device_bytes"].values)
    return Metric("rail_deviation", "share", "neither", values)


class Proved(Protocol):
    """A proved run, of whatever was measured: of a cell, or of an engine."""

    @property
    def run(self) -> object:
        """What was seen."""

    @property
    def proof(self) -> Proof:
        """Its complete proof."""


def guest_of(run: Proved) -> GuestFacts | None:
    """Return the virtual machine that a run was measured in, None for this host."""
    return run.run.guest if isinstance(run.run, Run) else None


Pair = tuple[float, float]
"""The least and the most."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a model of the paper's host it was that a verdict was reached on; pairs over the runs.

    Attributes:
        memory_bytes: RAM of the machine.
        experts: capacity / mean bytes of an expert.
        iterations: capacity / mean bytes that an engine iteration asked for.
        threads: reader threads.
        machine: ``emulated``, ``kvm`` or ``host``, or several of them.
    """

    memory_bytes: Pair
    experts: Pair
    iterations: Pair
    threads: Pair
    machine: str

    @property
    def words(self) -> str:
        """The scale as a reader is told of it."""
        memory = _from_to(self.memory_bytes, format_bytes)
        experts, threads = (_from_to(one, "{:.0f}".format) for one in (self.experts, self.threads))
        iterations = _from_to(self.iterations, "{:.2g}".format)
        return f"RAM {memory}, C {experts} experts, {iterations} iterations, {threads} threads, {self.machine}"

    def as_json(self) -> dict[str, Any]:
        """Return the words, and the numbers as [least, most]."""
        pairs = ("memory_bytes", "experts", "iterations", "threads")
        numbers = {name: list(getattr(self, name)) for name in pairs}
        return {"words": self.words, **numbers, "machine": self.machine}


def _from_to(pair: Pair, form: Callable[[float], str]) -> str:
    low, high = map(form, pair)
    return low if low == high else f"{low} to {high}"


def scale_of(runs: Iterable[Proved], host_memory_bytes: int = 0) -> Scale | None:
    """Return the scale of proved runs, None where none of them was measured in a virtual machine.

    Args:
        runs: those that a verdict rests on.
        host_memory_bytes: RAM of this host, for runs on it.
    """
    replayed = [one.run for one in runs if isinstance(one.run, Run)]
    if all(one.guest is None for one in replayed):
        return None
    machines = {"host" if one.guest is None else "emulated" if one.guest.emulated else "kvm" for one in replayed}
    return Scale(
        memory_bytes=_pair(one.guest.memory_bytes if one.guest else host_memory_bytes for one in replayed),
        experts=_pair(one.capacity_bytes * one.measured.accesses / one.measured.bytes for one in replayed),
        iterations=_pair(one.capacity_bytes * len(one.measured.iterations) / one.measured.bytes for one in replayed),
        threads=_pair(one.output.start.threads for one in replayed),
        machine=" and ".join(sorted(machines)),
    )


def _pair(values: Iterable[float]) -> Pair:
    known = list(values)
    return min(known), max(known)


@dataclass(frozen=True, slots=True)
class HostMatch:
    """Which hosts a profile's bounds hold for: shell patterns against a host's facts; an empty one matches nothing."""

    patterns: Mapping[str, str]

    def mismatch(self, facts: Mapping[str, str]) -> str | None:
        """Return why ``facts`` are another host, or None when every pattern matches."""
        if not self.patterns:
            return "the profile names no host"
        for name, pattern in self.patterns.items():
            if not fnmatch.fnmatchcase(str(facts.get(name, "")), str(pattern)):
                return f"its {name} is {pattern}, this host's is {facts.get(name, 'unknown')}"
        return None


@dataclass(frozen=True, slots=True)
class Bound:
    """A statement about one value, with its source.

    Attributes:
        id: stable name, shown with every verdict.
        value: name of the value that a test hands to :func:`judge`.
        cell: shell pattern of the ids it holds for: of cells, or ``MODEL-DOMAIN`` of a trace and ``MODEL`` of a
            finding over the traces of a model (``*`` for all, and for findings over several cells).
        minimum: smallest value that supports it, or None.
        maximum: largest value that supports it, or None.
        source: where the bound comes from (paper section, or how it was learned).
        needs: invariants that must be held, not merely unbroken.
        iterations: fewest and most engine iterations of a trace that the source speaks of; None: no limit.
        timed: whether a clock gave the value: it is then not judged where the processors were software.
    """

    id: str
    value: str
    cell: str
    minimum: float | None
    maximum: float | None
    source: str
    needs: tuple[str, ...]
    iterations: tuple[int | None, int | None] = (None, None)
    timed: bool = False

    @property
    def text(self) -> str:
        """The bound in a reader's words."""
        match self.minimum, self.maximum:
            case None, high:
                return f"at most {high:.6g}"
            case low, None:
                return f"at least {low:.6g}"
            case low, high:
                return f"between {low:.6g} and {high:.6g}"

    def holds(self, value: float) -> bool:
        """Return whether ``value`` is inside the bound."""
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)

    def beyond(self, lengths: Iterable[int]) -> str:
        """Return why traces of so many iterations are not what the source speaks of; "" when they are.

        Skew, coverage and the sharpness of hot sets change with the length of a trace.
        """
        low, high = self.iterations
        for length in lengths:
            if (low is not None and length < low) or (high is not None and length > high):
                span = f"{low or 1} or more" if high is None else f"{low}" if low == high else f"{low or 1} to {high}"
                return f"the trace has {length} iterations, the source speaks of {span}"
        return ""


@dataclass(frozen=True, slots=True)
class Known:
    """A refutation that a profile expects on its host: xfailed with its reason, xpassed when it no longer holds.

    Attributes:
        test: the test's name, ``*`` as a pattern (``test_capacity[C4.4pct-*]``).
        bound: the id of the bound that is refuted; another bound's refutation of the same test still fails.
        reason: why it is expected.
    """

    test: str
    bound: str
    reason: str


@dataclass(frozen=True, slots=True)
class Profile:
    """A host's bounds and known refutations."""

    name: str
    bounds: tuple[Bound, ...]
    known: tuple[Known, ...]
    host: HostMatch

    def known_for(self, test: str) -> dict[str, str]:
        """Return the refutations expected of ``test`` (``test_capacity[C4.4pct-...]``): reason by bound id."""
        return {one.bound: one.reason for one in self.known if fnmatch.fnmatchcase(test, _escaped(one.test))}


def _escaped(test_id: str) -> str:
    """Let ``*`` be a pattern in a test id, but its brackets be themselves."""
    return test_id.replace("[", "[[]")


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict on one bound: the value, and why."""

    bound: Bound
    value: float | None
    verdict: str
    reason: str

    def __str__(self) -> str:
        """Return one line: what was observed, what was expected and who says so."""
        seen = "nothing" if self.value is None else f"{self.value:.6g}"
        return f"{self.bound.value} is {seen}, expected {self.bound.text} ({self.bound.source}){self.reason}"


def judge(bound: Bound, value: float | Span | None, runs: Iterable[Proved], reason: str = "") -> Judgement:
    """Return the verdict on ``bound`` for ``value``, measured by ``runs``.

    Args:
        bound: what is claimed.
        value: the measured value, a span of the rounds' values that the bound must not fall into, or None when it could
            not be had (then ``reason`` says why).
        runs: the proved runs that the value rests on.
        reason: why there is no value.
    """
    if value is None:
        return Judgement(bound, None, NOT_EXAMINED, f": {reason or 'not observed on this host'}")
    if problem := _unfit(bound, tuple(runs)):
        return Judgement(bound, value.value if isinstance(value, Span) else value, NOT_EXAMINED, f": {problem}")
    if not isinstance(value, Span):
        return Judgement(bound, value, SUPPORTED if bound.holds(value) else REFUTED, "")
    said = f": {value.low:.4g} to {value.high:.4g} over the rounds"
    low, high = bound.minimum, bound.maximum
    if bound.holds(value.low) and bound.holds(value.high):
        return Judgement(bound, value.value, SUPPORTED, said)
    if (low is not None and value.high < low) or (high is not None and value.low > high):
        return Judgement(bound, value.value, REFUTED, said)
    return Judgement(bound, value.value, NOT_EXAMINED, f"{said}, which cannot tell")


def _unfit(bound: Bound, runs: Sequence[Proved]) -> str:
    """Return why the runs cannot tell whether the bound holds; "" where they can."""
    if bound.timed and any(guest is not None and guest.emulated for guest in map(guest_of, runs)):
        return EMULATED
    for run in runs:
        for name in bound.needs:
            state = next((one.state for one in run.proof.invariants if one.name == name), "held")
            if state != "held":
                return f"invariant {name} is {state}"
    return ""


def bounds_for(bounds: Iterable[Bound], cell: Cell | Sequence[str] | None) -> list[Bound]:
    """Return the bounds that hold for ``cell``, or for any of these ids; for None, those over several cells."""
    ids = [cell.id] if isinstance(cell, Cell) else cell
    return [one for one in bounds if ids is None or any(fnmatch.fnmatchcase(each, one.cell) for each in ids)]


def load_bounds(text: str, where: str) -> tuple[Bound, ...]:
    """Return the bounds in YAML ``text``.

    Raises:
        InputError: not a bounds file of this format; ``where`` names it.
    """
    return tuple(_bound(one, where) for one in _document(text, where, BOUNDS_FORMAT).get("bounds") or ())


def load_profile(text: str, where: str) -> Profile:
    """Return the profile in YAML ``text``.

    Raises:
        InputError: not a profile of this format; ``where`` names it.
    """
    data = _document(text, where, PROFILE_FORMAT)
    try:
        return Profile(
            name=str(data["name"]),
            bounds=tuple(_bound(one, where) for one in data.get("bounds") or ()),
            known=tuple(
                Known(str(one["test"]), str(one["bound"]), str(one["reason"])) for one in data.get("known") or ()
            ),
            host=HostMatch({str(key): str(value) for key, value in (data.get("host") or {}).items()}),
        )
    except (KeyError, TypeError, AttributeError) as error:
        why = f"no {error.args[0]}" if isinstance(error, KeyError) else error
        raise InputError(f"{where}: incomplete ({why})", "name, host, bounds and known", _MEND) from error


def read_profile(name: str) -> Profile:
    """Return the profile called ``name``: a file, or one that comes with the package (``gh200``).

    Raises:
        InputError: there is no such profile.
    """
    path = Path(name)
    if not path.is_file() and not path.suffix:
        path = Path(__file__).parent / "profiles" / f"{name}.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        shipped = sorted(one.stem for one in (Path(__file__).parent / "profiles").glob("*.yaml"))
        raise InputError(
            f"profile {name!r}: {error.strerror}",
            f"a file, or one of {', '.join(shipped)}",
            "pytest bench/ --moetier-learn FILE writes one for this host",
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"profile {name!r} is no text ({error.reason})", "a YAML file", _MEND) from error
    return load_profile(text, str(path))


def read_bounds(path: Path) -> tuple[Bound, ...]:
    """Return the bounds in the file ``path``; none where there is no such file.

    Raises:
        InputError: the file cannot be read, or is not a bounds file of this format.
    """
    try:
        return load_bounds(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a readable bounds file", f"ls -l {path}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text ({error.reason})", "a YAML file", _MEND) from error


def _document(text: str, where: str, expected: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise InputError(f"{where}: not YAML ({said})", f"format: {expected}", _MEND) from error
    if not isinstance(data, dict) or data.get("format") != expected:
        seen = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise InputError(f"{where}: format is {seen!r}", f"format: {expected}", _MEND)
    if not isinstance(data.get("bounds") or [], list):
        raise InputError(f"{where}: bounds is a {type(data['bounds']).__name__}", "a list of bounds", _MEND)
    return data


def _bound(one: Any, where: str) -> Bound:  # noqa: ANN401 - straight from YAML, checked here
    try:
        low, high = _limits(one)
        return Bound(
            id=str(one["id"]),
            value=str(one["value"]),
            cell=str(one.get("cell", "*")),
            minimum=low,
            maximum=high,
            source=str(one["source"]),
            needs=_names(one.get("needs")),
            iterations=_span(one.get("iterations")),
            timed=_timed(one.get("timed"), str(one["value"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"no {error.args[0]}" if isinstance(error, KeyError) else error
        raise InputError(
            f"{where}: unreadable bound {one!r} ({why})",
            "id, value, min or max, source; needs is a list, iterations a pair, timed true or false",
            _MEND,
        ) from error


def _limits(one: Mapping[str, Any]) -> tuple[float | None, float | None]:
    low, high = _limit(one.get("min")), _limit(one.get("max"))
    if low is None and high is None:
        raise ValueError("neither min nor max")
    return low, high


def _names(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - straight from YAML, checked here
    if not isinstance(value or [], list):
        raise TypeError(f"needs is {value!r}, not a list")
    names = tuple(str(name) for name in value or ())
    if unknown := sorted(set(names) - INVARIANTS):
        raise ValueError(f"needs {unknown}, which no proof has")
    return names


def _span(value: Any) -> tuple[int | None, int | None]:  # noqa: ANN401 - straight from YAML, checked here
    if value is None:
        return None, None
    if not isinstance(value, list) or len(value) != 2 or any(type(one) not in {int, type(None)} for one in value):
        raise TypeError(f"iterations is {value!r}, not the fewest and the most")
    return value[0], value[1]


def _timed(value: Any, name: str) -> bool:  # noqa: ANN401 - straight from YAML, checked here
    """Return what the file says, or else whether the value is that of a metric which a clock gave."""
    if value is None:
        return name.removesuffix("_spread") in TIMED
    if not isinstance(value, bool):
        raise TypeError(f"timed is {value!r}, not true or false")
    return value


def _limit(value: Any) -> float | None:  # noqa: ANN401 - straight from YAML, checked here
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)
