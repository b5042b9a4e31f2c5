"""What the routing findings speak of: whose traces, their statistics, and caches of each layer (paper section 3).

A *subject* is one model's trace of one domain: generated, the user's own, or recorded by a public project. Subjects
come from options and the environment alone; this module imports numpy only when a trace is studied.

Caches are simulated per layer, access by access in the order issued, with room for B experts of the layer. Windows are
fair: every policy warms on the first 60% of the engine iterations and is scored on the rest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_moetier.errors import InputError, MoetierError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_moetier.trace.locality import Locality
    from pytest_moetier.trace.records import Trace

    Bools = NDArray[np.bool_]
    I64 = NDArray[np.int64]
    Rekey = Callable[[I64, I64, int], I64]
    """(rows, their keys before this access, the number of the access) -> their keys after it."""

SYNTHETIC, GIVEN, RECORDED = "synthetic", "given", "recorded"
DOMAINS = ("prose", "code", "math", "chat")
DEFAULT_SEED = 0
JACCARD_TOP = 16
"""N of the Jaccard index. The paper does not state its own, and the figure depends on it."""
BUDGETS = (8, 32)
"""Experts that a layer's cache holds (B)."""
WINDOWS = (1, 8, 64)
"""Passes over which reuse is counted (W)."""
TOP = 8
WARM_SHARE = (3, 5)
"""The share of the iterations that warms a cache, as a fraction: 60%."""
POLICIES = ("lru", "lfu", "lfu_in_cache", "static", "belady")
_MAX_STEPS = 2_000_000  # accesses a layer: about a minute for each policy and budget
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
    return {
        f"{policy}_{budget}": fmean(one.rates[policy, budget] for one in rates) for policy, budget in rates[0].rates
    }


def crossovers(rates: Sequence[HitRates]) -> dict[str, float | None]:
    """Return how far one policy leads another at the small and at the large budget, by the means over the domains.

    The small budget says something of models that choose more than half of it, the large one of models with more
    experts than it holds: otherwise its figures are None.
    """
    mean = {key: fmean(one.rates[key] for one in rates) for key in rates[0].rates}
    small, large = BUDGETS
    below, room = small < 2 * rates[0].k, large < rates[0].n_experts
    lead = mean["lru", large] - mean["static", large]
    by_domain = [one.rates["lru", large] for one in rates]
    spread = max(by_domain) - min(by_domain)
    return {
        f"static_lead_{small}": mean["static", small] - mean["lru", small] if below else None,
        f"lfu_lead_{small}": mean["lfu", small] - mean["lru", small] if below else None,
        f"lru_lead_{large}": lead if room else None,
        f"lead_over_spread_{large}": abs(lead) / spread if spread and room else None,
    }


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
    """The shares of the scored window's accesses that hit in a cache of each layer.

    Attributes:
        rates: (policy, B) -> hit rate, of each policy of ``POLICIES``.
        warm_iterations: iterations that warmed the caches.
        scored_iterations: iterations that were scored.
        order: how ids stand within a pass, in words: it decides what LRU does below 2k experts.
        n_experts: experts per layer.
        k: experts a pass.
    """

    rates: Mapping[tuple[str, int], float]
    warm_iterations: int
    scored_iterations: int
    order: str
    n_experts: int
    k: int


@dataclass(frozen=True, slots=True, eq=False)
class _Windows:
    """The accesses of each layer in the order issued, one row a layer.

    Attributes:
        ids: expert ids; -1 behind the end of a layer with fewer accesses than another.
        scored: whether the access is in the scored window.
        n_experts: experts per layer.
    """

    ids: I64
    scored: Bools
    n_experts: int

    def rate(self, hits: Bools) -> float:
        """Return the hit rate of the scored window."""
        return int((hits & self.scored).sum()) / int(self.scored.sum())


def hit_rates(trace: Trace, budgets: Sequence[int] = BUDGETS) -> HitRates:
    """Return what plain LRU, LFU, static pinning and Belady's MIN hit in each layer, for each budget.

    LFU counts every use since the start and breaks ties by recency: the paper's figures come out so. ``lfu_in_cache``
    forgets an expert's uses when it is evicted; below k experts a layer nothing it holds is then ever used twice.
    Static holds the most used experts of the warm window (ties: the lower id). Belady must admit what it misses.

    Raises:
        InputError: too short to warm and to score, or too long to be simulated here.
    """
    from pytest_moetier.trace.records import ORDERS  # noqa: PLC0415

    warm = trace.n_iterations * WARM_SHARE[0] // WARM_SHARE[1]
    if not warm:
        raise InputError(f"{trace.source} has 1 iteration", "2 or more: some warm the cache, some are scored")
    windows = _windows(trace, warm)
    if windows.ids.shape[1] > _MAX_STEPS:
        raise InputError(
            f"{trace.source} has {windows.ids.shape[1]} accesses a layer", f"{_MAX_STEPS} or fewer", "cut the trace"
        )
    rates: dict[tuple[str, int], float] = {}
    distances, following = _distances(windows), _next_uses(windows)
    for budget in budgets:
        rates["lru", budget] = windows.rate(distances <= budget)
        rates["lfu", budget] = windows.rate(_lfu(windows, budget))
        rates["lfu_in_cache", budget] = windows.rate(_lfu_in_cache(windows, budget))
        rates["static", budget] = windows.rate(_static(windows, budget))
        rates["belady", budget] = windows.rate(_belady(windows, following, budget))
    return HitRates(
        MappingProxyType(rates), warm, trace.n_iterations - warm, ORDERS[trace.order], trace.n_experts, trace.k
    )


def _windows(trace: Trace, warm: int) -> _Windows:
    import numpy as np  # noqa: PLC0415

    bounds = trace.offsets.astype(np.int64)
    widths = bounds[1:] - bounds[:-1]
    owner = np.repeat(np.searchsorted(trace.layers, trace.layer), widths)
    iteration = np.repeat(trace.iteration, widths)
    by_layer = np.argsort(owner, kind="stable")  # each layer's accesses in the order issued
    counts = np.bincount(owner, minlength=len(trace.layers))
    there = np.arange(counts.max()) < counts[:, None]
    ids = np.full(there.shape, -1, dtype=np.int64)
    scored = np.zeros(there.shape, dtype=bool)
    ids[there] = trace.experts[by_layer]
    scored[there] = iteration[by_layer] >= warm
    return _Windows(ids, scored, trace.n_experts)


def _distances(windows: _Windows) -> NDArray[np.float64]:
    """Return per access the distinct experts of its layer touched since its expert's last use, itself included."""
    import numpy as np  # noqa: PLC0415

    from pytest_moetier import _sim  # noqa: PLC0415

    there = windows.ids >= 0
    # Layer behind layer, each with experts of its own: what lies between two uses is then of one layer.
    own = windows.ids + np.arange(len(windows.ids))[:, None] * windows.n_experts
    sequence = own[there].astype(np.uint32)
    out = np.empty(len(sequence), dtype=np.uint64)
    _sim.lru_distances(sequence, np.ones(windows.ids.shape[0] * windows.n_experts, dtype=np.uint64), out, passes=1)
    distances = np.full(windows.ids.shape, np.inf)
    distances[there] = np.where(out == np.uint64(2**64 - 1), np.inf, out.astype(np.float64))
    return distances


def _static(windows: _Windows, budget: int) -> Bools:
    import numpy as np  # noqa: PLC0415

    rows = np.arange(len(windows.ids))[:, None]
    warm = (windows.ids >= 0) & ~windows.scored
    keys = (windows.ids + rows * windows.n_experts)[warm]
    counts = np.bincount(keys, minlength=len(rows) * windows.n_experts).reshape(len(rows), -1)
    pinned = np.zeros(counts.shape, dtype=bool)
    np.put_along_axis(pinned, np.argsort(-counts, axis=1, kind="stable")[:, :budget], values=True, axis=1)
    hits: Bools = pinned[rows, windows.ids] & (windows.ids >= 0)
    return hits


def _next_uses(windows: _Windows) -> I64:
    """Return per access the number of its expert's next one in the layer, or that of no access."""
    import numpy as np  # noqa: PLC0415

    never = windows.ids.shape[1]
    following = np.full(windows.ids.shape, never, dtype=np.int64)
    rows, upcoming = np.arange(len(windows.ids)), np.full((len(windows.ids), windows.n_experts), never)
    for step in range(never - 1, -1, -1):
        live = rows[windows.ids[:, step] >= 0]
        now = windows.ids[live, step]
        following[live, step] = upcoming[live, now]
        upcoming[live, now] = step
    return following


def _lfu(windows: _Windows, budget: int) -> Bools:
    """Evict the least used of all time; of those, the least recently used. Keys are uses << 32 | last use."""
    import numpy as np  # noqa: PLC0415

    uses = np.zeros((len(windows.ids), windows.n_experts), dtype=np.int64)

    def rekey(rows: I64, _keys: I64, step: int) -> I64:
        now = windows.ids[rows, step]
        uses[rows, now] += 1
        keys: I64 = uses[rows, now] << 32 | step
        return keys

    return _simulated(windows, budget, rekey)


def _lfu_in_cache(windows: _Windows, budget: int) -> Bools:
    """Evict the least used since it came in; of those, the least recently used. Keys as in ``_lfu``."""
    return _simulated(windows, budget, lambda _rows, keys, step: ((keys >> 32) + 1) << 32 | step)


def _belady(windows: _Windows, following: I64, budget: int) -> Bools:
    """Evict what is used again latest."""
    return _simulated(windows, budget, lambda rows, _keys, step: -following[rows, step])


def _simulated(windows: _Windows, budget: int, rekey: Rekey) -> Bools:
    """Return which accesses hit in a cache of ``budget`` experts a layer that evicts the smallest key.

    All layers take a step at once. An empty place has the smallest key of all, and so is taken first.
    """
    import numpy as np  # noqa: PLC0415

    layers, steps = windows.ids.shape
    place = np.full((layers, windows.n_experts), -1)
    held = np.full((layers, budget), -1)
    keys = np.full((layers, budget), np.iinfo(np.int64).min)
    hits = np.zeros((layers, steps), dtype=bool)
    everyone = np.arange(layers)
    for step in range(steps):
        now = windows.ids[:, step]
        rows = everyone if now.min() >= 0 else everyone[now >= 0]
        now = now[rows]
        at = place[rows, now]
        hit = at >= 0
        at = np.where(hit, at, keys[rows].argmin(axis=1))
        gone = held[rows, at]
        evicts = ~hit & (gone >= 0)
        place[rows[evicts], gone[evicts]] = -1
        keys[rows, at] = rekey(rows, np.where(hit, keys[rows, at], 0), step)
        held[rows, at] = now
        place[rows, now] = at
        hits[rows, step] = hit
    return hits
