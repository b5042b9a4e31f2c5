"""Compare reading a router trace's JSON lines with loops over ``json.loads`` and ``orjson.loads``, column for column.

Both sides run in interleaved pairs over the same file in the page cache, the side that goes first at random; a figure
is the median of its pairs' ratios. A ratio above 1 means that the scanner is better.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from locality import Result

from pytest_moetier.trace.scan import Columns, Fields, scan, strict

LINES = 200_000
LAYERS = 40
N_EXPERTS = 896
K = 16
PAIRS = 7
BLOCK_BYTES = 1 << 22
FIELDS = Fields(
    iteration="iteration",
    layer="layer",
    ids="experts",
    phase="phase",
    kind="type",
    phases={"decode": 0, "prefill": 1},
    kinds={"normal": 0, "spec_accept": 1, "spec_fallback": 2},
)
TYPE_CODES = ("Q", "q", "i", "B", "B", "B", "I", "H")


def write_lines(path: Path) -> None:
    """Write canonical records: one per iteration and layer, k distinct ids each."""
    rng = np.random.default_rng(1)
    ids = np.argsort(rng.random((LINES // 100, N_EXPERTS)), axis=1)[:, :K].tolist()
    with path.open("wb") as out:
        for row in range(LINES):
            iteration, layer = divmod(row, LAYERS)
            head = {"type": "normal", "phase": "decode", "iteration": iteration, "layer": layer}
            out.write(orjson.dumps(head | {"experts": ids[row % len(ids)]}) + b"\n")


def blocks(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole lines, each with its first line's number."""
    tail, line = b"", 1
    with path.open("rb", buffering=0) as file:
        while part := file.read(BLOCK_BYTES):
            end = part.rfind(b"\n") + 1
            whole, tail = (tail + part[:end], part[end:]) if end else (b"", tail + part)
            yield whole, line
            line += whole.count(b"\n")
    yield tail, line


def ours(path: Path) -> list[Columns]:
    """Read the file with the scanner."""
    slow = strict(FIELDS, path)
    return [columns for block, line in blocks(path) for columns in scan(block, line, FIELDS, slow)]


def theirs(path: Path, loads: Callable[[bytes], Any]) -> list[array[int]]:
    """Read the same columns with a JSON parser."""
    columns = lines, keys, layers, phases, kinds, _, widths, ids = [array(code) for code in TYPE_CODES]
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            row = loads(text)
            experts = row["experts"]
            lines.append(number)
            keys.append(row["iteration"])
            layers.append(row["layer"])
            phases.append(FIELDS.phases[row["phase"]])
            kinds.append(FIELDS.kinds[row["type"]])
            widths.append(len(experts))
            ids.extend(experts)
    return list(columns)


def check(path: Path, loads: Callable[[bytes], Any]) -> None:
    """Refuse to compare the speed of two sides that read different values."""
    mine, other = ours(path), theirs(path, loads)
    for at, name in enumerate(("line", "key", "layer", "phase", "kind", "flags", "width", "ids")):
        values = np.concatenate([getattr(one, name) for one in mine])
        if name != "flags" and not np.array_equal(values, np.asarray(other[at])):
            sys.exit(f"the two sides differ in {name}")


def seconds(function: Callable[[], object]) -> float:
    """Return what one call takes."""
    before = time.perf_counter()
    function()
    return time.perf_counter() - before


def compare(path: Path, name: str, loads: Callable[[bytes], Any], target: float) -> Result:
    """Run both sides in interleaved pairs."""
    sides: tuple[Callable[[], object], ...] = (lambda: ours(path), lambda: theirs(path, loads))
    order = random.Random(1)  # noqa: S311  (which side goes first is no secret)
    taken: list[list[float]] = [[], []]
    for _ in range(PAIRS):
        for side in order.sample((0, 1), 2):
            taken[side].append(seconds(sides[side]))
    ratio = statistics.median(their / our for our, their in zip(*taken, strict=True))
    return Result(
        name=name,
        unit="s",
        ours=round(statistics.median(taken[0]), 4),
        theirs=round(statistics.median(taken[1]), 4),
        ratio=round(ratio, 2),
        better="lower",
        target=target,
        met=ratio >= target,
    )


def results() -> list[Result]:
    """Generate a file and compare."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.jsonl"
        write_lines(path)
        found = []
        for name, loads, target in (("json", json.loads, 3.0), ("orjson", orjson.loads, 1.0)):
            check(path, loads)
            found.append(compare(path, f"trace_lines_k{K}_against_{name}", loads, target))
    return found


def main() -> int:
    """Print the results as JSON."""
    found = results()
    sys.stdout.write(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    return 0 if all(one.met for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
