"""A GGUF model's experts are where its own reader finds them, and what is no such model is refused in one message."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from real_models import CHOSEN, EXPERTS, dense, expert_bytes, gguf_tensors, merged, write_gguf

from pytest_moetier.errors import InputError
from pytest_moetier.pool.checkpoint import map_checkpoint
from pytest_moetier.pool.manifest import Extent, Slab

SPINE = {"token_embd.weight": (10, 33), "output_norm.weight": (33,)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A dense layer, then two with routed and shared experts, of three tensors each and 2328 bytes a part."""
    return write_gguf(tmp_path / "model.gguf", SPINE | dense(0) | merged(1) | merged(2))


def test_merged_tensors_are_slabs_of_equal_size_and_the_rest_is_the_spine(model: Path) -> None:
    pool = map_checkpoint(model)
    assert (pool.name, pool.profile, pool.experts, pool.k) == ("A-Model", "maker", EXPERTS, CHOSEN)
    assert (pool.layers, pool.expert_bytes, pool.layout, pool.store) == ((1, 2), (3 * 2328,) * 2, "checkpoint", "plain")
    assert (pool.stamped, pool.synthetic, pool.spine) == (False, False, None)
    whole = gguf_tensors(model)
    for layer in pool.layers:
        parts = [whole[f"blk.{layer}.ffn_{part}_exps.weight"] for part in ("gate", "up", "down")]
        for expert in range(EXPERTS):
            slabs = [part[expert * 2328 : (expert + 1) * 2328] for part in parts]
            assert expert_bytes(model.parent, pool, layer, expert) == b"".join(slabs)
    first, *_ = pool.slabs(2) or ()
    assert first == Slab(0, pool.extents(2, 0)[0].offset, 2328, 2328)
    assert pool.extents(2, 3)[0] == Extent(0, first.offset + 3 * 2328, 2328)
    spine = {name: data for name, data in whole.items() if "_exps" not in name}
    assert pool.spine_bytes == sum(map(len, spine.values()))
    text = model.read_bytes()
    held = b"".join(text[one.offset : one.offset + one.length] for one in pool.spine_extents)
    assert held == b"".join(spine.values())
    assert pool.checkpoint is not None
    assert pool.checkpoint.shared_bytes == 6 * 2328


def test_fused_tensors_and_biases_belong_to_the_expert(tmp_path: Path) -> None:
    tensors = {
        "blk.0.ffn_gate_up_exps.weight": (EXPERTS, 48, 97),
        "blk.0.ffn_down_exps.weight": (EXPERTS, 24, 97),
        "blk.0.ffn_down_exps.bias": (EXPERTS, 97),
        "blk.0.ffn_norm_exps.weight": (97,),
    }
    model = write_gguf(tmp_path / "model.gguf", tensors)
    pool, whole = map_checkpoint(model), gguf_tensors(model)
    assert pool.expert_bytes == (48 * 97 + 24 * 97 + 97,)
    assert expert_bytes(tmp_path, pool, 0, 3) == b"".join(
        whole[name][-len(whole[name]) // EXPERTS :] for name in list(tensors)[:3]
    )
    assert pool.spine_bytes == 97


def test_a_tensor_for_each_expert_is_listed_in_whatever_order_it_lies(tmp_path: Path) -> None:
    names = [f"blk.0.ffn_{part}.{expert}.weight" for expert in (2, 0, 3, 1) for part in ("down", "gate", "up")]
    model = write_gguf(tmp_path / "model.gguf", dict.fromkeys(names, (8, 33)))
    pool, whole = map_checkpoint(model), gguf_tensors(model)
    assert pool.slabs(0) is None
    for expert in range(EXPERTS):
        parts = [whole[f"blk.0.ffn_{part}.{expert}.weight"] for part in ("down", "gate", "up")]
        assert expert_bytes(tmp_path, pool, 0, expert) == b"".join(parts)


def test_layers_may_differ_in_quantisation_and_size(tmp_path: Path) -> None:
    data = np.random.default_rng(1).normal(size=(EXPERTS, 8, 64)).astype(np.float32)
    kinds = [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.F16]
    tensors = {
        f"blk.{layer}.ffn_up_exps.weight": (gguf.quants.quantize(data, kind), kind) for layer, kind in enumerate(kinds)
    }
    model = write_gguf(tmp_path / "model.gguf", tensors)
    pool = map_checkpoint(model)
    assert pool.expert_bytes == (8 * 64 // 32 * 34, 8 * 64 // 32 * 18, 8 * 64 * 2)
    assert pool.checkpoint is not None
    assert [one.quantisation for one in pool.checkpoint.layers] == ["Q8_0", "Q4_0", "F16"]
    assert expert_bytes(tmp_path, pool, 1, 3) == gguf_tensors(model)["blk.1.ffn_up_exps.weight"][-288:]


def test_what_says_that_its_weights_are_made_up_is_synthetic_and_mtp_layers_do_not_count(tmp_path: Path) -> None:
    tensors = merged(1) | merged(2)
    pool = map_checkpoint(write_gguf(tmp_path / "m.gguf", tensors, nextn_predict_layers=1, moetier_synthetic=True))
    assert (pool.layers, pool.synthetic) == ((1,), True)
    assert pool.checkpoint is not None
    assert pool.checkpoint.unused_bytes == sum(int(np.prod(shape)) for shape in merged(2).values())
    assert pool.spine_bytes + pool.total_bytes == pool.checkpoint.unused_bytes  # two equal layers


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """The same in files of four tensors."""
    write_gguf(tmp_path / "model.gguf", SPINE | dense(0) | merged(1) | merged(2), shard_tensors=4)
    return sorted(tmp_path.glob("*.gguf"))


def test_any_file_of_a_split_model_and_its_folder_give_the_same_pool(shards: list[Path], tmp_path: Path) -> None:
    pool = map_checkpoint(shards[0])
    assert len(shards) == len(pool.files) == 6
    assert pool == map_checkpoint(shards[4]) == map_checkpoint(tmp_path)
    whole = gguf_tensors(*shards)
    parts = [whole[f"blk.2.ffn_{part}_exps.weight"][2 * 2328 : 3 * 2328] for part in ("gate", "up", "down")]
    assert expert_bytes(tmp_path, pool, 2, 2) == b"".join(parts)
    assert len({one.file for layer in pool.layers for one in pool.extents(layer, 0)}) > 1


def test_one_file_that_is_named_as_one_of_one_is_whole(model: Path) -> None:
    alone = model.rename(model.with_name("model-00001-of-00001.gguf"))
    assert map_checkpoint(alone).layers == (1, 2)


def test_files_that_are_links_into_a_folder_of_blobs_are_found_there(shards: list[Path], tmp_path: Path) -> None:
    named = tmp_path / "snapshots"
    named.mkdir()
    for at, shard in enumerate(shards):
        (named / shard.name).symlink_to(shard.rename(tmp_path / f"blob{at}"))
    pool = map_checkpoint(named / shards[0].name)
    assert [file.path for file in pool.files] == [f"blob{at}" for at in range(6)]


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (0, "1 of the 6 files of model-00002-of-00006.gguf are missing, such as model-00001-of-00006.gguf"),
        (3, "1 of the 6 files of model-00002-of-00006.gguf are missing, such as model-00004-of-00006.gguf"),
    ],
)
def test_a_missing_shard_is_named(shards: list[Path], at: int, message: str) -> None:
    shards[at].unlink()
    with pytest.raises(InputError, match=message):
        map_checkpoint(shards[1])


def test_a_shard_under_another_ones_name_is_refused(shards: list[Path]) -> None:
    shutil.copy(shards[2], shards[3])
    with pytest.raises(
        InputError, match=r"00004-of-00006\.gguf says that it is file 2 \(from 0\) of 6; expected 3 of 6"
    ):
        map_checkpoint(shards[0])


def test_a_shard_with_a_name_that_says_nothing_is_refused(shards: list[Path]) -> None:
    odd = shards[1].rename(shards[1].with_name("second.gguf"))
    with pytest.raises(InputError, match="is one of 6 files, and its name does not say which"):
        map_checkpoint(odd)


def test_a_truncated_file_is_refused_with_both_sizes(model: Path) -> None:
    whole = model.stat().st_size
    end = max(one.data_offset + one.n_bytes for one in gguf.GGUFReader(model).tensors)
    with model.open("r+b") as file:
        file.truncate(whole - 5000)
    with pytest.raises(InputError, match=f"is truncated: it has {whole - 5000} bytes; expected {end} bytes"):
        map_checkpoint(model)


def test_a_file_that_ends_anywhere_in_its_header_is_refused(model: Path) -> None:
    data = gguf.GGUFReader(model).data_offset
    text = model.read_bytes()
    for size in range(0, data - 31, 7):
        model.write_bytes(text[:size])
        with pytest.raises(InputError, match=r"is cut off: its|is no GGUF file|is empty") as refused:
            map_checkpoint(model)
        assert str(refused.value).endswith("next: download or convert it again")


@pytest.mark.parametrize(
    ("change", "values", "message"),
    [
        ({}, {"expert_count": -1}, r"\(maker\) has no maker\.expert_count: a dense model"),
        ({}, {"expert_used_count": -1}, r"maker\.expert_used_count is 0; expected 1 to 4"),
        ({}, {"expert_used_count": 5}, r"maker\.expert_used_count is 5; expected 1 to 4"),
        ({}, {"expert_count": 8}, r"blk\.1\.ffn_gate_exps\.weight holds 4 experts in 9312 bytes; expected 8"),
        (dict.fromkeys(merged(1), ()), {}, "tensors, none of them a routed expert's by its name"),
        ({"blk.2.ffn_up.1.weight": (3, 3)}, {}, "layer 2 has no expert 0; expected experts 0 to 3"),
    ],
)
def test_a_model_that_does_not_fit_together_is_refused(
    tmp_path: Path, change: dict[str, tuple[int, ...]], values: dict[str, int], message: str
) -> None:
    tensors = {name: shape for name, shape in (SPINE | merged(1) | change).items() if shape}
    with pytest.raises(InputError, match=message):
        map_checkpoint(write_gguf(tmp_path / "model.gguf", tensors, **values))


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ((0, b"GGML"), "is no GGUF file: it starts with b'GGML'; expected a whole GGUF file"),
        ((4, b"\0\0\0\3"), "is a big-endian GGUF file"),
        ((4, b"\1\0\0\0"), "is a version 1 GGUF file; expected version 2 or 3"),
        ((8, b"\xff" * 8), "is cut off: its [0-9]+ bytes end within its header"),
        ((24, b"\xff" * 8), "is cut off: its [0-9]+ bytes end within its header"),
    ],
)
def test_a_foreign_or_damaged_file_is_refused(model: Path, patch: tuple[int, bytes], message: str) -> None:
    with model.open("r+b") as file:
        file.seek(patch[0])
        file.write(patch[1])
    with pytest.raises(InputError, match=message):
        map_checkpoint(model)


def test_a_quantisation_that_the_package_does_not_know_is_named(model: Path) -> None:
    text = model.read_bytes()
    at = text.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    model.write_bytes(text[:at] + (250).to_bytes(4, "little") + text[at + 4 :])
    with pytest.raises(InputError, match=r"tensor output_norm\.weight has the unknown quantisation 250"):
        map_checkpoint(model)


@pytest.mark.parametrize("name", ["nothing.gguf", "folder"])
def test_a_path_without_a_model_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=re.escape(f"{tmp_path / name}: no")):
        map_checkpoint(tmp_path / name)


def test_a_folder_with_two_models_is_refused_and_a_projector_is_none(model: Path) -> None:
    shutil.copy(model, model.with_name("mmproj-model.gguf"))
    assert map_checkpoint(model.parent).layers == (1, 2)
    shutil.copy(model, model.with_name("other.gguf"))
    with pytest.raises(InputError, match=r"holds 2 models: model\.gguf, other\.gguf"):
        map_checkpoint(model.parent)
