"""An engine's measurements in one session: every round visits all that was asked for in a fresh random order.

So drift of the host does not pass for an effect (paper section 4). The two arms of a pair are run back to back, in the
orders of paper section 9: AB, then BA, then by a seeded shuffle. The models are generated when they are first needed,
and gone at the end; the user's own is read where it lies.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from pytest_moetier.engine import abi
from pytest_moetier.engine.arm import QUANTISATIONS
from pytest_moetier.engine.asked import PAIRS, PROMPT, ROUNDS, DeviceRate, EngineAsked, Ran, Replayed, Wanted
from pytest_moetier.engine.beside import Replays, device_rates, writable_copy
from pytest_moetier.engine.capture import to_trace
from pytest_moetier.engine.lab import Ask, EngineLab, generated, opened
from pytest_moetier.engine.proof import examine_engine
from pytest_moetier.engine.run import EngineOomRun, EngineRun
from pytest_moetier.engine.selftest import check_engine
from pytest_moetier.engine.synthetic import PRESSURE, write_model
from pytest_moetier.engine.synthetic import PROMPT as PROMPT_IDS
from pytest_moetier.errors import AccountingError, HarnessError, HostBusyError, MoetierError, UnsupportedHostError
from pytest_moetier.finding import Metric, metrics_of
from pytest_moetier.host.restore import HostLock, Journal, recover
from pytest_moetier.modes import mode_of
from pytest_moetier.pool.temporary import temporary_checkpoint
from pytest_moetier.progress import Progress, Reporter
from pytest_moetier.proof import Proof, ProvedRun
from pytest_moetier.trace.records import Trace

SEED = 1234
"""Of the generated weights: every session's models are the same."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the user chose of a session.

    Attributes:
        folder: where models are generated.
        asked: model, prompt and tokens.
        rounds: repetitions of everything; 0 for the usual numbers.
        seed: of the random order.
        threads: of the computation and of replays.
        stop_early: stop at the first run that is not proved.
    """

    folder: Path
    asked: EngineAsked
    rounds: int
    seed: int
    threads: int
    stop_early: bool = False

    def rounds_of(self, wanted: Wanted) -> int:
        """Return the repetitions of what is asked for."""
        if isinstance(wanted, DeviceRate) or (isinstance(wanted, Ran) and wanted.capture):
            return 1
        return self.rounds or (PAIRS if wanted.pair else ROUNDS)


@dataclass(frozen=True, slots=True)
class ProvedEngineRun:
    """A run of the engine whose proof is complete."""

    run: EngineRun | EngineOomRun
    proof: Proof


Proved: TypeAlias = ProvedEngineRun | ProvedRun


@dataclass(slots=True)
class Measured:
    """What came of one thing that was asked for.

    ``runs`` are proved; ``invalid`` says why a run was not; ``skipped`` why the host cannot examine it; ``broken`` what
    our own machinery died of. ``rates`` are those of a device.
    """

    wanted: Wanted
    runs: list[Proved] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    skipped: MoetierError | None = None
    broken: MoetierError | None = None

    @property
    def over(self) -> bool:
        """Whether further rounds are pointless."""
        return self.skipped is not None or self.broken is not None

    @property
    def proved(self) -> bool:
        """Whether every round was measured and proved: only then is it a result."""
        return bool(self.runs or self.rates) and not self.invalid and not self.over

    @property
    def why(self) -> str:
        """Why it is none, or ""."""
        return str(self.skipped or self.broken or next(iter(self.invalid), ""))

    @property
    def engine_runs(self) -> list[EngineRun]:
        """The runs of the engine that came to their end."""
        return [one.run for one in self.runs if isinstance(one.run, EngineRun)]

    @property
    def killed(self) -> list[EngineOomRun]:
        """The runs of the engine that the wall ended."""
        return [one.run for one in self.runs if isinstance(one.run, EngineOomRun)]

    def metrics(self) -> dict[str, Metric]:
        """Return every metric that all runs observed, by name."""
        if self.engine_runs:
            return engine_metrics(self.engine_runs)
        if self.killed:
            return _killed_metrics(self.killed)
        if self.rates:
            return {"device_rate": Metric("device_rate", "B/s", "higher", tuple(self.rates))}
        return metrics_of([one for one in self.runs if isinstance(one, ProvedRun)])


def engine_metrics(runs: Sequence[EngineRun]) -> dict[str, Metric]:
    """Return the metrics of an arm, a value per run; what one run did not observe is left out."""
    found = {}
    for name, (unit, better, pick) in _METRICS.items():
        values = [pick(run) for run in runs]
        if values and None not in values:
            found[name] = Metric(name, unit, better, tuple(float(one) for one in values if one is not None))
    return found


def _killed_metrics(runs: Sequence[EngineOomRun]) -> dict[str, Metric]:
    kills = tuple(float(run.scope.oom_kills or 0) if run.scope else 0.0 for run in runs)
    return {
        "oom_kills": Metric("oom_kills", "kills", "neither", kills),
        "tokens_before": Metric("tokens_before", "tokens", "neither", tuple(float(run.tokens) for run in runs)),
        "seconds_to_kill": Metric("seconds_to_kill", "s", "neither", tuple(run.seconds for run in runs)),
    }


def _resident(run: EngineRun) -> float | None:
    """Return the mean of what was resident of the experts at both ends of the decode."""
    ends = run.decode.resident.experts, run.end.resident.experts
    return None if None in ends else sum(one or 0 for one in ends) / 2


_METRICS: dict[str, tuple[str, str, Callable[[EngineRun], float | None]]] = {
    "tokens_per_second": ("tokens/s", "higher", lambda run: run.tokens_per_second),
    "seconds_per_token": ("s/token", "lower", lambda run: run.decode_seconds / max(1, len(run.decoded))),
    "majflt_per_token": ("faults/token", "lower", lambda run: run.majflt_per_token),
    "bytes_per_token": ("B/token", "lower", lambda run: run.bytes_per_token),
    "prefill_seconds": ("s", "lower", lambda run: run.prefill_seconds),
    "load_seconds": ("s", "lower", lambda run: run.load_seconds),
    "seconds_with_load": ("s", "lower", lambda run: run.load_seconds + run.prefill_seconds + run.decode_seconds),
    "drop_seconds_per_token": ("s/token", "lower", lambda run: run.drop_seconds / max(1, len(run.tokens))),
    "resident_bytes": ("B", "neither", _resident),
    "policy_seconds_per_token": ("s/token", "lower", lambda run: run.policy.seconds / max(1, len(run.tokens))),
}
"""Unit, better, and where it comes from: of the decode, but for those that name another part."""


class EngineCampaign:
    """Measures all that a session asks of an engine, once; the host is held meanwhile."""

    def __init__(self, settings: EngineSettings, report: Reporter) -> None:
        """Remember what to do; nothing is touched before :meth:`measure`."""
        self.settings, self._report = settings, report
        self.results: dict[str, Measured] = {}
        self.trace: Trace | None = None
        self.notes: list[str] = []
        self._labs: dict[str, EngineLab | MoetierError] = {}
        self._stack = ExitStack()
        self._done = 0
        self._started = 0.0

    def measure(self, asked: Iterable[Wanted], lock: AbstractContextManager[object]) -> Mapping[str, Measured]:
        """Measure everything, all rounds, and return the results by id; the host is given back at once.

        Args:
            asked: what selected tests need; the same thing may come more than once.
            lock: what holds the host.

        Raises:
            MoetierError: the session cannot measure at all.
        """
        unique = {one.id: one for one in asked}
        self.results = {name: Measured(one) for name, one in unique.items()}
        with self._report, self._stack as stack:
            self._tell("waiting for the host")
            stack.enter_context(lock)
            self.notes += recover()
            self._journal = stack.enter_context(Journal())
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moetier-engine-")))
            self._started = time.monotonic()
            self._measure(list(unique.values()))
        self._labs.clear()
        return self.results

    def _measure(self, wanted: Sequence[Wanted]) -> None:
        order = list(self._order(wanted))
        for place, (round_index, one) in enumerate(order):
            result = self.results[one.id]
            if not result.over:
                self._total = len(order)
                self._one(result, round_index, place)
            self._done += 1
            if self.settings.stop_early and (result.invalid or result.broken):
                self._stop()
                return

    def _order(self, wanted: Sequence[Wanted]) -> Iterator[tuple[int, Wanted]]:
        """Yield (round, what): the capture first, then in each round all, pairs back to back."""
        settings = self.settings
        first = [one for one in wanted if isinstance(one, Ran) and one.capture]
        yield from ((0, one) for one in first)
        rest = [one for one in wanted if one not in first]
        units: dict[str, list[Wanted]] = {}
        for one in sorted(rest, key=lambda one: one.id):
            units.setdefault(one.pair or one.id, []).append(one)
        for round_index in range(max((settings.rounds_of(one) for one in rest), default=0)):
            shuffled = [units[name] for name in sorted(units)]
            rng = random.Random(f"{settings.seed}:{round_index}")  # noqa: S311 - an order, no secret
            rng.shuffle(shuffled)
            for unit in shuffled:
                both = list(unit)
                if round_index % PAIRS == 1:
                    both.reverse()
                elif round_index % PAIRS == 2:
                    rng.shuffle(both)
                yield from ((round_index, one) for one in both if round_index < settings.rounds_of(one))

    def _one(self, result: Measured, round_index: int, place: int) -> None:
        """Measure and prove one run, and file what came of it."""
        wanted = result.wanted
        try:
            if isinstance(wanted, Ran):
                self._run(result, wanted, round_index, place)
            elif isinstance(wanted, Replayed):
                result.runs.append(self._replay(wanted, round_index, place))
                result.proofs.append(result.runs[-1].proof)
            else:
                result.rates = device_rates(self._lab(wanted.quantisation), wanted, self._journal)
        except (UnsupportedHostError, HostBusyError) as error:
            result.skipped = error
        except AccountingError as error:
            result.invalid.append(str(error))
        except MoetierError as error:
            result.broken = error
        except (OSError, MemoryError) as error:
            result.broken = HarnessError(f"{wanted.id}: {error}", "a host with room for a model and its run")

    def _run(self, result: Measured, wanted: Ran, round_index: int, place: int) -> None:
        lab = self._lab(wanted.quantisation)
        self._tell(f"{wanted.id}: starting")
        heard = 0

        def hear(event: Mapping[str, object]) -> None:
            nonlocal heard
            if event.get("event") == "token":
                heard += 1
                self._tell(f"{wanted.id}: tokens", heard, wanted.tokens or self.settings.asked.tokens)

        ask = Ask(
            self._prompt(lab),
            wanted.tokens or self.settings.asked.tokens,
            threads=self.settings.threads,
            capture=wanted.capture,
        )
        measure = lab.run_direct if wanted.direct else lab.run
        run = measure(wanted.arm, ask, round_index=round_index, order=place, hear=hear)
        proof = examine_engine(run)
        result.proofs.append(proof)
        proof.require()
        result.runs.append(ProvedEngineRun(run, proof))
        if isinstance(run, EngineRun):
            self.trace = to_trace(run, lab.pool.manifest) if wanted.capture else self.trace
            self.notes += [note for note in run.warnings if note not in self.notes]

    def _prompt(self, lab: EngineLab) -> tuple[int, ...] | str:
        return self.settings.asked.words or (PROMPT_IDS if lab.pool.manifest.synthetic else PROMPT)

    def _replay(self, wanted: Replayed, round_index: int, place: int) -> ProvedRun:
        if self.trace is None:
            raise UnsupportedHostError(f"no trace was captured to {wanted.id}", "a captured run that is proved")
        replays = Replays(self.trace, self._folder, self._journal, self.settings.threads)

        def tell(phase: str, done: int) -> None:
            self._tell(f"{wanted.id}: {phase}", done)

        if not mode_of(wanted.mode).writes:
            return replays.run(wanted, self._lab(wanted.quantisation).pool, round_index, place, tell)
        if self.settings.asked.model is not None:
            raise UnsupportedHostError(
                "a model of the user's is never written to", "a generated one", "leave out --moetier-engine-model"
            )
        self._tell(f"{wanted.id}: making a copy to write to")
        with (
            temporary_checkpoint(_write, self.settings.folder, self._journal, store="image") as folder,
            writable_copy(folder, self._journal) as pool,
        ):
            return replays.run(wanted, pool, round_index, place, tell)

    def _lab(self, quantisation: str) -> EngineLab:
        """Return the lab of a model, made on first use; one that cannot be made is refused every time."""
        if quantisation not in self._labs:
            try:
                self._labs[quantisation] = self._made(quantisation)
            except MoetierError as error:
                self._labs[quantisation] = error
        found = self._labs[quantisation]
        if isinstance(found, MoetierError):
            raise found
        return found

    def _made(self, quantisation: str) -> EngineLab:
        settings = self.settings
        if settings.asked.model is not None and quantisation != QUANTISATIONS[0]:
            raise UnsupportedHostError(
                f"{settings.asked.model} is one model of one quantisation", "a second one of the same weights"
            )
        if find_spec("gguf") is None:
            raise UnsupportedHostError("gguf, which reads and writes models, is not installed", "it", abi.INSTALL)
        self._tell("checking the engine")
        check_engine()
        if settings.asked.model is None:
            self._tell(f"making a model of random weights, {quantisation}")
            making = generated(PRESSURE, settings.folder, self._journal, quantisation=quantisation, seed=SEED)
            return self._stack.enter_context(making)
        return self._stack.enter_context(opened(settings.asked.model, self._journal))

    def _stop(self) -> None:
        for result in self.results.values():
            if not result.over and not result.invalid and len(result.runs) < self.settings.rounds_of(result.wanted):
                result.skipped = HostBusyError(
                    "not measured in every round: an earlier run was not proved", do="run without -x"
                )

    def _tell(self, phase: str, done: int = 0, of: int = 0) -> None:
        elapsed = time.monotonic() - self._started if self._started else 0.0
        total = getattr(self, "_total", 0)
        told = f"[{self._done + 1}/{total}] {phase}" if total else phase
        self._report(Progress(self._done, total, None, told, done, of, elapsed))


def _write(path: Path) -> None:
    write_model(path, PRESSURE, seed=SEED)


def lock_for(*, held: bool, wait_seconds: float) -> AbstractContextManager[object]:
    """Return what holds the host: nothing more where the session's cells hold it already."""
    return nullcontext() if held else HostLock(wait_seconds)
