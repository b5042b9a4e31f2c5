"""The capacity by the boot line: a kernel started with mem= (paper section 4: the third mechanism)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_moetier.errors import UnsupportedHostError
from pytest_moetier.host import procfs
from pytest_moetier.units import format_bytes

_MEM = re.compile(r"^mem=(\d+)([KMGTkmgt]?)$")
_SCALE = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
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
    """Return the ``mem=`` to boot with for about ``capacity_bytes`` of MemAvailable, from what this host uses now."""
    mem = procfs.parse_meminfo(procfs.read_text("/proc/meminfo"))
    used = mem["MemTotal"] - mem.get("MemAvailable", mem["MemFree"])
    return f"mem={-(-(capacity_bytes + used) // _MIB)}M"


def tolerance_bytes(capacity_bytes: int) -> int:
    """Return how far MemAvailable may be from the target: max(2%, 16 MiB), as for the balloon."""
    return max(capacity_bytes // 50, 16 * _MIB)


def memboot_support(capacity_bytes: int) -> MemBoot:
    """Return how this kernel was booted, when that is what the capacity needs.

    Raises:
        UnsupportedHostError: it was not booted with mem=, or MemAvailable is off by more than max(2%, 16 MiB).
    """
    argument = boot_argument(capacity_bytes)
    do = f"boot with `{argument}` on the kernel's command line and check MemAvailable, or use a guest: --moetier-kernel"
    mem_bytes = mem_argument()
    if mem_bytes is None:
        raise UnsupportedHostError("this kernel was not booted with mem=", f"{argument}", do)
    available = procfs.parse_meminfo(procfs.read_text("/proc/meminfo")).get("MemAvailable", 0)
    allowed = tolerance_bytes(capacity_bytes)
    if abs(available - capacity_bytes) > allowed:
        raise UnsupportedHostError(
            f"booted with mem={format_bytes(mem_bytes, binary=True)}, MemAvailable is"
            f" {format_bytes(available, binary=True)}",
            f"{format_bytes(capacity_bytes, binary=True)} +-{format_bytes(allowed, binary=True)}",
            do,
        )
    return MemBoot(mem_bytes, available)
