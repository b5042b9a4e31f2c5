"""Compare with peers, side by side; writes ``peers.json``.

The replayer with fio: same file, pattern, alignment, destinations and threads. Traces with Python and numpy, policies
with libCacheSim: ``jsonl.py``, ``locality.py``, ``lru_peer.py`` and ``min_peer.py`` say how.

Both sides run in interleaved pairs, the side that goes first at random; a figure is the median of its pairs' ratios.
A ratio above 1 always means that the replayer is better. Hits read whole 1 MiB experts at random from a file that is
wholly in the page cache, into one destination per thread, as fio's psync engine does; the replayer checks the stamps of
the first and last page of every expert on top. Cold passes read every expert once, in random order, after the cache was
dropped.

Needs root (to drop the cache), fio, and about 1 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import jsonl
import locality
import lru_peer
import min_peer
import numpy as np
from locality import Result, limit

from pytest_moetier.native import executable
from pytest_moetier.plan import Plan, cold_plan, write_plan
from pytest_moetier.pool.profiles import resolve_shape
from pytest_moetier.pool.synthetic import create_pool

EXPERT_BYTES = 1 << 20
N_EXPERTS = 896
ACCESSES_PER_ITERATION = 64


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

    def plan(self, name: str, sequence: np.ndarray, per_iteration: int) -> Path:
        """Write a plan of this sequence."""
        borders = np.arange(0, len(sequence) + 1, per_iteration, dtype=np.uint64)
        path = self.scratch / f"{name}.plan"
        write_plan(replace(self.base, sequence=sequence.astype(np.uint32), iterations=borders), path)
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


def on_cpu_seconds(pid: int) -> float:
    """Sum the time on a CPU of all threads of a process so far."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class Replay:
    """One run of the replayer: its events, and what the kernel says of the process."""

    def __init__(self, bench: Bench, plan: Path, prepare: Callable[[], None], *options: str) -> None:
        """Start the replayer; prepare the cache once it has its memory and waits; let it run to its end."""
        command = [str(executable("moetier-replay")), str(plan), "--root", str(bench.root), "--wait", *options]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdin is not None
        assert child.stdout is not None
        self.events: list[dict] = []
        self.peak_bytes = 0
        before = 0.0
        for line in child.stdout:
            event = json.loads(line)
            self.events.append(event)
            if event["event"] == "ready":
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


def ours(bench: Bench, plan: Path, threads: int, mode: str, prepare: Callable[[], None]) -> Side:
    """Replay the plan: stamps of the first and last page checked, one destination per thread.

    The CPU time includes the end of the process.
    """
    words = ("--mode", mode, "--threads", str(threads), "--destinations", str(threads), "--stamps", "ends")
    run = Replay(bench, plan, prepare, "--passes", "measured", *words)
    done = run.only("pass")
    return Side(done["bytes"], done["wall_seconds"], run.cpu_seconds)


def fio(bench: Bench, threads: int, prepare: Callable[[], None], *options: str) -> Side:
    """Run fio over the same file with the same alignment, without its own timing of each read."""
    prepare()
    command = ["fio", "--name=peer", f"--filename={bench.file}", "--readonly", "--rw=randread", "--bs=1M"]
    command += ["--ioengine=psync", "--thread=1", f"--numjobs={threads}", "--iomem_align=4k", "--fadvise_hint=0"]
    command += ["--invalidate=0", "--randrepeat=0", "--gtod_reduce=1", "--output-format=json", *options]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=bench.scratch).stdout
    jobs = json.loads(output[output.index("{") :])["jobs"]
    assert len(jobs) == threads
    cpu = sum((job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000 for job in jobs)
    wall = max(job["read"]["runtime"] for job in jobs) / 1000
    return Side(sum(job["read"]["io_bytes"] for job in jobs), wall, cpu)


def compare(
    name: str,
    unit: str,
    pairs: int,
    sides: tuple[Callable[[], Side], Callable[[], Side]],
    rate: Callable[[Side], float],
) -> tuple[list[float], list[float]]:
    """Run both sides in interleaved pairs, in a random order within each; return their rates.

    A fixed order confounds the sides with what alternates on a host, such as which half of the free memory is used.
    """
    order = random.Random(name)  # noqa: S311 - an order, no secret
    rates: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs + 1):
        for which in order.sample((0, 1), 2):
            got = rate(sides[which]())
            if pair:  # the first pair only warms what either side needs of the host
                rates[which].append(got)
        if pair:
            say(f"{name} {pair}/{pairs}: ours {rates[0][-1]:.3f}, fio {rates[1][-1]:.3f} {unit}")
    return rates


def result(name: str, unit: str, rates: tuple[list[float], list[float]], target: float) -> Result:
    """Return the medians, and the median of the pairs' ratios."""
    ratio = statistics.median(a / b for a, b in zip(*rates, strict=True))
    ours_, theirs = (statistics.median(one) for one in rates)
    return Result(name, unit, ours_, theirs, ratio, "higher", target, ratio >= target)


def hits(bench: Bench, threads: int, pairs: int, n: int) -> Result:
    """Page-cache hits per CPU-second."""
    name = f"hits_per_cpu_second_{threads}_thread" + "s" * (threads > 1)
    sequence = np.random.default_rng(threads).integers(0, N_EXPERTS, n)
    plan = bench.plan(name, sequence, ACCESSES_PER_ITERATION)
    options = ("--norandommap", f"--size={N_EXPERTS * EXPERT_BYTES}", f"--io_size={n // threads * EXPERT_BYTES}")
    sides = (
        lambda: ours(bench, plan, threads, "page_cache", lambda: warm(bench.file)),
        lambda: fio(bench, threads, lambda: warm(bench.file), *options),
    )
    rates = compare(name, "GB/CPU-s", pairs, sides, lambda side: side.bytes / 1e9 / side.cpu_seconds)
    return result(name, "GB/CPU-s", rates, 0.97)


def cold(bench: Bench, mode: str, pairs: int, threads: int = 2) -> Result:
    """Wall of reading every expert once from the device; fio's jobs take a part of the file each."""
    name = "cold_direct" if mode == "direct" else "cold_buffered"
    plan = bench.plan(name, np.random.default_rng(9).permutation(N_EXPERTS), N_EXPERTS)
    part = N_EXPERTS // threads * EXPERT_BYTES
    options = (f"--size={part}", f"--offset_increment={part}", "--random_generator=lfsr")
    options += (f"--direct={int(mode == 'direct')}",)

    sides = (
        # Both start after the drop: what it leaves in the free lists decides for a while how scattered new pages are.
        lambda: (drop_cache(), ours(bench, plan, threads, mode, lambda: None))[1],
        lambda: fio(bench, threads, drop_cache, *options),
    )
    rates = compare(name, "GB/s", pairs, sides, lambda side: side.bytes / 1e9 / side.wall_seconds)
    return result(name, "GB/s", rates, 0.95)


def own_costs(bench: Bench) -> Iterator[Result]:
    """Yield the share of a pass of hits that captures and bookkeeping take, and the memory beyond the destinations."""
    n = 100 * ACCESSES_PER_ITERATION
    plan = bench.plan("own", np.random.default_rng(3).integers(0, N_EXPERTS, n), ACCESSES_PER_ITERATION)
    captured = ("/proc/vmstat", "/proc/meminfo", "/proc/self/io", "/proc/self/status", "/proc/pressure/memory")
    captured += ("/proc/diskstats", "/proc/pressure/io")
    device = bench.file.stat().st_dev
    stat = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat"
    options = [word for path in captured for word in ("--capture", path)]
    options += ["--device-stat", stat] if Path(stat).exists() else []
    words = ("--passes", "measured,again", "--threads", "2", "--hits", "auto", "--hits-passes", "measured", *options)
    runs = [Replay(bench, plan, lambda: warm(bench.file), *words) for _ in range(5)]
    yield limit("captures_and_bookkeeping", "share of a pass", statistics.median(map(share_beside_reads, runs)), 0.01)
    start = runs[0].only("start")
    beyond = max(run.peak_bytes for run in runs) - start["destinations"] * start["destination_bytes"]
    yield limit("memory_beyond_destinations", "bytes", beyond, (16 << 20) + 16 * n)


def share_beside_reads(run: Replay) -> float:
    """Return the share of the measured pass that is not reading: both captures, and all that is between iterations."""
    clocks = {event["at"]: event["clock_seconds"] for event in run.events if event["event"] == "capture"}
    done = run.only("pass", **{"pass": "measured"})
    whole = clocks["measured:exit"] - clocks["measured:entry"]
    capture = max(whole - done["elapsed_seconds"], 0.0)  # one of the two lies between the two clocks
    spent = done["elapsed_seconds"] - done["wall_seconds"] + 2 * capture
    say(f"captures and bookkeeping: {spent * 1e3:.2f} ms of a pass of {whole:.2f} s")
    return spent / whole


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextmanager
def shared_file(folder: Path) -> Iterator[Bench]:
    """Yield a pool of one layer in one file, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="moetier-peers-", dir=folder) as scratch:
        pool = Path(scratch) / "pool"
        shape = resolve_shape("custom", layers=1, experts=N_EXPERTS, k=16, expert_bytes=str(EXPERT_BYTES))
        manifest = create_pool(pool, shape, layout="one_file").manifest
        base = cold_plan(manifest, N_EXPERTS, seed=0)
        yield Bench(pool, pool / manifest.files[0].path, base, Path(scratch))


def main() -> int:
    """Run every comparison; 1 when a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("peers.json"))
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the device to read from")
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs of each comparison")
    parser.add_argument("--gib", type=int, default=8, help="GiB of hits a run")
    kinds = ("", "hits", "cold", "own", "traces", "policies")
    parser.add_argument("--only", default="", choices=kinds, help="only these")
    args = parser.parse_args()
    results: list[Result] = []
    if args.only in ("", "traces"):
        results += [*jsonl.results(), *locality.results(pairs=args.pairs)]
    if args.only in ("", "policies"):
        results += [*lru_peer.results(), *min_peer.results()]
    if args.only not in ("traces", "policies"):
        results += replays(args)
    args.output.write_text(json.dumps([asdict(one) for one in results], indent=2) + "\n")
    for one in results:
        verdict = "met" if one.met else "MISSED"
        say(f"{one.name}: {one.ours:.4g} to {one.theirs:.4g} {one.unit}, {one.ratio:.3f} of {one.target}: {verdict}")
    return 0 if all(one.met for one in results) else 1


def replays(args: argparse.Namespace) -> list[Result]:
    """Run the comparisons with fio that were asked for."""
    if shutil.which("fio") is None:
        sys.exit("fio is not installed; next: apt-get install fio")
    if os.geteuid() != 0:
        sys.exit("not root, and the cache has to be dropped between cold runs; next: sudo make peers")
    results: list[Result] = []
    with shared_file(args.folder) as bench:
        if args.only in ("", "hits"):
            results += [hits(bench, threads, args.pairs, args.gib * 1024) for threads in (1, 2)]
        if args.only in ("", "cold"):
            results += [cold(bench, mode, 3 * args.pairs) for mode in ("direct", "page_cache")]
        if args.only in ("", "own"):
            results += own_costs(bench)
    return results


if __name__ == "__main__":
    sys.exit(main())
