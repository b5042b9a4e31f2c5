"""The shapes of real models' expert pools, and scaling one to a size that fits (paper section 2).

Scaling keeps what the cache sees in proportion: experts per layer, k, and with them pool / iteration = E / k. It takes
fewer layers or smaller experts, never fewer experts per layer. Sizes are whole pages of 4096 bytes, rounded up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_moetier.errors import InputError
from pytest_moetier.units import PAGE_BYTES, format_bytes, parse_bytes

MIB = 1 << 20
PAPER_SHARES = (0.044, 0.088, 0.177, 0.309)  # 64, 128, 256 and 448 GB of the paper's pool (Table 2)

_LIMITS = {"layers": 1 << 16, "experts": 1 << 16, "k": 1 << 16}


def _pages(size: float) -> int:
    return -(-int(size) // PAGE_BYTES) * PAGE_BYTES


def _more_bits(layer: int, layers: int) -> bool:
    """llama.cpp's rule for which layers of a Q4_K_M file get the wider type for their down projection."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _gguf(inner: int, hidden: int, layers: int, bits: tuple[float, float, float]) -> tuple[int, ...]:
    """Return bytes per layer: gate and up at bits[0] a weight, down at bits[1], or bits[2] in layers that get more."""
    matrix = inner * hidden
    sizes = (2 * matrix * bits[0] / 8 + matrix * bits[2 if _more_bits(at, layers) else 1] / 8 for at in range(layers))
    return tuple(_pages(size) for size in sizes)


@dataclass(frozen=True, slots=True)
class Profile:
    """A model's pool: ``expert_bytes()`` per layer, and in ``derived`` how these sizes come about."""

    layers: int
    experts: int
    k: int
    expert_bytes: Callable[[], tuple[int, ...]]
    derived: str


PROFILES = {
    "olmoe-1b-7b": Profile(
        16, 64, 8, lambda: (_pages(3 * 2048 * 1024 * 4.5 / 8),) * 16, "3 matrices of 2048 x 1024 at 4.5 bits (Q4_0)"
    ),
    "qwen3-30b-a3b": Profile(
        48,
        128,
        8,
        lambda: _gguf(768, 2048, 48, (4.5, 4.5, 6.5625)),
        "3 matrices of 2048 x 768 as Q4_K_M: down is Q6_K in 24 layers, else Q4_K; 17.6 GB in all",
    ),
    "gemma-4-26b-a4b": Profile(
        30,
        128,
        8,
        lambda: _gguf(704, 2816, 30, (4.5, 5.5, 8.5)),
        "3 matrices of 2816 x 704 as Q4_K_M: down is Q8_0 in 14 layers, else Q5_0 (704 is no multiple of 256)",
    ),
    "deepseek-v3": Profile(
        61,
        256,
        8,
        lambda: (_pages(3 * 7168 * 2048 * (1 + 4 / 128**2)),) * 61,
        "3 matrices of 7168 x 2048 in FP8 with a 4-byte scale per 128 x 128 block",
    ),
    "kimi-k3": Profile(92, 896, 16, lambda: (17_547_264,) * 92, "17.5 MB an expert as published: 4284 pages"),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of one pool.

    Attributes:
        name: what the user asked for (``default``).
        profile: the model it is scaled from, or ``custom``.
        experts: experts per layer (E).
        k: experts chosen per layer and pass.
        expert_bytes: bytes of one expert, per layer; whole pages.
        derived: how the sizes come about.
    """

    name: str
    profile: str
    experts: int
    k: int
    expert_bytes: tuple[int, ...]
    derived: str

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.expert_bytes)

    @property
    def total_bytes(self) -> int:
        """Bytes of all experts."""
        return self.experts * sum(self.expert_bytes)

    @property
    def iteration_bytes(self) -> int:
        """Bytes that one plain iteration reads: k experts of every layer."""
        return self.k * sum(self.expert_bytes)


def _spread(sizes: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Return the sizes of ``layers`` layers spread over all of ``sizes``."""
    if layers == 1:
        return sizes[:1]
    last = len(sizes) - 1
    return tuple(sizes[(2 * at * last + layers - 1) // (2 * (layers - 1))] for at in range(layers))


def _check(name: str, value: int) -> int:
    if not 1 <= value <= _LIMITS[name]:
        raise InputError(f"{name} is {value}", f"1 to {_LIMITS[name]}")
    return value


def _size(text: str | None) -> int | None:
    if text is None:
        return None
    size = parse_bytes(text)
    if size % PAGE_BYTES:
        raise InputError(f"expert size {text} is {size} bytes", "whole pages: a multiple of 4096 bytes")
    return size


def resolve_shape(
    profile: str,
    *,
    layers: int | None = None,
    experts: int | None = None,
    k: int | None = None,
    expert_bytes: str | None = None,
) -> Shape:
    """Return the shape that a profile and the user's own dimensions name.

    Args:
        profile: one of ``PROFILES``, ``default`` (kimi-k3 scaled to 4 layers of 1 MiB experts) or ``custom``.
        layers: fewer layers than the profile's, spread over its depth.
        experts: for ``custom``; a profile's own is kept, and another is refused.
        k: likewise.
        expert_bytes: one size for all layers, as ``parse_bytes`` reads it.

    Raises:
        InputError: an unknown profile, a dimension that is missing, out of range, or not to be scaled.
    """
    size = _size(expert_bytes)
    if profile == "custom":
        if layers is None or experts is None or k is None or size is None:
            raise InputError("a custom pool needs all dimensions", "--layers, --experts, --k and --expert-bytes")
        if _check("k", k) > _check("experts", experts):
            raise InputError(f"k = {k} of {experts} experts", "k at most the experts per layer")
        return Shape("custom", "custom", experts, k, (size,) * _check("layers", layers), "as given")
    origin = "kimi-k3" if profile == "default" else profile
    if origin not in PROFILES:
        raise InputError(f"no pool profile {profile!r}", "one of " + ", ".join(["default", *PROFILES, "custom"]))
    known = PROFILES[origin]
    for name, asked, own in (("experts", experts, known.experts), ("k", k, known.k)):
        if asked is not None and asked != own:
            raise InputError(
                f"--{name} {asked} with profile {profile}, whose {name} is {own}",
                "scaling by fewer layers or smaller experts, which keeps what a cache sees in proportion",
                "give all dimensions with profile custom",
            )
    if profile == "default":
        layers, size = layers or 4, size or MIB
    count = known.layers if layers is None else _check("layers", layers)
    if count > known.layers:
        raise InputError(f"--layers {count} with profile {profile}", f"at most its {known.layers}")
    sizes = (size,) * count if size else _spread(known.expert_bytes(), count)
    derived = f"scaled to {format_bytes(size, binary=True)} an expert" if size else known.derived
    return Shape(profile, origin, known.experts, known.k, sizes, derived)


def proportions(shape: Shape) -> tuple[str, ...]:
    """Return the dimensionless numbers that scaling keeps, one line each, for printing."""
    sizes = sorted(set(shape.expert_bytes))
    each = " or ".join(f"{format_bytes(size, binary=True)} ({size} bytes)" for size in sizes)
    per_iteration = (
        f"one plain iteration = {format_bytes(shape.iteration_bytes)}, pool / iteration = {shape.experts / shape.k:.4g}"
    )
    lines = [
        f"pool {shape.name} (from {shape.profile}): {shape.layers} layers x {shape.experts} experts x {each}",
        f"sizes: {shape.derived}",
        f"E = {shape.experts}, k = {shape.k}, pool = {format_bytes(shape.total_bytes)}, {per_iteration}",
    ]
    for share in PAPER_SHARES:
        capacity = share * shape.total_bytes
        lines.append(
            f"C / pool = {share:.1%}: C = {format_bytes(capacity)}, "
            f"C / iteration = {capacity / shape.iteration_bytes:.3g}, "
            f"{share * shape.experts:.0f} experts per layer"
        )
    return tuple(lines)
