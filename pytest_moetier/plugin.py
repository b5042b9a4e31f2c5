"""The pytest hooks and options of pytest-moetier, and nothing else; it imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_moetier import __version__, fixtures
from pytest_moetier.settings import CAPACITIES, session_of
from pytest_moetier.verdicts import KNOWN, SESSION, VERDICT, label_of

EXIT_INVALID = 10
"""pytest's exit status when nothing failed but at least one run's accounting was not proved."""

_CELL_ID = re.compile(r"\[(C[^\]]+-)?(cgroup|balloon|memboot)[0-9]*-mglru_")
"""What the ids of cells look like, for a process that has the ids alone (see ``Cell.id``)."""

_TOLD = pytest.StashKey[list[tuple[str, object]]]()
"""What a test's reports have of its record."""
_SAID = pytest.StashKey[list[str]]()
"""What is to be said of the report."""

_ON_CELLS = {"moetier_cell", "moetier_curve"}
_ON_TRACES = {"moetier_routing", "moetier_domains"}
_ON_MACHINES = {"moetier_tiers"}
_ON_ENGINES = {"moetier_engine"}
_OVER_SEVERAL = {"moetier_curve", "moetier_domains"}

# name, default, metavar, help; the ini twin of --moetier-NAME is moetier_NAME.
_OPTIONS = (
    ("pool", "", "DIR", "folder of the expert pool (default: ~/.cache/pytest-moetier/pool)"),
    ("capacity", CAPACITIES, "LIST", "capacities, absolute (64GB) or shares of the pool (5%%)"),
    ("mechanism", "cgroup,balloon,memboot", "LIST", "how capacity is enforced: cgroup, balloon, memboot"),
    ("mglru", "host", "host|on|off|both", "MGLRU: leave as it is, set on, set off, or both"),
    ("mode", "page_cache", "LIST", "where a hit's bytes come from, for findings that do not vary it"),
    ("advice", "", "FILE|NAME", "what a predictor said of the trace, or a predictor's name (moetier plan predict)"),
    ("min_recall", "", "SHARE", "withhold advice on layers whose recall is below it"),
    ("compute", "", "SECONDS", "a compute phase at the end of every iteration, on threads of its own (default: none)"),
    ("rounds", "3", "N", "repetitions of every cell (default: 3, or what --moetier-compare-fail needs)"),
    ("seed", "", "N", "seed of the random order of cells (default: from the clock, and shown)"),
    ("iterations", "", "N", "engine iterations a pass (default: 100 synthetic, the whole of a trace file)"),
    ("threads", "", "N", "reader threads (default: the host's CPUs, 2 to 8)"),
    ("reserve", "1GiB", "SIZE", "available memory that a balloon never takes from the host"),
    ("wait", "0", "SECONDS", "how long to wait for another bench that holds the host"),
    ("stamps", "full", "full|ends|none", "how many page stamps of every read expert are verified"),
    ("refuted", "fail", "fail|report", "whether a refuted bound fails the test or is only shown"),
    ("profile", "", "NAME|FILE", "bounds and known refutations of a host (gh200, or a file of --moetier-learn)"),
    ("learn", "", "FILE", "write a profile of this host from the proved runs of this session"),
    ("guest_memory", "0", "SIZE", "RAM of a virtual machine (default: what its cell needs)"),
    ("guest_cpus", "2", "N", "virtual processors"),
    ("guest_accel", "auto", "auto|kvm|tcg", "KVM, software emulation (tcg), or KVM where it works"),
    ("guest_pool", "", "LAYERSxSIZE", "layers and expert size of the workload reclaim (default: 8x256KiB)"),
    ("compare_fail", "", "METRIC:PCT%", "fail the cells whose metric is worse than the baseline's by more than that"),
    ("json", "", "FILE", "write every verdict, with bounds, metrics and proofs"),
    ("engine_model", "", "PATH", "the engine's own model, GGUF (default: generated ones with random weights)"),
    ("engine_prompt", "", "TEXT|IDS", "its prompt: text, or token ids with commas between (default: a fixed one)"),
    ("engine_tokens", "", "N", "tokens that it generates in a run (default: 16)"),
    ("constants", "", "NAME|FILE", "measured constants of this machine's tiers (default: what can be probed)"),
    ("report", "", "DIR", "write a page that says what holds here, with every figure and proof, and the same as files"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--moetier-*`` and their ini twins."""
    group = parser.getgroup("moetier", "pytest-moetier: who should own the expert cache?")
    for name, default, metavar, text in _OPTIONS:
        shown = f" (default: {default.replace('%', '%%')})" if default and "default" not in text else ""
        group.addoption(f"--moetier-{name.replace('_', '-')}", metavar=metavar, default=None, help=text + shown)
        parser.addini(f"moetier_{name}", help=text.replace("%%", "%"), default=default)
    text = "router trace to replay, DOMAIN=FILE or FILE, repeatable (default: a seeded synthetic trace)"
    group.addoption("--moetier-trace", action="append", metavar="[DOMAIN=]FILE", default=None, help=text)
    parser.addini("moetier_trace", type="args", help=text, default=[])
    text = "kernel to measure on, repeatable: host (default), a version that `moetier guest fetch` got, or a file"
    metavar = "host|6.12|[LABEL=]PATH[:MODULES]"
    group.addoption("--moetier-kernel", action="append", metavar=metavar, default=None, help=text)
    parser.addini("moetier_kernel", type="args", help=text, default=[])
    text = "compare this session's metrics with a stored one: latest (default), 0007, a file, kernel:6.12, host:ID"
    group.addoption("--moetier-compare", nargs="?", const="latest", metavar="WHAT", default=None, help=text)
    parser.addini("moetier_compare", type="bool", help="compare this session's metrics with the latest stored one")
    text = "compare also what was not measured alike: another pool, trace, plan, profile, lane or emulation"
    group.addoption("--moetier-compare-force", action="store_true", default=None, help=text)
    parser.addini("moetier_compare_force", type="bool", help=text, default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers and fixtures; refuse options that cannot be used before anything runs."""
    config.addinivalue_line(
        "markers",
        "moetier(capacity=..., mechanism=..., mglru=..., mode=..., finding=..., ...): vary the test's cell here",
    )
    config.addinivalue_line("markers", "cell(mechanism=..., capacity=..., mglru=...): set on every cell, for -m")
    config.pluginmanager.register(fixtures, "moetier-fixtures")
    active = config.pluginmanager.hasplugin("benchmark")
    config.pluginmanager.register(
        fixtures.WithBenchmark() if active else fixtures.WithoutBenchmark(), "moetier-benchmark"
    )
    if any(name.startswith("moetier_") and value is not None for name, value in vars(config.option).items()):
        from pytest_moetier.settings import read_options  # noqa: PLC0415

        read_options(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise cells and traces from the options and the ``moetier`` marker alone: no hardware is touched."""
    if "moetier_cell" in metafunc.fixturenames:
        from pytest_moetier.settings import cells_for  # noqa: PLC0415

        with _as_one_message():
            cells = cells_for(metafunc.config, metafunc.definition)
        params = [pytest.param(cell, id=cell.id, marks=_cell_marks(cell)) for cell in cells]
        metafunc.parametrize("moetier_cell", params, indirect=True)
    if "moetier_curve" in metafunc.fixturenames:
        from pytest_moetier.cell import HOST  # noqa: PLC0415
        from pytest_moetier.settings import kernels_for  # noqa: PLC0415

        with _as_one_message():
            kernels = kernels_for(metafunc.config)
        if kernels:  # a finding over cells is one of each kernel
            params = [pytest.param(one, id="host" if one == HOST else f"k{one}") for one in kernels]
            metafunc.parametrize("moetier_curve", params, indirect=True)
    for name in sorted(_ON_TRACES.intersection(metafunc.fixturenames)):
        with _as_one_message():
            params = _subject_params(metafunc.config, grouped=name in _OVER_SEVERAL)
        metafunc.parametrize(name, params, indirect=True)


@contextmanager
def _as_one_message() -> Iterator[None]:
    """Turn a usage error into one that pytest shows without its own insides when it comes up while collecting."""
    try:
        yield
    except pytest.UsageError as error:
        raise pytest.Collector.CollectError(str(error)) from error


def _subject_params(config: pytest.Config, *, grouped: bool) -> list[Any]:
    from pytest_moetier.settings import subjects_for  # noqa: PLC0415

    chosen = subjects_for(config)
    if not grouped:
        return [pytest.param(one, id=one.id) for one in chosen]
    groups = dict.fromkeys(one.group for one in chosen)
    return [pytest.param(tuple(one for one in chosen if one.group == group), id=group) for group in groups]


def _cell_marks(cell: Any) -> list[pytest.MarkDecorator]:  # noqa: ANN401 - cell.Cell, not imported for every project
    return [
        pytest.mark.cell(
            finding=cell.finding,
            capacity=cell.capacity.text,
            mechanism=cell.mechanism,
            mglru=cell.mglru,
            mode=cell.mode,
            prefetch=cell.prefetch,
            workload=cell.workload,
            fill=cell.fill,
            spine=cell.spine,
            read_limit=cell.read_limit,
            kernel=cell.kernel,
            locked=cell.locked,
            read_ahead=cell.read_ahead_kb,
            filesystem=cell.filesystem,
        )
    ]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run findings over several cells or traces last, and give what is timed the clock of its recorded durations."""
    ours = [item for item in items if _is_ours(item)]
    if not ours:
        return
    items.sort(key=lambda item: not _OVER_SEVERAL.isdisjoint(_fixtures(item)))
    if config.option.collectonly:
        return
    from pytest_moetier.settings import need_files, option  # noqa: PLC0415

    need_files(config)
    if option(config, "compare_fail"):
        from pytest_moetier.comparison import prepare_gate  # noqa: PLC0415

        prepare_gate(session_of(config), ours)
    if config.pluginmanager.hasplugin("benchmark"):
        for item in ours:
            if "moetier_benchmark" in _fixtures(item):
                # A cell that is skipped has nothing to time; pytest-benchmark would warn of each.
                item.add_marker(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used"))
                group = f"moetier: {getattr(item, 'originalname', item.name)}"
                item.add_marker(pytest.mark.benchmark(timer=session_of(config).clock, group=group))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:  # noqa: ANN401 - xdist's own type
    """Refuse to measure side by side; findings on traces may share the host."""
    del node
    if any(_CELL_ID.search(one) for one in ids):
        raise pytest.UsageError(
            "measurements cannot share the host: with -n (pytest-xdist) each worker would measure the others."
            " Run bench/ without -n, or with -p no:xdist."
        )


def _is_ours(item: pytest.Item) -> bool:
    return not _fixtures(item).isdisjoint(_ON_CELLS | _ON_TRACES | _ON_MACHINES | _ON_ENGINES)


def _fixtures(item: pytest.Item) -> set[str]:
    return set(getattr(item, "fixturenames", ()))


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Say what this session measures on: only when it measures at all."""
    if config.option.collectonly or not any(_is_ours(item) for item in items):
        return []
    from pytest_moetier.report import engine_lines, header_lines, routing_lines  # noqa: PLC0415
    from pytest_moetier.verdicts import subjects_of  # noqa: PLC0415

    session = session_of(config)
    chosen = {one.id: one for item in items for one in subjects_of(item)}
    cells = any("moetier_cell" in _fixtures(item) for item in items)
    lines = header_lines(__version__, session) if cells else []
    lines += routing_lines(__version__, session, list(chosen.values())) if chosen else []
    if any(not _fixtures(item).isdisjoint(_ON_ENGINES) for item in items):
        lines += engine_lines(__version__, session)
    if session.against is not None:
        from pytest_moetier.comparison import against_lines  # noqa: PLC0415

        lines += against_lines(session.against)
    return lines


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give verdicts their place in pytest's terms."""
    report = yield
    if SESSION in item.config.stash and _is_ours(item):
        from pytest_moetier.settings import option  # noqa: PLC0415

        _translate(item, call, report, refuted_fails=option(item.config, "refuted") == "fail")
        if call.when == "call" and option(item.config, "compare_fail"):
            from pytest_moetier.comparison import apply_gate  # noqa: PLC0415

            apply_gate(item, report, session_of(item.config))
        _tell(item, report)
    return report


def _translate(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, *, refuted_fails: bool
) -> None:
    from pytest_moetier.errors import AccountingError  # noqa: PLC0415

    verdict = item.stash.get(VERDICT, None)
    if call.excinfo is not None and call.excinfo.errisinstance(AccountingError):
        verdict = "invalid"
        session = session_of(item.config)
        session.verdict(item, label_of(item), verdict, [], str(call.excinfo.value))
        report.longrepr = f"INVALID: {call.excinfo.value}"
    elif verdict is None and call.when == "call" and item.nodeid in session_of(item.config).records:
        verdict = _own_verdict(item, call)
    if verdict is None or (call.when != "call" and verdict != "invalid"):
        return
    known = item.stash.get(KNOWN, None)
    if known and verdict == "refuted":
        report.outcome, report.wasxfail = "skipped", known
    elif known and verdict == "supported" and report.passed:
        report.wasxfail = known
    elif verdict == "refuted" and report.failed and not refuted_fails:
        report.outcome = "passed"


def _tell(item: pytest.Item, report: pytest.TestReport) -> None:
    """Give a test's reports the properties of its record: JUnit's file is made of the last one, others of the first."""
    from pytest_moetier.results import properties  # noqa: PLC0415

    session = session_of(item.config)
    record = session.records.get(item.nodeid)
    broke = report.failed and record is not None and record.verdict == "not_examined"
    if record is not None and not broke and (report.when == "call" or report.skipped):
        item.stash[_TOLD] = properties(record, session)
    told = item.stash.get(_TOLD, [])
    report.user_properties += told


def _own_verdict(item: pytest.Item, call: pytest.CallInfo[None]) -> str | None:
    """Return the verdict of a test that measured and then asserted by itself: its assertions are its bounds."""
    if call.excinfo is None:
        verdict, reason = "supported", ""
    elif call.excinfo.errisinstance(AssertionError):
        verdict, reason = "refuted", call.excinfo.exconly()
    else:
        return None
    session_of(item.config).verdict(item, label_of(item), verdict, [], reason)
    return verdict


def pytest_report_teststatus(report: Any) -> tuple[str, str, str | tuple[str, dict[str, bool]]] | None:  # noqa: ANN401
    """Count INVALID apart, and show a refutation that does not fail the session as what it is."""
    verdict = dict(getattr(report, "user_properties", ())).get("moetier.verdict")
    if report.when == "teardown" or hasattr(report, "wasxfail"):
        return None
    if verdict == "invalid":
        return "invalid", "I", ("INVALID", {"red": True, "bold": True})
    if verdict == "refuted" and report.passed and report.when == "call":
        return "refuted", "R", ("REFUTED", {"yellow": True})
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Give the host back, write what was asked for, and set the exit status of a session with unproved runs."""
    if SESSION not in session.config.stash:
        return
    ours = session.config.stash[SESSION]
    ours.close()
    if hasattr(session.config, "workerinput"):
        return
    from pytest_moetier.drawings import write_report  # noqa: PLC0415
    from pytest_moetier.report import write_files  # noqa: PLC0415

    ours.unwritten = write_files(ours)
    session.config.stash[_SAID], problems = write_report(ours)
    ours.unwritten += problems
    if ours.against is not None:
        from pytest_moetier.comparison import undecided  # noqa: PLC0415

        ours.unwritten += undecided(ours)
    invalid = sum(one.verdict == "invalid" for one in ours.records.values())
    if invalid and session.testsfailed == invalid:
        session.exitstatus = EXIT_INVALID
    elif ours.unwritten and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:  # noqa: ANN401
    """Print the finding's table, one line per refuted or invalid cell, and the comparison that was asked for."""
    if SESSION not in config.stash:
        if config.option.moetier_report and not config.option.collectonly:
            from pytest_moetier.drawings import no_report  # noqa: PLC0415

            terminalreporter.write_line(no_report(config.option.moetier_report))
        return
    ours = config.stash[SESSION]
    if ours.records:
        from pytest_moetier.report import terminal_summary  # noqa: PLC0415

        terminal_summary(terminalreporter, ours)
    for line in config.stash.get(_SAID, []):
        terminalreporter.write_line(line)
    for line in ours.unwritten:
        terminalreporter.write_line(f"ERROR: {line}", red=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give the host back even when the session ended early."""
    if SESSION in config.stash:
        config.stash[SESSION].close()
