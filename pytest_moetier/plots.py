"""Figures of a session's findings.

On traces (paper section 3, Figure 1): what a policy hits against the budget, one panel a model: the mean over its
domains, and their range shaded. On reclaim (section 5): the generation audit of passes, side by side. matplotlib (an
extra) is imported only when a figure is drawn; its pyplot and its settings are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_moetier.errors import InputError
from pytest_moetier.panels import POLICIES, Border, Panel, Point, Series
from pytest_moetier.units import PAGE_BYTES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pytest_moetier.audit import NamedAudit  # numpy

SCHEMA_VERSION = 1
NUMBERS = "hit_rates.json"
INK = "#010203"
"""Of text, axes and lines that mean nothing: black, and where a figure is embedded the colour of the text around it."""


@dataclass(frozen=True, slots=True)
class _Style:
    """How a policy is drawn: told apart by colour (Okabe and Ito's), by marker and by dashes, any one of which will do.

    Attributes:
        label: in the legend.
        colour: of line and shade.
        marker: at each budget.
        dashes: of the line.
    """

    label: str
    colour: str
    marker: str
    dashes: str


_STYLES = {
    "belady": _Style("Belady (offline optimum)", INK, "D", "--"),
    "lru": _Style("LRU", "#0072B2", "o", "-"),
    "lfu-perfect": _Style("LFU (perfect)", "#D55E00", "s", "-."),
    "static": _Style("static (frequency, preloaded)", "#009E73", "^", ":"),
}

_ON_TOP = ("lru", "lfu-perfect", "belady", "static")
"""Which line hides which: the smallest marker is uppermost."""

# Over matplotlib's own defaults, whatever the user's settings are: the same figure everywhere.
_SETTINGS: dict[Any, Any] = {
    "font.size": 8,
    "figure.titlesize": 9,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.6,
    "svg.fonttype": "none",  # text stays text: it can be searched, and set in a paper's own font
    "svg.hashsalt": "pytest-moetier",
    "text.parse_math": False,  # a name with a $ is a name
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}
_BASIS_POINTS = 6
WIDTH, _INNER_WIDTH, _INNER_HEIGHT = 4.2, 3.55, 2.1
"""Of the figure and of its axes, in inches: fixed, so that the panels of two models stand side by side."""
_LEFT, _BELOW, _TITLE, _UPPER_AXIS, _BASIS = 0.5, 1.02, 0.3, 0.34, 0.25
_DOTS_PER_INCH = 300


def numbers(found: Sequence[Panel]) -> bytes:
    """Return the numbers of the figures of hit rates, as they are kept beside them."""
    import orjson  # noqa: PLC0415

    content = {"schema_version": SCHEMA_VERSION, "figures": [one.as_json() for one in found]}
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def saved_as(draw: Callable[[], Figure], title: str, kinds: Sequence[str]) -> tuple[bytes, ...]:
    """Return a figure as files of these kinds, svg or png: with the same matplotlib, the same bytes.

    Raises:
        ImportError: matplotlib is not installed, or broken.
    """
    import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow

    with mpl.rc_context():  # pytest is the user's process: its settings are as before afterwards
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        figure = draw()
        # Neither a date nor a version of ours or matplotlib's: the same numbers give the same file.
        unsaid: dict[str, dict[str, Any]] = {
            "svg": {"Date": None, "Creator": "pytest-moetier"},
            "png": {"Software": None},
        }
        return tuple(_saved(figure, kind, {**unsaid[kind], "Title": title}) for kind in kinds)


def _saved(figure: Figure, kind: str, metadata: dict[str, Any]) -> bytes:
    content = BytesIO()
    figure.savefig(content, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata, bbox_inches=_around(figure))
    return content.getvalue()


def _around(figure: Figure) -> Any:  # noqa: ANN401 - matplotlib's Bbox
    """Return what of a figure is saved: all of it, and what stands outside of it with a margin."""
    from matplotlib.transforms import Bbox  # noqa: PLC0415

    whole = Bbox.from_bounds(0, 0, *figure.get_size_inches())
    found = figure.get_tightbbox()
    outside = found.ymin < 0 or found.ymax > whole.ymax
    return Bbox.union([whole, found.padded(0.04)]) if outside else whole


def draw_panel(panel: Panel, *, titled: bool = True) -> Figure:
    """Return the figure of a model's hit rates, with its title and what it rests on where it is to stand alone."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    below, title = (_BELOW, _TITLE) if titled else (_BELOW - _BASIS, 0.08)
    height = below + _INNER_HEIGHT + title + (_UPPER_AXIS if panel.layer_bytes else 0)
    figure = Figure(figsize=(WIDTH, height))
    place = _LEFT / WIDTH, below / height, _INNER_WIDTH / WIDTH, _INNER_HEIGHT / height
    axes = figure.add_axes(place)
    for policy in POLICIES:
        _draw_policy(panel, policy, axes)
    _scale_budgets(panel, axes)
    axes.set_ylim(-0.03, 1.03)
    axes.set_yticks([tenths / 10 for tenths in range(0, 11, 2)])
    axes.set_ylabel("hit rate (share of expert reads)")
    grid(axes)
    middle = (_LEFT + _INNER_WIDTH / 2) / WIDTH
    # Below the axes nothing is hidden, whatever the curves are.
    beside = {"handlelength": 3.4, "columnspacing": 2.5, "borderaxespad": 0.0, "labelspacing": 0.3}
    figure.legend(
        loc="lower center", bbox_to_anchor=(middle, (below - 0.73) / height), ncols=2, frameon=False, **beside
    )
    if titled:
        figure.suptitle(panel.title, x=middle, y=1 - 0.07 / height)
        figure.text(0.5, 0.05 / height, panel.basis, ha="center", va="bottom", fontsize=_BASIS_POINTS)
    return figure


def grid(axes: Axes, along: Literal["both", "x", "y"] = "both") -> None:
    """Draw faint lines behind what is drawn."""
    axes.grid(visible=True, axis=along, color=INK, alpha=0.12, linewidth=0.5)
    axes.set_axisbelow(True)


def _draw_policy(panel: Panel, policy: str, axes: Axes) -> None:
    style = _STYLES[policy]
    points = [one for one in panel.points if one.policy == policy]
    at = [_place(one) for one in points]
    if len(panel.domains) > 1:
        low, high = [min(one.rates) for one in points], [max(one.rates) for one in points]
        axes.fill_between(at, low, high, color=style.colour, alpha=0.13, linewidth=0)
        for edge in (low, high):  # where shades overlap, each can still be told by its edges
            axes.plot(at, edge, color=style.colour, linewidth=0.4, alpha=0.4)
    axes.plot(
        at,
        [one.mean for one in points],
        label=style.label,
        color=style.colour,
        marker=style.marker,
        linestyle=style.dashes,
        zorder=2 + len(POLICIES) - _ON_TOP.index(policy),
    )


def _place(point: Point) -> float:
    """Return where a budget stands on the axis: in GB where they are known, else in experts."""
    return point.budget if point.budget_bytes is None else point.budget_bytes / 1e9


def _scale_budgets(panel: Panel, axes: Axes) -> None:
    """Mark every budget, evenly spaced: each is twice the one before."""
    points = [one for one in panel.points if one.policy == POLICIES[0]]
    at = [_place(one) for one in points]
    axes.set_xscale("log", base=2)
    axes.set_xticks(at, [_short(one) for one in at])
    axes.minorticks_off()
    if not panel.layer_bytes:
        axes.set_xlabel("cache budget (experts per layer)")
        return
    axes.set_xlabel(f"cache budget (GB, all {len(panel.layer_bytes)} layers)")
    above = axes.secondary_xaxis("top")
    above.set_xticks(at, [str(one.budget) for one in points])
    above.set_xlabel("experts per layer")
    above.minorticks_off()


def _short(value: float) -> str:
    """Return two digits, and all of what is before the point: enough to read an axis."""
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


_RANKS = ("oldest (reclaimed from)", "second", "third", "fourth")
_RANK_COLOURS = ("#D55E00", "#0072B2", "#56B4E9", "#009E73")
_AUDIT_WIDTH, _AUDIT_GAP, _AUDIT_MARGIN = 3.1, 0.95, 0.62
_AUDIT_HEIGHTS = (1.35, 1.5, 0.95)
_AUDIT_TITLE, _AUDIT_BETWEEN, _AUDIT_BELOW = 0.42, 0.14, 1.2
"""Of the audit's columns and rows, in inches: every cell is drawn to the same size."""
_AUDIT_BASIS = (
    "generations: the group's file pages at the borders between iterations;\n"
    "asked for: what an iteration inserts if it misses everything"
)


def draw_audit(audits: Sequence[NamedAudit], path: Path) -> None:
    """Write the audits of passes into one figure, a column each: traffic, generations and reclaim by iteration.

    Args:
        audits: one a cell.
        path: where to; its suffix, ``.svg`` or ``.png``, says what it is to be.

    Raises:
        ImportError: matplotlib is not installed, or broken.
        InputError: there is nothing to draw, or the suffix is another one.
    """
    kind = path.suffix.lstrip(".")
    if kind not in {"svg", "png"}:
        raise InputError(f"a figure named {path.name}", "a name that ends in .svg or .png")
    if not audits:
        raise InputError("no audit to draw", "at least one")
    series = [Series.of(one) for one in audits]
    (content,) = saved_as(lambda: draw_series(series), "generation audit", (kind,))
    path.write_bytes(content)


def draw_series(audits: Sequence[Series]) -> Figure:
    """Return the figure of the audits of passes, a column each."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    width = _AUDIT_MARGIN + len(audits) * (_AUDIT_WIDTH + _AUDIT_GAP) - _AUDIT_GAP + _AUDIT_MARGIN
    height = _AUDIT_BELOW + sum(_AUDIT_HEIGHTS) + 2 * _AUDIT_BETWEEN + _AUDIT_TITLE
    figure = Figure(figsize=(width, height))
    for column, one in enumerate(audits):
        left = _AUDIT_MARGIN + column * (_AUDIT_WIDTH + _AUDIT_GAP)
        rows = _audit_rows(figure, left / width, _AUDIT_WIDTH / width)
        _draw_traffic(one, rows[0])
        _draw_generations(one, rows[1])
        _draw_reclaim(one, rows[2])
        if column == 0:
            for axes, label in zip(rows, ("MB an iteration", "file pages (MB)", "pages an iteration"), strict=True):
                axes.set_ylabel(label)
                axes.yaxis.set_label_coords(-0.42 / _AUDIT_WIDTH, 0.5)
    _key(figure, height)
    figure.text(0.5, 0.05 / height, _AUDIT_BASIS, ha="center", va="bottom", fontsize=_BASIS_POINTS)
    return figure


def _audit_rows(figure: Figure, left: float, width: float) -> list[Axes]:
    """Add the axes of one column, the uppermost first; all have the same iterations."""
    height = float(figure.get_figheight())
    top = height - _AUDIT_TITLE
    rows: list[Axes] = []
    for size in _AUDIT_HEIGHTS:
        top -= size
        rows.append(figure.add_axes((left, top / height, width, size / height), sharex=rows[0] if rows else None))
        top -= _AUDIT_BETWEEN
        grid(rows[-1])
        rows[-1].tick_params(labelbottom=size == _AUDIT_HEIGHTS[-1])
    rows[-1].set_xlabel("iteration")
    return rows


def _middles(one: Series) -> list[float]:
    """Return where the numbers of a series stand on the axis of iterations: amid their own."""
    return [(at + 0.5) * one.every for at in range(len(one.logical_bytes))]


def _megabytes(series: Sequence[float]) -> list[float]:
    return [one / 1e6 for one in series]


def _draw_traffic(one: Series, axes: Axes) -> None:
    at = _middles(one)
    if one.device_bytes:
        axes.plot(at, _megabytes(one.device_bytes), color=INK, linewidth=0.9, label="device bytes")
    if one.nominal_bytes:
        axes.plot(at, _megabytes(one.nominal_bytes), color="#0072B2", linewidth=0.7, label="nominal misses (LRU)")
    asked = _megabytes(one.logical_bytes)
    axes.plot(at, asked, color=INK, alpha=0.5, linestyle=":", linewidth=0.9, label="asked for")
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, len(one.logical_bytes) * one.every)
    axes.set_title(f"{one.name}\n{_period(one)}", fontsize=8)


def _period(one: Series) -> str:
    if not one.device_bytes:
        return "device bytes not observed"
    if one.period is None:
        return "no period found"
    return f"period {one.period[0]:.0f} iterations, amplitude {one.period[1] / 1e6:.2g} MB"


def _draw_generations(one: Series, axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    at = [each.iteration for each in one.borders]
    ranks = list(zip_longest(*(each.file_pages for each in one.borders), fillvalue=0))
    if not ranks:
        axes.text(0.5, 0.5, "no generations to see", transform=axes.transAxes, ha="center", va="center")
        return
    sizes = [[pages * PAGE_BYTES / 1e6 for pages in rank] for rank in ranks]
    axes.stackplot(at, *sizes, colors=_RANK_COLOURS, labels=_RANKS[: len(sizes)], linewidth=0, alpha=0.75)
    axes.plot(_middles(one), _megabytes(one.logical_bytes), color=INK, alpha=0.75, linestyle=":", linewidth=0.9)
    numbers = axes.twinx()
    youngest = [each.max_seq for each in one.borders]
    numbers.step(at, youngest, where="post", color=INK, linewidth=0.7, label="max_seq")
    numbers.set_ylim(youngest[0] - 0.5, youngest[-1] + 0.5)
    numbers.set_ylabel("max_seq")
    numbers.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _draw_reclaim(one: Series, axes: Axes) -> None:
    for label, colour, dashes in (("scan", "#D55E00", "-"), ("steal", INK, "--")):
        rates = list(_rates(one.borders, f"{label}_pages"))
        at, seen = [place for place, _ in rates], [rate for _, rate in rates]
        axes.plot(at, seen, color=colour, linestyle=dashes, linewidth=0.8, label=label)
    axes.set_ylim(bottom=0)


def _rates(borders: Sequence[Border], name: str) -> Iterator[tuple[float, float]]:
    """Yield what was counted an iteration, between one border and the next, and where that is on the axis."""
    for before, after in pairwise(borders):
        start, end = getattr(before, name), getattr(after, name)
        iterations = after.iteration - before.iteration
        if start is not None and end is not None and iterations > 0:
            yield (before.iteration + after.iteration) / 2, (end - start) / iterations


def _key(figure: Figure, height: float) -> None:
    """Name every line and shade once, below all columns."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(
        list(found.values()),
        list(found),
        loc="lower center",
        bbox_to_anchor=(0.5, 0.28 / height),
        ncols=3,
        frameon=False,
        handlelength=2.4,
        columnspacing=1.6,
        borderaxespad=0.0,
        labelspacing=0.3,
    )
