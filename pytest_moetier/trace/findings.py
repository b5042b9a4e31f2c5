"""What a check found in a trace: what, where, how much, what was done about it, and how to have it otherwise."""

from __future__ import annotations

from dataclasses import dataclass

ACTIONS = ("keep", "drop", "refuse")


@dataclass(frozen=True, slots=True)
class TraceFinding:
    """One finding of one check.

    Attributes:
        check: the check's name, as ``--on NAME=ACTION`` takes it.
        what: what was found, in words.
        where: lines, layers or iterations.
        amount: how much of the trace it concerns.
        done: what was done about it.
        override: the option that changes it; empty when nothing else can be done.
    """

    check: str
    what: str
    where: str
    amount: str
    done: str
    override: str = ""

    def __str__(self) -> str:
        """Return one sentence."""
        change = f" (otherwise: {self.override})" if self.override else ""
        return f"{self.check}: {self.what}, {self.where}, {self.amount}: {self.done}{change}"
