"""The balloon holds what it says, and lets go when it must."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MIB = 2**20
OWN_BYTES = 64 * MIB  # libraries and stacks that are locked too, with room for a sanitizer's


class Balloon:
    """A running balloon and its two pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Take over the process."""
        self.process = process

    def tell(self, line: str) -> dict[str, Any]:
        """Send a line and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """Return the next event."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], 60)
        assert ready, "the balloon has said nothing for a minute"
        event: dict[str, Any] = json.loads(self.process.stdout.readline())
        return event


@pytest.fixture
def balloon(native_bin: Path) -> Iterator[Any]:
    """Start balloons that are gone after the test."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: object, prefix: tuple[str, ...] = ()) -> Balloon:
            command = [*prefix, str(native_bin / "moetier-balloon"), *map(str, arguments)]
            pipe = subprocess.PIPE
            process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe))
            stack.callback(process.kill)
            return Balloon(process)

        yield start


def available_bytes() -> int:
    """Return MemAvailable."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    pytest.skip("no MemAvailable")


def status_bytes(pid: int, key: str) -> int:
    """Return a size of a process, as the kernel says it."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{key}:")[1].split()[0]) * 1024


def need_available(needed_bytes: int) -> None:
    """Skip where so much memory is not there, beside what the watchdog keeps and others use meanwhile."""
    if available_bytes() < needed_bytes + 768 * MIB:
        pytest.skip(f"{available_bytes()} bytes available, {needed_bytes} are needed beside 768 MiB")


@pytest.fixture(autouse=True)
def _may_lock() -> None:
    """Skip where nobody could lock even a few megabytes."""
    if os.geteuid() != 0:
        pytest.skip("locking memory takes root or a raised RLIMIT_MEMLOCK")
    need_available(128 * MIB)


def test_the_balloon_holds_the_bytes_asked_for_and_resizes(balloon: Any) -> None:
    need_available(768 * MIB)
    held = balloon(100 * MIB)
    answer = held.hear()
    assert (answer["event"], answer["bytes"]) == ("locked", 100 * MIB)
    for size in (700 * MIB, 300 * MIB + 4096, 0, 50 * MIB):
        answer = held.tell(f"resize {size}")
        assert (answer["event"], answer["bytes"]) == ("locked", size)
        assert answer["vmlck_bytes"] == status_bytes(held.process.pid, "VmLck")
        assert size <= answer["vmlck_bytes"] <= size + OWN_BYTES
    status = held.tell("status")
    assert (status["event"], status["bytes"]) == ("status", 50 * MIB)
    assert status["late_heartbeats"] >= 0
    assert status["mem_available_bytes"] > 0
    held.process.stdin.write(b"release\n")
    held.process.stdin.flush()
    assert held.process.wait(10) == 0


def test_the_memory_is_touched_and_not_only_promised(balloon: Any) -> None:
    need_available(512 * MIB)
    held = balloon(512 * MIB)
    assert held.hear()["event"] == "locked"
    assert status_bytes(held.process.pid, "RssAnon") >= 512 * MIB


def test_bytes_are_rounded_up_to_pages(balloon: Any) -> None:
    assert balloon(5000).hear()["bytes"] == 8192


def test_the_end_of_stdin_releases(balloon: Any) -> None:
    held = balloon(MIB)
    assert held.hear()["event"] == "locked"
    held.process.stdin.close()
    assert held.process.wait(10) == 0


@pytest.mark.parametrize("line", ["bogus", "resize", "resize x", "resize -1", "", "x" * 200])
def test_a_line_that_is_not_understood_changes_nothing(balloon: Any, line: str) -> None:
    held = balloon(MIB)
    held.hear()
    assert held.tell(line)["code"] == "usage"
    assert held.tell("status")["bytes"] == MIB


def test_the_oom_score_reported_is_the_one_in_force(balloon: Any) -> None:
    held = balloon(MIB)
    score = held.hear()["oom_score_adj"]
    assert score == int(Path(f"/proc/{held.process.pid}/oom_score_adj").read_text())
    assert score <= max(0, int(Path("/proc/self/oom_score_adj").read_text()))


def test_a_refused_mlock_ends_with_3_and_names_the_limit(balloon: Any) -> None:
    drop = ("--bounding-set=-ipc_lock,-sys_resource", "--inh-caps=-ipc_lock,-sys_resource")
    held = balloon(8 * MIB, prefix=("prlimit", "--memlock=65536:65536", "setpriv", *drop))
    event = held.hear()
    assert (event["event"], event["code"]) == ("error", "mlock")
    assert held.process.wait(10) == 3
    assert "RLIMIT_MEMLOCK is 65536 bytes" in event["message"]
    assert held.process.stderr.read().decode() == f"moetier-balloon: {event['message']}\n"


def test_a_small_limit_is_enough_for_a_small_balloon(balloon: Any) -> None:
    drop = ("--bounding-set=-ipc_lock,-sys_resource", "--inh-caps=-ipc_lock,-sys_resource")
    held = balloon(65536, prefix=("prlimit", "--memlock=65536:65536", "setpriv", *drop))
    assert held.hear()["bytes"] == 65536


def test_inflating_stops_before_the_reserve_is_touched(balloon: Any) -> None:
    held = balloon(MIB, "--reserve", 2 * available_bytes() + 2**40)
    event = held.hear()
    assert event["event"] == "released"
    assert "half the reserve" in event["why"]
    assert held.process.wait(10) == 4


def test_growing_into_the_reserve_gives_everything_back(balloon: Any) -> None:
    held = balloon(100 * MIB)
    held.hear()
    event = held.tell(f"resize {2**60}")
    assert event["event"] == "released"
    assert held.process.wait(10) == 4


def test_the_watchdog_lets_go_when_others_need_the_memory(balloon: Any) -> None:
    need_available(2048 * MIB)
    floor = available_bytes() - 1024 * MIB
    held = balloon(256 * MIB, "--reserve", 2 * floor, "--heartbeat", "0.01")
    assert held.hear()["event"] == "locked"
    with mmap.mmap(-1, 1536 * MIB) as other:
        for offset in range(0, len(other), 4096):
            other[offset] = 1
        event = held.hear()
    assert event["event"] == "released"
    assert f"under half the reserve ({floor} bytes)" in event["why"]
    assert event["mem_available_bytes"] < floor
    assert held.process.wait(10) == 4


def test_the_watchdog_lets_go_when_it_could_not_look_for_two_seconds(balloon: Any) -> None:
    held = balloon(MIB, "--heartbeat", "0.05")
    held.hear()
    held.process.send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    held.process.send_signal(signal.SIGCONT)
    event = held.hear()
    assert event["event"] == "released"
    assert "heartbeat" in event["why"]
    assert held.process.wait(10) == 4


def test_a_heartbeat_that_is_a_little_late_is_counted(balloon: Any) -> None:
    held = balloon(MIB, "--heartbeat", "0.02")
    held.hear()
    held.process.send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    held.process.send_signal(signal.SIGCONT)
    time.sleep(0.1)
    assert held.tell("status")["late_heartbeats"] >= 1


def test_the_balloon_dies_with_its_parent(native_bin: Path, tmp_path: Path) -> None:
    stdin = tmp_path / "stdin"
    os.mkfifo(stdin)
    script = f"exec 3<>'{stdin}'; '{native_bin}/moetier-balloon' 1048576 <&3 & wait"
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert json.loads(parent.stdout.readline())["event"] == "locked"
        parent.kill()
        assert parent.stdout.read() == b""  # the pipe closes only when the balloon is gone too


@pytest.mark.parametrize(
    "arguments",
    [(), ("x",), ("-5",), ("1.5",), ("1", "2"), ("1", "--reserve", "y"), ("1", "--heartbeat", "0"), ("1", "--unknown")],
)
def test_wrong_usage_ends_with_2(balloon: Any, arguments: tuple[str, ...]) -> None:
    held = balloon(*arguments)
    assert held.hear()["code"] == "usage"
    assert held.process.wait(10) == 2
    assert held.process.stderr.read().count(b"\n") == 1
