"""Cells in virtual machines: every mechanism proved, both states of MGLRU, and the proof that the host's lane has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import yaml

from pytest_moetier.campaign import Campaign, CellResult, Settings
from pytest_moetier.cell import HOST, Cell, GuestAsked
from pytest_moetier.host import procfs
from pytest_moetier.host.balloon import mem_available_bytes
from pytest_moetier.host.initramfs import QEMU
from pytest_moetier.host.kernels import Kernel
from pytest_moetier.host.machine import HOST as THIS_HOST
from pytest_moetier.host.machine import current
from pytest_moetier.pool.manifest import MANIFEST_NAME
from pytest_moetier.pool.profiles import resolve_shape
from pytest_moetier.pool.synthetic import create_pool
from pytest_moetier.progress import Silent
from pytest_moetier.proof import Proof
from pytest_moetier.replay import Run
from pytest_moetier.units import Capacity
from pytest_moetier.workloads import Asked

WAIT_SECONDS = 200
ITERATIONS = 60
LABEL = "debian"
BALLOON_BYTES, SPARE_BYTES = 2 << 30, 2 << 30
"""What a balloon on this host locks at least, and what the replayer takes of it: its destinations are large experts."""
OF_A_LOOP_DEVICE = {"loop_direct_io", "image_not_resident"}
"""A guest reads the image as its disk, past this host's cache; this host reads it through a loop device."""

OF_AN_EXCESS = {"over_logical", "refaults_cover_excess"}
"""Said where a device read more than was asked for, as one that others of this host read does."""

Measured = Mapping[str, CellResult]


def cell(mechanism: str, mglru: str = "host", kernel: str = LABEL, capacity: str = "30%") -> Cell:
    return Cell("policy", Capacity.parse(capacity), mechanism, mglru, kernel=kernel)


WALL, BALLOON, BOOT = cell("cgroup"), cell("balloon", "off"), cell("memboot", "on")
GUESTS = (WALL, BALLOON, BOOT)


@pytest.fixture(scope="module")
def campaign_on(kernel: Kernel) -> Callable[[Path], Campaign]:
    """Return a call that makes a campaign over a pool, whose guests have the kernel."""
    word = f"{kernel.image}:{kernel.modules}" if kernel.modules else str(kernel.image)

    def make(pool: Path) -> Campaign:
        settings = Settings(
            pool=pool,
            asked=Asked((), ITERATIONS),
            rounds=1,
            seed=1,
            threads=2,
            reserve_bytes=1 << 30,
            wait_seconds=WAIT_SECONDS,
            kernels={LABEL: word},
            guest=GuestAsked(cpus=2),
        )
        return Campaign(settings, Silent())

    return make


@pytest.fixture(scope="module")
def measured(small_pool: Path, campaign_on: Callable[[Path], Campaign]) -> Measured:
    """The three mechanisms in guests and the wall on this host, each measured once over the small pool."""
    with closing(campaign_on(small_pool)) as campaign:
        return campaign.measure([*GUESTS, cell("cgroup", kernel=HOST)])


def run_of(result: CellResult) -> Run:
    (proved,) = result.runs
    assert isinstance(proved.run, Run)
    return proved.run


def states(proof: Proof) -> dict[str, str]:
    return {one.name: one.state for one in proof.invariants}


@pytest.mark.parametrize("one", GUESTS, ids=lambda one: one.id)
def test_a_cell_of_every_mechanism_is_proved_in_a_guest(measured: Measured, kernel: Kernel, one: Cell) -> None:
    result = measured[one.id]
    assert (result.invalid, result.skipped, result.broken) == ([], None, None)
    assert result.proved
    run = run_of(result)
    assert run.guest is not None
    assert (run.guest.kernel, run.guest.release, run.guest.cpus) == (LABEL, kernel.release, 2)
    settings = dict(run.guest.settings)
    assert settings["filesystem"] == "ext4"
    assert int(settings["read_ahead_kb"]) > 0


@pytest.mark.parametrize(("one", "state"), [(BALLOON, "off"), (BOOT, "on")], ids=lambda one: getattr(one, "id", one))
def test_mglru_is_set_and_verified_at_entry_and_exit(measured: Measured, one: Cell, state: str) -> None:
    run = run_of(measured[one.id])
    assert (run.mglru.wanted, run.mglru.at_entry, run.mglru.at_exit) == (state, state, state)
    assert states(measured[one.id].proofs[0])["mglru"] == "held"


@pytest.mark.parametrize("one", GUESTS, ids=lambda one: one.id)
def test_each_mechanism_keeps_the_cache_below_what_is_asked_of_it(measured: Measured, one: Cell) -> None:
    run = run_of(measured[one.id])
    resident = [sample.resident_bytes for sample in run.measured.residencies if sample.resident_bytes is not None]
    assert len(resident) >= 8
    # Without a wall the kernel keeps somewhat more than C: MemAvailable leaves out what its watermarks reserve.
    assert run.guest is not None
    reserved = 2 * int(dict(run.guest.settings)["min_free_kbytes"]) << 10
    most = run.enforced.limit_bytes or 1.25 * run.capacity_bytes + reserved
    assert run.capacity_bytes / 2 <= max(resident) <= most
    assert run.interval.device_read_bytes


def same_proof(guest: Proof, host: Proof) -> None:
    """Assert that both lanes held the cell to the same invariants, and that the guest's observed no fewer."""
    mine, theirs = (set(states(one)) - OF_AN_EXCESS for one in (host, guest))
    assert mine - OF_A_LOOP_DEVICE == theirs
    assert [name for name in guest.unobserved if name not in host.unobserved] == []


def test_under_a_wall_both_lanes_hold_the_same_proof(measured: Measured) -> None:
    host = measured[cell("cgroup", kernel=HOST).id]
    if host.skipped is not None:
        pytest.skip(str(host.skipped))
    (mine,) = host.proofs
    (guests,) = measured[WALL.id].proofs
    same_proof(guests, mine)
    assert set(states(mine)) >= OF_A_LOOP_DEVICE


@pytest.fixture(scope="module")
def large_pool(small_pool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool of holes a little larger than this host's memory: a balloon leaves most of that to the cache."""
    del small_pool  # skips where nothing can be measured
    path = tmp_path_factory.mktemp("large") / "pool"
    shape = resolve_shape("custom", layers=2, experts=896, k=1, expert_bytes="4KiB")
    create_pool(path, shape, store="plain")
    total = procfs.parse_meminfo(procfs.read_text("/proc/meminfo"))["MemTotal"]
    size = -(-total // (2 * 896) // 4096) * 4096 + (1 << 20)
    content = yaml.safe_load((path / MANIFEST_NAME).read_text())
    (path / MANIFEST_NAME).write_text(yaml.safe_dump({**content, "expert_bytes": size, "stamped": False}))
    for file in (path / "experts").rglob("*"):
        if file.is_file():
            with file.open("wb") as hole:
                hole.truncate(size)
    return path


def test_under_a_balloon_both_lanes_hold_the_same_proof(
    measured: Measured, large_pool: Path, campaign_on: Callable[[Path], Campaign]
) -> None:
    capacity = mem_available_bytes() - BALLOON_BYTES - SPARE_BYTES
    if capacity < 4 << 30:
        pytest.skip(f"MemAvailable is {mem_available_bytes()} B: expected 8 GiB for a balloon of 2 GiB")
    one = cell("balloon", kernel=HOST, capacity=f"{capacity >> 20}MiB")
    with closing(campaign_on(large_pool)) as campaign:
        result = campaign.measure([one])[one.id]
    if not result.proofs:  # another program of this host took what the balloon was to lock
        pytest.skip(json.dumps([str(why) for why in (*result.invalid, result.skipped, result.broken) if why]))
    (guests,) = measured[BALLOON.id].proofs
    same_proof(guests, result.proofs[0])


def test_no_machine_is_left(measured: Measured) -> None:
    assert len(measured) == len(GUESTS) + 1
    assert current() is THIS_HOST
    assert [one.pid for one in psutil.Process().children(recursive=True) if QEMU in one.name()] == []
