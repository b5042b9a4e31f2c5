"""``moetier trace`` and ``moetier locality``: what the router chose."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_moetier.cli.parsers import Commands, add_command, number
from pytest_moetier.cli.reading import known, named, reading
from pytest_moetier.cli.say import note, print_json, say
from pytest_moetier.errors import InputError

if TYPE_CHECKING:
    from pytest_moetier.trace.findings import TraceFinding
    from pytest_moetier.trace.records import Trace


def _loaded(args: argparse.Namespace) -> Trace:
    from pytest_moetier.trace.load import load_trace  # noqa: PLC0415

    return load_trace(args.file, **known(args))


def _finding_json(found: TraceFinding) -> dict[str, str]:
    return {name: getattr(found, name) for name in ("check", "what", "where", "amount", "done", "override")}


def trace_info(args: argparse.Namespace) -> int:
    """Print what is in a trace file."""
    trace = _loaded(args)
    kinds = trace.kind_counts()
    if args.json:
        print_json(
            {
                "file": str(args.file),
                "source": trace.source,
                "synthetic": trace.synthetic,
                "layers": list(trace.layers),
                "n_experts": trace.n_experts,
                "k": trace.k,
                "order": trace.order,
                "iterations": trace.n_iterations,
                "accepted_tokens": trace.accepted_tokens,
                "accesses": trace.n_accesses,
                "kinds": kinds,
                "prefill_iterations": trace.prefill.n_iterations if trace.prefill else 0,
                "expert_bytes": list(trace.expert_bytes),
                "fingerprint": trace.fingerprint,
                "warnings": list(trace.warnings),
                "findings": [_finding_json(one) for one in trace.findings],
            }
        )
        return 0
    from pytest_moetier.trace.records import ORDERS  # noqa: PLC0415

    prefill = trace.prefill
    positions = sum(len(prefill.passes(layer)) for layer in prefill.layers[:1]) if prefill and _has_rows(prefill) else 0
    say(
        f"source: {trace.source}" + (" (synthetic)" if trace.synthetic else ""),
        f"{len(trace.layers)} layers x {trace.n_experts} experts, k = {trace.k}, ids {ORDERS[trace.order]}",
        f"iterations: {trace.n_iterations} ({', '.join(f'{name} {count}' for name, count in kinds.items())})",
        f"accepted tokens: {trace.accepted_tokens}",
        f"expert reads: {trace.n_accesses}, {trace.n_accesses / trace.n_iterations:.1f} per iteration, "
        f"{trace.n_accesses / trace.accepted_tokens:.1f} per accepted token",
        "prefill kept apart: " + (f"{prefill.n_iterations} engine calls, {positions} positions" if prefill else "none"),
        f"fingerprint: {trace.fingerprint}",
        *(f"warning: {one}" for one in trace.warnings),
    )
    return 0


def _has_rows(trace: Trace) -> bool:
    return "union" not in trace.kind_counts()


def trace_check(args: argparse.Namespace) -> int:
    """Look for contamination in trace files; 1 when something was found."""
    from pytest_moetier.trace import checks  # noqa: PLC0415

    if args.list:
        rows = checks.listing()
        if args.json:
            names = ("name", "default", "actions", "description")
            print_json({"checks": [dict(zip(names, row, strict=True)) for row in rows]})
        else:
            say(*(f"{row[0]:<18} {row[1]:<7} ({', '.join(row[2])}) {row[3]}" for row in rows))
        return 0
    if not args.files:
        raise InputError("no trace file", "at least one FILE, or --list", "moetier trace check --help")
    results = _checked(args)
    if args.json:
        print_json(
            {
                "files": [
                    {
                        "file": str(path),
                        "refused": refused,
                        "findings": [_finding_json(one) for one in trace.findings] if trace else [],
                        "warnings": list(trace.warnings) if trace else [],
                    }
                    for path, (trace, refused) in results.items()
                ]
            }
        )
    else:
        for path, (trace, refused) in results.items():
            say(*_check_lines(path, trace, refused))
    return 1 if any(refused or (trace and trace.findings) for trace, refused in results.values()) else 0


def _checked(args: argparse.Namespace) -> dict[Path, tuple[Trace | None, str]]:
    """Return each file's trace, or why it was refused; those that load are then held against each other."""
    from pytest_moetier.trace import checks  # noqa: PLC0415
    from pytest_moetier.trace.load import load_trace  # noqa: PLC0415

    said = known(args)
    results: dict[Path, tuple[Trace | None, str]] = {}
    for path in args.files:
        try:
            results[path] = (load_trace(path, **said), "")
        except InputError as error:
            results[path] = (None, str(error))
    loaded = {path: trace for path, (trace, _) in results.items() if trace is not None}
    if len(loaded) > 1:
        policy = checks.chosen(said["policy"], raw=said["raw"])
        together, _ = checks.check_together(list(loaded.values()), policy)
        results.update({path: (trace, "") for path, trace in zip(loaded, together, strict=True)})
    return results


def _check_lines(path: Path, trace: Trace | None, refused: str) -> list[str]:
    if trace is None:
        return [f"{path}: refused: {refused}"]
    said = [str(one) for one in trace.findings]
    notes = [one for one in trace.warnings if one not in said]
    state = f"{len(said)} found" if said else "clean"
    return [f"{path}: {state}", *(f"  found: {one}" for one in said), *(f"  note: {one}" for one in notes)]


def trace_convert(args: argparse.Namespace) -> int:
    """Write a trace in another format: canonical JSONL, numpy array or libCacheSim's oracleGeneral."""
    from pytest_moetier.trace.write import convert  # noqa: PLC0415

    trace = _loaded(args)
    lost = convert(trace, args.out, args.to)
    said = [*trace.warnings, *lost]
    if args.json:
        print_json({"file": str(args.out), "fingerprint": trace.fingerprint, "warnings": said})
    else:
        say(f"{args.out}: {trace.source}, {trace.n_iterations} iterations, {trace.n_accesses} expert reads")
        say(*(f"warning: {one}" for one in said))
    return 0


def trace_merge(args: argparse.Namespace) -> int:
    """Merge streams iteration by iteration: union size, deduplication and both denominators."""
    from pytest_moetier.trace.batch import merge  # noqa: PLC0415
    from pytest_moetier.trace.load import load_traces  # noqa: PLC0415
    from pytest_moetier.trace.write import convert  # noqa: PLC0415

    batch = merge(load_traces(args.files, **known(args)))
    if args.out:
        convert(batch.trace, args.out)
    trace = batch.trace
    figures = {
        "streams": batch.streams,
        "synthetic": trace.synthetic,
        "iterations": batch.n_iterations,
        "left_out_iterations": list(batch.left_out),
        "accepted_tokens": trace.accepted_tokens,
        "reads": batch.reads,
        "union_reads": batch.union_reads,
        "union_reads_per_iteration": batch.union_reads / batch.n_iterations,
        "union_reads_per_accepted_token": batch.union_reads / trace.accepted_tokens,
        "deduplication": batch.deduplication,
    }
    if args.json:
        print_json({**figures, "file": str(args.out) if args.out else None, "warnings": list(trace.warnings)})
        return 0
    say(
        f"{batch.streams} streams merged" + (" (synthetic)" if trace.synthetic else "") + f": {trace.source}",
        f"iterations: {batch.n_iterations}, as the shortest stream (left out: {_listed(batch.left_out)})",
        f"accepted tokens: {trace.accepted_tokens}",
        f"expert reads: {batch.reads} by the streams, {batch.union_reads} distinct within an iteration and layer: "
        f"deduplication {batch.deduplication:.3f}",
        f"union: {batch.union_reads / batch.n_iterations:.1f} experts per iteration, "
        f"{batch.union_reads / trace.accepted_tokens:.1f} per accepted token",
        *(f"warning: {one}" for one in trace.warnings),
        *([f"written: {args.out}"] if args.out else []),
    )
    return 0


def _listed(counts: tuple[int, ...]) -> str:
    return ", ".join(map(str, counts))


def trace_formats(args: argparse.Namespace) -> int:
    """List the formats that are read, and those that are recognised and refused."""
    from pytest_moetier.trace.formats import READERS  # noqa: PLC0415

    if args.json:
        print_json({"formats": [{"name": one.name, "what": one.what} for one in READERS.values()]})
    else:
        say(*(f"{one.name:<18} {one.what}" for one in sorted(READERS.values(), key=lambda one: one.name)))
    return 0


def trace_synth(args: argparse.Namespace) -> int:
    """Write a seeded synthetic trace, or report how its statistics meet the published ones."""
    if args.report:
        return _synth_report(args)
    from pytest_moetier.trace.synth import synth_trace  # noqa: PLC0415
    from pytest_moetier.trace.write import convert  # noqa: PLC0415

    trace = synth_trace(
        args.preset,
        layers=args.layers,
        iterations=args.iterations,
        domain=args.domain,
        seed=args.seed,
        order=args.order,
        experts=args.experts,
        k=args.k,
    )
    lost = convert(trace, args.out)
    if args.json:
        print_json(
            {
                "file": str(args.out),
                "source": trace.source,
                "iterations": trace.n_iterations,
                "accepted_tokens": trace.accepted_tokens,
                "accesses": trace.n_accesses,
                "fingerprint": trace.fingerprint,
                "warnings": lost,
            }
        )
    else:
        say(
            f"{trace.source}: {trace.n_iterations} iterations, {trace.accepted_tokens} accepted tokens, "
            f"{trace.n_accesses / trace.n_iterations:.1f} expert reads per iteration: {args.out}",
            *(f"warning: {one}" for one in lost),
        )
    return 0


def _synth_report(args: argparse.Namespace) -> int:
    from pytest_moetier.fit import fit_lines, fit_report  # noqa: PLC0415
    from pytest_moetier.trace.synth import PRESETS  # noqa: PLC0415

    fits = fit_report(args.preset, args.seed, note)
    if args.json:
        print_json(
            {
                "preset": args.preset,
                "synthetic": True,
                "seed": args.seed,
                "note": PRESETS[args.preset].note,
                "figures": [
                    {
                        "value": one.value,
                        "target": one.bound.text,
                        "source": one.bound.source,
                        "achieved": one.achieved,
                        "met": one.met,
                    }
                    for one in fits
                ],
            }
        )
    else:
        say(f"synthetic {args.preset}, seed {args.seed}: {PRESETS[args.preset].note}", *fit_lines(fits))
    return 0


def locality_command(args: argparse.Namespace) -> int:
    """Print the locality of routing: skew, reuse, overlap, coverage, and how domains overlap."""
    from pytest_moetier.trace.load import load_selections  # noqa: PLC0415
    from pytest_moetier.trace.locality import as_json, jaccard, locality, table  # noqa: PLC0415

    names, paths = named(args.files)
    loaded = load_selections(paths, args.phase, **known(args))
    found = [locality(one.selections) for one in loaded]
    for path, one in zip(paths, loaded, strict=True):
        for line in one.warnings:
            sys.stderr.write(f"{path}: {line}\n")
    if args.json:
        pairs = [(a, b) for a in range(len(found)) for b in range(a + 1, len(found))]
        print_json(
            {
                "traces": [
                    {"name": name, "file": str(path), "warnings": list(one.warnings), **as_json(stats)}
                    for name, path, one, stats in zip(names, paths, loaded, found, strict=True)
                ],
                "jaccard_top": args.jaccard_top,
                "jaccard": [
                    {"one": names[a], "other": names[b], "jaccard": jaccard(found[a], found[b], args.jaccard_top)}
                    for a, b in pairs
                ],
            }
        )
    else:
        say(*table(found, names, args.jaccard_top))
    return 0


def add_trace(trace: Commands) -> None:
    """Add the commands of ``moetier trace``."""
    one = add_command(trace, "info", trace_info)
    one.add_argument("file", type=Path)
    reading(one)
    one = add_command(trace, "check", trace_check)
    one.add_argument("files", type=Path, nargs="*", metavar="FILE")
    one.add_argument("--list", action="store_true", help="list the checks, their defaults and actions")
    reading(one)
    one = add_command(trace, "convert", trace_convert)
    one.add_argument("file", type=Path)
    one.add_argument("out", type=Path, help=".jsonl, .jsonl.gz, .jsonl.zst, .npy or .oracleGeneral")
    one.add_argument("--to", help="jsonl, npy or oracleGeneral; default: told from OUT's name")
    reading(one)
    one = add_command(trace, "merge", trace_merge)
    one.add_argument("files", type=Path, nargs="+", metavar="FILE")
    one.add_argument("--out", type=Path, help="write the merged trace, to replay or simulate")
    reading(one)
    add_command(trace, "formats", trace_formats)
    _synth_parser(trace)


def _synth_parser(trace: Commands) -> None:
    one = add_command(trace, "synth", trace_synth)
    one.add_argument("preset", help="kimi-k3, qwen3-30b-a3b, deepseek-v3, olmoe-1b-7b or gemma-4-26b-a4b")
    out = one.add_argument("out", type=Path, help="the file to write, .jsonl, .jsonl.gz, .jsonl.zst or .npy")

    class Report(argparse.Action):
        """Prints instead of writing: no file is needed then."""

        def __call__(self, _parser: object, space: argparse.Namespace, *_: object) -> None:
            space.report = True
            out.required = False

    words = "print published targets against what is reached"
    one.add_argument("--report", action=Report, nargs=0, default=False, help=words)
    one.add_argument("--layers", type=number, help="default: all of the model's; fewer are spread over its depth")
    one.add_argument("--iterations", type=number, default=285)
    one.add_argument("--domain", choices=("prose", "code", "math", "chat"), default="prose")
    one.add_argument("--order", choices=("id", "score"), default="id", help="of the ids within a pass")
    one.add_argument("--seed", type=number, default=0)
    one.add_argument("--experts", type=number, help="experts per layer, if not the preset's (the fit no longer holds)")
    one.add_argument("--k", type=number, help="experts a pass, likewise")


def add_locality(commands: Commands) -> None:
    """Add ``moetier locality``."""
    one = add_command(commands, "locality", locality_command)
    one.add_argument("files", nargs="+", metavar="[DOMAIN=]FILE")
    one.add_argument("--phase", choices=("decode", "prefill", "all"), default="decode", help="default: decode alone")
    one.add_argument("--jaccard-top", type=number, default=16, metavar="N", help="size of the sets compared (16)")
    reading(one)
