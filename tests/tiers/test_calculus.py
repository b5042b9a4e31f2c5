"""The ownership calculus on known constants: exact on the paper's, and without rows on machines that lack them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from pytest_moetier.span import Span
from pytest_moetier.tiers.calculus import HERE, NOT_HERE, UNKNOWN, Row, break_even, reckon
from pytest_moetier.tiers.constants import Constants, Rate, read_constants

OWN, ADOPT, STREAM = "own: promote", "adopt: read", "stream: copy"


def machine(
    rates: Mapping[str, float],
    *,
    absent: Mapping[str, str] | None = None,
    unified: bool | None = False,
    spread: float = 0,
) -> Constants:
    """Return constants in GB/s."""
    known = {
        name: Rate(name, Span(value * (1 - spread), value, value * (1 + spread)), "by hand", "today")
        for name, value in rates.items()
    }
    return Constants("mine", "a machine", unified, known, absent or {})


def row(constants: Constants, what: str) -> Row:
    """Return the one row that begins so."""
    (found,) = (one for one in reckon(constants).rows if one.what.startswith(what))
    return found


def test_the_paper_s_constants_give_its_break_even_exactly() -> None:
    found = reckon(read_constants("gh200"))
    assert found.k_star is not None
    assert found.k_star.value == pytest.approx((1 / 346) / (1 / 327 - 1 / 2938), rel=1e-12)
    assert (round(found.k_star.value, 3), round(found.k_star.value, 2)) == (1.063, 1.06)
    assert found.k_restream is not None
    assert round(found.k_restream.value, 3) == 1.133  # 2938 / (2938 - 346)


def test_the_tie_is_5_8_or_5_5_per_cent_by_its_formula_and_not_5_6() -> None:
    found = reckon(read_constants("gh200"))
    assert found.stream_over_adopt is not None
    assert found.adopt_below_stream is not None
    assert found.stream_over_adopt.value == pytest.approx(19 / 327)  # 5.81%
    assert found.adopt_below_stream.value == pytest.approx(19 / 346)  # 5.49%
    assert {f"{one.value:.1%}" for one in (found.stream_over_adopt, found.adopt_below_stream)} == {"5.8%", "5.5%"}


def test_a_hit_is_worth_the_page_cache_over_the_device() -> None:
    found = reckon(read_constants("gh200"))
    assert found.hit_worth is not None
    assert found.hit_worth.value == pytest.approx(61.4 / 27.0)
    assert row(read_constants("gh200"), "admit").figure == "a hit is 2.27 times as fast as a miss"


def test_the_interval_is_the_worst_and_the_best_that_the_rates_allow() -> None:
    rates = {"hbm": 2000.0, "link_file_backed": 100.0, "stream_overlapped": 110.0}
    found = reckon(machine(rates, spread=0.1)).k_star
    corners = [
        break_even(110 * stream, 100 * link, 2000 * hbm)
        for stream in (0.9, 1.1)
        for link in (0.9, 1.1)
        for hbm in (0.9, 1.1)
    ]
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(min(corners)), pytest.approx(max(corners)))
    tie = reckon(machine(rates, spread=0.1)).stream_over_adopt
    assert tie is not None
    assert (tie.low, tie.high) == (pytest.approx(99 / 110 - 1), pytest.approx(121 / 90 - 1))


def test_on_a_coherent_link_all_three_rows_are_there() -> None:
    paper = read_constants("gh200")
    assert [row(paper, one).here for one in (OWN, ADOPT, STREAM)] == [HERE] * 3
    assert row(paper, OWN).figure == "k* = 1.063 (1.044 to 1.083)"
    assert row(paper, ADOPT).why.startswith("a tie")
    assert row(paper, STREAM).why == "not needed: adopting ties"


def test_without_a_coherent_link_the_adopt_row_is_gone_and_owning_is_against_restreaming() -> None:
    pcie = machine({"hbm": 2000, "stream_overlapped": 50}, absent={"link_file_backed": "no coherent link"})
    assert row(pcie, ADOPT).here == NOT_HERE
    assert row(pcie, ADOPT).why == "own or restream is what remains (link_file_backed: no coherent link)"
    assert row(pcie, OWN).figure == "k against restreaming = 1.026 (1.026 to 1.026)"  # 2000 / (2000 - 50)
    assert row(pcie, STREAM).why == "what is not owned is copied again for every use"
    assert reckon(pcie).k_star is None
    assert reckon(pcie).why["k_star"] == "link_file_backed: no coherent link"


def test_with_one_memory_owning_and_adopting_are_one_row() -> None:
    unified = machine({"hbm": 400, "link_file_backed": 400, "stream_overlapped": 400}, unified=True)
    assert [row(unified, one).here for one in (OWN, ADOPT, STREAM)] == [NOT_HERE, HERE, NOT_HERE]
    found = reckon(unified)
    assert (found.k_star, found.k_restream, found.stream_over_adopt) == (None, None, None)
    assert found.why["k_star"].startswith("one memory")


def test_what_was_not_measured_is_unknown_and_not_absent() -> None:
    nothing = machine({}, unified=None)
    assert [row(nothing, one).here for one in (OWN, ADOPT, STREAM)] == [UNKNOWN] * 3
    assert row(nothing, OWN).why == "hbm: not measured"
    assert reckon(nothing).hit_worth is None


def test_an_accelerator_no_faster_than_its_link_never_pays() -> None:
    slow = machine({"hbm": 100, "link_file_backed": 100, "stream_overlapped": 90})
    assert reckon(slow).k_star == Span(math.inf, math.inf, math.inf)
    assert row(slow, OWN).figure == "k* is infinite"
    assert reckon(slow).as_json()["k_star"] == {"low": None, "value": None, "high": None}


def test_streaming_that_is_much_faster_is_no_tie() -> None:
    far = machine({"hbm": 2000, "link_file_backed": 100, "stream_overlapped": 200})
    assert row(far, ADOPT).figure == "streaming is +100.0%"
    assert row(far, ADOPT).why.startswith("streaming is faster by more than 6%")
    assert row(far, STREAM).why == "worth its buffers where time is short"


def test_a_device_as_fast_as_the_page_cache_makes_a_hit_worth_nothing() -> None:
    fast = machine({"page_cache": 10, "device_cold": 12})
    assert row(fast, "admit").why.startswith("it adds no read, and a hit saves no time either")
