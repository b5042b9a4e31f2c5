"""What a reader returns: the rows of a file as columns, untyped, in the file's order.

A row is what one line (or record) says: which layer chose which experts, and as far as the format tells, in which
iteration, phase and kind. The parser makes a ``Trace`` of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

UNKNOWN = 255
"""A row's phase or kind that the format does not tell."""
DECODE, PREFILL = 0, 1
PHASES = {"decode": DECODE, "prefill": PREFILL}

EQUAL_WEIGHTS, FALLING_WEIGHTS = 1, 2
"""Flags of a row: its weights are all the same; they never rise along the row."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What the user knows and the file may not say; None where nothing was said.

    Attributes:
        n_experts: experts per layer.
        k: experts chosen per layer and pass.
        requested_tokens: how many tokens the engine was asked for (it accepts one fewer in decode).
    """

    n_experts: int | None = None
    k: int | None = None
    requested_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class About:
    """What a file says of itself.

    Attributes:
        source: where the trace comes from, in words.
        synthetic: made by a generator.
        k: experts chosen per layer and pass, where stated.
        n_experts: experts per layer, where stated.
        layers: the model's MoE layers, where stated.
        expert_bytes: the size of one expert by layer, where stated.
        records: decode records that the file should hold, where stated.
        order: how ids stand within a pass, a key of ``records.ORDERS``, where stated.
        requested_tokens: tokens the engine was asked for, where stated.
        accepted_tokens: of merged streams, where stated.
        speculative: a decode record of 2k ids is a speculation that held, and a layer routed twice in an iteration one
            that failed; else the first is a batch of two positions, and the second a mistake.
        place: what ``Rows.line`` counts: line or record.
        warnings: sentences about what was left out or guessed.
        cut: the file ends early.
    """

    source: str
    synthetic: bool = False
    k: int | None = None
    n_experts: int | None = None
    layers: tuple[int, ...] | None = None
    expert_bytes: Mapping[int, int] = field(default_factory=dict)
    records: int | None = None
    order: str | None = None
    requested_tokens: int | None = None
    accepted_tokens: int | None = None
    speculative: bool = False
    place: str = "line"
    warnings: tuple[str, ...] = ()
    cut: bool = False


class Block(Protocol):
    """Columns of some rows, as the scanner returns them; the names are those of ``Rows``."""

    line: NDArray[Any]
    key: NDArray[Any]
    layer: NDArray[Any]
    phase: NDArray[Any]
    kind: NDArray[Any]
    flags: NDArray[Any]
    width: NDArray[Any]
    ids: NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of a file, as columns.

    Attributes:
        about: what the file says of itself.
        line: i64, the line or record of the file.
        key: i64, the iteration as the file numbers it; rows of one iteration share it (-1: the format has none).
        layer: i32, the layer as the file numbers it.
        phase: u8, DECODE, PREFILL or UNKNOWN.
        kind: u8, an index into ``records.KINDS``, or UNKNOWN.
        flags: u8, of EQUAL_WEIGHTS and FALLING_WEIGHTS.
        width: i64, how many ids the row has.
        ids: u16, flat, in the order issued.
    """

    about: About
    line: NDArray[np.int64]
    key: NDArray[np.int64]
    layer: NDArray[np.int32]
    phase: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    width: NDArray[np.int64]
    ids: NDArray[np.uint16]

    @property
    def n(self) -> int:
        """The number of rows."""
        return len(self.key)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """The first id of each row, and the number of ids: n + 1 values."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.width)])

    def take(self, chosen: NDArray[Any], about: About | None = None) -> Rows:
        """Return the chosen rows: a boolean mask, or indices in the order wanted."""
        at = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        width = self.width[at]
        starts = self.offsets[:-1][at]
        within = np.arange(int(width.sum())) - np.repeat(np.cumsum(width) - width, width)
        return Rows(
            about=about or self.about,
            line=self.line[at],
            key=self.key[at],
            layer=self.layer[at],
            phase=self.phase[at],
            kind=self.kind[at],
            flags=self.flags[at],
            width=width,
            ids=self.ids[np.repeat(starts, width) + within],
        )


_COLUMNS = {
    "line": ("q", np.int64),
    "key": ("q", np.int64),
    "layer": ("i", np.int32),
    "phase": ("B", np.uint8),
    "kind": ("B", np.uint8),
    "flags": ("B", np.uint8),
    "width": ("q", np.int64),
    "ids": ("H", np.uint16),
}


class RowsBuilder:
    """Collects rows one by one or in blocks, in order."""

    def __init__(self) -> None:
        """Start with no row."""
        self._done: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}
        self._open = {name: array(code) for name, (code, _) in _COLUMNS.items()}
        self.n = 0

    def add(  # noqa: PLR0913, PLR0917  (a row has these columns)
        self,
        line: int,
        key: int,
        layer: int,
        ids: Sequence[int],
        phase: int = UNKNOWN,
        kind: int = UNKNOWN,
        flags: int = 0,
    ) -> None:
        """Add one row; ids must be 0 to 65535 (the reader refuses others with their place)."""
        held = self._open
        held["line"].append(line)
        held["key"].append(key)
        held["layer"].append(layer)
        held["phase"].append(phase)
        held["kind"].append(kind)
        held["flags"].append(flags)
        held["width"].append(len(ids))
        held["ids"].extend(ids)
        self.n += 1

    def extend(self, block: Block) -> None:
        """Add a block of rows."""
        self._flush()
        for name, (_, dtype) in _COLUMNS.items():
            self._done[name].append(np.asarray(getattr(block, name)).astype(dtype, copy=False))
        self.n += len(block.key)

    def _flush(self) -> None:
        for name, (code, dtype) in _COLUMNS.items():
            if len(self._open[name]):
                self._done[name].append(np.frombuffer(self._open[name], dtype=dtype))
                self._open[name] = array(code)

    def rows(self, about: About) -> Rows:
        """Return all rows."""
        self._flush()
        columns = {
            name: np.concatenate(self._done[name]) if self._done[name] else np.zeros(0, dtype)
            for name, (_, dtype) in _COLUMNS.items()
        }
        return Rows(about=about, **columns)
