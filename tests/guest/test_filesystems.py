"""A cell on XFS reads a pool of XFS with the same experts, and a pool in another file system is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pytest_moetier.campaign import Campaign, Settings
from pytest_moetier.cell import Cell
from pytest_moetier.errors import UnsupportedHostError
from pytest_moetier.host.kernels import Kernel
from pytest_moetier.pool.profiles import resolve_shape
from pytest_moetier.pool.synthetic import choose_store, create_pool
from pytest_moetier.progress import Silent
from pytest_moetier.replay import Run
from pytest_moetier.units import Capacity
from pytest_moetier.workloads import Asked

LABEL = "debian"
WAIT_SECONDS = 200


@pytest.fixture(scope="module")
def xfs_pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stamped pool of 64 MiB in an image with XFS; skips where this host cannot make one."""
    try:
        choose_store("image", "xfs")
    except UnsupportedHostError as error:
        pytest.skip(str(error))
    path = tmp_path_factory.mktemp("pool") / "xfs"
    shape = resolve_shape("custom", layers=2, experts=128, k=8, expert_bytes="256KiB")
    create_pool(path, shape, store="image", filesystem="xfs")
    return path


@pytest.fixture
def campaign(xfs_pool: Path, kernel: Kernel) -> Iterator[Campaign]:
    """A campaign over that pool, whose guests have the kernel."""
    word = f"{kernel.image}:{kernel.modules}" if kernel.modules else str(kernel.image)
    settings = Settings(
        pool=xfs_pool,
        asked=Asked((), 60),
        rounds=1,
        seed=1,
        threads=2,
        reserve_bytes=1 << 30,
        wait_seconds=WAIT_SECONDS,
        kernels={LABEL: word},
    )
    with closing(Campaign(settings, Silent())) as made:
        yield made


def cell(filesystem: str) -> Cell:
    return Cell("policy", Capacity.parse("30%"), kernel=LABEL, filesystem=filesystem)


def test_a_cell_on_xfs_is_proved_in_a_guest(campaign: Campaign) -> None:
    one = cell("xfs")
    result = campaign.measure([one])[one.id]
    assert (result.invalid, result.skipped, result.broken) == ([], None, None)
    (proved,) = result.runs
    assert isinstance(proved.run, Run)
    assert proved.run.guest is not None
    assert dict(proved.run.guest.settings)["filesystem"] == "xfs"
    assert (proved.run.interval.device_read_bytes or 0) >= proved.run.capacity_bytes


def test_a_cell_on_ext4_does_not_read_a_pool_on_xfs(campaign: Campaign) -> None:
    one = cell("ext4")
    result = campaign.measure([one])[one.id]
    assert result.proofs == []
    assert str(result.skipped) == (
        f"pool {campaign.settings.pool} is an image with xfs; expected ext4, which the cell names;"
        " next: moetier pool create --store image --filesystem ext4"
    )
