"""The report of a session, in the folder of ``--moetier-report``: made of its own document, as of any other.

Drawing is another library's and may fail; that costs the report and never the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_moetier.errors import MoetierError
from pytest_moetier.settings import option

if TYPE_CHECKING:
    from pytest_moetier.verdicts import MoetierSession


def write_report(session: MoetierSession) -> tuple[list[str], list[str]]:
    """Write ``--moetier-report``, each file whole or not at all; return what to say of it, and what failed.

    Nothing is raised, as in ``write_files``: drawing is another library's.
    """
    target = option(session.config, "report")
    if not target:
        return [], []
    if not session.records:
        return [no_report(target)], []
    try:
        return _written(session, Path(target)), []
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a figure must not cost the table
        said = str(error) if isinstance(error, MoetierError) else f"{type(error).__name__}: {error}"
        return [], [f"--moetier-report {target} was not written: {said}"]


def no_report(target: str) -> str:
    """Return the line of a session that has nothing to report."""
    do = "`pytest bench/ -k routing --moetier-report DIR`, without -n, or any other finding"
    return f"report: nothing is written to {target}: no finding ran here; next: {do}"


def _written(session: MoetierSession, folder: Path) -> list[str]:
    from pytest_moetier.documents import document_of  # noqa: PLC0415
    from pytest_moetier.page.write import write_page  # noqa: PLC0415
    from pytest_moetier.results import document  # noqa: PLC0415

    content = document(session)
    _, told = write_page([document_of(content, "")], folder)
    return [f"report: {line}" for line in (*content["left_out"], *told)]
