"""A value with the range that it may have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A value with the least and the most that it may be: a bound that lies between cannot be told."""

    low: float
    value: float
    high: float

    @classmethod
    def of(cls, values: tuple[float, ...], value: float) -> Span:
        """Return a value with the least and the most of those that it summarises."""
        return cls(min(values), value, max(values))
