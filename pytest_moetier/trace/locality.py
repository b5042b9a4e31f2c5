"""How a router's choices come back: skew, reuse, overlap, coverage, by layer and over layers (paper section 3).

A *position* is one pass of one layer, t = 0, 1, 2, ... in the order issued; ``S_t`` is the set of k experts it chose, a
*selection* one member of it. No statistic depends on the order of ids within a pass. ``DEFINITIONS`` states each.

The ids are read once, natively (``pytest_moetier._trace``), wherever they lie: a memory-mapped file is not copied. Kept
besides are 16 bytes for each expert of each layer and 1576 bytes a layer; the result keeps 8 bytes an expert.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_moetier import _trace
from pytest_moetier.errors import InputError
from pytest_moetier.trace.selections import Selections

DISTANCES = 64
"""The longest distance, in passes of a layer, at which reuse and overlap are counted."""
REUSE_WINDOWS = (1, 8, 64)
SPANS = (8, 64)
"""Numbers of consecutive passes whose distinct experts are counted, besides the whole trace."""

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "position": "one pass of one layer, t = 0, 1, 2, ...; S_t is the set of k experts it chose",
        "zipf_slope": "per layer, least squares of log count on log rank over all ranks of non-zero count, sign "
        "flipped; mean over layers",
        "reuse": "W_w: share of the selections at t >= 1 that one of the previous min(w, t) positions of the layer "
        "chose too; mean over all selections",
        "overlap": "|S_t & S_(t-d)| / k at distance d, mean over all positions t >= d of all layers",
        "top_mass": "per layer, the share of its selections that its N most selected experts have; mean over layers",
        "top_mass_by_depth": "the first layer's, the most concentrated layer's, and gradient = the latter / the former",
        "union": "distinct experts of a layer over the whole trace",
        "pool_coverage": "distinct experts summed over layers / (layers x experts a layer)",
        "distinct_in": "distinct experts in n consecutive passes of a layer: mean over all its windows of n passes, "
        "then over layers that have one",
        "experts_for_80": "per layer, the smallest number of most selected experts with at least 80% of its selections",
        "jaccard": "|A & B| / |A | B| of two traces' N most selected experts of a layer (ties: the lower id; never "
        "selected: left out); mean over layers",
    }
)

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

_GAPS = DISTANCES + 2
_SUMS = DISTANCES + 2 * _GAPS + 1
_CHUNK_IDS = 1 << 22  # the interpreter looks up between chunks: an interrupt waits some hundredths of a second
_FAULT_ROWS = 8192  # a fault is in one of so many rows behind those taken
_GROUP_ITEMS = 1 << 11  # figures are derived for so many (layer, expert) at a time, which bounds their memory
_MAX_EXPERTS = 1 << 16
_NEXT = "look at the file with `moetier trace info FILE`"


@dataclass(frozen=True, slots=True, eq=False)
class Locality:
    """The locality statistics of one trace's selections; build one with ``locality``.

    Figures over layers leave out layers where they are undefined; undefined altogether, they are NaN.

    Attributes:
        source: where the selections come from, in words.
        synthetic: made by a generator, not recorded from a model.
        phase: ``decode``, ``prefill`` or ``all``.
        order: how ids stand within a pass, in words; no figure here depends on it.
        layers: the layer numbers, ascending; arrays below have a row for each.
        n_experts: experts per layer (E).
        k: experts chosen per pass.
        n_rows: passes of all layers together.
        positions: per layer, its passes.
        counts: per layer and expert, its selections.
        shared: per layer, column d - 1: |S_t & S_(t-d)| summed over its positions t >= d, d = 1..64.
        gaps: per layer, column d - 1: its selections whose expert was last chosen d passes before, d = 1..64.
        slopes: per layer, its Zipf slope; NaN where fewer than two experts were chosen.
        masses: N = 1, 2, 4, ... -> per layer, the share of its N most selected experts.
        distinct: per layer, experts chosen at all.
        for_80: per layer, the smallest number of most selected experts with at least 80% of its selections.
        distinct_means: n -> per layer, distinct experts in n consecutive passes; NaN where it has fewer passes.
    """

    source: str
    synthetic: bool
    phase: str
    order: str
    layers: tuple[int, ...]
    n_experts: int
    k: int
    n_rows: int
    positions: I64
    counts: U64
    shared: I64
    gaps: I64
    slopes: F64
    masses: Mapping[int, F64]
    distinct: I64
    for_80: I64
    distinct_means: Mapping[int, F64]

    @property
    def zipf_slope(self) -> float:
        """The mean over layers of the Zipf slope."""
        return _mean(self.slopes)

    def reuse(self, window: int) -> float:
        """Return W_w, for any w of 1..64 passes."""
        hits = self.gaps[:, : _distance(window)].sum()
        return _ratio(int(hits), self.k * int(np.maximum(self.positions - 1, 0).sum()))

    def reuse_by_layer(self, window: int) -> F64:
        """Return each layer's own W_w."""
        return _ratios(self.gaps[:, : _distance(window)].sum(axis=1), self.k * (self.positions - 1))

    def overlap(self, distance: int) -> float:
        """Return the mean overlap of two passes of a layer at a distance of 1..64 passes."""
        pairs = np.maximum(self.positions - _distance(distance), 0).sum()
        return _ratio(int(self.shared[:, distance - 1].sum()), self.k * int(pairs))

    def overlap_by_layer(self, distance: int) -> F64:
        """Return each layer's own overlap at a distance of 1..64 passes."""
        return _ratios(self.shared[:, _distance(distance) - 1], self.k * (self.positions - distance))

    def top_mass(self, top: int) -> float:
        """Return the mean over layers of the share of the ``top`` most selected experts."""
        return _mean(self._mass(top))

    def first_layer_mass(self, top: int) -> float:
        """Return the share of the first layer's ``top`` most selected experts."""
        return float(self._mass(top)[0])

    def most_concentrated(self, top: int) -> tuple[int, float]:
        """Return the number of the layer whose ``top`` most selected experts have the largest share, and that share."""
        mass = self._mass(top)
        at = int(np.nanargmax(mass))  # some layer has a row
        return self.layers[at], float(mass[at])

    def depth_gradient(self, top: int) -> float:
        """Return the most concentrated layer's share over the first layer's."""
        return self.most_concentrated(top)[1] / self.first_layer_mass(top)

    @property
    def pool_coverage(self) -> float:
        """The share of all experts of all layers that were chosen at all."""
        return int(self.distinct.sum()) / (len(self.layers) * self.n_experts)

    @property
    def union_first(self) -> int:
        """The distinct experts of the first layer."""
        return int(self.distinct[0])

    @property
    def union_min(self) -> int:
        """The distinct experts of the layer that has the fewest."""
        return int(self.distinct.min())

    @property
    def union_median(self) -> float:
        """The median over layers of their distinct experts."""
        return float(np.median(self.distinct))

    @property
    def union_max(self) -> int:
        """The distinct experts of the layer that has the most."""
        return int(self.distinct.max())

    def distinct_in(self, passes: int) -> float:
        """Return the mean over layers of the distinct experts in 8 or 64 consecutive passes."""
        if passes not in self.distinct_means:
            raise InputError(f"windows of {passes} passes", f"one of {', '.join(map(str, self.distinct_means))}")
        return _mean(self.distinct_means[passes])

    @property
    def for_80_range(self) -> tuple[int, float, int]:
        """The least, the median and the most experts that have 80% of a layer's selections."""
        seen = self.for_80[self.positions > 0]
        return int(seen.min()), float(np.median(seen)), int(seen.max())

    @property
    def shape(self) -> str:
        """Layers, experts and k in words: two traces compare only where these agree."""
        spread = f"{self.layers[0]}-{self.layers[-1]}" if len(self.layers) > 1 else str(self.layers[0])
        return f"{len(self.layers)} layers ({spread}) x {self.n_experts} experts, k = {self.k}"

    def _mass(self, top: int) -> F64:
        if top not in self.masses:
            raise InputError(f"the mass of the top {top} experts", f"one of {', '.join(map(str, self.masses))}")
        return self.masses[top]


def locality(selections: Selections) -> Locality:
    """Return the statistics of a trace's selections, from one pass over its ids.

    Args:
        selections: at least one row; ids of any integer type, in memory or memory-mapped.

    Raises:
        InputError: no row; an id that is no expert, or twice in a row (the message names row, layer and id); or
            parts that do not fit together.
    """
    _check(selections)
    n_layers, n_experts = len(selections.layers), selections.n_experts
    # Per expert: its selections << 32 | its last pass, from 1; then its history, of use to the native pass alone.
    experts = np.zeros((n_layers, n_experts, 2), dtype=np.uint64)
    sums = np.zeros((n_layers, _SUMS), dtype=np.uint64)
    _count(selections, experts, sums)
    integers = sums.view(np.int64)
    uses, firsts = integers[:, DISTANCES : DISTANCES + _GAPS], integers[:, DISTANCES + _GAPS : -1]
    positions = integers[:, -1]
    counts = experts[..., 0] >> np.uint64(32)
    absent = _absences(experts[..., 0], uses, positions)
    del experts
    slopes, masses, distinct, for_80 = _skew(counts)
    return Locality(
        source=selections.source,
        synthetic=selections.synthetic,
        phase=selections.phase,
        order=selections.order,
        layers=selections.layers,
        n_experts=n_experts,
        k=selections.k,
        n_rows=selections.n_rows,
        positions=positions.copy(),
        counts=counts,
        shared=integers[:, :DISTANCES].copy(),
        gaps=(uses - firsts)[:, 1 : DISTANCES + 1],
        slopes=slopes,
        masses=masses,
        distinct=distinct,
        for_80=for_80,
        distinct_means={
            span: _ratios(n_experts * (positions - span + 1) - gone, positions - span + 1)
            for span, gone in absent.items()
        },
    )


def _check(selections: Selections) -> None:
    ids, k, source = selections.ids, selections.k, selections.source
    if not 1 <= k <= selections.n_experts <= _MAX_EXPERTS:
        raise InputError(
            f"{source}: k = {k} of {selections.n_experts} experts", f"1 <= k <= experts <= {_MAX_EXPERTS}", _NEXT
        )
    if ids.dtype.kind not in "iu" or ids.ndim != 1 or len(ids) % k:
        raise InputError(
            f"{source}: ids of type {ids.dtype} and shape {ids.shape}", f"whole rows of {k} integers, flat", _NEXT
        )
    if not len(ids) or not selections.layers:
        raise InputError(f"{source}: no pass in phase {selections.phase}", "at least one", _NEXT)
    if selections.row_layer is not None and len(selections.row_layer) != selections.n_rows:
        raise InputError(
            f"{source}: {len(selections.row_layer)} layers for {selections.n_rows} rows", "one layer a row", _NEXT
        )


def _chunks(selections: Selections) -> Iterator[tuple[int, NDArray[np.integer[Any]], NDArray[np.uint16] | None]]:
    """Yield (first row, ids, layers); only ids that are not in this machine's byte order or in one run are copied."""
    native = selections.ids.dtype.newbyteorder("=")
    step = max(_CHUNK_IDS // selections.k, 1)
    for row in range(0, selections.n_rows, step):
        ids = selections.ids[row * selections.k : (row + step) * selections.k]
        layers = None if selections.row_layer is None else selections.row_layer[row : row + step]
        yield (
            row,
            np.require(ids, dtype=native, requirements=("C", "A")),
            None if layers is None else np.require(layers, dtype=np.uint16, requirements=("C", "A")),
        )


def _count(selections: Selections, experts: U64, sums: U64) -> None:
    n_layers, k = len(selections.layers), selections.k
    for row, ids, row_layer in _chunks(selections):
        taken = _trace.locality(ids, row_layer, row % n_layers, k, experts.reshape(-1), sums.reshape(-1))
        if taken < len(ids) // k:
            raise _fault(selections, row + taken)


def _fault(selections: Selections, start: int) -> InputError:
    """Return what is wrong with the first faulty row at or behind ``start``."""
    n_layers, k = len(selections.layers), selections.k
    for row in range(start, min(start + _FAULT_ROWS, selections.n_rows)):
        index = row % n_layers if selections.row_layer is None else int(selections.row_layer[row])
        ids = [int(one) for one in selections.ids[row * k : (row + 1) * k]]
        if index >= n_layers:
            return InputError(
                f"{selections.source}: row {row} is of the layer with index {index}", f"one below {n_layers}", _NEXT
            )
        where = f"{selections.source}: row {row} (layer {selections.layers[index]}) names expert"
        outside = [one for one in ids if not 0 <= one < selections.n_experts]
        if outside:
            return InputError(f"{where} {outside[0]}", f"ids from 0 to {selections.n_experts - 1}", _NEXT)
        if len(set(ids)) < k:
            seen: set[int] = set()
            twin = next(one for one in ids if one in seen or seen.add(one))  # type: ignore[func-returns-value]
            return InputError(f"{where} {twin} twice", f"{k} distinct ids a row", _NEXT)
    return InputError(f"{selections.source}: its ids changed while they were read", "a file at rest", _NEXT)


def _groups(n_layers: int, n_experts: int) -> Iterator[slice]:
    step = max(_GROUP_ITEMS // n_experts, 1)
    return (slice(at, at + step) for at in range(0, n_layers, step))


def _absences(seen: U64, uses: I64, positions: I64) -> dict[int, I64]:
    """Return for each span n, per layer, the (expert, window of n passes) where the expert is not in the window.

    Between two uses at distance g lie max(0, g - n) such windows; before the first use and behind the last one too,
    with g counted from the pass before the first and to the pass behind the last. Over all gaps of a layer,
    max(0, g - n) = g - min(g, n); g adds up to the numbers of the last passes, and min(g, n) comes from the counts.
    """
    out = {span: np.zeros(len(positions), dtype=np.int64) for span in SPANS}
    for group in _groups(*seen.shape):
        last = (seen[group] & np.uint64(2**32 - 1)).astype(np.int64)
        tail = positions[group, None] + 1 - last
        for span, gone in out.items():
            within = uses[group] @ np.minimum(np.arange(_GAPS), span)
            gone[group] = last.sum(axis=1) - within + np.maximum(tail - span, 0).sum(axis=1)
    return out


def _skew(counts: U64) -> tuple[F64, dict[int, F64], I64, I64]:
    """Return per layer the slope, the masses by N, the distinct experts and the experts for 80% of selections."""
    n_layers, n_experts = counts.shape
    slopes = np.empty(n_layers)
    tops = [1 << power for power in range(n_experts.bit_length())]
    masses = {top: np.empty(n_layers) for top in tops}
    distinct, for_80 = np.empty(n_layers, dtype=np.int64), np.empty(n_layers, dtype=np.int64)
    for group in _groups(n_layers, n_experts):
        ranked = np.sort(counts[group].astype(np.int64), axis=1)[:, ::-1]
        slopes[group] = _slopes(ranked)
        distinct[group] = np.count_nonzero(ranked, axis=1)
        running = np.cumsum(ranked, axis=1)
        totals = running[:, -1]
        for top, mass in masses.items():
            mass[group] = _ratios(running[:, top - 1], totals)
        enough = 5 * running >= 4 * totals[:, None]
        for_80[group] = np.where(totals > 0, np.argmax(enough, axis=1) + 1, 0)
    return slopes, masses, distinct, for_80


def _slopes(ranked: I64) -> F64:
    """Return the negative slope of log count on log rank of each row, over its non-zero counts; NaN below two."""
    used = ranked > 0
    n_used = np.maximum(np.count_nonzero(used, axis=1), 1)[:, None]
    log_rank = np.where(used, np.log(np.arange(1, ranked.shape[1] + 1)), 0.0)
    log_count = np.log(np.where(used, ranked, 1))
    rank_off = np.where(used, log_rank - log_rank.sum(axis=1, keepdims=True) / n_used, 0.0)
    fallen = log_count[:, :1] - log_count  # from the first rank: equal counts have a slope of exactly zero
    return _ratios((rank_off * fallen).sum(axis=1), (rank_off**2).sum(axis=1))


def _distance(passes: int) -> int:
    if not 1 <= passes <= DISTANCES:
        raise InputError(f"a distance of {passes} passes", f"1 to {DISTANCES}")
    return passes


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan


def _ratios(part: NDArray[Any], whole: NDArray[Any]) -> F64:
    out = np.full(len(whole), math.nan)
    np.divide(part, whole, out=out, where=whole > 0)
    return out


def _mean(values: F64) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else math.nan


def top_experts(one: Locality, top: int) -> list[set[int]]:
    """Return per layer the ids of its ``top`` most selected experts: ties to the lower id, none never selected."""
    out = []
    for counts in one.counts:
        ranked = np.argsort(-counts.astype(np.int64), kind="stable")[:top]
        out.append(set(ranked[counts[ranked] > 0].tolist()))
    return out


def jaccard(one: Locality, other: Locality, top: int = 16) -> float:
    """Return the mean over layers of the Jaccard index of two traces' ``top`` most selected experts.

    The figure depends on ``top`` strongly: report it always. Layers without a selection in either trace are left out.

    Raises:
        InputError: the traces differ in layers, experts or k, or ``top`` is below 1.
    """
    if top < 1:
        raise InputError(f"the top {top} experts", "1 or more")
    if (one.layers, one.n_experts, one.k) != (other.layers, other.n_experts, other.k):
        raise InputError(
            f"{one.source} has {one.shape}; {other.source} has {other.shape}",
            "two traces with the same layers, experts and k",
            "compare traces of one model",
        )
    pairs = zip(top_experts(one, top), top_experts(other, top), strict=True)
    return _mean(np.array([len(a & b) / len(a | b) for a, b in pairs if a | b]))


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _plain_list(values: NDArray[Any]) -> list[float | int | None]:
    return [None if isinstance(value, float) and math.isnan(value) else value for value in values.tolist()]


def as_json(locality: Locality) -> dict[str, Any]:
    """Return every figure as plain numbers, lists and dicts; None where one is undefined."""
    least, median, most = locality.for_80_range
    return {
        "source": locality.source,
        "synthetic": locality.synthetic,
        "phase": locality.phase,
        "order": locality.order,
        "layers": list(locality.layers),
        "n_experts": locality.n_experts,
        "k": locality.k,
        "n_rows": locality.n_rows,
        "n_selections": locality.n_rows * locality.k,
        "positions": {"min": int(locality.positions.min()), "max": int(locality.positions.max())},
        "zipf_slope": _plain(locality.zipf_slope),
        "reuse": {str(window): _plain(locality.reuse(window)) for window in REUSE_WINDOWS},
        "overlap": [_plain(locality.overlap(distance)) for distance in range(1, DISTANCES + 1)],
        "top_mass": {str(top): _plain(locality.top_mass(top)) for top in locality.masses},
        "top_mass_by_depth": {str(top): _depth(locality, top) for top in locality.masses},
        "union": {
            "first_layer": locality.union_first,
            "min": locality.union_min,
            "median": locality.union_median,
            "max": locality.union_max,
        },
        "pool_coverage": locality.pool_coverage,
        "distinct_in": {
            **{str(span): _plain(locality.distinct_in(span)) for span in SPANS},
            "all": float(locality.distinct.mean()),
        },
        "experts_for_80": {"min": least, "median": median, "max": most},
        "by_layer": _layers_json(locality),
        "definitions": dict(DEFINITIONS),
    }


def _depth(locality: Locality, top: int) -> dict[str, Any]:
    layer, mass = locality.most_concentrated(top)
    return {
        "first_layer": _plain(locality.first_layer_mass(top)),
        "most_concentrated": mass,
        "most_concentrated_layer": layer,
        "gradient": _plain(locality.depth_gradient(top)),
    }


def _layers_json(locality: Locality) -> dict[str, Any]:
    return {
        "positions": _plain_list(locality.positions),
        "zipf_slope": _plain_list(locality.slopes),
        "reuse": {str(window): _plain_list(locality.reuse_by_layer(window)) for window in REUSE_WINDOWS},
        "overlap": {str(one): _plain_list(locality.overlap_by_layer(one)) for one in (1, 8, 64)},
        "top_mass": {str(top): _plain_list(mass) for top, mass in locality.masses.items()},
        "union": _plain_list(locality.distinct),
        "experts_for_80": _plain_list(locality.for_80),
        "distinct_in": {str(span): _plain_list(means) for span, means in locality.distinct_means.items()},
    }


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}".removesuffix(".0")


def _range_text(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def _rows(one: Locality) -> Iterator[tuple[str, str]]:
    """Yield the name and the cell of each row of the table; the names are the same for every trace."""
    yield "layers x experts, k", f"{len(one.layers)} x {one.n_experts}, {one.k}"
    yield "passes a layer", _range_text(int(one.positions.min()), int(one.positions.max()))
    yield "Zipf slope", _share(one.zipf_slope)
    for window in REUSE_WINDOWS:
        yield f"reuse W{window}", _share(one.reuse(window))
    for distance in (1, 2, 4, 8, 16, 32, 64):
        yield f"overlap at distance {distance}", _share(one.overlap(distance))
    for top in (1, 8, 16, 64):
        yield f"top-{top} mass", _share(one.top_mass(top)) if top in one.masses else "-"
    yield "experts for 80%, least / median / most", " / ".join(map(_number, one.for_80_range))
    for span in SPANS:
        yield f"distinct experts in {span} passes", _number(one.distinct_in(span))
    yield "distinct experts in all passes", _number(float(one.distinct.mean()))
    yield "pool coverage", _share(one.pool_coverage)
    yield from _depth_rows(one)


def _depth_rows(one: Locality) -> Iterator[tuple[str, str]]:
    top = max(size for size in one.masses if size <= 8)
    layer, mass = one.most_concentrated(top)
    yield "union, first layer", str(one.union_first)
    yield "union, least / median / most", f"{one.union_min} / {_number(one.union_median)} / {one.union_max}"
    yield "top-8 mass, first layer", _share(one.first_layer_mass(top))
    yield "top-8 mass, most concentrated @ layer", f"{_share(mass)} @ {layer}"
    yield "top-8 mass, gradient", _share(one.depth_gradient(top))
    for percent in (0, 25, 50, 75, 100):
        row = round((len(one.layers) - 1) * percent / 100)
        figures = map(float, (one.slopes[row], one.reuse_by_layer(1)[row], one.masses[top][row]))
        cells = [*("-" if math.isnan(figure) else f"{figure:.3f}" for figure in figures), str(one.distinct[row])]
        yield f"depth {percent}%: slope, W1, top-8 mass, union", " ".join(cells)


def table(localities: Sequence[Locality], names: Sequence[str], top: int = 16) -> list[str]:
    """Return the statistics as lines of text: a column for each trace, and below the Jaccard index of each pair.

    Args:
        localities: one or more.
        names: of each, as the columns' heads.
        top: N of the Jaccard index.
    """
    marked = [f"{name} (synthetic)" if one.synthetic else name for one, name in zip(localities, names, strict=True)]
    columns = [dict(_rows(one)) for one in localities]
    rows = [("", *marked), *((name, *(column[name] for column in columns)) for name in columns[0])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = _head(localities, marked)
    for first, *cells in rows:
        fields = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))]
        lines.append("  ".join(fields).rstrip())
    return [*lines, *_jaccard_lines(localities, marked, top)]


def _head(localities: Sequence[Locality], names: Sequence[str]) -> list[str]:
    told = [f"phase {one.phase}; order within a pass: {one.order}" for one in localities]
    each = [f"{name}: {words}" for name, words in zip(names, told, strict=True)]
    return [
        *(told[:1] if len(set(told)) == 1 else each),
        "position t: one pass of one layer; S_t: the k experts it chose, in any order (no figure depends on it)",
        "slope: least squares of log count on log rank, non-zero counts, sign flipped; mean over layers",
        "W_w: share of selections at t >= 1 chosen in one of the previous min(w, t) passes too",
        "overlap at d: |S_t & S_(t-d)| / k, mean over t >= d; union: distinct experts of a layer",
        "mass, experts for 80%, distinct: of each layer, then the mean over layers, or what the row says",
        "",
    ]


def _jaccard_lines(localities: Sequence[Locality], names: Sequence[str], top: int) -> list[str]:
    lines = []
    for (one, first), (other, second) in combinations(zip(localities, names, strict=True), 2):
        try:
            figure = _share(jaccard(one, other, top))
        except InputError as error:
            figure = f"not comparable: {error.seen}"
        lines.append(f"Jaccard, N = {top} most selected experts of a layer, {first} / {second}: {figure}")
    return ["", *lines] if lines else []
