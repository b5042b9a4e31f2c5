"""Samples of a planted host: what is observed, and what becomes of counters that vanish, wrap or start anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted import DEVICE_STAT, GROUP, MIB, PID, Planted

from pytest_moetier.host import blockdev, machine, residency, snapshot
from pytest_moetier.host.cgroup import ScopeFiles
from pytest_moetier.watch.nominal import MissShare
from pytest_moetier.watch.resident import FILES_A_LOOK, PoolCache
from pytest_moetier.watch.sample import MOST_PROCESSES, Sample, Sampler, Watched

HALF = MissShare((1.0, 0.0), 128 * MIB, 2 * MIB, "a line: half the pool misses half")


def sampler(group: ScopeFiles | None = None, **words: object) -> Sampler:
    """Return a sampler of the planted device, and of its group, that has its first moment."""
    found = Sampler(Watched(devices=blockdev.devices_named("sda"), scope=group, demand=HALF, **words))  # type: ignore[arg-type]
    assert found.sample() is None
    return found


def taken(found: Sampler) -> Sample:
    sample = found.sample()
    assert sample is not None
    return sample


def test_a_sample_has_every_figure_of_its_interval(planted: Planted, group: ScopeFiles) -> None:
    found = sampler(group)
    planted.limit = str(96 * MIB)
    planted.move(scan=600, steal=100, group_scan=300, group_steal=200, sectors=2048, rchar=4 * MIB, stalled_us=50)
    sample = taken(found)
    assert (sample.reclaimed["kswapd"].scan, sample.reclaimed["kswapd"].steal) == (600, 100)
    assert (sample.reclaimed["memcg"].scan, sample.reclaimed["memcg"].steal) == (300, 200)
    assert (sample.reclaimed["direct"].scan, sample.reclaimed["direct"].steal) == (0, 0)
    assert (sample.device_bytes, sample.delivered_bytes, sample.readers_bytes) == (MIB, 4 * MIB, MIB)
    assert sample.iterations == 2
    assert sample.resident_bytes == 64 * MIB  # no pool: the group's file bytes stand for it
    assert sample.nominal_bytes == 2 * MIB  # half the pool is resident, so half of what was delivered
    assert sample.psi_some_share == pytest.approx(50e-6 / sample.seconds)
    assert (sample.psi_full_share, sample.locked_share) == (0.0, 0.81)
    assert (sample.scope_bytes, sample.limit_bytes, sample.available_bytes) == (64 * MIB, 96 * MIB, 10 * MIB)
    assert sample.unobserved == {}


def test_a_sample_reads_few_files(planted: Planted, group: ScopeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    plain = type(machine.HOST).read
    found = sampler(group)

    def counted(self: object, path: str) -> bytes:
        read.append(path.removeprefix(str(planted.root)))
        return plain(self, path)  # type: ignore[arg-type]

    monkeypatch.setattr(type(machine.HOST), "read", counted)
    taken(found)
    host = ["/proc/meminfo", "/proc/vmstat", "/proc/pressure/memory", "/sys/dev/block/8:0/stat"]
    assert read[:4] == host
    assert read[-2:] == [f"{GROUP}/cgroup.procs", f"/proc/{PID}/io"]
    assert len(read) == len(set(read)) == 4 + len(group.capture_files()) + 2


def test_a_counter_that_wraps_or_starts_anew_skips_its_interval_and_no_other(planted: Planted) -> None:
    planted.scan, planted.steal, planted.sectors = 2**32 - 50, 2**32 - 50, 8000
    planted.lay_out()
    found = sampler()
    planted.scan, planted.steal, planted.sectors = 100, 60, 16
    planted.move(stalled_us=7)
    sample = taken(found)
    assert (sample.reclaimed["kswapd"].scan, sample.reclaimed["kswapd"].steal) == (None, None)
    assert sample.device_bytes is None
    assert "started anew" in sample.unobserved["kswapd"]
    assert "started anew" in sample.unobserved["device"]
    assert sample.psi_some_share is not None
    planted.move(scan=10, steal=5, sectors=8)
    sample = taken(found)
    assert (sample.reclaimed["kswapd"].scan, sample.device_bytes) == (10, 4096)
    assert not {"kswapd", "device"} & set(sample.unobserved)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        (DEVICE_STAT, "device"),
        ("/proc/vmstat", "kswapd"),
        ("/proc/pressure", "psi"),
        ("/proc/meminfo", "locked"),
        (f"/proc/{PID}/io", "delivered"),
    ],
)
def test_what_vanishes_is_unobserved_from_then_on_and_again_observed_when_it_is_back(
    planted: Planted, group: ScopeFiles, file: str, name: str
) -> None:
    found = sampler(group)
    assert name not in taken(found).unobserved
    planted.gone = {file}
    planted.lay_out()
    for _ in range(2):
        assert name in taken(found).unobserved
    planted.gone = set()
    planted.lay_out()
    taken(found)  # a difference to nothing
    assert name not in taken(found).unobserved


def test_a_group_that_dies_leaves_the_hosts_counters(planted: Planted, group: ScopeFiles) -> None:
    found = sampler(group)
    planted.gone = {GROUP}
    planted.move(scan=30, steal=10, sectors=8)
    sample = taken(found)
    assert sample.unobserved["scope"] == f"{GROUP} is gone; the host's own counters go on"
    assert sample.unobserved["memcg"] == sample.unobserved["scope"]
    assert sample.unobserved["delivered"] == "no process is left to count"
    assert (sample.reclaimed["kswapd"].scan, sample.device_bytes) == (30, 4096)
    assert (sample.scope_bytes, sample.limit_bytes, sample.resident_bytes) == (None, None, None)


def test_another_group_of_the_same_name_is_counted_from_its_second_sample(planted: Planted, group: ScopeFiles) -> None:
    planted.move(group_scan=10, group_steal=10)
    found = sampler(group)
    (planted.root / GROUP.lstrip("/")).rename(planted.root / "elsewhere")
    planted.move(group_scan=900, group_steal=300)  # more than before: only its identity tells
    sample = taken(found)
    assert sample.reclaimed["memcg"].scan is None
    assert sample.unobserved["scope"] == f"{GROUP} is another group now: it is counted from here on"
    planted.move(group_scan=5, group_steal=5)
    assert taken(found).reclaimed["memcg"].scan == 5


def test_a_clock_that_stands_still_or_goes_back_gives_no_rate(
    planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([10.0, 10.0, 9.0, 11.0])
    monkeypatch.setattr(snapshot.time, "clock_gettime", lambda _: next(times))
    found = sampler()
    planted.move(sectors=8)
    assert found.sample() is None
    assert found.sample() is None
    planted.move(sectors=16)
    sample = taken(found)
    assert (sample.seconds, sample.device_bytes) == (2.0, 8192)


def test_readers_that_map_their_files_are_said_not_to_be_observed(planted: Planted, group: ScopeFiles) -> None:
    found = sampler(group)
    planted.move(sectors=40960, rchar=100)
    sample = taken(found)
    assert (sample.delivered_bytes, sample.nominal_bytes, sample.device_bytes) == (None, None, 20 * MIB)
    assert "they map their files" in sample.unobserved["delivered"]
    assert sample.unobserved["nominal"].startswith("what is delivered is not: ")


def test_readers_at_rest_are_observed(planted: Planted, group: ScopeFiles) -> None:
    found = sampler(group)
    planted.move(scan=1)
    assert (taken(found).delivered_bytes, taken(found).nominal_bytes) == (0, 0)


def test_a_process_of_another_life_skips_its_interval(planted: Planted) -> None:
    planted.rchar = 5000
    planted.lay_out()
    found = sampler(pids=(PID,))
    planted.move(rchar=-4000)
    assert taken(found).unobserved["delivered"] == "every reader is new, or of another life, in this interval"
    planted.move(rchar=100)
    assert taken(found).delivered_bytes == 100


def test_a_crowd_is_not_read_each_second(planted: Planted, group: ScopeFiles) -> None:
    found = sampler(group)
    procs = planted.root / GROUP.lstrip("/") / "cgroup.procs"
    procs.write_text("".join(f"{pid}\n" for pid in range(1000, 1000 + MOST_PROCESSES + 1)))
    assert taken(found).unobserved["delivered"] == "the scope has 129 processes: name the readers by --pid"


def test_what_was_not_named_is_unobserved_with_what_to_name(planted: Planted) -> None:
    found = Sampler(Watched())
    found.sample()
    planted.move(scan=5, steal=5)
    why = taken(found).unobserved
    assert {name: why[name].partition(":")[0] for name in ("device", "memcg", "delivered", "nominal", "resident")} == {
        "device": "no --device and no --pool",
        "memcg": "no --scope",
        "delivered": "no --scope and no --pid",
        "nominal": "no --plan",
        "resident": "no --pool, and no scope whose file bytes stand for it",
    }


def test_the_miss_share_is_a_line_between_its_points() -> None:
    share = MissShare((1.0, 0.6, 0.0), 200, 10, "three points")
    assert [share.at(size) for size in (-5, 0, 50, 100, 150, 200, 900)] == pytest.approx([1, 1, 0.8, 0.6, 0.3, 0, 0])


def test_residency_is_of_every_file_at_first_and_of_a_few_in_turn_after(tmp_path: Path) -> None:
    count = FILES_A_LOOK + 10
    paths = [tmp_path / f"{at:04d}" for at in range(count)]
    for path in paths:
        path.write_bytes(bytes(4096))
    cache = PoolCache(paths)
    assert cache.look() == count * 4096
    for path in paths:
        assert residency.drop_file(path) == 0
    assert cache.look() == 10 * 4096  # the last ten were not looked at again
    assert cache.look() == 0
    paths[0].unlink()
    assert cache.look() == 0
