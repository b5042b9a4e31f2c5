"""Profiles have their models' published sizes, and scaling keeps what a cache sees in proportion."""

from __future__ import annotations

import pytest

from pytest_moetier.errors import InputError
from pytest_moetier.pool.profiles import PROFILES, proportions, resolve_shape


def test_kimi_k3_has_its_published_pool() -> None:
    shape = resolve_shape("kimi-k3")
    assert (shape.layers, shape.experts, shape.k) == (92, 896, 16)
    assert set(shape.expert_bytes) == {17_547_264}
    assert round(shape.total_bytes / 1e12, 2) == 1.45
    assert round(shape.iteration_bytes * 1663.1 / (92 * 16) / 1e9, 1) == 29.2  # published: GB per iteration


def test_qwen3_has_its_published_pool_and_the_two_sizes_of_its_layers() -> None:
    shape = resolve_shape("qwen3-30b-a3b")
    assert (shape.layers, shape.experts, shape.k) == (48, 128, 8)
    # as a Q4_K_M file states them: 24 layers of each
    assert sorted(set(shape.expert_bytes)) == [2_654_208, 3_059_712]
    assert shape.expert_bytes.count(3_059_712) == 24
    assert round(shape.total_bytes / 1e9, 1) == 17.6


def test_gemma_has_the_sizes_of_its_file_in_whole_pages() -> None:
    sizes = resolve_shape("gemma-4-26b-a4b").expert_bytes
    # the file states 3593216 (16 layers) and 4336640 (14 layers): 877.25 and 1058.75 pages
    assert {size: sizes.count(size) for size in sorted(set(sizes))} == {878 * 4096: 16, 1059 * 4096: 14}


@pytest.mark.parametrize(
    ("name", "dimensions"),
    [("olmoe-1b-7b", (16, 64, 8, 3_538_944)), ("deepseek-v3", (61, 256, 8, 44_052_480))],
)
def test_other_profiles_have_their_dimensions(name: str, dimensions: tuple[int, int, int, int]) -> None:
    shape = resolve_shape(name)
    assert (shape.layers, shape.experts, shape.k, shape.expert_bytes[0]) == dimensions


@pytest.mark.parametrize("name", list(PROFILES))
def test_scaling_keeps_experts_k_and_pool_per_iteration(name: str) -> None:
    full, small = resolve_shape(name), resolve_shape(name, layers=3, expert_bytes="64KiB")
    assert (small.experts, small.k) == (full.experts, full.k)
    assert small.total_bytes / small.iteration_bytes == full.total_bytes / full.iteration_bytes
    assert small.layers == 3


def test_fewer_layers_take_the_sizes_of_layers_spread_over_the_depth() -> None:
    assert resolve_shape("gemma-4-26b-a4b", layers=30).expert_bytes == PROFILES["gemma-4-26b-a4b"].expert_bytes()
    first_and_last = resolve_shape("gemma-4-26b-a4b", layers=2).expert_bytes
    whole = PROFILES["gemma-4-26b-a4b"].expert_bytes()
    assert first_and_last == (whole[0], whole[-1])


def test_the_default_is_kimi_k3_in_four_layers_of_one_mebibyte() -> None:
    shape = resolve_shape("default")
    assert (shape.layers, shape.experts, shape.k, shape.total_bytes) == (4, 896, 16, 4 * 896 << 20)
    text = "\n".join(proportions(shape))
    assert "pool / iteration = 56" in text
    assert "C / pool = 4.4%: C = 165 MB, C / iteration = 2.46, 39 experts per layer" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"profile": "gpt"}, "no pool profile 'gpt'"),
        ({"profile": "custom", "layers": 2}, "needs all dimensions"),
        ({"profile": "kimi-k3", "experts": 64}, "--experts 64 with profile kimi-k3, whose experts is 896"),
        ({"profile": "kimi-k3", "layers": 93}, "--layers 93.*at most its 92"),
        ({"profile": "kimi-k3", "layers": 0}, "layers is 0"),
        ({"profile": "kimi-k3", "expert_bytes": "1000"}, "whole pages"),
        ({"profile": "kimi-k3", "expert_bytes": "much"}, "'much' is not a size"),
        ({"profile": "custom", "layers": 1, "experts": 4, "k": 5, "expert_bytes": "4KiB"}, "k = 5 of 4 experts"),
    ],
)
def test_what_cannot_be_scaled_is_refused(arguments: dict[str, int | str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve_shape(**arguments)  # type: ignore[arg-type]
