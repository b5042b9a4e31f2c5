"""The metrics: what prometheus_client's own parser makes of the file, and what a port serves."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest
from planted import MIB, Planted
from prometheus_client.parser import text_string_to_metric_families

from pytest_moetier.errors import InputError, MoetierError, UnsupportedHostError
from pytest_moetier.host import blockdev
from pytest_moetier.host.cgroup import ScopeFiles
from pytest_moetier.watch.alarms import alarms_for, default_bounds, thresholds
from pytest_moetier.watch.nominal import MissShare
from pytest_moetier.watch.prometheus import Family, Totals, families, parse_listen, serve, text_of, write_text
from pytest_moetier.watch.sample import RECLAIMERS, Sampler, Watched

Values = Mapping[tuple[str, str], float]


@pytest.fixture
def found(planted: Planted, group: ScopeFiles) -> tuple[Family, ...]:
    """The metrics after two intervals of the planted host, of which one unseated its device's counter."""
    demand = MissShare((1.0, 0.0), 128 * MIB, 2 * MIB, "a line")
    sampler = Sampler(Watched(devices=blockdev.devices_named("sda"), scope=group, demand=demand))
    totals, alarms = Totals(), alarms_for(thresholds(default_bounds()), RECLAIMERS)
    planted.sectors = 8000
    planted.lay_out()
    sampler.sample()
    for by in ({"scan": 600, "steal": 100, "sectors": 2048, "rchar": 4 * MIB}, {"scan": 6, "sectors": -9000}):
        planted.move(**by)
        sample = sampler.sample()
        assert sample is not None
        totals.add(sample)
    return families(totals, sample, alarms, 0.25)


def parsed(text: str) -> Values:
    """Return every value by its name and labels."""
    return {
        (one.name, ",".join(f"{name}={label}" for name, label in one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_prometheus_parses_every_family_with_help_and_type(found: tuple[Family, ...]) -> None:
    seen = {one.name: one for one in text_string_to_metric_families(text_of(found))}
    assert len(seen) == len(found)
    assert all(one.documentation and one.samples for one in seen.values())
    assert all(
        one.type == ("counter" if f"{name}_total" in {x.name for x in found} else "gauge") for name, one in seen.items()
    )
    values = parsed(text_of(found))
    assert values["moetier_watch_reclaim_scanned_pages_total", "by=kswapd"] == 606
    assert values["moetier_watch_reclaim_stolen_pages_total", "by=kswapd"] == 100
    assert values["moetier_watch_delivered_bytes_total", ""] == 4 * MIB
    assert values["moetier_watch_nominal_bytes_total", ""] == 2 * MIB
    assert values["moetier_watch_locked_bytes", ""] == 81 * 1024
    assert values["moetier_watch_threshold", "alarm=device_over_nominal"] == 1.149
    assert values["moetier_watch_alarms_raised_total", "alarm=scan_per_steal,of=kswapd"] == 0
    assert values["moetier_watch_cpu_seconds_total", ""] == 0.25
    assert values["moetier_watch_samples_total", ""] == 2


def test_a_counter_that_started_anew_leaves_the_total_and_is_said_not_to_be_observed(found: tuple[Family, ...]) -> None:
    values = parsed(text_of(found))
    assert values["moetier_watch_device_read_bytes_total", ""] == MIB
    assert values["moetier_watch_observed", "figure=device"] == 0
    assert values["moetier_watch_observed", "figure=kswapd"] == 1


def test_labels_and_help_are_escaped() -> None:
    odd = 'a"b\\c\nd'
    (family,) = text_string_to_metric_families(text_of([Family("m", "gauge", "one\ntwo\\", (((("of", odd),), 1.5),))]))
    assert family.documentation == "one\ntwo\\"
    assert (family.samples[0].labels, family.samples[0].value) == ({"of": odd}, 1.5)


def test_the_file_is_whole_readable_by_others_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "moetier.prom"
    before = os.umask(0o077)
    try:
        write_text(path, "a 1\n")
        write_text(path, "a 2\n")
    finally:
        os.umask(before)
    assert path.read_text() == "a 2\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [one.name for one in tmp_path.iterdir()] == ["moetier.prom"]


def test_what_is_no_plain_file_is_refused_and_kept(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    link = tmp_path / "link.prom"
    link.symlink_to(target)
    for path, seen in ((link, "a symbolic link"), (tmp_path, "no plain file"), (Path("/dev/null"), "no plain file")):
        with pytest.raises(InputError, match=seen):
            write_text(path, "a 1\n")
    assert target.read_text() == "kept"
    with pytest.raises(InputError, match="No such file"):
        write_text(tmp_path / "gone" / "x.prom", "a 1\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_device_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "moetier.prom"
    write_text(path, "a 1\n")
    plain = os.open
    monkeypatch.setattr(os, "fchmod", lambda *_: None)  # of the device, which is everyone's
    monkeypatch.setattr(
        os, "open", lambda name, *rest: plain("/dev/full", os.O_WRONLY) if ".prom." in str(name) else plain(name, *rest)
    )
    with pytest.raises(InputError, match=os.strerror(errno.ENOSPC)):
        write_text(path, "a 2\n")
    assert path.read_text() == "a 1\n"


def test_a_port_serves_the_same_and_gives_it_back(found: tuple[Family, ...]) -> None:
    port = free_port()
    end = serve(("127.0.0.1", port), lambda: found)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            served = parsed(answer.read().decode())
    finally:
        end()
    wanted = parsed(text_of(found))
    assert {key: value for key, value in served.items() if not key[0].endswith("_created")} == wanted
    serve(("127.0.0.1", port), lambda: ())()


def test_a_port_in_use_is_one_message() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            MoetierError, match=rf"--listen 127\.0\.0\.1:{port}: Address already in use; expected a free"
        ):
            serve(("127.0.0.1", port), lambda: ())


def test_without_prometheus_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UnsupportedHostError, match=r"pip install 'pytest-moetier\[metrics\]'"):
        serve(("127.0.0.1", 1), lambda: ())


@pytest.mark.parametrize(
    ("text", "address"), [("127.0.0.1:9101", ("127.0.0.1", 9101)), ("[::1]:80", ("::1", 80)), ("here:1", ("here", 1))]
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert parse_listen(text) == address


@pytest.mark.parametrize("text", ["", "9101", ":9101", "host:", "host:0", "host:65536", "host:x", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no address; expected HOST:PORT"):
        parse_listen(text)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
