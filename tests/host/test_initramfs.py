"""The archive that a virtual machine starts from: what is in it, and that a real kernel starts from it."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from images import RELEASE, bzimage, module, modules_folder, real_kernel

from pytest_moetier.errors import InputError, UnsupportedHostError
from pytest_moetier.host import initramfs
from pytest_moetier.host.initramfs import build_archive, build_initramfs, find_tools, is_static, join_archives
from pytest_moetier.host.kernels import Kernel, find_kernel

BOOT_SECONDS = 90
AGENT = b"""#!/bin/sh
echo "agent $* of $(uname -r)"
echo "stdin: $(cat)"
for path in /sys/fs/cgroup/cgroup.controllers /sys/kernel/debug/lru_gen /dev/shm /mod; do
  [ -e $path ] && echo "there: $path"
done
grep -E ' /pool ' /proc/mounts
echo "read_ahead_kb $(cat /sys/block/vda/queue/read_ahead_kb)"
echo "thp $(cat /sys/kernel/mm/transparent_hugepage/enabled)"
echo "min_free_kbytes $(cat /proc/sys/vm/min_free_kbytes)"
exit 3
"""


@pytest.fixture
def busybox(tmp_path: Path) -> Path:
    """A file that stands for busybox where nothing runs it."""
    path = tmp_path / "some-busybox"
    path.write_bytes(b"\x7fELF, as far as this test goes")
    return path


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    """A made kernel with two modules to load, packed differently."""
    files = {
        "drivers/virtio/virtio_pci.ko.gz": gzip.compress(module(depends="virtio")),
        "drivers/virtio/virtio.ko.xz": lzma.compress(module()),
    }
    folder = modules_folder(tmp_path, files, ("drivers/block/virtio_blk", "fs/ext4/ext4"))
    (tmp_path / "bzImage").write_bytes(bzimage())
    return find_kernel(f"{tmp_path / 'bzImage'}:{folder}", tmp_path)


def entries(archive: Path) -> dict[str, tuple[int, bytes]]:
    """Return (mode, data) of every file of a "newc" archive, by name: read as the kernel reads it."""
    data, at, found = archive.read_bytes(), 0, {}
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * number : at + 14 + 8 * number], 16) for number in range(13)]
        mode, size, name_bytes = fields[1], fields[6], fields[11]
        start = at + 110 + name_bytes
        name = data[at + 110 : start - 1].decode()
        start += -start % 4
        if name == "TRAILER!!!":
            return found
        found[name] = (mode, data[start : start + size])
        at = start + size + -size % 4


def test_the_archive_has_busybox_the_unpacked_modules_in_order_and_an_init(
    kernel: Kernel, busybox: Path, tmp_path: Path
) -> None:
    found = entries(build_initramfs(kernel, busybox, tmp_path / "out"))
    assert found["bin/busybox"] == (0o100755, busybox.read_bytes())
    assert [name for name in found if name.startswith("mod/")] == ["mod/00-virtio.ko", "mod/01-virtio_pci.ko"]
    assert found["mod/01-virtio_pci.ko"] == (0o100644, module(depends="virtio"))
    assert found["bin/sh"] == (0o120777, b"busybox")
    assert found["dev/console"][0] == 0o020600
    assert (found["init"][0], found["init"][1][:10]) == (0o100755, b"#!/bin/sh\n")
    assert {"proc", "sys", "dev", "pool", "job"} <= {name for name, (mode, _) in found.items() if mode == 0o040755}


def test_the_same_parts_make_the_same_archive_and_others_another(kernel: Kernel, busybox: Path, tmp_path: Path) -> None:
    first = build_initramfs(kernel, busybox, tmp_path / "one")
    second = build_initramfs(kernel, busybox, tmp_path / "two")
    assert first.name == second.name
    assert first.name.startswith(f"initramfs-{RELEASE}-")
    assert first.read_bytes() == second.read_bytes()
    written = first.stat().st_mtime_ns
    assert build_initramfs(kernel, busybox, tmp_path / "one") == first
    assert first.stat().st_mtime_ns == written  # made once
    busybox.write_bytes(b"\x7fELF, of a later version")
    assert build_initramfs(kernel, busybox, tmp_path / "one").name != first.name


def test_an_archive_of_files_keeps_what_is_executable_and_can_follow_another(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"run me")
    program.chmod(0o700)
    first = build_archive({"/job/agent": program, "/job/deep/a.plan": b"12345"}, tmp_path / "first")
    assert entries(first) == {
        "job": (0o040755, b""),
        "job/deep": (0o040755, b""),
        "job/agent": (0o100755, b"run me"),
        "job/deep/a.plan": (0o100644, b"12345"),
    }
    assert list(entries(first))[:2] == ["job", "job/deep"]  # a folder is there before what is in it
    second = build_archive({"/b": b""}, tmp_path / "second")
    joined = join_archives([first, second], tmp_path / "joined")
    assert joined.read_bytes() == first.read_bytes() + second.read_bytes()
    assert first.stat().st_size % 512 == 0


def test_a_peer_reads_the_archive(tmp_path: Path) -> None:
    if shutil.which("cpio") is None:
        pytest.skip("no cpio here to compare with")
    archive = build_archive({"/job/a": b"a" * 5, "/job/b": b""}, tmp_path / "archive")
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["cpio", "-id", "--quiet"], stdin=archive.open("rb"), cwd=out, check=True)
    assert {str(path.relative_to(out)): path.stat().st_size for path in out.rglob("*") if path.is_file()} == {
        "job/a": 5,
        "job/b": 0,
    }


def test_what_cannot_be_read_or_written_is_said(kernel: Kernel, busybox: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent: No such file or directory"):
        build_initramfs(kernel, tmp_path / "absent", tmp_path)
    with pytest.raises(InputError, match=r"cannot be written: Not a directory|cannot be written: File exists"):
        build_initramfs(kernel, busybox, busybox)
    with pytest.raises(InputError, match="absent: No such file"):
        build_archive({"/x": tmp_path / "absent"}, tmp_path / "archive")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_no_room_leaves_nothing_behind(kernel: Kernel, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a small tmpfs needs root")
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        big = tmp_path / "busybox"
        big.write_bytes(bytes(1 << 20))
        with pytest.raises(InputError, match="No space left on device; expected a folder with room"):
            build_initramfs(kernel, big, small)
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_missing_tools_are_named_together_with_the_one_line_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    line = "apt-get install qemu-system-x86 busybox-static"
    with pytest.raises(UnsupportedHostError, match=rf"no qemu-system-x86_64 and no busybox; .*; next: {line}$"):
        find_tools()
    (tmp_path / "qemu-system-x86_64").touch(mode=0o755)
    shutil.copy("/proc/self/exe", tmp_path / "busybox")  # Python: it needs shared libraries
    with pytest.raises(UnsupportedHostError, match=rf"/busybox is not statically linked; .*{line}$"):
        find_tools()


def test_a_program_is_static_when_it_names_no_loader(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("#!/bin/sh\n")
    cut = tmp_path / "cut"
    cut.write_bytes(Path("/proc/self/exe").read_bytes()[:70])
    assert [is_static(path) for path in (text, cut, tmp_path, tmp_path / "absent")] == [False] * 4


@pytest.fixture(scope="session")
def tools() -> initramfs.Tools:
    """QEMU and busybox; skips where they are missing."""
    try:
        return find_tools()
    except UnsupportedHostError as error:
        pytest.skip(str(error))


def boot(tools: initramfs.Tools, kernel: Kernel, initrd: Path, words: str, disk: Path | None = None) -> list[str]:
    """Return the console's lines of a virtual machine that ends by itself, without what a kernel warns of on it."""
    console = initrd.with_suffix(".console")
    drive = ["-drive", f"file={disk},format=raw,if=virtio,readonly=on"] if disk else []
    subprocess.run(
        [
            *(tools.qemu, "-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm", "-M", "q35", "-m", "512M"),
            *("-smp", "2", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-serial", f"file:{console}", "-serial", "null", *drive, "-kernel", kernel.image, "-initrd", initrd),
            *("-append", f"console=ttyS0 quiet panic=-1 mitigations=off cgroup_no_v1=all psi=1 {words}"),
        ],
        check=True,
        timeout=BOOT_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    lines = console.read_text(errors="replace").splitlines()
    return [line for line in lines if not re.match(r"\[ *\d+\.\d+\] ", line)]


@pytest.mark.slow
def test_a_real_kernel_starts_sets_the_guest_up_and_ends_with_the_agent(
    tools: initramfs.Tools, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kernel = real_kernel(tmp_path_factory)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("no mkfs.ext4 here to make a pool with")
    disk = tmp_path / "pool.img"
    with disk.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(disk)], check=True)
    agent = tmp_path / "agent"
    agent.write_bytes(AGENT)
    agent.chmod(0o755)
    first = build_initramfs(kernel, tools.busybox, tmp_path)
    both = join_archives([first, build_archive({"/job/moetier-agent": agent}, tmp_path / "job")], tmp_path / "both")
    words = "moetier.pool=ext4 moetier.ra=64 moetier.thp=never moetier.minfree=4321"
    lines = boot(tools, kernel, both, words, disk)
    at = next((number for number, line in enumerate(lines) if line.startswith(f"{initramfs.READY} uptime ")), -1)
    assert at >= 0, lines
    assert 0 < float(lines[at].rpartition(" ")[2]) < BOOT_SECONDS
    assert lines[at + 1 : at + 6] == [
        f"agent /dev/ttyS1 of {kernel.release}",
        "stdin: ",
        "there: /sys/fs/cgroup/cgroup.controllers",
        "there: /sys/kernel/debug/lru_gen",
        "there: /dev/shm",  # and no /mod: what has been loaded holds no memory
    ]
    assert lines[at + 6].startswith("/dev/vda /pool ext4 ro,")
    assert lines[at + 7 : at + 11] == [
        "read_ahead_kb 64",
        "thp always madvise [never]",
        "min_free_kbytes 4321",
        f"{initramfs.FAILED} moetier-agent ended with 3",
    ]


@pytest.mark.slow
def test_a_guest_that_cannot_be_set_up_says_which_step_failed_and_ends(
    tools: initramfs.Tools, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kernel = real_kernel(tmp_path_factory)
    first = build_initramfs(kernel, tools.busybox, tmp_path)
    disk = tmp_path / "pool.img"
    disk.write_bytes(b"no filesystem" + bytes(1 << 20))
    assert f"{initramfs.FAILED} mounting /dev/vda as ext4" in boot(tools, kernel, first, "moetier.pool=ext4", disk)
    assert f"{initramfs.FAILED} no /job/moetier-agent" in boot(tools, kernel, first, "")  # it does without a pool
