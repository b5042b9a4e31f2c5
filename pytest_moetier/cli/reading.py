"""What a user may say of trace files, the same for every command that reads them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_moetier.cli.parsers import number
from pytest_moetier.errors import InputError


def known(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the user said of the files, as keywords of ``load_trace``."""
    policy = {}
    for word in args.on:
        name, equals, action = word.partition("=")
        if not equals:
            raise InputError(f"--on {word}", "NAME=ACTION", "moetier trace check --list")
        policy[name] = action
    return {
        "format": args.format,
        "n_experts": args.experts,
        "k": args.k,
        "requested_tokens": args.requested,
        "raw": args.raw,
        "policy": policy,
    }


def named(words: list[str]) -> tuple[list[str], list[Path]]:
    """Return names and files of ``[DOMAIN=]FILE`` words; a file without a name is called by its own, cut at a dot."""
    names, paths = [], []
    for word in words:
        domain, equals, file = word.partition("=")
        named = bool(equals) and not Path(word).exists()
        paths.append(Path(file if named else word))
        names.append(domain if named else paths[-1].name.split(".")[0])
    return names, paths


def reading(one: argparse.ArgumentParser) -> None:
    """Add what a user may say of a trace file."""
    one.add_argument("--format", help="of the file; default: told from its content (moetier trace formats)")
    one.add_argument("--experts", type=number, help="experts per layer, where the file does not state them")
    one.add_argument("--k", type=number, help="experts a pass, where the file does not state it")
    one.add_argument("--requested", type=number, metavar="TOKENS", help="tokens the engine was asked for: validated")
    one.add_argument("--raw", action="store_true", help="take nothing out: what the checks find is only said")
    one.add_argument(
        "--on",
        action="append",
        default=[],
        metavar="NAME=ACTION",
        help="keep, drop or refuse what a check finds (moetier trace check --list); repeatable",
    )
