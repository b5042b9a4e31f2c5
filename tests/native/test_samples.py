"""What a replay samples beside its figures, a warm pass over the plan's end, and these as the package's records."""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from pytest_moetier.errors import AccountingError, InputError
from pytest_moetier.host import machine
from pytest_moetier.replayer import Folios, Replayer, ReplayOptions, Sample

from .conftest import PAGE, write_pool
from .test_prefetch import advise, balance, undisturbed
from .test_replay import rest, started

EXPERT = 16 * PAGE  # of make_pool
TEN = tuple((i % 8, (i * 3 + 1) % 8) for i in range(10))
PAGE_FRAME = (1 << 55) - 1

Replay = Callable[..., Any]
MakePool = Callable[..., Any]


@pytest.mark.parametrize(("asked", "first"), [(0, 0), (1, 9), (4, 6), (10, 0), (500, 0)])
def test_a_warm_pass_replays_the_plans_last_iterations(
    replay: Replay, make_pool: MakePool, asked: int, first: int
) -> None:
    options = ("--passes", "one,two,last", "--warm-iterations", str(asked), "--residency-samples", "2")
    outcome = replay(make_pool(accesses=TEN), *options)
    assert outcome.exit == 0, outcome.stderr
    for name, start in (("one", first), ("two", first), ("last", 0)):
        done = outcome.only("pass", **{"pass": name})
        n = 10 - start
        assert (done["iterations"], done["accesses"], done["bytes"]) == (n, 2 * n, 2 * n * EXPERT)
        assert not done["partial"]
        assert [one["index"] for one in outcome.named("iteration", **{"pass": name})] == list(range(start, 10))
        found = [(one["at"], one["iteration"]) for one in outcome.named("residency", **{"pass": name})]
        inner = [] if n == 1 else [("sample", start + -(-n // 3)), ("sample", start + -(-2 * n // 3))]
        assert found == [("entry", start), *inner, ("exit", 10)]
    assert not outcome.only("end")["partial"]


def test_a_warm_pass_reads_what_its_iterations_say(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(accesses=[(0,), (1,), (2,)])
    pool.path(0).write_bytes(bytes(EXPERT))  # no stamps
    outcome = replay(pool, "--warm-iterations", "2")
    assert (outcome.exit, outcome.only("error")["path"]) == (1, "L0-E0")
    assert [(one["pass"], one["partial"]) for one in outcome.named("pass")] == [("warm", False), ("measured", True)]


def test_a_warm_pass_that_reads_the_capacity_leaves_what_a_whole_one_leaves(
    replay: Replay, make_pool: MakePool
) -> None:
    rng = np.random.default_rng(5)
    accesses = rng.integers(0, 8, (60, 2)).tolist()
    pool = make_pool(accesses=accesses)
    options = ("--mode", "user_lru", "--own-bytes", str(3 * EXPERT), "--threads", "1")
    distinct = [len({one for row in accesses[60 - n :] for one in row}) for n in range(61)]
    enough = next(n for n, count in enumerate(distinct) if count >= 3)

    def held(*more: str) -> list[int]:
        outcome = replay(pool, *options, *more)
        return [one["held_bytes"] for one in outcome.named("iteration", **{"pass": "measured"})]

    whole = held()
    assert held("--warm-iterations", str(enough)) == whole
    assert held("--passes", "measured") != whole


def test_advice_is_given_for_what_a_warm_pass_replays(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(accesses=TEN)
    advice = advise(pool, [(i % 8,) for i in range(20)], range(20))
    outcome = replay(pool, "--warm-iterations", "3", "--prefetch", "fadvise", "--advice", advice)
    assert [balance(one)["submitted"] for one in outcome.named("pass")] == [6, 20]


def test_a_stop_in_a_short_warm_pass_leaves_it_partial(native_bin: Path, make_pool: MakePool) -> None:
    pool = make_pool(accesses=[[0, 1]] * 200_000)
    with started(native_bin, pool, "--warm-iterations", "100000", "--stamps", "none") as process:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout is not None
        while b'"iteration","pass"' not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGTERM)
        events = rest(process, None)
    (done,) = (one for one in events if one["event"] == "pass")
    assert (done["pass"], done["partial"]) == ("warm", True)
    assert 0 < done["iterations"] < 100_000


@pytest.mark.parametrize(("every", "expected"), [(1, [*range(11)]), (4, [0, 4, 8, 10]), (5, [0, 5, 10]), (99, [0, 10])])
def test_samples_are_taken_before_every_nth_iteration_and_at_the_exit(
    replay: Replay, make_pool: MakePool, tmp_path: Path, every: int, expected: Sequence[int]
) -> None:
    path = tmp_path / "file"
    path.write_text("some\ntext")
    paths = (path, Path("/proc/self/comm"), tmp_path / "absent")
    words = [word for one in paths for word in ("--sample", str(one))]
    outcome = replay(make_pool(accesses=TEN), *words, "--sample-every", str(every))
    samples = outcome.named("sample")
    assert [(one["pass"], one["iteration"]) for one in samples] == [("measured", i) for i in expected]
    for one in samples:
        assert [row["path"] for row in one["files"]] == [str(path) for path in paths]
        assert [row.get("text") for row in one["files"]] == ["some\ntext", "moetier-replay\n", None]
        assert one["files"][2]["errno"] == 2
    clocks = [one["clock_seconds"] for one in samples]
    assert clocks == sorted(clocks)
    entry, leave = (one["clock_seconds"] for one in outcome.named("capture") if one["at"].startswith("measured"))
    assert entry < clocks[0]
    assert clocks[-1] < leave


def test_a_sample_stands_between_the_iterations_it_names(replay: Replay, make_pool: MakePool) -> None:
    options = ("--sample", "/proc/self/comm", "--sample-passes", "a,b", "--passes", "a,b", "--warm-iterations", "3")
    outcome = replay(make_pool(accesses=TEN), *options, "--sample-every", "2")
    lines = [
        (one["pass"], one["event"], one["index"] if one["event"] == "iteration" else one["iteration"])
        for one in outcome.events
        if one["event"] in {"iteration", "sample"}
    ]
    short = [("sample", 7), ("iteration", 7), ("iteration", 8), ("sample", 9), ("iteration", 9), ("sample", 10)]
    assert [line[1:] for line in lines if line[0] == "a"] == short
    whole = [word for i in range(0, 10, 2) for word in (("sample", i), ("iteration", i), ("iteration", i + 1))]
    assert [line[1:] for line in lines if line[0] == "b"] == [*whole, ("sample", 10)]


def test_a_sample_sees_the_iterations_before_it_and_none_after(replay: Replay, make_pool: MakePool) -> None:
    pool = make_pool(size=256 * PAGE, accesses=[[i] for i in range(8)])
    outcome = replay(pool, "--passes", "only", "--sample", "/proc/self/io")
    read = [int(one["files"][0]["text"].split()[1]) for one in outcome.named("sample")]  # rchar
    assert len(read) == 9
    for before, after in itertools.pairwise(read):
        assert 256 * PAGE <= after - before < 256 * PAGE + 16384


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--warm-iterations", "-1"), "--warm-iterations -1"),
        (("--warm-iterations", "2", "--passes", "one"), "--warm-iterations is for every pass but the last"),
        (("--sample-every", "2"), "--sample-every says when to sample: expected --sample PATH"),
        (("--sample-passes", "warm"), "--sample-passes says when to sample: expected --sample PATH"),
        (("--sample", "/proc/self/comm", "--sample-every", "0"), "--sample-every 0"),
        (("--sample", "/proc/self/comm", "--sample-passes", "other"), "--sample-passes other"),
        (("--folios-exit", "other"), "--folios-exit other"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    replay: Replay, make_pool: MakePool, options: Sequence[str], said: str
) -> None:
    outcome = replay(make_pool(), *options)
    assert outcome.exit == 2
    assert said in outcome.only("error")["message"]


def orders_of(path: Path) -> dict[int, int]:
    """Count a file's pages by the order of their folio, as /proc/kpageflags has it; the file must be resident."""
    found: dict[int, int] = {}
    known: dict[int, int] = {}
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, dtype=np.uint8)
        address = view.ctypes.data
        view[::PAGE].sum()
        with (
            Path("/proc/self/pagemap").open("rb", buffering=0) as pages,
            Path("/proc/kpageflags").open("rb", buffering=0) as flags,
        ):
            pages.seek(address // PAGE * 8)
            for (word,) in struct.iter_unpack("<Q", pages.read(-(-size // PAGE) * 8)):
                if (frame := word & PAGE_FRAME) not in known:
                    known.update(_folio(flags, frame))
                order = known[frame]
                found[order] = found.get(order, 0) + 1
        del view
    return found


def _folio(flags: IO[bytes], frame: int) -> dict[int, int]:
    """Return the order of a page frame's folio, for each of its frames: by walking to its head, and along its tails."""

    def bit(at: int, number: int) -> bool:
        flags.seek(at * 8)
        return bool(struct.unpack("<Q", flags.read(8))[0] >> number & 1)

    while bit(frame, 16):
        frame -= 1
    pages = 1
    while bit(frame, 15) and bit(frame + pages, 16):
        pages += 1
    return dict.fromkeys(range(frame, frame + pages), pages.bit_length() - 1)


def need_page_flags() -> None:
    """Skip where /proc/kpageflags cannot be read, or page frames are hidden."""
    try:
        Path("/proc/kpageflags").open("rb").close()
    except OSError as error:
        pytest.skip(f"/proc/kpageflags: {error}")
    if os.geteuid() != 0:
        pytest.skip("page frames are shown to root alone")


@pytest.fixture
def huge(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder whose files are held in large folios where the kernel has them."""
    folder = tmp_path / "huge"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "huge=always,size=64m", "none", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs with huge pages can be mounted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("layout", ["files", "one_file"])
@pytest.mark.parametrize("place", ["disk", "huge"])
def test_folios_are_told_as_the_kernel_flags_them(
    replay: Replay, tmp_path: Path, request: pytest.FixtureRequest, place: str, layout: str
) -> None:
    need_page_flags()
    root = tmp_path / "pool" if place == "disk" else request.getfixturevalue("huge") / "pool"
    pool = write_pool(root, layout, 600 * PAGE, [range(8)])
    outcome = undisturbed(lambda: replay(pool, "--folios-exit", "measured"))
    told = outcome.only("folios")
    expected: dict[int, int] = {}
    for file in range(len(pool.parts.files)):
        for order, pages in orders_of(pool.path(file)).items():
            expected[order] = expected.get(order, 0) + pages * PAGE
    assert {order: size for order, size in enumerate(told["bytes_by_order"]) if size} == expected
    assert (told["pass"], told["unknown_bytes"], told["note"]) == ("measured", 0, "")
    files = len(pool.parts.files)
    assert (told["files"], told["files_looked_at"]) == (files, files)
    assert told["looked_at_bytes"] == told["pool_bytes"] == 8 * 600 * PAGE


def test_only_resident_pages_are_looked_at_and_none_is_brought_in(
    replay: Replay, make_pool: MakePool, resident: Callable[[Path], int]
) -> None:
    need_page_flags()
    pool = make_pool(size=100 * PAGE, accesses=[(1, 3, 5)])

    def run() -> Any:
        pool.drop()
        return replay(pool, "--passes", "a,b", "--folios-exit", "a,b")

    outcome = undisturbed(run)
    exits = [one["resident_bytes"] for one in outcome.named("residency", at="exit")]
    assert exits == [3 * 100 * PAGE] * 2
    assert [sum(one["bytes_by_order"]) for one in outcome.named("folios")] == exits
    assert [resident(pool.path(file)) for file in range(8)] == [0, 100, 0, 100, 0, 100, 0, 0]


def test_what_lies_beside_the_experts_in_their_file_is_no_part_of_the_residency(
    replay: Replay, make_pool: MakePool
) -> None:
    pool = make_pool("unaligned", size=20 * PAGE)
    path, before = pool.path(0), 8 * 20 * PAGE
    with path.open("ab") as file:
        file.write(bytes(300 * PAGE))
    pool.parts.files[0] = (pool.parts.files[0][0], path.stat().st_size)
    pool.write_plan()

    def run() -> Any:
        path.read_bytes()
        return replay(pool, "--passes", "a", "--residency-samples", "1", "--experts-exit", "a")

    outcome = undisturbed(run)
    if outcome.only("start")["residency_probe"] == "none":
        pytest.skip("no residency is told in a user namespace")
    at_exit = next(one for one in outcome.named("residency", at="exit"))
    assert (at_exit["resident_bytes"], at_exit["pool_bytes"]) == (before, before)
    assert sum(outcome.only("experts")["resident_bytes"]) == before


def test_a_large_pool_is_looked_at_in_pieces_that_are_spread_over_it(replay: Replay, tmp_path: Path) -> None:
    need_page_flags()
    pool = write_pool(tmp_path / "pool", "files", PAGE, [range(8)])
    size = 1 << 30  # holes: 8 files of 256 pieces of 4 MiB, of which every fourth is looked at
    for file, (path, _) in enumerate(pool.parts.files):
        os.truncate(pool.path(file), size)
        pool.parts.files[file] = (path, size)
    pool.write_plan()
    told = replay(pool, "--folios-exit", "measured").only("folios")
    assert (told["files"], told["files_looked_at"], told["pool_bytes"]) == (8, 8, 8 * size)
    assert told["looked_at_bytes"] == 512 * 4 * 2**20


def test_folios_are_unknown_where_the_kernel_does_not_show_them(replay: Replay, make_pool: MakePool) -> None:
    prefix = ("unshare", "--user")
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace can be made, in which nobody is root")
    outcome = replay(make_pool(), "--folios-exit", "measured", prefix=prefix)
    assert outcome.exit == 0, outcome.stderr
    told = outcome.only("folios")
    if outcome.only("start")["residency_probe"] == "none":
        pytest.skip("no residency is told in a user namespace")
    assert (told["bytes_by_order"], told["unknown_bytes"]) == ([], 8 * EXPERT)
    assert told["note"]


def records(native_bin: Path, pool: Any, **options: Any) -> Any:
    """Replay through the package and return its passes."""
    argv = ReplayOptions(hits="none", **options).argv(pool.plan, pool.root, str(native_bin / "moetier-replay"))
    with Replayer(argv, ()) as replayer:
        return replayer.go().passes


def test_the_package_hands_on_samples_and_folios_by_pass(native_bin: Path, make_pool: MakePool) -> None:
    options = {"samples": ("/proc/self/comm", "/nonexistent"), "sample_every": 6, "warm_iterations": 4}
    warm, measured = records(native_bin, make_pool(accesses=TEN), folios_exit=("measured",), **options)
    assert [one.index for one in warm.iterations] == [6, 7, 8, 9]
    assert (warm.samples, warm.folios) == ((), None)
    files = {"/proc/self/comm": "moetier-replay\n", "/nonexistent": None}
    assert [(one.iteration, one.files) for one in measured.samples] == [(0, files), (6, files), (10, files)]
    assert all(isinstance(one, Sample) and one.clock_seconds > 0 for one in measured.samples)
    assert isinstance(measured.folios, Folios)
    assert sum(measured.folios.bytes_by_order) + measured.folios.unknown_bytes == measured.residency_at("exit")


def test_samples_of_other_passes_are_asked_for_by_name(native_bin: Path, make_pool: MakePool) -> None:
    options = {"samples": ("/proc/self/comm",), "sample_passes": ("warm",)}
    warm, measured = records(native_bin, make_pool(), **options)
    assert ([one.iteration for one in warm.samples], measured.samples) == ([0, 1, 2], ())


def test_the_replayer_is_started_on_the_current_machine(native_bin: Path, make_pool: MakePool) -> None:
    class Elsewhere:
        facts = None

        def start(self, argv: Sequence[str], pass_fds: Sequence[int], stderr: IO[bytes]) -> machine.Child:
            asked.append(argv[0])
            return machine.HOST.start([str(native_bin / "moetier-replay"), *argv[1:]], pass_fds, stderr)

    asked: list[str] = []
    pool = make_pool()
    argv = ReplayOptions(hits="none").argv(pool.plan, pool.root, "/job/moetier-replay")
    with machine.on(Elsewhere()), Replayer(argv, ()) as replayer:  # type: ignore[arg-type]
        assert [one.name for one in replayer.go().passes] == ["warm", "measured"]
    assert asked == ["/job/moetier-replay"]


def test_the_watch_is_asked_as_often_as_is_said(native_bin: Path, make_pool: MakePool) -> None:
    pool = make_pool(accesses=[[0, 1]] * 60)
    options = ReplayOptions(hits="none", passes=("measured",), compute_seconds=0.01)
    asked: list[int] = []

    def watch() -> str | None:
        asked.append(1)
        return None if len(asked) < 5 else "enough"

    argv = options.argv(pool.plan, pool.root, str(native_bin / "moetier-replay"))
    with Replayer(argv, ()) as replayer, pytest.raises(AccountingError, match="enough"):
        replayer.go(watch=watch, watch_seconds=0.01)
    with Replayer(argv, ()) as replayer:
        replayer.go(watch=lambda: "never asked", watch_seconds=600)


def test_the_package_reports_what_the_replayer_refuses(native_bin: Path, make_pool: MakePool) -> None:
    with pytest.raises(InputError, match="every pass but the last"):
        records(native_bin, make_pool(), passes=("measured",), warm_iterations=3)
