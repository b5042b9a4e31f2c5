"""What the routing findings say of traces that are known beforehand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import ModuleType

import pytest
from known import BENCH, Known, NotExaminedError, cycling, module_of, trace_of

from pytest_moetier.errors import InputError
from pytest_moetier.finding import load_bounds, read_bounds
from pytest_moetier.routing import (
    BUDGETS,
    MODELS,
    POLICIES,
    SPLIT_BUDGETS,
    UNITS,
    HitRates,
    crossovers,
    hit_rates,
    lru_of_belady,
)
from pytest_moetier.simulate import simulate, workload
from pytest_moetier.trace.records import Trace, make_trace
from pytest_moetier.trace.synth import synth_trace


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The finding's module."""
    return module_of("routing")


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
    restless, resting = cycling(*range(9)), cycling(*range(8))  # LRU of 8 never hits a cycle of one more
    found = crossovers(rates_of((64, 5), restless, resting))
    assert found["static_lead_8"] == pytest.approx((8 / 9 + 1) / 2 - (0 + 1) / 2)
    assert found["lru_lead_32"] == 0.0
    assert found["lead_over_spread_32"] is None  # no spread over domains


def test_a_budget_says_nothing_of_a_model_that_it_does_not_fit(bench: ModuleType) -> None:
    known = Known.of(cycling(*range(9)))
    bench.test_crossover(known)  # 16 experts, one a pass: 8 is far beyond 2k, and 32 holds everything
    assert set(known.values.values()) == {None}
    (rates,) = rates_of((33, 4), cycling(*range(9)))
    found = crossovers([rates])
    assert found["static_lead_8"] is None  # 8 is not below 2k
    assert found["lru_lead_32"] == 0.0


def test_a_mean_over_four_domains_needs_four(bench: ModuleType) -> None:
    known = Known.of(cycling(*range(9)))
    with pytest.raises(NotExaminedError, match="four domains, here are 1"):
        bench.test_hit_rates(known)
    assert known.values["lru_8"] == 0.0
    four = Known.of(*[cycling(*range(9))] * 4)
    bench.test_hit_rates(four)
    assert four.values.keys() == {f"{policy.replace('-', '_')}_{budget}" for policy in POLICIES for budget in BUDGETS}


def test_streams_that_ask_for_the_same_share_it(bench: ModuleType) -> None:
    known = Known.of(*[trace_of([[0, 1], [2, 3]])] * 4)
    bench.test_batch4(known)
    assert known.values == {
        "deduplication": 4.0,
        "merged_accepted_tokens": 8.0,
        "union_gigabytes_per_step": None,
    }


def test_a_known_model_prices_its_batch(bench: ModuleType) -> None:
    known = Known.of(*[trace_of([[0, 1], [2, 3]])] * 4, model="kimi-k3")
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
    judged = set(UNITS) | {f"{policy.replace('-', '_')}_{budget}" for policy in POLICIES for budget in BUDGETS}
    judged |= {f"{name}_4000_steps" for name in ("zipf_slope", "reuse_w64", "pool_coverage")}
    judged |= {"jaccard16_smallest", "jaccard16_largest", "static_lead_8", "lfu_perfect_lead_8", "lru_lead_32"}
    judged |= {f"global_lead_{budget}" for budget in SPLIT_BUDGETS}
    judged |= {"single_hits_25pct", "batch_hits_25pct", "batch_hit_loss_25pct"}
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


@pytest.mark.parametrize("allocation", ["layer", "global"])
def test_hit_rates_are_those_of_the_simulation_over_the_fair_window(allocation: str) -> None:
    trace = synth_trace("olmoe-1b-7b", iterations=30)
    found = hit_rates(trace, [8, 32], allocation=allocation)
    outcomes = simulate(workload(trace), POLICIES, ["8/layer", "32/layer"], allocation=allocation, window="fair")
    assert found.rates == {(one.policy, int(one.budget.partition("/")[0])): one.hit_rate for one in outcomes}
    assert (found.n_experts, found.k) == (64, 8)


def test_a_count_that_outlives_an_eviction_is_what_holds_a_favourite() -> None:
    """The favourite comes every third time, always after two newcomers: kept counts hold it, lost ones do not."""
    newcomers = iter(range(1, 2000))
    ids = [0 if step % 3 == 0 else next(newcomers) for step in range(300)]
    found = hit_rates(trace_of([[one] for one in ids], n_experts=300), [2])
    assert found.rates["lfu-perfect", 2] == 1 / 3
    assert found.rates["lru", 2] == 0.0


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


def test_a_budget_above_all_experts_of_a_layer_is_all_of_them() -> None:
    trace = cycling(*range(16))
    assert hit_rates(trace, [32]).rates["lru", 32] == hit_rates(trace, [16]).rates["lru", 16] == 1.0


def test_one_iteration_cannot_warm_and_be_scored(bench: ModuleType) -> None:
    with pytest.raises(InputError, match="1 iteration: shorter than the fair window; expected 2 iterations or more"):
        hit_rates(trace_of([[0]]))
    for name in ("crossover", "hit_rates", "lru_of_belady", "global_against_split"):
        with pytest.raises(NotExaminedError, match="shorter than the fair window"):
            getattr(bench, f"test_{name}")(Known.of(trace_of([[0]])))


def test_what_recency_reaches_is_a_ratio_of_means_over_domains() -> None:
    cold, warm = cycling(*range(33), n_experts=64, passes=330), cycling(0, n_experts=64)
    rates = [hit_rates(one) for one in (cold, warm)]
    best = rates[0].rates["belady", 32]
    assert 0 < best < 1  # LRU of 32 never hits a cycle of 33
    assert lru_of_belady(rates) == {"lru_of_belady_32": pytest.approx(1 / (1 + best))}


def test_what_recency_reaches_where_all_experts_fit_says_nothing(bench: ModuleType) -> None:
    known = Known.of(cycling(0, n_experts=32))
    bench.test_lru_of_belady(known)
    assert known.values == {"lru_of_belady_32": None}


def test_one_cache_for_all_leads_an_equal_split_where_a_layer_needs_more_than_its_part(bench: ModuleType) -> None:
    wide = [[step % 9] for step in range(90)]
    narrow = [[40 if step >= 54 and step % 2 else 0] for step in range(90)]
    known = Known.of(trace_of(wide, narrow, n_experts=64))
    bench.test_global_against_split(known)
    # 9 + 2 experts fit a cache of 16, and LRU misses the newcomer once. Of 8 for each layer, static holds 8 of the 9
    # and no newcomer: 0.69 of all; LRU misses the whole cycle, and hits 35 of 72.
    assert known.values["global_lead_8"] == pytest.approx(0.5)
    assert known.values["ranking_changes"] == 1
    assert known.values["global_lead_64"] is None
    assert {known.values[f"global_lead_{one}"] for one in (16, 32)} == {0.0}


def test_a_model_smaller_than_every_budget_has_nothing_to_split(bench: ModuleType) -> None:
    known = Known.of(cycling(0, n_experts=8))
    bench.test_global_against_split(known)
    assert set(known.values) == {*(f"global_lead_{one}" for one in SPLIT_BUDGETS), "ranking_changes"}
    assert set(known.values.values()) == {None}


def test_streams_that_share_a_budget_lose_hits_and_each_token_pays(bench: ModuleType) -> None:
    """Each stream cycles through 4 experts of its own: a quarter of the pool holds one stream, never four."""
    streams = [cycling(*range(4 * one, 4 * one + 4), passes=100) for one in range(4)]
    known = Known.of(*streams)
    bench.test_batch_hits(known)
    assert known.values["single_hits_25pct"] == 1.0
    assert known.values["batch_hits_25pct"] == 0.0
    assert known.values["batch_hit_loss_25pct"] == 1.0
    assert known.values["batch_surcharge_25pct"] is None  # nothing is missed alone: no multiple of it
    assert "batch_surcharge_200gb" not in known.values  # of no known size


def test_streams_that_ask_for_the_same_miss_it_once(bench: ModuleType) -> None:
    known = Known.of(*[cycling(*range(5), passes=100)] * 4)  # 5 in a cache of 4: LRU misses all
    bench.test_batch_hits(known)
    assert known.values["batch_hit_loss_25pct"] == 0.0
    assert known.values["batch_surcharge_25pct"] == pytest.approx(1 / 4)


@pytest.mark.parametrize("name", ["batch4", "batch_hits"])
def test_a_batch_of_fewer_than_the_papers_streams_is_not_examined(bench: ModuleType, name: str) -> None:
    known = Known.of(*[cycling(0, 1)] * 3)
    with pytest.raises(NotExaminedError, match="the paper merges four streams, here are 3"):
        getattr(bench, f"test_{name}")(known)
    assert known.values


def test_a_stream_alone_is_no_batch(bench: ModuleType) -> None:
    with pytest.raises(NotExaminedError, match="1 trace to merge"):
        bench.test_batch_hits(Known.of(cycling(0, 1)))
