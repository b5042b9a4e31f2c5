"""What a cell varies, read off its id: what older files do not say of their cells."""

from __future__ import annotations

import re
from typing import Any

from pytest_moetier.cell import FILESYSTEMS, HOST, RECLAIM, RECLAIM_CAPACITY, WORKLOADS
from pytest_moetier.modes import PREFETCH


def words_of(cell: str, finding: str) -> dict[str, Any]:
    """Return what a cell varies, of its id: what ``history.cell_json`` says, which older documents do not have.

    Empty for what is no id of a cell. It is the inverse of ``Cell.id``.
    """
    match = _CELL.fullmatch(cell)
    if match is None:
        return {}
    rest, _, kernel = match["rest"].partition("-k")
    found: dict[str, Any] = {
        "id": cell,
        "finding": finding,
        "capacity": (match["first"] or match["later"] or RECLAIM_CAPACITY).replace("pct", "%"),
        "mechanism": match["mechanism"],
        "mglru": match["mglru"],
        "mode": "page_cache",
        "prefetch": "none",
        "workload": WORKLOADS[0] if match["first"] else RECLAIM[0],
        "fill": "",
        "spine": "none",
        "read_limit": 0,
        "kernel": kernel or HOST,
        "locked": int(match["locked"] or 0),
        "read_ahead_kb": 0,
        "filesystem": FILESYSTEMS[0],
    }
    for word in filter(None, rest.split("-")):
        name, value = _word(word)
        found[name] = value
    return found


_CELL = re.compile(
    r"(?:C(?P<first>[^-]+)-)?(?P<mechanism>cgroup|balloon|memboot)(?P<locked>\d*)-mglru_(?P<mglru>host|on|off)"
    r"(?:-C(?P<later>[^-]+))?(?P<rest>(?:-.+)?)"
)


def _word(word: str) -> tuple[str, str | int]:
    """Return which field a word of a cell's id is, and its value."""
    if word in WORKLOADS or f"{RECLAIM[0]}_{word}" in RECLAIM:
        return "workload", word if word in WORKLOADS else f"{RECLAIM[0]}_{word}"
    if match := re.fullmatch(r"([0-9_]+)MBps", word):
        return "read_limit", round(float(match[1].replace("_", ".")) * 1e6)
    if match := re.fullmatch(r"ra(\d+)", word):
        return "read_ahead_kb", int(match[1])
    for kind in ("fill", "spine"):
        if word.startswith(f"{kind}_"):
            return kind, word.removeprefix(f"{kind}_")
    return next(
        (kind for kind, known in (("prefetch", PREFETCH), ("filesystem", FILESYSTEMS)) if word in known), "mode"
    ), word
