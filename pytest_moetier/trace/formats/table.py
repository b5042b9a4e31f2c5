"""Lines of numbers with separators between them, as columns: a block of lines at a time where they are plain.

A plain line has every field in its place, integers in plain digits. Blocks with any other line are taken line by line,
by a parser that names the line and the field it cannot take.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.errors import InputError
from pytest_moetier.trace.source import Source

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Columns = Mapping[str, NDArray[Any]]

LINE = "line"
"""The column of line numbers."""

_DIGITS = 18
_POINT, _ZERO, _NEWLINE = b".0\n"
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Column:
    """One column that is wanted; the values are integers from 0 to ``top``, or finite numbers where it is None."""

    name: str
    at: int
    top: int | None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The narrowest type that holds the values."""
        return np.dtype(np.float64) if self.top is None else np.min_scalar_type(self.top)

    @property
    def wanted(self) -> str:
        """What a value has to be, in words."""
        return "a finite number" if self.top is None else f"an integer from 0 to {self.top}"


@dataclass(frozen=True, slots=True)
class Cells:
    """Where the fields of a block are: ``data[starts[i, j]:ends[i, j]]`` is field j of line i."""

    data: NDArray[np.uint8]
    starts: I64
    ends: I64


def cells(block: bytes, separators: bytes) -> Cells | None:
    """Return the fields of lines that have exactly these separators, in this order; None when one has not."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    if not block.endswith(b"\n"):
        block += b"\n"
    data = np.frombuffer(block, dtype=np.uint8)
    breaks = np.flatnonzero(np.logical_or.reduce([data == one for one in {*separators, _NEWLINE}]))
    wanted = np.frombuffer(separators + b"\n", dtype=np.uint8)
    if len(breaks) % len(wanted):
        return None
    ends = breaks.reshape(-1, len(wanted))
    if not (data[ends] == wanted).all():
        return None
    starts = np.concatenate([np.zeros(1, np.int64), breaks[:-1] + 1]).reshape(ends.shape)
    return Cells(data, starts, ends)


def integers(found: Cells, at: int | slice, top: int) -> I64 | None:
    """Return the columns ``at`` as integers; None when a field is not plain digits, or above ``top``."""
    starts, ends = found.starts[:, at], found.ends[:, at]
    widths = ends - starts
    if int(widths.min()) < 1 or int(widths.max()) > _DIGITS:
        return None
    values = np.zeros(widths.shape, dtype=np.int64)
    for back in range(int(widths.max())):
        inside = widths > back
        digit = found.data[np.maximum(ends - 1 - back, starts)].astype(np.int64) - _ZERO
        if bool(((digit < 0) | (digit > 9)).any()):
            return None
        values += np.where(inside, digit, 0) * 10**back
    return values if int(values.max()) <= top else None


def decimals(found: Cells, at: int | slice) -> F64 | None:
    """Return the columns ``at`` as numbers, rounded as ``float`` rounds; None when a field is no finite number."""
    starts, ends = found.starts[:, at], found.ends[:, at]
    widths = ends - starts
    if int(widths.min()) < 1:
        return None
    mantissa, scale, parts = (np.full(widths.shape, one, dtype=np.int64) for one in (0, 1, 1))
    odd = widths > _DIGITS - 2  # 15 digits and a point: the quotient below is then exactly rounded
    points = np.zeros(widths.shape, dtype=np.int64)
    for back in range(min(int(widths.max()), _DIGITS - 2)):
        inside = widths > back
        char = found.data[np.maximum(ends - 1 - back, starts)]
        point, digit = inside & (char == _POINT), char.astype(np.int64) - _ZERO
        number = inside & ~point
        odd |= number & ((digit < 0) | (digit > 9))
        points += point
        parts = np.where(point, scale, parts)
        mantissa += np.where(number, digit * scale, 0)
        scale = np.where(number, scale * 10, scale)
    odd |= (points > 1) | (scale == 1) | (mantissa >= 10**15)
    values = mantissa / parts
    return values if not odd.any() else _with_odd(found, values, odd, starts, ends)


def _with_odd(found: Cells, values: F64, odd: NDArray[np.bool_], starts: I64, ends: I64) -> F64 | None:
    """Fill in the fields that have a sign, an exponent or many digits, one by one."""
    exact = []
    for start, end in zip(starts[odd].tolist(), ends[odd].tolist(), strict=True):
        value = number(found.data[start:end].tobytes().decode("latin-1"))
        if value is None:
            return None
        exact.append(value)
    values[odd] = exact
    return values


def number(text: str) -> float | None:
    """Return a finite number; None when the text is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and text.isascii() and "_" not in text else None


def whole(text: str, top: int) -> int | None:
    """Return an integer from 0 to ``top``; None when the text is none."""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        return None
    value = int(text)
    return value if value <= top else None


def shown(text: str) -> str:
    """Return a value for a message, cut where it is long."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")


def decoded(source: Source, line_number: int, line: bytes) -> str:
    """Return a line as text.

    Raises:
        InputError: it is no UTF-8.
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise source.refuse(line_number, f"no UTF-8 at byte {error.start + 1} of the line", "UTF-8 text") from error


def numbered(first: int, block: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Yield (number, line, whether its end is there) of every line that is neither blank nor a ``#`` comment."""
    lines = block.split(b"\n")
    for at, line in enumerate(lines):
        text = line.strip()
        if text and not text.startswith(b"#"):
            yield first + at, text, at < len(lines) - 1


def read_columns(source: Source, columns: Sequence[Column], width: int, skip: int = 0) -> Columns:
    """Return columns of a file of comma-separated numbers, and the column ``line``.

    A last line without an end that cannot be read, or stands at the end of a cut stream, is left out with a warning.

    Args:
        source: the file.
        columns: those that are wanted.
        width: how many fields each line has.
        skip: lines at the file's beginning that are no rows.

    Raises:
        InputError: a line has another number of fields, or a value is not what its column holds.
    """
    held: dict[str, list[NDArray[Any]]] = {LINE: [], **{one.name: [] for one in columns}}
    for number_, block_ in source.blocks():
        first, block = number_, block_
        if first <= skip:
            block = b"\n".join(block.split(b"\n", skip - first + 1)[skip - first + 1 :])
            first = skip + 1
        if not block.strip():
            continue
        whole_end = block.endswith(b"\n") or not source.cut
        found = _quick(block, columns, width) if whole_end else None
        taken = found if found is not None else _slow(source, columns, width, first, block)
        lines = taken.get(LINE)
        held[LINE].append(np.arange(first, first + len(taken[columns[0].name])) if lines is None else lines)
        for one in columns:
            held[one.name].append(taken[one.name])
        if not block.endswith(b"\n") and not source.cut and columns[-1].at == width - 1:
            source.warnings.append("the last line has no line end; its last number was taken as whole")
    empty = {LINE: np.dtype(np.int64), **{one.name: one.dtype for one in columns}}
    return {name: np.concatenate([np.zeros(0, empty[name]), *parts]) for name, parts in held.items()}


def _quick(block: bytes, columns: Sequence[Column], width: int) -> dict[str, NDArray[Any]] | None:
    found = cells(block.replace(b", ", b",") if b", " in block else block, b"," * (width - 1))
    if found is None:
        return None
    taken: dict[str, NDArray[Any]] = {}
    for one in columns:
        values = decimals(found, one.at) if one.top is None else integers(found, one.at, one.top)
        if values is None:
            return None
        taken[one.name] = values.astype(one.dtype)
    return taken


def _slow(source: Source, columns: Sequence[Column], width: int, first: int, block: bytes) -> dict[str, NDArray[Any]]:
    rows: list[list[float]] = []
    lines = []
    for number_, line, ended in numbered(first, block):
        try:
            row = _parsed(source, columns, width, number_, line)
        except InputError:
            if ended:
                raise
            row = None
        if row is None or (source.cut and not ended):
            source.cut_line(number_)
            break
        lines.append(number_)
        rows.append(row)
    taken = {one.name: np.array([row[at] for row in rows], dtype=one.dtype) for at, one in enumerate(columns)}
    return {LINE: np.array(lines, dtype=np.int64), **taken}


def _parsed(source: Source, columns: Sequence[Column], width: int, line_number: int, line: bytes) -> list[float]:
    fields = [one.strip() for one in decoded(source, line_number, line).split(",")]
    if len(fields) != width:
        names = ", ".join(one.name for one in columns)
        raise source.refuse(line_number, f"{len(fields)} field(s): {shown(line.decode())}", f"{width}, with {names}")
    row: list[float] = []
    for one in columns:
        value = number(fields[one.at]) if one.top is None else whole(fields[one.at], one.top)
        if value is None:
            raise source.refuse(line_number, f"{one.name} is {shown(fields[one.at])}", one.wanted)
        row.append(value)
    return row
