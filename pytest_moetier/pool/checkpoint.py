"""A real model's files -> the manifest of a pool: what GGUF and safetensors have in common (paper section 4).

Only headers are read. Experts lie where the model's maker put them: at any offset, in several pieces, next to bytes
that are no experts.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_moetier.errors import InputError
from pytest_moetier.pool.manifest import CHECKPOINT, Checkpoint, Extent, Manifest, Mapped, PoolFile, Slab, joined

AGAIN = "download or convert it again"
INDEX_SUFFIX = ".safetensors.index.json"
_NO_MODEL = "a .gguf file, or a folder with one GGUF or safetensors model"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor, and whose bytes it holds.

    Attributes:
        name: as the file has it.
        file: index into the model's files.
        offset: of its first byte in the file.
        length: in bytes.
        quantisation: of its values.
        layer: of the routed experts that it belongs to; None for the spine.
        expert: whose alone it is; None for one that holds all experts of the layer.
        merged: how many experts it holds one after another; 0 for one.
        shared: it belongs to a shared expert.
        unused: it belongs to a layer that predicts further tokens, which plain decoding never reads.
    """

    name: str
    file: int
    offset: int
    length: int
    quantisation: str
    layer: int | None
    expert: int | None
    merged: int
    shared: bool = False
    unused: bool = False

    @property
    def extent(self) -> Extent:
        """Where it is."""
        return Extent(self.file, self.offset, self.length)


@dataclass(frozen=True, slots=True)
class Routing:
    """Experts of a layer, and how many of them a pass chooses."""

    experts: int
    k: int


def manifest_of(  # noqa: PLR0913  (what both formats tell of a model, by keyword)
    *,
    kind: str,
    path: Path,
    names: tuple[str, ...],
    profile: str,
    files: tuple[PoolFile, ...],
    tensors: Sequence[Tensor],
    routing: Routing,
    digests: Iterable[bytes],
    synthetic: bool = False,
) -> Manifest:
    """Return the manifest of a model of these tensors.

    Args:
        kind: ``gguf`` or ``safetensors``.
        path: for messages.
        names: what to call it, the first that is not empty.
        profile: its architecture.
        files: its files.
        tensors: all of them.
        routing: as the model states it.
        digests: of each file's header.
        synthetic: its weights are made up.

    Raises:
        InputError: it has no routed experts, or they are not as it states.
    """
    by_layer: dict[int, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        if tensor.layer is not None and not tensor.unused:
            by_layer[tensor.layer].append(tensor)
    if not by_layer:
        raise InputError(
            f"{path} has {len(tensors)} tensors, none of them a routed expert's by its name",
            "ffn_*_exps or ffn_*.E in a GGUF, experts.E.* or experts.* in safetensors",
            "give a model with routed experts",
        )
    layers = tuple(sorted(by_layer))
    mapped = tuple(_layer(path, layer, by_layer[layer], routing.experts) for layer in layers)
    spine = [tensor for tensor in tensors if tensor.layer is None and not tensor.unused]
    parts = [*digests, *(f"{file.path} {file.size_bytes}".encode() for file in files)]
    return Manifest(
        name=plain_name(*names),
        profile=plain_name(profile),
        pool_id=int.from_bytes(hashlib.sha256(b"\0".join(parts)).digest()[:8], "little"),
        layers=layers,
        experts=routing.experts,
        k=routing.k,
        expert_bytes=tuple(one.expert_bytes for one in mapped),
        layout=CHECKPOINT,
        folder="",
        stamped=False,
        synthetic=synthetic,
        checkpoint=Checkpoint(
            kind=kind,
            files=files,
            layers=mapped,
            spine=joined(tensor.extent for tensor in spine if tensor.length),
            shared_bytes=sum(tensor.length for tensor in spine if tensor.shared),
            unused_bytes=sum(tensor.length for tensor in tensors if tensor.unused),
        ),
    )


def plain_name(*names: str) -> str:
    """Return the first name that is not empty, in the letters that a pool's name may have."""
    found = (re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:64] for name in names)
    return next((name for name in found if name), "model")


def _layer(path: Path, layer: int, tensors: list[Tensor], experts: int) -> Mapped:
    """Return where the experts of one layer are, in the order of the file."""
    tensors = sorted(tensors, key=lambda one: (one.file, one.offset))
    words = "+".join(sorted({one.quantisation for one in tensors}))
    for one in tensors:
        if one.expert is None and (one.merged != experts or one.length % experts):
            raise InputError(
                f"{path}: tensor {one.name} holds {one.merged} experts in {one.length} bytes",
                f"{experts} of equal size, as the model states",
                AGAIN,
            )
    shares = [(one, one.length // experts) for one in tensors if one.expert is None]
    slabs = tuple(Slab(one.file, one.offset, size, size) for one, size in shares if size)
    singles: dict[int, list[Extent]] = defaultdict(list)
    for one in tensors:
        if one.expert is not None and one.length:
            singles[one.expert].append(one.extent)
    if not singles:
        return Mapped(words, slabs)
    _refuse_gaps(path, layer, singles, experts)
    listed = tuple(
        joined([*singles[expert], *(Extent(one.file, one.offset + expert * one.stride, one.length) for one in slabs)])
        for expert in range(experts)
    )
    return Mapped(words, listed=listed)


def _refuse_gaps(path: Path, layer: int, singles: dict[int, list[Extent]], experts: int) -> None:
    missing = [expert for expert in range(experts) if expert not in singles]
    beyond = [expert for expert in singles if expert >= experts]
    if missing or beyond:
        seen = f"has no expert {missing[0]}" if missing else f"has an expert {max(beyond)}"
        raise InputError(f"{path}: layer {layer} {seen}", f"experts 0 to {experts - 1}, as the model states", AGAIN)
    sizes = {expert: sum(one.length for one in parts) for expert, parts in singles.items()}
    odd = next((expert for expert in range(experts) if sizes[expert] != sizes[0]), None)
    if odd is not None:
        raise InputError(
            f"{path}: in layer {layer} expert 0 has {sizes[0]} bytes and expert {odd} has {sizes[odd]}",
            "experts of one size within a layer",
            AGAIN,
        )


def find_model(path: Path) -> Path | None:
    """Return the file that a model at ``path`` is mapped from: a GGUF file, an index, or a safetensors file.

    None where ``path`` is no model: neither such a file nor a folder that holds one.

    Raises:
        InputError: a folder with several models.
        OSError: ``path`` cannot be looked at.
    """
    if path.is_file():
        return path if path.name.endswith((".gguf", ".safetensors", INDEX_SUFFIX)) or _is_gguf(path) else None
    if not path.is_dir():
        return None
    inside = sorted(one for one in path.iterdir() if one.is_file())
    models: dict[str, Path] = {}
    for one in inside:  # a projector for images is no model of its own
        if one.name.endswith(".gguf") and not one.name.startswith("mmproj"):
            models.setdefault(re.sub(r"-\d{5}-of-\d{5}\.gguf$", "", one.name), one)
    indices = [one for one in inside if one.name.endswith(INDEX_SUFFIX)]
    found = [*models.values(), *(indices or [one for one in inside if one.name.endswith(".safetensors")])]
    if len(found) > 1:
        raise InputError(
            f"{path} holds {len(found)} models: {', '.join(one.name for one in found[:4])}", "one", "name one's file"
        )
    return found[0] if found else None


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def map_checkpoint(path: Path) -> Manifest:
    """Return the manifest of a real model in place: nothing but headers is read.

    Args:
        path: a .gguf file (any of a model's shards), or a folder with one GGUF or safetensors model.

    Raises:
        InputError: a dense model, a missing or truncated file, an unknown layout, or a foreign file.
    """
    try:
        model = find_model(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", _NO_MODEL, f"ls -ld {path}") from error
    if model is None:
        seen = "no model is in it" if path.is_dir() else "it is no model" if path.exists() else "nothing is there"
        raise InputError(f"{path}: {seen}", _NO_MODEL, f"ls -l {path}")
    if model.name.endswith((".safetensors", INDEX_SUFFIX)):
        from pytest_moetier.pool.safetensors import map_safetensors  # noqa: PLC0415  (it needs what is defined here)

        return map_safetensors(model)
    from pytest_moetier.pool.gguf import map_gguf  # noqa: PLC0415  (as above)

    return map_gguf(model)


def model_root(path: Path) -> Path:
    """Return the folder that the files of the model at ``path`` are relative to: where its links lead, if it has any.

    Downloads are often links into a folder of blobs, all of a model in one.
    """
    return (find_model(path) or path).resolve().parent


def pool_file(path: Path, size: int, root: Path) -> PoolFile:
    """Return one of a model's files, relative to its root.

    Raises:
        InputError: it is a link to another folder than the rest.
    """
    real = path.resolve()
    if real.parent != root:
        raise InputError(f"{path} leads to {real}", f"a file in {root}, as the model's other files", "copy it there")
    return PoolFile(real.name, size)
