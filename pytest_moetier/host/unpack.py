"""Compressed kernels and modules: gzip and xz by Python itself, zstd by its command or the zstandard package."""

from __future__ import annotations

import bz2
import lzma
import subprocess
import zlib
from typing import Protocol

from pytest_moetier.errors import UnsupportedHostError

_ZSTD = b"\x28\xb5\x2f\xfd"
_LIMIT_BYTES = 1 << 30


def unpack(data: bytes) -> bytes:
    """Return ``data`` unpacked as its first bytes say, whatever follows its end; as it is where they say nothing.

    Raises:
        UnsupportedHostError: it is zstd, and neither the command nor the package is there.
        ValueError: it is damaged or cut short.
    """
    try:
        if data[:2] == b"\x1f\x8b":
            return _whole(zlib.decompressobj(wbits=31), data)
        if data[:6] == b"\xfd7zXZ\0":
            return _whole(lzma.LZMADecompressor(), data)
        if data[:3] == b"BZh":
            return _whole(bz2.BZ2Decompressor(), data)
    except (zlib.error, lzma.LZMAError, OSError) as error:
        raise ValueError(f"damaged: {error}") from error
    return _unpack_zstd(data) if data[:4] == _ZSTD else data


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool:
        """Whether the end has been reached."""

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Return at most so many unpacked bytes."""


def _whole(decompressor: _Decompressor, data: bytes) -> bytes:
    unpacked = decompressor.decompress(data, _LIMIT_BYTES)
    if not decompressor.eof:
        raise ValueError("cut short")
    return unpacked


def _unpack_zstd(data: bytes) -> bytes:
    try:
        import zstandard  # noqa: PLC0415  (an extra: only a few kernels need it)
    except ImportError:
        return _zstd_command(data)
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
    try:
        unpacked = decompressor.decompress(data)
    except zstandard.ZstdError as error:
        raise ValueError(f"damaged: {error}") from error
    if not decompressor.eof:
        raise ValueError("cut short")
    return unpacked


def _zstd_command(data: bytes) -> bytes:
    """Unpack by the command, which ends at the first byte after the end with an error and all of the output."""
    try:
        done = subprocess.run(["zstd", "-dcq", "--memory=2048MB"], input=data, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise UnsupportedHostError(
            "zstd data, and nothing here that unpacks it",
            "the zstd command, or the Python package zstandard",
            "apt-get install zstd, or pip install 'pytest-moetier[zstd]'",
        ) from error
    if done.returncode and b"unsupported format" not in done.stderr:
        raise ValueError(f"damaged: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
