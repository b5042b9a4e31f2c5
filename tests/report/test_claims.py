"""The catalogue of claims against the bounds and the findings that are shipped: each has its place in the other."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest

from pytest_moetier.claims import CHAPTERS, FORMAT, load_claims, read_claims
from pytest_moetier.errors import InputError
from pytest_moetier.finding import load_profile, read_bounds
from pytest_moetier.proof import INVARIANTS

ROOT = Path(__file__).parents[2]
CLAIMS = read_claims()
PROFILES = sorted((ROOT / "pytest_moetier" / "profiles").glob("*.yaml"))
BOUNDS = [one.id for one in read_bounds(ROOT / "bench" / "bounds.yaml")] + [
    one.id for path in PROFILES for one in load_profile(path.read_text(), path.name).bounds
]
FINDINGS = {path.stem.removeprefix("test_"): path.read_text() for path in (ROOT / "bench").glob("test_*.py")}
TESTS = {name for text in FINDINGS.values() for name in re.findall(r"^def (test_\w+)\(", text, re.MULTILINE)}
ONE = """
format: moetier-claims/1
claims:
  - {id: %s, claim: a, source: b, where: [%s], examine: c%s}
"""


def test_every_bound_belongs_to_a_claim() -> None:
    assert [one for one in BOUNDS if not any(claim.judged_by(one) for claim in CLAIMS)] == []


def test_every_pattern_of_a_claim_matches_a_bound() -> None:
    patterns = [pattern for claim in CLAIMS for pattern in claim.bounds]
    assert [one for one in patterns if not fnmatch.filter(BOUNDS, one)] == []


def test_every_finding_and_invariant_that_a_claim_names_is_there() -> None:
    assert {name for claim in CLAIMS for name in claim.tests} - TESTS == set()
    assert {name for claim in CLAIMS for name in claim.invariants} - INVARIANTS == set()


def test_a_claim_with_bounds_of_findings_says_which_findings_judge_them() -> None:
    judged = [one for one in CLAIMS if [each for each in one.bounds if not each.startswith("gh200.")]]
    assert [one.id for one in judged if not one.tests] == []


def test_ids_are_unique_and_of_a_chapter_and_every_chapter_has_some() -> None:
    ids = [one.id for one in CLAIMS]
    assert len(ids) == len(set(ids))
    assert {one.chapter for one in CLAIMS} == set(CHAPTERS)


def test_every_command_selects_a_finding_that_is_shipped() -> None:
    commands = [one.examine for one in CLAIMS if one.examine.startswith("pytest bench/")]
    assert len(commands) > 50
    names = [
        f"test_{finding}.py::{name}" for finding, text in FINDINGS.items() for name in re.findall(r"test_\w+", text)
    ]
    for command in commands:
        expression = re.findall(r'-k (?:"([^"]+)"|(\S+))', command)
        words = re.findall(r"\w+", "".join(expression[0]))
        for word in (one for one in words if one not in {"and", "or", "not", "recorded"}):
            assert any(word in name for name in names), command


def test_the_headlines_of_a_report_are_few_and_short() -> None:
    headlines = [one.headline for one in CLAIMS if one.headline]
    assert 12 <= len(headlines) <= 26
    assert max(map(len, headlines)) <= 64
    assert [one for one in headlines if not one[0].isupper()] == []


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("format: other/1", "format is 'other/1'"),
        ("- a\n- b", "no catalogue of claims"),
        ("claims: [", "no catalogue of claims"),
        (f"format: {FORMAT}\nclaims: [{{id: routing.a}}]", "'where'"),
        (ONE % ("routing.a", "moon", ""), "examined by moon"),
        (ONE % ("elsewhere.a", "trace", ""), "of no chapter"),
        (ONE % ("routing.a", "trace", ", bonds: [x]"), "has bonds"),
        (ONE % ("routing.a", "trace", ", bounds: x"), "'x' is no list"),
    ],
)
def test_what_is_no_catalogue_is_refused_with_its_name(text: str, seen: str) -> None:
    with pytest.raises(InputError) as error:
        load_claims(text, "claims.yaml")
    assert str(error.value).startswith("claims.yaml: ")
    assert seen in str(error.value)
