"""The policy findings through pytest: whose traces, which verdicts, and what is said of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace

Bench = Callable[..., pytest.RunResult]
Verdicts = Callable[[], dict[str, dict]]

ROOT = Path(__file__).parents[2]
JSON = "--moetier-json=verdicts.json"
GENERIC = "policy.lru_over_off_domain"


@pytest.fixture
def run(bench: Bench, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Run the policy findings as they are shipped, in a folder of their own."""
    monkeypatch.delenv("MOETIER_TRACES", raising=False)
    for name in ("test_policy.py", "bounds.yaml"):
        shutil.copy(ROOT / "bench" / name, pytester.path / name)
    (pytester.path / "test_capacity.py").unlink()
    return bench


@pytest.fixture
def own(tmp_path: Path) -> list[str]:
    """Options that name two domains of a known model, long enough for the paper's claims of any model."""
    options = []
    for domain in ("prose", "code"):
        path = tmp_path / f"{domain}.jsonl"
        write_trace(synth_trace("olmoe-1b-7b", domain=domain, iterations=100), path)
        options.append(f"--moetier-trace={domain}={path}")
    return options


def ids(result: pytest.RunResult) -> list[str]:
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


ON_TRACES = ("-k", "(own_domain or drift or off_domain) and not pinned")
"""The findings that need no pool: the others measure one."""


def test_the_default_is_every_claim_on_four_models_and_four_domains(run: Bench) -> None:
    found = ids(run("--collect-only", "-q", *ON_TRACES))
    assert len([one for one in found if one.startswith("test_drift[")]) == 16
    assert "test_own_domain_oracle[kimi-k3-prose]" in found
    assert found[-4:] == [
        f"test_off_domain[{one}]" for one in ("kimi-k3", "qwen3-30b-a3b", "deepseek-v3", "olmoe-1b-7b")
    ]


def test_the_cells_are_nine_ways_of_holding_experts_at_one_capacity_before_all_findings_over_several(
    run: Bench,
) -> None:
    found = ids(run("--collect-only", "-q"))
    cells = [one for one in found if one.startswith("test_modes[")]
    assert len(cells) == 9
    assert {one.partition("-")[0] for one in cells} == {"test_modes[C17.7pct"}
    assert "test_modes[C17.7pct-cgroup-mglru_host-hybrid50]" in cells
    over = [one for one in found if not one.startswith(("test_modes[", "test_drift[", "test_own_domain_oracle["))]
    assert found[-len(over) :] == over
    named = [one for one in ids(run("--collect-only", "-q", "--moetier-capacity=5%,1GB")) if "test_modes[" in one]
    assert {one.partition("-")[0] for one in named} == {"test_modes[C5pct", "test_modes[C1GB"}


def test_a_users_own_domains_have_a_verdict_without_pool_or_root(
    run: Bench, own: list[str], verdicts: Verdicts
) -> None:
    result = run(*ON_TRACES, "--moetier-refuted=report", "--moetier-pool=/nonexistent", JSON, *own)
    found = verdicts()
    off = found["test_off_domain[traces]"]
    assert (off["finding"], off["cell"], off["verdict"]) == ("policy", "traces", "supported")
    assert [(one["id"], one["expected"]) for one in off["bounds"]] == [(GENERIC, "at least 0")]
    assert off["synthetic"] is True
    assert off["metrics"]["off_domain_table_smallest"]["unit"] == "share"
    assert off["metrics"]["lru_over_off_domain_smallest"]["values"][0] > 0
    assert {one["caches"].partition(";")[0] for one in off["accounting"]} == {"per access"}
    assert {found[f"test_drift[{one}]"]["verdict"] for one in ("prose", "code")} == {"not_examined"}
    result.stdout.fnmatch_lines(
        [
            "moetier: *2 traces (no pool, device or root is needed)*",
            "policy: traces (synthetic)",
            "  trace *oracle, replay *LRU-past",
            "  prose *n",
            "policy: over domains (synthetic)",
            "  traces *off_domain *table elsewhere min 0.*LRU-table min *s *supported",
            "*caches: per access; fair window: the first 60% of the iterations warm, the rest is scored",
            "verdicts: 1 supported, 4 not_examined",
        ]
    )


def test_one_domain_alone_is_not_examined_off_its_domain(run: Bench, own: list[str], verdicts: Verdicts) -> None:
    run("-k", "test_off_domain", own[0], JSON).assert_outcomes(skipped=1)
    (found,) = verdicts().values()
    assert found["verdict"] == "not_examined"
    assert "expected two or more, as DOMAIN=FILE" in found["reason"]


def test_a_table_that_holds_off_its_domain_refutes_the_claim(
    run: Bench, own: list[str], pytester: pytest.Pytester
) -> None:
    path = pytester.path / "same.jsonl"
    shutil.copy(own[0].rpartition("=")[2], path)  # the very same prompt: the table is an oracle, which LRU never beats
    args = ("-k", "test_off_domain", own[0], f"--moetier-trace=copy={path}")
    run(*args).assert_outcomes(failed=1)
    shown = run(*args, "--moetier-refuted=report")
    assert shown.ret == 0
    shown.stdout.fnmatch_lines(["refuted traces off_domain: lru_over_off_domain_smallest is -*, expected at least 0 *"])


def test_collecting_imports_nothing_heavy(run: Bench, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import json, sys\n\ndef pytest_unconfigure(config):\n"
        "    open('modules.json', 'w').write(json.dumps(sorted(sys.modules)))\n"
    )
    assert run("--collect-only", "-q", "-p", "no:hypothesispytest").ret == 0
    loaded = set(json.loads(pytester.path.joinpath("modules.json").read_text()))
    assert not loaded & {"numpy", "pytest_moetier.simulate", "pytest_moetier._sim"}
