"""Spoiled trace files: the seeds, the ways to spoil them, and what reading one may do (return, or raise InputError)."""

from __future__ import annotations

import gzip
import io
import random
import re
import signal
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pytest_moetier.errors import InputError
from pytest_moetier.trace.formats import READERS
from pytest_moetier.trace.load import load_trace

FIXTURES = Path(__file__).parents[2] / "fixtures" / "traces"
NUMBERS = (b"-1", b"0", b"65535", b"65536", b"4294967296", b"9" * 19, b"9" * 5000, b"1e999", b"NaN", b"1.5", b"null")
WORDS = (0, 1, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF)
LIMIT_SECONDS = 10


class HangError(BaseException):
    """Reading took too long; no ``except Exception`` may swallow it."""


def _archive(name: str, data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), data)
    return file.getvalue()


def seeds() -> dict[str, bytes]:
    """Return file name -> content: every fixture, one small file of each kind that is refused, and packed ones."""
    found = {path.name: path.read_bytes() for path in sorted(FIXTURES.iterdir()) if path.suffix != ".md"}
    found |= {
        "counts.csv": b"layer_id,expert_id,count\n0,1,20\n0,2,31\n",
        "counts.json": b'{"expert_counts": [[1, 2, 3], [4, 5, 6]]}\n',
        "imatrix.dat": struct.pack("<ii", 1, 18) + b"blk.0.ffn_up.weigh" + struct.pack("<iif", 4, 1, 0.5),
        "model.gguf": b"GGUF\x03\0\0\0" + bytes(24),
        "model.pt": _archive("archive/data.pkl", b"\x80\x02}q\0."),
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n",
        "page.html": b"<!DOCTYPE html><html><body>404</body></html>\n",
    }
    packed = ("bigmoe.route.csv", "records.u32", "routed_experts.npy", "topk_ids.npz", "speculative.jsonl")
    return found | {f"{name}.gz": gzip.compress(found[name], mtime=0) for name in packed}


def _number(data: bytearray, draw: random.Random) -> None:
    places = [match.span() for match in re.finditer(rb"-?\d+(\.\d+)?", data)]
    if places:
        start, end = draw.choice(places)
        data[start:end] = draw.choice(NUMBERS)


def _word(data: bytearray, draw: random.Random) -> None:
    size = draw.choice((2, 4, 8))
    if len(data) >= size:
        at = draw.randrange(len(data) - size + 1)
        data[at : at + size] = (draw.choice(WORDS) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _flip(data: bytearray, draw: random.Random) -> None:
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def _insert(data: bytearray, draw: random.Random) -> None:
    at = draw.randint(0, len(data))
    data[at:at] = draw.randbytes(draw.randint(1, 16))


def _delete(data: bytearray, draw: random.Random) -> None:
    at = draw.randint(0, len(data))
    del data[at : at + draw.randint(1, 64)]


def _nest(data: bytearray, draw: random.Random) -> None:
    at = draw.randint(0, len(data))
    data[at:at] = draw.choice((b"[", b'{"a":', b"(")) * draw.choice((3, 3000))


def _truncate(data: bytearray, draw: random.Random) -> None:
    del data[draw.randint(0, len(data)) :]


def _duplicate(data: bytearray, draw: random.Random) -> None:
    at = draw.randint(0, len(data))
    data[at:at] = data[at : at + draw.randint(1, 256)] * draw.choice((1, 1, 3, 100))


def _line(data: bytearray, draw: random.Random) -> None:
    lines = data.split(b"\n")
    chosen = lines.pop(draw.randrange(len(lines)))
    lines.insert(draw.randint(0, len(lines)), chosen)
    data[:] = b"\n".join(lines)


def _ends(data: bytearray, draw: random.Random) -> None:
    data[:] = draw.choice((b"\xef\xbb\xbf", b"")) + data.replace(b"\n", draw.choice((b"\r\n", b"\r", b"\n\n")))


WAYS = (_number, _number, _word, _flip, _flip, _insert, _delete, _nest, _truncate, _duplicate, _line, _ends)


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Return ``data`` spoiled in one to four ways."""
    held = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        draw.choice(WAYS)(held, draw)
    return bytes(held)


def spliced(one: bytes, other: bytes, draw: random.Random) -> bytes:
    """Return the beginning of one file with the end of another."""
    return one[: draw.randint(0, len(one))] + other[draw.randint(0, len(other)) :]


def some_input(known: dict[str, bytes], draw: random.Random) -> bytes:
    """Return one input: random bytes, two files spliced, or one spoiled, and now and then packed."""
    kind = draw.randrange(10)
    if kind == 0:
        return draw.randbytes(draw.choice((1, 8, 16, 100, 4096)))
    files = sorted(known)
    data = known[draw.choice(files)]
    if kind == 1:
        data = spliced(data, known[draw.choice(files)], draw)
    data = mutated(data, draw)
    return gzip.compress(data, mtime=0) if kind == 2 else data


def some_format(draw: random.Random) -> str | None:
    """Return a format to force, or None to have it told from the content."""
    return draw.choice((None, None, None, draw.choice(sorted(READERS))))


@contextmanager
def limit(seconds: int = LIMIT_SECONDS) -> Iterator[None]:
    """Raise HangError in what takes longer."""

    def rise(_signal: int, _frame: FrameType | None) -> None:
        raise HangError(f"still reading after {seconds} s")

    before = signal.signal(signal.SIGALRM, rise)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(path: Path, format_name: str | None = None, **known: int | bool | None) -> InputError | None:
    """Read a file as a user would; return the refusal, or None when it was read. Anything else is raised."""
    with limit():
        try:
            load_trace(path, format_name, **known)
        except InputError as error:
            return error
    return None
