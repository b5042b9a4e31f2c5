"""The remedies in the paper's order, and the command of each on a host of each kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planted import GROUP, PID, Planted

from pytest_moetier.host.cgroup import ScopeFiles, Support
from pytest_moetier.watch.remedies import Here, Process, Remedy, look_around, remedies
from pytest_moetier.watch.sample import Sampler, Watched

GIB, MIB = 1 << 30, 1 << 20
V1 = Path("/sys/fs/cgroup/memory")
HERE = Here(
    support=Support("v2", "cgroup v2 at /sys/fs/cgroup"),
    mount=Path("/sys/fs/cgroup"),
    systemd=False,
    scope=None,
    limit_bytes=None,
    pids=(42,),
    reader=None,
    locker=Process(7, "engine --mlock", 80 * GIB),
    locked_bytes=81 * GIB,
    memory_bytes=100 * GIB,
    available_bytes=10 * GIB,
    mglru="on",
    kernel="/boot/vmlinuz-6.8:/lib/modules/6.8",
)
WALL = 9 * GIB


def confine(**words: object) -> Remedy:
    return remedies(replace(HERE, **words))[0]  # type: ignore[arg-type]


def test_the_order_is_the_papers() -> None:
    assert [one.name for one in remedies(HERE)] == ["confine", "shrink", "toggle"]
    assert all(one.applies for one in remedies(HERE))


def test_on_v2_the_reader_is_moved_into_a_group_with_a_limit_below_what_is_available() -> None:
    assert confine().commands == (
        "mkdir -p /sys/fs/cgroup/moe-reader",
        "echo +memory > /sys/fs/cgroup/cgroup.subtree_control",
        f"echo {WALL} > /sys/fs/cgroup/moe-reader/memory.max",
        "echo 42 > /sys/fs/cgroup/moe-reader/cgroup.procs",
    )


def test_on_v1_likewise_with_its_own_files() -> None:
    assert confine(support=Support("v1", "v1"), mount=V1, pids=(42, 43)).commands == (
        "mkdir -p /sys/fs/cgroup/memory/moe-reader",
        f"echo {WALL} > /sys/fs/cgroup/memory/moe-reader/memory.limit_in_bytes",
        "echo 42 > /sys/fs/cgroup/memory/moe-reader/cgroup.procs",
        "echo 43 > /sys/fs/cgroup/memory/moe-reader/cgroup.procs",
    )


@pytest.mark.parametrize(
    ("support", "systemd", "start"),
    [
        (Support("v2", ""), True, "systemd-run --scope"),
        (Support("systemd", ""), True, "systemd-run --scope"),
        (Support("systemd-user", ""), True, "systemd-run --user --scope"),
    ],
)
def test_where_a_service_manager_rules_it_is_asked_to_start_the_reader(
    planted: Planted,
    support: Support,
    systemd: bool,  # noqa: FBT001 - a parameter of the test
    start: str,
) -> None:
    planted.lay_out()
    found = confine(support=support, systemd=systemd, pids=(PID,))
    assert found.commands == (f"{start} -p MemoryMax={WALL} -p MemorySwapMax=0 -- reader --mlock",)


def test_a_group_that_is_watched_is_given_its_limit_and_one_that_has_it_is_confined_already() -> None:
    scope = ScopeFiles(2, GROUP)
    assert confine(scope=scope).commands == (f"echo {WALL} > {GROUP}/memory.max",)
    found = confine(scope=scope, limit_bytes=8 * GIB)
    assert (found.applies, found.commands) == (False, ())
    assert found.why == f"it is confined already: {GROUP} has a limit of 8 GiB"


def test_without_control_groups_it_says_why_and_what_would_change_it() -> None:
    found = confine(support=Support("none", "not writable by uid 1000", "run as root"), mount=None)
    assert (found.applies, found.why) == (
        False,
        "no control group can be had here: not writable by uid 1000; run as root",
    )


def test_a_reader_that_was_not_named_is_guessed_and_said_to_be() -> None:
    found = confine(pids=(), reader=Process(9, "cat x", 5))
    assert found.commands[-1] == "echo 9 > /sys/fs/cgroup/moe-reader/cgroup.procs"
    assert "9 (cat x) has read most from devices" in found.why
    assert confine(pids=()).commands[-1] == "echo PID > /sys/fs/cgroup/moe-reader/cgroup.procs"


def test_the_largest_locker_is_to_lock_less_by_what_is_above_the_papers_clean_share() -> None:
    found = remedies(HERE)[1]
    keep = 73 * GIB  # 81 of 100 GiB are locked and 74 were clean: 7 less of its 80
    assert found.commands == (f"setpriv --bounding-set=-ipc_lock prlimit --memlock={keep}:{keep} engine --mlock",)
    assert found.why.startswith("81.0% of RAM is locked: the paper's host amplified at 81% and not at 74%, 7 GiB less")


@pytest.mark.parametrize(("locked", "applies"), [(0, False), (74 * GIB, False), (75 * GIB, True), (None, False)])
def test_a_host_that_locks_no_more_than_the_clean_share_has_nothing_to_shrink(
    locked: int | None,
    applies: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    found = remedies(replace(HERE, locked_bytes=locked))[1]
    assert found.applies is applies
    assert bool(found.commands) is applies


def test_the_toggle_is_benchmarked_before_it_is_thrown() -> None:
    assert remedies(HERE)[2].commands == (
        "pytest bench/ -k reclaim --moetier-kernel /boot/vmlinuz-6.8:/lib/modules/6.8 --moetier-refuted=report",
        "echo n > /sys/kernel/mm/lru_gen/enabled",
        "echo y > /sys/kernel/mm/lru_gen/enabled",
    )


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("absent", "/sys/kernel/mm/lru_gen/enabled is absent: this kernel is built without MGLRU"),
        ("off", "MGLRU is off already: the classic LRU reclaims here"),
    ],
)
def test_without_mglru_there_is_nothing_to_toggle(state: str, why: str) -> None:
    found = remedies(replace(HERE, mglru=state))[2]
    assert (found.applies, found.why, found.commands) == (False, why, ())


def test_what_the_remedies_rest_on_is_looked_up(planted: Planted, group: ScopeFiles) -> None:
    planted.sectors = 8
    planted.lay_out()
    sampler = Sampler(Watched(scope=group))
    sampler.sample()
    sample = sampler.sample()
    assert sample is not None
    here = look_around(sample, None, ())
    assert (here.support.kind, here.mount, here.systemd) == ("v2", Path("/sys/fs/cgroup"), False)
    assert here.reader == Process(PID, "reader --mlock", 4096)
    assert here.locker == Process(PID, "reader --mlock", 81 * 1024)
    assert (here.mglru, here.kernel) == ("absent", "newest")
    assert look_around(sample, group, (PID,)).scope == group
    assert look_around(sample, group, (PID,)).reader is None
    planted.gone = {GROUP}
    planted.lay_out()
    assert look_around(sample, group, ()).scope is None
