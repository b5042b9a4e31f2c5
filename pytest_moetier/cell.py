"""A cell: one point of the matrix that a finding varies, and its id (paper section 4-7)."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_moetier.errors import InputError
from pytest_moetier.modes import FILLS, PREFETCH, Mode, mode_of
from pytest_moetier.units import Capacity

MECHANISMS = ("cgroup", "balloon", "memboot")
MGLRU_STATES = ("host", "on", "off")
WORKLOADS = ("single", "batch4", "small_box", "small_box_q2", "hit_cost")
SPINES = ("none", "plain", "locked")


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """What is varied from one measurement to the next.

    Attributes:
        finding: the finding the cell belongs to (``capacity``).
        capacity: the control target C.
        mechanism: how C is enforced, one of ``MECHANISMS``.
        mglru: ``host`` leaves the kernel's setting alone; ``on`` and ``off`` set and verify it.
        mode: where a hit's bytes come from, a word of ``modes.MODES``.
        prefetch: who reads ahead of the demand, one of ``modes.PREFETCH``.
        workload: what is replayed, one of ``WORKLOADS``: the session's pool and trace, four streams merged, or a
            temporary pool of its own.
        fill: how the warm pass reads, one of ``modes.FILLS``, or "" for as the measured pass does.
        spine: dense weights read once an iteration: ``none``, ``plain`` or ``locked``.
        read_limit: bytes a second that the device may be read at, 0 for no limit.
        kernel: ``host``, or the kernel a guest is booted with.
    """

    finding: str
    capacity: Capacity
    mechanism: str = "cgroup"
    mglru: str = "host"
    mode: str = "page_cache"
    prefetch: str = "none"
    workload: str = "single"
    fill: str = ""
    spine: str = "none"
    read_limit: int = 0
    kernel: str = "host"

    def __post_init__(self) -> None:
        """Refuse a word that is not in the vocabulary, naming the ones that are, and what cannot go together."""
        for name, value, known in (
            ("mechanism", self.mechanism, MECHANISMS),
            ("mglru", self.mglru, MGLRU_STATES),
            ("prefetch", self.prefetch, PREFETCH),
            ("workload", self.workload, WORKLOADS),
            ("spine", self.spine, SPINES),
            ("fill", self.fill, ("", *FILLS)),
        ):
            if value not in known:
                raise InputError(f"{name} {value!r} is unknown", "one of " + ", ".join(filter(None, known)))
        if self.prefetch != "none" and not self.reading.cached:
            raise InputError(
                f"mode {self.mode} with prefetch {self.prefetch}", "a mode that reads through the page cache"
            )
        if self.reading.writes and self.workload != "small_box":
            raise InputError(f"mode {self.mode} on workload {self.workload}", "small_box, whose pool is thrown away")
        if self.expects_oom and self.mechanism != "cgroup":
            raise InputError(f"mode {self.mode} under {self.mechanism}", "cgroup, which alone confines the kill")

    @property
    def reading(self) -> Mode:
        """The mode that its word names."""
        return mode_of(self.mode)

    @property
    def expects_oom(self) -> bool:
        """Whether the wall's out-of-memory kill is what must be proved."""
        return self.reading.expects_oom

    @property
    def id(self) -> str:
        """The parametrisation id: usable with ``-k``; words at their default are left out after the mechanism."""
        words = [self.capacity.id, self.mechanism, f"mglru_{self.mglru}"]
        words += [self.workload] if self.workload != "single" else []
        words += [self.mode] if self.mode != "page_cache" else []
        words += [self.prefetch] if self.prefetch != "none" else []
        words += [f"fill_{self.fill}"] if self.fill else []
        words += [f"spine_{self.spine}"] if self.spine != "none" else []
        rate = f"{self.read_limit / 1e6:.6f}".rstrip("0").rstrip(".").replace(".", "_")  # to the byte: ids are unique
        words += [f"{rate}MBps"] if self.read_limit else []
        words += [f"kernel_{self.kernel}"] if self.kernel != "host" else []
        return "-".join(words)
