"""Advice becomes lists of the plan's experts, each submitted with the first access of an earlier record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from handmade import given, pool, said, speculative, steps

from pytest_moetier.advice import Advice, markov, noisy_oracle, oracle, previous_token, to_lists
from pytest_moetier.errors import InputError
from pytest_moetier.lists import ADVICE, ORACLE, Lists, read_lists, sequence_crc, write_lists
from pytest_moetier.plan import Plan, build_plan, read_plan, write_plan
from pytest_moetier.trace.records import Trace
from pytest_moetier.trace.synth import synth_trace

SAID = [[7], [], [2, 3, 4], [1], [6, 4], [], [], [2, 3]]
"""Record 0 has none before it; the others' lists go out with the records before: accesses 2, 4, 8 and 16."""


def held(lists: Lists, plan: Plan) -> dict[int, list[tuple[int, int]]]:
    """Return (pool layer, expert) of each list, by trigger."""
    bounds = lists.offsets.tolist()
    pairs = [(int(plan.expert_layer[at]), int(plan.expert_id[at])) for at in lists.ids]
    return {
        trigger: pairs[one:other]
        for trigger, (one, other) in zip(lists.triggers.tolist(), pairwise(bounds), strict=True)
    }


def test_a_records_list_goes_out_with_the_first_access_of_the_record_before() -> None:
    plan = build_plan(speculative(), pool(layers=(3, 4), expert_bytes=(4096, 4096)))
    lists = to_lists(given(speculative(), SAID), speculative(), plan)
    assert held(lists, plan) == {
        2: [(3, 2), (3, 3), (3, 4)],
        4: [(4, 1)],
        8: [(3, 6), (3, 4)],
        16: [(4, 2), (4, 3)],
    }
    assert lists.ids.tolist() == [2, 3, 4, 9, 6, 4, 10, 11]
    assert (lists.kind, lists.flags, lists.pool_id) == (ADVICE, 0, 0xFEDCBA9876543210)
    assert (lists.n_experts, lists.n_accesses, lists.sequence_crc) == (16, 20, sequence_crc(plan))


def test_a_longer_lookahead_submits_earlier_and_leaves_out_more() -> None:
    plan = build_plan(speculative(), pool())
    lists = to_lists(given(speculative(), SAID), speculative(), plan, lookahead=3)
    assert held(lists, plan) == {0: [(1, 1)], 2: [(0, 6), (0, 4)], 12: [(1, 2), (1, 3)]}
    nothing = to_lists(given(speculative(), SAID), speculative(), plan, lookahead=8)
    assert (nothing.n_lists, len(nothing.ids), nothing.offsets.tolist()) == (0, 0, [0])


def test_a_plan_of_the_first_iterations_takes_their_advice() -> None:
    plan = build_plan(speculative(), pool(), iterations=2)
    lists = to_lists(given(speculative(), SAID), speculative(), plan)
    assert lists.triggers.tolist() == [2, 4]
    assert (lists.n_accesses, lists.sequence_crc) == (12, sequence_crc(plan))


@pytest.mark.parametrize("iterations", [None, 1, 17])
def test_the_oracles_lists_hold_what_the_next_record_reads(iterations: int | None, tmp_path: Path) -> None:
    trace = synth_trace(layers=4, iterations=40, experts=32, k=4)
    plan = build_plan(
        trace, pool(layers=(0, 1, 2, 3, 4), experts=33, k=4, expert_bytes=(4096,) * 5), iterations=iterations
    )
    lists = to_lists(oracle(trace), trace, plan)
    bounds = trace.offsets.tolist()
    read = plan.sequence.tolist()
    ends = [end for end in bounds if end <= plan.n_accesses]
    wanted = [list(dict.fromkeys(read[one:other])) for one, other in pairwise(ends[1:])]
    offsets = lists.offsets.tolist()
    assert [lists.ids.tolist()[one:other] for one, other in pairwise(offsets)] == wanted
    assert lists.triggers.tolist() == ends[:-2]
    assert lists.flags == ORACLE
    write_lists(lists, tmp_path / "list")
    assert read_lists(tmp_path / "list").ids.tolist() == lists.ids.tolist()


def test_only_the_oracle_is_flagged() -> None:
    trace = speculative()
    plan = build_plan(trace, pool())
    assert to_lists(oracle(trace), trace, plan).flags == ORACLE
    for made in (noisy_oracle(trace, 0.9), previous_token(trace), markov(trace), given(trace, SAID)):
        assert to_lists(made, trace, plan).flags == 0


def test_advice_is_not_submitted_before_what_it_was_made_from_is_known() -> None:
    trace = steps([[[0, 1], [2, 3], [4, 5]], [[1, 2], [2, 4], [4, 6]], [[0, 2], [3, 4], [4, 7]]])
    plan = build_plan(trace, pool(layers=(0, 1, 2), expert_bytes=(4096,) * 3))
    assert to_lists(previous_token(trace), trace, plan, 3).triggers.tolist() == [0, 2, 4, 6, 8, 10]
    assert to_lists(noisy_oracle(trace, 0.5), trace, plan, 8).triggers.tolist() == [0]
    refused: list[tuple[Callable[[Trace], Advice], int, str]] = [
        (previous_token, 4, "advice submitted 4 records ahead; expected 1 to 3 for kind previous_token"),
        (markov, 2, "advice submitted 2 records ahead; expected 1 to 1 for kind markov"),
        (oracle, 0, "advice submitted 0 records ahead; expected 1 to 9"),
        (oracle, 10, "advice submitted 10 records ahead"),
    ]
    for predictor, lookahead, message in refused:
        with pytest.raises(InputError, match=message):
            to_lists(predictor(trace), trace, plan, lookahead)


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    trace = speculative()
    plan = build_plan(trace, pool())
    other = steps([[[0, 1], [2, 3]]] * 3)
    with pytest.raises(InputError, match="is of another trace"):
        to_lists(given(trace, SAID), other, plan)
    with pytest.raises(InputError, match="does not say which layers"):
        to_lists(previous_token(other), other, plan)
    write_plan(plan, tmp_path / "plan")
    with pytest.raises(InputError, match="does not say which layers"):
        to_lists(given(trace, SAID), trace, read_plan(tmp_path / "plan"))
    reversed_reads = replace(plan, sequence=plan.sequence[::-1])
    with pytest.raises(InputError, match="the plan reads another trace"):
        to_lists(given(trace, SAID), trace, reversed_reads)


def test_an_expert_that_the_pool_lacks_is_refused() -> None:
    rows = [[[0, 1]], [[1, 2]], [[0, 3]]]
    trace = steps(rows)
    small = build_plan(trace, pool(layers=(6,), experts=4, expert_bytes=(4096,)))
    made = given(trace, [[], [3], [7]])
    assert said(made)[2] == [7]
    with pytest.raises(InputError, match="names expert 7 of the pool's layer 6; expected experts that the pool holds"):
        to_lists(made, trace, small)
