"""A run that loses its replayer, its scope or its bytes says so in one message, and leaves the host as it was."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moetier.cell import Cell
from pytest_moetier.errors import AccountingError, InputError, UnsupportedHostError
from pytest_moetier.figures import Demand, figures_of
from pytest_moetier.host import procfs
from pytest_moetier.host.restore import HostLock
from pytest_moetier.plan import build_plan, write_plan
from pytest_moetier.proof import examine, prove
from pytest_moetier.replay import OomRun, Rig, run_cell
from pytest_moetier.replayer import Replayer, ReplayOptions
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.units import Capacity


def scopes() -> list[str]:
    return [str(one) for one in Path("/sys/fs/cgroup").rglob(f"moetier-{os.getpid()}-*")]


def replayers() -> list[int]:
    """Return the replayers that this process has started and that still run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        status = procfs.try_text(entry / "status") or ""
        if f"\nPPid:\t{os.getpid()}\n" in status and status.startswith("Name:\tmoetier-replay"):
            found.append(int(entry.name))
    return found


def at_first_measured(action: Callable[[int], None]) -> Callable[[str, int], None]:
    """Return a progress callback that acts once on the replayer when the measured pass has begun."""
    done: list[bool] = []

    def progress(phase: str, index: int) -> None:
        if phase == "measured" and index >= 1 and not done:
            done.append(True)
            action(replayers()[0])

    return progress


def prolonged(rig: Rig, folder: Path) -> Rig:
    """Return the rig with a plan long enough to be interrupted."""
    manifest = rig.pool.manifest
    trace = synth_trace(
        "kimi-k3", layers=len(manifest.layers), experts=manifest.experts, k=manifest.k, iterations=600, seed=1
    )
    plan = build_plan(trace, manifest)
    write_plan(plan, folder / "long.plan")
    return replace(rig, plan=plan, plan_path=folder / "long.plan")


@pytest.fixture
def long_rig(rig: Rig, tmp_path: Path) -> Rig:
    """The small pool and a long plan."""
    return prolonged(rig, tmp_path)


@pytest.fixture
def long_thrown(thrown: Rig, tmp_path: Path) -> Rig:
    """The throw-away pool and a long plan."""
    return prolonged(thrown, tmp_path)


def test_a_replayer_killed_in_the_middle_makes_the_run_invalid(long_rig: Rig, cell: Cell) -> None:
    with pytest.raises(AccountingError, match="was killed by SIGKILL in the middle of the run"):
        run_cell(long_rig, cell, progress=at_first_measured(lambda pid: os.kill(pid, signal.SIGKILL)))
    assert scopes() == []
    assert replayers() == []


def test_a_kill_that_is_not_the_walls_is_no_proof_of_the_expected_one(long_thrown: Rig) -> None:
    """All of the private memory fits, so that only the test kills it."""
    cell = Cell("small_box", Capacity.parse("100%"), workload="small_box", mode="write_private")
    with HostLock(wait_seconds=200):
        run = run_cell(long_thrown, cell, progress=at_first_measured(lambda pid: os.kill(pid, signal.SIGKILL)))
    assert isinstance(run, OomRun)
    assert (run.signal, run.iterations >= 1) == (signal.SIGKILL, True)
    demand = Demand.of(long_thrown.plan, 1.0)
    broken = {one.name for one in examine(run, demand, figures_of(run, demand)).broken}
    assert "oom_killed" in broken
    assert scopes() == []
    assert replayers() == []


def test_another_signal_than_the_walls_breaks_the_expected_kill(long_thrown: Rig) -> None:
    cell = Cell("small_box", Capacity.parse("100%"), workload="small_box", mode="write_private")
    with HostLock(wait_seconds=200):
        run = run_cell(long_thrown, cell, progress=at_first_measured(lambda pid: os.kill(pid, signal.SIGSEGV)))
    demand = Demand.of(long_thrown.plan, 1.0)
    broken = {one.name for one in examine(run, demand, figures_of(run, demand)).broken}
    assert {"oom_killed", "oom_victim"} <= broken


def test_a_replayer_told_to_end_is_partial(long_rig: Rig, cell: Cell) -> None:
    with pytest.raises(AccountingError, match="partial"):
        run_cell(long_rig, cell, progress=at_first_measured(lambda pid: os.kill(pid, signal.SIGTERM)))
    assert scopes() == []


def test_a_replayer_moved_out_of_its_scope_makes_the_run_invalid(long_rig: Rig, cell: Cell) -> None:
    def move(pid: int) -> None:
        (scope,) = scopes()
        (Path(scope).parent / "cgroup.procs").write_text(str(pid))

    def measure_and_prove() -> None:
        run = run_cell(long_rig, cell, progress=at_first_measured(move))
        demand = Demand.of(long_rig.plan, 1.0)
        prove(run, demand, figures_of(run, demand))

    with pytest.raises(AccountingError, match=r"moved out of .*moetier-|replayer_in_scope"):
        measure_and_prove()
    assert scopes() == []


def test_another_reader_of_the_device_breaks_the_foreign_share(rig: Rig, cell: Cell) -> None:
    assert rig.pool.loop is not None
    device = f"/dev/{rig.pool.devices[0].name}"
    stop = threading.Event()

    def read() -> None:
        descriptor = os.open(device, os.O_RDONLY | os.O_DIRECT)
        command = ["dd", f"if={device}", "of=/dev/null", "bs=1M", "count=32", "iflag=direct", "status=none"]
        os.close(descriptor)
        while not stop.is_set():
            subprocess.run(command, check=True)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        run = run_cell(rig, cell)
    finally:
        stop.set()
        reader.join()
    demand = Demand.of(rig.plan, 1.0)
    broken = {one.name for one in examine(run, demand, figures_of(run, demand)).broken}
    assert "foreign_share" in broken


def test_an_exception_in_the_middle_leaves_no_scope_and_no_replayer(long_rig: Rig, cell: Cell) -> None:
    def interrupt(_pid: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cell(long_rig, cell, progress=at_first_measured(interrupt))
    assert scopes() == []
    assert replayers() == []


def test_a_truncated_plan_is_refused_with_what_was_seen(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "short.plan"
    path.write_bytes(rig.plan_path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"short\.plan"):
        Replayer(ReplayOptions().argv(path, rig.pool.root), rig.pool.pass_fds)


def test_mglru_on_is_not_examined_where_the_kernel_has_none(rig: Rig) -> None:
    if Path("/sys/kernel/mm/lru_gen/enabled").exists():
        pytest.skip("this kernel has MGLRU")
    with pytest.raises(UnsupportedHostError, match="built without it"):
        run_cell(rig, Cell("capacity", Capacity.parse("30%"), mglru="on"))


def test_after_kill_9_nothing_is_left_but_what_the_next_start_removes(small_pool: Path, tmp_path: Path) -> None:
    bench = tmp_path / "test_capacity.py"
    bench.write_text("def test_capacity(moetier_cell):\n    moetier_cell.measure()\n")
    command = [sys.executable, "-m", "pytest", str(bench), f"--moetier-pool={small_pool}", "--moetier-capacity=30%"]
    command += ["--moetier-mechanism=cgroup", "--moetier-rounds=1", "--moetier-seed=1", "-p", "no:cacheprovider"]
    command += ["--moetier-wait=200"]
    before = _loops(small_pool)
    victim = subprocess.Popen(
        [*command, "--moetier-iterations=3000"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path
    )
    assert victim.stdout is not None
    for line in victim.stdout:
        if b": measured" in line or b": warm" in line:
            break
    victim.kill()
    victim.wait()
    victim.stdout.close()
    until = time.monotonic() + 10
    while time.monotonic() < until and _loops(small_pool) > before:
        time.sleep(0.05)
    assert _loops(small_pool) == before
    assert list(Path("/sys/fs/cgroup").rglob(f"moetier-{victim.pid}-*"))
    again = subprocess.run(
        [*command, "--moetier-iterations=12"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert again.returncode == 0, again.stdout
    assert f"moetier-{victim.pid}-cell removed" in again.stdout
    assert re.search(r"note: folder \S*moetier-\w+ removed", again.stdout)
    assert not list(Path("/sys/fs/cgroup").rglob(f"moetier-{victim.pid}-*"))


def _loops(pool: Path) -> int:
    """Return how many loop devices back the pool's image."""
    rows = [procfs.try_text(one) or "" for one in Path("/sys/block").glob("loop*/loop/backing_file")]
    return sum(row.strip() == str(pool / "pool.img") for row in rows)


def test_a_second_bench_is_refused_by_name_while_one_holds_the_host(small_pool: Path, tmp_path: Path) -> None:
    bench = tmp_path / "test_capacity.py"
    bench.write_text("def test_capacity(moetier_cell):\n    moetier_cell.measure()\n")
    command = [sys.executable, "-m", "pytest", str(bench), f"--moetier-pool={small_pool}", "-p", "no:cacheprovider"]
    with HostLock(wait_seconds=200):
        result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 1
    assert f"pid {os.getpid()}" in result.stdout
    assert "holds the host" in result.stdout
    assert "next: wait for it to end, or have this one wait: --moetier-wait SECONDS" in result.stdout
