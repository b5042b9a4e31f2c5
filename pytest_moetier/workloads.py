"""What is replayed: the session's pool and trace, four streams merged, or a temporary pool made for one finding.

``single`` and ``batch4`` read the user's pool (sections 4, 6 and 7); ``small_box`` is a model of OLMoE's shape for a
machine with a slow disk, ``hit_cost`` a few large experts in one file, and ``reclaim`` the paper's own pool scaled to
what a small virtual machine reads, in rungs of growing size (section 5). All but the first two are synthetic, made when
a cell asks for them and removed at the end, so that modes which write may have those that are thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from pytest_moetier.advice import (
    label,
    load_advice,
    noisy_oracle,
    oracle,
    predict,
    predictor_named,
    recall,
    to_lists,
    withhold,
)
from pytest_moetier.errors import InputError, UnsupportedHostError
from pytest_moetier.lists import ORACLE, Lists, write_lists
from pytest_moetier.modes import DOMAIN, OWN, TRAIN
from pytest_moetier.plan import Plan, build_plan, shuffled_plan
from pytest_moetier.pool.manifest import Manifest
from pytest_moetier.pool.profiles import Shape, resolve_shape
from pytest_moetier.replay import ListFile
from pytest_moetier.tables import Listed, domain_table, own_table, train_table
from pytest_moetier.trace.batch import merge
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.records import BATCH, ORDERS, SPEC_ACCEPT, UNION, Trace
from pytest_moetier.trace.synth import PRESETS, synth_trace

SYNTHETIC_ITERATIONS = 100
SYNTHETIC_SEED = 1
"""The embedded traces are the same for every session, so that sessions compare."""
STREAMS = 4
SMALL_BOX_ITERATIONS = 32
"""Tokens that the published harness decoded in every run."""
SMALL_BOX_SPINE_BYTES = 44 << 20
"""Its 297.2 MiB of dense weights, scaled as its experts are: 3.4 MiB to 512 KiB."""
HIT_COST_EXPERTS, HIT_COST_ITERATIONS = 20, 12
RECLAIM_ITERATIONS = 220
"""Long enough for a whole wave of the generations: they come every 60 to 120 iterations at this scale."""
RECLAIM_SHAPES = {
    "reclaim": (8, 256 << 10),
    "reclaim_l4": (4, 512 << 10),
    "reclaim_l16": (16, 512 << 10),
    "reclaim_l32": (32, 256 << 10),
    "reclaim_l92": (92, 64 << 10),
}
"""Layers, and bytes of an expert, of the rungs: 4.4% are 315, 158, 631, 1262 and 3627 experts (the paper's: 3647)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user chose of a session's workloads.

    Attributes:
        traces: (domain, file) in the order given; none: seeded synthetic ones of the pool's shape.
        iterations: engine iterations a pass, 0 for the whole trace.
        advice: a file of advice for the first trace, or the name of a predictor; None: a noisy oracle of the published
            recall.
        min_recall: advice on layers below it is withheld.
        guest_pool: layers, and bytes of an expert, of the workload ``reclaim``; None: ``RECLAIM_SHAPES``.
    """

    traces: tuple[tuple[str, Path], ...]
    iterations: int
    advice: Path | None = None
    min_recall: float = 0.0
    guest_pool: tuple[int, int] | None = None


NOTHING = Asked((), 0)


@dataclass(frozen=True, slots=True)
class Workload:
    """A plan, and how the lists that go with it are made.

    Attributes:
        word: its name in a cell.
        plan: what is read, in which order.
        accepted_tokens: what the plan's iterations accepted.
        source: where the trace comes from, in words.
        warnings: what was noticed of it.
        trace: the router's choices, or None where there is no router.
        other: (domain, plan) of another domain's trace over the same pool, made when asked for; None: there is none.
        asked: the user's choices.
    """

    word: str
    plan: Plan
    accepted_tokens: int
    source: str
    warnings: tuple[str, ...] = ()
    trace: Trace | None = None
    other: Callable[[], tuple[str, Plan]] | None = None
    asked: Asked = NOTHING

    def write_list(self, word: str, folder: Path) -> ListFile:
        """Write the list that ``word`` names (``own``, ``train``, ``domain``; ``oracle``, ``plan``) into ``folder``.

        Raises:
            InputError: the file of advice is not for this trace, or mislabelled.
            UnsupportedHostError: the session has no such trace.
        """
        path = folder / f"{self.word}-{word}.list"
        if word in {OWN, TRAIN, DOMAIN}:
            listed = self._table(word)
            write_lists(listed.lists, path)
            return ListFile(path, listed.words, listed.oracle, listed.lists.ids)
        lists, words, found = self._advice(word)
        write_lists(lists, path)
        return ListFile(path, words, bool(lists.flags & ORACLE), lists.ids, found)

    def check_advice(self) -> None:
        """Refuse advice of the user's that is no predictor's plan for this trace, before anything is measured.

        Raises:
            InputError: the file of advice is not for this trace, or mislabelled, or an oracle.
        """
        given = self.asked.advice
        if given is None or predictor_named(str(given)) not in {None, "oracle"}:
            return
        lists, words, _ = self._advice("plan")
        if lists.flags & ORACLE:
            raise InputError(
                f"--moetier-advice {given} is labelled {words}",
                "a predictor's plan: an oracle is measured beside it in any case",
                "give it a file that a predictor made (moetier plan predict), or a predictor's name",
            )

    def _table(self, word: str) -> Listed:
        if word == OWN:
            return own_table(self.plan)
        if word == TRAIN:
            return train_table(self.plan)
        if self.other is None and not self.asked.traces:
            raise UnsupportedHostError(f"workload {self.word} has no other domain", "workload single")
        if self.other is None:
            raise UnsupportedHostError(
                "one trace is given, and a table of another domain asked for",
                "a second trace",
                "--moetier-trace DOMAIN=FILE once more",
            )
        domain, plan = self.other()
        return domain_table(self.plan, plan, domain)

    def _advice(self, word: str) -> tuple[Lists, str, float]:
        """Return the lists of an advisor, what is said of them, and their recall over what is replayed."""
        trace = self.trace
        if trace is None:
            raise UnsupportedHostError(f"workload {self.word} has no router to advise on", "a workload with a trace")
        if word == "oracle":
            advice = oracle(trace)
        elif self.asked.advice is None:
            advice = noisy_oracle(trace, seed=SYNTHETIC_SEED)
        elif predictor := predictor_named(str(self.asked.advice)):
            advice = predict(trace, predictor)
        else:
            advice = load_advice(self.asked.advice, trace)
        if word == "plan" and self.asked.min_recall:
            advice = withhold(advice, trace, self.asked.min_recall)
        found = recall(advice, trace, self.plan.n_iterations)
        return to_lists(advice, trace, self.plan), label(advice, found), found.overall


def single(manifest: Manifest, asked: Asked) -> Workload:
    """Return the user's first trace over the pool of ``manifest``, or a seeded synthetic one."""
    if not asked.traces:
        trace = _synthetic(manifest, "prose", asked.iterations or SYNTHETIC_ITERATIONS)
        return _of("single", trace, manifest, asked, lambda: _synthetic_other(manifest, asked))
    trace = load_trace(asked.traces[0][1])
    other = None if len(asked.traces) < 2 else lambda: _given_other(manifest, asked)
    return _of("single", trace, manifest, asked, other)


def batch4(manifest: Manifest, asked: Asked) -> Workload:
    """Return four streams merged iteration by iteration: the user's first four traces, or one of each domain.

    Raises:
        UnsupportedHostError: traces are given, but fewer than four.
    """
    if asked.traces and len(asked.traces) < STREAMS:
        raise UnsupportedHostError(
            f"{len(asked.traces)} trace{'s' * (len(asked.traces) > 1)} given for a batch of {STREAMS} streams",
            f"{STREAMS} traces",
            "--moetier-trace DOMAIN=FILE for each stream",
        )
    if asked.traces:
        streams = [load_trace(path) for _, path in asked.traces[:STREAMS]]
    else:
        count = asked.iterations or SYNTHETIC_ITERATIONS
        streams = [_synthetic(manifest, domain, count) for domain in islice(_domains(manifest), STREAMS)]
    return _of("batch4", merge(streams).trace, manifest, asked, None)


def small_box_shape(_asked: Asked) -> Shape:
    """Return the dimensions of the small box's pool: OLMoE-1B-7B with experts of 512 KiB, 537 MB in all."""
    return resolve_shape("olmoe-1b-7b", expert_bytes="512KiB")


def small_box(manifest: Manifest, _asked: Asked) -> Workload:
    """Return 32 iterations of a synthetic OLMoE trace over the small box's pool."""
    trace = _synthetic(manifest, "prose", SMALL_BOX_ITERATIONS)
    return _of("small_box", trace, manifest, NOTHING, None)


def small_box_q2_shape(_asked: Asked) -> Shape:
    """Return the same pool at a coarser quantisation: experts of 308 KiB, 1.66 times fewer bytes."""
    return resolve_shape("olmoe-1b-7b", expert_bytes="308KiB")


def small_box_q2(manifest: Manifest, asked: Asked) -> Workload:
    """Return the same iterations over that pool."""
    return replace(small_box(manifest, asked), word="small_box_q2")


def hit_cost_shape(_asked: Asked) -> Shape:
    """Return the dimensions of the pool that hits are timed on: 24 experts of 16 MiB, in one file."""
    return resolve_shape("custom", layers=1, experts=24, k=1, expert_bytes="16MiB")


def hit_cost(manifest: Manifest, _asked: Asked) -> Workload:
    """Return a plan that reads 20 of the pool's 24 experts again and again, each time in another order."""
    plan = shuffled_plan(manifest, HIT_COST_EXPERTS, HIT_COST_ITERATIONS, SYNTHETIC_SEED)
    words = f"synthetic: {HIT_COST_EXPERTS} experts in a fresh random order each of {HIT_COST_ITERATIONS} iterations"
    return Workload("hit_cost", plan, HIT_COST_ITERATIONS, words)


def reclaim_shape(asked: Asked, word: str = "reclaim") -> Shape:
    """Return the dimensions of a rung: the paper's pool with fewer layers and smaller experts.

    So pool / iteration stays the paper's 50, and C / iteration its 2.2 at 4.4% and 3.2 at 6.4% (64 and 93 GB).
    """
    layers, size = (asked.guest_pool if word == "reclaim" else None) or RECLAIM_SHAPES[word]
    return resolve_shape("kimi-k3", layers=layers, expert_bytes=str(size))


def reclaim(manifest: Manifest, asked: Asked, word: str = "reclaim") -> Workload:
    """Return a seeded synthetic trace over a rung's pool, whatever traces the user gave: the rungs are to compare."""
    trace = _synthetic(manifest, "prose", asked.iterations or RECLAIM_ITERATIONS)
    return _of(word, trace, manifest, NOTHING, None)


def _of(
    word: str,
    trace: Trace,
    manifest: Manifest,
    asked: Asked,
    other: Callable[[], tuple[str, Plan]] | None,
) -> Workload:
    plan = build_plan(trace, manifest, asked.iterations or None)
    source = f"{trace.source}; within a pass: {ORDERS[trace.order]}"
    tokens = _accepted(trace, plan.n_iterations)
    return Workload(word, plan, tokens, source, trace.warnings, trace, other, asked)


def _accepted(trace: Trace, iterations: int) -> int:
    """Return the tokens that the trace's first iterations accepted."""
    if iterations == trace.n_iterations:
        return trace.accepted_tokens
    kinds = trace.kind[trace.record_bounds()[:iterations]]
    if np.isin(kinds, (BATCH, UNION)).any():  # it does not say which stream accepted what: iterations count alike
        return round(trace.accepted_tokens / trace.n_iterations * iterations)
    return iterations + int(np.count_nonzero(kinds == SPEC_ACCEPT))


def _synthetic(manifest: Manifest, domain: str, iterations: int) -> Trace:
    return synth_trace(
        _preset(manifest),
        layers=len(manifest.layers),
        experts=manifest.experts,
        k=manifest.k,
        iterations=iterations,
        domain=domain,
        seed=SYNTHETIC_SEED,
    )


def _preset(manifest: Manifest) -> str:
    return manifest.profile if manifest.profile in PRESETS else "kimi-k3"


def _domains(manifest: Manifest) -> list[str]:
    return list(PRESETS[_preset(manifest)].domains)


def _synthetic_other(manifest: Manifest, asked: Asked) -> tuple[str, Plan]:
    domain = next(one for one in _domains(manifest) if one != "prose")
    trace = _synthetic(manifest, domain, asked.iterations or SYNTHETIC_ITERATIONS)
    return f"synthetic {domain}", build_plan(trace, manifest)


def _given_other(manifest: Manifest, asked: Asked) -> tuple[str, Plan]:
    domain, path = asked.traces[1]
    trace = load_trace(path)
    try:
        return domain, build_plan(trace, manifest)
    except InputError as error:  # of two traces, the one that it is about
        raise InputError(f"{path}: {error.seen}", error.expected, error.do) from error


BUILDERS: dict[str, Callable[[Manifest, Asked], Workload]] = {
    "single": single,
    "batch4": batch4,
    "small_box": small_box,
    "small_box_q2": small_box_q2,
    "hit_cost": hit_cost,
    **{word: partial(reclaim, word=word) for word in RECLAIM_SHAPES},
}
"""How each workload is built over the manifest of its pool."""


@dataclass(frozen=True, slots=True)
class Making:
    """How the temporary pool of a workload is made.

    Attributes:
        shape: returns its dimensions.
        layout: ``file_per_expert`` or ``one_file``.
        spine_bytes: of dense weights beside the experts.
        throwaway: measurements may write to it.
        store: ``image``, ``plain``, or ``auto``: an image where this host can have one.
    """

    shape: Callable[[Asked], Shape]
    layout: str = "file_per_expert"
    spine_bytes: int = 0
    throwaway: bool = True
    store: str = "auto"


TEMPORARY = {
    "small_box": Making(small_box_shape, spine_bytes=SMALL_BOX_SPINE_BYTES),
    "small_box_q2": Making(small_box_q2_shape),
    "hit_cost": Making(hit_cost_shape, layout="one_file"),
    # A guest has the image itself as its disk.
    **{word: Making(partial(reclaim_shape, word=word), throwaway=False, store="image") for word in RECLAIM_SHAPES},
}
"""The workloads that read a pool of their own, made when a cell asks for it and removed at the end."""
