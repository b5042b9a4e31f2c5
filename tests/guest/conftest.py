"""What the tests of virtual machines share: a kernel of Debian that can be booted here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_moetier.host.kernels import Kernel

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "host"))
from images import bootable_kernel


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """A kernel of Debian, and all that boots it; skips where one of these cannot be had."""
    return bootable_kernel(tmp_path_factory)
