"""A pool that is made for one measurement and gone after it, also after kill -9 (at the next start)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_moetier.cell import FILESYSTEMS
from pytest_moetier.errors import InputError
from pytest_moetier.host import blockdev
from pytest_moetier.host.restore import Journal
from pytest_moetier.host.undo import PREFIX
from pytest_moetier.pool.copied import image_of
from pytest_moetier.pool.profiles import Shape
from pytest_moetier.pool.synthetic import Progress, choose_store, create_pool, needed_bytes, plan_manifest
from pytest_moetier.units import format_bytes


@contextmanager
def temporary_pool(  # noqa: PLR0913  (what a caller may choose, by keyword)
    shape: Shape,
    folder: Path,
    journal: Journal,
    *,
    layout: str = "file_per_expert",
    store: str = "auto",
    seed: int = 0,
    spine_bytes: int = 0,
    throwaway: bool = False,
    filesystem: str = FILESYSTEMS[0],
    progress: Progress | None = None,
) -> Iterator[Path]:
    """Create a pool in a private folder of its own inside ``folder`` and remove it at the end; yield its path.

    Args:
        shape: its dimensions.
        folder: an existing folder on a block device, such as the one that the session's pool is in.
        journal: where the private folder is recorded before it is made.
        layout: ``file_per_expert`` or ``one_file``.
        store: ``image``, ``plain``, or ``auto``: an image where this host can have one.
        seed: of its bytes.
        spine_bytes: of dense weights in a file beside the experts, in whole pages; 0 for none.
        throwaway: measurements may write to it.
        filesystem: of an image, ``ext4`` or ``xfs``.
        progress: called with (bytes done, bytes in all) as it is written.

    Raises:
        InputError: no such folder, or too little room in it.
        UnsupportedHostError: no block device below it (tmpfs), or no image can be had where one was asked for.
    """
    kind, _ = choose_store(store, filesystem)
    manifest = plan_manifest(
        shape,
        layout=layout,
        store=kind,
        seed=seed,
        spine_bytes=spine_bytes,
        throwaway=throwaway,
        filesystem=filesystem,
    )
    blockdev.devices_of(folder)  # refuses a tmpfs, and a folder that is not there
    _check_room(folder, needed_bytes(manifest))
    with _private_folder(folder, journal) as path:
        create_pool(
            path,
            shape,
            layout=layout,
            store=kind,
            seed=seed,
            spine_bytes=spine_bytes,
            throwaway=throwaway,
            filesystem=filesystem,
            progress=progress,
        )
        yield path


@contextmanager
def temporary_checkpoint(
    write: Callable[[Path], None],
    folder: Path,
    journal: Journal,
    *,
    store: str = "auto",
    filesystem: str = FILESYSTEMS[0],
) -> Iterator[Path]:
    """Have a model written for one measurement, and yield a pool of it: an image where this host can have one.

    Args:
        write: writes a model into the file that it is given, ``NAME.gguf``.
        folder: an existing folder on a block device; for an image it needs room for the model twice.
        journal: where the private folder is recorded before it is made.
        store: ``image``, ``plain``, or ``auto``.
        filesystem: of an image, ``ext4`` or ``xfs``.

    Yields:
        What ``open_pool`` takes: a pool's folder with an image, or the model's file.

    Raises:
        InputError: no such folder, too little room in it, or what was written is no mixture of experts.
        UnsupportedHostError: no block device below it (tmpfs), or no image can be had where one was asked for.
    """
    kind, _ = choose_store(store, filesystem)
    blockdev.devices_of(folder)
    with _private_folder(folder, journal) as path:
        model = path / "model.gguf"
        write(model)
        if kind == "plain":
            yield model
            return
        image_of(model, path / "pool", journal, filesystem=filesystem)
        model.unlink()
        yield path / "pool"


@contextmanager
def _private_folder(folder: Path, journal: Journal) -> Iterator[Path]:
    """Make a private folder inside ``folder`` and remove it at the end."""
    path = folder.absolute() / f"{PREFIX}pool-{os.getpid()}-{secrets.token_hex(6)}"
    token = journal.record("folder", path=str(path))
    try:
        path.mkdir(mode=0o700)
    except OSError as error:
        journal.done(token)
        raise InputError(
            f"{path} cannot be made: {error.strerror}",
            "a folder that may be written to, for a temporary pool",
            f"ls -ld {path.parent}",
        ) from error
    try:
        yield path
    finally:
        journal.undo(token)


def _check_room(folder: Path, needed: int) -> None:
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    if free < needed:
        raise InputError(
            f"{folder} has {format_bytes(free)} free",
            f"{format_bytes(needed)} for a temporary pool",
            "free some, or keep the session's pool on a larger device: temporary ones are made beside it",
        )
