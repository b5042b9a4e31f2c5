"""Elsewhere than on Linux the trace and simulation parts work, and what needs a kernel of Linux's says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

AS_DARWIN = """
import argparse, asyncio, ctypes, ctypes.util, multiprocessing, os, platform, subprocess, sys, sysconfig, tempfile
import urllib.request
import numpy, orjson, psutil, pytest, rich.console, rich.progress, rich.table, yaml
import pytest_benchmark.plugin, cpuinfo
sysconfig.get_config_vars()
sys.platform = "darwin"
platform.system = lambda: "Darwin"
for name in dir(os):
    linux = ("sched_", "posix_f", "memfd", "pidfd", "eventfd", "timerfd", "copy_file_range", "splice", "setns")
    if name.startswith(linux) or name in {"O_PATH", "O_DIRECT", "unshare", "getrandom", "preadv", "pwritev"}:
        delattr(os, name)
"""
EVERYTHING = """
import importlib, pkgutil
import pytest_moetier
# An editable install puts the checkout on the package's path too, where the package shows up a second time.
own = os.path.dirname(pytest_moetier.__file__)
for module in pkgutil.walk_packages([own], "pytest_moetier."):
    if not module.name.endswith(("_sim", "_trace")) and ".bench" not in module.name:
        importlib.import_module(module.name)
print("all imported")
"""
SIMULATION = """
from pytest_moetier.plan import build_plan
from pytest_moetier.pool.profiles import resolve_shape
from pytest_moetier.pool.synthetic import plan_manifest
from pytest_moetier.simulate import lru_curve
from pytest_moetier.trace.synth import synth_trace
shape = resolve_shape("custom", layers=2, experts=8, k=2, expert_bytes="4KiB")
manifest = plan_manifest(shape, layout="one_file", store="plain", seed=0)
plan = build_plan(synth_trace("kimi-k3", layers=2, experts=8, k=2, iterations=50, seed=1), manifest)
print("misses", lru_curve(plan).miss_bytes(manifest.total_bytes), lru_curve(plan).miss_bytes(8192) > 0)
"""


@pytest.fixture
def darwin(host: Any) -> Any:
    """Return a call that runs Python code where the platform looks like macOS."""
    return lambda code: host.start([sys.executable, "-c", AS_DARWIN + code]).finish()


def command(*words: str) -> str:
    return f"from pytest_moetier.cli import main\nraise SystemExit(main({list(words)!r}))"


def test_every_module_can_be_imported(darwin: Any) -> None:
    ended = darwin(EVERYTHING)
    assert ended.ret == 0, ended.text
    assert "all imported" in ended.text


def test_traces_and_simulation_work(darwin: Any, host: Any) -> None:
    ended = darwin(command("trace", "synth", "kimi-k3", "a.jsonl", "--layers", "2", "--iterations", "5"))
    assert ended.ret == 0, ended.text
    ended = darwin(command("trace", "info", "a.jsonl", "--json"))
    assert ended.ret == 0, ended.text
    assert json.loads((host.folder / "log-1").read_text())["iterations"] == 5
    ended = darwin(SIMULATION)
    assert ended.ret == 0, ended.text
    assert "misses 0.0 True" in ended.text


def test_the_doctor_says_what_cannot_be_measured_there(darwin: Any) -> None:
    ended = darwin(command("doctor"))
    assert ended.ret == 0, ended.text
    assert "Linux" in ended.text


def test_a_pool_cannot_be_measured_and_cells_skip_with_the_reason(darwin: Any, host: Any, plain_pool: Path) -> None:
    argv = host.pytest_argv(plain_pool, "--moetier-mechanism=cgroup,balloon,memboot")[3:]
    ended = darwin(f"import pytest\nraise SystemExit(pytest.main({argv!r}))")
    assert "3 skipped" in ended.text, ended.text
    assert ended.ret == 0
    ended.refused("moetier-balloon is for Linux alone, and this is darwin", ret=0)
