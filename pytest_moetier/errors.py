"""The exception types: one clear message each, saying what was seen, what was expected and what to run next."""

from __future__ import annotations


class MoetierError(Exception):
    """Anything this package refuses or gives up on.

    Args:
        seen: what was observed, with its unit.
        expected: what should have been observed.
        do: the next command or action for the user.
    """

    def __init__(self, seen: str, expected: str = "", do: str = "") -> None:
        """Keep the three parts apart, so that a report can lay them out."""
        super().__init__(seen, expected, do)
        self.seen = seen
        self.expected = expected
        self.do = do

    def __str__(self) -> str:
        """Return the one message: ``seen; expected ...; next: ...``."""
        parts = [self.seen]
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.do:
            parts.append(f"next: {self.do}")
        return "; ".join(parts)


class InputError(MoetierError):
    """A file, option or number from the user cannot be used."""


class UnsupportedHostError(MoetierError):
    """This host cannot do what the cell needs: the verdict is not_examined, never passed."""


class HostBusyError(MoetierError):
    """Another run holds the host, or another process disturbs it."""


class HarnessError(MoetierError):
    """Our own machinery broke: a child died, a protocol line did not come."""


class AccountingError(MoetierError):
    """A run finished, but its accounting does not add up: it is INVALID and must not be stored."""
