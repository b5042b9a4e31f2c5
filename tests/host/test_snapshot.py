"""Counters and their differences, on recorded hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from trees import FIXTURES, Recorded

from pytest_moetier.errors import HarnessError
from pytest_moetier.host import blockdev, snapshot
from pytest_moetier.host.cgroup import ScopeFiles

V1 = ScopeFiles(1, "/sys/fs/cgroup/memory/moetier-9-cell", ("/sys/fs/cgroup/memory",))
V2 = ScopeFiles(2, "/sys/fs/cgroup/user.slice/moetier-9-cell", ("/sys/fs/cgroup/user.slice",))


def counters(scope: ScopeFiles | None = None, devices: tuple[blockdev.BlockDevice, ...] = ()) -> snapshot.Counters:
    return snapshot.parse(snapshot.take(snapshot.capture_paths(devices, scope), "x"), devices, scope)


def test_a_v1_scope_has_usage_peak_and_hits_but_no_reclaim_of_its_own(recorded: Recorded) -> None:
    recorded("v1-hybrid")
    assert counters(V1).scope == snapshot.ScopeCounters(
        version=1,
        usage_bytes=134160384,
        peak_bytes=134217728,
        limit_bytes=134217728,
        file_bytes=134053888,
        anon_bytes=4096,
        kernel_bytes=106496,
        swap_bytes=0,
        limit_hits=203,
        oom_kills=0,
        pgscan=None,
        pgsteal=None,
        refault_file=19980,
        ancestor_limit_hits=0,
    )


def test_a_v2_scope_has_its_own_reclaim(recorded: Recorded) -> None:
    recorded("v2-systemd")
    found = counters(V2)
    assert found.scope == snapshot.ScopeCounters(
        version=2,
        usage_bytes=268435456,
        peak_bytes=268439552,
        limit_bytes=268439552,
        file_bytes=251658240,
        anon_bytes=12582912,
        kernel_bytes=4194304,
        swap_bytes=0,
        limit_hits=4711,
        oom_kills=0,
        pgscan=120000,
        pgsteal=118000,
        refault_file=90210,
        ancestor_limit_hits=0,
    )
    assert found.mglru == "0x0007"
    assert (found.psi_some_us, found.psi_full_us) == (3235674, 2000000)


def test_a_wall_at_work_in_a_real_guest_is_wholly_observed(recorded: Recorded) -> None:
    recorded("v2-guest-6.12")
    found = counters(ScopeFiles(2, "/sys/fs/cgroup/moetier-9-cell"))
    assert found.scope == snapshot.ScopeCounters(
        version=2,
        usage_bytes=50110464,
        peak_bytes=48 << 20,
        limit_bytes=48 << 20,
        file_bytes=49377280,
        anon_bytes=106496,
        kernel_bytes=323584,
        swap_bytes=0,
        limit_hits=581,
        oom_kills=0,
        pgscan=37120,
        pgsteal=37112,
        refault_file=24576,
        ancestor_limit_hits=0,
    )
    # The group's reclaim is in neither of the host's rows, only in the sums by type.
    assert (found.pgscan_direct, found.pgscan_kswapd, found.pgscan_file) == (0, 21701, 247381)
    assert (found.mglru, found.thp, found.psi_io_full_us) == ("0x0007", "always", 3738411)


def test_an_old_v2_kernel_lacks_peak_and_pressure_and_sums_kernel_memory(recorded: Recorded) -> None:
    recorded("v2-old")
    found = counters(ScopeFiles(2, "/sys/fs/cgroup"))
    assert found.scope is not None
    assert found.scope.peak_bytes is None
    assert found.scope.limit_bytes is None
    assert found.scope.kernel_bytes == 32768 + 16384 + 1024 + 2048
    assert (found.scope.limit_hits, found.scope.oom_kills, found.scope.swap_bytes) == (12, 1, None)
    assert found.psi_full_us is None
    assert found.mglru is None
    assert found.pgscan_kswapd is None


def test_a_removed_scope_gives_none_everywhere_not_zero(recorded: Recorded) -> None:
    recorded("v2-systemd")
    found = counters(ScopeFiles(2, "/sys/fs/cgroup/gone", ("/sys/fs/cgroup/gone-too",))).scope
    assert found is not None
    assert {getattr(found, name) for name in found.__dataclass_fields__ if name != "version"} == {None}


def test_counters_by_zone_of_old_kernels_are_summed_and_waits_are_no_pages() -> None:
    text = (FIXTURES / "vmstat-4.4.txt").read_text()
    found = snapshot.parse(snapshot.Capture("x", 0.0, {"/proc/vmstat": text}))
    assert (found.pgscan_kswapd, found.pgsteal_kswapd, found.pgscan_direct) == (37, 30, 3)
    assert found.workingset_refault_file == 77
    assert found.pgscan_file is None


def v1_interval(**end: int) -> snapshot.Interval:
    start = snapshot.parse(snapshot.Capture("a", 1.0, {"/proc/vmstat": vmstat(dict.fromkeys(ROWS, 0))}), (), None)
    rows = dict.fromkeys(ROWS, 0) | {name: value for name, value in end.items() if name in ROWS}
    stop = snapshot.parse(snapshot.Capture("b", 3.5, {"/proc/vmstat": vmstat(rows)}), (), None)
    scope = snapshot.ScopeCounters(1, *[0] * 9, None, None, 0, 0)
    hits = replace(scope, limit_hits=end.get("hits", 1))
    return snapshot.difference(replace(start, scope=scope), replace(stop, scope=hits))


ROWS = [f"pg{verb}_{who}" for verb in ("scan", "steal") for who in ("kswapd", "direct", "file", "anon")]


def vmstat(rows: dict[str, int]) -> str:
    return "".join(f"{name} {value}\n" for name, value in rows.items())


def test_on_v1_the_residual_of_vmstat_is_the_groups_reclaim() -> None:
    interval = v1_interval(pgscan_file=98841, pgsteal_file=98827)
    assert (interval.memcg_scan, interval.memcg_steal) == (98841, 98827)
    assert interval.seconds == 2.5


def test_anonymous_pages_do_not_distort_the_residual() -> None:
    # kswapd took 50 anonymous pages; without pgscan_anon the residual would come out 50 too low.
    assert v1_interval(pgscan_file=1000, pgscan_anon=50, pgscan_kswapd=50).memcg_scan == 1000


def test_the_residual_is_unobserved_when_the_host_reclaims_or_the_group_never_hit_its_limit() -> None:
    assert v1_interval(pgscan_file=1000, pgscan_kswapd=101).memcg_scan is None
    assert v1_interval(pgscan_file=1000, hits=0).memcg_scan is None
    assert v1_interval(hits=0).memcg_scan == 0


def test_on_v2_the_groups_own_rows_count(recorded: Recorded) -> None:
    recorded("v2-systemd")
    start = counters(V2)
    assert start.scope is not None
    end = replace(start, scope=replace(start.scope, pgscan=120300, pgsteal=118200, limit_hits=4811))
    interval = snapshot.difference(start, end)
    assert (interval.memcg_scan, interval.memcg_steal, interval.scope_limit_hits) == (300, 200, 100)


def test_devices_are_summed_and_one_unreadable_device_makes_the_sum_unknown(recorded: Recorded) -> None:
    root = recorded("btrfs")
    devices = blockdev.devices_of_many([]) + blockdev.resolve(8, 2, None) + blockdev.resolve(8, 16, None)
    start = counters(None, devices)
    (root / "sys/devices/ata1/block/sda/sda2/stat").write_text("110 0 2100 1 4 0 24 0 0 1 1 0 0 0 0 0 0\n")
    (root / "sys/devices/ata2/block/sdb/stat").write_text("201 0 4001 1 1 0 8 0 3 1 1 0 0 0 0 0 0\n")
    end = counters(None, devices)
    interval = snapshot.difference(start, end)
    assert interval.device_read_bytes == 101 * 512
    assert interval.devices == (
        snapshot.DeviceInterval("sda2", 100 * 512, 10, 24 * 512),
        snapshot.DeviceInterval("sdb", 512, 1, 8 * 512),
    )
    assert interval.device_written_bytes == 32 * 512
    assert end.devices[1].inflight == 3
    assert end.devices[0].iostats is True
    (root / "sys/devices/ata2/block/sdb/stat").unlink()
    gone = snapshot.difference(start, counters(None, devices))
    assert (gone.device_read_bytes, gone.device_written_bytes) == (None, None)
    assert gone.devices[0].read_bytes == 100 * 512


def test_no_device_gives_no_figure_rather_than_zero(recorded: Recorded) -> None:
    recorded("v1-hybrid")
    interval = snapshot.difference(counters(), counters())
    assert interval.device_read_bytes is None
    assert interval.process_read_bytes is None


def test_snapshots_of_different_devices_are_not_compared(recorded: Recorded) -> None:
    recorded("btrfs")
    with pytest.raises(HarnessError, match=r"snapshots of \['sdb'\] and \[\]"):
        snapshot.difference(counters(None, blockdev.resolve(8, 16, None)), counters())


def test_the_files_of_a_scope_describe_it_again() -> None:
    assert ScopeFiles.from_paths(V1.capture_files()) == V1
    assert ScopeFiles.from_paths(V2.capture_files()) == V2
    assert snapshot.capture_paths((), V1.capture_files()) == snapshot.capture_paths((), V1)
    assert snapshot.capture_paths((), ()) == snapshot.capture_paths(())


def test_a_loop_device_is_captured_with_its_direct_io() -> None:
    loop = blockdev.BlockDevice("loop3", 7, 3, "/s/stat", "/s/inflight", "/s/queue", True, 128, 1280, False)  # noqa: FBT003
    paths = snapshot.capture_paths((loop,))
    assert paths[-4:] == ("/s/stat", "/s/inflight", "/s/queue/iostats", "/sys/block/loop3/loop/dio")
    files = {"/s/stat": "1 0 8 0 0 0 24 0 2 0 0", "/s/queue/iostats": "1\n", "/sys/block/loop3/loop/dio": "1\n"}
    found = snapshot.parse(snapshot.Capture("x", 0.0, files), (loop,)).devices
    assert found == (snapshot.DeviceCounters("loop3", 4096, 1, 2, iostats=True, dio=True, written_bytes=24 * 512),)


def test_a_capture_event_of_the_replayer_keeps_what_could_not_be_read_as_none() -> None:
    event = {
        "event": "capture",
        "at": "warm:entry",
        "clock_seconds": 12.5,
        "inflight_waited_seconds": 0.1,
        "inflight_zero": True,
        "files": [
            {"path": "/proc/vmstat", "text": "pgmajfault 5\n"},
            {"path": "/proc/pressure/memory", "errno": 95, "error": "Operation not supported"},
        ],
    }
    capture = snapshot.Capture.from_event(event)
    assert capture.files == {"/proc/vmstat": "pgmajfault 5\n", "/proc/pressure/memory": None}
    found = snapshot.parse(capture)
    assert (found.at, found.clock_seconds, found.pgmajfault, found.psi_some_us) == ("warm:entry", 12.5, 5, None)
    assert found.inflight_zero is True


@pytest.mark.parametrize("missing", ["at", "clock_seconds", "files"])
def test_a_capture_event_without_a_part_is_refused(missing: str) -> None:
    event: dict[str, object] = {"at": "x", "clock_seconds": 1.0, "files": []}
    del event[missing]
    with pytest.raises(HarnessError, match="capture event without its parts"):
        snapshot.Capture.from_event(event)


def test_this_hosts_own_files_parse(tmp_path: Path) -> None:
    del tmp_path
    found = counters()
    assert found.mem_total_bytes is not None
    assert found.mem_available_bytes is not None
    assert 0 < found.mem_available_bytes <= found.mem_total_bytes
    assert found.process_rss_anon_bytes is None or found.process_rss_anon_bytes > 0


def fallen(**start: int) -> snapshot.Interval:
    """Return the interval of a v1 group over which the named rows fell to 60, by a wrap or a new start."""
    rows = dict.fromkeys(ROWS, 0)
    before = snapshot.parse(snapshot.Capture("a", 1.0, {"/proc/vmstat": vmstat(rows | start)}), (), None)
    after = {name: 60 if name in start else 600 for name in ROWS}
    end = snapshot.parse(snapshot.Capture("b", 2.0, {"/proc/vmstat": vmstat(after)}), (), None)
    scope = snapshot.ScopeCounters(1, *[0] * 9, None, None, 0, 0)
    return snapshot.difference(replace(before, scope=scope), replace(end, scope=replace(scope, limit_hits=9)))


def test_a_counter_that_fell_is_unobserved_and_never_negative() -> None:
    interval = fallen(pgscan_kswapd=2**32 - 40)
    assert interval.pgscan_kswapd is None
    assert interval.pgsteal_kswapd == 600


@pytest.mark.parametrize("row", ["pgscan_kswapd", "pgscan_direct", "pgscan_file", "pgscan_anon"])
def test_a_residual_with_a_row_that_fell_is_unobserved(row: str) -> None:
    assert fallen(**{row: 2**32 - 40}).memcg_scan is None


def test_swap_of_a_group_may_fall_as_it_is_a_size() -> None:
    scope = snapshot.ScopeCounters(2, *[0] * 13)
    start = replace(snapshot.parse(snapshot.Capture("a", 1.0, {})), scope=replace(scope, swap_bytes=500, pgscan=7))
    end = replace(snapshot.parse(snapshot.Capture("b", 2.0, {})), scope=replace(scope, swap_bytes=100, pgscan=3))
    interval = snapshot.difference(start, end)
    assert (interval.scope_swap_bytes, interval.memcg_scan) == (-400, None)
