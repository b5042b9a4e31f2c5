"""What the pool tests share: a small shape, and which images this host can have."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from pytest_moetier.errors import UnsupportedHostError
from pytest_moetier.host import blockdev, loopdev
from pytest_moetier.pool.profiles import Shape, resolve_shape
from pytest_moetier.pool.synthetic import choose_store

sys.path.insert(0, str(Path(__file__).parent))  # models in the formats of real ones (real_models.py)


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


@pytest.fixture
def needs_xfs() -> None:
    """Skip where there can be no XFS image."""
    try:
        choose_store("image", "xfs")
    except UnsupportedHostError as error:
        pytest.skip(str(error))
