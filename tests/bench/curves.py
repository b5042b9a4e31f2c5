"""Curves of cells that are known beforehand, seen through the real handle and judged by the real bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_moetier import plugin
from pytest_moetier.audit import Audit, audit_of
from pytest_moetier.campaign import CellResult
from pytest_moetier.cell import Cell
from pytest_moetier.errors import MoetierError
from pytest_moetier.figures import Figures
from pytest_moetier.fixtures import CellHandle, CurveHandle
from pytest_moetier.host import generations
from pytest_moetier.proof import Invariant, Proof, ProvedRun
from pytest_moetier.replayer import Prefetched, Sample
from pytest_moetier.settings import cells_for
from pytest_moetier.units import PAGE_BYTES, Capacity
from pytest_moetier.verdicts import MoetierSession, Record

BENCH = Path(__file__).parents[2] / "bench"
POOL_BYTES = 1 << 30
Rounds = Mapping[str, Sequence[Any]]
"""Figures by name, each with a value per round."""

PREFETCHED = Prefetched(10, 2, 8, 0, 80, 8000, 2000, 1000, 0)


def cell_of(finding: str, capacity: str = "17.7%", **words: Any) -> Cell:
    return Cell(finding, Capacity.parse(capacity), **words)


HELD = 46_000_000.0
"""The mean residency of cells that may be compared, in bytes."""


def reclaim(mechanism: str, state: str, capacity: str = "4.4%", **words: Any) -> Cell:
    """Return a cell of the findings on reclaim, for a mechanism and a state of MGLRU."""
    return cell_of("reclaim", capacity, **{"workload": "reclaim", "mechanism": mechanism, "mglru": state, **words})


def held(
    cell: Cell, *rounds: float, at: float = HELD, states: Mapping[str, str] | None = None, **more: Any
) -> CellResult:
    """Return a proved cell that read so many bytes in each round, at a mean residency; ``more`` are other figures.

    Its amplification is the bytes that it read, unless given.
    """
    count = len(rounds)
    figures = {
        "device_bytes": rounds,
        "amplification": rounds,
        "observed_capacity_bytes": [at] * count,
        "capacity_bytes": [HELD] * count,
    }
    further = {name: one if isinstance(one, Sequence) else [one] * count for name, one in more.items()}
    return proved(cell, {**figures, **further}, states)


def pages(iterations: Sequence[tuple[int, int, int]], capacity_pages: int = 300, asked: int = 100) -> Audit:
    """Return the audit of a pass.

    Args:
        iterations: file pages of the oldest generation before each, those of the others, and pages read in it.
        capacity_pages: C.
        asked: pages that each iteration asked for.
    """
    samples = [
        Sample(at, float(at), {generations.PATH: f"memcg 28 /cell\n node 0\n 3 9 0 {oldest}\n 4 9 0 {others}\n"})
        for at, (oldest, others, _) in enumerate(iterations)
    ]
    return audit_of(
        samples,
        device_bytes=[read * PAGE_BYTES for *_, read in iterations],
        logical_bytes=[asked * PAGE_BYTES] * len(iterations),
        capacity_bytes=capacity_pages * PAGE_BYTES,
    )


def marked(test: Callable[..., None], finding: str, *kernels: str) -> list[Cell]:
    """Return the cells that a test of a finding asks for where these kernels are named, by its own markers."""
    own = getattr(test, "pytestmark", [])
    definition = SimpleNamespace(
        get_closest_marker=lambda name: next((one for one in own if one.name == name), None),
        path=BENCH / f"test_{finding}.py",
        nodeid=f"test_{finding}.py::{test.__name__}",
    )
    defaults = {f"moetier_{name}": default for name, default, *_ in plugin._OPTIONS}  # noqa: SLF001
    option = SimpleNamespace(moetier_kernel=list(kernels))
    getini = {**defaults, "moetier_trace": [], "moetier_kernel": []}.__getitem__
    return cells_for(SimpleNamespace(option=option, getini=getini), definition)  # type: ignore[arg-type]


def proved(cell: Cell, rounds: Rounds, states: Mapping[str, str] | None = None) -> CellResult:
    """Return a cell proved in every round, with these figures; its seconds are 1 unless they are given."""
    known = {"seconds_per_iteration": [1.0] * max(map(len, rounds.values()), default=1), **rounds}
    count = len(next(iter(rounds.values()), known["seconds_per_iteration"]))
    proof = Proof(tuple(Invariant(name, state, "", "") for name, state in (states or {}).items()))
    result = CellResult(cell)
    for at in range(count):
        figures = Figures(**{name: values[at] for name, values in known.items()})  # type: ignore[arg-type]
        result.runs.append(ProvedRun(None, figures, proof))  # type: ignore[arg-type]
        result.proofs.append(proof)
    return result


def lost(cell: Cell, *, skipped: MoetierError | None = None, invalid: str = "") -> CellResult:
    """Return a cell that was skipped, or of which a round was not proved."""
    return CellResult(cell, skipped=skipped, invalid=[invalid] if invalid else [])


@dataclass
class Known:
    """A session of known cells.

    Attributes:
        finding: the finding whose file the tests are in.
        results: the cells that the session has measured.
        elsewhere: cells that a test of another file asked for.
        refusal: why the session could not measure at all.
    """

    finding: str
    results: Sequence[CellResult]
    elsewhere: Sequence[CellResult] = ()
    refusal: MoetierError | None = None
    session: MoetierSession = field(init=False)

    def __post_init__(self) -> None:
        """Make the session."""
        everything = [*self.results, *self.elsewhere]
        campaign = SimpleNamespace(
            results={one.cell.id: one for one in everything},
            context_of=lambda _cell: SimpleNamespace(pool_bytes=POOL_BYTES),
            refusal=self.refusal,
            settings=SimpleNamespace(rounds_of=lambda _cell: max((len(one.runs) for one in everything), default=1)),
        )
        self.session = MoetierSession(None, campaign, None, None, None)  # type: ignore[arg-type]

    def request(self, name: str, cell: Cell | None = None) -> Any:
        """Return what pytest would ask the fixtures with, for a test of the finding's file."""
        path = BENCH / f"test_{self.finding}.py"
        items = [_item(path, one.cell) for one in self.results]
        items += [_item(BENCH / "test_elsewhere.py", one.cell) for one in self.elsewhere]
        node = SimpleNamespace(path=path, nodeid=f"{path.name}::{name}", name=name, stash=pytest.Stash())
        return SimpleNamespace(node=node, session=SimpleNamespace(items=items), param=cell)

    def curve(self, name: str = "test_known", kernel: str | None = None) -> CurveHandle:
        return CurveHandle(self.request(name), self.session, kernel)

    def judged(self, test: Callable[..., None], *args: Any) -> Record:
        """Run a finding over several cells and return its record; pytest's outcome must be the verdict's."""
        name = test.__name__ + "".join(f"[{one}]" for one in args)
        curve = self.curve(name)
        ended = _ended(lambda: test(curve, *args))
        record = self.session.records[f"test_{self.finding}.py::{name}"]
        assert record.verdict == ended
        return record

    def judged_cell(self, test: Callable[..., None], cell: Cell) -> Record:
        """Run a finding on one cell and return its record."""
        name = f"{test.__name__}[{cell.id}]"
        (result,) = (one for one in (*self.results, *self.elsewhere) if one.cell.id == cell.id)
        handle = CellHandle(self.request(name, cell), self.session, result, None)
        ended = _ended(lambda: test(handle))
        record = self.session.records[f"test_{self.finding}.py::{name}"]
        assert record.verdict == ended
        return record


def _item(path: Path, cell: Cell) -> Any:
    return SimpleNamespace(path=path, callspec=SimpleNamespace(params={"moetier_cell": cell}))


def _ended(run: Callable[[], None]) -> str:
    try:
        run()
    except pytest.fail.Exception:
        return "refuted"
    except pytest.skip.Exception:
        return "not_examined"
    return "supported"


def values(record: Record) -> dict[str, float | None]:
    """Return what was judged, by the value's name."""
    return {one.bound.value: one.value for one in record.judgements}


def verdicts(record: Record) -> dict[str, str]:
    """Return the verdict on each value, by its name."""
    return {one.bound.value: one.verdict for one in record.judgements}
