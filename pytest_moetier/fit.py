"""How a generator's traces meet the published figures: target against achieved, and what is missed, said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files

from pytest_moetier.errors import InputError
from pytest_moetier.finding import Bound, bounds_for, load_bounds
from pytest_moetier.routing import (
    DOMAINS,
    MODELS,
    Studies,
    Study,
    batch_figures,
    crossovers,
    depth_unions,
    domain_jaccards,
    drift_figures,
    lru_of_belady,
    mean_rates,
    merged_figures,
    off_domain_figures,
    oracle_figures,
    split_figures,
    subjects,
)


@dataclass(frozen=True, slots=True)
class Fit:
    """One published figure and what synthetic traces reach.

    Attributes:
        value: the figure's name.
        bound: the published range, and its source.
        achieved: by domain; a figure over all domains has one entry, ``all``.
    """

    value: str
    bound: Bound
    achieved: dict[str, float]

    @property
    def met(self) -> bool:
        """Whether every domain is inside the range."""
        return all(self.bound.holds(value) for value in self.achieved.values())


def fit_report(preset: str, seed: int = 0, tell: Callable[[str], None] = lambda _: None) -> list[Fit]:
    """Return every published figure of a model, and what its generator reaches with this seed in four domains.

    The ranges are those of ``bench/bounds.yaml``, by which ``pytest bench/ -k "routing or policy"`` judges.

    Args:
        preset: a model whose figures are published.
        seed: of the traces.
        tell: called with a line before each trace is made.

    Raises:
        InputError: nothing is published of that model.
    """
    if preset not in MODELS:
        raise InputError(f"no published figures for {preset!r}", "one of " + ", ".join(MODELS))
    studies = Studies(seed=seed)
    chosen = [one for one in subjects([], None) if one.group == preset]
    found = []
    for one in chosen:
        tell(f"generating {one.id}")
        found.append(studies.of(one))
    tell("simulating caches")
    text = files("pytest_moetier.bench").joinpath("bounds.yaml").read_text(encoding="utf-8")
    return list(_fits(load_bounds(text, "bounds.yaml"), found, studies))


def _fits(bounds: tuple[Bound, ...], found: list[Study], studies: Studies) -> Iterator[Fit]:
    by_domain = [
        (one.subject.domain, one, {**one.figures(), **oracle_figures(one), **drift_figures(one)}) for one in found
    ]
    reached: dict[str, dict[str, float]] = {}
    held: dict[str, Bound] = {}
    for domain, study, figures in by_domain:
        for bound in bounds_for(bounds, study.ids):
            value = figures.get(bound.value)
            if value is not None and not bound.beyond([study.trace.n_iterations]):
                held[bound.id] = bound
                reached.setdefault(bound.id, {})[domain] = value
    rates = [studies.rates(study.subject) for study in found]
    whole = {
        **depth_unions(found),
        **domain_jaccards(found),
        **mean_rates(rates),
        **crossovers(rates),
        **lru_of_belady(rates),
        **split_figures(found),
        **merged_figures(found),
        **batch_figures(found),
        **off_domain_figures(found),
    }
    lengths = [study.trace.n_iterations for study in found]
    for bound in bounds_for(bounds, (found[0].model, found[0].subject.group)):
        value = whole.get(bound.value)
        if value is not None and not bound.beyond(lengths):
            held[bound.id] = bound
            reached[bound.id] = {"all": value}
    yield from (Fit(bound.value, bound, reached[bound.id]) for bound in held.values())


def fit_lines(fits: list[Fit]) -> list[str]:
    """Return the report as a plain-text table: one row per published figure, then what is missed."""
    rows: list[tuple[str, ...]] = [("figure", "target", *DOMAINS, "all", "")]
    for one in fits:
        shown = [f"{one.achieved[name]:.4g}" if name in one.achieved else "" for name in (*DOMAINS, "all")]
        rows.append((one.value, one.bound.text, *shown, "met" if one.met else "MISSED"))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    missed = [one for one in fits if not one.met]
    said = [f"missed: {one.value}, expected {one.bound.text} ({one.bound.source})" for one in missed]
    return [*lines, f"{len(fits) - len(missed)} of {len(fits)} published figures met", *said]
