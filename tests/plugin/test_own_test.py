"""A user's own test outside this project: the README's example as it stands, its asserts as bounds, every mode."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

Bench = Callable[..., pytest.RunResult]
Verdicts = Callable[[], dict[str, dict]]
README = Path(__file__).parents[2] / "README.md"
QUICK = ("--moetier-rounds=1", "--moetier-iterations=12", "--moetier-seed=1", "--moetier-json=verdicts.json")


def example() -> str:
    found = re.search(r"<!-- example -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_readmes_example_is_ten_lines_and_runs_as_it_stands(
    bench: Bench, small_pool: Path, verdicts: Verdicts, pytester: pytest.Pytester
) -> None:
    assert len([line for line in example().splitlines() if line]) <= 10
    pytester.makepyfile(test_mine=example())
    result = bench("test_mine.py", f"--moetier-pool={small_pool}", *QUICK)
    result.assert_outcomes(passed=1)
    (found,) = verdicts().values()
    assert (found["finding"], found["verdict"]) == ("mine", "supported")


def test_a_users_own_failed_assertion_is_a_refutation(
    bench: Bench, small_pool: Path, verdicts: Verdicts, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_mine=example().replace("< 1.5", "< 0.001"))
    result = bench("test_mine.py", f"--moetier-pool={small_pool}", *QUICK)
    result.assert_outcomes(failed=1)
    (found,) = verdicts().values()
    assert found["verdict"] == "refuted"
    assert "assert" in found["reason"]


@pytest.mark.parametrize(("which", "state"), [("ends", "held"), ("none", "unobserved")])
def test_fewer_stamps_can_be_asked_for_and_none_is_no_proof_of_delivery(  # noqa: PLR0913, PLR0917
    bench: Bench, small_pool: Path, verdicts: Verdicts, pytester: pytest.Pytester, which: str, state: str
) -> None:
    pytester.makepyfile(test_mine=example())
    result = bench("test_mine.py", f"--moetier-pool={small_pool}", f"--moetier-stamps={which}", *QUICK)
    result.assert_outcomes(passed=1)
    (found,) = verdicts().values()
    assert {one["name"]: one["state"] for one in found["proof"][0]}["stamps"] == state
    lowered = any("flagged or unobserved" in line and "stamps (1 of 1 rounds)" in line for line in result.outlines)
    assert lowered == (state == "unobserved")


@pytest.mark.parametrize("mode", ["page_cache", "fadv_random", "mmap", "direct"])
def test_every_mode_is_proved(
    bench: Bench, small_pool: Path, verdicts: Verdicts, pytester: pytest.Pytester, mode: str
) -> None:
    source = f"""
import pytest

@pytest.mark.moetier(capacity="30%", mechanism="cgroup", mode="{mode}")
def test_mode(moetier_cell):
    metrics = moetier_cell.measure()
    if "{mode}" == "direct":
        assert metrics["device_bytes"].median == metrics["logical_bytes"].median
    else:
        assert metrics["device_bytes"].median < metrics["logical_bytes"].median
"""
    pytester.makepyfile(test_mine=source)
    bench("test_mine.py", f"--moetier-pool={small_pool}", *QUICK).assert_outcomes(passed=1)
    (found,) = verdicts().values()
    assert {one["state"] for one in found["proof"][0]} <= {"held", "flagged"}
