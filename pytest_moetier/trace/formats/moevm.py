"""moevm-lab's JSON lines: one record per token and layer, ids by falling score, the prompt's tokens first."""

from __future__ import annotations

from pytest_moetier.trace import scan
from pytest_moetier.trace.formats import fields
from pytest_moetier.trace.formats.registry import reader
from pytest_moetier.trace.rows import PHASES, About, Hints, Rows
from pytest_moetier.trace.source import Source

_FIELDS = scan.Fields("token", "layer", "experts", phase="phase", weights="scores", phases=PHASES)


def is_moevm(row: fields.Row) -> bool:
    """Whether this is one of its lines."""
    return {"token", "layer", "experts", "phase"} <= row.keys() and "type" not in row


def _sniff(source: Source) -> bool:
    return is_moevm(source.first)


@reader("moevm-lab", _sniff)
def read_moevm(source: Source, hints: Hints) -> Rows:
    """JSON lines of moevm-lab: ``{"token":0,"layer":0,"experts":[..],"scores":[..],"phase":"decode"}``."""
    del hints
    built = fields.scanned(source, _FIELDS)
    return fields.numbered_on(built.rows(About(f"moevm-lab {source.path.name}")), "token")
