"""The accounting invariants of a run, each with what was expected and what was observed (paper section 10, the ledger).

A run is proved when no invariant is broken. One that the host cannot observe is ``unobserved``: it is named, and a
bound that needs it is then not examined. ``flagged`` invariants lower what may be claimed without making the run false.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_moetier.figures import Demand, Figures
from pytest_moetier.proof.control import control
from pytest_moetier.proof.killed import oom
from pytest_moetier.proof.lines import BROKEN, FLAGGED, HELD, INVARIANTS, UNOBSERVED, Invariant, Proof
from pytest_moetier.proof.memory import charge, own_memory
from pytest_moetier.proof.traffic import delivery, device, physics, steadiness
from pytest_moetier.replay import OomRun, Run

__all__ = [
    "BROKEN",
    "FLAGGED",
    "HELD",
    "INVARIANTS",
    "UNOBSERVED",
    "Invariant",
    "Proof",
    "ProvedRun",
    "examine",
    "prove",
]


@dataclass(frozen=True, slots=True)
class ProvedRun:
    """A run whose proof is complete, with its figures. Only :func:`prove` makes one."""

    run: Run | OomRun
    figures: Figures
    proof: Proof


def prove(run: Run, demand: Demand, figures: Figures) -> ProvedRun:
    """Return ``run`` with its proof.

    Raises:
        AccountingError: an invariant is broken; the message names each one, expected and observed.
    """
    proof = examine(run, demand, figures)
    proof.require()
    return ProvedRun(run, figures, proof)


def examine(run: Run | OomRun, demand: Demand, figures: Figures) -> Proof:
    """Return every invariant of ``run``, proved or not."""
    if isinstance(run, OomRun):
        return Proof(tuple(oom(run)))
    found: list[Invariant] = []
    for group in (control, charge, own_memory, delivery, device):
        found.extend(group(run, demand))
    found.extend(physics(run, demand, figures))
    found.extend(steadiness(figures))
    return Proof(tuple(found))
