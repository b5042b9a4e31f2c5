"""A small machine with a slow disk: what a public benchmark of llama.cpp found on one, as far as a replay can tell.

The findings are those of moe-offload-bench: OLMoE-1B-7B, 2 cores, a disk of 150 MB/s, RAM well under the model. Here: a
synthetic pool of its dimensions with experts of 512 KiB (308 KiB for the coarser quantisation) and a spine, a wall at
40% of the pool, and a device that may be read at 150 MB/s; the pool is made for the session and thrown away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_moetier.campaign import CellResult
    from pytest_moetier.fixtures import CellHandle, CurveHandle

BOX = {"finding": "small_box", "capacity": "215MB", "mechanism": "cgroup", "read_limit": "150MB"}
KEPT = "mmap_pread"
"""The design that the benchmark ended with: pread into a scratch, WILLNEED, the copy from the mapping."""
BUDGETS = ("user_lru25", "user_lru50", "user_lru")


@pytest.mark.moetier(**BOX, workload="small_box", mode=("mmap", KEPT, "mmap_background", "write_shared", *BUDGETS))
def test_designs(moetier_cell: CellHandle) -> None:
    """One design on the slow device: every round proved."""
    moetier_cell.measure()
    moetier_cell.judge()


@pytest.mark.moetier(**BOX, workload="small_box", mode=KEPT, spine=("plain", "locked"))
def test_with_a_spine(moetier_cell: CellHandle) -> None:
    """Dense weights read every iteration, within the same wall."""
    moetier_cell.measure()
    moetier_cell.judge()


@pytest.mark.moetier(**BOX, workload="small_box_q2", mode="mmap")
def test_a_coarser_quantisation(moetier_cell: CellHandle) -> None:
    """The same trace over experts of 1.66 times fewer bytes, at the same capacity."""
    moetier_cell.measure()
    moetier_cell.judge()


@pytest.mark.moetier(**BOX, workload="small_box", mode="write_private")
def test_writes_into_private_mappings(moetier_cell: CellHandle) -> None:
    """Memory that cannot be given back grows until the wall's out-of-memory kill: the kill is what is proved."""
    moetier_cell.measure()
    moetier_cell.judge()


def test_user_cache_by_budget(moetier_curve: CurveHandle) -> None:
    """A user-space cache is slower than the design that was kept, and the slower the larger its budget."""
    kept = _design(moetier_curve, KEPT)
    caches = [_design(moetier_curve, one) for one in BUDGETS]
    against = [moetier_curve.ratio("seconds_per_iteration", one, kept) for one in caches]
    values = {
        "user_cache_best_over_kept": min(against, key=lambda one: one.value),
        "user_cache_slower_with_budget": moetier_curve.ratio("seconds_per_iteration", caches[-1], caches[0]),
    }
    moetier_curve.conclude(values, [run for one in (kept, *caches) for run in one.runs])


def test_bytes_and_faults_by_quantisation(moetier_curve: CurveHandle) -> None:
    """Time and major faults grow more than the bytes of an expert do, where the mapping's faults read them."""
    fine, coarse = _design(moetier_curve, "mmap"), moetier_curve.need(workload="small_box_q2")
    size = moetier_curve.ratio("logical_bytes", fine, coarse).value
    faults = moetier_curve.ratio("major_faults", fine, coarse)
    time = moetier_curve.ratio("seconds_per_iteration", fine, coarse)
    values = {"slower_than_bytes": time.value / size, "faults_over_bytes": faults.value / size}
    moetier_curve.conclude(values, [*fine.runs, *coarse.runs])


def test_spine_lock(moetier_curve: CurveHandle) -> None:
    """Locking the dense weights is faster than leaving them to compete, and cuts major faults."""
    locked, plain = (moetier_curve.need(spine=one) for one in ("locked", "plain"))
    values = {
        "spine_lock_gain": moetier_curve.ratio("seconds_per_iteration", plain, locked),
        "spine_lock_fewer_faults": moetier_curve.ratio("major_faults", plain, locked),
    }
    moetier_curve.conclude(values, [*locked.runs, *plain.runs])


def test_writes_in_place(moetier_curve: CurveHandle) -> None:
    """Reading into a shared writable mapping dirties every page: slower, with every read written back."""
    written, kept = _design(moetier_curve, "write_shared"), _design(moetier_curve, KEPT)
    ((back,), (read,)) = (moetier_curve.medians(name, written) for name in ("written_bytes", "logical_bytes"))
    values = {
        "write_in_place_slower": moetier_curve.ratio("seconds_per_iteration", written, kept),
        "write_in_place_written_share": back / read,
    }
    moetier_curve.conclude(values, [*written.runs, *kept.runs])


def test_background_reads(moetier_curve: CurveHandle) -> None:
    """Reads by a thread in the background contend with the faults of the demand: slower, with more major faults."""
    background, kept = _design(moetier_curve, "mmap_background"), _design(moetier_curve, KEPT)
    more, fewer = moetier_curve.medians("major_faults", background, kept)
    values = {
        "background_slower": moetier_curve.ratio("seconds_per_iteration", background, kept),
        "background_faults_more": more - fewer,
    }
    moetier_curve.conclude(values, [*background.runs, *kept.runs])


def _design(curve: CurveHandle, mode: str) -> CellResult:
    """Return a design's cell over the finer pool, without a spine."""
    return curve.need(workload="small_box", mode=mode, spine="none")


pytestmark = pytest.mark.moetier(finding="small_box")
