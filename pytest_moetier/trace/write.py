"""Writing traces: our own JSON lines (``formats.canonical`` describes them), and two formats of others.

A file appears whole or not at all. What a format cannot hold comes back as sentences, to be said to the user.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from pytest_moetier.errors import InputError
from pytest_moetier.trace.formats.canonical import CANONICAL_FORMAT, CANONICAL_VERSION
from pytest_moetier.trace.records import KINDS, NORMAL, SPEC_FALLBACK, Trace

_BLOCK_RECORDS = 4096
_BLOCK_REQUESTS = 1 << 16
_GZIP_LEVEL = 6
"""A fifth of the time of level 9, for 4% more bytes."""

_REQUEST = np.dtype([("time", "<u4"), ("obj_id", "<u8"), ("obj_size", "<u4"), ("next_access_vtime", "<i8")])
"""A request of libCacheSim's oracleGeneral, packed: 24 bytes."""


def convert(trace: Trace, path: Path, to: str | None = None) -> tuple[str, ...]:
    """Write ``trace`` in a format; return what the format cannot hold, one sentence each.

    Args:
        trace: any trace.
        path: the file.
        to: a key of ``WRITERS``; default: told from the file's name.

    Raises:
        InputError: no such format, or one that cannot hold this trace, or the file cannot be written.
    """
    _need_plain(path)
    if to is not None and to not in WRITERS:
        raise InputError(f"no format {to!r} to write", "one of " + ", ".join(WRITERS))
    return WRITERS[to or _told_from(path.name)](trace, path)


def write_trace(trace: Trace, path: Path) -> tuple[str, ...]:
    """Write ``trace`` in our own format, which holds all of it; gzip or zstd when the name ends in ``.gz`` or ``.zst``.

    Equal traces give equal bytes.

    Raises:
        InputError: the file cannot be written, or is a link or special file: as root that could be anyone's.
    """
    with _packed(path) as file:
        file.write(orjson.dumps(_meta(trace)) + b"\n")
        if trace.prefill is not None:
            _write_records(trace.prefill, b"prefill", file)
        _write_records(trace, b"decode", file)
    return ()


def write_npy(trace: Trace, path: Path) -> tuple[str, ...]:
    """Write the decode as a numpy array of uint16, [tokens, layers, k]; an accept and a fallback are two rows each.

    Raises:
        InputError: the trace holds several positions in one record, or the file cannot be written.
    """
    if int(trace.kind.max()) > SPEC_FALLBACK:
        raise InputError(
            f"{trace.source} holds several positions in one iteration, and an array has one row a position",
            "the decode of one stream",
            "write it as .jsonl or .oracleGeneral",
        )
    chosen = trace.selections()
    by_layer = np.argsort(cast("NDArray[np.uint16]", chosen.row_layer), kind="stable")
    rows = chosen.ids.reshape(-1, trace.k)[by_layer].reshape(len(trace.layers), -1, trace.k)
    with _replacing(path) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(rows.swapaxes(0, 1)), allow_pickle=False)
    return (*_npy_loses(trace, rows.shape[1]), *_said_prefill(trace))


def write_oracle_general(trace: Trace, path: Path, expert_bytes: int | Sequence[int] | None = None) -> tuple[str, ...]:
    """Write the decode as requests in libCacheSim's oracleGeneral; zstd when the name ends in ``.zst``.

    A request is one expert read, in the order issued: its time is the iteration; its object is the layer's index times
    the experts per layer, plus the expert, plus 1 (0 is no object there); ``next_access_vtime`` counts requests from 1,
    as theirs do, and is -1 where the object does not come again.

    Args:
        trace: any trace.
        path: the file.
        expert_bytes: the size of an expert, or one per layer; default: the trace's own, or else 1.

    Raises:
        InputError: a size that the format cannot hold, or the file cannot be written.
    """
    sizes = _sizes(trace, expert_bytes)
    bounds = trace.offsets.astype(np.int64)
    widths = bounds[1:] - bounds[:-1]
    layer = np.searchsorted(trace.layers, trace.layer).astype(np.uint32)
    objects = np.repeat(layer * np.uint32(trace.n_experts), widths) + trace.experts.astype(np.uint32)
    following = _next_requests(objects)
    time = np.repeat(trace.iteration, widths)
    with _packed(path) as file:
        for start in range(0, trace.n_accesses, _BLOCK_REQUESTS):
            part = slice(start, start + _BLOCK_REQUESTS)
            block = np.empty(len(time[part]), dtype=_REQUEST)
            block["time"], block["obj_id"] = time[part], objects[part].astype(np.uint64) + 1
            block["obj_size"] = sizes[objects[part] // trace.n_experts]
            block["next_access_vtime"] = following[part]
            file.write(block.tobytes())
    kinds = [name for name, count in trace.kind_counts().items() if count and name != KINDS[NORMAL]]
    said = [f"requests have no types: {', '.join(kinds)} are not told apart"] if kinds else []
    if expert_bytes is None and not trace.expert_bytes:
        said.append("the trace does not state the size of an expert: every one is 1 byte, so sizes count experts")
    return (*said, *_said_synthetic(trace), *_said_prefill(trace))


Writer = Callable[[Trace, Path], tuple[str, ...]]

WRITERS: dict[str, Writer] = {"jsonl": write_trace, "npy": write_npy, "oracleGeneral": write_oracle_general}
_SUFFIXES = {
    "jsonl": (".jsonl", ".jsonl.gz", ".jsonl.zst"),
    "npy": (".npy",),
    "oracleGeneral": (".oracleGeneral", ".oracleGeneral.bin", ".oracleGeneral.zst"),
}


def _told_from(name: str) -> str:
    for format_name, suffixes in _SUFFIXES.items():
        if name.endswith(suffixes):
            return format_name
    known = ", ".join(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes)
    raise InputError(f"{name} does not tell its format", f"a name that ends in one of {known}", "--to FORMAT names it")


def _meta(trace: Trace) -> dict[str, object]:
    meta: dict[str, object] = {
        "type": "meta",
        "format": CANONICAL_FORMAT,
        "version": CANONICAL_VERSION,
        "layers": list(trace.layers),
        "n_experts": trace.n_experts,
        "k": trace.k,
        "iterations": trace.n_iterations,
        "records": trace.n_records,
        "synthetic": trace.synthetic,
        "source": trace.source.encode(errors="backslashreplace").decode(),  # a file's name may be no text
        "order": trace.order,
    }
    if trace.expert_bytes:
        meta["expert_bytes"] = list(trace.expert_bytes)
    if trace.accepted_tokens != trace.n_iterations + trace.kind_counts()["spec_accept"]:
        meta["accepted_tokens"] = trace.accepted_tokens
    return meta


def _write_records(trace: Trace, phase: bytes, file: IO[bytes]) -> None:
    """Write one line a record, a block of them at a time: all ids of a block become text in one call."""
    names = [kind.encode() for kind in KINDS]
    line = b'{"type":"%b","phase":"' + phase + b'","iteration":%d,"layer":%d,"experts":[%b]}\n'
    for start in range(0, trace.n_records, _BLOCK_RECORDS):
        part = slice(start, start + _BLOCK_RECORDS)
        bounds = trace.offsets[start : start + _BLOCK_RECORDS + 1].astype(np.int64)
        ids = trace.experts[bounds[0] : bounds[-1]].tolist()
        lists = [ids[one:other] for one, other in pairwise((bounds - bounds[0]).tolist())]
        texts = orjson.dumps(lists)[2:-2].split(b"],[")
        kinds = [names[kind] for kind in trace.kind[part].tolist()]
        columns = zip(kinds, trace.iteration[part].tolist(), trace.layer[part].tolist(), texts, strict=True)
        file.write(b"".join([line % row for row in columns]))


def _npy_loses(trace: Trace, tokens: int) -> Iterator[str]:
    counts = trace.kind_counts()
    if counts["spec_accept"] or counts["spec_fallback"]:
        yield (
            f"an array has no types: {counts['spec_accept']} spec_accept and {counts['spec_fallback']} spec_fallback "
            f"iterations are two rows each, {tokens} rows for {trace.accepted_tokens} accepted tokens in all"
        )
    yield f"an array does not state the experts per layer ({trace.n_experts})"
    if trace.layers != tuple(range(len(trace.layers))):
        yield f"an array does not number its layers ({trace.layers[0]} to {trace.layers[-1]}): they become 0, 1, 2, ..."
    if trace.expert_bytes:
        yield "an array does not state the size of an expert"
    yield from _said_synthetic(trace)


def _said_synthetic(trace: Trace) -> Iterator[str]:
    if trace.synthetic:
        yield "the file does not say that the trace is synthetic"


def _said_prefill(trace: Trace) -> Iterator[str]:
    if trace.prefill is not None:
        yield f"the prefill was left out ({trace.prefill.n_records} records)"


def _sizes(trace: Trace, expert_bytes: int | Sequence[int] | None) -> NDArray[np.int64]:
    """Return the size of an expert of each layer."""
    n_layers = len(trace.layers)
    given = expert_bytes if expert_bytes is not None else trace.expert_bytes or 1
    sizes = [given] * n_layers if isinstance(given, int) else list(given)
    if len(sizes) != n_layers or not all(1 <= one < 1 << 32 for one in sizes):
        raise InputError(
            f"{len(sizes)} sizes of experts from {min(sizes, default=0)} to {max(sizes, default=0)} bytes",
            f"one, or one per layer ({n_layers}), each from 1 to {(1 << 32) - 1} bytes",
        )
    return np.array(sizes, dtype=np.int64)


def _next_requests(objects: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return for each request the number (from 1) of the next one of its object, or -1."""
    order = np.argsort(objects, kind="stable")
    again = objects[order[1:]] == objects[order[:-1]]
    following = np.full(len(objects), -1, dtype=np.int64)
    following[order[:-1][again]] = order[1:][again] + 1
    return following


@contextmanager
def _packed(path: Path) -> Iterator[IO[bytes]]:
    """Give a new file to write to, compressed as the path's last suffix says."""
    zstd = _zstd() if path.suffix == ".zst" else None
    with _replacing(path) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=_GZIP_LEVEL, mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        elif zstd is not None:
            with zstd.ZstdCompressor().stream_writer(file, closefd=False) as packed:
                yield packed
        else:
            yield file


def _zstd() -> Any:  # noqa: ANN401  (a module)
    try:
        import zstandard  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise InputError(
            "a name in .zst asks for zstd", "the extra that writes it", "pip install 'pytest-moetier[zstd]'"
        ) from error
    return zstandard


def _need_plain(path: Path) -> None:
    """Refuse to write through a link or over a special file: as root that could be anyone's."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "a symbolic link" if path.is_symlink() else "no plain file"
        raise InputError(f"{path} is {kind}", "a plain file, or none yet", "remove it or choose another path")


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Give a new file to write to, which takes the place of ``path`` once it is whole, and else goes away.

    Raises:
        InputError: the path is a link or no plain file, or the system refuses to write.
    """
    new = path.with_name(f".{path.name[:32]}.{os.getpid()}")
    made = False
    try:
        _need_plain(path)
        with new.open("xb") as file:
            made = True
            yield file
        new.replace(path)
        made = False
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}",
            "a path that may be written to, with room for the trace",
            f"ls -ld {path.parent}; df -h {path.parent}",
        ) from error
    finally:
        if made:
            with suppress(OSError):
                new.unlink()
