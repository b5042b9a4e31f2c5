"""``moetier engine``: llama.cpp, driven and watched."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from pytest_moetier.cli.parsers import Commands, add_command, number
from pytest_moetier.cli.say import note, print_json, say
from pytest_moetier.errors import InputError
from pytest_moetier.units import format_bytes, parse_bytes

if TYPE_CHECKING:  # they import numpy and yaml
    from pytest_moetier.engine.admission import Pair
    from pytest_moetier.engine.lab import Ask, EngineLab
    from pytest_moetier.engine.run import EngineRun
    from pytest_moetier.proof.lines import Proof

_IDS = re.compile(r"\s*\d+(\s*[, ]\s*\d+)*\s*")


def engine_check(args: argparse.Namespace) -> int:
    """Look whether the engine works here: its build, and what it captures of a tiny model."""
    from pytest_moetier.engine.selftest import check_engine  # noqa: PLC0415

    facts = check_engine()
    if args.json:
        print_json({name: getattr(facts, name) for name in facts.__dataclass_fields__})
        return 0
    for name in facts.__dataclass_fields__:
        say(f"{name.replace('_', ' ')}: {getattr(facts, name)}")
    say("the engine works: its choices are those of a recomputation, its tokens the same each time")
    return 0


def engine_model(args: argparse.Namespace) -> int:
    """Write a model with random weights, for measurements of where its bytes come from."""
    from pytest_moetier.engine.synthetic import PRESETS, write_model  # noqa: PLC0415
    from pytest_moetier.pool.checkpoint import map_checkpoint  # noqa: PLC0415

    write_model(args.path, PRESETS[args.preset], architecture=args.arch, quantisation=args.quantisation, seed=args.seed)
    made = map_checkpoint(args.path)
    if args.json:
        print_json(
            {
                "path": str(args.path),
                "name": made.name,
                "profile": made.profile,
                "bytes": made.stored_bytes,
                "expert_bytes": made.total_bytes,
                "spine_bytes": made.spine_bytes,
                "synthetic": made.synthetic,
            }
        )
    else:
        say(
            f"wrote {args.path}: {made.profile}, {len(made.layers)} layers of {made.experts} experts, {made.k} a token,"
            f" {format_bytes(made.total_bytes)} of experts and {format_bytes(made.spine_bytes)} beside them",
            "its weights are random: what it says of routing holds for no real model",
        )
    return 0


def engine_capture(args: argparse.Namespace) -> int:
    """Write the experts that a model's router chooses for a prompt as a trace."""
    from pytest_moetier.engine.capture import capture  # noqa: PLC0415
    from pytest_moetier.trace.write import convert  # noqa: PLC0415

    with _lab(args) as lab:
        found = capture(lab, _ask(args), args.pairs)
    lost = convert(found.trace, args.output)
    trace, watched, alone = found.trace, *found.seconds
    if args.json:
        print_json(
            {
                "path": str(args.output),
                "model": found.runs[0][0].model,
                "synthetic": trace.synthetic,
                "iterations": trace.n_iterations,
                "prompt_tokens": found.runs[0][0].prompt_tokens,
                "ids": list(found.runs[0][0].ids),
                "sha256": found.runs[0][0].sha256,
                "fingerprint": trace.fingerprint,
                "token_seconds_watched": watched,
                "token_seconds_alone": alone,
                "overhead": found.overhead,
            }
        )
        return 0
    say(
        f"wrote {args.output}: {trace.n_iterations} iterations of {len(trace.layers)} layers, {trace.k} of"
        f" {trace.n_experts} experts each, and the prompt's {found.runs[0][0].prompt_tokens} tokens apart",
        f"source: {trace.source}",
        f"watching cost {found.overhead - 1:+.1%}: the median token {watched * 1e3:.2f} ms watched,"
        f" {alone * 1e3:.2f} ms alone, {len(found.runs)} runs of each in turn, the same tokens in all",
        *lost,
    )
    return 0


def engine_ab(args: argparse.Namespace) -> int:
    """Measure what the page cache's admission is worth to the engine; 1 if a run does not count."""
    from dataclasses import replace  # noqa: PLC0415

    from pytest_moetier.engine.admission import measure_pairs, orders  # noqa: PLC0415

    with _lab(args) as lab:
        arm = replace(
            lab.plain_arm(),
            capacity_share=args.capacity,
            read_limit=parse_bytes(args.read_limit) if args.read_limit else 0,
            read_ahead_kb=args.read_ahead or lab.plain_arm().read_ahead_kb,
        )
        pairs = measure_pairs(lab, _ask(args), arm, orders(args.pairs, args.seed), _tell_run)
    good = all(pair.proved and pair.same_tokens for pair in pairs)
    ups = [pair.speed_up for pair in pairs]
    synthetic = pairs[0].admit.synthetic
    if args.json:
        print_json(
            {
                "model": pairs[0].admit.model,
                "synthetic": synthetic,
                "pairs": [_pair(pair) for pair in pairs],
                "speed_up": {"mean": fmean(ups), "low": min(ups), "high": max(ups)},
                "same_tokens": all(pair.same_tokens for pair in pairs),
                "proved": all(pair.proved for pair in pairs),
            }
        )
        return 0 if good else 1
    for at, pair in enumerate(pairs, 1):
        same = "the same tokens" if pair.same_tokens else "DIFFERENT TOKENS"
        say(f"pair {at}: admission {pair.speed_up:.2f}x, {same} ({pair.admit.sha256[:12]})")
    say(f"admission: {fmean(ups):.2f}x ({min(ups):.2f} to {max(ups):.2f}) on the decode, {len(pairs)} pairs")
    say("both arms hint what is chosen (WILLNEED); the time of dropping is in neither")
    say(*(["the model's weights are random: its routing is synthetic"] if synthetic else []))
    say("verdict: " + ("identical tokens, every run proved" if good else "INVALID: see above"))
    return 0 if good else 1


def _pair(pair: Pair) -> dict[str, object]:
    return {
        "speed_up": pair.speed_up,
        "same_tokens": pair.same_tokens,
        "proved": pair.proved,
        **{
            name: {
                "order": run.order,
                "sha256": run.sha256,
                "tokens_per_second": run.tokens_per_second,
                "bytes_per_token": run.bytes_per_token,
                "majflt_per_token": run.majflt_per_token,
                "broken": [one.name for one in proof.broken],
                "unobserved": list(proof.unobserved),
            }
            for name, run, proof in (("admit", pair.admit, pair.proofs[0]), ("drop", pair.drop, pair.proofs[1]))
        },
    }


def _tell_run(run: EngineRun, proof: Proof) -> None:
    read = run.bytes_per_token
    note(
        f"{run.arm.id}: {run.tokens_per_second:.2f} tokens/s,"
        f" {'device not counted' if read is None else format_bytes(read) + '/token'},"
        f" {run.majflt_per_token:.0f} major faults/token"
        + "".join(f"; BROKEN {one.name}: {one.observed} (expected {one.expected})" for one in proof.broken)
    )


@contextmanager
def _lab(args: argparse.Namespace) -> Iterator[EngineLab]:
    """Hold the host and a lab for the model that was named, once the model and the engine have been looked at."""
    from pytest_moetier.engine.lab import opened  # noqa: PLC0415
    from pytest_moetier.engine.selftest import check_engine  # noqa: PLC0415
    from pytest_moetier.host.restore import HostLock, Journal, recover  # noqa: PLC0415
    from pytest_moetier.pool.opened import inspect_pool  # noqa: PLC0415

    _prompt(args)
    if args.tokens < 1:
        raise InputError(f"{args.tokens} tokens are to be generated", "at least one")
    inspect_pool(args.model)
    check_engine()
    with HostLock(args.wait):
        for line in recover():
            note(line)
        with Journal() as journal, opened(args.model, journal) as lab:
            yield lab


def _ask(args: argparse.Namespace) -> Ask:
    from pytest_moetier.engine.lab import Ask  # noqa: PLC0415

    return Ask(prompt=_prompt(args), tokens=args.tokens, context=args.context, threads=args.threads)


def _prompt(args: argparse.Namespace) -> tuple[int, ...] | str:
    if args.prompt_ids is None:
        return str(args.prompt)
    if not _IDS.fullmatch(args.prompt_ids):
        raise InputError(f"--prompt-ids {args.prompt_ids!r}", "token ids with commas between them, such as 1,2,3")
    return tuple(int(one) for one in re.findall(r"\d+", args.prompt_ids))


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is no share, such as 50%") from error
    if not 0 < value <= 10:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1000%")
    return value


def _positive(text: str) -> int:
    if (value := number(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _asks(parser: argparse.ArgumentParser, pairs: int) -> None:
    """Add what the engine is asked."""
    parser.add_argument(
        "model", type=Path, help="a GGUF file (of several: the first), or the folder of its copy in an image"
    )
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="for a model with a vocabulary")
    prompt.add_argument("--prompt-ids", metavar="ID,ID,...", help="token ids, for any model")
    parser.add_argument("--tokens", type=number, default=32, help="to generate (default: 32)")
    parser.add_argument("--context", type=_positive, default=512, help="tokens that the context holds (default: 512)")
    parser.add_argument("--threads", type=_positive, default=2, help="of the computation (default: 2)")
    parser.add_argument("--pairs", type=_positive, default=pairs, help=f"runs of each of the two (default: {pairs})")
    parser.add_argument("--wait", type=number, default=0, metavar="SECONDS", help="for another bench to end")


def add_engine(commands: Commands) -> None:
    """Add the group's commands."""
    add_command(commands, "check", engine_check)
    model = add_command(commands, "model", engine_model)
    model.add_argument("preset", choices=("tiny", "pressure"), help="its size: about 0.6 MB, or 0.9 GB in Q8_0")
    model.add_argument("path", type=Path, help="the file, NAME.gguf")
    model.add_argument("--arch", choices=("olmoe", "qwen3moe"), default="olmoe", help="architecture (default: olmoe)")
    model.add_argument(
        "--quantisation", choices=("q8_0", "q4_0"), default="q8_0", help="of its weights (default: q8_0)"
    )
    model.add_argument("--seed", type=number, default=1234, help="of its weights (default: 1234)")
    capture = add_command(commands, "capture", engine_capture)
    _asks(capture, 2)
    capture.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the trace, NAME.jsonl")
    ab = add_command(commands, "ab", engine_ab)
    _asks(ab, 3)
    ab.add_argument(
        "--capacity",
        type=_share,
        default=0.0,
        metavar="SHARE",
        help="page cache, of the experts' bytes (default: no wall)",
    )
    ab.add_argument("--read-limit", metavar="SIZE", help="bytes a second that the device may be read at, such as 148MB")
    ab.add_argument("--read-ahead", type=_positive, metavar="KIB", help="of the device meanwhile (default: as it is)")
    ab.add_argument("--seed", type=number, default=0, help="of the order of the runs (default: 0)")
