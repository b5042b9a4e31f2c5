"""A trace becomes accesses: objects, events, denominators, windows and budgets."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import last_occurrences

from pytest_moetier.simulate import Budget, window, workload
from pytest_moetier.trace.batch import merge
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.records import BATCH, NORMAL, SPEC_ACCEPT, SPEC_FALLBACK, Trace, make_trace
from pytest_moetier.trace.synth import synth_trace

FIXTURES = Path(__file__).parents[2] / "fixtures" / "traces"


def spoken() -> Trace:
    """Return two layers, k = 2: a normal iteration, an accept whose passes share an expert, and a fallback."""
    rows = [
        (0, 3, NORMAL, [4, 1]),
        (0, 7, NORMAL, [0, 5]),
        (1, 3, SPEC_ACCEPT, [1, 2, 3, 1]),
        (1, 7, SPEC_ACCEPT, [5, 4, 0, 1]),
        (2, 3, SPEC_FALLBACK, [2, 0]),
        (2, 7, SPEC_FALLBACK, [5, 0]),
        (2, 3, SPEC_FALLBACK, [2, 1]),
        (2, 7, SPEC_FALLBACK, [5, 1]),
    ]
    return trace_of(rows)


def trace_of(rows: list[tuple[int, int, int, list[int]]], **known: object) -> Trace:
    return make_trace(
        iteration=[row[0] for row in rows],
        layer=[row[1] for row in rows],
        kind=[row[2] for row in rows],
        offsets=np.cumsum([0, *(len(row[3]) for row in rows)]),
        experts=[one for row in rows for one in row[3]],
        n_experts=6,
        k=2,
        synthetic=True,
        source="spoken",
        **known,  # type: ignore[arg-type]
    )


def test_an_access_is_a_layer_and_an_expert_in_the_order_issued() -> None:
    work = workload(spoken())
    assert work.key.tolist() == [4, 1, 6, 11, 1, 2, 3, 1, 11, 10, 6, 7, 2, 0, 11, 6, 2, 1, 11, 7]
    assert work.event.tolist() == [0, 2, 4, 8, 12, 14, 16, 18, 20]
    assert work.event_layer.tolist() == [0, 1] * 4
    assert work.event_iteration.tolist() == [0, 0, 1, 1, 2, 2, 2, 2]
    assert work.iteration_bounds().tolist() == [0, 4, 12, 20]
    assert (work.n_objects, work.cycle_experts, work.layers) == (12, 4, (3, 7))


def test_an_event_looks_up_an_expert_once_where_it_stands_last() -> None:
    work = workload(spoken(), "event-atomic")
    assert work.key[4:11].tolist() == [2, 3, 1, 11, 10, 6, 7]
    assert work.event.tolist() == [0, 2, 4, 7, 11, 13, 15, 17, 19]


@settings(deadline=None)
@given(st.lists(st.lists(st.permutations(range(6)).map(lambda ids: ids[:2]), min_size=1, max_size=5), min_size=1))
def test_last_occurrences_are_kept_in_order_for_any_record(passes: list[list[list[int]]]) -> None:
    ids = [[one for row in event for one in row] for event in passes]
    work = workload(trace_of([(at, 0, BATCH, one) for at, one in enumerate(ids)]), "event-atomic")
    bounds = work.event.tolist()
    found = [work.key[start:end].tolist() for start, end in pairwise(bounds)]
    assert found == [last_occurrences(one) for one in ids]


def test_an_accept_yields_two_tokens_and_a_fallback_one() -> None:
    assert workload(spoken()).accepted.tolist() == [1, 2, 1]


def test_merged_streams_yield_what_all_of_them_do() -> None:
    streams = [synth_trace("kimi-k3", iterations=40, layers=2, domain=name) for name in ("prose", "code")]
    merged = merge(streams)
    assert int(workload(merged.trace).accepted.sum()) == merged.trace.accepted_tokens
    exact = sum(workload(one).accepted.astype(int) for one in streams)
    assert workload(merged.trace, accepted=exact.tolist()).accepted.tolist() == exact.tolist()


def test_the_prompt_comes_before_only_when_asked_for_and_yields_no_token() -> None:
    trace = load_trace(FIXTURES / "bigmoe.route.csv")
    assert trace.prefill is not None
    alone, both = workload(trace), workload(trace, prefill="before")
    assert (alone.n_prefill, alone.n_iterations, alone.n_accesses) == (0, 5, 60)
    assert (both.n_prefill, both.n_iterations) == (1, 6)
    assert both.n_accesses == 60 + trace.prefill.n_accesses
    assert both.key[trace.prefill.n_accesses :].tolist() == alone.key.tolist()
    assert both.accepted.tolist() == [0, 1, 1, 1, 1, 1]
    assert window("cold", both).iterations == 6
    assert window("decode", both).iterations == 5
    assert (window("fair", both).first, window("fair", both).iterations) == (4, 2)


def test_sizes_are_the_traces_own_or_given() -> None:
    trace = load_trace(FIXTURES / "bigmoe.route.csv")
    assert workload(trace).layer_bytes == trace.expert_bytes
    assert workload(trace, expert_bytes=trace.expert_bytes).layer_bytes == trace.expert_bytes
    assert workload(spoken()).layer_bytes == ()
    work = workload(spoken(), expert_bytes=[10, 30])
    assert work.object_bytes.tolist() == [10] * 6 + [30] * 6
    assert (work.pool_bytes, work.cycle_bytes, work.uniform) == (240, 80, False)
    assert workload(spoken(), expert_bytes=7).layer_bytes == (7, 7)


def test_a_cut_keeps_whole_iterations() -> None:
    work = workload(spoken(), "event-atomic")
    cut = work.cut(2)
    assert cut.key.tolist() == work.key[:11].tolist()
    assert (cut.n_iterations, cut.event.tolist(), cut.accepted.tolist()) == (2, [0, 2, 4, 7, 11], [1, 2])
    assert work.cut(3) is work


@pytest.mark.parametrize(
    ("iterations", "warm", "scored"),
    [(2, 1, 1), (3, 1, 2), (5, 3, 2), (10, 6, 4), (285, 171, 114)],
)
def test_a_fair_window_warms_on_three_fifths(iterations: int, warm: int, scored: int) -> None:
    rows = [(at, layer, NORMAL, [0, 1]) for at in range(iterations) for layer in (0, 1)]
    span = window("fair", workload(trace_of(rows)))
    assert (span.warm, span.first, span.iterations, span.last) == (warm, warm, scored, iterations)


def test_windows_say_what_warms_and_what_is_scored() -> None:
    work = workload(spoken())
    assert window("fair", work).words == "fair: warmed on iterations 0 to 0, scored on iterations 1 to 2 of 3"
    assert window("cold", work).words == "cold: warmed on nothing, scored on iterations 0 to 2 of 3"
    assert window("1:2", work).words == "1:2: warmed on iterations 0 to 0, scored on iterations 1 to 1 of 3"
    both = workload(load_trace(FIXTURES / "bigmoe.route.csv"), prefill="before")
    assert window("decode", both).words == "decode: warmed on the prompt, scored on iterations 0 to 4 of 5"
    assert window("cold", both).words == "cold: warmed on nothing, scored on the prompt and iterations 0 to 4 of 5"


@pytest.mark.parametrize(
    ("text", "unit", "allocation", "expected"),
    [
        ("5", None, "global", ("experts", 5, 1)),
        ("5", None, "layer", ("experts", 2, 2)),
        ("3/layer", None, "global", ("experts", 6, 1)),
        ("3/layer", None, "layer", ("experts", 3, 2)),
        ("100B", None, "global", ("bytes", 100, 1)),
        ("100", "bytes", "layer", ("bytes", 50, 2)),
        ("40B/layer", None, "global", ("bytes", 80, 1)),
        ("25%", None, "global", ("bytes", 60, 1)),
        ("0.25", "share", "global", ("bytes", 60, 1)),
        ("25%", "share", "layer", ("bytes", 30, 2)),
        ("0.24KB", None, "global", ("bytes", 240, 1)),
        ("100%", None, "global", ("bytes", 240, 1)),
        ("12", "experts", "global", ("experts", 12, 1)),
    ],
)
def test_a_budget_is_resolved_for_each_cache(
    text: str, unit: str | None, allocation: str, expected: tuple[str, int, int]
) -> None:
    room = Budget.parse(text, unit).room(workload(spoken(), expert_bytes=[10, 30]), allocation)
    assert (room.unit, room.each, room.caches) == expected
    assert room.budget.text == text


@pytest.mark.parametrize(("text", "each"), [("45B", 4), ("25%", 3), ("119B", 11), ("100%", 12)])
def test_experts_of_one_size_are_counted_whole(text: str, each: int) -> None:
    room = Budget.parse(text).room(workload(spoken(), expert_bytes=10), "global")
    assert (room.unit, room.each) == ("experts", each)


def test_a_share_of_experts_of_unknown_size_is_of_their_number() -> None:
    room = Budget.parse("50%").room(workload(spoken()), "layer")
    assert (room.unit, room.each, room.total) == ("experts", 3, 6)


def test_a_synthetic_trace_stays_marked() -> None:
    assert workload(spoken()).synthetic
    assert not workload(replace(spoken(), synthetic=False)).synthetic
