"""Fuzz the readers of traces: ``python tests/fuzz/run.py --inputs 20000 --seed 1``.

Bounded by the number of inputs and the same for the same seed. An input that makes a reader do anything but return a
trace or raise InputError is written to build/fuzz, its path is printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "trace"))

import mutate  # noqa: E402  (found by the path above)

MEMORY_BYTES = 8 << 30


def main() -> int:
    """Run all inputs; return the exit status."""
    parser = argparse.ArgumentParser(description="spoiled trace files, read in every way")
    parser.add_argument("--inputs", type=int, default=20_000, help="how many inputs (20000)")
    parser.add_argument("--seed", type=int, default=1, help="equal seeds, equal inputs (1)")
    chosen = parser.parse_args()
    if "asan" not in os.environ.get("LD_PRELOAD", ""):  # AddressSanitizer maps terabytes of shadow
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    known = mutate.seeds()
    draw = random.Random(chosen.seed)  # noqa: S311  (repeatable, not secret)
    read = refused = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        for number in range(chosen.inputs):
            data = mutate.some_input(known, draw)
            name = mutate.some_format(draw)
            raw, k, experts = draw.random() < 0.3, draw.choice((None,) * 6 + (4, 8)), draw.choice((None,) * 6 + (24,))
            path.write_bytes(data)
            try:
                error = mutate.attempt(path, name, raw=raw, k=k, n_experts=experts)
            except (Exception, mutate.HangError):  # noqa: BLE001  (whatever it is, it is what this looks for)
                return _failed(number, data, f"format={name} raw={raw} k={k} n_experts={experts}")
            read += error is None
            refused += error is not None
    sys.stdout.write(f"{chosen.inputs} inputs, seed {chosen.seed}: {read} read, {refused} refused, none else\n")
    return 0 if read and refused else 1


def _failed(number: int, data: bytes, how: str) -> int:
    traceback.print_exc()
    folder = ROOT / "build" / "fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{hashlib.sha256(data).hexdigest()[:16]}.hex"
    file.write_text(data.hex() + "\n")
    sys.stdout.write(f"input {number} ({how}) broke a reader: {file} (xxd -r -p {file} > input)\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
