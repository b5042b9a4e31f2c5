"""Lay out a recorded host (fixtures/host/NAME.tree) in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Recorded = Callable[[str], Path]
"""The fixture `recorded`: lay out the host of that name, read procfs from it, return its folder."""
FIXTURES = Path(__file__).parents[2] / "fixtures" / "host"


def lay_out(name: str, folder: Path) -> Path:
    """Return ``folder`` with the recorded files of ``name`` in it, to be read with ``procfs.rooted``."""
    body: list[str] = []
    target: Path | None = None

    def finish() -> None:
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("".join(body))

    for line in (FIXTURES / f"{name}.tree").read_text().splitlines(keepends=True):
        if not line.startswith("@ "):
            body.append(line)
            continue
        finish()
        body, target = [], None
        path, _, rest = line[2:].rstrip("\n").partition(" ")
        place = folder / path.lstrip("/")
        if path.endswith("/") or rest == "!":  # reading a folder fails, as reading an unsupported file does
            place.mkdir(parents=True, exist_ok=True)
        elif rest.startswith("-> "):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(rest[3:])
        else:
            target = place
    finish()
    return folder
