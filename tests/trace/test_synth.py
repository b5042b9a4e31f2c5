"""The generator: equal bits from equal seeds, and the statistics that were published for the models it imitates."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_moetier.errors import InputError
from pytest_moetier.trace.records import Trace
from pytest_moetier.trace.synth import PRESETS, synth_trace


def reuse(trace: Trace, windows: tuple[int, ...]) -> list[float]:
    """Return for each window w the share of ids (from the second pass on) that one of the w passes before chose."""
    ages = []
    for layer in trace.layers:
        last = np.full(trace.n_experts, -(1 << 30))
        for at, ids in enumerate(trace.passes(layer)):
            if at:
                ages.append(at - last[ids])
            last[ids] = at
    age = np.concatenate(ages)
    return [float((age <= window).mean()) for window in windows]


def zipf_slope(trace: Trace) -> float:
    """Return the mean over layers of the least-squares slope of log count on log rank, over all ranks with a count."""
    slopes = []
    for layer in trace.layers:
        counts = np.bincount(trace.passes(layer).ravel())
        counts = np.sort(counts[counts > 0])[::-1]
        slopes.append(-np.polyfit(np.log(np.arange(1, len(counts) + 1)), np.log(counts), 1)[0])
    return float(np.mean(slopes))


@pytest.mark.parametrize(
    ("preset", "layers", "iterations", "domain", "seed", "fingerprint"),
    [
        ("kimi-k3", 4, 100, "prose", 0, "bcf6c0208a2cfdf7fff64caf1d76e7e57b2d0e36d248d7c55b08f3c57f903ccf"),
        ("kimi-k3", 3, 20, "chat", 7, "38c05ad0e9b35d0c1d06d50f81d6cf784349de8f0c972e9cfd9163df3d7c91ff"),
        ("qwen3-30b-a3b", 5, 20, "prose", 0, "d3b17eec2f952de2ad8358587957c15aec640606dc54f1720ae9a284f26d3cae"),
        ("deepseek-v3", 5, 20, "math", 1, "cf18bb7b928cbf3bde39a21d7314e08c137e978c8cbfe18a434d8d0fdc9d0b21"),
    ],
)
def test_a_seed_gives_the_same_bits_on_every_machine(  # noqa: PLR0913, PLR0917
    preset: str, layers: int, iterations: int, domain: str, seed: int, fingerprint: str
) -> None:
    trace = synth_trace(preset, layers=layers, iterations=iterations, domain=domain, seed=seed)
    assert trace.fingerprint == fingerprint


def test_seeds_and_domains_differ() -> None:
    prints = {
        synth_trace(layers=2, iterations=10, seed=seed, domain=domain).fingerprint
        for seed in range(3)
        for domain in ("prose", "code")
    }
    assert len(prints) == 6


def test_reuse_and_skew_are_those_published_for_kimi_k3() -> None:
    # Published W1 32-36%, W8 57-59%, W64 80-82%, slope 1.00-1.04, over four domains at 92 layers. Measured there:
    # 34, 59, 81, 1.04; here, at 8 layers spread over the depth: 32.7-33.4, 56.8-57.4, 80.6-80.7, 1.01-1.02.
    lengths = {"prose": 285, "code": 242, "math": 290, "chat": 263}
    traces = [synth_trace(layers=8, iterations=count, domain=name) for name, count in lengths.items()]
    w1, w8, w64 = np.mean([reuse(trace, (1, 8, 64)) for trace in traces], axis=0)
    assert 0.32 <= w1 <= 0.36
    assert 0.56 <= w8 <= 0.59
    assert 0.80 <= w64 <= 0.82
    assert 1.00 <= np.mean([zipf_slope(trace) for trace in traces]) <= 1.04


@pytest.mark.parametrize(
    ("preset", "iterations", "w1", "w64", "slope"),
    [
        # published ranges; measured at 12 layers: 0.42, 0.952, 1.17 and 0.28, 0.838, 0.855 (0.885 at all 61 layers)
        ("qwen3-30b-a3b", 400, (0.38, 0.45), (0.95, 0.96), (1.10, 1.26)),
        ("deepseek-v3", 300, (0.26, 0.31), (0.83, 0.85), (0.84, 0.93)),
    ],
)
def test_reuse_and_skew_are_those_published_for_the_other_models(
    preset: str, iterations: int, w1: tuple[float, float], w64: tuple[float, float], slope: tuple[float, float]
) -> None:
    trace = synth_trace(preset, layers=12, iterations=iterations)
    near, far = reuse(trace, (1, 64))
    assert w1[0] <= near <= w1[1]
    assert w64[0] <= far <= w64[1]
    assert slope[0] <= zipf_slope(trace) <= slope[1]


def test_concentration_grows_with_depth() -> None:
    # published: the eight most popular experts take 3.9% of the first layer's choices, 18% of the most concentrated's
    trace = synth_trace(layers=8, iterations=285, domain="math")
    shares = [
        np.sort(np.bincount(trace.passes(layer).ravel()))[-8:].sum() / trace.passes(layer).size
        for layer in trace.layers
    ]
    assert 0.03 <= shares[0] <= 0.05
    assert 0.12 <= max(shares) <= 0.24
    assert shares.index(max(shares)) > 0


def test_prose_has_the_published_types_tokens_and_reads() -> None:
    trace = synth_trace(layers=2, iterations=285)
    assert trace.kind_counts() == {"normal": 248, "spec_accept": 14, "spec_fallback": 23}
    assert trace.accepted_tokens == 299
    # 1663.1 reads an iteration with all 92 layers
    assert round(trace.n_accesses / trace.n_iterations * 46, 1) == 1663.1


@pytest.mark.parametrize(("iterations", "counts"), [(100, (87, 5, 8)), (20, (17, 1, 2)), (1, (1, 0, 0))])
def test_types_scale_with_the_iterations_asked_for(iterations: int, counts: tuple[int, int, int]) -> None:
    trace = synth_trace(layers=1, iterations=iterations)
    assert tuple(trace.kind_counts().values()) == counts
    assert trace.accepted_tokens == iterations + counts[1]


def test_ids_ascend_within_a_pass_and_score_order_has_the_same_sets() -> None:
    by_id = synth_trace(layers=3, iterations=20)
    by_score = synth_trace(layers=3, iterations=20, order="score")
    for layer in by_id.layers:
        rows, scored = by_id.passes(layer), by_score.passes(layer)
        assert (np.diff(rows.astype(int), axis=1) > 0).all()
        assert (np.sort(scored, axis=1) == rows).all()
        assert (scored != rows).any()


def test_a_fallback_repeats_most_of_the_failed_pass() -> None:
    # its second pass keeps the drift and draws new noise only, so it is nearer to the first than a next pass would be
    trace = synth_trace(layers=4, iterations=285)
    starts = trace.record_bounds()
    again = []
    for at in np.flatnonzero(trace.kind[starts[:-1]] == 2):
        ids = trace.experts[trace.offsets[starts[at]] : trace.offsets[starts[at + 1]]].reshape(2, 4, trace.k)
        again += [len(set(ids[0, layer]) & set(ids[1, layer])) / trace.k for layer in range(4)]
    assert np.mean(again) > reuse(trace, (1,))[0] + 0.05


@pytest.mark.parametrize("preset", ["olmoe-1b-7b", "gemma-4-26b-a4b"])
def test_a_model_without_a_fit_says_so(preset: str) -> None:
    trace = synth_trace(preset, layers=2, iterations=5)
    assert trace.n_experts == PRESETS[preset].experts
    assert "not fitted" in trace.source
    assert trace.synthetic


def test_other_dimensions_than_the_presets_say_that_the_fit_does_not_hold() -> None:
    trace = synth_trace("kimi-k3", layers=2, iterations=5, experts=32, k=4)
    assert (trace.n_experts, trace.k) == (32, 4)
    assert "not fitted: 32 experts, k 4" in trace.source


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "gpt"}, "no generator preset 'gpt'"),
        ({"domain": "poems"}, "no domain 'poems'"),
        ({"order": "random"}, "no order 'random'"),
        ({"iterations": 0}, "0 iterations"),
        ({"layers": 0}, "0 layers"),
        ({"experts": 8, "k": 9}, "k = 9 of 8 experts"),
    ],
)
def test_an_unknown_name_or_number_is_refused(arguments: dict[str, int | str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        synth_trace(**arguments)  # type: ignore[arg-type]
