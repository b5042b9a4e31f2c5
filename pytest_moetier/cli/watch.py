"""``moetier watch``: the operator's alarm on live counters (paper section 5)."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_moetier.cli.parsers import Commands, add_command, number
from pytest_moetier.errors import InputError

if TYPE_CHECKING:
    from pytest_moetier.watch.views import View

_LEAST_INTERVAL, _MOST_INTERVAL = 0.05, 3600.0


def watch(args: argparse.Namespace) -> int:
    """Watch reclaim and device reads against what is nominal, and say what to do once they are not healthy."""
    from pytest_moetier.watch.alarms import default_bounds, thresholds  # noqa: PLC0415
    from pytest_moetier.watch.loop import Watch  # noqa: PLC0415
    from pytest_moetier.watch.prometheus import parse_listen, serve, write_text  # noqa: PLC0415
    from pytest_moetier.watch.sample import Sampler  # noqa: PLC0415
    from pytest_moetier.watch.target import watched  # noqa: PLC0415

    interval = _interval(args.interval)
    found = thresholds(args.bounds or default_bounds())
    address = parse_listen(args.listen) if args.listen else None
    target = watched(scope=args.scope, device=args.device, pids=args.pid, pool=_pool(args), plan=args.plan)
    if args.prometheus is not None:
        write_text(args.prometheus, "")  # what cannot be written is said now
    with ExitStack() as stack:
        view = stack.enter_context(_view(lines=args.json or sys.stdout is None or not sys.stdout.isatty()))
        work = Watch(Sampler(target), view, found, args.prometheus)
        if address is not None:
            stack.callback(serve(address, lambda: work.current))
        raised = work.run(interval, args.count)
    return 1 if raised and args.fail else 0


def _interval(seconds: float) -> float:
    if math.isnan(seconds) or not _LEAST_INTERVAL <= seconds <= _MOST_INTERVAL:
        raise InputError(f"--interval {seconds:g}", f"seconds, {_LEAST_INTERVAL:g} to {_MOST_INTERVAL:g}")
    return seconds


def _pool(args: argparse.Namespace) -> Path | None:
    """Return the pool that was named, or the usual one where it is there and no device was named instead."""
    from pytest_moetier.pool.manifest import MANIFEST_NAME  # noqa: PLC0415
    from pytest_moetier.settings import default_pool  # noqa: PLC0415

    if args.pool is not None or args.device is not None:
        given: Path | None = args.pool
        return given
    usual = default_pool().expanduser()
    return usual if (usual / MANIFEST_NAME).is_file() else None


@contextmanager
def _view(*, lines: bool) -> Iterator[View]:
    from pytest_moetier.watch.views import JsonLines, LiveTable  # noqa: PLC0415

    if lines:
        yield JsonLines()
        return
    from rich.live import Live  # noqa: PLC0415

    with Live(auto_refresh=False, transient=False) as live:
        yield LiveTable(live)


def add_watch(commands: Commands) -> None:
    """Add ``moetier watch``."""
    one = add_command(commands, "watch", watch)
    one.add_argument(
        "--scope", metavar="GROUP", help="the readers' control group, by folder or name; default: the host"
    )
    words = "whose reads are counted: nvme0n1, /dev/nvme0n1, or a file or folder on it; default: the pool's"
    one.add_argument("--device", metavar="DEVICE", help=words)
    one.add_argument("--pool", type=Path, metavar="DIR", help="the pool, or other files, whose pages are counted")
    one.add_argument("--plan", type=Path, metavar="FILE", help="a plan, or a trace over the pool: makes misses nominal")
    words = "a process whose reads are counted, repeatable; default: those of the scope"
    one.add_argument("--pid", type=number, action="append", default=[], metavar="N", help=words)
    one.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="from sample to sample; default: 1")
    one.add_argument("--count", type=number, metavar="N", help="samples to take; default: until Ctrl-C")
    one.add_argument("--fail", action="store_true", help="end with status 1 once an alarm was raised")
    one.add_argument("--prometheus", type=Path, metavar="FILE", help="write samples for the textfile collector")
    one.add_argument("--listen", metavar="HOST:PORT", help="serve the samples to Prometheus (pytest-moetier[metrics])")
    one.add_argument("--bounds", type=Path, metavar="FILE", help="thresholds (guidance.*); default: the findings' own")
