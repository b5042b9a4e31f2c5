"""Binary formats: numpy arrays and dumps of pairs and records."""

from __future__ import annotations

import io
import math
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from pytest_moetier.errors import InputError
from pytest_moetier.trace.formats.fields import MAX_ID
from pytest_moetier.trace.formats.refused import counts_only, first_member
from pytest_moetier.trace.formats.registry import reader
from pytest_moetier.trace.formats.text import changes, joined, layer_runs, run_rows, without_short_tail
from pytest_moetier.trace.records import BATCH
from pytest_moetier.trace.rows import DECODE, PREFILL, UNKNOWN, About, Hints, Rows, RowsBuilder
from pytest_moetier.trace.source import MAX_DOCUMENT_BYTES, Source

_PAIR = np.dtype("<i4")
_RECORD = np.dtype([("token", "<u4"), ("layer", "<u2"), ("expert", "<u2"), ("time", "<u8")])
_LONGEST_RUN = 1 << 22
_LIKELY_TOKENS, _LIKELY_LAYERS = 1 << 24, 1 << 12
_BATCH_KEYS = 1 << 40
_SNIFFED = 64
"""Records that tell the format; what is wrong behind them is refused with its place."""

_STEP = 1 << 12
"""Tokens looked at a time."""
_NPY = b"\x93NUMPY"
_NPY_HEADER_BYTES = 1 << 16
_NAMES = ("routed_experts", "topk_ids", "experts")
_SHAPE = "integers of the shape [tokens, layers, k]"
_SAVE = "np.save(FILE, ids) with ids.shape == (tokens, layers, k)"


# --- pairs-i32 ---


def _sniff_pairs(source: Source) -> bool:
    pairs = np.frombuffer(source.head, _PAIR, min(len(source.head) // 8, _SNIFFED) * 2).reshape(-1, 2)
    if len(pairs) < 2 or int(pairs.min()) < 0 or int(pairs.max()) > MAX_ID or int(pairs[:, 0].max()) >= _LIKELY_LAYERS:
        return False
    same = pairs[1:, 0] == pairs[:-1, 0]
    if np.count_nonzero(same & (pairs[1:, 1] == pairs[:-1, 1])) > len(pairs) // 2:
        return False
    layers = pairs[np.flatnonzero(changes(pairs[:, 0])), 0]
    return bool(((layers[1:] > layers[:-1]) | (layers[1:] == layers[0])).all())


@reader("pairs-i32", _sniff_pairs)
def read_pairs(source: Source, hints: Hints) -> Rows:
    """Binary little-endian int32 pairs (layer, expert) without a step, as kimi-k3-in-c dumps them."""
    layers: list[NDArray[Any]] = []
    experts: list[NDArray[Any]] = []
    done, longest, rest = 0, 0, b""
    for piece in source.pieces():
        data = rest + piece
        pairs = np.frombuffer(data, _PAIR, len(data) // 8 * 2).reshape(-1, 2)
        rest = data[pairs.nbytes :]
        _check_pairs(source, pairs, done)
        layers.append(pairs[:, 0].astype(np.uint16))
        experts.append(pairs[:, 1].astype(np.uint16))
        longest = _check_run(source, layers[-1], longest, done)
        done += len(pairs)
    _note_rest(source, rest, done, "pairs")
    about = About(f"pairs-i32 {source.path.name}", place="record")
    if not done:
        return RowsBuilder().rows(about)
    layer = np.concatenate(layers)
    starts, widths = layer_runs(source, layer, hints.k, "record")
    kept, said = without_short_tail(widths, hints.k)
    if said:
        source.cut = True
        source.warnings.append(f"the last run, layer {layer[-1]} from record {starts[-1] + 1}, {said}")
    begins = starts[:kept]
    return run_rows(about, begins + 1, layer[begins], widths[:kept], np.concatenate(experts))


def _check_pairs(source: Source, pairs: NDArray[np.int32], done: int) -> None:
    wrong = np.flatnonzero(((pairs < 0) | (pairs > MAX_ID)).any(axis=1))
    if len(wrong):
        layer, expert = pairs[wrong[0]].tolist()
        seen = f"layer {layer}, expert {expert}"
        raise source.refuse(done + int(wrong[0]) + 1, seen, f"both from 0 to {MAX_ID}", unit="record")


def _check_run(source: Source, layer: NDArray[np.uint16], before: int, done: int) -> int:
    """Return how long the run that goes on is; a file of zeros is one run without an end."""
    begins = changes(layer)
    begins[:1] = False
    starts = np.flatnonzero(begins)
    now = before + len(layer) if not len(starts) else len(layer) - int(starts[-1])
    if now > _LONGEST_RUN:
        seen = f"layer {layer[-1]} goes on for more than {_LONGEST_RUN} records"
        raise source.refuse(done + 1, seen, "runs of k, or n x k, records of a layer", unit="record")
    return now


def _note_rest(source: Source, rest: bytes, done: int, what: str) -> None:
    if rest:
        source.cut = True
        source.warnings.append(
            f"record {done + 1} is cut off after {len(rest)} bytes and was left out; {done} {what} were kept"
        )


# --- records-u32 ---


def _sniff_records(source: Source) -> bool:
    head = np.frombuffer(source.head, _RECORD, min(len(source.head) // _RECORD.itemsize, _SNIFFED))
    if len(head) < 2 or not head["expert"].any():
        return False
    token, layer, time = (head[name] for name in ("token", "layer", "time"))
    if int(token.max()) >= _LIKELY_TOKENS or int(layer.max()) >= _LIKELY_LAYERS:
        return False
    if np.count_nonzero(time[1:] < time[:-1]) > len(time) // 10:
        return False
    begins = changes(token, layer)
    _, widths = joined(begins)
    chosen = (np.cumsum(begins) << 16) | head["expert"]
    return bool((widths[:-1] == widths[0]).all()) and len(np.unique(chosen)) == len(chosen)


@reader("records-u32", _sniff_records)
def read_records(source: Source, hints: Hints) -> Rows:
    """Binary records of 16 bytes, little-endian: u32 token, u16 layer, u16 expert, u64 time."""
    parts: list[NDArray[Any]] = []
    done, rest = 0, b""
    for piece in source.pieces():
        data = rest + piece
        records = np.frombuffer(data, _RECORD, len(data) // _RECORD.itemsize)
        rest = data[records.nbytes :]
        parts.append(records[["token", "layer", "expert"]].astype([("token", "u4"), ("layer", "u2"), ("expert", "u2")]))
        done += len(records)
    _note_rest(source, rest, done, "records")
    about = About(f"records-u32 {source.path.name}", place="record")
    if not done:
        return RowsBuilder().rows(about)
    records = np.concatenate(parts)
    token, layer = records["token"].astype(np.int64), records["layer"]
    starts, widths = joined(changes(token, layer))
    kept, said = without_short_tail(widths, hints.k)
    if said:
        source.cut = True
        source.warnings.append(f"token {token[-1]}, layer {layer[-1]}, from record {starts[-1] + 1}, {said}")
    rows = run_rows(about, starts[:kept] + 1, layer[starts[:kept]], widths[:kept], records["expert"])
    return _by_token(rows, token[starts[:kept]]) if kept else rows


def _by_token(rows: Rows, token: NDArray[np.int64]) -> Rows:
    """Make one row of each layer's run of tokens: several in one engine call are a prompt, else a token is decode.

    An engine call is a stretch in which layers rise; its last layer may be pruned to one position.
    """
    starts, _ = joined(changes(rows.layer))
    call = np.cumsum(np.concatenate([[False], np.diff(rows.layer[starts]) <= 0]))
    several = np.zeros(int(call[-1]) + 1, dtype=bool)
    if len(starts) == 1:  # one layer alone: its tokens are taken one by one
        return replace(rows, key=token, phase=np.full(rows.n, DECODE, dtype=np.uint8))
    several[call[np.diff(np.concatenate([starts, [rows.n]])) > 1]] = True
    batch = several[call]
    return Rows(
        about=rows.about,
        line=rows.line[starts],
        key=np.where(batch, _BATCH_KEYS + call, token[starts]),
        layer=rows.layer[starts],
        phase=np.where(batch, PREFILL, DECODE).astype(np.uint8),
        kind=np.where(batch, BATCH, UNKNOWN).astype(np.uint8),
        flags=rows.flags[starts],
        width=np.add.reduceat(rows.width, starts),
        ids=rows.ids,
    )


# --- npy, npz ---


class _Header(NamedTuple):
    """What a .npy says of itself, and where its values begin."""

    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype[Any]
    at: int


def _sniff_npy(source: Source) -> bool:
    return source.head.startswith(_NPY)


@reader("npy", _sniff_npy)
def read_npy(source: Source, hints: Hints) -> Rows:
    """A numpy array of integers [tokens, layers, k] in a .npy, as vLLM returns ``routed_experts``: decode tokens."""
    del hints
    return _token_rows(source, _npy_tokens(source), "npy")


def open_array(source: Source) -> NDArray[np.integer] | None:
    """Return the ids of a plain .npy as [tokens, layers, k], memory-mapped and read-only: nothing is copied.

    They are in range, and unfinished tokens at the end are left out; that ids of a pass differ is not looked at. None
    when the file is no .npy, is compressed, or is not in C order and the machine's own bytes.

    Raises:
        InputError: a .npy that holds something else than the ids of a trace.
    """
    if source.compressed or not _sniff_npy(source):
        return None
    ids = _npy_tokens(source)
    return ids if ids.flags.c_contiguous and ids.dtype.isnative else None


def _npy_tokens(source: Source) -> NDArray[np.integer]:
    name = str(source.path)
    if source.compressed:
        data = source.binary()
        header = _npy_header(name, data[:_NPY_HEADER_BYTES])
        size = len(data)
    else:
        header = _npy_header(name, source.head[:_NPY_HEADER_BYTES])
        size = source.path.stat().st_size
    _check_header(name, header)
    held = _whole_tokens(source, header, size - header.at)
    shape = (held, *header.shape[1:])
    if source.compressed:
        return _checked(source, _values(data, header, shape))
    mapped: NDArray[Any] = np.memmap(source.path, header.dtype, "r", header.at, shape, header.order)
    return _checked(source, mapped)


def _values(data: bytes, header: _Header, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.ndarray(shape, header.dtype, data, header.at, order=header.order)


def _npy_header(name: str, data: bytes) -> _Header:
    file = io.BytesIO(data)
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError) as error:
        reason = " ".join(str(error).split())[:80]
        raise InputError(f"{name}: its .npy header is damaged ({reason})", "a whole .npy", _SAVE) from error
    return _Header(shape, "F" if fortran else "C", dtype, file.tell())


def _check_header(name: str, header: _Header) -> None:
    shape, dtype = header.shape, header.dtype
    seen = f"{name} holds an array of {str(dtype)[:40]} with the shape {list(shape)[:8]}"
    if len(shape) == 2 and dtype.kind in "iuf":
        raise counts_only(
            f"{seen}: a [layers, experts] matrix", "where these are one layer's ids, np.save(FILE, ids[:, None, :])"
        )
    if dtype.kind not in "iu" or len(shape) != 3:
        do = _SAVE if len(shape) != 4 else "save each request in a file of its own"
        raise InputError(seen, _SHAPE, do)
    tokens, layers, k = shape
    if tokens < 1 or not 1 <= layers <= MAX_ID + 1 or not 1 <= k <= MAX_ID:
        raise InputError(seen, _SHAPE + ", none of them 0 and layers and k at most 65535", _SAVE)


def _whole_tokens(source: Source, header: _Header, size: int) -> int:
    """Return how many tokens the file really holds: fewer than its header says when it was cut."""
    tokens = header.shape[0]
    each = math.prod(header.shape[1:]) * header.dtype.itemsize
    if size >= tokens * each:
        return tokens
    held = max(size, 0) // each
    if header.order == "F" or not held:
        seen = f"{source.path} is cut off: it has {size} of the {tokens * each} bytes that its header states"
        raise InputError(seen, "a whole .npy", _SAVE)
    source.cut = True
    source.warnings.append(f"record {held + 1}, a token, is cut off; {held} of the {tokens} tokens stated were kept")
    return held


def _checked(source: Source, ids: NDArray[Any]) -> NDArray[np.integer]:
    """Return the tokens whose ids are known; those of a request that did not finish are -1 at the end.

    Raises:
        InputError: an id is out of range; the message names token and layer.
    """
    held = _known(ids) if ids.dtype.kind == "i" else len(ids)
    if held < len(ids):
        source.warnings.append(
            f"the last {len(ids) - held} tokens, of an unfinished request, are -1 and were left out; {held} were kept"
        )
    if not held:
        raise InputError(f"{source.path} holds no record: all {len(ids)} tokens are -1", "a finished request")
    ids = ids[:held]
    if int(ids.min()) < 0 or int(ids.max()) > MAX_ID:
        token, layer, at = (int(one) for one in np.argwhere((ids < 0) | (ids > MAX_ID))[0])
        raise InputError(
            f"{source.path}, token {token}, layer {layer}: expert id {ids[token, layer, at]}",
            f"ids from 0 to {MAX_ID} (-1 only in whole tokens at the end)",
            _SAVE,
        )
    return ids


def _known(ids: NDArray[Any]) -> int:
    """Return the number of tokens before those at the end that are -1 throughout."""
    for end in range(len(ids), 0, -_STEP):
        start = max(end - _STEP, 0)
        known = np.flatnonzero((ids[start:end] != -1).any(axis=(1, 2)))
        if len(known):
            return start + int(known[-1]) + 1
    return 0


def _token_rows(source: Source, ids: NDArray[np.integer], name: str) -> Rows:
    tokens, layers, k = ids.shape
    n = tokens * layers
    return Rows(
        about=About(f"{name} {source.path.name}", place="record"),
        line=np.arange(1, n + 1),
        key=np.repeat(np.arange(tokens), layers),
        layer=np.tile(np.arange(layers, dtype=np.int32), tokens),
        phase=np.full(n, DECODE, dtype=np.uint8),
        kind=np.full(n, UNKNOWN, dtype=np.uint8),
        flags=np.zeros(n, dtype=np.uint8),
        width=np.full(n, k, dtype=np.int64),
        ids=np.asarray(ids).astype(np.uint16).reshape(-1),
    )


def _sniff_npz(source: Source) -> bool:
    return first_member(source.head).endswith(b".npy")


@reader("npz", _sniff_npz)
def read_npz(source: Source, hints: Hints) -> Rows:
    """A numpy .npz with one such array, or one named routed_experts, topk_ids or experts."""
    del hints
    file: Any = io.BytesIO(source.binary()) if source.compressed else source.path
    errors = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
    try:
        with zipfile.ZipFile(file) as archive:
            return _token_rows(source, _member_tokens(source, archive), "npz")
    except (*errors, OSError, ValueError, OverflowError, KeyError) as error:
        reason = " ".join(str(error).split())[:80]
        seen = f"{source.path} is a damaged or cut-off .npz ({reason})"
        raise InputError(seen, "a whole .npz", f"unzip -t {source.path}") from error


def _member_tokens(source: Source, archive: zipfile.ZipFile) -> NDArray[np.integer]:
    found: dict[str, _Header] = {}
    for info in archive.infolist():
        if info.filename.endswith(".npy"):
            with archive.open(info) as member:
                header_bytes = member.read(_NPY_HEADER_BYTES)
            found[info.filename[:-4]] = _npy_header(f"{source.path}, {info.filename}", header_bytes)
    name = _chosen(source, found)
    label, header = f"{source.path}, {name}.npy", found[name]
    _check_header(label, header)
    size = math.prod(header.shape) * header.dtype.itemsize
    if size > MAX_DOCUMENT_BYTES:
        seen = f"{label} states {size} bytes"
        raise InputError(seen, f"at most {MAX_DOCUMENT_BYTES >> 30} GiB in a .npz", "np.save it as .npy: it is mapped")
    with archive.open(f"{name}.npy") as member:
        data = member.read(header.at + size)
    if len(data) < header.at + size:
        raise InputError(f"{label} has {len(data) - header.at} of the {size} bytes it states", "a whole .npz", _SAVE)
    return _checked(source, _values(data, header, header.shape))


def _chosen(source: Source, found: dict[str, _Header]) -> str:
    fitting = [name for name, one in found.items() if len(one.shape) == 3 and one.dtype.kind in "iu"]
    for names in ([one for one in _NAMES if one in found], fitting):
        if len(names) == 1:
            return names[0]
        if names:
            break
    shapes = ", ".join(f"{name} {list(one.shape)}" for name, one in list(found.items())[:6]) or "no array"
    if not names and len(found) == 1:
        return next(iter(found))
    if not names and _all_matrices(list(found.values())):
        raise counts_only(f"{source.path} holds {shapes}: [layers, experts] matrices")
    several = f"{len(names)} arrays that could be the ids: {', '.join(names)}" if names else shapes
    raise InputError(f"{source.path} holds {several}", f"one array of {_SHAPE}", _SAVE)


def _all_matrices(found: Sequence[_Header]) -> bool:
    return bool(found) and all(len(one.shape) == 2 for one in found)
