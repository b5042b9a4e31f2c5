"""Caches by simulation: policies over plans and traces, exact and for every budget (paper sections 3, 4 and 6)."""

from __future__ import annotations

from pytest_moetier.simulate.budget import Budget, Room
from pytest_moetier.simulate.curve import FIRST_TOUCH, LruCurve, Planned, belady_page_bound, lru_curve
from pytest_moetier.simulate.diagnosis import (
    BatchCost,
    Diagnosis,
    Floor,
    OffDomain,
    batch_cost,
    diagnose,
    least_lru_distance,
    off_domain,
)
from pytest_moetier.simulate.outcome import Outcome
from pytest_moetier.simulate.policies import POLICIES, simulate
from pytest_moetier.simulate.static import Table, trained
from pytest_moetier.simulate.window import Window, window
from pytest_moetier.simulate.workload import EVENT_ATOMIC, PER_ACCESS, Workload, workload

__all__ = [
    "EVENT_ATOMIC",
    "FIRST_TOUCH",
    "PER_ACCESS",
    "POLICIES",
    "BatchCost",
    "Budget",
    "Diagnosis",
    "Floor",
    "LruCurve",
    "OffDomain",
    "Outcome",
    "Planned",
    "Room",
    "Table",
    "Window",
    "Workload",
    "batch_cost",
    "belady_page_bound",
    "diagnose",
    "least_lru_distance",
    "lru_curve",
    "off_domain",
    "simulate",
    "trained",
    "window",
    "workload",
]
