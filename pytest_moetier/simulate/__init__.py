"""Caches by simulation: policies over plans and traces, exact and for every budget (paper sections 3, 4 and 6)."""

from __future__ import annotations

from pytest_moetier.simulate.curve import FIRST_TOUCH, LruCurve, Planned, belady_page_bound, lru_curve

__all__ = ["FIRST_TOUCH", "LruCurve", "Planned", "belady_page_bound", "lru_curve"]
