"""The native executables, and a small plan and pool writer of their own: independent of the package's."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import struct
import subprocess
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_moetier.errors import MoetierError
from pytest_moetier.native import executable

PAGE = 4096
POOL_ID = 0x0123456789ABCDEF
STAMPED = 1
THROWAWAY = 16
SOURCE = Path(__file__).parents[2]
HEADER_FIELDS = (
    *("magic", "version", "header_bytes", "file_bytes"),
    *("n_iterations", "n_accesses", "n_experts", "n_extents", "n_files", "strings_bytes"),
    *("off_iterations", "off_sequence", "off_experts", "off_extents", "off_files", "off_strings"),
    *("pool_id", "flags", "page_bytes", "total_bytes", "reserved_1", "crc_body", "reserved_2", "crc_header"),
)
HEADER_FORMAT = "<8sII7Q6QQIIQIIII"
SECTIONS = ("iterations", "sequence", "experts", "extents", "files", "strings")


@pytest.fixture(scope="session")
def native_bin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the executables: MOETIER_BIN's, the installed ones, or a build of the source."""
    try:
        return executable("moetier-replay").parent
    except MoetierError:
        if os.environ.get("MOETIER_BIN"):
            raise
    build = tmp_path_factory.mktemp("native-build")
    configure = ["cmake", "-S", SOURCE, "-B", build, "-DMOETIER_EXTENSION=OFF"]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", build], check=True, capture_output=True)
    return build / "bin"


@pytest.fixture(scope="session")
def sanitized(native_bin: Path) -> bool:
    """Whether the executables are of the sanitizer build, whose memory is not the product's."""
    return b"__asan_init" in (native_bin / "moetier-replay").read_bytes()


@dataclass
class PlanParts:
    """A plan as lists; ``encode`` writes it as the format's description says."""

    iterations: list[int]
    sequence: list[int]
    experts: list[tuple[int, int, int, int, int, int]]  # layer, expert, first extent, extents, pad, bytes
    extents: list[tuple[int, int, int, int]]  # file, pad, offset, length
    files: list[tuple[bytes, int]]  # path, size
    flags: int = STAMPED

    def sections(self) -> dict[str, bytes]:
        """Return each section's bytes, in the file's order."""
        starts = itertools.accumulate((len(path) for path, _ in self.files[:-1]), initial=0)
        return {
            "iterations": struct.pack(f"<{len(self.iterations)}Q", *self.iterations),
            "sequence": struct.pack(f"<{len(self.sequence)}I", *self.sequence),
            "experts": b"".join(struct.pack("<IIQIIQ", *expert) for expert in self.experts),
            "extents": b"".join(struct.pack("<IIQQ", *extent) for extent in self.extents),
            "files": b"".join(
                struct.pack("<QIIQ", start, len(path), 0, size)
                for start, (path, size) in zip(starts, self.files, strict=True)
            ),
            "strings": b"".join(path for path, _ in self.files),
        }

    def encode(self, header: dict[str, Any] | None = None, sections: dict[str, bytes] | None = None) -> bytes:
        """Return the file's bytes; ``header`` and ``sections`` replace parts of it before the CRCs are computed."""
        parts = self.sections() | (sections or {})
        body, offsets = b"", {}
        for name in SECTIONS:
            offsets[f"off_{name}"] = 160 + len(body)
            body += parts[name] + bytes(-len(parts[name]) % 8)
        values: dict[str, Any] = {
            "magic": b"MOEPLAN\0",
            "version": 1,
            "header_bytes": 160,
            "file_bytes": 160 + len(body),
            "n_iterations": len(self.iterations) - 1,
            "n_accesses": len(self.sequence),
            "n_experts": len(self.experts),
            "n_extents": len(self.extents),
            "n_files": len(self.files),
            "strings_bytes": len(parts["strings"]),
            **offsets,
            "pool_id": POOL_ID,
            "flags": self.flags,
            "page_bytes": PAGE,
            "total_bytes": self.total_bytes,
            "reserved_1": 0,
            "crc_body": zlib.crc32(body),
            "reserved_2": 0,
            "crc_header": 0,
        } | (header or {})
        plain = struct.pack(HEADER_FORMAT, *(values[name] for name in HEADER_FIELDS))
        return plain[:156] + struct.pack("<I", zlib.crc32(plain[:156])) + body

    @property
    def total_bytes(self) -> int:
        """The bytes of all accesses."""
        return sum(self.experts[i][5] for i in self.sequence)


def stamped_bytes(layer: int, expert: int, size: int) -> bytes:
    """Return an expert's bytes: a stamp at the start of every page."""
    pages = (
        b"MOEPAGE1" + struct.pack("<QIIQ", POOL_ID, layer, expert, page) + bytes([layer + 1, expert + 1]) * 2032
        for page in range(-(-size // PAGE))
    )
    return b"".join(pages)[:size]


@dataclass
class Pool:
    """A stamped pool on disk, and the plan that reads it."""

    root: Path
    parts: PlanParts
    plan: Path = field(init=False)

    def __post_init__(self) -> None:
        """Write the plan beside the pool."""
        self.plan = self.root.with_suffix(".plan")
        self.write_plan()

    def write_plan(self, **changes: Any) -> None:
        """Write the plan, with changes as for ``PlanParts.encode``."""
        self.plan.write_bytes(self.parts.encode(**changes))

    def path(self, file: int) -> Path:
        """Return the path of a file of the plan."""
        return self.root / os.fsdecode(self.parts.files[file][0])

    def drop(self) -> None:
        """Drop the pool's files from the page cache."""
        for file in range(len(self.parts.files)):
            drop_file(self.path(file))


def drop_file(path: Path) -> None:
    """Write back and drop one file's pages."""
    fd = os.open(path, os.O_RDONLY)
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def write_pool(root: Path, layout: str, size: int, accesses: Sequence[Sequence[int]]) -> Pool:
    """Write two layers of four experts of ``size`` bytes in the given layout, and a plan of the given iterations.

    Layouts: ``files`` (one per expert), ``one_file`` (page-aligned in one file), ``unaligned`` (in one file, from byte
    100, back to back), ``split`` (each expert in two extents: the second half stands before the first).
    """
    root.mkdir()
    keys = [(layer, expert) for layer in range(2) for expert in range(4)]
    contents = [stamped_bytes(layer, expert, size) for layer, expert in keys]
    extents: list[tuple[int, int, int, int]] = []
    if layout == "files":
        files = [(b"L%d-E%d" % key, size) for key in keys]
        for (path, _), content in zip(files, contents, strict=True):
            (root / os.fsdecode(path)).write_bytes(content)
        extents = [(i, 0, 0, size) for i in range(len(keys))]
    else:
        blob = bytearray(100 if layout == "unaligned" else 0)
        cut = size // 2 + 7 if layout == "split" else 0
        for content in contents:
            start = len(blob)
            blob += content[cut:] + content[:cut]
            if cut:
                extents += [(0, 0, start + size - cut, cut), (0, 0, start, size - cut)]
            else:
                extents.append((0, 0, start, size))
            if layout == "one_file":
                blob += bytes(-len(blob) % PAGE)
        files = [(b"pool.bin", len(blob))]
        (root / "pool.bin").write_bytes(blob)
    per_expert = len(extents) // len(keys)
    experts = [(layer, expert, i * per_expert, per_expert, 0, size) for i, (layer, expert) in enumerate(keys)]
    starts = [0]
    for iteration in accesses:
        starts.append(starts[-1] + len(iteration))
    sequence = [access for iteration in accesses for access in iteration]
    return Pool(root, PlanParts(starts, sequence, experts, extents, files))


@pytest.fixture
def make_pool(tmp_path: Path) -> Callable[..., Pool]:
    """Write a pool below tmp_path; by default 8 experts of 64 KiB, one file each, read once in two iterations.

    For a mode that writes, the plan says that the pool is a throw-away copy.
    """

    def make(
        layout: str = "files",
        size: int = 16 * PAGE,
        accesses: Sequence[Sequence[int]] = ((0, 1, 2, 3), (4, 5, 6, 7)),
        root: Path | None = None,
        mode: str = "",
    ) -> Pool:
        pool = write_pool(root or tmp_path / "pool", layout, size, accesses)
        if mode.startswith("write_"):
            pool.parts.flags |= THROWAWAY
            pool.write_plan()
        return pool

    return make


@dataclass(frozen=True)
class Outcome:
    """What an executable said and how it ended."""

    exit: int
    events: list[dict[str, Any]]
    stderr: str

    def named(self, event: str, **values: Any) -> list[dict[str, Any]]:
        """Return the events of this name with these values."""
        return [e for e in self.events if e["event"] == event and values.items() <= e.items()]

    def only(self, event: str, **values: Any) -> dict[str, Any]:
        """Return the one event of this name with these values."""
        (found,) = self.named(event, **values)
        return found


def parse_events(stdout: bytes) -> list[dict[str, Any]]:
    """Return the events; a line that is not strict UTF-8 JSON is an error."""
    return [json.loads(line.decode()) for line in stdout.splitlines()]


@pytest.fixture
def replay(native_bin: Path) -> Callable[..., Outcome]:
    """Run moetier-replay on a pool's plan to its end, with nothing on stdin."""

    def run(pool: Pool, *options: str | Path, prefix: Sequence[str] = ()) -> Outcome:
        command = [*prefix, native_bin / "moetier-replay", pool.plan, "--root", pool.root, *options]
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=60)
        return Outcome(done.returncode, parse_events(done.stdout), done.stderr.decode(errors="replace"))

    return run


@pytest.fixture
def resident() -> Callable[[Path], int]:
    """Count a file's resident pages by cachestat(2), asked for directly."""
    libc = ctypes.CDLL(None, use_errno=True)

    def count(path: Path) -> int:
        answer = (ctypes.c_uint64 * 5)()
        fd = os.open(path, os.O_RDONLY)
        whole = (ctypes.c_uint64 * 2)(0, 1 << 40)
        failed = libc.syscall(451, fd, whole, answer, 0)
        os.close(fd)
        if failed:
            pytest.skip(f"cachestat(2) does not answer here: {os.strerror(ctypes.get_errno())}")
        return answer[0]

    return count
