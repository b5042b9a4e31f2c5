"""Who should choose what is kept: a frequency table or recency (paper section 6, Figure 5), by simulation.

No root, pool or device is needed; the traces are those of ``test_routing.py``. All experts share one cache of 256 GB of
the paper's pool, or of the same share of another model's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_moetier.routing import drift_figures, off_domain_figures, oracle_figures

if TYPE_CHECKING:
    from pytest_moetier.fixtures import DomainsHandle, RoutingHandle


def test_own_domain_oracle(moetier_routing: RoutingHandle) -> None:
    """Recency matches a table trained on the very trace that is replayed, which no deployment has."""
    moetier_routing.conclude(moetier_routing.examined(lambda: oracle_figures(moetier_routing.study)))


def test_drift(moetier_routing: RoutingHandle) -> None:
    """A table of the trace's own past ages, and recency tracks."""
    moetier_routing.conclude(moetier_routing.examined(lambda: drift_figures(moetier_routing.study)))


def test_off_domain(moetier_domains: DomainsHandle) -> None:
    """A table of one domain collapses in the others, and LRU holds everywhere: fair windows on both sides."""
    moetier_domains.conclude(moetier_domains.examined(lambda: off_domain_figures(moetier_domains.studies)))


pytestmark = pytest.mark.moetier(finding="policy")
