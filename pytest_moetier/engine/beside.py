"""What is measured beside the engine, on its model's own device: replays of its trace, and the device's own rate."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_moetier.cell import Cell
from pytest_moetier.engine.asked import DeviceRate, Replayed
from pytest_moetier.engine.lab import EngineLab
from pytest_moetier.errors import AccountingError, HarnessError, UnsupportedHostError
from pytest_moetier.figures import Demand, figures_of
from pytest_moetier.guest import cold_mode
from pytest_moetier.host.enforce import HostContext
from pytest_moetier.host.restore import Journal
from pytest_moetier.host.snapshot import capture_paths, difference, parse, take
from pytest_moetier.host.throttle import read_limit
from pytest_moetier.plan import build_plan, write_plan
from pytest_moetier.pool.manifest import load_manifest
from pytest_moetier.pool.opened import OpenPool, open_pool
from pytest_moetier.proof import ProvedRun, examine
from pytest_moetier.replay import ListFile, Rig, measure_cold_factor, run_cell
from pytest_moetier.replayer import ReplayOptions
from pytest_moetier.trace.records import Trace
from pytest_moetier.units import Capacity

ITERATIONS = 8
"""Tokens of the trace that a replay reads, twice: at 148 MB/s each takes half a second."""
SAMPLES, SAMPLE_BYTES = 3, 512 << 20
"""Reads of the device's rate and the bytes of each, as moe-offload-bench's; the kernel's limit lets 0.3 s through."""
_CHUNK = 1 << 20
_WORD = "small_box"
"""The workload of cells whose pool is thrown away, which modes that write need."""
_DD = 'read _ && exec dd if="$1" of=/dev/null bs=1M skip="$2" count="$3" iflag=direct status=none'
_SLOWEST = 600.0
"""Seconds after which a read of the device is given up."""


@contextmanager
def writable_copy(folder: Path, journal: Journal) -> Iterator[OpenPool]:
    """Hold a pool of an image that may be written to: its manifest says that it is thrown away."""
    replace(load_manifest(folder), throwaway=True).save(folder)
    with open_pool(folder, journal, writable=True) as pool:
        yield pool


@dataclass(slots=True)
class Replays:
    """Replays of one captured trace, over the mapped model that it was captured from.

    Attributes:
        trace: the router's choices.
        folder: for plans.
        journal: where changes to the host are recorded.
        threads: that read.
    """

    trace: Trace
    folder: Path
    journal: Journal
    threads: int

    def run(
        self, wanted: Replayed, pool: OpenPool, round_index: int, order: int, tell: Callable[[str, int], None]
    ) -> ProvedRun:
        """Replay the trace once in a mode, in the wall and under the limit; return the proved run.

        Raises:
            AccountingError: it is not proved.
            MoetierError: it cannot be measured.
        """
        rig = self._rig(pool)
        percent = f"{wanted.capacity_share * 100:g}%"
        cell = Cell("engine", Capacity.parse(percent), mode=wanted.mode, workload=_WORD, read_limit=wanted.read_limit)
        demand = Demand.of(rig.plan, measure_cold_factor(rig, cold_mode(cell), self.folder))
        run = run_cell(rig, cell, round_index=round_index, order=order, progress=tell)
        figures = figures_of(run, demand)
        proof = examine(run, demand, figures)
        proof.require()
        return ProvedRun(run, figures, proof)

    def _rig(self, pool: OpenPool) -> Rig:
        plan = build_plan(self.trace, pool.manifest, min(ITERATIONS, self.trace.n_iterations))
        path = self.folder / f"{pool.path.name}.plan"
        write_plan(plan, path)
        return Rig(
            pool=pool,
            plan=plan,
            plan_path=path,
            host=HostContext(self.journal, 0, len(plan.files), Path()),
            options=ReplayOptions(threads=self.threads, stamps="none"),
            accepted_tokens=plan.n_iterations,
            list_file=_no_list,
        )


def _no_list(word: str) -> ListFile:
    raise UnsupportedHostError(f"a replay of the engine's trace has no list {word}", "a mode that needs none")


def device_rates(lab: EngineLab, wanted: DeviceRate, journal: Journal) -> list[float]:
    """Return the bytes a second of sequential O_DIRECT reads of the model's file, a sample at each of three offsets.

    Raises:
        UnsupportedHostError: the reads of its device cannot be limited.
        AccountingError: the device counted other bytes than were read.
        HarnessError: the read failed.
    """
    file, devices = lab.files[0], lab.pool.devices
    if len(devices) != 1:
        raise UnsupportedHostError(f"the model lies on {len(devices)} devices", "one, whose read rate can be limited")
    size = (lab.pool.root / lab.pool.manifest.files[0].path).stat().st_size // _CHUNK
    count = min(SAMPLE_BYTES // _CHUNK, size)
    if not count:
        raise UnsupportedHostError("the model is smaller than one read", "a model of 1 MiB or more")
    lab.pool.drop_cache()
    with read_limit(devices[0], wanted.read_limit, journal) as limit:
        found = []
        for sample in range(SAMPLES):
            skip = (size - count) * sample // max(1, SAMPLES - 1)
            before = parse(take(capture_paths(devices), "before"), devices)
            found.append(count * _CHUNK / _read(file, skip, count, lab.pool.pass_fds, limit.add))
            read = difference(before, parse(take(capture_paths(devices), "after"), devices)).device_read_bytes
            if read is not None and abs(read / (count * _CHUNK) - 1) > 0.02:
                raise AccountingError(f"the device counted {read} bytes", f"the {count * _CHUNK} that were read")
    return found


def _read(file: str, skip: int, count: int, fds: tuple[int, ...], limit: Callable[[int], None]) -> float:
    """Return the seconds that a read takes in a process which is limited before it begins."""
    argv = ["sh", "-c", _DD, "sh", file, str(skip), str(count)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=fds) as reader:
        try:
            limit(reader.pid)
            started = time.monotonic()
            _, said = reader.communicate(b"\n", timeout=_SLOWEST)
            seconds = time.monotonic() - started
        except BaseException:
            reader.kill()
            raise
    if reader.returncode:
        why = said.decode(errors="replace").strip() or f"status {reader.returncode}"
        raise HarnessError(f"the model cannot be read past the page cache: {why}", "O_DIRECT reads of its file")
    return seconds
