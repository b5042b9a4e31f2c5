"""From ``--moetier-*`` options, their ini twins and the ``moetier`` marker to cells and settings: no hardware."""

from __future__ import annotations

import itertools
import math
import os
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_moetier.cell import (
    ACCELERATORS,
    FILESYSTEMS,
    HOST,
    LABEL,
    MECHANISMS,
    MGLRU_STATES,
    SPINES,
    WORKLOADS,
    Cell,
    GuestAsked,
    KernelAsked,
)
from pytest_moetier.engine.asked import TOKENS, EngineAsked
from pytest_moetier.errors import InputError
from pytest_moetier.files import report_folder
from pytest_moetier.modes import PREFETCH, mode_of
from pytest_moetier.units import Capacity, parse_bytes
from pytest_moetier.verdicts import SESSION, Against, MoetierSession

if TYPE_CHECKING:
    from pytest_moetier.history.compare import Gate
    from pytest_moetier.routing import Subject


CAPACITIES = "4.4%,8.8%,17.7%,30.9%"
"""The capacities of the paper's Table 2, as shares of its pool: what is measured unless others are named."""
_USUAL = {"rounds": "3", "threads": ""}
GUEST_ROUNDS = 2
"""Boots of a reclaim cell unless rounds are named: two show a spread, and a kernel takes a quarter of an hour."""
GUEST_THREADS = 8
"""Reader threads of a reclaim cell unless they are named: the paper's."""


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed options of a session; sizes in bytes, 0 for "decide when measuring"."""

    pool: Path
    traces: tuple[tuple[str, Path], ...]
    capacities: tuple[Capacity, ...]
    mechanisms: tuple[str, ...]
    mglru: tuple[str, ...]
    modes: tuple[str, ...]
    advice: Path | None
    min_recall: float
    compute_seconds: float
    rounds: int
    seed: int | None
    iterations: int
    threads: int
    reserve_bytes: int
    wait_seconds: float
    stamps: str
    refuted: str
    outputs: tuple[Path, ...]
    report: Path | None
    kernels: tuple[KernelAsked, ...]
    guest: GuestAsked
    guest_pool: tuple[int, int] | None
    engine: EngineAsked
    engine_rounds: int


def option(config: pytest.Config, name: str) -> Any:  # noqa: ANN401 - pytest's own option types
    """Return option ``--moetier-NAME``, or its ini twin when it was not given."""
    given = getattr(config.option, f"moetier_{name}", None)
    return config.getini(f"moetier_{name}") if given is None else given


def read_options(config: pytest.Config) -> Options:
    """Return the session's options.

    Raises:
        pytest.UsageError: one of them cannot be used; the message names it and what it takes.
    """
    try:
        return _read(config)
    except InputError as error:
        said = InputError(error.seen, error.expected, error.do or "`pytest --help` lists the --moetier options")
        raise pytest.UsageError(f"pytest-moetier: {said}") from error


def _read(config: pytest.Config) -> Options:
    seed = str(option(config, "seed"))
    return Options(
        pool=_pool(option(config, "pool")),
        traces=tuple(_trace(word) for word in option(config, "trace")),
        capacities=_capacities(option(config, "capacity")),
        mechanisms=_choices(option(config, "mechanism"), "mechanism", MECHANISMS),
        mglru=_mglru(option(config, "mglru")),
        modes=_modes(option(config, "mode")),
        advice=Path(option(config, "advice")) if option(config, "advice") else None,
        min_recall=_share(option(config, "min_recall") or "0", "min-recall"),
        compute_seconds=_seconds(option(config, "compute") or "0", "compute", most=60),
        rounds=_number(option(config, "rounds"), "rounds", minimum=1),
        seed=_number(seed, "seed", minimum=0) if seed else None,
        iterations=_number(option(config, "iterations") or "0", "iterations", minimum=0),
        threads=_number(option(config, "threads") or min(8, max(2, os.cpu_count() or 2)), "threads", 1, 1024),
        reserve_bytes=_size(option(config, "reserve"), "reserve"),
        wait_seconds=_seconds(option(config, "wait"), "wait"),
        stamps=_choices(option(config, "stamps"), "stamps", ("full", "ends", "none"))[0],
        refuted=_choices(option(config, "refuted"), "refuted", ("fail", "report"))[0],
        outputs=tuple(_output(option(config, name), name) for name in ("json", "learn") if option(config, name)),
        report=_report(option(config, "report")),
        kernels=_kernels(option(config, "kernel")),
        guest=GuestAsked(
            memory_bytes=_memory(option(config, "guest_memory")),
            cpus=_number(option(config, "guest_cpus"), "guest-cpus", 1, 64),
            accelerator=_choices(option(config, "guest_accel"), "guest-accel", ACCELERATORS)[0],
        ),
        guest_pool=parse_guest_pool(option(config, "guest_pool")),
        engine=EngineAsked(
            model=_model(option(config, "engine_model")),
            prompt=str(option(config, "engine_prompt")),
            tokens=_number(option(config, "engine_tokens") or TOKENS, "engine-tokens", 2, 4096),
        ),
        engine_rounds=_number(option(config, "rounds"), "rounds", minimum=1) if _is_given(config, "rounds") else 0,
    )


def _model(value: str) -> Path | None:
    """Return the user's own model; refused now where it is not there."""
    path = Path(value) if value else None
    if path is not None and not path.exists():
        raise InputError(f"--moetier-engine-model {path}: No such file", "a GGUF file, or the folder of one")
    return path


def _is_given(config: pytest.Config, name: str) -> bool:
    """Whether the user chose an option on the command line, or another value than the usual one in the ini file."""
    given = getattr(config.option, f"moetier_{name}", None) is not None
    return given or config.getini(f"moetier_{name}") != _USUAL[name]


def default_pool() -> Path:
    """Return where the pool is looked for when none is named (XDG cache folder)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache")) / "pytest-moetier" / "pool"


def _pool(value: str) -> Path:
    path = Path(value) if value else default_pool()
    try:
        return path.expanduser()
    except RuntimeError as error:  # no HOME and no entry in the password file, or no such user
        raise InputError(f"{path}: {error}", "a folder", "name one: --moetier-pool DIR") from error


def _words(value: object, name: str) -> list[str]:
    if not isinstance(value, str | int | float | Iterable):  # from a marker
        raise InputError(f"--moetier-{name} {value!r} is no word", "a word, or several")
    parts = [str(one) for one in value] if not isinstance(value, str | int | float) else str(value).split(",")
    words = list(dict.fromkeys(one.strip() for one in parts if one.strip()))
    if not words:
        raise InputError(f"--moetier-{name} is empty", "at least one value")
    return words


def _capacities(value: object) -> tuple[Capacity, ...]:
    return tuple(dict.fromkeys(Capacity.parse(word) for word in _words(value, "capacity")))


def _choices(value: object, name: str, known: tuple[str, ...]) -> tuple[str, ...]:
    words = _words(value, name)
    for word in words:
        if word not in known:
            raise InputError(f"--moetier-{name} {word!r} is unknown", "one of " + ", ".join(known))
    return tuple(words)


def _mglru(value: object) -> tuple[str, ...]:
    words = _choices(value, "mglru", (*MGLRU_STATES, "both"))
    return tuple(dict.fromkeys(state for word in words for state in (("on", "off") if word == "both" else (word,))))


def _modes(value: object) -> tuple[str, ...]:
    words = _words(value, "mode")
    for word in words:
        mode_of(word)
    return tuple(words)


def _share(value: str | float, name: str) -> float:
    try:
        share = float(str(value))
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise InputError(f"--moetier-{name} {value!r} is no share", "0 to 1")
    return share


def _number(value: str | int, name: str, minimum: int, most: int = sys.maxsize) -> int:
    span = f"{minimum} or more" if most == sys.maxsize else f"{minimum} to {most}"
    try:
        number = int(str(value))
    except ValueError as error:
        raise InputError(f"--moetier-{name} {value!r} is not a whole number", span) from error
    if not minimum <= number <= most:
        raise InputError(f"--moetier-{name} is {number}", span)
    return number


def _seconds(value: str | float, name: str, most: float = sys.float_info.max) -> float:
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= most:
        span = "0 or more" if most > 1e9 else f"0 to {most:g}"
        raise InputError(f"--moetier-{name} {value!r} is no time", f"seconds, {span}")
    return seconds


def _size(value: str | int, name: str) -> int:
    try:
        return parse_bytes(str(value))
    except InputError as error:
        raise InputError(f"--moetier-{name} {error.seen}", error.expected) from error


def _output(value: str, name: str) -> Path:
    """Return a file to write at the end; refused now, not after minutes of measuring, where it surely cannot be."""
    path = Path(value)
    folder = path.resolve().parent
    why = ""
    if path.exists() and not path.is_file():  # renaming a new file over /dev/null would take it from everyone
        why = "it is a folder" if path.is_dir() else "it is no plain file"
    elif not folder.is_dir():
        why = f"there is no folder {folder}"
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = f"{folder} may not be written to"
    if why:
        raise InputError(
            f"--moetier-{name} {value} cannot be written: {why}",
            "a file in a folder that may be written to",
            "make the folder, or name another",
        )
    return path


def _report(value: str) -> Path | None:
    """Return the folder of the report; refused now, not after minutes of measuring, where it surely cannot be made."""
    return report_folder(value, "--moetier-report") if value else None


def _trace(word: str) -> tuple[str, Path]:
    domain, found, name = word.partition("=")
    return (domain, Path(name)) if found and not Path(word).exists() else ("trace", Path(word))


_VERSION = re.compile(r"[0-9]+\.[0-9]+[\w.+~-]*", re.ASCII)
_NEWEST = "newest"
_KERNEL_SHAPES = f"{HOST}, a version such as 6.12, {_NEWEST}, or [LABEL=]PATH[:MODULES] with a slash in PATH"


def _kernels(words: Iterable[str]) -> tuple[KernelAsked, ...]:
    """Return the kernels that the user named, the running one where none is; whether they exist is not looked at."""
    found: dict[str, KernelAsked] = {}
    for one in map(_kernel, words):
        other = found.setdefault(one.label, one)
        if other != one:
            raise InputError(
                f"--moetier-kernel names two kernels {one.label}: {other.word} and {one.word}",
                "a label for each",
                f"--moetier-kernel LABEL={one.word}",
            )
    return tuple(found.values()) or (KernelAsked(HOST, HOST),)


def _kernel(text: str) -> KernelAsked:
    text = text.strip()
    if text == HOST:
        return KernelAsked(HOST, HOST)
    label, given, word = text.partition("=")
    if not given or "/" in label:  # a path may have a = of its own
        label, given, word = "", "", text
    version = _VERSION.fullmatch(word) is not None or word == _NEWEST
    path = "/" in word or (bool(given) and bool(word))
    if not (version or path) or word.endswith((":", "/")):
        raise InputError(f"--moetier-kernel {text!r} is no kernel", _KERNEL_SHAPES)
    if not given:
        label = re.sub(r"[^A-Za-z0-9._+-]", "_", word if version else Path(word.partition(":")[0]).name)
    if not LABEL.fullmatch(label) or label == HOST:
        raise InputError(
            f"--moetier-kernel {text!r} has the label {label!r}", f"letters, digits, . _ + and -, and not {HOST}"
        )
    return KernelAsked(label, word)


def _memory(value: str | int) -> int:
    return 0 if str(value).strip() in {"", "0"} else _size(value, "guest-memory")


def parse_guest_pool(text: str) -> tuple[int, int] | None:
    """Return (layers, bytes of an expert) of ``LAYERSxSIZE``; None for an empty text."""
    from pytest_moetier.pool.profiles import resolve_shape  # noqa: PLC0415

    if not text.strip():
        return None
    layers, _, size = text.strip().lower().partition("x")
    if not layers.isdecimal() or not size:
        raise InputError(f"--moetier-guest-pool {text!r} is no pool", "LAYERSxSIZE, such as 4x256KiB")
    try:
        shape = resolve_shape("kimi-k3", layers=int(layers), expert_bytes=size)
    except InputError as error:
        raise InputError(
            f"--moetier-guest-pool {text!r}: {error.seen.removeprefix('--')}", error.expected, error.do
        ) from error
    return shape.layers, shape.expert_bytes[0]


def need_files(config: pytest.Config) -> None:
    """Refuse traces and advice that are not there before anything runs, once, and not by every test.

    Raises:
        pytest.UsageError: a file of ``--moetier-trace`` or ``--moetier-advice`` does not exist.
    """
    options = read_options(config)
    if options.advice is not None and not options.advice.is_file():
        _need_predictor(options.advice)
    for _, path in options.traces:
        if not path.exists():
            raise pytest.UsageError(
                f"pytest-moetier: trace {path}: No such file; expected --moetier-trace [DOMAIN=]FILE with a trace file;"
                " next: `moetier trace synth PRESET FILE` writes one to try with"
            )


def _need_predictor(advice: Path) -> None:
    from pytest_moetier.advice import PREDICTORS, predictor_named  # noqa: PLC0415 - numpy only where advice is given

    if predictor_named(str(advice)) is None:
        seen = "it is no plain file" if advice.exists() else "No such file"
        raise pytest.UsageError(
            f"pytest-moetier: advice {advice}: {seen}; expected --moetier-advice with a file, or one of"
            f" {', '.join(PREDICTORS)}; next: `moetier plan predict TRACE FILE --predictor NAME` makes one"
        )


def cells_for(config: pytest.Config, definition: pytest.Item) -> list[Cell]:
    """Return the cells of a test: the options, narrowed or replaced by its ``moetier`` marker.

    Raises:
        pytest.UsageError: the marker has a value that is no capacity, mechanism or mode.
    """
    options = read_options(config)
    marker = definition.get_closest_marker("moetier")
    chosen = dict(marker.kwargs) if marker else {}
    named = getattr(config.option, "moetier_capacity", None) is not None  # also where it names what is the default
    given = named or option(config, "capacity") != CAPACITIES
    try:
        parts = chosen.pop("cells", ({},))  # each a product of its own words and the marker's
        finding = definition.path.stem.removeprefix("test_")
        return list(
            dict.fromkeys(one for part in parts for one in _cells(options, chosen | part, finding, given=given))
        )
    except InputError as error:  # the options were read above: it is a word of the marker, or a pair that cannot be
        said = InputError(error.seen.removeprefix("--moetier-"), error.expected, error.do or _MARKER)
        raise pytest.UsageError(f"pytest-moetier: {definition.nodeid}: {said}") from error


def kernels_for(config: pytest.Config) -> tuple[str, ...]:
    """Return the labels of the kernels that a finding over cells is judged on, each alone; empty: the host's alone.

    Raises:
        pytest.UsageError: an option cannot be used.
    """
    labels = tuple(one.label for one in read_options(config).kernels)
    return () if labels == (HOST,) else labels


_MARKER = "see the test's marker moetier(...), and the --moetier options that it does not replace"
_MARKED = ("finding", "capacity", "default_capacity", "mechanism", "mglru", "mode", "prefetch", "workload", "fill")
_MARKED_TOO = ("spine", "read_limit", "locked", "read_ahead", "filesystem", "kernel", "cells")


def _cells(options: Options, chosen: dict[str, Any], finding: str, *, given: bool) -> list[Cell]:
    """Return the cells that a marker's ``chosen`` words name; ``given``: the user named capacities."""
    if unknown := set(chosen) - {*_MARKED, *_MARKED_TOO}:
        raise InputError(f"marker moetier has {sorted(unknown)}", "only " + ", ".join((*_MARKED, *_MARKED_TOO)))
    capacities: Iterable[Capacity] = options.capacities
    if "capacity" in chosen:
        capacities = _capacities(chosen["capacity"])
    elif "default_capacity" in chosen and not given:
        capacities = _capacities(chosen["default_capacity"])
    limits = _words(chosen.get("read_limit", 0), "read_limit")
    axes = {
        "capacity": capacities,
        "mechanism": _choices(chosen.get("mechanism", options.mechanisms), "mechanism", MECHANISMS),
        "locked": tuple(_number(one, "locked", 0, 99) for one in _words(chosen.get("locked", 0), "locked")),
        "mglru": _mglru(chosen.get("mglru", options.mglru)),
        "mode": _modes(chosen.get("mode", options.modes)),
        "prefetch": _choices(chosen.get("prefetch", "none"), "prefetch", PREFETCH),
        "workload": _choices(chosen.get("workload", "single"), "workload", WORKLOADS),
        "fill": ("",) if "fill" not in chosen else _words(chosen["fill"], "fill"),
        "spine": _choices(chosen.get("spine", "none"), "spine", SPINES),
        "read_limit": tuple(0 if one == "0" else _size(one, "read_limit") for one in limits),
        "read_ahead_kb": tuple(
            _number(one, "read_ahead", 0) for one in _words(chosen.get("read_ahead", 0), "read_ahead")
        ),
        "filesystem": _choices(chosen.get("filesystem", "ext4"), "filesystem", FILESYSTEMS),
    }
    kernels = _marked_kernels(options, chosen.get("kernel", "option"))
    name = str(chosen.get("finding", finding))
    found: dict[Cell, None] = {}
    for values in itertools.product(*axes.values()):
        point: dict[str, Any] = dict(zip(axes, values, strict=True))
        if point["mechanism"] != "balloon":  # what a balloon locks varies balloons alone
            point["locked"] = 0
        found |= dict.fromkeys(_placed([Cell(name, kernel=kernel, **point) for kernel in kernels]))
    return list(found)


def _placed(cells: list[Cell]) -> list[Cell]:
    """Return those of the cells, alike but for the kernel, that can be measured where their kernel is.

    Where none can (no guest was asked for, or guests alone), all stay: each is not_examined, and says what it needs.
    """
    return [one for one in cells if not one.misplaced] or cells


def _marked_kernels(options: Options, value: object) -> tuple[str, ...]:
    """Return the labels that a marker names: ``option`` is those of the options, a version is its own label."""
    asked = [one.label for one in options.kernels]
    found: dict[str, None] = {}
    for word in _words(value, "kernel"):
        if word not in {"option", HOST, *asked} and not _VERSION.fullmatch(word):
            raise InputError(
                f"kernel {word!r} is unknown", f"option, {HOST}, a version, or a label of --moetier-kernel"
            )
        found |= dict.fromkeys(asked if word == "option" else [word])
    return tuple(found)


def subjects_for(config: pytest.Config) -> tuple[Subject, ...]:
    """Return the subjects of the routing findings: the user's traces, or else the synthetic and the recorded ones.

    Raises:
        pytest.UsageError: an option cannot be used.
    """
    from pytest_moetier.routing import subjects  # noqa: PLC0415 - only where a test asks for traces

    recorded = os.environ.get("MOETIER_TRACES", "")
    return subjects(read_options(config).traces, Path(recorded) if recorded else None)


def session_of(config: pytest.Config) -> MoetierSession:
    """Return the session's state, building it from the options on first use.

    Raises:
        pytest.UsageError: an option cannot be used.
    """
    if SESSION not in config.stash:
        config.stash[SESSION] = build_session(config)
    return config.stash[SESSION]


def _against(config: pytest.Config) -> Against | None:
    """Return what the session is to be held against, None for nothing.

    Raises:
        pytest.UsageError: a baseline was named, or a gate, and there is none.
    """
    from pytest_moetier.history.baselines import LATEST, Storage  # noqa: PLC0415
    from pytest_moetier.history.store import storage_folder  # noqa: PLC0415

    what, gated = option(config, "compare"), option(config, "compare_fail")
    if not what and not gated:
        return None
    try:
        gate = _gate(gated) if gated else None
        storage = Storage.read(storage_folder(config))
        found = storage.baseline(what if isinstance(what, str) else LATEST, needed=gate is not None)
    except InputError as error:
        raise pytest.UsageError(f"pytest-moetier: --moetier-compare{'-fail' if gated else ''}: {error}") from error
    return Against(found, storage.skipped, gate, bool(option(config, "compare_force")), _is_given(config, "rounds"))


def _gate(text: str) -> Gate:
    from pytest_moetier.finding import METRICS  # noqa: PLC0415
    from pytest_moetier.history.compare import Gate  # noqa: PLC0415

    gate = Gate.parse(text)
    known = [name for name, (_, better, _) in METRICS.items() if better != "neither"]
    if gate.metric not in known:
        raise InputError(f"{gate.metric} is no metric of a cell that can be worse", f"one of {', '.join(known)}")
    return gate


def build_session(config: pytest.Config) -> MoetierSession:
    """Return the session's campaign, traces to study and profile, from the options; neither pool nor file is read."""
    from pytest_moetier.campaign import Campaign, Settings  # noqa: PLC0415 - numpy and yaml only when a test runs
    from pytest_moetier.finding import read_profile  # noqa: PLC0415
    from pytest_moetier.history.store import save_one_at_a_time, storage_problem  # noqa: PLC0415
    from pytest_moetier.host.probe import host_facts  # noqa: PLC0415
    from pytest_moetier.progress import reporter  # noqa: PLC0415
    from pytest_moetier.routing import DEFAULT_SEED, Studies  # noqa: PLC0415
    from pytest_moetier.workloads import Asked  # noqa: PLC0415

    options = read_options(config)
    if problem := storage_problem(config):
        raise pytest.UsageError(
            f"pytest-moetier: {problem} cannot be written; expected a folder that may be written to;"
            " next: --benchmark-storage=file://DIR, or leave out --benchmark-autosave"
        )
    settings = Settings(
        pool=options.pool,
        asked=Asked(options.traces, options.iterations, options.advice, options.min_recall, options.guest_pool),
        rounds=options.rounds,
        seed=options.seed if options.seed is not None else int(time.time()) % 1_000_000,
        threads=options.threads,
        reserve_bytes=options.reserve_bytes,
        wait_seconds=options.wait_seconds,
        guest_rounds=options.rounds if _is_given(config, "rounds") else min(options.rounds, GUEST_ROUNDS),
        guest_threads=options.threads if _is_given(config, "threads") else GUEST_THREADS,
        stamps=options.stamps,
        stop_early=config.getvalue("maxfail") == 1,
        compute_seconds=options.compute_seconds,
        kernels={one.label: one.word for one in options.kernels if one.label != HOST},
        guest=options.guest,
    )
    name = option(config, "profile")
    try:
        profile = read_profile(name) if name else None
    except InputError as error:
        raise pytest.UsageError(f"pytest-moetier: {error}") from error
    report = reporter(sys.__stderr__ or sys.stderr, config.get_verbosity())
    campaign = Campaign(settings, report)
    if profile is not None and (why := profile.host.mismatch(host_facts().match_facts())):
        campaign.notes.append(f"profile {profile.name} is not applied: {why}")
        profile = None
    studies = Studies(DEFAULT_SEED if options.seed is None else options.seed, options.iterations)
    session = MoetierSession(config, campaign, studies, profile, report)
    session.against = _against(config)
    save_one_at_a_time(config)
    if len(options.traces) > 1:
        session.cell_notes.append(
            f"{len(options.traces)} traces given: cells replay the first, {options.traces[0][1]};"
            " the others are other domains, and streams of a batch"
        )
    return session
