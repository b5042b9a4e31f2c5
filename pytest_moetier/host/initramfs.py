"""The first file system of a virtual machine: busybox, the modules and an init, in one cpio archive for each kernel.

The kernel unpacks every archive in the file that it is given (Documentation/driver-api/early-userspace/buffer-format),
so what a session adds (the agent and its programs) is a second archive behind the first. Nothing is compressed:
emulated processors unpack more slowly than QEMU copies.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pytest_moetier.errors import InputError, UnsupportedHostError
from pytest_moetier.host.kernels import Kernel, module_files
from pytest_moetier.host.modules import module_name, read_module

READY = "MOETIER-READY"
"""Begins the line that init prints on the console when the guest is set up: ``MOETIER-READY uptime SECONDS``."""
FAILED = "MOETIER-FAILED"
"""Begins the line that init prints on the console before it powers off because a step failed."""

QEMU = "qemu-system-x86_64"
_APT_LINE = "apt-get install qemu-system-x86 busybox-static"
_APPLETS = ("sh", "mount", "mkdir", "insmod", "rm", "sleep", "cat", "echo", "poweroff", "dmesg", "ls", "ps", "free")
_FOLDERS = ("bin", "dev", "proc", "sys", "mod", "pool", "tmp", "job")
_ALIGNED_BYTES = 512
_PT_INTERP = 3
_FILE, _EXECUTABLE, _FOLDER, _LINK, _CHARACTERS = 0o100644, 0o100755, 0o040755, 0o120777, 0o020600

_INIT = r"""#!/bin/sh
# Sets the guest up, says so on the console, runs the agent, and ends the machine with it.
export PATH=/bin
fail() { echo "MOETIER-FAILED $*"; poweroff -f; }
option() { for word in $(cat /proc/cmdline); do case $word in "moetier.$1="*) echo "${word#*=}";; esac; done; }
put() { echo "$1" > "$2" || fail "writing $1 to $2"; }

mount -t proc proc /proc || fail "mounting /proc"
mount -t sysfs sys /sys || fail "mounting /sys"
mount -t devtmpfs dev /dev || fail "mounting /dev"
mkdir -p /dev/shm && mount -t tmpfs shm /dev/shm || fail "mounting /dev/shm"
if [ -d /sys/kernel/debug ]; then mount -t debugfs debug /sys/kernel/debug || fail "mounting /sys/kernel/debug"; fi
if [ -d /sys/fs/cgroup ]; then mount -t cgroup2 cgroup /sys/fs/cgroup || fail "mounting /sys/fs/cgroup"; fi

pool=$(option pool)
for file in /mod/*.ko; do
  [ -e "$file" ] || continue
  case $file in *-xfs.ko) [ "$pool" = xfs ] || continue;; esac
  insmod "$file" || fail "insmod $file"
done
rm -r /mod || fail "removing /mod" # files of an initramfs are memory for as long as they exist

if [ -n "$pool" ]; then
  tenths=0
  while ! [ -b /dev/vda ]; do
    [ $tenths -lt 100 ] || fail "no /dev/vda within 10 s"
    sleep 0.1
    tenths=$((tenths + 1))
  done
fi
if [ -b /dev/vda ]; then
  case ${pool:-ext4} in
    ext4) options=ro,noload;;
    xfs) options=ro,norecovery;;
    *) fail "moetier.pool=$pool: neither ext4 nor xfs";;
  esac
  mount -t "${pool:-ext4}" -o $options /dev/vda /pool || fail "mounting /dev/vda as ${pool:-ext4}"
fi

value=$(option ra); [ -z "$value" ] || put "$value" /sys/block/vda/queue/read_ahead_kb
value=$(option thp); [ -z "$value" ] || put "$value" /sys/kernel/mm/transparent_hugepage/enabled
value=$(option pcp); [ -z "$value" ] || put "$value" /proc/sys/vm/percpu_pagelist_high_fraction
value=$(option minfree); [ -z "$value" ] || put "$value" /proc/sys/vm/min_free_kbytes

port=$(option port)
tenths=0
while ! [ -c "/dev/${port:=ttyS1}" ]; do
  [ $tenths -lt 100 ] || fail "no /dev/$port within 10 s"
  sleep 0.1
  tenths=$((tenths + 1))
done
[ -x /job/moetier-agent ] || fail "no /job/moetier-agent"
read -r uptime rest < /proc/uptime
echo "MOETIER-READY uptime $uptime"
/job/moetier-agent "/dev/$port" < /dev/null || echo "MOETIER-FAILED moetier-agent ended with $?"
poweroff -f
"""


@dataclass(frozen=True, slots=True)
class Tools:
    """The programs of this system that a virtual machine needs.

    Attributes:
        qemu: qemu-system-x86_64.
        busybox: a statically linked busybox.
    """

    qemu: Path
    busybox: Path


def find_tools() -> Tools:
    """Return the programs that a virtual machine needs.

    Raises:
        UnsupportedHostError: one is missing, or busybox needs shared libraries.
    """
    missing, qemu, busybox = [], shutil.which(QEMU), shutil.which("busybox")
    if qemu is None:
        missing.append(f"no {QEMU}")
    if busybox is None:
        missing.append("no busybox")
    elif not is_static(Path(busybox)):
        missing.append(f"{busybox} is not statically linked")
    if missing or qemu is None or busybox is None:
        raise UnsupportedHostError(" and ".join(missing), f"{QEMU} and a static busybox on PATH", _APT_LINE)
    return Tools(Path(qemu), Path(busybox))


def is_static(program: Path) -> bool:
    """Return whether a file is a 64-bit x86 program that needs no loader (ELF without PT_INTERP)."""
    try:
        with program.open("rb") as file:
            head = file.read(64)
            if head[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", head, 18)[0] != 62:
                return False
            table_at, entry_bytes, entries = *struct.unpack_from("<Q", head, 32), *struct.unpack_from("<HH", head, 54)
            file.seek(table_at)
            table = file.read(entry_bytes * entries)
        kinds = [struct.unpack_from("<I", table, number * entry_bytes)[0] for number in range(entries)]
    except (OSError, struct.error):
        return False
    return _PT_INTERP not in kinds


def build_initramfs(kernel: Kernel, busybox: Path, folder: Path) -> Path:
    """Return the archive that ``kernel`` starts from, made in ``folder`` unless the same one is there already.

    It is the same, byte for byte, for the same kernel, modules, busybox and init, and called by the sum of these.

    Raises:
        InputError: busybox or a module cannot be read, or there is no room in ``folder``.
        UnsupportedHostError: a module is packed with zstd, and nothing here unpacks that.
    """
    files = module_files(kernel)
    digest = hashlib.sha256()
    for part in (_INIT.encode(), " ".join(_APPLETS).encode(), *(_read(path) for path in (busybox, *files))):
        digest.update(hashlib.sha256(part).digest())
    out = folder / f"initramfs-{kernel.release}-{digest.hexdigest()[:16]}.cpio"
    if not out.is_file():
        _write(out, _base_entries(busybox, files))
    return out


def build_archive(files: Mapping[str, Path | bytes], out: Path) -> Path:
    """Write an archive of files, to be put behind another, and return its path.

    Args:
        files: what each absolute path of the guest holds: a file of this host, executable there if it is here, or bytes
            (mode 0644).
        out: the archive; it is the same, byte for byte, for the same files.

    Raises:
        InputError: a file cannot be read, or there is no room for the archive.
    """
    folders = {str(parent) for name in files for parent in Path(name).parents}
    entries = [_Entry(name.strip("/"), _FOLDER) for name in sorted(folders) if name.strip("/")]
    for name, content in sorted(files.items()):
        executable = isinstance(content, Path) and os.access(content, os.X_OK)
        data = content if isinstance(content, bytes) else _read(content)
        entries.append(_Entry(name.strip("/"), _EXECUTABLE if executable else _FILE, data))
    _write(out, entries)
    return out


def join_archives(parts: Sequence[Path], out: Path) -> Path:
    """Write archives one behind the other, as QEMU's -initrd takes them, and return the path."""
    with _replacing(out) as temporary, temporary.open("wb") as file:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file)
    return out


@dataclass(frozen=True, slots=True)
class _Entry:
    """One file of an archive; the data of a link is where it leads."""

    name: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def _base_entries(busybox: Path, files: Sequence[Path]) -> Iterator[_Entry]:
    for name in _FOLDERS:
        yield _Entry(name, _FOLDER)
    yield _Entry("dev/console", _CHARACTERS, device=(5, 1))  # what init's output goes to before /dev is mounted
    yield _Entry("bin/busybox", _EXECUTABLE, _read(busybox))
    for applet in _APPLETS:
        yield _Entry(f"bin/{applet}", _LINK, b"busybox")
    for number, path in enumerate(files):
        yield _Entry(f"mod/{number:02d}-{module_name(path)}.ko", _FILE, read_module(path))
    yield _Entry("init", _EXECUTABLE, _INIT.encode())


def _write(out: Path, entries: Iterable[_Entry]) -> None:
    with _replacing(out) as temporary, temporary.open("wb") as file:
        for number, entry in enumerate((*entries, _Entry("TRAILER!!!", 0)), start=1):
            _write_entry(file, entry, number)
        file.write(b"\0" * (-file.tell() % _ALIGNED_BYTES))


def _write_entry(file: IO[bytes], entry: _Entry, number: int) -> None:
    """Write one entry in cpio's "newc" format: 13 numbers of 8 hexadecimal digits, name and data, each to 4 bytes."""
    name = entry.name.encode() + b"\0"
    links = 2 if entry.mode == _FOLDER else 1
    # inode, mode, uid, gid, links, mtime, size, device of the file (2), device that it is (2), length of name, no sum
    fields = (number, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, *entry.device, len(name), 0)
    file.write(b"070701" + "".join(f"{field:08x}" for field in fields).encode() + name)
    file.write(b"\0" * (-file.tell() % 4))
    file.write(entry.data)
    file.write(b"\0" * (-len(entry.data) % 4))


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """Yield a new file beside ``out``, which takes its place at the end, and is gone after an error."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{out.name}-", dir=out.parent)
        os.close(descriptor)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}", "a folder that may be written to") from error
    temporary = Path(name)
    try:
        yield temporary
        temporary.replace(out)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}", "a folder with room for it") from error
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a readable file for the guest") from error
