"""The catalogue of claims: every statement of the documents that is put to the test, and what examines it.

A claim has no figure of its own to be judged by: its bounds do (``bench/bounds.yaml``, profiles), named by patterns. So
a claim that nothing examines is in the catalogue too, and is told as such.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_moetier.errors import InputError

FORMAT = "moetier-claims/1"
WHERE = ("formula", "trace", "replay", "guest", "engine", "hardware")
"""How a claim can be examined: by arithmetic, by simulation, on a device, in a virtual machine, by a real inference
engine, or on the named hardware alone."""
CHAPTERS: Mapping[str, str] = {
    "workload": "What is replayed",
    "routing": "Routing locality (section 3)",
    "capacity": "The capacity response (section 4)",
    "reclaim": "Reclaim and the knee (section 5)",
    "guidance": "Operator guidance (section 5)",
    "policy": "Who should hold what is kept (section 6)",
    "advice": "The router as an advisor (section 7)",
    "tiers": "Tiers and sizing (section 8)",
    "sizing": "Sizing (section 8)",
    "engines": "In real engines (section 9)",
    "ledger": "The methods ledger (section 10)",
    "small_box": "A small machine (moe-offload-bench)",
    "beyond": "Beyond both documents",
}
"""What the first word of a claim's id stands for, in the order that reports tell them."""
_PATH = Path(__file__).with_name("claims.yaml")


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement and what examines it.

    Attributes:
        id: stable name; its first word is its chapter.
        headline: a few words for the first screen of a report, or "".
        text: the statement, with the source's figures.
        source: who says so, and where.
        where: how it can be examined, of ``WHERE``.
        bounds: shell patterns of the ids of bounds that examine it; empty where nothing does yet.
        invariants: names of a proof's lines that it is; they are to be held in every run that has them.
        tests: names of the findings that judge its bounds.
        examine: what to run.
    """

    id: str
    headline: str
    text: str
    source: str
    where: tuple[str, ...]
    bounds: tuple[str, ...]
    invariants: tuple[str, ...]
    tests: tuple[str, ...]
    examine: str

    @property
    def chapter(self) -> str:
        """The first word of its id."""
        return self.id.partition(".")[0]

    @property
    def examined(self) -> bool:
        """Whether anything examines it at all."""
        return bool(self.bounds or self.invariants)

    def judged_by(self, bound: str) -> bool:
        """Return whether a bound of this id examines it."""
        return any(fnmatch.fnmatchcase(bound, one) for one in self.bounds)


def load_claims(text: str, where: str) -> tuple[Claim, ...]:
    """Return the claims in YAML ``text``.

    Raises:
        InputError: not a catalogue of this format; ``where`` names it.
    """
    import yaml  # noqa: PLC0415 - heavy, and this module is cheap

    try:
        data = yaml.safe_load(text)
        if data["format"] != FORMAT:
            raise InputError(f"{where}: format is {data['format']!r}", f"format: {FORMAT}")
        return tuple(_claim(one, where) for one in data["claims"])
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise InputError(f"{where}: no catalogue of claims ({' '.join(str(error).split())})", FORMAT) from error


def read_claims() -> tuple[Claim, ...]:
    """Return the catalogue that comes with the package."""
    return load_claims(_PATH.read_text(encoding="utf-8"), str(_PATH))


def _claim(one: Any, where: str) -> Claim:  # noqa: ANN401 - straight from YAML, checked here
    known = {"id", "headline", "claim", "source", "where", "bounds", "invariants", "tests", "examine"}
    if unknown := sorted(set(one) - known):
        raise InputError(f"{where}: {one.get('id')} has {', '.join(unknown)}", f"only {', '.join(sorted(known))}")
    places = _words(one["where"])
    if unknown := sorted(set(places) - set(WHERE)):
        raise InputError(f"{where}: {one['id']} is examined by {', '.join(unknown)}", f"of {', '.join(WHERE)}")
    if str(one["id"]).partition(".")[0] not in CHAPTERS:
        raise InputError(f"{where}: {one['id']} is of no chapter", f"one of {', '.join(CHAPTERS)}")
    return Claim(
        id=str(one["id"]),
        headline=str(one.get("headline", "")),
        text=str(one["claim"]),
        source=str(one["source"]),
        where=places,
        bounds=_words(one.get("bounds", ())),
        invariants=_words(one.get("invariants", ())),
        tests=_words(one.get("tests", ())),
        examine=str(one["examine"]),
    )


def _words(value: Iterable[Any]) -> tuple[str, ...]:
    if isinstance(value, str):
        raise TypeError(f"{value!r} is no list")
    return tuple(str(one) for one in value)
