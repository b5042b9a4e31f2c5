"""A real engine, llama.cpp: who reads a mixture's experts, how, and what the page cache makes of it (paper section 9).

Without a model of the user's (``--moetier-engine-model``), two are generated for the session: OLMoE's dimensions with
experts of 816 KiB, Q8_0, and the same weights' shape in Q4_0. Their weights are random, so what their routers choose
is synthetic; what is read for it, and how fast, is not. The box is that of moe-offload-bench: page cache for 40% of the
experts, a device that may be read at 148 MB/s. Times are those of the decode; the first token is the prompt's.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from pytest_moetier.engine.arm import Arm
from pytest_moetier.engine.asked import DeviceRate, Ran, Replayed, Wanted

if TYPE_CHECKING:
    from pytest_moetier.engine.run import Token
    from pytest_moetier.engines import EngineHandle
    from pytest_moetier.span import Span

WALL, LIMIT = 0.4, 148_000_000


def box(policy: str = "plain", tokens: int = 0, **words: Any) -> Ran:  # noqa: ANN401 - fields of an arm
    """Return a run in the box."""
    return Ran(Arm(policy, capacity_share=WALL, read_limit=LIMIT, **words), tokens)


PLAIN, WILLNEED, POPULATE, RANDOM = (box(policy) for policy in ("plain", "willneed", "populate", "random"))
LOCKED = box(lock_spine=True)
KEPT, BACKGROUND = box("pread"), box("background")
"""moe-offload-bench's own design: pread into a scratch, then WILLNEED; and the same by a thread in the background."""
KEPT_LOCKED, COARSE = box("pread", lock_spine=True), box("pread", quantisation="q4_0")
AHEAD = tuple(box(tokens=8, read_ahead_kb=kb) for kb in (16, 128, 512, 2048, 8192))
"""Half the tokens: at 8 MiB one takes five seconds."""
ADMITTED, DROPPED = (Ran(Arm(policy), pair="admission") for policy in ("willneed", "drop"))
"""What is chosen is asked for alike; only what becomes of it afterwards differs."""
RESIDENT = Ran(Arm(), tokens=65)
"""No wall: after some tokens nothing is left to be read."""
TRACED = Ran(Arm(), tokens=65, capture=True)
KILLED = Ran(Arm(capacity_share=WALL), direct=True)
RATE = DeviceRate(LIMIT)
PAGE_CACHE, SCRATCH, WRITTEN = (
    Replayed(mode, WALL, LIMIT, TRACED) for mode in ("page_cache", "mmap_pread", "write_shared")
)
BUDGETS = tuple(Replayed(mode, WALL, LIMIT, TRACED) for mode in ("user_lru25", "user_lru50", "user_lru"))

HINTS = (WILLNEED, POPULATE, RANDOM, LOCKED)
ARMS = (PLAIN, *HINTS, KEPT, KEPT_LOCKED, BACKGROUND, COARSE, *AHEAD, ADMITTED, DROPPED, RESIDENT, TRACED)
REPLAYS = (PAGE_CACHE, SCRATCH, WRITTEN, *BUDGETS)
LAST = 16
"""Tokens at the end of a run without a wall that are held to be computed alone."""


def needs(*wanted: Wanted) -> pytest.MarkDecorator:
    """Say what a finding over several runs has measured."""
    return pytest.mark.parametrize("moetier_engine", [wanted], ids=["engine"], indirect=True)


def each(*wanted: Wanted) -> pytest.MarkDecorator:
    """Make a test of each thing that is measured."""
    one_each = [(one,) for one in wanted]
    return pytest.mark.parametrize("moetier_engine", one_each, ids=[one.id for one in wanted], indirect=True)


@each(*ARMS)
def test_arm(moetier_engine: EngineHandle) -> None:
    """One arm: every round proved, and the tokens those of every other run of the model."""
    moetier_engine.measure()
    (arm,) = moetier_engine.wanted
    moetier_engine.judge(different_ids=max(map(moetier_engine.strangers, moetier_engine.runs(arm))))


@each(KILLED)
def test_killed_load(moetier_engine: EngineHandle) -> None:
    """Weights that are loaded past the page cache are memory that nobody can take back: the wall ends the engine."""
    moetier_engine.measure()
    moetier_engine.judge()


@each(*REPLAYS)
def test_replay(moetier_engine: EngineHandle) -> None:
    """One way of reading what the engine's router chose, natively: every round proved."""
    moetier_engine.measure()
    moetier_engine.judge()


@each(RATE)
def test_io_ceiling(moetier_engine: EngineHandle) -> None:
    """What the device gives at most: sequential reads past the page cache, under the limit."""
    moetier_engine.measure()
    rate = moetier_engine.span("device_rate", RATE)
    moetier_engine.conclude({"io_ceiling": _scaled(rate, 1e-6)})


@needs(ADMITTED, DROPPED)
def test_admission(moetier_engine: EngineHandle) -> None:
    """Admitting what is read to the page cache against dropping it after every token, in balanced pairs."""
    kernel, drop = moetier_engine.runs(ADMITTED), moetier_engine.runs(DROPPED)
    moetier_engine.conclude(
        {
            # The seconds of a token have no part in dropping it: a kernel that refuses admission has none.
            "admission_speedup": moetier_engine.ratio("seconds_per_token", DROPPED, ADMITTED),
            "admission_speedup_with_load": moetier_engine.ratio("seconds_with_load", DROPPED, ADMITTED),
            "admission_bytes": moetier_engine.ratio("bytes_per_token", DROPPED, ADMITTED),
            "different_pairs": float(sum(one.sha256 != two.sha256 for one, two in zip(kernel, drop, strict=True))),
        }
    )


@needs(*ARMS)
def test_same_tokens(moetier_engine: EngineHandle) -> None:
    """Residency policy changes where bytes come from, never which: one model and prompt, one output."""
    runs = [run for found in moetier_engine.quantisations.values() for run in found]
    if len(runs) < 2:
        moetier_engine.not_examined("fewer than two proved runs")
    moetier_engine.conclude({"different_ids": float(sum(moetier_engine.strangers(run) > 0 for run in runs))})


@needs(TRACED, WILLNEED, PLAIN)
def test_page_cache_against_lru(moetier_engine: EngineHandle) -> None:
    """What the device gave the engine is what exact LRU of the observed residency misses, over the same choices."""
    moetier_engine.conclude(
        {"lru_ratio": moetier_engine.over_lru(WILLNEED), "lru_ratio_of_plain": moetier_engine.over_lru(PLAIN)}
    )


@needs(PLAIN, WILLNEED)
def test_hint_willneed(moetier_engine: EngineHandle) -> None:
    """MADV_WILLNEED on the experts that the router chose, against the plain mapping."""
    _against_plain(moetier_engine, WILLNEED)


@needs(PLAIN, POPULATE)
def test_hint_populate(moetier_engine: EngineHandle) -> None:
    """MADV_POPULATE_READ on them, against the plain mapping."""
    _against_plain(moetier_engine, POPULATE)


@needs(PLAIN, RANDOM)
def test_hint_random(moetier_engine: EngineHandle) -> None:
    """MADV_RANDOM on all of the mapping, against the plain one."""
    _against_plain(moetier_engine, RANDOM)


@needs(PLAIN, LOCKED)
def test_hint_spine_lock(moetier_engine: EngineHandle) -> None:
    """The spine locked, against the plain mapping."""
    _against_plain(moetier_engine, LOCKED)


@needs(*AHEAD)
def test_read_ahead(moetier_engine: EngineHandle) -> None:
    """Read-ahead multiplies what a mapping reads: bytes a token rise with it, faults fall."""
    rises = [moetier_engine.ratio("bytes_per_token", more, less) for less, more in pairwise(AHEAD)]
    moetier_engine.conclude(
        {
            "read_ahead_least_rise": min(rises, key=lambda one: one.value),
            "read_ahead_growth": moetier_engine.ratio("bytes_per_token", AHEAD[-1], AHEAD[0]),
            "read_ahead_faults": moetier_engine.ratio("majflt_per_token", AHEAD[0], AHEAD[1]),
        }
    )


@needs(TRACED, PAGE_CACHE, *BUDGETS)
def test_user_cache(moetier_engine: EngineHandle) -> None:
    """moe-offload-bench, finding 1: a cache in user space never beats the page cache, less so the larger it is."""
    against = [moetier_engine.ratio("seconds_per_iteration", one, PAGE_CACHE) for one in BUDGETS]
    moetier_engine.conclude(
        {
            "user_cache_best": min(against, key=lambda one: one.value),
            "user_cache_with_budget": moetier_engine.ratio("seconds_per_iteration", BUDGETS[-1], BUDGETS[0]),
        }
    )


@needs(TRACED)
def test_captured_skew(moetier_engine: EngineHandle) -> None:
    """moe-offload-bench, finding 2: no small hot set."""
    names = ("least_experts_for_80", "most_experts_for_80", "least_distinct_in_64", "most_distinct_in_64")
    moetier_engine.judge_trace(*names)


@needs(TRACED)
def test_captured_locality(moetier_engine: EngineHandle) -> None:
    """moe-offload-bench, finding 3: tokens share few experts with the one before, fewer with those before that."""
    moetier_engine.judge_trace("overlap_1", "overlap_8")


@needs(KEPT, COARSE)
def test_bytes_against_speed(moetier_engine: EngineHandle) -> None:
    """moe-offload-bench, finding 4: time grows more than bytes from one quantisation to a finer one."""
    size = moetier_engine.runs(KEPT)[0].expert_bytes / moetier_engine.runs(COARSE)[0].expert_bytes
    time = moetier_engine.ratio("seconds_per_token", KEPT, COARSE)
    moetier_engine.conclude({"engine_slower_than_bytes": _scaled(time, 1 / size), "bytes_ratio": size})


@needs(KEPT, COARSE)
def test_faults_per_byte(moetier_engine: EngineHandle) -> None:
    """moe-offload-bench, finding 5: major faults grow more than bytes."""
    size = moetier_engine.runs(KEPT)[0].expert_bytes / moetier_engine.runs(COARSE)[0].expert_bytes
    faults = moetier_engine.ratio("majflt_per_token", KEPT, COARSE)
    moetier_engine.conclude({"engine_faults_over_bytes": _scaled(faults, 1 / size)})


@needs(RESIDENT)
def test_compute_ceiling(moetier_engine: EngineHandle) -> None:
    """What the machine computes with everything resident: of tokens that waited for no read; and the rounds agree."""
    rates = [one for one in _computed(moetier_engine) if one]
    moetier_engine.conclude(
        {
            "compute_ceiling": median(rates) if rates else None,
            "compute_ceiling_tokens": float(min(map(len, _unwaiting(moetier_engine)))),
            "compute_ceiling_spread": max(rates) / min(rates) if len(rates) > 1 else None,
        },
        "one round, or no token without a read",
    )


@needs(RESIDENT, PLAIN, WILLNEED, POPULATE, KEPT, KEPT_LOCKED, COARSE, RATE)
def test_io_bound(moetier_engine: EngineHandle) -> None:
    """moe-offload-bench, finding 6: even the fastest quantisation is far below what the machine computes."""
    ceiling = median(_computed(moetier_engine))
    boxed = (PLAIN, WILLNEED, POPULATE, KEPT, KEPT_LOCKED, COARSE)
    fastest = max(boxed, key=lambda one: moetier_engine.metric("tokens_per_second", one).median)
    speeds = moetier_engine.metric("tokens_per_second", fastest).values
    device = moetier_engine.metric("device_rate", RATE).median
    read = [one / device for one in moetier_engine.metric("bytes_per_token", KEPT_LOCKED).values]
    moetier_engine.conclude(
        {
            "io_bound_gap": moetier_engine.over([ceiling] * len(speeds), speeds),
            "read_share": moetier_engine.over(read, moetier_engine.metric("seconds_per_token", KEPT_LOCKED).values),
        }
    )


@needs(KEPT, KEPT_LOCKED)
def test_locked_spine(moetier_engine: EngineHandle) -> None:
    """moe-offload-bench, finding 7: locking the spine is faster than the same design without, with fewer faults."""
    moetier_engine.conclude(
        {
            "engine_spine_lock_gain": moetier_engine.ratio("tokens_per_second", KEPT_LOCKED, KEPT),
            "engine_spine_lock_fewer_faults": moetier_engine.ratio("majflt_per_token", KEPT, KEPT_LOCKED),
        }
    )


@needs(TRACED, SCRATCH, WRITTEN)
def test_write_in_place(moetier_engine: EngineHandle) -> None:
    """moe-offload-bench, finding 7: reading into a shared writable mapping is slower, and all of it is written back."""
    back, read = (moetier_engine.metric(name, WRITTEN).median for name in ("written_bytes", "logical_bytes"))
    moetier_engine.conclude(
        {
            "engine_write_in_place_slower": moetier_engine.ratio("seconds_per_iteration", WRITTEN, SCRATCH),
            "engine_write_in_place_written_share": back / read,
        }
    )


@needs(KEPT, BACKGROUND)
def test_background(moetier_engine: EngineHandle) -> None:
    """moe-offload-bench, finding 7: reads in the background contend with the computation's own faults."""
    moetier_engine.conclude(
        {
            "engine_background_slower": moetier_engine.ratio("seconds_per_token", BACKGROUND, KEPT),
            "background_faults": moetier_engine.ratio("majflt_per_token", BACKGROUND, KEPT),
        }
    )


def _against_plain(engine: EngineHandle, hint: Ran) -> None:
    """Judge a hint's faults and bytes a token over the plain mapping's; what it does to the rate is told."""
    engine.conclude(
        {
            "hint_faults": engine.ratio("majflt_per_token", hint, PLAIN),
            "hint_bytes": engine.ratio("bytes_per_token", hint, PLAIN),
            "hint_speed": engine.ratio("tokens_per_second", hint, PLAIN),
        },
        ids=(hint.id,),
    )


def _unwaiting(engine: EngineHandle) -> list[list[Token]]:
    """Return of each round's last tokens those that waited for no read: all that they use was resident."""
    return [[one for one in run.decoded[-LAST:] if not one.majflt] for run in engine.runs(RESIDENT)]


def _computed(engine: EngineHandle) -> list[float]:
    """Return the tokens a second of those, by round; 0 where there is none."""
    return [len(tokens) / sum(one.seconds for one in tokens) if tokens else 0.0 for tokens in _unwaiting(engine)]


def _scaled(span: Span, factor: float) -> Span:
    return type(span)(span.low * factor, span.value * factor, span.high * factor)
