"""A pool whose folders lie on several devices: each is counted once, and their bytes are summed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moetier.plan import cold_plan, write_plan
from pytest_moetier.pool.opened import open_pool
from pytest_moetier.pool.profiles import resolve_shape
from pytest_moetier.pool.synthetic import create_pool
from pytest_moetier.replay import Rig, measure_cold_factor


@pytest.fixture
def split_pool(rig: Rig, tmp_path: Path) -> Iterator[Path]:
    """A pool of plain files whose second layer is a file system of its own, on a loop device."""
    del rig  # skips where nothing can be measured
    pool, image = tmp_path / "pool", tmp_path / "second.img"
    shape = resolve_shape("custom", layers=2, experts=32, k=4, expert_bytes="256KiB")
    create_pool(pool, shape, store="plain")
    layer = sorted(one for one in (pool / "experts").iterdir() if one.is_dir())[1]
    with image.open("wb") as file:
        file.truncate(32 << 20)
    mkfs = shutil.which("mkfs.ext4", path="/usr/sbin:/sbin:/usr/bin")
    assert mkfs is not None
    subprocess.run([mkfs, "-q", "-F", str(image)], check=True)
    kept = tmp_path / "kept"
    layer.rename(kept)
    layer.mkdir()
    if subprocess.run(["mount", "-o", "loop", str(image), str(layer)], check=False).returncode:
        pytest.skip("this host does not mount a loop device")
    try:
        for one in kept.iterdir():
            shutil.copy(one, layer / one.name)
        yield pool
    finally:
        subprocess.run(["umount", str(layer)], check=True)


def test_each_device_of_a_pool_is_counted_once_and_their_bytes_are_summed(
    rig: Rig, split_pool: Path, tmp_path: Path
) -> None:
    with open_pool(split_pool, rig.host.journal) as pool:
        names = [device.name for device in pool.devices]
        assert len(names) == len(set(names)) == 2
        assert any(name.startswith("loop") for name in names)
        plan = cold_plan(pool.manifest, 64, seed=0)
        write_plan(plan, tmp_path / "all.plan")
        factor = measure_cold_factor(replace(rig, pool=pool, plan=plan), "direct", tmp_path)
    # All of it was read from one or the other; a single device would have shown half.
    assert factor is not None
    assert factor >= 1.0
