"""What is replayed: which trace, how much of it, over which pool; and the lists that go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_moetier.advice import make_advice, markov, noisy_oracle, oracle, predict, recall, withhold, write_advice
from pytest_moetier.cell import RECLAIM, RECLAIM_CAPACITY, WORKLOADS
from pytest_moetier.errors import InputError, UnsupportedHostError
from pytest_moetier.lists import ADVICE, ORACLE, read_lists, sequence_crc
from pytest_moetier.plan import build_plan
from pytest_moetier.pool.manifest import Manifest
from pytest_moetier.pool.synthetic import plan_manifest
from pytest_moetier.tables import own_table, train_table
from pytest_moetier.trace.batch import merge
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.records import NORMAL, SPEC_ACCEPT, SPEC_FALLBACK, Trace, make_trace
from pytest_moetier.trace.synth import PRESETS, synth_trace
from pytest_moetier.trace.write import write_trace
from pytest_moetier.units import Capacity
from pytest_moetier.workloads import (
    BUILDERS,
    RECLAIM_ITERATIONS,
    RECLAIM_SHAPES,
    SMALL_BOX_ITERATIONS,
    SMALL_BOX_SPINE_BYTES,
    SYNTHETIC_ITERATIONS,
    TEMPORARY,
    Asked,
    Workload,
    batch4,
    hit_cost,
    single,
    small_box,
)

LAYERS, EXPERTS, K = 2, 16, 2


def manifest(**changes: object) -> Manifest:
    plain = Manifest(
        name="small",
        profile="custom",
        pool_id=0xFEDCBA9876543210,
        layers=tuple(range(LAYERS)),
        experts=EXPERTS,
        k=K,
        expert_bytes=(4096,) * LAYERS,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def spoken(*kinds: int, seed: int = 0) -> Trace:
    """Return a trace with one iteration of each of these kinds; its choices are different for different seeds."""
    drawn = np.random.default_rng(seed)
    iteration, layer, each, sizes, experts = [], [], [], [0], []
    for at, kind in enumerate(kinds):
        passes = {NORMAL: [K], SPEC_ACCEPT: [2 * K], SPEC_FALLBACK: [K, K]}[kind]
        for width in passes:
            for one in range(LAYERS):
                iteration.append(at)
                layer.append(one)
                each.append(kind)
                for _ in range(width // K):
                    experts += drawn.choice(EXPERTS, K, replace=False).tolist()
                sizes.append(len(experts))
    return make_trace(
        iteration=iteration,
        layer=layer,
        kind=each,
        offsets=sizes,
        experts=experts,
        n_experts=EXPERTS,
        k=K,
        synthetic=False,
        source="by hand",
    )


MIXED = (NORMAL, SPEC_ACCEPT, SPEC_FALLBACK, SPEC_ACCEPT, NORMAL, NORMAL, NORMAL, NORMAL, SPEC_ACCEPT, NORMAL)


@pytest.fixture
def given(tmp_path: Path) -> list[tuple[str, Path]]:
    """Five traces of one model, with their domains."""
    found = []
    for at, domain in enumerate(("prose", "code", "chat", "math", "more")):
        path = tmp_path / f"{domain}.jsonl"
        write_trace(spoken(*MIXED, seed=at), path)
        found.append((domain, path))
    return found


def asked(traces: Sequence[tuple[str, Path]] = (), iterations: int = 0, **changes: object) -> Asked:
    return Asked(tuple(traces), iterations, **changes)  # type: ignore[arg-type]


def synthetic(domain: str, iterations: int, preset: str = "kimi-k3") -> Trace:
    return synth_trace(preset, layers=LAYERS, experts=EXPERTS, k=K, iterations=iterations, domain=domain, seed=1)


def test_every_workload_of_a_cell_can_be_built() -> None:
    assert set(BUILDERS) == set(WORKLOADS)
    assert set(WORKLOADS) - set(TEMPORARY) == {"single", "batch4"}


@pytest.mark.parametrize("word", WORKLOADS)
def test_a_workload_bears_the_word_that_a_cell_calls_it_by(word: str) -> None:
    assert BUILDERS[word](stored(word) if word in TEMPORARY else manifest(), asked(iterations=3)).word == word


def test_without_a_trace_a_seeded_synthetic_one_of_the_pools_shape_is_replayed() -> None:
    found = single(manifest(), asked(iterations=7))
    trace = synthetic("prose", 7)
    assert found.plan.sequence.tolist() == build_plan(trace, manifest()).sequence.tolist()
    assert found.plan.synthetic_trace
    assert found.accepted_tokens == trace.accepted_tokens
    assert (found.word, found.plan.n_iterations) == ("single", 7)
    assert single(manifest(), asked()).plan.n_iterations == SYNTHETIC_ITERATIONS


def test_a_synthetic_trace_is_of_the_pools_own_model_where_that_is_known() -> None:
    found = single(manifest(profile="olmoe-1b-7b"), asked(iterations=5))
    expected = build_plan(synthetic("prose", 5, "olmoe-1b-7b"), manifest())
    assert found.plan.sequence.tolist() == expected.sequence.tolist()
    assert found.plan.sequence.tolist() != single(manifest(), asked(iterations=5)).plan.sequence.tolist()


def test_the_first_of_the_given_traces_is_replayed_whole(given: list[tuple[str, Path]]) -> None:
    found = single(manifest(), asked(given))
    trace = load_trace(given[0][1])
    assert found.plan.sequence.tolist() == build_plan(trace, manifest()).sequence.tolist()
    assert found.plan.n_iterations == len(MIXED)
    assert found.accepted_tokens == len(MIXED) + 3 == trace.accepted_tokens
    assert found.source == "by hand; within a pass: as issued"
    assert not found.plan.synthetic_trace


@pytest.mark.parametrize(
    ("iterations", "tokens"), [(1, 1), (2, 3), (3, 4), (4, 6), (5, 7), (9, 12), (len(MIXED), 13), (0, 13)]
)
def test_a_trace_that_is_cut_accepts_the_tokens_of_its_first_iterations(
    given: list[tuple[str, Path]], iterations: int, tokens: int
) -> None:
    found = single(manifest(), asked(given, iterations))
    assert found.accepted_tokens == tokens
    assert found.plan.n_iterations == (iterations or len(MIXED))


def test_a_trace_that_accepts_every_time_counts_two_tokens_an_iteration_however_it_is_cut(tmp_path: Path) -> None:
    write_trace(spoken(*[SPEC_ACCEPT] * 6), tmp_path / "all.jsonl")
    traces = [("prose", tmp_path / "all.jsonl")]
    assert [single(manifest(), asked(traces, count)).accepted_tokens for count in (1, 5, 6)] == [2, 10, 12]


def test_more_iterations_than_a_given_trace_has_are_refused(given: list[tuple[str, Path]]) -> None:
    with pytest.raises(InputError, match=r"11 iterations asked for; expected 1 to 10"):
        single(manifest(), asked(given, 11))


def test_a_batch_is_the_first_four_traces_merged(given: list[tuple[str, Path]]) -> None:
    found = batch4(manifest(), asked(given))
    merged = merge([load_trace(path) for _, path in given[:4]])
    assert found.plan.sequence.tolist() == build_plan(merged.trace, manifest()).sequence.tolist()
    assert found.accepted_tokens == 4 * (len(MIXED) + 3)
    assert found.word == "batch4"


def test_a_batch_that_is_cut_accepts_its_share_of_all_streams_tokens(given: list[tuple[str, Path]]) -> None:
    found = batch4(manifest(), asked(given, 5))
    assert found.plan.n_iterations == 5
    assert found.accepted_tokens == round(4 * 13 * 5 / 10)


def test_without_traces_a_batch_is_one_synthetic_stream_of_each_of_four_domains() -> None:
    found = batch4(manifest(), asked(iterations=6))
    domains = list(PRESETS["kimi-k3"].domains)[:4]
    assert len(domains) == 4
    merged = merge([synthetic(domain, 6) for domain in domains])
    assert found.plan.sequence.tolist() == build_plan(merged.trace, manifest()).sequence.tolist()
    assert found.accepted_tokens == merged.trace.accepted_tokens


@pytest.mark.parametrize(("count", "seen"), [(1, "1 trace given"), (3, "3 traces given")])
def test_fewer_than_four_traces_are_no_batch(given: list[tuple[str, Path]], count: int, seen: str) -> None:
    said = rf"^{seen} for a batch of 4 streams; expected 4 traces; next: --moetier-trace DOMAIN=FILE for each"
    with pytest.raises(UnsupportedHostError, match=said):
        batch4(manifest(), asked(given[:count]))


def stored(word: str) -> Manifest:
    """Return the manifest of a workload's temporary pool."""
    how = TEMPORARY[word]
    return plan_manifest(
        how.shape(asked()),
        layout=how.layout,
        store="plain",
        seed=0,
        spine_bytes=how.spine_bytes,
        throwaway=how.throwaway,
    )


def boxed(word: str) -> Workload:
    return BUILDERS[word](stored(word), asked(iterations=3))


def test_the_small_box_is_olmoe_with_half_mebibyte_experts_and_a_spine_whatever_the_user_gave() -> None:
    found = boxed("small_box")
    assert (found.plan.n_experts, found.plan.pool_bytes) == (16 * 64, 16 * 64 << 19)
    assert found.plan.n_iterations == found.accepted_tokens == SMALL_BOX_ITERATIONS
    assert found.plan.synthetic_trace
    assert TEMPORARY["small_box"].spine_bytes == SMALL_BOX_SPINE_BYTES


def test_the_coarser_quantisation_reads_the_same_experts_of_fewer_bytes() -> None:
    fine, coarse = boxed("small_box"), boxed("small_box_q2")
    assert fine.plan.sequence.tolist() == coarse.plan.sequence.tolist()
    assert fine.plan.total_bytes / coarse.plan.total_bytes == pytest.approx(512 / 308)


def test_the_small_box_pools_may_be_written_to_and_hits_are_timed_in_one_file() -> None:
    assert TEMPORARY["hit_cost"].layout == "one_file"
    assert stored("hit_cost").files[0].size_bytes == 24 * 16 << 20


def test_hits_are_timed_on_twenty_experts_read_once_an_iteration_in_ever_another_order() -> None:
    plan = hit_cost(stored("hit_cost"), asked()).plan
    rows = plan.sequence.reshape(plan.n_iterations, -1)
    assert rows.shape == (12, 20)
    assert {tuple(sorted(row)) for row in rows.tolist()} == {tuple(range(20))}
    assert len({tuple(row) for row in rows.tolist()}) == 12


@pytest.mark.parametrize("word", RECLAIM)
def test_every_rung_of_the_reclaim_ladder_has_the_papers_proportions(word: str) -> None:
    pool, plan = stored(word), BUILDERS[word](stored(word), asked()).plan
    iteration = plan.total_bytes / plan.n_iterations
    assert pool.total_bytes / iteration == pytest.approx(50, rel=0.02)
    assert Capacity.parse(RECLAIM_CAPACITY).resolve(pool.total_bytes) / iteration == pytest.approx(2.2, rel=0.02)
    assert Capacity.parse("6.4%").resolve(pool.total_bytes) / iteration == pytest.approx(3.2, rel=0.02)
    assert (pool.experts, pool.k, pool.layout) == (896, 16, "file_per_expert")
    assert (plan.n_iterations, plan.synthetic_trace) == (RECLAIM_ITERATIONS, True)


def test_the_rungs_of_the_reclaim_ladder_differ_in_layers_and_expert_size() -> None:
    found = {word: (len(stored(word).layers), stored(word).expert_bytes[0] >> 10) for word in RECLAIM}
    assert found == {
        "reclaim": (8, 256),
        "reclaim_l4": (4, 512),
        "reclaim_l16": (16, 512),
        "reclaim_l32": (32, 256),
        "reclaim_l92": (92, 64),
    }
    assert set(found) == set(RECLAIM_SHAPES)


def test_a_reclaim_pool_is_an_image_that_nothing_may_write_to() -> None:
    assert {(TEMPORARY[word].store, TEMPORARY[word].throwaway) for word in RECLAIM} == {("image", False)}


def test_a_pool_for_guests_replaces_the_first_rung_alone() -> None:
    choice = asked(guest_pool=(2, 8192))
    shapes = {word: TEMPORARY[word].shape(choice) for word in RECLAIM}
    assert (shapes["reclaim"].layers, shapes["reclaim"].expert_bytes[0]) == (2, 8192)
    assert all(shapes[word] == TEMPORARY[word].shape(asked()) for word in RECLAIM if word != "reclaim")


def test_a_reclaim_trace_is_synthetic_whatever_the_user_gave_and_as_long_as_asked(
    given: list[tuple[str, Path]],
) -> None:
    pool = plan_manifest(
        TEMPORARY["reclaim"].shape(asked(guest_pool=(2, 4096))), layout="one_file", store="plain", seed=0
    )
    found = BUILDERS["reclaim"](pool, asked(given, 40))
    assert (found.plan.n_iterations, found.plan.synthetic_trace) == (40, True)
    assert found.plan.sequence.tolist() == BUILDERS["reclaim"](pool, asked(iterations=40)).plan.sequence.tolist()


def test_the_other_domain_of_a_synthetic_trace_is_another_of_the_models() -> None:
    found = single(manifest(), asked(iterations=7))
    assert found.other is not None
    domain, plan = found.other()
    assert domain != "prose"
    assert plan.sequence.tolist() != found.plan.sequence.tolist()
    assert plan.sequence.tolist() == build_plan(synthetic(domain.split()[-1], 7), manifest()).sequence.tolist()


def test_the_table_of_another_domain_is_that_of_the_second_trace(given: list[tuple[str, Path]], tmp_path: Path) -> None:
    listed = single(manifest(), asked(given)).write_list("domain", tmp_path)
    second = build_plan(load_trace(given[1][1]), manifest())
    assert listed.ids.tolist() == own_table(second).lists.ids.tolist()
    assert (listed.words, listed.oracle, listed.recall) == ("table of another domain: code", False, None)


def test_one_trace_has_no_table_of_another_domain(given: list[tuple[str, Path]], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedHostError, match=r"^one trace is given.*next: --moetier-trace DOMAIN=FILE once more"):
        single(manifest(), asked(given[:1])).write_list("domain", tmp_path)
    with pytest.raises(UnsupportedHostError, match="one trace is given"):
        batch4(manifest(), asked(given)).write_list("domain", tmp_path)


def test_the_files_of_tables_hold_what_is_said_of_them(given: list[tuple[str, Path]], tmp_path: Path) -> None:
    work = single(manifest(), asked(given))
    for word, listed in (("own", own_table(work.plan)), ("train", train_table(work.plan))):
        found = work.write_list(word, tmp_path)
        read = read_lists(found.path)
        assert found.path.parent == tmp_path
        assert read.ids.tolist() == found.ids.tolist() == listed.lists.ids.tolist()
        assert (found.words, found.oracle, found.recall) == (listed.words, word == "own", None)
        assert bool(read.flags & ORACLE) == found.oracle


def test_an_oracles_advice_names_every_choice_of_what_is_replayed(
    given: list[tuple[str, Path]], tmp_path: Path
) -> None:
    work = single(manifest(), asked(given, 4))
    found = work.write_list("oracle", tmp_path)
    read = read_lists(found.path)
    assert (found.oracle, found.recall, found.words) == (True, 1.0, "oracle")
    assert (read.kind, read.flags, read.n_accesses) == (ADVICE, ORACLE, work.plan.n_accesses)
    assert read.sequence_crc == sequence_crc(work.plan)


@pytest.mark.parametrize("iterations", [0, 4])
def test_a_plans_recall_is_that_of_the_iterations_that_are_replayed(
    given: list[tuple[str, Path]], tmp_path: Path, iterations: int
) -> None:
    work = single(manifest(), asked(given, iterations))
    found = work.write_list("plan", tmp_path)
    trace = load_trace(given[0][1])
    advice = noisy_oracle(trace, seed=1)
    due = recall(advice, trace, iterations or len(MIXED)).overall
    assert found.recall == due
    assert (found.words, found.oracle) == (f"noisy oracle, recall {due:.3f}", False)
    assert recall(advice, trace, 4).overall != recall(advice, trace).overall  # or the cut would not show


def test_a_file_of_advice_is_what_is_replayed_and_named(given: list[tuple[str, Path]], tmp_path: Path) -> None:
    trace = load_trace(given[0][1])
    mine = markov(trace)
    write_advice(mine, tmp_path / "mine.jsonl")
    found = single(manifest(), asked(given, advice=tmp_path / "mine.jsonl")).write_list("plan", tmp_path)
    assert found.recall == recall(mine, trace).overall
    assert found.words.startswith("markov, recall ")


@pytest.mark.parametrize("name", ["previous_token", "markov"])
def test_a_predictor_may_be_named_instead(given: list[tuple[str, Path]], tmp_path: Path, name: str) -> None:
    found = single(manifest(), asked(given, advice=Path(name))).write_list("plan", tmp_path)
    trace = load_trace(given[0][1])
    assert found.recall == recall(predict(trace, name), trace).overall


def test_advice_of_layers_below_the_least_recall_is_withheld(given: list[tuple[str, Path]], tmp_path: Path) -> None:
    trace = load_trace(given[0][1])
    by_layer = recall(noisy_oracle(trace, seed=1), trace).by_layer
    assert by_layer[0] != by_layer[1]
    least = float(by_layer.mean())
    found = single(manifest(), asked(given, min_recall=least)).write_list("plan", tmp_path)
    left = withhold(noisy_oracle(trace, seed=1), trace, least)
    assert found.recall == recall(left, trace).overall
    assert len({int(one) // EXPERTS for one in found.ids}) == 1


def test_an_oracle_is_never_withheld(given: list[tuple[str, Path]], tmp_path: Path) -> None:
    assert single(manifest(), asked(given, min_recall=1.0)).write_list("oracle", tmp_path).recall == 1.0


@pytest.mark.parametrize("as_file", [True, False])
def test_an_oracle_given_as_a_predictors_plan_keeps_its_label(
    given: list[tuple[str, Path]], tmp_path: Path, *, as_file: bool
) -> None:
    write_advice(oracle(load_trace(given[0][1])), tmp_path / "future.jsonl")
    chosen = tmp_path / "future.jsonl" if as_file else Path("oracle")
    found = single(manifest(), asked(given, advice=chosen)).write_list("plan", tmp_path)
    assert found.oracle
    assert found.words == "oracle"


def test_advice_of_another_trace_or_none_is_refused(given: list[tuple[str, Path]], tmp_path: Path) -> None:
    other = load_trace(given[1][1])
    write_advice(markov(other), tmp_path / "other.jsonl")
    with pytest.raises(InputError, match=r"other\.jsonl.*made for the trace"):
        single(manifest(), asked(given, advice=tmp_path / "other.jsonl")).write_list("plan", tmp_path)
    with pytest.raises(InputError, match=r"^advice .*none-such"):
        single(manifest(), asked(given, advice=tmp_path / "none-such")).write_list("plan", tmp_path)


def test_what_has_no_router_has_no_advice(tmp_path: Path) -> None:
    work = hit_cost(stored("hit_cost"), asked())
    for word in ("oracle", "plan"):
        with pytest.raises(UnsupportedHostError, match="hit_cost has no router to advise on"):
            work.write_list(word, tmp_path)
    assert work.write_list("own", tmp_path).oracle


def test_a_batch_has_advice_of_its_own_merged_choices(given: list[tuple[str, Path]], tmp_path: Path) -> None:
    found = batch4(manifest(), asked(given)).write_list("oracle", tmp_path)
    assert (found.oracle, found.recall) == (True, 1.0)
    plan = batch4(manifest(), asked(given)).write_list("plan", tmp_path)
    assert not plan.oracle
    assert plan.recall is not None
    assert 0 < plan.recall < 1


def test_advice_that_names_nothing_is_a_file_of_no_list(given: list[tuple[str, Path]], tmp_path: Path) -> None:
    trace = load_trace(given[0][1])
    silent = make_advice(trace, "given", "says nothing", np.zeros(trace.n_records, np.int64), np.zeros(0, np.uint16))
    write_advice(silent, tmp_path / "silent.jsonl")
    found = single(manifest(), asked(given, advice=tmp_path / "silent.jsonl")).write_list("plan", tmp_path)
    assert (found.recall, read_lists(found.path).n_lists) == (0.0, 0)


def test_the_small_box_takes_no_advice_of_the_users() -> None:
    assert small_box(stored("small_box"), asked(advice=Path("/none"))).asked == Asked((), 0)
