"""Merged streams: the union of every iteration, against plain sets; both denominators, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_moetier.errors import InputError
from pytest_moetier.trace import batch
from pytest_moetier.trace.batch import merge
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.records import NORMAL, SPEC_ACCEPT, SPEC_FALLBACK, Trace, make_trace
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace

FIXTURES = Path(__file__).parents[2] / "fixtures" / "traces"

STREAMS = st.lists(
    st.builds(
        synth_trace,
        layers=st.just(3),
        iterations=st.integers(1, 30),
        domain=st.sampled_from(["prose", "code", "math", "chat"]),
        seed=st.integers(0, 2**64 - 1),
        experts=st.just(12),
        k=st.just(3),
        order=st.sampled_from(["id", "score"]),
    ),
    min_size=1,
    max_size=5,
)


def by_hand(kinds: list[int], ids: list[int], layers: tuple[int, ...] = (1, 4), **changed: object) -> Trace:
    """Return a trace of two layers, k = 2, from the kind of each iteration and its flat ids."""
    rows = [(at, layer, kind) for at, kind in enumerate(kinds) for layer in layers * (1 + (kind == SPEC_FALLBACK))]
    widths = [4 if kind == SPEC_ACCEPT else 2 for _, _, kind in rows]
    trace = make_trace(
        iteration=[at for at, _, _ in rows],
        layer=[layer for _, layer, _ in rows],
        kind=[kind for _, _, kind in rows],
        offsets=np.concatenate([[0], np.cumsum(widths)]),
        experts=ids,
        n_experts=9,
        k=2,
        synthetic=False,
        source="by hand",
    )
    return replace(trace, **changed)


def plain(streams: list[Trace]) -> tuple[list[dict[int, list[int]]], int, int]:
    """Return per iteration and layer the distinct experts as first asked for; the reads; the accepted tokens."""
    count = min(stream.n_iterations for stream in streams)
    unions: list[dict[int, list[int]]] = [{layer: [] for layer in streams[0].layers} for _ in range(count)]
    reads = accepted = 0
    for stream in streams:
        double = set()
        for record in stream.records():
            if record.iteration < count:
                reads += len(record.experts)
                double |= {record.iteration} if record.kind == "spec_accept" else set()
                union = unions[record.iteration][record.layer]
                union += [one for one in dict.fromkeys(record.experts) if one not in union]
        accepted += count + len(double)
    return unions, reads, accepted


@settings(max_examples=100, deadline=None)
@given(streams=STREAMS, step=st.sampled_from([1, 100, 1 << 20]))
def test_a_batch_reads_what_plain_sets_say(streams: list[Trace], step: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "_BLOCK_IDS", step)  # the blocks it works in may not show in what comes out
        merged = merge(streams)
    unions, reads, accepted = plain(streams)
    records = list(merged.trace.records())
    assert [(one.iteration, one.layer) for one in records] == [
        (at, layer) for at in range(len(unions)) for layer in range(3)
    ]
    assert [list(one.experts) for one in records] == [union[layer] for union in unions for layer in range(3)]
    assert {one.kind for one in records} == {"union"}
    sizes = [sum(map(len, union.values())) for union in unions]
    assert merged.union.tolist() == sizes
    assert (merged.reads, merged.union_reads, merged.trace.accepted_tokens) == (reads, sum(sizes), accepted)
    assert merged.deduplication == reads / sum(sizes) >= 1
    assert merged.left_out == tuple(one.n_iterations - len(unions) for one in streams)
    assert (merged.n_iterations, merged.streams) == (len(unions), len(streams))


def test_both_tries_of_a_fallback_and_both_passes_of_an_accept_are_kept() -> None:
    one = by_hand([SPEC_FALLBACK, NORMAL], [1, 2, 3, 4, 2, 5, 4, 6, 7, 8, 7, 8])
    other = by_hand([SPEC_ACCEPT, NORMAL], [5, 1, 0, 5, 4, 3, 3, 8, 1, 2, 1, 2])
    merged = merge([one, other])
    # layer 1: 1 2, then 2 5, then 5 1 and 0 5; layer 4: 3 4, 4 6, 4 3, 3 8
    assert [list(record.experts) for record in merged.trace.records()] == [
        [1, 2, 5, 0],
        [3, 4, 6, 8],
        [7, 8, 1, 2],
        [7, 8, 1, 2],
    ]
    assert (merged.reads, merged.union_reads, merged.trace.accepted_tokens) == (8 + 8 + 4 + 4, 16, 5)
    assert merged.union.tolist() == [8, 8]
    assert merged.deduplication == 1.5


def test_unequal_streams_stop_at_the_shortest_and_say_what_was_left_out() -> None:
    long = by_hand([NORMAL] * 3, [1, 2] * 6, source="the long one")
    short = by_hand([NORMAL], [1, 3, 4, 5])
    merged = merge([long, short])
    assert (merged.n_iterations, merged.left_out, merged.trace.accepted_tokens) == (1, (2, 0), 2)
    assert merged.trace.warnings == (
        "the long one: its last 2 iterations were left out, after the shortest stream's end",
    )


def test_one_stream_is_a_batch_of_its_own_distinct_experts() -> None:
    stream = synth_trace(layers=2, iterations=100)
    merged = merge([stream])
    assert (merged.reads, merged.left_out) == (stream.n_accesses, (0,))
    assert merged.trace.accepted_tokens == stream.accepted_tokens
    assert merged.union_reads < stream.n_accesses, "speculative passes of one iteration share experts"
    normal = by_hand([NORMAL] * 2, [1, 2] * 4)
    assert merge([normal]).deduplication == 1
    assert merge([normal] * 3).deduplication == 3


def test_sizes_are_carried_and_one_synthetic_stream_makes_a_synthetic_batch() -> None:
    one = by_hand([NORMAL], [1, 2, 3, 4])
    other = replace(one, expert_bytes=(10, 20), synthetic=True, source="another", warnings=("a note",))
    merged = merge([one, other]).trace
    assert merged.expert_bytes == (10, 20)
    assert merged.synthetic
    assert merged.source == "merged: by hand + another"
    assert merged.warnings == ("another: a note",)
    assert not merge([one, one]).trace.synthetic


def test_a_prompt_is_no_part_of_a_batch_and_this_is_said() -> None:
    trace = load_trace(FIXTURES / "moevm-lab.jsonl", n_experts=16)
    merged = merge([trace, trace])
    assert merged.trace.prefill is None
    assert merged.trace.warnings.count(f"{trace.source}: its prefill was left out") == 2


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (by_hand([NORMAL], [1, 2, 3, 4], (1, 5)), r"by hand has 2 layers \(1 to 4\), 9 .*has 2 layers \(1 to 5\), 9"),
        (by_hand([NORMAL], [1, 2, 3, 4], n_experts=10), "different models: .* 9 experts, k 2, .* 10 experts, k 2"),
        (by_hand([NORMAL], [1, 2, 3, 4], expert_bytes=(7, 8)), "differ in size"),
        (merge([by_hand([NORMAL], [1, 2, 3, 4])]).trace, "merged: by hand holds several positions in one iteration"),
    ],
)
def test_streams_that_do_not_go_together_are_refused(other: Trace, message: str) -> None:
    with pytest.raises(InputError, match=message):
        merge([by_hand([NORMAL], [1, 2, 3, 4], expert_bytes=(7, 9)), other])


def test_no_stream_is_refused() -> None:
    with pytest.raises(InputError, match="no stream to merge"):
        merge([])


def test_a_written_batch_is_read_back_with_its_accepted_tokens(tmp_path: Path) -> None:
    merged = merge([synth_trace(layers=2, iterations=20, domain=name) for name in ("prose", "code")]).trace
    write_trace(merged, tmp_path / "batch.jsonl")
    back = load_trace(tmp_path / "batch.jsonl")
    assert (back.fingerprint, back.accepted_tokens, back.synthetic) == (
        merged.fingerprint,
        merged.accepted_tokens,
        True,
    )
    assert back.kind_counts()["union"] == 20


def test_four_streams_of_kimi_k3_come_near_the_published_batch() -> None:
    # Published: 1078 accepted tokens in 242 iterations, 108 GB a step, deduplication 1.08.
    lengths = {"prose": 285, "code": 242, "math": 290, "chat": 263}
    merged = merge([synth_trace(layers=8, iterations=count, domain=name) for name, count in lengths.items()])
    assert (merged.n_iterations, merged.left_out) == (242, (43, 0, 48, 21))
    assert merged.trace.accepted_tokens == 1078
    gb_a_step = float(merged.union.mean()) * 92 / 8 * 17_547_264 / 1e9
    assert round(gb_a_step, 1) == 106.2
    assert round(merged.deduplication, 2) == 1.12
