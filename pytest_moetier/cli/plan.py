"""``moetier plan``: what is expected to be read, written down beside a trace, and how good it is (paper section 7)."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_moetier.cli.parsers import Commands, add_command, number
from pytest_moetier.cli.reading import known, reading
from pytest_moetier.cli.say import print_json, say
from pytest_moetier.errors import InputError

if TYPE_CHECKING:
    from pytest_moetier.advice import Advice, Recall
    from pytest_moetier.trace.records import Trace


def plan_predict(args: argparse.Namespace) -> int:
    """Write what a predictor says of a trace, and say how much of what was chosen it has."""
    from pytest_moetier.advice import predict, predictor_named, withhold, write_advice  # noqa: PLC0415
    from pytest_moetier.trace.load import load_trace  # noqa: PLC0415

    given = args.recall if args.recall_file is None else _recalls(args.recall_file)
    trace = load_trace(args.trace, **known(args))
    if args.out.exists() and args.out.samefile(args.trace):
        raise InputError(f"{args.out} is the trace itself", "another file for the advice")
    advice = predict(trace, predictor_named(args.predictor) or args.predictor, given, args.seed)
    if args.min_recall is not None:
        advice = withhold(advice, trace, args.min_recall)
    write_advice(advice, args.out)
    return _tell(args, args.out, advice, trace)


def _recalls(path: Path) -> list[float]:
    """Return the numbers in a file, one for each layer."""
    if path.exists() and not path.is_file():  # a pipe that nobody writes to would never end, nor would /dev/zero
        raise InputError(f"{path} is no plain file", "a text of numbers, one for each layer in its order")
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        raise InputError(f"{path}: {reason}", "a text of numbers, one for each layer in its order") from error
    recalls = []
    for at, word in enumerate(words):
        try:
            recalls.append(float(word))
        except ValueError:
            raise InputError(f"{path}: word {at} is {word[:40]!r}", "a number from 0 to 1 for each layer") from None
    return recalls


def plan_info(args: argparse.Namespace) -> int:
    """Print how much of what a trace chose a file of advice has."""
    from pytest_moetier.advice import load_advice  # noqa: PLC0415
    from pytest_moetier.trace.load import load_trace  # noqa: PLC0415

    trace = load_trace(args.trace, **known(args))
    return _tell(args, args.advice, load_advice(args.advice, trace), trace)


def _tell(args: argparse.Namespace, path: Path, advice: Advice, trace: Trace) -> int:
    from pytest_moetier.advice import label, recall  # noqa: PLC0415

    found = recall(advice, trace)
    if args.json:
        print_json({"file": str(path), **_json(advice, trace, found)})
        return 0
    low, high = float(found.by_layer.min()), float(found.by_layer.max())
    withheld = ", ".join(map(str, advice.withheld))
    say(
        f"{path}: {label(advice, found)}: {advice.source}",
        f"for {trace.source}" + (" (synthetic)" if trace.synthetic else ""),
        f"recall {found.overall:.3f} of what was chosen, by layer {low:.3f} to {high:.3f}; "
        f"precision {found.precision:.3f}",
        f"advised: {found.records_advised.sum()} of {advice.n_records} records, {found.ids_per_record:.1f} experts per "
        f"record; recall over these records {found.where_advised:.3f}",
        *([f"withheld: {len(advice.withheld)} of {len(trace.layers)} layers: {withheld}"] if withheld else []),
        *(_table(found) if args.layers else []),
    )
    return 0


def _json(advice: Advice, trace: Trace, found: Recall) -> dict[str, object]:
    from pytest_moetier.advice import label  # noqa: PLC0415

    return {
        "kind": advice.kind,
        "label": label(advice, found),
        "oracle": advice.oracle,
        "source": advice.source,
        "trace": advice.trace,
        "trace_source": trace.source,
        "synthetic": trace.synthetic,
        "records": advice.n_records,
        "records_advised": int(found.records_advised.sum()),
        "recall": found.overall,
        "recall_where_advised": _plain(found.where_advised),
        "precision": _plain(found.precision),
        "experts_per_record": found.ids_per_record,
        "withheld": list(advice.withheld),
        "layers": list(found.layers),
        "recall_by_layer": found.by_layer.tolist(),
    }


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value


def _table(found: Recall) -> list[str]:
    head = f"{'layer':>5} {'recall':>6} {'hits':>9} {'advised':>9} {'chosen':>9}"
    columns = (found.by_layer, found.hits, found.advised, found.chosen)
    rows = zip(found.layers, *(column.tolist() for column in columns), strict=True)
    return [head, *(f"{layer:>5} {share:>6.3f} {a:>9} {b:>9} {c:>9}" for layer, share, a, b, c in rows)]


def plan_formats(args: argparse.Namespace) -> int:
    """Describe the file of advice, which a predictor of your own can write."""
    from pytest_moetier.advice import FORMAT, FORMAT_LINES  # noqa: PLC0415

    if args.json:
        print_json({"formats": [{"name": FORMAT, "what": list(FORMAT_LINES)}]})
    else:
        say(*FORMAT_LINES)
    return 0


def add_plan(plan: Commands) -> None:
    """Add the commands of ``moetier plan``."""
    one = add_command(plan, "predict", plan_predict)
    one.add_argument("trace", type=Path)
    one.add_argument("out", type=Path, help="the file to write: JSON lines, compressed if named .gz or .zst")
    names = ("oracle", "previous-token", "markov", "noisy-oracle")
    one.add_argument("--predictor", choices=names, required=True, help="what makes the advice")
    recalls = one.add_mutually_exclusive_group()
    words = "of a noisy oracle, for all layers; default: the law 0.84 - 0.83 h^3.302 of a seeded order of the layers"
    recalls.add_argument("--recall", type=float, metavar="SHARE", help=words)
    recalls.add_argument("--recall-file", type=Path, metavar="FILE", help="the same, a number for each layer")
    one.add_argument("--seed", type=number, help="of a noisy oracle (0)")
    one.add_argument("--min-recall", type=float, metavar="SHARE", help="withhold the layers whose recall is below")
    _telling(one)
    one = add_command(plan, "info", plan_info)
    one.add_argument("advice", type=Path)
    one.add_argument("--trace", type=Path, required=True, help="the trace it is for")
    _telling(one)
    add_command(plan, "formats", plan_formats)


def _telling(one: argparse.ArgumentParser) -> None:
    one.add_argument("--layers", action="store_true", help="print each layer's recall")
    reading(one)
