"""What can go wrong with a virtual machine: each in bounded time, in one message, with nothing left on the host."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_moetier.errors import UnsupportedHostError
from pytest_moetier.host.guest import Launch, boot
from pytest_moetier.host.initramfs import QEMU, build_archive, find_tools
from pytest_moetier.host.kernels import Kernel
from pytest_moetier.host.machine import HOST, current
from pytest_moetier.host.qemu import TCG, GuestError, MachineSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "host"))
from images import bootable_kernel, bzimage

LONG = "--moetier-iterations=4000"
EMULATED = "--moetier-guest-accel=tcg"
LOST = r"the virtual machine was lost: its agent ended; QEMU \(pid \d+\) "


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """A kernel of Debian, and all that boots it; skips where one of these cannot be had."""
    return bootable_kernel(tmp_path_factory)


@pytest.fixture
def asked(kernel: Kernel) -> str:
    """The option of a session on that kernel."""
    modules = f":{kernel.modules}" if kernel.modules else ""
    return f"--moetier-kernel=debian={kernel.image}{modules}"


# A machine that does not come up


@pytest.fixture
def launched(kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., GuestError]:
    """Return a call that boots a machine which does not come up, and returns the error; nothing of it is left."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))

    def launch(image: Path | None = None, files: dict[str, bytes | Path] | None = None, **how: Any) -> GuestError:
        archive = build_archive(files or {"empty": b""}, tmp_path / "archive")
        spec = MachineSpec(image or kernel.image, (archive,), 256 << 20, 2, None, **how)
        with pytest.raises(GuestError) as caught, boot(Launch(find_tools().qemu, spec, "x", TCG)):
            pytest.fail("it came up")
        assert list(folder.iterdir()) == []
        assert current() is HOST
        return caught.value

    return launch


def test_a_kernel_that_panics_ends_with_the_line_of_its_panic(launched: Callable[..., GuestError]) -> None:
    error = launched()
    assert "ended with 0 after a panic of the guest: " in error.seen
    assert "Kernel panic - not syncing: VFS: Unable to mount root fs" in error.seen
    assert "; it said last: " in error.seen
    assert error.do


def test_a_kernel_that_never_speaks_is_given_up(launched: Callable[..., GuestError], tmp_path: Path) -> None:
    image = bytearray(bzimage())
    image[0x200:0x202] = b"\xeb\xfe"  # its first instruction jumps to itself
    image[0x211] = 1
    struct.pack_into("<I", image, 0x22C, 0x7FFFFFFF)
    (tmp_path / "silent").write_bytes(bytes(image))
    error = launched(tmp_path / "silent", boot_seconds=4.0)
    assert error.seen.startswith("the virtual machine was lost: it was not up after 4 s; QEMU (pid ")
    assert "runs on" in error.seen
    with pytest.raises(ProcessLookupError):
        os.kill(int(error.seen.partition("(pid ")[2].partition(")")[0]), 0)


def test_a_step_of_the_start_that_fails_is_named(launched: Callable[..., GuestError]) -> None:
    busybox = find_tools().busybox
    init = b"#!/busybox sh\n/busybox mount -t devtmpfs dev /dev\necho MOETIER-FAILED playing: no ball >/dev/ttyS0\n"
    files = {"busybox": busybox, "dev/x": b"", "init.sh": init + b"/busybox sleep 1000\n"}
    error = launched(None, files, words=("rdinit=/busybox", "--", "sh", "/init.sh"))
    assert error.seen.startswith("the virtual machine was lost: its start failed at: playing: no ball; QEMU (pid ")


def test_no_program_in_place_of_qemu_is_said_with_what_it_said(kernel: Kernel, tmp_path: Path) -> None:
    false = Path(shutil.which("false") or "")
    spec = MachineSpec(kernel.image, (build_archive({"x": b""}, tmp_path / "x"),), 64 << 20, 1, None)
    with pytest.raises(GuestError, match=r"^QEMU did not start; it said nothing"), boot(Launch(false, spec, "x", TCG)):
        pytest.fail("it came up")


def test_a_machine_larger_than_what_is_available_is_refused(kernel: Kernel) -> None:
    spec = MachineSpec(kernel.image, (), 1 << 50, 1, None)
    with (
        pytest.raises(UnsupportedHostError, match=r"a virtual machine of 1024 TiB is asked for, .* is available"),
        boot(Launch(find_tools().qemu, spec, "x", TCG)),
    ):
        pytest.fail("it came up")


# What a user asks for that cannot be


@pytest.mark.usefixtures("kernel")
def test_a_kernel_that_was_not_fetched_is_not_examined(host: Any, small_pool: Path) -> None:
    said = host.pytest(small_pool, "--moetier-kernel=4.2").refused("no kernel 4.2 in ", ret=0)
    assert said.endswith("next: moetier guest fetch 4.2")


NO_KERNELS = {
    "image is an arm64 kernel": b"MZ".ljust(56, b"\0") + b"ARM\x64" + bytes(4096),
    "image is no kernel: it has no boot header": bytes(range(256)) * 64,
    "image is cut short: 576 bytes of an x86 kernel": bzimage()[:0x240],
}


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("seen", NO_KERNELS)
def test_what_is_no_kernel_of_this_machine_is_said(host: Any, small_pool: Path, seen: str) -> None:
    (host.folder / "image").write_bytes(NO_KERNELS[seen])
    host.pytest(small_pool, "--moetier-kernel=./image").refused(seen)


def test_a_pool_of_plain_files_cannot_be_a_disk(host: Any, plain_pool: Path, asked: str) -> None:
    said = host.pytest(plain_pool, asked).refused(rf"pool {plain_pool} is of plain files", ret=0)
    assert "moetier pool create --store image" in said


def test_too_little_memory_for_the_cell_is_refused_with_what_would_do(host: Any, small_pool: Path, asked: str) -> None:
    ended = host.pytest(small_pool, asked, "--moetier-guest-memory=96MiB", "--moetier-capacity=90%")
    ended.refused(r"a guest of 96 MiB for a capacity of [\d.]+ MB; expected at least \d+ MiB", ret=0)


# What happens to a machine at work


@pytest.fixture
def working(host: Any, small_pool: Path, asked: str) -> Callable[..., Any]:
    """Return a call that starts a long session in a guest, and waits until it says so."""

    def start(until: str = ": warm") -> Any:
        one = host.start(host.pytest_argv(small_pool, asked, LONG, EMULATED), start_new_session=True)
        one.until(until)
        return one

    return start


def test_qemu_killed_at_work_is_one_message_with_the_last_lines(working: Callable[..., Any]) -> None:
    one = working()
    os.kill(one.child(QEMU), signal.SIGKILL)
    said = one.finish().refused(LOST + "was killed by signal 9")
    assert "; it said last: " in said
    assert "MOETIER-READY" in said


def test_ctrl_c_ends_the_machine(working: Callable[..., Any]) -> None:
    one = working()
    one.child(QEMU)
    os.killpg(one.process.pid, signal.SIGINT)
    ended = one.finish()
    assert ended.ret == pytest.ExitCode.INTERRUPTED
    assert "Traceback" not in ended.text


def test_after_kill_minus_nine_the_machine_ends_and_the_next_start_removes_its_folder(
    working: Callable[..., Any], host: Any, small_pool: Path
) -> None:
    one = working(": probing")
    one.child(QEMU)
    one.process.send_signal(signal.SIGKILL)
    one.finish(clean=False)
    host.pytest(small_pool, "--moetier-kernel=4.2").refused("no kernel 4.2 in ", ret=0)
    one.finish()
