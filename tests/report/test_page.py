"""What a report says: the verdict on every claim, from whatever documents there are, in all of its forms."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from recorded_documents import FILES, HOSTILE, content, spoiled

from pytest_moetier.claims import Claim, read_claims
from pytest_moetier.documents import Document, document_of, read_results
from pytest_moetier.page.charts import sections_of
from pytest_moetier.page.judged import Row, rows_of
from pytest_moetier.page.model import page_of
from pytest_moetier.page.write import write_page

CLAIM = Claim(
    "capacity.a", "", "More is better", "a test", ("replay",), ("mine.*",), (), ("test_one",), "pytest bench/"
)
PROOF = replace(CLAIM, id="ledger.a", bounds=(), invariants=("stamps", "steady"), tests=())


def bound(verdict: str, seen: float | None = 1.5, name: str = "ratio", **more: Any) -> dict[str, Any]:
    one = {"id": f"mine.{name}", "name": name, "value": seen, "seen": seen, "expected": "at most 1", "source": "me"}
    return {**one, "verdict": verdict, "reason": "", **more}


def result(test: str = "test_one", verdict: str = "supported", **more: Any) -> dict[str, Any]:
    one = {"finding": "capacity", "test": test, "cell": None, "words": None, "verdict": verdict, "reason": ""}
    return {**one, "bounds": [], "metrics": {}, "lists": [], "proof": [], **more}


def session(*results: dict[str, Any]) -> Document:
    host = {"system": "Linux", "release": "6.18", "machine": "x86_64", "cpus": 2, "mem_total_bytes": 1 << 30}
    found = {"schema_version": 1, "time": "2026-11-30T22:00:00+00:00", "version": "0", "host": host, "contexts": {}}
    return document_of({**found, "context": None, "results": list(results)}, "")


def row(*results: dict[str, Any], claim: Claim = CLAIM) -> Row:
    (found,) = rows_of([claim], [session(*results)])
    return found


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["supported", "supported"], "supported"),
        (["supported", "refuted", "not_examined"], "refuted"),
        (["supported", "not_examined"], "supported"),
        (["not_examined"], "not_examined"),
        ([], "not_examined"),
    ],
)
def test_a_claim_is_refuted_where_any_bound_is_else_supported_where_any_is(verdicts: list[str], expected: str) -> None:
    found = row(*(result(f"test_one[{at}]", bounds=[bound(one)]) for at, one in enumerate(verdicts)))
    assert found.verdict == expected
    assert len(found.evidence) == len(verdicts)
    assert all(one.verdict == expected for one in found.deciding)


def test_the_figures_of_a_claim_are_those_that_decided_with_the_least_and_the_most() -> None:
    seen = [bound("refuted", 1.5), bound("refuted", 2.25), bound("supported", 0.5), bound("refuted", 3e6, "read_bytes")]
    read = {"read_bytes": {"unit": "B/iteration", "better": "lower", "values": [3e6]}}
    found = row(*(result(f"test_one[{at}]", bounds=[one], metrics=read) for at, one in enumerate(seen)))
    assert found.figures == [("ratio", "1.5 to 2.25 in 2 cases", "at most 1"), ("read_bytes", "3 MB", "at most 1")]
    assert found.counts == "3 refuted, 1 supported"


def test_a_ratio_of_bytes_is_no_number_of_bytes() -> None:
    ratio = {"hint_bytes": {"unit": "ratio", "better": "neither", "values": [0.424]}}
    for metrics in (ratio, {}):
        found = row(result(bounds=[bound("refuted", 0.424, "hint_bytes")], metrics=metrics))
        assert found.figures == [("hint_bytes", "0.424", "at most 1")]


def test_what_two_findings_judged_of_one_cell_is_told_once() -> None:
    same = result(cell="C5pct", bounds=[bound("supported")])
    assert len(row(same, {**same, "test": "test_two"}).evidence) == 1


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ((), "nothing that examines it ran"),
        ((result("test_two", "not_examined", reason="not mine"),), "nothing that examines it ran"),
        ((result(verdict="not_examined", reason="no mem=; next: boot\nmore"),), "no mem=; next: boot"),
        ((result(bounds=[bound("not_examined", None, reason=": no witness")]),), "no witness"),
        ((result("test_one[a]", "not_examined", reason="x"), result("test_one[b]", "not_examined", reason="x")), "x"),
    ],
)
def test_what_was_not_examined_says_why(results: tuple[dict[str, Any], ...], reason: str) -> None:
    found = row(*results)
    assert (found.verdict, found.reason) == ("not_examined", reason)


def test_a_claim_without_a_bound_says_so() -> None:
    assert row(result(), claim=replace(CLAIM, bounds=())).reason == "no bound judges it yet"


def test_a_claim_whose_only_run_was_not_proved_is_invalid() -> None:
    found = row(result(verdict="invalid", reason="a byte was lost"))
    assert (found.verdict, found.reason) == ("invalid", "a byte was lost")
    assert row(result(verdict="invalid"), result("test_one[b]", bounds=[bound("supported")])).verdict == "supported"


def proofs(*states: str) -> list[list[dict[str, str]]]:
    return [[{"name": "stamps", "state": one, "expected": "", "observed": ""}] for one in states]


@pytest.mark.parametrize(
    ("states", "verdict", "seen"),
    [
        ((("held", "held"), ("held",)), "supported", "2 held of 2 cells"),
        ((("held", "broken"), ("held",)), "invalid", "1 broken, 1 held of 2 cells"),
        ((("unobserved",), ("held",)), "supported", "1 unobserved, 1 held of 2 cells"),
        ((("unobserved",),), "not_examined", "1 unobserved of 1 cells"),
        ((("flagged",), ("held",)), "not_examined", "1 flagged, 1 held of 2 cells"),
    ],
)
def test_a_claim_on_accounting_is_as_the_proofs_say(states: Any, verdict: str, seen: str) -> None:
    found = row(*(result(cell=f"C{at}", proof=proofs(*one)) for at, one in enumerate(states)), claim=PROOF)
    assert (found.verdict, found.evidence[0].seen) == (verdict, seen)
    assert len(found.evidence) == 1


def test_a_broken_proof_is_not_hidden_by_a_later_session_of_the_same_cell() -> None:
    earlier, later = (session(result(cell="C5pct", proof=proofs(one))) for one in ("broken", "held"))
    (found,) = rows_of([PROOF], [earlier, later])
    assert (found.verdict, found.evidence[0].seen) == ("invalid", "1 broken, 1 held of 2 cells")


def test_two_findings_on_one_cell_have_its_proof_once() -> None:
    same = result(cell="C5pct", proof=proofs("held"))
    assert row(same, {**same, "test": "test_two"}, claim=PROOF).evidence[0].seen == "1 held of 1 cells"


def test_a_verdict_of_a_virtual_machine_is_told_with_its_scale_kernel_and_origin() -> None:
    page = page_of(read_results([FILES[1]]))
    rows = {one.claim.id: one for one in page.rows}
    knee = rows["reclaim.knee"]
    assert knee.verdict == "refuted"
    assert knee.scale.endswith("emulated; kernel 6.12.118+deb13-cloud-amd64")
    assert knee.synthetic == "synthetic trace, synthetic pool"
    assert page.at_scale == sum(one.verdict in {"supported", "refuted"} for one in page.rows if one.scale)
    assert page.guests == "6.12.118+deb13-cloud-amd64 (software emulation)"


def test_every_claim_has_a_row_and_every_row_is_counted(documents: list[Document]) -> None:
    page = page_of(documents)
    assert [one.claim for one in page.rows] == list(read_claims())
    assert sum(page.counts.values()) == len(page.rows)
    assert [one for _, _, rows in page.chapters for one in rows] == list(page.rows)
    assert list(page.counts) == ["supported", "refuted", "not_examined", "invalid"]
    assert min(page.counts["supported"], page.counts["refuted"]) >= 5


def test_a_session_of_nothing_makes_a_page_that_says_so(tmp_path: Path) -> None:
    page, told = write_page([session()], tmp_path)
    assert page.counts["not_examined"] == len(page.rows)
    assert told == [f"of {len(page.rows)} claims 0 hold, 0 do not: {tmp_path / 'index.html'}"]
    text = (tmp_path / "index.html").read_text()
    assert text.count("Nothing was measured for it.") == 7
    assert "<figure" not in text


def test_every_question_of_the_paper_has_a_figure_of_the_recorded_documents(documents: list[Document]) -> None:
    sections = sections_of(documents)
    assert {one.word: len(one.charts) for one in sections} == {
        "hit-rates": 2,
        "capacity": 2,
        "reclaim": 1,
        "equal-memory": 2,
        "off-domain": 1,
        "prefetch": 1,
        "generations": 1,
    }
    charts = [chart for section in sections for chart in section.charts]
    assert len({one.name for one in charts}) == len(charts)
    for one in charts:
        assert "synthetic" in one.title
        assert one.table.rows
        assert {len(row) for row in one.table.rows} == {len(one.table.heads)}
        assert one.alt.startswith(one.title)


def test_the_numbers_of_a_figure_are_the_documents(documents: list[Document]) -> None:
    charts = {chart.name: chart for section in sections_of(documents) for chart in section.charts}
    host = next(one for one in documents if Path(one.source).name == "host.json")
    cell = next(one for one in host.results if one.finding == "capacity" and one.words.get("capacity") == "60%")
    row = next(row for row in charts["capacity-time"].table.rows if row[0] == "40.3 MB")
    assert row[1:3] == ("cgroup", "host")
    assert row[3].startswith(f"{cell.metrics['seconds_per_iteration'].median * 1e3:.3g} ms (")
    rail = [row[-1] for row in charts["capacity-device"].table.rows]
    assert rail[-1].startswith("+0.0%") or "-" in rail[-1]
    off = charts["off_domain-kimi-k3"].table
    assert off.rows[0] == ("prose (an oracle there)", "69.2%", "70.3%")
    assert [one[0] for one in off.rows[1:]] == ["code", "math", "chat"]


def test_two_documents_of_one_kind_have_figures_of_their_own(documents: list[Document]) -> None:
    host = next(one for one in documents if Path(one.source).name == "host.json")
    later = replace(host, time="2026-12-01T10:00:00+00:00")
    charts = [chart for section in sections_of([host, later]) for chart in section.charts]
    assert [one.name for one in charts[:4]] == [
        "capacity-time",
        "capacity-device",
        "capacity-time-2",
        "capacity-device-2",
    ]
    assert charts[2].basis.endswith("measured 2026-12-01 10:00 UTC")


def test_the_files_are_whole_and_stand_alone(report: Path, documents: list[Document]) -> None:
    names = {one.name for one in report.iterdir()}
    charts = [chart for section in sections_of(documents) for chart in section.charts]
    expected = {f"{one.name}.{kind}" for one in charts for kind in ("svg", "png")}
    expected |= {"index.html", "report.md", "results.json", "hit_rates.json"}
    assert names == expected | {f"generations.{kind}" for kind in ("svg", "png", "json")}
    for one in charts:
        assert (report / f"{one.name}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        root = ET.fromstring((report / f"{one.name}.svg").read_bytes())  # noqa: S314 - our own file
        words = " ".join((each.text or "").strip() for each in root.iter("{http://www.w3.org/2000/svg}text"))
        assert "synthetic" in words, one.name


def test_the_page_is_one_file_that_asks_for_nothing(report: Path) -> None:
    text = (report / "index.html").read_text()
    assert "<script" not in text
    assert re.findall(r"(?:src|href)=\"(?!#|data:,)[^\"]*", text) == []
    assert re.findall(r"url\((?!#)|@import", text) == []
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert f'http-equiv="Content-Security-Policy" content="{policy}"' in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_markup_in_names_and_reasons_is_text_everywhere(tmp_path: Path) -> None:
    write_page([document_of(spoiled(), "<img src=x>.json")], tmp_path)
    page, mail = (tmp_path / "index.html").read_text(), (tmp_path / "report.md").read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert str(tmp_path) not in page + mail
    assert page.count("&lt;script&gt;") > 10
    assert "\\<script\\>" in mail
    assert not re.search(r"(?<!\\)<(script|img)", mail)
    assert not [one for one in tmp_path.iterdir() if set("<>&'\"|$") & set(one.name)]
    for svg in tmp_path.glob("*.svg"):
        ET.fromstring(svg.read_bytes())  # noqa: S314 - our own file
    assert json.loads((tmp_path / "results.json").read_text())["documents"][0]["notes"] == [HOSTILE]


def test_markdown_has_the_verdicts_the_numbers_and_the_figures(report: Path, documents: list[Document]) -> None:
    text = (report / "report.md").read_text()
    counts = page_of(documents).counts
    assert f"{counts['supported']} supported, {counts['refuted']} refuted" in text
    assert "](reclaim-6.12.118\\_deb13" not in text
    for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
        assert (report / name).is_file()
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
    assert min(widths) >= 3
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block


def test_a_foreign_verdict_of_a_learned_bound_is_of_no_claim(documents: list[Document]) -> None:
    found = content("host")
    for one in found["results"]:
        for each in one["bounds"]:
            each["id"] = f"learned.{each['id']}"
    page = page_of([document_of(found, "")])
    assert [one.claim.id for one in page.rows if one.verdict == "refuted"] == []
    assert documents
