"""The figures of one run, each with its unit: what was read, what a perfect LRU would have missed, and their ratio.

Paper section 4: simulate LRU at C, multiply misses by expert size, divide the measured device bytes by it.
Here the judged denominator is the nominal miss demand at the *observed* residency, because a mechanism's C is a control
target and not the cache (paper section 2); the column at C is kept beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.audit import Audit, audit_of, unused_shares
from pytest_moetier.fidelity import Fidelity, fidelity_of
from pytest_moetier.guest import locked_share
from pytest_moetier.host.snapshot import Interval
from pytest_moetier.plan import Plan
from pytest_moetier.replay import OomRun, Run
from pytest_moetier.replayer import Prefetched
from pytest_moetier.simulate import LruCurve, belady_page_bound, lru_curve
from pytest_moetier.units import PAGE_BYTES
from pytest_moetier.waves import Wave, find_wave, whole_period_ratios


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
        pages = replace(self.plan, expert_bytes=self.plan.own_page_bytes)
        return belady_page_bound(pages, int(resident_bytes))

    @property
    def token_cycle_bytes(self) -> int:
        """Mean bytes of one iteration: a global LRU much below it never hits."""
        return self.plan.total_bytes // self.plan.n_iterations


FAIR_SHARE = 0.4
"""Share of the iterations, the last ones, that a table of the trace's own past has not seen (paper section 3)."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run; ``None`` where the host could not observe one, or the cell has no such thing.

    ``_bytes`` are per engine iteration unless the name says otherwise; ``seconds_per_iteration`` is CLOCK_MONOTONIC of
    the replayer. ``amplification`` is device bytes / nominal misses at ``observed_capacity_bytes``: the mean residency
    of the pool over the measured pass and the mode's own memory; ``amplification_at_c`` has the nominal misses at C
    (the paper's column). ``demand_served`` is the share of the demand that was in memory before it was asked for, in
    the page cache or in the mode's own memory. ``fair_device_bytes`` is of the last 40% of the iterations.

    ``scan_per_steal`` is of the group's own reclaim where that is known, else of kswapd and direct reclaim together;
    ``locked_share`` the balloon's VmLck / MemTotal; ``control_bytes`` what the mechanism was told for the cell's
    ``capacity_bytes``. ``wave`` is the
    period of the excess of device over nominal bytes, in units of the mean nominal; ``part_ratios`` are device over
    nominal of the wave's whole periods where there are two or more, else of thirds of the pass (``part``).
    ``folio_bytes`` is the mean size of the folio that a resident byte of the pool lies in; ``audit`` what the
    generations held.
    """

    seconds_per_iteration: float
    logical_bytes: float | None = None
    device_bytes: float | None = None
    hit_bytes: float | None = None
    held_bytes: float | None = None
    demand_served: float | None = None
    fair_device_bytes: float | None = None
    nominal_bytes_at_c: float | None = None
    nominal_bytes: float | None = None
    belady_bytes: float | None = None
    amplification: float | None = None
    amplification_at_c: float | None = None
    amplification_over_belady: float | None = None
    observed_capacity_bytes: float | None = None
    largest_holding_bytes: int | None = None
    part_ratios: tuple[float, ...] = ()
    part: str | None = None
    wave: Wave | None = None
    audit: Audit | None = None
    folio_bytes: float | None = None
    locked_share: float | None = None
    capacity_bytes: int | None = None
    control_bytes: int | None = None
    scan_per_steal: float | None = None
    seconds_per_accepted_token: float | None = None
    device_bytes_per_accepted_token: float | None = None
    iteration_variation: float | None = None
    cpu_seconds_per_iteration: float | None = None
    major_faults: float | None = None
    minor_faults: float | None = None
    preload_bytes: int | None = None
    written_bytes: float | None = None
    advice_recall: float | None = None
    prefetch: Prefetched | None = None
    fidelity: Fidelity | None = None
    oom_kills: int | None = None
    iterations_before_oom: int | None = None
    scan_kswapd_pages: int | None = None
    steal_kswapd_pages: int | None = None
    scan_direct_pages: int | None = None
    steal_direct_pages: int | None = None
    scan_memcg_pages: int | None = None
    steal_memcg_pages: int | None = None
    refault_file_pages: int | None = None
    psi_some_share: float | None = None
    psi_full_share: float | None = None
    device_bytes_per_second: float | None = None


def figures_of(run: Run | OomRun, demand: Demand) -> Figures:
    """Return the figures of ``run`` against the simulated demand of its plan."""
    if isinstance(run, OomRun):
        return Figures(
            seconds_per_iteration=run.seconds / max(1, run.iterations),
            oom_kills=None if run.scope is None else run.scope.oom_kills,
            iterations_before_oom=run.iterations,
        )
    measured, interval = run.measured, run.interval
    n = len(measured.iterations)
    device = interval.device_read_bytes
    own = run.output.ready.budgeted_bytes
    holdings = [one.resident_bytes + own for one in measured.residencies]
    observed = fmean(holdings) if holdings else None
    nominal = None if observed is None else demand.nominal_bytes(observed)
    at_c = demand.nominal_bytes(run.capacity_bytes)
    belady = None if observed is None else demand.belady_bytes(observed)
    return Figures(
        seconds_per_iteration=measured.seconds_per_iteration,
        logical_bytes=measured.bytes / n,
        device_bytes=_per(device, n),
        hit_bytes=_per(measured.hit_bytes, n),
        held_bytes=_per(measured.held_bytes, n),
        demand_served=_served(run),
        fair_device_bytes=_fair(run),
        nominal_bytes_at_c=at_c / n,
        nominal_bytes=_per(nominal, n),
        belady_bytes=_per(belady, n),
        amplification=_ratio(device, nominal),
        amplification_at_c=_ratio(device, at_c),
        amplification_over_belady=_ratio(device, belady),
        observed_capacity_bytes=observed,
        largest_holding_bytes=max(holdings, default=None),
        **_series(run, demand, observed),
        folio_bytes=_folio_bytes(run),
        locked_share=locked_share(run),
        capacity_bytes=run.capacity_bytes,
        control_bytes=run.control_bytes,
        scan_per_steal=_scan_per_steal(interval),
        seconds_per_accepted_token=measured.wall_seconds / run.accepted_tokens,
        device_bytes_per_accepted_token=_per(device, run.accepted_tokens),
        iteration_variation=_variation([one.wall_seconds for one in measured.iterations]),
        cpu_seconds_per_iteration=(measured.user_seconds + measured.system_seconds) / n,
        major_faults=measured.major_faults / n,
        minor_faults=measured.minor_faults / n,
        preload_bytes=run.output.own.preload_bytes if run.output.own else None,
        written_bytes=_per(interval.device_written_bytes, n) if run.cell.reading.writes else None,
        advice_recall=run.advice.recall if run.advice else None,
        prefetch=measured.prefetch,
        fidelity=_fidelity(run, demand.plan),
        oom_kills=run.exit.scope.oom_kills if run.cell.expects_oom and run.exit.scope else None,
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


def _served(run: Run) -> float | None:
    """Return the share of the demand that was in memory before each read; None where residency was not observed."""
    measured = run.measured
    if measured.hit_bytes is None:
        return None
    return (measured.hit_bytes + (measured.held_bytes or 0)) / measured.bytes


def _fair(run: Run) -> float | None:
    device = [one.device_read_bytes for one in run.measured.iterations]
    last = device[len(device) - max(1, int(len(device) * FAIR_SHARE)) :]
    return None if None in last else fmean(one or 0 for one in last)


def _variation(seconds: Sequence[float]) -> float | None:
    """Return the standard deviation of the iterations' times over their mean."""
    return pstdev(seconds) / fmean(seconds) if len(seconds) > 1 else None


def _fidelity(run: Run, plan: Plan) -> Fidelity | None:
    """Return what the kernel kept against what LRU and Belady would; None for a mode that keeps for itself."""
    resident = run.measured.resident_by_expert
    if not resident or run.output.ready.budgeted_bytes or not sum(resident):
        return None
    return fidelity_of(plan, np.array(resident, dtype=np.uint64), passes=len(run.output.passes))


def _per(total: float | None, n: int) -> float | None:
    return None if total is None else total / n


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _series(run: Run, demand: Demand, observed: float | None) -> dict[str, Any]:
    """Return what an iteration's device bytes show beside its nominal ones, by the names of the figures."""
    known = [one.device_read_bytes for one in run.measured.iterations]
    device = [one for one in known if one is not None]
    if observed is None or len(device) < len(known) or len(device) < 3:
        return {}
    nominal = demand.curve.miss_bytes_by_iteration(observed)
    mean = float(nominal.mean())
    wave = find_wave((np.array(device) - nominal) / mean) if mean > 0 else None
    periods = _periods(device, nominal, wave) if wave else ()
    return {
        "wave": wave,
        "part_ratios": periods or _thirds(device, nominal),
        "part": f"period of {wave.period:.0f} iterations" if wave and periods else "third",
        "audit": _audit(run, demand.plan, nominal) if run.measured.samples else None,
    }


def _periods(device: Sequence[int], nominal: NDArray[np.float64], wave: Wave) -> tuple[float, ...]:
    """Return device / nominal of the wave's whole periods; empty where there is only one."""
    found = whole_period_ratios(device, nominal, wave.period)
    return found if len(found) > 1 else ()


def _thirds(device: Sequence[int], nominal: NDArray[np.float64]) -> tuple[float, ...]:
    """Return device / nominal of each third of the measured pass; empty where one has nothing nominal."""
    parts = np.array_split(np.arange(len(device)), 3)
    if any(nominal[part].sum() <= 0 for part in parts):
        return ()
    return tuple(float(np.array(device)[part].sum() / nominal[part].sum()) for part in parts)


def _audit(run: Run, plan: Plan, nominal: NDArray[np.float64]) -> Audit:
    measured, scope = run.measured, run.enforced.scope
    resident = np.array(measured.resident_by_expert, dtype=np.uint64)
    return audit_of(
        measured.samples,
        device_bytes=[one.device_read_bytes for one in measured.iterations],
        logical_bytes=[one.bytes for one in measured.iterations],
        nominal_bytes=nominal.tolist(),
        capacity_bytes=run.capacity_bytes,
        group=None if scope is None else f"/{Path(scope.path).name}",
        unused=unused_shares(plan, resident) if len(resident) else (),
    )


def _folio_bytes(run: Run) -> float | None:
    """Return the mean folio size over the resident bytes that could be told, in bytes; None where none could."""
    seen = run.measured.folios
    sizes = () if seen is None else seen.bytes_by_order
    total = sum(sizes)
    return sum(size * (PAGE_BYTES << order) for order, size in enumerate(sizes)) / total if total else None


def _scan_per_steal(interval: Interval) -> float | None:
    if interval.memcg_scan is not None and interval.memcg_steal is not None:
        return _ratio(interval.memcg_scan, interval.memcg_steal)
    scans, steals = (interval.pgscan_kswapd, interval.pgscan_direct), (interval.pgsteal_kswapd, interval.pgsteal_direct)
    return _ratio(sum(one or 0 for one in scans), sum(one or 0 for one in steals))
