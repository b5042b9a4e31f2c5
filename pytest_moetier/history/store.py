"""What goes into pytest-benchmark's files, which stay readable by its tools.

It stores wall times as its own statistics, and our metrics in ``extra_info["moetier"]``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.storage.file import FileStorage

from pytest_moetier.campaign import CellResult, Context
from pytest_moetier.cell import Cell
from pytest_moetier.errors import HarnessError
from pytest_moetier.finding import Metric, guest_of
from pytest_moetier.history.baselines import locked
from pytest_moetier.history.sessions import STORED_VERSION, default_storage
from pytest_moetier.host.machine import GuestFacts
from pytest_moetier.host.probe import host_facts
from pytest_moetier.proof import Proof
from pytest_moetier.replay import ListFile


def extra_info(
    cell: Cell, metrics: Mapping[str, Metric], result: CellResult, context: Context | None, profile: str = ""
) -> dict[str, Any]:
    """Return ``extra_info["moetier"]`` of one proved cell: plain JSON types only; ``profile`` names the session's.

    Raises:
        HarnessError: a value is not finite, or not a plain number.
    """
    words = {**cell_json(cell), "guest": guest_json(guests_of(result))}
    return _info(
        words,
        asdict(context) if context else None,
        metrics,
        [run.proof for run in result.runs],
        profile=profile,
        lists=[list_json(one) for one in result.lists],
        rounds=[{"round": run.run.round, "order": run.run.order} for run in result.runs],
    )


def trace_info(finding: str, accounting: Mapping[str, Any], metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """Return ``extra_info["moetier"]`` of one studied trace: plain JSON types only.

    Raises:
        HarnessError: a value is not finite, or not a plain number.
    """
    words = {"id": accounting["subject"], "finding": finding, "domain": accounting["domain"]}
    return _info(words, dict(accounting), metrics)


def engine_info(
    finding: str, name: str, facts: Mapping[str, Any], metrics: Mapping[str, Metric], proofs: Sequence[Proof]
) -> dict[str, Any]:
    """Return ``extra_info["moetier"]`` of one arm of an engine, or what was measured beside it: plain JSON types only.

    Raises:
        HarnessError: a value is not finite, or not a plain number.
    """
    words = {"id": name, "finding": finding, "domain": str(facts.get("model", ""))}
    return _info(words, dict(facts), metrics, proofs)


def _info(
    words: Mapping[str, Any],
    context: Mapping[str, Any] | None,
    metrics: Mapping[str, Metric],
    proofs: Iterable[Proof] = (),
    **more: Any,  # noqa: ANN401 - plain JSON types
) -> dict[str, Any]:
    """Return what is stored of one result, validated; ``more`` replaces or adds fields."""
    info = {
        "schema_version": STORED_VERSION,
        "host": _host(),
        "profile": "",
        "cell": words,
        "context": context,
        "metrics": {name: metric_json(metric) for name, metric in metrics.items()},
        "proof": [proof_json(one) for one in proofs],
        "rounds": [],
        **more,
    }
    validate(info)
    return info


@cache
def _host() -> dict[str, str]:
    facts = host_facts()
    return {"fingerprint": facts.fingerprint(), "release": facts.release}


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


def storage_folder(config: pytest.Config) -> Path:
    """Return where this session would be stored, and stored ones are looked for."""
    storage = getattr(getattr(config, "_benchmarksession", None), "storage", None)
    return storage.path if isinstance(storage, FileStorage) else default_storage()


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


def save_one_at_a_time(config: pytest.Config) -> None:
    """Let pytest-benchmark store this session while no other of ours does: both would take the same number."""
    storage = getattr(getattr(config, "_benchmarksession", None), "storage", None)
    if isinstance(storage, FileStorage):
        save: Callable[..., None] = storage.save

        def locked_save(*content: object) -> None:
            with locked(storage.path, exclusive=True):
                save(*content)

        storage.save = locked_save  # type: ignore[method-assign]  # its own way to choose a number stays
