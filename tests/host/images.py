"""Kernels for tests: made ones with nothing but a header, modules that only say what they need, and a real one."""

from __future__ import annotations

import functools
import struct
from pathlib import Path

import pytest

from pytest_moetier.errors import MoetierError
from pytest_moetier.host.debian import fetch
from pytest_moetier.host.initramfs import find_tools
from pytest_moetier.host.kernels import Kernel, default_cache, fetched, matches
from pytest_moetier.native import static_executable

RELEASE = "6.12.7-test"
SETUP_BYTES = 512 * 4
SERIES = "6.12"


def bzimage(release: str = RELEASE, payload: bytes = b"packed kernel", *, bits: int = 64) -> bytes:
    """Return an x86 kernel image: a header of boot protocol 2.15, and a payload."""
    head = bytearray(SETUP_BYTES)
    head[0x1F1] = SETUP_BYTES // 512 - 1
    code = payload + b"\0" * (-len(payload) % 16)
    struct.pack_into("<I", head, 0x1F4, len(code) // 16)
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", head, 0x206, 0x20F)
    struct.pack_into("<H", head, 0x20E, 0x300 - 0x200 + 0x100)
    struct.pack_into("<H", head, 0x236, 0x7F if bits == 64 else 0x7E)
    struct.pack_into("<II", head, 0x248, 0, len(payload))
    banner = f"{release} (someone@somewhere) #1 SMP".encode()
    head[0x400 : 0x400 + len(banner)] = banner
    return bytes(head) + code


def module(*, release: str = RELEASE, depends: str = "", softdep: str = "") -> bytes:
    """Return a loadable module: an ELF file with a .modinfo section and no code."""
    fields = [f"vermagic={release} SMP mod_unload", f"depends={depends}", *([f"softdep={softdep}"] if softdep else [])]
    info = b"".join(field.encode() + b"\0" for field in fields)
    names = b"\0.modinfo\0.shstrtab\0"
    info_at, names_at = 64, 64 + len(info)
    table_at = names_at + len(names)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, table_at, 0, 64, 0, 0, 64, 3, 2)
    sections = ((0, 0, 0, 0), (1, 1, info_at, len(info)), (10, 3, names_at, len(names)))
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, at, size, 0, 0, 1, 0) for name, kind, at, size in sections
    )
    return head + info + names + table


def modules_folder(root: Path, files: dict[str, bytes], builtin: tuple[str, ...] | None = ()) -> Path:
    """Make lib/modules/RELEASE in ``root`` with the files (beneath kernel) and a modules.builtin, and return it."""
    folder = root / "lib" / "modules" / RELEASE
    (folder / "kernel").mkdir(parents=True)
    for name, content in files.items():
        path = folder / "kernel" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if builtin is not None:
        (folder / "modules.builtin").write_text("".join(f"kernel/{name}.ko\n" for name in builtin))
    return folder


@functools.cache
def _fetched(folder: Path) -> Kernel | str:
    here = [kernel for kernel in fetched(default_cache()) if matches(SERIES, kernel.release)]
    if here:
        return here[-1]
    try:
        return fetch(SERIES, folder, lambda _: None)
    except MoetierError as error:
        return f"no kernel {SERIES} can be had: {error}"


def bootable_kernel(factory: pytest.TempPathFactory) -> Kernel:
    """Return a kernel of Debian where all that boots it is there too; skips where one of these cannot be had."""
    try:
        find_tools()
        static_executable("moetier-agent")
    except MoetierError as error:
        pytest.skip(str(error))
    return real_kernel(factory)


def real_kernel(factory: pytest.TempPathFactory) -> Kernel:
    """Return a kernel of Debian: one fetched before, or fetched once for all tests; skips where none can be had."""
    found = _fetched(factory.getbasetemp() / "kernels")
    if isinstance(found, str):
        pytest.skip(found)
    return found
