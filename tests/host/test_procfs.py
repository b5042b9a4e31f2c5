"""The parsers of kernel text."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from trees import FIXTURES, Recorded

from pytest_moetier.errors import HarnessError, UnsupportedHostError
from pytest_moetier.host import procfs


def test_meminfo_is_in_bytes_and_counts_stay_counts(recorded: Recorded) -> None:
    recorded("v2-old")
    mem = procfs.parse_meminfo(procfs.read_text("/proc/meminfo"))
    assert mem == {
        "MemTotal": 16_000_000 * 1024,
        "MemFree": 1_000_000 * 1024,
        "MemAvailable": 12_000_000 * 1024,
        "HugePages_Total": 3,
    }


def test_keyed_rows_with_and_without_colon_and_nothing_else() -> None:
    assert procfs.parse_keyed("rchar: 12\nmax 3\nlow max\na b c\n\n") == {"rchar": 12, "max": 3}


@pytest.mark.parametrize(
    ("row", "columns", "expected"),
    [
        (0, 14, ("sda", 100, 2048 * 512, 1, 56 * 512)),
        (1, 18, ("sdb", 100, 2048 * 512, 0, 56 * 512)),
        (2, 18, ("vda", 32976, 5245060 * 512, 0, 2091144 * 512)),
        (3, 20, ("nvme0n1", 100, 2048 * 512, 0, 56 * 512)),
        (4, 20, ("nvme0c0n1", 52110, 4194304 * 512, 0, 80000 * 512)),
    ],
)
def test_diskstats_rows_of_every_width(row: int, columns: int, expected: tuple[str, int, int, int, int]) -> None:
    text = (FIXTURES / "diskstats.txt").read_text().splitlines()[row]
    assert len(text.split()) == columns
    assert procfs.parse_diskstat_row(text) == procfs.DiskStat(*expected)


def test_a_seventeen_column_stat_file_has_no_name() -> None:
    text = " ".join(str(number) for number in range(1, 18))
    assert procfs.parse_diskstat_row(text) == procfs.DiskStat("", 1, 3 * 512, 9, 7 * 512)


def test_a_short_statistics_row_is_refused_with_the_counts() -> None:
    with pytest.raises(UnsupportedHostError, match=r"row of 4 counters.*expected at least 11"):
        procfs.parse_diskstat_row("8 1 sda1 100 5 2048 30")


def test_pressure_totals_and_a_file_that_answers_eopnotsupp(recorded: Recorded) -> None:
    recorded("v2-old")
    assert procfs.parse_pressure(procfs.try_text("/proc/pressure/memory")) is None
    recorded("v2-systemd")
    assert procfs.parse_pressure(procfs.try_text("/proc/pressure/memory")) == procfs.Pressure(3235674, 2000000)
    assert procfs.parse_pressure("some avg10=0.00 total=5\n") == procfs.Pressure(5, None)


def test_status_gives_locked_and_anonymous_bytes_and_none_for_absent_rows() -> None:
    status = procfs.parse_status("Name:\tcat\nVmLck:\t    8192 kB\nRssAnon:\t 112 kB\nCapEff:\t000001fffeffffff\n")
    assert status == procfs.Status("cat", 8192 * 1024, 112 * 1024, None, 0x1FFFEFFFFFF)
    assert status.capabilities is not None
    assert status.capabilities >> 24 & 1 == 0


def test_mountinfo_undoes_escapes(recorded: Recorded) -> None:
    recorded("btrfs")
    mount = procfs.mounts()[1]
    assert (mount.point, mount.kind, mount.source, mount.device_number) == (
        "/data pool",
        "btrfs",
        "/dev/sda2",
        (0, 33),
    )


@pytest.mark.parametrize(("text", "word"), [("always [madvise] never\n", "madvise"), ("0x0007\n", "0x0007")])
def test_the_selected_word_of_a_sysfs_file(text: str, word: str) -> None:
    assert procfs.parse_choice(text) == word


def test_an_unreadable_file_is_an_unsupported_host_and_a_refused_value_a_broken_harness(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedHostError, match="/proc/no-such-file: No such file"):
        procfs.read_text("/proc/no-such-file")
    (tmp_path / "limit").write_text("max\n")
    with procfs.rooted(tmp_path), pytest.raises(UnsupportedHostError, match="holds 'max'"):
        procfs.read_int("/limit")
    with pytest.raises(UnsupportedHostError, match="No such file"):
        procfs.write_text("/proc/no-such-file", "1")
    with pytest.raises(HarnessError, match="Invalid argument"):
        procfs.write_text("/proc/self/oom_score_adj", "nonsense")


def test_a_process_is_known_by_its_start_and_a_dead_one_is_none() -> None:
    me = procfs.process_id(os.getpid())
    assert me is not None
    assert me.start_ticks > 0
    child = subprocess.Popen(["true"])
    child.wait()
    assert procfs.process_id(child.pid) is None
