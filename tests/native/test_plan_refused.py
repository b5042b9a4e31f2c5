"""A plan that is truncated, foreign, damaged or inconsistent is refused with exit 2 before anything is read."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = 4096
# Where each field of the header lies, from the format's description.
HEADER_OFFSETS = {
    "magic": 0,
    "version": 8,
    "header_bytes": 12,
    "file_bytes": 16,
    "n_iterations": 24,
    "n_accesses": 32,
    "n_experts": 40,
    "n_extents": 48,
    "n_files": 56,
    "strings_bytes": 64,
    "off_iterations": 72,
    "off_sequence": 80,
    "off_experts": 88,
    "off_extents": 96,
    "off_files": 104,
    "off_strings": 112,
    "pool_id": 120,
    "flags": 128,
    "page_bytes": 132,
    "total_bytes": 136,
    "reserved_1": 144,
    "crc_body": 148,
    "reserved_2": 152,
    "crc_header": 156,
}
SECTIONS = ("iterations", "sequence", "experts", "extents", "files", "strings")
HUGE = 2**64 - 8

Replay = Callable[..., Any]
MakePool = Callable[..., Any]


def refusal(replay: Replay, pool: Any) -> str:
    """Return the message with which the plan is refused, after checking that it is refused properly."""
    outcome = replay(pool)
    assert outcome.exit == 2, outcome.stderr
    error = outcome.only("error")
    assert (error["code"], error["path"]) == ("plan", str(pool.plan))
    assert outcome.events[-1] == {"event": "end", "partial": True, "exit": 2}
    assert not outcome.named("start")
    assert outcome.stderr == f"moetier-replay: {error['message']}\n"
    return str(error["message"])


@pytest.mark.parametrize("field", HEADER_OFFSETS)
@pytest.mark.parametrize("bit", [0, 5])
def test_a_flipped_bit_in_any_field_of_the_header_is_seen(
    replay: Replay, make_pool: MakePool, field: str, bit: int
) -> None:
    pool = make_pool()
    plan = bytearray(pool.plan.read_bytes())
    plan[HEADER_OFFSETS[field]] ^= 1 << bit
    pool.plan.write_bytes(plan)
    refusal(replay, pool)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_flipped_bit_in_any_section_is_seen(replay: Replay, make_pool: MakePool, section: str) -> None:
    pool = make_pool()
    plan = bytearray(pool.plan.read_bytes())
    (offset,) = struct.unpack_from("<Q", plan, HEADER_OFFSETS[f"off_{section}"])
    plan[offset + 3] ^= 4
    pool.plan.write_bytes(plan)
    assert "the body's CRC" in refusal(replay, pool)


@pytest.mark.parametrize("kept", [0, 1, 8, 100, 159, 160, 161, 300, -8, -1])
def test_a_truncated_plan_is_refused(replay: Replay, make_pool: MakePool, kept: int) -> None:
    pool = make_pool()
    pool.plan.write_bytes(pool.plan.read_bytes()[:kept])
    message = refusal(replay, pool)
    assert "expected a file of at least 160" in message or "truncated, or still being written" in message


def test_a_plan_with_bytes_after_its_end_is_refused(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool()
    pool.plan.write_bytes(pool.plan.read_bytes() + b"\0")
    refusal(replay, pool)


@pytest.mark.parametrize(
    "content", [b"# a text file\n" * 100, bytes(4096), b"\x7fELF" + bytes(500), b"MOEPLAN1" + bytes(500)]
)
def test_a_foreign_file_is_not_a_plan(replay: Replay, make_pool: MakePool, content: bytes) -> None:
    pool = make_pool()
    pool.plan.write_bytes(content)
    assert "not a replay plan" in refusal(replay, pool)


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe"])
def test_what_is_no_file_is_refused_without_waiting(
    replay: Replay, make_pool: MakePool, tmp_path: Path, kind: str
) -> None:
    pool = make_pool()
    pool.plan = tmp_path / kind
    if kind == "folder":
        pool.plan.mkdir()
    elif kind == "pipe":
        os.mkfifo(pool.plan)
    refusal(replay, pool)


@pytest.mark.parametrize(
    ("header", "seen"),
    [
        ({"version": 2}, "version 2, this program reads version 1"),
        ({"header_bytes": 168}, "header of 168 bytes"),
        ({"page_bytes": 16384}, "pages of 16384 bytes, expected 4096"),
        ({"flags": 33}, "unknown flags 0x20"),
        ({"reserved_1": 1}, "reserved fields"),
        ({"reserved_2": 1}, "reserved fields"),
        ({"n_iterations": 0}, "0 iterations"),
        ({"n_accesses": 0}, "0 accesses"),
        ({"n_iterations": 2**64 - 1}, "more iterations"),
        ({"n_iterations": 2**61}, "section iterations"),
        ({"n_iterations": 10**6}, "section iterations"),
        ({"n_iterations": 1}, "iterations run from access 0 to 4, expected 0 to 8"),
        ({"n_accesses": 2**62}, "section sequence"),
        ({"n_accesses": 10**6}, "section sequence"),
        ({"n_experts": 2**40}, "more iterations, experts or files"),
        ({"n_experts": 10**6}, "section experts"),
        ({"n_experts": 7}, "access 7 is of expert 7, of 7"),
        ({"n_extents": 2**61}, "section extents"),
        ({"n_extents": 7}, "expert 7 has 1 extents from 7, of 7"),
        ({"n_files": 2**32 - 1}, "section files"),
        ({"n_files": 7}, "extent 7 is in file 7 of 7"),
        ({"strings_bytes": 10**6}, "section strings"),
        ({"strings_bytes": 39}, "the path of file 7 lies outside"),
        *(({f"off_{name}": 164}, f"section {name} starts at byte 164, expected a multiple of 8") for name in SECTIONS),
        *(({f"off_{name}": 8}, f"section {name}") for name in SECTIONS),
        *(({f"off_{name}": HUGE}, f"section {name}") for name in SECTIONS),
        ({"total_bytes": 1}, "total of 1 bytes, its accesses have 524288"),
        ({"crc_body": 0}, "the body's CRC"),
    ],
)
def test_a_wrong_header_is_refused_for_its_reason_even_with_right_sums(
    replay: Replay, make_pool: MakePool, header: dict[str, int], seen: str
) -> None:
    pool = make_pool()
    pool.write_plan(header=header)
    assert seen in refusal(replay, pool)


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (("iterations", 0, 1), "iterations run from access 1 to 8"),
        (("iterations", 1, 9), "iteration 1 ends before it starts"),
        (("iterations", 2, 7), "iterations run from access 0 to 7"),
        (("sequence", 5, 8), "access 5 is of expert 8, of 8"),
        (("experts", 1, (0, 1, 1, 0, 0, 0)), "expert 1 has 0 extents"),
        (("experts", 2, (0, 2, 8, 1, 0, 16 * PAGE)), "expert 2 has 1 extents from 8, of 8"),
        (("experts", 2, (0, 2, HUGE, 16, 0, 16 * PAGE)), "expert 2 has 16 extents"),
        (("experts", 3, (0, 3, 3, 1, 0, PAGE)), "expert 3 has 4096 bytes, its extents 65536"),
        (("extents", 0, (8, 0, 0, 16 * PAGE)), "extent 0 is in file 8 of 8"),
        (("extents", 4, (4, 0, PAGE, 16 * PAGE)), "extent 4 (65536 bytes from 4096) is empty or leaves its file"),
        (("extents", 4, (4, 0, HUGE, 16 * PAGE)), "extent 4"),
        (("extents", 4, (4, 0, 0, 0)), "extent 4 (0 bytes from 0) is empty"),
        (("files", 3, (b"L0-E3", 2**62 + 1)), f"file 3 has {2**62 + 1} bytes, {2**62} at most"),
        (("files", 3, (b"", 16 * PAGE)), "the path of file 3 is empty"),
        (("files", 3, (b"a\0b", 16 * PAGE)), "the path of file 3 is empty, holds a NUL"),
        (("files", 3, (b"x" * 5000, 16 * PAGE)), "the path of file 3 is empty, holds a NUL or has more"),
        (("files", 3, (b"/etc/passwd", 16 * PAGE)), "the path of file 3 (/etc/passwd) leaves the pool's folder"),
        (("files", 3, (b"..", 16 * PAGE)), "leaves the pool's folder"),
        (("files", 3, (b"../x", 16 * PAGE)), "leaves the pool's folder"),
        (("files", 3, (b"a/../../x", 16 * PAGE)), "leaves the pool's folder"),
        (("files", 3, (b"a/..", 16 * PAGE)), "leaves the pool's folder"),
    ],
)
def test_an_inconsistent_section_is_refused_for_its_reason(
    replay: Replay, make_pool: MakePool, change: tuple[str, int, Any], seen: str
) -> None:
    part, index, value = change
    pool = make_pool()
    if part == "sequence":
        pool.plan.write_bytes(_with_access(pool, index, value))
    else:
        total = pool.parts.total_bytes
        getattr(pool.parts, part)[index] = value
        pool.write_plan(header={"total_bytes": total})
    assert seen in refusal(replay, pool)


@pytest.mark.parametrize("length", [2**61 + 1, 2**62])
def test_an_expert_whose_pages_cannot_be_counted_is_refused(replay: Replay, make_pool: MakePool, length: int) -> None:
    pool = make_pool("split", accesses=((0,),))
    pool.parts.files[0] = (pool.parts.files[0][0], 2**62)
    pool.parts.extents[0:2] = [(0, 0, 0, length)] * 2
    pool.parts.experts[0] = (0, 0, 0, 2, 0, 2 * length % 2**64)
    pool.write_plan()
    assert f"expert 0 has more than {2**62} bytes" in refusal(replay, pool)


def _with_access(pool: Any, index: int, expert: int) -> bytes:
    """Return the plan with an access of an expert that is not there (its bytes cannot be summed)."""
    pool.parts.sequence[index] = 0
    sequence = struct.pack("<8I", *(expert if i == index else e for i, e in enumerate(pool.parts.sequence)))
    return bytes(pool.parts.encode(sections={"sequence": sequence}))


@pytest.mark.parametrize("path", [b"..a", b"a..", b"...", b"caf\xc3\xa9", b"\xff\xfe", b"a\nb", b'"q"'])
def test_an_odd_path_below_the_root_is_as_good_as_any(replay: Replay, make_pool: MakePool, path: bytes) -> None:
    pool = make_pool()
    pool.path(3).rename(pool.root / os.fsdecode(path))
    pool.parts.files[3] = (path, 16 * PAGE)
    pool.write_plan()
    assert replay(pool).exit == 0
    (pool.root / os.fsdecode(path)).unlink()
    outcome = replay(pool)
    assert outcome.exit == 1
    assert outcome.only("error")["path"] == path.decode(errors="replace")
    assert outcome.stderr.count("\n") == 1
