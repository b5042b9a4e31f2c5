"""``moetier compare``: stored sessions held against each other, or cells x kernels."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_moetier.cli.parsers import Commands, add_command
from pytest_moetier.cli.say import note, print_json, say
from pytest_moetier.errors import InputError

if TYPE_CHECKING:
    from pytest_moetier.history.baselines import Storage
    from pytest_moetier.history.compare import Comparison


def compare(args: argparse.Namespace) -> int:
    """Hold stored sessions against a baseline: every metric with ratio, interval and verdict; or cells x kernels."""
    from pytest_moetier.files import write_whole  # noqa: PLC0415
    from pytest_moetier.history.baselines import LATEST, Storage  # noqa: PLC0415
    from pytest_moetier.history.compare import Gate, compare_sessions, parse_effect  # noqa: PLC0415
    from pytest_moetier.history.tables import as_csv, as_json, lines_of  # noqa: PLC0415

    gate = Gate.parse(args.gate) if args.gate else None
    storage = Storage.read(args.storage)
    if args.by:
        return _by_kernel(args, storage)
    if len(args.sessions) not in {1, 2}:
        raise InputError(f"{len(args.sessions)} sessions are named", "BASELINE, or BASELINE and CURRENT")
    now = storage.find(args.sessions[1] if len(args.sessions) > 1 else LATEST)
    then = storage.find(args.sessions[0], exclude=now)
    known = sorted({name for one in (*then, *now) for cell in one.cells.values() for name in cell.metrics})
    if unknown := sorted(set(args.metric) - set(known)):
        raise InputError(f"no cell has {', '.join(unknown)}", f"of {', '.join(known)}")
    effect = parse_effect(args.effect)
    found = compare_sessions(then, now, gate=gate, effect=effect, metrics=args.metric, force=args.force)
    if args.csv:
        write_whole(args.csv, as_csv(found).encode())
    if args.json:
        print_json(as_json(found))
    else:
        say(*lines_of(found, args.metric))
    for line in storage.skipped:
        note(f"skipped {line}")
    return _status(found)


def _status(found: Comparison) -> int:
    """Return 1 where a cell regressed; with a gate that could decide nothing, refuse: that is not a pass."""
    from pytest_moetier.history.compare import CANNOT_TELL, WORSE  # noqa: PLC0415

    if found.gate is None:
        if not found.found:
            raise InputError("no cell can be compared", "one that both sides measured alike", _why(found))
        return 0
    gated = list(found.gated().values())
    if any(one.better == "neither" for one in gated):
        raise InputError(f"{found.gate.metric} has no better direction", "a metric that is better lower or higher")
    worse = [one for one in gated if one.verdict == WORSE]
    for one in worse:
        note(f"regressed: {one}")
    if worse:
        return 1
    if all(one.verdict == CANNOT_TELL for one in gated):
        reasons = dict.fromkeys(one.reason for one in gated)
        seen = "; ".join(reasons) or _why(found)
        raise InputError(f"gate {found.gate} could decide on no cell: {seen}", "one at least", "measure more rounds")
    return 0


def _why(found: Comparison) -> str:
    return "; ".join(f"{cell}: {why}" for cell, why in found.refused.items()) or "see moetier history show"


def _by_kernel(args: argparse.Namespace, storage: Storage) -> int:
    """Print cells x kernels of the sessions that are named, or of the whole storage."""
    from pytest_moetier.files import write_whole  # noqa: PLC0415
    from pytest_moetier.pivot import METRICS, as_csv, as_json, pivot_of, text_of  # noqa: PLC0415

    if args.gate:
        raise InputError("--gate with --by kernel", "one of the two", "moetier compare kernel:6.1 --gate METRIC:PCT%")
    named = {one.path: one for word in args.sessions for one in storage.find(word)}
    sessions = list(named.values()) if args.sessions else storage.sessions
    pivot = pivot_of(sessions, tuple(args.metric) or METRICS, hosts=True)
    if args.csv:
        write_whole(args.csv, as_csv(pivot).encode())
    if args.json:
        print_json(as_json(pivot))
    else:
        say(*text_of(pivot))
    for line in storage.skipped:
        note(f"skipped {line}")
    return 0


def add_storage(parser: argparse.ArgumentParser) -> None:
    """Add ``--storage``."""
    parser.add_argument(
        "--storage",
        type=Path,
        default=Path(".benchmarks"),
        metavar="DIR",
        help="folder of pytest-benchmark's storage (default: .benchmarks)",
    )


def add_compare(commands: Commands) -> None:
    """Add the command."""
    one = add_command(commands, "compare", compare)
    words = "latest, 0007, a file, kernel:6.12, host:ID; several with commas are a side of several sessions"
    one.add_argument("sessions", nargs="*", metavar="BASELINE [CURRENT]", help=f"{words} (CURRENT: latest)")
    one.add_argument("--by", choices=("kernel",), help="cells x kernels of the sessions named, or of all stored ones")
    one.add_argument("--metric", action="append", default=[], metavar="M", help="metric to compare, repeatable")
    one.add_argument("--gate", metavar="METRIC:PCT%", help="status 1 where a cell is worse by more than that")
    one.add_argument("--effect", default="5%", metavar="PCT%", help="share that matters elsewhere (default: 5%%)")
    one.add_argument("--force", action="store_true", help="compare also what was not measured alike")
    one.add_argument("--csv", type=Path, metavar="FILE", help="write every cell and metric")
    add_storage(one)
