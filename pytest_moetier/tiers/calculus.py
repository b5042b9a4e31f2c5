"""The ownership calculus: three rules in closed form, and the placement policy that follows (paper section 8).

With rates in bytes a second, for an expert of E bytes:

- Rule 1, admission: a miss pays the device read whether its pages stay or not, so letting them stay adds no read. What
  a later hit is worth is ``page_cache / device_cold``.
- Rule 2, ownership: a promotion costs one overlapped copy, E/stream, and saves E (1/link - 1/hbm) a use. It pays after
  k* = (1/stream) / (1/link - 1/hbm) uses. Without a link that the accelerator can read file-backed pages over, each use
  is a copy of its own, and ``stream`` takes the place of ``link``.
- Rule 3, adopt or stream: how much faster streaming is, ``stream/adopt - 1``; how much slower adopting, ``1 -
  adopt/stream``. Within ``TIE`` the two tie, and the simpler one is bought.

An interval follows from those of the rates: each formula rises or falls in each of its rates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from pytest_moetier.span import Span
from pytest_moetier.tiers.constants import Constants

TIE = 0.06
"""stream/adopt - 1 up to which adopting and streaming tie: the paper's 5.6%, which is 5.8% by its own constants."""
NOT_ADMITTED = (
    "the pages evict a hotter working set: what passes through is not read again before C is used up",
    "the dense spine lies in the same page cache, neither locked nor on the accelerator, and the experts evict it",
    "most of the host is locked memory: reclaim then costs more than the hits are worth (paper section 5)",
)
"""When letting a miss's pages into the page cache is not free after all."""
HERE, NOT_HERE, UNKNOWN = "yes", "no", "unknown"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the placement table.

    Attributes:
        what: what is decided.
        rule: what says so.
        here: whether it exists on this machine: ``yes``, ``no`` or ``unknown``.
        figure: the figure that it rests on, in words; "" where there is none.
        why: what to do, or why there is nothing to do.
    """

    what: str
    rule: str
    here: str
    figure: str
    why: str


@dataclass(frozen=True, slots=True)
class Calculus:
    """What the constants of a machine come to; None where they do not say, and ``why`` says what lacks.

    Attributes:
        k_star: uses after which a promotion pays against adopting.
        k_restream: the same against streaming every use again.
        stream_over_adopt: stream/adopt - 1.
        adopt_below_stream: 1 - adopt/stream.
        hit_worth: page_cache / device_cold.
        why: why a figure is None, by its name.
        rows: the placement table.
    """

    k_star: Span | None
    k_restream: Span | None
    stream_over_adopt: Span | None
    adopt_below_stream: Span | None
    hit_worth: Span | None
    why: dict[str, str]
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Any]:
        """Return everything in plain JSON types; a figure that is infinite (it never pays) is null, with the reason."""
        names = ("k_star", "k_restream", "stream_over_adopt", "adopt_below_stream", "hit_worth")
        words = ("what", "rule", "here", "figure", "why")
        return {
            **{name: _plain(getattr(self, name)) for name in names},
            "why": {name: self.why[name] for name in names if name in self.why},
            "not_admitted_when": list(NOT_ADMITTED),
            "placement": [{word: getattr(row, word) for word in words} for row in self.rows],
        }


def _plain(found: Span | None) -> dict[str, float | None] | None:
    if found is None:
        return None
    return {name: one if math.isfinite(one := getattr(found, name)) else None for name in ("low", "value", "high")}


def break_even(stream: float, link: float, hbm: float) -> float:
    """Return k*: uses after which a copy at ``stream`` pays, where each saves reading at ``link`` instead of ``hbm``.

    Infinite where the accelerator's own memory is no faster than the link. Rates in one unit, positive.
    """
    saved = 1 / link - 1 / hbm
    return (1 / stream) / saved if saved > 0 else math.inf


def _break_even(stream: Span, link: Span, hbm: Span) -> Span:
    """It falls in ``stream`` and ``hbm``, and rises in ``link``."""
    return Span(
        break_even(stream.high, link.low, hbm.high),
        break_even(stream.value, link.value, hbm.value),
        break_even(stream.low, link.high, hbm.low),
    )


def _over(above: Span, below: Span) -> Span:
    return Span(above.low / below.high, above.value / below.value, above.high / below.low)


def reckon(constants: Constants) -> Calculus:
    """Return what the constants come to."""
    hbm, adopt, stream = (constants.speed(name) for name in ("hbm", "link_file_backed", "stream_overlapped"))
    hit, miss = constants.speed("page_cache"), constants.speed("device_cold")
    unified = "one memory: there is nothing to copy, and adopting is owning" if constants.unified else ""
    why = {
        "k_star": unified or constants.lacking("hbm", "link_file_backed", "stream_overlapped"),
        "k_restream": unified or constants.lacking("hbm", "stream_overlapped"),
        "stream_over_adopt": unified or constants.lacking("link_file_backed", "stream_overlapped"),
        "hit_worth": constants.lacking("page_cache", "device_cold"),
    }
    why["adopt_below_stream"] = why["stream_over_adopt"]
    ratio = None if unified or not (stream and adopt) else _over(stream, adopt)
    found = Calculus(
        k_star=None if unified or not (hbm and adopt and stream) else _break_even(stream, adopt, hbm),
        k_restream=None if unified or not (hbm and stream) else _break_even(stream, stream, hbm),
        stream_over_adopt=ratio and Span(ratio.low - 1, ratio.value - 1, ratio.high - 1),
        adopt_below_stream=ratio and Span(1 - 1 / ratio.low, 1 - 1 / ratio.value, 1 - 1 / ratio.high),
        hit_worth=_over(hit, miss) if hit and miss else None,
        why={name: reason for name, reason in why.items() if reason},
        rows=(),
    )
    return _with_rows(found, constants)


def _with_rows(found: Calculus, constants: Constants) -> Calculus:
    rows = (_admission(found), _RECENCY, _own(found, constants), _adopt(found, constants), _stream(found, constants))
    return replace(found, rows=(*rows, _KNEE, _ADVICE))


_RECENCY = Row("let recency fill DRAM", "section 3", HERE, "", "leave eviction to the kernel")
_KNEE = Row("keep C above the knee", "section 5", HERE, "", "read C off this host's curve: moetier size --target ...")
_ADVICE = Row(
    "feed the router's lookahead as advice", "section 7", HERE, "", "fadvise(WILLNEED), never a read of one's own"
)


def _admission(found: Calculus) -> Row:
    what, rule = "admit every miss to DRAM", "rule 1"
    if found.hit_worth is None:
        return Row(
            what, rule, HERE, "", f"a miss has paid the read already; what a hit is worth: {found.why['hit_worth']}"
        )
    figure = f"a hit is {found.hit_worth.value:.2f} times as fast as a miss"
    if found.hit_worth.value <= 1:
        return Row(what, rule, HERE, figure, "it adds no read, and a hit saves no time either: the device is as fast")
    return Row(
        what, rule, HERE, figure, "map the pool or read it through the page cache; drop-behind forfeits every hit"
    )


def _own(found: Calculus, constants: Constants) -> Row:
    what, rule = "own: promote to the accelerator's memory", "rule 2"
    if constants.unified:
        return Row(what, rule, NOT_HERE, "", "one memory: adopting and owning are one row, and T(C) alone remains")
    k, name = (found.k_star, "k*") if found.k_star else (found.k_restream, "k against restreaming")
    if k is None:
        return _lacking_row(what, rule, constants, "hbm", "stream_overlapped", "link_file_backed")
    if math.isinf(k.value):
        return Row(
            what, rule, HERE, f"{name} is infinite", "its memory is no faster than the link: leave it to adoption"
        )
    plan = "capacity rationing: fill it with what is expected to be reused most, and stop"
    return Row(what, rule, HERE, f"{name} = {k.value:.3f} ({k.low:.3f} to {k.high:.3f})", plan)


def _adopt(found: Calculus, constants: Constants) -> Row:
    what, rule = "adopt: read file-backed DRAM in place", "rule 3"
    if constants.unified:
        return Row(what, rule, HERE, "", "the same memory: every read of the page cache is one")
    if "link_file_backed" not in constants.rates:
        row = _lacking_row(what, rule, constants, "link_file_backed")
        if row.here == NOT_HERE:
            return Row(what, rule, NOT_HERE, "", f"own or restream is what remains ({row.why})")
        return row
    tie = found.stream_over_adopt
    if tie is None:
        return Row(
            what, rule, HERE, constants.rates["link_file_backed"].text, "read in place: streaming is not measured"
        )
    figure = f"streaming is {tie.value:+.1%}"
    if tie.value > TIE:
        why = f"streaming is faster by more than {TIE:.0%}: a copy engine and double buffers may be worth it"
        return Row(what, rule, HERE, figure, why)
    return Row(what, rule, HERE, figure, f"a tie (up to {TIE:+.0%}): buy the simpler one, and read everything in place")


def _stream(found: Calculus, constants: Constants) -> Row:
    what, rule = "stream: copy over the link, then compute", "rule 3"
    if constants.unified:
        return Row(what, rule, NOT_HERE, "", "one memory: there is nothing to copy to")
    if "stream_overlapped" not in constants.rates:
        return _lacking_row(what, rule, constants, "stream_overlapped")
    figure = constants.rates["stream_overlapped"].text
    if found.stream_over_adopt is None:
        return Row(what, rule, HERE, figure, "what is not owned is copied again for every use")
    loss = found.adopt_below_stream
    said = f"{figure}; adopting is {loss.value:.1%} slower" if loss else figure
    tied = found.stream_over_adopt.value <= TIE
    return Row(what, rule, HERE, said, "not needed: adopting ties" if tied else "worth its buffers where time is short")


def _lacking_row(what: str, rule: str, constants: Constants, *names: str) -> Row:
    gone = next((name for name in names if name in constants.absent), None)
    if gone:
        return Row(what, rule, NOT_HERE, "", constants.lacking(gone))
    return Row(what, rule, UNKNOWN, "", constants.lacking(*names))
