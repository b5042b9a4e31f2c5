"""The canonical parser: untyped rows become a typed, validated ``Trace`` (paper section 2, "A canonical trace parser").

Two steps, with the checks between them. ``arrange`` finds k, tells decode from prefill, and brings rows into the order
of iterations. ``parse`` reconstructs each decode record's type and validates it:

- every layer has one record of k ids: ``normal``;
- every layer has one record of 2k ids: ``spec_accept``;
- every layer has two records of k ids: ``spec_fallback``;
- anything else breaks the rules, and the message names the line.

An iteration in which every layer has 2k ids can only be told from one of a model with twice the k when k is stated, or
when another iteration shows it: a file of accepted speculations alone, read without k, is one of normal iterations of
twice the k, and half the accepted tokens. Where the file does not number its iterations, a failed speculation and its
repetition, pass after pass, look like two normal iterations, and layer by layer they are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.errors import InputError
from pytest_moetier.trace.records import (
    BATCH,
    NORMAL,
    SPEC_ACCEPT,
    SPEC_FALLBACK,
    UNION,
    RecordError,
    Trace,
    make_trace,
)
from pytest_moetier.trace.rows import DECODE, FALLING_WEIGHTS, PREFILL, UNKNOWN, Hints, Rows

I64 = NDArray[np.int64]

_FITTING = 0.9
"""The share of rows whose width has to be whole passes of the k that is inferred; the rest is for the checks."""


def arrange(rows: Rows, hints: Hints) -> Rows:
    """Return the rows with k known, each one's phase told, in the order of iterations, prefill first.

    ``key`` becomes the iteration's number within its phase, from 0. A last iteration that lacks records, as of a file
    that ends early, is left out with a warning.

    Raises:
        InputError: no row at all, or no k that fits.
    """
    if not rows.n:
        raise InputError("the file holds no record", "at least one decode iteration")
    k, said = _find_k(rows, hints)
    if rows.about.speculative and not _numbered(rows):
        said = [*said, "the file does not number its iterations: a failed speculation counts as an accepted token"]
    warnings = [*rows.about.warnings, *said]
    n_experts = _agreed("n_experts", rows.about.n_experts, hints.n_experts)
    rows = replace(rows, about=replace(rows.about, k=k, n_experts=n_experts), key=_iterations(rows))
    phase = _phases(rows, k)
    warnings += _late_prefill(rows, phase)
    rows = _ordered(replace(rows, phase=phase))
    rows, lost = _without_cut_tail(rows)
    return replace(rows, about=replace(rows.about, warnings=tuple(warnings + lost)))


def parse(rows: Rows, hints: Hints, *, raw: bool = False) -> Trace:
    """Return the typed trace of arranged rows.

    Args:
        rows: as ``arrange`` returns them.
        hints: what the user knows.
        raw: rows of prompts alone become the trace itself, as batches.

    Raises:
        InputError: a rule of the module's docstring, or of ``make_trace``, is broken.
    """
    if not rows.n:
        raise InputError("no record is left", "at least one decode iteration")
    rows = _described(rows)
    decode, prefill = rows.take(rows.phase == DECODE), rows.take(rows.phase == PREFILL)
    if raw and not decode.n:
        decode, prefill = prefill, decode
    elif not decode.n:
        raise _no_decode(rows)
    prompt = replace(prefill, about=replace(rows.about, warnings=()))
    before = _trace(prompt, _batches(prompt)) if prompt.n else None
    trace = _trace(decode, _types(decode) if decode.phase[0] == DECODE else _batches(decode), before)
    return _checked_request(trace, hints.requested_tokens or rows.about.requested_tokens, cut=rows.about.cut)


def _no_decode(rows: Rows) -> InputError:
    wide = np.flatnonzero(rows.width != rows.about.k)
    seen = "it holds no decode record"
    if len(wide):
        row = int(wide[0])
        seen += (
            f": {rows.about.place} {rows.line[row]} names {rows.width[row]} experts where k is {rows.about.k}, "
            "and no iteration is free of such records"
        )
    return InputError(seen, "decode records: prefill alone is no iteration to replay")


def _described(rows: Rows) -> Rows:
    """Fill in what the file does not say of the model: the experts per layer, and the layers."""
    about, said = rows.about, []
    highest = int(rows.ids.max()) + 1
    if about.n_experts is None:
        said = [f"the file does not state the experts per layer; {highest} is its highest id + 1"]
    about = replace(
        about,
        n_experts=about.n_experts or highest,
        layers=about.layers or tuple(np.unique(rows.layer).tolist()),
        warnings=(*about.warnings, *said),
    )
    return replace(rows, about=about)


def _find_k(rows: Rows, hints: Hints) -> tuple[int, list[str]]:
    if known := _agreed("k", rows.about.k, hints.k):
        return known, []
    free = (rows.kind == UNKNOWN) | (rows.kind < BATCH)
    telling = [free & (rows.phase == DECODE), free & (rows.phase != PREFILL), rows.kind != UNION]
    chosen = next((mask for mask in telling if mask.any()), None)
    if chosen is None:
        raise InputError("every record is a union of several positions", "k, which unions do not show", "--k K")
    widths = Counter(rows.width[chosen].tolist())
    least = min(widths)
    fitting = sum(count for width, count in widths.items() if not width % least)
    if fitting >= _FITTING * widths.total():
        return least, []
    common = gcd(*widths)
    shown = ", ".join(map(str, sorted(widths)[:6])) + (", ..." if len(widths) > 6 else "")
    if common > 1:
        return common, [f"k is taken as {common}, the common divisor of the records' widths ({shown}); --k states it"]
    usual = widths.most_common(1)[0][0]
    odd = int(np.flatnonzero(chosen & (rows.width % usual != 0))[0])
    raise InputError(
        f"{rows.about.place} {rows.line[odd]}: layer {rows.layer[odd]} names {rows.width[odd]} experts, "
        f"others {usual} (widths in all: {shown}): k varies",
        "records of k experts each, or whole multiples of k",
        "--k K where it is known; routers that choose a varying number of experts are not read",
    )


def _agreed(name: str, stated: int | None, asked: int | None) -> int | None:
    if stated is not None and asked is not None and stated != asked:
        raise InputError(f"{name} is {stated} in the file", f"{asked} as asked for")
    return stated if stated is not None else asked


def _numbered(rows: Rows) -> bool:
    return bool((rows.key >= 0).all())


def _iterations(rows: Rows) -> I64:
    """Return the key of each row's iteration; where the format has none, a layer that does not rise begins one."""
    if _numbered(rows):
        return rows.key
    begins = np.concatenate([[False], np.diff(rows.layer) <= 0])
    return np.cumsum(begins).astype(np.int64)


def _phases(rows: Rows, k: int) -> NDArray[np.uint8]:
    """Return each row's phase; where the format does not tell, an iteration with more than a pass's ids is prefill."""
    unknown = rows.phase == UNKNOWN
    if not unknown.any():
        return rows.phase
    wide = (rows.width > k) & ~((rows.width == 2 * k) & rows.about.speculative)
    wide |= (rows.kind == BATCH) | (rows.kind == UNION)
    keys, group = np.unique(rows.key, return_inverse=True)
    prefill = np.zeros(len(keys), dtype=bool)
    prefill[group[wide & unknown]] = True
    return np.where(unknown, np.where(prefill[group], PREFILL, DECODE), rows.phase).astype(np.uint8)


def _late_prefill(rows: Rows, phase: NDArray[np.uint8]) -> list[str]:
    """Say which iterations were taken for a prompt by their width though a decode came before: a guess to look at."""
    after = np.cumsum(phase == DECODE) > 0
    late = np.flatnonzero(after & (phase == PREFILL) & (rows.phase == UNKNOWN))
    if not len(late):
        return []
    count, where = len(np.unique(rows.key[late])), f"{rows.about.place} {rows.line[late[0]]}"
    return [f"{count} iteration(s) after the first decode, from {where} on, hold more than a pass: taken as prefill"]


def _ordered(rows: Rows) -> Rows:
    """Number iterations by first appearance within their phase, and bring rows into that order, prefill first."""
    composite = np.unique(rows.key, return_inverse=True)[1] * 2 + (rows.phase == DECODE)
    groups, first, group = np.unique(composite, return_index=True, return_inverse=True)
    is_decode = (groups & 1).astype(bool)
    order = np.lexsort((first, is_decode))
    n_prefill = int(np.count_nonzero(~is_decode))
    rank = np.empty(len(groups), dtype=np.int64)
    rank[order] = np.arange(len(groups))
    place = rank[group]
    key = np.where(rows.phase == DECODE, place - n_prefill, place)
    if bool((np.diff(place) >= 0).all()):
        return replace(rows, key=key)
    return replace(rows, key=key).take(np.argsort(place, kind="stable"))


class _Groups(NamedTuple):
    """Per iteration of one phase: its first row, its rows, its layers, and the fewest and most records of a layer."""

    first: I64
    rows: I64
    layers: I64
    least: I64
    most: I64


def _groups(rows: Rows) -> _Groups:
    pairs, counts = np.unique(rows.key << 16 | rows.layer, return_counts=True)
    owner = pairs >> 16
    starts = np.flatnonzero(np.concatenate([[True], np.diff(owner) > 0]))
    first = np.flatnonzero(np.concatenate([[True], np.diff(rows.key) > 0]))
    return _Groups(
        first=first,
        rows=np.diff(np.concatenate([first, [rows.n]])),
        layers=np.diff(np.concatenate([starts, [len(pairs)]])),
        least=np.minimum.reduceat(counts, starts),
        most=np.maximum.reduceat(counts, starts),
    )


def _without_cut_tail(rows: Rows) -> tuple[Rows, list[str]]:
    """Leave out a last decode iteration that lacks records, and say what a file that ends early has kept."""
    about, decode = rows.about, rows.phase == DECODE
    held = int(np.count_nonzero(decode))
    short = about.records is not None and held < about.records
    if not held:
        return rows, []
    groups = _groups(rows.take(decode))
    last = len(groups.rows) - 1
    known = about.layers or (np.unique(rows.layer) if not last else None)  # a lone iteration is held against the prompt
    wanted = int(groups.layers.max()) if known is None else len(known)
    typed = int(rows.kind[-1]) == SPEC_FALLBACK
    fallback = typed or (about.speculative and int(groups.most[last]) == 2)
    whole = int(groups.layers[last]) == wanted and (int(groups.least[last]) > 1 or not fallback)
    if whole and not (about.cut or short):
        return rows, []
    said = []
    if short and not about.cut and about.records is not None:
        end = int(rows.line.max())
        said.append(f"the file ends after {about.place} {end}, {about.records - held} decode records early")
    if whole:
        return rows, [*said, f"all {held} decode records before it were kept: {last + 1} whole iterations"]
    seen, of = int(groups.rows[last]), wanted * (2 if fallback else 1)
    if not last:
        raise InputError(f"its only decode iteration has {seen} of {of} records", "at least one whole iteration")
    kept = rows.take(~(decode & (rows.key == last)))
    said.append(
        f"the last decode iteration has {seen} of {of} records and was left out; "
        f"{held - seen} records were kept: {last} whole iterations"
    )
    return kept, said


def _types(rows: Rows) -> NDArray[np.uint8]:
    """Return the type of each decode row: as stated, or reconstructed by iteration."""
    if not (rows.kind == UNKNOWN).any():
        return rows.kind
    k = rows.about.k or 0
    groups = _groups(rows)
    width_least = np.minimum.reduceat(rows.width, groups.first)
    width_most = np.maximum.reduceat(rows.width, groups.first)
    kinds = np.full(len(groups.first), UNKNOWN, dtype=np.uint8)
    single = (width_least == k) & (width_most == k)
    kinds[single & (groups.most == 1)] = NORMAL
    if rows.about.speculative:
        kinds[single & (groups.least == 2) & (groups.most == 2)] = SPEC_FALLBACK
        kinds[(width_least == 2 * k) & (width_most == 2 * k) & (groups.most == 1)] = SPEC_ACCEPT
    wrong = np.flatnonzero(kinds == UNKNOWN)
    if len(wrong):
        raise _untypable(rows, groups, int(wrong[0]), k)
    return np.where(rows.kind == UNKNOWN, np.repeat(kinds, groups.rows), rows.kind).astype(np.uint8)


def _untypable(rows: Rows, groups: _Groups, at: int, k: int) -> InputError:
    """Return the error that names the first row for which an iteration is of no type."""
    begin = int(groups.first[at])
    part = slice(begin, begin + int(groups.rows[at]))
    speculative, place, where = rows.about.speculative, rows.about.place, f"decode iteration {at}"
    layers, widths = rows.layer[part], rows.width[part]

    def named(row: int) -> str:
        return f"{place} {rows.line[begin + row]}: layer {layers[row]}"

    odd = np.flatnonzero((widths != k) & ~(speculative & (widths == 2 * k)))
    if len(odd):
        wanted = f"{k} (k)" + (f", or {2 * k} for an accepted speculation" if speculative else "")
        return InputError(f"{named(int(odd[0]))} names {widths[odd[0]]} experts", wanted, "--k K where k is known")
    mixed = np.flatnonzero(widths != widths[0])
    if len(mixed):
        seen = f"{named(int(mixed[0]))} names {widths[mixed[0]]} experts, layer {layers[0]} of {where} {widths[0]}"
        return InputError(seen, "one width for all layers of an iteration")
    allowed = 2 if speculative and widths[0] == k else 1
    row, before = _first_uneven(layers.tolist(), allowed)
    if before == allowed:
        wanted = "once" + (", or twice where a speculation failed" if allowed > 1 else "")
        return InputError(f"{named(row)} is routed {before + 1} times in {where}", wanted)
    return InputError(f"{named(row)} is routed once in {where}, others twice", "each layer as often as the others")


def _first_uneven(layers: Sequence[int], allowed: int) -> tuple[int, int]:
    """Return the first row whose layer came ``allowed`` times before, or else the first whose layer comes once only."""
    before: Counter[int] = Counter()
    for row, layer in enumerate(layers):
        if before[layer] == allowed:
            return row, allowed
        before[layer] += 1
    return next(row for row, layer in enumerate(layers) if before[layer] == 1), 0


def _batches(rows: Rows) -> NDArray[np.uint8]:
    """Return the kind of each prompt row: one position at a time is normal, several in one call a batch."""
    if not rows.n:
        return rows.kind
    k = rows.about.k or 0
    groups = _groups(rows)
    several = (np.maximum.reduceat(rows.width, groups.first) != k) | (groups.most > 1)
    kinds = np.repeat(np.where(several, BATCH, NORMAL), groups.rows)
    return np.where(rows.kind == UNKNOWN, kinds, rows.kind).astype(np.uint8)


def _trace(rows: Rows, kinds: NDArray[np.uint8], prefill: Trace | None = None) -> Trace:
    about = rows.about
    scored = bool((rows.flags & FALLING_WEIGHTS).all())
    sizes, layers = about.expert_bytes, about.layers or ()
    try:
        return make_trace(
            iteration=rows.key,
            layer=rows.layer,
            kind=kinds,
            offsets=rows.offsets,
            experts=rows.ids,
            n_experts=about.n_experts or 0,
            k=about.k or 0,
            synthetic=about.synthetic,
            source=about.source,
            layers=layers,
            warnings=about.warnings,
            order=about.order or ("score" if scored else None),
            expert_bytes=[sizes[layer] for layer in layers] if set(layers) <= set(sizes) else (),
            accepted_tokens=about.accepted_tokens if rows.phase[0] == DECODE else None,
            prefill=prefill,
            whole=rows.phase[0] == DECODE,
        )
    except InputError as error:
        where = f"{about.place} {rows.line[error.record]}: " if isinstance(error, RecordError) else ""
        which = "" if rows.phase[0] == DECODE else "in the prefill, "
        raise InputError(f"{where}{which}{error.seen}", error.expected, error.do) from error


def _checked_request(trace: Trace, requested: int | None, *, cut: bool) -> Trace:
    """Hold the accepted tokens against what the engine was asked for: it accepts one token fewer in decode."""
    if requested is None or trace.accepted_tokens == requested - 1:
        return trace
    counts = ", ".join(f"{count} {name}" for name, count in trace.kind_counts().items())
    seen = f"{trace.accepted_tokens} accepted tokens in {trace.n_iterations} iterations ({counts})"
    if trace.accepted_tokens > requested - 1:
        raise InputError(
            seen, f"at most {requested - 1}, one fewer than the {requested} requested", "--k K, or another --requested"
        )
    why = "the file is cut off" if cut else "the generation ended early, or records are missing"
    said = f"{seen}, {requested - 1 - trace.accepted_tokens} fewer than requested - 1 = {requested - 1}: {why}"
    return replace(trace, warnings=(*trace.warnings, said))
