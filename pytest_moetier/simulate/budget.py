"""Budgets: what a cache may hold, as users say it, and what that is in a workload's units."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from pytest_moetier.errors import InputError
from pytest_moetier.simulate.workload import Workload
from pytest_moetier.units import format_bytes, parse_bytes

EXPERTS, BYTES, SHARE = "experts", "bytes", "share"
UNITS = (EXPERTS, BYTES, SHARE)

_WORDS = "experts (455 or 8/layer), bytes (4000MiB or 64GB) or a share of the pool (25%)"
_NUMBER = re.compile(r"^(-?[0-9]*\.?[0-9]+)(%?)$")


@dataclass(frozen=True, slots=True)
class Room:
    """What one budget is in a workload.

    Attributes:
        budget: as the user said it.
        unit: ``experts`` or ``bytes``: what ``each`` counts.
        each: the capacity of each cache: of the one, or of each layer's.
        caches: how many caches share the budget.
    """

    budget: Budget
    unit: str
    each: int
    caches: int

    @property
    def total(self) -> int:
        """The capacity of all caches together."""
        return self.each * self.caches


@dataclass(frozen=True, slots=True)
class Budget:
    """What the caches of all layers may hold together, as the user said it.

    Attributes:
        text: the user's words, normalised.
        unit: ``experts``, ``bytes`` or ``share``.
        amount: experts, bytes, or the fraction of the pool.
        per_layer: the amount is that of one layer.
    """

    text: str
    unit: str
    amount: Fraction
    per_layer: bool = False

    @classmethod
    def parse(cls, text: str, unit: str | None = None) -> Budget:
        """Return the budget that ``text`` names.

        Args:
            text: ``455``, ``8/layer``, ``4000MiB``, ``64GB``, ``25%``.
            unit: of a bare number; default: experts.

        Raises:
            InputError: not a budget, zero or negative, of another unit than asked, or a fraction of nobody knows what.
        """
        if unit is not None and unit not in UNITS:
            raise InputError(f"--unit {unit}", "one of " + ", ".join(UNITS))
        words = text.strip().replace(" ", "")
        per_layer = words.endswith("/layer")
        bare = words.removesuffix("/layer")
        number = _NUMBER.match(bare)
        if number is None:
            return cls(words, _agreed(words, BYTES, unit), Fraction(_parsed_bytes(bare, words)), per_layer)
        amount = Fraction(Decimal(number[1]))
        if amount <= 0:
            raise InputError(f"a budget of {words}", f"more than 0: {_WORDS}")
        if number[2]:
            return cls(words, _agreed(words, SHARE, unit), _share(words, amount / 100, per_layer=per_layer), per_layer)
        if unit == SHARE:
            return cls(words, SHARE, _share(words, amount, per_layer=per_layer))
        if amount.denominator != 1:
            raise InputError(f"a budget of {words}: a fraction of what?", _WORDS)
        return cls(words, unit or EXPERTS, amount, per_layer)

    def room(self, workload: Workload, allocation: str) -> Room:
        """Return what the budget is in a workload: one cache's capacity, or that of each layer's equal part.

        Where all experts are of one size, bytes are counted in whole experts: every policy does the same by either.

        Raises:
            InputError: it exceeds the pool, cannot hold one expert in each cache, or sizes are not known.
        """
        if self.unit == BYTES and not workload.layer_bytes:
            raise InputError(
                f"a budget of {self.text}, and {workload.source} does not state the size of an expert",
                "a size",
                "--expert-bytes SIZE, or a budget in experts or as a share",
            )
        caches = workload.n_layers if allocation == "layer" else 1
        sized = self.unit != EXPERTS and not workload.uniform
        pool = workload.pool_bytes if self.unit == BYTES or sized else workload.n_objects
        amount = self.amount * (workload.n_layers if self.per_layer else 1)
        total = int(amount * pool if self.unit == SHARE else amount)
        if total > pool:
            limit = f"{pool} bytes ({format_bytes(pool)})" if pool == workload.pool_bytes else f"{pool} experts"
            raise InputError(f"a budget of {self.text} is above the pool of {workload.source}", f"at most {limit}")
        each = total // caches
        if self.unit == BYTES and not sized:
            each //= workload.layer_bytes[0]
        largest = max(workload.layer_bytes) if sized else 1
        if each < largest:
            raise InputError(
                f"a budget of {self.text} leaves {each} {BYTES if sized else EXPERTS} for each of {caches} cache(s)",
                f"at least one expert in each ({largest} bytes)" if sized else "at least one expert in each",
            )
        return Room(self, BYTES if sized else EXPERTS, each, caches)


def _agreed(words: str, found: str, unit: str | None) -> str:
    if unit not in {None, found}:
        raise InputError(f"a budget of {words} with --unit {unit}", f"--unit {found}, or none")
    return found


def _parsed_bytes(bare: str, words: str) -> int:
    try:
        return parse_bytes(bare)
    except InputError as error:
        raise InputError(f"a budget of {words}", _WORDS) from error


def _share(words: str, share: Fraction, *, per_layer: bool) -> Fraction:
    if per_layer:
        raise InputError(f"a budget of {words}", "a share of the whole pool, which is that of each layer too: 25%")
    if share > 1:
        raise InputError(f"a budget of {words} is above the pool", "a share of at most 100%")
    return share
