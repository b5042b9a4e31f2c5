"""A small writer of list files (tables and advice): independent of the package's."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TABLE, ADVICE = 1, 2
HEADER_FIELDS = (
    *("magic", "version", "header_bytes", "file_bytes", "kind", "flags"),
    *("pool_id", "n_experts", "n_accesses", "n_lists", "n_ids"),
    *("sequence_crc", "reserved_1", "crc_body", "reserved_2", "reserved_3", "crc_header"),
)
HEADER_FORMAT = "<8sIIQIIQQQQQIIIIII"


@dataclass
class ListParts:
    """Lists of experts of a plan; ``encode`` writes them as the format's description says.

    ``parts`` is the plan as the native tests' ``PlanParts``; ``lists`` holds each list's experts; ``triggers`` is empty
    for a table.
    """

    parts: Any
    lists: Sequence[Sequence[int]]
    triggers: Sequence[int] = ()
    pool_id: int = 0x0123456789ABCDEF

    @property
    def kind(self) -> int:
        """Advice has triggers, a table has none."""
        return ADVICE if self.triggers else TABLE

    def sections(self) -> dict[str, bytes]:
        """Return each section's bytes, in the file's order."""
        offsets = list(itertools.accumulate((len(ids) for ids in self.lists), initial=0))
        triggers = self.triggers or [0] * len(self.lists)
        ids = list(itertools.chain.from_iterable(self.lists))
        return {
            "offsets": struct.pack(f"<{len(offsets)}Q", *offsets),
            "triggers": struct.pack(f"<{len(triggers)}Q", *triggers),
            "ids": struct.pack(f"<{len(ids)}I", *ids),
        }

    def encode(self, header: dict[str, Any] | None = None, sections: dict[str, bytes] | None = None) -> bytes:
        """Return the file's bytes; ``header`` and ``sections`` replace parts of it before the CRCs are computed."""
        parts = self.sections() | (sections or {})
        body = b"".join(parts[name] + bytes(-len(parts[name]) % 8) for name in ("offsets", "triggers", "ids"))
        sequence = struct.pack(f"<{len(self.parts.sequence)}I", *self.parts.sequence)
        advice = self.kind == ADVICE
        values: dict[str, Any] = {
            "magic": b"MOELIST\0",
            "version": 1,
            "header_bytes": 96,
            "file_bytes": 96 + len(body),
            "kind": self.kind,
            "flags": 0,
            "pool_id": self.pool_id,
            "n_experts": len(self.parts.experts),
            "n_accesses": len(self.parts.sequence) if advice else 0,
            "n_lists": len(self.lists),
            "n_ids": sum(len(ids) for ids in self.lists),
            "sequence_crc": zlib.crc32(sequence) if advice else 0,
            "reserved_1": 0,
            "crc_body": zlib.crc32(body),
            "reserved_2": 0,
            "reserved_3": 0,
            "crc_header": 0,
        } | (header or {})
        plain = struct.pack(HEADER_FORMAT, *(values[name] for name in HEADER_FIELDS))
        return plain[:92] + struct.pack("<I", zlib.crc32(plain[:92])) + body
