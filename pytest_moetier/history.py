"""The stored history: what goes into pytest-benchmark's files, and a session's metrics against the latest stored ones.

pytest-benchmark stores wall times and our metrics in ``extra_info["moetier"]``; it compares times only, so the metrics
are compared here, over its own files, which stay readable by its tools.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from pytest_moetier.campaign import CellResult, Context
from pytest_moetier.cell import Cell
from pytest_moetier.errors import HarnessError
from pytest_moetier.finding import Metric, guest_of
from pytest_moetier.host.machine import GuestFacts
from pytest_moetier.proof import Proof
from pytest_moetier.replay import ListFile

SCHEMA_VERSION = 1

_COMPARABLE = ("pool_id", "plan_crc", "iterations", "threads", "compute_seconds")
"""Two sessions are compared only when these, the lists that a cell was given and the machine agree."""
_NONE: dict[str, Any] = {"lists": [], "machine": None}
_BEFORE = {"compute_seconds": 0.0, **_NONE}
"""What a session stored before these were varied had."""
_COMPARABLE_TRACES = ("layers", "experts", "k", "iterations", "synthetic")
"""Likewise for the statistics of a trace, which are of interest just when its content is another."""


def extra_info(
    cell: Cell, metrics: Mapping[str, Metric], result: CellResult, context: Context | None
) -> dict[str, Any]:
    """Return ``extra_info["moetier"]`` of one proved cell: plain JSON types only.

    Raises:
        HarnessError: a value is not finite, or not a plain number.
    """
    info = {
        "schema_version": SCHEMA_VERSION,
        "cell": {**cell_json(cell), "guest": guest_json(guests_of(result))},
        "context": asdict(context) if context else None,
        "metrics": {name: metric_json(metric) for name, metric in metrics.items()},
        "lists": [list_json(one) for one in result.lists],
        "proof": [proof_json(run.proof) for run in result.runs],
        "rounds": [{"round": run.run.round, "order": run.run.order} for run in result.runs],
    }
    validate(info)
    return info


def trace_info(finding: str, accounting: Mapping[str, Any], metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """Return ``extra_info["moetier"]`` of one studied trace: plain JSON types only.

    Raises:
        HarnessError: a value is not finite, or not a plain number.
    """
    info = {
        "schema_version": SCHEMA_VERSION,
        "cell": {"id": accounting["subject"], "finding": finding, "domain": accounting["domain"]},
        "context": dict(accounting),
        "metrics": {name: metric_json(metric) for name, metric in metrics.items()},
        "proof": [],
        "rounds": [],
    }
    validate(info)
    return info


def cell_json(cell: Cell) -> dict[str, str | int]:
    """Return what a cell varies, as JSON."""
    return {
        "id": cell.id,
        "finding": cell.finding,
        "capacity": cell.capacity.text,
        "mechanism": cell.mechanism,
        "mglru": cell.mglru,
        "mode": cell.mode,
        "prefetch": cell.prefetch,
        "workload": cell.workload,
        "fill": cell.fill,
        "spine": cell.spine,
        "read_limit": cell.read_limit,
        "kernel": cell.kernel,
        "locked": cell.locked,
        "read_ahead_kb": cell.read_ahead_kb,
        "filesystem": cell.filesystem,
    }


def guests_of(result: CellResult) -> list[GuestFacts]:
    """Return the virtual machine of each proved run of a cell; empty for this host."""
    return [guest for run in result.runs if (guest := guest_of(run)) is not None]


def guest_json(guests: Sequence[GuestFacts]) -> dict[str, Any] | None:
    """Return what the virtual machines of a cell were, as JSON: one for each round, alike but for their start."""
    if not guests:
        return None
    first = guests[0]
    return {
        "kernel": first.kernel,
        "release": first.release,
        "accelerator": first.accelerator,
        "emulated": first.emulated,
        "why": first.why,
        "memory_bytes": first.memory_bytes,
        "cpus": first.cpus,
        "command_line": first.command_line,
        "boot_seconds": [one.boot_seconds for one in guests],
        "settings": dict(first.settings),
    }


def machine_of(guest: Mapping[str, Any] | None) -> list[Any] | None:
    """Return what two machines must agree in to be compared, of what ``guest_json`` returns; None for a host.

    Not the release: a cell of another kernel of the same name is what a comparison is for.
    """
    return None if guest is None else [guest[name] for name in ("accelerator", "memory_bytes", "cpus")]


def metric_json(metric: Metric) -> dict[str, Any]:
    """Return a metric as JSON."""
    return {"unit": metric.unit, "better": metric.better, "values": list(metric.values)}


def list_json(one: ListFile) -> dict[str, Any]:
    """Return what a table or advice is, as JSON: an oracle says so."""
    return {"words": one.words, "oracle": one.oracle, "recall": one.recall}


def proof_json(proof: Proof) -> list[dict[str, str]]:
    """Return a proof as JSON."""
    return [asdict(one) for one in proof.invariants]


def validate(value: Any, where: str = "moetier") -> None:  # noqa: ANN401 - any JSON value
    """Refuse what JSON cannot carry (NaN, infinities) and what pytest-benchmark would store as text (numpy scalars).

    Raises:
        HarnessError: names the place and the type.
    """
    match value:
        case dict():
            for key, one in value.items():
                validate(one, f"{where}.{key}")
        case list():
            for index, one in enumerate(value):
                validate(one, f"{where}[{index}]")
        case None:
            return
        case _ if type(value) not in {str, bool, int, float}:
            raise HarnessError(f"{where} is a {type(value).__name__}", "a plain JSON type")
        case float() if not math.isfinite(value):
            raise HarnessError(f"{where} is {value}", "a finite number")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of one cell against the stored session: medians in ``unit``; ratio is now / then."""

    cell: str
    metric: str
    unit: str
    then: float
    now: float

    @property
    def ratio(self) -> float:
        """Now / then."""
        return self.now / self.then if self.then else math.inf


def latest_stored(config: pytest.Config, *, traces: bool = False) -> tuple[str, Mapping[str, Any]] | None:
    """Return (file, cells by id) of the newest stored session that has metrics of ours, or None.

    Args:
        config: pytest's own.
        traces: whether statistics of traces are wanted, by the id of their subjects, instead of cells.
    """
    session = getattr(config, "_benchmarksession", None)
    if session is None:
        return None
    for path, data in reversed(list(session.storage.load())):
        cells = dict(found for one in data["benchmarks"] if (found := _stored_cell(one, traces=traces)) is not None)
        if cells:
            return str(path), cells
    return None


def _stored_cell(benchmark: Any, *, traces: bool) -> tuple[str, Mapping[str, Any]] | None:  # noqa: ANN401 - any JSON
    """Return (cell id, metrics and context) of a stored benchmark of ours; None for another tool's or a damaged one."""
    try:
        info = benchmark["extra_info"]["moetier"]
        if info["schema_version"] != SCHEMA_VERSION or ("domain" in info["cell"]) != traces:
            return None
        metrics = {
            str(name): {"values": [float(value) for value in one["values"]]} for name, one in info["metrics"].items()
        }
        lists = [str(one["words"]) for one in info.get("lists", ())]
        more = {"lists": lists, "machine": machine_of(info["cell"].get("guest"))}
        return str(info["cell"]["id"]), {"metrics": metrics, "context": {**(info["context"] or {}), **more}}
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def storage_problem(config: pytest.Config) -> str:
    """Return why pytest-benchmark could not store this session, though it was asked to; "" when it can.

    It finds out only after everything was measured, and then loses the report with an internal error.
    """
    session = getattr(config, "_benchmarksession", None)
    if session is None or not (session.save or session.autosave):
        return ""
    folder = getattr(session.storage, "path", None)
    if not isinstance(folder, Path):
        return ""
    machine = folder / (getattr(session.storage, "default_machine_id", None) or "")
    for one in (machine, folder):
        if one.exists() or one.is_symlink():
            return "" if one.is_dir() and os.access(one, os.W_OK | os.X_OK) else f"the benchmark history {one}"
    return f"the benchmark history {folder}"


def compare(
    stored: Mapping[str, Any],
    current: Mapping[str, Mapping[str, Metric]],
    contexts: Mapping[str, Context],
    given: Mapping[str, Mapping[str, Any]],
    names: Sequence[str],
) -> tuple[list[Comparison], list[str]]:
    """Return the comparisons of metrics ``names``, and a line with the reason for every cell that has none.

    Args:
        stored: cells of a stored session, by id.
        current: the metrics of this session's cells, by id.
        contexts: what they rest on.
        given: what else they were measured with: ``lists``, the words of tables and advice; ``machine``, of
            ``machine_of``. What is not named is none.
        names: the metrics to compare.
    """
    now = {
        one: {**{name: getattr(contexts[one], name) for name in _COMPARABLE}, **_NONE, **given.get(one, {})}
        for one in current
    }
    return _compared(stored, current, now, names)


def compare_traces(
    stored: Mapping[str, Any],
    current: Mapping[str, Mapping[str, Metric]],
    accounting: Mapping[str, Mapping[str, Any]],
    names: Sequence[str],
) -> tuple[list[Comparison], list[str]]:
    """Return what ``compare`` does, for the statistics of traces by subject and the accounting of each."""
    now = {one: {name: accounting[one][name] for name in _COMPARABLE_TRACES} for one in current}
    return _compared(stored, current, now, names)


def _compared(
    stored: Mapping[str, Any],
    current: Mapping[str, Mapping[str, Metric]],
    contexts: Mapping[str, Mapping[str, Any]],
    names: Sequence[str],
) -> tuple[list[Comparison], list[str]]:
    found, refused = [], []
    for cell_id, metrics in current.items():
        then = stored.get(cell_id)
        if then is None:
            refused.append(f"{cell_id}: not in the stored session")
            continue
        old = {**_BEFORE, **(then.get("context") or {})}
        apart = [name for name, value in contexts[cell_id].items() if old.get(name) != value]
        if apart:
            refused.append(f"{cell_id}: another {', '.join(apart)} in the stored session")
            continue
        for name in names:
            values = (then["metrics"].get(name) or {}).get("values")
            if name in metrics and values:
                metric = metrics[name]
                found.append(Comparison(cell_id, name, metric.unit, float(median(values)), metric.median))
    return found, refused
