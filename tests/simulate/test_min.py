"""Belady's MIN of a demand-filled cache: against looking ahead, every strategy, libcachesim and published figures."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_calls import Found, cut, run, u64

from pytest_moetier import _sim
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.records import Trace

RECORDED = Path(os.environ.get("MOETIER_TRACES", "MOETIER_TRACES-is-not-set"))
OBJECTS = 8

recorded = pytest.mark.skipif(not RECORDED.is_dir(), reason="MOETIER_TRACES does not name a folder of recorded traces")


def belady(key: Any, budgets: Any, **options: Any) -> Found:
    return run(_sim.belady_hits, key, budgets, **options)


def look_ahead(events: list[list[int]], size: list[int], capacity: int) -> list[bool]:
    """MIN by looking ahead, event by event: of what an event did not touch, the farthest goes until the rest fits."""
    rest = [one for event in events for one in event]
    held: set[int] = set()
    out: list[bool] = []
    for event in events:
        rest = rest[len(event) :]
        out += [one in held for one in event]
        held |= {one for one in event if size[one] <= capacity}
        while sum(size[one] for one in held) > capacity and held - set(event):
            ahead = {one: rest.index(one) if one in rest else len(rest) + OBJECTS - one for one in held - set(event)}
            held.remove(max(ahead, key=ahead.__getitem__))
    return out


@dataclass(frozen=True)
class Case:
    key: list[int]
    events: list[int] | None
    segments: list[int]
    score_from: list[int]
    size: list[int] | None
    budgets: list[int]

    @property
    def inputs(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("segments", "events", "size", "score_from")}

    @property
    def bytes(self) -> list[int]:
        """The size of each object."""
        return self.size or [1] * OBJECTS

    def parts(self) -> list[list[list[int]]]:
        """Return the events of each segment."""
        borders = list(range(len(self.key) + 1)) if self.events is None else self.events
        return [
            cut(self.key, [one for one in borders if first <= one <= end]) for first, end in pairwise(self.segments)
        ]


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
        draw(st.lists(st.integers(0, top), max_size=6)),
    )


def check(case: Case, found: Found, expected: Any) -> None:
    """Compare every access and every sum with a policy that is given the events, the sizes and the capacity."""
    for at, capacity in enumerate(case.budgets):
        hit = [one for part in case.parts() for one in expected(part, case.bytes, capacity)]
        assert found.at[at].tolist() == hit
        scored = [
            case.bytes[case.key[i]]
            for start, (_, end) in zip(case.score_from, pairwise(case.segments), strict=True)
            for i in range(start, end)
            if hit[i]
        ]
        assert found.hits[at] == len(scored)
        assert found.bytes[at] == sum(scored)


@settings(deadline=None, max_examples=400)
@given(cases())
def test_hits_equal_looking_ahead(case: Case) -> None:
    check(case, belady(case.key, case.budgets, **case.inputs), look_ahead)


def fewest_misses(events: list[list[int]], capacity: int) -> int:
    """Try every eviction: after an event, any content of what is held that fits and keeps what the event touched."""
    best = {frozenset[int](): 0}
    for event in events:
        after: dict[frozenset[int], int] = {}
        for held, missed in best.items():
            others = held - set(event)
            room = max(capacity - len(event), 0)
            cost = missed + len(set(event) - held)
            for kept in combinations(others, min(room, len(others))):
                content = frozenset(kept) | set(event)
                after[content] = min(cost, after.get(content, cost))
        best = after
    return min(best.values())


@settings(deadline=None, max_examples=150)
@given(
    st.integers(1, 3).flatmap(
        lambda most: st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=most, unique=True), max_size=12)
    ),
    st.integers(1, 5),
)
def test_no_choice_of_what_to_evict_hits_more_often(events: list[list[int]], capacity: int) -> None:
    key = [one for event in events for one in event]
    borders = np.cumsum([0, *map(len, events)])
    assert len(key) - belady(key, [capacity], events=borders).hits[0] == fewest_misses(events, capacity)


def events_of(rng: np.random.Generator, n: int, objects: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n events of distinct, unevenly popular objects, and their borders."""
    popular = (np.arange(objects) + 3.0) ** -0.8
    drawn = np.argsort(rng.exponential(size=(n, objects)) / popular, axis=1)[:, :width]
    return drawn.reshape(-1).astype(np.uint32), np.arange(n + 1) * width


def test_all_budgets_at_once_are_what_each_gives_alone() -> None:
    key, events = events_of(np.random.default_rng(1), 600, 90, 6)
    budgets = [*range(91), 5, 0, 1 << 40]
    np.random.default_rng(2).shuffle(budgets)
    for options in ({}, {"events": events}):
        together = belady(key, budgets, **options)
        for at, budget in enumerate(budgets):
            alone = belady(key, [budget], **options)
            assert alone.hits[0] == together.hits[at]
            assert (alone.at[0] == together.at[at]).all()


@pytest.mark.parametrize("by_event", [False, True])
def test_long_sequences_agree_with_the_simulation_of_several_sizes(by_event: bool) -> None:  # noqa: FBT001
    key, events = events_of(np.random.default_rng(3), 4000, 3000, 16)
    budgets = [20, 300, 1000, 2000, 2999]
    options = {"events": events} if by_event else {}
    found = belady(key, budgets, **options)
    # One object of another size, which is never used, is enough to be of several sizes.
    assert (found.at == belady(key, budgets, size=[1] * 3000 + [2], **options).at).all()
    assert 0 < found.hits[0] < found.hits[-1] < len(key)


def lru(events: list[list[int]], size: list[int], capacity: int) -> list[bool]:
    cache: OrderedDict[int, None] = OrderedDict()
    out: list[bool] = []
    for event in events:
        out += [one in cache for one in event]
        for one in event:
            cache[one] = None
            cache.move_to_end(one)
        while sum(size[one] for one in cache) > capacity and len(cache) > len(event):
            cache.popitem(last=False)
    return out


@pytest.mark.parametrize("width", [1, 5])
def test_hits_only_grow_with_the_capacity_and_no_policy_has_more(width: int) -> None:
    key, events = events_of(np.random.default_rng(4), 2000 // width, 40, width)
    budgets = list(range(1, 42))
    found = belady(key, budgets, events=events)
    assert (found.at[1:] >= found.at[:-1]).all()
    assert found.hits[-1] == len(key) - len(np.unique(key))
    others = [run(_sim.lfu_hits, key, budgets, events=events, perfect=perfect).hits for perfect in (False, True)]
    parts = cut(key.tolist(), events.tolist())
    others.append([sum(lru(parts, [1] * 40, capacity)) for capacity in budgets])
    for other in others:
        assert all(mine >= its for mine, its in zip(found.hits, other, strict=True))
        assert sum(found.hits) > sum(other)


def test_a_cyclic_scan_keeps_all_but_one_of_what_fits() -> None:
    # What was just read stays until the next access; beside it, capacity - 1 of the other 9 are kept for the next time.
    found = belady(list(range(10)) * 91, [1, 2, 5, 9, 10])
    assert found.hits == [0, 90 * 10 * 1 // 9, 90 * 10 * 4 // 9, 90 * 10 * 8 // 9, 90 * 10]


def test_an_object_larger_than_the_capacity_is_never_admitted_and_evicts_nothing() -> None:
    found = belady([0, 1, 2, 2, 0, 1], [4, 5], size=[2, 2, 5])
    assert found.at.tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 0, 0]]
    assert found.bytes == [4, 5]
    assert belady([0, 0, 0], [0]).hits == [0]


def test_an_event_larger_than_the_capacity_stays_whole_until_the_next() -> None:
    found = belady([0, 1, 2, 0, 1, 2, 3, 0, 3], [1, 2, 3, 4], events=[0, 3, 6, 7, 9])
    assert found.at.tolist() == [
        [0, 0, 0, 1, 1, 1, 0, 0, 1],
        [0, 0, 0, 1, 1, 1, 0, 1, 1],
        [0, 0, 0, 1, 1, 1, 0, 1, 1],
        [0, 0, 0, 1, 1, 1, 0, 1, 1],
    ]


def test_objects_of_one_size_are_counted_as_whole_ones_that_fit() -> None:
    key, _ = events_of(np.random.default_rng(5), 900, 30, 1)
    whole, sized = belady(key, [0, 3, 7, 30]), belady(key, [9, 47, 79, 10**12], size=[10] * 30)
    assert (whole.at[1] == belady(key, [39], size=[10] * 30).at[0]).all()
    assert sized.hits == [0, belady(key, [4]).hits[0], whole.hits[2], whole.hits[3]]
    assert sized.bytes == [10 * hits for hits in sized.hits]
    assert whole.bytes == whole.hits


def test_segments_are_caches_of_their_own_scored_from_where_they_say() -> None:
    found = belady([5, 5, 5, 5, 6, 5, 6], [2], segments=[0, 3, 3, 7], score_from=[2, 3, 5])
    assert found.at.tolist() == [[0, 1, 1, 0, 0, 1, 1]]
    assert found.hits == [1 + 0 + 2]


def libcachesim_hits(name: str, key: list[int], capacity: int) -> list[bool]:
    """Replay through libcachesim; what is never used again has a next use all the same, or it would not be admitted."""
    libcachesim = pytest.importorskip("libcachesim", reason="libcachesim is the peer here: pip install libcachesim")
    following: dict[int, int] = {}
    next_use = [0] * len(key)
    for i in range(len(key) - 1, -1, -1):
        next_use[i] = following.get(key[i], 2**62)
        following[key[i]] = i
    peer = getattr(libcachesim, name)(cache_size=capacity)
    out = []
    for i, one in enumerate(key):
        request = libcachesim.Request()
        request.obj_id, request.obj_size, request.clock_time = one + 1, 1, i
        request.next_access_vtime = next_use[i]
        out.append(peer.get(request))
    return out


def test_every_access_hits_where_libcachesim_belady_hits() -> None:
    key, _ = events_of(np.random.default_rng(6), 6000, 200, 1)
    budgets = [3, 10, 40, 120, 199]
    found = belady(key, budgets)
    for at, capacity in enumerate(budgets):
        peer = libcachesim_hits("Belady", key.tolist(), capacity)
        assert sum(peer) == found.hits[at]


@recorded
def test_kimi_raw_file_cold_and_global_is_as_published() -> None:
    pairs = np.fromfile(RECORDED / "kimi-k3" / "expert_trace.bin", "<i4").reshape(-1, 2)
    found = belady((pairs[:, 0] - 1) * 896 + pairs[:, 1], [455, 911, 1823, 3647, 7294, 10941])
    rates = [round(100 * hits / len(pairs), 2) for hits in found.hits]
    assert rates == [39.42, 42.61, 48.99, 61.74, 84.59, 90.00]


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
@pytest.mark.parametrize(("model", "rates"), [("qwen", [45.3, 87.8, 92.7]), ("gemma", [48.2, 88.6, 92.9])])
def test_qwen_and_gemma_event_by_event_in_bytes_are_as_published(model: str, rates: list[float]) -> None:
    inputs = prompt_then_decode(load_trace(RECORDED / "bigmoe-on-edge" / f"{model}.route.csv"))
    found = belady(budgets=[mib << 20 for mib in (500, 3000, 4000)], **inputs)
    lookups = len(inputs["key"]) - inputs["score_from"][0]
    assert [round(100 * hits / lookups, 1) for hits in found.hits] == rates


ARGUMENTS: dict[str, Any] = {
    "key": np.array([0, 1, 0], np.uint32),
    "segments": u64([0, 3]),
    "events": u64([0, 2, 3]),
    "size": u64([10, 20]),
    "budgets": u64([10, 30]),
    "score_from": u64([0]),
    "hits": None,
    "stop": np.zeros(1, np.uint8),
}


def read_only() -> np.ndarray:
    out = np.empty(6, np.uint8)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize("function", [_sim.belady_hits, _sim.lfu_hits])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": np.zeros(3, np.int32)}, "key has items of format 'i', 4 bytes each; expected native uint32"),
        ({"key": np.arange(6, dtype=np.uint32)[::2]}, r"key is not contiguous \(stride 8 bytes\)"),
        ({"key": np.array([0, 2, 0], np.uint32)}, r"key\[1\] is 2; expected an object below the number of sizes, 2"),
        ({"events": u64([0, 3])}, r"key\[2\] names object 0 a second time in its event"),
        ({"events": u64([0, 2])}, r"events\[1\] is 2; expected the number of accesses, 3"),
        ({"events": u64([0, 2, 1, 3])}, r"events\[2\] is 1; expected at least the border before it, 2"),
        ({"events": u64([])}, "events has 0 items; expected 1, or more"),
        ({"events": u64([0, 2, 3]), "segments": u64([0, 1, 3])}, r"score_from has 1 items; expected 2"),
        (
            {"segments": u64([0, 1, 3]), "score_from": u64([0, 1])},
            r"segments\[1\] is 1; expected the border of an event",
        ),
        ({"segments": u64([1, 3])}, r"segments\[0\] is 1; expected the first access, 0"),
        ({"segments": u64([0, 4])}, r"segments\[1\] is 4; expected the number of accesses, 3"),
        ({"segments": u64([0, 2, 3]), "score_from": u64([0, 1])}, r"score_from\[1\] is 1; .* at least 2"),
        ({"score_from": u64([4])}, r"score_from\[0\] is 4; expected an access of its segment, at most 3"),
        ({"size": u64([2**62, 2**62])}, r"add up to 2\^63 bytes or more"),
        (
            {"key": np.array([2**32 - 1] * 3, np.uint32), "size": None},
            "segment 0 has 3 accesses, and there are 4294967296 objects",
        ),
        ({"budgets": np.array([1.5])}, "budgets has items of format 'd'"),
        ({"hits": np.empty(5, np.uint8)}, "hits has 5 items; expected 3 for each of 2 budgets"),
        ({"hits": read_only()}, "hits is read-only"),
        ({"hits": np.empty(6, bool)}, r"hits has items of format '\?', 1 bytes each; expected native uint8"),
        ({"stop": np.zeros(2, np.uint8)}, "stop has 2 items; expected 1"),
    ],
)
def test_a_wrong_buffer_is_refused(function: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(**ARGUMENTS | arguments)


@pytest.mark.parametrize("function", [_sim.belady_hits, _sim.lfu_hits])
def test_an_output_over_an_input_is_refused_and_its_buffers_are_released(function: Any) -> None:
    memory = bytearray(16)
    budgets = memoryview(memory).cast("Q")
    with pytest.raises(ValueError, match="hits shares memory with budgets; expected its own"):
        function(**ARGUMENTS | {"budgets": budgets, "hits": memoryview(memory)[:6]})
    budgets.release()
    memory.append(0)  # BufferError while a view is held


@pytest.mark.parametrize("function", [_sim.belady_hits, _sim.lfu_hits])
@pytest.mark.parametrize("size", [[2**63 - 1, 0], [2**63 - 1]])
def test_bytes_beyond_uint64_are_an_error_not_a_small_number(function: Any, size: list[int]) -> None:
    with pytest.raises(OverflowError, match=r"2\^64 bytes"):
        run(function, [0] * 4, [2**63], size=size)


@pytest.mark.parametrize("function", [_sim.belady_hits, _sim.lfu_hits])
def test_nothing_to_simulate_is_no_hit(function: Any) -> None:
    assert run(function, [], [3, 4]).hits == [0, 0]
    assert run(function, [], [3], segments=[0], events=[0], size=[]).hits == [0]
    assert run(function, [1, 1], []).hits == []


@pytest.mark.parametrize("function", [_sim.belady_hits, _sim.lfu_hits])
@pytest.mark.parametrize("events", [None, np.arange(3_000_001, dtype=np.uint64)])
def test_a_simulation_ends_soon_after_it_is_told_to(function: Any, events: np.ndarray | None) -> None:
    key = np.random.default_rng(7).integers(0, 100_000, 3_000_000, dtype=np.uint32)
    stop, raised = np.zeros(1, np.uint8), []

    def work() -> None:
        budgets = np.arange(1, 20_000, dtype=np.uint64)  # minutes of work
        try:
            function(key, u64([0, len(key)]), events, None, budgets, u64([0]), None, stop)
        except RuntimeError as error:
            raised.append(str(error))

    worker = threading.Thread(target=work)
    worker.start()
    worker.join(0.2)
    assert worker.is_alive()  # and this thread runs meanwhile
    stop[0] = 1
    worker.join(20)
    assert raised == ["stopped"]
