"""Contamination is found with exact counts, repaired as said, kept or refused on request, and found nowhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_moetier.errors import InputError
from pytest_moetier.trace import checks, parser
from pytest_moetier.trace.findings import TraceFinding
from pytest_moetier.trace.load import load_trace, load_traces
from pytest_moetier.trace.records import KINDS, SPEC_ACCEPT, Trace, make_trace
from pytest_moetier.trace.rows import DECODE, EQUAL_WEIGHTS, PREFILL, UNKNOWN, About, Hints, Rows, RowsBuilder
from pytest_moetier.trace.synth import PLAIN_DOMAINS, PRESETS, synth_trace

FIXTURES = Path(__file__).parents[2] / "fixtures" / "traces"
RECORDED = Path(os.environ.get("MOETIER_TRACES", "MOETIER_TRACES-is-not-set"))
needs_recorded = pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recorded traces at {RECORDED}")

E, K = 32, 4


def fixture(check: str) -> Path:
    return FIXTURES / f"contaminated-{check}.jsonl"


def plain(**changed: Any) -> Trace:
    """The clean trace behind the fixtures: normal iterations alone."""
    parts = {"layers": 3, "iterations": 12, "seed": 5, "order": "score", "experts": E, "k": K}
    return synth_trace("qwen3-30b-a3b", **(parts | changed))


def clean(name: str = "clean") -> Trace:
    """The clean trace behind the fixtures, recorded: the generator's may change."""
    return load_trace(FIXTURES / f"{name}.jsonl")


def ids_of(trace: Trace) -> list[tuple[int, int, str, tuple[int, ...]]]:
    """What the trace says, independent of where it came from."""
    return [(one.iteration, one.layer, one.kind, one.experts) for one in trace.records()]


def without(trace: Trace, *lost: int) -> list[tuple[int, int, str, tuple[int, ...]]]:
    """What a trace says without some iterations, the rest numbered on."""
    number = {one: at for at, one in enumerate(sorted(set(range(trace.n_iterations)) - set(lost)))}
    return [(number[one], layer, kind, ids) for one, layer, kind, ids in ids_of(trace) if one in number]


# --- the fixtures: each contamination in a file of its own ---


@dataclass(frozen=True)
class Case:
    """A fixture, the default action for it, the other one that repairs or says, and what the finding has to say."""

    check: str
    default: str
    what: str
    amount: str
    repaired: Callable[[], list[tuple[int, int, str, tuple[int, ...]]]]


def _kept_from(begin: int) -> list[tuple[int, int, str, tuple[int, ...]]]:
    return without(clean(), *range(begin))


CASES = [
    Case(
        "re-prefill",
        "drop",
        "8 passes over the prompt, each repeating the one before it as its prefix",
        "12 true positions (5 prompt + 7 generated), 82 % of the passes' ids are repeats",
        lambda: _kept_from(5),
    ),
    Case(
        "profile-pass",
        "drop",
        "at least 6 identical positions in each layer, with all weights equal",
        "18 records of 54 (33 %)",
        lambda: ids_of(clean()),
    ),
    Case(
        "warm-up",
        "drop",
        "1 pass of which every record names all 32 experts",
        "3 records of 39",
        lambda: ids_of(clean()),
    ),
    Case(
        "duplicate-keys",
        "drop",
        "3 identical to the first and 1 conflicting with it",
        "4 records of 40",
        lambda: ids_of(clean()),
    ),
    Case(
        "doubled-iteration",
        "drop",
        "1 iteration written twice",
        "8 records of 40",
        lambda: ids_of(clean("clean-8-layers")),
    ),
    Case(
        "strided-view",
        "refuse",
        "several passes of k = 4 in which no id ever repeats",
        "3 records of 24 ids, by chance 1 in 2^48",
        lambda: ids_of(clean()),
    ),
    Case(
        "shared-experts",
        "drop",
        "expert 32 is in every pass of every layer",
        "1 of 5 ids a pass, 36 records",
        lambda: ids_of(clean()),
    ),
    Case(
        "out-of-range", "refuse", "expert 40 of 32 experts a layer", "1 id in 1 iteration", lambda: without(clean(), 5)
    ),
    Case(
        "repeated-expert", "refuse", "expert 27 twice in one pass", "1 pass in 1 iteration", lambda: without(clean(), 5)
    ),
    Case(
        "missing-layers",
        "drop",
        "without a record of layer 2",
        "1 of 12 iterations (8.3 %)",
        lambda: without(clean(), 4),
    ),
    Case(
        "pruned-prefill",
        "keep",
        "layer 2, the last, has 1 prompt position, the other layers 4",
        "3 positions of one layer",
        lambda: _kept_from(4),
    ),
    Case(
        "draft-layer",
        "keep",
        "layer 0 chose what layer 1 chose in 20 of 20 iterations",
        "20 records of 60 (33 %)",
        lambda: [one for one in ids_of(clean("clean-20-iterations")) if one[1]],
    ),
]
by_check = pytest.mark.parametrize("case", CASES, ids=lambda case: case.check)


@by_check
def test_each_contamination_is_found_in_its_fixture_alone_and_with_its_amount(case: Case) -> None:
    if case.default == "refuse":
        with pytest.raises(InputError, match=re.escape(case.amount)) as caught:
            load_trace(fixture(case.check))
        assert case.what in str(caught.value)
        assert f"--on {case.check}=drop" in caught.value.do
        return
    trace = load_trace(fixture(case.check))
    assert [one.check for one in trace.findings] == [case.check]
    found = trace.findings[0]
    assert case.what in found.what
    assert found.amount == case.amount
    assert str(found) in trace.warnings


@by_check
def test_what_is_dropped_leaves_the_clean_trace(case: Case) -> None:
    trace = load_trace(fixture(case.check), policy={case.check: "drop"})
    assert ids_of(trace) == case.repaired()
    assert [one.check for one in trace.findings] == [case.check]
    assert trace.findings[0].done not in {"", "kept"}
    assert f"--on {case.check}=refuse" in trace.findings[0].override


@by_check
def test_every_check_can_be_told_to_refuse(case: Case) -> None:
    with pytest.raises(InputError, match=f"{case.check}: ") as caught:
        load_trace(fixture(case.check), policy={case.check: "refuse"})
    assert case.what in str(caught.value)


@pytest.mark.parametrize(
    ("check", "iterations"),
    [
        ("profile-pass", 18),
        ("warm-up", 12),
        ("doubled-iteration", 4),
        ("strided-view", 12),
        ("shared-experts", 12),
        ("pruned-prefill", 8),
        ("draft-layer", 20),
        ("uniform-ids", 120),
    ],
)
def test_what_is_kept_is_said_and_stays(check: str, iterations: int) -> None:
    trace = load_trace(fixture(check), raw=True)
    assert trace.n_iterations == iterations
    found = {one.check: one for one in trace.findings}
    assert found[check].done == "kept"
    assert "--raw" not in found[check].override


def test_a_file_of_prompts_alone_is_kept_only_raw_and_the_override_says_so() -> None:
    found = load_trace(fixture("re-prefill")).findings[0]
    assert found.override == "--on re-prefill=refuse or --raw, which keeps everything"
    raw = load_trace(fixture("re-prefill"), raw=True)
    assert (raw.n_iterations, raw.kind_counts()["batch"]) == (8, 8)
    assert raw.findings[0].done == "kept"


@pytest.mark.parametrize("check", ["duplicate-keys", "out-of-range", "repeated-expert", "missing-layers"])
def test_what_no_trace_can_hold_is_refused_in_raw_mode_and_keeping_it_is_not_offered(check: str) -> None:
    with pytest.raises(InputError, match=f"{check}: ") as caught:
        load_trace(fixture(check), raw=True)
    assert caught.value.do == f"--on {check}=drop"
    assert load_trace(fixture(check), raw=True, policy={check: "drop"}).n_iterations in {11, 12}
    with pytest.raises(InputError, match=rf"--on {check}=keep; expected {check} with one of drop, refuse"):
        load_trace(fixture(check), policy={check: "keep"})


def test_the_prompt_that_re_prefills_repeat_is_one_batch() -> None:
    prompt = load_trace(fixture("re-prefill")).prefill
    assert prompt is not None
    assert prompt.kind_counts()["batch"] == 1
    for layer in clean().layers:
        assert prompt.passes(layer).tolist() == clean().passes(layer)[:5].tolist()


def test_shared_experts_left_out_lower_k_and_leave_the_experts_that_are_routed() -> None:
    trace = load_trace(fixture("shared-experts"))
    assert (trace.k, trace.n_experts) == (4, 32)
    assert load_trace(fixture("shared-experts"), raw=True).k == 5


def test_uniform_ids_are_said_with_what_they_mean() -> None:
    trace = load_trace(fixture("uniform-ids"))
    assert [one.check for one in trace.findings] == ["uniform-ids"]
    assert "an LRU cache's hit rate would equal its share of the pool" in trace.findings[0].what
    assert "chance would give 3.1 %" in trace.findings[0].what
    assert trace.findings[0].amount == "238 pairs of passes"
    with pytest.raises(InputError, match="uniform-ids: ids as if drawn"):
        load_trace(fixture("uniform-ids"), policy={"uniform-ids": "refuse"})


# --- several files ---

STEP = [FIXTURES / f"contaminated-step-0-{name}.jsonl" for name in "ab"]


def test_a_first_step_that_prompts_share_is_left_out_of_each() -> None:
    alone = [load_trace(path) for path in STEP]
    traces = load_traces(STEP)
    for trace, before in zip(traces, alone, strict=True):
        assert before.findings == ()
        assert [one.check for one in trace.findings] == ["identical-step-0"]
        assert trace.n_iterations == before.n_iterations - 1 == trace.accepted_tokens == 5
        assert ids_of(trace) == without(before, 0)
        assert str(trace.findings[0]) in trace.warnings
    assert [ids_of(one) for one in traces] == [ids_of(clean(f"clean-seed-{seed}")) for seed in (1, 2)]


def test_a_shared_first_step_can_be_kept_or_refused() -> None:
    kept = load_traces(STEP, policy={"identical-step-0": "keep"})
    assert [(one.n_iterations, one.findings[0].done) for one in kept] == [(6, "kept")] * 2
    assert [one.n_iterations for one in load_traces(STEP, raw=True)] == [6, 6]
    with pytest.raises(InputError, match="identical-step-0: a dry run"):
        load_traces(STEP, policy={"identical-step-0": "refuse"})


def test_the_same_file_twice_is_another_finding_and_both_stay() -> None:
    traces = load_traces([STEP[0], STEP[0]])
    assert [[one.check for one in trace.findings] for trace in traces] == [["same-trace"]] * 2
    assert [one.n_iterations for one in traces] == [6, 6]
    with pytest.raises(InputError, match="same-trace: 2 files hold the same trace"):
        load_traces([STEP[0], STEP[0]], policy={"same-trace": "refuse"})


def test_a_file_given_twice_beside_another_prompt_loses_its_dry_run_too() -> None:
    traces, said = checks.check_together([load_trace(path) for path in (STEP[0], *STEP)], {})
    assert [one.check for one in said] == ["same-trace", "identical-step-0"]
    assert [one.n_iterations for one in traces] == [5, 5, 5]
    assert [len(one.findings) for one in traces] == [2, 2, 1]


def _prompted(prompt: Sequence[Sequence[int]], decode: Trace) -> Trace:
    """Give a trace a prompt: the positions of each pass over it, by iteration number of ``decode``'s own ids."""
    held = RowsBuilder()
    for at, positions in enumerate(prompt):
        for layer in decode.layers:
            held.add(held.n, at, layer, decode.passes(layer)[list(positions)].ravel().tolist(), PREFILL)
    for at, layer, _, ids in ids_of(decode):
        held.add(held.n, 100 + at, layer, ids, DECODE)
    return parser.parse(parser.arrange(held.rows(About("prompted", k=K, n_experts=E)), Hints()), Hints())


def test_a_first_pass_that_prompts_share_is_left_out_of_the_prompts_alone() -> None:
    one = _prompted([[0, 1, 2, 3], [4, 5]], plain())
    other = _prompted([[0, 1, 2, 3], [6, 5]], plain())
    traces, said = checks.check_together([one, other], {})
    assert [(found.check, found.what[:63]) for found in said] == [
        ("identical-step-0", "a dry run of the engine: the first pass over the prompt (or a b")
    ]
    assert [trace.prefill.n_iterations for trace in traces if trace.prefill] == [1, 1]
    assert [trace.n_iterations for trace in traces] == [12, 12]


def test_one_prompt_sampled_twice_and_prompts_of_the_same_first_token_are_no_dry_run() -> None:
    trace = plain()
    later = ids_of(plain(seed=9))
    held = RowsBuilder()
    for at, layer, _, ids in [*ids_of(trace)[:3], *later[3:]]:
        held.add(held.n, at, layer, ids, DECODE)
    other = parser.parse(parser.arrange(held.rows(About("again", k=K, n_experts=E)), Hints()), Hints())
    assert [one.check for one in checks.check_together([trace, other], {})[1]] == ["identical-step-0"]
    same_prompt = [_prompted([[0, 1, 2, 3]], one) for one in (trace, other)]
    same_prompt[1] = replace(same_prompt[1], prefill=same_prompt[0].prefill)
    assert checks.check_together(same_prompt, {})[1] == ()
    first_token = [_prompted([[0], [at]], plain(seed=5)) for at in (1, 2)]
    assert [one.check for one in checks.check_together(first_token, {})[1]] == []


# --- what is chosen ---


def test_unknown_checks_and_actions_are_named_and_what_is_chosen_wins_over_raw() -> None:
    with pytest.raises(InputError, match=r"no check 'warmup'; expected one of profile-pass, warm-up"):
        checks.chosen({"warmup": "drop"}, raw=False)
    with pytest.raises(InputError, match=r"--on uniform-ids=drop; expected uniform-ids with one of keep, refuse"):
        checks.chosen({"uniform-ids": "drop"}, raw=False)
    policy = checks.chosen({"warm-up": "refuse"}, raw=True)
    assert policy["warm-up"] == "refuse"
    assert policy["strided-view"] == "keep"
    assert policy["repeated-expert"] == "refuse"
    defaults = checks.chosen({}, raw=False)
    assert (defaults["re-prefill"], defaults["strided-view"], defaults["draft-layer"]) == ("drop", "refuse", "keep")


def test_the_listing_has_every_check_once_with_its_default_among_its_actions() -> None:
    rows = checks.listing()
    assert [row[0] for row in rows] == list(checks.CHECKS)
    assert {case.check for case in CASES} | {"uniform-ids", "identical-step-0", "same-trace"} == set(checks.CHECKS)
    for _, default, actions, what in rows:
        assert default in actions
        assert what.endswith(".")
        assert "\n" not in what


# --- rows made here ---

Row = tuple[int, int, Sequence[int], int]
"""Iteration, layer, ids, phase."""


def arranged(rows: Sequence[Row], flags: Mapping[int, int] | None = None, **about: Any) -> Rows:
    held = RowsBuilder()
    for at, (key, layer, ids, phase) in enumerate(rows):
        held.add(at + 1, key, layer, ids, phase, flags=(flags or {}).get(at, 0))
    return parser.arrange(held.rows(About("made here", **about)), Hints())


def checked(
    rows: Sequence[Row], policy: Mapping[str, str] | None = None, flags: Mapping[int, int] | None = None, **about: Any
) -> tuple[Trace, tuple[TraceFinding, ...]]:
    kept, found = checks.check_rows(arranged(rows, flags, **about), policy or {})
    again, still = checks.check_rows(kept, policy or {})
    assert ids_equal(kept, again)
    assert [one.check for one in still if one.done != "kept"] == []
    return parser.parse(kept, Hints()), found


def ids_equal(one: Rows, other: Rows) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("key", "layer", "phase", "width", "ids")
    )


def rows_of(trace: Trace, phase: int = UNKNOWN) -> list[Row]:
    return [(one.iteration, one.layer, one.experts, phase) for one in trace.records()]


def test_many_identical_positions_at_the_start_are_a_profile_pass_even_without_weights() -> None:
    clean = plain()
    for positions, expected in ((64, ["profile-pass"]), (63, ["repeat"])):
        profile = [(at, layer, (7, 6, 4, 5), UNKNOWN) for at in range(positions) for layer in clean.layers]
        rows = profile + [(at + positions, layer, ids, phase) for at, layer, ids, phase in rows_of(clean)]
        trace, found = checked(rows, n_experts=E)
        if expected == ["repeat"]:
            assert found == ()
            assert trace.n_iterations == 12 + positions
        else:
            assert [one.check for one in found] == expected
            assert "at least 64 identical positions" in found[0].what
            assert (found[0].where, found[0].amount) == ("lines 1 to 192", "192 records of 228 (84 %)")
            assert ids_of(trace) == ids_of(clean)


def test_a_profile_pass_that_shares_its_keys_with_the_text_is_told_from_it() -> None:
    clean = plain()
    profile = [(0, layer, (7, 6, 4, 5), UNKNOWN) for _ in range(9) for layer in clean.layers]
    flags = dict.fromkeys(range(27), EQUAL_WEIGHTS)
    trace, found = checked(profile + rows_of(clean), flags=flags, n_experts=E)
    assert [(one.check, one.amount) for one in found] == [("profile-pass", "27 records of 63 (43 %)")]
    assert ids_of(trace) == ids_of(clean)


def test_a_file_of_nothing_but_a_profile_pass_is_refused() -> None:
    with pytest.raises(InputError, match="without it no record is left"):
        checked([(at, 0, (1, 0, 2, 3), UNKNOWN) for at in range(100)], n_experts=E)


def test_a_first_pass_of_the_lowest_ids_is_a_warm_up_and_a_later_one_is_not() -> None:
    clean = rows_of(plain())
    first = [(-1, layer, (2, 0, 3, 1), UNKNOWN) for layer in range(3)]
    trace, found = checked([(key + 1, *row) for key, *row in first + clean], n_experts=E)
    assert [(one.check, one.amount) for one in found] == [("warm-up", "3 records of 39")]
    assert "experts 0 to 3" in found[0].what
    assert ids_of(trace) == ids_of(plain())
    late = clean + [(12, layer, (2, 0, 3, 1), UNKNOWN) for layer in range(3)]
    assert checked(late, n_experts=E)[1] == ()


def test_a_warm_up_of_two_tokens_names_all_experts_twice() -> None:
    everyone = [*range(E), *range(E - 1, -1, -1)]
    rows = [(0, layer, everyone, UNKNOWN) for layer in range(3)]
    rows += [(key + 1, *row) for key, *row in rows_of(plain())]
    trace, found = checked(rows, n_experts=E)
    assert [(one.check, one.amount) for one in found] == [("warm-up", "3 records of 39")]
    assert ids_of(trace) == ids_of(plain())


def _pass(trace: Trace, positions: int, key: int, *, pruned: bool = False) -> list[Row]:
    last = trace.layers[-1]
    return [
        (
            key,
            layer,
            trace.passes(layer)[positions - 1 if pruned and layer == last else 0 : positions].ravel().tolist(),
            255,
        )
        for layer in trace.layers
    ]


def test_re_prefill_with_a_pruned_last_layer_keeps_each_of_its_positions() -> None:
    clean = plain()
    rows = [row for at, n in enumerate(range(5, 13)) for row in _pass(clean, n, at, pruned=True)]
    trace, found = checked(rows, k=K, n_experts=E)
    assert [one.check for one in found] == ["re-prefill", "pruned-prefill"]
    assert "12 true positions (5 prompt + 7 generated)" in found[0].amount
    assert ids_of(trace) == without(clean, *range(5))


def test_a_conversation_that_is_read_again_each_turn_is_repaired_turn_by_turn() -> None:
    """Prompt of 3, 4 decoded, then all 7 again with 4 new ones, 1 decoded; then another conversation likewise."""
    clean, other = plain(), plain(seed=6)
    rows: list[Row] = []
    for key, trace in ((0, clean), (100, other)):
        rows += _pass(trace, 3, key)
        rows += [(key + 1 + at, layer, ids, UNKNOWN) for at, layer, ids, _ in rows_of(trace) if 3 <= at < 7]
        rows += _pass(trace, 11, key + 50)
        rows += [(key + 60, layer, ids, UNKNOWN) for at, layer, ids, _ in rows_of(trace) if at == 11]
    trace, found = checked(rows, k=K, n_experts=E)
    assert [one.check for one in found] == ["re-prefill"]
    assert found[0].what.startswith("4 passes over the prompt, in 2 series")
    assert found[0].amount == "24 true positions (14 prompt + 10 generated), 50 % of the passes' ids are repeats"
    assert trace.prefill is not None
    for layer in clean.layers:
        one, two = clean.passes(layer), other.passes(layer)
        assert trace.passes(layer).tolist() == [
            *one[3:7].tolist(),
            one[11].tolist(),
            *two[3:7].tolist(),
            two[11].tolist(),
        ]
        wanted = [one[:3], one[7:11], two[:3], two[7:11]]
        assert trace.prefill.passes(layer).tolist() == np.concatenate(wanted).tolist()


def test_prompts_that_share_their_beginning_only_are_no_re_prefill() -> None:
    clean, other = plain(), plain(seed=6)
    rows = _pass(clean, 6, 0)
    rows += [
        (1, layer, [*ids[: 5 * K], *other.passes(layer)[:4].ravel().tolist()], UNKNOWN) for _, layer, ids, _ in rows[:3]
    ]
    rows += [(key + 2, *row) for key, *row in rows_of(clean)]
    assert checked(rows, k=K, n_experts=E)[1] == ()


def test_a_stated_k_that_leaves_a_shared_expert_out_is_no_prompt() -> None:
    clean = plain()
    rows = [(at, layer, [*ids, E, E + 1], UNKNOWN) for at, layer, ids, _ in rows_of(clean)]
    trace, found = checked(rows, k=K, n_experts=E)
    assert [(one.check, one.amount) for one in found] == [("shared-experts", "2 of 6 ids a pass, 36 records")]
    assert "experts 32 to 33 are in every pass" in found[0].what
    assert ids_of(trace) == ids_of(clean)


def test_an_expert_in_every_pass_that_is_not_the_highest_is_routed() -> None:
    rows = [
        (at, layer, [*[*(one for one in ids if one != 3)][:3], 3], UNKNOWN) for at, layer, ids, _ in rows_of(plain())
    ]
    assert checked(rows, n_experts=E)[1] == ()


def test_a_strided_view_wider_than_all_experts_is_told_by_its_turns() -> None:
    """Contiguous reading of 10 positions of 4 from rows of 32: the first row's 32 ids, then 8 of the second's."""
    rng = np.random.default_rng(0)
    wide = [(0, layer, [*rng.permutation(E), *rng.permutation(E)[:8]], PREFILL) for layer in range(3)]
    rows = wide + [(key, layer, ids, DECODE) for key, layer, ids, _ in rows_of(plain())]
    with pytest.raises(InputError, match=r"strided-view: .* 3 records of 40 ids"):
        checked(rows, k=K, n_experts=E)
    honest = [(0, layer, plain().passes(layer)[:10].ravel().tolist(), PREFILL) for layer in range(3)]
    assert checked(honest + rows[3:], k=K, n_experts=E)[1] == ()


def test_an_expert_twice_in_a_union_or_across_positions_is_told_apart() -> None:
    position = [1, 2, 3, 4, 4, 3, 2, 1]
    rows = [(0, layer, position, PREFILL) for layer in range(3)] + rows_of(plain(), DECODE)
    assert checked(rows, n_experts=E)[1] == ()
    broken = [(0, 0, [1, 2, 3, 4, 4, 3, 2, 2], PREFILL), *rows[1:]]
    with pytest.raises(InputError, match=r"repeated-expert: expert 2 twice in one pass, layer 0, line 1 first"):
        checked(broken, n_experts=E)
    trace, found = checked(broken, {"repeated-expert": "drop"}, n_experts=E)
    assert found[0].amount == "1 pass in 1 iteration"
    assert trace.prefill is None
    assert ids_of(trace) == ids_of(plain())


def test_a_tenth_of_iterations_without_a_layer_is_refused_unless_asked_for() -> None:
    lost = {(3, 1), (7, 1)}
    rows = [row for row in rows_of(plain()) if (row[0], row[1]) not in lost]
    with pytest.raises(
        InputError, match=r"missing-layers: .* layer 1, iteration 3 first, .* 2 of 12 iterations \(17 %\)"
    ):
        checked(rows, n_experts=E)
    trace, found = checked(rows, {"missing-layers": "drop"}, n_experts=E)
    assert [one.check for one in found] == ["missing-layers"]
    assert ids_of(trace) == without(plain(), 3, 7)


def test_a_layer_that_never_changes_and_one_of_another_models_ids_are_draft_layers() -> None:
    clean = plain(iterations=80)
    still = [(at, layer, (9, 8, 7, 30) if layer == 2 else ids, UNKNOWN) for at, layer, ids, _ in rows_of(clean)]
    trace, found = checked(still, {"draft-layer": "drop"}, n_experts=E)
    assert [one.check for one in found] == ["draft-layer"]
    assert "layer 2 chose the same experts in all its 80 passes" in found[0].what
    assert trace.layers == (0, 1)
    wide = plain(iterations=80, experts=128)
    small = plain(iterations=80, experts=60)
    rows = [
        (at, layer, small.passes(0)[at].tolist() if layer == 0 else ids, UNKNOWN) for at, layer, ids, _ in rows_of(wide)
    ]
    found = checked(rows, n_experts=128)[1]
    assert [(one.check, one.done) for one in found] == [("draft-layer", "kept")]
    assert (
        f"layer 0 chose {len(np.unique(small.passes(0)))} experts, none above 59, where every other layer"
        in found[0].what
    )


@pytest.mark.parametrize(("experts", "k", "layers"), [(64, 8, 16), (896, 16, 1), (256, 8, 2), (128, 8, 4)])
def test_uniform_ids_are_found_from_some_hundreds_of_passes(experts: int, k: int, layers: int) -> None:
    for seed in range(5):
        ids = np.argsort(np.random.default_rng(seed).random((layers * 300, experts)), axis=1)[:, :k]
        trace = make_trace(
            iteration=np.repeat(np.arange(300), layers),
            layer=np.tile(np.arange(layers), 300),
            kind=np.zeros(300 * layers, dtype=int),
            offsets=np.arange(300 * layers + 1) * k,
            experts=ids.ravel(),
            n_experts=experts,
            k=k,
            synthetic=False,
            source="drawn",
        )
        assert [one.check for one in checks.check_trace(trace, {})] == ["uniform-ids"]


# --- injected into random clean traces ---


@st.composite
def clean_traces(draw: st.DrawFn, *, speculative: bool = True) -> Trace:
    return synth_trace(
        "kimi-k3" if speculative else "qwen3-30b-a3b",
        layers=draw(st.integers(2, 4)),
        iterations=draw(st.integers(20, 40)),
        seed=draw(st.integers(0, 2**32)),
        experts=draw(st.sampled_from([24, 64])),
        k=draw(st.integers(3, 6)),
        order=draw(st.sampled_from(["id", "score"])),
    )


def injected(trace: Trace, before: Sequence[Row], **about: Any) -> tuple[Trace, tuple[TraceFinding, ...]]:
    """Check a typed trace behind other rows, through a format that is speculative and states no types."""
    begin = 1 + max([row[0] for row in before], default=0)
    rows = [*before, *((key + begin, layer, ids, phase) for key, layer, ids, phase in rows_of(trace))]
    return checked(rows, k=trace.k, n_experts=trace.n_experts, speculative=True, **about)


some = settings(max_examples=25, deadline=None)


@some
@given(trace=clean_traces())
def test_a_clean_random_trace_stays_as_it_is(trace: Trace) -> None:
    back, found = injected(trace, [])
    assert found == ()
    assert back.fingerprint == trace.fingerprint


@some
@given(trace=clean_traces(), positions=st.integers(64, 90), data=st.data())
def test_an_injected_profile_pass_is_taken_out(trace: Trace, positions: int, data: st.DataObject) -> None:
    ids = data.draw(st.permutations(range(trace.k)))
    back, found = injected(trace, [(at, layer, ids, UNKNOWN) for at in range(positions) for layer in trace.layers])
    assert [one.check for one in found] == ["profile-pass"]
    n = positions * len(trace.layers)
    assert found[0].amount.startswith(f"{n} records of {n + trace.n_records} ")
    assert back.fingerprint == trace.fingerprint


@some
@given(trace=clean_traces(), data=st.data())
def test_an_injected_warm_up_is_taken_out(trace: Trace, data: st.DataObject) -> None:
    everyone = data.draw(st.permutations(range(trace.n_experts)))
    back, found = injected(trace, [(0, layer, everyone, UNKNOWN) for layer in trace.layers])
    layers = len(trace.layers)
    assert [(one.check, one.amount) for one in found] == [
        ("warm-up", f"{layers} records of {layers + trace.n_records}")
    ]
    assert back.fingerprint == trace.fingerprint


@some
@given(trace=clean_traces(speculative=False), first=st.integers(3, 6), steps=st.integers(2, 10))
def test_injected_re_prefills_are_taken_out(trace: Trace, first: int, steps: int) -> None:
    rows = [row for at in range(steps + 1) for row in _pass(trace, first + at, at)]
    back, found = checked(rows, k=trace.k, n_experts=trace.n_experts)
    assert [one.check for one in found] == ["re-prefill"]
    positions = sum(range(first, first + steps + 1))
    said = f"{first + steps} true positions ({first} prompt + {steps} generated)"
    part = 100 * (positions - first - steps) / positions
    assert found[0].amount == f"{said}, {part:.0f} % of the passes' ids are repeats"
    assert ids_of(back) == without(trace, *range(first), *range(first + steps, trace.n_iterations))


@some
@given(trace=clean_traces(speculative=False), data=st.data())
def test_injected_duplicates_are_counted_and_the_first_is_kept(trace: Trace, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.tuples(st.integers(0, trace.n_records - 1), st.booleans()), min_size=1, max_size=9))
    rows = rows_of(trace)
    for at, identical in chosen:
        key, layer, ids, phase = rows[at]
        rows.append((key, layer, ids if identical else [*ids[1:], ids[0]], phase))
    back, found = checked(rows, k=trace.k, n_experts=trace.n_experts)
    same = sum(identical for _, identical in chosen)
    assert [one.check for one in found] == ["duplicate-keys"]
    assert f"{same} identical to the first and {len(chosen) - same} conflicting" in found[0].what
    assert found[0].amount == f"{len(chosen)} record{'s' * (len(chosen) > 1)} of {len(rows)}"
    assert back.fingerprint == trace.fingerprint


@some
@given(trace=clean_traces(), data=st.data())
def test_injected_doubled_iterations_are_taken_out(trace: Trace, data: st.DataObject) -> None:
    assume(trace.k * len(trace.layers) >= 16 and 2 * trace.k < trace.n_experts)
    kinds = trace.kind[trace.record_bounds()[:-1]]
    at = data.draw(st.sampled_from(np.flatnonzero(kinds == 0).tolist()))
    doubled = [row for row in rows_of(trace) if row[0] == at]
    sure = 2 * trace.k * len(trace.layers) >= 64
    rows = sorted([*rows_of(trace), *doubled], key=lambda row: row[0])
    back, found = checked(rows, k=trace.k, n_experts=trace.n_experts, speculative=True)
    assert [one.check for one in found] == ["doubled-iteration"] * sure
    assert (back.fingerprint == trace.fingerprint) == sure


@some
@given(trace=clean_traces(), n=st.integers(1, 2))
def test_injected_shared_experts_are_taken_out(trace: Trace, n: int) -> None:
    shared = list(range(trace.n_experts, trace.n_experts + n))
    rows: list[Row] = []
    for key, layer, ids, phase in rows_of(trace):
        passes = [ids[at : at + trace.k] for at in range(0, len(ids), trace.k)]
        rows.append((key, layer, [one for part in passes for one in (*part, *shared)], phase))
    back, found = checked(rows, k=trace.k + n, n_experts=trace.n_experts, speculative=True)
    assert [(one.check, one.amount) for one in found] == [
        ("shared-experts", f"{n} of {trace.k + n} ids a pass, {trace.n_records} records")
    ]
    assert back.fingerprint == trace.fingerprint


@some
@given(trace=clean_traces(), data=st.data())
def test_iterations_of_injected_bad_ids_are_left_out(trace: Trace, data: st.DataObject) -> None:
    records = data.draw(st.sets(st.integers(0, trace.n_records - 1), min_size=1, max_size=4))
    lost = {int(trace.iteration[at]) for at in records}
    rows, kind = rows_of(trace), data.draw(st.sampled_from(["out-of-range", "repeated-expert"]))
    for at in records:
        key, layer, ids, phase = rows[at]
        rows[at] = (key, layer, [*ids[:-1], trace.n_experts if kind == "out-of-range" else ids[-2]], phase)
    places = {"k": trace.k, "n_experts": trace.n_experts, "speculative": True}
    with pytest.raises(InputError, match=f"{kind}: .*layer {trace.layer[min(records)]}, line {min(records) + 1} first"):
        checked(rows, **places)
    back, found = checked(rows, {kind: "drop"}, **places)
    assert [one.check for one in found] == [kind]
    assert found[0].amount.startswith(f"{len(records)} ")
    assert f"in {len(lost)} iteration" in found[0].amount
    assert ids_of(back) == without(trace, *lost)


@some
@given(trace=clean_traces(speculative=False), data=st.data())
def test_iterations_with_an_injected_gap_are_left_out(trace: Trace, data: st.DataObject) -> None:
    lost = data.draw(
        st.sets(st.integers(0, trace.n_iterations - 2), min_size=1, max_size=(trace.n_iterations - 1) // 10)
    )
    gaps = {(at, data.draw(st.sampled_from(trace.layers))) for at in lost}
    rows = [row for row in rows_of(trace) if (row[0], row[1]) not in gaps]
    back, found = checked(rows, k=trace.k, n_experts=trace.n_experts)
    assert [one.check for one in found] == ["missing-layers"]
    assert found[0].amount.startswith(f"{len(lost)} of {trace.n_iterations} iterations")
    assert ids_of(back) == without(trace, *lost)


# --- no false alarm ---


def _presets() -> Iterator[Any]:
    for preset in PRESETS:
        for domain in PLAIN_DOMAINS:
            yield pytest.param(preset, domain, id=f"{preset}-{domain}")


@pytest.mark.parametrize(("preset", "domain"), [*_presets()])
def test_synthetic_traces_of_all_models_and_domains_are_clean(preset: str, domain: str) -> None:
    for layers, iterations, order in ((1, 300, "id"), (2, 120, "score"), (5, 40, "id")):
        trace = synth_trace(preset, layers=layers, iterations=iterations, domain=domain, seed=layers, order=order)
        back, found = injected(trace, [])
        assert found == ()
        assert back.fingerprint == trace.fingerprint
        assert checks.check_trace(trace, {}) == ()
        assert int(np.count_nonzero(back.kind == SPEC_ACCEPT)) == int(np.count_nonzero(trace.kind == SPEC_ACCEPT))
        assert KINDS[int(back.kind[0])] == KINDS[int(trace.kind[0])]


@pytest.mark.parametrize(
    "name",
    [
        "moevm-lab.jsonl",
        "speculative.jsonl",
        "paper.jsonl",
        "patch-jsonl.jsonl",
        "t-layer.jsonl",
        "token-jsonl.jsonl",
        "vllm-log.jsonl",
        "pairs.i32",
    ],
)
def test_clean_fixtures_are_clean(name: str) -> None:
    assert load_trace(FIXTURES / name).findings == ()


@needs_recorded
def test_recorded_olmoe_traces_are_clean_alone_and_together() -> None:
    paths = sorted((RECORDED / "olmoe-moevm-lab").glob("*.jsonl"))
    assert len(paths) == 5
    assert [one.findings for one in load_traces(paths)] == [()] * 5


@needs_recorded
def test_the_recorded_qwen_trace_has_its_last_layer_pruned_and_gemma_nothing() -> None:
    qwen = load_trace(RECORDED / "bigmoe-on-edge" / "qwen.route.csv")
    assert [(one.check, one.done) for one in qwen.findings] == [("pruned-prefill", "kept")]
    assert qwen.findings[0].what == "layer 47, the last, has 1 prompt position, the other layers 28"
    assert load_trace(RECORDED / "bigmoe-on-edge" / "gemma.route.csv").findings == ()


@needs_recorded
def test_the_recorded_kimi_trace_is_eight_passes_of_twelve_positions() -> None:
    trace = load_trace(RECORDED / "kimi-k3" / "expert_trace.bin")
    assert [one.check for one in trace.findings] == ["re-prefill"]
    assert trace.findings[0].what.startswith("8 passes over the prompt, ")
    assert trace.findings[0].amount == (
        "12 true positions (5 prompt + 7 generated), 82 % of the passes' ids are repeats"
    )
    assert trace.prefill is not None
    assert (len(trace.layers), trace.k, trace.n_iterations, trace.prefill.n_iterations) == (92, 16, 7, 1)
    pairs = np.fromfile(RECORDED / "kimi-k3" / "expert_trace.bin", "<i4").reshape(-1, 2)[-92 * 192 :]
    shares = []
    for at, layer in enumerate(trace.layers):
        rows = np.concatenate([trace.prefill.passes(layer), trace.passes(layer)])
        assert rows.ravel().tolist() == pairs[at * 192 : (at + 1) * 192, 1].tolist()
        shares += [len(set(one) & set(other)) / 16 for one, other in pairwise(rows.tolist())]
    assert round(float(np.mean(shares)), 3) == 0.343
