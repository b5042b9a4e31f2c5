"""The watch as a whole: planted counters that turn unhealthy, and a real reader in a real group on this host."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from planted import DEVICE_STAT, GROUP, MIB, PID, Planted

from pytest_moetier.cli import main
from pytest_moetier.errors import HarnessError
from pytest_moetier.host import blockdev, cgroup, procfs
from pytest_moetier.host.cgroup import Scope, ScopeFiles
from pytest_moetier.native import executable
from pytest_moetier.plan import build_plan, write_plan
from pytest_moetier.pool.manifest import load_manifest
from pytest_moetier.trace.load import load_trace
from pytest_moetier.watch.alarms import default_bounds, thresholds
from pytest_moetier.watch.loop import Watch
from pytest_moetier.watch.nominal import MissShare
from pytest_moetier.watch.sample import Sampler, Watched
from pytest_moetier.watch.views import JsonLines

Events = list[dict[str, Any]]
HALF = MissShare((1.0, 0.0), 128 * MIB, 2 * MIB, "a line: half the pool misses half")
HEALTHY = {"scan": 5000, "steal": 5000, "sectors": 39 * MIB // 512, "rchar": 80 * MIB}
UNHEALTHY = {"scan": 6000, "steal": 1000, "sectors": 60 * MIB // 512, "rchar": 80 * MIB}
"""Of a second: 40 MiB are nominal; scan/steal is the paper's worst, and the device reads 1.5 times the nominal."""
WASTER = """
import os, random, sys, time
paths = [os.path.join(folder, name) for folder, _, names in os.walk(sys.argv[1]) for name in names]
files = [os.open(path, os.O_RDONLY) for path in paths]
while True:
    os.posix_fadvise(random.choice(files), 0, 0, os.POSIX_FADV_WILLNEED)
    time.sleep(0.002)
"""
"""Has pages read that nobody asked for, at the cost of those that somebody will."""
COMMAND = (sys.executable, "-m", "pytest_moetier.cli", "watch")
LIMIT_SECONDS = 100


def events(text: str) -> Events:
    return [json.loads(line) for line in text.splitlines()]


def of(kind: str, found: Events) -> Events:
    return [one for one in found if one["event"] == kind]


@pytest.fixture
def watch(planted: Planted, group: ScopeFiles) -> Watch:
    """A watch of the planted host's device and group."""
    planted.limit = "max"
    planted.lay_out()
    target = Watched(devices=blockdev.devices_named("sda"), scope=group, demand=HALF)
    return Watch(Sampler(target), JsonLines(), thresholds(default_bounds()))


def run(watch: Watch, planted: Planted, seconds: Sequence[dict[str, int]]) -> bool:
    """Let so many seconds pass, each with its counters, on a clock of the test's."""
    passing = iter(seconds)
    return watch.run(0.05, len(seconds), lambda _: planted.move(**next(passing)))


def test_healthy_counters_raise_no_alarm(watch: Watch, planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(watch, planted, [HEALTHY] * 12) is False
    found = events(capsys.readouterr().out)
    assert (len(of("sample", found)), of("alarm", found)) == (12, [])
    last = {(one["alarm"], one["of"]): (one["state"], one["value"]) for one in of("sample", found)[-1]["alarms"]}
    assert last == {
        ("scan_per_steal", "kswapd"): ("ok", 1.0),
        ("scan_per_steal", "direct"): ("idle", None),
        ("scan_per_steal", "memcg"): ("idle", None),
        ("device_over_nominal", "device"): ("ok", 0.975),
    }


def test_unhealthy_counters_raise_both_alarms_with_the_remedies_in_the_papers_order(
    watch: Watch, planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(watch, planted, [UNHEALTHY] * 6) is True
    raised = of("alarm", events(capsys.readouterr().out))
    assert [(one["alarm"], one["of"], one["change"], one["value"]) for one in raised] == [
        ("scan_per_steal", "kswapd", "raised", 6.0),
        ("device_over_nominal", "device", "raised", 1.5),
    ]
    for one in raised:
        assert [remedy["remedy"] for remedy in one["remedies"]] == ["confine", "shrink", "toggle"]
        confine, shrink, toggle = one["remedies"]
        assert confine["commands"] == [f"echo {9 * MIB} > {GROUP}/memory.max"]
        assert shrink["commands"] == ["setpriv --bounding-set=-ipc_lock prlimit --memlock=0:0 reader --mlock"]
        assert (toggle["applies"], toggle["commands"]) == (False, [])
    scan, device = raised
    assert (scan["healthy_up_to"], scan["raised_above"]) == (2.0, 2.0)
    assert (device["healthy_up_to"], device["raised_above"]) == (1.0, 1.149)
    assert "an observed indicator of the paper's, not a rule" in scan["about"]
    assert "docs/kernels.md" in scan["about"]


def test_a_host_that_recovers_clears_the_alarm(
    watch: Watch, planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    watch.alarms[0].seconds = watch.alarms[-1].seconds = 0.0  # five intervals
    run(watch, planted, [*[UNHEALTHY] * 6, *[HEALTHY] * 6])
    found = events(capsys.readouterr().out)
    changes = [(one["of"], one["change"]) for one in of("alarm", found)]
    assert changes == [("kswapd", "raised"), ("device", "raised"), ("kswapd", "cleared"), ("device", "cleared")]
    assert of("alarm", found)[-1]["remedies"] == []
    assert of("summary", found)[0]["alarms_raised"] == 2


def test_a_group_that_dies_is_said_once_and_the_host_is_watched_on(
    watch: Watch, planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(_: float) -> None:
        if watch.totals.samples == 2:
            planted.gone = {GROUP, f"/proc/{PID}"}
        planted.move(**HEALTHY)

    watch.run(0.05, 6, step)
    found = events(capsys.readouterr().out)
    gone = [one["text"] for one in of("note", found) if one["text"].startswith("scope ")]
    assert gone == [f"scope is not observed: {GROUP} is gone; the host's own counters go on"]
    last = of("sample", found)[-1]
    assert (last["reclaimed_pages"]["kswapd"]["scan"], last["reclaimed_pages"]["memcg"]["scan"]) == (5000, None)
    assert (last["device_read_bytes"], last["delivered_bytes"]) == (39 * MIB, None)
    assert of("summary", found)[0]["samples"] == 6


def test_what_comes_and_goes_is_said_a_few_times_only(
    watch: Watch, planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(_: float) -> None:
        planted.gone = set() if watch.totals.samples % 3 else {DEVICE_STAT}
        planted.move(**HEALTHY)

    watch.run(0.05, 30, step)
    said = [one["text"] for one in of("note", events(capsys.readouterr().out)) if one["text"].startswith("device ")]
    gone, back = "device is not observed: sda is gone, or its counter started anew", "device is observed again"
    assert said == [gone, back, gone, back, gone, f"{back}; it changes often: more of it is in the samples alone"]


def test_a_textfile_that_cannot_be_written_is_said_once_and_tried_again(
    watch: Watch, planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "collector"
    watch.file = folder / "moetier.prom"

    def step(_: float) -> None:
        if watch.totals.samples == 3:
            folder.mkdir()
        planted.move(**HEALTHY)

    watch.run(0.05, 6, step)
    said = [one["text"] for one in of("note", events(capsys.readouterr().out)) if "moetier.prom" in one["text"]]
    assert [("No such file" in one, "is written again" in one) for one in said] == [(True, False), (False, True)]
    assert "moetier_watch_samples_total 6" in watch.file.read_text()


REFUSED = [
    (["--interval", "nan"], "--interval nan; expected seconds"),
    (["--interval", "0"], "--interval 0; expected seconds"),
    (["--scope", "no-such-group"], "no memory control group 'no-such-group'"),
    (["--device", "no-such-device"], "no block device 'no-such-device', and no such file"),
    (["--device", "/dev/no-such-device"], "no block device '/dev/no-such-device'"),
    (["--pid", "999999999"], "--pid 999999999: no such process"),
    (["--pool", "/no/such/pool"], "--pool /no/such/pool: nothing is there"),
    (["--device", "sda", "--plan", "/no/such/plan"], "plan /no/such/plan: No such file or directory"),
    (["--listen", "nowhere"], "--listen 'nowhere' is no address"),
    (["--prometheus", "/no/such/folder/x.prom"], "--prometheus /no/such/folder/x.prom cannot be written"),
    (["--prometheus", "/dev/null"], "--prometheus /dev/null is no plain file"),
    (["--bounds", "/no/such/bounds.yaml"], "/no/such/bounds.yaml has no thresholds"),
]


@pytest.mark.parametrize(("args", "seen"), REFUSED, ids=[" ".join(args) for args, _ in REFUSED])
def test_what_cannot_be_watched_is_refused_in_one_message(
    planted: Planted, capsys: pytest.CaptureFixture[str], args: list[str], seen: str
) -> None:
    del planted  # read in place of this host
    assert main(["watch", "--count", "1", *args]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"moetier: {seen}")
    assert "; expected " in said
    assert "; next: " in said
    assert said.count("\n") == 1


def test_a_port_in_use_is_refused_in_one_message(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    del planted
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["watch", "--count", "1", "--listen", address]) == 2
    out, said = capsys.readouterr()
    assert (out, said.count("\n")) == ("", 1)
    assert said.startswith(
        f"moetier: --listen {address}: Address already in use; expected a free port of this host; next:"
    )


def test_a_trace_without_a_pool_is_refused(trace_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--count", "1", "--device", "/", "--plan", str(trace_file)]) == 2
    assert "is no plan file, and a trace says nothing of bytes; expected the pool" in capsys.readouterr().err


@pytest.fixture(scope="module")
def plan_file(files_pool: Path, trace_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plan of the trace over the pool."""
    path = tmp_path_factory.mktemp("plan") / "pool.plan"
    write_plan(build_plan(load_trace(trace_file), load_manifest(files_pool)), path)
    return path


def cgroup_usage(scope: Scope) -> int | None:
    name = "memory.current" if scope.version == 2 else "memory.usage_in_bytes"
    return procfs.try_int(scope.path / name)


@pytest.fixture
def real_scope(as_root: None, files_pool: Path, plan_file: Path) -> Iterator[Scope]:
    """A real memory group of 64 MiB in which the plan is replayed from the pool's 128 MiB, pass after pass."""
    del as_root
    support = cgroup.scope_support()
    if support.kind not in {"v1", "v2"}:
        pytest.skip(f"{support.reason}; {support.fix}")
    scope = cgroup.create_scope("watch")
    replay = [str(executable("moetier-replay")), str(plan_file), "--root", str(files_pool), "--threads=2"]
    passes = ",".join(f"p{at}" for at in range(100))
    command = [*replay, f"--passes={passes}", "--stamps=none", "--hits=none", "--compute-seconds=0.005"]
    reader = None
    try:
        scope.set_limit(64 * MIB)
        reader = subprocess.Popen(scope.enter_argv(command), stdout=subprocess.DEVNULL)
        until = time.monotonic() + LIMIT_SECONDS
        while (cgroup_usage(scope) or 0) < 60 * MIB:  # until the wall is reached, all reads are first ones
            assert reader.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        yield scope
    finally:
        if reader is not None:
            reader.kill()
            reader.wait()
        with suppress(HarnessError):
            scope.close()


@pytest.fixture
def watching(files_pool: Path, plan_file: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a call that starts a real watch of the pool; what still runs at the end is ended."""
    started = []

    def start(*args: str) -> subprocess.Popen[str]:
        command = [*COMMAND, "--pool", str(files_pool), "--plan", str(plan_file), *args]
        one = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(one)
        return one

    yield start
    for one in started:
        if one.poll() is None:
            one.kill()
        one.communicate()


def until(one: subprocess.Popen[str], done: Callable[[str], bool]) -> list[str]:
    """Return the lines of a watch up to the first for which ``done`` holds; its end before that fails the test."""
    assert one.stdout is not None
    lines: list[str] = []
    limit = time.monotonic() + LIMIT_SECONDS
    while not lines or not done(lines[-1]):
        assert time.monotonic() < limit, lines[-1:]
        line = one.stdout.readline()
        assert line, (one.wait(), one.stderr and one.stderr.read())
        lines.append(line)
    return lines


def is_sample(line: str) -> bool:
    return '"sample"' in line


def ended(one: subprocess.Popen[str]) -> Events:
    """Return the events of a watch that ends well, and by itself."""
    out, err = one.communicate(timeout=LIMIT_SECONDS)
    assert (one.returncode, err) == (0, "")
    return events(out)


def judged(one: subprocess.Popen[str], states: set[str]) -> tuple[str, Events]:
    """Watch until device over nominal has one of these states, end the watch, and return the state and all events."""
    lines = until(one, lambda line: last_state(line) in states)
    one.send_signal(signal.SIGTERM)
    out, err = one.communicate(timeout=LIMIT_SECONDS)
    assert err == ""
    return last_state(lines[-1]), events("".join(lines) + out)


def last_state(line: str) -> str:
    found = json.loads(line)
    return str(found["alarms"][-1]["state"]) if found["event"] == "sample" else ""


def test_a_real_healthy_readers_reclaim_reads_and_demand_are_seen_and_raise_no_alarm(
    real_scope: Scope, watching: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    textfile = tmp_path / "moetier.prom"
    one = watching("--scope", str(real_scope.path), "--interval", "0.2", "--fail", "--prometheus", str(textfile))
    state, found = judged(one, {"ok", "above", "alarm"})
    assert (state in {"ok", "above"}, of("alarm", found), one.returncode) == (True, [], 0)
    samples = of("sample", found)
    names = ("readers_device_bytes", "device_read_bytes", "nominal_bytes", "delivered_bytes")
    readers, device, nominal, delivered = (sum(each[name] for each in samples) for name in names)
    assert 0 < readers <= device + 4 * MIB
    assert 0 < nominal < delivered
    assert readers / nominal == pytest.approx(1, abs=0.25)  # an LRU's own misses, seen from outside
    last = samples[-1]
    assert 16 * MIB < last["resident_bytes"] <= last["limit_bytes"] == 64 * MIB
    assert max(each["reclaimed_pages"]["memcg"]["scan"] or 0 for each in samples) > 0
    summary = of("summary", found)[0]
    assert (summary["samples"], summary["alarms_raised"]) == (len(samples), 0)
    assert 0 < summary["cpu_seconds"] < summary["seconds"]
    text = textfile.read_text()
    assert 'moetier_watch_reclaim_scanned_pages_total{by="memcg"}' in text
    assert 'moetier_watch_device_over_nominal{of="device"} ' in text


def test_a_real_group_made_unhealthy_raises_the_alarm_and_fails_the_watch(
    real_scope: Scope, watching: Callable[..., subprocess.Popen[str]], files_pool: Path
) -> None:
    command = [sys.executable, "-I", "-S", "-c", WASTER, str(files_pool / "experts")]
    with subprocess.Popen(real_scope.enter_argv(command)) as waster:
        try:
            one = watching("--scope", str(real_scope.path), "--interval", "0.2", "--fail")
            _, found = judged(one, {"alarm"})
        finally:
            waster.kill()
    assert one.returncode == 1
    raised = of("alarm", found)[-1]
    assert (raised["alarm"], raised["of"], raised["change"]) == ("device_over_nominal", "device", "raised")
    assert raised["value"] > 1.149
    assert [each["remedy"] for each in raised["remedies"]] == ["confine", "shrink", "toggle"]
    confine = raised["remedies"][0]
    assert (confine["applies"], confine["why"]) == (
        False,
        f"it is confined already: {real_scope.path} has a limit of 64 MiB",
    )


def test_a_real_group_that_is_killed_is_said_and_watched_around(
    real_scope: Scope, watching: Callable[..., subprocess.Popen[str]]
) -> None:
    one = watching("--scope", str(real_scope.path), "--count", "8", "--interval", "0.2")
    lines = until(one, is_sample) + until(one, is_sample)
    real_scope.close()
    found = events("".join(lines)) + ended(one)
    assert f"scope is not observed: {real_scope.path} is gone; the host's own counters go on" in {
        each["text"] for each in of("note", found)
    }
    last = of("sample", found)[-1]
    assert (len(of("sample", found)), last["scope_bytes"], last["limit_bytes"]) == (8, None, None)
    assert last["reclaimed_pages"]["kswapd"]["scan"] is not None


LOOP_CTL_ADD, LOOP_CTL_REMOVE, NUMBER = 0x4C80, 0x4C81, 977


def test_a_real_device_that_vanishes_is_unobserved_and_observed_when_it_is_back(
    as_root: None, watching: Callable[..., subprocess.Popen[str]]
) -> None:
    del as_root
    try:
        control = os.open("/dev/loop-control", os.O_RDWR)
        fcntl.ioctl(control, LOOP_CTL_ADD, NUMBER)
    except OSError as error:
        pytest.skip(f"no loop device can be added: {error}")
    try:
        one = watching("--device", f"loop{NUMBER}", "--count", "10", "--interval", "0.2")
        lines = until(one, is_sample)
        fcntl.ioctl(control, LOOP_CTL_REMOVE, NUMBER)
        lines += until(one, lambda line: "is gone" in line)
        fcntl.ioctl(control, LOOP_CTL_ADD, NUMBER)
        found = events("".join(lines)) + ended(one)
    finally:
        with suppress(OSError):
            fcntl.ioctl(control, LOOP_CTL_REMOVE, NUMBER)
        os.close(control)
    said = [each["text"] for each in of("note", found) if each["text"].startswith("device ")]
    assert said == [
        f"device is not observed: loop{NUMBER} is gone, or its counter started anew",
        "device is observed again",
    ]
    assert of("sample", found)[-1]["device_read_bytes"] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_watch_ends_well_with_its_summary(
    watching: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    one = watching("--device", "/", "--interval", "0.1", "--json")
    until(one, is_sample)
    one.send_signal(number)
    assert of("summary", ended(one))[0]["samples"] >= 1


def test_a_watch_that_listens_serves_its_last_sample(watching: Callable[..., subprocess.Popen[str]]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    one = watching("--device", "/", "--interval", "0.1", "--listen", address)
    until(one, is_sample)
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=LIMIT_SECONDS) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        served = answer.read().decode()
    assert 'moetier_watch_alarm{alarm="scan_per_steal",of="kswapd"} 0.0' in served
    one.send_signal(signal.SIGINT)
    assert of("summary", ended(one))


def test_on_a_terminal_a_table_is_drawn_over(files_pool: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "--pool", str(files_pool), "--count", "2", "--interval", "0.1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as one:
        os.close(theirs)
        seen = b""
        with suppress(OSError):  # a terminal whose last writer is gone
            while part := os.read(ours, 1 << 16):
                seen += part
        os.close(ours)
        assert one.wait(LIMIT_SECONDS) == 0
    text = seen.decode()
    for words in ("kswapd scan / steal", "device / nominal", "pool resident", "of RAM", "2 samples in"):
        assert words in text, text
    assert text.count("moetier watch") >= 2
    assert '{"event"' not in text
