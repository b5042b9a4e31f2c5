"""Pools are created whole, resumed after a kill or a full disk, and refused where they are not sound."""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_moetier.errors import HarnessError, HostBusyError, InputError, UnsupportedHostError
from pytest_moetier.host import loopdev
from pytest_moetier.pool import check, synthetic
from pytest_moetier.pool.check import check_pool
from pytest_moetier.pool.manifest import MANIFEST_NAME
from pytest_moetier.pool.opened import open_pool
from pytest_moetier.pool.profiles import Shape, resolve_shape
from pytest_moetier.pool.synthetic import PROGRESS_NAME, choose_store, create_pool, image_bytes, plan_manifest

LAYOUTS = ("file_per_expert", "one_file")


def sound(path: Path) -> bool:
    with open_pool(path) as pool:
        found = check_pool(pool.root, pool.manifest, full=True)
    return found.faults == () and found.experts_checked == found.experts


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_plain_pool_is_whole_and_not_sparse(device_folder: Path, shape: Shape, layout: str) -> None:
    made = create_pool(device_folder, shape, layout=layout)
    assert (made.kept_bytes, made.written_bytes) == (0, 393216)
    with open_pool(device_folder) as pool:
        assert (pool.root, pool.pass_fds, pool.loop, pool.image) == (device_folder, (), None, None)
        assert len(pool.devices) >= 1
        files = [(pool.root / file.path).stat() for file in pool.manifest.files]
        assert sum(file.st_size for file in files) == 393216
        assert all(file.st_blocks * 512 >= file.st_size for file in files)
        assert pool.drop_cache() in {0, None}
    assert sound(device_folder)
    assert not (device_folder / PROGRESS_NAME).exists()


@pytest.mark.usefixtures("needs_loop")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_image_is_whole_not_sparse_and_has_its_own_device(device_folder: Path, shape: Shape, layout: str) -> None:
    create_pool(device_folder, shape, layout=layout, store="image")
    image = device_folder / "pool.img"
    assert image.stat().st_blocks * 512 >= image.stat().st_size
    with open_pool(device_folder) as pool:
        assert pool.loop is not None
        assert pool.image == image
        assert [device.name for device in pool.devices] == [pool.loop.path.name]
        assert pool.loop.dio
        path = pool.root / pool.manifest.files[0].path
        seen = subprocess.run(
            ["head", "-c", "8", str(path)], capture_output=True, check=True, pass_fds=pool.pass_fds
        ).stdout
        assert seen == b"MOEPAGE1"
        with pytest.raises(OSError, match="Read-only"):
            path.open("r+b")
        loop = pool.loop
    assert not loop.attached
    assert sound(device_folder)


@pytest.mark.usefixtures("needs_loop")
def test_the_image_counts_what_is_read_cold_and_nothing_on_hits(device_folder: Path, shape: Shape) -> None:
    create_pool(device_folder, shape, store="image")

    def sectors(stat_path: str) -> int:
        return int(Path(stat_path).read_text().split()[2])

    with open_pool(device_folder) as pool:
        for file in pool.manifest.files:
            (pool.root / file.path).read_bytes()  # now the file system's own blocks are in memory
        assert pool.resident_bytes() in {393216, None}
        assert pool.drop_cache() in {0, None}
        (device,) = pool.devices
        before = sectors(device.stat_path)
        for file in pool.manifest.files:
            (pool.root / file.path).read_bytes()
        cold = sectors(device.stat_path)
        for file in pool.manifest.files:
            (pool.root / file.path).read_bytes()
        assert (cold - before) * 512 == 393216
        assert sectors(device.stat_path) == cold


def test_the_same_seed_gives_the_same_bytes_and_another_gives_others(shape: Shape) -> None:
    first = plan_manifest(shape, layout="one_file", store="plain", seed=0)
    assert first == plan_manifest(shape, layout="one_file", store="plain", seed=0)
    assert first.pool_id != plan_manifest(shape, layout="one_file", store="plain", seed=1).pool_id


@pytest.mark.usefixtures("needs_xfs")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_image_with_xfs_has_the_same_experts_not_sparse_on_its_own_device(
    device_folder: Path, tmp_path: Path, shape: Shape, layout: str
) -> None:
    create_pool(device_folder, shape, layout=layout, store="image", filesystem="xfs")
    create_pool(tmp_path / "ext4", shape, layout=layout, store="image")
    image = device_folder / "pool.img"
    assert image.stat().st_blocks * 512 >= image.stat().st_size >= 320 << 20
    with open_pool(device_folder) as pool, open_pool(tmp_path / "ext4") as other:
        assert pool.manifest.filesystem == "xfs"
        assert pool.manifest.pool_id == other.manifest.pool_id
        assert pool.loop is not None
        assert [device.name for device in pool.devices] == [pool.loop.path.name]
        for file in pool.manifest.files:
            assert (pool.root / file.path).read_bytes() == (other.root / file.path).read_bytes()
        with pytest.raises(OSError, match="Read-only"):
            (pool.root / pool.manifest.files[0].path).open("r+b")
        assert pool.drop_cache() in {0, None}
    assert sound(device_folder)


@pytest.mark.usefixtures("needs_xfs")
def test_an_image_with_xfs_is_one_that_old_kernels_mount_without_its_log(device_folder: Path, shape: Shape) -> None:
    create_pool(device_folder, shape, store="image", filesystem="xfs")
    image = device_folder / "pool.img"
    with image.open("rb") as file:
        head = file.read(512)  # struct xfs_dsb of the kernel's fs/xfs/libxfs/xfs_format.h
    assert (head[:4], *struct.unpack_from(">I", head, 4), *struct.unpack_from(">H", head, 102)) == (b"XFSB", 4096, 4096)
    ro_compatible, incompatible, log_incompatible = struct.unpack_from(">III", head, 212)
    assert ro_compatible & ~0b1001 == 0  # a free inode btree, counts of inode btrees: no reflinks, no reverse map
    assert incompatible & ~0b1011 == 0  # types in folders, sparse inodes, big times
    assert log_incompatible == 0
    checker = synthetic._found("xfs_repair")  # noqa: SLF001
    assert checker is not None  # of the same package as mkfs.xfs
    found = subprocess.run([checker, "-n", str(image)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "metadata changes in a log" not in found.stderr  # it was unmounted: there is nothing to replay


@pytest.mark.usefixtures("needs_xfs")
def test_a_copy_of_a_pool_with_xfs_is_opened_beside_it(device_folder: Path, tmp_path: Path, shape: Shape) -> None:
    create_pool(device_folder, shape, store="image", filesystem="xfs")
    shutil.copytree(device_folder, tmp_path / "copy")
    with open_pool(device_folder), open_pool(tmp_path / "copy") as pool:
        assert check_pool(pool.root, pool.manifest, full=True).faults == ()


@pytest.mark.usefixtures("needs_xfs")
def test_a_throw_away_pool_with_xfs_is_written_to(device_folder: Path, shape: Shape) -> None:
    create_pool(device_folder, shape, store="image", filesystem="xfs", throwaway=True)
    with open_pool(device_folder, writable=True) as pool:
        (pool.root / pool.manifest.files[4].path).write_bytes(b"x" * 32768)
    with open_pool(device_folder) as pool:
        (fault,) = check_pool(pool.root, pool.manifest).faults
    assert fault.startswith("layer 0, expert 4, page 0 was overwritten")


@pytest.mark.usefixtures("needs_xfs")
def test_a_pool_in_one_file_system_is_no_pool_in_another(device_folder: Path, shape: Shape) -> None:
    create_pool(device_folder, shape, store="image", filesystem="xfs")
    assert create_pool(device_folder, shape, store="image", filesystem="xfs").written_bytes == 0
    with pytest.raises(InputError, match=r"already holds the pool custom .*, xfs image\)"):
        create_pool(device_folder, shape, store="image")


def test_plain_files_lie_in_no_file_system_of_our_choice(shape: Shape) -> None:
    for store, filesystem in (("plain", "xfs"), ("image", "ntfs")):
        with pytest.raises(InputError, match=f"filesystem '{filesystem}' of a pool with store '{store}'"):
            plan_manifest(shape, layout="one_file", store=store, seed=0, filesystem=filesystem)


def test_the_image_with_xfs_has_room_for_its_log_and_is_no_smaller_than_mkfs_allows(shape: Shape) -> None:
    def size(one: Shape) -> int:
        manifest = plan_manifest(one, layout="file_per_expert", store="image", seed=0, filesystem="xfs")
        return image_bytes(manifest) - manifest.total_bytes

    assert size(shape) == (320 << 20) - 393216
    assert 128 << 20 < size(resolve_shape("kimi-k3", layers=8, expert_bytes="512KiB")) < 256 << 20


def test_creating_the_same_pool_again_writes_nothing(device_folder: Path, shape: Shape) -> None:
    create_pool(device_folder, shape)
    again = create_pool(device_folder, shape)
    assert (again.kept_bytes, again.written_bytes) == (393216, 0)
    with pytest.raises(InputError, match="already holds the pool custom"):
        create_pool(device_folder, shape, seed=1)


SPINE = 20 << 20  # two pieces of 8 MiB and one of 4


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("store", ["plain", "image"])
def test_a_spine_lies_beside_the_experts_and_is_dropped_and_counted_apart(
    device_folder: Path, shape: Shape, layout: str, store: str, request: pytest.FixtureRequest
) -> None:
    if store == "image":
        request.getfixturevalue("needs_loop")
    made = create_pool(device_folder, shape, layout=layout, store=store, spine_bytes=SPINE)
    assert made.written_bytes == 393216 + SPINE
    with open_pool(device_folder) as pool:
        spine = pool.root / "spine.bin"
        assert spine.stat().st_size == SPINE
        assert spine.stat().st_blocks * 512 >= SPINE
        assert pool.drop_cache() in {0, None}
        assert pool.spine_resident_bytes() in {0, None}
        with spine.open("rb") as file:
            stamp = struct.unpack_from("<8sQIIQ", os.pread(file.fileno(), 4096, SPINE - 4096))
        assert stamp == (b"MOEPAGE1", pool.manifest.pool_id, 0xFFFFFFFF, 0, SPINE // 4096 - 1)
        spine.read_bytes()
        assert pool.spine_resident_bytes() in {SPINE, None}
        assert pool.resident_bytes() in {0, None}  # the experts' alone
        assert pool.drop_cache() in {0, None}
        assert pool.spine_resident_bytes() in {0, None}
        found = check_pool(pool.root, pool.manifest, full=True)
        assert (found.faults, found.spine_bytes_checked) == ((), SPINE)
    again = create_pool(device_folder, shape, layout=layout, store=store, spine_bytes=SPINE)
    assert (again.kept_bytes, again.written_bytes) == (393216 + SPINE, 0)
    with pytest.raises(InputError, match="already holds the pool custom"):
        create_pool(device_folder, shape, layout=layout, store=store)


def test_creating_leaves_nothing_of_a_spine_in_the_page_cache(device_folder: Path, shape: Shape) -> None:
    create_pool(device_folder, shape, spine_bytes=SPINE)
    with open_pool(device_folder) as pool:
        assert pool.spine_resident_bytes() in {0, None}


def test_a_spine_that_something_keeps_resident_is_reported(
    device_folder: Path, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_pool(device_folder, shape, spine_bytes=SPINE)
    held = "pytest_moetier.host.residency.drop_file"
    monkeypatch.setattr(held, lambda path: 2 << 20 if path.name == "spine.bin" else 0)
    with open_pool(device_folder) as pool, pytest.raises(HarnessError, match=r"2\.1 MB of the pool stays"):
        pool.drop_cache()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("missing", r"file spine\.bin \(the spine\): No such file"),
        ("short", r"file spine\.bin \(the spine\) has 4096 bytes, expected 20971520"),
        ("link", r"file spine\.bin \(the spine\) is no plain file"),
    ],
)
def test_a_missing_short_or_linked_spine_is_named_and_the_pool_not_opened(
    device_folder: Path, shape: Shape, damage: str, message: str
) -> None:
    create_pool(device_folder, shape, spine_bytes=SPINE)
    target = device_folder / "spine.bin"
    if damage == "short":
        os.truncate(target, 4096)
    else:
        target.unlink()
        if damage == "link":
            target.symlink_to("/etc/hostname")
    with pytest.raises(InputError, match=message), open_pool(device_folder):
        pass
    with open_pool(device_folder, check_files=False) as pool:
        assert re.search(message, check_pool(pool.root, pool.manifest).faults[0])


def test_an_overwritten_page_of_a_spine_is_named(device_folder: Path, shape: Shape) -> None:
    create_pool(device_folder, shape, spine_bytes=SPINE)
    with (device_folder / "spine.bin").open("r+b") as handle:
        handle.seek(SPINE - 3 * 4096 + 1000)
        handle.write(b"!")
        os.fsync(handle.fileno())
    with open_pool(device_folder) as pool:
        (fault,) = check_pool(pool.root, pool.manifest).faults
    assert fault.startswith(f"spine, page {SPINE // 4096 - 3} was overwritten: spine.bin holds")


def test_a_large_spine_is_checked_by_a_sample_with_its_first_and_last_piece(
    device_folder: Path, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_CHUNK_BYTES", 4096)
    create_pool(device_folder, shape, spine_bytes=100 * 4096)
    with open_pool(device_folder) as pool:
        assert check_pool(pool.root, pool.manifest).spine_bytes_checked == 8 * 4096
        assert check_pool(pool.root, pool.manifest, full=True).spine_bytes_checked == 100 * 4096
        with (device_folder / "spine.bin").open("r+b") as handle:
            handle.seek(99 * 4096)
            handle.write(bytes(4096))
            os.fsync(handle.fileno())
        assert "page 99 was overwritten" in check_pool(pool.root, pool.manifest).faults[0]


@pytest.mark.parametrize("size", [-4096, 5000])
def test_a_spine_is_whole_pages(device_folder: Path, shape: Shape, size: int) -> None:
    with pytest.raises(InputError, match=f"a spine of {size} bytes; expected 0 for none, or a multiple of 4096"):
        create_pool(device_folder, shape, spine_bytes=size)


def test_a_spine_leaves_the_experts_bytes_as_they_are_and_a_throw_away_pools_are_its_own(shape: Shape) -> None:
    plain = plan_manifest(shape, layout="one_file", store="plain", seed=0)
    assert plan_manifest(shape, layout="one_file", store="plain", seed=0, spine_bytes=4096).pool_id == plain.pool_id
    thrown = plan_manifest(shape, layout="one_file", store="plain", seed=0, throwaway=True)
    assert thrown.pool_id != plain.pool_id


def test_too_little_room_for_the_spine_is_refused_before_anything_is_written(device_folder: Path, shape: Shape) -> None:
    with pytest.raises(InputError, match=r"free; expected 1e?\S* \S*B for the rest of this pool"):
        create_pool(device_folder, shape, spine_bytes=1 << 50)
    assert not device_folder.exists()


@pytest.mark.parametrize("store", ["plain", "image"])
def test_a_throw_away_pool_is_written_to_when_asked(
    device_folder: Path, shape: Shape, store: str, request: pytest.FixtureRequest
) -> None:
    if store == "image":
        request.getfixturevalue("needs_loop")
    create_pool(device_folder, shape, store=store, throwaway=True)
    with open_pool(device_folder, writable=True) as pool:
        assert pool.writable
        path = pool.root / pool.manifest.files[3].path
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
            mapping[:] = mapping[:]  # every page is dirty, and says what it said
        assert pool.drop_cache() in {0, None}  # written out first
        (pool.root / pool.manifest.files[4].path).write_bytes(b"x" * 32768)
    assert not pool.loop or not pool.loop.attached
    with open_pool(device_folder) as pool:  # it stays written
        assert not pool.writable
        (fault,) = check_pool(pool.root, pool.manifest).faults
        assert fault.startswith("layer 0, expert 4, page 0 was overwritten")
        if store == "image":
            with pytest.raises(OSError, match="Read-only"):
                (pool.root / pool.manifest.files[3].path).open("r+b")


@pytest.mark.parametrize("store", ["plain", "image"])
def test_any_other_pool_is_never_opened_for_writing(
    device_folder: Path, shape: Shape, store: str, request: pytest.FixtureRequest
) -> None:
    if store == "image":
        request.getfixturevalue("needs_loop")
    create_pool(device_folder, shape, store=store)
    with (
        pytest.raises(InputError, match=r"no throw-away pool; expected .*; next: .*moetier pool create --throwaway"),
        open_pool(device_folder, writable=True),
    ):
        pass


@pytest.mark.usefixtures("needs_loop")
def test_experts_of_16_mib_in_one_file_of_an_image_are_whole_and_where_the_manifest_says(device_folder: Path) -> None:
    shape = resolve_shape("custom", layers=2, experts=2, k=1, expert_bytes="16MiB")
    made = create_pool(device_folder, shape, layout="one_file", store="image")
    assert made.written_bytes == 64 << 20
    with open_pool(device_folder) as pool:
        assert [file.path for file in pool.manifest.files] == ["experts/experts.bin"]
        found = check_pool(pool.root, pool.manifest, full=True)
        assert (found.experts_checked, found.bytes_checked, found.faults) == (4, 64 << 20, ())
        with (pool.root / "experts" / "experts.bin").open("rb") as file:
            for layer, expert, page in ((0, 1, 4095), (1, 0, 0), (1, 1, 2048)):
                (extent,) = pool.manifest.extents(layer, expert)
                stamp = struct.unpack_from("<8sQIIQ", os.pread(file.fileno(), 32, extent.offset + page * 4096))
                assert stamp == (b"MOEPAGE1", pool.manifest.pool_id, layer, expert, page)


KILLED = """
import os, signal, sys
from pathlib import Path
from pytest_moetier.pool import synthetic
from pytest_moetier.pool.profiles import resolve_shape
synthetic._SYNC_BYTES = 1 << 20
synthetic._BATCH_BYTES = 1 << 19
def progress(done, total):
    if done >= 3 << 20:
        os.kill(os.getpid(), signal.SIGKILL)
shape = resolve_shape("custom", layers=2, experts=64, k=2, expert_bytes="64KiB")
_, path, layout, store, filesystem = sys.argv
synthetic.create_pool(Path(path), shape, layout=layout, store=store, filesystem=filesystem, progress=progress)
"""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("store", "filesystem"), [("plain", "ext4"), ("image", "ext4"), ("image", "xfs")])
def test_a_killed_create_goes_on_where_it_was(
    device_folder: Path, layout: str, store: str, filesystem: str, request: pytest.FixtureRequest
) -> None:
    if store == "image":
        request.getfixturevalue("needs_xfs" if filesystem == "xfs" else "needs_loop")
    script = [sys.executable, "-c", textwrap.dedent(KILLED), str(device_folder), layout, store, filesystem]
    assert subprocess.run(script, check=False).returncode == -signal.SIGKILL
    assert not (device_folder / MANIFEST_NAME).exists()
    with pytest.raises(InputError, match=r"manifest\.yaml is missing"), open_pool(device_folder):
        pass
    shape = resolve_shape("custom", layers=2, experts=64, k=2, expert_bytes="64KiB")
    with pytest.raises(InputError, match="unfinished pool of another"):
        create_pool(device_folder, shape, layout=layout, store=store, filesystem=filesystem, seed=5)
    made = create_pool(device_folder, shape, layout=layout, store=store, filesystem=filesystem)
    assert made.kept_bytes >= 2 << 20
    assert made.kept_bytes + made.written_bytes == 8 << 20
    assert sound(device_folder)


KILLED_IN_THE_SPINE = """
import os, signal, sys
from pathlib import Path
from pytest_moetier.pool import synthetic
from pytest_moetier.pool.profiles import resolve_shape
synthetic._SYNC_BYTES = synthetic._BATCH_BYTES = 1 << 20
def progress(done, total):
    if done > total - (8 << 20):
        os.kill(os.getpid(), signal.SIGKILL)
shape = resolve_shape("custom", layers=2, experts=6, k=2, expert_bytes="32KiB")
synthetic.create_pool(Path(sys.argv[1]), shape, store=sys.argv[2], spine_bytes=20 << 20, progress=progress)
"""


@pytest.mark.parametrize("store", ["plain", "image"])
def test_a_create_that_was_killed_in_the_spine_goes_on_there(
    device_folder: Path, shape: Shape, store: str, request: pytest.FixtureRequest
) -> None:
    if store == "image":
        request.getfixturevalue("needs_loop")
    script = [sys.executable, "-c", textwrap.dedent(KILLED_IN_THE_SPINE), str(device_folder), store]
    assert subprocess.run(script, check=False).returncode == -signal.SIGKILL
    assert not (device_folder / MANIFEST_NAME).exists()
    with pytest.raises(InputError, match="unfinished pool of another"):
        create_pool(device_folder, shape, store=store)
    made = create_pool(device_folder, shape, store=store, spine_bytes=SPINE)
    assert made.kept_bytes == 393216 + (16 << 20)
    assert made.written_bytes == 4 << 20
    assert sound(device_folder)


def test_a_resumed_create_rewrites_pieces_of_the_spine_that_do_not_verify(device_folder: Path, shape: Shape) -> None:
    create_pool(device_folder, shape, spine_bytes=SPINE)
    manifest = plan_manifest(shape, layout="file_per_expert", store="plain", seed=0, spine_bytes=SPINE)
    (device_folder / MANIFEST_NAME).unlink()
    kept = [device_folder / name for name in ("experts", "spine.bin")]
    aside = [path.rename(device_folder.parent / f"aside-{path.name}") for path in kept]
    synthetic._Progress.find(device_folder, manifest).save(15)  # noqa: SLF001
    for path, place in zip(aside, kept, strict=True):
        path.rename(place)
    with (device_folder / "spine.bin").open("r+b") as handle:
        handle.seek(SPINE - 1)
        handle.write(b"!")
        os.fsync(handle.fileno())
    made = create_pool(device_folder, shape, spine_bytes=SPINE)
    assert made.written_bytes == 4 << 20
    assert sound(device_folder)


def test_a_resumed_create_rewrites_experts_experts_at_its_end_that_do_not_verify(
    device_folder: Path, shape: Shape
) -> None:
    create_pool(device_folder, shape)
    manifest = plan_manifest(shape, layout="file_per_expert", store="plain", seed=0)
    (device_folder / MANIFEST_NAME).unlink()
    aside = (device_folder / "experts").rename(device_folder.parent / "aside")
    synthetic._Progress.find(device_folder, manifest).save(9)  # noqa: SLF001
    aside.rename(device_folder / "experts")
    (device_folder / "experts" / "001" / "0002").write_bytes(bytes(32768))  # the ninth
    (device_folder / "experts" / "001" / "0001").unlink()
    made = create_pool(device_folder, shape)
    assert made.kept_bytes == 7 * 32768
    assert sound(device_folder)


@pytest.mark.usefixtures("needs_loop")
def test_a_full_disk_is_one_message_and_the_create_goes_on_after_room_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "small.img"
    image.write_bytes(bytes(24 << 20))
    subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", str(image)], check=True)
    shape = resolve_shape("custom", layers=2, experts=64, k=2, expert_bytes="64KiB")
    monkeypatch.setattr(synthetic, "_check_space", lambda *_: None)
    with loopdev.attach(image, read_only=False) as loop:
        mount = loopdev.mount_detached(loop, read_only=False)
        root = Path(f"/proc/self/fd/{mount}")
        try:
            free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
            (root / "filler").write_bytes(bytes(free - (4 << 20)))
            with pytest.raises(InputError, match=r"is full after .*same command again"):
                create_pool(root / "pool", shape)
            (root / "filler").unlink()
            made = create_pool(root / "pool", shape)
            assert made.kept_bytes + made.written_bytes == 8 << 20
            assert made.written_bytes > 0
            assert sound(root / "pool")
        finally:
            os.close(mount)


def test_too_little_room_is_refused_before_anything_is_written(device_folder: Path) -> None:
    with pytest.raises(InputError, match=r"free; expected 1\.4\d+ TB for the rest of this pool"):
        create_pool(device_folder, resolve_shape("kimi-k3"))
    assert not device_folder.exists()


def test_a_folder_with_other_things_in_it_is_left_alone(device_folder: Path, shape: Shape) -> None:
    device_folder.mkdir()
    (device_folder / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"is not empty \(thesis.tex\)"):
        create_pool(device_folder, shape)
    with pytest.raises(InputError, match="is no folder"):
        create_pool(device_folder / "thesis.tex", shape)
    assert [entry.name for entry in device_folder.iterdir()] == ["thesis.tex"]


def test_two_creates_do_not_write_one_pool(device_folder: Path, shape: Shape) -> None:
    device_folder.mkdir()
    with synthetic.locked(device_folder), pytest.raises(HostBusyError, match="another `pool create`"):
        create_pool(device_folder, shape)


def test_a_pool_on_tmpfs_is_refused_because_it_has_no_device(shape: Shape) -> None:
    shm = Path("/dev/shm")  # noqa: S108
    if not os.access(shm, os.W_OK):
        pytest.skip("no writable /dev/shm")
    with pytest.raises(UnsupportedHostError, match="without a block device"):
        create_pool(shm / f"moetier-test-{os.getpid()}", shape)
    assert not (shm / f"moetier-test-{os.getpid()}").exists()


def test_the_image_has_room_for_every_profile_and_at_most_a_few_percent_more() -> None:
    for name in ("kimi-k3", "qwen3-30b-a3b", "default"):
        manifest = plan_manifest(resolve_shape(name), layout="file_per_expert", store="image", seed=0)
        assert 1.02 < image_bytes(manifest) / manifest.total_bytes < 1.04


def test_auto_is_an_image_where_root_has_loop_devices_and_else_plain_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopdev, "loop_support", lambda: "")
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/sbin/mkfs.ext4")
    assert choose_store("auto")[0] == "image"
    monkeypatch.setattr(loopdev, "loop_support", lambda: "not root")
    assert choose_store("auto") == ("plain", "not root: the device counter will include what other processes read")
    with pytest.raises(UnsupportedHostError, match="no image here: not root"):
        choose_store("image")
    with pytest.raises(UnsupportedHostError, match="no image here: not root"):
        choose_store("auto", "xfs")  # which plain files need not be


def test_without_mkfs_xfs_or_a_kernel_with_xfs_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loopdev, "loop_support", lambda: "")
    monkeypatch.setattr(loopdev, "filesystem_support", lambda _: "")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(UnsupportedHostError, match=r"no mkfs\.xfs on PATH .*; next: apt-get install xfsprogs"):
        choose_store("auto", "xfs")
    monkeypatch.setattr(loopdev, "filesystem_support", lambda kind: f"fsopen({kind}): No such device")
    with pytest.raises(UnsupportedHostError, match=r"fsopen\(xfs\): No such device; .*; next: a kernel with xfs"):
        choose_store("image", "xfs")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("missing", r"file experts/001/0003 \(layer 1, expert 3\): No such file"),
        ("short", r"file experts/001/0003 \(layer 1, expert 3\) has 4096 bytes, expected 32768"),
        ("link", r"file experts/001/0003 \(layer 1, expert 3\) is no plain file"),
        ("folder", "experts/001 is no folder"),
    ],
)
def test_a_missing_short_or_linked_file_is_named_and_the_pool_not_opened(
    device_folder: Path, shape: Shape, damage: str, message: str
) -> None:
    create_pool(device_folder, shape)
    target = device_folder / "experts" / "001" / "0003"
    if damage == "short":
        os.truncate(target, 4096)
    elif damage == "folder":
        target.parent.rename(device_folder / "elsewhere")
        target.parent.symlink_to(device_folder / "elsewhere")
    else:
        target.unlink()
        if damage == "link":
            target.symlink_to("/etc/hostname")
    with pytest.raises(InputError, match=message), open_pool(device_folder):
        pass
    with open_pool(device_folder, check_files=False) as pool:
        assert re.search(message, check_pool(pool.root, pool.manifest).faults[0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_overwritten_page_is_named_by_layer_expert_and_page(device_folder: Path, shape: Shape, layout: str) -> None:
    create_pool(device_folder, shape, layout=layout)
    with open_pool(device_folder) as pool:
        (extent,) = pool.manifest.extents(1, 4)
        path = pool.root / pool.manifest.files[extent.file].path
        with path.open("r+b") as handle:
            handle.seek(extent.offset + 5 * 4096 + 1000)
            handle.write(b"!")
            os.fsync(handle.fileno())
        (fault,) = check_pool(pool.root, pool.manifest, full=True).faults
    assert fault.startswith("layer 1, expert 4, page 5 was overwritten")


def test_a_sample_is_seeded_and_always_has_the_first_and_last_expert(device_folder: Path) -> None:
    create_pool(device_folder, resolve_shape("custom", layers=2, experts=100, k=2, expert_bytes="4KiB"))
    with open_pool(device_folder) as pool:
        found = check_pool(pool.root, pool.manifest, sample=10)
        assert (found.experts_checked, found.experts, found.bytes_checked) == (10, 200, 40960)
        (pool.root / "experts" / "001" / "0099").write_bytes(b"x" * 4096)
        assert check_pool(pool.root, pool.manifest, sample=2).faults[0].startswith("layer 1, expert 99, page 0")


@pytest.mark.usefixtures("needs_loop")
def test_an_image_that_is_missing_a_link_or_no_file_system_is_refused(device_folder: Path, shape: Shape) -> None:
    create_pool(device_folder, shape, store="image")
    image, aside = device_folder / "pool.img", device_folder / "aside.img"
    image.rename(aside)
    with pytest.raises(InputError, match=r"pool\.img: No such file"), open_pool(device_folder):
        pass
    image.symlink_to(aside)
    with pytest.raises(InputError, match="is no plain file"), open_pool(device_folder):
        pass
    image.unlink()
    image.write_bytes(bytes(1 << 20))
    with pytest.raises(InputError, match="cannot be mounted as ext4"), open_pool(device_folder):
        pass


def test_pages_that_something_else_keeps_resident_are_reported(
    device_folder: Path, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_pool(device_folder, shape)
    monkeypatch.setattr("pytest_moetier.host.residency.drop_file", lambda _: 2 << 20)
    with open_pool(device_folder) as pool, pytest.raises(HarnessError, match="stays in the page cache"):
        pool.drop_cache()


def test_a_write_error_that_is_not_a_full_disk_says_how_far_it_came(
    device_folder: Path, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", broken)
    with pytest.raises(InputError, match="Input/output error after 0 B"):
        create_pool(device_folder, shape)
