"""Is a pool what its manifest says? Sizes of all files, and the bytes of experts and spine, a sample or all of them."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytest_moetier.errors import InputError
from pytest_moetier.pool.manifest import Manifest, PoolFile
from pytest_moetier.pool.pages import SPINE_EXPERT, SPINE_LAYER, Fault, Pages
from pytest_moetier.trace import splitmix
from pytest_moetier.trace.splitmix import U64
from pytest_moetier.units import PAGE_BYTES

SAMPLE_EXPERTS = 64
SAMPLE_PIECES = 8
"""Of the spine, 8 MiB each."""

_CHUNK_BYTES = 8 << 20
_MAX_FAULTS = 20
_READERS = 4
_BATCH = 32


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check looked at, and one sentence per fault (empty: the pool is sound)."""

    experts_checked: int
    experts: int
    bytes_checked: int
    faults: tuple[str, ...]
    spine_bytes_checked: int = 0


def read_pages(path: Path, offset: int, length: int) -> U64:
    """Return bytes of a file as words, read past the page cache where the file system allows; fewer at the file's end.

    Raises:
        OSError: the file cannot be opened or read.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_DIRECT", 0))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        descriptor = os.open(path, flags)
    try:
        buffer = memoryview(mmap.mmap(-1, max(length, PAGE_BYTES)))
        done = 0
        while done < length:
            count = os.preadv(descriptor, [buffer[done:length]], offset + done)
            if not count:
                break
            done += count
            if done % PAGE_BYTES:
                break  # an odd end of file: direct I/O cannot go on from here, and neither is there more
        return np.frombuffer(buffer[: done // 8 * 8], dtype=np.uint64)
    finally:
        os.close(descriptor)


def file_faults(root: Path, manifest: Manifest) -> Iterator[str]:
    """Yield one sentence for each file that is missing, no plain file, or of another size than the manifest's."""
    folders = {root / manifest.folder, *((root / file.path).parent for file in manifest.stored_files)}
    for folder in sorted(folders - {root}):
        try:
            kind = folder.lstat().st_mode
        except OSError as error:
            yield f"folder {folder.relative_to(root)}: {error.strerror}"
            return
        if not stat.S_ISDIR(kind):
            yield f"{folder.relative_to(root)} is no folder: nothing of a pool may lead out of it"
            return
    for index, file in enumerate(manifest.stored_files):
        whose = _whose(manifest, index)
        try:
            found = (root / file.path).lstat()
        except OSError as error:
            yield f"file {file.path}{whose}: {error.strerror}"
            continue
        if not stat.S_ISREG(found.st_mode):
            yield f"file {file.path}{whose} is no plain file: nothing of a pool may lead out of it"
        elif found.st_size != file.size_bytes:
            yield f"file {file.path}{whose} has {found.st_size} bytes, expected {file.size_bytes}"


def _whose(manifest: Manifest, index: int) -> str:
    if index >= len(manifest.files):
        return " (the spine)"
    at, expert = divmod(index, manifest.experts)
    return f" (layer {manifest.layers[at]}, expert {expert})" if manifest.layout == "file_per_expert" else ""


def _sample(seed: int, pool_id: int, total: int, count: int) -> list[int]:
    """Return ``count`` numbers below ``total``, always with the first and the last (where a cut-off pool shows)."""
    if count >= total:
        return list(range(total))
    stream = splitmix.key(seed, pool_id)
    chosen = {0, total - 1}
    draw = 0
    while len(chosen) < count:
        chosen.add(splitmix.below(stream, draw, total))
        draw += 1
    return sorted(chosen)


def _verify(root: Path, manifest: Manifest, pages: Pages, index: int) -> str:
    """Return the fault of one expert, or ''."""
    at, expert = divmod(index, manifest.experts)
    layer = manifest.layers[at]
    (extent,) = manifest.extents(layer, expert)
    path = manifest.files[extent.file].path
    whose = f"layer {layer}, expert {expert}"
    for start in range(0, extent.length, _CHUNK_BYTES):
        length = min(_CHUNK_BYTES, extent.length - start)
        try:
            data = read_pages(root / path, extent.offset + start, length)
        except OSError as error:
            return f"{whose}: {path}: {error.strerror}"
        if data.nbytes != length:
            return f"{whose}: {path} ends after {start + data.nbytes} bytes of it, expected {extent.length}"
        fault = pages.verify(data, layer, expert, start // PAGE_BYTES)
        if fault is not None:
            return f"{whose}, page {fault.page} was overwritten: {_said(path, fault)}"
    return ""


def _said(path: str, fault: Fault) -> str:
    return f"{path} holds {fault.seen} there, expected {fault.expected}"


def _verify_piece(root: Path, spine: PoolFile, pages: Pages, index: int) -> str:
    """Return the fault of one piece of the spine, or ''."""
    start = index * _CHUNK_BYTES
    length = min(_CHUNK_BYTES, spine.size_bytes - start)
    try:
        data = read_pages(root / spine.path, start, length)
    except OSError as error:
        return f"spine: {spine.path}: {error.strerror}"
    if data.nbytes != length:
        return f"spine: {spine.path} ends after {start + data.nbytes} bytes, expected {spine.size_bytes}"
    fault = pages.verify(data, SPINE_LAYER, SPINE_EXPERT, start // PAGE_BYTES)
    return f"spine, page {fault.page} was overwritten: {_said(spine.path, fault)}" if fault is not None else ""


def _check_spine(root: Path, manifest: Manifest, seed: int, *, full: bool) -> tuple[int, list[str]]:
    """Return how many bytes of the spine were verified, and the faults found."""
    if manifest.spine is None:
        return 0, []
    spine, pages = manifest.spine, Pages(manifest.pool_id)
    pieces = -(-spine.size_bytes // _CHUNK_BYTES)
    chosen = _sample(seed, manifest.pool_id, pieces, pieces if full else SAMPLE_PIECES)
    faults = [fault for piece in chosen if (fault := _verify_piece(root, spine, pages, piece))]
    return sum(min(_CHUNK_BYTES, spine.size_bytes - piece * _CHUNK_BYTES) for piece in chosen), faults


def check_pool(  # noqa: PLR0913  (what a user may choose, by keyword)
    root: Path,
    manifest: Manifest,
    *,
    full: bool = False,
    seed: int = 0,
    sample: int = SAMPLE_EXPERTS,
    progress: Callable[[int, int], None] | None = None,
) -> CheckResult:
    """Verify the sizes of all files and every page of ``sample`` experts and 64 MiB of spine, or of all when ``full``.

    At most 20 faults are named; a further sentence then says that there may be more.

    Args:
        root: of an open pool.
        manifest: its manifest.
        full: all experts.
        seed: chooses the sample.
        sample: experts in it.
        progress: called with (experts done, experts to check).

    Raises:
        InputError: the pool carries no stamps, so its bytes cannot be told from others.
    """
    if not manifest.stamped:
        raise InputError("the pool is not stamped", "a synthetic pool", "check a real checkpoint by its own checksums")
    faults = []
    for fault in file_faults(root, manifest):
        faults.append(fault)
        if len(faults) >= _MAX_FAULTS:
            break
    pages = Pages(manifest.pool_id)
    total = manifest.n_experts
    chosen = _sample(seed, manifest.pool_id, total, total if full else sample)
    checked = size = 0
    with ThreadPoolExecutor(_READERS) as readers:
        for start in range(0, 0 if faults else len(chosen), _BATCH):
            batch = chosen[start : start + _BATCH]
            found = readers.map(lambda index: _verify(root, manifest, pages, index), batch)
            faults += [fault for fault in found if fault]
            checked += len(batch)
            size += sum(manifest.expert_bytes[index // manifest.experts] for index in batch)
            if progress is not None:
                progress(checked, len(chosen))
            if len(faults) >= _MAX_FAULTS:
                del faults[_MAX_FAULTS:]
                break
    spine_size = 0
    if checked == len(chosen):
        spine_size, found_there = _check_spine(root, manifest, seed, full=full)
        faults = (faults + found_there)[:_MAX_FAULTS]
    if len(faults) >= _MAX_FAULTS:
        faults.append("there may be more: the check stopped here")
    return CheckResult(checked, total, size, tuple(faults), spine_size)
