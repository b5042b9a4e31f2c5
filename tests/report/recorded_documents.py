"""Recorded documents of ``--moetier-json``, to be read or changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REPORTS = Path(__file__).parents[2] / "fixtures" / "reports"
FILES = sorted(REPORTS.glob("*.json"))
HOSTILE = "<script>document.title='owned'</script>&\"'|`$x_1$"
"""What a name or a reason may have in it."""


def content(name: str) -> dict[str, Any]:
    """Return a recorded document, to be changed."""
    found: dict[str, Any] = json.loads((REPORTS / f"{name}.json").read_text())
    return found


def spoiled() -> dict[str, Any]:
    """Return a document whose names and reasons have markup in them."""
    found = content("routing")
    found["notes"] = [HOSTILE]
    found["host"]["cpu_model"] = HOSTILE
    for one in found["results"]:
        one["reason"] = HOSTILE
        one["accounting"][0]["source"] = HOSTILE
        for each in one["bounds"]:
            each["source"] = each["reason"] = HOSTILE
    panel = found["hit_rates"][0]
    panel["model"] = f"own-{HOSTILE}"
    panel["domains"][0]["domain"] = HOSTILE
    found["off_domain"][0]["rates"][1]["domain"] = HOSTILE
    return found
