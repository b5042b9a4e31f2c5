"""How large the memory of a mode's own is at a capacity, and when there is no room for any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moetier.errors import UnsupportedHostError
from pytest_moetier.modes import MODES, mode_of
from pytest_moetier.replay import own_bytes

EXPERT = 1 << 20
C = 100 << 20


@pytest.mark.parametrize(
    ("word", "threads", "locked", "size"),
    [
        ("pinned_own", 2, 0, C - 4 * EXPERT),  # two experts a thread for what misses
        ("pinned_own", 8, 0, C - 16 * EXPERT),
        ("pinned_own", 2, 10 << 20, C - 4 * EXPERT - (10 << 20)),
        ("hybrid", 2, 0, C // 2),
        ("hybrid25", 2, 10 << 20, C // 4),
        ("hybrid99", 2, 0, C - 4 * EXPERT),
        ("user_lru", 2, 0, C),
        ("user_lru", 2, 10 << 20, C - (10 << 20)),
        ("user_lfu50", 8, 0, C // 2),
        ("page_cache", 2, 10 << 20, 0),
        ("direct", 2, 0, 0),
    ],
)
def test_a_mode_has_its_share_less_what_must_be_left(word: str, threads: int, locked: int, size: int) -> None:
    assert own_bytes(mode_of(word), C, threads, EXPERT, locked) == size


@given(
    word=st.sampled_from(sorted(MODES)),
    capacity=st.integers(1, 1 << 40),
    threads=st.integers(1, 64),
    locked=st.integers(0, 1 << 30),
)
def test_it_is_whole_pages_within_the_capacity_with_room_for_an_expert_or_refused(
    word: str, capacity: int, threads: int, locked: int
) -> None:
    mode = mode_of(word)
    try:
        size = own_bytes(mode, capacity, threads, EXPERT, locked)
    except UnsupportedHostError:
        assert capacity * mode.share < (threads + 1) * EXPERT or capacity < locked + (2 * threads + 1) * EXPERT + 4096
        return
    assert size % 4096 == 0
    assert 0 <= size <= capacity * mode.share
    assert not mode.share or EXPERT <= size <= capacity - locked


@pytest.mark.parametrize(
    ("word", "capacity", "said"),
    [
        ("pinned_own", 4 * EXPERT, "100% of 4.19 MB with 2 threads leaves no room for one expert of 1.05 MB"),
        ("hybrid10", 10 * EXPERT - 1, "10% of 10.5 MB with 2 threads leaves no room for one expert of 1.05 MB"),
        ("user_lru", 3 * EXPERT - 1, "100% of 3.15 MB with 2 threads leaves no room for 3 experts of 1.05 MB"),
    ],
)
def test_too_small_a_capacity_is_refused_with_what_it_lacks(word: str, capacity: int, said: str) -> None:
    with pytest.raises(UnsupportedHostError) as caught:
        own_bytes(mode_of(word), capacity, 2, EXPERT)
    assert str(caught.value).startswith(f"{said}; expected a larger capacity or share, or fewer threads; next: ")
