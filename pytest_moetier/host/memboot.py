"""The capacity by the boot line: a kernel started with mem= (paper section 4: the third mechanism)."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass

from pytest_moetier.errors import UnsupportedHostError
from pytest_moetier.host import procfs
from pytest_moetier.host.machine import IN_A_GUEST
from pytest_moetier.units import format_bytes

_MEM = re.compile(r"^mem=(\d+)([KMGTkmgt]?)$")
_SCALE = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_RAM = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) : System RAM$")
_DESCRIPTOR_SHARE = 64  # a descriptor of 64 bytes for every page of 4096
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MemBoot:
    """A kernel that was booted with mem=.

    Attributes:
        mem_bytes: the argument.
        available_bytes: MemAvailable now.
    """

    mem_bytes: int
    available_bytes: int


def mem_argument() -> int | None:
    """Return the bytes of ``mem=`` on this kernel's command line, None where there is none."""
    found = None
    for word in (procfs.try_text("/proc/cmdline") or "").split():
        if match := _MEM.match(word):
            found = int(match[1]) << _SCALE[match[2].upper()]
    return found


def boot_argument(capacity_bytes: int) -> str:
    """Return the ``mem=`` to boot with for about ``capacity_bytes`` of MemAvailable, from what this host uses now.

    What the kernel keeps from its own start (its image, a page descriptor for every page) is not in MemTotal; it is
    allowed for where /proc/iomem may be read, as root. The memory kept free for atomic allocations shrinks with mem=:
    expect a little more than asked for, and boot again with the difference.
    """
    mem = procfs.parse_meminfo(procfs.read_text("/proc/meminfo"))
    needed = capacity_bytes + mem["MemTotal"] - mem.get("MemAvailable", mem["MemFree"])
    if ranges := _ram_ranges():
        physical = sum(end - start for start, end in ranges)
        kept = max(physical - physical // _DESCRIPTOR_SHARE - mem["MemTotal"], 0)
        needed = (needed + kept) * _DESCRIPTOR_SHARE // (_DESCRIPTOR_SHARE - 1)
        if platform.machine() in {"x86_64", "i686"}:
            needed = _address_above(ranges, needed)
    return f"mem={-(-needed // _MIB)}M"


def _ram_ranges() -> tuple[tuple[int, int], ...]:
    """Return the physical ranges of RAM, lowest first; nothing without root, who alone sees the addresses."""
    lines = (procfs.try_text("/proc/iomem") or "").splitlines()
    found = [(int(match[1], 16), int(match[2], 16) + 1) for line in lines if (match := _RAM.match(line))]
    return tuple(found) if any(start for start, _ in found) else ()


def _address_above(ranges: tuple[tuple[int, int], ...], size_bytes: int) -> int:
    """Return the address with ``size_bytes`` of RAM below it: on x86, mem= is a limit of addresses, holes and all."""
    for start, end in ranges:
        if size_bytes <= end - start:
            return start + size_bytes
        size_bytes -= end - start
    return ranges[-1][1] + size_bytes


def tolerance_bytes(capacity_bytes: int) -> int:
    """Return how far MemAvailable may be from the target: max(2%, 16 MiB), as for the balloon."""
    return max(capacity_bytes // 50, 16 * _MIB)


def check_booted(capacity_bytes: int) -> int:
    """Return the bytes of ``mem=`` that this kernel was booted with.

    Raises:
        UnsupportedHostError: it was booted without.
    """
    mem_bytes = mem_argument()
    if mem_bytes is None:
        raise UnsupportedHostError(
            "this kernel was not booted with mem=", boot_argument(capacity_bytes), _advice(capacity_bytes)
        )
    return mem_bytes


def memboot_support(capacity_bytes: int) -> MemBoot:
    """Return how this kernel was booted, when that is what the capacity needs.

    To be asked when everything but the cache has its memory: with the replayer ready and waiting.

    Raises:
        UnsupportedHostError: it was not booted with mem=, or MemAvailable is off by more than max(2%, 16 MiB).
    """
    mem_bytes = check_booted(capacity_bytes)
    available = procfs.parse_meminfo(procfs.read_text("/proc/meminfo")).get("MemAvailable", 0)
    allowed = tolerance_bytes(capacity_bytes)
    if abs(available - capacity_bytes) > allowed:
        raise UnsupportedHostError(
            f"booted with mem={format_bytes(mem_bytes, binary=True)}, MemAvailable is"
            f" {format_bytes(available, binary=True)} ({available} B)",
            f"{format_bytes(capacity_bytes, binary=True)} +-{format_bytes(allowed, binary=True)}",
            _advice(capacity_bytes),
        )
    return MemBoot(mem_bytes, available)


def _advice(capacity_bytes: int) -> str:
    return (
        f"boot with `{boot_argument(capacity_bytes)}` on the kernel's command line and check MemAvailable,"
        f" or run it in {IN_A_GUEST}"
    )
