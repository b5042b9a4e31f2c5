"""Every combination of mode, warm mode, threads, prefetch, spine, compute phase and chunks: what none may get wrong.

Each is either refused in a sentence or delivers every planned byte; a signal, a short file or a wrong stamp ends it
soon and leaves its figures adding up.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .conftest import PAGE, stamped_bytes
from .lists import ListParts
from .test_replay import started

SIZE = 5 * PAGE + 20  # six stamps, the last in a page of 20 bytes
SPINE = 3 * PAGE + 7
MAPPED = ("mmap", "mmap_random", "mmap_willneed", "mmap_populate", "mmap_pread", "mmap_background")
CHUNKED = ("page_cache", "fadv_random", "direct", "drop", "pinned")
OWNING = ("pinned", "user_lru", "user_lfu")
WRITING = ("write_private", "write_shared")
MODES = (*CHUNKED, *MAPPED, "user_lru", "user_lfu", *WRITING)
PREFETCH = ("none", "fadvise", "blocking")
PAST_THE_CACHE = ("direct", "user_lru", "user_lfu", *WRITING)
# Duplicates, nothing, single accesses, one expert that all threads want at once.
ACCESSES = ((0, 1, 0, 2, 0, 1), (), (3, 4, 5, 6, 7), (6,) * 9, (2, 5, 2, 7))

Replay = Callable[..., Any]
MakePool = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One combination of options."""

    mode: str
    threads: int
    warm: str = ""
    prefetch: str = "none"
    spine: bool = False
    chunk: bool = False
    compute: bool = False

    def options(self, pool: Any) -> list[str]:
        """Write what the options name beside the pool, and return them."""
        words = ["--mode", self.mode, "--threads", str(self.threads), "--destinations", "5"]
        words += ["--passes", "warm,warmer,last"]
        if self.warm:
            words += ["--warm-mode", self.warm]
        if self.mode in OWNING:
            words += ["--own-bytes", str((self.threads + 1) * 7 * PAGE)]
        if self.mode == "pinned":
            table = pool.root.with_suffix(".table")
            table.write_bytes(ListParts(pool.parts, [(0, 3)]).encode())
            words += ["--table", str(table)]
        if self.prefetch != "none":
            triggers = range(0, len(pool.parts.sequence), 5)
            advice = pool.root.with_suffix(".advice")
            advice.write_bytes(ListParts(pool.parts, [(0, 6, 7)] * len(triggers), triggers).encode())
            words += ["--prefetch", self.prefetch, "--advice", str(advice)]
        if self.spine:
            (pool.root / "spine.bin").write_bytes(bytes(SPINE))
            words += ["--spine", "spine.bin"]
        if self.chunk:
            words += ["--chunk-bytes", str(2 * PAGE)]
        if self.compute:
            words += ["--compute-seconds", "0.0005", "--compute-threads", "2"]
        return words

    @property
    def refused(self) -> str:
        """A part of the sentence that refuses the combination; "" where it must work."""
        if self.chunk and self.mode not in CHUNKED and self.warm not in CHUNKED:
            return "a mode that reads by pread alone"
        if self.prefetch != "none" and self.mode in PAST_THE_CACHE:
            return "a hint to the page cache does nothing"
        return ""


def cases(mode: str, threads: int) -> Iterator[Case]:
    """Yield every combination of the rest, the compute phase in one of them."""
    warm_modes = ("", "page_cache", "direct", "mmap_random", "mmap_background")
    for warm, prefetch, spine, chunk in itertools.product(warm_modes, PREFETCH, (False, True), (False, True)):
        case = Case(mode, threads, warm, prefetch, spine, chunk)
        if not case.refused or not warm:  # one refusal of a kind is enough
            yield case
    yield Case(mode, threads, prefetch="none" if mode in PAST_THE_CACHE else "blocking", spine=True, compute=True)


def check_pass(done: dict[str, Any], case: Case) -> None:
    """Check that a pass delivered what was planned and that its counts add up."""
    accesses = sum(map(len, ACCESSES))
    assert not done["partial"]
    assert (done["iterations"], done["accesses"], done["bytes"]) == (len(ACCESSES), accesses, accesses * SIZE)
    assert done["stamps_checked"] == accesses * 6
    assert done["spine_bytes"] == (len(ACCESSES) * SPINE if case.spine else 0)
    assert (done["compute_seconds"] is not None) is case.compute
    check_hits(done, case)
    check_prefetch(done, case)


def check_hits(done: dict[str, Any], case: Case) -> None:
    """Check that no access is counted as held and as a hit."""
    owns = case.mode in OWNING and (not case.warm or "warm" not in done["pass"])
    assert (done["held_bytes"] is not None) is owns
    held = done["held_accesses"] or 0
    assert (done["held_bytes"] or 0) == held * SIZE
    if owns and case.mode == "pinned":
        assert held == sum(one in {0, 3} for iteration in ACCESSES for one in iteration)
    if done["hit_bytes"] is not None:
        assert held + done["hit_accesses"] <= done["accesses"]
        assert done["hit_accesses"] * SIZE <= done["hit_bytes"] <= done["bytes"] - held * SIZE


def check_prefetch(done: dict[str, Any], case: Case) -> None:
    """Check that no list of the advice is lost."""
    counts = done["prefetch"]
    assert (counts is not None) is (case.prefetch != "none")
    if counts is not None:
        assert counts["submitted"] == counts["completed"] + counts["overwritten"] + counts["pending"]
        assert 3 * counts["completed"] <= counts["experts"] <= 3 * (counts["completed"] + counts["pending"])
        assert counts["asked_bytes"] == counts["experts"] * SIZE
        if case.prefetch == "fadvise":
            assert counts["read_bytes"] == 0
        else:  # of an expert that the worker failed at, some may be read
            assert counts["read_bytes"] - counts["asked_bytes"] <= (SIZE if done["partial"] else 0)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("mode", MODES)
def test_every_combination_is_refused_in_a_sentence_or_delivers_every_byte(
    replay: Replay, make_pool: MakePool, mode: str, threads: int
) -> None:
    pool = make_pool("files" if threads == 4 else "unaligned", size=SIZE, accesses=ACCESSES, mode=mode)
    for case in cases(mode, threads):
        outcome = replay(pool, *case.options(pool), "--hits", "auto")
        if case.refused:
            assert outcome.exit == 2, case
            assert case.refused in outcome.only("error", code="usage")["message"]
            continue
        if outcome.exit == 3:
            pytest.skip(outcome.stderr)
        assert (outcome.exit, outcome.stderr) == (0, ""), case
        assert [done["pass"] for done in outcome.named("pass")] == ["warm", "warmer", "last"]
        for done in outcome.named("pass"):
            check_pass(done, case)
            iterations = outcome.named("iteration", **{"pass": done["pass"]})
            assert [i["accesses"] for i in iterations] == [len(one) for one in ACCESSES]
            for key in ("bytes", "hit_bytes", "held_bytes", "major_faults", "minor_faults"):
                assert done[key] is None or sum(i[key] for i in iterations) == done[key]


def disturbed(mode: str, threads: int) -> Iterator[Case]:
    """Yield the combinations of what runs beside the accesses, as far as they make sense."""
    for prefetch in ("none",) if mode in PAST_THE_CACHE else PREFETCH:
        for warm in ("", "mmap_background"):
            yield Case(mode, threads, warm, prefetch, spine=prefetch != "blocking", compute=prefetch == "fadvise")


@contextlib.contextmanager
def under_way(native_bin: Path, pool: Any, case: Case, disturb: Callable[[], Any] = int) -> Iterator[Any]:
    """Start the case, disturb it when ready, and yield it when its first pass begins; skip where it cannot lock."""
    with started(native_bin, pool, *case.options(pool)) as process:
        disturb()
        process.stdin.write(b"\n")
        process.stdin.flush()
        for line in process.stdout:
            if json.loads(line)["event"] == "capture":
                break
        else:
            pytest.skip("no memory may be locked here")
        yield process


def events_of(process: Any) -> list[dict[str, Any]]:
    """Wait for the end and return the events that came."""
    events = [json.loads(line) for line in process.stdout]
    process.wait(30)
    return events


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("mode", MODES)
def test_a_signal_in_the_middle_of_anything_ends_it_with_figures_that_add_up(
    native_bin: Path, make_pool: MakePool, mode: str, threads: int
) -> None:
    pool = make_pool(size=SIZE, accesses=ACCESSES * 20_000, mode=mode)
    for turn, case in enumerate(disturbed(mode, threads)):
        number = (signal.SIGTERM, signal.SIGINT)[turn % 2]
        with under_way(native_bin, pool, case) as process:
            time.sleep(0.004 * turn)
            process.send_signal(number)
            events = events_of(process)
        assert process.returncode == 128 + number, case
        assert events[-1] == {"event": "end", "partial": True, "exit": 128 + number}
        (done,) = [e for e in events if e["event"] == "pass"]
        iterations = [e for e in events if e["event"] == "iteration"]
        assert done["partial"]
        assert done["iterations"] == len(iterations) < len(ACCESSES) * 20_000
        assert done["bytes"] == sum(i["bytes"] for i in iterations) == done["accesses"] * SIZE
        assert done["spine_bytes"] == (len(iterations) * SPINE if case.spine else 0)
        check_prefetch(done, case)


def cut(path: Path) -> None:
    """Leave one page of the file."""
    os.truncate(path, PAGE)


def spoil(path: Path) -> None:
    """Overwrite the stamp of a page."""
    with path.open("r+b") as file:
        file.seek(3 * PAGE)
        file.write(b"other")


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("damage", [cut, spoil])
def test_a_bad_file_ends_anything_and_is_named(
    native_bin: Path, make_pool: MakePool, damage: Callable[[Path], None], mode: str, threads: int
) -> None:
    pool = make_pool(size=SIZE, accesses=ACCESSES, mode=mode)
    for case in disturbed(mode, threads):
        pool.path(6).write_bytes(stamped_bytes(1, 2, SIZE))
        with under_way(native_bin, pool, case, functools.partial(damage, pool.path(6))) as process:
            events = events_of(process)
        assert process.returncode == 1, case
        assert events[-1] == {"event": "end", "partial": True, "exit": 1}
        (error,) = [e for e in events if e["event"] == "error"]
        assert error["code"] in ({"short_read", "sigbus"} if damage is cut else {"stamp_mismatch"})
        assert (error["layer"], error["expert"], error["path"]) == (1, 2, "L1-E2")
        (done,) = [e for e in events if e["event"] == "pass"]
        assert done["partial"]
        check_prefetch(done, case)
