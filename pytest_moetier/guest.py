"""The same cell inside a virtual machine with another kernel (paper section 5: the reclaim axis needs kernels).

One boot a run. Python stays on this host: ``replay.run_cell`` acts on the guest as its current machine, so that
scopes, balloon, MGLRU, counters and proof are those of the host lane. What is chosen here is what a boot is given: RAM,
``mem=`` and the mechanism's control target, so that the capacity, the locked fraction and the residency are the cell's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from pytest_moetier.cell import RECLAIM, Cell, GuestAsked
from pytest_moetier.errors import AccountingError, InputError, MoetierError, UnsupportedHostError
from pytest_moetier.host.blockdev import BlockDevice
from pytest_moetier.host.enforce import HostContext
from pytest_moetier.host.guest import POOL, GuestMachine, Launch, boot
from pytest_moetier.host.initramfs import Tools, build_archive, build_initramfs, find_tools
from pytest_moetier.host.kernels import Kernel, check, default_cache, find_kernel, has_port
from pytest_moetier.host.machine import GuestFacts
from pytest_moetier.host.qemu import PORT, SERIAL, GuestError, MachineSpec
from pytest_moetier.host.restore import Journal
from pytest_moetier.modes import delivery_of
from pytest_moetier.native import static_executable
from pytest_moetier.pool.opened import OpenPool
from pytest_moetier.replay import ListFile, OomRun, Rig, Run, read_cold, run_cell, write_cold_plan
from pytest_moetier.units import format_bytes

BOOTS = 3
"""A guest that does not come up is booted again: some kernels hang or panic at an emulated start now and then."""
RESERVE_BYTES = 0
"""What a balloon leaves a guest at least: nobody else needs it there, and a small C leaves next to nothing at times."""
ROOMY_BYTES = 768 << 20
"""RAM beside the capacity where RAM is not what confines the cache."""
MATCHED_WITHIN = 0.02
"""How far the mean residency of two cells may be apart for them to be compared."""
CALIBRATIONS = 4
"""Short boots at most that look for the setting of a cell."""
LOCKED_WITHIN = 0.005
_AGENT, _REPLAY, _BALLOON = "moetier-agent", "moetier-replay", "moetier-balloon"
_JOB = "/job"
_PAGE_DESCRIPTORS = 64  # a descriptor of 64 bytes for every page of 4096
_LIST_FRACTION = 300  # of a zone's pages, shared by its processors
_BOOT_ADVICE = "moetier guest check KERNEL; a larger --moetier-guest-memory where it is short of memory"
_MIB = 1 << 20
Tell = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Lane:
    """One kernel's virtual machines in a session.

    Attributes:
        label: the kernel's word in a cell.
        kernel: what is booted.
        tools: QEMU and busybox.
        initramfs: the first archive: busybox and the kernel's modules.
        asked: the user's choices.
        folder: the session's folder for plans and archives.
        journal: where changes to this host are recorded.
    """

    label: str
    kernel: Kernel
    tools: Tools
    initramfs: Path
    asked: GuestAsked
    folder: Path
    journal: Journal


def open_lane(label: str, word: str, asked: GuestAsked, folder: Path, journal: Journal) -> Lane:
    """Find a kernel and what a guest of it needs; nothing is booted yet.

    Raises:
        InputError: it is no kernel that can be booted here.
        UnsupportedHostError: it lacks what a cell needs, or QEMU, busybox or the static programs are missing.
    """
    tools = find_tools()
    kernel = find_kernel(word, default_cache())
    check(kernel)
    for program in (_AGENT, _REPLAY, _BALLOON):
        static_executable(program)
    # A fetched kernel's archive is kept; one of a path, such as each of a bisection's, is for this session.
    kept = default_cache() if default_cache() in kernel.image.parents else folder
    return Lane(label, kernel, tools, build_initramfs(kernel, tools.busybox, kept), asked, folder, journal)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a boot is given so that a cell is what its id says.

    Attributes:
        memory_bytes: RAM of the virtual machine.
        control_bytes: what the mechanism is told: the wall's room, MemAvailable under balloon and ``mem=``.
        mem_bytes: the ``mem=`` of the command line, None without.
    """

    memory_bytes: int
    control_bytes: int
    mem_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """What one boot of a kernel showed, with the pool and the replayer of a workload.

    Attributes:
        cold_factor: device bytes / logical bytes of one cold read; None where it was not observed.
        kept_bytes: RAM that is not in MemTotal, beside the page descriptors: the kernel's own image and tables.
        used_bytes: MemTotal less MemAvailable with the replayer ready: kernel, agent, the replayer's buffers.
        facts: what the machine was.
    """

    cold_factor: float | None
    kept_bytes: int
    used_bytes: int
    facts: GuestFacts


def probe(lane: Lane, rig: Rig, cell: Cell, setting: Setting | None = None) -> Probe:
    """Boot once and read cold: the cold factor, and what the kernel and the replayer take of the RAM."""
    native = cold_mode(cell)
    path = lane.folder / f"cold-{cell.workload}.plan"
    write_cold_plan(rig.pool.manifest, path)
    memory = lane.asked.memory_bytes or _whole(cell.capacity.resolve(rig.pool.manifest.total_bytes) + ROOMY_BYTES)
    given = setting or Setting(memory, 0)
    with _booted(lane, rig, cell, given, {path.name: path}) as (inside, machine):
        with _explained(machine):
            cold = read_cold(inside, native, Path(_JOB, path.name))
        assert machine.facts is not None  # noqa: S101 - it answered
        memory = given.mem_bytes or given.memory_bytes
        kept = memory - memory // _PAGE_DESCRIPTORS - cold.mem_total_bytes
        return Probe(cold.factor, kept, cold.mem_total_bytes - cold.mem_available_bytes, machine.facts)


def cold_mode(cell: Cell) -> str:
    """Return how the replayer reads cold what a cell's misses read: an arena's by the page cache, a cache's past it."""
    mode = cell.reading
    return "page_cache" if mode.arena or mode.writes else "direct" if not mode.cached else mode.native


def settled(lane: Lane, rig: Rig, cell: Cell, setting: Setting) -> Setting:
    """Return the setting with the ``mem=`` by which MemAvailable is the control target, seen at a boot with it."""
    seen = probe(lane, rig, cell, setting)
    return replace(setting, mem_bytes=_ram_for(setting.control_bytes + seen.used_bytes, seen))


def first_setting(lane: Lane, cell: Cell, capacity_bytes: int, seen: Probe, gap_bytes: int = 0) -> Setting:
    """Return what a cell is tried with first.

    Args:
        lane: the kernel.
        cell: what it is for.
        capacity_bytes: its C.
        seen: what the kernel and the replayer take.
        gap_bytes: how far the control target was above the residency where the like was tried before.

    Raises:
        UnsupportedHostError: the RAM that the user chose cannot hold it.
    """
    control = capacity_bytes + gap_bytes
    needed = control + seen.used_bytes
    if cell.mechanism == "balloon" and cell.locked:
        memory = _ram_for(needed / (1 - cell.locked / 100), seen)
        if lane.asked.memory_bytes and abs(lane.asked.memory_bytes - memory) > memory * LOCKED_WITHIN:
            raise UnsupportedHostError(
                f"a guest of {format_bytes(lane.asked.memory_bytes, binary=True)} with {cell.locked}% of it locked",
                f"{format_bytes(memory, binary=True)}, which leaves {format_bytes(capacity_bytes)}",
                "leave --moetier-guest-memory out: the locked fraction decides it",
            )
        return Setting(memory, control)
    memory = lane.asked.memory_bytes or _whole(capacity_bytes + ROOMY_BYTES)
    if memory < _ram_for(needed, seen):
        raise UnsupportedHostError(
            f"a guest of {format_bytes(memory, binary=True)} for a capacity of {format_bytes(capacity_bytes)}",
            f"at least {format_bytes(_ram_for(needed, seen), binary=True)}: kernel and replayer take"
            f" {format_bytes(seen.kept_bytes + seen.used_bytes)} beside it",
            "a larger --moetier-guest-memory, or a smaller --moetier-capacity",
        )
    mem = _ram_for(needed, seen) if cell.mechanism == "memboot" else None
    return Setting(memory, control, mem)


def adjusted(setting: Setting, run: Run, cell: Cell, aim: float = 1.0, step: float = 1.0) -> Setting:
    """Return the setting that would have met residency (``aim`` times C) and locked share, or ``step`` of the way."""
    resident = residency_of(run)
    assert resident is not None and run.guest is not None  # noqa: PT018, S101 - asked of guests with a residency probe
    off = round(step * (aim * run.capacity_bytes - resident))
    total, available = run.entry.mem_total_bytes or 0, run.enforced.available_bytes
    control = setting.control_bytes + off
    if cell.mechanism == "memboot":
        return Setting(setting.memory_bytes, available + off, (setting.mem_bytes or 0) + off)
    if not (cell.mechanism == "balloon" and cell.locked):
        return Setting(setting.memory_bytes, control)
    used = total - available - (run.enforced.locked_bytes or 0)
    kept = setting.memory_bytes - setting.memory_bytes // _PAGE_DESCRIPTORS - total
    probe_now = Probe(None, kept, used, run.guest)
    return Setting(_ram_for((control + used) / (1 - cell.locked / 100), probe_now), control)


def is_matched(run: Run, aim: float = 1.0) -> bool:
    """Whether the measured pass's mean residency was within 2% of ``aim`` times C, and the locked share as asked."""
    resident = residency_of(run)
    if resident is None or abs(resident / run.capacity_bytes - aim) > MATCHED_WITHIN:
        return False
    share = locked_share(run)
    return not run.cell.locked or (share is not None and abs(share - run.cell.locked / 100) <= LOCKED_WITHIN)


def residency_of(run: Run) -> float | None:
    """Return the mean of the pool's resident bytes over the measured pass; None where it was not observed."""
    seen = [one.resident_bytes for one in run.measured.residencies]
    return fmean(seen) if seen else None


def locked_share(run: Run) -> float | None:
    """Return the balloon's VmLck / MemTotal; None without a balloon."""
    locked, total = run.enforced.locked_bytes_observed, run.entry.mem_total_bytes
    return locked / total if locked is not None and total else None


def run_in_guest(  # noqa: PLR0913  (run_cell's own, by keyword)
    lane: Lane,
    rig: Rig,
    cell: Cell,
    setting: Setting,
    *,
    round_index: int = 0,
    order: int = 0,
    progress: Tell | None = None,
) -> Run | OomRun:
    """Boot, measure ``cell`` once and end the machine.

    Args:
        lane: the kernel.
        rig: the workload's fixed parts, with paths of this host.
        cell: what to enforce and how to read.
        setting: what the boot is given.
        round_index: which repetition this is, from 0.
        order: place of the run in the session's random order, from 0.
        progress: called with a phase's name and the number of finished iterations.

    Raises:
        GuestError: the machine did not come up, or was lost; its last console lines are in the message.
        MoetierError: as ``run_cell``.
    """
    tell = progress or (lambda _phase, _done: None)
    tell(f"booting {lane.kernel.release}", 0)
    lists = _lists(rig, cell)
    with _booted(lane, rig, cell, setting, {one.path.name: one.path for one in lists.values()}) as (inside, machine):
        known = {word: replace(one, path=Path(_JOB, one.path.name)) for word, one in lists.items()}
        with _explained(machine):
            return run_cell(
                replace(inside, list_file=known.__getitem__),
                cell,
                round_index=round_index,
                order=order,
                control_bytes=setting.control_bytes,
                progress=progress,
            )


def _lists(rig: Rig, cell: Cell) -> dict[str, ListFile]:
    words = {cell.reading.table, delivery_of(cell.prefetch)[1]}
    return {word: rig.list_file(word) for word in sorted(filter(None, words))}


@contextmanager
def _explained(machine: GuestMachine) -> Iterator[None]:
    """Say what became of the machine where a run fails: its end is not the replayer's own."""
    try:
        yield
    except GuestError:
        raise
    except AccountingError as error:
        machine.require()
        raise AccountingError(f"{error.seen}{machine.qemu.said()}", error.expected, error.do) from error
    except MoetierError:
        machine.require()
        raise


@contextmanager
def _booted(
    lane: Lane, rig: Rig, cell: Cell, setting: Setting, files: Mapping[str, Path]
) -> Iterator[tuple[Rig, GuestMachine]]:
    """Boot a machine with the cell's files and yield the rig as it is inside."""
    programs = {f"job/{name}": static_executable(name) for name in (_AGENT, _REPLAY, _BALLOON)}
    job = {f"job/{name}": path for name, path in {**files, rig.plan_path.name: rig.plan_path}.items()}
    archive = build_archive({**programs, **job}, lane.folder / "job.cpio")
    spec = MachineSpec(
        kernel=lane.kernel.image,
        initramfs=(lane.initramfs, archive),
        memory_bytes=setting.memory_bytes,
        cpus=lane.asked.cpus,
        image=_image(rig.pool),
        port=PORT if has_port(lane.kernel) else SERIAL,
        words=tuple(_words(cell, setting)),
    )
    launch = Launch(lane.tools.qemu, spec, lane.label, lane.asked.accelerator, lane.journal)
    with ExitStack() as stack:
        machine = _tried(launch, stack)
        yield _inside(rig, machine), machine


def _tried(launch: Launch, stack: ExitStack) -> GuestMachine:
    for attempt in range(BOOTS):
        try:
            return stack.enter_context(boot(launch))
        except GuestError as error:
            if attempt + 1 == BOOTS:
                times = f"{BOOTS} starts of a guest with {format_bytes(launch.spec.memory_bytes, binary=True)}"
                raise GuestError(f"{times}: {error.seen}", error.expected, _BOOT_ADVICE) from error
    raise AssertionError  # not reached


def _words(cell: Cell, setting: Setting) -> Iterator[str]:
    yield f"moetier.pool={cell.filesystem}"
    if cell.workload in RECLAIM:
        # Below 512 MiB of RAM the kernel switches them off by itself, and keeps less memory free: the mechanisms, whose
        # guests differ in RAM, would differ in that too.
        yield "transparent_hugepage=never"
        # Since 6.7 the free pages that a processor keeps to itself grow to tens of MiB, a third of a small guest's C:
        # held at what they were before, and at nothing beside the paper's capacities.
        yield f"moetier.pcp={_LIST_FRACTION}"
    if cell.read_ahead_kb:
        yield f"moetier.ra={cell.read_ahead_kb}"
    if setting.mem_bytes is not None:
        yield f"mem={-(-setting.mem_bytes // 1024)}K"


def _image(pool: OpenPool) -> Path:
    if pool.image is None:
        raise UnsupportedHostError(
            f"pool {pool.path} is of plain files",
            "an image, which a virtual machine reads as its disk",
            "moetier pool create --store image",
        )
    space = pool.image.stat().st_size
    if space < pool.manifest.stored_bytes:
        raise InputError(
            f"{pool.image} has {space} bytes", f"more than the {pool.manifest.stored_bytes} of its experts"
        )
    return pool.image


def _inside(rig: Rig, machine: GuestMachine) -> Rig:
    """Return the rig with the paths and the device of the guest."""
    pool = replace(rig.pool, root=Path(POOL), pass_fds=(), devices=(_disk(machine),), loop=None, image=None)
    host = HostContext(
        journal=None,  # what is changed in there ends with it
        reserve_bytes=RESERVE_BYTES,
        pool_files=rig.host.pool_files,
        balloon=Path(_JOB, _BALLOON),
    )
    plan_path = Path(_JOB, rig.plan_path.name)
    return replace(rig, pool=pool, host=host, plan_path=plan_path, program=f"{_JOB}/{_REPLAY}")


def _disk(machine: GuestMachine) -> BlockDevice:
    def number(path: str) -> int | None:
        try:
            return int(machine.read(path))
        except (OSError, ValueError):
            return None

    major, minor = (int(word) for word in machine.read("/sys/class/block/vda/dev").split(b":"))
    device, queue = f"/sys/dev/block/{major}:{minor}", "/sys/class/block/vda/queue"
    return BlockDevice(
        name="vda",
        major=major,
        minor=minor,
        stat_path=f"{device}/stat",
        inflight_path=f"{device}/inflight",
        queue_path=queue,
        iostats=number(f"{queue}/iostats") != 0,
        read_ahead_kb=number(f"{queue}/read_ahead_kb"),
        max_sectors_kb=number(f"{queue}/max_sectors_kb"),
        rotational=None,
    )


def _ram_for(total_bytes: float, seen: Probe) -> int:
    """Return the RAM of which MemTotal is ``total_bytes``, in whole MiB."""
    return _whole((total_bytes + seen.kept_bytes) * _PAGE_DESCRIPTORS / (_PAGE_DESCRIPTORS - 1))


def _whole(size_bytes: float) -> int:
    return -int(-size_bytes // _MIB) * _MIB
