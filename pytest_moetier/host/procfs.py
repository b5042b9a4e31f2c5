"""Sole reader and writer of /proc, /sys and cgroupfs text, and the parsers of it (paper section 4: the counters).

Every path is absolute, on the current machine, and read beneath a root, normally ``/``; tests read recorded trees with
``rooted``.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from pytest_moetier.errors import HarnessError, UnsupportedHostError
from pytest_moetier.host.machine import current
from pytest_moetier.units import SECTOR_BYTES

_ROOT: ContextVar[Path] = ContextVar("moetier_procfs_root", default=Path("/"))
_STAT_COLUMNS = 11  # of a stat file; a /proc/diskstats row has three more in front (14, then 18, 20 with newer kernels)
_SUFFIXES = {"kB": 1024}
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def rooted(root: Path) -> Iterator[None]:
    """Read and write beneath ``root`` instead of ``/`` within the block (recorded trees)."""
    token = _ROOT.set(root)
    try:
        yield
    finally:
        _ROOT.reset(token)


def at(path: str | Path) -> Path:
    """Return where the absolute ``path`` lies beneath the current root."""
    return _ROOT.get() / str(path).lstrip("/")


def _bytes(path: str | Path) -> bytes:
    return current().read(str(at(path)))


def identity(path: str | Path) -> tuple[int, int] | None:
    """Return (device, inode) of ``path``, or None where there is no such thing."""
    try:
        return current().identity(str(at(path)))
    except OSError:
        return None


def exists(path: str | Path) -> bool:
    """Return whether there is such a file or folder."""
    return identity(path) is not None


def writable(path: str | Path) -> bool:
    """Return whether this user may write there."""
    return current().writable(str(at(path)))


def make_folder(path: str | Path) -> None:
    """Make a folder, such as a control group; an ``OSError`` says why it cannot be."""
    current().make_folder(str(at(path)))


def remove_folder(path: str | Path) -> None:
    """Remove an empty folder; an ``OSError`` says why it cannot be."""
    current().remove_folder(str(at(path)))


def read_text(path: str | Path) -> str:
    """Return the whole text of ``path``.

    Raises:
        UnsupportedHostError: the file is absent or unreadable on this host.
    """
    try:
        return _bytes(path).decode("utf-8", "replace")
    except OSError as error:
        raise UnsupportedHostError(
            f"{path}: {error.strerror}",
            "a readable kernel file",
            "run `moetier doctor` to see what this host offers",
        ) from error


def try_text(path: str | Path) -> str | None:
    """Return the whole text of ``path``, or None where it cannot be read (PSI may exist and answer EOPNOTSUPP)."""
    try:
        return _bytes(path).decode("utf-8", "replace")
    except OSError:
        return None


def read_int(path: str | Path) -> int:
    """Return the one integer in ``path``.

    Raises:
        UnsupportedHostError: the file is absent, unreadable or holds no integer.
    """
    text = read_text(path).strip()
    value = to_int(text)
    if value is None:
        raise UnsupportedHostError(f"{path} holds {text[:60]!r}", "one integer")
    return value


def try_int(path: str | Path) -> int | None:
    """Return the one integer in ``path``, or None where there is none."""
    return to_int(try_text(path))


def to_int(text: str | None) -> int | None:
    """Return the integer that ``text`` holds, or None (absent, ``max``, anything else)."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` in one write to an existing kernel file.

    Raises:
        UnsupportedHostError: the file is absent, or this user may not write it.
        HarnessError: the kernel refused the value.
    """
    try:
        current().write(str(at(path)), text.encode())
    except OSError as error:
        seen = f"writing {text.strip()[:60]!r} to {path}: {error.strerror}"
        if error.errno in (*_REFUSED, errno.ENOENT):
            raise UnsupportedHostError(seen, "a writable kernel file", "run as root, see `moetier doctor`") from error
        raise HarnessError(seen, "the kernel to take the value") from error


def try_write(path: str | Path, text: str) -> bool:
    """Write ``text`` to ``path`` and return whether the kernel took it."""
    try:
        write_text(path, text)
    except (UnsupportedHostError, HarnessError):
        return False
    return True


def parse_meminfo(text: str) -> Mapping[str, int]:
    """Return /proc/meminfo as bytes by name (rows without a unit, such as HugePages_Total, stay counts)."""
    fields: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            fields[name.strip()] = int(words[0]) * (_SUFFIXES.get(words[1], 1) if len(words) > 1 else 1)
    return fields


def parse_keyed(text: str) -> Mapping[str, int]:
    """Return ``key value`` or ``key: value`` rows (vmstat, memory.stat, memory.events, io); other rows are left out."""
    fields: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and (value := to_int(words[1])) is not None:
            fields[words[0].rstrip(":")] = value
    return fields


@dataclass(frozen=True, slots=True)
class DiskStat:
    """One block device's counters since it appeared.

    Attributes:
        name: the device, or "" when the row came from a stat file, which has none.
        reads: completed read requests.
        read_bytes: bytes read from the device.
        in_flight: requests issued and not completed.
        written_bytes: bytes written to the device.
    """

    name: str
    reads: int
    read_bytes: int
    in_flight: int
    written_bytes: int


def parse_diskstat_row(text: str) -> DiskStat:
    """Return the counters of one /proc/diskstats row (>= 14 columns) or one stat file (>= 11 columns).

    Raises:
        UnsupportedHostError: fewer columns, as partitions had before Linux 2.6.25.
    """
    words = text.split()
    name = ""
    if len(words) > 2 and not words[2].isdigit():
        name, words = words[2], words[3:]
    if len(words) < _STAT_COLUMNS or not all(word.isdigit() for word in words[:_STAT_COLUMNS]):
        raise UnsupportedHostError(
            f"a block statistics row of {len(words)} counters: {text.strip()[:80]!r}",
            f"at least {_STAT_COLUMNS} counters ({_STAT_COLUMNS + 3} columns in /proc/diskstats)",
        )
    return DiskStat(name, int(words[0]), int(words[2]) * SECTOR_BYTES, int(words[8]), int(words[6]) * SECTOR_BYTES)


@dataclass(frozen=True, slots=True)
class Pressure:
    """Stall totals since boot of one PSI file, in microseconds; None where the kernel does not give the row."""

    some_us: int | None
    full_us: int | None


def parse_pressure(text: str | None) -> Pressure | None:
    """Return the totals of a /proc/pressure file, or None where it could not be read or holds none."""
    totals: dict[str, int | None] = {}
    for line in (text or "").splitlines():
        words = line.split()
        for word in words[1:]:
            key, _, value = word.partition("=")
            if key == "total":
                totals[words[0]] = to_int(value)
    return Pressure(totals.get("some"), totals.get("full")) if totals else None


@dataclass(frozen=True, slots=True)
class Status:
    """The rows of /proc/PID/status that are used here; None where the kernel lacks one."""

    name: str
    vmlck_bytes: int | None
    rss_anon_bytes: int | None
    rss_file_bytes: int | None
    capabilities: int | None


def parse_status(text: str) -> Status:
    """Return the used rows of /proc/PID/status."""
    rows = {name: rest.strip() for name, _, rest in (line.partition(":") for line in text.splitlines())}

    def size(name: str) -> int | None:
        words = rows.get(name, "").split()
        return int(words[0]) * 1024 if words and words[0].isdigit() else None

    capabilities = rows.get("CapEff")
    return Status(
        name=rows.get("Name", ""),
        vmlck_bytes=size("VmLck"),
        rss_anon_bytes=size("RssAnon"),
        rss_file_bytes=size("RssFile"),
        capabilities=int(capabilities, 16) if capabilities else None,
    )


def parse_choice(text: str) -> str:
    """Return the selected word of a sysfs file such as ``always [madvise] never``, or the stripped text."""
    for word in text.split():
        if word.startswith("[") and word.endswith("]"):
            return word[1:-1]
    return text.strip()


@dataclass(frozen=True, slots=True)
class Mount:
    """One row of /proc/PID/mountinfo."""

    mount_id: int
    device: str
    root: str
    point: str
    kind: str
    source: str
    super_options: tuple[str, ...]

    @property
    def device_number(self) -> tuple[int, int]:
        """(major, minor) of the filesystem's st_dev."""
        major, _, minor = self.device.partition(":")
        return int(major), int(minor)


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Return the rows of /proc/PID/mountinfo (octal escapes undone), in mount order."""
    rows = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        front, back = left.split(), right.split(" ")
        if separator and len(front) >= 6 and len(back) >= 3:
            front[3:5] = [_unescape(word) for word in front[3:5]]
            rows.append(
                Mount(
                    int(front[0]), front[2], front[3], front[4], back[0], _unescape(back[1]), tuple(back[2].split(","))
                )
            )
    return tuple(rows)


def mounts() -> tuple[Mount, ...]:
    """Return this process's mounts, or an empty tuple where /proc is not mounted."""
    return parse_mountinfo(try_text("/proc/self/mountinfo") or "")


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that cannot be confused with a later one that got the same pid."""

    pid: int
    start_ticks: int
    comm: str


def process_id(pid: int) -> ProcessId | None:
    """Return the identity of a running process (pid, start time in clock ticks since boot, comm), or None.

    A zombie has ended: None.
    """
    text = try_text(f"/proc/{pid}/stat")
    if not text or ")" not in text:
        return None
    head, _, tail = text.rpartition(")")
    words = tail.split()
    if len(words) < 20 or words[0] in {"Z", "X"}:
        return None
    return ProcessId(pid, int(words[19]), head.partition("(")[2])


def command_line(pid: int) -> str:
    """Return the command line of ``pid`` on one line of at most 120 characters, or its comm in brackets."""
    words = " ".join((try_text(f"/proc/{pid}/cmdline") or "").replace("\0", " ").split())
    return words[:120] or f"[{(try_text(f'/proc/{pid}/comm') or '').strip()}]"
