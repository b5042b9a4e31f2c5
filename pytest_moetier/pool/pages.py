"""The bytes of a synthetic pool: every 4096-byte page states its own address, and no two pages share their bytes.

The first 32 bytes of a page, little-endian: ``MOEPAGE1``, u64 pool id, u32 layer, u32 expert, u64 page in the expert.
A spine's pages are those of an expert that no layer has: layer 0xFFFFFFFF, expert 0.
The rest is a block of seeded random words, each page's combined (xor) with a key of its own: incompressible, not to be
deduplicated, and made faster than a device can write.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.trace import splitmix
from pytest_moetier.trace.splitmix import U64
from pytest_moetier.units import PAGE_BYTES

MAGIC = b"MOEPAGE1"
STAMP_BYTES = 32
SPINE_LAYER, SPINE_EXPERT = 0xFFFFFFFF, 0
_PAGE_WORDS = PAGE_BYTES // 8
_STAMP_WORDS = STAMP_BYTES // 8
_BLOCK_PAGES = 64
_MAGIC_WORD = np.uint64(int.from_bytes(MAGIC, "little"))

_BODY, _KEYS = 1, 2


@dataclass(frozen=True, slots=True)
class Fault:
    """A page that is not what it should be: ``seen`` and ``expected`` in words."""

    page: int
    seen: str
    expected: str


class Pages:
    """Makes and verifies the pages of the pool ``pool_id``."""

    def __init__(self, pool_id: int) -> None:
        """Draw the block of random words that all pages are derived from (256 KiB: it stays in a core's cache)."""
        self.pool_id = pool_id
        drawn = splitmix.words(splitmix.key(pool_id, _BODY), 0, _BLOCK_PAGES * _PAGE_WORDS)
        self._block: U64 = drawn.reshape(_BLOCK_PAGES, _PAGE_WORDS)

    def fill(self, out: U64, layer: int, expert: int, first_page: int = 0) -> None:
        """Fill ``out`` with whole pages of (layer, expert), from page ``first_page`` on.

        Args:
            out: shape [pages * 512], little-endian words.
            layer: layer number.
            expert: expert number.
            first_page: page within the expert that ``out`` starts with.
        """
        rows = out.reshape(-1, _PAGE_WORDS)
        numbers = np.arange(first_page, first_page + len(rows), dtype=np.uint64)
        keys = splitmix.keys(splitmix.key(self.pool_id, _KEYS, layer, expert), numbers)
        shift = first_page % _BLOCK_PAGES
        done = 0
        while done < len(rows):
            count = min(_BLOCK_PAGES - shift, len(rows) - done)
            np.bitwise_xor(
                self._block[shift : shift + count], keys[done : done + count, None], out=rows[done : done + count]
            )
            done, shift = done + count, 0
        rows[:, 0] = _MAGIC_WORD
        rows[:, 1] = np.uint64(self.pool_id)
        rows[:, 2] = np.uint64(layer | expert << 32)
        rows[:, 3] = numbers

    def verify(self, data: U64, layer: int, expert: int, first_page: int = 0) -> Fault | None:
        """Return the first page of ``data`` that is not page ``first_page`` + n of (layer, expert), or None."""
        wanted = np.empty_like(data)
        self.fill(wanted, layer, expert, first_page)
        if np.array_equal(data, wanted):
            return None
        bad = (data != wanted).reshape(-1, _PAGE_WORDS)
        row = int(np.flatnonzero(bad.any(axis=1))[0])
        page = data.reshape(-1, _PAGE_WORDS)[row]
        expected = f"page {first_page + row} of pool {self.pool_id:016x}, layer {layer}, expert {expert}"
        if not bad[row, :_STAMP_WORDS].any():
            at = int(np.flatnonzero(bad[row])[0]) * 8
            return Fault(first_page + row, f"the right stamp, but other bytes from byte {at} of the page", expected)
        return Fault(first_page + row, describe_stamp(page), expected)


def describe_stamp(page: NDArray[np.uint64]) -> str:
    """Return in words what a page says of itself."""
    if not page.any():
        return "only zero bytes"
    if page[0] != _MAGIC_WORD:
        return f"no stamp (it starts with {page[:1].tobytes().hex()})"
    where = int(page[2])
    return f"page {int(page[3])} of pool {int(page[1]):016x}, layer {where & 0xFFFFFFFF}, expert {where >> 32}"
