"""A GGUF model's headers -> where its routed experts are: merged tensors or one for each expert, one file or shards.

Only headers are read, and the files' sizes compared with what they say: a terabyte is mapped in seconds. The list of
quantisations and their block sizes is the ``gguf`` package's; the header is walked here, because that package's reader
makes arrays of every word of the vocabulary, and fails on a file that is cut off without saying by how much.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from pytest_moetier.errors import InputError
from pytest_moetier.pool.checkpoint import AGAIN, Routing, Tensor, manifest_of, model_root, pool_file
from pytest_moetier.pool.manifest import Manifest

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 8
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_MERGED = re.compile(r"blk\.(\d+)\.ffn_(?:gate_up|gate|up|down)_exps\.\w+")
_SINGLE = re.compile(r"blk\.(\d+)\.ffn_(?:gate|up|down)\.(\d+)\.\w+")
_SHARED = re.compile(r"blk\.\d+\.ffn_\w*_shexp\.")
_WHOLE = "a whole GGUF file, version 2 or 3"

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Header:
    """One file's header.

    Attributes:
        path: of the file.
        size: of the file, in bytes.
        values: keys with one value; lists are passed over.
        tensors: name, dimensions (the fastest first), quantisation's number, and offset from the start of the data.
        data_offset: where the data start.
        digest: SHA-256 of all of the above as the file has it.
    """

    path: Path
    size: int
    values: dict[str, Value]
    tensors: tuple[tuple[str, tuple[int, ...], int, int], ...]
    data_offset: int
    digest: bytes

    def integer(self, key: str, default: int = 0) -> int:
        """Return a count; ``default`` where the file has none of that name."""
        value = self.values.get(key, default)
        return value if isinstance(value, int) and not isinstance(value, bool) else default


class _Walk:
    """Reads a header from its start; what lies beyond the file's end raises struct.error or IndexError."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = 0

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self.at)
        self.at += struct.calcsize(form)
        return value  # type: ignore[no-any-return]

    def skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self._data):
            raise IndexError

    def string(self) -> str:
        size = self.take("<Q")
        start = self.at
        self.skip(size)
        return self._data[start : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> Value | None:
        """Return a value of a key; None for a list."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.take(_SCALARS[kind])
        inner, count = self.take("<I"), self.take("<Q")
        if inner in _SCALARS:
            self.skip(struct.calcsize(_SCALARS[inner]) * count)
            return None
        for _ in range(count):
            if inner == _STRING:
                self.skip(self.take("<Q"))
            else:
                self.value(inner)
        return None

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self.string(), self.take("<I")
        if dimensions > _MAX_DIMENSIONS:
            raise IndexError
        shape = tuple(self.take("<Q") for _ in range(dimensions))
        return name, shape, self.take("<I"), self.take("<Q")


def read_header(path: Path) -> Header:
    """Return the header of one GGUF file.

    Raises:
        InputError: it cannot be read, is no GGUF, is of another version or byte order, or ends within its header.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            first = file.read(8)
            if first[:4] != _MAGIC or len(first) < len(_MAGIC) + 4:
                seen = f"{path} is no GGUF file: it starts with {first[:4]!r}" if first else f"{path} is empty"
                raise InputError(seen, _WHOLE, AGAIN)
            version = int.from_bytes(first[4:], "little")
            if version not in _VERSIONS:
                other = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
                raise InputError(f"{path} is a {other} GGUF file", "version 2 or 3, little-endian", "convert it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _walk(path, size, data)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", _WHOLE, f"ls -l {path}") from error


def _walk(path: Path, size: int, data: mmap.mmap) -> Header:
    walk = _Walk(data)
    try:
        walk.skip(8)
        n_tensors, n_values = walk.take("<Q"), walk.take("<Q")
        values: dict[str, Value] = {}
        for _ in range(n_values):
            key, kind = walk.string(), walk.take("<I")
            value = walk.value(kind)
            if value is not None:
                values[key] = value
        tensors = tuple(walk.tensor() for _ in range(n_tensors))
    except KeyError as error:
        raise InputError(f"{path} has a value of unknown type {error}", _WHOLE, AGAIN) from error
    except (struct.error, IndexError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} is cut off: its {size} bytes end within its header", _WHOLE, AGAIN) from error
    alignment = values.get("general.alignment", 32)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise InputError(f"{path}: general.alignment is {alignment!r}", "a power of two", AGAIN)
    start = -(-walk.at // alignment) * alignment
    return Header(path, size, values, tensors, start, hashlib.sha256(data[: walk.at]).digest())


def shards_of(path: Path) -> tuple[Header, ...]:
    """Return the headers of all files of the model that ``path`` is a file of, the first shard's first.

    Raises:
        InputError: one is missing or foreign.
    """
    given = read_header(path)
    count = given.integer("split.count", 1)
    if count <= 1:
        return (given,)
    named = _SHARD.fullmatch(path.name)
    if named is None or int(named[3]) != count:
        raise InputError(
            f"{path} is one of {count} files, and its name does not say which",
            f"the names NAME-00001-of-{count:05d}.gguf and so on",
            "give the files back the names they were made with",
        )
    paths = [path.with_name(f"{named[1]}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [one for one in paths if not one.exists()]
    if missing:
        raise InputError(
            f"{len(missing)} of the {count} files of {path.name} are missing, such as {missing[0].name}",
            f"all of them in {path.parent}",
            "download the missing ones",
        )
    headers = tuple(given if one == path else read_header(one) for one in paths)
    for number, header in enumerate(headers):
        if (header.integer("split.no", -1), header.integer("split.count")) != (number, count):
            raise InputError(
                f"{header.path} says that it is file {header.integer('split.no', -1)} (from 0) of "
                f"{header.integer('split.count')}",
                f"{number} of {count}, as its name says",
                AGAIN,
            )
    found, wanted = sum(len(header.tensors) for header in headers), headers[0].integer("split.tensors.count", -1)
    if wanted not in (-1, found):
        raise InputError(f"the files of {path.name} hold {found} tensors", f"{wanted}, as they say themselves", AGAIN)
    return headers


def map_gguf(path: Path) -> Manifest:
    """Return the manifest of the model that ``path`` is a file of; its files are relative to their folder.

    Raises:
        InputError: a dense model, a missing or truncated file, an unknown layout or quantisation, a foreign file, or no
            ``gguf`` package.
    """
    headers = shards_of(path)
    first = headers[0]
    architecture = first.values.get("general.architecture")
    if not isinstance(architecture, str):
        raise InputError(
            f"{first.path} names no architecture", "a language model, its first file if it has several", AGAIN
        )
    experts, k = (first.integer(f"{architecture}.expert_{name}") for name in ("count", "used_count"))
    if experts < 1:
        raise InputError(
            f"{first.path} ({architecture}) has no {architecture}.expert_count: a dense model",
            "a mixture of experts",
            "give a model with routed experts",
        )
    if not 1 <= k <= experts:
        raise InputError(f"{first.path}: {architecture}.expert_used_count is {k}", f"1 to {experts}", AGAIN)
    blocks = first.integer(f"{architecture}.block_count") - first.integer(f"{architecture}.nextn_predict_layers")
    tensors = [tensor for at, header in enumerate(headers) for tensor in _tensors(at, header, blocks)]
    name = first.values.get("general.name")
    shard = _SHARD.fullmatch(path.name)
    return manifest_of(
        kind="gguf",
        path=first.path,
        names=(name if isinstance(name, str) else "", shard[1] if shard else path.stem),
        profile=architecture,
        files=tuple(pool_file(header.path, header.size, model_root(first.path)) for header in headers),
        tensors=tensors,
        routing=Routing(experts, k),
        digests=[header.digest for header in headers],
        synthetic=first.values.get("moetier.synthetic") is True,
    )


def _sizes() -> dict[int, tuple[str, int, int]]:
    """Return name, values a block and bytes a block of every quantisation, by its number.

    Raises:
        InputError: the package that knows them is not there.
    """
    try:
        from gguf.constants import GGML_QUANT_SIZES  # noqa: PLC0415  (an extra, and imports numpy)
    except ImportError as error:
        raise InputError(
            f"the gguf package is missing ({error})",
            "the extra `engine`, which knows the sizes of quantisations",
            "pip install 'pytest-moetier[engine]'",
        ) from error
    return {int(kind): (kind.name, *size) for kind, size in GGML_QUANT_SIZES.items()}


def _tensors(at: int, header: Header, blocks: int) -> list[Tensor]:
    sizes, found, end = _sizes(), [], header.data_offset
    for name, shape, kind, offset in header.tensors:
        if kind not in sizes:
            raise InputError(
                f"{header.path}: tensor {name} has the unknown quantisation {kind}",
                f"one of the {len(sizes)} that the gguf package knows",
                "pip install --upgrade gguf",
            )
        quantisation, values, size = sizes[kind]
        length, rest = divmod(math.prod(shape) * size, values)
        if rest:
            raise InputError(f"{header.path}: tensor {name} of {shape} {quantisation}", "whole blocks", AGAIN)
        end = max(end, header.data_offset + offset + length)
        found.append(_named(name, shape, quantisation, (at, header.data_offset + offset, length), blocks))
    if end > header.size:
        raise InputError(f"{header.path} is truncated: it has {header.size} bytes", f"{end} bytes", AGAIN)
    return found


def _named(name: str, shape: tuple[int, ...], kind: str, where: tuple[int, int, int], blocks: int) -> Tensor:
    layer = expert = None
    merged = 0
    if (found := _MERGED.fullmatch(name)) is not None:
        layer, merged = int(found[1]), shape[-1]
    elif (found := _SINGLE.fullmatch(name)) is not None:
        layer, expert = int(found[1]), int(found[2])
    ahead = re.match(r"blk\.(\d+)\.", name)
    unused = blocks > 0 and ahead is not None and int(ahead[1]) >= blocks
    return Tensor(name, *where, kind, layer, expert, merged, shared=_SHARED.match(name) is not None, unused=unused)
