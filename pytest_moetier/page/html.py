"""The page: one file without scripts or anything to fetch, from templates that escape what they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from pytest_moetier.documents import Document, Result
from pytest_moetier.page.charts import Section
from pytest_moetier.page.drawing import embedded
from pytest_moetier.page.judged import Row, value_words
from pytest_moetier.page.model import Page, machine, runs, when
from pytest_moetier.units import format_bytes, format_seconds

WORDS: Mapping[str, str] = {
    "supported": "Holds",
    "refuted": "Does not hold",
    "not_examined": "Not examined",
    "invalid": "Not proved",
}
"""What verdicts are called over a list."""
SIGNS: Mapping[str, str] = {"supported": "✓", "refuted": "✗", "not_examined": "-", "invalid": "!"}
"""Beside the colour, and to be told without it."""


def html_of(page: Page, sections: Sequence[Section], svgs: Mapping[str, str]) -> str:
    """Return the page.

    Args:
        page: what it shows.
        sections: its figures.
        svgs: the drawing of each of them, by name.

    Raises:
        ImportError: jinja2 is not installed, or broken.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - an extra
    from markupsafe import Markup  # noqa: PLC0415

    def drawing(name: str, title: str, alt: str) -> Markup:
        return Markup(embedded(svgs[name], name.replace(".", "_"), title, alt))  # noqa: S704 - ours, its text escaped

    environment = Environment(
        loader=PackageLoader("pytest_moetier.page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    style = files("pytest_moetier.page").joinpath("templates", "page.css").read_text(encoding="utf-8")
    environment.globals |= {
        "bound_rows": bound_rows,
        "drawing": drawing,
        "evidence_rows": evidence_rows,
        "fact_words": fact_words,
        "machine": machine,
        "metric_rows": metric_rows,
        "runs": runs,
        "signs": SIGNS,
        "style": Markup(style),  # noqa: S704 - ours
        "studied": studied,
        "when": when,
        "words": WORDS,
    }
    return environment.get_template("index.html").render(page=page, sections=sections)


def evidence_rows(row: Row) -> list[tuple[str, ...]]:
    """Return what was judged of a claim, in words."""
    return [
        (one.about, one.bound, one.seen, one.expected, _said(one.verdict), one.source, one.kernel or "host", one.reason)
        for one in row.evidence
    ]


def bound_rows(result: Result) -> list[tuple[str, ...]]:
    """Return the bounds of a result, in words."""
    return [
        (one.id, one.name, value_words(one, result), one.expected, _said(one.verdict), one.source, one.reason)
        for one in result.judged
    ]


def metric_rows(result: Result) -> list[tuple[str, ...]]:
    """Return the metrics of a result, in words."""
    found = []
    for name, one in result.metrics.items():
        numbers = (one.median, min(one.values), max(one.values))
        found.append((name, *(metric_words(name, one.unit, value) for value in numbers), one.unit, one.better))
    return found


def _said(verdict: str) -> str:
    return verdict.replace("_", " ")


def metric_words(name: str, unit: str, value: float) -> str:
    """Return a metric's value in words."""
    if unit.partition("/")[0] == "B" and not name.endswith("_per_second"):
        return format_bytes(value)
    if unit.partition("/")[0] == "s":
        return format_seconds(value)
    return f"{value:.4g}"


def fact_words(name: str, value: Any) -> str:  # noqa: ANN401 - any JSON
    """Return a fact of a host, of a virtual machine or of a trace in words."""
    match value:
        case None | bool():
            return {None: "unknown", True: "yes", False: "no"}[value]
        case "":
            return "available" if name == "loop" else "none"
        case int() | float() if name.endswith("_bytes"):
            return format_bytes(value, binary=True)
        case list():
            return ", ".join(fact_words(name, one) for one in value) or "none"
        case dict():
            return ", ".join(f"{key} {fact_words(key, one)}" for key, one in value.items()) or "none"
        case _:
            return str(value)


def studied(document: Document) -> list[tuple[str, list[Result]]]:
    """Return the results that rest on no run, by trace, group of traces, or machine."""
    found: dict[str, list[Result]] = {}
    for one in document.results:
        if one.traces or one.constants:
            found.setdefault(one.cell, []).append(one)
    return list(found.items())
