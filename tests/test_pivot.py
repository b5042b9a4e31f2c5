"""Cells x kernels: what is marked, what is merged, what is missing, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_moetier import cli
from pytest_moetier.errors import InputError
from pytest_moetier.pivot import Kernel, as_json, markdown_of, read_pivot, text_of

RELEASES = {"6.1": "6.1.0-57-cloud-amd64", "6.12": "6.12.118+deb13-cloud-amd64", "newest": "7.3.4+deb13-cloud-amd64"}
OLD, NEW, NEWEST = (Kernel(label, release) for label, release in RELEASES.items())
CELL = "balloon81-mglru_on"
MB = 1e6


def result(cell: str, label: str, device: Sequence[float] = (), **changed: Any) -> dict[str, Any]:
    """Return one test of a session: a cell with these device bytes, in MB, of each boot; none: not proved."""
    metrics = {
        "device_bytes": {"unit": "B/iteration", "better": "lower", "values": [one * MB for one in device]},
        "amplification": {"unit": "device/nominal", "better": "lower", "values": [one / 16 for one in device]},
        "observed_capacity_bytes": {"unit": "B", "better": "neither", "values": [165 * MB for _ in device]},
    }
    settings = {"read_ahead_kb": "128", "filesystem": "ext4"}
    guest = {"kernel": label, "release": RELEASES.get(label, label), "accelerator": "tcg", "cpus": 2}
    return {
        "test": f"test_reclaim[{cell}-k{label}]",
        "cell": f"{cell}-k{label}",
        "verdict": "supported at this scale" if device else "invalid",
        "reason": "" if device else "device bytes below the demand\nand more",
        "metrics": metrics if device else {},
        **({"guest": guest | {"settings": settings | changed}} if device else {}),
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a call that writes a session's file: its results, and changes to what they rest on."""

    def call(*results: dict[str, Any], name: str = "kernels.json", **changed: Any) -> Path:
        context = {
            "pool_id": "4cbe07904095f067",
            "trace": "synthetic kimi-k3",
            "plan_crc": "d7c84ca1",
            "iterations": 220,
            "threads": 8,
            "compute_seconds": 0.0,
        }
        labels = {one["cell"].partition("-k")[2] for one in results if one["cell"]}
        contexts = {
            f"{workload}-k{label}": context | changed | {"workload": workload, "kernel": label}
            for workload in ("reclaim", "reclaim_l4")
            for label in labels
        }
        contexts = {key: one | ({"plan_crc": "0"} if "l4" in key else {}) for key, one in contexts.items()}
        path = tmp_path / name
        path.write_text(json.dumps({"schema_version": 1, "contexts": contexts, "results": results}))
        return path

    return call


def test_each_cell_has_a_column_for_each_kernel_by_age(write: Callable[..., Path]) -> None:
    pivot = read_pivot([write(*(result(CELL, label, [20, 21]) for label in ("newest", "6.12", "6.1")))])
    assert pivot.kernels == (OLD, NEW, NEWEST)
    ((cell, row),) = pivot.rows.items()
    assert cell == CELL
    assert [row[one].values["device_bytes"] for one in pivot.kernels] == [(20 * MB, 21 * MB)] * 3


@pytest.mark.parametrize(
    ("releases", "order"),
    [
        (("6.2", "6.10.3", "6.1.9"), ("6.1.9", "6.2", "6.10.3")),
        (("7.0.0", "7.0.0-rc3", "7.0.0-rc10", "6.19.14"), ("6.19.14", "7.0.0-rc3", "7.0.0-rc10", "7.0.0")),
        (("mine", "6.1.0-57-cloud", "6.1.0-9-cloud"), ("6.1.0-9-cloud", "6.1.0-57-cloud", "mine")),
    ],
)
def test_kernels_are_sorted_as_versions(
    write: Callable[..., Path], releases: tuple[str, ...], order: tuple[str, ...]
) -> None:
    pivot = read_pivot([write(*(result(CELL, one, [20]) for one in releases))])
    assert tuple(one.release for one in pivot.kernels) == order


@pytest.mark.parametrize(
    ("before", "now", "marked"),
    [
        ((20, 21), (24, 25), True),
        ((20, 21), (16, 17), True),  # an improvement is a difference as well
        ((20, 21), (23, 23.1), False),  # +12%
        ((20, 26), (25.9, 29), False),  # +19%, and one boot lies within the other's range
        ((20, 26, 20), (26.1, 27, 27), True),
        ((20,), (23,), True),  # +15%
        ((20,), (22.9,), False),  # +14.5%
    ],
)
def test_a_difference_beyond_the_margin_and_the_boots_is_marked(
    write: Callable[..., Path], before: tuple[float, ...], now: tuple[float, ...], *, marked: bool
) -> None:
    pivot = read_pivot([write(result(CELL, "6.1", before), result(CELL, "6.12", now))])
    (_, first), (_, second) = pivot.seen(CELL, "device_bytes")
    assert first is not None
    assert (first.change, first.marked) == (None, False)
    assert second is not None
    assert second.marked is marked
    assert ("[+" in " ".join(text_of(pivot)) or "[-" in " ".join(text_of(pivot))) is marked


def test_a_kernel_is_held_against_the_last_one_before_it_that_was_measured(write: Callable[..., Path]) -> None:
    results = [result(CELL, "6.1", [20, 21]), result(CELL, "6.12"), result(CELL, "newest", [30, 31])]
    _, (_, second), (_, third) = read_pivot([write(*results)]).seen(CELL, "device_bytes")
    assert second is None
    assert third is not None
    assert (third.marked, third.change) == (True, pytest.approx(30.5 / 20.5 - 1))


def test_the_text_has_median_range_mark_and_what_is_missing_with_its_reason(write: Callable[..., Path]) -> None:
    results = [
        result(CELL, "6.1", [20, 21, 22]),
        result(CELL, "newest", [30, 31, 32]),
        result("cgroup-mglru_on", "6.1"),
    ]
    lines = text_of(read_pivot([write(*results)]))
    assert "device bytes per iteration" in lines
    device, amplification = (line for line in lines if line.startswith(f"{CELL}  "))
    assert re.split("  +", device)[1:] == ["21 MB (20 MB to 22 MB)", "31 MB (30 MB to 32 MB) [+47.6%]"]
    assert re.split("  +", amplification)[1:] == ["1.312 (1.250 to 1.375)", "1.938 (1.875 to 2.000) [+47.6%]"]
    missing = next(line for line in lines if line.startswith("cgroup-mglru_on  "))
    assert re.split("  +", missing)[1:] == ["invalid", "not asked for"]
    assert "cgroup-mglru_on on 6.1.0-57-cloud-amd64: invalid: device bytes below the demand" in lines
    assert any("threads; guests by tcg, 2 processors; trace synthetic kimi-k3" in line for line in lines)


def test_the_json_has_every_boots_value(write: Callable[..., Path]) -> None:
    found = as_json(read_pivot([write(result(CELL, "6.1", [20, 22]), result(CELL, "6.12", [30, 32]))]))
    assert [one["release"] for one in found["kernels"]] == [RELEASES["6.1"], RELEASES["6.12"]]
    (cell,) = found["cells"]
    assert cell["cell"] == CELL
    seen = cell["kernels"][1]["device_bytes"]
    assert (seen["values"], seen["median"], seen["min"], seen["max"]) == ([30 * MB, 32 * MB], 31 * MB, 30 * MB, 32 * MB)
    assert (seen["change"], seen["marked"]) == (pytest.approx(31 / 21 - 1), True)
    assert cell["kernels"][0]["rests_on"]["threads"] == 8


def test_the_markdown_has_a_table_for_each_metric(write: Callable[..., Path]) -> None:
    lines = markdown_of(read_pivot([write(result(CELL, "6.1", [20]), result(CELL, "6.12", [30]))]))
    assert lines.count("|---|---|---|") == 2
    assert f"| {CELL} | 20 MB | 30 MB [+50.0%] |" in lines
    assert f"| {CELL} | 1.250 | 1.875 [+50.0%] |" in lines


def test_several_files_are_one_table_and_one_kernel_in_several_has_the_boots_of_all(write: Callable[..., Path]) -> None:
    first = write(result(CELL, "6.1", [20]), name="a.json")
    second = write(result(CELL, "6.12", [21]), result(CELL, "6.1", [22]), name="b.json")
    pivot = read_pivot([first, second, first])  # given twice, it is one file
    assert pivot.kernels == (OLD, NEW)
    assert pivot.rows[CELL][OLD].values["device_bytes"] == (20 * MB, 22 * MB)


def test_a_cell_that_two_tests_of_a_session_rest_on_is_measured_once(write: Callable[..., Path]) -> None:
    pivot = read_pivot([write(result(CELL, "6.1", [20]), result(CELL, "6.1", [20]))])
    assert pivot.rows[CELL][OLD].values["device_bytes"] == (20 * MB,)


def test_cells_of_the_host_and_findings_over_cells_have_no_place(write: Callable[..., Path]) -> None:
    host = result(CELL, "6.1", [99]) | {"cell": CELL, "guest": None}
    over = result(CELL, "6.1", [99]) | {"cell": None}
    pivot = read_pivot([write(host, over, result(CELL, "6.1", [20]))])
    assert pivot.rows[CELL][OLD].values["device_bytes"] == (20 * MB,)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"plan_crc": "ffff"}, r"differ in plan d7c84ca1 and ffff; expected the same plan"),
        ({"pool_id": "0", "threads": 2}, r"differ in pool 4cbe07904095f067 and 0; threads 8 and 2"),
        ({"trace": "mine.jsonl"}, r"trace synthetic kimi-k3 and mine\.jsonl"),
        ({"iterations": 40}, r"iterations 220 and 40"),
    ],
)
@pytest.mark.parametrize("label", ["6.1", "6.12"])
def test_what_rests_on_something_else_is_refused_by_name(
    write: Callable[..., Path], changed: dict[str, Any], said: str, label: str
) -> None:
    first = write(result(CELL, "6.1", [20]), name="a.json")
    second = write(result(CELL, label, [20]), name="b.json", **changed)
    with pytest.raises(InputError, match=said):
        read_pivot([first, second])


@pytest.mark.parametrize(("name", "value"), [("accelerator", "kvm"), ("cpus", 4)])
def test_another_machine_is_refused(write: Callable[..., Path], name: str, value: object) -> None:
    other = result(CELL, "6.12", [20])
    other["guest"][name] = value
    with pytest.raises(InputError, match=rf"{CELL} on 6\.1\.0-57-cloud-amd64 \(kernels\.json\) and on 6\.12.*{value}"):
        read_pivot([write(result(CELL, "6.1", [20]), other)])


def test_rungs_of_the_ladder_have_a_pool_and_a_plan_of_their_own(write: Callable[..., Path]) -> None:
    pivot = read_pivot([write(result(CELL, "6.1", [20]), result(f"{CELL}-l4", "6.1", [10]))])
    plans = {cell: row[OLD].facts["plan"] for cell, row in pivot.rows.items()}
    assert plans == {CELL: "d7c84ca1", f"{CELL}-l4": "0"}


def test_machines_that_were_set_differently_and_caches_of_another_size_are_told(write: Callable[..., Path]) -> None:
    other = result(CELL, "newest", [20], read_ahead_kb="8192", min_free_kbytes="3387")
    other["metrics"]["observed_capacity_bytes"]["values"] = [190 * MB]
    lines = text_of(read_pivot([write(result(CELL, "6.1", [20], min_free_kbytes="3424"), other)]))
    assert f"read_ahead_kb is 128 on {RELEASES['6.1']}, 8192 on {RELEASES['newest']}" in lines
    assert any(line.startswith(f"{CELL}: the cache held 165 MB to 190 MB") for line in lines)
    assert not any("filesystem is" in line or "min_free" in line for line in lines)


def test_one_release_under_two_labels_is_two_columns(write: Callable[..., Path]) -> None:
    results = [result(CELL, label, [value]) for label, value in (("good", 20), ("bad", 30))]
    for one in results:
        one["guest"]["release"] = "6.18.0-rc1"
    lines = text_of(read_pivot([write(*results)]))
    assert any("6.18.0-rc1 (good)  6.18.0-rc1 (bad)" in line for line in lines)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cut off, or no JSON"),
        ("[]", "of another tool"),
        ('{"schema_version": 2, "results": []}', "schema_version 2; expected 1 or older"),
        ('{"schema_version": 1, "contexts": {}, "results": [{"cell": "a-k1"}]}', "damaged, or of another tool: Key"),
        ('{"schema_version": 1, "contexts": {}, "results": []}', "no metrics of ours"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(InputError, match=said):
        read_pivot([path])


def test_a_measured_cell_without_what_it_rests_on_is_refused(write: Callable[..., Path]) -> None:
    path = write(result(CELL, "6.1", [20]))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"contexts": {}}))
    with pytest.raises(InputError, match=rf"{CELL}-k6\.1: neither pool nor machine is known"):
        read_pivot([path])


def test_the_command_prints_text_markdown_or_json(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(write(result(CELL, "6.1", [20, 21]), result(CELL, "6.12", [30, 31])))
    assert cli.main(["guest", "table", path]) == 0
    assert "30.5 MB (30 MB to 31 MB) [+48.8%]" in capsys.readouterr().out
    assert cli.main(["guest", "table", path, "--markdown"]) == 0
    assert "|---|---|---|" in capsys.readouterr().out
    assert cli.main(["guest", "table", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"][0]["cell"] == CELL
    assert cli.main(["guest", "table", str(tmp_path / "none.json")]) == 2
    assert "none.json: No such file" in capsys.readouterr().err
