"""Every page of a synthetic pool states its own address, cannot be compressed, and is like no other."""

from __future__ import annotations

import re
import struct
import zlib

import numpy as np
import pytest

from pytest_moetier.pool.pages import SPINE_EXPERT, SPINE_LAYER, Pages

PAGES = Pages(0x1122334455667788)


def filled(layer: int, expert: int, pages: int, first: int = 0) -> np.ndarray:
    out = np.empty(pages * 512, dtype=np.uint64)
    PAGES.fill(out, layer, expert, first)
    return out


def test_the_stamp_is_laid_out_as_the_replayer_reads_it() -> None:
    data = filled(3, 895, 3, first=100).tobytes()
    assert struct.unpack_from("<8sQIIQ", data, 4096) == (b"MOEPAGE1", 0x1122334455667788, 3, 895, 101)


def test_a_spines_pages_are_stamped_as_no_layers() -> None:
    data = filled(SPINE_LAYER, SPINE_EXPERT, 2, first=7)
    assert struct.unpack_from("<8sQIIQ", data.tobytes(), 4096) == (b"MOEPAGE1", PAGES.pool_id, 0xFFFFFFFF, 0, 8)
    assert PAGES.verify(data, SPINE_LAYER, SPINE_EXPERT, 7) is None
    fault = PAGES.verify(filled(0, 0, 1), SPINE_LAYER, SPINE_EXPERT)
    assert fault is not None
    assert "layer 0, expert 0" in fault.seen


def test_pages_do_not_compress_and_share_no_block() -> None:
    data = b"".join(filled(layer, expert, 130).tobytes() for layer in (0, 1) for expert in (0, 1))
    assert len(zlib.compress(data, 9)) > 0.98 * len(data)
    pages = [data[at + 32 : at + 4096] for at in range(0, len(data), 4096)]
    blocks = {page[at : at + 64] for page in pages for at in range(0, 4064 - 64, 64)}
    assert len(blocks) == len(pages) * 63


def test_a_part_of_an_expert_is_the_same_as_in_the_whole() -> None:
    assert (filled(1, 2, 200)[512 * 70 : 512 * 170] == filled(1, 2, 100, first=70)).all()


def test_sound_pages_verify() -> None:
    assert PAGES.verify(filled(5, 6, 150, first=10), 5, 6, 10) is None


@pytest.mark.parametrize(
    ("word", "seen"),
    [
        (0, r"no stamp \(it starts with"),
        (1, "pool 1122334455667789"),
        (2, "layer 4, expert 6"),
        (3, "page 6 of pool"),
        (511, "the right stamp, but other bytes from byte 4088"),
    ],
)
def test_one_flipped_bit_is_found_and_its_page_named(word: int, seen: str) -> None:
    data = filled(5, 6, 10)
    data[7 * 512 + word] ^= np.uint64(1)
    fault = PAGES.verify(data, 5, 6)
    assert fault is not None
    assert fault.page == 7
    assert fault.expected == "page 7 of pool 1122334455667788, layer 5, expert 6"
    assert re.search(seen, fault.seen)


def test_zeroed_pages_are_called_so() -> None:
    data = filled(5, 6, 2)
    data[512:] = 0
    fault = PAGES.verify(data, 5, 6)
    assert fault is not None
    assert (fault.page, fault.seen) == (1, "only zero bytes")
