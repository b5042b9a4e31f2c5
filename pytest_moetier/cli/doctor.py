"""``moetier doctor``: what this host can measure."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_moetier.cli.parsers import Commands, add_command
from pytest_moetier.cli.say import print_json
from pytest_moetier.errors import InputError

_STATE_STYLES = {"ok": "green", "limited": "yellow", "missing": "red"}


def doctor(args: argparse.Namespace) -> int:
    """Print what this host can measure, why not, and what would make it so."""
    from pytest_moetier.host.probe import doctor_report  # noqa: PLC0415

    checks = doctor_report(_pool_target(args.pool))
    if args.json:
        names = ("name", "state", "observed", "means", "fix")
        print_json({"checks": [{name: getattr(check, name) for name in names} for check in checks]})
        return 0
    from rich.box import SIMPLE  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(width=None if sys.stdout and sys.stdout.isatty() else 120)
    table = Table("what", "state", "observed here, what it means, and what would change it", box=SIMPLE, pad_edge=False)
    for check in checks:
        text = Text(f"{check.observed}: {check.means}")
        if check.fix:
            text.append(f"\nto change it: {check.fix}", style="bold")
        table.add_row(Text(check.name), Text(check.state, style=_STATE_STYLES.get(check.state, "")), text)
    console.print(table)
    return 0


def _pool_target(path: Path | None) -> Path | None:
    if path is not None and not path.exists():
        raise InputError(f"no pool at {path}", "a folder made by `moetier pool create`", "run it, or leave out --pool")
    return path


def add_doctor(commands: Commands) -> None:
    """Add ``moetier doctor``."""
    one = add_command(commands, "doctor", doctor)
    one.add_argument("--pool", type=Path, help="also look at this pool's device")
