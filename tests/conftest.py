"""What tests of several areas share: a small real pool, and a bench of our own in a session of its own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_moetier.host.cgroup import scope_support
from pytest_moetier.host.loopdev import loop_support
from pytest_moetier.pool.profiles import resolve_shape
from pytest_moetier.pool.synthetic import create_pool

LAYERS, EXPERTS, EXPERT_BYTES, K = 2, 128, 256 << 10, 8

WAIT_SECONDS, LIMIT_SECONDS = 200, 300
"""How long a session of a test waits for another bench on this host, and how long it may take in all."""

BENCH = """
def test_capacity(moetier_cell):
    moetier_cell.measure()
    moetier_cell.judge()


def test_all(moetier_curve):
    moetier_curve.conclude({"cells": float(len(moetier_curve.results))}, [])
"""

BOUNDS = """
format: moetier-bounds/1
bounds:
  - {id: mine, value: device_bytes, min: 1, source: "anything is read", needs: []}
  - {id: cells, value: cells, min: 0, source: "any number", needs: []}
"""


@pytest.fixture(scope="session")
def small_pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stamped pool of 64 MiB on its own loop device; skips where this host cannot measure one."""
    if os.geteuid() != 0:
        pytest.skip(f"measuring needs root: seen uid {os.geteuid()}")
    if reason := loop_support():
        pytest.skip(reason)
    if not scope_support().available:
        pytest.skip(scope_support().reason)
    path = tmp_path_factory.mktemp("pool") / "small"
    shape = resolve_shape("custom", layers=LAYERS, experts=EXPERTS, k=K, expert_bytes=str(EXPERT_BYTES))
    create_pool(path, shape, store="image")
    return path


@pytest.fixture(scope="session")
def spoiled_pool(small_pool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the small pool in which one page of every expert carries another expert's stamp."""
    path = tmp_path_factory.mktemp("spoiled") / "small"
    shutil.copytree(small_pool, path)
    image = path / "pool.img"
    data = bytearray(image.read_bytes())
    at = data.find(b"MOEPAGE1")
    while at >= 0:
        if int.from_bytes(data[at + 24 : at + 32], "little") == 3:
            data[at + 20 : at + 24] = (12345).to_bytes(4, "little")
        at = data.find(b"MOEPAGE1", at + 4096)
    image.write_bytes(bytes(data))
    return path


@pytest.fixture
def bench(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Write a bench with its bounds; return a call that runs it in a process of its own."""

    def write(source: str = BENCH, bounds: str = BOUNDS) -> None:
        pytester.makepyfile(test_capacity=source)
        pytester.path.joinpath("bounds.yaml").write_text(bounds)

    def run(*args: str) -> pytest.RunResult:
        options = ("-p", "no:cacheprovider", f"--moetier-wait={WAIT_SECONDS}", *args)
        return pytester.runpytest_subprocess(*options, timeout=LIMIT_SECONDS)

    write()
    run.write = write  # type: ignore[attr-defined]
    return run


@pytest.fixture
def verdicts(pytester: pytest.Pytester) -> Callable[[], dict[str, dict]]:
    """Return a call that reads ``verdicts.json`` of the last run, by test name."""

    def read() -> dict[str, dict]:
        document = json.loads(pytester.path.joinpath("verdicts.json").read_text())
        assert document["schema_version"] == 1
        return {one["test"]: one for one in document["results"]}

    return read
