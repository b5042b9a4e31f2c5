"""Sessions as they are stored: recorded ones with what a test changes of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

RECORDED = Path(__file__).parents[2] / "fixtures" / "history"
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Return an empty storage folder."""
    folder = tmp_path / ".benchmarks" / "Linux-CPython-3.11-64bit"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def store(storage: Path) -> Callable[..., Path]:
    """Return a call that stores a recorded session under a number: its cells' metrics times factors, and changed."""

    def call(number: int, recorded: int = 1, change: Change | None = None, **factors: float) -> Path:
        data = json.loads((RECORDED / f"{recorded:04}_recorded.json").read_text())
        data["datetime"] = f"2026-11-30T10:{number:02}:00+00:00"
        for benchmark in data["benchmarks"]:
            info = benchmark["extra_info"]["moetier"]
            for name, metric in info["metrics"].items():
                drift = 1 + number / 1e6 if name == "seconds_per_iteration" else 1.0  # no two sessions take the same
                metric["values"] = [value * factors.get(name, 1.0) * drift for value in metric["values"]]
            if change is not None:
                change(info)
        path = storage / f"{number:04}_recorded.json"
        path.write_text(json.dumps(data))
        return path

    return call
