"""What must hold of a run of the engine before it counts (paper sections 9 and 10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_moetier.engine.abi import BACKEND
from pytest_moetier.engine.run import EngineOomRun, EngineRun
from pytest_moetier.proof.control import in_wall, own_bytes, rate, slack, swap
from pytest_moetier.proof.killed import oom
from pytest_moetier.proof.lines import FLAGGED, Invariant, Proof, line
from pytest_moetier.proof.traffic import counting, witnesses
from pytest_moetier.units import format_bytes

DISTINCT_SHARE = 0.25
COMMON_SHARE = 0.5
LEAST_TOKENS = 8
"""An output of fewer says nothing of its variety."""
LEFT_SHARE, LEFT_BYTES = 0.02, 4 << 20
"""What may stay cached of the experts after a drop: pages under a read that was begun, and large folios at a border."""
OWN_SHARE, OWN_BYTES = 0.5, 512 << 20
"""Of anonymous memory: weights that were copied or repacked into it would be the experts' bytes or more."""


def examine_engine(run: EngineRun | EngineOomRun) -> Proof:
    """Return every invariant of ``run``, proved or not."""
    if isinstance(run, EngineOomRun):
        return Proof(tuple(oom(run)))
    found: list[Invariant] = []
    for group in (_engine, _output, _choices, _wall, _memory, _device):
        found.extend(group(run))
    return Proof(tuple(found))


def _engine(run: EngineRun) -> Iterator[Invariant]:
    facts = run.facts
    repacked = [one for one in facts.buffers if "REPACK" in one]
    yield line(
        "engine_backend",
        f"computed on {BACKEND}",
        f"{facts.backend} ({facts.system_info})",
        ok=facts.backend == BACKEND,
    )
    yield line(
        "engine_mapped",
        "the weights mapped from the model's files, none repacked",
        f"load mode {run.load_mode}, mapped: {', '.join(facts.maps) or 'nothing'}"
        + "".join(f", {one}" for one in repacked),
        ok=run.load_mode == "mmap" and len(facts.maps) > 0 and not repacked,
    )
    yield line(
        "read_ahead",
        f"{run.arm.read_ahead_kb} KiB of the model's device",
        f"{facts.read_ahead_kb} KiB",
        ok=None if facts.read_ahead_kb is None else facts.read_ahead_kb == run.arm.read_ahead_kb,
    )
    yield line(
        "damon_off", "no part of DAMON running", ", ".join(facts.damon) or "none", ok=not facts.damon, otherwise=FLAGGED
    )


def _output(run: EngineRun) -> Iterator[Invariant]:
    ids = run.ids
    yield line(
        "engine_tokens",
        f"{run.tokens_asked} tokens, told one by one as at the end",
        f"{len(ids)} tokens",
        ok=len(ids) == run.tokens_asked and ids == run.told_ids,
    )
    distinct, common = len(set(ids)), max(Counter(ids).values(), default=0)
    yield line(
        "engine_output",
        f"at least {DISTINCT_SHARE:.0%} distinct ids, none above {COMMON_SHARE:.0%}",
        f"{distinct} distinct of {len(ids)}, the most common {common} times",
        ok=distinct >= DISTINCT_SHARE * len(ids) and common <= COMMON_SHARE * len(ids)
        if len(ids) >= LEAST_TOKENS
        else None,
    )


def _choices(run: EngineRun) -> Iterator[Invariant]:
    found = run.choices
    if found is None:
        return
    layers = len(set(found.layer.tolist()))
    rows = int((~found.prefill).sum())
    due = (len(run.ids) - 1) * layers
    checked = f", {found.different} of {found.compared} differ from the logits" if found.compared else ""
    yield line(
        "engine_choices",
        f"{due} choices in the decode, a layer and token each, and none that differs from the router's logits",
        f"{rows} choices{checked}",
        ok=rows == due and not found.different,
    )


def _wall(run: EngineRun) -> Iterator[Invariant]:
    yield from rate(run.arm.read_limit, run.read_limit)
    if run.enforced is None or run.ending is None or run.ready.go is None:
        return
    end = run.end.counters
    yield from in_wall(run.enforced, run.ending, run.ready.go, run.decode.counters, end)
    yield swap(end)
    if end.scope is None:
        return
    own = own_bytes(end.scope.anon_bytes, end.scope.kernel_bytes)
    yield slack(run.enforced, own)
    room = (run.enforced.limit_bytes or 0) - (own or 0)
    read = [one.device_read_bytes for one in (run.prefill, run.decoding)]
    if run.arm.policy == "drop" or None in read or sum(one or 0 for one in read) <= room:
        return
    hits = end.scope.limit_hits
    yield line(
        "wall_reached",
        f"limit hit ({format_bytes(sum(one or 0 for one in read))} read, the limit leaves the cache"
        f" {format_bytes(room)})",
        f"{hits} hits",
        ok=None if hits is None else hits > 0,
    )


def _memory(run: EngineRun) -> Iterator[Invariant]:
    allowed = max(LEFT_SHARE * run.expert_bytes, LEFT_BYTES)
    ready = run.ready.resident
    yield line(
        "cache_dropped",
        f"at most {format_bytes(allowed)} of the experts resident before the prompt",
        format_bytes(ready.experts or 0),
        ok=None if ready.experts is None else ready.experts <= allowed,
    )
    drops = [None if one is None else one.drop_pagecache for one in (run.ready.go, run.end.counters)]
    yield line(
        "no_cache_drop",
        "nobody dropped the host's page cache between prompt and end",
        f"{drops[0]} -> {drops[1]} drops",
        ok=None if None in drops else drops[0] == drops[1],
    )
    if run.arm.policy == "drop":
        known = [one for one in run.dropped if one is not None]
        yield line(
            "engine_dropped",
            f"a drop after each token, at most {format_bytes(allowed)} of the experts resident after it",
            f"{len(run.dropped)} drops, {format_bytes(max(known, default=0))} at most",
            ok=None
            if len(known) < len(run.dropped)
            else len(run.dropped) >= len(run.decoded) and max(known, default=0) <= allowed,
        )
    least, most = (run.spine_bytes, run.locked_bytes) if run.arm.lock_spine else (0, 0)
    yield line(
        "spine_locked",
        f"VmLck from {least} to {most} B at the end",
        f"{run.locked_observed} B",
        ok=None if run.locked_observed is None else least <= run.locked_observed <= most,
    )
    room = max(OWN_SHARE * run.expert_bytes, OWN_BYTES)
    yield line(
        "engine_own_memory",
        f"anonymous memory of the engine at most {format_bytes(room)}: no copy of the weights",
        format_bytes(run.anon_bytes or 0),
        ok=None if run.anon_bytes is None else run.anon_bytes <= room,
    )


def _device(run: EngineRun) -> Iterator[Invariant]:
    for interval in (run.prefill, run.decoding):
        yield from witnesses(interval)
    yield from counting(run.end.counters, run.loop_dio, run.image_resident_bytes, inflight_zero=run.inflight_zero)
