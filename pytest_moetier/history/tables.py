"""A comparison as lines of plain text, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from pytest_moetier.history.compare import ALPHA, CANNOT_TELL, SAME, WORSE, Compared, Comparison
from pytest_moetier.units import format_bytes, format_seconds

CELL_METRICS = ("seconds_per_iteration", "device_bytes", "amplification")
TRACE_METRICS = ("zipf_slope", "reuse_w1", "reuse_w64", "pool_coverage")
"""What is shown where no metric is named."""
_MOST = 12
"""Of the other metrics that changed, so many are named."""
_CSV = (
    *("cell", "metric", "unit", "better", "units", "values_then", "median_then", "values_now", "median_now", "effect"),
    *("ratio", "low", "high", "p", "verdict", "reason"),
)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with columns two apart and a rule under the head."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    shown = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [shown[0], "  ".join("-" * width for width in widths), *shown[1:]]


def shown_value(value: float, unit: str) -> str:
    """Return a value as people read it."""
    if unit == "B" or unit.startswith("B/"):
        return format_bytes(value) + ("/s" if unit == "B/s" else "")
    return format_seconds(value) if unit.startswith("s/") and value > 0 else f"{value:.4g}"


def lines_of(compared: Comparison, metrics: Iterable[str] = ()) -> list[str]:
    """Return the tables, a metric each, the cells that are not compared, and what limits what is said.

    Args:
        compared: what came of comparing.
        metrics: to show; none: the main ones, and the gate's.
    """
    gate = [compared.gate.metric] if compared.gate is not None else []
    names = list(dict.fromkeys([*gate, *(metrics or (*CELL_METRICS, *TRACE_METRICS))]))
    lines = [f"{', '.join(compared.now)} / {', '.join(compared.then)}", *compared.notes]
    for name in names:
        found = [one for one in compared.found if one.metric == name]
        if found:
            lines += ["", *_metric_lines(found), *_untold(found)]
    others = [one for one in compared.found if one.metric not in names and one.verdict not in {SAME, CANNOT_TELL}]
    if others:
        told = [f"{one.metric} of {one.cell} {_ratio(one)} ({one.verdict})" for one in others[:_MOST]]
        more = f", and {len(others) - _MOST} more" if len(others) > _MOST else ""
        lines += ["", f"of the other metrics, each corrected alone: {', '.join(told)}{more}"]
    refused: dict[str, list[str]] = {}
    for cell, why in compared.refused.items():
        refused.setdefault(why, []).append(cell)
    lines += [f"not compared: {', '.join(cells)}: {why}" for why, cells in refused.items()]
    return lines + ([gate_line(compared)] if compared.gate is not None else [])


def _metric_lines(found: Sequence[Compared]) -> list[str]:
    first = found[0]
    better = "" if first.better == "neither" else f", {first.better} is better"
    rows = [["  cell", "then", "now", first.units, "ratio", f"{1 - ALPHA:.0%} interval", "verdict"]]
    for one in found:
        then, now = (shown_value(median(side), one.unit) for side in (one.then, one.now))
        counts = f"{len(one.then)}, {len(one.now)}"
        rows.append([f"  {one.cell}", then, now, counts, _ratio(one), one.interval, one.verdict])
    head, rule, *rest = aligned(rows)
    return [f"{first.metric}, {first.unit}{better}; effect size {first.effect:.1%}", head, f"  {rule[2:]}", *rest]


def _ratio(one: Compared) -> str:
    return "-" if one.ratio is None else f"{one.ratio:.3f}x"


def _untold(found: Sequence[Compared]) -> list[str]:
    whys: dict[str, list[str]] = {}
    for one in found:
        if one.verdict == CANNOT_TELL:
            whys.setdefault(one.reason, []).append(one.cell)
    every = len(found)
    return [f"cannot tell {'any' if len(c) == every > 1 else ', '.join(c)}: {why}" for why, c in whys.items()]


def gate_line(compared: Comparison) -> str:
    """Return what the gate came to, with the cells that regressed by name."""
    found = compared.gated().values()
    worse = [one.cell for one in found if one.verdict == WORSE]
    untold = [one.cell for one in found if one.verdict == CANNOT_TELL]
    held = len(found) - len(worse) - len(untold)
    parts = [f"{len(worse)} regressed ({', '.join(worse)})" if worse else "none regressed"]
    parts += [f"{held} did not"] if worse and held else []
    parts += [f"{len(untold)} of {len(found)} cannot be told"] if untold else []
    parts += [f"{len(compared.refused)} not compared"] if compared.refused else []
    return f"gate {compared.gate}: {', '.join(parts)}"


def as_json(compared: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON: a number that is not finite is null."""
    return {
        "then": list(compared.then),
        "now": list(compared.now),
        "gate": str(compared.gate) if compared.gate is not None else None,
        "alpha": ALPHA,
        "compared": [{name: _plain(value) for name, value in asdict(one).items()} for one in compared.found],
        "refused": dict(compared.refused),
        "notes": list(compared.notes),
    }


def _plain(value: Any) -> Any:  # noqa: ANN401 - any field of a comparison
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_csv(compared: Comparison) -> str:
    """Return a comparison as CSV, a row for each cell and metric."""
    text = io.StringIO()
    table = csv.DictWriter(text, _CSV, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    for one in compared.found:
        row = {name: _plain(value) for name, value in asdict(one).items()}
        row |= {"values_then": len(one.then), "median_then": median(one.then)}
        table.writerow(row | {"values_now": len(one.now), "median_now": median(one.now)})
    return text.getvalue()
