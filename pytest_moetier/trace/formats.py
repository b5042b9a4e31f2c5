"""Readers of trace files in the wild, chosen by what the first line holds, and the writer of our own format.

A reader is one function with ``@reader(name, sniff)``: it takes the file's lines and returns a ``Trace``.

Our own format, ``moetier``, is JSON lines, plain or gzipped. The first line describes the trace::

    {"type": "meta", "format": "moetier-trace", "version": 1, "layers": [0, 1], "n_experts": 896, "k": 16,
     "iterations": 100, "records": 208, "synthetic": true, "source": "..."}

and every other line is one record, with its type::

    {"type": "normal", "phase": "decode", "iteration": 0, "layer": 0, "experts": [3, 17, ...]}

``type`` is ``normal``, ``spec_accept`` (2k ids: two passes) or ``spec_fallback`` (two records per layer), ``phase`` is
``decode`` or ``prefill``; ``iterations`` and ``records`` count decode alone, and tell a cut-off file from a whole one.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson

from pytest_moetier.errors import InputError
from pytest_moetier.trace.records import KINDS, Record, Trace, make_trace

CANONICAL = "moetier"
CANONICAL_FORMAT = "moetier-trace"
CANONICAL_VERSION = 1
GZIP_MAGIC = b"\x1f\x8b"

_MAX_ID = (1 << 16) - 1


@dataclass(slots=True)
class Lines:
    """A file's JSON lines as they were parsed.

    Attributes:
        path: the file, for messages.
        rows: (line number from 1, object) of each line.
        warnings: sentences about what could not be kept.
    """

    path: Path
    rows: list[tuple[int, Mapping[str, object]]]
    warnings: list[str] = field(default_factory=list)

    def refuse(self, number: int, seen: str, expected: str) -> InputError:
        """Return the error that names the file and the line."""
        return InputError(f"{self.path}, line {number}: {seen}", expected)


@dataclass(frozen=True, slots=True)
class Reader:
    """A format: its name, whether a first object is of it, and how its lines become a trace."""

    name: str
    sniff: Callable[[Mapping[str, object]], bool]
    read: Callable[[Lines, int | None], Trace]


READERS: dict[str, Reader] = {}


def reader(
    name: str, sniff: Callable[[Mapping[str, object]], bool]
) -> Callable[[Callable[[Lines, int | None], Trace]], Callable[[Lines, int | None], Trace]]:
    """Register a reader.

    Args:
        name: of the format, as ``--format`` takes it.
        sniff: tells from the first line's object whether a file is of this format.
    """

    def register(function: Callable[[Lines, int | None], Trace]) -> Callable[[Lines, int | None], Trace]:
        READERS[name] = Reader(name, sniff, function)
        return function

    return register


def parse_lines(path: Path, data: bytes) -> Lines:
    """Return the JSON lines in ``data``; a last line that is cut off is left out, with a warning that says so.

    Raises:
        InputError: a line before the last is not a JSON object, or there is none at all.
    """
    lines = Lines(path, [])
    texts = data.split(b"\n")
    last = max((number for number, text in enumerate(texts, 1) if text.strip()), default=0)
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            row = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            if number == last and number > 1 and number == len(texts):
                lines.warnings.append(f"line {number} is cut off and was left out")
                break
            raise lines.refuse(number, f"no JSON ({error})", "one JSON object a line") from error
        if not isinstance(row, dict):
            raise lines.refuse(number, f"a JSON {type(row).__name__}", "one JSON object a line")
        lines.rows.append((number, row))
    if not lines.rows:
        raise InputError(f"{path} holds no record", "one JSON object a line")
    return lines


def _integer(lines: Lines, number: int, row: Mapping[str, object], name: str, top: int = (1 << 32) - 1) -> int:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= top:
        raise lines.refuse(number, f"{name} is {value!r}", f"an integer from 0 to {top}")
    return value


def _ids(lines: Lines, number: int, row: Mapping[str, object], name: str) -> tuple[int, ...]:
    value = row.get(name)
    good = isinstance(value, list) and value
    if not isinstance(value, list) or not good or any(type(one) is not int or not 0 <= one <= _MAX_ID for one in value):
        raise lines.refuse(number, f"{name} is {str(value)[:60]}", f"a list of expert ids from 0 to {_MAX_ID}")
    return tuple(value)


def _phase(lines: Lines, number: int, row: Mapping[str, object]) -> str:
    value = row.get("phase")
    if value not in {"decode", "prefill"}:
        raise lines.refuse(number, f"phase is {value!r}", "decode or prefill")
    return str(value)


def _whole(records: Sequence[Record], layers: int, warnings: list[str], what: str) -> list[Record]:
    """Leave out a last iteration that lacks records: of a file that is known to be cut off."""
    last = records[-1].iteration
    tail = [record for record in records if record.iteration == last]
    wanted = layers * (2 if tail[0].kind == "spec_fallback" else 1)
    if len(tail) == wanted:
        warnings.append(f"all {len(records)} {what} records before it were kept: {last + 1} whole iterations")
        return list(records)
    kept = list(records[: len(records) - len(tail)])
    warnings.append(
        f"the last {what} iteration has {len(tail)} of {wanted} records and was left out; "
        f"{len(kept)} records were kept: {last} whole iterations"
    )
    return kept


def _renumbered(records: Iterable[Record]) -> list[Record]:
    """Number iterations 0, 1, 2, ... in the order they occur (decode tokens go on counting from the prompt's)."""
    numbers: dict[int, int] = {}
    return [replace(one, iteration=numbers.setdefault(one.iteration, len(numbers))) for one in records]


@dataclass(frozen=True, slots=True)
class _Header:
    """What a trace is apart from its records."""

    n_experts: int
    k: int
    synthetic: bool
    source: str
    layers: tuple[int, ...]
    warnings: tuple[str, ...]


def _built(records: Sequence[Record], header: _Header, prefill: Trace | None) -> Trace:
    offsets = [0]
    for record in records:
        offsets.append(offsets[-1] + len(record.experts))
    return make_trace(
        iteration=[record.iteration for record in records],
        layer=[record.layer for record in records],
        kind=[KINDS.index(record.kind) for record in records],
        offsets=offsets,
        experts=[one for record in records for one in record.experts],
        n_experts=header.n_experts,
        k=header.k,
        synthetic=header.synthetic,
        source=header.source,
        layers=header.layers,
        warnings=header.warnings,
        prefill=prefill,
    )


def _joined(decode: Sequence[Record], prefill: Sequence[Record], header: _Header, path: Path) -> Trace:
    if not decode:
        raise InputError(f"{path} holds no decode record", "decode records: prefill alone is no iteration to replay")
    before = _built(_renumbered(prefill), replace(header, warnings=()), None) if prefill else None
    return _built(decode, header, before)


def _is_moevm(row: Mapping[str, object]) -> bool:
    return {"token", "layer", "experts", "phase"} <= row.keys() and "type" not in row


@reader("moevm-lab", _is_moevm)
def read_moevm(lines: Lines, n_experts: int | None) -> Trace:
    """Read moevm-lab's JSON lines: ``{"token":0,"layer":0,"experts":[..],"scores":[..],"phase":"decode"}``.

    One record per token and layer, ids by falling score; tokens count on from the prompt into the answer. The file does
    not state the experts per layer: without ``n_experts`` it is the highest id + 1, with a warning.
    """
    by_phase: dict[str, list[Record]] = {"decode": [], "prefill": []}
    for number, row in lines.rows:
        ids = _ids(lines, number, row, "experts")
        token, layer = _integer(lines, number, row, "token"), _integer(lines, number, row, "layer", _MAX_ID)
        by_phase[_phase(lines, number, row)].append(Record(token, layer, "normal", ids))
    every = [*by_phase["prefill"], *by_phase["decode"]]
    layers = tuple(sorted({record.layer for record in every}))
    warnings = list(lines.warnings)
    decode = _renumbered(by_phase["decode"])
    tail = sum(record.iteration == decode[-1].iteration for record in decode) if decode else 0
    if decode and (lines.warnings or tail < len(layers)):
        decode = _whole(decode, len(layers), warnings, "decode")
    if n_experts is None:
        n_experts = max(max(record.experts) for record in every) + 1
        warnings.append(f"the file does not state the experts per layer; {n_experts} is its highest id + 1")
    header = _Header(
        n_experts=n_experts,
        k=len(every[0].experts),
        synthetic=False,
        source=f"moevm-lab {lines.path.name}",
        layers=layers,
        warnings=tuple(warnings),
    )
    return _joined(decode, by_phase["prefill"], header, lines.path)


def _is_canonical(row: Mapping[str, object]) -> bool:
    return row.get("type") == "meta" and row.get("format") == CANONICAL_FORMAT


@reader(CANONICAL, _is_canonical)
def read_canonical(lines: Lines, n_experts: int | None) -> Trace:
    """Read our own format (the module's docstring); ``n_experts`` must agree with the file when given."""
    number, meta = lines.rows[0]
    if _integer(lines, number, meta, "version") != CANONICAL_VERSION:
        raise lines.refuse(number, f"version {meta['version']}", f"version {CANONICAL_VERSION}")
    experts = _integer(lines, number, meta, "n_experts", _MAX_ID + 1)
    if n_experts not in {None, experts}:
        raise lines.refuse(number, f"n_experts is {experts}", f"{n_experts} as asked for")
    synthetic, source = meta.get("synthetic"), meta.get("source")
    if not isinstance(synthetic, bool) or not isinstance(source, str):
        raise lines.refuse(number, f"synthetic {synthetic!r}, source {source!r}", "true or false, and a text")
    by_phase: dict[str, list[Record]] = {"decode": [], "prefill": []}
    for number, row in lines.rows[1:]:
        kind = row.get("type")
        if kind not in KINDS:
            raise lines.refuse(number, f"type is {kind!r}", "one of " + ", ".join(KINDS))
        ids = _ids(lines, number, row, "experts")
        iteration = _integer(lines, number, row, "iteration")
        record = Record(iteration, _integer(lines, number, row, "layer", _MAX_ID), str(kind), ids)
        by_phase[_phase(lines, number, row)].append(record)
    layers = _ids(lines, lines.rows[0][0], meta, "layers")
    warnings = list(lines.warnings)
    decode, wanted = by_phase["decode"], _integer(lines, lines.rows[0][0], meta, "records")
    if decode and len(decode) < wanted:
        if not lines.warnings:
            warnings.append(
                f"the file ends after line {lines.rows[-1][0]}, {wanted - len(decode)} decode records early"
            )
        decode = _whole(decode, len(layers), warnings, "decode")
    k = _integer(lines, lines.rows[0][0], meta, "k", _MAX_ID)
    header = _Header(experts, k, synthetic, source, layers, tuple(warnings))
    return _joined(decode, by_phase["prefill"], header, lines.path)


def _canonical_lines(trace: Trace) -> Iterable[bytes]:
    meta = {
        "type": "meta",
        "format": CANONICAL_FORMAT,
        "version": CANONICAL_VERSION,
        "layers": list(trace.layers),
        "n_experts": trace.n_experts,
        "k": trace.k,
        "iterations": trace.n_iterations,
        "records": trace.n_records,
        "synthetic": trace.synthetic,
        "source": trace.source,
    }
    yield json.dumps(meta, separators=(",", ":")).encode()
    parts = [("decode", trace)] if trace.prefill is None else [("prefill", trace.prefill), ("decode", trace)]
    for phase, part in parts:
        for record in part.records():
            yield orjson.dumps(
                {
                    "type": record.kind,
                    "phase": phase,
                    "iteration": record.iteration,
                    "layer": record.layer,
                    "experts": record.experts,
                }
            )


def write_trace(trace: Trace, path: Path) -> None:
    """Write ``trace`` in our own format; gzipped when the name ends in ``.gz`` (equal traces give equal bytes).

    Raises:
        InputError: the file cannot be written, or is a link or special file: as root that could be anyone's.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "a symbolic link" if path.is_symlink() else "no plain file"
        raise InputError(f"{path} is {kind}", "a plain file, or none yet", "remove it or choose another path")
    data = b"\n".join(_canonical_lines(trace)) + b"\n"
    if path.suffix == ".gz":
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as handle:
            handle.write(data)
        data = packed.getvalue()
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new.open("xb") as handle:
            handle.write(data)
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise InputError(
            f"{path} cannot be written: {error.strerror}",
            "a path that may be written to, with room for the trace",
            f"ls -ld {path.parent}",
        ) from error
