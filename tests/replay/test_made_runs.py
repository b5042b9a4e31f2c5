"""What figures and proof make of passes that are made up: warm passes of the plan's end, waves, reclaim and folios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from made_runs import EXPERT_BYTES, POOL_BYTES, pass_of, plan, run_of

from pytest_moetier.cell import Cell
from pytest_moetier.figures import Demand, Figures, figures_of
from pytest_moetier.finding import metrics_of
from pytest_moetier.host import generations
from pytest_moetier.host.cgroup import ScopeFiles
from pytest_moetier.plan import Plan
from pytest_moetier.proof import Proof, ProvedRun, examine
from pytest_moetier.proof.traffic import steadiness
from pytest_moetier.replay import Run
from pytest_moetier.replayer import Folios, Sample
from pytest_moetier.units import PAGE_BYTES, Capacity

CELL = Cell("reclaim", Capacity.parse("25%"), workload="reclaim", kernel="6.12")
CAPACITY = POOL_BYTES // 4
ITERATIONS = 150
WARM = 30
READS = 16
NOMINAL = READS * EXPERT_BYTES


@pytest.fixture(scope="module")
def uneven() -> Plan:
    """A plan over experts of different sizes, so that no two stretches of it are of as many bytes."""
    made = plan(ITERATIONS)
    sizes = EXPERT_BYTES - PAGE_BYTES * np.arange(made.n_experts, dtype=np.uint64)
    return replace(made, expert_bytes=sizes)


@pytest.fixture(scope="module")
def demand(uneven: Plan) -> Demand:
    """What it asks of a cache of any size."""
    return Demand.of(uneven, 1.0)


@pytest.fixture(scope="module")
def round_robin() -> Plan:
    """A plan that reads all experts in turn: an LRU below the pool's size misses the same in every iteration."""
    made = plan(ITERATIONS)
    return replace(
        made,
        iterations=np.arange(ITERATIONS + 1, dtype=np.uint64) * np.uint64(READS),
        sequence=np.arange(ITERATIONS * READS, dtype=np.uint32) % np.uint32(made.n_experts),
    )


@pytest.fixture(scope="module")
def all_missed(round_robin: Plan) -> Demand:
    """What that asks of a cache: everything."""
    return Demand.of(round_robin, 1.0)


def run(plan_: Plan, device: Sequence[int | None] = (), **further: Any) -> Run:
    read = device or [0] * plan_.n_iterations
    return run_of(CELL, plan_, CAPACITY, read, [CAPACITY] * 4, **further)


def states(one: Run, demand: Demand) -> dict[str, str]:
    return {line.name: line.state for line in examine(one, demand, figures_of(one, demand)).invariants}


@pytest.mark.parametrize("warm", [0, 1, WARM, ITERATIONS])
def test_a_warm_pass_must_deliver_the_plans_last_iterations(uneven: Plan, demand: Demand, warm: int) -> None:
    made = run(uneven, warm_iterations=warm)
    assert len(made.warm.iterations) == (warm or ITERATIONS)
    found = states(made, demand)
    assert (found["delivered_warm"], found["delivered_measured"]) == ("held", "held")


def replaced(made: Run, **changes: Any) -> Run:
    return replace(made, warm=replace(made.warm, **changes))


def of_the_beginning(made: Run, plan_: Plan) -> Run:
    """Let the warm pass be as long, but of the plan's first iterations."""
    first = replace(
        plan_,
        iterations=plan_.iterations[: WARM + 1],
        sequence=plan_.sequence[: int(plan_.iterations[WARM])],
    )
    return replace(made, warm=pass_of("warm", first, [0] * WARM))


def whole(made: Run, plan_: Plan) -> Run:
    return replace(made, warm=pass_of("warm", plan_, [0] * ITERATIONS))


def shorter(made: Run, plan_: Plan) -> Run:
    return replace(made, warm=pass_of("warm", plan_, [0] * (WARM - 1), last=WARM - 1))


OTHERWISE: dict[str, Callable[[Run, Plan], Run]] = {
    "the whole plan": whole,
    "its beginning": of_the_beginning,
    "an iteration less": shorter,
    "a byte less": lambda made, _: replaced(made, bytes=made.warm.bytes - 1),
    "a read more": lambda made, _: replaced(made, accesses=made.warm.accesses + 1),
    "a lost iteration": lambda made, _: replaced(made, iterations=made.warm.iterations[1:]),
    "the whole was due": lambda made, _: replace(made, warm_iterations=0),
    "an iteration more was due": lambda made, _: replace(made, warm_iterations=WARM + 1),
}


@pytest.mark.parametrize("change", OTHERWISE)
def test_a_warm_pass_of_anything_else_breaks_the_proof(uneven: Plan, demand: Demand, change: str) -> None:
    changed = OTHERWISE[change](run(uneven, warm_iterations=WARM), uneven)
    found = states(changed, demand)
    assert (found["delivered_warm"], found["delivered_measured"]) == ("broken", "held")


def test_a_measured_pass_of_the_plans_end_breaks_the_proof(uneven: Plan, demand: Demand) -> None:
    short = replace(run(uneven, warm_iterations=WARM), measured=pass_of("measured", uneven, [0] * WARM, last=WARM))
    assert states(short, demand)["delivered_measured"] == "broken"


def swinging(period: float, turn: float = 0.0, iterations: int = ITERATIONS) -> list[int]:
    """Return device bytes that swing about 1.2 times the nominal ones by as many as these."""
    at = np.arange(iterations)
    return (NOMINAL * (1.2 + np.sin(2 * np.pi * (at / period + turn)))).round().astype(int).tolist()


def by_thirds(device: Sequence[int]) -> list[float]:
    return [float(one.mean()) / NOMINAL for one in np.array_split(np.array(device), 3)]


def by_borders(device: Sequence[int], *borders: int) -> list[float]:
    return [float(np.mean(device[one:other])) / NOMINAL for one, other in pairwise((0, *borders))]


def steady(figures: Figures) -> tuple[str, str]:
    (line,) = steadiness(figures)
    return line.state, line.expected


@pytest.mark.parametrize(
    ("period", "turn", "borders"),
    [(33, 0.125, (33, 66, 99, 132)), (40, 0.0, (40, 80, 120)), (60, 0.125, (60, 120))],
)
def test_a_pass_that_swings_is_steady_by_whole_periods_where_thirds_are_phases(
    round_robin: Plan, all_missed: Demand, period: int, turn: float, borders: tuple[int, ...]
) -> None:
    device = swinging(period, turn)
    figures = figures_of(run(round_robin, device), all_missed)
    assert figures.wave is not None
    assert figures.wave.period == pytest.approx(period, abs=0.5)
    assert figures.wave.amplitude == pytest.approx(1.0, abs=0.15)
    assert figures.part == f"period of {period} iterations"
    # What lies behind the last whole period counts nowhere.
    assert figures.part_ratios == pytest.approx(by_borders(device, *borders))
    assert figures.part_ratios == pytest.approx([1.2] * len(borders), abs=0.01)
    assert steady(figures) == ("held", f"device/nominal of each period of {period} iterations within 10% of the pass's")
    assert figures.amplification == pytest.approx(np.mean(device) / NOMINAL)
    assert max(abs(one / figures.amplification - 1) for one in by_thirds(device)) > 0.1


def test_a_wave_that_grows_is_not_steady(round_robin: Plan, all_missed: Demand) -> None:
    device = [one if at < 90 else 2 * one for at, one in enumerate(swinging(30, 0.125))]
    figures = figures_of(run(round_robin, device), all_missed)
    assert figures.part == "period of 30 iterations"
    assert figures.part_ratios == pytest.approx([1.2, 1.2, 1.2, 2.4, 2.4], abs=0.1)
    assert steady(figures)[0] == "flagged"


@pytest.mark.parametrize(("rise", "state"), [(0.0, "held"), (0.2, "held"), (0.5, "flagged"), (-0.5, "flagged")])
def test_a_pass_without_a_wave_is_steady_by_thirds(
    round_robin: Plan, all_missed: Demand, rise: float, state: str
) -> None:
    growth = 2 + 2 * rise * np.arange(ITERATIONS) / ITERATIONS + np.random.default_rng(1).normal(0, 0.05, ITERATIONS)
    device = (NOMINAL * growth).round().astype(int).tolist()
    figures = figures_of(run(round_robin, device), all_missed)
    assert (figures.wave, figures.part) == (None, "third")
    assert figures.part_ratios == pytest.approx(by_thirds(device))
    assert steady(figures) == (state, "device/nominal of each third within 10% of the pass's")


def test_a_wave_of_which_only_one_period_is_whole_is_judged_by_thirds(round_robin: Plan, all_missed: Demand) -> None:
    device = swinging(76, turn=0.125)
    figures = figures_of(run(round_robin, device), all_missed)
    assert figures.wave is not None
    assert figures.wave.period > (ITERATIONS + 0.5) / 2
    assert figures.part == "third"
    assert figures.part_ratios == pytest.approx(by_thirds(device))
    assert steady(figures)[0] == "flagged"


def test_a_wave_of_the_demand_is_none_of_the_traffic(round_robin: Plan) -> None:
    """What the devices read beyond the nominal is looked at: a trace may have phases of its own."""
    busy = [8 + round(8 * (1 + np.sin(2 * np.pi * at / 40))) for at in range(ITERATIONS)]
    borders = np.cumsum([0, *busy]).astype(np.uint64)
    sequence = np.arange(borders[-1], dtype=np.uint32) % np.uint32(round_robin.n_experts)
    phased = replace(round_robin, iterations=borders, sequence=sequence)
    device = [2 * one * EXPERT_BYTES for one in busy]
    made = run(phased, device)
    demand = Demand.of(phased, 1.0)
    figures = figures_of(made, demand)
    assert figures.amplification == pytest.approx(2.0)
    assert figures.part_ratios == pytest.approx([2.0] * len(figures.part_ratios))
    once = figures_of(run(phased, [one * EXPERT_BYTES for one in busy]), demand)
    assert (once.wave, once.part, once.part_ratios) == (None, "third", pytest.approx([1.0] * 3))


@pytest.mark.parametrize("blind", ["device", "residency"])
def test_where_bytes_or_residency_were_not_observed_there_are_no_parts(
    round_robin: Plan, all_missed: Demand, blind: str
) -> None:
    device = swinging(60)
    made = run(round_robin, [None, *device[1:]] if blind == "device" else device)
    if blind == "residency":
        made = replace(made, measured=replace(made.measured, residencies=()))
    figures = figures_of(made, all_missed)
    assert (figures.wave, figures.part_ratios, figures.part, figures.audit) == (None, (), None, None)
    assert steady(figures)[0] == "unobserved"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (((300, 200), (9000, 100), (9000, 100)), 1.5),
        (((300, 0), (9000, 100), (9000, 100)), None),
        (((None, 200), (300, 100), (300, 200)), 2.0),
        (((300, None), (300, 100), (300, 200)), 2.0),
        (((None, None), (400, 100), (None, None)), 4.0),
        (((None, None), (None, None), (400, 100)), 4.0),
        (((None, None), (0, 0), (0, 0)), None),
        (((None, None), (None, None), (None, None)), None),
    ],
    ids=str,
)
def test_scan_per_steal_is_the_groups_or_else_that_of_kswapd_and_direct_reclaim_together(
    uneven: Plan, demand: Demand, rows: tuple[tuple[int | None, int | None], ...], expected: float | None
) -> None:
    names = ("memcg_{}", "pg{}_kswapd", "pg{}_direct")
    counted = {
        name.format(verb): pair[at]
        for name, pair in zip(names, rows, strict=True)
        for at, verb in enumerate(("scan", "steal"))
    }
    made = run(uneven)
    figures = figures_of(replace(made, interval=replace(made.interval, **counted)), demand)
    assert figures.scan_per_steal == expected


def test_the_locked_share_is_what_the_balloon_was_seen_to_lock_of_all_memory(uneven: Plan, demand: Demand) -> None:
    assert figures_of(run(uneven, total=1000, locked=810), demand).locked_share == 0.81
    assert figures_of(run(uneven, total=1000), demand).locked_share is None
    assert figures_of(run(uneven, locked=810), demand).locked_share is None
    asked = run(uneven, total=1000, locked=810)
    asked = replace(asked, enforced=replace(asked.enforced, locked_bytes=900, locked_bytes_observed=740))
    assert figures_of(asked, demand).locked_share == 0.74


def test_the_control_target_stands_beside_the_capacity(uneven: Plan, demand: Demand) -> None:
    made = replace(run(uneven), control_bytes=CAPACITY + PAGE_BYTES)
    figures = figures_of(made, demand)
    assert (figures.capacity_bytes, figures.control_bytes) == (CAPACITY, CAPACITY + PAGE_BYTES)
    found = metrics_of([ProvedRun(made, figures, Proof(()))])
    assert [found[name].values for name in ("capacity_bytes", "control_bytes")] == [
        (float(CAPACITY),),
        (float(CAPACITY + PAGE_BYTES),),
    ]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((8192,), 4096),
        ((4096, 0, 4096), (4096 + 16384) / 2),
        ((12288, 0, 0, 0, 65536), (12288 * 4096 + 65536 * 65536) / (12288 + 65536)),
        ((0, 0), None),
        ((), None),
        (None, None),
    ],
)
def test_the_mean_folio_is_that_in_which_a_resident_byte_lies(
    uneven: Plan, demand: Demand, sizes: tuple[int, ...] | None, expected: float | None
) -> None:
    made = run(uneven)
    seen = None if sizes is None else Folios(sizes, 99999, 1, 1, POOL_BYTES, POOL_BYTES, "", 0.0)
    made = replace(made, measured=replace(made.measured, folios=seen))
    assert figures_of(made, demand).folio_bytes == expected


TEXT = "memcg 1 /\n node 0\n 3 9 0 {more}\n 4 9 0 1\nmemcg 2 /moetier-1-cell\n node 0\n 3 9 0 40\n 4 9 7 60\n"


def sampled(made: Run, more: int = 9) -> Run:
    """Let generations be sampled before every other iteration, with so many file pages in the root's."""
    files = {generations.PATH: TEXT.format(more=more)}
    samples = tuple(Sample(at, float(at), files) for at in range(0, ITERATIONS, 2))
    return replace(made, measured=replace(made.measured, samples=samples))


def test_generations_that_were_sampled_are_audited_beside_the_traffic(round_robin: Plan, all_missed: Demand) -> None:
    device = swinging(60)
    assert figures_of(run(round_robin, device), all_missed).audit is None
    audit = figures_of(sampled(run(round_robin, device)), all_missed).audit
    assert audit is not None
    assert audit.group == "/moetier-1-cell"
    assert [one.iteration for one in audit.moments] == list(range(0, ITERATIONS, 2))
    assert {(one.oldest_bytes, one.protected_bytes) for one in audit.moments} == {(40 * 4096, 60 * 4096)}
    assert list(audit.device_bytes) == device
    assert set(audit.logical_bytes) == set(audit.nominal_bytes) == {NOMINAL}
    assert audit.capacity_bytes == CAPACITY
    assert audit.unused == ()


def test_the_generations_of_a_wall_are_its_scopes_however_few_pages_they_have(
    round_robin: Plan, all_missed: Demand
) -> None:
    made = sampled(run(round_robin, swinging(60)), more=900)
    fullest = figures_of(made, all_missed).audit
    scope = ScopeFiles(2, "/sys/fs/cgroup/moetier-1-cell")
    own = figures_of(replace(made, enforced=replace(made.enforced, scope=scope)), all_missed).audit
    assert fullest is not None
    assert own is not None
    assert (fullest.group, own.group) == ("/", "/moetier-1-cell")


def test_what_is_resident_and_unused_is_audited_where_residency_by_expert_is_known(
    round_robin: Plan, all_missed: Demand
) -> None:
    made = sampled(run(round_robin, swinging(60)))
    resident = [0] * round_robin.n_experts
    for at in (-1, -8 * READS, -8 * READS - 1, -8 * READS - 2):  # two that the last 8 iterations read, and two before
        resident[round_robin.sequence[at]] = EXPERT_BYTES
    made = replace(made, measured=replace(made.measured, resident_by_expert=tuple(resident)))
    audit = figures_of(made, all_missed).audit
    assert audit is not None
    assert [(one.iterations, one.share) for one in audit.unused] == [(8, 0.5), (24, 0.0), (64, 0.0)]
