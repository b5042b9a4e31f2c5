"""Cells come from options alone: ids, markers and collection touch no hardware."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Bench = Callable[..., pytest.RunResult]


def test_collecting_needs_no_pool_and_lists_usable_ids(bench: Bench) -> None:
    result = bench("--collect-only", "-q", "--moetier-pool=/nonexistent", "--moetier-capacity=4.4%,64GB")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*::test_capacity?C4.4pct-cgroup-mglru_host?", "*C64GB-memboot-mglru_host?"])
    assert "=" not in "".join(line for line in result.outlines if "::" in line)


def test_the_default_matrix_is_the_papers_four_capacities_under_three_mechanisms(bench: Bench) -> None:
    result = bench("--collect-only", "-q")
    assert len([line for line in result.outlines if "::test_capacity[" in line]) == 12


@pytest.mark.parametrize(
    ("expression", "count"),
    [(("-m", "cell(mechanism='balloon')"), 4), (("-k", "C4.4pct"), 3), (("-k", "balloon and C8.8pct"), 1)],
)
def test_cells_are_selected_by_marker_and_by_id(bench: Bench, expression: tuple[str, str], count: int) -> None:
    result = bench("--collect-only", "-q", *expression)
    assert len([line for line in result.outlines if "::test_capacity[" in line]) == count


def test_both_states_of_mglru_double_the_cells(bench: Bench) -> None:
    result = bench(
        "--collect-only", "-q", "--moetier-mglru=both", "--moetier-capacity=5%", "--moetier-mechanism=cgroup"
    )
    result.stdout.fnmatch_lines(["*C5pct-cgroup-mglru_on?", "*C5pct-cgroup-mglru_off?"])


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--moetier-capacity=5q", "*capacity '5q' is not readable; expected*"),
        ("--moetier-capacity=0%", "*outside the pool*"),
        ("--moetier-capacity=,", "*--moetier-capacity is empty*"),
        ("--moetier-mechanism=baloon", "*mechanism 'baloon' is unknown; expected one of cgroup, balloon, memboot*"),
        ("--moetier-rounds=0", "*--moetier-rounds is 0; expected 1 or more*"),
        ("--moetier-rounds=three", "*'three' is not a whole number*"),
        ("--moetier-refuted=maybe", "*'maybe' is unknown; expected one of fail, report*"),
        ("--moetier-reserve=lots", "*'lots' is not a size*"),
        ("--moetier-mglru=perhaps", "*'perhaps' is unknown*"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_before_anything_runs(bench: Bench, argument: str, said: str) -> None:
    result = bench("--collect-only", argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


def test_a_native_toml_setting_is_the_twin_of_an_option(bench: Bench, pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml('[tool.pytest]\nmoetier_capacity = "7%"\nmoetier_mechanism = "cgroup"\n')
    result = bench("--collect-only", "-q")
    assert [line for line in result.outlines if "::test_capacity[" in line] == [
        "test_capacity.py::test_capacity[C7pct-cgroup-mglru_host]"
    ]


def test_a_marker_varies_the_cell_of_one_test(bench: Bench) -> None:
    source = """
import pytest

@pytest.mark.moetier(capacity="1GB", mechanism="cgroup", mode="mmap", finding="mine")
def test_mine(moetier_cell):
    pass
"""
    bench.write(source)  # type: ignore[attr-defined]
    result = bench("--collect-only", "-q")
    result.stdout.fnmatch_lines(["*::test_mine?C1GB-cgroup-mglru_host-mmap?"])


def test_a_marker_with_an_unknown_word_names_it(bench: Bench) -> None:
    source = "import pytest\n\n@pytest.mark.moetier(capasity='1GB')\ndef test_mine(moetier_cell):\n    pass\n"
    bench.write(source)  # type: ignore[attr-defined]
    result = bench("--collect-only")
    assert result.ret != 0
    expected = "*capasity*expected only finding, capacity, *, mode, *, filesystem, kernel, cells; next: *"
    result.stdout.fnmatch_lines([expected])


def test_xdist_is_refused(bench: Bench) -> None:
    pytest.importorskip("xdist")
    result = bench("-n", "2")
    assert result.ret != 0
    assert "measurements cannot share the host" in result.stdout.str() + result.stderr.str()
