"""Our own format: JSON lines, plain, gzip or zstd.

The first line describes the trace::

    {"type": "meta", "format": "moetier-trace", "version": 1, "layers": [0, 1], "n_experts": 896, "k": 16,
     "iterations": 100, "records": 208, "synthetic": true, "source": "..."}

and every other line is one record, with its type::

    {"type": "normal", "phase": "decode", "iteration": 0, "layer": 0, "experts": [3, 17, ...]}

``type`` is ``normal``, ``spec_accept`` (2k ids: two passes), ``spec_fallback`` (two records per layer), ``batch`` or
``union`` (several positions in one call), ``phase`` is ``decode`` or ``prefill``; ``iterations`` and ``records`` count
decode alone, and tell a cut-off file from a whole one. Further keys of the meta line: ``expert_bytes`` (a list, one
size per layer), ``order`` (of the ids within a pass) and ``accepted_tokens`` (of merged streams).
"""

from __future__ import annotations

from pytest_moetier.trace import scan
from pytest_moetier.trace.formats import fields
from pytest_moetier.trace.formats.registry import reader
from pytest_moetier.trace.records import KINDS, ORDERS
from pytest_moetier.trace.rows import PHASES, About, Hints, Rows
from pytest_moetier.trace.source import Source

CANONICAL = "moetier"
CANONICAL_FORMAT = "moetier-trace"
CANONICAL_VERSION = 1

_FIELDS = scan.Fields(
    "iteration",
    "layer",
    "experts",
    phase="phase",
    kind="type",
    phases=PHASES,
    kinds={name: code for code, name in enumerate(KINDS)},
)


def _is_meta(row: fields.Row) -> bool:
    return row.get("type") == "meta" and row.get("format") == CANONICAL_FORMAT


def _sniff(source: Source) -> bool:
    return _is_meta(source.first)


@reader(CANONICAL, _sniff)
def read_canonical(source: Source, hints: Hints) -> Rows:
    """Our own typed JSON lines, as `moetier trace synth` and `moetier trace convert` write them."""
    meta: list[tuple[int, About]] = []
    strict = scan.strict(_FIELDS, source.path)

    def slow(number: int, text: bytes) -> scan.SlowRow | None:
        row = {} if meta else fields.parsed(source, number, text)
        if not _is_meta(row):
            return strict(number, text)
        meta.append((number, _about(source, number, row)))
        return None

    built = fields.scanned(source, _FIELDS, slow)
    number, about = meta[0] if meta else (0, About(""))
    if hints.n_experts not in {None, about.n_experts}:
        raise source.refuse(number, f"n_experts is {about.n_experts}", f"{hints.n_experts} as asked for")
    rows = built.rows(about)
    first = int(rows.line[0]) if rows.n else number
    if not meta or first < number:
        raise source.refuse(first, "a record", 'first {"type": "meta", ...}, which says what the trace is of')
    return rows


def _about(source: Source, number: int, meta: fields.Row) -> About:
    if fields.integer(source, number, meta, "version") != CANONICAL_VERSION:
        raise source.refuse(number, f"version {meta['version']}", f"version {CANONICAL_VERSION}")
    synthetic, said = meta.get("synthetic"), meta.get("source")
    if not isinstance(synthetic, bool) or not isinstance(said, str):
        raise source.refuse(number, f"synthetic {synthetic!r}, source {said!r}", "true or false, and a text")
    layers = fields.ids(source, number, meta, "layers")
    sizes = meta.get("expert_bytes")
    if sizes is not None and not (
        isinstance(sizes, list) and len(sizes) == len(layers) and all(type(one) is int and one > 0 for one in sizes)
    ):
        raise source.refuse(number, f"expert_bytes is {str(sizes)[:60]}", f"{len(layers)} sizes, one per layer")
    order, accepted = meta.get("order"), meta.get("accepted_tokens")
    if order is not None and order not in ORDERS:
        raise source.refuse(number, f"order is {order!r}", "one of " + ", ".join(ORDERS))
    return About(
        source=said,
        synthetic=synthetic,
        k=fields.integer(source, number, meta, "k", fields.MAX_ID),
        n_experts=fields.integer(source, number, meta, "n_experts", fields.MAX_ID + 1),
        layers=tuple(sorted(layers)),
        expert_bytes=dict(zip(layers, sizes or (), strict=False)),
        records=fields.integer(source, number, meta, "records"),
        order=str(order) if order is not None else None,
        accepted_tokens=None if accepted is None else fields.integer(source, number, meta, "accepted_tokens"),
    )
