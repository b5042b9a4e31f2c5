"""A cell: one point of the matrix that a finding varies, and its id (paper section 4-7)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_moetier.errors import InputError, UnsupportedHostError
from pytest_moetier.modes import FILLS, PREFETCH, Mode, mode_of
from pytest_moetier.units import Capacity

MECHANISMS = ("cgroup", "balloon", "memboot")
MGLRU_STATES = ("host", "on", "off")
RECLAIM = ("reclaim", "reclaim_l4", "reclaim_l16", "reclaim_l32", "reclaim_l92")
"""The ladder of scaled pools for the reclaim findings: alike but for layers and expert size (``workloads``)."""
RECLAIM_CAPACITY = "4.4%"
"""The capacity of a reclaim cell whose id names none: 64 GB of the paper's pool."""
WORKLOADS = ("single", "batch4", "small_box", "small_box_q2", "hit_cost", *RECLAIM)
SPINES = ("none", "plain", "locked")
FILESYSTEMS = ("ext4", "xfs")
HOST = "host"
"""The kernel that is running already; every other kernel is booted in a virtual machine, a guest."""
ACCELERATORS = ("auto", "kvm", "tcg")
LABEL = re.compile(r"[A-Za-z0-9._+-]+")
"""What the label of a kernel is made of: an id with it is usable with ``-k``."""
_MOST_READ_AHEAD_KB = 1 << 20


@dataclass(frozen=True, slots=True)
class KernelAsked:
    """A kernel that the user named.

    Attributes:
        label: what ids and tables call it; ``host`` for the one that is running.
        word: what it is looked for by: a version such as ``6.12``, or ``PATH[:MODULES]``.
    """

    label: str
    word: str


@dataclass(frozen=True, slots=True)
class GuestAsked:
    """What the user chose of the virtual machines.

    Attributes:
        memory_bytes: RAM; 0 for what a cell needs.
        cpus: virtual processors.
        accelerator: ``auto`` (KVM where it works), ``kvm`` or ``tcg``.
    """

    memory_bytes: int = 0
    cpus: int = 2
    accelerator: str = "auto"


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
        kernel: ``host``, or the label of the kernel that a guest is booted with.
        locked: per cent of the machine's RAM that the balloon locks, 0 for whatever the capacity leaves.
        read_ahead_kb: of the pool's device, in KiB, 0 for the kernel's default.
        filesystem: that the pool lies in, one of ``FILESYSTEMS``.
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
    kernel: str = HOST
    locked: int = 0
    read_ahead_kb: int = 0
    filesystem: str = "ext4"

    def __post_init__(self) -> None:
        """Refuse a word that is not in the vocabulary, naming the ones that are, and what cannot go together."""
        for name, value, known in (
            ("mechanism", self.mechanism, MECHANISMS),
            ("mglru", self.mglru, MGLRU_STATES),
            ("prefetch", self.prefetch, PREFETCH),
            ("workload", self.workload, WORKLOADS),
            ("spine", self.spine, SPINES),
            ("fill", self.fill, ("", *FILLS)),
            ("filesystem", self.filesystem, FILESYSTEMS),
        ):
            if value not in known:
                raise InputError(f"{name} {value!r} is unknown", "one of " + ", ".join(filter(None, known)))
        self._check_numbers()
        if self.prefetch != "none" and not self.reading.cached:
            raise InputError(
                f"mode {self.mode} with prefetch {self.prefetch}", "a mode that reads through the page cache"
            )
        if self.reading.writes and self.workload != "small_box":
            raise InputError(f"mode {self.mode} on workload {self.workload}", "small_box, whose pool is thrown away")
        if self.expects_oom and self.mechanism != "cgroup":
            raise InputError(f"mode {self.mode} under {self.mechanism}", "cgroup, which alone confines the kill")

    def _check_numbers(self) -> None:
        if not LABEL.fullmatch(self.kernel):
            raise InputError(f"kernel {self.kernel!r} is no label", "letters, digits, . _ + and -")
        if not 0 <= self.locked <= 99:
            raise InputError(f"locked {self.locked}", "per cent of RAM, 1 to 99, or 0 for what the capacity leaves")
        if self.locked and self.mechanism != "balloon":
            raise InputError(f"locked {self.locked} under {self.mechanism}", "balloon, which alone locks memory")
        if not 0 <= self.read_ahead_kb <= _MOST_READ_AHEAD_KB or self.read_ahead_kb % 4:
            raise InputError(
                f"read_ahead {self.read_ahead_kb}",
                f"KiB in whole pages of 4, up to {_MOST_READ_AHEAD_KB}, or 0 for the kernel's default",
            )

    @property
    def reading(self) -> Mode:
        """The mode that its word names."""
        return mode_of(self.mode)

    @property
    def expects_oom(self) -> bool:
        """Whether the wall's out-of-memory kill is what must be proved."""
        return self.reading.expects_oom

    @property
    def in_guest(self) -> bool:
        """Whether it is measured in a virtual machine."""
        return self.kernel != HOST

    @property
    def misplaced(self) -> str:
        """Why it cannot be measured where its kernel is; "" where it can.

        A guest reads the pool from a virtual disk that it may not write to, and whose rate the host does not limit. The
        host keeps its RAM, its device's read-ahead and its file system.
        """
        if self.in_guest:
            whys = {
                f"mode {self.mode} writes to the pool, which a guest may only read": self.reading.writes,
                "a read limit is one of the host's own device": bool(self.read_limit),
            }
        else:
            whys = {
                f"{self.locked}% of RAM locked at this capacity asks for a machine of another size": bool(self.locked),
                "the read-ahead of the host's device is left as it is": bool(self.read_ahead_kb),
                f"{self.filesystem} is that of a guest's virtual disk": self.filesystem != "ext4",
                f"{self.workload} is a rung for machines of growing size": self.workload in RECLAIM[1:],
            }
        return next((why for why, applies in whys.items() if applies), "")

    def need_lane(self) -> None:
        """Refuse what cannot be measured where its kernel is.

        Raises:
            UnsupportedHostError: the cell is ``misplaced``; it names the lane that the cell needs.
        """
        if not self.misplaced:
            return
        if self.in_guest:
            raise UnsupportedHostError(self.misplaced, "the host's own kernel", "--moetier-kernel host as well")
        raise UnsupportedHostError(
            self.misplaced, "a virtual machine", "--moetier-kernel 6.12 (moetier guest fetch 6.12)"
        )

    @property
    def id(self) -> str:
        """The parametrisation id: usable with ``-k``; words at their default are left out after the mechanism.

        A cell of the reclaim ladder names its capacity and its rung after the mechanism, and only where they differ
        from the usual ones.
        """
        enforced = [f"{self.mechanism}{self.locked or ''}", f"mglru_{self.mglru}"]
        if self.workload in RECLAIM:
            usual, rung = self.capacity.text == RECLAIM_CAPACITY, self.workload.removeprefix("reclaim").strip("_")
            words = [*enforced, *([] if usual else [self.capacity.id]), *([rung] if rung else [])]
        else:
            words = [self.capacity.id, *enforced, *([self.workload] if self.workload != "single" else [])]
        words += [self.mode] if self.mode != "page_cache" else []
        words += [self.prefetch] if self.prefetch != "none" else []
        words += [f"fill_{self.fill}"] if self.fill else []
        words += [f"spine_{self.spine}"] if self.spine != "none" else []
        rate = f"{self.read_limit / 1e6:.6f}".rstrip("0").rstrip(".").replace(".", "_")  # to the byte: ids are unique
        words += [f"{rate}MBps"] if self.read_limit else []
        words += [f"ra{self.read_ahead_kb}"] if self.read_ahead_kb else []
        words += [self.filesystem] if self.filesystem != "ext4" else []
        words += [f"k{self.kernel}"] if self.in_guest else []
        return "-".join(words)
