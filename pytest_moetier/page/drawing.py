"""How bars and curves are drawn, and how a drawing becomes part of a page: in the page's own colours, with its text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING

from pytest_moetier.plots import INK, WIDTH, grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"#0072B2": "blue", "#D55E00": "orange", "#009E73": "green", "#CC79A7": "pink", "#56B4E9": "sky"}
"""Okabe and Ito's, which the colour-blind tell apart, and their names in a page: there they suit both schemes."""
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_HATCHES = ("", "////", "....", "xxxx")
_MARKERS = ("o", "s", "^", "D")
_STEPS = 32
"""Of a reference that is no straight line."""
_ROW, _GAP, _ABOVE, _BELOW, _KEY_ROW = 0.17, 0.12, 0.12, 0.5, 0.17
"""Of bars, in inches: a bar, the space between two groups, above and below all, and a row of the key."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Groups of bars that lie, the first uppermost.

    Attributes:
        labels: of the groups.
        series: of each kind of bar, the rounds' values in each group; empty where there is none.
        axis: what the values are.
        marks: a value in each group that is marked by a stroke across it, None where there is none.
        mark: what those are.
        most: the end of the axis; None for what the values ask for.
    """

    labels: tuple[str, ...]
    series: Mapping[str, tuple[tuple[float, ...], ...]]
    axis: str
    marks: tuple[float | None, ...] = ()
    mark: str = ""
    most: float | None = None


def draw_bars(bars: Bars) -> Figure:
    """Return the figure: a bar is the median of the rounds, and a dot each of them."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    many = len(bars.series)
    group = _ROW * many + _GAP
    named = many > 1 or bool(bars.mark)
    keys = -(-(many + bool(bars.mark)) // 2) if named else 0
    below = _BELOW + _KEY_ROW * keys
    height = _ABOVE + group * len(bars.labels) + below
    figure = Figure(figsize=(WIDTH, height))
    left = 0.12 + 0.068 * max(map(len, bars.labels))
    axes = figure.add_axes((left / WIDTH, below / height, (WIDTH - left - 0.12) / WIDTH, 1 - (below + _ABOVE) / height))
    for place, (name, values) in enumerate(bars.series.items()):
        at = [row * group + _ROW * (place + 0.5) for row in range(len(bars.labels))]
        _draw_bars(axes, at, name, values, place)
    for row, mark in enumerate(bars.marks):
        if mark is not None:
            ends = [row * group - _GAP / 4, row * group + _ROW * many + _GAP / 4]
            axes.plot([mark, mark], ends, color=INK, linewidth=1.2, label=bars.mark if row == 0 else "_")
    axes.set_yticks([row * group + _ROW * many / 2 for row in range(len(bars.labels))], bars.labels)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(group * len(bars.labels) - _GAP / 2, -_GAP / 2)
    high = max((value for values in bars.series.values() for one in values for value in one), default=1.0)
    axes.set_xlim(0, bars.most or max([high, *(one for one in bars.marks if one is not None)]) * 1.16 or 1.0)
    axes.set_xlabel(bars.axis)
    axes.spines[["top", "right"]].set_visible(False)
    grid(axes, "x")
    if named:
        figure.legend(
            loc="lower center", bbox_to_anchor=(0.5, 0.02 / height), ncols=2, frameon=False, borderaxespad=0.0
        )
    return figure


def _draw_bars(axes: Axes, at: Sequence[float], name: str, values: Sequence[Sequence[float]], place: int) -> None:
    colour = _PALETTE[place % len(_PALETTE)]
    heights = [median(one) if one else 0.0 for one in values]
    # Told apart in black and white too: the first kind is filled, the others are hatched.
    fill = "none" if place else colour
    axes.barh(
        at, heights, _ROW * 0.86, facecolor=fill, hatch=_HATCHES[place % 4], edgecolor=colour, linewidth=0.7, label=name
    )
    for row, rounds in zip(at, values, strict=True):
        if rounds:
            axes.plot(rounds, [row] * len(rounds), linestyle="", marker="o", markersize=2.2, color=INK)
            axes.annotate(
                f"{median(rounds):.3g}",
                (max(rounds), row),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=6.5,
            )


@dataclass(frozen=True, slots=True)
class Curve:
    """One line over capacity.

    Attributes:
        label: in the key.
        at: capacities, rising.
        rounds: the rounds' values at each.
        rail: k of the reference k/C, in the units of both axes; 0 for none.
        nominal: the nominal misses at each; empty for none.
    """

    label: str
    at: tuple[float, ...]
    rounds: tuple[tuple[float, ...], ...]
    rail: float = 0.0
    nominal: tuple[float, ...] = ()


def draw_curves(curves: Sequence[Curve], axis: str, ground: str) -> Figure:
    """Return the figure: a line through the medians, a mark for each round, references dashed and dotted."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    kinds = len(curves) + any(one.rail for one in curves) + any(one.nominal for one in curves)
    below = 0.52 + _KEY_ROW * -(-kinds // 2)
    height = 2.2 + below
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((0.55 / WIDTH, below / height, (WIDTH - 0.67) / WIDTH, 2.08 / height))
    for place, one in enumerate(curves):
        colour, marker = _PALETTE[place % len(_PALETTE)], _MARKERS[place % 4]
        axes.plot(one.at, [median(rounds) for rounds in one.rounds], color=colour, label=one.label)
        at = [x for x, rounds in zip(one.at, one.rounds, strict=True) for _ in rounds]
        axes.plot(at, [value for rounds in one.rounds for value in rounds], color=colour, linestyle="", marker=marker)
        if one.rail:
            low, high = one.at[0], one.at[-1]
            places = [low * (high / low) ** (step / _STEPS) for step in range(_STEPS + 1)]
            axes.plot(places, [one.rail / place for place in places], color=colour, linestyle="--", linewidth=0.9)
        if one.nominal:
            axes.plot(one.at, one.nominal, color=colour, linestyle=":", linewidth=1.2)
    if any(one.rail for one in curves):
        axes.plot([], [], color=INK, linestyle="--", linewidth=0.9, label="k/C reference (not a fit)")
    if any(one.nominal for one in curves):
        axes.plot([], [], color=INK, linestyle=":", linewidth=1.2, label="nominal misses (exact LRU)")
    places = sorted({x for one in curves for x in one.at})
    axes.set_xscale("log")
    axes.set_xticks(places, [f"{one:.3g}" for one in places])
    axes.minorticks_off()
    axes.set_ylim(0, axes.get_ylim()[1] * 1.04)
    axes.set_xlabel(ground)
    axes.set_ylabel(axis)
    grid(axes)
    figure.legend(loc="lower center", bbox_to_anchor=(0.5, 0.02 / height), ncols=2, frameon=False, borderaxespad=0.0)
    return figure


def named(figure: Figure, title: str, basis: str) -> Figure:
    """Return a figure with its title above and what it rests on below it: outside, where nothing is."""
    height = float(figure.get_figheight())
    figure.suptitle("\n".join(wrap(title, 62)), x=0.5, y=1 + 0.08 / height, va="bottom")
    figure.text(0.5, -0.06 / height, "\n".join(wrap(basis, 96)), ha="center", va="top", fontsize=6)
    return figure


_PROLOG = re.compile(r"<\?xml.*?\?>\s*<!DOCTYPE.*?>\s*", re.DOTALL)
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_OPENING = re.compile(r"<svg[^>]*?viewBox=\"([^\"]+)\"[^>]*>")
_IDS = re.compile(r'(\bid="|url\(#|xlink:href="#)')


def embedded(svg: str, name: str, title: str, alt: str) -> str:
    """Return an SVG file of ours as part of a page.

    Its ids are its own in the whole page, its black is the colour of the text around it, its other colours are the
    page's, its ground is transparent, its size is what there is room for, and its title and content are told in words.
    """
    text = _METADATA.sub("", _PROLOG.sub("", svg))
    text = _IDS.sub(lambda found: f"{found[0]}{name}-", text)
    # A page's own style sheet: this one would hold for all of the page.
    text = re.sub(r"\s*<style type=\"text/css\">.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(INK, "currentColor", text).replace("fill: #ffffff", "fill: none")
    for colour, word in COLOURS.items():
        text = text.replace(colour.lower(), f"var(--{word})")
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="\\1" role="img"'
        f' aria-labelledby="{name}-title {name}-alt"><title id="{name}-title">{_plain(title)}</title>'
        f'<desc id="{name}-alt">{_plain(alt)}</desc>'
    )
    return _OPENING.sub(head, text, count=1)


def _plain(text: str) -> str:
    r"""Return text as XML, with the backslashes that a replacement of ``re`` needs."""
    return escape(text).replace("\\", "\\\\")
