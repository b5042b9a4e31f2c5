"""What a cache of any size would miss of a known demand: the share of delivered bytes that is nominal (section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_moetier.errors import InputError

if TYPE_CHECKING:
    from pytest_moetier.plan import Plan
    from pytest_moetier.pool.manifest import Manifest

_POINTS = 4096


@dataclass(frozen=True, slots=True)
class MissShare:
    """The share of its demand that exact LRU misses, by what it holds: the plan replayed twice, the second pass scored.

    Attributes:
        shares: at evenly spaced sizes from nothing to the whole pool.
        pool_bytes: of the whole pool.
        iteration_bytes: that an iteration asks for in the mean.
        source: what it was simulated from, in words.
    """

    shares: tuple[float, ...]
    pool_bytes: int
    iteration_bytes: float
    source: str

    def at(self, resident_bytes: float) -> float:
        """Return the share that is missed by a cache of so many bytes, interpolated."""
        place = min(max(resident_bytes / self.pool_bytes, 0.0), 1.0) * (len(self.shares) - 1)
        low = min(int(place), len(self.shares) - 2)
        return self.shares[low] + (place - low) * (self.shares[low + 1] - self.shares[low])


def miss_share(path: Path, manifest: Manifest | None) -> MissShare:
    """Return the miss share of the plan in the file ``path``, or of the plan that a trace makes over a pool.

    Raises:
        InputError: the file is neither, or is a trace and there is no pool to lay it over.
    """
    from pytest_moetier.plan import MAGIC, build_plan, read_plan  # noqa: PLC0415
    from pytest_moetier.trace.load import load_trace  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            planned = file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise InputError(f"plan {path}: {error.strerror}", "a plan file or a trace that may be read") from error
    if planned:
        return simulated(read_plan(path), f"plan {path}")
    if manifest is None:
        raise InputError(
            f"{path} is no plan file, and a trace says nothing of bytes",
            "the pool that it is laid over",
            "--pool DIR, a folder with a manifest.yaml",
        )
    trace = load_trace(path)
    synthetic = " (synthetic)" if trace.synthetic else ""
    return simulated(build_plan(trace, manifest), f"trace {path}{synthetic} over the pool {manifest.name}")


def simulated(plan: Plan, source: str) -> MissShare:
    """Return the miss share of a plan, by simulation."""
    import numpy as np  # noqa: PLC0415

    from pytest_moetier.simulate import lru_curve  # noqa: PLC0415

    curve = lru_curve(plan)
    missed = curve.miss_bytes_curve(np.linspace(0, plan.pool_bytes, _POINTS))
    shares = tuple((missed / curve.total_bytes).tolist())
    return MissShare(shares, plan.pool_bytes, curve.total_bytes / plan.n_iterations, source)
