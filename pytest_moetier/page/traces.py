"""Figures on traces and on the generations of passes (paper sections 3, 5 and 6, Figures 1 and 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

from pytest_moetier.documents import Document
from pytest_moetier.page.chart import Chart, Table, made
from pytest_moetier.page.drawing import Bars, draw_bars
from pytest_moetier.panels import Drift, Panel, Series
from pytest_moetier.plots import draw_panel, draw_series
from pytest_moetier.units import format_bytes


def hit_rates(document: Document) -> Iterator[Chart]:
    """Yield what each policy hits by budget, a figure a model."""
    yield from map(_panel, document.panels)


def off_domain(document: Document) -> Iterator[Chart]:
    """Yield what a table of one domain hits in the others, a figure a model."""
    yield from map(_drift, document.drifts)


def generations(document: Document) -> Iterator[Chart]:
    """Yield what the generations held while device traffic swung, a figure a cell."""
    known = {one.cell: one for one in document.results if one.words}
    for one in document.series:
        yield _series(one, made(known[one.name]) if one.name in known else "")


def _panel(panel: Panel) -> Chart:
    sized = bool(panel.layer_bytes)
    domains = (each.domain for each in panel.domains)
    rows = tuple(
        (
            one.policy,
            str(one.budget),
            *((format_bytes(one.budget_bytes or 0),) if sized else ()),
            f"{one.mean:.1%}",
            *(f"{rate:.1%}" for rate in one.rates),
        )
        for one in panel.points
    )
    return Chart(
        name=f"hit_rates-{panel.name}",
        title=f"Hit rate by cache budget, {panel.title}",
        basis=panel.basis.replace("\n", " "),
        table=Table(("policy", "experts a layer", *(("budget",) if sized else ()), "mean", *domains), rows),
        draw=partial(draw_panel, panel, titled=False),
        whole=partial(draw_panel, panel),
    )


def _drift(drift: Drift) -> Chart:
    table = f"table of {drift.trained_on}"
    labels = tuple(f"{name} (an oracle there)" if name == drift.trained_on else name for name, _, _ in drift.rates)
    series = {
        table: tuple((one,) for _, one, _ in drift.rates),
        "LRU (no table)": tuple((one,) for _, _, one in drift.rates),
    }
    rows = tuple(
        (label, f"{table:.1%}", f"{lru:.1%}") for label, (_, table, lru) in zip(labels, drift.rates, strict=True)
    )
    return Chart(
        name=f"off_domain-{drift.model}",
        title=f"A frequency table off its domain, {drift.model}{' (synthetic traces)' if drift.synthetic else ''}",
        basis=f"one cache of {drift.budget} for all layers; the first 60% of the iterations warm, the rest is scored",
        table=Table(("domain", table, "LRU"), rows),
        draw=partial(draw_bars, Bars(labels, series, "hit rate (share of expert reads)", most=1.0)),
    )


def _series(one: Series, synthetic: str) -> Chart:
    named = (
        ("device bytes", one.device_bytes),
        ("nominal misses", one.nominal_bytes),
        ("asked for", one.logical_bytes),
    )
    period = "no period found" if one.period is None else f"period {one.period[0]:.0f} iterations"
    iterations = len(one.logical_bytes) * one.every
    return Chart(
        name=f"audit-{one.name}",
        title=f"Generations, {one.name}{synthetic}",
        basis=f"one pass of {iterations} iterations, {period}; file pages at the borders between iterations",
        table=Table(("an iteration", "least", "median", "most"), tuple((name, *_spread(each)) for name, each in named)),
        draw=partial(draw_series, [one]),
    )


def _spread(values: Sequence[float]) -> tuple[str, str, str]:
    if not values:
        return "not observed", "", ""
    return format_bytes(min(values)), format_bytes(median(values)), format_bytes(max(values))
