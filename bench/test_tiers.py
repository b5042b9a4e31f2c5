"""Who should own an expert: the three rules of the tiers, and how much DRAM a target takes (paper section 8).

Each rule is examined on the paper's constants (``gh200``) and on this machine's (``here``): those that were given with
``--moetier-constants``, and what can be probed of the rest. No root is needed, and no pool but for the device's rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_moetier.sizing import parse_target, size

if TYPE_CHECKING:
    from pytest_moetier.fixtures import TiersHandle

pytestmark = pytest.mark.parametrize("moetier_tiers", ["gh200", "here"], indirect=True)
HALF = "2s/iteration"
"""What the capacities fit that the paper reads off for two iterations a second."""


def test_admission(moetier_tiers: TiersHandle) -> None:
    """Rule 1: what stays in DRAM costs no read, and a hit is faster than the read that it saves."""
    moetier_tiers.judge("hit_worth", **({} if moetier_tiers.paper else moetier_tiers.admission()))


def test_k_star(moetier_tiers: TiersHandle) -> None:
    """Rule 2: on a coherent link, a copy in the accelerator's own memory pays after one reuse."""
    moetier_tiers.judge("k_star")


def test_adopt_or_stream(moetier_tiers: TiersHandle) -> None:
    """Rule 3: reading DRAM in place and streaming it tie."""
    moetier_tiers.judge("stream_over_adopt", "adopt_below_stream")


def test_sizing(moetier_tiers: TiersHandle) -> None:
    """The curve answers: a point is where its neighbours say, and a target is met where it lies, or not at all."""
    curve = moetier_tiers.curve()
    values = {"interpolation_error": moetier_tiers.interpolation(curve)}
    if moetier_tiers.paper:
        values["capacity_for_two_seconds"] = size(curve, parse_target(HALF)).capacity_bytes / 1e9
        values["most_iterations_per_second"] = 1 / min(min(one.seconds) for one in curve.points)
    moetier_tiers.conclude(values, "the curve has two points: none lies between two others")
