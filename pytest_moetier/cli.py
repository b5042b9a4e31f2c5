"""The ``moetier`` command: arguments in, text or JSON out. A subcommand imports what it needs itself."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from pytest_moetier import __version__
from pytest_moetier.errors import InputError, MoetierError
from pytest_moetier.units import format_bytes

Command = Callable[[argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001  (it has no public name)
Progress = Callable[[int, int], None]

_PLAIN_SECONDS = 2.0
_STATE_STYLES = {"ok": "green", "limited": "yellow", "missing": "red"}


def _print_json(content: Mapping[str, object]) -> None:
    _say(json.dumps(content))


def _say(*lines: str) -> None:
    if sys.stdout is not None:  # closed by the caller
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def _note(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")


def _silence_stdout() -> None:
    """Keep the interpreter from complaining at exit about what could not be written."""
    if sys.stdout is not None:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _progress(what: str, unit: str) -> Iterator[Progress]:
    """Yield a function of (done, total): a rich bar on a terminal's stderr, else a plain line every two seconds."""
    if sys.stderr is not None and sys.stderr.isatty():
        with _bar(what, unit) as show:
            yield show
        return
    last = time.monotonic()

    def plain(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last < _PLAIN_SECONDS and done < total:
            return
        last = time.monotonic()
        amount = f"{format_bytes(done)} of {format_bytes(total)}" if unit == "bytes" else f"{done} of {total} {unit}"
        _note(f"{what}: {amount} ({done / max(total, 1):.0%})")

    yield plain


@contextmanager
def _bar(what: str, unit: str) -> Iterator[Progress]:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def pool_create(args: argparse.Namespace) -> int:
    """Create a pool, or finish one that was begun."""
    from pytest_moetier.pool.profiles import proportions, resolve_shape  # noqa: PLC0415
    from pytest_moetier.pool.synthetic import choose_store, create_pool  # noqa: PLC0415

    shape = resolve_shape(
        args.profile, layers=args.layers, experts=args.experts, k=args.k, expert_bytes=args.expert_bytes
    )
    store, why = choose_store("plain" if args.plain else args.store)
    tell = _note if args.json else _say
    for line in (*proportions(shape), f"layout: {args.layout}", f"store: {store} ({why})"):
        tell(line)
    with _progress("writing", "bytes") as show:
        made = create_pool(args.path, shape, layout=args.layout, store=store, seed=args.seed, progress=show)
    if args.json:
        _print_json(
            {
                "path": str(made.path),
                "name": made.manifest.name,
                "profile": made.manifest.profile,
                "pool_id": f"0x{made.manifest.pool_id:016x}",
                "layers": len(made.manifest.layers),
                "experts": made.manifest.experts,
                "k": made.manifest.k,
                "expert_bytes": list(made.manifest.expert_bytes),
                "total_bytes": made.manifest.total_bytes,
                "iteration_bytes": made.manifest.iteration_bytes,
                "layout": made.manifest.layout,
                "store": made.manifest.store,
                "kept_bytes": made.kept_bytes,
                "written_bytes": made.written_bytes,
                "seconds": made.seconds,
            }
        )
    elif made.written_bytes:
        kept = f" ({format_bytes(made.kept_bytes)} kept from before)" if made.kept_bytes else ""
        rate = format_bytes(made.written_bytes / max(made.seconds, 1e-9))
        _say(f"wrote {format_bytes(made.written_bytes)} in {made.seconds:.1f} s, {rate}/s{kept}: {made.path}")
    else:
        _say(f"already whole: {made.path}")
    return 0


def pool_check(args: argparse.Namespace) -> int:
    """Verify a pool; 1 when it has a fault."""
    from pytest_moetier.pool.check import check_pool  # noqa: PLC0415
    from pytest_moetier.pool.opened import open_pool  # noqa: PLC0415

    with open_pool(args.path, check_files=False) as pool, _progress("checking", "experts") as show:
        found = check_pool(pool.root, pool.manifest, full=args.full, seed=args.seed, progress=show)
    if args.json:
        _print_json(
            {
                "path": str(args.path),
                "experts_checked": found.experts_checked,
                "experts": found.experts,
                "bytes_checked": found.bytes_checked,
                "faults": list(found.faults),
            }
        )
    else:
        _say(*(f"fault: {fault}" for fault in found.faults))
        state = "sound" if not found.faults else "NOT what its manifest says"
        _say(
            f"{args.path} is {state}: every page of {found.experts_checked} of {found.experts} experts "
            f"({format_bytes(found.bytes_checked)}) and the size of every file checked"
        )
    return 1 if found.faults else 0


def pool_map(args: argparse.Namespace) -> int:
    """Print where experts are: layer, expert, file, offset, length."""
    from pytest_moetier.pool.manifest import load_manifest  # noqa: PLC0415

    manifest = load_manifest(args.path)
    layers = manifest.layers if args.layer is None else (args.layer,)
    experts = range(manifest.experts) if args.expert is None else (args.expert,)
    rows = [
        (layer, expert, manifest.files[extent.file].path, extent.offset, extent.length)
        for layer in layers
        for expert in experts
        for extent in manifest.extents(layer, expert)
    ]
    if args.json:
        names = ("layer", "expert", "file", "offset", "length")
        _print_json({"path": str(args.path), "extents": [dict(zip(names, row, strict=True)) for row in rows]})
    else:
        _say("layer\texpert\tfile\toffset\tlength", *("\t".join(map(str, row)) for row in rows))
    return 0


def trace_info(args: argparse.Namespace) -> int:
    """Print what is in a trace file."""
    from pytest_moetier.trace.load import load_trace  # noqa: PLC0415

    trace = load_trace(args.file, args.format, n_experts=args.experts)
    kinds = trace.kind_counts()
    if args.json:
        _print_json(
            {
                "file": str(args.file),
                "source": trace.source,
                "synthetic": trace.synthetic,
                "layers": list(trace.layers),
                "n_experts": trace.n_experts,
                "k": trace.k,
                "iterations": trace.n_iterations,
                "accepted_tokens": trace.accepted_tokens,
                "accesses": trace.n_accesses,
                "kinds": kinds,
                "prefill_iterations": trace.prefill.n_iterations if trace.prefill else 0,
                "fingerprint": trace.fingerprint,
                "warnings": list(trace.warnings),
            }
        )
        return 0
    _say(
        f"source: {trace.source}" + (" (synthetic)" if trace.synthetic else ""),
        f"{len(trace.layers)} layers x {trace.n_experts} experts, k = {trace.k}",
        f"iterations: {trace.n_iterations} ({', '.join(f'{name} {count}' for name, count in kinds.items())})",
        f"accepted tokens: {trace.accepted_tokens}",
        f"expert reads: {trace.n_accesses}, {trace.n_accesses / trace.n_iterations:.1f} per iteration, "
        f"{trace.n_accesses / trace.accepted_tokens:.1f} per accepted token",
        f"prefill kept apart: {trace.prefill.n_iterations if trace.prefill else 0} positions",
        f"fingerprint: {trace.fingerprint}",
        *(f"warning: {one}" for one in trace.warnings),
    )
    return 0


def trace_synth(args: argparse.Namespace) -> int:
    """Write a seeded synthetic trace."""
    from pytest_moetier.trace.write import write_trace  # noqa: PLC0415
    from pytest_moetier.trace.synth import synth_trace  # noqa: PLC0415

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
    write_trace(trace, args.out)
    if args.json:
        _print_json(
            {
                "file": str(args.out),
                "source": trace.source,
                "iterations": trace.n_iterations,
                "accepted_tokens": trace.accepted_tokens,
                "accesses": trace.n_accesses,
                "fingerprint": trace.fingerprint,
            }
        )
    else:
        _say(
            f"{trace.source}: {trace.n_iterations} iterations, {trace.accepted_tokens} accepted tokens, "
            f"{trace.n_accesses / trace.n_iterations:.1f} expert reads per iteration: {args.out}"
        )
    return 0


def doctor(args: argparse.Namespace) -> int:
    """Print what this host can measure, why not, and what would make it so."""
    from pytest_moetier.host.probe import doctor_report  # noqa: PLC0415

    checks = doctor_report(_pool_target(args.pool))
    if args.json:
        names = ("name", "state", "observed", "means", "fix")
        _print_json({"checks": [{name: getattr(check, name) for name in names} for check in checks]})
        return 0
    from rich.box import SIMPLE  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(width=None if sys.stdout and sys.stdout.isatty() else 120)
    table = Table("what", "state", "observed here, what it means, and what would change it", box=SIMPLE, pad_edge=False)
    for check in checks:
        text = Text(f"{check.observed}: {check.means}")
        if check.fix:
            text.append(f"\nto change it: {check.fix}", style="bold")
        table.add_row(Text(check.name), Text(check.state, style=_STATE_STYLES.get(check.state, "")), text)
    console.print(table)
    return 0


def _pool_target(path: Path | None) -> Path | None:
    if path is not None and not path.exists():
        raise InputError(f"no pool at {path}", "a folder made by `moetier pool create`", "run it, or leave out --pool")
    return path


def _number(text: str) -> int:
    value = int(text, 0)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def _add(parent: Commands, name: str, run: Command) -> argparse.ArgumentParser:
    words = (run.__doc__ or "").strip().rstrip(".")
    parser = parent.add_parser(name, help=words, description=words + ".")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run, prog=parser.prog)
    return parser


def _group(parent: Commands, name: str, words: str) -> Commands:
    return parent.add_parser(name, help=words, description=words).add_subparsers(required=True, metavar="COMMAND")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    parser = argparse.ArgumentParser(prog="moetier", description="Who should own the expert cache of a MoE model?")
    parser.add_argument("--version", action="version", version=f"moetier {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _pool_parsers(_group(commands, "pool", "expert pools on a device: create, check, map"))
    _trace_parsers(_group(commands, "trace", "router traces: info, synth"))
    one = _add(commands, "doctor", doctor)
    one.add_argument("--pool", type=Path, help="also look at this pool's device")
    return parser


def _pool_parsers(pool: Commands) -> None:
    one = _add(pool, "create", pool_create)
    one.add_argument(
        "profile", help="default, olmoe-1b-7b, qwen3-30b-a3b, gemma-4-26b-a4b, deepseek-v3, kimi-k3 or custom"
    )
    one.add_argument("path", type=Path, help="a folder, new or empty, or with an unfinished pool of the same shape")
    one.add_argument("--layers", type=_number, help="fewer layers than the profile's")
    one.add_argument("--experts", type=_number, help="experts per layer, for custom")
    one.add_argument("--k", type=_number, help="experts chosen per layer and pass, for custom")
    one.add_argument("--expert-bytes", metavar="SIZE", help="bytes of one expert, such as 1MiB; whole 4 KiB pages")
    one.add_argument("--layout", choices=("file_per_expert", "one_file"), default="file_per_expert")
    one.add_argument(
        "--store", choices=("auto", "image", "plain"), default="auto", help="auto: an image where root allows"
    )
    one.add_argument("--plain", action="store_true", help="the same as --store plain")
    one.add_argument("--seed", type=_number, default=0, help="of the pool's bytes (default 0)")
    one = _add(pool, "check", pool_check)
    one.add_argument("path", type=Path)
    one.add_argument("--full", action="store_true", help="every expert, not a sample")
    one.add_argument("--seed", type=_number, default=0, help="of the sample (default 0)")
    one = _add(pool, "map", pool_map)
    one.add_argument("path", type=Path)
    one.add_argument("--layer", type=_number)
    one.add_argument("--expert", type=_number)


def _trace_parsers(trace: Commands) -> None:
    one = _add(trace, "info", trace_info)
    one.add_argument("file", type=Path)
    one.add_argument("--format", help="of the file; default: told from its content")
    one.add_argument("--experts", type=_number, help="experts per layer, where the file does not state them")
    one = _add(trace, "synth", trace_synth)
    one.add_argument("preset", help="kimi-k3, qwen3-30b-a3b, deepseek-v3, olmoe-1b-7b or gemma-4-26b-a4b")
    one.add_argument("out", type=Path, help="the file to write, .jsonl or .jsonl.gz")
    one.add_argument("--layers", type=_number, help="default: all of the model's; fewer are spread over its depth")
    one.add_argument("--iterations", type=_number, default=285)
    one.add_argument("--domain", choices=("prose", "code", "math", "chat"), default="prose")
    one.add_argument("--order", choices=("id", "score"), default="id", help="of the ids within a pass")
    one.add_argument("--seed", type=_number, default=0)
    one.add_argument("--experts", type=_number, help="experts per layer, if not the preset's (the fit no longer holds)")
    one.add_argument("--k", type=_number, help="experts a pass, likewise")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 fine, 1 a fault was found, 2 refused (one line on stderr says why), 130 after Ctrl-C."""
    args = build_parser().parse_args(argv)
    try:
        status = int(args.run(args))
        if sys.stdout is not None:
            sys.stdout.flush()
    except MoetierError as error:
        error.do = error.do or f"{args.prog} --help"
        _note(f"moetier: {' '.join(str(error).split())}")
        return 2
    except BrokenPipeError:  # the reader of our output (head, less) has left: nobody to say anything to
        _silence_stdout()
        return 0
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        _silence_stdout()
        _note(f"moetier: {name}{error.strerror or error}; expected a host that allows it; next: moetier doctor")
        return 2
    except KeyboardInterrupt:
        _note("moetier: interrupted; what is written is kept, and the same command continues it")
        return 130
    else:
        return status


if __name__ == "__main__":
    raise SystemExit(main())
