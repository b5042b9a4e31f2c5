"""``moetier compare`` and ``moetier history``: what they print, and the status that a script sees."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded import CELL, RECORDED, ROOMY

from pytest_moetier import cli

Store = Callable[..., Path]
NOISE = (0.99, 1.01, 1.0, 0.995, 1.005)


@pytest.fixture
def run(storage: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a call of a command on the storage: its status, output and notes."""

    def call(*args: str) -> tuple[int, str, str]:
        status = cli.main([*args, "--storage", str(storage.parent)])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


Run = Callable[..., tuple[int, str, str]]


def test_a_gate_fails_on_a_planted_regression_by_name_and_passes_on_a_repeat(run: Run, store: Store) -> None:
    store(1)
    store(2, 2)
    status, out, err = run("compare", "0001", "--gate", "device_bytes:5%")
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == "0002 / 0001"
    assert out.splitlines()[-1] == "gate device_bytes:5%: none regressed"
    store(3, 2, device_bytes=1.1)
    status, out, err = run("compare", "0001", "--gate", "device_bytes:5%")
    assert status == 1
    assert err.startswith(f"regressed: device_bytes of {CELL} is worse: 1.13152e+06 then, ")
    assert run("compare", "latest", "0002", "--gate", "device_bytes:5%")[0] == 0  # 10% better than the planted one


def guests(path: Path, label: str, factor: float, rounds: int = 5) -> Path:
    """Write verdicts of a cell on a kernel, as --moetier-json does."""
    cell = f"balloon81-mglru_on-k{label}"
    values = [20e6 * factor * one for one in NOISE[:rounds]]
    guest = {"kernel": label, "release": f"{label}.0-57-cloud-amd64", "accelerator": "tcg", "cpus": 2}
    context = {"pool_id": "4c", "trace": "t", "plan_crc": "d7", "iterations": 220, "threads": 8, "workload": "reclaim"}
    result = {
        "finding": "reclaim",
        "test": f"test_reclaim[{cell}]",
        "cell": cell,
        "verdict": "supported at this scale",
        "reason": "",
        "metrics": {"device_bytes": {"unit": "B/iteration", "better": "lower", "values": values}},
        "guest": guest,
    }
    document = {"schema_version": 1, "contexts": {label: context | {"kernel": label}}, "results": [result]}
    path.write_text(json.dumps(document))
    return path


def test_two_runs_on_two_guest_kernels_are_compared_by_one_command(run: Run, tmp_path: Path) -> None:
    old, new = guests(tmp_path / "old.json", "6.1", 1), guests(tmp_path / "new.json", "6.12", 1.3)
    status, out, err = run("compare", str(old), str(new), "--gate", "device_bytes:5%")
    assert status == 1
    assert "kernel 6.1.0-57-cloud-amd64 then, 6.12.0-57-cloud-amd64 now" in out
    assert err.startswith("regressed: device_bytes of balloon81-mglru_on-k6.12 is worse: 2e+07 then, 2.6e+07 now ")
    repeat = guests(tmp_path / "repeat.json", "6.12", 1.001)
    assert run("compare", str(old), str(repeat), "--gate", "device_bytes:5%")[0] == 0


@pytest.mark.parametrize("sessions", [1, 2])
def test_two_kernels_of_the_storage_are_compared_be_they_of_one_session_or_two(
    run: Run, store: Store, sessions: int
) -> None:
    def on(*labels: str) -> Callable[[dict[str, Any]], None]:
        left = list(labels)

        def change(info: dict[str, Any]) -> None:
            label = left.pop(0)
            guest = {"kernel": label, "release": f"{label}.0-57-amd64", "accelerator": "kvm", "cpus": 2}
            info["cell"] |= {"id": f"{CELL}-k{label}", "kernel": label, "guest": guest}

        return change

    if sessions == 1:
        store(1, change=on("6.1", "6.12"))
    else:
        store(1, change=on("6.1", "6.1"))
        store(2, change=on("6.12", "6.12"))
    status, out, _ = run("compare", "kernel:6.1", "kernel:6.12", "--metric", "logical_bytes")
    assert status == 0
    assert "kernel 6.1.0-57-amd64 then, 6.12.0-57-amd64 now" in out
    assert re.search(rf"^  {CELL}-k6\.12 .* 5, 5 .* same$", out, re.MULTILINE)


def test_a_gate_that_could_not_decide_is_refused(run: Run, store: Store, tmp_path: Path) -> None:
    few = [guests(tmp_path / f"{label}.json", label, 1, rounds=2) for label in ("6.1", "6.12")]
    status, _, err = run("compare", *map(str, few), "--gate", "device_bytes:5%")
    assert status == 2
    assert "gate device_bytes:5% could decide on no cell: 2 and 2 boots; 5 a side are needed" in err
    status, _, err = run("compare", str(RECORDED / "verdicts.json"), str(few[0]), "--gate", "device_bytes:5%")
    assert (status, "balloon81-mglru_on-k6.1: not in the baseline" in err) == (2, True)
    store(1)
    store(2, 2)
    status, _, err = run("compare", "1", "--gate", "logical_bytes:5%")
    assert (status, "logical_bytes has no better direction" in err) == (2, True)
    assert run("compare", "1", "--gate", "nonsense:5%")[0] == 2


def test_without_a_gate_what_cannot_be_told_is_said_and_nothing_comparable_is_refused(run: Run, tmp_path: Path) -> None:
    few = [guests(tmp_path / f"{label}.json", label, 1, rounds=2) for label in ("6.1", "6.12")]
    status, out, _ = run("compare", *map(str, few))
    assert (status, "cannot tell balloon81-mglru_on-k6.12: 2 and 2 boots; 5 a side" in out) == (0, True)
    status, _, err = run("compare", str(RECORDED / "verdicts.json"), str(few[0]))
    assert (status, "no cell can be compared" in err) == (2, True)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "0 sessions are named; expected BASELINE, or BASELINE and CURRENT"),
        (("1", "2", "1"), "3 sessions are named"),
        (("latest", "1"), ""),
        (("3",), "no other stored session 3 in"),
        (("1", "1"), "no other stored session 1 in"),
        (("kernel:5",), "no other stored session kernel:5 in"),
        (("1", "--gate", "device_bytes"), "'device_bytes' is no gate"),
        (("1", "--effect", "5"), "'5' is no effect size"),
        (("1", "--metric", "nonsense"), "no cell has nonsense; expected of amplification, "),
        (("--by", "kernel", "--gate", "x:5%"), "--gate with --by kernel"),
        (("1", "--csv", "/proc/x.csv"), "expected a folder that may be written to"),
    ],
)
def test_what_cannot_be_compared_is_one_message(run: Run, store: Store, args: tuple[str, ...], said: str) -> None:
    store(1)
    store(2, 2)
    status, _, err = run("compare", *args)
    assert (status == 2) == bool(said)
    assert said in err
    assert err.count("\n") == bool(said)


def test_an_empty_storage_says_how_to_store(run: Run) -> None:
    status, _, err = run("compare", "latest")
    assert (status, "next: store one: pytest bench/ --benchmark-autosave" in err) == (2, True)


def test_metrics_are_chosen_and_exported(run: Run, store: Store, tmp_path: Path) -> None:
    store(1)
    store(2, 2, major_faults=1.0)
    path = tmp_path / "out.csv"
    status, out, _ = run("compare", "1", "--metric", "hit_bytes", "--csv", str(path), "--json")
    document = json.loads(out)
    assert (status, document["then"], document["now"]) == (0, ["0001"], ["0002"])
    assert [(one["cell"], one["metric"]) for one in document["compared"]] == [(CELL, "hit_bytes"), (ROOMY, "hit_bytes")]
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [(row["cell"], row["verdict"]) for row in rows] == [(CELL, "same"), (ROOMY, "same")]
    assert float(rows[0]["ratio"]) == pytest.approx(document["compared"][0]["ratio"])


def test_damaged_files_of_the_storage_are_named_beside_the_comparison(run: Run, store: Store, storage: Path) -> None:
    store(1)
    store(2, 2)
    (storage / "0003_cut.json").write_text("{")
    (storage / "0004_theirs.json").write_text('{"benchmarks": [], "datetime": "2026-11-30"}')
    status, _, err = run("compare", "1")
    assert status == 0
    first, second = err.splitlines()
    assert first.startswith("skipped 0003_cut.json: cut off, or no JSON")
    assert second == "skipped 0004_theirs.json: no metrics of ours"


def test_cells_by_kernel_are_read_from_the_storage_and_from_files(run: Run, store: Store, tmp_path: Path) -> None:
    def on(release: str) -> Callable[[dict[str, Any]], None]:
        return lambda info: info.update(schema_version=2, profile="", host={"fingerprint": "aa11", "release": release})

    store(1, change=on("6.1.0-57-amd64"))
    store(2, change=on("6.12.118-amd64"), device_bytes=1.5)
    path = tmp_path / "out.csv"
    status, out, _ = run("compare", "--by", "kernel", "--csv", str(path))
    row = next(line for line in out.splitlines() if line.startswith(f"{CELL} on aa11") and "MB" in line)
    assert status == 0
    assert row.endswith("(1.69 MB to 1.7 MB) [+50.0%]")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert {(one["release"], one["marked"]) for one in rows if one["cell"].startswith(CELL)} >= {
        ("6.1.0-57-amd64", "False"),
        ("6.12.118-amd64", "True"),
    }
    files = [str(guests(tmp_path / f"{label}.json", label, factor)) for label, factor in (("6.1", 1), ("6.12", 1.3))]
    status, out, _ = run("compare", *files, "--by", "kernel", "--metric", "device_bytes", "--json")
    (cell,) = json.loads(out)["cells"]
    assert [one["device_bytes"]["marked"] for one in cell["kernels"]] == [False, True]


def test_the_history_is_listed_and_shown(run: Run, store: Store, storage: Path) -> None:
    assert run("history", "list")[2].startswith("no session in ")
    store(1)
    store(2, 2)
    (storage / "0003_cut.json").write_text("{")
    status, out, err = run("history", "list")
    assert (status, [line.split()[0] for line in out.splitlines()]) == (0, ["session", "-------", "0001", "0002"])
    assert out.splitlines()[2].split()[3:] == ["vm", "6.18.44-fc-v595", "-", "2", "0"]
    assert err.startswith("skipped 0003_cut.json: cut off")
    document = json.loads(run("history", "list", "--json")[1])
    assert [one["cells"] for one in document["sessions"]] == [[CELL, ROOMY]] * 2
    assert len(document["skipped"]) == 1
    status, out, _ = run("history", "show", "1", "--metric", "device_bytes")
    assert out.splitlines()[3].split() == [CELL, "device_bytes", "1.13", "MB", "1.13", "MB", "to", "1.14", "MB", "5"]
    shown = json.loads(run("history", "show", "latest", "--json")[1])
    assert len(shown["cells"][0]["metrics"]["device_bytes"]["values"]) == 5
    assert run("history", "show", "9")[0] == 2


def names(storage: Path) -> list[str]:
    return sorted(one.name for one in storage.iterdir())


def test_pruning_only_says_what_it_would_delete_unless_told_to(run: Run, store: Store, storage: Path) -> None:
    for number in range(1, 6):
        store(number)
    status, out, err = run("history", "prune", "--keep", "3")
    assert (status, len(names(storage))) == (0, 5)
    assert out.splitlines()[-1] == "would delete 2 of 5 sessions"
    assert "next: the same command with --delete" in err
    assert run("history", "prune", "--keep", "3", "--delete")[1].splitlines()[-1] == "deleted 2 of 5 sessions"
    assert names(storage) == [f"{number:04}_recorded.json" for number in (3, 4, 5)]
    assert run("history", "prune", "--keep", "9", "--delete")[1] == "deleted 0 of 3 sessions\n"


def test_pruning_by_date_and_number_keeps_what_either_keeps(run: Run, store: Store, storage: Path) -> None:
    for number in range(1, 6):
        store(number)
    before = ("--before", "2026-11-30T10:03:00")
    document = json.loads(run("history", "prune", *before, "--json")[1])
    assert [Path(one).name[:4] for one in document["would_delete"]] == ["0001", "0002"]
    run("history", "prune", *before, "--keep", "4", "--delete")
    assert names(storage) == [f"{number:04}_recorded.json" for number in (2, 3, 4, 5)]


def test_pruning_never_deletes_what_is_not_ours_alone(run: Run, store: Store, storage: Path) -> None:
    for number in range(1, 6):
        store(number)
    (storage / "0000_cut.json").write_text("{")
    (storage / "0000_theirs.json").write_text('{"benchmarks": [{"name": "x"}], "datetime": "2020-01-01"}')
    shutil.copy(RECORDED / "verdicts.json", storage / "verdicts.json")
    mixed = json.loads((storage / "0001_recorded.json").read_text())
    mixed["benchmarks"].append({"name": "theirs", "extra_info": {}})
    (storage / "0001_recorded.json").write_text(json.dumps(mixed))
    (storage / "0002_recorded.json").rename(storage.parent / "elsewhere.json")
    (storage / "0002_recorded.json").symlink_to(storage.parent / "elsewhere.json")
    status, out, err = run("history", "prune", "--before", "2027-01-01", "--delete")
    assert (status, out.splitlines()[-1]) == (0, "deleted 3 of 5 sessions")
    kept = ["0000_cut.json", "0000_theirs.json", "0001_recorded.json", "0002_recorded.json", "verdicts.json"]
    assert names(storage) == kept
    assert "0001_recorded.json: it has 1 results of other tests as well" in err
    assert "0002_recorded.json: it is a link" in err


@pytest.mark.parametrize("args", [(), ("--keep", "0"), ("--keep", "-1")])
def test_pruning_without_a_limit_is_refused(run: Run, args: tuple[str, ...]) -> None:
    assert run("history", "prune", *args)[0] == 2


@pytest.mark.parametrize("args", [("--before", "yesterday"), ("--keep", "1", "--delete", "--dry-run")])
def test_pruning_with_words_that_mean_nothing_is_a_usage_error(run: Run, args: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit):
        run("history", "prune", *args)
