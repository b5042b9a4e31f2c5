"""A trace file as a stream: any block size, any packing, and a refusal where a file is none that can be read."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_moetier.errors import InputError
from pytest_moetier.trace import source as source_module
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.source import BLOCK_BYTES, Source

zstandard = pytest.importorskip("zstandard", reason="zstandard (the extra zstd) is not installed")

FIXTURES = Path(__file__).parents[2] / "fixtures" / "traces"
TEXT = "".join(f'{{"line":{number},"text":"é{"x" * (number % 90)}"}}\n' for number in range(500)).encode()


def _streamed(data: bytes) -> bytes:
    """Return a frame that does not state its size."""
    packer = zstandard.ZstdCompressor().compressobj()
    return bytes(packer.compress(data) + packer.flush())


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "gzip members": lambda data: b"".join(gzip.compress(data[at : at + 999]) for at in range(0, len(data), 999)),
    "gzip padded": lambda data: gzip.compress(data) + bytes(512),
    "zstd": zstandard.compress,
    "zstd frames": lambda data: b"".join(zstandard.compress(data[at : at + 999]) for at in range(0, len(data), 999)),
    "zstd stream": _streamed,
}
packed = pytest.mark.parametrize("kind", PACKERS)


def written(folder: Path, data: bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(data)
    return path


@contextmanager
def peak_below(limit: int) -> Iterator[None]:
    """Assert that Python never holds more than ``limit`` bytes more than before."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def numbered(data: bytes) -> list[tuple[int, bytes]]:
    return [(number, line.strip()) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]


@packed
@pytest.mark.parametrize("size", [1, 2, 7, 1000, 1 << 16, BLOCK_BYTES])
def test_blocks_of_any_size_give_the_same_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, size: int
) -> None:
    monkeypatch.setattr(source_module, "BLOCK_BYTES", size)
    data = TEXT + b"the last line has no end"
    source = Source(written(tmp_path, PACKERS[kind](data)))
    assert list(source.lines()) == numbered(data)
    blocks = list(source.blocks())
    assert b"".join(block for _, block in blocks) == data
    assert all(block.endswith(b"\n") for _, block in blocks[:-1])
    assert b"".join(source.pieces()) == source.binary() == data
    assert (source.cut, source.warnings) == (False, [])


@packed
def test_a_byte_order_mark_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for size in (1, 2, BLOCK_BYTES):
        monkeypatch.setattr(source_module, "BLOCK_BYTES", size)
        source = Source(written(tmp_path, PACKERS[kind](b'\xef\xbb\xbf{"a":1}\n\xef\xbb\xbf{"b":2}\n')))
        assert source.first == {"a": 1}
        assert [line for _, line in source.lines()] == [b'{"a":1}', b'\xef\xbb\xbf{"b":2}']


@packed
def test_carriage_returns_and_blank_lines_keep_the_numbers(tmp_path: Path, kind: str) -> None:
    source = Source(written(tmp_path, PACKERS[kind](b"one\r\n\r\n  \n four \r\nfive")))
    assert list(source.lines()) == [(1, b"one"), (4, b"four"), (5, b"five")]
    assert source.head_lines == (b"one", b"four", b"five")


def test_a_file_can_be_walked_again_and_again(tmp_path: Path) -> None:
    source = Source(written(tmp_path, zstandard.compress(TEXT)))
    assert list(source.lines()) == list(source.lines()) == numbered(TEXT)


@pytest.mark.parametrize("kind", [kind for kind in PACKERS if kind not in {"plain", "gzip padded"}])
@pytest.mark.parametrize("share", [0.3, 0.9, 1.0])
def test_a_cut_stream_keeps_what_it_holds_and_says_so(tmp_path: Path, kind: str, share: float) -> None:
    draw = random.Random(5)  # noqa: S311  (repeatable)
    data = b"".join(f"{draw.getrandbits(400):x}\n".encode() for _ in range(6000))  # several blocks of 128 KiB
    whole = PACKERS[kind](data)
    source = Source(written(tmp_path, whole[: int(len(whole) * share) - 5]))
    lines = list(source.lines())
    assert source.cut
    assert len(source.warnings) == 1
    held = sum(len(block) for _, block in source.blocks())
    assert f"the {kind[:4]} stream ends early, after {held} bytes of content" in source.warnings
    assert lines[:-1] == numbered(data)[: len(lines) - 1]


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [4, 6, 9])
def test_a_stream_cut_in_its_header_is_said_to_be_cut(tmp_path: Path, kind: str, size: int) -> None:
    with pytest.raises(InputError, match="is cut off before anything in it can be unpacked"):
        Source(written(tmp_path, PACKERS[kind](TEXT)[:size]))


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_damaged_stream_is_refused(tmp_path: Path, kind: str) -> None:
    data = bytearray(PACKERS[kind](os.urandom(300_000)))
    data[len(data) // 2 :] = bytes(len(data) // 2)
    with pytest.raises(InputError, match=r"is damaged: .*expected a whole (gzip|zstd) file"):
        b"".join(Source(written(tmp_path, bytes(data) + b"behind the end")).pieces())


def test_zstd_without_its_module_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, zstandard.compress(TEXT))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(
        InputError, match=r"compressed with zstd; .*next: pip install 'pytest-moetier\[zstd\]'"
    ) as error:
        load_trace(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("data", "command"),
    [
        (lzma.compress(TEXT), "unxz"),
        (bz2.compress(TEXT), "bunzip2"),
        (b"\x04\x22\x4d\x18" + bytes(20), "unlz4"),
        (b"7z\xbc\xaf\x27\x1c" + bytes(20), "7z x"),
    ],
)
def test_another_compression_is_refused_with_the_command_that_unpacks_it(
    tmp_path: Path, data: bytes, command: str
) -> None:
    path = written(tmp_path, data)
    with pytest.raises(InputError, match=f"compressed in a way .*expected a plain, gzip or zstd.*{command} {path}"):
        load_trace(path)


def test_a_huge_line_is_refused_with_little_read(tmp_path: Path) -> None:
    path = tmp_path / "line"
    with path.open("wb") as file:
        file.write(b'{"token":0,"layer":0,"experts":[1],"phase":"decode"')
        file.truncate(10_000_000_000)
    with peak_below(200 << 20), pytest.raises(InputError, match="line 1: longer than 64 MiB") as error:
        load_trace(path, "moevm-lab")
    assert str(path) in str(error.value)
    nothing = tmp_path / "nothing"
    nothing.touch()
    os.truncate(nothing, 10_000_000_000)
    with peak_below(16 << 20), pytest.raises(InputError, match="of no known trace format"):
        load_trace(nothing)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_huge_line_that_is_packed_small_is_refused_too(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, PACKERS[kind](b"x" * (300 << 20)))
    assert path.stat().st_size < 1 << 20
    with peak_below(250 << 20), pytest.raises(InputError, match="longer than 64 MiB"):
        list(Source(path).lines())


def test_a_document_or_packed_array_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "MAX_DOCUMENT_BYTES", 1 << 20)
    source = Source(written(tmp_path, b"[" + b"1," * (1 << 20) + b"1]"))
    with pytest.raises(InputError, match=r"more than 0 GiB.*in pieces"):
        source.document()
    with pytest.raises(InputError, match=r"more than 0 GiB.*unpack it"):
        source.binary()


@pytest.mark.parametrize("data", [b"", b"\n", b" \r\n\t\n" * 9, b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
def test_a_file_without_content_is_empty(tmp_path: Path, data: bytes, kind: str) -> None:
    path = written(tmp_path, PACKERS[kind](data))
    with pytest.raises(InputError, match="holds no record: it is empty") as error:
        load_trace(path)
    assert str(path) in str(error.value)


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


def _loop(folder: Path) -> Path:
    (folder / "loop").symlink_to(folder / "loop")
    return folder / "loop"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder, "it is a directory; expected a plain file"),
        (_fifo, "it is no plain file"),
        (lambda _: Path("/dev/zero"), "it is no plain file"),
        (lambda folder: folder / "none", "No such file or directory"),
        (lambda folder: written(folder, b"x") / "below", "Not a directory"),
        (_loop, "Too many levels of symbolic links"),
        (lambda folder: folder / ("long" * 99), "File name too long"),
        (lambda folder: folder / "nul\0", "null byte"),
    ],
)
def test_what_is_no_file_that_can_be_read_is_refused(
    tmp_path: Path, make: Callable[[Path], Path], message: str
) -> None:
    path = make(tmp_path)
    with pytest.raises(InputError, match=message) as error:
        load_trace(path)
    assert str(path) in error.value.seen or repr(str(path)) in error.value.seen


def test_a_file_that_goes_or_cannot_be_read_any_more_is_refused(tmp_path: Path) -> None:
    source = Source(written(tmp_path, TEXT))
    source.path.unlink()
    with pytest.raises(InputError, match="cannot be read: No such file"):
        list(source.lines())
    source.path.mkdir()
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        list(source.lines())


def test_text_that_is_no_utf8_names_its_line(tmp_path: Path) -> None:
    source = Source(written(tmp_path, TEXT + b"caf\xe9\n"))
    with pytest.raises(InputError, match="line 501: no UTF-8 at byte"):
        list(source.text_lines())


@pytest.mark.parametrize("name", ["speculative.jsonl", "bigmoe.route.csv", "records.u32", "routed_experts.npy"])
def test_a_whole_trace_may_be_packed_with_zstd(tmp_path: Path, name: str) -> None:
    data = (FIXTURES / name).read_bytes()
    assert (
        load_trace(written(tmp_path, zstandard.compress(data))).fingerprint == load_trace(FIXTURES / name).fingerprint
    )
