"""One protocol for the three mechanisms that enforce a capacity: wall, balloon, boot (paper section 4, Algorithm 1).

Each is a context manager. It says how the replayer is started, applies the capacity once the replayer has touched its
destinations and waits, watches during the run, and says at the end what it saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_moetier.errors import UnsupportedHostError
from pytest_moetier.host import procfs
from pytest_moetier.host.balloon import Balloon, check_target, inflate_to, mem_available_bytes
from pytest_moetier.host.cgroup import Scope, ScopeFiles, create_scope
from pytest_moetier.host.memboot import check_booted, memboot_support, tolerance_bytes
from pytest_moetier.host.restore import Journal
from pytest_moetier.host.snapshot import ScopeCounters, capture_paths, parse, take
from pytest_moetier.units import PAGE_BYTES, format_bytes

_KERNEL_BYTES_PER_FILE = 2048
"""Inode, dentry, open file and page-cache tree of one pool file, charged to the scope that opens it."""
_KERNEL_SHARE = 1 / 256
"""Page-cache tree nodes and the per-CPU charge batches, as a share of the capacity."""
_KERNEL_BASE_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class HostContext:
    """What the mechanisms need of the session.

    Attributes:
        journal: where changes to the host are recorded before they are made; None in a guest, which ends with them.
        reserve_bytes: available memory that a balloon never takes.
        pool_files: files that the replayer opens, each with its kernel memory.
        balloon: the balloon's executable.
    """

    journal: Journal | None
    reserve_bytes: int
    pool_files: int
    balloon: Path

    @property
    def mem_total_bytes(self) -> int:
        """MemTotal of the host."""
        return procfs.parse_meminfo(procfs.read_text("/proc/meminfo"))["MemTotal"]


@dataclass(frozen=True, slots=True)
class Enforced:
    """What was set before the warm pass; None where the mechanism has no such thing.

    Attributes:
        scope: the scope's files.
        scope_identity: (device, inode) of the scope.
        slack_bytes: the replayer's own memory in the scope, on top of the capacity.
        limit_bytes: the wall as read back.
        locked_bytes: what the balloon was asked to lock.
        locked_bytes_observed: its VmLck.
        available_bytes: MemAvailable before the warm pass.
        target_bytes: what it was to be: the capacity less what the replayer had taken of it.
        tolerance_bytes: how far it may be from the capacity.
    """

    available_bytes: int
    scope: ScopeFiles | None = None
    scope_identity: tuple[int, int] | None = None
    slack_bytes: int | None = None
    limit_bytes: int | None = None
    locked_bytes: int | None = None
    locked_bytes_observed: int | None = None
    target_bytes: int | None = None
    tolerance_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """What was seen when the replay had ended: ``problem`` is why the enforcement was lost, or None."""

    problem: str | None = None
    scope_identity: tuple[int, int] | None = None
    locked_bytes: int | None = None


class Enforcer(Protocol):
    """A mechanism at work on one run."""

    def scope_files(self) -> ScopeFiles | None:
        """Return the scope whose files are captured at the pass's borders, or None."""

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that starts ``argv`` where the mechanism wants it."""

    def apply(self, pid: int, budgeted_bytes: int = 0) -> Enforced:
        """Enforce the capacity on the waiting replayer ``pid``, which has already taken ``budgeted_bytes`` of it.

        What it has taken (a locked arena, a user-space cache) is paid for by the capacity, not on top of it.
        """

    def watch(self) -> str | None:
        """Return why the capacity is no longer enforced, or None."""

    def ending(self) -> Ending:
        """Return what is seen once the replay has ended."""


class _Wall:
    """A memory control group with memory.max = C + slack, swap 0."""

    def __init__(self, capacity_bytes: int, host: HostContext, scope: Scope) -> None:
        self._capacity_bytes = capacity_bytes
        self._host = host
        self._scope = scope
        self._pid = 0
        self._problem: str | None = None

    def scope_files(self) -> ScopeFiles:
        return self._scope.files

    def argv(self, argv: Sequence[str]) -> list[str]:
        return self._scope.enter_argv(argv)

    def apply(self, pid: int, budgeted_bytes: int = 0) -> Enforced:
        self._pid = pid
        own = max(0, _own_bytes(self._counters()) - budgeted_bytes)
        slack = own + self._host.pool_files * _KERNEL_BYTES_PER_FILE + _KERNEL_BASE_BYTES
        slack += round(self._capacity_bytes * _KERNEL_SHARE)
        limit = self._scope.set_limit(-(-(self._capacity_bytes + slack) // PAGE_BYTES) * PAGE_BYTES)
        return Enforced(
            available_bytes=mem_available_bytes(),
            scope=self._scope.files,
            scope_identity=self._scope.identity,
            slack_bytes=slack,
            limit_bytes=limit,
        )

    def _counters(self) -> ScopeCounters:
        files = self._scope.files
        counters = parse(take(capture_paths((), files), "ready"), (), files).scope
        if counters is None:
            raise UnsupportedHostError(f"{self._scope.path} cannot be read", "a readable memory control group")
        return counters

    def watch(self) -> str | None:
        if self._problem is None and not self._scope.exists():
            self._problem = f"the scope {self._scope.path} was removed during the run"
        elif self._problem is None and self._pid not in self._scope.pids() and procfs.process_id(self._pid):
            self._problem = f"the replayer (pid {self._pid}) was moved out of {self._scope.path} during the run"
        return self._problem

    def ending(self) -> Ending:
        identity = self._scope.identity if self._scope.exists() else None
        return Ending(problem=self._problem, scope_identity=identity)


def _own_bytes(counters: ScopeCounters) -> int:
    return (counters.anon_bytes or 0) + (counters.kernel_bytes or 0)


class _Inflated:
    """A balloon: anonymous memory locked until MemAvailable is at C."""

    def __init__(self, capacity_bytes: int, host: HostContext) -> None:
        self._capacity_bytes = capacity_bytes
        self._host = host
        self.balloon: Balloon | None = None

    def scope_files(self) -> None:
        return None

    def argv(self, argv: Sequence[str]) -> list[str]:
        return list(argv)

    def apply(self, pid: int, budgeted_bytes: int = 0) -> Enforced:
        del pid  # the whole host is confined, the replayer with it
        host, target = self._host, self._capacity_bytes - budgeted_bytes
        self.balloon = inflate_to(host.balloon, target, host.reserve_bytes, journal=host.journal)
        return Enforced(
            available_bytes=mem_available_bytes(),
            locked_bytes=self.balloon.requested_bytes,
            locked_bytes_observed=self.balloon.locked_bytes,
            target_bytes=target,
            tolerance_bytes=tolerance_bytes(self._capacity_bytes),
        )

    def watch(self) -> str | None:
        if self.balloon is None or self.balloon.alive():
            return None
        return f"the balloon did not hold: {self.balloon.released_reason or 'its process ended'}"

    def ending(self) -> Ending:
        return Ending(problem=self.watch(), locked_bytes=self.balloon.locked_bytes if self.balloon else 0)


class _Booted:
    """A kernel that was booted with mem=: nothing to set, MemAvailable to be verified.

    It is verified once the replayer has touched its destinations, as a balloon is inflated then: they are not cache.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes

    def scope_files(self) -> None:
        return None

    def argv(self, argv: Sequence[str]) -> list[str]:
        return list(argv)

    def apply(self, pid: int, budgeted_bytes: int = 0) -> Enforced:
        del pid
        target = self._capacity_bytes - budgeted_bytes
        return Enforced(
            available_bytes=memboot_support(target).available_bytes,
            target_bytes=target,
            tolerance_bytes=tolerance_bytes(self._capacity_bytes),
        )

    def watch(self) -> None:
        return None

    def ending(self) -> Ending:
        return Ending()


@contextmanager
def mechanism(name: str, capacity_bytes: int, host: HostContext) -> Iterator[Enforcer]:
    """Hold mechanism ``name`` (cgroup, balloon, memboot) at ``capacity_bytes`` for the length of the block.

    Raises:
        UnsupportedHostError: this host cannot enforce it, with what would make it so.
    """
    if name == "cgroup":
        if capacity_bytes >= host.mem_total_bytes:
            raise UnsupportedHostError(
                f"a wall of {format_bytes(capacity_bytes)} is above this host's RAM", "a capacity below MemTotal"
            )
        scope = create_scope("cell", host.journal)
        try:
            yield _Wall(capacity_bytes, host, scope)
        finally:
            scope.close()
    elif name == "balloon":
        check_target(capacity_bytes, host.reserve_bytes)
        inflated = _Inflated(capacity_bytes, host)
        try:
            yield inflated
        finally:
            if inflated.balloon is not None:
                inflated.balloon.close()
    else:
        check_booted(capacity_bytes)
        yield _Booted(capacity_bytes)
