"""The document of ``--moetier-json``: every verdict of a session with its bounds, metrics and proofs, in JSON's types.

It has all that a report shows, the numbers of its figures included: ``moetier report`` makes the same of the file as
``--moetier-report`` does of the session. ``documents`` reads it back, ``schemas/results-1.json`` says what is in it.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pytest_moetier import __version__
from pytest_moetier.campaign import CellResult
from pytest_moetier.cell import HOST
from pytest_moetier.documents import proof_words
from pytest_moetier.errors import InputError, MoetierError
from pytest_moetier.finding import Judgement
from pytest_moetier.history.sessions import SCHEMA_VERSION
from pytest_moetier.history.store import cell_json, guest_json, guests_of, list_json, metric_json, proof_json
from pytest_moetier.host.probe import host_facts
from pytest_moetier.panels import Source, drift, panels, series_json
from pytest_moetier.routing import Study, Subject
from pytest_moetier.settings import subjects_for
from pytest_moetier.verdicts import MoetierSession, Record

if TYPE_CHECKING:
    from pytest_moetier.trace.records import Trace

_SERIES = {"moments", "device_bytes", "logical_bytes", "nominal_bytes"}
_MAIN = (
    "seconds_per_iteration",
    "device_bytes",
    "nominal_bytes",
    "amplification",
    "demand_served",
    "observed_capacity_bytes",
)
"""The metrics of a cell that its test's report has: all are in the document."""
_OFF_DOMAIN = "test_off_domain"


def document(session: MoetierSession) -> Mapping[str, Any]:
    """Return the document of a session, as JSON reads it back; it is made once, when the session is over."""
    import orjson  # noqa: PLC0415

    if session.document is None:
        session.document = orjson.loads(orjson.dumps(_document(session)))
    return session.document


def _document(session: MoetierSession) -> dict[str, Any]:
    contexts = session.campaign.contexts.items()
    return {
        "schema_version": SCHEMA_VERSION,
        "version": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": host_facts().as_json(),
        "profile": session.profile.name if session.profile else "",
        "context": asdict(session.campaign.context) if session.campaign.context else None,
        "contexts": {word if kernel == HOST else f"{word}-k{kernel}": asdict(one) for (word, kernel), one in contexts},
        "notes": list(session.campaign.notes),
        "results": [_result(record, session) for record in session.records.values()],
        **_of_traces(session),
        "audits": _audits(session),
    }


def _result(record: Record, session: MoetierSession) -> dict[str, Any]:
    measured = session.campaign.results.get(record.cell or "")
    guest = guest_json(guests_of(measured)) if measured is not None else None
    proved = record.verdict != "invalid"
    traced = {"synthetic": any(one["synthetic"] for one in record.accounting), "accounting": list(record.accounting)}
    return {
        "finding": record.finding,
        "test": record.test,
        "cell": record.cell,
        # Two findings may rest on one measured cell; each result has its own.
        "words": {**cell_json(measured.cell), "finding": record.finding} if measured is not None else None,
        "verdict": record.shown,
        "reason": record.reason,
        "bounds": [_bound(one) for one in record.judgements],
        "metrics": {name: metric_json(metric) for name, metric in record.metrics.items()} if proved else {},
        "lists": [list_json(one) for one in record.lists],
        "proof": [proof_json(proof) for proof in record.proofs],
        **(traced if record.traced else {}),
        **({"scale": record.scale.as_json(), "hardware": "not_examined"} if record.scale is not None else {}),
        **({"guest": guest} if guest is not None else {}),
        **({"engine": dict(record.engine)} if record.engine is not None else {}),
        **({"constants": [dict(one) for one in record.constants]} if record.constants is not None else {}),
        **({"generations": told} if measured is not None and (told := _generations(measured)) else {}),
    }


def properties(record: Record, session: MoetierSession) -> list[tuple[str, object]]:
    """Return what the test's report, and with it JUnit's file, has of a record: ``moetier.NAME`` and a text."""
    measured = session.campaign.results.get(record.cell or "")
    kernel = ""
    if measured is not None:
        label = measured.cell.kernel if measured.cell.in_guest else platform.release()
        kernel = next((one.release for one in guests_of(measured)), label)
    found = {
        "verdict": record.verdict,
        "finding": record.finding,
        "cell": record.cell or "",
        "kernel": kernel,
        "scale": record.scale.words if record.scale is not None else "",
        "proof": proof_words([one.invariants for one in record.proofs]),
    }
    if record.verdict != "invalid":
        told = _MAIN if measured is not None else record.metrics
        found |= {name: f"{record.metrics[name].median:.10g}" for name in told if name in record.metrics}
    return [(f"moetier.{name}", text) for name, text in found.items() if text]


def _bound(one: Judgement) -> dict[str, Any]:
    return {
        "id": one.bound.id,
        "name": one.bound.value,
        "value": one.value,
        "seen": one.value,
        "expected": one.bound.text,
        "verdict": one.verdict,
        "source": one.bound.source,
        "reason": one.reason,
    }


def _generations(result: CellResult) -> list[dict[str, Any]]:
    """Return what each boot's audit of the generations came to; the first one's series are in ``audits``."""
    audits = [one.figures.audit for one in result.runs if one.figures.audit is not None]
    return [{name: value for name, value in one.as_json().items() if name not in _SERIES} for one in audits]


def _audits(session: MoetierSession) -> list[dict[str, Any]]:
    """Return the first boot's audit of every proved cell whose generations were sampled, with its series."""
    from pytest_moetier.audit import NamedAudit  # noqa: PLC0415 - numpy

    found = []
    for result in session.campaign.results.values():
        audit = result.runs[0].figures.audit if result.proved else None
        if audit is not None and audit.moments:
            found.append(NamedAudit(result.cell.id, audit))
    return [series_json(one) for one in sorted(found, key=lambda one: one.name)]


def _of_traces(session: MoetierSession) -> dict[str, Any]:
    """Return what figures on traces draw, and a line for each trace that had to be left out of them."""
    asked = _asked(session)
    sources, unread = [], []
    for subject in asked:
        try:
            sources.append(Source(subject, _trace(session, subject)))
        except MoetierError as error:
            unread.append(f"{subject.id} is left out: {error}")
    found, left_out = panels(sources)
    return {
        "hit_rates": [one.as_json() for one in found],
        "off_domain": _drifts(session, asked),
        "left_out": [*unread, *left_out],
    }


def _asked(session: MoetierSession) -> list[Subject]:
    """Return the subjects whose traces the session's tests asked for."""
    if not any(one.traced for one in session.records.values()):
        return []
    chosen = subjects_for(session.config)
    pending = {one.id for one in session.studies.pending(chosen)}
    return [one for one in chosen if one.id not in pending]


def _trace(session: MoetierSession, subject: Subject) -> Trace:
    """Return a subject's trace; also one of merged streams, which caches can be simulated over but not be studied.

    Raises:
        MoetierError: it cannot be read.
    """
    from pytest_moetier.trace.load import load_trace  # noqa: PLC0415 - numpy

    known = session.studies.known(subject)
    if isinstance(known, Study):
        return known.trace
    if subject.path is None:
        raise known
    return load_trace(subject.path, n_experts=subject.n_experts, k=subject.k)


def _drifts(session: MoetierSession, asked: Sequence[Subject]) -> list[dict[str, Any]]:
    """Return a table off its domain for each model of which that finding ran."""
    groups = [str(one.cell) for one in session.records.values() if one.over and one.test.startswith(_OFF_DOMAIN)]
    found = []
    for group in dict.fromkeys(groups):
        known = [session.studies.known(one) for one in asked if one.group == group]
        studies = [one for one in known if isinstance(one, Study)]
        with suppress(InputError):  # the finding said why
            found += [drift(group, studies).as_json()] if len(studies) > 1 else []
    return found
