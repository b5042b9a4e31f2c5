"""A safetensors model is mapped from its index and headers alone, scales and packed layers included."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_models import CHOSEN, EXPERTS, SafeTensor, expert_bytes, write_model, write_safetensors

from pytest_moetier.errors import InputError
from pytest_moetier.pool.checkpoint import map_checkpoint
from pytest_moetier.pool.manifest import Slab

INDEX = "model.safetensors.index.json"


def tensor(name: str, shape: tuple[int, ...], kind: str = "I8") -> SafeTensor:
    """Return bytes that no other tensor has."""
    size = int(np.prod(shape)) * {"I8": 1, "U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4, "I32": 4}[kind]
    return kind, shape, np.random.default_rng(list(name.encode())).bytes(size)


def layer(number: int, before: str = "model.layers") -> dict[str, SafeTensor]:
    """Return a layer's routed experts (8-bit, with scales apart), a shared one, and attention."""
    names = {f"{before}.{number}.self_attn.q_proj.weight": ((9, 5), "BF16")}
    for expert in ("shared_experts", *(f"experts.{expert}" for expert in (2, 0, 1, 3))):
        for part in ("down_proj", "gate_proj"):
            names[f"{before}.{number}.mlp.{expert}.{part}.weight"] = ((7, 11), "F8_E4M3")
            names[f"{before}.{number}.mlp.{expert}.{part}.weight_scale_inv"] = ((1, 1), "F32")
    return {name: tensor(name, *what) for name, what in names.items()}


def data(shards: dict[str, dict[str, SafeTensor]], name: str) -> bytes:
    (found,) = (one[name][2] for one in shards.values() if name in one)
    assert isinstance(found, bytes)
    return found


@pytest.fixture
def shards() -> dict[str, dict[str, SafeTensor]]:
    """Two layers in two files and a third for further tokens; an expert of layer 1 lies in both."""
    second = layer(1)
    moved = "model.layers.1.mlp.experts.3.gate_proj.weight"
    first = layer(0) | {"model.embed_tokens.weight": tensor("embed", (30, 5)), moved: second.pop(moved)}
    return {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second | layer(2)}


@pytest.fixture
def model(tmp_path: Path, shards: dict[str, dict[str, SafeTensor]]) -> Path:
    return write_model(tmp_path / "A Model", shards, n_routed_experts=EXPERTS)


def test_an_expert_is_all_that_is_named_after_it_in_whatever_file(
    model: Path, shards: dict[str, dict[str, SafeTensor]]
) -> None:
    pool = map_checkpoint(model)
    assert (pool.name, pool.profile, pool.layers) == ("A-Model", "MakerForCausalLM", (0, 1))
    assert (pool.experts, pool.k, pool.expert_bytes) == (EXPERTS, CHOSEN, (2 * 77 + 2 * 4,) * 2)
    parts = [f"{part}_proj.weight{scale}" for part in ("down", "gate") for scale in ("", "_scale_inv")]
    for expert in range(EXPERTS):
        wanted = b"".join(data(shards, f"model.layers.0.mlp.experts.{expert}.{part}") for part in parts)
        assert expert_bytes(model, pool, 0, expert) == wanted
    assert [one.file for one in pool.extents(1, 3)] == [0, 1]
    assert pool.slabs(0) is None
    assert pool.checkpoint is not None
    assert pool.checkpoint.layers[0].quantisation == "F32+F8_E4M3"
    assert pool.checkpoint.shared_bytes == 2 * (2 * 77 + 2 * 4)
    assert pool.spine_bytes == pool.checkpoint.shared_bytes + 2 * 90 + 150
    assert pool.checkpoint.unused_bytes == pool.total_bytes // 2 + pool.checkpoint.shared_bytes // 2 + 90


@pytest.mark.parametrize("given", [INDEX, ""])
def test_the_index_and_its_folder_are_the_same_model(model: Path, given: str) -> None:
    assert map_checkpoint(model / given) == map_checkpoint(model)


PACKED = [
    {
        "model.layers.0.mlp.experts.gate_up_proj_blocks": (EXPERTS, 6, 5),
        "model.layers.0.mlp.experts.gate_up_proj_scales": (EXPERTS, 6),
        "model.layers.0.mlp.experts.gate_up_proj_bias": (EXPERTS, 3),
    },
    {"language_model.model.layers.0.feed_forward.experts.gate_up_proj": (EXPERTS, 7, 13)},
    {"model.layers.0.block_sparse_moe.input_linear.weight": (EXPERTS, 7, 3)},
    {"transformer.blocks.0.ffn.experts.mlp.w1": (EXPERTS * 5, 9)},
]


@pytest.mark.parametrize("shapes", PACKED)
def test_a_packed_layer_is_slabs_of_equal_size(tmp_path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    packed = {name: tensor(name, shape, "U8") for name, shape in shapes.items()}
    (tmp_path / "m").mkdir()
    write_safetensors(tmp_path / "m" / "model.safetensors", packed | {"lm_head.weight": tensor("lm", (3, 3))})
    (tmp_path / "m" / "config.json").write_text(
        json.dumps({"model_type": "packed", "text_config": {"num_experts_per_tok": 2, "num_local_experts": EXPERTS}})
    )
    pool = map_checkpoint(tmp_path / "m" / "model.safetensors")
    assert pool == map_checkpoint(tmp_path / "m")
    sizes = [int(np.prod(shape)) // EXPERTS for shape in shapes.values()]
    assert (pool.profile, pool.expert_bytes, pool.spine_bytes) == ("packed", (sum(sizes),), 9)
    slabs = pool.slabs(0)
    assert slabs is not None
    assert [(one.stride, one.length) for one in slabs] == [(size, size) for size in sizes]
    assert isinstance(slabs[0], Slab)
    for expert in range(EXPERTS):
        parts = [
            bytes(data({"": packed}, name))[expert * size :][:size] for name, size in zip(shapes, sizes, strict=True)
        ]
        assert expert_bytes(tmp_path / "m", pool, 0, expert) == b"".join(parts)


def test_a_terabyte_is_mapped_by_its_headers_alone(tmp_path: Path) -> None:
    # 61 layers, the first dense, of 384 experts of three packed tensors with scales and shapes, in 62 sparse files.
    shapes = {
        "weight_packed": ("I32", (2048, 896), 4 * 2048 * 896),
        "weight_scale": ("BF16", (2048, 224), 2 * 2048 * 224),
    }
    shapes["weight_shape"] = ("I32", (2,), 8)
    shards: dict[str, dict[str, SafeTensor]] = {"model-00000.safetensors": {"lm_head.weight": ("BF16", (5,), 10)}}
    for number in range(61):
        prefix = f"language_model.model.layers.{number}"
        names = [f"{expert}.{part}_proj" for expert in range(384 if number else 0) for part in ("gate", "up", "down")]
        one = {f"{prefix}.mlp.experts.{name}.{kind}": what for name in names for kind, what in shapes.items()}
        shards[f"model-{number + 1:05d}.safetensors"] = {**one, f"{prefix}.norm.weight": ("BF16", (7168,), 2 * 7168)}
    text = {"n_routed_experts": 384, "num_experts_per_tok": 8, "num_hidden_layers": 61}
    model = write_model(tmp_path / "m", shards, text_config=text, num_experts_per_tok=None, num_hidden_layers=None)
    before = sum(one.stat().st_blocks for one in model.iterdir())
    pool = map_checkpoint(model)
    size = 3 * (4 * 2048 * 896 + 2 * 2048 * 224 + 8)
    assert (pool.layers, pool.experts, pool.k, len(pool.files)) == (tuple(range(1, 61)), 384, 8, 62)
    assert (pool.total_bytes, pool.spine_bytes) == (60 * 384 * size, 61 * 2 * 7168 + 10)
    assert 0.5e12 < pool.total_bytes < 0.7e12
    assert sum(one.stat().st_blocks for one in model.iterdir()) == before  # still holes: no data were written


def cut(model: Path, name: str, size: int) -> None:
    with (model / name).open("r+b") as file:
        file.truncate(size)


def test_a_truncated_file_is_refused_with_both_sizes(model: Path) -> None:
    name = "model-00002-of-00002.safetensors"
    whole = (model / name).stat().st_size
    cut(model, name, whole - 1)
    with pytest.raises(InputError, match=f"{name} is truncated: it has {whole - 1} bytes; expected {whole} bytes"):
        map_checkpoint(model)
    for size, message in [(100, "is truncated: it has 100 bytes; expected a header of"), (5, "is no safetensors file")]:
        cut(model, name, size)
        with pytest.raises(InputError, match=message):
            map_checkpoint(model)


def test_missing_and_mixed_up_files_are_refused(model: Path) -> None:
    first, second = sorted(model.glob("*.safetensors"))
    text = first.read_bytes()
    first.write_bytes(second.read_bytes())
    with pytest.raises(InputError, match=r"00001-of-00002\.safetensors has no tensor model\.layers\.0\.self_attn"):
        map_checkpoint(model)
    first.write_bytes(text)
    second.unlink()
    with pytest.raises(InputError, match=r"1 of the 2 files of model\.safetensors\.index\.json are missing, such as"):
        map_checkpoint(model)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_experts_per_tok": None}, r"config\.json does not say how many experts a pass chooses"),
        ({"n_routed_experts": 8}, "layer 0 has no expert 4; expected experts 0 to 7"),
        ({"n_routed_experts": 3}, "layer 0 has an expert 3; expected experts 0 to 2"),
        ({"n_routed_experts": None, "num_experts_per_tok": 9}, "chooses 9 of 4 experts"),
        ({"num_hidden_layers": 1, "n_routed_experts": None}, ""),
    ],
)
def test_a_config_that_is_of_another_model_is_refused(
    tmp_path: Path, shards: dict[str, dict[str, SafeTensor]], config: dict[str, Any], message: str
) -> None:
    model = write_model(tmp_path / "m", shards, **({"n_routed_experts": EXPERTS} | config))
    if message:
        with pytest.raises(InputError, match=message):
            map_checkpoint(model)
    else:
        assert (map_checkpoint(model).layers, map_checkpoint(model).experts) == ((0,), EXPERTS)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (INDEX, "{", "is not JSON"),
        (INDEX, "[]", "holds list; expected an index with a weight_map"),
        (INDEX, '{"weight_map": {}}', "has no weight_map"),
        (INDEX, '{"weight_map": {"a": "../b"}}', r"puts a into '\.\./b'; expected a file beside it"),
        ("config.json", "", r"config\.json is not JSON"),
        ("model-00001-of-00002.safetensors", "x" * 64, "is no safetensors file: its header would have"),
        ("model-00001-of-00002.safetensors", "\x10\0\0\0\0\0\0\0" + '{"a": {"b": 17}}', "header is wrong"),
    ],
)
def test_foreign_content_is_refused(model: Path, name: str, text: str, message: str) -> None:
    (model / name).write_text(text)
    with pytest.raises(InputError, match=message):
        map_checkpoint(model)


def test_a_model_without_config_or_experts_is_refused(model: Path, tmp_path: Path) -> None:
    (model / "config.json").unlink()
    with pytest.raises(
        InputError, match=re.escape("config.json: No such file or directory; expected the model's config")
    ):
        map_checkpoint(model)
    dense = write_model(tmp_path / "dense", {"model-1.safetensors": {"lm_head.weight": tensor("lm", (3, 3))}})
    with pytest.raises(InputError, match="none of them a routed expert's by its name"):
        map_checkpoint(dense)
