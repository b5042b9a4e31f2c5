"""Other JSON lines and JSON documents of engines.

Which one a file is of, its first object's keys tell; of two formats that a line could be of, the one that asks for more
has it.
"""

from __future__ import annotations

import base64
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.errors import InputError
from pytest_moetier.trace import scan
from pytest_moetier.trace.formats import fields
from pytest_moetier.trace.formats.moevm import is_moevm
from pytest_moetier.trace.formats.registry import reader
from pytest_moetier.trace.records import BATCH, UNION
from pytest_moetier.trace.rows import DECODE, PHASES, PREFILL, UNKNOWN, About, Hints, Rows, RowsBuilder
from pytest_moetier.trace.source import Source

_ITERATION = ("iteration", "iter", "step", "pos", "position", "token")
_LAYER = ("layer", "layer_id", "layer_idx")
_IDS = ("experts", "expert_ids", "ids", "indices", "topk", "selected_experts")

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]


def _about(source: Source, format: str, **known: Any) -> About:  # noqa: A002, ANN401
    return About(f"{format} {source.path.name}", **known)


_ROUTE = scan.Fields(
    "token_idx",
    "layer",
    "topk_ids",
    phase="type",
    kind="req_id",
    weights="topk_weights",
    phases={"route": 0},
)
_REQ_ID = re.compile(rb'"req_id"\s*:\s*"([\x20-\x21\x23-\x5b\x5d-\x7e]+)"')
_MOST_WORDS = 250
_TOKEN_BITS = 40
_MOST_REQUESTS = 1 << 62 - _TOKEN_BITS


def _sniff_vllm(source: Source) -> bool:
    row = fields.first(source)
    if row.get("type") == "route":
        return "topk_ids" in row
    if row.get("type") != "meta" or not {"layers_logged", "top_k"} & row.keys():
        return False
    return len(source.objects) < 2 or source.objects[1].get("type") == "route"


@dataclass(slots=True)
class _Routes:
    """Reads route lines; the scanner knows words by codes below 255, so each block has codes of its own for requests.

    Attributes:
        source: the file.
        requests: number by request id, in the order in which they were met.
        numbers: number of each row's request, block by block.
        k: experts a token, as the meta line says.
        aside: number of the request of lines that are not plain, by line.
    """

    source: Source
    requests: dict[object, int] = field(default_factory=dict)
    numbers: list[NDArray[np.int64]] = field(default_factory=list)
    k: int | None = None
    aside: dict[int, int] = field(default_factory=dict)

    def read(self, built: RowsBuilder, first: int, block: bytes) -> None:
        names = list(dict.fromkeys(_REQ_ID.findall(block)))
        half = (block.rfind(b"\n", 0, len(block) // 2) + 1) or (block.find(b"\n") + 1)
        if len(names) > _MOST_WORDS and 0 < half < len(block):
            for piece in (block[:half], block[half:]):
                self.read(built, first, piece)
                first += piece.count(b"\n")
            return
        words = {name.decode(): code for code, name in enumerate(names[:_MOST_WORDS] or [b"none"])}
        number = np.array([self._number(word) for word in words])
        self.aside.clear()
        for part in scan.scan(block, first, replace(_ROUTE, kinds=words), self._slow):
            held = number[np.minimum(part.kind, len(number) - 1)]
            for row in np.flatnonzero(part.kind == scan.NO_CODE).tolist():
                held[row] = self.aside[int(part.line[row])]
            self.numbers.append(held)
            unknown = np.full(len(held), UNKNOWN, np.uint8)
            fields.add(built, replace(part, phase=unknown, kind=unknown))

    def _number(self, request: object) -> int:
        return self.requests.setdefault(request, len(self.requests))

    def _slow(self, number: int, text: bytes) -> scan.SlowRow | None:
        row = fields.parsed(self.source, number, text)
        kind = fields.value(self.source, number, row, "type", "route")
        if kind == "meta":
            self._meta(number, row)
            return None
        if kind != "route":
            raise self.source.refuse(
                number, f"type is {fields.cut(repr(kind))} (its keys are {fields.keys(row)})", "route"
            )
        request = fields.value(self.source, number, row, "req_id", "the request's id")
        if request is not None and type(request) not in {str, int}:
            raise self.source.refuse(number, f"req_id is {fields.cut(repr(request))}", "a text or an integer")
        self.aside[number] = self._number(request)
        return scan.strict(replace(_ROUTE, kind=None, kinds={}), self.source.path)(number, text)

    def _meta(self, number: int, row: fields.Row) -> None:
        if not {"layers_logged", "top_k"} & row.keys():
            raise self.source.refuse(
                number, f"its keys are {fields.keys(row)}", "layers_logged or top_k, as vLLM's meta"
            )
        k = fields.integer(self.source, number, row, "top_k", fields.MAX_ID) if "top_k" in row else None
        if None not in {k, self.k} and k != self.k:
            raise self.source.refuse(number, f"top_k is {k}", f"{self.k}, as in the meta line before")
        self.k = k or self.k


@reader("vllm-log", _sniff_vllm)
def read_vllm(source: Source, hints: Hints) -> Rows:
    """JSON lines of vLLM logs: ``{"type":"route","req_id":"r1","token_idx":0,"layer":0,"topk_ids":[..]}``."""
    del hints
    routes, built = _Routes(source), RowsBuilder()
    for first, block in fields.whole_lines(source):
        routes.read(built, first, block)
    rows = built.rows(_about(source, "vllm-log", k=routes.k))
    return _by_request(source, rows, np.concatenate([*routes.numbers, np.zeros(0, np.int64)]))


def _by_request(source: Source, rows: Rows, request: NDArray[np.int64]) -> Rows:
    """Return the rows request by request, in the order in which requests begin, each in the file's order."""
    high = np.flatnonzero(rows.key >> _TOKEN_BITS)
    if len(high):
        row = int(high[0])
        raise source.refuse(int(rows.line[row]), f"token_idx is {rows.key[row]}", f"one below 2^{_TOKEN_BITS}")
    _, first, group = np.unique(request, return_index=True, return_inverse=True)
    if len(first) > _MOST_REQUESTS:
        raise InputError(f"{source.path} holds {len(first)} requests", f"at most {_MOST_REQUESTS}", "split it")
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    number = rank[group]
    rows = replace(rows, key=number << _TOKEN_BITS | rows.key)
    if len(first) < 2:
        return rows
    said = f"it holds {len(first)} requests: they are taken one after the other, in the order in which they begin"
    rows = replace(rows, about=replace(rows.about, warnings=(said,)))
    return _whole_requests(rows if bool((np.diff(number) >= 0).all()) else rows.take(np.argsort(number, kind="stable")))


def _whole_requests(rows: Rows) -> Rows:
    """Leave out the last token of each request that lacks layers, as where the file ends amid several requests.

    One with a layer more than once is of another kind, about which the checks decide.
    """
    request = rows.key >> _TOKEN_BITS
    ends = np.flatnonzero(np.append(np.diff(request) > 0, True))
    tail = np.flatnonzero(rows.key == np.repeat(rows.key[ends], np.diff(ends, prepend=-1)))
    of, layer = request[tail], rows.layer[tail]
    counts = np.bincount(of)
    layers = np.bincount(np.unique(of << 16 | layer) >> 16)
    short = (layers == counts) & (layers < len(np.unique(rows.layer)))
    if not short.any():
        return rows
    said = f"the last token of {np.count_nonzero(short)} request(s) lacks layers and was left out"
    kept = np.full(rows.n, fill_value=True)
    kept[tail[short[of]]] = False
    return rows.take(kept, replace(rows.about, warnings=(*rows.about.warnings, said)))


def _sniff_t_layer(source: Source) -> bool:
    row = fields.first(source)
    return {"t", "layer", "experts"} <= row.keys() and "type" not in row and not is_moevm(row)


@reader("t-layer", _sniff_t_layer)
def read_t_layer(source: Source, hints: Hints) -> Rows:
    """JSON lines by time step and layer: ``{"t":0,"layer":0,"experts":[..],"phase":"decode"}``."""
    del hints
    built = fields.scanned(source, _with_phase(source, "t", "layer", "experts"))
    return fields.numbered_on(built.rows(_about(source, "t-layer")), "t")


def _with_phase(source: Source, iteration: str | None, layer: str, ids: str) -> scan.Fields:
    """Return the fields of lines that have a phase if the first line has one."""
    has_phase = "phase" in source.first
    if not source.first:  # it is longer than the head
        _, block = next(source.blocks())
        has_phase = b'"phase"' in block.lstrip().split(b"\n", 1)[0]
    if has_phase:
        return scan.Fields(iteration, layer, ids, phase="phase", phases=PHASES)
    return scan.Fields(iteration, layer, ids)


def _foreign(names: scan.Fields, *more: str) -> Sequence[str]:
    return ("type", "t", *more) if names.phase else ("type", "t", "phase", *more)


def _sniff_patch(source: Source) -> bool:
    row = fields.first(source)
    return {"layer", "experts"} <= row.keys() and not {"type", "t", *_ITERATION} & row.keys()


@reader("patch-jsonl", _sniff_patch)
def read_patch(source: Source, hints: Hints) -> Rows:
    """JSON lines of engine patches, without a step: ``{"layer":3,"experts":[..]}``, k ids for each token of a call."""
    del hints
    names = _with_phase(source, None, "layer", "experts")
    return fields.scanned(source, names, foreign=_foreign(names, *_ITERATION)).rows(_about(source, "patch-jsonl"))


def _names(row: fields.Row) -> tuple[str, str, str] | None:
    """Return which keys of a record hold iteration, layer and ids."""
    iteration = next((name for name in _ITERATION if type(row.get(name)) is int), None)
    layer = next((name for name in _LAYER if type(row.get(name)) is int), None)
    ids = next((name for name in _IDS if fields.is_ids(row.get(name))), None)
    return None if iteration is None or layer is None or ids is None else (iteration, layer, ids)


def _sniff_records(source: Source) -> bool:
    row = fields.first(source)
    return not {"type", "t", "top_indices"} & row.keys() and not is_moevm(row) and _names(row) is not None


@reader("paper", _sniff_records)
def read_records(source: Source, hints: Hints) -> Rows:
    """JSON lines without types, such as the paper's: iteration, layer, ids; 2k of these are an accepted speculation.

    A layer that an iteration routes twice is a speculation that failed, and its repetition.
    """
    del hints
    found = _names(fields.first(source))
    if found is None:
        keys = fields.keys(fields.first(source))
        raise source.refuse(
            1,
            f"no record of an iteration, a layer and ids (its keys are {keys})",
            f"one of {', '.join(_ITERATION)}; one of {', '.join(_LAYER)}; one of {', '.join(_IDS)}",
        )
    names = _with_phase(source, *found)
    built = fields.scanned(source, names, foreign=_foreign(names))
    return fields.numbered_on(built.rows(_about(source, "paper", speculative=True)), found[0])


def _sniff_token(source: Source) -> bool:
    row = fields.first(source)
    return row.get("type") == "token" and {"token_index", "experts"} <= row.keys()


@reader("token-jsonl", _sniff_token)
def read_token(source: Source, hints: Hints) -> Rows:
    """JSON lines by token: ``{"type":"token","token_index":0,"phase":"decode","experts":[[..],[..]]}``."""
    del hints
    built = RowsBuilder()
    for number, row in fields.objects(source):
        kind = fields.value(source, number, row, "type", "token")
        if kind != "token":
            raise source.refuse(number, f"type is {fields.cut(repr(kind))} (its keys are {fields.keys(row)})", "token")
        token, phase = fields.integer(source, number, row, "token_index"), fields.phase(source, number, row)
        layers = fields.lists(source, number, row, "experts", "one list for each layer")
        for layer, ids in enumerate(layers):
            if ids:  # a dense layer's is empty
                built.add(number, token, layer, ids, phase)
    return fields.numbered_on(built.rows(_about(source, "token-jsonl")), "token_index")


def _sniff_megatron(source: Source) -> bool:
    row = fields.first(source)
    return {"step", "layer", "top_indices"} <= row.keys() and "type" not in row


@reader("megatron", _sniff_megatron)
def read_megatron(source: Source, hints: Hints) -> Rows:
    """JSON lines of Megatron: ``{"step":0,"layer":3,"topk":22,"top_indices":[[..],..]}``, a list for each token."""
    del hints
    built, k, drafts = RowsBuilder(), None, 0
    for number, row in fields.objects(source):
        tokens = fields.lists(source, number, row, "top_indices", "one list for each token")
        step, layer = (
            fields.integer(source, number, row, "step"),
            fields.integer(source, number, row, "layer", fields.MAX_ID),
        )
        stated = fields.integer(source, number, row, "topk", fields.MAX_ID)
        if row.get("mtp_idx") is not None:
            drafts += 1
            continue
        k = k or stated
        if stated != k:
            raise source.refuse(number, f"topk is {stated}", f"{k}, as in the lines before")
        wrong = next((ids for ids in tokens if len(ids) != k), None)
        if wrong is not None or not tokens:
            seen = "names no token" if wrong is None else f"has a list of {len(wrong)} ids"
            raise source.refuse(number, f"top_indices {seen}", f"lists of {k} (topk)")
        flat = [one for ids in tokens for one in ids]
        built.add(number, step, layer, flat, kind=BATCH if len(tokens) > 1 else UNKNOWN)
    said = (f"{drafts} records of draft layers (they have an mtp_idx) were left out",) if drafts else ()
    return fields.numbered_on(built.rows(_about(source, "megatron", k=k, warnings=said)), "step")


_TRACE = re.compile(rb'"trace"\s*:\s*\[\s*\{')
_ROUTED = re.compile(rb'"(prompt_)?routed_experts"\s*:')
_KNOWN = ("prompt_tokens", "completion_tokens", "prompt_routed_experts")
_DEEPEST = 8
_UNREADABLE = (ValueError, TypeError, OverflowError, MemoryError, EOFError, SyntaxError, tokenize.TokenError)
"""What a damaged .npy may raise: its header is a Python literal."""
_ENABLE = "start the engine with --enable-return-routed-experts, and ask for them"


def _sniff_document(source: Source) -> bool:
    return (
        source.head.lstrip().startswith(b"{")
        and _TRACE.search(source.head) is not None
        and b'"expert_ids"' in source.head
    )


@reader("trace-document", _sniff_document)
def read_document(source: Source, hints: Hints) -> Rows:
    """A JSON document: ``{"num_layers":4,"trace":[{"step":0,"layer":0,"expert_ids":[..]}]}``; step 0: the prompt."""
    del hints
    document = source.document()
    if not isinstance(document, dict) or not isinstance(document.get("trace"), list):
        seen = f"its keys are {fields.keys(document)}" if isinstance(document, dict) else "it is no JSON object"
        raise InputError(f"{source.path}: {seen}", "an object with a list trace")
    built = RowsBuilder()
    for number, row in enumerate(document["trace"], 1):
        if not isinstance(row, dict):
            raise source.refuse(number, f"a JSON {type(row).__name__}", "an object", unit="record")
        step = fields.integer(source, number, row, "step", unit="record")
        layer = fields.integer(source, number, row, "layer", fields.MAX_ID, unit="record")
        ids = fields.ids(source, number, row, "expert_ids", unit="record")
        if step:
            built.add(number, step, layer, ids, DECODE)
        else:
            built.add(number, step, layer, ids, PREFILL, UNION)
    rows = built.rows(_about(source, "trace-document", place="record"))
    layers, named = document.get("num_layers"), len(np.unique(rows.layer))
    if layers is not None and layers != named:
        said = f"num_layers is {fields.cut(repr(layers))}, and the records name {named} layers"
        rows = replace(rows, about=replace(rows.about, warnings=(said,)))
    return fields.numbered_on(rows, "step")


class _Stream(NamedTuple):
    """One sequence of a response: what it says of its experts, of its prompt's, and of its lengths in tokens."""

    experts: object
    prompt_experts: object
    prompt: int | None
    completion: int | None


class _Place(NamedTuple):
    """A response of a file: a line, or a part of a document."""

    source: Source
    unit: str
    number: int

    def refuse(self, seen: str, expected: str, do: str = "") -> InputError:
        return self.source.refuse(self.number, seen, expected, do, unit=self.unit)


def _sniff_routed(source: Source) -> bool:
    return (
        source.head.lstrip().startswith((b"{", b"["))
        and _ROUTED.search(source.head) is not None
        and not {"layer", "token_index", "type"} & fields.first(source).keys()
        and not _sniff_document(source)
    )


@reader("routed-experts", _sniff_routed)
def read_routed(source: Source, hints: Hints) -> Rows:
    """JSON responses of vLLM and SGLang: ``routed_experts`` [tokens, layers, k], as lists or in base64."""
    built, at, streams = RowsBuilder(), 0, 0
    warnings: list[str] = []
    place = _Place(source, "line", 0)
    for place, response in _responses(source):
        found = list(_streams(response, {}, _DEEPEST))
        if not found:
            seen = f"no routed_experts (its keys are {fields.keys(response)})"
            raise place.refuse(seen, "a response that holds them", _ENABLE)
        streams += len(found)
        for number, stream in enumerate(found):
            parts = list(_prompt(place, stream, hints.k)) if not number else []
            for tokens, phases in [*parts, _generated(place, stream, hints.k)]:
                if bool((phases == UNKNOWN).any()):
                    warnings.append(f"{place.unit} {place.number} does not tell the prompt's tokens from the others")
                fields.add(built, _columns(place, at, tokens, phases))
                at += len(tokens)
    if streams > 1:
        warnings.append(f"it holds {streams} sequences: they are taken one after the other")
    return built.rows(_about(source, "routed-experts", place=place.unit, warnings=tuple(warnings)))


def _responses(source: Source) -> Iterator[tuple[_Place, fields.Row]]:
    """Yield every response of JSON lines, or of a document that is one or a list of them."""
    if source.first or (source.head.lstrip().startswith(b"{") and b"\n" not in source.head.strip()):
        for number, row in fields.objects(source):
            yield _Place(source, "line", number), row
        return
    document = source.document()
    for number, row in enumerate(document if isinstance(document, list) else [document], 1):
        place = _Place(source, "response", number)
        if not isinstance(row, dict):
            raise place.refuse(f"a JSON {type(row).__name__}", "an object")
        yield place, row


def _streams(node: fields.Row, known: fields.Row, depth: int) -> Iterator[_Stream]:
    """Yield what is called routed_experts at any depth, with the lengths that stand beside it or above it."""
    usage = node.get("usage")
    parts = (usage if isinstance(usage, dict) else {}, node)
    known = {**known, **{name: part[name] for part in parts for name in _KNOWN if part.get(name) is not None}}
    if "routed_experts" in node:
        prompt, completion = (
            count if type(count) is int else None for count in map(known.get, ("prompt_tokens", "completion_tokens"))
        )
        yield _Stream(node["routed_experts"], known.get("prompt_routed_experts"), prompt, completion)
    for value in node.values() if depth else ():
        for one in value if isinstance(value, list) and value and isinstance(value[0], dict) else [value]:
            if isinstance(one, dict):
                yield from _streams(one, known, depth - 1)


def _prompt(place: _Place, stream: _Stream, k: int | None) -> Iterator[tuple[I64, U8]]:
    if stream.prompt_experts is not None:
        tokens = _array(place, "prompt_routed_experts", stream.prompt_experts, stream.prompt, k)
        yield tokens, np.full(len(tokens), PREFILL, np.uint8)


def _generated(place: _Place, stream: _Stream, k: int | None) -> tuple[I64, U8]:
    """Return the tokens of ``routed_experts``, and the phase of each.

    Lists are documented to be of the generated tokens, base64 to begin with the prompt; the last token that was
    generated went through no layer, so that engines leave it out. Where the lengths are known they decide.
    """
    packed = isinstance(stream.experts, str)
    prompt, completion = stream.prompt, stream.completion
    length = None if prompt is None or completion is None else prompt + completion - 1
    tokens = _array(place, "routed_experts", stream.experts, length, k)
    n, phases = len(tokens), np.full(len(tokens), DECODE, np.uint8)
    if stream.prompt_experts is not None or (not packed and (prompt is None or completion is None)):
        return tokens, phases
    if not packed and completion is not None and n in {completion, completion - 1}:
        return tokens, phases
    if prompt is None or n <= prompt or (completion is not None and n - prompt not in {completion, completion - 1}):
        phases[:] = UNKNOWN
    else:
        phases[:prompt] = PREFILL
    return tokens, phases


def _array(place: _Place, name: str, value: object, length: int | None, k: int | None) -> I64:
    expected = "[tokens, layers, k] expert ids"
    if value is None:
        raise place.refuse(f"{name} is null", expected, _ENABLE)
    try:
        array = _unpacked(place, name, value, length, k) if isinstance(value, str) else np.asarray(value)
    except _UNREADABLE as error:
        raise place.refuse(f"{name} cannot be read ({fields.cut(str(error))})", expected) from error
    if array.ndim != 3 or array.dtype.kind not in "iu" or not array.size:
        shape = "x".join(map(str, array.shape)) or "1"
        raise place.refuse(f"{name} is {shape} values of type {array.dtype}", expected)
    wrong = np.argwhere((array < -1) | (array > fields.MAX_ID))
    if len(wrong):
        token, layer, at = wrong[0].tolist()
        raise place.refuse(
            f"{name}: token {token}, layer {layer} names expert {array[token, layer, at]}", f"0 to {fields.MAX_ID}"
        )
    return array.astype(np.int64)


def _unpacked(place: _Place, name: str, text: str, length: int | None, k: int | None) -> NDArray[Any]:
    """Return what base64 holds: a .npy file (vLLM), or int32 values without a shape (SGLang)."""
    data = base64.b64decode(text, validate=True)
    if data.startswith(b"\x93NUMPY"):
        array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
        return array
    flat = np.frombuffer(data, "<i4")
    if k is None or not length:
        missing = "k" if k is None else "prompt_tokens and completion_tokens beside it"
        raise place.refuse(f"{name} is {len(flat)} values without a shape", missing, "--k K" if k is None else "")
    if not len(flat) or len(flat) % (length * k):
        raise place.refuse(
            f"{name} is {len(flat)} values", f"a multiple of {length} tokens x {k} (k)", "--k K if k is another"
        )
    return flat.reshape(length, -1, k)


def _columns(place: _Place, at: int, tokens: I64, phases: U8) -> scan.Columns:
    """Return one row for each token and layer; a layer without experts is all -1, and left out."""
    layers = np.flatnonzero((tokens >= 0).any(axis=(0, 2)))
    kept = tokens[:, layers]
    holes = np.argwhere(kept < 0)
    if len(holes):
        token, layer, _ = holes[0].tolist()
        raise place.refuse(f"token {token}, layer {layers[layer]} has no experts (-1)", "experts for every token")
    n_rows = kept.shape[0] * kept.shape[1]
    unknown = np.full(n_rows, UNKNOWN, np.uint8)
    return scan.Columns(
        line=np.full(n_rows, place.number, np.uint64),
        key=np.repeat(np.arange(at, at + len(kept)), len(layers)),
        layer=np.tile(layers.astype(np.int32), len(kept)),
        phase=np.repeat(phases, len(layers)),
        kind=unknown,
        flags=np.zeros(n_rows, np.uint8),
        width=np.full(n_rows, kept.shape[2], np.uint32),
        ids=kept.reshape(-1).astype(np.uint16),
    )
