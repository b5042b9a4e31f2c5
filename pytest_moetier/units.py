"""Sizes and seconds: parsing what users write and printing it back under its right name (GB is 10^9, GiB is 2^30)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from pytest_moetier.errors import InputError

PAGE_BYTES = 4096
SECTOR_BYTES = 512

_SCALES = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
_NUMBER = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*|%)\s*$")
_SIZE_HINT = "a size such as 64GB, 1.5GiB or 512MiB"


def parse_bytes(text: str) -> int:
    """Return the number of bytes that ``text`` names.

    GB is 10^9 and GiB is 2^30; a bare K, M, G or T is binary, as the kernel's own files take it.

    Raises:
        InputError: the text is not a size, or is zero.
    """
    match = _NUMBER.match(text)
    scale = _SCALES.get(match[2].upper()) if match else None
    if match is None or scale is None:
        raise InputError(f"{text!r} is not a size", _SIZE_HINT)
    value = int(Decimal(match[1]) * scale)
    if value <= 0:
        raise InputError(f"{text!r} is not a positive size", _SIZE_HINT)
    return value


def format_bytes(value: float, *, binary: bool = False) -> str:
    """Return ``value`` bytes in the largest fitting unit, decimal (GB) unless ``binary`` (GiB)."""
    step = 1024.0 if binary else 1000.0
    names = ("B", "KiB", "MiB", "GiB", "TiB") if binary else ("B", "KB", "MB", "GB", "TB")
    size = float(value)
    for name in names[:-1]:
        if abs(size) < step:
            return f"{size:.0f} {name}" if name == "B" else f"{_digits(size, 3)} {name}"
        size /= step
    return f"{_digits(size, 4)} {names[-1]}"


def _digits(value: float, digits: int) -> str:
    """Return a number to so many digits, and whole, not with an exponent, where it has more before the point."""
    shown = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in shown else shown


def format_seconds(value: float) -> str:
    """Return ``value`` seconds, in ms below one second."""
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 100 else f"{int(value // 60)} min {int(value % 60)} s"


@dataclass(frozen=True, slots=True, order=True)
class Capacity:
    """A capacity as the user named it: bytes, or a share of the pool.

    Attributes:
        text: the user's own words, normalised (``64GB``, ``4.4%``).
        bytes: the absolute size in bytes, or 0 when ``share`` is set.
        share: the fraction of the pool (0.044 for ``4.4%``), or 0.0 when ``bytes`` is set.
    """

    share: float
    bytes: int
    text: str

    @classmethod
    def parse(cls, text: str) -> Capacity:
        """Return the capacity that ``text`` names.

        Raises:
            InputError: neither a size nor a percentage in (0, 100].
        """
        words = text.strip().replace(" ", "")
        if not words.endswith("%"):
            try:
                return cls(share=0.0, bytes=parse_bytes(words), text=words)
            except InputError as error:
                raise InputError(
                    f"capacity {text!r} is not readable", f"{_SIZE_HINT}, or a share such as 5%"
                ) from error
        match = _NUMBER.match(words)
        if match is None:
            raise InputError(f"capacity {text!r} is not readable", "a share of the pool such as 4.4%")
        percent = Decimal(match[1])
        if not 0 < percent <= 100:
            raise InputError(f"capacity {text!r} is outside the pool", "a share above 0% and at most 100%")
        return cls(share=float(percent / 100), bytes=0, text=words)

    @property
    def id(self) -> str:
        """The spelling used in test ids: no ``%`` and no ``=``, so that ``-k`` takes it (``C4.4pct``, ``C64GB``)."""
        return "C" + self.text.replace("%", "pct")

    def resolve(self, pool_bytes: int) -> int:
        """Return the capacity in bytes for a pool of ``pool_bytes``."""
        return self.bytes or round(self.share * pool_bytes)
