"""What no kernel counts to the byte makes no run invalid, and what is beyond it does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_moetier.figures import Demand, figures_of
from pytest_moetier.proof import examine
from pytest_moetier.proof.memory import CHARGE_BYTES
from pytest_moetier.proof.traffic import METADATA_BYTES
from pytest_moetier.replay import Run


def states(run: Run, demand: Demand) -> dict[str, str]:
    return {one.name: one.state for one in examine(run, demand, figures_of(run, demand)).invariants}


@pytest.mark.parametrize(("missing", "state"), [(CHARGE_BYTES, "held"), (CHARGE_BYTES + 4096, "broken")])
def test_a_groups_statistics_may_lag_by_the_kernels_batch(run: Run, demand: Demand, missing: int, state: str) -> None:
    resident = run.measured.residency_at("exit")
    assert resident is not None
    assert resident < 100 * CHARGE_BYTES  # so that 1% is less
    assert run.exit.scope is not None
    lagging = replace(run, exit=replace(run.exit, scope=replace(run.exit.scope, file_bytes=resident - missing)))
    assert states(lagging, demand)["charged_at_exit"] == state


@pytest.mark.parametrize(("more", "state"), [(METADATA_BYTES, None), (METADATA_BYTES + 4096, "broken")])
def test_the_filesystems_own_blocks_are_no_refaults(run: Run, demand: Demand, more: int, state: str | None) -> None:
    read = run.measured.bytes + more
    changed = replace(run.interval, device_read_bytes=read, process_read_bytes=read, workingset_refault_file=0)
    found = states(replace(run, interval=changed), replace(demand, cold_factor=1.0))
    assert found.get("refaults_cover_excess") == state
    assert found.get("over_logical") == (None if state is None else "flagged")
