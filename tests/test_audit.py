"""The generation audit: what the generations held beside the traffic, and whether the room left tells a collapse."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moetier.audit import Audit, NamedAudit, Unused, audit_of, unused_shares
from pytest_moetier.audit import tests_over as over_several
from pytest_moetier.errors import InputError
from pytest_moetier.host import generations
from pytest_moetier.plots import draw_audit
from pytest_moetier.units import PAGE_BYTES

KERNELS = Path(__file__).parents[1] / "fixtures" / "kernels"
GROUP = "/moetier-9-cell"
STAT = "/sys/fs/cgroup/moetier-9-cell/memory.stat"
ASKED = 64 << 20
"""Bytes that each iteration of a recorded pass asked for."""
PAGES = ASKED // PAGE_BYTES
WALL = 147 << 20


@dataclass(frozen=True)
class Sample:
    iteration: int
    clock_seconds: float
    files: dict[str, str | None] = field(default_factory=dict)


def text(first: int, anon: Sequence[int], file: Sequence[int], group: str = GROUP) -> str:
    """Return lru_gen with a root group of a few pages and one group with these generations."""
    rows = "".join(f" {first + at} 9 {one} {other}\n" for at, (one, other) in enumerate(zip(anon, file, strict=True)))
    return f"memcg 1 /\n node 0\n 0 99 0 2\n 1 99 800 0\nmemcg 28 {group}\n node 0\n{rows}"


@dataclass(frozen=True)
class Recorded:
    samples: list[Sample]
    device: list[int]

    def audit(self, **further: object) -> Audit:
        asked = [ASKED] * len(self.device)
        return audit_of(self.samples, device_bytes=self.device, logical_bytes=asked, capacity_bytes=WALL, **further)  # type: ignore[arg-type]


def recorded(name: str) -> Recorded:
    with (KERNELS / f"{name}-pass.csv").open() as file:
        rows = list(csv.DictReader(file))
    samples = []
    for row in rows:
        pages = [[int(one) for one in row[f"{kind}_pages"].split()] for kind in ("anon", "file")]
        files = {
            generations.PATH: text(int(row["min_seq"]), *pages),
            STAT: f"pgscan {row['pgscan']}\npgsteal {row['pgsteal']}\n",
        }
        samples.append(Sample(int(row["iteration"]), float(row["iteration"]), files))
    return Recorded(samples, [int(row["device_bytes"]) for row in rows])


@pytest.fixture(scope="module")
def wall() -> Audit:
    """A wall in 7.3 whose traffic comes in waves."""
    return recorded("7.3/wall").audit()


@pytest.fixture(scope="module")
def still() -> Audit:
    """A wall in 6.12 without waves or collapses."""
    return recorded("6.12/wall").audit()


def made(rooms: Sequence[int], device: Sequence[int | None], asked: int = PAGES) -> Audit:
    """Return the audit of a pass with so many pages of room before each iteration, and so many read in it."""
    samples = [
        Sample(at, float(at), {generations.PATH: text(3, [0, 0], [room, 3 * PAGES - room])})
        for at, room in enumerate(rooms)
    ]
    return audit_of(
        samples,
        device_bytes=[None if one is None else one * PAGE_BYTES for one in device],
        logical_bytes=[asked * PAGE_BYTES] * len(device),
        capacity_bytes=3 * PAGES * PAGE_BYTES,
    )


def test_a_moment_tells_numbers_ranks_and_what_is_protected(wall: Audit) -> None:
    assert wall.group == GROUP
    assert len(wall.moments) == len(wall.device_bytes) == 500
    first = wall.moments[0]
    assert (first.iteration, first.min_seq, first.max_seq) == (1, 0, 3)
    assert (first.file_pages, first.anon_pages) == ((18528, 16526, 0, 0), (0, 0, 1164, 0))
    assert (first.oldest_bytes, first.protected_bytes) == (18528 * 4096, 16526 * 4096)
    assert (first.scan_pages, first.steal_pages) == (321971, 321956)
    # The oldest generation was emptied and given up; a new one was made at the young end.
    seventieth = wall.moments[69]
    assert (seventieth.min_seq, seventieth.max_seq, seventieth.file_pages) == (1, 4, (22310, 11638, 0, 0))


def test_the_recorded_wave_is_seen_in_the_traffic_and_in_the_ageing(wall: Audit) -> None:
    assert wall.wave is not None
    assert wall.wave.found
    assert wall.wave.period == pytest.approx(84.5, abs=1)
    aged = [
        after.iteration
        for before, after in zip(wall.moments, wall.moments[1:], strict=False)
        if after.max_seq > before.max_seq
    ]
    assert len(aged) == 6
    assert np.diff(aged).mean() == pytest.approx(wall.wave.period, rel=0.05)


def test_in_the_recorded_wall_the_room_tells_every_collapse(wall: Audit) -> None:
    oldest, left = wall.tests
    assert (oldest.room, left.room) == ("oldest generation", "C - protected")
    assert (oldest.collapsed, oldest.healthy) == (left.collapsed, left.healthy) == (260, 239)
    assert oldest.auc == pytest.approx(0.9997, abs=1e-4)
    assert (oldest.verdict, oldest.reason) == ("supported", "")
    missed, before = oldest.lines
    assert (missed.insertions, before.insertions) == ("all missed", "as before")
    assert (missed.collapsed_below, missed.collapsed_above, missed.healthy_below, missed.healthy_above) == (
        260,
        0,
        98,
        141,
    )
    assert (before.collapsed_below, before.collapsed_above, before.healthy_below, before.healthy_above) == (
        260,
        0,
        2,
        237,
    )
    assert missed.right == pytest.approx((1 + 141 / 239) / 2)
    assert before.right == pytest.approx((1 + 237 / 239) / 2)
    # Each collapse begins when the room falls below what the iteration before it inserted: three quarters of its bytes.
    assert len(missed.onsets) == len(before.onsets) == 6
    assert all(0.7 < one < 0.8 for one in missed.onsets)
    assert all(0.85 < one < 1 for one in before.onsets)


def test_under_the_balloon_the_same_inference_holds_less_sharply() -> None:
    audit = recorded("7.3/balloon").audit()
    oldest = audit.tests[0]
    assert min(oldest.collapsed, oldest.healthy) > 50
    assert oldest.verdict == "supported"
    assert oldest.auc is not None
    assert 0.9 < oldest.auc < 0.99


def test_a_pass_without_collapses_says_nothing_of_the_inference_by_itself(still: Audit) -> None:
    assert still.wave is not None
    assert not still.wave.found
    assert {one.max_seq for one in still.moments} == {3}
    for test in still.tests:
        assert (test.collapsed, test.healthy, test.auc, test.verdict) == (0, 219, None, "not_examined")
        assert (
            test.reason
            == "0 iterations collapsed and 219 did not: at least 10 of each are needed to compare their room"
        )


def test_over_several_passes_room_counts_as_a_share_of_what_was_asked(wall: Audit, still: Audit) -> None:
    oldest, _ = over_several([wall, still])
    assert (oldest.collapsed, oldest.healthy, oldest.verdict) == (260, 239 + 219, "supported")
    # A pass with experts of a tenth has a tenth of the room at the same share: nothing changes.
    small = made([PAGES // 20] * 10 + [PAGES // 5] * 10, [PAGES // 10] * 10 + [PAGES // 20] * 10, PAGES // 10)
    large = made([PAGES // 2] * 10 + [PAGES * 2] * 10, [PAGES] * 10 + [PAGES // 2] * 10)
    assert [one.auc for one in (small.tests[0], large.tests[0], over_several([small, large])[0])] == [1, 1, 1]
    assert over_several([wall]) == wall.tests
    with pytest.raises(InputError, match="no audit"):
        over_several([])


def test_room_that_tells_nothing_refutes_the_inference() -> None:
    audit = made([PAGES // 2, PAGES * 2] * 20, [PAGES, PAGES, PAGES // 2, PAGES // 2] * 10)
    for test in audit.tests:
        assert (test.auc, test.verdict, test.reason) == (0.5, "refuted", "")
        assert test.lines[0].right == 0.5


def test_more_room_before_a_collapse_refutes_it_too() -> None:
    audit = made([PAGES * 2] * 10 + [PAGES // 2] * 10, [PAGES] * 10 + [PAGES // 2] * 10)
    assert (audit.tests[0].auc, audit.tests[0].verdict) == (0.0, "refuted")


def test_room_that_tells_a_little_is_not_judged() -> None:
    audit = made([1] * 6 + [3] * 4 + [2] * 10, [PAGES] * 10 + [PAGES // 2] * 10)
    assert audit.tests[0].auc == pytest.approx(0.6)
    audit = made([1] * 8 + [3] * 2 + [2] * 10, [PAGES] * 10 + [PAGES // 2] * 10)
    assert audit.tests[0].auc == pytest.approx(0.8)
    assert audit.tests[0].verdict == "not_examined"
    assert audit.tests[0].reason == "AUC 0.80 is between 0.7 (refuted) and 0.9 (supported)"


def test_nine_collapses_are_too_few_and_ten_are_enough() -> None:
    for collapsed, verdict in ((9, "not_examined"), (10, "supported")):
        audit = made([1] * collapsed + [PAGES * 2] * 30, [PAGES] * collapsed + [PAGES // 2] * 30)
        assert (audit.tests[0].collapsed, audit.tests[0].verdict) == (collapsed, verdict)


def test_nine_tenths_of_what_is_asked_is_a_collapse_and_less_is_none() -> None:
    audit = made([1] * 3, [900, 899, 901], 1000)
    assert (audit.tests[0].collapsed, audit.tests[0].healthy) == (2, 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40))
def test_the_area_is_the_share_of_pairs_in_which_the_collapsed_one_had_less_room(rows: list[tuple[int, bool]]) -> None:
    audit = made([room for room, _ in rows], [PAGES if collapsed else 0 for _, collapsed in rows])
    bad, good = ([room for room, collapsed in rows if collapsed is kind] for kind in (True, False))
    pairs = [(one < other) + (one == other) / 2 for one in bad for other in good]
    assert audit.tests[0].auc == (pytest.approx(sum(pairs) / len(pairs)) if pairs else None)
    missed = audit.tests[0].lines[0]
    assert missed.collapsed_below + missed.collapsed_above == len(bad)
    assert missed.healthy_below + missed.healthy_above == len(good)
    began = [at for at in range(1, len(rows)) if rows[at][1] and not rows[at - 1][1]]
    assert missed.onsets == tuple(rows[at][0] / PAGES for at in began)


def test_the_first_iteration_has_none_before_it_and_nothing_inserted_leaves_room_enough() -> None:
    before = made([5, 5, 5], [0, 0, PAGES]).tests[0].lines[1]
    assert (before.collapsed_below, before.collapsed_above, before.healthy_below, before.healthy_above) == (0, 1, 0, 1)
    assert before.onsets == ()


def test_iterations_that_no_sample_precedes_are_not_judged_and_no_collapse_begins_behind_a_gap() -> None:
    whole = made([PAGES * 2] * 4 + [1] * 4, [0] * 4 + [PAGES] * 4)
    assert len(whole.tests[0].lines[0].onsets) == 1
    every_other = Recorded(
        [Sample(one.iteration, 0.0, {generations.PATH: text(3, [0, 0], one.file_pages)}) for one in whole.moments[::2]],
        list(whole.device_bytes),
    )
    test = every_other.audit().tests[0]
    assert (test.collapsed, test.healthy, test.lines[0].onsets) == (2, 2, ())


def test_iterations_count_from_the_beginning_of_the_pass_wherever_in_the_plan_that_is() -> None:
    one = recorded("7.3/balloon")
    later = [Sample(sample.iteration + 30, sample.clock_seconds, sample.files) for sample in one.samples]
    assert Recorded(later, one.device).audit(first=30) == one.audit()


def test_a_sample_behind_the_last_iteration_is_drawn_but_precedes_nothing() -> None:
    audit = made([5, 5, 5], [0, 0])
    assert len(audit.moments) == 3
    assert audit.tests[0].healthy == 2


def test_unknown_device_bytes_leave_the_generations_and_nothing_else() -> None:
    audit = made([1] * 40, [PAGES] * 39 + [None])
    assert (audit.device_bytes, audit.wave) == ((), None)
    assert len(audit.moments) == 40
    assert audit.tests[0].verdict == "not_examined"
    assert audit.tests[0].reason.startswith("no sample of generations")


@pytest.mark.parametrize(
    "files",
    [
        {},
        {generations.PATH: None},
        {generations.PATH: "memcg 1 /\n no"},
        {generations.PATH: text(0, [0, 0, 0, 0], [0, 0, 0, 0]).replace(" 0 99 0 2", " 0 99 0 0")},
    ],
    ids=["not sampled", "unreadable", "cut off", "switched off"],
)
def test_without_generations_the_traffic_is_still_told(files: dict[str, str | None]) -> None:
    one = recorded("7.3/wall")
    audit = Recorded([Sample(sample.iteration, 0.0, files) for sample in one.samples], one.device).audit()
    assert (audit.group, audit.moments) == ("", ())
    assert audit.wave is not None
    assert audit.wave.found
    assert {test.verdict for test in audit.tests} == {"not_examined"}


def test_the_group_is_the_fullest_unless_it_is_named() -> None:
    one = recorded("6.12/wall")
    assert one.audit().group == GROUP
    root = one.audit(group="/")
    assert (root.group, root.moments[0].file_pages) == ("/", (2, 0))
    assert one.audit(group="/none").moments == ()


def test_reclaim_is_the_groups_where_it_was_sampled_and_else_all_there_was() -> None:
    vmstat = "pgscan_file 50\npgscan_anon 3\npgsteal_file 40\npgsteal_anon 2\n"
    gens = {generations.PATH: text(0, [0, 0], [5, 5])}
    samples = [
        Sample(0, 0.0, {**gens, "/proc/vmstat": vmstat}),
        Sample(1, 1.0, {**gens, "/proc/vmstat": vmstat, STAT: "pgscan 7\npgsteal 6\n"}),
        Sample(2, 2.0, {**gens, "/proc/vmstat": "nr_free_pages 1\n", STAT: None}),
    ]
    audit = audit_of(samples, device_bytes=[0, 0], logical_bytes=[1, 1], capacity_bytes=1)
    assert [(one.scan_pages, one.steal_pages) for one in audit.moments] == [(53, 42), (7, 6), (None, None)]


def test_a_wave_of_the_demand_itself_is_told_beside_that_of_the_traffic() -> None:
    one = recorded("7.3/wall")
    demand = [ASKED / 2 * (1 + 0.2 * np.sin(2 * np.pi * at / 50)) for at in range(len(one.device))]
    audit = one.audit(nominal_bytes=demand)
    assert audit.demand_wave is not None
    assert audit.demand_wave.found
    assert audit.demand_wave.period == pytest.approx(50, abs=1)
    assert one.audit().demand_wave is None


def test_series_of_different_length_are_refused() -> None:
    with pytest.raises(InputError, match="of 2, 1 and 0 iterations"):
        audit_of([], device_bytes=[1, 2], logical_bytes=[1], capacity_bytes=1)
    with pytest.raises(InputError, match="of 1, 1 and 2 iterations"):
        audit_of([], device_bytes=[1], logical_bytes=[1], nominal_bytes=[1, 1], capacity_bytes=1)


@dataclass(frozen=True)
class Reads:
    sequence: np.ndarray
    expert_bytes: np.ndarray
    iterations: np.ndarray


def test_unused_is_what_the_last_iterations_did_not_read_by_resident_bytes() -> None:
    # Iterations of one access: experts 0, 1, 2, 3, 0; expert 4 is never read.
    plan = Reads(np.array([0, 1, 2, 3, 0], np.uint32), np.full(5, 100, np.uint64), np.arange(6, dtype=np.uint64))
    resident = np.array([100, 50, 0, 100, 50], np.uint64)
    assert unused_shares(plan, resident, (1, 2, 4, 5, 64)) == (
        Unused(1, 200 / 300),
        Unused(2, 100 / 300),
        Unused(4, 50 / 300),
    )
    assert unused_shares(plan, np.zeros(5, np.uint64), (1,)) == ()
    with pytest.raises(InputError, match="resident bytes of 2 experts"):
        unused_shares(plan, np.zeros(2, np.uint64))


def test_the_audit_in_json_has_every_number_as_it_is(wall: Audit) -> None:
    document = json.loads(json.dumps(wall.as_json(), allow_nan=False))
    assert document["moments"][0]["file_pages"] == [18528, 16526, 0, 0]
    assert document["wave"]["period"] == wall.wave.period  # type: ignore[union-attr]
    assert document["tests"][0]["lines"][1]["healthy_below"] == 2
    assert sum(document["device_bytes"]) == sum(wall.device_bytes)


def texts(path: Path) -> list[str]:
    """Return the words of an SVG, which must be well-formed."""
    root = ET.fromstring(path.read_bytes())  # noqa: S314 - our own file
    return [(one.text or "").strip() for one in root.iter("{http://www.w3.org/2000/svg}text")]


def width_of(path: Path) -> float:
    return float(ET.fromstring(path.read_bytes()).attrib["width"].removesuffix("pt"))  # noqa: S314 - our own file


def test_the_figure_names_cells_axes_ranks_and_periods(wall: Audit, still: Audit, tmp_path: Path) -> None:
    path = tmp_path / "audit.svg"
    draw_audit([NamedAudit("wall-k7.3", wall), NamedAudit("wall-k6.12", still)], path)
    found = texts(path)
    assert {"wall-k7.3", "period 85 iterations, amplitude 6.8 MB", "wall-k6.12", "no period found"} <= set(found)
    for label, times in (("iteration", 2), ("max_seq", 3), ("MB an iteration", 1), ("file pages (MB)", 1)):
        assert found.count(label) == times, label  # max_seq: two axes, and its line
    assert {"device bytes", "asked for", "oldest (reclaimed from)", "second", "scan", "steal"} <= set(found)
    assert "nominal misses (LRU)" not in found


def test_every_cell_is_drawn_to_the_same_size(wall: Audit, still: Audit, tmp_path: Path) -> None:
    widths = []
    for cells in (1, 2, 3):
        draw_audit([NamedAudit(f"cell {at}", (wall, still)[at % 2]) for at in range(cells)], tmp_path / "audit.svg")
        widths.append(width_of(tmp_path / "audit.svg"))
    assert widths[1] - widths[0] == pytest.approx(widths[2] - widths[1]) == pytest.approx(4.05 * 72, abs=0.1)


def test_a_picture_has_the_sketched_size_and_is_the_same_each_time(still: Audit, tmp_path: Path) -> None:
    pictures = []
    for name in ("one.png", "two.png"):
        draw_audit([NamedAudit("cell", still)], tmp_path / name)
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]
    assert pictures[0].startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">I", pictures[0][16:20]) == (round(4.34 * 300),)


def test_a_cell_without_generations_or_traffic_is_drawn_with_what_it_has(wall: Audit, tmp_path: Path) -> None:
    blind = audit_of([], device_bytes=[None] * 5, logical_bytes=[ASKED] * 5, capacity_bytes=WALL)
    nominal = audit_of(
        [], device_bytes=[9] * 5, logical_bytes=[ASKED] * 5, nominal_bytes=[9.0] * 5, capacity_bytes=WALL
    )
    draw_audit([NamedAudit("a", wall), NamedAudit("b", blind), NamedAudit("c", nominal)], tmp_path / "audit.svg")
    found = texts(tmp_path / "audit.svg")
    assert found.count("no generations to see") == 2
    assert found.count("device bytes not observed") == 1
    assert "nominal misses (LRU)" in found


def test_nothing_to_draw_and_other_kinds_of_file_are_refused(wall: Audit, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no audit to draw"):
        draw_audit([], tmp_path / "audit.svg")
    with pytest.raises(InputError, match=r"ends in \.svg or \.png"):
        draw_audit([NamedAudit("a", wall)], tmp_path / "audit.pdf")
    assert list(tmp_path.iterdir()) == []
