"""A cell: one point of the matrix that a finding varies, and its id (paper section 4-7)."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_moetier.errors import InputError
from pytest_moetier.units import Capacity

MECHANISMS = ("cgroup", "balloon", "memboot")
MGLRU_STATES = ("host", "on", "off")
MODES = ("page_cache", "fadv_random", "mmap", "direct")
PREFETCH = ("none",)


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """What is varied from one measurement to the next.

    Attributes:
        finding: the finding the cell belongs to (``capacity``).
        capacity: the control target C.
        mechanism: how C is enforced, one of ``MECHANISMS``.
        mglru: ``host`` leaves the kernel's setting alone; ``on`` and ``off`` set and verify it.
        mode: where a hit's bytes come from, one of ``MODES``.
        prefetch: ``none``.
        kernel: ``host``, or the kernel a guest is booted with.
    """

    finding: str
    capacity: Capacity
    mechanism: str = "cgroup"
    mglru: str = "host"
    mode: str = "page_cache"
    prefetch: str = "none"
    kernel: str = "host"

    def __post_init__(self) -> None:
        """Refuse a word that is not in the vocabulary, naming the ones that are."""
        for name, value, known in (
            ("mechanism", self.mechanism, MECHANISMS),
            ("mglru", self.mglru, MGLRU_STATES),
            ("mode", self.mode, MODES),
            ("prefetch", self.prefetch, PREFETCH),
        ):
            if value not in known:
                raise InputError(f"{name} {value!r} is unknown", "one of " + ", ".join(known))

    @property
    def id(self) -> str:
        """The parametrisation id: usable with ``-k``; words at their default are left out after the mechanism."""
        words = [self.capacity.id, self.mechanism, f"mglru_{self.mglru}"]
        words += [self.mode] if self.mode != "page_cache" else []
        words += [self.prefetch] if self.prefetch != "none" else []
        words += [f"kernel_{self.kernel}"] if self.kernel != "host" else []
        return "-".join(words)
