"""The exception types: one clear message each, saying what was seen, what was expected and what to run next."""

from __future__ import annotations


class MoetierError(Exception):
    """Anything this package refuses or gives up on.

    Args:
        seen: what was observed, with its unit.
        expected: what should have been observed.
        do: the next command or action for the user; default: the kind's usual one.
    """

    usual = ""
    """What to do about an error of this kind where nothing better is known."""

    def __init__(self, seen: str, expected: str = "", do: str = "") -> None:
        """Keep the three parts apart, so that a report can lay them out."""
        super().__init__(seen, expected, do)
        self.seen = seen
        self.expected = expected
        self.do = do or self.usual

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

    usual = "`moetier doctor` says what this host can measure and what would change it"


class HostBusyError(MoetierError):
    """Another run holds the host, or another process disturbs it."""

    usual = "end what else works on this host, and measure again"


class HarnessError(MoetierError):
    """Our own machinery broke: a child died, a protocol line did not come."""

    usual = "run the same command again; `moetier doctor` looks at the host"


class AccountingError(MoetierError):
    """A run finished, but its accounting does not add up: it is INVALID and must not be stored."""

    usual = "measure the cell again"
