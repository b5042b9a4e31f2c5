"""How many bytes of a file lie in the page cache: cachestat(2), else mincore(2) where it tells the truth.

cachestat came with Linux 6.5. Both count pages that are still being read: present, not hit.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from pytest_moetier.units import PAGE_BYTES

_CACHESTAT = 451
_PROT_NONE, _MAP_SHARED = 0, 1
_CHUNK_BYTES = 1 << 30  # of one mincore call: its vector takes 1/4096 of this


class _Range(ctypes.Structure):
    _fields_ = (("off", ctypes.c_uint64), ("len", ctypes.c_uint64))


class _Cachestat(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recently"))


@cache
def libc() -> ctypes.CDLL:
    """Return the C library of this process, with errno kept."""
    return ctypes.CDLL(None, use_errno=True)


def syscall(number: int, *arguments: object) -> int:
    """Make a system call that the C library may lack.

    Raises:
        OSError: the kernel's errno.
    """
    result = int(libc().syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


@contextmanager
def _opened(target: str | Path | int) -> Iterator[int]:
    if isinstance(target, int):
        yield target
        return
    descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def cachestat_pages(descriptor: int) -> int:
    """Return the pages of an open file that are in the page cache.

    Raises:
        OSError: ENOSYS before Linux 6.5, EPERM for a file one neither owns nor may write, EOPNOTSUPP on hugetlbfs.
    """
    return cachestat_range(descriptor, 0, 0)


def cachestat_range(descriptor: int, offset: int, length: int) -> int:
    """Return the pages that hold some of these bytes of an open file and are in the page cache; length 0: to its end.

    Raises:
        OSError: as ``cachestat_pages``.
    """
    found, asked = _Cachestat(), _Range(offset, length)
    syscall(_CACHESTAT, ctypes.c_int(descriptor), ctypes.byref(asked), ctypes.byref(found), ctypes.c_uint(0))
    return int(found.cache)


def has_cachestat() -> bool:
    """Return whether this kernel has cachestat(2)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        with _opened("/proc/self/exe") as descriptor:
            cachestat_pages(descriptor)
    except OSError as error:
        import errno  # noqa: PLC0415  # only on this rare path

        return error.errno == errno.EPERM
    return True


def resident_bytes(target: str | Path | int) -> int | None:
    """Return the bytes of a file (path or open descriptor) in the page cache; None where no probe tells the truth."""
    with _opened(target) as descriptor:
        return resident_parts(descriptor, [(0, os.fstat(descriptor).st_size)])


def resident_parts(target: str | Path | int, parts: Iterable[tuple[int, int]]) -> int | None:
    """Return the bytes in the page cache of the pages that hold any of ``parts`` of a file, each page once.

    Args:
        target: path or open descriptor.
        parts: (offset, length) in bytes, ascending.

    Returns:
        None where no probe tells the truth.
    """
    with _opened(target) as descriptor:
        pages = _whole_pages(parts)
        try:
            page = os.sysconf("SC_PAGE_SIZE")
            return sum(min(cachestat_range(descriptor, at, size) * page, size) for at, size in pages)
        except (OSError, AttributeError):
            found = [_mincore_bytes(descriptor, at, size) for at, size in pages]
            known = [one for one in found if one is not None]
            return sum(known) if len(known) == len(found) else None


def _whole_pages(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts as runs of whole pages."""
    runs: list[tuple[int, int]] = []
    for offset, length in parts:
        start, end = offset // PAGE_BYTES * PAGE_BYTES, -(-(offset + length) // PAGE_BYTES) * PAGE_BYTES
        if runs and start <= sum(runs[-1]):
            start, end = runs[-1][0], max(end, sum(runs.pop()))
        if end > start:
            runs.append((start, end - start))
    return runs


def _mincore_bytes(descriptor: int, first: int, size: int) -> int | None:
    # The kernel answers "resident" for every page of a file one neither owns nor may write.
    owner = os.fstat(descriptor).st_uid
    if os.geteuid() not in (0, owner) and not os.access(f"/proc/self/fd/{descriptor}", os.W_OK):
        return None
    page = os.sysconf("SC_PAGE_SIZE")
    mmap = libc().mmap
    mmap.restype = ctypes.c_void_p
    mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    total = 0
    for offset in range(first, first + size, _CHUNK_BYTES):
        length = min(_CHUNK_BYTES, first + size - offset)
        address = mmap(None, length, _PROT_NONE, _MAP_SHARED, descriptor, offset)
        if address in (None, ctypes.c_void_p(-1).value):
            return None
        vector = (ctypes.c_ubyte * -(-length // page))()
        failed = libc().mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), vector)
        libc().munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))
        if failed:
            return None
        total += sum(byte & 1 for byte in bytes(vector)) * page
    return total


def drop_file(target: str | Path) -> int | None:
    """Write out and drop a whole file's pages by fadvise, and return the bytes still resident (None: unobservable).

    Whole files only: on ranges, large folios that straddle the border stay (97% still resident).
    """
    with _opened(target) as descriptor:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return resident_bytes(descriptor)
