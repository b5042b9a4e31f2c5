"""The small pool's plan, a throw-away pool's, and real runs of cells over both: what other tests start from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pytest_moetier.cell import Cell
from pytest_moetier.figures import Demand, Figures, figures_of
from pytest_moetier.host.enforce import HostContext
from pytest_moetier.host.restore import HostLock, Journal
from pytest_moetier.host.throttle import read_limit_support
from pytest_moetier.native import executable
from pytest_moetier.plan import write_plan
from pytest_moetier.pool.opened import OpenPool, open_pool
from pytest_moetier.pool.profiles import resolve_shape
from pytest_moetier.pool.temporary import temporary_pool
from pytest_moetier.proof import Proof, ProvedRun, examine, prove
from pytest_moetier.replay import OomRun, Rig, Run, measure_cold_factor, run_cell
from pytest_moetier.replayer import ReplayOptions
from pytest_moetier.units import Capacity
from pytest_moetier.workloads import Asked, single

sys.path.insert(0, str(Path(__file__).parents[1] / "guest"))  # runs that were never measured (made_runs.py)

ASKED = Asked((), iterations=12)
WAIT_SECONDS = 200
ATTEMPTS = 5
"""Another program of this host may drop the page cache in the middle of a run, which is then no run to start from."""
SPINE_BYTES = 4 << 20


def rig_over(pool: OpenPool, journal: Journal, folder: Path) -> Rig:
    """Return what a seeded synthetic trace over a pool is replayed with."""
    work = single(pool.manifest, ASKED)
    path = folder / "pool.plan"
    write_plan(work.plan, path)
    host = HostContext(
        journal=journal,
        reserve_bytes=1 << 30,
        pool_files=len(work.plan.files),
        balloon=executable("moetier-balloon"),
    )
    return Rig(
        pool=pool,
        plan=work.plan,
        plan_path=path,
        host=host,
        options=ReplayOptions(),
        accepted_tokens=work.accepted_tokens,
        list_file=lambda word: work.write_list(word, folder),
    )


@pytest.fixture(scope="session")
def journal() -> Iterator[Journal]:
    """One journal for all pools."""
    with Journal() as one:
        yield one


@pytest.fixture(scope="session")
def rig(small_pool: Path, journal: Journal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Everything that a run needs, held for the session of tests."""
    with open_pool(small_pool, journal) as pool:
        yield rig_over(pool, journal, tmp_path_factory.mktemp("plan"))


@pytest.fixture(scope="session")
def thrown(rig: Rig, journal: Journal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """The same over a temporary pool with a spine, which may be written to."""
    del rig  # skips where nothing can be measured
    shape = resolve_shape("custom", layers=2, experts=128, k=8, expert_bytes="256KiB")
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("thrown")
        path = stack.enter_context(
            temporary_pool(shape, folder, journal, spine_bytes=SPINE_BYTES, throwaway=True, store="image")
        )
        pool = stack.enter_context(open_pool(path, journal, writable=True))
        yield rig_over(pool, journal, tmp_path_factory.mktemp("plan"))


@dataclass
class Bench:
    """Measures cells, each once; a cell of workload ``small_box`` on the throw-away pool."""

    rig: Rig
    thrown: Rig
    _runs: dict[tuple[Cell, int], Run | OomRun] = field(default_factory=dict)
    _factors: dict[tuple[bool, str], float | None] = field(default_factory=dict)

    def rig_of(self, cell: Cell) -> Rig:
        return self.thrown if cell.workload == "small_box" else self.rig

    def any_run(self, capacity: str = "30%", threads: int = 2, **words: str | int) -> Run | OomRun:
        cell = Cell("policy", Capacity.parse(capacity), **words)  # type: ignore[arg-type]
        key = cell, threads
        if key not in self._runs:
            rig = self.rig_of(cell)
            chosen = replace(rig, options=replace(rig.options, threads=threads))
            for _ in range(ATTEMPTS):
                with HostLock(WAIT_SECONDS):
                    found = self._runs[key] = run_cell(chosen, cell)
                if isinstance(found, OomRun) or found.warm_entry.drop_pagecache == found.exit.drop_pagecache:
                    break
        return self._runs[key]

    def run(self, capacity: str = "30%", threads: int = 2, **words: str | int) -> Run:
        found = self.any_run(capacity, threads, **words)
        assert isinstance(found, Run)
        return found

    def demand(self, run: Run | OomRun) -> Demand:
        """Return the demand of a run's plan, with the cold factor of the way its misses are read."""
        mode, rig = run.cell.reading, self.rig_of(run.cell)
        native = "page_cache" if mode.arena or mode.writes else mode.native if mode.cached else "direct"
        key = rig is self.thrown, native
        if key not in self._factors:
            with HostLock(WAIT_SECONDS):
                self._factors[key] = measure_cold_factor(rig, native, rig.plan_path.parent)
        return Demand.of(rig.plan, self._factors[key])

    def figures(self, run: Run | OomRun) -> Figures:
        return figures_of(run, self.demand(run))

    def proof(self, run: Run | OomRun) -> Proof:
        return examine(run, self.demand(run), self.figures(run))

    def states(self, run: Run | OomRun) -> dict[str, str]:
        return {one.name: one.state for one in self.proof(run).invariants}

    def prove(self, run: Run) -> ProvedRun:
        return prove(run, self.demand(run), self.figures(run))


@pytest.fixture(scope="session")
def bench_runs(rig: Rig, thrown: Rig) -> Bench:
    """Real runs of cells, each measured when a test asks for it first."""
    return Bench(rig, thrown)


@pytest.fixture
def needs_limit() -> None:
    """Skip where reads cannot be limited."""
    support = read_limit_support()
    if not support.available:
        pytest.skip(f"{support.reason}; {support.fix}")


@pytest.fixture(scope="session")
def cell() -> Cell:
    """The cell that the tests measure: a wall at 30% of the pool."""
    return Cell("policy", Capacity.parse("30%"))


@pytest.fixture(scope="session")
def run(bench_runs: Bench) -> Run:
    """One real run of the cell."""
    return bench_runs.run()


@pytest.fixture(scope="session")
def demand(bench_runs: Bench, run: Run) -> Demand:
    """The simulated demand of the plan, with the measured cold factor."""
    return bench_runs.demand(run)
