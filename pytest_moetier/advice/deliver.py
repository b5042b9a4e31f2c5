"""Advice -> the lists that the replayer's worker takes, each with the access at which it is submitted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.advice.records import I64, Advice, need_same
from pytest_moetier.errors import InputError
from pytest_moetier.lists import ADVICE, ORACLE, Lists, sequence_crc
from pytest_moetier.plan import Plan
from pytest_moetier.trace.records import Trace


def to_lists(advice: Advice, trace: Trace, plan: Plan, lookahead: int = 1) -> Lists:
    """Return the lists that the replayer takes: a record's is submitted ``lookahead`` records before it is read.

    The trigger is the first access of that earlier record; records that have none so early are not advised, nor are
    empty lists kept. A plan of the trace's first iterations takes the advice for these alone.

    Raises:
        InputError: advice, trace and plan do not belong together, or the advice is not known so early.
    """
    need_same(advice, trace)
    n_records = _planned_records(trace, plan)
    _check_lookahead(advice, trace, lookahead)
    bounds = advice.offsets[: n_records + 1].astype(np.int64)
    counts = np.diff(bounds)
    counts[:lookahead] = 0
    submitted = np.flatnonzero(counts)
    ids = advice.experts[bounds[min(lookahead, n_records)] : bounds[-1]].astype(np.int64)
    pool_layers = np.array([pool for _, pool in plan.layer_map], dtype=np.int64)
    layers = np.repeat(pool_layers[np.searchsorted(trace.layers, trace.layer[:n_records])], counts)
    return Lists(
        kind=ADVICE,
        flags=ORACLE if advice.oracle else 0,
        pool_id=plan.pool_id,
        n_experts=plan.n_experts,
        n_accesses=plan.n_accesses,
        sequence_crc=sequence_crc(plan),
        offsets=np.concatenate([[0], np.cumsum(counts[submitted])]).astype(np.uint64),
        triggers=trace.offsets[submitted - lookahead].astype(np.uint64),
        ids=_places(plan, layers, ids),
    )


def _planned_records(trace: Trace, plan: Plan) -> int:
    """Return how many of the trace's records the plan reads."""
    if tuple(layer for layer, _ in plan.layer_map) != trace.layers:
        raise InputError("a plan that does not say which layers of the trace it reads", "one from `build_plan`")
    bounds = trace.access_bounds()[: plan.n_iterations + 1]
    read = plan.expert_id[plan.sequence]
    if not np.array_equal(plan.iterations, bounds) or not np.array_equal(read, trace.experts[: plan.n_accesses]):
        raise InputError("the plan reads another trace than the advice is for", f"a plan of {trace.source}")
    return int(trace.record_bounds()[plan.n_iterations])


def _check_lookahead(advice: Advice, trace: Trace, lookahead: int) -> None:
    """Refuse to submit a prediction before what it was made from is known."""
    most = trace.n_records
    if advice.kind == "markov":
        most = 1
    elif advice.kind == "previous_token":
        order = np.argsort(trace.layer, kind="stable")
        apart = np.diff(order)[trace.layer[order[1:]] == trace.layer[order[:-1]]]
        most = int(apart.min()) if len(apart) else most
    if not 1 <= lookahead <= most:
        raise InputError(f"advice submitted {lookahead} records ahead", f"1 to {most} for kind {advice.kind}")


def _places(plan: Plan, layers: I64, ids: I64) -> NDArray[np.uint32]:
    """Return the indices of experts among the plan's."""
    known = plan.expert_layer.astype(np.int64) << 32 | plan.expert_id
    order = np.argsort(known, kind="stable")
    wanted = layers << 32 | ids
    at = np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)
    missing = np.flatnonzero(known[order[at]] != wanted)
    if len(missing):
        one = int(missing[0])
        raise InputError(
            f"the advice names expert {ids[one]} of the pool's layer {layers[one]}",
            "experts that the pool holds",
            "create a pool of the trace's model",
        )
    return order[at].astype(np.uint32)
