"""A report's files: the page, the same as Markdown and as JSON, and every figure as SVG and PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_moetier.documents import Document
from pytest_moetier.files import write_folder
from pytest_moetier.history.sessions import SCHEMA_VERSION
from pytest_moetier.page.charts import sections_of
from pytest_moetier.page.html import html_of
from pytest_moetier.page.markdown import markdown_of
from pytest_moetier.page.model import Page, page_of
from pytest_moetier.plots import NUMBERS, draw_series, numbers, saved_as

_KINDS = ("svg", "png")
PAGE, MARKDOWN, RESULTS = "index.html", "report.md", "results.json"


def write_page(documents: Sequence[Document], folder: Path) -> tuple[Page, list[str]]:
    """Write the report of these documents; return what it shows, and a line for each kind of file.

    Nothing is written before all of it is made; each file is whole or not there, and other files are left alone.

    Raises:
        ImportError: matplotlib or jinja2 is not installed, or broken.
        InputError: the folder cannot be made, or a file not be written.
    """
    page, sections = page_of(documents), sections_of(documents)
    charts = [chart for section in sections for chart in section.charts]
    contents = _numbers(documents)
    for chart in charts:
        for kind, content in zip(_KINDS, saved_as(chart.of_file, chart.title, _KINDS), strict=True):
            contents[f"{chart.name}.{kind}"] = content
    drawn = {chart.name: saved_as(chart.draw, chart.title, ("svg",))[0].decode() for chart in charts}
    contents[MARKDOWN] = markdown_of(page, sections).encode()
    contents[RESULTS] = _json_bytes(report_json(page))
    contents[PAGE] = html_of(page, sections, drawn).encode()
    write_folder(folder, contents)
    return page, _told(page, folder)


def _told(page: Page, folder: Path) -> list[str]:
    models = [one.name for document in page.documents for one in document.panels]
    audits = sum(len(document.series) for document in page.documents)
    counts = page.counts
    lines = [f"hit rates of {', '.join(models)}: {folder / '*'}"] if models else []
    lines += [f"generations of {audits} cell{'s' * (audits > 1)}: {folder / 'generations.*'}"] if audits else []
    return [
        *lines,
        f"of {len(page.rows)} claims {counts['supported']} hold, {counts['refuted']} do not: {folder / PAGE}",
    ]


def _numbers(documents: Sequence[Document]) -> dict[str, bytes]:
    """Return the files of fixed names: the numbers of hit rates, and all audits side by side."""
    panels = [one for document in documents for one in document.panels]
    series = sorted((one for document in documents for one in document.series), key=lambda one: one.name)
    audits = {str(one["cell"]): one for document in documents for one in document.content.get("audits", ())}
    found = {NUMBERS: numbers(panels)} if panels else {}
    if series:
        svg, png = saved_as(lambda: draw_series(series), "generation audit", ("svg", "png"))
        found |= {"generations.svg": svg, "generations.png": png, "generations.json": _json_bytes(audits)}
    return found


def report_json(page: Page) -> dict[str, Any]:
    """Return a report in plain JSON types: the verdict on every claim, and the documents, to be read again."""
    return {
        "schema_version": SCHEMA_VERSION,
        "version": page.version,
        "counts": page.counts,
        "claims": [
            {
                "id": row.claim.id,
                "verdict": row.verdict,
                "claim": row.claim.text,
                "source": row.claim.source,
                "where": list(row.claim.where),
                "reason": row.reason,
                "examine": row.claim.examine,
                "evidence": [
                    {
                        "bound": one.bound,
                        "name": one.name,
                        "seen": one.seen,
                        "expected": one.expected,
                        "source": one.source,
                        "verdict": one.verdict,
                        "about": one.about,
                        "kernel": one.kernel,
                        "scale": one.scale,
                        "synthetic": list(one.synthetic),
                        "reason": one.reason,
                    }
                    for one in row.evidence
                ],
            }
            for row in page.rows
        ],
        "documents": [one.content for one in page.documents],
    }


def _json_bytes(content: Any) -> bytes:  # noqa: ANN401 - any JSON
    import orjson  # noqa: PLC0415

    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
