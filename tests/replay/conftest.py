"""The small pool's plan and one real run of a cell: what the proofs of other tests start from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_moetier.cell import Cell
from pytest_moetier.figures import Demand
from pytest_moetier.host.enforce import HostContext
from pytest_moetier.host.restore import Journal
from pytest_moetier.native import executable
from pytest_moetier.plan import build_plan, write_plan
from pytest_moetier.pool.manifest import Manifest
from pytest_moetier.pool.opened import open_pool
from pytest_moetier.replay import Rig, Run, measure_cold_factor, plan_file, run_cell
from pytest_moetier.replayer import ReplayOptions
from pytest_moetier.trace.records import Trace
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.units import Capacity

ITERATIONS = 12


def _trace(manifest: Manifest) -> Trace:
    return synth_trace(
        "kimi-k3", layers=len(manifest.layers), experts=manifest.experts, k=manifest.k, iterations=ITERATIONS, seed=1
    )


@pytest.fixture(scope="session")
def rig(small_pool: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Everything that a run needs, held for the session of tests."""
    with ExitStack() as stack:
        journal = stack.enter_context(Journal())
        pool = stack.enter_context(open_pool(small_pool, journal))
        trace = _trace(pool.manifest)
        plan = build_plan(trace, pool.manifest)
        path = stack.enter_context(plan_file(plan, tmp_path_factory.mktemp("plan")))
        host = HostContext(
            journal=journal,
            reserve_bytes=1 << 30,
            pool_files=len(plan.files),
            balloon=executable("moetier-balloon"),
        )
        yield Rig(pool=pool, plan=plan, plan_path=path, host=host, options=ReplayOptions())


@pytest.fixture(scope="session")
def cell() -> Cell:
    """The cell that the tests measure: a wall at 30% of the pool."""
    return Cell("capacity", Capacity.parse("30%"))


@pytest.fixture(scope="session")
def run(rig: Rig, cell: Cell) -> Run:
    """One real run of the cell."""
    return run_cell(rig, cell)


@pytest.fixture(scope="session")
def demand(rig: Rig) -> Demand:
    """The simulated demand of the plan, with the measured cold factor."""
    return Demand.of(rig.plan, measure_cold_factor(rig, "page_cache", rig.plan_path.parent))
