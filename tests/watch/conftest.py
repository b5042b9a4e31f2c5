"""What the tests of the watch share: a planted host, and a real pool of small files with a trace over it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_moetier.host import procfs
from pytest_moetier.host.cgroup import ScopeFiles
from pytest_moetier.pool.profiles import resolve_shape
from pytest_moetier.pool.synthetic import create_pool
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace

sys.path.insert(0, str(Path(__file__).parent))
from planted import GROUP, Planted


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Planted]:
    """A planted host, read in place of this one for the length of the test."""
    host = Planted(tmp_path / "host")
    host.lay_out()
    with procfs.rooted(host.root):
        yield host


@pytest.fixture
def group() -> ScopeFiles:
    """The planted host's control group."""
    return ScopeFiles(2, GROUP)


@pytest.fixture(scope="session")
def files_pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain pool of 512 files of 256 KiB: 128 MiB."""
    path = tmp_path_factory.mktemp("watched") / "pool"
    shape = resolve_shape("custom", layers=4, experts=128, k=8, expert_bytes=str(256 << 10))
    create_pool(path, shape, store="plain")
    return path


@pytest.fixture(scope="session")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic trace over that pool."""
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    write_trace(synth_trace(layers=4, experts=128, k=8, iterations=40), path)
    return path


@pytest.fixture
def as_root() -> None:
    """Skip where this is not root."""
    if os.geteuid() != 0:
        pytest.skip(f"needs root: seen uid {os.geteuid()}")
