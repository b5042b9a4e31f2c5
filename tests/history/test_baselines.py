"""What a baseline is called, and what is said where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded import CELL, RECORDED

from pytest_moetier.errors import InputError
from pytest_moetier.history.baselines import Storage

Store = Callable[..., Path]


def on(kernel: str, host: str = "") -> Callable[[dict[str, Any]], None]:
    """Return a change that makes a cell one of another kernel and host."""

    def change(info: dict[str, Any]) -> None:
        info |= {"schema_version": 2, "profile": "", "host": {"fingerprint": host or "aa11", "release": kernel}}

    return change


def in_guest(label: str, release: str) -> Callable[[dict[str, Any]], None]:
    def change(info: dict[str, Any]) -> None:
        guest = {"kernel": label, "release": release, "accelerator": "tcg", "cpus": 2}
        info["cell"] |= {"id": f"{info['cell']['id']}-k{label}", "kernel": label, "guest": guest}

    return change


@pytest.fixture
def kept(store: Store, storage: Path) -> Storage:
    """Return a storage of five sessions: two kernels of a host, another host, and guests."""
    store(1, change=on("6.1.0-57-amd64"))
    store(2, change=on("6.12.118+deb13-amd64"))
    store(3, change=on("6.12.118+deb13-amd64", host="bb22"))
    store(4, change=in_guest("6.1", "6.1.0-57-cloud-amd64"))
    store(5, change=in_guest("newest", "7.3.4-cloud-amd64"))
    return Storage.read(storage.parent)


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("latest", "0005"),
        ("2", "0002"),
        ("0002", "0002"),
        ("kernel:6.12", "0003"),
        ("kernel:6.12.118", "0003"),
        ("kernel:6.1", "0004"),  # not 6.12
        ("kernel:newest", "0005"),
        ("kernel:7.3", "0005"),
        ("host:aa", "0002"),
        ("host:bb22", "0003"),
    ],
)
def test_a_baseline_is_found_by_number_kernel_host_or_as_the_latest(kept: Storage, word: str, number: str) -> None:
    (found,) = kept.find(word)
    assert found.number == number


def test_several_are_a_side_and_one_of_a_kernel_has_its_cells_alone(kept: Storage) -> None:
    assert [one.number for one in kept.find("1, 2,2")] == ["0001", "0002"]
    (found,) = kept.find("kernel:6.1")
    assert [one.words["kernel"] for one in found.cells.values()] == ["6.1", "6.1"]


def test_a_file_is_a_baseline_and_an_excluded_session_is_none(kept: Storage) -> None:
    (found,) = kept.find(str(RECORDED / "verdicts.json"))
    assert found.path.name == "verdicts.json"
    last = kept.find("latest")
    assert kept.find("latest", exclude=last)[0].number == "0004"
    with pytest.raises(
        InputError, match=r"no other stored session 0005 in .*; it has 4, 0001 to 0004; expected latest, "
    ):
        kept.find("0005", exclude=last)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("9", r"no stored session 9 in \S+; it has 5, 0001 to 0005"),
        ("kernel:5.10", "no stored session kernel:5.10 in"),
        ("host:cc", "no stored session host:cc in"),
        ("", "'' names no session"),
        ("nonsense", "'nonsense' names no session"),
        ("none.json", r"none\.json: No such file"),
        ("/", "/ is a folder; .* --moetier-compare=latest"),
        ("kernel:", "names no session"),
    ],
)
def test_where_there_is_none_it_says_what_there_is(kept: Storage, word: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        kept.find(word)


def test_a_number_in_the_folders_of_two_machines_is_refused(kept: Storage, storage: Path) -> None:
    other = storage.parent / "Darwin"
    other.mkdir()
    shutil.copy(storage / "0002_recorded.json", other)
    with pytest.raises(InputError, match=r"0002 is the number of .*Darwin.* and .*; next: name the file"):
        Storage.read(kept.folder).find("0002")


def test_what_was_skipped_is_named_where_nothing_is_left(storage: Path) -> None:
    (storage / "0001_cut.json").write_text('{"benchmarks": [')
    with pytest.raises(
        InputError, match=r"skipped: 0001_cut\.json: cut off, or no JSON: .*; next: store one: pytest bench/"
    ):
        Storage.read(storage.parent).find("latest")
    assert Storage.read(storage / "none").sessions == ()


def test_a_running_session_is_held_against_the_newest_cells_and_the_newest_traces(kept: Storage, store: Store) -> None:
    def traced(info: dict[str, Any]) -> None:
        info["cell"] = {"id": info["cell"]["id"], "finding": "routing", "domain": "prose"}

    store(6, change=traced)
    storage = Storage.read(kept.folder)
    cells, traces = storage.baseline("latest", needed=True)
    assert (cells.number, traces.number) == ("0005", "0006")
    assert not any(one.traced for one in cells.cells.values())
    with pytest.raises(InputError, match="no stored session 6 with cells"):
        storage.baseline("6", needed=True)
    assert CELL in storage.baseline("6", needed=False)[0].cells
    assert Storage.read(kept.folder / "none").baseline("latest", needed=False) == ()
