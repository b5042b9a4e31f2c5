"""``moetier tiers``: measured constants, and who should own an expert by them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_moetier.cli.parsers import Commands, add_command
from pytest_moetier.cli.say import note, print_json, say
from pytest_moetier.errors import HostBusyError, InputError
from pytest_moetier.units import parse_bytes

if TYPE_CHECKING:
    from pytest_moetier.span import Span
    from pytest_moetier.tiers.calculus import Calculus
    from pytest_moetier.tiers.constants import Constants
    from pytest_moetier.tiers.probe import HostProbe


def tiers(args: argparse.Namespace) -> int:
    """Print the constants of a machine's tiers with their sources, and the ownership calculus that follows."""
    from pytest_moetier.tiers.calculus import reckon  # noqa: PLC0415
    from pytest_moetier.tiers.constants import read_constants  # noqa: PLC0415

    given = read_constants(args.constants) if args.constants else None
    probe, probed = _probed(args) if args.probe else (None, None)
    constants = probed.over(given) if probed and given else probed or given
    if constants is None:
        raise InputError("neither constants nor a probe", "one of them", "moetier tiers --constants gh200, or --probe")
    if probed and given:
        note(f"moetier: what was not measured here is taken from {given.name} ({given.machine}): is it this machine?")
    found = reckon(constants)
    if args.json:
        probe_json = {"probe": probe.as_json()} if probe else {}
        print_json({"constants": constants.as_json(), "calculus": found.as_json(), **probe_json})
        return 0
    _print(constants, found, probe)
    return 0


def _probed(args: argparse.Namespace) -> tuple[HostProbe, Constants]:
    """Measure this host and its GPU, while no other bench does."""
    from pytest_moetier.host.restore import HostLock  # noqa: PLC0415
    from pytest_moetier.tiers.cuda import probe_cuda  # noqa: PLC0415
    from pytest_moetier.tiers.probe import probe_host  # noqa: PLC0415

    folder: Path | None = args.pool
    if folder is not None and not folder.is_dir():
        raise InputError(f"no folder {folder}", "a folder on the pool's device", "name it: --pool DIR")
    size = parse_bytes(args.bytes) if args.bytes else None
    lock = HostLock()
    try:
        lock.acquire()
    except HostBusyError as error:
        raise HostBusyError(error.seen, error.expected, "wait for it to end") from error
    with lock:
        probe = probe_host(folder, size_bytes=size)
        return probe, probe.constants().over(probe_cuda(folder))


def _print(constants: Constants, found: Calculus, probe: HostProbe | None) -> None:
    from rich.console import Console  # noqa: PLC0415

    say(f"machine: {constants.name}, {constants.machine}")
    console = Console(width=None if sys.stdout and sys.stdout.isatty() else 140)
    rates = [
        (name, one.text, f"{one.speed.low / 1e9:.4g}-{one.speed.high / 1e9:.4g}", f"{one.source}, {one.date}")
        for name, one in constants.rates.items()
    ]
    missing = [(name, "absent", "", why) for name, why in constants.absent.items()]
    missing += [(name, "not measured", "", why) for name, why in constants.unmeasured.items()]
    console.print(_table(("rate", "value", "GB/s", "source"), [*rates, *missing]))
    say(*_rules(found), "")
    rows = [(row.what, row.rule, row.here, row.figure, row.why) for row in found.rows]
    console.print(_table(("placement", "by", "here", "figure", "what to do"), rows))
    say(*(f"ratio {line}" for line in (_ratios(probe) if probe else ())), *(f"note: {one}" for one in constants.notes))


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Any:  # noqa: ANN401 - rich is imported here alone
    from rich.box import SIMPLE  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(*heads, box=SIMPLE, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _rules(found: Calculus) -> Iterable[str]:
    from pytest_moetier.tiers.calculus import NOT_ADMITTED  # noqa: PLC0415

    why = found.why
    yield f"rule 1, hit worth = page_cache / device_cold: {_figure(found.hit_worth, why.get('hit_worth', ''), '.2f')}"
    yield "  admitting adds no read: a miss has paid it. It is not free where"
    yield from (f"  - {one}" for one in NOT_ADMITTED)
    yield (
        "rule 2, k* = (1/stream_overlapped) / (1/link_file_backed - 1/hbm):"
        f" {_figure(found.k_star, why.get('k_star', ''), '.3f')}"
    )
    yield (
        "  without that link, (1/stream_overlapped) / (1/stream_overlapped - 1/hbm):"
        f" {_figure(found.k_restream, why.get('k_restream', ''), '.3f')}"
    )
    yield (
        "rule 3, stream_overlapped / link_file_backed - 1:"
        f" {_figure(found.stream_over_adopt, why.get('stream_over_adopt', ''), '.1%')}"
    )
    yield (
        "  1 - link_file_backed / stream_overlapped:"
        f" {_figure(found.adopt_below_stream, why.get('adopt_below_stream', ''), '.1%')}"
    )


def _figure(found: Span | None, why: str, form: str) -> str:
    if found is None:
        return f"none ({why})"
    return f"{found.value:{form}} ({found.low:{form}} to {found.high:{form}})"


def _ratios(probe: HostProbe) -> Iterable[str]:
    for name, (found, why) in {
        "page cache / device": probe.ratio("cached", "direct"),
        "page cache / memory copy": probe.ratio("cached", "copy"),
        "admitting / O_DIRECT, cold": probe.ratio("admitted", "direct"),
        "device bytes of admitting / of O_DIRECT": probe.extra_reads(),
    }.items():
        yield f"{name}: {_figure(found, f'unproved: {why}', '.3f')}"


def add_tiers(commands: Commands) -> None:
    """Add the command."""
    one = add_command(commands, "tiers", tiers)
    one.add_argument("--constants", metavar="NAME|FILE", help="measured constants: gh200, or a file (moetier-tiers/1)")
    one.add_argument("--probe", action="store_true", help="measure this host, and its GPU where there is one: seconds")
    help_bytes = "of the probe's two buffers and its file (default: 256 MiB, or twice the last-level cache)"
    one.add_argument("--bytes", metavar="SIZE", help=help_bytes)
    one.add_argument("--pool", type=Path, metavar="DIR", help="a folder on the pool's device, for --probe")
