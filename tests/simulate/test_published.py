"""What others published of their traces, and what their engine recorded of its own cache, come out of the simulation.

Event rule of the llama.cpp tables: event-atomic, an expert of a record counting where it stands last; the prompt, one
event per layer, comes first; an event larger than a layer's cache leaves exactly itself. Window: the prompt warms and
the whole decode is scored; the engine's own hit rate counts the prompt's lookups too. LFU keeps its counts across
eviction. The Kimi file is taken raw, access by access, from an empty cache.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pytest_moetier.simulate import Workload, least_lru_distance, simulate, workload
from pytest_moetier.trace.load import load_trace

TRACES = Path(os.environ.get("MOETIER_TRACES", "MOETIER_TRACES-is-not-set"))
BIGMOE, KIMI = TRACES / "bigmoe-on-edge", TRACES / "kimi-k3" / "expert_trace.bin"

bigmoe = pytest.mark.skipif(not BIGMOE.is_dir(), reason=f"no recorded traces: {BIGMOE} is not there (MOETIER_TRACES)")
kimi = pytest.mark.skipif(not KIMI.is_file(), reason=f"no recorded trace: {KIMI} is not there (MOETIER_TRACES)")

# name -> budget -> policy -> hit % of the decode
TABLES = {
    "qwen": {
        "500MiB": {"belady": 45.3, "lru": 0.0},
        "3000MiB": {"belady": 87.8, "lru": 70.6, "lfu-perfect": 71.3},
        "4000MiB": {"belady": 92.7, "lru": 80.3, "lfu-perfect": 80.8},
    },
    "gemma": {
        "500MiB": {"belady": 48.2, "lru": 0.0},
        "3000MiB": {"belady": 88.6, "lru": 73.1, "lfu-perfect": 75.5},
        "4000MiB": {"belady": 92.9, "lru": 81.9, "lfu-perfect": 83.4},
    },
}
PER_LAYER = {"qwen": {"3000MiB": 71.1, "4000MiB": 79.7}, "gemma": {"3000MiB": 74.8, "4000MiB": 82.2}}
ALL_LOOKUPS = {"qwen": 74.9, "gemma": 76.8}
CYCLE_MIB = {"qwen": 785, "gemma": 676}


def recorded(name: str) -> Workload:
    return workload(load_trace(BIGMOE / f"{name}.route.csv"), "event-atomic", prefill="before")


@bigmoe
@pytest.mark.parametrize("name", ["qwen", "gemma"])
def test_the_published_hit_rates_of_every_policy_and_budget_come_out_as_printed(name: str) -> None:
    for budget, policies in TABLES[name].items():
        for one in simulate(recorded(name), list(policies), [budget], window="decode"):
            assert round(100 * one.hit_rate, 1) == policies[one.policy], (one.policy, budget)


@bigmoe
@pytest.mark.parametrize("name", ["qwen", "gemma"])
def test_the_published_hit_rates_of_a_cache_for_each_layer_come_out_as_printed(name: str) -> None:
    budgets = list(PER_LAYER[name])
    done = simulate(recorded(name), ["lru"], budgets, allocation="layer", window="decode")
    assert {one.budget: round(100 * one.hit_rate, 1) for one in done} == PER_LAYER[name]


@bigmoe
@pytest.mark.parametrize("name", ["qwen", "gemma"])
def test_the_engines_own_hit_rate_counts_the_lookups_of_the_prompt_too(name: str) -> None:
    done = simulate(recorded(name), ["lru"], ["4000MiB"], window="cold")[0]
    assert round(100 * done.hit_rate, 1) == ALL_LOOKUPS[name]
    assert done.iterations == 129


@bigmoe
@pytest.mark.parametrize("name", ["qwen", "gemma"])
def test_lru_hits_on_exactly_the_lookups_that_hit_in_the_engine(name: str) -> None:
    rows = np.genfromtxt(
        (line for line in (BIGMOE / f"{name}.route.csv").open() if line[0].isdigit()), delimiter=",", usecols=(1, 7)
    )
    decode = rows[rows[:, 0] == 1]
    work = recorded(name)
    done = simulate(work, ["lru"], ["4000MiB"], window="decode", hit_sets=True)[0]
    assert done.hit_set is not None
    mine = done.hit_set[int(work.iteration_bounds()[1]) :]
    assert len(mine) == len(decode) == {"qwen": 36_864, "gemma": 23_040}[name]
    assert int((mine != (decode[:, 1] > 0)).sum()) == 0


@bigmoe
@pytest.mark.parametrize("name", ["qwen", "gemma"])
def test_below_the_one_token_cycle_global_lru_hits_nothing(name: str) -> None:
    work = recorded(name)
    floor = least_lru_distance(work, "decode")
    assert round(floor.cycle_bytes / 2**20) == CYCLE_MIB[name]
    assert floor.least is not None
    assert 500 << 20 < floor.least <= floor.cycle_bytes
    below, at = simulate(work, ["lru"], [f"{floor.least - 1}B", f"{floor.least}B"], window="decode")
    assert below.hits == 0
    assert at.hits > 0


@kimi
def test_the_kimi_file_taken_raw_comes_out_to_a_hundredth_of_a_point() -> None:
    work = workload(load_trace(KIMI, raw=True))
    slots = ["455", "911", "1823", "3647", "7294", "10941"]
    lru, belady = [36.24] * 4 + [49.19, 90.00], [39.42, 42.61, 48.99, 61.74, 84.59, 90.00]
    done = simulate(work, ["lru", "belady"], slots, window="cold")
    assert [round(100 * one.hit_rate, 2) for one in done] == lru + belady
    assert {one.accesses for one in done} == {100_096}
    assert len(np.unique(work.key)) == 10_010
    assert done[-1].misses == 10_010


@kimi
def test_without_the_repeats_of_the_kimi_file_most_of_its_reuse_is_gone() -> None:
    work = workload(load_trace(KIMI), prefill="before")
    done = simulate(work, ["lru"], ["10941"], window="cold")[0]
    assert done.accesses == 12 * 92 * 16
    assert done.misses == 10_010
    assert done.hit_rate < 0.5
