"""Seeded router traces that match the published statistics of real models (paper section 3, Table 1 and Figure 1).

Each expert of a layer has a Gaussian logit, the sum of five parts and noise: its popularity P, common to all domains;
its popularity D in this domain; and three drifts, S slow, M medium and F fast, each a first-order process with its own
time constant. The k largest logits of a pass are the selection. How much of the variance is not noise grows with depth,
from g0 at the first layer to 1 at the last. Popular experts are lifted (hot) and the least popular ones sunk (cold),
which sets the head of the popularity curve and the coverage of the pool.

Bit-identical on every machine: see ``splitmix``; square roots are correctly rounded by IEEE 754, and every other step
is one float64 multiplication, division or addition at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pytest_moetier.errors import InputError
from pytest_moetier.trace import splitmix
from pytest_moetier.trace.records import NORMAL, SPEC_ACCEPT, SPEC_FALLBACK, Trace, make_trace
from pytest_moetier.trace.splitmix import F64, U64

ORDERS = ("id", "score")
DEFAULT_ITERATIONS = 285

_SHARE_CAP = 0.985
_MIN_DOMAIN_SHARE = 0.005
_HOT_ABOVE = 1.9
_COLD_SHIFT = -1.5
_POPULAR_ABOVE = 1.6

# the streams, by role; a stream's key is (seed, layer, role) or (seed, layer, domain, role)
_COMMON, _DOMAIN, _TYPES = 1, 2, 3
_SLOW, _MEDIUM, _FAST, _NOISE, _TAIL = 4, 5, 6, 7, 8


@dataclass(frozen=True, slots=True)
class Domain:
    """What a prompt's domain changes: its affinity to the common popularity, a multiplier of all shares, and its types.

    Attributes:
        affinity: factor of the common popularity's share.
        multiplier: factor of every share.
        types: (iterations, spec_accept, spec_fallback) as published or assumed; scaled to the iterations asked for.
    """

    index: int
    affinity: float
    multiplier: float
    types: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Preset:
    """The parameters fitted to one model.

    Attributes:
        layers: MoE layers of the model.
        experts: experts per layer (E).
        k: experts chosen per layer and pass.
        shares: variance shares P, D, S, M, F at full depth; the rest to 1 is noise.
        taus: time constants of S, M and F, in passes.
        lift: slope by which logits of popular experts are raised (0: none).
        depth: g0 and x0 of the depth curve.
        hot: slope of the hot term; scaled by sqrt(g) and the affinity where ``hot_scaled``.
        cold: the share of each layer's experts, times g, that is sunk.
        tail: noise is multiplied by this with probability 1/16 (1: plain normal noise).
        note: what the user should know about the fit.
    """

    layers: int
    experts: int
    k: int
    shares: tuple[float, float, float, float, float]
    taus: tuple[float, float, float]
    lift: float
    depth: tuple[float, float]
    hot: float
    hot_scaled: bool
    cold: float
    tail: float
    domains: dict[str, Domain]
    note: str


KIMI_DOMAINS = {
    # the types of prose are the published counts; those of the other three are assumed
    "prose": Domain(0, 1.6, 1.0, (285, 14, 23)),
    "code": Domain(1, 1.6, 0.985, (242, 57, 5)),
    "math": Domain(2, 0.3, 1.02, (290, 9, 5)),
    "chat": Domain(3, 0.1, 1.0, (263, 36, 5)),
}
# the other models were measured without speculation, and no affinities were fitted for them
PLAIN_DOMAINS = {name: Domain(index, 1.0, 1.0, (1, 0, 0)) for index, name in enumerate(KIMI_DOMAINS)}

_KIMI = Preset(
    layers=92,
    experts=896,
    k=16,
    shares=(0.0333, 0.1005, 0.1490, 0.4382, 0.2174),
    taus=(128.8, 5.88, 1.65),
    lift=1.058,
    depth=(0.114, 0.252),
    hot=0.959,
    hot_scaled=True,
    cold=0.245,
    tail=1.0,
    domains=KIMI_DOMAINS,
    note="fitted to the published statistics of Kimi-K3",
)
_QWEN = Preset(
    layers=48,
    experts=128,
    k=8,
    shares=(0.1836, 0.2273, 0.0125, 0.3903, 0.1161),
    taus=(88.38, 4.00, 3.88),
    lift=0.622,
    depth=(0.050, 0.301),
    hot=1.315,
    hot_scaled=False,
    cold=0.400,
    tail=1.464,
    domains=PLAIN_DOMAINS,
    note="fitted to the published statistics of Qwen3-30B-A3B",
)
_DEEPSEEK = Preset(
    layers=61,
    experts=256,
    k=8,
    shares=(0.0128, 0.1203, 0.0544, 0.5715, 0.1837),
    taus=(26.00, 2.77, 4.07),
    lift=0.998,
    depth=(0.171, 0.277),
    hot=0.506,
    hot_scaled=False,
    cold=0.110,
    tail=1.604,
    domains=PLAIN_DOMAINS,
    note="fitted to the published statistics of DeepSeek-V3",
)
_NEAREST = "not fitted: its own dimensions with the parameters of qwen3-30b-a3b, the nearest fitted model"
PRESETS = {
    "kimi-k3": _KIMI,
    "qwen3-30b-a3b": _QWEN,
    "deepseek-v3": _DEEPSEEK,
    "olmoe-1b-7b": replace(_QWEN, layers=16, experts=64, note=_NEAREST),
    "gemma-4-26b-a4b": replace(_QWEN, layers=30, note=_NEAREST),
}


@dataclass(frozen=True, slots=True)
class _Weights:
    """Amplitudes per layer, shape [layers, 1] each, and the process constants r and sqrt(1 - r^2) per drift."""

    popularity: F64
    domain: F64
    slow: F64
    medium: F64
    fast: F64
    noise: F64
    depth: F64
    keep: tuple[float, float, float]
    renew: tuple[float, float, float]


def _depth_share(preset: Preset, layers: int) -> F64:
    """Return g per layer, shape [layers, 1]: few layers are spread over the whole depth of the model."""
    g0, x0 = preset.depth
    spread = [index / (layers - 1) for index in range(layers)] if layers > 1 else [0.5]
    full = 1.0 - splitmix.exp(-1.0 / x0)
    curve = [g0 + (1.0 - g0) * (1.0 - splitmix.exp(-x / x0)) / full for x in spread]
    return np.array(curve, dtype=np.float64)[:, None]


def _weights(preset: Preset, domain: Domain, layers: int) -> _Weights:
    g = _depth_share(preset, layers)
    popular, offset, slow, medium, fast = (g * share for share in preset.shares)
    moved = popular * (1.0 - domain.affinity)
    shares = [popular * domain.affinity, np.maximum(offset + moved, _MIN_DOMAIN_SHARE), slow, medium, fast]
    shares = [share * domain.multiplier for share in shares]
    total = shares[0] + shares[1] + shares[2] + shares[3] + shares[4]
    capped = np.minimum(_SHARE_CAP / total, 1.0)
    shares = [share * capped for share in shares]
    noise = 1.0 - (shares[0] + shares[1] + shares[2] + shares[3] + shares[4])
    keep = [splitmix.exp(-1.0 / tau) for tau in preset.taus]
    renew = [math.sqrt(1.0 - r * r) for r in keep]
    popularity, own, slow, medium, fast = (np.sqrt(share) for share in shares)
    return _Weights(
        popularity=popularity,
        domain=own,
        slow=slow,
        medium=medium,
        fast=fast,
        noise=np.sqrt(noise),
        depth=g,
        keep=(keep[0], keep[1], keep[2]),
        renew=(renew[0], renew[1], renew[2]),
    )


def _type_counts(domain: Domain, iterations: int) -> tuple[int, int]:
    """Return (accepts, fallbacks), the published counts scaled to ``iterations`` and rounded half up."""
    base, accepts, fallbacks = domain.types
    accept, fallback = ((2 * count * iterations + base) // (2 * base) for count in (accepts, fallbacks))
    return min(accept, iterations), min(fallback, iterations - min(accept, iterations))


def iteration_kinds(domain: Domain, iterations: int, seed: int) -> list[int]:
    """Return the kind of each iteration: the scaled counts, shuffled."""
    accepts, fallbacks = _type_counts(domain, iterations)
    plain = iterations - accepts - fallbacks
    kinds = [SPEC_ACCEPT] * accepts + [SPEC_FALLBACK] * fallbacks + [NORMAL] * plain
    return [kinds[at] for at in splitmix.shuffled(iterations, splitmix.key(seed, _TYPES, domain.index))]


class _Router:
    """The layers' logits and their drift, one pass after another: arrays of shape [layers, experts]."""

    def __init__(self, preset: Preset, domain: Domain, layers: int, seed: int) -> None:
        self._preset = preset
        self._weights = weights = _weights(preset, domain, layers)
        numbers = np.arange(layers)
        common = splitmix.keys(splitmix.key(seed, _COMMON), numbers)
        base = splitmix.key(seed, _DOMAIN, domain.index)
        roles = (_DOMAIN, _SLOW, _MEDIUM, _FAST, _NOISE, _TAIL)
        self._streams: dict[int, U64] = {role: splitmix.keys(splitmix.key(base, role), numbers) for role in roles}
        experts = preset.experts
        popularity = splitmix.normals(common, 0, experts)
        self._bias = weights.popularity * popularity
        self._bias += weights.domain * splitmix.normals(self._streams[_DOMAIN], 0, experts)
        self._shift = self._hot_and_cold(popularity, domain)
        self._drift = [splitmix.normals(self._streams[role], 0, experts) for role in (_SLOW, _MEDIUM, _FAST)]
        spread = weights.popularity * weights.popularity + weights.domain * weights.domain
        self._popular = _POPULAR_ABOVE * np.sqrt(spread + weights.slow * weights.slow)
        self._passes = 0
        self._steps = 0

    def _hot_and_cold(self, popularity: F64, domain: Domain) -> F64:
        preset, g = self._preset, self._weights.depth
        scale = np.sqrt(g) * math.sqrt(domain.affinity) if preset.hot_scaled else np.ones_like(g)
        shift: F64 = np.maximum(popularity - _HOT_ABOVE, 0.0) * (preset.hot * scale)
        ranks = np.argsort(np.argsort(popularity, axis=1, kind="stable"), axis=1, kind="stable")
        shift[ranks < np.floor(preset.cold * g * preset.experts)] += _COLD_SHIFT
        return shift

    def _advance(self) -> None:
        self._steps += 1
        first = self._steps * self._preset.experts
        for index, role in enumerate((_SLOW, _MEDIUM, _FAST)):
            fresh = splitmix.normals(self._streams[role], first, self._preset.experts)
            self._drift[index] = self._drift[index] * self._weights.keep[index] + fresh * self._weights.renew[index]

    def _noise(self) -> F64:
        experts = self._preset.experts
        noise = splitmix.normals(self._streams[_NOISE], self._passes * experts, experts)
        if self._preset.tail != 1.0:
            rare = splitmix.words(self._streams[_TAIL], self._passes * experts, experts) < np.uint64(1 << 60)
            noise[rare] *= self._preset.tail
        return noise

    def choose(self, *, advance: bool) -> NDArray[np.uint16]:
        """Return the k best experts of each layer, best first; ``advance`` moves the drift on (never at first)."""
        if advance and self._passes:
            self._advance()
        weights, (slow, medium, fast) = self._weights, self._drift
        logits = self._bias + weights.slow * slow
        logits += self._preset.lift * np.maximum(logits - self._popular, 0.0)
        logits += self._shift
        logits += weights.medium * medium
        logits += weights.fast * fast
        logits += weights.noise * self._noise()
        self._passes += 1
        best = np.argsort(-logits, axis=1, kind="stable")[:, : self._preset.k]
        return best.astype(np.uint16)


def _resolve(preset: str, domain: str, experts: int | None, k: int | None, order: str) -> tuple[Preset, Domain]:
    if preset not in PRESETS:
        raise InputError(f"no generator preset {preset!r}", "one of " + ", ".join(PRESETS))
    chosen = PRESETS[preset]
    if domain not in chosen.domains:
        raise InputError(f"no domain {domain!r}", "one of " + ", ".join(chosen.domains))
    if order not in ORDERS:
        raise InputError(f"no order {order!r} within a pass", "one of " + ", ".join(ORDERS))
    other = (experts or chosen.experts) != chosen.experts or (k or chosen.k) != chosen.k
    if other:
        note = f"not fitted: {experts or chosen.experts} experts, k {k or chosen.k} with the parameters of {preset}"
        chosen = replace(chosen, experts=experts or chosen.experts, k=k or chosen.k, note=note)
    if not 1 <= chosen.k <= chosen.experts <= 1 << 16:
        raise InputError(f"k = {chosen.k} of {chosen.experts} experts", "1 <= k <= experts <= 65536")
    return chosen, chosen.domains[domain]


def synth_trace(  # noqa: PLR0913  (what a user may vary, by keyword)
    preset: str = "kimi-k3",
    *,
    layers: int | None = None,
    iterations: int = DEFAULT_ITERATIONS,
    domain: str = "prose",
    seed: int = 0,
    order: str = "id",
    experts: int | None = None,
    k: int | None = None,
) -> Trace:
    """Return a seeded synthetic trace; equal arguments give equal bits on every machine.

    Args:
        preset: a model of ``PRESETS``.
        layers: how many layers, spread over the model's whole depth; default: all of them.
        iterations: engine iterations; the published counts of accepts and fallbacks are scaled to it.
        domain: prose, code, math or chat.
        seed: any integer below 2^64.
        order: of the ids within a pass: ``id`` (ascending) or ``score`` (best first).
        experts: experts per layer, where they differ from the preset's: the fit then does not hold, as the source says.
        k: experts a pass, likewise.

    Raises:
        InputError: an unknown name, or a number out of range.
    """
    chosen, where = _resolve(preset, domain, experts, k, order)
    count = chosen.layers if layers is None else layers
    if not 1 <= count <= 1 << 16 or not 1 <= iterations < 1 << 32 or not 0 <= seed < 1 << 64:
        raise InputError(
            f"{count} layers, {iterations} iterations, seed {seed}", "layers 1-65536, iterations from 1, a 64-bit seed"
        )
    kinds = iteration_kinds(where, iterations, seed)
    router = _Router(chosen, where, count, seed)
    blocks: list[NDArray[np.uint16]] = []

    def choose(*, advance: bool = True) -> NDArray[np.uint16]:
        ids = router.choose(advance=advance)
        return np.sort(ids, axis=1) if order == "id" else ids

    for kind in kinds:
        if kind == SPEC_ACCEPT:
            blocks.append(np.concatenate([choose(), choose()], axis=1).ravel())
        elif kind == SPEC_FALLBACK:
            blocks += [choose().ravel(), choose(advance=False).ravel()]
        else:
            blocks.append(choose().ravel())
    rows = np.where(np.array(kinds) == SPEC_FALLBACK, 2 * count, count)
    record_kinds = np.repeat(np.array(kinds, dtype=np.uint8), rows)
    widths = np.where(record_kinds == SPEC_ACCEPT, 2 * chosen.k, chosen.k)
    described = (
        f"synthetic {preset}, {domain}, {count} of {chosen.layers} layers, seed {seed}, {order} order; {chosen.note}"
    )
    return make_trace(
        iteration=np.repeat(np.arange(iterations, dtype=np.uint32), rows),
        layer=np.tile(np.arange(count, dtype=np.uint16), len(record_kinds) // count),
        kind=record_kinds,
        offsets=np.concatenate([[0], np.cumsum(widths)]),
        experts=np.concatenate(blocks),
        n_experts=chosen.experts,
        k=chosen.k,
        synthetic=True,
        source=described,
    )
