"""``moetier history``: what is stored, one session of it, and the removal of old ones."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pytest_moetier.cli.compare import add_storage
from pytest_moetier.cli.parsers import Commands, add_command
from pytest_moetier.cli.say import note, print_json, say
from pytest_moetier.errors import InputError

if TYPE_CHECKING:
    from pytest_moetier.history.sessions import StoredSession


def history_list(args: argparse.Namespace) -> int:
    """Print the stored sessions, oldest first, and the files that are none, with the reason."""
    from pytest_moetier.history.baselines import Storage  # noqa: PLC0415
    from pytest_moetier.history.tables import aligned  # noqa: PLC0415

    storage = Storage.read(args.storage)
    if args.json:
        sessions = [_json(one) for one in storage.sessions]
        print_json({"storage": str(args.storage), "sessions": sessions, "skipped": list(storage.skipped)})
        return 0
    rows = [["session", "ended", "host", "kernels", "commit", "cells", "traces"]]
    for one in storage.sessions:
        traces = sum(cell.traced for cell in one.cells.values())
        rows.append(
            [
                one.name,
                f"{one.time.astimezone():%Y-%m-%d %H:%M}",
                one.host,
                ", ".join(_kernels(one)) or "-",
                one.commit[:10] or "-",
                str(len(one.cells) - traces),
                str(traces),
            ]
        )
    if storage.sessions:
        say(*aligned(rows))
    else:
        note(f"no session in {args.storage}; next: pytest bench/ --benchmark-autosave")
    for line in storage.skipped:
        note(f"skipped {line}")
    return 0


def _kernels(session: StoredSession) -> list[str]:
    return sorted({session.release_of(cell) for cell in session.cells.values() if not cell.traced})


def _json(session: StoredSession) -> dict[str, Any]:
    return {
        "session": session.name,
        "file": str(session.path),
        "time": session.time.isoformat(),
        "host": session.host,
        "release": session.release,
        "kernels": _kernels(session),
        "commit": session.commit,
        "cells": [one.id for one in session.cells.values() if not one.traced],
        "traces": [one.id for one in session.cells.values() if one.traced],
    }


def history_show(args: argparse.Namespace) -> int:
    """Print one stored session: each cell with the median, the range and the number of values of its metrics."""
    from pytest_moetier.history.baselines import Storage  # noqa: PLC0415
    from pytest_moetier.history.tables import CELL_METRICS, TRACE_METRICS, aligned, shown_value  # noqa: PLC0415

    (session,) = Storage.read(args.storage).find(args.session)[:1]
    if args.json:
        cells = [
            {
                "cell": one.id,
                "words": dict(one.words),
                "context": dict(one.context),
                "guest": one.guest,
                "metrics": {name: asdict(metric) for name, metric in one.metrics.items()},
            }
            for one in session.cells.values()
        ]
        print_json(_json(session) | {"cells": cells, "remarks": list(session.remarks)})
        return 0
    say(f"{session.path}: {session.time.isoformat()}, host {session.host}, kernels {', '.join(_kernels(session))}")
    rows = [["cell", "metric", "median", "range", "values"]]
    for cell in session.cells.values():
        wanted = args.metric or (TRACE_METRICS if cell.traced else CELL_METRICS)
        for name, metric in cell.metrics.items():
            if name in wanted or "all" in wanted:
                low, median, high = (
                    shown_value(one, metric.unit) for one in (min(metric.values), metric.median, max(metric.values))
                )
                rows.append([cell.id, name, median, f"{low} to {high}", str(len(metric.values))])
    say(*aligned(rows), *(f"left out: {one}" for one in session.remarks))
    return 0


def history_prune(args: argparse.Namespace) -> int:
    """Print which stored sessions would be deleted, and delete them with --delete; never another tool's files."""
    from pytest_moetier.history.baselines import Storage, locked  # noqa: PLC0415

    if args.keep is None and args.before is None:
        raise InputError("neither --keep nor --before is given", "one of them", "moetier history prune --keep 20")
    if args.keep is not None and args.keep < 1:
        raise InputError(f"--keep {args.keep}", "1 or more")
    storage = Storage.read(args.storage)
    numbered = [one for one in storage.sessions if one.number]
    old = numbered[: -args.keep] if args.keep is not None else numbered
    old = [one for one in old if args.before is None or one.time < args.before]
    kept = [one for one in old if one.others or one.path.is_symlink()]
    gone = [one for one in old if one not in kept]
    if args.delete:
        with locked(args.storage, exclusive=True):
            for one in gone:
                one.path.unlink(missing_ok=True)
    if args.json:
        files = {"deleted" if args.delete else "would_delete": [str(one.path) for one in gone]}
        print_json(files | {"kept": len(numbered) - len(gone), "not_ours_alone": [str(one.path) for one in kept]})
        return 0
    verb = "deleted" if args.delete else "would delete"
    say(*(f"{verb} {one.path}" for one in gone), f"{verb} {len(gone)} of {len(numbered)} sessions")
    for one in kept:
        why = "is a link" if one.path.is_symlink() else f"has {one.others} results of other tests as well"
        note(f"kept {one.path}: it {why}")
    if gone and not args.delete:
        note("nothing was deleted; next: the same command with --delete")
    return 0


def _date(text: str) -> datetime:
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no date such as 2026-11-30") from error
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def add_history(history: Commands) -> None:
    """Add the commands."""
    add_storage(add_command(history, "list", history_list))
    one = add_command(history, "show", history_show)
    one.add_argument("session", help="latest, 0007, a file, kernel:6.12 or host:ID")
    one.add_argument("--metric", action="append", default=[], metavar="M", help="metric to show, repeatable, or all")
    add_storage(one)
    one = add_command(history, "prune", history_prune)
    one.add_argument("--keep", type=int, metavar="N", help="keep the newest N")
    one.add_argument("--before", type=_date, metavar="DATE", help="those that ended before that date (UTC)")
    either = one.add_mutually_exclusive_group()
    either.add_argument("--dry-run", action="store_true", help="only print what would be deleted: the default")
    either.add_argument("--delete", action="store_true", help="delete them")
    add_storage(one)
