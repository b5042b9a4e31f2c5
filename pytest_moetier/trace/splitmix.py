"""Counter-based random numbers that are bit-identical on every machine.

A stream is a 64-bit key; its i-th word is splitmix64's output for the state ``key + (i + 1) * GAMMA``, so that any word
of any stream is computed on its own, in any order, vectorised. Normals are sums of twelve 16-bit uniforms: integers
up to one float64 multiply, and no call into libm, whose last bits differ between C libraries. Where millions are wanted
and the far tail does not matter, sums of a word's bytes do: exact integers, for a fifth of the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

GAMMA = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1

_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB
_LANES = np.uint64(0x0000FFFF0000FFFF)
_LOW = np.uint64(0xFFFFFFFF)
_WORDS_PER_NORMAL = 3
_BYTES = np.uint64(0x00FF00FF00FF00FF)
_SUM_LANES = np.uint64(0x0001000100010001)

BYTE_SUM_MEAN = 1020.0
"""The mean of the sum of a word's eight bytes; that of four bytes is the half."""
BYTE_SUM_VARIANCE = 43690.0
"""The variance of the sum of a word's eight bytes: 8 (256^2 - 1) / 12; that of four bytes is the half."""

U64 = NDArray[np.uint64]
F64 = NDArray[np.float64]


def mix(value: int) -> int:
    """Return splitmix64's finaliser of ``value`` (a bijection of 64-bit words)."""
    value &= WORD
    value = ((value ^ (value >> 30)) * _MIX_A) & WORD
    value = ((value ^ (value >> 27)) * _MIX_B) & WORD
    return value ^ (value >> 31)


def mix_array(values: U64) -> U64:
    """Return ``mix`` of each element, in a new array."""
    out = values >> np.uint64(30)
    out ^= values
    out *= np.uint64(_MIX_A)
    out ^= out >> np.uint64(27)
    out *= np.uint64(_MIX_B)
    out ^= out >> np.uint64(31)
    return out


def mix_in_place(values: U64, spare: U64) -> None:
    """Replace each element by its ``mix``; ``spare`` is scratch of the same shape."""
    for shift, factor in ((30, _MIX_A), (27, _MIX_B)):
        np.right_shift(values, np.uint64(shift), out=spare)
        values ^= spare
        values *= np.uint64(factor)
    np.right_shift(values, np.uint64(31), out=spare)
    values ^= spare


def byte_sums(drawn: U64, spare: U64) -> None:
    """Replace each word by the sum of its eight bytes, a bell curve on 0..2040; ``spare`` is scratch."""
    _pair_sums(drawn, spare)
    drawn *= _SUM_LANES
    drawn >>= np.uint64(48)


def half_sums(drawn: U64, spare: U64) -> None:
    """Replace each word by the sums of its lower and its upper four bytes, in bits 0-15 and bits 32-47."""
    _pair_sums(drawn, spare)
    np.right_shift(drawn, np.uint64(16), out=spare)
    drawn += spare


def _pair_sums(drawn: U64, spare: U64) -> None:
    """Replace each word by four 16-bit lanes, the sum of two of its bytes each."""
    np.right_shift(drawn, np.uint64(8), out=spare)
    spare &= _BYTES
    drawn &= _BYTES
    drawn += spare


def key(seed: int, *parts: int) -> int:
    """Return the key of the stream that ``parts`` name under ``seed``."""
    state = mix(seed + GAMMA)
    for part in parts:
        state = mix(state ^ mix(part + GAMMA))
    return state


def keys(base: int, parts: NDArray[Any]) -> U64:
    """Return ``key`` continued by one more part, for each element of ``parts``: shape of ``parts``."""
    return mix_array(np.uint64(base) ^ mix_array(parts.astype(np.uint64) + np.uint64(GAMMA)))


def words(stream: U64 | np.uint64 | int, first: int, count: int) -> U64:
    """Return words ``first`` to ``first + count`` of each stream: shape ``stream.shape + (count,)``."""
    base = np.asarray(stream, dtype=np.uint64)[..., None]
    steps = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(GAMMA)
    return mix_array(base + steps)


def normals(stream: U64 | np.uint64 | int, first: int, count: int) -> F64:
    """Return standard normals ``first`` to ``first + count`` of each stream (sums of 12 uniforms, so within +-6)."""
    start = first * _WORDS_PER_NORMAL
    raw = words(stream, start, count * _WORDS_PER_NORMAL)
    lanes = (raw & _LANES) + ((raw >> np.uint64(16)) & _LANES)
    total = lanes[..., 0::3] + lanes[..., 1::3] + lanes[..., 2::3]
    total = (total & _LOW) + (total >> np.uint64(32))
    # twelve uniforms on 0..65535 have the mean 12 * 32767.5; as fractions of 2^16 their variance is 1 to ten digits
    return (total.astype(np.float64) - 393210.0) * (1.0 / 65536.0)


def below(stream: int, index: int, bound: int) -> int:
    """Return an integer in [0, bound): word ``index`` of the stream, scaled (the bias is below bound / 2^64)."""
    word = mix(stream + (index + 1) * GAMMA)
    return (word * bound) >> 64


def shuffled(count: int, stream: int) -> list[int]:
    """Return a permutation of ``range(count)`` (Fisher-Yates)."""
    order = list(range(count))
    for last in range(count - 1, 0, -1):
        other = below(stream, last, last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def exp(value: float) -> float:
    """Return e^value for |value| < 700 to about 1e-13, by multiplication and addition alone.

    The argument is halved until it is below 1/1024 in size, a Taylor sum of eight terms is taken, and the result
    squared back: the same float64 steps on every machine, which ``math.exp`` does not promise.
    """
    halvings = 0
    while abs(value) > 1.0 / 1024.0:
        value *= 0.5
        halvings += 1
    total = 1.0
    for term in range(8, 0, -1):
        total = 1.0 + total * value / term
    for _ in range(halvings):
        total *= total
    return total
