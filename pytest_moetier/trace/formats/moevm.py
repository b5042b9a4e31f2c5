"""moevm-lab's JSON lines: one record per token and layer, ids by falling score, the prompt's tokens first."""

from __future__ import annotations

from pytest_moetier.trace.formats import fields
from pytest_moetier.trace.formats.registry import reader
from pytest_moetier.trace.rows import About, Hints, Rows, RowsBuilder
from pytest_moetier.trace.source import Source


def _sniff(source: Source) -> bool:
    return {"token", "layer", "experts", "phase"} <= source.first.keys() and "type" not in source.first


@reader("moevm-lab", _sniff)
def read_moevm(source: Source, hints: Hints) -> Rows:
    """JSON lines of moevm-lab: ``{"token":0,"layer":0,"experts":[..],"scores":[..],"phase":"decode"}``."""
    del hints
    built = RowsBuilder()
    for number, row in fields.objects(source):
        experts = fields.ids(source, number, row, "experts")
        token, layer = (
            fields.integer(source, number, row, "token"),
            fields.integer(source, number, row, "layer", fields.MAX_ID),
        )
        built.add(number, token, layer, experts, fields.phase(source, number, row))
    return built.rows(About(f"moevm-lab {source.path.name}"))
