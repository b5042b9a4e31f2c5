"""A temporary pool is private, whole, and gone afterwards, however the measurement ended."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_moetier.errors import HarnessError, InputError, UnsupportedHostError
from pytest_moetier.host.restore import Journal, recover
from pytest_moetier.pool.check import check_pool
from pytest_moetier.pool.opened import open_pool
from pytest_moetier.pool.profiles import Shape, resolve_shape
from pytest_moetier.pool.synthetic import choose_store, create_pool
from pytest_moetier.pool.temporary import temporary_pool

SPINE = 9 << 20


@pytest.fixture
def beside(device_folder: Path) -> Path:
    """A folder on a block device, as the one of the session's pool."""
    device_folder.mkdir()
    return device_folder


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


@pytest.mark.parametrize("layout", ["file_per_expert", "one_file"])
def test_it_is_private_whole_and_may_be_written_to_and_is_gone_afterwards(
    beside: Path, state: Path, shape: Shape, layout: str
) -> None:
    with Journal(state) as journal:
        with temporary_pool(shape, beside, journal, layout=layout, spine_bytes=SPINE, throwaway=True) as path:
            assert path.parent == beside
            assert path.name.startswith("moetier-pool-")
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
            with open_pool(path, journal, writable=True) as pool:
                assert pool.manifest.throwaway
                assert (pool.manifest.layout, pool.manifest.spine_bytes) == (layout, SPINE)
                assert pool.manifest.store == choose_store("auto")[0]
                found = check_pool(pool.root, pool.manifest, full=True)
                assert (found.experts_checked, found.spine_bytes_checked, found.faults) == (12, SPINE, ())
        assert list(beside.iterdir()) == []
        assert journal.close() == []


@pytest.mark.usefixtures("needs_xfs")
def test_it_has_the_file_system_that_is_asked_for(beside: Path, state: Path, shape: Shape) -> None:
    with Journal(state) as journal:
        with (
            temporary_pool(shape, beside, journal, store="image", filesystem="xfs") as path,
            open_pool(path, journal) as pool,
        ):
            assert pool.manifest.filesystem == "xfs"
            assert check_pool(pool.root, pool.manifest, full=True).faults == ()
        assert list(beside.iterdir()) == []


def test_it_is_gone_after_an_error_in_the_block(beside: Path, state: Path, shape: Shape) -> None:
    seen = []

    def broken(journal: Journal) -> None:
        with temporary_pool(shape, beside, journal, store="plain") as path:
            seen.extend(path.glob("manifest.yaml"))
            raise ZeroDivisionError

    with Journal(state) as journal:
        with pytest.raises(ZeroDivisionError):
            broken(journal)
        assert len(seen) == 1
        assert list(beside.iterdir()) == []


def test_it_may_be_written_to_only_when_it_was_made_for_that(beside: Path, state: Path, shape: Shape) -> None:
    with (
        Journal(state) as journal,
        temporary_pool(shape, beside, journal, store="plain") as path,
        pytest.raises(InputError, match="no throw-away pool"),
        open_pool(path, writable=True),
    ):
        pass


def test_two_at_once_are_two(beside: Path, state: Path, shape: Shape) -> None:
    with (
        Journal(state) as journal,
        temporary_pool(shape, beside, journal, store="plain") as first,
        temporary_pool(shape, beside, journal, store="plain") as second,
    ):
        assert first != second
        assert sorted(beside.iterdir()) == sorted([first, second])


CRASH = """
    import os, sys, time
    from pathlib import Path
    from pytest_moetier.host.restore import Journal
    from pytest_moetier.pool.opened import open_pool
    from pytest_moetier.pool.profiles import resolve_shape
    from pytest_moetier.pool.temporary import temporary_pool
    shape = resolve_shape("custom", layers=2, experts=6, k=2, expert_bytes="32KiB")
    journal = Journal(Path(sys.argv[1]))
    def progress(done, total):
        if sys.argv[3] == "in create" and done:
            print("ready", flush=True)
            time.sleep(600)
    with temporary_pool(shape, Path(sys.argv[2]), journal, throwaway=True, progress=progress) as path:
        with open_pool(path, journal, writable=True):
            print("ready", flush=True)
            time.sleep(600)
"""


@pytest.mark.parametrize("when", ["in create", "in use"])
def test_after_kill_minus_nine_the_next_start_removes_it(beside: Path, state: Path, when: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CRASH), str(state), str(beside), when],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    (path,) = beside.iterdir()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert f"folder {path} removed" in recover(state)
    assert list(beside.iterdir()) == []
    assert list(state.iterdir()) == []


def test_too_little_room_is_one_message_before_anything_is_made(beside: Path, state: Path) -> None:
    with Journal(state) as journal:
        with (
            pytest.raises(InputError, match=r"free; expected 1\.\d+ TB for a temporary pool; next: free some"),
            temporary_pool(resolve_shape("kimi-k3"), beside, journal),
        ):
            pass
        assert list(beside.iterdir()) == []
        assert journal.close() == []


def test_the_spine_and_an_images_spare_are_part_of_the_room(
    beside: Path, state: Path, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = os.statvfs(beside)
    tight = os.statvfs_result((4096, 4096, 1000, 200, 200, *space[5:]))  # 819 KB free, 393 KB of experts
    with Journal(state) as journal:
        monkeypatch.setattr(os, "statvfs", lambda _: tight)
        with temporary_pool(shape, beside, journal, store="plain"):
            pass
        with (
            pytest.raises(InputError, match=r"819 KB free; expected 9\.83 MB for a temporary pool"),
            temporary_pool(shape, beside, journal, store="plain", spine_bytes=SPINE),
        ):
            pass
        assert list(beside.iterdir()) == []


@pytest.mark.usefixtures("needs_loop")
def test_an_images_spare_room_is_asked_for(
    beside: Path, state: Path, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = os.statvfs(beside)
    tight = os.statvfs_result((4096, 4096, 1000, 200, 200, *space[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: tight)
    with (
        Journal(state) as journal,
        pytest.raises(InputError, match=r"expected 3\d(\.\d)? MB for a temporary pool"),
        temporary_pool(shape, beside, journal, store="image"),
    ):
        pass


def test_a_folder_without_a_device_or_that_is_none_is_refused(state: Path, shape: Shape, beside: Path) -> None:
    file = beside / "file"
    file.write_text("x")
    with Journal(state) as journal:
        for folder, message in ((beside / "gone", "No such file"), (file, "cannot be made: Not a directory")):
            with pytest.raises(InputError, match=message), temporary_pool(shape, folder, journal):
                pass
        shm = Path("/dev/shm")  # noqa: S108
        if os.access(shm, os.W_OK):
            with pytest.raises(UnsupportedHostError, match="block device"), temporary_pool(shape, shm, journal):
                pass
            assert list(shm.glob("moetier-pool-*")) == []
        assert journal.close() == []


def test_a_link_that_was_put_in_its_place_is_not_followed(
    beside: Path, state: Path, shape: Shape, tmp_path: Path
) -> None:
    other = tmp_path / "precious"
    create_pool(other, shape)
    with Journal(state) as journal:
        pool = temporary_pool(shape, beside, journal, store="plain")
        path = pool.__enter__()
        shutil.rmtree(path)
        path.symlink_to(other)
        with pytest.raises(HarnessError, match="is not one of ours"):
            pool.__exit__(None, None, None)
        assert (other / "manifest.yaml").exists()
        path.unlink()
