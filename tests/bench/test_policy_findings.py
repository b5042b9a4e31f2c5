"""What the policy findings say of traces that are known beforehand."""

from __future__ import annotations

from types import ModuleType

import pytest
from known import BENCH, Known, NotExaminedError, cycling, module_of, trace_of

from pytest_moetier.finding import bounds_for, read_bounds
from pytest_moetier.routing import UNITS, host_budget

POOL = 34
"""Experts of a pool of one layer: 17.7% of them are 6."""


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The finding's module."""
    return module_of("policy")


def test_a_table_collapses_where_another_domain_asks_for_other_experts(bench: ModuleType) -> None:
    prose, code, chat = (cycling(*ids, n_experts=POOL) for ids in (range(6), range(3, 9), range(20, 26)))
    known = Known.of(prose, code, chat)
    bench.test_off_domain(known)
    assert known.values == {
        "off_domain_table_smallest": 0.0,  # of the first domain, in the chat
        "off_domain_table_largest": pytest.approx(0.5),  # in the code: 3 of its 6
        "off_domain_lru_smallest": 1.0,
        "off_domain_lru_largest": 1.0,
        "lru_over_off_domain_smallest": pytest.approx(0.5),
    }


def test_the_table_is_that_of_the_prose_wherever_it_stands(bench: ModuleType) -> None:
    known = Known.of(*(cycling(*ids, n_experts=POOL) for ids in (range(20, 26), range(3, 9), range(6))))
    named = [one.subject for one in known.studies]
    object.__setattr__(named[2], "domain", "prose")
    bench.test_off_domain(known)
    assert known.values["off_domain_table_largest"] == pytest.approx(0.5)
    assert known.values["off_domain_table_smallest"] == 0.0


def test_a_table_that_serves_another_domain_better_than_recency_refutes_it(bench: ModuleType) -> None:
    seven = cycling(*range(7), n_experts=POOL)  # LRU of 6 never hits, a table holds 6 of 7
    known = Known.of(seven, seven)
    bench.test_off_domain(known)
    lead = known.values["lru_over_off_domain_smallest"]
    assert lead is not None
    assert lead == pytest.approx(-6 / 7, abs=0.02)
    (bound,) = [one for one in read_bounds(BENCH / "bounds.yaml") if one.id == "policy.lru_over_off_domain"]
    assert not bound.holds(lead)


def test_one_domain_has_no_other(bench: ModuleType) -> None:
    with pytest.raises(NotExaminedError, match=r"1 domain\(s\); expected two or more"):
        bench.test_off_domain(Known.of(cycling(*range(8), n_experts=POOL)))


def test_the_oracle_is_of_the_whole_trace_and_lru_of_a_second_pass(bench: ModuleType) -> None:
    """Ten experts once, then six again and again: a table holds the six; LRU misses each once a pass."""
    ids = [*range(10, 20), *[step % 6 for step in range(60)]]
    known = Known.of(trace_of([[one] for one in ids], n_experts=POOL))
    bench.test_own_domain_oracle(known)
    assert known.values["oracle_replayed"] == pytest.approx(60 / 70)
    assert known.values["lru_replayed"] == pytest.approx(54 / 70)
    assert known.values["lru_over_oracle"] == pytest.approx(-6 / 70)


def test_a_table_of_the_past_ages_where_the_hot_set_drifts(bench: ModuleType) -> None:
    ids = [step % 6 for step in range(60)] + [20 + step % 6 for step in range(40)]
    known = Known.of(trace_of([[one] for one in ids], n_experts=POOL))
    bench.test_drift(known)
    assert known.values == {
        "lru_fair": pytest.approx(34 / 40),  # six first reads
        "past_table": 0.0,
        "own_table": 0.0,  # of the whole trace, of which the past is the larger part
        "lru_over_past_table": pytest.approx(34 / 40),
    }


@pytest.mark.parametrize("name", ["test_drift", "test_off_domain"])
def test_a_trace_too_short_to_warm_is_not_examined(bench: ModuleType, name: str) -> None:
    short = trace_of([[0]], n_experts=POOL)
    with pytest.raises(NotExaminedError, match="shorter than the fair window"):
        getattr(bench, name)(Known.of(short, short))


def test_a_pool_of_which_the_share_is_no_expert_is_not_examined(bench: ModuleType) -> None:
    with pytest.raises(NotExaminedError, match=r"17\.7% leaves 0 experts"):
        bench.test_own_domain_oracle(Known.of(cycling(0, 1, n_experts=5)))


def test_the_budget_is_256_gb_of_the_papers_pool_and_the_same_share_of_anothers() -> None:
    assert host_budget("kimi-k3") == "14589"
    assert pytest.approx(0.177, abs=1e-4) == 14589 / (92 * 896)
    assert host_budget("own") == host_budget("qwen3-30b-a3b") == "17.7%"


def test_one_bound_on_traces_holds_for_any_model_and_a_known_one_has_its_own() -> None:
    bounds = [one for one in read_bounds(BENCH / "bounds.yaml") if one.id.startswith("policy.") and one.value in UNITS]
    assert [one.id for one in bounds_for(bounds, ("own", "traces"))] == ["policy.lru_over_off_domain"]
    assert len(bounds_for(bounds, ("kimi-k3", "kimi-k3"))) == 5
    judged = {"oracle_replayed", "lru_replayed", "lru_over_oracle", "lru_over_past_table"}
    judged |= {f"off_domain_{one}_{which}" for one in ("table", "lru") for which in ("smallest", "largest")}
    assert {one.value for one in bounds} == judged | {"lru_over_off_domain_smallest"}
