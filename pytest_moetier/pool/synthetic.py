"""Create a stamped synthetic pool: as an image for its own loop device, ext4 or XFS, or as plain files.

Writing goes past the page cache, so that creating a pool does not evict what the host works with. A record of what is
safely there is kept in the pool's folder: a create that was killed, or that filled the disk, goes on where it was.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import mmap
import os
import re
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytest_moetier.cell import FILESYSTEMS
from pytest_moetier.errors import HostBusyError, InputError, MoetierError, UnsupportedHostError
from pytest_moetier.host import blockdev, loopdev, residency
from pytest_moetier.pool.check import read_pages
from pytest_moetier.pool.manifest import (
    IMAGE_NAME,
    LAYOUTS,
    MANIFEST_NAME,
    SPINE_NAME,
    STORES,
    Manifest,
    PoolFile,
    load_manifest,
)
from pytest_moetier.pool.pages import SPINE_EXPERT, SPINE_LAYER, Pages
from pytest_moetier.pool.private import write_private
from pytest_moetier.pool.profiles import Shape
from pytest_moetier.trace import splitmix
from pytest_moetier.trace.splitmix import U64
from pytest_moetier.units import PAGE_BYTES, format_bytes

PROGRESS_NAME = "create.progress"
Progress = Callable[[int, int], None]

_CHUNK_BYTES = 8 << 20
_BATCH_BYTES = 64 << 20
_SYNC_BYTES = 256 << 20
_WRITERS = 2
_INODE_BYTES = 256
_IMAGE_SPARE_BYTES = 32 << 20
_XFS_LEAST_BYTES = 320 << 20  # mkfs.xfs refuses less than 300 MiB
_XFS_LOG_BYTES = 64 << 20
_XFS_INODE_BYTES = 512
_XFS_SPARE_BYTES = 64 << 20  # the kernel keeps 32 MiB back from whoever writes
# The features that every kernel to be compared has: what a later mkfs turns on by itself, an older kernel cannot mount.
_XFS_FEATURES = (
    ((0, 0), ["-m", "crc=1,finobt=1,rmapbt=0,reflink=0", "-i", f"sparse=1,size={_XFS_INODE_BYTES}"]),
    ((5, 10), ["-m", "bigtime=1,inobtcount=1"]),
    ((5, 19), ["-i", "nrext64=0"]),
    ((6, 10), ["-i", "exchange=0", "-n", "parent=0"]),
)
"""What mkfs.xfs is told from which of its versions on."""
_PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}
_THROWAWAY = 0x7468726F77  # a throw-away pool's pages are no other pool's
_FULL = (errno.ENOSPC, errno.EDQUOT)
_EXPERT_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_DIRECT = getattr(os, "O_DIRECT", 0)


@dataclass(frozen=True, slots=True)
class Created:
    """What ``create_pool`` did: bytes found finished from before, bytes written now, and the seconds it took."""

    path: Path
    manifest: Manifest
    kept_bytes: int
    written_bytes: int
    seconds: float


def choose_store(store: str, filesystem: str = FILESYSTEMS[0]) -> tuple[str, str]:
    """Return the store that ``auto`` stands for on this host (else ``store`` itself), and why.

    A file system other than the usual one is had in an image alone.

    Raises:
        UnsupportedHostError: an image was asked for and cannot be had.
    """
    if store == "plain":
        return "plain", "as asked: its device counter includes what other processes read"
    usual, maker = filesystem == FILESYSTEMS[0], f"mkfs.{filesystem}"
    lacking, do = loopdev.loop_support(), "use --store plain" if usual else "run as root on a host with loop devices"
    if not lacking and (lacking := loopdev.filesystem_support(filesystem)):
        do = f"a kernel with {filesystem} (CONFIG_{filesystem.upper()}_FS)"
    if not lacking and not _found(maker):
        lacking, do = f"no {maker} on PATH or in /usr/sbin", f"apt-get install {_PACKAGES[filesystem]}"
    if lacking and (store == "image" or not usual):
        needed = f"root, loop devices, {'' if usual else f'{filesystem} in the kernel, '}and {maker}"
        raise UnsupportedHostError(f"no image here: {lacking}", needed, do)
    if lacking:
        return "plain", f"{lacking}: the device counter will include what other processes read"
    return "image", f"an {filesystem} image on its own loop device has an exact device counter"


def plan_manifest(  # noqa: PLR0913  (what a user may choose, by keyword)
    shape: Shape,
    *,
    layout: str,
    store: str,
    seed: int,
    spine_bytes: int = 0,
    throwaway: bool = False,
    filesystem: str = FILESYSTEMS[0],
) -> Manifest:
    """Return the manifest of the pool that ``shape`` and ``seed`` describe; equal arguments give equal bytes.

    A spine and the file system leave the experts' bytes as they are. A throw-away pool has an id of its own: a plan
    that may write to it finds no other pool's stamps right.
    """
    if filesystem not in FILESYSTEMS or (store == "plain" and filesystem != FILESYSTEMS[0]):
        raise InputError(
            f"filesystem {filesystem!r} of a pool with store {store!r}",
            f"one of {', '.join(FILESYSTEMS)}, of an image: plain files lie in their folder's own",
            "--store image",
        )
    if layout not in LAYOUTS or store not in STORES:
        raise InputError(
            f"layout {layout!r}, store {store!r}", f"one of {', '.join(LAYOUTS)}; one of {', '.join(STORES)}"
        )
    if not 0 <= seed < 1 << 64:
        raise InputError(f"seed {seed}", "0 to 2^64 - 1")
    if spine_bytes < 0 or spine_bytes % PAGE_BYTES:
        raise InputError(f"a spine of {spine_bytes} bytes", f"0 for none, or a multiple of {PAGE_BYTES}")
    parts = (seed, shape.experts, shape.k, *shape.expert_bytes, *((_THROWAWAY,) if throwaway else ()))
    return Manifest(
        name=shape.name,
        profile=shape.profile,
        pool_id=splitmix.key(*parts),
        layers=tuple(range(shape.layers)),
        experts=shape.experts,
        k=shape.k,
        expert_bytes=shape.expert_bytes,
        layout=layout,
        store=store,
        spine=PoolFile(SPINE_NAME, spine_bytes) if spine_bytes else None,
        throwaway=throwaway,
        filesystem=filesystem,
    )


def create_pool(  # noqa: PLR0913  (what a user may choose, by keyword)
    path: Path,
    shape: Shape,
    *,
    layout: str = "file_per_expert",
    store: str = "plain",
    seed: int = 0,
    spine_bytes: int = 0,
    throwaway: bool = False,
    filesystem: str = FILESYSTEMS[0],
    progress: Progress | None = None,
) -> Created:
    """Create the pool in the folder ``path``, or finish one that was begun with the same arguments.

    Args:
        path: a folder, new or empty or with such a begun pool.
        shape: its dimensions.
        layout: ``file_per_expert`` or ``one_file``.
        store: ``image`` or ``plain`` (resolve ``auto`` by ``choose_store``).
        seed: of its bytes.
        spine_bytes: of dense weights in a file beside the experts, in whole pages; 0 for none.
        throwaway: measurements may write to it.
        filesystem: of an image, ``ext4`` or ``xfs``; the experts' bytes are the same.
        progress: called with (bytes done, bytes in all) as it goes.

    Raises:
        InputError: the folder holds something else, the device is too small or full (what is written is kept).
        UnsupportedHostError: no block device below the folder, or no loop devices for an image, or no such file system.
        HostBusyError: another create works on this folder.
    """
    manifest = plan_manifest(
        shape,
        layout=layout,
        store=store,
        seed=seed,
        spine_bytes=spine_bytes,
        throwaway=throwaway,
        filesystem=filesystem,
    )
    started = time.monotonic()
    with made_folder(path), locked(path):
        if (path / MANIFEST_NAME).exists():
            _same(load_manifest(path), manifest, path)
            return Created(path, manifest, manifest.stored_bytes, 0, time.monotonic() - started)
        blockdev.devices_of(path)  # refuses a tmpfs: reads that reach no device cannot be measured
        choose_store(store, filesystem)  # refuses an image that cannot be had before room is taken for it
        record = _Progress.find(path, manifest)
        with _store(path, manifest, record) as root:
            kept, written = _write_all(root, manifest, record, progress or (lambda _done, _total: None))
        if store == "image":
            refuse_sparse(path / IMAGE_NAME)
        manifest.save(path)
        record.remove()
    return Created(path, manifest, kept, written, time.monotonic() - started)


@contextmanager
def made_folder(path: Path) -> Iterator[None]:
    """Make the folder, and leave no trace of it when nothing was begun in it."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is no folder", "a folder for the pool, or a path where one can be made")
    new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be made: {error.strerror}", "a path that may be written to") from error
    try:
        yield
    finally:
        if new:
            with suppress(OSError):
                path.rmdir()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep another create away from the folder.

    Raises:
        HostBusyError: one works on it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HostBusyError(
                f"another `pool create` is at work in {path}", "one at a time", "wait for it"
            ) from error
        yield
    finally:
        os.close(descriptor)


def _same(found: Manifest, wanted: Manifest, path: Path) -> None:
    if found != wanted:
        raise InputError(
            f"{path} already holds the pool {found.name} ({len(found.layers)} x {found.experts} experts, "
            f"{found.layout}, {_stored_in(found)})",
            "an empty folder, or the same pool",
            "remove it or choose another path",
        )


def _stored_in(manifest: Manifest) -> str:
    return f"{manifest.filesystem} image" if manifest.store == "image" else manifest.store


@dataclass(slots=True)
class _Progress:
    """How many parts are safely on the device; None while the image is not ready for the first."""

    path: Path
    plan: str
    done: int | None

    @classmethod
    def find(cls, folder: Path, manifest: Manifest) -> _Progress:
        """Return the folder's record, or a new one for an empty folder."""
        path = folder / PROGRESS_NAME
        plan = hashlib.sha256(repr(manifest).encode()).hexdigest()
        if not path.exists():
            others = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith(f".{PROGRESS_NAME}."))
            if others and others != ["lost+found"]:
                raise InputError(
                    f"{folder} is not empty ({others[0]})", "an empty folder for the pool", "choose another"
                )
            return cls(path, plan, None)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found, done = content["plan"], content["done"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} is not a record of progress", "an unfinished pool", f"remove {folder}") from error
        if found != plan:
            raise InputError(
                f"{folder} holds an unfinished pool of another shape, layout, store, file system or seed",
                "the arguments it was begun with",
                f"give them again, or remove {folder}",
            )
        known = isinstance(done, int) and 0 <= done <= _n_parts(manifest)
        return cls(path, plan, done if known else None)

    def save(self, done: int | None) -> None:
        """Record that ``done`` parts are on the device."""
        write_private(self.path, [json.dumps({"plan": self.plan, "done": done}).encode()])
        self.done = done

    def remove(self) -> None:
        """Forget the record: the manifest now says that the pool is whole."""
        self.path.unlink()


def image_bytes(manifest: Manifest) -> int:
    """Return the size of the image in bytes: what is stored, 2% for block maps, an inode for each file, and a spare.

    XFS has a log besides, a larger spare, and a least size.
    """
    size = manifest.stored_bytes * 102 // 100
    if manifest.filesystem == "xfs":
        size += _inodes(manifest) * _XFS_INODE_BYTES + _XFS_LOG_BYTES + _XFS_SPARE_BYTES
        size = max(size, _XFS_LEAST_BYTES)
    else:
        size += _inodes(manifest) * _INODE_BYTES + _IMAGE_SPARE_BYTES
    return -(-size // (1 << 20)) * (1 << 20)


def needed_bytes(manifest: Manifest) -> int:
    """Return the bytes of disk space that the pool takes: its image, or its files in whole blocks."""
    return image_bytes(manifest) if manifest.store == "image" else manifest.stored_bytes


def _inodes(manifest: Manifest) -> int:
    return len(manifest.files) + len(manifest.layers) + 1024


def _check_space(folder: Path, needed: int, inodes: int) -> None:
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    if free < needed:
        raise InputError(
            f"{folder} has {format_bytes(free)} free",
            f"{format_bytes(needed)} for the rest of this pool",
            "free some, or use --layers or --expert-bytes for a smaller pool",
        )
    if space.f_files and space.f_favail < inodes:
        raise InputError(f"{folder} has {space.f_favail} free inodes", f"{inodes}", "use --layout one_file")


@contextmanager
def _store(folder: Path, manifest: Manifest, record: _Progress) -> Iterator[Path]:
    """Yield the root under which experts are written; at the end everything is on the device."""
    if manifest.store == "plain":
        _check_space(folder, manifest.stored_bytes - _written(manifest, record.done or 0), _inodes(manifest))
        if record.done is None:
            record.save(0)
        yield folder
        return
    image = folder / IMAGE_NAME
    if record.done is None:
        make_image(image, manifest, record)
    else:
        _repair(image, manifest.filesystem)
    with loopdev.attach(image, read_only=False) as loop:
        mount = loopdev.mount_detached(loop, read_only=False, kind=manifest.filesystem)
        try:
            if record.done is None:
                record.save(0)
            yield Path(f"/proc/self/fd/{mount}")
        finally:
            os.close(mount)


@dataclass(frozen=True, slots=True)
class _Part:
    """What is written in one go: an expert, or a piece of the spine; ``first_page`` is its place in that."""

    path: str
    offset: int
    length: int
    layer: int
    expert: int
    first_page: int = 0


def _n_parts(manifest: Manifest) -> int:
    """Return the number of parts: all experts, then the spine's pieces of 8 MiB."""
    return manifest.n_experts + -(-manifest.spine_bytes // _CHUNK_BYTES)


def _part(manifest: Manifest, index: int) -> _Part:
    if index < manifest.n_experts or manifest.spine is None:
        at, expert = divmod(index, manifest.experts)
        layer = manifest.layers[at]
        (extent,) = manifest.extents(layer, expert)
        return _Part(manifest.files[extent.file].path, extent.offset, extent.length, layer, expert)
    start = (index - manifest.n_experts) * _CHUNK_BYTES
    length = min(_CHUNK_BYTES, manifest.spine_bytes - start)
    return _Part(manifest.spine.path, start, length, SPINE_LAYER, SPINE_EXPERT, start // PAGE_BYTES)


def _written(manifest: Manifest, done: int) -> int:
    if done >= manifest.n_experts:
        pieces = done - manifest.n_experts
        return manifest.total_bytes + min(pieces * _CHUNK_BYTES, manifest.spine_bytes)
    layer, expert = divmod(done, manifest.experts)
    return manifest.experts * sum(manifest.expert_bytes[:layer]) + manifest.expert_bytes[layer] * expert


def make_image(image: Path, manifest: Manifest, record: _Progress | None = None) -> None:
    """Make the image with an empty file system in it, in place of one that was begun; ``record`` says so, if any.

    Raises:
        InputError: no room for it.
        UnsupportedHostError: no program that makes the file system.
    """
    image.unlink(missing_ok=True)
    size = image_bytes(manifest)
    _check_space(image.parent, size, 8)
    if record is not None:
        record.save(None)
    descriptor = os.open(image, _EXPERT_FLAGS | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        image.unlink()
        if record is not None:
            record.remove()
        raise _disk_error(error, image.parent, 0, manifest) from error
    finally:
        os.close(descriptor)
    _tool([*(_mkfs_xfs() if manifest.filesystem == "xfs" else _mkfs_ext4(manifest)), str(image)], (0,))


def _mkfs_ext4(manifest: Manifest) -> list[str]:
    # no journal: nothing is written after creation. nodiscard: a discard would punch the file's blocks out again
    features = ["-O", "^has_journal,^resize_inode", "-E", "lazy_itable_init=0,nodiscard", "-m", "0"]
    count = ["-N", str(_inodes(manifest)), "-b", str(PAGE_BYTES), "-I", str(_INODE_BYTES), "-L", "moetier"]
    return [_found("mkfs.ext4") or "mkfs.ext4", "-q", "-F", *features, *count]


def _mkfs_xfs() -> list[str]:
    program = _found("mkfs.xfs") or "mkfs.xfs"
    said = re.search(r"(\d+)\.(\d+)", _tool([program, "-V"], (0,)))
    version = (int(said[1]), int(said[2])) if said else (0, 0)
    features = [word for since, words in _XFS_FEATURES if version >= since for word in words]
    # -K: no discard, as above. Sectors of 4 KiB suit a disk of 512 bytes too, and not the other way round.
    sizes = ["-b", f"size={PAGE_BYTES}", "-s", f"size={PAGE_BYTES}", "-l", f"size={_XFS_LOG_BYTES}"]
    return [program, "-q", "-f", "-K", *sizes, *features, "-L", "moetier"]


def _found(tool: str) -> str | None:
    """Return where a system tool is; the PATH of a root shell without a login has no sbin."""
    return shutil.which(tool, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))


def _repair(image: Path, filesystem: str) -> None:
    if not image.is_file() or image.is_symlink():
        raise InputError(f"{image} is missing", "the image of an unfinished pool", f"remove {image.parent}")
    # A killed create leaves a clean file system (the kernel unmounts it); a power cut may leave counts to be mended.
    if filesystem == "xfs":
        return  # it has a log, which mounting replays
    _tool([_found("e2fsck") or "e2fsck", "-f", "-p", str(image)], (0, 1))


def _tool(command: list[str], good: tuple[int, ...]) -> str:
    """Run a tool of a file system and return what it said.

    Raises:
        UnsupportedHostError: there is none.
        InputError: it failed.
    """
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        package = _PACKAGES["xfs" if command[0].endswith(".xfs") else "ext4"]
        raise UnsupportedHostError(f"{command[0]}: {error.strerror}", package, f"apt-get install {package}") from error
    if result.returncode not in good:
        said = " ".join((result.stderr or result.stdout).split())[-300:]
        raise InputError(
            f"{command[0]} ended with {result.returncode}: {said}", f"{command[0]} to work on {command[-1]}"
        )
    return f"{result.stdout} {result.stderr}"


def refuse_sparse(image: Path) -> None:
    """Refuse an image with holes.

    Raises:
        InputError: it has some.
    """
    found = image.stat()
    if found.st_blocks * 512 < found.st_size:
        raise InputError(
            f"{image} occupies {format_bytes(found.st_blocks * 512)} of its {format_bytes(found.st_size)}",
            "an image that is not sparse: reading holes is not reading a device",
            "use a file system without compression",
        )


def _disk_error(error: OSError, folder: Path, done_bytes: int, manifest: Manifest) -> MoetierError:
    total = format_bytes(manifest.stored_bytes)
    if error.errno in _FULL:
        return InputError(
            f"the device of {folder} is full after {format_bytes(done_bytes)} of {total}",
            f"room for {total}",
            "free some and run the same command again: it continues from there",
        )
    return InputError(
        f"writing the pool in {folder}: {error.strerror} after {format_bytes(done_bytes)}", "a sound device"
    )


class _Writer:
    """Writes parts below ``root``, each thread from its own page-aligned buffer."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self._root = root
        self._manifest = manifest
        self._pages = Pages(manifest.pool_id)
        self._buffers = threading.local()
        self._shared: dict[str, int] = {}  # files of several parts, open
        self._make(root / manifest.folder)
        files = [manifest.spine] if manifest.spine is not None else []
        if manifest.layout == "one_file":
            files += manifest.files
        else:
            for layer in manifest.layers:
                self._make(root / manifest.folder / f"{layer:03d}")
        try:
            for file in files:
                self._shared[file.path] = self._open(root / file.path)
                os.posix_fallocate(self._shared[file.path], 0, file.size_bytes)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _make(folder: Path) -> None:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o755)
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise InputError(f"{folder} is no folder", "a folder of the pool's own", "choose an empty path")

    @staticmethod
    def _open(path: Path, extra: int = 0) -> int:
        try:
            return os.open(path, _EXPERT_FLAGS | _DIRECT | extra, 0o644)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return os.open(path, _EXPERT_FLAGS | extra, 0o644)  # a file system without direct I/O

    def close(self) -> None:
        """Close the files of several parts."""
        for descriptor in self._shared.values():
            with suppress(OSError):  # a full or failing device is told by who wrote to it
                self._forget(descriptor)
            os.close(descriptor)
        self._shared = {}

    def _buffer(self) -> U64:
        if not hasattr(self._buffers, "words"):
            size = min(_CHUNK_BYTES, max(*self._manifest.expert_bytes, self._manifest.spine_bytes))
            self._buffers.words = np.frombuffer(mmap.mmap(-1, size), dtype=np.uint64)  # mmap: aligned for direct I/O
        return self._buffers.words  # type: ignore[no-any-return]

    def write(self, index: int) -> None:
        """Write the part at place ``index``."""
        part = _part(self._manifest, index)
        if part.path in self._shared:
            self._fill(self._shared[part.path], part)
            return
        descriptor = self._open(self._root / part.path, os.O_TRUNC)
        try:
            self._fill(descriptor, part)
            self._forget(descriptor)
        finally:
            os.close(descriptor)

    @staticmethod
    def _forget(descriptor: int) -> None:
        """Leave nothing in the page cache where the file system knows no direct I/O."""
        if not _DIRECT or not fcntl.fcntl(descriptor, fcntl.F_GETFL) & _DIRECT:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def _fill(self, descriptor: int, part: _Part) -> None:
        buffer = self._buffer()
        for start in range(0, part.length, buffer.nbytes):
            words = buffer[: min(buffer.nbytes, part.length - start) // 8]
            self._pages.fill(words, part.layer, part.expert, part.first_page + start // PAGE_BYTES)
            data: memoryview = words.view(np.uint8).data
            done = 0
            while done < len(data):
                done += os.pwrite(descriptor, data[done:], part.offset + start + done)


def _last_sound(root: Path, manifest: Manifest, done: int) -> int:
    """Return how many parts really are there: the record's number, less those at its end that do not verify."""
    pages = Pages(manifest.pool_id)
    while done:
        part = _part(manifest, done - 1)
        try:
            data = read_pages(root / part.path, part.offset, part.length)
        except OSError:
            data = np.empty(0, dtype=np.uint64)
        if data.nbytes == part.length and pages.verify(data, part.layer, part.expert, part.first_page) is None:
            break
        done -= 1
    return done


def write_out(root: Path) -> None:
    """Write the root's file system out: os.sync would wait for every device of the host."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if residency.libc().syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(descriptor)


def _write_all(root: Path, manifest: Manifest, record: _Progress, progress: Progress) -> tuple[int, int]:
    """Write what is missing; return (bytes kept, bytes written)."""
    first = _last_sound(root, manifest, record.done or 0)
    kept, total, parts = _written(manifest, first), manifest.stored_bytes, _n_parts(manifest)
    done, synced = first, kept
    progress(kept, total)
    writer: _Writer | None = None
    try:
        writer = _Writer(root, manifest)
        with ThreadPoolExecutor(_WRITERS) as pool:
            while done < parts:
                batch = max(_WRITERS, _BATCH_BYTES // _part(manifest, done).length)
                until = min(done + batch, manifest.n_experts if done < manifest.n_experts else parts)
                list(pool.map(writer.write, range(done, until)))
                done = until
                if _written(manifest, done) - synced >= _SYNC_BYTES or done == parts:
                    write_out(root)
                    record.save(done)
                    synced = _written(manifest, done)
                progress(_written(manifest, done), total)
    except OSError as error:
        with suppress(MoetierError):  # the record itself may not fit any more; the last one still stands
            record.save(done)
        raise _disk_error(error, record.path.parent, _written(manifest, done), manifest) from error
    finally:
        if writer is not None:
            writer.close()
    return kept, total - kept
