"""What happens to a run while it is measured: killed parts, a lost wall, swap, and the ways a session is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_moetier.host import procfs
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace

LONG = "--moetier-iterations=2000"


@pytest.fixture
def measuring(host: Any, small_pool: Path) -> Callable[..., Any]:
    """Return a call that starts a long session and waits until its measured pass is under way."""

    def start(*args: str) -> Any:
        one = host.start(host.pytest_argv(small_pool, LONG, *args), start_new_session=True)
        one.until(": warm")
        return one

    return start


def test_a_killed_replayer_makes_the_run_invalid(measuring: Callable[..., Any]) -> None:
    one = measuring()
    os.kill(one.child("moetier-replay"), signal.SIGKILL)
    said = one.finish().refused("the replayer was killed by SIGKILL in the middle of the run", ret=10)
    assert "dmesg" in said


def test_a_scope_that_is_removed_makes_the_run_invalid(measuring: Callable[..., Any]) -> None:
    one = measuring()
    (scope,) = Path("/sys/fs/cgroup").rglob(f"moetier-{one.process.pid}-*")
    for pid in (scope / "cgroup.procs").read_text().split():
        (scope.parent / "cgroup.procs").write_text(pid)
    limit = time.monotonic() + 10
    while scope.exists() and time.monotonic() < limit:
        try:
            scope.rmdir()
        except OSError:
            time.sleep(0.01)
    one.finish().refused(r"(the scope \S+ was removed|the replayer \(pid \d+\) was moved out of \S+) during", ret=10)


def test_ctrl_c_gives_the_host_back_and_ends_as_pytest_does(measuring: Callable[..., Any]) -> None:
    one = measuring()
    os.killpg(one.process.pid, signal.SIGINT)
    ended = one.finish()
    assert ended.ret == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in ended.text
    assert "Traceback" not in ended.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_being_told_to_end_gives_the_host_back(measuring: Callable[..., Any], number: signal.Signals) -> None:
    one = measuring()
    one.process.send_signal(number)
    one.process.send_signal(number)
    ended = one.finish()
    assert ended.ret == 128 + number
    ended.said(f"{number.name}: measuring was ended, the host is given back")
    assert "Traceback" not in ended.text


def test_a_second_bench_waits_as_long_as_it_was_told_to(
    host: Any, measuring: Callable[..., Any], small_pool: Path
) -> None:
    first = measuring()
    ended = host.pytest(small_pool, "--moetier-wait=0.2", "--moetier-capacity=20%,30%")
    said = ended.refused(rf"pid {first.process.pid} [^\n]* holds the host \(\S+\), waited 0.2 s")
    assert "--moetier-wait SECONDS" in said
    waiting = host.start(host.pytest_argv(small_pool))
    waiting.until("waiting for the host")
    first.process.send_signal(signal.SIGTERM)
    first.finish()
    assert "1 passed" in waiting.finish().text


@pytest.fixture
def swap(tmp_path: Path) -> Any:
    """64 MiB of swap for the test; skips where there can be none."""
    path = tmp_path / "swap"
    path.write_bytes(bytes(64 << 20))
    path.chmod(0o600)
    subprocess.run(["mkswap", str(path)], check=True, capture_output=True)
    done = subprocess.run(["swapon", str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"swapon: {done.stderr.strip()}")
    yield path
    subprocess.run(["swapoff", str(path)], check=True)


def test_with_swap_on_the_scope_does_not_swap_and_the_proof_says_so(host: Any, small_pool: Path, swap: Path) -> None:
    del swap
    ended = host.pytest(small_pool, "--moetier-json=verdicts.json")
    assert ended.ret in {0, 10}, ended.text
    (result,) = json.loads((host.folder / "verdicts.json").read_text())["results"]
    (line,) = [one for one in result["proof"][0] if one["name"] == "no_swap"]
    assert line["state"] in {"held", "unobserved"}
    if line["state"] == "held":
        assert line["observed"] == "0 B of 67.1 MB swap"
        assert ended.ret == 0, ended.text


def test_a_killed_balloon_makes_the_run_invalid(host: Any, hollow_pool: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    write_trace(synth_trace("kimi-k3", layers=2, experts=896, k=1, iterations=200, seed=1), trace)
    available = procfs.parse_meminfo(procfs.read_text("/proc/meminfo"))["MemAvailable"]
    capacity = (available - (3 << 29) - (1 << 30)) >> 20
    if capacity < 4096:
        pytest.skip(f"MemAvailable is {available} B: expected 7 GiB for a balloon of 1.5 GiB")
    options = ("--moetier-mechanism=balloon", f"--moetier-capacity={capacity}MiB", f"--moetier-trace={trace}")
    one = host.start(host.pytest_argv(hollow_pool, *options, "--moetier-iterations=200"))
    one.until(": warm")
    os.kill(one.child("moetier-balloon"), signal.SIGKILL)
    one.finish().refused("the balloon did not hold: its process ended", ret=10)


def test_another_reader_of_the_device_makes_the_run_invalid(host: Any, small_pool: Path) -> None:
    one = host.start(host.pytest_argv(small_pool, "--moetier-iterations=300"))
    one.until(": measured")
    image = str(small_pool / "pool.img")
    rows = Path("/sys/block").glob("loop*/loop/backing_file")
    (device,) = [f"/dev/{row.parts[3]}" for row in rows if row.read_text().strip() == image]
    command = ["dd", f"if={device}", "of=/dev/null", "bs=1M", "count=64", "iflag=direct", "status=none"]
    subprocess.run(command, check=True)
    ended = one.finish()
    assert ended.ret == 10, ended.text
    said = ended.said(r"accounting not proved: [^\n]*")
    assert "foreign_share: " in said
    assert "of the device's bytes read by others" in said
    assert "; next: the run was not stored; measure the cell again" in said
    assert "Traceback" not in ended.text
