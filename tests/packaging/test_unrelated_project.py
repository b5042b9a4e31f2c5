"""With the plugin installed, a project that does not use it pays for option parsing alone."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

HEAVY = {"numpy", "yaml", "rich", "psutil", "orjson", "matplotlib", "pytest_moetier._sim", "pytest_moetier._trace"}

CONFTEST = """
import json, sys

def pytest_unconfigure(config):
    with open("modules.json", "w") as out:
        json.dump(sorted(sys.modules), out)
"""


def modules_after_collecting(project: Path, *options: str) -> set[str]:
    """Return what is imported when an unrelated project's tests have been collected."""
    (project / "conftest.py").write_text(CONFTEST)
    (project / "test_theirs.py").write_text("def test_theirs():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_theirs.py::test_theirs" in done.stdout
    return set(json.loads((project / "modules.json").read_text()))


def test_collecting_an_unrelated_project_imports_nothing_heavy_because_of_us(tmp_path: Path) -> None:
    ours = modules_after_collecting(tmp_path)
    others = modules_after_collecting(tmp_path, "-p", "no:moetier")
    assert "pytest_moetier.plugin" in ours
    assert "pytest_moetier.plugin" not in others
    assert not {name for name in ours - others if name in HEAVY or name.split(".")[0] in HEAVY}


def test_the_distribution_has_one_plugin_and_one_command() -> None:
    points = importlib.metadata.distribution("pytest-moetier").entry_points
    assert sorted((p.group, p.name, p.value) for p in points) == [
        ("console_scripts", "moetier", "pytest_moetier.cli:main"),
        ("pytest11", "moetier", "pytest_moetier.plugin"),
    ]


def test_the_plugin_loads_without_pytest_benchmark(tmp_path: Path) -> None:
    imported = modules_after_collecting(tmp_path, "-p", "no:benchmark")
    assert "pytest_moetier.plugin" in imported
