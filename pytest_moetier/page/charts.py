"""The paper's figures on the user's data, question by question, and what is to be run for those without data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from pytest_moetier.documents import Document
from pytest_moetier.page.cells import capacity, equal_memory, prefetch, reclaim
from pytest_moetier.page.chart import Chart
from pytest_moetier.page.model import when
from pytest_moetier.page.traces import generations, hit_rates, off_domain

_QUESTIONS: tuple[tuple[str, str, Callable[[Document], Iterable[Chart]], str], ...] = (
    ("hit-rates", "What does each policy hit?", hit_rates, "routing"),
    ("capacity", "What does more cache buy?", capacity, "capacity"),
    ("reclaim", "Does reclaim amplify?", reclaim, "reclaim --moetier-kernel 6.12"),
    ("equal-memory", "Who should hold what is kept?", equal_memory, "policy"),
    ("off-domain", "What does a frequency table hit off its domain?", off_domain, "policy"),
    ("prefetch", "What does advice gain?", prefetch, "advice"),
    ("generations", "What did MGLRU hold?", generations, "generations --moetier-kernel 6.12"),
)
"""Anchor, question, what draws it, and the finding that has the data."""


@dataclass(frozen=True, slots=True)
class Section:
    """Figures on one question.

    Attributes:
        word: its anchor.
        title: the question.
        charts: what there is; empty where nothing was measured.
        do: what to run for it.
    """

    word: str
    title: str
    charts: tuple[Chart, ...]
    do: str


def sections_of(documents: Sequence[Document]) -> tuple[Section, ...]:
    """Return the figures of these documents; a question without data is there all the same."""
    taken: set[str] = set()
    return tuple(
        Section(word, title, tuple(_distinct(_found(documents, find), taken)), f"pytest bench/ -k {finding}")
        for word, title, find, finding in _QUESTIONS
    )


def _found(documents: Sequence[Document], find: Callable[[Document], Iterable[Chart]]) -> Iterator[Chart]:
    for document in documents:
        told = f"; measured {when(document.time)}" if len(documents) > 1 and document.time else ""
        for chart in find(document):
            yield replace(chart, basis=chart.basis + told)


def _distinct(charts: Iterable[Chart], taken: set[str]) -> Iterator[Chart]:
    """Yield charts whose files' names are plain words, and differ from all others."""
    for chart in charts:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", chart.name)
        names = (plain if number == 1 else f"{plain}-{number}" for number in count(1))
        name = next(one for one in names if one not in taken)
        taken.add(name)
        yield replace(chart, name=name)
