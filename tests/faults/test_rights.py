"""What a session without root, without a memory controller or without loop devices says: skipped, why, and the way out.

The sessions run in a mount namespace of their own, in which what is to be missing is covered.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEVICES = "mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/zero c 1 5 && mknod -m 444 /dev/urandom c 1 9"
WITHOUT = {
    "loop devices": f"mount -t tmpfs none /dev && {DEVICES}",
    "memory controller": "umount -l /sys/fs/cgroup/memory || mount -t tmpfs none /sys/fs/cgroup",
}


def test_without_loop_devices_an_image_is_not_examined_and_plain_files_are_named(
    host: Any, covered: Callable[..., Any], small_pool: Path
) -> None:
    ended = covered(WITHOUT["loop devices"], *host.pytest_argv(small_pool))
    said = ended.refused("no loop device here: no /dev/loop-control", ret=0)
    assert "moetier pool create --plain" in said
    assert "1 skipped" in ended.text


def test_without_a_memory_controller_a_wall_is_not_examined(
    host: Any, covered: Callable[..., Any], small_pool: Path
) -> None:
    ended = covered(WITHOUT["memory controller"], *host.pytest_argv(small_pool))
    ended.refused("(no control group hierarchy with a memory controller is mounted|cgroup v2 at)", ret=0)
    assert "1 skipped" in ended.text


def test_without_root_every_mechanism_is_not_examined_and_says_what_would_change_it(
    host: Any, nobody: Callable[..., Any], plain_pool: Path, tmp_path: Path
) -> None:
    pool = tmp_path / "mine"
    shutil.copytree(plain_pool, pool)
    subprocess.run(["chown", "-R", "65534:65534", str(pool)], check=True)
    options = ("--moetier-mechanism=cgroup,balloon,memboot", "--moetier-reserve=1MiB")
    ended = nobody(*host.pytest_argv(pool, *options))
    assert "3 skipped" in ended.text, ended.text
    assert ended.ret == 0
    assert "Traceback" not in ended.text
    for mechanism in ("cgroup", "balloon", "memboot"):
        said = ended.said(rf"not_examined C30pct-{mechanism}-mglru_host: [^\n]*")
        assert "; expected " in said
        assert "; next: " in said


def test_without_root_an_image_is_not_examined(
    host: Any, nobody: Callable[..., Any], small_pool: Path, tmp_path: Path
) -> None:
    pool = tmp_path / "mine"
    shutil.copytree(small_pool, pool)
    subprocess.run(["chown", "-R", "65534:65534", str(pool)], check=True)
    nobody(*host.pytest_argv(pool)).refused("no loop device here: not root", ret=0)


def test_without_root_anothers_pool_is_one_message(host: Any, nobody: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    nobody(*host.pytest_argv(tmp_path / "theirs" / "pool")).refused("no pool can be read at [^\n]*: Permission denied")


def test_without_root_the_doctor_says_what_is_missing(nobody: Callable[..., Any]) -> None:
    ended = nobody(sys.executable, "-m", "pytest_moetier.cli", "doctor")
    assert ended.ret == 0
    assert "Traceback" not in ended.text
    assert "to change it: " in ended.text
