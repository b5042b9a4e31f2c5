"""The lines of a proof: what was expected, what was observed, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_moetier.errors import AccountingError
from pytest_moetier.plan import Plan
from pytest_moetier.replay import Run

HELD, BROKEN, UNOBSERVED, FLAGGED = "held", "broken", "unobserved", "flagged"

INVARIANTS = frozenset(
    {
        "scope",
        "limit_read_back",
        "scope_identity",
        "replayer_in_scope",
        "no_oom",
        "oom_killed",
        "oom_victim",
        "wall_reached",
        "peak_within_limit",
        "ancestor_limits",
        "slack",
        "balloon_locked",
        "balloon_alive",
        "balloon_target",
        "memboot_target",
        "replayer_vmlck",
        "own_memory",
        "own_memory_charged",
        "preload",
        "served_by_table",
        "served_by_user_cache",
        "prefetch_adds_up",
        "read_limit",
        "not_admitted",
        "mglru",
        "no_swap",
        "cache_dropped",
        "no_cache_drop",
        "charged_at_entry",
        "charged_at_exit",
        "delivered_warm",
        "delivered_measured",
        "stamps",
        "destinations",
        "device_two_witnesses",
        "foreign_share",
        "iostats",
        "inflight",
        "loop_direct_io",
        "image_not_resident",
        "belady_floor",
        "cold_factor",
        "over_logical",
        "refaults_cover_excess",
        "steady",
        "engine_backend",
        "engine_output",
        "engine_tokens",
        "engine_mapped",
        "engine_own_memory",
        "engine_choices",
        "engine_dropped",
        "spine_locked",
        "read_ahead",
        "damon_off",
    }
)
"""The name of every invariant, which a bound may need."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """One line of a proof.

    Attributes:
        name: stable name, used by bounds in ``needs``.
        state: ``held``, ``broken``, ``unobserved`` or ``flagged``.
        expected: what had to be true, with its unit.
        observed: what was seen, with its unit.
    """

    name: str
    state: str
    expected: str
    observed: str


@dataclass(frozen=True, slots=True)
class Proof:
    """The invariants of one run, in the order of the protocol."""

    invariants: tuple[Invariant, ...]

    @property
    def broken(self) -> tuple[Invariant, ...]:
        """The invariants that failed; empty for a proved run."""
        return self._in(BROKEN)

    @property
    def unobserved(self) -> tuple[str, ...]:
        """Names of the invariants that this host could not observe."""
        return tuple(one.name for one in self._in(UNOBSERVED))

    @property
    def flagged(self) -> tuple[str, ...]:
        """Names of the invariants that lower what may be claimed."""
        return tuple(one.name for one in self._in(FLAGGED))

    def _in(self, state: str) -> tuple[Invariant, ...]:
        return tuple(one for one in self.invariants if one.state == state)

    def require(self) -> None:
        """Raise AccountingError, naming every broken invariant, unless the run is proved."""
        if self.broken:
            seen = "; ".join(f"{one.name}: {one.observed} (expected {one.expected})" for one in self.broken)
            raise AccountingError(
                f"accounting not proved: {seen}", "", "the run was not stored; measure the cell again"
            )


def line(name: str, expected: str, observed: str, *, ok: bool | None, otherwise: str = BROKEN) -> Invariant:
    """Return one invariant; ``ok`` None means that the host did not let us see."""
    state = UNOBSERVED if ok is None else HELD if ok else otherwise
    return Invariant(name, state, expected, observed if ok is not None else "not observable on this host")


def largest(plan: Plan) -> int:
    """Return the bytes of the plan's largest expert."""
    return int(plan.expert_bytes.max())


def fills_the_cache(run: Run) -> bool:
    """Whether what the mode reads stays in the page cache: direct reads never enter it, dropped ones leave it."""
    return run.cell.reading.cached and run.cell.reading.native != "drop"
