"""What the comparisons of the replayer share: a file, plans over it, runs of either side, interleaved pairs.

Needs root (to drop the cache) and fio. fio gets what the replayer gives itself: destinations in huge pages, each on a
border of 2 MiB. A virtual disk that copies page by page reads into scattered pages at a half or third of the rate.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from locality import Result
from numpy.typing import NDArray

from pytest_moetier.native import executable
from pytest_moetier.plan import Plan, cold_plan, write_plan
from pytest_moetier.pool.profiles import resolve_shape
from pytest_moetier.pool.synthetic import create_pool

EXPERT_BYTES = 1 << 20
N_EXPERTS = 896
ACCESSES_PER_ITERATION = 64
HUGE_MALLOC = "glibc.malloc.hugetlb=1"
"""A tunable of glibc: large blocks of malloc are marked for transparent huge pages."""

SPREAD_SLOTS = 64


@dataclass(frozen=True)
class Side:
    """What one run of either side read, and what it took."""

    bytes: int
    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Bench:
    """Where the shared file is, and the plans over it."""

    root: Path
    file: Path
    base: Plan
    scratch: Path

    def sequence_plan(self, sequence: NDArray[Any], per_iteration: int) -> Plan:
        """Return the plan of this sequence."""
        borders = np.arange(0, len(sequence) + 1, per_iteration, dtype=np.uint64)
        return replace(self.base, sequence=sequence.astype(np.uint32), iterations=borders)

    def plan(self, name: str, sequence: NDArray[Any], per_iteration: int) -> Path:
        """Write a plan of this sequence."""
        path = self.scratch / f"{name}.plan"
        write_plan(self.sequence_plan(sequence, per_iteration), path)
        return path


def drop_cache() -> None:
    """Empty the page cache of the host."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def warm(file: Path) -> None:
    """Bring the file into an empty page cache by one sequential read of 1 MiB a time."""
    drop_cache()
    with file.open("rb", buffering=0) as opened:
        while opened.read(EXPERT_BYTES):
            pass


def tasks(pid: int) -> list[Path]:
    """Return the folders of a process's threads in /proc."""
    return list(Path(f"/proc/{pid}/task").iterdir())


def on_cpu_seconds(pid: int) -> float:
    """Sum the time on a CPU of all threads of a process so far."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks(pid)) / 1e9


class Replay:
    """One run of the replayer: its events, and what the kernel says of the process."""

    def __init__(self, bench: Bench, plan: Path, prepare: Callable[[], None], *options: str) -> None:
        """Start the replayer; prepare the cache once it has its memory and waits; let it run to its end."""
        command = [str(executable("moetier-replay")), str(plan), "--root", str(bench.root), "--wait", *options]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdin is not None
        assert child.stdout is not None
        self.events: list[dict] = []
        self.threads: list[str] = []
        self.peak_bytes = 0
        before = 0.0
        for line in child.stdout:
            event = json.loads(line)
            self.events.append(event)
            if event["event"] == "ready":
                self.threads = [(task / "comm").read_text().strip() for task in tasks(child.pid)]
                prepare()
                before = on_cpu_seconds(child.pid)  # exact: every thread sleeps
                child.stdin.write("go\n")
                child.stdin.flush()
            elif event["event"] == "pass":
                status = Path(f"/proc/{child.pid}/status").read_text()
                peaks = [int(row.split()[1]) * 1024 for row in status.splitlines() if "VmHWM" in row]
                self.peak_bytes = max(peaks, default=self.peak_bytes)  # none once the last pass has ended the process
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0, f"{command} ended with {child.returncode}: {self.events[-2:]}"
        self.cpu_seconds = usage.ru_utime + usage.ru_stime - before

    def only(self, kind: str, **values: str) -> dict:
        """Return the one event of a kind with these values."""
        (found,) = (event for event in self.events if event["event"] == kind and values.items() <= event.items())
        return found


def fio(bench: Bench, threads: int, prepare: Callable[[], None], *options: str, spread: Path | None = None) -> Side:
    """Run fio over the same file with destinations of the same kind, without its own timing of each read.

    The depth of 2 is in name alone (psync reads one at a time): each job's buffer is then a whole huge page.

    Args:
        bench: Where the file is.
        threads: The jobs.
        prepare: Called first.
        options: More options of fio.
        spread: ``spread.c``, compiled: the reads go to ``SPREAD_SLOTS`` destinations in turn, not to one a job.
    """
    prepare()
    command = ["fio", "--name=peer", f"--filename={bench.file}", "--readonly", "--rw=randread", "--bs=1M"]
    command += ["--ioengine=psync", "--thread=1", f"--numjobs={threads}", "--iomem_align=2M", "--iodepth=2"]
    command += ["--fadvise_hint=0", "--invalidate=0", "--randrepeat=0", "--gtod_reduce=1", "--output-format=json"]
    environment = os.environ | {"GLIBC_TUNABLES": HUGE_MALLOC}
    if spread:
        environment |= {"LD_PRELOAD": str(spread), "SPREAD_SLOTS": str(SPREAD_SLOTS)}
    done = subprocess.run([*command, *options], env=environment, capture_output=True, check=True, cwd=bench.scratch)
    jobs = json.loads(done.stdout[done.stdout.index(b"{") :])["jobs"]
    assert len(jobs) == threads
    cpu = sum((job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000 for job in jobs)
    wall = max(job["read"]["runtime"] for job in jobs) / 1000
    read = sum(job["read"]["io_bytes"] for job in jobs)
    assert not spread or f"spread: {read // EXPERT_BYTES} reads".encode() in done.stderr
    return Side(read, wall, cpu)


def interleaved(name: str, pairs: int, unit: str, sides: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Run the sides in turns, in a random order within each turn; return each side's figures.

    A fixed order confounds the sides with what alternates on a host, such as which half of the free memory is used.
    """
    order = random.Random(name)  # noqa: S311 - an order, no secret
    figures: dict[str, list[float]] = {side: [] for side in sides}
    for pair in range(pairs + 1):
        for side in order.sample(list(sides), len(sides)):
            got = sides[side]()
            if pair:  # the first turn only warms what either side needs of the host
                figures[side].append(got)
        if pair:
            say(
                f"{name} {pair}/{pairs}: {', '.join(f'{side} {seen[-1]:.4g}' for side, seen in figures.items())} {unit}"
            )
    return figures


def result(name: str, unit: str, ours: list[float], theirs: list[float], target: float) -> Result:
    """Return the medians of two rates, and the median of the pairs' ratios."""
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    medians = statistics.median(ours), statistics.median(theirs)
    return Result(name, unit, *medians, ratio, "higher", target, ratio >= target)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def compiled(source: str, folder: Path, *options: str) -> Path:
    """Compile a C file that lies beside this one; return the program."""
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("there is no C compiler (cc), which parts of the peers are compiled by; next: apt-get install gcc")
    program = folder / Path(source).stem
    words = [compiler, "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", *options]
    subprocess.run([*words, str(Path(__file__).with_name(source)), "-o", str(program)], check=True)
    return program


@contextmanager
def shared_file(folder: Path, n_experts: int = N_EXPERTS, expert_bytes: int = EXPERT_BYTES) -> Iterator[Bench]:
    """Yield a pool of one layer in one file, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="moetier-peers-", dir=folder) as scratch:
        pool = Path(scratch) / "pool"
        shape = resolve_shape("custom", layers=1, experts=n_experts, k=16, expert_bytes=str(expert_bytes))
        manifest = create_pool(pool, shape, layout="one_file").manifest
        base = cold_plan(manifest, n_experts, seed=0)
        yield Bench(pool, pool / manifest.files[0].path, base, Path(scratch))
