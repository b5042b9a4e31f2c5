"""Figures on cells: capacity, reclaim, modes at equal memory, prefetch (paper sections 4-7, Figures 2-4 and 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from pytest_moetier.documents import Document, Result
from pytest_moetier.page.chart import Chart, Table, made
from pytest_moetier.page.drawing import Bars, Curve, draw_bars, draw_curves
from pytest_moetier.units import Capacity, format_bytes, format_seconds

_MECHANISMS = {"cgroup": "cgroup wall", "balloon": "balloon", "memboot": "mem="}
_STATES = {"on": "MGLRU on", "off": "MGLRU off (classic LRU)", "host": "MGLRU as the host has it"}
_SHOWN: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "seconds_per_iteration": ("s/iteration", format_seconds),
    "device_bytes": ("device/iteration", format_bytes),
    "nominal_bytes": ("nominal misses", format_bytes),
    "amplification": ("device/nominal", "{:.3f}".format),
    "rail_deviation": ("from k/C", "{:+.1%}".format),
    "demand_served": ("demand served", "{:.1%}".format),
    "scan_per_steal": ("scan/steal", "{:.2f}".format),
    "locked_share": ("locked", "{:.1%}".format),
    "observed_capacity_bytes": ("resident", format_bytes),
    "advice_recall": ("recall", "{:.1%}".format),
}
"""The metrics that tables of figures have: their heads, and how they are told."""
_TIME, _DEVICE = "seconds_per_iteration", "device_bytes"
_BYTES, _SECONDS = ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")), ((1.0, "s"), (1e-3, "ms"))


def capacity(document: Document) -> Iterator[Chart]:
    """Yield T(C), and device bytes with the inverse-capacity rail and the nominal misses, on each kernel."""
    for here in _by_kernel(_cells(document, "capacity", workload="single", mode="page_cache")):
        sizes = {one.cell: _capacity_bytes(document, one) for one in here}
        ordered = sorted((one for one in here if sizes[one.cell]), key=lambda one: sizes[one.cell])
        suffix = f"-{here[0].kernel}" if here[0].kernel else ""
        for name, what, columns in (
            (_TIME, "time", (_TIME,)),
            (_DEVICE, "device", (_DEVICE, "nominal_bytes", "amplification", "rail_deviation")),
        ):
            cells = [one for one in ordered if name in one.metrics]
            if cells:
                rows = (
                    (format_bytes(sizes[one.cell]), one.words["mechanism"], one.words["mglru"], *_told(one, columns))
                    for one in cells
                )
                yield Chart(
                    name=f"capacity-{what}{suffix}",
                    title=f"{_TITLES[name]} by capacity{made(cells[0])}{_kernel(cells[0])}",
                    basis=_basis(document, cells),
                    table=Table(("C", "mechanism", "MGLRU", *_heads(columns)), tuple(rows)),
                    draw=_curves(cells, sizes, name),
                )


_TITLES = {_TIME: "Time of an iteration", _DEVICE: "Device bytes of an iteration"}


def _curves(cells: Sequence[Result], sizes: Mapping[str, float], name: str) -> Callable[[], Any]:
    """Return what draws a line for each mechanism and state of MGLRU."""
    (scale, unit), (ground, size) = _unit_of(cells, name), _unit(sizes.values(), _BYTES)
    groups: dict[str, list[Result]] = {}
    for one in cells:
        state = "" if one.words["mglru"] == "host" else f", MGLRU {one.words['mglru']}"
        groups.setdefault(f"{_mechanism(one)}{state}", []).append(one)
    curves = []
    for label, mine in groups.items():
        at = tuple(sizes[one.cell] / ground for one in mine)
        rounds = tuple(_values(one, name, scale) for one in mine)
        nominal = [_values(one, "nominal_bytes", scale) for one in mine] if name == _DEVICE else []
        curves.append(
            Curve(
                label,
                at,
                rounds,
                rail=median(rounds[-1]) * at[-1] if name == _DEVICE else 0.0,
                nominal=tuple(map(median, nominal)) if all(nominal) else (),
            )
        )
    axis = f"{'device ' if name == _DEVICE else ''}{unit} an iteration"
    return partial(draw_curves, curves, axis, f"capacity C ({size})")


def reclaim(document: Document) -> Iterator[Chart]:
    """Yield the reclaim cells of each kernel: mechanisms by the states of MGLRU, with the nominal misses."""
    cells = _cells(document, "reclaim", workload="reclaim", mode="page_cache")
    for here in _by_kernel([one for one in cells if _DEVICE in one.metrics]):
        by = {(_shape(one), one.words["mglru"]): one for one in here}
        labels = tuple(dict.fromkeys(shape for shape, _ in by))
        states = [one for one in _STATES if any(state == one for _, state in by)]
        scale, unit = _unit_of(here, _DEVICE)
        found = {key: _values(one, _DEVICE, scale) for key, one in by.items()}
        nominal = {shape: _values(one, "nominal_bytes", scale) for (shape, _), one in by.items()}
        bars = Bars(
            labels,
            {_STATES[state]: tuple(found.get((one, state), ()) for one in labels) for state in states},
            f"device {unit} an iteration",
            marks=tuple(median(nominal[one]) if nominal[one] else None for one in labels),
            mark="nominal misses (exact LRU)",
        )
        columns = (
            _DEVICE,
            "nominal_bytes",
            "amplification",
            "scan_per_steal",
            "locked_share",
            "observed_capacity_bytes",
        )
        yield Chart(
            name=f"reclaim-{here[0].kernel or 'host'}",
            title=f"Reclaim: device bytes by mechanism and MGLRU{made(here[0])}{_kernel(here[0])}",
            basis=_basis(document, here),
            table=Table(
                ("mechanism", "MGLRU", *_heads(columns)),
                tuple((_shape(one), str(one.words["mglru"]), *_told(one, columns)) for one in here),
            ),
            draw=partial(draw_bars, bars),
        )


def equal_memory(document: Document) -> Iterator[Chart]:
    """Yield time and device bytes of the modes that share one wall."""
    columns = (_TIME, _DEVICE, "demand_served", "observed_capacity_bytes")
    for finding, where in (("policy", ""), ("small_box", " on a small machine")):
        for here in _by_point(_cells(document, finding, mode=None, spine=None)):
            labels = tuple(_mode(one) for one in here)
            rows = tuple((label, *_told(one, columns)) for label, one in zip(labels, here, strict=True))
            for name, what in ((_TIME, "time"), (_DEVICE, "device")):
                if any(name in one.metrics for one in here):
                    yield Chart(
                        name=f"{finding}-{what}",
                        title=f"{_TITLES[name]} by mode, at equal memory of {here[0].words['capacity']}"
                        f"{where}{made(here[0])}{_kernel(here[0])}",
                        basis=_basis(document, here),
                        table=Table(("mode", *_heads(columns)), rows),
                        draw=_bars(labels, here, name),
                    )


def prefetch(document: Document) -> Iterator[Chart]:
    """Yield the time of an iteration by who advises, and how it is delivered."""
    columns = (_TIME, _DEVICE, "advice_recall")
    for here in _by_point(_cells(document, "advice", prefetch=None)):
        labels = tuple(str(one.words["prefetch"]) for one in here)
        rows = ((label, *_told(one, columns), "; ".join(one.given)) for label, one in zip(labels, here, strict=True))
        yield Chart(
            name="advice-time",
            title=f"{_TITLES[_TIME]} by prefetch, at {here[0].words['capacity']}{made(here[0])}{_kernel(here[0])}",
            basis=_basis(document, here),
            table=Table(("prefetch", *_heads(columns), "given"), tuple(rows)),
            draw=_bars(labels, here, _TIME),
        )


def _bars(labels: tuple[str, ...], cells: Sequence[Result], name: str) -> Callable[[], Any]:
    scale, unit = _unit_of(cells, name)
    axis = f"{'device ' if name == _DEVICE else ''}{unit} an iteration"
    return partial(draw_bars, Bars(labels, {axis: tuple(_values(one, name, scale) for one in cells)}, axis))


def _cells(document: Document, finding: str, **words: Any) -> list[Result]:  # noqa: ANN401 - of a cell's fields
    """Return the proved cells of a finding with these words; one not named is as usual, one that is None varies."""
    usual = {"prefetch": "none", "fill": "", "spine": "none", "read_ahead_kb": 0, "filesystem": "ext4", **words}
    asked = {word: value for word, value in usual.items() if value is not None}
    found: dict[tuple[str, str], Result] = {}
    for one in document.results:
        fits = all(one.words.get(word) == value for word, value in asked.items())
        if one.metrics and one.words and one.finding == finding and fits:
            found.setdefault((one.cell, one.kernel), one)
    return list(found.values())


def _by_kernel(cells: Iterable[Result]) -> list[list[Result]]:
    return _grouped(cells, lambda one: one.kernel)


def _by_point(cells: Iterable[Result]) -> list[list[Result]]:
    """Return cells that may be compared, alike in all but what a figure is across; one alone says nothing."""
    alike = ("capacity", "mechanism", "mglru", "workload", "kernel", "read_limit")
    groups = _grouped(cells, lambda one: tuple(one.words.get(name) for name in alike))
    return [here for here in groups if len(here) > 1]


def _grouped(cells: Iterable[Result], key: Callable[[Result], object]) -> list[list[Result]]:
    groups: dict[object, list[Result]] = {}
    for one in cells:
        groups.setdefault(key(one), []).append(one)
    return list(groups.values())


def _context(document: Document, result: Result) -> Mapping[str, Any]:
    words = result.words
    suffix = f"-k{words['kernel']}" if words["kernel"] != "host" else ""
    return document.contexts.get(f"{words['workload']}{suffix}", {})


def _capacity_bytes(document: Document, result: Result) -> float:
    """Return a cell's capacity, 0 where the pool that it is a share of is not known."""
    if "capacity_bytes" in result.metrics:
        return result.metrics["capacity_bytes"].median
    return Capacity.parse(str(result.words["capacity"])).resolve(int(_context(document, result).get("pool_bytes", 0)))


def _basis(document: Document, cells: Sequence[Result]) -> str:
    """Return what cells rest on: rounds, threads, iterations, pool, and the scale of a virtual machine."""
    context = _context(document, cells[0])
    rounds = sorted({len(one.proofs) for one in cells if one.proofs})
    told = [
        f"{' or '.join(map(str, rounds))} rounds, each a dot, and their median" if rounds else "",
        f"{context['threads']} threads, {context['iterations']} iterations" if context else "",
        f"pool of {format_bytes(context['pool_bytes'])}" if context else "",
        cells[0].scale,
    ]
    return "; ".join(one for one in told if one)


def _kernel(result: Result) -> str:
    return f", kernel {result.kernel} in a virtual machine" if result.kernel else ""


def _mechanism(result: Result) -> str:
    word = str(result.words["mechanism"])
    return _MECHANISMS.get(word, word)


def _shape(result: Result) -> str:
    """Return a reclaim cell's mechanism, its locked share and its capacity."""
    locked = f" {result.words['locked']}%" if result.words.get("locked") else ""
    return f"{_mechanism(result)}{locked}, C {result.words['capacity']}"


def _mode(result: Result) -> str:
    spine = str(result.words["spine"])
    return str(result.words["mode"]) + (f", spine {spine}" if spine != "none" else "")


def _values(result: Result, name: str, scale: float = 1.0) -> tuple[float, ...]:
    return tuple(value / scale for value in result.metrics[name].values) if name in result.metrics else ()


def _unit(values: Iterable[float], units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """Return the unit that suits the largest of these values, and what it is called."""
    largest = max(values, default=0.0)
    return next((one for one in units if largest >= one[0]), units[-1])


def _unit_of(cells: Iterable[Result], name: str) -> tuple[float, str]:
    """Return the unit that suits a metric of these cells."""
    return _unit((value for one in cells for value in _values(one, name)), _BYTES if name == _DEVICE else _SECONDS)


def _heads(columns: Iterable[str]) -> tuple[str, ...]:
    return tuple(_SHOWN[name][0] for name in columns)


def _told(result: Result, columns: Iterable[str]) -> Iterator[str]:
    """Yield metrics' medians, with the rounds' least and most where they differ."""
    for name in columns:
        values, form = _values(result, name), _SHOWN[name][1]
        if not values:
            yield "not observed"
            continue
        low, high = form(min(values)), form(max(values))
        yield form(median(values)) + (f" ({low} to {high})" if low != high else "")
