"""What documents say of each claim of the catalogue: its verdict, the figures that decide, and why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_moetier.claims import Claim
from pytest_moetier.documents import VERDICTS, Document, Judged, Result, worst_states
from pytest_moetier.units import format_bytes

SUPPORTED, REFUTED, NOT_EXAMINED, INVALID = VERDICTS
_SHOWN = 3
"""Figures that a row tells; all are in its evidence."""
_STATES = {"held": SUPPORTED, "broken": INVALID}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One bound, or one line of proofs, held against what was measured.

    Attributes:
        bound: the id of the bound, or the name of the line.
        name: of the value.
        seen: the value in words.
        value: the value; None where there is none, or it is a word.
        expected: in words.
        source: who says so.
        verdict: on this alone.
        about: the cell, trace or test.
        kernel: the release of the virtual machine's kernel; "" for the host's.
        scale: of the virtual machine, in words.
        synthetic: what of it was generated.
        reason: why it could not be judged, or what is to be said with it.
    """

    bound: str
    name: str
    seen: str
    value: float | None
    expected: str
    source: str
    verdict: str
    about: str
    kernel: str
    scale: str
    synthetic: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Row:
    """A claim and what was found.

    Attributes:
        claim: the claim.
        verdict: one of ``VERDICTS``: refuted where any of its bounds is, else supported where any is.
        evidence: all that was judged.
        reason: why it was not examined, or which run was not proved; "" else.
    """

    claim: Claim
    verdict: str
    evidence: tuple[Evidence, ...]
    reason: str

    @property
    def deciding(self) -> tuple[Evidence, ...]:
        """The evidence for its verdict."""
        return tuple(one for one in self.evidence if one.verdict == self.verdict)

    @property
    def figures(self) -> list[tuple[str, str, str]]:
        """What decided, a line a bound: its value's name, what was seen over all cells, and what was expected."""
        found: dict[str, list[Evidence]] = {}
        for one in self.deciding:
            found.setdefault(one.bound, []).append(one)
        lines = [(same[0].name, _over(same), same[0].expected) for same in found.values()]
        more = len(lines) - _SHOWN
        return [*lines[:_SHOWN], *([("", f"and {more} more", "")] if more > 0 else [])]

    @property
    def counts(self) -> str:
        """How many of its bounds came out how, where they differ; else ""."""
        counts = Counter(one.verdict for one in self.evidence)
        told = [
            f"{counts[one]} {one.replace('_', ' ')}"
            for one in (REFUTED, SUPPORTED, NOT_EXAMINED, INVALID)
            if counts[one]
        ]
        return ", ".join(told) if len(told) > 1 else ""

    @property
    def scale(self) -> str:
        """At which scale it was decided, and on which kernels; "" for the host itself."""
        scales = dict.fromkeys(one.scale for one in self.deciding if one.scale)
        kernels = ", ".join(dict.fromkeys(one.kernel for one in self.deciding if one.kernel))
        told = "; ".join(scales)
        return f"{told}{f'; kernel {kernels}' if kernels else ''}" if told else ""

    @property
    def synthetic(self) -> str:
        """What of it was generated, in words; "" for nothing."""
        return ", ".join(
            f"synthetic {one}" for one in dict.fromkeys(kind for each in self.deciding for kind in each.synthetic)
        )


def _over(same: Sequence[Evidence]) -> str:
    """Return what one bound saw in all cells: the least and the most."""
    ordered = sorted(same, key=lambda one: 0.0 if one.value is None else one.value)
    low, high = ordered[0].seen, ordered[-1].seen
    shown = low if low == high else f"{low} to {high}"
    return f"{shown} in {len(same)} cases" if len(same) > 1 else shown


def rows_of(claims: Iterable[Claim], documents: Sequence[Document]) -> tuple[Row, ...]:
    """Return a row for each claim of the catalogue."""
    results = [result for document in documents for result in document.results]
    return tuple(_row(claim, results) for claim in claims)


def _row(claim: Claim, results: Sequence[Result]) -> Row:
    evidence = (*_bounds(claim, results), *_lines(claim, results))
    found = {one.verdict for one in evidence}
    mine = [one for one in results if one.name in claim.tests]
    verdict = next((one for one in (REFUTED, INVALID, SUPPORTED) if one in found), "")
    if not verdict:
        verdict = INVALID if any(one.verdict == INVALID for one in mine) else NOT_EXAMINED
    return Row(claim, verdict, evidence, _reason(claim, verdict, evidence, mine))


def _bounds(claim: Claim, results: Iterable[Result]) -> Iterator[Evidence]:
    """Yield what was judged of a claim's bounds; what two findings saw in one cell is told once."""
    told = set()
    for result in results:
        for one in result.judged:
            key = one, result.cell or result.test, result.kernel
            if claim.judged_by(one.id) and key not in told:
                told.add(key)
                yield Evidence(
                    bound=one.id,
                    name=one.name or one.id.rpartition(".")[2],
                    seen=value_words(one, result),
                    value=one.seen,
                    expected=one.expected,
                    source=one.source,
                    verdict=one.verdict,
                    about=result.cell or result.test,
                    kernel=result.kernel,
                    scale=result.scale,
                    synthetic=result.synthetic,
                    reason=one.reason,
                )


def value_words(one: Judged, result: Result) -> str:
    """Return the value of a bound in words: bytes where the result's metric of that name is in bytes."""
    if one.seen is None:
        return "nothing"
    metric = result.metrics.get(one.name)
    return format_bytes(one.seen) if metric and metric.unit.partition("/")[0] == "B" else f"{one.seen:.4g}"


def _lines(claim: Claim, results: Iterable[Result]) -> Iterator[Evidence]:
    """Yield, for each line of proofs that a claim is, what became of it over all cells."""
    states: dict[str, Counter[str]] = {name: Counter() for name in claim.invariants}
    # Two findings may rest on one cell: its proof counts once.
    for _, runs in dict.fromkeys((one.cell, one.proofs) for one in results if one.proofs):
        cell = worst_states(runs)
        for name, found in states.items():
            found.update([cell[name]] if name in cell else [])
    for name, found in states.items():
        if not found:
            continue
        worst = next(one for one in ("broken", "flagged", "unobserved", "held") if found[one])
        shown = ", ".join(f"{count} {state}" for state, count in found.items())
        verdict = _STATES.get(worst, SUPPORTED if found["held"] and not found["flagged"] else NOT_EXAMINED)
        yield Evidence(
            bound=name,
            name=f"proof: {name}",
            seen=f"{shown} of {found.total()} cells",
            value=None,
            expected="held in every run",
            source="the proof of each run",
            verdict=verdict,
            about="every proved cell",
            kernel="",
            scale="",
            synthetic=(),
            reason="" if worst in _STATES else f"{found[worst]} {worst}",
        )


def _reason(claim: Claim, verdict: str, evidence: Sequence[Evidence], mine: Sequence[Result]) -> str:
    if verdict not in {NOT_EXAMINED, INVALID}:
        return ""
    if not claim.examined:
        return "no bound judges it yet"
    whys = [one.reason for one in evidence if one.verdict == verdict and one.reason]
    if not whys:
        order = {name: place for place, name in enumerate(claim.tests)}
        asked = sorted((one for one in mine if one.verdict == verdict), key=lambda one: order[one.name])
        whys = [one.reason.partition("\n")[0] for one in asked if one.reason]
    told = list(dict.fromkeys(whys))
    return "; ".join(told[:2]) if told else "nothing that examines it ran"
