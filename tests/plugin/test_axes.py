"""What a marker varies beside capacity and mechanism, and the options of modes and advice: all from words alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Bench = Callable[..., pytest.RunResult]

HEAD = "import pytest\n\n"


def marked(name: str, words: str) -> str:
    return f"@pytest.mark.moetier({words})\ndef test_{name}(moetier_cell):\n    pass\n\n\n"


def ids(result: pytest.RunResult, name: str) -> list[str]:
    """Return the ids of one test's cells, in order."""
    head = f"::test_{name}["
    return [line.partition(head)[2].rstrip("]") for line in result.outlines if head in line]


CELL = "C5pct-cgroup-mglru_host"
AXES = {
    "mode": ("mode=('page_cache', 'hybrid25', 'user_lru')", ["", "-hybrid25", "-user_lru"]),
    "prefetch": ("prefetch='none,fadvise_plan'", ["", "-fadvise_plan"]),
    "workload": ("workload=['single', 'batch4']", ["", "-batch4"]),
    "fill": ("fill='sequential,mmap_willneed'", ["-fill_sequential", "-fill_mmap_willneed"]),
    "spine": ("spine=('none', 'locked')", ["", "-spine_locked"]),
    "read_limit": ("read_limit=('0', '1.5MB', 2000000)", ["", "-1_5MBps", "-2MBps"]),
    "one_limit": ("read_limit='10MB'", ["-10MBps"]),
    "number": ("read_limit=10_000_000", ["-10MBps"]),
    "product": (
        "workload='small_box', mode=('mmap', 'write_shared'), spine=('plain', 'locked')",
        [
            "-small_box-mmap-spine_plain",
            "-small_box-mmap-spine_locked",
            "-small_box-write_shared-spine_plain",
            "-small_box-write_shared-spine_locked",
        ],
    ),
}


def test_each_axis_of_a_marker_gives_its_cells_in_the_order_named(bench: Bench) -> None:
    words = {name: f"capacity='5%', mechanism='cgroup', {said}" for name, (said, _) in AXES.items()}
    bench.write(HEAD + "".join(marked(name, said) for name, said in words.items()))  # type: ignore[attr-defined]
    result = bench("--collect-only", "-q")
    for name, (_, expected) in AXES.items():
        assert ids(result, name) == [CELL + one for one in expected], name


@pytest.mark.parametrize(
    ("options", "marker", "options_alone"),
    [
        ((), ["C17.7pct", "C1GB"], ["C4.4pct", "C8.8pct", "C17.7pct", "C30.9pct"]),
        (("--moetier-capacity=5%",), ["C5pct"], ["C5pct"]),
        (("-o", "moetier_capacity=7%,9%"), ["C7pct", "C9pct"], ["C7pct", "C9pct"]),
    ],
)
def test_a_default_capacity_gives_way_to_the_users_and_a_capacity_does_not(
    bench: Bench, options: tuple[str, ...], marker: list[str], options_alone: list[str]
) -> None:
    source = marked("default", "mechanism='cgroup', default_capacity='17.7%,1GB'")
    source += marked("fixed", "mechanism='cgroup', capacity='215MB'")
    source += marked("both", "mechanism='cgroup', capacity='215MB', default_capacity='1%'")
    source += marked("none", "mechanism='cgroup'")
    bench.write(HEAD + source)  # type: ignore[attr-defined]
    result = bench("--collect-only", "-q", *options)
    found = {
        name: [one.partition("-")[0] for one in ids(result, name)] for name in ("default", "fixed", "both", "none")
    }
    assert found == {"default": marker, "fixed": ["C215MB"], "both": ["C215MB"], "none": options_alone}


def test_the_capacities_that_are_the_default_may_be_named_too(bench: Bench) -> None:
    bench.write(HEAD + marked("default", "mechanism='cgroup', default_capacity='1GB'"))  # type: ignore[attr-defined]
    result = bench("--collect-only", "-q", "--moetier-capacity=4.4%,8.8%,17.7%,30.9%")
    assert len(ids(result, "default")) == 4


def test_cells_are_selected_by_the_marker_of_any_axis(bench: Bench) -> None:
    source = marked("some", "capacity='5%', mechanism='cgroup', prefetch=('none', 'fadvise_plan', 'blocking_plan')")
    source += marked("box", "capacity='5%', mechanism='cgroup', workload='small_box', read_limit='10MB', spine='plain'")
    bench.write(HEAD + source)  # type: ignore[attr-defined]
    for expression, count in (
        ("cell(prefetch='fadvise_plan')", 1),
        ("cell(workload='small_box')", 1),
        ("cell(read_limit=10000000)", 1),
        ("cell(spine='none')", 3),
        ("cell(fill='')", 4),
    ):
        result = bench("--collect-only", "-q", "-m", expression)
        assert len(ids(result, "some")) + len(ids(result, "box")) == count, expression


REFUSED: list[tuple[str, str]] = [
    ("prefetch='sometimes'", "prefetch 'sometimes' is unknown; expected one of none, fadvise_oracle"),
    ("workload='batch5'", "workload 'batch5' is unknown; expected one of single, batch4"),
    ("fill='slowly'", "fill 'slowly' is unknown; expected one of sequential, random"),
    ("spine='bent'", "spine 'bent' is unknown; expected one of none, plain, locked"),
    ("mode='page_cache50'", "mode 'page_cache50' has a share, and page_cache no memory of its own"),
    ("mode='user_lru101'", "mode 'user_lru101' asks for 101% of the capacity; expected 1 to 100"),
    ("read_limit='fast'", "read_limit 'fast' is not a size"),
    ("read_limit=-5", "read_limit '-5' is not a size"),
    ("default_capacity='5q'", "capacity '5q' is not readable"),
    ("mode=()", "mode is empty; expected at least one value"),
    (
        "prefetch='fadvise_plan', mode='direct'",
        "mode direct with prefetch fadvise_plan; expected a mode that reads",
    ),
    ("mode='write_shared'", "mode write_shared on workload single; expected small_box, whose pool is thrown away"),
    (
        "mode='write_private', workload='small_box', mechanism='balloon'",
        "mode write_private under balloon; expected cgroup, which alone confines the kill",
    ),
    ("kernels='6.12'", "marker moetier has ['kernels']; expected only finding, capacity, default_capacity,"),
    ("kernel='mine'", "kernel 'mine' is unknown; expected option, host, a version, or a label of --moetier-kernel"),
    ("locked='most'", "locked 'most' is not a whole number; expected 0 to 99"),
    ("locked=100", "locked is 100; expected 0 to 99"),
    ("read_ahead=6", "read_ahead 6; expected KiB in whole pages of 4"),
    ("read_ahead='4MiB'", "read_ahead '4MiB' is not a whole number; expected 0 or more"),
    ("filesystem='btrfs'", "filesystem 'btrfs' is unknown; expected one of ext4, xfs"),
    ("prefetsh='none', spines='none'", "marker moetier has ['prefetsh', 'spines']; expected only "),
]


def test_a_marker_that_cannot_be_is_one_message_that_names_the_test(bench: Bench, pytester: pytest.Pytester) -> None:
    files = {f"test_bad_{at}": HEAD + marked("mine", words) for at, (words, _) in enumerate(REFUSED)}
    pytester.makepyfile(**files)
    result = bench("--collect-only", "-q", *(f"{name}.py" for name in files))
    assert result.ret != 0
    for name, (_, said) in zip(files, REFUSED, strict=True):
        (line,) = {one for one in result.outlines if f"{name}.py::test_mine: " in one}
        assert said in line
        assert "; expected " in line
        assert "; next: " in line
    assert "Traceback" not in result.stdout.str()
    assert "settings.py" not in result.stdout.str()


def test_the_modes_of_the_options_are_those_of_tests_that_name_none(bench: Bench) -> None:
    source = marked("free", "capacity='5%', mechanism='cgroup'")
    source += marked("fixed", "capacity='5%', mechanism='cgroup', mode='direct'")
    bench.write(HEAD + source)  # type: ignore[attr-defined]
    result = bench("--collect-only", "-q", "--moetier-mode=pinned_own,hybrid25")
    assert ids(result, "free") == [f"{CELL}-pinned_own", f"{CELL}-hybrid25"]
    assert ids(result, "fixed") == [f"{CELL}-direct"]


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--moetier-mode=sideways", "*mode 'sideways' is unknown; expected one of page_cache, *"),
        ("--moetier-mode=direct20", "*mode 'direct20' has a share, and direct no memory of its own*"),
        ("--moetier-mode=,", "*--moetier-mode is empty*"),
        ("--moetier-min-recall=1.5", "*--moetier-min-recall '1.5' is no share; expected 0 to 1*"),
        ("--moetier-min-recall=-0.1", "*--moetier-min-recall '-0.1' is no share*"),
        ("--moetier-min-recall=nan", "*--moetier-min-recall 'nan' is no share*"),
        ("--moetier-min-recall=most", "*--moetier-min-recall 'most' is no share*"),
        ("--moetier-compute=-1", "*--moetier-compute '-1' is no time; expected seconds, 0 to 60*"),
        ("--moetier-compute=61", "*--moetier-compute '61' is no time; expected seconds, 0 to 60*"),
        ("--moetier-compute=inf", "*--moetier-compute 'inf' is no time*"),
        ("--moetier-compute=soon", "*--moetier-compute 'soon' is no time*"),
    ],
)
def test_an_option_of_modes_or_advice_that_cannot_be_used_is_refused(bench: Bench, argument: str, said: str) -> None:
    result = bench("--collect-only", argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


def test_advice_that_is_not_there_is_refused_once_before_anything_runs(bench: Bench, pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("folder").mkdir()
    for name, why in (("none.jsonl", "No such file"), ("folder", "it is no plain file")):
        result = bench(f"--moetier-advice={name}", "--moetier-pool=/nonexistent")
        assert result.ret != 0
        lines = [one for one in (*result.outlines, *result.errlines) if f"advice {name}: {why}" in one]
        assert len(lines) == 1, lines
        assert "or one of oracle, previous_token, markov, noisy_oracle; next: `moetier plan predict " in lines[0]
    assert bench("--collect-only", "-q", "--moetier-advice=none.jsonl").ret == 0
