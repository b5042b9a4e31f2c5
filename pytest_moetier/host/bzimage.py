"""The file of an x86-64 Linux kernel: what its header says (Documentation/arch/x86/boot.rst), and what is none."""

from __future__ import annotations

import gzip
import io
import lzma
import re
import stat
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_moetier.errors import InputError, UnsupportedHostError
from pytest_moetier.host.unpack import unpack

EXPECTED = "an x86-64 kernel image: vmlinuz, or arch/x86/boot/bzImage of a built tree"
_NEXT = "name such a file (make bzImage), or fetch one: moetier guest fetch 6.12"

_HEADER_END = 0x268  # of boot protocol 2.10, the first with kernel_info: older images are of kernels before 2.6.31
_64_BIT = 1  # XLF_KERNEL_64
_LINE = re.compile(r"^CONFIG_(\w+)=(.*)$", re.MULTILINE)
_STARTS = (
    (0, b"\x7fELF", "an ELF file, as vmlinux is"),
    (56, b"ARM\x64", "an arm64 kernel (Image)"),
    (4, b"zimg", "a compressed EFI kernel (zboot), as arm64 has"),
    (0, b"\x1f\x8b", "a gzip file, as an arm64 Image.gz or an initramfs is"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file"),
    (0, b"\xfd7zXZ\0", "an xz file"),
    (0, b"070701", "a cpio archive, as an initramfs is"),
    (0, b"!<arch>\n", "a Debian package (`moetier guest fetch` unpacks those of Debian)"),
)
_MACHINES = {0xAA64: "an arm64 EFI program", 0x8664: "an x86-64 EFI program", 0x14C: "a 32-bit x86 EFI program"}


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of a kernel image says.

    Attributes:
        release: ``uname -r`` of it.
        banner: the whole line: release, builder, build number and date.
        payload: (offset, length) in bytes of the compressed kernel in the file.
    """

    release: str
    banner: str
    payload: tuple[int, int]


def read_header(path: Path) -> Header:
    """Return what the header of the kernel image at ``path`` says.

    Raises:
        InputError: no readable file, no x86-64 bzImage (the message names what it is), or one that is cut short.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would never end
            raise InputError(f"{path} is {'a folder' if path.is_dir() else 'no plain file'}", EXPECTED, _NEXT)
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(1 << 16)  # the version's line is within the setup code, of at most 64 sectors
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", EXPECTED, _NEXT) from error
    if head[0x202:0x206] != b"HdrS":
        raise InputError(f"{path} is {_what(head)}", EXPECTED, _NEXT)
    if len(head) < _HEADER_END:
        raise InputError(f"{path} is cut short: {size} bytes of an x86 kernel", EXPECTED, _NEXT)
    return _parse(path, head, size)


def _parse(path: Path, head: bytes, size: int) -> Header:
    protocol, version_at = struct.unpack_from("<H", head, 0x206)[0], struct.unpack_from("<H", head, 0x20E)[0]
    if protocol < 0x20C or not struct.unpack_from("<H", head, 0x236)[0] & _64_BIT:
        raise InputError(f"{path} is a kernel for 32-bit x86", EXPECTED, _NEXT)
    code_at = ((head[0x1F1] or 4) + 1) * 512
    needed = code_at + struct.unpack_from("<I", head, 0x1F4)[0] * 16
    if size < needed:
        raise InputError(f"{path} is cut short: {size} bytes, its header says {needed}", EXPECTED, _NEXT)
    banner = head[0x200 + version_at :].partition(b"\0")[0].decode("ascii", "replace") if version_at else ""
    if not re.match(r"\d+\.\d+", banner):
        raise InputError(f"{path} does not say which release it is: {banner[:60]!r}", EXPECTED, _NEXT)
    offset, length = struct.unpack_from("<II", head, 0x248)
    return Header(banner.split()[0], banner, (code_at + offset, length))


def _what(head: bytes) -> str:
    """Return in words what begins like ``head``."""
    if not head:
        return "empty"
    for at, magic, words in _STARTS:
        if head[at : at + len(magic)] == magic:
            return words
    if head[:2] == b"MZ" and len(head) >= 64:
        at = struct.unpack_from("<I", head, 0x3C)[0]
        machine = (
            struct.unpack_from("<H", head, at + 4)[0] if head[at : at + 4] == b"PE\0\0" and at + 6 <= len(head) else 0
        )
        return f"{_MACHINES.get(machine, 'a Windows or EFI program')}, not a Linux kernel for a BIOS boot"
    if not re.search(rb"[^\t\n\r\x20-\x7e\x80-\xff]", head):
        return f"a text that begins {head[:40].decode('utf-8', 'replace')!r}"
    return f"no kernel: it has no boot header (HdrS) at byte {0x202}, and begins {head[:8].hex(' ')}"


def parse_config(text: str) -> Mapping[str, str]:
    """Return the options of a kernel's .config by name without CONFIG_: ``y``, ``m``, or a text without its quotes."""
    return {match[1]: match[2].strip('"') for match in _LINE.finditer(text)}


def inner_config(path: Path, header: Header) -> Mapping[str, str] | None:
    """Return the configuration that an image built with IKCONFIG=y has in it, or None where there is none to be had."""
    try:
        with path.open("rb") as file:
            file.seek(header.payload[0])
            packed = file.read(header.payload[1])
        kernel = unpack(packed)
        at = kernel.find(b"IKCFG_ST")
        if at < 0:
            return None
        with gzip.GzipFile(fileobj=io.BytesIO(kernel[at + 8 : kernel.find(b"IKCFG_ED", at)])) as file:
            return parse_config(file.read().decode("utf-8", "replace")) or None
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error, UnsupportedHostError):
        return None  # packed in a way that nothing here unpacks
