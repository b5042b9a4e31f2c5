"""Tables of pinned experts: ranked by how often a plan reads them, and labelled where they know the future."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moetier.errors import InputError
from pytest_moetier.lists import ORACLE, TABLE, read_lists, write_lists
from pytest_moetier.plan import Plan, build_plan
from pytest_moetier.pool.manifest import Manifest
from pytest_moetier.tables import Listed, domain_table, own_table, train_table
from pytest_moetier.trace.records import NORMAL, make_trace

EXPERTS = 8
POOL_ID = 0xFEDCBA9876543210


def plan_of(*passes: int, pool_id: int = POOL_ID, experts: int = EXPERTS) -> Plan:
    """Return a plan of one layer that reads one expert an iteration."""
    trace = make_trace(
        iteration=range(len(passes)),
        layer=[0] * len(passes),
        kind=[NORMAL] * len(passes),
        offsets=range(len(passes) + 1),
        experts=passes,
        n_experts=experts,
        k=1,
        synthetic=False,
        source="by hand",
    )
    manifest = Manifest(
        name="small", profile="custom", pool_id=pool_id, layers=(0,), experts=experts, k=1, expert_bytes=(4096,)
    )
    return build_plan(trace, manifest)


DRIFTING = plan_of(5, 5, 5, 2, 2, 7, 1, 1, 1, 1)
"""The first 6 of 10 iterations choose 5 three times, 2 twice and 7 once; then 1 comes four times."""


def ids(listed: Listed) -> list[int]:
    return listed.lists.ids.tolist()


def test_the_own_table_is_ranked_by_all_that_is_read_and_is_an_oracle() -> None:
    found = own_table(DRIFTING)
    assert ids(found) == [1, 5, 2, 7]
    assert found.oracle
    assert found.lists.flags == ORACLE
    assert "oracle" in found.words


def test_the_trained_table_knows_the_first_six_tenths_of_the_iterations_alone() -> None:
    found = train_table(DRIFTING)
    assert ids(found) == [5, 2, 7]
    assert not found.oracle
    assert found.words == "table of the first 6 of 10 iterations"


def test_another_domains_table_is_that_domains_ranking_and_names_it() -> None:
    found = domain_table(DRIFTING, plan_of(0, 3, 3), "code")
    assert ids(found) == [3, 0]
    assert not found.oracle
    assert found.words == "table of another domain: code"


def test_experts_read_as_often_stand_in_the_order_of_their_ids() -> None:
    assert ids(own_table(plan_of(6, 3, 0, 3, 6, 4))) == [3, 6, 0, 4]


def test_an_expert_that_is_never_read_is_in_no_table() -> None:
    assert sorted(ids(own_table(plan_of(6, 6)))) == [6]


@pytest.mark.parametrize("make", [own_table, train_table, lambda plan: domain_table(plan, plan, "prose")])
def test_a_table_is_bound_to_the_pool_and_to_no_sequence(make: object) -> None:
    lists = make(DRIFTING).lists  # type: ignore[operator]
    assert (lists.kind, lists.pool_id, lists.n_experts) == (TABLE, POOL_ID, EXPERTS)
    assert (lists.n_accesses, lists.sequence_crc, lists.n_lists) == (0, 0, 1)


def test_one_iteration_cannot_train_a_table() -> None:
    with pytest.raises(InputError, match=r"^1 iteration; expected 2 or more"):
        train_table(plan_of(3))
    assert ids(train_table(plan_of(3, 4))) == [3]


@pytest.mark.parametrize("other", [plan_of(0, pool_id=1), plan_of(0, experts=4)])
def test_a_plan_over_another_pool_gives_no_table(other: Plan) -> None:
    with pytest.raises(InputError, match="of another pool; expected two plans over one pool"):
        domain_table(DRIFTING, other, "code")


@given(passes=st.lists(st.integers(0, EXPERTS - 1), min_size=2, max_size=60))
def test_any_table_ranks_what_was_read_by_falling_count_and_survives_its_file(passes: list[int]) -> None:
    plan = plan_of(*passes)
    for listed, part in ((own_table(plan), passes), (train_table(plan), passes[: int(len(passes) * 0.6)])):
        counts = Counter(part)
        assert ids(listed) == sorted(counts, key=lambda one: (-counts[one], one))


def test_a_table_written_is_the_table_read_with_its_label(tmp_path: Path) -> None:
    for listed in (own_table(DRIFTING), train_table(DRIFTING)):
        write_lists(listed.lists, tmp_path / "table.list")
        found = read_lists(tmp_path / "table.list")
        assert found.ids.tolist() == ids(listed)
        assert found.offsets.tolist() == [0, len(found.ids)]
        assert Listed(found, listed.words).oracle == listed.oracle
