"""Every policy against a plain reference, and what theory says of them: inclusion, optimality, uniform ids."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Reference, replay

from pytest_moetier.simulate import (
    POLICIES,
    Outcome,
    Workload,
    batch_cost,
    diagnose,
    least_lru_distance,
    off_domain,
    simulate,
    trained,
    window,
    workload,
)
from pytest_moetier.trace.records import KINDS, Trace, make_trace
from pytest_moetier.trace.synth import synth_trace

SEMANTICS, ALLOCATIONS = ("per-access", "event-atomic"), ("global", "layer")


@st.composite
def traces(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS[:4]) -> Trace:
    """Draw a small trace of every kind of record, often with a prompt and with experts of several sizes."""
    n_layers, n_experts = draw(st.integers(1, 3)), draw(st.integers(2, 7))
    k = draw(st.integers(1, min(3, n_experts)))
    shape = {"n_layers": n_layers, "n_experts": n_experts, "k": k}
    prompt = _records(draw, draw(st.integers(1, 2)), ("batch", "normal"), shape) if draw(st.booleans()) else None
    sizes = draw(st.sampled_from([(), (3,) * n_layers, tuple(range(2, 2 + n_layers))]))
    decode = _records(draw, draw(st.integers(2, 9)), kinds, shape)
    return replace(decode, prefill=prompt, expert_bytes=sizes)


def _records(draw: st.DrawFn, n: int, kinds: tuple[str, ...], shape: dict[str, int]) -> Trace:
    iteration, layer, kind, ids, widths = [], [], [], [], [0]
    for number in range(n):
        name = draw(st.sampled_from(kinds))
        passes = {"spec_accept": 2, "batch": draw(st.integers(1, 4))}.get(name, 1)
        for _ in range(2 if name == "spec_fallback" else 1):
            for one in range(shape["n_layers"]):
                experts = st.permutations(range(shape["n_experts"])).map(lambda all_: all_[: shape["k"]])
                chosen = [each for _ in range(passes) for each in draw(experts)]
                iteration.append(number)
                layer.append(one)
                kind.append(KINDS.index(name))
                ids += chosen
                widths.append(len(ids))
    return make_trace(
        iteration=iteration,
        layer=layer,
        kind=kind,
        offsets=widths,
        experts=ids,
        n_experts=shape["n_experts"],
        k=shape["k"],
        synthetic=True,
        source="drawn",
    )


def budgets_of(work: Workload, allocation: str, unit: str) -> list[str]:
    """Return every budget there is, in experts or in bytes."""
    if unit == "experts":
        return [
            f"{each}/layer" if allocation == "layer" else str(each) for each in range(1, _most(work, allocation) + 1)
        ]
    caches = work.n_layers if allocation == "layer" else 1
    return [f"{total}B" for total in range(max(work.layer_bytes) * caches, work.pool_bytes + 1)]


def _most(work: Workload, allocation: str) -> int:
    return work.n_experts if allocation == "layer" else work.n_objects


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@pytest.mark.parametrize("semantics", SEMANTICS)
@settings(deadline=None, max_examples=60)
@given(trace=traces(), name=st.sampled_from(["fair", "cold", "1:2"]), threads=st.integers(1, 3))
def test_every_policy_hits_as_the_reference_does_at_every_budget(
    semantics: str, allocation: str, trace: Trace, name: str, threads: int
) -> None:
    prefill = "before" if trace.prefill else "none"
    work = workload(trace, semantics, prefill=prefill)
    span = window(name, work)
    for unit in ("experts", "bytes") if trace.expert_bytes else ("experts",):
        plain = Reference(
            trace,
            atomic=semantics == "event-atomic",
            sizes=trace.expert_bytes,
            prefill=prefill == "before",
            unit=unit,
        )
        lookups = plain.lookups(0, span.last)
        assert [one for _, _, one in lookups] == work.cut(span.end).key.tolist()
        counts = plain.counts(0, span.last)
        found = simulate(
            work,
            POLICIES,
            budgets_of(work, allocation, unit),
            allocation=allocation,
            window=span,
            table="own",
            threads=threads,
            hit_sets=True,
        )
        assert len(found) == len(POLICIES) * len(budgets_of(work, allocation, unit))
        for one in found:
            capacity = one.capacity
            if unit == "bytes" and one.unit == "experts":
                capacity *= trace.expert_bytes[0]
            expected = plain.hits(one.policy, capacity, span.last, by_layer=allocation == "layer", counts=counts)
            assert one.hit_set is not None
            assert one.hit_set.tolist() == expected, (one.policy, one.budget)
            agrees_with_its_hit_set(work, one, plain, lookups, expected)


def agrees_with_its_hit_set(
    work: Workload, one: Outcome, plain: Reference, lookups: list[tuple[int, int, int]], expected: list[bool]
) -> None:
    scored = [(*each, hit) for each, hit in zip(lookups, expected, strict=True) if each[0] >= one.window.first]
    missed = [each for each in scored if not each[3]]
    events = pairwise(work.cut(one.window.end).event.tolist())
    assert one.event_misses(work).tolist() == [expected[start:end].count(False) for start, end in events]
    assert (one.accesses, one.hits, one.misses) == (len(scored), len(scored) - len(missed), len(missed))
    assert one.layer_hits is not None
    assert one.layer_accesses is not None
    assert one.iteration_misses is not None
    for layer in range(plain.n_layers):
        mine = [each for each in scored if each[1] == layer]
        assert one.layer_accesses[layer] == len(mine)
        assert one.layer_hits[layer] == sum(each[3] for each in mine)
    numbers = range(one.window.first, one.window.last)
    assert one.iteration_misses.tolist() == [sum(each[0] == at for each in missed) for at in numbers]
    if plain.bytes[0]:
        assert one.miss_bytes == sum(plain.bytes[each[2]] for each in missed)
        assert one.iteration_miss_bytes is not None
        assert one.iteration_miss_bytes.tolist() == [
            sum(plain.bytes[each[2]] for each in missed if each[0] == at) for at in numbers
        ]
    else:
        assert one.miss_bytes is None
        assert one.iteration_miss_bytes is None


@settings(deadline=None, max_examples=80)
@given(trace=traces(), semantics=st.sampled_from(SEMANTICS), allocation=st.sampled_from(ALLOCATIONS))
def test_totals_alone_are_those_of_the_detailed_run(trace: Trace, semantics: str, allocation: str) -> None:
    work = workload(trace, semantics)
    budgets = budgets_of(work, allocation, "experts")
    known = {"allocation": allocation, "window": "fair"}
    for one, other in zip(
        simulate(work, POLICIES, budgets, detail=False, **known),
        simulate(work, POLICIES, budgets, **known),
        strict=True,
    ):
        assert (one.policy, one.budget, one.hits, one.miss_bytes) == (
            other.policy,
            other.budget,
            other.hits,
            other.miss_bytes,
        )
        assert one.hit_set is None
        if work.uniform:
            assert one.layer_hits is None


@settings(deadline=None, max_examples=100)
@given(trace=traces(), semantics=st.sampled_from(SEMANTICS), allocation=st.sampled_from(ALLOCATIONS))
def test_what_hits_at_a_capacity_hits_at_every_larger_one(trace: Trace, semantics: str, allocation: str) -> None:
    work = workload(trace, semantics)
    for policy in ("lru", "static", "belady"):
        budgets = budgets_of(work, allocation, "experts")
        found = simulate(work, [policy], budgets, allocation=allocation, window="fair", hit_sets=True)
        for smaller, larger in pairwise(found):
            assert smaller.hits <= larger.hits
            if policy != "belady" or semantics == "per-access":  # of two an event uses next, either may be held
                assert smaller.hit_set is not None
                assert larger.hit_set is not None
                assert not (smaller.hit_set & ~larger.hit_set).any()


@settings(deadline=None, max_examples=100)
@given(trace=traces(), semantics=st.sampled_from(SEMANTICS), allocation=st.sampled_from(ALLOCATIONS))
def test_no_policy_that_admits_what_it_misses_beats_belady(trace: Trace, semantics: str, allocation: str) -> None:
    work = workload(trace, semantics)
    budgets = budgets_of(work, allocation, "experts")
    found = simulate(work, ["belady", "lru", "lfu", "lfu-perfect"], budgets, allocation=allocation, window="cold")
    best = [one.hits for one in found if one.policy == "belady"]
    for policy in ("lru", "lfu", "lfu-perfect"):
        assert all(one.hits <= limit for one, limit in zip([o for o in found if o.policy == policy], best, strict=True))


@settings(deadline=None, max_examples=50)
@given(trace=traces(), semantics=st.sampled_from(SEMANTICS))
def test_a_cache_of_the_pool_misses_first_reads_alone_and_a_full_table_nothing(trace: Trace, semantics: str) -> None:
    work = workload(trace, semantics)
    for one in simulate(work, POLICIES, ["100%"], window="cold", table="own"):
        assert one.misses == (0 if one.policy == "static" else len(np.unique(work.key)))


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_uniform_ids_hit_as_often_as_the_cache_is_large(allocation: str) -> None:
    rng = np.random.default_rng(7)
    n, layers, experts, k = 4000, 4, 64, 4
    ids = np.argsort(rng.random((n * layers, experts)), axis=1)[:, :k]
    trace = make_trace(
        iteration=np.repeat(np.arange(n), layers),
        layer=np.tile(np.arange(layers), n),
        kind=np.zeros(n * layers, dtype=np.uint8),
        offsets=np.arange(n * layers + 1) * k,
        experts=ids.reshape(-1),
        n_experts=experts,
        k=k,
        synthetic=True,
        source="uniform",
    )
    for share in (25, 50, 75):
        for one in simulate(workload(trace), ["lru", "lfu-perfect", "static"], [f"{share}%"], allocation=allocation):
            # A pass names no expert twice, so what was just used comes back a little later than by chance.
            assert one.hit_rate == pytest.approx(share / 100, abs=0.04), one.policy
        lru = simulate(workload(trace), ["lru"], [f"{share}%"], allocation=allocation)[0]
        assert lru.accesses == 1600 * layers * k


def test_bytes_of_experts_of_one_size_are_counted_in_whole_experts() -> None:
    trace = replace(synth_trace("olmoe-1b-7b", iterations=20, layers=3), expert_bytes=(1000,) * 3)
    work = workload(trace)
    by_bytes = simulate(work, POLICIES, ["30999B"], window="fair")
    by_experts = simulate(work, POLICIES, ["30"], window="fair")
    assert [one.hits for one in by_bytes] == [one.hits for one in by_experts]
    assert {(one.unit, one.capacity) for one in by_bytes} == {("experts", 30)}
    assert all(one.miss_bytes == one.misses * 1000 for one in by_bytes)


def test_both_denominators_are_those_of_the_scored_window() -> None:
    trace = replace(synth_trace("kimi-k3", iterations=50, layers=2), expert_bytes=(1000, 3000))
    work = workload(trace)
    done = simulate(work, ["lru"], ["200"], window="10:30")[0]
    kinds = trace.kind[trace.record_bounds()[10:30]]
    tokens = 20 + int(np.count_nonzero(kinds == KINDS.index("spec_accept")))
    assert tokens > 20
    assert (done.iterations, done.accepted_tokens) == (20, tokens)
    assert done.miss_bytes is not None
    assert done.miss_bytes_per_iteration == done.miss_bytes / 20
    assert done.miss_bytes_per_accepted_token == done.miss_bytes / tokens
    assert done.iteration_miss_bytes is not None
    assert done.iteration_miss_bytes.shape == (20,)


def test_below_the_least_distance_lru_hits_nothing_and_at_it_something() -> None:
    trace = synth_trace("qwen3-30b-a3b", iterations=60, layers=8)
    for semantics in SEMANTICS:
        work = workload(trace, semantics)
        floor = least_lru_distance(work)
        assert floor.cycle_experts == 8 * 8
        assert floor.least is not None
        assert 7 * 8 < floor.least <= 8 * 8
        below, at = simulate(work, ["lru"], [str(floor.least - 1), str(floor.least)])
        assert below.hits == 0
        assert at.hits > 0


def test_the_floor_of_experts_of_several_sizes_is_in_bytes() -> None:
    trace = replace(synth_trace("qwen3-30b-a3b", iterations=60, layers=3), expert_bytes=(100, 200, 300))
    work = workload(trace)
    floor = least_lru_distance(work)
    assert (floor.unit, floor.cycle_bytes) == ("bytes", 8 * 600)
    assert floor.least is not None
    below, at = simulate(work, ["lru"], [f"{floor.least - 1}B", f"{floor.least}B"])
    assert (below.hits, at.hits > 0) == (0, True)


@settings(deadline=None, max_examples=60)
@given(trace=traces(), semantics=st.sampled_from(SEMANTICS), policy=st.sampled_from(POLICIES))
def test_every_miss_is_of_one_kind(trace: Trace, semantics: str, policy: str) -> None:
    work = workload(trace, semantics)
    budgets = budgets_of(work, "global", "experts")
    for one in diagnose(work, budgets, [policy], window="cold", table="own"):
        assert one.compulsory + one.capacity + one.policy == one.outcome.misses
        if policy not in {"static", "belady"}:
            assert one.compulsory == len(np.unique(work.key))
            assert 0 <= one.headroom <= 1
        if policy == "belady":
            assert (one.policy, one.headroom) == (0, 0)
        if trace.expert_bytes:
            read = (one.compulsory_bytes, one.capacity_bytes, one.policy_bytes)
            assert sum(each or 0 for each in read) == one.outcome.miss_bytes


def test_the_diagnosis_says_whether_it_is_the_policy_or_the_working_set() -> None:
    cycle = cyclic(n_experts=10, k=1, n=200)
    said = {one.outcome.budget: one for one in diagnose(workload(cycle), ["2", "9", "10"], window="cold")}
    assert (said["9"].compulsory, said["9"].outcome.hits) == (10, 0)
    assert said["9"].policy > said["9"].capacity
    assert "It is the policy" in said["9"].sentence
    assert "It is the working set" in said["2"].sentence
    assert said["10"].outcome.misses == 10
    assert "most misses are first reads" in said["10"].sentence
    warm = diagnose(workload(cycle), ["10"], window="fair")[0]
    assert warm.sentence == "lru at 10 misses nothing."


def cyclic(n_experts: int, k: int, n: int) -> Trace:
    return make_trace(
        iteration=range(n),
        layer=[0] * n,
        kind=[0] * n,
        offsets=[at * k for at in range(n + 1)],
        experts=[at % n_experts for at in range(n * k)],
        n_experts=n_experts,
        k=k,
        synthetic=True,
        source="a cycle",
    )


def test_a_table_of_another_domain_falls_below_the_oracle() -> None:
    works = {name: workload(synth_trace("kimi-k3", iterations=60, layers=3, domain=name)) for name in ("prose", "code")}
    found = {(one.trained_on, one.scored_on): one for one in off_domain(works, ["25%"])}
    assert set(found) == {(one, other) for one in works for other in works}
    for name, other in (("prose", "code"), ("code", "prose")):
        own, off = found[name, name], found[other, name]
        assert own.lru.hits == off.lru.hits
        assert off.static.hit_rate < own.static.hit_rate - 0.1
        assert own.static.table.endswith("(oracle)")
        assert not off.static.table.endswith("(oracle)")


def test_a_batch_costs_what_its_parts_say() -> None:
    streams = [
        synth_trace("qwen3-30b-a3b", iterations=200 + at, layers=2, domain=name)
        for at, name in enumerate(("prose", "code"))
    ]
    streams = [replace(one, expert_bytes=(1000, 2000)) for one in streams]
    for one in batch_cost(streams, ["lru", "belady"], ["25%"]):
        assert {each.iterations for each in one.singles} == {one.batch.iterations} == {80}
        tokens = sum(each.accepted_tokens for each in one.singles)
        assert one.batch.accepted_tokens == tokens
        alone = sum(each.miss_bytes or 0 for each in one.singles) / tokens
        assert one.surcharge == pytest.approx((one.batch.miss_bytes or 0) / tokens / alone)
        assert one.hit_loss == pytest.approx(sum(each.hit_rate for each in one.singles) / 2 - one.batch.hit_rate)
        assert one.hit_loss > 0


@settings(deadline=None, max_examples=40)
@given(trace=traces())
def test_nominal_misses_are_those_of_a_second_pass_through_a_cache_that_the_first_left(trace: Trace) -> None:
    work = workload(replace(trace, expert_bytes=tuple(range(2, 2 + len(trace.layers)))), prefill="none")
    size = dict(enumerate(work.object_bytes.tolist()))
    twice = [[one] for one in work.key.tolist() * 2]
    curve = work.nominal()
    for capacity in range(max(work.layer_bytes), work.pool_bytes + 1):
        hits = replay(twice, capacity, size, "lru")[work.n_accesses :]
        assert int(curve.misses(capacity)) == len(hits) - sum(hits)
    assert curve.miss_bytes_by_iteration(work.pool_bytes).tolist() == [0.0] * work.n_iterations


def test_progress_reaches_its_total_once_everything_is_done() -> None:
    seen: list[tuple[int, int]] = []
    work = workload(synth_trace("kimi-k3", iterations=30, layers=4))
    simulate(work, POLICIES, ["5%", "25%"], allocation="layer", threads=2, progress=lambda *at: seen.append(at))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (work.n_accesses * 8, work.n_accesses * 8)


def test_the_threads_do_not_change_the_result() -> None:
    work = workload(synth_trace("kimi-k3", iterations=60, layers=5))
    for allocation in ALLOCATIONS:
        one, other = (
            simulate(work, POLICIES, ["3%", "10%", "20%", "50%", "70%"], allocation=allocation, threads=threads)
            for threads in (1, 5)
        )
        assert [each.hits for each in one] == [each.hits for each in other]
        for a, b in zip(one, other, strict=True):
            assert a.layer_hits is not None
            assert b.layer_hits is not None
            assert a.layer_hits.tolist() == b.layer_hits.tolist()


def long_work() -> Workload:
    """Return accesses that take a policy of one budget seconds."""
    rng = np.random.default_rng(3)
    n, experts = 3_000_000, 60_000
    trace = make_trace(
        iteration=np.arange(n),
        layer=np.zeros(n, dtype=np.uint16),
        kind=np.zeros(n, dtype=np.uint8),
        offsets=np.arange(n + 1),
        experts=rng.integers(0, experts, n),
        n_experts=experts,
        k=1,
        synthetic=True,
        source="long",
    )
    return workload(trace)


def test_ctrl_c_ends_a_long_sweep_and_its_threads() -> None:
    work, stop, seen = long_work(), np.zeros(1, dtype=np.uint8), [(0, 1)]
    budgets = [str(each) for each in range(1000, 60_000, 100)]

    def interrupt() -> None:
        while not any(one.is_alive() for one in workers()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        simulate(work, ["lfu"], budgets, threads=2, detail=False, progress=lambda *at: seen.append(at), stop=stop)
    sender.join()
    assert stop[0] == 1
    assert seen[-1][0] < seen[-1][1]
    limit = time.monotonic() + 60
    while workers() and time.monotonic() < limit:  # one whose start was interrupted ends by itself
        time.sleep(0.01)
    assert workers() == []


def workers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("moetier-simulate")]


@pytest.mark.parametrize("policy", ["lru", "lfu", "lfu-perfect", "belady"])
@pytest.mark.parametrize("detail", [False, True])
def test_the_stop_flag_reaches_every_native_policy(policy: str, *, detail: bool) -> None:
    stop = np.ones(1, dtype=np.uint8)
    with pytest.raises(RuntimeError, match="stopped"):
        simulate(long_work(), [policy], ["1000"], detail=detail, stop=stop)


def test_a_table_that_is_given_is_used_as_it_is() -> None:
    train, score = (workload(synth_trace("qwen3-30b-a3b", iterations=40, layers=2, seed=seed)) for seed in (1, 2))
    table = trained(train)
    done = simulate(score, ["static"], ["32/layer"], table=table, allocation="layer")[0]
    counts = np.bincount(train.key, minlength=train.n_objects).reshape(2, -1)
    held = np.argsort(-counts, axis=1, kind="stable")[:, :32] + np.array([[0], [128]])
    first = int(score.iteration_bounds()[24])
    assert done.hits == int(np.isin(score.key[first:], held).sum())
    assert done.table == f"the whole of {train.source}"
