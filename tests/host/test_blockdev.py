"""From a file to the devices whose sectors count, each once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from trees import Recorded

from pytest_moetier.errors import InputError, UnsupportedHostError
from pytest_moetier.host import blockdev, procfs


def names(devices: tuple[blockdev.BlockDevice, ...]) -> list[str]:
    return [device.name for device in devices]


def test_a_multipath_head_without_statistics_is_counted_on_its_hidden_paths(recorded: Recorded) -> None:
    recorded("nvme-multipath")
    devices = blockdev.resolve(259, 1, None)
    assert names(devices) == ["nvme0c0n1", "nvme0c1n1"]
    assert devices[0].stat_path == "/sys/block/nvme0c0n1/stat"
    assert devices[0].iostats
    # The hidden path has no read-ahead of its own: the head's is what reads are made with.
    assert devices[0].read_ahead_kb == 128


def test_a_multipath_head_that_keeps_statistics_is_counted_itself(recorded: Recorded) -> None:
    root = recorded("nvme-multipath")
    stat = root / "sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1/nvme0n1p1/stat"
    stat.write_text(stat.read_text().replace(" 0", " 9", 1))
    (device,) = blockdev.resolve(259, 1, None)
    assert (device.name, device.read_ahead_kb, device.max_sectors_kb, device.rotational) == (
        "nvme0n1p1",
        128,
        1280,
        False,
    )
    assert procfs.try_int(f"{device.queue_path}/iostats") == 1


def test_a_stack_is_counted_once_at_the_level_of_the_filesystem(recorded: Recorded) -> None:
    recorded("dm-over-nvme")
    (device,) = blockdev.resolve(253, 0, None)
    assert (device.name, device.read_ahead_kb, device.iostats) == ("dm-0", 8192, True)


def test_a_queue_without_statistics_says_so(recorded: Recorded) -> None:
    recorded("dm-over-nvme")
    (device,) = blockdev.resolve(259, 3, None)
    assert (device.name, device.iostats) == ("nvme0n1p3", False)


def test_dev_root_and_device_mapper_names_resolve_through_the_boot_line(recorded: Recorded) -> None:
    recorded("dm-over-nvme")
    mount = procfs.Mount(1, "0:33", "/", "/", "ext4", "/dev/root", ())
    assert names(blockdev.resolve(0, 33, mount)) == ["dm-0"]


def test_btrfs_counts_every_member_once(recorded: Recorded) -> None:
    recorded("btrfs")
    mount = procfs.mounts()[1]
    assert names(blockdev.resolve(0, 33, mount)) == ["sda2", "sdb"]


@pytest.mark.parametrize(("row", "what", "do"), [(2, "zfs", "zvol"), (3, "overlay", "mounted volume")])
def test_a_filesystem_without_a_device_is_named_with_what_to_do(
    recorded: Recorded, row: int, what: str, do: str
) -> None:
    recorded("btrfs")
    mount = procfs.mounts()[row]
    with pytest.raises(UnsupportedHostError, match=f"is a {what} filesystem .* without a block device") as caught:
        blockdev.resolve(*mount.device_number, mount)
    assert do in caught.value.do


def test_a_device_wholly_upon_another_listed_one_is_left_out(recorded: Recorded) -> None:
    recorded("dm-over-nvme")
    stacked = [*blockdev.resolve(253, 0, None), *blockdev.resolve(259, 3, None), *blockdev.resolve(259, 0, None)]
    assert names(blockdev._deduplicated(stacked)) == ["nvme0n1"]  # noqa: SLF001


def test_the_temp_folders_device_is_this_hosts(tmp_path: Path) -> None:
    try:
        devices = blockdev.devices_of(tmp_path)
    except UnsupportedHostError as error:
        pytest.skip(str(error))
    number = tmp_path.stat().st_dev
    if os.major(number):
        assert [(device.major, device.minor) for device in devices] == [(os.major(number), os.minor(number))]
    assert blockdev.devices_of_many([tmp_path, tmp_path]) == devices
    for device in devices:
        assert procfs.parse_diskstat_row(procfs.read_text(device.stat_path)).reads > 0


def test_tmpfs_is_refused_by_name() -> None:
    shm = Path("/dev/shm")  # noqa: S108
    if not any(mount.point == str(shm) and mount.kind == "tmpfs" for mount in procfs.mounts()):
        pytest.skip("no tmpfs at /dev/shm")
    with pytest.raises(UnsupportedHostError, match=r"shm is a tmpfs filesystem.*next: .*memory"):
        blockdev.devices_of(shm)


def test_a_missing_path_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gone: No such file"):
        blockdev.devices_of(tmp_path / "gone")


@pytest.mark.parametrize("word", ["dm-0", "/dev/dm-0", "/dev/mapper/vg0-root"])
def test_a_device_is_named_by_its_name_its_node_or_a_link_to_it(recorded: Recorded, word: str) -> None:
    recorded("dm-over-nvme")
    assert names(blockdev.devices_named(word)) == ["dm-0"]


def test_a_device_is_named_by_a_file_upon_it(tmp_path: Path) -> None:
    assert blockdev.devices_named(str(tmp_path)) == blockdev.devices_of(tmp_path)


@pytest.mark.parametrize("word", ["sdz", "/dev/sdz", "/no/such/file", "../dm-0", ""])
def test_what_names_no_device_is_refused(recorded: Recorded, word: str) -> None:
    recorded("dm-over-nvme")
    with pytest.raises(InputError, match=r"no block device .*, and no such file; expected a name such as nvme0n1"):
        blockdev.devices_named(word)


def test_the_loop_devices_of_an_image_are_found_and_those_of_others_are_not(recorded: Recorded, tmp_path: Path) -> None:
    root = recorded("dm-over-nvme")
    image = tmp_path / "pool.img"
    image.touch()
    for number, backing in ((3, image), (4, tmp_path / "other.img"), (5, f"{image} (deleted)")):
        folder = root / f"sys/block/loop{number}"
        (folder / "loop").mkdir(parents=True)
        (folder / "loop" / "backing_file").write_text(f"{backing}\n")
        (root / f"sys/dev/block/7:{number}").symlink_to(folder)
        (root / f"sys/class/block/loop{number}").symlink_to(folder)
        (folder / "dev").write_text(f"7:{number}\n")
    assert names(blockdev.loops_of(image)) == ["loop3"]
