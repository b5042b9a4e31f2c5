"""The figures of a session, in the folder of ``--moetier-report``: hit rates by budget, and the generation audit.

Drawing is another library's and may fail; that costs the figure and never the table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_moetier.errors import InputError, MoetierError
from pytest_moetier.report import write_whole
from pytest_moetier.routing import Study, Subject
from pytest_moetier.settings import option, subjects_for

if TYPE_CHECKING:
    from pytest_moetier.audit import NamedAudit
    from pytest_moetier.trace.records import Trace
    from pytest_moetier.verdicts import MoetierSession


def write_report(session: MoetierSession) -> tuple[list[str], list[str]]:
    """Write ``--moetier-report``, each file whole or not at all; return what to say of it, and what failed.

    Nothing is raised, as in ``write_files``: drawing is another library's.
    """
    target = option(session.config, "report")
    if not target:
        return [], []
    try:
        asked, audits = _asked(session), _audits(session)
        if not asked and not audits:
            return [no_report(target)], []
        lines = _drawn(Path(target), session, asked) if asked else []
        return lines + (_drawn_audits(Path(target), audits) if audits else []), []
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a figure must not cost the table
        said = str(error) if isinstance(error, MoetierError) else f"{type(error).__name__}: {error}"
        return [], [f"--moetier-report {target} was not written: {said}"]


def no_report(target: str) -> str:
    """Return the line of a session that has nothing to draw."""
    do = "`pytest bench/ -k routing --moetier-report DIR`, without -n, or -k generations with --moetier-kernel"
    return f"report: nothing is written to {target}: no finding on traces or generations ran here; next: {do}"


def _asked(session: MoetierSession) -> list[Subject]:
    """Return the subjects whose traces the session's tests asked for."""
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


def _drawn(folder: Path, session: MoetierSession, asked: Sequence[Subject]) -> list[str]:
    from pytest_moetier.plots import Source, files, panels  # noqa: PLC0415

    sources, unread = [], []
    for subject in asked:
        try:
            sources.append(Source(subject, _trace(session, subject)))
        except MoetierError as error:
            unread.append(f"{subject.id} is left out: {error}")
    found, left_out = panels(sources)
    told = [f"report: {line}" for line in (*unread, *left_out)]
    if not found:
        return [*told, f"report: nothing is written to {folder}: no trace could be simulated"]
    made = files(found)
    _make(folder)
    for name, content in made.items():
        write_whole(folder / name, content)
    return [*told, f"report: hit rates of {', '.join(one.name for one in found)}: {folder / '*'}"]


def _audits(session: MoetierSession) -> list[NamedAudit]:
    """Return the first boot's audit of every proved cell whose generations were sampled."""
    from pytest_moetier.audit import NamedAudit  # noqa: PLC0415 - numpy

    found = []
    for result in session.campaign.results.values():
        audit = result.runs[0].figures.audit if result.proved else None
        if audit is not None and audit.moments:
            found.append(NamedAudit(result.cell.id, audit))
    return sorted(found, key=lambda one: one.name)


def _drawn_audits(folder: Path, audits: Sequence[NamedAudit]) -> list[str]:
    """Write the figure of the audits, and their numbers."""
    import orjson  # noqa: PLC0415

    from pytest_moetier.plots import draw_audit  # noqa: PLC0415

    _make(folder)
    for suffix in ("svg", "png"):
        path = folder / f"generations.{suffix}"
        with tempfile.TemporaryDirectory(dir=folder) as beside:
            new = Path(beside) / path.name
            draw_audit(audits, new)
            write_whole(path, new.read_bytes())
    numbers = orjson.dumps({one.name: one.audit.as_json() for one in audits}, option=orjson.OPT_INDENT_2)
    write_whole(folder / "generations.json", numbers)
    return [f"report: generations of {len(audits)} cells: {folder / 'generations.*'}"]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{error.strerror}", "a folder that may be made", "choose another") from error
