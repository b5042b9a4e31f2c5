"""Trace x pool -> the exact sequence of reads, iteration by iteration, and the binary file the replayer reads.

The file is little-endian with all sections 8-byte aligned: a header of 160 bytes, then iterations, sequence, experts,
extents, files and strings, as the dtypes below lay them out. Counts and offsets are 64 bits wide: a plan of more than
2^32 accesses is possible. Both the header and the body carry a CRC-32.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.errors import InputError
from pytest_moetier.pool.manifest import Manifest, PoolFile, is_inside
from pytest_moetier.pool.private import write_private
from pytest_moetier.trace import splitmix
from pytest_moetier.trace.records import Trace
from pytest_moetier.units import PAGE_BYTES

MAGIC = b"MOEPLAN\0"
VERSION = 1
HEADER_BYTES = 160
STAMPED, SYNTHETIC_TRACE, SYNTHETIC_POOL, ABSOLUTE_PATHS, THROWAWAY = 1, 2, 4, 8, 16

_SECTIONS = ("iterations", "sequence", "experts", "extents", "files", "strings")
_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("header_bytes", "<u4"),
        ("file_bytes", "<u8"),
        *((f"n_{name}", "<u8") for name in ("iterations", "accesses", "experts", "extents", "files")),
        ("strings_bytes", "<u8"),
        *((f"off_{name}", "<u8") for name in _SECTIONS),
        ("pool_id", "<u8"),
        ("flags", "<u4"),
        ("page_bytes", "<u4"),
        ("total_bytes", "<u8"),
        ("reserved", "<u4"),
        ("crc_body", "<u4"),
        ("reserved2", "<u4"),
        ("crc_header", "<u4"),
    ]
)
_EXPERT = np.dtype(
    [
        ("layer", "<u4"),
        ("expert", "<u4"),
        ("first_extent", "<u8"),
        ("n_extents", "<u4"),
        ("pad", "<u4"),
        ("bytes", "<u8"),
    ]
)
_EXTENT = np.dtype([("file", "<u4"), ("pad", "<u4"), ("offset", "<u8"), ("length", "<u8")])
_FILE = np.dtype([("string_offset", "<u8"), ("string_bytes", "<u4"), ("pad", "<u4"), ("size_bytes", "<u8")])
_BYTE: np.dtype[Any] = np.dtype(np.uint8)
_ITEM: dict[str, np.dtype[Any]] = {
    "iterations": np.dtype("<u8"),
    "sequence": np.dtype("<u4"),
    "experts": _EXPERT,
    "extents": _EXTENT,
    "files": _FILE,
}
_KNOWN_FLAGS = STAMPED | SYNTHETIC_TRACE | SYNTHETIC_POOL | ABSOLUTE_PATHS | THROWAWAY
_CRC_CHUNK = 64 << 20
_REWRITE = "write the plan again from its trace and pool"


@dataclass(frozen=True, eq=False)
class Plan:
    """What is read, in which order, and where it is.

    Attributes:
        iterations: u64, the first access of each iteration, and the number of accesses.
        sequence: u32 per access, an index into the experts.
        expert_layer: u32, the pool's layer number of each expert; every expert of the pool is listed, read or not.
        expert_id: u32, its number in the layer.
        expert_bytes: u64, its size in bytes.
        expert_first_extent: u64, its first extent.
        expert_n_extents: u32, how many it has.
        extent_file: u32, index into ``files``.
        extent_offset: u64, bytes.
        extent_length: u64, bytes.
        files: path (relative to the pool's root) and size of each file.
        pool_id: what the pages' stamps must say.
        flags: STAMPED, SYNTHETIC_TRACE, SYNTHETIC_POOL, ABSOLUTE_PATHS, THROWAWAY (the pool may be written to).
        layer_map: (trace layer, pool layer) pairs as ``build_plan`` matched them; the file does not keep them.
    """

    iterations: NDArray[np.uint64]
    sequence: NDArray[np.uint32]
    expert_layer: NDArray[np.uint32]
    expert_id: NDArray[np.uint32]
    expert_bytes: NDArray[np.uint64]
    expert_first_extent: NDArray[np.uint64]
    expert_n_extents: NDArray[np.uint32]
    extent_file: NDArray[np.uint32]
    extent_offset: NDArray[np.uint64]
    extent_length: NDArray[np.uint64]
    files: tuple[PoolFile, ...]
    pool_id: int
    flags: int
    layer_map: tuple[tuple[int, int], ...] = ()

    @property
    def n_iterations(self) -> int:
        """The number of iterations."""
        return len(self.iterations) - 1

    @property
    def n_accesses(self) -> int:
        """The number of expert reads."""
        return len(self.sequence)

    @property
    def n_experts(self) -> int:
        """The number of experts in the pool."""
        return len(self.expert_id)

    @property
    def pool_bytes(self) -> int:
        """Bytes of all experts of the pool, read or not."""
        return int(self.expert_bytes.sum())

    @cached_property
    def access_bytes(self) -> NDArray[np.uint64]:
        """u64 per access: the bytes it reads."""
        return self.expert_bytes[self.sequence]

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all accesses."""
        return int(self.access_bytes.sum())

    @cached_property
    def iteration_bytes(self) -> NDArray[np.uint64]:
        """u64 per iteration: the bytes it reads."""
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(self.access_bytes)])
        sizes: NDArray[np.uint64] = running[self.iterations[1:]] - running[self.iterations[:-1]]
        return sizes

    @cached_property
    def own_page_bytes(self) -> NDArray[np.uint64]:
        """u64 per expert: bytes of the pages that hold nothing else; what is beside them may come with a neighbour."""
        page = np.uint64(PAGE_BYTES)
        ends = (self.extent_offset + self.extent_length) // page
        starts = (self.extent_offset + page - np.uint64(1)) // page
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(np.maximum(ends, starts) - starts)])
        first = self.expert_first_extent
        pages: NDArray[np.uint64] = running[first + self.expert_n_extents.astype(np.uint64)] - running[first]
        return pages * page

    @property
    def stamped(self) -> bool:
        """Every page carries its address."""
        return bool(self.flags & STAMPED)

    @property
    def synthetic_trace(self) -> bool:
        """The trace was made by a generator."""
        return bool(self.flags & SYNTHETIC_TRACE)

    @property
    def synthetic_pool(self) -> bool:
        """The pool's bytes are made up."""
        return bool(self.flags & SYNTHETIC_POOL)


def _map_layers(trace: Trace, manifest: Manifest) -> tuple[tuple[int, int], ...]:
    if len(trace.layers) > len(manifest.layers):
        raise InputError(
            f"the trace has {len(trace.layers)} layers, the pool {manifest.name} has {len(manifest.layers)}",
            "at least as many layers in the pool",
            f"create a pool of {len(trace.layers)} layers, or a trace by `moetier trace synth --layers "
            f"{len(manifest.layers)}`",
        )
    return tuple(zip(trace.layers, manifest.layers[: len(trace.layers)], strict=True))


def build_plan(trace: Trace, manifest: Manifest, iterations: int | None = None) -> Plan:
    """Return the plan that reads every expert ``trace`` selects, in the order issued, from the pool of ``manifest``.

    The trace's layers are matched with the pool's by order (``Plan.layer_map`` says how). A speculative accept reads
    both its passes, a fallback too: what was issued is what is replayed.

    Args:
        trace: the router's choices.
        manifest: the pool.
        iterations: only so many of the trace's iterations, from its first; default: all.

    Raises:
        InputError: more layers than the pool has, an id it does not hold, or more iterations than there are.
    """
    pairs = _map_layers(trace, manifest)
    count = trace.n_iterations if iterations is None else iterations
    if not 1 <= count <= trace.n_iterations:
        raise InputError(
            f"{count} iterations asked for",
            f"1 to {trace.n_iterations}, as the trace has",
            "ask for fewer (--moetier-iterations), or give a longer trace",
        )
    bounds = trace.access_bounds()[: count + 1]
    n_accesses = int(bounds[-1])
    n_records = int(trace.record_bounds()[count])
    ids = trace.experts[:n_accesses].astype(np.uint32)
    place = np.searchsorted(np.array(trace.layers), trace.layer[:n_records])
    places = np.repeat(place.astype(np.uint32), np.diff(trace.offsets[: n_records + 1]).astype(np.int64))
    if int(ids.max()) >= manifest.experts:
        at = int(np.flatnonzero(ids >= manifest.experts)[0])
        raise InputError(
            f"the trace selects expert {ids[at]} in layer {trace.layers[int(places[at])]}",
            f"an id below {manifest.experts}, the experts per layer of the pool {manifest.name}",
            f"create a pool of the trace's model ({trace.n_experts} experts per layer)",
        )
    sequence = places * np.uint32(manifest.experts) + ids
    return _plan(manifest, bounds, sequence, SYNTHETIC_TRACE if trace.synthetic else 0, pairs)


def cold_plan(manifest: Manifest, n_experts: int, seed: int) -> Plan:
    """Return a plan of one iteration that reads ``n_experts`` distinct experts once, spread evenly over the layers.

    It measures the cold factor: device bytes over logical bytes of one cold read. The order is random.

    Raises:
        InputError: the pool has fewer experts.
    """
    if not 1 <= n_experts <= manifest.n_experts:
        raise InputError(f"a cold read of {n_experts} experts", f"1 to {manifest.n_experts}, as the pool has")
    layers = len(manifest.layers)
    stream = splitmix.key(seed, manifest.pool_id)
    chosen: list[int] = []
    for at in range(layers):
        share = n_experts // layers + (at < n_experts % layers)
        order = splitmix.shuffled(manifest.experts, splitmix.key(stream, at))
        chosen += [at * manifest.experts + expert for expert in order[:share]]
    sequence = np.array([chosen[at] for at in splitmix.shuffled(n_experts, stream)], dtype=np.uint32)
    return _plan(manifest, np.array([0, n_experts], dtype=np.uint64), sequence, SYNTHETIC_TRACE, ())


def shuffled_plan(manifest: Manifest, n_experts: int, iterations: int, seed: int) -> Plan:
    """Return a plan that reads the pool's first ``n_experts`` experts once an iteration, in a fresh random order each.

    It measures what a hit costs: with all of them resident, every read is one.

    Raises:
        InputError: the pool has fewer experts.
    """
    if not 1 <= n_experts <= manifest.n_experts or iterations < 1:
        raise InputError(f"{iterations} reads of {n_experts} experts", f"1 to {manifest.n_experts}, as the pool has")
    stream = splitmix.key(seed, manifest.pool_id)
    orders = [splitmix.shuffled(n_experts, splitmix.key(stream, at)) for at in range(iterations)]
    borders = np.arange(0, iterations * n_experts + 1, n_experts, dtype=np.uint64)
    return _plan(manifest, borders, np.array(orders, dtype=np.uint32).reshape(-1), SYNTHETIC_TRACE, ())


def _plan(
    manifest: Manifest,
    iterations: NDArray[np.uint64],
    sequence: NDArray[np.uint32],
    flags: int,
    pairs: tuple[tuple[int, int], ...],
) -> Plan:
    experts = range(manifest.experts)
    extents = [manifest.extents(layer, expert) for layer in manifest.layers for expert in experts]
    counts = np.array([len(one) for one in extents], dtype=np.uint32)
    flat = [part for one in extents for part in one]
    flags |= STAMPED if manifest.stamped else 0
    flags |= SYNTHETIC_POOL if manifest.synthetic else 0
    flags |= THROWAWAY if manifest.throwaway else 0
    return Plan(
        iterations=iterations,
        sequence=sequence,
        expert_layer=np.repeat(np.array(manifest.layers, dtype=np.uint32), manifest.experts),
        expert_id=np.tile(np.arange(manifest.experts, dtype=np.uint32), len(manifest.layers)),
        expert_bytes=np.repeat(np.array(manifest.expert_bytes, dtype=np.uint64), manifest.experts),
        expert_first_extent=np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.uint64),
        expert_n_extents=counts,
        extent_file=np.array([part.file for part in flat], dtype=np.uint32),
        extent_offset=np.array([part.offset for part in flat], dtype=np.uint64),
        extent_length=np.array([part.length for part in flat], dtype=np.uint64),
        files=manifest.files,
        pool_id=manifest.pool_id,
        flags=flags,
        layer_map=pairs,
    )


def _tables(plan: Plan) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], bytes]:
    experts = np.zeros(plan.n_experts, dtype=_EXPERT)
    experts["layer"], experts["expert"], experts["bytes"] = plan.expert_layer, plan.expert_id, plan.expert_bytes
    experts["first_extent"], experts["n_extents"] = plan.expert_first_extent, plan.expert_n_extents
    extents = np.zeros(len(plan.extent_file), dtype=_EXTENT)
    extents["file"], extents["offset"], extents["length"] = plan.extent_file, plan.extent_offset, plan.extent_length
    names = [file.path.encode() for file in plan.files]
    files = np.zeros(len(names), dtype=_FILE)
    files["string_bytes"] = [len(name) for name in names]
    files["string_offset"] = np.concatenate([[0], np.cumsum(files["string_bytes"].astype(np.uint64))[:-1]])
    files["size_bytes"] = [file.size_bytes for file in plan.files]
    return experts, extents, files, b"".join(names)


def _aligned(size: int) -> int:
    return -(-size // 8) * 8


def write_plan(plan: Plan, path: Path) -> None:
    """Write ``plan`` to ``path``: whole or not at all, mode 0600, never through a link.

    Raises:
        InputError: ``path`` is a link or special file, or cannot be written.
    """
    experts, extents, files, strings = _tables(plan)
    bodies: list[memoryview] = []
    header = np.zeros((), dtype=_HEADER)
    at, crc = HEADER_BYTES, 0
    sections: tuple[Any, ...] = (
        plan.iterations.astype("<u8", copy=False),
        plan.sequence.astype("<u4", copy=False),
        experts,
        extents,
        files,
        np.frombuffer(strings, dtype=np.uint8),
    )
    for name, section in zip(_SECTIONS, sections, strict=True):
        header[f"off_{name}"] = at
        body: memoryview = np.ascontiguousarray(section).view(np.uint8).reshape(-1).data
        bodies += [body, memoryview(bytes(_aligned(body.nbytes) - body.nbytes))]
        at += _aligned(body.nbytes)
    for body in bodies:
        crc = zlib.crc32(body, crc)
    header["magic"], header["version"], header["header_bytes"], header["file_bytes"] = MAGIC, VERSION, HEADER_BYTES, at
    header["n_iterations"], header["n_accesses"], header["n_experts"] = (
        plan.n_iterations,
        plan.n_accesses,
        plan.n_experts,
    )
    header["n_extents"], header["n_files"], header["strings_bytes"] = len(extents), len(files), len(strings)
    header["pool_id"], header["flags"], header["page_bytes"] = plan.pool_id, plan.flags, PAGE_BYTES
    header["total_bytes"], header["crc_body"] = plan.total_bytes, crc
    header["crc_header"] = zlib.crc32(header.tobytes()[:-4])
    write_private(path, [header.tobytes(), *bodies])


class _Reader:
    """The bytes of a plan file, and the checks on them; every refusal names the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._data = np.fromfile(path, dtype=np.uint8)
        except OSError as error:
            raise InputError(f"plan {path}: {error.strerror}", "a plan file that may be read") from error
        self.header = self._checked_header()

    def refuse(self, seen: str, expected: str) -> InputError:
        return InputError(f"plan {self._path}: {seen}", expected, _REWRITE)

    def _checked_header(self) -> np.void:
        size = len(self._data)
        if self._data[:8].tobytes() != MAGIC:
            raise self.refuse(
                "it is no plan file" if size >= 8 else f"it has {size} bytes", "the magic MOEPLAN at its start"
            )
        if size < HEADER_BYTES:
            raise self.refuse(f"it is cut off after {size} bytes", f"a header of {HEADER_BYTES} bytes")
        raw = self._data[:HEADER_BYTES]
        header: np.void = raw.view(_HEADER)[0]
        for name, wanted in (("version", VERSION), ("header_bytes", HEADER_BYTES)):
            if int(header[name]) != wanted:
                raise self.refuse(f"{name} {header[name]}", f"{name} {wanted}")
        if (crc := zlib.crc32(raw[:-4].tobytes())) != int(header["crc_header"]):
            raise self.refuse(f"the header's CRC is {crc:08x}", f"{int(header['crc_header']):08x} as it states")
        if int(header["file_bytes"]) != size:
            raise self.refuse(f"it has {size} bytes", f"{header['file_bytes']} as its header states (is it cut off?)")
        if int(header["page_bytes"]) != PAGE_BYTES:
            raise self.refuse(f"pages of {header['page_bytes']} bytes", f"pages of {PAGE_BYTES} bytes")
        if int(header["flags"]) & ~_KNOWN_FLAGS:
            raise self.refuse(f"flags {int(header['flags']):#x}", f"no flags but {_KNOWN_FLAGS:#x}")
        return header

    def check_body(self) -> None:
        crc = 0
        for start in range(HEADER_BYTES, len(self._data), _CRC_CHUNK):
            crc = zlib.crc32(self._data[start : start + _CRC_CHUNK].data, crc)
        if crc != int(self.header["crc_body"]):
            raise self.refuse(
                f"the body's CRC is {crc:08x}", f"{int(self.header['crc_body']):08x} as its header states"
            )

    def section(self, name: str, count: int) -> NDArray[Any]:
        """Return a copy-free view of ``count`` items of a section; the offsets are checked in exact integers."""
        item = _ITEM.get(name, _BYTE)
        start, size = int(self.header[f"off_{name}"]), count * item.itemsize
        if start % 8 or start < HEADER_BYTES or start + size > len(self._data):
            raise self.refuse(
                f"its {name} take bytes {start} to {start + size}",
                f"8-byte aligned within {HEADER_BYTES} to {len(self._data)}",
            )
        items: NDArray[Any] = self._data[start : start + size].view(item)
        return items


def _checked_files(reader: _Reader) -> Iterator[PoolFile]:
    header = reader.header
    files = reader.section("files", int(header["n_files"]))
    strings = reader.section("strings", int(header["strings_bytes"])).tobytes()
    absolute_allowed = bool(int(header["flags"]) & ABSOLUTE_PATHS)
    for row in files.tolist():
        offset, length, _pad, size = row
        if offset + length > len(strings):
            raise reader.refuse(
                f"a path at {offset} of {length} bytes", f"paths within {len(strings)} bytes of strings"
            )
        try:
            path = strings[offset : offset + length].decode()
        except UnicodeDecodeError:
            raise reader.refuse("a path that is not UTF-8", "UTF-8 paths") from None
        absolute = path.startswith("/") and absolute_allowed
        if not is_inside(path.lstrip("/") if absolute else path):
            raise reader.refuse(f"the path {path!r}", "a path inside the pool's root, without '..'")
        yield PoolFile(path, size)


def _check_iterations(reader: _Reader, iterations: NDArray[np.uint64], n_accesses: int) -> None:
    if len(iterations) < 2 or not n_accesses:
        raise reader.refuse(f"{len(iterations) - 1} iterations, {n_accesses} accesses", "at least one of each")
    rising = bool((iterations[1:] >= iterations[:-1]).all())
    if int(iterations[0]) or int(iterations[-1]) != n_accesses or not rising:
        raise reader.refuse(
            "its iterations do not divide its accesses", f"first accesses rising from 0 to {n_accesses}"
        )


def _check_experts(reader: _Reader, experts: NDArray[Any], extents: NDArray[Any], files: tuple[PoolFile, ...]) -> None:
    first, counts = experts["first_extent"], experts["n_extents"].astype(np.uint64)
    n_extents = len(extents)
    if not len(experts) or bool((counts < 1).any()) or bool((first > n_extents).any()):
        raise reader.refuse("an expert without extents", "at least one expert, each with its extents")
    if bool((counts > np.uint64(n_extents) - first).any()):
        raise reader.refuse("an expert's extents lie outside the table", f"extents below {n_extents}")
    if bool((extents["file"] >= len(files)).any()):
        raise reader.refuse(f"an extent of file {int(extents['file'].max())}", f"files below {len(files)}")
    sizes = np.array([file.size_bytes for file in files], dtype=np.uint64)[extents["file"]]
    outside = np.flatnonzero((extents["offset"] > sizes) | (extents["length"] > sizes - extents["offset"]))
    if len(outside):
        row = extents[int(outside[0])]
        path = files[int(row["file"])].path
        raise reader.refuse(
            f"extent {int(outside[0])} reads {row['length']} bytes at {row['offset']} of {path}",
            f"bytes within the file's {int(sizes[int(outside[0])])}",
        )
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(extents["length"])])
    summed = running[first + counts] - running[first]
    if bool((summed != experts["bytes"]).any()) or bool((summed == 0).any()):
        raise reader.refuse("an expert's size is not the sum of its extents", "sizes that add up, none of them zero")


def read_plan(path: Path) -> Plan:
    """Return the plan in the file ``path``, every offset, length, index, path and checksum checked.

    Raises:
        InputError: the file is cut off, foreign, damaged or inconsistent; the message says what was seen and expected.
    """
    reader = _Reader(path)
    header = reader.header
    n_accesses = int(header["n_accesses"])
    reader.check_body()
    iterations = reader.section("iterations", int(header["n_iterations"]) + 1)
    sequence = reader.section("sequence", n_accesses)
    experts = reader.section("experts", int(header["n_experts"]))
    extents = reader.section("extents", int(header["n_extents"]))
    files = tuple(_checked_files(reader))
    _check_iterations(reader, iterations, n_accesses)
    _check_experts(reader, experts, extents, files)
    if int(sequence.max()) >= len(experts):
        raise reader.refuse(f"an access to expert {int(sequence.max())}", f"indices below {len(experts)}")
    plan = Plan(
        iterations=iterations,
        sequence=sequence,
        expert_layer=experts["layer"].copy(),
        expert_id=experts["expert"].copy(),
        expert_bytes=experts["bytes"].copy(),
        expert_first_extent=experts["first_extent"].copy(),
        expert_n_extents=experts["n_extents"].copy(),
        extent_file=extents["file"].copy(),
        extent_offset=extents["offset"].copy(),
        extent_length=extents["length"].copy(),
        files=files,
        pool_id=int(header["pool_id"]),
        flags=int(header["flags"]),
    )
    if plan.total_bytes != int(header["total_bytes"]):
        raise reader.refuse(
            f"its accesses read {plan.total_bytes} bytes", f"{header['total_bytes']} as its header states"
        )
    return plan
