"""A manifest says where every expert is, and one that is wrong is refused by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_moetier.errors import InputError
from pytest_moetier.pool.manifest import Extent, Manifest, PoolFile, load_manifest
from pytest_moetier.pool.private import write_private


def manifest(**changed: Any) -> Manifest:
    parts: dict[str, Any] = {
        "name": "small",
        "profile": "custom",
        "pool_id": 0xFEDCBA9876543210,
        "layers": (1, 2),
        "experts": 3,
        "k": 2,
        "expert_bytes": (4096, 8192),
    }
    return Manifest(**(parts | changed))


def test_a_file_per_expert_is_one_extent_each() -> None:
    pool = manifest()
    assert pool.files[4] == PoolFile("experts/002/0001", 8192)
    assert pool.extents(2, 1) == (Extent(4, 0, 8192),)
    assert (pool.total_bytes, pool.n_experts, pool.iteration_bytes) == (3 * 4096 + 3 * 8192, 6, 2 * 12288)


def test_in_one_file_experts_follow_each_other() -> None:
    pool = manifest(layout="one_file")
    assert pool.files == (PoolFile("experts/experts.bin", 36864),)
    extents = [pool.extents(layer, expert)[0] for layer in (1, 2) for expert in range(3)]
    assert [extent.offset for extent in extents] == [0, 4096, 8192, 12288, 20480, 28672]
    assert [extent.length for extent in extents] == [4096] * 3 + [8192] * 3


@pytest.mark.parametrize(("layer", "expert"), [(0, 0), (3, 0), (1, 3), (1, -1)])
def test_an_expert_that_is_not_there_is_refused(layer: int, expert: int) -> None:
    with pytest.raises(InputError, match="the pool has no"):
        manifest().extents(layer, expert)


def test_a_spine_is_beside_the_experts_and_none_of_their_bytes() -> None:
    pool = manifest(spine=PoolFile("spine.bin", 8192))
    assert pool.files == manifest().files
    assert pool.stored_files == (*pool.files, PoolFile("spine.bin", 8192))
    assert (pool.total_bytes, pool.spine_bytes, pool.stored_bytes) == (36864, 8192, 45056)
    assert (manifest().spine_bytes, manifest().stored_files) == (0, manifest().files)


def test_a_manifest_without_spine_that_is_not_thrown_away_is_written_as_ever(tmp_path: Path) -> None:
    content = yaml.safe_load(manifest().save(tmp_path).read_text())
    assert content["format_version"] == 1
    assert list(content)[-2:] == ["stamped", "synthetic"]
    assert not {"spine", "throwaway", "filesystem"} & set(content)
    assert load_manifest(tmp_path).filesystem == "ext4"


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"layout": "one_file", "store": "image"},
        {"expert_bytes": (4096, 4096)},
        {"spine": PoolFile("spine.bin", 39845888), "throwaway": True},
        {"store": "image", "filesystem": "xfs"},
    ],
)
def test_what_is_saved_is_loaded_and_private(tmp_path: Path, changed: dict[str, Any]) -> None:
    pool = manifest(**changed)
    path = pool.save(tmp_path)
    assert load_manifest(tmp_path) == load_manifest(path) == pool
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["manifest.yaml"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("expert_bytes", "abc", "manifest.yaml: expert_bytes is 'abc'; expected an integer from 4096"),
        ("expert_bytes", 5000, "expert_bytes is 5000; expected multiples of 4096"),
        ("expert_bytes", [4096], r"expert_bytes is \[4096\]; expected one size, or one for each of the 2"),
        ("expert_bytes", -4096, "expert_bytes is -4096"),
        ("experts", True, "experts is True; expected an integer"),
        ("experts", 70000, "experts is 70000"),
        ("k", 4, "k is 4; expected an integer from 1 to 3"),
        ("layers", [2, 1], r"layers is \[2, 1\]; expected ascending"),
        ("layers", [], "layers is"),
        ("layers", "all", "layers is 'all'"),
        ("layout", "striped", "layout is 'striped'; expected one of file_per_expert, one_file"),
        ("store", ["image"], "store is"),
        ("pool_id", 12, "pool_id is 12; expected 0x and 16 hex digits"),
        ("name", "a b", "name is 'a b'"),
        ("name", "../etc", "name is '../etc'"),
        ("folder", "/etc", "folder is '/etc'; expected a relative path inside"),
        ("folder", "experts/../..", "folder is 'experts/../..'"),
        ("folder", "..", "folder is '..'"),
        ("folder", "", "folder is ''"),
        ("folder", "a\0b", "folder is"),
        ("stamped", "yes", "stamped is 'yes'; expected true or false"),
        ("format", "other", "format is 'other'"),
        ("format_version", 2, "format_version is 2"),
        ("throwaway", "yes", "throwaway is 'yes'; expected true or false"),
        ("filesystem", "ntfs", "filesystem is 'ntfs'; expected one of ext4, xfs"),
        ("spine", "spine.bin", "spine is 'spine.bin'; expected a mapping of file and bytes"),
        ("spine", {"file": "spine.bin"}, "has no field 'spine.bytes'"),
        ("spine", {"bytes": 4096}, "has no field 'spine.file'"),
        ("spine", {"file": "spine.bin", "bytes": 5000}, "spine.bytes is 5000; expected a multiple of 4096"),
        ("spine", {"file": "spine.bin", "bytes": 0}, "spine.bytes is 0; expected an integer from 4096"),
        ("spine", {"file": "spine.bin", "bytes": True}, "spine.bytes is True"),
        ("spine", {"file": "../spine.bin", "bytes": 4096}, "spine.file is '../spine.bin'; expected a relative path"),
        ("spine", {"file": "/dev/sda", "bytes": 4096}, "spine.file is '/dev/sda'"),
        ("spine", {"file": "experts/001/0001", "bytes": 4096}, "spine.file is .* expected a file of its own, beside"),
        ("spine", {"file": "experts", "bytes": 4096}, "spine.file is 'experts'"),
        ("spine", {"file": "pool.img", "bytes": 4096}, "spine.file is 'pool.img'"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_seen(tmp_path: Path, field: str, value: object, message: str) -> None:
    path = manifest().save(tmp_path)
    content = yaml.safe_load(path.read_text())
    content[field] = value
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match=message):
        load_manifest(tmp_path)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    path = manifest().save(tmp_path)
    content = yaml.safe_load(path.read_text())
    del content["k"]
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match="has no field 'k'"):
        load_manifest(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not YAML"),
        ("- 1\n", "holds list"),
        ("!!python/object/apply:os.system ['true']\n", "is not YAML: could not determine a constructor"),
        ("\xff", "is not YAML"),
    ],
)
def test_a_file_that_is_no_manifest_is_refused_and_nothing_in_it_is_run(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "manifest.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=message):
        load_manifest(tmp_path)


def test_no_pool_is_one_clear_message(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no pool at .*manifest.yaml is missing.*moetier pool create"):
        load_manifest(tmp_path)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "manifest.yaml").symlink_to(target)
    with pytest.raises(InputError, match="is a symbolic link"):
        manifest().save(tmp_path)
    assert target.read_text() == "precious"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_private(path, [b"old"])

    def parts() -> Any:
        yield b"new"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_private(path, parts())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
