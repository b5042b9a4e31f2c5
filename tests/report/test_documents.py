"""The document of ``--moetier-json``: its published schema, and what is said of a file that is none."""

from __future__ import annotations

import json
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from recorded_documents import FILES, content

from pytest_moetier.cell import Cell
from pytest_moetier.documents import read_results
from pytest_moetier.errors import InputError
from pytest_moetier.history.store import cell_json
from pytest_moetier.units import Capacity
from pytest_moetier.words import words_of

SCHEMA = json.loads(files("pytest_moetier").joinpath("schemas", "results-1.json").read_text())


def problems(found: Any) -> list[str]:
    validator = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)
    return [f"{one.json_path}: {one.message}" for one in validator.iter_errors(found)]


def test_the_schema_is_one_of_its_draft() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("path", FILES, ids=lambda one: one.stem)
def test_recorded_documents_are_as_the_schema_says(path: Path) -> None:
    assert problems(json.loads(path.read_text())) == []


def test_the_results_of_a_report_are_as_the_schema_says_and_can_be_read_again(report: Path) -> None:
    found = json.loads((report / "results.json").read_text())
    assert problems(found) == []
    again = read_results([report / "results.json"])
    assert [one.content for one in again] == [one.content for one in read_results(FILES)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one["results"][0].pop("test"), "'test' is a required property"),
        (lambda one: one["results"][0].update(verdict="perhaps"), "'perhaps' is not one of"),
        (lambda one: one["results"][0]["bounds"][0].update(seen="much"), "'much' is not of type"),
        (lambda one: one["results"][0]["metrics"]["zipf_slope"].update(values=[]), "should be non-empty"),
        (lambda one: one["hit_rates"][0]["points"][0].update(mean=1.2), "1.2 is greater than the maximum of 1"),
        (lambda one: one.update(schema_version=2), "1 was expected"),
    ],
)
def test_the_schema_sees_what_is_wrong(change: Any, said: str) -> None:
    found = content("routing")
    found["results"].sort(key=lambda one: "zipf_slope" not in one["metrics"])
    assert problems(found) == []
    change(found)
    assert [one for one in problems(found) if said in one]


def test_what_is_read_is_what_was_written() -> None:
    (document,) = read_results([FILES[1]])
    results = {one.test: one for one in document.results}
    result = results["test_reclaim[balloon81-mglru_on-k6.12]"]
    assert (result.verdict, result.shown) == ("supported", "supported at this scale")
    assert result.kernel == "6.12.118+deb13-cloud-amd64"
    assert result.synthetic == ("trace", "pool")
    assert result.metrics["device_bytes"].median == sum(result.metrics["device_bytes"].values) / 2
    assert result.proof == "proved in 2 rounds: 12 held"
    assert document.series[0].every == 4
    assert len(document.series[0].device_bytes) == 55


def test_a_session_of_an_older_version_is_read_without_what_it_had_not(tmp_path: Path) -> None:
    old = content("routing")
    for key in ("time", "version", "notes", "hit_rates", "off_domain", "left_out", "audits"):
        del old[key]
    for one in old["results"]:
        del one["words"]
        for each in one["bounds"]:
            del each["name"], each["reason"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old))
    (document,) = read_results([path, path])
    assert (document.time, document.version, document.panels) == ("", "", ())
    assert len(document.results) == len(old["results"])


@pytest.mark.parametrize("kernel", ["host", "6.12", "my-own"])
def test_the_words_of_a_cell_are_read_off_its_id_where_a_document_lacks_them(kernel: str) -> None:
    varied = [
        {},
        {"mechanism": "balloon", "locked": 81, "workload": "reclaim"},
        {"mechanism": "memboot", "mglru": "on", "workload": "reclaim_l16", "capacity": Capacity.parse("6.4%")},
        {"capacity": Capacity.parse("4.4%"), "workload": "reclaim", "mode": "mmap", "filesystem": "xfs"},
        {"workload": "batch4", "prefetch": "fadvise_oracle"},
        {"workload": "small_box", "mode": "write_private", "spine": "locked", "read_limit": 150_500_000},
        {"workload": "hit_cost", "fill": "fadv_random", "mode": "fadv_random", "capacity": Capacity.parse("64GB")},
        {"workload": "small_box_q2", "mode": "user_lru50", "read_ahead_kb": 8192},
    ]
    for words in varied:
        cell = Cell("policy", **{"capacity": Capacity.parse("17.7%"), "kernel": kernel, **words})
        assert words_of(cell.id, "policy") == cell_json(cell)
    for other in ("kimi-k3-prose", "", "gh200"):
        assert words_of(other, "policy") == {}


def broken(**changes: Any) -> str:
    """Return the text of a document with something else in its first result."""
    found = content("routing")
    found["results"][0].update(changes)
    return json.dumps(found)


def without(key: str) -> str:
    found = content("routing")
    del found[key]
    return json.dumps(found)


@pytest.mark.parametrize(
    ("text", "seen", "do"),
    [
        ("", "is empty", "pytest bench/ --moetier-json FILE"),
        (FILES[2].read_text()[:5000], "is cut off or no JSON", "pytest bench/ --moetier-json FILE"),
        ("no JSON", "is cut off or no JSON", ""),
        ("[1, 2]", "is another tool's: it has no schema_version", ""),
        ('{"benchmarks": []}', "is another tool's: it has no schema_version", ""),
        ('{"schema_version": 1}', "is no document of verdicts: it lacks 'contexts'", ""),
        ('{"schema_version": "1"}', "has schema_version '1'", ""),
        ('{"schema_version": 2, "results": {}}', "has schema_version 2; expected at most 1", "pip install -U"),
        ('{"schema_version": 1, "documents": [{"schema_version": 3}]}', "has schema_version 3", "pip install -U"),
        ('{"schema_version": 1, "documents": [7]}', "has schema_version None", ""),
        (without("host"), "it lacks 'host'", ""),
        (broken(verdict="perhaps"), "has the verdict 'perhaps'", ""),
        (broken(metrics={"a": {"unit": "B", "better": "lower", "values": [None]}}), "a value of a is None", ""),
        (broken(metrics={"a": {"unit": "B", "better": "lower", "values": []}}), "a has no value", ""),
        (broken(metrics={"a": {"unit": "B", "better": "lower", "values": [float("nan")]}}), "NaN is no number", ""),
        (
            broken(metrics={"a": {"unit": "B", "better": "lower", "values": [1e308]}}).replace("1e+308", "1e999"),
            "inf",
            "",
        ),
        (
            broken(bounds=[{"id": "a", "seen": True, "expected": "", "source": "", "verdict": ""}]),
            "value of a is True",
            "",
        ),
        (broken(proof=[[{"name": "a"}]]), "missing 3 required", ""),
        (broken(bounds=None), "not iterable", ""),
        ("[" * 100_000, "no JSON of ours", ""),
    ],
)
def test_a_file_that_is_none_is_refused_by_its_name_in_one_message(
    tmp_path: Path, text: str, seen: str, do: str
) -> None:
    path = tmp_path / "found.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_results([FILES[0], path])
    message = str(error.value)
    assert message.startswith(str(path))
    assert seen in message
    assert do in message
    assert "\n" not in message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "missing.json", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(InputError, match=rf"{path}: {why}.*; expected a file of --moetier-json"):
            read_results([path])
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"bytes\.json is no JSON of ours"):
        read_results([tmp_path / "bytes.json"])


def test_the_recorded_documents_are_in_git_and_small() -> None:
    tracked = subprocess.run(["git", "check-ignore", *FILES], capture_output=True, text=True, check=False)
    assert tracked.stdout == ""
    assert max(path.stat().st_size for path in FILES) < 200_000
