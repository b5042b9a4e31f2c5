"""The same figures for Prometheus: a file for the textfile collector, or a port (the paper's export of its pipeline).

Counters add up what was observed since the watch began: they never fall, whatever the kernel's own counters do.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pytest_moetier.errors import InputError, MoetierError, UnsupportedHostError
from pytest_moetier.watch.alarms import INDICATORS, UNOBSERVED, Alarm
from pytest_moetier.watch.sample import RECLAIMERS, Sample

PREFIX = "moetier_watch_"
COUNTER, GAUGE = "counter", "gauge"
_FILE_MODE = 0o644  # another user's node_exporter reads it
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric and its values.

    Attributes:
        name: with ``_total`` for a counter.
        kind: counter or gauge.
        help: one sentence, with the unit.
        values: (labels, value).
    """

    name: str
    kind: str
    help: str
    values: tuple[tuple[Labels, float], ...]


@dataclass(slots=True)
class Totals:
    """What was observed since the watch began, added up; a metric without any value is left out."""

    samples: int = 0
    scanned: dict[str, float] = field(default_factory=dict)
    stolen: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, float] = field(default_factory=dict)
    stalled: dict[str, float] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        """Take one interval."""
        self.samples += 1
        for name, one in sample.reclaimed.items():
            _more(self.scanned, name, one.scan)
            _more(self.stolen, name, one.steal)
        _more(self.bytes, "device_read", sample.device_bytes)
        _more(self.bytes, "delivered", sample.delivered_bytes)
        _more(self.bytes, "nominal", sample.nominal_bytes)
        _more(self.bytes, "readers_device_read", sample.readers_bytes)
        for kind, share in (("some", sample.psi_some_share), ("full", sample.psi_full_share)):
            _more(self.stalled, kind, None if share is None else share * sample.seconds)


def _more(totals: dict[str, float], name: str, value: float | None) -> None:
    if value is not None:
        totals[name] = totals.get(name, 0) + value


_BYTES = {
    "device_read": "Bytes that the devices read.",
    "delivered": "Bytes that the readers' read calls were given.",
    "nominal": "Bytes that exact LRU of what is resident would have missed.",
    "readers_device_read": "Bytes that the readers themselves had the devices read.",
}
_OBSERVABLE = (*RECLAIMERS, "device", "delivered", "nominal", "resident", "psi", "locked")


def families(totals: Totals, sample: Sample, alarms: Sequence[Alarm], cpu_seconds: float) -> tuple[Family, ...]:
    """Return every metric that has a value now."""
    found = [
        _family("reclaim_scanned_pages_total", COUNTER, "Pages that reclaim looked at.", _by("by", totals.scanned)),
        _family("reclaim_stolen_pages_total", COUNTER, "Pages that reclaim took.", _by("by", totals.stolen)),
        *(_family(f"{name}_bytes_total", COUNTER, _BYTES[name], [((), one)]) for name, one in totals.bytes.items()),
        _family(
            "memory_pressure_seconds_total",
            COUNTER,
            "Seconds that some task, or all of them, waited for memory (PSI).",
            _by("kind", totals.stalled),
        ),
        *_gauges(sample),
        *_indicators(alarms),
        _family(
            "observed",
            GAUGE,
            "Whether a figure could be observed in the last interval.",
            [((("figure", one),), float(one not in sample.unobserved)) for one in _OBSERVABLE],
        ),
        _family("samples_total", COUNTER, "Intervals that were observed.", [((), totals.samples)]),
        _family("last_sample_timestamp_seconds", GAUGE, "When the last interval ended.", [((), sample.time)]),
        _family("cpu_seconds_total", COUNTER, "Processor time that watching has taken.", [((), cpu_seconds)]),
    ]
    return tuple(one for one in found if one.values)


def _family(name: str, kind: str, words: str, values: Iterable[tuple[Labels, float]]) -> Family:
    return Family(PREFIX + name, kind, words, tuple(values))


def _by(label: str, values: Mapping[str, float]) -> list[tuple[Labels, float]]:
    return [(((label, name),), value) for name, value in values.items()]


def _gauges(sample: Sample) -> Iterator[Family]:
    for name, words, value in (
        ("locked_bytes", "Locked memory of the host.", sample.locked_bytes),
        ("memory_bytes", "RAM of the host.", sample.memory_bytes),
        ("available_bytes", "Memory that is available (MemAvailable).", sample.available_bytes),
        (
            "resident_bytes",
            "Bytes of the pool, or of the scope's files, in the page cache.",
            sample.resident_bytes,
        ),
        ("scope_bytes", "Bytes that the scope is charged with.", sample.scope_bytes),
        ("scope_limit_bytes", "The scope's limit.", sample.limit_bytes),
    ):
        if value is not None:
            yield _family(name, GAUGE, words, [((), value)])


def _indicators(alarms: Sequence[Alarm]) -> Iterator[Family]:
    """Yield the indicators over their window, whether each is raised, how often it was, and where it is raised."""
    words = {
        "scan_per_steal": "Pages scanned for each that was stolen, over the window.",
        "device_over_nominal": "Bytes read over nominal misses, over the window.",
    }
    for name in INDICATORS:
        mine = [one for one in alarms if one.threshold.name == name]
        shown = [((("of", one.of),), one.value) for one in mine if one.value is not None]
        yield _family(name, GAUGE, words[name], [(labels, value) for labels, value in shown])
    labelled = [((("alarm", one.threshold.name), ("of", one.of)), one) for one in alarms]
    known = [(labels, float(one.raised)) for labels, one in labelled if one.state != UNOBSERVED]
    yield _family("alarm", GAUGE, "1 while the alarm is raised; absent where it cannot be judged.", known)
    times = [(labels, float(one.times)) for labels, one in labelled]
    yield _family("alarms_raised_total", COUNTER, "How often the alarm was raised.", times)
    raises = {one.threshold.name: one.threshold.raises for one in alarms}
    yield _family("threshold", GAUGE, "Above it the alarm is raised.", _by("alarm", raises))


def text_of(found: Iterable[Family]) -> str:
    """Return metrics in Prometheus' text format (0.0.4)."""
    lines = []
    for one in found:
        lines += [f"# HELP {one.name} {_escaped(one.help, quoted=False)}", f"# TYPE {one.name} {one.kind}"]
        for labels, value in one.values:
            inner = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
            lines.append(f"{one.name}{{{inner}}} {_number(value)}" if inner else f"{one.name} {_number(value)}")
    return "\n".join([*lines, ""])


def _escaped(text: str, *, quoted: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text


def _number(value: float) -> str:
    if math.isnan(value) or math.isinf(value):
        return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}[str(value)]
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by a file of mode 0644 that holds ``text``: whole or not at all, and never through a link.

    The name of the new file does not end as a collector's files do until it is whole.

    Raises:
        InputError: ``path`` is a link or no plain file, or cannot be written; the message says why.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "a symbolic link" if path.is_symlink() else "no plain file"
        raise InputError(f"--prometheus {path} is {kind}", "a plain file, or none yet", "name another")
    new = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with os.fdopen(os.open(new, _FLAGS, _FILE_MODE), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), _FILE_MODE)  # whatever the umask
            file.write(text)
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise InputError(
            f"--prometheus {path} cannot be written: {error.strerror}",
            "a folder that may be written to, with room in it",
            f"ls -ld {path.parent}; df {path.parent}",
        ) from error


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` (an IPv6 address in brackets).

    Raises:
        InputError: it is something else.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise InputError(f"--listen {text!r} is no address", "HOST:PORT", "--listen 127.0.0.1:9101")
    return host, int(port)


def serve(address: tuple[str, int], current: Callable[[], Iterable[Family]]) -> Callable[[], None]:
    """Serve what ``current`` returns at http://HOST:PORT/metrics; return what ends it.

    Raises:
        UnsupportedHostError: prometheus_client is not installed.
        MoetierError: the port is taken, or the address is not this host's.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedHostError(
            "--listen serves by prometheus_client, which is not installed",
            "the extra `metrics`",
            "pip install 'pytest-moetier[metrics]', or --prometheus FILE, which needs nothing",
        ) from error

    class Collector:
        """What prometheus_client asks at each scrape."""

        def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
            """Yield the metrics of the last sample."""
            for one in current():
                kind = CounterMetricFamily if one.kind == COUNTER else GaugeMetricFamily
                names = [name for name, _ in one.values[0][0]]
                made = kind(one.name.removesuffix("_total"), one.help, labels=names)
                for labels, value in one.values:
                    made.add_metric([text for _, text in labels], value)
                yield made

    registry = CollectorRegistry()
    registry.register(Collector())
    host, port = address
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise MoetierError(
            f"--listen {host}:{port}: {error.strerror or error}",
            "a free port of this host",
            f"name another, or see who has it: ss -ltnp 'sport = :{port}'",
        ) from error

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end
