"""Figures of the native probe: a rate whose bytes the counters do not confirm has a reason and no value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_moetier.errors import HarnessError, InputError, MoetierError, UnsupportedHostError
from pytest_moetier.tiers.probe import HostProbe, parse_probe, probe_host

MIB = 1 << 20
SIZE = 256 * MIB
SECONDS = {"copy": 0.02, "direct": 0.2, "admitted": 0.25, "cached": 0.05}
Change = Callable[[dict[str, Any]], Mapping[str, Any]]


def events(change: Change = lambda _: {}, *, llc: int | None = 32 * MIB, rounds: int = 6) -> list[dict[str, Any]]:
    """Return what a probe of known rates says, with changes to its measurements."""
    found: list[dict[str, Any]] = [
        {"event": "start", "version": "1", "bytes": SIZE, "threads": 2, "repeats": rounds, "llc_bytes": llc}
    ]
    for at in range(rounds):
        for what, seconds in SECONDS.items():
            read = SIZE if what in {"direct", "admitted"} else 0
            one = {
                "event": "measured",
                "what": what,
                "round": at,
                "bytes": SIZE,
                "seconds": seconds * (1 + at / 100),
                "device_bytes": [read],
                "process_bytes": read,
                "resident_before_bytes": SIZE if what == "cached" else 0,
                "resident_after_bytes": SIZE if what in {"cached", "admitted"} else 0,
            }
            found.append({**one, **change(one)})
    return [*found, {"event": "end"}]


def parsed(change: Change = lambda _: {}, **more: Any) -> HostProbe:
    return parse_probe(events(change, **more), Path("/pool"), ("vda",))


def test_rates_are_medians_over_the_rounds_with_the_least_and_the_most() -> None:
    found = parsed()
    speed = found.figures["direct"].speed
    assert speed is not None
    assert (speed.low, speed.high) == (pytest.approx(SIZE / 0.21), pytest.approx(SIZE / 0.2))
    ratio, why = found.ratio("cached", "direct")
    assert why == ""
    assert ratio is not None
    assert (ratio.low, ratio.value, ratio.high) == (pytest.approx(4), pytest.approx(4), pytest.approx(4))
    rates = found.constants().rates
    assert set(rates) == {"dram_copy", "page_cache", "device_cold"}
    assert "256 MiB" not in rates["dram_copy"].source
    assert rates["device_cold"].source == (
        "moetier-probe 1 on this host: O_DIRECT reads, 268 MB in /pool (vda), 2 threads, median of 6 proved rounds"
    )


def test_admitting_reads_as_much_as_not_admitting() -> None:
    extra, _ = parsed().extra_reads()
    assert extra is not None
    assert (extra.low, extra.high) == (1.0, 1.0)
    extra, _ = parsed(lambda one: {"device_bytes": [SIZE + 2 * MIB]} if one["what"] == "admitted" else {}).extra_reads()
    assert extra is not None
    assert extra.value == pytest.approx(1 + 2 / 256)


@pytest.mark.parametrize(
    ("what", "change", "why"),
    [
        ("direct", {"device_bytes": [SIZE // 2]}, "the device counted 134 MB where 268 MB were read"),
        ("direct", {"device_bytes": [SIZE * 2]}, "the device counted 537 MB where 268 MB were read"),
        ("direct", {"device_bytes": [SIZE, SIZE]}, "the device counted 537 MB"),
        ("direct", {"device_bytes": [None]}, "the device's counter could not be read"),
        ("direct", {"device_bytes": []}, "the device's counter could not be read"),
        ("admitted", {"process_bytes": SIZE // 4}, "this process counted 67.1 MB where 268 MB were read"),
        ("cached", {"resident_before_bytes": SIZE // 2}, "134 MB of 268 MB were resident; expected all of it"),
        ("cached", {"resident_after_bytes": 0}, "0 B of 268 MB were resident"),
        ("cached", {"resident_after_bytes": None}, "no probe of residency works on this file"),
        ("cached", {"process_bytes": 8 * MIB}, "8.39 MB of 268 MB were read from the device"),
    ],
)
def test_a_rate_that_the_counters_do_not_confirm_is_not_given(what: str, change: dict[str, Any], why: str) -> None:
    found = parsed(lambda one: change if one["what"] == what else {})
    assert found.figures[what].speed is None
    assert found.figures[what].why.startswith("0 of 6 rounds proved, expected 5; the last not: ")
    assert why in found.figures[what].why
    others = set(SECONDS) - {what}
    assert all(found.figures[one].speed is not None for one in others)
    assert found.constants().unmeasured == {
        name: found.figures[what].why
        for name, one in {"page_cache": "cached", "device_cold": "direct"}.items()
        if one == what
    }


def test_a_process_counter_that_reads_nothing_is_no_witness() -> None:
    assert parsed(lambda _: {"process_bytes": 0}).figures["direct"].speed is not None
    assert parsed(lambda _: {"process_bytes": None}).figures["cached"].speed is not None


@pytest.mark.parametrize(("disturbed", "proved"), [(1, True), (2, False)])
def test_a_disturbed_round_is_left_out_and_five_must_remain(*, disturbed: int, proved: bool) -> None:
    noisy = lambda one: {"device_bytes": [9 * SIZE]} if one["what"] == "direct" and one["round"] < disturbed else {}  # noqa: E731
    found = parsed(noisy)
    assert (found.figures["direct"].speed is not None) is proved
    assert (found.ratio("cached", "direct")[0] is not None) is proved


@pytest.mark.parametrize(
    ("llc", "why"), [(SIZE, "fit the last-level cache of 268 MB"), (None, "the kernel does not say how large")]
)
def test_a_copy_that_may_stay_in_the_processor_s_cache_is_not_given(llc: int | None, why: str) -> None:
    found = parsed(llc=llc)
    assert why in found.figures["copy"].why
    assert found.ratio("cached", "copy") == (None, found.figures["copy"].why)
    assert found.ratio("cached", "direct")[0] is not None


def test_a_filesystem_without_o_direct_says_so() -> None:
    said = [one for one in events() if one.get("what") != "direct"]
    said.insert(1, {"event": "absent", "what": "direct", "why": "Invalid argument"})
    found = parse_probe(said, Path("/pool"), ("vda",))
    assert found.figures["direct"].why == "Invalid argument"
    assert found.figures["cached"].speed is not None


def test_without_a_device_the_reason_is_the_filesystem_s() -> None:
    found = parse_probe(events(), Path("/shm"), (), "a tmpfs has no device")
    assert found.figures["direct"].why == found.figures["admitted"].why == "a tmpfs has no device"
    assert found.figures["cached"].speed is not None


@pytest.mark.parametrize(
    "broken",
    [
        [],
        events()[:-1],
        events()[1:],
        [{"event": "start"}, {"event": "end"}],
        [*events()[:1], {"event": "measured", "what": "copy"}, {"event": "end"}],
        events(lambda _: {"seconds": "soon"}),
    ],
    ids=["nothing", "no end", "no start", "an empty start", "a measurement without its parts", "a time that is none"],
)
def test_lines_that_are_not_whole_are_refused(broken: list[dict[str, Any]]) -> None:
    with pytest.raises(HarnessError, match="moetier-probe"):
        parse_probe(broken, Path("/pool"), ("vda",))


def test_this_host_s_page_cache_is_proved_and_its_folder_left_empty(tmp_path: Path) -> None:
    found = probe_host(tmp_path, threads=2, repeats=5, size_bytes=64 * MIB)
    assert list(tmp_path.iterdir()) == []
    assert (found.bytes, found.threads, found.rounds) == (64 * MIB, 2, 5)
    assert len(found.passes) in {15, 20}
    cached = found.figures["cached"]
    assert cached.speed is not None or "resident" in cached.why
    for one in found.figures.values():
        assert (one.speed is None) == bool(one.why)


@pytest.mark.parametrize(
    ("status", "last", "kind"),
    [
        (2, '{"event": "error", "code": "usage", "message": "said"}', InputError),
        (1, '{"event": "error", "code": "space", "message": "said"}', InputError),
        (1, '{"event": "error", "code": "content", "message": "said"}', HarnessError),
        (77, '{"event": "error", "code": "unsupported", "message": "said"}', UnsupportedHostError),
        (9, '{"event": "error", "message": "sa', HarnessError),
    ],
)
def test_how_the_probe_ended_decides_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, last: str, kind: type[MoetierError]
) -> None:
    program = tmp_path / "moetier-probe"
    program.write_text(f"#!/bin/sh\necho '{last}'\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("MOETIER_BIN", str(tmp_path))
    with pytest.raises(kind, match="said" if status != 9 else "moetier-probe ended with status 9"):
        probe_host(None)
