"""The only way in: a trace file of any known format becomes a validated ``Trace``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_moetier.errors import InputError
from pytest_moetier.trace import checks, parser
from pytest_moetier.trace.formats import READERS, arrays
from pytest_moetier.trace.formats.registry import Reader
from pytest_moetier.trace.records import ORDERS, Trace
from pytest_moetier.trace.rows import Hints
from pytest_moetier.trace.selections import Selections
from pytest_moetier.trace.source import Source

IN_PLACE_BYTES = 64 << 20
"""From this size on, statistics use a plain ``.npy`` in place."""

_NEXT = "`moetier trace formats` lists what is read; `moetier trace synth PRESET FILE` writes a trace to try with"


def load_trace(  # noqa: PLR0913  (what a user may know of a file, by keyword)
    path: Path | str,
    format: str | None = None,  # noqa: A002  (the option's name)
    *,
    n_experts: int | None = None,
    k: int | None = None,
    requested_tokens: int | None = None,
    raw: bool = False,
    policy: Mapping[str, str] | None = None,
) -> Trace:
    """Return the trace in a file.

    Args:
        path: the file; gzip and zstd are recognised by content.
        format: a name of ``formats.READERS``; default: told from the content.
        n_experts: experts per layer, for formats that do not state it.
        k: experts per layer and pass, likewise.
        requested_tokens: what the engine was asked for: a decode accepts one token fewer.
        raw: nothing is taken out: what the checks find is said, and kept; a file of prompts alone is replayed as it is.
        policy: action by check (``checks``), where another than the default is wanted.

    Raises:
        InputError: no such file, no known format, or content that breaks a rule; the message names file and line.
    """
    file = Path(path)
    hints = Hints(n_experts, k, requested_tokens)
    try:
        return _load(Source(file), format, hints, checks.chosen(policy or {}, raw=raw), raw=raw)
    except InputError as error:
        seen = error.seen if str(file) in error.seen else f"{file}: {error.seen}"
        raise InputError(seen, error.expected, error.do or _NEXT) from error


def load_traces(
    paths: Sequence[Path | str],
    *,
    raw: bool = False,
    policy: Mapping[str, str] | None = None,
    **known: Any,  # noqa: ANN401
) -> list[Trace]:
    """Return the traces in several files, also checked against each other; ``known`` are ``load_trace``'s keywords.

    Raises:
        InputError: as ``load_trace``.
    """
    traces = [load_trace(path, raw=raw, policy=policy, **known) for path in paths]
    return checks.check_together(traces, checks.chosen(policy or {}, raw=raw))[0]


@dataclass(frozen=True, slots=True)
class LoadedSelections:
    """A file's passes, and what has to be said of them."""

    selections: Selections
    warnings: tuple[str, ...]


def load_selections(
    paths: Sequence[Path | str],
    phase: str = "decode",
    **known: Any,  # noqa: ANN401  (``load_trace``'s keywords)
) -> list[LoadedSelections]:
    """Return the passes in several files, for statistics; a large plain ``.npy`` is used in place, without a copy.

    Raises:
        InputError: as ``load_trace``, or the trace has no such phase.
    """
    in_place = {at: one for at, path in enumerate(paths) if (one := _in_place(Path(path), phase, known))}
    others = load_traces([path for at, path in enumerate(paths) if at not in in_place], **known)
    loaded = iter([LoadedSelections(one.selections(phase), one.warnings) for one in others])
    return [in_place[at] if at in in_place else next(loaded) for at in range(len(paths))]


def _in_place(path: Path, phase: str, known: Mapping[str, Any]) -> LoadedSelections | None:
    if path.suffix != ".npy" or phase != "decode" or not path.is_file() or path.stat().st_size < IN_PLACE_BYTES:
        return None
    ids = arrays.open_array(Source(path))
    if ids is None:
        return None
    _, layers, k = ids.shape
    flat = ids.reshape(-1)
    n_experts = known.get("n_experts") or int(flat.max()) + 1
    said = ["the array is used in place: only ids out of range and repeated within a pass are checked"]
    if not known.get("n_experts"):
        said.append(f"the file does not state the experts per layer; {n_experts} is its highest id + 1")
    selections = Selections(
        ids=flat,
        row_layer=None,
        layers=tuple(range(layers)),
        n_experts=n_experts,
        k=k,
        phase=phase,
        order=ORDERS["issued"],
        synthetic=False,
        source=f"numpy array {path.name}",
    )
    return LoadedSelections(selections, tuple(said))


def _load(source: Source, format: str | None, hints: Hints, policy: checks.Policy, *, raw: bool) -> Trace:  # noqa: A002
    rows = pick(source, format).read(source, hints)
    warnings = tuple(dict.fromkeys([*source.warnings, *rows.about.warnings]))
    about = replace(rows.about, warnings=warnings, cut=rows.about.cut or source.cut)
    arranged = parser.arrange(replace(rows, about=about), hints)
    kept, findings = checks.check_rows(arranged, policy)
    trace = parser.parse(kept, hints, raw=raw)
    found = (*findings, *checks.check_trace(trace, policy))
    return replace(trace, findings=found, warnings=(*trace.warnings, *map(str, found)))


def pick(source: Source, format: str | None = None) -> Reader:  # noqa: A002
    """Return the reader for a file.

    Raises:
        InputError: there is no such format, or the content is of none.
    """
    names = ", ".join(sorted(name for name, one in READERS.items() if not one.refuses))
    if format is not None:
        if format not in READERS:
            raise InputError(f"no trace format {format!r}", f"one of {names}")
        return READERS[format]
    fitting = [one for one in READERS.values() if one.sniff(source)]
    if not fitting:
        raise InputError(f"{source.path} is of no known trace format ({_described(source)})", f"one of {names}")
    return fitting[0]


def _described(source: Source) -> str:
    if source.first:
        return "its first line has " + ", ".join(sorted(map(str, source.first)))[:80]
    line = (source.head_lines[0] if source.head_lines else source.head)[:60]
    if line.isascii() and line.decode().isprintable():
        return f"it begins {line.decode()!r}"
    return f"binary, beginning {line[:8].hex(' ')}"
