"""Memory of their own, advice, tables and batches that cannot be had: one message each, and no other cell is lost."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_moetier.advice import oracle, previous_token, write_advice
from pytest_moetier.host import procfs
from pytest_moetier.trace.records import Trace
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace

CELLS = """
import pytest

@pytest.mark.moetier({words})
def test_cells(moetier_cell):
    moetier_cell.measure()
    moetier_cell.judge()
"""
WITHOUT_LOCKING = ("--bounding-set=-ipc_lock,-sys_resource", "--inh-caps=-ipc_lock,-sys_resource")


@pytest.fixture
def trace() -> Trace:
    """A trace of 20 iterations for the small pool."""
    return synth_trace("kimi-k3", layers=2, experts=128, k=8, iterations=20, seed=1)


@pytest.fixture
def given(host: Any, trace: Trace) -> str:
    """The option that gives the trace."""
    write_trace(trace, host.folder / "trace.jsonl")
    return "--moetier-trace=trace.jsonl"


@pytest.fixture
def verdicts(host: Any) -> Callable[[], dict[str, str]]:
    """Return a call that reads each cell's verdict from ``verdicts.json``, by its id."""

    def read() -> dict[str, str]:
        results = json.loads((host.folder / "verdicts.json").read_text())["results"]
        return {one["cell"]: one["verdict"] for one in results}

    return read


JSON = "--moetier-json=verdicts.json"


# What is refused while collecting

MARKERS = {
    'mode="nonsense"': "mode 'nonsense' is unknown; expected one of page_cache",
    'mode=("page_cache", "hybrid0")': "mode 'hybrid0' asks for 0% of the capacity; expected 1 to 100",
    'mode="user_lru101"': "mode 'user_lru101' asks for 101% of the capacity; expected 1 to 100",
    'mode="mmap50"': "mode 'mmap50' has a share, and mmap no memory of its own",
    "mode=7": "mode '7' is unknown; expected one of page_cache",
    "mode=None": "mode None is no word; expected a word, or several",
    'mode="write_shared"': "mode write_shared on workload single; expected small_box, whose pool is thrown away",
    'mode="write_private", workload="small_box_q2"': "mode write_private on workload small_box_q2; expected small_box",
    'mode="write_private", workload="small_box", mechanism="balloon"': "mode write_private under balloon; expected ",
    'mode="direct", prefetch="fadvise_plan"': "mode direct with prefetch fadvise_plan; expected a mode that ",
    'prefetch="soon"': "prefetch 'soon' is unknown; expected one of none, fadvise_oracle",
    'workload="huge"': "workload 'huge' is unknown; expected one of single, batch4",
    'fill="slowly"': "fill 'slowly' is unknown; expected one of ",
    'spine="bent"': "spine 'bent' is unknown; expected one of none, plain, locked",
    'read_limit="fast"': "read_limit 'fast' is not a size; expected a size such as",
    "read_limit=None": "read_limit None is no word; expected a word, or several",
    "read_limit=-5": "read_limit '-5' is not a size; expected a size such as",
    "capacity=None": "capacity None is no word; expected a word, or several",
    'modes="mmap"': "marker moetier has ['modes']; expected only finding, capacity, ",
}


def test_a_marker_that_cannot_be_is_refused_while_collecting_and_the_other_tests_are_collected(host: Any) -> None:
    folder = host.folder / "markers"
    folder.mkdir()
    for number, words in enumerate(MARKERS):
        (folder / f"test_{number}.py").write_text(CELLS.format(words=words))
    (folder / "test_good.py").write_text(CELLS.format(words='mode=("hybrid1", "user_lfu100"), read_limit=1.5e6'))
    host.bench = "markers"
    ended = host.pytest("nowhere", "--collect-only", "--continue-on-collection-errors")
    assert ended.ret == pytest.ExitCode.TESTS_FAILED
    assert "Traceback" not in ended.text
    assert "settings.py" not in ended.text
    for number, said in enumerate(MARKERS.values()):
        message = ended.said(rf"pytest-moetier: markers/test_{number}\.py::test_cells: [^\n]*")
        assert f": {said}" in message
        assert "; next: see the test's marker moetier(...)" in message
    assert "test_cells[C30pct-cgroup-mglru_host-user_lfu100-1_5MBps]" in ended.text
    assert f"{len(MARKERS)} errors" in ended.text


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("mode=nonsense", "mode 'nonsense' is unknown; expected one of page_cache, "),
        ("mode=pinned_own101", "mode 'pinned_own101' asks for 101% of the capacity; expected 1 to 100"),
        ("threads=5000", "--moetier-threads is 5000; expected 1 to 1024"),
        ("compute=-1", "--moetier-compute '-1' is no time; expected seconds, 0 to 60"),
        ("compute=1e9", "--moetier-compute '1e9' is no time; expected seconds, 0 to 60"),
        ("min-recall=1.5", "--moetier-min-recall '1.5' is no share; expected 0 to 1"),
        ("min-recall=nan", "--moetier-min-recall 'nan' is no share; expected 0 to 1"),
    ],
)
def test_an_option_that_cannot_be_is_a_usage_error(host: Any, option: str, said: str) -> None:
    host.pytest("nowhere", "--collect-only", f"--moetier-{option}").refused(
        "ERROR: pytest-moetier: " + re.escape(said), ret=pytest.ExitCode.USAGE_ERROR
    )


def test_a_mode_that_writes_is_not_let_near_the_sessions_pool_by_an_option(host: Any, plain_pool: Path) -> None:
    before = sorted((one, one.stat().st_mtime_ns) for one in plain_pool.rglob("*"))
    ended = host.pytest(plain_pool, "--moetier-mode=write_shared")
    ended.refused(r"pytest-moetier: \S+: mode write_shared on workload single", ret=pytest.ExitCode.INTERRUPTED)
    assert "waiting for the host" not in ended.text
    assert sorted((one, one.stat().st_mtime_ns) for one in plain_pool.rglob("*")) == before


# Memory of their own


def test_a_capacity_without_room_for_its_own_memory_is_not_examined_and_the_others_are_measured(
    host: Any, small_pool: Path, verdicts: Callable[[], dict[str, str]]
) -> None:
    modes = ("page_cache", "pinned_own", "hybrid50", "user_lru", "user_lfu")
    host.write(CELLS.format(words=f"mode={modes}, capacity=('1MB', '30%')"))
    ended = host.pytest(small_pool, "--moetier-threads=4", JSON)
    for share, lacking in (("100%", "one expert"), ("50%", "one expert"), ("100%", "5 experts")):
        ended.refused(f"{share} of 1 MB with 4 threads leaves no room for {lacking} of 262 KB", ret=0)
    found = verdicts()
    assert {one for one, verdict in found.items() if verdict == "not_examined"} == {
        f"C1MB-cgroup-mglru_host-{one}" for one in modes[1:]
    }
    assert sorted({*found.values()}) == ["not_examined", "supported"]


def test_an_arena_that_may_not_be_locked_is_not_examined_and_the_page_cache_is(
    host: Any, small_pool: Path, verdicts: Callable[[], dict[str, str]]
) -> None:
    host.write(CELLS.format(words="mode=('page_cache', 'pinned_own', 'user_lru')"))
    prefix = ["prlimit", "--memlock=65536:65536", "setpriv", *WITHOUT_LOCKING]
    ended = host.start([*prefix, *host.pytest_argv(small_pool, JSON)]).finish()
    said = ended.refused(r"mlock of \d+ bytes refused \(Cannot allocate memory\): VmLck is 0 bytes", ret=0)
    assert "RLIMIT_MEMLOCK is 65536 bytes" in said
    assert "ulimit -l unlimited" in said
    assert [*verdicts().values()].count("supported") == 2
    assert verdicts()["C30pct-cgroup-mglru_host-pinned_own"] == "not_examined"


def test_a_cache_larger_than_what_is_available_is_not_examined(host: Any, hollow_pool: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(synth_trace("kimi-k3", layers=2, experts=896, k=1, iterations=12, seed=1), path)
    total = procfs.parse_meminfo(procfs.read_text("/proc/meminfo"))["MemTotal"] >> 20
    options = ("--moetier-mode=user_lru", f"--moetier-capacity={total - 1}MiB", f"--moetier-trace={path}")
    ended = host.pytest(hollow_pool, *options, "--moetier-stamps=none")
    assert "available" in ended.refused(r"\d+ slabs of \d+ bytes: \d+ bytes asked, \d+", ret=0)
    assert "1 skipped" in ended.text


# Advice


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "/nonexistent",
            "advice /nonexistent: No such file; expected --moetier-advice with a file, or one of oracle, ",
        ),
        ("a-folder", "advice a-folder: it is no plain file; expected --moetier-advice with a file"),
        ("a-pipe", "advice a-pipe: it is no plain file; expected --moetier-advice with a file"),
    ],
)
def test_advice_that_is_no_file_is_a_usage_error(host: Any, name: str, said: str) -> None:
    (host.folder / "a-folder").mkdir()
    os.mkfifo(host.folder / "a-pipe")
    ended = host.pytest("nowhere", f"--moetier-advice={name}")
    assert "moetier plan predict" in ended.refused("ERROR: pytest-moetier: " + said, ret=pytest.ExitCode.USAGE_ERROR)


def other(trace: Trace, path: Path) -> None:
    del trace
    write_advice(previous_token(synth_trace("kimi-k3", layers=2, experts=128, k=8, iterations=20, seed=2)), path)


def short(trace: Trace, path: Path) -> None:
    write_advice(previous_token(trace), path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:20]))


def cut(trace: Trace, path: Path) -> None:
    write_advice(previous_token(trace), path)
    path.write_bytes(path.read_bytes()[:2000])


def no_json(trace: Trace, path: Path) -> None:
    del trace
    path.write_text("previous token\n")


def mislabelled(trace: Trace, path: Path) -> None:
    write_advice(oracle(trace), path)
    path.write_text(path.read_text().replace('"kind":"oracle"', '"kind":"given"', 1))


def as_an_oracle(trace: Trace, path: Path) -> None:
    write_advice(oracle(trace), path)


BAD: dict[Callable[[Trace, Path], None], str] = {
    other: "given.jsonl, line 1: it was made for the trace ",
    short: "given.jsonl: it ends after 19 records, before iteration 7, layer 1; expected 44 records",
    cut: r"given.jsonl, line \d+: the line is cut off",
    no_json: "given.jsonl, line 1: no JSON",
    mislabelled: "given.jsonl: advice labelled given, but it is exactly what the trace chose",
    as_an_oracle: "--moetier-advice given.jsonl is labelled oracle; expected a predictor's plan",
}


@pytest.mark.parametrize("write", BAD, ids=lambda one: one.__name__)
def test_advice_that_is_not_for_this_trace_is_refused_before_the_host_is_taken(
    host: Any, plain_pool: Path, trace: Trace, given: str, write: Callable[[Trace, Path], None]
) -> None:
    write(trace, host.folder / "given.jsonl")
    host.write(CELLS.format(words="prefetch='fadvise_plan'"))
    ended = host.pytest(plain_pool, given, "--moetier-advice=given.jsonl")
    ended.refused(BAD[write])
    assert "waiting for the host" not in ended.text


def test_advice_that_names_nothing_is_not_examined_and_the_others_are_measured(
    host: Any, small_pool: Path, trace: Trace, given: str, verdicts: Callable[[], dict[str, str]]
) -> None:
    write_advice(previous_token(trace), host.folder / "given.jsonl")
    host.write(CELLS.format(words="prefetch=('none', 'fadvise_plan', 'blocking_plan', 'fadvise_oracle')"))
    ended = host.pytest(small_pool, given, "--moetier-advice=given.jsonl", "--moetier-min-recall=0.99", JSON)
    for one in ("fadvise_plan", "blocking_plan"):
        said = ended.refused(f"prefetch {one} by previous token, recall 0.000: it names nothing to read ahead", ret=0)
        assert "--moetier-min-recall" in said
    base = "C30pct-cgroup-mglru_host"
    assert verdicts() == {
        base: "supported",
        f"{base}-fadvise_oracle": "supported",
        f"{base}-fadvise_plan": "not_examined",
        f"{base}-blocking_plan": "not_examined",
    }


def test_a_replayer_killed_by_its_prefetch_thread_makes_the_run_invalid(host: Any, small_pool: Path) -> None:
    host.write(CELLS.format(words="prefetch='fadvise_oracle'"))
    one = host.start(host.pytest_argv(small_pool, "--moetier-iterations=2000"))
    one.until(": warm")
    pid = one.child("moetier-replay")
    (worker,) = [
        int(task.name)
        for task in Path(f"/proc/{pid}/task").iterdir()
        if (task / "comm").read_text() == "moetier-ahead\n"
    ]
    assert ctypes.CDLL(None).tgkill(pid, worker, signal.SIGKILL) == 0
    said = one.finish().refused("the replayer was killed by SIGKILL in the middle of the run", ret=10)
    assert said.count("; next: ") == 1


def test_advice_may_name_experts_that_a_dropping_mode_leaves_in_the_cache(host: Any, small_pool: Path) -> None:
    host.write(CELLS.format(words="mode='drop', prefetch='fadvise_plan'"))
    assert "1 passed" in host.pytest(small_pool, "--moetier-advice=previous-token").text


# Traces


def test_traces_too_few_or_of_another_model_cost_only_the_cells_that_need_them(
    host: Any, small_pool: Path, given: str, verdicts: Callable[[], dict[str, str]]
) -> None:
    wide = synth_trace("kimi-k3", layers=3, experts=128, k=8, iterations=20, seed=1)
    write_trace(wide, host.folder / "wide.jsonl")
    host.write(CELLS.format(words="mode=('page_cache', 'pinned_domain'), workload=('single', 'batch4')"))
    ended = host.pytest(small_pool, given, "--moetier-trace=code=wide.jsonl", JSON)
    ended.refused("2 traces given for a batch of 4 streams; expected 4 traces")
    ended.refused("wide.jsonl: the trace has 3 layers, the pool custom has 2")
    base = "C30pct-cgroup-mglru_host"
    assert verdicts() == {
        base: "supported",
        f"{base}-batch4": "not_examined",
        f"{base}-batch4-pinned_domain": "not_examined",
    }
    assert "1 passed, 2 skipped, 1 error" in ended.text


def test_a_finding_over_cells_says_why_there_are_none(host: Any, plain_pool: Path) -> None:
    write_trace(synth_trace("kimi-k3", layers=3, experts=128, k=8, iterations=20, seed=1), host.folder / "wide.jsonl")
    over = "\n\ndef test_over(moetier_curve):\n    moetier_curve.need(mode='page_cache')\n"
    host.write(CELLS.format(words="mode='page_cache'") + over)
    ended = host.pytest(plain_pool, "--moetier-trace=wide.jsonl")
    said = ended.said("not_examined test_over: no proved cell of mode page_cache: the trace has 3 layers, [^\n]*")
    assert (said.count("; expected "), said.count("; next: ")) == (1, 1)
    assert "1 skipped, 1 error" in ended.text


# Files


def test_a_predictor_on_a_full_disk_is_one_message_and_leaves_no_part_of_a_file(host: Any, given: str) -> None:
    del given
    (host.folder / "full").mkdir()
    script = 'mount -t tmpfs -o size=4k none full && head -c 4096 /dev/zero > full/it && "$@"; echo left: full/*'
    words = ("-m", "pytest_moetier.cli", "plan", "predict", "trace.jsonl", "full/a.jsonl", "--predictor", "oracle")
    ended = host.start(["unshare", "-m", "sh", "-c", script, "sh", sys.executable, *words]).finish()
    ended.refused("moetier: full/a.jsonl cannot be written: No space left on device", ret=0)
    assert ended.text.endswith("left: full/it\n")


def test_recalls_are_not_waited_for_from_a_pipe(host: Any, given: str) -> None:
    del given
    os.mkfifo(host.folder / "pipe")
    noisy = ("--predictor", "noisy-oracle", "--recall-file", "pipe")
    host.moetier("plan", "predict", "trace.jsonl", "a.jsonl", *noisy).refused("moetier: pipe is no plain file", ret=2)
