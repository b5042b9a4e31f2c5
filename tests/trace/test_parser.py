"""The canonical parser: types are reconstructed from rows that do not state them, and a row that fits none is named."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_moetier.errors import InputError
from pytest_moetier.trace.parser import arrange, parse
from pytest_moetier.trace.records import KINDS, NORMAL, SPEC_ACCEPT, SPEC_FALLBACK, Trace, make_trace
from pytest_moetier.trace.rows import DECODE, PREFILL, UNKNOWN, About, Hints, Rows, RowsBuilder
from pytest_moetier.trace.synth import synth_trace

SPECULATIVE = About("by hand", speculative=True)
NO_HINTS = Hints(n_experts=12)

Row = tuple[int, int, Sequence[int]]
"""Key of the iteration, layer, ids."""


def rows_of(rows: Iterable[Row], about: About = SPECULATIVE, phase: int = DECODE) -> Rows:
    built = RowsBuilder()
    for line, (key, layer, ids) in enumerate(rows, 1):
        built.add(line, key, layer, ids, phase)
    return built.rows(about)


def parsed(rows: Rows, hints: Hints = NO_HINTS) -> Trace:
    return parse(arrange(rows, hints), hints)


def trace_of(typed: Iterable[tuple[Row, int]], k: int, n_experts: int) -> Trace:
    rows = list(typed)
    offsets = [0]
    for (_, _, ids), _ in rows:
        offsets.append(offsets[-1] + len(ids))
    return make_trace(
        iteration=[key for (key, _, _), _ in rows],
        layer=[layer for (_, layer, _), _ in rows],
        kind=[kind for _, kind in rows],
        offsets=offsets,
        experts=[one for (_, _, ids), _ in rows for one in ids],
        n_experts=n_experts,
        k=k,
        synthetic=False,
        source="by hand",
    )


def pick_any(rng: random.Random, queues: Sequence[list[Any]]) -> list[Any]:
    return rng.choice([queue for queue in queues if queue])


def untyped(trace: Trace) -> list[Row]:
    return [(record.iteration, record.layer, record.experts) for record in trace.records()]


@st.composite
def traces(draw: st.DrawFn, kinds: Sequence[int] = (NORMAL, SPEC_ACCEPT, SPEC_FALLBACK)) -> Trace:
    """Any typed trace: layers with gaps, in any order; the records of a fallback layer by layer or pass after pass."""
    k = draw(st.integers(1, 4))
    n_experts = draw(st.integers(k, 12))
    layers = draw(st.lists(st.integers(0, 70), min_size=1, max_size=4, unique=True))
    types = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=8))
    rng = random.Random(draw(st.integers(0, 2**32)))  # noqa: S311  (it draws examples)
    typed = []
    for number, kind in enumerate(types):
        order = rng.sample(layers, len(layers))
        if kind == SPEC_FALLBACK:
            order = [one for one in order for _ in range(2)] if rng.random() < 0.5 else order + order[::-1]
        for layer in order:
            ids = [one for _ in range(1 + (kind == SPEC_ACCEPT)) for one in rng.sample(range(n_experts), k)]
            typed.append(((number, layer, ids), kind))
    return trace_of(typed, k, n_experts)


@dataclass
class Reference:
    """The paper's section 2 in plain Python, record by record; ``types`` is None where the rows are refused."""

    rows: Sequence[Row]
    k: int
    types: list[int] | None = field(init=False)
    left_out: bool = False

    def __post_init__(self) -> None:
        """Type every iteration."""
        groups: dict[int, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row[0], []).append(row)
        iterations = list(groups.values())
        most = max(len({layer for _, layer, _ in group}) for group in iterations)
        last = Counter(layer for _, layer, _ in iterations[-1])
        if len(last) < most or sorted(set(last.values())) == [1, 2]:
            self.left_out = True
            iterations.pop()
        layers = {layer for group in iterations for _, layer, _ in group}
        types = [self.type_of(group, layers) for group in iterations]
        self.types = None if None in types or not types else [one for one in types if one is not None]

    def type_of(self, group: Sequence[Row], layers: set[int]) -> int | None:
        times = Counter(layer for _, layer, _ in group)
        widths = {len(ids) for _, _, ids in group}
        if set(times) != layers:
            return None
        if widths == {self.k} and set(times.values()) == {1}:
            return NORMAL
        if widths == {2 * self.k} and set(times.values()) == {1}:
            return SPEC_ACCEPT
        if widths == {self.k} and set(times.values()) == {2}:
            return SPEC_FALLBACK
        return None


@settings(max_examples=300, deadline=None)
@given(trace=traces(), phase=st.sampled_from([DECODE, UNKNOWN]))
def test_any_typed_iterations_come_back_from_rows_without_types(trace: Trace, phase: int) -> None:
    back = parsed(rows_of(untyped(trace), phase=phase), Hints(trace.n_experts, trace.k))
    assert back.fingerprint == trace.fingerprint
    assert (back.kind == trace.kind).all()
    assert back.accepted_tokens == trace.n_iterations + trace.kind_counts()["spec_accept"]
    assert back.warnings == ()
    assert back.prefill is None


@settings(max_examples=200, deadline=None)
@given(trace=traces())
def test_k_need_not_be_stated_where_one_iteration_is_no_accept(trace: Trace) -> None:
    assume(trace.kind_counts()["spec_accept"] < trace.n_iterations)
    back = parsed(rows_of(untyped(trace)), Hints(trace.n_experts))
    assert (back.k, back.fingerprint) == (trace.k, trace.fingerprint)


def test_accepts_alone_need_k_for_they_look_like_normal_iterations_of_twice_the_k() -> None:
    rows = rows_of([(0, 3, [1, 2, 3, 4]), (1, 3, [5, 6, 7, 8])])
    assert parsed(rows, Hints(12, 2)).kind_counts() == {"normal": 0, "spec_accept": 2, "spec_fallback": 0}
    guessed = parsed(rows)
    assert (guessed.k, guessed.accepted_tokens) == (4, 2)
    with pytest.raises(InputError, match="line 1: pass 0 of the trace names an expert twice"):
        parsed(rows_of([(0, 3, [1, 2, 2, 1])]))  # an expert of both passes gives the guess away


@settings(max_examples=100, deadline=None)
@given(trace=traces(), seed=st.integers(0, 2**32))
def test_iterations_are_told_by_their_keys_whatever_these_are_and_however_they_interleave(
    trace: Trace, seed: int
) -> None:
    rng = random.Random(seed)  # noqa: S311  (it draws examples)
    keys = rng.sample(range(10**6), trace.n_iterations)
    queues = {key: [] for key in keys}
    for number, layer, ids in untyped(trace):
        queues[keys[number]].append((keys[number], layer, ids))
    rows = [queues[key].pop(0) for key in keys]  # each one's first row keeps the order of the iterations
    while any(queues.values()):
        rows.append(pick_any(rng, list(queues.values())).pop(0))
    assert parsed(rows_of(rows), Hints(trace.n_experts, trace.k)).fingerprint == trace.fingerprint


@settings(max_examples=500, deadline=None)
@given(data=st.data(), trace=traces())
def test_spoiled_rows_are_typed_or_refused_as_a_plain_reading_of_the_rules_does(
    data: st.DataObject, trace: Trace
) -> None:
    rows = untyped(trace)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(rows) - 1))
        number, layer, ids = rows[at]
        change = data.draw(st.sampled_from(["twice", "lost", "narrow", "wide", "cut"]))
        if change == "twice":
            rows.insert(at, rows[at])
        elif change == "lost" and len(rows) > 1:
            del rows[at]
        elif change == "narrow" and len(ids) > 1:
            rows[at] = (number, layer, ids[:-1])
        elif change == "wide" and len(ids) >= trace.k:  # else an id would come twice within one pass
            rows[at] = (number, layer, [*ids[: trace.k], *ids[: trace.k]])
        else:
            del rows[at + 1 :]
    expected = Reference(rows, trace.k)
    hints = Hints(trace.n_experts, trace.k)
    if expected.types is None:
        with pytest.raises(InputError, match=r"line \d+: |its only decode iteration"):
            parsed(rows_of(rows), hints)
        return
    back = parsed(rows_of(rows), hints)
    assert back.kind[back.record_bounds()[:-1]].tolist() == expected.types
    assert back.accepted_tokens == len(expected.types) + expected.types.count(SPEC_ACCEPT)
    assert any("was left out" in one for one in back.warnings) == expected.left_out


@settings(max_examples=100, deadline=None)
@given(trace=traces(), positions=st.lists(st.integers(1, 5), max_size=4), seed=st.integers(0, 2**32))
def test_decode_and_prefill_never_mix_even_where_they_share_keys(trace: Trace, positions: list[int], seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  (it draws examples)
    k = trace.k
    prompt = [
        (number, layer, [one for _ in range(count) for one in rng.sample(range(trace.n_experts), k)])
        for number, count in enumerate(positions)
        for layer in trace.layers
    ]
    queues = [[(row, PREFILL) for row in prompt], [(row, DECODE) for row in untyped(trace)]]
    both = [queue.pop(0) for _ in range(len(prompt) + trace.n_records) for queue in [pick_any(rng, queues)]]
    built = RowsBuilder()
    for line, ((key, layer, ids), phase) in enumerate(both, 1):
        built.add(line, key, layer, ids, phase)
    back = parsed(built.rows(SPECULATIVE), Hints(trace.n_experts, k))
    assert back.accepted_tokens == trace.accepted_tokens
    assert back.fingerprint == trace.fingerprint
    if not prompt:
        assert back.prefill is None
        return
    assert back.prefill is not None
    assert set(back.prefill.kind_counts()) <= {"normal", "spec_accept", "spec_fallback", "batch"}
    assert back.prefill.kind_counts().get("batch", 0) == sum(count > 1 for count in positions)
    assert back.prefill.n_accesses == sum(positions) * k * len(trace.layers)


def test_where_no_phase_is_told_wide_iterations_are_prefill_and_late_ones_are_said() -> None:
    plain = About("by hand")
    rows = [(0, 0, [1, 2, 3, 4]), (0, 1, [1, 2]), (1, 0, [1, 2]), (1, 1, [3, 4])]
    back = parsed(rows_of(rows, plain, UNKNOWN))
    assert back.prefill is not None
    assert (back.n_iterations, back.prefill.n_iterations, back.prefill.n_accesses) == (1, 1, 6)
    assert back.warnings == ()
    late = [*rows, (2, 0, [1, 2, 3, 4]), (2, 1, [1, 2, 5, 6]), (3, 0, [1, 2]), (3, 1, [3, 4])]
    assert parsed(rows_of(late, plain, UNKNOWN)).warnings == (
        "1 iteration(s) after the first decode, from line 5 on, hold more than a pass: taken as prefill",
    )
    with pytest.raises(InputError, match="no decode record: line 1 names 4 experts where k is 2, and no iteration is"):
        parsed(rows_of([(0, 0, [1, 2, 3, 4])], plain, UNKNOWN), Hints(12, 2))


@pytest.mark.parametrize("fewer", [0, 1, 24])
def test_accepted_tokens_are_held_against_the_tokens_requested(fewer: int) -> None:
    trace = synth_trace(layers=1, iterations=14, domain="code", experts=8, k=2)
    accepted = trace.accepted_tokens
    assert (accepted, trace.kind_counts()["spec_accept"]) == (17, 3)
    rows, hints = rows_of(untyped(trace)), Hints(8, 2, accepted + 1 + fewer)
    back = parsed(rows, hints)
    assert back.accepted_tokens == accepted
    assert len(back.warnings) == (fewer > 0)
    assert all(f"{fewer} fewer than requested - 1 = {accepted + fewer}" in one for one in back.warnings)
    stated = parsed(replace(rows, about=replace(rows.about, requested_tokens=accepted + 1 + fewer)), Hints(8, 2))
    assert stated.warnings == back.warnings
    cut = parsed(replace(rows, about=replace(rows.about, cut=True)), hints)
    assert cut.warnings[-1].endswith("the file is cut off") == (fewer > 0)


def test_more_accepted_tokens_than_requested_are_refused() -> None:
    rows = rows_of(untyped(synth_trace(layers=1, iterations=14, domain="code", experts=8, k=2)))
    with pytest.raises(
        InputError, match=r"17 accepted tokens in 14 iterations \(11 normal, 3 spec_a.* at most 16, one"
    ):
        parsed(rows, Hints(8, 2, 17))
    with pytest.raises(InputError, match=r"28 accepted tokens in 14 iterations \(0 normal, 14 spec_accept"):
        parsed(rows_of([(at, 3, [0, 1, 2, 3]) for at in range(14)]), Hints(8, 2, 15))  # k is 4, and 2 was said


FALLBACK = [(0, 4, [1, 2]), (0, 7, [1, 3]), (0, 4, [1, 2]), (0, 7, [3, 5])]
AFTER = [(9, 4, [1, 2]), (9, 7, [1, 3])]


@pytest.mark.parametrize(
    ("rows", "about", "hints", "message"),
    [
        ([(0, 4, [1, 2]), (0, 7, [1, 2, 3, 4]), *AFTER], {}, {}, "line 2: layer 7 names 4 experts, layer 4 of decode"),
        ([*FALLBACK, (0, 4, [1, 2]), (0, 7, [3, 5]), *AFTER], {}, {}, "line 5: layer 4 is routed 3 times in decode"),
        ([*FALLBACK[:3], *AFTER], {}, {}, "line 2: layer 7 is routed once in decode iteration 0, others twice"),
        (FALLBACK + AFTER, {"speculative": False}, {}, "line 3: layer 4 is routed 2 times in decode iteration 0"),
        ([*AFTER, (1, 4, [1, 2]), *FALLBACK], {}, {}, "line 3: iteration 1 has no record of layer 7; expected every"),
        ([(0, 4, [1, 2]), (0, 4, [1, 2, 3]), *AFTER], {}, {}, "line 2: layer 4 names 3 experts, others 2 .*k varies"),
        (
            [*[(one, 0, [1, 2]) for one in range(19)], (20, 0, [7])],
            {},
            {"k": 2},
            "line 20: layer 0 names 1 experts; ex",
        ),
        (AFTER, {"k": 2}, {"k": 3}, "k is 2 in the file; expected 3 as asked for"),
        (AFTER, {}, {"k": 3}, r"line 1: layer 4 names 2 experts; expected 3 \(k\), or 6 for an accepted speculation"),
        (AFTER, {"speculative": False}, {"k": 3}, r"line 1: layer 4 names 2 experts; expected 3 \(k\); next: --k K"),
        (AFTER, {"n_experts": 13}, {}, "n_experts is 13 in the file; expected 12 as asked for"),
        (
            [*AFTER, (10, 4, [1, 12]), (10, 7, [1, 2])],
            {},
            {},
            "line 3: the trace names expert 12; expected ids below 12",
        ),
        ([*AFTER, (10, 4, [1, 2]), (10, 7, [2, 2])], {}, {}, "line 4: pass 3 of the trace names an expert twice"),
        (
            [*AFTER, (10, 4, [1, 2]), (10, 8, [2, 1])],
            {"layers": (4, 7)},
            {},
            "line 4: the trace routes layer 8; expected",
        ),
        (
            AFTER[:1],
            {"layers": (4, 7)},
            {},
            "its only decode iteration has 1 of 2 records; expected at least one whole",
        ),
        ([], {}, {}, "the file holds no record"),
    ],
)
def test_a_refusal_names_the_line(rows: list[Row], about: dict[str, Any], hints: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parsed(rows_of(rows, replace(SPECULATIVE, **about)), replace(NO_HINTS, **hints))


def test_a_format_without_lines_names_its_records() -> None:
    with pytest.raises(InputError, match="record 2: layer 7 names 4 experts"):
        parsed(rows_of([(0, 4, [1, 2]), (0, 7, [1, 2, 3, 4]), *AFTER], replace(SPECULATIVE, place="record")))


@settings(max_examples=100, deadline=None)
@given(trace=traces([NORMAL]), phase=st.sampled_from([DECODE, UNKNOWN]))
def test_without_keys_an_iteration_begins_where_the_layers_do_not_rise(trace: Trace, phase: int) -> None:
    rows = [(-1, layer, ids) for _, layer, ids in sorted(untyped(trace), key=lambda row: row[:2])]
    back = parsed(rows_of(rows, About("by hand"), phase), Hints(trace.n_experts, trace.k))
    assert (back.n_iterations, back.accepted_tokens) == (trace.n_iterations, trace.n_iterations)
    assert all((back.passes(layer) == trace.passes(layer)).all() for layer in trace.layers)
    assert back.warnings == ()


def test_without_keys_a_failed_speculation_cannot_be_told_and_this_is_said() -> None:
    rows = [(-1, layer, ids) for _, layer, ids in FALLBACK]
    back = parsed(rows_of(rows))
    assert back.kind_counts() == {"normal": 2, "spec_accept": 0, "spec_fallback": 0}
    assert back.warnings == (
        "the file does not number its iterations: a failed speculation counts as an accepted token",
    )
    with pytest.raises(InputError, match="line 1: iteration 0 has no record of layer 7"):
        parsed(rows_of([*sorted(rows), *rows]))  # layer by layer, twice each


@settings(max_examples=200, deadline=None)
@given(trace=traces(), data=st.data())
def test_a_cut_tail_leaves_whole_iterations(trace: Trace, data: st.DataObject) -> None:
    rows = untyped(trace)
    held = data.draw(st.integers(len(trace.layers), len(rows)))
    expected = Reference(rows[:held], trace.k)
    assume(expected.types is not None)
    about = replace(SPECULATIVE, records=len(rows))
    back = parsed(rows_of(rows[:held], about), Hints(trace.n_experts, trace.k))
    assert back.kind[back.record_bounds()[:-1]].tolist() == expected.types
    assert (back.experts == trace.experts[: back.n_accesses]).all()
    early = [f"the file ends after line {held}, {len(rows) - held} decode records early"] if held < len(rows) else []
    assert list(back.warnings[: len(early)]) == early
    assert len(back.warnings) == (2 if early else 0)


def test_a_lone_iteration_is_held_against_the_layers_of_the_prompt() -> None:
    built = RowsBuilder()
    for line, (layer, phase) in enumerate([(4, PREFILL), (7, PREFILL), (4, DECODE)], 1):
        built.add(line, line // 3, layer, [1, 2], phase)
    with pytest.raises(InputError, match="its only decode iteration has 1 of 2 records"):
        parsed(built.rows(SPECULATIVE))


def test_a_last_iteration_with_records_too_many_is_refused_not_left_out() -> None:
    with pytest.raises(InputError, match="line 7: layer 4 is routed 3 times in decode iteration 1"):
        parsed(rows_of([*AFTER, *FALLBACK, (0, 4, [1, 2]), (0, 7, [3, 5])]))
    with pytest.raises(InputError, match="line 4: layer 4 is routed 2 times in decode iteration 1"):
        parsed(rows_of([*AFTER, (10, 4, [1, 2]), (10, 4, [1, 2]), (10, 7, [1, 2])], About("by hand")))


def test_the_published_denominators_are_those_of_typed_records_and_not_of_collapsed_ones() -> None:
    stripped = untyped(synth_trace("kimi-k3", domain="prose", layers=2, iterations=285))
    trace = parsed(rows_of(stripped), Hints(896, requested_tokens=300))
    assert (trace.n_iterations, trace.accepted_tokens, trace.k) == (285, 299, 16)
    assert trace.kind_counts() == {"normal": 248, "spec_accept": 14, "spec_fallback": 23}
    assert trace.warnings == (), "299 is one fewer than the 300 requested"
    assert round(trace.n_accesses / 2 * 92 / trace.n_iterations, 1) == 1663.1  # reads an iteration, of all 92 layers
    # a parser that keeps the last record of a layer loses the failed passes, one that takes each pass for a token
    # counts them as accepted, and one that takes each iteration for a token loses the accepted second ones
    last_kept = {(key, layer): len(ids) for key, layer, ids in stripped}
    passes = trace.n_accesses // 16 // 2
    assert sum(last_kept.values()) // 16 // 2 == 299
    assert passes == 248 + 2 * 14 + 2 * 23 == 322
    assert {trace.n_iterations, passes} == {285, 322}
    assert trace.accepted_tokens not in {trace.n_iterations, passes}


def test_the_reference_itself_types_what_the_paper_names() -> None:
    rows = [(0, 1, [1, 2]), (1, 1, [1, 2, 3, 4]), (2, 1, [1, 2]), (2, 1, [1, 2]), (3, 1, [1, 2, 3])]
    assert Reference(rows[:4], 2).types == [NORMAL, SPEC_ACCEPT, SPEC_FALLBACK]
    assert [KINDS[one] for one in Reference(rows[1:2], 2).types or []] == ["spec_accept"]
    assert Reference(rows, 2).types is None
