"""The capacity wall: a memory control group with a limit and no swap (paper section 4, Algorithm 1: memory.max).

One protocol, two kernels' interfaces: v2 (``memory.max``) where the memory controller is on the unified hierarchy, else
v1 (``memory.limit_in_bytes``). A mounted cgroup2 without ``memory`` in its controllers is not v2 mode (hybrid hosts).
Where only a service manager may make groups, it is asked for a scope unit (``systemd-run --scope``).
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_moetier.errors import HarnessError, InputError, UnsupportedHostError
from pytest_moetier.host import procfs, undo
from pytest_moetier.host.restore import Journal

_UNLIMITED = 1 << 62  # v1 says 2^63 rounded down to a page where there is no limit
_SWAP_MARGIN_BYTES = 4 << 20  # above the largest single charge (a 2 MiB folio)
_FIX = (
    "run as root, or give this user a delegated group with the memory controller, or a systemd user session "
    "(`loginctl enable-linger`)"
)
_ROOT_FIX = (
    "mount it writable (`mount -o remount,rw`), or leave the container (docker: --privileged --cgroupns=host keeps it"
    " writable)"
)
_SYSTEMD_SECONDS = 10.0
_V1_FILES = (
    "memory.usage_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.limit_in_bytes",
    "memory.failcnt",
    "memory.memsw.limit_in_bytes",
    "memory.kmem.usage_in_bytes",
    "memory.oom_control",
    "memory.swappiness",
    "memory.stat",
)
_V2_FILES = (
    "memory.current",
    "memory.peak",
    "memory.max",
    "memory.high",
    "memory.swap.current",
    "memory.swap.max",
    "memory.events",
    "memory.stat",
    "memory.pressure",
)


@dataclass(frozen=True, slots=True)
class ScopeFiles:
    """Which files describe a scope and the limits above it.

    Attributes:
        version: 1 or 2.
        path: the group's folder.
        ancestors: the folders above it that may have a limit, nearest first, without the hierarchy's own root on v2.
    """

    version: int
    path: str
    ancestors: tuple[str, ...] = ()

    @classmethod
    def from_paths(cls, paths: Sequence[str]) -> ScopeFiles | None:
        """Return the description that ``capture_files`` was made from, None for no paths."""
        if not paths:
            return None
        folders = list(dict.fromkeys(str(Path(path).parent) for path in paths))
        version = 1 if Path(paths[0]).name == _V1_FILES[0] else 2
        return cls(version, folders[0], tuple(folders[1:]))

    def capture_files(self) -> tuple[str, ...]:
        """Return the files to capture, the scope's own and each ancestor's limit and hits."""
        own = _V1_FILES if self.version == 1 else _V2_FILES
        above = (
            ("memory.failcnt", "memory.limit_in_bytes") if self.version == 1 else ("memory.events.local", "memory.max")
        )
        mine = tuple(f"{self.path}/{name}" for name in own)
        return mine + tuple(f"{folder}/{name}" for folder in self.ancestors for name in above)


class Scope(Protocol):
    """A memory control group of ours."""

    version: int
    path: Path
    identity: tuple[int, int]
    notes: tuple[str, ...]

    @property
    def files(self) -> ScopeFiles:
        """The files that describe it, for snapshots."""

    def capture_files(self) -> tuple[str, ...]:
        """Return the files to capture."""

    def add(self, pid: int) -> None:
        """Move one process (all its threads) in."""

    def enter_argv(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that starts ``argv`` inside, before its first allocation."""

    def set_limit(self, limit_bytes: int) -> int:
        """Set the wall in bytes and return it as read back (rounded to pages)."""

    def disable_swap(self) -> bool:
        """Keep the group from swapping; False, with a note, where that cannot be assured."""

    def pids(self) -> tuple[int, ...]:
        """Return the processes in it."""

    def exists(self) -> bool:
        """Return whether it is still the same group (device and inode)."""

    def close(self) -> None:
        """End what is left in it, give its pages back and remove it."""


class _Group:
    """What both versions share."""

    version = 0

    def __init__(self, path: Path, ancestors: tuple[Path, ...], journal: Journal | None, token: str) -> None:
        self.path = path
        self.ancestors = ancestors
        self.notes: tuple[str, ...] = ()
        self._journal = journal
        self._token = token
        found = procfs.identity(path)
        if found is None:
            raise HarnessError(f"control group {path} is gone", "it to stay while it is used")
        self.identity = found

    @property
    def files(self) -> ScopeFiles:
        return ScopeFiles(self.version, str(self.path), tuple(str(folder) for folder in self.ancestors))

    def capture_files(self) -> tuple[str, ...]:
        return self.files.capture_files()

    def add(self, pid: int) -> None:
        procfs.write_text(self.path / "cgroup.procs", str(pid))
        if pid not in self.pids() and procfs.process_id(pid) is not None:
            raise HarnessError(f"process {pid} is not in {self.path} after the move", "it to be listed in cgroup.procs")

    def enter_argv(self, argv: Sequence[str]) -> list[str]:
        # What was charged elsewhere is not recharged by a later move.
        return ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.path), *argv]

    def pids(self) -> tuple[int, ...]:
        return undo.group_pids(self.path)

    def exists(self) -> bool:
        return procfs.identity(self.path) == self.identity

    def close(self) -> None:
        try:
            if self.exists():
                undo.remove_group(str(self.path))
        except OSError as error:
            raise HarnessError(
                f"control group {self.path} cannot be removed: {error}", "no process left in it", "moetier doctor"
            ) from error
        if self._journal is not None:
            self._journal.done(self._token)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes = (*self.notes, text)


class ScopeV1(_Group):
    """A group of the v1 memory hierarchy."""

    version = 1

    def set_limit(self, limit_bytes: int) -> int:
        """Set memory and memory+swap limits; the kernel holds memory <= memory+swap at every moment."""
        limit, both = self.path / "memory.limit_in_bytes", self.path / "memory.memsw.limit_in_bytes"
        # The memory+swap counter is charged first, and newer kernels count no failures on it: were the two equal, the
        # wall would be reached without a trace in failcnt.
        values = {limit: limit_bytes, both: limit_bytes + _SWAP_MARGIN_BYTES}
        order = [limit, both] if limit_bytes < procfs.read_int(limit) else [both, limit]
        for path in order:
            if path == limit or procfs.exists(path):
                procfs.write_text(path, str(values[path]))
        return _read_back(limit, limit_bytes)

    def disable_swap(self) -> bool:
        """Set swappiness 0; with memory+swap accounting ``set_limit`` also bounds swap to 4 MiB."""
        done = procfs.try_write(self.path / "memory.swappiness", "0")
        if _swap_is_on() and not procfs.exists(self.path / "memory.memsw.limit_in_bytes"):
            self._note("swap is on and there is no memory+swap accounting: `swapoff -a`, or boot with swapaccount=1")
            return False
        return done or not _swap_is_on()


class ScopeV2(_Group):
    """A group of the unified hierarchy."""

    version = 2

    def set_limit(self, limit_bytes: int) -> int:
        """Set memory.max."""
        path = self.path / "memory.max"
        procfs.write_text(path, str(limit_bytes))
        return _read_back(path, limit_bytes)

    def disable_swap(self) -> bool:
        """Set memory.swap.max 0 (absent where the kernel has no swap)."""
        if not procfs.exists(self.path / "memory.swap.max"):
            if _swap_is_on():
                self._note("swap is on and memory.swap.max is absent: `swapoff -a`")
            return not _swap_is_on()
        procfs.write_text(self.path / "memory.swap.max", "0")
        return True


class ScopeSystemd(ScopeV2):
    """A scope unit of systemd's, kept alive by a holder that ends with this process (its standard input closes)."""

    def __init__(self, unit: str, holder: subprocess.Popen[bytes], journal: Journal | None, *, user: bool) -> None:
        """Find the group that the service manager has made for the holder."""
        self._unit = unit
        self._holder = holder
        self._manager = ["--user"] if user else []
        hierarchy, path = _group_of_holder(holder)
        found = procfs.process_id(holder.pid)
        token = ""
        if journal is not None and found is not None:
            token = journal.record("process", pid=found.pid, start_ticks=found.start_ticks, comm=found.comm)
        super().__init__(path, _ancestors(hierarchy, path), journal, token)

    def set_limit(self, limit_bytes: int) -> int:
        """Set MemoryMax at the manager, which would else write its own value over ours."""
        self._ask(["systemctl", *self._manager, "set-property", "--runtime", self._unit, f"MemoryMax={limit_bytes}"])
        return _read_back(self.path / "memory.max", limit_bytes)

    def disable_swap(self) -> bool:
        """Say whether MemorySwapMax=0, given when the unit was made, holds."""
        return procfs.try_int(self.path / "memory.swap.max") == 0 or not _swap_is_on()

    def add(self, pid: int) -> None:
        """Ask the manager to move the process: its group's common ancestor is not ours to write."""
        self._ask([*self._attach(), str(pid)])

    def enter_argv(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that has the manager move it before it becomes ``argv``."""
        return ["/bin/sh", "-c", f'{shlex.join(self._attach())} $$ >/dev/null && exec "$@"', "moetier", *argv]

    def close(self) -> None:
        """Stop the unit, which ends what is left in it, and let the holder go."""
        self._ask(["systemctl", *self._manager, "stop", self._unit], check=False)
        _let_go(self._holder)
        if self._journal is not None:
            self._journal.done(self._token)

    def _attach(self) -> list[str]:
        name = "org.freedesktop.systemd1"
        call = [name, "/org/freedesktop/systemd1", f"{name}.Manager", "AttachProcessesToUnit", "ssau"]
        return ["busctl", *self._manager, "call", *call, self._unit, "", "1"]

    @staticmethod
    def _ask(command: list[str], *, check: bool = True) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise HarnessError(f"`{shlex.join(command)}`: {done.stderr.strip()}", "the service manager to do it")


def _group_of_holder(holder: subprocess.Popen[bytes]) -> tuple[_Hierarchy, Path]:
    until = time.monotonic() + _SYSTEMD_SECONDS
    while time.monotonic() < until and holder.poll() is None:
        try:
            return _systemd_group(holder.pid)
        except HarnessError:
            time.sleep(0.02)
    if holder.poll() is not None:
        said = b"" if holder.stderr is None else holder.stderr.read()
        raise UnsupportedHostError(
            f"systemd-run: {' '.join(said.decode(errors='replace').split()) or f'ended with {holder.returncode}'}",
            "a scope of the service manager",
            _FIX,
        )
    return _systemd_group(holder.pid)


def _systemd_scope(name: str, journal: Journal | None, *, user: bool) -> Scope:
    command = [*systemd_prefix(name, None, user=user), "/bin/sh", "-c", "read _"]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        return ScopeSystemd(f"{name}.scope", holder, journal, user=user)
    except BaseException:
        holder.kill()
        _let_go(holder)
        raise


def _let_go(holder: subprocess.Popen[bytes]) -> None:
    """Wait for the end of the holder, whose standard input is what keeps it."""
    if holder.stdin is not None:
        holder.stdin.close()
    try:
        holder.wait(_SYSTEMD_SECONDS)
    except subprocess.TimeoutExpired:
        holder.kill()
        holder.wait()
    if holder.stderr is not None:
        holder.stderr.close()


def _read_back(path: Path, wanted: int) -> int:
    seen = procfs.read_int(path)
    page = os.sysconf("SC_PAGE_SIZE")
    if not wanted - page <= seen <= wanted + page:
        raise HarnessError(f"{path} reads back {seen}", f"{wanted} bytes as written, rounded to a page")
    return seen


def _swap_is_on() -> bool:
    return len((procfs.try_text("/proc/swaps") or "").splitlines()) > 1


@dataclass(frozen=True, slots=True)
class Support:
    """Whether and how control groups can be had here.

    Attributes:
        kind: ``v2``, ``v1``, ``systemd`` (system bus), ``systemd-user``, or ``none``.
        reason: what was seen.
        fix: what would make it so, "" where nothing is missing.
    """

    kind: str
    reason: str
    fix: str = ""

    @property
    def available(self) -> bool:
        """Whether a scope can be had by one of the ways."""
        return self.kind != "none"


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    version: int
    mount: Path
    own: Path  # this process's group


def _hierarchies() -> tuple[_Hierarchy, ...]:
    """Return the hierarchies with a memory controller, v2 first."""
    found = []
    for mount in procfs.mounts():
        point = Path(mount.point)
        if mount.kind == "cgroup2":
            controllers = (procfs.try_text(point / "cgroup.controllers") or "").split()
            if "memory" in controllers:
                found.append(_Hierarchy(2, point, _own_group(point, mount.root, "")))
        elif mount.kind == "cgroup" and "memory" in mount.super_options:
            found.append(_Hierarchy(1, point, _own_group(point, mount.root, "memory")))
    return tuple(sorted(found, key=lambda item: -item.version))


def memory_mount() -> Path | None:
    """Return where the hierarchy with a memory controller is mounted, v2 first; None without one."""
    return next((one.mount for one in _hierarchies()), None)


def find_group(word: str) -> ScopeFiles:
    """Return the memory control group that a user names: its folder, its path in the hierarchy, or its name alone.

    Raises:
        InputError: there is no such group, or several have the name.
        UnsupportedHostError: no hierarchy has a memory controller.
    """
    hierarchies = _hierarchies()
    if not hierarchies:
        raise UnsupportedHostError("no control group hierarchy with a memory controller is mounted", "one", _FIX)
    for hierarchy in hierarchies:
        mount = hierarchy.mount
        inside = Path(word).relative_to(mount) if Path(word).is_relative_to(mount) else Path(word.lstrip("/"))
        if ".." not in inside.parts and procfs.exists(mount / inside / "memory.stat"):
            return ScopeFiles(hierarchy.version, str(mount / inside))
    found = [
        ScopeFiles(hierarchy.version, f"{hierarchy.mount}/{entry.relative_to(procfs.at(hierarchy.mount))}")
        for hierarchy in hierarchies
        for entry in (procfs.at(hierarchy.mount).rglob(glob.escape(word)) if word and "/" not in word else ())
        if (entry / "memory.stat").exists()
    ]
    if len(found) == 1:
        return found[0]
    several = f"several control groups are named {word!r}: {', '.join(one.path for one in found[:4])}"
    raise InputError(
        several if found else f"no memory control group {word!r}",
        f"the folder of one below {hierarchies[0].mount}",
        f"ls {hierarchies[0].mount}, or systemd-cgls",
    )


def _own_group(point: Path, root: str, controller: str) -> Path:
    return group_of("self", point, root, controller)


def group_of(pid: int | str, point: Path, root: str, controller: str) -> Path:
    """Return the folder of a process's group, in the hierarchy of a controller ("" for v2) mounted at ``point``.

    ``root`` is what of the hierarchy is mounted there.
    """
    for line in (procfs.try_text(f"/proc/{pid}/cgroup") or "").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            inside = os.path.relpath(path, root)
            # A path above the mount's root (a container's view of its host) shows as "..": the mount is then our own.
            return point if inside.startswith("..") or inside == "." else point / inside
    return point


def _parents(hierarchy: _Hierarchy) -> tuple[Path, ...]:
    """Return where a scope may be made, best first: the root (no limit above), then down to our own group."""
    chain = [hierarchy.own, *hierarchy.own.parents]
    inside = [folder for folder in chain if folder == hierarchy.mount or hierarchy.mount in folder.parents]
    return tuple(folder for folder in reversed(inside) if _may_make(hierarchy.version, folder))


def _may_make(version: int, folder: Path) -> bool:
    if not procfs.writable(folder):
        return False
    if version == 1:
        return True
    # A process may only be moved by who may write the common ancestor's cgroup.procs.
    if not procfs.writable(folder / "cgroup.procs"):
        return False
    enabled = (procfs.try_text(folder / "cgroup.subtree_control") or "").split()
    available = (procfs.try_text(folder / "cgroup.controllers") or "").split()
    return "memory" in enabled or ("memory" in available and procfs.writable(folder / "cgroup.subtree_control"))


def scope_support() -> Support:
    """Return whether a memory control group can be made here, and by which way."""
    hierarchies = _hierarchies()
    for hierarchy in hierarchies:
        if parents := _parents(hierarchy):
            beside = _other_unified(hierarchy)
            return Support(f"v{hierarchy.version}", f"cgroup v{hierarchy.version} at {parents[0]}{beside}")
    if any(hierarchy.version == 2 for hierarchy in hierarchies):
        # The system's manager answers anyone, but makes scopes for root alone; a user has a manager of their own.
        user = os.geteuid() != 0
        if _bus_answers(user=user):
            kind = "systemd-user" if user else "systemd"
            return Support(kind, f"{kind} makes scopes (systemd-run --scope)")
    if not hierarchies:
        return Support(
            "none",
            "no control group hierarchy with a memory controller is mounted",
            "mount one, or boot with cgroup_enable=memory",
        )
    place = hierarchies[0]
    fix = _FIX if os.geteuid() != 0 else _ROOT_FIX
    return Support("none", f"cgroup v{place.version} at {place.mount} is not writable by uid {os.geteuid()}", fix)


def _other_unified(chosen: _Hierarchy) -> str:
    if chosen.version == 2:
        return ""
    for mount in procfs.mounts():
        if mount.kind == "cgroup2":
            return f" (the cgroup2 at {mount.point} has no memory controller)"
    return ""


def create_scope(label: str, journal: Journal | None = None) -> Scope:
    """Make an empty memory control group named ``moetier-<pid>-<label>``, near the root, swap disabled.

    Args:
        label: letters, digits, ``_`` and ``-``; anything else becomes ``_``.
        journal: where it is recorded before it is made.

    Raises:
        UnsupportedHostError: no hierarchy with a memory controller may be written here.
    """
    name = _scope_name(label)
    refused = ""
    for hierarchy in _hierarchies():
        for parent in _parents(hierarchy):
            try:
                return _make(hierarchy, parent, name, journal)
            except (OSError, UnsupportedHostError, HarnessError) as error:
                refused = refused or f"; {parent}: {error}"
    support = scope_support()
    if support.kind in {"systemd", "systemd-user"}:
        return _systemd_scope(name, journal, user=support.kind == "systemd-user")
    raise UnsupportedHostError(f"{support.reason}{refused}", "a writable memory controller", support.fix or _FIX)


def _make(hierarchy: _Hierarchy, parent: Path, name: str, journal: Journal | None) -> Scope:
    if hierarchy.version == 2 and "memory" not in procfs.read_text(parent / "cgroup.subtree_control").split():
        # Refused (EBUSY) where the parent holds processes; they are never moved. Left on: it harms nobody.
        procfs.write_text(parent / "cgroup.subtree_control", "+memory")
    path = parent / name
    if procfs.exists(path):
        undo.remove_group(str(path))
    token = journal.record("cgroup", path=str(path)) if journal is not None else ""
    _make_folder(path)
    kind = ScopeV2 if hierarchy.version == 2 else ScopeV1
    scope = kind(path, _ancestors(hierarchy, path), journal, token)
    try:
        scope.disable_swap()
        limit = "memory.max" if hierarchy.version == 2 else "memory.limit_in_bytes"
        procfs.read_text(path / limit)
    except (UnsupportedHostError, HarnessError):
        scope.close()
        raise
    return scope


def _make_folder(path: Path) -> None:
    procfs.make_folder(path)


def _ancestors(hierarchy: _Hierarchy, path: Path) -> tuple[Path, ...]:
    above = [folder for folder in path.parents if folder == hierarchy.mount or hierarchy.mount in folder.parents]
    name = "memory.max" if hierarchy.version == 2 else "memory.limit_in_bytes"
    return tuple(folder for folder in above if procfs.exists(folder / name))


def ancestor_limit_bytes(files: ScopeFiles) -> int | None:
    """Return the lowest limit above a scope in bytes, None where there is none."""
    name = "memory.max" if files.version == 2 else "memory.limit_in_bytes"
    limits = [limit_of(procfs.try_text(f"{folder}/{name}")) for folder in files.ancestors]
    return min((limit for limit in limits if limit is not None), default=None)


def limit_of(text: str | None) -> int | None:
    """Return a limit file's bytes, None for no limit (``max``, or v1's 2^63 rounded down to a page)."""
    value = procfs.to_int(text)
    return None if value is None or value >= _UNLIMITED else value


def _scope_name(label: str) -> str:
    return f"{undo.PREFIX}{os.getpid()}-{re.sub(r'[^A-Za-z0-9_-]', '_', label)}"


def systemd_prefix(unit: str, limit_bytes: int | None, *, user: bool) -> tuple[str, ...]:
    """Return the start of a command line that runs the rest in the systemd scope ``unit``, walled and without swap."""
    manager = ("--user",) if user else ()
    limit = "infinity" if limit_bytes is None else str(limit_bytes)
    # A process can be moved later (AttachProcessesToUnit) into delegated units only.
    properties = ["MemoryAccounting=yes", "Delegate=yes", f"MemoryMax={limit}", "MemorySwapMax=0"]
    options = tuple(word for text in properties for word in ("-p", text))
    return ("systemd-run", *manager, "--scope", "--quiet", "--collect", f"--unit={unit}", *options, "--")


def scope_of_process(pid: int) -> Scope:
    """Return the v2 scope that a service manager has put ``pid`` in (``systemd_prefix``).

    Raises:
        HarnessError: the process is gone or is not in a scope of ours.
    """
    hierarchy, path = _systemd_group(pid)
    return ScopeV2(path, _ancestors(hierarchy, path), None, "")


def _systemd_group(pid: int) -> tuple[_Hierarchy, Path]:
    for mount in procfs.mounts():
        if mount.kind == "cgroup2":
            path = group_of(pid, Path(mount.point), mount.root, "")
            if path.name.startswith(undo.PREFIX):
                return _Hierarchy(2, Path(mount.point), path), path
    raise HarnessError(f"process {pid} is not in a scope named {undo.PREFIX}*", "the scope that systemd-run made")


def _bus_answers(*, user: bool) -> bool:
    if shutil.which("systemd-run") is None or shutil.which("systemctl") is None:
        return False
    command = ["systemctl", *(["--user"] if user else []), "show", "--property=Version"]
    try:
        return subprocess.run(command, capture_output=True, timeout=5, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
