"""Contamination: what a trace file holds beside the routing of a decode, found and, where that is safe, taken out.

Each check has a name, and what is done about what it finds can be chosen by that name (``--on NAME=ACTION``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_moetier.trace.findings import TraceFinding
from pytest_moetier.trace.records import Trace
from pytest_moetier.trace.rows import Rows

Policy = Mapping[str, str]
"""Check name -> action, where the user wants another than the default."""


def check_rows(rows: Rows, policy: Policy) -> tuple[Rows, tuple[TraceFinding, ...]]:
    """Return the rows that are left, and what was found; ``rows`` are arranged (see ``parser.arrange``)."""
    del policy
    return rows, ()


def check_trace(trace: Trace, policy: Policy) -> tuple[TraceFinding, ...]:
    """Return what is suspicious in a whole trace."""
    del trace, policy
    return ()


def check_together(traces: Sequence[Trace], policy: Policy) -> tuple[list[Trace], tuple[TraceFinding, ...]]:
    """Return the traces that are left of several prompts' traces, and what they share that they should not."""
    del policy
    return list(traces), ()


def chosen(policy: Policy, *, raw: bool) -> Policy:
    """Return the action of every check."""
    del raw
    return policy
