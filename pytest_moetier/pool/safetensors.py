"""A safetensors model's index and headers -> where its routed experts are: a tensor each, or packed for a layer.

The data are never read. An expert is everything named after it: weights, packed weights, and their scales apart.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from pytest_moetier.errors import InputError
from pytest_moetier.pool.checkpoint import AGAIN, INDEX_SUFFIX, Routing, Tensor, manifest_of, model_root, pool_file
from pytest_moetier.pool.manifest import Manifest, is_inside

_MAX_HEADER_BYTES = 100 << 20
"""What the format allows."""
_TENSOR = re.compile(r"(?P<before>.*?)\b(?:layers|blocks|h)\.(?P<layer>\d+)\.(?P<rest>.+)")
_SINGLE = re.compile(r"(?:.*\.)?experts\.(?P<expert>\d+)\..+")
_PACKED = re.compile(r"(?:.*\.)?(?:experts\.[A-Za-z].*|block_sparse_moe\.(?:input|output)_linear\.weight)")
_SHARED = re.compile(r"(?:.*\.)?shared_experts?\.")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "num_moe_experts")
_CHOSEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_k",
    "moe_topk",
    "moe_top_k",
    "top_k_experts",
)
_INSIDE = ("text_config", "language_config", "llm_config", "ffn_config")
_WHOLE = "a whole safetensors file"


@dataclass(frozen=True, slots=True)
class Config:
    """What ``config.json`` says: architecture, name, experts of a layer, chosen of them, layers; 0: it does not say."""

    architecture: str
    name: str
    experts: int
    k: int
    layers: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One file's header: name -> (values' kind, shape, first byte in the file, bytes)."""

    path: Path
    size: int
    tensors: dict[str, tuple[str, tuple[int, ...], int, int]]
    digest: bytes


def read_shard(path: Path) -> Shard:
    """Return one file's header, checked against the file's size.

    Raises:
        InputError: it cannot be read, is no such file, or is truncated.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= _MAX_HEADER_BYTES:
                raise InputError(f"{path} is no safetensors file: its header would have {length} bytes", _WHOLE, AGAIN)
            if length > size - 8:
                raise InputError(f"{path} is truncated: it has {size} bytes", f"a header of {length} bytes", AGAIN)
            header = file.read(length)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", _WHOLE, f"ls -l {path}") from error
    tensors = _parse(path, header)
    end = max((offset + count for _, _, offset, count in tensors.values()), default=8 + length)
    if end > size:
        raise InputError(f"{path} is truncated: it has {size} bytes", f"{end} bytes", AGAIN)
    return Shard(path, size, tensors, hashlib.sha256(header).digest())


def _parse(path: Path, header: bytes) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
    found = {}
    try:
        for name, one in orjson.loads(header).items():
            if name == "__metadata__":
                continue
            start, end = one["data_offsets"]
            if not 0 <= start <= end:
                raise ValueError(name)  # noqa: TRY301  (one message for all that is wrong in it)
            found[name] = (str(one["dtype"]), tuple(map(int, one["shape"])), 8 + len(header) + start, end - start)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is no safetensors file: its header is wrong ({error!r})", _WHOLE, AGAIN) from error
    return found


def _json(path: Path, expected: str) -> Mapping[str, Any]:
    try:
        content = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", expected, "download it too") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}", expected, AGAIN) from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds {type(content).__name__}", expected, AGAIN)
    return content


def _shards(model: Path) -> tuple[Shard, ...]:
    if not model.name.endswith(INDEX_SUFFIX):
        return (read_shard(model),)
    expected = "an index with a weight_map of tensor -> file"
    listed = _json(model, expected).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise InputError(f"{model} has no weight_map", expected, AGAIN)
    files: dict[str, list[str]] = defaultdict(list)
    for name, file in listed.items():
        if not isinstance(file, str) or not is_inside(file) or "/" in file:
            raise InputError(f"{model} puts {name} into {file!r}", "a file beside it", AGAIN)
        files[file].append(name)
    missing = [file for file in sorted(files) if not (model.parent / file).exists()]
    if missing:
        raise InputError(
            f"{len(missing)} of the {len(files)} files of {model.name} are missing, such as {missing[0]}",
            f"all of them in {model.parent}",
            "download the missing ones",
        )
    shards = tuple(read_shard(model.parent / file) for file in sorted(files))
    for shard in shards:
        lacking = next((name for name in files[shard.path.name] if name not in shard.tensors), None)
        if lacking is not None:
            raise InputError(f"{shard.path} has no tensor {lacking}", f"what {model.name} says", AGAIN)
    return shards


def _config(folder: Path) -> Config:
    path = folder / "config.json"
    whole = _json(path, "the model's config.json, which says how many experts a pass chooses")
    parts = [whole, *(whole[name] for name in _INSIDE if isinstance(whole.get(name), dict))]

    def count(*names: str) -> int:
        for name in names:
            for part in parts:
                value = part.get(name)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        return 0

    named = whole.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else whole.get("model_type")
    k = count(*_CHOSEN)
    if not k:
        said = f"{path} does not say how many experts a pass chooses: a dense model, or a foreign one"
        raise InputError(said, f"one of {', '.join(_CHOSEN)}", "give a model with routed experts")
    name = str(whole.get("_name_or_path") or "").rsplit("/", 1)[-1]
    return Config(str(architecture or "unknown"), name, count(*_EXPERTS), k, count("num_hidden_layers", "n_layers"))


def map_safetensors(model: Path) -> Manifest:
    """Return the manifest of the model whose index, or only file, ``model`` is; ``config.json`` lies beside it.

    Raises:
        InputError: a dense model, a missing or truncated file, an unknown layout, or a foreign file.
    """
    shards = _shards(model)
    config = _config(model.parent)
    root = model_root(model)
    tensors = [_named(name, at, one, config) for at, shard in enumerate(shards) for name, one in shard.tensors.items()]
    experts = config.experts or _counted(tensors)
    if experts and config.k > experts:
        raise InputError(f"{model.parent} chooses {config.k} of {experts} experts", "fewer than there are", AGAIN)
    return manifest_of(
        kind="safetensors",
        path=model,
        names=(config.name, model.resolve().parent.name if model.name.startswith("model") else model.stem),
        profile=config.architecture,
        files=tuple(pool_file(shard.path, shard.size, root) for shard in shards),
        tensors=tensors,
        routing=Routing(experts, config.k),
        digests=[shard.digest for shard in shards],
    )


def _counted(tensors: list[Tensor]) -> int:
    """Return how many experts a layer has by the tensors' names and shapes; 0 without any."""
    return max(
        (one.merged if one.expert is None else one.expert + 1 for one in tensors if one.layer is not None), default=0
    )


def _named(name: str, at: int, one: tuple[str, tuple[int, ...], int, int], config: Config) -> Tensor:
    kind, shape, offset, length = one
    found = _TENSOR.fullmatch(name)
    if found is None:
        return Tensor(name, at, offset, length, kind, None, None, 0, unused="mtp" in name.split("."))
    layer, rest = int(found["layer"]), found["rest"]
    # Layers beyond the model's own predict further tokens (MTP): no pass of plain decoding reads them.
    unused = "mtp" in found["before"].split(".") or 0 < config.layers <= layer
    single, packed = _SINGLE.fullmatch(rest), _PACKED.fullmatch(rest)
    return Tensor(
        name,
        at,
        offset,
        length,
        kind,
        layer if single or packed else None,
        int(single["expert"]) if single else None,
        _held(shape, config.experts) if packed and not single else 0,
        shared=_SHARED.match(rest) is not None,
        unused=unused,
    )


def _held(shape: tuple[int, ...], experts: int) -> int:
    """Return how many experts a packed tensor holds: its first dimension, or a whole number of rows each."""
    first = shape[0] if shape else 0
    return experts if experts and first and first % experts == 0 else first
