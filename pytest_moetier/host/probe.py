"""What this host can measure, why not, and what would make it so (``moetier doctor``; paper section 4, the platforms).

Nothing here changes the host. On a system that is not Linux the facts say so, and every mechanism is missing.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from pytest_moetier.errors import MoetierError, UnsupportedHostError
from pytest_moetier.host import balloon, blockdev, cgroup, loopdev, memboot, mglru, procfs, residency, throttle
from pytest_moetier.host.guest import accelerator_here
from pytest_moetier.host.initramfs import find_tools
from pytest_moetier.host.kernels import default_cache, fetched
from pytest_moetier.host.machine import IN_A_GUEST
from pytest_moetier.host.qemu import refuse_machine
from pytest_moetier.units import format_bytes

if sys.platform != "win32":
    import resource

_CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_IPC_LOCK": 14, "CAP_SYS_RESOURCE": 24, "CAP_DAC_OVERRIDE": 1}
_THP = "/sys/kernel/mm/transparent_hugepage/enabled"
_READ_AHEAD_MUCH_KB = 1024
_MEMLOCK_TRY_BYTES = 64 << 20
_GUEST = f"run the cell in {IN_A_GUEST}"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a result's host was. Sizes in bytes; None where this host does not say.

    Attributes:
        system: ``Linux``, or what it is instead.
        kernel: version of the kernel's build.
        release: ``uname -r``.
        machine: architecture.
        cpu_model: as the kernel names it.
        cpus: usable by this process.
        mem_total_bytes: MemTotal.
        is_root: effective uid 0.
        capabilities: those of interest that this process has.
        cgroup: ``v2``, ``v1``, ``systemd``, ``systemd-user`` or ``none``.
        mglru: ``on``, ``off`` or ``absent``.
        swap_total_bytes: all swap.
        psi: whether /proc/pressure/memory answers.
        memlock_bytes: the soft limit; None for unlimited.
        memlock_unbounded: whether memory beyond that limit can be locked all the same.
        loop: "" when loop devices and detached mounts can be had, else why not.
        cachestat: whether cachestat(2) exists.
        process_io: whether /proc/self/io counts what a process reads from a device.
        thp: transparent huge pages: ``always``, ``madvise``, ``never``; None when not built.
        min_free_bytes: vm.min_free_kbytes (THP raises it).
        damon: names of DAMON's parts that run now.
        mem_argument_bytes: ``mem=`` on the kernel's command line, None without it.
        virtualisation: ``none``, ``virtual machine``, ``emulated``, with ``in a container`` where so.
        machine_hash: a digest of the machine's id, which itself is not shown.
        lane: ``host``.
    """

    system: str
    kernel: str
    release: str
    machine: str
    cpu_model: str
    cpus: int
    mem_total_bytes: int | None
    is_root: bool
    capabilities: tuple[str, ...]
    cgroup: str
    mglru: str
    swap_total_bytes: int | None
    psi: bool
    memlock_bytes: int | None
    memlock_unbounded: bool
    loop: str
    cachestat: bool
    process_io: bool
    thp: str | None
    min_free_bytes: int | None
    damon: tuple[str, ...]
    mem_argument_bytes: int | None
    virtualisation: str
    machine_hash: str
    lane: str = "host"

    def fingerprint(self) -> str:
        """Return a stable id of the hardware (16 hex digits), for bounds that hold on one host only.

        The kernel's release is not part of it: two kernels on one host are what one wants to compare.
        """
        gib = round((self.mem_total_bytes or 0) / (1 << 30))
        parts = (self.lane, self.machine_hash, self.machine, self.cpu_model, str(self.cpus), str(gib))
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]

    def summary(self) -> str:
        """Return what a session's header says of the host."""
        swap = format_bytes(self.swap_total_bytes, binary=True) if self.swap_total_bytes else "none"
        psi = "yes" if self.psi else "no"
        return f"MGLRU {self.mglru}, cgroup {self.cgroup}, swap {swap}, PSI {psi}, {self.virtualisation}"

    def as_json(self) -> dict[str, str | int | bool | list[str] | None]:
        """Return the facts and the fingerprint in JSON's own types."""
        facts = {item.name: getattr(self, item.name) for item in fields(self)}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}
        return {**plain, "fingerprint": self.fingerprint()}

    def match_facts(self) -> dict[str, str]:
        """Return every fact as text, by name, with the fingerprint: what a profile's host patterns are held against."""
        return {name: str(value) for name, value in self.as_json().items()}

    def match_patterns(self) -> dict[str, str]:
        """Return shell patterns, by fact, that this host alone matches."""
        return {"lane": self.lane, "machine": self.machine, "fingerprint": self.fingerprint()}


def host_facts() -> HostFacts:
    """Return the facts of this host; works, with little in it, on systems other than Linux."""
    if not sys.platform.startswith("linux"):
        return _foreign_facts()
    mem = procfs.parse_meminfo(procfs.try_text("/proc/meminfo") or "")
    status = procfs.parse_status(procfs.try_text("/proc/self/status") or "")
    mask = status.capabilities or 0
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    thp = procfs.try_text(_THP)
    min_free = procfs.try_int("/proc/sys/vm/min_free_kbytes")
    return HostFacts(
        system=platform.system(),
        kernel=platform.version(),
        release=platform.release(),
        machine=platform.machine(),
        cpu_model=_cpu_model(),
        cpus=len(os.sched_getaffinity(0)),
        mem_total_bytes=mem.get("MemTotal"),
        is_root=os.geteuid() == 0,
        capabilities=tuple(name for name, bit in _CAPABILITIES.items() if mask >> bit & 1),
        cgroup=cgroup.scope_support().kind,
        mglru=mglru.current(),
        swap_total_bytes=mem.get("SwapTotal"),
        psi=procfs.parse_pressure(procfs.try_text("/proc/pressure/memory")) is not None,
        memlock_bytes=None if soft == resource.RLIM_INFINITY else soft,
        memlock_unbounded=_locks_beyond(soft),
        loop=loopdev.loop_support(),
        cachestat=residency.has_cachestat(),
        process_io=_process_io_counts(),
        thp=procfs.parse_choice(thp) if thp is not None else None,
        min_free_bytes=min_free * 1024 if min_free is not None else None,
        damon=damon_running(),
        mem_argument_bytes=memboot.mem_argument(),
        virtualisation=_virtualisation(),
        machine_hash=_machine_hash(),
    )


def _foreign_facts() -> HostFacts:
    return HostFacts(
        system=platform.system(),
        kernel=platform.version(),
        release=platform.release(),
        machine=platform.machine(),
        cpu_model=platform.processor(),
        cpus=os.cpu_count() or 1,
        mem_total_bytes=None,
        is_root=False,
        capabilities=(),
        cgroup="none",
        mglru=mglru.ABSENT,
        swap_total_bytes=None,
        psi=False,
        memlock_bytes=None,
        memlock_unbounded=False,
        loop=f"not Linux but {platform.system()}",
        cachestat=False,
        process_io=False,
        thp=None,
        min_free_bytes=None,
        damon=(),
        mem_argument_bytes=None,
        virtualisation="none",
        machine_hash=hashlib.sha256(platform.node().encode()).hexdigest()[:16],
    )


def _cpu_rows() -> dict[str, str]:
    rows: dict[str, str] = {}
    for line in (procfs.try_text("/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        rows.setdefault(name.strip(), value.strip())
    return rows


def _cpu_model() -> str:
    rows = _cpu_rows()
    if "model name" in rows:
        return rows["model name"]
    arm = [rows[name] for name in ("CPU implementer", "CPU part") if name in rows]
    return " ".join(arm) or platform.machine()


def _virtualisation() -> str:
    product = " ".join(
        (procfs.try_text(f"/sys/class/dmi/id/{name}") or "").strip() for name in ("sys_vendor", "product_name")
    )
    model = _cpu_model()
    words = "none"
    if "TCG" in model or "QEMU Virtual CPU" in model:
        words = "emulated"
    elif "hypervisor" in _cpu_rows().get("flags", "").split() or any(
        name in product for name in ("QEMU", "KVM", "VMware", "Virtual", "Xen", "Amazon EC2", "Google Compute")
    ):
        words = "virtual machine"
    marks = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")
    return f"{words} in a container" if any(procfs.at(mark).exists() for mark in marks) else words


def _machine_hash() -> str:
    text = procfs.try_text("/etc/machine-id") or procfs.try_text("/var/lib/dbus/machine-id") or platform.node()
    return hashlib.sha256(b"pytest-moetier:" + text.strip().encode()).hexdigest()[:16]


def _locks_beyond(limit: int) -> bool:
    """Return whether more than ``limit`` bytes can be locked, by locking a little more where that is cheap."""
    if limit in {resource.RLIM_INFINITY, -1}:
        return True
    if limit > _MEMLOCK_TRY_BYTES:
        return bool((procfs.parse_status(procfs.try_text("/proc/self/status") or "").capabilities or 0) >> 14 & 1)
    import ctypes  # noqa: PLC0415  # only here

    size = limit + mmap.PAGESIZE
    with mmap.mmap(-1, size) as area:
        view = ctypes.c_char.from_buffer(area)
        locked = residency.libc().mlock(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size)) == 0
        residency.libc().munlock(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size))
        del view
    return bool(locked)


def _process_io_counts() -> bool:
    """Return whether reading a page past the cache shows in /proc/self/io (it stays 0 in some containers)."""

    def count() -> int | None:
        return procfs.parse_keyed(procfs.try_text("/proc/self/io") or "").get("read_bytes")

    before = count()
    if before is None or not hasattr(os, "O_DIRECT"):
        return False
    try:
        descriptor = os.open(sys.executable, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return before > 0
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            os.preadv(descriptor, [page], 0)
    except OSError:
        return before > 0
    finally:
        os.close(descriptor)
    return (count() or 0) > before


def damon_running() -> tuple[str, ...]:
    """Return the names of DAMON's parts that run now; they reclaim memory by themselves."""
    daemons = [
        f"kdamond {state.parent.name} ({', '.join(_damon_actions(state.parent)) or 'actions not readable'})"
        for state in sorted(procfs.at("/sys/kernel/mm/damon/admin/kdamonds").glob("*/state"))
        if _file_text(state) != "off"  # unreadable without root: it may run
    ]
    modules = [
        name
        for name in ("damon_reclaim", "damon_lru_sort")
        if (procfs.try_text(f"/sys/module/{name}/parameters/enabled") or "").strip() in {"Y", "1"}
    ]
    return (*daemons, *modules)


def _damon_actions(kdamond: Path) -> list[str]:
    return sorted({text for file in kdamond.glob("contexts/*/schemes/*/action") if (text := _file_text(file))})


def _file_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor.

    Attributes:
        name: what was looked at.
        state: ``ok``; ``limited``: it can be measured, with less proof or more trouble; ``missing``: something
            cannot be; ``info``: no judgement.
        observed: what was seen, with its unit.
        means: what follows for a measurement.
        fix: what to run or change, "" where nothing is amiss.
    """

    name: str
    state: str
    observed: str
    means: str
    fix: str = ""


def doctor_report(
    pool_path: Path | None = None, reserve_bytes: int = balloon.DEFAULT_RESERVE_BYTES
) -> tuple[Check, ...]:
    """Return what this host can measure and not, why, and what would make it so.

    Args:
        pool_path: an existing pool, or where one is to be; the current folder by default.
        reserve_bytes: the memory a balloon leaves.
    """
    facts = host_facts()
    if facts.system != "Linux":
        return (Check("system", "missing", facts.system, "nothing can be measured: this needs Linux", "use Linux"),)
    return (
        _system(facts),
        *_privileges(facts),
        *_kernel(facts),
        *_witnesses(facts),
        *_storage(Path.cwd() if pool_path is None else pool_path),
        _memory(facts),
        _cgroup_check(),
        _balloon_check(facts, reserve_bytes),
        _memboot_check(facts),
        _read_limit_check(),
        _guest_check(),
    )


def _system(facts: HostFacts) -> Check:
    observed = (
        f"Linux {facts.release} {facts.machine}, {facts.cpus} CPUs ({facts.cpu_model}),"
        f" {format_bytes(facts.mem_total_bytes or 0, binary=True)}, virtualisation: {facts.virtualisation}"
    )
    if "emulated" in facts.virtualisation:
        means = "times under emulation are not the hardware's; counters hold"
        return Check("host", "limited", observed, means, "measure on the hardware itself where times matter")
    return Check("host", "info", observed, f"results carry the host id {facts.fingerprint()}")


def _privileges(facts: HostFacts) -> Iterator[Check]:
    if facts.is_root:
        yield Check("root", "ok", "uid 0", "the whole page cache can be dropped, groups and loop devices made")
    else:
        yield Check(
            "root",
            "limited",
            f"uid {os.geteuid()}",
            "the cache is dropped by fadvise on the pool's files and checked; no loop device; MGLRU cannot be set",
            "run as root for exact device counters",
        )
    lacking = [name for name in _CAPABILITIES if name not in facts.capabilities]
    if facts.is_root and lacking:
        means = "CAP_SYS_RESOURCE: a balloon cannot protect itself from the OOM killer; a kill makes the run INVALID"
        if lacking != ["CAP_SYS_RESOURCE"]:
            means = "root without these is limited: the checks below say in what"
        yield Check("capabilities", "limited", "without " + ", ".join(lacking), means, "start with these capabilities")
    limit = "unlimited" if facts.memlock_bytes is None else format_bytes(facts.memlock_bytes, binary=True)
    if facts.memlock_unbounded:
        yield Check("RLIMIT_MEMLOCK", "ok", f"{limit}, and more can be locked", "the balloon can lock what it needs")
    else:
        yield Check(
            "RLIMIT_MEMLOCK",
            "missing",
            limit,
            "a balloon above this fails; its mlock failure is fatal (exit 3)",
            "ulimit -l unlimited, LimitMEMLOCK=infinity, or root",
        )


def _kernel(facts: HostFacts) -> Iterator[Check]:
    swap = facts.swap_total_bytes
    if swap:
        seen = format_bytes(swap, binary=True)
        means = "a scope is kept from swapping and that is checked; a balloon's pressure swaps other processes out"
        yield Check("swap", "limited", seen, means, "swapoff -a for the measurement")
    else:
        yield Check("swap", "ok", "none", "nothing can be swapped")
    if facts.mglru == mglru.ABSENT:
        yield Check(
            "MGLRU",
            "limited",
            "not built into this kernel",
            "mglru=off and host can be measured, on cannot",
            f"a kernel with CONFIG_LRU_GEN, or {_GUEST}",
        )
    elif facts.is_root:
        yield Check("MGLRU", "ok", facts.mglru, "on and off can both be measured")
    else:
        yield Check("MGLRU", "limited", facts.mglru, "only as it is: it cannot be switched", "run as root")
    thp = facts.thp or "not built"
    reserve = format_bytes(facts.min_free_bytes or 0, binary=True)
    yield Check("THP", "info", f"{thp}, min_free {reserve}", "recorded: THP raises the memory that is kept free")
    if facts.damon:
        yield Check(
            "DAMON",
            "limited",
            ", ".join(facts.damon),
            "proactive page-out decays the warm state between passes",
            "switch it off for the measurement (enabled N, kdamond state off)",
        )
    else:
        yield Check("DAMON", "ok", "not running", "the warm state does not decay by itself")


def _witnesses(facts: HostFacts) -> Iterator[Check]:
    if facts.psi:
        yield Check("PSI", "ok", "answers", "stall times are reported")
    else:
        yield Check(
            "PSI", "limited", "absent or unsupported", "no stall times; no verdict needs them", "boot with psi=1"
        )
    if facts.cachestat:
        yield Check("cachestat", "ok", "present", "residency is exact and cheap")
    else:
        means = "mincore instead: dearer, and only on files one owns"
        yield Check("cachestat", "limited", "absent (Linux 6.5)", means, "a newer kernel")
    if facts.process_io:
        yield Check("process I/O", "ok", "/proc/self/io counts", "the device counter has its second witness")
    else:
        means = "the device counter has no second witness: invariants that need it are unobserved"
        yield Check("process I/O", "limited", "/proc/self/io stays 0", means, "run outside the container")
    if facts.loop:
        means = "pools of plain files; the foreign share of their device is an invariant"
        yield Check("loop devices", "limited", facts.loop, means, "root with /dev/loop-control, Linux 5.8")
    else:
        yield Check(
            "loop devices", "ok", "attach and detached mount work", "a pool image has a device counter of its own"
        )


def _storage(path: Path) -> Iterator[Check]:
    place = path.absolute()
    while not place.exists():
        place = place.parent
    try:
        devices = blockdev.devices_of(place)
    except MoetierError as error:
        yield Check("device", "missing", error.seen, "no pool here: sectors cannot be counted", error.do)
        return
    for device in devices:
        yield _device_check(device)
        yield _read_ahead_check(device)
    free = shutil.disk_usage(place).free
    means = "the default pool takes 3.8 GB"
    enough = free > 5 * 10**9
    fix = "" if enough else "free disk space, or give another path"
    yield Check("disk", "ok" if enough else "limited", f"{format_bytes(free)} free at {place}", means, fix)


def _device_check(device: blockdev.BlockDevice) -> Check:
    kind = {True: "rotational", False: "not rotational", None: "of unknown kind"}[device.rotational]
    observed = f"{device.name} ({device.major}:{device.minor}), {kind}, max_sectors {device.max_sectors_kb} KiB"
    if not device.iostats:
        means = "its counters stand still: nothing can be measured on it"
        return Check("device", "missing", f"{observed}, iostats 0", means, f"echo 1 > {device.queue_path}/iostats")
    return Check("device", "ok", observed, "its sectors can be counted")


def _read_ahead_check(device: blockdev.BlockDevice) -> Check:
    size = device.read_ahead_kb
    if size is None or size <= _READ_AHEAD_MUCH_KB:
        return Check(
            "read_ahead_kb", "ok", f"{size} on {device.name}", "the cold factor is measured before each session"
        )
    return Check(
        "read_ahead_kb",
        "limited",
        f"{size} on {device.name}",
        "multiplies mmap traffic, and reads across expert borders in one-file pools",
        "one file per expert (the default), or an image on its own loop device; the cold factor is measured",
    )


def _memory(facts: HostFacts) -> Check:
    available = balloon.mem_available_bytes()
    observed = f"{format_bytes(available, binary=True)} of {format_bytes(facts.mem_total_bytes or 0, binary=True)}"
    return Check("memory", "info", f"{observed} available", "capacities up to this can be measured")


def _cgroup_check() -> Check:
    support = cgroup.scope_support()
    if not support.available:
        return Check("mechanism cgroup", "missing", support.reason, "no memory wall here", support.fix)
    ways = {
        "v1": "limit and hits per group; its own reclaim only as vmstat's residual",
        "v2": "memory.max, with the group's own reclaim counters",
    }
    means = ways.get(support.kind, "memory.max in a scope of the service manager")
    return Check("mechanism cgroup", "ok", support.reason, means)


def _balloon_check(facts: HostFacts, reserve_bytes: int) -> Check:
    available = balloon.mem_available_bytes()
    room = max(available - reserve_bytes, 0)
    largest = room if facts.memlock_unbounded else min(room, facts.memlock_bytes or 0)
    reserve = format_bytes(reserve_bytes, binary=True)
    smallest = format_bytes(available - largest, binary=True)
    observed = f"can lock {format_bytes(largest, binary=True)} at most, leaving the reserve of {reserve}"
    if room == 0:
        return Check("mechanism balloon", "missing", observed, "less is available than the reserve", _GUEST)
    if largest < room:
        means = f"only capacities above {smallest}: RLIMIT_MEMLOCK"
        return Check("mechanism balloon", "limited", observed, means, "ulimit -l unlimited, or root")
    return Check("mechanism balloon", "limited", observed, f"capacities from {smallest} up", f"below it, {_GUEST}")


def _memboot_check(facts: HostFacts) -> Check:
    if facts.mem_argument_bytes is None:
        example = memboot.boot_argument(1 << 30)
        return Check(
            "mechanism memboot",
            "missing",
            "this kernel was not booted with mem=",
            "cells of this mechanism are skipped",
            f"boot with {example} for a capacity of 1 GiB, or {_GUEST}",
        )
    seen = f"booted with mem={format_bytes(facts.mem_argument_bytes, binary=True)}"
    available = format_bytes(balloon.mem_available_bytes(), binary=True)
    means = f"the one capacity of {available} (MemAvailable now), less what the bench itself takes"
    return Check("mechanism memboot", "ok", seen, means)


def _guest_check() -> Check:
    name, means = "virtual machines", "cells run with another kernel (--moetier-kernel): MGLRU, cgroup v2, mem="
    try:
        refuse_machine()
        find_tools()
    except UnsupportedHostError as error:
        return Check(name, "missing", error.seen, f"no {means}", error.do or error.expected)
    here = [kernel.release for kernel in fetched(default_cache())]
    accelerator, why = accelerator_here()
    if not here:
        return Check(name, "limited", "no kernel was fetched", means, "moetier guest fetch 6.12")
    return Check(name, "ok", f"{accelerator} ({why}); kernels {', '.join(here)}", means)


def _read_limit_check() -> Check:
    support = throttle.read_limit_support()
    if not support.available:
        return Check("read limit", "missing", support.reason, "cells on a slowed device are skipped", support.fix)
    return Check("read limit", "ok", support.reason, "a device can be slowed for the replayer alone")
