"""A real model copied into an image: on a loop device of its own its reads are counted alone (paper section 4)."""

from __future__ import annotations

import errno
import mmap
import os
import time
from dataclasses import replace
from pathlib import Path

from pytest_moetier.cell import FILESYSTEMS
from pytest_moetier.errors import InputError
from pytest_moetier.host import blockdev, loopdev
from pytest_moetier.host.restore import Journal
from pytest_moetier.pool.checkpoint import map_checkpoint, model_root
from pytest_moetier.pool.manifest import EXTENTS_NAME, IMAGE_NAME, MANIFEST_NAME, PoolFile, load_manifest
from pytest_moetier.pool.synthetic import (
    Created,
    Progress,
    choose_store,
    locked,
    made_folder,
    make_image,
    refuse_sparse,
    write_out,
)
from pytest_moetier.units import PAGE_BYTES, format_bytes

_CHUNK_BYTES = 8 << 20
_STILL = "run it again when nothing writes to the model"


def image_of(
    model: Path,
    folder: Path,
    journal: Journal | None = None,
    *,
    filesystem: str = FILESYSTEMS[0],
    progress: Progress | None = None,
) -> Created:
    """Copy a model into an image in ``folder``, with the manifest of a pool beside it; the model is only read.

    Args:
        model: a file of it, or its folder.
        folder: new or empty, or with an image of it that was begun (which is then begun again), or that is whole.
        journal: where the loop device is recorded.
        filesystem: of the image, ``ext4`` or ``xfs``.
        progress: called with (bytes done, bytes in all) as it goes.

    Raises:
        InputError: no model that can be mapped, another folder than that, too little room, or a failing device.
        UnsupportedHostError: no image can be had here, or no block device is below the folder.
        HostBusyError: another create works on this folder.
    """
    started = time.monotonic()
    choose_store("image", filesystem)
    manifest = replace(map_checkpoint(model), store="image", filesystem=filesystem)
    image, total = folder / IMAGE_NAME, manifest.stored_bytes
    with made_folder(folder), locked(folder):
        if (folder / MANIFEST_NAME).exists():
            if load_manifest(folder) != manifest:
                raise InputError(f"{folder} already holds another pool", "an empty folder", "choose another path")
            return Created(folder, manifest, total, 0, time.monotonic() - started)
        others = sorted({one.name for one in folder.iterdir()} - {IMAGE_NAME, EXTENTS_NAME, "lost+found"})
        if others:
            raise InputError(f"{folder} is not empty ({others[0]})", "an empty folder", "choose another path")
        blockdev.devices_of(folder)
        try:
            make_image(image, manifest)
            with loopdev.attach(image, read_only=False, journal=journal) as loop:
                mount = loopdev.mount_detached(loop, read_only=False, kind=filesystem)
                try:
                    _copy(model_root(model), Path(f"/proc/self/fd/{mount}"), manifest.files, progress)
                finally:
                    os.close(mount)
            refuse_sparse(image)
            manifest.save(folder)
        except BaseException:
            for one in (image, folder / EXTENTS_NAME):
                one.unlink(missing_ok=True)
            raise
    return Created(folder, manifest, 0, total, time.monotonic() - started)


def _copy(source: Path, target: Path, files: tuple[PoolFile, ...], progress: Progress | None) -> None:
    """Copy the files past the page cache: neither the model's pages nor the image's take room in it."""
    total, before = sum(file.size_bytes for file in files), 0
    buffer = memoryview(mmap.mmap(-1, _CHUNK_BYTES))
    try:
        for file in files:
            reading = _open(source / file.path, os.O_RDONLY)
            writing = _open(target / file.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                os.posix_fallocate(writing, 0, file.size_bytes)
                at = 0
                while at < file.size_bytes:
                    count = os.preadv(reading, [buffer], at)
                    if not count or (count % PAGE_BYTES and at + count < file.size_bytes):
                        raise InputError(
                            f"{source / file.path} ends after {at + count} bytes", f"{file.size_bytes}", _STILL
                        )
                    pages = -(-count // PAGE_BYTES) * PAGE_BYTES
                    if os.pwrite(writing, buffer[:pages], at) != pages:
                        raise OSError(errno.EIO, os.strerror(errno.EIO))
                    at += count
                    if progress is not None:
                        progress(before + at, total)
                os.ftruncate(writing, file.size_bytes)
            finally:
                os.close(reading)
                os.close(writing)
            before += file.size_bytes
        write_out(target)
    except OSError as error:
        raise InputError(
            f"copying {source}: {error.strerror} after {format_bytes(before)} of {format_bytes(total)}",
            "sound devices, and room for the whole model",
            "look at both (dmesg), or choose another folder",
        ) from error


def _open(path: Path, flags: int) -> int:
    flags |= os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    try:
        return os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags & ~os.O_EXCL, 0o644)  # a file system without direct I/O may have made it already
