"""Policies through libcachesim: hit for hit ours where we have the same, in the same window, caches and units."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from pytest_moetier.cli import main
from pytest_moetier.errors import HarnessError, InputError
from pytest_moetier.simulate import Workload, simulate, workload
from pytest_moetier.simulate import others as module
from pytest_moetier.simulate.others import named, offered, others
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace

SAME = ("lru", "lfu", "belady")
SIZES = {"experts": (), "bytes": (1000, 1000, 2000)}
BUDGETS = {"experts": ("3/layer", "24", "8/layer", "40/layer", "25%"), "bytes": ("20kB", "40kB", "100kB", "25%")}
OFTEN = ("arc", "s3fifo", "sieve", "wtinylfu", "lirs", "2q", "fifo", "clock")

installed = pytest.mark.skipif(not offered(), reason="libcachesim is not installed: pip install libcachesim")


def work(unit: str = "experts", iterations: int = 60, semantics: str = "per-access") -> Workload:
    trace = synth_trace("qwen3-30b-a3b", iterations=iterations, layers=3)
    return workload(replace(trace, expert_bytes=SIZES[unit]), semantics)


@installed
@pytest.mark.parametrize("window", ["fair", "cold", "10:30"])
@pytest.mark.parametrize("allocation", ["global", "layer"])
@pytest.mark.parametrize("unit", SIZES)
def test_lru_lfu_and_belady_hit_where_ours_do(unit: str, allocation: str, window: str) -> None:
    same = {"allocation": allocation, "window": window, "hit_sets": True}
    ours = simulate(work(unit), SAME, BUDGETS[unit], **same)
    theirs = others(work(unit), SAME, BUDGETS[unit], **same)
    assert [one.policy for one in theirs] == [f"libcachesim:{one.policy}" for one in ours]
    assert sum(one.hits for one in ours) > 0
    for our, their in zip(ours, theirs, strict=True):
        # Which of two experts that are never used again goes makes no difference, unless they differ in size.
        if our.policy == "belady" and unit == "bytes":
            continue
        assert our.hit_set is not None
        assert their.hit_set is not None
        assert our.hit_set.tolist() == their.hit_set.tolist()
        assert our.as_json() | {"policy": ""} == their.as_json() | {"policy": ""}


@installed
def test_fifo_hits_as_a_plain_one_does() -> None:
    whole = work()
    (found,) = others(whole, ["fifo"], ["50"], window="cold", hit_sets=True)
    held: OrderedDict[int, None] = OrderedDict()
    hits = []
    for one in whole.key.tolist():
        hits.append(one in held)
        if not hits[-1]:
            if len(held) == 50:
                held.popitem(last=False)
            held[one] = None
    assert found.hit_set is not None
    assert found.hit_set.tolist() == hits
    assert found.hits == sum(hits) > 0


@installed
@pytest.mark.parametrize("unit", SIZES)
def test_every_policy_is_between_nothing_and_belady(unit: str) -> None:
    names = [one for one, name in offered().items() if name not in module._REFUSED]  # noqa: SLF001
    names = [one for one in names if unit == "experts" or one != "lirs"]  # one expert is above 1% of this pool
    assert set(OFTEN) - {"lirs"} <= set(names)
    (best,) = simulate(work(), ["belady"], ["25%"], window="cold")
    for one in others(work(unit), names, ["25%"], window="cold"):
        assert one.hits > 0
        assert unit == "bytes" or one.hits <= best.hits
        assert one.layer_hits is not None
        assert one.layer_hits.sum() == one.hits


@installed
@pytest.mark.parametrize("allocation", ["global", "layer"])
def test_the_number_of_threads_changes_nothing_even_where_chance_decides(allocation: str) -> None:
    def found(threads: int, budgets: list[str]) -> list[dict]:
        done = others(work(), ["random", "lecar", "cacheus"], budgets, allocation=allocation, threads=threads)
        return [one.as_json() for one in done]

    budgets = ["6/layer", "20/layer", "60/layer"]
    expected = found(1, budgets)
    assert found(3, budgets) == expected
    assert [one for one in found(1, budgets[::-1]) if one["budget"] == "20/layer"] == expected[1::3]


@installed
def test_a_part_of_a_small_cache_is_as_small_as_works() -> None:
    done = others(work(), OFTEN, ["6/layer"], allocation="layer")
    assert [one.policy for one in done] == [f"libcachesim:{one}" for one in OFTEN]
    assert all(one.hits for one in done)


@installed
@pytest.mark.parametrize(("policy", "budget"), [("slru", "3"), ("wtinylfu", "5"), ("s3fifo", "2"), ("lirs", "1")])
def test_a_cache_too_small_for_a_policys_parts_is_refused(policy: str, budget: str) -> None:
    name = offered()[policy]
    with pytest.raises(InputError, match=f"a cache of {budget} is too small for libcachesim's {name}: an expert"):
        others(work(), [policy], [budget])


@installed
def test_names_are_taken_as_people_write_them() -> None:
    done = others(work(), ["S3-FIFO", "W-TinyLFU", "libcachesim:lru", "2Q", "LRU-K"], ["25%"])
    assert [one.policy.removeprefix("libcachesim:") for one in done] == ["s3fifo", "wtinylfu", "lru", "2q", "lruk"]
    assert (named("lru"), named("lfu-perfect"), named("S3-FIFO")) == ("lru", "lfu-perfect", "libcachesim:s3fifo")


@installed
@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("lruu", "--policy lruu; expected ours: lru, lfu, lfu-perfect, static, belady; of libcachesim: arc, "),
        ("lrb", "--policy lrb: libcachesim's LRB is no policy to compare: it learns from far longer traces"),
    ],
)
def test_what_libcachesim_has_not_is_refused_with_what_there_is(policy: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        others(work(), ["arc", policy], ["25%"])
    assert str(refused.value).startswith(message)


@installed
def test_events_are_refused() -> None:
    with pytest.raises(InputError, match="libcachesim:arc over event-atomic events; expected --semantics per-access"):
        others(work(semantics="event-atomic"), ["arc"], ["25%"])


def test_without_libcachesim_one_line_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "libcachesim", None)
    file = tmp_path / "trace.jsonl"
    write_trace(synth_trace("qwen3-30b-a3b", iterations=10, layers=1), file)
    assert main(["simulate", str(file), "--policy", "lru,arc", "--budget", "25%"]) == 2
    said = capsys.readouterr()
    assert said.err.splitlines()[-1].endswith(
        "--policy libcachesim:arc is none of ours, and libcachesim is not installed; "
        "expected ours: lru, lfu, lfu-perfect, static, belady; next: pip install libcachesim"
    )
    assert not said.out


@installed
def test_a_crash_inside_libcachesim_is_said_and_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REFUSED", {})
    with pytest.raises(HarnessError, match="libcachesim's LFUDA ended its process with status -11 with a cache of 1;"):
        others(work(), ["lfuda"], ["1"])


@installed
def test_ctrl_c_ends_every_replay() -> None:
    seen: list[psutil.Process] = []

    def interrupt() -> None:
        limit = time.monotonic() + 60
        while not any(one.parent() in seen for one in seen) and time.monotonic() < limit:
            seen[:] = psutil.Process().children(recursive=True)  # the replay, and the process of its cache
        os.kill(os.getpid(), signal.SIGINT)

    whole = work(iterations=60)
    long = replace(
        whole,
        key=np.tile(whole.key, 2000),
        event=np.arange(2000 * len(whole.event_layer) + 1, dtype=np.uint64) * np.uint64(8),
        event_layer=np.tile(whole.event_layer, 2000),
        event_iteration=np.repeat(np.arange(60 * 2000, dtype=np.uint32), 3),
        n_iterations=60 * 2000,
        accepted=np.ones(60 * 2000, dtype=np.uint32),
    )
    waiting = threading.Thread(target=interrupt)
    waiting.start()
    with pytest.raises(KeyboardInterrupt):
        others(long, ["arc", "lirs"], ["24", "25%"])
    waiting.join()
    assert len(seen) >= 2
    _, alive = psutil.wait_procs(seen, timeout=30)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []


@installed
def test_the_command_shows_them_in_the_same_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.jsonl"
    write_trace(synth_trace("qwen3-30b-a3b", iterations=40, layers=2), file)
    words = ["simulate", str(file), "--policy", "libcachesim:lru,arc,lru", "--budget", "10%,25%"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[lines.index("") + 1 : lines.index("") + 6]}
    assert list(rows) == ["hit", "held", "libcachesim:lru", "libcachesim:arc", "lru"]
    assert rows["libcachesim:lru"] == rows["lru"]
    assert main([*words, "--json"]) == 0
    outcomes = json.loads(capsys.readouterr().out)["files"][0]["outcomes"]
    assert [one["policy"] for one in outcomes] == [one for one in list(rows)[2:] for _ in range(2)]
