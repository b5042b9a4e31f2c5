"""Kernels that a user names: what they are told from, what a cell needs of one, and which modules are loaded first."""

from __future__ import annotations

import gzip
import json
import lzma
import struct
import sys
from pathlib import Path

import pytest
from images import RELEASE, bzimage, module, modules_folder

from pytest_moetier.errors import InputError, UnsupportedHostError
from pytest_moetier.host import kernels
from pytest_moetier.host.kernels import check, examine, fetched, find_kernel, has_mglru, matches, module_files

CONFIG = {
    **dict.fromkeys(("BLK_DEV_INITRD", "BINFMT_SCRIPT", "BINFMT_ELF", "SERIAL_8250_CONSOLE", "DEVTMPFS", "TMPFS"), "y"),
    **dict.fromkeys(("CGROUPS", "MEMCG", "PSI", "LRU_GEN", "DEBUG_FS", "PROC_PAGE_MONITOR", "EXT4_FS"), "y"),
    **dict.fromkeys(("VIRTIO", "VIRTIO_PCI", "VIRTIO_BLK"), "y"),
}
VIRTIO = {
    "drivers/virtio/virtio_ring.ko": module(),
    "drivers/virtio/virtio.ko": module(depends="virtio_ring"),
    "drivers/virtio/virtio_pci_modern_dev.ko": module(),
    "drivers/virtio/virtio_pci.ko": module(depends="virtio_ring,virtio_pci_modern_dev,virtio"),
    "drivers/block/virtio_blk.ko": module(depends="virtio,virtio_ring"),
}
"""As the modules of 6.1: virtio cannot be loaded before virtio_ring."""


def lay(folder: Path, config: dict[str, str] | None = None, **image: object) -> Path:
    """Write an image called bzImage in ``folder``, and a configuration beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "bzImage"
    path.write_bytes(bzimage(**image))  # type: ignore[arg-type]
    if config is not None:
        (folder / f"config-{RELEASE}").write_text("".join(f"CONFIG_{name}={value}\n" for name, value in config.items()))
    return path


def states(path: Path, cache: Path) -> dict[str, str]:
    return {need.name: need.state for need in examine(find_kernel(str(path), cache))}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache folder with three kernels, a file, and a folder that holds no kernel."""
    folder = tmp_path / "cache"
    for release in ("6.1.0-9-cloud-amd64", "6.12.9-cloud-amd64", "6.12.10-cloud-amd64"):
        (folder / release / "boot").mkdir(parents=True)
        (folder / release / "boot" / f"vmlinuz-{release}").write_bytes(bzimage(release))
        (folder / release / "source.json").write_text(json.dumps({"source": f"made, {release}"}))
    (folder / "6.13.0-empty").mkdir()
    (folder / "6.14.0-a-file").touch()
    return folder


def test_a_series_is_the_newest_fetched_one_of_it(cache: Path) -> None:
    assert [kernel.release for kernel in fetched(cache)] == [
        "6.1.0-9-cloud-amd64",
        "6.12.9-cloud-amd64",
        "6.12.10-cloud-amd64",
    ]
    kernel = find_kernel("6.12", cache)
    assert (kernel.label, kernel.release, kernel.source) == ("6.12", "6.12.10-cloud-amd64", "made, 6.12.10-cloud-amd64")
    assert find_kernel("6.1", cache).release == "6.1.0-9-cloud-amd64"  # not 6.12
    assert find_kernel("6.12.9", cache).release == "6.12.9-cloud-amd64"
    assert find_kernel("6.12.9-cloud-amd64", cache).release == "6.12.9-cloud-amd64"
    assert find_kernel("newest", cache).release == "6.12.10-cloud-amd64"


def test_what_is_not_fetched_names_the_command_that_fetches_it(cache: Path) -> None:
    for word in ("7.3", "6.12.1", "6.13"):
        with pytest.raises(UnsupportedHostError, match=rf"no kernel {word} in .*; next: moetier guest fetch {word}$"):
            find_kernel(word, cache)
    with pytest.raises(UnsupportedHostError, match=r"fetch 6\.12"):
        find_kernel("6.12", cache / "absent")


@pytest.mark.parametrize(
    ("word", "release", "named"),
    [
        ("6.1", "6.12.118+deb13-cloud-amd64", False),
        ("6.1", "6.1.0-57-cloud-amd64", True),
        ("6.12.118", "6.12.118+deb13-cloud-amd64", True),
        ("6.12.11", "6.12.118+deb13-cloud-amd64", False),
        ("newest", "7.3.4", True),
        ("7.3", "7.3~rc1-cloud", True),
    ],
)
def test_a_word_names_whole_numbers_of_a_release(word: str, release: str, named: bool) -> None:  # noqa: FBT001
    assert matches(word, release) is named


def test_releases_are_ordered_by_number_and_a_candidate_is_before_its_release() -> None:
    names = ["6.1.0-57", "6.9.1", "6.12.115+deb13-cloud", "6.12.115+deb13.1-cloud", "7.3~rc2-cloud", "7.3.1-cloud"]
    assert sorted(set(names), key=kernels.version_key) == names


def test_a_path_is_called_by_its_release_or_by_a_name_of_its_own(tmp_path: Path) -> None:
    image = lay(tmp_path)
    kernel = find_kernel(str(image), tmp_path)
    assert (kernel.label, kernel.release, kernel.modules, kernel.config) == (RELEASE, RELEASE, None, None)
    good = image.rename(tmp_path / "good build:2")
    assert find_kernel(str(good), tmp_path).label == "good_build_2"  # fit for a test's name


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"a text\nof two lines\n", "is a text that begins 'a text"),
        (b"\x7fELF\x02\x01\x01" + bytes(4096), "is an ELF file, as vmlinux is"),
        (b"MZ\x40\xfa" + bytes(52) + b"ARM\x64" + bytes(4096), "is an arm64 kernel"),
        (gzip.compress(b"Image"), "is a gzip file, as an arm64 Image.gz"),
        (lzma.compress(b"?"), "is an xz file"),
        (b"070701" + b"0" * 104, "is a cpio archive"),
        (b"MZ\0\0zimg" + bytes(4096), "is a compressed EFI kernel"),
        (bytes(range(256)) * 8, "is no kernel: it has no boot header"),
        (bzimage(bits=32), "is a kernel for 32-bit x86"),
        (bzimage(payload=bytes(99999))[:-500], "is cut short: 101548 bytes, its header says 102048"),
        (bzimage()[:0x220], "is cut short: 544 bytes of an x86 kernel"),
        (bzimage(release="who knows"), "does not say which release it is: 'who knows"),
    ],
)
def test_what_is_no_kernel_for_x86_64_is_told_for_what_it_is(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "vmlinuz"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        find_kernel(str(path), tmp_path)
    assert words in caught.value.seen
    assert "x86-64 kernel image" in caught.value.expected


def test_an_efi_program_is_told_from_the_machine_it_is_for(tmp_path: Path) -> None:
    path = tmp_path / "vmlinuz.efi"
    for machine, words in ((0xAA64, "an arm64 EFI program"), (0x8664, "an x86-64 EFI program")):
        head = bytearray(4096)
        head[:2] = b"MZ"
        struct.pack_into("<I", head, 0x3C, 0x80)
        head[0x80:0x86] = b"PE\0\0" + struct.pack("<H", machine)
        path.write_bytes(bytes(head))
        with pytest.raises(InputError, match=words):
            find_kernel(str(path), tmp_path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        find_kernel(str(tmp_path / "absent"), tmp_path)
    with pytest.raises(InputError, match="is a folder"):
        find_kernel(str(tmp_path), tmp_path)
    with pytest.raises(InputError, match="is no plain file"):
        find_kernel("/dev/zero", tmp_path)


def test_modules_are_given_as_their_folder_or_as_one_that_has_it(tmp_path: Path) -> None:
    image = lay(tmp_path / "image")
    folder = modules_folder(tmp_path / "root", VIRTIO)
    for given in (folder, tmp_path / "root"):
        assert find_kernel(f"{image}:{given}", tmp_path).modules == folder
    with pytest.raises(InputError, match=rf"has no modules of {RELEASE}"):
        find_kernel(f"{image}:{tmp_path}", tmp_path)
    with pytest.raises(InputError, match=r"no folder .*/absent"):
        find_kernel(f"{image}:{tmp_path}/absent", tmp_path)


@pytest.mark.parametrize("place", ["boot/vmlinuz-{}", "lib/modules/{}/vmlinuz"])
def test_modules_of_an_unpacked_tree_are_found_from_its_image(tmp_path: Path, place: str) -> None:
    folder = modules_folder(tmp_path, VIRTIO)
    image = tmp_path / place.format(RELEASE)
    image.parent.mkdir(exist_ok=True)
    image.write_bytes(bzimage())
    kernel = find_kernel(str(image), tmp_path)
    assert (kernel.modules, kernel.label) == (folder, RELEASE)


def test_a_built_tree_has_its_configuration(tmp_path: Path) -> None:
    image = lay(tmp_path / "linux" / "arch" / "x86" / "boot")
    (tmp_path / "linux" / ".config").write_text('CONFIG_LRU_GEN=y\nCONFIG_LOCALVERSION="-x"\n# CONFIG_PSI is not set\n')
    assert find_kernel(str(image), tmp_path).config == {"LRU_GEN": "y", "LOCALVERSION": "-x"}


@pytest.mark.parametrize("packed", [gzip.compress, lzma.compress], ids=["gzip", "xz"])
def test_a_configuration_inside_the_image_is_found(tmp_path: Path, packed: object) -> None:
    inner = b"\x7fELF" + bytes(100) + b"IKCFG_ST" + gzip.compress(b"CONFIG_MEMCG=y\n") + b"IKCFG_ED" + bytes(100)
    image = lay(tmp_path, payload=packed(inner) + b"\0\0\0\1")  # type: ignore[operator]
    assert find_kernel(str(image), tmp_path).config == {"MEMCG": "y"}
    image = lay(tmp_path, payload=packed(inner)[:-60])  # type: ignore[operator]
    assert find_kernel(str(image), tmp_path).config is None


def test_a_kernel_with_everything_built_in_needs_no_modules(tmp_path: Path) -> None:
    kernel = find_kernel(str(lay(tmp_path, CONFIG)), tmp_path)
    assert {need.name for need in check(kernel) if need.state != "yes"} == {"virtio_console", "xfs"}
    assert module_files(kernel) == ()


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("BLK_DEV_INITRD", "initramfs"),
        ("SERIAL_8250_CONSOLE", "serial console"),
        ("DEVTMPFS", "devtmpfs"),
        ("VIRTIO_PCI", "virtio_pci"),
        ("VIRTIO_BLK", "virtio_blk"),
        ("EXT4_FS", "ext4"),
        ("MEMCG", "cgroup v2 memory"),
    ],
)
def test_a_kernel_without_what_every_cell_needs_is_refused_by_name(tmp_path: Path, option: str, name: str) -> None:
    config = {key: value for key, value in CONFIG.items() if key != option}
    kernel = find_kernel(str(lay(tmp_path, config)), tmp_path)
    with pytest.raises(UnsupportedHostError, match=rf"lacks {name} \(CONFIG_{option} is not set: "):
        check(kernel)


def test_a_kernel_without_mglru_psi_or_debugfs_only_lacks_what_needs_them(tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key not in {"LRU_GEN", "PSI", "DEBUG_FS"}}
    kernel = find_kernel(str(lay(tmp_path, config)), tmp_path)
    missing = {need.name: need.without for need in check(kernel) if need.state == "no"}
    assert set(missing) == {"MGLRU", "PSI", "debugfs", "virtio_console", "xfs"}
    assert missing["MGLRU"] == "no mglru_on cells"
    assert has_mglru(kernel) is False


def test_whether_mglru_is_on_by_default_is_said(tmp_path: Path) -> None:
    for extra, words in (({}, "built in, off by default"), ({"LRU_GEN_ENABLED": "y"}, "built in, on by default")):
        kernel = find_kernel(str(lay(tmp_path, CONFIG | extra)), tmp_path)
        assert [need.seen for need in examine(kernel) if need.name == "MGLRU"] == [words]
        assert has_mglru(kernel) is True


def test_what_nothing_is_known_of_is_unknown_and_not_refused(tmp_path: Path) -> None:
    path = lay(tmp_path)
    found = states(path, tmp_path)
    assert set(found.values()) == {"yes", "unknown"}
    assert [name for name, state in found.items() if state == "yes"] == ["x86-64 kernel"]
    kernel = find_kernel(str(path), tmp_path)
    assert has_mglru(kernel) is None
    assert module_files(kernel) == ()
    assert check(kernel)


def test_modules_builtin_says_what_is_in_the_kernel_where_no_configuration_does(tmp_path: Path) -> None:
    folder = modules_folder(tmp_path, {"drivers/block/virtio_blk.ko.xz": lzma.compress(module())}, ("fs/ext4/ext4",))
    found = states(Path(f"{lay(tmp_path / 'a')}:{folder}"), tmp_path)
    assert (found["ext4"], found["virtio_blk"], found["virtio_pci"], found["PSI"]) == ("yes", "module", "no", "unknown")


def test_modules_are_loaded_after_what_they_need(tmp_path: Path) -> None:
    folder = modules_folder(tmp_path, VIRTIO, ("fs/ext4/ext4",))
    kernel = find_kernel(f"{lay(tmp_path / 'a', CONFIG | {'VIRTIO': 'm', 'EXT4_FS': 'm'})}:{folder}", tmp_path)
    names = [path.name for path in module_files(kernel)]
    assert sorted(names) == sorted(Path(name).name for name in VIRTIO)
    assert names.index("virtio_ring.ko") < names.index("virtio.ko") < names.index("virtio_pci.ko")
    assert names.index("virtio_pci_modern_dev.ko") < names.index("virtio_pci.ko")
    assert names.index("virtio.ko") < names.index("virtio_blk.ko")


def test_a_wished_for_module_comes_first_and_may_be_missing(tmp_path: Path) -> None:
    files = {
        **VIRTIO,
        "fs/ext4/ext4.ko": module(depends="jbd2", softdep="pre: crc32c absent"),
        "fs/jbd2/jbd2.ko.gz": gzip.compress(module()),
        "crypto/crc32c_generic.ko": module(),
    }
    kernel = find_kernel(f"{lay(tmp_path / 'a')}:{modules_folder(tmp_path, files)}", tmp_path)
    names = [path.name for path in module_files(kernel)]
    assert names[-3:] == ["crc32c_generic.ko", "jbd2.ko.gz", "ext4.ko"]


def test_a_folder_of_modules_needs_no_list_of_dependencies_and_a_damaged_one_does_no_harm(tmp_path: Path) -> None:
    folder = modules_folder(tmp_path, VIRTIO, ("fs/ext4/ext4",))
    (folder / "modules.dep").write_bytes(b"\xff\x00kernel/virtio.ko: : :\nno such line")
    kernel = find_kernel(f"{lay(tmp_path / 'a')}:{folder}", tmp_path)
    assert len(module_files(kernel)) == len(VIRTIO)
    assert check(kernel)


def test_a_module_that_needs_a_missing_one_is_refused_by_name(tmp_path: Path) -> None:
    files = {name: content for name, content in VIRTIO.items() if "virtio_ring" not in name}
    folder = modules_folder(tmp_path, files, ("fs/ext4/ext4",))
    with pytest.raises(InputError, match="lacks the module virtio_ring, which virtio needs"):
        check(find_kernel(f"{lay(tmp_path / 'a')}:{folder}", tmp_path))


def test_a_disk_driver_that_is_a_module_without_a_file_is_missing(tmp_path: Path) -> None:
    kernel = find_kernel(str(lay(tmp_path, CONFIG | {"VIRTIO_BLK": "m"})), tmp_path)
    with pytest.raises(UnsupportedHostError, match=r"virtio_blk \(a module \(CONFIG_VIRTIO_BLK=m\), and no folder"):
        check(kernel)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (module(release="6.13.0"), "is a module of 6.13.0; expected one of 6.12.7-test"),
        (b"", "is no module: not an ELF file with .modinfo"),
        (module()[:100], "is no module"),
        (lzma.compress(module())[:-40], "virtio_blk.ko: cut short; expected a whole kernel module"),
    ],
)
def test_a_module_that_is_damaged_or_of_another_kernel_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    folder = modules_folder(tmp_path, VIRTIO | {"drivers/block/virtio_blk.ko": content}, ("fs/ext4/ext4",))
    with pytest.raises(InputError, match=words):
        check(find_kernel(f"{lay(tmp_path / 'a')}:{folder}", tmp_path))


@pytest.mark.parametrize("without", ["", "zstandard", "both"])
def test_zstd_is_unpacked_by_the_package_or_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    zstandard = pytest.importorskip("zstandard")
    packed = zstandard.ZstdCompressor().compress(module(depends="virtio"))
    files = VIRTIO | {"drivers/block/virtio_blk.ko.zst": packed}
    del files["drivers/block/virtio_blk.ko"]
    folder = modules_folder(tmp_path, files, ("fs/ext4/ext4",))
    kernel = find_kernel(f"{lay(tmp_path / 'a')}:{folder}", tmp_path)
    if without:
        monkeypatch.setitem(sys.modules, "zstandard", None)
    if without == "both":
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(UnsupportedHostError, match="apt-get install zstd"):
            module_files(kernel)
    else:
        assert module_files(kernel)[-1].name == "virtio_blk.ko.zst"
