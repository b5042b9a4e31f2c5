"""From what the user named to what is watched: a control group, devices, processes, a pool and a plan."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_moetier.errors import InputError, UnsupportedHostError
from pytest_moetier.host import blockdev, cgroup, procfs
from pytest_moetier.host.blockdev import BlockDevice
from pytest_moetier.pool.checkpoint import find_model, model_root
from pytest_moetier.pool.manifest import IMAGE_NAME, MANIFEST_NAME, Manifest, load_manifest
from pytest_moetier.watch.nominal import miss_share
from pytest_moetier.watch.resident import PoolCache
from pytest_moetier.watch.sample import Watched

_IN_AN_IMAGE = "the pool is an image: its pages belong to whoever opened it, and are not to be seen from here"


@dataclass(frozen=True, slots=True)
class _Pool:
    """A pool as far as it can be seen: its files, or the image that they are in."""

    manifest: Manifest | None
    files: tuple[Path, ...]
    image: Path | None


def watched(
    *, scope: str | None, device: str | None, pids: Sequence[int], pool: Path | None, plan: Path | None
) -> Watched:
    """Return what is watched.

    Args:
        scope: a control group: its folder, or its name where only one has it.
        device: a block device's name or path, or a file or folder on it; None: that of the pool.
        pids: processes whose reads are counted, beside those of the scope.
        pool: folder of a pool, of other files, or one file.
        plan: a plan file, or a trace that is laid over the pool.

    Raises:
        InputError: one of them does not exist, or cannot be used.
        UnsupportedHostError: the device that was named has no statistics.
    """
    for pid in pids:
        if procfs.process_id(pid) is None:
            raise InputError(f"--pid {pid}: no such process", "a running process", "pgrep -a NAME")
    found = _pool(pool) if pool is not None else None
    devices, no_device = _devices(device, found)
    return Watched(
        devices=devices,
        no_device=no_device,
        scope=cgroup.find_group(scope) if scope is not None else None,
        pids=tuple(pids),
        pool=PoolCache(found.files) if found is not None and found.files else None,
        no_pool=_IN_AN_IMAGE if found is not None else "no --pool",
        demand=miss_share(plan, found.manifest if found is not None else None) if plan is not None else None,
    )


def _pool(path: Path) -> _Pool:
    with suppress(InputError, OSError):  # a dense model, or several: their files can be watched all the same
        if not (path / MANIFEST_NAME).exists() and find_model(path) is not None:
            manifest = load_manifest(path)
            return _Pool(manifest, tuple(model_root(path) / one.path for one in manifest.files), None)
    if path.is_file():
        return _Pool(None, (path,), None)
    if not path.is_dir():
        raise InputError(f"--pool {path}: nothing is there", "a folder made by `moetier pool create`, or one of files")
    if (path / MANIFEST_NAME).exists():
        manifest = load_manifest(path)
        if manifest.store == "image":
            return _Pool(manifest, (), path / IMAGE_NAME)
        return _Pool(manifest, tuple(path / one.path for one in manifest.files), None)
    files = tuple(sorted(one for one in path.rglob("*") if one.is_file() and not one.is_symlink()))
    if not files:
        raise InputError(f"--pool {path} has no files", "a folder made by `moetier pool create`, or one of files")
    return _Pool(None, files, None)


def _devices(word: str | None, pool: _Pool | None) -> tuple[tuple[BlockDevice, ...], str]:
    """Return the devices whose reads are counted, and why there are none."""
    if word is not None:
        return blockdev.devices_named(word), ""
    if pool is None:
        return (), "no --device and no --pool"
    try:
        if pool.image is not None:
            return blockdev.loops_of(pool.image) or blockdev.devices_of(pool.image), ""
        one_each: dict[int, Path] = {}
        for file in pool.files:
            if file.exists():
                one_each.setdefault(file.stat().st_dev, file)
        return blockdev.devices_of_many(one_each.values()), "no file of the pool is there"
    except UnsupportedHostError as error:  # a tmpfs: the rest can still be watched
        return (), str(error)
