"""``moetier report``: a report that people look at, from documents of ``--moetier-json``."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_moetier.cli.parsers import Commands, add_command
from pytest_moetier.cli.say import print_json, say


def report(args: argparse.Namespace) -> int:
    """Write a page, its figures, and the same as Markdown and JSON, from files of ``--moetier-json``."""
    from pytest_moetier.documents import read_results  # noqa: PLC0415
    from pytest_moetier.files import report_folder  # noqa: PLC0415

    folder = report_folder(str(args.output), "--output")
    documents = read_results(args.files)
    from pytest_moetier.page.write import PAGE, report_json, write_page  # noqa: PLC0415

    page, told = write_page(documents, folder)
    if args.json:
        found = report_json(page)
        print_json({"page": str(folder / PAGE), "counts": found["counts"], "claims": found["claims"]})
    else:
        say(*told)
    return 0


def add_report(commands: Commands) -> None:
    """Add the command."""
    one = add_command(commands, "report", report)
    one.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what --moetier-json of a session wrote")
    one.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder of the report; made if missing")
