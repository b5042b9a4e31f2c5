"""What is done about the experts that the router chose: the policies of ``arm``, on the engine's own mapping.

The engine maps the model's files; its mappings are found by the kernel's list of them. Hints are given in pieces,
because the kernel cuts each off at the device's read-ahead.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import queue
import resource
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_moetier.engine.job import Job, Slabs
from pytest_moetier.errors import HarnessError, UnsupportedHostError
from pytest_moetier.host import procfs, residency

_PAGE = mmap.PAGESIZE
_POPULATE_READ = 22  # MADV_POPULATE_READ, since Linux 5.14
_HINT_BYTES = 128 * 1024  # of one WILLNEED, where the device's queue does not say what it cuts off at
WANT_CHOICES = ("drop", "willneed", "populate", "pread", "background")
"""The policies that act on what the router chose; the others leave the computation alone."""


def _outward(start: int, length: int) -> tuple[int, int]:
    first = start // _PAGE * _PAGE
    return first, -(-(start + length) // _PAGE) * _PAGE - first


def _inward(start: int, length: int) -> tuple[int, int]:
    first = -(-start // _PAGE) * _PAGE
    return first, max(0, (start + length) // _PAGE * _PAGE - first)


def _call(name: str, *arguments: int) -> None:
    function = getattr(residency.libc(), name)
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int][: len(arguments)]
    if function(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


@dataclass(frozen=True, slots=True)
class Region:
    """One mapping of a part of a model's file: address, bytes, the file's index in the job, offset in it."""

    start: int
    length: int
    file: int
    offset: int


def _identity(status: os.stat_result) -> tuple[tuple[int, ...], int]:
    return (os.major(status.st_dev), os.minor(status.st_dev)), status.st_ino


def find_regions(files: tuple[str, ...]) -> tuple[Region, ...]:
    """Return where this process has mapped the files, by the kernel's list."""
    known = {_identity(Path(file).stat()): number for number, file in enumerate(files)}
    found = []
    for line in procfs.read_text("/proc/self/maps").splitlines():
        where, _, offset, device, inode, *_ = line.split(maxsplit=5)
        # By number, not by name: a model in an image is mounted where nobody else sees it.
        file = known.get((tuple(int(part, 16) for part in device.split(":")), int(inode)))
        if file is not None:
            start, end = (int(side, 16) for side in where.split("-"))
            found.append(Region(start, end - start, file, int(offset, 16)))
    return tuple(found)


class Weights:
    """The model's files in this process: open, and mapped by the engine (or not: ``direct_io``)."""

    def __init__(self, job: Job) -> None:
        """Open the files and find their mappings; call it once the model is loaded."""
        self.files = tuple(os.open(file, os.O_RDONLY | os.O_CLOEXEC) for file in job.files)
        self.regions = find_regions(job.files)
        self.areas = tuple(
            (file, offset, stride * (job.experts - 1) + length)
            for layer in job.layers
            for file, offset, stride, length in _parts(layer)
        )

    def spans(self, file: int, offset: int, length: int) -> Iterator[tuple[int, int]]:
        """Yield address and bytes of what is mapped of a range of a file."""
        for region in self.regions:
            first = max(offset, region.offset)
            last = min(offset + length, region.offset + region.length)
            if region.file == file and first < last:
                yield region.start + first - region.offset, last - first

    def spine(self) -> Iterator[tuple[int, int]]:
        """Yield address and bytes of what is mapped and is no expert: embeddings, attention, norms, output."""
        areas = sorted(self.areas)
        for region in self.regions:
            at, end = region.offset, region.offset + region.length
            for file, offset, length in areas:
                if file != region.file or offset + length <= at or offset >= end:
                    continue
                if offset > at:
                    yield region.start + at - region.offset, offset - at
                at = offset + length
            if at < end:
                yield region.start + at - region.offset, end - at

    def lock_spine(self) -> int:
        """Mlock the spine and return its bytes, in whole pages.

        Raises:
            UnsupportedHostError: the limit on locked memory forbids it.
        """
        total = 0
        for span in self.spine():
            start, length = _outward(*span)
            try:
                _call("mlock", start, length)
            except OSError as error:
                limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
                raise UnsupportedHostError(
                    f"{length} bytes of the spine cannot be locked ({error.strerror}; the limit is {limit} bytes)",
                    "memory that this process may lock",
                    "run as root, or raise `ulimit -l`",
                ) from error
            total += length
        return total

    def unmap(self, *, spine: bool) -> None:
        """Take the experts' pages (and the spine's) out of this process' mapping: they stay in the page cache."""
        ranges = [(region.start, region.length) for region in self.regions] if spine else []
        # Whole pages of experts only: what they share with the spine may be locked, and is the spine's.
        for start, length in ranges or [_inward(*span) for area in self.areas for span in self.spans(*area)]:
            if length:
                _call("madvise", start, length, mmap.MADV_DONTNEED)

    def write_out(self) -> None:
        """Write out what is still dirty of the files: a dirty page cannot be dropped."""
        for file in self.files:
            os.fdatasync(file)

    def drop(self) -> None:
        """Drop the files from the page cache: whole, because large folios stay that straddle a range's border."""
        for file in self.files:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def resident(self) -> int | None:
        """Return the bytes of the experts' pages in the page cache; None where this kernel cannot say."""
        return self._resident(self.areas)

    def resident_files(self) -> int | None:
        """Return the bytes of the whole files in the page cache; None where this kernel cannot say."""
        return self._resident(tuple((number, 0, os.fstat(file).st_size) for number, file in enumerate(self.files)))

    def _resident(self, areas: Iterable[tuple[int, int, int]]) -> int | None:
        total = 0
        for file, offset, length in areas:
            start, size = _outward(offset, length)
            try:
                total += residency.cachestat_range(self.files[file], start, size) * _PAGE
            except (OSError, AttributeError):
                return None
        return total

    def hint_bytes(self) -> int:
        """Return how many bytes one WILLNEED may name before the kernel cuts it off, from the device's queue."""
        device = os.fstat(self.files[0]).st_dev
        at = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
        for queue_at in (f"{at}/queue", f"{at}/../queue"):
            limits = [procfs.try_int(f"{queue_at}/{name}") for name in ("read_ahead_kb", "max_sectors_kb")]
            if any(limits):
                return max(_PAGE, max(limit or 0 for limit in limits) * 1024 // _PAGE * _PAGE)
        return _HINT_BYTES


def _parts(layer: Slabs) -> Iterator[tuple[int, int, int, int]]:
    return zip(layer.file, layer.offset, layer.stride, layer.length, strict=True)


class Policy:
    """One policy at work on a run: told what is chosen, and when a token is done."""

    def __init__(self, job: Job, weights: Weights) -> None:
        """Make ready; the mapping is advised here where the policy is about the whole of it.

        Raises:
            UnsupportedHostError: this kernel has no such hint.
        """
        self.name = job.policy
        self._weights = weights
        self._layers = {layer.layer: tuple(_parts(layer)) for layer in job.layers}
        self._hint_bytes = weights.hint_bytes()
        self.calls = self.advised_bytes = self.read_bytes = self.unread = 0
        self.seconds = 0.0
        self._jobs: queue.SimpleQueue[tuple[int, int, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._failure: OSError | None = None
        largest = max((length for layer in job.layers for length in layer.length), default=1)
        self._scratch = memoryview(mmap.mmap(-1, largest)) if self.name in {"pread", "background"} else memoryview(b"")
        if self.name != "plain" and not (self._layers and weights.regions):
            raise HarnessError(f"policy {self.name} without mapped experts", "slabs of every layer, and load mode mmap")
        if self.name == "random":
            for region in weights.regions:
                self._advise(region.start, region.length, mmap.MADV_RANDOM)
        elif self.name == "populate":
            self._probe()
        elif self.name == "background":
            self._thread = threading.Thread(target=self._work, name="background reads", daemon=True)
            self._thread.start()

    def _probe(self) -> None:
        with mmap.mmap(-1, _PAGE) as page:
            try:
                page.madvise(_POPULATE_READ)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                raise UnsupportedHostError(
                    "this kernel refuses MADV_POPULATE_READ (EINVAL)", "Linux 5.14 or later", "use another policy"
                ) from error

    def chosen(self, layer: int, experts: Iterable[int]) -> None:
        """Act on the experts that a layer is about to use."""
        begun = time.perf_counter()
        for file, offset, stride, length in self._layers.get(layer, ()):
            for expert in experts:
                self._one(file, offset + expert * stride, length)
        self.seconds += time.perf_counter() - begun

    def _one(self, file: int, offset: int, length: int) -> None:
        if self.name == "background":
            self._jobs.put((file, offset, length))
        elif self.name == "pread":
            self._read(file, offset, length)
        elif self.name == "populate":
            for span in self._weights.spans(file, offset, length):
                self._advise(*_outward(*span), _POPULATE_READ)
        else:
            self._willneed(file, offset, length)

    def _willneed(self, file: int, offset: int, length: int) -> None:
        for span in self._weights.spans(file, offset, length):
            start, size = _outward(*span)
            for at in range(start, start + size, self._hint_bytes):
                self._advise(at, min(self._hint_bytes, start + size - at), mmap.MADV_WILLNEED)

    def _advise(self, start: int, length: int, advice: int) -> None:
        _call("madvise", start, length, advice)
        self.calls += 1
        self.advised_bytes += length

    def _read(self, file: int, offset: int, length: int) -> None:
        done = 0
        while done < length:
            got = os.preadv(self._weights.files[file], [self._scratch[: length - done]], offset + done)
            if not got:
                raise OSError(errno.EIO, "the model's file ends early")
            done += got
        self.read_bytes += done
        self._willneed(file, offset, length)

    def _work(self) -> None:
        while (one := self._jobs.get()) is not None:
            if self._stopped:
                self.unread += 1
                continue
            try:
                self._read(*one)
            except OSError as error:
                self._failure = error
                return

    def token_done(self) -> tuple[int | None, float] | None:
        """Drop what was used, where the policy does; return the experts' resident bytes and the seconds it took."""
        if self._failure is not None:
            raise self._failure
        if self.name != "drop":
            return None
        begun = time.perf_counter()
        self._weights.unmap(spine=False)
        self._weights.drop()
        seconds = time.perf_counter() - begun
        return self._weights.resident(), seconds

    def finish(self) -> None:
        """End what works in the background; what it had not begun is counted as unread."""
        if self._thread is not None:
            self._stopped = True
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
