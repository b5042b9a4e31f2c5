"""What a watch shows: JSON lines, or a live table on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from pytest_moetier.units import format_bytes, format_seconds
from pytest_moetier.watch.alarms import ABOUT, ABOVE, ALARM, OK, Alarm
from pytest_moetier.watch.remedies import WHAT, Remedy
from pytest_moetier.watch.sample import Sample

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_STYLES = {ALARM: "bold red", ABOVE: "yellow", OK: "green"}
_MOST_NOTES = 8


class View(Protocol):
    """Where a watch's events go."""

    def sample(self, sample: Sample, alarms: Sequence[Alarm]) -> None:
        """Show one interval."""

    def alarm(self, alarm: Alarm, change: str, remedies: Sequence[Remedy]) -> None:
        """Show that an alarm was raised (with its remedies), cleared or lost."""

    def note(self, text: str) -> None:
        """Show what has to be said once."""

    def summary(self, content: dict[str, Any]) -> None:
        """Show how it ended."""


class JsonLines:
    """One JSON object a line, flushed; ``event`` is sample, alarm, note or summary."""

    def sample(self, sample: Sample, alarms: Sequence[Alarm]) -> None:
        """Show one interval."""
        _line("sample", sample_json(sample, alarms))

    def alarm(self, alarm: Alarm, change: str, remedies: Sequence[Remedy]) -> None:
        """Show that an alarm was raised (with its remedies), cleared or lost."""
        _line("alarm", alarm_json(alarm, change, remedies))

    def note(self, text: str) -> None:
        """Show what has to be said once."""
        _line("note", {"text": text})

    def summary(self, content: dict[str, Any]) -> None:
        """Show how it ended."""
        _line("summary", content)


def _line(event: str, content: dict[str, Any]) -> None:
    if sys.stdout is not None:
        sys.stdout.write(json.dumps({"event": event, **content}, allow_nan=False) + "\n")
        sys.stdout.flush()


def sample_json(sample: Sample, alarms: Sequence[Alarm]) -> dict[str, Any]:
    """Return an interval and the alarms' states after it; null is what was not observed, and ``unobserved`` why."""
    return {
        "time": datetime.fromtimestamp(sample.time, UTC).isoformat(timespec="milliseconds"),
        "seconds": sample.seconds,
        "reclaimed_pages": {
            name: {"scan": one.scan, "steal": one.steal, "scan_per_steal": _ratio(one.scan, one.steal)}
            for name, one in sample.reclaimed.items()
        },
        "device_read_bytes": sample.device_bytes,
        "delivered_bytes": sample.delivered_bytes,
        "iterations": sample.iterations,
        "readers_device_bytes": sample.readers_bytes,
        "nominal_bytes": sample.nominal_bytes,
        "device_over_nominal": _ratio(sample.own_bytes, sample.nominal_bytes),
        "psi_some_share": sample.psi_some_share,
        "psi_full_share": sample.psi_full_share,
        "locked_bytes": sample.locked_bytes,
        "locked_share": sample.locked_share,
        "memory_bytes": sample.memory_bytes,
        "available_bytes": sample.available_bytes,
        "resident_bytes": sample.resident_bytes,
        "scope_bytes": sample.scope_bytes,
        "limit_bytes": sample.limit_bytes,
        "alarms": [_state_json(one) for one in alarms],
        "unobserved": dict(sample.unobserved),
    }


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _state_json(alarm: Alarm) -> dict[str, Any]:
    return {"alarm": alarm.threshold.name, "of": alarm.of, "state": alarm.state, "value": alarm.value}


def alarm_json(alarm: Alarm, change: str, remedies: Sequence[Remedy]) -> dict[str, Any]:
    """Return what there is to know of an alarm that changed."""
    return {
        **_state_json(alarm),
        "change": change,
        "healthy_up_to": alarm.threshold.limit,
        "raised_above": alarm.threshold.raises,
        "window_seconds": alarm.length,
        "source": alarm.threshold.source,
        "about": ABOUT[alarm.threshold.name],
        "remedies": [
            {
                "remedy": one.name,
                "what": WHAT[one.name],
                "applies": one.applies,
                "why": one.why,
                "commands": list(one.commands),
            }
            for one in remedies
        ],
    }


def alarm_text(alarm: Alarm, change: str, remedies: Sequence[Remedy]) -> list[str]:
    """Return the same in lines for people."""
    value = "nothing" if alarm.value is None else f"{alarm.value:.3g}"
    name = alarm.threshold.name.replace("_per_", "/").replace("_over_", "/")
    head = (
        f"alarm {change}: {name} of {alarm.of} is {value} over {format_seconds(alarm.length)}; healthy is at most"
        f" {alarm.threshold.limit:g}, the alarm is raised above {alarm.threshold.raises:g} ({alarm.threshold.source})"
    )
    lines = [head, f"  {ABOUT[alarm.threshold.name]}"] if remedies else [head]
    for at, one in enumerate(remedies, 1):
        lines.append(f"  {at}. {WHAT[one.name]}: {'' if one.applies else 'does not apply here: '}{one.why}")
        lines += [f"       # {command}" for command in one.commands]
    return lines


class LiveTable:
    """A table that is drawn over at each sample, with what was said below it."""

    def __init__(self, live: Live) -> None:
        """Draw on ``live``."""
        import rich.table  # noqa: PLC0415, F401 - now, and not within the first sample

        self._live = live
        self._said: list[str] = []
        self._raised: dict[tuple[str, str], list[str]] = {}

    def sample(self, sample: Sample, alarms: Sequence[Alarm]) -> None:
        """Show one interval."""
        self._live.update(self._drawn(sample, alarms), refresh=True)

    def alarm(self, alarm: Alarm, change: str, remedies: Sequence[Remedy]) -> None:
        """Show that an alarm was raised (with its remedies), cleared or lost."""
        key, lines = (alarm.threshold.name, alarm.of), alarm_text(alarm, change, remedies)
        if remedies:
            self._raised[key] = lines
        else:
            self._raised.pop(key, None)
            self.note(lines[0])

    def note(self, text: str) -> None:
        """Show what has to be said once."""
        self._said = [*self._said, text][-_MOST_NOTES:]

    def summary(self, content: dict[str, Any]) -> None:
        """Show how it ended."""
        self._live.stop()
        share, seconds = content["cpu_share"], format_seconds(content["seconds"])
        self._live.console.print(
            f"{content['samples']} samples in {seconds}, alarms raised {content['alarms_raised']} times; watching took"
            f" {content['cpu_seconds']:.2f} s of a processor" + (f" ({share:.2%} of one)" if share is not None else ""),
            highlight=False,
        )

    def _drawn(self, sample: Sample, alarms: Sequence[Alarm]) -> RenderableType:
        from rich.console import Group  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(title=f"moetier watch {datetime.fromtimestamp(sample.time):%H:%M:%S}", title_justify="left")  # noqa: DTZ006 - the wall clock of the terminal's user
        for name in ("what", "this interval", "window", "state"):
            table.add_column(name, justify="left" if name in {"what", "state"} else "right")
        states = {(one.threshold.name, one.of): one for one in alarms}
        for name, one in sample.reclaimed.items():
            alarm = states["scan_per_steal", name]
            cells = (f"{name} scan / steal", f"{_shown(one.scan)} / {_shown(one.steal)} pages")
            table.add_row(*cells, _figure(alarm.value), Text(alarm.state, style=_STYLES.get(alarm.state, "dim")))
        device = states["device_over_nominal", "device"]
        pair = f"{_size(sample.own_bytes)} / {_size(sample.nominal_bytes)}"
        state = Text(device.state, style=_STYLES.get(device.state, "dim"))
        table.add_row("device / nominal", pair, _figure(device.value), state)
        for words, value in _plain_rows(sample):
            table.add_row(words, value, "", "")
        lines = [Text(line, style="dim") for line in self._said]
        raised = [Text(line, style="red") for found in self._raised.values() for line in found]
        return Group(table, *raised, *lines)


def _plain_rows(sample: Sample) -> list[tuple[str, str]]:
    locked, share = _size(sample.locked_bytes), sample.locked_share
    pressure = (sample.psi_some_share, sample.psi_full_share)
    return [
        ("delivered", _size(sample.delivered_bytes)),
        ("device, others' reads included", _size(sample.device_bytes)),
        ("pool resident", _size(sample.resident_bytes)),
        ("scope / limit", f"{_size(sample.scope_bytes)} / {_size(sample.limit_bytes)}"),
        ("locked", locked if share is None else f"{locked} ({share:.1%} of RAM)"),
        ("memory pressure some / full", " / ".join("-" if one is None else f"{one:.1%}" for one in pressure)),
    ]


def _shown(value: int | None) -> str:
    return "-" if value is None else f"{value}"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _size(value: float | None) -> str:
    return "-" if value is None else format_bytes(value)
