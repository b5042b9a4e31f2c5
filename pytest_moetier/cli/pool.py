"""``moetier pool``: expert pools on a device."""

from __future__ import annotations

import argparse
import os
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_moetier.cell import FILESYSTEMS
from pytest_moetier.cli.parsers import Commands, add_command, number
from pytest_moetier.cli.say import note, print_json, progress, say
from pytest_moetier.units import PAGE_BYTES, format_bytes, parse_bytes

if TYPE_CHECKING:  # they import yaml and numpy
    from pytest_moetier.pool.manifest import Manifest
    from pytest_moetier.pool.synthetic import Created


def pool_create(args: argparse.Namespace) -> int:
    """Create a pool, or finish one that was begun; of a model, copy it into an image."""
    from pytest_moetier.pool.checkpoint import find_model  # noqa: PLC0415

    if os.sep in args.profile or find_model(Path(args.profile)) is not None:
        return _copy_model(args)
    from pytest_moetier.pool.profiles import proportions, resolve_shape  # noqa: PLC0415
    from pytest_moetier.pool.synthetic import choose_store, create_pool  # noqa: PLC0415

    shape = resolve_shape(
        args.profile, layers=args.layers, experts=args.experts, k=args.k, expert_bytes=args.expert_bytes
    )
    store, why = choose_store("plain" if args.plain else args.store, args.filesystem)
    tell = note if args.json else say
    spine_bytes = -(-parse_bytes(args.spine) // PAGE_BYTES) * PAGE_BYTES if args.spine else 0
    spine = [f"spine: {format_bytes(spine_bytes)} ({spine_bytes} bytes)"] if spine_bytes else []
    throwaway = ["throw-away: measurements may write to it"] if args.throwaway else []
    for line in (*proportions(shape), *spine, f"layout: {args.layout}", f"store: {store} ({why})", *throwaway):
        tell(line)
    with progress("writing", "bytes") as show:
        made = create_pool(
            args.path,
            shape,
            layout=args.layout,
            store=store,
            seed=args.seed,
            spine_bytes=spine_bytes,
            throwaway=args.throwaway,
            filesystem=args.filesystem,
            progress=show,
        )
    _tell_made(args, made)
    return 0


def _copy_model(args: argparse.Namespace) -> int:
    from pytest_moetier.errors import InputError  # noqa: PLC0415
    from pytest_moetier.host.restore import Journal, recover  # noqa: PLC0415
    from pytest_moetier.pool.copied import image_of  # noqa: PLC0415

    given = [word for word in ("layers", "experts", "k", "expert_bytes", "spine") if getattr(args, word) is not None]
    given += ["throwaway"] if args.throwaway else []
    if given or args.plain or args.store == "plain":
        raise InputError(
            f"{args.profile} is to be copied, with --{(given or ['plain'])[0].replace('_', '-')}",
            "an image of the model as it is",
            "leave the option out; in place, a model is a pool as it is: --moetier-pool MODEL",
        )
    recover()
    with Journal() as journal, progress("copying", "bytes") as show:
        made = image_of(Path(args.profile), args.path, journal, filesystem=args.filesystem, progress=show)
    _tell_made(args, made)
    return 0


def _tell_made(args: argparse.Namespace, made: Created) -> None:
    """Print what was created."""
    if args.json:
        print_json(
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
                "spine_bytes": made.manifest.spine_bytes,
                "throwaway": made.manifest.throwaway,
                "layout": made.manifest.layout,
                "store": made.manifest.store,
                "filesystem": made.manifest.filesystem,
                "kept_bytes": made.kept_bytes,
                "written_bytes": made.written_bytes,
                "seconds": made.seconds,
            }
        )
    elif made.written_bytes:
        kept = f" ({format_bytes(made.kept_bytes)} kept from before)" if made.kept_bytes else ""
        rate = format_bytes(made.written_bytes / max(made.seconds, 1e-9))
        say(f"wrote {format_bytes(made.written_bytes)} in {made.seconds:.1f} s, {rate}/s{kept}: {made.path}")
    else:
        say(f"already whole: {made.path}")


def pool_check(args: argparse.Namespace) -> int:
    """Verify a pool; 1 when it has a fault."""
    from pytest_moetier.pool.check import check_pool  # noqa: PLC0415
    from pytest_moetier.pool.opened import open_pool  # noqa: PLC0415

    with open_pool(args.path, check_files=False) as pool, progress("checking", "experts") as show:
        found = check_pool(pool.root, pool.manifest, full=args.full, seed=args.seed, progress=show)
    if args.json:
        print_json(
            {
                "path": str(args.path),
                "experts_checked": found.experts_checked,
                "experts": found.experts,
                "bytes_checked": found.bytes_checked,
                "spine_bytes_checked": found.spine_bytes_checked,
                "faults": list(found.faults),
            }
        )
    else:
        say(*(f"fault: {fault}" for fault in found.faults))
        state = "sound" if not found.faults else "NOT what its manifest says"
        spine = f", {format_bytes(found.spine_bytes_checked)} of the spine" if found.spine_bytes_checked else ""
        say(
            f"{args.path} is {state}: every page of {found.experts_checked} of {found.experts} experts "
            f"({format_bytes(found.bytes_checked)}){spine} and the size of every file checked"
        )
    return 1 if found.faults else 0


def pool_map(args: argparse.Namespace) -> int:
    """Print where experts are: layer, expert, file, offset, length; of a model, what it is before that."""
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
        found: dict[str, object] = {"path": str(args.path)}
        found |= {"model": _model_json(manifest)} if manifest.checkpoint is not None else {}
        print_json(found | {"extents": [dict(zip(names, row, strict=True)) for row in rows]})
        return 0
    say(*_model_lines(manifest))
    say("layer\texpert\tfile\toffset\tlength", *("\t".join(map(str, row)) for row in rows))
    return 0


def _model_json(manifest: Manifest) -> dict[str, object]:
    found = manifest.checkpoint
    if found is None:
        return {}
    return {
        "name": manifest.name,
        "kind": found.kind,
        "architecture": manifest.profile,
        "synthetic": manifest.synthetic,
        "pool_id": f"0x{manifest.pool_id:016x}",
        "layers": list(manifest.layers),
        "experts": manifest.experts,
        "k": manifest.k,
        "expert_bytes": list(manifest.expert_bytes),
        "quantisation": [one.quantisation for one in found.layers],
        "total_bytes": manifest.total_bytes,
        "iteration_bytes": manifest.iteration_bytes,
        "spine_bytes": manifest.spine_bytes,
        "shared_expert_bytes": found.shared_bytes,
        "unused_bytes": found.unused_bytes,
        "files": [{"file": file.path, "bytes": file.size_bytes} for file in found.files],
    }


def _model_lines(manifest: Manifest) -> list[str]:
    """Return what a model is, in lines that a reader of the table can pass over; [] for a pool of ours."""
    found = manifest.checkpoint
    if found is None:
        return []
    layers = zip(manifest.layers, manifest.expert_bytes, found.layers, strict=True)
    alike = groupby(layers, lambda one: (one[1], one[2].quantisation))
    synthetic = ", synthetic: its weights are random" if manifest.synthetic else ""
    files = f"{len(found.files)} file{'s' if len(found.files) > 1 else ''}"
    stored, experts, once = map(format_bytes, (manifest.stored_bytes, manifest.total_bytes, manifest.iteration_bytes))
    shape = f"{len(manifest.layers)} layers with E = {manifest.experts} experts, k = {manifest.k}"
    lines = [f"{manifest.name}: {manifest.profile}, {found.kind} in {files}, {stored}{synthetic}"]
    lines.append(f"{shape}: {experts}, {once} an iteration")
    for (size, quantisation), run in alike:
        numbers = [one[0] for one in run]
        span = f"layer {numbers[0]}" if len(numbers) == 1 else f"layers {numbers[0]} to {numbers[-1]}"
        lines.append(f"{span}: {format_bytes(size)} ({size} bytes) an expert, {quantisation}")
    unused = f"; {format_bytes(found.unused_bytes)} for further tokens is left out" if found.unused_bytes else ""
    shared = f"shared experts {format_bytes(found.shared_bytes)}" if found.shared_bytes else "no shared experts"
    lines.append(f"spine: {format_bytes(manifest.spine_bytes)}, of it {shared}{unused}")
    return [f"# {line}" for line in lines]


def add_pool(pool: Commands) -> None:
    """Add the commands of ``moetier pool``."""
    one = add_command(pool, "create", pool_create)
    one.add_argument(
        "profile",
        help="default, olmoe-1b-7b, qwen3-30b-a3b, gemma-4-26b-a4b, deepseek-v3, kimi-k3 or custom; "
        "or a model (a GGUF file, a folder), which is copied into an image",
    )
    one.add_argument("path", type=Path, help="a folder, new or empty, or with an unfinished pool of the same shape")
    one.add_argument("--layers", type=number, help="fewer layers than the profile's")
    one.add_argument("--experts", type=number, help="experts per layer, for custom")
    one.add_argument("--k", type=number, help="experts chosen per layer and pass, for custom")
    one.add_argument("--expert-bytes", metavar="SIZE", help="bytes of one expert, such as 1MiB; whole 4 KiB pages")
    one.add_argument("--layout", choices=("file_per_expert", "one_file"), default="file_per_expert")
    one.add_argument(
        "--store", choices=("auto", "image", "plain"), default="auto", help="auto: an image where root allows"
    )
    one.add_argument(
        "--filesystem", choices=FILESYSTEMS, default=FILESYSTEMS[0], help="of the image (default %(default)s)"
    )
    one.add_argument("--plain", action="store_true", help="the same as --store plain")
    one.add_argument("--seed", type=number, default=0, help="of the pool's bytes (default 0)")
    one.add_argument("--spine", metavar="SIZE", help="a file of dense weights beside the experts; in whole 4 KiB pages")
    one.add_argument("--throwaway", action="store_true", help="made to be written to by measurements; never else")
    one = add_command(pool, "check", pool_check)
    one.add_argument("path", type=Path)
    one.add_argument("--full", action="store_true", help="every expert and the whole spine, not a sample")
    one.add_argument("--seed", type=number, default=0, help="of the sample (default 0)")
    one = add_command(pool, "map", pool_map)
    one.add_argument("path", type=Path, help="a pool's folder, or a model: a file of it, or its folder")
    one.add_argument("--layer", type=number)
    one.add_argument("--expert", type=number)
