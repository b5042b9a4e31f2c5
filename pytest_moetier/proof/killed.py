"""The proof of a run that was to end by the wall's out-of-memory kill, as moe-offload-bench's first design did."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Protocol

from pytest_moetier.host.enforce import Ending, Enforced
from pytest_moetier.host.snapshot import ScopeCounters
from pytest_moetier.proof.lines import Invariant, line


class Killed(Protocol):
    """A run that a signal ended, in a wall."""

    @property
    def enforced(self) -> Enforced:
        """What the wall was set to."""

    @property
    def ending(self) -> Ending:
        """What was seen of it at the end."""

    @property
    def scope(self) -> ScopeCounters | None:
        """The scope after the kill."""

    @property
    def signal(self) -> int:
        """The signal's number."""


def oom(run: Killed) -> Iterator[Invariant]:
    """A cell that expects it is proved by the wall's own kill: its count, its victim, and the limit it hit."""
    scope = run.scope
    kills = None if scope is None else scope.oom_kills
    yield line(
        "oom_killed",
        "1 out-of-memory kill in the scope or more",
        f"{kills}",
        ok=None if kills is None else kills >= 1,
    )
    yield line(
        "oom_victim",
        f"the replayer ended by {signal.Signals(signal.SIGKILL).name}",
        signal.Signals(run.signal).name,
        ok=run.signal == signal.SIGKILL,
    )
    limit = None if scope is None else scope.limit_bytes
    yield line(
        "limit_read_back",
        f"{run.enforced.limit_bytes} B after the kill",
        f"{limit} B",
        ok=None if limit is None else limit == run.enforced.limit_bytes,
    )
    hits = None if scope is None else scope.limit_hits
    yield line("wall_reached", "limit hit", f"{hits} hits", ok=None if hits is None else hits > 0)
    yield line(
        "scope_identity",
        f"one scope throughout ({run.enforced.scope_identity})",
        f"{run.ending.scope_identity}",
        ok=run.ending.scope_identity == run.enforced.scope_identity,
    )
