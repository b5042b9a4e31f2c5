"""Text formats: CSV, log lines, engine text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.errors import InputError
from pytest_moetier.trace.formats import table
from pytest_moetier.trace.formats.fields import MAX_ID
from pytest_moetier.trace.formats.registry import reader
from pytest_moetier.trace.formats.table import I64, LINE, Column, Columns
from pytest_moetier.trace.records import BATCH
from pytest_moetier.trace.rows import (
    DECODE,
    EQUAL_WEIGHTS,
    FALLING_WEIGHTS,
    PREFILL,
    UNKNOWN,
    About,
    Hints,
    Rows,
    RowsBuilder,
)
from pytest_moetier.trace.source import Source

_TOP = (1 << 32) - 1
_TURN_TOP = (1 << 31) - 1

_BIGMOE = {
    "turn": _TURN_TOP,
    "phase": 1,
    "step": _TOP,
    "layer": MAX_ID,
    "slot": MAX_ID,
    "expert": MAX_ID,
    "weight": None,
}
_BIGMOE_HEADER = b"turn,phase,step,layer,slot,expert"
_PAIR_HEADER = re.compile(rb"layer(_id)?,\s*expert(_id)?", re.IGNORECASE)
_PAIR = re.compile(rb"\d+,\s*\d+")
_MARK = b"[EXPERT-TRACE]"
_LOG = re.compile(
    rb"\[EXPERT-TRACE\][ \t]*Layer[ \t]+(\d{1,9})[ \t]*:[ \t]*Experts[ \t]*\[[ \t]*(\d+(?:[ \t]*,[ \t]*\d+)*)[ \t]*\]"
)
_CONTENT = re.compile(rb"[^\s][^\n]*")
_ENGINE = re.compile(rb"\d+\s+\d+\s+\d+(\s+[^\s:]+:[^\s:]+)+")


def joined(begins: NDArray[np.bool_]) -> tuple[I64, I64]:
    """Return the start and the width of each run; ``begins`` marks the elements that begin one."""
    starts = np.flatnonzero(begins)
    return starts, np.diff(np.concatenate([starts, [len(begins)]]))


def changes(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where an element differs from the one before it in any of the columns; the first one does."""
    begins = np.zeros(len(columns[0]), dtype=bool)
    begins[:1] = True
    for column in columns:
        begins[1:] |= column[1:] != column[:-1]
    return begins


def layer_runs(source: Source, layer: NDArray[Any], k: int | None, place: str) -> tuple[I64, I64]:
    """Return the runs of a layer; a file of one layer alone is divided by k.

    Raises:
        InputError: there is one layer alone, and k is not known.
    """
    starts, widths = joined(changes(layer))
    if len(starts) > 1:
        return starts, widths
    if k is None:
        seen = f"{source.path}: all {len(layer)} {place}s are of layer {layer[0]}, so where a pass ends cannot be told"
        raise InputError(seen, "several layers, or k", "--k K")
    return joined(np.arange(len(layer)) % k == 0)


def without_short_tail(widths: I64, k: int | None) -> tuple[int, str]:
    """Return how many runs are whole, and what to say when the last one is not: it names a part of a pass."""
    least = k or (int(widths[:-1].min()) if len(widths) > 1 else 0)
    if not least or not int(widths[-1]) % least or bool((widths[:-1] % least).any()):
        return len(widths), ""
    kept = len(widths) - 1
    return kept, f"names {widths[-1]} experts, no whole pass of {least}: left out; the {kept} before it were kept"


def _first_lines(source: Source) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(source.head.split(b"\n"), 1):
        yield number, line.strip()


# --- bigmoe-csv ---


def _header(source: Source) -> tuple[int, bytes] | None:
    for number, line in _first_lines(source):
        if line and not line.startswith(b"#"):
            return (number, line) if line.replace(b" ", b"").startswith(_BIGMOE_HEADER) else None
    return None


def _sniff_bigmoe(source: Source) -> bool:
    return _header(source) is not None


@reader("bigmoe-csv", _sniff_bigmoe)
def read_bigmoe(source: Source, hints: Hints) -> Rows:
    """CSV of BigMoeOnEdge: ``turn,phase,step,layer,slot,expert,weight,residency,expert_bytes`` after a # preamble."""
    header = _header(source)
    if header is None:
        raise InputError(f"{source.path} has no line {_BIGMOE_HEADER.decode()},...", "that header line")
    number, line = header
    names = [one.strip() for one in line.decode("ascii", "replace").split(",")]
    about = _preamble(source, number)
    tops = _BIGMOE | {"expert": (about.n_experts or MAX_ID + 1) - 1}
    columns = [Column(name, names.index(name), top) for name, top in tops.items() if name in names]
    rows = table.read_columns(source, columns, len(names), number)
    return _bigmoe_rows(source, rows, about, hints)


def _preamble(source: Source, end: int) -> About:
    """Read the lines before the header: model, dimensions, and the size of an expert of each layer."""
    stated: dict[str, int] = {}
    sizes: dict[int, int] = {}
    model = ""
    for number, line in _first_lines(source):
        if number >= end:
            break
        words = (one.partition("=") for one in table.decoded(source, number, line).split())
        pairs = {name: value for name, _, value in words if value}
        model = pairs.get("model", model)
        for name, top in (("n_expert", MAX_ID + 1), ("n_expert_used", MAX_ID)):
            if name in pairs:
                stated[name] = _stated(source, number, pairs, name, 1, top)
        if "layer" in pairs and "expert_bytes" in pairs:
            size = _stated(source, number, pairs, "expert_bytes", 0, 1 << 60)
            sizes |= {_stated(source, number, pairs, "layer", 0, MAX_ID): size} if size else {}
    said = "".join(one for one in re.split(r"[/\\]", model)[-1] if one.isprintable())[:80]
    return About(
        f"bigmoe-csv {source.path.name}" + (f" of {said}" if said else ""),
        k=stated.get("n_expert_used"),
        n_experts=stated.get("n_expert"),
        expert_bytes=sizes,
    )


def _stated(source: Source, number: int, pairs: dict[str, str], name: str, low: int, top: int) -> int:  # noqa: PLR0913, PLR0917
    value = table.whole(pairs[name], top)
    if value is None or value < low:
        raise source.refuse(number, f"{name} is {table.shown(pairs[name])}", f"an integer from {low} to {top}")
    return value


def _bigmoe_rows(source: Source, rows: Columns, about: About, hints: Hints) -> Rows:
    turn, phase, step, layer = (rows[name] for name in ("turn", "phase", "step", "layer"))
    if not len(turn):
        return RowsBuilder().rows(about)
    starts, widths = joined(changes(turn, phase, step, layer) | (rows["slot"] == 0))
    wrong = np.flatnonzero(rows["slot"] != np.arange(len(turn)) - np.repeat(starts, widths))
    if len(wrong):
        at = int(wrong[0])
        raise source.refuse(
            int(rows[LINE][at]),
            f"slot {rows['slot'][at]} of step {step[at]}, layer {layer[at]}",
            "the slots of a step and layer as 0, 1, 2, ..., line after line",
        )
    kept = _whole_events(source, rows, starts, widths, about.k or hints.k)
    if kept < len(starts):
        rows = {name: column[: starts[kept]] for name, column in rows.items()}
        starts, widths = starts[:kept], widths[:kept]
    return _issued(rows, about, starts) if kept else RowsBuilder().rows(about)


def _whole_events(source: Source, rows: Columns, starts: I64, widths: I64, k: int | None) -> int:
    """Return how many of the events, each a token's choice in a layer, are whole: all but a last one cut short."""
    wanted = k or int(widths.max())
    short = int(widths[-1]) < wanted
    if short:
        source.cut = True
        source.warnings.append(
            f"line {rows[LINE][-1]} ends step {rows['step'][-1]}, layer {rows['layer'][-1]} after {widths[-1]} of "
            f"{wanted} slots: they were left out; the {len(widths) - 1} events before it were kept"
        )
    odd = np.flatnonzero(widths[: len(widths) - short] != wanted)
    if len(odd):
        at = int(starts[odd[0]])
        raise source.refuse(
            int(rows[LINE][at]),
            f"step {rows['step'][at]}, layer {rows['layer'][at]} has {widths[odd[0]]} slot(s)",
            f"{wanted} (k) everywhere",
            "a whole file; a router that chooses a varying number of experts is not read",
        )
    return len(widths) - short


def _issued(rows: Columns, about: About, starts: I64) -> Rows:
    """Make one row of each decode event, and one of each layer's run of prefill events: a batch, as it was issued."""
    turn, phase, step, layer = (rows[name][starts].astype(np.int64) for name in ("turn", "phase", "step", "layer"))
    decode = phase == 1
    first, _ = joined(changes(turn, phase, layer) | decode)
    begins = starts[first]
    call = np.cumsum(changes(turn[first], phase[first]) | np.concatenate([[False], np.diff(layer[first]) <= 0]))
    decode = decode[first]
    return Rows(
        about=about,
        line=rows[LINE][begins],
        key=turn[first] << 32 | np.where(decode, step[first], call),
        layer=layer[first].astype(np.int32),
        phase=np.where(decode, DECODE, PREFILL).astype(np.uint8),
        kind=np.where(decode, UNKNOWN, BATCH).astype(np.uint8),
        flags=weight_flags(rows.get("weight"), starts, begins),
        width=np.diff(np.concatenate([begins, [len(rows["expert"])]])),
        ids=rows["expert"].astype(np.uint16),
    )


def weight_flags(weights: NDArray[np.float64] | None, passes: I64, rows: I64) -> NDArray[np.uint8]:
    """Return the flags of each row: they hold when they hold for every pass in it.

    Args:
        weights: one per id; None where there are none.
        passes: the first id of each pass.
        rows: the first id of each row.
    """
    if weights is None:
        return np.zeros(len(rows), dtype=np.uint8)
    owner = np.repeat(passes, np.diff(np.concatenate([passes, [len(weights)]])))
    unequal = weights != weights[owner]
    rises = np.concatenate([[False], weights[1:] > weights[:-1]])
    rises[passes] = False
    flags = np.where(np.logical_or.reduceat(unequal, rows), 0, EQUAL_WEIGHTS)
    return (flags | np.where(np.logical_or.reduceat(rises, rows), 0, FALLING_WEIGHTS)).astype(np.uint8)


# --- layer-expert-csv ---


def _sniff_pairs(source: Source) -> bool:
    line = source.head_lines[0] if source.head_lines else source.head.strip()
    return bool(_PAIR_HEADER.fullmatch(line) or _PAIR.fullmatch(line))


@reader("layer-expert-csv", _sniff_pairs)
def read_layer_expert(source: Source, hints: Hints) -> Rows:
    """CSV ``layer,expert`` without a step, as patches of llama.cpp write it: a run of one layer is one record."""
    skip = 0
    for number, line in _first_lines(source):
        if line and not line.startswith(b"#"):
            skip = number if _PAIR_HEADER.fullmatch(line) else 0
            break
    columns = (Column("layer", 0, MAX_ID), Column("expert", 1, MAX_ID))
    rows = table.read_columns(source, columns, 2, skip)
    layer, lines = rows["layer"], rows[LINE]
    about = About(f"layer-expert-csv {source.path.name}")
    if not len(layer):
        return RowsBuilder().rows(about)
    starts, widths = layer_runs(source, layer, hints.k, "line")
    kept, said = without_short_tail(widths, hints.k)
    if said:
        source.cut = True
        source.warnings.append(f"the last run, layer {layer[-1]} from line {lines[starts[-1]]}, {said}")
    return run_rows(about, lines[starts[:kept]], layer[starts[:kept]], widths[:kept], rows["expert"])


def run_rows(about: About, line: NDArray[Any], layer: NDArray[Any], width: I64, ids: NDArray[Any]) -> Rows:
    """Return rows that tell neither iteration nor phase; ids beyond the rows' are left out."""
    unknown = np.full(len(layer), UNKNOWN, dtype=np.uint8)
    return Rows(
        about=about,
        line=line.astype(np.int64),
        key=np.full(len(layer), -1, dtype=np.int64),
        layer=layer.astype(np.int32),
        phase=unknown,
        kind=unknown,
        flags=np.zeros(len(layer), dtype=np.uint8),
        width=width.astype(np.int64),
        ids=ids[: int(width.sum())].astype(np.uint16),
    )


# --- expert-log ---


def _sniff_log(source: Source) -> bool:
    return _LOG.search(source.head) is not None or _MARK in (source.head_lines or (b"",))[0]


@reader("expert-log", _sniff_log)
def read_expert_log(source: Source, hints: Hints) -> Rows:
    """Log lines ``[EXPERT-TRACE] Layer 3: Experts [12, 5, ...]`` among others, which are ignored."""
    parts: list[_LogPart] = []
    others = 0
    for first, block in source.blocks():
        part = _log_block(first, block)
        if part is None:
            part = _log_lines(source, first, block)
        others += len(_CONTENT.findall(block)) - len(np.unique(part.line)) - part.cut
        parts.append(part)
    about = About(f"expert-log {source.path.name}")
    if others:
        source.warnings.append(f"{others} lines that are no expert trace were ignored")
    line, layer, width, ids = _columns(parts)
    if not len(line):
        return RowsBuilder().rows(about)
    kept, said = without_short_tail(width, hints.k)
    if said:
        source.cut = True
        source.warnings.append(f"the last record, line {line[-1]}, {said}")
    return run_rows(about, line[:kept], layer[:kept], width[:kept], ids)


class _LogPart(NamedTuple):
    """Records of a block: their lines, layers, widths and ids, and how many lines were cut off."""

    line: I64
    layer: I64
    width: I64
    ids: I64
    cut: int = 0


def _log_block(first: int, block: bytes) -> _LogPart | None:
    """Return the records of a block; None when a record in it is not as it should be."""
    found = list(_LOG.finditer(block))
    nothing = np.zeros(0, dtype=np.int64)
    if len(found) != block.count(_MARK):
        return None
    if not found:
        return _LogPart(nothing, nothing, nothing, nothing)
    layers = np.array([int(match[1]) for match in found])
    texts = [match[2] for match in found]
    cells = table.cells(b",".join(texts).translate(None, b" \t").replace(b",", b"\n"), b"")
    ids = table.integers(cells, 0, MAX_ID) if cells is not None else None
    if ids is None or int(layers.max()) > MAX_ID:
        return None
    ends = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n"))
    lines = first + np.searchsorted(ends, [match.start() for match in found])
    return _LogPart(lines, layers, np.array([text.count(b",") + 1 for text in texts]), ids)


def _log_lines(source: Source, first: int, block: bytes) -> _LogPart:
    """Take a block line by line: the first line that is wrong is refused, or left out where the file ends in it."""
    parts = []
    cut = 0
    lines = block.split(b"\n")
    for number, line in enumerate(lines, first):
        part = _log_block(number, line)
        if part is not None:
            parts.append(part)
        elif number == first + len(lines) - 1:
            source.cut_line(number)
            cut = 1
        else:
            text = table.decoded(source, number, line)
            text = text[text.index(_MARK.decode()) :]
            raise source.refuse(number, table.shown(text), f"Layer N: Experts [ids from 0 to {MAX_ID}]")
    return _LogPart(*_columns(parts), cut)


def _columns(parts: list[_LogPart]) -> tuple[I64, I64, I64, I64]:
    none = np.zeros(0, dtype=np.int64)
    line, layer, width, ids = (np.concatenate([none, *(part[at] for part in parts)]) for at in range(4))
    return line, layer, width, ids


# --- engine-text ---


@dataclass(slots=True)
class _Engine:
    """Columns of engine text: one element a line, and one per id for ``ids`` and ``gates``."""

    line: list[NDArray[Any]] = field(default_factory=list)
    call: list[NDArray[Any]] = field(default_factory=list)
    row: list[NDArray[Any]] = field(default_factory=list)
    layer: list[NDArray[Any]] = field(default_factory=list)
    width: list[NDArray[Any]] = field(default_factory=list)
    ids: list[NDArray[Any]] = field(default_factory=list)
    gates: list[NDArray[Any]] = field(default_factory=list)

    def add(self, *columns: NDArray[Any] | list[Any]) -> None:
        for name, column in zip(self.__slots__, columns, strict=True):
            dtype = np.float64 if name == "gates" else np.uint16 if name == "ids" else np.int64
            getattr(self, name).append(np.asarray(column, dtype=dtype))


def _sniff_engine(source: Source) -> bool:
    for line in source.head_lines:
        if not line.startswith(b"#"):
            return _ENGINE.fullmatch(line) is not None
    return not source.head_lines and _ENGINE.match(source.head) is not None


@reader("engine-text", _sniff_engine)
def read_engine_text(source: Source, hints: Hints) -> Rows:
    """Engine text ``<call> <row> <layer> <id>:<gate> ...``: a call with several rows is a batch of positions."""
    held = _Engine()
    for first, block in source.blocks():
        ended = block.endswith(b"\n") or not source.cut
        if not (ended and _engine_block(held, first, block)):
            _engine_lines(held, source, first, block)
    line, call, row, layer, width, ids, gates = (
        np.concatenate([np.zeros(0, np.int64), *getattr(held, name)]) for name in _Engine.__slots__
    )
    about = About(f"engine-text {source.path.name}")
    if not len(line):
        return RowsBuilder().rows(about)
    kept, said = without_short_tail(width, hints.k)
    if said:
        source.cut = True
        source.warnings.append(f"line {line[-1]} {said}")
    lines = run_rows(about, line[:kept], layer[:kept], width[:kept], ids)
    return _calls(source, lines, call[:kept], row[:kept], gates[: len(lines.ids)]) if kept else lines


def _engine_block(held: _Engine, first: int, block: bytes) -> bool:
    """Take a block whose lines all name the same number of experts, in plain numbers; return whether it was one."""
    k = block[: block.find(b"\n")].count(b":")
    found = table.cells(block, b"   " + b": " * (k - 1) + b":") if k else None
    if found is None:
        return False
    call, row = (table.integers(found, at, _TOP) for at in (0, 1))
    layer = table.integers(found, 2, MAX_ID)
    ids, gates = table.integers(found, slice(3, None, 2), MAX_ID), table.decimals(found, slice(4, None, 2))
    if call is None or row is None or layer is None or ids is None or gates is None or bool((gates < 0).any()):
        return False
    held.add(np.arange(first, first + len(call)), call, row, layer, np.full(len(call), k), ids.ravel(), gates.ravel())
    return True


def _engine_lines(held: _Engine, source: Source, first: int, block: bytes) -> None:
    for number, line, ended in table.numbered(first, block):
        try:
            parsed = _engine_line(source, number, line)
        except InputError:
            if ended:
                raise
            parsed = None
        if parsed is None or (source.cut and not ended):
            source.cut_line(number)
            break
        call, row, layer, ids, gates = parsed
        held.add([number], [call], [row], [layer], [len(ids)], ids, gates)


def _engine_line(source: Source, number: int, line: bytes) -> tuple[int, int, int, list[int], list[float]]:
    said = table.decoded(source, number, line).split()
    if len(said) < 4:
        raise source.refuse(number, table.shown(line.decode()), "<call> <row> <layer> <id>:<gate> ...")
    head = []
    for name, text, top in zip(("call", "row", "layer"), said, (_TOP, _TOP, MAX_ID), strict=False):
        value = table.whole(text, top)
        if value is None:
            raise source.refuse(number, f"{name} is {table.shown(text)}", f"an integer from 0 to {top}")
        head.append(value)
    ids, gates = [], []
    for text in said[3:]:
        name, _, weight = text.partition(":")
        chosen, gate = table.whole(name, MAX_ID), table.number(weight)
        if chosen is None or gate is None or gate < 0:
            raise source.refuse(
                number, f"{table.shown(text)} is no <id>:<gate>", f"an id from 0 to {MAX_ID} and a gate of 0 or more"
            )
        ids.append(chosen)
        gates.append(gate)
    return head[0], head[1], head[2], ids, gates


def _calls(source: Source, lines: Rows, call: I64, row: I64, gates: NDArray[np.float64]) -> Rows:
    """Make one row of each layer of a call, its positions in order, whichever way the lines stand in the file."""
    _, first, group = np.unique(call << 16 | lines.layer, return_index=True, return_inverse=True)
    order = np.lexsort((row, first[group]))
    gates = gates[_flat(lines, order)]
    lines, call, row, group = lines.take(order), call[order], row[order], group[order]
    begins = changes(group)
    twice = np.flatnonzero(~begins & ~changes(row))
    if len(twice):
        at = int(twice[0])
        seen = f"call {call[at]}, row {row[at]}, layer {lines.layer[at]} a second time"
        raise source.refuse(int(lines.line[at]), seen, "each once")
    starts, _ = joined(begins)
    rows = np.add.reduceat(lines.width, starts)
    offsets = lines.offsets[:-1]
    calls, owner = np.unique(call, return_inverse=True)
    several = np.zeros(len(calls), dtype=bool)
    several[owner[~begins]] = True
    return Rows(
        about=lines.about,
        line=lines.line[starts],
        key=call[starts],
        layer=lines.layer[starts],
        phase=lines.phase[starts],
        kind=np.where(several[owner[starts]], BATCH, UNKNOWN).astype(np.uint8),
        flags=weight_flags(gates, offsets, offsets[starts]),
        width=rows,
        ids=lines.ids,
    )


def _flat(lines: Rows, order: I64) -> I64:
    """Return the places of the ids of rows taken in ``order``."""
    width = lines.width[order]
    within = np.arange(int(width.sum())) - np.repeat(np.cumsum(width) - width, width)
    return np.repeat(lines.offsets[:-1][order], width) + within
