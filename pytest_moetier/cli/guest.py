"""``moetier guest``: kernels for virtual machines, to measure a kernel that this host does not run."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from pytest_moetier.cli.bisect import add_bisect
from pytest_moetier.cli.parsers import Commands, add_command
from pytest_moetier.cli.say import note, print_json, say
from pytest_moetier.cli.table import add_table
from pytest_moetier.errors import MoetierError
from pytest_moetier.units import format_bytes

if TYPE_CHECKING:
    from pytest_moetier.host.debian import Offer
    from pytest_moetier.host.kernels import Kernel, Need

_STATE_STYLES = {"yes": "green", "module": "green", "unknown": "yellow", "no": "red"}
_PROGRAMS = ("moetier-agent", "moetier-replay", "moetier-balloon")


def guest_fetch(args: argparse.Namespace) -> int:
    """Fetch kernels of Debian into the cache folder; nothing is installed."""
    from pytest_moetier.host.debian import fetch  # noqa: PLC0415
    from pytest_moetier.host.kernels import default_cache  # noqa: PLC0415

    found = []
    for word in args.words:
        found.append(fetch(word, default_cache(), note))
        if not args.json:
            say(_line(found[-1]))
    if args.json:
        print_json({"kernels": [_json(kernel) for kernel in found]})
    return 0


def guest_list(args: argparse.Namespace) -> int:
    """Print the kernels that have been fetched, or those that Debian offers."""
    from pytest_moetier.host.debian import available  # noqa: PLC0415
    from pytest_moetier.host.kernels import default_cache, fetched  # noqa: PLC0415

    cache = default_cache()
    here = fetched(cache)
    offers = available(cache, note) if args.offered else ()
    if args.json:
        kernels = {"cache": str(cache), "kernels": [_json(kernel) for kernel in here]}
        print_json(kernels | ({"offered": [asdict(offer) for offer in offers]} if args.offered else {}))
    elif args.offered:
        names = {kernel.release for kernel in here}
        say(*(_offer_line(offer, offer.release in names) for offer in offers))
    else:
        say(*(_line(kernel) for kernel in here))
        if not here:
            note(f"no kernel in {cache}; next: moetier guest fetch 6.12")
    return 0


def _json(kernel: Kernel) -> dict[str, object]:
    return {
        "release": kernel.release,
        "image": str(kernel.image),
        "modules": str(kernel.modules) if kernel.modules else None,
        "source": kernel.source,
    }


def _line(kernel: Kernel) -> str:
    return f"{kernel.release}: {kernel.source}: {kernel.image}"


def _offer_line(offer: Offer, here: bool) -> str:  # noqa: FBT001  (one word in a line)
    checked = "" if offer.verified else ", signature NOT checked"
    state = ", fetched" if here else ""
    return f"{offer.release}: {offer.suite}, {offer.version}, {format_bytes(offer.download_bytes)}{checked}{state}"


def guest_check(args: argparse.Namespace) -> int:
    """Print what cells need of a kernel and of this host to run in a virtual machine; 1 when they could not."""
    from pytest_moetier.host.kernels import default_cache, examine, find_kernel  # noqa: PLC0415

    kernel = find_kernel(args.kernel, default_cache())
    rows = [*examine(kernel), *_loading(kernel), *_host_needs()]
    lacks = [row.name for row in rows if row.required and row.state == "no"]
    if args.json:
        print_json(
            {"kernel": _json(kernel), "needs": [asdict(row) for row in rows], "lacks": lacks, "can_run": not lacks}
        )
    else:
        _print_table(kernel, rows)
        verdict = (
            f"cells cannot run: {', '.join(lacks)} is missing" if lacks else "cells can run, as far as can be told"
        )
        say(f"{kernel.release}: {verdict}")
    return 1 if lacks else 0


def _need(name: str, seen: str, why: str, without: str, *, there: bool) -> Need:
    from pytest_moetier.host.kernels import Need  # noqa: PLC0415

    return Need(name, "yes" if there else "no", required=True, why=why, without=without, seen=seen)


def _loading(kernel: Kernel) -> list[Need]:
    """Return the row of the modules that are loaded at the start."""
    from pytest_moetier.host.kernels import module_files  # noqa: PLC0415

    why, without = "are loaded before the pool is mounted", "no pool"
    try:
        files = module_files(kernel)
    except MoetierError as error:
        return [_need("modules to load", str(error), why, without, there=False)]
    names = ", ".join(path.name for path in files) or "none: all is built in, or nothing is known of them"
    return [_need("modules to load", names, why, without, there=True)]


def _host_needs() -> list[Need]:
    """Return the rows of what this host must have."""
    from pytest_moetier.host.guest import accelerator_here  # noqa: PLC0415
    from pytest_moetier.host.initramfs import find_tools  # noqa: PLC0415
    from pytest_moetier.native import static_executable  # noqa: PLC0415

    rows = []
    why, without = "run the guest, and set it up from inside", "no guest"
    try:
        tools = find_tools()
        rows.append(_need("QEMU and busybox", f"{tools.qemu}, {tools.busybox}", why, without, there=True))
    except MoetierError as error:
        rows.append(_need("QEMU and busybox", str(error), why, without, there=False))
    why, without = "run in the guest, where no C library is", "no cell"
    try:
        folders = {str(static_executable(name).parent) for name in _PROGRAMS}
        seen = f"{', '.join(_PROGRAMS)} in {' and '.join(sorted(folders))}"
        rows.append(_need("static executables", seen, why, without, there=True))
    except MoetierError as error:
        rows.append(_need("static executables", str(error), why, without, there=False))
    kind, reason = accelerator_here()
    seen = f"{kind}: {reason}"
    rows.append(_need("accelerator", seen, "is what runs the guest's processors", "cells take longer", there=True))
    return rows


def _print_table(kernel: Kernel, rows: list[Need]) -> None:
    from rich.box import SIMPLE  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    say(_line(kernel))
    console = Console(width=None if sys.stdout and sys.stdout.isatty() else 120)
    table = Table("what", "state", "seen here, what it is for, and what fails without it", box=SIMPLE, pad_edge=False)
    for row in rows:
        style = _STATE_STYLES[row.state] if row.required or row.state != "no" else "yellow"
        text = Text(f"{row.seen}: {row.why}")
        if row.state in {"no", "unknown"}:
            text.append(f"\nwithout it: {row.without}", style="bold")
        table.add_row(Text(row.name), Text(row.state, style=style), text)
    console.print(table)


def add_guest(guest: Commands) -> None:
    """Add the commands of ``moetier guest``."""
    one = add_command(guest, "fetch", guest_fetch)
    words = "6.12 (the newest of these that Debian offers), a whole release, or newest"
    one.add_argument("words", nargs="+", metavar="KERNEL", help=words)
    one = add_command(guest, "list", guest_list)
    one.add_argument("--offered", action="store_true", help="those that Debian offers now (asks its mirror)")
    one = add_command(guest, "check", guest_check)
    words = "6.12 (the newest fetched of these), a whole release, newest, or PATH[:MODULES] of any vmlinuz or bzImage"
    one.add_argument("kernel", metavar="KERNEL", help=words)
    add_bisect(guest)
    add_table(guest)
