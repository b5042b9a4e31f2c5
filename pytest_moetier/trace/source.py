"""A trace file's content as a stream: plain, gzip or zstd, in blocks of whole lines, never the file at once."""

from __future__ import annotations

import gzip
import json
import stat
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import ModuleType

import orjson

from pytest_moetier.errors import InputError

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
MAX_DOCUMENT_BYTES = 1 << 30
HEAD_BYTES = 1 << 18

_BOM = b"\xef\xbb\xbf"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_OTHER = {b"BZh": "bunzip2", b"\xfd7zXZ\x00": "unxz", b"\x04\x22\x4d\x18": "unlz4", b"7z\xbc\xaf": "7z x"}
_HEAD_LINES = 64
_ZSTD_STEP = 1 << 10
"""Packed bytes a step: a block of 128 KiB may be packed into four bytes, so a step is at most 32 MiB unpacked."""


class Source:
    """One trace file, opened anew for each walk over it.

    Attributes:
        path: the file.
        warnings: sentences about what could not be read; grows while it is read.
        cut: the compressed stream, or the last line, turned out to end early.
    """

    def __init__(self, path: Path) -> None:
        """Look at the file's first bytes.

        Raises:
            InputError: no plain file that may be read, an empty one, or a compression that is not read here.
        """
        self.path = path
        self.warnings: list[str] = []
        self.cut = False
        try:
            mode = _mode(path)
            if not stat.S_ISREG(mode):
                kind = "a directory" if stat.S_ISDIR(mode) else "no plain file"
                # a pipe has no head to tell the format by and then read again from
                do = f"cat {path} > FILE, and give that" if stat.S_ISFIFO(mode) else f"ls -l {path}"
                raise InputError(f"trace {path}: it is {kind}", "a plain file", do)
            with path.open("rb") as file:
                self._magic = file.read(8)
        except OSError as error:
            raise InputError(f"trace {path}: {error.strerror}", "a trace file that may be read") from error
        for magic, command in _OTHER.items():
            if self._magic.startswith(magic):
                raise InputError(
                    f"{path} is compressed in a way that is not read here",
                    "a plain, gzip or zstd file",
                    f"{command} {path}",
                )
        self.head = self._head()
        if not self.head.strip():
            raise InputError(f"{path} holds no record: it is empty", "a trace")

    def refuse(self, place: int, seen: str, expected: str, do: str = "", *, unit: str = "line") -> InputError:
        """Return the error that names the file and the line (or record) in it."""
        return InputError(f"{self.path}, {unit} {place}: {seen}", expected, do)

    def _head(self) -> bytes:
        held = bytearray()
        for block in self._content():
            held += block
            if len(held) >= HEAD_BYTES:
                break
        if self.cut and not held:
            raise InputError(f"{self.path} is cut off before anything in it can be unpacked", "a whole file")
        self.cut, self.warnings = False, []
        return bytes(held[:HEAD_BYTES]).removeprefix(_BOM)

    @property
    def compressed(self) -> bool:
        """Whether the content has to be unpacked first."""
        return self._magic.startswith((_GZIP, _ZSTD))

    @cached_property
    def head_lines(self) -> tuple[bytes, ...]:
        """The first lines that are not blank, without their ends; one that goes on beyond the head is left out."""
        lines = self.head.split(b"\n")
        if len(self.head) == HEAD_BYTES:
            lines = lines[:-1]
        return tuple(line.strip() for line in lines if line.strip())[:_HEAD_LINES]

    @cached_property
    def first(self) -> Mapping[str, object]:
        """The first line as a JSON object; empty when it is none."""
        return self.objects[0] if self.objects else {}

    @cached_property
    def objects(self) -> tuple[Mapping[str, object], ...]:
        """The first lines as JSON objects, up to the first that is none; NaN, which readers refuse, may be in them."""
        found: list[Mapping[str, object]] = []
        for line in self.head_lines:
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                row = _lax(line)
            if not isinstance(row, dict):
                break
            found.append(row)
        return tuple(found)

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield (number of the first line, block of whole lines); only the last block may lack its last line's end.

        Raises:
            InputError: a line is longer than 64 MiB, or the compressed stream is damaged.
        """
        number, parts, held = 1, [], 0
        for data in _without_bom(self._content()):
            end = data.rfind(b"\n") + 1
            if not end:
                parts.append(data)
                held += len(data)
                if held > MAX_LINE_BYTES:
                    raise self.refuse(
                        number,
                        f"longer than {MAX_LINE_BYTES >> 20} MiB",
                        "one record a line",
                        f"head -c 200 {self.path}",
                    )
                continue
            block = b"".join([*parts, data[:end]])
            yield number, block
            number += block.count(b"\n")
            parts, held = [data[end:]], len(data) - end
        rest = b"".join(parts)
        if rest.strip():
            yield number, rest

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (number from 1, line without its end) of every line that is not blank."""
        for first, block in self.blocks():
            for number, line in enumerate(block.split(b"\n"), first):
                if text := line.strip():
                    yield number, text

    def text_lines(self) -> Iterator[tuple[int, str]]:
        """Yield ``lines`` as text.

        Raises:
            InputError: a line is no UTF-8; the message names it.
        """
        for number, line in self.lines():
            try:
                yield number, line.decode()
            except UnicodeDecodeError as error:
                raise self.refuse(number, f"no UTF-8 at byte {error.start} of the line", "UTF-8 text") from error

    def document(self) -> object:
        """Return the whole file as one JSON document; for formats that are one.

        Raises:
            InputError: it is no JSON, or larger than 1 GiB.
        """
        data = bytearray()
        for piece in self._content():
            data += piece
            if len(data) > MAX_DOCUMENT_BYTES:
                raise InputError(
                    f"{self.path} is one JSON document of more than {MAX_DOCUMENT_BYTES >> 30} GiB",
                    "a smaller one",
                    "write one record a line instead: such a file is read in pieces",
                )
        try:
            return orjson.loads(data.removeprefix(_BOM))
        except orjson.JSONDecodeError as error:
            raise InputError(f"{self.path} is no JSON document ({error})", "a whole JSON document") from error

    def pieces(self) -> Iterator[bytes]:
        """Yield the content, unpacked, in pieces of up to 1 MiB; for binary formats, where lines mean nothing."""
        return self._content()

    def binary(self) -> bytes:
        """Return the whole content; for binary formats that cannot be read in pieces.

        Raises:
            InputError: it is larger than 1 GiB.
        """
        data = bytearray()
        for piece in self._content():
            data += piece
            if len(data) > MAX_DOCUMENT_BYTES:
                raise InputError(
                    f"{self.path} holds more than {MAX_DOCUMENT_BYTES >> 30} GiB, which has to be in memory at once",
                    "a smaller file, or a plain .npy, which is mapped instead",
                    "unpack it (gunzip, unzstd) or split it",
                )
        return bytes(data)

    def cut_line(self, number: int) -> None:
        """Note that the last line ends early."""
        self.cut = True
        self.warnings.append(f"line {number} is cut off and was left out")

    def _content(self) -> Iterator[bytes]:
        try:
            if self._magic.startswith(_GZIP):
                yield from _gathered(self._gzip())
            elif self._magic.startswith(_ZSTD):
                yield from _gathered(self._zstd())
            else:
                with self.path.open("rb", buffering=0) as file:
                    while piece := file.read(BLOCK_BYTES):
                        yield piece
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror or error}", "a readable file") from error

    def _gzip(self) -> Iterator[bytes]:
        done = 0
        with gzip.open(self.path, "rb") as file:
            try:
                while piece := file.read1(BLOCK_BYTES):
                    done += len(piece)
                    yield piece
            except EOFError:
                self._cut_stream("gzip", done)
            except (gzip.BadGzipFile, zlib.error) as error:
                raise self._damaged("gzip", error) from error

    def _zstd(self) -> Iterator[bytes]:
        """Unpack frame by frame: the stream reader of ``zstandard`` does not tell a cut frame from a whole one."""
        zstandard = _zstandard(self.path)
        unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        done, frame = 0, None
        with self.path.open("rb") as file:
            while packed := file.read(_ZSTD_STEP):
                while packed:
                    frame = frame or unpacker.decompressobj()
                    try:
                        piece = frame.decompress(packed)
                    except zstandard.ZstdError as error:
                        raise self._damaged("zstd", error) from error
                    packed, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
                    done += len(piece)
                    yield piece
        if frame is not None:
            self._cut_stream("zstd", done)

    def _cut_stream(self, kind: str, done: int) -> None:
        self.cut = True
        self.warnings.append(f"the {kind} stream ends early, after {done} bytes of content")

    def _damaged(self, kind: str, error: Exception) -> InputError:
        return InputError(f"{self.path} is damaged: {error}", f"a whole {kind} file")


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except ValueError as error:
        raise InputError(f"trace {str(path)!r}: {error}", "the path of a trace file") from error


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join small pieces into blocks."""
    parts, held = [], 0
    for piece in pieces:
        parts.append(piece)
        held += len(piece)
        if held >= BLOCK_BYTES:
            yield b"".join(parts)
            parts, held = [], 0
    if held:
        yield b"".join(parts)


def _without_bom(pieces: Iterator[bytes]) -> Iterator[bytes]:
    start = b""
    for piece in pieces:
        start += piece
        if len(start) >= len(_BOM):
            break
    yield start.removeprefix(_BOM)
    yield from pieces


def _zstandard(path: Path) -> ModuleType:
    try:
        import zstandard  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise InputError(
            f"{path} is compressed with zstd", "the extra that reads it", "pip install 'pytest-moetier[zstd]'"
        ) from error
    return zstandard


def _lax(line: bytes) -> object:
    """Return what Python's own parser, which takes NaN and Infinity, makes of a line; None when it is no JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def json_error(line: bytes, error: Exception) -> str:
    """Return what is wrong with a line that is no JSON: NaN and Infinity are told apart from the rest."""
    return f"no JSON ({error})" if _lax(line) is None else "NaN or Infinity, which JSON does not have"
