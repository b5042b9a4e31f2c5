"""Measured constants: the paper's as they are shipped, and what is refused of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_moetier.errors import InputError
from pytest_moetier.tiers.constants import (
    MEANINGS,
    Constants,
    Rate,
    Span,
    parse_constants,
    parse_rate,
    read_constants,
)

GOOD = """
format: moetier-tiers/1
name: mine
unified_memory: false
source: my notes
date: 2026-11-30
rates:
  hbm: 2 TB/s
"""


def test_the_paper_s_constants_are_shipped_with_their_source() -> None:
    found = read_constants("gh200")
    in_gb = {name: one.speed.value / 1e9 for name, one in found.rates.items()}
    assert in_gb == {
        "hbm": 2938,
        "link_file_backed": 327,
        "link_host_alloc": 330,
        "link_malloc": 23,
        "link_ceiling": 368.5,
        "stream_overlapped": 346,
        "device_cold": 27.0,
        "page_cache": 61.4,
    }
    assert found.unified is False
    assert {one.source for one in found.rates.values()} == {
        "paper section 8",
        "paper section 4, Method: the replay path, warm",
    }
    assert {one.date for one in found.rates.values()} == {"2026-08-12"}
    assert found.rates["hbm"].speed == Span(2938e9 * 0.992, 2938e9, pytest.approx(2938e9 * 1.008))
    assert found.unmeasured == {"dram_copy": "the paper gives none"}
    assert any("5.6%" in one and "5.8%" in one and "5.5%" in one for one in found.notes)


@pytest.mark.parametrize(
    ("text", "value"),
    [("27.0 GB/s", 27e9), ("27GB/s", 27e9), ("25 GiB/s", 25 * 2**30), ("150 MB / s", 150e6), ("1 B/s", 1.0)],
)
def test_a_rate_is_a_size_a_second(text: str, value: float) -> None:
    assert parse_rate(text, "x") == value


@pytest.mark.parametrize(
    "value",
    [
        *("27", 27.0, float("nan"), "nan GB/s", "inf GB/s", "-1 GB/s", "0 GB/s", "1e3 GB/s", "27 GB", "27 Gb/s"),
        *("27 GBps", "27 GB/min", "27 G/s", "/s", "", None, True, ["27 GB/s"], {}),
    ],
)
def test_what_is_no_rate_is_refused_with_one_that_is(value: object) -> None:
    with pytest.raises(InputError, match=r"with its unit, such as 27\.0 GB/s") as caught:
        parse_rate(value, "mine.yaml: hbm")
    assert caught.value.seen == f"mine.yaml: hbm is {value!r}"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("moetier-tiers/1", "moetier-tiers/2", "format is 'moetier-tiers/2'; expected format: moetier-tiers/1"),
        ("name: mine", "nam: mine", "unknown nam;"),
        ("name: mine", "", "no name;"),
        ("name: mine", "name: 7", "name is 7; expected a text"),
        ("source: my notes", "", "no source;"),
        ("date: 2026-11-30", "", "no date;"),
        ("date: 2026-11-30", "date: ''", "hbm: date is ''"),
        ("date: 2026-11-30", "date: 7", "hbm: date is 7"),
        ("unified_memory: false", "", "no unified_memory;"),
        ("unified_memory: false", "unified_memory: no idea", "unified_memory is 'no idea'; expected true or false"),
        ("hbm: 2 TB/s", "", "rates is None"),
        ("hbm: 2 TB/s", "vram: 2 TB/s", "vram is no rate of ours; expected one of hbm"),
        ("hbm: 2 TB/s", "hbm: .nan", "hbm is nan"),
        ("hbm: 2 TB/s", "hbm: -2 TB/s", "hbm is '-2 TB/s'"),
        ("hbm: 2 TB/s", "hbm: {source: x}", "hbm is None"),
        ("hbm: 2 TB/s", "hbm: {rate: 2 TB/s, unit: x}", "hbm: unknown unit"),
        ("hbm: 2 TB/s", "hbm: {rate: 2 TB/s, spread: 3}", "hbm: spread is 3"),
        ("hbm: 2 TB/s", "hbm: {rate: 2 TB/s, spread: 100%}", "hbm: spread is '100%'"),
        ("hbm: 2 TB/s", "hbm: {absent: ''}", "hbm: absent is ''; expected a text"),
        ("hbm: 2 TB/s", "hbm: {absent: gone, rate: 2 TB/s}", "hbm is absent and has 1 more keys"),
        ("rates:", "notes: x\nrates:", "notes is 'x'; expected a list of texts"),
        ("rates:", "notes: [{}]\nrates:", "a note is {}; expected a text"),
        ("rates:", "\trates:", "not YAML"),
        (GOOD, "[1]", "format is 'list'"),
        (GOOD, "", "format is 'NoneType'"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_place(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError) as caught:
        parse_constants(GOOD.replace(old, new), "mine.yaml")
    assert str(caught.value).startswith("mine.yaml: ")
    assert said in str(caught.value)
    assert "moetier tiers --constants gh200" in str(caught.value)


def test_what_a_file_leaves_out_is_unmeasured_and_what_it_denies_is_absent() -> None:
    found = parse_constants(GOOD.replace("hbm: 2 TB/s", "hbm: {absent: no accelerator}"), "x")
    assert found.absent == {"hbm": "no accelerator"}
    assert found.unmeasured == {name: "not in the file" for name in MEANINGS if name != "hbm"}
    assert found.lacking("hbm", "device_cold") == "hbm: no accelerator"
    assert found.lacking("device_cold") == "device_cold: not in the file"


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), (b"\xff\xfe\x00", "is no text"), (b"format: moetier-tiers/1", "no date")],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        read_constants(str(path))
    assert str(path) in str(caught.value)


def test_a_name_that_is_not_shipped_is_told_which_are() -> None:
    with pytest.raises(InputError, match="expected a file, or gh200"):
        read_constants("h100")


def test_what_was_measured_stands_over_what_was_given() -> None:
    def rate(name: str, value: float) -> Rate:
        return Rate(name, Span(value, value, value), "s", "d")

    measured = Constants(
        "here", "a", None, {"hbm": rate("hbm", 1.0)}, {"link_malloc": "gone"}, {"device_cold": "noisy"}
    )
    rates = {name: rate(name, 2.0) for name in ("hbm", "link_malloc", "page_cache")}
    unmeasured = {"device_cold": "not in the file", "link_ceiling": "?"}
    both = measured.over(Constants("file", "b", unified=True, rates=rates, unmeasured=unmeasured))
    assert {name: one.speed.value for name, one in both.rates.items()} == {"hbm": 1.0, "page_cache": 2.0}
    assert both.unified is True
    assert both.absent == {"link_malloc": "gone"}
    assert both.unmeasured == {"device_cold": "noisy; not in the file", "link_ceiling": "?"}
