"""What the tests of the host need: recorded hosts, and what this host must have to be tested on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_moetier.host import cgroup, loopdev, procfs

sys.path.insert(0, str(Path(__file__).parent))
from trees import lay_out


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Return a function that reads procfs from the recorded host of that name for the rest of the test."""
    open_roots = []

    def use(name: str) -> Path:
        root = lay_out(name, tmp_path / name)
        context = procfs.rooted(root)
        context.__enter__()
        open_roots.append(context)
        return root

    yield use
    for context in reversed(open_roots):
        context.__exit__(None, None, None)


@pytest.fixture
def needs_scope() -> None:
    """Skip where no memory control group can be made."""
    support = cgroup.scope_support()
    if support.kind not in {"v1", "v2"}:
        pytest.skip(f"{support.reason}; {support.fix}")


@pytest.fixture
def needs_loop() -> None:
    """Skip where no loop device can be had."""
    if lacking := loopdev.loop_support():
        pytest.skip(lacking)


@pytest.fixture
def image(tmp_path: Path, needs_loop: None) -> Path:  # noqa: ARG001
    """Return a small ext4 image with nothing in it."""
    path = tmp_path / "pool.img"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "4096", str(path)], check=True)
    return path
