"""When an alarm is raised, and when it is not: thresholds, window and hysteresis."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_moetier.errors import InputError
from pytest_moetier.watch.alarms import (
    ABOVE,
    ALARM,
    CLEARED,
    IDLE,
    LOST,
    OK,
    RAISED,
    UNOBSERVED,
    WAITING,
    Alarm,
    Threshold,
    default_bounds,
    thresholds,
)

MIB = 1 << 20
DEVICE = Threshold("device_over_nominal", limit=1.0, raises=1.149, source="paper")
REVERSED = """bounds:
- {id: guidance.scan_per_steal, value: a, max: 2, source: x}
- {id: guidance.scan_per_steal_raised, value: b, min: 1, source: x}
"""
SCAN = Threshold("scan_per_steal", limit=2.0, raises=2.0, source="paper")


def device() -> Alarm:
    return Alarm(DEVICE, "device", least=16 * MIB, seconds=10.0)


def fed(alarm: Alarm, *pairs: tuple[float | None, float | None]) -> list[str]:
    """Return what changed after each second of (read, nominal) MiB."""
    sized = [tuple(None if one is None else one * MIB for one in pair) for pair in pairs]
    return [alarm.add(1.0, *pair) for pair in sized]


def test_the_shipped_thresholds_are_the_papers() -> None:
    found = thresholds(default_bounds())
    assert (found["scan_per_steal"].limit, found["scan_per_steal"].raises) == (2.0, 2.0)
    assert (found["device_over_nominal"].limit, found["device_over_nominal"].raises) == (1.0, 1.149)
    assert all("paper section 5, operator guidance" in one.source for one in found.values())


@pytest.mark.parametrize(
    ("value", "raised", "state"),
    [
        (0.9, False, OK),
        (1.0, False, OK),
        (1.1, False, ABOVE),
        (1.149, False, ABOVE),
        (1.15, False, ALARM),
        (1.1, True, ALARM),
        (1.0, True, OK),
        (None, True, UNOBSERVED),
        (float("nan"), False, UNOBSERVED),
    ],
)
def test_a_value_is_healthy_above_or_alarming_and_an_alarm_stays_until_healthy(
    value: float | None,
    raised: bool,  # noqa: FBT001 - a parameter of the test
    state: str,
) -> None:
    assert DEVICE.state(value, raised=raised) == state


def test_the_alarm_is_raised_once_five_intervals_are_beyond_and_says_so_once() -> None:
    alarm = device()
    assert fed(alarm, *[(60, 40)] * 7) == ["", "", "", "", RAISED, "", ""]
    assert (alarm.value, alarm.state, alarm.times) == (1.5, ALARM, 1)


def test_fewer_intervals_wait_for_more() -> None:
    alarm = device()
    fed(alarm, *[(60, 40)] * 4)
    assert (alarm.state, alarm.value) == (WAITING, None)


def test_one_burst_is_no_alarm_however_large() -> None:
    alarm = device()
    assert fed(alarm, *[(40, 40)] * 4, (4000, 40), *[(40, 40)] * 5) == [""] * 10
    assert alarm.value == pytest.approx(4360 / 400)
    assert alarm.state == ABOVE


def test_a_burst_leaves_the_window_after_its_seconds() -> None:
    alarm = device()
    fed(alarm, *[(4000, 40)] * 2, *[(40, 40)] * 9)
    assert alarm.value == pytest.approx(4360 / 400)
    fed(alarm, (40, 40))
    assert alarm.value == 1.0


def test_intervals_in_which_nothing_happened_do_not_hide_an_alarm() -> None:
    alarm = device()
    assert RAISED in fed(alarm, *[(0, 0), (0, 0), (60, 40)] * 3)
    assert alarm.value == 1.5


def test_what_is_alike_within_the_papers_own_band_raises_none() -> None:
    alarm = device()
    assert fed(alarm, *[(44, 40)] * 12) == [""] * 12
    assert (alarm.state, alarm.value) == (ABOVE, 1.1)


def test_an_alarm_is_over_only_when_the_window_is_healthy_again() -> None:
    alarm = device()
    fed(alarm, *[(60, 40)] * 10)
    assert fed(alarm, *[(44, 40)] * 12) == [""] * 12  # still above what is healthy: no flapping about 1.149
    changes = fed(alarm, *[(36, 40)] * 10)
    assert changes.count(CLEARED) == 1
    assert (alarm.state, alarm.times) == (OK, 1)
    assert RAISED in fed(alarm, *[(80, 40)] * 10)
    assert alarm.times == 2


def test_an_alarm_whose_counter_vanished_is_lost_and_not_kept() -> None:
    alarm = device()
    fed(alarm, *[(60, 40)] * 10)
    changes = fed(alarm, *[(None, 40)] * 10)
    assert changes.count(LOST) == 1
    assert (alarm.state, alarm.value, alarm.raised) == (UNOBSERVED, None, False)


def test_one_unobserved_interval_skips_that_interval_alone() -> None:
    alarm = device()
    assert fed(alarm, *[(60, 40)] * 3, (None, None), *[(60, 40)] * 2)[-1] == RAISED
    assert alarm.value == 1.5


def test_a_handful_of_pages_has_no_ratio() -> None:
    alarm = Alarm(SCAN, "kswapd", least=4096, seconds=10.0)
    assert [alarm.add(1.0, 9, 1) for _ in range(8)] == [""] * 8
    assert (alarm.state, alarm.value) == (IDLE, None)
    assert alarm.add(1.0, 4096, 0) == RAISED  # of all that was scanned hardly anything was taken
    assert alarm.value == pytest.approx((8 * 9 + 4096 - 9 * 0) / 8)


def test_a_window_lasts_until_it_has_the_iterations_over_which_demand_evens_out() -> None:
    alarm = Alarm(DEVICE, "device", least=16 * MIB, seconds=10.0, iterations=30)
    pair = (60 * MIB, 40 * MIB)
    assert [alarm.add(1.0, *pair, iterations=2) for _ in range(14)] == [""] * 14
    assert (alarm.state, alarm.value) == (WAITING, None)
    assert alarm.add(1.0, *pair, iterations=2) == RAISED
    changes = [alarm.add(1.0, 36 * MIB, 40 * MIB, iterations=2) for _ in range(15)]
    assert changes.count(CLEARED) == 1
    # Fifteen seconds are looked back on, and not the ten that a faster engine would need.
    assert alarm.value == pytest.approx(0.9)
    assert alarm.add(1.0, 636 * MIB, 40 * MIB, iterations=2) == ""
    assert alarm.value == pytest.approx((14 * 36 + 636) / (15 * 40))


def test_an_engine_too_slow_for_any_window_is_idle() -> None:
    alarm = Alarm(DEVICE, "device", least=16 * MIB, seconds=10.0, iterations=30)
    changes = [alarm.add(60.0, 60 * MIB, 40 * MIB, iterations=1) for _ in range(30)]
    assert (changes, alarm.state, alarm.value) == ([""] * 30, IDLE, None)


def test_a_reader_that_stops_clears_its_alarm_however_long_the_window() -> None:
    alarm = Alarm(DEVICE, "device", least=16 * MIB, seconds=10.0, iterations=30)
    [alarm.add(1.0, 60 * MIB, 40 * MIB, iterations=1) for _ in range(40)]
    assert alarm.raised
    changes = [alarm.add(1.0, 0, 0, iterations=0) for _ in range(12)]
    assert changes.count(CLEARED) == 1
    assert alarm.state == IDLE


def test_a_slow_watch_still_looks_back_on_five_intervals() -> None:
    alarm = device()
    assert [alarm.add(60.0, 60 * MIB, 40 * MIB) for _ in range(6)] == ["", "", "", "", RAISED, ""]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("bounds: []", "has no thresholds of scan_per_steal"),
        ("bounds: [{id: guidance.scan_per_steal, value: a, max: .nan, source: x}]", "nan is no number"),
        (
            REVERSED,
            "healthy up to 2 and alarms from 1",
        ),
    ],
)
def test_bounds_without_usable_thresholds_are_refused(tmp_path: Path, text: str, seen: str) -> None:
    path = tmp_path / "bounds.yaml"
    path.write_text(f"format: moetier-bounds/1\n{text}\n")
    with pytest.raises(InputError, match=seen):
        thresholds(path)


def test_bounds_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.yaml has no thresholds"):
        thresholds(tmp_path / "gone.yaml")
