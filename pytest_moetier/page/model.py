"""What a report shows, from documents: counts, the verdict on every claim, machines and runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pytest_moetier import __version__
from pytest_moetier.claims import CHAPTERS, read_claims
from pytest_moetier.documents import VERDICTS, Document, Result
from pytest_moetier.page.judged import Row, rows_of
from pytest_moetier.units import format_bytes

_ORDER = ("refuted", "supported", "invalid", "not_examined")
"""In which headlines are told: what is not as claimed comes first."""


@dataclass(frozen=True, slots=True)
class Page:
    """Everything but the figures.

    Attributes:
        documents: what it is made from, the oldest first.
        rows: one a claim, in the catalogue's order.
    """

    documents: tuple[Document, ...]
    rows: tuple[Row, ...]

    @property
    def version(self) -> str:
        """Of this software."""
        return __version__

    @property
    def title(self) -> str:
        """The question that it answers."""
        many = len({one.host.get("fingerprint") for one in self.documents}) > 1
        return f"What holds on {'these machines' if many else 'this machine'}?"

    @property
    def counts(self) -> dict[str, int]:
        """Claims by verdict, none left out."""
        found = Counter(row.verdict for row in self.rows)
        return {verdict: found[verdict] for verdict in VERDICTS}

    @property
    def headlines(self) -> list[tuple[str, list[Row]]]:
        """The claims of the first screen by verdict; what is not as claimed comes first."""
        told = [row for row in self.rows if row.claim.headline]
        groups = [(one, [row for row in told if row.verdict == one]) for one in _ORDER]
        return [(verdict, rows) for verdict, rows in groups if rows]

    @property
    def chapters(self) -> list[tuple[str, str, list[Row]]]:
        """The claims by chapter: its word, what it stands for, and its rows."""
        groups = [
            (word, title, [row for row in self.rows if row.claim.chapter == word]) for word, title in CHAPTERS.items()
        ]
        return [one for one in groups if one[2]]

    @property
    def when(self) -> str:
        """When it was measured, in words; "" where no document says so."""
        days = list(dict.fromkeys(day for one in self.documents if (day := when(one.time))))
        return " to ".join((days[0], days[-1])) if len(days) > 1 else "".join(days)

    @property
    def machine(self) -> str:
        """The machines in a few words."""
        return "; ".join(dict.fromkeys(machine(one) for one in self.documents))

    @property
    def guests(self) -> str:
        """The kernels of virtual machines, in words; "" without."""
        found = dict.fromkeys(
            f"{one.kernel} ({'software emulation' if one.guest.get('emulated') else 'KVM'})"
            for document in self.documents
            for one in document.results
            if one.guest
        )
        return ", ".join(found)

    @property
    def synthetic(self) -> str:
        """What of the measurements was generated, in words; "" for nothing."""
        found = dict.fromkeys(kind for document in self.documents for one in document.results for kind in one.synthetic)
        return " and ".join(f"{kind}s" for kind in found)

    @property
    def at_scale(self) -> int:
        """How many claims were decided in virtual machines."""
        return sum(bool(row.scale) for row in self.rows if row.verdict in VERDICTS[:2])


def page_of(documents: Sequence[Document]) -> Page:
    """Return the page of these documents."""
    return Page(tuple(documents), rows_of(read_claims(), documents))


def when(time: str) -> str:
    """Return a time in words."""
    try:
        return datetime.fromisoformat(time).strftime("%Y-%m-%d %H:%M %Z").strip()
    except ValueError:
        return ""


def machine(document: Document) -> str:
    """Return a host in a few words."""
    host = document.host
    memory = host.get("mem_total_bytes")
    parts = (
        f"{host.get('system', '')} {host.get('release', '')} ({host.get('machine', '')})",
        f"{host.get('cpu_model', 'unknown processor')}, {host.get('cpus', '?')} CPUs",
        f"{format_bytes(memory, binary=True)} of RAM" if memory else "",
        f"MGLRU {host.get('mglru', 'unknown')}, cgroup {host.get('cgroup', 'unknown')}",
        str(host.get("virtualisation", "")),
    )
    return ", ".join(one for one in parts if one and one != "none")


def runs(document: Document) -> list[Result]:
    """Return the results on cells, each cell once where several findings rest on it."""
    found: dict[tuple[str, str], Result] = {}
    for one in document.results:
        if one.words or one.proofs:
            known = found.get((one.cell, one.kernel))
            if known is None or len(one.judged) > len(known.judged):
                found[one.cell, one.kernel] = one
    return list(found.values())
