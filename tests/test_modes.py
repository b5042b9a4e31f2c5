"""The words for modes, their shares of the capacity, and who reads ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moetier.errors import InputError
from pytest_moetier.modes import DOMAIN, FILLS, MODES, OWN, PREFETCH, TRAIN, Mode, delivery_of, mode_of

SHARED = sorted(word for word, mode in MODES.items() if mode.share)
BARE = sorted(set(MODES) - set(SHARED))


@pytest.mark.parametrize("word", sorted(MODES))
def test_a_word_alone_is_the_mode_as_it_stands_in_the_table(word: str) -> None:
    assert mode_of(word) == MODES[word]


@given(word=st.sampled_from(SHARED), percent=st.integers(1, 100))
def test_a_share_replaces_that_of_the_mode_and_nothing_else(word: str, percent: int) -> None:
    assert mode_of(f"{word}{percent}") == replace(MODES[word], share=percent / 100)


@pytest.mark.parametrize("word", SHARED)
@pytest.mark.parametrize("percent", ["0", "101", "1000"])
def test_a_share_outside_1_to_100_is_refused(word: str, percent: str) -> None:
    with pytest.raises(InputError, match=rf"^mode '{word}{percent}' asks for {percent}% of the capacity; expected 1 "):
        mode_of(f"{word}{percent}")


@pytest.mark.parametrize("word", BARE)
def test_a_share_of_a_mode_without_memory_of_its_own_is_refused(word: str) -> None:
    with pytest.raises(InputError, match=rf"^mode '{word}50' has a share, and {word} no memory of its own"):
        mode_of(f"{word}50")


@pytest.mark.parametrize("word", ["", "50", "pinned", "PAGE_CACHE", "user_lru-5", "user_lru5%", "hybrid 50", "mmap\n"])
def test_what_is_no_mode_is_refused_with_every_word(word: str) -> None:
    with pytest.raises(InputError, match=r"is unknown; expected one of page_cache, .*write_shared"):
        mode_of(word)


@given(text=st.text(max_size=12))
def test_any_text_is_a_mode_or_refused_in_one_line(text: str) -> None:
    try:
        found = mode_of(text)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either way is right
    else:
        assert isinstance(found, Mode)
        assert 0 <= found.share <= 1


def chosen(**facts: object) -> set[str]:
    return {word for word, mode in MODES.items() if all(getattr(mode, name) == one for name, one in facts.items())}


def test_what_a_mode_is_follows_from_where_its_bytes_come_from() -> None:
    tables: Mapping[str, str] = {word: mode.table for word, mode in MODES.items() if mode.table}
    assert tables == {"pinned_own": OWN, "pinned_train": TRAIN, "pinned_domain": DOMAIN, "hybrid": OWN}
    assert chosen(arena=True) == set(tables)
    assert chosen(cached=False) == {"direct", "user_lru", "user_lfu"}
    assert chosen(writes=True) == {"write_private", "write_shared"}
    assert chosen(expects_oom=True) == {"write_private"}
    assert MODES["hybrid"].share == 0.5


@pytest.mark.parametrize(
    ("prefetch", "delivery", "advisor"),
    [
        ("none", "none", ""),
        ("fadvise_oracle", "fadvise", "oracle"),
        ("fadvise_plan", "fadvise", "plan"),
        ("blocking_oracle", "blocking", "oracle"),
        ("blocking_plan", "blocking", "plan"),
    ],
)
def test_advice_is_delivered_one_way_and_is_someones(prefetch: str, delivery: str, advisor: str) -> None:
    assert prefetch in PREFETCH
    assert delivery_of(prefetch) == (delivery, advisor)


@pytest.mark.parametrize("word", ["", "fadvise", "oracle", "fadvise_plan2", "None"])
def test_what_is_no_prefetch_is_refused_with_every_word(word: str) -> None:
    with pytest.raises(InputError, match=r"is unknown; expected one of none, .*blocking_plan"):
        delivery_of(word)


def test_a_fill_reads_by_a_mode_without_memory_of_its_own_that_writes_nothing() -> None:
    natives = {mode.native: mode for mode in MODES.values()}
    assert {native for native, _ in FILLS.values()} <= set(natives)
    for native, chunk in FILLS.values():
        assert not natives[native].share
        assert not natives[native].writes
        assert natives[native].cached
        assert chunk == 0 or not native.startswith("mmap")
