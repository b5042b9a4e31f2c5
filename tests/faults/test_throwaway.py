"""Pools made for a finding and slow devices: what this host lacks for them, and nothing left however a session ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_moetier.host import cgroup, loopdev, throttle
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace

BENCH = Path(__file__).parents[2] / "bench"
SHM = Path("/dev/shm")  # noqa: S108 - it is the tmpfs that is wanted
BLKIO = Path("/sys/fs/cgroup/blkio")
BOX = """
import pytest

BOX = {{"finding": "small_box", "capacity": "215MB", "mechanism": "cgroup", "workload": "small_box"}}

@pytest.mark.moetier(**BOX, {words})
def test_box(moetier_cell):
    moetier_cell.measure()
    moetier_cell.judge()
"""
PLAIN = """
@pytest.mark.moetier(mode="page_cache", read_limit=(0, "40MB"))
def test_plain(moetier_cell):
    moetier_cell.measure()
    moetier_cell.judge()
"""


@pytest.fixture
def box(host: Any) -> Callable[..., Any]:
    """Return a call that starts a session of the small box, its pool made in the test's own folder."""
    if os.geteuid() != 0:
        pytest.skip(f"measuring needs root: seen uid {os.geteuid()}")
    for lacking in (
        loopdev.loop_support(),
        *(one.fix for one in (cgroup.scope_support(), throttle.read_limit_support())),
    ):
        if lacking:
            pytest.skip(lacking)

    def start(words: str, until: str) -> Any:
        host.write(BOX.format(words=words))
        one = host.start(host.pytest_argv(host.folder / "pool"), start_new_session=True)
        one.until(until)
        return one

    return start


# What the host lacks


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 8 MiB."""
    if reason := loopdev.loop_support():
        pytest.skip(reason)
    image, point = tmp_path / "disk.img", tmp_path / "disk"
    image.write_bytes(bytes(8 << 20))
    point.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)
    yield point
    subprocess.run(["umount", str(point)], check=True)


def test_without_room_for_its_pool_a_cell_is_not_examined(host: Any, disk: Path) -> None:
    host.write(BOX.format(words="mode=('mmap', 'write_private')"))
    ended = host.start(host.pytest_argv(disk / "pool")).finish(clean=False)
    said = ended.refused(rf"{disk} has [\d.]+ MB free; expected \d+ MB for a temporary pool", ret=0)
    assert "keep the session's pool on a larger device" in said
    assert "2 skipped" in ended.text
    assert [one.name for one in disk.iterdir()] == ["lost+found"]


def test_beside_a_pool_that_may_not_be_written_to_no_pool_can_be_made(host: Any, covered: Callable[..., Any]) -> None:
    (host.folder / "sealed").mkdir()
    host.write(BOX.format(words="mode='mmap'"))
    script = "mount --bind sealed sealed && mount -o remount,bind,ro sealed"
    ended = covered(script, *host.pytest_argv(host.folder / "sealed" / "pool"))
    said = ended.refused(r"\S+/sealed/moetier-pool-\S+ cannot be made: Read-only file system", ret=0)
    assert f"ls -ld {host.folder}/sealed" in said
    assert "1 skipped" in ended.text


def test_on_a_tmpfs_no_pool_can_be_made_since_it_has_no_device(host: Any) -> None:
    if not os.access(SHM, os.W_OK):
        pytest.skip("no writable /dev/shm")
    host.write(BOX.format(words="mode='mmap'"))
    ended = host.pytest(SHM / "pool")
    ended.refused(rf"{SHM} is a tmpfs filesystem [^\n]*without a block device", ret=0)
    assert "1 skipped" in ended.text


UNLIMITED = {
    f"umount -l {BLKIO}": "no control group hierarchy with the controller of block I/O is mounted",
    f"mount -o remount,bind,ro {BLKIO}": f"block I/O groups of v1 at {BLKIO} cannot be made by uid 0",
}


@pytest.mark.parametrize("script", UNLIMITED, ids=["unmounted", "read-only"])
def test_where_reads_cannot_be_limited_only_the_limited_cells_are_lost_and_no_pool_is_made_for_them(
    host: Any, covered: Callable[..., Any], small_pool: Path, script: str
) -> None:
    if not BLKIO.is_mount():
        pytest.skip(f"{BLKIO} is no hierarchy of its own here")
    host.write(BOX.format(words="mode='mmap', read_limit='150MB'") + PLAIN)
    ended = covered(script, *host.pytest_argv(small_pool, "--moetier-json=verdicts.json"))
    ended.refused(UNLIMITED[script], ret=0)
    assert "making a temporary pool" not in ended.text
    found = json.loads((host.folder / "verdicts.json").read_text())["results"]
    assert {one["cell"]: one["verdict"] for one in found} == {
        "C215MB-cgroup-mglru_host-small_box-mmap-150MBps": "not_examined",
        "C30pct-cgroup-mglru_host": "supported",
        "C30pct-cgroup-mglru_host-40MBps": "not_examined",
    }


# Who may see what


@pytest.fixture
def findings(host: Any) -> list[str]:
    """The findings of ownership in a folder of their own, and the options of two domains over the small pool."""
    folder = host.folder / "findings"
    folder.mkdir()
    for name in ("test_policy.py", "test_advice.py", "test_small_box.py", "test_hit_cost.py", "bounds.yaml"):
        shutil.copy(BENCH / name, folder)
    host.bench = "findings"
    options = []
    for domain in ("prose", "code"):
        trace = synth_trace("kimi-k3", layers=2, experts=128, k=8, iterations=20, seed=1, domain=domain)
        write_trace(trace, folder / f"{domain}.jsonl")
        options.append(f"--moetier-trace={domain}={folder}/{domain}.jsonl")
    return options


def test_without_root_every_cell_is_not_examined_and_the_simulations_run(
    host: Any, nobody: Callable[..., Any], plain_pool: Path, findings: list[str], tmp_path: Path
) -> None:
    pool = tmp_path / "mine"
    shutil.copytree(plain_pool, pool)
    subprocess.run(["chown", "-R", "65534:65534", str(tmp_path)], check=True)
    argv = [one for one in host.pytest_argv(pool, *findings, "--moetier-json=verdicts.json") if "capacity=" not in one]
    ended = nobody(*argv)
    assert ended.ret == 0, ended.text
    assert "Traceback" not in ended.text
    assert "making a temporary pool" not in ended.text
    results = json.loads((host.folder / "verdicts.json").read_text())["results"]
    assert {one["verdict"] for one in results} == {"not_examined"}
    cells = [one for one in results if one["cell"] and one["cell"].startswith("C")]
    assert {one["finding"] for one in cells} == {"policy", "advice", "small_box", "hit_cost"}
    for one in cells:
        assert "cgroup v" in one["reason"] or "control group" in one["reason"], one
        assert "; expected " in one["reason"]
        assert "; next: " in one["reason"]
    simulated = [one for one in results if one["test"].startswith(("test_own_domain", "test_drift", "test_off_domain"))]
    assert len(simulated) == 5
    assert all(one["metrics"] for one in simulated)


def test_collecting_makes_nothing(host: Any, findings: list[str]) -> None:
    before = sorted(host.folder.rglob("*"))
    argv = [one for one in host.pytest_argv("/nonexistent/pool", *findings, "--collect-only", "-q") if "=" in one]
    selected = ("-k", "policy or advice or small_box or hit_cost")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", *selected]
    ended = host.start([*command, "--pyargs", "pytest_moetier.bench", *argv]).finish()
    assert ended.ret == 0, ended.text
    files = {line.partition("::")[0].rpartition("/")[2] for line in ended.text.splitlines() if "::" in line}
    assert files == {"test_policy.py", "test_advice.py", "test_small_box.py", "test_hit_cost.py"}
    assert "test_designs[C215MB-cgroup-mglru_host-small_box-write_shared-150MBps]" in ended.text
    new = {*host.folder.rglob("*")} - {*before}
    assert {one.name for one in new} - {".benchmarks"} == {"log-0", "tmp-0"}  # that one is pytest-benchmark's


# How a session ends


def test_a_kill_that_is_not_the_walls_does_not_prove_the_expected_one(box: Callable[..., Any]) -> None:
    one = box("mode='write_private', read_limit='20MB'", ": warm")
    os.kill(one.child("moetier-replay"), signal.SIGKILL)
    ended = one.finish()
    assert ended.ret == 10
    said = ended.said(r"accounting not proved: oom_killed: 0 [^\n]*")
    assert "oom_killed: 0 (expected 1 out-of-memory kill in the scope or more)" in said
    assert said.count("; next: ") == 1
    assert "Traceback" not in ended.text


def test_ctrl_c_while_a_pool_is_made_leaves_nothing(box: Callable[..., Any]) -> None:
    one = box("mode='mmap', read_limit='20MB'", ": making a temporary pool")
    os.killpg(one.process.pid, signal.SIGINT)
    ended = one.finish()
    assert ended.ret == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in ended.text
    assert "Traceback" not in ended.text


def groups(pid: int) -> list[str]:
    """Return the kinds of the groups that a session has at the moment."""
    return sorted({one.name.split("-")[2] for one in Path("/sys/fs/cgroup").rglob(f"moetier-{pid}-*")})


def test_being_told_to_end_gives_back_pool_loop_device_wall_and_limit(box: Callable[..., Any]) -> None:
    one = box("mode='mmap', read_limit='20MB'", ": warm")
    if throttle.read_limit_support().kind == "v1":
        assert groups(one.process.pid) == ["cell", "read"]
    one.process.send_signal(signal.SIGTERM)
    ended = one.finish()
    assert ended.ret == 128 + signal.SIGTERM
    ended.said("SIGTERM: measuring was ended, the host is given back")


def test_after_kill_minus_nine_the_next_start_removes_pool_wall_and_limit(
    host: Any, box: Callable[..., Any], small_pool: Path
) -> None:
    one = box("mode='mmap', read_limit='20MB'", ": warm")
    one.process.send_signal(signal.SIGKILL)
    one.finish(clean=False)
    (pool,) = host.folder.glob(f"moetier-pool-{one.process.pid}-*")
    host.write("def test_next(moetier_cell):\n    moetier_cell.measure()\n    moetier_cell.judge()\n")
    ended = host.pytest(small_pool)
    assert ended.ret in {0, 10}, ended.text  # another process may disturb it
    assert not pool.exists()
    one.finish()
