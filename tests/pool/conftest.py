"""What the pool tests share: a small shape, and whether this host can have loop devices."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pytest_moetier.errors import UnsupportedHostError
from pytest_moetier.host import blockdev, loopdev
from pytest_moetier.pool.profiles import Shape, resolve_shape


@pytest.fixture
def shape() -> Shape:
    """Two layers of six experts of 32 KiB, k = 2: 393216 bytes."""
    return resolve_shape("custom", layers=2, experts=6, k=2, expert_bytes="32KiB")


@pytest.fixture
def device_folder(tmp_path: Path) -> Path:
    """A folder on a block device; the test is skipped where the temporary folder has none."""
    try:
        blockdev.devices_of(tmp_path)
    except UnsupportedHostError as error:
        pytest.skip(f"the temporary folder has no block device: {error.seen}")
    return tmp_path / "pool"


@pytest.fixture
def needs_loop() -> None:
    """Skip where there are no loop devices or no mkfs.ext4."""
    lacking = loopdev.loop_support() or ("" if shutil.which("mkfs.ext4") else "no mkfs.ext4")
    if lacking:
        pytest.skip(f"no pool image here: {lacking}")
