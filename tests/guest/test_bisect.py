"""What `git bisect run` is told: good, bad, skip; and that no mistake in the command marks a commit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_moetier.campaign import CellResult
from pytest_moetier.cell import Cell
from pytest_moetier.cli import bisect, main
from pytest_moetier.cli.bisect import ABORT, BAD, GOOD, SKIP, Interval, cell_named, verdict
from pytest_moetier.errors import HarnessError, HostBusyError, InputError, MoetierError, UnsupportedHostError
from pytest_moetier.host.kernels import Kernel
from pytest_moetier.units import Capacity

CELL = "balloon81-mglru_on"
KERNEL = Kernel("6.12", Path("/boot/vmlinuz"), None, "6.12.9", None, "made")


@pytest.mark.parametrize(
    ("values", "better", "expected"),
    [
        ((1.0, 1.1, 1.2), "lower", GOOD),
        ((0.5,), "lower", GOOD),  # better than good is good
        ((1.0, 1.2, 9.0), "lower", GOOD),  # one boot of three says nothing
        ((1.1, 1.3, 1.4), "lower", None),
        ((1.21, 1.3, 9.0), "lower", BAD),
        ((1.2,), "lower", GOOD),
        ((1.0, 1.3), "lower", GOOD),
        ((1.0, 1.5), "lower", None),
        ((1.0, 1.1, 0.9), "higher", GOOD),
        ((5.0,), "higher", GOOD),
        ((0.9, 0.99, 1.0), "higher", None),
        ((0.9, 0.99), "higher", BAD),
    ],
)
def test_a_kernel_is_judged_by_the_worse_end_of_the_good_values(
    values: Sequence[float], better: str, expected: int | None
) -> None:
    assert verdict(values, Interval(1.0, 1.2), better) == expected


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("1-2", 1, 2), ("1.02-1.10", 1.02, 1.1), (" .5 - 1e3 ", 0.5, 1000), ("2e-3-4e-3", 2e-3, 4e-3)],
)
def test_an_interval_is_its_ends(text: str, low: float, high: float) -> None:
    assert Interval.parse(text) == Interval(low, high)


@pytest.mark.parametrize("text", ["", "1", "2-1", "-1-2", "1-2-3", "a-b", "1 2", "nan-1", "1-inf"])
def test_no_interval_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no interval; expected LOW-HIGH"):
        Interval.parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CELL, {"mechanism": "balloon", "locked": 81, "mglru": "on"}),
        ("cgroup-mglru_off", {"mechanism": "cgroup", "mglru": "off"}),
        ("memboot-mglru_host", {"mechanism": "memboot"}),
        ("balloon-mglru_on", {"mechanism": "balloon", "mglru": "on"}),
        ("balloon74-mglru_on-C6.4pct", {"mechanism": "balloon", "locked": 74, "mglru": "on", "capacity": "6.4%"}),
        ("balloon9-mglru_on-C64MB-l16", {"locked": 9, "mglru": "on", "capacity": "64MB", "workload": "reclaim_l16"}),
        ("cgroup-mglru_on-mmap-ra128-xfs", {"mglru": "on", "mode": "mmap", "read_ahead_kb": 128, "filesystem": "xfs"}),
    ],
)
def test_a_cell_is_named_by_its_id_without_the_kernel(text: str, words: dict[str, Any]) -> None:
    usual = {"mechanism": "balloon" if "balloon" in text else "cgroup", "workload": "reclaim", "kernel": "6.12"}
    capacity = Capacity.parse(words.get("capacity", "4.4%"))
    expected = Cell("reclaim", **{**usual, **words, "capacity": capacity})
    assert cell_named(text, "6.12") == expected
    assert expected.id == f"{text}-k6.12"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "balloon81",
        "ballon81-mglru_on",
        "cgroup81-mglru_on",
        f"{CELL}-k6.12",
        f"{CELL}-C4.4pct",
        "C5pct-cgroup-mglru_on",
    ],
)
def test_what_is_no_cell_of_reclaim_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no reclaim cell; expected such as balloon81-mglru_on"):
        cell_named(text, "6.12")


# Boots


class Figures:
    """What a run showed: an amplification, and nothing else."""

    def __init__(self, amplification: float) -> None:  # noqa: D107
        self.amplification = amplification

    def __getattr__(self, name: str) -> None:  # noqa: D105
        return None


class Campaign:
    """A campaign whose boots are played: each shows a value, or why there is none."""

    def __init__(self, boots: Sequence[float | str | MoetierError], *, booted: bool) -> None:  # noqa: D107
        self.boots, self.booted = iter(boots), booted
        self.results: dict[str, CellResult] = {}
        self.closed = 0

    def measure(self, cells: Sequence[Cell]) -> dict[str, CellResult]:
        (cell,) = cells
        assert cell.id not in self.results, "it would not be measured again"
        result = self.results[cell.id] = CellResult(cell)
        match next(self.boots):
            case float() as value:
                result.runs.append(SimpleNamespace(run=None, figures=Figures(value)))  # type: ignore[arg-type]
            case str() as why:
                result.invalid.append(why)
            case UnsupportedHostError() | HostBusyError() as error:
                result.skipped = error
            case MoetierError() as error:
                result.broken = error
        return self.results

    def context_of(self, _cell: Cell) -> object:
        return object() if self.booted else None

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a call that answers on played boots: exit status, output and errors; all of them must have been used."""
    monkeypatch.setattr("pytest_moetier.host.kernels.find_kernel", lambda _word, _cache: KERNEL)
    monkeypatch.setattr(bisect, "_need_host", lambda: None)

    def call(
        *boots: float | str | MoetierError, options: Sequence[str] = (), booted: bool = True
    ) -> tuple[int, str, str]:
        campaign = Campaign(boots, booted=booted)
        monkeypatch.setattr(bisect, "_campaign", lambda _settings: campaign)
        status = main(["guest", "bisect-step", "6.12", "--good", "1.0-1.2", *options])
        assert (campaign.closed, list(campaign.boots)) == (1, [])
        return status, *capsys.readouterr()

    return call


def test_three_good_boots_are_good(told: Callable[..., Any]) -> None:
    status, out, _ = told(1.0, 1.3, 1.1)
    assert status == GOOD
    assert out == (
        "good: 6.12.9: amplification of balloon81-mglru_on-k6.12 is 1.1 (boots: 1, 1.3, 1.1), good is 1 to 1.2\n"
    )


def test_three_worse_boots_are_bad(told: Callable[..., Any]) -> None:
    status, out, _ = told(1.5, 2.0, 1.21)
    assert (status, out[:16]) == (BAD, "bad: 6.12.9: amp")


def test_boots_that_disagree_are_skipped_after_two_more(told: Callable[..., Any]) -> None:
    status, out, _ = told(1.0, 1.5, 1.5, 1.5, 1.5)
    assert status == SKIP
    assert out.startswith(
        "skip: 6.12.9: amplification of balloon81-mglru_on-k6.12 is 1.5 (boots: 1, 1.5, 1.5, 1.5, 1.5)"
    )
    assert out.endswith(": its boots disagree\n")


def test_two_more_boots_may_tell(told: Callable[..., Any]) -> None:
    assert told(1.0, 1.5, 1.3, 0.9)[0] == GOOD  # the median of four is between the middle two


def test_a_boot_that_is_not_proved_is_made_up_for(told: Callable[..., Any]) -> None:
    status, _, errors = told(1.5, "foreign_share: 7 B", 1.5, 1.5)
    assert status == BAD
    assert "foreign_share: 7 B" in errors


def test_too_many_boots_that_are_not_proved_are_skipped(told: Callable[..., Any]) -> None:
    status, out, _ = told("a", 1.5, "b", "c", 1.5)
    assert (status, out) == (SKIP, "skip: 6.12.9: 2 of 5 boots proved, expected 3: c\n")


def test_a_kernel_that_does_not_boot_is_skipped(told: Callable[..., Any]) -> None:
    status, out, _ = told(HarnessError("the virtual machine was lost"), booted=False)
    assert status == SKIP
    assert out.startswith("skip: 6.12.9: the virtual machine was lost")


def test_what_the_booted_kernel_cannot_do_is_skipped(told: Callable[..., Any]) -> None:
    assert told(UnsupportedHostError("no MGLRU"), booted=True)[:2] == (
        SKIP,
        "skip: 6.12.9: no MGLRU; next: `moetier doctor` says what this host can measure and what would change it\n",
    )


@pytest.mark.parametrize(
    ("error", "booted"),
    [(UnsupportedHostError("no room"), False), (HostBusyError("busy"), True), (InputError("capacity"), True)],
)
def test_what_is_not_the_kernels_doing_ends_the_bisection(
    told: Callable[..., Any],
    error: MoetierError,
    booted: bool,  # noqa: FBT001
) -> None:
    status, out, errors = told(error, booted=booted)
    assert (status, out) == (ABORT, "")
    assert errors.splitlines()[-1].startswith(f"moetier: {error.seen}; ")


def test_an_exception_of_our_own_ends_the_bisection(told: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError):  # what is left of the played boots
        told(1.0, 1.0, 1.0, 1.0)
    status, _, errors = told(1.0, options=("--boots=2",))  # there is no second
    assert status == ABORT
    assert "StopIteration" in errors


def test_the_answer_as_json(told: Callable[..., Any]) -> None:
    status, out, _ = told(1.5, options=("--boots=1", "--json"))
    assert status == BAD
    said = json.loads(out)
    assert said.pop("reason").endswith("is 1.5 (boots: 1.5), good is 1 to 1.2")
    assert said == {"status": 1, "answer": "bad", "cell": CELL, "metric": "amplification", "values": [1.5]}


# Commands


def stored(path: Path, *kernels: str, values: Sequence[float] = (1.3, 1.0)) -> Path:
    metrics = {"amplification": {"unit": "", "better": "lower", "values": list(values)}}
    results = [{"cell": f"{CELL}-k{kernel}", "metrics": metrics} for kernel in kernels]
    path.write_text(json.dumps({"results": [{"cell": None, "metrics": {}}, *results]}))
    return path


def test_good_values_may_come_from_a_session(tmp_path: Path) -> None:
    path = stored(tmp_path / "good.json", "mine-6.12")
    args = SimpleNamespace(good=None, good_from=str(path), cell=CELL, metric="amplification")
    assert bisect._good(args) == Interval(1.0, 1.3)  # type: ignore[arg-type]  # noqa: SLF001


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a call of a command that must end the bisection; it returns the one line of why."""

    def call(*words: str) -> str:
        try:
            status: Any = main(["guest", "bisect-step", *words])
        except SystemExit as ended:  # from argparse
            status = ended.code
        out, errors = capsys.readouterr()
        assert (status, out) == (ABORT, "")
        assert "Traceback" not in errors
        return errors.splitlines()[-1]

    return call


MISTAKES = {
    "the following arguments are required: BZIMAGE": ("--good", "1-2"),
    "one of the arguments --good --good-from is required": ("x",),
    "unrecognized arguments: --boot-s 2": ("x", "--good", "1-2", "--boot-s", "2"),
    "unrecognized arguments: y": ("x", "y", "--good", "1-2"),
    "argument --boots: invalid number value: 'x'": ("x", "--good", "1-2", "--boots", "x"),
    "--boots 0; expected 1 boot or more": ("x", "--good", "1-2", "--boots", "0"),
    "--good '2-1' is no interval": ("x", "--good", "2-1"),
    "--cell 'balloon' is no reclaim cell": ("x", "--good", "1-2", "--cell", "balloon"),
    "--metric 'speed'; expected one of ": ("x", "--good", "1-2", "--metric", "speed"),
    "--metric 'logical_bytes'; expected one of ": ("x", "--good", "1-2", "--metric", "logical_bytes"),
    "/no/such/file: No such file": ("x", "--good-from", "/no/such/file"),
    "/no/such/image: No such file": ("/no/such/image", "--good", "1-2"),
    "no kernel 4.2 in ": ("4.2", "--good", "1-2"),
    "/etc/passwd is ": ("/etc/passwd", "--good", "1-2"),
}


@pytest.mark.parametrize("seen", MISTAKES)
def test_a_mistake_in_the_command_ends_the_bisection(refused: Callable[..., str], seen: str) -> None:
    assert seen in refused(*MISTAKES[seen])


def test_good_values_of_several_kernels_or_of_none_end_the_bisection(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    two = stored(tmp_path / "two.json", "6.1", "6.12")
    assert "has kernels 6.1, 6.12 with amplification of balloon81-mglru_on" in refused("x", "--good-from", str(two))
    none = stored(tmp_path / "none.json", "6.1", values=())
    assert "has no proved cell with amplification of " in refused("x", "--good-from", str(none))
    for text in ("no json", "[]", '{"results": 3}', '{"results": [{"metrics": 1}]}'):
        none.write_text(text)
        assert "is no file of verdicts" in refused("x", "--good-from", str(none))


def test_a_pool_that_cannot_be_ends_the_bisection(refused: Callable[..., str], kernel: Kernel) -> None:
    words = (f"{kernel.image}:{kernel.modules}", "--good", "1-2")
    assert "guest-pool '4' is no pool; expected LAYERSxSIZE" in refused(*words, "--guest-pool", "4")


def test_on_a_host_without_qemu_the_bisection_ends(
    refused: Callable[..., str], kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "no qemu-system-x86_64 and no busybox" in refused(f"{kernel.image}:{kernel.modules}", "--good", "1-2")


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A repository of eight commits being bisected between the first and the last; a call of git in it."""
    if shutil.which("git") is None:
        pytest.skip("no git here")
    names = {f"GIT_{who}_{what}": "x@x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **names, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    git("init", "-q")
    for number in range(8):
        (tmp_path / "value").write_text(str(number))
        git("add", "value")
        git("commit", "-q", "-m", str(number))
    git("bisect", "start", "HEAD", "HEAD~7")
    yield git
    git("bisect", "reset")


STEP = (sys.executable, "-m", "pytest_moetier.cli", "guest", "bisect-step")


@pytest.mark.parametrize(
    "words", [("nowhere/bzImage", "--good", "1-2"), ("value", "--good", "1-2"), ("value", "--bad", "1-2")]
)
def test_git_marks_no_commit_for_a_mistake(repository: Callable[..., str], words: Sequence[str]) -> None:
    before = repository("bisect", "log")
    said = repository("bisect", "run", *STEP, *words)
    assert "is the first bad commit" not in said
    assert repository("bisect", "log") == before
    assert "# good" in before


def test_git_finds_the_commit_by_the_answers(repository: Callable[..., str], tmp_path: Path) -> None:
    script = tmp_path / "step.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\n"
        "from pytest_moetier.cli.bisect import SKIP, Interval, verdict\n"
        "value = int(Path('value').read_text())\n"
        "sys.exit(SKIP if value == 2 else verdict([1.0 + (value >= 5)], Interval(0.9, 1.1), 'lower'))\n"
    )
    said = repository("bisect", "run", sys.executable, str(script))
    assert "is the first bad commit" in said
    assert repository("log", "-1", "--format=%s", "refs/bisect/bad").strip() == "5"


# A real kernel


def test_a_real_kernel_is_told_good(kernel: Kernel, small_pool: Path, tmp_path: Path) -> None:
    del small_pool  # skips where nothing can be measured
    words = (f"{kernel.image}:{kernel.modules}", "--cell=cgroup-mglru_off", "--good=0.5-1.5", "--boots=1")
    scale = ("--iterations=60", "--guest-pool=2x64KiB", "--threads=2")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [*STEP, *words, *scale], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout.count("\n")) == (GOOD, 1), done.stderr
    assert done.stdout.startswith(f"good: {kernel.release}: amplification of cgroup-mglru_off-k")
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith("moetier")] == []
