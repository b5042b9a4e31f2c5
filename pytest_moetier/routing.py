"""What findings on traces speak of: whose traces, their statistics, and caches of them (paper sections 3 and 6).

A *subject* is one model's trace of one domain: generated, the user's own, or recorded by a public project. Subjects
come from options and the environment alone; this module imports numpy only when a trace is studied.

Caches are those of ``simulate``: per access, over the fair window. A budget of B experts is that of each layer's own
cache, or B times the layers in one cache for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_moetier.errors import MoetierError

if TYPE_CHECKING:
    from pytest_moetier.trace.locality import Locality
    from pytest_moetier.trace.records import Trace

SYNTHETIC, GIVEN, RECORDED = "synthetic", "given", "recorded"
DOMAINS = ("prose", "code", "math", "chat")
DEFAULT_SEED = 0
JACCARD_TOP = 16
"""N of the Jaccard index. The paper does not state its own, and the figure depends on it."""
BUDGETS = (8, 32)
"""Experts that a layer's cache holds (B)."""
SPLIT_BUDGETS = (8, 16, 32, 64, 128)
"""Likewise, where one cache for all layers is held against an equal split."""
WINDOWS = (1, 8, 64)
"""Passes over which reuse is counted (W)."""
TOP = 8
POLICIES = ("lru", "lfu", "lfu-perfect", "static", "belady")
"""The paper's LFU is ``lfu-perfect``: below k experts a layer, what is forgotten when evicted is never used twice."""
CACHES = "per access; fair window: the first 60% of the iterations warm, the rest is scored"
"""How caches are simulated, where a figure does not say otherwise."""
HOST_BYTES, HOST_SHARE = 256 * 10**9, "17.7%"
"""The paper's budget of the comparison of policies, and its share of the pool there."""
BATCH_BYTES, BATCH_SHARE = 200 * 10**9, "25%"
"""The paper's two budgets of a batch."""
OWN = "own"

# name -> unit and a short head of its column; hit rates and what is not here are shares
UNITS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "iterations": ("iterations", "iters"),
        "accepted_tokens": ("tokens", "tok"),
        "reads_per_iteration": ("experts/iteration", "rd/it"),
        "reads_per_accepted_token": ("experts/token", "rd/tok"),
        "zipf_slope": ("log count / log rank", "slope"),
        "reuse_w1": ("share", "W1"),
        "reuse_w8": ("share", "W8"),
        "reuse_w64": ("share", "W64"),
        "top8_mass": ("share", "top8"),
        "pool_coverage": ("share", "cover"),
        "first_layer_top8_mass": ("share", "first"),
        "most_concentrated_top8_mass": ("share", "most"),
        "depth_gradient": ("ratio", "grad"),
        "overlap_1": ("share", "d1"),
        "overlap_8": ("share", "d8"),
        "least_experts_for_80": ("experts", "80%min"),
        "median_experts_for_80": ("experts", "80%med"),
        "most_experts_for_80": ("experts", "80%max"),
        "least_distinct_in_64": ("experts", "in64min"),
        "most_distinct_in_64": ("experts", "in64max"),
        "union_near_input": ("experts", "union near input"),
        "union_at_depth": ("experts", "union at depth"),
        "union_gigabytes_per_step": ("GB/iteration", "GB/step"),
        "deduplication": ("ratio", "dedup"),
        "merged_accepted_tokens": ("tokens", "tokens"),
        "lead_over_spread_32": ("ratio", "lead/spread"),
        "lru_of_belady_32": ("ratio", "LRU/Belady"),
        "ranking_changes": ("budgets", "ranking changes"),
        "batch_surcharge_25pct": ("ratio", "surcharge at 25%"),
        "batch_surcharge_200gb": ("ratio", "surcharge at 200 GB"),
        "off_domain_table_smallest": ("share", "table elsewhere min"),
        "off_domain_table_largest": ("share", "table elsewhere max"),
        "off_domain_lru_smallest": ("share", "LRU min"),
        "off_domain_lru_largest": ("share", "LRU max"),
        "lru_over_off_domain_smallest": ("share", "LRU-table min"),
        "oracle_replayed": ("share", "oracle, replay"),
        "lru_replayed": ("share", "LRU, replay"),
        "lru_over_oracle": ("share", "LRU-oracle"),
        "own_table": ("share", "oracle, fair"),
        "past_table": ("share", "past table"),
        "lru_fair": ("share", "LRU, fair"),
        "lru_over_past_table": ("share", "LRU-past"),
    }
)


@dataclass(frozen=True, slots=True)
class Model:
    """A model whose traces are recognised, and the length of those the paper measured.

    Attributes:
        shapes: (layers, experts per layer, k) of its traces.
        iterations: of a synthetic trace; 0: as the generator knows for each domain.
        expert_bytes: the size of one expert; 0 where no finding needs it.
    """

    shapes: tuple[tuple[int, int, int], ...]
    iterations: int
    expert_bytes: int = 0


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "kimi-k3": Model(((92, 896, 16),), 0, expert_bytes=17_547_264),
        "qwen3-30b-a3b": Model(((48, 128, 8),), 400),
        # its first three layers are dense: an engine's trace has 58, the paper counts 61
        "deepseek-v3": Model(((61, 256, 8), (58, 256, 8)), 300),
        # the paper did not measure it; the figures that are known of it are those of 64 tokens
        "olmoe-1b-7b": Model(((16, 64, 8),), 64),
    }
)


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace file of a public repository.

    Attributes:
        subject: its id behind ``recorded-``.
        group: the id of the findings over it and others, likewise.
        domain: of its prompt.
        name: of the file.
        folders: where it may lie below ``MOETIER_TRACES``: a folder of its own, or a clone of the repository.
        n_experts: experts per layer, where the file does not state them.
        k: experts a pass, likewise.
    """

    subject: str
    group: str
    domain: str
    name: str
    folders: tuple[str, ...]
    n_experts: int | None = None
    k: int | None = None


_MOEVM = ("olmoe-moevm-lab", "moevm-lab/benchmarks/reference/real-routing-olmoe-m1/traces")
_BIGMOE = ("bigmoe-on-edge", "BigMoeOnEdge/docs/bench-data/2026-07-15-route-trace")
_KIMI = ("kimi-k3", "kimi-k3-in-c/tests/fixtures")
RECORDINGS = (
    *(
        Recording(f"olmoe-{domain}", "olmoe", domain, f"seed-17__{domain}.trace.jsonl", _MOEVM, 64)
        for domain in ("domain_switch", "math_reasoning", "python_code", "systems_en", "systems_it")
    ),
    Recording("qwen", "qwen", "prompt", "qwen.route.csv", _BIGMOE, 128),
    Recording("gemma", "gemma", "prompt", "gemma.route.csv", _BIGMOE, 128),
    Recording("kimi-k3", "kimi-k3", "prompt", "expert_trace.bin", _KIMI, 896, 16),
)


@dataclass(frozen=True, slots=True)
class Subject:
    """One trace that routing findings are tested on.

    Attributes:
        id: of its tests, usable with ``-k``.
        group: id of the findings over it and the other domains of its model.
        domain: what it is a trace of.
        origin: ``synthetic``, ``given`` (the user's) or ``recorded`` (a public project's).
        preset: the generator's preset of a synthetic one.
        path: the file of another.
        n_experts: experts per layer where they are known beforehand.
        k: experts a pass, likewise.
    """

    id: str
    group: str
    domain: str
    origin: str
    preset: str = ""
    path: Path | None = None
    n_experts: int | None = None
    k: int | None = None


def subjects(given: Sequence[tuple[str, Path]], recorded: Path | None) -> tuple[Subject, ...]:
    """Return the subjects of a session: the user's traces, or else the synthetic and the recorded ones.

    No file is read; whether a recording is there is asked.

    Args:
        given: (domain, file) of each of the user's traces.
        recorded: the folder of recorded traces, or None.
    """
    if given:
        return tuple(
            Subject(name, "traces", domain, GIVEN, path=path)
            for name, (domain, path) in zip(_distinct([domain for domain, _ in given]), given, strict=True)
        )
    synthetic = [Subject(f"{name}-{domain}", name, domain, SYNTHETIC, name) for name in MODELS for domain in DOMAINS]
    return (*synthetic, *(_recorded(recorded) if recorded else ()))


def _recorded(folder: Path) -> list[Subject]:
    found = []
    for one in RECORDINGS:
        path = next((each for each in (folder / inner / one.name for inner in one.folders) if each.is_file()), None)
        if path is not None:
            name, group = f"recorded-{one.subject}", f"recorded-{one.group}"
            found.append(Subject(name, group, one.domain, RECORDED, path=path, n_experts=one.n_experts, k=one.k))
    return found


def _distinct(domains: Sequence[str]) -> list[str]:
    """Return ids of letters, digits, dots and dashes; a domain that comes again is numbered."""
    out: list[str] = []
    for domain in domains:
        plain = "".join(one if one.isalnum() or one in "._-" else "_" for one in domain) or "trace"
        name, number = plain, 1
        while name in out:
            number += 1
            name = f"{plain}-{number}"
        out.append(name)
    return out


def recognised(trace: Trace) -> str:
    """Return the name of the model that routes so many experts in so many layers, or ``own``."""
    shape = len(trace.layers), trace.n_experts, trace.k
    return next((name for name, model in MODELS.items() if shape in model.shapes), OWN)


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """A subject, its trace and its statistics.

    Attributes:
        subject: the subject.
        trace: its trace.
        model: a name of ``MODELS``, or ``own``.
        locality: the statistics of its decode passes.
        seconds: how long the statistics took, without making or reading the trace.
    """

    subject: Subject
    trace: Trace
    model: str
    locality: Locality
    seconds: float

    @property
    def ids(self) -> tuple[str, ...]:
        """What a bound's pattern is held against: the model and domain, and the subject's own id."""
        return f"{self.model}-{self.subject.domain}", self.subject.id

    @property
    def shape(self) -> tuple[int, int, int]:
        """Layers, experts per layer and k."""
        return len(self.trace.layers), self.trace.n_experts, self.trace.k

    def figures(self) -> dict[str, float | None]:
        """Return every figure of the trace alone by name, None where it is undefined; ``UNITS`` has the units."""
        trace, found = self.trace, self.locality
        least, median, most = found.for_80_range
        values = {
            "iterations": trace.n_iterations,
            "accepted_tokens": trace.accepted_tokens,
            "reads_per_iteration": trace.n_accesses / trace.n_iterations,
            "reads_per_accepted_token": trace.n_accesses / trace.accepted_tokens,
            "zipf_slope": found.zipf_slope,
            **{f"reuse_w{window}": found.reuse(window) for window in WINDOWS},
            "pool_coverage": found.pool_coverage,
            "top8_mass": math.nan,
            "first_layer_top8_mass": math.nan,
            "most_concentrated_top8_mass": math.nan,
            "depth_gradient": math.nan,
            "overlap_1": found.overlap(1),
            "overlap_8": found.overlap(8),
            "least_experts_for_80": least,
            "median_experts_for_80": median,
            "most_experts_for_80": most,
            "least_distinct_in_64": float(found.distinct_means[64].min()),
            "most_distinct_in_64": float(found.distinct_means[64].max()),
        }
        if TOP in found.masses:  # a model of fewer experts has no top 8
            values["top8_mass"] = found.top_mass(TOP)
            values["first_layer_top8_mass"] = found.first_layer_mass(TOP)
            values["most_concentrated_top8_mass"] = found.most_concentrated(TOP)[1]
            values["depth_gradient"] = found.depth_gradient(TOP)
        return {name: float(value) if math.isfinite(value) else None for name, value in values.items()}

    def accounting(self) -> dict[str, Any]:
        """Return what was counted and in which order, in plain JSON types."""
        trace = self.trace
        return {
            "subject": self.subject.id,
            "model": self.model,
            "domain": self.subject.domain,
            "origin": self.subject.origin,
            "source": trace.source,
            "synthetic": trace.synthetic,
            "fingerprint": trace.fingerprint,
            "layers": len(trace.layers),
            "experts": trace.n_experts,
            "k": trace.k,
            "iterations": trace.n_iterations,
            "accepted_tokens": trace.accepted_tokens,
            "reads": trace.n_accesses,
            "kinds": trace.kind_counts(),
            "order": self.locality.order,
            "caches": CACHES,
            "trace_findings": [str(one) for one in trace.findings],
            "warnings": list(trace.warnings),
        }


def depth_unions(studies: Sequence[Study]) -> dict[str, float | None]:
    """Return the distinct experts of the first layer over all domains, and of the layer that has fewest."""
    first, *others = (one.locality.counts for one in studies)
    distinct = (sum(others, start=first) > 0).sum(axis=1)
    return {"union_near_input": float(distinct[0]), "union_at_depth": float(distinct.min())}


def domain_jaccards(studies: Sequence[Study], top: int = JACCARD_TOP) -> dict[str, float | None]:
    """Return the Jaccard index of the ``top`` experts of the two domains that are most alike, and least."""
    from pytest_moetier.trace.locality import jaccard  # noqa: PLC0415

    found = [jaccard(one, other, top) for one, other in combinations([one.locality for one in studies], 2)]
    return {f"jaccard{top}_smallest": min(found), f"jaccard{top}_largest": max(found)}


def mean_rates(rates: Sequence[HitRates]) -> dict[str, float | None]:
    """Return ``policy_B`` -> the mean hit rate over the domains."""
    mean = _means(rates)
    return {f"{policy.replace('-', '_')}_{budget}": mean[policy, budget] for policy, budget in mean}


def crossovers(rates: Sequence[HitRates]) -> dict[str, float | None]:
    """Return how far one policy leads another at the small and at the large budget, by the means over the domains.

    The small budget says something of models that choose more than half of it, the large one of models with more
    experts than it holds: otherwise its figures are None.
    """
    mean = _means(rates)
    small, large = BUDGETS
    below, room = small < 2 * rates[0].k, large < rates[0].n_experts
    lead = mean["lru", large] - mean["static", large]
    by_domain = [one.rates["lru", large] for one in rates]
    spread = max(by_domain) - min(by_domain)
    return {
        f"static_lead_{small}": mean["static", small] - mean["lru", small] if below else None,
        f"lfu_perfect_lead_{small}": mean["lfu-perfect", small] - mean["lru", small] if below else None,
        f"lru_lead_{large}": lead if room else None,
        f"lead_over_spread_{large}": abs(lead) / spread if spread and room else None,
    }


def lru_of_belady(rates: Sequence[HitRates]) -> dict[str, float | None]:
    """Return what part of Belady's hit rate LRU reaches at the large budget, by the means over the domains."""
    mean, large = _means(rates), BUDGETS[1]
    room = large < rates[0].n_experts and mean["belady", large] > 0
    return {f"lru_of_belady_{large}": mean["lru", large] / mean["belady", large] if room else None}


def _means(rates: Sequence[HitRates]) -> dict[tuple[str, int], float]:
    return {key: fmean(one.rates[key] for one in rates) for key in rates[0].rates}


def split_figures(studies: Sequence[Study]) -> dict[str, float | None]:
    """Return how far one cache for all layers leads an equal split of it, by the means over the domains.

    ``global_lead_B`` is LRU's lead. ``ranking_changes`` counts the budgets at which LRU beats static pinning in one
    of the two and not in the other. Only budgets below the experts of a layer say anything.

    Raises:
        InputError: a trace is too short to be simulated.
    """
    n_experts = studies[0].trace.n_experts
    budgets = [one for one in SPLIT_BUDGETS if one < n_experts]
    values: dict[str, float | None] = dict.fromkeys(f"global_lead_{one}" for one in SPLIT_BUDGETS)
    if not budgets:
        return {**values, "ranking_changes": None}
    shared, split = (
        _means([hit_rates(one.trace, budgets, ("lru", "static"), allocation=allocation) for one in studies])
        for allocation in ("global", "layer")
    )
    values |= {f"global_lead_{one}": shared["lru", one] - split["lru", one] for one in budgets}
    leads = [[mean["lru", one] > mean["static", one] for one in budgets] for mean in (shared, split)]
    return {**values, "ranking_changes": float(sum(one != other for one, other in zip(*leads, strict=True)))}


def merged_figures(studies: Sequence[Study]) -> dict[str, float | None]:
    """Return what the domains' streams, merged iteration by iteration, read and yield.

    Raises:
        InputError: they are of different models.
    """
    from pytest_moetier.trace.batch import merge  # noqa: PLC0415

    batch = merge([one.trace for one in studies])
    model = studies[0].model
    size = MODELS[model].expert_bytes if model in MODELS else 0
    return {
        "deduplication": batch.deduplication,
        "merged_accepted_tokens": float(batch.trace.accepted_tokens),
        "union_gigabytes_per_step": batch.union_reads / batch.n_iterations * size / 1e9 if size else None,
    }


def batch_figures(studies: Sequence[Study]) -> dict[str, float | None]:
    """Return what LRU hits in the domains' streams alone and merged, each with the whole budget, and what a token pays.

    A surcharge is what the batch misses for an accepted token, as a multiple of what the streams alone do.

    Raises:
        InputError: they are of different models, fewer than two, or too short to be simulated.
    """
    from pytest_moetier.simulate import batch_cost  # noqa: PLC0415

    budgets = {"25pct": BATCH_SHARE}
    if fixed := _experts_in(BATCH_BYTES, studies[0].model):
        budgets["200gb"] = fixed
    found = batch_cost([one.trace for one in studies], ["lru"], list(budgets.values()))
    costs = dict(zip(budgets, found, strict=True))
    return {
        "single_hits_25pct": costs["25pct"].single_hit_rate,
        "batch_hits_25pct": costs["25pct"].batch.hit_rate,
        "batch_hit_loss_25pct": costs["25pct"].hit_loss,
        **{f"batch_surcharge_{name}": cost.surcharge for name, cost in costs.items()},
    }


def off_domain_figures(studies: Sequence[Study]) -> dict[str, float | None]:
    """Return what a table of one domain hits in the others and LRU in all, in one cache of the paper's budget.

    The table is that of the prose, or of the first domain where there is none. ``lru_over_off_domain_smallest`` is
    LRU's least lead over any domain's table in any other domain.

    Raises:
        InputError: fewer than two domains, or a trace is too short to be simulated.
    """
    from pytest_moetier.simulate import off_domain, workload  # noqa: PLC0415

    named = {one.subject.id: workload(one.trace) for one in studies}
    prose = next((one for one in studies if one.subject.domain == DOMAINS[0]), studies[0]).subject.id
    found = [one for one in off_domain(named, [host_budget(studies[0].model)]) if one.trained_on != one.scored_on]
    elsewhere = [one.static.hit_rate for one in found if one.trained_on == prose]
    recent = [one.lru.hit_rate for one in found]
    return {
        "off_domain_table_smallest": min(elsewhere),
        "off_domain_table_largest": max(elsewhere),
        "off_domain_lru_smallest": min(recent),
        "off_domain_lru_largest": max(recent),
        "lru_over_off_domain_smallest": min(one.lru.hit_rate - one.static.hit_rate for one in found),
    }


def oracle_figures(study: Study) -> dict[str, float | None]:
    """Return what LRU and the table of the trace itself hit in the whole trace, as a replay does: in its second pass.

    Raises:
        InputError: the trace cannot be simulated.
    """
    from pytest_moetier.simulate import simulate, workload  # noqa: PLC0415

    work = replace(workload(study.trace), layer_bytes=(1,) * len(study.trace.layers))  # a byte is an expert
    budget = [host_budget(study.model)]
    (pinned,) = simulate(work, ["static"], budget, window="cold", table="own", detail=False)  # it has nothing to warm
    recent = 1 - int(work.nominal().misses([pinned.capacity])[0]) / work.n_accesses
    return {
        "oracle_replayed": pinned.hit_rate,
        "lru_replayed": recent,
        "lru_over_oracle": recent - pinned.hit_rate,
    }


def drift_figures(study: Study) -> dict[str, float | None]:
    """Return what LRU, a table of the trace's own past and its oracle hit in the rest of the trace.

    Raises:
        InputError: the trace is too short to be simulated.
    """
    from pytest_moetier.simulate import simulate, workload  # noqa: PLC0415

    work, budget = workload(study.trace), [host_budget(study.model)]
    recent, past = simulate(work, ["lru", "static"], budget, detail=False)
    (own,) = simulate(work, ["static"], budget, table="own", detail=False)
    return {
        "lru_fair": recent.hit_rate,
        "past_table": past.hit_rate,
        "own_table": own.hit_rate,
        "lru_over_past_table": recent.hit_rate - past.hit_rate,
    }


def host_budget(model: str) -> str:
    """Return the budget of the comparison of policies: the paper's of its model, the same share of another's pool."""
    return _experts_in(HOST_BYTES, model) or HOST_SHARE


def _experts_in(size: int, model: str) -> str:
    """Return how many experts a budget of bytes holds; "" where their size is not known."""
    each = MODELS[model].expert_bytes if model in MODELS else 0
    return str(size // each) if each else ""


@dataclass(slots=True)
class Studies:
    """The studies of a session: each trace is made or read once, when the first test asks, and shared by all.

    Attributes:
        seed: of synthetic traces.
        iterations: of synthetic traces; 0: as many as the paper measured.
    """

    seed: int = DEFAULT_SEED
    iterations: int = 0
    _known: dict[str, Study | MoetierError] = field(default_factory=dict)
    _rates: dict[str, HitRates] = field(default_factory=dict)

    def of(self, subject: Subject) -> Study:
        """Return the study of a subject.

        Raises:
            MoetierError: the trace cannot be read; the same for everyone who asks.
        """
        found = self.known(subject)
        if isinstance(found, MoetierError):
            raise found
        return found

    def known(self, subject: Subject) -> Study | MoetierError:
        """Return the study of a subject, or why there is none."""
        if subject.id not in self._known:
            try:
                self._known[subject.id] = self._study(subject)
            except MoetierError as error:
                self._known[subject.id] = error
        return self._known[subject.id]

    def pending(self, chosen: Sequence[Subject]) -> list[Subject]:
        """Return the subjects not studied yet."""
        return [one for one in chosen if one.id not in self._known]

    def rates(self, subject: Subject) -> HitRates:
        """Return the hit rates of a subject's trace.

        Raises:
            MoetierError: the trace cannot be read, or not be simulated.
        """
        if subject.id not in self._rates:
            self._rates[subject.id] = hit_rates(self.of(subject).trace)
        return self._rates[subject.id]

    def _study(self, subject: Subject) -> Study:
        from pytest_moetier.trace.locality import locality  # noqa: PLC0415

        trace = self._trace(subject)
        started = time.perf_counter()
        found = locality(trace.selections())
        return Study(subject, trace, recognised(trace), found, time.perf_counter() - started)

    def _trace(self, subject: Subject) -> Trace:
        from pytest_moetier.trace.load import load_trace  # noqa: PLC0415
        from pytest_moetier.trace.synth import PRESETS, synth_trace  # noqa: PLC0415

        if subject.path is not None:
            return load_trace(subject.path, n_experts=subject.n_experts, k=subject.k)
        counted = PRESETS[subject.preset].domains[subject.domain].types[0]
        iterations = self.iterations or MODELS[subject.preset].iterations or counted
        return synth_trace(subject.preset, domain=subject.domain, seed=self.seed, iterations=iterations)


@dataclass(frozen=True, slots=True)
class HitRates:
    """The shares of the scored window's accesses that hit.

    Attributes:
        rates: (policy, B) -> hit rate.
        n_experts: experts per layer.
        k: experts a pass.
    """

    rates: Mapping[tuple[str, int], float]
    n_experts: int
    k: int


def hit_rates(
    trace: Trace,
    budgets: Sequence[int] = BUDGETS,
    policies: Sequence[str] = POLICIES,
    *,
    allocation: str = "layer",
) -> HitRates:
    """Return what each policy hits with B experts a layer, for each B; a layer has no more than all of its own.

    Args:
        trace: whose accesses.
        budgets: B of each.
        policies: of ``simulate.POLICIES``; static holds the most used experts of the warm part.
        allocation: ``layer``: a cache of B for each; ``global``: one of B times the layers.

    Raises:
        InputError: too short to warm and to score.
    """
    from pytest_moetier.simulate import simulate, workload  # noqa: PLC0415

    asked = [f"{min(one, trace.n_experts)}/layer" for one in budgets]
    found = simulate(workload(trace), policies, asked, allocation=allocation, detail=False)
    rates = {key: one.hit_rate for key, one in zip(product(policies, budgets), found, strict=True)}
    return HitRates(MappingProxyType(rates), trace.n_experts, trace.k)
