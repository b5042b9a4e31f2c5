"""Reading what is stored: recorded files, older and newer schemas, and files that are damaged or another tool's."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.storage.file import FileStorage
from recorded import CELL, RECORDED, ROOMY

from pytest_moetier.errors import InputError
from pytest_moetier.history.sessions import read_session, read_sessions, storage_files

Store = Callable[..., Path]


def test_a_recorded_session_of_schema_1_is_read_with_what_it_did_not_say() -> None:
    found = read_session(RECORDED / "0001_recorded.json")
    assert (found.number, found.host, found.release, found.commit) == ("0001", "vm", "6.18.44-fc-v595", "")
    assert found.time.isoformat(timespec="seconds") == "2026-11-30T22:15:09+00:00"
    assert list(found.cells) == [CELL, ROOMY]
    cell = found.cells[CELL]
    assert (cell.words["capacity"], cell.guest, cell.traced, cell.base) == ("30%", None, False, CELL)
    assert (cell.context["profile"], cell.context["lists"], cell.context["threads"]) == (None, [], 2)
    metric = cell.metrics["device_bytes"]
    assert (metric.unit, metric.better, len(metric.values)) == ("B/iteration", "lower", 5)
    assert metric.median == pytest.approx(1131520)
    assert found.remarks == ()


def test_pytest_benchmarks_own_tools_read_the_recorded_file(storage: Path) -> None:
    shutil.copy(RECORDED / "0001_recorded.json", storage)

    class Log:
        def warning(self, message: str) -> None:
            pytest.fail(message)

    ((_, data),) = FileStorage(storage.parent, Log()).load()
    assert [one["name"] for one in data["benchmarks"]] == [f"test_capacity[{CELL}]", f"test_capacity[{ROOMY}]"]


def test_a_session_stored_before_cells_varied_more_had_the_usual(store: Store) -> None:
    def older(info: dict[str, Any]) -> None:
        for name in ("kernel", "filesystem", "workload", "guest"):
            del info["cell"][name]
        for name in ("compute_seconds", "kernel", "workload"):
            del info["context"][name]
        del info["lists"]

    cell = read_session(store(1, change=older)).cells[CELL]
    assert (cell.words["kernel"], cell.words["filesystem"], cell.words["workload"]) == ("host", "ext4", "single")
    assert (cell.context["compute_seconds"], cell.context["lists"]) == (0.0, [])


def test_the_same_session_as_verdicts_has_the_same_values() -> None:
    stored, written = (read_session(RECORDED / name) for name in ("0001_recorded.json", "verdicts.json"))
    assert written.number == ""
    assert len(written.host) == 16  # the fingerprint
    for name, cell in written.cells.items():
        assert cell.metrics == stored.cells[name].metrics
        assert cell.context["plan_crc"] == stored.cells[name].context["plan_crc"]
        assert cell.words["workload"] == "single"


def test_a_file_of_verdicts_without_a_time_has_that_of_the_file(tmp_path: Path) -> None:
    path = shutil.copy(RECORDED / "verdicts.json", tmp_path)
    age = datetime.now(UTC) - read_session(Path(path)).time
    assert timedelta(0) <= age < timedelta(minutes=5)


def edited(tmp_path: Path, name: str, edit: Callable[[Any], Any]) -> Path:
    """Return a recorded file with an edit, under the same name."""
    data = json.loads((RECORDED / name).read_text())
    path = tmp_path / name
    path.write_text(json.dumps(edit(data) or data))
    return path


@pytest.mark.parametrize(("named", "seen"), [("mine", "mine"), ("", ""), (None, None)])
def test_a_file_of_verdicts_says_the_profile_that_was_applied_unless_it_is_older(
    tmp_path: Path, named: str | None, seen: str | None
) -> None:
    added = {} if named is None else {"profile": named}
    session = read_session(edited(tmp_path, "verdicts.json", lambda data: {**data, **added}))
    assert {one.context["profile"] for one in session.cells.values()} == {seen}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "cut off, or no JSON"),
        ('{"benchmarks": [{"extra_info": {"moetier": {"schema_ver', "cut off, or no JSON"),
        ("\x80\x81", "damaged, or of another tool"),
        ("[]", "of another tool"),
        ('{"benchmarks": []}', "damaged, or of another tool: KeyError('datetime')"),
        ('{"benchmarks": 3, "datetime": "x"}', "damaged, or of another tool: TypeError"),
        ('{"benchmarks": [], "datetime": "2026-11-30"}', "no metrics of ours"),
        ('{"benchmarks": [3, {"extra_info": "theirs"}], "datetime": "2026-11-30"}', "no metrics of ours"),
        ('{"benchmarks": [], "datetime": "yesterday"}', "damaged, or of another tool: ValueError"),
        ("[" * 100_000, "damaged, or of another tool: RecursionError"),
    ],
)
def test_what_is_no_session_of_ours_is_refused_by_name_and_reason(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "0003_x.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(InputError) as refused:
        read_session(path)
    assert refused.value.seen.startswith(f"{path}: {said}")
    found, skipped = read_sessions([path, RECORDED / "0001_recorded.json"])
    assert [one.number for one in found] == ["0001"]
    (line,) = skipped
    assert line.startswith(f"0003_x.json: {said}")


def test_a_newer_schema_is_refused_by_its_number(tmp_path: Path) -> None:
    def newer(data: Any) -> None:
        data["benchmarks"][0]["extra_info"]["moetier"]["schema_version"] = 3

    with pytest.raises(InputError, match=r"0001_recorded\.json: schema_version 3; expected 2 or older; next: a newer"):
        read_session(edited(tmp_path, "0001_recorded.json", newer))
    with pytest.raises(InputError, match=r"verdicts\.json: schema_version 2; expected 1 or older"):
        read_session(edited(tmp_path, "verdicts.json", lambda data: {**data, "schema_version": 2}))


@pytest.mark.parametrize(
    "metric",
    [
        {"unit": "B", "better": "lower", "values": [1.0, math.nan]},
        {"unit": "B", "better": "lower", "values": [math.inf]},
        {"unit": "B", "better": "lower", "values": []},
        {"unit": "B", "better": "lower", "values": ["7"]},
        {"unit": "B", "better": "lower", "values": [None]},
        {"unit": "B", "better": "upwards", "values": [1.0]},
    ],
)
def test_a_metric_without_finite_values_is_left_out_and_said(store: Store, metric: dict[str, Any]) -> None:
    found = read_session(store(1, change=lambda info: info["metrics"].update(device_bytes=metric)))
    assert "device_bytes" not in found.cells[CELL].metrics
    assert "amplification" in found.cells[CELL].metrics
    assert found.remarks[0].startswith(f"{CELL}: device_bytes left out: ")


@pytest.mark.parametrize("gone", ["metrics", "cell", "context"])
def test_a_damaged_cell_is_left_out_and_the_others_are_read(tmp_path: Path, gone: str) -> None:
    def damage(data: Any) -> None:
        del data["benchmarks"][0]["extra_info"]["moetier"][gone]

    found = read_session(edited(tmp_path, "0001_recorded.json", damage))
    assert list(found.cells) == [ROOMY]
    assert found.remarks[0].startswith(f"test_capacity[{CELL}]: damaged: KeyError")


def test_a_cell_of_which_it_is_unknown_what_it_rests_on_is_left_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"no metrics of ours: {CELL}: neither pool nor machine is known"):
        read_session(edited(tmp_path, "verdicts.json", lambda data: {**data, "contexts": {}}))


def test_sessions_are_in_the_order_of_their_time(store: Store) -> None:
    paths = [store(3), store(1), store(2)]
    found, skipped = read_sessions(paths)
    assert [one.number for one in found] == ["0001", "0002", "0003"]
    assert skipped == []


def test_where_the_clock_went_back_the_numbers_decide(store: Store) -> None:
    paths = [store(number) for number in (1, 2, 3)]
    data = json.loads(paths[2].read_text())
    paths[2].write_text(json.dumps(data | {"datetime": "1970-01-01T00:00:00+00:00"}))
    found, skipped = read_sessions(reversed(paths))
    assert [one.number for one in found] == ["0001", "0002", "0003"]
    assert skipped == [
        "0003_recorded.json: dated before 0002_recorded.json, the clock went back; its number decides",
    ]


def test_every_json_file_below_the_folder_may_be_a_session(store: Store, storage: Path) -> None:
    path = store(1)
    (storage.parent / "0000_above.json").write_text("{}")
    (storage / "notes.txt").write_text("theirs")
    (storage / "folder.json").mkdir()
    assert storage_files(storage.parent) == [storage.parent / "0000_above.json", path]
    assert storage_files(storage / "none") == []
