"""Measured constants of a machine's tiers, each with its source and date (paper section 8).

They come from a file of the format ``moetier-tiers/1`` or from probes. Nothing is assumed from a model's name: what was
not measured is unmeasured, and what does not exist on the machine is said to be absent, with the reason.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_moetier.errors import InputError
from pytest_moetier.span import Span
from pytest_moetier.units import parse_bytes

FORMAT = "moetier-tiers/1"
MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "hbm": "the accelerator reads its own memory",
        "link_file_backed": "the accelerator reads file-backed pages of DRAM over the link",
        "link_host_alloc": "the accelerator reads DRAM that its driver allocated",
        "link_malloc": "the accelerator reads DRAM that nobody registered",
        "link_ceiling": "the most that the link carries",
        "stream_overlapped": "a copy to the accelerator, computing meanwhile",
        "device_cold": "cold reads from the pool's device",
        "page_cache": "reads of a file that the page cache holds",
        "dram_copy": "memory copied to memory",
    }
)
"""Every rate by name, and what it is the rate of."""
_KEYS = {"format", "name", "machine", "unified_memory", "source", "date", "spread", "rates", "notes"}
_RATE_KEYS = {"rate", "source", "date", "spread"}
_LACKING = {"absent", "unmeasured"}
_MEND = "mend the file; `moetier tiers --constants gh200` shows one that can be read"
_PERCENT = re.compile(r"^([0-9]+(?:\.[0-9]+)?)\s*%$")


@dataclass(frozen=True, slots=True)
class Rate:
    """A measured rate in bytes a second, with its source."""

    name: str
    speed: Span
    source: str
    date: str

    @property
    def text(self) -> str:
        """The rate in words."""
        return f"{self.speed.value / 1e9:.4g} GB/s"


@dataclass(frozen=True, slots=True)
class Constants:
    """The constants of one machine.

    Attributes:
        name: what verdicts and tables call it.
        machine: what it is, in words.
        unified: whether accelerator and processor have one memory; None where that is not known.
        rates: by name, one of ``MEANINGS``.
        absent: why a rate does not exist on this machine.
        unmeasured: why a rate is not known.
        notes: what a reader should know of them.
    """

    name: str
    machine: str
    unified: bool | None
    rates: Mapping[str, Rate]
    absent: Mapping[str, str] = field(default_factory=dict)
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def speed(self, name: str) -> Span | None:
        """Return a rate's bytes a second, None where it does not exist or is not known."""
        return self.rates[name].speed if name in self.rates else None

    def lacking(self, *names: str) -> str:
        """Return why the first of these rates that is not there is not; "" where all are."""
        for name in names:
            if name not in self.rates:
                return f"{name}: {self.absent.get(name) or self.unmeasured.get(name) or 'not measured'}"
        return ""

    def over(self, other: Constants) -> Constants:
        """Return these constants, completed by what ``other`` knows beside them; these win where both know."""
        decided = {*self.rates, *self.absent}
        known = {*decided, *other.rates, *other.absent}
        return replace(
            self,
            name=self.name if self.name == other.name else f"{self.name}+{other.name}",
            machine="; ".join(dict.fromkeys(filter(None, (self.machine, other.machine)))),
            unified=other.unified if self.unified is None else self.unified,
            rates={**{name: one for name, one in other.rates.items() if name not in decided}, **self.rates},
            absent={**{name: why for name, why in other.absent.items() if name not in decided}, **self.absent},
            unmeasured={
                name: "; ".join(dict.fromkeys(one[name] for one in (self.unmeasured, other.unmeasured) if name in one))
                for name in {**self.unmeasured, **other.unmeasured}
                if name not in known
            },
            notes=(*self.notes, *other.notes),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the constants in plain JSON types."""
        return {
            "name": self.name,
            "machine": self.machine,
            "unified_memory": self.unified,
            "rates": {
                one.name: {
                    "bytes_per_second": one.speed.value,
                    "low": one.speed.low,
                    "high": one.speed.high,
                    "source": one.source,
                    "date": one.date,
                }
                for one in self.rates.values()
            },
            "absent": dict(self.absent),
            "unmeasured": dict(self.unmeasured),
            "notes": list(self.notes),
        }


def read_constants(name: str) -> Constants:
    """Return the constants called ``name``: a file, or one that comes with the package (``gh200``).

    Raises:
        InputError: there is no such file, or it cannot be used; the message names the place and what was expected.
    """
    path = Path(name)
    if not path.is_file() and not path.suffix:
        path = Path(__file__).parent / f"{name}.yaml"
    try:
        return parse_constants(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        shipped = sorted(one.stem for one in Path(__file__).parent.glob("*.yaml"))
        raise InputError(f"constants {name!r}: {error.strerror}", f"a file, or {', '.join(shipped)}", _MEND) from error
    except UnicodeDecodeError as error:
        raise InputError(f"constants {name!r} is no text ({error.reason})", "a YAML file", _MEND) from error


def parse_constants(text: str, where: str) -> Constants:
    """Return the constants in YAML ``text``; ``where`` names it in messages.

    Raises:
        InputError: not a file of this format, or a value in it that cannot be used.
    """
    data = _document(text, where)
    unknown = [str(key) for key in data if key not in _KEYS]
    missing = sorted(_KEYS - {"machine", "spread", "notes"} - set(data))
    if unknown or missing:
        seen = f"unknown {', '.join(unknown)}" if unknown else f"no {', '.join(missing)}"
        raise InputError(f"{where}: {seen}", f"the keys {', '.join(sorted(_KEYS))}", _MEND)
    if not isinstance(data["unified_memory"], bool):
        raise InputError(f"{where}: unified_memory is {data['unified_memory']!r}", "true or false", _MEND)
    if not isinstance(data["rates"], dict) or not data["rates"]:
        raise InputError(f"{where}: rates is {data['rates']!r}", f"rates by name: {', '.join(MEANINGS)}", _MEND)
    usual = {name: data[name] for name in ("source", "date", "spread") if name in data}
    rates: dict[str, Rate] = {}
    lacking: dict[str, dict[str, str]] = {kind: {} for kind in _LACKING}
    for name, value in data["rates"].items():
        place = f"{where}: {name}"
        if name not in MEANINGS:
            raise InputError(f"{place} is no rate of ours", f"one of {', '.join(MEANINGS)}", _MEND)
        kind = next((one for one in _LACKING if isinstance(value, dict) and one in value), None)
        if kind is not None:
            lacking[kind][name] = _reason(value, kind, place)
        else:
            rates[name] = _rate(str(name), value, usual, place)
    return Constants(
        name=_text(data["name"], f"{where}: name"),
        machine=_text(data.get("machine", data["name"]), f"{where}: machine"),
        unified=data["unified_memory"],
        rates=rates,
        absent=lacking["absent"],
        unmeasured={
            **{one: "not in the file" for one in MEANINGS if one not in data["rates"]},
            **lacking["unmeasured"],
        },
        notes=_notes(data.get("notes"), where),
    )


def _document(text: str, where: str) -> dict[Any, Any]:
    import yaml  # noqa: PLC0415 - bench/ imports this module while it is collected

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{where}: not YAML ({' '.join(str(error).split())})", f"format: {FORMAT}", _MEND) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        seen = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise InputError(f"{where}: format is {seen!r}", f"format: {FORMAT}", _MEND)
    return data


def _rate(name: str, value: Any, usual: Mapping[str, Any], place: str) -> Rate:  # noqa: ANN401 - straight from YAML
    given = {**usual, **(value if isinstance(value, dict) else {"rate": value})}
    if unknown := [str(key) for key in given if key not in _RATE_KEYS]:
        expected = f"{', '.join(sorted(_RATE_KEYS))}; or absent or unmeasured, with the reason"
        raise InputError(f"{place}: unknown {', '.join(unknown)}", expected, _MEND)
    speed, share = parse_rate(given.get("rate"), place), _spread(given.get("spread"), place)
    source, date = _text(given["source"], f"{place}: source"), given["date"]
    if not isinstance(date, dt.date | str) or not str(date).strip():
        raise InputError(f"{place}: date is {date!r}", "the day it was measured, such as 2026-08-12", _MEND)
    return Rate(name, Span(speed * (1 - share), speed, speed * (1 + share)), source, str(date))


def parse_rate(value: Any, place: str) -> float:  # noqa: ANN401 - straight from YAML or a command line
    """Return the bytes a second that a text such as ``27.0 GB/s`` names.

    Raises:
        InputError: no unit, not positive, NaN, or no rate at all; ``place`` is what is being read.
    """
    expected = "a positive rate with its unit, such as 27.0 GB/s (10^9 bytes) or 25 GiB/s (2^30); a b is a bit"
    size, slash, second = str(value).strip().rpartition("/")
    if not isinstance(value, str) or not slash or second.strip() != "s" or not size.rstrip().endswith("B"):
        raise InputError(f"{place} is {value!r}", expected, _MEND)
    try:
        return float(parse_bytes(size))
    except InputError as error:
        raise InputError(f"{place} is {value!r}", expected, _MEND) from error


def _spread(value: Any, place: str) -> float:  # noqa: ANN401 - straight from YAML
    match = _PERCENT.match(str(value)) if value is not None else None
    share = float(match[1]) / 100 if match else 0.0 if value is None else math.nan
    if not 0 <= share < 1:
        raise InputError(f"{place}: spread is {value!r}", "a share within which the rate repeats, such as 0.8%", _MEND)
    return share


def _reason(value: Mapping[Any, Any], kind: str, place: str) -> str:
    if len(value) > 1:
        raise InputError(f"{place} is {kind} and has {len(value) - 1} more keys", f"{kind}: REASON alone", _MEND)
    return _text(value[kind], f"{place}: {kind}")


def _text(value: Any, place: str) -> str:  # noqa: ANN401 - straight from YAML
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{place} is {value!r}", "a text", _MEND)
    return value.strip()


def _notes(value: Any, where: str) -> tuple[str, ...]:  # noqa: ANN401 - straight from YAML
    if not isinstance(value or [], list):
        raise InputError(f"{where}: notes is {value!r}", "a list of texts", _MEND)
    return tuple(_text(one, f"{where}: a note") for one in value or ())
