"""A cell and its id: usable with -k, and different for different cells; what cannot go together is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moetier.cell import FILESYSTEMS, MECHANISMS, MGLRU_STATES, RECLAIM, SPINES, WORKLOADS, Cell
from pytest_moetier.errors import InputError, UnsupportedHostError
from pytest_moetier.modes import FILLS, MODES, PREFETCH
from pytest_moetier.units import Capacity

CAPACITY = Capacity.parse("4.4%")
CAPACITIES = st.one_of(
    st.integers(1, 999).map(lambda n: f"{n / 10}%"), st.integers(1, 999).map(lambda n: f"{n}GB")
).map(Capacity.parse)
SHARED = [word for word, mode in MODES.items() if mode.share]
WORDS = st.one_of(
    st.sampled_from(sorted(MODES)),
    st.tuples(st.sampled_from(SHARED), st.integers(1, 100)).map(lambda pair: f"{pair[0]}{pair[1]}"),
)
AXES = st.fixed_dictionaries(
    {
        "finding": st.just("capacity"),
        "capacity": CAPACITIES,
        "mechanism": st.sampled_from(MECHANISMS),
        "mglru": st.sampled_from(MGLRU_STATES),
        "mode": WORDS,
        "prefetch": st.sampled_from(PREFETCH),
        "workload": st.sampled_from(WORKLOADS),
        "fill": st.sampled_from(("", *FILLS)),
        "spine": st.sampled_from(SPINES),
        "read_limit": st.one_of(st.just(0), st.integers(1, 10**13)),
        "kernel": st.sampled_from(("host", "6.12", "6.12.118+deb13-amd64", "a-k6.12", "xfs")),
        "locked": st.one_of(st.just(0), st.integers(1, 99)),
        "read_ahead_kb": st.one_of(st.just(0), st.integers(1, 1 << 18).map(lambda pages: 4 * pages)),
        "filesystem": st.sampled_from(FILESYSTEMS),
    }
)


def made(axes: dict[str, Any]) -> Cell | None:
    try:
        return Cell(**axes)
    except InputError:
        return None


CELLS = AXES.map(made).filter(lambda cell: cell is not None)


@pytest.mark.parametrize(
    ("changes", "cell_id"),
    [
        ({}, "C4.4pct-cgroup-mglru_host"),
        ({"mechanism": "balloon", "mglru": "on"}, "C4.4pct-balloon-mglru_on"),
        ({"mode": "mmap"}, "C4.4pct-cgroup-mglru_host-mmap"),
        ({"mode": "hybrid25"}, "C4.4pct-cgroup-mglru_host-hybrid25"),
        ({"prefetch": "fadvise_oracle"}, "C4.4pct-cgroup-mglru_host-fadvise_oracle"),
        ({"workload": "batch4"}, "C4.4pct-cgroup-mglru_host-batch4"),
        ({"fill": "random"}, "C4.4pct-cgroup-mglru_host-fill_random"),
        ({"spine": "locked"}, "C4.4pct-cgroup-mglru_host-spine_locked"),
        ({"read_limit": 150_000_000}, "C4.4pct-cgroup-mglru_host-150MBps"),
        ({"read_limit": 1_500_000}, "C4.4pct-cgroup-mglru_host-1_5MBps"),
        ({"read_limit": 1}, "C4.4pct-cgroup-mglru_host-0_000001MBps"),
        ({"read_limit": 150_000_001}, "C4.4pct-cgroup-mglru_host-150_000001MBps"),
        ({"kernel": "6.12"}, "C4.4pct-cgroup-mglru_host-k6.12"),
        ({"mechanism": "balloon", "locked": 81, "mglru": "off"}, "C4.4pct-balloon81-mglru_off"),
        ({"read_ahead_kb": 4096, "filesystem": "xfs", "kernel": "7.3"}, "C4.4pct-cgroup-mglru_host-ra4096-xfs-k7.3"),
        ({"read_limit": 10**7, "read_ahead_kb": 4}, "C4.4pct-cgroup-mglru_host-10MBps-ra4"),
        ({"workload": "reclaim"}, "cgroup-mglru_host"),
        (
            {"workload": "reclaim", "mechanism": "balloon", "locked": 81, "mglru": "on", "kernel": "6.12"},
            "balloon81-mglru_on-k6.12",
        ),
        (
            {
                "workload": "reclaim",
                "capacity": Capacity.parse("6.4%"),
                "mechanism": "balloon",
                "locked": 74,
                "mglru": "off",
                "kernel": "6.12",
            },
            "balloon74-mglru_off-C6.4pct-k6.12",
        ),
        (
            {
                "workload": "reclaim_l16",
                "capacity": Capacity.parse("6.4%"),
                "mode": "mmap",
                "read_ahead_kb": 4096,
                "filesystem": "xfs",
                "kernel": "mine",
            },
            "cgroup-mglru_host-C6.4pct-l16-mmap-ra4096-xfs-kmine",
        ),
        (
            {
                "workload": "small_box",
                "mode": "mmap_pread",
                "prefetch": "blocking_plan",
                "fill": "mmap",
                "spine": "plain",
                "read_limit": 10**7,
            },
            "C4.4pct-cgroup-mglru_host-small_box-mmap_pread-blocking_plan-fill_mmap-spine_plain-10MBps",
        ),
    ],
)
def test_the_id_names_what_is_varied_and_leaves_out_defaults(changes: dict[str, Any], cell_id: str) -> None:
    assert replace(Cell("capacity", CAPACITY), **changes).id == cell_id


@given(cell=CELLS)
def test_an_id_is_usable_with_k(cell: Cell) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.+-]+", cell.id)


@given(one=CELLS, other=CELLS)
def test_different_cells_have_different_ids(one: Cell, other: Cell) -> None:
    assert (one.id == other.id) == (one == other)


@given(axes=AXES, data=st.data())
def test_cells_that_differ_in_one_axis_alone_have_different_ids(axes: dict[str, Any], data: st.DataObject) -> None:
    one = made(axes)
    name = data.draw(st.sampled_from([name for name in axes if name != "finding"]))
    changed = {**axes, name: data.draw(AXES)[name]}
    other = made(changed)
    if one is not None and other is not None:
        assert (one.id == other.id) == (one == other)


@given(orders=st.lists(CELLS, max_size=6).flatmap(lambda cells: st.tuples(st.just(cells), st.permutations(cells))))
def test_cells_sort_in_one_order_whatever_order_they_come_in(orders: tuple[list[Cell], list[Cell]]) -> None:
    one, other = orders
    assert sorted(one) == sorted(other)


@pytest.mark.parametrize("name", ["mechanism", "mglru", "mode", "prefetch", "workload", "fill", "spine", "filesystem"])
def test_a_word_outside_the_vocabulary_is_refused_with_the_words_in_it(name: str) -> None:
    with pytest.raises(InputError, match=rf"^{name} 'sideways' is unknown; expected one of [a-z]"):
        Cell("capacity", CAPACITY, **{name: "sideways"})  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["direct", "user_lru", "user_lfu50"])
def test_hints_for_a_mode_that_never_reads_the_page_cache_are_refused(mode: str) -> None:
    with pytest.raises(InputError, match=rf"^mode {mode} with prefetch fadvise_plan; expected .*page cache"):
        Cell("advice", CAPACITY, mode=mode, prefetch="fadvise_plan")


@pytest.mark.parametrize("mode", ["write_private", "write_shared"])
@pytest.mark.parametrize("workload", [one for one in WORKLOADS if one != "small_box"])
def test_a_mode_that_writes_is_refused_on_a_pool_that_is_kept(mode: str, workload: str) -> None:
    with pytest.raises(InputError, match=rf"^mode {mode} on workload {workload}; expected small_box, .*thrown away"):
        Cell("small_box", CAPACITY, mode=mode, workload=workload)
    assert Cell("small_box", CAPACITY, mode=mode, workload="small_box").reading.writes


@pytest.mark.parametrize("mechanism", ["balloon", "memboot"])
def test_an_expected_kill_is_refused_where_it_is_not_confined(mechanism: str) -> None:
    with pytest.raises(InputError, match=rf"^mode write_private under {mechanism}; expected cgroup"):
        Cell("small_box", CAPACITY, mechanism, mode="write_private", workload="small_box")
    assert not Cell("small_box", CAPACITY, mechanism, mode="write_shared", workload="small_box").expects_oom
    assert Cell("small_box", CAPACITY, mode="write_private", workload="small_box").expects_oom


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"locked": 81}, r"^locked 81 under cgroup; expected balloon, which alone locks memory"),
        ({"mechanism": "memboot", "locked": 1}, r"^locked 1 under memboot; expected balloon"),
        ({"mechanism": "balloon", "locked": 100}, r"^locked 100; expected per cent of RAM, 1 to 99, or 0"),
        ({"mechanism": "balloon", "locked": -1}, r"^locked -1; expected per cent"),
        ({"read_ahead_kb": 6}, r"^read_ahead 6; expected KiB in whole pages of 4"),
        ({"read_ahead_kb": -4}, r"^read_ahead -4; expected KiB"),
        ({"read_ahead_kb": (1 << 20) + 4}, r"^read_ahead 1048580; expected KiB in whole pages of 4, up to 1048576"),
        ({"kernel": ""}, r"^kernel '' is no label; expected letters, digits"),
        ({"kernel": "6.12/x"}, r"^kernel '6.12/x' is no label"),
        ({"kernel": "6.12=x"}, r"^kernel '6.12=x' is no label"),
    ],
)
def test_a_number_or_label_out_of_its_range_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Cell("reclaim", CAPACITY, **changes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"workload": "small_box", "mode": "write_shared"}, "mode write_shared writes to the pool, which a guest"),
        ({"read_limit": 10**7}, "a read limit is one of the host's own device"),
    ],
)
def test_what_a_guest_cannot_measure_is_measured_on_the_host_alone(words: dict[str, Any], said: str) -> None:
    there, here = (Cell("small_box", CAPACITY, kernel=kernel, **words) for kernel in ("6.12", "host"))
    assert there.misplaced.startswith(said)
    with pytest.raises(UnsupportedHostError, match=rf"^{said}.*; next: --moetier-kernel host as well$"):
        there.need_lane()
    assert here.misplaced == ""
    here.need_lane()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"mechanism": "balloon", "locked": 81}, "81% of RAM locked at this capacity asks for a machine of another"),
        ({"read_ahead_kb": 128}, "the read-ahead of the host's device is left as it is"),
        ({"filesystem": "xfs"}, "xfs is that of a guest's virtual disk"),
    ],
)
def test_what_the_host_cannot_measure_is_measured_in_a_guest_alone(words: dict[str, Any], said: str) -> None:
    there, here = (Cell("reclaim", CAPACITY, kernel=kernel, **words) for kernel in ("6.12", "host"))
    assert here.misplaced.startswith(said)
    with pytest.raises(UnsupportedHostError, match=rf"^{said}.*; expected a virtual machine; next: --moetier-kernel"):
        here.need_lane()
    assert there.misplaced == ""
    there.need_lane()


@pytest.mark.parametrize("workload", ["single", "reclaim"])
def test_a_plain_cell_may_be_measured_anywhere(workload: str) -> None:
    assert not any(Cell("reclaim", CAPACITY, workload=workload, kernel=one).misplaced for one in ("host", "6.12"))


@pytest.mark.parametrize("workload", RECLAIM[1:])
def test_a_rung_of_the_ladder_is_measured_in_guests_alone(workload: str) -> None:
    assert "machines of growing size" in Cell("reclaim", CAPACITY, workload=workload).misplaced
    assert not Cell("reclaim", CAPACITY, workload=workload, kernel="6.12").misplaced
