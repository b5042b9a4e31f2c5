"""A pool image on a loop device of its own: an exact device counter that no other process's traffic lands on.

The device clears itself (autoclear) and the filesystem is a detached mount (fsopen, fsconfig, fsmount; Linux 5.2): it
is in no namespace's mount table, is reached as /proc/self/fd/N, and vanishes with its last descriptor, also after
kill -9. LOOP_CONFIGURE came with Linux 5.8.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from pytest_moetier.errors import HarnessError, InputError, MoetierError, UnsupportedHostError
from pytest_moetier.host import procfs, residency
from pytest_moetier.host.blockdev import resolve
from pytest_moetier.host.restore import Journal
from pytest_moetier.host.undo import LOOP_CLR_FD

if sys.platform != "win32":
    import fcntl

_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE = 0x4C82, 0x4C0A
_READ_ONLY, _AUTOCLEAR, _DIRECT_IO = 1, 4, 16
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_SET_FLAG, _SET_STRING, _CMD_CREATE = 0, 1, 6
_MOUNT_RDONLY, _MOUNT_NOSUID, _MOUNT_NODEV, _MOUNT_NOATIME = 1, 2, 4, 0x10
_ATTEMPTS = 8
_CLEAR_SECONDS = 5.0
_PLAIN = "use a pool of plain files (`moetier pool create --plain`); its device counter then includes foreign traffic"


class LoopDevice:
    """A loop device of ours; a context manager.

    Attributes:
        path: ``/dev/loopN``.
        image: the file it shows.
        device: its row of block statistics.
    """

    def __init__(self, path: Path, image: Path, descriptor: int, journal: Journal | None, tokens: list[str]) -> None:
        """Hold the device's descriptor: the last one to close clears the device."""
        self.path = path
        self.image = image
        self._descriptor = descriptor
        self._journal = journal
        self._tokens = tokens
        number = os.fstat(descriptor).st_rdev
        (self.device,) = resolve(os.major(number), os.minor(number), None)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Detach."""
        self.close()

    @property
    def dio_path(self) -> str:
        """The kernel file that says whether the image is read by direct I/O."""
        return f"/sys/block/{self.path.name}/loop/dio"

    @property
    def dio(self) -> bool:
        """Whether the image is read by direct I/O now: it then takes no page cache of its own."""
        return procfs.try_int(self.dio_path) == 1

    @property
    def attached(self) -> bool:
        """Whether the device still shows the image (a mount or a child may hold it after ``close``)."""
        text = procfs.try_text(f"/sys/block/{self.path.name}/loop/backing_file")
        return text is not None and text.rstrip("\n") == str(self.image)

    def close(self) -> None:
        """Let go; the kernel clears the device once its mounts are closed. Waits for that, 5 s at most.

        Raises:
            HarnessError: something still holds the device.
        """
        if self._descriptor < 0:
            return
        if self._journal is not None:  # settings first, while the device is still surely ours
            for token in self._tokens[1:]:
                self._journal.undo(token)
        os.close(self._descriptor)
        self._descriptor = -1
        until = time.monotonic() + _CLEAR_SECONDS
        while self.attached and time.monotonic() < until:
            time.sleep(0.01)
        if self.attached:
            raise HarnessError(
                f"{self.path} still shows {self.image} {_CLEAR_SECONDS:.0f} s after it was let go",
                "no mount or process to hold it",
                f"see `losetup -l {self.path}` and `lsof {self.path}`",
            )
        if self._journal is not None and self._tokens:
            self._journal.done(self._tokens[0])


def attach(
    image: Path,
    *,
    read_only: bool,
    direct_io: bool = True,
    read_ahead_kb: int | None = None,
    journal: Journal | None = None,
) -> LoopDevice:
    """Show ``image`` on a free loop device, which clears itself.

    Args:
        image: an existing file, a filesystem image.
        read_only: refuse writes at the device.
        direct_io: read the image past the page cache; verified.
        read_ahead_kb: read-ahead of the device in KiB, or None to leave it; set back on close.
        journal: where the change is recorded before it is made.

    Raises:
        InputError: the image cannot be opened.
        UnsupportedHostError: no root, no loop devices, or no direct I/O below the image; with what to do instead.
    """
    image = image.resolve()
    if lacking := loop_support():
        raise UnsupportedHostError(f"no loop device here: {lacking}", "root and loop devices", _PLAIN)
    try:
        backing = os.open(image, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{image}: {error.strerror}", "a readable pool image", f"ls -l {image}") from error
    try:
        loop = _attach_free(image, backing, read_only, direct_io, journal)
    finally:
        os.close(backing)
    try:
        if direct_io and not loop.dio:
            raise UnsupportedHostError(f"{loop.path}: direct I/O is off for {image}", "dio 1", _PLAIN)
        if read_ahead_kb is not None:
            _set_read_ahead(loop, read_ahead_kb, journal)
    except MoetierError:
        loop.close()
        raise
    return loop


def loop_support() -> str:
    """Return "" when loop devices and detached mounts can be had here, else why not."""
    if os.geteuid() != 0:
        return "not root"
    if not os.access("/dev/loop-control", os.R_OK | os.W_OK):
        return "no /dev/loop-control (a container without devices, or the loop module is not loaded)"
    return filesystem_support("ext4")


def filesystem_support(kind: str) -> str:
    """Return "" when this kernel can mount a filesystem of ``kind`` (its module is loaded where there is one)."""
    try:
        os.close(residency.syscall(_FSOPEN, ctypes.c_char_p(kind.encode()), ctypes.c_uint(1)))
    except OSError as error:
        return f"fsopen({kind}): {error.strerror}"
    return ""


def mount_detached(loop: LoopDevice, *, read_only: bool, kind: str = "ext4") -> int:
    """Mount the filesystem on ``loop`` without a mount point and return its descriptor (close-on-exec; the caller's).

    Files are then ``/proc/self/fd/N/...``, in children too when N is in their ``pass_fds``.

    Args:
        loop: the device.
        read_only: nothing is written, the filesystem's own log included.
        kind: ``ext4`` or ``xfs``.

    Raises:
        UnsupportedHostError: this kernel or this user cannot mount so.
        InputError: there is no such filesystem in the image.
    """
    try:
        return _mount(loop, kind, _flags(kind, read_only=read_only))
    except OSError as error:
        # An image that was not unmounted cleanly needs its journal replayed, which a read-only device cannot.
        if read_only and kind == "ext4" and error.errno in {errno.EROFS, errno.EACCES, errno.EINVAL, errno.EIO}:
            with suppress(OSError):
                return _mount(loop, kind, ["ro", "noload"])
        if error.errno in {errno.EPERM, errno.ENOSYS, errno.ENODEV}:
            raise UnsupportedHostError(
                f"mounting {loop.image} as {kind}: {error.strerror}", "fsopen, fsconfig, fsmount", _PLAIN
            ) from error
        raise InputError(
            f"{loop.image} cannot be mounted as {kind}: {error.strerror}",
            f"a whole image made by mkfs.{kind}",
            "create the pool again with `moetier pool create`",
        ) from error


def image_resident_bytes(path: Path) -> int | None:
    """Return the bytes of the image itself in the page cache: about 0 under direct I/O; None where unobservable."""
    return residency.resident_bytes(path)


def _attach_free(image: Path, backing: int, read_only: bool, direct_io: bool, journal: Journal | None) -> LoopDevice:  # noqa: FBT001
    flags = _AUTOCLEAR | (_READ_ONLY if read_only else 0) | (_DIRECT_IO if direct_io else 0)
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise UnsupportedHostError(f"/dev/loop-control: {error.strerror}", "root and loop devices", _PLAIN) from error
    try:
        for _ in range(_ATTEMPTS):
            path = Path(f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}")
            token = journal.record("loop", device=str(path), image=str(image)) if journal else None
            descriptor = _configured(path, image, backing, flags)
            if descriptor is not None:
                return LoopDevice(path, image, descriptor, journal, [token] if token else [])
            if journal and token:
                journal.done(token)
    except OSError as error:
        raise UnsupportedHostError(f"loop device for {image}: {error.strerror}", "LOOP_CONFIGURE", _PLAIN) from error
    finally:
        os.close(control)
    raise UnsupportedHostError(f"no free loop device in {_ATTEMPTS} attempts", "one free loop device", _PLAIN)


def _configured(path: Path, image: Path, backing: int, flags: int) -> int | None:
    """Return an open, configured device; None when another process took it first."""
    name = os.fsencode(str(image))[:63]
    # Block size 0 lets the kernel choose; 4096 is what direct I/O needs above disks of 4 KiB sectors.
    for block_size in (0, 4096):
        descriptor = os.open(path, (os.O_RDONLY if flags & _READ_ONLY else os.O_RDWR) | os.O_CLOEXEC)
        # struct loop_config: fd, block size, struct loop_info64, 64 reserved bytes
        info = struct.pack("=5Q4I64s64s32s2Q", 0, 0, 0, 0, 0, 0, 0, 0, flags, name, b"", b"", 0, 0)
        try:
            fcntl.ioctl(descriptor, _LOOP_CONFIGURE, struct.pack("=2I", backing, block_size) + info + bytes(64))
        except OSError as error:
            os.close(descriptor)
            if error.errno == errno.EBUSY:
                return None
            if error.errno == errno.EINVAL and block_size == 0:
                continue
            raise
        dio = procfs.try_int(f"/sys/block/{path.name}/loop/dio")
        if dio == 1 or not flags & _DIRECT_IO or block_size:
            return descriptor
        fcntl.ioctl(descriptor, LOOP_CLR_FD)
        os.close(descriptor)
    return None


def _set_read_ahead(loop: LoopDevice, read_ahead_kb: int, journal: Journal | None) -> None:
    path = f"/sys/block/{loop.path.name}/queue/read_ahead_kb"
    old = procfs.read_int(path)
    if old == read_ahead_kb:
        return
    if journal is not None:
        loop._tokens.append(journal.record("value", path=path, old=str(old), new=str(read_ahead_kb)))  # noqa: SLF001
    procfs.write_text(path, str(read_ahead_kb))
    if (seen := procfs.read_int(path)) != read_ahead_kb:
        raise HarnessError(f"{path} reads back {seen}", f"{read_ahead_kb} as written")
    number = os.fstat(loop._descriptor).st_rdev  # noqa: SLF001
    (loop.device,) = resolve(os.major(number), os.minor(number), None)


def _flags(kind: str, *, read_only: bool) -> list[str]:
    # XFS refuses a second filesystem of one identity, as a copy of a pool is. A guest mounts it by norecovery as well.
    return (["ro"] if read_only else []) + (["nouuid", *(["norecovery"] if read_only else [])] if kind == "xfs" else [])


def _mount(loop: LoopDevice, kind: str, flags: list[str]) -> int:
    context = residency.syscall(_FSOPEN, ctypes.c_char_p(kind.encode()), ctypes.c_uint(1))
    null = ctypes.c_void_p(None)
    try:
        source = ctypes.c_char_p(os.fsencode(loop.path))
        _config(context, _SET_STRING, ctypes.c_char_p(b"source"), source)
        for flag in flags:
            _config(context, _SET_FLAG, ctypes.c_char_p(flag.encode()), null)
        _config(context, _CMD_CREATE, null, null)
        attributes = _MOUNT_NOSUID | _MOUNT_NODEV | _MOUNT_NOATIME | (_MOUNT_RDONLY if "ro" in flags else 0)
        return residency.syscall(_FSMOUNT, ctypes.c_int(context), ctypes.c_uint(1), ctypes.c_uint(attributes))
    finally:
        os.close(context)


def _config(context: int, command: int, key: ctypes.c_char_p | ctypes.c_void_p, value: object) -> None:
    residency.syscall(_FSCONFIG, ctypes.c_int(context), ctypes.c_uint(command), key, value, ctypes.c_int(0))
