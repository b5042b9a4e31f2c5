"""The ``moetier`` command: arguments in, text or JSON out. A subcommand imports what it needs itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pytest_moetier import __version__
from pytest_moetier.cli.compare import add_compare
from pytest_moetier.cli.doctor import add_doctor
from pytest_moetier.cli.engine import add_engine
from pytest_moetier.cli.guest import add_guest
from pytest_moetier.cli.history import add_history
from pytest_moetier.cli.parsers import add_group
from pytest_moetier.cli.plan import add_plan
from pytest_moetier.cli.pool import add_pool
from pytest_moetier.cli.report import add_report
from pytest_moetier.cli.say import note, silence_stdout
from pytest_moetier.cli.simulate import add_simulate
from pytest_moetier.cli.size import add_size
from pytest_moetier.cli.tiers import add_tiers
from pytest_moetier.cli.trace import add_locality, add_trace
from pytest_moetier.cli.watch import add_watch
from pytest_moetier.errors import MoetierError


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    parser = argparse.ArgumentParser(prog="moetier", description="Who should own the expert cache of a MoE model?")
    parser.add_argument("--version", action="version", version=f"moetier {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_pool(add_group(commands, "pool", "expert pools on a device: create, check, map"))
    add_trace(add_group(commands, "trace", "router traces: info, check, convert, merge, synth, formats"))
    add_plan(add_group(commands, "plan", "advice of what will be read: predict, info, formats"))
    add_locality(commands)
    add_simulate(commands)
    add_engine(add_group(commands, "engine", "llama.cpp: check, model, capture a trace, admission A/B"))
    add_guest(add_group(commands, "guest", "kernels for virtual machines: fetch, list, check, bisect-step, table"))
    add_tiers(commands)
    add_size(commands)
    add_compare(commands)
    add_history(add_group(commands, "history", "stored sessions: list, show, prune"))
    add_report(commands)
    add_doctor(commands)
    add_watch(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 fine, 1 a fault was found, 2 refused (one line on stderr says why), 130 after Ctrl-C."""
    args = build_parser().parse_args(argv)
    try:
        status = int(args.run(args))
        if sys.stdout is not None:
            sys.stdout.flush()
    except MoetierError as error:
        error.do = error.do or f"{args.prog} --help"
        note(f"moetier: {' '.join(str(error).split())}")
        return 2
    except BrokenPipeError:  # the reader of our output (head, less) has left: nobody to say anything to
        silence_stdout()
        return 0
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        silence_stdout()
        note(f"moetier: {name}{error.strerror or error}; expected a host that allows it; next: moetier doctor")
        return 2
    except KeyboardInterrupt:
        note("moetier: interrupted; what is written is kept, and the same command continues it")
        return 130
    else:
        return status
