"""What people look at: header, progress, the table of a finding, and the files that were asked for."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pytest_moetier.campaign import CellResult
from pytest_moetier.cell import HOST, RECLAIM, Cell
from pytest_moetier.comparison import comparison_lines
from pytest_moetier.errors import InputError, MoetierError
from pytest_moetier.files import write_whole
from pytest_moetier.finding import PROFILE_FORMAT, Metric, metrics_of
from pytest_moetier.history.store import guests_of
from pytest_moetier.host.probe import host_facts
from pytest_moetier.results import document
from pytest_moetier.routing import CACHES, GIVEN, RECORDED, SYNTHETIC, UNITS, Subject
from pytest_moetier.settings import option, read_options
from pytest_moetier.units import format_bytes, format_seconds
from pytest_moetier.verdicts import ENGINE, MoetierSession, Record

_RULED = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
"""Columns two apart and a rule under the head: ASCII, so that a log or a mail keeps it."""
_UNCUT = 1000
_WIDTH = 200  # wider than any table of ours: a row is never cut; a narrow terminal wraps it


def header_lines(version: str, session: MoetierSession) -> list[str]:
    """Return the lines that say what a session measures on."""
    facts, settings = host_facts(), session.campaign.settings
    given = ", ".join(str(path) for _, path in settings.asked.traces)
    trace = given or "synthetic (seeded, Kimi-K3 shape)"
    profile = session.profile.name if session.profile else "none"
    return [
        f"moetier: {version}, {_lane(session)}kernel {platform.release()}, {facts.summary()}",
        f"moetier: pool {settings.pool}, trace {trace}",
        f"moetier: rounds {settings.rounds}, seed {settings.seed}, threads {settings.threads}, profile {profile}",
    ]


def engine_lines(version: str, session: MoetierSession) -> list[str]:
    """Return the lines that say what a session's findings on an engine rest on."""
    asked, settings = read_options(session.config).engine, session.campaign.settings
    made = "generated, random weights: synthetic" if asked.model is None else str(asked.model)
    return [
        f"moetier: {version}, findings on a real engine, kernel {platform.release()}, {host_facts().summary()}",
        f"moetier: model {made}; {asked.tokens} tokens, seed {settings.seed}, threads {settings.threads}",
    ]


def _lane(session: MoetierSession) -> str:
    """Return where cells are measured: on this host, or in guests with these kernels, or both."""
    labels = [one.label for one in read_options(session.config).kernels]
    guests = [one for one in labels if one != HOST]
    lanes = ([HOST] if HOST in labels else []) + ([f"guest {', '.join(guests)}"] if guests else [])
    return f"lane {' and '.join(lanes)}, {'host ' if guests else ''}"


def routing_lines(version: str, session: MoetierSession, chosen: Sequence[Subject]) -> list[str]:
    """Return the lines that say which traces a session's routing findings rest on."""
    told = []
    made = [one for one in chosen if one.origin == SYNTHETIC]
    if made:
        models, domains = (dict.fromkeys(getattr(one, name) for one in made) for name in ("preset", "domain"))
        told.append(f"synthetic (seed {session.studies.seed}): {', '.join(models)} x {', '.join(domains)}")
    told += [f"{one.id}: {one.path}" for one in chosen if one.origin == GIVEN]
    recorded = [one.id for one in chosen if one.origin == RECORDED]
    told += [f"recorded: {', '.join(recorded)}"] if recorded else []
    profile = session.profile.name if session.profile else "none"
    count = "1 trace" if len(chosen) == 1 else f"{len(chosen)} traces"
    return [
        f"moetier: {version}, findings on {count} (no pool, device or root is needed), profile {profile}",
        *(f"moetier: traces {each}" for each in told),
    ]


def terminal_summary(terminal: Any, session: MoetierSession) -> None:  # noqa: ANN401 - pytest's TerminalReporter
    """Print one table per finding and a line for everything that is not simply supported."""
    if not session.records:
        return
    terminal.ensure_newline()
    terminal.section("moetier", sep="=")
    for finding in sorted({record.finding for record in session.records.values()}):
        records = [record for record in session.records.values() if record.finding == finding]
        cells = [record for record in records if not record.rowed]
        if cells:
            terminal.write_line(_rendered(_table(finding, cells, session), terminal.hasmarkup, _UNCUT))
        for line in _routing(finding, [record for record in records if record.traced], markup=terminal.hasmarkup):
            terminal.write_line(line)
        for line in _machines(finding, [one for one in records if one.constants is not None], terminal.hasmarkup):
            terminal.write_line(line)
        for line in _engines(finding, [one for one in records if one.engine is not None], terminal.hasmarkup):
            terminal.write_line(line)
    for line in _remarks(session):
        terminal.write_line(line)
    if session.against is not None:
        for line in comparison_lines(session.against, session):
            terminal.write_line(line)


def _rendered(table: Table, markup: bool, width: int = 0) -> str:  # noqa: FBT001 - a terminal's property
    text = StringIO()
    console = Console(file=text, width=width or _WIDTH, force_terminal=markup, no_color=not markup)
    console.print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines() if line.strip())


_COLOURS = {"supported": "green", "refuted": "yellow", "invalid": "bold red", "not_examined": "dim"}
_Metrics = Mapping[str, Metric]


def _table(finding: str, records: Sequence[Record], session: MoetierSession) -> Table:
    results = session.campaign.results
    cells = [results[one.cell].cell for one in records if one.cell in results]
    contexts = [found for cell in cells if (found := session.campaign.context_of(cell)) is not None]
    kinds = [
        word
        for word, yes in (
            ("synthetic trace", not contexts or any(one.synthetic_trace for one in contexts)),
            ("synthetic pool", not contexts or any(one.synthetic_pool for one in contexts)),
        )
        if yes
    ]
    title = f"{finding} ({', '.join(kinds)})" if kinds else finding
    table = Table(title=title, title_justify="left", box=_RULED)
    table.add_column("cell", no_wrap=True)
    several = len({cell.kernel for cell in cells}) > 1
    if several:
        table.add_column("kernel", no_wrap=True)
    columns = _columns(records, cells)
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for record in records:
        verdict = f"[{_COLOURS[record.verdict]}]{record.shown}[/]"
        # An unproved run has no figures to show.
        metrics = {} if record.verdict == "invalid" else record.metrics
        words = [escape(record.cell or record.test), *([_kernel(results.get(record.cell or ""))] if several else [])]
        table.add_row(*words, *(show(metrics) if metrics else "" for _, show in columns), verdict)
    return table


def _kernel(result: CellResult | None) -> str:
    """Return the release of the kernel that a cell was measured on, or its label where none was booted."""
    if result is None:
        return ""
    guests = guests_of(result)
    return guests[0].release if guests else platform.release() if result.proved else result.cell.kernel


def _columns(records: Sequence[Record], cells: Sequence[Cell]) -> list[tuple[str, Callable[[_Metrics], str]]]:
    """Return the columns of a table: those of the capacity curve, of reclaim, or what tells modes apart as well."""
    if any(cell.workload in RECLAIM for cell in cells):
        return _RECLAIM_COLUMNS
    names = {name for record in records for name in record.metrics}
    alike = {replace(cell, mechanism="cgroup", locked=0, mglru="host", kernel=HOST) for cell in cells}
    varied = len({cell.capacity for cell in cells}) == 1 and len(alike) > 1
    if varied or names & {"held_bytes", "advice_recall", "oom_kills"}:
        return _MODE_COLUMNS + [one for one in _OPTIONAL_COLUMNS if one[0] in _shown_columns(names)]
    return _CURVE_COLUMNS


def _shown_columns(names: Collection[str]) -> set[str]:
    wanted = {"recall": "advice_recall", "written": "written_bytes", "kills": "oom_kills"}
    return {column for column, name in wanted.items() if name in names}


def _scan_steal(metrics: _Metrics) -> str:
    scan = sum(metrics[name].median for name in metrics if name.startswith("scan_"))
    steal = sum(metrics[name].median for name in metrics if name.startswith("steal_"))
    return f"{scan / steal:.2f}" if steal else ""


def _spread(name: str) -> Callable[[_Metrics], str]:
    return lambda metrics: f"{metrics[name].spread:.1%}" if name in metrics else ""


def _size(name: str) -> Callable[[_Metrics], str]:
    return lambda metrics: format_bytes(metrics[name].median) if name in metrics else ""


def _number(name: str, form: str = ".3f") -> Callable[[_Metrics], str]:
    return lambda metrics: format(metrics[name].median, form) if name in metrics else ""


def _time(metrics: _Metrics) -> str:
    return format_seconds(metrics["seconds_per_iteration"].median) if "seconds_per_iteration" in metrics else ""


def _range(metrics: _Metrics) -> str:
    metric = metrics.get("seconds_per_iteration")
    return f"{min(metric.values) * 1e3:.4g}-{max(metric.values) * 1e3:.4g}" if metric else ""


_HEAD_COLUMNS: list[tuple[str, Callable[[_Metrics], str]]] = [
    ("s/iter", _time),
    ("range, ms", _range),
    ("spread", _spread("seconds_per_iteration")),
    ("device/iter", _size("device_bytes")),
    ("spread", _spread("device_bytes")),
]
_CURVE_COLUMNS = [
    *_HEAD_COLUMNS,
    ("nominal", _size("nominal_bytes")),
    ("amp", _number("amplification")),
    ("amp@C", _number("amplification_at_c")),
    ("rail", _number("rail_deviation", "+.1%")),
    ("resident", _size("observed_capacity_bytes")),
    ("scan/steal", _scan_steal),
    ("LRU set", _number("lru_overlap", ".1%")),
    ("MIN set", _number("belady_overlap", ".1%")),
    ("partial", _number("partial_experts", ".0f")),
]
_RECLAIM_COLUMNS = [
    ("s/iter", _time),
    ("device/iter", _size("device_bytes")),
    ("spread", _spread("device_bytes")),
    ("nominal", _size("nominal_bytes")),
    ("amp", _number("amplification")),
    ("spread", _spread("amplification")),
    ("amp@C", _number("amplification_at_c")),
    ("C", _size("capacity_bytes")),
    ("control", _size("control_bytes")),
    ("resident", _size("observed_capacity_bytes")),
    ("locked", _number("locked_share", ".1%")),
    ("scan/steal", _number("scan_per_steal", ".2f")),
    ("period", _number("wave_period", ".0f")),
]
_MODE_COLUMNS = [
    *_HEAD_COLUMNS,
    ("served", _number("demand_served", ".1%")),
    ("own", _size("held_bytes")),
    ("amp", _number("amplification")),
    ("holds", _size("observed_capacity_bytes")),
    ("majflt", _number("major_faults", ".4g")),
    ("cpu/iter", lambda metrics: _seconds(metrics.get("cpu_seconds_per_iteration"))),
]
_OPTIONAL_COLUMNS: list[tuple[str, Callable[[_Metrics], str]]] = [
    ("recall", _number("advice_recall")),
    ("written", _size("written_bytes")),
    ("kills", _number("oom_kills", ".0f")),
]


def _seconds(metric: Metric | None) -> str:
    return format_seconds(metric.median) if metric else ""


_MARKS = {"supported": "s", "refuted": "r", "not_examined": "n"}
_MARK_LEGEND = "s supported, r refuted, n not examined (no bound holds here, or it speaks of other traces)"


def _routing(finding: str, records: Sequence[Record], *, markup: bool) -> list[str]:
    """Return the tables of the findings on traces: a row per trace, and below a row per finding over several."""
    lines = []
    alone, over = ([one for one in records if one.over == several] for several in (False, True))
    if alone:
        lines += [_title(f"{finding}: traces", alone), _rendered(_subject_table(alone), markup, _UNCUT)]
    if over:
        lines += [_title(f"{finding}: over domains", over), _rendered(_domains_table(over), markup)]
    orders = sorted({str(each["order"]) for one in records for each in one.accounting})
    if orders:
        lines.append(f"{_MARK_LEGEND}; order within a pass: {', '.join(orders)}; caches: {CACHES}")
    return lines


def _machines(finding: str, records: Sequence[Record], markup: bool) -> list[str]:  # noqa: FBT001 - as _rendered
    """Return the table of the findings on machines, a row each, and the constants that they rest on, with sources."""
    if not records:
        return []
    lines = [f"{finding}: machines", _rendered(_domains_table(records, "machine"), markup), _MARK_LEGEND]
    rested = [f"constant {one.cell}: {_constant(each)}" for one in records for each in one.constants or ()]
    return lines + list(dict.fromkeys(rested))


def _engines(finding: str, records: Sequence[Record], markup: bool) -> list[str]:  # noqa: FBT001 - as _rendered
    """Return the tables of the findings on an engine: a row per arm or replay, and below a row per finding."""
    if not records:
        return []
    facts = next((one.engine for one in records if one.engine and one.engine["model"]), records[0].engine) or {}
    kind = " (synthetic: random weights, synthetic traces)" if facts["synthetic"] else ""
    lines = [f"{finding}: {facts['model'] or 'no run'}{kind}"]
    alone, over = ([one for one in records if (one.cell == ENGINE) == several] for several in (False, True))
    if alone:
        table = Table(box=_RULED)
        table.add_column("measured", no_wrap=True)
        for name, _ in _ENGINE_COLUMNS:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        for record in alone:
            metrics = {} if record.verdict == "invalid" else record.metrics
            shown = (show(metrics) for _, show in _ENGINE_COLUMNS)
            table.add_row(str(record.cell), *shown, f"[{_COLOURS[record.verdict]}]{record.verdict}[/]")
        lines.append(_rendered(table, markup, _UNCUT))
    if over:
        lines += [_rendered(_domains_table(over, "over"), markup), _MARK_LEGEND]
    return lines + ([f"engine: {facts['engine']}"] if "engine" in facts else [])


def _first(*shows: Callable[[_Metrics], str]) -> Callable[[_Metrics], str]:
    """Return what shows the first metric that is there: replays and runs of an engine have names of their own."""
    return lambda metrics: next((text for show in shows if (text := show(metrics))), "")


_ENGINE_COLUMNS: list[tuple[str, Callable[[_Metrics], str]]] = [
    ("tok/s", _number("tokens_per_second")),
    ("s/token", _first(_number("seconds_per_token"), _number("seconds_per_iteration"))),
    ("spread", _first(_spread("seconds_per_token"), _spread("seconds_per_iteration"))),
    ("majflt/token", _first(_number("majflt_per_token", ".4g"), _number("major_faults", ".4g"))),
    ("device/token", _first(_size("bytes_per_token"), _size("device_bytes"))),
    ("spread", _first(_spread("bytes_per_token"), _spread("device_bytes"))),
    ("resident", _first(_size("resident_bytes"), _size("observed_capacity_bytes"))),
    ("prefill", _number("prefill_seconds")),
    ("load", _number("load_seconds")),
    ("MB/s", lambda metrics: f"{metrics['device_rate'].median / 1e6:.1f}" if "device_rate" in metrics else ""),
]


def _constant(one: Mapping[str, Any]) -> str:
    value = f"{one['value'] / 1e9:.4g} GB/s" if one["unit"] == "B/s" else f"{one['value']:.4g} {one['unit']}"
    return f"{one['name']} {value} ({', '.join(filter(None, (one['source'], one['date'])))})"


def _subject_table(records: Sequence[Record]) -> Table:
    rows: dict[str, list[Record]] = {}
    for record in records:
        rows.setdefault(str(record.cell), []).append(record)
    names = list(dict.fromkeys(name for record in records for name in record.metrics))
    origins = {_origin(record) for record in records}
    table = Table(box=_RULED)
    table.add_column("trace", no_wrap=True)
    for name in names:
        table.add_column(_head(name), justify="right", no_wrap=True)
    for subject, tests in rows.items():
        found = {name: _marked(record, name) for record in tests for name in record.metrics}
        table.add_row(_named(subject, _origin(tests[0]), origins), *(found.get(name, "") for name in names))
    return table


def _domains_table(records: Sequence[Record], head: str = "traces") -> Table:
    origins = {_origin(record) for record in records}
    table = Table(box=_RULED)
    for name in (head, "finding", "values", "verdict"):
        table.add_column(name, no_wrap=name != "values")
    for record in records:
        values = ", ".join(f"{_head(name)} {_marked(record, name)}" for name in record.metrics)
        verdict = f"[{_COLOURS[record.verdict]}]{record.verdict}[/]"
        table.add_row(_named(str(record.cell), _origin(record), origins), _test_word(record), values, verdict)
    return table


def _title(words: str, records: Iterable[Record]) -> str:
    """Name the origin of all traces at once where it is one; otherwise each row names its own."""
    origins = {_origin(record) for record in records}
    return f"{words} ({', '.join(origins)})" if len(origins) == 1 else words


def _named(subject: str, origin: str, origins: Collection[str]) -> str:
    return subject if len(origins) == 1 else f"{subject} ({origin})"


def _origin(record: Record) -> str:
    """Return ``synthetic`` whoever gave the trace, else ``given`` or ``recorded``."""
    words = {SYNTHETIC if each["synthetic"] else str(each["origin"]) for each in record.accounting}
    return ", ".join(sorted(words))


def _test_word(record: Record) -> str:
    return record.test.partition("[")[0].removeprefix("test_")


def _head(name: str) -> str:
    return UNITS.get(name, ("", ""))[1] or name


def _marked(record: Record, name: str) -> str:
    """Return a value and the mark of the worst verdict on it."""
    found = {one.verdict for one in record.judgements if one.bound.value == name}
    verdict = next((one for one in ("refuted", "not_examined", "supported") if one in found), "not_examined")
    metric = record.metrics[name]
    value = metric.median
    counted = metric.unit not in {"share", "ratio"} and value == int(value)
    text = f"{value:.0f}" if counted else f"{value:.3f}" if value < 10 else f"{value:.4g}"
    return f"{text}[{_COLOURS[verdict]}]{_MARKS[verdict]}[/]"


def _remarks(session: MoetierSession) -> list[str]:
    records = list(session.records.values())
    lines = [f"note: {note}" for note in session.campaign.notes]
    lines += [f"warning: {text}" for one in session.campaign.results.values() for text in one.warnings]
    told = {(str(each["subject"]), text) for one in records for each in one.accounting for text in each["warnings"]}
    lines += [f"warning: {subject}: {text}" for subject, text in sorted(told)]
    for record in records:
        one_by_one = {"refuted", "invalid"} if record.rowed else {"refuted", "invalid", "not_examined"}
        if record.verdict in one_by_one and record.reason:
            where = f"{record.cell} {_test_word(record)}" if record.rowed else record.cell or record.test
            said = record.reason.splitlines()
            lines += [f"{record.shown} {where}: {line}" for line in (said if record.rowed else said[:1])]
    lines += [f"{one.shown} {one.test}: {judged}" for one in records for judged in _told(one)]
    lines += _not_examined([one for one in records if one.rowed and one.verdict == "not_examined"])
    # Two findings may rest on one cell, of which the same is then to be said.
    lines += dict.fromkeys(line for record in records if (line := _lowered(record)))
    lines += dict.fromkeys(line for record in records for line in _knowing(record))
    lines += _scales(records)
    counts = Counter(one.shown for verdict in _COLOURS for one in records if one.verdict == verdict)
    lines.append("verdicts: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    return lines


def _scales(records: Iterable[Record]) -> list[str]:
    """Return which verdicts were reached at which scale; none of them is one on hardware."""
    found: dict[str, list[str]] = {}
    for record in records:
        if record.scale is not None:
            found.setdefault(record.scale.words, []).append(record.cell or record.test)
    lines = [f"scale {', '.join(dict.fromkeys(names))}: {words}" for words, names in found.items()]
    count = sum(map(len, found.values()))
    told = f"hardware: not_examined by {count} test{'s' * (count > 1)} in virtual machines; next: bench/ on a host"
    return [*lines, told] if lines else []


def _told(record: Record) -> list[str]:
    """Return the judgements of a supported finding over several cells: its figures have no row of their own."""
    alone = record.rowed or record.cell is not None or record.verdict != "supported"
    return [] if alone else [str(one) for one in record.judgements]


def _not_examined(records: Iterable[Record]) -> list[str]:
    """Return a line per reason and tests that share it: one reason is often that of every test of a trace."""
    tests: dict[tuple[str, str], list[str]] = {}
    for record in records:
        tests.setdefault((record.why or record.reason, str(record.cell)), []).append(_test_word(record))
    traces: dict[tuple[str, str], list[str]] = {}
    for (why, trace), names in tests.items():
        traces.setdefault((why, ", ".join(names)), []).append(trace)
    return [f"not_examined {', '.join(each)} ({names}): {why}" for (why, names), each in traces.items()]


def _knowing(record: Record) -> list[str]:
    """Return what a cell was given to know: an oracle is labelled so, a predictor by its recall, and its delivery."""
    if record.verdict == "invalid":
        return []
    lines = [f"given {record.cell}: {one.words}" for one in record.lists]
    found = {name.removeprefix("prefetch_"): one.median for name, one in record.metrics.items()}
    if "prefetch_submitted" in record.metrics:
        came = found["became_resident_bytes"] or found["read_bytes"]
        verb = "became resident" if found["became_resident_bytes"] else "were read"
        lines.append(
            f"prefetch {record.cell}: {found['submitted']:.0f} lists submitted, {found['completed']:.0f} completed,"
            f" {found['overwritten']:.0f} overwritten; of {format_bytes(found['asked_bytes'])} asked"
            f" {format_bytes(found['resident_before_bytes'])} were resident before, {format_bytes(came)} {verb}"
        )
    return lines


def _lowered(record: Record) -> str:
    """Return which invariants lower what a proved cell may claim, and in how many of its rounds; "" for none."""
    if record.verdict == "invalid":
        return ""
    found = Counter(name for proof in record.proofs for name in (*proof.flagged, *proof.unobserved))
    said = ", ".join(f"{name} ({count} of {len(record.proofs)} rounds)" for name, count in found.items())
    return f"flagged or unobserved {record.cell}: {said}" if said else ""


def write_files(session: MoetierSession) -> list[str]:
    """Write ``--moetier-json`` and ``--moetier-learn``, each whole or not at all; return a line for each that failed.

    Nothing is raised: the session is over, and its table must still reach the terminal.
    """
    makers = (("json", _json_bytes), ("learn", _profile_bytes))
    problems = []
    for name, make in makers:
        if target := option(session.config, name):
            try:
                write_whole(Path(target), make(session))
            except MoetierError as error:
                problems.append(f"--moetier-{name} {target} was not written: {error}")
    return problems


def _json_bytes(session: MoetierSession) -> bytes:
    import orjson  # noqa: PLC0415

    return orjson.dumps(document(session), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _profile_bytes(session: MoetierSession) -> bytes:
    import yaml  # noqa: PLC0415

    return yaml.safe_dump(_learned(session), sort_keys=False, width=120).encode()


_LEARNED = (("device_bytes", 0.05), ("amplification", 0.05), ("seconds_per_iteration", 0.25))
"""Metric and the margin, as a share, that a later median may lie outside the learned rounds."""


def _learned(session: MoetierSession) -> dict[str, Any]:
    """Return a profile of this host: each proved cell's own figures as bounds, and today's refutations as known.

    Statistics of traces are no figures of a host: of them, only the refutations are learned. Nothing is learned of
    virtual machines, which no profile is held against.
    """
    facts = host_facts()
    day = time.strftime("%Y-%m-%d")
    bounds = [
        _learned_bound(result, metric, margin, day, _kind(session, result.cell))
        for result in session.campaign.results.values()
        if result.proved and not guests_of(result)
        for name, margin in _LEARNED
        if (metric := metrics_of(result.runs).get(name)) is not None
    ]
    known = [
        {"test": record.test, "bound": one.bound.id, "reason": f"{one} as learned {day}"}
        for record in session.records.values()
        for one in record.judgements
        if one.verdict == "refuted" and record.scale is None
    ]
    if not bounds and not any(record.traced for record in session.records.values()):
        raise InputError("no proved run of this host to learn from", "at least one proved cell")
    return {
        "format": PROFILE_FORMAT,
        "name": f"{platform.node()}-{day}",
        "host": facts.match_patterns(),
        "bounds": bounds,
        "known": known,
    }


def _kind(session: MoetierSession, cell: Cell) -> str:
    context = session.campaign.context_of(cell)
    return " of a synthetic trace" if context is None or context.synthetic_trace else ""


def _learned_bound(result: CellResult, metric: Metric, margin: float, day: str, kind: str) -> dict[str, Any]:
    values: Sequence[float] = metric.values
    return {
        "id": f"learned.{result.cell.id}.{metric.name}",
        "value": metric.name,
        "cell": result.cell.id,
        "min": min(values) * (1 - margin),
        "max": max(values) * (1 + margin),
        "source": f"learned {day} from {len(values)} proved rounds{kind}, +-{margin:.0%}",
    }
