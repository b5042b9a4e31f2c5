"""The findings on tiers, run as a user runs them: on the paper's constants, and on those given for this host."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored import written

from pytest_moetier.finding import read_bounds
from pytest_moetier.history.sessions import read_sessions

BENCH = Path(__file__).parents[2] / "bench"
GIVEN = """
format: moetier-tiers/1
name: mine
unified_memory: false
source: by hand
date: 2026-11-30
rates:
  hbm: 2000 GB/s
  link_file_backed: {link}
  link_host_alloc: {absent: not looked at}
  link_malloc: {absent: not looked at}
  link_ceiling: {absent: not looked at}
  stream_overlapped: 104 GB/s
  device_cold: 2 GB/s
  page_cache: {cache}
  dram_copy: {absent: not looked at}
"""
Run = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def findings(pytester: pytest.Pytester) -> Run:
    """Run the shipped findings with constants of a machine; return the verdicts by test, and its output as ``said``."""

    def run(*words: str, link: str = "100 GB/s", cache: str = "10 GB/s") -> dict[str, dict[str, Any]]:
        constants = pytester.path / "mine.yaml"
        constants.write_text(GIVEN.replace("{link}", link).replace("{cache}", cache))
        options = ("-p", "no:cacheprovider", "--moetier-json=v.json", f"--moetier-constants={constants}")
        done = pytester.runpytest_inprocess(BENCH / "test_tiers.py", *options, *words)
        results = json.loads((pytester.path / "v.json").read_text())["results"]
        return {"said": {"text": done.stdout.str(), "status": done.ret}, **{one["test"]: one for one in results}}

    return run


def test_every_bound_on_tiers_is_judged_and_holds_on_the_paper_s_constants(findings: Run, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    written(storage / "0001_x.json", {"5%": [4.0, 4.01], "10%": [2.0, 2.01], "20%": [1.0, 1.01]})
    found = findings(f"--benchmark-storage=file://{storage}")
    said = found.pop("said")
    assert said["status"] == 0
    assert found["test_sizing[here]"]["verdict"] == "supported"
    assert found["test_sizing[here]"]["constants"][0]["name"] == "T(50 MB)"
    _, (left_out,) = read_sessions([Path("v.json")])  # no cell of it is taken for one of a curve
    assert left_out == "v.json: no metrics of ours"
    assert {one: found[one]["verdict"] for one in found if "gh200" in one} == dict.fromkeys(
        (f"test_{one}[gh200]" for one in ("admission", "k_star", "adopt_or_stream", "sizing")), "supported"
    )
    judged = {bound["id"] for one in found.values() for bound in one["bounds"]}
    shipped = {one.id for one in read_bounds(BENCH / "bounds.yaml") if one.id.startswith(("tiers.", "sizing."))}
    assert judged == shipped
    assert found["test_k_star[gh200]"]["metrics"]["k_star"]["values"] == [pytest.approx(1.06345, abs=1e-5)]
    assert re.search(r"gh200 +k_star +k_star 1\.063s +supported", said["text"])
    assert "constant gh200: stream_overlapped 346 GB/s (paper section 8, 2026-08-12)" in said["text"]


def test_this_machine_s_given_constants_are_judged_with_their_source(findings: Run) -> None:
    found = findings("-k", "here")
    assert found["test_k_star[here]"]["verdict"] == "supported"  # (1/104) / (1/100 - 1/2000) = 1.012
    assert found["test_adopt_or_stream[here]"]["verdict"] == "supported"
    assert {"name": "hbm", "value": 2e12, "unit": "B/s", "source": "by hand", "date": "2026-11-30"} in found[
        "test_k_star[here]"
    ]["constants"]
    assert found["test_admission[here]"]["verdict"] == "not_examined"  # no reads were counted
    assert found["test_sizing[here]"]["verdict"] == "not_examined"
    assert "has a capacity curve" in found["test_sizing[here]"]["reason"]


def test_a_machine_on_which_a_rule_fails_refutes_it(findings: Run) -> None:
    found = findings("-k", "here", "--moetier-refuted=report", link="60 GB/s", cache="1 GB/s")
    assert found["test_adopt_or_stream[here]"]["verdict"] == "refuted"
    assert found["test_admission[here]"]["verdict"] == "refuted"
    assert "hit_worth is 0.5, expected at least 1 (paper section 8, rule 1" in found["test_admission[here]"]["reason"]
    assert found["said"]["status"] == 0
    assert "REFUTED" in found["said"]["text"] or "refuted here adopt_or_stream" in found["said"]["text"]


def test_an_accelerator_that_never_pays_refutes_rule_2_without_a_number(findings: Run) -> None:
    found = findings("-k", "here and k_star", "--moetier-refuted=report", link="2000 GB/s")
    assert found["test_k_star[here]"]["verdict"] == "refuted"
    assert found["test_k_star[here]"]["metrics"] == {}
    assert "k_star is inf" in found["test_k_star[here]"]["reason"]


def test_a_host_that_cannot_be_probed_still_has_the_constants_that_were_given(
    findings: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "moetier-probe"
    program.write_text("#!/bin/sh\nexit 77\n")
    program.chmod(0o755)
    monkeypatch.setenv("MOETIER_BIN", str(tmp_path))
    found = findings("-k", "here and not sizing", cache="{unmeasured: not yet}")
    assert found["test_k_star[here]"]["verdict"] == "supported"
    assert found["test_admission[here]"]["verdict"] == "not_examined"
    assert "page_cache: not yet; " in found["test_admission[here]"]["reason"]


def test_a_row_that_does_not_exist_is_not_examined_with_its_reason(findings: Run) -> None:
    found = findings("-k", "here and (k_star or adopt)", link="{absent: PCIe only}")
    assert {one["verdict"] for name, one in found.items() if name != "said"} == {"not_examined"}
    assert "link_file_backed: PCIe only" in found["test_k_star[here]"]["reason"]
    assert "not_examined here (k_star, adopt_or_stream)" in found["said"]["text"]


def test_constants_that_cannot_be_used_are_one_message(findings: Run) -> None:
    found = findings("-k", "here and k_star", link=".nan")
    assert found["said"]["status"] == 1
    assert "link_file_backed is nan; expected a positive rate with its unit" in found["said"]["text"]
    assert "Traceback" not in found["said"]["text"]
