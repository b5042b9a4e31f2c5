"""``moetier simulate``: what cache policies would do with a trace, at every budget asked for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pytest_moetier.cli.parsers import Commands, add_command, number
from pytest_moetier.cli.reading import known, named, reading
from pytest_moetier.cli.say import note, print_json, progress, say
from pytest_moetier.errors import InputError
from pytest_moetier.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from pytest_moetier.simulate import BatchCost, Budget, Diagnosis, Floor, OffDomain, Outcome, Workload
    from pytest_moetier.simulate.sweep import Task
    from pytest_moetier.trace.records import Trace

_POLICIES = "lru,lfu,lfu-perfect,static,belady"
_BUDGETS = "1%,5%,10%,25%,50%"


@dataclass(frozen=True, slots=True)
class _File:
    """A trace file, what was simulated over it, and what came out."""

    name: str
    path: Path
    trace: Trace
    work: Workload
    floor: Floor
    outcomes: list[Outcome]
    diagnoses: list[Diagnosis]

    def of(self, policy: str) -> list[Outcome]:
        """Return a policy's outcomes, budget by budget."""
        return [one for one in self.outcomes if one.policy == policy]


def simulate_command(args: argparse.Namespace) -> int:
    """Simulate cache policies over traces: hits and miss bytes of each policy at each budget."""
    from pytest_moetier.simulate import Budget, least_lru_distance  # noqa: PLC0415
    from pytest_moetier.simulate.sweep import sweep  # noqa: PLC0415
    from pytest_moetier.trace.load import load_traces  # noqa: PLC0415

    budgets = [Budget.parse(one, args.unit) for one in args.budget.split(",")]
    sizes = _sizes(args.expert_bytes)
    names, paths = named(args.files)
    traces = load_traces(paths, **known(args))
    for path, trace in zip(paths, traces, strict=True):
        for line in trace.warnings:
            note(f"{path}: {line}")
    table = _table(args, sizes)
    tasks = _tasks(args, paths, traces, budgets, sizes, table)
    with progress("simulating", "expert reads") as show:
        done = sweep(tasks, scheduler=args.scheduler, threads=args.threads, progress=show)
    files = [
        _File(name, path, trace, task.work, least_lru_distance(task.work, one[0].window, args.allocation), one, [])
        for name, path, trace, task, one in zip(names, paths, traces, tasks, done, strict=True)
    ]
    if args.diagnose:
        files = [_diagnosed(args, one, budgets, table) for one in files]
    others = _off_domain(args, files, budgets) if args.off_domain else []
    batches = _batch(args, traces, budgets, sizes, table) if args.batch else []
    if args.json:
        print_json(
            {
                "files": [_file_json(one) for one in files],
                "off_domain": [one.as_json() for one in others],
                "batch": [one.as_json() for one in batches],
            }
        )
    else:
        say(*_text(files, others, batches))
    return 0


def _sizes(text: str | None) -> int | list[int] | None:
    if text is None:
        return None
    sizes = [parse_bytes(one) for one in text.split(",")]
    return sizes[0] if len(sizes) == 1 else sizes


def _workload(args: argparse.Namespace, trace: Trace, sizes: int | list[int] | None) -> Workload:
    from pytest_moetier.simulate import workload  # noqa: PLC0415

    return workload(trace, args.semantics, expert_bytes=sizes, prefill=args.prefill)


def _table(args: argparse.Namespace, sizes: int | list[int] | None) -> Any:  # noqa: ANN401  (a word or a table)
    """Return the table of ``static`` as ``simulate`` takes it."""
    from pytest_moetier.simulate import trained  # noqa: PLC0415
    from pytest_moetier.trace.load import load_trace  # noqa: PLC0415

    if args.table in {"own", "train"}:
        return args.table
    return trained(_workload(args, load_trace(Path(args.table), **known(args)), sizes))


def _tasks(  # noqa: PLR0913, PLR0917  (the files, and all that their simulation depends on)
    args: argparse.Namespace,
    paths: list[Path],
    traces: list[Trace],
    budgets: list[Budget],
    sizes: int | list[int] | None,
    table: Any,  # noqa: ANN401
) -> list[Task]:
    from pytest_moetier.simulate import window  # noqa: PLC0415
    from pytest_moetier.simulate.sweep import Ask, Origin, Task  # noqa: PLC0415

    files = tuple(str(path.resolve()) for path in paths)
    read = {"semantics": args.semantics, "expert_bytes": sizes, "prefill": args.prefill}
    tasks = []
    for at, trace in enumerate(traces):
        work = _workload(args, trace, sizes)
        options = {"allocation": args.allocation, "window": window(args.window, work), "table": table}
        ask = Ask(tuple(args.policy.split(",")), tuple(budgets), options)
        tasks.append(Task(work, ask, Origin(files, at, known(args), read)))
    return tasks


def _diagnosed(
    args: argparse.Namespace,
    one: _File,
    budgets: list[Budget],
    table: Any,  # noqa: ANN401
) -> _File:
    from pytest_moetier.simulate import POLICIES, diagnose  # noqa: PLC0415

    asked = args.policy.split(",")
    if not set(asked) <= set(POLICIES):
        note(f"{one.name}: the misses of libcachesim's policies are not diagnosed")
    blamed = [policy for policy in asked if policy in POLICIES and policy != "belady"]
    if not blamed:
        return one
    with progress(f"diagnosing {one.name}", "expert reads") as show:
        why = diagnose(
            one.work,
            budgets,
            blamed,
            allocation=args.allocation,
            window=one.outcomes[0].window,
            table=table,
            threads=args.threads,
            progress=show,
        )
    return replace(one, diagnoses=why)


def _off_domain(args: argparse.Namespace, files: list[_File], budgets: list[Budget]) -> list[OffDomain]:
    from pytest_moetier.simulate import off_domain  # noqa: PLC0415

    works = {one.name: one.work for one in files}
    if len(works) < len(files):
        raise InputError("two files of one domain", "a name for each, as DOMAIN=FILE")
    return off_domain(works, budgets, allocation=args.allocation, window=args.window, threads=args.threads)


def _batch(
    args: argparse.Namespace,
    traces: list[Trace],
    budgets: list[Budget],
    sizes: int | list[int] | None,
    table: Any,  # noqa: ANN401  (a word or a table)
) -> list[BatchCost]:
    from pytest_moetier.simulate import batch_cost  # noqa: PLC0415

    if args.prefill != "none":
        raise InputError(f"--batch with --prefill {args.prefill}", "--prefill none: streams are merged by iteration")
    return batch_cost(
        traces,
        args.policy.split(","),
        budgets,
        semantics=args.semantics,
        allocation=args.allocation,
        window=args.window,
        expert_bytes=sizes,
        table=table,
        threads=args.threads,
    )


def _file_json(one: _File) -> dict[str, Any]:
    work, span, floor = one.work, one.outcomes[0].window, one.floor
    return {
        "name": one.name,
        "file": str(one.path),
        "source": work.source,
        "synthetic": work.synthetic,
        "layers": work.n_layers,
        "n_experts": work.n_experts,
        "k": work.k,
        "order": work.order,
        "semantics": work.semantics,
        "allocation": one.outcomes[0].allocation,
        "window": {"name": span.name, "words": span.words, "warm": span.warm, "end": span.end, "of": span.of},
        "prefill_iterations": work.n_prefill,
        "pool_bytes": work.pool_bytes or None,
        "floor": {
            "cycle_experts": floor.cycle_experts,
            "cycle_bytes": floor.cycle_bytes or None,
            "least": floor.least,
            "unit": floor.unit,
        },
        "outcomes": [each.as_json() for each in one.outcomes],
        "headroom": [
            {"budget": lru.budget, "points": best.hit_rate - lru.hit_rate, "of_misses": _saved(lru, best)}
            for lru, best in zip(one.of("lru"), one.of("belady"), strict=False)
        ],
        "diagnosis": [each.as_json() for each in one.diagnoses],
        "warnings": list(one.trace.warnings),
    }


def _saved(lru: Outcome, best: Outcome) -> float:
    return (lru.misses - best.misses) / lru.misses if lru.misses else 0.0


def _text(files: list[_File], others: list[OffDomain], batches: list[BatchCost]) -> list[str]:
    blocks = []
    for one in files:
        blocks += [_header(one), *_tables(one), _headroom(one), *_reasons(one)]
    if len(files) > 1 and len({(one.work.layers, one.work.n_experts, one.work.k) for one in files}) == 1:
        blocks.append(_means(files))
    blocks += [*_off_domain_blocks(others), _batch_lines(batches)]
    said = [line for block in blocks if block for line in ("", *block)]
    return said[1:]


def _header(one: _File) -> list[str]:
    work, done = one.work, one.outcomes[0]
    caches = "one cache for all layers" if done.allocation == "global" else f"{work.n_layers} caches of equal size"
    pool = format_bytes(work.pool_bytes) if work.pool_bytes else "size of an expert not stated"
    tables = dict.fromkeys(each.table for each in one.outcomes if each.table)
    return [
        f"{one.name}: {work.source}" + (" (synthetic)" if work.synthetic else ""),
        f"pool: {work.shape}: {work.n_objects} experts, {pool}; ids {work.order}",
        f"replay: {work.semantics}, {done.allocation} ({caches}), "
        + ("prompt before the decode" if work.n_prefill else "decode alone"),
        (
            f"window {done.window.words}: {done.iterations} iterations, {done.accepted_tokens} accepted tokens, "
            f"{done.accesses} expert reads"
        ),
        _floor(one),
        *(f"static holds a table of {each}" for each in tables),
    ]


def _floor(one: _File) -> str:
    floor, done = one.floor, one.outcomes[0]
    cycle = f"one-token cycle: {floor.cycle_experts} experts"
    cycle += f" ({format_bytes(floor.cycle_bytes)})" if floor.cycle_bytes else ""
    if floor.least is None:
        return f"{cycle}; LRU hits nothing in this window, however large"
    least = format_bytes(floor.least) if floor.unit == "bytes" else f"{floor.least} experts"
    where = "" if done.allocation == "global" else " in each layer's cache"
    if floor.least <= 1:
        return f"{cycle}; LRU hits at every budget"
    return f"{cycle}; {done.allocation} LRU hits exactly nothing below {least}{where}"


def _tables(one: _File) -> list[list[str]]:
    first = one.of(one.outcomes[0].policy)
    budgets = [each.budget for each in first]
    by_bytes = first[0].miss_bytes is not None
    unit = "bytes" if by_bytes else "experts"

    def per(amount: Callable[[Outcome], int]) -> Callable[[Outcome], str]:
        def shown(each: Outcome) -> str:
            if not amount(each):
                return "-"
            return (
                format_bytes((each.miss_bytes or 0) / amount(each)) if by_bytes else f"{each.misses / amount(each):.1f}"
            )

        return shown

    rooms = [each.room for each in first]
    held = [f"{room.total} {room.unit}" if room.unit == "experts" else format_bytes(room.total) for room in rooms]
    return [
        _grid("hit %", budgets, [("held", held), *_rows(one, lambda each: f"{100 * each.hit_rate:.1f}")]),
        _grid(f"missed {unit} per iteration", budgets, _rows(one, per(lambda each: each.iterations))),
        _grid(f"missed {unit} per accepted token", budgets, _rows(one, per(lambda each: each.accepted_tokens))),
    ]


def _rows(one: _File, shown: Callable[[Outcome], str]) -> list[tuple[str, list[str]]]:
    policies = dict.fromkeys(each.policy for each in one.outcomes)
    return [(policy, [shown(each) for each in one.of(policy)]) for policy in policies]


def _grid(title: str, heads: Sequence[str], rows: Sequence[tuple[str, list[str]]]) -> list[str]:
    """Return a table: a title over the names of its rows, columns right-aligned."""
    lines = [(title, list(heads)), *rows]
    left = max(len(name) for name, _ in lines)
    wide = [max(len(cells[at]) for _, cells in lines) for at in range(len(heads))]
    return [
        (f"{name:<{left}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, wide, strict=True))).rstrip()
        for name, cells in lines
    ]


def _headroom(one: _File) -> list[str]:
    return [
        f"headroom of advice at {lru.budget}: {100 * (best.hit_rate - lru.hit_rate):.1f} points between LRU and "
        f"Belady, {_saved(lru, best):.1%} of LRU's misses"
        for lru, best in zip(one.of("lru"), one.of("belady"), strict=False)
    ]


def _reasons(one: _File) -> list[list[str]]:
    if not one.diagnoses:
        return []
    rows = []
    for each in one.diagnoses:
        kinds = (each.compulsory, each.capacity, each.policy)
        read = (each.compulsory_bytes, each.capacity_bytes, each.policy_bytes)
        shares = [f"{100 * each.share(count):.1f}" for count in kinds]
        rows.append((f"{each.outcome.policy} {each.outcome.budget}", [*shares, *map(_size, read)]))
    heads = ["first read", "capacity", "policy", "first read", "capacity", "policy"]
    asked = one.diagnoses[0].outcome.policy
    return [
        _grid("% of misses, then bytes", heads, rows),
        [each.sentence for each in one.diagnoses if each.outcome.policy == asked],
    ]


def _size(size: int | None) -> str:
    return "-" if size is None else format_bytes(size)


def _means(files: list[_File]) -> list[str]:
    budgets = [each.budget for each in files[0].of(files[0].outcomes[0].policy)]
    rows = []
    for policy in dict.fromkeys(each.policy for each in files[0].outcomes):
        cells = []
        for at in range(len(budgets)):
            rates = [100 * one.of(policy)[at].hit_rate for one in files]
            cells.append(f"{fmean(rates):.1f} ({min(rates):.1f}-{max(rates):.1f})")
        rows.append((policy, cells))
    return _grid(f"hit %, mean of {len(files)} (range)", budgets, rows)


def _off_domain_blocks(others: list[OffDomain]) -> list[list[str]]:
    domains = list(dict.fromkeys(one.scored_on for one in others))
    blocks = []
    for budget in dict.fromkeys(one.static.budget for one in others):
        found = {(one.trained_on, one.scored_on): one for one in others if one.static.budget == budget}

        def cell(trained: str, scored: str, found: dict[tuple[str, str], OffDomain] = found) -> str:
            return f"{100 * found[trained, scored].static.hit_rate:.1f}" + ("*" if trained == scored else " ")

        rows = [(f"table of {trained}", [cell(trained, scored) for scored in domains]) for trained in domains]
        rows.append(("lru", [f"{100 * found[scored, scored].lru.hit_rate:.1f} " for scored in domains]))
        blocks.append(_grid(f"hit % at {budget}, scored on", domains, rows))
    if blocks:
        blocks[-1].append("*: an oracle, trained on the whole of the trace it is scored on")
    return blocks


def _batch_lines(batches: list[BatchCost]) -> list[str]:
    if not batches:
        return []
    first = batches[0]
    unit = "experts" if first.batch.miss_bytes is None else "bytes"
    rows = [
        (
            f"{one.batch.policy} {one.batch.budget}",
            [
                f"{100 * one.single_hit_rate:.1f}",
                f"{100 * one.batch.hit_rate:.1f}",
                f"{100 * one.hit_loss:.1f}",
                "-" if one.surcharge is None else f"{one.surcharge:.2f}",
            ],
        )
        for one in batches
    ]
    return [
        (
            f"batch of {len(first.singles)} streams against each alone at the same budget, {first.batch.iterations} "
            f"iterations scored; surcharge: missed {unit} per accepted token, as a multiple"
        ),
        *_grid("hit %", ["single", "batch", "loss", "surcharge"], rows),
    ]


def add_simulate(commands: Commands) -> None:
    """Add ``moetier simulate``."""
    one = add_command(commands, "simulate", simulate_command)
    one.add_argument("files", nargs="+", metavar="[DOMAIN=]FILE")
    words = "ours, and those of an installed libcachesim (arc, s3fifo, sieve, wtinylfu, lirs, 2q, fifo, clock, ...)"
    one.add_argument("--policy", default=_POLICIES, metavar="NAME,...", help=f"{words}; default: {_POLICIES}")
    words = f"of all layers: 455, 8/layer, 4000MiB, 25%%; default: {_BUDGETS.replace('%', '%%')}"
    one.add_argument("--budget", default=_BUDGETS, metavar="BUDGET,...", help=words)
    one.add_argument("--unit", choices=("experts", "bytes", "share"), help="of a bare number; default: experts")
    words = "one cache for all layers, or an equal part of the budget for each; default: global"
    one.add_argument("--allocation", choices=("global", "layer"), default="global", help=words)
    words = "fair (60%% of the iterations warm), cold (all is scored), decode (the prompt warms) or WARM:END"
    one.add_argument("--window", default="fair", help=f"{words}; default: fair")
    words = "how the ids of one layer and pass are looked up; default: per-access"
    one.add_argument("--semantics", choices=("per-access", "event-atomic"), default="per-access", help=words)
    words = "put the prompt before the first iteration; default: none, it is left out"
    one.add_argument("--prefill", choices=("none", "before"), default="none", help=words)
    words = "of an expert, or one of each layer, where the trace does not state it"
    one.add_argument("--expert-bytes", metavar="SIZE[,SIZE...]", help=words)
    words = "what static holds: train (chosen most in the warm part), own (in the whole trace: an oracle) or FILE's"
    one.add_argument("--table", default="train", metavar="train|own|FILE", help=f"{words}; default: train")
    one.add_argument("--threads", type=number, default=0, metavar="N", help="default: as many as there are CPUs")
    words = "simulate on a cluster of dask.distributed (pytest-moetier[sweep]); default: in this process"
    one.add_argument("--scheduler", metavar="tcp://HOST:PORT", help=words)
    one.add_argument("--diagnose", action="store_true", help="say of the misses whether it is the policy or the size")
    one.add_argument("--off-domain", action="store_true", help="try the table of each file on every other, beside LRU")
    one.add_argument("--batch", action="store_true", help="merge the files, and say what that costs a token")
    reading(one)
