"""``moetier guest``: what is fetched and offered, and whether cells could run with a kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from images import RELEASE, bzimage, module, modules_folder

from pytest_moetier import cli
from pytest_moetier.host import debian
from pytest_moetier.host.debian import Offer

CONFIG = "".join(
    f"CONFIG_{name}=y\n"
    for name in (
        *("BLK_DEV_INITRD", "BINFMT_SCRIPT", "BINFMT_ELF", "SERIAL_8250_CONSOLE", "DEVTMPFS", "TMPFS", "VIRTIO"),
        *("VIRTIO_PCI", "VIRTIO_BLK", "EXT4_FS", "CGROUPS", "MEMCG", "PSI", "DEBUG_FS", "PROC_PAGE_MONITOR"),
    )
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of the command, with one kernel."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = tmp_path / "xdg" / "pytest-moetier" / "kernels"
    tree = folder / RELEASE
    (tree / "boot").mkdir(parents=True)
    (tree / "boot" / f"vmlinuz-{RELEASE}").write_bytes(bzimage())
    (tree / "boot" / f"config-{RELEASE}").write_text(CONFIG)
    (tree / "source.json").write_text(json.dumps({"source": "Debian sid"}))
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> Any:
    assert cli.main(["guest", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_fetched_kernels_are_listed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "list", code=0) == {
        "cache": str(cache),
        "kernels": [
            {
                "release": RELEASE,
                "image": str(cache / RELEASE / "boot" / f"vmlinuz-{RELEASE}"),
                "modules": None,
                "source": "Debian sid",
            }
        ],
    }
    assert cli.main(["guest", "list"]) == 0
    assert capsys.readouterr().out.startswith(f"{RELEASE}: Debian sid")


def test_an_empty_cache_names_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.main(["guest", "list"]) == 0
    text = capsys.readouterr()
    assert (text.out, text.err) == (
        "",
        f"no kernel in {tmp_path}/pytest-moetier/kernels; next: moetier guest fetch 6.12\n",
    )


def test_what_is_offered_says_what_is_here_and_what_was_not_checked(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offers = (
        Offer(RELEASE, "6.12.7-1", "trixie", ("linux-image=1",), 34_700_000, 35_000_000, verified=True),
        Offer("7.3.4-cloud-amd64", "7.3.4-1", "sid", ("linux-image=2",), 37_500_000, 39_000_000, verified=False),
    )
    monkeypatch.setattr(debian, "available", lambda folder, _: offers if folder == cache else ())
    assert cli.main(["guest", "list", "--offered"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{RELEASE}: trixie, 6.12.7-1, 34.7 MB, fetched",
        "7.3.4-cloud-amd64: sid, 7.3.4-1, 37.5 MB, signature NOT checked",
    ]
    assert [one["suite"] for one in said(capsys, "list", "--offered", code=0)["offered"]] == ["trixie", "sid"]


def test_a_kernel_is_examined_with_what_this_host_has(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: ARG001
    code = cli.main(["guest", "check", "6.12", "--json"])
    found = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in found["needs"]}
    assert (rows["ext4"]["state"], rows["MGLRU"]["state"], rows["MGLRU"]["required"]) == ("yes", "no", False)
    host = {"QEMU and busybox", "static executables"}
    assert host | {"modules to load", "accelerator"} <= set(rows)
    assert set(found["lacks"]) == {name for name in host if rows[name]["state"] == "no"}  # nothing of the kernel
    assert code == (1 if found["lacks"] else 0)
    assert found["can_run"] is (not found["lacks"])
    assert rows["accelerator"]["seen"].startswith(("kvm: ", "tcg: "))


def test_a_kernel_that_cannot_run_cells_is_status_1_and_says_what_fails(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cache / RELEASE / "boot" / f"config-{RELEASE}").write_text(CONFIG.replace("CONFIG_MEMCG=y\n", ""))
    assert "cgroup v2 memory" in said(capsys, "check", RELEASE, code=1)["lacks"]
    assert cli.main(["guest", "check", RELEASE]) == 1
    text = capsys.readouterr().out
    assert "CONFIG_MEMCG is not set" in text
    assert "without it: no cell can be proved" in text
    assert f"{RELEASE}: cells cannot run: cgroup v2 memory" in text


def test_modules_of_another_kernel_are_a_lack(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = modules_folder(tmp_path, {"fs/xfs/xfs.ko": module(release="5.4.0")})
    image = cache / RELEASE / "boot" / f"vmlinuz-{RELEASE}"
    found = said(capsys, "check", f"{image}:{folder}", code=1)
    assert "modules to load" in found["lacks"]
    (row,) = [row for row in found["needs"] if row["name"] == "modules to load"]
    assert "is a module of 5.4.0" in row["seen"]


def test_what_is_not_there_or_no_kernel_is_refused_in_one_line(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["guest", "check", "6.1"]) == 2
    assert capsys.readouterr().err == (
        f"moetier: no kernel 6.1 in {cache}, which has {RELEASE}; expected one that has been fetched, or a path of a"
        " vmlinuz or bzImage; next: moetier guest fetch 6.1\n"
    )
    assert cli.main(["guest", "check", str(Path(__file__))]) == 2
    assert "is a text that begins" in capsys.readouterr().err


def test_fetching_says_what_came(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(cache))  # no apt
    assert cli.main(["guest", "fetch", "7.3"]) == 2
    assert "not a Debian system" in capsys.readouterr().err
    assert [one["release"] for one in said(capsys, "fetch", RELEASE, code=0)["kernels"]] == [RELEASE]  # it is here
