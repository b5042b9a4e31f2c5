"""Policies change where bytes come from, never which: the same tokens, and totals that add up."""

from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_moetier.engine.arm import POLICIES
from pytest_moetier.engine.policies import Weights
from pytest_moetier.engine.selftest import job_for, run_plainly

_TOKENS = 6


def _one(events: tuple[Any, ...], name: str) -> Any:
    return next(one for one in events if one["event"] == name)


@pytest.fixture(scope="module")
def plain(tiny: Path) -> tuple[Any, ...]:
    """The events of a plain run."""
    return run_plainly(replace(job_for(tiny, tokens=_TOKENS), capture=True))


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_a_policy_changes_no_token(tiny: Path, plain: tuple[Any, ...], policy: str) -> None:
    job = job_for(tiny, tokens=_TOKENS)
    events = run_plainly(replace(job, policy=policy))
    assert events[-1]["sha256"] == plain[-1]["sha256"]
    totals = _one(events, "policy")
    # What every call of the engine used, each expert once: the bytes that a policy asked for.
    chosen = sum(
        len({expert for row in layer["experts"] for expert in row})
        for one in plain
        if one["event"] == "choice"
        for layer in one["layers"]
    )
    expert_bytes = sum(job.layers[0].length)
    if policy in {"pread", "background"}:
        begun = chosen * 3 - totals["unread"]
        assert totals["read_bytes"] == begun * expert_bytes // 3
    elif policy == "random":
        assert totals["calls"] == len(_one(events, "loaded")["maps"])
    else:
        assert chosen * expert_bytes <= totals["advised_bytes"] <= chosen * (expert_bytes + 3 * 2 * mmap.PAGESIZE)


def test_a_drop_after_each_token_leaves_at_most_the_pages_shared_with_the_spine(tiny: Path) -> None:
    events = run_plainly(replace(job_for(tiny, tokens=_TOKENS), policy="drop"))
    dropped = [one["resident_bytes"] for one in events if one["event"] == "dropped"]
    if dropped[0] is None:
        pytest.skip("this kernel has no cachestat")
    assert len(dropped) == _TOKENS
    assert max(dropped) <= 6 * 2 * mmap.PAGESIZE  # six tensors, two borders each


def test_a_locked_spine_is_all_that_the_reset_leaves(tiny: Path) -> None:
    free, locked = (
        run_plainly(replace(job_for(tiny), lock_spine=on, capture_paths=("/proc/self/status",))) for on in (False, True)
    )
    assert _one(free, "reset")["locked_bytes"] == 0
    said = _one(locked, "reset")["locked_bytes"]
    assert 0 < said < tiny.stat().st_size
    status = _one(locked, "capture")["files"][0]["text"]
    held = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmLck"))
    assert 0 < held <= said  # a page with two ends of the spine counts twice in what was asked


def test_experts_and_spine_are_the_whole_of_a_mapping(tiny: Path) -> None:
    with tiny.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        weights = Weights(job_for(tiny))
        experts = sum(length for area in weights.areas for _, length in weights.spans(*area))
        spine = sum(length for _, length in weights.spine())
        pages = -(-len(mapping) // mmap.PAGESIZE) * mmap.PAGESIZE
    assert experts == 2 * 8 * 3 * 64 * 64 * 34 // 32
    assert experts + spine == pages
