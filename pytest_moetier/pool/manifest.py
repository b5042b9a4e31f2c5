"""The manifest of a pool: (layer, expert) -> where its bytes are, kept as ``manifest.yaml`` in the pool's folder.

The file is read by ``yaml.safe_load`` and every field is checked: type, range, and that its paths stay in the folder.
``spine``, ``throwaway`` and ``filesystem`` are left out where they say nothing: the format stays version 1, and a
reader that does not know them reads the experts as ever, and writes nothing. A pool of a real model (layout
``checkpoint``) has its extents in a file beside the manifest (``checkpoint``); one in place has neither: they are read
from the model's own headers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path, PurePosixPath

import yaml

from pytest_moetier.cell import FILESYSTEMS
from pytest_moetier.errors import InputError
from pytest_moetier.pool.private import write_private
from pytest_moetier.units import PAGE_BYTES

MANIFEST_NAME = "manifest.yaml"
IMAGE_NAME = "pool.img"
SPINE_NAME = "spine.bin"
EXTENTS_NAME = "extents.json"
FORMAT = "moetier-pool"
FORMAT_VERSION = 1
CHECKPOINT = "checkpoint"
LAYOUTS = ("file_per_expert", "one_file")
"""Of pools that are made; a real model's files are laid out as they are (``CHECKPOINT``)."""
STORES = ("image", "plain")

_MAX_COUNT = 1 << 16
_MAX_EXPERT_BYTES = 1 << 40
_MAX_MANIFEST_BYTES = 16 << 20
_POOL_ID = re.compile(r"0x[0-9a-f]{16}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RECREATE = "create the pool again with `moetier pool create`"


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of bytes of one file: ``offset`` and ``length`` in bytes."""

    file: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class PoolFile:
    """A file of the pool, relative to its root."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Slab:
    """A tensor that holds one part of every expert of a layer: expert e's is at ``offset + e * stride``.

    Attributes:
        file: index into the pool's files.
        offset: of expert 0, in bytes.
        stride: bytes from one expert to the next.
        length: bytes of one expert.
    """

    file: int
    offset: int
    stride: int
    length: int


@dataclass(frozen=True, slots=True)
class Mapped:
    """Where the experts of one layer of a real model are: ``slabs``, or where there is no rule the list of extents."""

    quantisation: str
    slabs: tuple[Slab, ...] = ()
    listed: tuple[tuple[Extent, ...], ...] = ()

    def extents(self, expert: int) -> tuple[Extent, ...]:
        """Return where the parts of one expert are."""
        if self.listed:
            return self.listed[expert]
        return tuple(Extent(one.file, one.offset + expert * one.stride, one.length) for one in self.slabs)

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert."""
        return sum(one.length for one in (self.listed[0] if self.listed else self.slabs))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A real model's own files, and where in them what is.

    Attributes:
        kind: ``gguf`` or ``safetensors``.
        files: the model's files with tensors, relative to the pool's root.
        layers: one for each of the manifest's layers.
        spine: the bytes of every tensor that is no routed expert, ascending.
        shared_bytes: of these, bytes of shared experts.
        unused_bytes: of tensors in no extent: layers for multi-token prediction.
    """

    kind: str
    files: tuple[PoolFile, ...]
    layers: tuple[Mapped, ...]
    spine: tuple[Extent, ...]
    shared_bytes: int = 0
    unused_bytes: int = 0


@dataclass(frozen=True)
class Manifest:
    """What a pool holds and where.

    Attributes:
        name: the user's name for it.
        profile: the model whose shape it has.
        pool_id: 64 bits that every page of the pool repeats.
        layers: layer numbers, ascending.
        experts: experts per layer (E).
        k: experts chosen per layer and pass.
        expert_bytes: bytes of one expert, per layer of ``layers``.
        layout: ``file_per_expert`` (read-ahead stops at each expert's end), ``one_file``, or ``checkpoint``.
        store: ``image`` (for a loop device of its own) or ``plain`` (files of the folder's own file system).
        folder: where the expert files are, relative to the pool's root.
        stamped: every page carries its own address (``pages``).
        synthetic: the bytes are made up.
        spine: the file of dense weights beside the experts, None for a pool without one. It is no part of ``files``,
            nor its bytes of ``total_bytes``: these are the experts'.
        throwaway: made to be written to by a measurement; any other pool is only ever read.
        filesystem: of an image, one of ``cell.FILESYSTEMS``; it says nothing of plain files.
        checkpoint: of a real model: its files and what is where in them; else None.
    """

    name: str
    profile: str
    pool_id: int
    layers: tuple[int, ...]
    experts: int
    k: int
    expert_bytes: tuple[int, ...]
    layout: str = "file_per_expert"
    store: str = "plain"
    folder: str = "experts"
    stamped: bool = True
    synthetic: bool = True
    format_version: int = FORMAT_VERSION
    spine: PoolFile | None = None
    throwaway: bool = False
    filesystem: str = FILESYSTEMS[0]
    checkpoint: Checkpoint | None = None

    @cached_property
    def files(self) -> tuple[PoolFile, ...]:
        """Every file of experts, in (layer, expert) order; of a real model, every file of it."""
        if self.checkpoint is not None:
            return self.checkpoint.files
        if self.layout == "one_file":
            return (PoolFile(f"{self.folder}/experts.bin", self.total_bytes),)
        sized = zip(self.layers, self.expert_bytes, strict=True)
        return tuple(
            PoolFile(f"{self.folder}/{layer:03d}/{expert:04d}", size)
            for layer, size in sized
            for expert in range(self.experts)
        )

    @property
    def stored_files(self) -> tuple[PoolFile, ...]:
        """The experts' files and the spine's."""
        return self.files if self.spine is None else (*self.files, self.spine)

    @cached_property
    def _layer_index(self) -> dict[int, int]:
        return {layer: index for index, layer in enumerate(self.layers)}

    @cached_property
    def _layer_start(self) -> tuple[int, ...]:
        """First byte of each layer in the order of all experts."""
        return (0, *accumulate(size * self.experts for size in self.expert_bytes))

    @property
    def total_bytes(self) -> int:
        """Bytes of all experts."""
        return self._layer_start[-1]

    @property
    def spine_extents(self) -> tuple[Extent, ...]:
        """Where the spine is within ``files``: a real model's; () for a pool of ours, whose spine is a file."""
        return self.checkpoint.spine if self.checkpoint is not None else ()

    @cached_property
    def expert_runs(self) -> tuple[Extent, ...]:
        """The bytes of all experts as runs, ascending: experts that touch each other are one."""
        if self.checkpoint is None and self.layout != "one_file":
            return tuple(Extent(index, 0, file.size_bytes) for index, file in enumerate(self.files))
        return joined(
            part for layer in self.layers for expert in range(self.experts) for part in self.extents(layer, expert)
        )

    @cached_property
    def spine_bytes(self) -> int:
        """Bytes of the spine, 0 for a pool without one."""
        return self.spine.size_bytes if self.spine is not None else sum(one.length for one in self.spine_extents)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all files: the experts, and the spine."""
        if self.checkpoint is not None:
            return sum(file.size_bytes for file in self.checkpoint.files)
        return self.total_bytes + self.spine_bytes

    @property
    def n_experts(self) -> int:
        """Experts of all layers together."""
        return len(self.layers) * self.experts

    @property
    def iteration_bytes(self) -> int:
        """Bytes that one plain iteration reads: k experts of every layer."""
        return self.k * sum(self.expert_bytes)

    def index(self, layer: int, expert: int) -> int:
        """Return the place of (layer, expert) in the order of all experts.

        Raises:
            InputError: the pool has no such layer or expert.
        """
        at = self._layer_index.get(layer)
        if at is None:
            raise InputError(f"the pool has no layer {layer}", f"one of {self.layers[0]} to {self.layers[-1]}")
        if not 0 <= expert < self.experts:
            raise InputError(f"the pool has no expert {expert}", f"0 to {self.experts - 1}")
        return at * self.experts + expert

    def size_of(self, layer: int) -> int:
        """Return the bytes of one expert of ``layer``."""
        return self.expert_bytes[self.index(layer, 0) // self.experts]

    def extents(self, layer: int, expert: int) -> tuple[Extent, ...]:
        """Return where the bytes of (layer, expert) are, in order; ``file`` indexes ``files``.

        Raises:
            InputError: the pool has no such layer or expert.
        """
        index = self.index(layer, expert)
        if self.checkpoint is not None:
            return self.checkpoint.layers[index // self.experts].extents(expert)
        size = self.expert_bytes[index // self.experts]
        if self.layout == "one_file":
            return (Extent(0, self._layer_start[index // self.experts] + expert * size, size),)
        return (Extent(index, 0, size),)

    def slabs(self, layer: int) -> tuple[Slab, ...] | None:
        """Return the tensors that hold the experts of ``layer``, each at its stride; None where there is no such rule.

        Raises:
            InputError: the pool has no such layer.
        """
        at = self.index(layer, 0) // self.experts
        if self.checkpoint is not None:
            return self.checkpoint.layers[at].slabs or None
        if self.layout == "one_file":
            return (Slab(0, self._layer_start[at], self.expert_bytes[at], self.expert_bytes[at]),)
        return None

    def save(self, folder: Path) -> Path:
        """Write ``folder/manifest.yaml`` (whole or not at all, mode 0600) and return its path."""
        sizes = set(self.expert_bytes)
        content: dict[str, object] = {
            "format": FORMAT,
            "format_version": self.format_version,
            "name": self.name,
            "profile": self.profile,
            "pool_id": f"0x{self.pool_id:016x}",
            "layers": list(self.layers),
            "experts": self.experts,
            "k": self.k,
            "expert_bytes": self.expert_bytes[0] if len(sizes) == 1 else list(self.expert_bytes),
            "layout": self.layout,
            "store": self.store,
            "folder": self.folder,
            "stamped": self.stamped,
            "synthetic": self.synthetic,
        }
        if self.checkpoint is not None:
            del content["folder"]  # the model's files have names of their own
            content["checkpoint"] = {"extents": EXTENTS_NAME}
            _save_extents(self.checkpoint, folder / EXTENTS_NAME)
        if self.spine is not None:
            content["spine"] = {"file": self.spine.path, "bytes": self.spine.size_bytes}
        if self.throwaway:
            content["throwaway"] = True
        if self.filesystem != FILESYSTEMS[0]:
            content["filesystem"] = self.filesystem
        path = folder / MANIFEST_NAME
        write_private(path, [yaml.safe_dump(content, sort_keys=False, width=110).encode()])
        return path


class _Fields:
    """The fields of a manifest file, each taken with its check; a message names file and field, and what was seen."""

    def __init__(self, path: Path, content: object, within: str = "") -> None:
        self._path = path
        self._within = within  # the field that holds these, with a dot: for messages
        if not isinstance(content, Mapping):
            raise InputError(f"{path} holds {type(content).__name__}", "a YAML mapping of a pool's fields", RECREATE)
        self._content = content

    def refuse(self, name: str, expected: str) -> InputError:
        seen = repr(self._content.get(name))
        seen = seen if len(seen) <= 60 else seen[:57] + "..."
        return InputError(f"{self._path}: {self._within}{name} is {seen}", expected, RECREATE)

    def take(self, name: str) -> object:
        if name not in self._content:
            field = f"{self._within}{name}"
            raise InputError(f"{self._path} has no field {field!r}", "every field of a pool's manifest", RECREATE)
        return self._content[name]

    def has(self, name: str) -> bool:
        return name in self._content

    def inside(self, name: str, expected: str) -> _Fields:
        value = self.take(name)
        if not isinstance(value, Mapping):
            raise self.refuse(name, expected)
        return _Fields(self._path, value, f"{name}.")

    def integer(self, name: str, low: int, high: int) -> int:
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(name, f"an integer from {low} to {high}")
        return value

    def integers(self, name: str, low: int, high: int) -> tuple[int, ...]:
        value = self.take(name)
        expected = f"a list of integers from {low} to {high}"
        if not isinstance(value, list) or not value:
            raise self.refuse(name, expected)
        if any(isinstance(one, bool) or not isinstance(one, int) or not low <= one <= high for one in value):
            raise self.refuse(name, expected)
        return tuple(value)

    def word(self, name: str, known: tuple[str, ...]) -> str:
        value = self.take(name)
        if value not in known:
            raise self.refuse(name, "one of " + ", ".join(known))
        return str(value)

    def text(self, name: str, pattern: re.Pattern[str], expected: str) -> str:
        value = self.take(name)
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise self.refuse(name, expected)
        return value

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def relative(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str) or not is_inside(value):
            raise self.refuse(name, "a relative path inside the pool's folder, without '..'")
        return value


def joined(extents: Iterable[Extent]) -> tuple[Extent, ...]:
    """Return the extents in ascending order, those that touch or overlap made one."""
    runs: list[Extent] = []
    for file, offset, length in sorted((one.file, one.offset, one.length) for one in extents):
        last = runs[-1] if runs else None
        if last is not None and last.file == file and offset <= last.offset + last.length:
            runs[-1] = Extent(file, last.offset, max(last.length, offset + length - last.offset))
        else:
            runs.append(Extent(file, offset, length))
    return tuple(runs)


def is_inside(path: str) -> bool:
    """Return whether a path is relative and names nothing outside the folder it is relative to (links aside)."""
    parts = path.split("/")
    return (
        bool(path) and "\0" not in path and not PurePosixPath(path).is_absolute() and not {"", ".", ".."} & set(parts)
    )


def _sizes(fields: _Fields, layers: int, unit: int) -> tuple[int, ...]:
    value = fields.take("expert_bytes")
    if isinstance(value, list):
        sizes = fields.integers("expert_bytes", unit, _MAX_EXPERT_BYTES)
    else:
        sizes = (fields.integer("expert_bytes", unit, _MAX_EXPERT_BYTES),) * layers
    if len(sizes) != layers:
        raise fields.refuse("expert_bytes", f"one size, or one for each of the {layers} layers")
    if any(size % unit for size in sizes):
        raise fields.refuse("expert_bytes", f"multiples of {unit} bytes")
    return sizes


def _spine(fields: _Fields, folder: str) -> PoolFile | None:
    if not fields.has("spine"):
        return None
    spine = fields.inside("spine", "a mapping of file and bytes")
    path = spine.relative("file")
    if path == folder or path.startswith(f"{folder}/") or path in {MANIFEST_NAME, IMAGE_NAME}:
        raise spine.refuse("file", f"a file of its own, beside {folder}")
    size = spine.integer("bytes", PAGE_BYTES, _MAX_EXPERT_BYTES)
    if size % PAGE_BYTES:
        raise spine.refuse("bytes", f"a multiple of {PAGE_BYTES} bytes")
    return PoolFile(path, size)


def _save_extents(found: Checkpoint, path: Path) -> None:
    """Write what is where in a model's files, in short: an extent is [file, offset, length]."""
    content = {
        "kind": found.kind,
        "files": [[file.path, file.size_bytes] for file in found.files],
        "layers": [
            {
                "quantisation": one.quantisation,
                "slabs": [[slab.file, slab.offset, slab.stride, slab.length] for slab in one.slabs],
                "listed": [_rows(parts) for parts in one.listed],
            }
            for one in found.layers
        ],
        "spine": _rows(found.spine),
        "shared_bytes": found.shared_bytes,
        "unused_bytes": found.unused_bytes,
    }
    write_private(path, [json.dumps(content, separators=(",", ":")).encode()])


def _rows(extents: tuple[Extent, ...]) -> list[list[int]]:
    return [[one.file, one.offset, one.length] for one in extents]


def _load_extents(fields: _Fields, path: Path) -> Checkpoint:
    """Return what the file of extents beside the manifest ``path`` says of a model's files."""
    file = path.parent / fields.inside("checkpoint", "a mapping of extents").relative("extents")
    try:
        content = json.loads(file.read_bytes())
        return Checkpoint(
            kind=str(content["kind"]),
            files=tuple(PoolFile(str(name), int(size)) for name, size in content["files"]),
            layers=tuple(
                Mapped(
                    str(one["quantisation"]),
                    tuple(Slab(*map(int, row)) for row in one["slabs"]),
                    tuple(_extents(parts) for parts in one["listed"]),
                )
                for one in content["layers"]
            ),
            spine=_extents(content["spine"]),
            shared_bytes=int(content["shared_bytes"]),
            unused_bytes=int(content["unused_bytes"]),
        )
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}", "the extents of the pool's model", RECREATE) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{file} does not list a model's extents ({error!r})", "as it was made", RECREATE) from error


def _extents(rows: list[list[int]]) -> tuple[Extent, ...]:
    return tuple(Extent(*map(int, row)) for row in rows)


def _check_extents(fields: _Fields, pool: Manifest, found: Checkpoint) -> None:
    """Refuse extents that leave the model's files or are not what the manifest's numbers say."""
    files = [file.size_bytes for file in found.files]
    if tuple(one.expert_bytes for one in found.layers) != pool.expert_bytes:
        raise fields.refuse("expert_bytes", f"the sizes in {EXTENTS_NAME}")
    lists = [one.listed for one in found.layers if one.listed]
    sized = all(
        len(parts) == pool.experts and len({sum(part.length for part in one) for one in parts}) == 1 for parts in lists
    )
    fits = sized and all(
        0 <= one.file < len(files) and one.offset >= 0 and 0 < one.length <= files[one.file] - one.offset
        for one in (*pool.expert_runs, *found.spine)
    )
    if not fits or not all(is_inside(file.path) for file in found.files):
        raise fields.refuse("checkpoint", f"experts of one size within the model's files, in {EXTENTS_NAME}")


def parse_manifest(content: object, path: Path) -> Manifest:
    """Return the manifest that ``content``, as ``yaml.safe_load`` gives it, describes; its file is ``path``.

    Raises:
        InputError: a field is missing, of the wrong type, out of range, or a path leaves the pool's folder.
    """
    fields = _Fields(path, content)
    fields.word("format", (FORMAT,))
    version = fields.integer("format_version", FORMAT_VERSION, FORMAT_VERSION)
    layers = fields.integers("layers", 0, _MAX_COUNT - 1)
    if any(after <= before for before, after in pairwise(layers)):
        raise fields.refuse("layers", "ascending layer numbers, each once")
    experts = fields.integer("experts", 1, _MAX_COUNT)
    layout = fields.word("layout", (*LAYOUTS, CHECKPOINT))
    found = _load_extents(fields, path) if layout == CHECKPOINT else None
    folder = fields.relative("folder") if found is None else ""
    pool = Manifest(
        name=fields.text("name", _NAME, "letters, digits, '.', '_' and '-'"),
        profile=fields.text("profile", _NAME, "letters, digits, '.', '_' and '-'"),
        pool_id=int(fields.text("pool_id", _POOL_ID, "0x and 16 hex digits in quotes"), 16),
        layers=layers,
        experts=experts,
        k=fields.integer("k", 1, experts),
        expert_bytes=_sizes(fields, len(layers), 1 if found is not None else PAGE_BYTES),
        layout=layout,
        store=fields.word("store", STORES if found is None else STORES[:1]),
        folder=folder,
        stamped=fields.flag("stamped"),
        synthetic=fields.flag("synthetic"),
        format_version=version,
        spine=_spine(fields, folder) if found is None else None,
        throwaway=fields.flag("throwaway") if fields.has("throwaway") else False,
        filesystem=fields.word("filesystem", FILESYSTEMS) if fields.has("filesystem") else FILESYSTEMS[0],
        checkpoint=found,
    )
    if found is not None:
        _check_extents(fields, pool, found)
    return pool


def load_manifest(path: Path) -> Manifest:
    """Return the manifest in the pool folder ``path`` (or in the manifest file ``path``), or of a model in place.

    Args:
        path: a pool's folder, or its manifest; or a model: a file of it, or its folder.

    Raises:
        InputError: there is none, or it is not one; the message names the field, or what the model lacks.
    """
    try:
        return _read_manifest(path)
    except OSError as error:  # no permission on the way there, a device error, a name too long
        raise InputError(
            f"no pool can be read at {error.filename or path}: {error.strerror}",
            "a folder made by `moetier pool create` that this user may read",
            f"ls -ld {path}",
        ) from error


def _read_manifest(path: Path) -> Manifest:
    from pytest_moetier.pool.checkpoint import find_model, map_checkpoint  # noqa: PLC0415  (they make manifests)

    file = path / MANIFEST_NAME if path.is_dir() else path
    if not (path.is_dir() and file.exists()) and find_model(path) is not None:
        return map_checkpoint(path)
    if not file.is_file():
        why = f"{file.name} is missing" if path.is_dir() else "nothing is there"
        raise InputError(f"no pool at {path}: {why}", "a folder made by `moetier pool create`, or a model", _CREATE)
    if file.stat().st_size > _MAX_MANIFEST_BYTES:
        raise InputError(
            f"{file} has {file.stat().st_size} bytes", f"a manifest of at most {_MAX_MANIFEST_BYTES}", RECREATE
        )
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        first = " ".join(str(error).split())[:160]
        raise InputError(f"{file} is not YAML: {first}", "a pool's manifest", RECREATE) from error
    return parse_manifest(content, file)


_CREATE = "run `moetier pool create default PATH`; an unfinished pool is continued by the same command"
