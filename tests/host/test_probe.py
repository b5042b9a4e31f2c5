"""The doctor and the facts of a host."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest

from pytest_moetier.host import probe, procfs

NAMES = [
    "root",
    "RLIMIT_MEMLOCK",
    "swap",
    "MGLRU",
    "THP",
    "DAMON",
    "PSI",
    "cachestat",
    "process I/O",
    "loop devices",
    "device",
    "disk",
    "memory",
    "mechanism cgroup",
    "mechanism balloon",
    "mechanism memboot",
]


def test_the_doctor_looks_at_everything_and_gives_a_fix_for_all_that_is_missing(tmp_path: Path) -> None:
    checks = probe.doctor_report(tmp_path)
    found = [check.name for check in checks]
    assert [name for name in NAMES if name not in found] == []
    for check in checks:
        assert check.state in {"ok", "limited", "missing", "info"}
        assert check.observed
        assert check.means
        assert check.fix or check.state not in {"missing", "limited"}, check


def test_a_pool_on_tmpfs_is_missing_its_device() -> None:
    shm = Path("/dev/shm")  # noqa: S108
    if not any(mount.point == str(shm) and mount.kind == "tmpfs" for mount in procfs.mounts()):
        pytest.skip("no tmpfs at /dev/shm")
    (device,) = [check for check in probe.doctor_report(shm / "not-there-yet") if check.name == "device"]
    assert device.state == "missing"
    assert "tmpfs" in device.observed


def test_the_balloons_room_is_what_is_available_above_the_reserve() -> None:
    (check,) = [c for c in probe.doctor_report(reserve_bytes=1 << 60) if c.name == "mechanism balloon"]
    assert check.state == "missing"
    assert check.observed.startswith("can lock 0 B at most")
    assert "virtual machine" in check.fix


def test_the_facts_are_plain_json_and_name_this_kernel() -> None:
    facts = probe.host_facts()
    document = json.loads(json.dumps(facts.as_json()))
    assert document["release"] == os.uname().release
    assert document["lane"] == "host"
    assert document["fingerprint"] == facts.fingerprint()
    assert facts.match_patterns()["fingerprint"] == facts.match_facts()["fingerprint"]
    assert f"MGLRU {facts.mglru}" in facts.summary()


def test_the_fingerprint_is_of_the_hardware_not_the_kernel() -> None:
    facts = probe.host_facts()
    same = dataclasses.replace(facts, release="9.9.9", mem_total_bytes=(facts.mem_total_bytes or 0) - 4096)
    assert same.fingerprint() == facts.fingerprint()
    assert dataclasses.replace(facts, cpu_model="another").fingerprint() != facts.fingerprint()
    assert dataclasses.replace(facts, lane="guest").fingerprint() != facts.fingerprint()


def test_the_machines_id_itself_is_never_shown() -> None:
    secret = (procfs.try_text("/etc/machine-id") or "").strip()
    if not secret:
        pytest.skip("no machine id")
    assert secret not in json.dumps(probe.host_facts().as_json())


def test_a_system_that_is_not_linux_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert probe.host_facts().cgroup == "none"
    (check,) = probe.doctor_report()
    assert (check.state, check.observed) == ("missing", "Darwin")


@pytest.mark.parametrize(
    ("cpuinfo", "words"),
    [
        ("model name\t: QEMU TCG CPU version 2.5+\nflags\t: fpu hypervisor\n", "emulated"),
        ("model name\t: AMD EPYC\nflags\t: fpu hypervisor avx\n", "virtual machine"),
        ("model name\t: AMD EPYC\nflags\t: fpu avx\n", "none"),
    ],
)
def test_virtualisation_is_read_from_the_cpu(tmp_path: Path, cpuinfo: str, words: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(cpuinfo)
    with procfs.rooted(tmp_path):
        assert probe._virtualisation() == words  # noqa: SLF001


def test_running_damon_is_named_with_its_action(tmp_path: Path) -> None:
    folder = tmp_path / "sys/kernel/mm/damon/admin/kdamonds/0"
    (folder / "contexts/0/schemes/0").mkdir(parents=True)
    (folder / "state").write_text("on\n")
    (folder / "contexts/0/schemes/0/action").write_text("pageout\n")
    with procfs.rooted(tmp_path):
        assert probe.damon_running() == ("kdamond 0 (pageout)",)
        (folder / "state").write_text("off\n")
        assert probe.damon_running() == ()
