"""What the boot line says, and the switch of the multi-generational LRU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from trees import Recorded

from pytest_moetier.errors import HarnessError, InputError, UnsupportedHostError
from pytest_moetier.host import memboot, mglru, procfs
from pytest_moetier.host.restore import Journal

GIB = 1 << 30
Switch = tuple[Path, Journal]


def host(root: Path, cmdline: str, available_kb: int = 4 << 20) -> Path:
    (root / "proc").mkdir()
    (root / "proc/cmdline").write_text(cmdline)
    (root / "proc/meminfo").write_text(f"MemTotal: {8 << 20} kB\nMemFree: 1 kB\nMemAvailable: {available_kb} kB\n")
    return root


@pytest.mark.parametrize(
    ("cmdline", "size"),
    [
        ("ro mem=4G quiet", 4 * GIB),
        ("mem=512m", 512 << 20),
        ("mem=1073741824", GIB),
        ("memory=4G memmap=1G@2G", None),
        ("mem=8G mem=4G", 4 * GIB),
    ],
)
def test_the_boot_lines_mem_argument_is_recognised(tmp_path: Path, cmdline: str, size: int | None) -> None:
    with procfs.rooted(host(tmp_path, cmdline)):
        assert memboot.mem_argument() == size


def test_without_it_the_line_to_boot_with_is_given(tmp_path: Path) -> None:
    # 8 GiB of which 4 are in use: 2 GiB available needs 6 GiB.
    with procfs.rooted(host(tmp_path, "ro quiet")), pytest.raises(UnsupportedHostError, match="`mem=6144M`"):
        memboot.memboot_support(2 * GIB)


def test_a_kernel_booted_for_the_capacity_is_supported_within_two_percent(tmp_path: Path) -> None:
    with procfs.rooted(host(tmp_path, "mem=8G")):
        assert memboot.memboot_support(4 * GIB) == memboot.MemBoot(8 * GIB, 4 * GIB)
        assert memboot.memboot_support(4 * GIB + 80 * (1 << 20)).mem_bytes == 8 * GIB
        with pytest.raises(UnsupportedHostError, match=r"MemAvailable is 4 GiB \(4294967296 B\); expected 4\.1"):
            memboot.memboot_support(4 * GIB + 120 * (1 << 20))


def test_what_the_kernel_keeps_and_holes_in_the_addresses_are_allowed_for(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Recorded: 4 GiB, of which 3921 MiB are MemTotal and 3712 MiB available; addresses from 2 to 4 GiB are no RAM.
    root = recorded("v2-guest-6.12")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")  # where mem= is a limit of addresses
    assert memboot.boot_argument(GIB) == "mem=1365M"
    assert memboot.boot_argument(3 * GIB) == "mem=5494M"
    monkeypatch.setattr("platform.machine", lambda: "aarch64")  # where it is a size
    assert memboot.boot_argument(3 * GIB) == "mem=3445M"
    (root / "proc/iomem").write_text("00000000-00000000 : System RAM\n")  # as seen without root
    assert memboot.boot_argument(GIB) == "mem=1234M"


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    path = tmp_path / "root" / mglru.ENABLED.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_text("0x0007\n")
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    journal = Journal(state)
    with procfs.rooted(tmp_path / "root"):
        yield path, journal
        journal.close()


def test_mglru_is_set_verified_and_set_back(switch: Switch) -> None:
    path, journal = switch
    assert mglru.current() == "on"
    with mglru.held("off", journal) as setting:
        assert path.read_text() == "0x0000\n"  # a shorter write leaves the newline of the plain file behind
        assert mglru.current() == "off"
        seen = setting.verified()
    assert seen == mglru.MglruSetting("off", "off", "off")
    assert seen.as_wanted
    assert mglru.current() == "on"


@pytest.mark.usefixtures("switch")
def test_without_a_journal_it_is_set_back_too() -> None:
    with mglru.held("off"):
        assert mglru.current() == "off"
    assert mglru.current() == "on"


def test_a_change_in_the_middle_is_seen(switch: Switch) -> None:
    path, journal = switch
    with mglru.held("off", journal) as setting:
        path.write_text("0x0007")
        seen = setting.verified()
        with pytest.raises(HarnessError, match="MGLRU is on; expected off"):
            mglru.verify("off")
    assert not seen.as_wanted


def test_parts_that_the_processor_lacks_do_not_keep_it_from_being_set_back(
    switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, journal = switch
    path.write_text("0x0000\n")
    write = procfs.write_text
    monkeypatch.setattr(procfs, "write_text", lambda at, text: write(at, text.replace("0x0007", "0x0003")))
    with mglru.held("on", journal):
        assert path.read_text() == "0x0003\n"  # as on arm64
    assert path.read_text() == "0x0000\n"
    assert journal.close() == []


def test_this_kernels_own_switch_is_set_verified_and_set_back(tmp_path: Path) -> None:
    before = mglru.current()
    if before == mglru.ABSENT or os.geteuid() != 0:
        pytest.skip(f"MGLRU is {before}, uid {os.geteuid()}: a kernel with CONFIG_LRU_GEN and root are needed")
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    text = procfs.read_text(mglru.ENABLED)
    with Journal(state) as journal:
        for wanted in ("off", "on"):
            with mglru.held(wanted, journal) as setting:
                assert mglru.current() == wanted
                assert setting.verified().as_wanted
            assert procfs.read_text(mglru.ENABLED) == text
        token = mglru.set_state("off" if before == "on" else "on", journal)
        assert token
        assert journal.close() == [f"{mglru.ENABLED} set back from {journal_new(before)} to {text.strip()}"]
    assert procfs.read_text(mglru.ENABLED) == text


def journal_new(before: str) -> str:
    return "0x0000" if before == "on" else "0x0007"


def test_host_leaves_the_switch_alone(switch: Switch) -> None:
    path, journal = switch
    with mglru.held("host", journal) as setting:
        assert path.read_text() == "0x0007\n"
    assert setting.verified().as_wanted


def test_a_kernel_without_it_is_off_by_itself_and_cannot_be_on(tmp_path: Path) -> None:
    with procfs.rooted(tmp_path):
        assert mglru.current() == "absent"
        with mglru.held("off") as setting:
            assert setting.verified().as_wanted
        mglru.verify("off")
        with pytest.raises(UnsupportedHostError, match=r"enabled is absent.*virtual machine"):
            mglru.set_state("on")
        with pytest.raises(InputError, match="'sometimes' is unknown"):
            mglru.set_state("sometimes")
