"""What Belady's MIN holds at the end: against its definition, every strategy, and a plain heap."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_calls import u64

from pytest_moetier import _sim

Content = tuple[int, ...]


def content(sequence: Any, sizes: Any, capacity: int, passes: int) -> list[int]:
    held = np.full(len(sizes), 2**64 - 1, np.uint64)
    _sim.belady_content(np.array(sequence, np.uint32), u64(sizes), capacity, held, passes)
    return held.tolist()


def look_ahead(sequence: list[int], sizes: list[int], capacity: int, passes: int) -> list[int]:
    """MIN with bypass over single bytes: of what is held or just read, the byte goes that is read last from here on."""
    once = [(expert, byte) for expert in sequence for byte in range(sizes[expert])]
    reads = once * (passes + 1)
    held: set[tuple[int, int]] = set()
    for now in range(len(once) * passes):
        held.add(reads[now])
        if len(held) > capacity:
            held.remove(max(held, key=lambda byte: reads.index(byte, now + 1)))
    counts = Counter(expert for expert, _ in held)
    return [counts[expert] for expert in range(len(sizes))]


def cheapest(start: dict[Content, int], sequence: list[int], sizes: list[int], capacity: int) -> dict[Content, int]:
    """Try every strategy: return the fewest bytes read for each content that can be held at the end."""
    best = start
    for expert in sequence:
        after: dict[Content, int] = {}
        for held, missed in best.items():
            cost = missed + sizes[expert] - held[expert]
            reachable = [range(h + 1) for h in held]
            reachable[expert] = range(sizes[expert] + 1)
            for one in product(*reachable):
                if sum(one) <= capacity and cost < after.get(one, 1 << 60):
                    after[one] = cost
        best = after
    return best


def heap_content(sequence: list[int], sizes: list[int], capacity: int, passes: int) -> list[int]:
    """MIN expert by expert: of the expert that is used last, as many bytes go as are too many."""
    upcoming: dict[int, int] = {}
    reads = sequence * (passes + 1)
    next_use = [0] * len(reads)
    for i in range(len(reads) - 1, -1, -1):
        next_use[i] = upcoming.get(reads[i], len(reads))
        upcoming[reads[i]] = i
    held, due = [0] * len(sizes), [-1] * len(sizes)
    queue: list[tuple[int, int]] = []
    for i, expert in enumerate(sequence * passes):
        held[expert], due[expert] = sizes[expert], next_use[i]
        heapq.heappush(queue, (-next_use[i], expert))
        over = sum(held) - capacity
        while over > 0:
            use, last = queue[0]
            given_up = min(held[last], over) if due[last] == -use else 0
            held[last] -= given_up
            over -= given_up
            if not given_up or not held[last]:
                heapq.heappop(queue)
    return held


SMALL = (
    st.lists(st.integers(0, 4), max_size=14),
    st.lists(st.integers(0, 4), min_size=5, max_size=5),
    st.integers(0, 16),
    st.integers(1, 3),
)


@settings(deadline=None, max_examples=400)
@given(*SMALL)
def test_the_content_is_that_of_a_plain_min_over_bytes(
    sequence: list[int], sizes: list[int], capacity: int, passes: int
) -> None:
    assert content(sequence, sizes, capacity, passes) == look_ahead(sequence, sizes, capacity, passes)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=5),
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
    st.integers(0, 7),
    st.integers(1, 2),
)
def test_no_strategy_that_knows_the_next_replay_reads_less_than_one_with_this_content(
    sequence: list[int], sizes: list[int], capacity: int, passes: int
) -> None:
    held = tuple(content(sequence, sizes, capacity, passes))
    until = cheapest({(0, 0, 0): 0}, sequence * passes, sizes, capacity)
    least = min(cheapest(until, sequence, sizes, capacity).values())
    assert min(cheapest({held: until[held]}, sequence, sizes, capacity).values()) == least


@settings(deadline=None)
@given(*SMALL)
def test_as_much_is_held_as_fits_of_what_is_read(
    sequence: list[int], sizes: list[int], capacity: int, passes: int
) -> None:
    held = content(sequence, sizes, capacity, passes)
    assert sum(held) == min(capacity, sum(sizes[expert] for expert in set(sequence)))
    assert all(one <= size for one, size in zip(held, sizes, strict=True))


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_sequences_over_several_levels_of_the_position_set_agree_with_a_heap(passes: int) -> None:
    rng = np.random.default_rng(8)
    sequence = (rng.zipf(1.1, 6000) % 300).tolist()
    sizes = rng.integers(1, 5, 300).tolist()
    for capacity in (1, 40, 300, 600):
        assert content(sequence, sizes, capacity, passes) == heap_content(sequence, sizes, capacity, passes)


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_a_scan_keeps_what_it_reads_first(passes: int) -> None:
    # What was read last is always what is used last from there on: it passes by.
    assert content([0, 1, 2, 3, 4], [1] * 5, 3, passes) == [1, 1, 1, 0, 0]


def test_a_second_replay_begins_with_what_the_first_left() -> None:
    # The first replay finds room for 0 until the end. In the second 2 is there from the start, and 0 makes way for 1.
    assert content([0, 1, 1, 2, 2], [1] * 3, 2, 1) == [1, 0, 1]
    assert content([0, 1, 1, 2, 2], [1] * 3, 2, 2) == [0, 1, 1]


def test_what_is_read_once_at_the_end_is_not_kept_before_what_the_next_replay_reads_first() -> None:
    assert content([0, 1, 2, 0, 1, 3], [10] * 4, 20, 1) == [10, 10, 0, 0]


def test_the_expert_at_the_border_is_held_in_part() -> None:
    assert content([0, 1, 2], [10, 10, 10], 15, 1) == [10, 5, 0]


def test_a_larger_expert_than_the_cache_is_held_in_part_and_an_empty_one_not_at_all() -> None:
    assert content([0, 1, 0], [10, 0], 4, 2) == [4, 0]
    assert content([], [10], 4, 2) == [0]
    assert content([], [], 4, 2) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequence": np.zeros(3, np.int32)}, "sequence has items of format 'i', 4 bytes each; expected native uint32"),
        ({"size_bytes": np.zeros(2, np.int64)}, "size_bytes has items of format"),
        ({"sequence": np.array([0, 2, 0], np.uint32)}, r"sequence\[1\] is 2; expected an index below 2"),
        ({"size_bytes": u64([2**62, 2**62])}, r"the sizes add up to 2\^63 bytes or more"),
        ({"out": u64([0, 0, 0])}, "out has 3 items; expected 2, one per size"),
        ({"out": np.frombuffer(bytes(16), np.uint64)}, "out is read-only"),
        ({"passes": 0}, "passes is 0; expected 1 or more"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    fine: dict[str, Any] = {
        "sequence": np.array([0, 1, 0], np.uint32),
        "size_bytes": u64([10, 20]),
        "capacity_bytes": 15,
        "out": u64([0, 0]),
    }
    _sim.belady_content(**fine)
    assert fine["out"].tolist() == [10, 5]
    with pytest.raises(ValueError, match=message):
        _sim.belady_content(**fine | arguments)


def test_an_output_over_the_sizes_is_refused_and_its_buffers_are_released() -> None:
    memory = bytearray(16)
    sizes = memoryview(memory).cast("Q")
    with pytest.raises(ValueError, match="out shares memory with an input; expected its own"):
        _sim.belady_content(np.zeros(1, np.uint32), sizes, 1, sizes)
    sizes.release()
    memory.append(0)  # BufferError while a view is held


@pytest.mark.parametrize("capacity", [-1, 2**64])
def test_a_capacity_beyond_uint64_is_refused(capacity: int) -> None:
    with pytest.raises(OverflowError):
        content([0], [1], capacity, 1)
