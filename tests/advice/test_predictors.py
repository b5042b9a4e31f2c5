"""Predictors say what their definitions say, know nothing of the future, and are the same on every machine."""

from __future__ import annotations

import math
import os
import random
import zlib
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from handmade import CHOSEN, said, speculative, steps
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_moetier.advice import (
    Advice,
    markov,
    noisy_oracle,
    oracle,
    predict,
    previous_token,
    recall,
    recall_law,
)
from pytest_moetier.errors import InputError
from pytest_moetier.trace.batch import merge
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.locality import locality
from pytest_moetier.trace.records import BATCH, UNION, Trace, make_trace
from pytest_moetier.trace.synth import synth_trace

RECORDED = Path(os.environ.get("MOETIER_TRACES", "MOETIER_TRACES-is-not-set"))
recorded = pytest.mark.skipif(not RECORDED.is_dir(), reason="MOETIER_TRACES does not name a folder of recorded traces")


@pytest.fixture(scope="module")
def kimi() -> Trace:
    return synth_trace("kimi-k3")


def test_the_oracle_says_each_records_distinct_experts_as_issued() -> None:
    assert said(oracle(speculative())) == [[7, 3], [0, 1], [3, 7, 2], [1, 0, 5], [4, 6], [1, 2], [6, 4], [2, 1]]


def test_the_previous_token_is_the_layers_last_pass_as_issued() -> None:
    # of the accept its second pass; the first records of the two layers have none
    assert said(previous_token(speculative())) == [[], [], [7, 3], [0, 1], [7, 2], [0, 5], [4, 6], [1, 2]]


def several(kind: int) -> Trace:
    return make_trace(
        iteration=[0, 1],
        layer=[0, 0],
        kind=[kind, kind],
        offsets=[0, 4, 8],
        experts=[3, 1, 0, 2, 5, 6, 3, 5] if kind == BATCH else [0, 1, 2, 3, 3, 5, 6, 7],
        n_experts=8,
        k=2,
        synthetic=False,
        source="by hand",
    )


@pytest.mark.parametrize(("kind", "before"), [(BATCH, [3, 1, 0, 2]), (UNION, [0, 1, 2, 3])])
def test_the_previous_pass_of_several_positions_is_all_of_them(kind: int, before: list[int]) -> None:
    assert said(previous_token(several(kind))) == [[], before]


def test_markov_ranks_what_has_followed_the_record_before() -> None:
    trace = steps([[[0, 1], [4, 5]], [[0, 2], [4, 6]], [[0, 1], [4, 7]], [[2, 3], [6, 7]]])
    assert said(markov(trace)) == [
        [],  # nothing before it
        [],  # nothing has followed layer 0 yet
        [],  # nothing has followed layer 1 yet
        [4, 5],  # after 0: 4 and 5 once each, by id
        [0, 2],  # after 4 and 6 of layer 1: 0 and 2 followed 4
        [4, 5],  # after 0: 4 twice, 5 and 6 once; after 1: 4 and 5
        [0, 1],  # after 4: 0 twice, 2 and 1 once; the lower id
        [4, 6],  # after 2: 4 and 6; after 3: nothing
    ]


def reference_markov(trace: Trace) -> list[list[int]]:
    """The definition with dictionaries: each record's set, predicted from counts of the pairs of sets before it."""
    counts: dict[tuple[int, int, int], Counter[int]] = {}
    made: list[list[int]] = [[]]
    rows = [(one.layer, sorted(set(one.experts))) for one in trace.records()]
    for (before, known), (layer, chosen) in pairwise(rows):
        scores: Counter[int] = Counter()
        for expert in known:
            scores += counts.get((before, layer, expert), Counter())
        made.append([one for one, _ in sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[: trace.k]])
        for expert in known:
            counts.setdefault((before, layer, expert), Counter()).update(chosen)
    return made


@pytest.mark.parametrize("seed", range(4))
def test_markov_is_what_dictionaries_of_counts_say(seed: int) -> None:
    trace = synth_trace(layers=seed + 1, iterations=50, seed=seed, experts=24, k=4)  # with accepts and fallbacks
    assert {"spec_accept", "spec_fallback"} <= {name for name, count in trace.kind_counts().items() if count}
    assert said(markov(trace)) == reference_markov(trace)


def test_merged_streams_are_advised_as_many_experts_as_the_record_before_has() -> None:
    trace = merge([synth_trace(layers=3, iterations=60, domain=one) for one in ("prose", "code", "math")]).trace
    made = said(markov(trace))
    sizes = [len(set(one.experts)) for one in trace.records()]
    late = range(trace.n_records // 2, trace.n_records)
    assert all(len(made[at]) <= max(16, sizes[at - 1]) for at in range(1, trace.n_records))
    assert sum(len(made[at]) for at in late) > 16 * len(late)


def test_a_table_of_too_many_experts_is_refused() -> None:
    rows = np.arange(60_000).reshape(2, 30_000)
    with pytest.raises(InputError, match=r"counts of 60000 x 60000 experts; expected at most"):
        markov(steps([rows.tolist(), rows[::-1].tolist()], n_experts=1 << 16))


def random_rows(seed: int, iterations: int) -> list[list[list[int]]]:
    rng = random.Random(seed)  # noqa: S311
    return [[sorted(rng.sample(range(12), 3)) for _ in range(3)] for _ in range(iterations)]


@pytest.mark.parametrize("predictor", [markov, previous_token])
@given(seed=st.integers(0, 1 << 30), at=st.integers(0, 89))
@settings(max_examples=30, deadline=None)
def test_the_future_does_not_change_what_was_predicted(
    predictor: Callable[[Trace], Advice], seed: int, at: int
) -> None:
    """Records from ``at`` on differ: what is said of them up to that very record must not."""
    rows, others = random_rows(seed, 30), random_rows(seed + 1, 30)
    mixed = [[(rows if 3 * step + layer < at else others)[step][layer] for layer in range(3)] for step in range(30)]
    one, other = said(predictor(steps(rows, 12))), said(predictor(steps(mixed, 12)))
    assert one[: at + 1] == other[: at + 1]


def test_markov_learns_a_rule_that_holds() -> None:
    """Layer 1 is a function of layer 0 here, so that once seen every pass is foretold."""
    rows = [[[2 * (step % 4), 2 * (step % 4) + 1]] * 2 for step in range(40)]
    trace = steps(rows)
    made = markov(trace)
    assert said(made)[9::2] == [sorted(row[1]) for row in rows[4:]]
    assert recall(made, trace).by_layer[1] == 36 / 40


def test_the_law_spreads_recall_over_the_layers_in_a_seeded_order() -> None:
    law = recall_law(92, seed=0)
    told = [0.84 - 0.83 * ((at + 0.5) / 92) ** 3.302 for at in range(92)]
    assert sorted(law, reverse=True) == pytest.approx(told, abs=1e-12)
    assert (min(law), max(law)) == (pytest.approx(0.025, abs=0.001), pytest.approx(0.84))
    assert law != recall_law(92, seed=1)
    assert sorted(law) == sorted(recall_law(92, seed=1))


@pytest.mark.parametrize("layers", [1, 4, 16, 92])
def test_the_law_has_the_published_mean_for_any_number_of_layers(layers: int) -> None:
    assert sum(recall_law(layers)) / layers == pytest.approx(0.647, abs=0.11 / layers + 0.0005)


def test_the_noisy_oracle_has_the_published_recall(kimi: Trace) -> None:
    found = recall(noisy_oracle(kimi), kimi)
    assert abs(found.overall - 0.64) <= 0.02
    assert 0.0 < found.by_layer.min() <= 0.04
    assert 0.82 <= found.by_layer.max() <= 0.87
    assert found.by_layer.tolist() == pytest.approx(recall_law(92), abs=0.03)
    # as many are advised as were chosen: precision is recall
    assert found.precision == found.overall


def test_the_noisy_oracle_is_bit_identical(kimi: Trace) -> None:
    made = noisy_oracle(kimi, seed=7)
    assert zlib.crc32(made.offsets.astype("<u8").tobytes()) == 0x45C287C0
    assert zlib.crc32(made.experts.astype("<u2").tobytes()) == 2715835018


def test_previous_token_recurrence_of_synthetic_prose_is_the_published(kimi: Trace) -> None:
    assert 0.32 <= recall(previous_token(kimi), kimi).overall <= 0.36


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9])
def test_one_recall_holds_for_all_layers(share: float) -> None:
    trace = synth_trace(layers=4, iterations=100)
    found = recall(noisy_oracle(trace, share, seed=3), trace)
    assert found.by_layer.tolist() == pytest.approx([share] * 4, abs=0.035)
    assert share > 0 or not found.hits.any()
    assert found.advised.tolist() == found.chosen.tolist()


def test_recalls_are_given_by_layer_and_the_rest_is_filled_from_the_pass_before() -> None:
    trace = synth_trace(layers=3, iterations=40)
    made = noisy_oracle(trace, [0.0, 1.0, 0.5])
    assert recall(made, trace).by_layer.tolist() == [0.0, 1.0, pytest.approx(0.5, abs=0.04)]
    before = said(previous_token(trace))
    for record, advised, previous in zip(trace.records(), said(made), before, strict=True):
        chosen, stale = set(record.experts), set(previous) - set(record.experts)
        filled = set(advised) - chosen
        assert len(advised) == len(chosen)
        assert advised == sorted(advised)
        # all that the pass before still offers is taken before anything else
        assert filled <= stale or stale <= filled
        if record.layer == 1:
            assert not filled


def test_what_is_filled_in_was_not_chosen_even_where_few_are_left() -> None:
    trace = steps([[[0, 1, 2]], [[1, 2, 3]], [[0, 2, 3]]] * 5, n_experts=4)
    made = said(noisy_oracle(trace, 0.0))
    assert made == [sorted(set(range(4)) - set(one.experts)) for one in trace.records()]


def test_seeds_differ_and_repeat() -> None:
    trace = synth_trace(layers=2, iterations=20)
    assert said(noisy_oracle(trace, 0.5, seed=1)) == said(noisy_oracle(trace, 0.5, seed=1))
    assert said(noisy_oracle(trace, 0.5, seed=1)) != said(noisy_oracle(trace, 0.5, seed=2))


def test_a_noisy_oracle_works_in_blocks_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = synth_trace(layers=2, iterations=30)
    whole = said(noisy_oracle(trace))
    monkeypatch.setattr("pytest_moetier.advice.predictors._BLOCK", 7 * 896)
    assert said(noisy_oracle(trace)) == whole


@pytest.mark.parametrize(
    ("recalls", "message"),
    [
        (1.01, "a recall of 1.01; expected 0 to 1"),
        (-0.01, "a recall of -0.01"),
        (math.nan, "a recall of nan"),
        ([0.5, math.inf], "a recall of inf"),
        ([0.5], "1 recalls; expected one, or one for each of the trace's 2 layers"),
        (1.0, "labelled noisy_oracle, but it is exactly what the trace chose"),
    ],
)
def test_a_recall_that_cannot_be_is_refused(recalls: float | list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        noisy_oracle(speculative(), recalls)


def test_predictors_are_named() -> None:
    trace = speculative()
    assert said(predict(trace, "oracle")) == said(oracle(trace))
    assert said(predict(trace, "markov")) == said(markov(trace))
    assert said(predict(trace, "noisy_oracle", 0.5, 9)) == said(noisy_oracle(trace, 0.5, 9))
    with pytest.raises(InputError, match="no predictor 'given'; expected one of oracle"):
        predict(trace, "given")
    with pytest.raises(InputError, match="a recall or seed for the predictor markov"):
        predict(trace, "markov", seed=1)
    with pytest.raises(InputError, match="seed 18446744073709551616"):
        predict(trace, "noisy_oracle", seed=1 << 64)


def test_a_trace_of_one_record_has_nothing_before_it() -> None:
    trace = steps([[[1, 2]]])
    assert said(previous_token(trace)) == said(markov(trace)) == [[]]
    assert said(oracle(trace)) == [[1, 2]]
    assert CHOSEN[0] == set(said(oracle(speculative()))[0])


@recorded
@pytest.mark.parametrize(("name", "w1"), [("qwen", 0.3795), ("gemma", 0.3571)])
def test_previous_token_recall_of_real_decodes_is_the_published_reuse(name: str, w1: float) -> None:
    trace = load_trace(RECORDED / "bigmoe-on-edge" / f"{name}.route.csv")
    found = recall(previous_token(trace), trace)
    # the first pass, which nothing can be said of, counts as missed in the overall figure alone
    assert round(found.where_advised, 4) == w1
    assert found.where_advised == locality(trace.selections()).reuse(1)
    assert found.overall == pytest.approx(found.where_advised * 127 / 128)


@recorded
@pytest.mark.parametrize("name", ["qwen", "gemma"])
def test_on_real_decodes_markov_knows_more_than_the_previous_token(name: str) -> None:
    trace = load_trace(RECORDED / "bigmoe-on-edge" / f"{name}.route.csv")
    assert recall(markov(trace), trace).overall > recall(previous_token(trace), trace).overall + 0.1
