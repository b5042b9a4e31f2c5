"""Small models in the formats of real ones, and what their bytes are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from pytest_moetier.pool.manifest import Manifest
from pytest_moetier.pool.pages import Pages

EXPERTS, CHOSEN = 4, 2
Content = Callable[[str, tuple[int, ...]], NDArray[Any]]


def random_bytes(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return bytes that no other tensor has."""
    return np.random.default_rng(list(name.encode())).integers(-128, 128, shape, dtype=np.int8)


def merged(layer: int, *, rows: int = 24) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the tensors of a layer with routed and shared experts, odd in size."""
    wide = {f"blk.{layer}.ffn_{part}_exps.weight": (EXPERTS, rows, 97) for part in ("gate", "up", "down")}
    shared = {f"blk.{layer}.ffn_{part}_shexp.weight": (rows, 97) for part in ("gate", "up", "down")}
    return {f"blk.{layer}.attn_q.weight": (16, 33), **wide, f"blk.{layer}.ffn_gate_inp.weight": (EXPERTS, 33), **shared}


def dense(layer: int) -> dict[str, tuple[int, ...]]:
    """Return the same of a layer without experts."""
    return {f"blk.{layer}.ffn_{part}.weight": (24, 97) for part in ("gate", "up", "down")}


def write_gguf(
    path: Path,
    tensors: Mapping[str, tuple[int, ...] | tuple[NDArray[Any], gguf.GGMLQuantizationType]],
    content: Content = random_bytes,
    shard_tensors: int = 0,
    **values: int | bool,
) -> Path:
    """Write a model of a made-up architecture; a shape stands for bytes, an array comes with its quantisation."""
    writer = gguf.GGUFWriter(path, "maker", split_max_tensors=shard_tensors)
    writer.add_name("A Model")
    counts = {"expert_count": EXPERTS, "expert_used_count": CHOSEN, "block_count": 3} | values
    for key, value in counts.items():
        if isinstance(value, bool):
            writer.add_bool(key.replace("_", ".", 1), value)
        elif value >= 0:
            writer.add_uint32(f"maker.{key}", value)
    writer.add_array("tokenizer.ggml.tokens", ["a", "longer", "vocabulary"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5, 2.5])
    for name, what in tensors.items():
        if isinstance(what[0], int):
            writer.add_tensor(name, content(name, what))  # type: ignore[arg-type]
        else:
            writer.add_tensor(name, what[0], raw_dtype=what[1])  # type: ignore[arg-type]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensors(*paths: Path) -> dict[str, bytes]:
    """Return every tensor's bytes as the gguf package reads them."""
    return {one.name: one.data.tobytes() for path in paths for one in gguf.GGUFReader(path).tensors}


SafeTensor = tuple[str, tuple[int, ...], bytes | int]
"""Kind, shape, and the bytes, or how many there are in a file that is not to be read."""


def write_safetensors(path: Path, tensors: Mapping[str, SafeTensor]) -> Path:
    """Write one file in the format; bytes that are only counted become a hole."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (kind, shape, data) in tensors.items():
        size = data if isinstance(data, int) else len(data)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    words = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(words).to_bytes(8, "little") + words)
        for _, _, data in tensors.values():
            if isinstance(data, bytes):
                file.write(data)
        file.truncate(8 + len(words) + at)
    return path


def write_model(folder: Path, shards: Mapping[str, Mapping[str, SafeTensor]], **config: Any) -> Path:
    """Write a model of several files, their index, and its ``config.json``."""
    folder.mkdir(exist_ok=True)
    for name, tensors in shards.items():
        write_safetensors(folder / name, tensors)
    index = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    usual = {"architectures": ["MakerForCausalLM"], "num_experts_per_tok": CHOSEN, "num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps(usual | config))
    return folder


STAMPED_BYTES = (5000, 9288, 6192)
"""Of the three parts of an expert: 5 pages in all, and no part starts or ends with one."""
STAMPED_ID = 0x5EED


def stamped_parts(layers: int, experts: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, NDArray[np.uint8], int]]:
    """Yield each part of each layer, experts first, such that an expert's parts are stamped pages (``pages``)."""
    pages = Pages(STAMPED_ID)
    words = np.zeros((layers, experts, sum(sizes) // 8), dtype=np.uint64)
    for layer in range(layers):
        for expert in range(experts):
            pages.fill(words[layer, expert], layer, expert, 0)
    borders = [0, *accumulate(sizes)]
    for layer in range(layers):
        text = words[layer].view(np.uint8)
        for part, (start, end) in enumerate(pairwise(borders)):
            yield layer, np.ascontiguousarray(text[:, start:end]), part


def stamped_gguf(path: Path, layers: int, experts: int, sizes: tuple[int, ...] = STAMPED_BYTES) -> Path:
    """Write a model whose experts' bytes say whose they are: verified stamps prove what a replayer delivers."""
    names = ("gate", "up", "down")
    tensors = {
        f"blk.{layer}.ffn_{names[part]}_exps.weight": (data.view(np.int8), gguf.GGMLQuantizationType.I8)
        for layer, data, part in stamped_parts(layers, experts, sizes)
    }
    return write_gguf(path, {"token_embd.weight": (77, 1001), **tensors}, expert_count=experts, block_count=layers)


def stamped_safetensors(folder: Path, layers: int, experts: int) -> Path:
    """Write the same as a folder of two files with a tensor for each expert."""
    shards: dict[str, dict[str, SafeTensor]] = {"model-1.safetensors": {}, "model-2.safetensors": {}}
    for layer, data, part in stamped_parts(layers, experts, STAMPED_BYTES):
        for expert in range(experts):
            name = f"model.layers.{layer}.mlp.experts.{expert}.w{part}"
            # The last part lies in another file, and the parts of one expert far from each other.
            shards[f"model-{1 + part // 2}.safetensors"][name] = ("U8", data[expert].shape, data[expert].tobytes())
    return write_model(folder, shards, num_experts=experts, num_hidden_layers=layers)


def expert_bytes(root: Path, manifest: Manifest, layer: int, expert: int) -> bytes:
    """Return what the files hold where the manifest says that an expert is."""
    parts = []
    for extent in manifest.extents(layer, expert):
        with (root / manifest.files[extent.file].path).open("rb") as file:
            file.seek(extent.offset)
            parts.append(file.read(extent.length))
    return b"".join(parts)
