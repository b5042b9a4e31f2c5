"""A pool that is not what it should be: missing, foreign, hostile, cut off, overwritten, without a device, no room."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_moetier.errors import MoetierError
from pytest_moetier.pool.manifest import MANIFEST_NAME
from pytest_moetier.pool.opened import open_pool


def refused(pool: Path) -> str:
    """Return the one message that opening ``pool`` is refused with."""
    with pytest.raises(MoetierError) as caught, open_pool(pool):
        pass
    said = str(caught.value)
    assert "; expected " in said
    assert "; next: " in said
    return said


SHM = Path("/dev/shm")  # noqa: S108 - it is the tmpfs that is wanted
CREATE = ("--layers", "1", "--experts", "64", "--k", "4", "--expert-bytes", "256KiB")


def test_a_folder_that_is_no_pool_is_named_with_the_command_that_makes_one(host: Any) -> None:
    said = host.pytest("/nonexistent/pool").refused("no pool at /nonexistent/pool: nothing is there")
    assert "moetier pool create" in said
    said = host.moetier("pool", "map", "/etc").refused("moetier: no pool at /etc: manifest.yaml is missing", ret=2)
    assert "moetier pool create" in said


def test_an_unfinished_manifest_is_refused_once_for_all_cells(host: Any, tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / MANIFEST_NAME).write_text("format: moetier-pool\n")
    ended = host.pytest(tmp_path / "pool", "--moetier-capacity=10%,20%,30%")
    ended.refused(r"\S+manifest.yaml has no field 'format_version'")
    assert "3 errors" in ended.text


HOSTILE = [
    ("folder", "../../etc", "folder is '../../etc'; expected a relative path inside the pool"),
    ("folder", "/etc", "folder is '/etc'; expected a relative path inside the pool"),
    ("folder", "a/../../etc", "folder is 'a/../../etc'"),
    ("folder", "a\0b", "folder is "),
    ("expert_bytes", 100, "expert_bytes is 100"),
    ("expert_bytes", 5000, "expert_bytes is 5000; expected multiples of 4096"),
    ("expert_bytes", 1 << 50, "expert_bytes is 1125899906842624"),
    ("experts", 10**9, "experts is 1000000000"),
    ("experts", True, "experts is True"),
    ("k", 99999, "k is 99999"),
    ("layers", [0, 0], r"layers is \[0, 0\]; expected ascending"),
    ("layers", [], r"layers is \[\]"),
    ("pool_id", 12, "pool_id is 12"),
    ("store", "tmpfs", "store is 'tmpfs'; expected one of image, plain"),
    ("layout", "what", "layout is 'what'"),
    ("format", "moetier-plan", "format is 'moetier-plan'"),
    ("format_version", 2, "format_version is 2; expected an integer from 1 to 1"),
    ("stamped", "yes", "stamped is 'yes'; expected true or false"),
]


@pytest.mark.parametrize(
    ("name", "value", "said"), HOSTILE, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(HOSTILE)]
)
def test_a_hostile_field_of_the_manifest_is_named(
    plain_pool: Path, tmp_path: Path, name: str, value: object, said: str
) -> None:
    content = yaml.safe_load((plain_pool / MANIFEST_NAME).read_text())
    (tmp_path / MANIFEST_NAME).write_text(yaml.safe_dump({**content, name: value}))
    assert re.search(said, refused(tmp_path))


BROKEN = [
    "{",
    "",
    "[1, 2]",
    '!!python/object/apply:os.system ["touch pwned"]',
    "\udcff\udcfe",
    "a: &a [*a, *a]",
    "[" * 5000,
]


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_a_manifest_that_is_no_manifest_is_refused(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / MANIFEST_NAME).write_bytes(text.encode(errors="surrogateescape"))
    assert MANIFEST_NAME in refused(tmp_path)
    assert not (tmp_path / "pwned").exists()


def test_a_link_in_a_pool_that_leads_out_of_it_is_refused(linked_pool: Callable[[], Path]) -> None:
    pool = linked_pool()
    (pool / "experts/000/0003").unlink()
    (pool / "experts/000/0003").symlink_to(pool / MANIFEST_NAME)
    assert "file experts/000/0003 (layer 0, expert 3) is no plain file" in refused(pool)
    (pool / "experts/000").rename(pool / "elsewhere")
    (pool / "experts/000").symlink_to(pool / "elsewhere")
    assert "experts/000 is no folder" in refused(pool)


def test_a_missing_or_short_expert_is_named_by_layer_and_expert(host: Any, linked_pool: Callable[[], Path]) -> None:
    pool = linked_pool()
    victim = pool / "experts/001/0005"
    victim.unlink()
    assert "file experts/001/0005 (layer 1, expert 5): No such file" in refused(pool)
    victim.write_bytes(bytes(4096))
    host.pytest(pool).refused(r"pool \S+: file experts/001/0005 \(layer 1, expert 5\) has 4096 bytes, expected 262144")
    ended = host.moetier("pool", "check", str(pool))
    assert ended.ret == 1
    ended.said(r"fault: file experts/001/0005 \(layer 1, expert 5\) has 4096 bytes, expected 262144")


def test_an_overwritten_expert_is_invalid_and_named_by_layer_and_expert(
    host: Any, linked_pool: Callable[[], Path]
) -> None:
    pool = linked_pool()
    for layer in ("000", "001"):
        for victim in (pool / f"experts/{layer}").iterdir():
            data = bytearray(victim.read_bytes())
            data[4096 + 16 : 4096 + 24] = b"\x07\0\0\0\x09\0\0\0"
            victim.unlink()
            victim.write_bytes(data)
    ended = host.pytest(pool)
    assert "holds the stamp of layer 7 expert 9" in ended.refused(r"layer \d expert \d+: page 1 holds", ret=10)
    assert host.moetier("pool", "check", str(pool)).ret == 1


def test_an_image_that_is_cut_off_or_foreign_is_refused(host: Any, small_pool: Path, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    pool.mkdir()
    shutil.copy(small_pool / MANIFEST_NAME, pool)
    image = pool / "pool.img"
    assert "pool.img: No such file" in refused(pool)
    image.mkdir()
    assert "pool.img is no plain file" in refused(pool)
    image.rmdir()
    image.write_bytes((small_pool / "pool.img").read_bytes()[:-4096])
    assert "pool.img cannot be mounted as ext4" in refused(pool)
    os.truncate(image, 30 << 20)
    host.pytest(pool).refused(r"\S+pool.img is cut off: it has 31457280 bytes; expected more than the 67108864")
    image.write_bytes(os.urandom(1 << 20) * 100)
    assert "pool.img cannot be mounted as ext4" in refused(pool)


def test_a_pool_on_tmpfs_is_not_examined_since_it_has_no_device(host: Any, plain_pool: Path, small_pool: Path) -> None:
    if not os.access(SHM, os.W_OK):
        pytest.skip("no writable /dev/shm")
    folder = SHM / f"moetier-test-{os.getpid()}"
    try:
        shutil.copytree(small_pool, folder)
        ended = host.pytest(folder)
        assert "1 skipped" in ended.text
        ended.refused(rf"{SHM} is a tmpfs filesystem [^\n]*without a block device", ret=0)
        shutil.rmtree(folder)
        shutil.copytree(plain_pool, folder)
        assert f"{SHM} is a tmpfs filesystem" in refused(folder)
        shutil.rmtree(folder)
        host.moetier("pool", "create", "custom", *CREATE, str(folder)).refused(f"moetier: {SHM} is a tmpfs", ret=2)
        assert not folder.exists()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_pool_by_a_symbolic_link_to_its_folder_is_the_pool(host: Any, small_pool: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(small_pool)
    assert "1 passed" in host.pytest(tmp_path / "link").text


@pytest.mark.parametrize("store", ["plain", "image"])
def test_creating_a_pool_on_a_full_disk_says_what_is_missing(
    host: Any, tmp_path: Path, store: str, small_pool: Path
) -> None:
    del small_pool  # skips without loop devices
    image, point = tmp_path / "disk.img", tmp_path / "disk"
    image.write_bytes(bytes(8 << 20))
    point.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)
    try:
        command = ["pool", "create", "custom", *CREATE, "--store", store, str(point / "pool")]
        ended = host.start([sys.executable, "-m", "pytest_moetier.cli", *command]).finish(clean=False)
        assert "use --layers or --expert-bytes" in ended.refused(rf"moetier: {point}/pool has [\d.]+ MB free", ret=2)
        assert not (point / "pool").exists()
    finally:
        subprocess.run(["umount", str(point)], check=True)
