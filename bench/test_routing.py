"""Routing locality at three scales: what a cache of experts has to work with (paper section 3, Table 1, Figure 1).

No root, pool or device is needed. By default the traces are synthetic, of the models the paper measured (and of OLMoE);
``--moetier-trace DOMAIN=FILE`` tests the user's own instead, and recorded ones are found through ``MOETIER_TRACES``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_moetier.routing import (
    DOMAINS,
    batch_figures,
    crossovers,
    depth_unions,
    domain_jaccards,
    lru_of_belady,
    mean_rates,
    merged_figures,
    split_figures,
)

if TYPE_CHECKING:
    from pytest_moetier.fixtures import DomainsHandle, RoutingHandle

LONG = 4000
"""Steps of the runs that the paper read the asymptote from."""


def test_accounting(moetier_routing: RoutingHandle, moetier_benchmark: Any) -> None:  # noqa: ANN401 - pytest-benchmark's
    """Engine iterations, accepted tokens and expert reads, each in its own unit (section 2)."""
    moetier_routing.store(moetier_benchmark)
    moetier_routing.judge("iterations", "accepted_tokens", "reads_per_iteration", "reads_per_accepted_token")


def test_zipf_slope(moetier_routing: RoutingHandle) -> None:
    """The skew of the experts' popularity."""
    moetier_routing.judge("zipf_slope")


def test_reuse_w1(moetier_routing: RoutingHandle) -> None:
    """Selections that repeat the previous pass."""
    moetier_routing.judge("reuse_w1")


def test_reuse_w8(moetier_routing: RoutingHandle) -> None:
    """Selections that repeat one of the previous 8 passes."""
    moetier_routing.judge("reuse_w8")


def test_reuse_w64(moetier_routing: RoutingHandle) -> None:
    """Selections that repeat one of the previous 64 passes."""
    moetier_routing.judge("reuse_w64")


def test_top8_mass(moetier_routing: RoutingHandle) -> None:
    """The share of the 8 most selected experts of a layer: there is no small stable head at scale."""
    moetier_routing.judge("top8_mass")


def test_pool_coverage(moetier_routing: RoutingHandle) -> None:
    """The share of the pool that a few hundred steps touch."""
    moetier_routing.judge("pool_coverage")


def test_depth_gradient(moetier_routing: RoutingHandle) -> None:
    """Concentration grows with depth: the top-8 mass of the first layer and of the most concentrated one."""
    moetier_routing.judge("first_layer_top8_mass", "most_concentrated_top8_mass", "depth_gradient")


def test_overlap(moetier_routing: RoutingHandle) -> None:
    """The overlap of two passes of a layer, 1 and 8 passes apart."""
    moetier_routing.judge("overlap_1", "overlap_8")


def test_skew(moetier_routing: RoutingHandle) -> None:
    """Experts of a layer that cover 80% of its activations, and those that 64 passes touch, over layers."""
    for_80 = (f"{which}_experts_for_80" for which in ("least", "median", "most"))
    moetier_routing.judge(*for_80, "least_distinct_in_64", "most_distinct_in_64")


def test_asymptote(moetier_routing: RoutingHandle) -> None:
    """Long contexts sharpen, not flatten: the figures of 4,000 steps."""
    if moetier_routing.trace.synthetic:
        moetier_routing.not_examined(
            f"the generator is not fitted for {LONG} steps; next: --moetier-trace DOMAIN=FILE with a recorded trace of"
            f" {LONG} steps or more"
        )
    passes = int(moetier_routing.locality.positions.min())
    if passes < LONG:
        moetier_routing.not_examined(
            f"the trace has {passes} passes; expected {LONG} or more; next: record a longer decode"
        )
    figures = moetier_routing.study.figures()
    moetier_routing.conclude(
        {f"{name}_{LONG}_steps": figures[name] for name in ("zipf_slope", "reuse_w64", "pool_coverage")}
    )


def test_depth_union(moetier_domains: DomainsHandle) -> None:
    """Distinct experts of a layer over all domains: nearly all near the input, fewer at depth."""
    moetier_domains.conclude(depth_unions(moetier_domains.studies))


def test_domain_jaccard(moetier_domains: DomainsHandle) -> None:
    """Hot sets drift: the overlap of the most selected experts of two domains, smallest and largest of all pairs."""
    if len(moetier_domains.studies) < 2:
        moetier_domains.not_examined("one domain; expected two or more; next: --moetier-trace DOMAIN=FILE for each")
    moetier_domains.conclude(domain_jaccards(moetier_domains.studies))


def test_crossover(moetier_domains: DomainsHandle) -> None:
    """Frequency wins below about 2k experts a layer, recency from 32 on: differences of the means over domains."""
    why = "one domain has no spread, and a budget says nothing of a model far smaller or larger than it"
    moetier_domains.conclude(crossovers(moetier_domains.examined(moetier_domains.hit_rates)), why)


def test_hit_rates(moetier_domains: DomainsHandle) -> None:
    """What each policy hits at a budget of B experts a layer: the means over the four domains."""
    mean = mean_rates(moetier_domains.examined(moetier_domains.hit_rates))
    if len(moetier_domains.studies) != len(DOMAINS):
        moetier_domains.not_examined(_four(moetier_domains, "the paper's hit rates are means over four domains"), mean)
    moetier_domains.conclude(mean)


def test_lru_of_belady(moetier_domains: DomainsHandle) -> None:
    """What part of the offline optimum recency reaches at 32 experts a layer."""
    why = "32 experts are all of a layer's"
    moetier_domains.conclude(lru_of_belady(moetier_domains.examined(moetier_domains.hit_rates)), why)


def test_global_against_split(moetier_domains: DomainsHandle) -> None:
    """One cache for all layers behaves as an equal split of it: LRU's hit rate, and which policy leads."""
    values = moetier_domains.examined(lambda: split_figures(moetier_domains.studies))
    moetier_domains.conclude(values, "the budget holds every expert")


def test_batch4(moetier_domains: DomainsHandle) -> None:
    """Four streams merged iteration by iteration share next to nothing."""
    values = moetier_domains.examined(lambda: merged_figures(moetier_domains.studies))
    if len(moetier_domains.studies) != len(DOMAINS):
        moetier_domains.not_examined(_four(moetier_domains, "the paper merges four streams"), values)
    moetier_domains.conclude(values, "the size of an expert is not known")


def test_batch_hits(moetier_domains: DomainsHandle) -> None:
    """Four streams that share one budget lose hits, and each token pays: LRU at a quarter of the pool, and at 200 GB.

    A capacity finding by simulation; it is here because a session of cells has no need of traces.
    """
    values = moetier_domains.examined(lambda: batch_figures(moetier_domains.studies))
    if len(moetier_domains.studies) != len(DOMAINS):
        moetier_domains.not_examined(_four(moetier_domains, "the paper merges four streams"), values)
    moetier_domains.conclude(values, "the streams alone miss nothing")


def _four(domains: DomainsHandle, why: str) -> str:
    return f"{why}, here are {len(domains.studies)}; next: --moetier-trace DOMAIN=FILE for each"
