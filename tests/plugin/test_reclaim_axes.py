"""What the findings in virtual machines ask for: parts of a marker, a claim for each kernel, fewer and larger runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_moetier.campaign import Settings
from pytest_moetier.cell import RECLAIM, Cell
from pytest_moetier.settings import GUEST_ROUNDS, GUEST_THREADS, kernels_for, session_of
from pytest_moetier.units import Capacity

Bench = Callable[..., pytest.RunResult]

ROOT = Path(__file__).parents[2]
HEAD = "import pytest\n\n"
SIX, SEVEN, HOST = (f"--moetier-kernel={one}" for one in ("6.12", "7.3", "host"))


def ids(result: pytest.RunResult, name: str) -> list[str]:
    """Return the ids of one test's parameters, in order; "" where it has none."""
    found = [line.partition(f"::test_{name}") for line in result.outlines]
    return [rest.strip("[]") for _, head, rest in found if head and (not rest or rest.startswith("["))]


@pytest.fixture
def collected(bench: Bench) -> Callable[..., list[str]]:
    """Collect one test with a marker of these words on a kernel, and return the ids of its cells."""

    def call(words: str, *options: str) -> list[str]:
        source = f"{HEAD}@pytest.mark.moetier({words})\ndef test_mine(moetier_cell):\n    pass\n"
        bench.write(source)  # type: ignore[attr-defined]
        result = bench("--collect-only", "-q", *(options or (SIX,)))
        assert result.ret == 0, result.outlines
        return [one.removesuffix("-k6.12") for one in ids(result, "mine")]

    return call


WORDS = "workload='reclaim', mglru=('on', 'off')"


def test_each_part_of_a_marker_is_a_product_of_its_own(collected: Callable[..., list[str]]) -> None:
    parts = (
        "{'mechanism': 'balloon', 'locked': (74, 81), 'capacity': '4.4%'}, {'mechanism': 'cgroup', 'capacity': '3%'}"
    )
    assert collected(f"{WORDS}, cells=({parts})") == [
        "balloon74-mglru_on",
        "balloon74-mglru_off",
        "balloon81-mglru_on",
        "balloon81-mglru_off",
        "cgroup-mglru_on-C3pct",
        "cgroup-mglru_off-C3pct",
    ]


def test_a_part_goes_before_the_markers_own_words(collected: Callable[..., list[str]]) -> None:
    words = "workload='reclaim', mechanism='cgroup', capacity='4.4%', mglru='on'"
    parts = "{}, {'mglru': 'off'}, {'workload': 'reclaim_l4', 'capacity': '6.4%'}"
    assert collected(f"{words}, cells=({parts})") == [
        "cgroup-mglru_on",
        "cgroup-mglru_off",
        "cgroup-mglru_on-C6.4pct-l4",
    ]


def test_a_cell_of_two_parts_is_measured_once(collected: Callable[..., list[str]]) -> None:
    words = "workload='reclaim', mechanism='cgroup', capacity='4.4%', mglru='on'"
    parts = "{}, {'read_ahead': (0, 128)}, {'locked': 81}, {'filesystem': ('ext4', 'xfs')}"
    assert collected(f"{words}, cells=({parts})") == [
        "cgroup-mglru_on",
        "cgroup-mglru_on-ra128",
        "cgroup-mglru_on-xfs",
    ]


def test_parts_are_narrowed_by_the_options_where_they_name_nothing(collected: Callable[..., list[str]]) -> None:
    words = "workload='reclaim', cells=({'mode': 'mmap'}, {'mechanism': 'memboot'})"
    options = (SIX, "--moetier-capacity=5%", "--moetier-mechanism=cgroup", "--moetier-mglru=off")
    assert collected(words, *options) == ["cgroup-mglru_off-C5pct-mmap", "memboot-mglru_off-C5pct"]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ("{'size': 1}", "*marker moetier has [[]'size'[]]*"),
        ("{'mechanism': 'wall'}", "*mechanism 'wall' is unknown*"),
        ("{}, {'locked': 100}", "*locked is 100; expected 0 to 99*"),
    ],
)
def test_a_word_of_a_part_that_cannot_be_is_refused_with_the_test(bench: Bench, parts: str, said: str) -> None:
    source = (
        f"{HEAD}@pytest.mark.moetier(workload='reclaim', cells=({parts},))\ndef test_mine(moetier_cell):\n    pass\n"
    )
    bench.write(source)  # type: ignore[attr-defined]
    result = bench("--collect-only", "-q", SIX)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"*test_capacity.py::test_mine: {said[1:]}"])


CURVES = """
import pytest

def test_over(moetier_curve):
    print(f"kernel={moetier_curve.kernel}.")

@pytest.mark.parametrize("state", ["on", "off"])
def test_state(moetier_curve, state):
    print(f"kernel={moetier_curve.kernel}.")
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), [""]),
        ((HOST,), [""]),
        ((SIX,), ["k6.12"]),
        ((SEVEN, HOST, SIX), ["k7.3", "host", "k6.12"]),
        (("--moetier-kernel=mine=/no/bzImage",), ["kmine"]),
        (("-o", "moetier_kernel=6.1 7.3"), ["k6.1", "k7.3"]),
    ],
)
def test_a_finding_over_cells_is_one_of_each_kernel_that_was_named(
    bench: Bench, options: tuple[str, ...], expected: list[str]
) -> None:
    bench.write(CURVES)  # type: ignore[attr-defined]
    result = bench("--collect-only", "-q", *options)
    assert ids(result, "over") == expected
    assert sorted(ids(result, "state")) == sorted(
        "-".join(filter(None, pair)) for one in expected for pair in ((one, "on"), (one, "off"))
    )


def test_a_finding_knows_its_kernel_and_is_selected_by_it(bench: Bench) -> None:
    bench.write(CURVES)  # type: ignore[attr-defined]
    result = bench("-s", SIX, HOST, "-k", "test_over")
    told = [line.partition("kernel=")[2].split(".")[:-1] for line in result.outlines if "kernel=" in line]
    assert [".".join(one) for one in told] == ["6.12", "host"]
    alone = bench("-s", "-k", "test_over")
    assert "kernel=None." in alone.stdout.str()
    assert len(ids(bench("--collect-only", "-q", SIX, HOST, "-k", "k6.12"), "state")) == 2


def test_a_kernel_that_cannot_be_is_said_of_a_finding_over_cells_too(bench: Bench) -> None:
    bench.write(CURVES)  # type: ignore[attr-defined]
    result = bench("--collect-only", "-q", "--moetier-kernel=bzImage")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--moetier-kernel 'bzImage' is no kernel*"])


SHIPPED = {
    "reclaim": ("reclaim", 8, 7),
    "locked": ("locked", 6, 2),
    "ladder": ("ladder", 20, 5),
    "access": ("access", 12, 6),
    "confounders": ("confounder", 8, 4),
    "generations": ("generations", 7, 2),
}
"""By finding: the test of its cells, how many these are, and how many tests over them there are, for one kernel."""


@pytest.fixture
def shipped(bench: Bench, pytester: pytest.Pytester) -> Bench:
    """Collect the findings in guests as they are shipped."""
    pytester.path.joinpath("test_capacity.py").unlink()
    for name in SHIPPED:
        shutil.copy(ROOT / "bench" / f"test_{name}.py", pytester.path)
    return lambda *args: bench("--collect-only", "-q", *args)


def test_the_shipped_findings_ask_for_their_cells_on_each_kernel(shipped: Bench) -> None:
    for options, kernels in (((SIX,), ["6.12"]), ((SIX, SEVEN), ["6.12", "7.3"])):
        result = shipped(*options)
        for finding, (test, cells, over) in SHIPPED.items():
            found = [line for line in result.outlines if line.startswith(f"test_{finding}.py::")]
            mine = [line for line in found if f"::test_{test}[" in line]
            assert len(mine) == cells * len(kernels), finding
            assert len(found) - len(mine) == over * len(kernels), finding
            for kernel in kernels:
                assert sum(line.endswith(f"-k{kernel}]") for line in mine) == cells


def test_the_cells_of_the_knee_have_short_names(shipped: Bench) -> None:
    assert ids(shipped(SIX, "-k", "test_reclaim"), "reclaim") == [
        f"{one}-k6.12"
        for one in (
            "balloon81-mglru_on",
            "balloon81-mglru_off",
            "balloon74-mglru_on-C6.4pct",
            "balloon74-mglru_off-C6.4pct",
            "cgroup-mglru_on",
            "cgroup-mglru_off",
            "memboot-mglru_on",
            "memboot-mglru_off",
        )
    ]


def test_without_a_kernel_the_shipped_findings_collect_and_name_the_host(shipped: Bench) -> None:
    result = shipped()
    assert result.ret == 0
    assert not [line for line in result.outlines if "-k6.12" in line or "[host" in line]


def settings(pytester: pytest.Pytester, *options: str) -> Settings:
    """Return what a session of these options measures with; nothing is measured."""
    return session_of(pytester.parseconfigure(*options)).campaign.settings


def cell(workload: str) -> Cell:
    return Cell("any", Capacity.parse("5%"), workload=workload)


@pytest.mark.parametrize(
    ("options", "rounds", "guest_rounds"),
    [
        ((), 3, 2),
        (("--moetier-rounds=5",), 5, 5),
        (("--moetier-rounds=3",), 3, 3),
        (("--moetier-rounds=1",), 1, 1),
        (("-o", "moetier_rounds=4"), 4, 4),
        (("-o", "moetier_rounds=4", "--moetier-rounds=6"), 6, 6),
    ],
)
def test_a_cell_in_a_guest_is_booted_twice_unless_rounds_are_named(
    pytester: pytest.Pytester, options: tuple[str, ...], rounds: int, guest_rounds: int
) -> None:
    assert GUEST_ROUNDS == 2
    found = settings(pytester, *options)
    assert {found.rounds_of(cell(word)) for word in ("single", "small_box", "hit_cost")} == {rounds}
    assert {found.rounds_of(cell(word)) for word in RECLAIM} == {guest_rounds}


@pytest.mark.parametrize(
    ("options", "threads"),
    [
        ((), 8),
        (("--moetier-threads=3",), 3),
        (("--moetier-threads=16",), 16),
        (("-o", "moetier_threads=5"), 5),
    ],
)
def test_a_cell_in_a_guest_is_read_by_the_papers_threads_unless_they_are_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], threads: int
) -> None:
    assert GUEST_THREADS == 8
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    found = settings(pytester, *options)
    assert {found.threads_of(word) for word in RECLAIM} == {threads}
    assert found.threads_of("single") == (threads if options else 4)


def test_a_setting_of_the_project_file_is_one_that_was_named(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml("[tool.pytest]\nmoetier_rounds = '4'\nmoetier_threads = '5'\n")
    found = settings(pytester)
    assert (found.rounds, found.guest_rounds, found.guest_threads) == (4, 4, 5)


def test_kernels_and_guest_are_the_campaigns(pytester: pytest.Pytester) -> None:
    found = settings(pytester, HOST, SIX, "--moetier-kernel=mine=/no/bzImage", "--moetier-guest-cpus=4")
    assert found.kernels == {"6.12": "6.12", "mine": "/no/bzImage"}
    assert found.guest.cpus == 4


def test_the_kernels_of_a_finding_over_cells_are_those_that_were_named(pytester: pytest.Pytester) -> None:
    def kernels(*options: str) -> Any:
        return kernels_for(pytester.parseconfigure(*options))

    assert kernels() == kernels(HOST) == ()
    assert kernels(SIX) == ("6.12",)
    assert kernels(SIX, HOST, SIX) == ("6.12", "host")
