"""The admission A/B: the engine with the page cache, and the same with nothing kept in it (paper section 9)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from pytest_moetier.engine.arm import Arm
from pytest_moetier.engine.lab import Ask, EngineLab
from pytest_moetier.engine.proof import examine_engine
from pytest_moetier.engine.run import EngineRun
from pytest_moetier.proof.lines import Proof

ADMIT, DROP = "willneed", "drop"
"""Both are told what is chosen, by the same hint: what differs is whether it stays."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs back to back: the cache admitted, and dropped; each with its proof."""

    admit: EngineRun
    drop: EngineRun
    proofs: tuple[Proof, Proof]

    @property
    def same_tokens(self) -> bool:
        """Whether both gave the same output, by its SHA-256."""
        return self.admit.sha256 == self.drop.sha256 and self.admit.ids == self.drop.ids

    @property
    def proved(self) -> bool:
        """Whether both runs count."""
        return not any(proof.broken for proof in self.proofs)

    @property
    def speed_up(self) -> float:
        """Of the decode by admission, loading and prompt apart."""
        return self.drop.decode_seconds / self.admit.decode_seconds if self.admit.decode_seconds else 1.0


def orders(pairs: int, seed: int) -> tuple[tuple[str, str], ...]:
    """Return for each pair which policy comes first: AB, then BA, then by a seeded shuffle (paper section 9)."""
    both, rng = [(ADMIT, DROP), (DROP, ADMIT)], random.Random(seed)  # noqa: S311  (an order of runs, no secret)
    return tuple(both[at] if at < len(both) else rng.choice(both) for at in range(pairs))


def measure_pairs(
    lab: EngineLab,
    ask: Ask,
    arm: Arm,
    order: tuple[tuple[str, str], ...],
    tell: Callable[[EngineRun, Proof], None] = lambda _run, _proof: None,
) -> tuple[Pair, ...]:
    """Measure the pairs in their order; ``arm`` says all but the policy.

    Raises:
        MoetierError: a run failed.
    """
    found = []
    for number, names in enumerate(order):
        runs, proofs = {}, {}
        for place, name in enumerate(names):
            run = lab.run(replace(arm, policy=name), ask, round_index=number, order=2 * number + place)
            runs[name], proofs[name] = run, examine_engine(run)
            tell(run, proofs[name])
        found.append(Pair(runs[ADMIT], runs[DROP], (proofs[ADMIT], proofs[DROP])))
    return tuple(found)
