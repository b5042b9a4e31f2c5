"""Lists of a plan's experts in the binary file the replayer reads: a table to pin, or what to read ahead and when.

The file is little-endian: a header of 96 bytes as the dtype below lays it out, then the offset of each list's first id
(and the number of ids), the access at which each list is submitted, and the ids, padded to 8 bytes. The header and the
body carry a CRC-32 each. A file names its pool, and advice the sequence of accesses that it was made for.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.errors import InputError
from pytest_moetier.plan import Plan
from pytest_moetier.pool.private import write_private

MAGIC = b"MOELIST\0"
VERSION = 1
HEADER_BYTES = 96
TABLE, ADVICE = 1, 2
"""Kinds: one list of experts to pin, best first; lists of experts that will be read soon, each with its trigger."""
ORACLE = 1
"""The flag of lists that know what will be read."""

_KINDS = {TABLE: "table", ADVICE: "advice"}
_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("header_bytes", "<u4"),
        ("file_bytes", "<u8"),
        ("kind", "<u4"),
        ("flags", "<u4"),
        ("pool_id", "<u8"),
        *((f"n_{name}", "<u8") for name in ("experts", "accesses", "lists", "ids")),
        ("sequence_crc", "<u4"),
        ("reserved", "<u4"),
        ("crc_body", "<u4"),
        ("reserved2", "<u4"),
        ("reserved3", "<u4"),
        ("crc_header", "<u4"),
    ]
)
_REWRITE = "write it again from its trace and pool"


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Lists of experts of one pool.

    Attributes:
        kind: ``TABLE`` or ``ADVICE``.
        flags: ``ORACLE`` or 0.
        pool_id: of the pool whose experts are meant.
        n_experts: experts of that pool.
        n_accesses: of the plan that advice was made for; 0 for a table.
        sequence_crc: ``sequence_crc`` of that plan; 0 for a table.
        offsets: u64, one more than lists: list i's ids are ``ids[offsets[i]:offsets[i + 1]]``; no list is empty.
        triggers: u64 per list, the access at which it is submitted, strictly rising; a table's is 0.
        ids: u32, indices into the plan's experts.
    """

    kind: int
    flags: int
    pool_id: int
    n_experts: int
    n_accesses: int
    sequence_crc: int
    offsets: NDArray[np.uint64]
    triggers: NDArray[np.uint64]
    ids: NDArray[np.uint32]

    @property
    def n_lists(self) -> int:
        """The number of lists."""
        return len(self.triggers)


def sequence_crc(plan: Plan) -> int:
    """Return the CRC-32 of the plan's sequence, four bytes an access: what advice recognises its plan by."""
    return zlib.crc32(np.ascontiguousarray(plan.sequence.astype("<u4", copy=False)).view(np.uint8).data)


def write_lists(lists: Lists, path: Path) -> None:
    """Write ``lists`` to ``path``: whole or not at all, mode 0600, never through a link.

    Raises:
        InputError: the lists break a rule of the format, or ``path`` is a link or special file or cannot be written.
    """
    _check(lists, path)
    ids = lists.ids.astype("<u4").tobytes()
    body = lists.offsets.astype("<u8").tobytes() + lists.triggers.astype("<u8").tobytes() + ids + bytes(-len(ids) % 8)
    header = np.zeros((), dtype=_HEADER)
    header["magic"], header["version"], header["header_bytes"] = MAGIC, VERSION, HEADER_BYTES
    header["file_bytes"], header["crc_body"] = HEADER_BYTES + len(body), zlib.crc32(body)
    header["kind"], header["flags"], header["pool_id"] = lists.kind, lists.flags, lists.pool_id
    header["n_experts"], header["n_accesses"] = lists.n_experts, lists.n_accesses
    header["n_lists"], header["n_ids"], header["sequence_crc"] = lists.n_lists, len(lists.ids), lists.sequence_crc
    header["crc_header"] = zlib.crc32(header.tobytes()[:-4])
    write_private(path, [header.tobytes(), body])


def read_lists(path: Path) -> Lists:
    """Return the lists in the file ``path``, every size, offset, index and checksum checked.

    Raises:
        InputError: the file is cut off, foreign, damaged or inconsistent; the message says what was seen and expected.
    """
    try:
        data = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise InputError(f"list {path}: {error.strerror}", "a list file that may be read") from error
    header = _header(path, data)
    n_lists, n_ids = int(header["n_lists"]), int(header["n_ids"])
    wanted = HEADER_BYTES + 8 * (2 * n_lists + 1) + -(-4 * n_ids // 8) * 8
    if wanted != len(data):
        raise _refused(path, f"{n_lists} lists of {n_ids} ids in {len(data)} bytes", f"{wanted} bytes for so many")
    if (crc := zlib.crc32(data[HEADER_BYTES:].data)) != int(header["crc_body"]):
        raise _refused(path, f"the body's CRC is {crc:08x}", f"{int(header['crc_body']):08x} as its header states")
    numbers = data[HEADER_BYTES : HEADER_BYTES + 8 * (2 * n_lists + 1)].view("<u8")
    start = HEADER_BYTES + numbers.nbytes
    lists = Lists(
        kind=int(header["kind"]),
        flags=int(header["flags"]),
        pool_id=int(header["pool_id"]),
        n_experts=int(header["n_experts"]),
        n_accesses=int(header["n_accesses"]),
        sequence_crc=int(header["sequence_crc"]),
        offsets=numbers[: n_lists + 1],
        triggers=numbers[n_lists + 1 :],
        ids=data[start : start + 4 * n_ids].view("<u4"),
    )
    _check(lists, path)
    return lists


def _refused(path: Path, seen: str, expected: str) -> InputError:
    return InputError(f"list {path}: {seen}", expected, _REWRITE)


def _header(path: Path, data: NDArray[np.uint8]) -> np.void:
    size = len(data)
    if data[:8].tobytes() != MAGIC:
        seen = "it is no list file" if size >= 8 else f"it has {size} bytes"
        raise _refused(path, seen, "the magic MOELIST at its start")
    if size < HEADER_BYTES:
        raise _refused(path, f"it is cut off after {size} bytes", f"a header of {HEADER_BYTES} bytes")
    raw = data[:HEADER_BYTES]
    header: np.void = raw.view(_HEADER)[0]
    for name, wanted in (("version", VERSION), ("header_bytes", HEADER_BYTES)):
        if int(header[name]) != wanted:
            raise _refused(path, f"{name} {header[name]}", f"{name} {wanted}")
    if (crc := zlib.crc32(raw[:-4].data)) != int(header["crc_header"]):
        raise _refused(path, f"the header's CRC is {crc:08x}", f"{int(header['crc_header']):08x} as it states")
    if int(header["file_bytes"]) != size:
        raise _refused(path, f"it has {size} bytes", f"{header['file_bytes']} as its header states (is it cut off?)")
    return header


def _check(lists: Lists, path: Path) -> None:
    """Refuse lists that break a rule of the format, read or to be written."""
    if lists.kind not in _KINDS or lists.flags & ~ORACLE:
        raise _refused(path, f"kind {lists.kind}, flags {lists.flags:#x}", "kind 1 or 2, no flag but 0x1")
    offsets, triggers, ids = lists.offsets, lists.triggers, lists.ids
    if len(offsets) != len(triggers) + 1 or int(offsets[0]) or int(offsets[-1]) != len(ids):
        raise _refused(path, "its offsets do not divide its ids into lists", f"rising from 0 to {len(ids)}")
    if bool((offsets[1:] <= offsets[:-1]).any()):
        raise _refused(path, "its offsets do not rise", "lists of at least one id")
    if len(ids) and int(ids.max()) >= lists.n_experts:
        raise _refused(path, f"it names expert {int(ids.max())}", f"indices below {lists.n_experts}")
    (_check_table if lists.kind == TABLE else _check_advice)(lists, path)


def _check_table(lists: Lists, path: Path) -> None:
    if lists.n_lists != 1 or int(lists.triggers[0]) or lists.n_accesses or lists.sequence_crc:
        raise _refused(
            path, f"a table of {lists.n_lists} lists, or one bound to a plan", "one list of a pool's experts"
        )
    if len(np.unique(lists.ids)) != len(lists.ids):
        raise _refused(path, "a table that names an expert twice", "each expert once")


def _check_advice(lists: Lists, path: Path) -> None:
    triggers = lists.triggers
    if bool((triggers[1:] <= triggers[:-1]).any()):
        raise _refused(path, "its triggers do not rise", "each list submitted after the one before it")
    if len(triggers) and int(triggers[-1]) >= lists.n_accesses:
        raise _refused(path, f"a list submitted at access {triggers[-1]}", f"accesses below {lists.n_accesses}")
