"""List files: what is written is read back, and what is cut off, foreign, damaged or forged is refused by name."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import pool, speculative
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_moetier.errors import InputError
from pytest_moetier.lists import ADVICE, HEADER_BYTES, ORACLE, TABLE, Lists, read_lists, sequence_crc, write_lists
from pytest_moetier.plan import build_plan


def advice(lists: list[list[int]], triggers: list[int], **changed: Any) -> Lists:
    parts: dict[str, Any] = {
        "kind": ADVICE,
        "flags": 0,
        "pool_id": 0xFEDCBA9876543210,
        "n_experts": 16,
        "n_accesses": 20,
        "sequence_crc": 0xCAFEBABE,
        "offsets": np.cumsum([0, *map(len, lists)]).astype(np.uint64),
        "triggers": np.array(triggers, np.uint64),
        "ids": np.array([one for each in lists for one in each], np.uint32),
    }
    return Lists(**(parts | changed))


def table(ids: list[int], **changed: Any) -> Lists:
    parts: dict[str, Any] = {"kind": TABLE, "n_accesses": 0, "sequence_crc": 0}
    return advice([ids], [0], **(parts | changed))


def small() -> Lists:
    return advice([[3, 1], [15], [3, 0, 2]], [0, 4, 19])


def assert_equal(one: Lists, other: Lists) -> None:
    for name in Lists.__dataclass_fields__:
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(mine, np.ndarray):
            assert mine.tolist() == theirs.tolist(), name
            assert mine.dtype == theirs.dtype, name
        else:
            assert mine == theirs, name


def test_the_file_is_laid_out_as_the_replayer_reads_it(tmp_path: Path) -> None:
    write_lists(replace(small(), flags=ORACLE), tmp_path / "list")
    data = (tmp_path / "list").read_bytes()
    assert len(data) == 96 + 4 * 8 + 3 * 8 + 6 * 4
    assert struct.unpack_from("<8sIIQII", data) == (b"MOELIST\0", 1, 96, len(data), 2, 1)
    assert struct.unpack_from("<5Q", data, 32) == (0xFEDCBA9876543210, 16, 20, 3, 6)
    body, header = zlib.crc32(data[96:]), zlib.crc32(data[:92])
    assert struct.unpack_from("<6I", data, 72) == (0xCAFEBABE, 0, body, 0, 0, header)
    assert struct.unpack_from("<7Q6I", data, 96) == (0, 2, 3, 6, 0, 4, 19, 3, 1, 15, 3, 0, 2)


def test_the_ids_are_padded_to_eight_bytes_by_zeros(tmp_path: Path) -> None:
    write_lists(table([5, 0, 9]), tmp_path / "list")
    data = (tmp_path / "list").read_bytes()
    assert data[96:] == struct.pack("<3Q4I", 0, 3, 0, 5, 0, 9, 0)
    assert struct.unpack_from("<I", data, 80) == (zlib.crc32(data[96:]),)


def test_a_sequence_is_known_by_the_crc_of_its_bytes_as_the_plan_file_has_them() -> None:
    plan = build_plan(speculative(), pool())
    assert sequence_crc(plan) == zlib.crc32(struct.pack("<20I", *plan.sequence.tolist()))
    assert sequence_crc(build_plan(speculative(), pool(), iterations=2)) != sequence_crc(plan)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("list") / "list"
    experts = data.draw(st.integers(1, 1 << 32))
    expert = st.integers(0, experts - 1)
    made = table(data.draw(st.lists(expert, min_size=1, max_size=9, unique=True)), n_experts=experts)
    if data.draw(st.booleans()):
        accesses = data.draw(st.integers(1, 1 << 40))
        triggers = sorted(data.draw(st.sets(st.integers(0, accesses - 1), max_size=9)))
        lists = [data.draw(st.lists(expert, min_size=1, max_size=5)) for _ in triggers]
        crc, flags = data.draw(st.integers(0, (1 << 32) - 1)), data.draw(st.sampled_from([0, ORACLE]))
        made = advice(lists, triggers, n_experts=experts, n_accesses=accesses, sequence_crc=crc, flags=flags)
    write_lists(made, path)
    assert_equal(made, read_lists(path))


def test_lists_are_private_and_never_written_through_a_link(tmp_path: Path) -> None:
    write_lists(small(), tmp_path / "list")
    assert (tmp_path / "list").stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "list")
    with pytest.raises(InputError, match="is a symbolic link"):
        write_lists(table([1]), tmp_path / "link")
    assert_equal(small(), read_lists(tmp_path / "list"))


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (advice([[1]], [0], kind=3), "kind 3, flags 0x0; expected kind 1 or 2"),
        (advice([[1]], [0], flags=2), "kind 2, flags 0x2"),
        (advice([[16]], [0]), "it names expert 16; expected indices below 16"),
        (advice([[1], []], [0, 1]), "its offsets do not rise; expected lists of at least one id"),
        (advice([[1]], [0, 1]), "its offsets do not divide its ids"),
        (advice([[1], [2]], [4, 4]), "its triggers do not rise"),
        (advice([[1], [2]], [4, 3]), "its triggers do not rise"),
        (advice([[1]], [20]), "a list submitted at access 20; expected accesses below 20"),
        (table([1, 2, 1]), "a table that names an expert twice"),
        (table([]), "its offsets do not rise"),
        (table([1], n_accesses=20), "or one bound to a plan"),
        (table([1], sequence_crc=1), "or one bound to a plan"),
        (replace(table([1]), triggers=np.ones(1, np.uint64)), "or one bound to a plan"),
        (advice([[1], [2]], [0, 0], kind=TABLE, n_accesses=0, sequence_crc=0), "a table of 2 lists"),
    ],
)
def test_lists_that_break_a_rule_are_not_written(tmp_path: Path, lists: Lists, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_lists(lists, tmp_path / "list")
    assert list(tmp_path.iterdir()) == []


def written(tmp_path: Path) -> Path:
    write_lists(small(), tmp_path / "list")
    return tmp_path / "list"


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "it has 0 bytes; expected the magic"),
        (7, "it has 7 bytes; expected the magic"),
        (50, "it is cut off after 50 bytes"),
        (96, "it has 96 bytes; expected 176 as its header states"),
        (-1, "is it cut off"),
    ],
)
def test_a_truncated_file_is_refused(tmp_path: Path, size: int, message: str) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match=f"list {path}: .*{message}"):
        read_lists(path)


def test_a_foreign_missing_or_longer_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes() + bytes(8))
    with pytest.raises(InputError, match="it has 184 bytes; expected 176"):
        read_lists(path)
    path.write_bytes(b"MOEPLAN\0" + bytes(200))
    with pytest.raises(InputError, match="it is no list file; expected the magic MOELIST"):
        read_lists(path)
    with pytest.raises(InputError, match="No such file"):
        read_lists(tmp_path / "none")


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int) -> None:
    path = written(tmp_path_factory.mktemp("list"))
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"list .*: "):
        read_lists(path)


@pytest.mark.parametrize(
    ("layout", "offset", "value", "message"),
    [
        ("<I", 8, 2, "version 2; expected version 1"),
        ("<I", 12, 160, "header_bytes 160; expected header_bytes 96"),
        ("<Q", 16, 184, "it has 176 bytes; expected 184"),
        ("<I", 24, 0, "kind 0"),
        ("<I", 24, 1, "a table of 3 lists"),
        ("<I", 28, 3, "flags 0x3"),
        ("<Q", 40, 15, "it names expert 15; expected indices below 15"),
        ("<Q", 48, 19, "a list submitted at access 19; expected accesses below 19"),
        ("<Q", 56, 2**61, f"{2**61} lists of 6 ids in 176 bytes"),
        ("<Q", 64, 2**62, f"3 lists of {2**62} ids in 176 bytes"),
        ("<Q", 96, 1, "its offsets do not divide its ids"),
        ("<Q", 104, 3, "its offsets do not rise"),
        ("<Q", 104, 2**63, "its offsets do not rise"),
        ("<Q", 120, 5, "its offsets do not divide its ids into lists; expected rising from 0 to 6"),
        ("<Q", 136, 0, "its triggers do not rise"),
        ("<I", 152, 2**31, "it names expert 2147483648"),
    ],
)
def test_a_forged_file_with_right_checksums_is_refused_by_what_is_wrong(
    tmp_path: Path, layout: str, offset: int, value: int, message: str
) -> None:
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    struct.pack_into(layout, data, offset, value)
    struct.pack_into("<I", data, 80, zlib.crc32(data[HEADER_BYTES:]))
    struct.pack_into("<I", data, 92, zlib.crc32(data[:92]))
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_lists(path)
