"""The numbers that figures draw: computed here, kept in the document of a session, and read back from it.

A panel is what policies hit by budget, of one model over its domains (paper section 3, Figure 1); a drift is what a
table of one domain hits in the others (section 6, Figure 5); a series is the generation audit of one pass (section 5).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pytest_moetier.errors import InputError
from pytest_moetier.routing import (
    DOMAINS,
    GIVEN,
    MODELS,
    OWN,
    HitRates,
    Study,
    Subject,
    hit_rates,
    host_budget,
    recognised,
)

if TYPE_CHECKING:
    from pytest_moetier.audit import NamedAudit  # numpy
    from pytest_moetier.trace.records import Trace

POLICIES = ("belady", "lru", "lfu-perfect", "static")
ALLOCATION = "layer"
TABLE = "the most used experts of the warm part, loaded before it: no first read of theirs is a miss"
"""What ``static`` holds. In a short trace it may beat the optimum of what starts empty."""
FIRST_BUDGET = 4
MOST_ITERATIONS = 400
"""Of a series in a document: of a longer pass every second, third ... iteration is kept."""


@dataclass(frozen=True, slots=True)
class Point:
    """What a policy hits with one budget.

    Attributes:
        policy: its name.
        budget: experts that each layer's cache holds.
        budget_bytes: of all layers together; None where the size of an expert is not known.
        rates: the hit rate of each domain.
    """

    policy: str
    budget: int
    budget_bytes: int | None
    rates: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over the domains."""
        return fmean(self.rates)

    def as_json(self, subjects: Sequence[str]) -> dict[str, Any]:
        """Return the point in plain JSON types."""
        return {
            "policy": self.policy,
            "budget_experts_per_layer": self.budget,
            "budget_bytes": self.budget_bytes,
            "mean": self.mean,
            "min": min(self.rates),
            "max": max(self.rates),
            "by_domain": dict(zip(subjects, self.rates, strict=True)),
        }


@dataclass(frozen=True, slots=True)
class Domain:
    """The trace of one domain: what one curve of each policy is drawn from.

    Attributes:
        subject: the id of its tests.
        domain: what it is a trace of.
        origin: ``synthetic``, ``given`` or ``recorded``.
        source: where it is from.
        fingerprint: of its content.
        synthetic: whether it was generated, whoever gave it.
        order: of the accesses within a pass.
        window: its name, the iterations that warm, and the last that is scored.
    """

    subject: str
    domain: str
    origin: str
    source: str
    fingerprint: str
    synthetic: bool
    order: str
    window: tuple[str, int, int]

    def as_json(self) -> dict[str, Any]:
        """Return the domain in plain JSON types."""
        return {**asdict(self), "window": dict(zip(("name", "warm", "end"), self.window, strict=True))}


@dataclass(frozen=True, slots=True)
class Panel:
    """One model's hit rates over its domains.

    Attributes:
        name: of the model, and in the names of its files.
        layers: of the model.
        experts: per layer.
        k: experts a pass chooses.
        layer_bytes: the size of one expert of each layer; empty where it is not known.
        semantics: what an access is.
        domains: one a curve.
        points: policy by policy, budgets rising.
    """

    name: str
    layers: int
    experts: int
    k: int
    layer_bytes: tuple[int, ...]
    semantics: str
    domains: tuple[Domain, ...]
    points: tuple[Point, ...]

    @property
    def title(self) -> str:
        """The model, whether its traces are synthetic, and its dimensions."""
        made = sum(one.synthetic for one in self.domains)
        origin = " (synthetic)" if made == len(self.domains) else " (in part synthetic)" if made else ""
        return f"{self.name}{origin}: {self.layers} layers, E = {self.experts}, k = {self.k}"

    @property
    def basis(self) -> str:
        """What the numbers rest on, in words."""
        many = len(self.domains)
        over = f"lines: mean of {many} domains, shades: their range" if many > 1 else "one domain"
        orders = " or ".join(sorted({one.order for one in self.domains}))
        return (
            f"{over}; {self.semantics}, order in a pass: {orders};\n"
            "equal split over the layers; the first 60% of the iterations warm, the rest is scored"
        )

    def as_json(self) -> dict[str, Any]:
        """Return what is drawn and what it rests on, in plain JSON types."""
        return {
            "model": self.name,
            "files": [f"hit_rates-{self.name}.{kind}" for kind in ("svg", "png")],
            "synthetic": any(one.synthetic for one in self.domains),
            "layers": self.layers,
            "experts": self.experts,
            "k": self.k,
            "expert_bytes": list(self.layer_bytes) or None,
            "order": sorted({one.order for one in self.domains}),
            "allocation": ALLOCATION,
            "static": TABLE,
            "semantics": self.semantics,
            "domains": [one.as_json() for one in self.domains],
            "points": [one.as_json([each.subject for each in self.domains]) for one in self.points],
        }

    @classmethod
    def from_json(cls, one: Mapping[str, Any]) -> Panel:
        """Return what ``as_json`` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        domains = tuple(
            Domain(**{**each, "window": tuple(each["window"][name] for name in ("name", "warm", "end"))})
            for each in one["domains"]
        )
        points = tuple(
            Point(
                str(each["policy"]),
                int(each["budget_experts_per_layer"]),
                each["budget_bytes"],
                tuple(float(each["by_domain"][domain.subject]) for domain in domains),
            )
            for each in one["points"]
        )
        sizes = tuple(int(size) for size in one["expert_bytes"] or ())
        shape = int(one["layers"]), int(one["experts"]), int(one["k"])
        return cls(str(one["model"]), *shape, sizes, str(one["semantics"]), domains, points)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A subject and its trace.

    Attributes:
        subject: the subject.
        trace: its trace; unlike one that is studied, it may be of merged streams.
    """

    subject: Subject
    trace: Trace

    @property
    def shape(self) -> tuple[int, int, int]:
        """Layers, experts per layer and k."""
        return len(self.trace.layers), self.trace.n_experts, self.trace.k

    @property
    def batch(self) -> bool:
        """Whether it is of streams that were decoded together."""
        return not {"batch", "union"}.isdisjoint(self.trace.kind_counts())

    @property
    def model(self) -> str:
        """The model's name, or its dimensions where it is not known."""
        known = recognised(self.trace)
        return "{}-{}x{}-k{}".format(OWN, *self.shape) if known == OWN else known

    @property
    def name(self) -> str:
        """What its panel is called."""
        name = self.model if self.subject.origin == GIVEN else self.subject.group
        return f"{name}-batch" if self.batch else name

    @property
    def layer_bytes(self) -> tuple[int, ...]:
        """The size of an expert of each layer: the trace's own, else the model's; empty where not known."""
        known = MODELS[self.model].expert_bytes if self.model in MODELS else 0
        return tuple(self.trace.expert_bytes) or ((known,) * len(self.trace.layers) if known else ())

    @property
    def kind(self) -> tuple[object, ...]:
        """What the sources of one panel have in common."""
        return self.subject.origin, self.subject.group, self.batch, self.shape, self.layer_bytes


def panels(sources: Sequence[Source]) -> tuple[list[Panel], list[str]]:
    """Return a panel for each model, and a line for each trace that had to be left out."""
    found: dict[str, list[tuple[Source, HitRates]]] = {}
    left_out = []
    for source in sources:
        try:
            rates = hit_rates(source.trace, _budgets(source.trace.n_experts), POLICIES, allocation=ALLOCATION)
        except InputError as error:
            left_out.append(f"{source.subject.id} is left out: {error}")
            continue
        free = (name for name in _numbered(source.name) if name not in found or found[name][0][0].kind == source.kind)
        found.setdefault(next(free), []).append((source, rates))
    return [_panel(name, pairs) for name, pairs in found.items()], left_out


def _numbered(name: str) -> Iterator[str]:
    """Yield the name, then others for panels that would have the same."""
    yield name
    yield from (f"{name}-{number}" for number in count(2))


def _budgets(n_experts: int) -> list[int]:
    """Return powers of two below the experts of a layer: with all of them in, there is nothing to choose."""
    found = [1 << power for power in range(FIRST_BUDGET.bit_length() - 1, (n_experts - 1).bit_length())]
    return found or list(range(1, max(n_experts, 2)))


def _panel(name: str, pairs: Sequence[tuple[Source, HitRates]]) -> Panel:
    from pytest_moetier.simulate import workload  # noqa: PLC0415 - numpy

    first = pairs[0][0]
    sizes = first.layer_bytes
    points = (
        Point(policy, budget, sum(sizes) * budget or None, tuple(rates.rates[policy, budget] for _, rates in pairs))
        for policy in POLICIES
        for budget in _budgets(first.trace.n_experts)
    )
    domains = tuple(_domain(source) for source, _ in pairs)
    return Panel(name, *first.shape, sizes, workload(first.trace).semantics, domains, tuple(points))


def _domain(source: Source) -> Domain:
    from pytest_moetier.simulate import window, workload  # noqa: PLC0415 - numpy

    work, subject = workload(source.trace), source.subject
    scored = window("fair", work)
    span = scored.name, scored.warm, scored.end
    about = subject.id, subject.domain, subject.origin, work.source
    return Domain(*about, source.trace.fingerprint, work.synthetic, work.order, span)


@dataclass(frozen=True, slots=True)
class Drift:
    """What a table of one domain hits, and LRU, in each domain of a model: fair windows on both sides.

    Attributes:
        model: the name of the group of traces.
        trained_on: the domain of the table; there it is one of the very accesses that are scored, an oracle.
        budget: of the one cache for all layers: experts, or a share of the pool.
        synthetic: whether any trace was generated.
        rates: of each domain, its name, what the table hits and what LRU does.
    """

    model: str
    trained_on: str
    budget: str
    synthetic: bool
    rates: tuple[tuple[str, float, float], ...]

    def as_json(self) -> dict[str, Any]:
        """Return the drift in plain JSON types."""
        rates = [dict(zip(("domain", "table", "lru"), one, strict=True)) for one in self.rates]
        return {**asdict(self), "rates": rates}

    @classmethod
    def from_json(cls, one: Mapping[str, Any]) -> Drift:
        """Return what ``as_json`` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        rates = tuple((str(each["domain"]), float(each["table"]), float(each["lru"])) for each in one["rates"])
        return cls(str(one["model"]), str(one["trained_on"]), str(one["budget"]), bool(one["synthetic"]), rates)


def drift(group: str, studies: Sequence[Study]) -> Drift:
    """Return what a table of the prose, or of the first domain where there is none, hits in every domain.

    Raises:
        InputError: fewer than two domains, or a trace is too short to be simulated.
    """
    from pytest_moetier.simulate import off_domain, workload  # noqa: PLC0415 - numpy

    named = {one.subject.id: workload(one.trace) for one in studies}
    domains = {one.subject.id: one.subject.domain for one in studies}
    prose = next((one for one in studies if one.subject.domain == DOMAINS[0]), studies[0]).subject.id
    budget = host_budget(studies[0].model)
    found = [one for one in off_domain(named, [budget]) if one.trained_on == prose]
    return Drift(
        model=group,
        trained_on=domains[prose],
        budget=f"{budget} of the pool" if "%" in budget else f"{budget} experts",
        synthetic=any(one.trace.synthetic for one in studies),
        rates=tuple((domains[one.scored_on], one.static.hit_rate, one.lru.hit_rate) for one in found),
    )


@dataclass(frozen=True, slots=True)
class Border:
    """What the generations held at one border between iterations (see ``audit.Moment``)."""

    iteration: int
    max_seq: int
    file_pages: tuple[int, ...]
    scan_pages: int | None
    steal_pages: int | None


@dataclass(frozen=True, slots=True)
class Series:
    """One pass as it is drawn: generations and traffic by iteration.

    Attributes:
        name: of the cell.
        every: iterations from one number of the series to the next.
        device_bytes: read from the devices; empty: not observed.
        logical_bytes: asked for.
        nominal_bytes: missed by an exact LRU; empty: not simulated.
        borders: what was sampled.
        period: of the waves of ``device_bytes``, and their amplitude in bytes; None where there are none.
    """

    name: str
    every: int
    device_bytes: tuple[float, ...]
    logical_bytes: tuple[float, ...]
    nominal_bytes: tuple[float, ...]
    borders: tuple[Border, ...]
    period: tuple[float, float] | None

    @classmethod
    def of(cls, audit: NamedAudit) -> Series:
        """Return the series of an audit, with all of its iterations."""
        return cls.from_json({"cell": audit.name, "every": 1, **audit.audit.as_json()})

    @classmethod
    def from_json(cls, one: Mapping[str, Any]) -> Series:
        """Return what ``series_json`` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        names = ("iteration", "max_seq", "file_pages", "scan_pages", "steal_pages")
        borders = [{name: each[name] for name in names} for each in one["moments"]]
        wave = one["wave"]
        found = wave is not None and wave["strength"] > wave["threshold"]
        return cls(
            name=str(one["cell"]),
            every=int(one["every"]),
            device_bytes=tuple(map(float, one["device_bytes"])),
            logical_bytes=tuple(map(float, one["logical_bytes"])),
            nominal_bytes=tuple(map(float, one["nominal_bytes"])),
            borders=tuple(Border(**{**each, "file_pages": tuple(each["file_pages"])}) for each in borders),
            period=(float(wave["period"]), float(wave["amplitude"])) if found else None,
        )


def series_json(audit: NamedAudit) -> dict[str, Any]:
    """Return an audit in plain JSON types, its series no longer than ``MOST_ITERATIONS``."""
    content = audit.audit.as_json()
    thin = {name: _thin(content[name]) for name in ("device_bytes", "logical_bytes", "nominal_bytes", "moments")}
    return {"cell": audit.name, "every": _stride(content["logical_bytes"]), **content, **thin}


def _stride(rows: Sequence[Any]) -> int:
    return -(-len(rows) // MOST_ITERATIONS) or 1


def _thin(rows: Sequence[Any]) -> Sequence[Any]:
    return rows[:: _stride(rows)]
