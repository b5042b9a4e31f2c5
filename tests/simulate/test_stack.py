"""LRU for every capacity in one pass: by access and by event, in objects and in bytes, segment by segment."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_moetier import _sim
from pytest_moetier.trace.load import load_trace

NEVER32, NEVER64 = 2**32 - 1, 2**64 - 1
RECORDED = Path(os.environ.get("MOETIER_TRACES", "MOETIER_TRACES-is-not-set"))
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    key: list[int]
    segments: list[int]
    events: list[int] | None
    size: list[int] | None
    objects: int = 12

    @property
    def weights(self) -> list[int]:
        return self.size or [1] * self.objects

    def lookups(self) -> list[list[list[int]]]:
        """Per segment, the accesses that are looked up at once."""
        borders = range(len(self.key) + 1) if self.events is None else self.events
        return [
            [self.key[a:b] for a, b in pairwise(borders) if start <= a <= b <= end]
            for start, end in pairwise(self.segments)
        ]


def u64(values: list[int] | None) -> np.ndarray | None:
    return None if values is None else np.array(values, np.uint64)


def distances(case: Case) -> list[int]:
    out = np.empty(len(case.key), np.uint64 if case.size else np.uint32)
    _sim.lru_stack(np.array(case.key, np.uint32), u64(case.segments), u64(case.events), u64(case.size), out)
    return [int(one) for one in out]


def histogram(case: Case, score_from: list[int]) -> list[int]:
    hist = np.full(case.objects + 2, 7, np.uint64)
    key, segments, events = np.array(case.key, np.uint32), u64(case.segments), u64(case.events)
    _sim.lru_histogram(key, segments, events, u64(score_from), hist)
    return [int(one) for one in hist]


def plain_distances(case: Case) -> list[int]:
    """Walk a list from its most recent end, for each access."""
    out, weights = [], case.weights
    for segment in case.lookups():
        stack: list[int] = []
        previous: set[int] = set()
        for event in segment:
            for one in event:
                held_anyway = case.events is not None and one in previous
                if one not in stack:
                    out.append(NEVER64 if case.size else NEVER32)
                else:
                    above = stack[: stack.index(one) + 1]
                    out.append(0 if held_anyway else sum(map(weights.__getitem__, above)))
            for one in event:
                if one in stack:
                    stack.remove(one)
                stack.insert(0, one)
            previous = set(event)
    return out


def plain_hits(case: Case, capacity: int) -> list[bool]:
    """Run one cache: what does not fit goes after each event, the oldest first, but nothing that the event touched."""
    out = []
    for segment in case.lookups():
        held: list[int] = []  # the oldest first
        for event in segment:
            out += [one in held for one in event]
            for one in event:
                held = [*(other for other in held if other != one), one]
            while sum(case.weights[one] for one in held) > capacity:
                if case.events is not None and held[0] in event:
                    break
                del held[0]
    return out


@st.composite
def cases(draw: st.DrawFn) -> Case:
    key = draw(st.lists(st.integers(0, 11), max_size=300))
    inner = st.lists(st.integers(0, len(key)), max_size=3)
    segments = [0, *sorted(draw(inner)), len(key)]
    events = None
    if draw(st.booleans()):
        borders = draw(st.lists(st.integers(0, len(key)), max_size=80))
        events = sorted({*segments, *borders}) if draw(st.booleans()) else sorted([*segments, *borders])
    size = draw(st.none() | st.lists(st.integers(0, 9), min_size=12, max_size=12))
    if size is not None and draw(st.booleans()):
        size = [5] * 12
    return Case(key, segments, events, size)


@settings(deadline=None, max_examples=300)
@given(cases())
def test_distances_equal_a_plain_stack(case: Case) -> None:
    assert distances(case) == plain_distances(case)


@settings(deadline=None, max_examples=150)
@given(cases(), st.integers(0, 60))
def test_an_access_hits_a_cache_iff_its_distance_is_at_most_the_capacity(case: Case, capacity: int) -> None:
    found = distances(case)
    for room in {capacity, 1, 2, 5}:
        assert [one <= room for one in found] == plain_hits(case, room)


@settings(deadline=None, max_examples=150)
@given(cases(), st.floats(0, 1))
def test_the_histogram_counts_the_scored_accesses_by_distance(case: Case, share: float) -> None:
    units = Case(case.key, case.segments, case.events, None)
    score_from = [start + int(share * (end - start)) for start, end in pairwise(case.segments)]
    counts = [0] * 14
    found = distances(units)
    for first, end in zip(score_from, case.segments[1:], strict=True):
        for one in found[first:end]:
            counts[13 if one == NEVER32 else one] += 1
    assert histogram(units, score_from) == counts


@pytest.mark.parametrize("width", [0, 1, 7, 5000])
def test_distances_stay_exact_through_many_squeezes(width: int) -> None:
    rng = np.random.default_rng(width)
    key = (rng.zipf(1.2, 12_000) % 3000).tolist()
    events = sorted({*range(0, len(key), width), len(key)}) if width else None
    for size in (None, rng.integers(1, 100, 3000).tolist()):
        case = Case(key, [0, 2000, 2000, len(key)] if width in {0, 1} else [0, len(key)], events, size, 3000)
        if width == 1:
            case = Case(key, case.segments, list(range(len(key) + 1)), size, 3000)
        assert distances(case) == plain_distances(case)


def test_two_ways_of_counting_agree_over_more_objects_than_one_span_holds() -> None:
    rng = np.random.default_rng(5)
    n, objects = 700_000, 120_000
    key = rng.integers(0, objects, n).astype(np.uint32)
    key[: 2 * objects] = np.tile(np.arange(objects), 2)
    size = np.full(objects + 1, 3, np.uint64)
    size[objects] = 4  # never read: it keeps the bytes from being counted in objects
    segments = np.array([0, n], np.uint64)
    for events in (None, np.append(np.arange(0, n, 1000), n).astype(np.uint64)):
        units, weighed = np.empty(n, np.uint32), np.empty(n, np.uint64)
        _sim.lru_stack(key, segments, events, None, units)
        _sim.lru_stack(key, segments, events, size, weighed)
        assert (units[:objects] == NEVER32).all()
        assert (units[objects : 2 * objects] == objects).all() or events is not None
        assert np.array_equal(weighed[objects:], 3 * units[objects:].astype(np.uint64))
        assert (weighed[:objects] == NEVER64).all()
        hist = np.empty(objects + 2, np.uint64)
        _sim.lru_histogram(key, segments, events, np.array([objects], np.uint64), hist)
        assert np.array_equal(hist, np.bincount(units[objects:], minlength=objects + 2))


def test_an_event_larger_than_the_cache_stays_until_the_next_event() -> None:
    case = Case([0, 1, 2, 0, 1, 2, 3, 0, 1], [0, 9], [0, 3, 6, 7, 9], None)
    assert distances(case) == [NEVER32] * 3 + [0, 0, 0] + [NEVER32] + [4, 3]
    assert plain_hits(case, 1) == [False] * 3 + [True] * 3 + [False] * 3


def test_a_cyclic_scan_misses_until_the_cycle_fits() -> None:
    hist = histogram(Case(list(range(12)) * 5, [0, 60], None, None), [12])
    assert hist == [0] * 12 + [48, 0]


def test_each_segment_begins_with_an_empty_cache() -> None:
    assert distances(Case([3, 3, 3, 3], [0, 1, 3, 3, 4], None, None)) == [NEVER32, NEVER32, 1, NEVER32]


def test_nothing_has_no_distances() -> None:
    for events in (None, [0], [0, 0]):
        assert distances(Case([], [0], events, None)) == []
        assert distances(Case([], [0, 0], events, [4] * 12)) == []
        assert histogram(Case([], [0, 0], events, None), [0]) == [0] * 14


@pytest.mark.parametrize("mixed", [False, True])
def test_misses_equal_libcachesim_lru(mixed: bool) -> None:  # noqa: FBT001
    libcachesim = pytest.importorskip("libcachesim", reason="libcachesim is the peer here: pip install libcachesim")
    rng = np.random.default_rng(3)
    n, objects = 15_000, 500
    key = (rng.zipf(1.2, n) % objects).tolist()
    size = rng.integers(1, 40, objects).tolist() if mixed else None
    case = Case(key, [0, n], None, size, objects)
    found = distances(case)
    for capacity in (40, 64, 100, 333, 499, 2000, 9000):
        peer = libcachesim.LRU(cache_size=capacity, hashpower=12)
        hits = []
        for i, one in enumerate(key):
            request = libcachesim.Request()
            request.obj_id, request.obj_size, request.clock_time = one + 1, case.weights[one], i
            hits.append(peer.get(request))
        assert [one <= capacity for one in found] == hits


def recorded(*parts: str) -> Path:
    path = RECORDED.joinpath(*parts)
    if not path.is_file():
        pytest.skip(f"{'/'.join(parts)} is not there: set MOETIER_TRACES to the folder of recorded traces")
    return path


def test_the_published_kimi_table_is_met_to_the_hundredth() -> None:
    layer, expert = np.fromfile(recorded("kimi-k3", "expert_trace.bin"), "<i4").reshape(-1, 2).T
    key = ((layer - 1) * 896 + expert).astype(np.uint32)
    hist = np.empty(92 * 896 + 2, np.uint64)
    segments = np.array([0, len(key)], np.uint64)
    _sim.lru_histogram(key, segments, None, np.zeros(1, np.uint64), hist)
    assert int(hist.sum()) == len(key) == 100_096
    assert int(hist[-1]) == 10_010  # distinct experts
    hits = hist[:-1].cumsum()
    rates = [round(100 * int(hits[capacity]) / len(key), 2) for capacity in (455, 911, 1823, 3647, 7294, 10941)]
    assert rates == [36.24, 36.24, 36.24, 36.24, 49.19, 90.0]


def edge_case(name: str) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the trace, per event its layer and its width, and per access its expert and its event; prefill first."""
    trace = load_trace(recorded("bigmoe-on-edge", f"{name}.route.csv"))
    assert trace.prefill is not None
    records = [*trace.prefill.records(), *trace.records()]
    experts = [list(dict.fromkeys(record.experts)) for record in records]
    at = {layer: index for index, layer in enumerate(trace.layers)}
    layer = np.array([at[record.layer] for record in records])
    width = np.array([len(one) for one in experts])
    return trace, layer, width, np.concatenate(experts), np.repeat(np.arange(len(records)), width)


@pytest.mark.parametrize(
    ("name", "budget_mib", "pooled", "by_layer"),
    [
        ("qwen", 500, 0.0, None),
        ("qwen", 3000, 70.6, 71.1),
        ("qwen", 4000, 80.3, 79.7),
        ("gemma", 500, 0.0, None),
        ("gemma", 3000, 73.1, 74.8),
        ("gemma", 4000, 81.9, 82.2),
    ],
)
def test_the_published_event_by_event_tables_are_met(
    name: str, budget_mib: int, pooled: float, by_layer: float | None
) -> None:
    trace, layer, width, expert, event = edge_case(name)
    n_layers = len(trace.layers)
    decode = event >= trace.prefill.n_records
    key = (layer[event] * trace.n_experts + expert).astype(np.uint32)
    size = np.repeat(np.asarray(trace.expert_bytes, np.uint64), trace.n_experts)
    out = np.empty(len(key), np.uint64)
    events = np.concatenate([[0], np.cumsum(width)]).astype(np.uint64)
    _sim.lru_stack(key, np.array([0, len(key)], np.uint64), events, size, out)
    assert 100 * (out[decode] <= budget_mib * MIB).mean() == pytest.approx(pooled, abs=0.1)
    if by_layer is None:
        return
    order, layered = np.argsort(layer[event], kind="stable"), np.argsort(layer, kind="stable")
    segments = np.concatenate([[0], np.cumsum(np.bincount(layer, width, n_layers))]).astype(np.uint64)
    events = np.concatenate([[0], np.cumsum(width[layered])]).astype(np.uint64)
    _sim.lru_stack(key[order], segments, events, size, out)
    share = budget_mib * MIB // n_layers
    assert round(100 * (out[decode[order]] <= share).mean(), 1) == pytest.approx(by_layer, abs=0.2 + 1e-9)


KEY = np.array([0, 1, 0, 2], np.uint32)
SIZE = np.array([10, 20, 30], np.uint64)


def lru_stack(**arguments: Any) -> None:
    defaults = {"key": KEY, "segments": u64([0, 4]), "events": None, "size": None, "out": np.empty(4, np.uint32)}
    _sim.lru_stack(**(defaults | arguments))


def lru_histogram(**arguments: Any) -> None:
    defaults = {"key": KEY, "segments": u64([0, 2, 4]), "events": None, "score_from": u64([0, 2])}
    _sim.lru_histogram(**(defaults | {"hist": np.empty(5, np.uint64)} | arguments))


def read_only() -> np.ndarray:
    out = np.empty(4, np.uint32)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": KEY.astype(np.int64)}, "key has items of format 'l', 8 bytes each; expected native uint32"),
        ({"segments": u64([])}, "segments has no items"),
        ({"segments": u64([1, 4])}, r"segments\[0\] is 1; expected the first access, 0"),
        ({"segments": u64([0, 3, 2, 4])}, r"segments\[2\] is 2; expected at least the border before it, 3"),
        ({"segments": u64([0, 5])}, r"segments\[1\] is 5; expected the number of accesses, 4"),
        ({"segments": u64([0, 3])}, r"segments\[1\] is 3; expected the number of accesses, 4"),
        ({"events": u64([0, 2, 5])}, r"events\[2\] is 5; expected the number of accesses, 4"),
        (
            {"segments": u64([0, 2, 4]), "events": u64([0, 1, 3, 4])},
            r"segments\[1\] is 2; expected the border of an event; the next one is 3",
        ),
        ({"size": SIZE[:2], "out": np.empty(4, np.uint64)}, r"key\[3\] is 2; expected an object below 2"),
        ({"size": SIZE}, "out has items of format 'I', 4 bytes each; expected native uint64"),
        ({"size": u64([2**62, 2**62, 1]), "out": np.empty(4, np.uint64)}, r"add up to 2\^63 bytes or more"),
        ({"out": np.empty(4, np.uint64)}, "out has items of format 'L', 8 bytes each; expected native uint32"),
        ({"out": np.empty(3, np.uint32)}, "out has 3 items; expected 4, one per access"),
        ({"out": read_only()}, "out is read-only"),
        ({"out": KEY}, "out shares memory with key; expected its own"),
        ({"key": np.array([0, 1, 2**30, 2], np.uint32)}, "there are 1073741825 objects; expected at most 1073741824"),
        ({"stop": np.zeros(2, np.uint8)}, "stop has 2 items; expected 1"),
    ],
)
def test_wrong_arguments_of_the_stack_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lru_stack(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hist": np.empty(1, np.uint64)}, r"hist has 1 items; expected the number of objects \+ 2"),
        ({"hist": np.empty(4, np.uint64)}, r"key\[3\] is 2; expected an object below 2, two less than hist has items"),
        ({"score_from": u64([0])}, "score_from has 1 items; expected 2, one per segment"),
        ({"score_from": u64([0, 1])}, r"score_from\[1\] is 1; expected an access of its segment, at least 2"),
        ({"score_from": u64([3, 2])}, r"score_from\[0\] is 3; expected an access of its segment, at most 2"),
        ({"events": u64([0, 4])}, r"segments\[1\] is 2; expected the border of an event"),
    ],
)
def test_wrong_arguments_of_the_histogram_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lru_histogram(**arguments)


def test_a_refused_call_releases_its_buffers() -> None:
    memory = bytearray(16)
    with pytest.raises(ValueError, match="out has"):
        lru_stack(key=memoryview(memory).cast("I"), out=np.empty(1, np.uint32))
    memory.append(0)  # BufferError while a view is held


def test_a_set_stop_flag_ends_the_call_at_once() -> None:
    stop = np.ones(1, np.uint8)
    for call, arguments in ((lru_stack, {}), (lru_histogram, {}), (lru_stack, {"size": SIZE})):
        out = {"out": np.empty(4, np.uint64)} if arguments else {}
        with pytest.raises(RuntimeError, match=r"^stopped$"):
            call(stop=stop, **arguments, **out)


def test_a_long_run_stops_when_another_thread_asks() -> None:
    n, objects = 5_000_000, 80_000
    key = np.random.default_rng(1).integers(0, objects, n, dtype=np.uint32)
    stop, raised = np.zeros(1, np.uint8), []
    out = np.full(n, 77, np.uint32)

    def work() -> None:
        try:
            _sim.lru_stack(key, np.array([0, n], np.uint64), None, None, out, stop)
        except RuntimeError as error:
            raised.append(str(error))

    worker = threading.Thread(target=work)
    worker.start()
    while out[0] == 77:  # until it has begun
        pass
    stop[0] = 1
    worker.join()
    assert raised == ["stopped"]
    assert out[-1] == 77  # nothing was written there
