"""LFU, with counts from admission or kept for good: against a plain one, libcachesim and published figures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_calls import Found, cut, run

from pytest_moetier import _sim
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.records import Trace

RECORDED = Path(os.environ.get("MOETIER_TRACES", "MOETIER_TRACES-is-not-set"))
OBJECTS = 8

recorded = pytest.mark.skipif(not RECORDED.is_dir(), reason="MOETIER_TRACES does not name a folder of recorded traces")


def lfu(key: Any, budgets: Any, **options: Any) -> Found:
    return run(_sim.lfu_hits, key, budgets, **options)


def plain(events: list[list[int]], size: list[int], capacity: int, *, perfect: bool) -> list[bool]:
    """LFU event by event: of what an event did not touch, the least used goes, of several the least recently used."""
    uses: dict[int, int] = {}
    recency: dict[int, int] = {}
    clock = count()
    held: set[int] = set()
    out: list[bool] = []
    for event in events:
        out += [one in held for one in event]
        for one in event:
            recency[one] = next(clock)
            uses[one] = uses.get(one, 0) + 1 if perfect or one in held else 1
        held |= {one for one in event if size[one] <= capacity}
        while sum(size[one] for one in held) > capacity and held - set(event):
            held.remove(min(held - set(event), key=lambda one: (uses[one], recency[one])))
    return out


@dataclass(frozen=True)
class Case:
    key: list[int]
    events: list[int] | None
    segments: list[int]
    score_from: list[int]
    size: list[int] | None
    budgets: list[int]
    perfect: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any number of segments of events of distinct objects (empty ones, too), or of single accesses."""
    least, most = draw(st.sampled_from([(1, 1), (1, 3), (0, 6)]))
    event = st.lists(st.integers(0, OBJECTS - 1), min_size=least, max_size=most, unique=True)
    parts = draw(st.lists(st.lists(event, max_size=60) | st.lists(event, min_size=40, max_size=60), max_size=3))
    events, segments, key = [0], [0], list[int]()
    for part in parts:
        for ids in part:
            key += ids
            events.append(len(key))
        segments.append(len(key))
    single = all(b - a == 1 for a, b in pairwise(events))
    size = draw(st.none() | st.lists(st.integers(0, 5), min_size=OBJECTS, max_size=OBJECTS))
    top = OBJECTS + 1 if size is None else sum(size) + 1
    return Case(
        key,
        None if single and draw(st.booleans()) else events,
        segments,
        [draw(st.integers(a, b)) for a, b in pairwise(segments)],
        size,
        draw(st.lists(st.integers(0, top), max_size=4)),
        draw(st.booleans()),
    )


@settings(deadline=None, max_examples=400)
@given(cases())
def test_hits_equal_a_plain_lfu(case: Case) -> None:
    inputs = {name: getattr(case, name) for name in ("segments", "events", "size", "score_from", "perfect")}
    found = lfu(case.key, case.budgets, **inputs)
    size = case.size or [1] * OBJECTS
    borders = list(range(len(case.key) + 1)) if case.events is None else case.events
    for at, capacity in enumerate(case.budgets):
        hit: list[bool] = []
        for first, end in pairwise(case.segments):
            part = cut(case.key, [one for one in borders if first <= one <= end])
            hit += plain(part, size, capacity, perfect=case.perfect)
        assert found.at[at].tolist() == hit
        scored = [
            size[case.key[i]]
            for start, (_, end) in zip(case.score_from, pairwise(case.segments), strict=True)
            for i in range(start, end)
            if hit[i]
        ]
        assert found.hits[at] == len(scored)
        assert found.bytes[at] == sum(scored)


def popular(seed: int, n: int, objects: int) -> list[int]:
    drawn: list[int] = (np.random.default_rng(seed).zipf(1.2, n) % objects).tolist()
    return drawn


@pytest.mark.parametrize("perfect", [False, True])
def test_high_counts_agree_with_a_plain_lfu(perfect: bool) -> None:  # noqa: FBT001
    key = popular(1, 6000, 60)  # the first object is used some 1,500 times
    for capacity in (2, 20, 50):
        singles = [[one] for one in key]
        expected = plain(singles, [1] * 60, capacity, perfect=perfect)
        assert lfu(key, [capacity], perfect=perfect).at[0].tolist() == expected
        by_event = lfu(key, [capacity], events=range(len(key) + 1), perfect=perfect)
        assert by_event.at[0].tolist() == expected


def test_counts_start_anew_after_an_eviction_unless_they_are_perfect() -> None:
    # 2 pushes out 0, which then pushes out 2: with 3 uses in all it outlives 1, used longer ago; with 1 it does not.
    key = [0, 0, 1, 1, 1, 2, 0, 3, 0, 1]
    assert lfu(key, [2]).at[0].tolist() == [0, 1, 0, 1, 1, 0, 0, 0, 0, 1]
    assert lfu(key, [2], perfect=True).at[0].tolist() == [0, 1, 0, 1, 1, 0, 0, 0, 1, 0]


def test_every_access_hits_where_libcachesim_lfu_hits() -> None:
    libcachesim = pytest.importorskip("libcachesim", reason="libcachesim is the peer here: pip install libcachesim")
    key = popular(3, 6000, 300)
    budgets = [1, 3, 20, 100, 299]
    found = lfu(key, budgets)
    for at, capacity in enumerate(budgets):
        peer = libcachesim.LFU(cache_size=capacity)
        hit = []
        for i, one in enumerate(key):
            request = libcachesim.Request()
            request.obj_id, request.obj_size, request.clock_time = one + 1, 1, i
            hit.append(peer.get(request))
        assert hit == found.at[at].tolist()


@pytest.mark.parametrize("perfect", [False, True])
def test_uniform_ids_hit_in_proportion_to_the_capacity(perfect: bool) -> None:  # noqa: FBT001
    key = np.random.default_rng(4).integers(0, 100, 200_000)
    found = lfu(key, [0, 10, 25, 50, 75, 100], score_from=[20_000], perfect=perfect)
    assert found.hits[0] == 0
    assert found.hits[-1] == 180_000
    assert np.array(found.hits) / 180_000 == pytest.approx([0, 0.10, 0.25, 0.50, 0.75, 1], abs=0.01)


def test_an_object_larger_than_the_capacity_is_never_admitted_and_evicts_nothing() -> None:
    found = lfu([0, 1, 2, 2, 0, 1], [4, 5], size=[2, 2, 5])
    assert found.at.tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 0, 0]]
    assert found.bytes == [4, 5]


def test_an_event_larger_than_the_capacity_stays_whole_until_the_next() -> None:
    found = lfu([0, 1, 2, 0, 1, 2, 3, 0, 3], [1, 3], events=[0, 3, 6, 7, 9])
    assert found.at.tolist() == [[0, 0, 0, 1, 1, 1, 0, 0, 1], [0, 0, 0, 1, 1, 1, 0, 0, 1]]


def test_objects_of_one_size_are_counted_as_whole_ones_that_fit() -> None:
    key = popular(5, 900, 30)
    whole, sized = lfu(key, [0, 3, 7, 30]), lfu(key, [9, 39, 79, 10**12], size=[10] * 30)
    assert (whole.at == sized.at).all()
    assert sized.bytes == [10 * hits for hits in whole.hits]
    assert whole.bytes == whole.hits


def test_a_segment_starts_empty_with_counts_of_its_own() -> None:
    alone = lfu([0, 1, 2, 1], [2], perfect=True)
    after = lfu([0, 0, 0, 0, 1, 2, 1], [2], segments=[0, 3, 7], score_from=[3, 3], perfect=True)
    assert after.at[0, 3:].tolist() == alone.at[0].tolist()
    assert after.hits == alone.hits


def prompt_then_decode(trace: Trace) -> dict[str, Any]:
    """Return one event of distinct experts per layer and pass, the prompt's first, and sizes; the decode is scored."""
    assert trace.prefill is not None
    key, events, score_from = list[int](), [0], [0]
    for part in (trace.prefill, trace):
        score_from = [len(key)]
        for record in part.records():
            first = trace.layers.index(record.layer) * trace.n_experts
            key += [first + expert for expert in dict.fromkeys(record.experts)]
            events.append(len(key))
    size = np.repeat(trace.expert_bytes, trace.n_experts)
    return {"key": key, "events": events, "size": size, "score_from": score_from}


@recorded
@pytest.mark.parametrize(("model", "rates"), [("qwen", [71.3, 80.8]), ("gemma", [75.5, 83.4])])
def test_perfect_lfu_of_qwen_and_gemma_event_by_event_in_bytes_is_as_published(model: str, rates: list[float]) -> None:
    inputs = prompt_then_decode(load_trace(RECORDED / "bigmoe-on-edge" / f"{model}.route.csv"))
    found = lfu(budgets=[3000 << 20, 4000 << 20], perfect=True, **inputs)
    lookups = len(inputs["key"]) - inputs["score_from"][0]
    assert [round(100 * hits / lookups, 1) for hits in found.hits] == rates
