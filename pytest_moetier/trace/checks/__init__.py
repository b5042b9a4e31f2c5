"""Contamination: what a trace file holds beside the routing of a decode, found and, where that is safe, taken out.

Each check has a name, and what is done about what it finds can be chosen by that name (``--on NAME=ACTION``): ``keep``
it and say so, ``drop`` it (leave it out, or repair it), or ``refuse`` the file. An action that cannot be is not
offered: a pass that names an expert twice, say, is no record of a trace. The checks themselves are in
the modules of this package; here is the order and the policy (paper section 2, "Capturing routing").
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_moetier.errors import InputError
from pytest_moetier.trace.checks.base import Check, Policy, RowCheck, TraceCheck
from pytest_moetier.trace.checks.ids import out_of_range, repeated_expert, shared_experts, strided_view
from pytest_moetier.trace.checks.layers import draft_layer, missing_layers, pruned_prefill
from pytest_moetier.trace.checks.passes import (
    doubled_iteration,
    duplicate_keys,
    profile_pass,
    re_prefill,
    warm_up,
)
from pytest_moetier.trace.checks.statistics import uniform_ids
from pytest_moetier.trace.checks.together import IDENTICAL_STEP, SAME_TRACE, held_together
from pytest_moetier.trace.findings import TraceFinding
from pytest_moetier.trace.records import Trace
from pytest_moetier.trace.rows import Rows

__all__ = ["CHECKS", "Policy", "check_rows", "check_together", "check_trace", "chosen", "listing"]

ROW_CHECKS: tuple[RowCheck, ...] = (
    # whole passes that are none of the text first: whatever else is wrong with them is then of no matter
    profile_pass,
    warm_up,
    shared_experts,
    out_of_range,
    duplicate_keys,
    doubled_iteration,
    re_prefill,
    strided_view,
    repeated_expert,
    missing_layers,
    pruned_prefill,
    draft_layer,
)
"""In the order in which they look, each at what those before it left."""
TRACE_CHECKS: tuple[TraceCheck, ...] = (uniform_ids,)
CHECKS: dict[str, Check] = {one.name: one for one in (*ROW_CHECKS, *TRACE_CHECKS, IDENTICAL_STEP, SAME_TRACE)}


def check_rows(rows: Rows, policy: Policy) -> tuple[Rows, tuple[TraceFinding, ...]]:
    """Return the rows that are left, and what was found; ``rows`` are arranged (see ``parser.arrange``).

    Raises:
        InputError: something found is to be refused, or nothing is left without it.
    """
    said = []
    for check in ROW_CHECKS:
        found = check.look(rows)
        if found is not None:
            rows, finding = check.settle(rows, found, policy)
            said.append(finding)
    return rows, tuple(said)


def check_trace(trace: Trace, policy: Policy) -> tuple[TraceFinding, ...]:
    """Return what is suspicious in a whole trace.

    Raises:
        InputError: something found is to be refused.
    """
    said = []
    for check in TRACE_CHECKS:
        found = check.look(trace)
        if found is not None:
            if check.action(policy, found) == "refuse":
                raise check.refused(found)
            said.append(check.finding(found, "keep", "kept"))
    return tuple(said)


def check_together(traces: Sequence[Trace], policy: Policy) -> tuple[list[Trace], tuple[TraceFinding, ...]]:
    """Return the traces, each with what concerns it among its findings, and what they share that they should not.

    Raises:
        InputError: something found is to be refused.
    """
    return held_together(traces, policy)


def chosen(policy: Policy, *, raw: bool) -> Policy:
    """Return the action of every check; one whose default depends on what it finds is left out where none was chosen.

    Args:
        policy: check name -> action, where the user wants another than the default.
        raw: everything is kept, and what cannot be kept refused, except as ``policy`` says.

    Raises:
        InputError: no such check, or an action that it does not offer.
    """
    for name, action in policy.items():
        if name not in CHECKS:
            raise InputError(f"no check {name!r}", "one of " + ", ".join(CHECKS), "moetier trace check --list")
        if action not in CHECKS[name].actions:
            raise InputError(
                f"--on {name}={action}", f"{name} with one of " + ", ".join(CHECKS[name].actions), f"--on {name}=ACTION"
            )
    if raw:
        return {one.name: "keep" if "keep" in one.actions else "refuse" for one in CHECKS.values()} | dict(policy)
    return {one.name: one.default for one in CHECKS.values() if one is not missing_layers} | dict(policy)


def listing() -> list[tuple[str, str, tuple[str, ...], str]]:
    """Return name, default action, offered actions and description of every check, in the order in which they look."""
    return [(one.name, one.default, one.actions, one.what) for one in CHECKS.values()]
