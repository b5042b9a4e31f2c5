"""What to do about an alarm, in the paper's order, with the command for each on this host (paper section 5).

Confine the streaming reader in a memory-limited control group; shrink the locked region; benchmark the lru_gen toggle.
A remedy that cannot apply here says why.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_moetier.host import cgroup, mglru, procfs
from pytest_moetier.host.cgroup import ScopeFiles, Support
from pytest_moetier.units import format_bytes
from pytest_moetier.watch.sample import Sample

CONFINE, SHRINK, TOGGLE = "confine", "shrink", "toggle"
WHAT = {
    CONFINE: "confine the streaming reader in a memory-limited control group",
    SHRINK: "shrink the locked region",
    TOGGLE: "benchmark the lru_gen toggle",
}
CLEAN_LOCKED_SHARE = 0.74
"""Of RAM, the locked share at which the paper's host amplified nothing; at 81% it did (section 5)."""
_OF_AVAILABLE = 0.9
"""Of what is available, the wall: so that the reader meets it before the host has to reclaim."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Remedy:
    """One remedy.

    Attributes:
        name: confine, shrink or toggle.
        applies: whether it can be tried here.
        why: what it is based on, or why it cannot.
        commands: what to run, as root unless said otherwise.
    """

    name: str
    applies: bool
    why: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Process:
    """A process that reads or locks much."""

    pid: int
    command: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Here:
    """What the remedies depend on.

    Attributes:
        support: whether and how control groups can be had.
        mount: folder of the memory hierarchy, None without one.
        systemd: whether the service manager is systemd.
        scope: the watched group.
        limit_bytes: its limit.
        pids: the readers, as far as they are known.
        reader: who read most from devices since it started, where no reader is known.
        locker: who locks most.
        locked_bytes: locked memory of the host.
        memory_bytes: RAM.
        available_bytes: MemAvailable.
        mglru: on, off or absent.
        kernel: what ``--moetier-kernel`` takes to boot this host's kernel in a virtual machine, or ``newest``.
    """

    support: Support
    mount: Path | None
    systemd: bool
    scope: ScopeFiles | None
    limit_bytes: int | None
    pids: tuple[int, ...]
    reader: Process | None
    locker: Process | None
    locked_bytes: int | None
    memory_bytes: int | None
    available_bytes: int | None
    mglru: str
    kernel: str


def look_around(sample: Sample, scope: ScopeFiles | None, pids: tuple[int, ...]) -> Here:
    """Return what the remedies depend on, as it is now: asked once an alarm is raised, as it looks at every process."""
    support = cgroup.scope_support()
    known = scope is not None and procfs.exists(scope.path)
    return Here(
        support=support,
        mount=cgroup.memory_mount(),
        systemd=procfs.exists("/run/systemd/system"),
        scope=scope if known else None,
        limit_bytes=sample.limit_bytes,
        pids=pids,
        reader=None if pids else max(_readers(), key=lambda one: one.bytes, default=None),
        locker=max(_lockers(), key=lambda one: one.bytes, default=None),
        locked_bytes=sample.locked_bytes,
        memory_bytes=sample.memory_bytes,
        available_bytes=sample.available_bytes,
        mglru=mglru.current(),
        kernel=_this_kernel(),
    )


def remedies(here: Here) -> tuple[Remedy, ...]:
    """Return the remedies in the paper's order."""
    return _confine(here), _shrink(here), _toggle(here)


def _confine(here: Here) -> Remedy:
    if here.limit_bytes is not None and here.scope is not None:
        limit = format_bytes(here.limit_bytes, binary=True)
        return Remedy(CONFINE, applies=False, why=f"it is confined already: {here.scope.path} has a limit of {limit}")
    if not here.available_bytes:
        return Remedy(CONFINE, applies=False, why="/proc/meminfo has no MemAvailable: no limit can be named")
    limit_bytes = max(1, int(here.available_bytes * _OF_AVAILABLE) // _MIB) * _MIB
    why = f"the paper's were clean under it at every capacity; {limit_bytes} bytes are 90% of what is available"
    if here.scope is not None:
        name = "memory.max" if here.scope.version == 2 else "memory.limit_in_bytes"
        return Remedy(CONFINE, applies=True, why=why, commands=(_write(limit_bytes, f"{here.scope.path}/{name}"),))
    if not here.support.available or here.mount is None:
        why = f"no control group can be had here: {here.support.reason}; {here.support.fix}".rstrip("; ")
        return Remedy(CONFINE, applies=False, why=why)
    pids = here.pids or ((here.reader.pid,) if here.reader else ())
    if not here.pids and here.reader is not None:
        why += f"; {here.reader.pid} ({here.reader.command}) has read most from devices, --pid names another"
    if here.support.kind.startswith("systemd") or (here.systemd and here.support.kind == "v2"):
        return Remedy(
            CONFINE,
            applies=True,
            why=f"{why}; the reader is started again in it",
            commands=_unit(here, pids, limit_bytes),
        )
    why += "; pages that were read before stay charged elsewhere until they are dropped, so a fresh start is cleaner"
    return Remedy(CONFINE, applies=True, why=why, commands=tuple(_group(here, here.mount, pids, limit_bytes)))


def _unit(here: Here, pids: tuple[int, ...], limit_bytes: int) -> tuple[str, ...]:
    user = " --user" if here.support.kind == "systemd-user" else ""
    start = f"systemd-run{user} --scope -p MemoryMax={limit_bytes} -p MemorySwapMax=0 --"
    commands = [procfs.command_line(pid) for pid in pids if procfs.process_id(pid) is not None]
    return tuple(f"{start} {one}" for one in commands or ["COMMAND"])


def _group(here: Here, mount: Path, pids: tuple[int, ...], limit_bytes: int) -> Iterator[str]:
    folder = shlex.quote(f"{mount}/moe-reader")
    yield f"mkdir -p {folder}"
    if here.support.kind == "v2":
        yield f"echo +memory > {shlex.quote(str(mount))}/cgroup.subtree_control"
    yield _write(limit_bytes, f"{folder}/{'memory.max' if here.support.kind == 'v2' else 'memory.limit_in_bytes'}")
    yield from (_write(pid, f"{folder}/cgroup.procs") for pid in pids or ("PID",))


def _write(value: object, path: str) -> str:
    return f"echo {value} > {path}"


def _shrink(here: Here) -> Remedy:
    if here.locked_bytes is None or not here.memory_bytes:
        return Remedy(SHRINK, applies=False, why="how much is locked is not observed here")
    share = here.locked_bytes / here.memory_bytes
    clean = f"the paper's host amplified at 81% and not at {CLEAN_LOCKED_SHARE:.0%}"
    if share <= CLEAN_LOCKED_SHARE:
        return Remedy(SHRINK, applies=False, why=f"{share:.1%} of RAM is locked: {clean}")
    spare = here.locked_bytes - int(CLEAN_LOCKED_SHARE * here.memory_bytes)
    why = f"{share:.1%} of RAM is locked: {clean}, {format_bytes(spare, binary=True)} less"
    locker = here.locker
    if locker is None:
        return Remedy(SHRINK, applies=True, why=why, commands=("grep -H VmLck /proc/[0-9]*/status | sort -nk2 | tail",))
    keep = max(0, locker.bytes - spare) // _MIB * _MIB
    why += (
        f"; {locker.pid} locks {format_bytes(locker.bytes, binary=True)}: start it again with less, by its own option"
        " where it has one (CAP_IPC_LOCK is not held by the limit)"
    )
    command = f"setpriv --bounding-set=-ipc_lock prlimit --memlock={keep}:{keep} {locker.command}"
    return Remedy(SHRINK, applies=True, why=why, commands=(command,))


def _toggle(here: Here) -> Remedy:
    bench = f"pytest bench/ -k reclaim --moetier-kernel {shlex.quote(here.kernel)} --moetier-refuted=report"
    if here.mglru == mglru.ABSENT:
        return Remedy(TOGGLE, applies=False, why=f"{mglru.ENABLED} is absent: this kernel is built without MGLRU")
    if here.mglru == mglru.OFF:
        return Remedy(TOGGLE, applies=False, why="MGLRU is off already: the classic LRU reclaims here")
    why = "worth 2.6x in the paper's failing cell, and nothing under a wall: benchmark it before it is kept"
    return Remedy(
        TOGGLE, applies=True, why=why, commands=(bench, f"echo n > {mglru.ENABLED}", f"echo y > {mglru.ENABLED}")
    )


def _this_kernel() -> str:
    """Return how this host's own kernel is booted in a virtual machine, where its image lies where it is looked for."""
    release = os.uname().release
    image = f"/boot/vmlinuz-{release}"
    return f"{image}:/lib/modules/{release}" if procfs.exists(image) else "newest"


def _readers() -> Iterator[Process]:
    for pid in _others():
        read = procfs.parse_keyed(procfs.try_text(f"/proc/{pid}/io") or "").get("read_bytes", 0)
        if read:
            yield Process(pid, procfs.command_line(pid), read)


def _lockers() -> Iterator[Process]:
    for pid in _others():
        locked = procfs.parse_status(procfs.try_text(f"/proc/{pid}/status") or "").vmlck_bytes
        if locked:
            yield Process(pid, procfs.command_line(pid), locked)


def _others() -> Iterator[int]:
    """Yield every process but this one."""
    for entry in procfs.at("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            yield int(entry.name)
