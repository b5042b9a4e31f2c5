"""Open a pool for a run: its image, on a loop device of its own, or its folder as it is (paper section 4).

Read-only, but for a throw-away pool: one that was made to be written to by a measurement.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from pytest_moetier.errors import HarnessError, InputError
from pytest_moetier.host import blockdev, loopdev, residency
from pytest_moetier.host.blockdev import BlockDevice
from pytest_moetier.host.loopdev import LoopDevice
from pytest_moetier.host.restore import Journal
from pytest_moetier.pool.check import file_faults
from pytest_moetier.pool.checkpoint import AGAIN, model_root
from pytest_moetier.pool.manifest import IMAGE_NAME, RECREATE, Extent, Manifest, load_manifest
from pytest_moetier.units import format_bytes

_DROP_ATTEMPTS = 3
_DROP_TOLERANCE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class OpenPool:
    """A pool whose files can be read now.

    Attributes:
        path: the pool's folder, or a model as the user named it.
        manifest: what is in it.
        root: what the manifest's paths are relative to; valid in children that inherit ``pass_fds``.
        pass_fds: descriptors that a child must inherit for ``root`` to be valid there.
        devices: the block devices whose sectors count, each once.
        loop: the loop device of an image, else None.
        image: the image file, else None.
        writable: its files may be opened for writing.
    """

    path: Path
    manifest: Manifest
    root: Path
    pass_fds: tuple[int, ...]
    devices: tuple[BlockDevice, ...]
    loop: LoopDevice | None
    image: Path | None
    writable: bool = False

    def resident_bytes(self) -> int | None:
        """Return the bytes of the experts in the page cache, not the spine's; None where no probe tells the truth.

        In a model's own files a page that holds the end of one and the start of the other counts for both.
        """
        if self.manifest.checkpoint is not None:
            return self._resident_parts(self.manifest.expert_runs)
        total = 0
        for file in self.manifest.files:
            found = residency.resident_bytes(self.root / file.path)
            if found is None:
                return None
            total += found
        return total

    def spine_resident_bytes(self) -> int | None:
        """Return the bytes of the spine in the page cache, 0 without a spine; None where no probe tells the truth."""
        spine = self.manifest.spine
        if self.manifest.spine_extents:
            return self._resident_parts(self.manifest.spine_extents)
        return 0 if spine is None else residency.resident_bytes(self.root / spine.path)

    def _resident_parts(self, runs: tuple[Extent, ...]) -> int | None:
        total = 0
        for file, parts in groupby(runs, attrgetter("file")):
            path = self.root / self.manifest.files[file].path
            found = residency.resident_parts(path, [(part.offset, part.length) for part in parts])
            if found is None:
                return None
            total += found
        return total

    def drop_cache(self) -> int | None:
        """Drop the pool's pages, the spine's too, whole files at a time, and return what of both is still resident.

        None where that cannot be observed.

        Raises:
            HarnessError: more than 1 MiB and 0.1% of it stays resident: something holds it.
        """
        allowed = max(_DROP_TOLERANCE_BYTES, self.manifest.stored_bytes // 1000)
        left: int | None = 0
        for _ in range(_DROP_ATTEMPTS):
            left = self._drop_once()
            if left is None or left <= allowed:
                return left
        raise HarnessError(
            f"{format_bytes(left or 0)} of the pool stays in the page cache after dropping it",
            f"at most {format_bytes(allowed)}",
            f"end the processes that map or read {self.path}",
        )

    def _drop_once(self) -> int | None:
        found = [residency.drop_file(self.root / file.path) for file in self.manifest.stored_files]
        known = [one for one in found if one is not None]
        return sum(known) if len(known) == len(found) else None


def _image(path: Path, manifest: Manifest) -> Path:
    try:
        found = path.lstat()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "the pool's image", RECREATE) from error
    if not stat.S_ISREG(found.st_mode):
        raise InputError(
            f"{path} is no plain file", "the pool's image itself: nothing of a pool may lead out of it", RECREATE
        )
    if found.st_size < manifest.stored_bytes:
        raise InputError(
            f"{path} is cut off: it has {found.st_size} bytes",
            f"more than the {manifest.stored_bytes} of the experts in it"
            if manifest.spine is None
            else f"more than the {manifest.stored_bytes} of the experts and the spine in it",
            RECREATE,
        )
    return path


def _refuse_faults(root: Path, manifest: Manifest, path: Path) -> None:
    fault = next(file_faults(root, manifest), None)
    if fault is not None:
        do = f"see `moetier pool check {path}`" if manifest.stamped else AGAIN
        raise InputError(f"pool {path}: {fault}", "the files of its manifest", do)


def inspect_pool(path: Path, *, check_files: bool = True) -> Manifest:
    """Return the manifest of the pool at ``path``, after every check that changes nothing on the host.

    Args:
        path: a folder made by ``moetier pool create``, or a model: its file, or its folder.
        check_files: of a pool of plain files, refuse a missing or short one (an image's are looked at when it is open).

    Raises:
        InputError: no pool there, or a file of it is missing, short, or a link.
        UnsupportedHostError: no block device below it (tmpfs).
    """
    manifest = load_manifest(path)
    if manifest.store == "image":
        blockdev.devices_of(_image(path / IMAGE_NAME, manifest))  # what lies on a tmpfs is memory, not a device
    elif check_files:
        root = _root(path, manifest)
        _refuse_faults(root, manifest, path)
        _devices(root, manifest)
    return manifest


def _root(path: Path, manifest: Manifest) -> Path:
    """Return what the files of a closed pool are relative to."""
    in_place = manifest.checkpoint is not None and manifest.store == "plain"
    return model_root(path) if in_place else path


def _devices(root: Path, manifest: Manifest) -> tuple[BlockDevice, ...]:
    """Return the devices of a pool of plain files, each once: its folders may be mount points of several."""
    one_each: dict[int, Path] = {}
    for file in manifest.stored_files:
        with suppress(FileNotFoundError):  # a fault of the pool, named by who looks for faults
            one_each.setdefault((root / file.path).lstat().st_dev, root / file.path)
    return blockdev.devices_of_many(one_each.values() or [root / manifest.folder])


def _refuse_writing(manifest: Manifest, path: Path) -> None:
    if not manifest.throwaway:
        raise InputError(
            f"pool {path} is to be written to, and is no throw-away pool",
            "`throwaway: true` in its manifest: a measurement that writes to a pool gets one of its own",
            "make one for it: moetier pool create --throwaway",
        )


def closed_pool(path: Path, manifest: Manifest) -> OpenPool:
    """Return a pool that is not opened on this host: a virtual machine reads its image as a disk of its own."""
    image = _image(path / IMAGE_NAME, manifest) if manifest.store == "image" else None
    return OpenPool(path, manifest, _root(path, manifest), (), (), None, image)


@contextmanager
def open_pool(
    path: Path,
    journal: Journal | None = None,
    *,
    read_ahead_kb: int | None = None,
    check_files: bool = True,
    writable: bool = False,
) -> Iterator[OpenPool]:
    """Open the pool at ``path``, read-only unless ``writable``, for the length of the block.

    Args:
        path: a folder made by ``moetier pool create``, or a model: its file, or its folder.
        journal: where changes to the host are recorded before they are made.
        read_ahead_kb: of an image's loop device, in KiB; None leaves the kernel's default.
        check_files: refuse a pool with a missing or short file.
        writable: its files may be written to; only those of a throw-away pool.

    Raises:
        InputError: no pool there, a file of it is missing, short, or a link, or it is to be written to and no
            throw-away pool.
        UnsupportedHostError: no block device below it (tmpfs), or an image and no root or loop devices.
    """
    folder = Path(os.path.abspath(path))  # noqa: PTH100  (resolve would follow the user's own links: kept as given)
    manifest = inspect_pool(folder, check_files=check_files)
    if writable:
        _refuse_writing(manifest, folder)
    with ExitStack() as stack:
        root, loop, image = _root(folder, manifest), None, None
        fds: tuple[int, ...] = ()
        if manifest.store == "image":
            image = folder / IMAGE_NAME
            loop = stack.enter_context(
                loopdev.attach(image, read_only=not writable, read_ahead_kb=read_ahead_kb, journal=journal)
            )
            mount = loopdev.mount_detached(loop, read_only=not writable, kind=manifest.filesystem)
            stack.callback(os.close, mount)
            root, fds = Path(f"/proc/self/fd/{mount}"), (mount,)
        if check_files and loop is not None:
            _refuse_faults(root, manifest, folder)
        devices = blockdev.devices_of(fds[0]) if fds else _devices(root, manifest)
        yield OpenPool(folder, manifest, root, fds, devices, loop, image, writable)
