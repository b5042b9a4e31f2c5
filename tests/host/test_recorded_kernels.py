"""What kernels 6.1, 6.12 and 7.3 wrote while a wall was at work, as it is understood here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from trees import FIXTURES, lay_out

from pytest_moetier.host import generations, mglru, procfs, snapshot
from pytest_moetier.host.blockdev import BlockDevice
from pytest_moetier.host.cgroup import ScopeFiles

KERNELS = FIXTURES.parent / "kernels"
FOLDER = "/sys/fs/cgroup/moetier-9-cell"
SCOPE = ScopeFiles(2, FOLDER)
VDA = BlockDevice(
    name="vda",
    major=254,
    minor=0,
    stat_path="/sys/block/vda/stat",
    inflight_path="/sys/block/vda/inflight",
    queue_path="/sys/block/vda/queue",
    iostats=True,
    read_ahead_kb=None,
    max_sectors_kb=None,
    rotational=None,
)


@dataclass(frozen=True)
class Kernel:
    """What one kernel is known to have written.

    Attributes:
        release: as in /proc/version.
        scan: pages that the group's reclaim looked at between the two moments, and those it took.
        host: the same of kswapd, then of direct reclaim, in the host's own rows.
        wall: pages looked at by reclaim that is in the host's rows by kind of page only: the wall's.
        refaults: of the group.
        hits: of the wall.
        device_bytes: read between the two moments.
        file_bytes: of the group, at the end.
        file_pages: of the group by generation, at the end, from the one that is reclaimed from.
        khugepaged: whether its own reclaim rows exist.
        proactive: likewise.
    """

    release: str
    scan: tuple[int, int]
    host: tuple[int, int, int, int]
    wall: int
    refaults: int
    hits: int
    device_bytes: int
    file_bytes: int
    file_pages: tuple[int, ...]
    khugepaged: bool
    proactive: bool


KNOWN = {
    "6.1": Kernel(
        release="6.1.0-57-cloud-amd64",
        scan=(33344, 33344),
        host=(45120 - 24512, 45120 - 24512, 3392 - 1792, 3392 - 1792),
        wall=23168,
        refaults=8128,
        hits=362,
        device_bytes=(756802 - 393282) * 512,
        file_bytes=49545216,
        file_pages=(10128, 2032, 0),
        khugepaged=False,
        proactive=False,
    ),
    "6.12": Kernel(
        release="6.12.118+deb13-cloud-amd64",
        scan=(28928, 28928),
        host=(40064 - 23936, 40061 - 23933, 3392 - 2112, 3392 - 2112),
        wall=23680,
        refaults=3905,
        hits=370,
        device_bytes=(721482 - 393282) * 512,
        file_bytes=49549312,
        file_pages=(10050, 2047, 0),
        khugepaged=True,
        proactive=False,
    ),
    "7.3": Kernel(
        release="7.3.4+deb13-cloud-amd64",
        scan=(25189, 25189),
        host=(37216 - 26300, 37216 - 26300, 29287 - 2699, 29287 - 2699),
        wall=0,
        refaults=52,
        hits=519,
        device_bytes=(691098 - 393282) * 512,
        file_bytes=49307648,
        file_pages=(9220, 2818, 0, 0),
        khugepaged=True,
        proactive=True,
    ),
}


@dataclass(frozen=True)
class Recorded:
    """A kernel's two moments."""

    name: str
    root: Path
    entry: snapshot.Counters
    exit: snapshot.Counters
    known: Kernel


@pytest.fixture(params=KNOWN)
def kernel(request: pytest.FixtureRequest, tmp_path: Path) -> Recorded:
    """A recorded kernel, its files laid out as at the exit."""
    name = request.param
    roots = {at: lay_out(f"../kernels/{name}/wall-{at}", tmp_path / at) for at in ("entry", "exit")}
    counters = {}
    for at, root in roots.items():
        with procfs.rooted(root):
            capture = snapshot.take(snapshot.capture_paths((VDA,), SCOPE), at)
        counters[at] = snapshot.parse(capture, (VDA,), SCOPE)
    return Recorded(name, roots["exit"], counters["entry"], counters["exit"], KNOWN[name])


def text_of(kernel: Recorded, path: str) -> str:
    with procfs.rooted(kernel.root):
        return procfs.read_text(path)


def rows_of(kernel: Recorded, path: str) -> dict[str, int]:
    """Return ``name number`` rows of a recorded file, read without any parser of the package."""
    lines = (line.replace(":", " ").split() for line in text_of(kernel, path).splitlines())
    return {words[0]: int(words[1]) for words in lines}


def test_the_text_is_of_the_kernel_that_it_says(kernel: Recorded) -> None:
    assert text_of(kernel, "/proc/version").split()[2] == kernel.known.release


def test_memory_is_read_in_bytes(kernel: Recorded) -> None:
    mem = rows_of(kernel, "/proc/meminfo")
    found = kernel.exit
    assert found.mem_total_bytes == mem["MemTotal"] * 1024
    assert (found.mem_available_bytes, found.mem_free_bytes) == (mem["MemAvailable"] * 1024, mem["MemFree"] * 1024)
    assert found.cached_bytes == mem["Cached"] * 1024 > 48 << 20
    assert (found.mlocked_bytes, found.swap_total_bytes) == (0, 0)


def test_every_counter_that_this_kernel_has_is_found_and_no_other(kernel: Recorded) -> None:
    vm = rows_of(kernel, "/proc/vmstat")
    for verb in ("pgscan", "pgsteal"):
        for who in ("kswapd", "direct", "khugepaged", "proactive", "file", "anon"):
            assert getattr(kernel.exit, f"{verb}_{who}") == vm.get(f"{verb}_{who}"), who
    assert ("pgscan_khugepaged" in vm, "pgscan_proactive" in vm) == (kernel.known.khugepaged, kernel.known.proactive)
    assert kernel.exit.workingset_refault_file == vm["workingset_refault_file"] > 0
    assert kernel.exit.pgmajfault == vm["pgmajfault"]


def test_the_group_is_read_from_its_own_files(kernel: Recorded) -> None:
    stat, events = rows_of(kernel, f"{FOLDER}/memory.stat"), rows_of(kernel, f"{FOLDER}/memory.events")
    found = kernel.exit.scope
    assert found is not None
    assert (found.file_bytes, found.anon_bytes, found.kernel_bytes) == (stat["file"], stat["anon"], stat["kernel"])
    assert found.file_bytes == kernel.known.file_bytes
    assert (found.limit_bytes, found.peak_bytes) == (48 << 20, 48 << 20)
    assert 47 << 20 < (found.usage_bytes or 0) <= 48 << 20
    assert (found.limit_hits, found.oom_kills) == (events["max"], events["oom_kill"]) == (kernel.known.hits, 0)
    assert (found.swap_bytes, found.ancestor_limit_hits) == (0, 0)


def test_the_groups_reclaim_is_the_difference_of_its_own_counters(kernel: Recorded) -> None:
    interval = snapshot.difference(kernel.entry, kernel.exit)
    assert (interval.memcg_scan, interval.memcg_steal) == kernel.known.scan
    assert interval.scope_refault_file == kernel.known.refaults
    assert interval.scope_limit_hits == kernel.known.hits


def test_the_groups_reclaim_by_who_did_it_adds_up_to_its_whole(kernel: Recorded) -> None:
    stat = rows_of(kernel, f"{FOLDER}/memory.stat")
    for verb in ("pgscan", "pgsteal"):
        parts = [
            stat[f"{verb}_{who}"] for who in ("kswapd", "direct", "khugepaged", "proactive") if f"{verb}_{who}" in stat
        ]
        assert sum(parts) == stat[verb] > 0


def test_only_the_newest_kernel_counts_the_walls_reclaim_in_the_hosts_rows(kernel: Recorded) -> None:
    interval = snapshot.difference(kernel.entry, kernel.exit)
    rows = (interval.pgscan_kswapd, interval.pgsteal_kswapd, interval.pgscan_direct, interval.pgsteal_direct)
    assert rows == kernel.known.host
    # The sums by kind of page hold everyone's.
    assert interval.pgscan_file is not None
    assert interval.pgscan_file - kernel.known.host[0] - kernel.known.host[2] == kernel.known.wall
    # The group's own direct reclaim is the wall's, and what the machine took of it when it was short itself.
    direct = rows_of(kernel, f"{FOLDER}/memory.stat")["pgscan_direct"]
    if kernel.name == "7.3":
        assert kernel.known.host[2] >= direct
    else:
        assert kernel.known.host[2] < 0.1 * direct
        assert 0.95 * direct < kernel.known.wall <= direct


def test_the_device_is_read_from_its_own_row_of_either_file(kernel: Recorded) -> None:
    row = procfs.parse_diskstat_row(text_of(kernel, "/proc/diskstats").splitlines()[-1])
    (device,) = kernel.exit.devices
    assert (row.name, row.in_flight) == ("vda", 0)
    assert (device.read_bytes, device.reads) == (row.read_bytes, row.reads)
    assert (device.inflight, device.iostats) == (0, True)
    assert snapshot.difference(kernel.entry, kernel.exit).device_read_bytes == kernel.known.device_bytes


def test_pressure_is_in_microseconds_and_rises(kernel: Recorded) -> None:
    interval = snapshot.difference(kernel.entry, kernel.exit)
    assert 0 < (interval.psi_full_us or 0) <= (interval.psi_some_us or 0)
    total = int(text_of(kernel, "/proc/pressure/memory").split("total=")[-1])
    assert kernel.exit.psi_full_us == total


def test_the_switch_of_the_generations_reads_as_on(kernel: Recorded) -> None:
    assert kernel.exit.mglru == "0x0007"
    with procfs.rooted(kernel.root):
        assert mglru.current() == mglru.ON


def test_the_generations_hold_the_groups_file_pages(kernel: Recorded) -> None:
    found = generations.parse(text_of(kernel, generations.PATH))
    assert found is not None
    pages = found.file_pages_by_generation("/moetier-9-cell")
    assert pages == kernel.known.file_pages
    # memory.stat is added up late, and in batches of pages per processor.
    assert abs(sum(pages) * 4096 - kernel.known.file_bytes) <= 2 * 64 * 4096
    assert [group.path for group in found.groups] == ["/", "/moetier-9-cell"]


@pytest.mark.parametrize("name", KNOWN)
def test_a_quiet_console_says_ready_then_the_kill_then_the_end(name: str) -> None:
    lines = (KERNELS / name / "console.txt").read_bytes().decode().split("\r\n")
    assert lines[0].startswith("MOETIER-READY uptime ")
    assert "Memory cgroup out of memory: Killed process" in lines[1]
    assert lines[2].endswith("reboot: Power down")
    assert lines[3:] == [""]


@pytest.mark.parametrize("name", KNOWN)
def test_a_panic_says_so_and_names_its_kernel(name: str) -> None:
    lines = (KERNELS / name / "panic.txt").read_bytes().decode().split("\r\n")
    (reason,) = [line for line in lines if "Kernel panic - not syncing: " in line]
    assert reason.endswith("VFS: Unable to mount root fs on unknown-block(0,0)")
    assert any(KNOWN[name].release in line for line in lines)
