"""Documents of ``--moetier-json``, read back: what reports are made of. A file that is none is refused by its name.

Their form is published as a JSON Schema (``schemas/results-1.json``). A report's own ``results.json`` holds several.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from pytest_moetier.errors import InputError
from pytest_moetier.finding import Metric
from pytest_moetier.history.sessions import SCHEMA_VERSION
from pytest_moetier.panels import Drift, Panel, Series
from pytest_moetier.words import words_of

VERDICTS = ("supported", "refuted", "not_examined", "invalid")
_MEASURE = "pytest bench/ --moetier-json FILE"
_AT_SCALE = " at this scale"


@dataclass(frozen=True, slots=True)
class Judged:
    """One bound that a result was held against.

    Attributes:
        id: of the bound.
        name: of the value; "" where an older version wrote it.
        seen: the value, None where there was none.
        expected: the bound, in words.
        source: who says so.
        verdict: on this bound alone.
        reason: why it could not be judged, or what is to be said with it.
    """

    id: str
    name: str
    seen: float | None
    expected: str
    source: str
    verdict: str
    reason: str


class _Line(Protocol):
    """A line of a proof, read back or not."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def state(self) -> str:
        """What became of it."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a proof: its name, ``held``, ``broken``, ``unobserved`` or ``flagged``, and why."""

    name: str
    state: str
    expected: str
    observed: str


def worst_states(proofs: Iterable[Iterable[_Line]]) -> dict[str, str]:
    """Return the worst state of each line of proofs, one a round, by name."""
    order = ("broken", "flagged", "unobserved", "held")
    found: dict[str, str] = {}
    for line in (line for proof in proofs for line in proof):
        found[line.name] = min(found.get(line.name, "held"), line.state, key=order.index)
    return found


def proof_words(proofs: Sequence[Iterable[_Line]]) -> str:
    """Return what proofs, one a round, came to; "" for none."""
    counts = Counter(worst_states(proofs).values())
    if not counts:
        return ""
    told = ", ".join(f"{counts[one]} {one}" for one in ("held", "flagged", "unobserved", "broken") if counts[one])
    rounds = f"{len(proofs)} round{'s' * (len(proofs) > 1)}"
    return f"{'not proved' if counts['broken'] else 'proved'} in {rounds}: {told}"


@dataclass(frozen=True, slots=True)
class Result:
    """One test of a finding.

    Attributes:
        finding: its finding.
        test: its name, with its parameters.
        cell: the id of its cell, of its trace or of their group; "" for a finding over several cells.
        verdict: one of ``VERDICTS``.
        scale: of the machine, in words, where it was a virtual one; else "".
        reason: why, with the values.
        judged: the bounds.
        metrics: by name; empty where the run was not proved.
        given: what its cell was given to know, in words.
        proofs: one a round.
        words: what its cell varies, by name; empty for traces, and for findings over several cells.
        kernel: the release of its virtual machine's kernel, or its label where none was booted; "" for the host's.
        guest: the virtual machine; empty for the host itself, and for findings over several cells.
        traces: the accounting of each trace that it rests on; empty for cells.
        constants: of the machine that it rests on, each with its source; empty for cells and traces.
        synthetic: what of it was generated: ``trace``, ``pool``.
    """

    finding: str
    test: str
    cell: str
    verdict: str
    scale: str
    reason: str
    judged: tuple[Judged, ...]
    metrics: Mapping[str, Metric]
    given: tuple[str, ...]
    proofs: tuple[tuple[Line, ...], ...]
    words: Mapping[str, Any]
    kernel: str
    guest: Mapping[str, Any]
    traces: tuple[Mapping[str, Any], ...]
    constants: tuple[Mapping[str, Any], ...]
    synthetic: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The verdict in words: one of a virtual machine is one at its scale."""
        return self.verdict + (_AT_SCALE if self.scale and self.verdict in VERDICTS[:2] else "")

    @property
    def name(self) -> str:
        """The name of its test without parameters."""
        return self.test.partition("[")[0]

    @property
    def proof(self) -> str:
        """What its proofs came to, in words; "" for what has none."""
        return proof_words(self.proofs)


@dataclass(frozen=True, slots=True)
class Document:
    """One session's verdicts.

    Attributes:
        source: the file, "" for the session that is running.
        time: when it ended, ISO 8601; "" where an older version wrote it.
        version: of pytest-moetier, likewise.
        host: the facts of its host, by name.
        contexts: what cells rest on: pool, trace and the like.
        results: one a test.
        panels: hit rates by budget.
        drifts: a table off its domain.
        series: the generations of passes.
        notes: what was said of the session.
        content: the whole document, to be written again.
    """

    source: str
    time: str
    version: str
    host: Mapping[str, Any]
    contexts: Mapping[str, Mapping[str, Any]]
    results: tuple[Result, ...]
    panels: tuple[Panel, ...]
    drifts: tuple[Drift, ...]
    series: tuple[Series, ...]
    notes: tuple[str, ...]
    content: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the file: where it lies is nobody's business who reads a report."""
        return Path(self.source).name


def read_results(paths: Iterable[Path]) -> list[Document]:
    """Return the documents in these files, the oldest first; a file named twice counts once.

    Raises:
        InputError: one cannot be read, is cut off, is no document of ours, lacks something, or is of a newer version.
    """
    found: list[Document] = []
    for path in dict.fromkeys(one.resolve() for one in paths):
        content = _content(path)
        inner = content["documents"] if isinstance(content.get("documents"), list) else [content]
        found += [document_of(one, str(path)) for one in inner]
    return sorted(found, key=lambda one: one.time)


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a file of --moetier-json", _MEASURE) from error
    except json.JSONDecodeError as error:
        seen = "is empty" if not error.doc.strip() else f"is cut off or no JSON ({error.msg}, line {error.lineno})"
        raise InputError(f"{path} {seen}", "a whole file of --moetier-json", _MEASURE) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON of ours ({error})", "a file of --moetier-json", _MEASURE) from error
    if not isinstance(content, dict) or "schema_version" not in content:
        raise InputError(f"{path} is another tool's: it has no schema_version", "a file of --moetier-json", _MEASURE)
    return content


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def document_of(content: Mapping[str, Any], source: str) -> Document:
    """Return the document that JSON is.

    Args:
        content: as ``--moetier-json`` writes it.
        source: the file, for messages and reports.

    Raises:
        InputError: it is none, or of a newer version.
    """
    where = source or "this session"
    version = content.get("schema_version") if isinstance(content, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise InputError(
            f"{where} has schema_version {version}", f"at most {SCHEMA_VERSION}", "pip install -U pytest-moetier"
        )
    if version != SCHEMA_VERSION:
        raise InputError(f"{where} has schema_version {version!r}", f"{SCHEMA_VERSION}", _MEASURE)
    try:
        return _document(content, source)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"it lacks {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{where} is no document of verdicts: {why}", "what --moetier-json wrote", _MEASURE) from error


def _document(content: Mapping[str, Any], source: str) -> Document:
    contexts = {str(name): dict(one) for name, one in content["contexts"].items()}
    return Document(
        source=source,
        time=str(content.get("time", "")),
        version=str(content.get("version", "")),
        host=dict(content["host"]),
        contexts=contexts,
        results=tuple(_result(one, contexts, _releases(content["results"])) for one in content["results"]),
        panels=tuple(Panel.from_json(one) for one in content.get("hit_rates", ())),
        drifts=tuple(Drift.from_json(one) for one in content.get("off_domain", ())),
        series=tuple(Series.from_json(one) for one in content.get("audits", ())),
        notes=tuple(str(one) for one in content.get("notes", ())),
        content=content,
    )


def _releases(results: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the release of each kernel that was booted, by its label."""
    guests = (one["guest"] for one in results if one.get("guest"))
    return {str(guest["kernel"]): str(guest["release"]) for guest in guests}


def _kernel(one: Mapping[str, Any], releases: Mapping[str, str]) -> str:
    """Return the kernel of a result; a finding over several cells in virtual machines has its label in its test."""
    label = str((one.get("words") or {}).get("kernel", "host"))
    if one.get("scale") and label == "host":
        label = next(
            (each for each in releases if re.search(rf"[\[-]k{re.escape(each)}[\]-]", str(one["test"]))), "host"
        )
    return "" if label == "host" else releases.get(label, label)


def _result(one: Mapping[str, Any], contexts: Mapping[str, Mapping[str, Any]], releases: Mapping[str, str]) -> Result:
    verdict = str(one["verdict"]).removesuffix(_AT_SCALE)
    if verdict not in VERDICTS:
        raise ValueError(f"{one['test']} has the verdict {verdict!r}")
    words = dict(one["words"] or {} if "words" in one else words_of(str(one["cell"] or ""), str(one["finding"])))
    traces = tuple(dict(each) for each in one.get("accounting", ()))
    return Result(
        finding=str(one["finding"]),
        test=str(one["test"]),
        cell=str(one["cell"] or ""),
        verdict=verdict,
        scale=str((one.get("scale") or {}).get("words", "")),
        reason=str(one["reason"]),
        judged=tuple(_judged(each) for each in one["bounds"]),
        metrics={str(name): _metric(str(name), each) for name, each in one["metrics"].items()},
        given=tuple(str(each["words"]) for each in one["lists"]),
        proofs=tuple(tuple(Line(**each) for each in proof) for proof in one["proof"]),
        words=words,
        kernel=_kernel(one, releases),
        guest=dict(one.get("guest") or {}),
        traces=traces,
        constants=tuple(dict(each) for each in one.get("constants", ())),
        synthetic=_synthetic(one, words, contexts),
    )


def _synthetic(
    one: Mapping[str, Any], words: Mapping[str, Any], contexts: Mapping[str, Mapping[str, Any]]
) -> tuple[str, ...]:
    """Return what was generated; of a finding over several cells, whatever any cell of the session rests on was."""
    if "constants" in one:
        return ()
    if "engine" in one:
        return ("trace",) if one["engine"]["synthetic"] else ()
    if "synthetic" in one:
        return ("trace",) if one["synthetic"] else ()
    key = str(words.get("workload", ""))
    key += f"-k{words['kernel']}" if words.get("kernel", "host") != "host" else ""
    rests = [contexts[key]] if key in contexts else list(contexts.values())
    return tuple(kind for kind in ("trace", "pool") if any(each[f"synthetic_{kind}"] for each in rests))


def _judged(one: Mapping[str, Any]) -> Judged:
    seen = None if one["seen"] is None else _finite(f"the value of {one['id']}", one["seen"])
    about = str(one["expected"]), str(one["source"]), str(one["verdict"]), str(one.get("reason", "")).removeprefix(": ")
    return Judged(str(one["id"]), str(one.get("name", "")), seen, *about)


def _metric(name: str, one: Mapping[str, Any]) -> Metric:
    values = tuple(_finite(f"a value of {name}", value) for value in one["values"])
    if not values:
        raise ValueError(f"{name} has no value")
    return Metric(name, str(one["unit"]), str(one["better"]), values)


def _finite(what: str, value: Any) -> float:  # noqa: ANN401 - straight from JSON, checked here
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{what} is {value!r}, which is no finite number")
    return float(value)
