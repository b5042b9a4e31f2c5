"""What findings on the tiers of a machine rest on: its constants, measured here or given, and its capacity curve.

A machine is the paper's (``gh200``, by the constants that are shipped) or this one (``here``: the constants of
``--moetier-constants``, and probes of what they leave open). Probing takes seconds and happens once in a session.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, NoReturn, TypeVar

import pytest

from pytest_moetier.errors import HostBusyError, InputError, MoetierError, UnsupportedHostError
from pytest_moetier.settings import option
from pytest_moetier.span import Span
from pytest_moetier.units import format_bytes
from pytest_moetier.verdicts import About, Judge, MoetierSession

if TYPE_CHECKING:
    from pytest_moetier.sizing import Curve
    from pytest_moetier.tiers.constants import Constants
    from pytest_moetier.tiers.probe import HostProbe

HERE = "here"
_UNITS = {"k_star": "uses", "capacity_for_two_seconds": "GB", "most_iterations_per_second": "iterations/s"}
_MACHINE = pytest.StashKey["Machine | MoetierError"]()
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's constants, and the probe of this host that they rest on in part; None where none was made."""

    constants: Constants
    probe: HostProbe | None


class TiersHandle(Judge):
    """One machine: its constants, what they come to, and its capacity curve.

    Attributes:
        name: ``gh200`` or ``here``.
    """

    def __init__(self, request: pytest.FixtureRequest, session: MoetierSession, name: str) -> None:
        """Make the test's record, so that a test that asserts by itself has one too."""
        super().__init__(request, session)
        self.name = name
        self._record = session.record(request.node, name)
        self._record.constants = ()

    @property
    def paper(self) -> bool:
        """Whether it is the paper's machine: its figures are arithmetic, not measured here."""
        return self.name != HERE

    def judge(self, *names: str, **values: tuple[Span | None, str]) -> None:
        """Judge figures of ``calculus.Calculus`` by name, and further ones with the reason where there is none."""
        __tracebackhide__ = True
        from pytest_moetier.tiers.calculus import reckon  # noqa: PLC0415

        found = reckon(self._machine().constants)
        figures = {name: (getattr(found, name), found.why.get(name, "")) for name in names} | values
        whys = dict.fromkeys(reason for figure, reason in figures.values() if figure is None)
        why = "; ".join(one for one in whys if not any(one in other for other in whys if other != one))
        self.conclude({name: self._span(figure) for name, (figure, _) in figures.items()}, why)

    def admission(self) -> dict[str, tuple[Span | None, str]]:
        """Return what the device read for pages that stay, over what it read for pages that do not."""
        __tracebackhide__ = True
        probe = self._machine().probe
        return {
            "admission_reads": probe.extra_reads() if probe else (None, "the constants were given: nothing was read")
        }

    def curve(self) -> Curve:
        """Return the machine's capacity curve; the test is not_examined where there is none."""
        __tracebackhide__ = True
        from pytest_moetier.sizing import paper_curve  # noqa: PLC0415

        found = paper_curve() if self.paper else self._examined(self._stored_curve)
        self._record.constants = [
            {
                "name": f"T({format_bytes(one.capacity_bytes)})",
                "value": median(one.seconds),
                "unit": "s/iteration",
                "source": f"{found.name}: {'; '.join(found.notes[:1])}",
                "date": "",
            }
            for one in found.points
        ]
        return found

    def interpolation(self, curve: Curve) -> float | Span | None:
        """Return how far an inner point lies from the line between its neighbours, as what is judged."""
        from pytest_moetier.sizing import interpolation_error  # noqa: PLC0415

        return self._span(interpolation_error(curve))

    def conclude(self, values: Mapping[str, float | Span | None], reason: str = "") -> None:
        """Judge values by name against the bounds that hold for the machine; the verdict is the test's outcome.

        Args:
            values: what was reckoned; None where there is nothing to reckon with.
            reason: why a value is None.
        """
        __tracebackhide__ = True
        from pytest_moetier.finding import Metric  # noqa: PLC0415

        self._record.metrics = {
            name: Metric(name, _UNITS.get(name, "ratio"), "neither", _all_of(value))
            for name, value in values.items()
            if value is not None and all(map(math.isfinite, _all_of(value)))  # k* may be infinite: it never pays
        }
        unbound = f"no bound holds for {self.name}; expected one in bounds.yaml beside the test, or in a profile"
        self.settle(values, About(self.name, (self.name,)), reason, unbound)

    def not_examined(self, reason: str) -> NoReturn:
        """End the test as not_examined, with the reason."""
        __tracebackhide__ = True
        self.give_up(reason, self.name)

    def _span(self, figure: Span | None) -> float | Span | None:
        """Return what is judged: of measured rates the whole interval, of the paper's what it states."""
        return figure.value if self.paper and figure is not None else figure

    def _machine(self) -> Machine:
        __tracebackhide__ = True
        found = self._examined(self._known)
        rates = found.constants.rates.values()
        self._record.constants = [
            {"name": one.name, "value": one.speed.value, "unit": "B/s", "source": one.source, "date": one.date}
            for one in rates
        ]
        return found

    def _known(self) -> Machine:
        """Return the machine; this one is probed on the first use in a session."""
        from pytest_moetier.tiers.constants import read_constants  # noqa: PLC0415

        if self.paper:
            return Machine(read_constants(self.name), None)
        stash = self.request.config.stash
        if _MACHINE not in stash:
            try:
                stash[_MACHINE] = _this_machine(self.session)
            except MoetierError as error:
                stash[_MACHINE] = error
        found = stash[_MACHINE]
        if isinstance(found, MoetierError):
            raise found
        return found

    def _stored_curve(self) -> Curve:
        from pytest_moetier.history.sessions import read_sessions, storage_files  # noqa: PLC0415
        from pytest_moetier.history.store import storage_folder  # noqa: PLC0415
        from pytest_moetier.host.probe import host_facts  # noqa: PLC0415
        from pytest_moetier.sizing import Choice, latest_curve  # noqa: PLC0415

        folder = storage_folder(self.request.config)
        sessions, _ = read_sessions(storage_files(folder) if folder.is_dir() else [])
        try:
            return latest_curve(sessions, Choice(), host_facts().fingerprint(), str(folder))
        except InputError as error:
            raise UnsupportedHostError(error.seen, error.expected, error.do) from error

    def _examined(self, find: Callable[[], _Found]) -> _Found:
        """Return what ``find`` returns; not_examined where this host lacks it, an error where something broke."""
        __tracebackhide__ = True
        problem: MoetierError | None = None
        try:
            return find()
        except MoetierError as error:
            problem = error
        # Outside the handler: one message, not a chain of causes.
        if isinstance(problem, UnsupportedHostError | HostBusyError):
            self.not_examined(str(problem))
        return pytest.fail(str(problem), pytrace=False)


def _all_of(value: float | Span) -> tuple[float, ...]:
    return (value,) if isinstance(value, float | int) else (value.low, value.value, value.high)


def _this_machine(session: MoetierSession) -> Machine:
    """Return the constants that were given, completed by probes of what they leave open."""
    from pytest_moetier.tiers.constants import Constants, read_constants  # noqa: PLC0415
    from pytest_moetier.tiers.cuda import OF_THE_DEVICE, probe_cuda  # noqa: PLC0415
    from pytest_moetier.tiers.probe import OF_THE_HOST  # noqa: PLC0415

    name = option(session.config, "constants")
    given = read_constants(name) if name else Constants(HERE, "this host", None, {})
    given = replace(given, name=HERE)
    probe, decided = None, {*given.rates, *given.absent}
    if not decided.issuperset(OF_THE_HOST):
        try:
            probe = _probe(session)
        except (UnsupportedHostError, HostBusyError, InputError) as error:  # the pool's folder is full, or not ours
            probed = Constants(HERE, "", None, {}, unmeasured=dict.fromkeys(OF_THE_HOST, str(error)))
        else:
            probed = probe.constants()
        given = given.over(probed)
    if given.unified is None or not decided.issuperset(OF_THE_DEVICE):
        given = given.over(probe_cuda())
    return Machine(given, probe)


def _probe(session: MoetierSession) -> HostProbe:
    """Probe the host, which is held already where cells were measured before."""
    from pytest_moetier.host.restore import HostLock  # noqa: PLC0415
    from pytest_moetier.tiers.probe import probe_host  # noqa: PLC0415

    settings = session.campaign.settings
    with nullcontext() if session.campaign.results else HostLock(settings.wait_seconds):
        return probe_host(settings.pool if settings.pool.is_dir() else None)
