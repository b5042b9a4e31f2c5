"""The undoing of each kind of change to the host; each checks that what it finds is still what was changed."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

from pytest_moetier.host import procfs
from pytest_moetier.host.machine import current
from pytest_moetier.host.residency import libc

if sys.platform != "win32":
    import fcntl

LOOP_CLR_FD = 0x4C01
_MNT_DETACH = 2
_GRACE_SECONDS = 2.0
_REMOVE_SECONDS = 30.0
"""A killed reader of a limited device leaves its group when its last request was served: slowly, on a busy host."""
PREFIX = "moetier-"


def end_process(pid: int, start_ticks: int, comm: str) -> str:
    """End a process that this package started: SIGTERM, then SIGKILL; only if start time and comm still match."""
    if not _matches(pid, start_ticks, comm):
        return ""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            current().signal(pid, number)
        except ProcessLookupError:
            return f"process {pid} ({comm}) ended"
        until = time.monotonic() + _GRACE_SECONDS
        while time.monotonic() < until:
            if not _matches(pid, start_ticks, comm):
                return f"process {pid} ({comm}) ended by {number.name}"
            time.sleep(0.01)
    raise OSError(errno.EBUSY, f"process {pid} ({comm}) does not end")


def _matches(pid: int, start_ticks: int, comm: str) -> bool:
    found = procfs.process_id(pid)
    return found is not None and found.start_ticks == start_ticks and found.comm == comm


def remove_folder(path: str) -> str:
    """Remove a temporary folder of ours, with what is in it; never through a link, and never another user's."""
    folder = Path(path)
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return ""
    if not folder.name.startswith(PREFIX) or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(errno.EPERM, f"{folder} is not one of ours")
    shutil.rmtree(folder)
    return f"folder {folder} removed"


def group_pids(path: Path) -> tuple[int, ...]:
    """Return the processes in a control group."""
    text = procfs.try_text(path / "cgroup.procs") or ""
    return tuple(int(word) for word in text.split() if word.isdigit())


def remove_group(path: str) -> str:
    """End what is left in a control group of ours, give its file pages back, and remove it.

    A dead group's file pages would reparent uncharged and be free hits for a later run: v1 is emptied by force_empty,
    v2 by memory.reclaim (5.19) or memory.high.
    """
    group = Path(path)
    if not group.name.startswith(PREFIX):
        raise OSError(errno.EPERM, f"{group} is not one of ours")
    if not procfs.exists(group):
        return ""
    for pid in group_pids(group):
        found = procfs.process_id(pid)
        if found is not None and pid != os.getpid():
            end_process(pid, found.start_ticks, found.comm)
    _wait_empty(group)
    _empty_pages(group)
    until = time.monotonic() + _REMOVE_SECONDS
    while True:
        try:
            procfs.remove_folder(group)
        except FileNotFoundError:
            return f"control group {group} was gone"
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return f"control group {group} removed"


def _wait_empty(group: Path) -> None:
    until = time.monotonic() + _GRACE_SECONDS
    while group_pids(group) and time.monotonic() < until:
        time.sleep(0.01)


def _empty_pages(group: Path) -> None:
    if procfs.exists(group / "memory.force_empty"):
        procfs.try_write(group / "memory.force_empty", "0")
    elif usage := procfs.try_int(group / "memory.current"):
        reclaimed = procfs.try_write(group / "memory.reclaim", str(usage))
        if not reclaimed:
            procfs.try_write(group / "memory.high", "0")


def restore_value(path: str, old: str, new: str) -> str:
    """Write ``old`` back to a kernel file, unless someone else has changed it from ``new`` since."""
    text = procfs.try_text(path)
    if text is None or procfs.parse_choice(text) in {old, ""} or procfs.parse_choice(text) != new:
        return ""
    procfs.write_text(path, old)
    return f"{path} set back from {new} to {old}"


def clear_loop(device: str, image: str) -> str:
    """Detach a loop device that still backs ``image``; most vanish by autoclear."""
    backing = procfs.try_text(f"/sys/block/{Path(device).name}/loop/backing_file")
    if backing is None or backing.rstrip("\n") != image:
        return ""
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, LOOP_CLR_FD)
    finally:
        os.close(descriptor)
    return f"loop device {device} detached from {image}"


def unmount(point: str, source: str) -> str:
    """Unmount a mount of ours, if ``source`` is still what is mounted there."""
    if not any(row.point == point and row.source == source for row in procfs.mounts()):
        return ""
    if libc().umount2(os.fsencode(point), _MNT_DETACH) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"unmounting {point}: {os.strerror(code)}")
    return f"{point} unmounted"
