"""The recorded sessions: five rounds each of two cells; the roomy one reads nothing from the device."""

from __future__ import annotations

from pathlib import Path

RECORDED = Path(__file__).parents[2] / "fixtures" / "history"
CELL, ROOMY = "C30pct-cgroup-mglru_host", "C60pct-cgroup-mglru_host"
