"""Sweeps: the same figures in this process and on a cluster, a worker killed in the middle of it included."""

from __future__ import annotations

import importlib.util
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_moetier.cli import main
from pytest_moetier.errors import InputError
from pytest_moetier.simulate import POLICIES, Outcome, simulate, sweep, workload
from pytest_moetier.simulate.others import named, offered, others
from pytest_moetier.simulate.sweep import Ask, Origin, Task
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace

BUDGETS = ("4/layer", "10%", "25%", "50%", "100%")
EVERY = (*POLICIES, *(("random",) if offered() else ()))
READY_SECONDS = 60

clustered = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="distributed is not installed: pip install distributed"
)


@dataclass
class Cluster:
    """A scheduler and its workers, each a process."""

    address: str
    folder: Path
    workers: list[subprocess.Popen[bytes]]

    def client(self) -> Any:
        import distributed  # noqa: PLC0415

        return distributed.Client(self.address, set_as_default=False)


def started(folder: Path, kind: str, *words: str) -> subprocess.Popen[bytes]:
    log = (folder / f"{kind}.log").open("ab")
    command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *words]
    env = os.environ | {"TMPDIR": str(folder)}  # what is killed leaves something behind
    return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=env)


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    file = folder / "scheduler.json"
    words = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
    processes = [started(folder, "scheduler", *words)]
    try:
        limit = time.monotonic() + READY_SECONDS
        while not file.exists() or not (address := _address(file)):
            assert time.monotonic() < limit, (folder / "scheduler.log").read_text()
            time.sleep(0.05)
        for at in range(workers):
            one = ("--no-nanny", "--nthreads", "1", "--no-dashboard", "--name", f"w{at}", "--host", "127.0.0.1")
            processes.append(started(folder, "worker", address, *one))
        found = Cluster(address, folder, processes[1:])
        with found.client() as client:
            client.wait_for_workers(workers, timeout=READY_SECONDS) if workers else None
        yield found
    finally:
        for one in processes[::-1]:
            one.kill()
            one.wait()


def _address(file: Path) -> str:
    import json  # noqa: PLC0415

    try:
        found: str = json.loads(file.read_text())["address"]
    except ValueError:  # not yet written to its end
        return ""
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster of two workers that no test kills."""
    with cluster(tmp_path_factory.mktemp("cluster"), 2) as found:
        yield found


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Return traces of two domains with experts of two sizes."""
    paths = []
    for name in ("prose", "code"):
        paths.append(tmp_path / f"{name}.jsonl")
        trace = synth_trace("qwen3-30b-a3b", iterations=60, layers=3, domain=name)
        write_trace(replace(trace, expert_bytes=(1000, 1000, 2000)), paths[-1])
    return paths


def tasks(files: list[Path], policies: tuple[str, ...] = EVERY, budgets: tuple[str, ...] = BUDGETS) -> list[Task]:
    """Return what the command would make of files, for both allocations."""
    names = tuple(map(str, files))
    return [
        Task(
            workload(load_trace(path)),
            Ask(policies, budgets, {"allocation": allocation, "window": "fair", "hit_sets": True}),
            Origin(names, at, {}, {}),
        )
        for at, path in enumerate(files)
        for allocation in ("global", "layer")
    ]


def plain(found: list[list[Outcome]]) -> list[list[tuple]]:
    """Return everything that outcomes hold, to compare."""

    def every(one: Outcome) -> tuple:
        arrays = (one.iteration_misses, one.iteration_miss_bytes, one.hit_set)
        kept = [None if array is None else (array.dtype.str, array.tolist()) for array in arrays]
        return one.as_json(), one.source, one.window, one.room, kept

    return [list(map(every, each)) for each in found]


def test_a_sweep_here_is_what_simulate_and_others_say(files: list[Path]) -> None:
    found = sweep.sweep(tasks(files))
    for task, done in zip(tasks(files), found, strict=True):
        ours = simulate(task.work, POLICIES, BUDGETS, **task.ask.options)
        theirs = others(task.work, EVERY[len(POLICIES) :], BUDGETS, **task.ask.options) if offered() else []
        assert plain([done]) == plain([ours + theirs])
    assert len({str(one) for one in plain(found)}) == 4


def test_parts_travel_and_are_the_whole_one_after_another(files: list[Path]) -> None:
    task = tasks(files)[0]
    parts = task.ask.parts()
    assert [part.policies for part in parts[:2]] == [("lru",), ("lfu",)]
    assert len(parts) == 2 + (len(EVERY) - 2) * len(BUDGETS)
    moved = [pickle.loads(pickle.dumps((task.work, part))) for part in parts]  # noqa: S301  (our own)
    found = [one for work, part in moved for one in pickle.loads(pickle.dumps(part.of(work, 1)))]  # noqa: S301
    assert plain([found]) == plain(sweep.sweep([task], threads=2))


def test_progress_counts_every_lookup_and_never_falls(files: list[Path]) -> None:
    said: list[tuple[int, int]] = []
    some = tasks(files)
    sweep.sweep(some, progress=lambda *at: said.append(at))
    total = sum(task.work.n_accesses for task in some) * len(EVERY) * len(BUDGETS)
    assert said == sorted(said)
    assert {of for _, of in said} == {total}
    assert said[-1] == (total, total)
    assert len([done for done, of in said if done == of]) == 1


def test_an_unknown_policy_is_refused_before_anything_runs(files: list[Path]) -> None:
    said: list[tuple[int, int]] = []
    with pytest.raises(InputError, match="--policy libcachesim:lruu"):
        sweep.sweep(tasks(files, ("lru", "lruu")), progress=lambda *at: said.append(at))
    assert said == []


@clustered
@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False])
def test_a_cluster_finds_the_same_bit_for_bit(
    two: Cluster,
    files: list[Path],
    packed: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not packed:
        monkeypatch.setattr(sweep, "PACKED_BYTES", 0)
    said: list[tuple[int, int]] = []
    found = sweep.sweep(tasks(files), scheduler=two.address, progress=lambda *at: said.append(at))
    assert plain(found) == plain(sweep.sweep(tasks(files)))
    total = sum(task.work.n_accesses for task in tasks(files)) * len(EVERY) * len(BUDGETS)
    assert said == sorted(said)
    assert said[-1] == (total, total)
    assert len(said) == sum(len(task.ask.parts()) for task in tasks(files))


@clustered
@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False])
def test_a_worker_killed_in_the_middle_changes_nothing(
    tmp_path: Path,
    files: list[Path],
    packed: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not packed:
        monkeypatch.setattr(sweep, "PACKED_BYTES", 0)
    some = tasks(files, EVERY[1:], BUDGETS[:3])
    expected = plain(sweep.sweep(some))
    with cluster(tmp_path, 2) as found, found.client() as watching:
        (victim,) = [at for at, one in watching.scheduler_info()["workers"].items() if one["name"] == "w0"]
        killed: list[tuple[str, ...]] = []

        def kill(done: int, of: int) -> None:
            if killed or done == of:
                return
            os.kill(found.workers[0].pid, signal.SIGSTOP)  # it ends nothing from here on
            while not (doing := watching.processing([victim])[victim]):
                time.sleep(0.01)
            os.kill(found.workers[0].pid, signal.SIGKILL)
            killed.append(tuple(doing))

        swept = sweep.sweep(some, scheduler=found.address, progress=kill)
        assert found.workers[0].wait() == -signal.SIGKILL
        assert list(watching.scheduler_info()["workers"]) != [victim]
        assert len(watching.scheduler_info()["workers"]) == 1
    assert len(killed) == 1
    assert killed[0]
    assert plain(swept) == expected


@clustered
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda path: path.unlink(),
            (
                "trace {path}: No such file or directory; expected a trace file that may be read; "
                "next: make the file readable there, at the same path"
            ),
        ),
        (
            lambda path: write_trace(synth_trace("qwen3-30b-a3b", iterations=60, layers=3, seed=9), path),
            "{path} holds other accesses than where the sweep began; expected the same file",
        ),
    ],
)
def test_a_worker_without_the_file_says_so(
    two: Cluster,
    files: list[Path],
    spoil: Callable[[Path], None],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep, "PACKED_BYTES", 0)
    some = tasks(files)
    spoil(files[1])
    with pytest.raises(InputError) as refused:
        sweep.sweep(some, scheduler=two.address)
    assert str(refused.value) == f"the worker on {os.uname().nodename}: {message.format(path=files[1])}"


@clustered
def test_a_bad_budget_is_refused_as_it_is_here(two: Cluster, files: list[Path]) -> None:
    some = tasks(files, ("lru",), ("100", "1000000"))[:1]  # of several, the first to be refused would be named
    with pytest.raises(InputError) as here:
        sweep.sweep(some)
    with pytest.raises(InputError) as there:
        sweep.sweep(some, scheduler=two.address)
    assert str(there.value) == str(here.value)
    assert "a budget of 1000000 is above the pool" in str(here.value)


@clustered
def test_another_version_on_a_worker_is_refused(
    two: Cluster, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = sweep.version("pytest-moetier")
    monkeypatch.setattr(sweep, "version", lambda _: "0.0.1")
    with pytest.raises(InputError, match=f"has pytest-moetier {theirs}; expected 0.0.1, as where the sweep began"):
        sweep.sweep(tasks(files), scheduler=two.address)


@clustered
def test_ctrl_c_leaves_nothing_to_the_workers(two: Cluster, files: list[Path]) -> None:
    def interrupt(done: int, of: int) -> None:
        assert done < of
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.sweep(tasks(files), scheduler=two.address, progress=interrupt)
    with two.client() as client:
        limit = time.monotonic() + READY_SECONDS
        while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
            assert time.monotonic() < limit
            time.sleep(0.05)


@clustered
def test_a_scheduler_without_a_worker_is_named(
    tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "CONNECT_SECONDS", 1)
    with cluster(tmp_path, 0) as empty, pytest.raises(InputError) as refused:
        sweep.sweep(tasks(files), scheduler=empty.address)
    assert str(refused.value) == (
        f"the scheduler {empty.address} has no worker; expected one or more; next: dask worker {empty.address}"
    )


@clustered
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:{port}", "127.0.0.1", "carrier-pigeon://home:1"])
def test_a_scheduler_that_does_not_answer_is_named(
    files: list[Path], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # nobody listens
        asked = address.format(port=unheard.getsockname()[1])
        assert main(["simulate", str(files[0]), "--budget", "25%", "--scheduler", asked]) == 2
    said = capsys.readouterr()
    assert f"no scheduler of dask.distributed answers at {asked}; expected tcp://HOST:PORT" in said.err
    assert "Traceback" not in said.err
    assert not said.out


def test_without_distributed_one_line_says_how_to_get_it(
    files: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    words = ["simulate", str(files[0]), "--budget", "25%"]
    assert main([*words, "--scheduler", "tcp://127.0.0.1:8786"]) == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith(
            "--scheduler tcp://127.0.0.1:8786, and distributed is not installed; "
            "next: pip install 'pytest-moetier[sweep]'"
        )
    )
    assert main(words) == 0


@clustered
def test_the_command_prints_the_same_by_a_cluster(
    two: Cluster, files: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["simulate", *map(str, files), "--policy", ",".join(EVERY), "--budget", "4/layer,25%", "--diagnose"]
    for more in ([], ["--json"], ["--allocation", "layer", "--table", "own"]):
        assert main([*words, *more]) == 0
        here = capsys.readouterr().out
        assert main([*words, *more, "--scheduler", two.address]) == 0
        there = capsys.readouterr()
        assert there.out == here
        assert "(100%)" in there.err


def test_files_of_events_are_swept_too(files: list[Path]) -> None:
    work = workload(load_trace(files[0]), "event-atomic")
    ask = Ask(("belady", "lru"), ("25%",), {"hit_sets": True})
    (found,) = sweep.sweep([Task(work, ask)])
    assert plain([found]) == plain([simulate(work, ["belady", "lru"], ["25%"], hit_sets=True)])
    assert [named(one.policy) for one in found] == ["belady", "lru"]
    assert np.count_nonzero(found[0].hit_set) >= np.count_nonzero(found[1].hit_set)
