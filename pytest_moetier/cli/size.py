"""``moetier size``: how much DRAM a target takes, by the measured curve."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_moetier.cell import MECHANISMS, MGLRU_STATES
from pytest_moetier.cli.parsers import Commands, add_command
from pytest_moetier.cli.say import note, print_json, say
from pytest_moetier.errors import InputError
from pytest_moetier.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from pytest_moetier.sizing import Answer, Choice, Curve


def size_of(args: argparse.Namespace) -> int:
    """Print the DRAM that a target takes, by the measured capacity curve of this host."""
    from pytest_moetier.sizing import PAPER, Choice, paper_curve, parse_target, size  # noqa: PLC0415

    target = parse_target(args.target)
    choice = Choice(args.mechanism, args.mode, args.mglru, args.workload, args.kernel)
    curve = paper_curve() if args.files == [PAPER] else _stored(args, choice)
    answer = size(curve, target)
    if args.json:
        print_json(answer.as_json())
        return 0
    say(*_lines(answer))
    return 0


def _stored(args: argparse.Namespace, choice: Choice) -> Curve:
    from pytest_moetier.history.sessions import default_storage, read_sessions, storage_files  # noqa: PLC0415
    from pytest_moetier.host.probe import host_facts  # noqa: PLC0415
    from pytest_moetier.sizing import curve_of, latest_curve  # noqa: PLC0415

    here = host_facts().fingerprint()
    folder = args.storage or default_storage()
    paths = [Path(one) for one in args.files] or storage_files(folder)
    sessions, skipped = read_sessions(paths)
    for line in skipped:
        note(f"moetier: left out {line}")
    if not args.files:
        return latest_curve(sessions, choice, here, str(folder))
    if not sessions:
        raise InputError(
            f"none of {', '.join(args.files)} can be read", "a stored session, or gh200 for the paper's curve"
        )
    return curve_of(sessions, choice, here)


def _lines(answer: Answer) -> Iterable[str]:
    high = "open" if answer.capacity_high is None else format_bytes(answer.capacity_high)
    below, above = answer.between
    low, value = format_bytes(answer.capacity_low), format_bytes(answer.capacity_bytes)
    yield f"{answer.target.text}: C = {value} ({low} to {high})"
    yield (
        f"  read between {format_bytes(below.capacity_bytes)} and {format_bytes(above.capacity_bytes)} of"
        f" {answer.curve.name}"
    )
    one = answer.seconds
    yield f"  an iteration: {format_seconds(one.value)} ({format_seconds(one.low)} to {format_seconds(one.high)})"
    if answer.device_bytes and answer.bandwidth:
        read, rate = answer.device_bytes, answer.bandwidth
        spread = f" ({format_bytes(rate.low)}/s to {format_bytes(rate.high)}/s)" if rate.low < rate.high else ""
        yield f"  the device: {format_bytes(read.value)} an iteration, {format_bytes(rate.value)}/s{spread}"
    yield from (f"  but: {one}" for one in answer.caveats)
    yield from (f"  note: {one}" for one in answer.curve.notes)


def add_size(commands: Commands) -> None:
    """Add the command."""
    one = add_command(commands, "size", size_of)
    words = "2s/iteration, '0.5 iterations/s', or the most that the device can give, such as 5GB/s"
    one.add_argument("--target", required=True, help=words)
    help_from = "stored sessions or files of --moetier-json, or gh200: the paper's curve (default: the latest stored)"
    one.add_argument("--from", dest="files", nargs="+", default=[], metavar="FILE", help=help_from)
    one.add_argument("--storage", type=Path, metavar="DIR", help="of pytest-benchmark (default: .benchmarks)")
    one.add_argument("--mechanism", choices=MECHANISMS, default="cgroup", help="of the curve (default: cgroup)")
    one.add_argument("--mode", default="page_cache", help="of the curve (default: page_cache)")
    one.add_argument("--mglru", choices=MGLRU_STATES, help="of the curve, where several were measured")
    one.add_argument(
        "--workload", choices=("single", "batch4"), default="single", help="of the curve (default: single)"
    )
    one.add_argument("--kernel", default="host", metavar="LABEL", help="of the curve (default: host)")
