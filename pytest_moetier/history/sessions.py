"""Reading what is stored: files of pytest-benchmark's storage and of ``--moetier-json`` are sessions alike.

A file of another tool, a truncated one and one of a newer schema are refused by name; older schemas are migrated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_moetier.cell import HOST, WORKLOADS, Cell
from pytest_moetier.errors import InputError
from pytest_moetier.finding import Metric
from pytest_moetier.words import words_of

STORED_VERSION = 2
"""Of ``extra_info["moetier"]``: 2 names the host and the profile."""
SCHEMA_VERSION = 1
"""Of what ``--moetier-json`` writes."""
BETTER = ("lower", "higher", "neither")

_WORDS = {one.name: one.default for one in fields(Cell) if one.default is not MISSING}
"""What a cell varied before it was stored that it did."""
_CONTEXT = {"workload": WORKLOADS[0], "compute_seconds": 0.0, "kernel": HOST}
_SHAPES = "a storage file of pytest-benchmark, or one of --moetier-json"
_NEXT = "moetier history list"
_NUMBERED = re.compile(r"(\d{4,})_.*\.json")


@dataclass(frozen=True, slots=True)
class StoredCell:
    """One measured cell, or one studied trace.

    Attributes:
        id: of the cell, with ``-kLABEL`` for a guest's; or of the trace's subject.
        words: what the cell varies, by name; the finding and the domain of a trace.
        metrics: by name.
        context: what they rest on: pool, plan, trace, iterations and the like; for a trace its accounting.
        guest: the virtual machine, None for a host.
        traced: whether it is a trace.
    """

    id: str
    words: Mapping[str, Any]
    metrics: Mapping[str, Metric]
    context: Mapping[str, Any]
    guest: Mapping[str, Any] | None
    traced: bool

    @property
    def base(self) -> str:
        """The id without the kernel."""
        label = str(self.words.get("kernel", HOST))
        return self.id if label == HOST else self.id.removesuffix(f"-k{label}")


@dataclass(frozen=True, slots=True)
class StoredSession:
    """One session as it was stored.

    Attributes:
        path: its file.
        number: of a storage file, ``0007``; "" of any other.
        time: when it ended.
        host: id of the host; its node name where an older file does not say.
        release: of the host's kernel.
        commit: id of the commit, "" where unknown, as a file of ``--moetier-json`` does not say it.
        cells: by id.
        unproved: (verdict, reason) of the cells without metrics, by id; a storage file has none.
        remarks: what was left out of it, and why.
        others: results of other tests in the same file.
    """

    path: Path
    number: str
    time: datetime
    host: str
    release: str
    commit: str
    cells: Mapping[str, StoredCell]
    unproved: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    others: int = 0

    @property
    def name(self) -> str:
        """What messages call it: its number, or its file."""
        return self.number or self.path.name

    def release_of(self, cell: StoredCell) -> str:
        """Return the release of the kernel that a cell was measured on."""
        return self.release if cell.guest is None else str(cell.guest.get("release", ""))


def default_storage() -> Path:
    """Return where pytest-benchmark stores unless it is told otherwise."""
    return Path(".benchmarks")


def storage_files(folder: Path) -> list[Path]:
    """Return every file below a storage folder that may be a session, by name."""
    return sorted((one for one in folder.rglob("*.json") if one.is_file()), key=lambda one: (one.name, one.parent))


def read_sessions(paths: Iterable[Path]) -> tuple[list[StoredSession], list[str]]:
    """Return the sessions, oldest first, and a line (``name: reason``) for each file or part that was left out.

    Where a clock went backwards, the numbers of a storage decide.
    """
    found, skipped = [], []
    for path in paths:
        try:
            session = read_session(path)
        except InputError as error:
            skipped.append(f"{path.name}: {error.seen.removeprefix(f'{path}: ')}")
        else:
            found.append(session)
            skipped += [f"{path.name}: {one}" for one in session.remarks]
    return _in_order(found, skipped), skipped


def _in_order(found: Sequence[StoredSession], said: list[str]) -> list[StoredSession]:
    """Return sessions by time, those of one storage folder by their numbers."""
    keys: list[tuple[datetime, str, int]] = []
    latest: dict[Path, StoredSession] = {}
    order = sorted(found, key=lambda one: (not one.number, one.number.zfill(9), one.path))
    for place, one in enumerate(order):
        before = latest.get(one.path.parent) if one.number else None
        time = one.time
        if before is not None and before.time > one.time:
            time = before.time
            said.append(f"{one.path.name}: dated before {before.path.name}, the clock went back; its number decides")
        elif one.number:
            latest[one.path.parent] = one
        keys.append((time, one.number.zfill(9), place))
    return [order[place] for *_, place in sorted(keys)]


def read_session(path: Path) -> StoredSession:
    """Return what a file has of ours.

    Raises:
        InputError: it cannot be read, is truncated, another tool's or of a newer schema, or has no metrics of ours.
    """
    try:
        data = json.loads(path.read_bytes())
        if not isinstance(data, dict) or not {"benchmarks", "results"} & set(data):
            raise InputError(f"{path}: of another tool", _SHAPES, _NEXT)
        found = (_from_storage if "benchmarks" in data else _from_document)(path, data)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", _SHAPES, _NEXT) from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: cut off, or no JSON: {error}", _SHAPES, _NEXT) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: damaged, or of another tool: {error!r}", _SHAPES, _NEXT) from error
    if not found.cells and not found.unproved:
        why = f": {found.remarks[0]}" if found.remarks else ""
        raise InputError(f"{path}: no metrics of ours{why}", _SHAPES, _NEXT)
    return found


def _known_version(path: Path, version: object, newest: int) -> int:
    if not isinstance(version, int) or version < 1:
        raise ValueError(f"schema_version {version!r}")
    if version > newest:
        raise InputError(
            f"{path}: schema_version {version}",
            f"{newest} or older",
            "a newer pytest-moetier wrote it: install that one to read it",
        )
    return version


def _from_storage(path: Path, data: Mapping[str, Any]) -> StoredSession:
    cells: dict[str, StoredCell] = {}
    remarks: list[str] = []
    machine = data.get("machine_info") or {}
    host: dict[str, Any] = {}
    others = 0
    for benchmark in data["benchmarks"]:
        extra = benchmark.get("extra_info") if isinstance(benchmark, dict) else None
        info = extra.get("moetier") if isinstance(extra, dict) else None
        if not isinstance(info, dict):
            others += 1
            continue
        name = str(benchmark.get("name"))
        try:
            info = _migrated(info, _known_version(path, info.get("schema_version"), STORED_VERSION))
            cell = cell_of(info, remarks)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            remarks.append(f"{name}: damaged: {error!r}")
        else:
            cells[cell.id] = cell
            host = host or info["host"] or {}
    number = _NUMBERED.fullmatch(path.name)
    return StoredSession(
        path=path,
        number=number[1] if number else "",
        time=_time(data["datetime"]),
        host=str(host.get("fingerprint") or machine.get("node", "")),
        release=str(host.get("release") or machine.get("release", "")),
        commit=str((data.get("commit_info") or {}).get("id") or "").replace("unversioned", ""),
        cells=cells,
        remarks=tuple(remarks),
        others=others,
    )


def _migrated(info: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Return what a cell stored in the newest schema; an older one did not say the host and the profile."""
    newer: dict[str, Any] = {"host": None, "profile": None} if version < 2 else {}
    return {"lists": [], **newer, **info}


def cell_of(info: Mapping[str, Any], remarks: list[str]) -> StoredCell:
    """Return a stored cell of the newest schema."""
    words = dict(info["cell"])
    traced, guest = "domain" in words, words.pop("guest", None)
    context = dict(info["context"])
    if not traced:
        words = {**_WORDS, **words}
        context = {**_CONTEXT, **context, "lists": [str(one["words"]) for one in info["lists"]]}
        context["profile"] = info["profile"]
        _need_context(words, context, guest)
    cell_id = str(words["id"])
    return StoredCell(cell_id, words, _metrics(cell_id, info["metrics"], remarks), context, guest, traced)


def _need_context(words: Mapping[str, Any], context: Mapping[str, Any], guest: Mapping[str, Any] | None) -> None:
    """Refuse a cell of which it is unknown what it rests on: that would be equal to all else that is unknown."""
    if "pool_id" not in context or (guest is None) != (words["kernel"] == HOST):
        raise ValueError("neither pool nor machine is known")


def _metrics(cell: str, found: Mapping[str, Any], remarks: list[str]) -> dict[str, Metric]:
    metrics = {}
    for name, one in found.items():
        values = one["values"]
        plain = all(isinstance(value, int | float) and math.isfinite(value) for value in values)
        if not values or not plain or one["better"] not in BETTER:
            remarks.append(f"{cell}: {name} left out: {one['better']}, values {values}")
            continue
        metrics[str(name)] = Metric(str(name), str(one["unit"]), one["better"], tuple(map(float, values)))
    return metrics


def _from_document(path: Path, data: Mapping[str, Any]) -> StoredSession:
    _known_version(path, data["schema_version"], SCHEMA_VERSION)
    contexts = {
        (one.get("workload", WORKLOADS[0]), one.get("kernel", HOST)): one
        for one in (data.get("contexts") or {}).values()
    }
    cells: dict[str, StoredCell] = {}
    unproved: dict[str, tuple[str, str]] = {}
    remarks: list[str] = []
    for result in data["results"]:
        name = result["cell"]
        if not name or _over(result) or {"constants", "engine"} & set(result):  # no cell
            continue
        if not result["metrics"]:
            unproved.setdefault(str(name), (str(result["verdict"]), str(result["reason"]).partition("\n")[0]))
        elif name not in cells or result.get("accounting"):
            try:
                cell = _of_result(result, contexts, data.get("profile"), remarks)
            except ValueError as error:
                remarks.append(f"{name}: {error}")
            else:  # several tests speak of one trace, each with its own statistics
                known = cells[cell.id].metrics if cell.id in cells else {}
                metrics = {**known, **cell.metrics}
                cells[cell.id] = StoredCell(cell.id, cell.words, metrics, cell.context, cell.guest, cell.traced)
    host = data.get("host") or {}
    time = data.get("time")
    return StoredSession(
        path=path,
        number="",
        time=_time(time) if time else datetime.fromtimestamp(path.stat().st_mtime, UTC),
        host=str(host.get("fingerprint", "")),
        release=str(host.get("release", "")),
        commit="",
        cells=cells,
        unproved={name: why for name, why in unproved.items() if name not in cells},
        remarks=tuple(remarks),
    )


def _over(result: Mapping[str, Any]) -> bool:
    """Whether a result is of a finding over several traces: it has none of its own to be compared."""
    accounting = result.get("accounting")
    return accounting is not None and [one.get("subject") for one in accounting] != [result["cell"]]


def _of_result(
    result: Mapping[str, Any], contexts: Mapping[tuple[str, str], Any], profile: str | None, remarks: list[str]
) -> StoredCell:
    name = str(result["cell"])
    verdict = {"verdict": str(result["verdict"])}
    if accounting := result.get("accounting"):
        words = {"id": name, "finding": result["finding"], "domain": accounting[0].get("domain", ""), **verdict}
        metrics = _metrics(name, result["metrics"], remarks)
        return StoredCell(name, words, metrics, dict(accounting[0]), None, traced=True)
    guest = result.get("guest")
    words = {**_WORDS, **(result.get("words") or words_of(name, str(result.get("finding", "")))), **verdict, "id": name}
    words = {"finding": result.get("finding", ""), **words}
    context = contexts.get((words["workload"], words["kernel"]))
    info = {
        "cell": {**words, "guest": guest},
        "context": context or {},
        "lists": result.get("lists") or [],
        "metrics": result["metrics"],
        "profile": profile,
    }
    return cell_of(info, remarks)


def _time(text: str) -> datetime:
    """Return a time that is aware of its zone: UTC where none is written."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)
