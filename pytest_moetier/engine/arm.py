"""An arm: what is varied from run to run of the engine, and its id."""

from __future__ import annotations

from dataclasses import dataclass

POLICIES = ("plain", "drop", "willneed", "populate", "random", "pread", "background")
"""What is done about the experts that the router chose, beside what the engine does by itself.

``plain``: nothing: the mapping's own faults read them, and what was read stays (the cache is admitted).
``drop``: after each token the experts are unmapped and the whole file dropped from the page cache, then what is chosen
is asked for by MADV_WILLNEED (paper section 9: the cache is not admitted).
``willneed``, ``populate``: MADV_WILLNEED, or MADV_POPULATE_READ, on each chosen expert's slabs before they are used.
``random``: MADV_RANDOM on the whole mapping, once.
``pread``: a buffered pread of each slab into a scratch buffer, then MADV_WILLNEED (moe-offload-bench finding 7).
``background``: the same pread by a thread in the background, which the computation does not wait for (finding 7).
"""
QUANTISATIONS = ("q8_0", "q4_0")


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the engine.

    Attributes:
        policy: one of ``POLICIES``.
        quantisation: of the generated model, one of ``QUANTISATIONS``; a user's own model is what it is.
        lock_spine: everything of the model that is no routed expert is mlocked.
        read_ahead_kb: of the device, in KiB.
        read_limit: bytes a second that may be read from the device, 0 for no limit.
        capacity_share: page cache for the model, as a share of its experts' bytes; 0 for no wall.
    """

    policy: str = "plain"
    quantisation: str = "q8_0"
    lock_spine: bool = False
    read_ahead_kb: int = 128
    read_limit: int = 0
    capacity_share: float = 0.0

    @property
    def id(self) -> str:
        """Return its name: what differs from the plain arm, without ``=`` and ``%``."""
        words = [self.policy]
        words += [self.quantisation] if self.quantisation != QUANTISATIONS[0] else []
        words += ["spine_locked"] if self.lock_spine else []
        words += [f"ra{self.read_ahead_kb}"]
        words += [f"C{self.capacity_share * 100:g}pct"] if self.capacity_share else []
        words += [f"{self.read_limit // 10**6}MBps"] if self.read_limit else []
        return "-".join(words)
