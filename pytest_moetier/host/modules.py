"""The loadable modules of a kernel: where they are, and which must be loaded before which.

What a module needs is read from the module itself (its .modinfo section), so that a folder which depmod has not seen,
as an unpacked package's or that of ``make modules_install``, will do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_moetier.errors import InputError
from pytest_moetier.host.unpack import unpack

_ENDINGS = (".ko", ".ko.xz", ".ko.zst", ".ko.gz")
_FOLDERS = ("kernel", "updates", "extra")
_MARKS = (*_FOLDERS, "modules.builtin", "modules.order")


@dataclass(frozen=True, slots=True)
class Modules:
    """A folder lib/modules/RELEASE.

    Attributes:
        folder: the folder.
        builtin: names of what could be modules and is in the kernel itself; None where no file says so.
        files: the modules' files by name (with ``_`` for ``-``).
    """

    folder: Path
    builtin: frozenset[str] | None
    files: Mapping[str, Path]


def find_folder(root: Path, release: str) -> Path | None:
    """Return the folder of modules that ``root`` is, or has for this release; None where there is none."""
    for folder in (root, *(root / part / release for part in ("lib/modules", "usr/lib/modules", "."))):
        if any((folder / mark).exists() for mark in _MARKS):
            return folder
    return None


def open_modules(folder: Path) -> Modules:
    """Return what is in a folder of modules."""
    files = {}
    for part in _FOLDERS:  # what is in updates or extra is there to take the place of what is in kernel
        for path in sorted((folder / part).rglob("*.ko*")):
            if path.name.endswith(_ENDINGS):
                files[module_name(path)] = path
    try:
        lines = (folder / "modules.builtin").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return Modules(folder, None, files)
    return Modules(folder, frozenset(module_name(Path(line.strip())) for line in lines if line.strip()), files)


def module_name(path: Path) -> str:
    """Return the name of a module's file: ``virtio_ring`` for ``drivers/virtio/virtio-ring.ko.xz``."""
    return path.name.partition(".ko")[0].replace("-", "_")


def read_module(path: Path) -> bytes:
    """Return a module as the kernel takes it.

    Raises:
        InputError: it cannot be read, or is damaged.
        UnsupportedHostError: it is zstd, and nothing here unpacks that.
    """
    try:
        return unpack(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a readable kernel module") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}", "a whole kernel module") from error


def load_order(modules: Modules, names: Iterable[str], release: str) -> tuple[Path, ...]:
    """Return the files of the named modules and of all that they need, in an order in which they can be loaded.

    What is neither built in nor in the folder is passed over where it is only wished for (softdep).

    Raises:
        InputError: a needed module is missing, damaged, or of another kernel than ``release``.
    """
    order: dict[str, Path] = {}
    begun: set[str] = set()

    def add(name: str, needed_by: str) -> None:
        if name in begun or name in (modules.builtin or ()):
            return
        begun.add(name)
        path = modules.files.get(name)
        if path is None:
            raise InputError(
                f"{modules.folder} lacks the module {name}" + (f", which {needed_by} needs" if needed_by else ""),
                "a folder with all modules of that kernel",
                "make modules_install INSTALL_MOD_PATH=FOLDER, or build it in (=y)",
            )
        info = _module_info(path)
        _check_release(path, info.get("vermagic", ""), release)
        for soft in _words(info.get("softdep", "").partition("pre:")[2].partition("post:")[0]):
            for known in (soft, f"{soft}_generic"):  # an algorithm (crc32c) is called by an alias of its modules
                if known in modules.files:
                    add(known, name)
        for need in _words(info.get("depends", "").replace(",", " ")):
            add(need, name)
        order[name] = path

    for name in names:
        add(name, "")
    return tuple(order.values())


def _words(text: str) -> list[str]:
    return text.replace("-", "_").split()


def _check_release(path: Path, vermagic: str, release: str) -> None:
    built_for = vermagic.partition(" ")[0]
    if built_for != release:
        raise InputError(
            f"{path} is a module of {built_for or 'an unknown kernel'}",
            f"one of {release}, as the kernel is",
            "name the kernel's own folder of modules: KERNEL:FOLDER",
        )


def _module_info(path: Path) -> dict[str, str]:
    """Return the fields of a module's .modinfo section; of a field that is there more than once, the first."""
    data = read_module(path)
    try:
        section = _section(data, b".modinfo")
    except (struct.error, IndexError, ValueError) as error:
        raise InputError(f"{path} is no module: not an ELF file with .modinfo", "a whole kernel module") from error
    info: dict[str, str] = {}
    for field in section.split(b"\0"):
        key, equals, value = field.decode("utf-8", "replace").partition("=")
        if equals:
            info.setdefault(key, value)
    return info


def _section(data: bytes, name: bytes) -> bytes:
    """Return a section of a 64-bit little-endian ELF file."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not ELF")
    (table_at,) = struct.unpack_from("<Q", data, 40)
    entry_bytes, entries, names_index = struct.unpack_from("<HHH", data, 58)
    rows = [struct.unpack_from("<IIQQQQ", data, table_at + number * entry_bytes) for number in range(entries)]
    names_at = rows[names_index][4]
    for row in rows:
        start = names_at + row[0]
        if data[start : data.index(b"\0", start)] == name:
            if row[4] + row[5] > len(data):
                raise ValueError("cut short")
            return data[row[4] : row[4] + row[5]]
    raise ValueError("no such section")
