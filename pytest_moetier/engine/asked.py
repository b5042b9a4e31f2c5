"""What findings on an engine ask to be measured: runs of the engine, replays of its trace, the device's own rate."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pytest_moetier.engine.arm import QUANTISATIONS, Arm

TOKENS = 16
"""Generated in a run, unless the user or the run says otherwise."""
ROUNDS, PAIRS = 2, 3
"""Repetitions unless they are named: of an arm, and of a pair (paper section 9: three)."""
PROMPT = "The history of the Roman Empire begins with"
"""For a model with a vocabulary: moe-offload-bench's."""
_IDS = re.compile(r"\d+(,\d+)*")


@dataclass(frozen=True, slots=True)
class EngineAsked:
    """What the user chose of an engine's session.

    Attributes:
        model: the user's own model; None: generated ones with random weights.
        prompt: text, or token ids with commas between; "" for the usual one.
        tokens: to generate in a run that does not say it itself.
    """

    model: Path | None = None
    prompt: str = ""
    tokens: int = TOKENS

    @property
    def words(self) -> tuple[int, ...] | str:
        """The prompt as it was given: ids, or text; "" where the usual one is meant."""
        if _IDS.fullmatch(self.prompt):
            return tuple(int(one) for one in self.prompt.split(","))
        return self.prompt


@dataclass(frozen=True, slots=True)
class Ran:
    """The engine, run in an arm.

    Attributes:
        arm: what is varied.
        tokens: to generate; 0 for what the session generates.
        pair: a word that it shares with the arm that it is measured back to back with.
        capture: the router's choices are reported; the replays rest on them, so it is measured once, before the rounds.
        direct: the weights are loaded past the page cache, all of them anonymous: behind a wall, the kill is what is
            measured.
    """

    arm: Arm
    tokens: int = 0
    pair: str = ""
    capture: bool = False
    direct: bool = False

    @property
    def id(self) -> str:
        """Its name, usable with ``-k``."""
        words = [self.arm.id]
        words += [f"{self.tokens}tokens"] if self.tokens else []
        words += [self.pair] if self.pair else []
        words += ["captured"] if self.capture else []
        words += ["direct_io"] if self.direct else []
        return "-".join(words)

    @property
    def quantisation(self) -> str:
        """Of the generated model."""
        return self.arm.quantisation


@dataclass(frozen=True, slots=True)
class Replayed:
    """The captured trace, replayed natively over the mapped model.

    Attributes:
        mode: where a hit's bytes come from, a word of ``modes.MODES``.
        capacity_share: of the experts' bytes.
        read_limit: bytes a second that the device may be read at.
        of: the run whose trace it is.
    """

    mode: str
    capacity_share: float
    read_limit: int
    of: Ran
    pair: str = ""

    @property
    def id(self) -> str:
        """Its name, usable with ``-k``."""
        return f"replay-{self.mode}"

    @property
    def quantisation(self) -> str:
        """Of the model that is replayed over."""
        return QUANTISATIONS[0]


@dataclass(frozen=True, slots=True)
class DeviceRate:
    """The rate of sequential reads past the page cache, under a read limit.

    Attributes:
        read_limit: bytes a second that the device may be read at.
    """

    read_limit: int
    pair: str = ""

    @property
    def id(self) -> str:
        """Its name."""
        return "device_rate"

    @property
    def quantisation(self) -> str:
        """Of the model whose file is read."""
        return QUANTISATIONS[0]


Wanted: TypeAlias = Ran | Replayed | DeviceRate
