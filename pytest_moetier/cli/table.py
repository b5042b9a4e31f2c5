"""``moetier guest table``: cells x kernels of measured sessions."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_moetier.cli.parsers import Commands, add_command
from pytest_moetier.cli.say import print_json, say


def guest_table(args: argparse.Namespace) -> int:
    """Print device bytes and amplification of each cell on each kernel, from files of ``--moetier-json``."""
    from pytest_moetier.pivot import as_json, markdown_of, read_pivot, text_of  # noqa: PLC0415

    pivot = read_pivot(args.files)
    if args.json:
        print_json(as_json(pivot))
    else:
        say(*(markdown_of(pivot) if args.markdown else text_of(pivot)))
    return 0


def add_table(guest: Commands) -> None:
    """Add the command."""
    one = add_command(guest, "table", guest_table)
    one.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what --moetier-json of a session wrote")
    one.add_argument("--markdown", action="store_true", help="tables for a document")
