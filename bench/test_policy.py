"""Who should choose what is kept, and who should hold it (paper section 6, Figures 4 and 5).

By simulation: a frequency table against recency, on the traces of ``test_routing.py``; no root, pool or device is
needed. All experts share one cache of 256 GB of the paper's pool, or of the same share of another model's.

On the device, at equal memory: every mode is measured in the same wall, with its arena or its user-space cache inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_moetier.routing import drift_figures, off_domain_figures, oracle_figures

if TYPE_CHECKING:
    from pytest_moetier.fixtures import CellHandle, CurveHandle, DomainsHandle, RoutingHandle

MODES = (
    "page_cache",
    "fadv_random",
    "drop",
    "pinned_own",
    "pinned_train",
    "pinned_domain",
    "hybrid50",
    "user_lru",
    "user_lfu",
)


def test_own_domain_oracle(moetier_routing: RoutingHandle) -> None:
    """Recency matches a table trained on the very trace that is replayed, which no deployment has."""
    moetier_routing.conclude(moetier_routing.examined(lambda: oracle_figures(moetier_routing.study)))


def test_drift(moetier_routing: RoutingHandle) -> None:
    """A table of the trace's own past ages, and recency tracks."""
    moetier_routing.conclude(moetier_routing.examined(lambda: drift_figures(moetier_routing.study)))


def test_off_domain(moetier_domains: DomainsHandle) -> None:
    """A table of one domain collapses in the others, and LRU holds everywhere: fair windows on both sides."""
    moetier_domains.conclude(moetier_domains.examined(lambda: off_domain_figures(moetier_domains.studies)))


@pytest.mark.moetier(finding="policy", default_capacity="17.7%", mechanism="cgroup", mode=MODES)
def test_modes(moetier_cell: CellHandle) -> None:
    """One way of holding experts at C: every round proved, and within the bounds of its own cell."""
    moetier_cell.measure()
    moetier_cell.judge()


def test_pinned_against_page_cache(moetier_curve: CurveHandle) -> None:
    """An oracle's locked arena has a single-digit edge in time, by almost the same device reads."""
    pinned, kernel = moetier_curve.need(mode="pinned_own"), moetier_curve.need(mode="page_cache")
    recency, table = moetier_curve.medians("demand_served", kernel, pinned)
    values = {
        "pinned_edge": moetier_curve.ratio("seconds_per_iteration", kernel, pinned),
        "pinned_device_ratio": moetier_curve.ratio("device_bytes", pinned, kernel),
        "kernel_serves_more": recency - table,
    }
    moetier_curve.conclude(values, [*pinned.runs, *kernel.runs])


def test_pinned_off_domain(moetier_curve: CurveHandle) -> None:
    """The table of another domain serves less than recency, which needs none."""
    pinned, kernel = moetier_curve.need(mode="pinned_domain"), moetier_curve.need(mode="page_cache")
    recency, table = moetier_curve.medians("demand_served", kernel, pinned)
    moetier_curve.conclude({"kernel_serves_more_off_domain": recency - table}, [*pinned.runs, *kernel.runs])


def test_table_of_the_past(moetier_curve: CurveHandle) -> None:
    """In the last 40% of the iterations, a table of the first 60% reads more from the device than recency does."""
    pinned, kernel = moetier_curve.need(mode="pinned_train"), moetier_curve.need(mode="page_cache")
    values = {"past_table_device_ratio": moetier_curve.ratio("fair_device_bytes", pinned, kernel)}
    moetier_curve.conclude(values, [*pinned.runs, *kernel.runs])


def test_hybrid_between(moetier_curve: CurveHandle) -> None:
    """Half an arena and half a page cache take a time between those of the whole ones, within the rounds' spread."""
    hybrid, pinned, kernel = (moetier_curve.need(mode=one) for one in ("hybrid50", "pinned_own", "page_cache"))
    ratios = [moetier_curve.ratio("seconds_per_iteration", hybrid, one) for one in (pinned, kernel)]
    values = {
        "hybrid_over_fastest": max(one.high for one in ratios),
        "hybrid_over_slowest": min(one.low for one in ratios),
    }
    moetier_curve.conclude(values, [run for one in (hybrid, pinned, kernel) for run in one.runs])


def test_fadv_random(moetier_curve: CurveHandle) -> None:
    """Without read-ahead the page cache is slower, by the same device reads: no one-hint fix on the read side."""
    hinted, kernel = moetier_curve.need(mode="fadv_random"), moetier_curve.need(mode="page_cache")
    values = {
        "fadv_random_slower": moetier_curve.ratio("seconds_per_iteration", hinted, kernel),
        "fadv_random_device_ratio": moetier_curve.ratio("device_bytes", hinted, kernel),
    }
    moetier_curve.conclude(values, [*hinted.runs, *kernel.runs])


@pytest.mark.parametrize("mode", ["user_lru", "user_lfu"])
def test_user_space_cache(moetier_curve: CurveHandle, mode: str) -> None:
    """A user-space cache past the page cache never beats the kernel's at equal memory."""
    user, kernel = moetier_curve.need(mode=mode), moetier_curve.need(mode="page_cache")
    values = {"user_cache_slower": moetier_curve.ratio("seconds_per_iteration", user, kernel)}
    moetier_curve.conclude(values, [*user.runs, *kernel.runs])


def test_no_admission(moetier_curve: CurveHandle) -> None:
    """Dropping what was read forfeits every hit: each iteration reads its whole demand from the device."""
    dropped, kernel = moetier_curve.need(mode="drop"), moetier_curve.need(mode="page_cache")
    ((demand,), (read,)) = (moetier_curve.medians(name, dropped) for name in ("logical_bytes", "device_bytes"))
    values = {
        "no_admission_slower": moetier_curve.ratio("seconds_per_iteration", dropped, kernel),
        "no_admission_device_over_demand": read / demand,
    }
    moetier_curve.conclude(values, [*dropped.runs, *kernel.runs])


pytestmark = pytest.mark.moetier(finding="policy")
