"""``moetier guest bisect-step``: what ``git bisect run`` asks of one kernel, answered by boots of a reclaim cell."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_moetier.cell import FILESYSTEMS, HOST, LABEL, MECHANISMS, MGLRU_STATES, RECLAIM, RECLAIM_CAPACITY, Cell
from pytest_moetier.cli.parsers import Commands, add_command, number
from pytest_moetier.cli.say import note, print_json, say, silence_stdout
from pytest_moetier.errors import InputError, MoetierError, UnsupportedHostError
from pytest_moetier.modes import MODES
from pytest_moetier.units import Capacity

if TYPE_CHECKING:
    from pytest_moetier.campaign import Campaign, CellResult, Settings
    from pytest_moetier.finding import Metric
    from pytest_moetier.host.kernels import Kernel

GOOD, BAD, SKIP = 0, 1, 125
"""What ``git bisect run`` takes for good, for bad, and for a commit that cannot be tested."""
ABORT = 128
"""From here on it gives up: the mistake is in the command or this host, and no commit is marked for it."""
MORE_BOOTS = 2
"""Beyond those asked for, where boots disagree, or one of them is not proved."""
WAIT_SECONDS = 600.0
"""For another bench that holds the host."""
_WORDS = {GOOD: "good", BAD: "bad", SKIP: "skip"}
_NUMBER = r"((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_INTERVAL = re.compile(rf"\s*{_NUMBER}\s*-\s*{_NUMBER}\s*")
_SHAPE = "such as balloon81-mglru_on, cgroup-mglru_off or balloon74-mglru_on-C6.4pct"
_HELP = """\
Tells whether a kernel is good or bad by what it reads: measures one reclaim cell in virtual machines of it.

In a tree of Linux whose .config has what `moetier guest check` asks for, built in:

  git bisect start BAD_COMMIT GOOD_COMMIT
  git bisect run sh -c 'make olddefconfig bzImage >/dev/null || exit 125
    moetier guest bisect-step arch/x86/boot/bzImage --cell balloon81-mglru_on --good 1.02-1.10'

With modules, install them first and name their folder: bzImage:FOLDER (make modules_install
INSTALL_MOD_PATH=FOLDER). The interval is the metric's least and most on kernels that are good, measured with the
same pool, iterations and threads:
pytest --pyargs pytest_moetier.bench -k 'reclaim and balloon81-mglru_on' --moetier-kernel PATH --moetier-json FILE

exit status:
  0    good: the median of the boots is within the interval, or better
  1    bad: every boot's value is worse than the interval
  125  cannot be told: it does not boot, lacks what the cell needs, is not proved, or its boots disagree after
       two more
  128  a mistake in the command, or this host cannot measure at all: git bisect ends, and no commit is marked
"""


@dataclass(frozen=True, slots=True)
class Interval:
    """The values of a metric that are good, from the least to the most."""

    low: float
    high: float

    @classmethod
    def parse(cls, text: str) -> Interval:
        """Return the interval that ``LOW-HIGH`` names.

        Raises:
            InputError: it is none.
        """
        match = _INTERVAL.fullmatch(text)
        if match is None or float(match[1]) > float(match[2]):
            raise InputError(f"--good {text!r} is no interval", "LOW-HIGH in the metric's unit, such as 1.02-1.10")
        return cls(float(match[1]), float(match[2]))


@dataclass(frozen=True, slots=True)
class Answer:
    """What git is told: the exit status, why, and the values that it rests on."""

    status: int
    reason: str
    values: tuple[float, ...] = ()


def verdict(values: Sequence[float], good: Interval, better: str) -> int | None:
    """Return GOOD or BAD for the values of some boots, None where they disagree.

    Args:
        values: one of each boot, at least one.
        good: the values that are good.
        better: ``lower`` or ``higher``, what is better of the metric.
    """
    sign, worst = (1, good.high) if better == "lower" else (-1, -good.low)
    seen = [sign * value for value in values]
    if median(seen) <= worst:
        return GOOD
    return BAD if min(seen) > worst else None


def cell_named(text: str, label: str) -> Cell:
    """Return the reclaim cell whose id, without its kernel's word, is ``text``, on the kernel ``label``.

    Raises:
        InputError: there is no such cell.
    """
    for cell in _candidates(text):
        if cell.id == text:
            return replace(cell, kernel=label)
    raise InputError(f"--cell {text!r} is no reclaim cell", _SHAPE, "pytest bench/ -k reclaim --collect-only lists ids")


def _candidates(text: str) -> Iterator[Cell]:
    """Yield the reclaim cells that could have the id ``text``: of every axis the usual value, and those it may name."""
    words = text.split("-")
    sizes = {int(one) for one in re.findall(r"[0-9]+", text) if len(one) < 8}
    capacities = [Capacity.parse(RECLAIM_CAPACITY)]
    for word in words:
        with suppress(InputError):
            capacities += [Capacity.parse(word[1:].replace("pct", "%"))] if word.startswith("C") else []
    for mechanism, locked, mglru, workload, capacity, mode, ahead, filesystem in itertools.product(
        MECHANISMS,
        [0, *(one for one in sizes if 0 < one < 100)],
        MGLRU_STATES,
        RECLAIM,
        capacities,
        ["page_cache", *(one for one in MODES if one in words)],
        [0, *(one for one in sizes if f"ra{one}" in words)],
        [one for one in FILESYSTEMS if one == "ext4" or one in words],
    ):
        with suppress(InputError):  # what does not go together
            yield Cell(
                "reclaim",
                capacity,
                mechanism,
                mglru,
                mode,
                workload=workload,
                locked=locked,
                read_ahead_kb=ahead,
                filesystem=filesystem,
            )


def guest_bisect_step(args: argparse.Namespace) -> int:
    """Tell ``git bisect run`` whether a kernel is good (0), bad (1) or cannot be told (125)."""
    try:
        answer = _answer(args)
        _say(args, answer)
    except MoetierError as error:
        error.do = error.do or f"{args.prog} --help"
        note(f"moetier: {' '.join(str(error).split())}")
        return ABORT
    except Exception:  # noqa: BLE001 - an exit status of 1 or 2, which main would give, marks a commit as bad
        traceback.print_exc()
        silence_stdout()
        return ABORT
    return answer.status


def _say(args: argparse.Namespace, answer: Answer) -> None:
    if args.json:
        print_json(
            {
                "status": answer.status,
                "answer": _WORDS[answer.status],
                "cell": args.cell,
                "metric": args.metric,
                "values": list(answer.values),
                "reason": answer.reason,
            }
        )
    else:
        say(f"{_WORDS[answer.status]}: {answer.reason}")
    if sys.stdout is not None:
        sys.stdout.flush()  # here, where it cannot be taken for a bad kernel


def _answer(args: argparse.Namespace) -> Answer:
    """Return the answer on the kernel that the command names.

    Raises:
        MoetierError: the command cannot be followed, or this host cannot measure: nothing is said of the kernel.
    """
    from pytest_moetier.host.kernels import check, default_cache, find_kernel, has_mglru  # noqa: PLC0415

    better = _better(args.metric)
    cell = cell_named(args.cell, "kernel")
    good = _good(args)
    if args.boots < 1:
        raise InputError(f"--boots {args.boots}", "1 boot or more")
    kernel = find_kernel(args.kernel, default_cache())
    _need_host()
    try:
        check(kernel)
    except UnsupportedHostError as error:
        return Answer(SKIP, f"{error.seen}")
    if cell.mglru == "on" and has_mglru(kernel) is False:
        return Answer(SKIP, f"kernel {kernel.release} has no MGLRU (CONFIG_LRU_GEN)")
    label = kernel.label if LABEL.fullmatch(kernel.label) and kernel.label != HOST else "kernel"
    step = _Step(replace(cell, kernel=label), kernel, args.metric, better, good, args.boots)
    with closing(_campaign(_settings(args, label))) as campaign:
        return step.run(campaign)


def _need_host() -> None:
    """Refuse a host on which no guest can be had, before a commit is taken for the culprit."""
    from pytest_moetier.host.initramfs import find_tools  # noqa: PLC0415
    from pytest_moetier.host.qemu import refuse_machine  # noqa: PLC0415
    from pytest_moetier.native import static_executable  # noqa: PLC0415

    refuse_machine()
    find_tools()
    for name in ("moetier-agent", "moetier-replay", "moetier-balloon"):
        static_executable(name)


def _better(name: str) -> str:
    """Return which values of a metric are better: lower or higher."""
    from pytest_moetier.finding import METRICS  # noqa: PLC0415

    known = {word: better for word, (_, better, _) in METRICS.items() if better in {"lower", "higher"}}
    if name not in known:
        raise InputError(f"--metric {name!r}", f"one of {', '.join(known)}")
    return known[name]


def _good(args: argparse.Namespace) -> Interval:
    if args.good is not None:
        return Interval.parse(args.good)
    found = _stored(Path(args.good_from), args.cell, args.metric)
    if len(found) != 1:
        seen = f"kernels {', '.join(found)}" if found else "no proved cell"
        raise InputError(
            f"{args.good_from} has {seen} with {args.metric} of {args.cell}",
            "one kernel's values",
            "--good LOW-HIGH, or a file of a session with that cell alone: --moetier-kernel PATH --moetier-json FILE",
        )
    (values,) = found.values()
    return Interval(min(values), max(values))


def _stored(path: Path, cell: str, metric: str) -> Mapping[str, list[float]]:
    """Return the values of a metric of a cell in a file of ``--moetier-json``, by the word of its kernel."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        results: list[Mapping[str, Any]] = document["results"]
        found = {}
        for one in results:
            head, _, kernel = str(one["cell"]).rpartition("-k")
            if head == cell and metric in one["metrics"]:
                found[kernel] = [float(value) for value in one["metrics"][metric]["values"]]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a file that --moetier-json wrote") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no file of verdicts ({error})", "one that --moetier-json wrote") from error
    return {kernel: values for kernel, values in found.items() if values}


def _settings(args: argparse.Namespace, label: str) -> Settings:
    """Return the settings of a session of one boot: those of a session of pytest without options."""
    from pytest_moetier.campaign import Settings  # noqa: PLC0415
    from pytest_moetier.settings import default_pool, parse_guest_pool  # noqa: PLC0415
    from pytest_moetier.workloads import Asked  # noqa: PLC0415

    try:
        pool = parse_guest_pool(args.guest_pool)
    except InputError as error:
        raise InputError(error.seen.removeprefix("--moetier-"), error.expected, error.do) from error
    return Settings(
        pool=default_pool().expanduser(),
        asked=Asked((), args.iterations, guest_pool=pool),
        rounds=1,
        seed=0,
        threads=args.threads or min(8, max(2, os.cpu_count() or 2)),
        reserve_bytes=1 << 30,
        wait_seconds=WAIT_SECONDS,
        kernels={label: args.kernel},
    )


def _campaign(settings: Settings) -> Campaign:
    from pytest_moetier.campaign import Campaign  # noqa: PLC0415
    from pytest_moetier.progress import reporter  # noqa: PLC0415

    return Campaign(settings, reporter(sys.stderr, 0))


@dataclass(frozen=True, slots=True)
class _Step:
    """A kernel, and what is asked of it."""

    cell: Cell
    kernel: Kernel
    metric: str
    better: str
    good: Interval
    boots: int

    def run(self, campaign: Campaign) -> Answer:
        """Boot until the values tell, or the boots are used up.

        Raises:
            MoetierError: it is not the kernel that is to blame.
        """
        values: list[float] = []
        unproved = ""
        for _ in range(self.boots + MORE_BOOTS):
            campaign.results.pop(self.cell.id, None)  # measured anew: one more boot
            result = campaign.measure([self.cell])[self.cell.id]
            if problem := self._problem(result, campaign):
                return Answer(SKIP, f"{self.kernel.release}: {problem}", tuple(values))
            if result.proved:
                values.append(self._value(result))
                note(f"moetier: {self.metric} {values[-1]:.6g}")
            else:
                unproved = "; ".join(result.invalid)
                note(f"moetier: {unproved}")
            status = verdict(values, self.good, self.better) if len(values) >= self.boots else None
            if status is not None:
                return Answer(status, self._words(values), tuple(values))
        if len(values) < self.boots:
            why = f"{len(values)} of {self.boots + MORE_BOOTS} boots proved, expected {self.boots}: {unproved}"
            return Answer(SKIP, f"{self.kernel.release}: {why}", tuple(values))
        return Answer(SKIP, f"{self._words(values)}: its boots disagree", tuple(values))

    def _problem(self, result: CellResult, campaign: Campaign) -> str:
        """Return why the kernel cannot be examined, "" where it was; raise where it is not the kernel."""
        if isinstance(result.broken, InputError):
            raise result.broken
        if result.skipped is not None and (
            not isinstance(result.skipped, UnsupportedHostError) or campaign.context_of(self.cell) is None
        ):
            # The host was busy, or it refused before this kernel had been booted once.
            raise result.skipped
        return str(result.broken or result.skipped or "")

    def _value(self, result: CellResult) -> float:
        from pytest_moetier.finding import EMULATED, TIMED, guest_of, metrics_of  # noqa: PLC0415

        guest = guest_of(result.runs[0])
        if self.metric in TIMED and guest is not None and guest.emulated:
            raise UnsupportedHostError(f"--metric {self.metric}", "a metric that no clock gave", f"it is {EMULATED}")
        found: Metric | None = metrics_of(result.runs).get(self.metric)
        if found is None:
            raise InputError(f"--metric {self.metric} was not observed of {self.cell.id}", "one that is")
        return found.values[0]

    def _words(self, values: Sequence[float]) -> str:
        shown = ", ".join(f"{value:.6g}" for value in values)
        return (
            f"{self.kernel.release}: {self.metric} of {self.cell.id} is {median(values):.6g} (boots: {shown}),"
            f" good is {self.good.low:.6g} to {self.good.high:.6g}"
        )


class _Aborting(argparse.ArgumentParser):
    """A parser whose refusals end a bisection: argparse's own exit status 2 would mark a commit as bad."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # noqa: ANN401 - argparse's own
        """Refuse here what is left over, which the whole command's parser would refuse otherwise."""
        known, left = super().parse_known_args(args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return known, left

    def error(self, message: str) -> NoReturn:
        """End with the usage, the message, and the status that aborts a bisection."""
        self.print_usage(sys.stderr)
        self.exit(ABORT, f"{self.prog}: error: {message}\n")


def add_bisect(guest: Commands) -> None:
    """Add the command to ``moetier guest``."""
    one = add_command(guest, "bisect-step", guest_bisect_step)
    one.__class__ = _Aborting  # its group makes it of its own parser's class
    one.description, one.formatter_class = _HELP, argparse.RawDescriptionHelpFormatter
    words = "the kernel, with the folder of its modules where not everything is built in; or one that was fetched"
    one.add_argument("kernel", metavar="BZIMAGE[:MODULES]", help=words)
    one.add_argument("--cell", default="balloon81-mglru_on", help=f"{_SHAPE} (default: balloon81-mglru_on)")
    one.add_argument("--metric", default="amplification", help="what is judged (default: amplification)")
    good = one.add_mutually_exclusive_group(required=True)
    good.add_argument("--good", metavar="LOW-HIGH", help="its values on a good kernel, such as 1.02-1.10")
    good.add_argument("--good-from", metavar="FILE", help="take them from a file that --moetier-json wrote")
    words = f"boots of the kernel, each a value (default: 3); up to {MORE_BOOTS} more where they disagree"
    one.add_argument("--boots", type=number, default=3, metavar="N", help=words)
    words = "engine iterations of the measured pass (default: those of the reclaim findings)"
    one.add_argument("--iterations", type=number, default=0, metavar="N", help=words)
    words = "scale of the pool: layers x bytes of an expert, such as 4x256KiB (default: that of the reclaim findings)"
    one.add_argument("--guest-pool", default="", metavar="LxSIZE", help=words)
    one.add_argument("--threads", type=number, default=0, metavar="N", help="reader threads (default: 2 to 8)")
