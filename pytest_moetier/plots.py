"""Figures of a session's findings, and the numbers they draw.

On traces (paper section 3, Figure 1): what a policy hits against the budget, one panel a model: the mean over its
domains, and their range shaded. On reclaim (section 5): the generation audit of passes, side by side. matplotlib (the
extra ``plot``) is imported only here, and only when a figure is drawn; its pyplot and its settings are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import count, pairwise, zip_longest
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pytest_moetier.errors import InputError
from pytest_moetier.routing import GIVEN, MODELS, OWN, HitRates, Subject, hit_rates, recognised
from pytest_moetier.units import PAGE_BYTES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pytest_moetier.audit import Audit, Moment, NamedAudit  # numpy
    from pytest_moetier.simulate import Workload
    from pytest_moetier.trace.records import Trace

SCHEMA_VERSION = 1
NUMBERS = "hit_rates.json"
POLICIES = ("belady", "lru", "lfu-perfect", "static")
ALLOCATION = "layer"
TABLE = "the most used experts of the warm part, loaded before it: no first read of theirs is a miss"
"""What ``static`` holds. In a short trace it may beat the optimum of what starts empty."""
FIRST_BUDGET = 4


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
    "belady": _Style("Belady (offline optimum)", "#000000", "D", "--"),
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
}
_BASIS_POINTS = 6
_WIDTH, _INNER_WIDTH, _INNER_HEIGHT = 4.2, 3.55, 2.1
"""Of the figure and of its axes, in inches: fixed, so that the panels of two models stand side by side."""
_LEFT, _BELOW, _TITLE, _UPPER_AXIS = 0.5, 1.02, 0.3, 0.34
_DOTS_PER_INCH = 300


@dataclass(frozen=True, slots=True)
class Point:
    """What a policy hits with one budget.

    Attributes:
        policy: its name.
        budget: experts that each layer's cache holds.
        budget_bytes: of all layers together; None where the size of an expert is not known.
        rates: the hit rate of each domain.
    """

    policy: str
    budget: int
    budget_bytes: int | None
    rates: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over the domains."""
        return fmean(self.rates)

    def as_json(self, subjects: Sequence[str]) -> dict[str, Any]:
        """Return the point in plain JSON types."""
        return {
            "policy": self.policy,
            "budget_experts_per_layer": self.budget,
            "budget_bytes": self.budget_bytes,
            "mean": self.mean,
            "min": min(self.rates),
            "max": max(self.rates),
            "by_domain": dict(zip(subjects, self.rates, strict=True)),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A subject and its trace: what one curve of each policy is drawn from.

    Attributes:
        subject: the subject.
        trace: its trace; unlike one that is studied, it may be of merged streams.
    """

    subject: Subject
    trace: Trace

    @property
    def shape(self) -> tuple[int, int, int]:
        """Layers, experts per layer and k."""
        return len(self.trace.layers), self.trace.n_experts, self.trace.k

    @property
    def batch(self) -> bool:
        """Whether it is of streams that were decoded together."""
        return not {"batch", "union"}.isdisjoint(self.trace.kind_counts())

    @property
    def model(self) -> str:
        """The model's name, or its dimensions where it is not known."""
        known = recognised(self.trace)
        return "{}-{}x{}-k{}".format(OWN, *self.shape) if known == OWN else known

    @property
    def name(self) -> str:
        """What its panel is called."""
        name = self.model if self.subject.origin == GIVEN else self.subject.group
        return f"{name}-batch" if self.batch else name

    @property
    def layer_bytes(self) -> tuple[int, ...]:
        """The size of an expert of each layer: the trace's own, else the model's; empty where not known."""
        known = MODELS[self.model].expert_bytes if self.model in MODELS else 0
        return tuple(self.trace.expert_bytes) or ((known,) * len(self.trace.layers) if known else ())

    @property
    def kind(self) -> tuple[object, ...]:
        """What the sources of one panel have in common."""
        return self.subject.origin, self.subject.group, self.batch, self.shape, self.layer_bytes


@dataclass(frozen=True, slots=True)
class Panel:
    """One model's hit rates over its domains.

    Attributes:
        name: of the model, and in the names of its files.
        sources: one a domain, all of one kind.
        works: their accesses, as the caches saw them.
        layer_bytes: the size of one expert of each layer; empty where it is not known.
        points: policy by policy, budgets rising.
    """

    name: str
    sources: tuple[Source, ...]
    works: tuple[Workload, ...]
    layer_bytes: tuple[int, ...]
    points: tuple[Point, ...]

    @property
    def title(self) -> str:
        """The model, whether its traces are synthetic, and its dimensions."""
        made = sum(one.trace.synthetic for one in self.sources)
        origin = " (synthetic)" if made == len(self.sources) else " (in part synthetic)" if made else ""
        layers, experts, k = self.sources[0].shape
        return f"{self.name}{origin}: {layers} layers, E = {experts}, k = {k}"

    @property
    def basis(self) -> str:
        """What the numbers rest on, in words."""
        many = len(self.sources)
        over = f"lines: mean of {many} domains, shades: their range" if many > 1 else "one domain"
        orders = " or ".join(sorted({one.order for one in self.works}))
        return (
            f"{over}; {self.works[0].semantics}, order in a pass: {orders};\n"
            "equal split over the layers; the first 60% of the iterations warm, the rest is scored"
        )

    def as_json(self) -> dict[str, Any]:
        """Return what is drawn and what it rests on, in plain JSON types."""
        layers, experts, k = self.sources[0].shape
        return {
            "model": self.name,
            "files": [f"hit_rates-{self.name}.{kind}" for kind in ("svg", "png")],
            "synthetic": any(one.trace.synthetic for one in self.sources),
            "layers": layers,
            "experts": experts,
            "k": k,
            "expert_bytes": list(self.layer_bytes) or None,
            "order": sorted({one.order for one in self.works}),
            "allocation": ALLOCATION,
            "static": TABLE,
            "semantics": self.works[0].semantics,
            "domains": [_domain(source, work) for source, work in zip(self.sources, self.works, strict=True)],
            "points": [one.as_json([source.subject.id for source in self.sources]) for one in self.points],
        }


def _domain(source: Source, work: Workload) -> dict[str, Any]:
    from pytest_moetier.simulate import window  # noqa: PLC0415 - numpy

    scored = window("fair", work)
    return {
        "subject": source.subject.id,
        "domain": source.subject.domain,
        "origin": source.subject.origin,
        "source": work.source,
        "fingerprint": source.trace.fingerprint,
        "synthetic": work.synthetic,
        "order": work.order,
        "window": {"name": scored.name, "warm": scored.warm, "end": scored.end},
    }


def panels(sources: Sequence[Source]) -> tuple[list[Panel], list[str]]:
    """Return a panel for each model, and a line for each trace that had to be left out."""
    found: dict[str, list[tuple[Source, HitRates]]] = {}
    left_out = []
    for source in sources:
        try:
            rates = hit_rates(source.trace, _budgets(source.trace.n_experts), POLICIES, allocation=ALLOCATION)
        except InputError as error:
            left_out.append(f"{source.subject.id} is left out: {error}")
            continue
        free = (name for name in _numbered(source.name) if name not in found or found[name][0][0].kind == source.kind)
        found.setdefault(next(free), []).append((source, rates))
    return [_panel(name, pairs) for name, pairs in found.items()], left_out


def _numbered(name: str) -> Iterator[str]:
    """Yield the name, then others for panels that would have the same."""
    yield name
    yield from (f"{name}-{number}" for number in count(2))


def _budgets(n_experts: int) -> list[int]:
    """Return powers of two below the experts of a layer: with all of them in, there is nothing to choose."""
    found = [1 << power for power in range(FIRST_BUDGET.bit_length() - 1, (n_experts - 1).bit_length())]
    return found or list(range(1, max(n_experts, 2)))


def _panel(name: str, pairs: Sequence[tuple[Source, HitRates]]) -> Panel:
    from pytest_moetier.simulate import workload  # noqa: PLC0415 - numpy

    sources = tuple(source for source, _ in pairs)
    sizes = sources[0].layer_bytes
    points = (
        Point(policy, budget, sum(sizes) * budget or None, tuple(rates.rates[policy, budget] for _, rates in pairs))
        for policy in POLICIES
        for budget in _budgets(sources[0].trace.n_experts)
    )
    return Panel(name, sources, tuple(workload(one.trace) for one in sources), sizes, tuple(points))


def files(found: Sequence[Panel]) -> dict[str, bytes]:
    """Return the content of every file of the report by its name: each panel twice, and their numbers.

    The same panels give the same bytes, with the same matplotlib.

    Raises:
        ImportError: matplotlib is not installed, or broken.
    """
    import orjson  # noqa: PLC0415

    drawn: dict[str, bytes] = {}
    for panel in found:
        for kind, content in zip(("svg", "png"), _drawn(panel), strict=True):
            drawn[f"hit_rates-{panel.name}.{kind}"] = content
    numbers = {"schema_version": SCHEMA_VERSION, "figures": [one.as_json() for one in found]}
    return {**drawn, NUMBERS: orjson.dumps(numbers, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)}


def _drawn(panel: Panel) -> tuple[bytes, bytes]:
    """Return the panel as SVG and as PNG."""
    svg, png = _saved_as(lambda: _draw(panel), panel.title, ("svg", "png"))
    return svg, png


def _saved_as(draw: Callable[[], Figure], title: str, kinds: Sequence[str]) -> tuple[bytes, ...]:
    """Return a figure as files of these kinds, svg or png."""
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
    figure.savefig(content, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
    return content.getvalue()


def _draw(panel: Panel) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415

    height = _BELOW + _INNER_HEIGHT + _TITLE + (_UPPER_AXIS if panel.layer_bytes else 0)
    figure = Figure(figsize=(_WIDTH, height))
    place = _LEFT / _WIDTH, _BELOW / height, _INNER_WIDTH / _WIDTH, _INNER_HEIGHT / height
    axes = figure.add_axes(place)
    for policy in POLICIES:
        _draw_policy(panel, policy, axes)
    _scale_budgets(panel, axes)
    axes.set_ylim(-0.03, 1.03)
    axes.set_yticks([tenths / 10 for tenths in range(0, 11, 2)])
    axes.set_ylabel("hit rate (share of expert reads)")
    axes.grid(visible=True, color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    middle = (_LEFT + _INNER_WIDTH / 2) / _WIDTH
    figure.suptitle(panel.title, x=middle, y=1 - 0.07 / height)
    # Below the axes nothing is hidden, whatever the curves are.
    beside = {"handlelength": 3.4, "columnspacing": 2.5, "borderaxespad": 0.0, "labelspacing": 0.3}
    figure.legend(loc="lower center", bbox_to_anchor=(middle, 0.29 / height), ncols=2, frameon=False, **beside)
    figure.text(0.5, 0.05 / height, panel.basis, ha="center", va="bottom", color="0.3", fontsize=_BASIS_POINTS)
    return figure


def _draw_policy(panel: Panel, policy: str, axes: Axes) -> None:
    style = _STYLES[policy]
    points = [one for one in panel.points if one.policy == policy]
    at = [_place(one) for one in points]
    if len(panel.sources) > 1:
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
    (content,) = _saved_as(lambda: _draw_audits(audits), "generation audit", (kind,))
    path.write_bytes(content)


def _draw_audits(audits: Sequence[NamedAudit]) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415

    width = _AUDIT_MARGIN + len(audits) * (_AUDIT_WIDTH + _AUDIT_GAP) - _AUDIT_GAP + _AUDIT_MARGIN
    height = _AUDIT_BELOW + sum(_AUDIT_HEIGHTS) + 2 * _AUDIT_BETWEEN + _AUDIT_TITLE
    figure = Figure(figsize=(width, height))
    for column, one in enumerate(audits):
        left = _AUDIT_MARGIN + column * (_AUDIT_WIDTH + _AUDIT_GAP)
        rows = _audit_rows(figure, left / width, _AUDIT_WIDTH / width)
        _draw_traffic(one, rows[0])
        _draw_generations(one.audit, rows[1])
        _draw_reclaim(one.audit, rows[2])
        if column == 0:
            for axes, label in zip(rows, ("MB an iteration", "file pages (MB)", "pages an iteration"), strict=True):
                axes.set_ylabel(label)
                axes.yaxis.set_label_coords(-0.42 / _AUDIT_WIDTH, 0.5)
    _key(figure, height)
    figure.text(0.5, 0.05 / height, _AUDIT_BASIS, ha="center", va="bottom", color="0.3", fontsize=_BASIS_POINTS)
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
        rows[-1].grid(visible=True, color="0.9", linewidth=0.5)
        rows[-1].set_axisbelow(True)
        rows[-1].tick_params(labelbottom=size == _AUDIT_HEIGHTS[-1])
    rows[-1].set_xlabel("iteration")
    return rows


def _draw_traffic(named: NamedAudit, axes: Axes) -> None:
    audit = named.audit
    at = [one + 0.5 for one in range(len(audit.logical_bytes))]
    if audit.device_bytes:
        axes.plot(at, [one / 1e6 for one in audit.device_bytes], color="#000000", linewidth=0.9, label="device bytes")
    if audit.nominal_bytes:
        axes.plot(
            at, [one / 1e6 for one in audit.nominal_bytes], color="#0072B2", linewidth=0.7, label="nominal misses (LRU)"
        )
    axes.plot(
        at, [one / 1e6 for one in audit.logical_bytes], color="0.5", linestyle=":", linewidth=0.9, label="asked for"
    )
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, len(audit.logical_bytes))
    axes.set_title(f"{named.name}\n{_period(audit)}", fontsize=8)


def _period(audit: Audit) -> str:
    if not audit.device_bytes:
        return "device bytes not observed"
    wave = audit.wave
    if wave is None or not wave.found:
        return "no period found"
    return f"period {wave.period:.0f} iterations, amplitude {wave.amplitude / 1e6:.2g} MB"


def _draw_generations(audit: Audit, axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    at = [one.iteration for one in audit.moments]
    ranks = list(zip_longest(*(one.file_pages for one in audit.moments), fillvalue=0))
    if not ranks:
        axes.text(0.5, 0.5, "no generations to see", transform=axes.transAxes, ha="center", va="center", color="0.3")
        return
    sizes = [[pages * PAGE_BYTES / 1e6 for pages in rank] for rank in ranks]
    axes.stackplot(at, *sizes, colors=_RANK_COLOURS, labels=_RANKS[: len(sizes)], linewidth=0, alpha=0.75)
    axes.plot(
        [one + 0.5 for one in range(len(audit.logical_bytes))],
        [one / 1e6 for one in audit.logical_bytes],
        color="0.25",
        linestyle=":",
        linewidth=0.9,
    )
    numbers = axes.twinx()
    numbers.step(
        at, [one.max_seq for one in audit.moments], where="post", color="#000000", linewidth=0.7, label="max_seq"
    )
    numbers.set_ylim(audit.moments[0].max_seq - 0.5, audit.moments[-1].max_seq + 0.5)
    numbers.set_ylabel("max_seq")
    numbers.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _draw_reclaim(audit: Audit, axes: Axes) -> None:
    for label, colour, dashes in (("scan", "#D55E00", "-"), ("steal", "#000000", "--")):
        rates = list(_rates(audit.moments, f"{label}_pages"))
        axes.plot(
            [at for at, _ in rates],
            [rate for _, rate in rates],
            color=colour,
            linestyle=dashes,
            linewidth=0.8,
            label=label,
        )
    axes.set_ylim(bottom=0)


def _rates(moments: Sequence[Moment], name: str) -> Iterator[tuple[float, float]]:
    """Yield what was counted an iteration, between one moment and the next, and where that is on the axis."""
    for before, after in pairwise(moments):
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
