"""A cell and its id: usable with -k, and different for different cells."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moetier.cell import MECHANISMS, MGLRU_STATES, MODES, Cell
from pytest_moetier.errors import InputError
from pytest_moetier.units import Capacity

CAPACITIES = st.one_of(
    st.integers(1, 999).map(lambda n: f"{n / 10}%"), st.integers(1, 999).map(lambda n: f"{n}GB")
).map(Capacity.parse)
CELLS = st.builds(
    Cell,
    finding=st.just("capacity"),
    capacity=CAPACITIES,
    mechanism=st.sampled_from(MECHANISMS),
    mglru=st.sampled_from(MGLRU_STATES),
    mode=st.sampled_from(MODES),
)


@pytest.mark.parametrize(
    ("changes", "cell_id"),
    [
        ({}, "C4.4pct-cgroup-mglru_host"),
        ({"mechanism": "balloon", "mglru": "on"}, "C4.4pct-balloon-mglru_on"),
        ({"mode": "mmap"}, "C4.4pct-cgroup-mglru_host-mmap"),
        ({"kernel": "6.12"}, "C4.4pct-cgroup-mglru_host-kernel_6.12"),
    ],
)
def test_the_id_names_what_is_varied_and_leaves_out_defaults(changes: dict[str, str], cell_id: str) -> None:
    assert replace(Cell("capacity", Capacity.parse("4.4%")), **changes).id == cell_id


@given(cell=CELLS)
def test_an_id_is_usable_with_k(cell: Cell) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", cell.id)


@given(one=CELLS, other=CELLS)
def test_different_cells_have_different_ids(one: Cell, other: Cell) -> None:
    assert (one.id == other.id) == (one == other)


@given(orders=st.lists(CELLS, max_size=6).flatmap(lambda cells: st.tuples(st.just(cells), st.permutations(cells))))
def test_cells_sort_in_one_order_whatever_order_they_come_in(orders: tuple[list[Cell], list[Cell]]) -> None:
    one, other = orders
    assert sorted(one) == sorted(other)


@pytest.mark.parametrize("name", ["mechanism", "mglru", "mode", "prefetch"])
def test_a_word_outside_the_vocabulary_is_refused_with_the_words_in_it(name: str) -> None:
    with pytest.raises(InputError, match=rf"^{name} 'sideways' is unknown; expected one of "):
        Cell("capacity", Capacity.parse("4.4%"), **{name: "sideways"})
