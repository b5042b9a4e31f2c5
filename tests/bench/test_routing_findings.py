"""What the routing findings say of traces that are known beforehand, and cache policies against plain references."""

from __future__ import annotations

import importlib.util
import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_moetier import routing
from pytest_moetier.errors import InputError
from pytest_moetier.finding import load_bounds, read_bounds
from pytest_moetier.routing import (
    BUDGETS,
    GIVEN,
    MODELS,
    POLICIES,
    UNITS,
    HitRates,
    Study,
    Subject,
    crossovers,
    hit_rates,
)
from pytest_moetier.trace.locality import locality
from pytest_moetier.trace.records import NORMAL, Trace, make_trace

BENCH = Path(__file__).parents[2] / "bench"
Rows = Sequence[Sequence[int]]
"""The passes of one layer, each the ids it chose."""


@pytest.fixture
def bench() -> ModuleType:
    """The finding's module."""
    spec = importlib.util.spec_from_file_location("routing_findings", BENCH / "test_routing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trace_of(*layers: Rows, n_experts: int = 16, synthetic: bool = False) -> Trace:
    """Return a trace in which layer l makes the choices ``layers[l]``, a pass an iteration."""
    passes, k = len(layers[0]), len(layers[0][0])
    experts = [ids for step in range(passes) for layer in layers for ids in layer[step]]
    records = passes * len(layers)
    return make_trace(
        iteration=np.repeat(np.arange(passes), len(layers)),
        layer=np.tile(np.arange(len(layers)), passes),
        kind=np.full(records, NORMAL),
        offsets=np.arange(records + 1) * k,
        experts=experts,
        n_experts=n_experts,
        k=k,
        synthetic=synthetic,
        source="known",
    )


class NotExaminedError(Exception):
    """What a finding raises that cannot be examined."""


@dataclass
class Known:
    """Known traces that keep what a finding concludes."""

    studies: list[Study]
    values: dict[str, float | None] = field(default_factory=dict)

    @classmethod
    def of(cls, *traces: Trace) -> Known:
        return cls(
            [
                Study(Subject(f"t{at}", "traces", f"t{at}", GIVEN), one, "own", locality(one.selections()), 0.0)
                for at, one in enumerate(traces)
            ]
        )

    @property
    def study(self) -> Study:
        return self.studies[0]

    @property
    def trace(self) -> Trace:
        return self.study.trace

    @property
    def locality(self) -> Any:
        return self.study.locality

    @property
    def model(self) -> str:
        return self.study.model

    def hit_rates(self) -> list[HitRates]:
        return [hit_rates(one.trace) for one in self.studies]

    def store(self, benchmark: object) -> None:
        assert benchmark is None

    def judge(self, *names: str) -> None:
        figures = self.study.figures()
        self.conclude({name: figures[name] for name in names})

    def conclude(self, values: Mapping[str, float | None], reason: str = "") -> None:
        del reason
        self.values.update(values)

    def not_examined(self, reason: str, values: Mapping[str, float | None] | None = None) -> None:
        self.values.update(values or {})
        raise NotExaminedError(reason)


SKEWED = [[0]] * 16 + [[1]] * 8 + [[2]] * 4 + [[3]] * 4


def test_every_unit_is_counted_in_its_own() -> None:
    known = Known.of(trace_of([[0, 1], [2, 3], [4, 5]], [[0, 1], [2, 3], [4, 5]]))
    figures = known.study.figures()
    assert (figures["iterations"], figures["accepted_tokens"]) == (3, 3)
    assert (figures["reads_per_iteration"], figures["reads_per_accepted_token"]) == (4, 4)


def test_a_slope_that_is_known_comes_out() -> None:
    counts = Counter({rank: round(3600 / (rank + 1)) for rank in range(9)})
    rows = [[expert] for expert, count in counts.items() for _ in range(count)]
    assert Known.of(trace_of(rows)).study.figures()["zipf_slope"] == pytest.approx(1.0, abs=1e-3)


def test_reuse_within_a_window_is_what_the_windows_hold() -> None:
    figures = Known.of(trace_of([[0], [1], [0], [1], [1], [2]])).study.figures()
    assert figures["reuse_w1"] == pytest.approx(1 / 5)  # of five passes after the first, one repeats the last
    assert figures["reuse_w8"] == pytest.approx(3 / 5)
    assert figures["overlap_1"] == figures["reuse_w1"]


def test_concentration_by_depth_and_coverage() -> None:
    spread = [[step % 16] for step in range(32)]
    narrow = [[0]] * 32
    figures = Known.of(trace_of(spread, narrow)).study.figures()
    assert figures["first_layer_top8_mass"] == 0.5
    assert figures["most_concentrated_top8_mass"] == 1.0
    assert figures["depth_gradient"] == 2.0
    assert figures["top8_mass"] == 0.75
    assert figures["pool_coverage"] == 17 / 32


def test_a_model_of_fewer_than_8_experts_has_no_top_8() -> None:
    figures = Known.of(trace_of([[0], [1]], n_experts=4)).study.figures()
    assert figures["top8_mass"] is None
    assert figures["depth_gradient"] is None
    assert figures["zipf_slope"] == 0.0


def test_the_union_is_one_over_the_domains(bench: ModuleType) -> None:
    known = Known.of(trace_of([[0], [1]], [[5], [5]]), trace_of([[1], [2]], [[5], [6]]))
    bench.test_depth_union(known)
    assert known.values == {"union_near_input": 3.0, "union_at_depth": 2.0}


def test_domains_are_compared_in_pairs(bench: ModuleType) -> None:
    known = Known.of(trace_of([[0], [1]]), trace_of([[0], [1]]), trace_of([[1], [2]]))
    bench.test_domain_jaccard(known)
    assert known.values == {"jaccard16_smallest": pytest.approx(1 / 3), "jaccard16_largest": 1.0}


def test_one_domain_has_nothing_to_overlap_with(bench: ModuleType) -> None:
    with pytest.raises(NotExaminedError, match="one domain"):
        bench.test_domain_jaccard(Known.of(trace_of([[0], [1]])))


def rates_of(model: tuple[int, int], *traces: Trace) -> list[HitRates]:
    """Return the hit rates of traces as if a model of so many experts, k of them a pass, had made them."""
    n_experts, k = model
    return [replace(hit_rates(one), n_experts=n_experts, k=k) for one in traces]


def test_a_ranking_is_a_difference_of_means_over_domains() -> None:
    cycling = trace_of([[step % 9] for step in range(90)])  # one more than LRU of 8 holds: it never hits
    resting = trace_of([[step % 8] for step in range(90)])
    found = crossovers(rates_of((64, 5), cycling, resting))
    assert found["static_lead_8"] == pytest.approx((8 / 9 + 1) / 2 - (0 + 1) / 2)
    assert found["lru_lead_32"] == 0.0
    assert found["lead_over_spread_32"] is None  # no spread over domains


def test_a_budget_says_nothing_of_a_model_that_it_does_not_fit(bench: ModuleType) -> None:
    known = Known.of(trace_of([[step % 9] for step in range(90)]))
    bench.test_crossover(known)  # 16 experts, one a pass: 8 is far beyond 2k, and 32 holds everything
    assert set(known.values.values()) == {None}
    (rates,) = rates_of((33, 4), trace_of([[step % 9] for step in range(90)]))
    found = crossovers([rates])
    assert found["static_lead_8"] is None  # 8 is not below 2k
    assert found["lru_lead_32"] == 0.0


def test_a_mean_over_four_domains_needs_four(bench: ModuleType) -> None:
    known = Known.of(trace_of([[step % 9] for step in range(90)]))
    with pytest.raises(NotExaminedError, match="four domains, here are 1"):
        bench.test_hit_rates(known)
    assert known.values["lru_8"] == 0.0
    four = Known.of(*[trace_of([[step % 9] for step in range(90)])] * 4)
    bench.test_hit_rates(four)
    assert four.values.keys() == {f"{policy}_{budget}" for policy in POLICIES for budget in BUDGETS}


def test_streams_that_ask_for_the_same_share_it(bench: ModuleType) -> None:
    known = Known.of(*[trace_of([[0, 1], [2, 3]])] * 4)
    bench.test_batch4(known)
    assert known.values == {
        "deduplication": 4.0,
        "merged_accepted_tokens": 8.0,
        "union_gigabytes_per_step": None,
    }


def test_a_known_model_prices_its_batch(bench: ModuleType) -> None:
    known = Known.of(*[trace_of([[0, 1], [2, 3]])] * 4)
    known.studies = [Study(one.subject, one.trace, "kimi-k3", one.locality, 0.0) for one in known.studies]
    bench.test_batch4(known)
    assert known.values["union_gigabytes_per_step"] == pytest.approx(2 * MODELS["kimi-k3"].expert_bytes / 1e9)


@pytest.mark.parametrize(
    ("passes", "synthetic", "said"), [(5000, True, "not fitted for 4000"), (3999, False, "3999 passes")]
)
def test_the_asymptote_is_one_of_long_recorded_traces(
    bench: ModuleType,
    passes: int,
    synthetic: bool,  # noqa: FBT001
    said: str,
) -> None:
    known = Known.of(trace_of([[step % 16] for step in range(passes)], synthetic=synthetic))
    with pytest.raises(NotExaminedError, match=said):
        bench.test_asymptote(known)


def test_a_long_recorded_trace_has_an_asymptote(bench: ModuleType) -> None:
    known = Known.of(trace_of([[step % 16] for step in range(4000)]))
    bench.test_asymptote(known)
    assert known.values == {
        "zipf_slope_4000_steps": pytest.approx(0.0),
        "reuse_w64_4000_steps": pytest.approx(3984 / 3999),
        "pool_coverage_4000_steps": 1.0,
    }


@pytest.mark.parametrize("name", ["zipf_slope", "reuse_w1", "reuse_w8", "reuse_w64", "top8_mass", "pool_coverage"])
def test_a_test_of_one_figure_judges_that_figure(bench: ModuleType, name: str) -> None:
    known = Known.of(trace_of(SKEWED))
    getattr(bench, f"test_{name}")(known)
    assert known.values == {name: known.study.figures()[name]}


def test_every_bound_of_routing_is_on_a_value_that_a_finding_judges() -> None:
    judged = set(UNITS) | {f"{policy}_{budget}" for policy in POLICIES for budget in BUDGETS}
    judged |= {f"{name}_4000_steps" for name in ("zipf_slope", "reuse_w64", "pool_coverage")}
    judged |= {"jaccard16_smallest", "jaccard16_largest", "static_lead_8", "lfu_lead_8", "lru_lead_32"}
    bounds = [one for one in read_bounds(BENCH / "bounds.yaml") if one.id.startswith("routing.")]
    assert len(bounds) > 50
    assert {one.value for one in bounds} <= judged
    assert {one.value for one in bounds if one.cell == "*"} == set()  # a bound of one model holds for no other


@pytest.mark.parametrize("value", ["40", "[40]", "[1, 2, 3]", "[a, 40]", "[true, 40]", "[4.5, 40]"])
def test_a_length_that_is_no_pair_of_whole_numbers_is_refused(value: str) -> None:
    text = f"format: moetier-bounds/1\nbounds: [{{id: a, value: x, min: 1, source: s, iterations: {value}}}]\n"
    with pytest.raises(InputError, match=r"mine\.yaml: .*iterations is .*, not the fewest and the most"):
        load_bounds(text, "mine.yaml")


@pytest.mark.parametrize(
    ("value", "length", "said"),
    [
        ("[40, null]", 39, "the source speaks of 40 or more"),
        ("[40, null]", 40, ""),
        ("[null, 50]", 51, "the source speaks of 1 to 50"),
        ("[285, 285]", 284, "the source speaks of 285"),
        ("[285, 285]", 285, ""),
        ("null", 1, ""),
    ],
)
def test_a_bound_says_which_lengths_it_speaks_of(value: str, length: int, said: str) -> None:
    text = f"format: moetier-bounds/1\nbounds: [{{id: a, value: x, min: 1, source: s, iterations: {value}}}]\n"
    (bound,) = load_bounds(text, "mine.yaml")
    assert bound.beyond([length]) == (f"the trace has {length} iterations, {said}" if said else "")


# Plain references, one access after another, for one layer.


def lru(ids: Sequence[int], budget: int) -> list[bool]:
    held: OrderedDict[int, None] = OrderedDict()
    hits = []
    for one in ids:
        hits.append(one in held)
        held[one] = None
        held.move_to_end(one)
        if len(held) > budget:
            held.popitem(last=False)
    return hits


def lfu(ids: Sequence[int], budget: int, *, forgets: bool) -> list[bool]:
    held: set[int] = set()
    uses: Counter[int] = Counter()
    last: dict[int, int] = {}
    hits = []
    for step, one in enumerate(ids):
        hits.append(one in held)
        if one not in held:
            if len(held) == budget:
                victim = min(held, key=lambda each: (uses[each], last[each]))
                held.remove(victim)
                if forgets:
                    uses[victim] = 0
            held.add(one)
        uses[one] += 1
        last[one] = step
    return hits


def static(ids: Sequence[int], budget: int, warm: int) -> list[bool]:
    counts = Counter(ids[:warm])
    pinned = sorted(range(16), key=lambda each: (-counts[each], each))[:budget]
    return [one in pinned for one in ids]


def most_hits(ids: Sequence[int], budget: int, warm: int) -> int:
    """Return the most scored hits of any cache that must admit what it misses, by trying every eviction."""
    best: dict[frozenset[int], int] = {frozenset(): 0}
    for step, one in enumerate(ids):
        reached: dict[frozenset[int], int] = {}
        for held, hits in best.items():
            gained = hits + (one in held and step >= warm)
            if one in held or len(held) < budget:
                outcomes = [held | {one}]
            else:
                outcomes = [held - {victim} | {one} for victim in held]
            for outcome in outcomes:
                reached[outcome] = max(reached.get(outcome, 0), gained)
        best = reached
    return max(best.values())


References = Mapping[str, Callable[[Sequence[int], int, int], list[bool]]]
REFERENCES: References = {
    "lru": lambda ids, budget, _warm: lru(ids, budget),
    "lfu": lambda ids, budget, _warm: lfu(ids, budget, forgets=False),
    "lfu_in_cache": lambda ids, budget, _warm: lfu(ids, budget, forgets=True),
    "static": static,
}
LAYER = st.lists(st.permutations(range(8)).map(lambda ids: ids[:2]), min_size=10, max_size=10)


@given(layers=st.lists(LAYER, min_size=1, max_size=3), budget=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_every_policy_hits_what_a_plain_reference_hits(layers: list[Rows], budget: int) -> None:
    found = hit_rates(trace_of(*layers), [budget])
    flat = [list(itertools.chain.from_iterable(layer)) for layer in layers]
    warm = 6 * 2  # 60% of ten passes of two
    assert (found.warm_iterations, found.scored_iterations) == (6, 4)
    for policy, reference in REFERENCES.items():
        hits = sum(sum(reference(ids, budget, warm)[warm:]) for ids in flat)
        assert found.rates[policy, budget] == hits / (8 * len(layers)), policy


@given(layer=LAYER, budget=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_belady_hits_as_often_as_any_cache_that_admits_what_it_misses(layer: Rows, budget: int) -> None:
    found = hit_rates(trace_of(layer), [budget])
    flat = list(itertools.chain.from_iterable(layer))
    # MIN is best over the whole run; what it leaves for the scored window depends on the warm one.
    windows = routing._windows(trace_of(layer), warm=0)  # noqa: SLF001 - the whole run scored
    hits = routing._belady(windows, routing._next_uses(windows), budget)  # noqa: SLF001
    assert int(hits.sum()) == most_hits(flat, budget, warm=0)
    assert found.rates["belady", budget] * 8 <= most_hits(flat, budget, warm=12)


def test_a_layer_with_fewer_passes_than_another_is_simulated_to_its_own_end() -> None:
    """A batch has positions of its own for each layer."""
    trace = make_trace(
        iteration=[0, 0, 1, 1],
        layer=[0, 1, 0, 1],
        kind=[3, 3, 3, 3],
        offsets=[0, 2, 3, 4, 5],
        experts=[0, 1, 7, 0, 7],
        n_experts=16,
        k=1,
        synthetic=False,
        source="known",
    )
    assert set(hit_rates(trace, [2]).rates.values()) == {1.0}


def test_one_iteration_cannot_warm_and_be_scored() -> None:
    with pytest.raises(InputError, match="1 iteration; expected 2 or more"):
        hit_rates(trace_of([[0]]))


def test_a_trace_too_long_to_simulate_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "_MAX_STEPS", 9)
    with pytest.raises(InputError, match="10 accesses a layer; expected 9 or fewer"):
        hit_rates(trace_of([[0]] * 10))
