"""A read limit: how many bytes a second the processes of one group may read from one device (paper section 7).

What reading ahead gains depends on the device's speed against the computation's: a limit makes a slow device of a fast
one. The kernel's own throttle of block I/O does it: ``blkio.throttle.read_bps_device`` of a v1 group, ``io.max`` of a
v2 group. On v1 the group is our own, beside the memory scope, which lies in another hierarchy. On v2 a process has one
group for everything: one that is in a scope of ours gets the limit there, any other is moved into a group of our own.

What a limit of 12 MB/s does to 24 MiB read cold, measured on v1 of Linux 6.18 on a loop device (2.10 s by division):

- All that reaches the device waits: buffered preads with their read-ahead, by one thread or four (2.06 s), faults of a
  mapping with read-ahead and without (2.06, 1.99 s), MADV_POPULATE_READ (2.08 s), POSIX_FADV_WILLNEED (1.97 s),
  O_DIRECT by one thread or four (1.98, 1.99 s). Without the limit: 0.02 s, 0.04 s past the cache, 0.5 s by page.
- Some of it comes early, 0.13 s' worth at most from 2 to 100 MB/s: the throttle works in slices of 0.1 s.
  ``BURST_SECONDS`` bounds it.
- Hits do not wait, nor do writes (24 MiB and their fsync: 0.01 s); a page that is read to be written to does. No limit
  on writes is offered: on v1 what another process or the kernel's flusher writes out is not counted as the group's.
- Requests wait in front of the device: they are not in its ``inflight``, and its statistics count them when they are
  done. So WILLNEED returns at once (7 ms for all 24 MiB), its pages count as resident while they still wait, and reads
  on demand queue behind it, first come, first served. The group's own counter (``read_bytes``) counts a request when
  it is asked for.
- A loop device's worker reads the backing file in the group of whoever asked, by direct I/O or not. So a limit on the
  disk below holds too (2.04 s), except where the loop is without direct I/O and the image's own pages are cached.
  The limit belongs on the loop device; on both at once reads take a tenth longer (2.26 s).
- A killed process ends at once, or with its one direct read, and a group can be removed while requests of it wait.
- On v2 (Linux 6.1, an emulated guest with a virtio disk) the same reads take 1.98 s past the cache, 1.99 s buffered and
  2.00 s mapped, in a group of our own as in a scope with a memory limit.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_moetier.errors import HarnessError, InputError, MoetierError, UnsupportedHostError
from pytest_moetier.host import procfs, undo
from pytest_moetier.host.blockdev import BlockDevice
from pytest_moetier.host.cgroup import Support, group_of
from pytest_moetier.host.restore import Journal
from pytest_moetier.units import format_bytes

BURST_SECONDS = 0.3
"""Reads under a limit take at least bytes / limit less this: what the kernel's slices let through early."""

_LIMIT = {1: "blkio.throttle.read_bps_device", 2: "io.max"}
_NONE = {1: "0", 2: "max"}
_COUNT = {1: "blkio.throttle.io_service_bytes", 2: "io.stat"}
_MOVES = 5  # attempts at moving processes out of a group while they may fork
_KERNEL = "a kernel with CONFIG_BLK_CGROUP and CONFIG_BLK_DEV_THROTTLING"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    """A mounted hierarchy with the controller of block I/O, and where groups may be made in it, best first."""

    version: int
    mount: procfs.Mount
    parents: tuple[Path, ...]

    @property
    def controller(self) -> str:
        """Its name of the controller in /proc/PID/cgroup: v2 has one line for all."""
        return "blkio" if self.version == 1 else ""

    def group_of(self, pid: int | str) -> Path:
        """Return the group of a process."""
        return group_of(pid, Path(self.mount.point), self.mount.root, self.controller)


def _hierarchy() -> _Hierarchy | None:
    """Return the hierarchy with the controller (it is in one alone), preferring a mount that may be written."""
    found = []
    for mount in procfs.mounts():
        point = Path(mount.point)
        if mount.kind == "cgroup" and "blkio" in mount.super_options:
            found.append(_described(1, mount))
        elif mount.kind == "cgroup2" and "io" in (procfs.try_text(point / "cgroup.controllers") or "").split():
            found.append(_described(2, mount))
    return max(found, key=lambda one: len(one.parents) > 0, default=None)


def _described(version: int, mount: procfs.Mount) -> _Hierarchy:
    point = Path(mount.point)
    own = _Hierarchy(version, mount, ()).group_of("self")
    chain = [folder for folder in (own, *own.parents) if folder == point or point in folder.parents]
    return _Hierarchy(version, mount, tuple(folder for folder in reversed(chain) if _may_make(version, folder)))


def _may_make(version: int, folder: Path) -> bool:
    if not os.access(procfs.at(folder), os.W_OK):
        return False
    control = folder / "cgroup.subtree_control"
    if version == 1 or "io" in (procfs.try_text(control) or "").split():
        return True
    return os.access(procfs.at(control), os.W_OK)


def read_limit_support() -> Support:
    """Return whether and how a group's reads of a device can be limited here: kind ``v1``, ``v2`` or ``none``."""
    hierarchy = _hierarchy()
    if hierarchy is None:
        return Support(
            "none",
            "no control group hierarchy with the controller of block I/O is mounted",
            f"mount one (blkio on v1, io on v2), or {_KERNEL}",
        )
    point = hierarchy.mount.point
    if hierarchy.version == 1 and not procfs.at(f"{point}/{_LIMIT[1]}").exists():  # v2 has none at its root
        return Support("none", f"{point} has no {_LIMIT[1]}", _KERNEL)
    if not hierarchy.parents:
        seen = f"block I/O groups of v{hierarchy.version} at {point} cannot be made by uid {os.geteuid()}"
        return Support("none", seen, "run as root, with the hierarchy mounted writable")
    seen = f"{_LIMIT[hierarchy.version]} of groups in {hierarchy.parents[0]}"
    return Support(f"v{hierarchy.version}", seen)


class ReadLimit:
    """A limit at work; made by ``read_limit``.

    Attributes:
        device: the device as it was named.
        number: MAJOR:MINOR of what is limited: a partition's whole disk.
        bytes_per_second: the limit that was asked for.
        path: our own group.
    """

    def __init__(
        self, device: BlockDevice, bytes_per_second: int, hierarchy: _Hierarchy, journal: Journal | None
    ) -> None:
        """Make the group and set its limit; ``close`` undoes it."""
        self.device = device
        self.number = _disk_number(device)
        self.bytes_per_second = bytes_per_second
        self._hierarchy = hierarchy
        self._journal = journal
        self._switched: list[tuple[str, str, str]] = []  # file, what it reads since we switched io on, its token
        self._scopes: list[Path] = []  # groups of ours, made elsewhere, that carry the limit too
        self._origins: dict[int, Path] = {}
        name = f"{undo.PREFIX}{os.getpid()}-read-{device.name}-{next(_numbers)}"
        self.path = hierarchy.parents[0] / name
        self._token = ""
        try:
            self._make()
            self._set(self.path)
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        if procfs.at(self.path).exists():  # left by a process that had our pid
            undo.remove_group(str(self.path))
        self._switch_on(self.path.parent)
        self._token = self._journal.record("cgroup", path=str(self.path)) if self._journal is not None else ""
        try:
            _make_folder(self.path)
        except OSError as error:
            raise UnsupportedHostError(
                f"{self.path} cannot be made: {error.strerror}", "a control group of our own"
            ) from error

    def _switch_on(self, parent: Path) -> None:
        """Give the groups below ``parent`` their I/O files: on v2 they have none before that."""
        if self._hierarchy.version == 1:
            return
        control = parent / "cgroup.subtree_control"
        enabled = procfs.read_text(control).split()
        if "io" in enabled:
            return
        available = (procfs.try_text(parent / "cgroup.controllers") or "").split()
        after = " ".join(name for name in available if name in enabled or name == "io")
        token = self._journal.record("value", path=str(control), old="-io", new=after) if self._journal else ""
        try:
            procfs.write_text(control, "+io")
        except MoetierError as error:
            self._done(token)
            raise UnsupportedHostError(
                f"the I/O controller cannot be switched on in {parent}: {error.seen}",
                "io in its cgroup.subtree_control",
                f"as root: echo +io > {control} (a group that holds processes itself refuses it)",
            ) from error
        self._switched.append((str(control), after, token))

    def _set(self, group: Path) -> None:
        name = _LIMIT[self._hierarchy.version]
        if not procfs.at(group / name).exists():
            raise UnsupportedHostError(f"{group} has no {name}", _KERNEL)
        procfs.write_text(group / name, self._line(str(self.bytes_per_second)))
        if (seen := self._limit_in(group)) != self.bytes_per_second:
            raise HarnessError(
                f"{group / name} reads back {seen}", f"{self.bytes_per_second} bytes/s for {self.number}"
            )

    def _lift(self, group: Path) -> None:
        """Let what waits go now; a group that is gone has no limit."""
        procfs.try_write(group / _LIMIT[self._hierarchy.version], self._line(_NONE[self._hierarchy.version]))

    def _line(self, value: str) -> str:
        return f"{self.number} {value}" if self._hierarchy.version == 1 else f"{self.number} rbps={value}"

    def _limit_in(self, group: Path) -> int | None:
        return limit_of(procfs.try_text(group / _LIMIT[self._hierarchy.version]) or "", self.number)

    def add(self, pid: int) -> None:
        """Limit one process (all its threads): what it has already asked for comes as before.

        A process in a group of ours in the same hierarchy stays there, and that group gets the limit.

        Raises:
            HarnessError: the process is gone.
            UnsupportedHostError: this host cannot limit it there.
        """
        group = self._hierarchy.group_of(pid)
        if group.name.startswith(undo.PREFIX) and group != self.path:
            if group not in self._scopes:
                self._switch_on(group.parent)
                self._set(group)
                self._scopes.append(group)
            return
        if group != self.path:
            self._origins[pid] = group
        procfs.write_text(self.path / "cgroup.procs", str(pid))
        if pid not in undo.group_pids(self.path) and procfs.process_id(pid) is not None:
            raise HarnessError(f"process {pid} is not in {self.path} after the move", "it to be listed in cgroup.procs")

    def observed(self) -> int | None:
        """Return the limit in bytes a second as read back now, None where it is no longer the same everywhere."""
        seen = {self._limit_in(group) for group in (self.path, *self._scopes)}
        return seen.pop() if len(seen) == 1 else None

    def read_bytes(self) -> int | None:
        """Return the bytes that the limited groups have asked of the device, waiting ones too; None: not counted."""
        texts = [procfs.try_text(group / _COUNT[self._hierarchy.version]) for group in (self.path, *self._scopes)]
        known = [_count_of(text, self.number) for text in texts if text is not None]
        return sum(known) if len(known) == len(texts) else None

    def describe(self) -> str:
        """Return in words what is limited, and by what."""
        disk = "" if self.number == f"{self.device.major}:{self.device.minor}" else " the disk of"
        groups = " and ".join(str(group) for group in (self._scopes or [self.path]))
        rate = f"{format_bytes(self.bytes_per_second)}/s by {_LIMIT[self._hierarchy.version]} of {groups}"
        return f"reads from{disk} {self.device.name} ({self.number}) limited to {rate}"

    def close(self) -> None:
        """Lift the limit; a process that still runs goes back to the group that it came from.

        Raises:
            HarnessError: the group cannot be removed; it stays journaled.
        """
        for group in (*self._scopes, self.path):
            self._lift(group)
        try:
            if procfs.at(self.path).exists():
                self._move_back()
                undo.remove_group(str(self.path))
        except OSError as error:
            raise HarnessError(
                f"control group {self.path} cannot be removed: {error}", "no process left in it", "moetier doctor"
            ) from error
        self._done(self._token)
        for control, after, token in reversed(self._switched):
            with suppress(MoetierError):  # refused where a group of someone else's uses it by now
                undo.restore_value(control, "-io", after)
            self._done(token)
        self._switched = []

    def _done(self, token: str) -> None:
        if self._journal is not None:
            self._journal.done(token)

    def _move_back(self) -> None:
        own = self._hierarchy.group_of("self")
        home = self.path.parent if own == self.path else own
        for _ in range(_MOVES):
            pids = undo.group_pids(self.path)
            if not pids:
                return
            for pid in pids:
                procfs.try_write(self._origins.get(pid, home) / "cgroup.procs", str(pid))


def _make_folder(path: Path) -> None:
    procfs.at(path).mkdir()


def _disk_number(device: BlockDevice) -> str:
    """Return MAJOR:MINOR of what can be limited: the throttle sits at whole disks.

    Raises:
        UnsupportedHostError: a hidden path of NVMe multipath, which has no number.
    """
    if device.major == 0:
        raise UnsupportedHostError(
            f"{device.name} is a hidden path without a device number",
            "a device that can be limited",
            "put the pool in an image (moetier pool create --store image): its loop device can be limited",
        )
    folder = procfs.at(f"/sys/dev/block/{device.major}:{device.minor}").resolve()
    if (folder / "partition").exists():
        return (folder.parent / "dev").read_text(encoding="ascii").strip()
    return f"{device.major}:{device.minor}"


def limit_of(text: str, number: str) -> int | None:
    """Return the bytes a second that a limit file allows the device to be read at, None for no limit.

    Args:
        text: of ``blkio.throttle.read_bps_device`` (``7:0 12000000``) or ``io.max`` (``7:0 rbps=12000000 wbps=max``).
        number: MAJOR:MINOR.
    """
    for line in text.splitlines():
        device, *words = line.split() or [""]
        if device == number:
            for word in words:
                key, separator, value = word.rpartition("=")
                if key == "rbps" or not separator:
                    return procfs.to_int(value)
    return None


def _count_of(text: str, number: str) -> int:
    """Return the bytes read of a device in ``io_service_bytes`` (``7:0 Read N``) or ``io.stat`` (``7:0 rbytes=N``)."""
    for line in text.splitlines():
        words = line.split()
        if words[:2] == [number, "Read"]:
            return int(words[2])
        if words[:1] == [number]:
            pairs = dict(word.split("=", 1) for word in words[1:] if "=" in word)
            if "rbytes" in pairs:
                return int(pairs["rbytes"])
    return 0


@contextmanager
def read_limit(device: BlockDevice, bytes_per_second: int, journal: Journal | None = None) -> Iterator[ReadLimit]:
    """Limit the reads from ``device`` of the processes that are added, for the length of the block.

    Limits of several devices may be held at once for one process, each within the other's block.

    Args:
        device: the device that carries the pool's filesystem (``OpenPool.devices``).
        bytes_per_second: the limit.
        journal: where the group is recorded before it is made.

    Raises:
        InputError: the limit is not positive.
        UnsupportedHostError: this host cannot limit reads of this device, with what would make it so.
        HarnessError: the limit does not read back as written, or the group cannot be removed.
    """
    if not 1 <= bytes_per_second < 1 << 63:
        raise InputError(f"a read limit of {bytes_per_second} bytes/s", "a positive number of bytes a second")
    support = read_limit_support()
    hierarchy = _hierarchy()
    if not support.available or hierarchy is None:
        raise UnsupportedHostError(support.reason, "a group whose reads can be limited", support.fix)
    limit = ReadLimit(device, bytes_per_second, hierarchy, journal)
    try:
        yield limit
    finally:
        limit.close()
