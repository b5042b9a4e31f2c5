"""The words for where a hit's bytes come from, and for who reads ahead of the demand (paper sections 6 and 7).

A mode is a word, and for modes with memory of their own a whole number of per cent of the capacity behind it:
``page_cache``, ``pinned_own``, ``hybrid25``, ``user_lru50``. What each is for stands in ``MODES``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pytest_moetier.errors import InputError

OWN, TRAIN, DOMAIN = "own", "train", "domain"
"""What a pinned table is trained on: the replayed trace itself (an oracle), its first 60%, or another domain."""

_WORD = re.compile(r"([a-z_]+?)([0-9]+)?")


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of reading a plan; in all of them the same threads copy each access once into the same destinations.

    Attributes:
        native: the replayer's word for it.
        purpose: what it is for.
        share: share of the capacity that is the mode's own memory: a locked arena or a user-space cache; 0 for none.
        table: what the table of a pinned arena is trained on, or "".
        cached: it reads through the page cache; one that does not never reaches the wall, and hints do nothing for it.
        writes: it writes to the pool, or to private mappings of it: on a throw-away pool alone.
        expects_oom: it is meant to end by the wall's out-of-memory kill, which is then what must be proved.
    """

    native: str
    purpose: str
    share: float = 0.0
    table: str = ""
    cached: bool = True
    writes: bool = False
    expects_oom: bool = False

    @property
    def arena(self) -> bool:
        """Its own memory is a locked arena, not a cache."""
        return self.native == "pinned"


MODES: Mapping[str, Mode] = {
    "page_cache": Mode("page_cache", "pread; the kernel keeps what was read last"),
    "fadv_random": Mode("fadv_random", "the same without read-ahead: what one hint on the read side does"),
    "mmap": Mode("mmap", "copies from a mapping: what an engine that maps its weights does"),
    "mmap_random": Mode("mmap_random", "a mapping without read-ahead (MADV_RANDOM)"),
    "mmap_willneed": Mode("mmap_willneed", "a mapping, each expert announced before its copy (WILLNEED)"),
    "mmap_populate": Mode("mmap_populate", "a mapping, each expert faulted in by one call (POPULATE_READ)"),
    "mmap_pread": Mode("mmap_pread", "pread into a scratch, then the copy from the mapping"),
    "mmap_background": Mode("mmap_background", "the same preads by a background thread, copies at once"),
    "direct": Mode("direct", "O_DIRECT: no cache at all, the floor of every comparison", cached=False),
    "drop": Mode("drop", "pread, then DONTNEED: no admission (F_NOCACHE elsewhere)"),
    "pinned_own": Mode("pinned", "a locked arena by the trace's own counts: an oracle", 1.0, OWN),
    "pinned_train": Mode("pinned", "a locked arena by the counts of the trace's first 60%", 1.0, TRAIN),
    "pinned_domain": Mode("pinned", "a locked arena by the counts of another domain", 1.0, DOMAIN),
    "hybrid": Mode(
        "pinned", "a locked arena of a part of C by the trace's own counts, the page cache the rest", 0.5, OWN
    ),
    "user_lru": Mode("user_lru", "O_DIRECT and an LRU of experts in user space", 1.0, cached=False),
    "user_lfu": Mode("user_lfu", "O_DIRECT and an LFU of experts in user space", 1.0, cached=False),
    "write_private": Mode(
        "write_private",
        "reads into MAP_PRIVATE in place: memory that cannot be given back",
        writes=True,
        expects_oom=True,
    ),
    "write_shared": Mode("write_shared", "reads into MAP_SHARED in place: every page dirty", writes=True),
}

PREFETCH = ("none", "fadvise_oracle", "fadvise_plan", "blocking_oracle", "blocking_plan")
"""How advice is delivered, and whose it is: the trace's own future, or a predictor's plan."""

FILLS: Mapping[str, tuple[str, int]] = {
    "sequential": ("page_cache", 1 << 20),
    "random": ("page_cache", 0),
    "fadv_random": ("fadv_random", 0),
    "mmap": ("mmap", 0),
    "mmap_willneed": ("mmap_willneed", 0),
}
"""How pages are first read, where it is varied: the replayer's mode, and the bytes of one pread (0: an expert)."""


def mode_of(word: str) -> Mode:
    """Return the mode that ``word`` names, its share of the capacity included.

    Raises:
        InputError: no such mode, or a share of a mode that has no memory of its own, or none from 1 to 100.
    """
    match = _WORD.fullmatch(word)
    found = MODES.get(match[1]) if match else None
    if match is None or found is None:
        raise InputError(f"mode {word!r} is unknown", "one of " + ", ".join(MODES))
    if match[2] is None:
        return found
    if not found.share:
        raise InputError(f"mode {word!r} has a share, and {match[1]} no memory of its own", f"{match[1]}")
    percent = int(match[2])
    if not 1 <= percent <= 100:
        raise InputError(f"mode {word!r} asks for {percent}% of the capacity", "1 to 100")
    return replace(found, share=percent / 100)


def delivery_of(prefetch: str) -> tuple[str, str]:
    """Return how the words of ``prefetch`` deliver (``none``, ``fadvise``, ``blocking``) and whose advice (or "")."""
    if prefetch not in PREFETCH:
        raise InputError(f"prefetch {prefetch!r} is unknown", "one of " + ", ".join(PREFETCH))
    delivery, _, advisor = prefetch.partition("_")
    return delivery, advisor
