"""What cannot be simulated is refused with one message: what was seen, what was expected, what to run next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_moetier.cli import main
from pytest_moetier.errors import InputError
from pytest_moetier.simulate import Budget, Workload, batch_cost, off_domain, simulate, trained, window, workload
from pytest_moetier.trace.records import NORMAL, Trace, make_trace

FIXTURES = Path(__file__).parents[2] / "fixtures" / "traces"
Out = pytest.CaptureFixture[str]


def trace(iterations: int = 10, layers: int = 2, n_experts: int = 6) -> Trace:
    n = iterations * layers
    return make_trace(
        iteration=np.repeat(np.arange(iterations), layers),
        layer=np.tile(np.arange(layers), iterations),
        kind=[NORMAL] * n,
        offsets=np.arange(n + 1) * 2,
        experts=[each for at in range(n) for each in (at % n_experts, (at + 1) % n_experts)],
        n_experts=n_experts,
        k=2,
        synthetic=True,
        source="small",
    )


def small(**known: int) -> Workload:
    return workload(trace(**known))


@pytest.mark.parametrize(
    ("text", "unit", "message"),
    [
        ("0", None, "a budget of 0; expected more than 0"),
        ("-4", None, "a budget of -4; expected more than 0"),
        ("-25%", None, "a budget of -25%; expected more than 0"),
        ("0%", None, "a budget of 0%; expected more than 0"),
        ("0GB", None, "a budget of 0GB; expected experts"),
        ("-4GB", None, "a budget of -4GB; expected experts"),
        ("0.25", None, "a budget of 0.25: a fraction of what?; expected experts"),
        ("4.5", "bytes", "a budget of 4.5: a fraction of what?"),
        ("4.5/layer", None, "a budget of 4.5/layer: a fraction of what?"),
        ("25%/layer", None, "a budget of 25%/layer; expected a share of the whole pool"),
        ("101%", None, "a budget of 101% is above the pool"),
        ("25", "share", "a budget of 25 is above the pool; expected a share of at most 100%"),
        ("25%", "experts", "a budget of 25% with --unit experts; expected --unit share"),
        ("64GB", "share", "a budget of 64GB with --unit share; expected --unit bytes"),
        ("5", "slots", "--unit slots; expected one of experts, bytes, share"),
        ("many", None, "a budget of many; expected experts"),
        ("", None, "a budget of ; expected experts"),
        ("1e9", None, "a budget of 1e9; expected experts"),
    ],
)
def test_a_budget_that_says_nothing_clear_is_refused(text: str, unit: str | None, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Budget.parse(text, unit)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "allocation", "sizes", "message"),
    [
        ("13", "global", None, "a budget of 13 is above the pool of small; expected at most 12 experts"),
        ("7/layer", "layer", None, "a budget of 7/layer is above the pool of small; expected at most 12 experts"),
        ("241B", "global", [10, 30], "a budget of 241B is above the pool of small; expected at most 240 bytes (240 B)"),
        ("1", "layer", None, "a budget of 1 leaves 0 experts for each of 2 cache(s); expected at least one expert"),
        ("5%", "global", None, "a budget of 5% leaves 0 experts for each of 1 cache(s); expected at least one expert"),
        ("29B", "global", [10, 30], "a budget of 29B leaves 29 bytes for each of 1 cache(s); expected at least one"),
        ("40B", "layer", [10, 30], "a budget of 40B leaves 20 bytes for each of 2 cache(s); expected at least one"),
        ("4GB", "global", None, "a budget of 4GB, and small does not state the size of an expert; expected a size"),
    ],
)
def test_a_budget_that_does_not_fit_the_workload_is_refused(
    text: str, allocation: str, sizes: list[int] | None, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        simulate(workload(trace(), expert_bytes=sizes), ["lru"], [text], allocation=allocation)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "iterations", "message"),
    [
        ("fair", 1, "small has 1 iteration: shorter than the fair window; expected 2 iterations or more"),
        ("0:11", 10, "--window 0:11 ends after small; expected END of at most 10 iterations"),
        ("5:5", 10, "--window 5:5 scores no iteration; expected WARM:END with WARM below END"),
        ("7:3", 10, "--window 7:3 scores no iteration"),
        ("decode", 10, "--window decode, and no prompt of small to warm with; expected --prefill before"),
        ("warm", 10, "--window warm; expected fair, cold, decode or WARM:END"),
        ("-1:4", 10, "--window -1:4; expected fair, cold, decode or WARM:END"),
    ],
)
def test_a_window_that_the_trace_does_not_have_is_refused(name: str, iterations: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(small(iterations=iterations), ["lru"], ["4"], window=name)
    assert str(caught.value).startswith(message)


def test_a_window_made_for_a_longer_workload_is_refused() -> None:
    with pytest.raises(InputError, match=r"a window of 10 iterations .* has 5 after 0"):
        simulate(small(iterations=5), ["lru"], ["4"], window=window("fair", small(iterations=10)))


def test_a_table_of_another_model_is_refused() -> None:
    other = trained(small(n_experts=8))
    with pytest.raises(InputError, match=r"is of another model: it has 2 layers \(0 to 1\), 8 experts, k 2, small has"):
        simulate(small(), ["static"], ["4"], table=other)
    with pytest.raises(InputError, match="is of another model"):
        off_domain({"one": small(), "other": small(layers=3)}, ["4"])


def test_a_table_that_nothing_trains_is_refused() -> None:
    with pytest.raises(InputError, match="the window cold leaves nothing to train a table on"):
        simulate(small(), ["static"], ["4"], window="cold")
    with pytest.raises(InputError, match="--table theirs; expected train, own or a trace file"):
        simulate(small(), ["static"], ["4"], table="theirs")
    assert simulate(small(), ["static"], ["4"], window="cold", table="own")[0].hits > 0
    assert simulate(small(), ["lru"], ["4"], window="cold")[0].policy == "lru"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([10, 0], "no size is known for the experts of layer 1 of small; expected a size above zero for each layer"),
        ([10, -1], "no size is known for the experts of layer 1"),
        (0, "no size is known for the experts of layer 0"),
        ([10], "1 expert sizes for the 2 layers of small; expected one for each layer"),
    ],
)
def test_a_layer_without_a_size_is_refused(sizes: int | list[int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        workload(trace(), expert_bytes=sizes)
    assert str(caught.value).startswith(message)


def test_sizes_against_those_the_trace_states_are_refused() -> None:
    stated = replace(trace(), expert_bytes=(10, 30))
    with pytest.raises(InputError, match=r"small states the sizes .* \(10 bytes .* others are given \(20\)"):
        workload(stated, expert_bytes=20)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulate(small(), ["arc"], ["4"]), "--policy arc; expected one or more of lru, lfu, lfu-perfect,"),
        (lambda: simulate(small(), [], ["4"]), "--policy (none); expected one or more of"),
        (lambda: simulate(small(), ["lru"], []), "no budget; expected one or more, such as 455, 4000MiB or 25%"),
        (lambda: simulate(small(), ["lru"], ["4"], allocation="even"), "--allocation even; expected one of global,"),
        (lambda: workload(trace(), "batch"), "semantics 'batch'; expected one of per-access, event-atomic"),
        (lambda: workload(trace(), prefill="after"), "--prefill 'after'; expected one of none, before"),
        (lambda: workload(trace(), prefill="before"), "small has no prefill; expected a trace with its prompt"),
        (lambda: workload(trace(), accepted=[1] * 9), "9 accepted tokens over 9 iterations; expected 10 over 10"),
        (lambda: off_domain({"one": small()}, ["4"]), "1 domain(s); expected two or more, as DOMAIN=FILE"),
        (lambda: batch_cost([trace()], ["lru"], ["4"]), "1 trace to merge; expected two or more"),
        (lambda: small().nominal(), "small does not state the size of an expert; expected a size"),
    ],
)
def test_a_word_or_number_that_fits_nothing_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--budget", "0"), "moetier: a budget of 0; expected more than 0"),
        (("--budget", "9999"), "is above the pool of"),
        (("--budget", "0.5"), "a fraction of what?"),
        (("--budget", "4", "--window", "0:99"), "--window 0:99 ends after"),
        (("--budget", "4", "--policy", "clockwork"), "clockwork"),
        (("--budget", "4MB"), "next: --expert-bytes SIZE, or a budget in experts or as a share"),
        (("--budget", "4", "--expert-bytes", "10,20,30"), "3 expert sizes for the 2 layers"),
        (("--budget", "4", "--expert-bytes", "lots"), "'lots' is not a size"),
        (("--budget", "4", "--table", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--budget", "4", "--off-domain"), "1 domain(s)"),
        (("--budget", "4", "--batch"), "1 trace to merge"),
        (("--budget", "4", "--policy", "static", "--window", "cold"), "leaves nothing to train a table on"),
        (("--budget", "4", "--prefill", "before"), "has no prefill"),
    ],
)
def test_the_command_refuses_with_one_line_and_status_2(words: tuple[str, ...], message: str, capsys: Out) -> None:
    assert main(["simulate", str(FIXTURES / "paper.jsonl"), "--experts", "16", *words]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("moetier: ")]
    assert len(said) == 1
    assert message in said[0]


def test_two_files_of_one_domain_are_refused_off_domain(capsys: Out) -> None:
    file = str(FIXTURES / "paper.jsonl")
    assert main(["simulate", file, file, "--experts", "16", "--budget", "8", "--off-domain"]) == 2
    assert "two files of one domain; expected a name for each, as DOMAIN=FILE" in capsys.readouterr().err
