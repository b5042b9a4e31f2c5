"""A run of the engine counts only when nothing in it contradicts what was meant to be measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moetier.engine.arm import Arm
from pytest_moetier.engine.proof import examine_engine
from pytest_moetier.engine.run import EngineRun, Token
from pytest_moetier.proof.lines import INVARIANTS

sys.path.insert(0, str(Path(__file__).parent))
from real_engine import ASK, lab_of


@pytest.fixture(scope="module")
def dropped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineRun]:
    """A real run with a wall, a read limit, a locked spine, drops and captured choices."""
    arm = Arm("drop", lock_spine=True, read_ahead_kb=64, read_limit=50_000_000, capacity_share=4.0)
    with lab_of(tmp_path_factory.mktemp("proof")) as (lab, _):
        yield lab.run(arm, replace(ASK, capture=True, logits=True))


def test_a_run_as_asked_is_proved_by_invariants_with_names(dropped: EngineRun) -> None:
    proof = examine_engine(dropped)
    assert [one.name for one in proof.broken] == []
    names = {one.name for one in proof.invariants}
    assert names <= INVARIANTS
    assert {
        "engine_backend",
        "engine_dropped",
        "spine_locked",
        "read_limit",
        "limit_read_back",
        "foreign_share",
    } <= names
    assert any("CPU_Mapped model buffer" in one for one in dropped.facts.buffers)
    assert dropped.choices is not None
    assert (dropped.choices.compared, dropped.choices.different) == (len(dropped.choices.layer), 0)


def _tokens(run: EngineRun, ids: list[int]) -> EngineRun:
    told = tuple(Token(one, "decode", 0.1, 0, 0) for one in ids)
    return replace(run, tokens=told, told_ids=tuple(ids), tokens_asked=len(ids), dropped=(0,) * len(ids), choices=None)


def _ready(run: EngineRun, experts: int) -> EngineRun:
    return replace(run, ready=replace(run.ready, resident=replace(run.ready.resident, experts=experts)))


def _read_by_others(run: EngineRun) -> EngineRun:
    return replace(run, decoding=replace(run.decoding, process_read_bytes=0, device_read_bytes=2 << 20))


def _maps(run: EngineRun) -> EngineRun:
    return replace(run, facts=replace(run.facts, maps=()))


SPOILED: dict[str, tuple[str, Callable[[EngineRun], EngineRun]]] = {
    "another device computes": (
        "engine_backend",
        lambda run: replace(run, facts=replace(run.facts, backend="CPU+CUDA0")),
    ),
    "loaded past the cache": ("engine_mapped", lambda run: replace(run, load_mode="direct_io")),
    "nothing mapped": ("engine_mapped", _maps),
    "weights repacked": (
        "engine_mapped",
        lambda run: replace(run, facts=replace(run.facts, buffers=("CPU_REPACK model buffer size = 9 MiB",))),
    ),
    "another read-ahead": ("read_ahead", lambda run: replace(run, facts=replace(run.facts, read_ahead_kb=128))),
    "a token short": ("engine_tokens", lambda run: replace(run, tokens=run.tokens[:-1], choices=None)),
    "other ids at the end": ("engine_tokens", lambda run: replace(run, told_ids=run.told_ids[::-1])),
    "one id throughout": ("engine_output", lambda run: _tokens(run, [3] * 12)),
    "three ids in turn": ("engine_output", lambda run: _tokens(run, [1, 2, 3] * 5)),
    "one id in most places": ("engine_output", lambda run: _tokens(run, [1] * 7 + [2, 3, 4, 5])),
    "a choice against the logits": (
        "engine_choices",
        lambda run: replace(run, choices=replace(run.choices, different=1)),  # type: ignore[type-var]
    ),
    "no limit": ("read_limit", lambda run: replace(run, read_limit=0)),
    "another wall": (
        "limit_read_back",
        lambda run: replace(run, enforced=replace(run.enforced, limit_bytes=1 << 40)),  # type: ignore[type-var]
    ),
    "another scope": (
        "scope_identity",
        lambda run: replace(run, ending=replace(run.ending, scope_identity=None)),  # type: ignore[type-var]
    ),
    "a full cache": ("cache_dropped", lambda run: _ready(run, 1 << 30)),
    "a drop that left all": ("engine_dropped", lambda run: replace(run, dropped=(*run.dropped[:-1], 1 << 30))),
    "no drop": ("engine_dropped", lambda run: replace(run, dropped=())),
    "nothing locked": ("spine_locked", lambda run: replace(run, locked_observed=0)),
    "weights copied": ("engine_own_memory", lambda run: replace(run, anon_bytes=1 << 40)),
    "others read": ("foreign_share", _read_by_others),
    "requests in flight": ("inflight", lambda run: replace(run, inflight_zero=False)),
    "a loop device through the cache": ("loop_direct_io", lambda run: replace(run, loop_dio=(True, False))),
}


@pytest.mark.parametrize("what", SPOILED)
def test_what_contradicts_it_breaks_its_invariant_alone(dropped: EngineRun, what: str) -> None:
    name, spoil = SPOILED[what]
    assert [one.name for one in examine_engine(spoil(dropped)).broken] == [name]


def test_what_the_host_does_not_show_is_unobserved_and_not_held(dropped: EngineRun) -> None:
    hidden = replace(
        dropped,
        anon_bytes=None,
        locked_observed=None,
        dropped=(None,) * len(dropped.dropped),
        decoding=replace(dropped.decoding, device_read_bytes=None),
    )
    proof = examine_engine(hidden)
    assert not proof.broken
    assert set(proof.unobserved) == {
        "engine_own_memory",
        "spine_locked",
        "engine_dropped",
        "device_two_witnesses",
        "foreign_share",
    }
