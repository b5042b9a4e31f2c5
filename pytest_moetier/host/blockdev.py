"""From a file to the block devices whose sectors count, each once (paper section 4: device bytes, not an inference).

The kernel counts one read at every level of a stack (partition and disk, dm or md and what lies below, loop and its
image's device). One level is chosen: the one that carries the filesystem. Two exceptions: an NVMe multipath head whose
own counters stay zero is replaced by its hidden paths, and a btrfs filesystem, which has an anonymous device number, by
its members.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_moetier.errors import InputError, UnsupportedHostError
from pytest_moetier.host import procfs

_MULTIPATH_HEAD = re.compile(r"^nvme(\d+)n(\d+)(?:p\d+)?$")
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "fuse")
_MOVE = "put the pool on a local ext4 or xfs filesystem (`moetier pool create PROFILE PATH` there)"
_ADVICE = {
    "tmpfs": f"a tmpfs has no device, its pages are memory: {_MOVE}",
    "ramfs": f"a ramfs has no device, its pages are memory: {_MOVE}",
    "overlay": f"a container's overlay hides its device: {_MOVE}, for example on a mounted volume",
    "zfs": f"ZFS caches in its own ARC and has no block statistics: {_MOVE}, or on a zvol formatted as ext4",
    **dict.fromkeys(_NETWORK, f"a network or host-shared filesystem has no block device here: {_MOVE}"),
}


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """One block device row whose sectors count.

    Attributes:
        name: kernel name (``nvme0n1p2``, ``dm-0``, ``loop3``, ``nvme0c0n1``).
        major: device number.
        minor: device number.
        stat_path: its statistics file; the third field counts sectors of 512 bytes read.
        inflight_path: requests in flight (reads, writes).
        queue_path: the folder of its queue settings, the disk's for a partition.
        iostats: whether the queue keeps statistics at all (zram and some devices do not).
        read_ahead_kb: read-ahead in KiB, None where the queue does not say.
        max_sectors_kb: largest request in KiB, None where the queue does not say.
        rotational: whether the queue says it is a spinning disk, None where it does not say.
    """

    name: str
    major: int
    minor: int
    stat_path: str
    inflight_path: str
    queue_path: str
    iostats: bool
    read_ahead_kb: int | None
    max_sectors_kb: int | None
    rotational: bool | None

    @property
    def is_loop(self) -> bool:
        """Whether it is a loop device, whose backing image must stay out of the page cache."""
        return self.name.startswith("loop")


def devices_of(target: str | Path | int) -> tuple[BlockDevice, ...]:
    """Return the devices that serve a file or folder (path or open descriptor), each once.

    Raises:
        UnsupportedHostError: its filesystem has no block device (tmpfs, overlay, ZFS, network), with what to do.
        InputError: the path does not exist.
    """
    if isinstance(target, int):
        return _devices_of_open(target)
    if not hasattr(os, "O_PATH"):
        raise UnsupportedHostError(f"device counters of {sys.platform} are not known here", "a Linux host")
    try:
        descriptor = os.open(target, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{target}: {error.strerror}", "an existing file or folder") from error
    try:
        return _devices_of_open(descriptor)
    finally:
        os.close(descriptor)


def devices_of_many(targets: Iterable[str | Path | int]) -> tuple[BlockDevice, ...]:
    """Return the devices that serve several files, each once; one that lies wholly upon others listed is left out.

    Raises:
        UnsupportedHostError: a file lies on a filesystem without a block device.
        InputError: a path does not exist.
    """
    return _deduplicated(device for target in targets for device in devices_of(target))


def devices_named(word: str) -> tuple[BlockDevice, ...]:
    """Return the devices that a user names: a kernel name or node (``nvme0n1``, ``/dev/nvme0n1``), or a file upon them.

    Raises:
        InputError: there is neither such a device nor such a file.
        UnsupportedHostError: the file lies on a filesystem without a block device.
    """
    name = procfs.at(word).resolve().name if word.startswith("/dev/") else word
    if "/" not in name and (number := _number_of_name(name)) is not None:
        return _counted(*number)
    if not word or word.startswith("/dev/") or not Path(word).exists():
        raise InputError(
            f"no block device {word!r}, and no such file", "a name such as nvme0n1, or a file or folder", "lsblk"
        )
    return devices_of(word)


def loops_of(image: Path) -> tuple[BlockDevice, ...]:
    """Return the loop devices that show the file ``image`` now."""
    wanted = str(image.resolve())
    found = []
    for entry in sorted(procfs.at("/sys/block").glob("loop*/loop/backing_file")):
        name = entry.parents[1].name
        text = procfs.try_text(f"/sys/block/{name}/loop/backing_file")
        if text is not None and text.rstrip("\n") == wanted and (number := _number_of_name(name)) is not None:
            found.append(_describe(*number))
    return tuple(found)


def resolve(major: int, minor: int, mount: procfs.Mount | None) -> tuple[BlockDevice, ...]:
    """Return the devices behind a file's ``st_dev`` and its mount.

    Args:
        major: of ``st_dev``.
        minor: of ``st_dev``.
        mount: the row of mountinfo, or None for a detached mount.

    Raises:
        UnsupportedHostError: there is no block device behind it.
    """
    if mount is not None and mount.kind == "btrfs":
        return _btrfs_members(mount)
    if major != 0 and procfs.at(_by_number(major, minor)).exists():
        return _counted(major, minor)
    if mount is None:
        raise UnsupportedHostError(f"device number {major}:{minor} is not a block device", "a block device", _MOVE)
    if (number := _number_of_source(mount.source)) is not None:
        return _counted(*number)
    kind = mount.kind.partition(".")[0]
    raise UnsupportedHostError(
        f"{mount.point} is a {mount.kind} filesystem (device number {major}:{minor}) without a block device",
        "a filesystem on a block device, whose sectors can be counted",
        _ADVICE.get(kind, _MOVE),
    )


def _devices_of_open(descriptor: int) -> tuple[BlockDevice, ...]:
    number = os.fstat(descriptor).st_dev
    return resolve(os.major(number), os.minor(number), _mount_of(descriptor))


def _mount_of(descriptor: int) -> procfs.Mount | None:
    info = procfs.parse_keyed(procfs.try_text(f"/proc/self/fdinfo/{descriptor}") or "")
    wanted = info.get("mnt_id")
    return next((mount for mount in procfs.mounts() if mount.mount_id == wanted), None)


def _by_number(major: int, minor: int) -> str:
    return f"/sys/dev/block/{major}:{minor}"


def _number_of_source(source: str) -> tuple[int, int] | None:
    """Return the device number of a mount's source: /dev/NAME, a link to it, /dev/root or UUID=."""
    if source == "/dev/root":
        words = (procfs.try_text("/proc/cmdline") or "").split()
        source = next((word.removeprefix("root=") for word in words if word.startswith("root=")), source)
    for key in ("UUID", "PARTUUID", "LABEL"):
        if source.startswith(f"{key}="):
            source = f"/dev/disk/by-{key.lower()}/{source.partition('=')[2]}"
    if not source.startswith("/dev/"):
        return None
    name = procfs.at(source).resolve().name
    return _number_of_name(name)


def _number_of_name(name: str) -> tuple[int, int] | None:
    text = procfs.try_text(f"/sys/class/block/{name}/dev")
    if text is None or ":" not in text:
        return None
    major, _, minor = text.strip().partition(":")
    return int(major), int(minor)


def _btrfs_members(mount: procfs.Mount) -> tuple[BlockDevice, ...]:
    number = _number_of_source(mount.source)
    name = procfs.at(_by_number(*number)).resolve().name if number else ""
    for folder in sorted(procfs.at("/sys/fs/btrfs").glob("*/devices")):
        members = sorted(entry.name for entry in folder.iterdir())
        if name in members:
            numbers = [found for member in members if (found := _number_of_name(member))]
            return _deduplicated(device for found in numbers for device in _counted(*found))
    if number is None:
        raise UnsupportedHostError(
            f"btrfs at {mount.point} names the source {mount.source!r}, which is not a device here",
            "its member devices in /sys/fs/btrfs",
            _MOVE,
        )
    return _counted(*number)


def _counted(major: int, minor: int) -> tuple[BlockDevice, ...]:
    head = _describe(major, minor)
    match = _MULTIPATH_HEAD.match(head.name)
    if match is None or _reads(head.stat_path):
        return (head,)
    # An NVMe multipath head: before it kept statistics of its own, only the hidden paths counted.
    pattern = re.compile(rf"^nvme{match[1]}c\d+n{match[2]}$")
    folder = procfs.at("/sys/block")
    names = sorted(entry.name for entry in folder.iterdir() if pattern.match(entry.name)) if folder.is_dir() else []
    hidden = tuple(_hidden_path(name, head) for name in names)
    return hidden if any(_reads(path.stat_path) for path in hidden) else (head,)


def _reads(stat_path: str) -> bool:
    text = procfs.try_text(stat_path)
    return text is not None and procfs.parse_diskstat_row(text).reads > 0


def _describe(major: int, minor: int) -> BlockDevice:
    base = _by_number(major, minor)
    folder = procfs.at(base).resolve()
    queue = f"{base}/queue" if (folder / "queue").is_dir() else f"{base}/../queue"
    return _device(folder.name, (major, minor), base, queue)


def _hidden_path(name: str, head: BlockDevice) -> BlockDevice:
    base = f"/sys/block/{name}"
    device = _device(name, (0, 0), base, f"{base}/queue")
    # Its settings may be absent; those of the head bound what is asked of it.
    return device if device.read_ahead_kb is not None else _device(name, (0, 0), base, head.queue_path)


def _device(name: str, number: tuple[int, int], base: str, queue: str) -> BlockDevice:
    rotational = procfs.try_int(f"{queue}/rotational")
    return BlockDevice(
        name=name,
        major=number[0],
        minor=number[1],
        stat_path=f"{base}/stat",
        inflight_path=f"{base}/inflight",
        queue_path=queue,
        iostats=procfs.try_int(f"{queue}/iostats") != 0,
        read_ahead_kb=procfs.try_int(f"{queue}/read_ahead_kb"),
        max_sectors_kb=procfs.try_int(f"{queue}/max_sectors_kb"),
        rotational=None if rotational is None else bool(rotational),
    )


def _deduplicated(devices: Iterable[BlockDevice]) -> tuple[BlockDevice, ...]:
    unique = {device.name: device for device in devices}
    return tuple(device for device in unique.values() if not _lies_upon(device, unique))


def _lies_upon(device: BlockDevice, listed: Iterable[str]) -> bool:
    below = _lower_names(device.name)
    others = set(listed) - {device.name}
    return bool(below) and all(name in others for name in below)


def _lower_names(name: str) -> tuple[str, ...]:
    """Return the leaf devices below a dm or md device, or the disk of a partition (its sectors count there too)."""
    folder = procfs.at(f"/sys/class/block/{name}").resolve()
    if (folder / "partition").exists():
        return (folder.parent.name,)
    slaves = folder / "slaves"
    return tuple(sorted(entry.name for entry in slaves.iterdir())) if slaves.is_dir() else ()
