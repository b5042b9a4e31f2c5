"""JSON lines of a router trace into columns, a block of lines at a time (paper section 2).

Plain lines, nearly all of a file, are taken in C. One that is not plain goes to the reader's own ``slow`` function,
which has a full parser: it returns the row, skips the line, or raises an error that names file, line and value.
"""

from __future__ import annotations

import json
import math
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import DTypeLike, NDArray

from pytest_moetier import _trace
from pytest_moetier.errors import InputError

NO_CODE = 255
"""The phase or kind of a row whose format has none."""
NO_ITERATION = -1
"""The key of a row whose format does not number iterations."""
ALL_EQUAL, NEVER_RISING, WEIGHED = 1, 2, 4
"""Flags of a row: all its weights are equal; none is above the one before it; it has weights."""

MAX_ID = MAX_LAYER = (1 << 16) - 1
MAX_ITERATION = (1 << 63) - 1

_OBJECT = "one JSON object a line"
_IDS = f"a list of expert ids from 0 to {MAX_ID}"
_WEIGHTS = "a list of finite numbers"
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Fields:
    """Which key of a format's lines holds what; None where the format has no such key.

    Attributes:
        iteration: key of the iteration, token or step.
        layer: key of the layer.
        ids: key of the list of expert ids.
        phase: key of the phase, one of ``phases``.
        kind: key of the line's type, one of ``kinds``.
        weights: key of the list of router weights; a line may lack it.
        phases: code (0 to 254) of each word that ``phase`` may be.
        kinds: code (0 to 254) of each word that ``kind`` may be.
    """

    iteration: str | None
    layer: str
    ids: str
    phase: str | None = None
    kind: str | None = None
    weights: str | None = None
    phases: Mapping[str, int] = field(default_factory=dict)
    kinds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The rows of one block, in the order of its lines.

    Attributes:
        line: number in the file, from 1.
        key: iteration, token or step; -1 where the format has none.
        layer: from 0 to 65535.
        phase: code of the word; 255 where the format has none.
        kind: code of the word; 255 where the format has none.
        flags: sum of ``ALL_EQUAL``, ``NEVER_RISING`` and ``WEIGHED``; 0 for a row without weights.
        width: ids of each row.
        ids: all rows' ids, one row after the other.
    """

    line: NDArray[np.uint64]
    key: NDArray[np.int64]
    layer: NDArray[np.int32]
    phase: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    width: NDArray[np.uint32]
    ids: NDArray[np.uint16]


_TYPES: tuple[DTypeLike, ...] = (
    np.uint64,
    np.int64,
    np.int32,
    np.uint8,
    np.uint8,
    np.uint8,
    np.uint32,
    np.uint16,
)
_ROW = tuple(struct.Struct(one) for one in ("=Q", "=q", "=i", "=B", "=B", "=B", "=I"))


@dataclass(frozen=True, slots=True)
class SlowRow:
    """One line's row as a ``slow`` function returns it: the same values as in ``Columns``."""

    iteration: int
    layer: int
    ids: Sequence[int]
    phase: int = NO_CODE
    kind: int = NO_CODE
    flags: int = 0


Slow = Callable[[int, bytes], SlowRow | None]
"""What decides about a line that is not plain, from its number and its text: a row, None to skip it, or an error."""


def scan(block: bytes, first_line: int, fields: Fields, slow: Slow) -> Iterator[Columns]:
    """Yield the rows of a block of whole lines, if it has any; blank lines are skipped.

    Args:
        block: the text; its last line may lack the newline.
        first_line: number in the file of the block's first line, from 1.
        fields: what the format's keys are called.
        slow: decides about lines that are not plain; ``strict`` makes one.

    Raises:
        ValueError: ``fields`` has an empty or repeated key or word, or one that is not plain ASCII.
    """
    keys = (fields.iteration, fields.layer, fields.ids, fields.phase, fields.kind, fields.weights)
    words = tuple(fields.phases.items()), tuple(fields.kinds.items())
    parts: tuple[list[bytes], ...] = tuple([] for _ in _TYPES)
    at, line = 0, first_line
    while at < len(block):
        at, line, *columns = _trace.scan_jsonl(block, at, line, keys, *words)
        for part, column in zip(parts, columns, strict=True):
            part.append(column)
        if at == len(block):
            break
        end = block.find(b"\n", at)
        end = len(block) if end < 0 else end
        row = slow(line, block[at:end])
        if row is not None:
            _append(parts, line, row)
        at, line = end + 1, line + 1
    joined = [b"".join(part) for part in parts]
    if joined[0]:
        arrays: list[NDArray[Any]] = [np.frombuffer(one, dtype) for one, dtype in zip(joined, _TYPES, strict=True)]
        yield Columns(*arrays)


def _append(parts: Sequence[list[bytes]], line: int, row: SlowRow) -> None:
    values = (line, row.iteration, row.layer, row.phase, row.kind, row.flags, len(row.ids))
    for part, layout, value in zip(parts, _ROW, values, strict=False):
        part.append(layout.pack(value))
    parts[-1].append(array("H", row.ids).tobytes())


@dataclass(frozen=True, slots=True)
class _Line:
    """A line for the full parser, with where it is."""

    where: Path
    number: int
    text: bytes

    def refuse(self, seen: str, expected: str) -> InputError:
        return InputError(f"{self.where}, line {self.number}: {seen}", expected)


def strict(fields: Fields, where: Path, skip: frozenset[str] = frozenset()) -> Slow:
    """Return a ``slow`` function that takes every good line and refuses any other with a precise message.

    Args:
        fields: what the format's keys are called.
        where: the file, for messages.
        skip: words of ``fields.kind`` whose lines hold no row, such as ``meta``.
    """
    names = (fields.iteration, fields.layer, fields.ids, fields.phase, fields.kind, fields.weights)
    quoted = [f'"{name}"'.encode() for name in names if name is not None]
    skipped = sorted(skip)  # a list: a line's value may be one that no set can be asked for

    def slow(number: int, text: bytes) -> SlowRow | None:
        line = _Line(where, number, text)
        row = _parsed(line)
        if b"\\" in text or any(text.count(name) > 1 for name in quoted):
            _check_once(line, names)
        if fields.kind is not None and row.get(fields.kind) in skipped:
            return None
        return SlowRow(
            iteration=_iteration(line, row, fields.iteration),
            layer=_integer(line, row, fields.layer, MAX_LAYER),
            ids=_ids(line, row, fields.ids),
            phase=_word(line, row, fields.phase, fields.phases),
            kind=_word(line, row, fields.kind, fields.kinds),
            flags=_weight_flags(line, row, fields.weights),
        )

    return slow


def _parsed(line: _Line) -> Mapping[str, object]:
    try:
        row = orjson.loads(line.text)
    except orjson.JSONDecodeError as error:
        raise _no_json(line, error) from error
    if not isinstance(row, dict):
        raise line.refuse(f"a JSON {type(row).__name__}", _OBJECT)
    return row


def _no_json(line: _Line, error: orjson.JSONDecodeError) -> InputError:
    """Say why a line is no JSON; Python's own parser is laxer, and tells which key's number is none."""
    try:
        row = json.loads(line.text.decode())
    except UnicodeDecodeError as undecodable:
        return line.refuse(f"no UTF-8 at byte {undecodable.start + 1} of the line", _OBJECT)
    except (ValueError, RecursionError):
        row = None
    for key, value in row.items() if isinstance(row, dict) else ():
        if _holds_no_number(value):
            return line.refuse(f"NaN or Infinity in {_cut(key)}", "finite numbers")
    return line.refuse(f"no JSON ({error.msg} at character {error.pos + 1})", _OBJECT)


def _holds_no_number(value: object) -> bool:
    """Whether there is a float that is not finite, at any depth."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, float) and not math.isfinite(one):
            return True
        if isinstance(one, (list, dict)):
            left.extend(one.values() if isinstance(one, dict) else one)
    return False


def _check_once(line: _Line, names: Sequence[str | None]) -> None:
    """Refuse a key that occurs twice: which of the two values counts, no one can know."""
    try:
        pairs = json.loads(line.text, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:  # over 4300 digits, or nested as deeply as Python's stack
        raise line.refuse(f"no JSON that can be checked ({_cut(str(error))})", _OBJECT) from error
    seen = [key for key, _ in pairs]
    for name in names:
        if seen.count(name) > 1:
            raise line.refuse(f"{name} occurs {seen.count(name)} times", "every key once")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _value(line: _Line, row: Mapping[str, object], name: str, expected: str) -> object:
    if name not in row:
        raise line.refuse(f"no {name} (its keys are {_cut(', '.join(row)) or 'none'})", f"{name}: {expected}")
    return row[name]


def _integer(line: _Line, row: Mapping[str, object], name: str, top: int) -> int:
    expected = f"an integer from 0 to {top}"
    value = _value(line, row, name, expected)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= top:
        raise line.refuse(f"{name} is {_cut(repr(value))}", expected)
    return value


def _iteration(line: _Line, row: Mapping[str, object], name: str | None) -> int:
    return NO_ITERATION if name is None else _integer(line, row, name, MAX_ITERATION)


def _ids(line: _Line, row: Mapping[str, object], name: str) -> list[int]:
    value = _value(line, row, name, _IDS)
    if not isinstance(value, list) or set(map(type, value)) != {int} or min(value) < 0 or max(value) > MAX_ID:
        raise line.refuse(f"{name} is {_cut(repr(value))}", _IDS)
    return value


def _word(line: _Line, row: Mapping[str, object], name: str | None, words: Mapping[str, int]) -> int:
    if name is None:
        return NO_CODE
    expected = ("one of " if len(words) > 1 else "") + ", ".join(words)
    value = _value(line, row, name, expected)
    if not isinstance(value, str) or value not in words:
        raise line.refuse(f"{name} is {_cut(repr(value))}", expected)
    return words[value]


def _weight_flags(line: _Line, row: Mapping[str, object], name: str | None) -> int:
    """Return a row's flags; null is as good as no weights."""
    value = None if name is None else row.get(name)
    if value is None:
        return 0
    if not isinstance(value, list) or not value or not set(map(type, value)) <= {int, float}:
        raise line.refuse(f"{name} is {_cut(repr(value))}", _WEIGHTS)
    equal = all(one == value[0] for one in value)
    falling = all(one >= other for one, other in pairwise(value))
    return WEIGHED | ALL_EQUAL * equal | NEVER_RISING * falling
