"""Windows: which iterations warm the caches and which are scored (paper section 3).

Every policy of a comparison has the same window. Iterations are those of the decode; a prompt that is part of the
workload comes before them and warms, except in ``cold``, which scores every access from the first on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_moetier.errors import InputError
from pytest_moetier.simulate.workload import Workload

WARM_SHARE = (3, 5)
"""The share of the iterations that warms in a fair window, as a fraction: 60%."""

WINDOWS = ("fair", "cold", "decode")
_GIVEN = re.compile(r"^(\d+):(\d+)$")


@dataclass(frozen=True, slots=True)
class Window:
    """Which iterations warm and which are scored.

    Attributes:
        name: ``fair``, ``cold``, ``decode`` or ``WARM:END``.
        n_prefill: iterations of the prompt that warm before the decode.
        warm: decode iterations that warm.
        end: the decode iteration before which scoring ends; those after it are left out.
        of: decode iterations of the workload.
        first: the first scored iteration of the workload, the prompt's counted.
    """

    name: str
    n_prefill: int
    warm: int
    end: int
    of: int
    first: int

    @property
    def last(self) -> int:
        """One more than the last scored iteration of the workload, the prompt's counted."""
        return self.n_prefill + self.end

    @property
    def iterations(self) -> int:
        """Iterations scored, the prompt's counted where it is scored."""
        return self.last - self.first

    @property
    def words(self) -> str:
        """Which iterations warm and which are scored, in words."""
        warms = ["the prompt"] if self.n_prefill and self.first else []
        if self.warm:
            warms.append(f"iterations 0 to {self.warm - 1}")
        scored = f"iterations {self.warm} to {self.end - 1} of {self.of}"
        if self.n_prefill and not self.first:
            scored = f"the prompt and {scored}"
        return f"{self.name}: warmed on {' and '.join(warms) or 'nothing'}, scored on {scored}"


def window(name: str, workload: Workload) -> Window:
    """Return the window of this name over a workload.

    ``fair``: the first 60% of the decode iterations warm, the rest is scored. ``cold``: caches begin empty and every
    access is scored. ``decode``: the prompt warms, the whole decode is scored. ``WARM:END``: decode iterations before
    WARM warm, those before END are scored, the rest is left out.

    Raises:
        InputError: an unknown name, a trace shorter than the window, or nothing to score.
    """
    n_prefill = workload.n_prefill
    total = workload.n_iterations - n_prefill
    if (given := _GIVEN.match(name)) is not None:
        warm, end = int(given[1]), int(given[2])
        if warm >= end:
            raise InputError(f"--window {name} scores no iteration", "WARM:END with WARM below END")
        if end > total:
            raise InputError(f"--window {name} ends after {workload.source}", f"END of at most {total} iterations")
        return Window(name, n_prefill, warm, end, total, n_prefill + warm)
    if name == "fair":
        warm = total * WARM_SHARE[0] // WARM_SHARE[1]
        if not warm:
            raise InputError(
                f"{workload.source} has {total} iteration: shorter than the fair window",
                "2 iterations or more: some warm the cache, some are scored",
                "--window cold scores a trace from its first access",
            )
        return Window(name, n_prefill, warm, total, total, n_prefill + warm)
    if name == "cold":
        return Window(name, n_prefill, 0, total, total, 0)
    if name == "decode":
        if not n_prefill:
            raise InputError(f"--window decode, and no prompt of {workload.source} to warm with", "--prefill before")
        return Window(name, n_prefill, 0, total, total, n_prefill)
    raise InputError(f"--window {name}", f"{', '.join(WINDOWS)} or WARM:END")
