"""A stored session with a capacity curve, as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_moetier.cell import Cell
from pytest_moetier.history.store import cell_json
from pytest_moetier.host.probe import host_facts
from pytest_moetier.units import Capacity


def written(path: Path, curve: dict[str, list[float]], **more: Any) -> str:
    """Write what `--moetier-json` of a session with these capacities would have, and return its path."""
    context = {
        "pool_id": "p",
        "plan_crc": "c",
        "iterations": 9,
        "threads": 2,
        "pool_bytes": 10**9,
        "workload": "single",
    }
    context |= {"kernel": "host", "synthetic_trace": True, "synthetic_pool": True, "compute_seconds": 0.0}
    results = []
    for capacity, seconds in curve.items():
        cell = Cell("capacity", Capacity.parse(capacity))
        metrics = {
            "seconds_per_iteration": {"unit": "s/iteration", "better": "lower", "values": seconds},
            "device_bytes": {"unit": "B/iteration", "better": "lower", "values": [one * 1e6 for one in seconds]},
        }
        common = {"finding": "capacity", "test": "test_capacity", "verdict": "supported", "reason": "", "lists": []}
        results.append({**common, "cell": cell.id, "words": cell_json(cell), "metrics": metrics})
    document = {
        "schema_version": 1,
        "time": "2026-11-30T12:00:00+00:00",
        "host": {"fingerprint": host_facts().fingerprint(), "release": "6.12"},
        "contexts": {"single": context},
        "results": results,
        **more,
    }
    path.write_text(json.dumps(document))
    return str(path)
