"""What is changed on the host is journaled before it is changed, and undone on exit or at the next start.

The journal is one private append-only file a process; a crash (kill -9 included) leaves it behind, and ``recover`` of
the next start undoes what it lists. ``HostLock`` keeps two benches from measuring each other.
"""

from __future__ import annotations

import atexit
import json
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pytest_moetier.errors import HarnessError, HostBusyError, MoetierError, UnsupportedHostError
from pytest_moetier.host import procfs, residency, undo
from pytest_moetier.host.machine import current

if sys.platform != "win32":
    import fcntl

_DROP_CACHES = "/proc/sys/vm/drop_caches"
_FOLDER = "pytest-moetier"
_POLL_SECONDS = 0.2

_UNDO: Mapping[str, Callable[..., str]] = {
    "cgroup": undo.remove_group,  # path
    "value": undo.restore_value,  # path, old, new
    "process": undo.end_process,  # pid, start_ticks, comm
    "folder": undo.remove_folder,  # path
    "loop": undo.clear_loop,  # device, image
    "mount": undo.unmount,  # point, source
}


def state_dir() -> Path:
    """Return the private folder for journals, made if need be: /run for root, else XDG_RUNTIME_DIR or the temp folder.

    Raises:
        UnsupportedHostError: someone else owns it, others may write it, or it is a link.
    """
    user = os.geteuid()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if user == 0 and Path("/run").is_dir() and os.access("/run", os.W_OK):
        folder = Path("/run") / _FOLDER
    elif user != 0 and runtime and Path(runtime).is_dir() and os.access(runtime, os.W_OK):
        folder = Path(runtime) / _FOLDER
    else:
        folder = Path(tempfile.gettempdir()) / f"{_FOLDER}-{user}"
    return _private(folder)


def _private(folder: Path) -> Path:
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UnsupportedHostError(
            f"{folder} is owned by uid {found.st_uid} with mode {stat.filemode(found.st_mode)}",
            f"a folder of uid {os.geteuid()} with mode drwx------",
            f"look at it, and remove it if it is not wanted: ls -ld {folder}",
        )
    return folder


class HostLock:
    """One bench per host: an flock that dies with its holder. A context manager."""

    def __init__(self, wait_seconds: float = 0, path: Path | None = None) -> None:
        """Take nothing yet; ``wait_seconds`` is how long ``acquire`` waits for another bench."""
        self.wait_seconds = wait_seconds
        # Shared by all users: never written, only locked, so that what it is does not matter beyond a regular file.
        shared = Path("/run/lock")
        base = shared if shared.is_dir() and os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
        self.path = path or base / f"{_FOLDER}.lock"
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Acquire."""
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Release."""
        self.release()

    def acquire(self) -> None:
        """Take the lock, waiting up to ``wait_seconds``.

        Raises:
            HostBusyError: another bench holds it: its pid, command line and start time.
            UnsupportedHostError: the lock file is not a regular file.
        """
        if self._descriptor >= 0:
            return
        descriptor = _open_lock(self.path)
        until = time.monotonic() + self.wait_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    message = self._busy(descriptor)
                    os.close(descriptor)
                    raise message from error
                time.sleep(_POLL_SECONDS)
            else:
                self._descriptor = descriptor
                return

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _busy(self, descriptor: int) -> HostBusyError:
        inode = os.fstat(descriptor).st_ino
        pid = lock_holder(procfs.try_text("/proc/locks") or "", inode)
        holder = "another process"
        if pid is not None:
            since = _start_time(pid)
            holder = f"pid {pid} ({procfs.command_line(pid)})" + (f", started {since}," if since else "")
        return HostBusyError(
            f"{holder} holds the host ({self.path}), waited {self.wait_seconds:g} s",
            "one bench per host, since two would measure each other",
            "wait for it to end, or have this one wait: --moetier-wait SECONDS",
        )


def lock_holder(locks: str, inode: int) -> int | None:
    """Return the pid that holds an flock on ``inode`` according to the text of /proc/locks, or None."""
    for line in locks.splitlines():
        words = line.split()
        if len(words) >= 6 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode):
            return int(words[4])
    return None


def _open_lock(path: Path) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for extra in (0, os.O_CREAT | os.O_EXCL):
        try:
            descriptor = os.open(path, flags | extra, 0o644)
        except FileNotFoundError:
            continue
        except FileExistsError:
            return _open_lock(path)
        except OSError as error:
            raise UnsupportedHostError(f"{path}: {error.strerror}", "a regular file to lock") from error
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise UnsupportedHostError(f"{path} is not a regular file", "a file to lock", f"look at it: ls -l {path}")
    raise UnsupportedHostError(f"{path} cannot be made", "a writable folder for the lock")


def _start_time(pid: int) -> str:
    found = procfs.process_id(pid)
    boot = next((line.split()[1] for line in (procfs.try_text("/proc/stat") or "").splitlines() if "btime" in line), "")
    if found is None or not boot:
        return ""
    seconds = int(boot) + found.start_ticks / os.sysconf("SC_CLK_TCK")
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


@dataclass(frozen=True, slots=True)
class _Entry:
    token: str
    kind: str
    undo: Mapping[str, str | int]


class Journal:
    """The changes this process has made to the host and not yet undone.

    A context manager; ``close`` (also at interpreter exit) undoes what is left, last first.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Start this process's journal in ``folder`` (default: the state folder).

        Raises:
            UnsupportedHostError: the folder is not private to this user.
        """
        me = procfs.process_id(os.getpid())
        ticks = me.start_ticks if me else 0
        self._owner = os.getpid()
        self._entries: dict[str, _Entry] = {}
        self._count = 0
        home = _private(folder) if folder else state_dir()
        self.path, self._descriptor = _new_file(home, f"journal-{self._owner}-{ticks}")
        self._append({"owner": self._owner, "start_ticks": ticks, "boot": boot_id()})
        atexit.register(self.close)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Undo what is left."""
        self.close()

    def record(self, kind: str, **parts: str | int) -> str:
        """Write down how to undo a change that is about to be made, safely on disk, and return its token.

        Args:
            kind: ``cgroup`` (path), ``value`` (path, old, new), ``process`` (pid, start_ticks, comm), ``folder``
                (path), ``loop`` (device, image) or ``mount`` (point, source).
            parts: the kind's own parts.
        """
        if kind not in _UNDO:
            raise HarnessError(f"journal kind {kind!r} is unknown", "one of " + ", ".join(_UNDO))
        self._count += 1
        entry = _Entry(str(self._count), kind, dict(parts))
        self._append({"do": entry.token, "kind": kind, "undo": entry.undo})
        self._entries[entry.token] = entry
        return entry.token

    def done(self, token: str) -> None:
        """Write down that a change has been undone (or was never made); an unknown token is ignored."""
        if self._entries.pop(token, None) is not None:
            self._append({"done": token})

    def undo(self, token: str) -> str:
        """Undo one change now and return what was done ("" when nothing was left to do).

        Raises:
            HarnessError: it could not be undone; it stays journaled.
        """
        entry = self._entries.get(token)
        if entry is None:
            return ""
        line = _undone(entry)
        self.done(token)
        return line

    def close(self) -> list[str]:
        """Undo what is left, last first, and return what was done; what cannot be undone stays for the next start."""
        if self._descriptor < 0 or os.getpid() != self._owner:  # a forked child must not undo its parent's changes
            return []
        lines = _undo_all(list(self._entries.values()), self.done)
        os.close(self._descriptor)
        self._descriptor = -1
        atexit.unregister(self.close)
        if not self._entries:
            self.path.unlink(missing_ok=True)
        return lines

    def _append(self, row: Mapping[str, object]) -> None:
        os.write(self._descriptor, json.dumps(row).encode() + b"\n")
        os.fsync(self._descriptor)


def _new_file(home: Path, stem: str) -> tuple[Path, int]:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for number in range(1000):
        path = home / f"{stem}-{number}.jsonl"
        with suppress(FileExistsError):
            return path, os.open(path, flags, 0o600)
    raise HarnessError(f"1000 journals named {stem} in {home}", "a few")


def boot_id() -> str:
    """Return the kernel's identifier of this boot, or ""."""
    return (procfs.try_text("/proc/sys/kernel/random/boot_id") or "").strip()


def recover(folder: Path | None = None) -> list[str]:
    """Undo the journals whose owner has died, and return one line for each thing undone or left over.

    Raises:
        UnsupportedHostError: the state folder is not private to this user.
    """
    home = _private(folder) if folder else state_dir()
    lines: list[str] = []
    for path in sorted(home.glob("journal-*.jsonl")):
        lines += _recover_one(path)
    return lines


def _recover_one(path: Path) -> list[str]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    with os.fdopen(descriptor, "r+", encoding="utf-8", errors="replace") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
            return [f"{path} is not a file of ours: left alone"]
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return []
        header, entries = _parse_journal(file.read())
        if _owner_lives(header):
            return []
        if header.get("boot") not in {"", None, boot_id()}:
            entries = []  # nothing that we change survives a reboot
        left = {entry.token for entry in entries}
        lines = _undo_all(entries, left.discard)
        if not left:
            path.unlink(missing_ok=True)
    return lines


def _parse_journal(text: str) -> tuple[Mapping[str, object], list[_Entry]]:
    header: Mapping[str, object] = {}
    entries: dict[str, _Entry] = {}
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # the last line, cut short by the crash: its change was not made yet
            continue
        if "owner" in row:
            header = row
        elif "do" in row and row.get("kind") in _UNDO:
            entries[row["do"]] = _Entry(row["do"], row["kind"], row["undo"])
        elif "done" in row:
            entries.pop(row["done"], None)
    return header, list(entries.values())


def _owner_lives(header: Mapping[str, object]) -> bool:
    owner, ticks = header.get("owner"), header.get("start_ticks")
    if not isinstance(owner, int):
        return False
    found = procfs.process_id(owner)
    return found is not None and (found.start_ticks == ticks or not ticks)


def _undone(entry: _Entry) -> str:
    try:
        return _UNDO[entry.kind](**entry.undo)
    except (OSError, MoetierError, TypeError) as error:
        raise HarnessError(
            f"could not undo {entry.kind} {dict(entry.undo)}: {error}", "the host as it was", "undo it by hand"
        ) from error


def _undo_all(entries: list[_Entry], done: Callable[[str], None]) -> list[str]:
    lines = []
    for entry in reversed(entries):
        try:
            line = _undone(entry)
        except HarnessError as error:
            line = str(error)
        else:
            done(entry.token)
        lines += [line] if line else []
    return lines


@dataclass(frozen=True, slots=True)
class Dropped:
    """How the page cache was dropped, and the bytes of the given files still resident (None: unobservable)."""

    how: str
    resident_bytes: int | None


def drop_caches(files: Iterable[str | Path] = ()) -> Dropped:
    """Drop the page cache: the whole machine's as root (sync, then 3), else the given ``files`` one by one by fadvise.

    Returns what is still resident of ``files``: about 0 is expected, the caller judges.
    """
    paths = list(files)
    guest = current().facts is not None
    if (guest or os.geteuid() == 0) and procfs.writable(_DROP_CACHES):
        if not guest:
            os.sync()
        if procfs.try_write(_DROP_CACHES, "3"):
            return Dropped("drop_caches", _total(_rest(path) for path in paths))
    return Dropped("fadvise", _total([residency.drop_file(path) for path in paths]))


def _rest(path: str | Path) -> int | None:
    """Return what is still resident; pages held in per-CPU batches outlive drop_caches on 6.1, but not fadvise."""
    left = residency.resident_bytes(path)
    return residency.drop_file(path) if left else left


def _total(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    return None if any(size is None for size in known) else sum(size for size in known if size is not None)
