"""The figures of one run, each with its unit: what was read, what a perfect LRU would have missed, and their ratio.

Paper section 4: simulate LRU at C, multiply misses by expert size, divide the measured device bytes by it.
Here the judged denominator is the nominal miss demand at the *observed* residency, because a mechanism's C is a control
target and not the cache (paper section 2); the column at C is kept beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import numpy as np

from pytest_moetier.plan import Plan
from pytest_moetier.replay import Run
from pytest_moetier.simulate import LruCurve, belady_page_bound, lru_curve


@dataclass(frozen=True, slots=True)
class Demand:
    """What a plan asks of a cache of any size, by simulation; one per session.

    Attributes:
        plan: the plan.
        curve: exact LRU, every capacity, the plan replayed twice and the second pass scored.
        cold_factor: device / logical bytes of a cold read (read-ahead beyond expert borders), or None.
    """

    plan: Plan
    curve: LruCurve
    cold_factor: float | None

    @classmethod
    def of(cls, plan: Plan, cold_factor: float | None) -> Demand:
        """Simulate ``plan``."""
        return cls(plan, lru_curve(plan), cold_factor)

    def nominal_bytes(self, resident_bytes: float) -> float:
        """Return the bytes that exact LRU of ``resident_bytes`` would miss in the measured pass."""
        return float(self.curve.miss_bytes(resident_bytes))

    def belady_bytes(self, resident_bytes: float) -> int:
        """Return the fewest bytes that any cache of ``resident_bytes`` must read in the measured pass."""
        return belady_page_bound(self.plan, int(resident_bytes))

    @property
    def token_cycle_bytes(self) -> int:
        """Mean bytes of one iteration: a global LRU much below it never hits."""
        return self.plan.total_bytes // self.plan.n_iterations


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run; ``None`` where the host could not observe one.

    ``_bytes`` are per engine iteration unless the name says otherwise; ``seconds_per_iteration`` is CLOCK_MONOTONIC of
    the replayer. ``amplification`` is device bytes / nominal misses at ``observed_capacity_bytes``, the mean residency
    of the pool over the measured pass; ``amplification_at_c`` has the nominal misses at C (the paper's column).
    """

    seconds_per_iteration: float
    logical_bytes: float
    device_bytes: float | None
    hit_bytes: float | None
    nominal_bytes_at_c: float
    nominal_bytes: float | None
    belady_bytes: float | None
    amplification: float | None
    amplification_at_c: float | None
    amplification_over_belady: float | None
    observed_capacity_bytes: float | None
    largest_residency_bytes: int | None
    third_ratios: tuple[float, ...]
    scan_kswapd_pages: int | None
    steal_kswapd_pages: int | None
    scan_direct_pages: int | None
    steal_direct_pages: int | None
    scan_memcg_pages: int | None
    steal_memcg_pages: int | None
    refault_file_pages: int | None
    psi_some_share: float | None
    psi_full_share: float | None
    device_bytes_per_second: float | None


def figures_of(run: Run, demand: Demand) -> Figures:
    """Return the figures of ``run`` against the simulated demand of its plan."""
    measured, interval = run.measured, run.interval
    n = len(measured.iterations)
    device = interval.device_read_bytes
    residencies = [one.resident_bytes for one in measured.residencies]
    observed = fmean(residencies) if residencies else None
    nominal = None if observed is None else demand.nominal_bytes(observed)
    at_c = demand.nominal_bytes(run.capacity_bytes)
    belady = None if observed is None else demand.belady_bytes(observed)
    return Figures(
        seconds_per_iteration=measured.seconds_per_iteration,
        logical_bytes=measured.bytes / n,
        device_bytes=_per(device, n),
        hit_bytes=_per(measured.hit_bytes, n),
        nominal_bytes_at_c=at_c / n,
        nominal_bytes=_per(nominal, n),
        belady_bytes=_per(belady, n),
        amplification=_ratio(device, nominal),
        amplification_at_c=_ratio(device, at_c),
        amplification_over_belady=_ratio(device, belady),
        observed_capacity_bytes=observed,
        largest_residency_bytes=max(residencies, default=None),
        third_ratios=_thirds(run, demand, observed),
        scan_kswapd_pages=interval.pgscan_kswapd,
        steal_kswapd_pages=interval.pgsteal_kswapd,
        scan_direct_pages=interval.pgscan_direct,
        steal_direct_pages=interval.pgsteal_direct,
        scan_memcg_pages=interval.memcg_scan,
        steal_memcg_pages=interval.memcg_steal,
        refault_file_pages=interval.workingset_refault_file,
        psi_some_share=_ratio(interval.psi_some_us, interval.seconds * 1e6),
        psi_full_share=_ratio(interval.psi_full_us, interval.seconds * 1e6),
        device_bytes_per_second=_ratio(device, interval.seconds),
    )


def _per(total: float | None, n: int) -> float | None:
    return None if total is None else total / n


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _thirds(run: Run, demand: Demand, observed: float | None) -> tuple[float, ...]:
    """Return device / nominal of each third of the measured pass; empty when it cannot be told."""
    device = [one.device_read_bytes for one in run.measured.iterations]
    if observed is None or len(device) < 3 or any(one is None for one in device):
        return ()
    nominal = demand.curve.miss_bytes_by_iteration(observed)
    ratios = []
    for part in np.array_split(np.arange(len(device)), 3):
        below = float(nominal[part].sum())
        if below <= 0:
            return ()
        ratios.append(sum(device[i] or 0 for i in part) / below)
    return tuple(ratios)
