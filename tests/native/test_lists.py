"""A list file that is truncated, foreign, damaged or made for something else is refused before anything is read."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .lists import ADVICE, HEADER_FIELDS, HEADER_FORMAT, TABLE, ListParts

HUGE = 2**64 - 8
PAGE = 4096

Replay = Callable[..., Any]
MakePool = Callable[..., Any]
LISTS = ((0, 1, 2), (), (5,), (7, 6, 0, 7))
TRIGGERS = (0, 2, 3, 7)


@pytest.fixture
def lists(make_pool: MakePool, replay: Replay, native_bin: Path, tmp_path: Path) -> Lists:
    """Return the list files of a pool of 8 experts, read once each."""
    usage = subprocess.run([native_bin / "moetier-replay", "--help"], capture_output=True, check=True, text=True).stdout
    return Lists(make_pool(), replay, tmp_path / "the.list", takes_tables="--table" in usage)


@dataclass
class Lists:
    """A pool, and a list file that a replay of it is given."""

    pool: Any
    replay: Replay
    path: Path
    takes_tables: bool
    kind: int = ADVICE

    def write(self, kind: int = ADVICE, **changes: Any) -> None:
        """Write good lists of the kind with changes as for ``ListParts.encode``."""
        if kind == TABLE and not self.takes_tables:
            pytest.skip("these executables know no --table")
        self.kind = kind
        parts = (
            ListParts(self.pool.parts, LISTS, TRIGGERS) if kind == ADVICE else ListParts(self.pool.parts, [(3, 0, 7)])
        )
        self.path.write_bytes(parts.encode(**changes))

    def run(self) -> Any:
        """Replay with the list file."""
        if self.kind == ADVICE:
            return self.replay(self.pool, "--prefetch", "fadvise", "--advice", self.path)
        return self.replay(self.pool, "--mode", "pinned", "--own-bytes", str(2 * 16 * PAGE), "--table", self.path)

    def refusal(self) -> str:
        """Return the message with which the list is refused, after checking that it is refused properly."""
        outcome = self.run()
        assert outcome.exit == 2, outcome.stderr
        error = outcome.only("error")
        assert (error["code"], error["path"]) == ("list", str(self.path))
        assert error["message"].startswith(f"list {self.path}: ")
        assert outcome.events == [error, {"event": "end", "partial": True, "exit": 2}]
        assert outcome.stderr == f"moetier-replay: {error['message']}\n"
        return str(error["message"])


def test_good_advice_is_taken(lists: Lists) -> None:
    lists.write()
    outcome = lists.run()
    assert outcome.exit == 0, outcome.stderr


def test_a_good_table_is_taken(lists: Lists) -> None:
    lists.write(TABLE)
    outcome = lists.run()
    assert outcome.exit in {0, 3}, outcome.stderr  # 3: read, and then no leave to lock memory


def test_advice_without_a_list_is_taken(lists: Lists) -> None:
    empty = {"offsets": bytes(8), "triggers": b"", "ids": b""}
    lists.write(header={"n_lists": 0, "n_ids": 0}, sections=empty)
    assert lists.run().exit == 0


@pytest.mark.parametrize("kind", [TABLE, ADVICE])
@pytest.mark.parametrize("field", HEADER_FIELDS)
@pytest.mark.parametrize("bit", [0, 5])
def test_a_flipped_bit_in_any_field_of_the_header_is_seen(lists: Lists, kind: int, field: str, bit: int) -> None:
    lists.write(kind)
    content = bytearray(lists.path.read_bytes())
    before = HEADER_FORMAT[1:].replace("8s", "s")[: HEADER_FIELDS.index(field)].replace("s", "8s")
    content[struct.calcsize("<" + before)] ^= 1 << bit
    lists.path.write_bytes(content)
    lists.refusal()


@pytest.mark.parametrize("at", [96, 96 + 5 * 8, 96 + 9 * 8, -1])
def test_a_flipped_bit_in_any_section_is_seen(lists: Lists, at: int) -> None:
    lists.write()
    content = bytearray(lists.path.read_bytes())
    content[at] ^= 4
    lists.path.write_bytes(content)
    assert "the body's CRC" in lists.refusal()


@pytest.mark.parametrize("kept", [0, 1, 8, 95, 96, 97, 150, -8, -1])
def test_a_truncated_list_is_refused(lists: Lists, kept: int) -> None:
    lists.write()
    lists.path.write_bytes(lists.path.read_bytes()[:kept])
    message = lists.refusal()
    assert "expected a file of at least 96" in message or "truncated, or still being written" in message


def test_a_list_with_bytes_after_its_end_is_refused(lists: Lists) -> None:
    lists.write()
    lists.path.write_bytes(lists.path.read_bytes() + b"\0")
    assert "truncated, or still being written" in lists.refusal()


@pytest.mark.parametrize(
    "content", [b"# a text file\n" * 100, bytes(4096), b"MOEPLAN\0" + bytes(500), b"MOELIST1" + bytes(500)]
)
def test_a_foreign_file_is_no_list(lists: Lists, content: bytes) -> None:
    lists.path.write_bytes(content)
    assert "not a list of experts" in lists.refusal()


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe"])
def test_what_is_no_file_is_refused_without_waiting(lists: Lists, kind: str) -> None:
    if kind == "folder":
        lists.path.mkdir()
    elif kind == "pipe":
        os.mkfifo(lists.path)
    lists.refusal()


@pytest.mark.parametrize(
    ("header", "seen"),
    [
        ({"version": 2}, "version 2, this program reads version 1"),
        ({"header_bytes": 104}, "header of 104 bytes, expected 96"),
        ({"kind": TABLE}, "it is a table (kind 1), expected advice"),
        ({"kind": 3}, "it is of an unknown kind (kind 3), expected advice"),
        ({"flags": 2}, "unknown flags 0x2"),
        ({"reserved_1": 1}, "reserved fields"),
        ({"reserved_2": 1}, "reserved fields"),
        ({"reserved_3": 1}, "reserved fields"),
        ({"pool_id": 1}, "made for pool 0000000000000001, the plan reads pool 0123456789abcdef"),
        ({"n_experts": 9}, "made for 9 experts, the plan has 8"),
        ({"n_accesses": 7}, "made for a plan of 7 accesses, expected 8"),
        ({"sequence_crc": 0}, "made for another plan"),
        ({"n_lists": 3}, "3 lists of 8 experts take 184 bytes, the file has 200"),
        ({"n_lists": 2**61}, "do not fit into its 200 bytes"),
        ({"n_lists": HUGE}, "do not fit into its 200 bytes"),
        ({"n_ids": 6}, "4 lists of 6 experts take 192 bytes, the file has 200"),
        ({"n_ids": 2**62}, "do not fit into its 200 bytes"),
        ({"n_ids": HUGE}, "do not fit into its 200 bytes"),
        ({"n_ids": 7}, "lists run from 0 to 8, expected 0 to 7"),
        ({"crc_body": 0}, "the body's CRC"),
    ],
)
def test_a_wrong_header_is_refused_for_its_reason_even_with_right_sums(
    lists: Lists, header: dict[str, int], seen: str
) -> None:
    lists.write(header=header)
    assert seen in lists.refusal()


@pytest.mark.parametrize(
    ("section", "numbers", "seen"),
    [
        ("offsets", (1, 3, 3, 4, 8), "lists run from 1 to 8, expected 0 to 8"),
        ("offsets", (0, 3, 3, 4, 9), "lists run from 0 to 9, expected 0 to 8"),
        ("offsets", (0, 3, 2, 4, 8), "list 1 ends before it starts"),
        ("offsets", (0, 3, HUGE, 4, 8), "list 2 ends before it starts"),
        ("triggers", (0, 2, 3, 8), "list 3 is for access 8 of 8"),
        ("triggers", (0, 2, HUGE, 7), f"list 2 is for access {HUGE} of 8"),
        ("triggers", (0, 2, 2, 7), "list 2 is for access 2, not after"),
        ("triggers", (3, 2, 4, 7), "list 1 is for access 2, not after"),
        ("ids", (0, 1, 2, 8, 7, 6, 0, 7), "entry 3 is expert 8, of 8"),
        ("ids", (0, 1, 2, 5, 7, 6, 0, 2**32 - 1), f"entry 7 is expert {2**32 - 1}, of 8"),
    ],
)
def test_inconsistent_lists_are_refused_for_their_reason(
    lists: Lists, section: str, numbers: tuple[int, ...], seen: str
) -> None:
    items = struct.pack(f"<{len(numbers)}{'I' if section == 'ids' else 'Q'}", *numbers)
    lists.write(sections={section: items})
    assert seen in lists.refusal()


def test_advice_for_other_accesses_of_the_same_pool_is_refused(lists: Lists) -> None:
    lists.write()
    lists.pool.parts.sequence[:2] = [1, 0]
    lists.pool.write_plan()
    assert "made for another plan" in lists.refusal()


@pytest.mark.parametrize(
    ("header", "sections", "seen"),
    [
        ({"kind": ADVICE}, {}, "it is advice (kind 2), expected a table"),
        ({"n_accesses": 8}, {}, "made for a plan of 8 accesses, expected 0 (a table belongs to no plan)"),
        ({"sequence_crc": 7}, {}, "made for the accesses with CRC 00000007, expected 00000000 (a table belongs to no"),
        (
            {"n_lists": 2},
            {"offsets": struct.pack("<3Q", 0, 1, 3), "triggers": struct.pack("<2Q", 0, 0)},
            "a table of 2 lists, expected one",
        ),
        (
            {"n_lists": 0, "n_ids": 0},
            {"offsets": bytes(8), "triggers": b"", "ids": b""},
            "a table of 0 lists, expected one",
        ),
        ({}, {"triggers": struct.pack("<Q", 1)}, "a table with trigger 1, expected 0"),
        ({}, {"ids": struct.pack("<3I", 3, 8, 7)}, "entry 1 is expert 8, of 8"),
        ({}, {"ids": struct.pack("<3I", 3, 0, 3)}, "entry 2 is expert 3, which the table already holds"),
    ],
)
def test_a_table_that_is_none_is_refused_for_its_reason(
    lists: Lists, header: dict[str, int], sections: dict[str, bytes], seen: str
) -> None:
    lists.write(TABLE, header=header, sections=sections)
    assert seen in lists.refusal()


def test_a_list_leaves_no_page_behind(lists: Lists, resident: Callable[[Path], int]) -> None:
    lists.write()
    assert lists.run().exit == 0
    assert resident(lists.path) == 0
