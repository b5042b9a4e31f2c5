"""A model in several files is the same model: the same tokens, the same choices, and every expert found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moetier.engine.selftest import job_for, run_plainly
from pytest_moetier.errors import InputError
from pytest_moetier.pool.checkpoint import map_checkpoint


@pytest.fixture(scope="module")
def shards(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The tiny model in files of ten tensors each, numbered as llama.cpp's own splitter does; no expert on a page."""
    import gguf  # noqa: PLC0415  (the fixture of the tiny model skips without it)

    reader = gguf.GGUFReader(tiny)
    folder = tmp_path_factory.mktemp("shards")
    writer = gguf.GGUFWriter(folder / "tiny.gguf", "olmoe", split_max_tensors=10)
    for key, field in reader.fields.items():
        # Only the first shard has the keys: an alignment of its own would not hold for the others.
        if not key.startswith(("GGUF.", "general.architecture", "general.alignment")):
            kind = field.types[0]
            writer.add_key_value(key, field.contents(), kind)
    for one in reader.tensors:
        writer.add_tensor(one.name, one.data, raw_dtype=one.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("*.gguf"))


def test_shards_choose_what_the_whole_file_does(tiny: Path, shards: list[Path]) -> None:
    assert len(shards) == 3
    whole, split = (run_plainly(replace(job_for(one), capture=True)) for one in (tiny, shards[0]))
    for name in ("token", "choice"):
        keys = ("id",) if name == "token" else ("phase", "position", "layers")
        of_each = [[[one[key] for key in keys] for one in events if one["event"] == name] for events in (whole, split)]
        assert of_each[0] == of_each[1]
        assert of_each[0]


def test_any_policy_finds_an_expert_in_its_shard(shards: list[Path]) -> None:
    job = job_for(shards[0])
    assert {at for layer in job.layers for at in layer.file} >= {1, 2}
    ids = [
        next(one["ids"] for one in run_plainly(replace(job, policy=policy)) if one["event"] == "done")
        for policy in ("plain", "drop", "pread")
    ]
    assert ids[0] == ids[1] == ids[2]


def test_a_shard_that_is_not_there_is_named(shards: list[Path], tmp_path: Path) -> None:
    for one in shards[:-1]:
        (tmp_path / one.name).write_bytes(one.read_bytes())
    with pytest.raises(InputError, match=shards[-1].name):
        map_checkpoint(tmp_path / shards[0].name)
