"""How commands and their arguments are declared."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

Command = Callable[[argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001  (it has no public name)


def number(text: str) -> int:
    """Return a whole number from 0, decimal or 0x."""
    value = int(text, 0)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def add_command(parent: Commands, name: str, run: Command) -> argparse.ArgumentParser:
    """Add a command whose help is its function's docstring; it takes ``--json``."""
    words = (run.__doc__ or "").strip().rstrip(".")
    parser = parent.add_parser(name, help=words, description=words + ".")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run, prog=parser.prog)
    return parser


def add_group(parent: Commands, name: str, words: str) -> Commands:
    """Add a group of commands."""
    return parent.add_parser(name, help=words, description=words).add_subparsers(required=True, metavar="COMMAND")
