"""The router's choices of a run as a trace of ours, and what it cost to watch them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.engine.arm import Arm
from pytest_moetier.engine.lab import Ask, EngineLab
from pytest_moetier.engine.run import Choices, EngineRun
from pytest_moetier.errors import HarnessError, InputError
from pytest_moetier.pool.manifest import Manifest
from pytest_moetier.trace.records import BATCH, NORMAL, Trace, make_trace

RANDOM_WEIGHTS = "random weights: synthetic, it says nothing of a real model's routing"


def to_trace(run: EngineRun, manifest: Manifest) -> Trace:
    """Return the choices of ``run`` as a trace: a decoded token is an iteration, the prompt's are kept apart.

    A prompt's record holds all positions of one call of the engine; in the last layer the engine computes only the
    position that it predicts from.

    Raises:
        HarnessError: the run captured no choices.
        InputError: nothing was decoded, so there is no iteration.
    """
    found = run.choices
    if found is None:
        raise HarnessError(f"run {run.arm.id} captured no choices", "a run with capture")
    if len(run.ids) < 2:
        raise InputError(
            f"{len(run.ids)} token was generated, chosen by the prompt's own pass",
            "at least 2: a trace holds what the layers chose for a decoded token",
            "give more tokens",
        )
    words = [f"llama.cpp (xllamacpp {run.facts.version})", f"model {run.model}"]
    words += [RANDOM_WEIGHTS] if run.synthetic else []
    prompt = found.prefill
    prefill = _trace(found, prompt, found.position // max(1, run.facts.micro_batch), BATCH, manifest, words, run)
    first = int(found.position[~prompt].min())
    return _trace(found, ~prompt, found.position.astype(np.int64) - first, NORMAL, manifest, words, run, prefill)


def _trace(  # noqa: PLR0913, PLR0917  (the parts of one phase)
    found: Choices,
    chosen: NDArray[np.bool_],
    iteration: NDArray[np.integer],
    kind: int,
    manifest: Manifest,
    words: list[str],
    run: EngineRun,
    prefill: Trace | None = None,
) -> Trace:
    """Make the rows of one phase a trace: rows of one iteration and layer are one record."""
    order = np.flatnonzero(chosen)
    order = order[np.lexsort((found.position[order], found.layer[order], iteration[order]))]
    iterations, layers = iteration[order].astype(np.int64), found.layer[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (iterations[1:] != iterations[:-1]) | (layers[1:] != layers[:-1])
    starts = np.flatnonzero(new)
    return make_trace(
        iteration=iterations[starts] - (int(iterations[0]) if len(iterations) else 0),
        layer=layers[starts],
        kind=np.full(len(starts), kind),
        offsets=np.append(starts, len(order)) * manifest.k,
        experts=found.experts[order].reshape(-1),
        n_experts=manifest.experts,
        k=manifest.k,
        synthetic=run.synthetic,
        source=", ".join(words),
        layers=manifest.layers,
        expert_bytes=manifest.expert_bytes,
        prefill=prefill,
        whole=kind == NORMAL,
    )


@dataclass(frozen=True, slots=True)
class Captured:
    """A trace, and what watching the router cost.

    Attributes:
        trace: of the first run.
        runs: with the choices captured, and without, as they alternated.
        seconds: the median token's, with and without.
    """

    trace: Trace
    runs: tuple[tuple[EngineRun, EngineRun], ...]
    seconds: tuple[float, float]

    @property
    def overhead(self) -> float:
        """With / without: 1 where watching costs nothing."""
        return self.seconds[0] / self.seconds[1] if self.seconds[1] else 1.0


def capture(lab: EngineLab, ask: Ask, pairs: int = 2, arm: Arm | None = None) -> Captured:
    """Run with the choices captured and without, in turn, and return the trace.

    Args:
        lab: of the model.
        ask: prompt and tokens.
        pairs: how often each is run.
        arm: how; None: as the host reads now, with no wall.

    Raises:
        MoetierError: a run failed.
        HarnessError: two runs gave different tokens: watching must not change what is computed.
    """
    how = arm or lab.plain_arm()
    watched, alone = replace(ask, capture=True), replace(ask, capture=False, logits=False)
    runs = []
    for number in range(pairs):
        asks = (watched, alone) if number % 2 == 0 else (alone, watched)
        one, other = (lab.run(how, each, round_index=number, order=2 * number + at) for at, each in enumerate(asks))
        runs.append((one, other) if number % 2 == 0 else (other, one))
    ids = {run.ids for pair in runs for run in pair}
    if len(ids) != 1:
        raise HarnessError(f"{len(ids)} different outputs of one prompt", "the same tokens in every run")
    with_, without = ([token.seconds for pair in runs for token in pair[at].decoded] for at in (0, 1))
    return Captured(
        trace=to_trace(runs[0][0], lab.pool.manifest),
        runs=tuple(runs),
        seconds=(median(with_ or [0.0]), median(without or [0.0])),
    )
