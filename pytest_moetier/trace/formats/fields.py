"""What readers of JSON lines share: lines and values, refused with their place when they break the format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import orjson
from numpy.typing import NDArray

from pytest_moetier.trace import scan
from pytest_moetier.trace.rows import EQUAL_WEIGHTS, FALLING_WEIGHTS, PHASES, Block, Rows, RowsBuilder
from pytest_moetier.trace.source import Source, json_error

MAX_ID = (1 << 16) - 1

Row = Mapping[str, object]

_SHOWN = 60
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_CLOSING = {b"{": b"}", b"[": b"]"}


def first(source: Source) -> Row:
    """Return the first line's object; of a line longer than the head, what the head shows of it."""
    head = source.head.strip()
    if source.first or not head.startswith(b"{") or b"\n" in head:
        return source.first
    text = head[: head.rfind(b",")]
    opened: list[bytes] = []
    for token in _BRACKETS.findall(text):
        if token in _CLOSING:
            opened.append(_CLOSING[token])
        elif opened and token == opened[-1]:
            opened.pop()
    return _object(text + b"".join(reversed(opened)))


def whole_lines(source: Source) -> Iterator[tuple[int, bytes]]:
    """Yield (number of the first line, block of lines); a last line that is cut off is left out, with a warning."""
    held: tuple[int, bytes] | None = None
    for one in source.blocks():
        if held is not None:
            yield held
        held = one
    if held is None:
        return
    number, block = held
    text = block.rstrip()
    start = text.rfind(b"\n") + 1
    last = number + block.count(b"\n", 0, start)
    if last > 1 and _is_cut(text[start:]):
        source.cut_line(last)
        block = block[:start]
    yield number, block


def _is_cut(line: bytes) -> bool:
    """Whether a line is the beginning of a JSON text, and no more than that."""
    try:
        line.decode()
        orjson.loads(line)
    except UnicodeDecodeError as error:
        return error.end == len(line)
    except orjson.JSONDecodeError as error:
        return bool(line) and error.msg.startswith("unexpected end of data")
    return False


def objects(source: Source) -> Iterator[tuple[int, Row]]:
    """Yield (line number, object) of every line that is not blank; a last line that is cut off is left out.

    Raises:
        InputError: a line is no JSON object.
    """
    for first, block in whole_lines(source):
        for number, line in enumerate(block.split(b"\n"), first):
            if text := line.strip():
                yield number, parsed(source, number, text)


def scanned(
    source: Source, names: scan.Fields, slow: scan.Slow | None = None, foreign: Sequence[str] = ()
) -> RowsBuilder:
    """Return the rows of flat JSON lines, block by block.

    Args:
        source: the file.
        names: which key holds what.
        slow: decides about lines that are not plain; default: ``scan.strict``.
        foreign: keys whose lines are of another format, though they have all of this one's.

    Raises:
        InputError: a line is no record of the format; the message names it.
    """
    built = RowsBuilder()
    slow = slow or scan.strict(names, source.path)
    for number, block in whole_lines(source):
        _refuse_foreign(source, number, block, foreign)
        for part in scan.scan(block, number, names, slow):
            add(built, part)
    return built


def add(built: RowsBuilder, part: scan.Columns) -> None:
    """Add scanned rows; of their flags, those that rows have."""
    flags = (part.flags & (EQUAL_WEIGHTS | FALLING_WEIGHTS)).astype(np.uint8)
    built.extend(cast("Block", replace(part, flags=flags)))


def _refuse_foreign(source: Source, begin: int, block: bytes, foreign: Sequence[str]) -> None:
    names = [name for name in foreign if f'"{name}"'.encode() in block]
    for number, line in enumerate(block.split(b"\n") if names else (), begin):
        row = _object(line) if any(f'"{name}"'.encode() in line for name in names) else {}
        if here := [name for name in names if name in row]:
            raise source.refuse(number, f"its keys are {keys(row)}", f"no {' or '.join(here)}, as another format has")


def _object(text: bytes) -> Row:
    """Return the object that a text is; an empty one for any other text, about which others decide."""
    try:
        row = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return row if isinstance(row, dict) else {}


def numbered_on(rows: Rows, name: str) -> Rows:
    """Return the rows with iterations that start again, as of a second prompt in the file, numbered on: not merged.

    Args:
        rows: in the file's order.
        name: what the format calls an iteration.
    """
    falls = np.flatnonzero(np.diff(rows.key) < 0) + 1
    begins = _begins(rows, falls) if len(falls) else []
    if not begins:
        return rows
    part = np.zeros(rows.n, np.int64)
    part[begins] = 1
    keys = np.unique(rows.key, return_inverse=True)[1]
    place = rows.about.place
    said = f"{name} starts again at {place} {rows.line[begins[0]]}"
    if len(begins) > 1:
        said += f" and {len(begins) - 1} more time(s), the last at {place} {rows.line[begins[-1]]}"
    about = replace(rows.about, warnings=(*rows.about.warnings, f"{said}: numbered on, as one stream after the other"))
    return replace(rows, about=about, key=np.cumsum(part) * (int(keys.max()) + 1) + keys)


def _begins(rows: Rows, falls: NDArray[np.int64]) -> list[int]:
    """Return the rows from which on iterations are counted anew.

    Such a row has a smaller number than the one before it, and rows follow that repeat a layer of an iteration: two
    rows of a layer without a fall between them are one iteration's, as in a speculation that failed.
    """
    keys = np.unique(rows.key, return_inverse=True)[1].astype(np.int64)
    same = (keys << 8 | rows.phase) << 16 | rows.layer
    order = np.argsort(same, kind="stable")
    again = np.flatnonzero(same[order[1:]] == same[order[:-1]])
    before = np.full(rows.n, -1, np.int64)
    before[order[1:][again]] = order[:-1][again]
    fall = np.zeros(rows.n, np.int64)
    fall[falls] = falls
    np.maximum.accumulate(fall, out=fall)
    found: list[int] = []
    for row in np.flatnonzero((before >= 0) & (fall > before)).tolist():
        if before[row] >= (found[-1] if found else 0):
            found.append(int(fall[row]))
    return found


def parsed(source: Source, number: int, line: bytes) -> Row:
    """Return the object of one line.

    Raises:
        InputError: it is no JSON object.
    """
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise source.refuse(number, json_error(line, error), "one JSON object a line") from error
    if not isinstance(row, dict):
        raise source.refuse(number, f"a JSON {type(row).__name__}", "one JSON object a line")
    return row


def keys(row: Row) -> str:
    """Return the names of a row's keys, for a message."""
    return cut(", ".join(row)) or "none"


def cut(text: str) -> str:
    """Return the beginning of a text that may be long."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def value(  # noqa: PLR0913  (where, and what)
    source: Source, number: int, row: Row, name: str, expected: str, *, unit: str = "line"
) -> object:
    """Return what a row holds under ``name``.

    Raises:
        InputError: it has no such key; the message says which it has.
    """
    if name not in row:
        raise source.refuse(number, f"no {name} (its keys are {keys(row)})", f"{name}: {expected}", unit=unit)
    return row[name]


def integer(  # noqa: PLR0913  (where, what, and its range)
    source: Source, number: int, row: Row, name: str, top: int = (1 << 32) - 1, *, unit: str = "line"
) -> int:
    """Return an integer from 0 to ``top``."""
    expected = f"an integer from 0 to {top}"
    held = value(source, number, row, name, expected, unit=unit)
    if isinstance(held, bool) or not isinstance(held, int) or not 0 <= held <= top:
        raise source.refuse(number, f"{name} is {cut(repr(held))}", expected, unit=unit)
    return held


def ids(source: Source, number: int, row: Row, name: str, *, unit: str = "line") -> list[int]:
    """Return a list of expert ids."""
    expected = f"a list of expert ids from 0 to {MAX_ID}"
    held = value(source, number, row, name, expected, unit=unit)
    if not is_ids(held):
        raise source.refuse(number, f"{name} is {cut(repr(held))}", expected, unit=unit)
    return held  # type: ignore[return-value]  # is_ids saw to it


def lists(source: Source, number: int, row: Row, name: str, expected: str) -> list[list[int]]:
    """Return a list of lists of expert ids, of which some may be empty."""
    held = value(source, number, row, name, expected)
    if not isinstance(held, list) or not all(one == [] or is_ids(one) for one in held):
        raise source.refuse(number, f"{name} is {cut(repr(held))}", f"{expected}, each of ids from 0 to {MAX_ID}")
    return held


def is_ids(held: object) -> bool:
    """Whether this is a list of expert ids, at least one."""
    return isinstance(held, list) and bool(held) and all(type(one) is int and 0 <= one <= MAX_ID for one in held)


def phase(source: Source, number: int, row: Row) -> int:
    """Return the code of ``decode`` or ``prefill``."""
    held = value(source, number, row, "phase", "decode or prefill")
    if not isinstance(held, str) or held not in PHASES:
        raise source.refuse(number, f"phase is {cut(repr(held))}", "decode or prefill")
    return PHASES[held]
