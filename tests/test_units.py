"""Sizes, seconds and capacities: what users may write, and the same thing read back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_moetier.errors import InputError
from pytest_moetier.units import Capacity, format_bytes, format_seconds, parse_bytes

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64GB", 64_000_000_000),
        ("64GiB", 68_719_476_736),
        ("1.5GiB", 1_610_612_736),
        ("4K", 4096),
        ("2M", 2_097_152),
        ("4096", 4096),
        (" 17.5 MB ", 17_500_000),
        ("1tib", 1_099_511_627_776),
    ],
)
def test_a_size_is_read_in_its_own_unit(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1e9", "64GiBB", "0", "0.1B", "5%", "1,5GB", "nan", "inf", "0x10"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match=r"; expected a size such as 64GB, 1\.5GiB or 512MiB"):
        parse_bytes(text)


@given(number=st.integers(1, 10**6), unit=st.sampled_from(sorted(UNITS)))
def test_whole_numbers_of_every_unit_are_exact(number: int, unit: str) -> None:
    assert parse_bytes(f"{number}{unit}") == number * UNITS[unit]
    assert parse_bytes(f" {number} {unit.lower()}") == number * UNITS[unit]


@example(size=1_079_110_533_121, binary=True)
@given(size=st.integers(1, 10**15), binary=st.booleans())
def test_a_printed_size_reads_back_within_its_three_digits(size: int, binary: bool) -> None:  # noqa: FBT001
    assert parse_bytes(format_bytes(size, binary=binary)) == pytest.approx(size, rel=0.006)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (3_758_096_384, "3.76 GB"),
        (2.5e15, "2500 TB"),
        (2.5e16, "25000 TB"),
        (999_600, "1000 KB"),
    ],
)
def test_sizes_are_printed_in_the_largest_unit_that_fits(size: float, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.00321, "3.21 ms"), (1, "1 s"), (99.4, "99.4 s"), (100, "1 min 40 s"), (3600, "60 min 0 s")]
)
def test_seconds_are_printed_in_ms_seconds_and_minutes(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("text", "id_", "size"),
    [
        ("4.4%", "C4.4pct", 44),
        ("64GB", "C64GB", 64 * 10**9),
        (" 1.5 GiB ", "C1.5GiB", 1_610_612_736),
        ("100%", "C100pct", 1000),
    ],
)
def test_a_capacity_has_an_id_and_a_size_in_a_pool(text: str, id_: str, size: int) -> None:
    capacity = Capacity.parse(text)
    assert capacity.id == id_
    assert capacity.resolve(1000) == size


@pytest.mark.parametrize("text", ["0%", "-1%", "100.1%", "%", "nan%", "five%", "5q", "", "1e400%"])
def test_a_capacity_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"capacity .*; expected "):
        Capacity.parse(text)


@given(tenths=st.integers(1, 1000), pool=st.integers(1, 10**13))
def test_a_share_resolves_to_the_nearest_byte_of_the_pool(tenths: int, pool: int) -> None:
    capacity = Capacity.parse(f"{tenths / 10}%")
    assert abs(capacity.resolve(pool) - pool * tenths / 1000) <= 1 + pool * 1e-15
    assert Capacity.parse(capacity.text) == capacity


@given(text=st.text(max_size=12))
def test_any_text_is_a_capacity_or_an_input_error(text: str) -> None:
    try:
        capacity = Capacity.parse(text)
    except InputError:
        return
    assert capacity.resolve(10**9) >= 0
    assert "%" not in capacity.id
    assert "=" not in capacity.id
