"""Values out of a JSON line, each refused with its place when it is not what the format says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from pytest_moetier.trace.rows import PHASES
from pytest_moetier.trace.source import Source, json_error

MAX_ID = (1 << 16) - 1

Row = Mapping[str, object]


def objects(source: Source) -> Iterator[tuple[int, Row]]:
    """Yield (line number, object) of every line; a last line that is cut off is left out, with a warning.

    Raises:
        InputError: a line before the last is no JSON object.
    """
    held: tuple[int, bytes] | None = None
    for number, line in source.lines():
        if held is not None:
            yield held[0], parsed(source, *held)
        held = (number, line)
    if held is not None and held[0] > 1 and _is_cut(*held):
        source.cut_line(held[0])
    elif held is not None:
        yield held[0], parsed(source, *held)


def _is_cut(_number: int, line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return not line.endswith(b"}")
    return False


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


def integer(source: Source, number: int, row: Row, name: str, top: int = (1 << 32) - 1) -> int:
    """Return an integer from 0 to ``top``."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= top:
        raise source.refuse(number, f"{name} is {value!r}", f"an integer from 0 to {top}")
    return value


def ids(source: Source, number: int, row: Row, name: str) -> list[int]:
    """Return a list of expert ids."""
    value = row.get(name)
    good = isinstance(value, list) and value
    if not isinstance(value, list) or not good or any(type(one) is not int or not 0 <= one <= MAX_ID for one in value):
        raise source.refuse(number, f"{name} is {str(value)[:60]}", f"a list of expert ids from 0 to {MAX_ID}")
    return value


def phase(source: Source, number: int, row: Row) -> int:
    """Return the code of ``decode`` or ``prefill``."""
    value = row.get("phase")
    if value not in PHASES:
        raise source.refuse(number, f"phase is {value!r}", "decode or prefill")
    return PHASES[str(value)]
