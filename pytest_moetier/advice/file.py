"""The file of advice: JSON lines, plain, gzip or zstd; anybody's predictor can write one.

The first line describes the advice::

    {"format": "moetier-advice/1", "kind": "given", "source": "my engine's gate lookahead",
     "model": {"layers": [0, 1], "experts": 128, "k": 8}, "trace": null, "records": 570}

and every other line is one record of the trace, in its order, with the expert ids that were expected, best first; an
empty list where nothing was advised::

    {"iteration": 0, "layer": 0, "experts": [3, 17, 99]}

``kind`` is a key of ``KINDS``; ``given`` is a predictor of the user's own. ``trace`` is the fingerprint of the trace
that the advice was made for (`moetier trace info`), or null. ``records`` tells a cut-off file from a whole one.
``withheld`` may list layers whose advice was taken out. Other keys are not looked at.

A replay takes advice from such a file, and the recall that is shown is computed from that very file, so that the number
quoted and the hints replayed cannot drift apart.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import orjson

from pytest_moetier.advice.records import KINDS, Advice, make_advice
from pytest_moetier.errors import InputError
from pytest_moetier.pool.private import write_private
from pytest_moetier.trace.formats import fields
from pytest_moetier.trace.records import Trace
from pytest_moetier.trace.source import Source

FORMAT = "moetier-advice/1"
FORMAT_LINES = (
    f"{FORMAT}: JSON lines, plain, .gz or .zst",
    "first line:",
    f'  {{"format":"{FORMAT}","kind":"given","source":"WORDS","trace":null,"records":570,',
    '   "model":{"layers":[0,1],"experts":128,"k":8}}',
    "then one line per record of the trace, in its order, ids best first, [] where nothing is advised:",
    '  {"iteration":0,"layer":0,"experts":[3,17,99]}',
    "kind: " + ", ".join(KINDS) + " (given: a predictor of your own)",
    "trace: the fingerprint of the trace it was made for (moetier trace info), or null",
    "records: how many lines follow",
    "withheld (may be left out): layers whose advice was taken out",
)
"""The format in words, for a command's help."""

_MAKE = "`moetier plan predict TRACE FILE --predictor NAME` makes advice, `moetier plan formats` describes the file"
_ROW = '{"iteration": I, "layer": L, "experts": [...]}'


@dataclass(frozen=True, slots=True)
class _Head:
    kind: str
    source: str
    trace: str | None
    records: int
    withheld: tuple[int, ...]


def load_advice(path: Path | str, trace: Trace) -> Advice:
    """Return the advice in a file, which must be for ``trace``.

    Raises:
        InputError: no such file, none of the format, of another model or trace, not record for record the trace's, or
            labelled as what it is not; the message names file and line.
    """
    try:
        return _loaded(Path(path), trace)
    except InputError as error:
        raise InputError(error.seen, error.expected, error.do or _MAKE) from error


def _loaded(path: Path, trace: Trace) -> Advice:
    source = _opened(path)
    rows = _rows(source)
    number, row = next(rows)
    head = _head(source, number, row, trace)
    counts, ids = _records(source, rows, head, trace)
    try:
        advice = make_advice(
            trace, head.kind, head.source, np.array(counts, dtype=np.int64), np.array(ids, dtype=np.uint16)
        )
    except InputError as error:
        raise InputError(f"{path}: {error.seen}", error.expected, error.do) from error
    if wrong := sorted(set(head.withheld) - set(trace.layers) | set(head.withheld) & _advised(advice)):
        seen = f"layer {wrong[0]} is said to be withheld"
        raise InputError(f"{path}: {seen}", "layers of the trace that nothing is advised for")
    return replace(advice, trace=head.trace, withheld=head.withheld)


def _advised(advice: Advice) -> set[int]:
    return set(advice.layer[advice.counts > 0].tolist())


def _opened(path: Path) -> Source:
    try:
        return Source(path)
    except InputError as error:
        seen = error.seen.removeprefix("trace ")
        raise InputError(f"advice {seen}", "a file of advice: plain, gzip or zstd", error.do or _MAKE) from error


def _rows(source: Source) -> Iterator[tuple[int, fields.Row]]:
    for number, line in source.lines():
        try:
            yield number, fields.parsed(source, number, line)
        except InputError as error:
            cause = error.__cause__
            if isinstance(cause, orjson.JSONDecodeError) and cause.msg.startswith("unexpected end of data"):
                raise source.refuse(number, "the line is cut off", _ROW) from error
            raise
    if source.cut:
        raise InputError(f"{source.path}: {source.warnings[-1]}", "a whole file")


def _head(source: Source, number: int, row: fields.Row, trace: Trace) -> _Head:
    if row.get("format") != FORMAT:
        said = f"format {fields.cut(repr(row['format']))}" if "format" in row else f"keys {fields.keys(row)}"
        raise source.refuse(number, said, f'{{"format": "{FORMAT}", ...}} in the first line', _MAKE)
    kind, words, model = row.get("kind"), row.get("source"), row.get("model")
    if not isinstance(kind, str) or kind not in KINDS:
        raise source.refuse(number, f"kind {fields.cut(repr(kind))}", "one of " + ", ".join(KINDS))
    if not isinstance(words, str) or not isinstance(model, dict):
        seen = f"source {fields.cut(repr(words))}, model {fields.cut(repr(model))}"
        raise source.refuse(number, seen, "a text, and an object of layers, experts and k")
    _check_model(source, number, model, trace)
    made_for = row.get("trace")
    if made_for is not None and made_for != trace.fingerprint:
        seen = f"it was made for the trace {fields.cut(repr(made_for))}"
        raise source.refuse(number, seen, f"{trace.fingerprint!r} ({trace.source}), or null", _MAKE)
    withheld = fields.ids(source, number, row, "withheld") if row.get("withheld") else []
    records = fields.integer(source, number, row, "records")
    return _Head(kind, words, None if made_for is None else trace.fingerprint, records, tuple(sorted(withheld)))


def _check_model(source: Source, number: int, model: fields.Row, trace: Trace) -> None:
    layers = sorted(fields.ids(source, number, model, "layers"))
    experts, k = (fields.integer(source, number, model, name) for name in ("experts", "k"))
    if (len(layers), experts, k) != (len(trace.layers), trace.n_experts, trace.k):
        raise source.refuse(
            number,
            f"advice for {len(layers)} layers x {experts} experts, k = {k}",
            f"the trace's {len(trace.layers)} layers x {trace.n_experts} experts, k = {trace.k}",
        )
    for one, other in zip(layers, trace.layers, strict=True):
        if one != other:
            raise source.refuse(
                number, f"advice for a layer {one}", f"layer {other} in its place, as the trace numbers it"
            )


def _records(
    source: Source, rows: Iterator[tuple[int, fields.Row]], head: _Head, trace: Trace
) -> tuple[list[int], list[int]]:
    """Return how many ids each record has, and the ids."""
    counts: list[int] = []
    ids: list[int] = []
    wanted = list(zip(trace.iteration.tolist(), trace.layer.tolist(), strict=True))
    for number, row in rows:
        if len(counts) == trace.n_records:
            raise source.refuse(
                number, "a record beyond the trace's last", f"{trace.n_records} records, as the trace has"
            )
        seen = fields.integer(source, number, row, "iteration"), fields.integer(source, number, row, "layer")
        if seen != (expected := wanted[len(counts)]):
            place = f"{_place(*expected)}: the trace's record {len(counts)}"
            raise source.refuse(number, _place(*seen), place)
        held = _expected(source, number, row, trace.n_experts)
        counts.append(len(held))
        ids += held
    if len(counts) < trace.n_records:
        ended = f"it ends after {len(counts)} records, before {_place(*wanted[len(counts)])}"
        raise InputError(f"{source.path}: {ended}", f"{trace.n_records} records, as the trace has (is it cut off?)")
    if head.records != len(counts):
        raise InputError(f"{source.path}: its first line says {head.records} records", f"{len(counts)}, as it has")
    return counts, ids


def _place(iteration: int, layer: int) -> str:
    return f"iteration {iteration}, layer {layer}"


def _expected(source: Source, number: int, row: fields.Row, n_experts: int) -> list[int]:
    held = row.get("experts")
    if held == []:
        return []
    ids = fields.ids(source, number, row, "experts")
    if max(ids) >= n_experts:
        raise source.refuse(number, f"expert {max(ids)}", f"ids below {n_experts}")
    if len(set(ids)) != len(ids):
        raise source.refuse(number, f"experts {fields.cut(str(ids))} name one twice", "distinct ids")
    return ids


def write_advice(advice: Advice, path: Path) -> None:
    """Write ``advice``, compressed when the name ends in ``.gz`` or ``.zst``; whole or not at all.

    Raises:
        InputError: ``path`` is a link or special file, or cannot be written.
    """
    head = {
        "format": FORMAT,
        "kind": advice.kind,
        "source": advice.source.encode(errors="backslashreplace").decode(),
        "model": {"layers": list(advice.layers), "experts": advice.n_experts, "k": advice.k},
        "trace": advice.trace,
        "records": advice.n_records,
        **({"withheld": list(advice.withheld)} if advice.withheld else {}),
    }
    ids = advice.experts.tolist()
    lists = [ids[one:other] for one, other in pairwise(advice.offsets.tolist())]
    texts = orjson.dumps(lists)[2:-2].split(b"],[")
    rows = zip(advice.iteration.tolist(), advice.layer.tolist(), texts, strict=True)
    lines = [b'{"iteration":%d,"layer":%d,"experts":[%b]}\n' % row for row in rows]
    write_private(path, [_packed(path, b"".join([orjson.dumps(head), b"\n", *lines]))])


def _packed(path: Path, text: bytes) -> bytes:
    if path.suffix == ".gz":
        return gzip.compress(text, mtime=0)
    if path.suffix != ".zst":
        return text
    try:
        import zstandard  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise InputError(
            f"{path} asks for zstd", "the extra that writes it", "pip install 'pytest-moetier[zstd]'"
        ) from error
    packed: bytes = zstandard.ZstdCompressor().compress(text)
    return packed
