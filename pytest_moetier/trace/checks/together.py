"""What several prompts' traces share that they should not: a dry run before each, or the same file given twice.

The paper found llama.cpp's dry run so: four prompts had a bit-identical first step (section 2, "Capturing routing").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pytest_moetier.trace.checks.base import CERTAIN_BITS, Check, Found, Policy, bits_of_choice, counted
from pytest_moetier.trace.findings import TraceFinding
from pytest_moetier.trace.records import SPEC_ACCEPT, Trace, make_trace

IDENTICAL_STEP = Check(
    "identical-step-0",
    "drop",
    ("keep", "drop", "refuse"),
    "Several prompts' traces begin with the same iteration to the bit and then differ: an engine's dry run.",
)
SAME_TRACE = Check("same-trace", "keep", ("keep", "refuse"), "Several files hold the same trace.")


def held_together(traces: Sequence[Trace], policy: Policy) -> tuple[list[Trace], tuple[TraceFinding, ...]]:
    """Return the traces, each with what concerns it among its findings, and all that was found.

    Raises:
        InputError: something found is to be refused.
    """
    left, said = list(traces), list[TraceFinding]()
    for alike in _groups([_content(trace) for trace in traces]):
        found = Found(
            what=f"{len(alike)} files hold the same trace",
            where=_sources(traces, alike),
            amount=counted(traces[alike[0]].n_iterations, "iteration"),
            expected="each trace once: figures over several prompts would count it again",
        )
        if SAME_TRACE.action(policy, found) == "refuse":
            raise SAME_TRACE.refused(found)
        said.append(SAME_TRACE.finding(found, "keep", "kept"))
        for at in alike:
            left[at] = _with(left[at], said[-1])
    for alike in _dry_runs([_first_step(trace) for trace in traces]):
        found = _identical(traces, alike, "decode iteration")
        said.append(_settle(left, alike, found, policy, prompt=False))
    for alike in _dry_runs([_first_step(trace.prefill, prompt=True) for trace in traces]):
        found = _identical(traces, alike, "pass over the prompt (or a beginning that the prompts share)")
        said.append(_settle(left, alike, found, policy, prompt=True))
    return left, tuple(said)


Step = tuple[object, object, str]
"""A trace's first iteration, its second, and what tells its prompt from another."""


def _first_step(trace: Trace | None, *, prompt: bool = False) -> Step | None:
    """Return the beginning of a trace; None where it could be the same by chance, or for a good reason."""
    if trace is None or trace.n_iterations < 2:
        return None
    bounds = trace.record_bounds()[:3]
    ends = trace.offsets[bounds].astype(np.int64).tolist()
    first, second = trace.experts[ends[0] : ends[1]], trace.experts[ends[1] : ends[2]]
    if prompt and len(first) <= trace.k * (int(bounds[1]) - int(bounds[0])):
        return None  # one position: prompts often begin with the same token
    if len(first) // trace.k * bits_of_choice(trace.n_experts, trace.k) < CERTAIN_BITS:
        return None
    shape = (trace.n_experts, trace.k, trace.layer[: int(bounds[1])].tobytes(), first.tobytes())
    return shape, second.tobytes(), (trace.prefill or trace).fingerprint


def _dry_runs(steps: Sequence[Step | None]) -> list[list[int]]:
    """Return groups of traces that begin alike although their prompts differ, and so does what comes next."""
    groups = _groups([(at,) if step is None else step[0] for at, step in enumerate(steps)])
    parts = [[step for at in alike if (step := steps[at])] for alike in groups]
    return [
        alike
        for alike, part in zip(groups, parts, strict=True)
        if len({step[1] for step in part}) > 1 and len({step[2] for step in part}) > 1
    ]


def _groups(keys: Sequence[object]) -> list[list[int]]:
    """Return the places of equal keys, where there are several."""
    places: dict[object, list[int]] = defaultdict(list)
    for at, key in enumerate(keys):
        places[key].append(at)
    return [alike for alike in places.values() if len(alike) > 1]


def _content(trace: Trace) -> object:
    return trace.fingerprint, trace.prefill and trace.prefill.fingerprint


def _sources(traces: Sequence[Trace], alike: Sequence[int]) -> str:
    named = list(dict.fromkeys(traces[at].source for at in alike))
    return ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")


def _identical(traces: Sequence[Trace], alike: Sequence[int], what: str) -> Found:
    return Found(
        what=f"a dry run of the engine: the first {what} is bit-identical in {len(alike)} traces that then differ",
        where=_sources(traces, alike),
        amount="1 iteration of each",
        dropped="left out of each",
        expected="prompts whose first iterations differ",
    )


def _settle(left: list[Trace], alike: Sequence[int], found: Found, policy: Policy, *, prompt: bool) -> TraceFinding:
    action = IDENTICAL_STEP.action(policy, found)
    if action == "refuse":
        raise IDENTICAL_STEP.refused(found)
    said = IDENTICAL_STEP.finding(found, action, found.dropped if action == "drop" else "kept")
    for at in alike:
        trace = left[at]
        if action == "drop" and prompt and trace.prefill is not None:
            trace = replace(trace, prefill=_without_first(trace.prefill, whole=False))
        elif action == "drop":
            trace = _without_first(trace, whole=True)
        left[at] = _with(trace, said)
    return said


def _without_first(trace: Trace, *, whole: bool) -> Trace:
    """Return a trace without its first iteration."""
    begin = int(trace.record_bounds()[1])
    first = int(trace.offsets[begin])
    counted_tokens = trace.n_iterations + trace.kind_counts()["spec_accept"]
    lost = 2 if int(trace.kind[0]) == SPEC_ACCEPT else 1
    return make_trace(
        iteration=trace.iteration[begin:] - np.uint32(1),
        layer=trace.layer[begin:],
        kind=trace.kind[begin:],
        offsets=trace.offsets[begin:] - np.uint64(first),
        experts=trace.experts[first:],
        n_experts=trace.n_experts,
        k=trace.k,
        synthetic=trace.synthetic,
        source=trace.source,
        layers=trace.layers,
        warnings=trace.warnings,
        findings=trace.findings,
        order=trace.order,
        expert_bytes=trace.expert_bytes,
        accepted_tokens=None if trace.accepted_tokens == counted_tokens else trace.accepted_tokens - lost,
        prefill=trace.prefill,
        whole=whole,
    )


def _with(trace: Trace, said: TraceFinding) -> Trace:
    return replace(trace, findings=(*trace.findings, said), warnings=(*trace.warnings, str(said)))
