"""Bounds, profiles and verdicts: what supports, what refutes, what is not examined, and files that cannot be used."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pytest_moetier
from pytest_moetier import proof
from pytest_moetier.cell import Cell
from pytest_moetier.errors import InputError
from pytest_moetier.finding import (
    Bound,
    HostMatch,
    Metric,
    Span,
    bounds_for,
    judge,
    load_bounds,
    load_profile,
    rail_deviation,
    read_bounds,
    read_profile,
)
from pytest_moetier.proof import Invariant, Proof
from pytest_moetier.units import Capacity

PROOF = Path(proof.__file__).parent
PACKAGE = PROOF.parent
SHIPPED = [Path(__file__).parent.parent / "bench/bounds.yaml", *sorted((PACKAGE / "profiles").glob("*.yaml"))]
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def bound(**changes: Any) -> Bound:
    parts: dict[str, Any] = {"id": "a", "value": "x", "cell": "*", "minimum": None, "maximum": None, "source": "s"}
    return Bound(**{**parts, "needs": (), **changes})


def run(**states: str) -> Any:
    """Return what ``judge`` looks at of a proved run: its invariants' states."""
    return SimpleNamespace(proof=Proof(tuple(Invariant(name, state, "", "") for name, state in states.items())))


def document(*bounds: str) -> str:
    return "format: moetier-bounds/1\nbounds:\n" + "".join(f"  - {{{one}}}\n" for one in bounds)


@given(low=FINITE, high=FINITE, value=FINITE)
def test_a_bound_holds_between_its_limits_both_included(low: float, high: float, value: float) -> None:
    assert bound(minimum=low).holds(value) == (value >= low)
    assert bound(maximum=high).holds(value) == (value <= high)
    assert bound(minimum=low, maximum=high).holds(value) == (low <= value <= high)
    assert bound(minimum=low, maximum=high).holds(low) == (low <= high)


@pytest.mark.parametrize(
    ("value", "states", "verdict", "said"),
    [
        (2.0, {"steady": "held"}, "supported", "x is 2, expected at most 3 (s)"),
        (3.5, {"steady": "held"}, "refuted", "x is 3.5, expected at most 3 (s)"),
        (2.0, {"steady": "flagged"}, "not_examined", "x is 2, expected at most 3 (s): invariant steady is flagged"),
        (
            9.0,
            {"steady": "unobserved"},
            "not_examined",
            "x is 9, expected at most 3 (s): invariant steady is unobserved",
        ),
        (2.0, {}, "supported", "x is 2, expected at most 3 (s)"),
        (None, {"steady": "held"}, "not_examined", "x is nothing, expected at most 3 (s): a single round"),
    ],
)
def test_a_verdict_needs_the_value_and_the_invariants_it_rests_on(
    value: float | None, states: dict[str, str], verdict: str, said: str
) -> None:
    found = judge(bound(maximum=3.0, needs=("steady",)), value, [run(steady="held"), run(**states)], "a single round")
    assert found.verdict == verdict
    assert str(found) == said


SPANS = [
    ((1.0, 2.0, 3.0), "supported"),
    ((3.0, 3.0, 3.0), "supported"),
    ((3.1, 4.0, 5.0), "refuted"),
    ((1.0, 2.0, 3.1), "not_examined"),  # the most of the rounds is beyond, the rest is not
    ((2.9, 4.0, 5.0), "not_examined"),  # the least of them is not beyond, the rest is
]


@pytest.mark.parametrize(("span", "verdict"), SPANS)
def test_a_span_of_rounds_is_told_only_when_all_of_it_is_on_one_side(
    span: tuple[float, float, float], verdict: str
) -> None:
    found = judge(bound(maximum=3.0), Span(*span), [])
    assert (found.verdict, found.value) == (verdict, span[1])
    assert f": {span[0]:.4g} to {span[2]:.4g} over the rounds" in str(found)
    mirrored = judge(bound(minimum=-3.0), Span(*(-one for one in reversed(span))), [])
    assert (mirrored.verdict, mirrored.value) == (verdict, -span[1])


@pytest.mark.parametrize(
    ("span", "verdict"),
    [
        ((0.97, 1.0, 1.03), "supported"),
        ((0.90, 0.92, 0.95), "refuted"),
        ((1.05, 1.06, 1.07), "refuted"),
        ((0.90, 1.0, 1.03), "not_examined"),
        ((0.90, 1.0, 1.10), "not_examined"),  # on both sides of the bound, and in it
    ],
)
def test_a_bound_with_two_limits_is_refuted_only_by_a_span_wholly_outside_of_one(
    span: tuple[float, float, float], verdict: str
) -> None:
    assert judge(bound(minimum=0.96, maximum=1.04), Span(*span), []).verdict == verdict


@given(
    values=st.lists(st.floats(0.5, 1.5), min_size=1, max_size=5),
    low=st.floats(0.5, 1.0),
    high=st.floats(1.0, 1.5),
)
def test_a_span_is_supported_by_all_rounds_refuted_by_all_or_not_told(
    values: list[float], low: float, high: float
) -> None:
    limits = bound(minimum=low, maximum=high)
    found = judge(limits, Span(min(values), values[0], max(values)), [])
    each = [limits.holds(one) for one in values]
    if found.verdict == "supported":
        assert all(each)
    elif found.verdict == "refuted":
        assert not any(each)
    else:
        assert "which cannot tell" in str(found)
        assert not all(each)


def test_a_span_needs_the_invariants_it_rests_on_as_a_value_does() -> None:
    found = judge(bound(maximum=3.0, needs=("steady",)), Span(1.0, 2.0, 2.5), [run(steady="flagged")])
    assert (found.verdict, found.value) == ("not_examined", 2.0)
    assert str(found) == "x is 2, expected at most 3 (s): invariant steady is flagged"


def test_bounds_are_chosen_by_the_pattern_of_the_cells_id() -> None:
    bounds = [
        bound(id="all"),
        bound(id="balloons", cell="*-balloon-*"),
        bound(id="one", cell="C4.4pct-cgroup-mglru_host"),
    ]
    cell = Cell("capacity", Capacity.parse("4.4%"))
    assert [one.id for one in bounds_for(bounds, cell)] == ["all", "one"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bounds: [", "not YAML"),
        ("", "format is 'NoneType'"),
        ("format: moetier-profile/1", "format is 'moetier-profile/1'; expected format: moetier-bounds/1"),
        ("format: moetier-bounds/1\nbounds: {a: 1}", "bounds is a dict; expected a list of bounds"),
        (document("value: x, min: 1, source: s"), "no id"),
        (document("id: a, min: 1, source: s"), "no value"),
        (document("id: a, value: x, min: 1"), "no source"),
        (document("id: a, value: x, source: s"), "neither min nor max"),
        (document("id: a, value: x, source: s, min: high"), "'high' is no number"),
        (document("id: a, value: x, source: s, min: .nan"), "nan is no number"),
        (document("id: a, value: x, source: s, max: true"), "True is no number"),
        (document("id: a, value: x, source: s, max: 1, needs: steady"), "needs is 'steady', not a list"),
        (document("id: a, value: x, source: s, max: 1, needs: [stedy]"), r"needs \['stedy'\], which no proof has"),
        ("format: moetier-bounds/1\nbounds: [5]", "unreadable bound 5"),
    ],
)
def test_a_bounds_file_that_cannot_be_used_names_file_and_fault(text: str, said: str) -> None:
    with pytest.raises(InputError, match=rf"^mine\.yaml: .*{said}") as caught:
        load_bounds(text, "mine.yaml")
    assert "; expected " in str(caught.value)
    assert "; next: mend the file" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bounds_file_that_is_not_there_has_no_bounds_and_one_that_is_no_text_is_refused(tmp_path: Path) -> None:
    assert read_bounds(tmp_path / "bounds.yaml") == ()
    (tmp_path / "bounds.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"bounds\.yaml is no text"):
        read_bounds(tmp_path / "bounds.yaml")
    with pytest.raises(InputError, match="Is a directory"):
        read_bounds(tmp_path)


PROFILE = """
format: moetier-profile/1
name: mine
host: {machine: x86_64, kernel_release: "6.1*"}
bounds: [{id: a, value: x, min: 1, source: s}]
known: [{test: "test_capacity[C4.4pct-*]", bound: a, reason: slow disk}]
"""


def test_a_profile_knows_its_host_and_the_refutations_to_expect() -> None:
    profile = load_profile(PROFILE, "mine.yaml")
    assert profile.known_for("test_capacity[C4.4pct-cgroup-mglru_host]") == {"a": "slow disk"}
    assert profile.known_for("test_capacity[C8.8pct-cgroup-mglru_host]") == {}
    assert profile.host.mismatch({"machine": "x86_64", "kernel_release": "6.12"}) is None
    assert profile.host.mismatch({"machine": "aarch64", "kernel_release": "6.12"}) == (
        "its machine is x86_64, this host's is aarch64"
    )
    assert profile.host.mismatch({}) == "its machine is x86_64, this host's is unknown"
    assert HostMatch({}).mismatch({"machine": "x86_64"}) == "the profile names no host"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: mine", "", "no name"),
        ("reason: slow disk", "", "no reason"),
        ('host: {machine: x86_64, kernel_release: "6.1*"}', "host: [x86_64]", "incomplete"),
        ("min: 1, ", "", "neither min nor max"),
        ("known: [", "known: [5, ", "incomplete"),
    ],
)
def test_a_profile_that_cannot_be_used_names_file_and_fault(old: str, new: str, said: str) -> None:
    assert old in PROFILE
    with pytest.raises(InputError, match=rf"^mine\.yaml: .*{said}.*; expected .*; next: mend the file"):
        load_profile(PROFILE.replace(old, new), "mine.yaml")


def test_a_profile_that_comes_with_the_package_is_found_by_name() -> None:
    assert read_profile("gh200").name == "gh200"
    with pytest.raises(InputError, match=r"profile 'none-such': No such file.*one of .*gh200"):
        read_profile("none-such")


def test_the_rail_is_inverse_to_capacity_from_the_largest_one() -> None:
    def at(share: str, *device: float) -> tuple[Cell, dict[str, Metric]]:
        metric = Metric("device_bytes", "B/iteration", "lower", device)
        return Cell("capacity", Capacity.parse(share)), {"device_bytes": metric}

    small, large = at("10%", 300.0, 420.0), at("40%", 99.0, 100.0, 101.0)
    siblings = dict([small, large])
    found = rail_deviation(*small, siblings, 1000)
    assert found is not None
    assert found.values == pytest.approx((300 / 400 - 1, 420 / 400 - 1))
    anchored = rail_deviation(*large, siblings, 1000)
    assert anchored is not None
    assert anchored.median == pytest.approx(0)
    assert rail_deviation(small[0], {}, siblings, 1000) is None
    assert rail_deviation(*small, {}, 1000) is None
    assert rail_deviation(*at("10%", 5.0), dict([at("40%", 0.0)]), 1000) is None


def test_a_metrics_spread_is_its_range_over_its_median() -> None:
    assert Metric("m", "B", "lower", (90.0, 100.0, 104.0)).spread == pytest.approx(0.14)
    assert Metric("m", "B", "lower", (5.0,)).spread == 0
    assert Metric("m", "B", "lower", (0.0, 0.0)).spread == 0


def invariant_names() -> set[str]:
    """Return the names that the proofs give their invariants, from their source; ``*`` for a part set at run time."""
    names = set()
    sources = [*PROOF.glob("*.py"), PROOF.parent / "engine" / "proof.py"]
    parsed = [ast.walk(ast.parse(one.read_text())) for one in sources]
    for call in itertools.chain.from_iterable(parsed):
        if (
            isinstance(call, ast.Call)
            and getattr(call.func, "id", "") in {"line", "_target", "Invariant"}
            and call.args
        ):
            first = call.args[0]
            if isinstance(first, ast.Constant):
                names.add(str(first.value))
            elif isinstance(first, ast.JoinedStr):
                names.add("".join(str(one.value) if isinstance(one, ast.Constant) else "*" for one in first.values))
    return names


def test_the_list_of_invariants_is_what_the_proof_produces() -> None:
    patterns = [re.escape(name).replace(r"\*", r"\w+") for name in invariant_names()]
    assert len(patterns) >= 25
    for name in proof.INVARIANTS:
        assert any(re.fullmatch(one, name) for one in patterns), f"{name} is never produced"
    for one in patterns:
        assert any(re.fullmatch(one, name) for name in proof.INVARIANTS), f"{one} is not in INVARIANTS"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_bound_has_a_source_and_needs_invariants_that_exist(path: Path) -> None:
    text = path.read_text()
    bounds = load_profile(text, path.name).bounds if path.parent.name == "profiles" else load_bounds(text, path.name)
    assert bounds
    assert len({one.id for one in bounds}) == len(bounds)
    for one in bounds:
        assert one.source
        assert set(one.needs) <= proof.INVARIANTS


def test_the_package_is_where_its_profiles_are() -> None:
    assert str(PACKAGE) in [str(Path(one)) for one in pytest_moetier.__path__]
