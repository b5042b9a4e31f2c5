"""Kernels for a virtual machine: which are here, and what a cell needs of one (paper section 4: a kernel's reclaim)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_moetier.errors import InputError, UnsupportedHostError
from pytest_moetier.host.bzimage import inner_config, parse_config, read_header
from pytest_moetier.host.modules import Modules, find_folder, load_order, open_modules

NEWEST = "newest"
SOURCE_FILE = "source.json"
"""Beside a fetched kernel: where it is from, and when."""

_WORD = re.compile(r"^\d+\.\d+[\w.+~-]*$")
_PLAIN = re.compile(r"[^\w.+-]+")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that a virtual machine can be started with.

    Attributes:
        label: what it is called in a cell's name: the word that was given, of a path its release or file name.
        image: the file, vmlinuz or bzImage.
        modules: the folder lib/modules/RELEASE, None where there is none (everything is built in).
        release: ``uname -r`` of it.
        config: its options without CONFIG_ (``y``, ``m`` or a text), None where they are not known.
        source: where it is from, in words.
    """

    label: str
    image: Path
    modules: Path | None
    release: str
    config: Mapping[str, str] | None = field(repr=False)
    source: str


def default_cache() -> Path:
    """Return the folder that fetched kernels are kept in, each in a folder called by its release."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "pytest-moetier" / "kernels"


def version_key(release: str) -> tuple[str | int, ...]:
    """Return what sorts releases from the oldest to the newest."""
    parts = re.split(r"(\d+)", release.replace("~", "\0"))  # 7.3~rc1 is before 7.3
    return tuple(int(part) if at % 2 else part for at, part in enumerate(parts))


def matches(word: str, release: str) -> bool:
    """Return whether ``word`` names the release: all of it, its first numbers (6.12), or ``newest``."""
    rest = release[len(word) :]
    return word == NEWEST or (release.startswith(word) and (not rest or rest[0] in ".+-~"))


def fetched(cache: Path) -> tuple[Kernel, ...]:
    """Return the kernels in the cache folder, oldest first; what is no whole kernel is left out."""
    found = []
    for folder in sorted(cache.iterdir() if cache.is_dir() else (), key=lambda path: version_key(path.name)):
        image = image_in(folder, folder.name)
        if _WORD.match(folder.name) and image is not None:
            try:
                found.append(_open(image, find_folder(folder, folder.name), folder.name, _source(folder)))
            except InputError:
                continue
    return tuple(found)


def image_in(root: Path, release: str) -> Path | None:
    """Return the image of a release in an unpacked tree, None where it has none."""
    places = (f"boot/vmlinuz-{release}", f"usr/lib/modules/{release}/vmlinuz", f"lib/modules/{release}/vmlinuz")
    return next((root / place for place in places if (root / place).is_file()), None)


def find_kernel(word: str, cache: Path) -> Kernel:
    """Return the kernel that ``word`` names.

    Args:
        word: the first numbers of a fetched one (6.12: the newest of these), a whole release, ``newest``, or the path
            of any vmlinuz or bzImage, as ``PATH:FOLDER`` with the folder of its modules (lib/modules/RELEASE, or
            one that has it).
        cache: the folder of fetched kernels.

    Raises:
        UnsupportedHostError: no such kernel has been fetched.
        InputError: no such file, no x86-64 kernel, or no folder of modules.
    """
    if (_WORD.match(word) or word == NEWEST) and not Path(word).exists():
        return _find_fetched(word, cache)
    path, folder = _split(word)
    header = read_header(path)
    label = header.release if header.release in path.name or path.name in {"bzImage", "vmlinuz"} else path.name
    modules = _given_modules(folder, header.release) if folder else _modules_beside(path, header.release)
    return _open(path, modules, _PLAIN.sub("_", label), f"the file {path}")


def _find_fetched(word: str, cache: Path) -> Kernel:
    here = fetched(cache)
    found = [kernel for kernel in here if matches(word, kernel.release)]
    if not found:
        names = ", ".join(kernel.release for kernel in here)
        raise UnsupportedHostError(
            f"no kernel {word} in {cache}" + (f", which has {names}" if names else ""),
            "one that has been fetched, or a path of a vmlinuz or bzImage",
            f"moetier guest fetch {word}",
        )
    newest = found[-1]
    return Kernel(word, newest.image, newest.modules, newest.release, newest.config, newest.source)


def _split(word: str) -> tuple[Path, Path | None]:
    """Return the path of an image and that of the modules given with it; a name may have a colon of its own."""
    whole = Path(word).expanduser()
    if whole.exists() or ":" not in word:
        return whole, None
    places = [at for at, character in enumerate(word) if character == ":"]
    at = next((at for at in places if Path(word[:at]).expanduser().exists()), places[-1])
    return Path(word[:at]).expanduser(), Path(word[at + 1 :]).expanduser()


def _open(image: Path, modules: Path | None, label: str, source: str) -> Kernel:
    header = read_header(image)
    config = _config(image, modules, header.release) or inner_config(image, header)
    return Kernel(label, image.absolute(), modules and modules.absolute(), header.release, config, source)


def _source(folder: Path) -> str:
    try:
        return str(json.loads((folder / SOURCE_FILE).read_text(encoding="utf-8"))["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return "the cache"


def _given_modules(folder: Path, release: str) -> Path:
    found = find_folder(folder, release)
    if found is None:
        raise InputError(
            f"{folder} has no modules of {release}" if folder.is_dir() else f"no folder {folder}",
            f"lib/modules/{release}, or a folder that has it",
            "make modules_install INSTALL_MOD_PATH=FOLDER, in the tree of that kernel",
        )
    return found


def _modules_beside(image: Path, release: str) -> Path | None:
    """Return the modules of an image that was given alone: in its own folder, in its tree, or this host's own."""
    image = image.resolve()
    for root in (image.parent, image.parent.parent, Path("/")):
        found = find_folder(root, release)
        if found is not None and (found.name == release or found == image.parent):
            return found
    return None


def _config(image: Path, modules: Path | None, release: str) -> Mapping[str, str] | None:
    """Return the configuration beside the image, with the modules, or in the tree that it was built in."""
    image = image.resolve()
    places = [image.parent / f"config-{release}", *([modules / "config"] if modules else [])]
    if image.parts[-4:-1] == ("arch", "x86", "boot"):
        places.append(image.parents[3] / ".config")
    for place in places:
        try:
            config = parse_config(place.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if config:
            return config
    return None


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a cell needs of a kernel.

    Attributes:
        name: what, in short.
        state: ``yes`` (built in), ``module`` (there, to be loaded), ``no``, or ``unknown`` (nothing says so: try).
        required: whether no cell can run without it.
        why: what it is needed for.
        without: what fails without it.
        seen: what was found, in words.
    """

    name: str
    state: str
    required: bool
    why: str
    without: str
    seen: str


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A need as it is looked for: options that must all be on; one of them may be a module of this name."""

    name: str
    options: tuple[str, ...]
    why: str
    without: str
    module: str = ""
    required: bool = True


_WANTED = (
    _Wanted(
        "initramfs", ("BLK_DEV_INITRD", "BINFMT_SCRIPT"), "holds the guest's programs", "it panics: no init was found"
    ),
    _Wanted("executables", ("BINFMT_ELF",), "runs the guest's programs", "it panics: no init was found"),
    _Wanted(
        "serial console",
        ("SERIAL_8250_CONSOLE",),
        "carries the kernel's log, and the host's requests where virtio_console does not",
        "it is never heard of",
    ),
    _Wanted("devtmpfs", ("DEVTMPFS",), "names the devices", "init finds neither the console nor the pool"),
    _Wanted("tmpfs", ("TMPFS",), "is /dev/shm", "init ends: no /dev/shm"),
    _Wanted("virtio", ("VIRTIO",), "is the bus of the pool's disk", "no pool: /dev/vda is missing", "virtio"),
    _Wanted("virtio_pci", ("VIRTIO_PCI",), "finds the pool's disk", "no pool: /dev/vda is missing", "virtio_pci"),
    _Wanted("virtio_blk", ("VIRTIO_BLK",), "drives the pool's disk", "no pool: /dev/vda is missing", "virtio_blk"),
    _Wanted(
        "virtio_console",
        ("VIRTIO_CONSOLE",),
        "carries the host's requests",
        "a serial port does, a hundred times as slowly",
        "virtio_console",
        required=False,
    ),
    _Wanted("ext4", ("EXT4_FS",), "is the pool's filesystem", "the pool cannot be mounted", "ext4"),
    _Wanted("cgroup v2 memory", ("CGROUPS", "MEMCG"), "confines and accounts the replayer", "no cell can be proved"),
    _Wanted("PSI", ("PSI",), "tells stalls from work", "cells have no pressure figures", required=False),
    _Wanted("MGLRU", ("LRU_GEN",), "is the reclaim under test", "no mglru_on cells", required=False),
    _Wanted("debugfs", ("DEBUG_FS",), "shows MGLRU's generations", "no audit of the generations", required=False),
    _Wanted(
        "page monitor", ("PROC_PAGE_MONITOR",), "shows pages of a process", "less is said of pages", required=False
    ),
    _Wanted("xfs", ("XFS_FS",), "is the control's filesystem", "no cells with a pool on xfs", "xfs", required=False),
)


def examine(kernel: Kernel) -> tuple[Need, ...]:
    """Return what cells need of a kernel, and whether it has it, from its header, configuration and modules."""
    modules = open_modules(kernel.modules) if kernel.modules else None
    header = Need(
        "x86-64 kernel", "yes", required=True, why="is booted by QEMU", without="QEMU refuses it", seen=kernel.release
    )
    return (header, *(_examined(wanted, kernel.config, modules) for wanted in _WANTED))


def _examined(wanted: _Wanted, config: Mapping[str, str] | None, modules: Modules | None) -> Need:
    state, seen = _state(wanted, config, modules)
    if wanted.name == "MGLRU" and config and state == "yes":
        seen += ", on by default" if config.get("LRU_GEN_ENABLED") == "y" else ", off by default"
    return Need(wanted.name, state, wanted.required, wanted.why, wanted.without, seen)


def _state(wanted: _Wanted, config: Mapping[str, str] | None, modules: Modules | None) -> tuple[str, str]:
    """Return a need's state and what was seen: by the folder of modules where that says it, else by the options."""
    if wanted.module and modules:
        if wanted.module in (modules.builtin or ()):
            return "yes", "built in (modules.builtin)"
        if wanted.module in modules.files:
            return "module", modules.files[wanted.module].name
        if config is None and modules.builtin is not None:
            return "no", "neither in modules.builtin nor a file"
    if config is None:
        return "unknown", "its configuration is not known"
    return _state_by_options(wanted.options, config, modules)


def _state_by_options(options: Sequence[str], config: Mapping[str, str], modules: Modules | None) -> tuple[str, str]:
    off = [option for option in options if config.get(option) not in {"y", "m"}]
    if off:
        return "no", f"CONFIG_{off[0]} is not set"
    if all(config[option] == "y" for option in options):
        return "yes", "built in"
    where = f"none in {modules.folder}" if modules else "no folder of modules is known"
    return "no", f"a module (CONFIG_{options[-1]}=m), and {where}"


def check(kernel: Kernel) -> tuple[Need, ...]:
    """Return what :func:`examine` found, when cells can run with this kernel; without MGLRU they only lack mglru_on.

    Raises:
        UnsupportedHostError: it lacks something that no cell runs without.
        InputError: a module that must be loaded is damaged, of another kernel, or needs one that is missing.
    """
    needs = examine(kernel)
    missing = [need for need in needs if need.required and need.state == "no"]
    if missing:
        lacks = "; ".join(f"{need.name} ({need.seen}: {need.without})" for need in missing)
        raise UnsupportedHostError(
            f"kernel {kernel.release} of {kernel.image} lacks {lacks}",
            "these built in, or as modules in its folder",
            "`moetier guest check` shows all that is needed; name the modules: KERNEL:FOLDER; or set the options",
        )
    module_files(kernel)
    return needs


def has_mglru(kernel: Kernel) -> bool | None:
    """Return whether the kernel has the multi-generational LRU; None where nothing says so."""
    state = next(need.state for need in examine(kernel) if need.name == "MGLRU")
    return None if state == "unknown" else state == "yes"


def has_port(kernel: Kernel) -> bool:
    """Return whether the kernel surely has virtio's serial ports."""
    return any(need.name == "virtio_console" and need.state in {"yes", "module"} for need in examine(kernel))


def module_files(kernel: Kernel) -> tuple[Path, ...]:
    """Return the modules to load for the pool's disk and filesystems, in order, what they need first.

    What is built in has none; xfs, and what nothing is known of, may be missing.

    Raises:
        UnsupportedHostError: the disk or ext4 is neither built in nor a module that is there.
        InputError: a module is damaged, of another kernel, or needs one that is missing.
    """
    if kernel.modules is None:
        return ()
    modules = open_modules(kernel.modules)
    wanted = [need.name for need in examine(kernel) if need.state == "module"]
    return load_order(modules, wanted, kernel.release)
