"""The probe measures what it says it does, and leaves the host as it found it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from .conftest import Outcome, parse_events

KIB, MIB = 2**10, 2**20
SMALL = ("--bytes", 4 * MIB, "--block", 64 * KIB)

NO_TMPFILE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    if ((flags & O_TMPFILE) == O_TMPFILE)
        return errno = EOPNOTSUPP, -1;
    return real(path, flags, mode);
}
"""


@pytest.fixture
def probe(native_bin: Path) -> Callable[..., Outcome]:
    """Run moetier-probe to its end."""

    def run(*arguments: object, prefix: Sequence[str] = (), env: dict[str, str] | None = None) -> Outcome:
        command = [*prefix, str(native_bin / "moetier-probe"), *map(str, arguments)]
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=60,
            env=os.environ | (env or {}),
        )
        return Outcome(done.returncode, parse_events(done.stdout), done.stderr.decode(errors="replace"))

    return run


def in_a_mount(options: str) -> tuple[str, ...]:
    """Return what runs a command with a tmpfs of its own at the last argument's folder."""
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    return ("unshare", "-m", "sh", "-c", f'mount -t tmpfs -o {options} none "$2" && exec "$@"', "sh")


def test_a_round_visits_every_measurement_and_counts_its_bytes(probe: Callable[..., Outcome], tmp_path: Path) -> None:
    found = probe(tmp_path, *SMALL, "--threads", 3, "--repeats", 6)
    assert (found.exit, found.stderr) == (0, "")
    start = found.only("start")
    assert (start["bytes"], start["block_bytes"], start["threads"], start["repeats"]) == (4 * MIB, 64 * KIB, 3, 6)
    passes = found.named("measured")
    order = [what for what in ("copy", "direct", "admitted", "cached") if found.named("measured", what=what)]
    assert order in (["copy", "direct", "admitted", "cached"], ["copy", "admitted", "cached"])
    assert [(one["round"], one["what"]) for one in passes] == [(at, what) for at in range(6) for what in order]
    assert {one["bytes"] for one in passes} == {4 * MIB}
    assert all(one["seconds"] > 0 for one in passes)
    assert found.events[-1] == {"event": "end"}


def test_cold_reads_find_nothing_resident_and_cached_ones_everything(
    probe: Callable[..., Outcome], tmp_path: Path
) -> None:
    found = probe(tmp_path, *SMALL)
    if found.only("start")["residency_probe"] == "none":
        pytest.skip("no probe of residency works here")
    before = {what: {one["resident_before_bytes"] for one in found.named("measured", what=what)} for what in ORDER}
    after = {what: {one["resident_after_bytes"] for one in found.named("measured", what=what)} for what in ORDER}
    if before["admitted"] == {4 * MIB}:
        pytest.skip("pages cannot be dropped on this filesystem")
    assert before["admitted"] == {0}
    assert after["admitted"] == before["cached"] == after["cached"] == {4 * MIB}
    assert before["copy"] == {None}


ORDER = ("copy", "direct", "admitted", "cached")


def test_the_process_s_own_counter_confirms_cold_reads_and_hits(probe: Callable[..., Outcome], tmp_path: Path) -> None:
    found = probe(tmp_path, *SMALL)
    read = {what: [one["process_bytes"] for one in found.named("measured", what=what)] for what in ORDER}
    if None in read["copy"] or not any(read["admitted"]):
        pytest.skip("/proc/self/io does not count here")
    assert set(read["admitted"]) | set(read["direct"]) == {4 * MIB}
    assert max(read["cached"] + read["copy"]) == 0


def test_the_devices_are_counted_one_by_one(probe: Callable[..., Outcome], tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("10 0 80 0 0 0 0 0 0 0 0\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    found = probe(folder, *SMALL, "--device-stat", stat, "--device-stat", stat)
    assert {tuple(one["device_bytes"]) for one in found.named("measured")} == {(0, 0)}
    stat.write_text("no counters\n")
    found = probe(folder, *SMALL, "--device-stat", stat)
    assert {tuple(one["device_bytes"]) for one in found.named("measured")} == {(None,)}


def test_without_a_folder_memory_alone_is_measured(probe: Callable[..., Outcome]) -> None:
    found = probe(*SMALL)
    assert found.exit == 0
    assert found.only("start")["file"] is None
    assert [one["what"] for one in found.named("measured")] == ["copy"] * 5


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_probe_leaves_nothing_behind(native_bin: Path, tmp_path: Path, kill: signal.Signals) -> None:
    command = [native_bin / "moetier-probe", tmp_path, *map(str, SMALL), "--repeats", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert b"start" in process.stdout.readline()
        targets = [str(one.readlink()) for one in Path(f"/proc/{process.pid}/fd").glob("[0-9]") if one.is_symlink()]
        assert any(one.startswith(f"{tmp_path}/") and one.endswith("(deleted)") for one in targets)
        assert list(tmp_path.iterdir()) == []
        process.send_signal(kill)
        process.stdout.close()
        assert process.wait(10) == -kill
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_needs_a_name_loses_it_at_once(
    probe: Callable[..., Outcome], tmp_path: Path, *, sanitized: bool
) -> None:
    if sanitized:
        pytest.skip("a sanitizer's library must be loaded first")
    source, library = tmp_path / "open.c", tmp_path / "open.so"
    source.write_text(NO_TMPFILE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    folder = tmp_path / "folder"
    folder.mkdir()
    found = probe(folder, *SMALL, env={"LD_PRELOAD": str(library)})
    assert found.exit == 0, found.stderr
    assert found.only("start")["file"] == "unlinked"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--bytes", "0"), "--bytes 0: expected a whole number from 1"),
        (("--bytes", "-1"), "--bytes -1: expected a whole number from 1"),
        (("--bytes", "1e9"), "--bytes 1e9: expected a whole number"),
        (("--bytes", 2**41), "expected a whole number from 1 to 1099511627776"),
        (("--bytes", MIB, "--block", 64 * KIB), "64 blocks or more"),
        (("--bytes", 64 * MIB, "--block", 5000), "a multiple of the page"),
        (("--block", 0), "--block 0: expected"),
        (("--bytes", 4 * MIB, "--block", 64 * KIB, "--threads", 65), "a block for every thread"),
        (("--threads", 0), "--threads 0: expected a whole number from 1 to 256"),
        (("--repeats", 4), "--repeats 4: expected a whole number from 5 to 1000"),
        (("--what",), "--what: expected an option"),
        (("--bytes",), "--bytes: expected an option of this program, with its value"),
        (("a", "b"), "b: expected one folder at most"),
    ],
)
def test_bad_sizes_are_refused_with_what_is_expected(
    probe: Callable[..., Outcome], arguments: tuple[object, ...], said: str
) -> None:
    found = probe(*arguments)
    assert found.exit == 2
    assert found.only("error")["code"] == "usage"
    assert said in found.only("error")["message"]
    assert found.stderr == f"moetier-probe: {found.only('error')['message']}\n"


def test_more_memory_than_is_available_is_refused(probe: Callable[..., Outcome]) -> None:
    found = probe("--bytes", 2**40)
    assert (found.exit, found.only("error")["code"]) == (1, "memory")
    assert "two buffers of 1099511627776 bytes" in found.only("error")["message"]


@pytest.mark.parametrize("name", ["absent", "file"])
def test_a_folder_that_is_none_is_named(probe: Callable[..., Outcome], tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    found = probe(tmp_path / name, *SMALL)
    assert (found.exit, found.only("error")["path"]) == (1, str(tmp_path / name))
    assert f"no file can be made in {tmp_path / name}" in found.only("error")["message"]


def test_a_device_without_room_is_refused_before_anything_is_written(
    probe: Callable[..., Outcome], tmp_path: Path
) -> None:
    found = probe(tmp_path, *SMALL, prefix=in_a_mount("size=6m"))
    assert (found.exit, found.only("error")["code"]) == (1, "space")
    assert f"no room for a file of {4 * MIB} bytes: {6 * MIB} are free; expected twice that" in found.stderr


def test_a_file_that_may_not_grow_is_said_and_not_a_crash(probe: Callable[..., Outcome], tmp_path: Path) -> None:
    found = probe(tmp_path, *SMALL, prefix=("prlimit", f"--fsize={MIB}"))
    assert (found.exit, found.only("error")["code"]) == (1, "space")
    assert "File too large" in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_filesystem_is_unsupported(probe: Callable[..., Outcome], tmp_path: Path) -> None:
    found = probe(tmp_path, *SMALL, prefix=in_a_mount("ro"))
    assert (found.exit, found.only("error")["code"]) == (77, "unsupported")


def test_a_counter_that_is_not_there_is_named(probe: Callable[..., Outcome], tmp_path: Path) -> None:
    found = probe(tmp_path, *SMALL, "--device-stat", "/sys/dev/block/9:9/absent")
    assert (found.exit, found.only("error")["path"]) == (1, "/sys/dev/block/9:9/absent")


def test_nobody_to_read_the_lines_ends_it(native_bin: Path) -> None:
    command = [native_bin / "moetier-probe", *map(str, SMALL), "--repeats", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(30) == 1


def test_help_and_version_are_said(probe_text: Callable[[str], tuple[int, str]]) -> None:
    assert probe_text("--version")[1].startswith("moetier-probe ")
    status, text = probe_text("--help")
    assert status == 0
    assert "--device-stat PATH" in text


@pytest.fixture
def probe_text(native_bin: Path) -> Callable[[str], tuple[int, str]]:
    """Run moetier-probe for a text."""

    def run(option: str) -> tuple[int, str]:
        done = subprocess.run([native_bin / "moetier-probe", option], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    return run
