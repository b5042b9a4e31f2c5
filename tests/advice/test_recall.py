"""Recall is counted from the advice that is replayed, and an oracle is called one."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from handmade import CHOSEN, given, said, speculative, steps

from pytest_moetier.advice import label, make_advice, oracle, previous_token, recall, withhold
from pytest_moetier.errors import InputError
from pytest_moetier.trace.synth import synth_trace

SAID = [[7], [], [2, 3, 4], [1], [6, 4], [], [], [2, 3]]
"""Hits 1, -, 2, 1, 2, -, -, 1 of 2, 2, 3, 3, 2, 2, 2, 2 chosen."""


def test_recall_and_precision_are_shares_of_the_distinct_experts_of_each_record() -> None:
    found = recall(given(speculative(), SAID), speculative())
    assert found.layers == (5, 9)
    assert found.hits.tolist() == [5, 2]
    assert found.chosen.tolist() == [9, 9]
    assert found.advised.tolist() == [6, 3]
    assert (found.overall, found.precision) == (7 / 18, 7 / 9)
    assert found.by_layer.tolist() == [5 / 9, 2 / 9]
    assert found.records.tolist() == [4, 4]
    assert found.records_advised.tolist() == [3, 2]
    assert found.ids_per_record == 9 / 8
    # records 0, 2, 4 and 3, 7 have advice; they chose 2 + 3 + 2 and 3 + 2
    assert found.chosen_advised.tolist() == [7, 5]
    assert found.where_advised == 7 / 12


def test_an_accept_is_the_union_of_both_its_passes() -> None:
    half = [[]] * 2 + [[3, 7], []] + [[]] * 4
    assert recall(given(speculative(), half), speculative()).hits.tolist() == [2, 0]
    assert [set(one) for one in said(oracle(speculative()))] == CHOSEN


def test_no_advice_at_all_has_no_precision() -> None:
    found = recall(given(speculative(), [[]] * 8), speculative())
    assert found.overall == 0.0
    assert math.isnan(found.precision)
    assert math.isnan(found.where_advised)


@pytest.mark.parametrize("seed", range(3))
def test_recall_is_what_a_plain_loop_counts(seed: int) -> None:
    trace = synth_trace(layers=3, iterations=60, seed=seed, experts=32, k=4)
    rng = random.Random(seed)  # noqa: S311
    lists = [rng.sample(range(32), rng.randint(0, 9)) for _ in range(trace.n_records)]
    found = recall(given(trace, lists), trace)
    hits, chosen, advised = [0] * 3, [0] * 3, [0] * 3
    for record, ids in zip(trace.records(), lists, strict=True):
        hits[record.layer] += len(set(record.experts) & set(ids))
        chosen[record.layer] += len(set(record.experts))
        advised[record.layer] += len(ids)
    assert (found.hits.tolist(), found.chosen.tolist(), found.advised.tolist()) == (hits, chosen, advised)
    assert found.overall == sum(hits) / sum(chosen)


def test_recall_may_be_that_of_the_first_iterations_alone() -> None:
    found = recall(given(speculative(), SAID), speculative(), iterations=2)
    assert (found.hits.tolist(), found.chosen.tolist(), found.advised.tolist()) == ([3, 1], [5, 5], [4, 1])
    assert (found.records.tolist(), found.records_advised.tolist()) == ([2, 2], [2, 1])
    for count in (0, 4):
        with pytest.raises(InputError, match=f"recall over {count} iterations; expected 1 to 3"):
            recall(given(speculative(), SAID), speculative(), iterations=count)


def test_the_label_says_oracle_or_the_recall() -> None:
    trace = speculative()
    best = oracle(trace)
    assert (label(best, recall(best, trace)), best.oracle) == ("oracle", True)
    noisy = given(trace, SAID, "noisy_oracle")
    assert (label(noisy, recall(noisy, trace)), noisy.oracle) == ("noisy oracle, recall 0.389", False)
    before = previous_token(trace)
    assert label(before, recall(before, trace)).startswith("previous token, recall 0.")


def test_an_oracle_by_another_name_is_refused() -> None:
    exact = [sorted(one) for one in CHOSEN]
    assert given(speculative(), exact, "oracle").oracle
    for kind in ("given", "noisy_oracle", "markov", "previous_token"):
        with pytest.raises(InputError, match=f"labelled {kind}, but it is exactly what the trace chose"):
            given(speculative(), exact, kind)
    # with one expert less, or one more than the trace chose, it is no oracle
    for other in ([[3], *exact[1:]], [[3, 4, 7], *exact[1:]]):
        assert not given(speculative(), other).oracle
        with pytest.raises(InputError, match=r"labelled oracle, but its recall is .* and its precision"):
            given(speculative(), other, "oracle")


def test_what_is_no_advice_for_the_trace_is_refused() -> None:
    trace = speculative()
    with pytest.raises(InputError, match="advice of kind 'best'; expected one of oracle, noisy_oracle"):
        given(trace, SAID, "best")
    with pytest.raises(InputError, match="expert twice in a record"):
        given(trace, [[7, 7], *SAID[1:]])
    with pytest.raises(InputError, match="names expert 8; expected ids below 8"):
        given(trace, [[8], *SAID[1:]])
    with pytest.raises(InputError, match="for 7 records; expected the trace's 8 records"):
        given(trace, SAID[1:])
    with pytest.raises(InputError, match="3 ids for 8 records"):
        make_advice(trace, "given", "", np.ones(8, np.int64), np.array([1, 2, 3], np.uint16))
    with pytest.raises(InputError, match="is of another trace; expected advice for by hand"):
        recall(given(trace, SAID), steps([[[0, 1], [2, 3]]] * 4))


def test_advice_below_a_recall_is_withheld_by_layer() -> None:
    trace = speculative()
    advice = given(trace, SAID)  # 5/9 and 2/9
    assert withhold(advice, trace, 2 / 9) is advice
    kept = withhold(advice, trace, 0.23)
    assert kept.withheld == (9,)
    assert said(kept) == [[7], [], [2, 3, 4], [], [6, 4], [], [], []]
    assert "withheld where recall is below 0.23" in kept.source
    assert recall(kept, trace).by_layer.tolist() == [5 / 9, 0.0]
    nothing = withhold(kept, trace, 1.0)
    assert (nothing.withheld, said(nothing)) == ((5, 9), [[]] * 8)
    assert withhold(oracle(trace), trace, 1.0).withheld == ()
    for share in (-0.1, 1.1, math.nan):
        with pytest.raises(InputError, match=r"least recall of .*; expected 0 to 1"):
            withhold(advice, trace, share)
