"""What was delivered and what the device read for it (paper sections 4 and 10)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pytest_moetier.figures import Demand, Figures
from pytest_moetier.host.snapshot import Counters, Interval
from pytest_moetier.plan import Plan
from pytest_moetier.proof.lines import FLAGGED, Invariant, line
from pytest_moetier.replay import Run
from pytest_moetier.units import PAGE_BYTES, format_bytes

MIN_DESTINATIONS = 64
COLD_FACTOR_LIMIT = 1.02
"""Above it read-ahead crosses expert borders, and amplification cannot be told from it."""
STEADY_WITHIN = 0.10
WITNESS_SHARE, WITNESS_BYTES = 0.02, 4 << 20
FOREIGN_SHARE, FOREIGN_BYTES = 0.01, 1 << 20
METADATA_BYTES = 1 << 20
"""Of the filesystem's own blocks, which may be read again beside the experts."""


def delivery(run: Run, demand: Demand) -> Iterator[Invariant]:
    """Yield whether every planned byte was delivered once, and advice accounted for."""
    plan = demand.plan
    for one, iterations in ((run.warm, run.warm_iterations or plan.n_iterations), (run.measured, plan.n_iterations)):
        first = int(plan.iterations[plan.n_iterations - iterations])
        due = int(plan.access_bytes[first:].sum()), plan.n_accesses - first, iterations
        yield line(
            f"delivered_{one.name}",
            f"{due[0]} B in {due[1]} reads, {due[2]} iterations",
            f"{one.bytes} B in {one.accesses} reads, {len(one.iterations)} iterations",
            ok=(one.bytes, one.accesses, len(one.iterations)) == due,
        )
    pages = _stamps_due(plan, run.stamps)
    checked = run.measured.stamps_checked
    yield line(
        "stamps",
        f"{pages} page stamps verified",
        f"{checked}",
        ok=checked == pages if plan.stamped and checked else None,
    )
    for one in (run.warm, run.measured):
        if (sent := one.prefetch) is not None:
            yield line(
                "prefetch_adds_up",
                f"{sent.submitted} lists submitted in the {one.name} pass = completed + overwritten + pending",
                f"{sent.completed} + {sent.overwritten} + {sent.pending}",
                ok=sent.submitted == sent.completed + sent.overwritten + sent.pending and sent.submitted > 0,
            )
    start = run.output.start
    yield line(
        "destinations",
        f"at least {MIN_DESTINATIONS} distinct destinations",
        f"{start.destinations}",
        ok=start.destinations >= MIN_DESTINATIONS,
    )


def _stamps_due(plan: Plan, which: str) -> int:
    """Return how many page stamps a pass must verify: all of every read expert, or its first and last."""
    pages = (plan.access_bytes + np.uint64(PAGE_BYTES - 1)) // np.uint64(PAGE_BYTES)
    return int((np.minimum(pages, np.uint64(2)) if which == "ends" else pages).sum())


def device(run: Run, _demand: Demand) -> Iterator[Invariant]:
    """Yield the two witnesses of the device's bytes, and that nobody else read it."""
    yield from witnesses(run.interval)
    yield from counting(run.exit, run.loop_dio, run.image_resident_bytes, inflight_zero=run.measured.inflight_zero)


def witnesses(interval: Interval) -> Iterator[Invariant]:
    """Yield whether device and process tell the same of what was read, and that nobody else read the device."""
    device, process = interval.device_read_bytes, interval.process_read_bytes
    seen = f"device {device} B, process {process} B"
    both = device is not None and process is not None
    apart = abs((device or 0) - (process or 0))
    foreign = max(0, (device or 0) - (process or 0))
    yield line(
        "device_two_witnesses",
        f"device counter and process read_bytes within {WITNESS_SHARE:.0%} + {format_bytes(WITNESS_BYTES)}",
        seen,
        ok=apart <= WITNESS_SHARE * (device or 0) + WITNESS_BYTES if both else None,
    )
    yield line(
        "foreign_share",
        f"at most max({FOREIGN_SHARE:.0%}, 1 MiB) of the device's bytes read by others",
        f"{foreign} B of {device} B",
        ok=foreign <= max(FOREIGN_SHARE * (device or 0), FOREIGN_BYTES) if both else None,
    )


def counting(
    exit_at: Counters,
    loop_dio: tuple[bool, bool] | None,
    image_resident_bytes: tuple[int, int] | None,
    *,
    inflight_zero: bool | None,
) -> Iterator[Invariant]:
    """Yield whether the device's counter counts: its statistics, nothing in flight, no image cached below it."""
    counted = [one.iostats for one in exit_at.devices]
    yield line(
        "iostats",
        "queue/iostats 1 on every device",
        f"{counted}",
        ok=all(counted) if counted and None not in counted else None,
    )
    yield line(
        "inflight",
        "no request in flight at the snapshots",
        "none" if inflight_zero else "requests in flight after 2 s",
        ok=inflight_zero,
    )
    if loop_dio is not None:
        yield line("loop_direct_io", "dio=1 at entry and exit", f"{loop_dio}", ok=all(loop_dio))
    if image_resident_bytes is not None:
        largest = max(image_resident_bytes)
        yield line("image_not_resident", "image cached at most 1 MiB", format_bytes(largest), ok=largest <= 1 << 20)


def physics(run: Run, demand: Demand, figures: Figures) -> Iterator[Invariant]:
    """Yield that no cache could have read less, and that what was read beyond the plan is explained."""
    device, largest = run.interval.device_read_bytes, figures.largest_holding_bytes
    floor = None if largest is None else demand.belady_bytes(largest)
    yield line(
        "belady_floor",
        f"at least {floor} B, the fewest that a cache of {largest} B must read",
        f"{device} B",
        ok=None if device is None or floor is None else device >= floor,
    )
    factor = demand.cold_factor
    yield line(
        "cold_factor",
        f"cold device/logical at most {COLD_FACTOR_LIMIT}",
        "" if factor is None else f"{factor:.3f}",
        ok=None if factor is None else factor <= COLD_FACTOR_LIMIT,
        otherwise=FLAGGED,
    )
    logical = run.measured.bytes + run.measured.spine_bytes
    if device is None or factor is None or run.measured.prefetch is not None:
        return
    if device <= logical * factor + METADATA_BYTES:
        return
    refault = figures.refault_file_pages
    excess = device - logical * factor
    yield Invariant("over_logical", FLAGGED, f"at most {logical} B x {factor:.3f}", f"{device} B")
    yield line(
        "refaults_cover_excess",
        f"file refaults of at least {excess:.0f} B",
        f"{(refault or 0) * PAGE_BYTES} B",
        ok=None if refault is None else refault * PAGE_BYTES >= excess,
    )


def steadiness(figures: Figures) -> Iterator[Invariant]:
    """Device / nominal of each third of the measured pass against the whole pass's: otherwise it was still warming.

    A pass that swings with a period has whole periods instead of thirds: a third of one would be a phase.
    """
    parts, whole = figures.part_ratios, figures.amplification
    off = max(abs(one / whole - 1) for one in parts) if parts and whole else None
    yield line(
        "steady",
        f"device/nominal of each {figures.part or 'third'} within {STEADY_WITHIN:.0%} of the pass's",
        " / ".join(f"{one:.3f}" for one in parts) + ("" if whole is None else f", pass {whole:.3f}"),
        ok=None if off is None else off <= STEADY_WITHIN,
        otherwise=FLAGGED,
    )
