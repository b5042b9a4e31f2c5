"""The report as Markdown, for an issue or a mail: counts, what was examined, the figures' numbers, proofs and hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from pytest_moetier.page.charts import Section
from pytest_moetier.page.judged import NOT_EXAMINED, Row
from pytest_moetier.page.model import Page, machine, runs, when

_SPECIAL = re.compile(r"([\\`*_<>|#\[\]&~])")


def markdown_of(page: Page, sections: Sequence[Section]) -> str:
    """Return the report as Markdown; figures are the PNG files beside it."""
    return "\n".join([*_head(page), *_claims(page), *_figures(sections), *_runs(page), *_hosts(page)]) + "\n"


def plain(text: str) -> str:
    """Return text that is nothing but text in Markdown, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    heads = list(heads)
    lines = [f"| {' | '.join(map(plain, row))} |" for row in (heads, *rows)]
    return [lines[0], "|---" * len(heads) + "|", *lines[1:], ""]


def _head(page: Page) -> Iterator[str]:
    counts = page.counts
    yield f"# {page.title}"
    yield ""
    told = ", ".join(f"{count} {verdict.replace('_', ' ')}" for verdict, count in counts.items())
    yield f"Of {len(page.rows)} claims: **{told}**."
    yield ""
    yield f"- {plain(page.machine)}"
    if page.guests:
        yield f"- virtual machines: {plain(page.guests)}"
    if page.at_scale:
        yield f"- {page.at_scale} of the verdicts are of virtual machines: at their scale, and no word on hardware"
    if page.synthetic:
        yield f"- measured with synthetic {plain(page.synthetic)}"
    yield f"- pytest-moetier {page.version}{f', measured {page.when}' if page.when else ''}"
    yield ""
    for verdict, rows in page.headlines:
        if verdict != NOT_EXAMINED:
            lines = (f"- {plain(row.claim.headline)}: {plain(_seen(row))}" for row in rows)
            yield from (f"**{verdict.replace('_', ' ')}**", "", *lines, "")


def _seen(row: Row) -> str:
    figures = [
        f"{name} {seen}{f', expected {expected}' if expected else ''}".strip() for name, seen, expected in row.figures
    ]
    remarks = [one for one in (row.scale and f"at this scale: {row.scale}", row.synthetic, row.reason) if one]
    return "; ".join([*figures, *remarks])


def _claims(page: Page) -> Iterator[str]:
    yield "## Claims"
    yield ""
    for _, title, rows in page.chapters:
        yield f"### {title}"
        yield ""
        told = [row for row in rows if row.verdict != NOT_EXAMINED]
        if told:
            cells = ((row.claim.text, row.verdict, _seen(row), row.claim.source) for row in told)
            yield from _table(("claim", "verdict", "seen, and expected", "source"), cells)
        left = [row for row in rows if row.verdict == NOT_EXAMINED]
        if left:
            yield from _table(
                ("not examined", "why", "next"), ((row.claim.text, row.reason, row.claim.examine) for row in left)
            )


def _figures(sections: Sequence[Section]) -> Iterator[str]:
    yield "## Figures"
    yield ""
    for section in sections:
        for chart in section.charts:
            yield f"### {plain(chart.title)}"
            yield ""
            yield f"{plain(chart.basis)}"
            yield ""
            yield f"![{plain(chart.title)}]({chart.name}.png)"
            yield ""
            yield from _table(chart.table.heads, chart.table.rows)
        if not section.charts:
            yield f"{plain(section.title)} Nothing was measured for it; next: `{section.do}`"
            yield ""


def _runs(page: Page) -> Iterator[str]:
    rows = [
        (one.cell or one.test, one.kernel or "host", one.shown, one.proof or "none", one.reason.partition("\n")[0])
        for document in page.documents
        for one in runs(document)
    ]
    if rows:
        yield "## Runs"
        yield ""
        yield from _table(("cell", "kernel", "verdict", "proof", "remark"), rows)


def _hosts(page: Page) -> Iterator[str]:
    yield "## Hosts"
    yield ""
    for document in page.documents:
        yield f"### {plain(machine(document))}"
        yield ""
        told = [("measured", when(document.time) or "unknown"), ("file", document.name or "the session itself")]
        yield from _table(("fact", "value"), [*told, *((name, str(value)) for name, value in document.host.items())])
