"""A cell over a real model's file, in an image of its own, is measured and proved as any other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moetier.cell import Cell
from pytest_moetier.figures import Demand, figures_of
from pytest_moetier.host.restore import HostLock, Journal
from pytest_moetier.plan import cold_plan, write_plan
from pytest_moetier.pool.opened import open_pool
from pytest_moetier.pool.temporary import temporary_checkpoint
from pytest_moetier.proof import examine
from pytest_moetier.replay import COLD_EXPERTS, Rig, Run, measure_cold_factor, run_cell
from pytest_moetier.units import Capacity
from pytest_moetier.workloads import Asked, single

sys.path.insert(0, str(Path(__file__).parents[1] / "pool"))

from real_models import stamped_gguf

SIZES = (100_000, 100_008, 62_136)
"""256 KiB an expert, in three parts that touch no border of a page."""
WAIT_SECONDS = 200


@pytest.fixture(scope="module")
def modelled(rig: Rig, journal: Journal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A GGUF model of 64 MiB in an image, and what a trace over it is replayed with."""
    folder = tmp_path_factory.mktemp("model")
    with ExitStack() as stack:
        made = temporary_checkpoint(lambda path: stamped_gguf(path, 2, 128, SIZES) and None, folder, journal)
        pool = stack.enter_context(open_pool(stack.enter_context(made), journal))
        work = single(pool.manifest, Asked((), iterations=12))
        write_plan(work.plan, folder / "plan")
        host = replace(rig.host, pool_files=1)
        yield replace(rig, pool=pool, plan=work.plan, plan_path=folder / "plan", host=host)


@pytest.mark.parametrize("mode", ["page_cache", "mmap", "direct"])
def test_a_cell_over_a_models_own_file_is_proved(modelled: Rig, mode: str, tmp_path: Path) -> None:
    cell = Cell("policy", Capacity.parse("30%"), mode=mode)
    with HostLock(WAIT_SECONDS):
        factor = measure_cold_factor(modelled, cell.reading.native, tmp_path)
        run = run_cell(modelled, cell)
    assert isinstance(run, Run)
    demand = Demand.of(modelled.plan, factor)
    proof = examine(run, demand, figures_of(run, demand))
    assert proof.broken == ()
    states = {one.name: one.state for one in proof.invariants}
    assert {states["delivered_measured"], states["device_two_witnesses"], states["charged_at_entry"]} == {"held"}
    assert states["stamps"] == "unobserved"  # a real model has none
    assert run.measured.bytes == modelled.plan.total_bytes
    assert factor is not None
    # Direct reads bring the pages in which parts start and end as a whole; read-ahead, in other modes, some neighbours.
    plan = cold_plan(modelled.pool.manifest, min(COLD_EXPERTS, modelled.plan.n_experts), seed=0)
    starts, ends = plan.extent_offset // 4096, (plan.extent_offset + plan.extent_length + 4095) // 4096
    pages = (ends - starts).reshape(-1, len(SIZES)).sum(axis=1)[plan.sequence].sum()
    least = int(pages) * 4096 / plan.total_bytes
    assert 1.02 < least < 1.05
    assert factor == pytest.approx(least, rel=0.001) if mode == "direct" else factor >= 1
