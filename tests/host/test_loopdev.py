"""A pool image on its own loop device, really attached and mounted here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_moetier.errors import InputError
from pytest_moetier.host import blockdev, loopdev, procfs, residency
from pytest_moetier.host.restore import Journal, drop_caches

SIZE = 8 << 20


def fill(image: Path) -> None:
    with loopdev.attach(image, read_only=False) as loop:
        mount = loopdev.mount_detached(loop, read_only=False)
        Path(f"/proc/self/fd/{mount}/x").write_bytes(os.urandom(SIZE))
        os.close(mount)


def attached(image: Path) -> bool:
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    return any((procfs.try_text(file) or "").strip() == str(image) for file in files)


def test_a_cold_read_counts_its_bytes_on_the_loops_own_row_and_leaves_the_image_uncached(image: Path) -> None:
    fill(image)
    with loopdev.attach(image, read_only=True, read_ahead_kb=128) as loop:
        assert loop.dio
        assert loop.device.read_ahead_kb == 128
        mount = loopdev.mount_detached(loop, read_only=True)
        file = Path(f"/proc/self/fd/{mount}/x")
        assert blockdev.devices_of(file) == (loop.device,)
        drop_caches([image])
        residency.drop_file(image)
        residency.drop_file(file)
        before = procfs.parse_diskstat_row(procfs.read_text(loop.device.stat_path)).read_bytes
        subprocess.run(["dd", f"if={file}", "of=/dev/null", "bs=1M"], pass_fds=[mount], check=True, capture_output=True)
        cold = procfs.parse_diskstat_row(procfs.read_text(loop.device.stat_path)).read_bytes - before
        assert SIZE <= cold <= SIZE + (1 << 20)  # and the file's own metadata
        assert residency.resident_bytes(file) == SIZE
        assert (loopdev.image_resident_bytes(image) or 0) <= 1 << 20
        subprocess.run(["dd", f"if={file}", "of=/dev/null", "bs=1M"], pass_fds=[mount], check=True, capture_output=True)
        warm = procfs.parse_diskstat_row(procfs.read_text(loop.device.stat_path)).read_bytes - before
        assert warm == cold
        os.close(mount)
    assert not attached(image)


def test_a_read_only_image_refuses_writes_and_is_in_no_mount_table(image: Path) -> None:
    with loopdev.attach(image, read_only=True) as loop:
        mount = loopdev.mount_detached(loop, read_only=True)
        with pytest.raises(OSError, match="Read-only file system"):
            Path(f"/proc/self/fd/{mount}/y").write_bytes(b"")
        assert str(loop.path) not in procfs.read_text("/proc/self/mountinfo")
        os.close(mount)


def test_read_ahead_is_set_back_and_the_journal_is_empty_afterwards(image: Path, tmp_path: Path) -> None:
    with Journal(private(tmp_path)) as journal:
        with loopdev.attach(image, read_only=True) as loop:
            path, old = f"/sys/block/{loop.path.name}/queue/read_ahead_kb", loop.device.read_ahead_kb
        with loopdev.attach(image, read_only=True, read_ahead_kb=64, journal=journal) as loop:
            assert loop.path.name in path
            assert procfs.read_int(path) == 64
        assert procfs.read_int(path) == old
        assert journal.close() == []


def test_an_unclean_image_is_mounted_read_only_without_its_journal(image: Path, tmp_path: Path) -> None:
    with loopdev.attach(image, read_only=False) as loop:
        mount = loopdev.mount_detached(loop, read_only=False)
        folder = f"/proc/self/fd/{mount}"
        Path(f"{folder}/x").write_bytes(b"x" * 4096)
        os.sync()
        copy = tmp_path / "unclean.img"
        copy.write_bytes(image.read_bytes())
        os.close(mount)
    with loopdev.attach(copy, read_only=True) as loop:
        mount = loopdev.mount_detached(loop, read_only=True)
        assert "lost+found" in os.listdir(f"/proc/self/fd/{mount}")  # noqa: PTH208
        os.close(mount)


def test_something_that_is_no_image_is_refused_by_name(tmp_path: Path, needs_loop: None) -> None:  # noqa: ARG001
    with pytest.raises(InputError, match=r"gone\.img: No such file"):
        loopdev.attach(tmp_path / "gone.img", read_only=True)
    junk = tmp_path / "junk.img"
    junk.write_bytes(bytes(1 << 20))
    with (
        loopdev.attach(junk, read_only=True) as loop,
        pytest.raises(InputError, match=r"junk\.img cannot be mounted as ext4"),
    ):
        loopdev.mount_detached(loop, read_only=True)
    assert not attached(junk)


def test_after_kill_minus_nine_mount_and_loop_are_gone_by_themselves(image: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from pytest_moetier.host import loopdev\n"
        "loop = loopdev.attach(Path(sys.argv[1]), read_only=True)\n"
        "mount = loopdev.mount_detached(loop, read_only=True)\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(image)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    assert attached(image)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    until = time.monotonic() + 10
    while attached(image) and time.monotonic() < until:
        time.sleep(0.02)
    assert not attached(image)


def private(folder: Path) -> Path:
    place = folder / "state"
    place.mkdir(mode=0o700)
    return place
