"""The random numbers behind synthetic traces and pools: known answers, so that every machine draws the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_moetier.trace import splitmix


def test_words_are_those_of_the_reference_splitmix64() -> None:
    # the published generator seeded with 1234567: its first five outputs
    assert splitmix.words(1234567, 0, 5).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_any_word_of_a_stream_can_be_drawn_on_its_own() -> None:
    stream = np.array([5, 6], dtype=np.uint64)
    assert (splitmix.words(stream, 0, 100)[:, 40:60] == splitmix.words(stream, 40, 20)).all()
    assert (splitmix.normals(stream, 0, 100)[:, 40:60] == splitmix.normals(stream, 40, 20)).all()


def test_scalar_and_array_mixing_agree() -> None:
    values = np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64)
    assert splitmix.mix_array(values).tolist() == [splitmix.mix(int(value)) for value in values]
    assert splitmix.keys(splitmix.key(9, 4), np.arange(3)).tolist() == [splitmix.key(9, 4, last) for last in range(3)]


def test_normals_have_the_moments_of_a_standard_normal() -> None:
    drawn = splitmix.normals(splitmix.key(3), 0, 400_000)
    assert abs(drawn.mean()) < 0.006
    assert abs(drawn.std() - 1) < 0.005
    assert abs((drawn**3).mean()) < 0.02
    assert abs((drawn**4).mean() - (3 - 1.2 / 12)) < 0.05  # a sum of twelve uniforms has the excess kurtosis -0.1
    assert abs((drawn > 2).mean() - 0.0226) < 0.002


@pytest.mark.parametrize("value", [-20.0, -1.0, -1 / 128.8, 0.0, 0.5, 3.0])
def test_exp_needs_no_libm_and_agrees_with_it(value: float) -> None:
    assert math.isclose(splitmix.exp(value), math.exp(value), rel_tol=1e-11)


def test_shuffling_keeps_every_element_once() -> None:
    order = splitmix.shuffled(1000, splitmix.key(1))
    assert sorted(order) == list(range(1000))
    assert order != list(range(1000))
