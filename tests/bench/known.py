"""Traces that are known beforehand, and handles on them that keep what a finding concludes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar

import numpy as np

from pytest_moetier.errors import InputError
from pytest_moetier.routing import GIVEN, HitRates, Study, Subject, hit_rates
from pytest_moetier.trace.locality import locality
from pytest_moetier.trace.records import NORMAL, Trace, make_trace

BENCH = Path(__file__).parents[2] / "bench"
Rows = Sequence[Sequence[int]]
"""The passes of one layer, each the ids it chose."""
_Found = TypeVar("_Found")


def module_of(finding: str) -> ModuleType:
    """Return a finding's module."""
    spec = importlib.util.spec_from_file_location(f"{finding}_findings", BENCH / f"test_{finding}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trace_of(*layers: Rows, n_experts: int = 16, synthetic: bool = False) -> Trace:
    """Return a trace in which layer l makes the choices ``layers[l]``, a pass an iteration."""
    passes, k = len(layers[0]), len(layers[0][0])
    experts = [ids for step in range(passes) for layer in layers for ids in layer[step]]
    records = passes * len(layers)
    return make_trace(
        iteration=np.repeat(np.arange(passes), len(layers)),
        layer=np.tile(np.arange(len(layers)), passes),
        kind=np.full(records, NORMAL),
        offsets=np.arange(records + 1) * k,
        experts=experts,
        n_experts=n_experts,
        k=k,
        synthetic=synthetic,
        source="known",
    )


def cycling(*ids: int, passes: int = 90, n_experts: int = 16) -> Trace:
    """Return a trace of one layer that asks for these ids in turn."""
    return trace_of([[ids[step % len(ids)]] for step in range(passes)], n_experts=n_experts)


class NotExaminedError(Exception):
    """What a finding raises that cannot be examined."""


@dataclass
class Known:
    """Known traces that keep what a finding concludes."""

    studies: list[Study]
    values: dict[str, float | None] = field(default_factory=dict)

    @classmethod
    def of(cls, *traces: Trace, model: str = "own") -> Known:
        return cls(
            [
                Study(Subject(f"t{at}", "traces", f"t{at}", GIVEN), one, model, locality(one.selections()), 0.0)
                for at, one in enumerate(traces)
            ]
        )

    @property
    def study(self) -> Study:
        return self.studies[0]

    @property
    def trace(self) -> Trace:
        return self.study.trace

    @property
    def locality(self) -> Any:
        return self.study.locality

    @property
    def model(self) -> str:
        return self.study.model

    def hit_rates(self) -> list[HitRates]:
        return [hit_rates(one.trace) for one in self.studies]

    def store(self, benchmark: object) -> None:
        assert benchmark is None

    def judge(self, *names: str) -> None:
        figures = self.study.figures()
        self.conclude({name: figures[name] for name in names})

    def conclude(self, values: Mapping[str, float | None], reason: str = "") -> None:
        del reason
        self.values.update(values)

    def examined(self, find: Callable[[], _Found]) -> _Found:
        try:
            return find()
        except InputError as error:
            raise NotExaminedError(str(error)) from error

    def not_examined(self, reason: str, values: Mapping[str, float | None] | None = None) -> NoReturn:
        self.values.update(values or {})
        raise NotExaminedError(reason)
